//! Diagnoses of reads and times that a recording lacks, and of copies, as recordings worked by
//! hand.

use readpath_record::explain::{Explanation, ProgramLimit, WaitCause};
use readpath_trace::recording::{
    Activity, PagesInserted, ReadMethod, ReadOutcome, ReadRecord, Record, RecordingMethod,
    TimeSpent,
};

use super::diagnoses::{causes, says};
use super::explain::{KIB, Made, US, far};

/// As root: calls that read waited 60 of 100 ms, and the recorded ones among them 10 ms. The
/// program was said to find its data in memory. Page faults may be of memory without a file.
#[test]
fn waits_of_calls_without_recorded_reads_are_no_verdict_as_root() {
    let explanation = |activity| {
        let mut made = Made::new();
        (0..10).for_each(|at| {
            made.read(0, ReadMethod::Pread, (far(at), 4 * KIB), 4 * KIB, 1000);
        });
        made.compute(100_000 - made.now / US);
        let (at_ns, wall_ns) = (made.now, 60_000 * US);
        made.records.push(Record::TimeSpent(TimeSpent { at_ns, activity, wall_ns }));
        made.explained()
    };
    let hidden = explanation(Activity::Read);
    assert_eq!((hidden.limit, causes(&hidden)), (ProgramLimit::Unseen, Vec::new()));
    let text = hidden.limit_text;
    assert!(text.contains("waited 60.0 ms, and the recorded reads of files are 10.0 ms"), "{text}");
    assert_ne!(explanation(Activity::Fault).limit, ProgramLimit::Unseen);
}

/// As root: calls that read waited 40 of 100 ms, and the recorded ones among them 5 ms. Recorded
/// page faults or io_uring waited 30 ms, which are none of the 40. The submission of buffered AIO
/// reads, which wait in it, counts as a call that reads: all of 35 ms are recorded.
#[test]
fn other_recorded_waits_do_not_stand_for_calls_without_recorded_reads() {
    let hidden_waits = |method, times: &[(Activity, u64)]| {
        let mut made = Made::new();
        for at in 0..35 {
            let method = if at < 5 { ReadMethod::Pread } else { method };
            made.read(0, method, (far(at), 4 * KIB), 4 * KIB, 1000);
        }
        made.compute(100_000 - made.now / US);
        for &(activity, ms) in times {
            let (at_ns, wall_ns) = (made.now, ms * 1000 * US);
            made.records.push(Record::TimeSpent(TimeSpent { at_ns, activity, wall_ns }));
        }
        made.explained().hidden_waits
    };
    for (method, activity) in
        [(ReadMethod::Fault, Activity::Fault), (ReadMethod::Uring, Activity::AsyncIo)]
    {
        let hidden = hidden_waits(method, &[(Activity::Read, 40), (activity, 30)]);
        let text = hidden.expect("35 of 100 ms are in no recorded read");
        let expected = "waited 40.0 ms, and the recorded reads of files are 5.0 ms";
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(hidden_waits(ReadMethod::Aio, &[(Activity::Read, 35)]), None);
}

/// 100 direct reads by io_uring, one at a time, each in flight for the same time, next to a `pread`
/// that waits 1 ms of the 101 ms. The program polls: no thread sleeps for the reads by io_uring. It
/// was said to find its data in memory. Reads of 20 µs are in flight for 2 ms only.
#[test]
fn reads_that_a_program_polls_for_are_no_verdict() {
    let explanation = |in_flight_us: u64| {
        let mut made = Made::new();
        for at in 0..100 {
            let begin_ns = made.now;
            made.compute(1000);
            made.records.push(Record::Read(ReadRecord {
                begin_ns,
                end_ns: begin_ns + in_flight_us * US,
                way: ReadMethod::Uring,
                descriptor: Some(3),
                file: 1,
                offset: far(at),
                asked_bytes: 4 * KIB,
                outcome: ReadOutcome::Bytes(4 * KIB),
                ..ReadRecord::default()
            }));
        }
        made.read(0, ReadMethod::Pread, (0, 4 * KIB), 4 * KIB, 999);
        made.explained()
    };
    let polled = explanation(1000);
    assert_eq!((polled.limit, causes(&polled)), (ProgramLimit::Unknown, Vec::new()));
    let text = polled.limit_text;
    assert!(text.contains("100 reads by AIO or io_uring were in flight for 100.0 ms"), "{text}");
    assert_eq!(polled.shape.fetched_bytes, 101 * 4 * KIB);
    assert!(polled.hidden_waits.is_some());
    assert_eq!(polled.shape.files[0].reads, 100, "the polled file was last of two");
    let cached = explanation(20);
    assert_eq!((cached.limit, cached.hidden_waits), (ProgramLimit::Program, None));
}

/// Reads that fetch ahead wait 30 of 40 ms at one device. All but 2 ms of it, other threads work.
/// The device was said to be the limit. Next to waits of 30 ms without other work, it is.
#[test]
fn device_is_no_limit_of_a_program_that_works_meanwhile() {
    let overlapped = next_to_work(40, 2);
    assert_eq!((overlapped.limit, causes(&overlapped)), (ProgramLimit::Program, Vec::new()));
    let text = overlapped.limit_text;
    assert!(text.contains("waited 30.0 ms for reads, and in all but 2.0 ms"), "{text}");
    // By hand: 12 of 40 ms are no small part of the program, but less than half of the waits.
    let text = next_to_work(40, 12).limit_text;
    assert!(text.contains("waited 30.0 ms for reads, and in all but 12.0 ms"), "{text}");
    assert_eq!(next_to_work(40, 30).limit, ProgramLimit::Device);
}

/// Reads that fetch ahead wait 30 of `all_ms` ms at one device, `read_ms` of it without other work.
fn next_to_work(all_ms: u64, read_ms: u64) -> Explanation {
    let mut made = next_to_other_time(all_ms);
    for (activity, ms) in [(Activity::Processor, all_ms - read_ms), (Activity::Read, read_ms)] {
        let (at_ns, wall_ns) = (made.now, ms * 1000 * US);
        made.records.push(Record::TimeSpent(TimeSpent { at_ns, activity, wall_ns }));
    }
    made.explained()
}

/// Recording of `all_ms` ms with three reads of 10 ms each.
fn next_to_other_time(all_ms: u64) -> Made {
    let mut made = Made::new();
    for at in 0..3 {
        let place = (at * 1024 * KIB, 1024 * KIB);
        made.read(0, ReadMethod::Pread, place, 1024 * KIB, 10_000);
    }
    made.compute(all_ms * 1000 - made.now / US);
    made
}

/// 30 of 150 ms are waits: a device without any delay saves a fifth. Without times by activity, the
/// processor time of 120 ms is the rest. With 30 of 50 ms the device is the limit.
#[test]
fn device_is_no_limit_of_a_program_that_mostly_computes() {
    let untimed =
        |all_ms: u64| next_to_other_time(all_ms).explained_with(Some((all_ms - 30) * 1000 * US));
    for explanation in [next_to_work(150, 30), untimed(150)] {
        assert_eq!((explanation.limit, causes(&explanation)), (ProgramLimit::Program, Vec::new()));
        let text = explanation.limit_text;
        assert!(text.contains("it waited 30.0 ms of 150.0 ms for reads"), "{text}");
    }
    for explanation in [next_to_work(50, 30), untimed(50)] {
        assert_eq!(explanation.limit, ProgramLimit::Device);
    }
}

/// 64 reads of 1 MiB in a hole of a file, which no request brings in, and 16 pages from a device.
/// Without root no request is recorded.
#[test]
fn holes_are_no_bytes_from_devices() {
    let shape = |mut made: Made, hole_reads: u64| {
        for at in 0..hole_reads {
            made.read(0, ReadMethod::Pread, (at << 20, 1 << 20), 1 << 20, 0);
        }
        (0..16).for_each(|at| made.read(2, ReadMethod::Pread, (far(at), 4 * KIB), 4 * KIB, 100));
        made.explained().shape
    };
    let sparse = shape(Made::new(), 64);
    // 64 times 2^20 and 16 times 4,096 bytes.
    assert_eq!((sparse.fetched_bytes, sparse.device_bytes), (67_174_400, Some(65_536)));
    assert_eq!(sparse.few_device_bytes(), Some(65_536));
    assert_eq!(shape(Made::new(), 0).few_device_bytes(), None);
    assert_eq!(shape(Made::by(RecordingMethod::Preload), 64).device_bytes, None);
}

/// 64 reads of 1 MiB without a request. A file of `/dev/sda` (block major 8) has holes there, which
/// are no bytes from a device. Network and FUSE file systems have major 0, and their reads cause no
/// request that a recording sees.
#[test]
fn requests_of_a_network_file_system_are_unknown() {
    let shape = |device: u64| {
        let mut made = Made::new();
        for record in &mut made.records {
            if let Record::File(file) = record {
                file.device = device;
            }
        }
        for at in 0..64 {
            made.read(0, ReadMethod::Pread, (at << 20, 1 << 20), 1 << 20, 0);
        }
        made.explained().shape
    };
    let (network, disk) = (shape(53), shape(8 << 20));
    assert_eq!((network.device_bytes, network.few_device_bytes()), (None, None));
    assert_eq!((disk.device_bytes, disk.few_device_bytes()), (Some(0), Some(0)));
}

/// 100 reads wait 1 ms each, and the samples have 100 ms of another activity. Other threads are
/// named only if a second thread has read.
#[test]
fn other_threads_are_named_only_if_several_threads_read() {
    let text = |second_thread: u32| {
        let mut made = Made::new();
        for at in 0..100 {
            made.read(0, ReadMethod::Pread, (far(at), 1024 * KIB), 1024 * KIB, 1000);
            let Some(Record::Read(read)) = made.records.last_mut() else { unreachable!() };
            read.thread = at as u32 % 2 * second_thread;
        }
        let (at_ns, activity) = (made.now, Activity::Others);
        made.records.push(Record::TimeSpent(TimeSpent { at_ns, activity, wall_ns: at_ns }));
        made.explained().limit_text
    };
    let (of_one, of_two) = (text(0), text(1));
    assert!(of_one.contains("the program ran or waited for something else"), "{of_one}");
    assert!(of_two.contains("other threads of it ran"), "{of_two}");
}

/// A copy of 1 MiB to file 2 brings its pages into the cache, too. They are written, not fetched.
#[test]
fn pages_that_a_copy_writes_are_not_fetched() {
    let mut made = Made::new();
    let begin_ns = made.now;
    for file in [0, 2] {
        made.records.push(Record::Insert(PagesInserted {
            at_ns: begin_ns + US,
            thread: 0,
            file,
            offset: 0,
            bytes: 1024 * KIB,
        }));
    }
    made.now += 1000 * US;
    made.records.push(Record::Read(ReadRecord {
        begin_ns,
        end_ns: made.now,
        waited_ns: 900 * US,
        way: ReadMethod::Copied,
        descriptor: Some(3),
        offset: 0,
        asked_bytes: 1024 * KIB,
        outcome: ReadOutcome::Bytes(1024 * KIB),
        ..ReadRecord::default()
    }));
    let shape = made.explained().shape;
    assert_eq!((shape.fetched_bytes, shape.unused_bytes), (1024 * KIB, 0));
}

/// A read of a child ends 100 ms after the program, whose times by activity end with it. Nothing is
/// known of 80 % of the recording. The program was said to find its data in memory.
#[test]
fn time_after_the_program_is_unknown() {
    let mut made = Made::new();
    made.compute(20_000);
    let times = TimeSpent { at_ns: made.now, activity: Activity::Processor, wall_ns: made.now };
    made.compute(80_000);
    made.read(0, ReadMethod::Read, (0, 4 * KIB), 0, 0);
    made.records.push(Record::TimeSpent(times));
    let explanation = made.explained();
    assert_eq!(explanation.limit, ProgramLimit::Unknown, "{}", explanation.limit_text);
}

/// 200 reads of 8 KiB from the end to the begin of a file: each ends where the last one began, 16
/// KiB before its end. Half of the reads at random positions in between have no common distance.
#[test]
fn reads_in_backward_order_are_not_at_random_positions() {
    let explanation = |random: u64| {
        let mut made = Made::new();
        for at in (0..200).rev() {
            let place = if at % 4 < random { far(at) } else { at * 8 * KIB };
            made.read(0, ReadMethod::Pread, (place, 8 * KIB), 8 * KIB, 1000);
        }
        made.explained()
    };
    let backward = explanation(0);
    assert_eq!(causes(&backward), [WaitCause::Depth]);
    says(&backward, &["at equal distances, most of them 16 KiB before", "`readpath advise`"]);
    let mixed = explanation(3);
    says(&mixed, &["at random positions"]);
    assert!(!mixed.findings[0].remedy.contains("advise`"), "{mixed:?}");
}

/// One copy of 8 MiB waits 64 ms for readahead, and one of 1 MiB only for 8 windows of 128 KiB.
#[test]
fn a_long_copy_waits_for_readahead() {
    let waits = |bytes: u64| {
        let mut made = Made::new();
        made.read(0, ReadMethod::Copied, (0, bytes), bytes, bytes >> 7);
        made.explained().readahead.map(|waits| (waits.waits, waits.seconds))
    };
    assert_eq!(waits(8 << 20), Some((1, 65_536e-6)));
    assert_eq!(waits(1 << 20), None);
}

/// A trace of requests without durations: 100 of 16 KiB in order, then all of them again. Its waits
/// are unknown. The program was said to find its data in memory. By hand: all but the
/// first request of each pass continue an earlier one, and 1,600 of 3,200 KiB are fetched again.
#[test]
fn requests_without_durations_are_no_verdict_on_waits() {
    let mut made = Made::by(RecordingMethod::Requests);
    for at in 0..200 {
        made.compute(1000);
        made.records.push(Record::Read(ReadRecord {
            begin_ns: made.now,
            end_ns: made.now,
            way: ReadMethod::Pread,
            offset: at % 100 * 16 * KIB,
            asked_bytes: 16 * KIB,
            outcome: ReadOutcome::Bytes(16 * KIB),
            ..ReadRecord::default()
        }));
    }
    let explanation = made.explained();
    assert_eq!((explanation.limit, causes(&explanation)), (ProgramLimit::Untimed, Vec::new()));
    assert_eq!(explanation.waited_seconds, None);
    let text = explanation.limit_text;
    assert!(
        text.contains("200 requests, 16 KiB on average, 99 % of them after an earlier"),
        "{text}"
    );
    let shape = explanation.shape;
    assert_eq!((shape.fetched_bytes, shape.again_bytes), (3200 * KIB, 1600 * KIB));
}
