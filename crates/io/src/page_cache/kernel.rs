//! Pages of files: in the kernel page cache, in the path's own cache, or nowhere.
//!
//! A *path* is a [`ReadPath`](crate::ReadPath) of the public API: a set of open files with the same
//! options. It has one [mode](crate::PageCache), and each of its open files the pages of that mode
//! ([`FilePages`]):
//!
//! - [`KernelFile`]: the kernel caches the pages. A read goes through its cache into the caller's
//!   memory. The *policy*, the readahead policy of this process, sees these reads and
//!   [advises](kernel_readahead) the kernel of future ones. A page is *resident* if it is in the
//!   kernel page cache. There is no residency check: reads themselves [sample](residency_sampling)
//!   residency now and then.
//! - [`ResidentFile`]: the path caches the pages in frames of its own. Pages that happen to be
//!   resident in the kernel are read from there.
//! - No pages: each read is requests to the device.
//!
//! The bytes are the same as for any `read(2)`, including dirty pages of writers.
//!
//! The *buffered file* of a target is open without O_DIRECT. It is the target's first open file if
//! that has no O_DIRECT, and otherwise a second one. If there is none (no `/proc`), all reads
//! bypass the kernel page cache. A read that failed there bypasses it too. Its pages leave the
//! path's memory when it ends. A failed read of a task or a batch is an error on a file system
//! without `RWF_NOWAIT`, where another attempt could wait. In a simulation (`cfg(simulation)`) a
//! model answers for the kernel.

use std::num::NonZero;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock};

use readpath_core::decision::LoggedDecision;
use readpath_core::readahead;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use readpath_os::page_cache;
use rustix::fs::{Advice, fadvise};

use crate::page_cache::PageCache;
use crate::target::{Direct, Target};

pub(crate) mod blocking_pool;
pub(crate) mod blocking_read;
pub(crate) mod buffered_file;
pub(crate) mod kernel_readahead;
pub(crate) mod residency_sampling;
mod resident_file;
mod resident_window;
mod spare_memory;

use buffered_file::BufferedFile;
use kernel_readahead::{FileKernelReadahead, HandlePolicy, KernelReadTotals, PathKernelReadahead};
pub(crate) use resident_file::{ResidentFile, is_fully_resident};
use resident_window::ResidentWindow;

/// Page cache of a path.
#[derive(Clone)]
pub(crate) enum PathPages {
    /// The kernel caches the pages, and the path advises it.
    Kernel(Arc<PathKernelReadahead>),
    /// The path caches the pages.
    Own {
        /// Size as given, in bytes; `None` for elastic memory.
        bytes: Option<u64>,
        /// True if pages that are resident in the kernel are read from there.
        reads_resident: bool,
    },
    /// No page stays.
    None,
}

/// Pages of one open file, as [`PathPages`].
#[expect(clippy::large_enum_variant, reason = "one per open file, which is allocated as a whole")]
pub(crate) enum FilePages {
    /// The kernel caches them.
    Kernel(KernelFile),
    /// The path caches them. With a second open file for pages that are resident in the kernel.
    /// `None` if such pages are not looked for.
    Own(Option<ResidentFile>),
    /// No page stays.
    None,
}

/// A file whose pages the kernel caches.
pub(crate) struct KernelFile {
    /// The file. Its transfers with O_DIRECT bypass the kernel page cache.
    pub(super) target: Target,
    /// The file open without O_DIRECT, as found or opened at first use; `None` if that fails.
    buffered_file: OnceLock<Option<BufferedFile>>,
    /// Checks of a batch's reads, on overlayfs.
    resident_window: ResidentWindow,
    /// Advised pages of the file, and the path's knowledge of its device.
    pub(super) readahead: FileKernelReadahead,
}

impl PathPages {
    /// Returns the path's option for its page cache.
    pub(crate) fn page_cache(&self) -> PageCache {
        match self {
            PathPages::Kernel(_) => PageCache::Kernel,
            PathPages::Own { bytes, .. } => PageCache::Own { bytes: *bytes },
            PathPages::None => PageCache::None,
        }
    }

    /// Returns the option by which files of the path are opened with O_DIRECT: `Late`, at the first
    /// transfer that bypasses the kernel page cache, or `Preferred`, at once.
    pub(crate) fn direct(&self) -> Direct {
        match self {
            PathPages::Kernel(_) => Direct::Late,
            PathPages::Own { .. } | PathPages::None => Direct::Preferred,
        }
    }

    /// Counters of reads through the kernel page cache. All are 0 if the kernel does not cache the
    /// pages.
    pub(crate) fn kernel_read_totals(&self) -> KernelReadTotals {
        match self {
            PathPages::Kernel(kernel_readahead) => kernel_readahead.totals(),
            _ => KernelReadTotals::default(),
        }
    }

    /// Moves the policy's decisions on reads through the kernel page cache, made since the last
    /// call, to the end of `decisions`.
    pub(crate) fn take_decisions(&self, decisions: &mut Vec<LoggedDecision>) {
        if let PathPages::Kernel(kernel_readahead) = self {
            kernel_readahead.take_decisions(decisions);
        }
    }

    /// Creates the page state of a file that is about to be opened. `file_number` is the path's
    /// number of the file, for the log of decisions. `local` is the file if it is of this machine,
    /// and `None` for a file of an NFS server or a source. The options refuse the mode `Kernel` to
    /// the path of such a file.
    pub(crate) fn new_file_pages(&self, local: Option<&Target>, file_number: u32) -> FilePages {
        match (self, local) {
            (PathPages::Kernel(readahead), Some(target)) => FilePages::Kernel(KernelFile {
                target: target.clone(),
                buffered_file: OnceLock::new(),
                resident_window: ResidentWindow::default(),
                readahead: FileKernelReadahead::new(Arc::clone(readahead), file_number),
            }),
            (PathPages::None, _) => FilePages::None,
            (PathPages::Own { reads_resident: true, .. }, Some(target)) => {
                FilePages::Own(ResidentFile::for_target(target))
            }
            // Resident pages are not read by option, or the file is not of this machine, whose
            // kernel then has no pages of it.
            _ => FilePages::Own(None),
        }
    }
}

impl FilePages {
    /// Returns the file whose pages the kernel caches, if it does.
    #[inline]
    pub(crate) fn kernel_file(&self) -> Option<&KernelFile> {
        match self {
            FilePages::Kernel(file) => Some(file),
            _ => None,
        }
    }

    /// True if pages stay in the path's cache after the read that fetched them.
    pub(crate) fn stay_in_own_cache(&self) -> bool {
        matches!(self, FilePages::Own(_))
    }

    /// True if all these pages are resident in the kernel now, and reads would find them there.
    /// False if the path does not read resident pages, or if the kernel does not report them.
    pub(crate) fn are_resident(&self, pages: PageRange) -> bool {
        match self {
            FilePages::Kernel(file) => are_pages_resident(&file.target, pages),
            FilePages::Own(Some(file)) => file.are_resident(pages),
            _ => false,
        }
    }
}

impl KernelFile {
    /// Returns the file open without O_DIRECT, which is found or opened at first use. Returns
    /// `None` if that failed.
    pub(super) fn open_buffered(&self) -> Option<&BufferedFile> {
        self.buffered_file.get_or_init(|| BufferedFile::open(&self.target)).as_ref()
    }

    /// True if all these pages of a batch's read are resident. On overlayfs an earlier check of
    /// their window may decide.
    pub(super) fn are_resident_for_batch(&self, pages: PageRange) -> bool {
        match self.target.is_on_overlay() {
            true => self.resident_window.is_resident(&self.target, pages),
            false => are_pages_resident(&self.target, pages),
        }
    }

    /// Readahead estimate of the file, as shown by the public API.
    pub(crate) fn readahead_state(&self) -> readahead::ReadaheadState {
        self.readahead.readahead_state()
    }

    /// Passes a hint of the handle with this policy to the kernel readahead, which may read ahead
    /// or drop the pages of `range`.
    pub(crate) fn advise(
        &self,
        policy: &Mutex<HandlePolicy>,
        advice: readahead::Advice,
        range: PageRange,
    ) {
        self.readahead.on_advice(policy, &self.target, advice, range);
    }

    /// Drops clean pages of the range from the kernel page cache. Dirty and mapped pages stay. The
    /// file's readahead state learns of it, and earlier residency checks are forgotten.
    pub(crate) fn drop_pages(&self, range: PageRange) {
        self.resident_window.forget();
        self.readahead.drop_pages(&self.target, range);
    }

    /// Ends the streams that the `policy` of a closed handle has detected.
    pub(crate) fn on_close(&self, policy: &Mutex<HandlePolicy>) {
        self.readahead.on_close(policy, &self.target);
    }
}

/// Largest number of pages of one `mincore(2)` call: 1 GiB, one result byte per page.
const MINCORE_PAGES_MAX: u64 = (1 << 30) / PAGE_BYTES;

/// True if the kernel reports all these pages as resident.
pub(crate) fn are_pages_resident(target: &Target, pages: PageRange) -> bool {
    resident_page_count(target, pages) == Some(pages.count())
}

/// Number of pages of a range that are in the kernel page cache. Returns `None` if the kernel does
/// not report it.
pub(crate) fn resident_page_count(target: &Target, pages: PageRange) -> Option<u64> {
    if !target.is_on_overlay() {
        return counted_pages(target, pages);
    }
    // `cachestat(2)` counts none of the pages there. `mincore(2)` reports each one.
    let (mut resident_pages, mut rest) = (0, pages);
    while !rest.is_empty() {
        let part = rest.clipped(rest.first + MINCORE_PAGES_MAX);
        let (offset, bytes) = (part.first * PAGE_BYTES, part.count() * PAGE_BYTES);
        let flags = page_cache::residency_flags(target, offset, bytes as usize).ok()?;
        resident_pages += flags.into_iter().filter(|&is_resident| is_resident).count() as u64;
        rest.first = part.end;
    }
    // Without the permission every page is reported as resident: an absent one shows that this
    // process has the permission. Only a range without absent pages needs the further check.
    (resident_pages < pages.count() || may_see_residency(target)).then_some(resident_pages)
}

/// Offset of [`may_see_residency`]'s page: 4 EiB, which no file reaches, whatever it grows to. The
/// kernel maps regular files up to offset 2^63.
const FAR_OFFSET: u64 = 1 << 62;

/// True if `mincore(2)` reports the residency of the file's pages to this process. Without
/// permission it reports every page as resident, also one far behind the end of the file, which
/// never is. The permission of `cachestat(2)` shows nothing: older kernels check none.
fn may_see_residency(target: &Target) -> bool {
    page_cache::residency_flags(target, FAR_OFFSET, PAGE_BYTES as usize)
        .is_ok_and(|flags| !flags[0])
}

/// Number of pages of a range that `cachestat(2)` counts in the kernel page cache, which is 0 on
/// overlayfs. Returns `None` if the kernel does not report it.
pub(crate) fn counted_pages(file: &impl AsFd, pages: PageRange) -> Option<u64> {
    // For the system call, 0 bytes mean the rest of the file.
    if pages.is_empty() {
        return Some(0);
    }
    // In a simulation with a model of the kernel, its answer is final: `None` inside is the answer
    // of a kernel that does not report the number.
    #[cfg(simulation)]
    if let Some(model_answer) = crate::simulation::memory::cached_pages(pages) {
        return model_answer;
    }
    let (offset, bytes) = (pages.first * PAGE_BYTES, pages.count() * PAGE_BYTES);
    page_cache::resident_pages(file, offset, bytes).ok()
}

/// Starts the kernel's readahead of these pages. Does not wait for them on a block device. Returns
/// false if the kernel rejects the call. A read error of a page is reported by the later read.
pub(crate) fn read_ahead(file: &impl AsFd, pages: PageRange) -> bool {
    let (offset, bytes) = (pages.first * PAGE_BYTES, pages.count() * PAGE_BYTES);
    page_cache::read_ahead(file, offset, bytes as usize).is_ok()
}

/// Drops the pages from the kernel page cache as far as possible (clean and unused ones). Errors of
/// the kernel are ignored.
pub(crate) fn drop_kernel_range(target: &Target, pages: PageRange) {
    // True in a simulation with a model of the kernel, which has dropped the pages.
    #[cfg(simulation)]
    if crate::simulation::memory::drop_cached(pages) {
        return;
    }
    // Saturating, because a range may reach to the largest page number. Length 0 would mean the
    // rest of the file. An empty range has no effect.
    if let Some(bytes) = NonZero::new(pages.count().saturating_mul(PAGE_BYTES)) {
        let _ = fadvise(target, pages.first * PAGE_BYTES, Some(bytes), Advice::DontNeed);
    }
}
