//! `window`: the readahead of Linux 2.6.0-test2-mm4 (2003), with its fault.
//!
//! How it works: each open file has a current window. Once a page of it is read, it also has an
//! ahead window, which starts at the end of the current one. A page inside the current window, or
//! directly behind it, is a hit: the next window grows by two pages. Any other page is a miss and
//! shrinks the next window by two. At zero, readahead is *off* until a whole window of consecutive
//! pages has been missed. A window that starts no I/O also shrinks: the policy can't distinguish
//! "all pages were cached" from "the queue was congested".
//!
//! The time at which the policy sees a page depends on the kernel. In 2.6.0-test2 the read loop
//! announced each page after the pages before it had arrived (`announce=page`). The mm4 tree
//! announced all pages of a read before its loop (`announce=request`, the default).
//!
//! A page that is absent when the read loop reaches it is read alone, and the loop waits for it.
//! With readahead off, a read therefore proceeds page by page. The misses of concurrent reads of
//! one file interleave and look random, so that readahead stays off. This is the failure of source
//! A, kept here to be measured: [`demand`](ReadaheadPolicy::demand) always returns
//! [`Demand::Page`].
//!
//! Source: KERNEL.md section 1.

use alloc::string::ToString;

use super::{
    Advice, Demand, Folio, PageView, ReadRequest, ReadaheadLimits, ReadaheadPolicy,
    SINGLE_PAGE_ORDER, window_pages,
};
use crate::policy::{Spec, SpecError};

/// Lower bound, in pages, of a window that shrinks because announced pages were evicted: 16 KiB.
/// This kind of miss alone never turns readahead off.
const WINDOW_PAGES_MIN: i64 = 4;

/// Size in pages of the aligned block that is read around a fault.
const AROUND_PAGES: u64 = 16;

/// Surplus of fault misses over fault hits above which reading around faults stops.
const FAULT_MISSES_MAX: i64 = 100;

/// Size of the next window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextWindow {
    /// No page has been read yet.
    Unused,
    /// Shrunk to zero: readahead is off.
    Off,
    /// Size in pages.
    Pages(i64),
}

/// The policy `window`, for one open file.
#[derive(Clone, Debug)]
pub struct Window {
    /// The largest window without advice, in pages.
    window_pages_default: i64,
    /// The largest window at present, in pages: doubled by sequential advice, 0 after random
    /// advice.
    window_pages_max: i64,
    /// True for `announce=page`: the read loop announces each page when it reaches it.
    announces_singly: bool,
    /// First page of the current window.
    start: u64,
    /// Number of pages of the current window. While readahead is off: a counter that each
    /// consecutive miss raises and any other miss lowers.
    size: i64,
    /// The ahead window, once it was submitted.
    ahead: Option<AheadWindow>,
    /// Size of the next window to be submitted.
    next: NextWindow,
    /// The last announced or missed page; `None` before the first.
    previous_page: Option<u64>,
    /// True after random advice.
    is_random: bool,
    /// True after sequential advice.
    is_sequential: bool,
    /// Faults on absent pages minus faults on cached pages.
    fault_misses: i64,
}

/// The window behind the current one, already submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AheadWindow {
    /// First page.
    start: u64,
    /// Number of pages.
    size: i64,
}

impl Window {
    /// Creates the policy with windows of at most `window_pages_max` pages (the kernel's default:
    /// 32).
    pub fn new(window_pages_max: u64) -> Window {
        Window {
            window_pages_default: window_pages_max as i64,
            window_pages_max: window_pages_max as i64,
            announces_singly: false,
            start: 0,
            size: 0,
            ahead: None,
            next: NextWindow::Unused,
            previous_page: None,
            is_random: false,
            is_sequential: false,
            fault_misses: 0,
        }
    }

    /// Parses `window,read_ahead_kb=KIB,announce=page|request`.
    ///
    /// # Errors
    /// A parameter is unknown, or a value is out of range.
    pub fn from_spec(spec: &Spec, limits: &ReadaheadLimits) -> Result<Window, SpecError> {
        spec.only(&["read_ahead_kb", "announce"])?;
        let announces_singly = match spec.parameters.get("announce").map(|text| text.as_str()) {
            None | Some("request") => false,
            Some("page") => true,
            Some(other) => {
                return Err(SpecError::BadValue {
                    name: spec.name.clone(),
                    key: "announce".to_string(),
                    value: other.to_string(),
                    expected: "page or request".to_string(),
                });
            }
        };
        Ok(Window { announces_singly, ..Window::new(window_pages(spec, limits)?) })
    }

    /// Returns true while readahead is off.
    pub(super) fn is_off(&self) -> bool {
        self.next == NextWindow::Off
    }

    /// Handles one page of the current read, announced by the read loop: changes the size of the
    /// next window and submits a window if one is due.
    pub(super) fn announce(&mut self, page: u64, read: &ReadRequest, pages: &mut dyn PageView) {
        // A page that is announced twice in a row counts once. Small reads within a page would
        // otherwise be hits.
        if self.previous_page == Some(page) && self.next != NextWindow::Unused {
            return;
        }
        // While it is off, only misses count (`record_miss`).
        if self.is_off() || self.window_pages_max == 0 {
            return;
        }
        if self.next == NextWindow::Unused && page == 0 {
            // As in the kernel, a read from the start begins with half of the largest window.
            self.next = NextWindow::Pages((self.window_pages_max / 2).max(1));
            let no_window_before = 0;
            return self.begin_current_window(page, no_window_before, read, pages);
        }
        // Before any window its size is 0: a first page other than 0 is then a miss and turns
        // readahead off.
        let window_pages = self.next_pages();
        self.previous_page = Some(page);
        // A page in the current window, or directly behind it.
        let is_hit = self.start <= page && page <= self.start + self.size as u64;
        let next_pages = window_pages + if is_hit { 2 } else { -2 };
        if next_pages <= 0 {
            return self.turn_off();
        }
        self.next = NextWindow::Pages(next_pages.min(self.window_pages_max));
        if self.start <= page && page < self.start + self.size as u64 {
            // The first page that is read of the current window submits the ahead window behind it.
            if self.ahead.is_none() {
                self.begin_ahead_window(window_pages, read, pages);
            }
        } else if let Some(ahead) = self.ahead
            && ahead.start == page
        {
            // The first page of the ahead window makes it the current window. The next page submits
            // the window after it.
            self.start = ahead.start;
            self.size = ahead.size;
            self.ahead = None;
        } else {
            self.begin_current_window(page, window_pages, read, pages);
        }
    }

    /// Handles a page that was announced and is absent when the read reaches it: reduces the next
    /// window by three pages, as the kernel does, not below `WINDOW_PAGES_MIN`. While readahead is
    /// off or unused, counts misses in `size`: a consecutive one adds 1, any other subtracts 1. At
    /// the largest window it turns readahead on, with the missed pages as the current window.
    pub(super) fn record_miss(&mut self, page: u64) {
        match self.next {
            NextWindow::Pages(next) => {
                self.next = NextWindow::Pages((next - 3).max(WINDOW_PAGES_MIN))
            }
            // After random advice, and with `read_ahead_kb=0`, readahead stays off.
            _ if self.window_pages_max == 0 => {}
            _ => {
                let is_consecutive =
                    self.previous_page.is_some_and(|previous| previous + 1 == page);
                self.size = if is_consecutive { self.size + 1 } else { (self.size - 1).max(0) };
                if self.size >= self.window_pages_max {
                    let max = self.window_pages_max;
                    self.start = (page + 1).saturating_sub(max as u64);
                    (self.size, self.next, self.ahead) = (max, NextWindow::Pages(max), None);
                }
                self.previous_page = Some(page);
            }
        }
    }

    /// Handles a fault on a page of a mapping. After sequential advice it only announces the page,
    /// as for a read. Otherwise it counts a hit or a miss. A cached page needs no read. For an
    /// absent page it adds the aligned block around the page, unless misses prevail by more than
    /// 100, or after random advice.
    pub(super) fn handle_fault(&mut self, page: u64, read: &ReadRequest, pages: &mut dyn PageView) {
        if self.is_sequential {
            return self.announce(page, read, pages);
        }
        if pages.is_cached(page) {
            self.fault_misses -= 1;
            return;
        }
        self.fault_misses += 1;
        if !self.is_random && self.fault_misses <= FAULT_MISSES_MAX {
            let first = page / AROUND_PAGES * AROUND_PAGES;
            submit(first, AROUND_PAGES as i64, read, pages);
        }
    }

    /// Applies the program's advice: sequential doubles the largest window, random disables
    /// readahead, and normal ends both. Advice for a range has no effect.
    pub(super) fn apply_advice(&mut self, advice: Advice) {
        match advice {
            Advice::Normal => self.window_pages_max = self.window_pages_default,
            Advice::Sequential => self.window_pages_max = 2 * self.window_pages_default,
            Advice::Random => self.window_pages_max = 0,
            Advice::WillNeed | Advice::DontNeed => return,
        }
        self.is_random = advice == Advice::Random;
        self.is_sequential = advice == Advice::Sequential;
    }

    /// Size of the next window in pages; 0 while it is unused or off.
    fn next_pages(&self) -> i64 {
        match self.next {
            NextWindow::Pages(pages) => pages,
            NextWindow::Unused | NextWindow::Off => 0,
        }
    }

    /// Replaces both windows by one that starts at `page`, and submits it. `window_pages` is the
    /// size of the next window before the current page changed it.
    fn begin_current_window(
        &mut self,
        page: u64,
        window_pages: i64,
        read: &ReadRequest,
        pages: &mut dyn PageView,
    ) {
        self.start = page;
        self.size = self.next_pages();
        self.ahead = None;
        self.previous_page = Some(page);
        let added_pages = submit(self.start, self.size, read, pages);
        self.shrink_if_nothing_added(added_pages, window_pages);
    }

    /// Submits the window behind the current one, before the reader needs it. `window_pages` is the
    /// size of the next window before the current page changed it.
    fn begin_ahead_window(
        &mut self,
        window_pages: i64,
        read: &ReadRequest,
        pages: &mut dyn PageView,
    ) {
        let ahead = AheadWindow { start: self.start + self.size as u64, size: self.next_pages() };
        self.ahead = Some(ahead);
        let added_pages = submit(ahead.start, ahead.size, read, pages);
        self.shrink_if_nothing_added(added_pages, window_pages);
    }

    /// Sets the next window to one page less than `window_pages` if the submission added no page.
    /// `window_pages` is the size before the current page changed it, so a growth by a hit is
    /// undone. A size of at most one page turns readahead off. An ahead window shrinks with it.
    fn shrink_if_nothing_added(&mut self, added_pages: u64, window_pages: i64) {
        if added_pages > 0 {
            return;
        }
        if window_pages > 1 {
            self.next = NextWindow::Pages(window_pages - 1);
            if let Some(ahead) = &mut self.ahead {
                ahead.size = window_pages - 1;
            }
        } else {
            self.turn_off();
        }
    }

    /// Turns readahead off and resets the count of consecutive misses.
    fn turn_off(&mut self) {
        self.next = NextWindow::Off;
        self.size = 0;
    }
}

/// Submits the absent pages among `size` pages from page `first` on, unless the device is
/// congested. Stops if memory is short. Returns the number of added pages: 0 for cached pages and
/// for a congested device alike.
pub(super) fn submit(first: u64, size: i64, read: &ReadRequest, pages: &mut dyn PageView) -> u64 {
    if read.is_congested {
        return 0;
    }
    // Pages added from here on reach the device in requests of their own.
    pages.begin_window();
    // No page is marked, because the policy is called for every read.
    let is_marked = false;
    let mut added_pages = 0;
    for page in first..(first + size as u64).min(read.file_pages()) {
        if pages.is_cached(page) {
            continue;
        }
        if !pages.add(Folio::holding(page, SINGLE_PAGE_ORDER), is_marked) {
            break;
        }
        added_pages += 1;
    }
    added_pages
}

impl ReadaheadPolicy for Window {
    /// Announces all requested pages before the read loop, unless `announce=page`.
    fn read(&mut self, read: &ReadRequest, pages: &mut dyn PageView) {
        if self.announces_singly {
            return;
        }
        for page in read.request().clipped(read.file_pages()).pages() {
            self.announce(page, read, pages);
        }
    }

    /// Reads the aligned block around the page, by `handle_fault`.
    fn fault(&mut self, page: u64, read: &ReadRequest, pages: &mut dyn PageView) {
        self.handle_fault(page, read, pages);
    }

    /// Applies the program's advice, by `apply_advice`.
    fn advise(&mut self, advice: Advice) {
        self.apply_advice(advice);
    }

    /// Announces the page now with `announce=page`, and counts a miss if it is still absent: the
    /// machine then reads this page alone.
    fn demand(&mut self, page: u64, read: &ReadRequest, pages: &mut dyn PageView) -> Demand {
        if self.announces_singly {
            self.announce(page, read, pages);
        }
        if !pages.is_cached(page) {
            self.record_miss(page);
        }
        Demand::Page
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

#[cfg(test)]
pub(super) mod tests {
    use super::super::PageTable;
    use super::*;
    use crate::unit::{PAGE_BYTES, PageRange};
    use alloc::vec::Vec;

    /// Takes the ranges that were added since the last call, adjacent folios joined.
    pub(in super::super) fn take_ranges(pages: &mut PageTable) -> Vec<PageRange> {
        let mut ranges: Vec<PageRange> = Vec::new();
        for (folio, _) in pages.take_added() {
            match ranges.last_mut() {
                Some(last) if last.end == folio.first => last.end = folio.range().end,
                _ => ranges.push(folio.range()),
            }
        }
        ranges
    }

    /// Read of `count` pages from page `first` of a file of 10,000 pages.
    pub(in super::super) fn read_request(first: u64, count: u64) -> ReadRequest {
        ReadRequest {
            offset: first * PAGE_BYTES,
            bytes: count * PAGE_BYTES,
            file_bytes: 10_000 * PAGE_BYTES,
            is_congested: false,
        }
    }

    /// Windows of each read, worked by hand from KERNEL.md section 1.
    #[test]
    fn golden_trajectory_of_a_sequential_reader_from_page_0() {
        let mut policy = Window::new(32);
        let mut pages = PageTable::default();
        // Reads one page. Returns the first page and the page count of each added range.
        let mut step = |page: u64| -> Vec<(u64, u64)> {
            policy.read(&read_request(page, 1), &mut pages);
            take_ranges(&mut pages).iter().map(|range| (range.first, range.count())).collect()
        };
        // First use at page 0: a window of max/2 = 16.
        assert_eq!(step(0), [(0, 16)]);
        // A hit: next = 16 + 2 = 18. No ahead window exists yet: one of 18 pages from 16 is read.
        assert_eq!(step(1), [(16, 18)]);
        for page in 2..=15 {
            assert_eq!(step(page), []);
        }
        // Page 16 is the first of the ahead window, which becomes current without I/O.
        assert_eq!(step(16), []);
        // 14 more hits have raised the next window to the maximum of 32.
        assert_eq!(step(17), [(34, 32)]);
    }

    /// A first read elsewhere than at page 0 turns readahead off. It returns once the counter in
    /// `size` reaches 32: a miss of the page after the last one adds 1, any other subtracts 1.
    #[test]
    fn readahead_turns_off_at_a_nonzero_first_read_and_on_after_misses() {
        let mut policy = Window::new(32);
        let mut pages = PageTable::default();
        policy.read(&read_request(160, 16), &mut pages);
        assert!(policy.is_off());
        assert_eq!(take_ranges(&mut pages), []);
        // 16 pages missed: the first is not consecutive (size stays 0), 15 follow.
        (160..176).for_each(|page| policy.record_miss(page));
        assert_eq!(policy.size, 15);
        // The next record starts elsewhere: 15 - 1 + 15 = 29. The third reaches 32 with its fifth
        // page: 28, 29, 30, 31, 32.
        (480..496).for_each(|page| policy.record_miss(page));
        assert_eq!(policy.size, 29);
        (800..804).for_each(|page| policy.record_miss(page));
        assert!(policy.is_off());
        policy.record_miss(804);
        assert_eq!((policy.next, policy.start, policy.size), (NextWindow::Pages(32), 773, 32));
    }

    /// Eight readers, 1,000 pages apart, miss one page after another: no two misses are
    /// consecutive.
    #[test]
    fn interleaved_misses_never_turn_readahead_on_again() {
        let mut policy = Window::new(32);
        let mut pages = PageTable::default();
        policy.read(&read_request(160, 16), &mut pages);
        for step in 0..1000 {
            for reader in 0..8 {
                policy.record_miss(1000 * reader + step);
            }
        }
        assert!(policy.is_off());
    }

    /// The second read submits the ahead window while the queue is congested.
    #[test]
    fn congestion_and_cached_pages_shrink_the_window_alike() {
        let mut policy = Window::new(32);
        let mut pages = PageTable::default();
        policy.read(&read_request(0, 1), &mut pages);
        let congested = ReadRequest { is_congested: true, ..read_request(1, 1) };
        policy.read(&congested, &mut pages);
        // The next window was 16. No I/O was started, so it becomes 15, as does the ahead window.
        assert_eq!(policy.next, NextWindow::Pages(15));
        assert_eq!(policy.ahead, Some(AheadWindow { start: 16, size: 15 }));
    }

    /// Page 37 is in the block of 16 pages from 32. The fault on page 9000 is the 102nd miss.
    /// Random advice disables the block from the first fault on.
    #[test]
    fn faults_read_the_aligned_block_until_100_excess_misses() {
        let mut policy = Window::new(32);
        let mut pages = PageTable::default();
        policy.fault(37, &read_request(37, 1), &mut pages);
        assert_eq!(take_ranges(&mut pages), [PageRange::new(32, 16)]);
        for miss in 0..100 {
            let page = 1000 + 50 * miss;
            policy.fault(page, &read_request(page, 1), &mut pages);
        }
        take_ranges(&mut pages);
        policy.fault(9000, &read_request(9000, 1), &mut pages);
        assert_eq!(take_ranges(&mut pages), []);
        let mut random = Window::new(32);
        random.advise(Advice::Random);
        random.fault(9100, &read_request(9100, 1), &mut pages);
        assert_eq!(take_ranges(&mut pages), []);
    }
}
