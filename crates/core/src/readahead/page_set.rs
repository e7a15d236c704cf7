//! A page table without memory limits, to drive a law on its own.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Folio, Pages};
use crate::unit::PageRange;

/// The pages of one file that a law has added, and in which order. Nothing is
/// ever evicted.
#[derive(Clone, Debug, Default)]
pub struct PageSet {
    /// Per page: the order of its folio, and whether it is marked.
    pages: BTreeMap<u64, (u8, bool)>,
    added: Vec<(Folio, bool)>,
}

impl PageSet {
    /// The folios that were added since the last call, each with its mark, in order.
    pub fn take_added(&mut self) -> Vec<(Folio, bool)> {
        core::mem::take(&mut self.added)
    }

    /// The pages that were added since the last call: in order of adding,
    /// neighbours joined.
    pub fn take_ranges(&mut self) -> Vec<PageRange> {
        let mut ranges: Vec<PageRange> = Vec::new();
        for (folio, _) in self.take_added() {
            match ranges.last_mut() {
                Some(last) if last.end == folio.first => last.end = folio.range().end,
                _ => ranges.push(folio.range()),
            }
        }
        ranges
    }

    /// Takes every page of the range out, as an eviction would.
    pub fn drop_range(&mut self, range: PageRange) {
        self.pages.retain(|&page, _| !range.contains(page));
    }
}

impl Pages for PageSet {
    fn is_cached(&self, page: u64) -> bool {
        self.pages.contains_key(&page)
    }

    fn marked(&self, page: u64) -> Option<Folio> {
        let &(order, is_marked) = self.pages.get(&page)?;
        is_marked.then(|| Folio::holding(page, order))
    }

    fn clear_mark(&mut self, folio: Folio) {
        for (_, (_, is_marked)) in self.pages.range_mut(folio.range().pages()) {
            *is_marked = false;
        }
    }

    fn add(&mut self, folio: Folio, is_marked: bool) -> bool {
        for page in folio.range().pages() {
            let before = self.pages.insert(page, (folio.order, is_marked));
            assert!(before.is_none(), "page {page} was added though it is cached");
        }
        self.added.push((folio, is_marked));
        true
    }
}
