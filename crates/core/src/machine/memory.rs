//! Memory larger than memory: mappings, faults, touches.
//!
//! A page of a mapping lies in no place (it was never written: all zeros), in a
//! frame, in a slot of the swap area, or in both of the last two while they are
//! the same. See [`swapin`](crate::swapin) for how a world drives this.
//!
//! What holds:
//! 1. A slot holds one page, and a page that is not in memory and was ever
//!    written has one. What a fault is given is what was last in its frame.
//! 2. A page leaves memory only when no program can see it, and when it is
//!    clean: its slot, if it has one, was written whole since its last change.
//! 3. A fault that has begun has its frame; one that waits has nothing. What it
//!    waits for is on its way, or it fails.

use super::reads::{Kind, ReadState};
use super::swap_area::{Owner, SwapArea};
use super::*;
use crate::cache::Mark;
use crate::readahead::NoReadahead;
use crate::swapin::{self, MemoryId, NoSwapReadahead, SwapFault, SwapinLaw};

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
    /// The swap-in law. Default `hits`.
    pub law: Spec,
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
    /// In whose name the area is written.
    pub writer: ProcessId,
}

impl SwapConfig {
    /// The defaults, for an area of `slots` pages from `start_sector` on.
    pub fn new(start_sector: u64, slots: u64) -> SwapConfig {
        SwapConfig {
            law: Spec::plain("hits"),
            start_sector,
            slots,
            write_pages_max: 64,
            swap_out: SwapOut::default(),
            ready_pages: None,
            second_chance_pages: 0,
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
pub enum Source {
    /// The page was never written, or discarded since: the world fills the frame with zeros.
    Zero,
    /// It was in memory, or on its way.
    Memory,
    /// It was in memory, or on its way, because it was read ahead.
    Ahead,
    /// It was read from the swap area for this fault.
    Swap,
}

/// A fault that has ended: map the frame, then [`release`](ReadPath::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faulted {
    /// Its name; call [`ReadPath::release`] with it once the page is mapped.
    pub fault: ReadId,
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
    pub result: Result<(FrameId, Source), ReadError>,
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
pub(super) struct Memory {
    pub(super) handle: HandleId,
    pub(super) file: FileId,
    pub(super) kind: MemoryKind,
    /// The slot of each page, or `NO_SLOT`.
    slots: Vec<u32>,
}

const NO_SLOT: u32 = u32::MAX;

impl Memory {
    pub(super) fn slot_of(&self, page: u64) -> Option<u64> {
        let slot = self.slots[page as usize];
        (slot != NO_SLOT).then_some(u64::from(slot))
    }
}

/// Everything that mappings share.
pub(super) struct Swap {
    pub(super) area: SwapArea,
    pub(super) law: Box<dyn SwapinLaw>,
    pub(super) write_pages_max: u64,
    pub(super) swap_out: SwapOut,
    pub(super) ready_pages: u32,
    /// How many more are kept ready, for what the law reads ahead.
    pub(super) ready_ahead_pages: u32,
    pub(super) second_chance_pages: u32,
    pub(super) writer: ProcessId,
    is_added: bool,
    /// Leaving, and to be unmapped.
    pub(super) unmaps: VecDeque<FrameId>,
    /// How many of them the world was given, and has not answered for.
    pub(super) unmaps_unanswered: u32,
    /// Leaving, and to be written.
    pub(super) to_write: Vec<FrameId>,
    /// No slot was found, and none has become free since.
    pub(super) is_full: bool,
    /// Pages that failed to be written since one was.
    pub(super) failures_in_row: u32,
    pub(super) last_failure: Option<DeviceError>,
    faulted: VecDeque<ReadId>,
    pub(super) counters: SwapCounters,
}

impl Default for Swap {
    fn default() -> Swap {
        Swap {
            area: SwapArea::default(),
            law: Box::new(NoSwapReadahead),
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
            faulted: VecDeque::new(),
            counters: SwapCounters::default(),
        }
    }
}

impl Swap {
    /// The law was asked, and had room for all but so many pages of what it would have read.
    ///
    /// So many more are kept ready from now on, a quarter of the memory at most (half of
    /// what may be read ahead into);
    /// and fewer by one of 256 each time that nothing is lacking.
    pub(super) fn ready_for_law(&mut self, lacking_pages: u64, memory_pages: u32) {
        let kept = match lacking_pages {
            0 => self.ready_ahead_pages - self.ready_ahead_pages.div_ceil(256),
            _ => self.ready_ahead_pages,
        };
        let most = memory_pages / 4;
        self.ready_ahead_pages = (u64::from(kept) + lacking_pages).min(most.into()) as u32;
    }
}

impl ReadPath {
    /// Adds the swap area, of which there is one; without it memory is as large as memory.
    ///
    /// # Errors
    /// The law is unknown, the area reaches past the device, or there is one already.
    pub fn add_swap(&mut self, config: &SwapConfig) -> Result<(), SwapError> {
        if self.swap.is_added {
            return Err(SwapError::Second);
        }
        let caps = &self.config.caps;
        let law = swapin::build(&config.law, caps.is_rotational).map_err(SwapError::Law)?;
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
        let request_pages_max = u64::from(caps.request_sectors_max) / PAGE_SECTORS;
        let default_ready = (self.cache.budget_pages() / 16).min(READY_PAGES_MAX);
        self.swap = Swap {
            area: SwapArea::new(config.start_sector, config.slots),
            law,
            write_pages_max: config.write_pages_max.clamp(1, request_pages_max),
            swap_out: config.swap_out,
            ready_pages: config
                .ready_pages
                .unwrap_or(default_ready)
                .max(config.second_chance_pages)
                .min(self.cache.budget_pages() / 2),
            second_chance_pages: config.second_chance_pages.min(self.cache.budget_pages() / 2),
            writer: config.writer,
            is_added: true,
            ..Swap::default()
        };
        Ok(())
    }

    /// Adds a mapping of `pages` pages, all zeros.
    ///
    /// # Errors
    /// It has more pages than can be numbered.
    pub fn add_memory(&mut self, pages: u64, kind: MemoryKind) -> Result<MemoryId, SwapError> {
        if pages > u64::from(u32::MAX) {
            return Err(SwapError::TooManyPages { pages });
        }
        let evidence = FileEvidence::default();
        self.files.push(File { bytes: pages * PAGE_BYTES, start_sector: 0, evidence });
        let file = self.cache.add_file();
        self.handles.push(Handle { file, law: Box::new(NoReadahead) });
        let handle = HandleId(self.handles.len() as u32 - 1);
        let slots = alloc::vec![NO_SLOT; pages as usize];
        self.memories.push(Memory { handle, file, kind, slots });
        Ok(MemoryId(self.memories.len() as u32 - 1))
    }

    /// A program has touched a page. True: the page is mapped, and that is all;
    /// else the touch is a [`fault`](ReadPath::fault). For worlds that see
    /// every touch.
    #[inline]
    pub fn touch(&mut self, memory: MemoryId, page: u64, access: MemoryAccess) -> bool {
        let Some(frame) = self.cache.find(self.memories[memory.0 as usize].file, page) else {
            return false;
        };
        let is_mapped = self.cache.touch_mapped(frame, false);
        if is_mapped && access == MemoryAccess::Write && !self.cache.is_dirty(frame) {
            self.make_dirty(memory, page, frame);
        }
        is_mapped
    }

    /// A program has faulted on a page: [`poll_faulted`](ReadPath::poll_faulted) gives the result.
    ///
    /// # Errors
    /// It is one too many.
    ///
    /// # Panics
    /// The page lies outside its mapping.
    pub fn fault(&mut self, now: Time, fault: MemoryFault) -> Result<ReadId, ReadError> {
        let MemoryFault { memory, page, access, process, tag } = fault;
        let handle = self.memories[memory.0 as usize].handle;
        let offset = page * PAGE_BYTES;
        assert!(offset < self.file_bytes(handle), "a fault lies in its mapping");
        let transfer = Transfer { handle, process, offset, bytes: PAGE_BYTES, tag };
        let kind = Kind::Memory { memory, access, source: Source::Memory };
        let read = self.open_read(now, kind, transfer, PAGE_BYTES, PageRange::new(page, 1))?;
        if self.is_resident(read) || (self.waiting.is_empty() && self.has_room_for(1)) {
            self.begin(now, read);
        } else {
            self.waiting.push_back(read);
        }
        self.admit(now);
        Ok(read)
    }

    /// The next fault that has ended.
    pub fn poll_faulted(&mut self) -> Option<Faulted> {
        let fault = self.swap.faulted.pop_front()?;
        let slot = &self.reads[fault.0 as usize];
        let Kind::Memory { memory, access, source } = slot.kind else {
            unreachable!("only faults are in this queue");
        };
        let frame = slot.frames.first().copied();
        Some(Faulted {
            fault,
            tag: slot.transfer.tag,
            process: slot.transfer.process,
            memory,
            page: slot.range.first,
            started: slot.started,
            result: match slot.error {
                Some(error) => Err(error),
                None => Ok((frame.expect("a fault that has begun has its frame"), source)),
            },
            is_writable: access == MemoryAccess::Write
                || frame.is_some_and(|frame| self.cache.is_dirty(frame)),
        })
    }

    /// Forgets the pages of the range, which the world has unmapped: they are
    /// zeros from now on. Pages that a fault, a read or a write is under way for
    /// are left; gives how many: try them again when those have ended.
    pub fn discard(&mut self, now: Time, memory: MemoryId, range: PageRange) -> u64 {
        let mut busy = 0;
        for page in range.pages() {
            let frame = self.cache.find(self.memories[memory.0 as usize].file, page);
            if frame.is_some_and(|frame| self.cache.is_busy(frame)) {
                busy += 1;
                continue;
            }
            if let Some(frame) = frame {
                self.call_back(frame);
                self.cache.discard_memory(frame);
            }
            self.give_up_slot(memory, page);
        }
        self.admit(now);
        busy
    }

    /// What was counted of memory so far.
    pub fn swap_counters(&self) -> SwapCounters {
        self.swap.counters
    }

    /// How many slots of the swap area are free.
    pub fn free_slots(&self) -> u64 {
        self.swap.area.free_slots()
    }

    /// Whether a waiting read is a fault on a page that counts in the budget
    /// already: it needs no more room.
    pub(super) fn is_resident(&self, read: ReadId) -> bool {
        let slot = &self.reads[read.0 as usize];
        let Kind::Memory { memory, .. } = slot.kind else { return false };
        let frame = self.cache.find(self.memories[memory.0 as usize].file, slot.range.first);
        frame.is_some_and(|frame| self.cache.is_held(frame))
    }

    /// Begins a fault: its page is found, made of nothing, or read.
    pub(super) fn begin_fault(
        &mut self,
        now: Time,
        read: ReadId,
        memory: MemoryId,
        access: MemoryAccess,
    ) {
        self.budget.pinned += 1;
        let slot = &mut self.reads[read.0 as usize];
        slot.state = ReadState::Active;
        let page = slot.range.first;
        let file = self.memories[memory.0 as usize].file;
        let (frame, source) = if let Some(frame) = self.cache.find(file, page) {
            self.call_back(frame);
            let is_ahead = self.cache.take_for_fault(frame);
            if is_ahead {
                self.swap.counters.hits += 1;
                let fact = self.swap_fault(memory, page);
                self.swap_in_further(now, read, &fact.expect("what was read ahead has a slot"));
            }
            (frame, if is_ahead { Source::Ahead } else { Source::Memory })
        } else {
            let frame = self.add_page(file, page, Mark::Clear, false);
            self.cache.pin(frame);
            match self.swap_fault(memory, page) {
                None => {
                    self.cache.fill(frame);
                    (frame, Source::Zero)
                }
                Some(fact) => {
                    self.swap_in(now, read, &fact);
                    (frame, Source::Swap)
                }
            }
        };
        let slot = &mut self.reads[read.0 as usize];
        slot.kind = Kind::Memory { memory, access, source };
        slot.frames.push(frame);
        self.count_fault(frame, source);
        if let FrameState::InFlight(request) = self.cache.state(frame) {
            self.transfers.wait(request, read);
            self.reads[read.0 as usize].pending = 1;
        } else {
            self.finish_fault(read);
        }
    }

    fn count_fault(&mut self, frame: FrameId, source: Source) {
        let is_there = self.cache.state(frame) == FrameState::Filled;
        let counters = &mut self.swap.counters;
        *if is_there { &mut counters.faults_minor } else { &mut counters.faults_major } += 1;
        if matches!(source, Source::Swap | Source::Ahead) {
            self.meter.asked_bytes += PAGE_BYTES;
            self.meter.hit_bytes += if is_there { PAGE_BYTES } else { 0 };
        }
    }

    /// Adds an absent page; there is room for it.
    pub(super) fn add_page(
        &mut self,
        file: FileId,
        page: u64,
        mark: Mark,
        is_ahead: bool,
    ) -> FrameId {
        self.cache
            .add_memory(file, page, mark, is_ahead)
            .expect("what is pinned, in flight and held stays within the budget")
    }

    pub(super) fn finish_fault(&mut self, read: ReadId) {
        self.reads[read.0 as usize].state = ReadState::Done;
        self.evidence.reads_under_way -= 1;
        self.swap.faulted.push_back(read);
    }

    /// The world has mapped the page of a fault that is being released.
    pub(super) fn map_faulted(&mut self, read: ReadId) {
        let slot = &self.reads[read.0 as usize];
        let Kind::Memory { memory, access, source } = slot.kind else { return };
        let (page, frame) = (slot.range.first, slot.frames.first().copied());
        let Some(frame) = frame.filter(|_| slot.error.is_none()) else { return };
        self.cache.use_memory(frame, source == Source::Memory);
        if access == MemoryAccess::Write && !self.cache.is_dirty(frame) {
            self.make_dirty(memory, page, frame);
        }
        self.cache.set_mapped(frame, true);
    }

    /// The page is written to: what its slot holds is old. While that is being
    /// written it keeps the slot, until the write has ended.
    pub(super) fn make_dirty(&mut self, memory: MemoryId, page: u64, frame: FrameId) {
        self.cache.set_dirty(frame, true);
        if !self.cache.is_writing(frame) {
            self.give_up_slot(memory, page);
        }
    }

    /// The fact of a fault for the law; none for a page that has no slot.
    pub(super) fn swap_fault(&self, memory: MemoryId, page: u64) -> Option<SwapFault> {
        let slot = self.slot_of(memory, page)?;
        let Memory { kind, slots, .. } = &self.memories[memory.0 as usize];
        Some(SwapFault {
            memory,
            page,
            memory_pages: slots.len() as u64,
            slot,
            slots: self.swap.area.slots(),
            is_shared: *kind == MemoryKind::Shared,
        })
    }

    pub(super) fn slot_of(&self, memory: MemoryId, page: u64) -> Option<u64> {
        self.memories[memory.0 as usize].slot_of(page)
    }

    /// The frame of the page that a slot holds, which is in memory.
    pub(super) fn frame_of_slot(&self, slot: u64) -> FrameId {
        let owner = self.swap.area.owner(slot).expect("a slot under way has its page");
        let file = self.memories[owner.memory.0 as usize].file;
        self.cache.find(file, owner.page).expect("a page under way is in its table")
    }

    pub(super) fn take_slot(&mut self, slot: u64, frame: FrameId) {
        let (file, page) = self.cache.page_of(frame);
        let memory = self.memory_of(file);
        self.swap.area.take(slot, Owner { memory, page });
        self.memories[memory.0 as usize].slots[page as usize] = slot as u32;
    }

    pub(super) fn give_up_slot(&mut self, memory: MemoryId, page: u64) {
        if let Some(slot) = self.slot_of(memory, page) {
            self.memories[memory.0 as usize].slots[page as usize] = NO_SLOT;
            self.swap.area.give_up(slot);
            self.swap.is_full = false;
        }
    }

    /// The device could not write the slot: it holds nothing from now on, and is
    /// never used again when it is the medium that is bad.
    pub(super) fn lose_slot(&mut self, slot: u64, error: DeviceError) {
        let owner = self.swap.area.owner(slot).expect("a slot under way has its page");
        self.memories[owner.memory.0 as usize].slots[owner.page as usize] = NO_SLOT;
        match error {
            DeviceError::Medium => self.swap.area.mark_bad(slot),
            _ => self.swap.area.give_up(slot),
        }
    }

    pub(super) fn memory_of(&self, file: FileId) -> MemoryId {
        let at = self.memories.partition_point(|memory| memory.file < file);
        debug_assert_eq!(self.memories[at].file, file, "only memory swaps");
        MemoryId(at as u32)
    }
}

/// 1 MiB: what a device that takes 1 GB/s reads in a millisecond, the time of a
/// large write on the devices that swap is put on.
const READY_PAGES_MAX: u32 = 256;
