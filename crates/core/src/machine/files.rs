//! Files, handles with their policies, reads, and prefetch.
//!
//! # The poll contract
//! 1. [`open_read`](MachineFiles::open_read) opens a read, which may have to wait for memory.
//!    [`begin`](MachineFiles::begin) pins its cached pages and requests the rest.
//!    [`write`](MachineFiles::write) opens a write and starts it at once.
//! 2. [`complete_pages`](MachineFiles::complete_pages) or
//!    [`complete_direct`](MachineFiles::complete_direct) for each ended part of a request with data
//!    of a file.
//! 3. [`poll_done`](MachineFiles::poll_done) until it returns none; each result is
//!    [released](MachineFiles::release).
//!
//! # Invariants
//! 1. The requested pages reach the device whole: each absent run of a read is split only at the
//!    device's largest request, unless the policy requests reading [page by
//!    page](crate::readahead::Demand::Page).
//! 2. A page is filled only by a completion that reports its data as good.
//! 3. A device error reaches exactly the reads that needed the data.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use slab::Slab;

use super::config::Config;
use super::error::{BeyondDevice, ConfigError, ReadError};
use super::queue::RequestQueue;
use super::{Done, HandleId, PolicyMaker, ReadAccess, ReadId, SharedState, Transfer};
use crate::cache::{FileId, FrameId};
use crate::policy::Spec;
use crate::readahead::{
    self, Advice, FileEvidence, ReadaheadLimits, ReadaheadPolicy, ReadaheadState,
};
use crate::request::{Op, ProcessId};
use crate::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, SECTOR_BYTES, Time};

mod begin;
mod complete;
mod pages;

pub(super) use complete::RequestPages;
pub(super) use pages::{join_adjacent, split_run};

/// A file: a contiguous range of the device.
#[derive(Debug, Default)]
struct MachineFile {
    /// Its length.
    bytes: u64,
    /// Its first sector on the device.
    start_sector: u64,
    /// Observations about its reads, which the policies of all its handles share.
    evidence: FileEvidence,
}

/// An open file with its readahead policy.
struct Handle {
    /// Identifier of the file in the cache.
    file: FileId,
    /// Selects the pages to read ahead of this handle's reads.
    policy: Box<dyn ReadaheadPolicy>,
    /// The page in which its newest read ended; `None` before the first. A next read in that page
    /// is one use with it.
    last_page: Option<u64>,
}

/// State of a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    /// Waits for memory, with no page pinned. Entered at the start; left by `begin`, `start_direct`
    /// or `fail`.
    Waiting,
    /// Has its memory and waits for its requests. Entered by `begin` or `start_direct`; left by
    /// `finish`.
    Active,
    /// Has ended; its pages stay pinned. Entered by `finish`; left by release.
    Done,
}

/// Kind of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransferKind {
    /// A read through the cache or past it, or a fault on a mapped file.
    Read(ReadAccess),
    /// A write, which always bypasses the cache.
    Write,
}

/// A read or a write from its start until its release.
#[derive(Debug)]
struct FileTransfer {
    /// The transfer as the caller requested it.
    transfer: Transfer,
    /// Read or write, and its way to the device.
    kind: TransferKind,
    /// Waiting, active or done.
    state: ReadState,
    /// Time of the call that opened it.
    started: Time,
    /// Bytes to move: the requested ones, clipped at the end of the file.
    bytes: u64,
    /// The pages touched; empty for direct transfers.
    range: PageRange,
    /// The pinned frame of each page, or `NO_FRAME` for a page that has only a reserved frame.
    /// Empty while the read waits.
    frames: Vec<FrameId>,
    /// True if it begins in the page in which the handle's previous read ended: that page counts as
    /// one continued use.
    is_continuation: bool,
    /// Number of requests that it waits for.
    pending_requests: u32,
    /// Page up to which absent pages have been requested (exclusive). A policy may request them
    /// page by page.
    cursor: u64,
    /// Its error so far: of a read through the cache the one at the lowest offset, of a direct
    /// transfer the one that arrived first.
    error: Option<ReadError>,
}

impl FileTransfer {
    /// Number of budget pages that it has pinned; 0 if it never began.
    fn pinned_pages(&self) -> u64 {
        if self.frames.is_empty() { 0 } else { self.range.count() }
    }
}

/// All files, handles and reads.
pub(super) struct MachineFiles {
    /// The configured readahead policy, built once for each handle.
    readahead: Spec,
    /// Limits of the device for these policies: the largest window and request.
    limits: ReadaheadLimits,
    /// Most reads and writes that may be open at once.
    open_reads_max: u32,
    /// Files by their identifiers in the cache; identifiers of mappings have an empty entry.
    files: Vec<MachineFile>,
    /// Identifiers of removed files, for reuse.
    files_free: Vec<FileId>,
    /// Open handles, by the number of their `HandleId`.
    handles: Slab<Handle>,
    /// Creates the policies of files, instead of the configured one.
    policy_maker: Option<PolicyMaker>,
    /// Open reads and writes, by the number of their `ReadId`.
    reads: Slab<FileTransfer>,
    /// Empty lists of frames, kept for their capacity.
    spare_frame_lists: Vec<Vec<FrameId>>,
    /// Completed reads to be polled.
    done: VecDeque<ReadId>,
    /// Ranges of pages that were added to the cache and have no request yet.
    runs: Vec<PageRange>,
    /// True if a failure is one of a whole request
    /// ([`Machine::fail_requests_whole`](super::Machine::fail_requests_whole)).
    fails_whole: bool,
}

impl MachineFiles {
    /// Creates an empty set of files, with the policy of `config` for later ones. If that policy
    /// asks for costs, makes the queue learn them. Fails if the policy is unknown or has a bad
    /// parameter.
    pub(super) fn new(
        config: &Config,
        queue: &mut RequestQueue,
    ) -> Result<MachineFiles, ConfigError> {
        // This instance only checks the text, and shows if the policy asks for costs.
        let policy =
            readahead::build(&config.readahead, &config.limits).map_err(ConfigError::Policy)?;
        if policy.uses_costs() {
            queue.learn_costs();
        }
        Ok(MachineFiles {
            readahead: config.readahead.clone(),
            limits: config.limits,
            open_reads_max: config.open_reads_max,
            files: Vec::new(),
            files_free: Vec::new(),
            handles: Slab::new(),
            policy_maker: None,
            reads: Slab::new(),
            spare_frame_lists: Vec::new(),
            done: VecDeque::new(),
            runs: Vec::new(),
            fails_whole: false,
        })
    }

    /// Adds a file of `bytes` bytes from `start_sector` on.
    ///
    /// # Errors
    /// The file would end behind the end of the device.
    pub(super) fn add(
        &mut self,
        base: &mut SharedState,
        bytes: u64,
        start_sector: u64,
    ) -> Result<FileId, BeyondDevice> {
        let end_sector = start_sector.saturating_add(bytes.div_ceil(PAGE_BYTES) * PAGE_SECTORS);
        let device_sectors = base.queue.caps().sectors;
        if end_sector > device_sectors {
            return Err(BeyondDevice { end_sector, device_sectors });
        }
        // The identifier of a removed file is reused first.
        let id = self.files_free.pop().unwrap_or_else(|| base.frames.cache.add_file());
        let index = id.0 as usize;
        if index >= self.files.len() {
            self.files.resize_with(index + 1, MachineFile::default);
        }
        // Without observations. The number names the file in the decision log.
        let evidence = FileEvidence::new(id.0);
        self.files[index] = MachineFile { bytes, start_sector, evidence };
        Ok(id)
    }

    /// Opens a file: each handle has its own readahead state.
    pub(super) fn open(&mut self, file: FileId) -> HandleId {
        let policy = match &mut self.policy_maker {
            Some(make) => make(&self.limits),
            None => readahead::build(&self.readahead, &self.limits)
                .expect("the policy was built once already, from the same text"),
        };
        HandleId(self.handles.insert(Handle { file, policy, last_page: None }) as u32)
    }

    /// Closes a handle without unreleased reads. Its policy records the lengths of the sequences of
    /// pages (runs) that end with it.
    pub(super) fn close(&mut self, base: &mut SharedState, handle: HandleId) {
        let Handle { file, mut policy, last_page } = self.handles.remove(handle.0 as usize);
        let file_pages = self.file(file).bytes.div_ceil(PAGE_BYTES);
        policy.on_close(last_page, file_pages, &mut base.queue.evidence);
    }

    /// Removes a file without handles, and drops its pages. Returns false while some of these are
    /// in flight: call again later. After true, the identifier may be reused.
    pub(super) fn remove(&mut self, base: &mut SharedState, file: FileId) -> bool {
        // The range ends with the file: a small file is then searched page by page, not frame by
        // frame.
        let end = self.file(file).bytes.div_ceil(PAGE_BYTES);
        let cache = &mut base.frames.cache;
        // Pages in flight stay until they arrive, and leave then.
        cache.invalidate(file, PageRange { first: 0, end });
        let is_removed = cache.is_empty(file);
        if is_removed {
            // The credit bounds prefetch by the used share of the file's earlier prefetched pages.
            cache.forget_credit(file);
            self.files_free.push(file);
        }
        is_removed
    }

    /// Reports to the handle's policy that reads found all data in shared pages. The last of them
    /// ended before byte `end` of the file.
    pub(super) fn record_shared_reads(&mut self, handle: HandleId, end: u64) {
        let state = &mut self.handles[handle.0 as usize];
        state.policy.record_cached_reads(end);
        state.last_page = Some(end.saturating_sub(1) / PAGE_BYTES);
    }

    /// Sets the maker of readahead policies for the files opened later, and makes the queue learn
    /// costs.
    pub(super) fn set_policy_maker(&mut self, make: PolicyMaker, queue: &mut RequestQueue) {
        // The policies of `make` are unknown: they may ask for the costs of requests.
        queue.learn_costs();
        self.policy_maker = Some(make);
    }

    /// Identifier of the handle's file.
    pub(super) fn file_of(&self, handle: HandleId) -> FileId {
        self.handle(handle).file
    }

    /// The length of the handle's file in bytes.
    pub(super) fn file_bytes(&self, handle: HandleId) -> u64 {
        self.file(self.file_of(handle)).bytes
    }

    /// Readahead state of the handle's file.
    pub(super) fn readahead_state(&self, base: &SharedState, handle: HandleId) -> ReadaheadState {
        let file = self.file_of(handle);
        let credit = *base.frames.cache.credit(file);
        ReadaheadState::of(&base.queue.evidence, &self.file(file).evidence, Some(credit))
    }

    /// Readahead policy of an open handle.
    pub(super) fn policy(&self, handle: HandleId) -> &dyn ReadaheadPolicy {
        &*self.handle(handle).policy
    }

    /// Readahead policy of an open handle, to be called with changes.
    pub(super) fn policy_mut(&mut self, handle: HandleId) -> &mut dyn ReadaheadPolicy {
        &mut *self.handles[handle.0 as usize].policy
    }

    /// Applies advice about a range of an open file, clipped at the end of the file: prefetches or
    /// drops pages, then reports it to the policy. `drop_unused` keeps pages that a read has
    /// pinned. See [`Machine::advise`](super::Machine::advise).
    pub(super) fn advise(
        &mut self,
        now: Time,
        base: &mut SharedState,
        handle: HandleId,
        process: ProcessId,
        advice: Advice,
        range: PageRange,
    ) {
        let file = self.file_of(handle);
        let range = range.clipped(self.file(file).bytes.div_ceil(PAGE_BYTES));
        match advice {
            Advice::WillNeed => self.read_ahead(now, base, file, range, process),
            Advice::DontNeed => base.frames.cache.drop_unused(file, range),
            // Advice for the policy alone.
            Advice::Normal | Advice::Sequential | Advice::Random => {}
        }
        self.policy_mut(handle).advise(advice);
    }

    /// Opens a read without beginning it. The caller calls `begin` once there is memory for its
    /// [pages](MachineFiles::needed_pages), or `start_direct` for a direct one. A read at or past
    /// the end of the file has no page, and ends with 0 bytes when it begins. Fails if a direct
    /// read is misaligned, if the pages exceed the memory, or if `open_reads_max` reads and writes
    /// are open.
    pub(super) fn open_read(
        &mut self,
        now: Time,
        base: &mut SharedState,
        access: ReadAccess,
        transfer: Transfer,
    ) -> Result<ReadId, ReadError> {
        let file_bytes = self.file_bytes(transfer.handle);
        let bytes = transfer.bytes.min(file_bytes.saturating_sub(transfer.offset));
        if access == ReadAccess::Direct {
            check_alignment(base, &transfer)?;
        }
        let range = match access {
            ReadAccess::Direct => PageRange::default(),
            ReadAccess::Buffered | ReadAccess::Fault => PageRange::covering(transfer.offset, bytes),
        };
        let memory_pages = base.frames.budget.pages;
        if range.count() > memory_pages {
            return Err(ReadError::NotEnoughMemory {
                needed_bytes: range.count() * PAGE_BYTES,
                memory_bytes: memory_pages * PAGE_BYTES,
            });
        }
        let kind = TransferKind::Read(access);
        let read = self.register_transfer(now, base, kind, transfer, bytes, range)?;
        base.queue.meter.requested_bytes += bytes;
        Ok(read)
    }

    /// Starts a direct write; the cached pages of its range are dropped. An empty one is done at
    /// once. `is_sync` is true if the caller waits for it, which schedulers consider. Fails if the
    /// write is misaligned, ends behind the end of the file, or `open_reads_max` reads and writes
    /// are open.
    pub(super) fn write(
        &mut self,
        now: Time,
        base: &mut SharedState,
        transfer: Transfer,
        is_sync: bool,
    ) -> Result<ReadId, ReadError> {
        check_alignment(base, &transfer)?;
        let file_bytes = self.file_bytes(transfer.handle);
        if transfer.offset.checked_add(transfer.bytes).is_none_or(|end| end > file_bytes) {
            return Err(ReadError::PastEnd { file_bytes });
        }
        let no_pages = PageRange::default();
        let kind = TransferKind::Write;
        let read = self.register_transfer(now, base, kind, transfer, transfer.bytes, no_pages)?;
        base.queue.meter.written_bytes += transfer.bytes;
        self.forget_overwritten(base, read);
        self.start_direct(now, base, read, Op::Write, is_sync);
        Ok(read)
    }

    /// Registers a read or a write of `bytes` bytes (within the file), which needs the pages of
    /// `range`, and updates the last page of its handle. A buffered read that begins in that page
    /// continues the read before it. A fault never counts as such a continuation. Fails if
    /// `open_reads_max` are open.
    fn register_transfer(
        &mut self,
        now: Time,
        base: &mut SharedState,
        kind: TransferKind,
        transfer: Transfer,
        bytes: u64,
        range: PageRange,
    ) -> Result<ReadId, ReadError> {
        let open_reads_max = self.open_reads_max;
        if self.reads.len() as u64 >= u64::from(open_reads_max) {
            return Err(ReadError::TooManyReads { open_reads_max });
        }
        // Policies take the number of open reads for the number of waiting readers.
        base.queue.evidence.open_reads += 1;
        // The read continues the one before it if it begins in the page where that ended.
        let last_page = &mut self.handles[transfer.handle.0 as usize].last_page;
        let is_continuation =
            kind == TransferKind::Read(ReadAccess::Buffered) && *last_page == Some(range.first);
        // Direct transfers, and reads without a byte, have an empty range. They leave the position
        // unchanged.
        if !range.is_empty() {
            *last_page = Some(range.end - 1);
        }
        let read = FileTransfer {
            transfer,
            kind,
            state: ReadState::Waiting,
            started: now,
            bytes,
            range,
            frames: self.spare_frame_lists.pop().unwrap_or_default(),
            is_continuation,
            pending_requests: 0,
            cursor: range.first,
            error: None,
        };
        Ok(ReadId(self.reads.insert(read) as u32))
    }

    /// Number of pages of memory that an open read needs to begin; 0 for a direct one. All its
    /// pages count, cached or not, because the read pins them.
    pub(super) fn needed_pages(&self, read: ReadId) -> u64 {
        self.file_transfer(read).range.count()
    }

    /// Ends a waiting read with an error, and queues its result. The caller has removed it from the
    /// reads that wait for memory.
    pub(super) fn fail(&mut self, base: &mut SharedState, read: ReadId, error: ReadError) {
        self.file_transfer_mut(read).error = Some(error);
        self.finish(base, read);
    }

    /// Ends a read or a write: its pages, if any, count as used, and its result is queued. If a
    /// read continues in the page in which the handle's previous read ended, that page counts as
    /// one use for both.
    fn finish(&mut self, base: &mut SharedState, id: ReadId) {
        let read = &mut self.reads[id.0 as usize];
        read.state = ReadState::Done;
        base.queue.evidence.open_reads -= 1;
        let cache = &mut base.frames.cache;
        for (index, &frame) in read.frames.iter().enumerate() {
            match frame {
                // A failed read skips its remaining pages.
                pages::NO_FRAME => {}
                // `touch` counts a use, `continue_use` only if the page was not used before.
                frame if index == 0 && read.is_continuation => cache.continue_use(frame),
                frame => cache.touch(frame),
            }
        }
        self.done.push_back(id);
    }

    /// Removes and returns the next completed read or write; `None` if there is none.
    pub(super) fn poll_done(&mut self) -> Option<Done> {
        let id = self.done.pop_front()?;
        let read = self.file_transfer(id);
        Some(Done {
            read: id,
            tag: read.transfer.tag,
            process: read.transfer.process,
            started: read.started,
            result: read.error.map_or(Ok(read.bytes), Err),
        })
    }

    /// Releases a completed read: its pages may be evicted, and its identifier may be reused.
    pub(super) fn release(&mut self, base: &mut SharedState, id: ReadId) {
        let mut read = self.reads.remove(id.0 as usize);
        debug_assert_eq!(read.state, ReadState::Done, "only what is done is released");
        base.frames.budget.pinned_pages -= read.pinned_pages();
        for frame in read.frames.drain(..) {
            match frame {
                // A reserved frame that was never used.
                pages::NO_FRAME => base.frames.cache.release_reservation(1),
                frame => base.frames.cache.unpin(frame),
            }
        }
        self.spare_frame_lists.push(read.frames);
    }

    /// The frames of a begun read, first page first; no frame for a direct transfer. A page that a
    /// failed read skipped has `NO_FRAME`.
    pub(super) fn frames_of(&self, read: ReadId) -> &[FrameId] {
        &self.file_transfer(read).frames
    }

    /// The transfer as requested.
    pub(super) fn transfer_of(&self, read: ReadId) -> &Transfer {
        &self.file_transfer(read).transfer
    }

    /// Returns true for a fault on a mapped file.
    pub(super) fn is_fault(&self, read: ReadId) -> bool {
        self.file_transfer(read).kind == TransferKind::Read(ReadAccess::Fault)
    }

    /// Returns true if no read or write is open.
    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty()
    }

    /// State of a file.
    fn file(&self, file: FileId) -> &MachineFile {
        &self.files[file.0 as usize]
    }

    /// State of an open handle.
    fn handle(&self, handle: HandleId) -> &Handle {
        &self.handles[handle.0 as usize]
    }

    /// State of an open read or write.
    fn file_transfer(&self, read: ReadId) -> &FileTransfer {
        &self.reads[read.0 as usize]
    }

    /// State of an open read or write, to be changed.
    fn file_transfer_mut(&mut self, read: ReadId) -> &mut FileTransfer {
        &mut self.reads[read.0 as usize]
    }
}

/// Checks the offset and the size of a direct transfer against the device's alignment. The error
/// has the first of the two that is no multiple of it.
fn check_alignment(base: &SharedState, transfer: &Transfer) -> Result<(), ReadError> {
    let alignment_bytes = base.queue.caps().alignment_sectors * SECTOR_BYTES as u32;
    let is_misaligned = |value: u64| !value.is_multiple_of(u64::from(alignment_bytes));
    match [transfer.offset, transfer.bytes].into_iter().find(|&value| is_misaligned(value)) {
        Some(value) => Err(ReadError::Misaligned { value, alignment_bytes }),
        None => Ok(()),
    }
}
