//! Pages that are resident in the kernel, read from there by a path with a cache of its own. (A
//! *path* is a `ReadPath` of the public API. A page is *resident* if it is in the kernel page
//! cache.)
//!
//! A file that was just written, or that another program reads, is already in memory. Reading it
//! from the device again takes tens of times as long as a copy. A read that finds none of its pages
//! in the path's cache checks residency in the kernel first (`cachestat(2)`, Linux 6.5, which
//! neither reads nor marks pages). It reads completely resident ranges from there. Partly resident
//! ranges bypass the kernel page cache, so no page is cached twice. A page in the *path's* cache is
//! always returned from there, so a reader never sees new bytes and then old ones.
//!
//! A check costs a system call, as much as the read. A read that finds its pages resident therefore
//! also checks the 2 MiB window around them, and later reads in that window check nothing. Pages
//! evicted meanwhile are detected by `RWF_NOWAIT` (it costs a tenth of the read). `read_known` sets
//! it in one read of eight; the other functions set it in each read. Checks without success become
//! rarer, down to one read in 64. Large reads (64 KiB or more) always check, because the check is
//! cheap compared with a device read.
//!
//! If residency cannot be checked (older kernel, or another user's file without write permission),
//! pages count as absent.

use std::io::IoSliceMut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use readpath_core::splitmix;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::are_pages_resident;
use super::buffered_file::BufferedFile;
use crate::target::{Mode, Target};

/// Smallest read in bytes that always checks residency, because it would otherwise go to the
/// device.
const ALWAYS_CHECKED_BYTES: u64 = 64 << 10;
/// Number of consecutive failed checks after which the check rate halves with each further failure.
const FAILURES_BEFORE_BACKOFF: u32 = 4;
/// Lowest check rate: one of 2^6 reads.
const CHECK_PERIOD_MAX_LOG2: u32 = 6;

/// Size of a residency window in pages (2 MiB).
pub(super) const WINDOW_PAGES: u64 = 512;
/// Largest number of remembered windows of a file: 2 GiB.
const WINDOWS_MAX: u64 = 1024;
/// Rate of small reads that check for evictions: one of 2^3.
const EVICTION_CHECK_PERIOD_LOG2: u32 = 3;

/// A file of a path with a cache of its own, some pages of which may be resident in the kernel.
pub(crate) struct ResidentFile {
    target: Target,
    /// Rates of residency checks: of reads, and of the windows around them.
    read_checks: CheckRate,
    window_checks: CheckRate,
    /// Second open file without O_DIRECT and without kernel readahead, opened at first use; `None`
    /// if that fails.
    buffered_file: OnceLock<Option<BufferedFile>>,
    /// Resident windows: window number plus 1, at index number modulo length; 0 for an empty entry.
    /// Allocated at first use, which follows the second open.
    windows: OnceLock<Box<[AtomicU64]>>,
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
    /// Returns true if this call should check residency: always, until more than
    /// [`FAILURES_BEFORE_BACKOFF`] checks in a row have failed. Then it is one of 2^k calls, with k
    /// rising by one with each further failure, up to [`CHECK_PERIOD_MAX_LOG2`].
    fn is_check_due(&self) -> bool {
        let consecutive_failures = self.consecutive_failures.load(Ordering::Relaxed);
        let period_log2 =
            consecutive_failures.saturating_sub(FAILURES_BEFORE_BACKOFF).min(CHECK_PERIOD_MAX_LOG2);
        self.calls.fetch_add(1, Ordering::Relaxed) & ((1 << period_log2) - 1) == 0
    }

    /// Records the result of a check and returns it: `is_resident` is true if the range was
    /// resident. True restores the full rate of checks, and false may halve it.
    fn record_result(&self, is_resident: bool) -> bool {
        match is_resident {
            true => self.consecutive_failures.store(0, Ordering::Relaxed),
            false => _ = self.consecutive_failures.fetch_add(1, Ordering::Relaxed),
        }
        is_resident
    }
}

impl ResidentFile {
    /// Creates the state of a file that is about to be opened. Returns `None` for a file that is
    /// not read with O_DIRECT: the path itself reads it through the kernel page cache, so a check
    /// finds no more. Also returns `None` for a block device, and on overlayfs, which has no
    /// `RWF_NOWAIT`.
    pub(super) fn for_target(target: &Target) -> Option<ResidentFile> {
        let may_read_resident = may_check_residency(target) && !target.is_on_overlay();
        may_read_resident.then(|| ResidentFile {
            target: target.clone(),
            read_checks: CheckRate::default(),
            window_checks: CheckRate::default(),
            buffered_file: OnceLock::new(),
            windows: OnceLock::new(),
        })
    }

    /// True if all these pages are resident in the kernel now.
    pub(super) fn are_resident(&self, pages: PageRange) -> bool {
        are_pages_resident(&self.target, pages)
    }

    /// Returns the second open file, opened at first use. Returns `None` if that failed.
    fn open_buffered(&self) -> Option<&BufferedFile> {
        let open = || BufferedFile::open_without_readahead(&self.target);
        self.buffered_file.get_or_init(open).as_ref()
    }

    /// Returns the second open file if the range is known to be resident, or if a check that is due
    /// finds it resident. Otherwise returns `None`, also for a resident range without a due check.
    /// The caller [reads](ResidentFile::read) from it, which finds pages evicted meanwhile.
    pub(in crate::page_cache) fn resident_file(
        &self,
        offset: u64,
        bytes: u64,
    ) -> Option<&BufferedFile> {
        if bytes >= ALWAYS_CHECKED_BYTES {
            return self.check_resident(offset, bytes);
        }
        let opened_file = self.buffered_file.get().and_then(Option::as_ref);
        match opened_file.filter(|_| self.is_known_resident(PageRange::covering(offset, bytes))) {
            None if self.read_checks.is_check_due() => self.check_resident(offset, bytes),
            // Known to be resident, or `None`: unknown, and no check is due.
            known_resident => known_resident,
        }
    }

    /// Checks residency, and returns the second open file if the range is resident. Returns `None`
    /// if it is not, or if the file cannot be opened. Also remembers the 2 MiB windows around a
    /// small resident range if they are resident. A large read checks its range each time, so it
    /// does not need them.
    fn check_resident(&self, offset: u64, bytes: u64) -> Option<&BufferedFile> {
        let pages = PageRange::covering(offset, bytes);
        let is_resident = self.are_resident(pages);
        // If the kernel does not report the residency, the pages count as absent too.
        if !is_resident {
            self.read_checks.record_result(is_resident);
            return None;
        }
        // A failed open changes no rate: it says nothing about residency.
        let buffered_file = self.open_buffered()?;
        // The window check comes last and becomes rarer: for evicted pages the kernel computes the
        // age of the eviction, at 0.2 us each.
        let windows = covering_windows(pages).clipped(self.target.bytes().div_ceil(PAGE_BYTES));
        let are_windows_resident = bytes < ALWAYS_CHECKED_BYTES
            && self.window_checks.is_check_due()
            && self.window_checks.record_result(self.are_resident(windows));
        if are_windows_resident {
            self.window_entries(windows)
                .for_each(|(entry, window)| entry.store(window + 1, Ordering::Relaxed));
        }
        self.read_checks.record_result(is_resident);
        Some(buffered_file)
    }

    /// Reads `bytes` bytes from `offset` on into `buffers` without waiting, if all pages are still
    /// resident. `buffered_file` is a result of [`resident_file`](ResidentFile::resident_file).
    /// Otherwise returns false and forgets the windows of the range. The content of the buffers is
    /// then unspecified.
    pub(in crate::page_cache) fn read(
        &self,
        buffered_file: &BufferedFile,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        let is_read = buffered_file.read_resident(offset, bytes, buffers);
        if !is_read {
            let pages = PageRange::covering(offset, bytes);
            self.window_entries(pages).for_each(|(entry, _)| entry.store(0, Ordering::Relaxed));
        }
        is_read
    }

    /// Reads from `offset` on into a small buffer if its pages are known to be resident. Returns
    /// false otherwise, for a buffer of 64 KiB or more, or if the read fails. One read of eight,
    /// selected by a hash of its offset, checks for evictions. The other reads wait for pages that
    /// were evicted meanwhile.
    #[inline]
    pub(in crate::page_cache) fn read_known(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let Some(Some(buffered_file)) = self.buffered_file.get() else { return false };
        let bytes = buffer.len() as u64;
        if bytes >= ALWAYS_CHECKED_BYTES
            || !self.is_known_resident(PageRange::covering(offset, bytes))
        {
            return false;
        }
        // The multiplier is 2^64 divided by the golden ratio. The upper bits of the product are 0
        // for one offset of eight.
        let offset_hash = offset.wrapping_mul(splitmix::STEP);
        // No check: the read waits if a page was evicted, and its window stays known.
        if offset_hash >> (u64::BITS - EVICTION_CHECK_PERIOD_LOG2) > 0 {
            return buffered_file.read_blocking(offset, buffer);
        }
        self.read(buffered_file, offset, bytes, &mut [IoSliceMut::new(buffer)])
    }

    /// True if the pages lie in windows known to be resident.
    #[inline]
    fn is_known_resident(&self, pages: PageRange) -> bool {
        self.window_entries(pages)
            .all(|(entry, window)| entry.load(Ordering::Relaxed) == window + 1)
    }

    /// Returns the entries of the windows that contain these pages, each with its window number. In
    /// a file of more than [`WINDOWS_MAX`] windows several share an entry. The last one stored is
    /// known, and reads of the others are checked again.
    fn window_entries(&self, pages: PageRange) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let entries = self.windows.get_or_init(|| {
            let windows = self.target.bytes().div_ceil(PAGE_BYTES * WINDOW_PAGES);
            (0..windows.clamp(1, WINDOWS_MAX)).map(|_| AtomicU64::new(0)).collect()
        });
        let windows = pages.first / WINDOW_PAGES..pages.end.div_ceil(WINDOW_PAGES);
        windows.map(|window| (&entries[(window % entries.len() as u64) as usize], window))
    }
}

/// True if the file is read with O_DIRECT, so that the kernel page cache may have other pages than
/// the path. False for a block device: its pages are never looked for in the kernel, which is
/// chosen, not measured.
fn may_check_residency(target: &Target) -> bool {
    target.mode() == Mode::Direct && !target.is_block_device()
}

/// Sampling of large files. Counting all pages takes long (1.8 ms for 256 MiB in single pages). A
/// file larger than 64 stretches of 64 pages (16 MiB in total) is sampled by that number of
/// stretches, spread from the first page to the last.
const SAMPLE_COUNT: u64 = 64;
const SAMPLE_PAGES: u64 = 64;

/// True if a file opened with O_DIRECT appears to be completely resident in the kernel page cache.
/// False for an empty file and for a block device.
pub(crate) fn is_fully_resident(target: &Target) -> bool {
    let pages = target.bytes().div_ceil(PAGE_BYTES);
    pages > 0
        && may_check_residency(target)
        && sample_ranges(pages).all(|range| are_pages_resident(target, range))
}

/// Page ranges to count in a file of `pages` pages (1 or more): the whole file if it is small, and
/// otherwise [`SAMPLE_COUNT`] stretches. Pages between the stretches are assumed to be as resident.
fn sample_ranges(pages: u64) -> impl Iterator<Item = PageRange> {
    let is_single_sample = pages <= SAMPLE_COUNT * SAMPLE_PAGES;
    let (sample_count, pages_per_sample) =
        if is_single_sample { (1, pages) } else { (SAMPLE_COUNT, SAMPLE_PAGES) };
    let last_first_page = u128::from(pages - pages_per_sample);
    let first_page = move |sample_index: u64| {
        // Sample 0 begins at page 0, and the last one ends with the file. `u128` has no overflow.
        (last_first_page * u128::from(sample_index) / u128::from(SAMPLE_COUNT - 1)) as u64
    };
    // Both ends first: they are absent most often.
    let order = (0..sample_count)
        .map(move |sample_index| if sample_index == 0 { 0 } else { sample_count - sample_index });
    order.map(move |sample_index| PageRange::new(first_page(sample_index), pages_per_sample))
}

/// Extends a page range to whole windows.
fn covering_windows(pages: PageRange) -> PageRange {
    PageRange {
        first: pages.first / WINDOW_PAGES * WINDOW_PAGES,
        end: pages.end.next_multiple_of(WINDOW_PAGES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Up to 64 * 64 = 4,096 pages, one range covers the whole file. A larger file has 64 samples
    /// of 64 pages. The samples at both ends come first.
    #[test]
    fn residency_sample_covers_small_files_and_spreads_over_large_ones() {
        for pages in [1, 2, 4_095, 4_096] {
            let ranges: Vec<PageRange> = sample_ranges(pages).collect();
            assert_eq!(ranges, [PageRange::new(0, pages)]);
        }
        for pages in [4_097, 65_536, 1 << 51] {
            let ranges: Vec<PageRange> = sample_ranges(pages).collect();
            assert_eq!(ranges[..2], [PageRange::new(0, 64), PageRange::new(pages - 64, 64)]);
            assert_eq!(ranges.iter().map(|sample| sample.count()).sum::<u64>(), 4_096);
            // Distances between samples differ by at most a page.
            let mut firsts: Vec<u64> = ranges.iter().map(|sample| sample.first).collect();
            firsts.sort();
            let distances: Vec<u64> = firsts.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(distances.iter().max().unwrap() - distances.iter().min().unwrap() <= 1);
        }
    }
}
