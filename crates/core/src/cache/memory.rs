//! Pages of memory in the cache: mapped, dirty, being written.
//!
//! A page of memory is *held* while it can't be given away at once though
//! nobody has pinned it: a program maps it, it is dirty, or it is being
//! written. Each frame is then in just one of these classes: free; in flight;
//! pinned; held; or to be had at once (a file's page, or a page of memory that
//! is clean and unmapped). That is what the machine's budget counts by.
//!
//! Invariant: an unpinned page of memory is on the list that its state names
//! (`list_memory`), or on none while it is leaving or being written. Under a policy a page
//! that is mapped again during its write is on none as well until the write has ended. The policy
//! would name it over and over, and never the pages behind it.

use super::{Cache, FileId, Frame, FrameId, FrameList, FrameState, Mark, RunEntry};
use crate::eviction::{List, PageOrigin as Entered, refill};
use crate::unit::PageRange;

/// What a page of memory can be beside what every page can.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryFlags {
    pub(super) is_memory: bool,
    is_mapped: bool,
    is_dirty: bool,
    is_writing: bool,
    /// On its way out: chosen to be unmapped, or to be written.
    is_leaving: bool,
    /// It has come to the reclaim law, and has not left for good since.
    pub(super) is_known: bool,
    /// Its next touch is the one that a fault was for, of which the law has heard.
    is_told: bool,
}

impl MemoryFlags {
    /// Of a page that comes into the cache.
    pub(super) fn of(is_memory: bool) -> MemoryFlags {
        MemoryFlags { is_memory, ..MemoryFlags::default() }
    }
}

impl Frame {
    pub(super) fn is_held(&self) -> bool {
        let MemoryFlags { is_mapped, is_dirty, is_writing, .. } = self.memory;
        self.state == FrameState::Filled && self.pins == 0 && (is_mapped || is_dirty || is_writing)
    }
}

/// How many frames are held, leaving, being written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryCounts {
    held: u32,
    leaving: u32,
    writing: u32,
}

impl MemoryCounts {
    pub(super) fn count(&mut self, frame: &Frame) {
        self.held += u32::from(frame.is_held());
        self.leaving += u32::from(frame.memory.is_leaving);
        self.writing += u32::from(frame.memory.is_writing);
    }

    pub(super) fn forget(&mut self, frame: &Frame) {
        self.held -= u32::from(frame.is_held());
        self.leaving -= u32::from(frame.memory.is_leaving);
        self.writing -= u32::from(frame.memory.is_writing);
    }
}

/// What became of the oldest page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavingChoice {
    /// It could go at once: its frame is free.
    Gone,
    /// It is held, and on no list any more: to be unmapped or written first. Its age is how
    /// many pages have come to a list since it came to its own.
    Held {
        /// Its frame.
        frame: FrameId,
        /// Its age.
        age: u32,
    },
}

impl Cache {
    /// Adds an absent page of memory, in flight, as [`add`](Cache::add) does.
    pub fn add_memory(
        &mut self,
        file: FileId,
        page: u64,
        mark: Mark,
        is_ahead: bool,
    ) -> Option<FrameId> {
        let entry = RunEntry {
            order: 0,
            marked: u64::from(mark == Mark::Set),
            is_ahead,
            ..RunEntry::default()
        };
        let mut added = None;
        self.add_run_of(file, PageRange::new(page, 1), entry, true, |_, id| added = Some(id));
        added
    }

    /// Has the reclaim law decide of memory too, unless that has lists apart for it; before the first
    /// page of memory is added.
    pub fn give_memory_to_policy(&mut self) {
        self.is_memory_apart = self.policy.has_memory_apart();
    }

    /// How many frames are held: not pinned, and yet not to be had at once.
    pub fn held_pages(&self) -> u32 {
        self.memory.held
    }

    /// How many frames are on their way to be ready: chosen to leave, or being written.
    pub fn becoming_ready_pages(&self) -> u32 {
        self.memory.leaving + self.memory.writing
    }

    /// How many frames are free, or hold memory that goes next.
    pub fn ready_pages(&self) -> u32 {
        self.free_pages() + self.places.pages(FrameList::COLD)
    }

    /// Whose page of memory a frame holds.
    pub fn page_of(&self, id: FrameId) -> (FileId, u64) {
        (self.frame(id).file, self.frame(id).page)
    }

    /// Whether a program has the page in its address space.
    pub fn is_mapped(&self, id: FrameId) -> bool {
        self.frame(id).memory.is_mapped
    }

    /// Whether the page differs from what its slot holds, if it has one.
    pub fn is_dirty(&self, id: FrameId) -> bool {
        self.frame(id).memory.is_dirty
    }

    /// Whether the page is on its way to its slot.
    pub fn is_writing(&self, id: FrameId) -> bool {
        self.frame(id).memory.is_writing
    }

    /// Whether the page counts as held: see [`held_pages`](Cache::held_pages).
    pub fn is_held(&self, id: FrameId) -> bool {
        self.frame(id).is_held()
    }

    /// Whether a fault, a read or a write of the page is under way.
    pub fn is_busy(&self, id: FrameId) -> bool {
        let frame = self.frame(id);
        frame.pins > 0 || frame.state != FrameState::Filled || frame.memory.is_writing
    }

    /// Whether the page is mapped, and neither dirty nor on its way anywhere.
    pub fn is_settled(&self, id: FrameId) -> bool {
        let MemoryFlags { is_mapped, is_dirty, is_leaving, .. } = self.frame(id).memory;
        is_mapped && !is_dirty && !is_leaving && !self.is_busy(id)
    }

    /// Whether the page is mapped; it is referenced then, and dirty if it
    /// `is_written`. The one call on the way of a touch that needs no fault. The touch that a fault was
    /// for has brought the page to the reclaim law, and is no second use.
    pub fn touch_mapped(&mut self, id: FrameId, is_written: bool) -> bool {
        let frame = &mut self.frames[id.0 as usize];
        if frame.memory.is_mapped {
            frame.is_referenced |= !core::mem::take(&mut frame.memory.is_told);
            // A mapped page is held whether it is dirty or not.
            frame.memory.is_dirty |= is_written;
        }
        frame.memory.is_mapped
    }

    /// A fault takes the page, which is cached: it is no more on its way out.
    /// Gives whether it was marked as read ahead.
    pub fn take_for_fault(&mut self, id: FrameId) -> bool {
        self.pin(id);
        self.set_leaving(id, false);
        core::mem::take(&mut self.frame_mut(id).is_marked)
    }

    /// The page is in a program's address space from now on.
    pub fn set_mapped(&mut self, id: FrameId, is_mapped: bool) {
        self.change(id, |frame| frame.memory.is_mapped = is_mapped);
    }

    /// The page differs from its slot from now on, or no more.
    pub fn set_dirty(&mut self, id: FrameId, is_dirty: bool) {
        self.change(id, |frame| frame.memory.is_dirty = is_dirty);
    }

    /// A fault has used the page: it is no waste any more; one that was found
    /// in the cache (`is_again`), and not because it was read ahead, is
    /// referenced. One that comes to the reclaim law by this fault comes as used.
    pub fn use_memory(&mut self, id: FrameId, is_again: bool) {
        let is_first = self.note_use(id);
        if is_first && !self.frame(id).memory.is_known {
            self.waits.ended(self.places.note(id), self.budget_pages());
        }
        if !self.is_memory_apart && !self.places.is_listed(id) {
            self.frame_mut(id).memory.is_told = true;
        } else if !is_first {
            self.frame_mut(id).is_referenced |= is_again;
        }
    }

    /// Chooses the page, of files and memory, that goes next to make room: by the law, or, where
    /// memory has lists apart, of memory by these and against the page of a file that the law would
    /// look at next. None when there is none that isn't pinned or leaving already.
    pub fn choose_leaving(&mut self) -> Option<LeavingChoice> {
        match self.is_memory_apart {
            true => self.choose_oldest(),
            false => self.choose_by_policy(),
        }
    }

    /// As the law has it, but for what was read ahead in vain.
    fn choose_by_policy(&mut self) -> Option<LeavingChoice> {
        let mut asks_left = self.frames.len() as u32;
        // One that is pinned, or on its way, comes back by itself.
        for _ in 0..=self.frames.len() {
            if let Some(id) = self
                .places
                .oldest(FrameList::AHEAD)
                .filter(|&id| self.is_expired_memory_prefetch(id))
            {
                self.evict(id);
                return Some(LeavingChoice::Gone);
            }
            let Some(id) = self.next_victim(0, &mut asks_left) else {
                let id = self.places.oldest(FrameList::AHEAD)?;
                self.evict(id);
                return Some(LeavingChoice::Gone);
            };
            let age = self.places.age(id);
            let frame = self.frame(id);
            if frame.pins > 0 || frame.state != FrameState::Filled {
                continue;
            }
            if frame.memory.is_memory && frame.is_held() {
                self.set_leaving(id, true);
                return Some(LeavingChoice::Held { frame: id, age });
            }
            if self.recall_all(&[id]) == 0 {
                self.evict_by_policy(id);
                return Some(LeavingChoice::Gone);
            }
            self.list_file(id);
        }
        None
    }

    fn choose_oldest(&mut self) -> Option<LeavingChoice> {
        // Each page is spared twice at most: for its referenced bit, or a reader that holds it.
        for _ in 0..2 * self.frames.len() + 1 {
            let beside = self.places.pages(FrameList::AHEAD);
            let (inactive, active) = (FrameList::MEMORY_INACTIVE, FrameList::MEMORY_ACTIVE);
            let frames = &mut self.frames;
            refill(&mut self.places, inactive, active, beside, |_, id| {
                frames[id.0 as usize].is_referenced = false;
            });
            let memory = self.places.oldest_of(&[inactive, FrameList::AHEAD]);
            let file = self.oldest_of_files();
            let older = match (memory, file) {
                (Some(memory), Some(file)) if self.places.age(memory) > self.places.age(file) => {
                    Some(memory)
                }
                (_, Some(_)) => None,
                // Pages read ahead stand in for inactive ones, but not for all of them.
                (memory, None) => Some(memory.or_else(|| self.places.oldest(active))?),
            };
            let Some(id) = older else {
                if let Some(left) = self.choose_of_files() {
                    return Some(left);
                }
                continue;
            };
            let age = self.places.age(id);
            self.places.unlink(id);
            let frame = self.frame_mut(id);
            if core::mem::take(&mut frame.is_referenced) {
                self.places.push(id, active);
            } else if frame.is_held() {
                self.set_leaving(id, true);
                return Some(LeavingChoice::Held { frame: id, age });
            } else {
                self.evict(id);
                return Some(LeavingChoice::Gone);
            }
        }
        None
    }

    /// Has a page of memory leave that is held, inactive, was not used again since, and is so
    /// old at least (see [`LeavingChoice`]). None when it is not so.
    pub fn leave_if_old(&mut self, file: FileId, page: u64, age_min: u32) -> Option<FrameId> {
        let id = self.find(file, page)?;
        let frame = self.frame(id);
        let list = if self.is_memory_apart { FrameList::MEMORY_INACTIVE } else { List::PROBATION };
        let is_old = self.places.list_of(id) == Some(list)
            && !frame.is_referenced
            && frame.is_held()
            && self.places.age(id) >= age_min;
        if !is_old {
            return None;
        }
        self.places.unlink(id);
        self.set_leaving(id, true);
        Some(id)
    }

    /// Whether the page is still on its way out; it is on no list then.
    pub fn is_leaving(&self, id: FrameId) -> bool {
        self.frame(id).memory.is_leaving
    }

    /// A page on its way out stays after all, at the front of the list that its state names.
    pub fn stay(&mut self, id: FrameId) {
        self.set_leaving(id, false);
        if self.frame(id).pins == 0 {
            self.unlist_apart(id);
            self.list_memory(id);
        }
    }

    /// A page that was chosen to leave can't go now. Under a policy it is out of the way until
    /// [`take_back`](Cache::take_back), so that the policy names others meanwhile; on a list of
    /// memory's own it goes to the front at once.
    pub fn set_aside(&mut self, id: FrameId) {
        if self.is_memory_apart || self.frame(id).pins > 0 {
            return self.stay(id);
        }
        self.set_leaving(id, false);
        if !self.frame(id).memory.is_writing {
            self.places.push(id, FrameList::REFUSED);
        }
    }

    /// All pages that were set aside are where they belong again.
    pub fn take_back(&mut self) {
        while let Some(id) = self.places.pop(FrameList::REFUSED) {
            match self.frame(id).memory.is_memory {
                true => self.list_memory(id),
                false => self.list_file(id),
            }
        }
    }

    /// A page on its way out is unmapped and dirty: it rests before it is written.
    pub fn rest(&mut self, id: FrameId) {
        self.set_leaving(id, false);
        self.places.push(id, FrameList::RESTING);
    }

    /// The page that has rested for longest is to be written: it is leaving
    /// again, and on no list. None when no more than `resting_max` rest.
    pub fn end_second_chance(&mut self, resting_max: u32) -> Option<FrameId> {
        if self.places.pages(FrameList::RESTING) <= resting_max {
            return None;
        }
        let id = self.places.oldest(FrameList::RESTING)?;
        self.places.unlink(id);
        self.set_leaving(id, true);
        Some(id)
    }

    /// How many dirty pages rest, unmapped.
    pub fn second_chance_pages(&self) -> u32 {
        self.places.pages(FrameList::RESTING)
    }

    /// A page on its way out is on its way to the device now.
    pub fn begin_write(&mut self, id: FrameId) {
        self.change(id, |frame| {
            frame.memory.is_leaving = false;
            frame.memory.is_dirty = false;
            frame.memory.is_writing = true;
        });
    }

    /// The page has come to the device, or could not: it is listed by what it is now.
    pub fn end_write(&mut self, id: FrameId, is_dirty: bool) {
        self.change(id, |frame| {
            frame.memory.is_writing = false;
            frame.memory.is_dirty |= is_dirty;
        });
        if self.frame(id).pins == 0 {
            self.unlist_apart(id);
            self.list_memory(id);
        }
    }

    /// Forgets a filled page that nobody pins, reads or writes, mapped or not.
    pub fn discard_memory(&mut self, id: FrameId) {
        debug_assert!(self.frame(id).pins == 0 && !self.frame(id).memory.is_writing);
        self.remove(id);
    }

    /// Puts an unpinned, filled page of memory on the list that its state names.
    pub(super) fn list_memory(&mut self, id: FrameId) {
        let frame = self.frame(id);
        if frame.pins > 0 || self.places.is_listed(id) || frame.memory.is_leaving {
            return;
        }
        let MemoryFlags { is_mapped, is_dirty, is_writing, .. } = frame.memory;
        let list = match (is_mapped || is_dirty, self.unused.contains(id)) {
            (false, _) if is_writing => return,
            // It can't leave before its write has ended: `end_write` gives it to the policy.
            (true, _) if is_writing && !self.is_memory_apart => return,
            (true, _) if !self.is_memory_apart => return self.give_to_policy(id),
            (true, _) => FrameList::MEMORY_INACTIVE,
            (false, true) => FrameList::AHEAD,
            (false, false) => FrameList::COLD,
        };
        self.places.push(id, list);
    }

    fn set_leaving(&mut self, id: FrameId, is_leaving: bool) {
        self.change(id, |frame| frame.memory.is_leaving = is_leaving);
    }

    /// Puts a held page on the law's lists. One that the law knows was about to leave; that it was wanted
    /// before it went is a use of it.
    fn give_to_policy(&mut self, id: FrameId) {
        let key = self.frame(id).key();
        let is_known = core::mem::replace(&mut self.frame_mut(id).memory.is_known, true);
        if is_known {
            self.policy.put_back(&mut self.places, id, key);
            if self.frame(id).memory.is_told {
                self.policy.used(&mut self.places, id, key);
            }
        } else {
            self.policy.enter(&mut self.places, id, key, Entered::Asked);
        }
    }

    /// Takes a page of memory off its list, unless that is the law's: there it stays while it is held.
    pub(super) fn unlist_apart(&mut self, id: FrameId) {
        let list = self.places.list_of(id);
        if list.is_some_and(|list| !List::OF_POLICY.contains(&list)) {
            self.places.unlink(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::*;
    use crate::eviction::Lru;

    /// Of four pages that were faulted in and touched by that, 0 is touched once more: where uses are
    /// bits `lru` is a clock, which spares 0, and the next is 1. Were the touch of its fault a use of
    /// its own, each would be spared once, and 0 go.
    #[test]
    fn the_touch_of_a_fault_is_not_a_second_use() {
        let mut cache = Cache::new(4, Box::new(Lru));
        cache.give_memory_to_policy();
        let file = cache.add_file();
        for page in 0..4 {
            let id = cache.add_memory(file, page, Mark::Clear, false).unwrap();
            cache.pin(id);
            cache.fill(id);
            cache.use_memory(id, false);
            cache.set_mapped(id, true);
            cache.unpin(id);
            assert!(cache.touch_mapped(id, false));
        }
        let ids = [0, 1].map(|page| cache.find(file, page).unwrap());
        cache.touch_mapped(ids[0], false);
        let left = cache.choose_leaving();
        assert!(
            matches!(left, Some(LeavingChoice::Held { frame, .. }) if frame == ids[1]),
            "{left:?}"
        );
    }
}
