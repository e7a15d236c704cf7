//! A thread that has started reads and then stalls, in the kernel or by the scheduler, stalls no
//! other thread.

mod support;

use std::io::{PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use readpath::{BackendKind, File, ReadPath};
use support::*;

/// Duration of a stall in milliseconds if it affects others; a passing test ends it after a few.
const HELD_MS: i32 = 20_000;

const FILE_BYTES: u64 = 32 << 20;

/// A file with direct I/O, open in a path without readahead.
fn opened(backend: BackendKind) -> Option<(TempFile, ReadPath, File)> {
    let temp = TempFile::new(FILE_BYTES as usize);
    if !takes_direct(&temp.path) {
        return None;
    }
    let path = own_cache().readahead("none").backend(backend).build().unwrap();
    let file = path.open(&temp.path).unwrap();
    Some((temp, path, file))
}

/// Waits, on a separate stack in the parent's memory, until `pipe` is closed or the timeout has
/// passed.
extern "C" fn wait_for_end(pipe: *mut libc::c_void) -> i32 {
    let mut poll = libc::pollfd { fd: pipe as usize as i32, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, which the parent keeps open.
    let ready = unsafe { libc::poll(&mut poll, 1, HELD_MS) };
    i32::from(ready != 1)
}

/// Sits in `vfork` until `pipe` is readable; false on timeout.
fn sit_in_vfork(pipe: &PipeReader) -> bool {
    let mut stack = vec![0u64; 8192];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let argument = pipe.as_raw_fd() as usize as *mut libc::c_void;
    let mut status = 0;
    // SAFETY: the child runs on its own stack, calls only poll(2) and ends before this thread
    // continues. No other thread waits for it.
    unsafe {
        let top = stack.as_mut_ptr_range().end.cast();
        let child = libc::clone(wait_for_end, top, flags, argument);
        assert!(child > 0, "clone: {}", std::io::Error::last_os_error());
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
    }
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// Makes a thread prefetch all odd MiB and then sit in `vfork`, while this thread reads these and
/// others.
fn reads_beside_vfork(backend: BackendKind) {
    let Some((temp, _path, file)) = opened(backend) else { return };
    let expected = std::fs::read(&temp.path).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let is_asked = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let (file, asked) = (&file, &is_asked);
        let held = threads.spawn(move || {
            for offset in (1 << 20..FILE_BYTES).step_by(2 << 20) {
                file.prefetch(offset, 1 << 20);
            }
            asked.store(true, Ordering::Release);
            sit_in_vfork(&reader)
        });
        while !asked.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let mut page = [0; 4096];
        for offset in (0..FILE_BYTES).step_by(256 << 10) {
            file.read_exact_at(&mut page, offset).unwrap();
            assert!(page[..] == expected[offset as usize..][..4096], "at {offset}");
        }
        writer.write_all(b"!").unwrap();
        assert!(held.join().unwrap(), "the reads ended after the thread had been held for long");
    });
}

#[test]
fn thread_in_vfork_stalls_no_other_read() {
    reads_beside_vfork(BackendKind::default());
    reads_beside_vfork(BackendKind::Threads);
}

/// Completions for a thread do not interrupt its own sleeps.
#[test]
fn thread_with_requested_pages_sleeps_without_interruption() {
    let Some((_temp, path, file)) = opened(BackendKind::default()) else { return };
    // SAFETY: creates a descriptor, closed below.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let mut interrupted = 0;
    for offset in (0..FILE_BYTES).step_by(1 << 20) {
        file.prefetch(offset, 1 << 20);
        // SAFETY: room for one event.
        let woken = unsafe { libc::epoll_wait(epoll, &mut event, 1, 5) };
        interrupted += u32::from(woken < 0);
    }
    // SAFETY: created above.
    unsafe { libc::close(epoll) };
    assert!(path.stats().device_reads > 0, "nothing was read, so nothing was tried");
    assert_eq!(interrupted, 0, "of {} sleeps", FILE_BYTES >> 20);
}

/// Other threads read the pages that a thread has requested while it sits in a long system call.
#[test]
fn thread_in_a_system_call_stalls_no_other_read() {
    let Some((temp, _path, file)) = opened(BackendKind::default()) else { return };
    let expected = std::fs::read(&temp.path).unwrap();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    std::thread::scope(|threads| {
        let (asked, is_asked) = std::sync::mpsc::channel();
        let reads = &file;
        let held = threads.spawn(move || {
            reads.prefetch(0, FILE_BYTES / 2);
            asked.send(()).unwrap();
            reader.read_exact(&mut [0]).unwrap();
        });
        is_asked.recv().unwrap();
        let mut page = [0; 4096];
        for offset in (0..FILE_BYTES).step_by(64 << 10) {
            file.read_exact_at(&mut page, offset).unwrap();
            assert!(page[..] == expected[offset as usize..][..4096], "at {offset}");
        }
        writer.write_all(b"!").unwrap();
        held.join().unwrap();
    });
}
