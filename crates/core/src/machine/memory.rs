//! Memory larger than memory: mappings, faults, touches, and the swap area behind them.
//!
//! A page of a mapping lies in no place (it was never written: all zeros), in a
//! frame, in a slot of the swap area, or in both of the last two while they are
//! the same. See [`swapin`](crate::swapin) for how a world drives this.
//!
//! # The poll contract
//! 1. [`open_fault`](MachineMemory::open_fault) for a fault; [`begin`](MachineMemory::begin) when there is room for
//!    its page, or when the page is [there already](MachineMemory::is_resident).
//! 2. [`make_room`](MachineMemory::make_room) after whatever may have taken room or given some, then
//!    [`poll_unmap`](MachineMemory::poll_unmap), each answered by
//!    [`handle_unmapped`](MachineMemory::handle_unmapped).
//! 3. [`complete`](MachineMemory::complete) for each part of a request that has ended and carried slots.
//! 4. [`poll_faulted`](MachineMemory::poll_faulted) until it gives none; each is
//!    [released](MachineMemory::release).
//!
//! # What holds
//! 1. A slot holds one page, and a page that is not in memory and was ever
//!    written has one. What a fault is given is what was last in its frame.
//! 2. A page leaves memory only when no program can see it, and when it is
//!    clean: its slot, if it has one, was written whole since its last change.
//! 3. A fault that has begun has its frame; one that waits has nothing. What it
//!    waits for is on its way, or it fails.

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

use area::{LazyEngine, SwapArea};

/// Whose a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Private anonymous memory.
    Private,
    /// Memory that several processes map, as of tmpfs.
    Shared,
}

/// What a program does to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryAccess {
    /// It reads it.
    Read,
    /// It writes it: the page is dirty from then on.
    Write,
}

/// Which pages leave memory together, and in which order they are written side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum SwapOut {
    /// The oldest pages in the order of their age, as the kernel has it.
    Oldest,
    /// The oldest page and its neighbours by address that are at least half as old, written in
    /// the order of their mappings and addresses: what is used together lies together.
    #[default]
    Neighbours,
}

/// A swap area and its law.
#[derive(Clone, Debug)]
pub struct SwapConfig {
    /// The swap-in law. Default `adaptive`.
    pub policy: Spec,
    /// Where the area starts on the device.
    pub start_sector: u64,
    /// How many slots of a page it has; each costs 8 bytes of bookkeeping.
    pub slots: u64,
    /// The most pages that are written at once; cut at the device's largest
    /// request. Default 64 (256 KiB): larger writes gain nothing, and delay the
    /// reads behind them.
    pub write_pages_max: u64,
    /// Which pages leave together. Default: with their neighbours.
    pub swap_out: SwapOut,
    /// How many pages are kept ready, free or clean and unmapped, so that a
    /// fault needn't wait for a write; when there are fewer, `write_pages_max`
    /// more are made ready. Default: a sixteenth of the memory, 256 at most.
    pub ready_pages: Option<u32>,
    /// How many dirty pages wait, unmapped, before they are written, and how
    /// many clean ones at least before they go: a page that is used again
    /// meanwhile is mapped without I/O. For worlds that don't see accessed
    /// bits; default 0, for those that do.
    pub second_chance_pages: u32,
    /// Whether the reclaim law decides which pages of memory leave, as it does of files; under
    /// `two-lists` memory has two lists of its own, as in Linux. Default: memory has those under
    /// every law. It asks for a world that sees accessed bits: of one that doesn't nobody has measured
    /// yet what it is worth.
    pub by_policy: bool,
    /// In whose name the area is written.
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
    /// On which mapping.
    pub memory: MemoryId,
    /// On which page of it.
    pub page: u64,
    /// What the program was about to do.
    pub access: MemoryAccess,
    /// Which process it is.
    pub process: ProcessId,
    /// Comes back with the result; the machine doesn't look at it.
    pub tag: u64,
}

/// Where a fault got its page from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageSource {
    /// The page was never written, or discarded since: the world fills the frame with zeros.
    Zero,
    /// It was in memory, or on its way.
    Memory,
    /// It was in memory, or on its way, because it was read ahead.
    Ahead,
    /// It was read from the swap area for this fault.
    Swap,
}

/// A fault that has ended: map the frame, then
/// [release it](super::Machine::release_fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faulted {
    /// Its name; call [`release_fault`](super::Machine::release_fault) with it once the page is
    /// mapped.
    pub fault: FaultId,
    /// The caller's tag.
    pub tag: u64,
    /// On whose behalf it was.
    pub process: ProcessId,
    /// Which mapping.
    pub memory: MemoryId,
    /// Which page of it.
    pub page: u64,
    /// When it was started.
    pub started: Time,
    /// The frame that holds the page, and how it came there.
    pub result: Result<(FrameId, PageSource), ReadError>,
    /// Whether to map it writable: it was a write, or the page is dirty already.
    pub is_writable: bool,
}

/// A page that is to be taken out of the program's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmap {
    /// Which mapping.
    pub memory: MemoryId,
    /// Which page of it.
    pub page: u64,
    /// The frame that holds it.
    pub frame: FrameId,
}

/// What was counted of memory since the path was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapCounters {
    /// Faults on pages that had to be read, or were on their way already.
    pub faults_major: u64,
    /// Faults that needed no wait: on pages in memory, or never written before.
    pub faults_minor: u64,
    /// Faults on pages that had been read ahead: they are in one of the two above too.
    pub hits: u64,
    /// Pages read from the swap area.
    pub swap_in_pages: u64,
    /// Pages written to it.
    pub swap_out_pages: u64,
    /// Pages that the device failed to write.
    pub failed_writes: u64,
}

/// One mapping.
#[derive(Debug)]
struct MachineMapping {
    file: FileId,
    kind: MemoryKind,
    /// The slot of each page, or `NO_SLOT`.
    slots: Vec<u32>,
}

const NO_SLOT: u32 = u32::MAX;

impl MachineMapping {
    fn slot_of(&self, page: u64) -> Option<u64> {
        let slot = self.slots[page as usize];
        (slot != NO_SLOT).then_some(u64::from(slot))
    }
}

/// A fault from its start until its release.
#[derive(Debug)]
struct MachineFault {
    cause: MemoryFault,
    started: Time,
    /// The frame of its page, pinned, and how it came there; none as long as it waits.
    found: Option<(FrameId, PageSource)>,
    error: Option<ReadError>,
}

/// All mappings, their faults, and what they share.
pub(super) struct MachineMemory {
    mappings: Vec<MachineMapping>,
    faults: Slab<MachineFault>,
    faulted: VecDeque<FaultId>,
    open_faults_max: u32,
    swap: SwapState,
    /// Runs of slots whose pages were added to the cache and have no request yet.
    runs: Vec<PageRange>,
}

/// The swap area and what is done about it.
struct SwapState {
    area: SwapArea,
    policy: Box<dyn SwapinPolicy>,
    write_pages_max: u64,
    swap_out: SwapOut,
    ready_pages: u32,
    /// How many more are kept ready, for what the law reads ahead.
    ready_ahead_pages: u32,
    second_chance_pages: u32,
    writer: ProcessId,
    is_added: bool,
    /// Leaving, and to be unmapped.
    unmaps: VecDeque<FrameId>,
    /// How many of them the world was given, and has not answered for.
    unmaps_unanswered: u32,
    /// Leaving, and to be written.
    to_write: Vec<FrameId>,
    /// No slot was found, and none has become free since.
    is_full: bool,
    /// Pages that failed to be written since one was.
    failures_in_row: u32,
    last_failure: Option<DeviceError>,
    counters: SwapCounters,
}

impl Default for SwapState {
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
    /// The law was asked, and had room for all but so many pages of what it would have read.
    ///
    /// So many more are kept ready from now on, a quarter of the memory at most (half of
    /// what may be read ahead into);
    /// and fewer by one of 256 each time that nothing is lacking.
    fn adapt_ready_frames(&mut self, lacking_pages: u64, memory_pages: u32) {
        let kept = match lacking_pages {
            0 => self.ready_ahead_pages - self.ready_ahead_pages.div_ceil(256),
            _ => self.ready_ahead_pages,
        };
        let most = memory_pages / 4;
        self.ready_ahead_pages = (u64::from(kept) + lacking_pages).min(most.into()) as u32;
    }
}

impl MachineMemory {
    /// No mapping, and no swap area.
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

    /// Adds the swap area, of which there is one; without it memory is as large as memory.
    pub(super) fn add_swap(
        &mut self,
        base: &mut SharedState,
        config: &SwapConfig,
    ) -> Result<(), SwapError> {
        if self.swap.is_added {
            return Err(SwapError::Second);
        }
        let caps = base.queue.caps();
        let policy =
            swapin::build(&config.policy, caps.is_rotational).map_err(SwapError::Policy)?;
        let end_sector = config.start_sector.saturating_add(config.slots * PAGE_SECTORS);
        if end_sector > caps.sectors {
            return Err(SwapError::Beyond(BeyondDevice {
                end_sector,
                device_sectors: caps.sectors,
            }));
        }
        if config.slots >= u64::from(NO_SLOT) {
            return Err(SwapError::TooManyPages { pages: config.slots });
        }
        if config.by_policy {
            base.frames.cache.give_memory_to_policy();
        }
        let memory_pages = base.frames.cache.budget_pages();
        let default_ready = (memory_pages / 16).min(READY_PAGES_MAX);
        self.swap = SwapState {
            area: SwapArea::new(config.start_sector, config.slots),
            policy,
            write_pages_max: config.write_pages_max.clamp(1, base.queue.request_pages_max()),
            swap_out: config.swap_out,
            ready_pages: config
                .ready_pages
                .unwrap_or(default_ready)
                .max(config.second_chance_pages)
                .min(memory_pages / 2),
            second_chance_pages: config.second_chance_pages.min(memory_pages / 2),
            writer: config.writer,
            is_added: true,
            ..SwapState::default()
        };
        Ok(())
    }

    /// Adds a mapping of `pages` pages, all zeros.
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

    /// A program has touched a page. True: the page is mapped, and that is all.
    #[inline]
    pub(super) fn touch(
        &mut self,
        base: &mut SharedState,
        memory: MemoryId,
        page: u64,
        access: MemoryAccess,
    ) -> bool {
        let Some(frame) = base.frames.cache.find(self.file_of(memory), page) else { return false };
        let is_mapped = base.frames.cache.touch_mapped(frame, false);
        if is_mapped && access == MemoryAccess::Write && !base.frames.cache.is_dirty(frame) {
            self.make_dirty(base, memory, page, frame);
        }
        is_mapped
    }

    /// Forgets the pages of the range, as far as nothing is under way for them; gives
    /// how many are left.
    pub(super) fn discard(
        &mut self,
        base: &mut SharedState,
        memory: MemoryId,
        range: PageRange,
    ) -> u64 {
        let mut busy = 0;
        for page in range.pages() {
            let frame = base.frames.cache.find(self.file_of(memory), page);
            if frame.is_some_and(|frame| base.frames.cache.is_busy(frame)) {
                busy += 1;
                continue;
            }
            if let Some(frame) = frame {
                self.cancel_swap_out(base, frame);
                base.frames.cache.discard_memory(frame);
            }
            self.give_up_slot(memory, page);
        }
        busy
    }

    /// Slots have been read or written, or not; gives the list of waiters back.
    pub(super) fn complete(
        &mut self,
        base: &mut SharedState,
        ended: EndedPart,
        range: PageRange,
    ) -> Vec<Waiter> {
        match ended.request.op {
            Op::Read => self.complete_swap_in(base, ended, range),
            Op::Write => self.complete_swap_out(base, ended, range),
        }
    }

    /// What was counted so far.
    pub(super) fn counters(&self) -> SwapCounters {
        self.swap.counters
    }

    /// How many slots of the swap area are free.
    pub(super) fn free_slots(&self) -> u64 {
        self.swap.area.free_slots()
    }

    /// Whether there is no mapping: then nothing here has to be done.
    pub(super) fn is_unused(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Whether no fault is open.
    pub(super) fn is_idle(&self) -> bool {
        self.faults.is_empty()
    }

    /// The page is written to: what its slot holds is old. While that is being
    /// written it keeps the slot, until the write has ended.
    fn make_dirty(&mut self, base: &mut SharedState, memory: MemoryId, page: u64, frame: FrameId) {
        base.frames.cache.set_dirty(frame, true);
        if !base.frames.cache.is_writing(frame) {
            self.give_up_slot(memory, page);
        }
    }

    /// The name under which the cache knows the pages of a mapping.
    fn file_of(&self, memory: MemoryId) -> FileId {
        self.mappings[memory.0 as usize].file
    }

    fn memory_of(&self, file: FileId) -> MemoryId {
        let at = self.mappings.partition_point(|mapping| mapping.file < file);
        debug_assert_eq!(self.mappings[at].file, file, "only memory swaps");
        MemoryId(at as u32)
    }

    fn slot_of(&self, memory: MemoryId, page: u64) -> Option<u64> {
        self.mappings[memory.0 as usize].slot_of(page)
    }

    /// The frame of the page that a slot holds, which is in memory.
    pub(super) fn frame_of_slot(&self, base: &SharedState, slot: u64) -> FrameId {
        let owner = self.swap.area.owner(slot).expect("a slot under way has its page");
        let frame = base.frames.cache.find(self.file_of(owner.memory), owner.page);
        frame.expect("a page under way is in its table")
    }

    fn take_slot(&mut self, base: &SharedState, slot: u64, frame: FrameId) {
        let (file, page) = base.frames.cache.page_of(frame);
        let memory = self.memory_of(file);
        self.swap.area.take(slot, LazyEngine { memory, page });
        self.mappings[memory.0 as usize].slots[page as usize] = slot as u32;
    }

    fn give_up_slot(&mut self, memory: MemoryId, page: u64) {
        if let Some(slot) = self.slot_of(memory, page) {
            self.mappings[memory.0 as usize].slots[page as usize] = NO_SLOT;
            self.swap.area.give_up(slot);
            self.swap.is_full = false;
        }
    }

    /// The device could not write the slot: it holds nothing from now on, and is
    /// never used again when it is the medium that is bad.
    fn lose_slot(&mut self, slot: u64, error: DeviceError) {
        let owner = self.swap.area.owner(slot).expect("a slot under way has its page");
        self.mappings[owner.memory.0 as usize].slots[owner.page as usize] = NO_SLOT;
        match error {
            DeviceError::Medium => self.swap.area.mark_bad(slot),
            _ => self.swap.area.give_up(slot),
        }
    }
}

/// 1 MiB: what a device that takes 1 GB/s reads in a millisecond, the time of a
/// large write on the devices that swap is put on.
const READY_PAGES_MAX: u32 = 256;
