//! Advice: prefetches a recorded program's next reads into the kernel page cache.
//!
//! The kernel's events report the program's reads and faults. One readahead policy per file with
//! missing pages sees these accesses. Its targets are prefetched by `readahead(2)`
//! (`advise/hand.rs`), like the rest of a large read in progress and the rest of a file that is
//! used up in pieces (`advise/used_up.rs`). The program still reads from the kernel. The worst
//! result is a wasted read.
//!
//! Invariants:
//! 1. Pages prefetched and not yet used (`advise/ledger.rs`) never exceed the budget. With a full
//!    budget the oldest pages are evicted, if they are two seconds old.
//! 2. Each prefetched page takes credit, and its use returns credit (`advise/worth.rs`).
//! 3. A file without missing pages costs one table lookup per read.

use std::collections::{BTreeMap, HashMap};

use readpath_core::readahead::{
    AdaptiveReadahead, DeviceEvidence, KernelCachedPages, KernelPageView, PageView, ReadRequest,
    ReadaheadLimits, ReadaheadPolicy,
};
use readpath_core::request::RequestId;
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};
use readpath_trace::recording::Record;

use super::event::{Inode, TraceEvent, What};
use super::follow::Places;
use super::names::FileNames;

mod hand;
mod ledger;
mod touches;
mod used_up;
mod worth;

use hand::{Hand, is_large};
use ledger::{Ledger, Standing};
use touches::{Known, PageTouch, Touches};
use used_up::UsedUp;
use worth::{Now, Why, Worth};

pub use worth::{Vain, Waits};

/// Age in nanoseconds at which an unused page counts as waste and may be evicted.
const STALE_NS: u64 = 2_000_000_000;

/// Interval in nanoseconds between verdicts on the advice, and between resident page counts.
const CHECK_NS: u64 = 250_000_000;

/// Time in nanoseconds of immediate event processing after a useful prefetch (else every 10 ms).
const AWAKE_NS: u64 = 100_000_000;

/// Age in nanoseconds up to which a task's last miss counts as a wait in progress.
const WAITING_NS: u64 = 5_000_000;

/// Maximum number of open files. Files without recent reads are closed first.
const FILES_MAX: usize = 512;

const COUNTED_MAX: usize = 1024;

/// Result of the advice for a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Help {
    /// Bytes prefetched into the kernel page cache.
    pub brought_bytes: u64,
    /// Prefetched bytes that the program used.
    pub used_bytes: u64,
    /// Maximum of the bytes prefetched and not yet used.
    pub standing_bytes_max: u64,
    /// Maximum of the resident pages in bytes (`cachestat(2)`, a few times a second).
    pub counted_bytes_max: u64,
    /// Number of files with prefetched pages.
    pub files: u64,
    /// Waits of the program while prefetching was off.
    pub without: Waits,
    /// Waits of the program while prefetching was off.
    pub with: Waits,
    /// Number of pauses after a verdict against the advice.
    pub rests: u64,
    /// True if prefetching was stopped for good.
    pub is_stopped: bool,
    /// Reason of the last pause or stop, or of exhausted credit. `None` if the advice paid.
    pub vain: Option<Vain>,
}

/// Prefetcher for the recorded programs.
#[derive(Debug)]
pub(super) struct Advisor {
    budget_pages: u64,
    touches: Touches,
    ledger: Ledger,
    worth: Worth,
    files: HashMap<Inode, AdvisedFile>,
    /// Inode of each file by its number in the ledger.
    inodes: HashMap<u32, Inode>,
    numbers: u32,
    devices: BTreeMap<u64, AdvisedDevice>,
    /// Last requested range of each task, perhaps not yet complete.
    asked: HashMap<u32, RequestedRange>,
    /// Time of each task's last miss.
    missed_ns: HashMap<u32, u64>,
    /// Disk and inode number of a file by its number in the recording.
    recorded: HashMap<u32, (u64, u64)>,
    /// Files with missing pages. True if the device reports requests, false for waits only.
    missing: HashMap<(u64, u64), bool>,
    checked_ns: u64,
    awake_until_ns: u64,
    /// True if the last call of `go_on` found prefetching on.
    has_advised: bool,
    help: Help,
}

#[derive(Debug)]
struct AdvisedFile {
    number: u32,
    disk: u64,
    /// `None` for a file that is too small or cannot be opened.
    hand: Option<Hand>,
    policy: AdaptiveReadahead,
    advised: KernelCachedPages,
    used_up: UsedUp,
    seen_ns: u64,
    is_helped: bool,
}

#[derive(Clone, Copy, Debug)]
struct RequestedRange {
    inode: Inode,
    range: PageRange,
    is_brought: bool,
}

/// `None` for a file that is too small or cannot be opened.
#[derive(Debug, Default)]
struct AdvisedDevice {
    evidence: DeviceEvidence,
    under_way: BTreeMap<u64, RequestId>,
    free: Vec<RequestId>,
    /// End of the last read used for the estimate, on a device without request events.
    learned_ns: u64,
}

impl Advisor {
    /// Creates an advisor whose prefetched and unused bytes never exceed `budget_bytes`.
    pub fn new(budget_bytes: u64) -> Advisor {
        let budget_pages = budget_bytes / PAGE_BYTES;
        Advisor {
            budget_pages,
            touches: Touches::default(),
            ledger: Ledger::default(),
            worth: Worth::new(budget_pages),
            files: HashMap::new(),
            inodes: HashMap::new(),
            numbers: 0,
            devices: BTreeMap::new(),
            asked: HashMap::new(),
            missed_ns: HashMap::new(),
            recorded: HashMap::new(),
            missing: HashMap::new(),
            checked_ns: 0,
            awake_until_ns: 0,
            has_advised: false,
            help: Help::default(),
        }
    }

    /// True while each event is needed at once. On few processors a wake-up slows the program.
    pub fn is_awake(&self, at_ns: u64) -> bool {
        at_ns < self.awake_until_ns
    }

    /// Processes new events of recorded tasks, in the order of their times.
    pub fn see(
        &mut self,
        events: &[TraceEvent],
        names: &mut impl FileNames,
        places: Places<'_>,
        at_ns: u64,
    ) {
        let mut all = Vec::new();
        self.touches.take(events, &mut Known { names, places }, |touch| all.push(touch));
        for touch in all {
            match touch {
                PageTouch::Comes { task, inode, range } => self.comes(task, inode, range, at_ns),
                PageTouch::Mapped { task, inode, range } => self.mapped(task, inode, range, at_ns),
                PageTouch::Missed { task, inode, .. } => self.missed(task, inode, names, at_ns),
            }
        }
        for event in events {
            if event.what == What::TaskEnds {
                self.missed_ns.remove(&event.task);
                self.passed(event.task, None, at_ns);
            }
        }
    }

    /// Continues the prefetch of files that are being used up.
    pub fn go_on(&mut self, at_ns: u64) {
        let had_advised = self.has_advised;
        self.has_advised = self.worth.now(at_ns) == Now::Advise;
        if !self.has_advised {
            return;
        }
        if !had_advised {
            self.awake_until_ns = at_ns + AWAKE_NS;
        }
        for inode in self.files.keys().copied().collect::<Vec<Inode>>() {
            self.sweep(inode, at_ns);
        }
    }

    /// Prefetches the next chunk of a file that is read as a whole, within the budgets.
    fn sweep(&mut self, inode: Inode, at_ns: u64) {
        loop {
            let room_pages = self.budget_pages.saturating_sub(self.ledger.pages());
            let credit_pages = self.worth.room_pages(Why::Sweep);
            let Some(file) = self.files.get_mut(&inode) else { return };
            let estimate = &self.devices.entry(file.disk).or_default().evidence.estimate;
            let chunk = file.used_up.chunk(estimate, (room_pages, credit_pages), at_ns);
            if file.used_up.is_held_back(credit_pages) {
                self.worth.refused();
            }
            let Some(chunk) = chunk else { return };
            let brought = self.bring(inode, chunk, Why::Sweep, at_ns);
            let Some(file) = self.files.get_mut(&inode).filter(|_| brought > 0) else { continue };
            let estimate = &self.devices.entry(file.disk).or_default().evidence.estimate;
            file.used_up.brought(brought, estimate, at_ns);
            self.awake_until_ns = at_ns + AWAKE_NS;
            return;
        }
    }

    /// Processes an event of any task: requests of a device, and evicted pages.
    pub fn hear(&mut self, event: &TraceEvent) {
        let at = Time(event.at_ns);
        match &event.what {
            What::Issue { device, sector, bytes, flags } if flags.contains('R') && *bytes > 0 => {
                if let Some(device) = self.devices.get_mut(device) {
                    device.issued(at, *sector);
                }
            }
            What::Complete { device, sector, sectors } => {
                if let Some(device) = self.devices.get_mut(device) {
                    device.completed(at, *sector, sectors * 512);
                }
            }
            What::Evict { inode, first, count } => {
                if let Some(file) = self.files.get_mut(inode) {
                    let range = PageRange::new(*first, *count);
                    let device = self.devices.entry(file.disk).or_default();
                    file.advised.forget(range, &mut device.evidence);
                    let gone = self.ledger.take_out(file.number, range);
                    self.worth.lost(gone);
                }
            }
            _ => {}
        }
    }

    /// Processes a record of the recording, for the program's waits.
    pub fn note(&mut self, record: &Record) {
        match record {
            Record::File(file) => {
                self.recorded.insert(file.file, (file.device, file.inode));
            }
            Record::Read(read) => {
                let Some(place) = self.recorded.get(&read.file) else { return };
                let Some(&has_requests) = self.missing.get(place) else { return };
                self.worth.read(read.waited_ns, read.got_bytes());
                let device = self.devices.get_mut(&place.0);
                if let Some(device) = device.filter(|_| !has_requests && read.waited_ns > 0) {
                    device.learn(read.begin_ns, read.end_ns, read.got_bytes());
                }
            }
            _ => {}
        }
    }

    /// Processes a record of the recording, for the program's waits.
    pub fn check(&mut self, at_ns: u64) {
        if at_ns < self.checked_ns + CHECK_NS {
            return;
        }
        self.checked_ns = at_ns;
        self.count();
        self.missed_ns.retain(|_, missed_ns| *missed_ns + STALE_NS > at_ns);
        let stale = self.ledger.all().filter(|standing| self.is_stale(standing, at_ns));
        let stale_pages = stale.map(|standing| standing.range.count()).sum();
        if !self.worth.judge((self.ledger.pages(), stale_pages), at_ns) {
            self.help.rests += 1;
            self.rest();
        }
    }

    /// Ends the advice and evicts the unused pages.
    pub fn finish(mut self) -> Help {
        for task in self.asked.keys().copied().collect::<Vec<u32>>() {
            self.passed(task, None, 0);
        }
        self.count();
        let is_unused = 2 * self.help.used_bytes < self.help.brought_bytes;
        let held_back = (is_unused && self.worth.is_refusing()).then_some(Vain::Unused);
        self.help.vain = self.worth.why().or(held_back);
        while let Some(oldest) = self.ledger.oldest() {
            self.give_back(oldest);
        }
        self.help.standing_bytes_max = self.ledger.pages_max() * PAGE_BYTES;
        (self.help.without, self.help.with) = self.worth.told();
        self.help.is_stopped = self.worth.now(0) == Now::Stopped;
        self.help
    }

    /// Counts the unused pages that are resident.
    fn count(&mut self) {
        let mut pages = 0;
        for standing in self.ledger.all().take(COUNTED_MAX) {
            let file = self.inodes.get(&standing.file).and_then(|inode| self.files.get(inode));
            let hand = file.and_then(|file| file.hand.as_ref());
            pages += hand.and_then(|hand| hand.cached_pages(standing.range)).unwrap_or(0);
        }
        self.help.counted_bytes_max = self.help.counted_bytes_max.max(pages * PAGE_BYTES);
    }

    /// Processes a requested range: marks pages as used, and prefetches a large range.
    fn comes(&mut self, task: u32, inode: Inode, range: PageRange, at_ns: u64) {
        self.passed(task, Some((inode, range)), at_ns);
        let before = self.asked.get(&task).filter(|asked| asked.goes_on(inode, range));
        if before.is_none() {
            self.worth.came(range.count());
        }
        let mut is_brought = before.is_some_and(|asked| asked.is_brought);
        if !is_large(range) {
            self.used(inode, range, at_ns);
        } else if !is_brought && self.files.contains_key(&inode) {
            self.bring(inode, range, Why::Asked, at_ns);
            is_brought = true;
        }
        self.asked.insert(task, RequestedRange { inode, range, is_brought });
        self.decide(inode, range, at_ns);
    }

    /// Processes pages mapped by a fault. The policy decides unless all are known and unmarked.
    fn mapped(&mut self, task: u32, inode: Inode, range: PageRange, at_ns: u64) {
        self.passed(task, None, at_ns);
        self.worth.came(range.count());
        self.used(inode, range, at_ns);
        let Some(file) = self.files.get_mut(&inode) else { return };
        let device = &mut self.devices.entry(file.disk).or_default().evidence;
        let (advised, file_pages) = (&mut file.advised, range.end);
        let pages = KernelPageView { advised, device, file_pages, runs: &mut Vec::new() };
        let knows_some = range.pages().any(|page| pages.is_cached(page));
        if knows_some && range.pages().all(|page| pages.marked(page).is_none()) {
            file.advised.read(range, device);
        } else {
            self.decide(inode, range, at_ns);
        }
    }

    /// Handles a task's miss. The first miss adds the file to the advised files.
    fn missed(&mut self, task: u32, inode: Inode, names: &mut impl FileNames, at_ns: u64) {
        self.missed_ns.insert(task, at_ns);
        let asked = self.asked.get(&task).copied().filter(|asked| asked.inode == inode);
        if !self.files.contains_key(&inode) {
            self.follow(task, inode, names, at_ns);
            if let Some(asked) = asked {
                self.decide(inode, asked.range, at_ns);
            }
        }
        // The kernel would read the rest of a large read one window at a time.
        if let Some(asked) = asked.filter(|asked| is_large(asked.range) && !asked.is_brought) {
            self.bring(inode, asked.range, Why::Asked, at_ns);
            self.asked.insert(task, RequestedRange { is_brought: true, ..asked });
        }
    }

    /// Opens a file and adds it to the advised files.
    fn follow(&mut self, task: u32, inode: Inode, names: &mut impl FileNames, at_ns: u64) {
        if self.files.len() >= FILES_MAX {
            self.forget_files(at_ns);
        }
        let device = names.disk(inode.device);
        let disk = device.device;
        self.missing.insert((disk, inode.number), !device.name.is_empty());
        let path = names.file(inode).map(|named| named.path);
        let hand = match self.files.len() {
            FILES_MAX.. => None,
            _ => Hand::reach(task, inode, path.as_deref()),
        };
        // The kernel reads a file of at most one window as a whole.
        let window = ReadaheadLimits::default().window_pages_max;
        let hand = hand.filter(|hand| hand.pages() > window);
        let number = self.numbers;
        self.numbers += 1;
        self.inodes.insert(number, inode);
        self.devices.entry(disk).or_default().evidence.memory_pages = 2 * self.budget_pages;
        let pages = hand.as_ref().map_or(0, Hand::pages);
        let read = AdvisedFile {
            number,
            disk,
            hand,
            policy: AdaptiveReadahead::default(),
            advised: KernelCachedPages::new(number),
            used_up: UsedUp::new(pages),
            seen_ns: at_ns,
            is_helped: false,
        };
        self.files.insert(inode, read);
    }

    /// Removes files without recent reads and without unused prefetched pages.
    fn forget_files(&mut self, at_ns: u64) {
        let standing: Vec<u32> = self.ledger.all().map(|standing| standing.file).collect();
        let (inodes, devices) = (&mut self.inodes, &mut self.devices);
        self.files.retain(|_, file| {
            let stays = file.seen_ns + STALE_NS > at_ns || standing.contains(&file.number);
            if !stays {
                inodes.remove(&file.number);
                file.forget_all(devices);
            }
            stays
        });
    }

    /// Marks a task's last requested range as used, up to the start of its continuation `next`.
    fn passed(&mut self, task: u32, next: Option<(Inode, PageRange)>, at_ns: u64) {
        let Some(asked) = self.asked.get(&task).copied() else { return };
        let range = match next {
            Some((inode, range)) if asked.goes_on(inode, range) => asked.range.clipped(range.first),
            _ => asked.range,
        };
        if next.is_none() {
            self.asked.remove(&task);
        }
        self.used(asked.inode, range, at_ns);
    }

    fn used(&mut self, inode: Inode, range: PageRange, at_ns: u64) {
        let Some(file) = self.files.get_mut(&inode) else { return };
        file.used_up.came(range);
        let used = self.ledger.take_out(file.number, range);
        self.help.used_bytes += used * PAGE_BYTES;
        self.worth.used(used);
        if used > 0 {
            self.awake_until_ns = at_ns + AWAKE_NS;
        }
    }

    /// Passes a read to the readahead policy of its file, and prefetches the chosen ranges.
    fn decide(&mut self, inode: Inode, range: PageRange, at_ns: u64) {
        let waiting = self.missed_ns.values().filter(|missed| *missed + WAITING_NS > at_ns);
        let readers = waiting.count().max(1) as u64;
        let Some(file) = self.files.get_mut(&inode) else { return };
        file.seen_ns = at_ns;
        let Some(hand) = &file.hand else { return };
        let range = range.clipped(hand.pages());
        let evidence = &mut self.devices.entry(file.disk).or_default().evidence;
        if self.worth.now(at_ns) != Now::Advise {
            return;
        }
        if file.advised.is_quiet(range) {
            return file.advised.read(range, evidence);
        }
        evidence.now = Time(at_ns);
        evidence.reads_under_way = readers;
        let (offset, bytes) = (range.first * PAGE_BYTES, range.count() * PAGE_BYTES);
        let file_pages = hand.pages();
        let ask =
            ReadRequest { offset, bytes, file_bytes: file_pages * PAGE_BYTES, is_congested: false };
        let mut runs = Vec::new();
        let advised = &mut file.advised;
        let mut pages = KernelPageView { advised, device: evidence, file_pages, runs: &mut runs };
        file.policy.read(&ask, &mut pages);
        file.advised.read(range, evidence);
        let why = Why::Expected { is_used_up: file.used_up.is_sweeping() };
        for run in runs {
            self.bring(inode, run, why, at_ns);
        }
    }

    /// Prefetches absent pages within the limits and returns their number. The rest is forgotten.
    fn bring(&mut self, inode: Inode, range: PageRange, why: Why, at_ns: u64) -> u64 {
        if self.worth.now(at_ns) != Now::Advise {
            return 0;
        }
        self.make_room(range.count(), at_ns);
        let room = self.budget_pages.saturating_sub(self.ledger.pages());
        let Some(file) = self.files.get_mut(&inode) else { return 0 };
        let Some(hand) = &file.hand else { return 0 };
        let range = range.clipped(hand.pages());
        let credit_pages = self.worth.room_pages(why);
        if range.count() > credit_pages {
            self.worth.refused();
        }
        let taken = range.clipped(range.first.saturating_add(room.min(credit_pages)));
        let (mut is_whole, mut brought) = (taken == range, 0);
        for (part, absent) in hand.absent_parts(taken) {
            // Pages that were resident before do not count as help.
            for absent in hand.absent_runs(part, absent) {
                self.ledger.add(file.number, absent, at_ns);
            }
            is_whole &= hand.bring(part);
            self.worth.brought(absent, why);
            brought += absent;
            self.help.files += u64::from(!std::mem::replace(&mut file.is_helped, true));
        }
        if !is_whole {
            let device = self.devices.entry(file.disk).or_default();
            let rest = PageRange { first: taken.end, end: range.end };
            file.advised.forget(rest, &mut device.evidence);
        }
        self.help.brought_bytes += brought * PAGE_BYTES;
        brought
    }

    /// Evicts stale prefetched pages until `pages` more fit into the budget.
    fn make_room(&mut self, pages: u64, at_ns: u64) {
        while self.ledger.pages().saturating_add(pages) > self.budget_pages {
            match self.ledger.oldest() {
                Some(oldest) if self.is_stale(&oldest, at_ns) => self.give_back(oldest),
                _ => break,
            }
        }
    }

    /// True for a range unused for `STALE_NS` that no whole-file prefetch keeps.
    fn is_stale(&self, standing: &Standing, at_ns: u64) -> bool {
        let file = self.inodes.get(&standing.file).and_then(|inode| self.files.get(inode));
        let is_waited_for =
            file.is_some_and(|file| file.used_up.is_sweeping() && file.seen_ns + STALE_NS > at_ns);
        at_ns.saturating_sub(standing.since_ns) >= STALE_NS && !is_waited_for
    }

    /// Drops an unused prefetched range from the page cache, and counts it as wasted.
    fn give_back(&mut self, Standing { file, range, .. }: Standing) {
        let lost = self.ledger.take_out(file, range);
        self.worth.lost(lost);
        let Some(file) = self.inodes.get(&file).and_then(|inode| self.files.get_mut(inode)) else {
            return;
        };
        let device = self.devices.entry(file.disk).or_default();
        file.advised.forget(range, &mut device.evidence);
        if let Some(hand) = &file.hand {
            hand.give_back(range);
        }
    }

    /// Pauses the advice: unused pages are evicted, and the policies start again.
    fn rest(&mut self) {
        let all: Vec<Standing> = self.ledger.all().collect();
        all.into_iter().for_each(|standing| self.give_back(standing));
        for file in self.files.values_mut() {
            file.forget_all(&mut self.devices);
        }
    }
}

impl AdvisedFile {
    fn forget_all(&mut self, devices: &mut BTreeMap<u64, AdvisedDevice>) {
        let device = devices.entry(self.disk).or_default();
        self.policy.closed(None, 0, &mut device.evidence);
        self.policy = AdaptiveReadahead::default();
        let all = PageRange { first: 0, end: u64::MAX / PAGE_BYTES };
        self.advised.forget(all, &mut device.evidence);
        self.advised = KernelCachedPages::new(self.number);
    }
}

impl RequestedRange {
    /// Returns true for the rest of this request, which the kernel reports at each continuation.
    fn goes_on(&self, inode: Inode, range: PageRange) -> bool {
        self.inode == inode && self.range.end == range.end && self.range.first < range.first
    }
}

impl AdvisedDevice {
    fn issued(&mut self, at: Time, sector: u64) {
        if self.under_way.contains_key(&sector) {
            return;
        }
        let next = RequestId(self.under_way.len() as u32);
        let id = self.free.pop().unwrap_or(next);
        self.under_way.insert(sector, id);
        self.evidence.estimate.dispatched(at, id, None);
    }

    fn completed(&mut self, at: Time, sector: u64, bytes: u64) {
        if let Some(id) = self.under_way.remove(&sector) {
            self.free.push(id);
            self.evidence.estimate.completed(at, at, id, bytes);
        }
    }

    /// Adds a read that waited to the cost estimate. It must not overlap the previous one.
    fn learn(&mut self, begin_ns: u64, end_ns: u64, bytes: u64) {
        if begin_ns >= self.learned_ns {
            self.evidence.estimate.dispatched(Time(begin_ns), RequestId(0), None);
            self.evidence.estimate.completed(Time(end_ns), Time(end_ns), RequestId(0), bytes);
        }
        self.learned_ns = self.learned_ns.max(end_ns);
    }
}
