//! The engine's locks, conditions, sleeping threads and clock: those of the standard library.
//!
//! In tests, and with the feature `simulation`, they are those of the [simulation](crate::simulation), which
//! are the standard library's as long as no simulation runs on the thread. Elsewhere this file is a list of
//! names, and costs nothing.

#[cfg(any(test, feature = "simulation"))]
pub(crate) use crate::simulation::primitives::{
    Condvar, JoinHandle, Mutex, MutexGuard, Thread, any_number, current, now, park_timeout, point,
    processors, spawn, thread_number,
};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use crate::simulation::replies::{Receiver, SyncSender, sync_channel};

#[cfg(not(any(test, feature = "simulation")))]
pub(crate) use real::*;

#[cfg(not(any(test, feature = "simulation")))]
mod real {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    pub(crate) use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread::{JoinHandle, Thread, current, park_timeout};

    pub(crate) use crate::thread::spawn;

    /// The time now.
    #[inline(always)]
    pub(crate) fn now() -> Instant {
        Instant::now()
    }

    /// A number that somebody decides on: nobody does.
    #[inline(always)]
    pub(crate) fn any_number() -> Option<u32> {
        None
    }

    /// A place where other threads may come in between. Nothing needs to be done for that.
    #[inline(always)]
    pub(crate) fn point() {}

    /// How many processors the thread that asked first may run on, as far as the system tells. By one system call: the standard
    /// library looks for quotas too, in a dozen.
    pub(crate) fn processors() -> usize {
        static KNOWN: AtomicUsize = AtomicUsize::new(0);
        if KNOWN.load(Ordering::Relaxed) == 0 {
            let found = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
            KNOWN.store(found.max(1) as usize, Ordering::Relaxed);
        }
        KNOWN.load(Ordering::Relaxed)
    }

    /// A number for the calling thread that is not counted by threads as such: none.
    #[inline(always)]
    pub(crate) fn thread_number() -> Option<usize> {
        None
    }
}
