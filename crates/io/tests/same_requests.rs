//! A `File` asks the storage for just what the machine alone would ask for: hits
//! that go past the machine don't change what its law decides.

mod support;

use readpath::ReadPath;
use readpath::backend::BackendKind;
use readpath::carrier::{Carrier, CarrierMemory};
use readpath::clock::Clock;
use readpath::target::{OpenOptions, Target};
use readpath_core::law::Spec;
use readpath_core::machine::{self, Access, Config, Transfer};
use readpath_core::readahead::ReadaheadLimits;
use readpath_core::request::ProcessId;
use support::TempFile;

const FILE_BYTES: usize = 9 << 20;
const MEMORY_BYTES: u64 = 32 << 20;

/// Requests and bytes after each read, by the machine alone.
fn alone(temp: &TempFile, law: &str, reads: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let target = Target::open(&temp.path, OpenOptions::default()).unwrap();
    let bytes = target.bytes();
    let memory = CarrierMemory { cache_bytes: MEMORY_BYTES, buffers: 0, buffer_bytes: 0 };
    let mut carrier = Carrier::new(target, memory, BackendKind::Ring, Clock::start()).unwrap();
    let config = Config {
        memory_bytes: MEMORY_BYTES,
        readahead: Spec::parse(law).unwrap(),
        limits: ReadaheadLimits { request_pages_max: 1024, ..ReadaheadLimits::default() },
        ..Config::new(carrier.caps())
    };
    let mut machine = machine::Machine::new(config).unwrap();
    let file = machine.add_file(bytes, 0).unwrap();
    let handle = machine.open(file);
    let mut completions = Vec::new();
    let mut counts = Vec::new();
    for &(offset, bytes) in reads {
        let transfer = Transfer { handle, process: ProcessId(0), offset, bytes, tag: 0 };
        machine.read(carrier.now(), Access::Buffered, transfer).unwrap();
        loop {
            while let Some(request) = machine.poll_request(carrier.now()) {
                carrier.submit(&machine, request);
            }
            if let Some(done) = machine.poll_done() {
                machine.release(carrier.now(), done.read);
                break;
            }
            carrier.wait(machine.next_wake(), &mut completions).unwrap();
            let now = carrier.now();
            completions.drain(..).for_each(|done| machine.handle_completion(now, done));
        }
        counts.push((machine.meter().device_reads, machine.meter().device_read_bytes));
    }
    counts
}

fn through_file(temp: &TempFile, law: &str, reads: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let path = ReadPath::builder().memory(MEMORY_BYTES).readahead(law).build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let mut buffer = vec![0; 300_000];
    let counts = reads.iter().map(|&(offset, bytes)| {
        file.read_at(&mut buffer[..bytes as usize], offset).unwrap();
        let stats = path.stats();
        (stats.device_reads, stats.device_bytes)
    });
    counts.collect()
}

/// Streams, strides, streams beside each other, and places at random.
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
fn the_same_reads_make_the_same_requests() {
    let temp = TempFile::new(FILE_BYTES);
    // Large reads take what the kernel holds from there.
    readpath::cold::drop_pages(&temp.path).unwrap();
    let reads = reads();
    for law in ["none", "ondemand", "ondemand,read_ahead_kb=2048", "window-fixed", "window"] {
        let (alone, through) = (alone(&temp, law, &reads), through_file(&temp, law, &reads));
        for (at, (alone, through)) in alone.iter().zip(&through).enumerate() {
            assert_eq!(alone, through, "{law}: read {at}, {:?}", reads[at]);
        }
    }
}
