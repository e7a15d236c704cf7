//! The frames of the cache, and to whom they are promised.
//!
//! What holds:
//! 1. Pages pinned by reads and faults, pages that are read ahead, and pages of memory that can't
//!    be given away at once never exceed the budget together. So who has been promised a page
//!    always finds a frame for it.

use super::Config;
use super::error::ConfigError;
use crate::cache::{Cache, FileId, FrameId, Mark};
use crate::reclaim;
use crate::unit::PAGE_BYTES;

/// The cache, and what is promised of it.
pub(super) struct Frames {
    pub(super) cache: Cache,
    pub(super) budget: Budget,
}

/// How many pages are promised, and to whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) pages: u64,
    /// One for each page of each read and fault that has begun and is not released.
    pub(super) pinned: u64,
    /// Pages read ahead that the device has not delivered yet.
    pub(super) ahead: u64,
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
        let lent_pages_max = config.lent_bytes_max / PAGE_BYTES;
        if pages <= lent_pages_max {
            let memory_bytes = config.memory_bytes.saturating_sub(lent_pages_max * PAGE_BYTES);
            return Err(ConfigError::NoMemory { memory_bytes });
        }
        if pages >= u64::from(u32::MAX) {
            return Err(ConfigError::TooMuchMemory { memory_bytes: config.memory_bytes });
        }
        let budget = Budget { pages: pages - lent_pages_max, pinned: 0, ahead: 0 };
        let law = reclaim::build(&config.reclaim, pages as u32).map_err(ConfigError::Law)?;
        Ok(Frames { cache: Cache::new(pages as u32, law), budget })
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
        self.budget.pinned == 0 && self.budget.ahead == 0 && self.cache.promised_pages() == 0
    }
}
