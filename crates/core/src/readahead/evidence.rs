//! What the laws of all handles know together: of the device, and of a file.

use crate::estimate::DeviceEstimate;

/// How many pieces must agree before the next is read in one.
const PIECES: usize = 4;

/// What a law may look at and add to beside the pages.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// Of the device, by all its files together.
    pub device: &'a mut DeviceEvidence,
    /// Of this file, by all its handles together.
    pub file: &'a mut FileEvidence,
}

/// What is known of the device and of the programs that read from it.
#[derive(Clone, Debug, Default)]
pub struct DeviceEvidence {
    /// What a request costs, against a page.
    pub estimate: DeviceEstimate,
    /// Memory of the cache in pages.
    pub memory_pages: u64,
    /// Pages in the cache that were read ahead and that nobody has used yet.
    pub standing_pages: u64,
    /// How long the newest pieces were, the newest last.
    pub pieces: Pieces,
}

impl DeviceEvidence {
    /// How many more pages one window may have: a quarter of what is left of
    /// half of the memory.
    ///
    /// So `n` windows come to rest at `1 / (n + 4)` of that half each, however
    /// many there are and whichever was first, and what was read ahead never
    /// fills more than half of the memory: the other half is what a page that
    /// is read ahead lives on until it is used.
    pub fn window_share_pages(&self) -> u64 {
        (self.memory_pages / 2).saturating_sub(self.standing_pages) / 4
    }
}

/// How many pages programs read one after the other before they jump elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    newest: [u64; PIECES],
}

impl Pieces {
    /// A piece of so many pages has ended.
    pub fn ended(&mut self, pages: u64) {
        self.newest.rotate_left(1);
        self.newest[PIECES - 1] = pages;
    }

    /// How long the next piece will be at least: what the newest four all had;
    /// 0 while there were fewer.
    pub fn expected_pages(&self) -> u64 {
        self.newest.into_iter().min().unwrap_or(0)
    }
}

/// What is known of one file, by all its handles together.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileEvidence {
    /// Pages of it that were asked for, belonged to no stream, and were absent.
    pub scattered_pages: u64,
    /// Requests for such pages.
    pub scattered_requests: u64,
    /// Up to which page it was read whole; `None` while it isn't.
    pub swept_end: Option<u64>,
}
