//! The lists of pages outside the eviction policy.
//!
//! A prefetched page of a file is on such a list until it is used ([`ahead`](super::ahead)).

use crate::eviction::List;

/// The lists outside the eviction policy.
#[derive(Debug)]
pub(super) struct FrameList;

impl FrameList {
    /// Pages of files: prefetched, and not used yet.
    pub(super) const PREFETCHED: List = List::outside_policy(0);
    /// Pages that could not leave when they were to be evicted, set aside until the others were
    /// tried. They are pages of files in use by readers outside the machine, and pages of memory
    /// that are mapped, dirty or being written.
    pub(super) const IN_USE: List = List::outside_policy(1);
    /// Pages of memory without a reference since they entered this list.
    pub(super) const MEMORY_INACTIVE: List = List::outside_policy(2);
    /// Pages of memory that were found referenced.
    pub(super) const MEMORY_ACTIVE: List = List::outside_policy(3);
    /// Pages of memory: prefetched, and not used yet.
    pub(super) const MEMORY_PREFETCHED: List = List::outside_policy(4);
    /// Pages of memory: dirty and unmapped; to be written unless they are used again.
    pub(super) const MEMORY_DIRTY: List = List::outside_policy(5);
    /// Pages of memory: clean and unmapped; the next to leave.
    pub(super) const MEMORY_CLEAN: List = List::outside_policy(6);
}
