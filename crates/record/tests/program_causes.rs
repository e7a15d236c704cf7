//! The programs of `crates/cli/tests/record` as recordings worked by hand, on devices of known
//! costs.
//!
//! The order of the findings depends on the device, so it is tested here and not on real storage.
//! A wait for a request takes a fixed time plus a time for each KiB.

use readpath_record::explain::{Explanation, ProgramLimit, WaitCause};
use readpath_trace::recording::{
    Activity, AdviceType, DeviceOperation, ExecutableMapped, FileRecord, PagesInserted, ReadMethod,
    ReadOutcome, ReadRecord, Record, RequestRecord, TimeSpent,
};

use super::diagnoses::says;
use super::explain::{KIB, Made, US, far, found};

const MIB: u64 = KIB << 10;

/// Service time of a request.
#[derive(Clone, Copy)]
struct Costs {
    fixed_us: u64,
    /// Transfer time of 16 KiB.
    us_per_16_kib: u64,
}

impl Costs {
    fn us(self, bytes: u64) -> u64 {
        self.fixed_us + bytes * self.us_per_16_kib / (16 * KIB)
    }
}

/// Drive with 20 µs a request and 2 GB/s: 22 µs for 4 KiB, 28 µs for 16 KiB, 532 µs for 1 MiB.
const FAST: Costs = Costs { fixed_us: 20, us_per_16_kib: 8 };

/// Disk with 10 ms a request and 100 MB/s: 10.04 ms for 4 KiB, 10.16 ms for 16 KiB, 20.24 ms for
/// 1 MiB.
const SLOW: Costs = Costs { fixed_us: 10_000, us_per_16_kib: 160 };

const DIRECT: u32 = 1;
const BUFFERED: u32 = 0;

/// Reads the pages whole, and waits for them as one request.
fn fetch(made: &mut Made, costs: Costs, file: u32, place: u64, bytes: u64) {
    let fetched = if file == DIRECT { 0 } else { bytes };
    made.read(file, ReadMethod::Pread, (place, bytes), fetched, costs.us(bytes));
}

/// Touches a page, for which the kernel fetches `fetched` bytes.
fn touch(made: &mut Made, costs: Costs, place: u64, fetched: u64) {
    made.read(BUFFERED, ReadMethod::Fault, (place, 4 * KIB), fetched, costs.us(fetched));
}

fn is_found(program: fn(&mut Made, Costs), fast: &[(WaitCause, u64)], slow: &[(WaitCause, u64)]) {
    for (costs, expected) in [(FAST, fast), (SLOW, slow)] {
        let mut made = Made::new();
        program(&mut made, costs);
        assert_eq!(found(&made.explained()), expected, "{} µs", costs.fixed_us);
    }
}

#[test]
fn random_direct_reads_one_at_a_time_lack_depth() {
    let program = |made: &mut Made, costs| {
        (0..1000).for_each(|at| fetch(made, costs, DIRECT, far(at), 4 * KIB));
    };
    is_found(program, &[(WaitCause::Depth, 22)], &[(WaitCause::Depth, 10_040)]);
}

#[test]
fn random_buffered_reads_one_at_a_time_lack_depth() {
    let program = |made: &mut Made, costs| {
        made.hint(AdviceType::Random, false);
        (0..1000).for_each(|at| fetch(made, costs, BUFFERED, far(at), 16 * KIB));
    };
    is_found(program, &[(WaitCause::Depth, 28)], &[(WaitCause::Depth, 10_160)]);
}

/// The first of 1,001 reads continues none.
#[test]
fn small_direct_reads_in_a_row_are_small() {
    let program = |made: &mut Made, costs| {
        (0..1001).for_each(|at| fetch(made, costs, DIRECT, at * 4 * KIB, 4 * KIB));
    };
    is_found(program, &[(WaitCause::Small, 22)], &[(WaitCause::Small, 10_040)]);
}

/// Three reads of 16 KiB each at 256 places. The first fetches its 16 KiB, the second 32 KiB, and
/// at the third the kernel fetches 64 KiB ahead. The waits of the first two are given.
fn short_runs(made: &mut Made, first_us: u64, second_us: u64) {
    for at in 0..256 {
        let part = |part: u64| (far(at) + part * 16 * KIB, 16 * KIB);
        made.read(BUFFERED, ReadMethod::Pread, part(0), 16 * KIB, first_us);
        made.read(BUFFERED, ReadMethod::Pread, part(1), 32 * KIB, second_us);
        made.records.push(Record::Insert(PagesInserted {
            at_ns: made.now,
            thread: 0,
            file: BUFFERED,
            offset: far(at) + 48 * KIB,
            bytes: 64 * KIB,
        }));
        made.read(BUFFERED, ReadMethod::Pread, part(2), 0, 0);
    }
}

/// 64 of the 112 KiB of each place are not used. The 48 KiB that are used would be one request of
/// their own. The sizes of the waits, 16 and 32 KiB, are too near for two terms of a cost. So a
/// request costs as much as 64 KiB on the drive, and as 1.5 MB on the disk.
///
/// Drive: waits of 28 and 36 µs, on average 32 µs for 24 KiB. A request of 48 KiB takes
/// 32 × (48 + 64) / (24 + 64) = 40.7 of the 64 µs, so 4/11 of the 16.4 ms are lost. The other 7/11
/// of the first waits (7.17 ms) are one request at a time.
///
/// Disk: 10.16 and 10.32 ms, on average 10.24 ms. A request of 48 KiB takes
/// 10.24 × (49,152 + 1,500,000) / (24,576 + 1,500,000) = 10.405 of the 20.48 ms: 49.2 % of 5.243 s
/// are lost, and 50.8 % of the first 2.601 s remain.
#[test]
fn short_runs_far_apart_fetch_too_much_one_at_a_time() {
    let program =
        |made: &mut Made, costs: Costs| short_runs(made, costs.us(16 * KIB), costs.us(32 * KIB));
    is_found(
        program,
        &[(WaitCause::OverRead, 6), (WaitCause::Depth, 5)],
        &[(WaitCause::OverRead, 2579), (WaitCause::Depth, 1321)],
    );
}

/// A drive that serves one request after the other. The first read of each place but the first
/// waits for the 64 KiB of the place before: 20 µs and 32 µs from the start of that read, then 28
/// µs for its own 16 KiB. The third read took 1 µs of the 52 µs, so the wait is 79 µs. The second
/// read waits 36 µs for 32 KiB.
///
/// The waits behind the readahead are no measure of a request. By the second reads, a request of
/// 48 KiB takes 36 × (48 + 64) / (32 + 64) = 42 of the 115 µs. The lost part is at most the unused
/// part of the bytes, 64 of 112 KiB: 4/7 of 29.4 ms. The other 3/7 of the first waits (20.2 ms) are
/// one request at a time. With the first waits as a measure it would be 4/11 and 7/11, in the other
/// order.
#[test]
fn waits_behind_unused_readahead_are_no_lack_of_depth() {
    let mut made = Made::new();
    for at in 0..256 {
        let part = |part: u64| (far(at) + part * 16 * KIB, 16 * KIB);
        let first_us = if at == 0 { 28 } else { 79 };
        made.read(BUFFERED, ReadMethod::Pread, part(0), 16 * KIB, first_us);
        made.read(BUFFERED, ReadMethod::Pread, part(1), 32 * KIB, 36);
        let begin_ns = made.now;
        made.records.push(Record::Insert(PagesInserted {
            at_ns: begin_ns,
            thread: 0,
            file: BUFFERED,
            offset: far(at) + 48 * KIB,
            bytes: 64 * KIB,
        }));
        made.read(BUFFERED, ReadMethod::Pread, part(2), 0, 0);
        made.records.push(Record::Request(RequestRecord {
            begin_ns,
            end_ns: begin_ns + 52_000,
            thread: Some(0),
            device: 7,
            is_ahead: true,
            bytes: 64 * KIB,
            ..RequestRecord::default()
        }));
    }
    let expected = [(WaitCause::OverRead, 17), (WaitCause::Depth, 9)];
    assert_eq!(found(&made.explained()), expected);
}

/// 64 KiB are fetched for each of 512 reads of 16 KiB. Each second read takes 100 µs. The others
/// take 400 µs, as a request that began before them ends after them: they are no measure of a
/// request. By hand: 16 KiB take (16 + 64) / (64 + 64) of 100 µs, 32.0 ms for all, in place of 256
/// times 500 µs.
#[test]
fn requests_that_end_after_a_read_were_in_progress_during_it() {
    let mut made = Made::new();
    for at in 0..256 {
        let begin_ns = made.now;
        made.compute(1);
        made.read(BUFFERED, ReadMethod::Pread, (far(at), 16 * KIB), 64 * KIB, 400);
        made.compute(100);
        made.records.push(Record::Request(RequestRecord {
            begin_ns,
            end_ns: made.now,
            thread: Some(0),
            device: 7,
            is_ahead: true,
            bytes: 64 * KIB,
            ..RequestRecord::default()
        }));
        let second = (far(at) + 512 * KIB, 16 * KIB);
        made.read(BUFFERED, ReadMethod::Pread, second, 64 * KIB, 100);
    }
    let explanation = made.explained();
    let over_read = explanation.findings.iter().find(|it| it.cause == WaitCause::OverRead).unwrap();
    let expected = "the 512 used parts would take about 32.0 ms instead of 128.0 ms";
    assert!(over_read.evidence.contains(expected), "{over_read:?}");
}

/// A virtual disk whose host reads ahead: the first request of a place takes 147 µs, the second
/// 46 µs. Both causes hold, and the second request is the cheaper fault. 4/11 of 49.4 ms are lost;
/// 7/11 of the first waits (37.6 ms) are one request at a time.
#[test]
fn short_runs_that_are_fast_but_for_the_first_read_lack_depth_first() {
    let mut made = Made::new();
    short_runs(&mut made, 147, 46);
    let explanation = made.explained();
    let expected = [(WaitCause::Depth, 24), (WaitCause::OverRead, 18)];
    assert_eq!(found(&explanation), expected);
    // Both remedies ask for the ranges that are used, and for nothing else.
    let [depth, over_read] = [0, 1].map(|nth| &explanation.findings[nth].remedy);
    assert!(depth.contains("known in advance with POSIX_FADV_WILLNEED"), "{depth}");
    assert!(over_read.contains("whole ranges at once"), "{over_read}");
    assert!(explanation.findings[1].evidence.contains("256 used parts"), "{explanation:?}");
}

/// 128 KiB are fetched for each of 256 touches. One size, so a request costs as much as 64 KiB on
/// the drive: the page alone takes (64 + 4) / (64 + 128) of the 84 µs, and 13.9 of 21.5 ms are
/// lost. On the disk it takes (1,500,000 + 4,096) / (1,500,000 + 131,072) = 92.2 % of the
/// 11.28 ms: the positions cost, not the bytes.
#[test]
fn touches_far_apart_fetch_too_much_on_a_drive_and_lack_depth_on_a_disk() {
    let program = |made: &mut Made, costs| {
        (0..256).for_each(|at| touch(made, costs, far(at), 128 * KIB));
    };
    is_found(
        program,
        &[(WaitCause::OverRead, 14), (WaitCause::Depth, 8)],
        &[(WaitCause::Depth, 2663), (WaitCause::OverRead, 225)],
    );
}

#[test]
fn slices_of_a_mapping_fault_page_by_page() {
    let program = |made: &mut Made, costs| {
        made.hint(AdviceType::Random, true);
        for at in 0..100 {
            (0..16).for_each(|page| touch(made, costs, far(at) + page * 4 * KIB, 4 * KIB));
        }
    };
    is_found(program, &[(WaitCause::PageFaults, 35)], &[(WaitCause::PageFaults, 16_064)]);
}

/// The first of 1,001 reads continues none.
#[test]
fn stream_under_random_advice_has_wrong_advice() {
    let program = |made: &mut Made, costs| {
        made.hint(AdviceType::Random, false);
        (0..1001).for_each(|at| fetch(made, costs, BUFFERED, at * 16 * KIB, 16 * KIB));
    };
    is_found(program, &[(WaitCause::Advice, 28)], &[(WaitCause::Advice, 10_160)]);
}

/// Ten rounds over 16 MiB, past the page cache or with pages that are dropped. The first round is a
/// stream.
#[test]
fn rounds_fetch_the_same_again() {
    fn rounds(made: &mut Made, costs: Costs, file: u32) {
        (0..160).for_each(|at| fetch(made, costs, file, at % 16 * MIB, MIB));
    }
    // 144 × 532 µs = 76.6 ms, and 144 × 20.24 ms = 2,914.6 ms.
    let (fast, slow) = ([(WaitCause::Again, 77)], [(WaitCause::Again, 2915)]);
    is_found(|made, costs| rounds(made, costs, DIRECT), &fast, &slow);
    is_found(|made, costs| rounds(made, costs, BUFFERED), &fast, &slow);
}

/// Sixty reads of 4 KiB of each of four files, three of them on the given device and one on a
/// device that takes `slow_us`.
fn slow_file(costs: Costs, slow_us: u64) -> Explanation {
    let mut made = Made::new();
    for file in [0, 2, 3] {
        (0..60).for_each(|at| fetch(&mut made, costs, file, far(at), 4 * KIB));
    }
    for at in 0..60 {
        made.read(DIRECT, ReadMethod::Pread, (far(at), 4 * KIB), 0, slow_us);
    }
    made.explained()
}

/// The time beyond the median of the other files is lost: 60 × (10,040 - 22) µs. The rest is one
/// request at a time, and too short to be reported. A file that is three times as slow is no slow
/// file: all waits are one request at a time, 180 × 10.04 + 60 × 30 ms.
#[test]
fn slow_file_is_slow_by_the_other_files() {
    assert_eq!(found(&slow_file(FAST, 10_040)), [(WaitCause::SlowFile, 601)]);
    assert_eq!(found(&slow_file(SLOW, 30_000)), [(WaitCause::Depth, 3607)]);
    // 60 × (100 - 10.04) ms, and 240 × 10.04 ms.
    let expected = [(WaitCause::SlowFile, 5398), (WaitCause::Depth, 2410)];
    assert_eq!(found(&slow_file(SLOW, 100_000)), expected);
}

/// Forty reads of 1 MiB, and forty that writes delay by this factor.
fn among_writes(costs: Costs, factor: u64) -> Explanation {
    let mut made = Made::new();
    (0..40).for_each(|at| fetch(&mut made, costs, DIRECT, at * MIB, MIB));
    for at in 40..80 {
        let begin_ns = made.now;
        let waits_us = factor * costs.us(MIB);
        made.read(DIRECT, ReadMethod::Pread, (at * MIB, MIB), 0, waits_us);
        made.records.push(Record::Request(RequestRecord {
            begin_ns,
            end_ns: made.now,
            device: 7,
            work: DeviceOperation::Write,
            bytes: 4 * MIB,
            ..RequestRecord::default()
        }));
    }
    made.explained()
}

/// Three of four times 532 µs are lost forty times, or one of two times 20.24 ms. A delay below
/// the factor of two is no finding.
#[test]
fn writes_are_a_cause_where_they_double_the_waits() {
    assert_eq!(found(&among_writes(FAST, 4)), [(WaitCause::Writers, 64)]);
    assert_eq!(found(&among_writes(SLOW, 2)), [(WaitCause::Writers, 810)]);
    assert_eq!(found(&among_writes(FAST, 1)), []);
}

/// A stream waits for the device, and reads of cached pages wait for nothing.
#[test]
fn programs_without_a_fault_have_no_finding() {
    for costs in [FAST, SLOW] {
        let mut made = Made::new();
        for at in 0..400 {
            // Every fourth read of 256 KiB waits for a window of 1 MiB.
            let waits_us = if at % 4 == 0 { costs.us(MIB) } else { 0 };
            let fetched = if at % 4 == 0 { MIB } else { 0 };
            let place = (at * 256 * KIB, 256 * KIB);
            made.read(BUFFERED, ReadMethod::Pread, place, fetched, waits_us);
        }
        let explanation = made.explained();
        assert_eq!((found(&explanation), explanation.limit), (vec![], ProgramLimit::Device));
    }
    let mut made = Made::new();
    (0..5000).for_each(|at| {
        let place = (at * 4051 % 1024 * 4 * KIB, 4 * KIB);
        made.read(BUFFERED, ReadMethod::Pread, place, 0, 0);
    });
    let explanation = made.explained();
    assert_eq!((found(&explanation), explanation.limit), (vec![], ProgramLimit::Program));
}

/// 800 direct reads of 512 B in order are 100 pages, each of eight parts. No part is fetched twice
/// in the first pass; the data was said to be fetched repeatedly. In a second pass all are.
#[test]
fn parts_of_a_page_are_not_fetched_again() {
    let explanation = |passes: u64| {
        let mut made = Made::new();
        for at in 0..passes * 800 {
            made.read(DIRECT, ReadMethod::Pread, (at % 800 * 512, 512), 0, 1000);
        }
        made.explained()
    };
    let shape = explanation(1).shape;
    assert_eq!((shape.fetched_bytes, shape.again_bytes), (400 * KIB, 0));
    assert!(!found(&explanation(1)).iter().any(|(cause, _)| *cause == WaitCause::Again));
    let twice = explanation(2);
    assert_eq!((twice.shape.fetched_bytes, twice.shape.again_bytes), (800 * KIB, 400 * KIB));
    assert_eq!(found(&twice)[0].0, WaitCause::Again);
}

/// Direct reads of the first sector of 100 pages, of the pages as a whole, and of their second
/// sectors. The last ones have been fetched: 50 KiB. They counted as new.
#[test]
fn sectors_of_a_page_that_was_fetched_whole_are_fetched_again() {
    let again_bytes = |has_second_sectors: bool| {
        let mut made = Made::new();
        let sectors = |made: &mut Made, offset: u64| {
            (0..100).for_each(|at| {
                made.read(DIRECT, ReadMethod::Pread, (at * 4 * KIB + offset, 512), 0, 1000);
            });
        };
        sectors(&mut made, 0);
        made.read(DIRECT, ReadMethod::Pread, (0, 400 * KIB), 0, 1000);
        if has_second_sectors {
            sectors(&mut made, 512);
        }
        made.explained().shape.again_bytes
    };
    assert_eq!(again_bytes(true) - again_bytes(false), 50 * KIB);
}

/// As root: an advice announces 8 MiB, and the kernel brings in the first 128 KiB. Reads of 64 KiB
/// in order then wait for the kernel's own windows: all but the first two. By hand, 126 of 128.
#[test]
fn pages_that_an_advice_left_out_wait_for_the_kernels_window() {
    let mut made = Made::new();
    let (file, bytes) = (BUFFERED, 128 * KIB);
    let length = FileRecord { file, device: 7, bytes: Some(8 << 20), ..FileRecord::default() };
    made.records.push(Record::File(length));
    let insert = PagesInserted { at_ns: made.now, thread: 0, file, offset: 0, bytes };
    made.records.push(Record::Insert(insert));
    made.now += 1;
    made.hint(AdviceType::WillNeed, false);
    if let Some(Record::Advice(advice)) = made.records.last_mut() {
        advice.bytes = 8 << 20;
    }
    for at in 0..128 {
        let fetched = if at < 2 { 0 } else { 128 * KIB };
        made.read(file, ReadMethod::Read, (at * 64 * KIB, 64 * KIB), fetched, 1000);
    }
    let explanation = made.explained();
    assert_eq!(explanation.readahead.map(|waits| waits.waits), Some(126));
}

/// 64 blocks of 64 KiB, each announced directly before its read, which waits 1 ms: the note is on
/// 64 waits, 64 ms. Without the announcements the waits are for the kernel's readahead.
#[test]
fn announcements_directly_before_the_read_are_named() {
    let explanation = |is_announced: bool| {
        let mut made = Made::new();
        let length = FileRecord { device: 7, bytes: Some(4 << 20), ..FileRecord::default() };
        made.records.push(Record::File(length));
        for offset in (0..64).map(|at| at * 64 * KIB) {
            let bytes = 64 * KIB;
            if is_announced {
                let inserted =
                    PagesInserted { at_ns: made.now, offset, bytes, ..Default::default() };
                made.records.push(Record::Insert(inserted));
                made.hint(AdviceType::WillNeed, false);
                if let Some(Record::Advice(advice)) = made.records.last_mut() {
                    (advice.offset, advice.bytes) = (offset, bytes);
                }
            }
            made.read(BUFFERED, ReadMethod::Read, (offset, bytes), 0, 1000);
        }
        made.explained()
    };
    let announced = explanation(true);
    assert_eq!((found(&announced), announced.limit), (vec![], ProgramLimit::Device));
    let text = announced.limit_text;
    assert!(text.contains("64 waits, 64.0 ms in all, were for pages that it had"), "{text}");
    assert!(!explanation(false).limit_text.contains("announced"));
}

/// Direct reads of 16 KiB in order by io_uring, in batches of `depth`, each batch of 1 ms. One at a
/// time they are small. By hand: of 200 batches the first waits for another cause or none, and 16
/// at a time no read waits for the one before.
#[test]
fn small_reads_in_flight_together_are_not_one_after_the_other() {
    let batches = |depth: u64| {
        let mut made = Made::new();
        for batch in 0..200 {
            let begin_ns = made.now;
            made.now += 1000 * US;
            for nth in 0..depth {
                let offset = (batch * depth + nth) * 16 * KIB;
                made.records.push(Record::Request(RequestRecord {
                    begin_ns: begin_ns + 1,
                    end_ns: made.now - 1,
                    thread: Some(0),
                    device: 7,
                    bytes: 16 * KIB,
                    ..RequestRecord::default()
                }));
                made.records.push(Record::Read(ReadRecord {
                    begin_ns,
                    end_ns: made.now,
                    waited_ns: 1000 * US,
                    way: ReadMethod::Uring,
                    descriptor: Some(3),
                    file: DIRECT,
                    offset,
                    asked_bytes: 16 * KIB,
                    outcome: ReadOutcome::Bytes(16 * KIB),
                    ..ReadRecord::default()
                }));
            }
        }
        let explanation = made.explained();
        explanation.findings.iter().map(|finding| finding.cause).collect::<Vec<WaitCause>>()
    };
    assert_eq!(batches(1), [WaitCause::Small]);
    assert_eq!(batches(16), []);
}

/// A daemon computes for 70 of 100 ms, and the processes that the program waited for 6 ms. Only the
/// trace has the time of the daemon.
#[test]
fn processor_time_includes_daemons() {
    let mut made = Made::new();
    made.now = 100_000 * US;
    for (activity, ms) in [(Activity::Processor, 70), (Activity::Others, 30)] {
        let wall_ns = ms * 1000 * US;
        made.records.push(Record::TimeSpent(TimeSpent { at_ns: made.now, activity, wall_ns }));
    }
    let explanation = made.explained_with(Some(6_000 * US));
    assert_eq!(explanation.processor_seconds, Some(0.07));
}

/// Random touches of a library with 16 KiB around each, and of a file of data. No code of the user
/// reads a library: its remedy is a set of pages from a recording, and no depth is measured.
#[test]
fn remedy_for_a_library_brings_its_pages_in_ahead() {
    for (is_executable, expected) in [(true, "start-up: "), (false, "where no read needs")] {
        let mut made = Made::new();
        if is_executable {
            let mapped = ExecutableMapped { at_ns: 0, file: BUFFERED };
            made.records.push(Record::Executable(mapped));
        }
        (0..100).for_each(|nth| touch(&mut made, SLOW, far(nth), 16 * KIB));
        let explained = made.explained();
        let finding = &explained.findings[0];
        assert_eq!(finding.cause, WaitCause::Depth, "{finding:?}");
        assert!(finding.remedy.starts_with(expected), "{finding:?}");
        assert_eq!(finding.remedy.contains("advise --from"), is_executable);
        assert_eq!(explained.samples.contains_key(&WaitCause::Depth), !is_executable);
    }
}

/// 40 compiled modules of 8 KiB, read whole. Only Python reads them as code.
#[test]
fn modules_of_an_interpreter_are_brought_in_ahead() {
    for has_python in [true, false] {
        let mut made = Made::new();
        let file = |file: u32, path: String, bytes: u64| {
            let bytes = Some(bytes);
            Record::File(FileRecord { file, device: 7, path, bytes, ..FileRecord::default() })
        };
        made.records.push(file(4, "/usr/bin/python3.11".to_owned(), 6 << 20));
        if has_python {
            made.records.push(Record::Executable(ExecutableMapped { at_ns: 0, file: 4 }));
        }
        for number in 5..45 {
            made.records.push(file(number, format!("/lib/__pycache__/m{number}.pyc"), 8 * KIB));
            fetch(&mut made, SLOW, number, 0, 8 * KIB);
        }
        let explained = made.explained();
        let finding = &explained.findings[0];
        assert_eq!(finding.cause, WaitCause::ManyFiles, "{finding:?}");
        assert_eq!(finding.remedy.contains("advise --from"), has_python, "{finding:?}");
    }
}

/// One touch of each of 40 small libraries, 10.08 ms each, and 30 touches of a file of data, 10.16
/// ms each. The libraries have more waits, and all of them count for the many files: the depth is
/// the one of the data.
#[test]
fn remedy_is_one_for_the_files_that_a_cause_is_charged_for() {
    let mut made = Made::new();
    for file in 5..45 {
        let (path, bytes) = (format!("/lib/lib{file}.so"), Some(24 * KIB));
        let named = FileRecord { file, device: 7, path, bytes, ..FileRecord::default() };
        made.records.push(Record::File(named));
        made.records.push(Record::Executable(ExecutableMapped { at_ns: 0, file }));
        let (place, fetched) = ((8 * KIB, 4 * KIB), 8 * KIB);
        made.read(file, ReadMethod::Fault, place, fetched, SLOW.us(fetched));
    }
    (0..30).for_each(|nth| touch(&mut made, SLOW, far(nth), 16 * KIB));
    let explained = made.explained();
    let remedy = |cause| {
        let finding = explained.findings.iter().find(|finding| finding.cause == cause);
        finding.map(|finding| finding.remedy.clone()).unwrap_or_default()
    };
    let [many, depth] = [WaitCause::ManyFiles, WaitCause::Depth].map(remedy);
    assert!(many.starts_with("start-up: "), "{many}");
    assert!(depth.starts_with("where no read needs"), "{depth}");
    assert!(explained.samples.contains_key(&WaitCause::Depth));
}

/// 100,000 reads of one byte, 1 µs each, of a program that had a processor for 40 ms. It was
/// displaced within its calls, which cost no more than these 40 ms.
#[test]
fn small_reads_cost_at_most_the_processor_time() {
    let mut made = Made::new();
    for at in 0..100_000 {
        made.read(0, ReadMethod::Read, (at, 1), 0, 0);
    }
    let explanation = made.explained_with(Some(40_000_000));
    assert_eq!(found(&explanation), [(WaitCause::Calls, 40)]);
    assert!(explanation.findings[0].seconds <= explanation.processor_seconds.unwrap());
    says(&explanation, &["took 400 ns each", "40.0 ms in all"]);
}
