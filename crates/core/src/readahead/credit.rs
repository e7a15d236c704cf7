//! Upper bound on prefetched, unused pages of one file, for every policy.
//!
//! How it works: pages are prefetched on *credit*. The initial credit of a file is the largest
//! window that can pay: 16 times the cost of a request, in pages. It is at most a 64th of the
//! memory, because the cost of a request may not be known yet. From then on the file has the credit
//! that it earned. A used page saves one request at best, so it earns as many pages as a request
//! costs. The initial credit shrinks to the used share of all finished pages. A policy with one
//! correct page per request cost is therefore never limited, and a policy whose pages are not used
//! soon has no credit left. The counts are halved each time the memory was refilled, so that a file
//! recovers.
//!
//! Measured benefit: a policy that prefetched a useless megabyte at each read slowed eight random
//! readers. On a hard disk, a solid-state drive and a mount their 99th percentile grew by up to 39
//! times. With credit the factor is at most 1.05 (`speculation` among the model tests). The cost:
//! reading parts of a file whole begins later, and the policy matrix gives 1.4877 instead of
//! 1.4905. Rejected: initially a 128th of the memory, 1.4843; four times the cost of a request,
//! 1.4869; a marginal cost shared by all waiting readers, 1.4825.
//!
//! Credit is applied to reads only. The use of mapped pages is invisible, so a policy for mapped
//! files would be limited without cause: a mapping of 512 MiB read in order took 919 requests
//! instead of 156. The policies of Linux are
//! [exempt](super::ReadaheadPolicy::is_limited_by_credit), because they are measured here
//! unchanged.

use super::evidence::WINDOW_COST_FACTOR;
use crate::request::Need;

/// Divisor of the memory that bounds the initial credit of a file.
const INITIAL_CREDIT_DIVISOR: u64 = 64;

/// Outcome of the prefetched pages of one file, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// Pages in the cache, or being read, that are not used yet.
    unused_pages: u32,
    /// Finished pages that were used; halved once per refill of the memory.
    used_pages: u32,
    /// Finished pages that left the cache unused; halved in the same way.
    lost_pages: u32,
    /// Value of `added_pages` at the last halving.
    halved_at_page: u32,
}

impl Credit {
    /// Records `pages` prefetched pages. `added_pages` is the wrapping count of pages ever added to
    /// a cache of `memory_pages`. Once more than these were added since the last halving, the
    /// counts of finished pages are halved.
    pub fn record_prefetch(&mut self, pages: u32, added_pages: u32, memory_pages: u32) {
        self.unused_pages += pages;
        if added_pages.wrapping_sub(self.halved_at_page) > memory_pages {
            self.halved_at_page = added_pages;
            self.used_pages /= 2;
            self.lost_pages /= 2;
        }
    }

    /// Counts the first use of a prefetched page: one unused page fewer is in the cache.
    pub fn used(&mut self) {
        self.unused_pages = self.unused_pages.saturating_sub(1);
        self.used_pages = self.used_pages.saturating_add(1);
    }

    /// Counts a prefetched page that left the cache unused: one unused page fewer is in the cache.
    pub fn lost(&mut self) {
        self.unused_pages = self.unused_pages.saturating_sub(1);
        self.lost_pages = self.lost_pages.saturating_add(1);
    }

    /// Removes a prefetched page from the counts, because its read was cancelled. It counts as
    /// neither used nor lost, because no reader could have used it.
    pub fn withdrawn(&mut self) {
        self.unused_pages = self.unused_pages.saturating_sub(1);
    }

    /// Number of prefetched pages that are not used yet.
    pub fn standing_pages(&self) -> u64 {
        self.unused_pages.into()
    }

    /// Used share of the finished pages in percent; `None` before the first one.
    pub fn used_percent(&self) -> Option<u64> {
        let (used, lost) = (u64::from(self.used_pages), u64::from(self.lost_pages));
        (100 * used).checked_div(used + lost)
    }

    /// Need of the next prefetch: `Prefetch` if at least half of the finished pages were used, or
    /// none has finished; else `Speculative`. A scheduler may cancel a speculative read.
    pub fn need(&self) -> Need {
        if self.lost_pages > self.used_pages { Need::Speculative } else { Need::Prefetch }
    }

    /// Number of further pages that may be prefetched into a memory of `memory_pages`. A request
    /// costs as much as the transfer of `request_cost_pages` pages. The result is the rest of the
    /// initial credit plus the earned pages, less the pages that are not used yet. 0 if these
    /// exceed the credit.
    pub fn room(&self, request_cost_pages: u64, memory_pages: u64) -> u64 {
        let (used, lost) = (u64::from(self.used_pages), u64::from(self.lost_pages));
        let initial_pages =
            (WINDOW_COST_FACTOR * request_cost_pages).min(memory_pages / INITIAL_CREDIT_DIVISOR);
        // The used share of the finished pages. The added page makes it 1 before the first. With
        // many lost pages and no used one, next to none of it is left.
        let initial_rest = initial_pages * (used + 1) / (used + lost + 1);
        let earned_pages = used.saturating_mul(request_cost_pages);
        initial_rest.saturating_add(earned_pages).saturating_sub(self.unused_pages.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Size of the memory that bounds the initial credit: a 64th is 2,048 pages.
    const MEMORY_PAGES: u64 = 1 << 17;
    /// Size of the memory whose refill halves the counts.
    const REFILL_PAGES: u32 = 1 << 16;
    /// Cost of a request in pages: the initial credit is 16 times that, 1,600 pages.
    const REQUEST_PAGES: u64 = 100;

    /// The initial credit of 1,600 pages is prefetched. All are lost: 1,600 ÷ 1,601 is zero. Ten
    /// are used: ten request costs, and 1,600 × 11 ÷ 1,611 = 10 of the initial credit.
    #[test]
    fn wasted_pages_exhaust_credit_and_each_use_earns_a_request() {
        let mut credit = Credit::default();
        assert_eq!((credit.room(REQUEST_PAGES, MEMORY_PAGES), credit.used_percent()), (1600, None));
        credit.record_prefetch(1600, 1600, REFILL_PAGES);
        assert_eq!(credit.room(REQUEST_PAGES, MEMORY_PAGES), 0);
        (0..1600).for_each(|_| credit.lost());
        assert_eq!((credit.room(REQUEST_PAGES, MEMORY_PAGES), credit.used_percent()), (0, Some(0)));
        credit.record_prefetch(10, 1610, REFILL_PAGES);
        (0..10).for_each(|_| credit.used());
        assert_eq!(credit.room(REQUEST_PAGES, MEMORY_PAGES), 10 * 100 + 10);
        // The initial credit is at most a 64th of the memory.
        assert_eq!(Credit::default().room(REQUEST_PAGES, 6400), 100);
        // After a refill of the memory of 65,536 pages, 800 count as lost and five as used.
        credit.record_prefetch(0, 1 << 17, REFILL_PAGES);
        assert_eq!(credit.room(REQUEST_PAGES, MEMORY_PAGES), 5 * 100 + 1600 * 6 / 806);
    }

    /// Every page of a stream is used, and each earns 100 pages: the first 16 earn 1,600.
    #[test]
    fn a_stream_is_never_limited_by_credit() {
        let mut credit = Credit::default();
        credit.record_prefetch(16, 16, REFILL_PAGES);
        (0..16).for_each(|_| credit.used());
        assert_eq!(credit.room(REQUEST_PAGES, MEMORY_PAGES), 1600 + 16 * 100);
        assert_eq!(credit.standing_pages(), 0);
    }
}
