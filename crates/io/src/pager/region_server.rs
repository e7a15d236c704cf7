//! Serves the faults of a [`Region`](super::region::Region): one thread that drives the machine's
//! memory side, its transfers, and the userfaultfd.
//!
//! The *machine* is the state machine that decides on swap-in, frames and eviction. A *fault* is a
//! touch of an absent page, or a write to a protected one. The *user area* is the memory that the
//! program sees. A page is *poisoned* if a touch of it is a bus error.
//!
//! The memory consists of the machine's frames, one page each. A frame's page is either *here*, at
//! the frame's own address, where transfers read and write it, or *mapped*, at the program's
//! address of the page. Mapping and unmapping moves the page without copying, in one step. The
//! program therefore never sees a page during its write-out, and no write is missed.
//!
//! Write protection detects changed pages: a clean page is mapped read-only, and its first write is
//! a fault. The kernel cannot move and protect a page in one step, and a write could slip through
//! between two. A clean page is therefore copied to its address, protected, and the frame's own
//! page is released. A write fault, the usual kind when memory is short, moves the page.
//!
//! Invariants:
//! 1. No more pages are present than there are frames, except *doubles*. A page that is mapped
//!    again during its write-out becomes one: it is copied, because the device uses the frame's own
//!    page until the write has ended. Frames are added for *kept* pages, which cannot leave now.
//! 2. A page in a transfer is here, and stays until the transfer has ended. A mapped page is in no
//!    transfer: the program may drop it itself (madvise(2)). The kernel's transfer would then wait
//!    for this thread, and this thread for the transfer. A page that was mapped again before its
//!    write reached the device is [not written](Areas::changed_before_write).
//! 3. This thread never touches the user area, where it would wait for itself. It touches the
//!    frames' own pages only if they are here: a touch of an absent one is a bus error.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;

use readpath_core::machine::{
    Buffer, Config, Driver, Faulted, IoBackend, Machine, MemoryAccess, MemoryFault, MemoryKind,
    PageSource, ReadError, SwapConfig, Unmap,
};
use readpath_core::policy::Spec;
use readpath_core::request::{Completion, DeviceRequest, Op, ProcessId};
use readpath_core::swapin::MemoryId;
use readpath_core::unit::{PAGE_BYTES, PageRange, SECTOR_BYTES, Time};
use rustix::io::Errno;

use super::anonymous_area::AnonymousArea;
use super::core_follower::CoreFollower;
use super::error::PagerError;
use super::pager_link::{Inbox, PagerServer};
use super::stats::RegionStats;
use super::uffd::{FaultKind, FaultScope, RangeRegistration, Uffd, UserFault};
use super::wait::sleep;
use crate::backend::{BackendKind, Sleep};
use crate::os::clock::Clock;
use crate::os::sync::SyncSender;
use crate::target::Target;
use crate::transfers::{self, TransferStart, Transfers};
use memory_limit::MemoryLimit;
use page_moves::Zeros;
use prefetch_queue::{Discard, PrefetchQueue};

mod memory_limit;
mod page_moves;
mod prefetch_queue;

const PAGE: usize = PAGE_BYTES as usize;
/// Tag of a thread's fault.
const TOUCH_TAG: u64 = u64::MAX;
/// Tag of the fault that maps a page again after it could not be unmapped.
const REMAP_TAG: u64 = u64::MAX - 1;
/// The only process of this machine.
const PROCESS: ProcessId = ProcessId(0);
/// Entry of a page without a frame. Zeros take no memory until they are changed.
const NO_FRAME: u32 = 0;
/// Maximum number of unmapped pages that rest before they are written or evicted. Only faults are
/// observable, and a page that is touched during its rest is mapped again without I/O. A larger
/// limit, a sixteenth of the memory, made random touches fault twice and wrote out a third of the
/// pages without need (`bench/region.py`, 256 MiB of memory).
const SECOND_CHANCE_PAGES_MAX: u64 = 512;
/// Divisor of the memory: at most this part rests before it is written or evicted.
const SECOND_CHANCE_DIVISOR: u64 = 32;

/// Commands of the owner to the thread.
#[derive(Debug)]
pub(super) enum RegionCommand {
    /// Brings pages in.
    Load { range: PageRange, reply: SyncSender<Result<(), ReadError>> },
    /// Prefetches swapped-out pages.
    WillNeed { range: PageRange, reply: SyncSender<()> },
    /// Drops the content of pages.
    Discard { range: PageRange, reply: SyncSender<()> },
    /// Returns the first error of a touch.
    Check { reply: SyncSender<Result<(), ReadError>> },
    /// Returns the counters.
    Statistics { reply: SyncSender<RegionStats> },
}

/// Parameters of a server. The region has `pages` pages, its memory `memory_pages` frames, and its
/// storage `slots` slots of a page each. `frame_area` has a page for each frame that may be added.
#[derive(Debug)]
pub(super) struct RegionSetup {
    pub target: Target,
    pub user_area: Arc<AnonymousArea>,
    pub pages: u64,
    pub frame_area: AnonymousArea,
    pub memory_pages: u64,
    pub memory_pages_max: u64,
    pub slots: u64,
    pub swapin: Spec,
    pub eviction: Spec,
    pub backend: BackendKind,
}

/// Location of a frame's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramePresence {
    /// The frame has no memory: before its first use, and after a discard of its page.
    Unallocated,
    /// At the frame's own address, after filling or unmapping.
    InFrame,
    /// At the program's address of `page`, from mapping to unmapping.
    Mapped { page: u64, is_protected: bool },
}

/// State of one frame of the machine.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Location of the frame's page.
    presence: FramePresence,
    /// Number of writes from the frame in flight.
    writes: u32,
    /// True while the page is mapped and the frame's own page is present too, for its writes.
    is_present_twice: bool,
}

/// A load command that waits for `pages_left` pages. `error` is the first of its errors.
#[derive(Debug)]
struct PageLoad {
    pages_left: u64,
    error: Option<ReadError>,
    reply: SyncSender<Result<(), ReadError>>,
}

/// Frames of a transfer, kept until it ends.
type TransferFrames = Vec<u32>;

/// See the [module](self).
pub(super) struct RegionServer {
    machine: Machine,
    areas: Areas,
}

/// Both areas and the server's other state, except the machine.
struct Areas {
    // Dropped first: this cancels transfers to and from the frames.
    transfers: Transfers<TransferFrames>,
    target: Target,
    uffd: Uffd,
    user: Arc<AnonymousArea>,
    /// Registered for the frames' own pages. It rejects touches, because only this thread uses
    /// these pages. (Without registration, no page could be moved there.)
    frame_uffd: Uffd,
    frame_area: AnonymousArea,
    /// The machine's number of the region.
    memory: MemoryId,
    /// By frame number.
    frames: Vec<Frame>,
    /// Frame mapped at each page plus 1, or `NO_FRAME`.
    frame_of_page: Vec<u32>,
    zeros: Box<Zeros>,
    /// Pages that were mapped again before their writes reached the device. These writes used zeros
    /// instead, and the machine must learn that the pages have changed.
    changed_before_write: Vec<u64>,
    /// By the slot in the tag of a fault; `None` for a free slot.
    loads: Vec<Option<PageLoad>>,
    prefetch_queue: PrefetchQueue,
    /// Discard commands that are not answered yet.
    discards: Vec<Discard>,
    /// Pages on which a touch is a bus error.
    poisoned: BTreeSet<u64>,
    /// First error of a touch, reported by the command `Check`.
    first_error: Option<ReadError>,
    /// Number of pages present now, including doubles.
    present_pages: u64,
    follower: CoreFollower,
    statistics: RegionStats,
    clock: Clock,
    inbox: Arc<Inbox<RegionCommand>>,
    /// Empty list, kept for its capacity.
    fault_scratch: Vec<UserFault>,
    /// Pages for the next `unmap_all`. Empty between the machine's calls.
    unmaps: Vec<Unmap>,
    memory_limit: MemoryLimit,
    /// Empty frame lists of earlier transfers, kept for their capacity.
    spare_frame_lists: Vec<TransferFrames>,
}

impl RegionServer {
    /// Builds the server on the thread that will run it.
    ///
    /// # Errors
    /// A policy is unknown, or the system provides no userfaultfd, I/O backend or addresses.
    pub(super) fn new(
        setup: RegionSetup,
        inbox: Arc<Inbox<RegionCommand>>,
    ) -> Result<RegionServer, PagerError> {
        let RegionSetup { target, user_area: user, frame_area, backend, swapin, .. } = setup;
        let RegionSetup { pages, memory_pages, memory_pages_max, slots, eviction, .. } = setup;
        let caps = target.caps();
        let config = Config {
            memory_bytes: memory_pages * PAGE_BYTES,
            memory_bytes_max: memory_pages_max * PAGE_BYTES,
            // The eviction policy applies from the start, and not only once pages have returned.
            counts_returned_pages: false,
            // No fault is rejected because of other faults in progress.
            open_reads_max: u32::MAX,
            eviction,
            ..Config::new(caps)
        };
        let mut machine = Machine::new(config).map_err(PagerError::Config)?;
        let start_sector = 0;
        let swap = SwapConfig {
            policy: swapin,
            // The eviction policy selects the pages of the region that leave.
            by_policy: true,
            second_chance_pages: (memory_pages / SECOND_CHANCE_DIVISOR).min(SECOND_CHANCE_PAGES_MAX)
                as u32,
            ..SwapConfig::new(start_sector, slots)
        };
        machine.add_swap(&swap).map_err(PagerError::Swap)?;
        let memory = machine.add_memory(pages, MemoryKind::Private).map_err(PagerError::Swap)?;
        let uffd = Uffd::open().map_err(PagerError::Uffd)?;
        user.register(&uffd, RangeRegistration::MissingAndWrites)?;
        let frame_uffd = Uffd::open_without_reports().map_err(PagerError::Uffd)?;
        frame_area.register(&frame_uffd, RangeRegistration::Missing)?;
        let (frame_bytes, entry_bytes) = (size_of::<Frame>(), size_of::<u32>());
        AnonymousArea::check_tables([(memory_pages_max, frame_bytes), (pages, entry_bytes)])?;
        let clock = Clock::start();
        let (io_backend, _backend_in_use) = backend
            .build_with_event_fd(caps.depth_max, inbox.event_fd().as_fd())
            .map_err(PagerError::Backend)?;
        let empty =
            Frame { presence: FramePresence::Unallocated, writes: 0, is_present_twice: false };
        let areas = Areas {
            transfers: Transfers::with_backend(io_backend, caps.depth_max, clock),
            target,
            uffd,
            user,
            frame_uffd,
            frame_area,
            memory,
            frames: vec![empty; memory_pages_max as usize],
            frame_of_page: vec![NO_FRAME; pages as usize],
            zeros: Box::new(Zeros([0; PAGE])),
            changed_before_write: Vec::new(),
            loads: Vec::new(),
            prefetch_queue: PrefetchQueue::for_memory(memory_pages),
            discards: Vec::new(),
            poisoned: BTreeSet::new(),
            first_error: None,
            present_pages: 0,
            follower: CoreFollower::default(),
            statistics: RegionStats::default(),
            clock,
            inbox,
            fault_scratch: Vec::new(),
            unmaps: Vec::new(),
            memory_limit: MemoryLimit::new(memory_pages, memory_pages_max),
            spare_frame_lists: Vec::new(),
        };
        Ok(RegionServer { machine, areas })
    }
}

impl Areas {
    /// Reads pending faults and passes them to the machine. Only wakes the thread of a fault that
    /// is out of date. Poisons pages outside the region.
    fn handle_faults(&mut self, machine: &mut Machine) {
        let mut faults = std::mem::take(&mut self.fault_scratch);
        self.uffd.take_faults(&mut faults).expect("a userfaultfd can be read while it is open");
        for fault in faults.drain(..) {
            self.statistics.faults += 1;
            self.follower.on_fault(fault.thread);
            self.statistics.faults_protected += u64::from(fault.kind == FaultKind::Protected);
            let Some(page) = self.user.page_at(fault.address) else {
                // The program has enlarged the region (mremap(2)): no bytes. The page may have
                // poison, so errors are ignored. SAFETY: this server does not fill the range there.
                let _ = unsafe { self.uffd.poison(fault.address, PAGE) };
                continue;
            };
            let presence = match self.frame_of_page[page as usize] {
                NO_FRAME => FramePresence::Unallocated,
                entry => self.frames[entry as usize - 1].presence,
            };
            // The page came in, or became writable, after the fault: the thread tries again.
            let is_stale = match presence {
                FramePresence::Mapped { is_protected, .. } => {
                    fault.kind != FaultKind::Protected || !is_protected
                }
                _ => false,
            };
            // A page that the program has dropped itself gets zeros, and its fault goes on.
            if is_stale && !self.zero_dropped_page(machine, page) {
                self.wake(page);
                continue;
            }
            let access = match fault.kind {
                FaultKind::Read => MemoryAccess::Read,
                FaultKind::Write | FaultKind::Protected => MemoryAccess::Write,
            };
            self.on_touch(machine, self.clock.now(), page, access, TOUCH_TAG);
        }
        self.fault_scratch = faults;
    }

    /// Passes a touch of a page at time `now` to the machine as a fault. `tag` is [`TOUCH_TAG`],
    /// [`REMAP_TAG`] or the slot of a load command.
    fn on_touch(
        &mut self,
        machine: &mut Machine,
        now: Time,
        page: u64,
        access: MemoryAccess,
        tag: u64,
    ) {
        let fault = MemoryFault { memory: self.memory, page, access, process: PROCESS, tag };
        machine.fault(now, fault).expect("the machine has no limit of open faults");
    }

    /// Executes a command of the owner. A load or discard that has to wait is answered later.
    fn handle_command(&mut self, machine: &mut Machine, command: RegionCommand) {
        match command {
            RegionCommand::Load { range, reply } => {
                let slot = self.loads.iter().position(Option::is_none).unwrap_or(self.loads.len());
                if slot == self.loads.len() {
                    self.loads.push(None);
                }
                if range.is_empty() {
                    // A caller that no longer waits needs no answer, here and below.
                    let _ = reply.send(Ok(()));
                    return;
                }
                self.loads[slot] = Some(PageLoad { pages_left: range.count(), error: None, reply });
                range.pages().for_each(|page| {
                    self.on_touch(machine, self.clock.now(), page, MemoryAccess::Read, slot as u64)
                });
            }
            RegionCommand::WillNeed { range, reply } => {
                self.prefetch_queue.add(range);
                let _ = reply.send(());
            }
            RegionCommand::Discard { range, reply } => {
                self.discards.push(Discard { pages: range.pages().collect(), reply });
            }
            RegionCommand::Check { reply } => {
                let _ = reply.send(self.first_error.map_or(Ok(()), Err));
            }
            RegionCommand::Statistics { reply } => {
                let _ = reply.send(self.current_statistics(machine));
            }
        }
    }

    /// Counters of the server and of the machine.
    fn current_statistics(&self, machine: &Machine) -> RegionStats {
        let (meter, swap) = (machine.meter(), machine.swap_counters());
        RegionStats {
            faults_major: swap.faults_major,
            faults_minor: swap.faults_minor,
            hits: swap.hits,
            swap_in_pages: swap.swap_in_pages,
            swap_out_pages: swap.swap_out_pages,
            failed_writes: swap.failed_writes,
            memory_pages: self.present_pages,
            device_reads: meter.device_reads,
            device_read_bytes: meter.device_read_bytes,
            device_writes: meter.device_writes,
            device_write_bytes: meter.device_write_bytes,
            ..self.statistics
        }
    }

    /// Submits started transfers and takes in completed ones, without sleeping.
    fn exchange(&mut self) {
        // After an error no transfer would complete any more, and threads would wait forever.
        self.transfers.exchange(Sleep::Never).expect("the backend exchanges requests for answers");
    }

    /// Puts a page of zeros at the frame's own address, for a transfer to fill, if there is none.
    /// A transfer to an absent page would fail (`EFAULT`).
    fn make_present(&mut self, frame: u32) {
        match self.frames[frame as usize].presence {
            FramePresence::InFrame => {}
            FramePresence::Unallocated => {
                self.put_zeros(frame);
                self.frames[frame as usize].presence = FramePresence::InFrame;
            }
            FramePresence::Mapped { page, .. } => {
                unreachable!("page {page} is mapped, but a read fills its frame")
            }
        }
    }

    /// Puts a page of zeros at the frame's own address, where there is no page.
    fn put_zeros(&mut self, frame: u32) {
        let address = self.frame_area.address(u64::from(frame));
        let zeros = self.zeros.address();
        let is_protected = false;
        // SAFETY: this server owns the zeros, and the frame has no page of its own.
        let result = unsafe { self.frame_uffd.copy(address, zeros, PAGE, is_protected) };
        result.expect("a frame without a page takes one");
        self.add_present(1);
    }

    /// Records the end of a transfer of these frames, successful or not. After a write, releases
    /// memory of frames that was kept only for it.
    fn on_transfer_end(&mut self, op: Op, mut transfer_frames: TransferFrames) {
        if op == Op::Write {
            for &frame in &transfer_frames {
                let state = &mut self.frames[frame as usize];
                state.writes -= 1;
                if state.writes == 0 && std::mem::take(&mut state.is_present_twice) {
                    self.release_frame_memory(frame);
                }
            }
        }
        transfer_frames.clear();
        self.spare_frame_lists.push(transfer_frames);
    }

    /// Counts a write of the frame. If its page is mapped again and not present twice, the write
    /// uses zeros, and the page is remembered as changed.
    fn begin_write(&mut self, frame: u32) {
        let Frame { presence, is_present_twice, writes } = &mut self.frames[frame as usize];
        *writes += 1;
        if let FramePresence::Mapped { page, .. } = *presence
            && !*is_present_twice
        {
            self.changed_before_write.push(page);
        }
    }

    /// Informs the machine of pages whose writes used zeros, before these writes complete.
    fn report_changed_pages(&mut self, machine: &mut Machine) {
        for page in self.changed_before_write.drain(..) {
            machine.handle_written(self.memory, page);
        }
    }

    /// Records the end of one page of the load command in `slot`. Answers the command after its
    /// last page, with the first error.
    fn finish_load(&mut self, slot: usize, error: Option<ReadError>) {
        let load = self.loads[slot].as_mut().expect("a load stays until its last page");
        load.pages_left -= 1;
        load.error = load.error.or(error);
        if load.pages_left == 0 {
            let load = self.loads[slot].take().expect("the load was found above");
            let _ = load.reply.send(load.error.map_or(Ok(()), Err));
        }
    }
}

impl IoBackend for Areas {
    /// Starts the transfer of a request's frames: a read fills them, a write takes their pages.
    fn submit(&mut self, machine: &Machine, _now: Time, request: DeviceRequest) {
        let mut frames = self.spare_frame_lists.pop().unwrap_or_default();
        machine.request_buffers(request.id, |buffer| match buffer {
            Buffer::Frame(frame) => frames.push(frame.0),
            Buffer::Caller { .. } => unreachable!("every transfer has frames"),
        });
        for &frame in &frames {
            match request.op {
                Op::Read => self.make_present(frame),
                Op::Write => self.begin_write(frame),
            }
        }
        let start = TransferStart {
            id: request.id,
            file: transfers::TransferFile::from_target(&self.target),
            op: request.op,
            offset: request.start * SECTOR_BYTES,
            bytes: u64::from(request.sectors) * SECTOR_BYTES,
        };
        let (zeros, area, frame_states) = (self.zeros.address(), &self.frame_area, &self.frames);
        // A page that is mapped and not present twice is not here: zeros are written.
        let address = |frame: u32| match frame_states[frame as usize] {
            Frame { presence: FramePresence::Mapped { .. }, is_present_twice: false, .. } => zeros,
            _ => area.address(u64::from(frame)),
        };
        // SAFETY: pages that are here (invariant 2) or zeros, in memory that outlives the
        // transfers. No thread touches pages that are being filled.
        unsafe {
            self.transfers.start(start, frames, |frames, segments| {
                for &frame in frames {
                    // Frames that are adjacent in memory form one segment.
                    let address = address(frame) as *mut libc::c_void;
                    match segments.last_mut() {
                        Some(libc::iovec { iov_base, iov_len })
                            if iov_base.wrapping_byte_add(*iov_len) == address =>
                        {
                            *iov_len += PAGE;
                        }
                        _ => segments.push(libc::iovec { iov_base: address, iov_len: PAGE }),
                    }
                }
            });
        }
    }

    /// Removes the next ended transfer, if any, updates its frames, and returns its completion.
    fn poll_completion(&mut self, _now: Time) -> Option<Completion> {
        let ended = self.transfers.next_ended()?;
        self.on_transfer_end(ended.op, ended.context);
        Some(ended.completion)
    }
}

impl Driver for Areas {
    /// Maps the page while it is pinned and wakes its threads. The fault's tag decides about an
    /// error and about the end of a load. A `Zero` page has no bytes in its frame.
    fn on_faulted(&mut self, machine: &mut Machine, now: Time, faulted: Faulted) {
        let page = faulted.page;
        let error = match faulted.result {
            Ok((frame, source)) => {
                self.map_frame(page, frame.0, source == PageSource::Zero, faulted.is_writable);
                None
            }
            Err(error) => Some(error),
        };
        match faulted.tag {
            // The next touch of the page meets an error again.
            REMAP_TAG => {}
            TOUCH_TAG => {
                if let Some(error) = error {
                    self.first_error.get_or_insert(error);
                    self.poison(page);
                }
            }
            // A load reports its error and poisons no page.
            slot => self.finish_load(slot as usize, error),
        }
        machine.release_fault(now, faulted.fault);
    }

    /// Unmaps the page that the machine evicts, and all others that it wants to evict now.
    fn unmap(&mut self, machine: &mut Machine, now: Time, unmap: Unmap) {
        // Moving pages takes a while, so reads for faults are submitted to the device first.
        self.exchange();
        self.unmaps.push(unmap);
        self.unmaps.extend(std::iter::from_fn(|| machine.poll_unmap()));
        self.unmap_all(machine, now);
    }
}

impl PagerServer for RegionServer {
    /// Accesses whose faults are served.
    fn scope(&self) -> FaultScope {
        self.areas.uffd.scope()
    }

    /// Main loop: handles faults and commands, and steps the machine.
    fn run(&mut self) {
        let RegionServer { machine, areas } = self;
        loop {
            // Any wake-up ends the pause: pages may be able to leave by then.
            let wake = [machine.next_wake(), areas.memory_limit.pause_end.take()];
            let timeout = wake.into_iter().flatten().min().map(|wake| areas.clock.until(wake));
            let woken = sleep(&areas.uffd, areas.inbox.event_fd(), timeout);
            // Answers found next count as just arrived.
            areas.transfers.record_wait();
            // Faults may come first: a sender waits for its reply before it touches pages.
            if woken.by_faults {
                areas.handle_faults(machine);
            }
            if woken.by_event_fd {
                areas.inbox.event_fd().clear();
                while let Some(command) = areas.inbox.next() {
                    areas.handle_command(machine, command);
                }
                if areas.inbox.is_closed() {
                    return;
                }
            }
            loop {
                areas.exchange();
                let has_progressed = machine.step(areas.clock.now(), areas);
                // Before any of the submitted writes can complete.
                areas.report_changed_pages(machine);
                // Not `||`: each of the calls has to be made.
                let has_progressed = has_progressed
                    | areas.discard(machine)
                    | areas.prefetch_advised(machine)
                    | areas.reduce_memory(machine);
                if areas.memory_limit.is_paused() || !has_progressed {
                    break;
                }
            }
        }
    }
}
