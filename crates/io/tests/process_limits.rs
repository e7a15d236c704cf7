//! Limits of the process that the program meets during a transfer: each error names the limit.
//!
//! Limits apply to the whole process, so each test forks a process of its own.

mod support;

use readpath::raw::{RawError, RawFault, RawMemory};
use readpath::{PageCache, RawFile, ReadPath};
use readpath_core::request::DeviceError;
use support::{BACKENDS, TempFile, in_child, limit, limit_further_data, status_of_child};

/// The kernel cuts a write at the limit, also within a block, and then rejects the unaligned rest
/// with EINVAL: generic_write_checks in fs/read_write.c. EFBIG is 27 in errno(3).
#[test]
fn raw_write_over_the_file_size_limit_names_the_limit() {
    for backend in BACKENDS {
        // No multiple of a block; a multiple of 512 and not of 4096; a multiple of both.
        for limit_bytes in [1_000_000, 1_000_448, 999_424] {
            let temp = TempFile::new(0);
            assert!(in_child(|| {
                // SAFETY: the child ignores the signal that the kernel sends with EFBIG.
                unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
                limit(libc::RLIMIT_FSIZE, limit_bytes);
                let file = RawFile::builder().write(true).backend(backend);
                let file = file.open(&temp.path).unwrap();
                file.write_all_at(&[1; 8192], 0).unwrap();
                let (mut batch, memory) = (file.batch(1).unwrap(), RawMemory::new(8192).unwrap());
                batch.write(memory, 8192, 999_424, 0).unwrap();
                let of_batch = batch.wait().unwrap().unwrap().result.unwrap_err();
                let of_call = file.write_all_at(&[1; 8192], 999_424).unwrap_err();
                let expected = DeviceError::Other(27);
                let has_named = |error: RawError| {
                    matches!(error.fault, RawFault::Device { error, .. } if error == expected)
                        && error.to_string().contains("ulimit -f")
                };
                has_named(of_call) && has_named(of_batch)
            }));
        }
    }
}

/// The memory of a path without a page cache is 64 MiB, and its tables are some more. The limits
/// leave up to 4 MiB, about as much as the memory, and enough for the tables.
#[test]
fn path_beyond_the_limit_of_data_is_an_error_that_names_it() {
    const MIB: u64 = 1 << 20;
    let temp = TempFile::new(1 << 20);
    let none = (PageCache::None, 64 * MIB, MIB / 32);
    let own = (PageCache::Own { bytes: Some(1024 * MIB) }, 1024 * MIB, MIB);
    for (page_cache, memory_bytes, step_bytes) in [none, own] {
        let (mut errors, mut paths) = (0, 0);
        let near_memory = memory_bytes - 2 * MIB..memory_bytes + 72 * step_bytes + 4 * MIB;
        for extra_bytes in (MIB / 32..4 * MIB).chain(near_memory).step_by(step_bytes as usize) {
            // 1 for a path that reads, 2 for an error that names the limit, and 3 for others.
            let status = status_of_child(|| {
                limit_further_data(extra_bytes);
                let code = match ReadPath::builder().page_cache(page_cache).build() {
                    Ok(path) => {
                        let file = path.open(&temp.path).unwrap();
                        file.read_exact_at(&mut [0; 9_000], 70_000).unwrap();
                        1
                    }
                    Err(error) if error.to_string().contains("`ulimit -d`") => 2,
                    Err(_) => 3,
                };
                // SAFETY: ends the child.
                unsafe { libc::_exit(code) }
            });
            match libc::WEXITSTATUS(status) {
                1 if libc::WIFEXITED(status) => paths += 1,
                2 if libc::WIFEXITED(status) => errors += 1,
                _ => panic!("{page_cache:?}, {extra_bytes} bytes: {status:#x}"),
            }
        }
        assert!(errors > 0 && paths > 0, "{page_cache:?}: {errors} {paths}");
    }
}

/// A user at the limit of threads: the read of an absent page cannot be passed to one.
#[test]
fn future_without_a_thread_names_the_limit_of_threads() {
    let temp = TempFile::new(4 << 20);
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    assert!(in_child(|| {
        let file = ReadPath::builder().build().unwrap().open(&temp.path).unwrap();
        // Root is not limited. The user 65534 has this process, and may have no more.
        // SAFETY: the calls change this child alone.
        if unsafe { libc::getuid() } == 0 {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::setuid(65_534) }, 0);
        }
        limit(libc::RLIMIT_NPROC, 1);
        if std::thread::Builder::new().spawn(|| {}).is_ok() {
            eprintln!("skipped: the kernel does not limit threads here");
            return true;
        }
        let (result, _) = pollster::block_on(file.read_at_async(vec![0; 9000], 3_000_000));
        match result {
            // The file system cannot drop pages, and the kernel had them.
            Ok(bytes) => bytes == 9000,
            Err(error) => {
                assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                error.to_string().contains("ulimit -u")
            }
        }
    }));
}
