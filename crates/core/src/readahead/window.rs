//! `window`: the readahead of Linux 2.6.0-test2-mm4 (2003), with its fault.
//!
//! The law in words: each open file has a current window and, once a page of
//! it is read, an ahead window that starts where the current one ends. A page
//! read inside the current window, or just behind it, is a hit and lets the
//! next window grow by two pages; any other page is a miss and shrinks it by
//! two. When the shrinking reaches zero, readahead is *off*: nothing is read
//! ahead, until as many pages as a whole window have been missed one after the
//! other. "All was cached already" and "the queue was congested" look the same
//! to it, and also shrink the window.
//!
//! When the law hears of a page depends on the kernel. In 2.6.0-test2 each page
//! was announced when the read loop came to it, after the pages before it had
//! arrived (`announce=page`); the mm4 tree announced all pages of a read before
//! its loop (`announce=request`, the default).
//!
//! What is absent when the read loop comes to it is read alone and waited for
//! before the next page is looked at. With readahead off this crawls page by
//! page; and when several reads of one file are under way at once, their
//! misses come in an order that looks random, so that readahead stays off.
//! That is the failure of source A, kept here to be measured:
//! [`demand`](ReadaheadPolicy::demand) always answers [`Demand::Page`].
//!
//! Source: KERNEL.md section 1.

use alloc::string::ToString;

use super::{
    Advice, Demand, Folio, PageView, ReadRequest, ReadaheadLimits, ReadaheadPolicy, window_pages,
};
use crate::policy::{Spec, SpecError};

/// The smallest window that an evicted page may shrink it to: 16 KiB.
const WINDOW_PAGES_MIN: i64 = 4;

/// The block of pages read around a fault, in pages.
const AROUND_PAGES: u64 = 16;

/// By how much the faults that missed may exceed those that hit before
/// reading around them is given up.
const FAULT_MISSES_MAX: i64 = 100;

/// The size of the next window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextWindow {
    /// No page was read yet.
    Unused,
    /// Maximally shrunk: readahead is off.
    Off,
    /// So many pages.
    Pages(i64),
}

/// The law `window`, for one open file.
#[derive(Clone, Debug)]
pub struct Window {
    window_pages_default: i64,
    window_pages_max: i64,
    /// Whether a page is announced when the read loop comes to it, not before.
    announces_singly: bool,
    start: u64,
    size: i64,
    ahead: Option<AheadWindow>,
    next: NextWindow,
    previous_page: Option<u64>,
    is_random: bool,
    is_sequential: bool,
    fault_misses: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AheadWindow {
    start: u64,
    size: i64,
}

impl Window {
    /// With windows of at most `window_pages_max` pages (the kernel's default: 32).
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
    /// A parameter is unknown, or a value can't be used.
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

    /// Whether readahead is off.
    pub(super) fn is_off(&self) -> bool {
        self.next == NextWindow::Off
    }

    /// The read loop tells of a page of the current read.
    pub(super) fn announce(&mut self, page: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
        if self.previous_page == Some(page) && self.next != NextWindow::Unused {
            return;
        }
        if self.is_off() || self.window_pages_max == 0 {
            return;
        }
        if self.next == NextWindow::Unused && page == 0 {
            self.next = NextWindow::Pages((self.window_pages_max / 2).max(1));
            return self.new_window(page, 0, ask, pages);
        }
        let original = self.next_pages();
        self.previous_page = Some(page);
        let is_hit = self.start <= page && page <= self.start + self.size as u64;
        let wanted = original + if is_hit { 2 } else { -2 };
        if wanted <= 0 {
            return self.turn_off();
        }
        self.next = NextWindow::Pages(wanted.min(self.window_pages_max));
        if self.start <= page && page < self.start + self.size as u64 {
            if self.ahead.is_none() {
                self.new_ahead(original, ask, pages);
            }
        } else if let Some(ahead) = self.ahead
            && ahead.start == page
        {
            // The first page of the ahead window: it becomes the current one,
            // and the next page will ask for the one after it.
            self.start = ahead.start;
            self.size = ahead.size;
            self.ahead = None;
            self.previous_page = Some(ahead.start);
        } else {
            self.new_window(page, original, ask, pages);
        }
    }

    /// The read came to a page that is absent though it was announced.
    pub(super) fn note_miss(&mut self, page: u64) {
        match self.next {
            NextWindow::Pages(next) => {
                self.next = NextWindow::Pages((next - 3).max(WINDOW_PAGES_MIN))
            }
            _ if self.window_pages_max == 0 => {}
            _ => {
                let follows = self.previous_page.is_some_and(|before| before + 1 == page);
                self.size = if follows { self.size + 1 } else { (self.size - 1).max(0) };
                if self.size >= self.window_pages_max {
                    let max = self.window_pages_max;
                    self.start = (page + 1).saturating_sub(max as u64);
                    (self.size, self.next, self.ahead) = (max, NextWindow::Pages(max), None);
                }
                self.previous_page = Some(page);
            }
        }
    }

    /// A fault touched a page of a mapping.
    pub(super) fn note_fault(&mut self, page: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
        if self.is_sequential {
            return self.announce(page, ask, pages);
        }
        if pages.is_cached(page) {
            self.fault_misses -= 1;
            return;
        }
        self.fault_misses += 1;
        if !self.is_random && self.fault_misses <= FAULT_MISSES_MAX {
            let first = page / AROUND_PAGES * AROUND_PAGES;
            submit(first, AROUND_PAGES as i64, ask, pages);
        }
    }

    pub(super) fn note_advice(&mut self, advice: Advice) {
        match advice {
            Advice::Normal => self.window_pages_max = self.window_pages_default,
            Advice::Sequential => self.window_pages_max = 2 * self.window_pages_default,
            Advice::Random => self.window_pages_max = 0,
            Advice::WillNeed | Advice::DontNeed => return,
        }
        self.is_random = advice == Advice::Random;
        self.is_sequential = advice == Advice::Sequential;
    }

    fn next_pages(&self) -> i64 {
        match self.next {
            NextWindow::Pages(pages) => pages,
            NextWindow::Unused | NextWindow::Off => 0,
        }
    }

    fn new_window(
        &mut self,
        page: u64,
        original: i64,
        ask: &ReadRequest,
        pages: &mut dyn PageView,
    ) {
        self.start = page;
        self.size = self.next_pages();
        self.ahead = None;
        self.previous_page = Some(page);
        let started = submit(self.start, self.size, ask, pages);
        self.judge(started, original);
    }

    fn new_ahead(&mut self, original: i64, ask: &ReadRequest, pages: &mut dyn PageView) {
        let ahead = AheadWindow { start: self.start + self.size as u64, size: self.next_pages() };
        self.ahead = Some(ahead);
        let started = submit(ahead.start, ahead.size, ask, pages);
        self.judge(started, original);
    }

    fn judge(&mut self, started: u64, original: i64) {
        if started > 0 {
            return;
        }
        if original > 1 {
            self.next = NextWindow::Pages(original - 1);
            if let Some(ahead) = &mut self.ahead {
                ahead.size = original - 1;
            }
        } else {
            self.turn_off();
        }
    }

    fn turn_off(&mut self) {
        self.next = NextWindow::Off;
        self.size = 0;
    }
}

/// Reads the absent ones of `size` pages from `first` on; gives their number.
pub(super) fn submit(first: u64, size: i64, ask: &ReadRequest, pages: &mut dyn PageView) -> u64 {
    if ask.is_congested {
        return 0;
    }
    pages.begin_window();
    let mut started = 0;
    for page in first..(first + size as u64).min(ask.file_pages()) {
        if pages.is_cached(page) {
            continue;
        }
        if !pages.add(Folio::holding(page, 0), false) {
            break;
        }
        started += 1;
    }
    started
}

impl ReadaheadPolicy for Window {
    fn read(&mut self, ask: &ReadRequest, pages: &mut dyn PageView) {
        if self.announces_singly {
            return;
        }
        for page in ask.request().clipped(ask.file_pages()).pages() {
            self.announce(page, ask, pages);
        }
    }

    fn fault(&mut self, page: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
        self.note_fault(page, ask, pages);
    }

    fn advise(&mut self, advice: Advice) {
        self.note_advice(advice);
    }

    fn demand(&mut self, page: u64, ask: &ReadRequest, pages: &mut dyn PageView) -> Demand {
        if self.announces_singly {
            self.announce(page, ask, pages);
        }
        if !pages.is_cached(page) {
            self.note_miss(page);
        }
        Demand::Page
    }

    fn is_on_credit(&self) -> bool {
        false
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::PageTable;
    use super::*;
    use crate::unit::{PAGE_BYTES, PageRange};
    use alloc::vec::Vec;

    /// What was added since the last call, neighbours joined.
    pub(in super::super) fn ranges(pages: &mut PageTable) -> Vec<PageRange> {
        let mut ranges: Vec<PageRange> = Vec::new();
        for (folio, _) in pages.take_added() {
            match ranges.last_mut() {
                Some(last) if last.end == folio.first => last.end = folio.range().end,
                _ => ranges.push(folio.range()),
            }
        }
        ranges
    }

    pub(in super::super) fn ask(first: u64, count: u64) -> ReadRequest {
        ReadRequest {
            offset: first * PAGE_BYTES,
            bytes: count * PAGE_BYTES,
            file_bytes: 10_000 * PAGE_BYTES,
            is_congested: false,
        }
    }

    /// What each read brings in: worked by hand from KERNEL.md section 1.
    #[test]
    fn golden_trajectory_of_a_sequential_reader_from_page_0() {
        let mut policy = Window::new(32);
        let mut pages = PageTable::default();
        let mut step = |page: u64| -> Vec<(u64, u64)> {
            policy.read(&ask(page, 1), &mut pages);
            ranges(&mut pages).iter().map(|range| (range.first, range.count())).collect()
        };
        // First use at page 0: a window of max/2 = 16.
        assert_eq!(step(0), [(0, 16)]);
        // A hit: next 16 + 2 = 18; no ahead window yet: one of 18 pages from 16.
        assert_eq!(step(1), [(16, 18)]);
        for page in 2..=15 {
            assert_eq!(step(page), []);
        }
        // Page 16 is the ahead window's first: it becomes current, without I/O.
        assert_eq!(step(16), []);
        // 14 more hits have brought next to the maximum of 32 long since.
        assert_eq!(step(17), [(34, 32)]);
    }

    #[test]
    fn a_first_read_elsewhere_than_at_page_0_turns_it_off_and_a_window_of_misses_turns_it_on() {
        let mut policy = Window::new(32);
        let mut pages = PageTable::default();
        policy.read(&ask(160, 16), &mut pages);
        assert!(policy.is_off());
        assert_eq!(ranges(&mut pages), []);
        // 16 pages missed: the first is no successor (size stays 0), 15 follow.
        (160..176).for_each(|page| policy.note_miss(page));
        assert_eq!(policy.size, 15);
        // The next record starts elsewhere: 15 - 1 + 15 = 29; the third reaches
        // 32 with its fifth page: 28, 29, 30, 31, 32.
        (480..496).for_each(|page| policy.note_miss(page));
        assert_eq!(policy.size, 29);
        (800..804).for_each(|page| policy.note_miss(page));
        assert!(policy.is_off());
        policy.note_miss(804);
        assert_eq!((policy.next, policy.start, policy.size), (NextWindow::Pages(32), 773, 32));
    }

    #[test]
    fn interleaved_misses_never_turn_it_on_again() {
        let mut policy = Window::new(32);
        let mut pages = PageTable::default();
        policy.read(&ask(160, 16), &mut pages);
        for step in 0..1000 {
            for reader in 0..8 {
                policy.note_miss(1000 * reader + step);
            }
        }
        assert!(policy.is_off());
    }

    #[test]
    fn congestion_and_cached_pages_shrink_the_window_alike() {
        let mut policy = Window::new(32);
        let mut pages = PageTable::default();
        policy.read(&ask(0, 1), &mut pages);
        let congested = ReadRequest { is_congested: true, ..ask(1, 1) };
        policy.read(&congested, &mut pages);
        // next was 16; nothing was started: 15, and the ahead window with it.
        assert_eq!(policy.next, NextWindow::Pages(15));
        assert_eq!(policy.ahead, Some(AheadWindow { start: 16, size: 15 }));
    }

    #[test]
    fn faults_read_the_aligned_block_around_until_a_hundred_misses_too_many() {
        let mut policy = Window::new(32);
        let mut pages = PageTable::default();
        policy.fault(37, &ask(37, 1), &mut pages);
        assert_eq!(ranges(&mut pages), [PageRange::new(32, 16)]);
        for miss in 0..100 {
            policy.fault(1000 + 50 * miss, &ask(0, 1), &mut pages);
        }
        ranges(&mut pages);
        policy.fault(9000, &ask(9000, 1), &mut pages);
        assert_eq!(ranges(&mut pages), []);
        let mut random = Window::new(32);
        random.advise(Advice::Random);
        random.fault(9100, &ask(9100, 1), &mut pages);
        assert_eq!(ranges(&mut pages), []);
    }
}
