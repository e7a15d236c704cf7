//! Windows of long runs that are delegated to the kernel's own mapping of the file.
//!
//! A *run* is a range of consecutive mapped pages. A *window* is a page range next to a run. A
//! window is *delegated* while the kernel's own mapping of the file is in its place. A window is
//! *taken back* when this server replaces it by absent pages that the server fills.
//!
//! A page that readpath serves is cleared, filled and moved. For a stream, the kernel's own mapping
//! avoids these steps and the faults: it reads far ahead into large pages of its cache, and maps
//! them. The kernel does not know where this pays off, and its memory has no limit.
//!
//! Rules: a run of at least 2 MiB is expected to continue. On a fast device, its next part is
//! delegated to the kernel. The window is as long as the run, and at most a sixteenth of the memory
//! or 8 MiB, but 2 MiB in any case. A fault shows that a run has come to the end of its window. The
//! next window is then delegated, and the run has *left* the first one. A window is *abandoned* if
//! its run has not left it a second after its delegation. Windows that were left or abandoned are
//! taken back, the oldest first, when the budget is exhausted.
//!
//! The budget is the kernel's readahead for a run plus four windows. From the first window on, the
//! machine's memory is smaller by this amount. If the budget exceeds two thirds of the memory, no
//! window is delegated. The kernel's pages of a run stay in its cache, which is reclaimable. If the
//! file is larger than the free memory, they are dropped with the window instead, because later
//! reads would evict them before any reuse.
//!
//! A run may also approach a page in steps: a backward copy of 1 MiB touches its last page first.
//! The touched page may therefore lie a quarter of the run's length ahead of the run.
//!
//! The kernel serves a window completely. The server sees neither touches nor faults, an unreadable
//! page is a bus error as usual, and the pages occupy no frames of the machine. No window is
//! delegated while the program has locked memory, because the new windows would not be locked. In a
//! simulation (`cfg(simulation)`) a model answers for the kernel.
//!
//! The *machine* is the state machine of the cache, and a *frame* its memory for one page. A
//! *resident* page is in a frame. A page is *poisoned* if a touch of it is a bus error.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use readpath_core::machine::Machine;
use readpath_core::readahead::Advice;
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};
use readpath_os::proc_text;

use super::Areas;
use crate::page_cache::kernel::{drop_kernel_range, resident_page_count};
use crate::pager::kernel_mapping;
use crate::pager::page_ranges::PageRanges;
use crate::pager::take_back_thread::TakeBackThread;
use crate::target::Target;

/// Divisor of a run's length. The next touched page may lie this part of the length away from the
/// run. The part is chosen, not measured.
const GAP_DIVISOR: u64 = 4;
/// Divisor of the memory. A window takes at most this part of it, or one of the kernel's largest
/// pages if that is more. The part is chosen, not measured.
const WINDOW_MEMORY_DIVISOR: u64 = 16;
/// The kernel's largest page of a file: 2 MiB. A partial drop does not free such a page, so windows
/// end at its borders if possible. It is also the shortest run that is expected to continue.
const LARGE_FOLIO_PAGES: u64 = 512;
/// Length of the longest window in largest pages: 8 MiB, one fault and one move for 3 ms of a fast
/// stream.
const WINDOW_LARGE_FOLIOS_MAX: u64 = 4;
/// Number of largest windows in the budget. The number is chosen, not measured.
const BUDGET_WINDOWS: u64 = 4;
/// Time after which a run that has not reached the end of its window is considered ended. It is
/// chosen, not measured.
const ABANDON_TIMEOUT: Time = Time::from_s(1);

/// Delegated windows of one mapping.
#[derive(Debug)]
pub(super) struct DelegatedWindows {
    /// `None` if windows are not delegated, or not any more.
    budget: Option<DelegationBudget>,
    /// True if the kernel page cache of a window is dropped with it.
    drops_cache_behind: bool,
    /// Oldest first.
    windows: VecDeque<DelegatedWindow>,
    /// Windows that could not be taken back. The kernel serves them permanently.
    permanent: Vec<PageRange>,
    /// Thread that takes windows back, started before the first window is delegated.
    take_back_thread: Option<TakeBackThread>,
}

/// Budget of delegated windows, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DelegationBudget {
    /// Limit of one window.
    window_pages_max: u64,
    /// Limit of all windows together: the budget without the readahead.
    total_pages_max: u64,
    /// The kernel's readahead for a run.
    readahead_pages: u64,
    /// Memory left for the machine.
    machine_pages: u64,
    /// True after the device was measured, for the first run. On a slow device there is no budget
    /// any more.
    is_device_measured: bool,
}

/// A window that the kernel maps.
#[derive(Clone, Copy, Debug)]
struct DelegatedWindow {
    /// Pages that the kernel's mapping serves.
    range: PageRange,
    /// Time of the delegation.
    delegated_at: Time,
    /// True if the next window of the run was delegated: the run has left this one.
    has_successor: bool,
    /// Range of the page cache that is dropped with the window. Empty if the cache contained part
    /// of the run before, or keeps it.
    cache_drop_range: PageRange,
}

impl DelegatedWindows {
    /// Creates the state for a mapping with `memory_pages` pages of memory. No window is delegated
    /// if the memory is too small for the kernel's readahead. `drops_behind` is true if the page
    /// cache behind the run is to be dropped.
    pub(super) fn for_mapping(
        target: &Target,
        memory_pages: u64,
        drops_behind: bool,
    ) -> DelegatedWindows {
        // Without a known device no readahead is known, and no window is delegated.
        let ahead_pages = target.queue().map_or(0, |queue| queue.read_ahead_bytes / PAGE_BYTES);
        let budget = DelegationBudget::for_memory(memory_pages, ahead_pages);
        DelegatedWindows {
            budget,
            drops_cache_behind: drops_behind,
            ..DelegatedWindows::disabled()
        }
    }

    /// Creates a state that delegates no windows.
    pub(super) fn disabled() -> DelegatedWindows {
        DelegatedWindows {
            budget: None,
            // Without a budget there is no window, and this has no effect.
            drops_cache_behind: true,
            windows: VecDeque::new(),
            permanent: Vec::new(),
            take_back_thread: None,
        }
    }

    /// True if the kernel serves the page now.
    pub(super) fn is_kernel_served(&self, page: u64) -> bool {
        let mut permanent_ranges = self.permanent.iter();
        self.windows.iter().any(|window| window.range.contains(page))
            || permanent_ranges.any(|range| range.contains(page))
    }

    /// Number of pages of the windows for which `is_counted` returns true.
    fn count_pages(&self, is_counted: impl Fn(&DelegatedWindow) -> bool) -> u64 {
        self.windows
            .iter()
            .filter(|window| is_counted(window))
            .map(|window| window.range.count())
            .sum()
    }

    /// Returns the index of the next window to take back at time `now`: the oldest one that its run
    /// has left or abandoned. Returns `None` if there is none.
    fn next_to_take_back(&self, now: Time) -> Option<usize> {
        self.windows.iter().position(|window| {
            window.has_successor || now.since(window.delegated_at) >= ABANDON_TIMEOUT
        })
    }

    /// Returns the budget if `pages` more pages fit into it at time `now`. Windows that are left or
    /// abandoned do not count: they can be taken back. The first call measures the device by test
    /// reads. On a slow device, no window is delegated any more. Returns `None` then, and if the
    /// pages do not fit.
    fn budget_for(&mut self, target: &Target, now: Time, pages: u64) -> Option<DelegationBudget> {
        let budget = self.budget.as_mut()?;
        if !budget.is_device_measured {
            budget.is_device_measured = true;
            if !kernel_mapping::is_device_fast(target) {
                self.budget = None;
            }
        }
        let budget = self.budget?;
        let is_in_use = |window: &DelegatedWindow| {
            !window.has_successor && now.since(window.delegated_at) < ABANDON_TIMEOUT
        };
        (self.count_pages(is_in_use) + pages <= budget.total_pages_max).then_some(budget)
    }
}

impl DelegationBudget {
    /// Computes the budget of a mapping with `memory_pages` pages of memory on a device with
    /// `ahead_pages` pages of kernel readahead. Returns `None` if the memory is too small, or if
    /// the kernel reads nothing ahead.
    fn for_memory(memory_pages: u64, ahead_pages: u64) -> Option<DelegationBudget> {
        let share_pages = memory_pages / WINDOW_MEMORY_DIVISOR;
        let folio_pages = large_folio_pages();
        let window_pages_max = (share_pages - share_pages % folio_pages)
            .clamp(folio_pages, WINDOW_LARGE_FOLIOS_MAX * folio_pages);
        let total_pages_max = BUDGET_WINDOWS * window_pages_max;
        let kernel_pages = total_pages_max + ahead_pages;
        // At least a third of the memory is left to the machine. The part is chosen, not measured.
        let has_room = ahead_pages > 0 && kernel_pages <= memory_pages * 2 / 3;
        // Not used without room.
        let machine_pages = memory_pages.saturating_sub(kernel_pages);
        has_room.then_some(DelegationBudget {
            window_pages_max,
            total_pages_max,
            readahead_pages: ahead_pages,
            machine_pages,
            is_device_measured: false,
        })
    }
}

/// Returns the window to delegate when the unmapped page `page` is touched, in a file of
/// `file_pages` pages with the mapped `runs`. It has at most `pages_max` pages, contains the page,
/// and overlaps no other run. Its far end lies at a border of the kernel's largest pages, if there
/// is one beyond the page and before the next run. Returns `None` if the page continues no long
/// run, or lies beyond the window.
fn next_window(runs: &PageRanges, page: u64, pages_max: u64, file_pages: u64) -> Option<PageRange> {
    let below = runs.last_starting_before(page);
    let above = runs.first_starting_after(page);
    let folio_pages = large_folio_pages();
    let is_long = |run: &PageRange| run.count() >= folio_pages;
    let ends_near =
        |run: &PageRange| run.end <= page && (page - run.end) * GAP_DIVISOR <= run.count();
    // An ascending run: the page lies at its end, or a short gap behind it.
    if let Some(run) = below.filter(is_long).filter(ends_near) {
        let end = (run.end + run.count().min(pages_max)).min(file_pages);
        let aligned_end = end - end % folio_pages;
        let end = if aligned_end > page { aligned_end } else { end };
        let end = above.map_or(end, |above| end.min(above.first));
        return Some(PageRange { first: run.end, end }).filter(|window| window.contains(page));
    }
    // A descending run: the page lies directly below it. No gap is permitted on this side.
    let run = above.filter(is_long).filter(|run| run.first == page + 1)?;
    let first = run.first.saturating_sub(run.count().min(pages_max));
    let aligned_first = first.next_multiple_of(folio_pages);
    let first = if aligned_first <= page { aligned_first } else { first };
    let first = below.map_or(first, |below| first.max(below.end));
    Some(PageRange { first, end: run.first })
}

impl Areas {
    /// Delegates the next part of the run that has reached this page to the kernel. Returns true if
    /// the kernel serves the page now. Returns false if the page continues no long run, or if the
    /// budget has no room. Also returns false if memory is locked, a page of the window is
    /// poisoned, or the system refuses.
    pub(super) fn delegate_window(&mut self, machine: &mut Machine, page: u64) -> bool {
        let Some(DelegationBudget { window_pages_max, .. }) = self.delegated_windows.budget else {
            return false;
        };
        let file_pages = self.file_bytes.div_ceil(PAGE_BYTES);
        let Some(range) = next_window(&self.mapped_ranges, page, window_pages_max, file_pages)
        else {
            return false;
        };
        let now = self.now();
        let Some(budget) = self.delegated_windows.budget_for(&self.target, now, range.count())
        else {
            return false;
        };
        let is_adjoining = |window: &DelegatedWindow| {
            window.range.end == range.first || window.range.first == range.end
        };
        // No page may be locked or poisoned. The memory locks are checked once for a run, at its
        // first window.
        let mut windows = self.delegated_windows.windows.iter();
        let adjoining_window = windows.find(|&window| is_adjoining(window)).copied();
        let is_memory_locked = adjoining_window.is_none() && has_locked_memory();
        if is_memory_locked || self.poisoned.range(range.pages()).next().is_some() {
            return false;
        }
        // The thread that takes windows back must run, and the machine must leave its memory.
        if !self.start_take_back_thread()
            || !self.limit_machine_memory(machine, budget.machine_pages)
        {
            return false;
        }
        if range.pages().any(|page| self.resident.contains_key(&page)) {
            // The pages will be used through the kernel's mapping, so they count as used, not as
            // waste. The advice then frees their frames. Pages in flight or pinned stay in the
            // shadow.
            machine.mapped(self.handle, range);
            self.advise(machine, Advice::DontNeed, range);
        }
        let readahead_pages = budget.readahead_pages;
        let cache_drop_range = self.cache_drop_range(range, adjoining_window, readahead_pages);
        if self.user.map_file(range, self.target.as_fd()).is_err() {
            // The system has too many mappings, or the file system rejects the mapping. No window
            // is delegated any more.
            self.delegated_windows.budget = None;
            return false;
        }
        // The run has left the windows next to the new one.
        for window in &mut self.delegated_windows.windows {
            window.has_successor |= is_adjoining(window);
        }
        self.delegated_windows.windows.push_back(DelegatedWindow {
            range,
            delegated_at: now,
            has_successor: false,
            cache_drop_range,
        });
        self.mapped_ranges.insert(range);
        self.statistics.delegated_pages += range.count();
        // Threads that stopped at a page of the window try again, and find the kernel's mapping.
        self.wake_all(range);
        true
    }

    /// Returns the range of the page cache to drop with a new window `range`. It is empty if the
    /// cache keeps the pages, had some of them before, or does not report them. A window of the
    /// same run decides for the next one.
    fn cache_drop_range(
        &self,
        range: PageRange,
        adjoining_window: Option<DelegatedWindow>,
        readahead_pages: u64,
    ) -> PageRange {
        let drops_cache = match adjoining_window {
            Some(adjoining_window) => !adjoining_window.cache_drop_range.is_empty(),
            None => {
                self.delegated_windows.drops_cache_behind
                    && resident_page_count(&self.target, range) == Some(0)
            }
        };
        match adjoining_window {
            _ if !drops_cache => PageRange::default(),
            Some(_) => range,
            // The kernel starts with the pages around the touched one.
            None => PageRange { first: range.first.saturating_sub(readahead_pages), ..range },
        }
    }

    /// Takes windows back until the others fit into the budget, or until each of them is still in
    /// use. If windows are not delegated any more, the budget is 0. Faults that are read meanwhile
    /// are added to `self.pending_faults`.
    pub(super) fn take_back_surplus(&mut self) {
        let budget = self.delegated_windows.budget;
        let total_pages_max = budget.map_or(0, |budget| budget.total_pages_max);
        let counts_each_window = |_: &DelegatedWindow| true;
        while self.delegated_windows.count_pages(counts_each_window) > total_pages_max {
            let Some(window_index) = self.delegated_windows.next_to_take_back(self.now()) else {
                return;
            };
            self.take_back_window(window_index);
        }
    }

    /// Takes back each window that overlaps a range, in use or not. Permanent ones stay.
    pub(super) fn take_back_range(&mut self, range: PageRange) {
        let overlaps = |window: &DelegatedWindow| {
            window.range.first < range.end && range.first < window.range.end
        };
        while let Some(window_index) = self.delegated_windows.windows.iter().position(overlaps) {
            self.take_back_window(window_index);
        }
    }

    /// Starts the thread that takes windows back, if it does not run. If that fails, no window is
    /// delegated any more. Returns true if the thread runs.
    fn start_take_back_thread(&mut self) -> bool {
        if self.delegated_windows.take_back_thread.is_none() {
            match TakeBackThread::start(&self.uffd, &self.user) {
                Ok(thread) => self.delegated_windows.take_back_thread = Some(thread),
                Err(_) => self.delegated_windows.budget = None,
            }
        }
        self.delegated_windows.take_back_thread.is_some()
    }

    /// Takes the window with this index back, and waits: replaces it by absent pages that this
    /// server fills. Faults that are read meanwhile are added to `self.pending_faults`. If the
    /// system refuses, the kernel serves the window permanently, and no more windows are delegated.
    fn take_back_window(&mut self, window_index: usize) {
        let Some(window) = self.delegated_windows.windows.remove(window_index) else { return };
        let take_back_thread = self
            .delegated_windows
            .take_back_thread
            .as_ref()
            .expect("the thread starts before the first window is delegated");
        let is_taken_back =
            take_back_thread.take_back(window.range, &self.uffd, &mut self.pending_faults);
        // Pages that the kernel still maps stay in its cache.
        drop_kernel_range(&self.target, window.cache_drop_range);
        if is_taken_back {
            self.mapped_ranges.remove(window.range);
        } else {
            // Any further window could not be taken back either.
            self.delegated_windows.permanent.push(window.range);
            self.delegated_windows.budget = None;
        }
    }

    /// Reduces the machine's memory to `pages` pages, and evicts the pages of the withdrawn frames.
    /// Returns false if more memory is in use now: the caller delegates nothing this time. A
    /// smaller memory is never enlarged again.
    fn limit_machine_memory(&mut self, machine: &mut Machine, pages: u64) -> bool {
        let [limit_bytes, _used_bytes] = machine.memory_bytes();
        if limit_bytes <= pages * PAGE_BYTES {
            return true;
        }
        let withdrawn = machine.resize(self.now(), pages * PAGE_BYTES);
        for frame in &withdrawn {
            // The page that the frame had last. It may be in another frame by now.
            let page = self.frame_pages[frame.0 as usize].take();
            let is_in_frame = |page: &u64| {
                self.resident.get(page).is_some_and(|resident_page| resident_page.frame == frame.0)
            };
            self.page_scratch.extend(page.filter(is_in_frame));
        }
        // Evicts the pages in `page_scratch`. The machine then counts their frames as given back.
        self.evict();
        machine.on_withdrawn(&withdrawn);
        let [limit_bytes, _used_bytes] = machine.memory_bytes();
        limit_bytes <= pages * PAGE_BYTES
    }
}

/// Returns the size of the kernel's largest page of a file, in pages.
fn large_folio_pages() -> u64 {
    #[cfg(simulation)]
    if let Some(pages) = crate::simulation::memory::large_folio_pages() {
        return pages;
    }
    LARGE_FOLIO_PAGES
}

/// True if the program has locked any of its memory (`mlock(2)`), or if that is unknown.
fn has_locked_memory() -> bool {
    #[cfg(simulation)]
    if let Some(has) = crate::simulation::memory::has_locked_memory() {
        return has;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    proc_text::field_bytes(&status, "VmLck:") != Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::OpenOptions;

    /// Mapped runs, each given by its first page and its end.
    fn runs(ranges: &[(u64, u64)]) -> PageRanges {
        let mut runs = PageRanges::default();
        ranges.iter().for_each(|&(first, end)| runs.insert(PageRange { first, end }));
        runs
    }

    /// Window (first page and end) for a touch of `page` next to these runs, in a file of 10,240
    /// pages. A window has at most 1,024 pages.
    fn window_for(ranges: &[(u64, u64)], page: u64) -> Option<(u64, u64)> {
        let (pages_max, file_pages) = (1024, 10_240);
        let window = next_window(&runs(ranges), page, pages_max, file_pages)?;
        Some((window.first, window.end))
    }

    /// A file in memory (tmpfs(5)) has no device that could be fast. A device that was measured as
    /// fast is not measured again.
    #[test]
    fn file_on_a_device_not_known_as_fast_gets_no_kernel_window() {
        let path = format!("/dev/shm/readpath-delegated-{}", std::process::id());
        if std::fs::write(&path, [1; 8192]).is_err() {
            return;
        }
        let target = Target::open(path.as_ref(), OpenOptions::default());
        std::fs::remove_file(&path).unwrap();
        let target = target.unwrap();
        let (memory_pages, ahead_pages, window_pages) = (16_384, 32, 512);
        let budget = DelegationBudget::for_memory(memory_pages, ahead_pages).unwrap();
        for (is_device_measured, is_delegated) in [(false, false), (true, true)] {
            let budget = Some(DelegationBudget { is_device_measured, ..budget });
            let mut windows = DelegatedWindows { budget, ..DelegatedWindows::disabled() };
            let budget = windows.budget_for(&target, Time(0), window_pages);
            assert_eq!(budget.is_some(), is_delegated);
        }
    }

    /// Runs are given by their first page and end. 2 MiB are 512 pages.
    #[test]
    fn kernel_window_equals_the_run_length_from_2_mib_up_to_the_limit() {
        assert_eq!(window_for(&[(0, 511)], 511), None);
        assert_eq!(window_for(&[(0, 512)], 512), Some((512, 1024)));
        assert_eq!(window_for(&[(1024, 4096)], 4096), Some((4096, 5120)));
        // The window ends at the end of the file and at the start of another run.
        assert_eq!(window_for(&[(9_000, 10_000)], 10_000), Some((10_000, 10_240)));
        assert_eq!(window_for(&[(0, 600), (700, 701)], 600), Some((600, 700)));
    }

    /// Runs are given by their first page and end. A large page has 512 pages, so the borders are
    /// multiples of 512.
    #[test]
    fn kernel_windows_end_at_large_page_boundaries() {
        assert_eq!(window_for(&[(100, 700)], 700), Some((700, 1024)));
        assert_eq!(window_for(&[(100, 3100)], 3100), Some((3100, 4096)));
        // There is no border of large pages between the page and the end.
        assert_eq!(window_for(&[(1524, 2036)], 2164), Some((2036, 2548)));
        assert_eq!(window_for(&[(2000, 2600)], 1999), Some((1536, 2000)));
    }

    /// By hand: a quarter of 800 pages is 200, so page 1,000 is the last one.
    #[test]
    fn page_up_to_a_quarter_of_the_run_ahead_belongs_to_the_run() {
        assert_eq!(window_for(&[(0, 800)], 1000), Some((800, 1536)));
        assert_eq!(window_for(&[(0, 800)], 1001), None);
        // A page beyond the reach of a window does not belong to the run.
        assert_eq!(window_for(&[(0, 5000)], 6100), None);
    }

    /// A window below a run begins at a border of large pages, or at the end of another run.
    #[test]
    fn descending_run_gets_the_kernel_window_below_it() {
        assert_eq!(window_for(&[(3000, 4000)], 2999), Some((2048, 3000)));
        assert_eq!(window_for(&[(2000, 2600)], 1998), None);
        assert_eq!(window_for(&[(300, 900)], 299), Some((0, 300)));
        assert_eq!(window_for(&[(100, 101), (300, 900)], 299), Some((101, 300)));
    }

    /// 64 MiB with 8 MiB of readahead: windows of 4 MiB, together 16, and 40 for the machine.
    #[test]
    fn delegation_budget_is_readahead_plus_four_windows_within_two_thirds() {
        /// Number of pages in a MiB.
        const MIB: u64 = 256;
        let budget = DelegationBudget::for_memory(64 * MIB, 8 * MIB).unwrap();
        assert_eq!(
            (budget.window_pages_max, budget.total_pages_max, budget.machine_pages),
            (4 * MIB, 16 * MIB, 40 * MIB)
        );
        let large_budget = DelegationBudget::for_memory(1024 * MIB, 8 * MIB).unwrap();
        assert_eq!(large_budget.window_pages_max, 8 * MIB);
        // Windows of 2 MiB and the readahead take 16 of 24 MiB, and more than two thirds of 23 MiB.
        assert!(DelegationBudget::for_memory(24 * MIB, 8 * MIB).is_some());
        assert_eq!(DelegationBudget::for_memory(23 * MIB, 8 * MIB), None);
        assert_eq!(DelegationBudget::for_memory(64 * MIB, 0), None);
    }
}
