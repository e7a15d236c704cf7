//! A fault on memory: its page is found, created as zeros, or read from its *slot*, its place in
//! the swap area.

use super::{
    FaultId, MachineFault, MachineMemory, MemoryAccess, MemoryFault, MemoryId, MemoryKind,
    PageSource,
};
use super::{Faulted, MachineMapping};
use crate::cache::{FrameId, FrameState, Mark};
use crate::machine::queue::Waiter;
use crate::machine::{ReadError, SharedState};
use crate::swapin::SwapFault;
use crate::unit::{PAGE_BYTES, Time};

impl MachineMemory {
    /// Registers a fault, which may begin when there is a frame for its page. It counts in
    /// `open_reads`, from which policies derive the number of waiting readers. Fails if
    /// `open_faults_max` faults are open.
    ///
    /// # Panics
    /// The page lies outside its mapping.
    pub(in crate::machine) fn open_fault(
        &mut self,
        now: Time,
        base: &mut SharedState,
        cause: MemoryFault,
    ) -> Result<FaultId, ReadError> {
        let pages = self.mappings[cause.memory.0 as usize].slots.len() as u64;
        assert!(cause.page < pages, "a fault lies in its mapping");
        if self.faults.len() as u64 >= u64::from(self.open_faults_max) {
            return Err(ReadError::TooManyReads { open_reads_max: self.open_faults_max });
        }
        base.queue.evidence.open_reads += 1;
        let fault = MachineFault { cause, started: now, found: None, error: None };
        Ok(FaultId(self.faults.insert(fault) as u32))
    }

    /// Returns true if the page of an open fault is in memory and *held*: mapped, dirty or being
    /// written, and not pinned. Its frame then already counts as used in the budget, and the fault
    /// needs no other one. The frame of any other unpinned page in memory counts as available.
    pub(in crate::machine) fn needs_no_frame(&self, base: &SharedState, fault: FaultId) -> bool {
        let MemoryFault { memory, page, .. } = self.fault_state(fault).cause;
        let frame = base.frames.cache.find(self.file_of(memory), page);
        frame.is_some_and(|frame| base.frames.cache.is_held(frame))
    }

    /// Begins a fault: its page is in memory, or there is a frame for it. The fault ends at once,
    /// or waits for the request that reads its page.
    pub(in crate::machine) fn begin(&mut self, now: Time, base: &mut SharedState, id: FaultId) {
        // Released with the fault.
        base.frames.budget.pinned_pages += 1;
        let MemoryFault { memory, page, process, .. } = self.fault_state(id).cause;
        let file = self.file_of(memory);
        let (frame, source) = if let Some(frame) = base.frames.cache.find(file, page) {
            // The page is in memory or in flight, perhaps about to leave. `take_for_fault` pins its
            // frame, and takes its mark.
            self.cancel_swap_out(base, frame);
            // The mark of a page shows that the policy prefetched it.
            let is_ahead = base.frames.cache.take_for_fault(frame);
            if is_ahead {
                self.swap.counters.hits += 1;
                let fault = self.swap_fault(memory, page).expect("what was read ahead has a slot");
                // The policy may read further pages now.
                self.swap_in_at_hit(now, base, &fault, process);
            }
            (frame, if is_ahead { PageSource::Ahead } else { PageSource::Memory })
        } else {
            // The page is absent: zeros without a slot, or else read from its slot.
            let is_ahead = false;
            let frame = base.frames.add_memory(file, page, Mark::Clear, is_ahead);
            base.frames.cache.pin(frame);
            match self.swap_fault(memory, page) {
                None => {
                    // The environment, the caller of the machine, writes the zeros.
                    base.frames.cache.fill(frame);
                    (frame, PageSource::Zero)
                }
                Some(fault) => {
                    // Requests the page, together with pages that the policy adds.
                    self.swap_in(now, base, &fault, process);
                    (frame, PageSource::Swap)
                }
            }
        };
        self.fault_state_mut(id).found = Some((frame, source));
        self.count_fault(base, frame, source);
        if let FrameState::InFlight(request) = base.frames.cache.state(frame) {
            base.queue.add_waiter(request, Waiter::Fault(id));
        } else {
            self.finish(base, id);
        }
    }

    /// Updates the counters for a begun fault: major if its page is in flight, else minor. A page
    /// that this fault or the policy's prefetch read from the swap area also counts in the meter,
    /// as a hit if it is already in memory. Other pages needed no read for it, and don't count
    /// there.
    fn count_fault(&mut self, base: &mut SharedState, frame: FrameId, source: PageSource) {
        let is_filled = base.frames.cache.state(frame) == FrameState::Filled;
        let counters = &mut self.swap.counters;
        *if is_filled { &mut counters.faults_minor } else { &mut counters.faults_major } += 1;
        if matches!(source, PageSource::Swap | PageSource::Ahead) {
            base.queue.meter.requested_bytes += PAGE_BYTES;
            base.queue.meter.hit_bytes += if is_filled { PAGE_BYTES } else { 0 };
        }
    }

    /// Ends a fault: its page has arrived, or never will. Queues its result for `poll_faulted`. Its
    /// frame stays pinned until `release`.
    pub(super) fn finish(&mut self, base: &mut SharedState, id: FaultId) {
        base.queue.evidence.open_reads -= 1;
        self.faulted.push_back(id);
    }

    /// Ends a fault that waits for a frame with an error, and queues its result. It has not begun,
    /// so that it has pinned no page. The caller has removed it from the faults that wait.
    pub(in crate::machine) fn fail(
        &mut self,
        base: &mut SharedState,
        id: FaultId,
        error: ReadError,
    ) {
        self.fault_state_mut(id).error = Some(error);
        self.finish(base, id);
    }

    /// Removes and returns the next completed fault; `None` if there is none.
    pub(in crate::machine) fn poll_faulted(&mut self, base: &SharedState) -> Option<Faulted> {
        let id = self.faulted.pop_front()?;
        let MachineFault { cause, started, found, error } = self.fault_state(id);
        Some(Faulted {
            fault: id,
            tag: cause.tag,
            process: cause.process,
            memory: cause.memory,
            page: cause.page,
            started: *started,
            result: match *error {
                Some(error) => Err(error),
                None => Ok(found.expect("a fault that has begun has its frame")),
            },
            is_writable: cause.access == MemoryAccess::Write
                || found.is_some_and(|(frame, _)| base.frames.cache.is_dirty(frame)),
        })
    }

    /// Releases a completed fault. Unless it failed, the environment (the caller of the machine)
    /// has mapped its page.
    pub(in crate::machine) fn release(&mut self, base: &mut SharedState, id: FaultId) {
        let MachineFault { cause, found, error, .. } = self.faults.remove(id.0 as usize);
        // A fault that failed while it waited has no frame.
        let Some((frame, source)) = found else { return };
        if error.is_none() {
            // The page counts as used, and as referenced if it was in memory before the fault for
            // another reason than prefetch.
            let was_in_memory = source == PageSource::Memory;
            base.frames.cache.use_memory(frame, was_in_memory);
            if cause.access == MemoryAccess::Write && !base.frames.cache.is_dirty(frame) {
                self.make_dirty(base, cause.memory, cause.page, frame);
            }
            let is_mapped = true;
            base.frames.cache.set_mapped(frame, is_mapped);
        }
        // After the flags: the last unpin puts the page on the list for its state.
        base.frames.cache.unpin(frame);
        base.frames.budget.pinned_pages -= 1;
    }

    /// The description of a fault for the swap-in policy; `None` for a page without a slot. A page
    /// without a slot is new and all zeros, or dirty in memory.
    fn swap_fault(&self, memory: MemoryId, page: u64) -> Option<SwapFault> {
        let MachineMapping { kind, slots, .. } = &self.mappings[memory.0 as usize];
        Some(SwapFault {
            memory,
            page,
            memory_pages: slots.len() as u64,
            slot: self.slot_of(memory, page)?,
            slots: self.swap.area.slots(),
            is_shared: *kind == MemoryKind::Shared,
        })
    }

    /// The frame of a begun fault.
    pub(super) fn frame_of(&self, fault: FaultId) -> FrameId {
        let found = self.fault_state(fault).found;
        let (frame, _) = found.expect("a fault that has begun has its frame");
        frame
    }

    /// State of an open fault.
    pub(super) fn fault_state(&self, fault: FaultId) -> &MachineFault {
        &self.faults[fault.0 as usize]
    }

    /// State of an open fault, to be changed.
    pub(super) fn fault_state_mut(&mut self, fault: FaultId) -> &mut MachineFault {
        &mut self.faults[fault.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::memory::SwapConfig;
    use crate::machine::{Config, Machine};
    use crate::request::{DeviceCaps, ProcessId};

    /// Policies get the number of reads and faults in progress as `open_reads`: a fault whose page
    /// has arrived does not count, even before its release.
    #[test]
    fn a_fault_counts_as_in_progress_only_until_it_ends() {
        let caps = DeviceCaps {
            sectors: 1 << 20,
            alignment_sectors: 8,
            request_sectors_max: 1024,
            depth_max: 4,
            is_rotational: false,
        };
        let memory_bytes = 64 * PAGE_BYTES;
        let mut machine = Machine::new(Config { memory_bytes, ..Config::new(caps) }).unwrap();
        machine.add_swap(&SwapConfig::new(0, 128)).unwrap();
        let memory = machine.add_memory(100, MemoryKind::Private).unwrap();
        let faults_in_progress = |machine: &Machine| machine.base.queue.evidence.open_reads;
        for page in 0..3 {
            let access = MemoryAccess::Write;
            let cause = MemoryFault { memory, page, access, process: ProcessId(0), tag: page };
            assert_eq!(faults_in_progress(&machine), 0);
            machine.fault(Time::ZERO, cause).unwrap();
            let faulted = machine.poll_faulted().expect("a page of zeros comes at once");
            assert_eq!(faults_in_progress(&machine), 0);
            machine.release_fault(Time::ZERO, faulted.fault);
        }
    }
}
