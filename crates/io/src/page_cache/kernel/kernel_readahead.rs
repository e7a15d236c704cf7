//! Kernel readahead: advice to the kernel where it caches the pages.
//!
//! The *policy* is the readahead policy of this process, with a state for each handle, which is one
//! opening of a file. A page is *resident* if it is in the kernel page cache. A read is *awaited*
//! if it waited for the device. *Advice* is a call of `readahead(2)` for a page range. A *window*
//! is a page range that the policy wants to be read ahead. The *kernel's window* is read ahead by
//! the kernel itself. A *run* is a sequence of reads, each of which begins where the last one
//! ended. A *stream* is a pattern of reads that the policy has detected.
//!
//! The readahead policy sees reads that are not known to be resident and returns windows.
//! `readahead(2)` starts their I/O and returns. The read itself waits only for its own bytes. Reads
//! that wait while no other does teach the policy the cost of a request.
//!
//! The kernel also reads ahead of ascending streams by itself, in large folios, with a third of the
//! processor time (256 MiB by 64 KiB: 0.026 s, advised 0.081 s). A policy's window of such a stream
//! is therefore advised only if it reaches beyond the kernel's own (`read_ahead_kb`). The kernel
//! does not detect descending, strided and record access: these windows are advised completely.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use readpath_core::decision::LoggedDecision;
use readpath_core::readahead::{
    AdaptiveReadahead, Advice, DeviceEvidence, KernelCachedPages, ReadaheadLimits, ReadaheadPolicy,
    ReadaheadState, first_window_pages,
};
use readpath_core::request::RequestId;
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};
use readpath_os::queue::QueueLimits;

use super::blocking_pool::{BlockingPool, BlockingRead, FileKey, Job};
use super::spare_memory::SpareMemory;
use super::{drop_kernel_range, read_ahead};
use crate::os::clock::Clock;
use crate::os::process::ProcessNumber;
use crate::os::system_memory::{SystemMemory, total_memory};
use crate::probes;
use crate::target::Target;

mod decision;

use decision::PolicyDecision;

/// Threshold of a read that has waited for the device: 10 us plus 1 us per KiB (1 GiB/s). Copies of
/// 4 KiB took 0.4 to 1.2 us, reads of 4 KiB from an idle virtual disk 45 us and more.
const COPY_FIXED_NS: u64 = 10_000;
const COPY_NS_PER_KIB: u64 = 1_000;

/// Memory in bytes that the policy assumes, at most a quarter of the process's total. Advice for
/// all readers together is limited to half of it. With 256 MiB the limit was too high: random reads
/// of 16 KiB by eight threads in a file of that size had all of it advised once an eighth was read.
/// They read three times the bytes, at 0.4 of the rate of `pread`.
const POLICY_MEMORY_BYTES: u64 = 64 << 20;

/// Kernel readahead window in pages (2 MiB) from which its streams gain nothing by our policy.
const LARGE_WINDOW_PAGES: u64 = 512;

/// Reason for which the locks are never poisoned.
const POISON: &str = "what is learned is written by our own code, which doesn't panic";

/// Device knowledge and advice of one path whose pages the kernel caches.
pub(crate) struct PathKernelReadahead {
    /// Clock of all times here.
    clock: Clock,
    /// Measured costs of the device, shared by all handles.
    evidence: Mutex<DeviceEvidence>,
    /// Number of reads in progress, and of reads that have ended.
    reads_in_progress: AtomicU64,
    reads_ended: AtomicU64,
    /// Number of reads that waited for the device, and their bytes.
    waits: AtomicU64,
    waited_bytes: AtomicU64,
    /// Bytes that the kernel was advised to read ahead.
    advised_bytes: AtomicU64,
    /// Kernel readahead windows, by device number.
    windows: Mutex<BTreeMap<u64, KernelWindow>>,
    /// Memory that the policy assumes, in pages.
    memory_pages: OnceLock<u64>,
    /// Memory that a whole file may fill for a lone reader.
    spare: SpareMemory,
    /// Threads that wait for reads of tasks and batches.
    waiter: BlockingPool,
    /// Threads that give advice where the call may block. Separate from `waiter`, so reads continue
    /// meanwhile.
    adviser: BlockingPool,
}

/// Kernel readahead of a device, in pages.
#[derive(Clone, Copy, Debug)]
struct KernelWindow {
    /// Largest window for an ascending stream.
    window_pages: u64,
    /// Largest advice per call.
    advice_pages_max: u64,
    /// True if no block device is known below: a server, FUSE, a stacked file system, memory.
    /// Advice blocks while a server or FUSE has its maximum of requests in flight (12 for FUSE).
    may_block: bool,
}

/// Kernel readahead state of one open file; see [`PathKernelReadahead`].
pub(crate) struct FileKernelReadahead {
    /// State of the path, shared by its files.
    path_readahead: Arc<PathKernelReadahead>,
    /// Process that opened the file. A child made by `fork` drops it without the locks.
    process: ProcessNumber,
    /// Pages that were read or advised, and the advised ones that were not read since.
    advised: Mutex<KernelCachedPages>,
    /// True while advised pages wait for a reader: the policy then sees every read. It becomes
    /// false once many reads in a row have reached none of them, and by `stop_showing_reads`.
    has_unread_advice: AtomicBool,
    /// True if the kernel's window is large enough for ascending streams.
    has_large_window: OnceLock<bool>,
}

/// A read through the kernel page cache, in progress until dropped.
pub(in crate::page_cache) struct KernelReadTimer<'a> {
    kernel_readahead: &'a PathKernelReadahead,
    /// Number of other reads in progress, and of ended reads, at its start.
    others_at_start: u64,
    ended_at_start: u64,
    /// Time of its start.
    started: Time,
}

/// Policy state of one handle.
pub(crate) type HandlePolicy = AdaptiveReadahead;

/// A read as shown to the policy.
#[derive(Clone, Copy, Debug)]
pub(in crate::page_cache) struct PolicyAccess {
    /// Start of the shown range; earlier than the read for skipped reads of a run.
    pub(in crate::page_cache) offset: u64,
    /// Length of the shown range, up to the end of the read.
    pub(in crate::page_cache) bytes: u64,
    /// True if it begins at the end of the thread's last read, or is a first read at offset 0. The
    /// kernel then reads ahead of it.
    pub(in crate::page_cache) is_continuation: bool,
    /// True if the run before it was read without the kernel's readahead.
    pub(in crate::page_cache) was_without_readahead: bool,
    /// True for a read of a task or a batch: others may be in flight next to it, and the file is
    /// not read whole.
    pub(in crate::page_cache) is_of_task: bool,
    /// True if the advice must include the read itself, because the reader makes no call that waits
    /// for it.
    pub(in crate::page_cache) is_submitted: bool,
    /// Offset of the first byte known to be absent. `None` without a check, or if the check does
    /// not report it.
    pub(in crate::page_cache) first_absent: Option<u64>,
}

/// Answer of the policy to a read.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::page_cache) struct PolicyAnswer {
    /// True if the run is read without the kernel's readahead from here on. Always false for a
    /// submitted read.
    pub(in crate::page_cache) is_kernel_readahead_off: bool,
    /// True if a part of the shown range was advised and not read since.
    pub(in crate::page_cache) has_advised_part: bool,
}

/// Counters of reads through the kernel page cache, and of advice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelReadTotals {
    /// Number of reads that waited for the device, and their bytes.
    pub(crate) waits: u64,
    pub(crate) waited_bytes: u64,
    /// Bytes that the kernel was advised to read ahead.
    pub(crate) advised_bytes: u64,
    /// Part of the advised bytes by which files were read whole.
    pub(crate) whole_file_bytes: u64,
}

impl PathKernelReadahead {
    /// Creates the state without measured costs. The policy logs decisions if `logs_decisions` is
    /// true. A file that is read as a whole may fill `whole_file_bytes_max` bytes of memory. `None`
    /// is the default, a part of the available memory.
    pub(crate) fn new(
        clock: Clock,
        logs_decisions: bool,
        whole_file_bytes_max: Option<u64>,
    ) -> PathKernelReadahead {
        let mut evidence = DeviceEvidence::default();
        evidence.log.set_enabled(logs_decisions);
        PathKernelReadahead {
            clock,
            evidence: Mutex::new(evidence),
            reads_in_progress: AtomicU64::new(0),
            reads_ended: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            waited_bytes: AtomicU64::new(0),
            advised_bytes: AtomicU64::new(0),
            windows: Mutex::default(),
            memory_pages: OnceLock::new(),
            spare: SpareMemory::new(whole_file_bytes_max),
            waiter: BlockingPool::new(),
            adviser: BlockingPool::new(),
        }
    }

    /// Counters since the path was built.
    pub(crate) fn totals(&self) -> KernelReadTotals {
        KernelReadTotals {
            waits: self.waits.load(Ordering::Relaxed),
            waited_bytes: self.waited_bytes.load(Ordering::Relaxed),
            advised_bytes: self.advised_bytes.load(Ordering::Relaxed),
            whole_file_bytes: self.evidence().spare_added_pages * PAGE_BYTES,
        }
    }

    /// Moves the policy's decisions since the last call to the end of `decisions`.
    pub(crate) fn take_decisions(&self, decisions: &mut Vec<LoggedDecision>) {
        let mut evidence = self.evidence();
        decisions.extend(std::iter::from_fn(|| evidence.log.poll()));
    }

    /// Memory that the policy assumes, in pages; looked up at first use. At most a quarter of the
    /// process's total, if the system reports that.
    fn memory_pages(&self) -> u64 {
        *self.memory_pages.get_or_init(|| {
            total_memory().map_or(POLICY_MEMORY_BYTES, |total| POLICY_MEMORY_BYTES.min(total / 4))
                / PAGE_BYTES
        })
    }

    /// Locks the measured costs of the device, which the policy reads and updates.
    fn evidence(&self) -> MutexGuard<'_, DeviceEvidence> {
        self.evidence.lock().expect(POISON)
    }

    /// Returns the kernel's readahead window for the target's device, cached per device.
    fn device_window(&self, target: &Target) -> KernelWindow {
        let mut windows = self.windows.lock().expect(POISON);
        *windows.entry(target.device()).or_insert_with(|| KernelWindow::from_queue(target.queue()))
    }

    /// Begins a read that may wait: counts it as in progress and returns its timer.
    fn begin_read(&self) -> KernelReadTimer<'_> {
        KernelReadTimer {
            kernel_readahead: self,
            others_at_start: self.reads_in_progress.fetch_add(1, Ordering::Relaxed),
            ended_at_start: self.reads_ended.load(Ordering::Relaxed),
            started: self.clock.now(),
        }
    }

    /// Updates the estimated cost of a device request by a read of `bytes` bytes that lasted from
    /// `started` to `ended`. The read must have had the device to itself, as far as known.
    fn record_request_cost(&self, started: Time, ended: Time, bytes: u64) {
        // This is the only request that the estimate sees at this time, so any id identifies it.
        let id = RequestId(0);
        let unknown_sectors = None;
        // The reader waited for it, so it completed at its end and not before.
        let not_before = ended;
        let estimate = &mut self.evidence().estimate;
        estimate.on_dispatch(started, id, unknown_sectors);
        estimate.on_completion(ended, not_before, id, bytes);
    }

    /// Starts the kernel's readahead of these ranges without waiting for the pages, and counts
    /// their bytes. With `must_not_wait`, threads make the call where it may block. Stops at the
    /// first part that the kernel rejects, or for which there is no thread.
    fn advise(&self, target: &Target, advised_ranges: &[PageRange], must_not_wait: bool) {
        let KernelWindow { advice_pages_max, may_block, .. } = self.device_window(target);
        for range in advised_ranges {
            let mut first = range.first;
            while first < range.end {
                let pages = PageRange::new(first, advice_pages_max.min(range.end - first));
                let is_advised = if must_not_wait && may_block {
                    let target = Box::new(target.clone());
                    self.adviser.queue_job(Job::Advise { target, pages }).is_ok()
                } else {
                    read_ahead(target, pages)
                };
                // A hint that is not taken changes no result of a read.
                if !is_advised {
                    return;
                }
                let bytes = pages.count() * PAGE_BYTES;
                self.advised_bytes.fetch_add(bytes, Ordering::Relaxed);
                probes::on_advice(first * PAGE_BYTES, bytes);
                first = pages.end;
            }
        }
    }
}

impl KernelReadTimer<'_> {
    /// Ends a read of `bytes` bytes and returns the number of awaited bytes: all or none.
    /// `has_missed` is true if a page was certainly absent. Otherwise the duration decides if the
    /// read has waited. The estimated cost of a request is updated if the read had the device
    /// alone. Then no other read was in progress at its start or ended since, and no part was
    /// advised before (`has_advised_part`). An advised part may have been in flight already. After
    /// a check `bytes` are the bytes that the check has left over.
    pub(in crate::page_cache) fn finish(
        self,
        bytes: u64,
        has_missed: bool,
        has_advised_part: bool,
    ) -> u64 {
        let kernel_readahead = self.kernel_readahead;
        let ended = kernel_readahead.clock.now();
        let took_long = has_waited(bytes, ended.since(self.started).ns());
        if !took_long && !has_missed {
            return 0;
        }
        kernel_readahead.waits.fetch_add(1, Ordering::Relaxed);
        kernel_readahead.waited_bytes.fetch_add(bytes, Ordering::Relaxed);
        let had_device_alone = self.others_at_start == 0 && !has_advised_part;
        // A miss that ended within the time of a copy shows no cost of a request. Neither does a
        // read during which another one has ended.
        if took_long
            && had_device_alone
            && kernel_readahead.reads_ended.load(Ordering::Relaxed) == self.ended_at_start
        {
            kernel_readahead.record_request_cost(self.started, ended, bytes);
        }
        bytes
    }
}

impl Drop for FileKernelReadahead {
    /// Counts the advised pages of the closed file as evicted. They have no reader, and must not
    /// count against other files. In a child made by `fork` a thread that it lacks may have the
    /// lock, and the counts are the parent's.
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let advised = self.advised.get_mut().unwrap_or_else(PoisonError::into_inner);
        let device = self.path_readahead.evidence.lock();
        let mut device = device.unwrap_or_else(PoisonError::into_inner);
        let all_pages = PageRange { first: 0, end: u64::MAX };
        advised.on_evicted(all_pages, &mut device);
    }
}

impl Drop for KernelReadTimer<'_> {
    /// Counts the read as ended.
    fn drop(&mut self) {
        self.kernel_readahead.reads_in_progress.fetch_sub(1, Ordering::Relaxed);
        self.kernel_readahead.reads_ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Largest number of pages to advise for a hint of `range`: all of a range of up to 32 MiB, and
/// half of the available memory for a larger one. If that memory is unknown, 64 MiB.
fn hint_pages_max(range: PageRange) -> u64 {
    let bytes = range.count() * PAGE_BYTES;
    let hint_memory_bytes =
        || SystemMemory::measure().map_or(POLICY_MEMORY_BYTES, |memory| memory.available_bytes / 2);
    if bytes <= POLICY_MEMORY_BYTES / 2 { range.count() } else { hint_memory_bytes() / PAGE_BYTES }
}

/// True if a read of `bytes` bytes that took `duration_ns` nanoseconds has waited for the device.
pub(super) fn has_waited(bytes: u64, duration_ns: u64) -> bool {
    duration_ns >= COPY_FIXED_NS + bytes * COPY_NS_PER_KIB / 1024
}

impl KernelWindow {
    /// Number of pages that the kernel would read ahead of `request`, if the request continues a
    /// run and misses.
    fn kernel_readahead_pages(&self, request: PageRange) -> u64 {
        // The kernel's first window includes the request.
        first_window_pages(request.count(), self.window_pages).saturating_sub(request.count())
    }

    /// Creates the window of a device with this queue. Without a queue, the kernel's default window
    /// applies. Smaller values of a queue are raised to it.
    fn from_queue(queue: Option<&QueueLimits>) -> KernelWindow {
        let default_window = ReadaheadLimits::default().window_pages_max;
        let [window_pages, request_pages] = queue
            .map_or([0; 2], |queue| [queue.read_ahead_bytes, queue.request_bytes_max])
            .map(|bytes| (bytes / PAGE_BYTES).max(default_window));
        KernelWindow {
            window_pages,
            advice_pages_max: window_pages.max(request_pages),
            may_block: queue.is_none(),
        }
    }
}

impl FileKernelReadahead {
    /// Creates the state of a file without advised pages. `file_number` identifies the file in the
    /// log of decisions.
    pub(super) fn new(
        path_readahead: Arc<PathKernelReadahead>,
        file_number: u32,
    ) -> FileKernelReadahead {
        FileKernelReadahead {
            path_readahead,
            process: ProcessNumber::current(),
            advised: Mutex::new(KernelCachedPages::new(file_number)),
            has_unread_advice: AtomicBool::new(false),
            has_large_window: OnceLock::new(),
        }
    }

    /// True while advised pages wait for a reader: the policy must see every read, resident or not.
    #[inline]
    pub(in crate::page_cache) fn is_prefetching(&self) -> bool {
        self.has_unread_advice.load(Ordering::Relaxed)
    }

    /// True if ascending streams are left to the kernel: its window is `LARGE_WINDOW_PAGES` or
    /// more.
    pub(in crate::page_cache) fn leaves_streams(&self, target: &Target) -> bool {
        let is_large =
            || self.path_readahead.device_window(target).window_pages >= LARGE_WINDOW_PAGES;
        *self.has_large_window.get_or_init(is_large)
    }

    /// Ends the state in which the policy sees every read, because the advised pages belong to
    /// another reader. The next read that the policy sees may begin it again.
    pub(in crate::page_cache) fn stop_showing_reads(&self) {
        self.has_unread_advice.store(false, Ordering::Relaxed);
    }

    /// Shows a read to the handle's policy, and advises the kernel of the policy's windows. Returns
    /// the effects on the read itself.
    pub(in crate::page_cache) fn show_read(
        &self,
        policy: &Mutex<HandlePolicy>,
        target: &Target,
        access: PolicyAccess,
    ) -> PolicyAnswer {
        let now = self.path_readahead.clock.now();
        let window = || self.path_readahead.device_window(target);
        let PolicyDecision { answer, advised_ranges } =
            self.decide(policy, now, target.bytes(), window, access);
        if !advised_ranges.is_empty() {
            // The caller of a submitted read does not wait for it.
            let must_not_wait = access.is_submitted;
            self.path_readahead.advise(target, &advised_ranges, must_not_wait);
        }
        answer
    }

    /// Counts a read of `bytes` bytes that a thread or a ring awaits instead of the caller.
    pub(in crate::page_cache) fn record_wait(&self, bytes: u64) {
        self.path_readahead.waits.fetch_add(1, Ordering::Relaxed);
        self.path_readahead.waited_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// True if advice or a read on the target's file system may block until other requests have
    /// ended.
    pub(in crate::page_cache) fn may_block(&self, target: &Target) -> bool {
        self.path_readahead.device_window(target).may_block
    }

    /// Queues a read for a waiter thread. The caller [counts](FileKernelReadahead::record_wait) it.
    ///
    /// # Errors
    /// The system provides no thread.
    pub(in crate::page_cache) fn start_blocking_read(
        &self,
        blocking_read: Arc<BlockingRead>,
    ) -> std::io::Result<()> {
        self.path_readahead.waiter.queue_job(Job::Read(blocking_read))
    }

    /// True if a thread waits for a read of the file now.
    pub(in crate::page_cache) fn has_blocking_read(&self, key: FileKey) -> bool {
        self.path_readahead.waiter.has_read_of(key)
    }

    /// Begins a read that may wait: counts it as in progress and returns its timer.
    pub(in crate::page_cache) fn begin_read(&self) -> KernelReadTimer<'_> {
        self.path_readahead.begin_read()
    }

    /// Drops clean pages of the range from the kernel page cache; dirty and mapped pages stay. The
    /// policy learns that the range is evicted.
    pub(super) fn drop_pages(&self, target: &Target, range: PageRange) {
        if range.is_empty() {
            return;
        }
        self.advised.lock().expect(POISON).on_evicted(range, &mut self.path_readahead.evidence());
        drop_kernel_range(target, range);
    }

    /// Readahead estimate of the file.
    pub(super) fn readahead_state(&self) -> ReadaheadState {
        let advised = self.advised.lock().expect(POISON);
        advised.readahead_state(&self.path_readahead.evidence())
    }

    /// Ends the streams of a closed handle in its policy.
    pub(super) fn on_close(&self, policy: &Mutex<HandlePolicy>, target: &Target) {
        let file_pages = target.bytes().div_ceil(PAGE_BYTES);
        // The page of the last read, which would end its run, is not known: resident reads bypass
        // the policy.
        let last_page = None;
        policy.lock().expect(POISON).on_close(
            last_page,
            file_pages,
            &mut self.path_readahead.evidence(),
        );
    }

    /// Applies a hint of a handle: each one goes to the handle's policy. `WillNeed` also starts the
    /// kernel's readahead of the range, as far as memory allows. `DontNeed` also drops its clean
    /// pages.
    pub(super) fn on_advice(
        &self,
        policy: &Mutex<HandlePolicy>,
        target: &Target,
        advice: Advice,
        range: PageRange,
    ) {
        policy.lock().expect(POISON).advise(advice);
        let mut advised = self.advised.lock().expect(POISON);
        let mut device = self.path_readahead.evidence();
        match advice {
            Advice::WillNeed => {
                let range = range.clipped(target.bytes().div_ceil(PAGE_BYTES));
                let range = range.clipped(range.first.saturating_add(hint_pages_max(range)));
                // The range is known from now on: the policy does not advise it again.
                advised.read(range, &mut device);
                // The call below may block, so the locks are released first.
                drop((advised, device));
                let must_not_wait = true;
                self.path_readahead.advise(target, &[range], must_not_wait);
            }
            Advice::DontNeed => {
                drop((advised, device));
                self.drop_pages(target, range);
            }
            Advice::Normal | Advice::Sequential | Advice::Random => {}
        }
    }
}

#[cfg(test)]
mod tests;
