//! `ondemand`: the readahead of Linux since 2.6.23, as it is in 6.18.
//!
//! The law in words. A read walks over its pages. At a page that is absent it
//! decides *synchronously*: at the start of the file, right after the previous
//! read, or when the request is larger than the window, a stream begins and a
//! window is read that is two or four times the request; where a long run of
//! cached pages lies directly before the page, an old stream goes on there;
//! anything else is a random read and gets exactly what it asked. The first
//! page beyond the request (or the middle of the window, when the request
//! fills it) carries the *mark*. At a marked page the law decides
//! *asynchronously*: the stream has come there, so the next window, twice or
//! four times as large up to the maximum, is read now, before it is needed.
//! A mark that is not where the state expects it belongs to another stream on
//! the same open file; that stream is continued from its first absent page.
//!
//! Each asynchronous window also raises the folio order by two: pages are
//! allocated as aligned blocks of up to 512, smaller at an unaligned start and
//! at the end. A page that is cached already ends the blocks: the rest of the
//! window is filled in single pages around what is there.
//!
//! A mapped access that finds no page knows no request: it reads *around*, a
//! whole window with the page in its middle and the mark at three quarters; with
//! sequential advice it decides synchronously for a whole window from the page
//! on. With random advice it leaves the page to the demand read. A marked folio
//! counts as touched at its first page by a read, but at the very page by a
//! mapped access, so that one in its middle looks like another stream.
//!
//! Source: KERNEL.md section 2, then the running 6.18 kernel, read by read
//! (`readpath conform`). Where the two differ the kernel is followed: a look-back
//! counts at most one page less than the window; looking around goes wrong
//! inside large folios (see `lookaround`), so that two streams on one open file
//! leave holes of a page; a forced read stops at the largest request, which shows
//! when a mark lies beyond; the mark of a window that goes around cached pages
//! counts from the end of the file where that clips the window; and mapped
//! reads go on reading around however many miss.
//!
//! What differs on purpose: with a window of 0 the kernel reads page by page and
//! waits for each; with random advice it reads in pieces of the device's largest
//! request. Here the same pages are added, but all of the request reaches the
//! device together (source C).
//!
//! A full device queue makes no difference: 6,000 reads beside 256 outstanding
//! direct reads on the same device were all as on an idle one. (The kernel holds
//! back only where a cgroup's I/O is throttled, which a law isn't told.)
//!
//! What can't be known from outside, and so is not modelled: a folio that the
//! kernel could not allocate or the file system declined (the kernel then falls
//! back to single pages); a mark that it leaves alone because its folio is
//! under writeback; and the count of mapped misses, above which (100) it stops
//! reading around: every fault that ends well counts as at least one hit (3,000
//! far-apart touches all read around), so that it grows only when pages come
//! back that were evicted shortly before, which the cache's pages don't tell.

mod lookaround;

use lookaround::{absent_from, run_before};

use super::{Advice, Folio, PageView, ReadRequest, ReadaheadLimits, ReadaheadPolicy};
use crate::policy::{Spec, SpecError};
use crate::unit::PAGE_BYTES;

/// The largest folio of the page cache on x86-64, as an order: 2 MiB, one huge page.
const FOLIO_ORDER_MAX: u8 = 9;

/// The law `ondemand`: the state of one open file.
#[derive(Clone, Debug)]
pub struct OnDemand {
    window_pages_normal: u64,
    request_pages_max: u64,
    folio_order_max: u8,

    /// The window now: doubled by sequential advice.
    window_pages_max: u64,
    is_random: bool,
    is_sequential: bool,

    /// The newest window: its first page.
    start: u64,
    /// Its size in pages.
    size: u64,
    /// How many of its last pages are ahead of need; the first of these is marked.
    async_size: u64,
    /// The folio order of the newest window.
    order: u8,
    /// Where the last read ended, in bytes; none before the first.
    previous_end: Option<u64>,
}

impl OnDemand {
    /// The law for a file on a device with these limits, on a file system with large folios.
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
    /// `read_ahead_kb`: the window in KiB (default: the device's; 0 to 1 GiB); more
    /// hides more latency and wastes more on short streams. `folio_order`: the
    /// largest folio as a power of two of pages (default 9; 0 for a file
    /// system without large folios).
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

    /// An absent page: `request` is what the read still wants from `page` on.
    fn synchronous(
        &mut self,
        page: u64,
        request: u64,
        ask: &ReadRequest,
        pages: &mut dyn PageView,
    ) {
        if self.window_pages_max == 0 || self.is_random {
            // The rest comes when the walk gets there, unless a mark on the way
            // has brought it in by then.
            let most = self.request_pages_max.max(self.window_pages_max);
            return fill_singly(page, request.min(most), 0, ask, pages);
        }
        let most = self.pages_max(request);
        let follows = self.previous_end.is_some_and(|end| page.wrapping_sub(end / PAGE_BYTES) <= 1);
        if page == 0 || request > most || follows {
            self.size = first_window_pages(request, most);
            self.async_size = if self.size > request { self.size - request } else { self.size / 2 };
        } else {
            let run = run_before(page, most, pages);
            if run <= request {
                return fill_singly(page, request, 0, ask, pages);
            }
            // A run that reaches the start of the file counts double.
            let run = if run == page { run * 2 } else { run };
            self.size = most.min(run + request);
            self.async_size = 1;
        }
        self.start = page;
        self.order = 0;
        self.submit(ask, pages);
    }

    /// The marked folio that holds `page`: `request` is what is wanted from `page` on.
    fn asynchronous(
        &mut self,
        folio: Folio,
        page: u64,
        request: u64,
        ask: &ReadRequest,
        pages: &mut dyn PageView,
    ) {
        if self.window_pages_max == 0 {
            return;
        }
        pages.clear_mark(folio);
        let most = self.pages_max(request);
        let expected = (self.start + self.size - self.async_size) >> folio.order << folio.order;
        if page == expected {
            self.start += self.size;
            self.size = self.size.max(next_size(self.size, most));
        } else {
            let Some(start) = absent_from(page + 1, most, pages) else { return };
            self.start = start;
            self.size = next_size(start - page + request, most);
        }
        self.order += 2;
        let alignment = 1u64 << u32::from(self.order).min(most.trailing_zeros());
        let end = self.start + self.size;
        let aligned_end = end - end % alignment;
        if aligned_end > self.start {
            self.size = aligned_end - self.start;
        }
        self.async_size = self.size;
        self.submit(ask, pages);
    }

    /// Adds the window of the state, in the largest folios that the order allows.
    fn submit(&mut self, ask: &ReadRequest, pages: &mut dyn PageView) {
        if self.folio_order_max == 0 {
            self.order = 0;
            return fill_singly(self.start, self.size, self.async_size, ask, pages);
        }
        self.order = self.order.min(self.folio_order_max).min(self.size.max(1).ilog2() as u8);
        let end = (self.start + self.size).min(ask.file_pages());
        let mark = self.start + self.size - self.async_size;
        let mut page = self.start;
        while page < end {
            let mut order = self.order.min(page.trailing_zeros().min(63) as u8);
            while page + (1 << order) > end {
                order -= 1;
            }
            let folio = Folio { first: page, order };
            if folio.range().pages().any(|page| pages.is_cached(page)) {
                let left = self.start + self.size - page;
                return fill_singly(page, left, self.async_size, ask, pages);
            }
            if !pages.add(folio, page == mark) {
                return;
            }
            page = folio.range().end;
        }
    }

    /// The most pages to read at once: the window, or for a request larger
    /// than it as much of that as the device takes in one request.
    fn pages_max(&self, request: u64) -> u64 {
        self.window_pages_max.max(request.min(self.request_pages_max))
    }
}

impl ReadaheadPolicy for OnDemand {
    fn read(&mut self, ask: &ReadRequest, pages: &mut dyn PageView) {
        let request = ask.request();
        let end = request.clipped(ask.file_pages()).end;
        let mut page = request.first;
        if ask.bytes == 0 || ask.offset >= ask.file_bytes {
            return;
        }
        while page < end {
            if !pages.is_cached(page) {
                self.synchronous(page, request.end - page, ask, pages);
                if !pages.is_cached(page) {
                    break; // memory is short
                }
            }
            if let Some(folio) = pages.marked(page) {
                self.asynchronous(folio, folio.first, request.end - folio.first, ask, pages);
            }
            page += 1;
        }
        self.previous_end = Some((ask.offset + ask.bytes).min(ask.file_bytes));
    }

    fn fault(&mut self, page: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
        let window = self.window_pages_max;
        if self.is_random || window == 0 || page >= ask.file_pages() {
            return;
        }
        if let Some(folio) = pages.marked(page) {
            self.asynchronous(folio, page, window, ask, pages);
        } else if pages.is_cached(page) {
            // Nothing to do: the page is where it was read ahead to.
        } else if self.is_sequential {
            self.synchronous(page, window, ask, pages);
        } else {
            self.start = page.saturating_sub(window / 2);
            self.size = window;
            self.async_size = window / 4;
            self.order = 0;
            self.submit(ask, pages);
        }
    }

    fn advise(&mut self, advice: Advice) {
        let is_sequential = match advice {
            Advice::Normal => false,
            Advice::Sequential => true,
            Advice::Random => {
                self.is_random = true;
                return;
            }
            Advice::WillNeed | Advice::DontNeed => return,
        };
        self.is_random = false;
        self.is_sequential = is_sequential;
        self.window_pages_max = self.window_pages_normal << u32::from(is_sequential);
    }

    fn sees_every_hit(&self) -> bool {
        false
    }

    /// A read that finds its pages leaves nothing but the place where it ended.
    fn passed(&mut self, end: u64) {
        self.previous_end = Some(end);
    }

    fn is_on_credit(&self) -> bool {
        false
    }
}

/// The size of a stream's first window, in pages, the `request` of so many among them, where no window has more than `most`.
pub fn first_window_pages(request: u64, most: u64) -> u64 {
    let size = request.next_power_of_two();
    if size <= most / 32 {
        size * 4
    } else if size <= most / 4 {
        size * 2
    } else {
        most
    }
}

/// The size of the window after one of `size` pages.
fn next_size(size: u64, most: u64) -> u64 {
    if size < most / 16 {
        size * 4
    } else if size <= most / 2 {
        size * 2
    } else {
        most
    }
}

/// Adds the absent ones of `count` pages one by one, none past the end of the
/// file, and marks the page that has `ahead` pages from it to the end.
///
/// The mark counts from the end *after* clipping to the file, and is lost when
/// that page is cached already: both as the kernel has it.
fn fill_singly(first: u64, count: u64, ahead: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
    let end = (first + count).min(ask.file_pages());
    let mark = end.checked_sub(ahead).filter(|&mark| mark >= first);
    for page in first..end {
        if !pages.is_cached(page) && !pages.add(Folio { first: page, order: 0 }, mark == Some(page))
        {
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

    const LIMITS: ReadaheadLimits =
        ReadaheadLimits { window_pages_max: 32, request_pages_max: 320 };

    fn ask(first: u64, count: u64) -> ReadRequest {
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
        ask: &ReadRequest,
    ) -> (PageRange, Option<u64>) {
        policy.read(ask, pages);
        span(pages)
    }

    fn span(pages: &mut PageTable) -> (PageRange, Option<u64>) {
        let added = pages.take_added();
        let mark = added.iter().find(|(_, is_marked)| *is_marked).map(|(folio, _)| folio.first);
        let first = added.iter().map(|(folio, _)| folio.first).min().unwrap_or(0);
        let end = added.iter().map(|(folio, _)| folio.range().end).max().unwrap_or(0);
        (PageRange { first, end }, mark)
    }

    fn policy(text: &str) -> Result<OnDemand, SpecError> {
        OnDemand::from_spec(&Spec::parse(text)?, &LIMITS)
    }

    /// What a first read of one page adds under `text`: the knobs' effect.
    fn first_read_pages(text: &str) -> u64 {
        let added = read(&mut policy(text).unwrap(), &mut PageTable::default(), &ask(0, 1));
        added.0.count()
    }

    #[test]
    fn the_worked_example_of_the_page_on_kernel_policies() {
        let mut policy = policy("ondemand,read_ahead_kb=8192").unwrap();
        let pages = &mut PageTable::default();
        assert_eq!(read(&mut policy, pages, &ask(0, 1)), (PageRange { first: 0, end: 4 }, Some(1)));
        assert_eq!(
            read(&mut policy, pages, &ask(1, 1)),
            (PageRange { first: 4, end: 20 }, Some(4))
        );
        assert_eq!(
            read(&mut policy, pages, &ask(4, 1)),
            (PageRange { first: 20, end: 80 }, Some(20))
        );
    }

    #[test]
    fn a_random_read_gets_its_request_and_leaves_the_state() {
        let mut policy = OnDemand::new(&LIMITS);
        let pages = &mut PageTable::default();
        read(&mut policy, pages, &ask(0, 1));
        let before = policy.clone();
        let added = read(&mut policy, pages, &ask(500, 16));
        assert_eq!(added, (PageRange::new(500, 16), None));
        assert_eq!((policy.start, policy.size, policy.async_size), (before.start, before.size, 3));
    }

    #[test]
    fn advice_changes_the_window() {
        let mut policy = OnDemand::new(&LIMITS);
        let pages = &mut PageTable::default();
        policy.advise(Advice::Random);
        assert_eq!(read(&mut policy, pages, &ask(0, 400)), (PageRange::new(0, 400), None));
        policy.advise(Advice::Sequential);
        // A window of 64: a request of 9 pages rounds to 16 <= 64/4, doubled 32.
        assert_eq!(read(&mut policy, pages, &ask(400, 9)), (PageRange::new(400, 32), Some(409)));
        policy.advise(Advice::Normal);
        pages.clear();
        // A window of 32: 16 > 32/4, so the whole window.
        assert_eq!(read(&mut policy, pages, &ask(0, 9)), (PageRange::new(0, 32), Some(9)));
    }

    #[test]
    fn without_a_window_only_the_request_is_read() {
        let pages = &mut PageTable::default();
        let mut off = policy("ondemand,read_ahead_kb=0").unwrap();
        assert_eq!(read(&mut off, pages, &ask(0, 24)), (PageRange::new(0, 24), None));
    }

    #[test]
    fn a_full_queue_changes_nothing() {
        let full = ReadRequest { is_congested: true, ..ask(0, 1) };
        let added = read(&mut OnDemand::new(&LIMITS), &mut PageTable::default(), &full);
        assert_eq!(added, (PageRange::new(0, 4), Some(1)));
    }

    #[test]
    fn nothing_is_read_past_the_end_of_the_file() {
        let mut policy = OnDemand::new(&LIMITS);
        let pages = &mut PageTable::default();
        let past = ReadRequest { file_bytes: 10 * PAGE_BYTES, ..ask(10, 1) };
        assert_eq!(read(&mut policy, pages, &past).0.count(), 0);
        assert_eq!(policy.previous_end, None, "such a read is not remembered");
        let across = ReadRequest { offset: 9 * PAGE_BYTES + 1, bytes: 1 << 20, ..past };
        assert_eq!(read(&mut policy, pages, &across).0, PageRange::new(9, 1));
        assert_eq!(policy.previous_end, Some(10 * PAGE_BYTES));
    }

    #[test]
    fn when_memory_is_short_the_policy_stops() {
        struct Full(PageTable);
        impl PageView for Full {
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
        let mut pages = Full(PageTable::default());
        OnDemand::new(&LIMITS).read(&ask(0, 8), &mut pages);
        assert_eq!(pages.0.take_added().len(), 2);
    }

    #[test]
    fn each_parameter_changes_the_outcome_and_is_checked() {
        assert_eq!(first_read_pages("ondemand"), 4);
        assert_eq!(first_read_pages("ondemand,read_ahead_kb=8"), 2);
        let orders = |text| {
            let (mut policy, pages) = (policy(text).unwrap(), &mut PageTable::default());
            policy.read(&ask(0, 1), pages);
            policy.read(&ask(1, 1), pages);
            pages.take_added().iter().map(|(folio, _)| folio.order).collect::<Vec<u8>>()
        };
        assert_eq!(orders("ondemand"), [0, 0, 0, 0, 2, 2]);
        assert_eq!(orders("ondemand,folio_order=0"), [0; 12]);
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
