//! Readers of shared pages outside the machine do not change its device requests. Every policy
//! decides as if it had seen them, or requires to see them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use readpath_core::cache::Mark;
use readpath_core::machine::{HandleId, ReadAccess};
use readpath_core::readahead::POLICIES;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::sharer::{FrameSharer, SharerRecord};
use crate::common::{FileEnvironment, config};

const FILE_PAGES: u64 = 2304;
/// Runs of each policy; 2,500 were run once.
const SEEDS: u64 = 40;

impl SharerRecord {
    /// Uses all pages of the range, if all are shared and none carries the mark.
    fn take(&mut self, range: PageRange) -> bool {
        let frames: Vec<u32> = (self.shared.iter())
            .filter(|&(_, &(page, mark))| range.contains(page) && mark == Mark::Clear)
            .map(|(&frame, _)| frame)
            .collect();
        let is_whole = frames.len() as u64 == range.count();
        if is_whole {
            frames.into_iter().for_each(|frame| *self.used.entry(frame).or_default() += 1);
        }
        is_whole
    }
}

/// A run of reads: its environment, and the number of reads outside the machine.
struct SharedReadRun {
    world: FileEnvironment,
    handle: HandleId,
    books: Option<Arc<Mutex<SharerRecord>>>,
    passed_end: Option<u64>,
    passed: usize,
}

impl SharedReadRun {
    fn new(policy: &str, is_shared: bool) -> SharedReadRun {
        let mut world = FileEnvironment::new(config(policy, "noop", 8192));
        let books = is_shared.then(Arc::<Mutex<SharerRecord>>::default);
        if let Some(books) = &books {
            world.path.share_through(Box::new(FrameSharer(Arc::clone(books))));
        }
        let handle = world.open(FILE_PAGES * PAGE_BYTES, 0);
        SharedReadRun { world, handle, books, passed_end: None, passed: 0 }
    }

    /// Performs a read, and waits until the device is idle.
    fn read(&mut self, offset: u64, bytes: u64) {
        let sees_every_hit = self.world.path.needs_every_hit(self.handle);
        if let Some(books) = self.books.as_ref().filter(|_| !sees_every_hit) {
            let bytes = bytes.min((FILE_PAGES * PAGE_BYTES).saturating_sub(offset));
            if bytes > 0 && books.lock().unwrap().take(PageRange::covering(offset, bytes)) {
                self.passed += 1;
                self.passed_end = Some(offset + bytes);
                return;
            }
        }
        if let Some(end) = self.passed_end.take() {
            self.world.path.record_shared_reads(self.handle, end);
        }
        self.world.read(ReadAccess::Buffered, self.handle, 0, offset, bytes, 0).unwrap();
        self.world.run();
    }
}

/// Streams, strides, interleaved streams, records, and random offsets, in random order.
fn reads(seed: u64) -> Vec<(u64, u64)> {
    let mut state = seed;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let file_bytes = FILE_PAGES * PAGE_BYTES;
    let mut reads = Vec::new();
    for _ in 0..12 {
        let (start, bytes) = (next(file_bytes), 1 + next(20_000));
        let distance = bytes + next(2) * next(30_000);
        let count = 10 + next(60);
        match next(4) {
            0 => reads.extend((0..count).map(|at| (start + at * distance, bytes))),
            1 => {
                let other = next(file_bytes);
                reads.extend(
                    (0..count).flat_map(|at| {
                        [(start + at * bytes, bytes), (other + at * distance, bytes)]
                    }),
                );
            }
            2 => reads.extend((0..count).map(|_| (next(file_bytes / bytes) * bytes, bytes))),
            _ => reads.extend((0..count).map(|at| (start.saturating_sub(at * bytes), bytes))),
        }
    }
    reads
}

#[test]
fn reads_outside_the_machine_change_no_request() {
    let mut passed = BTreeSet::new();
    for policy in POLICIES.iter().map(|policy| policy.name) {
        for seed in 0..SEEDS {
            let (mut alone, mut beside) =
                (SharedReadRun::new(policy, false), SharedReadRun::new(policy, true));
            for (at, (offset, bytes)) in reads(seed).into_iter().enumerate() {
                alone.read(offset, bytes);
                beside.read(offset, bytes);
                let requests = |run: &SharedReadRun| -> Vec<(u64, u32)> {
                    run.world.issued.iter().map(|one| (one.start, one.sectors)).collect()
                };
                assert_eq!(
                    requests(&beside),
                    requests(&alone),
                    "{policy}, seed {seed}: read {at}, {bytes} bytes at {offset}"
                );
                alone.world.issued.clear();
                beside.world.issued.clear();
            }
            if beside.passed > 0 {
                passed.insert(policy);
            }
        }
    }
    // These policies take no lock for cached pages.
    for policy in ["none", "ondemand", "adaptive"] {
        assert!(passed.contains(policy), "{policy} was shown every hit");
    }
}
