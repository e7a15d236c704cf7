//! What serves the faults of a [`Region`](super::region::Region): one thread that
//! drives the machine's memory side, its transfers, and the userfaultfd.
//!
//! The memory is the machine's frames, one page each. A frame's page lies *here*,
//! at the frame's own address, where transfers fill it and take it from; or it
//! is *mapped*, at the address where the program sees its page. To map and to
//! unmap is to move it, without copying: at once and whole, so that a program
//! never sees a page that is being written out, and nothing that it writes is
//! missed. That is why no write-protection is needed to write pages out.
//!
//! It is needed to know which pages changed: a clean page is mapped for
//! reading alone, and the first write to it is a fault. The kernel can't move a
//! page and protect it in one step (between two, a write could slip through), so
//! such a page is copied to its place, protected, and its frame's own is given
//! back. A fault that writes, the usual one where memory is short, moves it.
//!
//! Invariants:
//! 1. No more pages are present than there are frames, but for *doubles*: a page
//!    that is mapped again while it is being written out is copied, since the
//!    device holds on to the frame's own until the write has ended.
//! 2. What a transfer fills or takes is here, and stays until the transfer has
//!    ended. A page that is mapped is in none: the program may give it up by itself
//!    (madvise(2)), and the kernel's transfer would wait for this thread, and this
//!    thread for it. One that was mapped again before its write came to the
//!    device is [not written](Areas::unwritten).
//! 3. This thread never touches the user's area, and the frames' own only
//!    where a page is here: it would else wait for itself.

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

use super::area::AnonymousArea;
use super::error::PagerError;
use super::follow::Follower;
use super::link::{Inbox, Serve};
use super::region::RegionStatistics;
use super::uffd::{FaultKind, FaultScope, RangeRegistration, Uffd, UserFault};
use super::wait::sleep;
use crate::backend::{BackendKind, Sleep};
use crate::clock::Clock;
use crate::sync::SyncSender;
use crate::target::Target;
use crate::transfers::{self, TransferStart, Transfers};
use advice::{Advised, Discard};

mod advice;
mod places;

const PAGE: usize = PAGE_BYTES as usize;
/// The tag of a thread's fault.
const TOUCH: u64 = u64::MAX;
/// The tag of the fault by which a page that can't be unmapped is taken back.
const STUCK: u64 = u64::MAX - 1;
/// The only process that the machine knows here.
const PROCESS: ProcessId = ProcessId(0);
/// Stands for a page that is in no frame.
const NO_FRAME: u32 = u32::MAX;
/// Pages that have left the program's sight rest so long before they are
/// written or go: we see no accesses but faults, and one that is touched again
/// meanwhile is mapped without I/O. So many at most: a sixteenth of the memory had
/// random touches fault twice, and a page in three written out for nothing
/// (`bench/region.py`, 256 MiB of memory).
const SECOND_CHANCE_PAGES_MAX: u64 = 512;
/// And this part of the memory at most.
const SECOND_CHANCE_DIVISOR: u64 = 32;

/// What the owner asks of the thread.
#[derive(Debug)]
pub(super) enum RegionCommand {
    /// Bring pages in.
    Load { range: PageRange, reply: SyncSender<Result<(), ReadError>> },
    /// Read swapped-out pages ahead.
    WillNeed { range: PageRange, reply: SyncSender<()> },
    /// Forget what pages hold.
    Discard { range: PageRange, reply: SyncSender<()> },
    /// Has a touch met an error?
    Check { reply: SyncSender<Result<(), ReadError>> },
    /// What was counted?
    Statistics { reply: SyncSender<RegionStatistics> },
}

/// What a server is built from.
#[derive(Debug)]
pub(super) struct RegionSetup {
    pub target: Target,
    pub user: Arc<AnonymousArea>,
    pub pages: u64,
    pub frames: AnonymousArea,
    pub memory_pages: u64,
    pub slots: u64,
    pub swapin: Spec,
    pub eviction: Spec,
    pub backend: BackendKind,
}

/// Where a frame's page is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramePresence {
    /// Nowhere: the frame takes no memory yet. Left at its first use.
    Nowhere,
    /// At the frame's own address. Entered by filling and by unmapping.
    Here,
    /// Where the program sees `page`. Entered by mapping; left by unmapping.
    Mapped { page: u64, is_protected: bool },
}

/// A page of zeros, from which direct I/O can write.
#[derive(Debug)]
#[repr(align(4096))]
struct Zeros([u8; PAGE]);

#[derive(Clone, Copy, Debug)]
struct Frame {
    place: FramePresence,
    /// How many writes out of it are under way.
    writes: u32,
    /// It is mapped, and its own page is present too, until those have ended.
    is_double: bool,
}

/// A load that waits for pages.
#[derive(Debug)]
struct PageLoad {
    left: u64,
    error: Option<ReadError>,
    reply: SyncSender<Result<(), ReadError>>,
}

/// What is kept for a transfer.
type KeptTransfer = Vec<u32>;

/// See the [module](self).
pub(super) struct RegionServer {
    machine: Machine,
    areas: Areas,
}

/// Both areas, and all else beside the machine: what carries its requests, and who waits.
struct Areas {
    // Dropped first: it withdraws transfers to and from the frames.
    transfers: Transfers<KeptTransfer>,
    target: Target,
    uffd: Uffd,
    user: Arc<AnonymousArea>,
    /// Watches the frames' own pages, and refuses their touch: nobody but this thread has
    /// business there. (Without one, none could be moved there.)
    area_uffd: Uffd,
    area: AnonymousArea,
    memory: MemoryId,
    frames: Vec<Frame>,
    /// The frame that is mapped at each page.
    mapped: Vec<u32>,
    zeros: Box<Zeros>,
    /// Pages that were mapped again before their writes came to the device: these took zeros, and
    /// the machine is to hear that the pages have changed since.
    unwritten: Vec<u64>,
    loads: Vec<Option<PageLoad>>,
    advised: Advised,
    discards: Vec<Discard>,
    poisoned: BTreeSet<u64>,
    first_error: Option<ReadError>,
    present_pages: u64,
    follower: Follower,
    statistics: RegionStatistics,
    clock: Clock,
    inbox: Arc<Inbox<RegionCommand>>,
    faults: Vec<UserFault>,
    unmaps: Vec<Unmap>,
    /// Lists of frames from earlier transfers, kept for their room.
    spare: Vec<KeptTransfer>,
}

impl Zeros {
    fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

impl RegionServer {
    /// Builds it on the thread that will run it.
    ///
    /// # Errors
    /// As [`RegionBuilder::in_folder`](super::region::RegionBuilder::in_folder).
    pub(super) fn new(
        setup: RegionSetup,
        inbox: Arc<Inbox<RegionCommand>>,
    ) -> Result<RegionServer, PagerError> {
        let RegionSetup {
            target,
            user,
            pages,
            frames: area,
            memory_pages,
            slots,
            swapin,
            eviction,
            backend,
        } = setup;
        let caps = target.caps();
        let config = Config {
            memory_bytes: memory_pages * PAGE_BYTES,
            open_reads_max: u32::MAX,
            eviction,
            ..Config::new(caps)
        };
        let mut machine = Machine::new(config).map_err(PagerError::Config)?;
        let swap = SwapConfig {
            policy: swapin,
            by_policy: true,
            second_chance_pages: (memory_pages / SECOND_CHANCE_DIVISOR).min(SECOND_CHANCE_PAGES_MAX)
                as u32,
            ..SwapConfig::new(0, slots)
        };
        machine.add_swap(&swap).map_err(PagerError::Swap)?;
        let memory = machine.add_memory(pages, MemoryKind::Private).map_err(PagerError::Swap)?;
        let uffd = Uffd::open().map_err(PagerError::Uffd)?;
        user.watch(&uffd, RangeRegistration::MissingAndWrites)?;
        let area_uffd = Uffd::open_refusing().map_err(PagerError::Uffd)?;
        area.watch(&area_uffd, RangeRegistration::Missing)?;
        let clock = Clock::start();
        let built = backend.build_with_bell(caps.depth_max, inbox.bell().as_fd());
        let (built, _) = built.map_err(PagerError::Backend)?;
        let empty = Frame { place: FramePresence::Nowhere, writes: 0, is_double: false };
        let areas = Areas {
            transfers: Transfers::over(built, caps.depth_max, clock),
            target,
            uffd,
            user,
            area_uffd,
            area,
            memory,
            frames: vec![empty; memory_pages as usize],
            mapped: vec![NO_FRAME; pages as usize],
            zeros: Box::new(Zeros([0; PAGE])),
            unwritten: Vec::new(),
            loads: Vec::new(),
            advised: Advised::of_at_most(memory_pages / 2),
            discards: Vec::new(),
            poisoned: BTreeSet::new(),
            first_error: None,
            present_pages: 0,
            follower: Follower::default(),
            statistics: RegionStatistics::default(),
            clock,
            inbox,
            faults: Vec::new(),
            unmaps: Vec::new(),
            spare: Vec::new(),
        };
        Ok(RegionServer { machine, areas })
    }
}

impl Areas {
    fn handle_faults(&mut self, machine: &mut Machine) {
        let mut faults = std::mem::take(&mut self.faults);
        self.uffd.faults(&mut faults).expect("a userfaultfd can be read while it is open");
        for fault in faults.drain(..) {
            self.statistics.faults += 1;
            self.follower.serve(fault.thread);
            self.statistics.faults_protected += u64::from(fault.kind == FaultKind::Protected);
            let Some(page) = self.user.page(fault.address) else {
                // The program has made the region longer (mremap(2)): there is nothing.
                // SAFETY: registered, or it would not have been told; and not ours to fill.
                // Refused, another thread has been told already.
                let _ = unsafe { self.uffd.poison(fault.address, PAGE) };
                continue;
            };
            let place = match self.mapped[page as usize] {
                NO_FRAME => FramePresence::Nowhere,
                frame => self.frames[frame as usize].place,
            };
            // A page that has come in since, or may be written to since: try again.
            let is_stale = match place {
                FramePresence::Mapped { is_protected, .. } => {
                    fault.kind != FaultKind::Protected || !is_protected
                }
                _ => false,
            };
            if is_stale && !self.give_up_lost(machine, page) {
                self.wake(page);
                continue;
            }
            let access = match fault.kind {
                FaultKind::Read => MemoryAccess::Read,
                FaultKind::Write | FaultKind::Protected => MemoryAccess::Write,
            };
            self.fault(machine, self.clock.now(), page, access, TOUCH);
        }
        self.faults = faults;
    }

    fn fault(
        &mut self,
        machine: &mut Machine,
        now: Time,
        page: u64,
        access: MemoryAccess,
        tag: u64,
    ) {
        let fault = MemoryFault { memory: self.memory, page, access, process: PROCESS, tag };
        let begun = machine.fault(now, fault);
        begun.expect("there is no limit to open faults");
    }

    fn handle_command(&mut self, machine: &mut Machine, command: RegionCommand) {
        match command {
            RegionCommand::Load { range, reply } => {
                let slot = self.loads.iter().position(Option::is_none).unwrap_or(self.loads.len());
                if slot == self.loads.len() {
                    self.loads.push(None);
                }
                if range.is_empty() {
                    // Who gave up waiting needs no answer; nor below.
                    let _ = reply.send(Ok(()));
                    return;
                }
                self.loads[slot] = Some(PageLoad { left: range.count(), error: None, reply });
                range.pages().for_each(|page| {
                    self.fault(machine, self.clock.now(), page, MemoryAccess::Read, slot as u64)
                });
            }
            RegionCommand::WillNeed { range, reply } => {
                self.advised.add(range);
                let _ = reply.send(());
            }
            RegionCommand::Discard { range, reply } => {
                self.discards.push(Discard { pages: range.pages().collect(), reply });
            }
            RegionCommand::Check { reply } => {
                let _ = reply.send(self.first_error.map_or(Ok(()), Err));
            }
            RegionCommand::Statistics { reply } => {
                let _ = reply.send(self.counted(machine));
            }
        }
    }

    fn counted(&self, machine: &Machine) -> RegionStatistics {
        let (meter, swap) = (machine.meter(), machine.swap_counters());
        RegionStatistics {
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

    /// Hands over what was started, and takes in what has ended, without sleeping.
    fn exchange(&mut self) {
        // A ring that refuses the exchange as such has never been seen. Nothing
        // would come back any more, and threads would wait for ever.
        self.transfers.exchange(Sleep::Never).expect("the backend exchanges requests for answers");
    }

    /// Gives a frame a page of its own, for a transfer to fill: the kernel's
    /// transfer would wait for one in vain.
    fn make_present(&mut self, frame: u32) {
        match self.frames[frame as usize].place {
            FramePresence::Here => {}
            FramePresence::Nowhere => {
                self.put_zeros(frame);
                self.frames[frame as usize].place = FramePresence::Here;
            }
            FramePresence::Mapped { page, .. } => {
                unreachable!("page {page} is mapped and filled anew")
            }
        }
    }

    fn put_zeros(&mut self, frame: u32) {
        let to = self.area.address(u64::from(frame));
        // SAFETY: the zeros are ours, and the frame has no page of its own.
        let put = unsafe { self.area_uffd.copy(to, self.zeros.address(), PAGE, false) };
        put.expect("a frame without a page takes one");
        self.count_present(1);
    }

    /// A transfer has ended, well or not.
    fn note_end(&mut self, op: Op, mut moved: KeptTransfer) {
        if op == Op::Write {
            for &frame in &moved {
                let state = &mut self.frames[frame as usize];
                state.writes -= 1;
                if state.writes == 0 && std::mem::take(&mut state.is_double) {
                    self.release(frame);
                }
            }
        }
        moved.clear();
        self.spare.push(moved);
    }

    /// A frame is to be written out, from here.
    fn take_for_write(&mut self, frame: u32) {
        let Frame { place, is_double, writes } = &mut self.frames[frame as usize];
        *writes += 1;
        if let FramePresence::Mapped { page, .. } = *place
            && !*is_double
        {
            self.unwritten.push(page);
        }
    }

    fn tell_unwritten(&mut self, machine: &mut Machine) {
        for page in self.unwritten.drain(..) {
            machine.handle_written(self.memory, page);
        }
    }

    /// Gives the memory at a frame's own address back.
    fn release(&mut self, frame: u32) {
        // SAFETY: its bytes are where the program sees them, and no transfer
        // uses it.
        unsafe { self.area.release(PageRange::new(u64::from(frame), 1)) };
        self.present_pages -= 1;
    }

    fn count_present(&mut self, pages: u64) {
        self.present_pages += pages;
        self.statistics.memory_pages_max = self.statistics.memory_pages_max.max(self.present_pages);
    }

    fn finish_load(&mut self, slot: usize, error: Option<ReadError>) {
        let load = self.loads[slot].as_mut().expect("a load stays until its last page");
        load.left -= 1;
        load.error = load.error.or(error);
        if load.left == 0 {
            let load = self.loads[slot].take().expect("it was there just now");
            let _ = load.reply.send(load.error.map_or(Ok(()), Err));
        }
    }
}

impl IoBackend for Areas {
    fn submit(&mut self, machine: &Machine, _now: Time, request: DeviceRequest) {
        let mut frames = self.spare.pop().unwrap_or_default();
        machine.request_buffers(request.id, |buffer| match buffer {
            Buffer::Frame(frame) => frames.push(frame.0),
            Buffer::Caller { .. } => unreachable!("no transfer here passes the cache"),
        });
        for &frame in &frames {
            match request.op {
                Op::Read => self.make_present(frame),
                Op::Write => self.take_for_write(frame),
            }
        }
        let start = TransferStart {
            id: request.id,
            place: transfers::TransferFile::of(&self.target),
            op: request.op,
            offset: request.start * SECTOR_BYTES,
            bytes: u64::from(request.sectors) * SECTOR_BYTES,
        };
        let (zeros, area, all) = (self.zeros.address(), &self.area, &self.frames);
        let address = |frame: u32| match all[frame as usize] {
            Frame { place: FramePresence::Mapped { .. }, is_double: false, .. } => zeros,
            _ => area.address(u64::from(frame)),
        };
        // SAFETY: pages that are here (invariant 2), or of zeros, in memory that
        // outlives the transfers; nobody else touches those that are filled.
        unsafe {
            self.transfers.start(start, frames, |frames, segments| {
                for &frame in frames {
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

    fn poll_completion(&mut self, _now: Time) -> Option<Completion> {
        let ended = self.transfers.next_ended()?;
        self.note_end(ended.op, ended.kept);
        Some(ended.completion)
    }
}

impl Driver for Areas {
    /// Maps or poisons the page, while it is pinned.
    fn faulted(&mut self, machine: &mut Machine, now: Time, faulted: Faulted) {
        let page = faulted.page;
        let error = match faulted.result {
            Ok((frame, source)) => {
                self.map(page, frame.0, source == PageSource::Zero, faulted.is_writable);
                None
            }
            Err(error) => Some(error),
        };
        match faulted.tag {
            STUCK => {}
            TOUCH => {
                if let Some(error) = error {
                    self.first_error.get_or_insert(error);
                    self.poison(page);
                }
            }
            load => self.finish_load(load as usize, error),
        }
        machine.release_fault(now, faulted.fault);
    }

    fn unmap(&mut self, machine: &mut Machine, now: Time, unmap: Unmap) {
        // To move pages takes a while: the device begins first with what is read for a fault.
        self.exchange();
        self.unmaps.push(unmap);
        self.unmaps.extend(std::iter::from_fn(|| machine.poll_unmap()));
        self.move_all_out(machine, now);
    }
}

impl Serve for RegionServer {
    fn scope(&self) -> FaultScope {
        self.areas.uffd.scope()
    }

    fn run(&mut self) {
        let RegionServer { machine, areas } = self;
        loop {
            let span = machine.next_wake().map(|wake| areas.clock.until(wake));
            let woken = sleep(&areas.uffd, areas.inbox.bell(), span);
            areas.transfers.watched();
            if woken.by_faults {
                areas.handle_faults(machine);
            }
            if woken.by_bell {
                areas.inbox.bell().quieten();
                while let Some(command) = areas.inbox.next() {
                    areas.handle_command(machine, command);
                }
                if areas.inbox.is_closed() {
                    return;
                }
            }
            loop {
                areas.exchange();
                let is_any = machine.turn(areas.clock.now(), areas);
                // Before anything that was submitted can be completed.
                areas.tell_unwritten(machine);
                if !(is_any | areas.discard(machine) | areas.read_advised(machine)) {
                    break;
                }
            }
        }
    }
}
