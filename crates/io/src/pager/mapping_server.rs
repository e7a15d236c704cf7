//! Serves the faults of a [`Mapping`](super::mapping::Mapping): one thread that drives the machine,
//! its transfers, and the userfaultfd.
//!
//! There are two address ranges, each as long as the file. The program sees the *user area*. The
//! device's bytes arrive in the *shadow*, each page at the same position as in the user area. On a
//! touch, a page is moved from the shadow to the user area, not copied. Pages that are adjacent in
//! the file are adjacent in both, so a request is one piece of memory, and a window is one move.
//!
//! Only this thread uses the shadow, so its userfaultfd rejects touches of absent pages. The kernel
//! can then not fill it when the program locks all its memory. For this reason, a transfer's pages
//! are put into the shadow before the transfer starts.
//!
//! Invariants:
//! 1. A page is present in at most one of the areas, and [`Areas::resident`] says in which. The
//!    entry names the machine's frame of the page, so no more pages are present than the budget has
//!    frames. (If a transfer still uses its pages, they are copied, and are present twice until the
//!    end of that call.)
//! 2. The user area contains only pages of successful transfers.
//! 3. This thread accesses the user area only at pages that are present and pinned. Otherwise it
//!    would wait for itself.
//! 4. Pages [delegated](lent) to the kernel's own mapping are in neither area, and no page is put
//!    there.

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

use super::anonymous_area::{AnonymousArea, for_each_run};
use super::core_follower::Follower;
use super::error::PagerError;
use super::mapping::MappingStatistics;
use super::page_map::PageMap;
use super::page_ranges::PageRanges;
use super::pager_link::{Inbox, Serve};
use super::uffd::{FaultScope, RangeRegistration, Uffd, UserFault};
use super::wait::sleep;
use crate::backend::{BackendKind, Sleep};
use crate::clock::Clock;
use crate::sync::SyncSender;
use crate::target::Target;
use crate::transfers::{self, TransferStart, Transfers};

mod delegated_windows;
mod dropped_pages;
mod fault_around;

use delegated_windows::Lending;

/// Largest piece of a [`MappingCommand::Read`] in bytes, because its answer is allocated.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// Largest number of zero bytes that one call puts into the shadow.
const ZERO_BYTES: usize = 1 << 18;
/// Tag of a fault. Other reads have the number of their command.
const FAULT: u64 = u64::MAX;
/// The only process of this machine.
const PROCESS: ProcessId = ProcessId(0);

#[derive(Clone, Copy, Debug)]
pub(super) struct ByteRange {
    pub offset: u64,
    pub bytes: u64,
}

/// Result of one piece of a [`MappingCommand::Read`].
#[derive(Debug)]
pub(super) struct ReadPiece {
    /// Number of bytes read, at least one.
    pub bytes: u64,
    /// The bytes, if they were requested.
    pub copied: Vec<u8>,
}

/// Commands of the owner to the thread.
#[derive(Debug)]
pub(super) enum MappingCommand {
    /// Gives advice.
    Advise { advice: Advice, range: PageRange },
    /// Reads a first piece of the range.
    Read { range: ByteRange, wants_bytes: bool, reply: SyncSender<Result<ReadPiece, ReadError>> },
    /// Returns the counters.
    Statistics { reply: SyncSender<MappingStatistics> },
}

/// Parameters of a server.
#[derive(Debug)]
pub(super) struct MappingSetup {
    pub target: Target,
    pub user: Arc<AnonymousArea>,
    pub shadow: AnonymousArea,
    pub memory_bytes: u64,
    pub readahead: Spec,
    pub window_bytes_max: u64,
    pub backend: BackendKind,
    /// `None` if long runs are never delegated to the kernel's own mapping. Otherwise true if their
    /// page cache is dropped behind the run.
    pub lends: Option<bool>,
}

/// Location of a resident page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PagePresence {
    /// In the shadow, while a transfer fills it: from the start of a request to its end.
    Filling,
    /// In the shadow, with the file's bytes: from the successful end of a request until the page is
    /// mapped or evicted.
    Shadow,
    /// In the user area: from mapping to eviction.
    User,
}

#[derive(Clone, Copy, Debug)]
struct Resident {
    frame: u32,
    place: PagePresence,
}

/// A read for the owner that waits for the device.
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

/// Both areas and the server's other state, except the machine.
struct Areas {
    // Dropped first: this cancels transfers into the shadow.
    transfers: Transfers<PageRange>,
    target: Target,
    uffd: Arc<Uffd>,
    user: Arc<AnonymousArea>,
    shadow_uffd: Uffd,
    shadow: AnonymousArea,
    /// Source of the zero pages that are put into the shadow before a transfer.
    zeros: Vec<u8>,
    handle: HandleId,
    file_bytes: u64,
    piece_bytes_max: u64,
    /// Page of each frame of the machine.
    owners: Vec<Option<u64>>,
    resident: PageMap<Resident>,
    /// Mapped pages, including pages that the kernel maps.
    runs: PageRanges,
    lending: Lending,
    poisoned: BTreeSet<u64>,
    asked: Vec<Option<OwnerRead>>,
    follower: Follower,
    statistics: MappingStatistics,
    clock: Clock,
    inbox: Arc<Inbox<MappingCommand>>,
    /// Faults that were read and not handled yet.
    faults: Vec<UserFault>,
    /// Reusable list of pages.
    pages: Vec<u64>,
}

impl MappingServer {
    /// Builds the server on the thread that will run it.
    ///
    /// # Errors
    /// As for [`MappingBuilder::open`](super::mapping::MappingBuilder::open).
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
            // The machine learns only of the first touch of a page, so no eviction policy can
            // measure its hits. Pages that were read together are best evicted together. With
            // `adaptive`, slices of a file four times as large as its memory were read at 131 MiB/s
            // instead of 295, with no fewer bytes read.
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
        // Reading the messages also lets waiting memory moves continue.
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

    /// Maps the faulting page, reads it, or delegates its window to the kernel.
    fn handle_fault(&mut self, machine: &mut Machine, fault: UserFault) {
        self.statistics.faults += 1;
        self.follower.serve(fault.thread);
        let Some(page) = self.user.page(fault.address) else {
            // The program has enlarged the mapping (mremap(2)), and there are no bytes. SAFETY: the
            // address is in a registered range that this server does not fill. An error means that
            // another fault has poisoned the page before.
            let _ = unsafe { self.uffd.poison(fault.address, PAGE_BYTES as usize) };
            return;
        };
        if self.is_at(page, PagePresence::User) && !self.user.is_present(page) {
            // The program has dropped the page itself (madvise(2)).
            self.advise(machine, Advice::DontNeed, PageRange::new(page, 1));
        }
        if self.is_at(page, PagePresence::User) {
            // The page came in after the fault. Or the program dropped it while another read has it
            // pinned.
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
                // Ends at a page boundary, where the next piece starts.
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
                    // A caller that no longer waits needs no answer.
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
            // The advice announces the use of the pages, so their touches carry no information.
            Advice::WillNeed => machine.mapped(self.handle, range),
            _ => {}
        }
    }

    /// Starts a read in the machine. `tag` is [`FAULT`] or the slot of a command.
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

    /// Submits started transfers and takes in completed ones, without sleeping.
    fn exchange(&mut self) {
        // An error of the exchange itself has never been observed. No transfer would complete any
        // more, and threads would wait forever.
        self.transfers.exchange(Sleep::Never).expect("the backend exchanges requests for answers");
    }

    /// Puts pages into the shadow for a transfer to fill.
    fn make_present(&self, range: PageRange) {
        let mut at = self.shadow.address(range.first);
        let end = at + (range.count() * PAGE_BYTES) as usize;
        while at < end {
            let bytes = (end - at).min(ZERO_BYTES);
            // SAFETY: this server owns the zeros. No thread reads these pages of the shadow.
            match unsafe { self.shadow_uffd.copy(at, self.zeros.as_ptr() as usize, bytes, false) } {
                Ok(()) => at += bytes,
                // An earlier, abandoned transfer of the page is still in progress.
                Err(error) if error.errno == Errno::EXIST => {
                    at += error.bytes_done + PAGE_BYTES as usize;
                }
                Err(error) => panic!("pages {range:?} of the shadow take no zeros: {error}"),
            }
        }
    }

    /// Evicts the pages of `self.pages`.
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
        // SAFETY: pages of the user area are filled with the same bytes on the next touch. There
        // are no references into the shadow.
        unsafe {
            for_each_run(&mut user, |run| {
                self.user.release(run);
                self.runs.remove(run);
            });
            for_each_run(&mut shadow, |run| self.shadow.release(run));
        }
    }

    /// Releases the pages of a range that the machine has dropped, and removes poison.
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
        // SAFETY: poisoned pages have no bytes.
        for_each_run(&mut cured, |run| unsafe { self.user.release(run) });
    }

    /// Records the end of a transfer of these pages.
    fn note_end(&mut self, range: PageRange, outcome: Outcome) {
        let good_end = match outcome {
            Outcome::Done => range.end * PAGE_BYTES,
            Outcome::Short { bytes } => range.first * PAGE_BYTES + bytes,
            Outcome::Failed(_) => 0,
        };
        for page in range.pages() {
            // The last page of a file is complete with only its part of the file.
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

    /// Copies the bytes of a completed read from either area.
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
            // SAFETY: the page is present there and pinned, and only this thread removes pages. The
            // exception is a program that drops the page at this very moment.
            copied.extend_from_slice(unsafe { &area.bytes_of(page)[start as usize..end as usize] });
        }
        Ok(copied)
    }

    /// Makes each touch of an absent page a bus error.
    fn poison(&mut self, page: u64) {
        if self.lending.has(page) {
            // The kernel detects the error itself.
            return self.wake(page);
        }
        self.statistics.poisoned_pages += u64::from(self.poisoned.insert(page));
        // SAFETY: the page is absent.
        match unsafe { self.uffd.poison(self.user.address(page), PAGE_BYTES as usize) } {
            Ok(()) => {}
            // An earlier fault of another thread has poisoned the page.
            Err(error) if error.errno == Errno::EXIST => self.wake(page),
            Err(error) => panic!("page {page} can't be poisoned: {error}"),
        }
    }

    fn wake(&self, page: u64) {
        self.wake_all(PageRange::new(page, 1));
    }

    /// Wakes the threads that wait for one of these pages, so that they try again.
    fn wake_all(&self, range: PageRange) {
        let bytes = (range.count() * PAGE_BYTES) as usize;
        let woken = self.uffd.wake(self.user.address(range.first), bytes);
        woken.expect("pages of an area can be waited for");
    }
}

impl IoBackend for Areas {
    /// Starts the transfer. Other pages that the request's frames contained have been dropped by
    /// the machine and are evicted here.
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
                // The machine had dropped the page and reads it again.
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
        // SAFETY: pages of the shadow, which outlives the transfers. No other thread accesses them
        // while they are `Filling`.
        unsafe { self.transfers.start(start, range, |_, segments| segments.push(segment)) };
    }

    fn poll_completion(&mut self, _now: Time) -> Option<Completion> {
        let ended = self.transfers.next_ended()?;
        self.note_end(ended.kept, ended.completion.outcome);
        Some(ended.completion)
    }
}

impl Driver for Areas {
    /// Maps or poisons the touched page, or answers the command, while the pages are pinned.
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
            // Commands come first: a program that advises and then touches expects that order.
            if woken.by_bell {
                areas.inbox.bell().quieten();
                while let Some(command) = areas.inbox.next() {
                    areas.handle_command(machine, command);
                }
                if areas.inbox.is_closed() {
                    return;
                }
            }
            // Some faults may have been read while a command took a window back.
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
