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
//! foretold, and goes on as far as pages are touched in order, up or down. The last 16
//! runs are remembered. A fault on an absent page:
//!
//! - *right behind a remembered run's window* goes on with it. How much more to
//!   read: what runs that came as far as this one usually still had before
//!   them; if none came so far, as much again as the run has;
//! - *right before a run that has not come any farther* turns that run around: it goes the other
//!   way from where it began, and goes on;
//! - *anywhere else* starts a run. How much to read from there on: the usual
//!   length of a run; 4 pages while nothing is known. It is taken to go down if more of the
//!   remembered runs did than went up, of those that have shown it.
//!
//! Down is the mirror image of up in all that is said here: programs go down
//! through memory that they don't know to be a file, as `memcpy` of the GNU C library does
//! with 512 KiB and more whose source and destination lie alike within a page.
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
//! length is not known. (Where the end of a window was there before, the mark is on the last
//! page that was read for it.) While fewer than 4 of the newest 8 lengths are known,
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
//! Our own. Its constants were chosen with `crates/peers/benches/mapping_speed.rs` and
//! `bench/python_tensors.py` on a device of one millisecond.

use alloc::collections::VecDeque;

use run::{TouchOrder, TouchedRun, is_length_mark};

use super::{Advice, Folio, PageView, ReadRequest, ReadaheadLimits, ReadaheadPolicy, window_pages};
use crate::policy::{Spec, SpecError};
use crate::unit::PageRange;

mod run;

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
const KNOWN_LENGTHS_MIN: usize = 4;
/// A run shorter than this is no stream.
const STREAM_PAGES: u64 = 16;
/// Windows are at most so many times what costs as much as a request.
const WINDOW_PER_REQUEST_COST: u64 = 16;
/// … and have at most this part of the memory: several readers take turns in it.
const WINDOW_MEMORY_DIVISOR: u64 = 8;

/// The law `runs`, for one open file.
#[derive(Clone, Debug)]
pub struct RunsPolicy {
    window_pages_max: u64,
    advice: Advice,
    /// The newest is last.
    runs: VecDeque<TouchedRun>,
}

impl RunsPolicy {
    /// With windows of at most `window_pages_max` pages.
    pub fn new(window_pages_max: u64) -> RunsPolicy {
        RunsPolicy { window_pages_max, advice: Advice::Normal, runs: VecDeque::with_capacity(RUNS) }
    }

    /// Parses `runs,read_ahead_kb=KIB`.
    ///
    /// # Errors
    /// A parameter is unknown, or a value can't be used.
    pub fn from_spec(spec: &Spec, limits: &ReadaheadLimits) -> Result<RunsPolicy, SpecError> {
        spec.only(&["read_ahead_kb"])?;
        Ok(RunsPolicy::new(window_pages(spec, limits)?))
    }

    /// These pages were touched.
    fn touch(&mut self, touched: PageRange, ask: &ReadRequest, pages: &mut dyn PageView) {
        let found = self.runs.iter().rposition(|run| {
            let place = run.way.along(touched).first;
            run.first <= place && place <= run.window_end
        });
        let way = found.map_or(TouchOrder::Up, |at| self.runs[at].way);
        let mut places = way.along(touched).pages();
        let absent = places.find(|&place| !pages.is_cached(way.at(place)));
        match (found, absent) {
            (Some(at), Some(absent)) if absent >= self.runs[at].window_end => {
                self.go_on(at, touched, ask, pages);
            }
            (Some(at), None) => self.note_use(at, touched, ask, pages),
            // Also where a page of a window was given up before it was touched.
            (_, Some(_)) => match self.turned(touched) {
                Some(at) => {
                    self.runs[at].turn();
                    self.go_on(at, touched, ask, pages);
                }
                None => self.begin(touched, ask, pages),
            },
            (None, None) => {}
        }
    }

    /// The run that has been touched no more than now, and right behind, seen from the other way.
    fn turned(&self, touched: PageRange) -> Option<usize> {
        self.runs.iter().rposition(|run| {
            let is_new = run.touched() <= touched.count();
            is_new && run.way.back().along(touched).first == run.touched_back().end
        })
    }

    /// The way that a run is taken to go of which nothing is known.
    fn usual_direction(&self) -> TouchOrder {
        let ways = self.runs.iter().filter(|run| run.touched() > 1).map(|run| run.way);
        let (mut up, mut down) = (0, 0);
        ways.for_each(|way| *if way == TouchOrder::Up { &mut up } else { &mut down } += 1);
        if down > up { TouchOrder::Down } else { TouchOrder::Up }
    }

    fn begin(&mut self, touched: PageRange, ask: &ReadRequest, pages: &mut dyn PageView) {
        let way = self.usual_direction();
        let places = way.along(touched);
        let recent = self.runs.iter().rev().take(RECENT_RUNS);
        let has_length_marks = recent.filter_map(TouchedRun::length).count() < KNOWN_LENGTHS_MIN;
        let unknown = match self.advice {
            Advice::Sequential => u64::MAX,
            Advice::Random => 1,
            _ => FIRST_PAGES,
        };
        if self.runs.len() == RUNS {
            self.runs.pop_front();
        }
        self.runs.push_back(TouchedRun {
            way,
            first: places.first,
            touched_end: places.end,
            window_end: places.first,
            window_pages: 0,
            trigger: None,
            last: None,
            has_length_marks,
            was_late: true,
        });
        let at = self.runs.len() - 1;
        let is_sequential = self.advice == Advice::Sequential;
        let usual = if is_sequential { None } else { self.usual_rest_after_window(at, pages) };
        self.read_window(at, usual.unwrap_or(unknown).max(touched.count()), ask, pages);
    }

    /// The run goes on behind its window, and its reader waits.
    fn go_on(
        &mut self,
        at: usize,
        touched: PageRange,
        ask: &ReadRequest,
        pages: &mut dyn PageView,
    ) {
        let come = self.runs[at].come();
        let usual = self.usual_rest_after_window(at, pages);
        let run = &mut self.runs[at];
        let places = run.way.along(touched);
        run.touched_end = run.touched_end.max(places.end);
        run.was_late = true;
        let missing = places.end.saturating_sub(run.window_end);
        self.read_window(at, usual.unwrap_or(come).max(missing).max(1), ask, pages);
    }

    /// Pages of the window were touched, and are there or on their way.
    fn note_use(
        &mut self,
        at: usize,
        touched: PageRange,
        ask: &ReadRequest,
        pages: &mut dyn PageView,
    ) {
        for page in touched.pages() {
            if let Some(folio) = pages.marked(page) {
                pages.clear_mark(folio);
            }
        }
        let run = &mut self.runs[at];
        let places = run.way.along(touched);
        run.touched_end = run.touched_end.max(places.end.min(run.window_end));
        if run.last.is_some_and(|last| places.contains(last)) {
            run.touched_end = run.window_end;
        }
        run.was_late |= !pages.is_filled(run.way.at(places.first));
        if run.trigger.is_some_and(|trigger| places.contains(trigger)) && !ask.is_congested {
            run.trigger = None;
            let size = self.next_ahead(at, pages);
            if size > 0 {
                self.runs[at].was_late = false;
                self.read_window(at, size, ask, pages);
            }
        }
    }

    /// How much to read behind the window of a run whose reader is in its middle.
    fn next_ahead(&self, at: usize, pages: &mut dyn PageView) -> u64 {
        let run = self.runs[at];
        if !self.is_stream(at, run.touched()) {
            return self.usual_rest_within_window(at, pages);
        }
        let wanted = if run.was_late { 2 * run.window_pages } else { run.window_pages };
        match self.advice {
            Advice::Sequential => wanted,
            _ => wanted.min(run.touched().saturating_sub(run.window_end - run.touched_end)),
        }
    }

    /// Reads the absent ones of the run's next `size` pages, and marks as the law says.
    fn read_window(&mut self, at: usize, size: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
        let size = size.min(self.size_max(pages).max(ask.request().count()));
        let run = self.runs[at];
        let file = run.way.along(PageRange::new(0, ask.file_pages()));
        let window = PageRange::new(run.window_end, size).clipped(file.end);
        let goes_on = self.is_stream(at, run.come())
            || !self.is_outgrown(at, window.end.saturating_sub(run.first));
        let middle = window.first + window.count() / 2;
        let last = window.pages().rev().find(|&place| !pages.is_cached(run.way.at(place)));
        let run = &mut self.runs[at];
        run.last = last;
        run.trigger = (goes_on && window.count() > 1).then_some(middle);
        run.window_pages = size;
        run.window_end = window.end.max(run.window_end);
        for place in window.pages() {
            let is_marked = last == Some(place)
                || run.trigger == Some(place)
                || (run.has_length_marks && is_length_mark(place - run.first));
            let page = run.way.at(place);
            if !pages.is_cached(page) && !pages.add(Folio::holding(page, 0), is_marked) {
                // Memory is short: the run has no more than this.
                run.window_end = place.max(run.touched_end);
                break;
            }
        }
    }

    /// The largest window in pages.
    fn size_max(&self, pages: &mut dyn PageView) -> u64 {
        let device = &pages.evidence().device;
        let by_cost = WINDOW_PER_REQUEST_COST * device.estimate.request_cost_pages();
        let by_memory = device.memory_pages / WINDOW_MEMORY_DIVISOR;
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
    fn usual_rest_after_window(&self, at: usize, pages: &mut dyn PageView) -> Option<u64> {
        let come = self.runs[at].come();
        let rests = self.lengths(at).filter(|&length| length > come).map(|length| length - come);
        rests.min_by_key(|&size| (self.cost(at, come, size, pages), size))
    }

    /// How much more is usual for a run that may yet end within its window; 0 when it
    /// had better be waited for.
    fn usual_rest_within_window(&self, at: usize, pages: &mut dyn PageView) -> u64 {
        let run = self.runs[at];
        let sizes = self.lengths(at).map(|length| length.saturating_sub(run.come()));
        sizes.min_by_key(|&size| (self.cost(at, run.touched(), size, pages), size)).unwrap_or(0)
    }

    /// What a window of so many pages behind the run's would have cost over the remembered
    /// runs that are longer than `come`, in pages.
    fn cost(&self, at: usize, come: u64, size: u64, pages: &mut dyn PageView) -> u64 {
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

impl ReadaheadPolicy for RunsPolicy {
    fn read(&mut self, ask: &ReadRequest, pages: &mut dyn PageView) {
        let touched = ask.request().clipped(ask.file_pages());
        if !touched.is_empty() {
            self.touch(touched, ask, pages);
        }
    }

    fn fault(&mut self, page: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
        if page < ask.file_pages() {
            self.touch(PageRange::new(page, 1), ask, pages);
        }
    }

    fn advise(&mut self, advice: Advice) {
        if !matches!(advice, Advice::WillNeed | Advice::DontNeed) {
            self.advice = advice;
        }
    }
}

#[cfg(test)]
mod tests;
