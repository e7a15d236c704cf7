//! What the kernel is advised to bring into its cache, where it keeps the pages.
//!
//! Our readahead law sees the reads that the kernel is not known to hold, and says what is to be read ahead of them.
//! `readahead(2)` has the kernel begin with that and returns; the read itself waits for no more than its own bytes. What the law
//! learns a request to cost comes from the reads that wait while no other does.
//!
//! The kernel reads ahead by itself too, of what goes on upwards, in large pieces of memory, which costs it a third of what
//! it costs to be advised (256 MiB by 64 KiB: 0.026 s of processor time, advised 0.081). So what the law wants of such a
//! stream is left to it as far as its own window goes (`read_ahead_kb`), and advised beyond. Of what goes
//! downwards, in strides, in pieces and to and fro it knows nothing: that is advised.

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

use super::residency_sampling::ResidencySampling;
use super::waiter::{FileKey, Task, Waiter, Wish};
use super::{drop_cached, read_ahead};
use crate::clock::Clock;
use crate::points;
use crate::spare_memory::{SpareMemory, total_memory};
use crate::sysfs::QueueLimits;
use crate::target::Target;

/// What is in memory is copied within so many nanoseconds, and so many more for each KiB (1 GiB a second): what takes longer
/// has waited for the device. (Copies of 4 KiB took 0.4 to 1.2 us, reads of 4 KiB from an idle virtual disk 45 us and more.)
const COPY_NS: u64 = 10_000;
const COPY_KIB_NS: u64 = 1_000;

/// The memory that the law counts on: what is advised ahead of all readers together is no more than half of it; a quarter of
/// all that the process may have, where that is less. (With 256 MiB,
/// random reads of 16 KiB of a file as large, on eight threads, had all of it advised once an eighth was read: three
/// times the bytes, and 0.4 of the rate of `pread`.)
const MEMORY_BYTES: u64 = 64 << 20;

/// Where the kernel reads so many pages ahead by itself, 2 MiB, its streams gain nothing by our law.
const OWN_WINDOW_PAGES: u64 = 512;

const POISON: &str = "what is learned is written by our own code, which doesn't panic";

/// What a path has learned of what lies below the kernel's cache, and what it has asked of it.
pub(crate) struct KernelReadahead {
    clock: Clock,
    evidence: Mutex<DeviceEvidence>,
    /// Reads under way now, and those that have ended.
    reading: AtomicU64,
    read: AtomicU64,
    /// Those that waited for the device, and their bytes.
    waits: AtomicU64,
    waited_bytes: AtomicU64,
    advised_bytes: AtomicU64,
    /// By the number of the device, what the kernel reads ahead on it.
    windows: Mutex<BTreeMap<u64, KernelWindow>>,
    memory_pages: OnceLock<u64>,
    waiter: Waiter,
    /// Gives advice where that may wait; on its own, so that the reads are under way side by side.
    adviser: Waiter,
}

/// What the kernel reads ahead on a device, in pages.
#[derive(Clone, Copy, Debug)]
struct KernelWindow {
    /// Of a stream that goes upwards.
    ahead: u64,
    /// At the most where it is advised, in one call.
    call: u64,
    /// Whether no block device is known below: a server, or FUSE. There advice waits while as many
    /// requests are under way as the file system takes (12, of FUSE).
    is_remote: bool,
}

/// What one open file has to say to its law; see [`KernelReadahead`].
pub(crate) struct Steered {
    kernel_readahead: Arc<KernelReadahead>,
    advised: Mutex<KernelCachedPages>,
    /// Whether something was advised to which a reader is expected to come: then the law sees each read.
    is_engaged: AtomicBool,
    leaves_streams: OnceLock<bool>,
}

/// A read through the kernel's cache, until it is dropped.
pub(super) struct KernelRead<'a> {
    kernel_readahead: &'a KernelReadahead,
    /// How many were under way when it began, and how many had ended.
    beside: u64,
    before: u64,
    begun: Time,
}

/// The law of one handle.
pub(crate) type HandlePolicy = AdaptiveReadahead;

/// A read that a law is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// From where on the law is shown it.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Whether it begins where the thread's last one ended: then the kernel reads ahead of it.
    pub(super) goes_on: bool,
    /// Whether the run that it goes on from is read without the kernel's readahead.
    pub(super) was_alone: bool,
    /// Whether the kernel is to begin with the read itself.
    pub(super) is_begun: bool,
    /// From which byte on it is known not to be held, if so.
    pub(super) missed: Option<u64>,
}

/// What came of a read that a law was shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelReadOutcome {
    /// Whether the law wants less than the kernel would read ahead by itself of what goes on from there.
    pub(super) goes_on_alone: bool,
    /// Whether a part of it had been advised before.
    pub(super) was_advised: bool,
}

/// What was read through the kernel's cache, and what it was advised of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThroughKernel {
    pub(crate) waits: u64,
    pub(crate) waited_bytes: u64,
    pub(crate) advised_bytes: u64,
}

/// Answer to a read that a law was shown, and the pages that the kernel is to be advised of.
struct Wanted {
    seen: KernelReadOutcome,
    runs: Vec<PageRange>,
}

impl KernelReadahead {
    /// Nothing is known yet.
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

    /// What was counted so far.
    pub(crate) fn counted(&self) -> ThroughKernel {
        ThroughKernel {
            waits: self.waits.load(Ordering::Relaxed),
            waited_bytes: self.waited_bytes.load(Ordering::Relaxed),
            advised_bytes: self.advised_bytes.load(Ordering::Relaxed),
        }
    }

    /// What the law has decided since this was last asked.
    pub(crate) fn take_decisions(&self, all: &mut Vec<LoggedDecision>) {
        let mut evidence = self.evidence();
        all.extend(std::iter::from_fn(|| evidence.log.poll()));
    }

    /// The memory that the law counts on, which is looked up when it is first asked.
    fn memory_pages(&self) -> u64 {
        *self.memory_pages.get_or_init(|| {
            total_memory().map_or(MEMORY_BYTES, |total| MEMORY_BYTES.min(total / 4)) / PAGE_BYTES
        })
    }

    fn evidence(&self) -> MutexGuard<'_, DeviceEvidence> {
        self.evidence.lock().expect(POISON)
    }

    fn window_of(&self, target: &Target) -> KernelWindow {
        let mut windows = self.windows.lock().expect(POISON);
        *windows.entry(target.device()).or_insert_with(|| KernelWindow::of(target.queue()))
    }

    /// A read begins that may wait.
    fn reads(&self) -> KernelRead<'_> {
        KernelRead {
            kernel_readahead: self,
            beside: self.reading.fetch_add(1, Ordering::Relaxed),
            before: self.read.load(Ordering::Relaxed),
            begun: self.clock.now(),
        }
    }

    /// A read had the device to itself, as far as is known.
    fn learn(&self, begun: Time, ended: Time, bytes: u64) {
        let estimate = &mut self.evidence().estimate;
        estimate.dispatched(begun, RequestId(0), None);
        estimate.completed(ended, ended, RequestId(0), bytes);
    }

    /// Has the kernel bring in these pages; returns before they are there. A caller that `must_not_wait`
    /// leaves it to threads where the file system itself may have it wait.
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
                points::advised(first * PAGE_BYTES, bytes);
                first = pages.end;
            }
        }
    }
}

impl KernelRead<'_> {
    /// It has read so many bytes. Gives how many of them it waited for: all or none, as the time tells that it took, if it
    /// isn't known that it `has_missed`. What a request costs is learned from it where no other was under way, and where nothing of it was
    /// `advised` before: that may have been on its way already.
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

/// Has what goes on from a request come in together with it, by one request of the device's; gives whether anything does.
fn join(request: PageRange, runs: &mut [PageRange]) -> bool {
    let next = runs.iter_mut().find(|run| run.first == request.end);
    next.map(|run| run.first = request.first).is_some()
}

/// Takes out what the kernel reads by itself of a stream that goes upwards.
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

/// How much of a range that a program says it will need is advised: as far as half of the memory goes that is free, which is
/// looked up where it may matter.
fn wanted_pages_max(range: PageRange) -> u64 {
    let bytes = range.count() * PAGE_BYTES;
    let free = || SpareMemory::now().map_or(MEMORY_BYTES, |memory| memory.available / 2);
    if bytes <= MEMORY_BYTES / 2 { range.count() } else { free() / PAGE_BYTES }
}

/// Whether a read of so many bytes that took so long has waited for the device.
pub(super) fn has_waited(bytes: u64, took_ns: u64) -> bool {
    took_ns >= COPY_NS + bytes * COPY_KIB_NS / 1024
}

impl KernelWindow {
    /// How many pages the kernel reads ahead by itself of a request that goes on and finds nothing.
    fn kernels(&self, request: PageRange) -> u64 {
        first_window_pages(request.count(), self.ahead).saturating_sub(request.count())
    }

    /// Of a device's queue; the kernel's defaults where it has none.
    fn of(queue: Option<&QueueLimits>) -> KernelWindow {
        let least = ReadaheadLimits::default().window_pages_max;
        let [ahead, request] = queue
            .map_or([0; 2], |queue| [queue.read_ahead_bytes, queue.request_bytes_max])
            .map(|bytes| (bytes / PAGE_BYTES).max(least));
        KernelWindow { ahead, call: ahead.max(request), is_remote: queue.is_none() }
    }
}

impl Steered {
    /// Of the file of that number nothing is known.
    pub(super) fn new(kernel_readahead: Arc<KernelReadahead>, number: u32) -> Steered {
        let advised = Mutex::new(KernelCachedPages::new(number));
        let is_engaged = AtomicBool::new(false);
        Steered { kernel_readahead, advised, is_engaged, leaves_streams: OnceLock::new() }
    }

    /// Whether the law is to see each read, whatever the kernel has of it.
    #[inline]
    pub(super) fn is_engaged(&self) -> bool {
        self.is_engaged.load(Ordering::Relaxed)
    }

    /// Whether streams that go upwards are the kernel's alone: it reads far enough ahead of them by itself.
    pub(super) fn leaves_streams(&self, target: &Target) -> bool {
        let is_large = || self.kernel_readahead.window_of(target).ahead >= OWN_WINDOW_PAGES;
        *self.leaves_streams.get_or_init(is_large)
    }

    /// What was advised is not for who reads now.
    pub(super) fn disengage(&self) {
        self.is_engaged.store(false, Ordering::Relaxed);
    }

    /// Whether the read that is about to be made is neither looked at nor shown to the law.
    #[inline]
    pub(super) fn trusts(&self, residency_sampling: &ResidencySampling) -> bool {
        !self.is_engaged() && residency_sampling.take()
    }

    /// The law of the handle sees a read, and the kernel is advised of what it wants.
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

    /// The law of the handle sees a read at `now` of a file of so many bytes, on a device with that
    /// window of the kernel's, which is looked up where it matters.
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
            // Of a read that continues none the kernel reads nothing ahead; of the next one it will.
            Some(wanted) => {
                wanted.is_some_and(|pages| !goes_on || pages < window().kernels(request))
            }
            None => was_alone,
        };
        if goes_on_alone && !is_begun {
            // What was looked at the kernel has begun with.
            if missed.is_none() {
                join(request, &mut runs);
            }
            return Wanted { seen: KernelReadOutcome { goes_on_alone, was_advised }, runs };
        }
        // Who has it begun doesn't read through the kernel right now, which so reads nothing ahead.
        if goes_on && !is_begun {
            leave_to_kernel(&mut runs, window, request);
        }
        if is_begun && !join(request, &mut runs) {
            runs.insert(0, request);
        }
        Wanted { seen: KernelReadOutcome { goes_on_alone: false, was_advised }, runs }
    }

    /// Has a task's wish be waited for.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn wait_for(&self, wish: Arc<Wish>) -> std::io::Result<()> {
        self.kernel_readahead.waits.fetch_add(1, Ordering::Relaxed);
        self.kernel_readahead.waited_bytes.fetch_add(wish.bytes, Ordering::Relaxed);
        self.kernel_readahead.waiter.hand_over(Task::Read(wish))
    }

    /// Whether a thread waits for a read of the file now.
    pub(super) fn waits_for(&self, key: FileKey) -> bool {
        self.kernel_readahead.waiter.waits_for(key)
    }

    /// A read begins that may wait.
    pub(super) fn reads(&self) -> KernelRead<'_> {
        self.kernel_readahead.reads()
    }

    /// Has the kernel drop what is clean of these pages, whole or in part; what it can't drop stays.
    pub(super) fn drop(&self, target: &Target, range: PageRange) {
        if range.is_empty() {
            return;
        }
        self.advised.lock().expect(POISON).forget(range, &mut self.kernel_readahead.evidence());
        drop_cached(target, range);
    }

    /// What is believed of the file.
    pub(super) fn readahead_state(&self) -> ReadaheadState {
        let advised = self.advised.lock().expect(POISON);
        advised.readahead_state(&self.kernel_readahead.evidence())
    }

    /// The handle is closed: its streams have ended.
    pub(super) fn closed(&self, policy: &Mutex<HandlePolicy>, target: &Target) {
        let file_pages = target.bytes().div_ceil(PAGE_BYTES);
        policy.lock().expect(POISON).closed(
            None,
            file_pages,
            &mut self.kernel_readahead.evidence(),
        );
    }

    /// A hint on how the handle will read: `WillNeed` has the kernel begin to read the range, as far as memory allows;
    /// `DontNeed` has it drop what is clean of it.
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
