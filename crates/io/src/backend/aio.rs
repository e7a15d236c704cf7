//! Linux AIO: `io_submit(2)` submits requests, and answers arrive in a queue shared with the
//! kernel.
//!
//! The difference to io_uring: the device's interrupt completes a request, and no thread owns it. A
//! thread that has submitted requests may sit in `vfork`, get no processor, or sleep in another
//! call. Waiting threads get the answers all the same, and no sleep is interrupted for them. AIO
//! needs no locked memory, and container profiles allow it. Random direct reads of 4 KiB need less
//! processor time than with io_uring without `DEFER_TASKRUN`. In fio with one job: depth 1 55.1
//! instead of 58.4 us, depth 32 12.3 instead of 14.2 us.
//!
//! A *context* is the kernel's object that takes a fixed number of requests, its depth. Rules:
//!
//! - Each answer signals an eventfd (`IOCB_FLAG_RESFD`). Threads sleep in `poll(2)` on it, which
//!   takes no answer: any thread may sleep or wake up late without losing one.
//! - Answers are taken from the shared queue without a system call, also after a sandbox forbids
//!   AIO calls.
//! - Requests are submitted without a lock, because `io_submit` may block: for a tag of the device,
//!   or for a block of the file's map.
//! - Buffered AIO would do all its waiting in `io_submit`. [Threads](crate::backend::thread_pool)
//!   execute *jobs*, and signal the same eventfd: buffered transfers, and transfers that
//!   `io_submit` rejects for any reason. The plain call then decides.
//!
//! Sources: io_submit(2), io_setup(2), `linux/aio_abi.h`; the shared queue is `struct aio_ring` of
//! the kernel's `fs/aio.c`.

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use readpath_core::request::Op;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::backend::thread_pool::{ThreadPool, ThreadPoolBackend};
use crate::backend::{Backend, BackendError, KernelAnswer, Sleep, Sleeper, Transfer};
use crate::os::errno_of;
use crate::os::process::ProcessNumber;

pub(crate) mod request_share;
#[cfg(test)]
mod tests;

/// Largest number of requests per `io_submit` call. They are copied to the stack (2 KiB) for the
/// call, which is made without the lock.
const SUBMIT_BATCH: usize = 32;

/// `struct iocb`: one request. Unused fields are zero.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Iocb {
    /// Number that the answer returns.
    token: u64,
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    fd: u32,
    /// Address of the memory, or of the segment list.
    address: u64,
    /// Number of bytes, or of segments.
    count: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_event_fd: u32,
}

// Values of `opcode`: IOCB_CMD_PREAD and others.
const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;
/// `IOCB_FLAG_RESFD`: signal an eventfd when the request ends.
const FLAG_EVENTFD: u32 = 1;

/// `struct aio_ring`: header of the queue shared with the kernel; the answers follow.
#[repr(C)]
struct AioRing {
    id: u32,
    /// Number of answers for which the queue has space.
    count: u32,
    /// Read position, ours.
    head: AtomicU32,
    /// Write position, the kernel's.
    tail: AtomicU32,
    magic: u32,
    compatible_features: u32,
    incompatible_features: u32,
    header_bytes: u32,
}

/// Value of `AioRing::magic` (`AIO_RING_MAGIC`).
const MAGIC: u32 = 0xa10a_10a1;

/// `struct io_event`.
#[derive(Clone, Copy)]
#[repr(C)]
struct AioEvent {
    /// Token of the request.
    token: u64,
    request: u64,
    /// Bytes moved, or a negative `errno`.
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<AioRing>() == 32);
const _: () = assert!(size_of::<AioEvent>() == 32);

/// An unused AIO context of this process.
struct IdleContext {
    /// Process that created the context. A forked child cannot use it.
    process: ProcessNumber,
    /// Context id of the kernel.
    id: usize,
    /// Number of requests that it takes; still reserved in `request_share`.
    depth: u32,
}

/// Contexts for reuse: `io_destroy` takes an RCU grace period, 20 to 40 ms.
static IDLE_CONTEXTS: Mutex<Vec<IdleContext>> = Mutex::new(Vec::new());
/// Largest number of contexts kept for reuse. A kept context still takes its part of the system's
/// requests. The number is chosen, not measured.
const IDLE_CONTEXTS_MAX: usize = 4;

/// Takes a kept context of exactly `depth` requests and returns its id, or `None` if there is none.
/// Never waits for the lock: another thread may have held it when this child was forked.
fn take_idle_context(depth: u32) -> Option<usize> {
    let mut idle = IDLE_CONTEXTS.try_lock().ok()?;
    // Contexts kept before a `fork` belong to the parent.
    idle.retain(|context| context.process.is_current());
    let index = idle.iter().position(|context| context.depth == depth)?;
    Some(idle.swap_remove(index).id)
}

/// Keeps a context without requests in flight for reuse. Returns false if there is no room or the
/// lock is held; the caller then destroys the context.
fn keep_idle_context(context: &AioContext) -> bool {
    let Ok(mut idle) = IDLE_CONTEXTS.try_lock() else { return false };
    let has_room = idle.len() < IDLE_CONTEXTS_MAX;
    if has_room {
        let AioContext { id, depth, process, .. } = *context;
        idle.push(IdleContext { process, id, depth });
    }
    has_room
}

/// I/O backend over Linux AIO.
pub(crate) struct Aio {
    /// Shared with the sleepers.
    context: Arc<AioContext>,
    /// Execute buffered and rejected transfers, and signal the eventfd of the context.
    threads: ThreadPoolBackend,
    /// Number of queued requests without an answer.
    unanswered: u32,
}

/// State shared by the owner and its sleepers.
struct AioContext {
    /// Context id of the kernel.
    id: usize,
    /// Number of requests that the context takes.
    depth: u32,
    /// Process that created this state.
    process: ProcessNumber,
    /// True if the context may be reused when this is dropped. The drop of the `Aio` makes it false
    /// if a request has no answer.
    may_be_reused: AtomicBool,
    /// Answer queue, mapped by the kernel.
    completion_ring: NonNull<AioRing>,
    /// Eventfd signalled for each answer.
    event_fd: OwnedFd,
    /// True if the eventfd belongs to another owner, who also clears it. After a sleep of its own,
    /// `exchange` clears it too.
    is_event_fd_borrowed: bool,
    /// Requests not submitted yet.
    queued: Mutex<Vec<Iocb>>,
    /// Length of `queued`, readable without the lock.
    queued_count: AtomicU32,
    /// Threads for transfers that AIO cannot execute.
    pool: Arc<ThreadPool>,
    /// Error of `io_submit`, as in `errno(3)`, once a sandbox forbids it; 0 before.
    submit_errno: AtomicI32,
}

// SAFETY: the shared queue is accessed through atomics; only the exclusive user of the `Aio` reads
// its answers. The addresses in `queued` are for the kernel alone.
unsafe impl Send for AioContext {}
// SAFETY: as above.
unsafe impl Sync for AioContext {}

impl Aio {
    /// Creates an AIO context for up to `depth` transfers.
    ///
    /// # Errors
    /// The kernel has no AIO, its limit is reached, or a sandbox forbids it.
    pub(crate) fn new(depth: u32) -> Result<Aio, BackendError> {
        let no_event_fd =
            |errno: rustix::io::Errno| BackendError::NoEventFd { errno: errno.raw_os_error() };
        let event_fd =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(no_event_fd)?;
        let is_event_fd_borrowed = false;
        Aio::from_event_fd(depth, event_fd, is_event_fd_borrowed)
    }

    /// Like [`new`](Aio::new), with the eventfd of an owner who sleeps elsewhere.
    ///
    /// # Errors
    /// As [`new`](Aio::new).
    pub(crate) fn with_event_fd(depth: u32, event_fd: BorrowedFd<'_>) -> Result<Aio, BackendError> {
        let event_fd = event_fd
            .try_clone_to_owned()
            .map_err(|error| BackendError::NoEventFd { errno: errno_of(&error) })?;
        let is_event_fd_borrowed = true;
        Aio::from_event_fd(depth, event_fd, is_event_fd_borrowed)
    }

    /// Sets up a context for `depth` requests, reused or new, and maps its answer queue. Answers
    /// signal `event_fd`. `is_event_fd_borrowed` is true if it belongs to an owner who sleeps on it
    /// elsewhere. Fails as [`new`](Aio::new) does.
    fn from_event_fd(
        depth: u32,
        event_fd: OwnedFd,
        is_event_fd_borrowed: bool,
    ) -> Result<Aio, BackendError> {
        let threads = ThreadPoolBackend::new(depth);
        threads.set_event_fd(event_fd.as_fd())?;
        let id = match take_idle_context(depth) {
            Some(id) => id,
            None => {
                let mut id = 0usize;
                // SAFETY: the kernel writes the context's id to `id`.
                let result = unsafe { libc::syscall(libc::SYS_io_setup, depth, &mut id) };
                if result < 0 {
                    let errno = last_errno();
                    return Err(BackendError::NoAio { errno });
                }
                request_share::reserve(depth);
                id
            }
        };
        let context = AioContext {
            id,
            depth,
            process: ProcessNumber::current(),
            may_be_reused: AtomicBool::new(true),
            // The id of a context is the address of its queue.
            completion_ring: NonNull::new(id as *mut AioRing)
                .expect("a mapping is never at address zero"),
            event_fd,
            is_event_fd_borrowed,
            queued: Mutex::new(Vec::with_capacity(SUBMIT_BATCH)),
            queued_count: AtomicU32::new(0),
            pool: Arc::clone(threads.pool()),
            submit_errno: AtomicI32::new(0),
        };
        let queue = context.shared_queue();
        if queue.magic != MAGIC || queue.header_bytes as usize != size_of::<AioRing>() {
            // Not a Linux kernel: it shares no queue. The context is destroyed.
            context.may_be_reused.store(false, Ordering::Relaxed);
            return Err(BackendError::NoAio { errno: libc::ENOSYS });
        }
        let queue_bytes = size_of::<AioRing>() + queue.count as usize * size_of::<AioEvent>();
        let address = context.completion_ring.as_ptr().cast();
        // Excluded from forked children, which could take answers away, in whole pages of 4 KiB.
        // SAFETY: the kernel's whole mapping; the advice changes no bytes.
        unsafe { libc::madvise(address, queue_bytes.next_multiple_of(4096), libc::MADV_DONTFORK) };
        Ok(Aio { context: Arc::new(context), threads, unanswered: 0 })
    }

    /// Creates a sleeper for threads that share this backend.
    pub(crate) fn sleeper(&self) -> AioSleeper {
        AioSleeper(Arc::clone(&self.context))
    }

    /// Moves all available answers of the kernel and of the threads to `answers`, without a system
    /// call.
    fn take_answers(&mut self, answers: &mut Vec<KernelAnswer>) {
        let (context, count_before) = (&self.context, answers.len());
        let queue = context.shared_queue();
        let mut head = queue.head.load(Ordering::Relaxed);
        let tail = queue.tail.load(Ordering::Acquire);
        while head != tail {
            // SAFETY: the kernel has written the answers before the tail. The header is followed by
            // `count` slots. `&mut self` makes this the only reader.
            let event = unsafe {
                let events = context.completion_ring.as_ptr().add(1).cast::<AioEvent>();
                events.add(head as usize).read()
            };
            // A result fits: a transfer moves at most 0x7ffff000 bytes (read(2)).
            answers.push(KernelAnswer { token: event.token, raw: event.result as i32 });
            head = if head + 1 == queue.count { 0 } else { head + 1 };
        }
        queue.head.store(head, Ordering::Release);
        self.threads.take_answers(answers);
        self.unanswered -= (answers.len() - count_before) as u32;
    }
}

impl AioContext {
    /// Returns the header of the queue shared with the kernel.
    fn shared_queue(&self) -> &AioRing {
        // SAFETY: the kernel maps it as long as the context exists.
        unsafe { self.completion_ring.as_ref() }
    }

    /// Locks the list of requests that are not submitted yet.
    fn lock_queued(&self) -> MutexGuard<'_, Vec<Iocb>> {
        self.queued.lock().expect("no thread panics while it holds the lock")
    }

    /// True if the kernel or the threads have answers that were not taken.
    fn has_answers(&self) -> bool {
        let queue = self.shared_queue();
        queue.head.load(Ordering::Relaxed) != queue.tail.load(Ordering::Acquire)
            || self.pool.has_answers()
    }

    /// Submits all queued requests to the kernel, and lets the threads begin theirs.
    fn submit_queued(&self) {
        self.submit_to_kernel();
        self.pool.start_queued_jobs();
    }

    /// Submits all queued requests to the kernel, in batches. Rejected ones become queued jobs of
    /// the threads, which the caller must start.
    fn submit_to_kernel(&self) {
        while self.queued_count.load(Ordering::Acquire) > 0 {
            let mut batch = [Iocb::default(); SUBMIT_BATCH];
            let count = {
                let mut queued = self.lock_queued();
                let count = queued.len().min(SUBMIT_BATCH);
                batch[..count].copy_from_slice(&queued[..count]);
                queued.drain(..count);
                self.queued_count.store(queued.len() as u32, Ordering::Release);
                count
            };
            self.submit(&batch[..count]);
        }
    }

    /// Submits at most [`SUBMIT_BATCH`] requests by `io_submit`. Rejected requests go to the
    /// threads.
    fn submit(&self, batch: &[Iocb]) {
        let mut requests = [std::ptr::null(); SUBMIT_BATCH];
        requests
            .iter_mut()
            .zip(batch)
            .for_each(|(pointer, request)| *pointer = &raw const *request);
        let mut submitted_count = 0;
        while submitted_count < batch.len() {
            let (count, first_pointer) =
                (batch.len() - submitted_count, &raw const requests[submitted_count]);
            // SAFETY: the memory of each transfer is valid until its answer (the contract of
            // `Backend::queue`). The call copies the requests themselves.
            let accepted =
                unsafe { libc::syscall(libc::SYS_io_submit, self.id, count, first_pointer) };
            if accepted > 0 {
                submitted_count += accepted as usize;
                continue;
            }
            // The kernel takes the requests before a rejected one. An error is thus of the first
            // request passed, unless a sandbox now forbids the call. A thread executes it.
            if let errno @ (libc::EPERM | libc::EACCES | libc::ENOSYS) = last_errno() {
                self.submit_errno.store(errno, Ordering::Relaxed);
            }
            self.execute_on_threads(&batch[submitted_count]);
            submitted_count += 1;
        }
    }

    /// Queues a request that `io_submit` rejects for execution by the threads. The caller of
    /// `submit_to_kernel` then starts them. The request counts as unanswered already.
    fn execute_on_threads(&self, request: &Iocb) {
        // Memory of a request for one segment. Requests with a segment list do not use it.
        let single_segment =
            [libc::iovec { iov_base: request.address as *mut _, iov_len: request.count as usize }];
        let (op, segments) = match request.opcode {
            PREAD => (Op::Read, &single_segment[..]),
            PWRITE => (Op::Write, &single_segment[..]),
            opcode => {
                let op = if opcode == PREADV { Op::Read } else { Op::Write };
                let list = request.address as *const libc::iovec;
                // SAFETY: the list stays in place until the answer (`Backend::queue`).
                (op, unsafe { std::slice::from_raw_parts(list, request.count as usize) })
            }
        };
        let transfer = Transfer {
            token: request.token,
            fd: request.fd as RawFd,
            op,
            offset: request.offset as u64,
            segments,
            // Only direct transfers are submitted by `io_submit`.
            is_direct: true,
        };
        // SAFETY: as for the request, until the answer of the pool.
        unsafe { self.pool.queue(transfer) };
    }

    /// Sleeps until the eventfd is signalled, as long as `sleep` allows.
    fn sleep(&self, sleep: Sleep) {
        let timeout = match sleep {
            Sleep::Never => return,
            Sleep::AtMost(timeout) => Some(Timespec {
                tv_sec: timeout.as_secs() as i64,
                tv_nsec: timeout.subsec_nanos().into(),
            }),
            Sleep::UntilAnswered => None,
        };
        // A signal handler may end it early: the caller checks and sleeps again.
        let _ = poll(&mut [PollFd::new(&self.event_fd, PollFlags::IN)], timeout.as_ref());
    }

    /// Clears the eventfd: the next sleep waits for another signal. Does not wait.
    fn clear_event_fd(&self) {
        // Fails if the eventfd is already clear.
        let _ = rustix::io::read(&self.event_fd, &mut [0; 8]);
    }
}

impl Drop for AioContext {
    /// Keeps the context for reuse if possible, and destroys it otherwise.
    fn drop(&mut self) {
        if *self.may_be_reused.get_mut() && keep_idle_context(self) {
            return;
        }
        // SAFETY: the call waits for requests in flight, and the queue has no readers left.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
        request_share::unreserve(self.depth);
    }
}

/// Sleeps for the answers of AIO.
pub(crate) struct AioSleeper(Arc<AioContext>);

impl Sleeper for AioSleeper {
    /// Submits queued requests. Sleeps only if no answer is there, and then returns true: answers
    /// found after the sleep have just arrived. Never fails.
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        self.0.submit_queued();
        if sleep == Sleep::Never || self.0.has_answers() {
            return Ok(false);
        }
        self.0.sleep(sleep);
        // A user of a sleeper clears the eventfd only after its sleep. A clear without a sleep
        // could lose a `wake`.
        self.0.clear_event_fd();
        Ok(true)
    }

    /// Submits queued requests, and makes the threads begin their jobs.
    fn submit_queued(&self) {
        self.0.submit_queued();
    }

    /// Signals the eventfd, which ends the present sleep or the next one.
    fn wake(&self) {
        // Fails only if the counter is full; the eventfd is then already signalled.
        let _ = rustix::io::write(&self.0.event_fd, &1u64.to_ne_bytes());
    }

    /// True if transfers wait for a thread of the pool.
    fn has_pooled_transfer(&self) -> bool {
        self.0.pool.has_jobs()
    }

    /// Executes one such transfer on this thread. `None`: there is none. `Some(true)`: no answer of
    /// the pool was there at the start.
    fn execute_pooled_transfer(&self) -> Option<bool> {
        self.0.pool.execute_one_job()
    }
}

impl Backend for Aio {
    /// Queues a direct transfer for `io_submit`, and a buffered one for the threads.
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        self.unanswered += 1;
        let context = &self.context;
        if !transfer.is_direct {
            // SAFETY: the caller's contract.
            unsafe { context.pool.queue(transfer) };
            return;
        }
        let Transfer { token, fd, op, offset, segments, .. } = transfer;
        // A single segment needs no list, which saves the kernel copying and walking it.
        let (opcode, address, count) = match (op, segments) {
            (Op::Read, [iov]) => (PREAD, iov.iov_base as usize, iov.iov_len),
            (Op::Write, [iov]) => (PWRITE, iov.iov_base as usize, iov.iov_len),
            (Op::Read, iovs) => (PREADV, iovs.as_ptr() as usize, iovs.len()),
            (Op::Write, iovs) => (PWRITEV, iovs.as_ptr() as usize, iovs.len()),
        };
        let mut queued = context.lock_queued();
        queued.push(Iocb {
            token,
            opcode,
            fd: fd as u32,
            address: address as u64,
            count: count as u64,
            offset: offset as i64,
            flags: FLAG_EVENTFD,
            result_event_fd: context.event_fd.as_raw_fd() as u32,
            ..Iocb::default()
        });
        context.queued_count.store(queued.len() as u32, Ordering::Release);
    }

    fn has_answers(&mut self) -> bool {
        self.context.has_answers()
    }

    /// Moves the available answers to `answers`. Queues no request, so the result is false.
    fn collect(&mut self, answers: &mut Vec<KernelAnswer>) -> Result<bool, BackendError> {
        self.take_answers(answers);
        Ok(false)
    }

    /// Cancels queued requests, and jobs that no thread has begun. The kernel does not cancel
    /// submitted requests. The pool delivers the answer of a cancelled request, because only the
    /// kernel writes to the shared queue.
    fn cancel(&mut self, token: u64) {
        let mut queued = self.context.lock_queued();
        if let Some(index) = queued.iter().position(|request| request.token == token) {
            queued.remove(index);
            self.context.queued_count.store(queued.len() as u32, Ordering::Release);
            self.context.pool.add_answer(KernelAnswer { token, raw: -libc::ECANCELED });
        } else {
            drop(queued);
            self.threads.cancel(token);
        }
    }

    /// Returns the reason for which threads execute the transfers: the error of a forbidden
    /// `io_submit`. `None` while that call is permitted.
    fn replacement_reason(&self) -> Option<BackendError> {
        let errno = self.context.submit_errno.load(Ordering::Relaxed);
        (errno != 0).then_some(BackendError::NoAio { errno })
    }

    /// Submits queued requests and moves answers to `answers`. With a transfer unanswered and no
    /// answer at hand, sleeps on the eventfd for the first answer as `sleep` allows. Never fails.
    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        let count_before = answers.len();
        // First, so that the device works on the requests while this thread executes a job.
        self.context.submit_to_kernel();
        if sleep == Sleep::UntilAnswered && !self.context.has_answers() {
            // This thread would sleep without a limit, so it executes a job of the pool itself.
            self.context.pool.execute_one_job();
        }
        self.context.pool.start_queued_jobs();
        if sleep != Sleep::Never && !self.context.is_event_fd_borrowed {
            // Cleared before the check, so that later answers signal it again.
            self.context.clear_event_fd();
        }
        self.take_answers(answers);
        if answers.len() == count_before && self.unanswered > 0 && sleep != Sleep::Never {
            self.context.sleep(sleep);
            self.context.clear_event_fd();
            self.take_answers(answers);
        }
        Ok(())
    }
}

impl Drop for Aio {
    /// Withdraws queued requests without an answer. Waits for all submitted ones and for the jobs
    /// of the threads, because both write to memory. The context may then be reused.
    fn drop(&mut self) {
        let withdrawn_count = {
            let mut queued = self.context.lock_queued();
            self.context.queued_count.store(0, Ordering::Release);
            queued.drain(..).count() as u32
        };
        self.unanswered -= withdrawn_count;
        let mut answers = Vec::new();
        // `exchange` never fails: answers are taken without a system call that could be forbidden
        // by now.
        while self.unanswered > 0 && self.exchange(Sleep::UntilAnswered, &mut answers).is_ok() {}
        self.context.may_be_reused.store(self.unanswered == 0, Ordering::Relaxed);
    }
}

/// Error of the calling thread's last system call, as in `errno(3)`; 0 if there is none.
fn last_errno() -> i32 {
    errno_of(&std::io::Error::last_os_error())
}
