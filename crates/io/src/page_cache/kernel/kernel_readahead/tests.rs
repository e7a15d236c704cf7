//! Decisions on reads of a modelled device with given costs, time and kernel page cache. On a real
//! disk they would depend on its speed.

use std::collections::BTreeSet;

use super::*;

const PAGE: u64 = PAGE_BYTES;
const FILE_BYTES: u64 = 64 << 20;
const MS: u64 = 1_000_000;

/// A disk of 1 ms and 200 MiB/s per request, and a kernel window of 128 KiB.
struct Model {
    steered: FileKernelReadahead,
    policy: Mutex<HandlePolicy>,
    now: u64,
    cached: BTreeSet<u64>,
    /// Number of pages brought in, by any means.
    brought: u64,
    last_end: Option<u64>,
    alone_from: Option<u64>,
    is_of_task: bool,
}

fn window() -> KernelWindow {
    KernelWindow { window_pages: 32, advice_pages_max: 256, may_block: false }
}

fn cost_ns(bytes: u64) -> u64 {
    MS + bytes * 1_000_000_000 / (200 << 20)
}

impl Model {
    fn new() -> Model {
        Model::with_whole_file_memory(0)
    }

    fn with_whole_file_memory(bytes: u64) -> Model {
        let kernel_readahead =
            Arc::new(PathKernelReadahead::new(Clock::start(), true, Some(bytes)));
        let _ = kernel_readahead.memory_pages.set(16 << 10);
        Model {
            steered: FileKernelReadahead::new(kernel_readahead, 0),
            policy: Mutex::default(),
            now: MS,
            cached: BTreeSet::new(),
            brought: 0,
            last_end: None,
            alone_from: None,
            is_of_task: false,
        }
    }

    fn bring(&mut self, pages: PageRange) {
        self.brought += pages.pages().filter(|page| self.cached.insert(*page)).count() as u64;
    }

    /// Models a read of `bytes` bytes from `offset` on through the kernel page cache. It is
    /// checked, shown to the policy if absent, and awaited.
    fn read(&mut self, offset: u64, bytes: u64) {
        let request = PageRange::covering(offset, bytes);
        let absent: Vec<u64> = request.pages().filter(|page| !self.cached.contains(page)).collect();
        let goes_on = self.last_end.map_or(offset == 0, |end| end == offset);
        let alone_from = self.alone_from.filter(|_| goes_on);
        if !absent.is_empty() || self.steered.is_prefetching() || alone_from.is_some() {
            let from = alone_from.unwrap_or(offset);
            let shown = PolicyAccess {
                offset: from,
                bytes: offset + bytes - from,
                is_continuation: goes_on,
                was_without_readahead: alone_from.is_some(),
                is_submitted: false,
                is_of_task: self.is_of_task,
                first_absent: absent.first().map(|&page| offset.max(page * PAGE)),
            };
            let (now, policy) = (Time(self.now), &self.policy);
            let PolicyDecision { answer: seen, advised_ranges: runs } =
                self.steered.decide(policy, now, FILE_BYTES, window, shown);
            runs.into_iter().for_each(|run| self.bring(run));
            if goes_on && !seen.is_kernel_readahead_off && !absent.is_empty() {
                self.bring(PageRange::new(request.end, window().kernel_readahead_pages(request)));
            }
            self.alone_from = seen.is_kernel_readahead_off.then_some(from);
        }
        if !absent.is_empty() {
            let begun = self.now;
            self.now += cost_ns(bytes);
            self.steered.path_readahead.record_request_cost(Time(begun), Time(self.now), bytes);
        }
        self.bring(request);
        self.now += MS / 10;
        self.last_end = Some(offset + bytes);
    }

    fn holds(&self, pages: std::ops::Range<u64>) -> bool {
        pages.into_iter().all(|page| self.cached.contains(&page))
    }

    fn decisions(&self) -> Vec<String> {
        let mut all = Vec::new();
        self.steered.path_readahead.take_decisions(&mut all);
        all.iter().map(ToString::to_string).collect()
    }
}

/// Blocks of 16 KiB every 256 KiB: the kernel reads nothing ahead of such a stream.
#[test]
fn next_block_of_a_stride_is_advised_and_the_gap_is_not() {
    let mut model = Model::new();
    let at = |nth: u64| nth * (256 << 10) + (64 << 10);
    (0..8).for_each(|nth| model.read(at(nth), 16 << 10));
    let next = at(8) / PAGE;
    assert!(model.holds(next..next + 4));
    assert!((next - 40..next - 8).all(|page| !model.cached.contains(&page)));
    let said = model.decisions();
    assert!(said.iter().any(|line| line.contains("strided")), "{said:?}");
}

#[test]
fn pages_below_a_descending_stream_are_advised() {
    let mut model = Model::new();
    (1..=16).for_each(|nth| model.read(FILE_BYTES - nth * (64 << 10), 64 << 10));
    let next = (FILE_BYTES - 17 * (64 << 10)) / PAGE;
    assert!(model.holds(next..next + 16));
    assert!(model.decisions().iter().any(|line| line.contains("backward")));
    let readahead_state =
        crate::readahead_state::ReadaheadState::from_core(model.steered.readahead_state());
    let window = readahead_state.window.expect("a stream has a window");
    assert_eq!(window.shape, "backward");
}

/// Pieces of 4 to 48 KiB at random offsets, each after a header. After half of them the policy has
/// learned that no data follows a piece. The kernel alone would read four times as much ahead of
/// each.
#[test]
fn pieces_after_headers_cause_little_extra_reading() {
    const PIECES: u64 = 120;
    let piece = |nth: u64| {
        let at = nth * 77 % PIECES * 500_007 + nth * 7_919 % 190_000;
        (at, 4_096 + nth * nth * 3_571 % 45_000)
    };
    let mut model = Model::new();
    let read_piece = |model: &mut Model, nth: u64| {
        let (at, bytes) = piece(nth);
        model.read(at, 30);
        model.read(at + 30, 24);
        model.read(at + 54, bytes);
    };
    (0..PIECES / 2).for_each(|nth| read_piece(&mut model, nth));
    let before = model.brought;
    (PIECES / 2..PIECES).for_each(|nth| read_piece(&mut model, nth));
    let asked: u64 = (PIECES / 2..PIECES)
        .map(|nth| PageRange::covering(piece(nth).0, 54 + piece(nth).1).count())
        .sum();
    let brought = model.brought - before;
    assert!(brought <= asked * 3 / 2, "{brought} pages of {asked}");
}

/// An ascending stream is left to the kernel as far as its window goes.
#[test]
fn ascending_stream_is_advised_of_nothing_within_the_kernels_window() {
    let mut model = Model::new();
    for nth in 0..64 {
        let (offset, bytes) = (nth * (64 << 10), 64 << 10);
        let request = PageRange::covering(offset, bytes);
        let shown = PolicyAccess {
            offset,
            bytes,
            is_continuation: true,
            was_without_readahead: false,
            is_submitted: false,
            is_of_task: false,
            first_absent: Some(offset),
        };
        let wanted =
            model.steered.decide(&model.policy, Time(model.now), FILE_BYTES, window, shown);
        let is_beyond = |run: &PageRange| run.end > request.end + window().window_pages;
        assert!(
            wanted.answer.is_kernel_readahead_off || wanted.advised_ranges.iter().all(is_beyond),
            "{nth}"
        );
        model.now += cost_ns(bytes);
    }
}

/// A stream that ends before its advised pages are used, and a file that is closed then: the pages
/// count against no other file.
#[test]
fn unused_advice_of_a_closed_file_is_forgotten() {
    let path_readahead = Arc::new(PathKernelReadahead::new(Clock::start(), false, Some(0)));
    let _ = path_readahead.memory_pages.set(16 << 10);
    let mut now = Time(MS);
    for number in 0..3 {
        let file = FileKernelReadahead::new(Arc::clone(&path_readahead), number);
        let policy = Mutex::default();
        for at in 0..64 {
            let access = PolicyAccess {
                offset: at * 64 * 1024,
                bytes: 64 * 1024,
                is_continuation: at > 0,
                was_without_readahead: false,
                is_submitted: false,
                is_of_task: false,
                first_absent: Some(at * 64 * 1024),
            };
            now = Time(now.0 + MS);
            file.decide(&policy, now, FILE_BYTES, window, access);
        }
        assert!(path_readahead.evidence().standing_pages > 0, "file {number}");
        drop(file);
        assert_eq!(path_readahead.evidence().standing_pages, 0, "file {number}");
    }
}

/// Reads of 4 KiB at 1,000 distinct random places, next to `others` reads. Returns the number of
/// reads that waited, and of pages in memory at the end.
fn scattered(whole_file_memory: u64, others: u64, is_of_task: bool) -> (u64, u64) {
    let mut model = Model::with_whole_file_memory(whole_file_memory);
    model.is_of_task = is_of_task;
    model.steered.path_readahead.reads_in_progress.store(1 + others, Ordering::Relaxed);
    let pages = FILE_BYTES / PAGE;
    let (mut waits, mut state, mut seen) = (0, 7_u64, BTreeSet::new());
    while seen.len() < 1000 {
        let page = readpath_core::splitmix::next(&mut state) % pages;
        if !seen.insert(page) {
            continue;
        }
        waits += u64::from(!model.cached.contains(&page));
        model.read(page * PAGE, PAGE);
    }
    (waits, model.cached.len() as u64)
}

/// By hand: a read takes 1 ms and its page 19.5 µs, and a page of the spare memory costs as much: a
/// request is worth 51 pages of it. The extra pages are at most a sixteenth of the waits and all of
/// the avoided waits. Without spare memory, or next to other reads, nearly each read waits.
#[test]
fn file_of_a_lone_random_reader_is_read_whole_within_its_budget() {
    // No memory, too many readers, less memory than the file, and a task.
    let without =
        [(0, 0, false), (FILE_BYTES, 8, false), (FILE_BYTES / 2, 0, false), (FILE_BYTES, 0, true)];
    for (whole_file_memory, others, is_of_task) in without {
        let (waits, pages) = scattered(whole_file_memory, others, is_of_task);
        assert!(waits >= 990 && pages < 1100, "{whole_file_memory}: {waits}, {pages}");
    }
    let (waits, pages) = scattered(FILE_BYTES, 0, false);
    assert!((260..700).contains(&waits), "{waits}");
    let extra_max = 51 * (waits / 16 + (1000 - waits));
    assert!(pages > 2 * 1000 && pages <= 1000 + extra_max, "{pages}, {extra_max}");
}
