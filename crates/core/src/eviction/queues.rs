//! Two queues and ghosts, on which more than one law stands: `s3fifo` and `clock2q`.
//!
//! Pages enter the small queue, which has a tenth of the memory. Those that were used often enough
//! by the time they come to its end go on to the main queue; the others leave, and are remembered.
//! One that comes back while it is remembered enters the main queue at once. That is a clock: a
//! page that was used since it came there goes round once more.

use alloc::vec::Vec;

use super::{AccessBits, FrameLists, GhostList, Ghosts, List, PageKey, policy_pages};
use crate::cache::FrameId;

pub(super) const SMALL: List = List::PROBATION;
const MAIN: List = List::KEPT;

/// Of so many pages of memory one is the small queue's.
const SMALL_DIVISOR: u32 = 10;

/// What is noted of a victim: which queue it left.
const FROM_SMALL: u32 = 0;
const FROM_MAIN: u32 = 1;

/// How uses count.
#[derive(Clone, Copy, Debug)]
pub(super) struct UseThresholds {
    /// Uses in the small queue by which a page gets on.
    pub(super) uses_to_stay: u8,
    /// More uses than these are not counted: how often a page goes round at the most for them.
    pub(super) uses_max: u8,
}

/// As many ghosts as pages in the main queue.
fn ghosts_max(pages: u32) -> u32 {
    pages - pages / SMALL_DIVISOR
}

/// The two queues of a cache.
#[derive(Debug)]
pub(super) struct SmallAndMainQueues {
    pub(super) small_max: u32,
    main_max: u32,
    counting: UseThresholds,
    ghosts: Ghosts,
    /// Whether a page has had to leave yet.
    has_evicted: bool,
}

impl SmallAndMainQueues {
    /// For a cache of so many pages.
    pub(super) fn new(pages: u32, counting: UseThresholds) -> SmallAndMainQueues {
        let ghosts = Ghosts::new(ghosts_max(pages));
        let mut queues =
            SmallAndMainQueues { small_max: 0, main_max: 0, counting, ghosts, has_evicted: false };
        queues.share(pages);
        queues
    }

    /// For so many pages from now on. Where there are to be more, room is filled as at first.
    pub(super) fn resize(&mut self, pages: u32) {
        self.has_evicted = false;
        self.ghosts.resize(ghosts_max(pages));
        self.share(pages);
    }

    /// Shares the memory out. A cache that is full may have fewer pages for its law than there are
    /// frames: others are promised, pinned, or on their way.
    fn share(&mut self, pages: u32) {
        self.small_max = pages / SMALL_DIVISOR;
        self.main_max = pages - self.small_max;
    }

    /// Takes a page in; gives whether it is in the small queue.
    pub(super) fn enter(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey) -> bool {
        let is_back = self.ghosts.take(page).is_some();
        let is_full = !self.has_evicted && places.pages(SMALL) >= self.small_max;
        let is_small = !is_back && !is_full;
        places.push(frame, if is_small { SMALL } else { MAIN });
        places.set_uses(frame, 0);
        is_small
    }

    /// Counts a use.
    pub(super) fn used(&self, places: &mut FrameLists, frame: FrameId) {
        let uses = places.uses(frame).saturating_add(1);
        places.set_uses(frame, uses.min(self.counting.uses_max));
    }

    /// Takes the page that goes next off its queue.
    pub(super) fn victim(
        &mut self,
        places: &mut FrameLists,
        looks: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        self.has_evicted = true;
        self.share(policy_pages(places) + looks.taken());
        if places.pages(MAIN) <= self.main_max {
            while let Some(frame) = places.pop(SMALL) {
                if looks.uses(frame) + places.uses(frame) < self.counting.uses_to_stay {
                    places.set_note(frame, FROM_SMALL);
                    return Some(frame);
                }
                places.push(frame, MAIN);
                places.set_uses(frame, 0);
            }
        }
        while let Some(frame) = places.pop(MAIN) {
            let uses = (looks.uses(frame) + places.uses(frame)).min(self.counting.uses_max);
            if uses == 0 {
                places.set_note(frame, FROM_MAIN);
                return Some(frame);
            }
            places.push(frame, MAIN);
            places.set_uses(frame, uses - 1);
        }
        // The main queue is to be shortened, and is empty: no memory is so small.
        let frame = places.pop(SMALL)?;
        places.set_note(frame, FROM_SMALL);
        Some(frame)
    }

    /// The victim has gone.
    pub(super) fn evicted(&mut self, places: &FrameLists, frame: FrameId, page: PageKey) {
        if places.note(frame) == FROM_SMALL {
            self.ghosts.remember(GhostList::First, page, 0);
        }
    }

    /// The page that is looked at next.
    pub(super) fn oldest(&self, places: &FrameLists) -> Option<FrameId> {
        let first = if places.pages(MAIN) > self.main_max { MAIN } else { SMALL };
        places.oldest(first).or_else(|| places.oldest_of(&List::OF_POLICY))
    }

    /// Takes a page over from another law; gives whether it is in the small queue.
    pub(super) fn adopt(&mut self, places: &mut FrameLists, frame: FrameId, is_kept: bool) -> bool {
        let is_small = !is_kept && places.pages(SMALL) < self.small_max;
        self.has_evicted = true;
        places.push(frame, if is_small { SMALL } else { MAIN });
        places.set_uses(frame, 0);
        is_small
    }

    /// Gives up its pages. The queues are in the order in which pages came: those that were used since
    /// go last.
    pub(super) fn give_up(&self, places: &mut FrameLists) -> Vec<(FrameId, bool)> {
        let mut order = places.take_policy();
        order.sort_by_key(|&(frame, _)| places.uses(frame) > 0);
        order
    }

    /// Takes over what another law remembers.
    pub(super) fn inherit(&mut self, mut ghosts: Ghosts) {
        ghosts.join(0);
        ghosts.resize(self.ghosts.most());
        self.ghosts = ghosts;
    }

    /// Gives up what is remembered.
    pub(super) fn release_ghosts(&mut self) -> Ghosts {
        core::mem::replace(&mut self.ghosts, Ghosts::new(0))
    }
}
