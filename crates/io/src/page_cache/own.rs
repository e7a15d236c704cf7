//! The engine under the public API: one machine, one storage and one cache, shared by any number of
//! threads.
//!
//! The *machine* is the state machine of the cache: it decides on requests, frames and evictions. A
//! *frame* is memory for one page. A *completion* is the storage's answer to a request. To *take
//! in* a completion is to pass it to the machine. A *queue* has the reads of one thread, task or
//! batch, in flight or completed.
//!
//! A read whose pages are all cached copies from the [frame cache](frame_cache) and never enters
//! the engine. Any other read takes the lock of the [state], starts, and then *waits* (see
//! [pending_read]). A waiting thread becomes the *leader* if there is none. The leader sleeps
//! in the storage without the lock (for AIO: in `poll`). It takes in all completions and wakes
//! exactly the threads and tasks whose reads are done. Once its own read is done, the leader wakes
//! one waiting thread to lead. A thread that reads alone is therefore woken directly by the device.
//!
//! A leader may be stopped, or may get no processor. A thread that has waited behind it for some
//! milliseconds checks for completions that the leader does not take in. It takes them in and
//! becomes the leader. An idle engine has no thread in the storage and uses no processor time.
//!
//! Futures have no thread that could lead. The first future starts the *reactor*, a thread that
//! leads whenever futures wait and no other thread leads. Otherwise it sleeps on a condition
//! variable.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use readpath_core::machine::Machine;

use crate::backend::BackendError;
use crate::os::clock::Clock;
use crate::os::sync::{Condvar, JoinHandle, Mutex, current, now, park_timeout, spawn};
use crate::os::thread::future_thread_error;
use crate::page_cache::kernel::{FilePages, PathPages};
use crate::source::direct::DirectCounters;
use crate::storage::{Sleep, Sleeper};
use crate::target::identity::Identity;
use crate::target::{BufferedBecause, Mode};

mod atomics;
pub(crate) mod copy_out;
pub(crate) mod elastic_memory;
pub(crate) mod engine_guard;
#[cfg(test)]
mod fault_tests;
pub(crate) mod frame_cache;
mod handle;
pub(crate) mod in_flight;
mod invalidation;
pub(crate) mod lazy_engine;
#[cfg(simulation)]
#[path = "../../../dst/src/leak_check.rs"]
mod leak_check;
pub(crate) mod page_index;
pub(crate) mod pending_read;
pub(crate) mod read_bytes;
pub(crate) mod read_counters;
pub(crate) mod reader_slots;
#[cfg(test)]
mod stalled_thread_tests;
pub(crate) mod state;
pub(crate) mod storage_backend;

use elastic_memory::Elastic;
use engine_guard::EngineGuard;
use frame_cache::FrameCache;
pub(crate) use handle::Handle;
use in_flight::{InFlightId, Parked, QueueId};
pub(crate) use lazy_engine::LazyEngine;
use state::EngineState;
use storage_backend::{StorageBackend, StorageFile};

/// Reason for which the lock is never poisoned.
const POISON: &str = "the engine's own code doesn't panic under its lock";

/// Initial and longest wait behind a leader before a waiting thread checks for completions. The
/// longest wait also bounds one sleep of a leader. Most devices answer within the initial wait, and
/// then the check costs nothing.
const IDLE_TIMEOUT: Duration = Duration::from_millis(4);
const IDLE_TIMEOUT_MAX: Duration = Duration::from_millis(64);

/// Time after which a thread stops waiting for a request that another thread executes, and reads
/// the bytes itself. The other thread is then stopped or gets no processor.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);

/// One cache over one storage.
pub(crate) struct Engine {
    // Dropped before the frame cache, because the storage writes to the frames.
    state: Mutex<EngineState>,
    pub(crate) frame_cache: Arc<FrameCache>,
    /// Sleeps for completions without the lock.
    sleeper: Arc<dyn Sleeper>,
    /// Clock of the machine and the storage.
    pub(crate) clock: Clock,
    /// Largest read of the machine in bytes. Larger reads are split.
    pub(crate) read_bytes_max: u64,
    /// True if a thread may execute the request that it waits for.
    can_execute_inline: bool,
    /// True if the storage is files of the system, of which any thread can read a part itself.
    has_files: bool,
    /// Signals the reactor that a future waits or that the engine closes.
    reactor_wake: Condvar,
    /// Thread that leads for futures; `None` before the first future.
    reactor: Mutex<Option<JoinHandle<()>>>,
    /// Counters of the fetches past the cache.
    pub(crate) direct_counters: DirectCounters,
    /// Adapts the size of the memory to the spare memory of the system; `None` for a fixed size.
    elastic: Option<Elastic>,
}

/// Upper limit of one read of the machine, for any memory size: four of the largest requests.
pub(crate) const READ_BYTES_MAX: u64 = 16 << 20;

/// Result of [`Engine::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// This read is done, successful or not. It has left its queue: the caller takes its result and
    /// releases it.
    Done(InFlightId),
    /// The storage has failed and executes no more requests.
    Failed(BackendError),
    /// Threads that execute requests are stalled. The reads stay in the queue.
    Stalled,
}

/// An open file, shared by all its handles. Each handle knows the machine's identifier of the file.
pub(crate) struct OpenFile {
    /// Length at opening.
    pub(crate) bytes: u64,
    /// I/O mode as the program sees it.
    pub(crate) mode: Mode,
    /// The storage's view of the file, from which it can be opened again.
    pub(crate) storage_file: StorageFile,
    /// Version of the file.
    pub(crate) identity: Identity,
    /// Location of its pages, by the page cache of the path.
    pub(crate) pages: FilePages,
    /// True if the own cache may contain pages of the file.
    pub(crate) has_pages: AtomicBool,
}

impl OpenFile {
    /// Creates the file for a path with this page cache. `file_number` is the path's number of the
    /// file.
    pub(crate) fn from_storage_file(
        storage_file: StorageFile,
        identity: Identity,
        path_pages: &PathPages,
        file_number: u32,
    ) -> OpenFile {
        let pages = path_pages.new_file_pages(storage_file.local(), file_number);
        // Reads of a file in the kernel page cache use direct I/O only after a failure there.
        let mode = match storage_file.mode() {
            Mode::Direct if pages.kernel_file().is_some() => Mode::Buffered(BufferedBecause::Kept),
            mode => mode,
        };
        OpenFile {
            bytes: storage_file.bytes(),
            mode,
            storage_file,
            identity,
            pages,
            has_pages: AtomicBool::new(false),
        }
    }
}

impl Engine {
    /// Creates an engine of `machine` over `storage`, whose completions `sleeper` waits for. The
    /// machine's frames are in `frame_cache`, and its times are of `clock`.
    pub(crate) fn new(
        machine: Machine,
        storage: StorageBackend,
        sleeper: Arc<dyn Sleeper>,
        frame_cache: Arc<FrameCache>,
        clock: Clock,
    ) -> Engine {
        // Half of the memory, so that two large reads can be in flight.
        let read_bytes_max = (machine.read_bytes_max() / 2).min(READ_BYTES_MAX);
        let page_bytes = readpath_core::unit::PAGE_BYTES;
        let can_execute_inline = storage.can_execute_inline();
        let has_files = matches!(storage, StorageBackend::Files(_));
        Engine {
            state: Mutex::new(EngineState::new(machine, storage, Arc::clone(&frame_cache), clock)),
            can_execute_inline,
            has_files,
            frame_cache,
            sleeper,
            clock,
            // Whole pages, and at least one.
            read_bytes_max: (read_bytes_max / page_bytes).max(1) * page_bytes,
            reactor_wake: Condvar::new(),
            reactor: Mutex::default(),
            direct_counters: DirectCounters::default(),
            elastic: None,
        }
    }

    /// Returns the engine with this elastic memory, or with memory of fixed size for `None`.
    pub(crate) fn with_memory(mut self, elastic: Option<Elastic>) -> Engine {
        if let Some(elastic) = &elastic {
            self.state.get_mut().expect(POISON).memory_check_bytes = elastic.first_check_bytes();
        }
        self.elastic = elastic;
        self
    }

    /// Locks the state. A thread never sleeps with this lock held.
    pub(crate) fn lock(&self) -> EngineGuard<'_> {
        EngineGuard::new(self, self.state.lock().expect(POISON))
    }

    /// Waits until a read of `queue` is done or the storage fails. Meanwhile it executes pooled
    /// transfers, and leads if there is no leader. The caller holds the lock, and the queue has at
    /// least one read that was not taken. Returns the lock, which is free during a sleep. If
    /// `ends_when_stalled` is true, the wait ends with [`WaitOutcome::Stalled`] when threads that
    /// execute requests are stalled for [`STALL_TIMEOUT`].
    pub(crate) fn wait<'a>(
        &'a self,
        mut state: EngineGuard<'a>,
        queue: QueueId,
        ends_when_stalled: bool,
    ) -> (EngineGuard<'a>, WaitOutcome) {
        let mut idle_timeout = IDLE_TIMEOUT;
        let mut wait_start: Option<Instant> = None;
        loop {
            match state.in_flight.pop_done_or_error(queue) {
                Some(Ok(id)) => {
                    // This thread may have led until now, and waits no more.
                    state.in_flight.wake_next_leader();
                    return (state, WaitOutcome::Done(id));
                }
                Some(Err(error)) => return (state, WaitOutcome::Failed(error)),
                None => {}
            }
            if ends_when_stalled && state.in_flight.inline_requests_in_flight > 0 {
                // An *inline* request is executed by a waiting thread. The time counts from the
                // first check that found one, even if it has ended since and another one follows.
                let wait_start = *wait_start.get_or_insert_with(now);
                if now().duration_since(wait_start) >= STALL_TIMEOUT {
                    return (state, WaitOutcome::Stalled);
                }
            }
            // A *pooled* transfer waits for a thread of the backend, or for this one.
            if self.sleeper.has_pooled_transfer() {
                state = self.execute_pooled_transfer(state);
            } else if state.has_leader() {
                state.in_flight.park(queue, Parked::Thread(current()));
                drop(state);
                let park_start = now();
                park_timeout(idle_timeout);
                // Judged by the time, because the call does not report its reason to return.
                let was_unparked = now().duration_since(park_start) < idle_timeout;
                if !was_unparked {
                    // The leader may be stalled: receive answers that only a system call brings.
                    self.sleeper.drain_kernel_answers();
                }
                state = self.lock();
                state.in_flight.unpark(queue);
                if !was_unparked {
                    idle_timeout = (2 * idle_timeout).min(IDLE_TIMEOUT_MAX);
                    // If there are completions, the leader is stalled and loses its role.
                    state.replace_stalled_leader();
                }
            } else {
                state = self.lead(state, Some(queue));
            }
        }
    }

    /// Executes a transfer that needs a thread on this thread, so that no worker thread has to be
    /// woken. Then takes in the completions. The lock is free meanwhile.
    fn execute_pooled_transfer<'a>(&'a self, state: EngineGuard<'a>) -> EngineGuard<'a> {
        drop(state);
        let had_no_answer = self.sleeper.execute_pooled_transfer();
        let mut state = self.lock();
        // `None`: another thread has taken the transfer.
        if let Some(had_no_answer) = had_no_answer {
            // True: no answer was there at the start, so all completions have just arrived.
            state.collect_completions(Ok(had_no_answer));
        }
        // Wakes the threads and tasks of the reads that are done now.
        state.relock()
    }

    /// Makes this thread the leader, sleeps once in the storage without the lock, and takes in the
    /// completions. `queue` is the queue that the thread waits for, and `None` for the reactor. The
    /// sleep ends at the latest at the `deadline`, the time of the machine's next timed work, or
    /// after [`IDLE_TIMEOUT_MAX`].
    fn lead<'a>(&'a self, mut state: EngineGuard<'a>, queue: Option<QueueId>) -> EngineGuard<'a> {
        // The *term* is the number of this lead: `end_lead` does not end a successor's.
        let (term, deadline) = state.become_leader(queue);
        // A former leader that was only slow may sleep next to its successor. A wake-up call may
        // then end the sleep of the wrong thread, so every sleep is bounded.
        let sleep_time = deadline.map_or(IDLE_TIMEOUT_MAX, |deadline| self.clock.until(deadline));
        state.unlock_to_sleep();
        let sleep_result = self.sleeper.sleep(Sleep::AtMost(sleep_time.min(IDLE_TIMEOUT_MAX)));
        let mut state = self.lock();
        state.end_lead(term, sleep_result);
        if queue.is_none() && !state.in_flight.is_reactor_due() {
            // The reactor stops leading, and threads may still wait.
            state.in_flight.wake_next_leader();
        }
        // Wakes the threads and tasks of the reads that are done now.
        state.relock()
    }

    /// Starts the reactor thread if it does not run.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn start_reactor(self: &Arc<Engine>) -> std::io::Result<()> {
        let mut reactor = self.reactor.lock().expect("nothing panics under this lock");
        if reactor.is_none() {
            let engine = Arc::clone(self);
            let thread = spawn("readpath-react", move || engine.run_reactor());
            *reactor = Some(thread.map_err(|error| future_thread_error(&error))?);
        }
        Ok(())
    }

    /// Main loop of the reactor: leads while futures wait and no other thread leads, and otherwise
    /// sleeps. While another thread leads for them, checks now and then for completions that it
    /// does not take in, because it may be stalled. Ends when the engine closes.
    fn run_reactor(&self) {
        let mut state = self.lock();
        while !state.is_closing {
            if state.in_flight.is_reactor_due() {
                let no_queue = None;
                state = self.lead(state, no_queue);
            } else if state.in_flight.deferred.has_actions() {
                // The drop performs the deferred actions, which must precede a sleep. Meanwhile
                // other threads may change the state.
                drop(state);
                state = self.lock();
            } else if state.in_flight.has_tasks() {
                // Another thread leads, and is watched.
                let guard = state.into_guard();
                let wait_result = self.reactor_wake.wait_timeout(guard, IDLE_TIMEOUT_MAX);
                let (guard, timeout_result) = wait_result.expect(POISON);
                state = EngineGuard::new(self, guard);
                if timeout_result.timed_out() {
                    // Without the lock, because receiving is a system call.
                    drop(state);
                    self.sleeper.drain_kernel_answers();
                    state = self.lock();
                    state.replace_stalled_leader();
                    state = state.relock();
                }
            } else {
                // No future waits.
                state.is_reactor_idle = true;
                let guard = self.reactor_wake.wait(state.into_guard()).expect(POISON);
                state = EngineGuard::new(self, guard);
            }
        }
    }

    /// Ends the reactor, which keeps a reference to the engine, and waits for its thread. No effect
    /// if none was started.
    pub(crate) fn close(&self) {
        let reactor = self.reactor.lock().expect("nothing panics under this lock").take();
        let Some(reactor) = reactor else { return };
        self.lock().is_closing = true;
        // The reactor sleeps on the condition variable, or as the leader in the storage.
        self.reactor_wake.notify_one();
        self.sleeper.wake();
        // The reactor may itself drop the engine's owner, and cannot wait for itself.
        if reactor.thread().id() != current().id() {
            // The panic hook has already reported a panic of the reactor.
            let _ = reactor.join();
        }
    }
}
