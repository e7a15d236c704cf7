//! Tests of the engine and the depth of replayed threads.

use super::*;
use crate::recording::{Mapped, ReadOutcome, RecordingStart};

/// Start of a recording of strace, which does not show the pages that were cached before it.
fn start() -> Record {
    Record::Start(RecordingStart { source: RecordingMethod::Strace, ..RecordingStart::default() })
}

/// A read of one page by thread 1.
fn read(way: ReadMethod, page: u64, (begin_ns, end_ns): (u64, u64)) -> Record {
    Record::Read(ReadRecord {
        way,
        thread: 1,
        offset: page * PAGE_BYTES,
        asked_bytes: PAGE_BYTES,
        outcome: ReadOutcome::Bytes(PAGE_BYTES),
        begin_ns,
        end_ns,
        ..ReadRecord::default()
    })
}

/// The second fault shows pages 4 to 7 and 10 to 17 to be used, and page 8 is not mapped. No two
/// calls of the thread overlapped, so it has one request at a time.
#[test]
fn fault_with_two_used_ranges_is_no_overlap_of_two_reads() {
    let ms = 1_000_000;
    let mapped = |first: u64| {
        let (offset, bytes) = (first * PAGE_BYTES, 8 * PAGE_BYTES);
        Record::Mapped(Mapped { thread: 1, offset, bytes, ..Mapped::default() })
    };
    let mut input = RecordingInput::default();
    input.take(&start());
    input.take(&mapped(0));
    input.take(&read(ReadMethod::Fault, 3, (0, ms)));
    input.take(&mapped(10));
    input.take(&read(ReadMethod::Fault, 10, (2 * ms, 3 * ms)));
    for index in 0..20 {
        let begin_ns = (4 + index) * ms;
        input.take(&read(ReadMethod::Pread, 100 + index, (begin_ns, begin_ns + ms / 2)));
    }
    let program = input.finish().unwrap();
    let list = &program.threads()[0];
    assert_eq!((list.reads.len(), list.engine, list.depth), (23, JobEngine::Psync, 1));
}

/// The largest depth of a job is 65,536 (iodepth in the book's list of job options).
#[test]
fn more_overlapping_reads_than_the_largest_depth_are_replayed() {
    let mut input = RecordingInput::default();
    input.take(&start());
    (0..65_537).for_each(|page| input.take(&read(ReadMethod::Uring, page, (0, 1))));
    let program = input.finish().unwrap();
    assert_eq!(program.threads()[0].depth, 65_536);
}
