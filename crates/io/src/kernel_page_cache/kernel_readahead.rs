//! Kernel readahead: advice to the kernel where it caches the pages.
//!
//! The readahead policy sees reads that are not known to be resident and returns windows.
//! `readahead(2)` starts their I/O and returns. The read itself waits only for its own bytes. Reads
//! that wait while no other does teach the policy the cost of a request.
//!
//! The kernel also reads ahead of ascending streams by itself, in large folios, with a third of the
//! processor time (256 MiB by 64 KiB: 0.026 s, advised 0.081 s). The policy's windows of such
//! streams are therefore advised only beyond the kernel's own window (`read_ahead_kb`). The kernel
//! does not detect descending, strided and record access: these windows are advised completely.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use readpath_core::decision::LoggedDecision;
use readpath_core::readahead::{
    AdaptiveReadahead, Advice, DeviceEvidence, KernelCachedPages, KernelPageView, ReadRequest,
    ReadaheadLimits, ReadaheadPolicy, ReadaheadState, first_window_pages,
};
use readpath_core::request::RequestId;
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};

use super::blocking_pool::{FileKey, Task, Waiter, Wish};
use super::residency_sampling::ResidencySampling;
use super::{drop_cached, read_ahead};
use crate::clock::Clock;
use crate::probes;
use crate::sysfs::QueueLimits;
use crate::system_memory::{SpareMemory, total_memory};
use crate::target::Target;

/// Threshold of a read that has waited for the device: 10 us plus 1 us per KiB (1 GiB/s). Copies of
/// 4 KiB took 0.4 to 1.2 us, reads of 4 KiB from an idle virtual disk 45 us and more.
const COPY_NS: u64 = 10_000;
const COPY_KIB_NS: u64 = 1_000;

/// Memory in bytes that the policy assumes, at most a quarter of the process's total. Advice for
/// all readers together is limited to half of it. With 256 MiB the limit was too high: random reads
/// of 16 KiB by eight threads in a file of that size had all of it advised once an eighth was read.
/// They read three times the bytes, at 0.4 of the rate of `pread`.
const MEMORY_BYTES: u64 = 64 << 20;

/// Kernel readahead window in pages (2 MiB) from which its streams gain nothing by our policy.
const OWN_WINDOW_PAGES: u64 = 512;

const POISON: &str = "what is learned is written by our own code, which doesn't panic";

/// Device knowledge and advice of one path whose pages the kernel caches.
pub(crate) struct KernelReadahead {
    clock: Clock,
    /// Measured costs of the device, shared by all handles.
    evidence: Mutex<DeviceEvidence>,
    /// Number of reads in progress, and of reads that have ended.
    reading: AtomicU64,
    read: AtomicU64,
    /// Number of reads that waited for the device, and their bytes.
    waits: AtomicU64,
    waited_bytes: AtomicU64,
    advised_bytes: AtomicU64,
    /// Kernel readahead windows, by device number.
    windows: Mutex<BTreeMap<u64, KernelWindow>>,
    /// Memory that the policy assumes, in pages.
    memory_pages: OnceLock<u64>,
    /// Threads that wait for reads of tasks and batches.
    waiter: Waiter,
    /// Threads that give advice where the call may block. Separate from `waiter`, so reads continue
    /// meanwhile.
    adviser: Waiter,
}

/// Kernel readahead of a device, in pages.
#[derive(Clone, Copy, Debug)]
struct KernelWindow {
    /// Largest window for an ascending stream.
    ahead: u64,
    /// Largest advice per call.
    call: u64,
    /// True without a block device below: a server, or FUSE. Advice there blocks while the file
    /// system has its maximum of requests in flight (12 for FUSE).
    is_remote: bool,
}

/// Kernel readahead state of one open file; see [`KernelReadahead`].
pub(crate) struct Steered {
    kernel_readahead: Arc<KernelReadahead>,
    /// Advised page ranges that were not read yet.
    advised: Mutex<KernelCachedPages>,
    /// True while advised pages wait for a reader: the policy then sees every read.
    is_engaged: AtomicBool,
    /// True if the kernel's window is large enough for ascending streams.
    leaves_streams: OnceLock<bool>,
}

/// A read through the kernel page cache, in progress until dropped.
pub(super) struct KernelRead<'a> {
    kernel_readahead: &'a KernelReadahead,
    /// Numbers of reads in progress, and of ended reads, at its start.
    beside: u64,
    before: u64,
    begun: Time,
}

/// Policy state of one handle.
pub(crate) type HandlePolicy = AdaptiveReadahead;

/// A read as shown to the policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// Start of the shown range; earlier than the read for skipped reads of a run.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// True if it begins at the end of the thread's last read: the kernel then reads ahead of it.
    pub(super) goes_on: bool,
    /// True if the run before it was read without the kernel's readahead.
    pub(super) was_alone: bool,
    /// True if the advice must include the read itself.
    pub(super) is_begun: bool,
    /// First byte known to be absent, if any.
    pub(super) missed: Option<u64>,
}

/// Answer of the policy to a read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelReadOutcome {
    /// True if the policy wants less than the kernel would read ahead of the run.
    pub(super) goes_on_alone: bool,
    /// True if a part of the read was advised before.
    pub(super) was_advised: bool,
}

/// Counters of reads through the kernel page cache, and of advice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThroughKernel {
    pub(crate) waits: u64,
    pub(crate) waited_bytes: u64,
    pub(crate) advised_bytes: u64,
}

/// Answer of the policy, and the page ranges to advise.
struct Wanted {
    seen: KernelReadOutcome,
    runs: Vec<PageRange>,
}

impl KernelReadahead {
    /// Starts without knowledge.
    pub(crate) fn new(clock: Clock, logs_decisions: bool) -> KernelReadahead {
        let mut evidence = DeviceEvidence::default();
        evidence.log.turn(logs_decisions);
        KernelReadahead {
            clock,
            evidence: Mutex::new(evidence),
            reading: AtomicU64::new(0),
            read: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            waited_bytes: AtomicU64::new(0),
            advised_bytes: AtomicU64::new(0),
            windows: Mutex::default(),
            memory_pages: OnceLock::new(),
            waiter: Waiter::new(),
            adviser: Waiter::new(),
        }
    }

    /// Counters so far.
    pub(crate) fn counted(&self) -> ThroughKernel {
        ThroughKernel {
            waits: self.waits.load(Ordering::Relaxed),
            waited_bytes: self.waited_bytes.load(Ordering::Relaxed),
            advised_bytes: self.advised_bytes.load(Ordering::Relaxed),
        }
    }

    /// Appends the policy's decisions since the last call.
    pub(crate) fn take_decisions(&self, all: &mut Vec<LoggedDecision>) {
        let mut evidence = self.evidence();
        all.extend(std::iter::from_fn(|| evidence.log.poll()));
    }

    /// Memory that the policy assumes, in pages; looked up at first use.
    fn memory_pages(&self) -> u64 {
        *self.memory_pages.get_or_init(|| {
            total_memory().map_or(MEMORY_BYTES, |total| MEMORY_BYTES.min(total / 4)) / PAGE_BYTES
        })
    }

    fn evidence(&self) -> MutexGuard<'_, DeviceEvidence> {
        self.evidence.lock().expect(POISON)
    }

    /// Returns the kernel's readahead window for the target's device, cached per device.
    fn window_of(&self, target: &Target) -> KernelWindow {
        let mut windows = self.windows.lock().expect(POISON);
        *windows.entry(target.device()).or_insert_with(|| KernelWindow::of(target.queue()))
    }

    /// Begins a read that may wait.
    fn reads(&self) -> KernelRead<'_> {
        KernelRead {
            kernel_readahead: self,
            beside: self.reading.fetch_add(1, Ordering::Relaxed),
            before: self.read.load(Ordering::Relaxed),
            begun: self.clock.now(),
        }
    }

    /// Learns the cost of a request from a read that had the device to itself, as far as known.
    fn learn(&self, begun: Time, ended: Time, bytes: u64) {
        let estimate = &mut self.evidence().estimate;
        estimate.dispatched(begun, RequestId(0), None);
        estimate.completed(ended, ended, RequestId(0), bytes);
    }

    /// Starts the kernel's readahead of these ranges, without waiting for the pages. With
    /// `must_not_wait`, threads make the call on file systems where it may block.
    fn advise(&self, target: &Target, runs: &[PageRange], must_not_wait: bool) {
        let KernelWindow { call, is_remote, .. } = self.window_of(target);
        for run in runs {
            let mut first = run.first;
            while first < run.end {
                let pages = PageRange::new(first, call.min(run.end - first));
                let is_advised = if must_not_wait && is_remote {
                    let target = Box::new(target.clone());
                    self.adviser.hand_over(Task::Advise { target, pages }).is_ok()
                } else {
                    read_ahead(target, pages)
                };
                if !is_advised {
                    return;
                }
                let bytes = pages.count() * PAGE_BYTES;
                self.advised_bytes.fetch_add(bytes, Ordering::Relaxed);
                probes::advised(first * PAGE_BYTES, bytes);
                first = pages.end;
            }
        }
    }
}

impl KernelRead<'_> {
    /// Ends a read of `bytes` bytes and returns the number of awaited bytes: all or none. A read
    /// that did not certainly miss (`has_missed`) is classified by its duration. The cost of a
    /// request is learned if no other read was in progress and no part was advised before, since
    /// that part may have been in flight already.
    pub(super) fn has_read(self, bytes: u64, has_missed: bool, was_advised: bool) -> u64 {
        let KernelRead { kernel_readahead, beside, before, begun } = &self;
        let (beside, before, begun) = (*beside, *before, *begun);
        let ended = kernel_readahead.clock.now();
        let took_long = has_waited(bytes, ended.since(begun).ns());
        if !took_long && !has_missed {
            return 0;
        }
        kernel_readahead.waits.fetch_add(1, Ordering::Relaxed);
        kernel_readahead.waited_bytes.fetch_add(bytes, Ordering::Relaxed);
        let had_device = beside == 0 && !was_advised;
        if took_long && had_device && kernel_readahead.read.load(Ordering::Relaxed) == before {
            kernel_readahead.learn(begun, ended, bytes);
        }
        bytes
    }
}

impl Drop for KernelRead<'_> {
    fn drop(&mut self) {
        self.kernel_readahead.reading.fetch_sub(1, Ordering::Relaxed);
        self.kernel_readahead.read.fetch_add(1, Ordering::Relaxed);
    }
}

/// Extends the range that follows `request` to include it, so the device gets one request. Returns
/// true if there is one.
fn join(request: PageRange, runs: &mut [PageRange]) -> bool {
    let next = runs.iter_mut().find(|run| run.first == request.end);
    next.map(|run| run.first = request.first).is_some()
}

/// Removes ranges that the kernel reads ahead of an ascending stream by itself.
fn leave_to_kernel(
    runs: &mut Vec<PageRange>,
    window: impl Fn() -> KernelWindow,
    request: PageRange,
) {
    let least = ReadaheadLimits::default().window_pages_max;
    let is_ahead_within =
        |run: &PageRange, ahead| run.first >= request.end && run.end <= request.end + ahead;
    runs.retain(|run| !is_ahead_within(run, least));
    if !runs.is_empty() {
        let ahead = window().ahead;
        runs.retain(|run| !is_ahead_within(run, ahead));
    }
}

/// Largest number of pages to advise for a program's hint: half of the free memory, which is looked
/// up only for large ranges.
fn wanted_pages_max(range: PageRange) -> u64 {
    let bytes = range.count() * PAGE_BYTES;
    let free = || SpareMemory::now().map_or(MEMORY_BYTES, |memory| memory.available / 2);
    if bytes <= MEMORY_BYTES / 2 { range.count() } else { free() / PAGE_BYTES }
}

/// True if a read of this size and duration has waited for the device.
pub(super) fn has_waited(bytes: u64, took_ns: u64) -> bool {
    took_ns >= COPY_NS + bytes * COPY_KIB_NS / 1024
}

impl KernelWindow {
    /// Number of pages that the kernel would read ahead of a request that continues a run and
    /// misses.
    fn kernels(&self, request: PageRange) -> u64 {
        first_window_pages(request.count(), self.ahead).saturating_sub(request.count())
    }

    /// Window of a device's queue; without a queue, the kernel's defaults.
    fn of(queue: Option<&QueueLimits>) -> KernelWindow {
        let least = ReadaheadLimits::default().window_pages_max;
        let [ahead, request] = queue
            .map_or([0; 2], |queue| [queue.read_ahead_bytes, queue.request_bytes_max])
            .map(|bytes| (bytes / PAGE_BYTES).max(least));
        KernelWindow { ahead, call: ahead.max(request), is_remote: queue.is_none() }
    }
}

impl Steered {
    /// State of file number `number`, without knowledge.
    pub(super) fn new(kernel_readahead: Arc<KernelReadahead>, number: u32) -> Steered {
        let advised = Mutex::new(KernelCachedPages::new(number));
        let is_engaged = AtomicBool::new(false);
        Steered { kernel_readahead, advised, is_engaged, leaves_streams: OnceLock::new() }
    }

    /// True if the policy must see every read, resident or not.
    #[inline]
    pub(super) fn is_engaged(&self) -> bool {
        self.is_engaged.load(Ordering::Relaxed)
    }

    /// True if ascending streams are left to the kernel, whose window is large enough.
    pub(super) fn leaves_streams(&self, target: &Target) -> bool {
        let is_large = || self.kernel_readahead.window_of(target).ahead >= OWN_WINDOW_PAGES;
        *self.leaves_streams.get_or_init(is_large)
    }

    /// Stops showing every read to the policy: the advised pages belong to another reader.
    pub(super) fn disengage(&self) {
        self.is_engaged.store(false, Ordering::Relaxed);
    }

    /// True if the next read needs neither a check nor the policy. Consumes one unit of trust.
    #[inline]
    pub(super) fn trusts(&self, residency_sampling: &ResidencySampling) -> bool {
        !self.is_engaged() && residency_sampling.take()
    }

    /// Shows a read to the handle's policy, and advises the kernel of its windows.
    pub(super) fn read(
        &self,
        policy: &Mutex<HandlePolicy>,
        target: &Target,
        shown: Shown,
    ) -> KernelReadOutcome {
        let (now, window) =
            (self.kernel_readahead.clock.now(), || self.kernel_readahead.window_of(target));
        let Wanted { seen, runs } = self.decide(policy, now, target.bytes(), window, shown);
        if !runs.is_empty() {
            self.kernel_readahead.advise(target, &runs, shown.is_begun);
        }
        seen
    }

    /// Shows a read at time `now` to the handle's policy. `window` returns the kernel's window of
    /// the device and is called only if needed.
    fn decide(
        &self,
        policy: &Mutex<HandlePolicy>,
        now: Time,
        file_bytes: u64,
        window: impl Fn() -> KernelWindow,
        shown: Shown,
    ) -> Wanted {
        let Shown { offset, bytes, goes_on, was_alone, is_begun, missed } = shown;
        let request = PageRange::covering(offset, bytes);
        let ask = ReadRequest { offset, bytes, file_bytes, is_congested: false };
        let mut runs = Vec::new();
        let mut wanted = None;
        let was_advised;
        {
            let mut policy = policy.lock().expect(POISON);
            let mut advised = self.advised.lock().expect(POISON);
            let mut device = self.kernel_readahead.evidence();
            was_advised = advised.has_unused(request);
            if let Some(first) = missed {
                advised.missed(PageRange::covering(first, offset + bytes - first));
            }
            if !advised.is_quiet(request) {
                device.now = now;
                device.memory_pages = self.kernel_readahead.memory_pages();
                device.reads_under_way =
                    self.kernel_readahead.reading.load(Ordering::Relaxed).max(1);
                policy.read(
                    &ask,
                    &mut KernelPageView {
                        advised: &mut advised,
                        device: &mut device,
                        file_pages: ask.file_pages(),
                        runs: &mut runs,
                    },
                );
                wanted = Some(policy.wanted_anywhere());
            }
            advised.read(request, &mut device);
            self.is_engaged.store(advised.awaits_reader(), Ordering::Relaxed);
        }
        let goes_on_alone = match wanted {
            // The kernel reads nothing ahead of a read that continues no run, but it will for the
            // next one.
            Some(wanted) => {
                wanted.is_some_and(|pages| !goes_on || pages < window().kernels(request))
            }
            None => was_alone,
        };
        if goes_on_alone && !is_begun {
            // The check has already started the kernel's I/O.
            if missed.is_none() {
                join(request, &mut runs);
            }
            return Wanted { seen: KernelReadOutcome { goes_on_alone, was_advised }, runs };
        }
        // A submitted read does not go through `read(2)` now, so the kernel reads nothing ahead of
        // it.
        if goes_on && !is_begun {
            leave_to_kernel(&mut runs, window, request);
        }
        if is_begun && !join(request, &mut runs) {
            runs.insert(0, request);
        }
        Wanted { seen: KernelReadOutcome { goes_on_alone: false, was_advised }, runs }
    }

    /// Starts a waiter thread for a task's read.
    ///
    /// # Errors
    /// The system provides no thread.
    pub(super) fn wait_for(&self, wish: Arc<Wish>) -> std::io::Result<()> {
        self.kernel_readahead.waits.fetch_add(1, Ordering::Relaxed);
        self.kernel_readahead.waited_bytes.fetch_add(wish.bytes, Ordering::Relaxed);
        self.kernel_readahead.waiter.hand_over(Task::Read(wish))
    }

    /// True if a thread waits for a read of the file now.
    pub(super) fn waits_for(&self, key: FileKey) -> bool {
        self.kernel_readahead.waiter.waits_for(key)
    }

    /// Begins a read that may wait.
    pub(super) fn reads(&self) -> KernelRead<'_> {
        self.kernel_readahead.reads()
    }

    /// Drops clean pages of the range from the kernel page cache; the others stay.
    pub(super) fn drop(&self, target: &Target, range: PageRange) {
        if range.is_empty() {
            return;
        }
        self.advised.lock().expect(POISON).forget(range, &mut self.kernel_readahead.evidence());
        drop_cached(target, range);
    }

    /// Readahead estimate of the file.
    pub(super) fn readahead_state(&self) -> ReadaheadState {
        let advised = self.advised.lock().expect(POISON);
        advised.readahead_state(&self.kernel_readahead.evidence())
    }

    /// Ends the streams of a closed handle.
    pub(super) fn closed(&self, policy: &Mutex<HandlePolicy>, target: &Target) {
        let file_pages = target.bytes().div_ceil(PAGE_BYTES);
        policy.lock().expect(POISON).closed(
            None,
            file_pages,
            &mut self.kernel_readahead.evidence(),
        );
    }

    /// Applies a hint of a handle. `WillNeed` starts the kernel's readahead of the range, as far as
    /// memory allows. `DontNeed` drops its clean pages.
    pub(super) fn advised(
        &self,
        policy: &Mutex<HandlePolicy>,
        target: &Target,
        advice: Advice,
        range: PageRange,
    ) {
        policy.lock().expect(POISON).advise(advice);
        let mut advised = self.advised.lock().expect(POISON);
        let mut device = self.kernel_readahead.evidence();
        match advice {
            Advice::WillNeed => {
                let range = range.clipped(target.bytes().div_ceil(PAGE_BYTES));
                let range = range.clipped(range.first.saturating_add(wanted_pages_max(range)));
                advised.read(range, &mut device);
                drop((advised, device));
                self.kernel_readahead.advise(target, &[range], true);
            }
            Advice::DontNeed => {
                drop((advised, device));
                self.drop(target, range);
            }
            Advice::Normal | Advice::Sequential | Advice::Random => {}
        }
    }
}

#[cfg(test)]
mod tests;
