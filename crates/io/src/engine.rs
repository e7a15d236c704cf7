//! The engine under the public API: one machine, one storage and one cache,
//! shared by any number of threads.
//!
//! A read that finds everything takes it from the [frame cache](frame_cache) and never comes
//! here. Any other read takes the lock of the [state](state), starts, and then
//! *waits* (see [pending](pending)). What it doesn't carry itself it waits for like this: a thread becomes the
//! *leader* if there is none. The
//! leader sleeps in the storage (for AIO: in `poll`), without the
//! lock; it takes in what is completed for everybody, wakes exactly the threads
//! and tasks whose reads are done, and when its own is among them it wakes one
//! of those that still wait, to lead. A leader may be stopped, or get no processor:
//! who has waited behind it for some milliseconds looks, and if answers lie there that
//! it doesn't come for, takes them in and leads itself. So a thread that reads alone is woken by
//! the device itself, and hands nothing over to anybody. Idle, nobody sleeps in
//! the storage, and nothing uses the processor.
//!
//! Futures have no thread that could lead. The first one starts the *reactor*, a
//! thread that leads whenever futures wait and nobody else does, and sleeps on a
//! condition otherwise.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use readpath_core::machine::Machine;

use crate::backend::BackendError;
use crate::clock::Clock;
use crate::identity::Identity;
use crate::kernel_pages::{KernelCache, KernelPages};
use crate::storage::{Sleep, Sleeper};
use crate::sync::{Condvar, JoinHandle, Mutex, current, now, park_timeout, spawn};
use crate::target::{BufferedBecause, Mode};

pub(crate) mod batches;
pub(crate) mod below;
pub(crate) mod copy;
pub(crate) mod elastic;
#[cfg(test)]
mod faults;
pub(crate) mod frame_cache;
mod handle;
#[cfg(test)]
mod held_up;
pub(crate) mod in_flight;
pub(crate) mod index;
pub(crate) mod locked;
pub(crate) mod opening;
pub(crate) mod owner;
pub(crate) mod pending;
pub(crate) mod read_counters;
pub(crate) mod readers;
#[cfg(any(test, feature = "simulation"))]
mod settled;
mod stale;
pub(crate) mod state;

use below::{Below, Opening};
use elastic::Elastic;
use frame_cache::FrameCache;
pub(crate) use handle::Handle;
use in_flight::{InFlightId, Parked, QueueId};
use locked::Locked;
pub(crate) use owner::LazyEngine;
use state::EngineState;

const POISON: &str = "the engine's own code doesn't panic under its lock";

/// How long one waits behind a leader before looking whether it still does what it is there for, at first
/// and at most; and how long a leader sleeps at most. Most devices have answered before the first look,
/// and then it costs nothing.
const IDLE_TIMEOUT: Duration = Duration::from_millis(4);
const IDLE_TIMEOUT_MAX: Duration = Duration::from_millis(64);

/// Who waits for a request that another thread carries reads for itself after so long: that one is stopped, or
/// gets no processor.
const HELD_UP: Duration = Duration::from_secs(1);

/// One cache over one storage.
pub(crate) struct Engine {
    // Dropped before the frame cache, whose frames its storage fills.
    state: Mutex<EngineState>,
    pub(crate) frame_cache: Arc<FrameCache>,
    sleeper: Arc<dyn Sleeper>,
    pub(crate) clock: Clock,
    /// The most bytes that one read of the machine takes; larger ones are cut.
    pub(crate) read_bytes_max: u64,
    /// Whether a thread carries requests that it waits for by itself.
    lets_carry: bool,
    /// There is something to lead, or the end.
    reactor_called: Condvar,
    reactor: Mutex<Option<JoinHandle<()>>>,
    /// How its memory goes by what there is; none where it stays as it is.
    elastic: Option<Elastic>,
}

/// The most bytes that one read of the machine takes, whatever memory there is: four of the largest requests.
pub(crate) const READ_BYTES_MAX: u64 = 16 << 20;

/// What waiting came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// This read is done.
    Done(InFlightId),
    /// The storage carries nothing any more.
    Failed(BackendError),
    /// A thread that carries a request doesn't come back with it.
    HeldUp,
}

/// A file that is open, under all its handles. What the machine calls it, each handle knows.
pub(crate) struct OpenFile {
    pub(crate) bytes: u64,
    pub(crate) mode: Mode,
    /// What the storage has, to be opened again from.
    pub(crate) opening: Opening,
    pub(crate) identity: Identity,
    pub(crate) kernel_pages: KernelPages,
    /// Whether any of its pages may be in our cache.
    pub(crate) has_pages: AtomicBool,
}

impl OpenFile {
    /// That of a file that is about to be read by a path that does so with the kernel's cache; the path's own number for it is
    /// `number`.
    pub(crate) fn of(
        opening: Opening,
        identity: Identity,
        kernel_cache: &KernelCache,
        number: u32,
    ) -> OpenFile {
        let kernel_pages = KernelPages::of(&opening, number, kernel_cache);
        let mode = match opening.mode() {
            Mode::Direct if kernel_pages.are_kept() => Mode::Buffered(BufferedBecause::Kept),
            mode => mode,
        };
        OpenFile {
            bytes: opening.bytes(),
            mode,
            opening,
            identity,
            kernel_pages,
            has_pages: AtomicBool::new(false),
        }
    }
}

impl Engine {
    /// An engine of `machine` over `files`, whose completions `sleeper` sleeps for.
    pub(crate) fn new(
        machine: Machine,
        files: Below,
        sleeper: Arc<dyn Sleeper>,
        frame_cache: Arc<FrameCache>,
        clock: Clock,
    ) -> Engine {
        // Half of the memory, so that two large reads can take turns.
        let read_bytes_max = (machine.read_bytes_max() / 2).min(READ_BYTES_MAX);
        let page = readpath_core::unit::PAGE_BYTES;
        let lets_carry = files.lets_carry();
        Engine {
            state: Mutex::new(EngineState::new(machine, files, Arc::clone(&frame_cache), clock)),
            lets_carry,
            frame_cache,
            sleeper,
            clock,
            read_bytes_max: (read_bytes_max / page).max(1) * page,
            reactor_called: Condvar::new(),
            reactor: Mutex::default(),
            elastic: None,
        }
    }

    /// The same, with memory that goes by what there is, if it is to.
    pub(crate) fn with_memory(mut self, elastic: Option<Elastic>) -> Engine {
        if let Some(elastic) = &elastic {
            self.state.get_mut().expect(POISON).memory_due_bytes = elastic.first_bytes();
        }
        self.elastic = elastic;
        self
    }

    /// The state, for one caller at a time; never held while anybody sleeps.
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked::new(self, self.state.lock().expect(POISON))
    }

    /// Waits for a read of the queue to be done; the lock is the caller's still. One of the queue must be under
    /// way. With `is_own` one gives up once threads that carry requests hold it up.
    pub(crate) fn wait<'a>(
        &'a self,
        mut state: Locked<'a>,
        queue: QueueId,
        is_own: bool,
    ) -> (Locked<'a>, Waited) {
        let mut idle_timeout = IDLE_TIMEOUT;
        let mut begun: Option<Instant> = None;
        loop {
            match state.in_flight.next_done(queue) {
                Some(Ok(id)) => {
                    state.in_flight.pass_the_lead_on();
                    return (state, Waited::Done(id));
                }
                Some(Err(error)) => return (state, Waited::Failed(error)),
                None => {}
            }
            if is_own && state.in_flight.own_under_way > 0 {
                let begun = *begun.get_or_insert_with(now);
                if now().duration_since(begun) >= HELD_UP {
                    return (state, Waited::HeldUp);
                }
            }
            if self.sleeper.has_work() {
                state = self.work(state);
            } else if state.is_led() {
                state.in_flight.park(queue, Parked::Thread(current()));
                drop(state);
                let parked = now();
                park_timeout(idle_timeout);
                let is_called = now().duration_since(parked) < idle_timeout;
                if !is_called {
                    self.sleeper.look();
                }
                state = self.lock();
                state.in_flight.unpark(queue);
                if !is_called {
                    idle_timeout = (2 * idle_timeout).min(IDLE_TIMEOUT_MAX);
                    state.take_in_for_the_leader();
                }
            } else {
                state = self.lead(state, Some(queue));
            }
        }
    }

    /// Carries a transfer that takes a thread, in place of one that would have to be woken.
    fn work<'a>(&'a self, state: Locked<'a>) -> Locked<'a> {
        drop(state);
        let worked = self.sleeper.work();
        let mut state = self.lock();
        if let Some(is_demand) = worked {
            state.take_in(Ok(is_demand));
        }
        state.again()
    }

    /// Sleeps in the storage for everybody, once, and takes in what is completed.
    fn lead<'a>(&'a self, mut state: Locked<'a>, queue: Option<QueueId>) -> Locked<'a> {
        let (term, deadline) = state.lead(queue);
        // Who was only slow when another took its place sleeps beside that one, and a call to wake up
        // may end the other's sleep alone. So nobody sleeps for long without a look.
        let span = deadline.map_or(IDLE_TIMEOUT_MAX, |deadline| self.clock.until(deadline));
        state.unlock_to_sleep();
        let result = self.sleeper.sleep(Sleep::AtMost(span.min(IDLE_TIMEOUT_MAX)));
        let mut state = self.lock();
        state.led(term, result);
        if queue.is_none() && !state.in_flight.is_reactor_due() {
            // The reactor goes back to sleep; threads may wait still.
            state.in_flight.pass_the_lead_on();
        }
        state.again()
    }

    /// Has a thread lead for futures from now on.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start_reactor(self: &Arc<Engine>) -> std::io::Result<()> {
        let mut reactor = self.reactor.lock().expect("nothing panics under this lock");
        if reactor.is_none() {
            let engine = Arc::clone(self);
            *reactor = Some(spawn("readpath-react", move || engine.react())?);
        }
        Ok(())
    }

    /// The life of the reactor.
    fn react(&self) {
        let mut state = self.lock();
        while !state.is_closing {
            if state.in_flight.is_reactor_due() {
                state = self.lead(state, None);
            } else if state.in_flight.has_tasks() {
                let guard = state.into_guard();
                let waited = self.reactor_called.wait_timeout(guard, IDLE_TIMEOUT_MAX);
                let (guard, timed_out) = waited.expect(POISON);
                state = Locked::new(self, guard);
                if timed_out.timed_out() {
                    drop(state);
                    self.sleeper.look();
                    state = self.lock();
                    state.take_in_for_the_leader();
                    state = state.again();
                }
            } else {
                state.is_reactor_idle = true;
                let guard = self.reactor_called.wait(state.into_guard()).expect(POISON);
                state = Locked::new(self, guard);
            }
        }
    }

    /// Ends the reactor, which holds the engine.
    pub(crate) fn close(&self) {
        let reactor = self.reactor.lock().expect("nothing panics under this lock").take();
        let Some(reactor) = reactor else { return };
        self.lock().is_closing = true;
        self.reactor_called.notify_one();
        self.sleeper.wake();
        if reactor.thread().id() != current().id() {
            // A reactor that panicked has told so; there is nothing to add.
            let _ = reactor.join();
        }
    }
}
