//! AIO requests are scarce in a system: a program with many paths leaves most of them to others.

mod support;

use readpath::{BackendError, BackendKind, ReadPath};
use support::TempFile;

/// Number in a file of `/proc/sys/fs`.
fn number(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/proc/sys/fs/{name}")).ok()?.trim().parse().ok()
}

#[test]
fn paths_of_one_process_leave_most_aio_requests_to_others() {
    let Some((most, before)) = number("aio-max-nr").zip(number("aio-nr")) else {
        return eprintln!("skipped: the system does not report its AIO requests");
    };
    if before > most / 4 {
        return eprintln!("skipped: {before} of {most} AIO requests are taken by others");
    }
    let temp = TempFile::new(1 << 20);
    let content = std::fs::read(&temp.path).unwrap();
    let build = || ReadPath::builder().memory(1 << 20).kernel_cache(false).build().unwrap();
    let paths: Vec<ReadPath> = (0..512).map(|_| build()).collect();
    let after = number("aio-nr").unwrap();
    // Concurrent tests and other programs take and return some meanwhile.
    assert!(after - before.min(after) <= most / 4, "{before}, then {after} of {most}");
    for path in [&paths[0], &paths[200], &paths[511]] {
        let mut all = vec![0; 1 << 20];
        path.open(&temp.path).unwrap().read_exact_at(&mut all, 0).unwrap();
        assert!(all == content);
    }
    let last = paths[511].stats().backend.unwrap();
    assert_eq!(last.kind, BackendKind::Threads);
    let because = last.because.unwrap();
    assert!(matches!(because, BackendError::AioShare { .. }), "{because}");
    // AIO by name is still available, and returned requests are available to the next path.
    let named = ReadPath::builder().memory(1 << 20).backend(BackendKind::Aio).build().unwrap();
    assert_eq!(named.stats().backend.unwrap().kind, BackendKind::Aio);
    drop(paths);
    assert_eq!(build().stats().backend.unwrap().kind, BackendKind::Aio);
}
