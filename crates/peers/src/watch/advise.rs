//! Help from outside: what a watched program will read is brought into the page cache before it asks.
//!
//! The program's reads and faults, as the kernel's events tell them, are shown to our readahead law, one for each file
//! of which something was seen to be missing. What the law wants is brought in by `readahead(2)` (`advise/hand.rs`), and so is
//! the rest of a large read that has begun; and the rest of a file that is being used up in pieces (`advise/used_up.rs`). No byte passes through here: the program reads from the kernel as
//! before, and the worst that can happen is that the kernel reads something in vain.
//!
//! Invariants:
//! 1. What was brought in and is not used yet (`advise/ledger.rs`) is never more than the budget. When the budget
//!    is full and what has stood longest has stood for two seconds, it is given back (but not what is left of a file that
//!    is being used up).
//! 2. Pages that the program has not asked for are brought in on credit, which their use gives back
//!    (`advise/worth.rs`). After a judgement that advice does not pay nothing is brought in until the rest is over.
//! 3. A file of which nothing was missing costs a look into a table for each read, and nothing else.

use std::collections::{BTreeMap, HashMap};

use readpath_core::readahead::{
    AdaptiveReadahead, DeviceEvidence, KernelCachedPages, KernelPageView, PageView, ReadRequest,
    ReadaheadLimits, ReadaheadPolicy,
};
use readpath_core::request::RequestId;
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};
use readpath_sim::recording::Record;

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

/// What stands for so long, in nanoseconds, may be given back, and counts as unused.
const STALE_NS: u64 = 2_000_000_000;

/// So often, in nanoseconds, it is judged what came of it, and counted what is in memory.
const CHECK_NS: u64 = 250_000_000;

/// For so long, in nanoseconds, after something was of use each event is heard of at once; else a hundred times a second.
const AWAKE_NS: u64 = 100_000_000;

/// A task that missed so recently, in nanoseconds, is taken to wait still.
const WAITING_NS: u64 = 5_000_000;

/// So many files are reached at once; those that nobody has read for a while give way.
const FILES_MAX: usize = 512;

/// More ranges are not counted at once.
const COUNTED_MAX: usize = 1024;

/// What was done for a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Help {
    /// Brought into the page cache, in bytes.
    pub brought_bytes: u64,
    /// Of that, what the program then came to.
    pub used_bytes: u64,
    /// The most that stood at once, brought in and not used yet.
    pub standing_bytes_max: u64,
    /// The same, as far as the kernel counted it in memory (`cachestat(2)`, a few times a second).
    pub counted_bytes_max: u64,
    /// How many files something was brought in of.
    pub files: u64,
    /// The program's waits while nothing was brought in, and while something was.
    pub without: Waits,
    /// See `without`.
    pub with: Waits,
    /// How often it rested because it did not pay.
    pub rests: u64,
    /// Whether it was given up in the end.
    pub is_stopped: bool,
    /// Why it rested or stopped, or brought in no more; none where it paid.
    pub vain: Option<Vain>,
}

/// Advises the kernel for the watched programs.
#[derive(Debug)]
pub(super) struct Advisor {
    budget_pages: u64,
    touches: Touches,
    ledger: Ledger,
    worth: Worth,
    files: HashMap<Inode, AdvisedFile>,
    /// The inode of each file by its number in the ledger.
    inodes: HashMap<u32, Inode>,
    numbers: u32,
    devices: BTreeMap<u64, AdvisedDevice>,
    /// What each task asked for last, and has perhaps not all of yet.
    asked: HashMap<u32, RequestedRange>,
    /// When each task missed last.
    missed_ns: HashMap<u32, u64>,
    /// By number in the recording: the disk and the inode number of a file.
    recorded: HashMap<u32, (u64, u64)>,
    /// The same of files of which something was missing: whether requests for them are seen, and not only their waits.
    missing: HashMap<(u64, u64), bool>,
    checked_ns: u64,
    awake_until_ns: u64,
    /// Whether it advised when it last looked.
    has_advised: bool,
    help: Help,
}

/// A file that is read.
#[derive(Debug)]
struct AdvisedFile {
    number: u32,
    disk: u64,
    /// None for one that can't be helped: too small, or not to be reached.
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

/// What is known of a device, and which of its requests are under way.
#[derive(Debug, Default)]
struct AdvisedDevice {
    evidence: DeviceEvidence,
    /// By first sector.
    under_way: BTreeMap<u64, RequestId>,
    free: Vec<RequestId>,
    /// When the last read ended from which was learned, where no requests are seen.
    learned_ns: u64,
}

impl Advisor {
    /// Has nothing brought in yet, and will never have more than so many bytes stand unused.
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

    /// Whether what was brought in was of use so recently that the next event is worth to be heard of at once. To be
    /// woken by each costs the program too, where processors are few.
    pub fn is_awake(&self, at_ns: u64) -> bool {
        at_ns < self.awake_until_ns
    }

    /// Takes events of watched tasks, in the order of their times, as soon as they are there.
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

    /// Brings in more of the files that are being used up, as time goes on.
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

    /// Brings in the next chunk of a file that is being used up, of which something is not there yet.
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

    /// Takes an event of whomever: what a device does, and what leaves the page cache.
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

    /// Takes what goes into the recording: what the program waited for.
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

    /// Judges what came of it, a few times a second.
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

    /// Ends it: what stands unused is given back.
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

    /// Asks the kernel how much of what stands is in memory.
    fn count(&mut self) {
        let mut pages = 0;
        for standing in self.ledger.all().take(COUNTED_MAX) {
            let file = self.inodes.get(&standing.file).and_then(|inode| self.files.get(inode));
            let hand = file.and_then(|file| file.hand.as_ref());
            pages += hand.and_then(|hand| hand.cached_pages(standing.range)).unwrap_or(0);
        }
        self.help.counted_bytes_max = self.help.counted_bytes_max.max(pages * PAGE_BYTES);
    }

    /// A task comes to pages by a read or a fault.
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

    /// Pages that were there are mapped for a task. Where the law knows some of them, none of which is marked, there
    /// is nothing to show: their neighbours are mapped whether the task comes to them or not.
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

    /// A task misses pages: from here on the file is followed.
    fn missed(&mut self, task: u32, inode: Inode, names: &mut impl FileNames, at_ns: u64) {
        self.missed_ns.insert(task, at_ns);
        let asked = self.asked.get(&task).copied().filter(|asked| asked.inode == inode);
        if !self.files.contains_key(&inode) {
            self.follow(task, inode, names, at_ns);
            if let Some(asked) = asked {
                self.decide(inode, asked.range, at_ns);
            }
        }
        // The rest of a large read: the kernel would bring it in a window at a time.
        if let Some(asked) = asked.filter(|asked| is_large(asked.range) && !asked.is_brought) {
            self.bring(inode, asked.range, Why::Asked, at_ns);
            self.asked.insert(task, RequestedRange { is_brought: true, ..asked });
        }
    }

    /// Reaches a file and begins to follow it.
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
        // The kernel reads a file of one window whole.
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

    /// Files that nobody has read for a while, and of which nothing stands, are followed no more.
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

    /// What a task asked for before is behind it, as far as it goes on with something else.
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

    /// The program has come to these pages.
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

    /// Shows the law of a file what its program comes to, and has brought in what the law wants.
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

    /// Brings in the absent pages of a range, as far as budget and credit go, and returns their number.
    /// The policy forgets the rest.
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
            // Pages that were there already are no help, whether they are used or not.
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

    /// Gives back what has stood too long, until so many pages fit.
    fn make_room(&mut self, pages: u64, at_ns: u64) {
        while self.ledger.pages().saturating_add(pages) > self.budget_pages {
            match self.ledger.oldest() {
                Some(oldest) if self.is_stale(&oldest, at_ns) => self.give_back(oldest),
                _ => break,
            }
        }
    }

    /// Whether a range has stood too long. The rest of a file that is being used up has not, as long as somebody
    /// uses it.
    fn is_stale(&self, standing: &Standing, at_ns: u64) -> bool {
        let file = self.inodes.get(&standing.file).and_then(|inode| self.files.get(inode));
        let is_waited_for =
            file.is_some_and(|file| file.used_up.is_sweeping() && file.seen_ns + STALE_NS > at_ns);
        at_ns.saturating_sub(standing.since_ns) >= STALE_NS && !is_waited_for
    }

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

    /// Advice rests: pages that were not used are given back, and the policies start again.
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
    /// Whether this is the rest of it: the kernel tells of a long read anew each time that it goes on.
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

    /// A read that waited, with nobody else's beside it that is known of.
    fn learn(&mut self, begin_ns: u64, end_ns: u64, bytes: u64) {
        if begin_ns >= self.learned_ns {
            self.evidence.estimate.dispatched(Time(begin_ns), RequestId(0), None);
            self.evidence.estimate.completed(Time(end_ns), Time(end_ns), RequestId(0), bytes);
        }
        self.learned_ns = self.learned_ns.max(end_ns);
    }
}
