//! State that files and memory share: requests, frames, and the readers that wait for memory.

use alloc::collections::VecDeque;

use super::frames::Frames;
use super::queue::{RequestQueue, Waiter};

/// State shared by reads and faults.
pub(super) struct SharedState {
    /// Requests on their way to the device, with the evidence for the policies and the counters.
    pub(super) queue: RequestQueue,
    /// The cache of pages, and the budget of its frames.
    pub(super) frames: Frames,
    /// Reads and faults that wait for memory, in order of arrival.
    pub(super) waiting: VecDeque<MemoryWaiter>,
}

/// A read or a fault that waits for memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryWaiter {
    /// The read or fault.
    pub(super) waiter: Waiter,
    /// Number of pages of the budget that it needs to begin.
    pub(super) needed_pages: u64,
}
