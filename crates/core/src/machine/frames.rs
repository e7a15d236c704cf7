//! The frames of the cache, and their reservations.
//!
//! Invariant: pages pinned by reads and faults, pages being prefetched, and pages of memory that
//! can't leave at once never exceed the budget together. A page with a reservation therefore always
//! finds a frame.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Config;
use super::error::ConfigError;
use crate::cache::{Cache, FileId, FrameId, Mark};
use crate::eviction::{self, TwoLists};
use crate::policy::Spec;
use crate::unit::PAGE_BYTES;

/// Divisor of the pages: that share of them must have returned before the eviction policy matters.
const REFAULT_DIVISOR: u32 = 16;

/// The cache and its reservations.
pub(super) struct Frames {
    pub(super) cache: Cache,
    /// The eviction policy, to be rebuilt for another size.
    eviction: Spec,
    /// True if the cache uses that policy already.
    is_policy_applied: bool,
    pub(super) budget: Budget,
    /// Pages that readers outside the machine may pin.
    shared_pages_max: u64,
}

/// Numbers of reserved pages, by purpose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Frames for reads, faults and prefetch: all except those that readers may pin.
    pub(super) pages: u64,
    /// One for each page of each begun, unreleased read and fault.
    pub(super) pinned: u64,
    /// Prefetched pages that the device has not delivered yet.
    pub(super) ahead: u64,
    /// Largest number of pages that readahead policies assume.
    pub(super) policy_pages_max: u64,
}

impl Budget {
    /// Returns true if at least `pages` pages are neither pinned nor in flight as prefetch.
    pub(super) fn has_room_for(&self, pages: u64) -> bool {
        pages <= self.room()
    }

    /// Number of pages of the budget that are neither pinned nor in flight as prefetch.
    pub(super) fn room(&self) -> u64 {
        self.pages.saturating_sub(self.pinned + self.ahead)
    }
}

impl Frames {
    /// Creates the frames for the memory of `config`, all free.
    pub(super) fn new(config: &Config) -> Result<Frames, ConfigError> {
        let pages = config.memory_bytes / PAGE_BYTES;
        let shared_pages_max = config.pinned_bytes_max / PAGE_BYTES;
        if pages <= shared_pages_max {
            return Err(ConfigError::NoMemory {
                memory_bytes: config.memory_bytes,
                needed_bytes: (shared_pages_max + 1) * PAGE_BYTES,
            });
        }
        let pages_max = pages.max(config.memory_bytes_max / PAGE_BYTES);
        if pages_max >= u64::from(u32::MAX) {
            let memory_bytes = config.memory_bytes.max(config.memory_bytes_max);
            return Err(ConfigError::TooMuchMemory { memory_bytes });
        }
        let policy_pages_max = config.policy_memory_bytes_max / PAGE_BYTES;
        let budget =
            Budget { pages: pages - shared_pages_max, pinned: 0, ahead: 0, policy_pages_max };
        let eviction = config.eviction.clone();
        let is_fitted = pages_max == pages;
        // A policy that is fitted later is only checked here for errors.
        let policy_pages = if is_fitted { pages as u32 } else { 1 };
        let policy = eviction::build(&eviction, policy_pages).map_err(ConfigError::Policy)?;
        let policy = if is_fitted { policy } else { Box::new(TwoLists) };
        let cache = Cache::with_frames_max(pages as u32, pages_max as u32, policy);
        Ok(Frames { cache, eviction, is_policy_applied: is_fitted, budget, shared_pages_max })
    }

    /// Changes the number of frames to `pages`, but not below the reserved, shared and held frames.
    /// Adapts the eviction policy if the number differs much. Returns the frames whose memory is to
    /// be taken back.
    pub(super) fn resize(&mut self, pages: u32) -> Vec<FrameId> {
        let pages_before = self.cache.budget_pages();
        if !self.is_policy_applied {
            self.apply_policy(pages);
        }
        let withdrawing = if pages >= pages_before {
            self.cache.grow(pages - pages_before);
            Vec::new()
        } else {
            let spare_pages = self.budget.room().saturating_sub(self.unready_pages());
            self.cache.shrink(u64::from(pages_before - pages).min(spare_pages) as u32)
        };
        // A policy that learns the hits of a smaller memory learns them from the pages evicted now.
        let policy_pages = self.cache.policy_pages();
        if self.is_policy_applied && pages.abs_diff(policy_pages) > policy_pages / 4 {
            self.cache.resize_policy(pages.max(1));
        }
        self.budget.pages = u64::from(self.cache.budget_pages()) - self.shared_pages_max;
        withdrawing
    }

    /// Switches to the configured eviction policy, built for `pages` frames. More than half of
    /// these frames must be in use. In addition, a sixteenth of that number must have returned
    /// after their eviction. Until then every policy is equally good, and eviction in order of
    /// arrival costs the least time and memory.
    fn apply_policy(&mut self, pages: u32) {
        let is_short = self.cache.refault_pages() >= u64::from(pages / REFAULT_DIVISOR);
        if self.cache.backed_pages() > pages / 2 && is_short {
            let policy =
                eviction::build(&self.eviction, pages.max(1)).expect("it was built before");
            self.cache.replace_policy(policy, pages.max(1));
            self.is_policy_applied = true;
        }
    }

    /// Returns true if `pages` more pages find frames.
    pub(super) fn has_room_for(&self, pages: u64) -> bool {
        self.budget.has_room_for(pages + self.unready_pages())
    }

    /// Number of unpinned pages of memory that can't leave at once: mapped, dirty or being written.
    pub(super) fn unready_pages(&self) -> u64 {
        self.cache.unready_pages().into()
    }

    /// Adds an absent page of memory, for which there must be a frame.
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

    /// Returns true if no frame is reserved.
    pub(super) fn is_idle(&self) -> bool {
        self.budget.pinned == 0 && self.budget.ahead == 0 && self.cache.reserved_pages() == 0
    }
}
