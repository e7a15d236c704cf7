//! Batch reads through the kernel page cache that wait until the device's queue has room.

use std::collections::{BTreeMap, VecDeque};

use super::kernel_reads::{KernelReads, file_address};
use crate::page_cache::own::state::batch_reads::UnstartedRead;

/// Reads of one batch that are not submitted yet. A file whose reads are stuck holds back only its
/// own.
#[derive(Default)]
pub(super) struct HeldReads {
    /// Reads by file, in the order in which they were added. No queue is empty.
    files: BTreeMap<usize, VecDeque<UnstartedRead>>,
    /// Number of these reads.
    len: usize,
}

impl HeldReads {
    /// Number of held reads.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// True if a read of the same file is held.
    pub(super) fn has_read_of_file(&self, read: &UnstartedRead) -> bool {
        self.files.contains_key(&file_address(read))
    }

    /// Adds a read behind the held reads of its file.
    pub(super) fn push(&mut self, read: UnstartedRead) {
        self.len += 1;
        self.files.entry(file_address(&read)).or_default().push_back(read);
    }

    /// Adds a read before the held reads of its file.
    pub(super) fn push_front(&mut self, read: UnstartedRead) {
        self.len += 1;
        self.files.entry(file_address(&read)).or_default().push_front(read);
    }

    /// Removes and returns the oldest read of a file for which there is room next to
    /// `kernel_reads`. Returns `None` if there is none.
    pub(super) fn pop_with_room(&mut self, kernel_reads: &KernelReads) -> Option<UnstartedRead> {
        self.pop_if(|oldest| kernel_reads.has_room(oldest))
    }

    /// Removes and returns the oldest read of any file. Returns `None` if no read is held.
    pub(super) fn pop(&mut self) -> Option<UnstartedRead> {
        self.pop_if(|_| true)
    }

    /// Removes and returns the first oldest read of a file that `may_start` accepts.
    fn pop_if(&mut self, may_start: impl Fn(&UnstartedRead) -> bool) -> Option<UnstartedRead> {
        let mut files = self.files.iter_mut();
        let (&file, reads) = files.find(|(_, reads)| reads.front().is_some_and(&may_start))?;
        let read = reads.pop_front();
        if reads.is_empty() {
            self.files.remove(&file);
        }
        self.len -= 1;
        read
    }
}
