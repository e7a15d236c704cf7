//! The lists of pages that are none of the reclaim law's, beside those that are.
//!
//! A page of a file that was read ahead is *promised* until it is used ([`ahead`](super::ahead)).

use crate::eviction::List;

/// A list that is no law's.
#[derive(Debug)]
pub(super) struct FrameList;

impl FrameList {
    /// Of a file: read ahead, and not used yet.
    pub(super) const PROMISED: List = List::beside(0);
    /// Of a file: in use when it was to go, and out of the way until the others have been asked.
    pub(super) const REFUSED: List = List::beside(1);
    /// Of memory: not found referenced since it came here.
    pub(super) const MEMORY_INACTIVE: List = List::beside(2);
    /// Of memory: found referenced.
    pub(super) const MEMORY_ACTIVE: List = List::beside(3);
    /// Of memory: read ahead, and not used yet.
    pub(super) const AHEAD: List = List::beside(4);
    /// Of memory: dirty and unmapped; to be written unless it is used again.
    pub(super) const RESTING: List = List::beside(5);
    /// Of memory: clean and unmapped; goes next.
    pub(super) const COLD: List = List::beside(6);
}
