//! Live tables of recordings worked by hand.

use readpath_record::explain::WaitCause;
use readpath_record::live::LiveReads;
use readpath_trace::recording::{
    DeviceRecord, EventsLost, ExecutableMapped, FileRecord, OpenRecord, PagesInserted, ReadMethod,
    ReadOutcome, ReadRecord, Record, RequestRecord, ThreadName,
};

use super::explain::{KIB, US, far};

const SECOND_NS: u64 = 1_000_000_000;

/// Processes 100 (threads 0 and 1) and 200 (thread 2), which have opened a file of their own for
/// direct reads.
fn two_programs() -> LiveReads {
    let mut reads = LiveReads::default();
    reads.take(Record::Device(DeviceRecord {
        device: 7,
        name: "disk".to_owned(),
        ..DeviceRecord::default()
    }));
    for (thread, task, process, name) in
        [(0, 100, 100, "one"), (1, 101, 100, "helper"), (2, 200, 200, "two")]
    {
        let name = name.to_owned();
        reads.take(Record::Thread(ThreadName { thread, task, process, name }));
        let (file, path) = (process, format!("/data-{process}"));
        reads.take(Record::File(FileRecord { file, device: 7, path, ..FileRecord::default() }));
        let open =
            OpenRecord { thread, file, descriptor: 3, is_direct: true, ..OpenRecord::default() };
        reads.take(Record::Open(open));
    }
    reads
}

/// A direct read of 4 KiB at a random position that waits from `begin_ns` on.
fn read(reads: &mut LiveReads, (thread, file): (u32, u32), begin_ns: u64, wait_us: u64) {
    let end_ns = begin_ns + wait_us * US;
    reads.take(Record::Request(RequestRecord {
        begin_ns,
        end_ns,
        thread: Some(u64::from(thread)),
        device: 7,
        bytes: 4 * KIB,
        ..RequestRecord::default()
    }));
    reads.take(Record::Read(ReadRecord {
        begin_ns,
        end_ns,
        waited_ns: wait_us * US,
        thread,
        file,
        way: ReadMethod::Pread,
        descriptor: Some(3),
        offset: far(begin_ns / US / 500 % 199),
        asked_bytes: 4 * KIB,
        outcome: ReadOutcome::Bytes(4 * KIB),
    }));
}

/// In the second second, process 100 waits 40 times 10 ms in two threads, and process 200 five
/// times 1 ms. By hand: 0.4 s and 0.005 s of 1 s. The first second has no effect on it.
#[test]
fn processes_are_explained_apart_and_interval_by_interval() {
    let mut reads = two_programs();
    (0..100).for_each(|at| read(&mut reads, (2, 200), at * 8_000_000, 5000));
    reads.take(Record::Lost(EventsLost { count: 3, ..EventsLost::default() }));
    let (first, lost) = reads.end_interval(SECOND_NS, |_| true);
    assert_eq!((first.len(), first[0].process, lost), (1, 200, 3));
    assert!((first[0].explanation.waited_seconds.unwrap() - 0.5).abs() < 1e-9);

    for at in 0..40 {
        read(&mut reads, (at as u32 % 2, 100), SECOND_NS + at * 20_000_000, 10_000);
    }
    (0..5)
        .for_each(|at| read(&mut reads, (2, 200), SECOND_NS + 815_000_000 + at * 20_000_000, 1000));
    let (second, lost) = reads.end_interval(2 * SECOND_NS, |_| true);
    let shown: Vec<(u32, &str)> = second.iter().map(|it| (it.process, it.name.as_str())).collect();
    assert_eq!((shown, lost), (vec![(100, "one"), (200, "two")], 0));
    let waited: Vec<u64> = second
        .iter()
        .map(|it| (it.explanation.waited_seconds.unwrap() * 1e3).round() as u64)
        .collect();
    assert_eq!(waited, [400, 5]);
    let [slow, quick] = [&second[0].explanation, &second[1].explanation];
    assert_eq!(slow.findings[0].cause, WaitCause::Depth);
    assert_eq!((slow.findings[0].share * 100.0).round(), 40.0);
    assert_eq!((slow.shape.reads, slow.shape.got_bytes), (40, 160 * KIB));
    assert_eq!(slow.shape.files[0].path, "/data-100");
    assert_eq!((quick.shape.reads, quick.findings.len()), (5, 0));
    assert_eq!(reads.end_interval(3 * SECOND_NS, |_| true), (vec![], 0));
}

/// For process 100 another program makes the requests of process 200: 40 waits of 1 ms alone, then
/// 40 of 4 ms next to them.
#[test]
fn requests_of_one_program_delay_the_other() {
    let mut reads = two_programs();
    (0..40).for_each(|at| read(&mut reads, (0, 100), at * 5_000_000, 1000));
    for at in 40..80 {
        read(&mut reads, (2, 200), at * 5_000_000, 4500);
        read(&mut reads, (0, 100), at * 5_000_000, 4000);
    }
    let (found, _) = reads.end_interval(SECOND_NS, |_| true);
    let delayed = found.iter().find(|it| it.process == 100).unwrap();
    assert_eq!(delayed.explanation.findings[0].cause, WaitCause::Readers);
    let seconds = delayed.explanation.findings[0].seconds;
    assert!((seconds - 0.12).abs() < 0.001, "{seconds}");
    // By hand: 40 reads of 4 KiB.
    let evidence = &delayed.explanation.findings[0].evidence;
    assert!(evidence.contains("; 160 KiB of them were read by two (task 200)"), "{evidence}");
}

/// Open files of a process that has ended are forgotten: without them its reads are buffered, and
/// no request of theirs is certain.
#[test]
fn files_of_ended_processes_are_forgotten() {
    let mut reads = two_programs();
    reads.end_interval(SECOND_NS, |process| process != 100);
    (0..40).for_each(|at| read(&mut reads, (2, 200), SECOND_NS + at * 20_000_000, 10_000));
    (0..40).for_each(|at| read(&mut reads, (0, 100), SECOND_NS + at * 20_000_000, 10_000));
    let (found, _) = reads.end_interval(2 * SECOND_NS, |_| true);
    let names: Vec<(u32, &str)> = found.iter().map(|it| (it.process, it.name.as_str())).collect();
    assert_eq!(names, [(0, ""), (200, "two")]);
}

/// Process 100 touches 40 pages of a file, which fetch 16 KiB each, in each of two seconds. If the
/// file was mapped for execution in the first one, both have the remedy for a program's start. A
/// process that calls `pread` for the file has the ordinary remedy.
#[test]
fn programs_and_libraries_keep_their_own_remedy() {
    let cases = [
        (true, ReadMethod::Fault, true),
        (false, ReadMethod::Fault, false),
        (true, ReadMethod::Pread, false),
    ];
    for (is_executable, method, is_of_start) in cases {
        let mut reads = two_programs();
        if is_executable {
            reads.take(Record::Executable(ExecutableMapped { at_ns: 0, file: 100 }));
        }
        for second in [0, 1] {
            for at in 0..40 {
                let begin_ns = second * SECOND_NS + at * 20_000_000;
                touch(&mut reads, method, far(second * 40 + at), begin_ns);
            }
            let (found, _) = reads.end_interval((second + 1) * SECOND_NS, |_| true);
            let finding = &found[0].explanation.findings[0];
            assert_eq!(finding.cause, WaitCause::Depth);
            assert_eq!(finding.remedy.starts_with("start-up: "), is_of_start, "{finding:?}");
        }
    }
}

/// Read of a page of process 100's file that waits 10 ms for 16 KiB.
fn touch(reads: &mut LiveReads, method: ReadMethod, offset: u64, begin_ns: u64) {
    let (thread, file, end_ns) = (0, 100, begin_ns + 10_000 * US);
    let bytes = 16 * KIB;
    reads.take(Record::Insert(PagesInserted { at_ns: begin_ns, thread, file, offset, bytes }));
    reads.take(Record::Read(ReadRecord {
        begin_ns,
        end_ns,
        waited_ns: 10_000 * US,
        thread,
        file,
        way: method,
        offset,
        asked_bytes: 4 * KIB,
        outcome: ReadOutcome::Bytes(4 * KIB),
        ..ReadRecord::default()
    }));
}
