//! The last open of each file and descriptor.

use std::collections::BTreeMap;

use readpath_trace::recording::{OpenRecord, ReadRecord};

/// Last open of each file and descriptor.
#[derive(Debug, Default)]
pub(super) struct LastOpens(BTreeMap<(u32, u64), OpenRecord>);

impl LastOpens {
    /// Keeps an open. Returns true if its flags are not the ones of the last open, or if it is the
    /// first one.
    pub fn add(&mut self, open: &OpenRecord) -> bool {
        let flags = |open: &OpenRecord| [open.is_direct, open.is_readable, open.is_writable];
        let last = self.0.insert((open.file, open.descriptor), open.clone());
        last.is_none_or(|last| flags(&last) != flags(open))
    }

    /// Returns the last open of the file and the descriptor of a read, if it is known.
    pub fn of_read(&self, read: &ReadRecord) -> Option<&OpenRecord> {
        self.0.get(&(read.file, read.descriptor?))
    }
}
