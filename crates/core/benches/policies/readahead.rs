//! One read of 4 KiB through the machine, from the call to the release, with a device that
//! completes at once.
//!
//! Streams are interleaved on one handle in random order; without streams, each read is at a random
//! offset. The data is not moved, so two policies differ only in their decisions and the number of
//! their requests.

use std::fmt::{self, Display};

use divan::Bencher;
use readpath_core::machine::{Config, HandleId, Machine, ReadAccess, Transfer};
use readpath_core::policy::Spec;
use readpath_core::request::{Completion, DeviceCaps, Outcome, ProcessId};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, Time};

use crate::drawn;

const POLICIES: [&str; 4] = ["none", "window-fixed", "ondemand", "adaptive"];

/// Numbers of interleaved streams; 0: random reads.
const LOADS: [u64; 5] = [1, 8, 64, 128, 0];

/// 32 GiB, so that random reads are seldom consecutive.
const FILE_PAGES: u64 = 1 << 23;

const MEMORY_BYTES: u64 = 64 << 20;

struct Case {
    policy: &'static str,
    streams: u64,
}

impl Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.streams {
            0 => write!(out, "random, {}", self.policy),
            1 => write!(out, "1 stream, {}", self.policy),
            streams => write!(out, "{streams} streams on one handle, {}", self.policy),
        }
    }
}

fn cases() -> impl Iterator<Item = Case> {
    LOADS.into_iter().flat_map(|streams| POLICIES.map(|policy| Case { policy, streams }))
}

#[divan::bench(args = cases(), sample_size = 1000)]
fn a_read(bencher: Bencher, case: &Case) {
    let mut reader = BenchReader::new(case);
    bencher.bench_local(|| reader.read());
}

struct BenchReader {
    path: Machine,
    handle: HandleId,
    /// The next page of each stream.
    next: Vec<u64>,
    state: u64,
    now: Time,
}

impl BenchReader {
    fn new(case: &Case) -> BenchReader {
        let caps = DeviceCaps {
            sectors: FILE_PAGES * PAGE_SECTORS,
            request_sectors_max: 8192,
            depth_max: 128,
            is_rotational: false,
            alignment_sectors: 8,
        };
        let config = Config {
            memory_bytes: MEMORY_BYTES,
            readahead: Spec::parse(case.policy).expect("the policies above are well-formed"),
            scheduler: Spec::plain("noop"),
            ..Config::new(caps)
        };
        let mut path = Machine::new(config).expect("the policies above exist");
        let file = path.add_file(FILE_PAGES * PAGE_BYTES, 0).expect("it is as large as the device");
        let handle = path.open(file);
        let next = (0..case.streams).map(|at| at * (FILE_PAGES / case.streams)).collect();
        BenchReader { path, handle, next, state: 1, now: Time::ZERO }
    }

    /// Reads the next page, and releases it.
    fn read(&mut self) {
        let draw = drawn(&mut self.state) >> 33;
        let page = match self.next.len() as u64 {
            0 => draw % FILE_PAGES,
            streams => {
                let stream = &mut self.next[(draw % streams) as usize];
                let page = *stream;
                *stream = (page + 1) % FILE_PAGES;
                page
            }
        };
        let transfer = Transfer {
            handle: self.handle,
            process: ProcessId(0),
            offset: page * PAGE_BYTES,
            bytes: PAGE_BYTES,
            tag: 0,
        };
        self.path.read(self.now, ReadAccess::Buffered, transfer).expect("a page fits in memory");
        while let Some(request) = self.path.poll_request(self.now) {
            // A request takes 80 µs and a page 3, one after the other.
            self.now += Time(80_000 + u64::from(request.sectors) / PAGE_SECTORS * 3_000);
            let completion = Completion::at(self.now, request.id, Outcome::Done);
            self.path.handle_completion(self.now, completion);
        }
        let done = self.path.poll_done().expect("all that it waits for is there");
        self.path.release(self.now, done.read);
    }
}
