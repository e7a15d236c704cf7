//! Reads in order that wait for one request of their own at a time. Reads next to other threads.
//! Failed reads. All are worked by hand.

use readpath_record::explain::readahead::ReadaheadWaits;
use readpath_record::explain::{Explanation, ProgramLimit, WaitCause};
use readpath_trace::recording::{
    Mapped, PagesInserted, ReadMethod, ReadOutcome, Record, RecordingMethod,
};

use super::explain::{KIB, Made, far, found};

/// Waits without a cause that a measurement judges: of a mapping or the page cache, and direct.
fn judged(explanation: Explanation) -> [Option<ReadaheadWaits>; 2] {
    assert_eq!(found(&explanation), []);
    [explanation.readahead, explanation.direct_in_order]
}

/// Numbers of the waits: their count, milliseconds, and the bytes of a request.
fn numbers(waits: Option<ReadaheadWaits>) -> Option<(u64, f64, Option<u64>)> {
    waits.map(|waits| (waits.waits, (waits.seconds * 1e3).round(), waits.request_bytes))
}

/// By hand: of 400 direct reads in order, each of which waits 1 ms, the first one continues none.
/// The others wait 399 ms. Reads of 1 MiB may be small for a device too.
#[test]
fn direct_reads_in_order_of_any_size_are_left_to_a_measurement() {
    for kib in [64, 128, 256, 1024] {
        let mut made = Made::new();
        let bytes = kib * KIB;
        (0..400).for_each(|at| made.read(1, ReadMethod::Pread, (at * bytes, bytes), 0, 1000));
        let [readahead, direct] = judged(made.explained());
        assert_eq!(readahead, None);
        assert_eq!(numbers(direct), Some((399, 399.0, Some(bytes))), "{kib} KiB");
    }
}

/// By hand: 400 touches at distances of 64 KiB. Each waits 1 ms for the 64 KiB from it on, and the
/// kernel maps them. All but the first continue the one before.
#[test]
fn touches_that_fetch_what_they_map_are_left_to_a_measurement() {
    let mut made = Made::new();
    for offset in (0..400).map(|at| at * 64 * KIB) {
        let (at_ns, bytes) = (made.now, 64 * KIB);
        let mapped = Mapped { at_ns, thread: 0, file: 0, offset, bytes };
        made.records.push(Record::Mapped(mapped));
        made.read(0, ReadMethod::Fault, (offset, 4 * KIB), bytes, 1000);
    }
    let [readahead, direct] = judged(made.explained());
    assert_eq!(numbers(readahead), Some((399, 399.0, Some(64 * KIB))));
    assert_eq!(direct, None);
}

/// By hand: 400 touches wait for one request of 64 KiB each, 399 of them in order. As many reads of
/// another file wait 0.5 ms each for windows of the kernel. The measurement compares sizes on one
/// file, so the other kind of waits is left out.
#[test]
fn measured_file_stands_for_waits_of_its_kind_only() {
    let mut made = Made::new();
    for at in 0..400 {
        let (at_ns, offset, bytes) = (made.now, at * 64 * KIB, 64 * KIB);
        made.records.push(Record::Mapped(Mapped { at_ns, thread: 0, file: 0, offset, bytes }));
        made.read(0, ReadMethod::Fault, (offset, 4 * KIB), bytes, 1000);
        made.read(2, ReadMethod::Pread, (at * 128 * KIB, 64 * KIB), 128 * KIB, 500);
        made.read(2, ReadMethod::Pread, (at * 128 * KIB + 64 * KIB, 64 * KIB), 0, 0);
    }
    let [readahead, direct] = judged(made.explained());
    assert_eq!(numbers(readahead), Some((399, 399.0, Some(64 * KIB))));
    assert_eq!(direct, None);
}

/// Adds reads of 1 ms by these threads at the same time.
fn read_at_once(made: &mut Made, threads: impl Iterator<Item = u32>, file: u32, offset: u64) {
    let start = made.now;
    for thread in threads {
        made.now = start;
        let begin = made.records.len();
        let offset = offset + u64::from(thread) * (1000 << 20);
        made.read(file, ReadMethod::Pread, (offset, 64 * KIB), 0, 1000);
        for record in &mut made.records[begin..] {
            match record {
                Record::Read(read) => read.thread = thread,
                Record::Request(request) => request.thread = Some(u64::from(thread)),
                _ => {}
            }
        }
    }
}

/// Four threads read 64 KiB each, all the time. Four requests in flight are no lack of size.
#[test]
fn direct_reads_in_order_at_a_higher_depth_are_not_judged() {
    let mut made = Made::new();
    (0..400).for_each(|at| read_at_once(&mut made, 0..4, 1, at * 64 * KIB));
    assert_eq!(judged(made.explained()), [None, None]);
}

/// Sixteen threads read at random positions, in three of four rounds at once. In the fourth, all
/// but one wait for a processor: each of them in its turn, or always the first one. By hand, 100 of
/// 400 rounds have one request at a time. A pool that reads one after the other has it always.
#[test]
fn low_depth_next_to_threads_that_read_is_no_lack_of_depth() {
    let explained = |threads_of: fn(u64) -> std::ops::Range<u32>| {
        let mut made = Made::new();
        (0..400).for_each(|at| read_at_once(&mut made, threads_of(at), 1, far(at)));
        found(&made.explained())
    };
    let in_turn = explained(|at| match (at % 4, (at / 4 % 16) as u32) {
        (3, thread) => thread..thread + 1,
        _ => 0..16,
    });
    assert_eq!(in_turn, []);
    let one_thread = explained(|at| if at % 4 == 3 { 0..1 } else { 0..16 });
    assert_eq!(one_thread, [(WaitCause::Depth, 100)]);
    let serial_pool = explained(|at| (at % 16) as u32..(at % 16) as u32 + 1);
    assert_eq!(serial_pool, [(WaitCause::Depth, 400)]);
}

/// By hand: a pool that reads one after the other for 320 rounds, after 384 rounds of sixteen
/// threads at once, has one request in flight for 45 % of the time. Four threads of which one reads
/// alone in each fourth round are fewer than the 16 requests in flight of the remedy.
#[test]
fn low_depth_of_a_later_phase_or_of_few_threads_is_a_lack() {
    let explained = |rounds: u64, threads_of: fn(u64) -> std::ops::Range<u32>| {
        let mut made = Made::new();
        (0..rounds).for_each(|at| read_at_once(&mut made, threads_of(at), 1, far(at)));
        found(&made.explained())
    };
    let phases = explained(704, |at| match at {
        ..384 => 0..16,
        _ => (at % 16) as u32..(at % 16) as u32 + 1,
    });
    assert_eq!(phases, [(WaitCause::Depth, 320)]);
    let few_threads = explained(400, |at| match (at % 4, (at / 4 % 4) as u32) {
        (3, thread) => thread..thread + 1,
        _ => 0..4,
    });
    assert_eq!(few_threads, [(WaitCause::Depth, 100)]);
}

/// Four processes at a time, each of ten rounds, 64 processes in all. One of the four reads alone
/// in each fourth round. By hand, a process ends before the next one begins. Four then read in the
/// same period: 40 of 160 rounds lack depth.
#[test]
fn many_short_processes_of_which_four_run_at_a_time_are_few_readers() {
    let mut made = Made::new();
    for at in 0..160_u64 {
        let first = (at / 10 * 4) as u32;
        let alone = first + (at / 4 % 4) as u32;
        let threads = if at % 4 == 3 { alone..alone + 1 } else { first..first + 4 };
        read_at_once(&mut made, threads, 1, far(at));
    }
    assert_eq!(found(&made.explained()), [(WaitCause::Depth, 40)]);
}

/// Reads that must not wait fail 999 times of 1000 (EAGAIN is 11), and the device of a file is gone
/// (EIO is 5). The program slept for none, and its data was not in memory. One failed read of a
/// hundred by another error, such as of a folder (EISDIR is 21), is no limit.
#[test]
fn failed_reads_are_not_said_to_be_in_memory() {
    let limit = |reads: u64, failed: u64, error: u32| {
        let mut made = Made::by(RecordingMethod::Preload);
        for at in 0..reads {
            made.read(0, ReadMethod::Preadv, (far(at % 1000), 4 * KIB), 0, 0);
            if let Some(Record::Read(read)) = made.records.last_mut()
                && at < failed
            {
                read.outcome = ReadOutcome::Error(error);
            }
        }
        // The rest of its time was on a processor.
        let processor_ns = Some(made.now);
        let explanation = made.explained_with(processor_ns);
        assert_eq!(explanation.findings, []);
        (explanation.limit, explanation.limit_text)
    };
    let (polled, text) = limit(1000, 999, 11);
    assert_eq!(polled, ProgramLimit::Unknown, "{text}");
    assert!(text.contains("999 of 1000 reads failed") && text.contains("must not wait"), "{text}");
    let (broken, text) = limit(100, 1, 5);
    assert_eq!(broken, ProgramLimit::Unknown, "{text}");
    assert!(text.contains("1 of 100 reads failed"), "{text}");
    assert_eq!(limit(100, 1, 21).0, ProgramLimit::Program);
}

/// By hand: of 1300 reads, 300 must not wait and fail (EAGAIN is 11), or are of folders (EISDIR is
/// 21). The other 1000 wait 1 ms each, or find their data in memory. The limit is as without the
/// failures, and its text names them. Reads that wait have shown that the program does not poll,
/// also if 700 fail.
#[test]
fn failed_reads_leave_the_limit_of_the_others() {
    let cases = [
        (300, 11, 1000, ProgramLimit::Device),
        (700, 11, 1000, ProgramLimit::Device),
        (300, 21, 0, ProgramLimit::Program),
        (300, 21, 1000, ProgramLimit::Device),
    ];
    for (failed, error, waits_us, limit) in cases {
        let mut made = Made::by(RecordingMethod::Preload);
        for at in 0..failed {
            made.read(0, ReadMethod::Preadv, (at * 1024 * KIB, 4 * KIB), 0, 0);
            let Some(Record::Read(read)) = made.records.last_mut() else { unreachable!() };
            read.outcome = ReadOutcome::Error(error);
        }
        for at in 0..1300 - failed {
            made.read(0, ReadMethod::Pread, (at * 1024 * KIB, 1024 * KIB), 0, waits_us);
        }
        let processor_ns = Some(made.now - (1300 - failed) * waits_us * 1000);
        let explanation = made.explained_with(processor_ns);
        let text = &explanation.limit_text;
        assert_eq!(explanation.limit, limit, "{text}");
        assert!(text.contains(&format!("; {failed} of 1300 reads failed")), "{text}");
        assert!(!text.contains("no wait of a read"), "{text}");
    }
}

/// By hand: 300 of 1300 reads must not wait and fail (EAGAIN is 11), and no other read waits. A
/// program that falls back to a plain read has one for each.
#[test]
fn failed_reads_without_waits_are_polls() {
    let mut made = Made::by(RecordingMethod::Preload);
    for at in 0..300 {
        made.read(0, ReadMethod::Preadv, (at * 1024 * KIB, 4 * KIB), 0, 0);
        let Some(Record::Read(read)) = made.records.last_mut() else { unreachable!() };
        read.outcome = ReadOutcome::Error(11);
    }
    for at in 0..1000 {
        made.read(0, ReadMethod::Pread, (at * 1024 * KIB, 1024 * KIB), 0, 0);
    }
    let processor_ns = Some(made.now);
    let explanation = made.explained_with(processor_ns);
    assert_eq!(explanation.limit, ProgramLimit::Unknown, "{}", explanation.limit_text);
    assert!(explanation.limit_text.contains("no wait of a read"), "{}", explanation.limit_text);
}

/// A recording as root has no failed reads that must not wait, and says so. Calls whose data was in
/// memory all the time did not fail, and a few calls among others are not the way that it reads.
#[test]
fn unrecorded_polls_are_named() {
    let cases = [(100, true, true), (0, true, false), (100, false, false), (1, true, false)];
    for (preadv_count, has_insertions, is_named) in cases {
        let mut made = Made::new();
        for at in 0..100 {
            if has_insertions {
                let at_ns = made.now;
                let (offset, bytes) = (far(at), 4 * KIB);
                made.records.push(Record::Insert(PagesInserted {
                    at_ns,
                    thread: 0,
                    file: 0,
                    offset,
                    bytes,
                }));
                made.now += 1000;
            }
            let method = if at < preadv_count { ReadMethod::Preadv } else { ReadMethod::Pread };
            made.read(0, method, (far(at), 4 * KIB), 0, 0);
        }
        let text = made.explained().limit_text;
        assert_eq!(text.contains("RWF_NOWAIT"), is_named, "{preadv_count}: {text}");
    }
}
