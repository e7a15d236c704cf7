//! Serves the faults of a [`Mapping`](super::mapping::Mapping): one thread that drives the machine,
//! its transfers, and the userfaultfd.
//!
//! The *machine* is the state machine of the cache. It decides on reads, frames (memory for one
//! page each) and evictions. A *fault* is a touch of an absent page by the program. A page is
//! *poisoned* if a touch of it is a bus error. A *window* is a page range of a long run,
//! *delegated* while the kernel's own mapping of the file serves it.
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
//! 4. Pages [delegated](delegated_windows) to the kernel's own mapping are not in the user area,
//!    and no page is put there. Pages in flight or pinned at that time may stay in the shadow.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;

use readpath_core::machine::{Config, HandleId, Machine, ReadAccess, ReadError, Transfer};
use readpath_core::policy::Spec;
use readpath_core::readahead::{Advice, ReadaheadLimits};
use readpath_core::request::{DeviceCaps, Outcome, ProcessId};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, Time};
use rustix::io::Errno;

use super::anonymous_area::{AnonymousArea, for_each_run};
use super::core_follower::CoreFollower;
use super::error::PagerError;
use super::page_map::PageMap;
use super::page_ranges::PageRanges;
use super::pager_link::{Inbox, PagerServer};
use super::stats::MappingStats;
use super::uffd::{FaultScope, RangeRegistration, Uffd, UserFault};
use super::wait::sleep;
use crate::backend::{BackendKind, Sleep};
use crate::os::clock::Clock;
use crate::os::sync::SyncSender;
use crate::target::Target;
use crate::transfers::Transfers;

mod delegated_windows;
mod dropped_pages;
mod fault_around;
mod machine_calls;

use delegated_windows::DelegatedWindows;

/// Largest piece of a [`MappingCommand::Read`] in bytes, because its answer is allocated.
const READ_PIECE_BYTES_MAX: u64 = 1 << 20;
/// Largest number of zero bytes that one call puts into the shadow.
const ZERO_BYTES: usize = 1 << 18;
/// Tag of a fault. Other reads have their slot in `owner_reads`.
const FAULT_TAG: u64 = u64::MAX;
/// The only process of this machine.
const PROCESS: ProcessId = ProcessId(0);

/// Range of the file, in bytes.
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
    pub copy: Vec<u8>,
}

/// Commands of the owner to the thread.
#[derive(Debug)]
pub(super) enum MappingCommand {
    /// Gives advice.
    Advise { advice: Advice, range: PageRange },
    /// Reads a first piece of the range, as long as the server permits. The caller asks for the
    /// rest by further commands.
    Read { range: ByteRange, wants_bytes: bool, reply: SyncSender<Result<ReadPiece, ReadError>> },
    /// Returns the counters.
    Statistics { reply: SyncSender<MappingStats> },
}

/// Parameters of a server.
#[derive(Debug)]
pub(super) struct MappingSetup {
    pub target: Target,
    /// Memory that the program sees.
    pub user_area: Arc<AnonymousArea>,
    /// Memory that the device fills, as long as `user_area`.
    pub shadow_area: AnonymousArea,
    /// Memory for pages of the file: the machine's frames.
    pub memory_bytes: u64,
    pub readahead: Spec,
    /// Largest readahead window, for policies that do not measure the device.
    pub window_bytes_max: u64,
    pub backend: BackendKind,
    /// `None` if long runs are never delegated to the kernel's own mapping. Otherwise true if their
    /// page cache is dropped behind the run.
    pub delegated_windows_drop_behind: Option<bool>,
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

/// A page in one of the areas.
#[derive(Clone, Copy, Debug)]
struct Resident {
    /// The machine's frame of the page.
    frame: u32,
    presence: PagePresence,
}

/// A read for the owner that waits for the device.
#[derive(Debug)]
struct OwnerRead {
    /// True for a copy of the bytes; false if the pages only have to be in memory.
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
    /// Reports touches of absent pages of `user`, and the moves that take windows back (mremap(2)).
    uffd: Arc<Uffd>,
    /// Memory that the program sees.
    user: Arc<AnonymousArea>,
    /// Makes a touch of an absent page of `shadow` an error.
    shadow_uffd: Uffd,
    /// Memory that the device fills.
    shadow: AnonymousArea,
    /// Source of the zero pages that are put into the shadow before a transfer.
    zeros: Vec<u8>,
    /// The machine's handle of the file.
    handle: HandleId,
    /// Length of the file.
    file_bytes: u64,
    /// Largest piece of a read for the owner: a quarter of the memory, within limits.
    piece_bytes_max: u64,
    /// Page that each frame got last. It may have left, or be in another frame. `None` if dropped.
    frame_pages: Vec<Option<u64>>,
    /// Pages in the areas, by page number.
    resident: PageMap<Resident>,
    /// Pages that the program finds mapped: those in the user area, and delegated ones.
    mapped_ranges: PageRanges,
    delegated_windows: DelegatedWindows,
    /// Pages on which a touch is a bus error.
    poisoned: BTreeSet<u64>,
    /// By the tag of the machine's read; `None` for a free tag.
    owner_reads: Vec<Option<OwnerRead>>,
    /// Keeps this thread on the core of the faulting threads.
    follower: CoreFollower,
    statistics: MappingStats,
    clock: Clock,
    inbox: Arc<Inbox<MappingCommand>>,
    /// Faults that were read and not handled yet.
    pending_faults: Vec<UserFault>,
    /// Pages that the next `evict` evicts. Empty outside the functions that fill it.
    page_scratch: Vec<u64>,
}

impl MappingServer {
    /// Builds the server on the thread that will run it.
    ///
    /// # Errors
    /// A policy is unknown, the file exceeds its device, or a service of the system is missing.
    pub(super) fn new(
        setup: MappingSetup,
        inbox: Arc<Inbox<MappingCommand>>,
    ) -> Result<MappingServer, PagerError> {
        let MappingSetup { target, user_area: user, shadow_area: shadow, memory_bytes, .. } = setup;
        let MappingSetup { readahead, window_bytes_max, backend, .. } = setup;
        let drops_cache_behind = setup.delegated_windows_drop_behind;
        let (caps, file_bytes) = (target.caps(), target.bytes());
        let config = machine_config(caps, memory_bytes, readahead, window_bytes_max);
        let mut machine = Machine::new(config).map_err(PagerError::Config)?;
        // The file is the only one of its machine.
        let start_sector = 0;
        let file = machine.add_file(file_bytes, start_sector).map_err(PagerError::Beyond)?;
        let handle = machine.open(file);
        let uffd = Uffd::open_reporting_remaps().map_err(PagerError::Uffd)?;
        user.register(&uffd, RangeRegistration::Missing)?;
        let shadow_uffd = Uffd::open_without_reports().map_err(PagerError::Uffd)?;
        shadow.register(&shadow_uffd, RangeRegistration::Missing)?;
        let frames = (memory_bytes / PAGE_BYTES) as usize;
        // The hash table `resident` has at most 16/7 slots per entry, each one byte longer.
        let frame_bytes = size_of::<Option<u64>>() + 3 * size_of::<(u64, Resident)>();
        AnonymousArea::check_tables([(frames as u64, frame_bytes), (1, ZERO_BYTES)])?;
        let clock = Clock::start();
        let built = backend.build_with_event_fd(caps.depth_max, inbox.event_fd().as_fd());
        let (built, _backend_in_use) = built.map_err(PagerError::Backend)?;
        let delegated_windows = match drops_cache_behind {
            Some(drops_behind) => {
                DelegatedWindows::for_mapping(&target, frames as u64, drops_behind)
            }
            None => DelegatedWindows::disabled(),
        };
        let areas = Areas {
            transfers: Transfers::with_backend(built, caps.depth_max, clock),
            target,
            uffd: Arc::new(uffd),
            user,
            shadow_uffd,
            shadow,
            zeros: vec![0; ZERO_BYTES],
            handle,
            file_bytes,
            piece_bytes_max: (memory_bytes / 4).clamp(PAGE_BYTES, READ_PIECE_BYTES_MAX),
            frame_pages: vec![None; frames],
            resident: PageMap::with_capacity_and_hasher(frames, Default::default()),
            mapped_ranges: PageRanges::default(),
            delegated_windows,
            poisoned: BTreeSet::new(),
            owner_reads: Vec::new(),
            follower: CoreFollower::default(),
            statistics: MappingStats::default(),
            clock,
            inbox,
            pending_faults: Vec::new(),
            page_scratch: Vec::new(),
        };
        Ok(MappingServer { machine, areas })
    }
}

/// Returns the configuration of the machine of a mapping.
fn machine_config(
    caps: DeviceCaps,
    memory_bytes: u64,
    readahead: Spec,
    window_bytes_max: u64,
) -> Config {
    let limits = ReadaheadLimits {
        window_pages_max: window_bytes_max / PAGE_BYTES,
        request_pages_max: u64::from(caps.request_sectors_max) / PAGE_SECTORS,
    };
    Config {
        memory_bytes,
        readahead,
        // The machine learns only of the first touch of a page, so no eviction policy can
        // measure its hits. Pages that were read together are best evicted together. With
        // `adaptive`, slices of a file four times as large as its memory were read at 131 MiB/s
        // instead of 295, with no fewer bytes read.
        eviction: Spec::plain("two-lists"),
        limits,
        // No fault is rejected because of other faults in progress.
        open_reads_max: u32::MAX,
        ..Config::new(caps)
    }
}

impl Areas {
    /// Present time of the server's clock.
    fn now(&self) -> Time {
        self.clock.now()
    }

    /// Reads the pending faults and handles each one. Takes back windows beyond the budget, and
    /// handles the faults that are read meanwhile.
    fn handle_faults(&mut self, machine: &mut Machine) {
        let mut faults = std::mem::take(&mut self.pending_faults);
        // Reading the messages also lets waiting memory moves continue.
        self.uffd.take_faults(&mut faults).expect("a userfaultfd can be read while it is open");
        while !faults.is_empty() {
            for fault in faults.drain(..) {
                self.handle_fault(machine, fault);
            }
            self.take_back_surplus();
            faults.append(&mut self.pending_faults);
        }
        self.pending_faults = faults;
    }

    /// Maps, reads or restores the faulting page, delegates its window, or poisons it. For a page
    /// in place, only wakes its threads. A page that must be read is mapped at the end of the read.
    fn handle_fault(&mut self, machine: &mut Machine, fault: UserFault) {
        self.statistics.faults += 1;
        self.follower.on_fault(fault.thread);
        let Some(page) = self.user.page_at(fault.address) else {
            // The program has enlarged the mapping (mremap(2)), and there are no bytes. SAFETY: the
            // address is in a registered range that this server does not fill. An error means that
            // another fault has poisoned the page before.
            let _ = unsafe { self.uffd.poison(fault.address, PAGE_BYTES as usize) };
            return;
        };
        if self.has_presence(page, PagePresence::User) && !self.user.is_present(page) {
            // The program has dropped the page (madvise(2)). Unless pinned, it leaves the machine.
            self.advise(machine, Advice::DontNeed, PageRange::new(page, 1));
        }
        if self.has_presence(page, PagePresence::User) {
            // The page came in after the fault, or was dropped while another read has it pinned.
            match self.restore_dropped_page(page) {
                Ok(()) => self.wake(page),
                // The page cannot be read again.
                Err(_) => self.poison(page),
            }
        } else if self.delegated_windows.is_kernel_served(page) {
            // Its window was delegated after the fault.
            self.wake(page);
        } else if !self.delegate_window(machine, page) {
            self.statistics.faults_read +=
                u64::from(!self.has_presence(page, PagePresence::Shadow));
            // The kernel does not serve the page, so it is read. One byte suffices: the machine
            // reads whole pages. The tag of the ended read leads to the mapping of the page.
            let range = ByteRange { offset: page * PAGE_BYTES, bytes: 1 };
            self.read(machine, ReadAccess::Fault, range, FAULT_TAG)
                .expect("a page fits, and reads have no limit");
        }
    }

    /// Executes a command of the owner. A read that has to wait is answered later.
    fn handle_command(&mut self, machine: &mut Machine, command: MappingCommand) {
        match command {
            MappingCommand::Advise { advice, range } => self.advise(machine, advice, range),
            MappingCommand::Read { range, wants_bytes, reply } => {
                // Cut at a page boundary, less than a page before the limit, as the next piece.
                let end = range.offset + self.piece_bytes_max;
                let bytes = range.bytes.min(end - end % PAGE_BYTES - range.offset);
                let slot = self
                    .owner_reads
                    .iter()
                    .position(Option::is_none)
                    .unwrap_or(self.owner_reads.len());
                if slot == self.owner_reads.len() {
                    self.owner_reads.push(None);
                }
                let owner_read = OwnerRead { wants_bytes, reply };
                let range = ByteRange { bytes, ..range };
                match self.read(machine, ReadAccess::Buffered, range, slot as u64) {
                    Ok(()) => self.owner_reads[slot] = Some(owner_read),
                    // A caller that no longer waits needs no answer.
                    Err(error) => drop(owner_read.reply.send(Err(error))),
                }
            }
            MappingCommand::Statistics { reply } => {
                let meter = machine.meter();
                let _ = reply.send(MappingStats {
                    resident_pages: self.resident.len() as u64,
                    device_reads: meter.device_reads,
                    device_read_bytes: meter.device_read_bytes,
                    ..self.statistics
                });
            }
        }
    }

    /// Passes advice about a range to the machine. `DontNeed` also takes windows in the range back
    /// and releases its pages. `WillNeed` counts its cached pages as used.
    fn advise(&mut self, machine: &mut Machine, advice: Advice, range: PageRange) {
        machine.advise(self.now(), self.handle, PROCESS, advice, range);
        match advice {
            Advice::DontNeed => {
                self.take_back_range(range);
                self.drop_range(machine, range);
            }
            // The program will use these pages for certain. They must not count as prefetched
            // pages without a use, which would limit further prefetches.
            Advice::WillNeed => machine.mapped(self.handle, range),
            // Other advice concerns the policy alone.
            _ => {}
        }
    }

    /// Starts a read in the machine, which returns it with `tag` when it has ended. `tag` is
    /// [`FAULT_TAG`] or the slot of a command in `owner_reads`, so the read's id is not kept.
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
        // After an error no transfer would complete any more, and threads would wait forever.
        self.transfers.exchange(Sleep::Never).expect("the backend exchanges requests for answers");
    }

    /// Puts zero pages into the shadow for a transfer to fill, without write protection. Pages
    /// that are already there stay.
    fn make_present(&self, range: PageRange) {
        let mut address = self.shadow.address(range.first);
        let end = address + (range.count() * PAGE_BYTES) as usize;
        let zeros = self.zeros.as_ptr() as usize;
        let is_protected = false;
        while address < end {
            let bytes = (end - address).min(ZERO_BYTES);
            // SAFETY: this server owns the zeros. No thread reads these pages of the shadow.
            match unsafe { self.shadow_uffd.copy(address, zeros, bytes, is_protected) } {
                Ok(()) => address += bytes,
                // An earlier, abandoned transfer of the page is still in progress.
                Err(error) if error.errno == Errno::EXIST => {
                    address += error.bytes_done + PAGE_BYTES as usize;
                }
                Err(error) => panic!("pages {range:?} of the shadow take no zeros: {error}"),
            }
        }
    }

    /// Evicts the pages of `self.page_scratch` from the area that has them: releases their memory,
    /// and empties the list.
    fn evict(&mut self) {
        let (mut shadow_pages, mut user_pages) = (Vec::new(), Vec::new());
        for page in self.page_scratch.drain(..) {
            match self.resident.remove(&page).map(|resident_page| resident_page.presence) {
                Some(PagePresence::User) => user_pages.push(page),
                Some(PagePresence::Shadow | PagePresence::Filling) => shadow_pages.push(page),
                // Listed twice: read again in one request with a page that takes its frame.
                None => {}
            }
        }
        self.statistics.evicted_pages += (user_pages.len() + shadow_pages.len()) as u64;
        // SAFETY: pages of the user area are filled with the same bytes on the next touch. There
        // are no references into the shadow.
        unsafe {
            for_each_run(&mut user_pages, |run| {
                self.user.release(run);
                self.mapped_ranges.remove(run);
            });
            for_each_run(&mut shadow_pages, |run| self.shadow.release(run));
        }
    }

    /// Releases the pages of a range that the machine no longer caches, and removes the poison of
    /// the range.
    fn drop_range(&mut self, machine: &Machine, range: PageRange) {
        let is_dropped = |page: &u64| !machine.is_cached(self.handle, *page);
        let is_dropped_page = |page: &u64| range.contains(*page) && is_dropped(page);
        // The smaller set is searched: the range, or the resident pages.
        match range.count() < self.resident.len() as u64 {
            true => {
                let resident_pages = range.pages().filter(|page| self.resident.contains_key(page));
                self.page_scratch.extend(resident_pages.filter(is_dropped));
            }
            false => {
                self.page_scratch.extend(self.resident.keys().copied().filter(is_dropped_page))
            }
        }
        for &page in &self.page_scratch {
            if let Some(resident_page) = self.resident.get(&page) {
                self.frame_pages[resident_page.frame as usize] = None;
            }
        }
        self.evict();
        let mut formerly_poisoned: Vec<u64> =
            self.poisoned.range(range.first..range.end).copied().collect();
        self.poisoned.retain(|page| !range.contains(*page));
        // SAFETY: poisoned pages have no bytes.
        for_each_run(&mut formerly_poisoned, |run| unsafe { self.user.release(run) });
    }

    /// Records the end of the transfer that filled these pages. Pages with the file's bytes become
    /// available in the shadow, and the others are evicted.
    fn on_transfer_end(&mut self, range: PageRange, outcome: Outcome) {
        // Offset in the file up to which the transfer has delivered bytes.
        let valid_end = match outcome {
            Outcome::Done => range.end * PAGE_BYTES,
            Outcome::Short { bytes } => range.first * PAGE_BYTES + bytes,
            Outcome::Failed(_) => 0,
        };
        for page in range.pages() {
            // The last page of a file is complete with only its part of the file.
            if valid_end >= ((page + 1) * PAGE_BYTES).min(self.file_bytes) {
                if let Some(resident_page) = self.resident.get_mut(&page) {
                    resident_page.presence = PagePresence::Shadow;
                }
            } else {
                self.page_scratch.push(page);
            }
        }
        self.evict();
    }

    /// Copies `bytes` bytes of a completed read from `offset` on, from either area. Pages that the
    /// program has dropped itself are read again. Fails if such a page cannot be read.
    fn copy_completed(&mut self, offset: u64, bytes: u64) -> Result<Vec<u8>, ReadError> {
        let mut copied = Vec::with_capacity(bytes as usize);
        for page in PageRange::covering(offset, bytes).pages() {
            self.restore_dropped_page(page)?;
            let area = match self.resident[&page].presence {
                PagePresence::User => &*self.user,
                PagePresence::Shadow => &self.shadow,
                PagePresence::Filling => unreachable!("a completed read has waited for its pages"),
            };
            let start = offset.max(page * PAGE_BYTES) - page * PAGE_BYTES;
            let end = (offset + bytes).min((page + 1) * PAGE_BYTES) - page * PAGE_BYTES;
            // SAFETY: the page is present there and pinned, and only this thread removes pages. The
            // exception is a program that drops the page at this very moment.
            copied
                .extend_from_slice(unsafe { &area.page_bytes(page)[start as usize..end as usize] });
        }
        Ok(copied)
    }

    /// Makes each touch of the absent page a bus error, unless the kernel serves it. Wakes the
    /// threads that wait for the page.
    fn poison(&mut self, page: u64) {
        if self.delegated_windows.is_kernel_served(page) {
            // The kernel detects the error itself.
            return self.wake(page);
        }
        self.statistics.poisoned_pages += u64::from(self.poisoned.insert(page));
        // SAFETY: the page is absent.
        match unsafe { self.uffd.poison(self.user.address(page), PAGE_BYTES as usize) } {
            // The call itself wakes the threads.
            Ok(()) => {}
            // An earlier fault of another thread has poisoned the page.
            Err(error) if error.errno == Errno::EXIST => self.wake(page),
            Err(error) => panic!("page {page} can't be poisoned: {error}"),
        }
    }

    /// Wakes the threads that wait for a page, so that they try again.
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

impl PagerServer for MappingServer {
    /// Accesses whose faults are served.
    fn scope(&self) -> FaultScope {
        self.areas.uffd.scope()
    }

    /// Main loop: handles commands and faults, and steps the machine while it has work.
    fn run(&mut self) {
        let MappingServer { machine, areas } = self;
        loop {
            let timeout = machine.next_wake().map(|wake| areas.clock.until(wake));
            let woken = sleep(&areas.uffd, areas.inbox.event_fd(), timeout);
            // Answers found next count as just arrived.
            areas.transfers.record_wait();
            // Commands come first: a program that advises and then touches expects that order.
            if woken.by_event_fd {
                areas.inbox.event_fd().clear();
                while let Some(command) = areas.inbox.next() {
                    areas.handle_command(machine, command);
                }
                if areas.inbox.is_closed() {
                    return;
                }
            }
            // Some faults may have been read while a command took a window back.
            if woken.by_faults || !areas.pending_faults.is_empty() {
                areas.handle_faults(machine);
            }
            areas.exchange();
            while machine.step(areas.clock.now(), areas) {
                areas.exchange();
            }
        }
    }
}
