//! Residency checks of a batch's reads on overlayfs, one for many reads.
//!
//! A page is *resident* if it is in the kernel page cache. On overlayfs a check of resident pages
//! takes six system calls, and no later `RWF_NOWAIT` verifies a skipped check. The second read in
//! a row within one 2 MiB window checks the whole window instead of its own pages. If all pages of
//! the window are resident, the next reads there check nothing. Pages evicted meanwhile are read
//! by the caller, one read after another.

use std::sync::atomic::{AtomicU64, Ordering};

use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::are_pages_resident;
use super::residency_sampling::UNCHECKED_READS_MAX;
use super::resident_file::WINDOW_PAGES;
use crate::target::Target;

/// Last window of a file in which a read was checked, and its state. Threads that share it may lose
/// an update, which changes the checks by one read.
#[derive(Debug, Default)]
pub(crate) struct ResidentWindow {
    /// Number of the window plus 1, above [`STATE_BITS`] bits of its state. 0 for no window.
    bits: AtomicU64,
}

/// Number of bits of the state, which is the number of reads that check nothing, up to 31.
const STATE_BITS: u32 = 6;
/// State of a window some of whose pages are absent: each read checks its own pages.
const PARTLY_ABSENT: u64 = 32;

impl ResidentWindow {
    /// True if all these pages are resident, or were when their window was checked. A read across
    /// the end of its window checks its own pages and changes no state.
    pub(crate) fn is_resident(&self, target: &Target, pages: PageRange) -> bool {
        let window = pages.first / WINDOW_PAGES;
        let file_pages = target.bytes().div_ceil(PAGE_BYTES);
        let window_pages = PageRange::new(window * WINDOW_PAGES, WINDOW_PAGES).clipped(file_pages);
        if pages.end > window_pages.end {
            return are_pages_resident(target, pages);
        }
        let bits = self.bits.load(Ordering::Relaxed);
        let known_state = bits & ((1 << STATE_BITS) - 1);
        let set_state = |state: u64| {
            self.bits.store((window + 1) << STATE_BITS | state, Ordering::Relaxed);
        };
        match known_state {
            // The first read there, or one after reads of another window.
            _ if bits >> STATE_BITS != window + 1 => set_state(0),
            PARTLY_ABSENT => {}
            // The second read in a row there, or all reads without a check are used up.
            0 if are_pages_resident(target, window_pages) => {
                set_state(u64::from(UNCHECKED_READS_MAX));
                return true;
            }
            0 => set_state(PARTLY_ABSENT),
            unchecked_reads => {
                set_state(unchecked_reads - 1);
                return true;
            }
        }
        are_pages_resident(target, pages)
    }

    /// Forgets the window, whose pages may have been dropped.
    pub(super) fn forget(&self) {
        self.bits.store(0, Ordering::Relaxed);
    }
}
