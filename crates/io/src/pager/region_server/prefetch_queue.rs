//! Advice of the program: pages that it will need, and pages whose content it drops. A page is
//! *poisoned* if a touch of it is a bus error. The *machine* decides on frames, swap-in and
//! eviction. A *frame* is memory for one page.

use std::collections::VecDeque;

use super::*;
use crate::pager::anonymous_area::for_each_run;

/// Ranges to prefetch, oldest first, without the parts already read.
#[derive(Debug)]
pub(super) struct PrefetchQueue {
    /// Each has at least one page.
    ranges: VecDeque<PageRange>,
    /// Number of pages of all ranges, and its limit.
    pages: u64,
    pages_max: u64,
}

impl PrefetchQueue {
    /// Creates an empty queue of at most half of the region's memory of `memory_pages` pages. The
    /// other half is left to faults. The part is chosen, not measured.
    pub(super) fn for_memory(memory_pages: u64) -> PrefetchQueue {
        PrefetchQueue::with_limit(memory_pages / 2)
    }

    /// Creates an empty queue of at most `pages_max` pages. The limit prevents prefetched pages
    /// from evicting each other, and bounds the queue.
    fn with_limit(pages_max: u64) -> PrefetchQueue {
        PrefetchQueue { ranges: VecDeque::new(), pages: 0, pages_max }
    }

    /// Adds a range, or its first part if it is too long. Drops the oldest ranges to stay within
    /// the limit.
    pub(super) fn add(&mut self, range: PageRange) {
        let range = PageRange::new(range.first, range.count().min(self.pages_max));
        if range.is_empty() {
            return;
        }
        self.ranges.push_back(range);
        self.pages += range.count();
        while self.pages > self.pages_max {
            let oldest = self.ranges.pop_front().expect("one range alone is within the limit");
            self.pages -= oldest.count();
        }
    }

    /// Returns the oldest range, or `None` if the queue is empty.
    fn oldest_range(&self) -> Option<PageRange> {
        self.ranges.front().copied()
    }

    /// Removes the pages before `page`, which lies in the oldest range or at its end, from that
    /// range.
    fn drop_before(&mut self, page: u64) {
        let range =
            self.ranges.front_mut().expect("the queue has the range whose pages were handled");
        self.pages -= page - range.first;
        range.first = page;
        if range.is_empty() {
            self.ranges.pop_front();
        }
    }
}

/// A discard command: pages that the owner drops, and the caller that waits for their drop.
#[derive(Debug)]
pub(super) struct Discard {
    /// Pages that are still to be dropped.
    pub(super) pages: Vec<u64>,
    /// Answered when no page is left.
    pub(super) reply: SyncSender<()>,
}

impl Areas {
    /// Prefetches advised pages as far as free memory permits. The rest follows at a later call.
    /// Returns true if any page was handled.
    pub(super) fn prefetch_advised(&mut self, machine: &mut Machine) -> bool {
        let mut has_handled_any = false;
        while let Some(range) = self.prefetch_queue.oldest_range() {
            let now = self.clock.now();
            let handled_end = machine.will_need(now, self.memory, range, PROCESS);
            self.prefetch_queue.drop_before(handled_end);
            has_handled_any |= handled_end > range.first;
            // Free memory or the device's queue is used up for now, or faults or reads wait.
            if handled_end < range.end {
                break;
            }
        }
        has_handled_any
    }

    /// Drops the pages to discard and releases their memory in the user area. Answers the callers
    /// whose pages are all dropped. Pages with a fault or transfer in progress stay for a later
    /// call. Returns true if any was dropped.
    pub(super) fn discard(&mut self, machine: &mut Machine) -> bool {
        let mut has_dropped_any = false;
        let mut discards = std::mem::take(&mut self.discards);
        discards.retain_mut(|discard| {
            let pages_before = discard.pages.len();
            let mut pages_to_release = Vec::new();
            discard.pages.retain(|&page| !self.drop_page(machine, page, &mut pages_to_release));
            for_each_run(&mut pages_to_release, |run| {
                // SAFETY: the owner dropped these bytes, and borrows the region mutably while it
                // waits. There are no references.
                unsafe { self.user.release(run) };
            });
            has_dropped_any |= discard.pages.len() < pages_before;
            if discard.pages.is_empty() {
                // A caller that no longer waits needs no answer.
                let _ = discard.reply.send(());
            }
            !discard.pages.is_empty()
        });
        self.discards = discards;
        has_dropped_any
    }

    /// Drops the content of a page. Returns false if a fault or transfer of it is in progress. Adds
    /// a mapped or poisoned page to `pages_to_release`: its address in the program has to be
    /// released too.
    fn drop_page(
        &mut self,
        machine: &mut Machine,
        page: u64,
        pages_to_release: &mut Vec<u64>,
    ) -> bool {
        let range = PageRange::new(page, 1);
        let pages_in_progress = machine.discard(self.clock.now(), self.memory, range);
        // The machine has dropped nothing of such a page.
        if pages_in_progress > 0 {
            return false;
        }
        self.memory_limit.on_left(page);
        let entry = std::mem::replace(&mut self.frame_of_page[page as usize], NO_FRAME);
        // An unmapped page leaves nothing here: its frame keeps its memory for another page.
        if entry != NO_FRAME {
            self.frames[entry as usize - 1].presence = FramePresence::Unallocated;
            self.present_pages -= 1;
        }
        if self.poisoned.remove(&page) || entry != NO_FRAME {
            pages_to_release.push(page);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue of at most 10 pages.
    #[test]
    fn advised_ranges_are_limited_in_pages_and_the_latest_stay() {
        let mut advised = PrefetchQueue::with_limit(10);
        advised.add(PageRange::new(100, 4));
        advised.add(PageRange::new(200, 4));
        advised.drop_before(103);
        assert_eq!(advised.oldest_range(), Some(PageRange::new(103, 1)));
        // 1 + 4 + 6 exceeds the limit by one.
        advised.add(PageRange::new(300, 6));
        assert_eq!(advised.oldest_range(), Some(PageRange::new(200, 4)));
        // A range that is too long is cut to its first part and replaces all others.
        advised.add(PageRange::new(400, 99));
        assert_eq!((advised.oldest_range(), advised.pages), (Some(PageRange::new(400, 10)), 10));
        advised.drop_before(410);
        assert_eq!((advised.oldest_range(), advised.pages), (None, 0));
    }
}
