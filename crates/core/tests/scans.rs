//! Scans concurrent with a hot set: pages that are read repeatedly stay, for any step size and
//! number of scans.

use readpath_core::machine::{Config, HandleId, Machine, ReadAccess, Transfer};
use readpath_core::policy::Spec;
use readpath_core::request::{Completion, DeviceCaps, Outcome, ProcessId};
use readpath_core::splitmix;
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, Time};

const MEMORY_PAGES: u64 = 16_384;
const HOT_PAGES: u64 = MEMORY_PAGES * 3 / 8;
const SCANNED_PAGES: u64 = 1 << 20;
/// Reads of the hot set before the first counted one: each of its pages was read then, except for
/// one in 670.
const WARM_UP: u64 = 40_000;
const COUNTED: u64 = 20_000;
/// Bytes scanned for each read of the hot set.
const SCANNED_BYTES: u64 = 4 << 10;

/// A machine over a device that completes at once.
struct InstantMachine {
    machine: Machine,
    now: Time,
}

impl InstantMachine {
    fn new(eviction: &str) -> InstantMachine {
        let caps = DeviceCaps {
            sectors: (HOT_PAGES + SCANNED_PAGES) * PAGE_SECTORS,
            request_sectors_max: 2560,
            depth_max: 32,
            is_rotational: false,
            alignment_sectors: 1,
        };
        let config = Config {
            memory_bytes: MEMORY_PAGES * PAGE_BYTES,
            readahead: Spec::plain("adaptive"),
            eviction: Spec::plain(eviction),
            ..Config::new(caps)
        };
        InstantMachine { machine: Machine::new(config).unwrap(), now: Time::ZERO }
    }

    /// Performs a read. Returns true if all of it was cached.
    fn read(&mut self, handle: HandleId, offset: u64, bytes: u64) -> bool {
        let before = self.machine.meter().hit_bytes;
        let process = ProcessId(handle.0);
        let transfer = Transfer { handle, process, offset, bytes, tag: 0 };
        self.machine.read(self.now, ReadAccess::Buffered, transfer).unwrap();
        loop {
            while let Some(request) = self.machine.poll_request(self.now) {
                self.now += Time::from_us(50);
                let done = Completion::at(self.now, request.id, Outcome::Done);
                self.machine.handle_completion(self.now, done);
            }
            if let Some(done) = self.machine.poll_done() {
                self.machine.release(self.now, done.read);
                return self.machine.meter().hit_bytes - before == bytes;
            }
            self.now = self.machine.next_wake().expect("a read that is not done waits for a time");
        }
    }
}

/// Hit rate of the hot set during `scans` scans by steps of `step` bytes.
fn hot_hits(eviction: &str, scans: u64, step: u64) -> f64 {
    let mut world = InstantMachine::new(eviction);
    let hot = world.machine.add_file(HOT_PAGES * PAGE_BYTES, 0).unwrap();
    let hot = world.machine.open(hot);
    let sectors = HOT_PAGES * PAGE_SECTORS;
    let scanned = world.machine.add_file(SCANNED_PAGES * PAGE_BYTES, sectors).unwrap();
    let part = SCANNED_PAGES * PAGE_BYTES / scans.max(1);
    let mut scanners: Vec<(HandleId, u64)> =
        (0..scans).map(|nth| (world.machine.open(scanned), nth * part)).collect();
    let (mut state, mut hits, mut credit) = (1, 0, 0);
    for nth in 0..WARM_UP + COUNTED {
        let page = splitmix::next(&mut state) % HOT_PAGES;
        let is_hit = world.read(hot, page * PAGE_BYTES, PAGE_BYTES);
        hits += u64::from(is_hit && nth >= WARM_UP);
        credit += SCANNED_BYTES;
        while scans > 0 && credit >= step {
            credit -= step;
            let scanner = &mut scanners[(splitmix::next(&mut state) % scans) as usize];
            let (handle, offset) = *scanner;
            scanner.1 += step;
            world.read(handle, offset, step);
        }
    }
    hits as f64 / COUNTED as f64
}

#[test]
fn a_hot_set_keeps_its_hits_during_scans_of_any_step() {
    let alone = hot_hits("adaptive", 0, PAGE_BYTES);
    assert!(alone > 0.95, "{alone}");
    for scans in [1, 4] {
        for step in [512, 1 << 10, 4 << 10, 64 << 10] {
            let hits = hot_hits("adaptive", scans, step);
            assert!(hits >= 0.98 * alone, "{scans} scans by {step}: {hits}, alone {alone}");
        }
    }
}

/// Control: the same scan evicts the hot set under a policy without scan resistance.
#[test]
fn lru_loses_hits_during_the_same_scan() {
    let alone = hot_hits("lru", 0, PAGE_BYTES);
    let beside = hot_hits("lru", 1, 4 << 10);
    assert!(beside < 0.98 * alone, "{beside}, alone {alone}");
}
