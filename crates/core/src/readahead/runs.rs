//! `runs`: learns from faults the lengths of the runs of pages that a program touches, and reads
//! such a run with few requests. Made for mapped files.
//!
//! A program with a mapped file shows its accesses only by faults: pages that are already mapped
//! report no use. The goals: a program that takes slices of 64 KiB at random offsets needs one
//! request of 64 KiB for each slice. One with single-page accesses reads one page each. One that
//! takes tensors of 1 to 6 MiB waits once or twice for a tensor. One that reads the file in order
//! gets large windows in advance.
//!
//! How it works: a *run* starts at a touched page that no remembered run predicted. It goes on as
//! long as pages are touched in order, upwards or downwards. The last 16 runs are remembered. A
//! fault on an absent page:
//!
//! - *directly behind the window of a remembered run* continues this run. The size of the next
//!   window is the usual remaining length of runs that came as far as this one. If none came so
//!   far, the length of the run doubles;
//! - *directly before a run with no other touched page* reverses that run: it goes on in the other
//!   direction from its start;
//! - *anywhere else* starts a run. Its window is the usual length of a run, or 4 pages while no
//!   length is known. Its direction is the more frequent one among the remembered runs of known
//!   direction.
//!
//! Downward runs mirror upward runs in every rule. Programs read memory downwards without knowing
//! that it is a file. For example, `memcpy` of the GNU C library does so with 512 KiB or more whose
//! source and destination have similar offsets within a page.
//!
//! *Usual* is the length with the smallest total cost over the remembered runs. Each wasted page
//! costs 1. Each run that would need another request costs the price of a request on this device:
//! the number of pages that could be read during the wait for it. It is at least 32 (128 KiB, about
//! the size that repays the latency on disks, solid-state drives and networks).
//!
//! The readahead mark is the trigger: a marked page is not mapped with its neighbours, so that its
//! touch causes a fault. The last page of each window is marked; its touch shows that the whole
//! window was used. Without this touch the length of the run is unknown. If the end of a window was
//! cached before, the last page read for the window has the mark. While fewer than 4 of the newest
//! 8 lengths are known, runs are *watched*. Their pages are marked one by one at first, then 8
//! times for each doubling of the distance from the start of the run. This determines a length to
//! an eighth, and a length below 64 KiB exactly.
//!
//! The middle of a window is marked if some remembered run went on behind its end. It is also
//! marked if no remembered run came as far and the run has 64 KiB: then it is a *stream*. At this
//! mark the next window is read before the program waits for it. Its size is the usual remaining
//! length, which may be 0. For a stream it is the size of the last window, or twice that if the
//! reader had to wait since; but never more pages ahead than were touched.
//!
//! The window limits are 16 times the pages that cost as much as a request, an eighth of the
//! memory, and the largest allowed window. With 16 times, the device transfers data for 94 % of the
//! time.
//!
//! Advice: `sequential` treats every run as a stream from its first page. `random` reads one page
//! while no length is known, and disables streams.
//!
//! An own design. The constants were chosen with `crates/eval/benches/mapping_speed.rs` and
//! `bench/python_tensors.py` on a device with a latency of one millisecond.

use alloc::collections::VecDeque;

use run::{TouchOrder, TouchedRun, is_length_mark};

use super::{
    Advice, Folio, PageView, ReadRequest, ReadaheadLimits, ReadaheadPolicy, SINGLE_PAGE_ORDER,
    window_pages,
};
use crate::policy::{Spec, SpecError};
use crate::unit::PageRange;

mod run;

/// Number of remembered runs: enough for several threads with a current run each, plus earlier
/// runs.
const RUNS_MAX: usize = 16;
/// Lower bound of the cost of a request, in pages that could have been read instead: see the
/// module.
const REQUEST_COST_PAGES_MIN: u64 = 32;
/// First window in pages while no length is known.
const FIRST_PAGES: u64 = 4;
/// Number of the newest runs that decide if new runs are watched.
const RECENT_RUNS: usize = 8;
/// New runs are watched while fewer than this number of the newest lengths are known.
const KNOWN_LENGTHS_MIN: usize = 4;
/// Shortest run, in pages, that counts as a stream: 64 KiB.
const STREAM_PAGES: u64 = 16;
/// Largest window, as a multiple of the pages that cost as much as a request.
const WINDOW_PER_REQUEST_COST: u64 = 16;
/// Divisor of the memory that bounds a window, because several readers share it.
const WINDOW_MEMORY_DIVISOR: u64 = 8;

/// The policy `runs`, for one open file.
#[derive(Clone, Debug)]
pub struct RunsPolicy {
    /// The largest allowed window, in pages.
    window_pages_max: u64,
    /// The program's latest advice for the whole file.
    advice: Advice,
    /// The remembered runs; the newest is last.
    runs: VecDeque<TouchedRun>,
}

impl RunsPolicy {
    /// Creates the policy with windows of at most `window_pages_max` pages.
    pub fn new(window_pages_max: u64) -> RunsPolicy {
        let runs = VecDeque::with_capacity(RUNS_MAX);
        RunsPolicy { window_pages_max, advice: Advice::Normal, runs }
    }

    /// Parses `runs,read_ahead_kb=KIB`.
    ///
    /// # Errors
    /// A parameter is unknown, or a value is out of range.
    pub fn from_spec(spec: &Spec, limits: &ReadaheadLimits) -> Result<RunsPolicy, SpecError> {
        spec.only(&["read_ahead_kb"])?;
        Ok(RunsPolicy::new(window_pages(spec, limits)?))
    }

    /// Handles a touch of the pages `touched`: continues, reverses or starts a run, and may add a
    /// window. No effect if all are cached and no run expects them. A *position* is the number of a
    /// page along the direction of a run: `convert_range` turns pages into positions, which
    /// increase in the order of touches.
    fn touch(&mut self, touched: PageRange, read: &ReadRequest, pages: &mut dyn PageView) {
        // The newest run that expects the pages: in its window, or directly behind it.
        let found = self.runs.iter().rposition(|run| {
            let position = run.order.convert_range(touched).first;
            run.first <= position && position <= run.window_end
        });
        let order = found.map_or(TouchOrder::Up, |index| self.runs[index].order);
        let mut positions = order.convert_range(touched).pages();
        // The position of the first touched page that is absent.
        let absent = positions.find(|&position| !pages.is_cached(order.convert(position)));
        match (found, absent) {
            // The reader has passed the window, and waits.
            (Some(index), Some(absent)) if absent >= self.runs[index].window_end => {
                self.continue_run(index, touched, read, pages);
            }
            (Some(index), None) => self.record_use(index, touched, read, pages),
            // This includes a page of a window that was evicted before its touch.
            (_, Some(_)) => match self.find_reversed(touched) {
                Some(index) => {
                    self.runs[index].reverse();
                    self.continue_run(index, touched, read, pages);
                }
                None => self.begin_run(touched, read, pages),
            },
            (None, None) => {}
        }
    }

    /// The index of a run that the touched pages reverse; `None` without one. They lie directly
    /// before the start of the run, and are at least as many as the pages of it touched until now.
    /// A longer run has shown its direction already.
    fn find_reversed(&self, touched: PageRange) -> Option<usize> {
        self.runs.iter().rposition(|run| {
            let is_short = run.touched_pages() <= touched.count();
            // In the opposite direction, the touched pages end at the start of the run.
            let start = run.touched_in_opposite_order().end;
            is_short && run.order.opposite().convert_range(touched).first == start
        })
    }

    /// The assumed direction of a new run: the more frequent one among the remembered runs with
    /// more than one touched page. Upwards if both are as frequent.
    fn usual_direction(&self) -> TouchOrder {
        let orders = self.runs.iter().filter(|run| run.touched_pages() > 1).map(|run| run.order);
        let (mut up, mut down) = (0, 0);
        for order in orders {
            match order {
                TouchOrder::Up => up += 1,
                TouchOrder::Down => down += 1,
            }
        }
        if down > up { TouchOrder::Down } else { TouchOrder::Up }
    }

    /// Starts a run at the touched pages and reads its first window. Forgets the oldest of
    /// [`RUNS_MAX`] runs.
    fn begin_run(&mut self, touched: PageRange, read: &ReadRequest, pages: &mut dyn PageView) {
        let order = self.usual_direction();
        let positions = order.convert_range(touched);
        // The length of the new run is measured while too few of the newest lengths are known.
        let recent_runs = self.runs.iter().rev().take(RECENT_RUNS);
        let known_lengths = recent_runs.filter_map(TouchedRun::length).count();
        let is_length_measured = known_lengths < KNOWN_LENGTHS_MIN;
        let first_pages = match self.advice {
            Advice::Sequential => u64::MAX,
            Advice::Random => 1,
            _ => FIRST_PAGES,
        };
        if self.runs.len() == RUNS_MAX {
            self.runs.pop_front();
        }
        self.runs.push_back(TouchedRun {
            order,
            first: positions.first,
            touched_end: positions.end,
            // The first window begins with the touched pages: the reader waits for them.
            window_end: positions.first,
            window_pages: 0,
            trigger: None,
            last_read: None,
            is_length_measured,
            // The reader waits for the touched pages.
            was_late: true,
        });
        let index = self.runs.len() - 1;
        let is_sequential = self.advice == Advice::Sequential;
        // Sequential advice overrides the usual length: the first window is as large as allowed.
        // While no length is known, the usual rest is `None` too, and `first_pages` counts.
        let usual_pages =
            if is_sequential { None } else { self.usual_rest_after_window(index, pages) };
        self.read_window(
            index,
            usual_pages.unwrap_or(first_pages).max(touched.count()),
            read,
            pages,
        );
    }

    /// Continues the run at `index` behind its window. Its reader waits for the touched pages. The
    /// next window has the usual remaining length of a run. If no remembered run came farther, it
    /// doubles the pages of the run so far. It contains at least the touched pages behind the last
    /// window, of which there is one or more.
    fn continue_run(
        &mut self,
        index: usize,
        touched: PageRange,
        read: &ReadRequest,
        pages: &mut dyn PageView,
    ) {
        let pages_so_far = self.runs[index].pages_so_far();
        let usual_pages = self.usual_rest_after_window(index, pages);
        let run = &mut self.runs[index];
        let positions = run.order.convert_range(touched);
        run.touched_end = run.touched_end.max(positions.end);
        run.was_late = true;
        let missing_pages = positions.end.saturating_sub(run.window_end);
        self.read_window(
            index,
            usual_pages.unwrap_or(pages_so_far).max(missing_pages),
            read,
            pages,
        );
    }

    /// Handles a touch of window pages that are cached or being read, in the run at `index`. Clears
    /// their marks, and counts them as touched. At the trigger it reads the next window. While the
    /// device is congested it reads nothing, and the trigger stays.
    fn record_use(
        &mut self,
        index: usize,
        touched: PageRange,
        read: &ReadRequest,
        pages: &mut dyn PageView,
    ) {
        for page in touched.pages() {
            if let Some(folio) = pages.marked(page) {
                pages.clear_mark(folio);
            }
        }
        let run = &mut self.runs[index];
        let positions = run.order.convert_range(touched);
        run.touched_end = run.touched_end.max(positions.end.min(run.window_end));
        // The pages behind the last read page were cached before, so their touches are not seen.
        // They count as touched with it.
        if run.last_read.is_some_and(|last| positions.contains(last)) {
            run.touched_end = run.window_end;
        }
        // The reader waits for a page that is still being read. Its first page is examined.
        run.was_late |= !pages.is_filled(run.order.convert(positions.first));
        if run.trigger.is_some_and(|trigger| positions.contains(trigger)) && !read.is_congested {
            run.trigger = None;
            let window_pages = self.next_window_pages(index, pages);
            if window_pages > 0 {
                self.runs[index].was_late = false;
                self.read_window(index, window_pages, read, pages);
            }
        }
    }

    /// Size in pages of the next window of the run at `index`, whose reader is in the middle of the
    /// current one. May be 0.
    fn next_window_pages(&self, index: usize, pages: &mut dyn PageView) -> u64 {
        let run = self.runs[index];
        // Only a stream goes on by the size of its last window.
        if !self.is_stream(index, run.touched_pages()) {
            return self.usual_rest_within_window(index, pages);
        }
        let next_pages = if run.was_late { 2 * run.window_pages } else { run.window_pages };
        match self.advice {
            Advice::Sequential => next_pages,
            // The pages ahead are never more than were touched.
            _ => {
                let pages_ahead = run.window_end - run.touched_end;
                next_pages.min(run.touched_pages().saturating_sub(pages_ahead))
            }
        }
    }

    /// Adds the absent pages of the run's next window, of at most `pages_max` pages. Marks the last
    /// of them, the middle of the window if the run may go on behind it, and further pages if the
    /// length of the run is measured. The run at `index` gets the window, its trigger and its last
    /// page. The window has more than the limits allow if the request is larger. It ends earlier at
    /// the end of the file, or if memory is short.
    fn read_window(
        &mut self,
        index: usize,
        pages_max: u64,
        read: &ReadRequest,
        pages: &mut dyn PageView,
    ) {
        // The request itself is read whole, whatever the limit.
        let window_pages = pages_max.min(self.window_size_max(pages).max(read.request().count()));
        let run = self.runs[index];
        let file_positions = run.order.convert_range(PageRange::new(0, read.file_pages()));
        // Positions end at the end of the file, or behind page 0 for a downward run.
        let window = PageRange::new(run.window_end, window_pages).clipped(file_positions.end);
        let may_go_on = self.is_stream(index, run.pages_so_far())
            || !self.is_longest(index, window.end.saturating_sub(run.first));
        let middle = window.first + window.count() / 2;
        let is_absent = |&position: &u64| !pages.is_cached(run.order.convert(position));
        let last_absent = window.pages().rev().find(is_absent);
        let run = &mut self.runs[index];
        run.last_read = last_absent;
        run.trigger = (may_go_on && window.count() > 1).then_some(middle);
        run.window_pages = window_pages;
        run.window_end = window.end.max(run.window_end);
        for position in window.pages() {
            let is_marked = last_absent == Some(position)
                || run.trigger == Some(position)
                || (run.is_length_measured && is_length_mark(position - run.first));
            let page = run.order.convert(position);
            let folio = Folio::holding(page, SINGLE_PAGE_ORDER);
            if !pages.is_cached(page) && !pages.add(folio, is_marked) {
                // Memory is short: the window ends here. The touched pages themselves count in any
                // case: the machine reads them.
                run.window_end = position.max(run.touched_end);
                break;
            }
        }
    }

    /// Largest window in pages: limited by the policy, by the cost of a request, and by the memory.
    /// At least one page of memory, and `REQUEST_COST_PAGES_MIN` of cost, count.
    fn window_size_max(&self, pages: &mut dyn PageView) -> u64 {
        let device = &pages.evidence().device;
        let by_cost = WINDOW_PER_REQUEST_COST * device.estimate.request_cost_pages();
        let by_memory = device.memory_pages / WINDOW_MEMORY_DIVISOR;
        self.window_pages_max.min(by_cost.max(REQUEST_COST_PAGES_MIN)).min(by_memory.max(1))
    }

    /// Returns true if the run at `index`, of `run_pages` pages, is a stream: at least 64 KiB long,
    /// and no known length of another run is greater. Advice overrides this.
    fn is_stream(&self, index: usize, run_pages: u64) -> bool {
        match self.advice {
            Advice::Random => false,
            Advice::Sequential => true,
            _ => run_pages >= STREAM_PAGES && self.is_longest(index, run_pages),
        }
    }

    /// Known lengths of all runs except the run at `index`, in pages.
    fn other_lengths(&self, index: usize) -> impl Iterator<Item = u64> {
        let other_runs =
            self.runs.iter().enumerate().filter(move |&(other_index, _)| other_index != index);
        other_runs.filter_map(|(_, run)| run.length())
    }

    /// Returns true if no known length of another run than the run at `index` exceeds `pages`. True
    /// also if no length is known.
    fn is_longest(&self, index: usize, pages: u64) -> bool {
        self.other_lengths(index).all(|length| length <= pages)
    }

    /// Usual remaining length, in pages, of the run at `index`, which goes on behind its window.
    /// `None` if no remembered run came farther. The result is the length with the least cost, the
    /// smallest one if several cost the same.
    fn usual_rest_after_window(&self, index: usize, pages: &mut dyn PageView) -> Option<u64> {
        let pages_so_far = self.runs[index].pages_so_far();
        let rests = self
            .other_lengths(index)
            .filter(|&length| length > pages_so_far)
            .map(|length| length - pages_so_far);
        rests.min_by_key(|&size| (self.window_cost(index, pages_so_far, size, pages), size))
    }

    /// Usual remaining length, in pages, of the run at `index`, which may still end within its
    /// window. 0 if reading later is cheaper, or no length is known. A run that ended before counts
    /// as a rest of 0.
    fn usual_rest_within_window(&self, index: usize, pages: &mut dyn PageView) -> u64 {
        let run = self.runs[index];
        let sizes =
            self.other_lengths(index).map(|length| length.saturating_sub(run.pages_so_far()));
        let touched_pages = run.touched_pages();
        sizes
            .min_by_key(|&size| (self.window_cost(index, touched_pages, size, pages), size))
            .unwrap_or(0)
    }

    /// Cost, in pages, that a window of `size` pages behind the current one would have had. It is
    /// the sum over the remembered runs longer than `passed_pages`, except the run at `index`: that
    /// run is known to have passed this length. A run that ended within the current window wastes
    /// the whole new one.
    fn window_cost(
        &self,
        index: usize,
        passed_pages: u64,
        size: u64,
        pages: &mut dyn PageView,
    ) -> u64 {
        let estimate = &pages.evidence().device.estimate;
        let request_cost_pages = estimate.request_cost_pages().max(REQUEST_COST_PAGES_MIN);
        // Distance of the present window's end from the start of the run.
        let pages_to_window_end = self.runs[index].pages_so_far();
        let rests = self
            .other_lengths(index)
            .filter(|&length| length > passed_pages)
            .map(|length| length.saturating_sub(pages_to_window_end));
        // A longer run would need another request; a shorter one wastes pages.
        rests.map(|rest| if rest > size { request_cost_pages } else { size - rest }).sum()
    }
}

impl ReadaheadPolicy for RunsPolicy {
    /// Handles a read as a touch of its pages within the file.
    fn read(&mut self, read: &ReadRequest, pages: &mut dyn PageView) {
        let touched = read.request().clipped(read.file_pages());
        if !touched.is_empty() {
            self.touch(touched, read, pages);
        }
    }

    /// Handles a touch of the page. Ignores a page behind the end of the file.
    fn fault(&mut self, page: u64, read: &ReadRequest, pages: &mut dyn PageView) {
        if page < read.file_pages() {
            self.touch(PageRange::new(page, 1), read, pages);
        }
    }

    /// Sets the advice for later windows. Ignores advice for single ranges.
    fn advise(&mut self, advice: Advice) {
        if !matches!(advice, Advice::WillNeed | Advice::DontNeed) {
            self.advice = advice;
        }
    }
}

#[cfg(test)]
mod tests;
