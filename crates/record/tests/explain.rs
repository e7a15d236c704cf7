//! Recordings worked by hand, and the faults in them.

use readpath_record::explain::{Explainer, Explanation, ProgramLimit, WaitCause};
use readpath_trace::recording::{
    Activity, AdviceGiven, AdviceType, DeviceOperation, DeviceRecord, FileRecord, OpenRecord,
    PagesInserted, ReadMethod, ReadOutcome, ReadRecord, Record, RecordingEnd, RecordingMethod,
    RecordingStart, RequestRecord, ThreadName, TimeSpent,
};

pub(crate) const US: u64 = 1000;
pub(crate) const KIB: u64 = 1 << 10;

/// Builder of a recording with one thread.
pub(crate) struct Made {
    pub(crate) records: Vec<Record>,
    pub(crate) now: u64,
}

impl Made {
    pub(crate) fn new() -> Made {
        let device = DeviceRecord { device: 7, name: "disk".to_owned(), ..DeviceRecord::default() };
        let mut records = vec![
            Record::Start(RecordingStart { page_bytes: 4096, ..RecordingStart::default() }),
            Record::Device(device),
        ];
        for file in 0..4 {
            let path = format!("/file-{file}");
            records.push(Record::File(FileRecord {
                file,
                device: 7,
                path,
                ..FileRecord::default()
            }));
            records.push(Record::Open(OpenRecord {
                file,
                descriptor: 3,
                is_direct: file == 1,
                ..OpenRecord::default()
            }));
        }
        records
            .push(Record::Thread(ThreadName { name: "one".to_owned(), ..ThreadName::default() }));
        Made { records, now: 0 }
    }

    pub(crate) fn hint(&mut self, hint: AdviceType, is_of_mapping: bool) {
        let at_ns = self.now;
        self.records.push(Record::Advice(AdviceGiven {
            at_ns,
            hint,
            is_of_mapping,
            ..AdviceGiven::default()
        }));
    }

    pub(crate) fn compute(&mut self, us: u64) {
        self.now += us * US;
    }

    /// Adds a read that waits for the given time, while `fetched` bytes from its offset are added
    /// to the cache.
    pub(crate) fn read(
        &mut self,
        file: u32,
        way: ReadMethod,
        (offset, bytes): (u64, u64),
        fetched: u64,
        waits_us: u64,
    ) {
        let begin_ns = self.now;
        self.now += waits_us * US + US;
        if fetched > 0 {
            let insert = PagesInserted { at_ns: begin_ns, thread: 0, file, offset, bytes: fetched };
            self.records.push(Record::Insert(insert));
        }
        if waits_us > 0 {
            self.records.push(Record::Request(RequestRecord {
                begin_ns: begin_ns + 1,
                end_ns: self.now - 1,
                thread: Some(0),
                device: 7,
                bytes: fetched.max(bytes),
                ..RequestRecord::default()
            }));
        }
        self.records.push(Record::Read(ReadRecord {
            begin_ns,
            end_ns: self.now,
            waited_ns: waits_us * US,
            way,
            descriptor: (way != ReadMethod::Fault).then_some(3),
            file,
            offset,
            asked_bytes: bytes,
            outcome: ReadOutcome::Bytes(bytes),
            ..ReadRecord::default()
        }));
    }

    /// Empty recording by a method.
    pub(crate) fn by(source: RecordingMethod) -> Made {
        let mut made = Made::new();
        let start = RecordingStart { page_bytes: 4096, source, ..RecordingStart::default() };
        made.records[0] = Record::Start(start);
        made
    }

    pub(crate) fn explained(self) -> Explanation {
        self.explained_with(None)
    }

    /// Explains the records of a program with this processor time.
    pub(crate) fn explained_with(mut self, processor_ns: Option<u64>) -> Explanation {
        let end = RecordingEnd { at_ns: self.now, processor_ns, has_exited: true };
        self.records.push(Record::End(end));
        let mut explainer = Explainer::default();
        self.records.iter().for_each(|record| explainer.take(record));
        explainer.finish()
    }
}

/// Causes with their times in milliseconds.
pub(crate) fn found(explanation: &Explanation) -> Vec<(WaitCause, u64)> {
    let ms = |seconds: f64| (seconds * 1e3).round() as u64;
    explanation.findings.iter().map(|finding| (finding.cause, ms(finding.seconds))).collect()
}

/// Offsets without a pattern: 1 MiB apart, backward.
pub(crate) fn far(at: u64) -> u64 {
    (1000 - at) << 20
}

/// 100 ms in all. 20 ms of metadata and 60 ms of writes are reported, 4 ms of metadata are not.
#[test]
fn times_of_metadata_and_writes_are_findings() {
    for (metadata_ms, expected) in [
        (20, &[(WaitCause::Sync, 60), (WaitCause::Metadata, 20)][..]),
        (4, &[(WaitCause::Sync, 60)]),
    ] {
        let mut made = Made::new();
        made.now = 100_000 * US;
        for (activity, ms) in [
            (Activity::Processor, 40 - metadata_ms),
            (Activity::Metadata, metadata_ms),
            (Activity::Write, 60),
        ] {
            let wall_ns = ms * 1000 * US;
            made.records.push(Record::TimeSpent(TimeSpent { at_ns: made.now, activity, wall_ns }));
        }
        let explanation = made.explained();
        assert_eq!(found(&explanation), expected);
        let sum: f64 = explanation.time.iter().map(|time| time.seconds).sum();
        assert!((sum - explanation.seconds).abs() < 1e-9, "{sum}");
        assert_eq!(explanation.time[0].activity, Activity::Write);
    }
}

#[test]
fn reads_one_at_a_time_are_a_depth_finding() {
    let mut made = Made::new();
    made.hint(AdviceType::Random, false);
    (0..200).for_each(|at| made.read(0, ReadMethod::Pread, (far(at), 4 * KIB), 4 * KIB, 100));
    let explanation = made.explained();
    assert_eq!(found(&explanation), [(WaitCause::Depth, 20)]);
    assert!((explanation.shape.depth - 1.0).abs() < 0.01, "{}", explanation.shape.depth);
    assert!(explanation.findings[0].evidence.contains("200 reads of 4 KiB"), "{explanation:?}");
}

/// 120 ms, of which 20 ms are waits and 30 ms processor time: 70 ms went to neither. Without the
/// processor time nothing is known of it, and processor time of several threads hides it.
#[test]
fn time_without_reads_and_processor_is_reported() {
    let other_ms = |processor_ms: Option<u64>| {
        let mut made = Made::new();
        (0..200).for_each(|at| made.read(0, ReadMethod::Pread, (far(at), 4 * KIB), 4 * KIB, 100));
        made.compute(100_000);
        let explanation = made.explained_with(processor_ms.map(|ms| ms * 1000 * US));
        explanation.other_seconds.map(|seconds| (seconds * 1e3).round() as u64)
    };
    assert_eq!(other_ms(Some(30)), Some(70));
    assert_eq!(other_ms(Some(500)), Some(0));
    assert_eq!(other_ms(None), None);
}

/// Eight threads that wait at the same time are no fault, because the device has work.
#[test]
fn concurrent_reads_are_no_depth_finding() {
    let mut made = Made::new();
    for round in 0..50 {
        let begin = made.now;
        for thread in 0..8 {
            made.now = begin;
            made.read(0, ReadMethod::Pread, (far(round * 8 + thread), 4 * KIB), 4 * KIB, 100);
        }
    }
    let explanation = made.explained();
    assert_eq!((found(&explanation), explanation.limit), (vec![], ProgramLimit::Device));
}

/// Random touches of a mapping. For each the kernel fetches 4 MiB that are then used. The bytes
/// take the time, so one request at a time is no fault.
#[test]
fn reads_limited_by_bandwidth_are_no_depth_finding() {
    let mut made = Made::new();
    for at in 0..50 {
        let place = far(at * 8);
        made.read(0, ReadMethod::Fault, (place, 4 * KIB), 4 << 20, 10_000);
        for part in 1..64 {
            made.read(0, ReadMethod::Fault, (place + part * 64 * KIB, 64 * KIB), 0, 0);
        }
    }
    let explanation = made.explained();
    assert_eq!((found(&explanation), explanation.limit), (vec![], ProgramLimit::Device));
}

#[test]
fn sequential_small_requests_are_a_finding() {
    let mut made = Made::new();
    // A file read with `O_DIRECT`: no page enters the cache.
    (0..500).for_each(|at| made.read(1, ReadMethod::Pread, (at * 4 * KIB, 4 * KIB), 0, 60));
    // The first read continues none.
    assert_eq!(found(&made.explained()), [(WaitCause::Small, 30)]);
}

/// 256 KiB are fetched for 4 KiB used. A request is assumed to cost as much as 64 KiB: of 640 µs
/// the 4 KiB alone would take 640 × (64 + 4) / (64 + 256) = 136 µs, so 504 µs are lost a hundred
/// times. The rest is one request at a time.
#[test]
fn unused_read_bytes_are_an_over_read_finding() {
    let mut made = Made::new();
    (0..100).for_each(|at| made.read(0, ReadMethod::Fault, (far(at), 4 * KIB), 256 * KIB, 640));
    let explanation = made.explained();
    assert_eq!(found(&explanation), [(WaitCause::OverRead, 50), (WaitCause::Depth, 14)]);
    assert!(explanation.findings[0].evidence.contains("64 times as much"), "{explanation:?}");
    assert_eq!(explanation.shape.unused_bytes, 100 * 252 * KIB);
}

/// Random records of 64 KiB, touched page by page, are no stream.
#[test]
fn page_by_page_faults_of_a_mapping_are_a_finding() {
    let mut made = Made::new();
    made.hint(AdviceType::Random, true);
    for at in 0..25 {
        for page in 0..16 {
            let place = (far(at) + page * 4 * KIB, 4 * KIB);
            made.read(0, ReadMethod::Fault, place, 4 * KIB, 50);
        }
    }
    let explanation = made.explained();
    assert_eq!(found(&explanation), [(WaitCause::PageFaults, 20)]);
    assert!(explanation.findings[0].evidence.contains("MADV_RANDOM"), "{explanation:?}");
}

#[test]
fn advice_opposite_to_the_access_pattern_is_a_finding() {
    let mut made = Made::new();
    made.hint(AdviceType::Random, false);
    (0..101)
        .for_each(|at| made.read(0, ReadMethod::Read, (at * 16 * KIB, 16 * KIB), 16 * KIB, 100));
    // The first continues none. It is one request at a time, and too short to be reported.
    assert_eq!(found(&made.explained()), [(WaitCause::Advice, 10)]);
}

/// A hundred touches of a mapping under MADV_SEQUENTIAL fetch 128 KiB each, and twenty reads of
/// another file 4 KiB. Reads of 60 µs next to touches of 560 µs show that the bytes ahead cost
/// 100 × 500 µs. Both at 560 µs show that they cost nothing, and one request at a time is the
/// cause. With one size alone the cost of the bytes is unknown.
#[test]
fn sequential_advice_costs_only_the_time_of_unused_bytes() {
    let explanation = |small_count: u64, small_us, large_us| {
        let mut made = Made::new();
        for at in 0..small_count {
            made.read(2, ReadMethod::Pread, (far(at), 4 * KIB), 4 * KIB, small_us);
        }
        made.hint(AdviceType::Sequential, true);
        for at in 0..100 {
            made.read(0, ReadMethod::Fault, (far(at), 4 * KIB), 128 * KIB, large_us);
        }
        made.explained()
    };
    let costly = explanation(20, 60, 560);
    assert_eq!(found(&costly), [(WaitCause::Advice, 50), (WaitCause::Depth, 7)]);
    assert!(costly.findings[0].title.contains("advised SEQUENTIAL"), "{costly:?}");
    assert!(!costly.findings[0].remedy.contains("remove the advice"), "{costly:?}");
    assert_eq!(found(&explanation(20, 560, 560)), [(WaitCause::Depth, 67)]);
    assert_eq!(found(&explanation(0, 560, 560)), [(WaitCause::Depth, 56)]);
}

/// Four rounds: the first fetches the file, the others fetch it again.
#[test]
fn repeated_fetches_of_the_same_bytes_are_a_finding() {
    let mut made = Made::new();
    for _ in 0..4 {
        (0..10).for_each(|at| made.read(0, ReadMethod::Read, (at << 20, 1 << 20), 1 << 20, 1000));
    }
    let explanation = made.explained();
    assert_eq!(found(&explanation), [(WaitCause::Again, 30)]);
    assert_eq!(explanation.shape.again_bytes, 30 << 20);
    let last = explanation.shape.reuse.last().unwrap();
    assert_eq!((last.bytes, last.miss_ratio), (10 << 20, 0.25));
}

/// A page is added for the second time without a wait. Later waits are for pages that are added for
/// the first time, so they are not lost to repeated fetches.
#[test]
fn wait_is_attributed_to_its_own_pages() {
    let mut made = Made::new();
    made.read(0, ReadMethod::Pread, (0, 4 * KIB), 4 * KIB, 100);
    for at in 0..100 {
        made.read(0, ReadMethod::Pread, (0, 4 * KIB), 4 * KIB, 0);
        made.read(0, ReadMethod::Pread, (far(at), 4 * KIB), 0, 100);
    }
    let explanation = made.explained();
    assert!(
        found(&explanation).iter().all(|(cause, _)| *cause != WaitCause::Again),
        "{explanation:?}"
    );
}

/// By hand, 19 of 20 reads of each file continue the one before, and wait 9 ms longer than the
/// reads of the other files.
#[test]
fn single_slow_file_is_a_finding() {
    let mut made = Made::new();
    for file in [0, 1, 2, 3] {
        let waits = if file == 2 { 10_000 } else { 1000 };
        (0..20)
            .for_each(|at| made.read(file, ReadMethod::Pread, (at << 20, 1 << 20), 1 << 20, waits));
    }
    let explanation = made.explained();
    assert_eq!(found(&explanation), [(WaitCause::SlowFile, 171)]);
    assert!(explanation.findings[0].title.contains("10 times"), "{explanation:?}");
    assert!(explanation.findings[0].title.contains("/file-2"), "{explanation:?}");
}

/// Large reads of 1 ms, and an equal number of 4 ms during writes: 3 of 4 ms are lost.
#[test]
fn writes_that_delay_reads_are_a_finding() {
    let mut made = Made::new();
    (0..40).for_each(|at| made.read(0, ReadMethod::Pread, (at << 20, 1 << 20), 1 << 20, 1000));
    for at in 40..80 {
        let begin_ns = made.now;
        made.read(0, ReadMethod::Pread, (at << 20, 1 << 20), 1 << 20, 4000);
        let (end_ns, work, bytes) = (made.now, DeviceOperation::Write, 1 << 20);
        let write =
            RequestRecord { begin_ns, end_ns, device: 7, work, bytes, ..RequestRecord::default() };
        made.records.push(Record::Request(write));
    }
    let explanation = made.explained();
    assert_eq!(found(&explanation), [(WaitCause::Writers, 120)]);
    assert!(explanation.findings[0].evidence.contains("40 MiB in all"), "{explanation:?}");
}

#[test]
fn streams_and_cached_reads_are_no_finding() {
    let mut made = Made::new();
    (0..100).for_each(|at| made.read(0, ReadMethod::Read, (at << 20, 1 << 20), 1 << 20, 1000));
    let explanation = made.explained();
    assert_eq!((found(&explanation), explanation.limit), (vec![], ProgramLimit::Device));

    let mut made = Made::new();
    for at in 0..100 {
        made.read(0, ReadMethod::Pread, (far(at), 4 * KIB), 0, 0);
        made.compute(10);
    }
    let explanation = made.explained();
    assert_eq!((found(&explanation), explanation.limit), (vec![], ProgramLimit::Program));
    assert_eq!(Made::new().explained().limit, ProgramLimit::Nothing);
}

/// Short waits are not reported, and the highest cost comes first.
#[test]
fn findings_are_sorted_by_cost_and_small_costs_omitted() {
    let mut made = Made::new();
    made.compute(20_000);
    (0..20).for_each(|at| made.read(0, ReadMethod::Pread, (far(at), 4 * KIB), 4 * KIB, 100));
    (0..300).for_each(|at| made.read(1, ReadMethod::Pread, (at * 4 * KIB, 4 * KIB), 0, 50));
    (0..11).for_each(|at| made.read(3, ReadMethod::Fault, (at * 4 * KIB, 4 * KIB), 4 * KIB, 50));
    let explanation = made.explained();
    // 2 ms of 39.2 are 5 %. Half a millisecond of faults is not reported.
    assert_eq!(found(&explanation), [(WaitCause::Small, 15), (WaitCause::Depth, 2)]);
}

/// Without wait events, the time of a read beyond a call and a copy counts as a wait.
#[test]
fn recording_of_system_calls_alone_is_explained() {
    let mut made = Made::by(RecordingMethod::Strace);
    for at in 0..100 {
        made.read(0, ReadMethod::Pread, (far(at), 4 * KIB), 0, 0);
        made.now += 100 * US;
        let Some(Record::Read(read)) = made.records.last_mut() else { unreachable!() };
        read.end_ns = made.now;
    }
    // 101 µs, less 20 for the call and 4.096 for the copy: 76.904 of each.
    assert_eq!(found(&made.explained()), [(WaitCause::Depth, 8)]);
}
