//! Swap-out: pages are unmapped and written ahead of need, so that a fault finds a frame.
//!
//! How it works: two kinds of pages count as ready. They are free or clean and unmapped, or they
//! are on their way to that state. The target is `ready_pages` plus the frames that the swap-in
//! policy recently lacked for prefetch. Below the target, the oldest pages leave until it is
//! exceeded by one whole write. A mapped page is unmapped first. A dirty page then rests, if second
//! chances are configured, and is written together with the other leaving pages. A page that is
//! used again meanwhile stays. A fault or a read that waits for more frames than that makes more
//! pages leave.
//!
//! A page is *leaving* from its selection until its write begins or it stays; it is then on no list
//! of the cache. A *second chance* is the rest of an unmapped dirty page, on a list of its own,
//! before its write. A page that is *set aside* can't leave now, and is skipped until the selection
//! ends. The area is *full* (`is_full`) if a page found no slot, and none became free since.
//!
//! *The pages that leave together* are determined by [`SwapOut`]. A swap-in policy can read
//! neighbouring slots in one request, so pages that are used together should leave together. For
//! one program, the oldest pages in order of age, as in the kernel, are such pages. If several
//! programs sweep their own memory, each has a page or two among 64, and neighbours by address get
//! distant slots. By default, a page therefore takes its neighbours by address with it, on both
//! sides. The condition is that each was not used again and is at least half as old: it would have
//! left soon anyway. The pages of a write are sorted by mapping and address. With random touches
//! few pages have such neighbours, and the sorting costs nothing: they stay one write.
//!
//! Rejected: a cluster of slots for each mapping (the kernel has one for each processor). It turns
//! the single write of a random load into small writes all over the area, and reserves slots for
//! mappings that don't need them.
//!
//! If no slot is free, slots of unchanged pages in memory are freed. If there are none, waiting
//! faults and reads fail.

use alloc::vec::Vec;

use super::area::SlotOwner;
use super::{MachineMemory, MemoryId, SwapOut, Unmap};
use crate::cache::{FileId, FrameId, LeavingChoice};
use crate::machine::queue::{EndedPart, RequestContent, Waiter};
use crate::machine::{ReadError, SharedState};
use crate::request::Op;
use crate::unit::{PageRange, Time};

impl MachineMemory {
    /// The next page to unmap from a program's address space; `None` if there is none. The page
    /// counts as unmapped from this call on. The caller must unmap it and call
    /// [`handle_unmapped`](MachineMemory::handle_unmapped).
    pub(in crate::machine) fn poll_unmap(&mut self, base: &mut SharedState) -> Option<Unmap> {
        let frame = self.swap.unmaps.pop_front()?;
        let cache = &mut base.frames.cache;
        debug_assert!(cache.is_leaving(frame) && cache.is_mapped(frame));
        self.swap.unmaps_unanswered += 1;
        let is_mapped = false;
        cache.set_mapped(frame, is_mapped);
        let (file, page) = cache.page_of(frame);
        Some(Unmap { memory: self.memory_of(file), page, frame })
    }

    /// Records that no program has the page in its address space any more. A dirty page gets its
    /// second chance, or is queued for writing. A page that is clean, or cannot be written now,
    /// moves to the list for its state. Returns true once all polled unmaps are answered. Until
    /// then the frames of clean ones count as available but are on no list: no waiting fault may
    /// begin.
    pub(in crate::machine) fn handle_unmapped(
        &mut self,
        base: &mut SharedState,
        unmap: Unmap,
        was_written: bool,
    ) -> bool {
        let Unmap { memory, page, frame } = unmap;
        debug_assert!(base.frames.cache.is_leaving(frame) && !base.frames.cache.is_mapped(frame));
        self.swap.unmaps_unanswered -= 1;
        if was_written && !base.frames.cache.is_dirty(frame) {
            self.make_dirty(base, memory, page, frame);
        }
        let cache = &mut base.frames.cache;
        if !cache.is_dirty(frame) || cache.is_writing(frame) || self.swap.is_full {
            // The page is clean and thus ready, or can't be written now: its write is in progress,
            // or no slot is free. `cancel_leaving` puts it on the list for its state.
            cache.cancel_leaving(frame);
        } else if self.swap.second_chance_pages == 0 {
            self.swap.to_write.push(frame);
        } else {
            cache.begin_second_chance(frame);
        }
        self.swap.unmaps_unanswered == 0
    }

    /// Makes a mapped page dirty that was or may have been written without a fault. Its outdated
    /// slot is freed: at once, or after a write in progress, which leaves the page dirty.
    ///
    /// # Panics
    /// The page is not in memory.
    pub(in crate::machine) fn handle_written(
        &mut self,
        base: &mut SharedState,
        memory: MemoryId,
        page: u64,
    ) {
        let frame = base.frames.cache.find(self.file_of(memory), page);
        let frame = frame.expect("a page that is mapped is in memory");
        if !base.frames.cache.is_dirty(frame) {
            self.make_dirty(base, memory, page, frame);
        }
    }

    /// Removes a page that is used again, or discarded, from the pages to be unmapped or written.
    /// No effect on a page that is not leaving. Its queued unmap or write would otherwise take the
    /// page from the program again.
    pub(super) fn cancel_swap_out(&mut self, base: &SharedState, frame: FrameId) {
        if base.frames.cache.is_leaving(frame) {
            self.swap.unmaps.retain(|&other| other != frame);
            self.swap.to_write.retain(|&other| other != frame);
        }
    }

    /// Makes pages leave until enough are ready or on their way. Writes the dirty ones once all
    /// pages of the batch are unmapped. No effect without a mapping.
    pub(in crate::machine) fn make_room(&mut self, now: Time, base: &mut SharedState) {
        if self.is_unused() {
            return;
        }
        loop {
            self.choose_leaving(base);
            let is_unmapping = self.swap.unmaps_unanswered > 0 || !self.swap.unmaps.is_empty();
            if is_unmapping {
                // The machine calls again after the last answer.
                return;
            }
            let has_slots_for_all = self.write_out(now, base);
            if has_slots_for_all {
                return;
            }
            // Dirty pages without a slot stay, and others may have to leave. The loop ends, because
            // no further page begins a second chance while the area is full.
        }
    }

    /// Selects pages to leave until the target of ready pages is exceeded by one batch, and until
    /// the first waiting read or fault has its pages. No effect while both have enough, or while
    /// writes are suspended and nothing waits for a frame.
    ///
    /// Pages at the end of their second chance come first: they are unmapped already. If a read or
    /// a fault waits, no page has a second chance any more: the waiter needs the frames now. With
    /// `Neighbours`, the neighbours of a leaving page leave with it if they are at least half as
    /// old.
    fn choose_leaving(&mut self, base: &mut SharedState) {
        let waiting_pages = base.waiting.front().map(|waiting| waiting.needed_pages);
        if waiting_pages.is_none() && self.is_write_suspended() {
            return;
        }
        let needed_pages = waiting_pages.unwrap_or(0) as u32;
        let target_pages = self.swap.ready_pages + self.swap.ready_ahead_pages;
        if self.pages_becoming_ready(base) >= target_pages.max(needed_pages) {
            return;
        }
        // One whole write beyond the target, so that pages leave in batches; at most as many pages
        // as are kept ready for faults.
        let batch_pages = (self.swap.write_pages_max as u32).min(self.swap.ready_pages);
        let sufficient_pages = (target_pages + batch_pages).max(needed_pages);
        let resting_max = if waiting_pages.is_some() { 0 } else { self.swap.second_chance_pages };
        // Each page is checked once: if the area is full, dirty pages are only set aside.
        let mut checks_left = base.frames.cache.budget_pages();
        while self.pages_becoming_ready(base) < sufficient_pages && checks_left > 0 {
            checks_left -= 1;
            // The oldest page with a second chance, if more than `resting_max` have one.
            if let Some(frame) = base.frames.cache.end_second_chance(resting_max) {
                self.swap.to_write.push(frame);
                continue;
            }
            match base.frames.cache.choose_leaving() {
                None => break,
                // The page left at once: its frame is free.
                Some(LeavingChoice::Gone) => {}
                // The page must first be unmapped or written.
                Some(LeavingChoice::Held { frame, age }) => {
                    let (file, page) = base.frames.cache.page_of(frame);
                    self.start_leaving(base, frame);
                    if self.swap.swap_out == SwapOut::Neighbours {
                        // A neighbour leaves if it is at least half as old.
                        self.start_leaving_neighbours(base, file, page, age / 2);
                    }
                }
            }
        }
        // Pages that could not leave return to their lists.
        base.frames.cache.end_set_aside();
    }

    /// Makes the neighbours of a leaving page leave with it, on both sides, up to the size of a
    /// write. A neighbour leaves only if it is held, was not used again, and is at least `age_min`
    /// old. The age is the number of pushes to any list of the cache since its own.
    fn start_leaving_neighbours(
        &mut self,
        base: &mut SharedState,
        file: FileId,
        page: u64,
        age_min: u32,
    ) {
        // The leaving page itself is the first page of the write.
        let mut pages_left = self.swap.write_pages_max - 1;
        // Upwards, then downwards, each up to the first page that must stay.
        for step in [1, -1] {
            let mut neighbour = page;
            while pages_left > 0
                && let Some(next) = neighbour.checked_add_signed(step)
                && let Some(frame) = base.frames.cache.leave_if_old(file, next, age_min)
            {
                self.start_leaving(base, frame);
                neighbour = next;
                pages_left -= 1;
            }
        }
    }

    /// Performs the first step of a leaving page: a mapped page is queued to be unmapped, an
    /// unmapped one gets its second chance. A page that cannot leave now is set aside.
    fn start_leaving(&mut self, base: &mut SharedState, frame: FrameId) {
        let is_dirty = base.frames.cache.is_dirty(frame);
        if (is_dirty && self.swap.is_full) || base.frames.cache.is_writing(frame) {
            // The page can't leave now. If it is being written, it was used again meanwhile.
            base.frames.cache.set_aside(frame);
        } else if base.frames.cache.is_mapped(frame) {
            self.swap.unmaps.push_back(frame);
        } else {
            // A chosen page that is neither mapped nor being written is dirty. Without configured
            // second chances, `choose_leaving` takes it for writing in its next step.
            base.frames.cache.begin_second_chance(frame);
        }
    }

    /// Number of pages that are ready, or will be without further action. They are free, clean and
    /// unmapped, selected to leave, or being written.
    fn pages_becoming_ready(&self, base: &SharedState) -> u32 {
        base.frames.cache.ready_pages() + base.frames.cache.becoming_ready_pages()
    }

    /// Returns true if the device has failed to write `FAILURES_IN_ROW_MAX` pages in a row. No page
    /// is then selected until a fault or a read waits for a frame.
    fn is_write_suspended(&self) -> bool {
        self.swap.failures_in_row >= FAILURES_IN_ROW_MAX
    }

    /// The reason for which waiting faults and reads can never get a frame: the device fails to
    /// write pages, or none can leave (reported as a full area). `None` without a mapping. `None`
    /// also if writes are not suspended, and pages are on their way, or frames are pinned, reserved
    /// or being filled ahead. An error resets the count of failed writes, so that the device is
    /// tried again for the next waiter.
    pub(in crate::machine) fn no_memory_error(&mut self, base: &SharedState) -> Option<ReadError> {
        let is_write_suspended = self.is_write_suspended();
        // No page is leaving or being written, and no frame is pinned, reserved or being filled
        // ahead.
        let is_stuck = base.frames.cache.becoming_ready_pages() == 0 && base.frames.is_idle();
        if self.is_unused() || !(is_write_suspended || is_stuck) {
            return None;
        }
        let failure = self.swap.last_failure.filter(|_| is_write_suspended);
        let (slots, bad_slots) = (self.swap.area.slots(), self.swap.area.bad_slots());
        self.swap.failures_in_row = 0;
        Some(match failure {
            Some(error) => ReadError::SwapWrite { error },
            None => ReadError::SwapFull { slots, bad_slots },
        })
    }

    /// Creates write requests for the pages in `to_write`, in runs of free slots, and empties that
    /// list. Pages without a slot stay in memory, dirty. Returns true if there were slots for all.
    fn write_out(&mut self, now: Time, base: &mut SharedState) -> bool {
        if self.swap.to_write.is_empty() {
            return true;
        }
        let mut frames = core::mem::take(&mut self.swap.to_write);
        // By mapping and address, so that neighbours get neighbouring slots.
        if self.swap.swap_out == SwapOut::Neighbours {
            frames.sort_unstable_by_key(|&frame| base.frames.cache.page_of(frame));
        }
        // All count as being written from here on; below, the write ends of pages without a slot.
        frames.iter().for_each(|&frame| base.frames.cache.begin_write(frame));
        let mut rest = frames.as_slice();
        // `find_slots` returns none, and ends the loop, if no page is left or no slot is found.
        while let Some(run) = self.find_slots(base, rest.len() as u64) {
            let (batch, later) = rest.split_at(run.count() as usize);
            for (slot, &frame) in run.pages().zip(batch) {
                self.assign_slot(base, slot, frame);
            }
            self.swap.counters.swap_out_pages += run.count();
            let request = self.slots_request(base, Op::Write, run, self.swap.writer);
            // No page of a write is prefetched.
            let content = RequestContent::Slots { range: run, ahead_pages: 0 };
            base.queue.send(now, request, content);
            rest = later;
        }
        // No slot was found for the rest.
        let is_dirty = true;
        for &frame in rest {
            base.frames.cache.end_write(frame, is_dirty);
        }
        self.swap.is_full = !rest.is_empty();
        // The list is put back for its capacity.
        frames.clear();
        self.swap.to_write = frames;
        !self.swap.is_full
    }

    /// Finds a run of free slots for up to `pages` pages. If no slot is free, takes back the slot
    /// of a mapped, clean page, whose frame then is the only copy: the run has one slot. `None` if
    /// there is no such page, or `pages` is 0.
    fn find_slots(&mut self, base: &mut SharedState, pages: u64) -> Option<PageRange> {
        let slots_max = pages.min(self.swap.write_pages_max);
        if slots_max == 0 {
            return None;
        }
        if self.swap.area.free_slots() == 0 {
            let mappings = &self.mappings;
            let is_spare = |owner: SlotOwner| {
                let file = mappings[owner.memory.0 as usize].file;
                base.frames
                    .cache
                    .find(file, owner.page)
                    .is_some_and(|frame| base.frames.cache.is_mapped_and_clean(frame))
            };
            // The next page in turn that is mapped, clean and not about to leave.
            let (_, owner) = self.swap.area.next_matching(is_spare)?;
            let file = self.file_of(owner.memory);
            let frame = base.frames.cache.find(file, owner.page).expect("it was found just now");
            // A dirty page has no slot: its slot is free now.
            self.make_dirty(base, owner.memory, owner.page, frame);
        }
        self.swap.area.find_run(slots_max)
    }

    /// Processes the end of a write of slots, successful or not. If a write of several slots
    /// failed, the bad one is unknown, and each is retried alone. A page that could not be written
    /// alone stays in memory, dirty. Returns the empty list of waiters for its memory to be reused.
    pub(super) fn complete_swap_out(
        &mut self,
        base: &mut SharedState,
        ended: EndedPart,
        slots: PageRange,
    ) -> Vec<Waiter> {
        let EndedPart { request, outcome, is_merged, waiters, .. } = ended;
        debug_assert!(waiters.is_empty(), "no read waits for a page to be written");
        // `error` is the error of the pages behind the good ones.
        let (good_pages, error) = outcome.good_pages();
        let good_end = slots.first + good_pages;
        let is_single_slot = slots.count() == 1 && !is_merged;
        for slot in slots.pages() {
            let frame = self.frame_of_slot(base, slot);
            if slot < good_end {
                self.swap.failures_in_row = 0;
                let is_dirty = false;
                base.frames.cache.end_write(frame, is_dirty);
                // A page that was changed during its write is dirty again.
                if base.frames.cache.is_dirty(frame) {
                    let (file, page) = base.frames.cache.page_of(frame);
                    self.release_slot(self.memory_of(file), page);
                }
                // A slot is free, or the slot of a clean page can be taken back.
                self.swap.is_full = false;
            } else if is_single_slot {
                // The page stays in memory, dirty and without a slot.
                self.swap.counters.failed_writes += 1;
                self.swap.failures_in_row += 1;
                self.swap.last_failure = Some(error);
                self.release_failed_slot(slot, error);
                let is_dirty = true;
                base.frames.cache.end_write(frame, is_dirty);
            } else {
                // A page that is being written does not store its request.
                self.retry_slot(base, &request, slot);
            }
        }
        waiters
    }
}

/// Consecutive failed page writes after which waiting faults and reads get the error. A few
/// failures may concern single bad slots. The device is tried again for the next one.
const FAILURES_IN_ROW_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use crate::machine::{
        Config, Machine, MemoryAccess, MemoryFault, MemoryKind, ReadAccess, SwapConfig, Transfer,
    };
    use crate::policy::Spec;
    use crate::request::{DeviceCaps, DeviceRequest, Op, ProcessId};
    use crate::swapin::MemoryId;
    use crate::unit::{PAGE_BYTES, PAGE_SECTORS, Time};

    /// A machine with a mapping of four times its memory. Its caller completes no request, so that
    /// every write stays in progress.
    fn machine(eviction: &str, memory_pages: u64, slots: u64) -> (Machine, MemoryId) {
        let caps = DeviceCaps {
            sectors: 2 * slots * PAGE_SECTORS,
            request_sectors_max: 64 * PAGE_SECTORS as u32,
            depth_max: 1024,
            is_rotational: false,
            alignment_sectors: 1,
        };
        let memory_bytes = memory_pages * PAGE_BYTES;
        let eviction = Spec::plain(eviction);
        let mut machine =
            Machine::new(Config { memory_bytes, eviction, ..Config::new(caps) }).unwrap();
        let swap =
            SwapConfig { ready_pages: Some(4), by_policy: true, ..SwapConfig::new(0, slots) };
        machine.add_swap(&swap).unwrap();
        let memory = machine.add_memory(4 * memory_pages, MemoryKind::Private).unwrap();
        (machine, memory)
    }

    /// Unmaps the leaving pages, as written ones, and returns the requests sent to the device.
    fn unmap_and_poll(machine: &mut Machine) -> Vec<DeviceRequest> {
        let mut requests = Vec::new();
        let was_written = true;
        loop {
            while let Some(unmap) = machine.poll_unmap() {
                machine.handle_unmapped(Time::ZERO, unmap, was_written);
            }
            match machine.poll_request(Time::ZERO) {
                Some(request) => requests.push(request),
                None => return requests,
            }
        }
    }

    /// Writes to a page, by a fault if it is not mapped. Returns false if the fault must wait.
    fn write_to_page(machine: &mut Machine, memory: MemoryId, page: u64) -> bool {
        let access = MemoryAccess::Write;
        if machine.touch(memory, page, access) {
            return true;
        }
        let fault = MemoryFault { memory, page, access, process: ProcessId(0), tag: page };
        machine.fault(Time::ZERO, fault).unwrap();
        let Some(faulted) = machine.poll_faulted() else { return false };
        assert!(faulted.result.is_ok());
        machine.release_fault(Time::ZERO, faulted.fault);
        true
    }

    /// A program writes to 63 pages twice, in a memory of 64, so that some pages are being swapped
    /// out; each is used again before its write has ended. Then a read needs 40 pages. Under every
    /// policy other pages leave for it: a few less than 40, because some frames are free. No page
    /// is swapped out twice, so that at most 63 are.
    #[test]
    fn pages_reused_while_being_written_do_not_block_eviction_of_others() {
        for eviction in ["two-lists", "lru", "clock2q", "lirs", "arc", "s3fifo", "adaptive"] {
            let (mut machine, memory) = machine(eviction, 64, 1024);
            let file = machine.add_file(64 * PAGE_BYTES, 1024 * PAGE_SECTORS).unwrap();
            let mut written = Vec::new();
            for page in (0..63).chain(0..63) {
                write_to_page(&mut machine, memory, page);
                written.extend(unmap_and_poll(&mut machine));
            }
            assert!(!written.is_empty(), "{eviction}");
            let (handle, process) = (machine.open(file), ProcessId(1));
            let transfer = Transfer { handle, process, offset: 0, bytes: 40 * PAGE_BYTES, tag: 0 };
            machine.read(Time::ZERO, ReadAccess::Buffered, transfer).unwrap();
            written.extend(unmap_and_poll(&mut machine));
            assert!(written.iter().all(|request| request.op == Op::Write), "{eviction}");
            let pages: u64 =
                written.iter().map(|request| u64::from(request.sectors) / PAGE_SECTORS).sum();
            assert!((36..=63).contains(&pages), "{eviction}: {pages} pages are on their way");
        }
    }
}
