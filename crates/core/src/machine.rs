//! The machine that joins cache, readahead and scheduler: reads come in,
//! requests go out, completions come back, reads are done.
//!
//! # The poll contract
//! 1. Commands: [`open`](ReadPath::open), [`read`](ReadPath::read),
//!    [`write`](ReadPath::write), [`advise`](ReadPath::advise). They never block.
//! 2. [`poll_request`](ReadPath::poll_request) until it gives none: what to hand to the device.
//!    Requests that were made since the last poll are *plugged* until then: they
//!    are merged with each other before the device sees the first of them.
//! 3. [`handle_completion`](ReadPath::handle_completion) for each request that the device finished.
//! 4. [`poll_done`](ReadPath::poll_done) until it gives none: which reads are done. Their
//!    pages stay pinned until [`release`](ReadPath::release).
//! 5. When there is nothing to do, wait for a completion, a new command, or the
//!    time that [`next_wake`](ReadPath::next_wake) names.
//!
//! `now` never goes backwards from one call to the next.
//!
//! # What holds
//! 1. Pages pinned by reads plus pages being read ahead never exceed the
//!    budget: a read that would break this waits, with nothing pinned, until
//!    earlier ones are released. So a demand read that has begun always finds
//!    frames, and two reads never wait for each other's memory.
//! 2. What was asked reaches the device whole: each absent run of a read is cut
//!    only where the device's largest request forces it, unless the law
//!    [splits the demand](crate::readahead::ReadaheadLaw::splits_demand).
//! 3. A page is filled only by a completion that says that its bytes are good.
//! 4. A device error reaches exactly the reads that needed the bytes.
//!
//! Memory larger than memory is driven by the same machine: see
//! [`swapin`](crate::swapin). Its pages that can't be given away at once (mapped,
//! dirty, being written) count in the budget like pinned ones. A fault that
//! finds no room waits like a read, and the oldest of them are unmapped and
//! written for it; some are kept ready so that this is rare.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;

use crate::cache::{Cache, CacheCounters, FileId, FrameId, FrameState, Lender};
use crate::law::Spec;
use crate::raw::{self, RawLaw};
use crate::readahead::{self, Advice, DeviceEvidence, FileEvidence, ReadaheadLaw, ReadaheadLimits};
use crate::request::{Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Priority, ProcessId};
use crate::request::{Request, RequestId};
use crate::scheduler::decision::DecisionLog;
use crate::scheduler::{self, Dispatch, Inserted, Scheduler};
use crate::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, SECTOR_BYTES, Time};

mod complete;
mod config;
mod error;
mod memory;
mod meter;
mod pages;
mod reads;
mod swap_area;
mod swap_in;
mod swap_out;
mod transfers;

pub use config::Config;
pub use error::{BeyondDevice, ConfigError, ReadError, SwapError};
pub use memory::{Faulted, MemoryAccess, MemoryFault, MemoryKind, Source};
use memory::{Memory, Swap};
pub use memory::{SwapConfig, SwapCounters, SwapOut, Unmap};
pub use meter::Meter;
use reads::{Kind, ReadSlot};
use transfers::{Content, Transfers};

/// Names an open file: a file of the cache, with the readahead state of one opener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u32);

/// Names a read from its start until its release; reused afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u32);

/// How a read goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Through the cache, as `read(2)` does.
    Buffered,
    /// Through the cache, one page, as a fault on a memory mapping does.
    Fault,
    /// Past the cache, from the device into the caller's buffer, as `O_DIRECT` does.
    Direct,
}

/// A read or a write, as the caller gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which open file.
    pub handle: HandleId,
    /// On whose behalf.
    pub process: ProcessId,
    /// The first byte, from the start of the file.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Comes back with the result; the machine doesn't look at it.
    pub tag: u64,
}

/// A piece of memory that a request of the device fills, or takes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// A whole frame of the cache.
    Frame(FrameId),
    /// A piece of the buffer that the caller gave with a direct transfer.
    Caller {
        /// Whose buffer.
        read: ReadId,
        /// The first byte of it.
        offset: u64,
        /// How many bytes; may reach up to one alignment past what was asked,
        /// where a file does not end on a sector.
        bytes: u64,
    },
}

/// A read or a write that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its name; call [`ReadPath::release`] with it once its bytes were taken.
    pub read: ReadId,
    /// The caller's tag.
    pub tag: u64,
    /// On whose behalf it was.
    pub process: ProcessId,
    /// When it was started.
    pub started: Time,
    /// How many bytes were read or written: fewer than asked only at the end of the file.
    pub result: Result<u64, ReadError>,
}

#[derive(Debug)]
struct File {
    bytes: u64,
    start_sector: u64,
    evidence: FileEvidence,
}

struct Handle {
    file: FileId,
    law: Box<dyn ReadaheadLaw>,
}

/// Makes the readahead law of a file that is opened, from what it may know of the device.
pub type LawMaker = Box<dyn FnMut(&ReadaheadLimits) -> Box<dyn ReadaheadLaw> + Send>;

/// How many pages are promised, and to whom: invariant 1 of the machine.
#[derive(Clone, Copy, Debug)]
struct Budget {
    pages: u64,
    /// One for each page of each read that has begun and is not released.
    pinned: u64,
    /// Pages read ahead that the device has not delivered yet.
    ahead: u64,
}

impl Budget {
    fn has_room_for(&self, pages: u64) -> bool {
        pages <= self.room()
    }

    fn room(&self) -> u64 {
        self.pages.saturating_sub(self.pinned + self.ahead)
    }
}

/// The read path over one device. See the [module](self) for the order of calls.
pub struct ReadPath {
    config: Config,
    cache: Cache,
    files: Vec<File>,
    files_free: Vec<FileId>,
    handles: Vec<Handle>,
    handles_free: Vec<HandleId>,
    /// Makes the laws of files, where they are not the configuration's.
    law_maker: Option<LawMaker>,
    priorities: Vec<Priority>,
    scheduler: Box<dyn Scheduler>,
    raw: Box<dyn RawLaw + Send + Sync>,
    budget: Budget,
    reads: Vec<ReadSlot>,
    reads_free: Vec<ReadId>,
    /// Reads that wait for memory, in the order in which they came.
    waiting: VecDeque<ReadId>,
    done: VecDeque<ReadId>,
    transfers: Transfers,
    /// Requests made since the last poll.
    plug: Vec<Request>,
    /// Runs of pages that were added to the cache and have no request yet.
    runs: Vec<PageRange>,
    /// Parts of failed requests that are tried again on their own, past the scheduler.
    retries: VecDeque<Request>,
    wake: Option<Time>,
    /// What the readahead laws know together.
    evidence: DeviceEvidence,
    meter: Meter,
    memories: Vec<Memory>,
    swap: Swap,
}

impl ReadPath {
    /// An idle path with an empty cache.
    ///
    /// # Errors
    /// A law is unknown or has a bad parameter; memory, depth or the device's
    /// largest request is too small.
    pub fn new(config: Config) -> Result<ReadPath, ConfigError> {
        let pages = config.memory_bytes / PAGE_BYTES;
        let lent_pages_max = config.lent_bytes_max / PAGE_BYTES;
        if pages <= lent_pages_max {
            let memory_bytes = config.memory_bytes.saturating_sub(lent_pages_max * PAGE_BYTES);
            return Err(ConfigError::NoMemory { memory_bytes });
        }
        if pages >= u64::from(u32::MAX) {
            return Err(ConfigError::TooMuchMemory { memory_bytes: config.memory_bytes });
        }
        if config.depth_max == 0 || config.caps.depth_max == 0 {
            return Err(ConfigError::NoDepth);
        }
        let request_sectors_max = config.caps.request_sectors_max;
        if u64::from(request_sectors_max) < PAGE_SECTORS {
            return Err(ConfigError::RequestTooSmall { request_sectors_max });
        }
        readahead::build(&config.readahead, &config.limits).map_err(ConfigError::Law)?;
        // A device that takes no sector at all takes no merged request.
        let merged_max = if config.merges { request_sectors_max } else { 0 };
        let caps = DeviceCaps { request_sectors_max: merged_max, ..config.caps };
        let scheduler = scheduler::build(&config.scheduler, &caps).map_err(ConfigError::Law)?;
        let raw = raw::build(&config.raw).map_err(ConfigError::Law)?;
        Ok(ReadPath {
            cache: Cache::new(pages as u32),
            files: Vec::new(),
            files_free: Vec::new(),
            handles: Vec::new(),
            handles_free: Vec::new(),
            law_maker: None,
            priorities: Vec::new(),
            scheduler,
            raw,
            budget: Budget { pages: pages - lent_pages_max, pinned: 0, ahead: 0 },
            reads: Vec::new(),
            reads_free: Vec::new(),
            waiting: VecDeque::new(),
            done: VecDeque::new(),
            transfers: Transfers::default(),
            plug: Vec::new(),
            runs: Vec::new(),
            retries: VecDeque::new(),
            wake: None,
            evidence: DeviceEvidence::default(),
            meter: Meter::default(),
            memories: Vec::new(),
            swap: Swap::default(),
            config,
        })
    }

    /// Adds a file of `bytes` bytes that lies on the device from `start_sector` on, in one piece.
    ///
    /// # Errors
    /// The file, rounded up to whole pages, would reach past the device.
    pub fn add_file(&mut self, bytes: u64, start_sector: u64) -> Result<FileId, BeyondDevice> {
        let end_sector = start_sector + bytes.div_ceil(PAGE_BYTES) * PAGE_SECTORS;
        if end_sector > self.config.caps.sectors {
            return Err(BeyondDevice { end_sector, device_sectors: self.config.caps.sectors });
        }
        let free = self.files_free.pop();
        let number = free.map_or(self.files.len() as u32, |id| id.0);
        let evidence = FileEvidence { number, ..FileEvidence::default() };
        let file = File { bytes, start_sector, evidence };
        if let Some(id) = free {
            self.files[id.0 as usize] = file;
            return Ok(id);
        }
        self.files.push(file);
        Ok(self.cache.add_file())
    }

    /// Opens a file: the handle has a readahead state of its own.
    pub fn open(&mut self, file: FileId) -> HandleId {
        let limits = &self.config.limits;
        let law = match &mut self.law_maker {
            Some(make) => make(limits),
            None => readahead::build(&self.config.readahead, limits)
                .expect("the law was built once already, from the same text"),
        };
        let handle = Handle { file, law };
        if let Some(id) = self.handles_free.pop() {
            self.handles[id.0 as usize] = handle;
            return id;
        }
        self.handles.push(handle);
        HandleId(self.handles.len() as u32 - 1)
    }

    /// Closes a handle, none of whose reads is unreleased; its name may be given again.
    pub fn close(&mut self, handle: HandleId) {
        self.handles[handle.0 as usize].law.closed(&mut self.evidence);
        self.handles_free.push(handle);
    }

    /// Removes a file that has no handle any more, and drops its pages. False
    /// while some of them are on their way: ask again after a completion. Once
    /// true, its name may be given again.
    pub fn remove_file(&mut self, file: FileId) -> bool {
        self.cache.invalidate(file, PageRange { first: 0, end: u64::MAX });
        let is_gone = self.cache.is_empty(file);
        if is_gone {
            self.files_free.push(file);
        }
        is_gone
    }

    /// The bytes of the range have changed on the device: none of its pages is
    /// served again. Reads that are under way may give the old ones.
    pub fn invalidate(&mut self, handle: HandleId, range: PageRange) {
        self.cache.invalidate(self.handles[handle.0 as usize].file, range);
    }

    /// As [`invalidate`](ReadPath::invalidate), for a file, whatever its handles.
    pub fn invalidate_file(&mut self, file: FileId, range: PageRange) {
        self.cache.invalidate(file, range);
    }

    /// The first page of the range that is on its way. After an `invalidate` it
    /// may carry the old bytes, to whoever reads it until it is there; it is not
    /// served after that.
    pub fn first_in_flight(&self, file: FileId, range: PageRange) -> Option<u64> {
        self.cache.first_in_flight(file, range)
    }

    /// Has filled pages lent to readers beside the machine; before the first read.
    /// [`Config::lent_bytes_max`] says how much may be held for longer than a copy takes.
    pub fn lend_through(&mut self, lender: Box<dyn Lender>) {
        self.cache.lend_through(lender);
    }

    /// Whether the handle's law must be shown reads that find every page cached
    /// and none marked, so that they must come to the machine too.
    pub fn sees_every_hit(&self, handle: HandleId) -> bool {
        self.handles[handle.0 as usize].law.sees_every_hit()
    }

    /// Reads found everything in lent pages; the last of them ended at byte `end` of the file.
    pub fn passed(&mut self, handle: HandleId, end: u64) {
        self.handles[handle.0 as usize].law.passed(end);
    }

    /// Whether reads wait for memory that others have not released.
    pub fn is_short_of_memory(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The most memory that one read may take, in bytes.
    pub fn read_bytes_max(&self) -> u64 {
        self.budget.pages * PAGE_BYTES
    }

    /// A page that the lender was to [`forget`](Lender::forget) is held by nobody any more.
    pub fn returned(&mut self, frame: FrameId) {
        self.cache.returned(frame);
    }

    /// Takes in how lent pages were used, so that the cache's counters are those of now.
    pub fn settle(&mut self) {
        self.cache.settle();
    }

    /// Has the law of each file opened from here on made by `make`: a law that
    /// is none of this crate's, or one of them that is watched.
    pub fn set_law_maker(&mut self, make: LawMaker) {
        self.law_maker = Some(make);
    }

    /// The length of the handle's file in bytes.
    pub fn file_bytes(&self, handle: HandleId) -> u64 {
        self.file_of(handle).bytes
    }

    /// The law of raw transfers: each of their chunks is a direct read or write of this path.
    pub fn raw_law(&self) -> &dyn RawLaw {
        &*self.raw
    }

    /// What the device can do.
    pub fn caps(&self) -> DeviceCaps {
        self.config.caps
    }

    /// Sets the I/O priority of a process, for the schedulers that look at it.
    pub fn set_priority(&mut self, process: ProcessId, priority: Priority) {
        let at = process.0 as usize;
        if at >= self.priorities.len() {
            self.priorities.resize(at + 1, Priority::default());
        }
        self.priorities[at] = priority;
    }

    /// The process will ask for nothing more: no scheduler need wait for it.
    pub fn process_ended(&mut self, now: Time, process: ProcessId) {
        self.scheduler.process_ended(now, process);
    }

    /// The log of the scheduler's decisions, to turn it on and to take them
    /// out; `None` when its law keeps none.
    pub fn scheduler_decisions(&mut self) -> Option<&mut DecisionLog> {
        self.scheduler.decisions()
    }

    /// The log of what is read ahead, of files and of memory, to turn it on and to take it out;
    /// empty where neither the readahead law nor the swap-in law keeps one
    /// ([`ReadaheadLaw::keeps_log`], [`SwapinLaw::keeps_log`](crate::swapin::SwapinLaw::keeps_log)).
    pub fn readahead_decisions(&mut self) -> &mut DecisionLog {
        &mut self.evidence.log
    }

    /// A hint about a range of an open file, as `posix_fadvise(2)` gives it.
    ///
    /// `WillNeed` reads the absent pages of the range ahead, as far as memory
    /// allows; `DontNeed` drops its pages that nobody holds; the others go to
    /// the readahead law and concern the whole handle.
    pub fn advise(
        &mut self,
        now: Time,
        handle: HandleId,
        process: ProcessId,
        advice: Advice,
        range: PageRange,
    ) {
        let file = self.handles[handle.0 as usize].file;
        let range = range.clipped(self.files[file.0 as usize].bytes.div_ceil(PAGE_BYTES));
        match advice {
            Advice::WillNeed => self.read_ahead(now, file, range, process),
            Advice::DontNeed => self.cache.drop_unused(file, range),
            Advice::Normal | Advice::Sequential | Advice::Random => {}
        }
        self.handles[handle.0 as usize].law.advise(advice);
    }

    /// The next request for the device; None when it is full, or when the
    /// scheduler has nothing for it now.
    pub fn poll_request(&mut self, now: Time) -> Option<DeviceRequest> {
        self.unplug(now);
        if self.meter.in_device() >= self.depth_max() {
            return None;
        }
        let request = match self.retries.pop_front() {
            Some(request) => request,
            None => match self.scheduler.dispatch(now) {
                Dispatch::Request(request) => request,
                Dispatch::WaitUntil(time) => {
                    self.wake = Some(time);
                    return None;
                }
                Dispatch::Nothing => {
                    self.wake = None;
                    return None;
                }
            },
        };
        self.wake = None;
        debug_assert_eq!(request, self.transfers.merged(request.id), "merged and dispatched alike");
        self.meter.dispatched(now, &request);
        self.evidence.estimate.dispatched(now, request.id);
        Some(DeviceRequest {
            id: request.id,
            op: request.op,
            start: request.start,
            sectors: request.sectors,
        })
    }

    /// When to poll again though nothing has come or completed; None: no need.
    pub fn next_wake(&self) -> Option<Time> {
        self.wake
    }

    /// The next read or write that has ended.
    pub fn poll_done(&mut self) -> Option<Done> {
        let read = self.done.pop_front()?;
        let slot = &self.reads[read.0 as usize];
        Some(Done {
            read,
            tag: slot.transfer.tag,
            process: slot.transfer.process,
            started: slot.started,
            result: slot.error.map_or(Ok(slot.bytes), Err),
        })
    }

    /// The frames of a read that is done and not yet released, first page
    /// first; none for a direct transfer.
    pub fn read_frames(&self, read: ReadId) -> &[FrameId] {
        &self.reads[read.0 as usize].frames
    }

    /// Where the bytes of a request of the device go to, or come from, in the
    /// order of its sectors.
    pub fn request_buffers(&self, id: RequestId, mut each: impl FnMut(Buffer)) {
        self.transfers.each_part_in_order(id, |part| match self.transfers.content(part) {
            Content::Pages { file, range, .. } => {
                self.cache.each_frame(file, range, |frame| each(Buffer::Frame(frame)));
            }
            Content::Slots { range, .. } => range.pages().for_each(|slot| {
                each(Buffer::Frame(self.frame_of_slot(slot)));
            }),
            Content::Direct { read, offset } => {
                let bytes = self.transfers.request(part).bytes();
                each(Buffer::Caller { read, offset, bytes });
            }
        });
    }

    /// The first byte, in its file, of a read that is not yet released.
    pub fn offset(&self, read: ReadId) -> u64 {
        self.reads[read.0 as usize].transfer.offset
    }

    /// Whether a read that is not yet released is a fault.
    pub fn is_fault(&self, read: ReadId) -> bool {
        self.reads[read.0 as usize].kind == Kind::Read(Access::Fault)
    }

    /// The caller's tag of a read that is not yet released.
    pub fn tag(&self, read: ReadId) -> u64 {
        self.reads[read.0 as usize].transfer.tag
    }

    /// The most requests in the device at once.
    pub fn depth_max(&self) -> u32 {
        self.config.depth_max.min(self.config.caps.depth_max)
    }

    /// What was counted so far.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// What the cache has counted so far.
    pub fn cache_counters(&self) -> CacheCounters {
        self.cache.counters()
    }

    /// Whether a page of the handle's file is in the cache, or on its way into it.
    pub fn is_cached(&self, handle: HandleId, page: u64) -> bool {
        self.cache.find(self.handles[handle.0 as usize].file, page).is_some()
    }

    /// Whether a page of the handle's file carries the readahead mark: its use
    /// should reach the law, so it is not to be mapped with its neighbours.
    pub fn is_marked(&self, handle: HandleId, page: u64) -> bool {
        self.cache.marked(self.handles[handle.0 as usize].file, page).is_some()
    }

    /// Whether nothing is open, queued, in the device or reserved.
    pub fn is_idle(&self) -> bool {
        self.reads_free.len() == self.reads.len()
            && self.transfers.is_empty()
            && self.budget.pinned == 0
            && self.budget.ahead == 0
    }

    /// Whether so many more pages find frames: invariant 1.
    fn has_room_for(&self, pages: u64) -> bool {
        self.budget.has_room_for(pages + u64::from(self.cache.held_pages()))
    }

    fn file_of(&self, handle: HandleId) -> &File {
        &self.files[self.handles[handle.0 as usize].file.0 as usize]
    }

    fn priority(&self, process: ProcessId) -> Priority {
        self.priorities.get(process.0 as usize).copied().unwrap_or_default()
    }

    fn is_congested(&self) -> bool {
        let requests = self.scheduler.queued() as u64 + u64::from(self.meter.in_device());
        requests > u64::from(self.config.queue_requests) * 7 / 8
    }

    /// Hands what was plugged to the scheduler.
    fn unplug(&mut self, now: Time) {
        for request in self.plug.drain(..) {
            if let Inserted::Merged { into, with } = self.scheduler.insert(now, request) {
                self.transfers.merge(into, with.map(|it| it.id).into_iter().chain([request.id]));
            }
        }
    }
}

impl fmt::Debug for ReadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadPath").field("config", &self.config).finish_non_exhaustive()
    }
}
