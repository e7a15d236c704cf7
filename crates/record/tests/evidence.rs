//! Diagnoses that the recording itself refutes, and waits that it shows, as recordings worked by
//! hand.

use readpath_record::explain::{Explanation, ProgramLimit, WaitCause};
use readpath_trace::recording::{
    Activity, AdviceGiven, AdviceType, DeviceOperation, FileRecord, OthersSampled, PagesInserted,
    ReadMethod, ReadOutcome, ReadRecord, Record, RecordingMethod, RequestRecord, TimeSpent,
};

use super::diagnoses::{causes, says};
use super::explain::{KIB, Made, US, far, found};

/// Adds the times by activity in milliseconds, of a recording that ends now.
fn spend(made: &mut Made, times: &[(Activity, u64)]) {
    for &(activity, ms) in times {
        let (at_ns, wall_ns) = (made.now, ms * 1000 * US);
        made.records.push(Record::TimeSpent(TimeSpent { at_ns, activity, wall_ns }));
    }
}

/// Without root: 1,000 ordered reads of 128 KiB take 100 µs each and sleep 80 µs of it, on a drive
/// of 1.3 GB/s. By hand they wait 80 ms. The waits were said to be in no recorded read.
#[test]
fn waits_for_a_fast_drive_are_known_by_the_sampled_sleep() {
    let mut made = Made::by(RecordingMethod::Preload);
    for at in 0..1000 {
        made.read(0, ReadMethod::Read, (at * 128 * KIB, 128 * KIB), 0, 99);
        let Some(Record::Read(read)) = made.records.last_mut() else { unreachable!() };
        read.waited_ns = 80 * US;
    }
    spend(&mut made, &[(Activity::Read, 80), (Activity::Processor, 20)]);
    let explanation = made.explained();
    assert!((explanation.waited_seconds.unwrap() - 0.08).abs() < 1e-3, "{explanation:?}");
    assert_ne!(explanation.limit, ProgramLimit::Unseen, "{}", explanation.limit_text);
}

/// Without root: 100 page faults that slept 100 µs for 128 KiB each, and as many reads by io_uring
/// of 128 KiB, 100 µs in flight each. No copy is part of these times: 10 ms, and 100 times 80 µs.
#[test]
fn sampled_faults_and_reads_in_flight_include_no_copy() {
    for (way, expected_ms) in [(ReadMethod::Fault, 10.0), (ReadMethod::Uring, 8.0)] {
        let mut made = Made::by(RecordingMethod::Preload);
        for at in 0..100 {
            made.read(0, way, (at * 128 * KIB, 128 * KIB), 0, 99);
            let Some(Record::Read(read)) = made.records.last_mut() else { unreachable!() };
            read.waited_ns = 0;
        }
        let waited_ms = made.explained().waited_seconds.unwrap() * 1e3;
        assert!((waited_ms - expected_ms).abs() < 0.01, "{way:?}: {waited_ms}");
    }
}

/// Reads of 4 KiB at random positions: `alone` waits in µs without a write in flight, and `among`
/// waits within a write of the given size in KiB.
fn with_writes(alone: &[u64], among: &[(u64, u64)]) -> Vec<WaitCause> {
    let mut made = Made::new();
    for (at, &us) in (0..).zip(alone) {
        made.read(1, ReadMethod::Pread, (far(at), 4 * KIB), 0, us);
        made.compute(10);
    }
    for (at, &(us, kib)) in (500..).zip(among) {
        let begin_ns = made.now;
        made.read(1, ReadMethod::Pread, (far(at), 4 * KIB), 0, us);
        made.records.push(Record::Request(RequestRecord {
            begin_ns,
            end_ns: made.now,
            device: 7,
            work: DeviceOperation::Write,
            bytes: kib * KIB,
            ..RequestRecord::default()
        }));
        made.compute(10);
    }
    causes(&made.explained())
}

/// 14 waits alone take 286 µs on average, and 16 next to writes 275 µs. The writes were said to
/// delay the reads, because two waits of the 16 and one of the 14 took 100 µs.
#[test]
fn waits_as_long_without_writes_are_no_delay_by_writes() {
    let alone: Vec<u64> = [100].into_iter().chain([300; 13]).collect();
    let among: Vec<(u64, u64)> = [(100, 4); 2].into_iter().chain([(300, 4); 14]).collect();
    assert_eq!(with_writes(&alone, &among), [WaitCause::Depth]);
    // 14 waits of 100 µs alone are too few, and 16 are enough, next to 16 of 500 µs.
    assert_eq!(with_writes(&[100; 14], &[(500, 4); 16]), [WaitCause::Depth]);
    assert_eq!(with_writes(&[100; 16], &[(500, 4); 16])[0], WaitCause::Writers);
}

/// All waits are next to writes. On a disk the fastest tenth of the seeks takes a fraction of the
/// mean. Longer waits next to larger writes are evidence; as long ones next to equal writes none.
#[test]
fn waits_that_are_all_next_to_writes_are_judged_by_the_bytes_in_flight() {
    let seeks = |kib: fn(u64) -> u64| -> Vec<(u64, u64)> {
        (0..60).map(|at| (if at % 3 == 0 { 2000 } else { 12_000 }, kib(at))).collect()
    };
    assert_eq!(with_writes(&[], &seeks(|_| 256)), [WaitCause::Depth]);
    // One wait alone, or 15, are no baseline.
    assert_eq!(with_writes(&[2000], &seeks(|_| 256)), [WaitCause::Depth]);
    assert_eq!(with_writes(&[2000; 15], &seeks(|_| 256)), [WaitCause::Depth]);
    assert_eq!(with_writes(&[], &seeks(|at| 4 << (at % 2 * 10))), [WaitCause::Depth]);
    let by_load = with_writes(&[], &seeks(|at| if at % 3 == 0 { 4 } else { 4096 }));
    assert_eq!(by_load[0], WaitCause::Writers);
}

/// Two files are streamed, 200 waits of 100 µs for 128 KiB, and an index is touched at random, 200
/// waits of 1 ms for as many bytes. It was said to be on a slow device.
#[test]
fn random_touches_are_not_compared_with_streams() {
    let explanation = |random_files: &[(u32, u64)]| {
        let mut made = Made::new();
        for at in 0..200 {
            for file in [0, 2] {
                let place = (at * 128 * KIB, 128 * KIB);
                made.read(file, ReadMethod::Read, place, 128 * KIB, 100);
            }
            for &(file, us) in random_files {
                made.read(file, ReadMethod::Fault, (far(at), 4 * KIB), 128 * KIB, us);
            }
        }
        made.explained()
    };
    let has_slow_file =
        |random_files| causes(&explanation(random_files)).contains(&WaitCause::SlowFile);
    assert!(!has_slow_file(&[(3, 1000)]));
    // Two other files that are touched at random are enough for a comparison.
    assert!(has_slow_file(&[(3, 10_000), (10, 1000), (11, 1000)]));
}

/// 1,000 random reads of 4 KiB, 100 µs each, one at a time, then 200 rounds of eight together. By
/// hand the device had one request for 100 of 120 ms. The mean of 2.2 hid it.
#[test]
fn phase_of_single_requests_is_found_next_to_a_phase_of_many() {
    let mut made = Made::new();
    (0..1000).for_each(|at| {
        made.read(1, ReadMethod::Pread, (at * 7919 % 100_000 * 4 * KIB, 4 * KIB), 0, 100);
    });
    for round in 0..200 {
        let begin = made.now;
        for thread in 0..8 {
            made.now = begin;
            let place = ((1 << 30) + far(round * 5 % 1000) + thread * 64 * KIB, 4 * KIB);
            made.read(1, ReadMethod::Pread, place, 0, 100);
        }
    }
    let explanation = made.explained();
    assert_eq!(causes(&explanation), [WaitCause::Depth]);
    let seconds = explanation.findings[0].seconds;
    assert!((seconds - 0.1).abs() < 0.005, "{seconds}");
    says(&explanation, &["1000 reads of 4 KiB", "waited 100 µs each, with 1.0 requests"]);
}

/// Eight threads wait 2 s each in page faults, one every 250 ms. By hand they wait from 0 to
/// 21.75 s. They were charged with 54 s. `later_requests`: requests after the waits.
fn staggered_faults(later_requests: u64) -> Explanation {
    let mut made = Made::by(RecordingMethod::Preload);
    for at in 0..later_requests {
        let begin_ns = 22_000_000 * US + at;
        let request = RequestRecord { begin_ns, end_ns: begin_ns + 1, ..RequestRecord::default() };
        made.records.push(Record::Request(RequestRecord { thread: Some(0), ..request }));
    }
    for at in 0..80 {
        made.now = at * 250_000 * US;
        made.read(0, ReadMethod::Fault, (far(at), 4 * KIB), 0, 2_000_000);
        // The wait is recorded without its request.
        made.records.remove(made.records.len() - 2);
    }
    made.explained()
}

#[test]
fn staggered_waits_are_charged_with_the_passed_time() {
    // With 70,000 requests in place, more than are kept, the sweep sees the last 0.5 s of a wait.
    for later_requests in [0, 70_000] {
        let explanation = staggered_faults(later_requests);
        assert!((explanation.waited_seconds.unwrap() - 21.75).abs() < 0.01, "{explanation:?}");
        let charged: f64 = explanation.findings.iter().map(|finding| finding.seconds).sum();
        assert!((charged - 21.75).abs() < 0.01, "{later_requests}: {charged}, {explanation:?}");
    }
}

/// 16 files are empty when they are opened, and grow by 4 MiB. Each of four reads of 1 MiB waits
/// 1 ms. They were said to be small.
#[test]
fn files_that_have_grown_are_not_small() {
    let mut made = Made::new();
    for file in 10..26 {
        let path = format!("/log/{file}");
        let record = FileRecord { file, device: 7, path, bytes: Some(0), ..FileRecord::default() };
        made.records.push(Record::File(record));
        let insert =
            PagesInserted { at_ns: made.now, file, bytes: 4 << 20, ..PagesInserted::default() };
        made.records.push(Record::Insert(insert));
        made.compute(1);
        for at in 0..4 {
            made.read(file, ReadMethod::Read, (at << 20, 1 << 20), 1 << 20, 1000);
        }
    }
    assert!(!causes(&made.explained()).contains(&WaitCause::ManyFiles));
}

/// Without insertions, as without root: the reads show that the files are larger.
#[test]
fn files_that_were_read_beyond_their_length_are_not_small() {
    let mut made = Made::by(RecordingMethod::Preload);
    for file in 10..26 {
        let record = FileRecord { file, device: 7, bytes: Some(0), ..FileRecord::default() };
        made.records.push(Record::File(record));
        for at in 0..4 {
            made.read(file, ReadMethod::Read, (at << 20, 1 << 20), 0, 10_000);
        }
    }
    assert!(!causes(&made.explained()).contains(&WaitCause::ManyFiles));
}

/// `dd if=/dev/zero`: 80 of 100 ms in calls of `write` that wait for the device, and no fsync. It
/// was advised to call fsync less often.
#[test]
fn fsync_is_named_only_if_it_is_the_larger_part() {
    let explanation = |write_ms, sync_ms| {
        let mut made = Made::new();
        made.now = 100_000 * US;
        let times = [
            (Activity::Processor, 100 - write_ms - sync_ms),
            (Activity::Write, write_ms),
            (Activity::Sync, sync_ms),
        ];
        spend(&mut made, &times);
        made.explained()
    };
    let throttled = explanation(70, 10);
    assert_eq!(found(&throttled), [(WaitCause::Sync, 80)]);
    says(&throttled, &["70.0 ms in calls that write", "10.0 ms in fsync", "write less"]);
    assert!(!throttled.findings[0].remedy.contains("fsync"), "{throttled:?}");
    // Direct writes of 4 KiB one at a time are limited by the latency, not by the bytes.
    says(&throttled, &["several direct or O_SYNC writes in flight"]);
    assert!(!throttled.findings[0].remedy.contains("faster"), "{throttled:?}");
    let synced = explanation(10, 70);
    assert_eq!(found(&synced), [(WaitCause::Sync, 80)]);
    says(&synced, &["10.0 ms in calls that write", "70.0 ms in fsync", "let one fsync follow"]);
}

/// 80 of 100 ms are metadata. A recording has only the opened files that were also used, and the
/// program was said to have opened no file.
#[test]
fn opens_that_were_not_counted_have_no_number() {
    for source in [RecordingMethod::Tracepoints, RecordingMethod::Preload] {
        let mut made = Made::by(source);
        made.now = 100_000 * US;
        spend(&mut made, &[(Activity::Processor, 20), (Activity::Metadata, 80)]);
        let explanation = made.explained();
        assert_eq!(found(&explanation), [(WaitCause::Metadata, 80)]);
        let evidence = &explanation.findings[0].evidence;
        assert!(!evidence.contains("opened"), "{evidence}");
    }
}

/// Without root: others read 1 MiB from a device in each of 40 samples, all the time. The program
/// reads from device 7 alone.
#[test]
fn reads_of_others_from_a_device_without_own_reads_are_not_counted() {
    let explanation = |device: u64| {
        let mut made = Made::by(RecordingMethod::Preload);
        for at in 0..40 {
            let begin_ns = made.now;
            made.read(1, ReadMethod::Pread, (far(at), 4 * KIB), 0, 1000);
            let (end_ns, work) = (made.now, DeviceOperation::Read);
            let others = OthersSampled { end_ns, begin_ns, device, work, bytes: 1 << 20 };
            made.records.push(Record::OthersSampled(others));
        }
        made.explained()
    };
    assert_eq!(explanation(7).other_reads.len(), 1);
    assert_eq!(explanation(8).other_reads, []);
}

/// 2,000 reads of 16 bytes, each 48 bytes behind the end of the last one. All but the first begin
/// in its page or in the next one, and none continues where it ended.
#[test]
fn small_calls_with_gaps_are_not_said_to_continue_at_the_end() {
    let mut made = Made::new();
    for at in 0..2000 {
        made.read(0, ReadMethod::Pread, (at * 64, 16), 0, 0);
        made.now += 500;
    }
    let explanation = made.explained();
    says(&explanation, &["100 % began in the page where a recent one ended or in the next page"]);
}

/// 2,000 reads of 16 bytes at 64 KiB to 2,000 × 64 KiB = 131,072,000, the largest offset first,
/// have no order. Reads of all bytes in a row have one.
#[test]
fn range_of_small_calls_without_an_order_is_kept() {
    let unordered = |offset: fn(u64) -> u64| {
        let mut made = Made::new();
        for at in 0..2000 {
            made.read(0, ReadMethod::Pread, (offset(at), 16), 0, 0);
            made.now += 500;
        }
        made.explained().small_calls.expect("small calls were recorded").unordered
    };
    assert_eq!(unordered(|at| (2000 - at) * 64 * KIB), Some((65_536, 131_072_000)));
    assert_eq!(unordered(|at| at * 16), None);
}

/// Without root: 300 reads of 4 KiB at random positions wait 1 ms each. An announcement has brought
/// each page in flight before, so the wait is no request of the read.
#[test]
fn announced_reads_are_not_one_request_at_a_time() {
    let found_causes = |is_announced: bool| {
        let mut made = Made::by(RecordingMethod::Preload);
        let bytes = Some(1001 << 20);
        let file = FileRecord { file: 0, device: 7, bytes, ..FileRecord::default() };
        made.records.push(Record::File(file));
        for offset in (0..300).map(far) {
            if is_announced {
                let (at_ns, hint, bytes) = (made.now, AdviceType::WillNeed, 4 * KIB);
                let advice = AdviceGiven { at_ns, offset, bytes, hint, ..AdviceGiven::default() };
                made.records.push(Record::Advice(advice));
            }
            made.read(0, ReadMethod::Pread, (offset, 4 * KIB), 0, 1000);
        }
        let explanation = made.explained();
        (causes(&explanation), explanation.shape.fetched_bytes)
    };
    // 300 pages of 4,096 bytes in both cases.
    assert_eq!(found_causes(false), (vec![WaitCause::Depth], 1_228_800));
    assert_eq!(found_causes(true), (vec![], 1_228_800));
}

/// Without root: the program announces a file of 1 GiB in one call, and reads 300 pages of it at
/// random positions. The kernel has brought in a part of at most a few MiB, and each read waits for
/// its own request.
#[test]
fn announcement_of_a_whole_file_leaves_its_reads_one_at_a_time() {
    let found_causes = |advised_bytes: u64, is_of_mapping: bool| {
        let mut made = Made::by(RecordingMethod::Preload);
        let bytes = Some(1 << 30);
        let file = FileRecord { file: 0, device: 7, bytes, ..FileRecord::default() };
        made.records.push(Record::File(file));
        made.hint(AdviceType::WillNeed, is_of_mapping);
        if let Some(Record::Advice(advice)) = made.records.last_mut() {
            advice.bytes = advised_bytes;
        }
        // A sampled fault has a window of 128 KiB.
        let (method, bytes) = match is_of_mapping {
            true => (ReadMethod::Fault, 128 * KIB),
            false => (ReadMethod::Pread, 4 * KIB),
        };
        (0..300).for_each(|at| made.read(0, method, (far(at), bytes), 0, 1000));
        causes(&made.explained())
    };
    // 0: to the end of the file.
    assert_eq!(found_causes(0, false), [WaitCause::Depth]);
    assert_eq!(found_causes(1 << 30, true), [WaitCause::Depth]);
}

/// Without root: 300 sampled faults at random positions, with a window of 128 KiB each, of which
/// the used page is not known. By hand they fetched 300 times 131,072 bytes.
#[test]
fn sampled_faults_fetch_their_windows() {
    let mut made = Made::by(RecordingMethod::Preload);
    for offset in (0..300).map(far) {
        made.read(0, ReadMethod::Fault, (offset, 128 * KIB), 0, 1000);
    }
    let explanation = made.explained();
    assert_eq!(explanation.shape.fetched_bytes, 39_321_600);
    assert_eq!(causes(&explanation), [WaitCause::Depth]);
}

/// Reads without a wait (`RWF_NOWAIT`) fail for 300 absent pages at random positions, and the page
/// is read with a wait then. As root the failed read has no record, and its page is inserted
/// before the second read. Without root both reads are recorded. Both times 300 pages of 4,096
/// bytes are fetched, one at a time.
#[test]
fn reads_repeated_with_a_wait_are_one_request_at_a_time() {
    for source in [RecordingMethod::Tracepoints, RecordingMethod::Preload] {
        let is_by_root = source == RecordingMethod::Tracepoints;
        let mut made = Made::by(source);
        for offset in (0..300).map(far) {
            let (at_ns, bytes) = (made.now, 4 * KIB);
            made.records.push(match is_by_root {
                true => Record::Insert(PagesInserted { at_ns, thread: 0, file: 0, offset, bytes }),
                false => Record::Read(ReadRecord {
                    begin_ns: at_ns,
                    end_ns: at_ns + 5 * US,
                    way: ReadMethod::Preadv,
                    descriptor: Some(3),
                    offset,
                    asked_bytes: bytes,
                    // EAGAIN.
                    outcome: ReadOutcome::Error(11),
                    ..ReadRecord::default()
                }),
            });
            made.compute(10);
            made.read(0, ReadMethod::Preadv, (offset, bytes), 0, 1000);
        }
        let explanation = made.explained();
        assert_eq!(causes(&explanation), [WaitCause::Depth], "{source:?}");
        assert_eq!(explanation.shape.fetched_bytes, 1_228_800, "{source:?}");
    }
}

/// A read of pages that the thread wrote before waits for the pages after them only.
#[test]
fn written_pages_of_a_read_that_waits_are_not_fetched() {
    let mut made = Made::new();
    for offset in (0..300).map(far) {
        let (at_ns, bytes) = (made.now, 4 * KIB);
        let written = PagesInserted { at_ns, thread: 0, file: 0, offset, bytes };
        made.records.push(Record::Insert(written.clone()));
        made.compute(10);
        let (at_ns, offset) = (made.now, offset + bytes);
        made.records.push(Record::Insert(PagesInserted { at_ns, offset, ..written }));
        made.read(0, ReadMethod::Pread, (offset - bytes, 8 * KIB), 0, 1000);
    }
    assert_eq!(made.explained().shape.fetched_bytes, 1_228_800);
}

/// A file system in user space has no block device. The waits are a stall, as in
/// `few_long_waits_are_a_cause_of_their_own`.
#[test]
fn stalls_of_a_device_without_a_name_are_described() {
    let titles = ["disk", ""].map(|name| {
        let mut made = Made::new();
        made.records.iter_mut().for_each(|record| {
            if let Record::Device(device) = record {
                device.name = name.to_owned();
            }
        });
        for at in 0..200 {
            let us = if at % 20 == 7 { 100_000 } else { 1000 };
            made.read(1, ReadMethod::Pread, (far(at), 4 * KIB), 0, us);
        }
        made.explained().findings[0].title.clone()
    });
    let devices = ["disk", "a device without a name (FUSE, network)"];
    let expected =
        devices.map(|name| format!("few answers of {name} take far longer than the others"));
    assert_eq!(titles, expected);
}

/// A read behind the end of a file of 1 GiB returns no byte. The file is as long as before: a
/// longer one was not found when the gain was to be measured.
#[test]
fn read_past_the_end_of_a_file_does_not_lengthen_it() {
    let mut made = Made::new();
    for record in &mut made.records {
        if let Record::File(file) = record {
            file.bytes = Some(1 << 30);
        }
    }
    (0..300).for_each(|at| made.read(0, ReadMethod::Pread, (far(at), 4 * KIB), 4 * KIB, 100));
    made.read(0, ReadMethod::Pread, (2 << 30, 4 * KIB), 0, 0);
    let Some(Record::Read(read)) = made.records.last_mut() else { unreachable!() };
    read.outcome = ReadOutcome::Bytes(0);
    let explanation = made.explained();
    assert_eq!(explanation.samples[&WaitCause::Depth].files[0].bytes, Some(1 << 30));
}

/// A copy of 256 KiB, and a second one that finds no byte left.
#[test]
fn copy_of_no_bytes_has_no_size() {
    let mut made = Made::new();
    made.read(0, ReadMethod::Copied, (0, 256 * KIB), 256 * KIB, 100);
    made.read(0, ReadMethod::Copied, (256 * KIB, 0), 0, 0);
    let shape = made.explained().shape;
    let sizes: Vec<(u64, u64)> = shape.sizes.iter().map(|size| (size.from, size.count)).collect();
    assert_eq!((sizes, shape.reads), (vec![(256 * KIB, 1)], 2));
}

/// The kernel's readahead is recorded as insertions into the page cache, which only tracepoints
/// report. Direct reads have none: `/file-1` is open for direct reads.
#[test]
fn fetched_bytes_miss_readahead_without_tracepoints() {
    for (source, file, expected) in [
        (RecordingMethod::Tracepoints, 0, false),
        (RecordingMethod::Preload, 0, true),
        (RecordingMethod::Preload, 1, false),
        (RecordingMethod::Strace, 0, true),
        (RecordingMethod::Requests, 0, false),
    ] {
        let mut made = Made::by(source);
        made.read(file, ReadMethod::Pread, (0, 4 * KIB), 0, 100);
        let shape = made.explained().shape;
        assert_eq!(shape.misses_readahead, expected, "{source:?} {file}");
    }
}
