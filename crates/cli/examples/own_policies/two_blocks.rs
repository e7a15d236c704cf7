//! `two-blocks`: reads the block of 64 KiB that contains a read, and the next one.
//!
//! Both blocks' absent pages are added to the requested ones. The policy has no state, so an
//! irregular reader pays for two blocks at each read.

use readpath_core::readahead::{Advice, PageView, ReadRequest, ReadaheadPolicy};
use readpath_core::unit::PageRange;

/// Pages in a block of 64 KiB.
const BLOCK_PAGES: u64 = 16;

/// The readahead policy `two-blocks`.
#[derive(Debug)]
pub struct TwoBlocks;

impl ReadaheadPolicy for TwoBlocks {
    fn read(&mut self, ask: &ReadRequest, pages: &mut dyn PageView) {
        let first = ask.request().first / BLOCK_PAGES * BLOCK_PAGES;
        let end = (first + 2 * BLOCK_PAGES).min(ask.file_pages());
        // A marked page would be reported when it is read. This policy acts on every read alike.
        let is_marked = false;
        // The result, false where memory was short, changes nothing: no call is left.
        pages.add_absent(PageRange::new(first, end - first), is_marked);
    }

    fn fault(&mut self, _page: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
        self.read(ask, pages);
    }

    fn advise(&mut self, _advice: Advice) {}
}
