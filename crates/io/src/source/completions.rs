//! Requests in flight of a source, and the completions that were not collected. A *source* is a
//! file that the program itself provides. A *fetch* takes its bytes for one request.

use std::collections::BTreeMap;
use std::sync::Arc;

use readpath_core::request::{Completion, DeviceRequest, Outcome, RequestId};
use readpath_core::unit::Time;

use super::request::Request;
use crate::os::clock::Clock;
use crate::os::sync::{Condvar, Mutex, MutexGuard};
use crate::storage::Sleep;

/// State shared by a storage, its sleeper and the fetches.
pub(super) struct Completions {
    /// Stamps the completions.
    clock: Clock,
    state: Mutex<State>,
    /// Signals a completion, or a wake-up, to the one thread that sleeps.
    signal: Condvar,
}

/// State of a storage under its lock.
#[derive(Default)]
pub(super) struct State {
    /// Requests that have not started.
    pub(super) queued: Vec<(DeviceRequest, Arc<Request>)>,
    /// Submitted requests without a completion, including the queued ones.
    pub(super) in_flight: BTreeMap<RequestId, Arc<Request>>,
    /// Completions that were not collected.
    pub(super) completed: Vec<Completion>,
    /// True after `wake`, until the sleeper has ended a sleep and cleared it.
    pub(super) is_wake_pending: bool,
}

impl Completions {
    /// The state of a storage without requests.
    pub(super) fn new(clock: Clock) -> Completions {
        Completions { clock, state: Mutex::new(State::default()), signal: Condvar::new() }
    }

    /// Locks the state.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    /// Adds the completion of a request. The caller has [ended](Request::end) it, so that its
    /// memory is no longer used, and calls this once.
    pub(super) fn add(&self, id: RequestId, outcome: Outcome) {
        let now = self.clock.now();
        let mut state = self.lock();
        state.in_flight.remove(&id);
        state.completed.push(Completion::at(now, id, outcome));
        drop(state);
        self.signal.notify_one();
    }

    /// Ends the present sleep, or else the next one.
    pub(super) fn wake(&self) {
        self.lock().is_wake_pending = true;
        self.signal.notify_one();
    }

    /// Sleeps until there is a completion, or `must_end` returns true, as long as `sleep` allows.
    /// The lock is free during the sleep. Returns the locked state, with the completions still in
    /// it. [`wake`](Completions::wake) ends the sleep only if `must_end` checks for it.
    pub(super) fn sleep(
        &self,
        sleep: Sleep,
        must_end: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let must_wait = |state: &mut State| state.completed.is_empty() && !must_end(state);
        let mut state = self.lock();
        let deadline = match sleep {
            Sleep::Never => return state,
            Sleep::AtMost(timeout) => Some(self.clock.now() + Time(timeout.as_nanos() as u64)),
            Sleep::UntilAnswered => None,
        };
        while must_wait(&mut state) {
            state = match deadline {
                None => self.signal.wait(state).expect("no thread panics under the lock"),
                Some(deadline) if self.clock.now() >= deadline => break,
                Some(deadline) => {
                    let left = self.clock.until(deadline);
                    self.signal.wait_timeout(state, left).expect("no thread panics under it").0
                }
            };
        }
        state
    }
}
