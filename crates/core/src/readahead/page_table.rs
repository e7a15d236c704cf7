//! A cache of one file without eviction, for driving a policy alone.
//!
//! The cache has no budget, no device and no time: an added folio is filled at once. The folios
//! that a policy adds are logged in order. The decisions can then be compared with a recording, a
//! table of a paper, or numbers worked by hand.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::{DeviceEvidence, Evidence, FileEvidence, Folio, PageView};

/// The pages of one file, without eviction, and a log of the added folios.
///
/// Invariant: no two folios share a page; [`PageView::add`] asserts it.
#[derive(Clone, Debug, Default)]
pub struct PageTable {
    /// Maps the first page of each cached folio to its order and its readahead mark.
    folios: BTreeMap<u64, (u8, bool)>,
    /// Log of added folios and their marks since the last [`take_added`](PageTable::take_added).
    added: Vec<(Folio, bool)>,
    /// True if cached pages are still being read: a reader would wait for each of them.
    is_in_flight: bool,
    /// Added pages that were not used yet; `None` if uses are not tracked.
    unused: Option<BTreeSet<u64>>,
    /// Evidence of the device, which tests may set.
    device: DeviceEvidence,
    /// Evidence of the file, which the policy updates.
    file: FileEvidence,
}

impl PageTable {
    /// Takes the folios that were added since the last call, in order, each with its mark.
    pub fn take_added(&mut self) -> Vec<(Folio, bool)> {
        core::mem::take(&mut self.added)
    }

    /// The device evidence, for a test to set.
    pub fn device_evidence(&mut self) -> &mut DeviceEvidence {
        &mut self.device
    }

    /// Sets if cached pages are filled (true by default) or still being read.
    pub fn set_filled(&mut self, is_filled: bool) {
        self.is_in_flight = !is_filled;
    }

    /// Counts each added page as unused until [`use_page`](PageTable::use_page). By default every
    /// cached page counts as used.
    pub fn track_uses(&mut self) {
        self.unused = Some(BTreeSet::new());
    }

    /// Records the use of a page. No effect unless uses are tracked.
    pub fn use_page(&mut self, page: u64) {
        if let Some(unused) = &mut self.unused {
            unused.remove(&page);
        }
    }

    /// Drops every page, as `posix_fadvise(DONTNEED)` does on an idle file. Their marks go with
    /// them.
    pub fn clear(&mut self) {
        self.folios.clear();
    }

    /// Drops the folio that holds `page`, as eviction does. No effect if no folio holds it.
    pub fn evict(&mut self, page: u64) {
        if let Some((folio, _)) = self.find(page) {
            self.folios.remove(&folio.first);
        }
    }

    /// The cached folio that holds `page`, and its mark; `None` if no folio holds it.
    fn find(&self, page: u64) -> Option<(Folio, bool)> {
        let (&first, &(order, is_marked)) = self.folios.range(..=page).next_back()?;
        let folio = Folio { first, order };
        folio.range().contains(page).then_some((folio, is_marked))
    }
}

impl PageView for PageTable {
    /// True if a folio was added that holds the page, and was not dropped since.
    fn is_cached(&self, page: u64) -> bool {
        self.find(page).is_some()
    }

    /// True if the page is cached, and cached pages count as filled.
    fn is_filled(&self, page: u64) -> bool {
        self.is_cached(page) && !self.is_in_flight
    }

    /// True if the page was added and not used yet, even if it was dropped since; always false
    /// unless uses are tracked.
    fn is_unused(&self, page: u64) -> bool {
        self.unused.as_ref().is_some_and(|unused| unused.contains(&page))
    }

    /// The evidence of the device, as the test has set it, and of the file.
    fn evidence(&mut self) -> Evidence<'_> {
        Evidence { device: &mut self.device, file: &mut self.file }
    }

    /// The cached folio that holds the page; `None` without one.
    fn folio(&self, page: u64) -> Option<Folio> {
        self.find(page).map(|(folio, _)| folio)
    }

    /// The cached folio that holds the page, if it carries the readahead mark.
    fn marked(&self, page: u64) -> Option<Folio> {
        self.find(page).filter(|&(_, is_marked)| is_marked).map(|(folio, _)| folio)
    }

    /// Clears the mark of a folio, if the folio is cached.
    fn clear_mark(&mut self, folio: Folio) {
        if let Some((_, is_marked)) = self.folios.get_mut(&folio.first) {
            *is_marked = false;
        }
    }

    /// Marks the cached folio that holds the page.
    fn mark(&mut self, page: u64) {
        if let Some((folio, _)) = self.find(page) {
            self.folios.insert(folio.first, (folio.order, true));
        }
    }

    /// Adds the folio and logs it. Panics if the folio is unaligned or overlaps another. Returns
    /// true: memory is never short.
    fn add(&mut self, folio: Folio, is_marked: bool) -> bool {
        assert!(
            folio.first.is_multiple_of(1 << folio.order),
            "{folio:?} is not aligned to its size"
        );
        let last = folio.range().end - 1;
        let previous = self.folios.range(..=last).next_back();
        assert!(
            previous.is_none_or(|(&first, &(order, _))| first + (1 << order) <= folio.first),
            "{folio:?} overlaps a cached folio"
        );
        self.folios.insert(folio.first, (folio.order, is_marked));
        if let Some(unused) = &mut self.unused {
            unused.extend(folio.range().pages());
        }
        self.added.push((folio, is_marked));
        self.device.added_pages += 1 << folio.order;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A marked folio of order 2 at page 8 has the pages 8 to 11.
    #[test]
    fn a_folio_is_found_by_each_of_its_pages_and_by_no_other() {
        let mut table = PageTable::default();
        let folio = Folio { first: 8, order: 2 };
        let is_marked = true;
        assert!(table.add(folio, is_marked));
        assert_eq!((7..13).filter(|&page| table.is_cached(page)).count(), 4);
        assert_eq!(table.marked(11), Some(folio));
        table.clear_mark(folio);
        assert_eq!(table.marked(11), None);
        assert_eq!(table.cached_run_before(12, 10), 4);
        assert_eq!(table.take_added(), [(folio, is_marked)]);
        assert_eq!(table.take_added(), []);
    }

    /// The folio of order 3 at page 8 has the pages 8 to 15.
    #[test]
    #[should_panic(expected = "overlaps a cached folio")]
    fn a_page_is_never_added_twice() {
        let (mut table, is_marked) = (PageTable::default(), false);
        table.add(Folio { first: 8, order: 0 }, is_marked);
        table.add(Folio { first: 8, order: 3 }, is_marked);
    }
}
