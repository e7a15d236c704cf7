//! A source, a file that the program itself provides, as the storage of a machine.
//!
//! A submitted request waits in a queue until the next sleep, because a source may run any code:
//! it is not called under the engine's lock. A *fetch* is the source's work for one request.
//!
//! Functions with `cfg(inside)` exist only in the crate `readpath-dst`, for tests of this layer.

use std::sync::Arc;

use readpath_core::request::{Completion, DeviceCaps, DeviceError, DeviceRequest, Op};
#[cfg(inside)]
use readpath_core::request::{Outcome, RequestId};
use readpath_core::unit::SECTOR_BYTES;

use super::Source;
use super::completions::Completions;
use super::fetch::Fetch;
use super::request::Request;
use crate::backend::BackendError;
use crate::os::clock::Clock;
use crate::storage::{Sleep, Sleeper, Storage};

/// The file of a source, which executes the machine's requests.
pub(crate) struct SourceStorage {
    shared: Arc<SourceShared>,
    caps: DeviceCaps,
}

/// The source, and its requests.
struct SourceShared {
    source: Arc<dyn Source>,
    /// Length of the file.
    file_bytes: u64,
    /// Requests in flight and completions, also known to the fetches.
    completions: Arc<Completions>,
}

/// Sleeps for the completions of a source.
struct SourceSleeper(Arc<SourceShared>);

impl SourceStorage {
    /// A storage of one file, for several threads, with its sleeper.
    pub(crate) fn new(
        source: Arc<dyn Source>,
        caps: DeviceCaps,
        clock: Clock,
    ) -> (SourceStorage, Arc<dyn Sleeper>) {
        let completions = Arc::new(Completions::new(clock));
        let file_bytes = source.bytes();
        let shared = Arc::new(SourceShared { source, file_bytes, completions });
        let sleeper = Arc::new(SourceSleeper(Arc::clone(&shared)));
        (SourceStorage { shared, caps }, sleeper)
    }
}

impl SourceShared {
    /// Starts the fetches of the queued requests, each cut at the end of the file. A request that
    /// begins there completes at once, as short and without bytes. A write fails: a source is only
    /// read.
    fn start_queued(&self) {
        let file_bytes = self.file_bytes;
        let queued = std::mem::take(&mut self.completions.lock().queued);
        for (DeviceRequest { op, start, sectors, .. }, request) in queued {
            let offset = start * SECTOR_BYTES;
            let end = (offset + u64::from(sectors) * SECTOR_BYTES).min(file_bytes);
            let bytes = end.saturating_sub(offset);
            let fetch = Fetch::new(Arc::clone(&self.completions), request, bytes);
            if op == Op::Write {
                fetch.fail(DeviceError::Refused);
            } else if bytes == 0 {
                fetch.finish();
            } else {
                fetch.start(&*self.source, offset..end);
            }
        }
    }
}

impl Storage for SourceStorage {
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// Queues a request. The next `exchange` or sleep starts its fetch.
    unsafe fn submit(&mut self, request: DeviceRequest, memory: &[libc::iovec]) {
        let bytes = u64::from(request.sectors) * SECTOR_BYTES;
        // SAFETY: the memory is valid until the completion comes out, which follows the end of the
        // request, or until the storage is dropped, which ends it.
        let in_flight = Arc::new(unsafe { Request::new(request.id, bytes, memory) });
        let mut state = self.shared.completions.lock();
        state.in_flight.insert(request.id, Arc::clone(&in_flight));
        state.queued.push((request, in_flight));
    }

    /// Cancels a request at once. Its fetch then has no effect.
    #[cfg(inside)]
    fn cancel(&mut self, id: RequestId) {
        let request = self.shared.completions.lock().in_flight.get(&id).cloned();
        if request.is_some_and(|request| request.end()) {
            self.shared.completions.add(id, Outcome::Failed(DeviceError::Cancelled));
        }
    }

    /// Moves the available completions to `completions`. Queues no request, so the result is false.
    fn collect(&mut self, completions: &mut Vec<Completion>) -> Result<bool, BackendError> {
        completions.append(&mut self.shared.completions.lock().completed);
        Ok(false)
    }

    /// Starts the queued fetches and sleeps for the first completion as `sleep` allows. Does not
    /// sleep if no request is in flight. Moves the completions to `completions`.
    fn exchange(
        &mut self,
        sleep: Sleep,
        completions: &mut Vec<Completion>,
    ) -> Result<(), BackendError> {
        self.shared.start_queued();
        let mut state = self.shared.completions.sleep(sleep, |state| state.in_flight.is_empty());
        completions.append(&mut state.completed);
        Ok(())
    }
}

impl Sleeper for SourceSleeper {
    /// Starts the queued fetches and sleeps until a completion or `wake`, as `sleep` allows.
    /// Returns true if the call was allowed to sleep and no completion was there before: the
    /// present ones have just arrived.
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        self.0.start_queued();
        let waits = sleep != Sleep::Never && self.0.completions.lock().completed.is_empty();
        let mut state = self.0.completions.sleep(sleep, |state| state.is_wake_pending);
        // A call that may not sleep leaves a pending `wake` to the next sleep.
        if sleep != Sleep::Never {
            state.is_wake_pending = false;
        }
        Ok(waits)
    }

    /// Ends the present sleep, or else the next one.
    fn wake(&self) {
        self.0.completions.wake();
    }
}

impl Drop for SourceStorage {
    /// Ends the use of the memory of all requests. Later bytes have no effect.
    fn drop(&mut self) {
        let mut state = self.shared.completions.lock();
        state.queued.clear();
        let in_flight = std::mem::take(&mut state.in_flight);
        drop(state);
        in_flight.values().for_each(|request| _ = request.end());
    }
}
