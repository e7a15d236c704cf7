//! Limits of the process that the program meets during a transfer: each error names the limit.
//!
//! Limits apply to the whole process, so each test forks a process of its own.

mod support;

use readpath::pager::MappingMode;
use readpath::raw::{RawError, RawFault, RawMemory};
use readpath::{Mapping, PageCache, RawFile, ReadPath, Region};
use readpath_core::request::DeviceError;
use support::{
    BACKENDS, TempFile, can_serve, in_child, limit, limit_further_data, status_of_child,
};

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

const MIB: u64 = 1 << 20;

/// Result of a child whose data has a limit. 0 and 1 are the codes of `status_of_child`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitOutcome {
    /// The limit is high enough.
    Served = 2,
    /// The limit is too low, and an error or a mode says so.
    Refused = 3,
}

impl LimitOutcome {
    /// Outcome of a refusal, whose text must name the limit of data.
    fn refused_by(refusal: &dyn std::fmt::Display) -> LimitOutcome {
        let text = refusal.to_string();
        assert!(text.contains("`ulimit -d`"), "{text}");
        LimitOutcome::Refused
    }
}

/// Runs `outcome` in a child for each of the limits, `extra_bytes` beyond the data that the child
/// has. Fails unless each returns, and unless both outcomes occur.
fn check_at_limits_of_data(
    extra_bytes: impl Iterator<Item = u64>,
    outcome: impl Fn() -> LimitOutcome,
) {
    let mut outcomes = Vec::new();
    for extra_bytes in extra_bytes {
        let status = status_of_child(|| {
            // A backtrace allocates under a lock that a failed allocation takes again.
            std::panic::set_hook(Box::new(|_| {}));
            limit_further_data(extra_bytes);
            let code = outcome() as libc::c_int;
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        });
        let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        let known = [LimitOutcome::Served, LimitOutcome::Refused];
        let outcome = known.into_iter().find(|&known| code == Some(known as libc::c_int));
        outcomes.push(outcome.unwrap_or_else(|| panic!("{extra_bytes} bytes: {status:#x}")));
    }
    assert!(outcomes.contains(&LimitOutcome::Served) && outcomes.contains(&LimitOutcome::Refused));
}

/// The memory of a path without a page cache is 64 MiB, and its tables are some more. The limits
/// leave up to 4 MiB, about as much as the memory, and enough for the tables.
#[test]
fn path_beyond_the_limit_of_data_is_an_error_that_names_it() {
    let temp = TempFile::new(1 << 20);
    let none = (PageCache::None, 64 * MIB, MIB / 32);
    let own = (PageCache::Own { bytes: Some(1024 * MIB) }, 1024 * MIB, MIB);
    for (page_cache, memory_bytes, step_bytes) in [none, own] {
        let near_memory = memory_bytes - 2 * MIB..memory_bytes + 72 * step_bytes + 4 * MIB;
        let extra_bytes = (MIB / 32..4 * MIB).chain(near_memory).step_by(step_bytes as usize);
        check_at_limits_of_data(extra_bytes, || {
            match ReadPath::builder().page_cache(page_cache).build() {
                Ok(path) => {
                    let file = path.open(&temp.path).unwrap();
                    file.read_exact_at(&mut [0; 9_000], 70_000).unwrap();
                    LimitOutcome::Served
                }
                Err(error) => LimitOutcome::refused_by(&error),
            }
        });
    }
}

/// A region, served or with an error that names the limit. Its writable memory is its length and
/// its frames, and its tables are some more. The limits leave about as much, or at most the tables.
#[test]
fn region_at_the_limit_of_data_is_served_or_an_error_that_names_it() {
    if !can_serve() {
        return;
    }
    let (bytes, memory_bytes) = (256 * MIB, 16 * MIB);
    // The frames are 4 MiB more than the memory, for pinned pages.
    let near_areas = bytes + memory_bytes + 4 * MIB..bytes + memory_bytes + 10 * MIB;
    let near_tables = (MIB / 32..4 * MIB).step_by(MIB as usize / 16);
    check_at_limits_of_data(near_tables.chain(near_areas.step_by(MIB as usize / 8)), || {
        let built = Region::builder().memory(memory_bytes);
        match built.in_folder(bytes, env!("CARGO_TARGET_TMPDIR")) {
            Ok(mut region) => {
                let pages = region.as_mut_slice().chunks_exact_mut(4096);
                // More than the memory.
                pages.take(5_000).for_each(|page| page[0] = 1);
                LimitOutcome::Served
            }
            Err(error) => LimitOutcome::refused_by(&error),
        }
    });
}

/// A mapping, served, or mapped by the kernel with a reason that names the limit, or an error that
/// does. Its writable memory is twice the length of the file, and its tables are some more.
#[test]
fn mapping_at_the_limit_of_data_is_served_or_names_it() {
    if !can_serve() {
        return;
    }
    let bytes = 64 * MIB;
    let temp = TempFile::new(bytes as usize);
    let near_areas = 2 * bytes - MIB..2 * bytes + 12 * MIB;
    let near_tables = (MIB / 32..4 * MIB).step_by(MIB as usize / 16);
    check_at_limits_of_data(near_tables.chain(near_areas.step_by(MIB as usize / 8)), || {
        let built = Mapping::builder().memory(bytes).kernel_cache(false);
        // SAFETY: no process changes the file.
        let mapping = match unsafe { built.open(&temp.path) } {
            Ok(mapping) => mapping,
            Err(error) => return LimitOutcome::refused_by(&error),
        };
        let first_bytes = mapping.as_slice().iter().step_by(4096).map(|&byte| u64::from(byte));
        assert!(first_bytes.sum::<u64>() > 0);
        match mapping.mode() {
            MappingMode::Served => LimitOutcome::Served,
            mode => LimitOutcome::refused_by(&mode),
        }
    });
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
