//! Requests from their making until their completion, and what each carries.
//!
//! A transfer is one contiguous run of pages, or one piece of a direct read or
//! write. The scheduler may merge transfers: then the one that gave its name
//! is the *head*, the others hang on it as parts, and they travel together.

use alloc::vec::Vec;

use super::ReadId;
use crate::cache::FileId;
use crate::request::{Request, RequestId};
use crate::unit::PageRange;

/// What a transfer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Pages of a file, all in flight in the cache.
    Pages {
        file: FileId,
        range: PageRange,
        /// How many of them were read ahead of need.
        ahead_pages: u32,
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

#[derive(Clone, Debug)]
struct Slot {
    request: Request,
    content: Content,
    /// The reads that wait for it; the vector is kept when the slot is reused.
    waiters: Vec<ReadId>,
    next_part: Option<RequestId>,
    /// Tried again after a failure, past the scheduler.
    is_retry: bool,
    is_open: bool,
}

/// All transfers that are open, by name.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    slots: Vec<Slot>,
    free: Vec<RequestId>,
}

impl Transfers {
    /// Makes a transfer; the name in `request` is set here.
    pub(super) fn open(&mut self, request: Request, content: Content) -> Request {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.slots.push(Slot {
                    request,
                    content,
                    waiters: Vec::new(),
                    next_part: None,
                    is_retry: false,
                    is_open: false,
                });
                RequestId(self.slots.len() as u32 - 1)
            }
        };
        let request = Request { id, ..request };
        let slot = self.slot_mut(id);
        debug_assert!(!slot.is_open && slot.waiters.is_empty());
        slot.request = request;
        slot.content = content;
        slot.next_part = None;
        slot.is_retry = false;
        slot.is_open = true;
        request
    }

    /// Makes a transfer that goes to the device past the scheduler.
    pub(super) fn open_retry(&mut self, request: Request, content: Content) -> Request {
        let request = self.open(request, content);
        self.slot_mut(request.id).is_retry = true;
        request
    }

    pub(super) fn is_retry(&self, id: RequestId) -> bool {
        self.slots[id.0 as usize].is_retry
    }

    /// Ends one transfer (not its other parts) and gives its waiters back, in
    /// a vector to be returned by [`recycle`](Transfers::recycle).
    pub(super) fn close(&mut self, id: RequestId) -> Vec<ReadId> {
        let slot = self.slot_mut(id);
        debug_assert!(slot.is_open);
        slot.is_open = false;
        let waiters = core::mem::take(&mut slot.waiters);
        self.free.push(id);
        waiters
    }

    /// Keeps the memory of a list of waiters for the next transfer of that name.
    pub(super) fn recycle(&mut self, id: RequestId, mut waiters: Vec<ReadId>) {
        let slot = self.slot_mut(id);
        if !slot.is_open {
            waiters.clear();
            slot.waiters = waiters;
        }
    }

    /// These were merged into `head`, each with all the parts that it has itself.
    pub(super) fn merge(&mut self, head: RequestId, parts: impl Iterator<Item = RequestId>) {
        for part in parts {
            let last = self.parts(part).last().expect("a transfer is a part of its own");
            self.slot_mut(last).next_part = self.slot_mut(head).next_part;
            self.slot_mut(head).next_part = Some(part);
        }
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
    pub(super) fn parts(&self, head: RequestId) -> impl Iterator<Item = RequestId> + '_ {
        core::iter::successors(Some(head), |&id| self.slots[id.0 as usize].next_part)
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
        self.slots[id.0 as usize].next_part
    }

    pub(super) fn request(&self, id: RequestId) -> &Request {
        &self.slots[id.0 as usize].request
    }

    pub(super) fn content(&self, id: RequestId) -> Content {
        self.slots[id.0 as usize].content
    }

    /// Has `read` wait for the transfer.
    pub(super) fn wait(&mut self, id: RequestId, read: ReadId) {
        self.slot_mut(id).waiters.push(read);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    fn slot_mut(&mut self, id: RequestId) -> &mut Slot {
        &mut self.slots[id.0 as usize]
    }
}
