//! Limits of the process that the program meets during a transfer: each error names the limit.
//!
//! Limits apply to the whole process, so each test forks a process of its own.

mod support;

use readpath::ReadPath;
use support::{TempFile, in_child};

fn limit(resource: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: the struct lives through the call, which changes this child alone.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// A user at the limit of threads: the read of an absent page cannot be passed to one.
#[test]
fn future_without_a_thread_names_the_limit_of_threads() {
    let temp = TempFile::new(4 << 20);
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    assert!(in_child(|| {
        let file = ReadPath::builder().build().unwrap().open(&temp.path).unwrap();
        // Root is not limited: become the user `nobody`, as whom this child counts as one.
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
