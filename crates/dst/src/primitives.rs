//! Locks, condition variables and threads. Outside a simulation they are the standard library's. In
//! a simulation they belong to its `world`, where the seed decides the next thread to run. There a
//! thread is a *task*, and a *wait key* is the number by which sleeping tasks are woken.

use std::num::NonZero;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::world::{TaskId, World, world};

/// See `std::sync::Mutex`.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    /// The lock of the standard library, which a simulation uses without a wait.
    inner: std::sync::Mutex<T>,
}

/// See `std::sync::MutexGuard`.
pub(crate) struct MutexGuard<'a, T> {
    /// The lock that the guard holds.
    mutex: &'a Mutex<T>,
    /// Present until the drop.
    inner: Option<std::sync::MutexGuard<'a, T>>,
}

/// Reason for which a guard has its inner guard.
const PRESENT: &str = "present until the guard is dropped";

impl<T> Mutex<T> {
    /// See `std::sync::Mutex::new`.
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex { inner: std::sync::Mutex::new(value) }
    }

    /// Takes the lock, and waits until it is free. See `std::sync::Mutex::lock`.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let Some(world) = world() else {
            return match self.inner.lock() {
                Ok(guard) => Ok(self.wrap_guard(guard)),
                Err(poisoned) => Err(PoisonError::new(self.wrap_guard(poisoned.into_inner()))),
            };
        };
        world.preemption_point();
        loop {
            match self.inner.try_lock() {
                Ok(guard) => {
                    world.change_held_locks(1);
                    return Ok(self.wrap_guard(guard));
                }
                // The lock is taken in spite of the panic, which is a failure of the run by itself.
                Err(TryLockError::Poisoned(_)) => self.inner.clear_poison(),
                // Sleeps until the lock is released. Without a timeout (`None`), the result is
                // always true.
                Err(TryLockError::WouldBlock) => drop(world.block(self.address(), None)),
            }
        }
    }

    /// Returns the locked value if the lock is free and not poisoned, and `None` otherwise. Does
    /// not wait.
    pub(crate) fn peek(&self) -> Option<std::sync::MutexGuard<'_, T>> {
        self.inner.try_lock().ok()
    }

    /// See `std::sync::Mutex::get_mut`.
    pub(crate) fn get_mut(&mut self) -> LockResult<&mut T> {
        self.inner.get_mut()
    }

    /// Wraps the guard of the standard library's lock.
    fn wrap_guard<'a>(&'a self, guard: std::sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { mutex: self, inner: Some(guard) }
    }

    /// Address of the lock, which is the wait key of its waiting tasks.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl<T> MutexGuard<'_, T> {
    /// Releases the lock without a switch to another task.
    fn unlock(&mut self, world: &World) {
        if self.inner.take().is_some() {
            world.change_held_locks(-1);
            world.wake_all(self.mutex.address());
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    /// Returns the locked value.
    fn deref(&self) -> &T {
        self.inner.as_ref().expect(PRESENT)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    /// Returns the locked value for changes.
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(PRESENT)
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    /// In a simulation, another task may run after the release.
    fn drop(&mut self) {
        if self.inner.is_some()
            && let Some(world) = world()
        {
            self.unlock(&world);
            world.preemption_point();
        }
    }
}

/// See `std::sync::Condvar`.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    /// The condition variable of the standard library, used outside a simulation.
    inner: std::sync::Condvar,
    /// Gives each condition variable its own address.
    _unique_address: u8,
}

/// See `std::sync::WaitTimeoutResult`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// True if the wait ended by its timeout, and not by a notification.
    pub(crate) fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// See `std::sync::Condvar::new`.
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    /// Waits for a notification. See `std::sync::Condvar::wait`.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        match self.wait_until(guard, None) {
            Ok((guard, _)) => Ok(guard),
            Err(poisoned) => {
                let (guard, _) = poisoned.into_inner();
                Err(PoisonError::new(guard))
            }
        }
    }

    /// Waits for a notification, at most for `timeout`. See `std::sync::Condvar::wait_timeout`.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        self.wait_until(guard, Some(timeout))
    }

    /// Releases the lock, waits for a notification, at most for `timeout`, and takes the lock
    /// again. The result is true after a timeout.
    fn wait_until<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let mutex = guard.mutex;
        // Outside a simulation, the standard library waits; poison is passed on.
        let Some(world) = world() else {
            let inner = guard.inner.take().expect(PRESENT);
            let result = match timeout {
                None => self
                    .inner
                    .wait(inner)
                    .map(|inner| (inner, false))
                    .map_err(|poisoned| PoisonError::new((poisoned.into_inner(), false))),
                Some(timeout) => match self.inner.wait_timeout(inner, timeout) {
                    Ok((inner, result)) => Ok((inner, result.timed_out())),
                    Err(poisoned) => {
                        let (inner, result) = poisoned.into_inner();
                        Err(PoisonError::new((inner, result.timed_out())))
                    }
                },
            };
            let to_result = |(inner, has_timed_out)| {
                (mutex.wrap_guard(inner), WaitTimeoutResult(has_timed_out))
            };
            return result
                .map(to_result)
                .map_err(|poisoned| PoisonError::new(to_result(poisoned.into_inner())));
        };
        // No other task runs between the release and the sleep, so no notification is missed.
        guard.unlock(&world);
        let deadline_ns = timeout.map(|timeout| world.now_ns() + timeout.as_nanos() as u64);
        let has_timed_out = !world.block(std::ptr::from_ref(self).addr(), deadline_ns);
        // It was released above, so that this has no further effect.
        drop(guard);
        let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((guard, WaitTimeoutResult(has_timed_out)))
    }

    /// Wakes one waiting thread. See `std::sync::Condvar::notify_one`.
    pub(crate) fn notify_one(&self) {
        match world() {
            Some(world) => world.wake_one(std::ptr::from_ref(self).addr()),
            None => self.inner.notify_one(),
        }
    }
}

/// See `std::thread::Thread`.
#[derive(Clone, Debug)]
pub(crate) enum Thread {
    /// A thread of the system, outside a simulation.
    Real(std::thread::Thread),
    /// A task of the running simulation.
    Task(TaskId),
}

/// See `std::thread::ThreadId`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ThreadId {
    /// A thread of the system, outside a simulation.
    Real(std::thread::ThreadId),
    /// A task of the running simulation.
    Task(TaskId),
}

impl Thread {
    /// Wakes the parked thread or task. Otherwise its next park returns at once.
    pub(crate) fn unpark(&self) {
        match self {
            Thread::Real(thread) => thread.unpark(),
            Thread::Task(task) => {
                if let Some(world) = world() {
                    world.unpark(*task);
                }
            }
        }
    }

    /// See `std::thread::Thread::id`.
    pub(crate) fn id(&self) -> ThreadId {
        match self {
            Thread::Real(thread) => ThreadId::Real(thread.id()),
            Thread::Task(task) => ThreadId::Task(*task),
        }
    }
}

/// See `std::thread::current`.
pub(crate) fn current() -> Thread {
    world().map_or_else(|| Thread::Real(std::thread::current()), |world| Thread::Task(world.task()))
}

/// See `std::thread::park_timeout`.
pub(crate) fn park_timeout(timeout: Duration) {
    match world() {
        Some(world) => world.park(Some(world.now_ns() + timeout.as_nanos() as u64)),
        None => std::thread::park_timeout(timeout),
    }
}

/// See `std::thread::JoinHandle`.
#[derive(Debug)]
pub(crate) enum JoinHandle<T> {
    /// A thread of the system, outside a simulation.
    Real(std::thread::JoinHandle<T>),
    /// A task of the running simulation, always as `Thread::Task`.
    Task(Thread),
}

impl JoinHandle<()> {
    /// See `std::thread::JoinHandle::thread`.
    pub(crate) fn thread(&self) -> Thread {
        match self {
            JoinHandle::Real(handle) => Thread::Real(handle.thread().clone()),
            JoinHandle::Task(thread) => thread.clone(),
        }
    }

    /// Waits until the thread or task has ended. A panic of a task is no error here, because it has
    /// failed the run already.
    pub(crate) fn join(self) -> std::thread::Result<()> {
        match self {
            JoinHandle::Real(handle) => handle.join(),
            JoinHandle::Task(Thread::Task(task)) => {
                if let Some(world) = world() {
                    world.join(task);
                }
                Ok(())
            }
            JoinHandle::Task(Thread::Real(_)) => unreachable!("a task has no thread of the system"),
        }
    }
}

/// Starts a thread, or a task in a simulation. See the crate's own `thread::spawn`. In a simulation
/// it fails with EAGAIN at the rate that the run sets.
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    match world() {
        Some(world) if world.does_thread_start_fail() => {
            Err(std::io::Error::from_raw_os_error(libc::EAGAIN))
        }
        Some(world) => Ok(JoinHandle::Task(Thread::Task(world.spawn(Box::new(body))))),
        None => crate::os::thread::spawn(name, body).map(JoinHandle::Real),
    }
}

/// Returns the current time.
pub(crate) fn now() -> Instant {
    world().map_or_else(Instant::now, |world| world.now())
}

/// Returns a random number from the seed. `None` outside a simulation.
pub(crate) fn simulated_random() -> Option<u32> {
    world().map(|world| world.random_below(1 << 32) as u32)
}

/// Marks a point at which other threads may run. No effect outside a simulation.
#[inline]
pub(crate) fn preemption_point() {
    if let Some(world) = world() {
        world.preemption_point();
    }
}

/// Number of processors of this process; 4 in a simulation, so that a run depends on its seed
/// alone.
pub(crate) fn processor_count() -> usize {
    match world() {
        Some(_) => 4,
        None => std::thread::available_parallelism().map_or(1, NonZero::get),
    }
}

/// Number of the calling thread in a simulation; otherwise `None`.
#[inline]
pub(crate) fn thread_number() -> Option<usize> {
    world().map(|world| world.task().0 as usize)
}
