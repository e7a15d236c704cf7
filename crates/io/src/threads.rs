//! A pool of threads, each of which carries one transfer at a time with
//! `preadv(2)` or `pwritev(2)`.
//!
//! It is the reference for the ring, and the way where io_uring is forbidden.
//! It sleeps where the ring sleeps in the kernel: on a condition, until an
//! answer is there or the time is up.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use readpath_core::request::Op;

use crate::backend::{Answer, Backend, BackendError, Sleep, Sleeper, Transfer, carry};
use crate::thread;

/// More threads than this don't carry more: each is a sleeping system call.
const THREADS_MAX: u32 = 64;

/// A transfer of more pieces than this makes its list longer, once.
const PIECES: usize = 4;

/// The thread backend.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// There is a job, or the pool closes; the workers wait for it.
    work: Condvar,
    /// There is an answer; the owner waits for it.
    answered: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    answers: Vec<Answer>,
    /// Lists of pieces for the next jobs, so that none is allocated for a transfer.
    lists: Vec<Vec<libc::iovec>>,
    /// Transfers queued whose answers have not been taken.
    unanswered: u32,
    /// Somebody has called `wake`, and nobody has woken up by it yet.
    is_woken: bool,
    is_closing: bool,
    bell: Option<OwnedFd>,
}

struct Job {
    token: u64,
    fd: RawFd,
    op: Op,
    offset: u64,
    segments: Vec<libc::iovec>,
}

// SAFETY: the addresses in the lists are not looked at between jobs; for those in
// jobs, as below.
unsafe impl Send for State {}

// SAFETY: the pieces of memory stay valid, and nobody else uses them, until
// the job is answered (the contract of `Backend::queue`), on whatever thread.
unsafe impl Send for Job {}

impl State {
    /// Keeps the list of a job that is over.
    fn take_back(&mut self, job: Job) {
        let mut list = job.segments;
        list.clear();
        self.lists.push(list);
    }
}

impl Threads {
    /// A pool for `depth` transfers at once.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub(crate) fn new(depth: u32) -> Result<Threads, BackendError> {
        let room = depth as usize;
        let state = State {
            jobs: VecDeque::with_capacity(room),
            answers: Vec::with_capacity(room),
            lists: (0..depth).map(|_| Vec::with_capacity(PIECES)).collect(),
            ..State::default()
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            answered: Condvar::new(),
        });
        let mut pool = Threads { shared, workers: Vec::new() };
        for index in 0..depth.clamp(1, THREADS_MAX) {
            let shared = Arc::clone(&pool.shared);
            let worker = thread::spawn(&format!("readpath-io-{index}"), move || work(&shared));
            let worker = worker.map_err(|error| BackendError::NoThread {
                errno: error.raw_os_error().unwrap_or(0),
            })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Has the eventfd `bell` written to whenever an answer comes.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn set_bell(&self, bell: BorrowedFd<'_>) -> Result<(), BackendError> {
        let refused = |error: std::io::Error| BackendError::Exchange {
            errno: error.raw_os_error().unwrap_or(0),
        };
        self.shared.lock().bell = Some(bell.try_clone_to_owned().map_err(refused)?);
        Ok(())
    }

    /// What another thread sleeps on for the answers.
    pub(crate) fn sleeper(&self) -> ThreadsSleeper {
        ThreadsSleeper { shared: Arc::clone(&self.shared) }
    }
}

/// Sleeps for the answers of a pool.
pub(crate) struct ThreadsSleeper {
    shared: Arc<Shared>,
}

impl Sleeper for ThreadsSleeper {
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        let is_awaited = sleep != Sleep::Never && self.shared.lock().answers.is_empty();
        let is_to_wait = |state: &mut State| state.answers.is_empty() && !state.is_woken;
        self.shared.sleep(sleep, is_to_wait).is_woken = false;
        Ok(is_awaited)
    }

    fn wake(&self) {
        self.shared.lock().is_woken = true;
        self.shared.answered.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(POISON)
    }

    /// Waits for the workers as long as `is_to_wait` and `sleep` say.
    fn sleep(
        &self,
        sleep: Sleep,
        is_to_wait: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'_, State> {
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

impl Backend for Threads {
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let Transfer { token, fd, op, offset, segments } = transfer;
        let mut state = self.shared.lock();
        let mut list = state.lists.pop().unwrap_or_default();
        list.extend_from_slice(segments);
        state.jobs.push_back(Job { token, fd, op, offset, segments: list });
        state.unanswered += 1;
        drop(state);
        self.shared.work.notify_one();
    }

    fn has_answers(&mut self) -> bool {
        !self.shared.lock().answers.is_empty()
    }

    fn cancel(&mut self, token: u64) {
        let mut state = self.shared.lock();
        // What a worker has begun can't be withdrawn.
        let index = state.jobs.iter().position(|job| job.token == token);
        if let Some(job) = index.and_then(|index| state.jobs.remove(index)) {
            state.take_back(job);
            state.answers.push(Answer { token, raw: -libc::ECANCELED });
        }
    }

    fn exchange(&mut self, sleep: Sleep, answers: &mut Vec<Answer>) -> Result<(), BackendError> {
        let is_to_wait = |state: &mut State| state.answers.is_empty() && state.unanswered > 0;
        let mut state = self.shared.sleep(sleep, is_to_wait);
        state.unanswered -= state.answers.len() as u32;
        answers.append(&mut state.answers);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.jobs.clear();
        state.is_closing = true;
        drop(state);
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked is past touching memory; there is nothing to add.
            let _ = worker.join();
        }
    }
}

/// The life of a worker: takes a job, carries it, answers; ends when the pool closes.
fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            // SAFETY: by the contract of `Backend::queue`, until the answer.
            let raw = unsafe { carry(job.fd, job.op, job.offset, &job.segments) };
            let answer = Answer { token: job.token, raw };
            state = shared.lock();
            state.take_back(job);
            state.answers.push(answer);
            shared.answered.notify_one();
            if let Some(bell) = &state.bell {
                // It is full only if nobody has heard it for 2^64 answers.
                let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
            }
        } else if state.is_closing {
            return;
        } else {
            state = shared.work.wait(state).expect(POISON);
        }
    }
}
