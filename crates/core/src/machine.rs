//! The machine that connects cache, readahead and scheduler: reads come in, requests go out,
//! completions return.
//!
//! # The poll contract
//! 1. Commands: [`open`](Machine::open), [`read`](Machine::read), [`write`](Machine::write),
//!    [`advise`](Machine::advise). They never block.
//! 2. [`poll_request`](Machine::poll_request) until it returns none: requests for the device.
//!    Requests created since the last poll are *plugged* until then: they are merged with each
//!    other before the device receives the first of them.
//! 3. [`handle_completion`](Machine::handle_completion) for each request that the device finished.
//! 4. [`poll_done`](Machine::poll_done) until it returns none: completed reads. Their pages stay
//!    pinned until [`release`](Machine::release).
//! 5. If no call has work, wait for a completion, a new command, or the time returned by
//!    [`next_wake`](Machine::next_wake).
//!
//! A driver implements [`Driver`], and lets [`step`](Machine::step) make the calls 2 to 4. `now`
//! never goes backwards from one call to the next.
//!
//! # Invariants
//! 1. Pages pinned by reads plus pages being prefetched never exceed the budget. A read that would
//!    exceed it waits, with no page pinned, until earlier ones are released. If pages are shared
//!    with readers outside the machine, it also waits until frames are
//!    [reserved](crate::cache::Cache::reserve_frames) for it. A demand read that has begun thus
//!    always finds frames, and two reads never wait for each other's memory.
//! 2. The requested pages reach the device whole: an absent run is split only at the device's
//!    largest request, unless the policy reads [page by page](crate::readahead::Demand::Page).
//! 3. A page is filled only by a completion that reports its data as good.
//! 4. A device error reaches exactly the reads that needed the data.
//!
//! This machine also drives swapping: see [`swapin`](crate::swapin). Pages of memory that can't
//! leave at once (mapped, dirty, being written) count in the budget like pinned ones. A fault that
//! finds no frame waits like a read, and the oldest pages are unmapped and written for it. Some
//! frames are kept ready, so that this is rare. The *environment* is the code around the machine:
//! it has the memory of the frames and the programs.
//!
//! # Its parts
//! Three state machines with their own poll contracts are connected here, over one set of frames
//! (`machine/frames.rs`): `machine/queue.rs` has the requests on their way to the device,
//! `machine/files.rs` handles and reads, `machine/memory.rs` mappings and faults. Reads and faults
//! without frames wait in one queue; this module decides which of them goes on.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::fmt;

use crate::cache::{CacheCounters, FileId, FrameId, PageSharer};
use crate::chunking::{self, ChunkingPolicy};
use crate::decision::DecisionLog;
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
mod shared_state;
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
use shared_state::{MemoryWaiter, SharedState};
pub use transfer::{Buffer, Done, ReadAccess, Transfer};
pub use turn::{Driver, IoBackend};

/// Creates the readahead policy of a file that is opened, from the limits of the device.
pub type PolicyMaker = Box<dyn FnMut(&ReadaheadLimits) -> Box<dyn ReadaheadPolicy> + Send>;

/// The read path over one device. See the [module](self) for the order of calls.
pub struct Machine {
    /// The configuration that the machine was built with.
    config: Config,
    /// Requests, frames and waiting readers: shared by `files` and `memory`.
    base: SharedState,
    /// Files, handles, reads and writes.
    files: MachineFiles,
    /// Mappings, faults and the swap area.
    memory: MachineMemory,
    /// The policy of transfers that the caller drives chunk by chunk; the machine only provides it.
    chunking_policy: Box<dyn ChunkingPolicy + Send + Sync>,
    /// Time at which the first waiting read retries, after too many pages were being copied from.
    retry_at: Option<Time>,
}

impl Machine {
    /// Creates an idle machine with an empty cache.
    ///
    /// # Errors
    /// A policy is unknown or has a bad parameter; memory, depth or the device's largest request is
    /// too small; the memory has more than 2^32 − 2 pages.
    pub fn new(config: Config) -> Result<Machine, ConfigError> {
        let frames = Frames::new(&config)?;
        let mut queue = RequestQueue::new(&config)?;
        let files = MachineFiles::new(&config, &mut queue)?;
        let chunking_policy = chunking::build(&config.chunking).map_err(ConfigError::Policy)?;
        let base = SharedState { queue, frames, waiting: VecDeque::new() };
        let memory = MachineMemory::new(config.open_reads_max);
        Ok(Machine { config, base, files, memory, chunking_policy, retry_at: None })
    }

    /// Adds a file of `bytes` bytes, contiguous on the device from `start_sector` on.
    ///
    /// # Errors
    /// The file, rounded up to whole pages, would reach past the device.
    pub fn add_file(&mut self, bytes: u64, start_sector: u64) -> Result<FileId, BeyondDevice> {
        self.files.add(&mut self.base, bytes, start_sector)
    }

    /// Opens a file: each handle has its own readahead state.
    pub fn open(&mut self, file: FileId) -> HandleId {
        self.files.open(file)
    }

    /// Closes a handle without unreleased reads; its identifier may be reused.
    pub fn close(&mut self, handle: HandleId) {
        self.files.close(&mut self.base, handle);
    }

    /// Removes a file without handles, and drops its pages. Returns false while some of them are in
    /// flight: call again after a completion. After true, its identifier may be reused.
    pub fn remove_file(&mut self, file: FileId) -> bool {
        self.files.remove(&mut self.base, file)
    }

    /// Records that the data of the range has changed on the device: none of its pages is served
    /// again. Reads in progress may return the old data.
    pub fn invalidate(&mut self, handle: HandleId, range: PageRange) {
        self.invalidate_file(self.files.file_of(handle), range);
    }

    /// As [`invalidate`](Machine::invalidate), for a file with any handles.
    pub fn invalidate_file(&mut self, file: FileId, range: PageRange) {
        self.base.frames.cache.invalidate(file, range);
    }

    /// The first page of the range that was in flight at its last `invalidate`, and still is. Reads
    /// that wait for it may receive the old data; it is not served after that.
    pub fn first_stale(&self, file: FileId, range: PageRange) -> Option<u64> {
        self.base.frames.cache.first_stale(file, range)
    }

    /// Shares filled pages with readers outside the machine. Must be called before the first read.
    /// [`Config::pinned_bytes_max`] limits the memory that they may pin for longer than a copy.
    pub fn share_through(&mut self, sharer: Box<dyn PageSharer>) {
        self.base.frames.cache.share_through(sharer);
    }

    /// Returns true if the handle's policy must see reads that find every page cached and none
    /// marked, so that these must also call the machine.
    pub fn needs_every_hit(&self, handle: HandleId) -> bool {
        self.files.policy(handle).needs_every_hit()
    }

    /// Readahead state of the device and the handle's file, with all first uses of shared pages.
    pub fn readahead_state(&mut self, handle: HandleId) -> ReadaheadState {
        self.base.frames.cache.collect_first_uses();
        self.files.readahead_state(&self.base, handle)
    }

    /// Reports to the readahead policy that reads found all data in shared pages. The last of them
    /// ended before byte `end` of the file.
    pub fn record_shared_reads(&mut self, handle: HandleId, end: u64) {
        self.files.record_shared_reads(handle, end);
    }

    /// Returns true if reads or faults wait for memory.
    pub fn is_short_of_memory(&self) -> bool {
        !self.base.waiting.is_empty()
    }

    /// Largest memory of a single read in bytes: all but the memory that outside readers may pin.
    pub fn read_bytes_max(&self) -> u64 {
        self.base.frames.budget.pages * PAGE_BYTES
    }

    /// Processes the pages that the sharer had to [`forget`](PageSharer::forget) and that are no
    /// longer in use. A read that waited for frames being copied from tries again.
    pub fn take_returned(&mut self, now: Time) {
        self.base.frames.cache.take_returned();
        if self.retry_at.is_some() {
            self.admit(now);
        }
    }

    /// Collects all uses of shared pages. The cache's counters are then up to date.
    pub fn collect_uses(&mut self) {
        self.base.frames.cache.collect_uses();
    }

    /// Sets the constructor of policies for files opened later: of another crate, or wrapped.
    pub fn set_policy_maker(&mut self, make: PolicyMaker) {
        self.files.set_policy_maker(make, &mut self.base.queue);
    }

    /// The length of the handle's file in bytes.
    pub fn file_bytes(&self, handle: HandleId) -> u64 {
        self.files.file_bytes(handle)
    }

    /// The chunking policy of raw transfers: each chunk is a direct read or write.
    pub fn chunking_policy(&self) -> &dyn ChunkingPolicy {
        &*self.chunking_policy
    }

    /// Properties of the device.
    pub fn caps(&self) -> DeviceCaps {
        self.config.caps
    }

    /// Sets the I/O priority of a process's later requests, for schedulers with priorities.
    pub fn set_priority(&mut self, process: ProcessId, priority: Priority) {
        self.base.queue.set_priority(process, priority);
    }

    /// Reports the end of a process to the scheduler, which then expects no request from it.
    pub fn process_ended(&mut self, now: Time, process: ProcessId) {
        self.base.queue.process_ended(now, process);
    }

    /// The log of the scheduler's decisions, to enable and drain; `None` if its policy has none.
    pub fn scheduler_decisions(&mut self) -> Option<&mut DecisionLog> {
        self.base.queue.scheduler_decisions()
    }

    /// The log of readahead decisions, for files and memory, to enable and to drain. It stays empty
    /// if neither policy [keeps one](ReadaheadPolicy::keeps_log), readahead nor
    /// [swap-in](crate::swapin::SwapinPolicy::keeps_log).
    pub fn readahead_decisions(&mut self) -> &mut DecisionLog {
        &mut self.base.queue.evidence.log
    }

    /// Handles advice about a range of an open file, as `posix_fadvise(2)` does.
    ///
    /// `WillNeed` prefetches the absent pages of the range, as far as memory allows. `DontNeed`
    /// drops its unpinned pages. The policy gets every advice too, and applies it to the handle.
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
    /// A [`Fault`](ReadAccess::Fault) must lie in one page. A direct read begins at once. Any other
    /// waits behind earlier ones until it has memory. A read at or past the end of the file needs
    /// no memory, and ends with 0 bytes when it begins.
    ///
    /// # Errors
    /// The pages of the read exceed [`read_bytes_max`](Machine::read_bytes_max), it is direct and
    /// misaligned, or `open_reads_max` reads and writes are open.
    pub fn read(
        &mut self,
        now: Time,
        access: ReadAccess,
        transfer: Transfer,
    ) -> Result<ReadId, ReadError> {
        let base = &mut self.base;
        let read = self.files.open_read(now, base, access, transfer)?;
        let pages = self.files.needed_pages(read);
        if access == ReadAccess::Direct {
            let is_sync = true;
            self.files.start_direct(now, base, read, Op::Read, is_sync);
        } else if base.waiting.is_empty()
            && base.frames.has_room_for(pages)
            && self.files.try_reserve_memory(base, read)
        {
            self.files.begin(now, base, read);
        } else {
            // It waits. `admit` makes room, and begins it after the earlier ones if memory is free.
            let waiter = Waiter::Read(read);
            base.waiting.push_back(MemoryWaiter { waiter, needed_pages: pages });
            self.admit(now);
        }
        Ok(read)
    }

    /// Starts a write from the caller's buffer to the device, past the cache; cached pages of its
    /// range are dropped. `is_sync` is true if the caller waits for it, which schedulers consider.
    /// It ends like a read: [`poll_done`](Machine::poll_done) returns it, to be released.
    ///
    /// # Errors
    /// It is misaligned, ends past the file's end, or `open_reads_max` reads and writes are open.
    pub fn write(
        &mut self,
        now: Time,
        transfer: Transfer,
        is_sync: bool,
    ) -> Result<ReadId, ReadError> {
        self.files.write(now, &mut self.base, transfer, is_sync)
    }

    /// Releases a completed read: its pages may be evicted, and waiting reads go on.
    pub fn release(&mut self, now: Time, read: ReadId) {
        self.files.release(&mut self.base, read);
        self.admit(now);
    }

    /// Adds the only swap area. Without it, mappings must fit into memory.
    ///
    /// # Errors
    /// A policy is unknown or refuses the memory's size, the area reaches past the device or has
    /// 2^32 − 1 slots or more, or there is one already.
    pub fn add_swap(&mut self, config: &SwapConfig) -> Result<(), SwapError> {
        self.memory.add_swap(&mut self.base, config)
    }

    /// Adds a mapping of `pages` pages, all zeros.
    ///
    /// # Errors
    /// It has more than 2^32 − 1 pages.
    pub fn add_memory(&mut self, pages: u64, kind: MemoryKind) -> Result<MemoryId, SwapError> {
        self.memory.add_mapping(&mut self.base, pages, kind)
    }

    /// Records a touch of a page by a program. Returns true if the page is mapped, and no more is
    /// needed. Otherwise nothing is recorded, and the caller starts a [`fault`](Machine::fault).
    /// For environments that see every touch.
    #[inline]
    pub fn touch(&mut self, memory: MemoryId, page: u64, access: MemoryAccess) -> bool {
        self.memory.touch(&mut self.base, memory, page, access)
    }

    /// Starts a fault on a page; [`poll_faulted`](Machine::poll_faulted) returns the result.
    ///
    /// # Errors
    /// `open_reads_max` faults are open.
    ///
    /// # Panics
    /// The page lies outside its mapping.
    pub fn fault(&mut self, now: Time, fault: MemoryFault) -> Result<FaultId, ReadError> {
        let base = &mut self.base;
        let id = self.memory.open_fault(now, base, fault)?;
        let has_room = base.waiting.is_empty() && base.frames.has_room_for(1);
        if has_room || self.memory.needs_no_frame(base, id) {
            // A fault that needs no other frame overtakes those that wait.
            self.memory.begin(now, base, id);
        } else {
            base.waiting.push_back(MemoryWaiter { waiter: Waiter::Fault(id), needed_pages: 1 });
        }
        // Lets other pages leave in place of the frame that the fault takes, or waits for.
        self.admit(now);
        Ok(id)
    }

    /// The next completed fault; `None` if there is none.
    pub fn poll_faulted(&mut self) -> Option<Faulted> {
        self.memory.poll_faulted(&self.base)
    }

    /// Releases a completed fault, once its page is mapped: waiting reads and faults go on.
    pub fn release_fault(&mut self, now: Time, fault: FaultId) {
        self.memory.release(&mut self.base, fault);
        self.admit(now);
    }

    /// The next page to unmap from a program's address space; `None` if there is none. Answer each
    /// with [`handle_unmapped`](Machine::handle_unmapped), before any other call except this one.
    pub fn poll_unmap(&mut self) -> Option<Unmap> {
        self.memory.poll_unmap(&mut self.base)
    }

    /// Records that no program has the page in its address space any more. `was_written`: it was
    /// written since it was mapped, without a reported write fault.
    pub fn handle_unmapped(&mut self, now: Time, unmap: Unmap, was_written: bool) {
        let is_last_answer = self.memory.handle_unmapped(&mut self.base, unmap, was_written);
        if is_last_answer {
            self.admit(now);
        }
    }

    /// Handles a program's advice that it will need the pages of the range. The swapped-out ones
    /// are prefetched in the order of their slots. They carry no mark: the policy did not select
    /// them, and learns nothing from their use.
    ///
    /// Uses the ready frames except half of the frames kept ready, which faults need. Stops earlier
    /// if faults or reads wait for memory, or the queue is congested. Returns the first page that
    /// was not processed, or the end of the range. Continue from there later.
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
        let next_page = self.memory.will_need(now, &mut self.base, memory, range, process);
        self.admit(now);
        next_page
    }

    /// Discards the pages of the range, which the environment has unmapped: they are zeros from now
    /// on. Pages with a fault, read or write in progress are kept. Returns the number of kept
    /// pages: call again for them when these operations have ended.
    pub fn discard(&mut self, now: Time, memory: MemoryId, range: PageRange) -> u64 {
        let kept_pages = self.memory.discard(&mut self.base, memory, range);
        self.admit(now);
        kept_pages
    }

    /// Counters of memory since the start.
    pub fn swap_counters(&self) -> SwapCounters {
        self.memory.counters()
    }

    /// Number of free slots of the swap area.
    pub fn free_slots(&self) -> u64 {
        self.memory.free_slots()
    }

    /// The next request for the device; `None` if it has `depth_max` requests, or if the scheduler
    /// has none for it now.
    pub fn poll_request(&mut self, now: Time) -> Option<DeviceRequest> {
        self.admit_if_retry_is_due(now);
        loop {
            match self.base.queue.poll(now)? {
                QueueAction::Request(request) => return Some(request),
                // The pages of a cancelled prefetch leave the cache; the scheduler is asked again.
                QueueAction::Withdrawn => self.end_parts(now),
            }
        }
    }

    /// Admits waiting reads and faults once the time in the field `retry_at` has come.
    fn admit_if_retry_is_due(&mut self, now: Time) {
        if self.retry_at.is_some_and(|retry_at| retry_at <= now) {
            self.admit(now);
        }
    }

    /// Returns true if the read waits for the open request; never for direct ones, without waiters.
    pub fn is_waiting_for(&self, read: ReadId, request: RequestId) -> bool {
        self.base.queue.has_waiter(request, Waiter::Read(read))
    }

    /// Time at which to poll again without another event; `None`: no need.
    pub fn next_wake(&self) -> Option<Time> {
        self.base.queue.next_wake().into_iter().chain(self.retry_at).min()
    }

    /// Handles the completion of a request from [`poll_request`](Machine::poll_request).
    pub fn handle_completion(&mut self, now: Time, completion: Completion) {
        self.base.queue.handle_completion(now, completion);
        self.end_parts(now);
    }

    /// Processes the parts of the ended requests: reads and faults that waited for them go on. A
    /// request that was merged from several has several parts.
    fn end_parts(&mut self, now: Time) {
        let base = &mut self.base;
        while let Some(ended) = base.queue.poll_ended() {
            // Its prefetched pages are no longer in flight.
            base.frames.budget.prefetch_pages -= u64::from(ended.content.ahead_pages());
            // `search_tail`: pages behind the request that also wait, for the bad page to be found.
            let waiters = match ended.content {
                RequestContent::Pages { file, range, search_tail, .. } => self
                    .files
                    .complete_pages(now, base, ended, RequestPages { file, range, search_tail }),
                RequestContent::Slots { range, .. } => self.memory.complete(base, ended, range),
                RequestContent::Direct { read, offset } => {
                    self.files.complete_direct(base, ended, read, offset)
                }
            };
            base.queue.recycle_waiters(waiters);
        }
        self.admit(now);
    }

    /// The next completed read or write; `None` if there is none.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.files.poll_done()
    }

    /// The frames of a completed, unreleased read, first page first; none for a direct transfer. A
    /// failed read may have skipped pages: their entries have the number 2^32 − 1, for no frame.
    pub fn read_frames(&self, read: ReadId) -> &[FrameId] {
        self.files.frames_of(read)
    }

    /// Calls `emit` with the buffers of a device request, in the order of its sectors.
    pub fn request_buffers(&self, id: RequestId, mut emit: impl FnMut(Buffer)) {
        self.base.queue.for_each_part(id, |content, bytes| match content {
            RequestContent::Pages { file, range, .. } => {
                let cache = &self.base.frames.cache;
                cache.for_each_frame(file, range, |frame| emit(Buffer::Frame(frame)));
            }
            RequestContent::Slots { range, .. } => range.pages().for_each(|slot| {
                emit(Buffer::Frame(self.memory.frame_of_slot(&self.base, slot)));
            }),
            RequestContent::Direct { read, offset } => emit(Buffer::Caller { read, offset, bytes }),
        });
    }

    /// The first byte, in its file, of an unreleased read.
    pub fn offset(&self, read: ReadId) -> u64 {
        self.files.transfer_of(read).offset
    }

    /// Returns true if an unreleased read was started as a fault on a mapped file.
    pub fn is_fault(&self, read: ReadId) -> bool {
        self.files.is_fault(read)
    }

    /// The caller's tag of an unreleased read.
    pub fn tag(&self, read: ReadId) -> u64 {
        self.files.transfer_of(read).tag
    }

    /// Configured limit of requests in the device at once, at most the device's own limit.
    pub fn depth_max(&self) -> u32 {
        self.base.queue.depth_max()
    }

    /// Counters of requests and bytes since the start.
    pub fn meter(&self) -> &Meter {
        &self.base.queue.meter
    }

    /// Counters of the cache since the start.
    pub fn cache_counters(&self) -> CacheCounters {
        self.base.frames.cache.counters()
    }

    /// Returns true if no read, write, fault, request or reservation is open.
    pub fn is_idle(&self) -> bool {
        let SharedState { queue, frames, .. } = &self.base;
        self.files.is_idle() && self.memory.is_idle() && queue.is_empty() && frames.is_idle()
    }

    /// Makes pages of mappings leave their frames, and begins waiting reads and faults in order
    /// until one must wait longer for frames. Fails one that can never get them: the swap area
    /// can't be written or is full. Sets `retry_at` if the first is a read that lacks frames
    /// because they are being copied from.
    fn admit(&mut self, now: Time) {
        let base = &mut self.base;
        self.retry_at = None;
        loop {
            self.memory.make_room(now, base);
            let Some(&MemoryWaiter { waiter, needed_pages }) = base.waiting.front() else { return };
            let has_room = base.frames.has_room_for(needed_pages);
            let failure = match waiter {
                _ if has_room => None,
                // The budget of frames counts the frame of its page as used already.
                Waiter::Fault(fault) if self.memory.needs_no_frame(base, fault) => None,
                _ => match self.memory.no_memory_error(base) {
                    // A release, a completion or an unmapped page will free frames: all wait.
                    None => return,
                    failure => failure,
                },
            };
            if let (Waiter::Read(read), None) = (waiter, failure)
                && !self.files.try_reserve_memory(base, read)
            {
                self.retry_at = Some(now + COPY_RETRY_DELAY);
                return;
            }
            base.waiting.pop_front();
            match (waiter, failure) {
                (Waiter::Read(read), None) => self.files.begin(now, base, read),
                (Waiter::Read(read), Some(error)) => self.files.fail(base, read, error),
                (Waiter::Fault(fault), None) => self.memory.begin(now, base, fault),
                (Waiter::Fault(fault), Some(error)) => self.memory.fail(base, fault, error),
            }
        }
    }
}

/// Time after which a read that lacks frames, because of pages being copied from, tries again. The
/// end of a copy is not reported, because that would slow down every hit. A copy of 64 KiB takes a
/// few microseconds; a longer one waits for its own memory to be allocated.
const COPY_RETRY_DELAY: Time = Time::from_us(500);

impl fmt::Debug for Machine {
    /// Writes the configuration only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("config", &self.config).finish_non_exhaustive()
    }
}
