//! Tasks and clock of a store.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::future::BoxFuture;

/// Runs the fetches of a store, and measures their time.
///
/// Fetches are tasks of their own, so that prefetch goes on while no reader polls, and so that a
/// dropped reader ends no fetch that others wait for.
pub trait Runtime: Debug + Send + Sync + 'static {
    /// Time since any fixed point. It must not go backwards.
    fn now(&self) -> Duration;

    /// Time since the Unix epoch, by the clock of the system. Versions that only a time of
    /// modification distinguishes are compared with it.
    fn unix_time(&self) -> Duration;

    /// Runs a task to its end, concurrently with all others. May be called on any thread. A task
    /// that is dropped before its end, as when the runtime shuts down, fails the reads that wait
    /// for it.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

/// Tasks on a runtime of tokio, and the clock of tokio, which tests can pause.
#[cfg(feature = "tokio")]
#[derive(Clone, Debug)]
pub struct TokioRuntime {
    handle: tokio::runtime::Handle,
    /// The fixed point of `now`.
    start: tokio::time::Instant,
}

#[cfg(feature = "tokio")]
impl TokioRuntime {
    /// Uses the runtime of the caller.
    ///
    /// # Panics
    /// The caller does not run in a runtime of tokio.
    pub fn current() -> TokioRuntime {
        TokioRuntime::new(tokio::runtime::Handle::current())
    }

    /// Uses the runtime of this handle.
    pub fn new(handle: tokio::runtime::Handle) -> TokioRuntime {
        TokioRuntime { handle, start: tokio::time::Instant::now() }
    }
}

#[cfg(feature = "tokio")]
impl Runtime for TokioRuntime {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "a runtime is the source of time")]
    fn unix_time(&self) -> Duration {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.handle.spawn(task);
    }
}
