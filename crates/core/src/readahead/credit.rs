//! How much may be read ahead of a file, whatever law asks for it.
//!
//! The law in words: what is read ahead is read on *credit*. As long as nothing is known of a file, as many
//! pages may stand unused as the largest window has that can pay, sixteen times what a request costs, in pages; and no more
//! than a 64th of the memory, for what a request costs may not be known yet either. From then on the file has what
//! it has earned. A page that is used has saved a request at best, and earns as many pages as a request
//! costs; and of what there was at first the share is left that was used, of all that ended. So
//! a law that is right once in as many pages as a request costs is never held back, and one that reads what
//! nobody wants has nothing left to read it on. What was seen counts by half once the memory was
//! filled anew, so that nobody is distrusted for ever.
//!
//! What it is for: under a law that reads a megabyte of what nobody wants at each read, eight readers at random on a
//! disk, a drive, a mount waited for up to 39 times as long at the 99th percentile; on credit for no more than 1.05 times
//! (`speculation` among the tests of the models). What it costs: reading parts of a file whole begins later; the matrix is 1.4877
//! where it was 1.4905. What was worse: a 128th of the memory at first, 1.4843; four times what a request costs, 1.4869;
//! a price shared by all who wait, 1.4825.
//!
//! It is kept of reads alone: who maps a file uses its pages without a word, so that a law for mapped files would be held back
//! for nothing (a mapping of 512 MiB that is gone through in order took 919 requests, and 156 without). The laws of Linux are [not held to it](super::ReadaheadPolicy::is_on_credit): they stand here to be measured as they
//! were.

use super::evidence::WINDOW_COST_FACTOR;
use crate::request::Need;

/// Of the memory one of so many parts may be risked before anything is known.
const INITIAL_CREDIT_DIVISOR: u64 = 64;

/// What came of what was read ahead of one file, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// In the cache, or on their way there, and not used yet.
    standing: u32,
    /// Of those that ended, by how it was with them; older ones count less.
    used: u32,
    lost: u32,
    /// At how many pages added to the cache those were halved last.
    halved: u32,
}

impl Credit {
    /// So many pages are read ahead, where `added_pages` were ever added, round and round, to a cache of
    /// `memory_pages`.
    pub fn read_ahead(&mut self, pages: u32, added_pages: u32, memory_pages: u32) {
        self.standing += pages;
        if added_pages.wrapping_sub(self.halved) > memory_pages {
            self.halved = added_pages;
            self.used /= 2;
            self.lost /= 2;
        }
    }

    /// A page was used for the first time.
    pub fn used(&mut self) {
        self.standing = self.standing.saturating_sub(1);
        self.used = self.used.saturating_add(1);
    }

    /// A page has left, and nobody had used it.
    pub fn lost(&mut self) {
        self.standing = self.standing.saturating_sub(1);
        self.lost = self.lost.saturating_add(1);
    }

    /// A page was not read after all.
    pub fn withdrawn(&mut self) {
        self.standing = self.standing.saturating_sub(1);
    }

    /// How many pages were read ahead and are not used yet.
    pub fn standing_pages(&self) -> u64 {
        self.standing.into()
    }

    /// Of the pages of which it is known, the share that was used, in percent; `None` while nothing is known.
    pub fn used_percent(&self) -> Option<u64> {
        let (used, lost) = (u64::from(self.used), u64::from(self.lost));
        (100 * used).checked_div(used + lost)
    }

    /// Whether what is read ahead of the file is likely to be used: at least half of what is known of was.
    pub fn need(&self) -> Need {
        if self.lost > self.used { Need::Speculative } else { Need::Prefetch }
    }

    /// How many more pages may be read ahead into a memory of `memory_pages`, where a request costs
    /// `request_pages`.
    pub fn room(&self, request_pages: u64, memory_pages: u64) -> u64 {
        let (used, lost) = (u64::from(self.used), u64::from(self.lost));
        let at_first =
            (WINDOW_COST_FACTOR * request_pages).min(memory_pages / INITIAL_CREDIT_DIVISOR);
        let at_first = at_first * (used + 1) / (used + lost + 1);
        let budget_earned = used.saturating_mul(request_pages);
        at_first.saturating_add(budget_earned).saturating_sub(self.standing.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request costs 100 pages: 1,600 at first, of a memory of 131,072 that would give 2,048. All of them are lost: 1,600 ÷ 1,601 is none. Ten are
    /// used, as many pages as ten requests cost, and 1,600 × 11 ÷ 1,611 of what there was.
    #[test]
    fn wasted_pages_exhaust_credit_and_each_use_earns_a_request() {
        let mut credit = Credit::default();
        assert_eq!((credit.room(100, 1 << 17), credit.used_percent()), (1600, None));
        credit.read_ahead(1600, 1600, 1 << 16);
        assert_eq!(credit.room(100, 1 << 17), 0);
        (0..1600).for_each(|_| credit.lost());
        assert_eq!((credit.room(100, 1 << 17), credit.used_percent()), (0, Some(0)));
        credit.read_ahead(10, 1610, 1 << 16);
        (0..10).for_each(|_| credit.used());
        assert_eq!(credit.room(100, 1 << 17), 10 * 100 + 10);
        assert_eq!(Credit::default().room(100, 6400), 100);
        // Once the memory of 65,536 pages was filled anew 800 count as lost, and five as used.
        credit.read_ahead(0, 1 << 17, 1 << 16);
        assert_eq!(credit.room(100, 1 << 17), 5 * 100 + 1600 * 6 / 806);
    }

    /// Of a stream every page is used: each window may be a hundred times the one before.
    #[test]
    fn a_stream_is_never_limited_by_credit() {
        let mut credit = Credit::default();
        credit.read_ahead(16, 16, 1 << 16);
        (0..16).for_each(|_| credit.used());
        assert_eq!((credit.room(100, 1 << 17), credit.standing_pages()), (1600 + 16 * 100, 0));
    }
}
