//! `ondemand`: the readahead of Linux since 2.6.23, as it is in 6.18.
//!
//! How it works: a read walks over its pages. At an absent page it decides *synchronously*. A
//! stream begins at the start of the file, directly after the previous read, or if the request is
//! larger than the window. The first window of a stream is two or four times the request. If a long
//! run of cached pages lies directly before the page, an old stream continues there. Any other read
//! is random and gets exactly its request. The first page beyond the request carries the *mark*; if
//! the request fills the window, the middle page does. At a marked page the policy decides
//! *asynchronously*: the stream has arrived there, so the next window is read before it is needed.
//! It is two or four times as large, up to the maximum. A mark at an unexpected page belongs to
//! another stream on the same open file, which is continued from its first absent page.
//!
//! Each asynchronous window also raises the folio order by two: pages are allocated as aligned
//! blocks of up to 512, smaller at an unaligned start and at the end. A cached page ends the
//! blocks: the rest of the window is filled with single pages around the cached ones.
//!
//! A mapped access that finds no page has no request size. It reads *around* the page: a whole
//! window with the page in its middle and the mark at three quarters. With sequential advice it
//! decides synchronously for a whole window from the page on. With random advice it leaves the page
//! to the demand read. A read touches a marked folio at its first page. A mapped access touches it
//! at the accessed page, so that a page in its middle looks like another stream.
//!
//! Source: KERNEL.md section 2, then the running kernel 6.18, read by read (`readpath
//! check-kernel`). The policy follows the kernel where the two differ:
//!
//! - a look-back counts at most one page less than the window;
//! - looking around is wrong inside large folios (see `lookaround`), so that two streams on one
//!   open file leave holes of a page;
//! - a forced read stops at the largest request, which shows when a mark lies beyond;
//! - the mark of a window around cached pages counts from the end of the file if that clips the
//!   window;
//! - mapped reads continue to read around after any number of misses.
//!
//! Deliberate differences: with a window of 0 the kernel reads page by page and waits for each;
//! with random advice it reads in pieces of the device's largest request. Here the same pages are
//! added, but the whole request reaches the device together (source C).
//!
//! A full device queue has no influence: 6,000 reads next to 256 outstanding direct reads on the
//! same device were all as on an idle one. The kernel limits readahead only if a cgroup's I/O is
//! throttled, which a policy can't see.
//!
//! Not modelled, because it is invisible from outside:
//!
//! - a folio that the kernel could not allocate or the file system declined (the kernel then uses
//!   single pages);
//! - a mark that is left alone because its folio is under writeback;
//! - the count of mapped misses, above which (100) the kernel stops reading around. Every
//!   successful fault counts as at least one hit (3,000 distant touches all read around). The count
//!   therefore grows only if pages return soon after their eviction, which the pages of the cache
//!   don't show.

mod lookaround;

use lookaround::{absent_from, run_before};

use super::{
    Advice, Folio, PageView, ReadRequest, ReadaheadLimits, ReadaheadPolicy, SINGLE_PAGE_ORDER,
};
use crate::policy::{Spec, SpecError};
use crate::unit::PAGE_BYTES;

/// The largest folio of the page cache on x86-64, as an order: 2 MiB, one huge page.
const FOLIO_ORDER_MAX: u8 = 9;

/// Number of pages ahead of need in a read of its request alone: no page is marked.
const NO_ASYNC_PAGES: u64 = 0;

/// The policy `ondemand`: the state of one open file.
#[derive(Clone, Debug)]
pub struct OnDemand {
    /// The largest window without advice, in pages.
    window_pages_normal: u64,
    /// The device's largest request in pages.
    request_pages_max: u64,
    /// Largest folio order of the file system.
    folio_order_max: u8,

    /// The largest window at present: doubled by sequential advice.
    window_pages_max: u64,
    /// True after random advice: readahead is off.
    is_random: bool,
    /// True after sequential advice.
    is_sequential: bool,

    /// First page of the newest window.
    start: u64,
    /// Size of the newest window in pages.
    size: u64,
    /// Number of the window's last pages that are ahead of need; the first of these is marked.
    async_size: u64,
    /// The folio order of the newest window.
    order: u8,
    /// End of the last read in bytes; `None` before the first.
    previous_end: Option<u64>,
}

impl OnDemand {
    /// Creates the policy for a file on a device with these limits, on a file system with large
    /// folios.
    pub fn new(limits: &ReadaheadLimits) -> OnDemand {
        OnDemand {
            window_pages_normal: limits.window_pages_max,
            request_pages_max: limits.request_pages_max,
            folio_order_max: FOLIO_ORDER_MAX,
            window_pages_max: limits.window_pages_max,
            is_random: false,
            is_sequential: false,
            start: 0,
            size: 0,
            async_size: 0,
            order: 0,
            previous_end: None,
        }
    }

    /// Parses `ondemand,read_ahead_kb=KIB,folio_order=ORDER`.
    ///
    /// `read_ahead_kb`: the window in KiB (default: the device's; 0 to 1 GiB). A larger window
    /// hides more latency and wastes more on short streams. `folio_order`: the largest folio as a
    /// power of two of pages (default 9; 0 for a file system without large folios).
    ///
    /// # Errors
    /// A parameter is unknown or out of bounds.
    pub fn from_spec(spec: &Spec, limits: &ReadaheadLimits) -> Result<OnDemand, SpecError> {
        spec.only(&["read_ahead_kb", "folio_order"])?;
        let page_kib = PAGE_BYTES / 1024;
        let window_kib =
            spec.integer("read_ahead_kb", limits.window_pages_max * page_kib, 0..=1 << 20)?;
        let order =
            spec.integer("folio_order", FOLIO_ORDER_MAX.into(), 0..=FOLIO_ORDER_MAX.into())?;
        let limits = ReadaheadLimits { window_pages_max: window_kib / page_kib, ..*limits };
        Ok(OnDemand { folio_order_max: order as u8, ..OnDemand::new(&limits) })
    }

    /// Handles an absent page, for which the reader waits (the synchronous decision): sets the
    /// window and adds its pages. A random read gets only its request.
    /// `request_pages` is the number of pages that the read still needs from `page` on.
    fn handle_absent_page(
        &mut self,
        page: u64,
        request_pages: u64,
        file_pages: u64,
        pages: &mut dyn PageView,
    ) {
        if self.window_pages_max == 0 || self.is_random {
            // At most one device request is added here, and no page ahead of need. The loop over
            // the pages of the read adds the rest when it arrives there.
            let pages_max = self.request_pages_max.max(self.window_pages_max);
            let count = request_pages.min(pages_max);
            return add_single_pages(page, count, NO_ASYNC_PAGES, file_pages, pages);
        }
        let pages_max = self.pages_max(request_pages);
        // `end` is exclusive. As in the kernel, the page that contains it and the page behind that
        // follow the read: after a read of whole pages, a gap of one page counts too.
        let follows_previous_read =
            self.previous_end.is_some_and(|end| page.wrapping_sub(end / PAGE_BYTES) <= 1);
        if page == 0 || request_pages > pages_max || follows_previous_read {
            self.size = first_window_pages(request_pages, pages_max);
            // The pages behind the request are ahead of need. If it fills the window, half are.
            self.async_size =
                if self.size > request_pages { self.size - request_pages } else { self.size / 2 };
        } else {
            let cached_run_pages = run_before(page, pages_max, pages);
            if cached_run_pages <= request_pages {
                // A random read.
                return add_single_pages(page, request_pages, NO_ASYNC_PAGES, file_pages, pages);
            }
            // A run that reaches the start of the file counts double: the file is then likely read
            // whole.
            let run_pages =
                if cached_run_pages == page { cached_run_pages * 2 } else { cached_run_pages };
            self.size = pages_max.min(run_pages + request_pages);
            // As in the kernel, only the last page is ahead of need.
            self.async_size = 1;
        }
        self.start = page;
        self.order = 0;
        self.add_window(file_pages, pages);
    }

    /// Handles the marked folio that contains `page`, before the reader waits (the asynchronous
    /// decision): clears the mark and adds the next window. `request_pages` is the number of pages
    /// that the read needs from `page` on. No effect with a largest window of 0. At the mark of
    /// another stream, adds nothing if all pages up to the largest window behind `page` are cached.
    fn handle_mark(
        &mut self,
        folio: Folio,
        page: u64,
        request_pages: u64,
        file_pages: u64,
        pages: &mut dyn PageView,
    ) {
        if self.window_pages_max == 0 {
            return;
        }
        pages.clear_mark(folio);
        let pages_max = self.pages_max(request_pages);
        let marked_page = self.start + self.size - self.async_size;
        // The kernel compares with the first page of the marked folio.
        let expected_page = marked_page >> folio.order << folio.order;
        if page == expected_page {
            // The reader has arrived at the mark of the newest window.
            self.start += self.size;
            // As in the kernel, the window does not shrink, even if the largest window has.
            self.size = self.size.max(next_size(self.size, pages_max));
        } else {
            // The mark of another stream, which is continued from its first absent page.
            let Some(start) = absent_from(page + 1, pages_max, pages) else { return };
            self.start = start;
            // As in the kernel, the cached pages behind the mark and the request stand for the last
            // window.
            self.size = next_size(start - page + request_pages, pages_max);
        }
        // As in the kernel, the folios of the next window are four times as large. `add_window`
        // limits the order.
        self.order += 2;
        // The window ends at a multiple of its folio size, or of the largest power of two that
        // divides `pages_max`, whichever is smaller.
        let alignment = 1u64 << u32::from(self.order).min(pages_max.trailing_zeros());
        let end = self.start + self.size;
        let aligned_end = end - end % alignment;
        if aligned_end > self.start {
            self.size = aligned_end - self.start;
        }
        self.async_size = self.size;
        self.add_window(file_pages, pages);
    }

    /// Adds the window of the state, in the largest folios that the order allows. From the first
    /// folio with a cached page on, adds the absent pages singly. Stops if memory is short.
    fn add_window(&mut self, file_pages: u64, pages: &mut dyn PageView) {
        if self.folio_order_max == 0 {
            self.order = 0;
            return add_single_pages(self.start, self.size, self.async_size, file_pages, pages);
        }
        // No folio is larger than the window.
        self.order = self.order.min(self.folio_order_max).min(self.size.max(1).ilog2() as u8);
        let end = (self.start + self.size).min(file_pages);
        let mark = self.start + self.size - self.async_size;
        let mut page = self.start;
        while page < end {
            // The largest folio to which the page is aligned; page 0 is aligned to every size.
            let mut order = self.order.min(page.trailing_zeros().min(63) as u8);
            while page + (1 << order) > end {
                order -= 1;
            }
            let folio = Folio { first: page, order };
            if folio.range().pages().any(|page| pages.is_cached(page)) {
                let pages_left = self.start + self.size - page;
                return add_single_pages(page, pages_left, self.async_size, file_pages, pages);
            }
            // Folios of several pages come from `handle_mark`, whose mark is the first page.
            if !pages.add(folio, page == mark) {
                return;
            }
            page = folio.range().end;
        }
    }

    /// The most pages to read at once: the window, or for a larger request the part of it that fits
    /// into one device request.
    fn pages_max(&self, request_pages: u64) -> u64 {
        self.window_pages_max.max(request_pages.min(self.request_pages_max))
    }
}

impl ReadaheadPolicy for OnDemand {
    /// Walks over the requested pages: an absent one may start a window, and a marked one starts
    /// the next window. Records the end of the read.
    fn read(&mut self, read: &ReadRequest, pages: &mut dyn PageView) {
        let (request, file_pages) = (read.request(), read.file_pages());
        let end = request.clipped(file_pages).end;
        let mut page = request.first;
        // The read needs no page, and does not change the state.
        if read.bytes == 0 || read.offset >= read.file_bytes {
            return;
        }
        while page < end {
            if !pages.is_cached(page) {
                self.handle_absent_page(page, request.end - page, file_pages, pages);
                if !pages.is_cached(page) {
                    break; // Memory is short.
                }
            }
            if let Some(folio) = pages.marked(page) {
                // A read touches a marked folio at its first page.
                self.handle_mark(folio, folio.first, request.end - folio.first, file_pages, pages);
            }
            page += 1;
        }
        self.previous_end = Some((read.offset + read.bytes).min(read.file_bytes));
    }

    /// Continues a stream at a marked page. At an absent page, reads a window around it, or from it
    /// on after sequential advice. Half of a window around a page lies before it, and the mark is
    /// at the start of the last quarter. Adds nothing after random advice, or with a largest window
    /// of 0. A fault has no request size: the largest window stands for it.
    fn fault(&mut self, page: u64, read: &ReadRequest, pages: &mut dyn PageView) {
        let (window_pages, file_pages) = (self.window_pages_max, read.file_pages());
        if self.is_random || window_pages == 0 || page >= file_pages {
            return;
        }
        if let Some(folio) = pages.marked(page) {
            self.handle_mark(folio, page, window_pages, file_pages, pages);
        } else if pages.is_cached(page) {
            // The page was prefetched without a mark, and triggers nothing.
        } else if self.is_sequential {
            self.handle_absent_page(page, window_pages, file_pages, pages);
        } else {
            self.start = page.saturating_sub(window_pages / 2);
            self.size = window_pages;
            self.async_size = window_pages / 4;
            self.order = 0;
            self.add_window(file_pages, pages);
        }
    }

    /// Sequential advice doubles the largest window, random advice disables readahead, and normal
    /// advice ends both. Advice for a range has no effect.
    fn advise(&mut self, advice: Advice) {
        let is_sequential = match advice {
            Advice::Normal => false,
            Advice::Sequential => true,
            Advice::Random => {
                // This flag alone overrides the window and the earlier advice, which stay.
                self.is_random = true;
                return;
            }
            Advice::WillNeed | Advice::DontNeed => return,
        };
        self.is_random = false;
        self.is_sequential = is_sequential;
        self.window_pages_max = self.window_pages_normal << u32::from(is_sequential);
    }

    /// False: only the end of a read that finds its pages counts.
    fn needs_every_hit(&self) -> bool {
        false
    }

    /// A read that finds its pages changes only the end of the last read.
    fn record_cached_reads(&mut self, end_byte: u64) {
        self.previous_end = Some(end_byte);
    }

    /// False: the policy is measured unchanged, as in the kernel.
    fn is_limited_by_credit(&self) -> bool {
        false
    }

    /// False: the windows ignore the costs of the device.
    fn uses_costs(&self) -> bool {
        false
    }
}

/// Size in pages of a stream's first window, which includes the request of `request_pages` pages.
/// No window has more than `pages_max` pages. The thresholds are the kernel's.
pub fn first_window_pages(request_pages: u64, pages_max: u64) -> u64 {
    let size = request_pages.next_power_of_two();
    if size <= pages_max / 32 {
        size * 4
    } else if size <= pages_max / 4 {
        size * 2
    } else {
        pages_max
    }
}

/// Size in pages of the window after a window of `size` pages; at most `pages_max`. The thresholds
/// are the kernel's. Small windows grow faster.
fn next_size(size: u64, pages_max: u64) -> u64 {
    if size < pages_max / 16 {
        size * 4
    } else if size <= pages_max / 2 {
        size * 2
    } else {
        pages_max
    }
}

/// Adds the absent pages among `count` pages from `first` as single pages, none past the end of the
/// file. Stops if memory is short. Marks the first of the last `async_pages` pages, if that is not
/// 0. No page is marked if these begin before `first`: the mark lies in an earlier part of the
/// window.
///
/// The mark counts from the end *after* clipping to the file, and is lost if that page is already
/// cached: both as in the kernel.
fn add_single_pages(
    first: u64,
    count: u64,
    async_pages: u64,
    file_pages: u64,
    pages: &mut dyn PageView,
) {
    let end = (first + count).min(file_pages);
    let mark = end.checked_sub(async_pages).filter(|&mark| mark >= first);
    for page in first..end {
        let folio = Folio { first: page, order: SINGLE_PAGE_ORDER };
        if !pages.is_cached(page) && !pages.add(folio, mark == Some(page)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;
    use crate::readahead::{Evidence, PageTable};
    use crate::unit::PageRange;

    /// Windows of up to 32 pages.
    const LIMITS: ReadaheadLimits =
        ReadaheadLimits { window_pages_max: 32, request_pages_max: 320 };

    /// Read of `count` pages from page `first` of a file of 10,000 pages.
    fn read_request(first: u64, count: u64) -> ReadRequest {
        ReadRequest {
            offset: first * PAGE_BYTES,
            bytes: count * PAGE_BYTES,
            file_bytes: 10_000 * PAGE_BYTES,
            is_congested: false,
        }
    }

    /// The pages that one read adds, as one range, and the first marked page.
    fn read(
        policy: &mut OnDemand,
        pages: &mut PageTable,
        request: &ReadRequest,
    ) -> (PageRange, Option<u64>) {
        policy.read(request, pages);
        take_added_span(pages)
    }

    /// The pages added since the last call, as one range, and the first marked page.
    fn take_added_span(pages: &mut PageTable) -> (PageRange, Option<u64>) {
        let added = pages.take_added();
        let mark = added.iter().find(|(_, is_marked)| *is_marked).map(|(folio, _)| folio.first);
        let first = added.iter().map(|(folio, _)| folio.first).min().unwrap_or(0);
        let end = added.iter().map(|(folio, _)| folio.range().end).max().unwrap_or(0);
        (PageRange { first, end }, mark)
    }

    /// Policy of the specification `text`.
    fn policy(text: &str) -> Result<OnDemand, SpecError> {
        OnDemand::from_spec(&Spec::parse(text)?, &LIMITS)
    }

    /// Number of pages that a first read of one page adds under the policy `text`.
    fn first_read_pages(text: &str) -> u64 {
        let (mut policy, pages) = (policy(text).unwrap(), &mut PageTable::default());
        let (added, _) = read(&mut policy, pages, &read_request(0, 1));
        added.count()
    }

    /// The window may have 2,048 pages: the first has four times the request of a page, and each
    /// later one four times the window before. The third window of 64 pages is cut to end at a
    /// multiple of 16. The first page after the request is marked, and then the first of each
    /// window.
    #[test]
    fn sequential_reads_get_the_windows_of_the_documented_example() {
        let mut policy = policy("ondemand,read_ahead_kb=8192").unwrap();
        let pages = &mut PageTable::default();
        assert_eq!(
            read(&mut policy, pages, &read_request(0, 1)),
            (PageRange { first: 0, end: 4 }, Some(1))
        );
        assert_eq!(
            read(&mut policy, pages, &read_request(1, 1)),
            (PageRange { first: 4, end: 20 }, Some(4))
        );
        assert_eq!(
            read(&mut policy, pages, &read_request(4, 1)),
            (PageRange { first: 20, end: 80 }, Some(20))
        );
    }

    /// The first read has set a window of 4 pages, 3 of them ahead of need.
    #[test]
    fn random_read_gets_only_its_request_and_leaves_the_state_unchanged() {
        let mut policy = OnDemand::new(&LIMITS);
        let pages = &mut PageTable::default();
        read(&mut policy, pages, &read_request(0, 1));
        let before = policy.clone();
        let added = read(&mut policy, pages, &read_request(500, 16));
        assert_eq!(added, (PageRange::new(500, 16), None));
        assert_eq!((policy.start, policy.size), (before.start, before.size));
        assert_eq!(policy.async_size, 3);
    }

    /// Random advice: a read of 400 pages adds its pages alone. The first page after a request is
    /// marked.
    #[test]
    fn advice_changes_the_window() {
        let mut policy = OnDemand::new(&LIMITS);
        let pages = &mut PageTable::default();
        policy.advise(Advice::Random);
        assert_eq!(read(&mut policy, pages, &read_request(0, 400)), (PageRange::new(0, 400), None));
        policy.advise(Advice::Sequential);
        // A window of 64: a request of 9 pages rounds to 16 <= 64/4, doubled 32.
        let added = read(&mut policy, pages, &read_request(400, 9));
        assert_eq!(added, (PageRange::new(400, 32), Some(409)));
        policy.advise(Advice::Normal);
        pages.clear();
        // A window of 32: 16 > 32/4, so the whole window.
        assert_eq!(read(&mut policy, pages, &read_request(0, 9)), (PageRange::new(0, 32), Some(9)));
    }

    /// A read of 24 pages adds these pages alone, without a mark.
    #[test]
    fn zero_window_reads_only_the_requested_pages() {
        let pages = &mut PageTable::default();
        let mut policy = policy("ondemand,read_ahead_kb=0").unwrap();
        assert_eq!(read(&mut policy, pages, &read_request(0, 24)), (PageRange::new(0, 24), None));
    }

    /// The first window of an uncongested read has four pages as well.
    #[test]
    fn congested_queue_does_not_change_the_window() {
        let congested = ReadRequest { is_congested: true, ..read_request(0, 1) };
        let added = read(&mut OnDemand::new(&LIMITS), &mut PageTable::default(), &congested);
        assert_eq!(added, (PageRange::new(0, 4), Some(1)));
    }

    /// The file has 10 pages. One read lies behind its end, another begins in its last page.
    #[test]
    fn readahead_stops_at_the_end_of_the_file() {
        let mut policy = OnDemand::new(&LIMITS);
        let pages = &mut PageTable::default();
        let past = ReadRequest { file_bytes: 10 * PAGE_BYTES, ..read_request(10, 1) };
        let (added, _) = read(&mut policy, pages, &past);
        assert_eq!(added.count(), 0);
        assert_eq!(policy.previous_end, None, "such a read is not remembered");
        let across = ReadRequest { offset: 9 * PAGE_BYTES + 1, bytes: 1 << 20, ..past };
        let (added, _) = read(&mut policy, pages, &across);
        assert_eq!(added, PageRange::new(9, 1));
        assert_eq!(policy.previous_end, Some(10 * PAGE_BYTES));
    }

    /// A cache that accepts only the pages 0 and 1.
    #[test]
    fn policy_stops_adding_pages_when_memory_is_short() {
        struct TwoPageCache(PageTable);
        impl PageView for TwoPageCache {
            fn is_cached(&self, page: u64) -> bool {
                self.0.is_cached(page)
            }
            fn is_filled(&self, page: u64) -> bool {
                self.0.is_filled(page)
            }
            fn is_unused(&self, page: u64) -> bool {
                self.0.is_unused(page)
            }
            fn evidence(&mut self) -> Evidence<'_> {
                self.0.evidence()
            }
            fn marked(&self, page: u64) -> Option<Folio> {
                self.0.marked(page)
            }
            fn clear_mark(&mut self, folio: Folio) {
                self.0.clear_mark(folio);
            }
            fn add(&mut self, folio: Folio, is_marked: bool) -> bool {
                folio.first < 2 && self.0.add(folio, is_marked)
            }
        }
        let mut pages = TwoPageCache(PageTable::default());
        OnDemand::new(&LIMITS).read(&read_request(0, 8), &mut pages);
        assert_eq!(pages.0.take_added().len(), 2);
    }

    /// A window of 8 KiB has 2 pages. Two reads of a page add windows of 4 and 8 pages, the second
    /// in folios of order 2 (4 pages) if the file system allows them.
    #[test]
    fn each_parameter_changes_the_outcome_and_is_checked() {
        assert_eq!(first_read_pages("ondemand"), 4);
        assert_eq!(first_read_pages("ondemand,read_ahead_kb=8"), 2);
        let folio_orders = |text| {
            let (mut policy, pages) = (policy(text).unwrap(), &mut PageTable::default());
            policy.read(&read_request(0, 1), pages);
            policy.read(&read_request(1, 1), pages);
            pages.take_added().iter().map(|(folio, _)| folio.order).collect::<Vec<u8>>()
        };
        assert_eq!(folio_orders("ondemand"), [0, 0, 0, 0, 2, 2]);
        assert_eq!(folio_orders("ondemand,folio_order=0"), [0; 12]);
        let message = |text| policy(text).unwrap_err().to_string();
        assert_eq!(
            message("ondemand,folio_order=10"),
            "`ondemand,folio_order=10`: expected a whole number from 0 to 9"
        );
        assert_eq!(
            message("ondemand,max=1"),
            "`ondemand` has no parameter `max`; it takes: read_ahead_kb, folio_order"
        );
    }
}
