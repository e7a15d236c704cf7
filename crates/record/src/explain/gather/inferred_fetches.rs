//! Fetches of a file that follow from the durations of calls.
//!
//! A read that waited counts as a fetch where the page cache is not observed. A read of the same
//! pages by another thread at the same time waits for the first one's request. One that begins soon
//! after it finds the pages in memory, and its wait is for a processor: pages leave memory later.

use std::collections::VecDeque;

use readpath_core::unit::PageRange;
use readpath_trace::page_set::PAGE_BYTES;
use readpath_trace::recording::ReadRecord;

use super::FileData;

/// Number of fetches that are kept of a file, chosen. Only fetches at about the same time are
/// compared.
const FETCHES_MAX: usize = 32;

/// A read that counts as a fetch.
#[derive(Clone, Copy, Debug)]
struct InferredFetch {
    /// Number of the reading thread in the recording.
    thread: u32,
    /// Start of the read, in nanoseconds since the start of the recording.
    begin_ns: u64,
    /// End of the read, by the same clock.
    end_ns: u64,
    /// Pages of the file that it read.
    pages: PageRange,
}

/// Last fetches of a file.
#[derive(Debug, Default)]
pub(super) struct InferredFetches(VecDeque<InferredFetch>);

impl InferredFetches {
    /// Adds a read of these pages.
    pub fn add(&mut self, read: &ReadRecord, pages: PageRange) {
        if self.0.len() == FETCHES_MAX {
            self.0.pop_front();
        }
        let &ReadRecord { thread, begin_ns, end_ns, .. } = read;
        self.0.push_back(InferredFetch { thread, begin_ns, end_ns, pages });
    }

    /// Returns true if another thread fetched one of these pages while the read was made, or before
    /// it at a distance of at most the duration of that fetch (chosen). Reads come in about the
    /// order of their ends, so the end of the read is not compared.
    pub fn has_one_of_other_thread(&self, read: &ReadRecord, pages: PageRange) -> bool {
        self.0.iter().any(|fetch| {
            let duration_ns = fetch.end_ns.saturating_sub(fetch.begin_ns);
            fetch.thread != read.thread
                && fetch.pages.first < pages.end
                && pages.first < fetch.pages.end
                && read.begin_ns <= fetch.end_ns.saturating_add(duration_ns)
        })
    }
}

impl FileData {
    /// Records the fetch of a read that waited, where the page cache is not observed. Pages that
    /// were read before count as cached, unless all pages were. These pages were fetched again if
    /// the thread may have inserted pages, and if no other thread fetched them at the same time.
    /// `has_inserted_none`: the recording says that the thread sent no request to a device. Returns
    /// the number of fetched bytes, and of bytes fetched again. Both are 0 if the read only waited
    /// for another thread or for a processor.
    pub fn record_absent_fetch(
        &mut self,
        read: &ReadRecord,
        bytes: u64,
        has_inserted_none: bool,
    ) -> (u64, u64) {
        let offset = read.offset;
        let pages = PageRange::covering(offset, bytes);
        let absent_pages = self.fetched.add(pages.first, pages.end);
        if absent_pages == 0 {
            if has_inserted_none || self.inferred_fetches.has_one_of_other_thread(read, pages) {
                return (0, 0);
            }
            self.inferred_fetches.add(read, pages);
            return (bytes, self.record_fetch(offset, bytes));
        }
        self.inferred_fetches.add(read, pages);
        let fetched_bytes = bytes.min(absent_pages * PAGE_BYTES);
        self.fetched_bytes += fetched_bytes;
        (fetched_bytes, 0)
    }
}
