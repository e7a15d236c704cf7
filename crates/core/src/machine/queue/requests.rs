//! Requests from their making until their completion, and what each carries.
//!
//! A request is one contiguous run of pages, or one piece of a direct read or
//! write. The scheduler may merge requests: then the one that gave its name is
//! the *head*, the others hang on it as parts, and they travel together.

use alloc::vec::Vec;

use slab::Slab;

use crate::cache::FileId;
use crate::machine::{FaultId, ReadId};
use crate::request::{Request, RequestId};
use crate::unit::PageRange;

/// What a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) enum Content {
    /// Pages of a file, all in flight in the cache.
    Pages {
        file: FileId,
        range: PageRange,
        /// How many of them were read ahead of need.
        ahead_pages: u32,
        /// What is in flight behind them, until it is known which page can't be read.
        behind: Behind,
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
pub(in crate::machine) struct Behind {
    /// The bad page lies before this page (exclusive), in the request or behind it.
    pub(in crate::machine) suspect_end: u64,
    /// The failed request ended before this page (exclusive).
    pub(in crate::machine) end: u64,
}

impl Behind {
    /// Nothing is behind the range.
    pub(in crate::machine) fn none(range: PageRange) -> Behind {
        Behind { suspect_end: range.end, end: range.end }
    }
}

impl Content {
    /// How many pages of it were read ahead of need.
    pub(in crate::machine) fn ahead_pages(self) -> u32 {
        match self {
            Content::Pages { ahead_pages, .. } | Content::Slots { ahead_pages, .. } => ahead_pages,
            Content::Direct { .. } => 0,
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

#[derive(Debug)]
struct Entry {
    request: Request,
    content: Content,
    waiters: Vec<Waiter>,
    next_part: Option<RequestId>,
    /// Tried again after a failure, past the scheduler.
    is_retry: bool,
}

/// All requests that are open, by name.
#[derive(Debug, Default)]
pub(super) struct Requests {
    entries: Slab<Entry>,
    /// Empty lists of waiters, kept for their room.
    spare: Vec<Vec<Waiter>>,
}

impl Requests {
    /// Makes a request; its name is set here.
    pub(super) fn open(&mut self, request: Request, content: Content, is_retry: bool) -> Request {
        let id = RequestId(self.entries.vacant_key() as u32);
        let request = Request { id, ..request };
        let waiters = self.spare.pop().unwrap_or_default();
        self.entries.insert(Entry { request, content, waiters, next_part: None, is_retry });
        request
    }

    /// Ends one request, not its other parts, and gives its waiters, in a list to
    /// be given back to [`recycle`](Requests::recycle).
    pub(super) fn close(&mut self, id: RequestId) -> Vec<Waiter> {
        self.entries.remove(id.0 as usize).waiters
    }

    /// Keeps the memory of a list of waiters for the next request.
    pub(super) fn recycle(&mut self, mut waiters: Vec<Waiter>) {
        waiters.clear();
        self.spare.push(waiters);
    }

    /// `part` was merged into `head`, with all the parts that it has itself.
    pub(super) fn merge(&mut self, head: RequestId, part: RequestId) {
        let last = self.parts(part).last().expect("a request is a part of its own");
        self.entry_mut(last).next_part = self.entry(head).next_part;
        self.entry_mut(head).next_part = Some(part);
    }

    /// The head as the device has it: grown by its parts.
    pub(super) fn merged(&self, head: RequestId) -> Request {
        let mut merged = *self.request(head);
        for part in self.parts(head).skip(1).map(|part| self.request(part)) {
            merged.start = merged.start.min(part.start);
            merged.sectors += part.sectors;
        }
        merged
    }

    /// The head and every part that hangs on it.
    fn parts(&self, head: RequestId) -> impl Iterator<Item = RequestId> + '_ {
        core::iter::successors(Some(head), |&id| self.entry(id).next_part)
    }

    /// The same in the order of their sectors. Only a merged request is sorted,
    /// in memory taken for that.
    pub(super) fn each_part_in_order(&self, head: RequestId, mut each: impl FnMut(RequestId)) {
        if self.next_part(head).is_none() {
            return each(head);
        }
        let mut parts: Vec<RequestId> = self.parts(head).collect();
        parts.sort_unstable_by_key(|&part| self.request(part).start);
        parts.into_iter().for_each(each);
    }

    pub(super) fn next_part(&self, id: RequestId) -> Option<RequestId> {
        self.entry(id).next_part
    }

    pub(super) fn request(&self, id: RequestId) -> &Request {
        &self.entry(id).request
    }

    pub(super) fn content(&self, id: RequestId) -> Content {
        self.entry(id).content
    }

    pub(super) fn is_retry(&self, id: RequestId) -> bool {
        self.entry(id).is_retry
    }

    /// Has `waiter` wait for the request.
    pub(super) fn wait(&mut self, id: RequestId, waiter: Waiter) {
        self.entry_mut(id).waiters.push(waiter);
    }

    /// Whether `waiter` waits for the head or for a part of it.
    pub(super) fn is_awaited(&self, head: RequestId, waiter: Waiter) -> bool {
        self.parts(head).any(|part| self.entry(part).waiters.contains(&waiter))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn entry(&self, id: RequestId) -> &Entry {
        &self.entries[id.0 as usize]
    }

    fn entry_mut(&mut self, id: RequestId) -> &mut Entry {
        &mut self.entries[id.0 as usize]
    }
}
