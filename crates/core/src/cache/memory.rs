//! Pages of memory in the cache: mapped, dirty, being written.
//!
//! A page of memory is *held* while it is unpinned but cannot be evicted at once: a program maps
//! it, it is dirty, or it is being written. Each frame is in exactly one class: free, in flight,
//! pinned, held, or available at once. A file's page and a clean, unmapped page of memory are
//! available at once. The machine's memory budget uses these classes. The *slot* of a page is its
//! place in the swap area.
//!
//! A page is *leaving* while it is to be unmapped or written, and on no list. It begins to leave
//! when it is selected, or when its rest ends. It no longer leaves when its rest or its write
//! begins, or when its leaving is cancelled. A *resting* page has its second chance: it is unmapped
//! and dirty, and waits before its write.
//!
//! A page that is *set aside* could not leave now. If the eviction policy manages memory, an
//! unpinned one is not selected again until [`end_set_aside`](Cache::end_set_aside).
//!
//! Invariant: an unpinned page of memory is on the list for its state (`list_memory`), or on none
//! while it is leaving or being written. If the eviction policy manages memory, a page that is
//! mapped again during its write is on no list either until the write has ended. Otherwise the
//! policy would select that page again and again, and never the pages behind it.

use super::{Cache, FileId, Frame, FrameId, FrameList, FrameState, Mark, RunEntry};
use crate::eviction::{List, PageOrigin, refill};
use crate::unit::PageRange;

/// Additional state of a page of memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryFlags {
    /// True for a page of memory, false for a page of a file.
    pub(super) is_memory: bool,
    /// True if a program has the page in its address space.
    is_mapped: bool,
    /// True if the page differs from the content of its slot, or has no slot.
    is_dirty: bool,
    /// True from the start of a write to its slot until the end of that write.
    is_writing: bool,
    /// True if it was selected to be unmapped, or to be written.
    is_leaving: bool,
    /// True if it has entered the eviction policy, and has not left for good since.
    pub(super) is_known: bool,
    /// True if its next touch belongs to a fault that was already reported to the policy.
    is_fault_reported: bool,
}

impl MemoryFlags {
    /// Initial state of a page that enters the cache.
    pub(super) fn of(is_memory: bool) -> MemoryFlags {
        MemoryFlags { is_memory, ..MemoryFlags::default() }
    }
}

impl Frame {
    /// Returns true if the page is held: unpinned, but it can't leave at once.
    pub(super) fn is_held(&self) -> bool {
        let MemoryFlags { is_mapped, is_dirty, is_writing, .. } = self.memory;
        self.state == FrameState::Filled && self.pins == 0 && (is_mapped || is_dirty || is_writing)
    }
}

/// Numbers of frames that are held, leaving, and being written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryCounts {
    /// Frames with a held page: see the module.
    held: u32,
    /// Frames whose page was selected to be unmapped, or to be written.
    leaving: u32,
    /// Frames whose page is being written to its slot.
    writing: u32,
}

impl MemoryCounts {
    /// Adds a frame to the counts.
    pub(super) fn add_frame(&mut self, frame: &Frame) {
        self.held += u32::from(frame.is_held());
        self.leaving += u32::from(frame.memory.is_leaving);
        self.writing += u32::from(frame.memory.is_writing);
    }

    /// Subtracts a frame from the counts.
    pub(super) fn subtract_frame(&mut self, frame: &Frame) {
        self.held -= u32::from(frame.is_held());
        self.leaving -= u32::from(frame.memory.is_leaving);
        self.writing -= u32::from(frame.memory.is_writing);
    }
}

/// Outcome of choosing a page to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavingChoice {
    /// The page left at once: its frame is free.
    Gone,
    /// The frame is held and on no list. The page must be unmapped or written first. Its age is the
    /// number of pushes to any list since its own.
    Held {
        /// Its frame.
        frame: FrameId,
        /// Its age.
        age: u32,
    },
}

impl Cache {
    /// Adds an absent page of memory, in flight, as [`add`](Cache::add) does; `is_ahead` if no
    /// fault needs it yet. Returns its frame; `None` if no frame can be freed.
    pub fn add_memory(
        &mut self,
        file: FileId,
        page: u64,
        mark: Mark,
        is_ahead: bool,
    ) -> Option<FrameId> {
        let entry = RunEntry {
            // Memory has folios of single pages only.
            order: 0,
            marked: u64::from(mark == Mark::Set),
            is_ahead,
            ..RunEntry::default()
        };
        let mut added = None;
        let is_memory = true;
        let run = PageRange::new(page, 1);
        self.add_file_or_memory_run(file, run, entry, is_memory, |_, id| added = Some(id));
        added
    }

    /// Lets the eviction policy manage memory too, unless it has separate lists for memory. Must be
    /// called before the first page of memory is added.
    pub fn give_memory_to_policy(&mut self) {
        self.has_memory_lists = self.policy.has_memory_apart();
    }

    /// Number of held frames: unpinned, but not available at once. The machine's budget counts them
    /// as used.
    pub fn unready_pages(&self) -> u32 {
        self.memory.held
    }

    /// Number of frames that will become available: selected to leave, or being written. The
    /// machine counts them as ready when it decides if more pages must leave.
    pub fn becoming_ready_pages(&self) -> u32 {
        self.memory.leaving + self.memory.writing
    }

    /// Number of frames that are free, or hold a clean, unmapped page of memory. A fault that needs
    /// a frame finds one at once among these.
    pub fn ready_pages(&self) -> u32 {
        self.free_pages() + self.frame_lists.pages(FrameList::MEMORY_CLEAN)
    }

    /// The mapping and the page that a frame holds.
    pub fn page_of(&self, id: FrameId) -> (FileId, u64) {
        (self.frame(id).file, self.frame(id).page)
    }

    /// Returns true if a program has the page in its address space.
    pub fn is_mapped(&self, id: FrameId) -> bool {
        self.frame(id).memory.is_mapped
    }

    /// Returns true if the page differs from the content of its slot, or has no slot.
    pub fn is_dirty(&self, id: FrameId) -> bool {
        self.frame(id).memory.is_dirty
    }

    /// Returns true if the page is being written to its slot.
    pub fn is_writing(&self, id: FrameId) -> bool {
        self.frame(id).memory.is_writing
    }

    /// Returns true if the page is held: see [`unready_pages`](Cache::unready_pages).
    pub fn is_held(&self, id: FrameId) -> bool {
        self.frame(id).is_held()
    }

    /// Returns true if a fault, a read or a write of the page is in progress.
    pub fn is_busy(&self, id: FrameId) -> bool {
        let frame = self.frame(id);
        frame.pins > 0 || frame.state != FrameState::Filled || frame.memory.is_writing
    }

    /// Returns true if the page is mapped, clean, and neither leaving nor busy.
    pub fn is_mapped_and_clean(&self, id: FrameId) -> bool {
        let MemoryFlags { is_mapped, is_dirty, is_leaving, .. } = self.frame(id).memory;
        is_mapped && !is_dirty && !is_leaving && !self.is_busy(id)
    }

    /// Records a touch of a page, and returns true if it is mapped. A mapped page becomes
    /// referenced, and dirty if `is_written`. The touch that caused a fault was already reported to
    /// the eviction policy, and does not count again.
    pub fn touch_mapped(&mut self, id: FrameId, is_written: bool) -> bool {
        let frame = &mut self.frames[id.0 as usize];
        if frame.memory.is_mapped {
            frame.is_referenced |= !core::mem::take(&mut frame.memory.is_fault_reported);
            // The counts in `MemoryCounts` stay the same: a mapped page is held whether it is dirty
            // or not.
            frame.memory.is_dirty |= is_written;
        }
        frame.memory.is_mapped
    }

    /// Pins a cached page for a fault, and cancels its leaving. Removes its readahead mark, and
    /// returns true if it carried one.
    pub fn take_for_fault(&mut self, id: FrameId) -> bool {
        self.pin(id);
        self.end_leaving(id);
        core::mem::take(&mut self.frame_mut(id).is_marked)
    }

    /// Records that the page was mapped into a program's address space (`is_mapped`), or unmapped
    /// from it.
    pub fn set_mapped(&mut self, id: FrameId, is_mapped: bool) {
        self.update_frame(id, |frame| frame.memory.is_mapped = is_mapped);
    }

    /// Records if the page differs from the content of its slot (`is_dirty`).
    pub fn set_dirty(&mut self, id: FrameId, is_dirty: bool) {
        self.update_frame(id, |frame| frame.memory.is_dirty = is_dirty);
    }

    /// Records the use of a page by a fault, at the end of that fault: the page does not count as
    /// waste. If the policy manages memory, a page on no list is given to it as used when its last
    /// pin ends. The touch of the fault then does not count again. Any other page becomes
    /// referenced if it was in the cache before the fault (`was_in_memory`), except at the first
    /// use of a prefetched one.
    pub fn use_memory(&mut self, id: FrameId, was_in_memory: bool) {
        let is_first = self.record_use(id);
        if is_first && !self.frame(id).memory.is_known {
            // The first use of a prefetched page that never was on a list of the policy. Its note
            // is still the count of added pages at its addition.
            self.waits.record_first_use(self.frame_lists.note(id), self.budget_pages());
        }
        if !self.has_memory_lists && !self.frame_lists.is_listed(id) {
            // The policy gets the page when its last pin ends: see `give_to_policy`.
            self.frame_mut(id).memory.is_fault_reported = true;
        } else if !is_first {
            self.frame_mut(id).is_referenced |= was_in_memory;
        }
    }

    /// Chooses the next page of files and memory to leave. The policy decides; with separate lists
    /// for memory, the oldest page of these is compared with the policy's next page of a file.
    /// `None`: each page is pinned, in flight, in use by an outside reader, or already leaving.
    pub fn choose_leaving(&mut self) -> Option<LeavingChoice> {
        match self.has_memory_lists {
            true => self.choose_oldest(),
            false => self.choose_by_policy(),
        }
    }

    /// Chooses by the policy. Prefetched pages of memory that have exceeded their lifetime (expired
    /// ones) leave before its victims, the other prefetched ones after them. `None` if no page can
    /// leave.
    fn choose_by_policy(&mut self) -> Option<LeavingChoice> {
        // One victim is taken at a time, so that none waits for its eviction. `queries_left` bounds
        // the pages whose uses by outside readers are queried.
        let (victims_taken, mut queries_left) = (0, self.frames.len() as u32);
        // A page in use returns to its list and may be selected again, so attempts are bounded.
        for _ in 0..=self.frames.len() {
            if let Some(id) = self
                .frame_lists
                .oldest(FrameList::MEMORY_PREFETCHED)
                .filter(|&id| self.is_expired_memory_prefetch(id))
            {
                self.evict(id);
                return Some(LeavingChoice::Gone);
            }
            let Some(id) = self.take_victim(victims_taken, &mut queries_left) else {
                let id = self.frame_lists.oldest(FrameList::MEMORY_PREFETCHED)?;
                self.evict(id);
                return Some(LeavingChoice::Gone);
            };
            let age = self.frame_lists.age(id);
            let frame = self.frame(id);
            if frame.pins > 0 || frame.state != FrameState::Filled {
                // It returns to its list at its last unpin, or when it arrives. The next victim is
                // tried.
                continue;
            }
            if frame.memory.is_memory && frame.is_held() {
                self.begin_leaving(id);
                return Some(LeavingChoice::Held { frame: id, age });
            }
            if self.recall_all(&[id]) == 0 {
                self.evict_and_report(id);
                return Some(LeavingChoice::Gone);
            }
            // A reader outside the machine uses it: it returns to its list, and another page is
            // selected next.
            self.list_file(id);
        }
        None
    }

    /// Chooses the older of the next page of memory and the next page of a file. A page of memory
    /// that was referenced since it entered its list is spared, and moves to the active list.
    /// `None` if no page can leave.
    fn choose_oldest(&mut self) -> Option<LeavingChoice> {
        // Each page is spared at most twice: for its referenced bit, or for a reader that has it
        // pinned.
        let attempts_max = 2 * self.frames.len() + 1;
        for _ in 0..attempts_max {
            let prefetched_pages = self.frame_lists.pages(FrameList::MEMORY_PREFETCHED);
            let (inactive, active) = (FrameList::MEMORY_INACTIVE, FrameList::MEMORY_ACTIVE);
            let frames = &mut self.frames;
            // Moves pages from the active list to the inactive one while that, with the prefetched
            // pages, is shorter. A moved page must be referenced again to be spared.
            refill(&mut self.frame_lists, inactive, active, prefetched_pages, |_, id| {
                frames[id.0 as usize].is_referenced = false;
            });
            let oldest_memory =
                self.frame_lists.oldest_of(&[inactive, FrameList::MEMORY_PREFETCHED]);
            let oldest_file = self.next_file_page();
            // The page of memory to leave; `None` if a page of a file is at least as old.
            let memory_page = match (oldest_memory, oldest_file) {
                (Some(memory), Some(file))
                    if self.frame_lists.age(memory) > self.frame_lists.age(file) =>
                {
                    Some(memory)
                }
                (_, Some(_)) => None,
                // No page of a file is left. Prefetched pages count as inactive ones in `refill`.
                // If they alone are enough, the inactive list may be empty: the oldest active page
                // is then tried.
                (memory, None) => Some(memory.or_else(|| self.frame_lists.oldest(active))?),
            };
            let Some(id) = memory_page else {
                if let Some(choice) = self.evict_next_file_page() {
                    return Some(choice);
                }
                // The page is in use, pinned or in flight: the next attempt finds another one.
                continue;
            };
            let age = self.frame_lists.age(id);
            self.frame_lists.unlink(id);
            let frame = self.frame_mut(id);
            if core::mem::take(&mut frame.is_referenced) {
                self.frame_lists.push(id, active);
            } else if frame.is_held() {
                self.begin_leaving(id);
                return Some(LeavingChoice::Held { frame: id, age });
            } else {
                self.evict(id);
                return Some(LeavingChoice::Gone);
            }
        }
        None
    }

    /// Selects a held page of memory to leave if it is inactive, not used since, and at least
    /// `age_min` old (see [`LeavingChoice`]). Returns `None` in all other cases.
    pub fn leave_if_old(&mut self, file: FileId, page: u64, age_min: u32) -> Option<FrameId> {
        let id = self.find(file, page)?;
        let frame = self.frame(id);
        // The list of pages without reuse: of memory alone, or of the policy. Pages on other lists
        // were used again under most policies.
        let list = if self.has_memory_lists { FrameList::MEMORY_INACTIVE } else { List::PROBATION };
        let is_old = self.frame_lists.list_of(id) == Some(list)
            && !frame.is_referenced
            && frame.is_held()
            && self.frame_lists.age(id) >= age_min;
        if !is_old {
            return None;
        }
        self.frame_lists.unlink(id);
        self.begin_leaving(id);
        Some(id)
    }

    /// Returns true if the page is still leaving; it is then on no list.
    pub fn is_leaving(&self, id: FrameId) -> bool {
        self.frame(id).memory.is_leaving
    }

    /// Cancels the leaving of a page, which moves to the front of the list for its state. A pinned
    /// page is listed when its last pin ends.
    pub fn cancel_leaving(&mut self, id: FrameId) {
        self.end_leaving(id);
        if self.frame(id).pins == 0 {
            self.unlist_memory(id);
            self.list_memory(id);
        }
    }

    /// Keeps a selected page that cannot leave now. If the policy manages memory, the page is on no
    /// list of the policy until [`end_set_aside`](Cache::end_set_aside), so that the policy selects
    /// other pages meanwhile. With separate lists for memory it moves to the front of its list at
    /// once.
    pub fn set_aside(&mut self, id: FrameId) {
        // A pinned page returns to its list when its last pin ends.
        if self.has_memory_lists || self.frame(id).pins > 0 {
            return self.cancel_leaving(id);
        }
        self.end_leaving(id);
        // A page that is being written is listed by `end_write`.
        if !self.frame(id).memory.is_writing {
            self.frame_lists.push(id, FrameList::IN_USE);
        }
    }

    /// Returns all pages that were set aside, of files and of memory, to their lists.
    pub fn end_set_aside(&mut self) {
        while let Some(id) = self.frame_lists.pop(FrameList::IN_USE) {
            match self.frame(id).memory.is_memory {
                true => self.list_memory(id),
                false => self.list_file(id),
            }
        }
    }

    /// Puts a leaving page that is unmapped and dirty on the list of resting pages
    /// (`MEMORY_DIRTY`), before it is written.
    pub fn begin_second_chance(&mut self, id: FrameId) {
        self.end_leaving(id);
        self.frame_lists.push(id, FrameList::MEMORY_DIRTY);
    }

    /// Takes the oldest resting page, which begins to leave: it is to be written, and on no list.
    /// `None` if at most `resting_max` pages rest. The caller passes 0 if a fault or read waits for
    /// frames.
    pub fn end_second_chance(&mut self, resting_max: u32) -> Option<FrameId> {
        if self.frame_lists.pages(FrameList::MEMORY_DIRTY) <= resting_max {
            return None;
        }
        let id = self.frame_lists.oldest(FrameList::MEMORY_DIRTY)?;
        self.frame_lists.unlink(id);
        self.begin_leaving(id);
        Some(id)
    }

    /// Number of unmapped dirty pages on the resting list.
    pub fn second_chance_pages(&self) -> u32 {
        self.frame_lists.pages(FrameList::MEMORY_DIRTY)
    }

    /// Records that the write of a leaving page has begun. Its dirty flag is cleared, so that a
    /// change during the write shows.
    pub fn begin_write(&mut self, id: FrameId) {
        self.update_frame(id, |frame| {
            frame.memory.is_leaving = false;
            frame.memory.is_dirty = false;
            frame.memory.is_writing = true;
        });
    }

    /// Records the end of a write: the page moves to the list for its state, a pinned one when its
    /// last pin ends. `is_dirty` is true if the write failed. A page that was changed since
    /// `begin_write`, which cleared its dirty flag, is dirty in any case.
    pub fn end_write(&mut self, id: FrameId, is_dirty: bool) {
        self.update_frame(id, |frame| {
            frame.memory.is_writing = false;
            frame.memory.is_dirty |= is_dirty;
        });
        if self.frame(id).pins == 0 {
            // It may be on the list for its state during the write.
            self.unlist_memory(id);
            self.list_memory(id);
        }
    }

    /// Drops a filled page without pin, read or write in progress, mapped or not.
    pub fn discard_memory(&mut self, id: FrameId) {
        debug_assert!(self.frame(id).pins == 0 && !self.frame(id).memory.is_writing);
        self.remove_page(id);
    }

    /// Puts a filled page of memory on the list for its state. No effect if it is pinned, on a list
    /// already, or leaving.
    pub(super) fn list_memory(&mut self, id: FrameId) {
        let frame = self.frame(id);
        if frame.pins > 0 || self.frame_lists.is_listed(id) || frame.memory.is_leaving {
            return;
        }
        let MemoryFlags { is_mapped, is_dirty, is_writing, .. } = frame.memory;
        let list = match (is_mapped || is_dirty, self.unused.contains(id)) {
            // A page can't leave before its write has ended: `end_write` then lists it.
            (false, _) if is_writing => return,
            // On the policy's list it would be selected again before its write has ended.
            (true, _) if is_writing && !self.has_memory_lists => return,
            (true, _) if !self.has_memory_lists => return self.give_to_policy(id),
            // Mapped or dirty. It moves to the active list when it is found referenced.
            (true, _) => FrameList::MEMORY_INACTIVE,
            // Clean and unmapped: prefetched and not used yet, or the next to leave.
            (false, true) => FrameList::MEMORY_PREFETCHED,
            (false, false) => FrameList::MEMORY_CLEAN,
        };
        self.frame_lists.push(id, list);
    }

    /// Sets the leaving flag: the page is selected to be unmapped, or to be written.
    fn begin_leaving(&mut self, id: FrameId) {
        self.update_frame(id, |frame| frame.memory.is_leaving = true);
    }

    /// Clears the leaving flag.
    fn end_leaving(&mut self, id: FrameId) {
        self.update_frame(id, |frame| frame.memory.is_leaving = false);
    }

    /// Puts a held page on the policy's lists. A page that the policy knows returns to it as a
    /// victim that did not leave; if a fault needed the page meanwhile, that counts as a use. A
    /// held page was mapped by a fault, so a new one enters as demanded.
    fn give_to_policy(&mut self, id: FrameId) {
        let key = self.frame(id).key();
        let is_known = core::mem::replace(&mut self.frame_mut(id).memory.is_known, true);
        if is_known {
            self.policy.restore_victim(&mut self.frame_lists, id, key);
            if self.frame(id).memory.is_fault_reported {
                self.policy.used(&mut self.frame_lists, id, key);
            }
        } else {
            self.policy.enter(&mut self.frame_lists, id, key, PageOrigin::Demand);
        }
    }

    /// Removes a page of memory from its list, unless that is the policy's: there it stays while it
    /// is held.
    pub(super) fn unlist_memory(&mut self, id: FrameId) {
        let list = self.frame_lists.list_of(id);
        if list.is_some_and(|list| !List::OF_POLICY.contains(&list)) {
            self.frame_lists.unlink(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::*;
    use crate::eviction::Lru;

    /// Four pages are faulted in and touched by their faults, and page 0 is touched once more. With
    /// access bits `lru` is a clock, which spares page 0 and selects page 1. If the touch of the
    /// fault counted as a second use, each page would be spared once, and page 0 would be selected.
    #[test]
    fn the_touch_of_a_fault_is_not_a_second_use() {
        let mut cache = Cache::new(4, Box::new(Lru));
        cache.give_memory_to_policy();
        let file = cache.add_file();
        let (is_ahead, was_in_memory, is_mapped, is_written) = (false, false, true, false);
        for page in 0..4 {
            let id = cache.add_memory(file, page, Mark::Clear, is_ahead).unwrap();
            cache.pin(id);
            cache.fill(id);
            cache.use_memory(id, was_in_memory);
            cache.set_mapped(id, is_mapped);
            cache.unpin(id);
            assert!(cache.touch_mapped(id, is_written));
        }
        let ids = [0, 1].map(|page| cache.find(file, page).unwrap());
        cache.touch_mapped(ids[0], is_written);
        let choice = cache.choose_leaving();
        assert!(
            matches!(choice, Some(LeavingChoice::Held { frame, .. }) if frame == ids[1]),
            "{choice:?}"
        );
    }
}
