//! Swapping, compared with a reference. Every touch finds the last content of its page, for any
//! policy, memory, swap area, order of completions and errors.

mod world;

use self::world::{FILE_PAGES, MemoryEnvironment, Observation, PageContent, SWAP_PAGE};
use proptest::prelude::*;
use readpath_core::machine::MemoryAccess::{Read, Write};
use readpath_core::machine::{MemoryAccess, MemoryKind, ReadError, SwapConfig, SwapOut};
use readpath_core::request::{DeviceError, Op};
use readpath_core::unit::PAGE_SECTORS;

const POLICIES: [&str; 9] = [
    "adaptive",
    "none",
    "cluster",
    "cluster,page_cluster=5",
    "hits",
    "hits,halving=1",
    "hits,least=2,page_cluster=2",
    "vma",
    "vma,shared=cluster,page_cluster=4",
];

const PAGES: [(u64, MemoryKind); 2] = [(50, MemoryKind::Private), (40, MemoryKind::Shared)];

#[derive(Clone, Debug)]
enum MemoryStep {
    Touch { memory: u32, page: u64, access: MemoryAccess },
    Sweep { memory: u32, page: u64, pages: u64, access: MemoryAccess },
    ReadFile { page: u64, pages: u64 },
    Discard { memory: u32, page: u64 },
    WillNeed { memory: u32, page: u64, pages: u64 },
    Finish { at: usize },
}

fn accesses() -> impl Strategy<Value = MemoryAccess> {
    proptest::sample::select(vec![Read, Write])
}

fn steps() -> impl Strategy<Value = Vec<MemoryStep>> {
    let place = || (0..2u32, 0..40u64);
    let touch = (place(), accesses()).prop_map(|((memory, page), access)| MemoryStep::Touch {
        memory,
        page,
        access,
    });
    let sweep = (place(), 1..30u64, accesses()).prop_map(|((memory, page), pages, access)| {
        MemoryStep::Sweep { memory, page, pages: pages.min(40 - page), access }
    });
    let read =
        (0..FILE_PAGES - 3, 1..4u64).prop_map(|(page, pages)| MemoryStep::ReadFile { page, pages });
    let discard = place().prop_map(|(memory, page)| MemoryStep::Discard { memory, page });
    let need = (place(), 1..30u64).prop_map(|((memory, page), pages)| MemoryStep::WillNeed {
        memory,
        page,
        pages: pages.min(40 - page),
    });
    let finish = (0..8usize).prop_map(|at| MemoryStep::Finish { at });
    let step = prop_oneof![8 => touch, 2 => sweep, 1 => read, 1 => discard, 1 => need, 8 => finish];
    proptest::collection::vec(step, 1..150)
}

fn worlds(slots: std::ops::Range<u64>) -> impl Strategy<Value = MemoryEnvironment> {
    let sights = vec![Observation::Touches, Observation::WriteFaults, Observation::DirtyBits];
    let policy = proptest::sample::select(POLICIES.to_vec());
    let sight = proptest::sample::select(sights);
    let swap_out = proptest::sample::select(vec![SwapOut::Oldest, SwapOut::Neighbours]);
    let parameters =
        (1..9u64, proptest::option::of(0..12u32), 0..6u32, swap_out, proptest::bool::ANY);
    let memory = (4..60u64, 1..9usize, proptest::bool::ANY);
    (policy, sight, memory, slots, parameters).prop_map(
        |(policy, sight, memory, slots, parameters)| {
            let (memory_pages, unmaps_at_once, keeps_mapped) = memory;
            let (write_pages_max, ready_pages, second_chance_pages, swap_out, by_policy) =
                parameters;
            let swap = SwapConfig {
                swap_out,
                write_pages_max,
                ready_pages,
                second_chance_pages,
                by_policy,
                ..MemoryEnvironment::swap(policy, slots)
            };
            let mut world = MemoryEnvironment::new(memory_pages, &swap, sight, &PAGES);
            world.unmaps_at_once = unmaps_at_once;
            world.keeps_mapped = keeps_mapped;
            world
        },
    )
}

fn play(world: &mut MemoryEnvironment, steps: Vec<MemoryStep>) {
    for step in steps {
        match step {
            MemoryStep::Touch { memory, page, access } => world.touch(memory, page, access),
            MemoryStep::Sweep { memory, page, pages, access } => {
                for page in page..page + pages {
                    world.touch(memory, page, access);
                    if world.in_device() > 2 {
                        world.finish(1);
                    }
                }
            }
            MemoryStep::ReadFile { page, pages } => world.read_file(page, pages),
            MemoryStep::Discard { memory, page } => world.discard(memory, page),
            MemoryStep::WillNeed { memory, page, pages } => {
                world.will_need(memory, page, pages);
            }
            MemoryStep::Finish { at } if world.in_device() > 0 => {
                world.finish(at % world.in_device())
            }
            MemoryStep::Finish { .. } => {}
        }
    }
    world.run();
}

impl std::fmt::Debug for MemoryEnvironment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {:?}", self.sight, self.path)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..Default::default() })]

    /// With enough slots, no fault fails and no content is lost.
    #[test]
    fn every_touch_finds_the_last_write(mut world in worlds(90..140), steps in steps()) {
        play(&mut world, steps);
        world.read_all();
        prop_assert_eq!(&world.errors, &vec![]);
    }

    /// With fewer slots, faults may fail because the area is full; with bad sectors, because a page
    /// can't be read, or none be written. All other faults find the last content.
    #[test]
    fn faults_find_valid_content_or_fail_when_the_area_is_full_or_bad(
        mut world in worlds(0..60),
        steps in steps(),
        bad_reads in proptest::collection::btree_set(SWAP_PAGE..SWAP_PAGE + 40, 0..4),
        bad_writes in proptest::collection::btree_set(SWAP_PAGE..SWAP_PAGE + 60, 0..30),
        write_error in proptest::sample::select(vec![DeviceError::Medium, DeviceError::Gone]),
    ) {
        let is_readable = bad_reads.is_empty();
        world.bad_reads = bad_reads;
        world.bad_writes = bad_writes;
        world.write_error = write_error;
        play(&mut world, steps);
        world.read_all();
        for error in &world.errors {
            let is_due = match error {
                ReadError::Device { error, .. } => *error == DeviceError::Medium && !is_readable,
                ReadError::SwapFull { .. } => true,
                ReadError::SwapWrite { error } => *error == write_error,
                _ => false,
            };
            prop_assert!(is_due, "{error:?}");
        }
        // The device is repaired: all remaining pages are readable.
        world.bad_reads.clear();
        world.bad_writes.clear();
        world.errors.clear();
        world.read_all();
        for error in &world.errors {
            let is_full = matches!(error, ReadError::SwapFull { .. } | ReadError::SwapWrite { .. });
            prop_assert!(is_full, "{error:?}");
        }
    }
}

/// A private mapping of 64 pages in a memory of 32, written once from start to end.
fn swept(policy: &str) -> MemoryEnvironment {
    let mut world = MemoryEnvironment::new(
        32,
        &MemoryEnvironment::swap(policy, 128),
        Observation::Touches,
        &[(64, MemoryKind::Private)],
    );
    for page in 0..64 {
        world.touch(0, page, Write);
        world.run();
    }
    world
}

/// Pages 0 to 15 left memory in order, so that their slots are adjacent. Read one by one they are
/// 16 requests of the policy `none`. With advice they are one, of the 16 pages of this device's
/// largest request.
#[test]
fn will_need_reads_in_large_requests_before_the_faults() {
    let mut world = swept("none");
    // More than the ready frames: the advice continues as pages leave to free frames.
    let (mut at, mut rounds) = (0, 0);
    world.issued.clear();
    while at < 16 {
        at = world.will_need(0, at, 16 - at);
        world.run();
        rounds += 1;
        assert!(rounds <= 16, "every round finds a page ready");
    }
    let reads: Vec<_> = world.issued.iter().filter(|request| request.op == Op::Read).collect();
    let read_pages: u64 = reads.iter().map(|read| u64::from(read.sectors) / PAGE_SECTORS).sum();
    assert_eq!(read_pages, 16);
    assert_eq!(reads.len(), rounds, "side by side: one request a round");
    world.issued.clear();
    for page in 0..16 {
        world.touch(0, page, Read);
        world.run();
    }
    assert!(world.issued.iter().all(|request| request.op == Op::Write), "{:?}", world.issued);
    assert_eq!(world.path.swap_counters().hits, 0, "the policy guessed none of them");
}

/// Discarded pages free their slots, and return as zeros without a read.
#[test]
fn discarded_pages_need_no_slot_and_no_read() {
    let mut world = swept("cluster");
    assert!(world.path.free_slots() < 128);
    (0..64).for_each(|page| world.discard(0, page));
    assert_eq!(world.path.free_slots(), 128);
    world.issued.clear();
    for page in 0..64 {
        world.touch(0, page, Read);
        world.run();
    }
    assert_eq!(world.issued, vec![]);
}

/// Eight faults at once on a memory of eight clean, mapped pages. The pages unmapped with one call
/// are answered one by one, and each frees a frame for one fault only. If they counted before that,
/// the second fault would find no frame.
#[test]
fn waiting_faults_ignore_pages_with_unanswered_unmaps() {
    let swap = SwapConfig { ready_pages: Some(4), ..MemoryEnvironment::swap("none", 64) };
    let mut world =
        MemoryEnvironment::new(8, &swap, Observation::Touches, &[(16, MemoryKind::Private)]);
    for (page, access) in (0..16).map(|page| (page, Write)).chain((0..16).map(|page| (page, Read)))
    {
        world.touch(0, page, access);
        world.run();
    }
    world.unmaps_at_once = 8;
    (0..8).for_each(|page| world.start_touch(0, page, Read));
    world.run();
    (8..16).for_each(|page| world.start_touch(0, page, Read));
    world.run();
    world.read_all();
    assert_eq!(world.errors, vec![]);
}

/// Eight pages are written in a memory of eight, whose area has one slot. The device fails each
/// write with an error that marks no slot as bad. A ninth page finds no frame. Its fault reports
/// the error of the device: the slot is free, so that the area is not full.
#[test]
fn failed_writes_leave_the_slot_free_and_the_area_not_full() {
    let swap = SwapConfig { ready_pages: Some(2), ..MemoryEnvironment::swap("none", 1) };
    let mut world =
        MemoryEnvironment::new(8, &swap, Observation::Touches, &[(9, MemoryKind::Private)]);
    world.bad_writes.insert(SWAP_PAGE);
    world.write_error = DeviceError::Gone;
    (0..9).for_each(|page| world.touch(0, page, Write));
    assert_eq!((world.path.free_slots(), world.in_device()), (0, 1), "one page is being written");
    world.run();
    assert_eq!(world.path.free_slots(), 1);
    assert_eq!(world.errors, vec![ReadError::SwapWrite { error: DeviceError::Gone }]);
}

/// Two programs alternately write their memory, page by page. In order of age their pages alternate
/// in the slots, so that no page is next to its neighbour by address. With `Neighbours`, which are
/// at least half as old, they form runs.
#[test]
fn pages_evicted_with_their_neighbours_get_adjacent_slots() {
    let neighbours = |swap_out| {
        let swap = SwapConfig { swap_out, ..MemoryEnvironment::swap("none", 256) };
        let kind = MemoryKind::Private;
        let mut world =
            MemoryEnvironment::new(64, &swap, Observation::Touches, &[(128, kind), (128, kind)]);
        for page in 0..128 {
            for memory in 0..2 {
                world.touch(memory, page, Write);
                world.run();
            }
        }
        let owner = |slot| match world.device.get(&(SWAP_PAGE + slot)) {
            Some(PageContent::Memory { memory, page, .. }) => Some((*memory, *page)),
            _ => None,
        };
        let pairs = (0..255).filter_map(|slot| Some((owner(slot)?, owner(slot + 1)?)));
        let is_beside =
            |(one, other): &((u32, u64), (u32, u64))| one.0 == other.0 && one.1 + 1 == other.1;
        let pairs: Vec<_> = pairs.collect();
        assert!(pairs.len() > 128, "most pages have left");
        (pairs.iter().filter(|pair| is_beside(pair)).count(), pairs.len())
    };
    assert_eq!(neighbours(SwapOut::Oldest).0, 0);
    let (beside, pairs) = neighbours(SwapOut::Neighbours);
    assert!(beside * 4 > pairs * 3, "{beside} of {pairs}");
}
