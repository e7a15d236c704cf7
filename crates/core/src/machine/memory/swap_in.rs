//! Swap-in: the pages that the policy adds to a fault, and their requests. A *slot* is a part of
//! the swap area that holds one page. A *ready* frame is free, or has a page that can leave at
//! once: clean and unmapped.

use alloc::vec::Vec;

use super::area::SwapArea;
use super::{FaultId, MachineMapping, MachineMemory};
use crate::cache::{Cache, FrameState, Mark};
use crate::machine::files::{join_adjacent, split_run};
use crate::machine::queue::{EndedPart, RequestContent, Waiter};
use crate::machine::{ReadError, SharedState};
use crate::readahead::DeviceEvidence;
use crate::request::{Need, Op, ProcessId, Request, RequestId};
use crate::swapin::{MemoryId, SwapFault, SwapRead, SwapinPolicy, SwappedPageQueries};
use crate::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, Time};

impl MachineMemory {
    /// Prefetches the swapped-out pages of the range, as far as frames are available. Stops while
    /// faults or reads wait for memory, or the queue is congested. Returns the first page that was
    /// not processed. See [`Machine::will_need`](crate::machine::Machine).
    pub(in crate::machine) fn will_need(
        &mut self,
        now: Time,
        base: &mut SharedState,
        memory: MemoryId,
        range: PageRange,
        process: ProcessId,
    ) -> u64 {
        // Half of the frames kept ready stay for faults.
        let frames_for_faults = self.swap.ready_pages / 2;
        let file = self.file_of(memory);
        let mut runs = core::mem::take(&mut self.runs);
        // Adds the absent pages as pages in flight, until frames or the queue are short.
        let mut page = range.first;
        while page < range.end {
            let slot = self.slot_of(memory, page);
            if slot.is_some() && base.frames.cache.find(file, page).is_none() {
                // The frames for faults must stay, and the budget must have room for the page.
                let is_short = base.frames.cache.ready_pages() <= frames_for_faults
                    || !base.frames.has_room_for(1);
                if is_short || !base.waiting.is_empty() || base.queue.is_congested() {
                    break;
                }
                // Without a mark: the policy did not select the page, and learns nothing from it.
                self.add_prefetched(base, slot, Mark::Clear, &mut runs);
            }
            page += 1;
        }
        // Reads their slots, adjacent ones together.
        let joined = join_adjacent(&mut runs);
        runs.truncate(joined);
        for run in runs.drain(..) {
            // No page of these is requested.
            split_run(run, PageRange::default(), base.queue.request_pages_max(), |range| {
                self.read_slots(now, base, range, range.count() as u32, process);
            });
        }
        self.runs = runs;
        page
    }

    /// Handles a fault on a page that was swapped out: reads its slot, whose page was already
    /// added, and the pages that the policy selects.
    pub(super) fn swap_in(
        &mut self,
        now: Time,
        base: &mut SharedState,
        fault: &SwapFault,
        process: ProcessId,
    ) {
        let selected = self.call_policy(now, base, |policy, swapped| policy.miss(fault, swapped));
        self.send_swap_reads(now, base, Some(fault.slot), Some(selected), fault, process);
    }

    /// Handles a fault on a prefetched page that is in memory or in flight: reads the further pages
    /// that the policy selects, if it selects any.
    pub(super) fn swap_in_at_hit(
        &mut self,
        now: Time,
        base: &mut SharedState,
        fault: &SwapFault,
        process: ProcessId,
    ) {
        let selected = self.call_policy(now, base, |policy, swapped| policy.hit(fault, swapped));
        // The page of the fault is in memory already, or on its way.
        let demand_slot = None;
        self.send_swap_reads(now, base, demand_slot, selected, fault, process);
    }

    /// Runs `call` with the policy and the present state, and returns its result. Adapts the number
    /// of ready frames to the frames that the policy lacked. A congested queue counts as a lack of
    /// all of them.
    fn call_policy<T>(
        &mut self,
        now: Time,
        base: &mut SharedState,
        call: impl FnOnce(&mut dyn SwapinPolicy, &mut dyn SwappedPageQueries) -> T,
    ) -> T {
        let is_congested = base.queue.is_congested();
        let cache = &base.frames.cache;
        // Half of the frames kept ready stay for faults.
        let spare_pages = cache.ready_pages().saturating_sub(self.swap.ready_pages / 2);
        let pinned_and_waiting = base.frames.budget.pinned_pages + base.waiting.len() as u64;
        // For the policy: the time, the memory, and the prefetched pages that are not used yet.
        let evidence = &mut base.queue.evidence;
        evidence.now = now;
        evidence.memory_pages = cache.budget_pages().into();
        evidence.standing_pages = cache.counters().standing_pages();
        let mut swapped = SwappedOut {
            cache,
            mappings: &self.mappings,
            area: &self.swap.area,
            room_pages: if is_congested { 0 } else { spare_pages.into() },
            lacking_pages: 0,
            pinned_and_waiting,
            evidence,
        };
        let selected = call(&mut *self.swap.policy, &mut swapped);
        // Recorded by `prefetch_room`; 0 if the policy did not ask for room.
        let lacking_pages = swapped.lacking_pages;
        self.swap.adapt_ready_frames(lacking_pages, cache.budget_pages());
        selected
    }

    /// Sends reads of the slot `demand_slot`, for which a fault waits, if there is one, and of the
    /// pages that the policy selected for `fault`, as far as they exist. The request with the slot
    /// of the fault goes first. Selected pages are marked, so that the policy sees the first fault
    /// on each.
    fn send_swap_reads(
        &mut self,
        now: Time,
        base: &mut SharedState,
        demand_slot: Option<u64>,
        selected: Option<SwapRead>,
        fault: &SwapFault,
        process: ProcessId,
    ) {
        // The slot of the fault is the first run: its page is in flight already. The selected pages
        // are added as pages in flight.
        let mut runs = core::mem::take(&mut self.runs);
        let demand_range = demand_slot.map_or(PageRange::default(), |slot| PageRange::new(slot, 1));
        runs.extend(demand_slot.map(|_| demand_range));
        match selected {
            None => {}
            Some(SwapRead::Slots(range)) => {
                let slots = range.clipped(fault.slots).pages();
                slots.for_each(|slot| self.add_prefetched(base, Some(slot), Mark::Set, &mut runs));
            }
            Some(SwapRead::Pages(range)) => {
                for page in range.clipped(fault.memory_pages).pages() {
                    let slot = self.slot_of(fault.memory, page);
                    self.add_prefetched(base, slot, Mark::Set, &mut runs);
                }
            }
        }
        let joined = join_adjacent(&mut runs);
        runs.truncate(joined);
        // Moves the run with the page of the fault to the front.
        if let Some(index) =
            runs.iter().position(|run| !demand_range.is_empty() && run.contains(demand_range.first))
        {
            runs[..=index].rotate_right(1);
        }
        for run in runs.drain(..) {
            split_run(run, demand_range, base.queue.request_pages_max(), |range| {
                let has_waiting_fault = demand_slot.is_some_and(|slot| range.contains(slot));
                let ahead_pages = range.count() - u64::from(has_waiting_fault);
                self.read_slots(now, base, range, ahead_pages as u32, process);
            });
        }
        self.runs = runs;
    }

    /// Adds the page of a slot as prefetched and in flight, if it is absent and a frame is
    /// available. Appends its slot to `runs`. No effect on a free or bad slot, or `None`. `mark`
    /// is set for a page that the policy selected: a fault on it is then a hit, at which the policy
    /// is called.
    fn add_prefetched(
        &mut self,
        base: &mut SharedState,
        slot: Option<u64>,
        mark: Mark,
        runs: &mut Vec<PageRange>,
    ) {
        let Some((slot, owner)) = slot.and_then(|slot| Some((slot, self.swap.area.owner(slot)?)))
        else {
            return;
        };
        let file = self.file_of(owner.memory);
        let frames = &mut base.frames;
        if frames.cache.find(file, owner.page).is_some() || !frames.has_room_for(1) {
            return;
        }
        let is_ahead = true;
        frames.add_memory(file, owner.page, mark, is_ahead);
        frames.budget.prefetch_pages += 1;
        match runs.last_mut() {
            Some(run) if run.end == slot => run.end += 1,
            _ => runs.push(PageRange::new(slot, 1)),
        }
    }

    /// Sends a read request for a run of slots, of which `ahead_pages` are prefetched, and stores
    /// it in the frames of their pages.
    fn read_slots(
        &mut self,
        now: Time,
        base: &mut SharedState,
        slots: PageRange,
        ahead_pages: u32,
        process: ProcessId,
    ) {
        self.swap.counters.swap_in_pages += slots.count();
        let has_waiting_fault = u64::from(ahead_pages) < slots.count();
        let request = Request {
            need: Need::of(has_waiting_fault),
            ..self.slots_request(base, Op::Read, slots, process)
        };
        let content = RequestContent::Slots { range: slots, ahead_pages };
        let request_id = base.queue.send(now, request, content);
        for slot in slots.pages() {
            let frame = self.frame_of_slot(base, slot);
            base.frames.cache.set_request(frame, request_id);
        }
    }

    /// A request that reads or writes some slots, with the need of a prefetch. A read that a fault
    /// waits for gets its need from the caller.
    pub(super) fn slots_request(
        &self,
        base: &SharedState,
        op: Op,
        slots: PageRange,
        process: ProcessId,
    ) -> Request {
        Request {
            op,
            start: self.swap.area.sector(slots.first),
            sectors: (slots.count() * PAGE_SECTORS) as u32,
            process,
            priority: base.queue.priority(process),
            // No caller waits for a write of the area.
            is_sync: op == Op::Read,
            need: Need::Prefetch,
        }
    }

    /// Sends the request for a single slot of the request `failed` again, without the scheduler.
    /// Returns the new identifier.
    pub(super) fn retry_slot(
        &self,
        base: &mut SharedState,
        failed: &Request,
        slot: u64,
    ) -> RequestId {
        let range = PageRange::new(slot, 1);
        let retry = self.slots_request(base, failed.op, range, failed.process);
        let retry = Request { priority: failed.priority, ..retry };
        // A fault waits for the page, or the page is written: it is not prefetched. The waiter of a
        // read makes it a demand request, by `add_waiter`.
        base.queue.enqueue_retry(retry, RequestContent::Slots { range, ahead_pages: 0 })
    }

    /// Processes the end of a read of slots, successful or not: fills or fails their pages, and
    /// ends the faults that wait for them. If a request for several pages failed, or one that was
    /// merged, its missing pages with a waiting fault are retried individually, because the error
    /// may be in another page. Missing pages without a waiting fault fail at once. Returns the list
    /// of waiters for its memory to be reused.
    pub(super) fn complete_swap_in(
        &mut self,
        base: &mut SharedState,
        ended: EndedPart,
        slots: PageRange,
    ) -> Vec<Waiter> {
        let EndedPart { request, outcome, is_merged, waiters, .. } = ended;
        // `error` is the error of the pages behind the good ones.
        let (good_pages, error) = outcome.good_pages();
        let good_end = slots.first + good_pages;
        let is_single_slot = slots.count() == 1 && !is_merged;
        // Each page is filled, fails, or is retried alone.
        for slot in slots.pages() {
            let frame = self.frame_of_slot(base, slot);
            if slot < good_end {
                base.frames.cache.fill(frame);
                // The slot of a clean page in memory can be reused for another page.
                self.swap.is_full = false;
                continue;
            }
            let waits_for_it = |&waiter: &Waiter| self.frame_of(waiting_fault(waiter)) == frame;
            if is_single_slot || !waiters.iter().any(waits_for_it) {
                base.frames.cache.fail(frame);
                continue;
            }
            let retry = self.retry_slot(base, &request, slot);
            base.frames.cache.set_request(frame, retry);
            for &waiter in waiters.iter().filter(|waiter| waits_for_it(waiter)) {
                base.queue.add_waiter(retry, waiter);
            }
        }
        // Each fault whose page has arrived or failed ends.
        for fault in waiters.iter().copied().map(waiting_fault) {
            match base.frames.cache.state(self.frame_of(fault)) {
                // The fault waits for the retry.
                FrameState::InFlight(_) => continue,
                FrameState::Filled => {}
                // The page failed: the fault gets the error of the request.
                _ => {
                    let offset = self.fault_state(fault).cause.page * PAGE_BYTES;
                    self.fault_state_mut(fault).error = Some(ReadError::Device { offset, error });
                }
            }
            self.finish(base, fault);
        }
        waiters
    }
}

/// The fault that waits for a slot. Panics for a read, which never waits for one.
fn waiting_fault(waiter: Waiter) -> FaultId {
    match waiter {
        Waiter::Fault(fault) => fault,
        Waiter::Read(_) => unreachable!("reads wait for pages of files"),
    }
}

/// The swapped-out pages, as the policy sees them during one fault.
struct SwappedOut<'a> {
    /// The cache, which shows if a page is in memory.
    cache: &'a Cache,
    /// All mappings, with the slot of each page.
    mappings: &'a [MachineMapping],
    /// The swap area, with the page of each slot.
    area: &'a SwapArea,
    /// Frames available for prefetch, with half of the ready frames left for faults; 0 if the queue
    /// is congested.
    room_pages: u64,
    /// Pages of the policy's last query that may not be prefetched now, for lack of frames or
    /// because the queue is congested.
    lacking_pages: u64,
    /// Number of pages that begun faults (one each) and reads pin, plus the number of faults and
    /// reads that wait for memory.
    pinned_and_waiting: u64,
    /// Observations about the device, for the policy.
    evidence: &'a mut DeviceEvidence,
}

impl SwappedPageQueries for SwappedOut<'_> {
    /// Slot of a page that is swapped out; `None` if the page is in memory, being read, or without
    /// a slot.
    fn absent_slot(&self, memory: MemoryId, page: u64) -> Option<u64> {
        let mapping = &self.mappings[memory.0 as usize];
        let slot = mapping.slot_of(page)?;
        self.cache.find(mapping.file, page).is_none().then_some(slot)
    }

    /// Mapping and page whose data is in a slot; `None` if the slot is free or the page is in
    /// memory.
    fn absent_page(&self, slot: u64) -> Option<(MemoryId, u64)> {
        let owner = self.area.owner(slot)?;
        let file = self.mappings[owner.memory.0 as usize].file;
        let is_absent = self.cache.find(file, owner.page).is_none();
        is_absent.then_some((owner.memory, owner.page))
    }

    /// Number of pages, up to `pages`, for which frames are ready; 0 if the queue was congested.
    /// Records the number of the other pages, for which frames are then freed.
    fn prefetch_room(&mut self, pages: u64) -> u64 {
        self.lacking_pages = pages.saturating_sub(self.room_pages);
        pages.min(self.room_pages)
    }

    /// Number of waiting faults, including this one. Each page that a read pins counts as a fault,
    /// and so does a read that waits for memory.
    fn waiting_faults(&self) -> u64 {
        self.pinned_and_waiting
    }

    /// Total number of prefetched pages of memory that left unused.
    fn wasted_pages(&self) -> u64 {
        self.cache.counters().memory_waste_pages
    }

    /// Evidence of the device for the policy.
    fn evidence(&mut self) -> &mut DeviceEvidence {
        self.evidence
    }
}
