//! Locks, condition variables, threads and clock of the engine: the standard library's.
//!
//! In the unpublished crate `readpath-dst` (`cfg(simulation)`) they are the simulation's. They fall
//! back to the standard library on threads without a simulation. Otherwise this file is a list of
//! names without cost.

#[cfg(simulation)]
pub(crate) use crate::simulation::channels::{Receiver, SyncSender, sync_channel};
#[cfg(simulation)]
pub(crate) use crate::simulation::primitives::{
    Condvar, JoinHandle, Mutex, MutexGuard, Thread, current, now, park_timeout, preemption_point,
    processor_count, simulated_random, spawn, thread_number,
};

#[cfg(not(simulation))]
pub(crate) use real::*;

#[cfg(not(simulation))]
mod real {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    pub(crate) use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread::{JoinHandle, Thread, current, park_timeout};

    pub(crate) use crate::os::thread::spawn;

    /// Present time.
    #[inline(always)]
    pub(crate) fn now() -> Instant {
        Instant::now()
    }

    /// Random number from the seed of a simulation. Always `None` here: there is no simulation.
    #[inline(always)]
    pub(crate) fn simulated_random() -> Option<u32> {
        None
    }

    /// Preemption point of the simulation; no operation outside it.
    #[inline(always)]
    pub(crate) fn preemption_point() {}

    /// Number of processors that the first calling thread may run on, by one system call; 1 if the
    /// system does not report it. Later calls return the same number. The standard library would
    /// also check quotas, in a dozen calls.
    pub(crate) fn processor_count() -> usize {
        // 0 before the first call.
        static CACHED_COUNT: AtomicUsize = AtomicUsize::new(0);
        if CACHED_COUNT.load(Ordering::Relaxed) == 0 {
            let found = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
            CACHED_COUNT.store(found.max(1) as usize, Ordering::Relaxed);
        }
        CACHED_COUNT.load(Ordering::Relaxed)
    }

    /// Number of a simulated thread. Always `None` here: there is no simulation.
    #[inline(always)]
    pub(crate) fn thread_number() -> Option<usize> {
        None
    }
}
