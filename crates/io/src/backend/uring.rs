//! io_uring: requests and answers pass through two queues shared with the kernel. One system call
//! submits a batch and sleeps for answers. A *ring* is one pair of these queues. A *token* is the
//! number by which an answer names its transfer.
//!
//! A ring of one thread sets `SINGLE_ISSUER` and `DEFER_TASKRUN` (Linux 6.1): the kernel completes
//! requests when that thread enters it, instead of interrupting the thread at any time. With
//! `TASKRUN_FLAG` memory shows if requests wait for this. `SUBMIT_ALL` submits the entries behind a
//! rejected one too. Older kernels get a plain ring.
//!
//! A ring that threads use in turn without a sleeper sets `COOP_TASKRUN`: no thread is interrupted,
//! and a request completes when its thread next enters the kernel.
//!
//! A ring of several threads with a sleeper is a plain one. The kernel completes a request on the
//! thread that submitted it, and interrupts that thread. Deferred completion would make one thread
//! wait until another happens to enter the kernel. The interrupts cost 4 KiB random direct reads at
//! depth 32 0.7 us of processor time each and 8 % of throughput (4.5 instead of 3.8 us; 0.93
//! instead of 1.01 of fio's).

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use readpath_core::request::Op;

use crate::backend::{Backend, BackendError, KernelAnswer, Sleep, Sleeper, Transfer};
use crate::os::{CALL_BYTES_MAX, errno_of};

/// Token of a cancellation's own answer, which is ignored.
const CANCEL_TOKEN: u64 = u64::MAX;
/// Token of the answer that ends a sleep.
const WAKE_TOKEN: u64 = u64::MAX - 1;

/// Largest number of queue entries of the kernel (`IORING_MAX_ENTRIES`).
const ENTRIES_MAX: u32 = 32_768;
/// Index of the registered memory in the kernel's table of registered buffers, its only entry.
const REGISTERED_BUFFER_INDEX: u16 = 0;

// Flags of io_uring_enter(2): sleep for answers (IORING_ENTER_GETEVENTS), and the argument has a
// timeout (IORING_ENTER_EXT_ARG).
const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 8;

/// Number of queued transfers that are submitted without an explicit call.
///
/// A larger batch saves system calls, but the device idles while it fills. Measured with 4 KiB
/// random direct reads at depth 32: throughput relative to fio (one call each) in the same run, and
/// CPU per read. Single: 0.97 and 4.7 us (fio 4.8). In fours: 0.98 and 3.7 us. In eights: 1.00 and
/// 3.5 us. Only before a sleep: 0.80 to 0.88 and 4.0 us. Four also suits small depths.
const AUTO_SUBMIT_BATCH: usize = 4;

/// I/O backend over io_uring.
pub(crate) struct UringBackend {
    ring: Arc<IoUring>,
    /// Address range of the memory registered with this ring.
    registered_addresses: Range<usize>,
    /// Eventfd polled by the ring; a write to it ends a sleep. `None` on a ring without a sleeper.
    event_fd: Option<Arc<OwnedFd>>,
    /// Number of queued transfers without an answer.
    unanswered: u32,
    /// Tokens of the newest queue entries, including all that were not submitted.
    newest_tokens: VecDeque<u64>,
    /// Error, as in `errno(3)`, after which the kernel is not entered any more.
    enter_errno: Option<i32>,
}

impl UringBackend {
    /// Creates a ring of one thread for up to `depth` transfers.
    ///
    /// # Errors
    /// The kernel provides none, or one without timed sleep.
    pub(crate) fn new(depth: u32) -> Result<UringBackend, BackendError> {
        let event_fd_polls = 0;
        let ring = build_ring(depth, event_fd_polls, |entries| {
            IoUring::builder()
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all()
                .build(entries)
        })?;
        Ok(UringBackend::from_ring(Arc::new(ring)))
    }

    /// Creates a ring that different threads use in turn, without an eventfd. A request completes
    /// when the thread that has submitted it enters the kernel. The kernel does not interrupt it.
    ///
    /// # Errors
    /// As [`new`](UringBackend::new).
    pub(crate) fn for_any_thread(depth: u32) -> Result<UringBackend, BackendError> {
        let event_fd_polls = 0;
        let ring = build_ring(depth, event_fd_polls, |entries| {
            IoUring::builder()
                .setup_coop_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all()
                .build(entries)
        })?;
        Ok(UringBackend::from_ring(Arc::new(ring)))
    }

    /// Wraps a built ring, without an eventfd and without registered memory.
    fn from_ring(ring: Arc<IoUring>) -> UringBackend {
        let entries = ring.params().sq_entries() as usize;
        UringBackend {
            ring,
            registered_addresses: 0..0,
            event_fd: None,
            unanswered: 0,
            newest_tokens: VecDeque::with_capacity(entries),
            enter_errno: None,
        }
    }

    /// Creates a ring of several threads that take turns, with the sleeper for one of them. A poll
    /// of its eventfd is queued.
    ///
    /// # Errors
    /// As [`new`](UringBackend::new).
    pub(crate) fn shared(depth: u32) -> Result<(UringBackend, UringSleeper), BackendError> {
        let event_fd_polls = 1;
        let ring = build_ring(depth, event_fd_polls, |entries| {
            IoUring::builder().setup_submit_all().build(entries)
        })?;
        // SAFETY: creates a new descriptor without another owner.
        let event_fd = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                let errno = errno_of(&std::io::Error::last_os_error());
                return Err(BackendError::NoEventFd { errno });
            }
            Arc::new(OwnedFd::from_raw_fd(fd))
        };
        let ring = Arc::new(ring);
        let sleeper = UringSleeper { ring: Arc::clone(&ring), event_fd: Arc::clone(&event_fd) };
        let mut ring = UringBackend::from_ring(ring);
        ring.event_fd = Some(event_fd);
        ring.queue_event_fd_poll();
        Ok((ring, sleeper))
    }

    /// Queues a one-shot poll of the eventfd, which is answered at its next signal. No effect on a
    /// ring without an eventfd.
    fn queue_event_fd_poll(&mut self) {
        let Some(event_fd) = &self.event_fd else { return };
        let fd = types::Fd(event_fd.as_raw_fd());
        self.push(&opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(WAKE_TOKEN));
    }

    /// Clears the eventfd and polls it again.
    fn rearm_event_fd_poll(&mut self) {
        let Some(event_fd) = &self.event_fd else { return };
        // Fails if it was already cleared; there is nothing to do then.
        let _ = rustix::io::read(event_fd, &mut [0; 8]);
        self.queue_event_fd_poll();
    }

    /// Registers `bytes` bytes of memory from `address` on with the kernel, so that transfers of
    /// one segment within it need no pinning. Returns false if the kernel rejects it (above all by
    /// the limit of locked memory); transfers then work without it.
    ///
    /// # Safety
    /// The memory is mapped, and stays so as long as the ring.
    pub(crate) unsafe fn register(&mut self, address: *mut u8, bytes: usize) -> bool {
        let memory = [libc::iovec { iov_base: address.cast(), iov_len: bytes }];
        // SAFETY: the caller's contract.
        let is_registered = unsafe { self.ring.submitter().register_buffers(&memory) }.is_ok();
        if is_registered {
            self.registered_addresses = address as usize..address as usize + bytes;
        }
        is_registered
    }

    /// True if the segment lies in the registered memory.
    fn is_registered(&self, segment: &libc::iovec) -> bool {
        let start = segment.iov_base as usize;
        self.registered_addresses.start <= start
            && start + segment.iov_len <= self.registered_addresses.end
    }

    /// Makes the kernel signal the owner's eventfd for each answer. It is not the eventfd of the
    /// field `event_fd`, which only ends a sleep.
    ///
    /// # Errors
    /// The kernel rejects it.
    pub(crate) fn register_event_fd(&self, owner_fd: BorrowedFd<'_>) -> Result<(), BackendError> {
        let refused = |error: std::io::Error| BackendError::NoRing { errno: errno_of(&error) };
        self.ring.submitter().register_eventfd(owner_fd.as_raw_fd()).map_err(refused)
    }

    /// Adds an entry to the submission queue, without submitting it, and remembers its token. Once
    /// the kernel is not entered any more, only the token is kept, for `stop_using_ring`.
    fn push(&mut self, entry: &squeue::Entry) {
        self.newest_tokens.push_back(entry.get_user_data());
        if self.enter_errno.is_some() {
            return;
        }
        // SAFETY: the entry's memory is valid until its answer, by the contract of `queue`; other
        // entries name none. `&mut self` makes this the only access to the queue's end.
        unsafe { self.ring.submission_shared().push(entry) }
            .expect("the queue has room for each transfer and for one cancellation of each");
        // Tokens of submitted entries are forgotten: only the others are looked up.
        let submitted_count = self.submitted_count();
        self.newest_tokens.drain(..submitted_count);
    }

    /// Moves the answers of the completion queue to `answers`. Returns true if the eventfd was
    /// signalled, so that its new poll must be submitted.
    fn take_answers(&mut self, answers: &mut Vec<KernelAnswer>) -> bool {
        let mut is_event_fd_signalled = false;
        // SAFETY: `&mut self` makes this the only access to the completion queue.
        for entry in unsafe { self.ring.completion_shared() } {
            match entry.user_data() {
                CANCEL_TOKEN => {}
                WAKE_TOKEN => is_event_fd_signalled = true,
                token => {
                    answers.push(KernelAnswer { token, raw: entry.result() });
                    self.unanswered -= 1;
                }
            }
        }
        if is_event_fd_signalled {
            self.rearm_event_fd_poll();
        }
        is_event_fd_signalled
    }

    /// Number of the newest tokens, from the oldest of them on, whose entries were submitted.
    fn submitted_count(&self) -> usize {
        self.newest_tokens.len().saturating_sub(self.submission_queue().len())
    }

    /// True if the kernel surely executes transfers: more are unanswered than are queued.
    fn has_transfers_in_kernel(&self) -> bool {
        let queued_tokens = self.newest_tokens.iter().skip(self.submitted_count());
        self.unanswered as usize > queued_tokens.filter(|&&token| is_transfer(token)).count()
    }

    /// True if a call without a sleep would submit entries, complete requests (`taskrun`), or bring
    /// answers for which the queue had no room (`cq_overflow`). Otherwise the call has no effect.
    fn must_enter_kernel(&self) -> bool {
        let queue = self.submission_queue();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Returns a view of the submission queue, for reading only.
    fn submission_queue(&self) -> squeue::SubmissionQueue<'_> {
        // SAFETY: only `push` adds entries, by `&mut self`, so none is added during this view. A
        // sleeper may submit entries meanwhile, which moves only the start of the queue.
        unsafe { self.ring.submission_shared() }
    }
}

/// Sleeps for the answers of a ring.
pub(crate) struct UringSleeper {
    ring: Arc<IoUring>,
    /// Eventfd polled by the ring; a write to it ends a sleep.
    event_fd: Arc<OwnedFd>,
}

impl Sleeper for UringSleeper {
    /// Submits queued entries and sleeps for one answer as `sleep` allows, or up to 1 ms if memory
    /// is short, also with `Sleep::Never`. Returns true if it was allowed to sleep and no answer
    /// was there before: the present ones have just arrived.
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        let waits_for_answer = sleep != Sleep::Never && !self.has_answers();
        match enter(&self.ring, sleep) {
            // The kernel is short of memory for requests or answers; earlier requests free some as
            // they end. The eventfd poll is always in flight, so the sleep has an end; 1 ms only
            // limits it.
            Err(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {
                let timeout = types::Timespec::from(Duration::from_millis(1));
                let args = types::SubmitArgs::new().timespec(&timeout);
                let (submits, answers_min, flags) = (0, 1, ENTER_GETEVENTS | ENTER_EXT_ARG);
                let ring = self.ring.submitter();
                // SAFETY: no entry is submitted, and the argument outlives the call.
                let _ = unsafe { ring.enter(submits, answers_min, flags, Some(&args)) };
                Ok(waits_for_answer)
            }
            Err(errno) => Err(BackendError::Exchange { errno }),
            Ok(()) => Ok(waits_for_answer),
        }
    }

    /// Signals the eventfd. The ring's poll of it is then answered, which ends a sleep.
    fn wake(&self) {
        // Fails only if the counter is full; the eventfd is then already signalled.
        let _ = rustix::io::write(&self.event_fd, &1u64.to_ne_bytes());
    }
}

impl UringSleeper {
    /// True if there are answers, which another thread may be taking.
    fn has_answers(&self) -> bool {
        // SAFETY: a read-only view. Its drop would reset the queue's head to the value seen here,
        // and answers taken meanwhile would reappear.
        let view = ManuallyDrop::new(unsafe { self.ring.completion_shared() });
        !view.is_empty()
    }
}

/// Builds a ring by `build_with_flags`, which takes the number of queue entries. The ring has
/// entries for `depth` transfers, one cancellation of each, and `event_fd_polls` polls of an
/// eventfd, rounded up to a power of two.
///
/// # Errors
/// The entries exceed [`ENTRIES_MAX`], or the kernel provides no ring, or one without timed sleep.
fn build_ring(
    depth: u32,
    event_fd_polls: u32,
    build_with_flags: impl Fn(u32) -> std::io::Result<IoUring>,
) -> Result<IoUring, BackendError> {
    let depth_max = (ENTRIES_MAX - event_fd_polls) / 2;
    if depth > depth_max {
        return Err(BackendError::Depth { depth, depth_max });
    }
    let entries = (2 * depth + event_fd_polls).next_power_of_two();
    let ring = build_with_flags(entries)
        .or_else(|error| match error.raw_os_error() {
            // Kernels before 6.1 reject some of these flags.
            Some(libc::EINVAL) => IoUring::new(entries),
            _ => Err(error),
        })
        .map_err(|error| BackendError::NoRing { errno: errno_of(&error) })?;
    if !ring.params().is_feature_ext_arg() {
        return Err(BackendError::OldRing);
    }
    Ok(ring)
}

/// Sleeps for one answer as `sleep` allows, without submitting. A timeout or a signal is no error;
/// others are returned as `errno`.
fn wait_for_answer(ring: &IoUring, sleep: Sleep) -> Result<(), i32> {
    let timeout = match sleep {
        // The call completes requests without a sleep.
        Sleep::Never => Some(Duration::ZERO),
        Sleep::AtMost(timeout) => Some(timeout),
        Sleep::UntilAnswered => None,
    };
    let timeout = timeout.map(types::Timespec::from);
    let args = timeout.as_ref().map(|timeout| types::SubmitArgs::new().timespec(timeout));
    let flags = if args.is_some() { ENTER_GETEVENTS | ENTER_EXT_ARG } else { ENTER_GETEVENTS };
    let (submits, answers_min) = (0, 1);
    // SAFETY: no entry is submitted, and the argument outlives the call.
    let result = unsafe { ring.submitter().enter(submits, answers_min, flags, args.as_ref()) };
    without_interruption(result)
}

/// Result of a sleep in the kernel: a timeout or a signal is no error. Others are as in `errno(3)`.
fn without_interruption(result: std::io::Result<usize>) -> Result<(), i32> {
    match result.map_err(|error| errno_of(&error)) {
        Ok(_) | Err(libc::ETIME | libc::EINTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// True for the token of a transfer, and false for one of the ring's own entries.
fn is_transfer(token: u64) -> bool {
    token != CANCEL_TOKEN && token != WAKE_TOKEN
}

/// Submits queued entries and sleeps for one answer as `sleep` allows. A timeout or a signal is no
/// error; others are returned as `errno`.
fn enter(ring: &IoUring, sleep: Sleep) -> Result<(), i32> {
    let result = match sleep {
        Sleep::Never => ring.submit(),
        Sleep::UntilAnswered => ring.submit_and_wait(1),
        Sleep::AtMost(timeout) => {
            let timeout = types::Timespec::from(timeout);
            let args = types::SubmitArgs::new().timespec(&timeout);
            ring.submitter().submit_with_args(1, &args)
        }
    };
    without_interruption(result)
}

impl Backend for UringBackend {
    /// Adds an entry to the submission queue, and submits the queue from [`AUTO_SUBMIT_BATCH`]
    /// entries on.
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let Transfer { token, fd, op, offset, segments, .. } = transfer;
        let file = types::Fd(fd);
        // A single segment needs no list, which saves the kernel copying and walking it.
        let entry = match (op, segments) {
            (Op::Read, [iov]) if self.is_registered(iov) => {
                let (memory, bytes) = (iov.iov_base.cast(), segment_bytes(iov));
                opcode::ReadFixed::new(file, memory, bytes, REGISTERED_BUFFER_INDEX)
                    .offset(offset)
                    .build()
            }
            (Op::Write, [iov]) if self.is_registered(iov) => {
                let (memory, bytes) = (iov.iov_base.cast_const().cast(), segment_bytes(iov));
                opcode::WriteFixed::new(file, memory, bytes, REGISTERED_BUFFER_INDEX)
                    .offset(offset)
                    .build()
            }
            (Op::Read, [iov]) => opcode::Read::new(file, iov.iov_base.cast(), segment_bytes(iov))
                .offset(offset)
                .build(),
            (Op::Write, [iov]) => {
                opcode::Write::new(file, iov.iov_base.cast_const().cast(), segment_bytes(iov))
                    .offset(offset)
                    .build()
            }
            (Op::Read, iovs) => {
                opcode::Readv::new(file, iovs.as_ptr(), iovs.len() as u32).offset(offset).build()
            }
            (Op::Write, iovs) => {
                opcode::Writev::new(file, iovs.as_ptr(), iovs.len() as u32).offset(offset).build()
            }
        };
        self.unanswered += 1;
        self.push(&entry.user_data(token));
        if self.enter_errno.is_none() && self.submission_queue().len() >= AUTO_SUBMIT_BATCH {
            // After an error the entries stay queued. `exchange` tries again and reports it.
            let _ = self.ring.submit();
        }
    }

    fn has_answers(&mut self) -> bool {
        // SAFETY: `&mut self` makes this the only access to the completion queue.
        !unsafe { self.ring.completion_shared() }.is_empty()
    }

    /// Queues a cancellation of the transfer. Its own answer is ignored.
    fn cancel(&mut self, token: u64) {
        self.push(&opcode::AsyncCancel::new(token).build().user_data(CANCEL_TOKEN));
    }

    /// Moves the available answers to `answers`. Returns true if a new poll of the eventfd was
    /// queued.
    fn collect(&mut self, answers: &mut Vec<KernelAnswer>) -> Result<bool, BackendError> {
        if let Some(errno) = self.enter_errno {
            return self.stop_using_ring(errno, answers).map(|()| false);
        }
        Ok(self.take_answers(answers))
    }

    /// Submits queued entries and moves answers to `answers`. Sleeps for one as `sleep` allows, if
    /// none was there and a transfer is unanswered. If memory is short while the kernel executes
    /// transfers, entries stay queued for the next call. Any other error of the submission or of
    /// the sleep ends the ring's use.
    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        if let Some(errno) = self.enter_errno {
            return self.stop_using_ring(errno, answers);
        }
        let count_before = answers.len();
        self.take_answers(answers);
        let has_answers = answers.len() > count_before;
        let sleep = if has_answers || self.unanswered == 0 { Sleep::Never } else { sleep };
        if sleep == Sleep::Never && !self.must_enter_kernel() {
            return Ok(());
        }
        match enter(&self.ring, sleep) {
            Ok(()) => {}
            // The kernel is short of memory for requests or answers.
            Err(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) if self.has_transfers_in_kernel() => {
                if let Err(errno) = wait_for_answer(&self.ring, sleep) {
                    return self.stop_using_ring(errno, answers);
                }
            }
            Err(errno) => return self.stop_using_ring(errno, answers),
        }
        self.take_answers(answers);
        Ok(())
    }
}

impl UringBackend {
    /// Stops using the ring after the kernel has rejected the system call with `errno` (a sandbox
    /// now forbids it), and returns that error. Entries that were never submitted are answered with
    /// `errno`. Answers of submitted ones arrive without that call and are awaited. On a ring with
    /// deferred completion they need the call: they stay away, and the kernel may go on to use
    /// their memory.
    fn stop_using_ring(
        &mut self,
        errno: i32,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
        let submitted_count = match self.enter_errno.replace(errno) {
            None => self.submitted_count(),
            // A later call: nothing was submitted since the first one, so each token is of an
            // unsubmitted entry.
            Some(_) => 0,
        };
        let unsubmitted_tokens = self.newest_tokens.drain(..).skip(submitted_count);
        let unsubmitted_tokens: Vec<u64> =
            unsubmitted_tokens.filter(|&token| is_transfer(token)).collect();
        self.unanswered -= unsubmitted_tokens.len() as u32;
        self.take_answers(answers);
        // `SINGLE_ISSUER` marks a ring with deferred completion.
        while self.unanswered > 0 && !self.ring.params().is_setup_single_issuer() {
            std::thread::sleep(DRAIN_POLL_INTERVAL);
            self.take_answers(answers);
        }
        answers.extend(unsubmitted_tokens.iter().map(|&token| KernelAnswer { token, raw: -errno }));
        Err(BackendError::Exchange { errno })
    }
}

impl Drop for UringBackend {
    /// Waits for the answers of all transfers, because the kernel writes to their memory. An error
    /// also ends it: `stop_using_ring` has then awaited all answers that arrive without the call.
    fn drop(&mut self) {
        let mut answers = Vec::new();
        while self.unanswered > 0 && self.exchange(Sleep::UntilAnswered, &mut answers).is_ok() {}
    }
}

/// Length of a segment in bytes, as far as one call moves it.
fn segment_bytes(segment: &libc::iovec) -> u32 {
    segment.iov_len.min(CALL_BYTES_MAX) as u32
}

#[cfg(test)]
mod tests;
