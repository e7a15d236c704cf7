//! io_uring: requests go to the kernel in one shared queue, answers come back
//! in another, and one system call hands over a batch and sleeps for the answers.
//!
//! A ring of one thread: told so (`SINGLE_ISSUER`), the kernel does the end of
//! each request when that thread enters it (`DEFER_TASKRUN`, 6.1) in place of
//! interrupting it at any time; older kernels get a plain ring.
//!
//! A ring of several threads is a plain one. The kernel does the end of a
//! request on the thread that handed it over, and interrupts it for that:
//! to defer it would have one thread wait until another happens to enter the
//! kernel. 4 KiB random direct reads at depth 32 cost it 0.7 us of processor
//! time each and 8 % of throughput (4.5 for 3.8 us, 0.93 for 1.01 of fio's).

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use readpath_core::request::Op;

use crate::backend::{Backend, BackendError, KernelAnswer, Sleep, Sleeper, Transfer};

/// The token of a cancellation's own answer, which nobody waits for.
const NOBODY: u64 = u64::MAX;
/// The token of the answer that ends a sleep.
const WAKE: u64 = u64::MAX - 1;

/// The kernel's rings have so many entries at most (`IORING_MAX_ENTRIES`).
const ENTRIES_MAX: u32 = 32_768;

/// How many transfers are queued before the kernel gets them without being asked to.
///
/// A larger batch spares system calls, but the device stands idle while it is
/// put together. Measured with 4 KiB random direct reads at depth 32, against
/// fio (one call each) in the same run, throughput and CPU a read: each at once
/// 0.97 and 4.7 us (fio 4.8), in fours 0.98 and 3.7, in eights 1.00 and 3.5,
/// only when about to sleep 0.80 to 0.88 and 4.0. Four also suits small depths.
const BATCH: usize = 4;

/// The ring backend.
pub(crate) struct UringBackend {
    ring: Arc<IoUring>,
    /// The addresses of the memory that the kernel holds for this ring.
    registered: Range<usize>,
    /// Polled by the ring, so that writing to it ends a sleep; none on a ring of one thread.
    bell: Option<Arc<OwnedFd>>,
    /// Transfers queued and not yet answered.
    unanswered: u32,
    /// What was put into the shared queue last, some of it not handed over.
    pushed: VecDeque<u64>,
    /// The kernel is not entered any more, for this reason, as in `errno(3)`.
    refused: Option<i32>,
}

impl UringBackend {
    /// A ring of one thread with room for `depth` transfers at once.
    ///
    /// # Errors
    /// The kernel gives none, or one that can't sleep for a limited time.
    pub(crate) fn new(depth: u32) -> Result<UringBackend, BackendError> {
        let ring = build(depth, 0, |entries| {
            IoUring::builder()
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all()
                .build(entries)
        })?;
        Ok(UringBackend::over(Arc::new(ring)))
    }

    /// A ring that different threads use one after the other, without a bell: the
    /// end of a request is done by whichever thread enters it.
    ///
    /// # Errors
    /// As [`new`](UringBackend::new).
    pub(crate) fn for_any_thread(depth: u32) -> Result<UringBackend, BackendError> {
        let ring = build(depth, 0, |entries| {
            IoUring::builder()
                .setup_coop_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all()
                .build(entries)
        })?;
        Ok(UringBackend::over(Arc::new(ring)))
    }

    fn over(ring: Arc<IoUring>) -> UringBackend {
        let entries = ring.params().sq_entries() as usize;
        UringBackend {
            ring,
            registered: 0..0,
            bell: None,
            unanswered: 0,
            pushed: VecDeque::with_capacity(entries),
            refused: None,
        }
    }

    /// A ring of several threads, which take turns, and what one of them sleeps on.
    ///
    /// # Errors
    /// As [`new`](UringBackend::new).
    pub(crate) fn shared(depth: u32) -> Result<(UringBackend, RingSleeper), BackendError> {
        let ring = build(depth, 1, |entries| IoUring::builder().setup_submit_all().build(entries))?;
        // SAFETY: makes a new descriptor, which nobody else owns.
        let bell = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
                return Err(BackendError::NoBell { errno });
            }
            Arc::new(OwnedFd::from_raw_fd(fd))
        };
        let ring = Arc::new(ring);
        let sleeper = RingSleeper { ring: Arc::clone(&ring), bell: Arc::clone(&bell) };
        let mut ring = UringBackend::over(ring);
        ring.bell = Some(bell);
        ring.listen();
        Ok((ring, sleeper))
    }

    /// Has the ring answer, once, as soon as somebody writes to the bell.
    fn listen(&mut self) {
        let Some(bell) = &self.bell else { return };
        let fd = types::Fd(bell.as_raw_fd());
        self.push(&opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(WAKE));
    }

    /// Silences the bell, and listens for the next time.
    fn listen_again(&mut self) {
        let Some(bell) = &self.bell else { return };
        let mut count = [0u8; 8];
        // Empty when it was silenced already: then there is nothing to do.
        let _ = rustix::io::read(bell, &mut count);
        self.listen();
    }

    /// Has the kernel hold `bytes` bytes of memory from `address` on, so that
    /// transfers of one piece within it need not pin it each time. False where
    /// it refuses (above all by the limit of locked memory); transfers then work
    /// as before.
    ///
    /// # Safety
    /// The memory is mapped, and stays so for as long as the ring.
    pub(crate) unsafe fn register(&mut self, address: *mut u8, bytes: usize) -> bool {
        let memory = [libc::iovec { iov_base: address.cast(), iov_len: bytes }];
        // SAFETY: the caller's promise.
        let is_held = unsafe { self.ring.submitter().register_buffers(&memory) }.is_ok();
        if is_held {
            self.registered = address as usize..address as usize + bytes;
        }
        is_held
    }

    fn is_registered(&self, segment: &libc::iovec) -> bool {
        let start = segment.iov_base as usize;
        self.registered.start <= start && start + segment.iov_len <= self.registered.end
    }

    /// Has the eventfd `bell` written to whenever an answer comes.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn set_bell(&self, bell: BorrowedFd<'_>) -> Result<(), BackendError> {
        let refused = |error: std::io::Error| BackendError::Exchange {
            errno: error.raw_os_error().unwrap_or(0),
        };
        self.ring.submitter().register_eventfd(bell.as_raw_fd()).map_err(refused)
    }

    /// Puts an entry into the shared queue.
    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the memory that the entry names is valid until its answer
        // comes, by the contract of `queue`; the others name none. `&mut self`
        // makes this the only access to the queue's end.
        unsafe { self.ring.submission_shared().push(entry) }
            .expect("the queue has room for each transfer and for one cancellation of each");
        self.pushed.push_back(entry.get_user_data());
        let handed_over = self.pushed.len().saturating_sub(self.submission().len());
        self.pushed.drain(..handed_over);
    }

    /// Takes the answers that lie in the shared queue. True if the bell has rung, and is to be listened for
    /// again.
    fn take_answers(&mut self, answers: &mut Vec<KernelAnswer>) -> bool {
        let mut is_woken = false;
        // SAFETY: `&mut self` makes this the only access to the queue of answers.
        for entry in unsafe { self.ring.completion_shared() } {
            match entry.user_data() {
                NOBODY => {}
                WAKE => is_woken = true,
                token => {
                    answers.push(KernelAnswer { token, raw: entry.result() });
                    self.unanswered -= 1;
                }
            }
        }
        if is_woken {
            self.listen_again();
        }
        is_woken
    }

    /// Whether transfers are with the kernel, and not only in the queue.
    fn kernel_has_some(&self) -> bool {
        self.unanswered as usize > self.submission().len()
    }

    /// Whether entering the kernel with no wish to sleep would do anything.
    fn is_enter_due(&self) -> bool {
        let queue = self.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// The queue, to be looked at.
    fn submission(&self) -> squeue::SubmissionQueue<'_> {
        // SAFETY: the ring is `&mut` wherever the queue grows, so that this view
        // is the only one.
        unsafe { self.ring.submission_shared() }
    }
}

/// Sleeps for the answers of a ring.
pub(crate) struct RingSleeper {
    ring: Arc<IoUring>,
    bell: Arc<OwnedFd>,
}

impl Sleeper for RingSleeper {
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        let is_demand = sleep != Sleep::Never && !self.has_answers();
        match enter(&self.ring, sleep) {
            // No memory for more requests, or for more answers: earlier ones
            // give some back as they end. The bell is always with the kernel,
            // so that there is something to sleep for; but not for ever.
            Err(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {
                let span = types::Timespec::from(Duration::from_millis(1));
                let args = types::SubmitArgs::new().timespec(&span);
                const GETEVENTS: u32 = 1; // IORING_ENTER_GETEVENTS, io_uring_enter(2)
                const EXT_ARG: u32 = 8; // IORING_ENTER_EXT_ARG
                // SAFETY: nothing is submitted, and the argument outlives the call.
                let _ =
                    unsafe { self.ring.submitter().enter(0, 1, GETEVENTS | EXT_ARG, Some(&args)) };
                Ok(is_demand)
            }
            Err(errno) => Err(BackendError::Exchange { errno }),
            Ok(()) => Ok(is_demand),
        }
    }

    fn wake(&self) {
        // It can only fail when the count is full: then the bell rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

impl RingSleeper {
    /// Whether answers lie there; another may be taking them out.
    fn has_answers(&self) -> bool {
        // SAFETY: a view that is only looked at. Dropped, it would set the queue's head to where it
        // saw it, and answers that were taken out meanwhile would be there again.
        let view = ManuallyDrop::new(unsafe { self.ring.completion_shared() });
        !view.is_empty()
    }
}

/// Builds a ring with room for `depth` transfers, for one cancellation of each,
/// and for `bells` more.
fn build(
    depth: u32,
    bells: u32,
    with_flags: impl Fn(u32) -> std::io::Result<IoUring>,
) -> Result<IoUring, BackendError> {
    let depth_max = (ENTRIES_MAX - bells) / 2;
    if depth > depth_max {
        return Err(BackendError::Depth { depth, depth_max });
    }
    let entries = (2 * depth + bells).next_power_of_two();
    let ring = with_flags(entries)
        .or_else(|error| match error.raw_os_error() {
            // A kernel before 6.1 doesn't know some of these flags.
            Some(libc::EINVAL) => IoUring::new(entries),
            _ => Err(error),
        })
        .map_err(|error| BackendError::NoRing { errno: error.raw_os_error().unwrap_or(0) })?;
    if !ring.params().is_feature_ext_arg() {
        return Err(BackendError::OldRing);
    }
    Ok(ring)
}

/// Sleeps for one answer and hands nothing over.
fn wait_for_one(ring: &IoUring) -> Result<(), BackendError> {
    const GETEVENTS: u32 = 1; // IORING_ENTER_GETEVENTS, io_uring_enter(2)
    // SAFETY: no argument is passed, and nothing is submitted.
    let entered = unsafe { ring.submitter().enter::<libc::sigset_t>(0, 1, GETEVENTS, None) };
    match entered.map_err(|error| error.raw_os_error().unwrap_or(0)) {
        Ok(_) | Err(libc::EINTR) => Ok(()),
        Err(errno) => Err(BackendError::Exchange { errno }),
    }
}

/// Enters the kernel: hands over, and sleeps for one answer as `sleep` allows.
/// That the time is up, or that a signal came, is no error; others are given by `errno`.
fn enter(ring: &IoUring, sleep: Sleep) -> Result<(), i32> {
    let entered = match sleep {
        Sleep::Never => ring.submit(),
        Sleep::UntilAnswered => ring.submit_and_wait(1),
        Sleep::AtMost(span) => {
            let span = types::Timespec::from(span);
            let args = types::SubmitArgs::new().timespec(&span);
            ring.submitter().submit_with_args(1, &args)
        }
    };
    match entered.map_err(|error| error.raw_os_error().unwrap_or(0)) {
        Ok(_) | Err(libc::ETIME | libc::EINTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

impl Backend for UringBackend {
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let Transfer { token, fd, op, offset, segments, .. } = transfer;
        let file = types::Fd(fd);
        // One piece needs no list: that spares the kernel copying and walking it.
        let entry = match (op, segments) {
            (Op::Read, [one]) if self.is_registered(one) => {
                opcode::ReadFixed::new(file, one.iov_base.cast(), length(one), 0)
                    .offset(offset)
                    .build()
            }
            (Op::Write, [one]) if self.is_registered(one) => {
                let memory = one.iov_base.cast_const().cast();
                opcode::WriteFixed::new(file, memory, length(one), 0).offset(offset).build()
            }
            (Op::Read, [one]) => {
                opcode::Read::new(file, one.iov_base.cast(), length(one)).offset(offset).build()
            }
            (Op::Write, [one]) => {
                opcode::Write::new(file, one.iov_base.cast_const().cast(), length(one))
                    .offset(offset)
                    .build()
            }
            (Op::Read, list) => {
                opcode::Readv::new(file, list.as_ptr(), list.len() as u32).offset(offset).build()
            }
            (Op::Write, list) => {
                opcode::Writev::new(file, list.as_ptr(), list.len() as u32).offset(offset).build()
            }
        };
        self.unanswered += 1;
        self.push(&entry.user_data(token));
        if self.submission().len() >= BATCH {
            // If the kernel has no room now, they stay queued, and `exchange`
            // tries again and reports what hinders it.
            if self.refused.is_none() {
                let _ = self.ring.submit();
            }
        }
    }

    fn has_answers(&mut self) -> bool {
        // SAFETY: `&mut self` makes this the only access to the queue of answers.
        !unsafe { self.ring.completion_shared() }.is_empty()
    }

    fn cancel(&mut self, token: u64) {
        self.push(&opcode::AsyncCancel::new(token).build().user_data(NOBODY));
    }

    fn collect(&mut self, answers: &mut Vec<KernelAnswer>) -> Result<bool, BackendError> {
        if let Some(errno) = self.refused {
            return self.give_up(errno, answers).map(|()| false);
        }
        Ok(self.take_answers(answers))
    }

    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        if let Some(errno) = self.refused {
            return self.give_up(errno, answers);
        }
        let count_before = answers.len();
        self.take_answers(answers);
        let has_answers = answers.len() > count_before;
        let sleep = if has_answers || self.unanswered == 0 { Sleep::Never } else { sleep };
        if sleep == Sleep::Never && !self.is_enter_due() {
            return Ok(());
        }
        match enter(&self.ring, sleep) {
            Ok(()) => {}
            // No memory for more requests, or for more answers: earlier
            // requests give some back as they end.
            Err(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) if self.kernel_has_some() => {
                wait_for_one(&self.ring)?;
            }
            Err(errno) => return self.give_up(errno, answers),
        }
        self.take_answers(answers);
        Ok(())
    }
}

impl UringBackend {
    /// The kernel refuses to be entered: a sandbox has come to forbid it. It isn't entered any
    /// more, so what it has not been given it never gets, and that is answered with `errno`. What it
    /// has ends as ever, and its answers come by themselves, but for a ring that defers them until it
    /// is entered: their memory stays the kernel's.
    fn give_up(&mut self, errno: i32, answers: &mut Vec<KernelAnswer>) -> Result<(), BackendError> {
        const NAP: Duration = Duration::from_millis(1);
        self.refused = Some(errno);
        let queued_entries = self.submission().len();
        let skipped = self.pushed.len().saturating_sub(queued_entries);
        let is_transfer = |&token: &u64| token != NOBODY && token != WAKE;
        let never_given: Vec<u64> =
            self.pushed.drain(..).skip(skipped).filter(is_transfer).collect();
        self.unanswered -= never_given.len() as u32;
        self.take_answers(answers);
        while self.unanswered > 0 && !self.ring.params().is_setup_single_issuer() {
            std::thread::sleep(NAP);
            self.take_answers(answers);
        }
        answers.extend(never_given.iter().map(|&token| KernelAnswer { token, raw: -errno }));
        Err(BackendError::Exchange { errno })
    }
}

impl Drop for UringBackend {
    fn drop(&mut self) {
        let mut answers = Vec::new();
        while self.unanswered > 0 && self.exchange(Sleep::UntilAnswered, &mut answers).is_ok() {}
    }
}

/// The length of a piece; a transfer is at most 4 MiB.
fn length(segment: &libc::iovec) -> u32 {
    segment.iov_len as u32
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use super::*;

    /// Queues a read of up to 8 bytes from a pipe, which doesn't answer by itself.
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
        // SAFETY: each test keeps `memory` and `list` past the ring.
        unsafe { ring.queue(transfer) };
    }

    const NO_PIECE: [libc::iovec; 1] = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];

    #[test]
    fn it_sleeps_until_the_time_is_up_or_an_answer_comes() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (mut memory, mut list, mut answers) = ([0; 8], NO_PIECE, Vec::new());
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
        // Nothing is in flight: there is nothing to sleep for.
        ring.exchange(Sleep::UntilAnswered, &mut answers).unwrap();
        drop(ring);
        assert_eq!(&memory[..3], b"abc");
    }

    #[test]
    fn another_thread_queues_and_wakes_while_one_sleeps() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (mut memory, mut list, mut answers) = ([0; 8], NO_PIECE, Vec::new());
        let (mut ring, sleeper) = UringBackend::shared(4).unwrap();
        // Nothing is in flight: only the bell ends this, rung before or after.
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
    fn a_sleep_says_whether_what_came_was_awaited() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (mut memory, mut list, mut answers) = ([0; 8], NO_PIECE, Vec::new());
        let (mut ring, sleeper) = UringBackend::shared(4).unwrap();
        queue_read(&mut ring, reader.as_raw_fd(), 3, &mut memory, &mut list);
        assert_eq!(sleeper.sleep(Sleep::Never), Ok(false), "nobody slept");
        let span = Sleep::AtMost(Duration::from_millis(1));
        assert_eq!(sleeper.sleep(span), Ok(true), "nothing lay there");
        assert!(!ring.has_answers());
        writer.write_all(b"ab").unwrap();
        while !ring.has_answers() {
            sleeper.sleep(Sleep::Never).unwrap();
        }
        assert_eq!(sleeper.sleep(Sleep::UntilAnswered), Ok(false), "it lay there");
        ring.exchange(Sleep::Never, &mut answers).unwrap();
        assert_eq!(answers, [KernelAnswer { token: 3, raw: 2 }]);
    }

    #[test]
    fn what_is_withdrawn_is_answered_by_that_name() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let (mut memory, mut list, mut answers) = ([0; 8], NO_PIECE, Vec::new());
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
    fn a_file_that_is_closed_is_answered_by_errno() {
        let (mut memory, mut list, mut answers) = ([0; 8], NO_PIECE, Vec::new());
        let mut ring = UringBackend::new(1).unwrap();
        queue_read(&mut ring, -1, 0, &mut memory, &mut list);
        ring.exchange(Sleep::UntilAnswered, &mut answers).unwrap();
        // EBADF is 9 in errno(3).
        assert_eq!(answers, [KernelAnswer { token: 0, raw: -9 }]);
    }
}
