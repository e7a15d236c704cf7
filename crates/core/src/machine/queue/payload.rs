//! Contents and waiters of requests.
//!
//! A request is one contiguous run of pages of a file, one run of slots of the swap area, or one
//! piece of a direct read or write. If the scheduler merges requests, they are executed together,
//! and each keeps its identifier.

use alloc::vec::Vec;

use crate::cache::FileId;
use crate::machine::{FaultId, ReadId};
use crate::request::{RequestId, slots_to_add};
use crate::unit::PageRange;

/// Purpose of the data of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) enum RequestContent {
    /// Pages of a file, all in flight in the cache.
    Pages {
        /// The file.
        file: FileId,
        /// The pages of the file.
        range: PageRange,
        /// Number of prefetched pages among them.
        ahead_pages: u32,
        /// The pages in flight behind them, during the search for an unreadable page.
        search_tail: SearchTail,
    },
    /// Slots of the swap area. Their pages of memory are in flight in the cache for a read, and
    /// being written for a write.
    Slots {
        /// The slots.
        range: PageRange,
        /// Number of prefetched pages among them.
        ahead_pages: u32,
    },
    /// A piece of a direct transfer, which bypasses the cache.
    Direct {
        /// The transfer, a read or a write.
        read: ReadId,
        /// First byte of the piece, from the start of the transfer.
        offset: u64,
    },
}

/// The pages behind a request, in the search for the first bad page of a failed request. The search
/// reads a part of the failed pages at a time; the pages behind that part stay in flight, and are
/// tried later. Empty for any other request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) struct SearchTail {
    /// The bad page lies before this page (exclusive), in the request or behind it.
    pub(in crate::machine) suspect_end: u64,
    /// End page (exclusive) of the failed request.
    pub(in crate::machine) end: u64,
}

impl SearchTail {
    /// The tail of a request for `range` that is no part of a search: no page is behind it.
    pub(in crate::machine) fn none(range: PageRange) -> SearchTail {
        SearchTail { suspect_end: range.end, end: range.end }
    }
}

impl RequestContent {
    /// Number of prefetched pages in it.
    pub(in crate::machine) fn ahead_pages(self) -> u32 {
        match self {
            RequestContent::Pages { ahead_pages, .. }
            | RequestContent::Slots { ahead_pages, .. } => ahead_pages,
            RequestContent::Direct { .. } => 0,
        }
    }
}

/// A read or a fault that waits for a request, or for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) enum Waiter {
    /// A read of a file.
    Read(ReadId),
    /// A fault on memory (swap).
    Fault(FaultId),
}

/// Data of one request in addition to the data of device and scheduler.
#[derive(Debug)]
struct Payload {
    /// Purpose of its data: pages, slots or a direct transfer.
    content: RequestContent,
    /// Reads and faults that wait for it; always empty for a direct transfer, which its content
    /// names.
    waiters: Vec<Waiter>,
    /// True if it retries a failure, without the scheduler.
    is_retry: bool,
}

/// Data of the open requests, by identifier.
#[derive(Debug, Default)]
pub(super) struct Payloads {
    /// Entry of each request; the entry of an ended one stays until its identifier is reused.
    by_id: Vec<Payload>,
    /// Empty lists of waiters, kept for their capacity.
    spare_lists: Vec<Vec<Waiter>>,
}

impl Payloads {
    /// Stores the content of the request `id`, which was just opened.
    pub(super) fn store(&mut self, id: RequestId, content: RequestContent, is_retry: bool) {
        let waiters = self.spare_lists.pop().unwrap_or_default();
        let payload = Payload { content, waiters, is_retry };
        match self.by_id.get_mut(id.0 as usize) {
            // The identifier is reused: the entry of the ended request is replaced.
            Some(old_payload) => *old_payload = payload,
            // A new identifier is the next number: identifiers are assigned in order.
            None => {
                // Grows by a quarter, as the table of requests does.
                if self.by_id.len() == self.by_id.capacity() {
                    self.by_id.reserve_exact(slots_to_add(self.by_id.len()));
                }
                self.by_id.push(payload);
            }
        }
    }

    /// Takes the content of the request and its waiters, in a list to be returned to
    /// [`recycle_waiters`](Payloads::recycle_waiters).
    pub(super) fn take_content(&mut self, id: RequestId) -> (RequestContent, Vec<Waiter>) {
        let payload = &mut self.by_id[id.0 as usize];
        (payload.content, core::mem::take(&mut payload.waiters))
    }

    /// Keeps the memory of a list of waiters for the next request.
    pub(super) fn recycle_waiters(&mut self, mut waiters: Vec<Waiter>) {
        if waiters.capacity() > 0 {
            waiters.clear();
            self.spare_lists.push(waiters);
        }
    }

    /// Pages, slots or transfer of the request.
    pub(super) fn content(&self, id: RequestId) -> RequestContent {
        self.by_id[id.0 as usize].content
    }

    /// Returns true if the request retries a failed one, without the scheduler. Its completion is
    /// then not reported to the scheduler.
    pub(super) fn is_retry(&self, id: RequestId) -> bool {
        self.by_id[id.0 as usize].is_retry
    }

    /// Returns true if `waiter` is registered for this request itself.
    pub(super) fn has_waiter(&self, id: RequestId, waiter: Waiter) -> bool {
        self.by_id[id.0 as usize].waiters.contains(&waiter)
    }

    /// Adds `waiter` to the waiters of the request.
    pub(super) fn add_waiter(&mut self, id: RequestId, waiter: Waiter) {
        self.by_id[id.0 as usize].waiters.push(waiter);
    }
}
