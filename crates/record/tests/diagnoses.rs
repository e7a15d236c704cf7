//! Diagnoses that were wrong for real programs, as recordings worked by hand.

use readpath_record::explain::{Explanation, ProgramLimit, WaitCause};
use readpath_trace::recording::{
    Activity, AdviceGiven, AdviceType, DeviceOperation, FileRecord, OthersRequests, OthersSampled,
    PagesInserted, ReadMethod, ReadOutcome, ReadRecord, Record, RecordingMethod, RequestRecord,
    ThreadName, TimeSpent,
};

use super::explain::{KIB, Made, US, far, found};

pub(crate) fn causes(explanation: &Explanation) -> Vec<WaitCause> {
    explanation.findings.iter().map(|finding| finding.cause).collect()
}

pub(crate) fn says(explanation: &Explanation, words: &[&str]) {
    let first = explanation.findings.first().expect("something is found");
    let text = format!("{}; {}; {}", first.title, first.evidence, first.remedy);
    for word in words {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
}

/// 2,048 touches in order under MADV_RANDOM, each a request of 50 µs.
#[test]
fn random_advice_on_ordered_mapping_access_is_a_finding() {
    let mut made = Made::new();
    made.hint(AdviceType::Random, true);
    (0..2048).for_each(|at| made.read(0, ReadMethod::Fault, (at * 4 * KIB, 4 * KIB), 4 * KIB, 50));
    let explanation = made.explained();
    assert_eq!(found(&explanation), [(WaitCause::Advice, 102)]);
    says(&explanation, &["random advice on ordered access", "remove the advice", "MADV_RANDOM"]);
    assert!(!explanation.findings[0].remedy.contains("WILLNEED"), "{explanation:?}");
}

/// The kernel repeats a fault once its page is resident. Both records are one touch.
#[test]
fn repeated_fault_record_counts_as_one_touch() {
    let mut made = Made::new();
    made.hint(AdviceType::Random, true);
    for at in 0..400 {
        made.read(0, ReadMethod::Fault, (at * 4 * KIB, 4 * KIB), 4 * KIB, 50);
        made.read(0, ReadMethod::Fault, (at * 4 * KIB, 4 * KIB), 0, 0);
    }
    let explanation = made.explained();
    assert_eq!(causes(&explanation), [WaitCause::Advice]);
    assert_eq!((explanation.shape.reads, explanation.shape.got_bytes), (400, 400 * 4 * KIB));
    says(&explanation, &["399 touches that waited 50 µs each"]);
}

/// Random records of 48 KiB under POSIX_FADV_RANDOM are no stream.
#[test]
fn random_advice_on_random_records_is_no_finding() {
    let mut made = Made::new();
    made.hint(AdviceType::Random, false);
    for at in 0..100 {
        for part in 0..3 {
            let place = (far(at) + part * 16 * KIB, 16 * KIB);
            made.read(0, ReadMethod::Pread, place, 16 * KIB, 100);
        }
    }
    assert!(!causes(&made.explained()).contains(&WaitCause::Advice));
}

/// Recording of 100 ms without root, with 40 ms of page faults and 50 ms of io_uring by activity.
/// Calls by `pread` wait `read_ms` of it.
fn with_hidden_waits(read_ms: u64) -> Explanation {
    let mut made = Made::by(RecordingMethod::Preload);
    (0..read_ms).for_each(|at| made.read(0, ReadMethod::Pread, (far(at), 4 * KIB), 0, 1000));
    made.compute(100_000 - made.now / US);
    for (activity, ms) in [(Activity::Fault, 40), (Activity::AsyncIo, 50), (Activity::Sleep, 10)] {
        let (at_ns, wall_ns) = (made.now, ms * 1000 * US);
        made.records.push(Record::TimeSpent(TimeSpent { at_ns, activity, wall_ns }));
    }
    made.explained()
}

/// None of the 90 ms are recorded reads. The program was said to find its data in memory.
#[test]
fn waits_without_recorded_reads_are_no_verdict() {
    let explanation = with_hidden_waits(0);
    assert_eq!(explanation.limit, ProgramLimit::Unseen);
    let text = explanation.limit_text;
    assert!(text.contains("waited 90.0 ms for files and swap, 50.0 ms of it for AIO"), "{text}");
}

/// Calls of 82 ms leave less than a tenth of 100 ms. Calls of 40 ms leave half. Each call slept
/// 1 ms.
#[test]
fn waits_without_recorded_reads_are_named_next_to_findings() {
    let hidden = |read_ms| with_hidden_waits(read_ms).hidden_waits;
    assert_eq!(hidden(82), None);
    assert!(hidden(40).is_some_and(|text| text.contains("the recorded reads are 40.0 ms")));
}

/// Calls of 12 ms are a cause of their own. Next to 78 ms of waits without reads, their cost is not
/// reported: the greatest cost is not known.
#[test]
fn small_causes_next_to_long_hidden_waits_are_no_findings() {
    let explanation = with_hidden_waits(12);
    assert_eq!(causes(&explanation), []);
    assert_eq!(explanation.limit, ProgramLimit::Unseen);
}

/// 16 reads of AIO at a time, each of 16 ms, recorded without root. A submission without `O_DIRECT`
/// waits for its reads, whatever their number in flight. File 1 is opened with `O_DIRECT`.
#[test]
fn buffered_aio_is_named_without_root() {
    let explained = |file: u32| {
        let mut made = Made::by(RecordingMethod::Preload);
        for round in 0..20 {
            let begin_ns = made.now;
            made.now += 16_000 * US;
            for nth in 0..16 {
                made.records.push(Record::Read(ReadRecord {
                    begin_ns,
                    end_ns: made.now,
                    way: ReadMethod::Aio,
                    descriptor: Some(3),
                    file,
                    offset: far(round * 16 + nth),
                    asked_bytes: 4 * KIB,
                    outcome: ReadOutcome::Bytes(4 * KIB),
                    ..ReadRecord::default()
                }));
            }
        }
        made.explained()
    };
    let buffered = explained(0);
    assert_eq!(causes(&buffered), [WaitCause::Direct]);
    says(&buffered, &["AIO without O_DIRECT", "320 reads of AIO"]);
    assert_eq!(causes(&explained(1)), []);
}

/// 100 calls of 64 KiB in order wait 1 ms each, recorded without root. If each was announced
/// the kernel's readahead window is not what they wait for.
#[test]
fn waits_for_announced_reads_are_not_waits_for_readahead() {
    let is_readahead = |is_announced: bool| {
        let mut made = Made::by(RecordingMethod::Preload);
        let bytes = Some(100 * 64 * KIB);
        let file = FileRecord { file: 0, device: 7, bytes, ..FileRecord::default() };
        made.records.push(Record::File(file));
        for offset in (0..100).map(|nth| nth * 64 * KIB) {
            if is_announced {
                let (hint, bytes) = (AdviceType::WillNeed, 64 * KIB);
                let advice = AdviceGiven { offset, bytes, hint, ..AdviceGiven::default() };
                made.records.push(Record::Advice(advice));
            }
            made.read(0, ReadMethod::Pread, (offset, 64 * KIB), 0, 1000);
        }
        made.explained().readahead.is_some()
    };
    assert_eq!([false, true].map(is_readahead), [true, false]);
}

/// A hint for the first MiB does not apply to reads after it.
#[test]
fn hint_applies_only_to_its_range() {
    let mut made = Made::new();
    let advice = AdviceGiven { bytes: 1 << 20, hint: AdviceType::Random, ..AdviceGiven::default() };
    made.records.push(Record::Advice(advice));
    for at in 0..400 {
        made.read(0, ReadMethod::Pread, ((2 << 20) + at * 4 * KIB, 4 * KIB), 4 * KIB, 50);
    }
    assert_eq!(causes(&made.explained()), [WaitCause::Small]);
}

/// A device of 100 µs per request and 1 µs per KiB, known from 20 reads of 8 KiB in another file.
/// Windows of 128 KiB take 228 µs. `used` parts of 8 KiB in each of them would take 108 µs each.
fn windows(used: u64) -> Explanation {
    let mut made = Made::new();
    (0..20).for_each(|at| made.read(2, ReadMethod::Pread, (far(at), 8 * KIB), 8 * KIB, 108));
    for window in 0..200 {
        let place = window * 128 * KIB;
        made.read(0, ReadMethod::Pread, (place, 8 * KIB), 128 * KIB, 228);
        (1..used).for_each(|part| {
            made.read(0, ReadMethod::Pread, (place + part * 40 * KIB, 8 * KIB), 0, 0);
        });
    }
    made.explained()
}

/// Three parts take 324 µs instead of 228. Only 24 of 128 KiB are used, and it still pays.
#[test]
fn over_read_is_net_of_the_requests_that_it_saves() {
    let explanation = windows(3);
    assert!(!causes(&explanation).contains(&WaitCause::OverRead), "{explanation:?}");
    // One part saves 120 µs of each of 200 windows: 24 ms.
    let explanation = windows(1);
    assert_eq!(found(&explanation)[0], (WaitCause::OverRead, 24));
    says(&explanation, &["200 used parts", "21.6 ms instead of 45.6 ms"]);
}

/// 100,000 reads of one byte, 1 µs each.
#[test]
fn small_reads_by_calls_cost_processor_time() {
    let mut made = Made::new();
    for at in 0..100_000 {
        made.read(0, ReadMethod::Read, (at, 1), 0, 0);
        made.now += 500;
    }
    let explanation = made.explained();
    assert_eq!(found(&explanation), [(WaitCause::Calls, 100)]);
    let gain = "2 calls remain; up to 100.0 ms are saved";
    says(&explanation, &["100000 reads of 1 bytes", "1 µs each", "through a buffer", gain]);

    // For random offsets a buffer does not help.
    let mut made = Made::new();
    (0..100_000).for_each(|at| made.read(0, ReadMethod::Pread, (at * 7919 % (1 << 30), 16), 0, 0));
    says(&made.explained(), &["map the file"]);

    // A few calls, and calls of whole blocks, are no finding.
    let mut made = Made::new();
    (0..900).for_each(|at| made.read(0, ReadMethod::Read, (at, 1), 0, 0));
    assert_eq!(causes(&made.explained()), []);
    let mut made = Made::new();
    (0..2000).for_each(|at| made.read(0, ReadMethod::Read, (at * 16 * KIB, 16 * KIB), 0, 0));
    assert_eq!(causes(&made.explained()), []);
}

/// A program of 10 ms that waits 5 ms for its locale file, and once for a library.
#[test]
fn a_single_read_is_no_finding() {
    let mut made = Made::new();
    made.read(0, ReadMethod::Read, (0, 300 * KIB), 300 * KIB, 5000);
    made.read(3, ReadMethod::Fault, (8 << 20, 4 * KIB), 4 * KIB, 1000);
    made.compute(4000);
    let explanation = made.explained();
    assert_eq!((causes(&explanation), explanation.limit), (vec![], ProgramLimit::Device));
    // Fifteen waits are too few, sixteen are enough.
    for (waits, is_told) in [(15, false), (16, true)] {
        let mut made = Made::new();
        (0..waits).for_each(|at| made.read(0, ReadMethod::Pread, (far(at), 4 * KIB), 4 * KIB, 100));
        assert_eq!(causes(&made.explained()) == [WaitCause::Depth], is_told, "{waits} waits");
    }
}

/// Files of one page, each touched or read once.
#[test]
fn many_small_files_are_reported_as_one_finding() {
    for way in [ReadMethod::Fault, ReadMethod::Read] {
        let mut made = Made::new();
        for file in 10..1810 {
            let folder = if file % 10 == 0 { "/elsewhere" } else { "/data/set/part" };
            let path = format!("{folder}/{}/{file}", file % 4);
            let bytes = Some(3 * KIB);
            made.records.push(Record::File(FileRecord {
                file,
                device: 7,
                path,
                bytes,
                ..FileRecord::default()
            }));
            made.read(file, way, (0, 4 * KIB), 4 * KIB, 60);
        }
        let explanation = made.explained();
        assert_eq!(found(&explanation), [(WaitCause::ManyFiles, 108)], "{way:?}");
        let size = "files of 3 KiB on average";
        says(&explanation, &["1800 small files", "1620 of them below /data/set/part", size]);
    }
}

/// The program writes 64 MiB of new pages and reads 1 MiB of others.
#[test]
fn written_pages_do_not_count_as_fetched() {
    let mut made = Made::new();
    for at in 0..64 {
        let at_ns = made.now;
        let insert = PagesInserted { at_ns, thread: 0, file: 0, offset: at << 20, bytes: 1 << 20 };
        made.records.push(Record::Insert(insert));
        made.compute(1000);
    }
    (0..16).for_each(|at| made.read(0, ReadMethod::Pread, (far(at), 64 * KIB), 64 * KIB, 1000));
    let explanation = made.explained();
    assert_eq!((explanation.shape.fetched_bytes, explanation.shape.unused_bytes), (1 << 20, 0));
    assert!(!causes(&explanation).contains(&WaitCause::OverRead), "{explanation:?}");
}

/// Pages added by `POSIX_FADV_WILLNEED` are fetched, before and after its record.
#[test]
fn advised_pages_count_as_fetched() {
    let mut made = Made::new();
    let insert =
        |offset| PagesInserted { at_ns: 10, offset, bytes: 1 << 20, ..PagesInserted::default() };
    made.records.push(Record::Insert(insert(0)));
    let (bytes, hint) = (3 << 20, AdviceType::WillNeed);
    made.records.push(Record::Advice(AdviceGiven {
        at_ns: 50,
        bytes,
        hint,
        ..AdviceGiven::default()
    }));
    made.records.push(Record::Insert(insert(1 << 20)));
    made.records.push(Record::Insert(insert(8 << 20)));
    made.now = 100;
    made.read(0, ReadMethod::Read, (0, 4 * KIB), 0, 0);
    let shape = made.explained().shape;
    assert_eq!((shape.fetched_bytes, shape.unused_bytes), (2 << 20, (2 << 20) - 4 * KIB));
}

/// Reads of 1 ms, and an equal number of 4 ms next to writes of 1 MiB.
fn among_writes(thread: Option<u64>, has_written: bool) -> Explanation {
    let mut made = Made::new();
    let (task, name) = (4711, "loader".to_owned());
    made.records.push(Record::Thread(ThreadName {
        thread: 5,
        task,
        name,
        ..ThreadName::default()
    }));
    if has_written {
        let insert = PagesInserted { file: 3, bytes: 40 << 20, ..PagesInserted::default() };
        made.records.push(Record::Insert(insert));
        made.compute(1);
    }
    (0..40).for_each(|at| made.read(0, ReadMethod::Pread, (at << 20, 1 << 20), 1 << 20, 1000));
    for at in 40..80 {
        let begin_ns = made.now;
        made.read(0, ReadMethod::Pread, (at << 20, 1 << 20), 1 << 20, 4000);
        let (end_ns, work, bytes) = (made.now, DeviceOperation::Write, 1 << 20);
        let write = RequestRecord {
            begin_ns,
            end_ns,
            thread,
            device: 7,
            work,
            bytes,
            ..RequestRecord::default()
        };
        made.records.push(Record::Request(write));
    }
    let explanation = made.explained();
    assert_eq!(found(&explanation), [(WaitCause::Writers, 120)]);
    explanation
}

#[test]
fn writers_are_named_or_said_to_be_unknown() {
    let own = "40 MiB of them were written by the program itself, most by its thread loader (4711)";
    says(&among_writes(Some(5), false), &[own]);
    let cached = "the program itself has written 40 MiB into the page cache";
    says(&among_writes(None, true), &[cached]);
    says(&among_writes(None, false), &["the writer of 40 MiB of them is not known"]);
}

/// A program of 100 ms without waits in its read calls. As root, faults are seen, so its reads have
/// no fault. Without root it may wait for touches of mappings: by hand, 100 ms less the processor
/// time of 20 ms are unknown, and 100 ms less 95 ms are few.
#[test]
fn program_with_much_unknown_time_has_no_verdict() {
    for (made, processor_ms, limit) in [
        (Made::new(), 20, ProgramLimit::Program),
        (Made::by(RecordingMethod::Preload), 20, ProgramLimit::Unknown),
        (Made::by(RecordingMethod::Preload), 95, ProgramLimit::Program),
    ] {
        let mut made = made;
        made.read(0, ReadMethod::Pread, (0, 4 * KIB), 0, 0);
        made.now = 100_000 * US;
        let explanation = made.explained_with(Some(processor_ms * 1_000_000));
        assert_eq!((causes(&explanation), explanation.limit), (vec![], limit));
    }
}

/// Without root, 10 ms of 100 ms went to reads, and 80 ms are unknown: the device is not named as
/// the limit.
#[test]
fn waits_for_some_reads_next_to_much_unknown_time_are_no_verdict() {
    let mut made = Made::by(RecordingMethod::Preload);
    for at in 0..10 {
        made.read(0, ReadMethod::Pread, (at * 256 * KIB, 256 * KIB), 0, 1000);
    }
    made.now = 100_000 * US;
    let explanation = made.explained_with(Some(10_000_000));
    assert_eq!((causes(&explanation), explanation.limit), (vec![], ProgramLimit::Unknown));
    assert!(explanation.limit_text.contains("; it waited 10.0 ms for reads"), "{explanation:?}");
}

/// Members of an archive, read without root: 8 KiB at a header, then 8 KiB at its data, 64 bytes
/// later. The second read waits for its last page. Its first two are in the page cache.
#[test]
fn overlapping_reads_recorded_without_root_are_not_fetched_again() {
    for rounds in [1, 2] {
        let mut made = Made::by(RecordingMethod::Preload);
        for at in (0..100).cycle().take(rounds * 100) {
            made.read(0, ReadMethod::Read, (far(at), 8 * KIB), 0, 1000);
            made.read(0, ReadMethod::Read, (far(at) + 64, 8 * KIB), 0, 1000);
        }
        // Read again as a whole, with waits as long, the pages had left memory.
        let causes = causes(&made.explained());
        assert_eq!(causes.contains(&WaitCause::Again), rounds == 2, "{causes:?}");
        assert!(causes.contains(&WaitCause::Depth), "{causes:?}");
    }
}

/// Without root: sequential reads of 16 KiB, one in eight with 1 ms.
#[test]
fn buffered_scan_recorded_without_root_is_no_small_request_finding() {
    for (file, expected) in [(0, vec![]), (1, vec![WaitCause::Small])] {
        let mut made = Made::by(RecordingMethod::Preload);
        for at in 0..800 {
            made.read(file, ReadMethod::Read, (at * 16 * KIB, 16 * KIB), 0, 0);
            if at % 8 == 0 {
                made.now += 1000 * US;
            }
            let Some(Record::Read(ReadRecord { end_ns, .. })) = made.records.last_mut() else {
                unreachable!()
            };
            *end_ns = made.now;
        }
        // File 1 is read with `O_DIRECT`, so each read is a request.
        assert_eq!(causes(&made.explained()), expected, "file {file}");
    }
}

/// A program of 80 reads, half of them next to 50 requests of another program.
fn next_to_readers(with_alone: bool) -> Explanation {
    let mut made = Made::new();
    let others = OthersRequests {
        device: 7,
        work: DeviceOperation::Read,
        task: 12,
        name: "grep".to_owned(),
        bytes: 1 << 20,
        ..OthersRequests::default()
    };
    made.records.push(Record::OthersRequests(others));
    let read = |made: &mut Made, at, us| {
        made.read(1, ReadMethod::Pread, (far(at), 4 * KIB), 0, us);
    };
    let mut other = Vec::new();
    for at in 0..80 {
        if with_alone && at < 40 {
            read(&mut made, at, 1000);
            continue;
        }
        let begin_ns = made.now;
        read(&mut made, at, 4000);
        let request = RequestRecord {
            begin_ns,
            end_ns: made.now,
            device: 7,
            bytes: 64 * KIB,
            ..RequestRecord::default()
        };
        other.extend(std::iter::repeat_n(Record::Request(request), 50));
        made.records.append(&mut other);
    }
    made.explained()
}

/// A recording without root: 80 reads of a thread, half of them next to sampled reads of others,
/// 1 MiB in each sample of 8 ms.
fn next_to_sampled_readers(with_alone: bool) -> Explanation {
    let mut made = Made::by(RecordingMethod::Preload);
    let mut begin_ns = 0;
    for at in 0..80 {
        let is_alone = with_alone && at < 40;
        made.read(1, ReadMethod::Pread, (far(at), 4 * KIB), 0, if is_alone { 1000 } else { 4000 });
        if at % 2 == 1 {
            let (end_ns, device, work) = (made.now, 7, DeviceOperation::Read);
            let others = OthersSampled { end_ns, begin_ns, device, work, bytes: 1 << 20 };
            made.records.extend((!is_alone).then_some(Record::OthersSampled(others)));
            begin_ns = end_ns;
        }
    }
    made.explained()
}

/// As [`reads_of_another_program_are_a_cause`], without the name of the program.
#[test]
fn sampled_reads_of_other_programs_are_a_cause() {
    let explanation = next_to_sampled_readers(true);
    assert_eq!(found(&explanation)[0].0, WaitCause::Readers);
    says(&explanation, &["while they read (20 MiB in all) a read waits 4.0 ms, otherwise 1.0 ms"]);
    assert!(!format!("{explanation:?}").contains("read by"), "{explanation:?}");
    assert_eq!(explanation.other_reads, []);
}

/// Pages that are announced enter the page cache, which direct reads pass. File 1 is opened with
/// `O_DIRECT`.
#[test]
fn remedy_of_direct_reads_announces_no_ranges() {
    for (file, is_announced) in [(0, true), (1, false)] {
        let mut made = Made::by(RecordingMethod::Preload);
        (0..40).for_each(|at| made.read(file, ReadMethod::Pread, (far(at), 4 * KIB), 0, 1000));
        let explanation = made.explained();
        assert_eq!(causes(&explanation), [WaitCause::Depth]);
        says(&explanation, &["keep 16 to 32 reads in flight"]);
        let remedy = &explanation.findings[0].remedy;
        assert_eq!(remedy.contains("WILLNEED"), is_announced, "{remedy}");
    }
}

/// Without root, reads of 1 ms, and as many of 4 ms next to sampled writes: nothing is known about
/// the writer, which may be the program itself.
#[test]
fn writer_is_not_named_from_samples() {
    let mut made = Made::by(RecordingMethod::Preload);
    for at in 0..80 {
        let (begin_ns, is_alone) = (made.now, at < 40);
        made.read(1, ReadMethod::Pread, (far(at), 4 * KIB), 0, if is_alone { 1000 } else { 4000 });
        let (end_ns, device, work) = (made.now, 7, DeviceOperation::Write);
        let others = OthersSampled { end_ns, begin_ns, device, work, bytes: 1 << 20 };
        made.records.extend((!is_alone).then_some(Record::OthersSampled(others)));
    }
    let explanation = made.explained();
    assert_eq!(found(&explanation)[0].0, WaitCause::Writers);
    says(&explanation, &["the writers are not known", "the program itself are among them"]);
}

/// 1 MiB in 8 ms are 131,072,000 bytes a second.
#[test]
fn sampled_reads_of_other_programs_all_the_time_are_only_counted() {
    let explanation = next_to_sampled_readers(false);
    assert_eq!(causes(&explanation), [WaitCause::Depth]);
    let [others] = &explanation.other_reads[..] else { panic!("{explanation:?}") };
    assert_eq!((others.in_flight, others.most.clone()), (None, None));
    assert!((others.bytes_per_second.unwrap() / 131_072_000.0 - 1.0).abs() < 0.02, "{others:?}");
}

/// Reads of 1 ms, and as many of 4 ms next to another program's: 40 times 3 ms are lost.
#[test]
fn reads_of_another_program_are_a_cause() {
    let explanation = next_to_readers(true);
    assert_eq!(found(&explanation)[0], (WaitCause::Readers, 120));
    says(&explanation, &["other programs read from disk", "a read waits 4.0 ms, otherwise 1.0 ms"]);
    says(&explanation, &["1 MiB of them were read by grep (task 12)"]);
    assert_eq!(explanation.other_reads, []);
}

/// Next to 50 requests of another program all the time, the wait without them is not known.
#[test]
fn reads_of_another_program_all_the_time_are_only_counted() {
    let explanation = next_to_readers(false);
    assert_eq!(causes(&explanation), [WaitCause::Depth]);
    let [others] = &explanation.other_reads[..] else { panic!("{explanation:?}") };
    assert_eq!((others.device.as_str(), others.in_flight.map(f64::round)), ("disk", Some(50.0)));
    assert_eq!(others.most, Some(("grep".to_owned(), 12)));
}

/// By hand: 190 reads of 1 ms and 10 of 100 ms wait 1.19 s, of which 0.99 s are lost to the ten.
#[test]
fn few_long_waits_are_a_cause_of_their_own() {
    let mut made = Made::new();
    for at in 0..200 {
        let us = if at % 20 == 7 { 100_000 } else { 1000 };
        made.read(1, ReadMethod::Pread, (far(at), 4 * KIB), 0, us);
    }
    let explanation = made.explained();
    assert_eq!(found(&explanation), [(WaitCause::Stalls, 990), (WaitCause::Depth, 200)]);
    says(&explanation, &["10 of 200 waits took 100.0 ms on average, the median 1.0 ms", "83 %"]);
}

/// 200 reads of AIO wait 100 us each. If they fill the page cache, their submissions wait for them.
#[test]
fn asynchronous_reads_through_the_page_cache_are_a_cause() {
    // File 1 was opened with O_DIRECT.
    let reads_of = |file, fetched| {
        let mut made = Made::new();
        (0..200).for_each(|at| made.read(file, ReadMethod::Aio, (far(at), 4 * KIB), fetched, 100));
        made.explained()
    };
    let explanation = reads_of(0, 4 * KIB);
    assert_eq!(found(&explanation), [(WaitCause::Direct, 20)]);
    says(&explanation, &["AIO without O_DIRECT", "200 reads of AIO waited 100 µs each"]);
    let explanation = reads_of(1, 4 * KIB);
    assert_eq!(found(&explanation), [(WaitCause::Direct, 20)]);
    says(&explanation, &["direct reads go through", "200 of 200 direct reads", "btrfs"]);
    assert_eq!(causes(&reads_of(1, 0)), [WaitCause::Depth]);
}

/// Reads of 64 KiB in order, each with a wait of 500 us for pages in flight.
fn ordered(is_announced: bool) -> Explanation {
    let mut made = Made::new();
    if is_announced {
        made.hint(AdviceType::WillNeed, false);
        let insert = PagesInserted { bytes: 4 << 20, ..PagesInserted::default() };
        made.records.push(Record::Insert(insert));
    }
    (0..64).for_each(|at| made.read(0, ReadMethod::Pread, (at * 64 * KIB, 64 * KIB), 0, 500));
    made.explained()
}

/// The kernel's window has no effect on pages that the program announced. By hand, all reads but
/// the first end 128 KiB in order or more: 63 wait 31.5 ms.
#[test]
fn announced_pages_do_not_wait_for_the_kernels_window() {
    assert_eq!(ordered(true).readahead, None);
    let waits = ordered(false).readahead.expect("waits for readahead");
    assert_eq!((waits.waits, (waits.seconds * 1e4).round()), (63, 315.0));
}
