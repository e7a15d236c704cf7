//! A `File` makes the same storage requests as the machine alone: hits that bypass the machine do
//! not change the policy's decisions.

use std::collections::VecDeque;

use crate::support::TempFile;
use readpath::ReadPath;
use readpath::inside::{OpenOptions, Target};
use readpath_core::machine::{Config, Driver, IoBackend, Machine, ReadAccess, Transfer};
use readpath_core::policy::Spec;
use readpath_core::readahead::ReadaheadLimits;
use readpath_core::request::{Completion, DeviceRequest, Outcome, ProcessId};
use readpath_core::unit::Time;

const FILE_BYTES: usize = 9 << 20;
const MEMORY_BYTES: u64 = 32 << 20;

/// A device that completes requests at the next poll.
#[derive(Default)]
struct AtOnce(VecDeque<DeviceRequest>);

impl IoBackend for AtOnce {
    fn submit(&mut self, _machine: &Machine, _now: Time, request: DeviceRequest) {
        self.0.push_back(request);
    }

    fn poll_completion(&mut self, now: Time) -> Option<Completion> {
        let request = self.0.pop_front()?;
        Some(Completion::at(now, request.id, Outcome::Done))
    }
}

impl Driver for AtOnce {}

/// Number of requests and bytes after each read, by the machine alone.
fn alone(temp: &TempFile, policy: &str, reads: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let target = Target::open(&temp.path, OpenOptions::default()).unwrap();
    let config = Config {
        memory_bytes: MEMORY_BYTES,
        readahead: Spec::parse(policy).unwrap(),
        limits: ReadaheadLimits { request_pages_max: 1024, ..ReadaheadLimits::default() },
        ..Config::new(target.caps())
    };
    let (mut machine, mut device) = (Machine::new(config).unwrap(), AtOnce::default());
    let file = machine.add_file(target.bytes(), 0).unwrap();
    let handle = machine.open(file);
    let counts = reads.iter().map(|&(offset, bytes)| {
        let transfer = Transfer { handle, process: ProcessId(0), offset, bytes, tag: 0 };
        machine.read(Time::ZERO, ReadAccess::Buffered, transfer).unwrap();
        while machine.step(Time::ZERO, &mut device) {}
        (machine.meter().device_reads, machine.meter().device_read_bytes)
    });
    counts.collect()
}

fn through_file(temp: &TempFile, policy: &str, reads: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let path = ReadPath::builder().memory(MEMORY_BYTES).readahead(policy).build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let mut buffer = vec![0; 300_000];
    let counts = reads.iter().map(|&(offset, bytes)| {
        file.read_at(&mut buffer[..bytes as usize], offset).unwrap();
        let stats = path.stats();
        (stats.device_reads, stats.device_bytes)
    });
    counts.collect()
}

/// Streams, strides, concurrent streams and random offsets.
fn reads() -> Vec<(u64, u64)> {
    let mut reads: Vec<(u64, u64)> = (0..200).map(|at| (at * 3000, 3000)).collect();
    reads.extend((0..40).map(|at| (2_000_000 + at * 20_000, 9000)));
    for at in 0..60 {
        reads.extend([(4_000_000 + at * 8192, 8192), (6_000_000 + at * 5000, 5000)]);
    }
    let mut state = 9u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..300 {
        let (offset, bytes) = (next(FILE_BYTES as u64 + 9000), next(200_000));
        reads.push((offset, bytes));
        reads.push((offset + bytes, 4096));
    }
    reads
}

#[test]
fn file_reads_issue_the_same_requests_as_the_machine_alone() {
    let temp = TempFile::new(FILE_BYTES);
    // Large reads would read resident pages from the kernel page cache.
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    let reads = reads();
    for policy in ["none", "ondemand", "ondemand,read_ahead_kb=2048", "window-fixed", "window"] {
        let (alone, through) = (alone(&temp, policy, &reads), through_file(&temp, policy, &reads));
        for (at, (alone, through)) in alone.iter().zip(&through).enumerate() {
            assert_eq!(alone, through, "{policy}: read {at}, {:?}", reads[at]);
        }
    }
}
