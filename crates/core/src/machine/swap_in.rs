//! Swapping in: what the law wants beside the page of a fault, and how it comes.

use super::complete::PartOutcome;
use super::pages::{cut, join_adjacent};
use super::swap_area::SwapArea;
use super::*;
use crate::cache::Mark;
use crate::swapin::{MemoryId, SwapFault, SwapRead, SwapinLaw, Swapped};

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
        let wanted = self.ask_swapin(now, |law, swapped| law.miss(fault, swapped));
        self.read_swapped(now, Some(fault.slot), Some(wanted), fault, read);
    }

    /// A fault has found its page, which the law had read ahead: the law may go on.
    pub(super) fn swap_in_further(&mut self, now: Time, read: ReadId, fault: &SwapFault) {
        let wanted = self.ask_swapin(now, |law, swapped| law.hit(fault, swapped));
        self.read_swapped(now, None, wanted, fault, read);
    }

    fn ask_swapin<T>(
        &mut self,
        now: Time,
        ask: impl FnOnce(&mut dyn SwapinLaw, &mut dyn Swapped) -> T,
    ) -> T {
        let is_short = self.is_congested();
        let spare = self.cache.ready_pages().saturating_sub(self.swap.ready_pages / 2);
        let waiting_faults = self.budget.pinned + self.waiting.len() as u64;
        let (counters, evidence) = (self.cache.counters(), &mut self.evidence);
        let gone = counters.used_pages + counters.waste_pages;
        evidence.now = now;
        evidence.memory_pages = self.cache.budget_pages().into();
        evidence.standing_pages = counters.readahead_pages - gone;
        let mut swapped = SwappedOut {
            cache: &self.cache,
            memories: &self.memories,
            area: &self.swap.area,
            room_pages: if is_short { 0 } else { spare.into() },
            lacking_pages: 0,
            waiting_faults,
            evidence,
        };
        let wanted = ask(&mut *self.swap.law, &mut swapped);
        let lacking_pages = swapped.lacking_pages;
        self.swap.ready_for_law(lacking_pages, self.cache.budget_pages());
        wanted
    }

    /// Reads a slot that a fault waits for, if there is one, and what the law wants to be read.
    fn read_swapped(
        &mut self,
        now: Time,
        awaited: Option<u64>,
        wanted: Option<SwapRead>,
        fault: &SwapFault,
        read: ReadId,
    ) {
        let mut runs = core::mem::take(&mut self.runs);
        let own = awaited.map_or(PageRange::default(), |slot| PageRange::new(slot, 1));
        runs.extend(awaited.map(|_| own));
        match wanted {
            None => {}
            Some(SwapRead::Slots(range)) => {
                let slots = range.clipped(fault.slots).pages();
                slots.for_each(|slot| self.add_ahead(Some(slot), Mark::Set, &mut runs));
            }
            Some(SwapRead::Pages(range)) => {
                for page in range.clipped(fault.memory_pages).pages() {
                    self.add_ahead(self.slot_of(fault.memory, page), Mark::Set, &mut runs);
                }
            }
        }
        let joined = join_adjacent(&mut runs);
        runs.truncate(joined);
        // The run that somebody waits for goes first.
        if let Some(first) = runs.iter().position(|run| !own.is_empty() && run.contains(own.first))
        {
            runs[..=first].rotate_right(1);
        }
        let pages_max = u64::from(self.config.caps.request_sectors_max) / PAGE_SECTORS;
        let process = self.reads[read.0 as usize].transfer.process;
        for run in runs.drain(..) {
            cut(run, own, pages_max, |range| {
                let is_awaited = awaited.is_some_and(|slot| range.contains(slot));
                let ahead = range.count() - u64::from(is_awaited);
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

/// What is swapped out, as the law sees it during one fault.
struct SwappedOut<'a> {
    cache: &'a Cache,
    memories: &'a [Memory],
    area: &'a SwapArea,
    room_pages: u64,
    lacking_pages: u64,
    waiting_faults: u64,
    evidence: &'a mut DeviceEvidence,
}

impl Swapped for SwappedOut<'_> {
    fn absent_slot(&self, memory: MemoryId, page: u64) -> Option<u64> {
        let mapping = &self.memories[memory.0 as usize];
        let slot = mapping.slot_of(page)?;
        self.cache.find(mapping.file, page).is_none().then_some(slot)
    }

    fn absent_page(&self, slot: u64) -> Option<(MemoryId, u64)> {
        let owner = self.area.owner(slot)?;
        let file = self.memories[owner.memory.0 as usize].file;
        let is_absent = self.cache.find(file, owner.page).is_none();
        is_absent.then_some((owner.memory, owner.page))
    }

    fn room_for(&mut self, pages: u64) -> u64 {
        self.lacking_pages = pages.saturating_sub(self.room_pages);
        pages.min(self.room_pages)
    }

    fn waiting_faults(&self) -> u64 {
        self.waiting_faults
    }

    fn wasted_pages(&self) -> u64 {
        self.cache.counters().memory_waste_pages
    }

    fn evidence(&mut self) -> &mut DeviceEvidence {
        self.evidence
    }
}
