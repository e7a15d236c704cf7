//! Reads through the kernel page cache.
//!
//! A file that was just written, or that another program reads, is already in memory. Reading it
//! from the device again takes tens of times as long as a copy. Bytes read through that cache also
//! stay there for later readers, in memory that the kernel evicts by itself. A path uses that cache
//! in one of three modes ([`KernelCacheMode`]):
//!
//! - `Keeps`, the default: **the kernel caches the pages**. A read goes through its cache into the
//!   caller's memory. The readahead policy sees these reads and [advises](kernel_readahead) the
//!   kernel of future ones.
//! - `ReadIfResident`, if memory, a policy or a depth is set: the path caches pages itself. A read
//!   that finds none of its pages there checks residency in the kernel first (`cachestat(2)`, Linux
//!   6.5, which neither reads nor marks pages). It reads completely resident ranges from there.
//!   Partly resident ranges bypass the kernel page cache, so no page is cached twice.
//! - `Unused`, by option.
//!
//! In mode `Keeps` there is no residency check: reads themselves [sample](residency_sampling)
//! residency now and then.
//!
//! In mode `ReadIfResident` a check costs a system call, as much as the read. A read that finds its
//! pages resident therefore also checks the 2 MiB window around them, and later reads in that
//! window check nothing. Pages evicted meanwhile are detected by `RWF_NOWAIT`, which one small read
//! of eight sets (it costs a tenth of the read), and every large read. Checks without success
//! become rarer, down to one read in 64. Large reads (64 KiB or more) always check, because the
//! check is cheap compared with a device read.
//!
//! The bytes are the same as for any `read(2)`, including dirty pages of writers. A page in the
//! *path's* cache is always returned from there, so a reader never sees new bytes and then old
//! ones.
//!
//! If residency cannot be checked (older kernel, or another user's file without write permission),
//! pages count as absent. If the file cannot be opened a second time (no `/proc`), all reads bypass
//! the kernel page cache, as for block devices.

use std::io::IoSliceMut;
use std::num::NonZero;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use linux_raw_sys::general as raw;
use readpath_core::decision::LoggedDecision;
use readpath_core::readahead;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::fs::{Advice, fadvise};

use crate::aligned_bytes::AlignedBytes;
use crate::engine::Handle;
use crate::engine::storage_backend::StorageFile;
use crate::file::File;
use crate::target::{Direct, Mode, Target};

pub(crate) mod blocking_pool;
pub(crate) mod blocking_read;
mod buffered_file;
mod cached_reads;
pub(crate) mod kernel_readahead;
pub(crate) mod residency_sampling;
pub(crate) mod submitted_reads;

use buffered_file::{BufferedFile, covering_windows};
use kernel_readahead::{FileKernelReadahead, HandlePolicy, KernelReadTotals, PathKernelReadahead};
use residency_sampling::ResidencySampling;

/// Smallest read in bytes that always checks residency, because it would otherwise go to the
/// device.
const ALWAYS_CHECKED_BYTES: u64 = 64 << 10;
/// Number of consecutive failed checks after which the check rate halves with each further failure.
const FAILURES_BEFORE_BACKOFF: u32 = 4;
/// Lowest check rate: one of 2^6 reads.
const CHECK_PERIOD_MAX_LOG2: u32 = 6;

/// Use of the kernel page cache by a path.
#[derive(Clone)]
pub(crate) enum KernelCacheMode {
    /// Bypassed.
    Bypassed,
    /// Read from if pages are resident; the path caches pages itself.
    ReadIfResident,
    /// The kernel caches the pages; the path only advises it.
    CachesPages(Arc<PathKernelReadahead>),
}

/// Kernel page cache state of one open file.
pub(crate) struct KernelCacheState {
    /// The file, if its pages can be read through the kernel page cache.
    target: Option<Target>,
    bytes: u64,
    /// Rates of residency checks: of reads, and of the windows around them.
    read_checks: CheckRate,
    window_checks: CheckRate,
    /// Second open file without O_DIRECT, opened at first use; `None` if that fails.
    buffered_file: OnceLock<Option<BufferedFile>>,
    /// Kernel readahead state, if the kernel caches the pages.
    file_readahead: Option<FileKernelReadahead>,
}

/// Rate of residency checks, which falls with consecutive failures.
#[derive(Default)]
struct CheckRate {
    /// Number of consecutive failed checks.
    consecutive_failures: AtomicU32,
    /// Number of calls of `is_check_due`.
    calls: AtomicU32,
}

impl CheckRate {
    /// Decides on a check: always at first, then one of 2^k calls, with k rising per failure.
    fn is_check_due(&self) -> bool {
        let consecutive_failures = self.consecutive_failures.load(Ordering::Relaxed);
        let each_log2 =
            consecutive_failures.saturating_sub(FAILURES_BEFORE_BACKOFF).min(CHECK_PERIOD_MAX_LOG2);
        self.calls.fetch_add(1, Ordering::Relaxed) & ((1 << each_log2) - 1) == 0
    }

    /// Records the result of a check and returns it.
    fn record_result(&self, is_resident: bool) -> bool {
        match is_resident {
            true => self.consecutive_failures.store(0, Ordering::Relaxed),
            false => _ = self.consecutive_failures.fetch_add(1, Ordering::Relaxed),
        }
        is_resident
    }
}

impl KernelCacheMode {
    /// Time at which files are opened with O_DIRECT.
    pub(crate) fn direct(&self) -> Direct {
        match self {
            KernelCacheMode::CachesPages(_) => Direct::Late,
            KernelCacheMode::Bypassed | KernelCacheMode::ReadIfResident => Direct::Preferred,
        }
    }

    /// Counters of reads through the kernel page cache, if the kernel caches the pages.
    pub(crate) fn counted(&self) -> KernelReadTotals {
        match self {
            KernelCacheMode::CachesPages(kernel_readahead) => kernel_readahead.totals(),
            _ => KernelReadTotals::default(),
        }
    }

    /// Appends the policy's decisions on these reads since the last call.
    pub(crate) fn take_decisions(&self, all: &mut Vec<LoggedDecision>) {
        if let KernelCacheMode::CachesPages(kernel_readahead) = self {
            kernel_readahead.take_decisions(all);
        }
    }
}

impl KernelCacheState {
    /// State of a file that is about to be opened as number `number`.
    pub(crate) fn of(
        opening: &StorageFile,
        number: u32,
        cache: &KernelCacheMode,
    ) -> KernelCacheState {
        let target = match (opening, cache) {
            (StorageFile::Local(target), KernelCacheMode::ReadIfResident) => {
                Some(target).filter(|of| may_check_residency(of))
            }
            (StorageFile::Local(target), KernelCacheMode::CachesPages(_)) => {
                Some(target).filter(|of| !of.is_block_device())
            }
            _ => None,
        };
        let file_readahead = match cache {
            KernelCacheMode::CachesPages(kernel_readahead) if target.is_some() => {
                Some(FileKernelReadahead::new(Arc::clone(kernel_readahead), number))
            }
            _ => None,
        };
        KernelCacheState {
            target: target.cloned(),
            bytes: opening.bytes(),
            read_checks: CheckRate::default(),
            window_checks: CheckRate::default(),
            buffered_file: OnceLock::new(),
            file_readahead,
        }
    }

    /// True if the kernel caches the pages of the file.
    pub(crate) fn is_kernel_cached(&self) -> bool {
        self.file_readahead.is_some()
    }

    /// Readahead estimate, if the kernel caches the pages.
    pub(crate) fn readahead_state(&self) -> Option<readahead::ReadaheadState> {
        self.file_readahead.as_ref().map(FileKernelReadahead::readahead_state)
    }

    /// Passes a hint of the handle with this policy to the kernel readahead. False if the kernel
    /// does not cache the pages.
    pub(crate) fn advise(
        &self,
        policy: &Mutex<HandlePolicy>,
        advice: readahead::Advice,
        range: PageRange,
    ) -> bool {
        let (Some(file_readahead), Some(target)) = (&self.file_readahead, &self.target) else {
            return false;
        };
        file_readahead.on_advice(policy, target, advice, range);
        true
    }

    /// Drops clean pages of the range from the kernel page cache, if the kernel caches the pages.
    pub(crate) fn drop_kernel_pages(&self, range: PageRange) {
        if let (Some(file_readahead), Some(target)) = (&self.file_readahead, &self.target) {
            file_readahead.drop(target, range);
        }
    }

    /// Ends the streams of the closed handle with this policy.
    pub(crate) fn on_close(&self, policy: &Mutex<HandlePolicy>) {
        if let (Some(file_readahead), Some(target)) = (&self.file_readahead, &self.target) {
            file_readahead.on_close(policy, target);
        }
    }

    /// Returns the second open file, opened at first use.
    fn open_buffered(&self) -> Option<&BufferedFile> {
        let open = || BufferedFile::open(self.target.as_ref()?, self.is_kernel_cached());
        self.buffered_file.get_or_init(open).as_ref()
    }

    /// True if all these pages are resident in the kernel now.
    fn has(&self, pages: PageRange) -> bool {
        self.target.as_ref().is_some_and(|target| are_pages_resident(target, pages))
    }

    /// Returns the second open file if the range is known to be resident, or if a check finds it
    /// resident.
    fn resident_file(&self, offset: u64, bytes: u64) -> Option<&BufferedFile> {
        if bytes >= ALWAYS_CHECKED_BYTES {
            return self.check_resident(offset, bytes);
        }
        let known = self.buffered_file.get().and_then(Option::as_ref);
        match known.filter(|buffered_file| {
            buffered_file.are_known_resident(PageRange::covering(offset, bytes))
        }) {
            None if self.read_checks.is_check_due() => self.check_resident(offset, bytes),
            known => known,
        }
    }

    /// Returns the second open file if a check finds the range resident.
    fn check_resident(&self, offset: u64, bytes: u64) -> Option<&BufferedFile> {
        let pages = PageRange::covering(offset, bytes);
        if !self.has(pages) {
            self.read_checks.record_result(false);
            return None;
        }
        let buffered_file = self.open_buffered()?;
        // The window check comes last and becomes rarer: for evicted pages the kernel computes the
        // age of the eviction, at 0.2 us each.
        let windows = covering_windows(pages).clipped(self.bytes.div_ceil(PAGE_BYTES));
        let are_known = bytes < ALWAYS_CHECKED_BYTES
            && self.window_checks.is_check_due()
            && self.window_checks.record_result(self.has(windows));
        if are_known {
            buffered_file.mark_resident(windows);
        }
        self.read_checks.record_result(true);
        Some(buffered_file)
    }

    /// Fills a buffer if its pages are known or trusted to be resident.
    #[inline]
    fn read_known_resident(
        &self,
        offset: u64,
        buffer: &mut [u8],
        residency_sampling: &ResidencySampling,
    ) -> bool {
        let Some(Some(buffered_file)) = self.buffered_file.get() else { return false };
        let bytes = buffer.len() as u64;
        match &self.file_readahead {
            Some(file_readahead) => {
                file_readahead.take_trusted_read(residency_sampling)
                    && buffered_file.read_blocking(offset, buffer)
            }
            None => {
                bytes < ALWAYS_CHECKED_BYTES
                    && buffered_file.are_known_resident(PageRange::covering(offset, bytes))
                    && buffered_file.read_with_sampling(offset, buffer)
            }
        }
    }
}

/// True if the file is read with O_DIRECT, so that the kernel page cache may have other pages than
/// the path.
fn may_check_residency(target: &Target) -> bool {
    target.mode() == Mode::Direct && !target.is_block_device()
}

/// Sampling of large files. Counting all pages takes long (1.8 ms for 256 MiB in single pages). A
/// file larger than 64 stretches of 64 pages (16 MiB in total) is sampled by that number of
/// stretches, spread from the first page to the last.
const SAMPLE_COUNT: u64 = 64;
const SAMPLE_PAGES: u64 = 64;

/// True if a file opened with O_DIRECT appears to be completely resident in the kernel page cache.
pub(crate) fn is_fully_resident(target: &Target) -> bool {
    let pages = target.bytes().div_ceil(PAGE_BYTES);
    pages > 0
        && may_check_residency(target)
        && sample_ranges(pages).all(|range| are_pages_resident(target, range))
}

/// Page ranges to count in a file of `pages` pages.
fn sample_ranges(pages: u64) -> impl Iterator<Item = PageRange> {
    let is_counted_whole = pages <= SAMPLE_COUNT * SAMPLE_PAGES;
    let (count, each) = if is_counted_whole { (1, pages) } else { (SAMPLE_COUNT, SAMPLE_PAGES) };
    let last = u128::from(pages - each);
    let first = move |sample_index: u64| {
        (last * u128::from(sample_index) / u128::from(SAMPLE_COUNT - 1)) as u64
    };
    // Both ends first: they are absent most often.
    let order = (0..count)
        .map(move |sample_index| if sample_index == 0 { 0 } else { count - sample_index });
    order.map(move |sample_index| PageRange::new(first(sample_index), each))
}

impl Handle {
    /// Reads resident pages from the kernel page cache into `buffer`, completely or not at all,
    /// without waiting. The path's cache must have none of them.
    pub(crate) fn read_resident(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let bytes = buffer.len() as u64;
        let Some(buffered_file) = self.resident_kernel_file(offset, bytes) else { return false };
        let is_read = buffered_file.read_resident(offset, bytes, &mut [IoSliceMut::new(buffer)]);
        is_read && self.record_kernel_read(bytes, 0, offset)
    }

    /// Like [`read_resident`](Handle::read_resident) without the engine, for ranges known or
    /// trusted to be resident, if the path's cache has no page of the file.
    #[inline]
    pub(crate) fn read_trusted_resident(&self, offset: u64, buffer: &mut [u8]) -> bool {
        if self.has_pages() || !self.is_fast_path_enabled() {
            return false;
        }
        let reads = self.read_counters.kernel_reads();
        let is_read = self.file.kernel_cache_state.read_known_resident(
            offset,
            buffer,
            reads.residency_sampling(),
        );
        if is_read {
            let bytes = buffer.len() as u64;
            reads.record_read(bytes, 0, offset + bytes);
        }
        is_read
    }

    /// Reads through the kernel page cache into buffers of `bytes` bytes in total. Waits for the
    /// device only if the kernel caches the pages. Returns false if the read must bypass that
    /// cache.
    #[inline]
    pub(crate) fn read_from_kernel(
        &self,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        let pages = &self.file.kernel_cache_state;
        if pages.target.is_none() || self.has_own_pages(offset, bytes) {
            return false;
        }
        let demand = match &pages.file_readahead {
            Some(file_readahead) => {
                self.read_with_kernel_readahead(file_readahead, offset, bytes, buffers)
            }
            None => {
                let known = pages.resident_file(offset, bytes);
                known
                    .filter(|buffered_file| buffered_file.read_resident(offset, bytes, buffers))
                    .map(|_| 0)
            }
        };
        demand.is_some_and(|demand| self.record_kernel_read(bytes, demand, offset))
    }

    /// Copies the range if it is resident in the kernel, into `spare` if large enough. Does not
    /// wait.
    pub(crate) fn copy_resident(
        &self,
        offset: u64,
        bytes: u64,
        reusable: impl FnOnce() -> Option<AlignedBytes>,
    ) -> Option<AlignedBytes> {
        let buffered_file = self.resident_kernel_file(offset, bytes)?;
        let mut copy = AlignedBytes::allocate(bytes as usize, reusable());
        let is_read = buffered_file.read_resident(offset, bytes, &mut [IoSliceMut::new(&mut copy)]);
        (is_read && self.record_kernel_read(bytes, 0, offset)).then_some(copy)
    }

    /// Like [`read_from_kernel`](Handle::read_from_kernel), into owned memory: `spare` if large
    /// enough.
    pub(crate) fn copy_from_kernel(
        &self,
        offset: u64,
        bytes: u64,
        reusable: impl FnOnce() -> Option<AlignedBytes>,
    ) -> Option<AlignedBytes> {
        if !self.file.kernel_cache_state.is_kernel_cached() {
            return self.copy_resident(offset, bytes, reusable);
        }
        let mut copy = AlignedBytes::allocate(bytes as usize, reusable());
        self.read_from_kernel(offset, bytes, &mut [IoSliceMut::new(&mut copy)]).then_some(copy)
    }

    /// Counts a read, of which `demand` bytes were not resident. Returns true.
    fn record_kernel_read(&self, bytes: u64, demand: u64, offset: u64) -> bool {
        self.read_counters.kernel_reads().record_read(bytes, demand, offset + bytes);
        true
    }

    /// Returns the second open file if the range is resident in the kernel and the path's cache has
    /// none of it.
    fn resident_kernel_file(&self, offset: u64, bytes: u64) -> Option<&BufferedFile> {
        let pages = &self.file.kernel_cache_state;
        let is_to_take = pages.target.is_some() && !self.has_own_pages(offset, bytes);
        is_to_take.then(|| pages.resident_file(offset, bytes)).flatten()
    }

    /// True if the path's cache has any page of the range.
    fn has_own_pages(&self, offset: u64, bytes: u64) -> bool {
        self.has_pages()
            && self.engine.frame_cache.is_any_shared(
                self.machine_ids_or_register().file,
                PageRange::covering(offset, bytes),
            )
    }
}

impl File {
    /// True if a read of the range would now find all bytes in memory, in this path's cache or in
    /// the kernel page cache. A [`prefetch`](File::prefetch) would then have no effect.
    pub fn is_cached(&self, offset: u64, bytes: u64) -> bool {
        let Ok(handle) = self.handle().current_unchecked() else { return false };
        let (engine, file) = (&handle.engine, &handle.file);
        let bytes = bytes.min(file.bytes.saturating_sub(offset));
        let pages = PageRange::covering(offset, bytes);
        handle.has_pages()
            && engine.frame_cache.are_all_shared(handle.machine_ids_or_register().file, pages)
            || !handle.has_own_pages(offset, bytes) && file.kernel_cache_state.has(pages)
    }
}

/// True if the kernel reports all these pages as resident.
pub(crate) fn are_pages_resident(file: &impl AsRawFd, pages: PageRange) -> bool {
    resident_page_count(file, pages) == Some(pages.count())
}

/// Number of resident pages in a range: `cachestat(2)`; `None` if the kernel does not report it.
pub(crate) fn resident_page_count(file: &impl AsRawFd, pages: PageRange) -> Option<u64> {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(counted) = crate::simulation::memory::cached_pages(pages) {
        return counted;
    }
    let range =
        raw::cachestat_range { off: pages.first * PAGE_BYTES, len: pages.count() * PAGE_BYTES };
    let mut counted = raw::cachestat {
        nr_cache: 0,
        nr_dirty: 0,
        nr_writeback: 0,
        nr_evicted: 0,
        nr_recently_evicted: 0,
    };
    // SAFETY: the kernel reads one local struct and writes to the other.
    let result = unsafe {
        libc::syscall(raw::__NR_cachestat.into(), file.as_raw_fd(), &range, &mut counted, 0)
    };
    (result == 0).then_some(counted.nr_cache)
}

/// Starts the kernel's readahead of these pages; false if the kernel rejects it. Pages that it
/// cannot read are found out by the later read.
pub(crate) fn read_ahead(file: &impl AsRawFd, pages: PageRange) -> bool {
    let (offset, bytes) = (pages.first * PAGE_BYTES, pages.count() * PAGE_BYTES);
    // SAFETY: the call accesses no memory of the process.
    let result =
        unsafe { libc::readahead(file.as_raw_fd(), offset as libc::off64_t, bytes as usize) };
    result == 0
}

/// Drops the pages from the kernel page cache as far as possible (clean and unused ones).
pub(crate) fn drop_kernel_range(target: &Target, pages: PageRange) {
    #[cfg(any(test, feature = "simulation"))]
    if crate::simulation::memory::drop_cached(pages) {
        return;
    }
    // Length 0 would mean the rest of the file.
    if let Some(bytes) = NonZero::new(pages.count().saturating_mul(PAGE_BYTES)) {
        let _ = fadvise(target, pages.first * PAGE_BYTES, Some(bytes), Advice::DontNeed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residency_sample_covers_small_files_and_spreads_over_large_ones() {
        for pages in [1, 2, 4_095, 4_096] {
            let all: Vec<PageRange> = sample_ranges(pages).collect();
            assert_eq!(all, [PageRange::new(0, pages)]);
        }
        for pages in [4_097, 65_536, 1 << 51] {
            let all: Vec<PageRange> = sample_ranges(pages).collect();
            assert_eq!(all[..2], [PageRange::new(0, 64), PageRange::new(pages - 64, 64)]);
            assert_eq!(all.iter().map(|stretch| stretch.count()).sum::<u64>(), 4_096);
            // Distances between stretches differ by at most a page.
            let mut firsts: Vec<u64> = all.iter().map(|stretch| stretch.first).collect();
            firsts.sort();
            let ways: Vec<u64> = firsts.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(ways.iter().max().unwrap() - ways.iter().min().unwrap() <= 1);
        }
    }
}
