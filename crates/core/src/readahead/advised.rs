//! The pages of one file in the kernel's page cache, as far as the library knows them.
//!
//! A policy checks its cache at each read. Checking the kernel's cache at each read would be too
//! expensive. This module therefore remembers the pages that were read and the pages that the
//! kernel was advised to read. Each page has one bit for this, and another bit if it was advised
//! and not read since. The kernel evicts pages without notice. A policy may then take an absent
//! page for cached. The worst result is a read that waits for the device, as it would without
//! readahead.
//!
//! A file of a lone reader may be read whole into *spare memory*: memory beyond the policy's own,
//! which would stay free otherwise. Pages that are advised for this purpose have counts of their
//! own.
//!
//! Bounded: of each file the [`WINDOWS_MAX`] most recently begun windows of 2 MiB are remembered,
//! in 144 bytes each.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::mem;

use super::{
    DeviceEvidence, Evidence, FileEvidence, Folio, PageView, ReadaheadState, SINGLE_PAGE_ORDER,
};
use crate::observed::DECAY_WINDOW;
use crate::unit::PageRange;

/// Pages of one remembered window, 2 MiB.
const WINDOW_PAGES: u64 = 512;

/// Most remembered windows of a file: 512 MiB of it, in 40 KiB of memory.
const WINDOWS_MAX: usize = 256;

/// Pages in one word of a window.
const WORD_PAGES: u64 = u64::BITS as u64;

/// Consecutive reads outside the advised pages after which the reader is assumed to have left them.
/// Chosen, not measured.
const READS_ELSEWHERE_MAX: u32 = 64;

/// Words of one bit set of a window.
const WORDS: usize = (WINDOW_PAGES / WORD_PAGES) as usize;

/// Known and advised pages of one file.
#[derive(Clone, Debug, Default)]
pub struct KernelCachedPages {
    /// Windows by number: the page number divided by [`WINDOW_PAGES`].
    windows: BTreeMap<u64, Box<AdvisedWindow>>,
    /// Numbers of the windows, oldest first.
    window_order: VecDeque<u64>,
    /// Pages with a readahead mark: a read of one is reported to the policy.
    marks: BTreeSet<u64>,
    /// Advised pages that were not read since.
    unused_pages: u64,
    /// Number of the unused pages in the spare memory. A used page counts as one of them if there
    /// is any: the bits of a page don't show its memory.
    spare_unused_pages: u64,
    /// Consecutive reads that touched no unused advised page and no mark.
    consecutive_other_reads: u32,
    /// Observations about the file's reads, which the policy reads and updates.
    evidence: FileEvidence,
}

/// Two bits for each page of a window.
#[derive(Clone, Debug, Default)]
struct AdvisedWindow {
    /// Pages that were read or advised.
    known: [u64; WORDS],
    /// Advised pages that were not read since.
    unused: [u64; WORDS],
}

impl KernelCachedPages {
    /// Creates the state of a file without known pages. `file_number` identifies the file in the
    /// decision log.
    pub fn new(file_number: u32) -> KernelCachedPages {
        KernelCachedPages {
            evidence: FileEvidence::new(file_number),
            ..KernelCachedPages::default()
        }
    }

    /// Returns true if a read of these pages need not be reported to a policy: all were read or
    /// advised, and none is marked.
    pub fn is_quiet(&self, request: PageRange) -> bool {
        let mut parts = split_into_words(request);
        parts.all(|part| part.bits_of(&self.windows, |window| &window.known) == part.mask)
            && self.marks.range(request.pages()).next().is_none()
    }

    /// Returns true if some of these pages were advised and not read since.
    pub fn has_unused(&self, request: PageRange) -> bool {
        let mut parts = split_into_words(request);
        parts.any(|part| part.bits_of(&self.windows, |window| &window.unused) > 0)
    }

    /// The readahead state of the file. It has no credit, because the outcome of advised pages is
    /// not counted.
    pub fn readahead_state(&self, device: &DeviceEvidence) -> ReadaheadState {
        ReadaheadState::of(device, &self.evidence, None)
    }

    /// Returns true if at least a 64th of the file (`DECAY_WINDOW`) was requested at random, so
    /// that it may be read whole.
    pub fn may_be_read_whole(&self, file_pages: u64) -> bool {
        self.evidence.has_requested_share(DECAY_WINDOW, file_pages)
    }

    /// Returns true if a reader is still expected at advised or marked pages. If none is expected,
    /// the caller need not report reads of known pages.
    pub fn awaits_reader(&self) -> bool {
        (self.unused_pages > 0 || !self.marks.is_empty())
            && self.consecutive_other_reads < READS_ELSEWHERE_MAX
    }

    /// Updates this record after a read of the pages in `request`; does no I/O. The pages become
    /// known. Advised pages that were unused leave the counts of unused pages. Pages that were not
    /// known before count as added to the device's cache. Marks stay: the policy removes them. A
    /// read of no unused advised page counts as a read elsewhere.
    pub fn read(&mut self, request: PageRange, device: &mut DeviceEvidence) {
        // `remove_unused` resets the count at a used advised page.
        self.consecutive_other_reads = self.consecutive_other_reads.saturating_add(1);
        for part in split_into_words(request) {
            let window = self.window_at(part.window_number, device);
            // The bits of the pages that were unknown, and of the advised pages that are now used.
            let added = part.mask & !window.known[part.word];
            let used = part.mask & window.unused[part.word];
            window.known[part.word] |= part.mask;
            window.unused[part.word] &= !part.mask;
            device.added_pages += u64::from(added.count_ones());
            self.remove_unused(used.count_ones(), device);
        }
    }

    /// Removes `pages` advised pages from the counts of unused pages, of this file and of the
    /// device (`standing_pages`). They were used, left the cache, or are no longer remembered.
    /// Unless `pages` is 0, the reader counts as being at the advised pages again, in all of these
    /// cases.
    fn remove_unused(&mut self, pages: u32, device: &mut DeviceEvidence) {
        let spare_pages = u64::from(pages).min(self.spare_unused_pages);
        self.unused_pages -= u64::from(pages);
        self.spare_unused_pages -= spare_pages;
        device.spare_standing_pages -= spare_pages;
        device.standing_pages -= u64::from(pages) - spare_pages;
        if pages > 0 {
            self.consecutive_other_reads = 0;
        }
    }

    /// Records that a read found these pages absent. Pages that were read before were evicted.
    /// Pages that were only advised stay known: the device is assumed to be reading them.
    pub fn on_miss(&mut self, request: PageRange) {
        for part in split_into_words(request) {
            if let Some(window) = self.windows.get_mut(&part.window_number) {
                // Only the advised, unused pages of this part stay known.
                window.known[part.word] &= !part.mask | window.unused[part.word];
            }
        }
    }

    /// Records that these pages left the cache: they become unknown, lose their marks, and do not
    /// count as unused.
    pub fn on_evicted(&mut self, range: PageRange, device: &mut DeviceEvidence) {
        let windows = range.first / WINDOW_PAGES..range.end.div_ceil(WINDOW_PAGES);
        let numbers: Vec<u64> = self.windows.range(windows).map(|(&number, _)| number).collect();
        for number in numbers {
            let first = number * WINDOW_PAGES;
            let within = PageRange {
                first: range.first.max(first),
                end: range.end.min(first + WINDOW_PAGES),
            };
            for part in split_into_words(within) {
                // The window exists, so none is created or dropped.
                let window = self.window_at(number, device);
                let gone_unused = part.mask & window.unused[part.word];
                window.known[part.word] &= !part.mask;
                window.unused[part.word] &= !part.mask;
                self.remove_unused(gone_unused.count_ones(), device);
            }
        }
        self.marks.retain(|&mark| !range.contains(mark));
    }

    /// Makes the unused pages of the range unknown. They lose their marks and no longer count as
    /// unused. The pages that were read stay known.
    fn forget_unused(&mut self, range: PageRange, device: &mut DeviceEvidence) {
        for part in split_into_words(range) {
            let Some(window) = self.windows.get_mut(&part.window_number) else { continue };
            // The bits of the advised pages that were not read.
            let forgotten = part.mask & window.unused[part.word];
            window.known[part.word] &= !forgotten;
            window.unused[part.word] &= !forgotten;
            self.remove_unused(forgotten.count_ones(), device);
            let marks = self.marks.range(part.first..part.first + WORD_PAGES).copied();
            let is_forgotten = |mark: &u64| forgotten >> (mark - part.first) & 1 == 1;
            let forgotten_marks: Vec<u64> = marks.filter(is_forgotten).collect();
            forgotten_marks.iter().for_each(|mark| _ = self.marks.remove(mark));
        }
    }

    /// Returns the window with this number (its first page divided by the window size), created if
    /// it is new. At the limit, the oldest window is dropped with its marks, and its unused pages
    /// leave the counts.
    fn window_at(&mut self, window_number: u64, device: &mut DeviceEvidence) -> &mut AdvisedWindow {
        if !self.windows.contains_key(&window_number) {
            if self.window_order.len() == WINDOWS_MAX
                && let Some(oldest) = self.window_order.pop_front()
                && let Some(window) = self.windows.remove(&oldest)
            {
                let unused: u32 = window.unused.iter().map(|word| word.count_ones()).sum();
                self.remove_unused(unused, device);
                let first = oldest * WINDOW_PAGES;
                let dropped = PageRange::new(first, WINDOW_PAGES);
                self.marks.retain(|&mark| !dropped.contains(mark));
            }
            self.window_order.push_back(window_number);
        }
        self.windows.entry(window_number).or_default()
    }

    /// Returns true if the bit of `page` is set in the bit set that `select_bits` selects. False
    /// for a page of no remembered window.
    fn is_bit_set(&self, page: u64, select_bits: impl Fn(&AdvisedWindow) -> &[u64; WORDS]) -> bool {
        let mut parts = split_into_words(PageRange::new(page, 1));
        parts.all(|part| part.bits_of(&self.windows, &select_bits) == part.mask)
    }
}

/// Part of a page range within one word of a window's bit sets.
struct WordRange {
    /// Number of the window: its first page divided by the window size.
    window_number: u64,
    /// Index of the word in the window.
    word: usize,
    /// Bits of the range in this word.
    mask: u64,
    /// The page of bit 0 of the word.
    first: u64,
}

impl WordRange {
    /// Returns the set bits of this part in the bit set that `select_bits` selects from its window;
    /// 0 if the window is not remembered.
    fn bits_of(
        &self,
        windows: &BTreeMap<u64, Box<AdvisedWindow>>,
        select_bits: impl Fn(&AdvisedWindow) -> &[u64; WORDS],
    ) -> u64 {
        let window = windows.get(&self.window_number);
        window.map_or(0, |window| select_bits(window)[self.word] & self.mask)
    }
}

/// Splits a page range into its parts by word, in ascending order.
fn split_into_words(range: PageRange) -> impl Iterator<Item = WordRange> {
    // An empty range has no word, also if it lies inside one.
    let first_word = range.first / WORD_PAGES;
    let end_word = if range.is_empty() { first_word } else { range.end.div_ceil(WORD_PAGES) };
    (first_word..end_word).map(move |word| {
        let first = word * WORD_PAGES;
        let (low_bit, end_bit) =
            (range.first.max(first) - first, range.end.min(first + WORD_PAGES) - first);
        // For the end of the word (bit 64), all bits.
        let bits_below = |bit: u64| 1u64.checked_shl(bit as u32).map_or(u64::MAX, |bit| bit - 1);
        WordRange {
            window_number: first / WINDOW_PAGES,
            word: (word % WORDS as u64) as usize,
            mask: bits_below(end_bit) & !bits_below(low_bit),
            first,
        }
    })
}

/// The pages of one read, as a policy sees and extends them. Collects the ranges that the kernel is
/// to be advised of.
#[derive(Debug)]
pub struct KernelPageView<'a> {
    /// Known and advised pages of the file.
    pub advised: &'a mut KernelCachedPages,
    /// Evidence of the device.
    pub device: &'a mut DeviceEvidence,
    /// Number of pages of the file.
    pub file_pages: u64,
    /// Ranges to advise, in the order of the policy's calls.
    pub advised_ranges: &'a mut Vec<PageRange>,
}

impl KernelPageView<'_> {
    /// Records the pages of `run`, all absent, as known, advised and unused. Adds them to the
    /// ranges to advise, joined with the last range if they touch it on either side.
    fn advise_run(&mut self, run: PageRange) {
        for part in split_into_words(run) {
            let window = self.advised.window_at(part.window_number, self.device);
            let added = part.mask & !window.known[part.word];
            window.known[part.word] |= added;
            window.unused[part.word] |= added;
            let count = u64::from(added.count_ones());
            self.advised.unused_pages += count;
            // The policy sets `fills_spare` while it reads a file into the spare memory.
            if self.advised.evidence.fills_spare {
                self.advised.spare_unused_pages += count;
                self.device.spare_standing_pages += count;
                self.device.spare_added_pages += count;
            } else {
                self.device.added_pages += count;
                self.device.standing_pages += count;
            }
        }
        self.advised.consecutive_other_reads = 0;
        match self.advised_ranges.last_mut() {
            Some(last) if last.end == run.first => last.end = run.end,
            Some(last) if last.first == run.end => last.first = run.first,
            _ => self.advised_ranges.push(run),
        }
    }

    /// Returns the first run of absent pages in a range; `None` if all pages are known. The caller
    /// advises each such run in one call to the kernel.
    fn absent_run(&self, range: PageRange) -> Option<PageRange> {
        let mut absent_pages = split_into_words(range).flat_map(|part| {
            let bits = part.mask & !part.bits_of(&self.advised.windows, |window| &window.known);
            (0..WORD_PAGES).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| part.first + bit)
        });
        let first = absent_pages.next()?;
        // The run ends before the first known page.
        let mut end = first + 1;
        while absent_pages.next() == Some(end) {
            end += 1;
        }
        Some(PageRange { first, end })
    }
}

impl PageView for KernelPageView<'_> {
    /// True if the page was read or advised, and did not leave since, as far as is known.
    fn is_cached(&self, page: u64) -> bool {
        self.advised.is_bit_set(page, |window| &window.known)
    }

    /// Same as `is_cached`: the arrival of advised pages is unknown.
    fn is_filled(&self, page: u64) -> bool {
        self.is_cached(page)
    }

    /// True if the page was advised and not read since.
    fn is_unused(&self, page: u64) -> bool {
        self.advised.is_bit_set(page, |window| &window.unused)
    }

    /// Statistics from which the policy derives the window: costs of the device, and random
    /// requests of this file. The policy reads and updates them.
    fn evidence(&mut self) -> Evidence<'_> {
        Evidence { device: self.device, file: &mut self.advised.evidence }
    }

    /// Folio of a marked page; `None` without a mark.
    fn marked(&self, page: u64) -> Option<Folio> {
        let folio = Folio { first: page, order: SINGLE_PAGE_ORDER };
        self.advised.marks.contains(&page).then_some(folio)
    }

    /// Removes the mark of the folio's first page, and resets the count of reads elsewhere. A read
    /// at a mark shows that its reader is still at the advised pages.
    fn clear_mark(&mut self, folio: Folio) {
        self.advised.marks.remove(&folio.first);
        self.advised.consecutive_other_reads = 0;
    }

    /// Marks a page that was read or advised.
    fn mark(&mut self, page: u64) {
        if self.is_cached(page) {
            self.advised.marks.insert(page);
        }
    }

    /// Adds the pages of a folio as single pages, of which only the first is marked. Returns false
    /// if not all find memory; the first ones may then be added.
    fn add(&mut self, folio: Folio, is_marked: bool) -> bool {
        self.add_absent(folio.range(), is_marked)
    }

    /// Stops counting the unused pages of the range as prefetched, because their reader has passed
    /// them. The kernel evicts these pages without notice: without this call they would count
    /// against the memory until the file is closed.
    fn forget_unused(&mut self, range: PageRange) {
        self.advised.forget_unused(range, self.device);
    }

    /// Adds absent pages: at most half of the memory in unused pages over all readers, or the spare
    /// memory. Returns false at that limit, with the pages before it added. With `is_marked`, the
    /// first added page is marked.
    fn add_absent(&mut self, range: PageRange, is_marked: bool) -> bool {
        let mut remaining = range.clipped(self.file_pages);
        let mut is_marked = is_marked;
        while let Some(run) = self.absent_run(remaining) {
            remaining.first = run.end;
            let device = &self.device;
            // The memory that the policy fills: the spare one, or half of its own. The other half
            // keeps a prefetched page resident until it is used.
            let room_pages = match self.advised.evidence.fills_spare {
                true => device.spare_pages.saturating_sub(device.spare_standing_pages),
                false => (device.memory_pages / 2).saturating_sub(device.standing_pages),
            };
            let added = PageRange::new(run.first, run.count().min(room_pages));
            if added.is_empty() {
                return false;
            }
            if mem::take(&mut is_marked) {
                self.advised.marks.insert(added.first);
            }
            self.advise_run(added);
            if added.count() < run.count() {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device whose machine has a memory of 4,096 pages.
    fn device() -> DeviceEvidence {
        DeviceEvidence { memory_pages: 4096, ..DeviceEvidence::default() }
    }

    /// Advises the absent pages of `range`, the first of them marked, in a file of 10,000 pages.
    /// Returns the ranges for the kernel.
    fn add(
        advised: &mut KernelCachedPages,
        device: &mut DeviceEvidence,
        range: PageRange,
    ) -> Vec<PageRange> {
        let mut runs = Vec::new();
        let mut pages =
            KernelPageView { advised, device, file_pages: 10_000, advised_ranges: &mut runs };
        let is_marked = true;
        pages.add_absent(range, is_marked);
        runs
    }

    /// Random ranges of up to 127 pages are read, advised or evicted. The reference is two sets of
    /// page numbers, changed in the same way.
    #[test]
    fn known_and_unused_pages_match_a_set_of_page_numbers() {
        let (mut advised, mut device) = (KernelCachedPages::default(), device());
        let (mut known, mut unused) = (BTreeSet::<u64>::new(), BTreeSet::<u64>::new());
        let mut state = 7_u64;
        for step in 0..400 {
            let random = crate::splitmix::next(&mut state);
            let range = PageRange::new(random % 1500, random >> 32 & 127);
            match step % 3 {
                0 => {
                    advised.read(range, &mut device);
                    range.pages().for_each(|page| _ = (known.insert(page), unused.remove(&page)));
                }
                1 => {
                    let runs = add(&mut advised, &mut device, range);
                    let newly_known: BTreeSet<u64> =
                        range.pages().filter(|page| !known.contains(page)).collect();
                    assert_eq!(
                        runs.iter().flat_map(|run| run.pages()).collect::<BTreeSet<_>>(),
                        newly_known
                    );
                    known.extend(&newly_known);
                    unused.extend(&newly_known);
                }
                _ if step % 9 == 5 => {
                    advised.forget_unused(range, &mut device);
                    range.pages().filter(|page| unused.remove(page)).for_each(|page| {
                        known.remove(&page);
                    });
                }
                _ if step % 9 == 2 => {
                    advised.on_evicted(range, &mut device);
                    range.pages().for_each(|page| _ = (known.remove(&page), unused.remove(&page)));
                }
                _ => {}
            }
            // Without marks, `is_quiet` depends on the known pages alone.
            advised.marks.clear();
            assert_eq!(device.standing_pages, unused.len() as u64, "after step {step}");
            assert_eq!(advised.is_quiet(range), range.pages().all(|page| known.contains(&page)));
        }
        assert!(known.len() > 500 && unused.len() > 50);
    }

    /// Pages 60 to 69 are advised, and page 60 is marked. Ranges with page 60 are reported until
    /// its mark is cleared.
    #[test]
    fn a_mark_is_reported_once() {
        let (mut advised, mut device) = (KernelCachedPages::default(), device());
        assert_eq!(
            add(&mut advised, &mut device, PageRange::new(60, 10)),
            [PageRange::new(60, 10)]
        );
        assert!(
            !advised.is_quiet(PageRange::new(58, 3)) && advised.is_quiet(PageRange::new(61, 9))
        );
        let mut runs = Vec::new();
        let mut pages = KernelPageView {
            advised: &mut advised,
            device: &mut device,
            file_pages: 100,
            advised_ranges: &mut runs,
        };
        let folio = pages.marked(60).unwrap();
        pages.clear_mark(folio);
        assert!(advised.is_quiet(PageRange::new(60, 3)));
    }

    /// Half of a memory of 4,096 pages is 2,048. After 48 of them are used, 48 more fit.
    #[test]
    fn advised_pages_are_at_most_half_of_the_memory() {
        let (mut advised, mut device) = (KernelCachedPages::default(), device());
        let runs = add(&mut advised, &mut device, PageRange::new(0, 3000));
        assert_eq!(runs, [PageRange::new(0, 2048)]);
        advised.read(PageRange::new(0, 48), &mut device);
        let runs = add(&mut advised, &mut device, PageRange::new(0, 3000));
        assert_eq!(runs, [PageRange::new(2048, 48)]);
    }

    /// Pages 0 to 3 were read, and 4 to 7 advised. A read finds 2 to 5 absent: 2 and 3 were
    /// evicted, and 4 and 5 are being read.
    #[test]
    fn absent_pages_are_gone_unless_advised_and_still_in_flight() {
        let (mut advised, mut device) = (KernelCachedPages::default(), device());
        advised.read(PageRange::new(0, 4), &mut device);
        add(&mut advised, &mut device, PageRange::new(4, 4));
        advised.on_miss(PageRange::new(2, 4));
        assert!(advised.is_quiet(PageRange::new(0, 2)) && !advised.is_quiet(PageRange::new(2, 1)));
        assert!(advised.is_quiet(PageRange::new(5, 3)));
        assert_eq!(device.standing_pages, 4);
    }

    /// The reader counts as gone after 64 reads of other pages, and returns with the first read of
    /// an advised page.
    #[test]
    fn advised_pages_expect_their_reader_until_64_reads_elsewhere() {
        let (mut advised, mut device) = (KernelCachedPages::default(), device());
        advised.read(PageRange::new(0, 1), &mut device);
        assert!(!advised.awaits_reader());
        add(&mut advised, &mut device, PageRange::new(100, 4));
        for nth in 0..64 {
            assert!(advised.awaits_reader(), "after {nth}");
            advised.read(PageRange::new(200 + nth, 1), &mut device);
        }
        assert!(!advised.awaits_reader());
        advised.read(PageRange::new(100, 1), &mut device);
        assert!(advised.awaits_reader());
    }

    /// An empty range inside a word has no pages, so its read begins no window.
    #[test]
    fn an_empty_range_begins_no_window() {
        let (mut advised, mut device) = (KernelCachedPages::default(), device());
        advised.read(PageRange::new(70, 0), &mut device);
        assert_eq!((advised.windows.len(), advised.window_order.len()), (0, 0));
    }

    /// 10 pages are advised in window 0, and one page is read in each of 256 further windows. The
    /// last of these drops window 0 with its unused pages and its mark.
    #[test]
    fn the_oldest_window_is_dropped_first() {
        let (mut advised, mut device) = (KernelCachedPages::default(), device());
        add(&mut advised, &mut device, PageRange::new(0, 10));
        for window in 1..=WINDOWS_MAX as u64 {
            assert_eq!(advised.windows.len() as u64, window);
            advised.read(PageRange::new(window * WINDOW_PAGES, 1), &mut device);
        }
        assert_eq!(advised.windows.len(), WINDOWS_MAX);
        assert!(!advised.is_quiet(PageRange::new(5, 1)));
        assert_eq!((device.standing_pages, advised.marks.len()), (0, 0));
    }
}
