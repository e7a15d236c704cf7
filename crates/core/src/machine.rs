//! The machine that joins cache, readahead and scheduler: reads come in, requests go out and come back.
//!
//! # The poll contract
//! 1. Commands: [`open`](Machine::open), [`read`](Machine::read),
//!    [`write`](Machine::write), [`advise`](Machine::advise). They never block.
//! 2. [`poll_request`](Machine::poll_request) until it gives none: what to hand to the device.
//!    Requests that were made since the last poll are *plugged* until then: they
//!    are merged with each other before the device sees the first of them.
//! 3. [`handle_completion`](Machine::handle_completion) for each request that the device finished.
//! 4. [`poll_done`](Machine::poll_done) until it gives none: which reads are done. Their
//!    pages stay pinned until [`release`](Machine::release).
//! 5. When there is nothing to do, wait for a completion, a new command, or the
//!    time that [`next_wake`](Machine::next_wake) names.
//!
//! Whoever drives a machine implements [`Driver`], and lets [`turn`](Machine::turn) call 2 to 4.
//!
//! `now` never goes backwards from one call to the next.
//!
//! # What holds
//! 1. Pages pinned by reads plus pages being read ahead never exceed the
//!    budget: a read that would break this waits, with nothing pinned, until
//!    earlier ones are released. Where pages are lent past the machine, it also waits
//!    until frames are [promised](crate::cache::Cache::promise) to it. So a demand read that
//!    has begun always finds frames, and two reads never wait for each other's memory.
//! 2. What was asked reaches the device whole: each absent run of a read is cut only where the device's
//!    largest request forces it, unless the law has it read [page by page](crate::readahead::Demand::Page).
//! 3. A page is filled only by a completion that says that its bytes are good.
//! 4. A device error reaches exactly the reads that needed the bytes.
//!
//! Memory larger than memory is driven by the same machine: see [`swapin`](crate::swapin). Its pages
//! that can't be given away at once (mapped, dirty, being written) count in the budget like pinned
//! ones. A fault that finds no room waits like a read, and the oldest of them are unmapped and
//! written for it; some are kept ready so that this is rare.
//!
//! # Its parts
//! Three machines with poll contracts of their own are joined here, over one set of frames
//! (`machine/frames.rs`): `machine/queue.rs` has what is on its way to the device,
//! `machine/files.rs` handles and reads, `machine/memory.rs` mappings and faults. Reads and faults
//! that find no room wait in one line; what the join decides is who of them goes on.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::fmt;

use crate::cache::{CacheCounters, FileId, FrameId, PageSharer};
use crate::decision::DecisionLog;
use crate::raw::{self, ChunkingPolicy};
use crate::readahead::{Advice, ReadaheadLimits, ReadaheadPolicy, ReadaheadState};
use crate::request::{Completion, DeviceCaps, DeviceRequest, Op, Priority, ProcessId, RequestId};
use crate::swapin::MemoryId;
use crate::unit::{PAGE_BYTES, PageRange, Time};

mod config;
mod error;
mod files;
mod frames;
mod mapped;
mod memory;
mod meter;
mod names;
mod queue;
mod size;
mod transfer;
mod turn;

pub use config::Config;
pub use error::{BeyondDevice, ConfigError, ReadError, SwapError};
use files::{MachineFiles, RequestPages};
use frames::Frames;
use memory::MachineMemory;
pub use memory::{Faulted, MemoryAccess, MemoryFault, MemoryKind, PageSource};
pub use memory::{SwapConfig, SwapCounters, SwapOut, Unmap};
pub use meter::Meter;
pub use names::{FaultId, HandleId, ReadId};
use queue::{QueueAction, RequestContent, RequestQueue, Waiter};
pub use transfer::{Buffer, Done, ReadAccess, Transfer};
pub use turn::{Driver, IoBackend};

/// Makes the readahead law of a file that is opened, from what it may know of the device.
pub type PolicyMaker = Box<dyn FnMut(&ReadaheadLimits) -> Box<dyn ReadaheadPolicy> + Send>;

/// What reads and faults stand on alike.
struct SharedState {
    queue: RequestQueue,
    frames: Frames,
    /// Reads and faults that wait for memory, in the order in which they came.
    waiting: VecDeque<MemoryWaiter>,
}

/// A read or a fault that waits for memory.
#[derive(Clone, Copy, Debug)]
struct MemoryWaiter {
    who: Waiter,
    /// How many pages it needs.
    pages: u64,
}

/// The read path over one device. See the [module](self) for the order of calls.
pub struct Machine {
    config: Config,
    base: SharedState,
    files: MachineFiles,
    memory: MachineMemory,
    raw: Box<dyn ChunkingPolicy + Send + Sync>,
    /// When the first read that waits looks for frames again: too many pages were copied from.
    retry_at: Option<Time>,
}

impl Machine {
    /// An idle path with an empty cache.
    ///
    /// # Errors
    /// A law is unknown or has a bad parameter; memory, depth or the device's
    /// largest request is too small.
    pub fn new(config: Config) -> Result<Machine, ConfigError> {
        let frames = Frames::new(&config)?;
        let queue = RequestQueue::new(&config)?;
        let files = MachineFiles::new(&config)?;
        let raw = raw::build(&config.raw).map_err(ConfigError::Policy)?;
        let base = SharedState { queue, frames, waiting: VecDeque::new() };
        let memory = MachineMemory::new(config.open_reads_max);
        Ok(Machine { config, base, files, memory, raw, retry_at: None })
    }

    /// Adds a file of `bytes` bytes that lies on the device from `start_sector` on, in one piece.
    ///
    /// # Errors
    /// The file, rounded up to whole pages, would reach past the device.
    pub fn add_file(&mut self, bytes: u64, start_sector: u64) -> Result<FileId, BeyondDevice> {
        self.files.add(&mut self.base, bytes, start_sector)
    }

    /// Opens a file: the handle has a readahead state of its own.
    pub fn open(&mut self, file: FileId) -> HandleId {
        self.files.open(file)
    }

    /// Closes a handle, none of whose reads is unreleased; its name may be given again.
    pub fn close(&mut self, handle: HandleId) {
        self.files.close(&mut self.base, handle);
    }

    /// Removes a file that has no handle any more, and drops its pages. False
    /// while some of them are on their way: ask again after a completion. Once
    /// true, its name may be given again.
    pub fn remove_file(&mut self, file: FileId) -> bool {
        self.files.remove(&mut self.base, file)
    }

    /// The bytes of the range have changed on the device: none of its pages is
    /// served again. Reads that are under way may give the old ones.
    pub fn invalidate(&mut self, handle: HandleId, range: PageRange) {
        self.invalidate_file(self.files.file_of(handle), range);
    }

    /// As [`invalidate`](Machine::invalidate), for a file, whatever its handles.
    pub fn invalidate_file(&mut self, file: FileId, range: PageRange) {
        self.base.frames.cache.invalidate(file, range);
    }

    /// The first page of the range that was on its way at the last `invalidate` of it, and still is. It
    /// may carry the old bytes, to whoever reads it until it is there; it is not
    /// served after that.
    pub fn first_stale(&self, file: FileId, range: PageRange) -> Option<u64> {
        self.base.frames.cache.first_stale(file, range)
    }

    /// Has filled pages lent to readers beside the machine; before the first read.
    /// [`Config::pinned_bytes_max`] says how much may be held for longer than a copy takes.
    pub fn lend_through(&mut self, lender: Box<dyn PageSharer>) {
        self.base.frames.cache.lend_through(lender);
    }

    /// Whether the handle's law must be shown reads that find every page cached
    /// and none marked, so that they must come to the machine too.
    pub fn sees_every_hit(&self, handle: HandleId) -> bool {
        self.files.policy(handle).sees_every_hit()
    }

    /// What is believed of the handle's file, and of the device.
    pub fn readahead_state(&mut self, handle: HandleId) -> ReadaheadState {
        self.base.frames.cache.collect_first_uses();
        self.files.readahead_state(&self.base, handle)
    }

    /// Reads found everything in lent pages; the last of them ended at byte `end` of the file.
    pub fn passed(&mut self, handle: HandleId, end: u64) {
        self.files.passed(handle, end);
    }

    /// Whether reads wait for memory that others have not released.
    pub fn is_short_of_memory(&self) -> bool {
        !self.base.waiting.is_empty()
    }

    /// The most memory that one read may take, in bytes.
    pub fn read_bytes_max(&self) -> u64 {
        self.base.frames.budget.pages * PAGE_BYTES
    }

    /// Takes in which pages that the lender was to [`forget`](PageSharer::forget) are not in use any
    /// more: reads that waited for memory may go on.
    pub fn take_returned(&mut self, now: Time) {
        self.base.frames.cache.take_returned();
        if self.retry_at.is_some() {
            self.admit(now);
        }
    }

    /// Takes in how lent pages were used, so that the cache's counters are those of now.
    pub fn settle(&mut self) {
        self.base.frames.cache.settle();
    }

    /// Has the law of each file opened from here on made by `make`: a law that
    /// is none of this crate's, or one of them that is watched.
    pub fn set_policy_maker(&mut self, make: PolicyMaker) {
        self.files.set_policy_maker(make);
    }

    /// The length of the handle's file in bytes.
    pub fn file_bytes(&self, handle: HandleId) -> u64 {
        self.files.bytes_of(handle)
    }

    /// The law of raw transfers: each of their chunks is a direct read or write of this path.
    pub fn raw_policy(&self) -> &dyn ChunkingPolicy {
        &*self.raw
    }

    /// What the device can do.
    pub fn caps(&self) -> DeviceCaps {
        self.config.caps
    }

    /// Sets the I/O priority of a process, for the schedulers that look at it.
    pub fn set_priority(&mut self, process: ProcessId, priority: Priority) {
        self.base.queue.set_priority(process, priority);
    }

    /// The process will ask for nothing more: no scheduler need wait for it.
    pub fn process_ended(&mut self, now: Time, process: ProcessId) {
        self.base.queue.process_ended(now, process);
    }

    /// The log of the scheduler's decisions, to turn it on and to take them
    /// out; `None` when its law keeps none.
    pub fn scheduler_decisions(&mut self) -> Option<&mut DecisionLog> {
        self.base.queue.scheduler_decisions()
    }

    /// The log of what is read ahead, of files and of memory, to turn it on and to take it out;
    /// empty where neither the readahead law nor the swap-in law keeps one
    /// ([`ReadaheadPolicy::keeps_log`], [`SwapinPolicy::keeps_log`](crate::swapin::SwapinPolicy::keeps_log)).
    pub fn readahead_decisions(&mut self) -> &mut DecisionLog {
        &mut self.base.queue.evidence.log
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
        self.files.advise(now, &mut self.base, handle, process, advice, range);
    }

    /// Starts a read.
    ///
    /// A [`Fault`](ReadAccess::Fault) is for one page, the one that holds `offset`. A read at or past the
    /// end of the file is done at once, with 0 bytes.
    ///
    /// # Errors
    /// The read is larger than the memory of the cache, misaligned though
    /// direct, or one too many.
    pub fn read(
        &mut self,
        now: Time,
        access: ReadAccess,
        transfer: Transfer,
    ) -> Result<ReadId, ReadError> {
        let base = &mut self.base;
        let read = self.files.read(now, base, access, transfer)?;
        let pages = self.files.pages_of(read);
        if access == ReadAccess::Direct {
            self.files.start_direct(now, base, read, Op::Read, true);
        } else if base.waiting.is_empty()
            && base.frames.has_room_for(pages)
            && self.files.secure(base, read)
        {
            self.files.begin(now, base, read);
        } else {
            base.waiting.push_back(MemoryWaiter { who: Waiter::Read(read), pages });
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
        self.files.write(now, &mut self.base, transfer, is_sync)
    }

    /// Gives a read that is done back: its pages may be evicted, and reads that
    /// waited for memory go on.
    pub fn release(&mut self, now: Time, read: ReadId) {
        self.files.release(&mut self.base, read);
        self.admit(now);
    }

    /// Adds the swap area, of which there is one; without it memory is as large as memory.
    ///
    /// # Errors
    /// The law is unknown, the area reaches past the device, or there is one already.
    pub fn add_swap(&mut self, config: &SwapConfig) -> Result<(), SwapError> {
        self.memory.add_swap(&mut self.base, config)
    }

    /// Adds a mapping of `pages` pages, all zeros.
    ///
    /// # Errors
    /// It has more pages than can be numbered.
    pub fn add_memory(&mut self, pages: u64, kind: MemoryKind) -> Result<MemoryId, SwapError> {
        self.memory.add_mapping(&mut self.base, pages, kind)
    }

    /// A program has touched a page. True: the page is mapped, and that is all;
    /// else the touch is a [`fault`](Machine::fault). For worlds that see
    /// every touch.
    #[inline]
    pub fn touch(&mut self, memory: MemoryId, page: u64, access: MemoryAccess) -> bool {
        self.memory.touch(&mut self.base, memory, page, access)
    }

    /// A program has faulted on a page: [`poll_faulted`](Machine::poll_faulted) gives the result.
    ///
    /// # Errors
    /// It is one too many.
    ///
    /// # Panics
    /// The page lies outside its mapping.
    pub fn fault(&mut self, now: Time, fault: MemoryFault) -> Result<FaultId, ReadError> {
        let base = &mut self.base;
        let fault = self.memory.open_fault(now, base, fault)?;
        let has_room = base.waiting.is_empty() && base.frames.has_room_for(1);
        if has_room || self.memory.is_resident(base, fault) {
            self.memory.begin(now, base, fault);
        } else {
            base.waiting.push_back(MemoryWaiter { who: Waiter::Fault(fault), pages: 1 });
        }
        self.admit(now);
        Ok(fault)
    }

    /// The next fault that has ended.
    pub fn poll_faulted(&mut self) -> Option<Faulted> {
        self.memory.poll_faulted(&self.base)
    }

    /// Gives a fault that has ended back, once its page is mapped: what waited for memory goes on.
    pub fn release_fault(&mut self, now: Time, fault: FaultId) {
        self.memory.release(&mut self.base, fault);
        self.admit(now);
    }

    /// The next page to be taken out of a program's address space. Answer each
    /// with [`handle_unmapped`](Machine::handle_unmapped), before anything else
    /// is called but this.
    pub fn poll_unmap(&mut self) -> Option<Unmap> {
        self.memory.poll_unmap(&mut self.base)
    }

    /// No program has the page in its address space any more; `was_written`
    /// when it was written to since it was mapped, as far as no fault has told.
    pub fn handle_unmapped(&mut self, now: Time, unmap: Unmap, was_written: bool) {
        if self.memory.handle_unmapped(&mut self.base, unmap, was_written) {
            self.admit(now);
        }
    }

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
        let page = self.memory.will_need(now, &mut self.base, memory, range, process);
        self.admit(now);
        page
    }

    /// Forgets the pages of the range, which the world has unmapped: they are
    /// zeros from now on. Pages that a fault, a read or a write is under way for
    /// are left; gives how many: try them again when those have ended.
    pub fn discard(&mut self, now: Time, memory: MemoryId, range: PageRange) -> u64 {
        let busy = self.memory.discard(&mut self.base, memory, range);
        self.admit(now);
        busy
    }

    /// What was counted of memory so far.
    pub fn swap_counters(&self) -> SwapCounters {
        self.memory.counters()
    }

    /// How many slots of the swap area are free.
    pub fn free_slots(&self) -> u64 {
        self.memory.free_slots()
    }

    /// The next request for the device; None when it is full, or when the
    /// scheduler has nothing for it now.
    pub fn poll_request(&mut self, now: Time) -> Option<DeviceRequest> {
        self.retry_at(now);
        loop {
            match self.base.queue.poll(now)? {
                QueueAction::Request(request) => return Some(request),
                QueueAction::Withdrawn => self.end_parts(now),
            }
        }
    }

    /// Has reads that waited for copies to end look again, if it is time.
    fn retry_at(&mut self, now: Time) {
        if self.retry_at.is_some_and(|retry_at| retry_at <= now) {
            self.admit(now);
        }
    }

    /// Whether the read waits for the request, which has not been completed.
    pub fn awaits(&self, read: ReadId, request: RequestId) -> bool {
        self.base.queue.is_demand(request, Waiter::Read(read))
    }

    /// When to poll again though nothing has come or completed; None: no need.
    pub fn next_wake(&self) -> Option<Time> {
        self.base.queue.next_wake().into_iter().chain(self.retry_at).min()
    }

    /// The device has finished a request that [`poll_request`](Machine::poll_request) gave it.
    pub fn handle_completion(&mut self, now: Time, completion: Completion) {
        self.base.queue.handle_completion(now, completion);
        self.end_parts(now);
    }

    /// The parts of a request have ended: whoever waited for them goes on.
    fn end_parts(&mut self, now: Time) {
        let base = &mut self.base;
        while let Some(ended) = base.queue.poll_ended() {
            base.frames.budget.ahead -= u64::from(ended.content.ahead_pages());
            let waiters = match ended.content {
                RequestContent::Pages { file, range, behind, .. } => self.files.complete_pages(
                    now,
                    base,
                    ended,
                    RequestPages { file, range, behind },
                ),
                RequestContent::Slots { range, .. } => self.memory.complete(base, ended, range),
                RequestContent::Direct { read, offset } => {
                    self.files.complete_direct(base, ended, read, offset)
                }
            };
            base.queue.recycle(waiters);
        }
        self.admit(now);
    }

    /// The next read or write that has ended.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.files.poll_done()
    }

    /// The frames of a read that is done and not yet released, first page
    /// first; none for a direct transfer.
    pub fn read_frames(&self, read: ReadId) -> &[FrameId] {
        self.files.frames_of(read)
    }

    /// Where the bytes of a request of the device go to, or come from, in the
    /// order of its sectors.
    pub fn request_buffers(&self, id: RequestId, mut each: impl FnMut(Buffer)) {
        self.base.queue.each_part_in_order(id, |content, bytes| match content {
            RequestContent::Pages { file, range, .. } => {
                self.base.frames.cache.each_frame(file, range, |frame| each(Buffer::Frame(frame)));
            }
            RequestContent::Slots { range, .. } => range.pages().for_each(|slot| {
                each(Buffer::Frame(self.memory.frame_of_slot(&self.base, slot)));
            }),
            RequestContent::Direct { read, offset } => each(Buffer::Caller { read, offset, bytes }),
        });
    }

    /// The first byte, in its file, of a read that is not yet released.
    pub fn offset(&self, read: ReadId) -> u64 {
        self.files.transfer_of(read).offset
    }

    /// Whether a read that is not yet released is a fault.
    pub fn is_fault(&self, read: ReadId) -> bool {
        self.files.is_fault(read)
    }

    /// The caller's tag of a read that is not yet released.
    pub fn tag(&self, read: ReadId) -> u64 {
        self.files.transfer_of(read).tag
    }

    /// The most requests in the device at once.
    pub fn depth_max(&self) -> u32 {
        self.base.queue.depth_max()
    }

    /// What was counted so far.
    pub fn meter(&self) -> &Meter {
        &self.base.queue.meter
    }

    /// What the cache has counted so far.
    pub fn cache_counters(&self) -> CacheCounters {
        self.base.frames.cache.counters()
    }

    /// Whether nothing is open, queued, in the device or reserved.
    pub fn is_idle(&self) -> bool {
        let SharedState { queue, frames, .. } = &self.base;
        self.files.is_idle() && self.memory.is_idle() && queue.is_empty() && frames.is_idle()
    }

    /// Begins what waited for memory, in its order, as far as there is room; what
    /// can never have any fails.
    fn admit(&mut self, now: Time) {
        let base = &mut self.base;
        self.retry_at = None;
        loop {
            self.memory.make_room(now, base);
            let Some(&MemoryWaiter { who, pages }) = base.waiting.front() else { return };
            let has_room = base.frames.has_room_for(pages);
            let failure = match who {
                _ if has_room => None,
                Waiter::Fault(fault) if self.memory.is_resident(base, fault) => None,
                _ => match self.memory.no_memory_error(base) {
                    None => return,
                    failure => failure,
                },
            };
            if let (Waiter::Read(read), None) = (who, failure)
                && !self.files.secure(base, read)
            {
                self.retry_at = Some(now + COPY_RETRY_DELAY);
                return;
            }
            base.waiting.pop_front();
            match (who, failure) {
                (Waiter::Read(read), None) => self.files.begin(now, base, read),
                (Waiter::Read(read), Some(error)) => self.files.fail(base, read, error),
                (Waiter::Fault(fault), None) => self.memory.begin(now, base, fault),
                (Waiter::Fault(fault), Some(error)) => self.memory.fail(base, fault, error),
            }
        }
    }
}

/// When a read that finds too few frames, because of pages that are copied from, tries again.
/// Who copies tells nobody that he is done, which would cost every hit; a copy of 64 KiB
/// takes a few microseconds, and where it takes longer, its memory is being brought in.
const COPY_RETRY_DELAY: Time = Time::from_us(500);

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("config", &self.config).finish_non_exhaustive()
    }
}
