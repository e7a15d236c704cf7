//! Swapping out: pages are unmapped and written ahead of need, so that a fault
//! finds a frame.
//!
//! The law in words: when fewer than `ready_pages` pages are ready (free, or
//! clean and unmapped) or on their way to it, and as many more as the swap-in law
//! found lacking for what it reads ahead, the oldest pages leave until a whole
//! write more than that are. A page that a program maps is unmapped
//! first; a dirty one rests, if it is to have a second chance, and is then
//! written, side by side with those that leave with it. What is used again on
//! its way stays. A fault or a read that waits for more room than that makes
//! more leave.
//!
//! *Which leave together* is [`SwapOut`]. A swap-in law can read in one request what lies
//! side by side in slots, so what is used together should leave together. The oldest pages, in
//! the order of their age as the kernel has it, are that for one program; of several
//! that sweep memory of their own each has a page or two among 64, and neighbours
//! by address end up far apart. So by default a page takes its neighbours by
//! address with it, on both sides, as far as each was not used again and is at
//! least half as old: it would have left soon anyway. And what is written together
//! is put in order of mapping and address first. With random touches few pages have
//! such neighbours, and to put them in order costs nothing: they stay one write.
//!
//! The alternative, a cluster of slots for each mapping (as the kernel has one for each
//! processor), writes in small pieces all over the area what a random load
//! writes in one, and keeps slots for mappings that don't need them.
//!
//! When no slot is left, slots of pages that are in memory and unchanged are
//! given up for it. When none of those is left either, what waits fails.

use super::complete::PartOutcome;
use super::memory::{SwapOut, Unmap};
use super::swap_area::Owner;
use super::*;
use crate::cache::Leaving;

impl ReadPath {
    /// The next page to be taken out of a program's address space. Answer each
    /// with [`handle_unmapped`](ReadPath::handle_unmapped), before anything else
    /// is called but this.
    pub fn poll_unmap(&mut self) -> Option<Unmap> {
        let frame = self.swap.unmaps.pop_front()?;
        debug_assert!(self.cache.is_leaving(frame) && self.cache.is_mapped(frame));
        self.swap.unmaps_unanswered += 1;
        self.cache.set_mapped(frame, false);
        let (file, page) = self.cache.page_of(frame);
        Some(Unmap { memory: self.memory_of(file), page, frame })
    }

    /// No program has the page in its address space any more; `was_written`
    /// when it was written to since it was mapped, as far as no fault has told.
    pub fn handle_unmapped(&mut self, now: Time, unmap: Unmap, was_written: bool) {
        let Unmap { memory, page, frame } = unmap;
        debug_assert!(self.cache.is_leaving(frame) && !self.cache.is_mapped(frame));
        self.swap.unmaps_unanswered -= 1;
        if was_written && !self.cache.is_dirty(frame) {
            self.make_dirty(memory, page, frame);
        }
        if !self.cache.is_dirty(frame) || self.cache.is_writing(frame) || self.swap.is_full {
            self.cache.stay(frame);
        } else if self.swap.second_chance_pages == 0 {
            self.swap.to_write.push(frame);
        } else {
            self.cache.rest(frame);
        }
        // The others that were polled with it are in no class of frames until
        // they are answered for: what waits must not count on them.
        if self.swap.unmaps_unanswered == 0 {
            self.admit(now);
        }
    }

    /// A page that may be leaving is used again, or discarded.
    pub(super) fn call_back(&mut self, frame: FrameId) {
        if self.cache.is_leaving(frame) {
            self.swap.unmaps.retain(|&other| other != frame);
            self.swap.to_write.retain(|&other| other != frame);
        }
    }

    /// Lets pages leave until enough are ready or on their way, and writes those
    /// that are to be written once all are unmapped that leave with them.
    pub(super) fn make_room(&mut self, now: Time) {
        if self.memories.is_empty() {
            return;
        }
        loop {
            self.choose_leaving();
            let is_unmapping = self.swap.unmaps_unanswered > 0 || !self.swap.unmaps.is_empty();
            // Where no slot was left others may have to leave.
            if is_unmapping || self.write_out(now) {
                return;
            }
        }
    }

    fn choose_leaving(&mut self) {
        let waiting = self.waiting.front().map(|&read| self.reads[read.0 as usize].range.count());
        if waiting.is_none() && self.is_broken() {
            return;
        }
        let needed = waiting.unwrap_or(0) as u32;
        let ready_pages = self.swap.ready_pages + self.swap.ready_ahead_pages;
        if self.coming() >= ready_pages.max(needed) {
            return;
        }
        let batch = (self.swap.write_pages_max as u32).min(self.swap.ready_pages);
        let enough = (ready_pages + batch).max(needed);
        let resting_max = if waiting.is_some() { 0 } else { self.swap.second_chance_pages };
        // Each page is looked at once: with a full area dirty ones only go round.
        let mut steps = self.cache.budget_pages();
        while self.coming() < enough && steps > 0 {
            steps -= 1;
            if let Some(frame) = self.cache.pop_rested(resting_max) {
                self.swap.to_write.push(frame);
                continue;
            }
            match self.cache.choose_leaving() {
                None => break,
                Some(Leaving::Gone) => {}
                Some(Leaving::Held { frame, age }) => {
                    let (file, page) = self.cache.page_of(frame);
                    self.lead_out(frame);
                    if self.swap.swap_out == SwapOut::Neighbours {
                        self.lead_out_neighbours(file, page, age / 2);
                    }
                }
            }
        }
    }

    /// The pages beside one that leaves, on both sides, go with it, as far as they are
    /// so old; no more than a write takes.
    fn lead_out_neighbours(&mut self, file: FileId, page: u64, age_min: u32) {
        let mut left = self.swap.write_pages_max - 1;
        for step in [1, -1] {
            let mut beside = page;
            while left > 0
                && let Some(next) = beside.checked_add_signed(step)
                && let Some(frame) = self.cache.leave_if_old(file, next, age_min)
            {
                self.lead_out(frame);
                beside = next;
                left -= 1;
            }
        }
    }

    /// A page that was chosen to leave goes its first step.
    fn lead_out(&mut self, frame: FrameId) {
        let is_dirty = self.cache.is_dirty(frame);
        if (is_dirty && self.swap.is_full) || self.cache.is_writing(frame) {
            // It can't go now; what is being written still was used again meanwhile.
            self.cache.stay(frame);
        } else if self.cache.is_mapped(frame) {
            self.swap.unmaps.push_back(frame);
        } else {
            self.cache.rest(frame);
        }
    }

    /// How many pages are ready, or will be without more being done.
    fn coming(&self) -> u32 {
        self.cache.ready_pages() + self.cache.coming_pages()
    }

    /// Whether the device has failed so often that it is left alone, until something needs room.
    fn is_broken(&self) -> bool {
        self.swap.failures_in_row >= FAILURES_IN_ROW_MAX
    }

    /// What waits has no room, and nothing that would make any is on its way:
    /// it ends with an error. Gives whether it did.
    pub(super) fn fail_for_want_of_room(&mut self, read: ReadId) -> bool {
        let is_broken = self.is_broken();
        let is_stuck =
            self.cache.coming_pages() == 0 && self.budget.pinned == 0 && self.budget.ahead == 0;
        if self.memories.is_empty() || !(is_broken || is_stuck) {
            return false;
        }
        let failure = self.swap.last_failure.filter(|_| is_broken);
        let (slots, bad_slots) = (self.swap.area.slots(), self.swap.area.bad_slots());
        let error = match failure {
            Some(error) => ReadError::SwapWrite { error },
            None => ReadError::SwapFull { slots, bad_slots },
        };
        self.swap.failures_in_row = 0;
        self.waiting.pop_front();
        self.reads[read.0 as usize].error = Some(error);
        match self.reads[read.0 as usize].kind {
            Kind::Memory { .. } => self.finish_fault(read),
            _ => self.finish(read),
        }
        true
    }

    /// Makes requests of the pages that are to be written; gives whether there
    /// were slots for all of them.
    fn write_out(&mut self, now: Time) -> bool {
        if self.swap.to_write.is_empty() {
            return true;
        }
        let mut frames = core::mem::take(&mut self.swap.to_write);
        if self.swap.swap_out == SwapOut::Neighbours {
            frames.sort_unstable_by_key(|&frame| self.cache.page_of(frame));
        }
        frames.iter().for_each(|&frame| self.cache.begin_write(frame));
        let mut rest = frames.as_slice();
        while let Some(run) = self.find_slots(rest.len() as u64) {
            let (batch, later) = rest.split_at(run.count() as usize);
            for (slot, &frame) in run.pages().zip(batch) {
                self.take_slot(slot, frame);
            }
            self.swap.counters.swap_out_pages += run.count();
            let request = self.slots_request(Op::Write, run, self.swap.writer);
            let content = Content::Slots { range: run, ahead_pages: 0 };
            let request = self.transfers.open(request, content);
            self.push(now, request);
            rest = later;
        }
        for &frame in rest {
            self.cache.end_write(frame, true);
        }
        self.swap.is_full = !rest.is_empty();
        frames.clear();
        self.swap.to_write = frames;
        !self.swap.is_full
    }

    /// Slots for so many pages, or for some of them; None when there are none
    /// (or no page is left).
    fn find_slots(&mut self, pages: u64) -> Option<PageRange> {
        let wanted = pages.min(self.swap.write_pages_max);
        if wanted == 0 {
            return None;
        }
        if self.swap.area.free_slots() == 0 {
            let is_spare = |owner: Owner| {
                let file = self.memories[owner.memory.0 as usize].file;
                self.cache.find(file, owner.page).is_some_and(|frame| self.cache.is_settled(frame))
            };
            let (_, owner) = self.swap.area.next_held(is_spare)?;
            let file = self.memories[owner.memory.0 as usize].file;
            let frame = self.cache.find(file, owner.page).expect("it was found just now");
            self.make_dirty(owner.memory, owner.page, frame);
        }
        self.swap.area.find_run(wanted)
    }

    /// Slots have been written, or not. Pages that could not be stay in memory,
    /// and their slots are never used again.
    pub(super) fn complete_swap_out(
        &mut self,
        request: Request,
        range: PageRange,
        outcome: PartOutcome,
        is_merged: bool,
    ) {
        let waiters = self.transfers.close(request.id);
        debug_assert!(waiters.is_empty(), "nobody waits for a page to be written");
        self.transfers.recycle(request.id, waiters);
        let (good_pages, error) = outcome.good_pages();
        let good_end = range.first + good_pages;
        let is_alone = range.count() == 1 && !is_merged;
        for slot in range.pages() {
            let frame = self.frame_of_slot(slot);
            if slot < good_end {
                self.swap.failures_in_row = 0;
                self.cache.end_write(frame, false);
                if self.cache.is_dirty(frame) {
                    let (file, page) = self.cache.page_of(frame);
                    self.give_up_slot(self.memory_of(file), page);
                }
                self.swap.is_full = false;
            } else if is_alone {
                self.swap.counters.failed_writes += 1;
                self.swap.failures_in_row += 1;
                self.swap.last_failure = Some(error);
                self.lose_slot(slot, error);
                self.cache.end_write(frame, true);
            } else {
                let range = PageRange::new(slot, 1);
                let alone = self.slots_request(Op::Write, range, request.process);
                let content = Content::Slots { range, ahead_pages: 0 };
                self.retries.push_back(self.transfers.open_retry(alone, content));
            }
        }
    }
}

/// After so many pages in a row that the device failed to write, what waits for
/// room is told, and the device is tried again for the next.
const FAILURES_IN_ROW_MAX: u32 = 8;
