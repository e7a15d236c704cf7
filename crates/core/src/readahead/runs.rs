//! `runs`: learns from faults how long the runs of pages are that a program
//! touches, and reads such a run with one request. Made for mapped files.
//!
//! A program that maps a file shows page after page what it wants, and only by
//! faults: pages that are mapped tell nothing about their use. The ideal: a
//! program that takes slices of 64 KiB at random places costs one read of 64
//! KiB a slice; one that hops from page to page, a page each; one that goes
//! through the file, large windows ahead of need.
//!
//! The law in words. A *run* starts where a page is touched that nothing
//! foretold, and goes on as far as pages are touched in order. The last 16
//! runs are remembered. A fault on an absent page:
//!
//! - *right behind a remembered run's window* goes on with it. How much more to
//!   read: what runs that came as far as this one usually still had before
//!   them; if none came so far, as much again as the run has;
//! - *anywhere else* starts a run. How much to read from there on: the usual
//!   length of a run; 4 pages while nothing is known.
//!
//! *Usual* is the length with the smallest cost over the remembered runs,
//! where each page read in vain costs 1, and each run that would need another
//! request costs 32: a request is worth 128 KiB, about what it takes to pay its
//! latency back on disks, solid-state drives and networks alike.
//!
//! The readahead mark is the tripwire: a marked page is not mapped with its
//! neighbours, so its touch comes here. The last page of each window is marked,
//! and tells that the run was used whole. When it was not touched, the run's
//! length is not known, and the next 4 runs are read with every page marked, as
//! the first 4 are: that costs a fault a page, and gives their lengths exactly.
//!
//! A run that has outgrown all others, and 64 KiB, is a *stream*: the middle of
//! its window is marked too, and there the next window is read, twice as
//! large, up to the largest.
//!
//! Advice: `sequential` takes every run for a stream from its first page;
//! `random` reads one page where nothing is known yet, and makes no streams.
//!
//! Our own. Its constants were chosen with `examples/mapping_speed.rs` on a
//! device of one millisecond.

use alloc::collections::VecDeque;

use super::{Advice, Ask, Folio, Pages, ReadaheadLaw, ReadaheadLimits, window_pages};
use crate::law::{Spec, SpecError};
use crate::unit::PageRange;

/// How many runs are remembered: enough for several threads, each with a run
/// of its own, beside what is known of earlier ones.
const RUNS: usize = 16;
/// What a request costs, in pages that it could have read instead.
const REQUEST_PAGES: u64 = 32;
/// The window where nothing is known.
const FIRST_PAGES: u64 = 4;
/// How many runs are watched page by page when lengths aren't known.
const WATCHED_RUNS: u32 = 4;
/// A run shorter than this is no stream.
const STREAM_PAGES: u64 = 16;

/// The law `runs`, for one open file.
#[derive(Clone, Debug)]
pub struct Runs {
    window_pages_max: u64,
    advice: Advice,
    /// The newest is last.
    runs: VecDeque<Run>,
    /// How many more runs are watched page by page.
    watched_left: u32,
}

/// Pages that were touched in order.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u64,
    /// The page after the last that is known to have been touched: exclusive.
    touched_end: u64,
    /// The page after the last that was read for it: exclusive.
    window_end: u64,
    /// The size of its last window.
    window_pages: u64,
    /// The page whose touch reads the next window.
    trigger: Option<u64>,
    is_watched: bool,
}

impl Run {
    fn pages(&self) -> u64 {
        self.touched_end - self.first
    }

    /// Whether `pages` is its length, not only the least that it can be.
    fn is_exact(&self) -> bool {
        self.is_watched || self.touched_end == self.window_end
    }
}

impl Runs {
    /// With windows of at most `window_pages_max` pages.
    pub fn new(window_pages_max: u64) -> Runs {
        Runs {
            window_pages_max,
            advice: Advice::Normal,
            runs: VecDeque::with_capacity(RUNS),
            watched_left: WATCHED_RUNS,
        }
    }

    /// Parses `runs,read_ahead_kb=KIB`.
    ///
    /// # Errors
    /// A parameter is unknown, or a value can't be used.
    pub fn from_spec(spec: &Spec, limits: &ReadaheadLimits) -> Result<Runs, SpecError> {
        spec.only(&["read_ahead_kb"])?;
        Ok(Runs::new(window_pages(spec, limits)?))
    }

    /// `touched` was touched, and `absent` is the first page of it that is not there.
    fn touch(&mut self, touched: PageRange, absent: Option<u64>, ask: &Ask, pages: &mut dyn Pages) {
        let page = touched.first;
        let found = self.runs.iter().rposition(|run| run.first <= page && page <= run.window_end);
        match (found, absent) {
            (Some(at), Some(absent)) if absent >= self.runs[at].window_end => {
                self.go_on(at, touched, ask, pages);
            }
            (Some(at), None) => self.note_use(at, touched, ask, pages),
            // Also where a page of a window was given up before it was touched.
            (_, Some(_)) => self.begin(touched, ask, pages),
            (None, None) => {}
        }
    }

    fn begin(&mut self, touched: PageRange, ask: &Ask, pages: &mut dyn Pages) {
        if self.runs.back().is_some_and(|run| !run.is_exact()) {
            self.watched_left = WATCHED_RUNS;
        }
        if self.runs.len() == RUNS {
            self.runs.pop_front();
        }
        let is_watched = self.watched_left > 0;
        self.watched_left -= u32::from(is_watched);
        let is_stream = self.advice == Advice::Sequential;
        let unknown = match self.advice {
            Advice::Sequential => self.window_pages_max,
            Advice::Random => 1,
            _ => FIRST_PAGES,
        };
        let usual = if is_stream { None } else { self.usual_after(0) };
        let window_pages = usual.unwrap_or(unknown).min(self.window_pages_max);
        self.runs.push_back(Run {
            first: touched.first,
            touched_end: touched.end,
            window_end: touched.first,
            window_pages: window_pages.max(touched.count()),
            trigger: None,
            is_watched,
        });
        self.read_window(self.runs.len() - 1, is_stream, ask, pages);
    }

    /// The run goes on behind its window.
    fn go_on(&mut self, at: usize, touched: PageRange, ask: &Ask, pages: &mut dyn Pages) {
        let come = self.runs[at].window_end - self.runs[at].first;
        let usual = self.usual_after(come);
        let is_stream = usual.is_none()
            && match self.advice {
                Advice::Random => false,
                Advice::Sequential => true,
                _ => come >= STREAM_PAGES,
            };
        let run = &mut self.runs[at];
        run.touched_end = run.touched_end.max(touched.end);
        run.window_pages = usual.unwrap_or(come).clamp(1, self.window_pages_max.max(1));
        let missing = touched.end.saturating_sub(run.window_end);
        run.window_pages = run.window_pages.max(missing);
        self.read_window(at, is_stream, ask, pages);
    }

    /// Pages of the window were touched, and were there.
    fn note_use(&mut self, at: usize, touched: PageRange, ask: &Ask, pages: &mut dyn Pages) {
        for page in touched.pages() {
            if let Some(folio) = pages.marked(page) {
                pages.clear_mark(folio);
            }
        }
        let run = &mut self.runs[at];
        run.touched_end = run.touched_end.max(touched.end.min(run.window_end));
        if run.trigger.is_some_and(|trigger| touched.contains(trigger)) && !ask.is_congested {
            run.trigger = None;
            run.window_pages = (run.window_pages * 2).min(self.window_pages_max);
            self.read_window(at, true, ask, pages);
        }
    }

    /// Reads the absent pages of the run's next window, which marks as the law says.
    fn read_window(&mut self, at: usize, is_stream: bool, ask: &Ask, pages: &mut dyn Pages) {
        let run = &mut self.runs[at];
        let window = PageRange::new(run.window_end, run.window_pages).clipped(ask.file_pages());
        let middle = window.first + window.count() / 2;
        let is_stream = is_stream && window.count() > 1;
        run.trigger = is_stream.then_some(middle);
        run.window_end = window.end.max(run.window_end);
        let is_watched = run.is_watched && !is_stream;
        for page in window.pages() {
            let is_marked = is_watched || page + 1 == window.end || (is_stream && page == middle);
            if !pages.is_cached(page) && !pages.add(Folio::holding(page, 0), is_marked) {
                // Memory is short: the run has no more than this.
                run.window_end = page.max(run.touched_end);
                break;
            }
        }
    }

    /// How much more is usual for a run that has come `pages` far; `None` when
    /// no remembered one came farther.
    fn usual_after(&self, pages: u64) -> Option<u64> {
        let rests = || {
            let exact = self.runs.iter().filter(|run| run.is_exact());
            exact
                .map(|run| run.pages())
                .filter(move |&length| length > pages)
                .map(move |length| length - pages)
        };
        let cost = |read: u64| -> u64 {
            rests().map(|rest| if rest > read { REQUEST_PAGES } else { read - rest }).sum()
        };
        rests().min_by_key(|&read| (cost(read), read))
    }
}

impl ReadaheadLaw for Runs {
    fn read(&mut self, ask: &Ask, pages: &mut dyn Pages) {
        let touched = ask.request().clipped(ask.file_pages());
        if touched.is_empty() {
            return;
        }
        let absent = touched.pages().find(|&page| !pages.is_cached(page));
        self.touch(touched, absent, ask, pages);
    }

    fn fault(&mut self, page: u64, ask: &Ask, pages: &mut dyn Pages) {
        if page < ask.file_pages() {
            let absent = (!pages.is_cached(page)).then_some(page);
            self.touch(PageRange::new(page, 1), absent, ask, pages);
        }
    }

    fn advise(&mut self, advice: Advice) {
        if !matches!(advice, Advice::WillNeed | Advice::DontNeed) {
            self.advice = advice;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::super::PageTable;
    use super::*;

    /// A program with a mapped file: pages around a fault that are cached and
    /// not marked are mapped with it, and touching those tells nobody.
    struct Program {
        law: Runs,
        pages: PageTable,
        mapped: BTreeSet<u64>,
        /// Each request, as first page and count.
        requests: Vec<(u64, u64)>,
        faults: u32,
    }

    const FILE_PAGES: u64 = 1 << 20;

    impl Program {
        fn new(advice: Advice) -> Program {
            let mut law = Runs::new(32);
            law.advise(advice);
            let (pages, mapped) = (PageTable::default(), BTreeSet::new());
            Program { law, pages, mapped, requests: Vec::new(), faults: 0 }
        }

        fn touch(&mut self, page: u64) {
            if self.mapped.contains(&page) {
                return;
            }
            self.faults += 1;
            let ask = Ask {
                offset: page * 4096,
                bytes: 1,
                file_bytes: FILE_PAGES * 4096,
                is_congested: false,
            };
            self.law.fault(page, &ask, &mut self.pages);
            if !self.pages.is_cached(page) {
                self.pages.add(Folio::holding(page, 0), false);
            }
            for (folio, _) in self.pages.take_added() {
                match self.requests.last_mut() {
                    Some((first, count)) if *first + *count == folio.first => *count += 1,
                    _ => self.requests.push((folio.first, 1)),
                }
            }
            self.mapped.insert(page);
            let around =
                |page: &u64| self.pages.is_cached(*page) && self.pages.marked(*page).is_none();
            self.mapped.extend((page + 1..).take_while(around));
        }

        fn slice(&mut self, first: u64, count: u64) {
            (first..first + count).for_each(|page| self.touch(page));
        }
    }

    /// The golden trajectory. The first slice is found out window by window (4,
    /// as much again, as much again); from the second on a slice is one request.
    #[test]
    fn slices_cost_one_request_each_from_the_second_on() {
        let mut program = Program::new(Advice::Normal);
        let places = [1000, 77_000, 5_000, 333, 90_100, 40_016, 12_345, 60_000];
        places.into_iter().for_each(|first| program.slice(first, 16));
        assert_eq!(
            program.requests,
            [
                (1000, 16),
                (77_000, 16),
                (5_000, 16),
                (333, 16),
                (90_100, 16),
                (40_016, 16),
                (12_345, 16),
                (60_000, 16)
            ]
        );
        // 4 slices with a fault a page; then one at the start and one at the end.
        assert_eq!(program.faults, 4 * 16 + 4 * 2);
    }

    #[test]
    fn the_first_slice_takes_windows_of_4_4_and_8() {
        let mut law = Runs::new(32);
        let mut pages = PageTable::default();
        let mut windows = Vec::new();
        for page in 1000..1016 {
            let ask =
                Ask { offset: page * 4096, bytes: 1, file_bytes: 1 << 32, is_congested: false };
            law.fault(page, &ask, &mut pages);
            windows.extend(Some(pages.take_added().len()).filter(|&count| count > 0));
        }
        assert_eq!(windows, [4, 4, 8]);
    }

    #[test]
    fn single_pages_are_soon_read_alone() {
        let mut program = Program::new(Advice::Normal);
        (0..20).for_each(|at| program.touch(5_000 * at + 7));
        assert_eq!(program.requests[0], (7, 4), "nothing is known");
        assert!(program.requests[1..].iter().all(|&(_, count)| count == 1));
    }

    /// Half of the runs have 1 page, half 16. Always 16 wastes 15 pages a short
    /// run, always 1 costs another request (32) a long one: 16 is cheaper.
    #[test]
    fn a_request_is_worth_32_pages() {
        let mut program = Program::new(Advice::Normal);
        for at in 0..32 {
            program.slice(5_000 * at + 7, if at % 2 == 0 { 1 } else { 16 });
        }
        assert_eq!(program.requests.last(), Some(&(5_000 * 31 + 7, 16)));
        // With 60 pages in place of 16 the waste would be 59: they take two requests.
        let mut program = Program::new(Advice::Normal);
        for at in 0..32 {
            program.slice(5_000 * at + 7, if at % 2 == 0 { 1 } else { 60 });
        }
        assert!(program.requests.contains(&(5_000 * 30 + 7, 1)), "{:?}", program.requests);
    }

    #[test]
    fn a_stream_is_read_ahead_in_windows_that_double_up_to_the_largest() {
        let mut law = Runs::new(32);
        let mut pages = PageTable::default();
        let mut windows = Vec::new();
        for page in 0..160 {
            let ask =
                Ask { offset: page * 4096, bytes: 1, file_bytes: 1 << 32, is_congested: false };
            let is_there = pages.is_cached(page);
            law.fault(page, &ask, &mut pages);
            let added = pages.take_added();
            if let Some((folio, _)) = added.first() {
                windows.push((page, folio.first, added.len(), is_there));
            }
        }
        let expected = [
            (0, 0, 4, false),
            (4, 4, 4, false),
            (8, 8, 8, false),
            (16, 16, 16, false),
            // From here on ahead of need, in the middle of the window before.
            (24, 32, 32, true),
            (48, 64, 32, true),
            (80, 96, 32, true),
            (112, 128, 32, true),
            (144, 160, 32, true),
        ];
        assert_eq!(windows, expected);
    }

    #[test]
    fn runs_that_become_shorter_are_watched_and_learnt_anew() {
        let mut program = Program::new(Advice::Normal);
        (0..20).for_each(|at| program.slice(5_000 * at, 16));
        program.requests.clear();
        (20..60).for_each(|at| program.slice(5_000 * at, 2));
        assert_eq!(program.requests[0].1, 16);
        assert_eq!(program.requests[39].1, 2);
    }

    #[test]
    fn random_advice_begins_with_a_page_and_still_learns_slices() {
        let mut program = Program::new(Advice::Random);
        program.touch(9);
        program.slice(5_000, 16);
        program.slice(15_000, 16);
        program.slice(25_000, 16);
        assert_eq!(program.requests[0], (9, 1));
        assert_eq!(program.requests.last(), Some(&(25_000, 16)));
    }

    #[test]
    fn sequential_advice_starts_with_the_largest_window() {
        let mut program = Program::new(Advice::Sequential);
        program.touch(100);
        assert_eq!(program.requests, [(100, 32)]);
    }
}
