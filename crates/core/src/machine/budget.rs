//! The memory that reads have, counted in pages.

/// How many pages are spoken for, and by whom: invariant 1 of the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) pages: u64,
    /// One for each page of each read that has begun and is not released.
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
