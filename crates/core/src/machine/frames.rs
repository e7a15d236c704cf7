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
use crate::policy::{Spec, SpecError};
use crate::unit::PAGE_BYTES;

/// Divisor of the memory: this share of its pages must have returned after their eviction before
/// the configured eviction policy replaces the initial one.
const REFAULT_DIVISOR: u32 = 16;

/// The cache and its reservations.
pub(super) struct Frames {
    /// The pages of files and of memory.
    pub(super) cache: Cache,
    /// The configured eviction policy, to be built for a later size.
    eviction_spec: Spec,
    /// True if the cache uses the configured policy; false while it uses `TwoLists`.
    is_policy_applied: bool,
    /// Numbers of pages that are reserved or in use.
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
    pub(super) pinned_pages: u64,
    /// Prefetched pages that the device has not delivered yet.
    pub(super) prefetch_pages: u64,
    /// Largest size of the memory, in pages, that readahead policies assume. It is configured, and
    /// their windows follow from it.
    pub(super) policy_pages_max: u64,
}

impl Budget {
    /// Returns true if at least `pages` pages are neither pinned nor in flight as prefetch.
    pub(super) fn has_room_for(&self, pages: u64) -> bool {
        pages <= self.unreserved_pages()
    }

    /// Number of pages of the budget that are neither pinned nor in flight as prefetch.
    pub(super) fn unreserved_pages(&self) -> u64 {
        self.pages.saturating_sub(self.pinned_pages + self.prefetch_pages)
    }
}

impl Frames {
    /// Creates the frames for the memory of `config`, all free. Fails if no page is left for reads,
    /// if the frames can't be numbered, or if the eviction policy is unknown or has a bad
    /// parameter.
    pub(super) fn new(config: &Config) -> Result<Frames, ConfigError> {
        let pages = config.memory_bytes / PAGE_BYTES;
        let shared_pages_max = config.pinned_bytes_max / PAGE_BYTES;
        let pages_max = pages.max(config.memory_bytes_max / PAGE_BYTES);
        // Frames are numbered by 32 bits, and `u32::MAX` stands for no frame.
        if pages_max >= u64::from(u32::MAX) {
            let memory_bytes = config.memory_bytes.max(config.memory_bytes_max);
            return Err(ConfigError::TooMuchMemory { memory_bytes });
        }
        if pages <= shared_pages_max {
            return Err(ConfigError::NoMemory {
                memory_bytes: config.memory_bytes,
                needed_bytes: (shared_pages_max + 1).saturating_mul(PAGE_BYTES),
            });
        }
        let policy_pages_max = config.policy_memory_bytes_max / PAGE_BYTES;
        let budget = Budget {
            pages: pages - shared_pages_max,
            pinned_pages: 0,
            prefetch_pages: 0,
            policy_pages_max,
        };
        let eviction_spec = config.eviction.clone();
        let counts_refaults = pages_max > pages && config.counts_returned_pages;
        // A memory with counted refaults begins with `TwoLists`, which evicts in order of arrival
        // until pages are used again. Its configured policy is only checked for errors here, with a
        // size of 1 page. `apply_policy_if_reused` builds it for the size at that time.
        let policy_pages = if counts_refaults { 1 } else { pages as u32 };
        let policy = eviction::build(&eviction_spec, policy_pages).map_err(ConfigError::Policy)?;
        let policy = if counts_refaults { Box::new(TwoLists) } else { policy };
        let mut cache = Cache::with_frames_max(pages as u32, pages_max as u32, policy);
        if counts_refaults {
            cache.count_refaults();
        }
        Ok(Frames {
            cache,
            eviction_spec,
            is_policy_applied: !counts_refaults,
            budget,
            shared_pages_max,
        })
    }

    /// Changes the number of frames to `pages`, at most the existing ones, and not below the
    /// reserved, shared and unready ones ([`unready_pages`](Frames::unready_pages)). Adapts the
    /// eviction policy if `pages` differs by more than a quarter from the size for which the policy
    /// was last set up: small changes are ignored. Returns the frames whose memory is to be taken
    /// back.
    pub(super) fn resize(&mut self, pages: u32) -> Vec<FrameId> {
        let pages = pages.min(self.cache.frames_max());
        let pages_before = self.cache.budget_pages();
        if !self.is_policy_applied {
            self.apply_policy_if_reused(pages);
        }
        let withdrawing = if pages >= pages_before {
            self.cache.grow(pages - pages_before);
            Vec::new()
        } else {
            // Only pages that can leave at once are evicted.
            let spare_pages = self.budget.unreserved_pages().saturating_sub(self.unready_pages());
            self.cache.shrink(u64::from(pages_before - pages).min(spare_pages) as u32)
        };
        // The policy is resized after the evictions, from which it may learn the hits of a smaller
        // memory. It gets the requested size, even if fewer frames could leave. `policy_pages` is
        // the size for which it was last set up.
        let policy_pages = self.cache.policy_pages();
        if self.is_policy_applied && pages.abs_diff(policy_pages) > policy_pages / 4 {
            self.cache.resize_policy(pages.max(1));
        }
        self.budget.pages = u64::from(self.cache.budget_pages()) - self.shared_pages_max;
        withdrawing
    }

    /// Switches to the configured eviction policy, built for `pages` frames, if the present pages
    /// are reused. Called at each change of the size until it has switched. More than half of these
    /// frames must have memory (`backed_pages`), and a sixteenth as many pages must have returned
    /// after their eviction (`refault_pages`). Until then every policy is equally good, and
    /// eviction in order of arrival costs the least time and memory. A policy that refuses this
    /// size does not apply.
    fn apply_policy_if_reused(&mut self, pages: u32) {
        let has_refaults = self.cache.refault_pages() >= u64::from(pages / REFAULT_DIVISOR);
        if self.cache.backed_pages() > pages / 2 && has_refaults {
            // A refusal leaves the present policy.
            let _ = self.apply_policy(pages);
        }
    }

    /// Switches to the configured eviction policy, built for `pages` frames. Fails without an
    /// effect if it refuses this size.
    fn apply_policy(&mut self, pages: u32) -> Result<(), SpecError> {
        let pages = pages.max(1);
        let policy = eviction::build(&self.eviction_spec, pages)?;
        self.cache.replace_policy(policy, pages);
        self.is_policy_applied = true;
        Ok(())
    }

    /// Lets the configured eviction policy select pages of memory too. It applies from now on, also
    /// if the size may change. Fails if the policy refuses the present size.
    pub(super) fn give_memory_to_policy(&mut self) -> Result<(), SpecError> {
        if !self.is_policy_applied {
            self.apply_policy(self.cache.budget_pages())?;
        }
        self.cache.give_memory_to_policy();
        Ok(())
    }

    /// Returns true if `pages` more pages find frames. Pages of memory that can't leave at once
    /// count as used.
    pub(super) fn has_room_for(&self, pages: u64) -> bool {
        self.budget.has_room_for(pages + self.unready_pages())
    }

    /// Number of unpinned pages of memory that can't leave at once: mapped, dirty or being written.
    /// Their frames can't be given to another page now, so the budget counts them like pinned ones.
    pub(super) fn unready_pages(&self) -> u64 {
        self.cache.unready_pages().into()
    }

    /// Adds an absent page of memory, in flight, and returns its frame. There must be a frame for
    /// it. `is_ahead` is true for a prefetched page.
    pub(super) fn add_memory(
        &mut self,
        file: FileId,
        page: u64,
        mark: Mark,
        is_ahead: bool,
    ) -> FrameId {
        self.cache
            .add_memory(file, page, mark, is_ahead)
            .expect("what is pinned, in flight and unready stays within the budget")
    }

    /// Returns true if no page is pinned or being prefetched, and no frame is reserved.
    pub(super) fn is_idle(&self) -> bool {
        self.budget.pinned_pages == 0
            && self.budget.prefetch_pages == 0
            && self.cache.reserved_pages() == 0
    }
}
