//! Waits for pages that another wait in progress fetches.
//!
//! Several threads may wait for the same pages at a time. One of them fetches the pages, and the
//! others *follow*: they send no request of their own. What ends the fetch earlier ends their waits
//! as early. A follower has no part of the time in which the fetch is in progress. The fetch has
//! this time alone, with its cause.

use std::collections::BTreeMap;

use readpath_trace::page_set::PAGE_BYTES;

/// Pages for which a thread waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitedPages {
    /// Number of the file in the recording.
    file: u32,
    /// First page.
    first: u64,
    /// End of the pages (exclusive).
    end: u64,
    /// True if the wait fetches them, false if it follows another fetch, or needs none.
    is_fetch: bool,
}

impl WaitedPages {
    /// Returns the pages of `bytes` bytes from `offset` on, at least one.
    pub fn new(file: u32, offset: u64, bytes: u64, is_fetch: bool) -> WaitedPages {
        let first = offset / PAGE_BYTES;
        let end = offset.saturating_add(bytes).div_ceil(PAGE_BYTES).max(first + 1);
        WaitedPages { file, first, end, is_fetch }
    }
}

/// Waits in progress of one page that fetch nothing.
#[derive(Debug, Default)]
struct FollowedPage {
    /// Number of these waits.
    waits: u64,
    /// True if a wait in progress fetches the page.
    is_fetched: bool,
    /// Integral of the share of a wait at the begin of that fetch, in nanoseconds.
    fetch_begin_ns: f64,
    /// Increase of the integral during the fetches that have ended, in nanoseconds.
    fetched_ns: f64,
}

/// Waits in progress, by their pages. Each `passed_ns` is the integral of the share of a wait, in
/// nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Followers {
    /// Number of fetches by file, first page and end (exclusive).
    fetches: BTreeMap<(u32, u64, u64), u64>,
    /// Waits that fetch nothing, by file and first page.
    pages: BTreeMap<(u32, u64), FollowedPage>,
}

impl Followers {
    /// Begins a wait. Returns the change of the number of waits that share the time.
    pub fn begin(&mut self, wait: WaitedPages, passed_ns: f64) -> i64 {
        let WaitedPages { file, first, end, is_fetch } = wait;
        if !is_fetch {
            let is_fetched = self.is_fetched(file, first);
            let new = FollowedPage { is_fetched, fetch_begin_ns: passed_ns, ..Default::default() };
            let page = self.pages.entry((file, first)).or_insert(new);
            page.waits += 1;
            return i64::from(!page.is_fetched);
        }
        *self.fetches.entry((file, first, end)).or_default() += 1;
        let pages = self.pages.range_mut((file, first)..(file, end)).map(|(_, page)| page);
        let mut change = 1;
        for page in pages.filter(|page| !page.is_fetched) {
            (page.is_fetched, page.fetch_begin_ns) = (true, passed_ns);
            change -= page.waits as i64;
        }
        change
    }

    /// Ends a wait that has begun. Returns the change of the number of waits that share the time.
    pub fn end(&mut self, wait: WaitedPages, passed_ns: f64) -> i64 {
        let WaitedPages { file, first, end, is_fetch } = wait;
        if !is_fetch {
            let page = self.pages.get_mut(&(file, first)).expect("the wait is in progress");
            page.waits -= 1;
            let change = -i64::from(!page.is_fetched);
            if page.waits == 0 {
                self.pages.remove(&(file, first));
            }
            return change;
        }
        let fetches = self.fetches.get_mut(&(file, first, end)).expect("the fetch is in progress");
        *fetches -= 1;
        if *fetches == 0 {
            self.fetches.remove(&(file, first, end));
        }
        let followed = self.pages.range((file, first)..(file, end));
        let left: Vec<u64> = followed
            .filter(|((_, number), page)| page.is_fetched && !self.is_fetched(file, *number))
            .map(|((_, number), _)| *number)
            .collect();
        let mut change = -1;
        for number in left {
            let page = self.pages.get_mut(&(file, number)).expect("the page is in the map");
            page.is_fetched = false;
            page.fetched_ns += passed_ns - page.fetch_begin_ns;
            change += page.waits as i64;
        }
        change
    }

    /// Returns the increase of `passed_ns` during fetches of the first page of a wait in progress.
    /// The increase counts from the first wait for this page that is followed by others without a
    /// pause. 0 for a wait that fetches itself.
    pub fn fetched_ns(&self, wait: WaitedPages, passed_ns: f64) -> f64 {
        let page = self.pages.get(&(wait.file, wait.first)).filter(|_| !wait.is_fetch);
        page.map_or(0.0, |page| match page.is_fetched {
            true => page.fetched_ns + passed_ns - page.fetch_begin_ns,
            false => page.fetched_ns,
        })
    }

    /// Returns true if a fetch in progress has the page. Only the fetch with the nearest first page
    /// before it is compared.
    fn is_fetched(&self, file: u32, page: u64) -> bool {
        let nearest = self.fetches.range((file, 0, 0)..=(file, page, u64::MAX)).next_back();
        nearest.is_some_and(|((_, _, end), _)| *end > page)
    }
}
