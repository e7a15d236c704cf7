//! A fetch of a source: its bytes, and the report of its end. A *source* is a file that the program
//! itself provides.

use std::ops::Range;
use std::sync::Arc;

use readpath_core::request::{DeviceError, Outcome};

use super::Source;
use super::completions::Completions;
use super::request::Request;
use crate::os::thread::run_contained;

/// Takes the bytes of one range of a source. It is done once: by [`finish`](Fetch::finish) or
/// [`fail`](Fetch::fail). If it is dropped before, it has failed.
pub struct Fetch {
    /// Receives the end of the fetch.
    completions: Arc<Completions>,
    /// Request whose memory takes the bytes.
    request: Arc<Request>,
    /// Number of bytes of the range. Less than the request's if the file ends before.
    bytes: u64,
    /// Number of bytes that have arrived.
    filled: u64,
    /// True after the end of the fetch.
    is_done: bool,
}

impl Fetch {
    /// A fetch of the first `bytes` bytes of a request.
    pub(super) fn new(completions: Arc<Completions>, request: Arc<Request>, bytes: u64) -> Fetch {
        Fetch { completions, request, bytes, filled: 0, is_done: false }
    }

    /// Has the source start the fetch of this range. A panic of the source is contained: it drops
    /// the fetch, which fails, and the requests behind it start.
    pub(super) fn start(self, source: &dyn Source, range: Range<u64>) {
        run_contained(|| source.fetch(range, self));
    }

    /// Number of bytes that are still missing.
    pub fn missing_bytes(&self) -> u64 {
        self.bytes - self.filled
    }

    /// Stores the next bytes of the range. Returns false if the bytes of this fetch are no longer
    /// needed: the request was cancelled, its direct read ended, or its storage dropped. The
    /// transfer may stop.
    ///
    /// # Panics
    /// There are more bytes than are [missing](Fetch::missing_bytes).
    pub fn fill(&mut self, bytes: &[u8]) -> bool {
        assert!(bytes.len() as u64 <= self.missing_bytes(), "a fetch takes the bytes of its range");
        let is_needed = self.request.fill(bytes, self.filled);
        self.filled += bytes.len() as u64;
        is_needed
    }

    /// Forgets all stored bytes. The next ones are the first of the range.
    pub fn restart(&mut self) {
        self.filled = 0;
    }

    /// Ends the fetch. It fails if bytes are missing ([`DeviceError::Garbled`]). Otherwise the
    /// request is done, or short if the end of the file has cut its range.
    pub fn finish(mut self) {
        let outcome = match self.missing_bytes() {
            0 if self.bytes < self.request.bytes => Outcome::Short { bytes: self.bytes },
            0 => Outcome::Done,
            // Bytes are missing.
            _ => Outcome::Failed(DeviceError::Garbled),
        };
        self.end(outcome);
    }

    /// Ends the fetch with an error, which the readers of the range get.
    pub fn fail(mut self, error: DeviceError) {
        self.end(Outcome::Failed(error));
    }

    /// Reports the outcome, once. No effect if the fetch has ended, or if it is no longer needed
    /// (see [`fill`](Fetch::fill)).
    fn end(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.is_done, true) && self.request.end() {
            self.completions.add(self.request.id, outcome);
        }
    }
}

impl Drop for Fetch {
    /// Fails a fetch that was neither finished nor failed.
    fn drop(&mut self) {
        self.end(Outcome::Failed(DeviceError::Gone));
    }
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Fetch { bytes, filled, .. } = self;
        f.debug_struct("Fetch").field("bytes", bytes).field("filled", filled).finish()
    }
}
