//! Files with missing pages that get no advice: short, unopenable or excess ones.
//!
//! A program that reads many small files misses pages of each. A small file costs one entry here.
//! It is neither opened nor visited again, and its waits do not start the advice.

use std::collections::HashMap;

use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::Inode;

/// Maximum length in bytes of a file that gets no advice: one readahead window of the kernel.
pub(in crate::capture) const SHORT_BYTES_MAX: u64 = 128 << 10;

/// Maximum number of files, chosen. All are discarded at the limit.
const FILES_MAX: usize = 1 << 16;

/// Files that get no advice. True marks a short file, which may grow.
#[derive(Debug, Default)]
pub(super) struct UnadvisedFiles(HashMap<Inode, bool>);

impl UnadvisedFiles {
    /// Adds an unopenable or excess file.
    pub fn add(&mut self, inode: Inode) {
        self.insert(inode, false);
    }

    /// Adds a short file.
    pub fn add_short(&mut self, inode: Inode) {
        self.insert(inode, true);
    }

    /// Adds a file, or replaces its entry. At the limit all others are discarded first, and may be
    /// examined again.
    fn insert(&mut self, inode: Inode, is_short: bool) {
        if self.0.len() >= FILES_MAX {
            self.0.clear();
        }
        self.0.insert(inode, is_short);
    }

    /// Returns true if a file gets no advice. A short file has grown if the missed pages end beyond
    /// [`SHORT_BYTES_MAX`], and is then to be examined again.
    pub fn has(&self, inode: Inode, missed: PageRange) -> bool {
        let is_short = self.0.get(&inode);
        is_short.is_some_and(|is_short| !is_short || missed.end * PAGE_BYTES <= SHORT_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 32 pages are one window. A page behind them shows that a short file has grown.
    #[test]
    fn short_file_is_examined_again_when_it_has_grown() {
        let [short, unopenable, unknown] = [1, 2, 3].map(|number| Inode { device: 7, number });
        let mut files = UnadvisedFiles::default();
        files.add_short(short);
        files.add(unopenable);
        let (within, behind) = (PageRange::new(31, 1), PageRange::new(32, 1));
        assert!(files.has(short, within) && !files.has(short, behind));
        assert!(files.has(unopenable, within) && files.has(unopenable, behind));
        assert!(!files.has(unknown, within));
    }
}
