//! A pool of threads, each of which carries one transfer at a time with
//! `preadv(2)` or `pwritev(2)`.
//!
//! It needs nothing that a sandbox forbids, and is the reference for the others.
//! Its threads are started as they are needed. And who is going to wait for an
//! answer anyway carries a transfer itself: a read that is alone costs what a
//! plain call costs, and no thread is woken for it.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use readpath_core::request::Op;

use crate::backend::{Backend, BackendError, KernelAnswer, Sleep, Sleeper, Transfer, carry};
use crate::thread;

/// More threads than this don't carry more: each is a sleeping system call.
const THREADS_MAX: u32 = 64;

/// A transfer of more pieces than this makes its list longer, once.
const PIECES: usize = 4;

/// The thread backend.
pub(crate) struct Threads {
    pool: Arc<Pool>,
}

/// What the owner and the workers share. Who holds it may hand in jobs, and carry them.
pub(crate) struct Pool {
    state: Mutex<PoolState>,
    /// There is a job, or the pool closes; the workers wait for it.
    work: Condvar,
    /// There is an answer; the owner waits for it.
    answered: Condvar,
    /// How many jobs nobody has begun, to be looked at without the lock.
    jobs: AtomicU32,
    workers_max: u32,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<PoolJob>,
    answers: Vec<KernelAnswer>,
    /// Lists of pieces for the next jobs, so that none is allocated for a transfer.
    lists: Vec<Vec<libc::iovec>>,
    /// Transfers queued whose answers have not been taken.
    unanswered: u32,
    /// Somebody has called `wake`, and nobody has woken up by it yet.
    is_woken: bool,
    is_closing: bool,
    bell: Option<OwnedFd>,
    workers: Vec<JoinHandle<()>>,
    /// Workers that carry nothing, and will look for a job.
    workers_free: u32,
}

struct PoolJob {
    token: u64,
    fd: RawFd,
    op: Op,
    offset: u64,
    segments: Vec<libc::iovec>,
}

// SAFETY: the addresses in the lists are not looked at between jobs; for those in
// jobs, as below.
unsafe impl Send for PoolState {}

// SAFETY: the pieces of memory stay valid, and nobody else uses them, until
// the job is answered (the contract of `Backend::queue`), on whatever thread.
unsafe impl Send for PoolJob {}

impl Threads {
    /// A pool for `depth` transfers at once.
    pub(crate) fn new(depth: u32) -> Threads {
        let room = depth as usize;
        let state = PoolState {
            jobs: VecDeque::with_capacity(room),
            answers: Vec::with_capacity(room),
            ..PoolState::default()
        };
        let pool = Pool {
            state: Mutex::new(state),
            work: Condvar::new(),
            answered: Condvar::new(),
            jobs: AtomicU32::new(0),
            workers_max: depth.clamp(1, THREADS_MAX),
        };
        Threads { pool: Arc::new(pool) }
    }

    /// The same with all that it will need there already, as far as the system gives it.
    pub(crate) fn started(depth: u32) -> Threads {
        let threads = Threads::new(depth);
        let lists = (0..depth).map(|_| Vec::with_capacity(PIECES));
        threads.pool.lock().lists.extend(lists);
        threads.pool.call_workers(depth);
        threads
    }

    /// Has the eventfd `bell` written to whenever an answer comes.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn set_bell(&self, bell: BorrowedFd<'_>) -> Result<(), BackendError> {
        let bell = bell
            .try_clone_to_owned()
            .map_err(|error| BackendError::NoBell { errno: error.raw_os_error().unwrap_or(0) })?;
        self.pool.lock().bell = Some(bell);
        Ok(())
    }

    /// What others share of it.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Takes the answers that there are.
    pub(crate) fn take_answers(&mut self, answers: &mut Vec<KernelAnswer>) {
        self.pool.lock().take_answers(answers);
    }
}

impl PoolState {
    fn take_answers(&mut self, answers: &mut Vec<KernelAnswer>) {
        self.unanswered -= self.answers.len() as u32;
        answers.append(&mut self.answers);
    }
}

impl Pool {
    /// Takes a job in. It begins when somebody hands over, or carries.
    ///
    /// # Safety
    /// As for [`Backend::queue`].
    pub(crate) unsafe fn queue(&self, transfer: Transfer<'_>) {
        let Transfer { token, fd, op, offset, segments, .. } = transfer;
        let mut state = self.lock();
        let mut list = state.lists.pop().unwrap_or_else(|| Vec::with_capacity(PIECES));
        list.extend_from_slice(segments);
        state.jobs.push_back(PoolJob { token, fd, op, offset, segments: list });
        state.unanswered += 1;
        self.jobs.fetch_add(1, Ordering::Release);
    }

    /// Gives an answer to a transfer that is carried by nobody any more.
    pub(crate) fn give(&self, answer: KernelAnswer) {
        let mut state = self.lock();
        state.unanswered += 1;
        self.answer(&mut state, answer);
    }

    pub(crate) fn has_answers(&self) -> bool {
        !self.lock().answers.is_empty()
    }

    /// Whether there are jobs that nobody has begun.
    pub(crate) fn has_jobs(&self) -> bool {
        self.jobs.load(Ordering::Acquire) > 0
    }

    /// Has workers begin what is queued. Where the system gives none, the caller does it.
    pub(crate) fn hand_over(self: &Arc<Pool>) {
        if self.has_jobs() && !self.call_workers(0) {
            while let Some((job, _)) = self.next_job() {
                drop(self.carry(job));
            }
        }
    }

    /// Carries one job here and now, and has workers begin the others; nothing if there
    /// is none. Otherwise says whether no answer lay there at the begin.
    pub(crate) fn carry_one(self: &Arc<Pool>) -> Option<bool> {
        let (job, is_demand) = self.next_job()?;
        if self.has_jobs() {
            self.call_workers(0);
        }
        drop(self.carry(job));
        Some(is_demand)
    }

    /// Wakes or starts as many workers as there are jobs, or jobs `to_come`; false if there are no
    /// workers at all.
    fn call_workers(self: &Arc<Pool>, to_come: u32) -> bool {
        let mut state = self.lock();
        while to_come.max(state.jobs.len() as u32) > state.workers_free
            && (state.workers.len() as u32) < self.workers_max
        {
            let pool = Arc::clone(self);
            let name = format!("readpath-io-{}", state.workers.len());
            match thread::spawn(&name, move || pool.work()) {
                Ok(worker) => {
                    state.workers.push(worker);
                    state.workers_free += 1;
                }
                // The system has no more: those that there are do it.
                Err(_) => break,
            }
        }
        self.work.notify_all();
        !state.workers.is_empty()
    }

    /// A job for the caller, and whether no answer lies there.
    fn next_job(&self) -> Option<(PoolJob, bool)> {
        let mut state = self.lock();
        let is_demand = state.answers.is_empty();
        Some((self.pop(&mut state)?, is_demand))
    }

    fn pop(&self, state: &mut PoolState) -> Option<PoolJob> {
        let job = state.jobs.pop_front()?;
        self.jobs.fetch_sub(1, Ordering::Release);
        Some(job)
    }

    /// Carries a job, and gives its answer.
    fn carry(&self, job: PoolJob) -> MutexGuard<'_, PoolState> {
        // SAFETY: by the contract of `queue`, until the answer.
        let raw = unsafe { carry(job.fd, job.op, job.offset, &job.segments) };
        let PoolJob { token, segments: mut list, .. } = job;
        list.clear();
        let mut state = self.lock();
        state.lists.push(list);
        self.answer(&mut state, KernelAnswer { token, raw });
        state
    }

    fn answer(&self, state: &mut PoolState, answer: KernelAnswer) {
        state.answers.push(answer);
        self.answered.notify_one();
        if let Some(bell) = &state.bell {
            // It is full only if nobody has heard it for 2^64 answers.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// The life of a worker: takes a job, carries it, answers; ends when the pool closes.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = self.pop(&mut state) {
                state.workers_free -= 1;
                drop(state);
                state = self.carry(job);
                state.workers_free += 1;
            } else if state.is_closing {
                return;
            } else {
                state = self.work.wait(state).expect(POISON);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().expect(POISON)
    }

    /// Waits for the workers as long as `is_to_wait` and `sleep` say.
    fn sleep(
        &self,
        sleep: Sleep,
        is_to_wait: impl FnMut(&mut PoolState) -> bool,
    ) -> MutexGuard<'_, PoolState> {
        let state = self.lock();
        match sleep {
            Sleep::Never => state,
            Sleep::AtMost(span) => {
                self.answered.wait_timeout_while(state, span, is_to_wait).expect(POISON).0
            }
            Sleep::UntilAnswered => self.answered.wait_while(state, is_to_wait).expect(POISON),
        }
    }
}

const POISON: &str = "no thread panics while it holds the lock";

/// Sleeps for the answers of a pool.
pub(crate) struct ThreadsSleeper(pub(crate) Arc<Pool>);

impl Sleeper for ThreadsSleeper {
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        let pool = &self.0;
        pool.hand_over();
        let is_demand = sleep != Sleep::Never && !pool.has_answers();
        let is_to_wait = |state: &mut PoolState| state.answers.is_empty() && !state.is_woken;
        pool.sleep(sleep, is_to_wait).is_woken = false;
        Ok(is_demand)
    }

    fn hand_over(&self) {
        self.0.hand_over();
    }

    fn wake(&self) {
        self.0.lock().is_woken = true;
        self.0.answered.notify_all();
    }

    fn has_work(&self) -> bool {
        self.0.has_jobs()
    }

    fn work(&self) -> Option<bool> {
        self.0.carry_one()
    }
}

impl Backend for Threads {
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        // SAFETY: the caller's promise.
        unsafe { self.pool.queue(transfer) };
    }

    fn has_answers(&mut self) -> bool {
        self.pool.has_answers()
    }

    fn collect(&mut self, answers: &mut Vec<KernelAnswer>) -> Result<bool, BackendError> {
        self.take_answers(answers);
        Ok(false)
    }

    fn cancel(&mut self, token: u64) {
        let pool = &self.pool;
        let mut state = pool.lock();
        // What a worker has begun can't be withdrawn.
        let index = state.jobs.iter().position(|job| job.token == token);
        if index.and_then(|index| state.jobs.remove(index)).is_some() {
            pool.jobs.fetch_sub(1, Ordering::Release);
            pool.answer(&mut state, KernelAnswer { token, raw: -libc::ECANCELED });
        }
    }

    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        if sleep == Sleep::UntilAnswered && !self.has_answers() {
            self.pool.carry_one();
        }
        self.pool.hand_over();
        let is_to_wait = |state: &mut PoolState| state.answers.is_empty() && state.unanswered > 0;
        self.pool.sleep(sleep, is_to_wait).take_answers(answers);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.jobs.clear();
        state.is_closing = true;
        let workers = std::mem::take(&mut state.workers);
        drop(state);
        self.pool.work.notify_all();
        for worker in workers {
            // A worker that panicked is past touching memory; there is nothing to add.
            let _ = worker.join();
        }
    }
}
