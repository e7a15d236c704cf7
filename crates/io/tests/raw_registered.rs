//! A raw file reports whether the kernel has registered its buffers, and works either way. Alone in
//! its process, whose limit of locked memory it changes.

mod support;

use readpath::{BackendKind, RawFile};
use support::*;

/// `CAP_IPC_LOCK` of capabilities(7), which lifts the limit of locked memory.
const IPC_LOCK: u32 = 1 << 14;

/// Removes `CAP_IPC_LOCK` from the calling thread's effective capabilities, by capset(2).
fn forgo_locking() {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    // Two sets of effective, permitted, inheritable.
    let mut sets = [0u32; 6];
    // SAFETY: header and sets have the layout of version 3.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()), 0);
        sets[0] &= !IPC_LOCK;
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()), 0);
    }
}

#[test]
fn unregistered_buffers_are_reported_and_usable() {
    let file = TempFile::new(1 << 20);
    let content = std::fs::read(&file.path).unwrap();
    // Only io_uring registers buffers.
    let options = RawFile::builder().chunk_bytes(256 << 10).depth(4).backend(BackendKind::Ring);
    // SAFETY: the call accesses no memory.
    if unsafe { libc::geteuid() } == 0 {
        assert!(options.clone().open(&file.path).unwrap().buffers_are_registered());
    } else {
        eprintln!("skipped in part: only root is never refused");
    }
    // Enough for the ring itself, but not for 1 MiB of buffers.
    let limit = libc::rlimit { rlim_cur: 256 << 10, rlim_max: libc::RLIM_INFINITY };
    let mut before = limit;
    // SAFETY: both pointers have the required type.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut before), 0);
        let limit = libc::rlimit { rlim_max: before.rlim_max, ..limit };
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
    }
    forgo_locking();
    let raw = options.open(&file.path).unwrap();
    assert!(!raw.buffers_are_registered());
    assert!(format!("{raw:?}").contains("buffers_are_registered: false"));
    let mut memory = vec![0; content.len() + 1];
    raw.read_exact_at(&mut memory[1..], 0).unwrap();
    assert!(memory[1..] == content);
}
