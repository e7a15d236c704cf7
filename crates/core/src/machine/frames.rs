//! The frames of the cache, and to whom they are promised.
//!
//! What holds:
//! 1. Pages pinned by reads and faults, pages that are read ahead, and pages of memory that can't
//!    be given away at once never exceed the budget together. So who has been promised a page
//!    always finds a frame for it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Config;
use super::error::ConfigError;
use crate::cache::{Cache, FileId, FrameId, Mark};
use crate::eviction::{self, TwoLists};
use crate::policy::Spec;
use crate::unit::PAGE_BYTES;

/// One part of so many of the pages must have come back before it matters which ones leave.
const REFAULT_DIVISOR: u32 = 16;

/// The cache, and what is promised of it.
pub(super) struct Frames {
    pub(super) cache: Cache,
    /// The reclaim law, to be built anew for another size.
    eviction: Spec,
    /// Whether the cache is under that law.
    is_fitted: bool,
    pub(super) budget: Budget,
    lent_pages_max: u64,
}

/// How many pages are promised, and to whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) pages: u64,
    /// One for each page of each read and fault that has begun and is not released.
    pub(super) pinned: u64,
    /// Pages read ahead that the device has not delivered yet.
    pub(super) ahead: u64,
    /// How many pages laws count on at the most.
    pub(super) policy_pages_max: u64,
}

impl Budget {
    pub(super) fn has_room_for(&self, pages: u64) -> bool {
        pages <= self.room()
    }

    pub(super) fn room(&self) -> u64 {
        self.pages.saturating_sub(self.pinned + self.ahead)
    }
}

impl Frames {
    /// As many as the memory of `config` has, all free.
    pub(super) fn new(config: &Config) -> Result<Frames, ConfigError> {
        let pages = config.memory_bytes / PAGE_BYTES;
        let lent_pages_max = config.pinned_bytes_max / PAGE_BYTES;
        if pages <= lent_pages_max {
            return Err(ConfigError::NoMemory {
                memory_bytes: config.memory_bytes,
                needed_bytes: (lent_pages_max + 1) * PAGE_BYTES,
            });
        }
        let pages_max = pages.max(config.memory_bytes_max / PAGE_BYTES);
        if pages_max >= u64::from(u32::MAX) {
            let memory_bytes = config.memory_bytes.max(config.memory_bytes_max);
            return Err(ConfigError::TooMuchMemory { memory_bytes });
        }
        let policy_pages_max = config.policy_memory_bytes_max / PAGE_BYTES;
        let budget =
            Budget { pages: pages - lent_pages_max, pinned: 0, ahead: 0, policy_pages_max };
        let eviction = config.eviction.clone();
        let is_fitted = pages_max == pages;
        // One that is fitted later is only looked at: whether it could be built.
        let policy_pages = if is_fitted { pages as u32 } else { 1 };
        let policy = eviction::build(&eviction, policy_pages).map_err(ConfigError::Policy)?;
        let policy = if is_fitted { policy } else { Box::new(TwoLists) };
        let cache = Cache::with_frames_max(pages as u32, pages_max as u32, policy);
        Ok(Frames { cache, eviction, is_fitted, budget, lent_pages_max })
    }

    /// Changes how many frames there are; gives those whose memory is to be taken back. They don't become fewer than are
    /// promised, lent or held.
    pub(super) fn resize(&mut self, pages: u32) -> Vec<FrameId> {
        let before = self.cache.budget_pages();
        if !self.is_fitted {
            self.fit(pages);
        }
        let withdrawing = if pages >= before {
            self.cache.grow(pages - before);
            Vec::new()
        } else {
            let spare = self.budget.room().saturating_sub(self.held_pages());
            self.cache.shrink(u64::from(before - pages).min(spare) as u32)
        };
        // A law that learns what would have been in a smaller memory learns it of what leaves now.
        let fitted = self.cache.policy_pages();
        if self.is_fitted && pages.abs_diff(fitted) > fitted / 4 {
            self.cache.resize_policy(pages.max(1));
        }
        self.budget.pages = u64::from(self.cache.budget_pages()) - self.lent_pages_max;
        withdrawing
    }

    /// Has a reclaim law that fits, where there are to be `pages` frames and more than half of them are in use, and as many
    /// pages as a sixteenth of them have come back after they had left. Until then any law is as good as another, and
    /// that pages go in the order in which they came costs least, in time and in what a law remembers.
    fn fit(&mut self, pages: u32) {
        let is_short = self.cache.refault_pages() >= u64::from(pages / REFAULT_DIVISOR);
        if self.cache.backed_pages() > pages / 2 && is_short {
            let policy =
                eviction::build(&self.eviction, pages.max(1)).expect("it was built before");
            self.cache.replace_policy(policy, pages.max(1));
            self.is_fitted = true;
        }
    }

    /// Whether so many more pages find frames.
    pub(super) fn has_room_for(&self, pages: u64) -> bool {
        self.budget.has_room_for(pages + self.held_pages())
    }

    /// Pages of memory that can't be given away at once.
    pub(super) fn held_pages(&self) -> u64 {
        self.cache.held_pages().into()
    }

    /// Adds an absent page of memory; there is room for it.
    pub(super) fn add_memory(
        &mut self,
        file: FileId,
        page: u64,
        mark: Mark,
        is_ahead: bool,
    ) -> FrameId {
        self.cache
            .add_memory(file, page, mark, is_ahead)
            .expect("what is pinned, in flight and held stays within the budget")
    }

    /// Whether nothing is promised to anybody.
    pub(super) fn is_idle(&self) -> bool {
        self.budget.pinned == 0 && self.budget.ahead == 0 && self.cache.reserved_pages() == 0
    }
}
