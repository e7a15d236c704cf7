//! Decisions on reads of a modelled device with given costs, time and kernel page cache. On a real
//! disk they would depend on its speed.

use std::collections::BTreeSet;

use super::*;
use crate::os::process::is_true_in_child;

const PAGE: u64 = PAGE_BYTES;
const FILE_BYTES: u64 = 64 << 20;
const MS_IN_NS: u64 = 1_000_000;
/// Memory that the policy assumes, in pages: 64 MiB.
const POLICY_PAGES: u64 = 16 << 10;
const LOGS_DECISIONS: bool = true;

/// One file on a disk with 1 ms and 200 MiB/s per request, and with a kernel window of 128 KiB.
struct Model {
    readahead: FileKernelReadahead,
    policy: Mutex<HandlePolicy>,
    now_ns: u64,
    /// Pages in the modelled kernel page cache.
    cached: BTreeSet<u64>,
    /// Number of pages that came into the cache: read, advised, or read ahead by the kernel.
    fetched_pages: u64,
    /// Offset at which the last read ended.
    last_read_end: Option<u64>,
    /// Start of the present run, if the run is read without the kernel's readahead.
    no_readahead_from: Option<u64>,
    is_of_task: bool,
}

/// The parent has the measured costs locked at the fork, and the child never sees them unlocked. An
/// alarm would end a child that waits for them.
#[test]
fn child_drops_a_file_of_its_parent_whose_costs_were_locked_at_the_fork() {
    let model = Model::new();
    let path_readahead = Arc::clone(&model.readahead.path_readahead);
    let costs = path_readahead.evidence();
    let mut model = Some(model);
    let is_dropped = is_true_in_child(|| {
        drop(model.take());
        true
    });
    drop(costs);
    assert!(is_dropped);
}

/// Kernel window of the modelled device: 32 pages.
fn device_window() -> KernelWindow {
    KernelWindow { window_pages: 32, advice_pages_max: 256, may_block: false }
}

/// Duration of a request of `bytes` bytes to the modelled device.
fn read_duration_ns(bytes: u64) -> u64 {
    MS_IN_NS + bytes * 1_000_000_000 / (200 << 20)
}

impl Model {
    /// Creates a model without memory for whole files.
    fn new() -> Model {
        Model::with_whole_file_memory(0)
    }

    /// Creates a model in which a file that is read as a whole may fill `bytes` bytes of memory.
    fn with_whole_file_memory(bytes: u64) -> Model {
        let kernel_readahead =
            Arc::new(PathKernelReadahead::new(Clock::start(), LOGS_DECISIONS, Some(bytes)));
        let _ = kernel_readahead.memory_pages.set(POLICY_PAGES);
        Model {
            readahead: FileKernelReadahead::new(kernel_readahead, 0),
            policy: Mutex::default(),
            now_ns: MS_IN_NS,
            cached: BTreeSet::new(),
            fetched_pages: 0,
            last_read_end: None,
            no_readahead_from: None,
            is_of_task: false,
        }
    }

    /// Adds the pages to the cache, and counts the absent ones.
    fn fetch(&mut self, pages: PageRange) {
        self.fetched_pages += pages.pages().filter(|page| self.cached.insert(*page)).count() as u64;
    }

    /// Models a read of `bytes` bytes from `offset` on through the kernel page cache. The read is
    /// checked, shown to the policy if a page is absent, and awaited.
    fn read(&mut self, offset: u64, bytes: u64) {
        let request = PageRange::covering(offset, bytes);
        let absent: Vec<u64> = request.pages().filter(|page| !self.cached.contains(page)).collect();
        let is_continuation = self.last_read_end.map_or(offset == 0, |end| end == offset);
        let no_readahead_from = self.no_readahead_from.filter(|_| is_continuation);
        if !absent.is_empty() || self.readahead.is_prefetching() || no_readahead_from.is_some() {
            let start = no_readahead_from.unwrap_or(offset);
            let access = PolicyAccess {
                offset: start,
                bytes: offset + bytes - start,
                is_continuation,
                was_without_readahead: no_readahead_from.is_some(),
                is_submitted: false,
                is_of_task: self.is_of_task,
                first_absent: absent.first().map(|&page| offset.max(page * PAGE)),
            };
            let (now, policy) = (Time(self.now_ns), &self.policy);
            let PolicyDecision { answer, advised_ranges } =
                self.readahead.decide(policy, now, FILE_BYTES, device_window, access);
            advised_ranges.into_iter().for_each(|range| self.fetch(range));
            if is_continuation && !answer.is_kernel_readahead_off && !absent.is_empty() {
                let ahead_pages = device_window().kernel_readahead_pages(request);
                self.fetch(PageRange::new(request.end, ahead_pages));
            }
            self.no_readahead_from = answer.is_kernel_readahead_off.then_some(start);
        }
        if !absent.is_empty() {
            let started_ns = self.now_ns;
            self.now_ns += read_duration_ns(bytes);
            let (started, ended) = (Time(started_ns), Time(self.now_ns));
            self.readahead.path_readahead.record_request_cost(started, ended, bytes);
        }
        self.fetch(request);
        self.now_ns += MS_IN_NS / 10;
        self.last_read_end = Some(offset + bytes);
    }

    /// True if all these pages are in the cache.
    fn has_all_cached(&self, pages: std::ops::Range<u64>) -> bool {
        pages.into_iter().all(|page| self.cached.contains(&page))
    }

    /// Texts of the policy's decisions since the last call.
    fn take_decision_texts(&self) -> Vec<String> {
        let mut all = Vec::new();
        self.readahead.path_readahead.take_decisions(&mut all);
        all.iter().map(ToString::to_string).collect()
    }
}

/// Blocks of 16 KiB (4 pages) every 256 KiB (64 pages): the kernel reads nothing ahead of such a
/// stream. After eight blocks the ninth is advised, and the middle of the gap before it is not.
#[test]
fn next_block_of_a_stride_is_advised_and_the_gap_is_not() {
    let mut model = Model::new();
    let block_offset = |index: u64| index * (256 << 10) + (64 << 10);
    (0..8).for_each(|index| model.read(block_offset(index), 16 << 10));
    let next_block = block_offset(8) / PAGE;
    assert!(model.has_all_cached(next_block..next_block + 4));
    // The gap has the 60 pages before the block.
    let mut middle_of_gap = next_block - 40..next_block - 8;
    assert!(middle_of_gap.all(|page| !model.cached.contains(&page)));
    let decisions = model.take_decision_texts();
    assert!(decisions.iter().any(|line| line.contains("strided")), "{decisions:?}");
}

/// Sixteen reads of 64 KiB (16 pages) from the end of the file downwards: the next 16 pages below
/// are advised.
#[test]
fn pages_below_a_descending_stream_are_advised() {
    let mut model = Model::new();
    let read_offset = |index: u64| FILE_BYTES - index * (64 << 10);
    (1..=16).for_each(|index| model.read(read_offset(index), 64 << 10));
    let next_page = read_offset(17) / PAGE;
    assert!(model.has_all_cached(next_page..next_page + 16));
    assert!(model.take_decision_texts().iter().any(|line| line.contains("backward")));
    let readahead_state =
        crate::readahead_state::ReadaheadState::from_core(model.readahead.readahead_state());
    let window = readahead_state.window.expect("a stream has a window");
    assert_eq!(window.shape, "backward");
}

/// Pieces of 4 to 48 KiB at scattered offsets, each after a header of 54 bytes that is read in two
/// parts. After half of them the policy has learned that no data follows a piece. The kernel alone
/// would read four times as much ahead of each. For the other half, at most half more than the
/// requested pages may be fetched.
#[test]
fn pieces_after_headers_cause_little_extra_reading() {
    const PIECES: u64 = 120;
    // Offset and length. 77 and 120 have no common factor, so each piece has its own part of the
    // file, of 500,007 bytes.
    let piece = |index: u64| {
        let offset = index * 77 % PIECES * 500_007 + index * 7_919 % 190_000;
        (offset, 4_096 + index * index * 3_571 % 45_000)
    };
    let mut model = Model::new();
    let read_piece = |model: &mut Model, index: u64| {
        let (offset, bytes) = piece(index);
        model.read(offset, 30);
        model.read(offset + 30, 24);
        model.read(offset + 54, bytes);
    };
    (0..PIECES / 2).for_each(|index| read_piece(&mut model, index));
    let pages_before = model.fetched_pages;
    (PIECES / 2..PIECES).for_each(|index| read_piece(&mut model, index));
    let requested_pages: u64 = (PIECES / 2..PIECES)
        .map(|index| {
            let (offset, bytes) = piece(index);
            PageRange::covering(offset, 54 + bytes).count()
        })
        .sum();
    let fetched_pages = model.fetched_pages - pages_before;
    assert!(fetched_pages <= requested_pages * 3 / 2, "{fetched_pages} pages of {requested_pages}");
}

/// An ascending stream of reads of 64 KiB is left to the kernel as far as the kernel's window goes:
/// each advised range reaches beyond it.
#[test]
fn ascending_stream_is_advised_of_nothing_within_the_kernels_window() {
    let mut model = Model::new();
    for read_index in 0..64 {
        let (offset, bytes) = (read_index * (64 << 10), 64 << 10);
        let request = PageRange::covering(offset, bytes);
        let access = PolicyAccess {
            offset,
            bytes,
            is_continuation: true,
            was_without_readahead: false,
            is_submitted: false,
            is_of_task: false,
            first_absent: Some(offset),
        };
        let now = Time(model.now_ns);
        let decision =
            model.readahead.decide(&model.policy, now, FILE_BYTES, device_window, access);
        let window_end = request.end + device_window().window_pages;
        let reaches_beyond_window = |run: &PageRange| run.end > window_end;
        let is_left_to_kernel = decision.advised_ranges.iter().all(reaches_beyond_window);
        assert!(decision.answer.is_kernel_readahead_off || is_left_to_kernel, "{read_index}");
        model.now_ns += read_duration_ns(bytes);
    }
}

/// Blocks of 32 pages behind gaps of 0 to 4 blocks at random. At three quarters of the file, the
/// gaps that were read along have 8,192 pages: the half of the memory for prefetched pages. Their
/// reader has passed them, so the gaps are read along up to the end of the file.
#[test]
fn gaps_are_read_along_beyond_the_memory_for_prefetched_pages() {
    const BLOCK: u64 = 32 * PAGE;
    let mut model = Model::new();
    let (mut offset, mut random_state, mut reads, mut waits) = (0, 7_u64, 0, 0);
    while offset + BLOCK <= FILE_BYTES {
        if offset >= FILE_BYTES / 8 * 7 {
            reads += 1;
            waits += u64::from(!model.has_all_cached(offset / PAGE..(offset + BLOCK) / PAGE));
        }
        model.read(offset, BLOCK);
        offset += BLOCK * (1 + readpath_core::splitmix::next(&mut random_state) % 5);
    }
    assert!(reads > 10 && 4 * waits < reads, "{waits} of {reads}");
    assert!(model.readahead.path_readahead.evidence().standing_pages < POLICY_PAGES / 4);
}

/// A stream that ends before its advised pages are used, and a file that is closed then: the pages
/// count against no other file.
#[test]
fn unused_advice_of_a_closed_file_is_forgotten() {
    let (logs_decisions, whole_file_bytes_max) = (false, Some(0));
    let path_readahead =
        PathKernelReadahead::new(Clock::start(), logs_decisions, whole_file_bytes_max);
    let path_readahead = Arc::new(path_readahead);
    let _ = path_readahead.memory_pages.set(POLICY_PAGES);
    let mut now = Time(MS_IN_NS);
    for file_number in 0..3 {
        let file = FileKernelReadahead::new(Arc::clone(&path_readahead), file_number);
        let policy = Mutex::default();
        for read_index in 0..64 {
            let offset = read_index * 64 * 1024;
            let access = PolicyAccess {
                offset,
                bytes: 64 * 1024,
                is_continuation: read_index > 0,
                was_without_readahead: false,
                is_submitted: false,
                is_of_task: false,
                first_absent: Some(offset),
            };
            now = Time(now.0 + MS_IN_NS);
            file.decide(&policy, now, FILE_BYTES, device_window, access);
        }
        assert!(path_readahead.evidence().standing_pages > 0, "file {file_number}");
        drop(file);
        assert_eq!(path_readahead.evidence().standing_pages, 0, "file {file_number}");
    }
}

/// Reads 4 KiB at 1,000 distinct random offsets, next to `other_reads` reads. Returns the number of
/// reads that waited, and of pages in memory at the end.
fn read_scattered_pages(whole_file_bytes: u64, other_reads: u64, is_of_task: bool) -> (u64, u64) {
    let mut model = Model::with_whole_file_memory(whole_file_bytes);
    model.is_of_task = is_of_task;
    model.readahead.path_readahead.reads_in_progress.store(1 + other_reads, Ordering::Relaxed);
    let pages = FILE_BYTES / PAGE;
    let (mut waits, mut random_state, mut read_pages) = (0, 7_u64, BTreeSet::new());
    while read_pages.len() < 1000 {
        let page = readpath_core::splitmix::next(&mut random_state) % pages;
        if !read_pages.insert(page) {
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
    // Memory for whole files, other reads, and true for a task: no memory, too many readers, less
    // memory than the file, and a task.
    let cases_without_whole_file =
        [(0, 0, false), (FILE_BYTES, 8, false), (FILE_BYTES / 2, 0, false), (FILE_BYTES, 0, true)];
    for (whole_file_bytes, other_reads, is_of_task) in cases_without_whole_file {
        let (waits, pages) = read_scattered_pages(whole_file_bytes, other_reads, is_of_task);
        assert!(waits >= 990 && pages < 1100, "{whole_file_bytes}: {waits}, {pages}");
    }
    let (other_reads, is_of_task) = (0, false);
    let (waits, pages) = read_scattered_pages(FILE_BYTES, other_reads, is_of_task);
    assert!((260..700).contains(&waits), "{waits}");
    let extra_max = 51 * (waits / 16 + (1000 - waits));
    assert!(pages > 2 * 1000 && pages <= 1000 + extra_max, "{pages}, {extra_max}");
}
