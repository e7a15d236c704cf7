//! `runs`: learns from faults how long the runs of pages are that a program
//! touches, and reads such a run with few requests. Made for mapped files.
//!
//! A program that maps a file shows page after page what it wants, and only by
//! faults: pages that are mapped tell nothing about their use. The ideal: a
//! program that takes slices of 64 KiB at random places costs one read of 64
//! KiB a slice; one that hops from page to page, a page each; one that takes
//! tensors of 1 to 6 MiB waits once or twice a tensor; one that goes through
//! the file, large windows ahead of need.
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
//! request costs what a request of this device does: so many pages as could be
//! read while the program waits for it, and 32 at least (128 KiB, about what
//! pays the latency back on disks, solid-state drives and networks alike).
//!
//! The readahead mark is the tripwire: a marked page is not mapped with its
//! neighbours, so its touch comes here. The last page of each window is marked,
//! and tells that the run was used whole. When it was not touched, the run's
//! length is not known. While fewer than 4 of the newest 8 lengths are known,
//! runs are *watched*: their pages are marked one by one at first, then 8 to
//! each doubling of the distance from where the run began, so that a length is
//! known to an eighth, and one below 64 KiB exactly.
//!
//! The middle of a window is marked where some remembered run went on behind its end,
//! or where all were outgrown and the run has 64 KiB: then it is a *stream*. There the
//! next window is read, for which nobody waits: as much as is usual, which may
//! be nothing; of a stream as much as before, and twice that if its reader had to wait
//! for a page since, but never more ahead than what was touched.
//!
//! A window is no larger than 16 times what costs as much as a request (the
//! device is then busy with bytes for 94 % of the time), than an eighth of the
//! memory, and than the largest that is allowed.
//!
//! Advice: `sequential` takes every run for a stream from its first page;
//! `random` reads one page where nothing is known yet, and makes no streams.
//!
//! Our own. Its constants were chosen with `examples/mapping_speed.rs` and
//! `bench/python_tensors.py` on a device of one millisecond.

use alloc::collections::VecDeque;

use super::{Advice, Ask, Folio, Pages, ReadaheadLaw, ReadaheadLimits, window_pages};
use crate::law::{Spec, SpecError};
use crate::unit::PageRange;

/// How many runs are remembered: enough for several threads, each with a run
/// of its own, beside what is known of earlier ones.
const RUNS: usize = 16;
/// What a request costs at least, in pages that it could have read instead.
const REQUEST_PAGES: u64 = 32;
/// The window where nothing is known.
const FIRST_PAGES: u64 = 4;
/// Of so many of the newest runs …
const RECENT_RUNS: usize = 8;
/// … so many lengths must be known; else runs are watched.
const KNOWN_RUNS: usize = 4;
/// A watched run is marked at so many places from one distance to its double.
const MARKS_PER_DOUBLING: u64 = 8;
/// A run shorter than this is no stream.
const STREAM_PAGES: u64 = 16;
/// Windows are at most so many times what costs as much as a request.
const WINDOW_PER_REQUEST_COST: u64 = 16;
/// … and have at most this part of the memory: several readers take turns in it.
const WINDOW_MEMORY_PART: u64 = 8;

/// The law `runs`, for one open file.
#[derive(Clone, Debug)]
pub struct Runs {
    window_pages_max: u64,
    advice: Advice,
    /// The newest is last.
    runs: VecDeque<Run>,
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
    /// Whether its reader had to wait since the last window was read.
    was_late: bool,
}

impl Run {
    /// How far it has come with what was read for it.
    fn come(&self) -> u64 {
        self.window_end - self.first
    }

    fn touched(&self) -> u64 {
        self.touched_end - self.first
    }

    /// Its length in pages; `None` where only the least is known that it can be.
    ///
    /// Of a watched run that ended between two marks it is the most.
    fn length(&self) -> Option<u64> {
        if self.touched_end == self.window_end {
            return Some(self.touched());
        }
        let untouched = (self.touched()..self.come()).find(|&distance| is_watch_mark(distance));
        self.is_watched.then(|| untouched.unwrap_or(self.come()))
    }
}

/// Whether a watched run is marked so many pages behind its first.
fn is_watch_mark(distance: u64) -> bool {
    let doubling = 1 << distance.max(1).ilog2();
    distance.is_multiple_of((doubling / MARKS_PER_DOUBLING).max(1))
}

impl Runs {
    /// With windows of at most `window_pages_max` pages.
    pub fn new(window_pages_max: u64) -> Runs {
        Runs { window_pages_max, advice: Advice::Normal, runs: VecDeque::with_capacity(RUNS) }
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
        let recent = self.runs.iter().rev().take(RECENT_RUNS);
        let is_watched = recent.filter_map(Run::length).count() < KNOWN_RUNS;
        let unknown = match self.advice {
            Advice::Sequential => u64::MAX,
            Advice::Random => 1,
            _ => FIRST_PAGES,
        };
        if self.runs.len() == RUNS {
            self.runs.pop_front();
        }
        self.runs.push_back(Run {
            first: touched.first,
            touched_end: touched.end,
            window_end: touched.first,
            window_pages: 0,
            trigger: None,
            is_watched,
            was_late: true,
        });
        let at = self.runs.len() - 1;
        let is_sequential = self.advice == Advice::Sequential;
        let usual = if is_sequential { None } else { self.usual_after(at, pages) };
        self.read_window(at, usual.unwrap_or(unknown).max(touched.count()), ask, pages);
    }

    /// The run goes on behind its window, and its reader waits.
    fn go_on(&mut self, at: usize, touched: PageRange, ask: &Ask, pages: &mut dyn Pages) {
        let come = self.runs[at].come();
        let usual = self.usual_after(at, pages);
        let run = &mut self.runs[at];
        run.touched_end = run.touched_end.max(touched.end);
        run.was_late = true;
        let missing = touched.end.saturating_sub(run.window_end);
        self.read_window(at, usual.unwrap_or(come).max(missing).max(1), ask, pages);
    }

    /// Pages of the window were touched, and are there or on their way.
    fn note_use(&mut self, at: usize, touched: PageRange, ask: &Ask, pages: &mut dyn Pages) {
        for page in touched.pages() {
            if let Some(folio) = pages.marked(page) {
                pages.clear_mark(folio);
            }
        }
        let run = &mut self.runs[at];
        run.touched_end = run.touched_end.max(touched.end.min(run.window_end));
        run.was_late |= !pages.is_filled(touched.first);
        if run.trigger.is_some_and(|trigger| touched.contains(trigger)) && !ask.is_congested {
            run.trigger = None;
            let size = self.next_ahead(at, pages);
            if size > 0 {
                self.runs[at].was_late = false;
                self.read_window(at, size, ask, pages);
            }
        }
    }

    /// How much to read behind the window of a run whose reader is in its middle.
    fn next_ahead(&self, at: usize, pages: &mut dyn Pages) -> u64 {
        let run = self.runs[at];
        if !self.is_stream(at, run.touched()) {
            return self.usual_ahead(at, pages);
        }
        let wanted = if run.was_late { 2 * run.window_pages } else { run.window_pages };
        match self.advice {
            Advice::Sequential => wanted,
            _ => wanted.min(run.touched().saturating_sub(run.window_end - run.touched_end)),
        }
    }

    /// Reads the absent ones of the run's next `size` pages, and marks as the law says.
    fn read_window(&mut self, at: usize, size: u64, ask: &Ask, pages: &mut dyn Pages) {
        let size = size.min(self.size_max(pages).max(ask.request().count()));
        let run = self.runs[at];
        let window = PageRange::new(run.window_end, size).clipped(ask.file_pages());
        let goes_on = self.is_stream(at, run.come())
            || !self.is_outgrown(at, window.end.saturating_sub(run.first));
        let middle = window.first + window.count() / 2;
        let run = &mut self.runs[at];
        run.trigger = (goes_on && window.count() > 1).then_some(middle);
        run.window_pages = size;
        run.window_end = window.end.max(run.window_end);
        for page in window.pages() {
            let is_marked = page + 1 == window.end
                || run.trigger == Some(page)
                || (run.is_watched && is_watch_mark(page - run.first));
            if !pages.is_cached(page) && !pages.add(Folio::holding(page, 0), is_marked) {
                // Memory is short: the run has no more than this.
                run.window_end = page.max(run.touched_end);
                break;
            }
        }
    }

    /// The largest window in pages.
    fn size_max(&self, pages: &mut dyn Pages) -> u64 {
        let device = &pages.evidence().device;
        let by_cost = WINDOW_PER_REQUEST_COST * device.estimate.request_cost_pages();
        let by_memory = device.memory_pages / WINDOW_MEMORY_PART;
        self.window_pages_max.min(by_cost.max(REQUEST_PAGES)).min(by_memory.max(1))
    }

    /// Whether the run, which came so far, is a stream.
    fn is_stream(&self, at: usize, come: u64) -> bool {
        match self.advice {
            Advice::Random => false,
            Advice::Sequential => true,
            _ => come >= STREAM_PAGES && self.is_outgrown(at, come),
        }
    }

    /// The known lengths of the runs but the one that is asked about.
    fn lengths(&self, at: usize) -> impl Iterator<Item = u64> {
        let others = self.runs.iter().enumerate().filter(move |&(other, _)| other != at);
        others.filter_map(|(_, run)| run.length())
    }

    /// Whether no other remembered run came farther than `pages`.
    fn is_outgrown(&self, at: usize, pages: u64) -> bool {
        self.lengths(at).all(|length| length <= pages)
    }

    /// How much more is usual for a run that goes on behind its window; `None` when
    /// no remembered one came farther.
    fn usual_after(&self, at: usize, pages: &mut dyn Pages) -> Option<u64> {
        let come = self.runs[at].come();
        let rests = self.lengths(at).filter(|&length| length > come).map(|length| length - come);
        rests.min_by_key(|&size| (self.cost(at, come, size, pages), size))
    }

    /// How much more is usual for a run that may yet end within its window; 0 when it
    /// had better be waited for.
    fn usual_ahead(&self, at: usize, pages: &mut dyn Pages) -> u64 {
        let run = self.runs[at];
        let sizes = self.lengths(at).map(|length| length.saturating_sub(run.come()));
        sizes.min_by_key(|&size| (self.cost(at, run.touched(), size, pages), size)).unwrap_or(0)
    }

    /// What a window of so many pages behind the run's would have cost over the remembered
    /// runs that are longer than `come`, in pages.
    fn cost(&self, at: usize, come: u64, size: u64, pages: &mut dyn Pages) -> u64 {
        let estimate = &pages.evidence().device.estimate;
        let request_pages = estimate.request_cost_pages().max(REQUEST_PAGES);
        let window_end = self.runs[at].come();
        let rests = self
            .lengths(at)
            .filter(|&length| length > come)
            .map(|length| length.saturating_sub(window_end));
        rests.map(|rest| if rest > size { request_pages } else { size - rest }).sum()
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

    /// Nothing cached, and 1 GiB of memory.
    fn memory() -> PageTable {
        let mut pages = PageTable::default();
        pages.device_evidence().memory_pages = 1 << 18;
        pages
    }

    /// Touches page after page; gives for each window the page that was touched, the
    /// window's first page and its size.
    fn windows(
        mut law: Runs,
        touched: std::ops::Range<u64>,
        pages: &mut PageTable,
    ) -> Vec<(u64, u64, u64)> {
        let mut windows = Vec::new();
        for page in touched {
            let ask =
                Ask { offset: page * 4096, bytes: 1, file_bytes: 1 << 32, is_congested: false };
            law.fault(page, &ask, pages);
            let added = pages.take_added();
            windows.extend(added.first().map(|(folio, _)| (page, folio.first, added.len() as u64)));
        }
        windows
    }

    impl Program {
        fn new(advice: Advice) -> Program {
            let mut law = Runs::new(1024);
            law.advise(advice);
            let (pages, mapped) = (memory(), BTreeSet::new());
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
        let windows = windows(Runs::new(32), 1000..1016, &mut memory());
        assert_eq!(windows, [(1000, 1000, 4), (1004, 1004, 4), (1008, 1008, 8)]);
    }

    #[test]
    fn single_pages_are_soon_read_alone() {
        let mut program = Program::new(Advice::Normal);
        (0..20).for_each(|at| program.touch(5_000 * at + 7));
        assert_eq!(program.requests[0], (7, 4), "nothing is known");
        assert!(program.requests[1..].iter().all(|&(_, count)| count == 1));
    }

    /// Half of the runs have 1 page, half 16. Always 16 wastes 15 pages a short
    /// run, always 1 costs another request a long one. Nothing is measured of the device: 1 ms
    /// for a request at 500 MB/s, which are 122 pages.
    #[test]
    fn a_request_is_worth_what_the_device_could_read_meanwhile() {
        let mut program = Program::new(Advice::Normal);
        for at in 0..32 {
            program.slice(5_000 * at + 7, if at % 2 == 0 { 1 } else { 16 });
        }
        assert_eq!(program.requests.last(), Some(&(5_000 * 31 + 7, 16)));
        // With 200 pages in place of 16 the waste would be 199: they take another request.
        let mut program = Program::new(Advice::Normal);
        for at in 0..32 {
            program.slice(5_000 * at + 7, if at % 2 == 0 { 1 } else { 200 });
        }
        assert!(program.requests.contains(&(5_000 * 30 + 7, 1)), "{:?}", program.requests);
    }

    /// Three of four runs have 16 pages, one has 512. Always 512 wastes 3 × 496, always 16 costs
    /// 122; the rest of 496 comes in one.
    #[test]
    fn a_long_run_among_short_ones_takes_two_requests() {
        let mut program = Program::new(Advice::Normal);
        for at in 0..32 {
            program.slice(5_000 * at, if at % 4 == 3 { 512 } else { 16 });
        }
        program.requests.clear();
        program.faults = 0;
        program.slice(200_000, 16);
        program.slice(300_000, 512);
        assert_eq!(program.requests, [(200_000, 16), (300_000, 512)]);
        // The short one: its first page, the middle, where a longer run may be foreseen, and the
        // last. The long one: those, the page behind them, and its last.
        assert_eq!(program.faults, 3 + 5);
    }

    /// By the rule: 16 marks to page 16, then one in two up to 32, in four up to 64, …
    #[test]
    fn a_watched_run_is_marked_eight_times_a_doubling() {
        let marks: Vec<u64> = (0..300).filter(|&distance| is_watch_mark(distance)).collect();
        assert_eq!(marks[..16], (0..16).collect::<Vec<u64>>());
        assert_eq!(marks[16..24], [16, 18, 20, 22, 24, 26, 28, 30]);
        assert_eq!(marks[40..48], [128, 144, 160, 176, 192, 208, 224, 240]);
    }

    /// Nothing ever waits after page 16: what was enough stays.
    #[test]
    fn a_stream_whose_reader_never_waits_keeps_its_window() {
        let windows = windows(Runs::new(32), 0..100, &mut memory());
        let expected = [
            (0, 0, 4),
            (4, 4, 4),
            (8, 8, 8),
            (16, 16, 16),
            // In the middle: 32 are wanted, since it waited at 16; 25 are behind, 7 still ahead.
            (24, 32, 18),
            (41, 50, 18),
            (59, 68, 18),
            (77, 86, 18),
            (95, 104, 18),
        ];
        assert_eq!(windows, expected);
    }

    /// Its pages never come in time.
    #[test]
    fn a_stream_whose_reader_waits_doubles_its_window_up_to_the_largest() {
        let mut pages = memory();
        pages.set_filled(false);
        let windows = windows(Runs::new(64), 0..250, &mut pages);
        let expected = [
            (0, 0, 4),
            (4, 4, 4),
            (8, 8, 8),
            (16, 16, 16),
            (24, 32, 18),
            // 36 are wanted; 42 are behind, 8 ahead.
            (41, 50, 34),
            // 68 are wanted, 64 is the most; 68 are behind, 16 ahead.
            (67, 84, 52),
            // 111 are behind, 25 ahead: the most.
            (110, 136, 64),
            (168, 200, 64),
            (232, 264, 64),
        ];
        assert_eq!(windows, expected);
    }

    /// A device of which nothing is known costs 122 pages a request: 16 times that. An eighth
    /// of the memory, where that is less.
    #[test]
    fn windows_are_bounded_by_the_cost_of_a_request_and_by_memory() {
        for (memory_pages, most) in [(1 << 18, 122 * 16), (1 << 12, 1 << 9)] {
            let mut pages = memory();
            pages.device_evidence().memory_pages = memory_pages;
            let mut law = Runs::new(1 << 20);
            law.advise(Advice::Sequential);
            assert_eq!(windows(law, 100..101, &mut pages), [(100, 100, most)]);
        }
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
        assert_eq!(program.requests, [(100, 1024)]);
    }
}
