//! A batch whose path cannot build its engine: the error has no ticket, and no read is lost.
//!
//! The limit of mapped memory applies to the process, so the test has one of its own.

mod support;

use std::fs::File as StdFile;

use readpath::ReadPath;
use readpath_record::cold::drop_pages;
use support::TempFile;

/// Sets the limit of mapped memory in bytes. Returns the one before.
fn limit_memory(limit: u64) -> u64 {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and write one structure.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &mut old), 0);
        let new = libc::rlimit { rlim_cur: limit, ..old };
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &new), 0);
    }
    old.rlim_cur
}

/// Bytes of mapped memory of this process.
fn mapped_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

/// The kernel page cache has no bytes of a part that was cut off, so that the engine is needed. Its
/// memory is larger than the reserve of 1 MiB that the limit leaves.
#[test]
fn read_stays_in_the_batch_until_the_engine_is_built() {
    const BYTES: u64 = 1 << 20;
    let temp = TempFile::new(BYTES as usize);
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let mut batch = path.batch();
    StdFile::options().write(true).open(&temp.path).unwrap().set_len(BYTES / 2).unwrap();
    drop_pages(&temp.path).unwrap();
    batch.read(&file, BYTES / 2 - 65_536, 131_072, 7).unwrap();
    let limit = limit_memory(mapped_bytes() + (1 << 20));
    let failures: Vec<_> = (0..2).map(|_| batch.wait().map(|read| read.is_some())).collect();
    batch.start();
    let count = batch.len();
    limit_memory(limit);
    assert!(failures.iter().all(Result::is_err), "{failures:?}");
    assert_eq!(count, 1);
    let read = batch.wait().unwrap().expect("the read is still there");
    assert_eq!(read.ticket(), 7);
    // The file has become shorter.
    read.bytes().unwrap_err();
    assert!(batch.wait().unwrap().is_none());
}
