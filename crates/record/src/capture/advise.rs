//! Advice: prefetches a recorded program's next reads into the kernel page cache.
//!
//! The kernel's events report the program's reads and faults. One readahead policy per file with
//! missing pages sees these accesses. The ranges that it chooses are prefetched by `readahead(2)`
//! (`advise/hand.rs`), like the rest of a large read in progress. The rest of a file is prefetched
//! as well if the file is *used up*: read once, in pieces of any order (`advise/used_up.rs`). The
//! program still reads from the kernel. The worst result is a wasted read. A *miss* adds absent
//! pages to the cache for a task. The *evidence* of a device holds the estimates of its costs. A
//! file has one number in the ledger and another one in the recording. Invariants:
//! 1. Pages prefetched and not yet used (`advise/ledger.rs`) never exceed the budget. With a full
//!    budget the oldest pages are evicted, if they are two seconds old.
//! 2. *Credit* is the number of pages that may still be prefetched. Each prefetched page takes one,
//!    and its use returns credit (`advise/worth.rs`).
//! 3. A file without missing pages costs one table lookup per read.

use std::collections::{BTreeMap, HashMap};

use readpath_core::readahead::{KernelPageView, PageView, ReadRequest, ReadaheadPolicy};
use readpath_core::unit::{PAGE_BYTES, PageRange, SECTOR_BYTES, Time};
use readpath_trace::recording::Record;

use super::event::{EventData, Inode, TraceEvent};
use super::follow::TaskMappings;
use super::names::FileNames;

mod advised;
mod hand;
mod ledger;
mod resident;
mod touches;
mod unadvised;
mod used_up;
mod whole_files;
mod worth;

use advised::{AdvisedDevice, AdvisedFile, RequestedRange};
pub(super) use hand::AdviceTarget;
use hand::is_large;
use ledger::{Ledger, UnusedRange};
use touches::{PageTouch, SystemTables, Touches};
pub(super) use unadvised::SHORT_BYTES_MAX;
use unadvised::UnadvisedFiles;
use worth::{AdviceCredit, AdviceState, PrefetchReason, WholeFileRest};

pub use worth::{StopReason, Waits};

/// Age in nanoseconds, chosen, at which an unused page counts as waste and may be evicted.
const STALE_NS: u64 = 2_000_000_000;

/// Interval in nanoseconds, chosen, between verdicts on the advice, and between resident page
/// counts.
const CHECK_INTERVAL_NS: u64 = 250_000_000;

/// Time in nanoseconds, chosen, of immediate event processing after a useful prefetch. Otherwise
/// events are processed every 10 ms.
const AWAKE_NS: u64 = 100_000_000;

/// Age in nanoseconds, chosen, up to which a task's last miss counts as a wait in progress.
const WAITING_NS: u64 = 5_000_000;

/// Maximum number of open files, chosen. Idle ones are closed first.
const FILES_MAX: usize = 512;

/// Result of the advice for a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdviceResult {
    /// Bytes prefetched into the kernel page cache.
    pub prefetched_bytes: u64,
    /// Prefetched bytes that the program used.
    pub used_bytes: u64,
    /// Maximum of the bytes prefetched and not yet used.
    pub unused_bytes_max: u64,
    /// Maximum of their resident part (`cachestat(2)`, a few times a second). `None`: no count.
    pub resident_bytes_max: Option<u64>,
    /// Number of files with prefetched pages.
    pub files: u64,
    /// Waits for files with absent pages while prefetching was off.
    pub without: Waits,
    /// Waits for files with absent pages while prefetching was on.
    pub with: Waits,
    /// Number of pauses after a verdict against the advice.
    pub pauses: u64,
    /// True if prefetching was stopped for good.
    pub is_stopped: bool,
    /// Reason of the last pause or stop. Without one it is `Unused` if credit ran out and less than
    /// half of the prefetched bytes were used, and `None` otherwise.
    pub stop_reason: Option<StopReason>,
}

/// Prefetcher for the recorded programs.
#[derive(Debug)]
pub(super) struct Advisor {
    /// Maximum number of pages prefetched and not yet used.
    budget_pages: u64,
    /// Converts events to page accesses.
    touches: Touches,
    /// Pages prefetched and not yet used.
    ledger: Ledger,
    /// Credit and verdict: decides if the advice is on.
    credit: AdviceCredit,
    /// Files with missing pages that can be advised.
    files: HashMap<Inode, AdvisedFile>,
    /// Files with missing pages that get no advice.
    unadvised: UnadvisedFiles,
    /// Number of files added to these as short, by the length at their open or now.
    short_files: u64,
    /// Inode of each file by its number in the ledger.
    inodes: HashMap<u32, Inode>,
    /// Next number in the ledger.
    next_number: u32,
    /// Costs of each disk, by its number.
    devices: BTreeMap<u64, AdvisedDevice>,
    /// Last requested range of each task, perhaps not yet complete.
    requested_ranges: HashMap<u32, RequestedRange>,
    /// Time of each task's last miss.
    last_miss_ns: HashMap<u32, u64>,
    /// Each file by its number in the recording.
    recorded_files: HashMap<u32, Inode>,
    /// Disk of each file that was ever advised, and true if its requests are reported.
    request_events: HashMap<Inode, (u64, bool)>,
    /// Time of the last verdict.
    last_check_ns: u64,
    /// Time until which each event is processed at once.
    awake_until_ns: u64,
    /// True if the kernel has refused to count the resident pages of a file.
    is_count_refused: bool,
    /// True if prefetching was on when the whole files were last continued.
    has_advised: bool,
    /// True if the requests of devices are reported. Otherwise costs are learned from waits.
    sees_requests: bool,
    /// Result so far.
    result: AdviceResult,
}

/// Read of which only the call was seen, after its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct CalledRead {
    /// Task that called.
    pub task: u32,
    /// File of the read.
    pub inode: Inode,
    /// Pages of the read.
    pub range: PageRange,
    /// True if the call took as long as a wait for a device.
    pub has_waited: bool,
}

impl Advisor {
    /// Creates an advisor whose prefetched and unused bytes never exceed `budget_bytes`.
    pub fn new(budget_bytes: u64) -> Advisor {
        let budget_pages = budget_bytes / PAGE_BYTES;
        Advisor {
            budget_pages,
            touches: Touches::default(),
            ledger: Ledger::default(),
            credit: AdviceCredit::new(budget_pages),
            files: HashMap::new(),
            unadvised: UnadvisedFiles::default(),
            short_files: 0,
            inodes: HashMap::new(),
            next_number: 0,
            devices: BTreeMap::new(),
            requested_ranges: HashMap::new(),
            last_miss_ns: HashMap::new(),
            recorded_files: HashMap::new(),
            request_events: HashMap::new(),
            last_check_ns: 0,
            awake_until_ns: 0,
            is_count_refused: false,
            has_advised: false,
            sees_requests: true,
            result: AdviceResult::default(),
        }
    }

    /// Creates an advisor that sees calls only. The kernel's events are not reported to it.
    pub fn of_calls(budget_bytes: u64) -> Advisor {
        Advisor { sees_requests: false, ..Advisor::new(budget_bytes) }
    }

    /// Processes a read of which only the call was seen, reported at `at_ns`. Its pages count as
    /// used, and the policy chooses pages to prefetch. A read that waited counts as a miss.
    pub fn on_call(&mut self, call: CalledRead, names: &mut impl FileNames, at_ns: u64) {
        let CalledRead { task, inode, range, has_waited } = call;
        if has_waited {
            self.on_miss(task, (inode, range), names, at_ns);
        }
        let rest = self.whole_file_rest(inode);
        let new_pages = self.record_used(inode, range, at_ns);
        self.credit.record_access(new_pages, rest);
        self.run_policy(inode, range, at_ns);
    }

    /// True while each event is needed at once. On few processors a wake-up slows the program.
    pub fn is_awake(&self, at_ns: u64) -> bool {
        at_ns < self.awake_until_ns
    }

    /// Bytes prefetched so far.
    pub fn prefetched_bytes(&self) -> u64 {
        self.result.prefetched_bytes
    }

    /// Time of the last read of an advised file; 0 if there is none.
    pub fn last_read_ns(&self) -> u64 {
        self.files.values().map(|file| file.last_read_ns).max().unwrap_or(0)
    }

    /// Number of files with absent pages that were too short for advice.
    pub fn short_files(&self) -> u64 {
        self.short_files
    }

    /// True once the advice is stopped for good.
    pub fn has_given_up(&mut self) -> bool {
        // At time 0 no pause has expired, so the state does not change.
        self.credit.state_at(0) == AdviceState::Stopped
    }

    /// Processes new events of recorded tasks, in the order of their times: reports the touched
    /// pages to the policies, which may prefetch. `at_ns` is the present time.
    pub fn on_task_events(
        &mut self,
        events: &[TraceEvent],
        names: &mut impl FileNames,
        mappings: TaskMappings<'_>,
        at_ns: u64,
    ) {
        // Collected first, because `on_miss` needs `names` as well.
        let mut touches = Vec::new();
        let mut tables = SystemTables { names, mappings };
        self.touches.process_events(events, &mut tables, |touch| touches.push(touch));
        for touch in touches {
            match touch {
                PageTouch::Requested { task, inode, range } => {
                    self.on_request(task, inode, range, at_ns)
                }
                PageTouch::Mapped { task, inode, range } => {
                    self.on_mapped(task, inode, range, at_ns)
                }
                PageTouch::Missed { task, inode, range } => {
                    self.on_miss(task, (inode, range), names, at_ns);
                }
            }
        }
        for event in events {
            if event.data == EventData::TaskEnds {
                self.last_miss_ns.remove(&event.task);
                self.mark_used_up_to(event.task, None, at_ns);
            }
        }
    }

    /// Processes an event of any task. Reads of a device update the estimate of its costs. Evicted
    /// pages leave the record of known pages, and count as lost if they were prefetched and not
    /// used. Events of devices and files without advice have no effect.
    pub fn on_device_event(&mut self, event: &TraceEvent) {
        let at = Time(event.at_ns);
        match &event.data {
            // R marks a read. A request without bytes is a flush.
            EventData::Issue { device, sector, bytes, flags }
                if flags.contains('R') && *bytes > 0 =>
            {
                if let Some(device) = self.devices.get_mut(device) {
                    device.record_issued(at, *sector);
                }
            }
            EventData::Complete { device, sector, sectors } => {
                if let Some(device) = self.devices.get_mut(device) {
                    device.record_completed(at, *sector, sectors * SECTOR_BYTES);
                }
            }
            EventData::Evict { inode, first, count } => {
                if let Some(file) = self.files.get_mut(inode) {
                    let range = PageRange::new(*first, *count);
                    let device = self.devices.entry(file.disk).or_default();
                    file.advised.on_evicted(range, &mut device.evidence);
                    let lost_pages = self.ledger.remove_range(file.number, range);
                    self.credit.record_lost(lost_pages);
                }
            }
            _ => {}
        }
    }

    /// Learns the number of a file in the recording.
    pub fn on_file(&mut self, file: u32, inode: Inode) {
        self.recorded_files.insert(file, inode);
    }

    /// Learns from the record of a read: waits for files with absent pages. The costs of a device
    /// without reported requests are learned from these waits. Other records have no effect, and
    /// neither have reads of files that were never advised.
    pub fn on_record(&mut self, record: &Record) {
        let Record::Read(read) = record else { return };
        let Some(inode) = self.recorded_files.get(&read.file) else { return };
        let Some(&(disk, has_requests)) = self.request_events.get(inode) else { return };
        self.credit.record_read(read.waited_ns, read.bytes_read());
        let device = self.devices.get_mut(&disk);
        if let Some(device) = device.filter(|_| !has_requests && read.waited_ns > 0) {
            device.learn_from_read(read.begin_ns, read.end_ns, read.bytes_read());
        }
    }

    /// Judges the advice, at most once per `CHECK_INTERVAL_NS`. A negative verdict pauses or stops
    /// it. Also counts the resident pages, and forgets misses older than `STALE_NS`.
    pub fn judge_periodically(&mut self, at_ns: u64) {
        if at_ns < self.last_check_ns + CHECK_INTERVAL_NS {
            return;
        }
        self.last_check_ns = at_ns;
        self.update_resident_max();
        self.last_miss_ns.retain(|_, missed_ns| *missed_ns + STALE_NS > at_ns);
        let stale = self.ledger.unused_ranges().filter(|unused| self.is_stale(unused, at_ns));
        let stale_pages = stale.map(|unused| unused.range.count()).sum();
        if !self.credit.judge((self.ledger.pages(), stale_pages), at_ns) {
            self.result.pauses += 1;
            self.pause();
        }
    }

    /// Ends the advice and evicts the unused pages. Returns its result. Pages of the last requests
    /// count as used. Without a negative verdict, the stop reason is [`StopReason::Unused`] if
    /// credit ran out and less than half of the prefetched bytes were used.
    pub fn finish(mut self) -> AdviceResult {
        for task in self.requested_ranges.keys().copied().collect::<Vec<u32>>() {
            // The time has no effect, as no further event is processed.
            self.mark_used_up_to(task, None, 0);
        }
        self.update_resident_max();
        let is_unused = 2 * self.result.used_bytes < self.result.prefetched_bytes;
        let refusal = (is_unused && self.credit.is_refusing()).then_some(StopReason::Unused);
        self.result.stop_reason = self.credit.stop_reason().or(refusal);
        while let Some(oldest) = self.ledger.oldest_range() {
            self.evict_unused(oldest);
        }
        self.result.unused_bytes_max = self.ledger.pages_max() * PAGE_BYTES;
        (self.result.without, self.result.with) = self.credit.waits_without_and_with();
        self.result.is_stopped = self.has_given_up();
        self.result
    }

    /// Processes pages that a task requested, and calls the policy. A small range counts as used at
    /// once. A large one, longer than the kernel's window, of an advised file is prefetched once.
    /// It counts as used as its read goes on: the kernel then reports the rest of the range again.
    fn on_request(&mut self, task: u32, inode: Inode, range: PageRange, at_ns: u64) {
        self.mark_used_up_to(task, Some((inode, range)), at_ns);
        let continued = self
            .requested_ranges
            .get(&task)
            .filter(|requested| requested.continues_request(inode, range));
        // The pages of a continued request were counted at its start.
        if continued.is_none() {
            let rest = self.whole_file_rest(inode);
            self.credit.record_access(range.count(), rest);
        }
        let mut is_prefetched = continued.is_some_and(|requested| requested.is_prefetched);
        if !is_large(range) {
            self.record_used(inode, range, at_ns);
        } else if !is_prefetched && self.files.contains_key(&inode) {
            self.prefetch(inode, range, PrefetchReason::Requested, at_ns);
            is_prefetched = true;
        }
        self.requested_ranges.insert(task, RequestedRange { inode, range, is_prefetched });
        self.run_policy(inode, range, at_ns);
    }

    /// Returns the unused part of a file, before the use of a read's pages is recorded. `None` if
    /// no prefetch of the whole file has begun.
    fn whole_file_rest(&self, inode: Inode) -> Option<WholeFileRest> {
        let file = self.files.get(&inode).filter(|file| file.file_use.has_prefetch_begun())?;
        let prefetched_pages = self.ledger.pages_of_file(file.number);
        Some(WholeFileRest { pages: file.file_use.rest_pages(), prefetched_pages })
    }

    /// Processes pages mapped by a fault, which count as used. The policy is called, unless it
    /// knows some of them as cached and none has its mark, which asks for a call at that page.
    fn on_mapped(&mut self, task: u32, inode: Inode, range: PageRange, at_ns: u64) {
        self.mark_used_up_to(task, None, at_ns);
        let rest = self.whole_file_rest(inode);
        // A fault reports all pages of a folio, also those that earlier faults have mapped.
        let new_pages = self.record_used(inode, range, at_ns);
        self.credit.record_access(new_pages, rest);
        let Some(file) = self.files.get_mut(&inode) else { return };
        let device = &mut self.devices.entry(file.disk).or_default().evidence;
        // This view only answers questions about the range, so it ends there.
        let (advised, file_pages) = (&mut file.advised, range.end);
        let pages = KernelPageView { advised, device, file_pages, advised_ranges: &mut Vec::new() };
        let knows_some = range.pages().any(|page| pages.is_cached(page));
        if knows_some && range.pages().all(|page| pages.marked(page).is_none()) {
            // Only records the read.
            file.advised.read(range, device);
        } else {
            self.run_policy(inode, range, at_ns);
        }
    }

    /// Handles a task's miss: absent pages were added for it. The first miss of a file adds it. A
    /// large request of the task for this file is prefetched, unless that was done before.
    fn on_miss(
        &mut self,
        task: u32,
        (inode, range): (Inode, PageRange),
        names: &mut impl FileNames,
        at_ns: u64,
    ) {
        self.last_miss_ns.insert(task, at_ns);
        let requested =
            self.requested_ranges.get(&task).copied().filter(|requested| requested.inode == inode);
        // A file without advice is examined again if it was short and has grown.
        if !self.files.contains_key(&inode) && !self.unadvised.has(inode, range) {
            self.add_file(task, (inode, range), names, at_ns);
            // The request that misses came before its file was known.
            if let Some(requested) = requested {
                self.run_policy(inode, requested.range, at_ns);
            }
        }
        // The kernel would read the rest of a large read one window at a time.
        if let Some(requested) =
            requested.filter(|requested| is_large(requested.range) && !requested.is_prefetched)
        {
            self.prefetch(inode, requested.range, PrefetchReason::Requested, at_ns);
            self.requested_ranges.insert(task, RequestedRange { is_prefetched: true, ..requested });
        }
    }

    /// Marks a task's last requested range as used. If `next` continues the request, only the pages
    /// before `next` are marked. `None`: the request is over, and is forgotten. A task without a
    /// request has no effect.
    fn mark_used_up_to(&mut self, task: u32, next: Option<(Inode, PageRange)>, at_ns: u64) {
        let Some(requested) = self.requested_ranges.get(&task).copied() else { return };
        let range = match next {
            Some((inode, range)) if requested.continues_request(inode, range) => {
                requested.range.clipped(range.first)
            }
            _ => requested.range,
        };
        if next.is_none() {
            self.requested_ranges.remove(&task);
        }
        self.record_used(requested.inode, range, at_ns);
    }

    /// Records the use of pages. Returns the number of pages used for the first time, or all of
    /// `range` for a file without advice or with too many pages to follow. If prefetched pages were
    /// used, events are processed at once for `AWAKE_NS`.
    fn record_used(&mut self, inode: Inode, range: PageRange, at_ns: u64) -> u64 {
        let Some(file) = self.files.get_mut(&inode) else { return range.count() };
        let rest_before = file.file_use.rest_pages();
        file.file_use.record_access(range);
        file.advice_target.record_present(range);
        let new_pages = match file.file_use.is_followed() {
            true => rest_before - file.file_use.rest_pages(),
            false => range.count(),
        };
        let used_pages = self.ledger.remove_range(file.number, range);
        self.result.used_bytes += used_pages * PAGE_BYTES;
        self.credit.record_used(used_pages);
        if used_pages > 0 {
            self.awake_until_ns = at_ns + AWAKE_NS;
        }
        new_pages
    }

    /// Passes a read to the readahead policy of its file while the advice is on, and prefetches the
    /// chosen ranges. The policy is not asked if it knows all pages as read or advised, and none
    /// has its mark (`is_quiet`). The time of the read is kept in any case.
    fn run_policy(&mut self, inode: Inode, range: PageRange, at_ns: u64) {
        let waiting = self.last_miss_ns.values().filter(|missed| *missed + WAITING_NS > at_ns);
        // The task of this read counts, even if it does not wait.
        let waiting_readers = waiting.count().max(1) as u64;
        let Some(file) = self.files.get_mut(&inode) else { return };
        file.last_read_ns = at_ns;
        let file_pages = file.advice_target.pages();
        let range = range.clipped(file_pages);
        let evidence = &mut self.devices.entry(file.disk).or_default().evidence;
        if self.credit.state_at(at_ns) != AdviceState::Advise {
            return;
        }
        if file.advised.is_quiet(range) {
            // Only records the read.
            return file.advised.read(range, evidence);
        }
        evidence.now = Time(at_ns);
        evidence.open_reads = waiting_readers;
        let (offset, bytes) = (range.first * PAGE_BYTES, range.count() * PAGE_BYTES);
        // The congestion of the device is not known here.
        let request =
            ReadRequest { offset, bytes, file_bytes: file_pages * PAGE_BYTES, is_congested: false };
        let mut chosen = Vec::new();
        let advised = &mut file.advised;
        let mut pages =
            KernelPageView { advised, device: evidence, file_pages, advised_ranges: &mut chosen };
        file.policy.read(&request, &mut pages);
        // Recorded last: the policy has seen the pages as they were before the read.
        file.advised.read(range, evidence);
        let reason = PrefetchReason::Predicted { is_used_up: file.file_use.has_prefetch_begun() };
        for chosen_range in chosen {
            self.prefetch(inode, chosen_range, reason, at_ns);
        }
    }

    /// Prefetches the absent pages of a range within budget and credit, from its start on. Returns
    /// the number of prefetched pages. It is 0 while the advice is off, for a file that gets no
    /// advice, without absent pages, room or credit, and if the kernel refuses. The policy is
    /// informed of the parts that stay absent.
    fn prefetch(&mut self, inode: Inode, range: PageRange, why: PrefetchReason, at_ns: u64) -> u64 {
        if self.credit.state_at(at_ns) != AdviceState::Advise {
            return 0;
        }
        self.make_room(range.count(), at_ns);
        // The part of the range within the budget and the credit, from its start on.
        let room_pages = self.budget_pages.saturating_sub(self.ledger.pages());
        let Some(file) = self.files.get_mut(&inode) else { return 0 };
        let target = &mut file.advice_target;
        let range = range.clipped(target.pages());
        // Estimated time of the device for a page, in picoseconds.
        let page_ps = self.devices.entry(file.disk).or_default().evidence.estimate.page_ps();
        let credit_pages = self.credit.available_pages(why, page_ps);
        if range.count() > credit_pages {
            self.credit.record_credit_refusal();
        }
        let allowed = range.clipped(range.first.saturating_add(room_pages.min(credit_pages)));
        let mut prefetched_pages = 0;
        // Parts that stay absent: beyond the limits, and refused by the kernel.
        let mut absent_ranges = vec![PageRange { first: allowed.end, end: range.end }];
        // Each part comes with the number of its absent pages, at least one.
        for (part, absent_pages) in target.absent_parts(allowed) {
            // Pages that were resident before do not count as help.
            let absent_runs = target.absent_runs(part, absent_pages);
            if !target.prefetch(part) {
                absent_ranges.push(part);
                continue;
            }
            for run in absent_runs {
                self.ledger.add(file.number, run, at_ns);
            }
            target.record_present(part);
            self.credit.record_prefetched(absent_pages, why);
            prefetched_pages += absent_pages;
            // A file counts once.
            self.result.files += u64::from(!std::mem::replace(&mut file.is_helped, true));
        }
        let evidence = &mut self.devices.entry(file.disk).or_default().evidence;
        for absent_range in absent_ranges.into_iter().filter(|range| !range.is_empty()) {
            file.advised.on_evicted(absent_range, evidence);
        }
        self.result.prefetched_bytes += prefetched_pages * PAGE_BYTES;
        prefetched_pages
    }

    /// Evicts stale prefetched pages, the oldest first, until `pages` more fit into the budget. It
    /// ends early at the first range that is not stale.
    fn make_room(&mut self, pages: u64, at_ns: u64) {
        while self.ledger.pages().saturating_add(pages) > self.budget_pages {
            match self.ledger.oldest_range() {
                Some(oldest) if self.is_stale(&oldest, at_ns) => self.evict_unused(oldest),
                _ => break,
            }
        }
    }

    /// True for a range unused for `STALE_NS`. A whole-file prefetch keeps the ranges of its file
    /// while the last read of the file is younger than that.
    fn is_stale(&self, unused: &UnusedRange, at_ns: u64) -> bool {
        let file = self.inodes.get(&unused.file).and_then(|inode| self.files.get(inode));
        let is_whole_file_in_use = file.is_some_and(|file| {
            file.file_use.has_prefetch_begun() && file.last_read_ns + STALE_NS > at_ns
        });
        at_ns.saturating_sub(unused.since_ns) >= STALE_NS && !is_whole_file_in_use
    }

    /// Drops an unused range from the page cache and the ledger, and counts it as wasted.
    fn evict_unused(&mut self, UnusedRange { file: number, range, .. }: UnusedRange) {
        let lost_pages = self.ledger.remove_range(number, range);
        self.credit.record_lost(lost_pages);
        let file = self.inodes.get(&number).and_then(|inode| self.files.get_mut(inode));
        // A file with unused pages is never forgotten, so it is known here.
        let Some(file) = file else { return };
        // For the policy the pages are absent again, and for the evidence no longer unused.
        let device = self.devices.entry(file.disk).or_default();
        file.advised.on_evicted(range, &mut device.evidence);
        file.advice_target.evict(range);
    }

    /// Pauses the advice: unused pages are evicted, and the policies start again.
    fn pause(&mut self) {
        let all: Vec<UnusedRange> = self.ledger.unused_ranges().collect();
        all.into_iter().for_each(|unused| self.evict_unused(unused));
        for file in self.files.values_mut() {
            file.forget_all(&mut self.devices);
        }
    }
}
