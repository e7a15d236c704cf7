//! Swapping: mappings, faults, touches, and the swap area behind them.
//!
//! A page of a mapping has no storage (it was never written: all zeros), a frame, a slot of the
//! swap area, or both while their content is the same. An *environment* is the code that calls the
//! machine and changes the address spaces of the programs: see [`swapin`] for its calls.
//!
//! # The poll contract
//! 1. [`open_fault`](MachineMemory::open_fault) for a fault; [`begin`](MachineMemory::begin) when
//!    there is a frame for its page, or when it [needs no other
//!    frame](MachineMemory::needs_no_frame).
//! 2. [`make_room`](MachineMemory::make_room) after every change of the available memory, then
//!    [`poll_unmap`](MachineMemory::poll_unmap), each answered by
//!    [`handle_unmapped`](MachineMemory::handle_unmapped).
//! 3. [`complete`](MachineMemory::complete) for each ended part of a request for slots.
//! 4. [`poll_faulted`](MachineMemory::poll_faulted) until it returns none; each result is
//!    [released](MachineMemory::release).
//!
//! # Invariants
//! 1. A slot holds one page, and an absent page that was ever written has a slot. A fault returns
//!    the last content of its page.
//! 2. A page leaves memory only if it is unmapped and clean: its slot, if it has one, was
//!    completely written since its last change.
//! 3. A fault that has begun has its frame; a waiting one has none. The memory that it waits for is
//!    on its way, or it fails.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use slab::Slab;

use super::queue::{EndedPart, Waiter};
use super::{BeyondDevice, FaultId, ReadError, SharedState, SwapError};
use crate::cache::{FileId, FrameId};
use crate::policy::Spec;
use crate::request::{DeviceError, Op, ProcessId};
use crate::swapin::{self, MemoryId, NoSwapReadahead, SwapinPolicy};
use crate::unit::{PAGE_SECTORS, PageRange, Time};

mod area;
mod faults;
mod swap_in;
mod swap_out;

use area::{SlotOwner, SwapArea};

/// Kind of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Private anonymous memory.
    Private,
    /// Memory that several processes map, as of tmpfs.
    Shared,
}

/// Access of a program to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryAccess {
    /// A read.
    Read,
    /// A write: the page is dirty from then on.
    Write,
}

/// Selection and order of the pages that leave memory together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum SwapOut {
    /// The oldest pages in order of age, as in the kernel.
    Oldest,
    /// The oldest page and its neighbours by address that are at least half as old. They are
    /// written in the order of their mappings and addresses, so that pages used together lie
    /// together.
    #[default]
    Neighbours,
}

/// A swap area and its policy.
#[derive(Clone, Debug)]
pub struct SwapConfig {
    /// The swap-in policy. Default `adaptive`.
    pub policy: Spec,
    /// First sector of the area on the device.
    pub start_sector: u64,
    /// Number of slots of a page; each costs 8 bytes of bookkeeping.
    pub slots: u64,
    /// Most pages written at once; clipped at the device's largest request. Default 64 (256 KiB):
    /// larger writes gain nothing, and delay the reads behind them.
    pub write_pages_max: u64,
    /// The pages that leave together. Default: with their neighbours.
    pub swap_out: SwapOut,
    /// Number of pages kept ready, free or clean and unmapped, so that a fault needn't wait for a
    /// write. If there are fewer, `write_pages_max` more are made ready. Default: a sixteenth of
    /// the memory, at most 256.
    pub ready_pages: Option<u32>,
    /// Number of dirty pages that stay unmapped before they are written, and least number of clean
    /// ones before they leave. A page that is used again meanwhile is mapped without I/O. For
    /// environments without access bits; the default 0 is for environments with them.
    pub second_chance_pages: u32,
    /// True if the eviction policy also selects the pages of memory to leave. Under `two-lists`,
    /// memory then has two lists of its own, as in Linux. Default false: memory has these lists
    /// under every policy. In an environment without access bits the policy learns of uses only by
    /// faults of pages that are unmapped and have not left
    /// ([`second_chance_pages`](SwapConfig::second_chance_pages)). Sweeps then move fewer bytes
    /// than with two lists, and random touches about as many (`bench/notes/eviction.md`).
    pub by_policy: bool,
    /// The process on whose behalf the area is written. Default: process 0.
    pub writer: ProcessId,
}

impl SwapConfig {
    /// The defaults, for an area of `slots` pages from `start_sector` on.
    pub fn new(start_sector: u64, slots: u64) -> SwapConfig {
        SwapConfig {
            policy: Spec::plain("adaptive"),
            start_sector,
            slots,
            write_pages_max: 64,
            swap_out: SwapOut::default(),
            ready_pages: None,
            second_chance_pages: 0,
            by_policy: false,
            writer: ProcessId(0),
        }
    }
}

/// A page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFault {
    /// The mapping.
    pub memory: MemoryId,
    /// The page of the mapping.
    pub page: u64,
    /// The access that faulted.
    pub access: MemoryAccess,
    /// The process.
    pub process: ProcessId,
    /// Returned with the result; the machine doesn't interpret it.
    pub tag: u64,
}

/// Origin of a fault's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageSource {
    /// The page was never written, or discarded since: the environment fills the frame with zeros.
    Zero,
    /// The page was in memory, or in flight.
    Memory,
    /// The page was in memory, or in flight, because the policy prefetched it.
    Ahead,
    /// The page was read from the swap area for this fault.
    Swap,
}

/// A completed fault: map the frame, then [release it](super::Machine::release_fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faulted {
    /// Its identifier; call [`release_fault`](super::Machine::release_fault) with it once the page
    /// is mapped.
    pub fault: FaultId,
    /// The caller's tag.
    pub tag: u64,
    /// The process of the fault.
    pub process: ProcessId,
    /// The mapping.
    pub memory: MemoryId,
    /// The page of the mapping.
    pub page: u64,
    /// Start time of the fault.
    pub started: Time,
    /// The frame that holds the page, and its origin.
    pub result: Result<(FrameId, PageSource), ReadError>,
    /// True if it must be mapped writable: the fault was a write, or the page is already dirty.
    pub is_writable: bool,
}

/// A page to be unmapped from the program's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmap {
    /// The mapping.
    pub memory: MemoryId,
    /// The page of the mapping.
    pub page: u64,
    /// The frame that holds it.
    pub frame: FrameId,
}

/// Counters of memory since the machine was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapCounters {
    /// Faults on pages that had to be read, or were already in flight.
    pub faults_major: u64,
    /// Faults without a wait: on pages in memory, or never written before.
    pub faults_minor: u64,
    /// Faults on prefetched pages; also counted in one of the two above.
    pub hits: u64,
    /// Pages read from the swap area.
    pub swap_in_pages: u64,
    /// Pages written to it.
    pub swap_out_pages: u64,
    /// Pages that the device failed to write.
    pub failed_writes: u64,
}

/// A mapping: its pages in the cache and in the swap area.
#[derive(Debug)]
struct MachineMapping {
    /// Identifier of its pages in the cache.
    file: FileId,
    /// Private or shared memory.
    kind: MemoryKind,
    /// The slot of each page plus 1, or `NO_SLOT`.
    slots: Vec<u32>,
}

/// Entry of a page without a slot: 0, because the system provides zeros without memory until they
/// are changed.
const NO_SLOT: u32 = 0;

impl MachineMapping {
    /// The slot of a page, if it has one.
    fn slot_of(&self, page: u64) -> Option<u64> {
        self.slots[page as usize].checked_sub(1).map(u64::from)
    }
}

/// A fault from its start until its release.
#[derive(Debug)]
struct MachineFault {
    /// The fault as the environment reported it.
    cause: MemoryFault,
    /// Time of that report.
    started: Time,
    /// The pinned frame of its page, and its origin; `None` while it waits.
    found: Option<(FrameId, PageSource)>,
    /// Reason for which its page cannot be provided.
    error: Option<ReadError>,
}

/// All mappings, their faults, and shared state.
pub(super) struct MachineMemory {
    /// Mappings in the order of their addition: by the number of their `MemoryId`.
    mappings: Vec<MachineMapping>,
    /// Open faults, by the number of their `FaultId`.
    faults: Slab<MachineFault>,
    /// Completed faults to be polled.
    faulted: VecDeque<FaultId>,
    /// Most faults that may be open at once.
    open_faults_max: u32,
    /// The swap area, its policy, and the pages that leave.
    swap: SwapState,
    /// Runs of slots whose pages were added to the cache and have no request yet.
    runs: Vec<PageRange>,
}

/// The swap area, and the state of swap-out.
struct SwapState {
    /// The slots, and the page of each.
    area: SwapArea,
    /// Selects the pages to read with the page of a fault.
    policy: Box<dyn SwapinPolicy>,
    /// Most pages of one write.
    write_pages_max: u64,
    /// The pages that leave together.
    swap_out: SwapOut,
    /// Number of pages kept ready for faults.
    ready_pages: u32,
    /// Number of pages kept ready in addition, for prefetch by the policy: learned by
    /// `adapt_ready_frames`.
    ready_ahead_pages: u32,
    /// Number of dirty pages that stay unmapped before they are written.
    second_chance_pages: u32,
    /// The process on whose behalf the area is written.
    writer: ProcessId,
    /// True once an area was added.
    is_added: bool,
    /// Leaving pages that must be unmapped.
    unmaps: VecDeque<FrameId>,
    /// Number of unmaps that the environment received and has not answered.
    unmaps_unanswered: u32,
    /// Leaving pages that must be written.
    to_write: Vec<FrameId>,
    /// True if no slot was found, and none has become free since. Dirty pages then stay in memory.
    is_full: bool,
    /// Failed page writes since the last successful one. At a limit, waiting faults and reads get
    /// the error.
    failures_in_row: u32,
    /// Error of the last failed page write; `None` before the first.
    last_failure: Option<DeviceError>,
    /// Counters since the start.
    counters: SwapCounters,
}

impl Default for SwapState {
    /// The state without a swap area: it has no slot, so that no page is written, and the sizes are
    /// placeholders.
    fn default() -> SwapState {
        SwapState {
            area: SwapArea::default(),
            policy: Box::new(NoSwapReadahead),
            write_pages_max: 1,
            swap_out: SwapOut::default(),
            ready_pages: 0,
            ready_ahead_pages: 0,
            second_chance_pages: 0,
            writer: ProcessId(0),
            is_added: false,
            unmaps: VecDeque::new(),
            unmaps_unanswered: 0,
            to_write: Vec::new(),
            is_full: false,
            failures_in_row: 0,
            last_failure: None,
            counters: SwapCounters::default(),
        }
    }
}

impl SwapState {
    /// Adapts the number of frames kept ready for prefetch after a call of the policy, which lacked
    /// frames for `lacking_pages` of its pages.
    ///
    /// The number of lacking frames is added to `ready_ahead_pages`, up to a quarter of the memory.
    /// Each call without a lack reduces that number by a 256th, so that unneeded frames return
    /// slowly to the programs.
    fn adapt_ready_frames(&mut self, lacking_pages: u64, memory_pages: u32) {
        let kept_pages = match lacking_pages {
            // At least one page less, so that the number reaches 0. The divisor is chosen, not
            // measured.
            0 => self.ready_ahead_pages - self.ready_ahead_pages.div_ceil(256),
            _ => self.ready_ahead_pages,
        };
        // Three quarters of the memory stay for pages in use.
        let pages_max = memory_pages / 4;
        self.ready_ahead_pages =
            (u64::from(kept_pages) + lacking_pages).min(pages_max.into()) as u32;
    }
}

impl MachineMemory {
    /// Creates the state without mappings and swap area.
    pub(super) fn new(open_faults_max: u32) -> MachineMemory {
        MachineMemory {
            mappings: Vec::new(),
            faults: Slab::new(),
            faulted: VecDeque::new(),
            open_faults_max,
            swap: SwapState::default(),
            runs: Vec::new(),
        }
    }

    /// Adds the swap area, makes the queue learn costs if its policy asks for them, and lets the
    /// eviction policy manage memory if the configuration says so.
    ///
    /// Fails, without an effect, if there is an area already, if it reaches past the device, or if
    /// it has at least 2^32 − 1 slots. An unknown policy, or a bad parameter of it, has no effect
    /// either. Fails also if the eviction policy refuses the size of the memory.
    pub(super) fn add_swap(
        &mut self,
        base: &mut SharedState,
        config: &SwapConfig,
    ) -> Result<(), SwapError> {
        if self.swap.is_added {
            return Err(SwapError::Second);
        }
        let caps = base.queue.caps();
        // On a disk, some policies select pages by slot instead of by address.
        let policy =
            swapin::build(&config.policy, caps.is_rotational).map_err(SwapError::Policy)?;
        let end_sector =
            config.slots.saturating_mul(PAGE_SECTORS).saturating_add(config.start_sector);
        if end_sector > caps.sectors {
            return Err(SwapError::Beyond(BeyondDevice {
                end_sector,
                device_sectors: caps.sectors,
            }));
        }
        // An entry of a page is its slot plus 1.
        if config.slots >= u64::from(u32::MAX) {
            return Err(SwapError::TooManySlots { slots: config.slots });
        }
        // Must be set before the first page of memory enters the cache.
        if config.by_policy {
            base.frames.give_memory_to_policy().map_err(SwapError::Policy)?;
        }
        if policy.uses_costs() {
            base.queue.learn_costs();
        }
        let memory_pages = base.frames.cache.budget_pages();
        // A sixteenth, so that ready pages take little of a small memory.
        let default_ready_pages = (memory_pages / 16).min(READY_PAGES_MAX);
        self.swap = SwapState {
            area: SwapArea::new(config.start_sector, config.slots),
            policy,
            write_pages_max: config.write_pages_max.clamp(1, base.queue.request_pages_max()),
            swap_out: config.swap_out,
            // At least as many as may rest for a second chance, at most half of the memory. Clean
            // pages then also stay unmapped for some time before they leave.
            ready_pages: config
                .ready_pages
                .unwrap_or(default_ready_pages)
                .max(config.second_chance_pages)
                .min(memory_pages / 2),
            second_chance_pages: config.second_chance_pages.min(memory_pages / 2),
            writer: config.writer,
            is_added: true,
            ..SwapState::default()
        };
        Ok(())
    }

    /// Adds a mapping of `pages` pages, all zeros. Fails if it has more than 2^32 − 1 pages,
    /// because the swap area stores a page number in 32 bits.
    pub(super) fn add_mapping(
        &mut self,
        base: &mut SharedState,
        pages: u64,
        kind: MemoryKind,
    ) -> Result<MemoryId, SwapError> {
        if pages > u64::from(u32::MAX) {
            return Err(SwapError::TooManyPages { pages });
        }
        let file = base.frames.cache.add_file();
        let slots = alloc::vec![NO_SLOT; pages as usize];
        self.mappings.push(MachineMapping { file, kind, slots });
        Ok(MemoryId(self.mappings.len() as u32 - 1))
    }

    /// Records a touch of a page. A mapped page becomes referenced, and dirty by a write. Returns
    /// true if it is mapped, and no more is needed. Returns false without a change if it is not.
    #[inline]
    pub(super) fn touch(
        &mut self,
        base: &mut SharedState,
        memory: MemoryId,
        page: u64,
        access: MemoryAccess,
    ) -> bool {
        let Some(frame) = base.frames.cache.find(self.file_of(memory), page) else { return false };
        // `touch_mapped` sets the referenced bit, and returns false if the page is not mapped. It
        // must not set the dirty flag: `make_dirty` does, and also frees the slot.
        let is_written = false;
        let is_mapped = base.frames.cache.touch_mapped(frame, is_written);
        if is_mapped && access == MemoryAccess::Write && !base.frames.cache.is_dirty(frame) {
            self.make_dirty(base, memory, page, frame);
        }
        is_mapped
    }

    /// Discards the pages of the range: their frames and slots become free. Pages with a fault,
    /// read or write in progress are kept. Returns the number of kept pages. No program may map a
    /// page of the range.
    pub(super) fn discard(
        &mut self,
        base: &mut SharedState,
        memory: MemoryId,
        range: PageRange,
    ) -> u64 {
        let mut kept_pages = 0;
        for page in range.pages() {
            let frame = base.frames.cache.find(self.file_of(memory), page);
            if frame.is_some_and(|frame| base.frames.cache.is_busy(frame)) {
                kept_pages += 1;
                continue;
            }
            // An absent page may still have a slot, which is freed below.
            if let Some(frame) = frame {
                self.cancel_swap_out(base, frame);
                base.frames.cache.discard_memory(frame);
            }
            self.release_slot(memory, page);
        }
        kept_pages
    }

    /// Processes the end of a read or write of slots. Returns the list of waiters, all processed,
    /// for its memory to be reused.
    pub(super) fn complete(
        &mut self,
        base: &mut SharedState,
        ended: EndedPart,
        slots: PageRange,
    ) -> Vec<Waiter> {
        match ended.request.op {
            Op::Read => self.complete_swap_in(base, ended, slots),
            Op::Write => self.complete_swap_out(base, ended, slots),
        }
    }

    /// The counters since the start.
    pub(super) fn counters(&self) -> SwapCounters {
        self.swap.counters
    }

    /// Number of free slots of the swap area.
    pub(super) fn free_slots(&self) -> u64 {
        self.swap.area.free_slots()
    }

    /// Returns true if there is no mapping, and therefore no work.
    pub(super) fn is_unused(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Returns true if no fault is open.
    pub(super) fn is_idle(&self) -> bool {
        self.faults.is_empty()
    }

    /// Marks a page as dirty, and frees its slot, whose content is outdated. A slot that is being
    /// written is kept until the write has ended. A changed page is thus never read from its old
    /// slot.
    fn make_dirty(&mut self, base: &mut SharedState, memory: MemoryId, page: u64, frame: FrameId) {
        let is_dirty = true;
        base.frames.cache.set_dirty(frame, is_dirty);
        if !base.frames.cache.is_writing(frame) {
            self.release_slot(memory, page);
        }
    }

    /// Identifier of the pages of a mapping in the cache.
    fn file_of(&self, memory: MemoryId) -> FileId {
        self.mappings[memory.0 as usize].file
    }

    /// Returns the mapping whose pages have the identifier `file` in the cache.
    fn memory_of(&self, file: FileId) -> MemoryId {
        // Mappings are in the order of their identifiers, which the cache assigns in order.
        let index = self.mappings.partition_point(|mapping| mapping.file < file);
        debug_assert_eq!(self.mappings[index].file, file, "only memory swaps");
        MemoryId(index as u32)
    }

    /// The slot of a page of the mapping `memory`, if it has one.
    fn slot_of(&self, memory: MemoryId, page: u64) -> Option<u64> {
        self.mappings[memory.0 as usize].slot_of(page)
    }

    /// The frame of the page that a slot holds, which must be in memory.
    pub(super) fn frame_of_slot(&self, base: &SharedState, slot: u64) -> FrameId {
        let owner = self.swap.area.owner(slot).expect("a slot under way has its page");
        let frame = base.frames.cache.find(self.file_of(owner.memory), owner.page);
        frame.expect("a page under way is in its table")
    }

    /// Assigns the free slot `slot` to the page of a frame, in the area and in the mapping.
    fn assign_slot(&mut self, base: &SharedState, slot: u64, frame: FrameId) {
        let (file, page) = base.frames.cache.page_of(frame);
        let memory = self.memory_of(file);
        self.swap.area.assign_slot(slot, SlotOwner { memory, page });
        self.mappings[memory.0 as usize].slots[page as usize] = slot as u32 + 1;
    }

    /// Frees the slot of a page, if it has one. The area then counts as not full.
    fn release_slot(&mut self, memory: MemoryId, page: u64) {
        if let Some(slot) = self.slot_of(memory, page) {
            self.mappings[memory.0 as usize].slots[page as usize] = NO_SLOT;
            self.swap.area.release_slot(slot);
            self.swap.is_full = false;
        }
    }

    /// Takes the slot from a page that the device could not write. After a medium error the slot is
    /// bad, and never used again. Other errors concern the device and not the slot: the slot is
    /// free, and the area counts as not full.
    fn release_failed_slot(&mut self, slot: u64, error: DeviceError) {
        let owner = self.swap.area.owner(slot).expect("a slot under way has its page");
        self.mappings[owner.memory.0 as usize].slots[owner.page as usize] = NO_SLOT;
        match error {
            DeviceError::Medium => self.swap.area.mark_bad(slot),
            _ => {
                self.swap.area.release_slot(slot);
                self.swap.is_full = false;
            }
        }
    }
}

/// Upper bound of the default number of ready pages: 1 MiB. A device of 1 GB/s reads it in a
/// millisecond, the time of a large write on typical swap devices.
const READY_PAGES_MAX: u32 = 256;
