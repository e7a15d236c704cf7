//! The pages of a file that are in the kernel's page cache.
//!
//! A file that was just written, or that another program reads, lies in memory already; to bring it in from its device once
//! more takes tens of times as long as to copy it. And what is read through that cache stays there for whoever comes
//! next, in memory that gives way by itself, and that nobody had to clear. So, of a path that
//! - has nothing set, **the kernel keeps the pages**: what nobody holds is read through its cache, straight into the caller's
//!   memory, and our readahead law, which sees these reads, has it [advised](kernel_readahead) of what they will need;
//! - keeps its pages itself (memory, a law or a depth is named), a read of which it has nothing asks the kernel first
//!   (`cachestat(2)`, Linux 6.5, which reads nothing and marks nothing), and takes what is held whole. What is held in part, or by
//!   nobody, goes past the kernel's cache, and no copy of what it holds comes into ours;
//! - is told so takes nothing from there.
//!
//! Where the kernel keeps the pages nothing is asked: a read itself [tells](residency_sampling), now and then, whether it was held.
//!
//! Where the path keeps them, to ask costs a system call, as the read itself does. So a read that is held asks about the 2 MiB around
//! it, and while these are known to be held, the reads in them ask no more. Should the kernel have let them go meanwhile, `RWF_NOWAIT` tells, which one
//! small read of eight sets (it costs a tenth of the read), and each large one. Reads that ask in vain one after the other
//! ask ever more rarely, one in 64 in the end; large ones, of 64 KiB or more, that would else go to a device, always
//! do: beside what they cost there it is nothing.
//!
//! The bytes are those that any `read(2)` would give: pages that a writer has dirtied included. A page that
//! is in *our* cache is always given from there, so that no reader sees a page's new bytes and then its old ones.
//!
//! Where it can't be asked (an older kernel, a file of somebody else's that we may not write), all is taken as not held;
//! where a file can't be opened once more (no `/proc`), all goes past it. Block devices always do.

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

use crate::copied::Copied;
use crate::engine::Handle;
use crate::engine::below::Opening;
use crate::file::File;
use crate::target::{Direct, Mode, Target};

pub(crate) mod begun;
mod kept;
pub(crate) mod kernel_readahead;
pub(crate) mod residency_sampling;
mod through;
pub(crate) mod waiter;
pub(crate) mod wish;

use kernel_readahead::{HandlePolicy, KernelReadahead, Steered, ThroughKernel};
use residency_sampling::ResidencySampling;
use through::{Through, windows_of};

/// Reads of so many bytes ask about themselves, where they would else go to a device.
const LARGE_BYTES: u64 = 64 << 10;
/// After so many times in vain, one after the other, half as many reads ask; and so on.
const VAIN_MAX: u32 = 4;
/// One of so many asks still, in the end.
const ASKS_EACH_MAX_LOG2: u32 = 6;

/// What a path does with the kernel's cache.
#[derive(Clone)]
pub(crate) enum KernelCache {
    /// It passes it by.
    Unused,
    /// It takes what is held.
    Taken,
    /// It has it keep the pages.
    Keeps(Arc<KernelReadahead>),
}

/// The pages of one open file in the kernel's cache.
pub(crate) struct KernelPages {
    /// The file, if there is anything to ask.
    target: Option<Target>,
    bytes: u64,
    /// Whether reads ask about themselves, and then about what lies around them.
    pages: Asks,
    windows: Asks,
    /// Opened when it is first needed; `None` where that can't be.
    through: OnceLock<Option<Through>>,
    /// What our law says of it, where the kernel keeps its pages.
    steered: Option<Steered>,
}

/// Questions of which each that was in vain makes the next ones rarer.
#[derive(Default)]
struct Asks {
    /// How many were in vain, one after the other.
    vain: AtomicU32,
    /// How often it was looked whether to ask.
    looks: AtomicU32,
}

impl Asks {
    fn is_to_ask(&self) -> bool {
        let vain = self.vain.load(Ordering::Relaxed);
        let each_log2 = vain.saturating_sub(VAIN_MAX).min(ASKS_EACH_MAX_LOG2);
        self.looks.fetch_add(1, Ordering::Relaxed) & ((1 << each_log2) - 1) == 0
    }

    /// Gives what the answer was.
    fn answered(&self, is_held: bool) -> bool {
        match is_held {
            true => self.vain.store(0, Ordering::Relaxed),
            false => _ = self.vain.fetch_add(1, Ordering::Relaxed),
        }
        is_held
    }
}

impl KernelCache {
    /// When a file is to be opened past it.
    pub(crate) fn direct(&self) -> Direct {
        match self {
            KernelCache::Keeps(_) => Direct::Late,
            KernelCache::Unused | KernelCache::Taken => Direct::Preferred,
        }
    }

    /// What was read through it, where it keeps the pages.
    pub(crate) fn counted(&self) -> ThroughKernel {
        match self {
            KernelCache::Keeps(kernel_readahead) => kernel_readahead.counted(),
            _ => ThroughKernel::default(),
        }
    }

    /// What the law decided of these reads since this was last asked.
    pub(crate) fn take_decisions(&self, all: &mut Vec<LoggedDecision>) {
        if let KernelCache::Keeps(kernel_readahead) = self {
            kernel_readahead.take_decisions(all);
        }
    }
}

impl KernelPages {
    /// Those of a file that is about to be opened as number `number`.
    pub(crate) fn of(opening: &Opening, number: u32, cache: &KernelCache) -> KernelPages {
        let target = match (opening, cache) {
            (Opening::Local(target), KernelCache::Taken) => {
                Some(target).filter(|of| can_be_asked(of))
            }
            (Opening::Local(target), KernelCache::Keeps(_)) => {
                Some(target).filter(|of| !of.is_block_device())
            }
            _ => None,
        };
        let steered = match cache {
            KernelCache::Keeps(kernel_readahead) if target.is_some() => {
                Some(Steered::new(Arc::clone(kernel_readahead), number))
            }
            _ => None,
        };
        KernelPages {
            target: target.cloned(),
            bytes: opening.bytes(),
            pages: Asks::default(),
            windows: Asks::default(),
            through: OnceLock::new(),
            steered,
        }
    }

    /// Whether the kernel keeps the pages of the file.
    pub(crate) fn are_kept(&self) -> bool {
        self.steered.is_some()
    }

    /// What is believed of the file, where the kernel keeps its pages.
    pub(crate) fn readahead_state(&self) -> Option<readahead::ReadaheadState> {
        self.steered.as_ref().map(Steered::readahead_state)
    }

    /// A hint on how the handle of that law will read, where the kernel keeps the pages: true then.
    pub(crate) fn advise(
        &self,
        policy: &Mutex<HandlePolicy>,
        advice: readahead::Advice,
        range: PageRange,
    ) -> bool {
        let (Some(steered), Some(target)) = (&self.steered, &self.target) else { return false };
        steered.advised(policy, target, advice, range);
        true
    }

    /// Has the kernel drop what is clean of these pages, where it keeps them.
    pub(crate) fn drop_kept(&self, range: PageRange) {
        if let (Some(steered), Some(target)) = (&self.steered, &self.target) {
            steered.drop(target, range);
        }
    }

    /// The handle of that law is closed.
    pub(crate) fn closed(&self, policy: &Mutex<HandlePolicy>) {
        if let (Some(steered), Some(target)) = (&self.steered, &self.target) {
            steered.closed(policy, target);
        }
    }

    /// The file, to be read through the kernel's cache.
    fn through(&self) -> Option<&Through> {
        let open = || Through::open(self.target.as_ref()?, self.are_kept());
        self.through.get_or_init(open).as_ref()
    }

    /// Whether the kernel holds all of these pages now.
    fn has(&self, pages: PageRange) -> bool {
        self.target.as_ref().is_some_and(|target| holds(target, pages))
    }

    /// The file, where the kernel is known to hold all of `bytes` bytes at `offset`, or is asked and does.
    fn holding_for_read(&self, offset: u64, bytes: u64) -> Option<&Through> {
        if bytes >= LARGE_BYTES {
            return self.holding(offset, bytes);
        }
        let known = self.through.get().and_then(Option::as_ref);
        match known.filter(|through| through.knows(PageRange::covering(offset, bytes))) {
            None if self.pages.is_to_ask() => self.holding(offset, bytes),
            known => known,
        }
    }

    /// The file, where the kernel is asked, and holds all of `bytes` bytes at `offset`.
    fn holding(&self, offset: u64, bytes: u64) -> Option<&Through> {
        let pages = PageRange::covering(offset, bytes);
        if !self.has(pages) {
            self.pages.answered(false);
            return None;
        }
        let through = self.through()?;
        // Asked only now, and ever more rarely in vain: of pages that were evicted the kernel finds out, at 0.2 us each, how
        // long ago that was.
        let windows = windows_of(pages).clipped(self.bytes.div_ceil(PAGE_BYTES));
        let are_known = bytes < LARGE_BYTES
            && self.windows.is_to_ask()
            && self.windows.answered(self.has(windows));
        if are_known {
            through.remember(windows);
        }
        self.pages.answered(true);
        Some(through)
    }

    /// Fills a buffer, if the kernel is known or trusted to hold all of it.
    #[inline]
    fn read_known(
        &self,
        offset: u64,
        buffer: &mut [u8],
        residency_sampling: &ResidencySampling,
    ) -> bool {
        let Some(Some(through)) = self.through.get() else { return false };
        let bytes = buffer.len() as u64;
        match &self.steered {
            Some(steered) => {
                steered.trusts(residency_sampling) && through.read_whole(offset, buffer)
            }
            None => {
                bytes < LARGE_BYTES
                    && through.knows(PageRange::covering(offset, bytes))
                    && through.read_known(offset, buffer)
            }
        }
    }
}

/// Whether what the kernel holds of a file may be other than what we read of it.
fn can_be_asked(target: &Target) -> bool {
    target.mode() == Mode::Direct && !target.is_block_device()
}

/// To count the pages of a large file takes a while (1.8 ms for 256 MiB in single pages), so of one that has more than
/// so many stretches of so many pages, 16 MiB, as many are counted, from its first page to its last.
const COUNTED_STRETCHES: u64 = 64;
const STRETCH_PAGES: u64 = 64;

/// Whether the kernel's cache holds all of a file that is read past it, as far as one can tell now.
pub(crate) fn holds_all(target: &Target) -> bool {
    let pages = target.bytes().div_ceil(PAGE_BYTES);
    pages > 0 && can_be_asked(target) && stretches_of(pages).all(|range| holds(target, range))
}

/// The stretches of a file of so many pages that are counted.
fn stretches_of(pages: u64) -> impl Iterator<Item = PageRange> {
    let whole = pages <= COUNTED_STRETCHES * STRETCH_PAGES;
    let (count, each) = if whole { (1, pages) } else { (COUNTED_STRETCHES, STRETCH_PAGES) };
    let last = u128::from(pages - each);
    let first = move |nth: u64| (last * u128::from(nth) / u128::from(COUNTED_STRETCHES - 1)) as u64;
    // Both ends first: they tell most often.
    let order = (0..count).map(move |nth| if nth == 0 { 0 } else { count - nth });
    order.map(move |nth| PageRange::new(first(nth), each))
}

impl Handle {
    /// Reads what the kernel's cache holds into `buffer`, all of it or nothing and without waiting, past the machine and past
    /// our own cache, which must have none of it.
    pub(crate) fn read_held(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let bytes = buffer.len() as u64;
        let Some(through) = self.held_by_kernel(offset, bytes) else { return false };
        let is_read = through.read_held(offset, bytes, &mut [IoSliceMut::new(buffer)]);
        is_read && self.counted(bytes, 0, offset)
    }

    /// As [`read_held`](Handle::read_held), past the door, of a read of which the kernel is known or trusted to hold
    /// all, and of whose file our own cache has nothing.
    #[inline]
    pub(crate) fn read_known_held(&self, offset: u64, buffer: &mut [u8]) -> bool {
        if self.has_pages() || !self.lends() {
            return false;
        }
        let reads = self.read_counters.kernel_reads();
        let is_read = self.file.kernel_pages.read_known(offset, buffer, reads.residency_sampling());
        if is_read {
            let bytes = buffer.len() as u64;
            reads.counted(bytes, 0, offset + bytes);
        }
        is_read
    }

    /// Reads what the kernel's cache holds, and, where it keeps the pages of the file, what it doesn't, into buffers of
    /// `bytes` bytes together: all of it, or it is to be read past that cache. Waits for the device if it must.
    #[inline]
    pub(crate) fn read_from_kernel(
        &self,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        let pages = &self.file.kernel_pages;
        if pages.target.is_none() || self.has_own(offset, bytes) {
            return false;
        }
        let demand = match &pages.steered {
            Some(steered) => self.read_kept(steered, offset, bytes, buffers),
            None => {
                let known = pages.holding_for_read(offset, bytes);
                known.filter(|through| through.read_held(offset, bytes, buffers)).map(|_| 0)
            }
        };
        demand.is_some_and(|demand| self.counted(bytes, demand, offset))
    }

    /// What the kernel holds of these bytes, all or nothing, in memory of their own: `spare` if that is as long. Doesn't wait.
    pub(crate) fn copied_held(
        &self,
        offset: u64,
        bytes: u64,
        spare: impl FnOnce() -> Option<Copied>,
    ) -> Option<Copied> {
        let through = self.held_by_kernel(offset, bytes)?;
        let mut copy = Copied::room(bytes as usize, spare());
        let is_read = through.read_held(offset, bytes, &mut [IoSliceMut::new(&mut copy)]);
        (is_read && self.counted(bytes, 0, offset)).then_some(copy)
    }

    /// As [`read_from_kernel`](Handle::read_from_kernel), into memory of their own: `spare` if that is large enough.
    pub(crate) fn copied_from_kernel(
        &self,
        offset: u64,
        bytes: u64,
        spare: impl FnOnce() -> Option<Copied>,
    ) -> Option<Copied> {
        if !self.file.kernel_pages.are_kept() {
            return self.copied_held(offset, bytes, spare);
        }
        let mut copy = Copied::room(bytes as usize, spare());
        self.read_from_kernel(offset, bytes, &mut [IoSliceMut::new(&mut copy)]).then_some(copy)
    }

    /// Counts a read of bytes, `demand` of which were not there. True, always.
    fn counted(&self, bytes: u64, demand: u64, offset: u64) -> bool {
        self.read_counters.kernel_reads().counted(bytes, demand, offset + bytes);
        true
    }

    /// The file, if the kernel holds all of these bytes, and our own cache has none of them.
    fn held_by_kernel(&self, offset: u64, bytes: u64) -> Option<&Through> {
        let pages = &self.file.kernel_pages;
        let is_to_take = pages.target.is_some() && !self.has_own(offset, bytes);
        is_to_take.then(|| pages.holding_for_read(offset, bytes)).flatten()
    }

    /// Whether our own cache has any of these bytes.
    fn has_own(&self, offset: u64, bytes: u64) -> bool {
        self.has_pages()
            && self
                .engine
                .frame_cache
                .has_any(self.in_machine().file, PageRange::covering(offset, bytes))
    }
}

impl File {
    /// Whether a read of `bytes` bytes at `offset` would now find all of them in memory, in this path's
    /// cache or in the kernel's. Then there is nothing to [`prefetch`](File::prefetch).
    pub fn is_cached(&self, offset: u64, bytes: u64) -> bool {
        let Ok(handle) = self.handle().here_as_seen() else { return false };
        let (engine, file) = (&handle.engine, &handle.file);
        let bytes = bytes.min(file.bytes.saturating_sub(offset));
        let pages = PageRange::covering(offset, bytes);
        handle.has_pages() && engine.frame_cache.has(handle.in_machine().file, pages)
            || !handle.has_own(offset, bytes) && file.kernel_pages.has(pages)
    }
}

/// Whether the kernel's cache has all of these pages, as far as it says.
pub(crate) fn holds(file: &impl AsRawFd, pages: PageRange) -> bool {
    cached_pages(file, pages) == Some(pages.count())
}

/// How many pages of a range the kernel's cache has: `cachestat(2)`; `None` where it doesn't say.
pub(crate) fn cached_pages(file: &impl AsRawFd, pages: PageRange) -> Option<u64> {
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
    // SAFETY: the kernel reads the one and writes to the other, and both live.
    let result = unsafe {
        libc::syscall(raw::__NR_cachestat.into(), file.as_raw_fd(), &range, &mut counted, 0)
    };
    (result == 0).then_some(counted.nr_cache)
}

/// Has the kernel begin to read these pages into its cache; true unless it refuses. What it can't do is
/// not done: the read finds out.
pub(crate) fn read_ahead(file: &impl AsRawFd, pages: PageRange) -> bool {
    let (offset, bytes) = (pages.first * PAGE_BYTES, pages.count() * PAGE_BYTES);
    // SAFETY: it touches no memory of ours.
    let result =
        unsafe { libc::readahead(file.as_raw_fd(), offset as libc::off64_t, bytes as usize) };
    result == 0
}

/// Has the kernel's cache drop what it can of these pages; what it can't stays, and gives way by itself.
pub(crate) fn drop_cached(target: &Target, pages: PageRange) {
    #[cfg(any(test, feature = "simulation"))]
    if crate::simulation::memory::drop_cached(pages) {
        return;
    }
    // A length of 0 would mean the rest of the file.
    if let Some(bytes) = NonZero::new(pages.count().saturating_mul(PAGE_BYTES)) {
        let _ = fadvise(target, pages.first * PAGE_BYTES, Some(bytes), Advice::DontNeed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_small_file_all_pages_are_counted_and_of_a_large_one_stretches_from_end_to_end() {
        for pages in [1, 2, 4_095, 4_096] {
            let all: Vec<PageRange> = stretches_of(pages).collect();
            assert_eq!(all, [PageRange::new(0, pages)]);
        }
        for pages in [4_097, 65_536, 1 << 51] {
            let all: Vec<PageRange> = stretches_of(pages).collect();
            assert_eq!(all[..2], [PageRange::new(0, 64), PageRange::new(pages - 64, 64)]);
            assert_eq!(all.iter().map(|stretch| stretch.count()).sum::<u64>(), 4_096);
            // None is further from the next than the others are, but for a page.
            let mut firsts: Vec<u64> = all.iter().map(|stretch| stretch.first).collect();
            firsts.sort();
            let ways: Vec<u64> = firsts.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(ways.iter().max().unwrap() - ways.iter().min().unwrap() <= 1);
        }
    }
}
