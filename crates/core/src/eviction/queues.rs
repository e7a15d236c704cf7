//! Two queues and ghosts, shared by the policies `s3fifo`, `clock2q` and `s4fifo`.
//!
//! Pages enter the small queue, which has a share of the memory. Pages with enough uses at its end
//! move to the main queue; the others leave, and are remembered as ghosts. A page that returns
//! while it is remembered enters the main queue at once, if it had enough uses in the small one.
//! The main queue is a clock: a page that was used since it entered moves to the front again.
//!
//! The note of a page in the small queue is the value of `small_entries` at its entry. The note of
//! a victim is the queue that it left. The word of a ghost is the number of its uses in the small
//! queue.

use alloc::vec::Vec;
use core::fmt;

// Access bits count the uses of a page that readers have not reported, up to two. Reading them
// resets them, so that a loop over used pages ends.
use super::{
    AccessBits, EvictionPolicy, FrameLists, GhostList, Ghosts, List, PageKey, PageOrigin,
    policy_pages,
};
use crate::page::FrameId;

/// List of the small queue.
const SMALL: List = List::PROBATION;
/// List of the main queue.
const MAIN: List = List::REUSED;

/// Word of a ghost whose uses are unknown, because another policy has remembered it.
const UNKNOWN_USES: u32 = 0;

/// Note of a victim: the queue that it left.
const FROM_SMALL: u32 = 0;
const FROM_MAIN: u32 = 1;

/// Sizes and thresholds of the queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueParameters {
    /// Size of the small queue in percent of the memory, rounded down.
    pub(super) small_percent: u32,
    /// Number of ghosts in percent of the pages of memory, rounded up.
    pub(super) ghost_percent: u32,
    /// Correlation window in percent of the size of the small queue. The uses of a page do not
    /// count until as many pages have entered the small queue after it.
    pub(super) skip_percent: u32,
    /// Number of uses in the small queue with which a page moves to the main queue.
    pub(super) uses_to_stay: u8,
    /// Number of uses in the small queue with which a ghost enters the main queue when it returns.
    pub(super) uses_to_return: u8,
    /// Largest use count, which bounds the number of rounds through the main queue.
    pub(super) uses_max: u8,
}

impl QueueParameters {
    /// Size of the small queue for a cache of `pages` pages.
    fn small_max(&self, pages: u32) -> u32 {
        (u64::from(pages) * u64::from(self.small_percent) / 100) as u32
    }

    /// Number of ghosts for a cache of `pages` pages.
    fn ghosts_max(&self, pages: u32) -> u32 {
        let ghosts = (u64::from(pages) * u64::from(self.ghost_percent)).div_ceil(100);
        // The highest number marks the end of a list of ghosts.
        ghosts.min(u64::from(u32::MAX - 1)) as u32
    }
}

/// The two queues of a cache.
#[derive(Debug)]
pub(super) struct SmallAndMainQueues {
    /// Size of the small queue in pages.
    small_max: u32,
    /// Size of the main queue in pages.
    main_max: u32,
    /// Sizes and thresholds of the policy.
    parameters: QueueParameters,
    /// Pages that left the small queue, all in the first list; the word is the number of uses.
    ghosts: Ghosts,
    /// Wrapping count of pages that have entered the small queue.
    small_entries: u32,
    /// True once a page has been evicted.
    has_evicted: bool,
}

/// A policy that consists of the two queues.
pub(super) trait TwoQueuePolicy: fmt::Debug + Send {
    /// The queues.
    fn queues(&mut self) -> &mut SmallAndMainQueues;
}

impl SmallAndMainQueues {
    /// Creates the queues for a cache of `pages` pages.
    pub(super) fn new(pages: u32, parameters: QueueParameters) -> SmallAndMainQueues {
        let mut queues = SmallAndMainQueues {
            small_max: 0,
            main_max: 0,
            parameters,
            ghosts: Ghosts::new(parameters.ghosts_max(pages)),
            small_entries: 0,
            has_evicted: false,
        };
        queues.set_sizes(pages);
        queues
    }

    /// Divides the memory between the queues. A full cache may have fewer pages for its policy than
    /// frames, because others are reserved, pinned, or being read.
    fn set_sizes(&mut self, pages: u32) {
        self.small_max = self.parameters.small_max(pages);
        self.main_max = pages - self.small_max;
    }

    /// Adds a page without uses to `queue`: `SMALL` or `MAIN`. A page of the small queue gets the
    /// number of its entry as its note.
    fn push(&mut self, lists: &mut FrameLists, frame: FrameId, queue: List) {
        lists.push(frame, queue);
        lists.set_uses(frame, 0);
        if queue == SMALL {
            self.small_entries = self.small_entries.wrapping_add(1);
            lists.set_note(frame, self.small_entries);
        }
    }

    /// Returns true if the page is in the small queue, and too few pages have entered after it for
    /// its uses to count. Too few are less than `skip_percent` of the size of the queue.
    fn is_in_correlation_window(&self, lists: &FrameLists, frame: FrameId) -> bool {
        let entered_later = || self.small_entries.wrapping_sub(lists.note(frame));
        let window = u64::from(self.parameters.skip_percent) * u64::from(self.small_max);
        lists.list_of(frame) == Some(SMALL) && u64::from(entered_later()) * 100 < window
    }

    /// Number of reported and unreported uses of a page, up to the largest count. Unreported uses
    /// all count, because it is unknown which of them were in the correlation window.
    fn all_uses(&self, lists: &FrameLists, bits: &mut dyn AccessBits, frame: FrameId) -> u8 {
        (bits.uses(frame) + lists.uses(frame)).min(self.parameters.uses_max)
    }
}

impl<P: TwoQueuePolicy> EvictionPolicy for P {
    /// Adds a page to the small queue, or to the main one if it returns as a ghost with enough
    /// uses. Before the first eviction, a page that finds the small queue full enters the main one.
    fn enter(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, _entry: PageOrigin) {
        let queues = self.queues();
        let uses_to_return = u32::from(queues.parameters.uses_to_return);
        let ghost = queues.ghosts.take_entering(page);
        let is_returning = ghost.is_some_and(|(_, uses)| uses >= uses_to_return);
        let is_full = !queues.has_evicted && lists.pages(SMALL) >= queues.small_max;
        queues.push(lists, frame, if is_returning || is_full { MAIN } else { SMALL });
    }

    /// If the requested page is a ghost, removes the ghost, before the ghost of the next victim
    /// displaces it, and notes its uses until the page enters. No effect on any other page.
    fn demand(&mut self, page: PageKey) {
        self.queues().ghosts.announce(page);
    }

    /// Counts a use of the page, up to the largest count, except within the correlation window.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        let queues = self.queues();
        if !queues.is_in_correlation_window(lists, frame) {
            let uses = lists.uses(frame).saturating_add(1);
            lists.set_uses(frame, uses.min(queues.parameters.uses_max));
        }
    }

    /// Removes the next victim from its queue; `None` if both queues are empty. It is from the main
    /// queue while that exceeds its size, and otherwise from the small one. A page in the small
    /// queue with at least `uses_to_stay` uses moves to the main queue instead. If the small queue
    /// has no victim, the main queue has it, whatever its size. A used page in the main queue goes
    /// round again with one use less.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        let queues = self.queues();
        queues.has_evicted = true;
        // Victims that are taken and not yet evicted still count as pages of the policy.
        queues.set_sizes(policy_pages(lists) + access_bits.taken());
        if lists.pages(MAIN) <= queues.main_max {
            while let Some(frame) = lists.pop(SMALL) {
                let uses = queues.all_uses(lists, access_bits, frame);
                if uses < queues.parameters.uses_to_stay {
                    lists.set_uses(frame, uses);
                    lists.set_note(frame, FROM_SMALL);
                    return Some(frame);
                }
                queues.push(lists, frame, MAIN);
            }
        }
        while let Some(frame) = lists.pop(MAIN) {
            let uses = queues.all_uses(lists, access_bits, frame);
            if uses == 0 {
                lists.set_note(frame, FROM_MAIN);
                return Some(frame);
            }
            lists.push(frame, MAIN);
            lists.set_uses(frame, uses - 1);
        }
        None
    }

    /// Remembers a victim as a ghost, with its uses, if it has left the small queue.
    fn evicted(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) {
        if lists.note(frame) == FROM_SMALL {
            self.queues().ghosts.remember(GhostList::First, page, lists.uses(frame).into());
        }
    }

    /// Returns the page that is checked next as a victim, without removing it; `None` without a
    /// page.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        let next_list = if lists.pages(MAIN) > self.queues().main_max { MAIN } else { SMALL };
        lists.oldest(next_list).or_else(|| lists.oldest_of(&List::OF_POLICY))
    }

    /// Takes a page over from another policy: a reused page into the main queue, others into the
    /// small one while it has room. The cache has evicted pages before, so that pages which enter
    /// later do not fill the main queue at once.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey, was_reused: bool) {
        let queues = self.queues();
        queues.has_evicted = true;
        let has_room = lists.pages(SMALL) < queues.small_max;
        queues.push(lists, frame, if !was_reused && has_room { SMALL } else { MAIN });
    }

    /// Sets the number of pages. In a larger cache, free space is filled as initially: the main
    /// queue takes pages that find the small one full.
    fn resize(&mut self, _lists: &mut FrameLists, _bits: &dyn AccessBits, pages: u32) {
        let queues = self.queues();
        queues.has_evicted = false;
        queues.ghosts.resize(queues.parameters.ghosts_max(pages));
        queues.set_sizes(pages);
    }

    /// Releases all pages in the order of eviction, the used ones last. The flag is true for a page
    /// of the main queue.
    fn give_up(&mut self, lists: &mut FrameLists) -> Vec<(FrameId, bool)> {
        let mut order = lists.take_policy();
        order.sort_by_key(|&(frame, _)| lists.uses(frame) > 0);
        order
    }

    /// Takes over another policy's ghosts, up to the own limit, in place of the own ones. Returns
    /// `None`, because none is left over.
    fn inherit(&mut self, ghosts: Ghosts) -> Option<Ghosts> {
        // Both lists of the other policy become one, because these queues use only the first.
        self.queues().ghosts.replace_by_joined(ghosts, UNKNOWN_USES);
        None
    }

    /// Releases all ghosts for another policy, and keeps none.
    fn release_ghosts(&mut self) -> Option<Ghosts> {
        Some(self.queues().ghosts.take_all())
    }
}
