//! Windows of long runs that are lent to the kernel's own mapping of the file.
//!
//! A page that we serve is cleared, filled and moved. The kernel's own mapping of a stream spares all three, and the faults: it
//! reads into large pages of its cache, far ahead, and maps them. What it lacks is knowing where that is worth it, and an end to
//! the memory that it takes. So the law, in words: a run of pages that has been touched for 2 MiB will go on. Where the device is
//! [swift](left_to_kernel), what comes next of it is the kernel's: as much as the run is long, a sixteenth of the memory
//! or 8 MiB at the most. A fault tells when a run has come to the end of that, and is lent the next. Windows that
//! runs have left are taken back, the oldest first, when there is no room for another.
//!
//! The room is what the kernel reads ahead of a run, and four windows; the machine has so much less memory from the first
//! window on. Where that is more than two thirds of all, nothing is lent. What the kernel has brought in of a run stays in its
//! cache, which gives way by itself; but where the file is larger than what is free, it is dropped with the window, for what is
//! read next would drive it out before anybody comes back.
//!
//! A run comes up to a page in steps, too: to copy a mebibyte backwards touches its last page first. So it may lie
//! as far ahead as a quarter of the run is long.
//!
//! A window is the kernel's whole: the server sees neither its touches nor its faults, a page that can't be read is a bus error as ever, and
//! its pages are no frames of the machine. Nothing of a mapping is lent while the program has memory locked,
//! for the new windows would not be.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use readpath_core::machine::Machine;
use readpath_core::readahead::Advice;
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};

use super::Areas;
use crate::kernel_pages::{cached_pages, drop_cached};
use crate::pager::left_to_kernel;
use crate::pager::runs::PageRanges;
use crate::pager::take_back::TakeBack;
use crate::target::Target;

/// A run may be this part of its length away from the page that is touched next.
const GAP_SHARE: u64 = 4;
/// The part of the memory that a window has at the most, and where that is less, the largest page.
const WINDOW_SHARE: u64 = 16;
/// The kernel's largest page of a file, 2 MiB. It drops none of which a part is asked for, so windows end between two where they
/// can; and the shortest run that is expected to go on is as long.
const LARGE_PAGES: u64 = 512;
/// The longest window has so many of the largest pages, 8 MiB: a fault and a move for each 3 ms of a fast stream.
const WINDOW_LARGE_PAGES_MAX: u64 = 4;
/// How many of the largest windows there is room for.
const WINDOWS: u64 = 4;
/// A run that hasn't come to the end of its window for so long is taken to have ended there.
const ABANDONED: Time = Time::from_s(1);

/// What is lent of one mapping.
#[derive(Debug)]
pub(super) struct Lending {
    /// None where nothing is, or not any more.
    room: Option<ShareBudget>,
    /// What the kernel has brought in of a window is dropped with it.
    drops_behind: bool,
    windows: VecDeque<SharedWindow>,
    /// Windows that the system didn't let us take back: the kernel's for good.
    kept: Vec<PageRange>,
    /// There once something is lent.
    back: Option<TakeBack>,
}

/// How much may be lent, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ShareBudget {
    window_pages_max: u64,
    /// Of all windows.
    pages: u64,
    /// What the kernel reads ahead of a run.
    ahead_pages: u64,
    /// What is left to the machine.
    machine_pages: u64,
    /// Whether the device was found to be swift; looked up for the first run.
    is_known: bool,
}

/// A window that the kernel maps.
#[derive(Clone, Copy, Debug)]
struct SharedWindow {
    range: PageRange,
    lent: Time,
    /// The next one has been lent.
    is_left: bool,
    /// What the kernel's cache drops with it: nothing where that held some of its run before, or keeps it.
    drops: PageRange,
}

impl Lending {
    /// Of a mapping with so many pages of memory; nothing where it is too small for what the kernel reads ahead.
    pub(super) fn of(target: &Target, memory_pages: u64, drops_behind: bool) -> Lending {
        let ahead = target.queue().map_or(0, |queue| queue.read_ahead_bytes / PAGE_BYTES);
        let room = ShareBudget::of(memory_pages, ahead);
        Lending { room, drops_behind, ..Lending::none() }
    }

    /// Nothing is lent.
    pub(super) fn none() -> Lending {
        Lending {
            room: None,
            drops_behind: true,
            windows: VecDeque::new(),
            kept: Vec::new(),
            back: None,
        }
    }

    /// Whether a page is the kernel's now.
    pub(super) fn has(&self, page: u64) -> bool {
        let mut kept = self.kept.iter();
        self.windows.iter().any(|window| window.range.contains(page))
            || kept.any(|range| range.contains(page))
    }

    fn pages(&self, counts: impl Fn(&SharedWindow) -> bool) -> u64 {
        self.windows.iter().filter(|window| counts(window)).map(|window| window.range.count()).sum()
    }

    /// The next window to be taken back where room is short: the oldest that its run has left, or has not gone on in for long.
    fn first_left(&self, now: Time) -> Option<usize> {
        self.windows.iter().position(|window| window.is_left || now.since(window.lent) >= ABANDONED)
    }

    /// What may be lent, if so much more has room once the windows that were left are back.
    fn room_for(&mut self, target: &Target, now: Time, pages: u64) -> Option<ShareBudget> {
        let room = self.room.as_mut()?;
        if !room.is_known {
            room.is_known = true;
            if !left_to_kernel::is_swift(target) {
                self.room = None;
            }
        }
        let room = self.room?;
        let stays = |window: &SharedWindow| !window.is_left && now.since(window.lent) < ABANDONED;
        (self.pages(stays) + pages <= room.pages).then_some(room)
    }
}

impl ShareBudget {
    fn of(memory_pages: u64, ahead_pages: u64) -> Option<ShareBudget> {
        let (share, large) = (memory_pages / WINDOW_SHARE, large_pages());
        let window_pages_max = (share - share % large).clamp(large, WINDOW_LARGE_PAGES_MAX * large);
        let pages = WINDOWS * window_pages_max;
        let taken = pages + ahead_pages;
        let is_room = ahead_pages > 0 && taken <= memory_pages * 2 / 3;
        let machine_pages = memory_pages.saturating_sub(taken);
        is_room.then_some(ShareBudget {
            window_pages_max,
            pages,
            ahead_pages,
            machine_pages,
            is_known: false,
        })
    }
}

/// What is to be lent of a file of so many pages when a page is touched that isn't mapped.
fn next_window(runs: &PageRanges, page: u64, most: u64, file_pages: u64) -> Option<PageRange> {
    let (below, above, large) = (runs.below(page), runs.above(page), large_pages());
    let is_long = |run: &PageRange| run.count() >= large;
    let ends_near =
        |run: &PageRange| run.end <= page && (page - run.end) * GAP_SHARE <= run.count();
    if let Some(run) = below.filter(is_long).filter(ends_near) {
        let end = (run.end + run.count().min(most)).min(file_pages);
        let whole = end - end % large;
        let end = if whole > page { whole } else { end };
        let end = above.map_or(end, |above| end.min(above.first));
        return Some(PageRange { first: run.end, end }).filter(|window| window.contains(page));
    }
    let run = above.filter(is_long).filter(|run| run.first == page + 1)?;
    let first = run.first.saturating_sub(run.count().min(most));
    let whole = first.next_multiple_of(large);
    let first = if whole <= page { whole } else { first };
    let first = below.map_or(first, |below| first.max(below.end));
    Some(PageRange { first, end: run.first })
}

impl Areas {
    /// Lends the kernel what comes next of the run that has come to this page, if it is one. True if the page is the
    /// kernel's now.
    pub(super) fn lend(&mut self, machine: &mut Machine, page: u64) -> bool {
        let Some(ShareBudget { window_pages_max, .. }) = self.lending.room else { return false };
        let file_pages = self.file_bytes.div_ceil(PAGE_BYTES);
        let Some(range) = next_window(&self.runs, page, window_pages_max, file_pages) else {
            return false;
        };
        let now = self.now();
        let Some(room) = self.lending.room_for(&self.target, now, range.count()) else {
            return false;
        };
        let adjoins =
            |other: &SharedWindow| other.range.end == range.first || other.range.first == range.end;
        // A run that goes on was looked at when it began.
        let before = self.lending.windows.iter().find(|&other| adjoins(other)).copied();
        let is_locked = before.is_none() && has_locked_memory();
        if is_locked || self.poisoned.range(range.pages()).next().is_some() {
            return false;
        }
        if !self.can_take_back() || !self.leave_machine(machine, room.machine_pages) {
            return false;
        }
        if range.pages().any(|page| self.resident.contains_key(&page)) {
            // It will be used, if not from here.
            machine.mapped(self.handle, range);
            self.advise(machine, Advice::DontNeed, range);
        }
        let is_dropped = match before {
            Some(before) => !before.drops.is_empty(),
            None => self.lending.drops_behind && cached_pages(&self.target, range) == Some(0),
        };
        if self.user.lend(range, self.target.as_fd()).is_err() {
            // The system has no room for so many parts of memory, or the file system doesn't let it.
            self.lending.room = None;
            return false;
        }
        for window in &mut self.lending.windows {
            window.is_left |= adjoins(window);
        }
        let drops = match before {
            _ if !is_dropped => PageRange::default(),
            Some(_) => range,
            // The kernel begins with what lies around the page that is touched.
            None => PageRange { first: range.first.saturating_sub(room.ahead_pages), ..range },
        };
        self.lending.windows.push_back(SharedWindow { range, lent: now, is_left: false, drops });
        self.runs.insert(range);
        self.statistics.lent_pages += range.count();
        self.wake_all(range);
        true
    }

    /// Takes windows back until the others have room.
    pub(super) fn take_surplus_back(&mut self) {
        let room = self.lending.room.map_or(0, |room| room.pages);
        while self.lending.pages(|_| true) > room {
            let Some(nth) = self.lending.first_left(self.now()) else { return };
            self.take_back(nth);
        }
    }

    /// Takes every window back that has pages of a range.
    pub(super) fn take_range_back(&mut self, range: PageRange) {
        let overlaps = |window: &SharedWindow| {
            window.range.first < range.end && range.first < window.range.end
        };
        while let Some(nth) = self.lending.windows.iter().position(overlaps) {
            self.take_back(nth);
        }
    }

    /// Whether what is lent can be taken back: where the system gives no thread for that, nothing is lent.
    fn can_take_back(&mut self) -> bool {
        if self.lending.back.is_none() {
            match TakeBack::start(&self.uffd, &self.user) {
                Ok(back) => self.lending.back = Some(back),
                Err(_) => self.lending.room = None,
            }
        }
        self.lending.back.is_some()
    }

    /// Has a window's place taken by absent pages that we serve. Faults that are told meanwhile are among `self.faults`.
    fn take_back(&mut self, nth: usize) {
        let Some(window) = self.lending.windows.remove(nth) else { return };
        let back = self.lending.back.as_ref().expect("it was there before anything was lent");
        let is_back = back.take(window.range, &self.uffd, &mut self.faults);
        drop_cached(&self.target, window.drops);
        if is_back {
            self.runs.remove(window.range);
        } else {
            // So would be any other that is lent.
            self.lending.kept.push(window.range);
            self.lending.room = None;
        }
    }

    /// Leaves the machine so much memory at the most; false if more of it is in use now.
    fn leave_machine(&mut self, machine: &mut Machine, pages: u64) -> bool {
        if machine.memory_bytes()[0] <= pages * PAGE_BYTES {
            return true;
        }
        let withdrawn = machine.resize(self.now(), pages * PAGE_BYTES);
        for frame in &withdrawn {
            let page = self.owners[frame.0 as usize].take();
            let is_held =
                |page: &u64| self.resident.get(page).is_some_and(|held| held.frame == frame.0);
            self.pages.extend(page.filter(is_held));
        }
        self.evict();
        machine.withdrawn(&withdrawn);
        machine.memory_bytes()[0] <= pages * PAGE_BYTES
    }
}

/// The kernel's largest page of a file, in pages.
fn large_pages() -> u64 {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(pages) = crate::simulation::memory::large_pages() {
        return pages;
    }
    LARGE_PAGES
}

/// Whether the program has locked any of its memory (`mlock(2)`), or it can't be told.
fn has_locked_memory() -> bool {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(has) = crate::simulation::memory::has_locked() {
        return has;
    }
    let locked = || {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let (_, rest) = status.split_once("VmLck:")?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    };
    locked() != Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::OpenOptions;

    fn runs(ranges: &[(u64, u64)]) -> PageRanges {
        let mut runs = PageRanges::default();
        ranges.iter().for_each(|&(first, end)| runs.insert(PageRange { first, end }));
        runs
    }

    fn window(ranges: &[(u64, u64)], page: u64) -> Option<(u64, u64)> {
        next_window(&runs(ranges), page, 1024, 10_240).map(|window| (window.first, window.end))
    }

    /// Memory as a file (tmpfs(5)) has no device that could be swift; of one that was found to be, it is not asked again.
    #[test]
    fn nothing_is_lent_of_a_file_whose_device_is_not_found_to_be_swift() {
        let path = format!("/dev/shm/readpath-lent-{}", std::process::id());
        if std::fs::write(&path, [1; 8192]).is_err() {
            return;
        }
        let target = Target::open(path.as_ref(), OpenOptions::default());
        std::fs::remove_file(&path).unwrap();
        let target = target.unwrap();
        let room = ShareBudget::of(16_384, 32).unwrap();
        for (is_known, is_lent) in [(false, false), (true, true)] {
            let room = Some(ShareBudget { is_known, ..room });
            let mut lending = Lending { room, ..Lending::none() };
            assert_eq!(lending.room_for(&target, Time(0), 512).is_some(), is_lent);
        }
    }

    #[test]
    fn a_run_of_two_mebibytes_is_lent_as_much_as_it_is_long_and_no_more_than_the_most() {
        assert_eq!(window(&[(0, 511)], 511), None);
        assert_eq!(window(&[(0, 512)], 512), Some((512, 1024)));
        assert_eq!(window(&[(1024, 4096)], 4096), Some((4096, 5120)));
        // Where the file ends, or another run begins, it ends.
        assert_eq!(window(&[(9_000, 10_000)], 10_000), Some((10_000, 10_240)));
        assert_eq!(window(&[(0, 600), (700, 701)], 600), Some((600, 700)));
    }

    #[test]
    fn windows_end_where_large_pages_meet() {
        assert_eq!(window(&[(100, 700)], 700), Some((700, 1024)));
        assert_eq!(window(&[(100, 3100)], 3100), Some((3100, 4096)));
        // None do between the page and the end.
        assert_eq!(window(&[(1524, 2036)], 2164), Some((2036, 2548)));
        assert_eq!(window(&[(2000, 2600)], 1999), Some((1536, 2000)));
    }

    #[test]
    fn a_page_a_quarter_of_the_run_ahead_belongs_to_it() {
        assert_eq!(window(&[(0, 800)], 1000), Some((800, 1536)));
        assert_eq!(window(&[(0, 800)], 1001), None);
        // Further ahead than a window reaches, it doesn't.
        assert_eq!(window(&[(0, 5000)], 6100), None);
    }

    #[test]
    fn a_run_that_goes_down_is_lent_what_lies_below_it() {
        assert_eq!(window(&[(3000, 4000)], 2999), Some((2048, 3000)));
        assert_eq!(window(&[(2000, 2600)], 1998), None);
        assert_eq!(window(&[(300, 900)], 299), Some((0, 300)));
        assert_eq!(window(&[(100, 101), (300, 900)], 299), Some((101, 300)));
    }

    /// 64 MiB, and 8 MiB ahead: windows of 4 MiB, 16 of them together, and 40 for the machine.
    #[test]
    fn the_room_is_what_is_read_ahead_and_four_windows_of_at_most_two_thirds_of_the_memory() {
        const MIB: u64 = 256;
        let room = ShareBudget::of(64 * MIB, 8 * MIB).unwrap();
        assert_eq!(
            (room.window_pages_max, room.pages, room.machine_pages),
            (4 * MIB, 16 * MIB, 40 * MIB)
        );
        assert_eq!(ShareBudget::of(1024 * MIB, 8 * MIB).unwrap().window_pages_max, 8 * MIB);
        // Windows of 2 MiB take 16 of 24 MiB, and of 23 more than two thirds.
        assert!(ShareBudget::of(24 * MIB, 8 * MIB).is_some());
        assert_eq!(ShareBudget::of(23 * MIB, 8 * MIB), None);
        assert_eq!(ShareBudget::of(64 * MIB, 0), None);
    }
}
