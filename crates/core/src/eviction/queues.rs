//! Two queues and ghosts, shared by the policies `s3fifo` and `clock2q`.
//!
//! Pages enter the small queue, which has a tenth of the memory. Pages with enough uses at its end
//! move to the main queue; the others leave, and are remembered as ghosts. A page that returns
//! while it is remembered enters the main queue at once. The main queue is a clock: a page that was
//! used since it entered moves to the front again.

use alloc::vec::Vec;

use super::{AccessBits, FrameLists, GhostList, Ghosts, List, PageKey, policy_pages};
use crate::page::FrameId;

/// List of the small queue.
pub(super) const SMALL: List = List::PROBATION;
/// List of the main queue.
const MAIN: List = List::REUSED;

/// Divisor of the memory that gives the size of the small queue: a tenth.
const SMALL_DIVISOR: u32 = 10;

/// Number stored with each ghost, its *word*: these policies need none.
const UNUSED_WORD: u32 = 0;

/// Note of a victim: the queue that it left.
const FROM_SMALL: u32 = 0;
const FROM_MAIN: u32 = 1;

/// Thresholds of use counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct UseThresholds {
    /// Number of uses in the small queue with which a page moves to the main queue.
    pub(super) uses_to_stay: u8,
    /// Largest use count, which bounds the number of rounds through the main queue.
    pub(super) uses_max: u8,
}

/// Number of ghosts: the number of pages in the main queue.
fn ghosts_max(pages: u32) -> u32 {
    pages - pages / SMALL_DIVISOR
}

/// The two queues of a cache.
#[derive(Debug)]
pub(super) struct SmallAndMainQueues {
    /// Size of the small queue in pages.
    pub(super) small_max: u32,
    /// Size of the main queue in pages.
    main_max: u32,
    thresholds: UseThresholds,
    ghosts: Ghosts,
    /// True once a page has been evicted.
    has_evicted: bool,
}

impl SmallAndMainQueues {
    /// Creates the queues for a cache of `pages` pages.
    pub(super) fn new(pages: u32, thresholds: UseThresholds) -> SmallAndMainQueues {
        let ghosts = Ghosts::new(ghosts_max(pages));
        let mut queues = SmallAndMainQueues {
            small_max: 0,
            main_max: 0,
            thresholds,
            ghosts,
            has_evicted: false,
        };
        queues.set_sizes(pages);
        queues
    }

    /// Sets the number of pages. In a larger cache, free space is filled as initially.
    pub(super) fn resize(&mut self, pages: u32) {
        self.has_evicted = false;
        self.ghosts.resize(ghosts_max(pages));
        self.set_sizes(pages);
    }

    /// Divides the memory between the queues. A full cache may have fewer pages for its policy than
    /// frames, because others are reserved, pinned, or being read.
    fn set_sizes(&mut self, pages: u32) {
        self.small_max = pages / SMALL_DIVISOR;
        self.main_max = pages - self.small_max;
    }

    /// Adds a page to the small queue, or to the main one if it returns as a ghost. Before the
    /// first eviction, a page that finds the small queue full enters the main one. Returns true if
    /// the page is in the small queue.
    pub(super) fn enter(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) -> bool {
        let is_returning = self.ghosts.take(page).is_some();
        let is_full = !self.has_evicted && lists.pages(SMALL) >= self.small_max;
        let is_small = !is_returning && !is_full;
        lists.push(frame, if is_small { SMALL } else { MAIN });
        lists.set_uses(frame, 0);
        is_small
    }

    /// Counts a use of the page, up to the largest count.
    pub(super) fn used(&self, lists: &mut FrameLists, frame: FrameId) {
        let uses = lists.uses(frame).saturating_add(1);
        lists.set_uses(frame, uses.min(self.thresholds.uses_max));
    }

    /// Removes the next victim from its queue. A page in the small queue with at least
    /// `uses_to_stay` uses moves to the main queue instead. A used page in the main queue goes
    /// round again with one use less.
    pub(super) fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        self.has_evicted = true;
        // Victims that are taken and not yet evicted still count as pages of the policy.
        self.set_sizes(policy_pages(lists) + access_bits.taken());
        if lists.pages(MAIN) <= self.main_max {
            while let Some(frame) = lists.pop(SMALL) {
                if access_bits.uses(frame) + lists.uses(frame) < self.thresholds.uses_to_stay {
                    lists.set_note(frame, FROM_SMALL);
                    return Some(frame);
                }
                lists.push(frame, MAIN);
                lists.set_uses(frame, 0);
            }
        }
        while let Some(frame) = lists.pop(MAIN) {
            let uses = (access_bits.uses(frame) + lists.uses(frame)).min(self.thresholds.uses_max);
            if uses == 0 {
                lists.set_note(frame, FROM_MAIN);
                return Some(frame);
            }
            lists.push(frame, MAIN);
            lists.set_uses(frame, uses - 1);
        }
        // The main queue is over its limit and empty: only possible in a very small cache.
        let frame = lists.pop(SMALL)?;
        lists.set_note(frame, FROM_SMALL);
        Some(frame)
    }

    /// Remembers a victim as a ghost if it has left the small queue.
    pub(super) fn evicted(&mut self, lists: &FrameLists, frame: FrameId, page: PageKey) {
        if lists.note(frame) == FROM_SMALL {
            self.ghosts.remember(GhostList::First, page, UNUSED_WORD);
        }
    }

    /// Returns the page that is checked next as a victim, without removing it.
    pub(super) fn oldest(&self, lists: &FrameLists) -> Option<FrameId> {
        let next_list = if lists.pages(MAIN) > self.main_max { MAIN } else { SMALL };
        lists.oldest(next_list).or_else(|| lists.oldest_of(&List::OF_POLICY))
    }

    /// Takes a page over from another policy: a reused page into the main queue, others into the
    /// small one while it has room. Returns true if it is in the small queue.
    pub(super) fn adopt(
        &mut self,
        lists: &mut FrameLists,
        frame: FrameId,
        was_reused: bool,
    ) -> bool {
        let is_small = !was_reused && lists.pages(SMALL) < self.small_max;
        self.has_evicted = true;
        lists.push(frame, if is_small { SMALL } else { MAIN });
        lists.set_uses(frame, 0);
        is_small
    }

    /// Releases all pages in the order of eviction, the used ones last. The flag is true for a page
    /// of the main queue.
    pub(super) fn give_up(&self, lists: &mut FrameLists) -> Vec<(FrameId, bool)> {
        let mut order = lists.take_policy();
        order.sort_by_key(|&(frame, _)| lists.uses(frame) > 0);
        order
    }

    /// Takes over another policy's ghosts, up to the own limit, in place of the own ones.
    pub(super) fn inherit(&mut self, ghosts: Ghosts) {
        // Both lists of the other policy become one, because these queues use only the first.
        self.ghosts.replace_by_joined(ghosts, UNUSED_WORD);
    }

    /// Releases all ghosts, and keeps none.
    pub(super) fn release_ghosts(&mut self) -> Ghosts {
        self.ghosts.take_all()
    }
}
