//! Replays of hand-made recordings, whose time on another device is worked by hand.

use readpath_core::policy::Spec;
use readpath_core::readahead::Advice;
use readpath_core::unit::Time;
use readpath_sim::run::{ProgressAnswer, RunObserver};
use readpath_sim::simulate::SimulationSetup;
use readpath_trace::recording::{
    AdviceGiven, AdviceType, FileRecord, OpenRecord, PagesInserted, ReadMethod, ReadOutcome,
    ReadRecord, Record, RecordingEnd, RecordingStart, ThreadName,
};
use readpath_trace::replay::{RecordedProgram, RecordingInput};

const MS: u64 = 1_000_000;
const KIB: u64 = 1024;

/// Each request takes 5 ms for its first byte and a negligible time for its bytes.
fn five_ms() -> SimulationSetup {
    let times = ["min", "p50", "p90", "p99", "max"].map(|at| format!("first_byte_{at}=5ms"));
    let device =
        format!("object,connection=60000m,bandwidth=60000m,get_rate=1000000,{}", times.join(","));
    SimulationSetup {
        readahead: Spec::plain("none"),
        scheduler: Spec::plain("noop"),
        ..SimulationSetup::new(Spec::parse(&device).unwrap())
    }
}

fn start() -> Vec<Record> {
    let file = FileRecord {
        file: 0,
        bytes: Some(1 << 30),
        path: "/data".to_owned(),
        ..FileRecord::default()
    };
    let thread =
        |thread| Record::Thread(ThreadName { thread, task: thread + 10, ..ThreadName::default() });
    vec![Record::Start(RecordingStart::default()), Record::File(file), thread(0), thread(1)]
}

/// A read of 4 KiB that fetched its page.
fn read(thread: u32, begin_ns: u64, end_ns: u64, offset: u64) -> [Record; 2] {
    let bytes = 4 * KIB;
    let insert = PagesInserted { at_ns: begin_ns, thread, file: 0, offset, bytes };
    let read = ReadRecord {
        begin_ns,
        end_ns,
        waited_ns: end_ns - begin_ns,
        thread,
        way: ReadMethod::Pread,
        descriptor: Some(3),
        file: 0,
        offset,
        asked_bytes: bytes,
        outcome: ReadOutcome::Bytes(bytes),
    };
    [Record::Insert(insert), Record::Read(read)]
}

fn end(at_ns: u64) -> Record {
    Record::End(RecordingEnd { at_ns, processor_ns: None, has_exited: true })
}

fn gathered(records: &[Record]) -> Option<RecordedProgram> {
    let mut gathered = RecordingInput::default();
    records.iter().for_each(|record| gathered.take(record));
    gathered.finish()
}

fn seconds(recorded: &RecordedProgram, setup: &SimulationSetup) -> f64 {
    let (_, time) =
        recorded.simulate(setup, RunObserver::progress(&mut |_| ProgressAnswer::Continue)).unwrap();
    time.seconds()
}

fn near(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 0.002, "{value}, expected {expected}");
}

/// A thread computes for 10 ms before each of 20 reads of 1 ms, and for 30 ms at the end: 250 ms.
/// With 5 ms per read: 20 × 15 ms + 30 ms.
#[test]
fn replayed_reads_wait_again_and_think_times_are_preserved() {
    let mut records = start();
    for nth in 0..20 {
        let begin = (11 * nth + 10) * MS;
        records.extend(read(0, begin, begin + MS, nth * 10_000 * 4 * KIB));
    }
    records.push(end(250 * MS));
    let recorded = gathered(&records).unwrap();
    assert_eq!((recorded.total, recorded.time_after_last_read), (Time(250 * MS), Time(30 * MS)));
    near(seconds(&recorded, &five_ms()), 0.330);
}

/// Two parallel threads, the second from 40 ms on. The longer one counts. The first: 10 × (2 + 5)
/// ms = 70 ms. The second: 40 ms + 10 × (1 + 5) = 100 ms, and 5 ms more after.
#[test]
fn recorded_threads_are_replayed_in_parallel() {
    let mut records = start();
    for nth in 0..10 {
        let begin = (3 * nth + 2) * MS;
        records.extend(read(0, begin, begin + MS, nth * 10_000 * 4 * KIB));
    }
    for nth in 0..10 {
        let begin = (40 + 2 * nth + 1) * MS;
        records.extend(read(1, begin, begin + MS, (nth * 10_000 + 77) * 4 * KIB));
    }
    records.push(end(65 * MS));
    near(seconds(&gathered(&records).unwrap(), &five_ms()), 0.105);
}

/// One page read twenty times: added once, then resident. With memory for it that is one request.
/// Pages resident before the recording cause no request.
#[test]
fn cached_pages_are_read_once_and_pages_cached_before_never() {
    let mut records = start();
    records.extend(read(0, MS, 2 * MS, 0));
    for nth in 1..20 {
        let [_, Record::Read(mut again)] = read(0, (2 + nth) * MS, (2 + nth) * MS, 0) else {
            panic!()
        };
        again.waited_ns = 0;
        records.push(Record::Read(again));
    }
    for nth in 0..5 {
        let begin = (30 + nth) * MS;
        let [_, Record::Read(mut there)] = read(0, begin, begin, 900 * 4 * KIB) else { panic!() };
        there.waited_ns = 0;
        records.push(Record::Read(there));
    }
    records.push(end(40 * MS));
    let recorded = gathered(&records).unwrap();
    assert_eq!((recorded.reads, recorded.cached_before), (20, 5));
    // 1 ms of computation, 5 ms of the device, and the remaining 38 ms.
    near(seconds(&recorded, &five_ms()), 0.044);
}

/// Four reads in flight together, of an `O_DIRECT` descriptor, are submitted together again.
#[test]
fn concurrent_reads_are_replayed_concurrently() {
    let mut records = start();
    let open = OpenRecord {
        at_ns: 0,
        thread: 0,
        file: 0,
        descriptor: 3,
        is_direct: true,
        is_readable: true,
        is_writable: false,
    };
    records.push(Record::Open(open));
    for round in 0..10 {
        for nth in 0..4 {
            let begin = round * 2 * MS + MS;
            let [_, Record::Read(mut one)] =
                read(0, begin, begin + MS, (round * 4 + nth) * 4 * KIB)
            else {
                panic!()
            };
            one.way = ReadMethod::Uring;
            records.push(Record::Read(one));
        }
    }
    records.push(end(20 * MS));
    // Ten rounds of 5 ms, with 1 ms of computation before each.
    let seconds = seconds(&gathered(&records).unwrap(), &five_ms());
    assert!((0.050..0.062).contains(&seconds), "{seconds}");
}

#[test]
fn recording_without_reads_is_not_replayed() {
    let mut records = start();
    records.push(end(MS));
    assert!(gathered(&records).is_none());
}

/// An advice of a thread on `bytes` bytes of the file, 0 for all.
fn advice(thread: u32, at_ns: u64, offset: u64, bytes: u64, hint: AdviceType) -> Record {
    let is_of_mapping = false;
    Record::Advice(AdviceGiven { at_ns, thread, file: 0, offset, bytes, hint, is_of_mapping })
}

/// Ten batches. In each, thread `adviser` announces 16 scattered pages at its begin, and thread 0
/// then reads them one by one. The recorded batch takes 1 ms.
fn announced_batches(adviser: u32) -> Vec<Record> {
    let mut records = start();
    for batch in 0..10 {
        let begin = batch * MS;
        let offset = |nth: u64| (batch * 16 + nth) * 1000 * 4 * KIB;
        let announce = |nth| advice(adviser, begin, offset(nth), 4 * KIB, AdviceType::WillNeed);
        records.extend((0..16).map(announce));
        let end = begin + MS;
        for nth in 0..16 {
            // The first read waits for the device, and the others find their pages.
            let [insert, Record::Read(mut one)] =
                read(0, end - 16 + nth, end - 16 + nth, offset(nth))
            else {
                panic!()
            };
            one.begin_ns -= u64::from(nth == 0) * (MS - 16);
            one.waited_ns = one.end_ns - one.begin_ns;
            records.extend([insert, Record::Read(one)]);
        }
    }
    records.push(end(10 * MS));
    records
}

/// Sixteen announced reads are in flight together: 5 ms for each of ten batches. One after the
/// other they would take 160 × 5 ms.
#[test]
fn announced_reads_are_in_flight_together() {
    let recorded = gathered(&announced_batches(0)).unwrap();
    assert_eq!((recorded.reads, recorded.advice_left_out), (160, 0));
    let seconds = seconds(&recorded, &five_ms());
    assert!((0.050..0.052).contains(&seconds), "{seconds}");
}

/// A thread that only announces goes on at its recorded times: a batch each 1 ms. All pages have
/// been requested after 9 ms and arrive within 5 ms, behind the first batch of 5 ms.
#[test]
fn thread_that_only_announces_is_replayed() {
    let seconds = seconds(&gathered(&announced_batches(1)).unwrap(), &five_ms());
    assert!((0.014..0.016).contains(&seconds), "{seconds}");
}

/// 64 ordered reads of 4 KiB with RANDOM take 5 ms each. Without the advice, the modelled kernel
/// reads 128 KiB at once: at most ten requests.
#[test]
fn random_advice_switches_readahead_off_in_the_replay() {
    let mut records = start();
    for nth in 0..64 {
        records.extend(read(0, nth * MS, (nth + 1) * MS, nth * 4 * KIB));
    }
    records.push(end(64 * MS));
    let setup = SimulationSetup { readahead: Spec::plain("ondemand"), ..five_ms() };
    let without = seconds(&gathered(&records).unwrap(), &setup);
    assert!(without < 0.050, "{without}");
    records.insert(4, advice(1, 0, 0, 0, AdviceType::Random));
    near(seconds(&gathered(&records).unwrap(), &setup), 0.320);
}

/// A file of 8 MiB is announced as a whole, and 128 of its pages are then read, one every 4 KiB.
fn announced_file() -> Vec<Record> {
    let mut records = start();
    records.push(advice(0, 0, 0, 0, AdviceType::Random));
    records.push(advice(0, 0, 0, 8 * KIB * KIB, AdviceType::WillNeed));
    for nth in 0..128 {
        records.extend(read(0, nth * MS, (nth + 1) * MS, nth * 4 * KIB));
    }
    records.push(end(128 * MS));
    records
}

/// `force_page_cache_ra` fetches at most the larger of the readahead window and the largest request
/// of the device. With a request of 256 KiB that is 64 pages, in 5 ms, and each other page takes
/// 5 ms. With a window of 512 KiB it is all 128 pages, in two concurrent requests of 5 ms.
#[test]
fn announced_range_is_fetched_up_to_the_kernels_limit() {
    let recorded = gathered(&announced_file()).unwrap();
    let device = five_ms().device.to_string() + ",request_max=256k";
    let setup = |readahead: &str, window_bytes| SimulationSetup {
        device: Spec::parse(&device).unwrap(),
        readahead: Spec::parse(readahead).unwrap(),
        window_bytes,
        ..five_ms()
    };
    // 127 calls of a microsecond find their page.
    let is_one_wait = |seconds: f64| assert!((0.005..0.0055).contains(&seconds), "{seconds}");
    near(seconds(&recorded, &setup("none", 128 * KIB)), 65.0 * 0.005);
    is_one_wait(seconds(&recorded, &setup("none", 512 * KIB)));
    near(seconds(&recorded, &setup("ondemand", 128 * KIB)), 65.0 * 0.005);
    is_one_wait(seconds(&recorded, &setup("ondemand,read_ahead_kb=512", 128 * KIB)));
}

/// A second thread opens the file at 10 ms, and reads the page that the first has fetched by 5 ms.
/// The open of a file drops no page: no request follows.
#[test]
fn opened_file_keeps_the_pages_of_other_threads() {
    let mut records = start();
    records.extend(read(0, 0, MS, 0));
    records.extend(read(1, 10 * MS, 11 * MS, 0));
    records.push(end(11 * MS));
    near(seconds(&gathered(&records).unwrap(), &five_ms()), 0.010);
}

/// Thread 0 gives RANDOM 1,000 times before its first read, and NORMAL twice behind it. Each of the
/// two threads that read the file repeats one RANDOM and one NORMAL.
#[test]
fn equal_hints_in_succession_are_repeated_once() {
    let mut records = start();
    records.extend((0..1000).map(|_| advice(0, 0, 0, 0, AdviceType::Random)));
    records.extend(read(0, MS, 2 * MS, 0));
    records.extend(read(1, MS, 2 * MS, 0));
    records.extend((0..2).map(|_| advice(0, 3 * MS, 0, 0, AdviceType::Normal)));
    records.extend(read(0, 4 * MS, 5 * MS, 0));
    records.extend(read(1, 4 * MS, 5 * MS, 0));
    records.push(end(5 * MS));
    let recorded = gathered(&records).unwrap();
    assert_eq!(recorded.advice_left_out, 0);
    for (_, advice) in recorded.threads_with_advice() {
        let given: Vec<_> = advice.iter().map(|given| (given.reads_before, given.advice)).collect();
        assert_eq!(given, [(0, Advice::Random), (1, Advice::Normal)]);
    }
}

/// Advice without an effect in the replay is counted: of another kind, or about an unread file.
#[test]
fn advice_that_is_not_repeated_is_counted() {
    let mut records = start();
    records.push(advice(0, 0, 0, 0, AdviceType::Other));
    let unread = AdviceGiven { file: 7, hint: AdviceType::WillNeed, ..AdviceGiven::default() };
    records.push(Record::Advice(unread));
    records.extend(read(0, MS, 2 * MS, 0));
    records.push(end(2 * MS));
    assert_eq!(gathered(&records).unwrap().advice_left_out, 2);
}

/// Two threads read in turn under a lock, each 10 times for 1 ms. Between its reads each waits 9
/// times for 1 ms. With 3 ms of processor time, 15 of these 18 ms are waits.
#[test]
fn waits_between_reads_are_the_time_without_a_processor() {
    let records = |processor_ns| {
        let mut records = start();
        for nth in 0..20 {
            records.extend(read(nth as u32 % 2, nth * MS, (nth + 1) * MS, nth * 1000 * 4 * KIB));
        }
        records.push(Record::End(RecordingEnd { at_ns: 20 * MS, processor_ns, has_exited: true }));
        records
    };
    let waits = |processor_ns| gathered(&records(processor_ns)).unwrap().other_waits;
    assert_eq!(waits(Some(3 * MS)), Some(Time(15 * MS)));
    assert_eq!(waits(Some(30 * MS)), Some(Time(0)));
    assert_eq!(waits(None), None);
}
