//! The readahead policy `adaptive` with a limit on prefetched, unused pages, as a cache has one. It
//! handles a stream without memory for a window, or for a part of one.

use std::collections::BTreeSet;

use readpath_core::readahead::{
    AdaptiveReadahead, Evidence, Folio, PageTable, PageView, ReadRequest, ReadaheadPolicy,
};
use readpath_core::unit::{PAGE_BYTES, PageRange};

const FILE_PAGES: u64 = 1 << 20;
const REQUEST_PAGES: u64 = 16;

/// A cache with at most `unused_max` prefetched, unused pages.
struct BoundedPages {
    table: PageTable,
    unused: BTreeSet<u64>,
    unused_max: usize,
    refused: u64,
}

impl PageView for BoundedPages {
    fn is_cached(&self, page: u64) -> bool {
        self.table.is_cached(page)
    }

    fn is_filled(&self, page: u64) -> bool {
        self.table.is_filled(page)
    }

    fn is_unused(&self, page: u64) -> bool {
        self.unused.contains(&page)
    }

    fn evidence(&mut self) -> Evidence<'_> {
        self.table.device_evidence().standing_pages = self.unused.len() as u64;
        self.table.evidence()
    }

    fn folio(&self, page: u64) -> Option<Folio> {
        self.table.folio(page)
    }

    fn marked(&self, page: u64) -> Option<Folio> {
        self.table.marked(page)
    }

    fn clear_mark(&mut self, folio: Folio) {
        self.table.clear_mark(folio);
    }

    fn mark(&mut self, page: u64) {
        self.table.mark(page);
    }

    fn add(&mut self, folio: Folio, is_marked: bool) -> bool {
        let pages = folio.range().pages();
        if self.unused.len() + pages.clone().count() > self.unused_max {
            self.refused += 1;
            return false;
        }
        self.unused.extend(pages);
        self.table.add(folio, is_marked)
    }
}

impl BoundedPages {
    fn of(memory_pages: u64, unused_max: usize) -> BoundedPages {
        let (unused, refused) = (BTreeSet::new(), 0);
        let mut pages = BoundedPages { table: PageTable::default(), unused, unused_max, refused };
        pages.table.device_evidence().memory_pages = memory_pages;
        pages
    }

    /// Reads these pages, which are cached and used afterwards.
    fn read(&mut self, policy: &mut AdaptiveReadahead, request: PageRange) {
        let ask = ReadRequest {
            offset: request.first * PAGE_BYTES,
            bytes: request.count() * PAGE_BYTES,
            file_bytes: FILE_PAGES * PAGE_BYTES,
            is_congested: false,
        };
        policy.read(&ask, self);
        for page in request.pages() {
            self.unused.remove(&page);
            if !self.is_cached(page) {
                self.table.add(Folio::holding(page, 0), false);
            }
        }
    }
}

/// A stream remains a stream however often memory is missing. Each page is prefetched directly
/// behind the pages before it, and never at a distance, as for a stride.
#[test]
fn a_stream_without_memory_remains_a_stream() {
    for unused_max in [48, 96, 144, 200] {
        let mut policy = AdaptiveReadahead::default();
        let mut pages = BoundedPages::of(2048, unused_max);
        let mut end = 0;
        for first in (0..20_000).step_by(REQUEST_PAGES as usize) {
            let request = PageRange::new(first, REQUEST_PAGES);
            pages.read(&mut policy, request);
            for (folio, _) in pages.table.take_added() {
                end = end.max(folio.range().end);
            }
            let hole = (first..end).find(|&page| !pages.is_cached(page));
            assert_eq!(hole, None, "read of {request:?}, {end} is reached, {unused_max} at most");
        }
        assert!(pages.refused > 0, "{unused_max}: there was always room");
    }
}

/// Downwards, the prefetched pages are directly below the reader. At the far end of the window they
/// would block the memory, and the reader would wait for each of its own pages.
#[test]
fn a_backward_stream_uses_memory_next_to_its_reader() {
    for unused_max in [48, 96, 144, 200] {
        let mut policy = AdaptiveReadahead::default();
        let mut pages = BoundedPages::of(1 << 16, unused_max);
        let (mut waits, requests) = (0, 20_000 / REQUEST_PAGES);
        for nth in 0..requests {
            let request = PageRange::new(40_000 - nth * REQUEST_PAGES, REQUEST_PAGES);
            waits += u64::from(!request.pages().all(|page| pages.is_cached(page)));
            pages.read(&mut policy, request);
        }
        assert!(pages.refused > 0, "{unused_max}: there was always room");
        // Memory for n requests, which are read together: one of n + 1 waits, and half as many more
        // if the memory is in two parts.
        let room = unused_max as u64 / REQUEST_PAGES;
        assert!(waits <= 3 * requests / (2 * (room + 1)), "{unused_max}: {waits} of {requests}");
    }
}

/// Memory cuts windows short, upwards and downwards. The newest window of the file has only pages
/// that are in the cache.
#[test]
fn a_recorded_window_has_only_pages_that_were_added() {
    for unused_max in [0, 5, 48, 96] {
        for is_backward in [false, true] {
            let mut policy = AdaptiveReadahead::default();
            let mut pages = BoundedPages::of(1 << 16, unused_max);
            let mut recorded = 0;
            for nth in 0..500 {
                let first = if is_backward { 40_000 - nth * REQUEST_PAGES } else { nth * 16 };
                pages.table.evidence().file.newest = None;
                pages.read(&mut policy, PageRange::new(first, REQUEST_PAGES));
                if let Some(newest) = pages.table.evidence().file.newest {
                    let absent = newest.range.pages().find(|&page| !pages.is_cached(page));
                    assert_eq!(absent, None, "{unused_max} at most: {newest:?}");
                    recorded += 1;
                }
            }
            assert_eq!(recorded > 0, unused_max > 0, "{unused_max}, backward: {is_backward}");
            assert!(pages.refused > 0, "{unused_max}: there was always room");
        }
    }
}
