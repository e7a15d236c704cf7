//! The engine's lock. Each critical section ends in the same way. Dropping the guard releases the
//! lock first. After that it hands submitted requests to the kernel, wakes waiting threads, and
//! drops values whose drop makes a system call or runs foreign code. These are the *deferred*
//! actions, which code under the lock has only recorded.
//!
//! The *leader* is the thread that sleeps in the storage for all waiting threads. The *reactor* is
//! the thread that leads for tasks.

use std::ops::{Deref, DerefMut};

use super::Engine;
use super::in_flight::{DeferredDrop, Parked};
use super::state::EngineState;
use crate::os::sync::MutexGuard;
use crate::os::thread::run_contained;

/// Guard of the engine's state. A thread never sleeps with this lock held.
pub(crate) struct EngineGuard<'e> {
    engine: &'e Engine,
    /// Present until the guard is dropped.
    state: Option<MutexGuard<'e, EngineState>>,
    /// True if the thread was panicking when it took the lock.
    was_panicking: bool,
}

impl<'e> EngineGuard<'e> {
    /// Wraps the locked state of an engine.
    pub(super) fn new(engine: &'e Engine, state: MutexGuard<'e, EngineState>) -> EngineGuard<'e> {
        EngineGuard { engine, state: Some(state), was_panicking: std::thread::panicking() }
    }

    /// Releases and takes the lock again if wake-ups are deferred, so that they happen before the
    /// holder goes on, which may sleep. The other deferred actions are then performed too; without
    /// a wake-up they stay deferred.
    pub(super) fn relock(self) -> EngineGuard<'e> {
        let has_wake_ups = !self.in_flight.deferred.to_wake.is_empty();
        if !has_wake_ups {
            return self;
        }
        let engine = self.engine;
        drop(self);
        engine.lock()
    }

    /// Releases the lock before a sleep in the storage. The sleep also hands the requests to the
    /// kernel, so the drop of this guard does not.
    pub(super) fn unlock_to_sleep(mut self) {
        self.in_flight.deferred.has_unsubmitted_requests = false;
    }

    /// Returns the mutex guard alone, to wait for a condition variable. No action may be deferred:
    /// it would wait for the end of that sleep, which may have no limit.
    pub(super) fn into_guard(mut self) -> MutexGuard<'e, EngineState> {
        debug_assert!(!self.in_flight.deferred.has_actions());
        self.state.take().expect("the guard has the state until it is dropped")
    }
}

impl Deref for EngineGuard<'_> {
    type Target = EngineState;

    #[inline]
    /// Returns the locked state.
    fn deref(&self) -> &EngineState {
        self.state.as_ref().expect("the guard has the state until it is dropped")
    }
}

impl DerefMut for EngineGuard<'_> {
    #[inline]
    /// Returns the locked state for changes.
    fn deref_mut(&mut self) -> &mut EngineState {
        self.state.as_mut().expect("the guard has the state until it is dropped")
    }
}

impl Drop for EngineGuard<'_> {
    /// Releases the lock, and then performs the deferred actions. Ends the process if the thread
    /// has panicked under the lock, as in a policy of another crate: the panic hook has reported
    /// it. The state is then unknown, and readers that wait for this thread would wait for ever. A
    /// run of a simulation reports the panic.
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        if cfg!(not(simulation)) && std::thread::panicking() && !self.was_panicking {
            std::process::abort();
        }
        // Each flag and list is taken under the lock, and acted on after its release.
        let must_wake_reactor = state.take_reactor_wake();
        let deferred = &mut state.in_flight.deferred;
        let has_unsubmitted_requests = std::mem::take(&mut deferred.has_unsubmitted_requests);
        let must_wake_leader = std::mem::take(&mut deferred.must_wake_leader);
        let is_memory_check_due = std::mem::take(&mut deferred.is_memory_check_due);
        let to_wake = std::mem::take(&mut deferred.to_wake);
        let drops = std::mem::take(&mut deferred.drops);
        let wants_huge_pages = std::mem::take(&mut deferred.wants_huge_pages);
        drop(state);
        if wants_huge_pages {
            // Before the first large request fills its frames.
            self.engine.frame_cache.use_huge_pages();
        }
        if has_unsubmitted_requests {
            // The leader meets and reports any error of this call.
            self.engine.sleeper.submit_queued();
        }
        if !to_wake.is_empty() {
            to_wake.into_iter().for_each(Parked::wake);
        }
        if must_wake_reactor {
            self.engine.reactor_wake.notify_one();
        }
        if must_wake_leader {
            self.engine.sleeper.wake();
        }
        if !drops.is_empty() {
            drops.into_iter().for_each(DeferredDrop::drop_contained);
        }
        if is_memory_check_due {
            // Takes the lock again, so it comes last.
            self.engine.adapt_memory();
        }
    }
}

impl Parked {
    /// Wakes the thread or the task. A panic of the task's waker is contained.
    fn wake(self) {
        match self {
            Parked::Thread(thread) => thread.unpark(),
            Parked::Task(waker) => run_contained(|| waker.wake()),
        }
    }
}

impl DeferredDrop {
    /// Drops the value. A panic of its foreign code is contained.
    fn drop_contained(self) {
        run_contained(|| drop(self));
    }
}
