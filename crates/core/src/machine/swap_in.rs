//! Swapping in: what the law wants beside the page of a fault, and how it comes.

use super::complete::PartOutcome;
use super::pages::{cut, join_adjacent};
use super::*;
use crate::cache::Mark;
use crate::swapin::{MemoryId, SwapFault, SwapRead};

impl ReadPath {
    /// A program says that it will need the pages of the range: those that are
    /// swapped out are read ahead of its faults, in the order of their slots.
    ///
    /// As many at most as are ready, less half of what is kept ready, so that
    /// faults find some; and none while faults or reads wait for memory. Gives
    /// the first page that was not dealt with, the end of the range when none is
    /// left: when more is ready, go on from there.
    ///
    /// These pages carry no mark: the law did not guess them, and learns nothing
    /// from their use.
    ///
    /// # Panics
    /// The range reaches past the end of its mapping.
    pub fn will_need(
        &mut self,
        now: Time,
        memory: MemoryId,
        range: PageRange,
        process: ProcessId,
    ) -> u64 {
        let reserve = self.swap.ready_pages / 2;
        let file = self.memories[memory.0 as usize].file;
        let mut runs = core::mem::take(&mut self.runs);
        let mut page = range.first;
        while page < range.end {
            let slot = self.slot_of(memory, page);
            if slot.is_some() && self.cache.find(file, page).is_none() {
                let is_short = self.cache.ready_pages() <= reserve || !self.has_room_for(1);
                if is_short || self.is_short_of_memory() || self.is_congested() {
                    break;
                }
                self.add_ahead(slot, Mark::Clear, &mut runs);
            }
            page += 1;
        }
        let joined = join_adjacent(&mut runs);
        runs.truncate(joined);
        let pages_max = u64::from(self.config.caps.request_sectors_max) / PAGE_SECTORS;
        for run in runs.drain(..) {
            cut(run, PageRange::default(), pages_max, |range| {
                self.read_slots(now, range, range.count() as u32, process);
            });
        }
        self.runs = runs;
        self.admit(now);
        page
    }

    /// Reads the slot of a fault, whose page was added already, and what the law adds to it.
    pub(super) fn swap_in(&mut self, now: Time, read: ReadId, fault: &SwapFault) {
        let wanted = self.swap.law.miss(fault);
        let mut runs = core::mem::take(&mut self.runs);
        let own = PageRange::new(fault.slot, 1);
        runs.push(own);
        match wanted {
            SwapRead::Slots(range) => {
                let slots = range.clipped(fault.slots).pages();
                slots.for_each(|slot| self.add_ahead(Some(slot), Mark::Set, &mut runs));
            }
            SwapRead::Pages(range) => {
                for page in range.clipped(fault.memory_pages).pages() {
                    self.add_ahead(self.slot_of(fault.memory, page), Mark::Set, &mut runs);
                }
            }
        }
        let joined = join_adjacent(&mut runs);
        runs.truncate(joined);
        // The run that somebody waits for goes first.
        let first = runs.iter().position(|run| run.contains(fault.slot));
        runs[..=first.expect("its slot is in one of them")].rotate_right(1);
        let pages_max = u64::from(self.config.caps.request_sectors_max) / PAGE_SECTORS;
        let process = self.reads[read.0 as usize].transfer.process;
        for run in runs.drain(..) {
            cut(run, own, pages_max, |range| {
                let ahead = range.count() - u64::from(range.contains(fault.slot));
                self.read_slots(now, range, ahead as u32, process);
            });
        }
        self.runs = runs;
    }

    /// Adds the page of a slot ahead of need, if it holds one that is not in
    /// memory, and if there is room.
    fn add_ahead(&mut self, slot: Option<u64>, mark: Mark, runs: &mut Vec<PageRange>) {
        let Some((slot, owner)) = slot.and_then(|slot| Some((slot, self.swap.area.owner(slot)?)))
        else {
            return;
        };
        let file = self.memories[owner.memory.0 as usize].file;
        if self.cache.find(file, owner.page).is_some() || !self.has_room_for(1) {
            return;
        }
        self.add_page(file, owner.page, mark, true);
        self.budget.ahead += 1;
        match runs.last_mut() {
            Some(run) if run.end == slot => run.end += 1,
            _ => runs.push(PageRange::new(slot, 1)),
        }
    }

    fn read_slots(&mut self, now: Time, range: PageRange, ahead_pages: u32, process: ProcessId) {
        self.swap.counters.swap_in_pages += range.count();
        let request = self.slots_request(Op::Read, range, process);
        let request = self.transfers.open(request, Content::Slots { range, ahead_pages });
        for slot in range.pages() {
            let frame = self.frame_of_slot(slot);
            self.cache.carry(frame, request.id);
        }
        self.push(now, request);
    }

    pub(super) fn slots_request(&self, op: Op, range: PageRange, process: ProcessId) -> Request {
        Request {
            id: RequestId(0),
            op,
            start: self.swap.area.sector(range.first),
            sectors: (range.count() * PAGE_SECTORS) as u32,
            process,
            priority: self.priority(process),
            is_sync: op == Op::Read,
        }
    }

    /// Slots have been read, or not. Of a failed request that carried more than
    /// one page those that are waited for are tried again alone.
    pub(super) fn complete_swap_in(
        &mut self,
        request: Request,
        range: PageRange,
        outcome: PartOutcome,
        is_merged: bool,
    ) {
        let waiters = self.transfers.close(request.id);
        let (good_pages, error) = outcome.good_pages();
        let good_end = range.first + good_pages;
        let is_alone = range.count() == 1 && !is_merged;
        for slot in range.pages() {
            let frame = self.frame_of_slot(slot);
            if slot < good_end {
                self.cache.fill(frame);
                self.swap.is_full = false;
                continue;
            }
            let is_awaited = waiters.iter().any(|&read| self.waits_for(read, frame));
            if !is_alone && is_awaited {
                self.read_alone(request, slot, frame, &waiters);
            } else {
                self.cache.fail(frame);
            }
        }
        for &read in &waiters {
            let frame = self.reads[read.0 as usize].frames[0];
            let slot = &mut self.reads[read.0 as usize];
            match self.cache.state(frame) {
                FrameState::InFlight(_) => continue,
                FrameState::Filled => {}
                _ => {
                    let offset = slot.transfer.offset;
                    slot.error = Some(ReadError::Device { offset, error });
                }
            }
            slot.pending = 0;
            self.finish_fault(read);
        }
        self.transfers.recycle(request.id, waiters);
    }

    fn waits_for(&self, read: ReadId, frame: FrameId) -> bool {
        self.reads[read.0 as usize].frames[0] == frame
    }

    fn read_alone(&mut self, request: Request, slot: u64, frame: FrameId, waiters: &[ReadId]) {
        let range = PageRange::new(slot, 1);
        let alone = self.slots_request(Op::Read, range, request.process);
        let again = self.transfers.open_retry(alone, Content::Slots { range, ahead_pages: 0 });
        self.cache.carry(frame, again.id);
        for &read in waiters.iter().filter(|&&read| self.reads[read.0 as usize].frames[0] == frame)
        {
            self.transfers.wait(again.id, read);
        }
        self.retries.push_back(again);
    }
}
