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
//! Source: KERNEL.md section 2, then the running 6.18 kernel, read by read
//! (`readpath conform`).
//!
//! What differs on purpose: with a window of 0, or a congested queue, the
//! kernel reads page by page and waits for each. Here the same pages are added
//! one by one but reach the device together (source C).
//!
//! What can't be known from outside, and so is not modelled: a folio that the
//! kernel could not allocate or the file system declined (the kernel then falls
//! back to single pages), a mark that it leaves alone because its folio is
//! under writeback, and pages that memory pressure took away.

mod lookaround;

use lookaround::{absent_from, run_before};

use super::{Advice, Ask, Folio, Pages, ReadaheadLaw, ReadaheadLimits};
use crate::law::{Spec, SpecError};
use crate::unit::PAGE_BYTES;

/// The largest folio of the page cache on x86-64, as an order: 2 MiB, one huge page.
const FOLIO_ORDER_MAX: u8 = 9;

/// A forced read goes out in pieces of 2 MiB, so that one call doesn't pin more than that.
const FORCED_PIECE_PAGES: u64 = 512;

/// Once misses exceed hits by this many, mapped reads stop reading around.
const MAPPED_MISSES_MAX: u32 = 100;

/// Where the count of mapped misses stops, so that hits can bring it back.
const MAPPED_MISSES_CEILING: u32 = 10 * MAPPED_MISSES_MAX;

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
    mapped_misses: u32,
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
            mapped_misses: 0,
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
    fn synchronous(&mut self, page: u64, request: u64, ask: &Ask, pages: &mut dyn Pages) {
        if self.window_pages_max == 0 || ask.is_congested {
            return self.forced(page, 1, ask, pages);
        }
        if self.is_random {
            return self.forced(page, request, ask, pages);
        }
        let most = self.pages_max(request);
        let follows = self.previous_end.is_some_and(|end| page.wrapping_sub(end / PAGE_BYTES) <= 1);
        if page == 0 || request > most || follows {
            self.size = first_size(request, most);
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

    /// A marked folio: `request` is what the read still wants from the folio's first page on.
    fn asynchronous(&mut self, folio: Folio, request: u64, ask: &Ask, pages: &mut dyn Pages) {
        if self.window_pages_max == 0 {
            return;
        }
        pages.clear_mark(folio);
        if ask.is_congested {
            return;
        }
        let most = self.pages_max(request);
        let expected = (self.start + self.size - self.async_size) >> folio.order << folio.order;
        if folio.first == expected {
            self.start += self.size;
            self.size = self.size.max(next_size(self.size, most));
        } else {
            let Some(start) = absent_from(folio.first + 1, most, pages) else { return };
            self.start = start;
            self.size = next_size(start - folio.first + request, most);
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

    /// Exactly the request, at most the device's largest, without a mark.
    fn forced(&self, page: u64, request: u64, ask: &Ask, pages: &mut dyn Pages) {
        let count = request.min(self.request_pages_max.max(self.window_pages_max));
        for piece in (0..count).step_by(FORCED_PIECE_PAGES as usize) {
            fill_singly(page + piece, FORCED_PIECE_PAGES.min(count - piece), 0, ask, pages);
        }
    }

    /// Adds the window of the state, in the largest folios that the order allows.
    fn submit(&mut self, ask: &Ask, pages: &mut dyn Pages) {
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
            if !pages.add(folio, page == mark >> order << order) {
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

impl ReadaheadLaw for OnDemand {
    fn read(&mut self, ask: &Ask, pages: &mut dyn Pages) {
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
                self.asynchronous(folio, request.end - folio.first, ask, pages);
            }
            page += 1;
        }
        self.previous_end = Some((ask.offset + ask.bytes).min(ask.file_bytes));
    }

    fn fault(&mut self, page: u64, ask: &Ask, pages: &mut dyn Pages) {
        let window = self.window_pages_normal;
        if self.is_random || window == 0 || page >= ask.file_pages() {
            return;
        }
        if pages.is_cached(page) {
            self.mapped_misses = self.mapped_misses.saturating_sub(1);
            if let Some(folio) = pages.marked(page) {
                self.asynchronous(folio, window, ask, pages);
            }
        } else if self.is_sequential {
            self.synchronous(page, window, ask, pages);
        } else {
            self.mapped_misses = MAPPED_MISSES_CEILING.min(self.mapped_misses + 1);
            if self.mapped_misses <= MAPPED_MISSES_MAX {
                self.start = page.saturating_sub(window / 2);
                self.size = window;
                self.async_size = window / 4;
                self.order = 0;
                self.submit(ask, pages);
            }
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
}

/// The size of a stream's first window.
fn first_size(request: u64, most: u64) -> u64 {
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
fn fill_singly(first: u64, count: u64, ahead: u64, ask: &Ask, pages: &mut dyn Pages) {
    let end = (first + count).min(ask.file_pages());
    let mark = end.checked_sub(ahead).filter(|&mark| mark >= first);
    for page in first..end {
        if !pages.is_cached(page) && !pages.add(Folio { first: page, order: 0 }, mark == Some(page))
        {
            return;
        }
    }
}
