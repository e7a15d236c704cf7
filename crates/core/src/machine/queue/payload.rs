//! What requests carry, and who waits for them.
//!
//! A request is one contiguous run of pages, or one piece of a direct read or write. The scheduler
//! may merge requests: then they travel together, and each is still told apart by its name.

use alloc::vec::Vec;

use crate::cache::FileId;
use crate::machine::{FaultId, ReadId};
use crate::request::{RequestId, more_requests};
use crate::unit::PageRange;

/// What a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) enum RequestContent {
    /// Pages of a file, all in flight in the cache.
    Pages {
        file: FileId,
        range: PageRange,
        /// How many of them were read ahead of need.
        ahead_pages: u32,
        /// What is in flight behind them, until it is known which page can't be read.
        behind: SearchTail,
    },
    /// Slots of the swap area: pages of memory, in flight in the cache when they
    /// are read, being written when they are written.
    Slots {
        range: PageRange,
        /// How many of them are read ahead of need.
        ahead_pages: u32,
    },
    /// A piece of a direct transfer, from byte `offset` of it on.
    Direct { read: ReadId, offset: u64 },
}

/// What comes after the pages of a request by which the first bad page of a failed one is
/// searched for: the pages from the request's own last one on. Empty for any other request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) struct SearchTail {
    /// The bad page lies before this page (exclusive), in the request or behind it.
    pub(in crate::machine) suspect_end: u64,
    /// The failed request ended before this page (exclusive).
    pub(in crate::machine) end: u64,
}

impl SearchTail {
    /// Nothing is behind the range.
    pub(in crate::machine) fn none(range: PageRange) -> SearchTail {
        SearchTail { suspect_end: range.end, end: range.end }
    }
}

impl RequestContent {
    /// How many pages of it were read ahead of need.
    pub(in crate::machine) fn ahead_pages(self) -> u32 {
        match self {
            RequestContent::Pages { ahead_pages, .. }
            | RequestContent::Slots { ahead_pages, .. } => ahead_pages,
            RequestContent::Direct { .. } => 0,
        }
    }
}

/// Who waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) enum Waiter {
    /// A read of a file.
    Read(ReadId),
    /// A fault on memory.
    Fault(FaultId),
}

/// What one request has with it, beside what the device and the scheduler know.
#[derive(Debug)]
struct Payload {
    content: RequestContent,
    waiters: Vec<Waiter>,
    /// Tried again after a failure, past the scheduler.
    is_retry: bool,
}

/// What each open request carries, by its name.
#[derive(Debug, Default)]
pub(super) struct Payloads {
    by_name: Vec<Payload>,
    /// Empty lists of waiters, kept for their room.
    spare: Vec<Vec<Waiter>>,
}

impl Payloads {
    /// Takes in what the request `id`, which was opened just now, carries.
    pub(super) fn put(&mut self, id: RequestId, content: RequestContent, is_retry: bool) {
        let waiters = self.spare.pop().unwrap_or_default();
        let payload = Payload { content, waiters, is_retry };
        match self.by_name.get_mut(id.0 as usize) {
            Some(taken) => *taken = payload,
            // Names are given in order.
            None => {
                if self.by_name.len() == self.by_name.capacity() {
                    self.by_name.reserve_exact(more_requests(self.by_name.len()));
                }
                self.by_name.push(payload);
            }
        }
    }

    /// Gives out what the request carried and who waits for it, in a list to be given back to
    /// [`recycle`](Payloads::recycle).
    pub(super) fn take(&mut self, id: RequestId) -> (RequestContent, Vec<Waiter>) {
        let payload = &mut self.by_name[id.0 as usize];
        (payload.content, core::mem::take(&mut payload.waiters))
    }

    /// Keeps the memory of a list of waiters for the next request.
    pub(super) fn recycle(&mut self, mut waiters: Vec<Waiter>) {
        if waiters.capacity() > 0 {
            waiters.clear();
            self.spare.push(waiters);
        }
    }

    pub(super) fn content(&self, id: RequestId) -> RequestContent {
        self.by_name[id.0 as usize].content
    }

    pub(super) fn is_retry(&self, id: RequestId) -> bool {
        self.by_name[id.0 as usize].is_retry
    }

    /// Whether `waiter` waits for the request.
    pub(super) fn awaits(&self, id: RequestId, waiter: Waiter) -> bool {
        self.by_name[id.0 as usize].waiters.contains(&waiter)
    }

    /// Has `waiter` wait for the request.
    pub(super) fn wait(&mut self, id: RequestId, waiter: Waiter) {
        self.by_name[id.0 as usize].waiters.push(waiter);
    }
}
