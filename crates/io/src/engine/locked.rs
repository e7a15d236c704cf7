//! The engine's lock. Whatever is done under it ends the same way: once the guard is dropped the lock is free, and
//! only then is handed over what was submitted, woken who waits, and dropped what takes a system call or
//! runs code of others.

use std::ops::{Deref, DerefMut};

use super::Engine;
use super::in_flight::{DeferredDrop, Parked};
use super::state::EngineState;
use crate::sync::MutexGuard;
use crate::thread::contain;

/// The state of an engine, for one caller at a time; never held while anybody sleeps.
pub(crate) struct Locked<'e> {
    engine: &'e Engine,
    /// Present until the guard is dropped.
    state: Option<MutexGuard<'e, EngineState>>,
}

impl<'e> Locked<'e> {
    pub(super) fn new(engine: &'e Engine, state: MutexGuard<'e, EngineState>) -> Locked<'e> {
        Locked { engine, state: Some(state) }
    }

    /// Lets the lock go for a moment, so that what was put off is done, if there is anything.
    pub(super) fn again(self) -> Locked<'e> {
        let is_due = !self.in_flight.deferred.to_wake.is_empty();
        if !is_due {
            return self;
        }
        let engine = self.engine;
        drop(self);
        engine.lock()
    }

    /// Lets the lock go of one who is about to sleep in the storage, which hands over as well.
    pub(super) fn unlock_to_sleep(mut self) {
        self.in_flight.deferred.is_queued = false;
    }

    /// The guard of the mutex alone, for a condition to be waited for: nothing is put off.
    pub(super) fn into_guard(mut self) -> MutexGuard<'e, EngineState> {
        self.state.take().expect("present until the guard is dropped")
    }
}

impl Deref for Locked<'_> {
    type Target = EngineState;

    #[inline]
    fn deref(&self) -> &EngineState {
        self.state.as_ref().expect("present until the guard is dropped")
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut EngineState {
        self.state.as_mut().expect("present until the guard is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        let is_reactor_called = state.call_reactor();
        let deferred = &mut state.in_flight.deferred;
        let is_queued = std::mem::take(&mut deferred.is_queued);
        let is_leader_late = std::mem::take(&mut deferred.is_leader_late);
        let is_memory_due = std::mem::take(&mut deferred.is_memory_due);
        let to_wake = std::mem::take(&mut deferred.to_wake);
        let drops = std::mem::take(&mut deferred.drops);
        let wants_huge_pages = std::mem::take(&mut deferred.wants_huge_pages);
        drop(state);
        if wants_huge_pages {
            // Before anybody fills them.
            self.engine.frame_cache.use_huge_pages();
        }
        if is_queued {
            // What hinders it is met, and told, by the one who leads.
            self.engine.sleeper.hand_over();
        }
        if !to_wake.is_empty() {
            to_wake.into_iter().for_each(Parked::wake);
        }
        if is_reactor_called {
            self.engine.reactor_called.notify_one();
        }
        if is_leader_late {
            self.engine.sleeper.wake();
        }
        if !drops.is_empty() {
            drops.into_iter().for_each(DeferredDrop::drop_quietly);
        }
        if is_memory_due {
            self.engine.adapt_memory();
        }
    }
}

impl Parked {
    fn wake(self) {
        match self {
            Parked::Thread(thread) => thread.unpark(),
            Parked::Task(waker) => contain(|| waker.wake()),
        }
    }
}

impl DeferredDrop {
    fn drop_quietly(self) {
        contain(|| drop(self));
    }
}
