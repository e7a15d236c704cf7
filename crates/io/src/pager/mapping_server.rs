//! What serves the faults of a [`Mapping`](super::mapping::Mapping): one thread
//! that drives the machine, its transfers, and the userfaultfd.
//!
//! There are two areas of addresses, each as long as the file. The *user's* is
//! what the program sees. The *shadow* is where the device's bytes arrive, out
//! of sight, each page at the same place as in the user's; from there it is
//! moved, not copied, when it is touched. Neighbours in the file are neighbours
//! in both, so a request is one piece of memory and a window one move.
//!
//! Nobody but this thread has business in the shadow, so its userfaultfd refuses
//! touches of absent pages: when the program locks all its memory, the kernel can't fill it.
//! That is why a transfer's pages are put there before it starts.
//!
//! Invariants:
//! 1. A page is present in at most one of the areas, and [`Areas::resident`]
//!    says in which; it names a frame of the machine that holds it, so no more
//!    pages are present than the budget has frames. (When a transfer still
//!    holds on to its pages they are copied, and present twice until the end of
//!    that call.)
//! 2. The user's area only ever has pages whose transfer ended well.
//! 3. This thread touches the user's area only where a page is present and
//!    pinned: it would else wait for itself.
//! 4. What is [lent](lent) to the kernel's own mapping is in neither area, and nothing is put there.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;

use readpath_core::machine::{
    Buffer, Config, Done, Driver, HandleId, IoBackend, Machine, ReadAccess, ReadError, Transfer,
};
use readpath_core::policy::Spec;
use readpath_core::readahead::{Advice, ReadaheadLimits};
use readpath_core::request::{Completion, DeviceRequest, Op, Outcome, ProcessId};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, SECTOR_BYTES, Time};
use rustix::io::Errno;

use super::area::{AnonymousArea, for_each_run};
use super::error::PagerError;
use super::follow::Follower;
use super::link::{Inbox, Serve};
use super::mapping::MappingStatistics;
use super::page_map::PageMap;
use super::runs::PageRanges;
use super::uffd::{FaultScope, RangeRegistration, Uffd, UserFault};
use super::wait::sleep;
use crate::backend::{BackendKind, Sleep};
use crate::clock::Clock;
use crate::sync::SyncSender;
use crate::target::Target;
use crate::transfers::{self, TransferStart, Transfers};

mod around;
mod given_up;
mod lent;

use lent::Lending;

/// The most bytes of one piece of a [`MappingCommand::Read`]: its answer is allocated.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// How many zeros are put into the shadow with one call at most.
const ZERO_BYTES: usize = 1 << 18;
/// The tag of a fault; other reads have the number of their command.
const FAULT: u64 = u64::MAX;
/// The only process that the machine knows here.
const PROCESS: ProcessId = ProcessId(0);

/// Bytes of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteRange {
    pub offset: u64,
    pub bytes: u64,
}

/// What a piece of a [`MappingCommand::Read`] gave.
#[derive(Debug)]
pub(super) struct ReadPiece {
    /// How many bytes were read; at least one.
    pub bytes: u64,
    /// The bytes, if they were wanted.
    pub copied: Vec<u8>,
}

/// What the owner asks of the thread.
#[derive(Debug)]
pub(super) enum MappingCommand {
    /// A hint.
    Advise { advice: Advice, range: PageRange },
    /// Bring in a first piece of the range.
    Read { range: ByteRange, wants_bytes: bool, reply: SyncSender<Result<ReadPiece, ReadError>> },
    /// What was counted?
    Statistics { reply: SyncSender<MappingStatistics> },
}

/// What a server is built from.
#[derive(Debug)]
pub(super) struct MappingSetup {
    pub target: Target,
    pub user: Arc<AnonymousArea>,
    pub shadow: AnonymousArea,
    pub memory_bytes: u64,
    pub readahead: Spec,
    pub window_bytes_max: u64,
    pub backend: BackendKind,
    /// Whether long runs may be lent to the kernel's own mapping; and if so, whether what it brings in of them is dropped behind them.
    pub lends: Option<bool>,
}

/// Where a page is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PagePresence {
    /// In the shadow, and a transfer is filling it. Entered when a request is
    /// started; left when it ends.
    Filling,
    /// In the shadow, with the file's bytes. Entered when a request ends well;
    /// left by mapping or eviction.
    Shadow,
    /// In the user's area. Entered by mapping; left by eviction.
    User,
}

#[derive(Clone, Copy, Debug)]
struct Resident {
    frame: u32,
    place: PagePresence,
}

/// A read for the owner, which waits for the device.
#[derive(Debug)]
struct OwnerRead {
    wants_bytes: bool,
    reply: SyncSender<Result<ReadPiece, ReadError>>,
}

/// See the [module](self).
pub(super) struct MappingServer {
    machine: Machine,
    areas: Areas,
}

/// Both areas, and all else beside the machine: what carries its requests, and who waits.
struct Areas {
    // Dropped first: it withdraws transfers into the shadow.
    transfers: Transfers<PageRange>,
    target: Target,
    uffd: Arc<Uffd>,
    user: Arc<AnonymousArea>,
    shadow_uffd: Uffd,
    shadow: AnonymousArea,
    /// What is put into the shadow before a transfer.
    zeros: Vec<u8>,
    handle: HandleId,
    file_bytes: u64,
    piece_bytes_max: u64,
    /// Which page each frame of the machine holds.
    owners: Vec<Option<u64>>,
    resident: PageMap<Resident>,
    /// What is mapped, by the kernel too.
    runs: PageRanges,
    lending: Lending,
    poisoned: BTreeSet<u64>,
    asked: Vec<Option<OwnerRead>>,
    follower: Follower,
    statistics: MappingStatistics,
    clock: Clock,
    inbox: Arc<Inbox<MappingCommand>>,
    /// Told, and not handled yet.
    faults: Vec<UserFault>,
    /// Room for lists of pages and frames.
    pages: Vec<u64>,
}

impl MappingServer {
    /// Builds it on the thread that will run it.
    ///
    /// # Errors
    /// As [`MappingBuilder::open`](super::mapping::MappingBuilder::open).
    pub(super) fn new(
        setup: MappingSetup,
        inbox: Arc<Inbox<MappingCommand>>,
    ) -> Result<MappingServer, PagerError> {
        let MappingSetup { target, user, shadow, memory_bytes, .. } = setup;
        let MappingSetup { readahead, window_bytes_max, backend, lends, .. } = setup;
        let (caps, file_bytes) = (target.caps(), target.bytes());
        let limits = ReadaheadLimits {
            window_pages_max: window_bytes_max / PAGE_BYTES,
            request_pages_max: u64::from(caps.request_sectors_max) / PAGE_SECTORS,
        };
        let config = Config {
            memory_bytes,
            readahead,
            // Of the uses of a page the machine hears the first touch alone, so that no law can tell how good it is. And pages
            // that came together leave together: under `adaptive` slices of a file four times as large as its memory
            // came at 131 MiB/s for 295, with no fewer bytes.
            eviction: Spec::plain("two-lists"),
            limits,
            open_reads_max: u32::MAX,
            ..Config::new(caps)
        };
        let mut machine = Machine::new(config).map_err(PagerError::Config)?;
        let file = machine.add_file(file_bytes, 0).map_err(PagerError::Beyond)?;
        let handle = machine.open(file);
        let uffd = Uffd::open_following().map_err(PagerError::Uffd)?;
        user.watch(&uffd, RangeRegistration::Missing)?;
        let shadow_uffd = Uffd::open_refusing().map_err(PagerError::Uffd)?;
        shadow.watch(&shadow_uffd, RangeRegistration::Missing)?;
        let clock = Clock::start();
        let built = backend.build_with_bell(caps.depth_max, inbox.bell().as_fd());
        let (built, _) = built.map_err(PagerError::Backend)?;
        let frames = (memory_bytes / PAGE_BYTES) as usize;
        let lending = match lends {
            Some(drops_behind) => Lending::of(&target, frames as u64, drops_behind),
            None => Lending::none(),
        };
        let areas = Areas {
            transfers: Transfers::over(built, caps.depth_max, clock),
            target,
            uffd: Arc::new(uffd),
            user,
            shadow_uffd,
            shadow,
            zeros: vec![0; ZERO_BYTES],
            handle,
            file_bytes,
            piece_bytes_max: (memory_bytes / 4).clamp(PAGE_BYTES, PIECE_BYTES_MAX),
            owners: vec![None; frames],
            resident: PageMap::with_capacity_and_hasher(frames, Default::default()),
            runs: PageRanges::default(),
            lending,
            poisoned: BTreeSet::new(),
            asked: Vec::new(),
            follower: Follower::default(),
            statistics: MappingStatistics::default(),
            clock,
            inbox,
            faults: Vec::new(),
            pages: Vec::new(),
        };
        Ok(MappingServer { machine, areas })
    }
}

impl Areas {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn handle_faults(&mut self, machine: &mut Machine) {
        let mut faults = std::mem::take(&mut self.faults);
        // Moves of memory are read so that they go on.
        self.uffd.faults(&mut faults).expect("a userfaultfd can be read while it is open");
        while !faults.is_empty() {
            for fault in faults.drain(..) {
                self.handle_fault(machine, fault);
            }
            self.take_surplus_back();
            faults.append(&mut self.faults);
        }
        self.faults = faults;
    }

    fn handle_fault(&mut self, machine: &mut Machine, fault: UserFault) {
        self.statistics.faults += 1;
        self.follower.serve(fault.thread);
        let Some(page) = self.user.page(fault.address) else {
            // The program has made the mapping longer (mremap(2)): there is nothing.
            // SAFETY: registered, or it would not have been told; and not ours to fill.
            // Refused, another thread has been told already.
            let _ = unsafe { self.uffd.poison(fault.address, PAGE_BYTES as usize) };
            return;
        };
        if self.is_at(page, PagePresence::User) && !self.user.is_present(page) {
            // The program has given it up by itself (madvise(2)).
            self.advise(machine, Advice::DontNeed, PageRange::new(page, 1));
        }
        if self.is_at(page, PagePresence::User) {
            // It came in since the thread told of it; or was given up, and somebody's read has it pinned.
            match self.bring_back(page) {
                Ok(()) => self.wake(page),
                Err(_) => self.poison(page),
            }
        } else if self.lending.has(page) {
            self.wake(page);
        } else if !self.lend(machine, page) {
            self.statistics.faults_read += u64::from(!self.is_at(page, PagePresence::Shadow));
            let range = ByteRange { offset: page * PAGE_BYTES, bytes: 1 };
            self.read(machine, ReadAccess::Fault, range, FAULT)
                .expect("a page fits, and reads have no limit");
        }
    }

    fn handle_command(&mut self, machine: &mut Machine, command: MappingCommand) {
        match command {
            MappingCommand::Advise { advice, range } => self.advise(machine, advice, range),
            MappingCommand::Read { range, wants_bytes, reply } => {
                // To a whole page, so that the next piece starts at one.
                let end = range.offset + self.piece_bytes_max;
                let bytes = range.bytes.min(end - end % PAGE_BYTES - range.offset);
                let slot = self.asked.iter().position(Option::is_none).unwrap_or(self.asked.len());
                if slot == self.asked.len() {
                    self.asked.push(None);
                }
                let asked = OwnerRead { wants_bytes, reply };
                let range = ByteRange { bytes, ..range };
                match self.read(machine, ReadAccess::Buffered, range, slot as u64) {
                    Ok(()) => self.asked[slot] = Some(asked),
                    // Who gave up waiting needs no answer.
                    Err(error) => drop(asked.reply.send(Err(error))),
                }
            }
            MappingCommand::Statistics { reply } => {
                let meter = machine.meter();
                let _ = reply.send(MappingStatistics {
                    resident_pages: self.resident.len() as u64,
                    device_reads: meter.device_reads,
                    device_read_bytes: meter.device_read_bytes,
                    ..self.statistics
                });
            }
        }
    }

    fn advise(&mut self, machine: &mut Machine, advice: Advice, range: PageRange) {
        machine.advise(self.now(), self.handle, PROCESS, advice, range);
        match advice {
            Advice::DontNeed => {
                self.take_range_back(range);
                self.drop_range(machine, range);
            }
            // The program has said that it will use them: nothing is to be learned from that it does.
            Advice::WillNeed => machine.mapped(self.handle, range),
            _ => {}
        }
    }

    fn read(
        &mut self,
        machine: &mut Machine,
        access: ReadAccess,
        range: ByteRange,
        tag: u64,
    ) -> Result<(), ReadError> {
        let ByteRange { offset, bytes } = range;
        let transfer = Transfer { handle: self.handle, process: PROCESS, offset, bytes, tag };
        machine.read(self.now(), access, transfer).map(drop)
    }

    /// Hands over what was started, and takes in what has ended, without sleeping.
    fn exchange(&mut self) {
        // A ring that refuses the exchange as such has never been seen. Nothing
        // would come back any more, and threads would wait for ever.
        self.transfers.exchange(Sleep::Never).expect("the backend exchanges requests for answers");
    }

    /// Puts pages into the shadow, for a transfer to fill.
    fn make_present(&self, range: PageRange) {
        let mut at = self.shadow.address(range.first);
        let end = at + (range.count() * PAGE_BYTES) as usize;
        while at < end {
            let bytes = (end - at).min(ZERO_BYTES);
            // SAFETY: the zeros are ours; pages of the shadow that nobody looks at.
            match unsafe { self.shadow_uffd.copy(at, self.zeros.as_ptr() as usize, bytes, false) } {
                Ok(()) => at += bytes,
                // An earlier transfer of the page, which nobody waits for any more, isn't over.
                Err(error) if error.errno == Errno::EXIST => {
                    at += error.bytes_done + PAGE_BYTES as usize;
                }
                Err(error) => panic!("pages {range:?} of the shadow take no zeros: {error}"),
            }
        }
    }

    /// Gives the pages of `self.pages` up.
    fn evict(&mut self) {
        let (mut shadow, mut user) = (Vec::new(), Vec::new());
        self.statistics.evicted_pages += self.pages.len() as u64;
        for page in self.pages.drain(..) {
            match self.resident.remove(&page).map(|held| held.place) {
                Some(PagePresence::User) => user.push(page),
                Some(PagePresence::Shadow | PagePresence::Filling) => shadow.push(page),
                None => {}
            }
        }
        // SAFETY: pages of the user's area are filled with the same bytes when
        // they are touched again; of the shadow nobody holds any.
        unsafe {
            for_each_run(&mut user, |run| {
                self.user.release(run);
                self.runs.remove(run);
            });
            for_each_run(&mut shadow, |run| self.shadow.release(run));
        }
    }

    /// Gives up what the machine has dropped of a range, and takes poison off.
    fn drop_range(&mut self, machine: &Machine, range: PageRange) {
        let is_dropped = |page: &u64| !machine.is_cached(self.handle, *page);
        let gone = |page: &u64| range.contains(*page) && is_dropped(page);
        match range.count() < self.resident.len() as u64 {
            true => {
                let held = range.pages().filter(|page| self.resident.contains_key(page));
                self.pages.extend(held.filter(is_dropped));
            }
            false => self.pages.extend(self.resident.keys().copied().filter(gone)),
        }
        for &page in &self.pages {
            if let Some(held) = self.resident.get(&page) {
                self.owners[held.frame as usize] = None;
            }
        }
        self.evict();
        let mut cured: Vec<u64> = self.poisoned.range(range.first..range.end).copied().collect();
        self.poisoned.retain(|page| !range.contains(*page));
        // SAFETY: no bytes are there.
        for_each_run(&mut cured, |run| unsafe { self.user.release(run) });
    }

    /// A transfer of these pages has ended.
    fn note_end(&mut self, range: PageRange, outcome: Outcome) {
        let good_end = match outcome {
            Outcome::Done => range.end * PAGE_BYTES,
            Outcome::Short { bytes } => range.first * PAGE_BYTES + bytes,
            Outcome::Failed(_) => 0,
        };
        for page in range.pages() {
            // The last page of a file is good though only a part of it is there.
            if good_end >= ((page + 1) * PAGE_BYTES).min(self.file_bytes) {
                if let Some(held) = self.resident.get_mut(&page) {
                    held.place = PagePresence::Shadow;
                }
            } else {
                self.pages.push(page);
            }
        }
        self.evict();
    }

    /// Copies what a read that is done has brought, out of either area.
    fn bytes(&mut self, offset: u64, bytes: u64) -> Result<Vec<u8>, ReadError> {
        let mut copied = Vec::with_capacity(bytes as usize);
        for page in PageRange::covering(offset, bytes).pages() {
            self.bring_back(page)?;
            let area = match self.resident[&page].place {
                PagePresence::User => &*self.user,
                PagePresence::Shadow => &self.shadow,
                PagePresence::Filling => unreachable!("the read waited for its pages"),
            };
            let start = offset.max(page * PAGE_BYTES) - page * PAGE_BYTES;
            let end = (offset + bytes).min((page + 1) * PAGE_BYTES) - page * PAGE_BYTES;
            // SAFETY: the page is present there and pinned, and only this thread
            // takes pages away, but for a program that does so at this very moment.
            copied.extend_from_slice(unsafe { &area.bytes_of(page)[start as usize..end as usize] });
        }
        Ok(copied)
    }

    fn poison(&mut self, page: u64) {
        if self.lending.has(page) {
            // The kernel finds out by itself.
            return self.wake(page);
        }
        self.statistics.poisoned_pages += u64::from(self.poisoned.insert(page));
        // SAFETY: the page is absent.
        match unsafe { self.uffd.poison(self.user.address(page), PAGE_BYTES as usize) } {
            Ok(()) => {}
            // Another thread's fault on it has failed before.
            Err(error) if error.errno == Errno::EXIST => self.wake(page),
            Err(error) => panic!("page {page} can't be poisoned: {error}"),
        }
    }

    fn wake(&self, page: u64) {
        self.wake_all(PageRange::new(page, 1));
    }

    /// Has who waits for one of these pages look again.
    fn wake_all(&self, range: PageRange) {
        let bytes = (range.count() * PAGE_BYTES) as usize;
        let woken = self.uffd.wake(self.user.address(range.first), bytes);
        woken.expect("pages of an area can be waited for");
    }
}

impl IoBackend for Areas {
    /// The request's frames may have held other pages: those have been given up.
    fn submit(&mut self, machine: &Machine, _now: Time, request: DeviceRequest) {
        let range =
            PageRange::new(request.start / PAGE_SECTORS, u64::from(request.sectors) / PAGE_SECTORS);
        let (owners, resident, evicted) = (&mut self.owners, &mut self.resident, &mut self.pages);
        let mut page = range.first;
        machine.request_buffers(request.id, |buffer| {
            let Buffer::Frame(frame) = buffer else {
                unreachable!("no read here passes the cache")
            };
            let before = owners[frame.0 as usize].replace(page);
            let is_held =
                |other: &u64| resident.get(other).is_some_and(|held| held.frame == frame.0);
            if let Some(other) = before.filter(|&other| other != page).filter(is_held) {
                evicted.push(other);
            }
            if resident.contains_key(&page) {
                // The machine had dropped the page, and reads it anew.
                evicted.push(page);
            }
            page += 1;
        });
        self.evict();
        let mut page = range.first;
        let resident = &mut self.resident;
        machine.request_buffers(request.id, |buffer| {
            if let Buffer::Frame(frame) = buffer {
                resident.insert(page, Resident { frame: frame.0, place: PagePresence::Filling });
                page += 1;
            }
        });
        self.make_present(range);
        let start = TransferStart {
            id: request.id,
            place: transfers::TransferFile::of(&self.target),
            op: Op::Read,
            offset: request.start * SECTOR_BYTES,
            bytes: u64::from(request.sectors) * SECTOR_BYTES,
        };
        let segment = libc::iovec {
            iov_base: self.shadow.address(range.first) as *mut _,
            iov_len: start.bytes as usize,
        };
        // SAFETY: pages of the shadow, which outlives the transfers. Nobody else
        // touches them while they are `Filling`.
        unsafe { self.transfers.start(start, range, |_, segments| segments.push(segment)) };
    }

    fn poll_completion(&mut self, _now: Time) -> Option<Completion> {
        let ended = self.transfers.next_ended()?;
        self.note_end(ended.kept, ended.completion.outcome);
        Some(ended.completion)
    }
}

impl Driver for Areas {
    /// Maps or poisons what was touched, or answers who asked, while the pages are pinned.
    fn done(&mut self, machine: &mut Machine, now: Time, done: Done) {
        let offset = machine.offset(done.read);
        match (done.tag, done.result) {
            (FAULT, Ok(_)) => self.map_around(machine, offset / PAGE_BYTES),
            (FAULT, Err(_)) => self.poison(offset / PAGE_BYTES),
            (slot, result) => {
                let asked = self.asked[slot as usize].take().expect("a command's slot is its own");
                let piece = result.and_then(|bytes| {
                    let copied = match asked.wants_bytes {
                        true => self.bytes(offset, bytes)?,
                        false => Vec::new(),
                    };
                    Ok(ReadPiece { bytes, copied })
                });
                // Who gave up waiting needs no answer.
                let _ = asked.reply.send(piece);
            }
        }
        machine.release(now, done.read);
    }
}

impl Serve for MappingServer {
    fn scope(&self) -> FaultScope {
        self.areas.uffd.scope()
    }

    fn run(&mut self) {
        let MappingServer { machine, areas } = self;
        loop {
            let span = machine.next_wake().map(|wake| areas.clock.until(wake));
            let woken = sleep(&areas.uffd, areas.inbox.bell(), span);
            areas.transfers.watched();
            // First, since who advises and then touches means it in that order.
            if woken.by_bell {
                areas.inbox.bell().quieten();
                while let Some(command) = areas.inbox.next() {
                    areas.handle_command(machine, command);
                }
                if areas.inbox.is_closed() {
                    return;
                }
            }
            // Some may have been told while a window was taken back for a command.
            if woken.by_faults || !areas.faults.is_empty() {
                areas.handle_faults(machine);
            }
            areas.exchange();
            while machine.turn(areas.clock.now(), areas) {
                areas.exchange();
            }
        }
    }
}
