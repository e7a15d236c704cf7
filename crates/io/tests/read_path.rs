//! The machine over real files: every byte that a read gives is the file's.

mod support;

use readpath::backend::BackendKind;
use readpath::carrier::{Carrier, CarrierMemory};
use readpath::clock::Clock;
use readpath::storage::Files;
use readpath::target::{OpenOptions, Target};
use readpath_core::machine::{Access, ReadError};
use readpath_core::readahead;
use readpath_core::unit::Time;
use support::rig::Rig;
use support::{TempFile, splitmix};

const FILE_BYTES: u64 = 3 * (1 << 20) + 1234;
const MEMORY_BYTES: u64 = 1 << 20;
const BUFFERS: u32 = 8;
const BUFFER_BYTES: u64 = 256 << 10;

fn open(file: &TempFile, law: &str, scheduler: &str, backend: BackendKind) -> Rig<Files> {
    let target = Target::open(&file.path, OpenOptions::default()).unwrap();
    let bytes = target.bytes();
    let memory =
        CarrierMemory { cache_bytes: MEMORY_BYTES, buffers: BUFFERS, buffer_bytes: BUFFER_BYTES };
    let carrier = Carrier::new(target, memory, backend, Clock::start()).unwrap();
    Rig::over(carrier, bytes, MEMORY_BYTES, law, scheduler)
}

/// Any offset and size, at the end of the file and past it, buffered, mapped
/// and direct, several at once, with memory for a third of the file.
#[test]
fn every_byte_is_the_files_under_every_law_and_backend() {
    let file = TempFile::new(FILE_BYTES as usize);
    let content = std::fs::read(&file.path).unwrap();
    for law in readahead::LAWS {
        for (backend, scheduler) in [
            (BackendKind::Ring, "deadline"),
            (BackendKind::Threads, "noop"),
            (BackendKind::Ring, "cfq"),
        ] {
            let mut path = open(&file, law.name, scheduler, backend);
            let alignment = u64::from(path.carrier.caps().alignment_sectors) * 512;
            let mut state = 7;
            for _ in 0..60 {
                for tag in 0..u64::from(BUFFERS) {
                    let offset = splitmix(&mut state) % (FILE_BYTES + 5000);
                    let bytes = splitmix(&mut state) % [10, 5000, 100_000][tag as usize % 3];
                    let down = |value: u64| value / alignment * alignment;
                    match splitmix(&mut state) % 4 {
                        0 => path.read(Access::Direct, down(offset), down(bytes), tag),
                        1 => path.read(Access::Fault, offset, 1, tag),
                        _ => path.read(Access::Buffered, offset, bytes, tag),
                    }
                }
                path.check(&content);
            }
        }
    }
}

#[test]
fn the_ends_of_the_file_are_exact() {
    let file = TempFile::new(FILE_BYTES as usize);
    let content = std::fs::read(&file.path).unwrap();
    let mut path = open(&file, "ondemand", "deadline", BackendKind::Ring);
    for (offset, bytes) in [
        (0, 1),
        (FILE_BYTES - 1, 1),
        (FILE_BYTES - 1, 100),
        (FILE_BYTES, 1),
        (FILE_BYTES + 100_000, 10),
        (FILE_BYTES - 5000, 9000),
        (4095, 2),
        (0, 0),
    ] {
        path.read(Access::Buffered, offset, bytes, 0);
        path.check(&content);
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error_at_the_right_place() {
    let file = TempFile::new(FILE_BYTES as usize);
    let content = std::fs::read(&file.path).unwrap();
    let mut path = open(&file, "none", "noop", BackendKind::Ring);
    let end = 1 << 20;
    std::fs::File::options().write(true).open(&file.path).unwrap().set_len(end).unwrap();
    path.read(Access::Buffered, end - 8192, 16384, 0);
    let (_, result) = path.finish().remove(0);
    assert_eq!(result, Err(ReadError::Shrunk { offset: end }));
    path.read(Access::Buffered, end - 8192, 8192, 0);
    path.check(&content);
}

/// A wait with nothing to come back ends at its deadline.
#[test]
fn waiting_for_a_time_sleeps_until_then() {
    let file = TempFile::new(FILE_BYTES as usize);
    let mut path = open(&file, "none", "noop", BackendKind::Ring);
    let deadline = path.carrier.now() + Time::from_ms(20);
    let mut completions = Vec::new();
    while path.carrier.now() < deadline {
        path.carrier.wait(Some(deadline), &mut completions).unwrap();
    }
    assert!(completions.is_empty());
}
