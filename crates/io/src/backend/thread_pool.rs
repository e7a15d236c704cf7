//! Thread pool backend: each thread executes one transfer at a time with `preadv(2)` or
//! `pwritev(2)`. A *job* is a queued transfer. A *worker* is a thread of the pool. An *answer* is
//! the number of bytes moved or a negative `errno`. The *owner* is the backend's user, who takes
//! the answers.
//!
//! The pool needs no system call that a sandbox forbids, and is the reference for the other
//! backends. Threads start on demand. A thread that will wait for an answer anyway executes a
//! transfer itself: a single read costs as much as a plain call and wakes no thread.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use readpath_core::request::Op;

use crate::backend::{
    Backend, BackendError, KernelAnswer, Sleep, Sleeper, Transfer, execute_transfer,
};
use crate::os::errno_of;
use crate::os::thread;

/// Largest number of threads. More do not raise the throughput: each is a sleeping system call.
const THREADS_MAX: u32 = 64;

/// Initial capacity of a segment list. Larger transfers grow it once.
const SEGMENTS_CAPACITY: usize = 4;

/// Number of later jobs for which no worker is started in advance.
const NO_FUTURE_JOBS: u32 = 0;

/// I/O backend over a thread pool.
pub(crate) struct ThreadPoolBackend {
    pool: Arc<ThreadPool>,
}

/// State shared by the owner and the workers. Any holder may queue and execute jobs.
pub(crate) struct ThreadPool {
    state: Mutex<PoolState>,
    /// Signals a job, or the shutdown, to the workers.
    job_signal: Condvar,
    /// Signals an answer to the owner.
    answer_signal: Condvar,
    /// Number of jobs not begun, readable without the lock.
    job_count: AtomicU32,
    /// Largest number of workers.
    workers_max: u32,
}

/// State of a pool under its lock.
#[derive(Default)]
struct PoolState {
    /// Jobs not begun, oldest first.
    jobs: VecDeque<PoolJob>,
    /// Answers that the owner has not taken.
    answers: Vec<KernelAnswer>,
    /// Segment lists for reuse, to avoid an allocation per transfer.
    spare_segment_lists: Vec<Vec<libc::iovec>>,
    /// Number of queued transfers whose answers were not taken.
    unanswered: u32,
    /// True after `wake`, until a sleeper has woken up.
    is_wake_pending: bool,
    /// True once the owner has been dropped: workers end.
    is_closing: bool,
    /// Eventfd to signal for each answer.
    event_fd: Option<OwnedFd>,
    /// Started threads, joined when the owner is dropped.
    workers: Vec<JoinHandle<()>>,
    /// Number of idle workers, including workers that were just started.
    workers_idle: u32,
}

/// A queued transfer, with the fields of [`Transfer`] and a segment list from the pool.
struct PoolJob {
    token: u64,
    fd: RawFd,
    op: Op,
    offset: u64,
    segments: Vec<libc::iovec>,
}

// SAFETY: the addresses in unused lists are never read; for jobs see below.
unsafe impl Send for PoolState {}

// SAFETY: the segments stay valid without other users until the job is answered (the contract of
// `Backend::queue`), on any thread.
unsafe impl Send for PoolJob {}

impl ThreadPoolBackend {
    /// Creates a pool for up to `depth` transfers, without threads.
    pub(crate) fn new(depth: u32) -> ThreadPoolBackend {
        let capacity = depth as usize;
        let state = PoolState {
            jobs: VecDeque::with_capacity(capacity),
            answers: Vec::with_capacity(capacity),
            ..PoolState::default()
        };
        let pool = ThreadPool {
            state: Mutex::new(state),
            job_signal: Condvar::new(),
            answer_signal: Condvar::new(),
            job_count: AtomicU32::new(0),
            workers_max: depth.clamp(1, THREADS_MAX),
        };
        ThreadPoolBackend { pool: Arc::new(pool) }
    }

    /// Like [`new`](ThreadPoolBackend::new), with threads and segment lists for `depth` transfers
    /// made now, as far as the system provides threads.
    pub(crate) fn with_threads(depth: u32) -> ThreadPoolBackend {
        let threads = ThreadPoolBackend::new(depth);
        let lists = (0..depth).map(|_| Vec::with_capacity(SEGMENTS_CAPACITY));
        threads.pool.lock().spare_segment_lists.extend(lists);
        threads.pool.wake_workers(depth);
        threads
    }

    /// Sets the eventfd that is signalled for each answer. The pool keeps a duplicate of it.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn set_event_fd(&self, event_fd: BorrowedFd<'_>) -> Result<(), BackendError> {
        let own_event_fd = event_fd
            .try_clone_to_owned()
            .map_err(|error| BackendError::NoEventFd { errno: errno_of(&error) })?;
        self.pool.lock().event_fd = Some(own_event_fd);
        Ok(())
    }

    /// Returns the state that is shared with workers and sleepers.
    pub(crate) fn pool(&self) -> &Arc<ThreadPool> {
        &self.pool
    }

    /// Moves all available answers to the end of `answers`, without waiting.
    pub(crate) fn take_answers(&mut self, answers: &mut Vec<KernelAnswer>) {
        self.pool.lock().take_answers(answers);
    }
}

impl PoolState {
    /// Moves all answers to the caller's list.
    fn take_answers(&mut self, answers: &mut Vec<KernelAnswer>) {
        self.unanswered -= self.answers.len() as u32;
        answers.append(&mut self.answers);
    }
}

impl ThreadPool {
    /// Queues a transfer as a job. It begins with the next call of
    /// [`start_queued_jobs`](ThreadPool::start_queued_jobs) or
    /// [`execute_one_job`](ThreadPool::execute_one_job).
    ///
    /// # Safety
    /// As for [`Backend::queue`].
    pub(crate) unsafe fn queue(&self, transfer: Transfer<'_>) {
        let Transfer { token, fd, op, offset, segments, .. } = transfer;
        let mut state = self.lock();
        let mut list = state
            .spare_segment_lists
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(SEGMENTS_CAPACITY));
        list.extend_from_slice(segments);
        state.jobs.push_back(PoolJob { token, fd, op, offset, segments: list });
        state.unanswered += 1;
        self.job_count.fetch_add(1, Ordering::Release);
    }

    /// Adds an answer for a transfer that was not queued here and is not executed: AIO cancels one.
    pub(crate) fn add_answer(&self, answer: KernelAnswer) {
        let mut state = self.lock();
        state.unanswered += 1;
        self.record_answer(&mut state, answer);
    }

    /// True if there are answers that the owner can take.
    pub(crate) fn has_answers(&self) -> bool {
        !self.lock().answers.is_empty()
    }

    /// Number of workers that were started.
    #[cfg(test)]
    pub(crate) fn worker_count(&self) -> usize {
        self.lock().workers.len()
    }

    /// True if jobs wait to be begun.
    pub(crate) fn has_jobs(&self) -> bool {
        self.job_count.load(Ordering::Acquire) > 0
    }

    /// Makes workers begin the queued jobs. If the system provides no worker, the calling thread
    /// executes all of them, and waits for the device.
    pub(crate) fn start_queued_jobs(self: &Arc<ThreadPool>) {
        if self.has_jobs() && !self.wake_workers(NO_FUTURE_JOBS) {
            while let Some((job, _)) = self.take_job() {
                drop(self.execute_job(job));
            }
        }
    }

    /// Executes one job on this thread and makes workers begin the others. Without any worker these
    /// stay queued. `None`: there is no job. `Some(true)`: no answer was there at the start, so all
    /// present ones have just arrived. `Some(false)`: an answer was there already, for an unknown
    /// time. The flag has the use of the result of [`Sleeper::sleep`].
    pub(crate) fn execute_one_job(self: &Arc<ThreadPool>) -> Option<bool> {
        let (job, found_no_answer) = self.take_job()?;
        if self.has_jobs() {
            self.wake_workers(NO_FUTURE_JOBS);
        }
        drop(self.execute_job(job));
        Some(found_no_answer)
    }

    /// Wakes or starts workers for all queued jobs, or for `future_jobs` later ones if these are
    /// more. Returns false if there is no worker at all.
    fn wake_workers(self: &Arc<ThreadPool>, future_jobs: u32) -> bool {
        let mut state = self.lock();
        while future_jobs.max(state.jobs.len() as u32) > state.workers_idle
            && (state.workers.len() as u32) < self.workers_max
        {
            let pool = Arc::clone(self);
            let name = format!("readpath-io-{}", state.workers.len());
            match thread::spawn(&name, move || pool.run_worker()) {
                Ok(worker) => {
                    state.workers.push(worker);
                    state.workers_idle += 1;
                }
                // The system provides no more threads; the existing ones do the work.
                Err(_) => break,
            }
        }
        // There may be several jobs, and one signal wakes only one worker. Workers that find no job
        // sleep again.
        self.job_signal.notify_all();
        !state.workers.is_empty()
    }

    /// Takes the oldest job for the calling thread. The flag is true if the owner has no answer to
    /// take now. Returns `None` without a job.
    fn take_job(&self) -> Option<(PoolJob, bool)> {
        let mut state = self.lock();
        let found_no_answer = state.answers.is_empty();
        Some((self.pop_job(&mut state)?, found_no_answer))
    }

    /// Removes the oldest job from the queue and from the count of jobs. `None` without a job.
    fn pop_job(&self, state: &mut PoolState) -> Option<PoolJob> {
        let job = state.jobs.pop_front()?;
        self.job_count.fetch_sub(1, Ordering::Release);
        Some(job)
    }

    /// Executes a job on this thread, and adds its answer. Returns the locked state.
    fn execute_job(&self, job: PoolJob) -> MutexGuard<'_, PoolState> {
        // SAFETY: valid until the answer, by the contract of `queue`.
        let raw = unsafe { execute_transfer(job.fd, job.op, job.offset, &job.segments) };
        let PoolJob { token, mut segments, .. } = job;
        segments.clear();
        let mut state = self.lock();
        state.spare_segment_lists.push(segments);
        self.record_answer(&mut state, KernelAnswer { token, raw });
        state
    }

    /// Adds an answer for the owner, wakes the owner, and signals the eventfd if one was set. At
    /// most one thread sleeps for answers.
    fn record_answer(&self, state: &mut PoolState, answer: KernelAnswer) {
        state.answers.push(answer);
        self.answer_signal.notify_one();
        if let Some(event_fd) = &state.event_fd {
            // Fails only after 2^64 unread answers; the eventfd is then already signalled.
            let _ = rustix::io::write(event_fd, &1u64.to_ne_bytes());
        }
    }

    /// Main loop of a worker: takes jobs, executes and answers them; ends when the pool closes.
    fn run_worker(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = self.pop_job(&mut state) {
                state.workers_idle -= 1;
                drop(state);
                state = self.execute_job(job);
                state.workers_idle += 1;
            } else if state.is_closing {
                return;
            } else {
                state = self.job_signal.wait(state).expect(POISON);
            }
        }
    }

    /// Locks the state of the pool.
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().expect(POISON)
    }

    /// Sleeps for answers while `must_wait` returns true, as long as `sleep` allows. Returns the
    /// locked state.
    fn sleep(
        &self,
        sleep: Sleep,
        must_wait: impl FnMut(&mut PoolState) -> bool,
    ) -> MutexGuard<'_, PoolState> {
        let state = self.lock();
        match sleep {
            Sleep::Never => state,
            Sleep::AtMost(timeout) => {
                self.answer_signal.wait_timeout_while(state, timeout, must_wait).expect(POISON).0
            }
            Sleep::UntilAnswered => self.answer_signal.wait_while(state, must_wait).expect(POISON),
        }
    }
}

/// Reason for which the lock is never poisoned.
const POISON: &str = "no thread panics while it holds the lock";

/// Sleeps for the answers of a pool.
pub(crate) struct ThreadsSleeper(pub(crate) Arc<ThreadPool>);

impl Sleeper for ThreadsSleeper {
    /// Starts queued jobs, and sleeps until an answer or `wake` as `sleep` allows. Returns true if
    /// the call was allowed to sleep and no answer was there before: the present ones have just
    /// arrived, so their times are known. Never fails.
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        let pool = &self.0;
        pool.start_queued_jobs();
        let waits_for_answer = sleep != Sleep::Never && !pool.has_answers();
        let must_wait = |state: &mut PoolState| state.answers.is_empty() && !state.is_wake_pending;
        if sleep != Sleep::Never {
            // A pending `wake` is used up by this sleep. A call that may not sleep leaves it to the
            // next sleep.
            pool.sleep(sleep, must_wait).is_wake_pending = false;
        }
        Ok(waits_for_answer)
    }

    /// Makes workers begin the queued jobs.
    fn submit_queued(&self) {
        self.0.start_queued_jobs();
    }

    /// Ends the present sleep, or else the next one.
    fn wake(&self) {
        self.0.lock().is_wake_pending = true;
        self.0.answer_signal.notify_all();
    }

    /// True if jobs wait to be begun.
    fn has_pooled_transfer(&self) -> bool {
        self.0.has_jobs()
    }

    /// Executes one job; the result is as for `execute_one_job`.
    fn execute_pooled_transfer(&self) -> Option<bool> {
        self.0.execute_one_job()
    }
}

impl Backend for ThreadPoolBackend {
    /// Queues a transfer. The next `exchange` or sleep begins it.
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        // SAFETY: the caller's contract.
        unsafe { self.pool.queue(transfer) };
    }

    fn has_answers(&mut self) -> bool {
        self.pool.has_answers()
    }

    /// Moves the available answers to `answers`. Queues no transfer, so the result is false.
    fn collect(&mut self, answers: &mut Vec<KernelAnswer>) -> Result<bool, BackendError> {
        self.take_answers(answers);
        Ok(false)
    }

    /// Removes a job that has not begun, and answers it with ECANCELED.
    fn cancel(&mut self, token: u64) {
        let pool = &self.pool;
        let mut state = pool.lock();
        // A job that a worker has begun cannot be cancelled.
        let index = state.jobs.iter().position(|job| job.token == token);
        if index.and_then(|index| state.jobs.remove(index)).is_some() {
            pool.job_count.fetch_sub(1, Ordering::Release);
            pool.record_answer(&mut state, KernelAnswer { token, raw: -libc::ECANCELED });
        }
    }

    /// Makes workers begin the queued jobs, and sleeps for the first answer as `sleep` allows. Does
    /// not sleep if each transfer is answered. Moves all answers to `answers`. Never fails.
    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        if sleep == Sleep::UntilAnswered && !self.has_answers() {
            // This thread would sleep without a limit, so it executes a job itself. A job may take
            // longer than a limited sleep.
            self.pool.execute_one_job();
        }
        self.pool.start_queued_jobs();
        let must_wait = |state: &mut PoolState| state.answers.is_empty() && state.unanswered > 0;
        self.pool.sleep(sleep, must_wait).take_answers(answers);
        Ok(())
    }
}

impl Drop for ThreadPoolBackend {
    /// Discards jobs that have not begun, without an answer, and waits for the jobs of workers,
    /// which access memory. No other thread may execute a job then.
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        while self.pool.pop_job(&mut state).is_some() {}
        state.is_closing = true;
        let workers = std::mem::take(&mut state.workers);
        drop(state);
        self.pool.job_signal.notify_all();
        for worker in workers {
            // A worker that panicked no longer accesses memory; the error adds nothing.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_without_sleep_leaves_a_wake_to_the_next_sleep() {
        let threads = ThreadPoolBackend::new(1);
        let sleeper = ThreadsSleeper(Arc::clone(threads.pool()));
        sleeper.wake();
        assert_eq!(sleeper.sleep(Sleep::Never), Ok(false));
        assert!(threads.pool().lock().is_wake_pending);
        // No transfer is in flight: without the wake this sleep would not end.
        assert_eq!(sleeper.sleep(Sleep::UntilAnswered), Ok(true));
        assert!(!threads.pool().lock().is_wake_pending);
    }

    /// A transfer is queued and not begun when the backend is dropped.
    #[test]
    fn sleeper_finds_no_job_after_the_backend_is_gone() {
        let mut threads = ThreadPoolBackend::new(1);
        let sleeper = ThreadsSleeper(Arc::clone(threads.pool()));
        let segments = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];
        let (token, fd, op, offset, is_direct) = (0, -1, Op::Read, 0, false);
        let transfer = Transfer { token, fd, op, offset, segments: &segments, is_direct };
        // SAFETY: an empty segment has no memory.
        unsafe { threads.queue(transfer) };
        assert!(sleeper.has_pooled_transfer());
        drop(threads);
        assert!(!sleeper.has_pooled_transfer());
        assert_eq!(sleeper.execute_pooled_transfer(), None);
    }
}
