//! Neighbourhoods: parts of a file that are read whole, in no order, while they move up the file.
//!
//! Shuffled loaders, decoders of tiles and pools of threads read eight or twenty neighbouring
//! pieces in any order, and go on with the next ones. Their requests jump back and forth, so that
//! the readahead policy sees short runs. As a whole they are a stream.
//!
//! The rules:
//!
//! - *Membership.* A request belongs to a neighbourhood if it begins at most the *reach* after the
//!   neighbourhood's end, and does not end a whole reach or more before that end. The reach is the
//!   larger one of two distances: the cost of a request, below which reading through is cheaper
//!   than another request, and 32 requests of this size. It is at most a quarter of the memory. The
//!   prefetcher of OpenZFS has such a distance, of 16 MiB (`zfetch_max_reorder`).
//! - *Holes.* The pages that a request skips are a hole until other requests fill it. A hole that
//!   is further behind the end than the reach is skipped.
//! - *Evidence.* Eight requests have filled holes, the neighbourhood has moved up by twice its
//!   reach, and an eighth of the pages at most was skipped. A stream in order has no holes, and is
//!   left to the readahead policy.
//! - *Window.* From then on the pages behind the end are prefetched. Their number has three limits:
//!   the pages passed with this evidence, the cost of 16 requests, and a share of half of the
//!   memory. A neighbourhood that ends has thus wasted no more than it has used.
//!
//! Measured in virtual time (`patterns` among the tests of the store): a reader that jumps among
//! eight pieces of 256 KiB gets 0.24 of the network without it.

use std::collections::BTreeMap;

use readpath_core::unit::PageRange;

/// Largest number of neighbourhoods of a handle, chosen. The least recently used one is forgotten.
const NEIGHBOURHOODS_MAX: usize = 16;

/// Largest number of holes of a neighbourhood, chosen. The lowest one is skipped beyond that.
const HOLES_MAX: usize = 64;

/// Number of requests that must have filled a hole before the neighbourhood prefetches. Chosen.
const FILLS_MIN: u64 = 8;

/// Reach in requests of the present size. Chosen.
const REACH_REQUESTS: u64 = 32;

/// Largest window in costs of a request, as in the readahead policy `adaptive`.
const WINDOW_COST_FACTOR: u64 = 16;

/// Facts about the handle's device and file at the time of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    /// Number of pages that cost as much as one more request.
    pub(super) cost_pages: u64,
    /// Number of pages in the memory of the cache.
    pub(super) memory_pages: u64,
    /// Number of pages in the file, the last one perhaps partial.
    pub(super) file_pages: u64,
}

/// The neighbourhoods of a handle, the most recently used one at the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Neighbourhoods(Vec<Neighbourhood>);

/// A neighbourhood, in pages of the file.
#[derive(Clone, Debug)]
struct Neighbourhood {
    /// Lowest requested page.
    begin: u64,
    /// Page after the highest requested one.
    end: u64,
    /// Pages below the end that no request had: end of each hole by its first page.
    holes: BTreeMap<u64, u64>,
    /// Number of requests that have filled a hole, or a part of one.
    fills: u64,
    /// Number of pages in holes that are not waited for any more.
    skipped_pages: u64,
    /// End of the prefetched pages; `None` before the first window.
    prefetch_end: Option<u64>,
}

impl Neighbourhoods {
    /// Records a request in the most recently used neighbourhood that it belongs to, or in a new
    /// one. Returns the pages to prefetch, which may be in memory in part; `None` if there are
    /// none. An empty request, and one larger than the reach, is not recorded.
    pub(super) fn record(
        &mut self,
        request: PageRange,
        surroundings: Surroundings,
    ) -> Option<PageRange> {
        let Surroundings { cost_pages, memory_pages, .. } = surroundings;
        // At most a quarter of the memory, chosen.
        let reach = cost_pages.max(REACH_REQUESTS * request.count()).min(memory_pages / 4);
        if request.is_empty() || request.count() > reach {
            return None;
        }
        let is_near = |other: &Neighbourhood| {
            request.first <= other.end + reach && request.end + reach > other.end
        };
        let mut found = match self.0.iter().rposition(is_near) {
            Some(index) => self.0.remove(index),
            None => Neighbourhood::new(request),
        };
        if self.0.len() == NEIGHBOURHOODS_MAX {
            self.0.remove(0);
        }
        found.add(request, reach);
        let prefetching = self.0.iter().filter(|other| other.prefetch_end.is_some()).count();
        let window = found.window(reach, prefetching as u64 + 1, surroundings);
        self.0.push(found);
        window
    }
}

impl Neighbourhood {
    /// Creates a neighbourhood that begins with `request`, whose pages `add` adds.
    fn new(request: PageRange) -> Neighbourhood {
        Neighbourhood {
            begin: request.first,
            end: request.first,
            holes: BTreeMap::new(),
            fills: 0,
            skipped_pages: 0,
            prefetch_end: None,
        }
    }

    /// Adds the pages of a request, and skips the holes that end at least `reach` pages before
    /// the end of the neighbourhood, or are too many.
    fn add(&mut self, request: PageRange, reach: u64) {
        if request.first > self.end {
            self.holes.insert(self.end, request.first);
        }
        self.fill(request);
        self.begin = self.begin.min(request.first);
        self.end = self.end.max(request.end);
        let is_skipped = |end: u64, count: usize| end + reach <= self.end || count > HOLES_MAX;
        while let Some(hole) = self.holes.first_entry() {
            let (first, end) = (*hole.key(), *hole.get());
            if !is_skipped(end, self.holes.len()) {
                break;
            }
            self.holes.remove(&first);
            self.skipped_pages += end - first;
        }
    }

    /// Removes the pages of a request from the holes.
    fn fill(&mut self, request: PageRange) {
        let mut is_filling = false;
        while let Some((&first, &end)) = self.holes.range(..request.end).next_back()
            && end > request.first
        {
            is_filling = true;
            self.holes.remove(&first);
            if end > request.end {
                self.holes.insert(request.end, end);
            }
            if first < request.first {
                self.holes.insert(first, request.first);
                break;
            }
        }
        self.fills += u64::from(is_filling);
    }

    /// The next pages to prefetch, if there is evidence for their use and enough of them are
    /// missing: a quarter of the window. `sharers` is the number of neighbourhoods of the
    /// handle that prefetch, this one included. They share half of the memory.
    fn window(&mut self, reach: u64, sharers: u64, facts: Surroundings) -> Option<PageRange> {
        // The pages beyond the first reach. As many as another reach are evidence of a movement.
        let passed_pages = (self.end - self.begin).saturating_sub(reach);
        let is_whole = 8 * self.skipped_pages <= passed_pages;
        if self.fills < FILLS_MIN || passed_pages < reach || !is_whole {
            return None;
        }
        let share_pages = facts.memory_pages / 2 / sharers;
        let pages = passed_pages.min(WINDOW_COST_FACTOR * facts.cost_pages).min(share_pages);
        // The first window has the holes, too, all of them below the end. Without a hole it begins
        // at the end.
        let lowest_hole = self.holes.first_key_value().map_or(self.end, |(&first, _)| first);
        // A later window begins where the last one ended, but not below the lowest hole.
        let first = self.prefetch_end.unwrap_or(lowest_hole).max(lowest_hole);
        let end = (self.end + pages).min(facts.file_pages);
        let missing_pages = end.saturating_sub(first);
        // A small window waits for later requests to enlarge it, except at the end of the file.
        let is_too_small = missing_pages < pages / 4 && end < facts.file_pages;
        if missing_pages == 0 || is_too_small {
            return None;
        }
        self.prefetch_end = Some(end);
        Some(PageRange { first, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request costs 100 pages; the memory has 8,000, and its quarter is 2,000.
    const FACTS: Surroundings =
        Surroundings { cost_pages: 100, memory_pages: 8000, file_pages: 100_000 };

    /// Records requests of ten pages at these multiples of ten. Returns the windows.
    fn windows(requests: impl IntoIterator<Item = u64>) -> Vec<PageRange> {
        let mut all = Neighbourhoods::default();
        let request = |index: u64| PageRange::new(index * 10, 10);
        requests.into_iter().filter_map(|index| all.record(request(index), FACTS)).collect()
    }

    /// Pieces in groups of four, in the order 2, 0, 3, 1. The reach is 32 requests of ten pages.
    /// Piece 63 is the first one that ends at twice the reach or later, at page 640; then piece 61
    /// is a hole. 320 pages, without the reach, were passed with this evidence.
    #[test]
    fn window_grows_with_the_passed_pages() {
        let order = (0..400).map(|index| index / 4 * 4 + [2, 0, 3, 1][index as usize % 4]);
        let windows = windows(order);
        assert_eq!(windows[0], PageRange { first: 610, end: 640 + 320 });
        let pairs = windows.windows(2);
        assert!(pairs.clone().all(|pair| pair[0].end == pair[1].first), "{windows:?}");
        // At most 16 times the cost of a request are ahead of the end.
        assert!(windows.iter().all(|window| window.end <= 4000 + 1600), "{windows:?}");
        assert!(windows.last().is_some_and(|last| last.end > 4000 + 1200), "{windows:?}");
    }

    #[test]
    fn requests_in_order_are_left_to_the_readahead_policy() {
        assert_eq!(windows(0..1000), []);
        // Three cursors of one handle.
        assert_eq!(windows((0..1000).flat_map(|index| [index, index + 3000, index + 6000])), []);
    }

    /// Every second piece is never read.
    #[test]
    fn neighbourhood_with_skipped_pages_is_not_prefetched() {
        let order = (0..500).map(|index| index / 2 * 4 + [2, 0][index as usize % 2]);
        assert_eq!(windows(order), []);
    }

    /// Random pieces of a small part of the file: nothing moves up.
    #[test]
    fn requests_around_one_place_are_not_prefetched() {
        assert_eq!(windows((0..1000).map(|index| index * 7 % 30)), []);
    }

    #[test]
    fn windows_end_with_the_file_and_the_share_of_the_memory() {
        let mut all = Neighbourhoods::default();
        let facts = Surroundings { file_pages: 1205, memory_pages: 3200, ..FACTS };
        let order = (0..120).map(|index| index / 2 * 2 + [1, 0][index as usize % 2]);
        let windows: Vec<_> =
            order.filter_map(|index| all.record(PageRange::new(index * 10, 10), facts)).collect();
        assert_eq!(windows.last().map(|window| window.end), Some(1205));
        assert!(windows.iter().all(|window| window.count() <= 1600), "{windows:?}");
    }
}
