//! Reads and writes from their start to the requests that they make.

use super::pages::{FilePages, NO_FRAME, cut, demand_first, join_adjacent};
use super::*;
use crate::cache::FrameState;
use crate::readahead::{Ask, Evidence, Pages};
use crate::swapin::MemoryId;

/// Where a read stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    /// Not in use. Entered at release.
    Free,
    /// Waits for memory, with nothing pinned. Entered at the start; left by `begin`.
    Waiting,
    /// Has its memory; `pending` transfers are awaited. Entered by `begin`; left by `finish`.
    Active,
    /// Has ended; its pages stay pinned. Entered by `finish`; left by release.
    Done,
}

/// What sort of transfer a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read(Access),
    Write {
        is_sync: bool,
    },
    /// A fault on memory; where it got its page from, once that is known.
    Memory {
        memory: MemoryId,
        access: MemoryAccess,
        source: Source,
    },
}

#[derive(Debug)]
pub(super) struct ReadSlot {
    pub(super) transfer: Transfer,
    pub(super) kind: Kind,
    pub(super) state: ReadState,
    pub(super) started: Time,
    /// Bytes to be moved: those asked for, cut at the end of the file.
    pub(super) bytes: u64,
    /// The pages touched; empty for direct transfers.
    pub(super) range: PageRange,
    /// The frame of each page, pinned; the vector is kept when the slot is reused.
    pub(super) frames: Vec<FrameId>,
    /// How many transfers are awaited.
    pub(super) pending: u32,
    /// Where a law that splits the demand has come to.
    pub(super) cursor: u64,
    pub(super) error: Option<ReadError>,
}

impl ReadSlot {
    /// How many pages of the budget it holds once it has begun: one that never
    /// began has pinned none.
    fn pinned(&self) -> u64 {
        if self.frames.is_empty() { 0 } else { self.range.count() }
    }
}

impl ReadPath {
    /// Starts a read.
    ///
    /// A [`Fault`](Access::Fault) is for one page, the one that holds `offset`. A read at or past the
    /// end of the file is done at once, with 0 bytes.
    ///
    /// # Errors
    /// The read is larger than the memory of the cache, misaligned though
    /// direct, or one too many.
    pub fn read(
        &mut self,
        now: Time,
        access: Access,
        transfer: Transfer,
    ) -> Result<ReadId, ReadError> {
        let file_bytes = self.file_bytes(transfer.handle);
        let bytes = transfer.bytes.min(file_bytes.saturating_sub(transfer.offset));
        if access == Access::Direct {
            self.check_alignment(&transfer)?;
        }
        let range = match access {
            Access::Direct => PageRange::default(),
            Access::Buffered | Access::Fault => PageRange::covering(transfer.offset, bytes),
        };
        if range.count() > self.budget.pages {
            return Err(ReadError::NotEnoughMemory {
                needed_bytes: range.count() * PAGE_BYTES,
                memory_bytes: self.budget.pages * PAGE_BYTES,
            });
        }
        let read = self.open_read(now, Kind::Read(access), transfer, bytes, range)?;
        self.meter.asked_bytes += bytes;
        if access == Access::Direct {
            self.start_direct(now, read, Op::Read, true);
        } else if self.waiting.is_empty() && self.has_room_for(range.count()) && self.secure(read) {
            self.begin(now, read);
        } else {
            self.waiting.push_back(read);
            self.admit(now);
        }
        Ok(read)
    }

    /// Starts a write, past the cache, from the caller's buffer to the device;
    /// cached pages of its range are dropped. `is_sync` says whether somebody
    /// waits for it, which schedulers look at.
    ///
    /// # Errors
    /// It is misaligned, goes past the end of the file, or is one too many.
    pub fn write(
        &mut self,
        now: Time,
        transfer: Transfer,
        is_sync: bool,
    ) -> Result<ReadId, ReadError> {
        self.check_alignment(&transfer)?;
        let file_bytes = self.file_bytes(transfer.handle);
        if transfer.offset + transfer.bytes > file_bytes {
            return Err(ReadError::PastEnd { file_bytes });
        }
        let kind = Kind::Write { is_sync };
        let read = self.open_read(now, kind, transfer, transfer.bytes, PageRange::default())?;
        self.meter.written_bytes += transfer.bytes;
        self.forget_overwritten(read);
        self.start_direct(now, read, Op::Write, is_sync);
        Ok(read)
    }

    /// Gives a read that is done back: its pages may be evicted, and reads that
    /// waited for memory go on.
    pub fn release(&mut self, now: Time, read: ReadId) {
        self.map_faulted(read);
        let slot = &mut self.reads[read.0 as usize];
        debug_assert_eq!(slot.state, ReadState::Done, "only what is done is released");
        slot.state = ReadState::Free;
        self.budget.pinned -= slot.pinned();
        leave_frames(&mut self.cache, slot);
        self.reads_free.push(read);
        self.admit(now);
    }

    /// Begins the reads that waited for memory, in their order, as far as there
    /// is room; those that can never have any fail.
    pub(super) fn admit(&mut self, now: Time) {
        self.retry = None;
        loop {
            self.make_room(now);
            let Some(&read) = self.waiting.front() else { return };
            let has_room = self.has_room_for(self.reads[read.0 as usize].range.count());
            if has_room || self.is_resident(read) {
                if !self.secure(read) {
                    self.retry = Some(now + RETRY);
                    return;
                }
                self.waiting.pop_front();
                self.begin(now, read);
            } else if !self.fail_for_want_of_room(read) {
                return;
            }
        }
    }

    /// Pins what is cached of a read that has room in the budget, and has frames promised for
    /// what is not. False, with nothing pinned, while too many pages are copied from.
    fn secure(&mut self, read: ReadId) -> bool {
        let slot = &mut self.reads[read.0 as usize];
        if !matches!(slot.kind, Kind::Read(_)) {
            return true;
        }
        let file = self.handles[slot.transfer.handle.0 as usize].file;
        slot.frames.extend(slot.range.pages().map(|page| match self.cache.find(file, page) {
            Some(frame) => {
                self.cache.pin(frame);
                frame
            }
            None => NO_FRAME,
        }));
        let absent = slot.frames.iter().filter(|&&frame| frame == NO_FRAME).count() as u32;
        let is_had = self.cache.promise(absent);
        if !is_had {
            slot.frames.drain(..).filter(|&frame| frame != NO_FRAME).for_each(|frame| {
                self.cache.unpin(frame);
            });
        }
        is_had
    }

    /// Drops the cached pages that a write overwrites.
    pub(super) fn forget_overwritten(&mut self, write: ReadId) {
        let transfer = self.reads[write.0 as usize].transfer;
        let file = self.handles[transfer.handle.0 as usize].file;
        self.cache.invalidate(file, PageRange::covering(transfer.offset, transfer.bytes));
    }

    /// Goes on with a read whose transfers have all come: to the next page
    /// where the law splits the demand, else to its end.
    pub(super) fn advance(&mut self, now: Time, read: ReadId) {
        let slot = &self.reads[read.0 as usize];
        let is_whole = slot.cursor >= slot.range.end;
        if is_whole || !self.handles[slot.transfer.handle.0 as usize].law.splits_demand() {
            return self.finish(read);
        }
        self.next_page(now, read);
    }

    fn check_alignment(&self, transfer: &Transfer) -> Result<(), ReadError> {
        let alignment_bytes = self.config.caps.alignment_sectors * SECTOR_BYTES as u32;
        let is_odd = |value: u64| !value.is_multiple_of(u64::from(alignment_bytes));
        match [transfer.offset, transfer.bytes].into_iter().find(|&value| is_odd(value)) {
            Some(value) => Err(ReadError::Misaligned { value, alignment_bytes }),
            None => Ok(()),
        }
    }

    pub(super) fn open_read(
        &mut self,
        now: Time,
        kind: Kind,
        transfer: Transfer,
        bytes: u64,
        range: PageRange,
    ) -> Result<ReadId, ReadError> {
        let id = match self.reads_free.pop() {
            Some(id) => id,
            None => {
                let open_reads_max = self.config.open_reads_max;
                if self.reads.len() as u64 >= u64::from(open_reads_max) {
                    return Err(ReadError::TooManyReads { open_reads_max });
                }
                self.reads.push(ReadSlot {
                    transfer,
                    kind,
                    state: ReadState::Free,
                    started: now,
                    bytes,
                    range,
                    frames: Vec::new(),
                    pending: 0,
                    cursor: 0,
                    error: None,
                });
                ReadId(self.reads.len() as u32 - 1)
            }
        };
        self.evidence.reads_under_way += 1;
        let slot = &mut self.reads[id.0 as usize];
        debug_assert_eq!(slot.state, ReadState::Free);
        let frames = core::mem::take(&mut slot.frames);
        *slot = ReadSlot {
            transfer,
            kind,
            state: ReadState::Waiting,
            started: now,
            bytes,
            range,
            frames,
            pending: 0,
            cursor: range.first,
            error: None,
        };
        Ok(id)
    }

    /// Begins a read through the cache, which has been secured; or a fault: there is memory
    /// for all its pages.
    pub(super) fn begin(&mut self, now: Time, read: ReadId) {
        if let Kind::Memory { memory, access, .. } = self.reads[read.0 as usize].kind {
            return self.begin_fault(now, read, memory, access);
        }
        let is_congested = self.is_congested();
        let slot = &mut self.reads[read.0 as usize];
        slot.state = ReadState::Active;
        self.evidence.now = now;
        self.budget.pinned += slot.range.count();
        let handle = &mut self.handles[slot.transfer.handle.0 as usize];
        let file = handle.file;
        let file_bytes = self.files[file.0 as usize].bytes;
        count_hits(&self.cache, slot, &mut self.meter);

        let held = u64::from(self.cache.held_pages());
        let mut view = FilePages {
            cache: &mut self.cache,
            file,
            file_pages: file_bytes.div_ceil(PAGE_BYTES),
            demand: slot.range,
            frames: &mut slot.frames,
            runs: &mut self.runs,
            budget: &mut self.budget,
            held,
            evidence: Evidence {
                device: &mut self.evidence,
                file: &mut self.files[file.0 as usize].evidence,
            },
        };
        let ask = Ask {
            offset: slot.transfer.offset,
            bytes: slot.transfer.bytes,
            file_bytes,
            is_congested,
        };
        match slot.kind {
            Kind::Read(Access::Fault) => handle.law.fault(slot.range.first, &ask, &mut view),
            _ => handle.law.read(&ask, &mut view),
        }
        if handle.law.splits_demand() {
            self.send_runs(now, read);
            return self.next_page(now, read);
        }
        view.add_demand();
        self.send_runs(now, read);
        self.await_in_flight(read);
        if self.reads[read.0 as usize].pending == 0 {
            self.finish(read);
        }
    }

    /// Reads the pages of `range` that are absent ahead of need, as far as memory allows.
    pub(super) fn read_ahead(
        &mut self,
        now: Time,
        file: FileId,
        range: PageRange,
        process: ProcessId,
    ) {
        let held = u64::from(self.cache.held_pages());
        let mut view = FilePages {
            cache: &mut self.cache,
            file,
            file_pages: range.end,
            demand: PageRange::default(),
            frames: &mut [],
            runs: &mut self.runs,
            budget: &mut self.budget,
            held,
            evidence: Evidence {
                device: &mut self.evidence,
                file: &mut self.files[file.0 as usize].evidence,
            },
        };
        view.add_absent(range, false);
        self.send_file_runs(now, file, PageRange::default(), true, process);
    }

    /// The read loop of 2003, to the next page that has to be waited for:
    /// each page is told to the law, and read alone if it is absent then. After
    /// an error nothing more is read, but what is on its way is waited for:
    /// until then its frames are promised to this read.
    fn next_page(&mut self, now: Time, read: ReadId) {
        let is_congested = self.is_congested();
        let slot = &mut self.reads[read.0 as usize];
        let handle = &mut self.handles[slot.transfer.handle.0 as usize];
        let file = handle.file;
        let file_bytes = self.files[file.0 as usize].bytes;
        let Transfer { offset, bytes, .. } = slot.transfer;
        let ask = Ask { offset, bytes, file_bytes, is_congested };
        let mut waits_for = None;
        while slot.cursor < slot.range.end && waits_for.is_none() {
            let page = slot.cursor;
            slot.cursor += 1;
            let at = (page - slot.range.first) as usize;
            let held = u64::from(self.cache.held_pages());
            let mut view = FilePages {
                cache: &mut self.cache,
                file,
                file_pages: file_bytes.div_ceil(PAGE_BYTES),
                demand: slot.range,
                frames: &mut slot.frames,
                runs: &mut self.runs,
                budget: &mut self.budget,
                held,
                evidence: Evidence {
                    device: &mut self.evidence,
                    file: &mut self.files[file.0 as usize].evidence,
                },
            };
            if slot.error.is_none() {
                handle.law.step(page, &ask, &mut view);
            }
            if view.frames[at] != NO_FRAME
                && view.cache.state(view.frames[at]) == FrameState::Failed
            {
                // Somebody else's read of it failed; this one tries for itself, if it
                // finds a frame.
                if view.cache.promise(1) {
                    view.cache.unpin(view.frames[at]);
                    view.frames[at] = NO_FRAME;
                } else {
                    let offset = (page * PAGE_BYTES).max(offset);
                    slot.error = Some(ReadError::Device { offset, error: DeviceError::Medium });
                }
            }
            if view.frames[at] == NO_FRAME && slot.error.is_none() {
                // Another read may have brought it in the meantime.
                match view.cache.find(file, page) {
                    Some(frame) => {
                        view.cache.pin(frame);
                        view.cache.give_back(1);
                        view.frames[at] = frame;
                    }
                    None => {
                        handle.law.miss(page);
                        view.begin_window();
                        view.add_run(PageRange::new(page, 1), 0, 0);
                    }
                }
            }
            let frame = view.frames[at];
            if frame != NO_FRAME && matches!(view.cache.state(frame), FrameState::InFlight(_)) {
                waits_for = Some(at);
            }
        }
        self.send_runs(now, read);
        match waits_for {
            Some(at) => self.await_frame(read, at),
            None => self.finish(read),
        }
    }

    pub(super) fn finish(&mut self, read: ReadId) {
        let slot = &mut self.reads[read.0 as usize];
        slot.state = ReadState::Done;
        self.evidence.reads_under_way -= 1;
        for &frame in slot.frames.iter().filter(|&&frame| frame != NO_FRAME) {
            self.cache.touch(frame);
        }
        self.done.push_back(read);
    }

    /// Has the read wait for every transfer that brings one of its pages.
    fn await_in_flight(&mut self, read: ReadId) {
        let slot = &mut self.reads[read.0 as usize];
        let mut last = None;
        for &frame in &slot.frames {
            if let FrameState::InFlight(request) = self.cache.state(frame)
                && last != Some(request)
            {
                self.transfers.wait(request, read);
                slot.pending += 1;
                last = Some(request);
            }
        }
    }

    fn await_frame(&mut self, read: ReadId, at: usize) {
        let slot = &mut self.reads[read.0 as usize];
        if let FrameState::InFlight(request) = self.cache.state(slot.frames[at]) {
            self.transfers.wait(request, read);
            slot.pending += 1;
        }
    }

    /// Makes requests of the runs of pages that a read has added.
    fn send_runs(&mut self, now: Time, read: ReadId) {
        let slot = &self.reads[read.0 as usize];
        let Handle { file, law } = &self.handles[slot.transfer.handle.0 as usize];
        let (file, is_demand_whole) = (*file, !law.splits_demand());
        let (demand, process) = (slot.range, slot.transfer.process);
        self.send_file_runs(now, file, demand, is_demand_whole, process);
    }

    fn send_file_runs(
        &mut self,
        now: Time,
        file: FileId,
        demand: PageRange,
        is_demand_whole: bool,
        process: ProcessId,
    ) {
        let pages_max = u64::from(self.config.caps.request_sectors_max) / PAGE_SECTORS;
        let mut runs = core::mem::take(&mut self.runs);
        // What was asked is joined across the windows that brought it in.
        let asked = if is_demand_whole { demand_first(&mut runs, demand) } else { 0 };
        let (asked, windows) = runs.split_at_mut(asked);
        for window in core::iter::once(asked).chain(windows.split_mut(|run| run.is_empty())) {
            let joined = join_adjacent(window);
            for &run in &window[..joined] {
                cut(run, demand, pages_max, |range| {
                    self.send_pages(now, file, range, demand, process);
                });
            }
        }
        runs.clear();
        self.runs = runs;
    }

    fn send_pages(
        &mut self,
        now: Time,
        file: FileId,
        range: PageRange,
        demand: PageRange,
        process: ProcessId,
    ) {
        let asked =
            PageRange { first: range.first.max(demand.first), end: range.end.min(demand.end) };
        let ahead_pages = (range.count() - asked.count()) as u32;
        let request = Request {
            id: RequestId(0),
            op: Op::Read,
            start: self.files[file.0 as usize].start_sector + range.first * PAGE_SECTORS,
            sectors: (range.count() * PAGE_SECTORS) as u32,
            process,
            priority: self.priority(process),
            is_sync: true,
        };
        let content = Content::Pages { file, range, ahead_pages, behind: Behind::none(range) };
        let request = self.transfers.open(request, content);
        self.cache.carry_run(file, range, request.id);
        self.push(now, request);
    }

    /// Cuts a direct transfer into the largest pieces that the device takes.
    fn start_direct(&mut self, now: Time, read: ReadId, op: Op, is_sync: bool) {
        let slot = &mut self.reads[read.0 as usize];
        slot.state = ReadState::Active;
        let file = self.handles[slot.transfer.handle.0 as usize].file;
        let start = self.files[file.0 as usize].start_sector + slot.transfer.offset / SECTOR_BYTES;
        let process = slot.transfer.process;
        // The last piece reaches to the end of the sector, or of what the device can address.
        let unit = u64::from(self.config.caps.alignment_sectors);
        let sectors = slot.bytes.div_ceil(SECTOR_BYTES).next_multiple_of(unit);
        if sectors == 0 {
            return self.finish(read);
        }
        let piece_max = u64::from(self.config.caps.request_sectors_max) / unit * unit;
        slot.pending = sectors.div_ceil(piece_max) as u32;
        let priority = self.priority(process);
        let mut at = 0;
        while at < sectors {
            let piece = piece_max.min(sectors - at);
            let request = Request {
                id: RequestId(0),
                op,
                start: start + at,
                sectors: piece as u32,
                process,
                priority,
                is_sync,
            };
            let content = Content::Direct { read, offset: at * SECTOR_BYTES };
            let request = self.transfers.open(request, content);
            self.push(now, request);
            at += piece;
        }
    }

    pub(super) fn push(&mut self, now: Time, request: Request) {
        self.plug.push(request);
        if self.plug.len() >= PLUG_REQUESTS_MAX {
            self.unplug(now);
        }
    }
}

/// How many requests are held back at most: the kernel's `BLK_MAX_REQUEST_COUNT`.
const PLUG_REQUESTS_MAX: usize = 32;

/// When a read that finds too few frames, because of pages that are copied from, tries again.
/// Who copies tells nobody that he is done, which would cost every hit; a copy of 64 KiB
/// takes a few microseconds, and where it takes longer, its memory is being brought in.
const RETRY: Time = Time::from_us(500);

/// Counts the bytes that are there in time.
fn count_hits(cache: &Cache, slot: &ReadSlot, meter: &mut Meter) {
    for (page, &frame) in slot.range.pages().zip(&slot.frames) {
        if frame != NO_FRAME && cache.state(frame) == FrameState::Filled {
            let start = slot.transfer.offset.max(page * PAGE_BYTES);
            let end = (slot.transfer.offset + slot.bytes).min((page + 1) * PAGE_BYTES);
            meter.hit_bytes += end - start;
        }
    }
}

/// Unpins what a read has, and gives back the promise of what it has not.
fn leave_frames(cache: &mut Cache, slot: &mut ReadSlot) {
    for frame in slot.frames.drain(..) {
        match frame {
            NO_FRAME => cache.give_back(1),
            frame => cache.unpin(frame),
        }
    }
}
