//! Answers of a ring, also after the kernel has come to reject its system call.

use std::io::Write;
use std::os::fd::AsFd;

use super::*;

/// Queues a read of up to 8 bytes from a pipe into `memory`. The read stays pending until bytes
/// are written to the pipe.
fn queue_read(
    ring: &mut UringBackend,
    fd: i32,
    token: u64,
    memory: &mut [u8; 8],
    list: &mut [libc::iovec; 1],
) {
    list[0] = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    let transfer =
        Transfer { token, fd, op: Op::Read, offset: 0, segments: list, is_direct: false };
    // SAFETY: each test keeps `memory` and `list` longer than the ring.
    unsafe { ring.queue(transfer) };
}

/// Makes `io_uring_enter(2)` fail on this thread from now on (seccomp(2)): with `submit_errno` if
/// the call submits entries, and with `wait_errno` otherwise. 0 permits the call.
fn reject_enter(submit_errno: i32, wait_errno: i32) {
    const SECOND: u32 = 24; // of `struct seccomp_data`: number of entries to submit
    let answer = |errno: i32| match errno {
        0 => RETURN_ALLOWED,
        errno => instruction(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0),
    };
    set_filter(&mut [
        instruction(LOAD, 0, 0, 0),
        instruction(IF_EQUAL, libc::SYS_io_uring_enter as u32, 0, 4),
        instruction(LOAD, SECOND, 0, 0),
        instruction(IF_EQUAL, 0, 1, 0),
        answer(submit_errno),
        answer(wait_errno),
        RETURN_ALLOWED,
    ]);
}

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
const RETURN_ALLOWED: libc::sock_filter = instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0);

/// Instruction of a filter with operand `k`, and its jumps if the condition holds and if not.
const fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Installs a seccomp filter for this thread.
fn set_filter(filter: &mut [libc::sock_filter]) {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program outlives the calls and affects this thread alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// Runs `body` on a thread of its own, which filters end with.
fn on_thread(body: impl FnOnce() + Send) {
    std::thread::scope(|threads| threads.spawn(body).join().unwrap());
}

/// Segment list that `queue_read` sets.
const NO_SEGMENT: [libc::iovec; 1] = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];

#[test]
fn ring_sleeps_until_the_timeout_or_an_answer() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (mut memory, mut list, mut answers) = ([0; 8], NO_SEGMENT, Vec::new());
    let mut ring = UringBackend::new(4).unwrap();
    queue_read(&mut ring, reader.as_raw_fd(), 7, &mut memory, &mut list);
    ring.exchange(Sleep::AtMost(Duration::from_millis(1)), &mut answers).unwrap();
    ring.exchange(Sleep::Never, &mut answers).unwrap();
    assert_eq!(answers, []);
    writer.write_all(b"abc").unwrap();
    while answers.is_empty() {
        ring.exchange(Sleep::UntilAnswered, &mut answers).unwrap();
    }
    assert_eq!(answers, [KernelAnswer { token: 7, raw: 3 }]);
    // No request is in flight, so this returns at once.
    ring.exchange(Sleep::UntilAnswered, &mut answers).unwrap();
    drop(ring);
    assert_eq!(&memory[..3], b"abc");
}

#[test]
fn shared_ring_accepts_requests_and_wakes_while_a_thread_sleeps() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (mut memory, mut list, mut answers) = ([0; 8], NO_SEGMENT, Vec::new());
    let (mut ring, sleeper) = UringBackend::shared(4).unwrap();
    // No request is in flight: only the eventfd ends this sleep, signalled before or after.
    for _ in 0..3 {
        std::thread::scope(|threads| {
            threads.spawn(|| sleeper.wake());
            sleeper.sleep(Sleep::UntilAnswered).unwrap();
        });
        ring.exchange(Sleep::Never, &mut answers).unwrap();
    }
    assert_eq!(answers, []);
    std::thread::scope(|threads| {
        let asleep = threads.spawn(|| sleeper.sleep(Sleep::UntilAnswered).unwrap());
        queue_read(&mut ring, reader.as_raw_fd(), 5, &mut memory, &mut list);
        sleeper.sleep(Sleep::Never).unwrap();
        writer.write_all(b"ab").unwrap();
        asleep.join().unwrap();
    });
    ring.exchange(Sleep::Never, &mut answers).unwrap();
    assert_eq!(answers, [KernelAnswer { token: 5, raw: 2 }]);
}

#[test]
fn ring_sleep_reports_whether_it_waited_for_the_answer() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (mut memory, mut list, mut answers) = ([0; 8], NO_SEGMENT, Vec::new());
    let (mut ring, sleeper) = UringBackend::shared(4).unwrap();
    queue_read(&mut ring, reader.as_raw_fd(), 3, &mut memory, &mut list);
    assert_eq!(sleeper.sleep(Sleep::Never), Ok(false), "no thread slept");
    let short_sleep = Sleep::AtMost(Duration::from_millis(1));
    assert_eq!(sleeper.sleep(short_sleep), Ok(true), "no answer was in the queue");
    assert!(!ring.has_answers());
    writer.write_all(b"ab").unwrap();
    while !ring.has_answers() {
        sleeper.sleep(Sleep::Never).unwrap();
    }
    assert_eq!(sleeper.sleep(Sleep::UntilAnswered), Ok(false), "the answer was in the queue");
    ring.exchange(Sleep::Never, &mut answers).unwrap();
    assert_eq!(answers, [KernelAnswer { token: 3, raw: 2 }]);
}

#[test]
fn cancelled_ring_request_is_answered_with_ecanceled() {
    let (reader, _writer) = std::io::pipe().unwrap();
    let (mut memory, mut list, mut answers) = ([0; 8], NO_SEGMENT, Vec::new());
    let mut ring = UringBackend::new(1).unwrap();
    queue_read(&mut ring, reader.as_raw_fd(), 3, &mut memory, &mut list);
    ring.exchange(Sleep::Never, &mut answers).unwrap();
    assert_eq!(answers, []);
    ring.cancel(3);
    while answers.is_empty() {
        ring.exchange(Sleep::UntilAnswered, &mut answers).unwrap();
    }
    // ECANCELED is 125 in errno(3).
    assert_eq!(answers, [KernelAnswer { token: 3, raw: -125 }]);
}

#[test]
fn invalid_descriptor_is_answered_with_ebadf() {
    let (mut memory, mut list, mut answers) = ([0; 8], NO_SEGMENT, Vec::new());
    let mut ring = UringBackend::new(1).unwrap();
    queue_read(&mut ring, -1, 0, &mut memory, &mut list);
    ring.exchange(Sleep::UntilAnswered, &mut answers).unwrap();
    // EBADF is 9 in errno(3).
    assert_eq!(answers, [KernelAnswer { token: 0, raw: -9 }]);
}

/// A ring of depth 1 has a queue of 2 entries: a transfer and its cancellation. EPERM is 1 in
/// errno(3).
#[test]
fn failed_ring_answers_more_reads_than_its_queue_has_entries() {
    on_thread(|| {
        let (mut memory, mut list, mut answers) = ([0; 8], NO_SEGMENT, Vec::new());
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let mut ring = UringBackend::new(1).unwrap();
        reject_enter(libc::EPERM, libc::EPERM);
        for token in 0..10 {
            queue_read(&mut ring, zeros.as_raw_fd(), token, &mut memory, &mut list);
            ring.cancel(token);
            let exchanged = ring.exchange(Sleep::UntilAnswered, &mut answers);
            assert_eq!(exchanged, Err(BackendError::Exchange { errno: 1 }));
            assert_eq!(answers, [KernelAnswer { token, raw: -1 }]);
            answers.clear();
        }
    });
}

/// The kernel has no memory for the second read, and the wait for the first one then fails. Only
/// the second one is answered: the kernel still has the first.
#[test]
fn failed_wait_for_memory_ends_the_use_of_the_ring() {
    on_thread(|| {
        let (reader, _writer) = std::io::pipe().unwrap();
        let (mut memory, mut list, mut answers) = ([[0; 8]; 2], [NO_SEGMENT; 2], Vec::new());
        let mut ring = UringBackend::new(2).unwrap();
        if !ring.ring.params().is_setup_single_issuer() {
            // Before Linux 6.1 the ring's end waits for the read in the kernel, which never ends.
            eprintln!("skipped: the kernel has no ring with one issuer");
            return;
        }
        queue_read(&mut ring, reader.as_raw_fd(), 1, &mut memory[0], &mut list[0]);
        ring.exchange(Sleep::Never, &mut answers).unwrap();
        reject_enter(libc::EAGAIN, libc::EPERM);
        queue_read(&mut ring, reader.as_raw_fd(), 2, &mut memory[1], &mut list[1]);
        let exchanged = ring.exchange(Sleep::UntilAnswered, &mut answers);
        assert_eq!(exchanged, Err(BackendError::Exchange { errno: 1 }));
        assert_eq!(answers, [KernelAnswer { token: 2, raw: -1 }]);
    });
}

/// The kernel has no memory for the cancellation of a read that it executes. The ring waits for
/// that read no longer than the caller allows, and stays in use.
#[test]
fn rejected_cancellation_leaves_the_read_in_the_kernel() {
    on_thread(|| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (mut memory, mut list, mut answers) = ([0; 8], NO_SEGMENT, Vec::new());
        let mut ring = UringBackend::new(1).unwrap();
        queue_read(&mut ring, reader.as_raw_fd(), 6, &mut memory, &mut list);
        ring.exchange(Sleep::Never, &mut answers).unwrap();
        reject_enter(libc::EAGAIN, 0);
        ring.cancel(6);
        for sleep in [Sleep::Never, Sleep::AtMost(Duration::from_millis(1))] {
            assert_eq!(ring.exchange(sleep, &mut answers), Ok(()));
            assert_eq!(answers, []);
        }
        writer.write_all(b"abc").unwrap();
        while answers.is_empty() {
            ring.exchange(Sleep::UntilAnswered, &mut answers).unwrap();
        }
        assert_eq!(answers, [KernelAnswer { token: 6, raw: 3 }]);
    });
}

#[test]
fn refused_event_fd_is_reported_as_no_ring() {
    let (event_fd, _writer) = std::io::pipe().unwrap();
    let ring = UringBackend::new(1).unwrap();
    // A pipe is no eventfd: EINVAL, 22 in errno(3).
    let registered = ring.register_event_fd(event_fd.as_fd());
    assert_eq!(registered, Err(BackendError::NoRing { errno: 22 }));
    let error_text = registered.unwrap_err().to_string();
    assert!(error_text.contains("choose the backend `auto`"), "{error_text}");
}
