//! The whole read path, compared with a reference. Every frame holds the requested page, for any
//! policy, memory size, order of completions and errors.

use std::sync::LazyLock;

use crate::common::{FileEnvironment, REQUEST_PAGES_MAX, config};
use proptest::prelude::*;
use readpath_core::machine::{ReadAccess, ReadError, Transfer};
use readpath_core::policy::Policy;
use readpath_core::readahead::{self, Advice, Demand, PageView, ReadRequest, ReadaheadPolicy};
use readpath_core::request::{DeviceError, ProcessId};
use readpath_core::scheduler;
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange};

/// Reads page by page up to every fourth page of a file, and from there on the rest at once.
struct PagesThenWhole;

impl ReadaheadPolicy for PagesThenWhole {
    fn read(&mut self, _request: &ReadRequest, _pages: &mut dyn PageView) {}

    fn fault(&mut self, _page: u64, _request: &ReadRequest, _pages: &mut dyn PageView) {}

    fn advise(&mut self, _advice: Advice) {}

    fn demand(&mut self, page: u64, _request: &ReadRequest, _pages: &mut dyn PageView) -> Demand {
        if page % 4 == 3 { Demand::Whole } else { Demand::Page }
    }
}

/// Name of the registered policy [`PagesThenWhole`].
static PAGES_THEN_WHOLE: LazyLock<&str> = LazyLock::new(|| {
    let policy = Policy::new("pages-then-whole", "some pages, then the rest", "");
    readahead::register(policy, |_, _| Ok(Box::new(PagesThenWhole))).unwrap();
    policy.name
});

fn policies() -> impl Strategy<Value = &'static str> {
    let names = readahead::POLICIES.iter().map(|policy| policy.name);
    proptest::sample::select(names.chain([*PAGES_THEN_WHOLE]).collect::<Vec<_>>())
}

/// All policies except the ones that split requested pages.
fn whole_policies() -> impl Strategy<Value = &'static str> {
    policies()
        .prop_filter("these two split", |policy| !["window", *PAGES_THEN_WHOLE].contains(policy))
}

fn schedulers() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(
        scheduler::POLICIES.iter().map(|policy| policy.name).collect::<Vec<_>>(),
    )
}

#[derive(Clone, Debug)]
enum MachineStep {
    Read { access: ReadAccess, file: usize, offset: u64, bytes: u64 },
    Advise { file: usize, advice: Advice, first: u64, count: u64 },
    Finish { at: usize },
}

const FILE_BYTES: [u64; 2] = [300 * PAGE_BYTES, 200 * PAGE_BYTES + 777];
const FILE_START: [u64; 2] = [64, 364];

fn advices() -> impl Strategy<Value = Advice> {
    proptest::sample::select(vec![
        Advice::Normal,
        Advice::Sequential,
        Advice::Random,
        Advice::WillNeed,
        Advice::DontNeed,
    ])
}

fn steps() -> impl Strategy<Value = Vec<MachineStep>> {
    let place = (0..2usize, 0..320 * PAGE_BYTES, 0..20 * PAGE_BYTES);
    let sequential = (0..2usize, 0..80u64).prop_map(|(file, nth)| (file, nth * 9000, 9000));
    let read = prop_oneof![place, sequential].prop_map(|(file, offset, bytes)| MachineStep::Read {
        access: ReadAccess::Buffered,
        file,
        offset,
        bytes,
    });
    let fault = (0..2usize, 0..200u64).prop_map(|(file, page)| MachineStep::Read {
        access: ReadAccess::Fault,
        file,
        offset: page * PAGE_BYTES,
        bytes: 1,
    });
    let direct =
        (0..2usize, 0..300u64, 1..60u64).prop_map(|(file, sector, sectors)| MachineStep::Read {
            access: ReadAccess::Direct,
            file,
            offset: sector * 512,
            bytes: sectors * 512,
        });
    let advise =
        (0..2usize, advices(), 0..300u64, 0..40u64).prop_map(|(file, advice, first, count)| {
            MachineStep::Advise { file, advice, first, count }
        });
    let finish = (0..8usize).prop_map(|at| MachineStep::Finish { at });
    let step = prop_oneof![4 => read, 2 => fault, 1 => direct, 1 => advise, 4 => finish];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    /// Reads, faults, advice and completions in any order, with any policy, and memory from the
    /// size of one read up. Every byte is right, every read ends, and no reservation or request
    /// remains.
    #[test]
    fn every_read_ends_with_the_right_bytes(
        policy in policies(),
        scheduler in schedulers(),
        memory_pages in 24..200u64,
        steps in steps(),
        bad_pages in proptest::collection::btree_set(64..564u64, 0..4),
    ) {
        let mut world = FileEnvironment::new(config(policy, scheduler, memory_pages));
        world.bad_pages = bad_pages.clone();
        let handles = [0, 1].map(|file| world.open(FILE_BYTES[file], FILE_START[file]));
        let mut started = 0;
        let mut ended = Vec::new();
        let mut needs = Vec::new();
        for step in steps {
            match step {
                MachineStep::Read { access, file, offset, bytes } => {
                    let tag = started;
                    world.read(access, handles[file], FILE_START[file], offset, bytes, tag).unwrap();
                    let due = bytes.min(FILE_BYTES[file].saturating_sub(offset));
                    let pages = PageRange::covering(offset, due);
                    needs.push(PageRange::new(FILE_START[file] + pages.first, pages.count()));
                    started += 1;
                }
                MachineStep::Advise { file, advice, first, count } => world.path.advise(
                    world.now, handles[file], ProcessId(0), advice, PageRange::new(first, count)),
                MachineStep::Finish { at } => {
                    world.issue();
                    if !world.in_device.is_empty() {
                        world.finish(at % world.in_device.len());
                    }
                }
            }
            ended.extend(world.collect());
        }
        ended.extend(world.run());
        prop_assert_eq!(ended.len() as u64, started);
        for done in ended {
            let needed = needs[done.tag as usize];
            let is_bad = bad_pages.iter().any(|&page| needed.contains(page));
            match done.result {
                Ok(_) => prop_assert!(!is_bad, "a read of a bad page succeeded"),
                Err(error) => {
                    prop_assert!(is_bad, "a read of good pages failed: {}", error);
                    let is_medium = matches!(error, ReadError::Device { error: DeviceError::Medium, .. });
                    prop_assert!(is_medium);
                }
            }
        }
    }

    /// Coalescing: with any policy, advice and memory size, each absent run of a read reaches the
    /// device in the least number of requests for the device's largest request.
    #[test]
    fn no_demand_read_is_split(
        policy in whole_policies(),
        memory_pages in 20..300u64,
        history in proptest::collection::vec((0..280u64, 1..20u64, proptest::option::of(advices())), 0..40),
        first in 0..280u64,
        count in 1..20u64,
    ) {
        prop_assert_eq!(most_requests_over_needed(policy, memory_pages, &history, first, count), 0);
    }
}

/// Runs `history`, then one read of `count` pages. Returns the largest number of excess requests of
/// an absent run, compared with the least number.
fn most_requests_over_needed(
    policy: &str,
    memory_pages: u64,
    history: &[(u64, u64, Option<Advice>)],
    first: u64,
    count: u64,
) -> usize {
    let mut world = FileEnvironment::new(config(policy, "noop", memory_pages));
    let handle = world.open(300 * PAGE_BYTES, 64);
    for (tag, &(first, count, advice)) in history.iter().enumerate() {
        if let Some(advice) = advice {
            let range = PageRange::new(first, count);
            world.path.advise(world.now, handle, ProcessId(0), advice, range);
        }
        let (offset, bytes) = (first * PAGE_BYTES, count * PAGE_BYTES);
        world.read(ReadAccess::Buffered, handle, 64, offset, bytes, tag as u64).unwrap();
        world.run();
    }
    let request = PageRange::new(first, count).clipped(300);
    let absent: Vec<u64> =
        request.pages().filter(|&page| !world.path.is_cached(handle, page)).collect();
    world.issued.clear();
    world
        .read(ReadAccess::Buffered, handle, 64, first * PAGE_BYTES, count * PAGE_BYTES, 99)
        .unwrap();
    world.run();
    let mut worst = 0;
    for run in absent.chunk_by(|before, page| before + 1 == *page) {
        let (start, end) = (64 + run[0], 64 + run[run.len() - 1] + 1);
        let touching = world
            .issued
            .iter()
            .filter(|r| r.start < end * PAGE_SECTORS && start * PAGE_SECTORS < r.end())
            .count();
        worst = worst.max(touching - run.len().div_ceil(REQUEST_PAGES_MAX as usize));
    }
    worst
}

/// The failing kernel of source A fails: with its readahead off, a read of 16 pages is 16 requests.
/// The repaired one sends one.
#[test]
fn the_policy_window_splits_a_read_into_pages_and_its_repair_does_not() {
    let history = [(200, 1, None)];
    assert_eq!(most_requests_over_needed("window", 300, &history, 100, 16), 15);
    assert_eq!(most_requests_over_needed("window-fixed", 300, &history, 100, 16), 0);
}

#[test]
fn two_readers_of_one_missing_page_cause_one_device_read() {
    let mut world = FileEnvironment::new(config("none", "noop", 64));
    let handle = world.open(100 * PAGE_BYTES, 0);
    world.read(ReadAccess::Buffered, handle, 0, 5 * PAGE_BYTES, 100, 0).unwrap();
    world.issue();
    world.read(ReadAccess::Buffered, handle, 0, 5 * PAGE_BYTES + 1000, 10, 1).unwrap();
    assert_eq!(world.run().len(), 2);
    assert_eq!(world.issued.len(), 1);
}

/// The policy reads pages 1 and 2 one by one, and then the rest. Another read has added page 4
/// meanwhile: the rest is page 3, and a wait for page 4.
#[test]
fn rest_of_a_read_leaves_out_pages_that_another_read_has_added() {
    let mut world = FileEnvironment::new(config(*PAGES_THEN_WHOLE, "noop", 64));
    let handle = world.open(100 * PAGE_BYTES, 0);
    world.read(ReadAccess::Buffered, handle, 0, PAGE_BYTES, 4 * PAGE_BYTES, 0).unwrap();
    world.read(ReadAccess::Buffered, handle, 0, 4 * PAGE_BYTES, PAGE_BYTES, 1).unwrap();
    let done = world.run();
    assert_eq!(
        done.iter().map(|done| done.result).collect::<Vec<_>>(),
        [1, 4].map(|pages| Ok(pages * PAGE_BYTES))
    );
    let pages_read: u32 = world.issued.iter().map(|request| request.sectors).sum();
    assert_eq!(pages_read, 4 * PAGE_SECTORS as u32, "{:?}", world.issued);
}

/// A bad page in the middle of two overlapping reads and of prefetched pages: only the reads that
/// touch it fail, and it is not in the cache.
#[test]
fn an_error_reaches_just_the_reads_that_needed_the_bytes() {
    let mut world = FileEnvironment::new(config("none", "noop", 64));
    let handle = world.open(100 * PAGE_BYTES, 0);
    world.bad_pages.insert(12);
    // Three adjacent reads in one plug: merged into one request of 12 pages.
    for (tag, first) in [(0, 4), (1, 8), (2, 12)] {
        let (offset, bytes) = (first * PAGE_BYTES, 4 * PAGE_BYTES);
        world.read(ReadAccess::Buffered, handle, 0, offset, bytes, tag).unwrap();
    }
    let mut results: Vec<(u64, bool)> =
        world.run().iter().map(|done| (done.tag, done.result.is_ok())).collect();
    results.sort();
    assert_eq!(results, [(0, true), (1, true), (2, false)]);
    assert_eq!(world.issued[0].sectors, 12 * PAGE_SECTORS as u32);
    assert!(world.path.is_cached(handle, 11));
    assert!(!world.path.is_cached(handle, 12));
    assert!(!world.path.is_cached(handle, 13), "no byte of a failed request is kept");
}

#[test]
fn an_error_in_prefetched_pages_reaches_no_reader() {
    let mut world = FileEnvironment::new(config("none", "noop", 64));
    let handle = world.open(100 * PAGE_BYTES, 0);
    world.bad_pages.insert(9);
    let range = PageRange::new(0, 16);
    world.path.advise(world.now, handle, ProcessId(0), Advice::WillNeed, range);
    world.read(ReadAccess::Buffered, handle, 0, 0, 4 * PAGE_BYTES, 0).unwrap();
    let done = world.run();
    assert_eq!(done[0].result, Ok(4 * PAGE_BYTES));
    assert!(!world.path.is_cached(handle, 9));
}

#[test]
fn a_file_that_shrank_is_an_error_and_not_wrong_bytes() {
    let mut world = FileEnvironment::new(config("none", "noop", 64));
    let handle = world.open(100 * PAGE_BYTES, 0);
    world.end_page = 50;
    world.read(ReadAccess::Buffered, handle, 0, 48 * PAGE_BYTES, 4 * PAGE_BYTES, 0).unwrap();
    let done = world.run();
    assert_eq!(done[0].result, Err(ReadError::Shrunk { offset: 50 * PAGE_BYTES }));
    world.read(ReadAccess::Buffered, handle, 0, 48 * PAGE_BYTES, 2 * PAGE_BYTES, 1).unwrap();
    assert_eq!(world.run()[0].result, Ok(2 * PAGE_BYTES));
}

#[test]
fn read_larger_than_memory_is_refused_and_smaller_reads_queue() {
    let mut world = FileEnvironment::new(config("none", "noop", 8));
    let handle = world.open(100 * PAGE_BYTES, 0);
    let refused = world.read(ReadAccess::Buffered, handle, 0, 0, 9 * PAGE_BYTES, 0);
    let needed_bytes = 9 * PAGE_BYTES;
    let memory_bytes = 8 * PAGE_BYTES;
    assert_eq!(refused, Err(ReadError::NotEnoughMemory { needed_bytes, memory_bytes }));
    for tag in 1..20 {
        world
            .read(ReadAccess::Buffered, handle, 0, tag * 3 * PAGE_BYTES, 5 * PAGE_BYTES, tag)
            .unwrap();
    }
    let order: Vec<u64> = world.run().iter().map(|done| done.tag).collect();
    assert_eq!(order, (1..20).collect::<Vec<_>>());
}

#[test]
fn reads_at_the_end_return_the_remaining_bytes() {
    let mut world = FileEnvironment::new(config("none", "noop", 64));
    let handle = world.open(3 * PAGE_BYTES + 100, 0);
    for (tag, (offset, bytes)) in
        [(3 * PAGE_BYTES, 5000), (3 * PAGE_BYTES + 100, 10), (9 * PAGE_BYTES, 1), (0, 0)]
            .into_iter()
            .enumerate()
    {
        world.read(ReadAccess::Buffered, handle, 0, offset, bytes, tag as u64).unwrap();
    }
    let mut results: Vec<_> =
        world.run().iter().map(|done| (done.tag, done.result.unwrap())).collect();
    results.sort();
    assert_eq!(results, [(0, 100), (1, 0), (2, 0), (3, 0)]);
}

#[test]
fn a_read_awaits_its_own_request_and_no_other() {
    let mut world = FileEnvironment::new(config("none", "noop", 64));
    let handle = world.open(100 * PAGE_BYTES, 0);
    let reads = [10, 50].map(|page| {
        let (offset, bytes) = (page * PAGE_BYTES, PAGE_BYTES);
        let transfer = Transfer { handle, process: ProcessId(0), offset, bytes, tag: page };
        world.path.read(world.now, ReadAccess::Buffered, transfer).unwrap()
    });
    world.issue();
    let awaits = |read, nth: usize| world.path.is_waiting_for(read, world.issued[nth].id);
    assert_eq!([awaits(reads[0], 0), awaits(reads[1], 1)], [true, true]);
    assert_eq!([awaits(reads[0], 1), awaits(reads[1], 0)], [false, false]);
}
