//! Merged recordings, worked by hand.

use readpath_trace::recording::{
    DeviceRecord, FileRecord, MergedRecords, ReadOutcome, ReadRecord, Record, RecordingEnd,
    RecordingMethod, RecordingStart, RequestRecord, ThreadName,
};

const DISK: u64 = 8 << 20;

fn start(wall_ns: u64, program: &str) -> Record {
    let (page_bytes, system) = (4096, "Linux 6.18".to_owned());
    let program = program.to_owned();
    Record::Start(RecordingStart {
        wall_ns,
        page_bytes,
        program,
        system,
        ..RecordingStart::default()
    })
}

fn device(name: &str) -> Record {
    Record::Device(DeviceRecord { device: DISK, name: name.to_owned(), ..DeviceRecord::default() })
}

fn file(file: u32, inode: u64, path: &str) -> Record {
    Record::File(FileRecord { file, device: DISK, inode, bytes: None, path: path.to_owned() })
}

fn thread(thread: u32) -> Record {
    Record::Thread(ThreadName { thread, task: 70, process: 70, name: "cat".to_owned() })
}

fn read(end_ns: u64, thread: u32, file: u32) -> Record {
    let (begin_ns, asked_bytes) = (end_ns - 50, 4096);
    let outcome = ReadOutcome::Bytes(4096);
    Record::Read(ReadRecord {
        end_ns,
        begin_ns,
        thread,
        file,
        asked_bytes,
        outcome,
        ..ReadRecord::default()
    })
}

fn request(end_ns: u64, place: u64, thread: Option<u64>) -> Record {
    let (begin_ns, device, bytes) = (end_ns - 100, DISK, 4096);
    Record::Request(RequestRecord {
        end_ns,
        begin_ns,
        thread,
        device,
        place,
        bytes,
        ..RequestRecord::default()
    })
}

fn end(at_ns: u64, processor_ns: u64, has_exited: bool) -> Record {
    Record::End(RecordingEnd { at_ns, processor_ns: Some(processor_ns), has_exited })
}

fn merged(parts: Vec<Vec<Record>>) -> Vec<Record> {
    MergedRecords::new(parts.into_iter().map(Vec::into_iter).collect()).unwrap().collect()
}

/// The second began 1,000 ns after the first. Both contain the request at 500. The file /a is one,
/// the files /b are two.
#[test]
fn merged_times_are_aligned_and_shared_requests_appear_once() {
    let first = vec![
        start(5_000_000, "one"),
        device("sda"),
        file(0, 7, "/a"),
        file(1, 8, "/b"),
        thread(0),
        read(1400, 0, 0),
        request(1500, 4096, None),
        read(1900, 0, 1),
        end(9000, 40, true),
    ];
    let second = vec![
        start(5_001_000, "two"),
        device("sda"),
        file(0, 9, "/b"),
        file(1, 7, "/a"),
        thread(0),
        // Its clock is late by 3 ns.
        request(503, 4096, Some(0)),
        request(504, 8192, Some(0)),
        read(600, 0, 1),
        read(800, 0, 0),
        end(7000, 2, false),
    ];
    let expected = vec![
        start(5_000_000, ""),
        device("sda"),
        file(0, 7, "/a"),
        file(1, 8, "/b"),
        thread(0),
        file(2, 9, "/b"),
        thread(1),
        read(1400, 0, 0),
        request(1500, 4096, Some(1)),
        request(1504, 8192, Some(1)),
        read(1600, 1, 0),
        read(1800, 1, 2),
        read(1900, 0, 1),
        end(9000, 42, false),
    ];
    assert_eq!(merged(vec![first, second]), expected);
}

/// A disk of another machine has the same number and another name.
#[test]
fn different_devices_stay_distinct_and_cut_recordings_add_no_end() {
    let part =
        |name| vec![start(1, "p"), device(name), file(0, 7, "/a"), thread(0), read(99, 0, 0)];
    let records = merged(vec![[part("sda"), vec![end(100, 1, true)]].concat(), part("nvme0n1")]);
    let devices: Vec<u64> = records
        .iter()
        .filter_map(|record| match record {
            Record::File(file) => Some(file.device),
            _ => None,
        })
        .collect();
    assert_eq!(devices, [DISK, DISK + (1 << 32)]);
    assert!(!records.iter().any(|record| matches!(record, Record::End(_))), "{records:?}");
}

#[test]
fn incompatible_recordings_are_refused() {
    let error = |parts: Vec<Vec<Record>>| {
        MergedRecords::new(parts.into_iter().map(Vec::into_iter).collect()).unwrap_err()
    };
    let other = |change: fn(&mut RecordingStart)| match start(7, "p") {
        Record::Start(mut start) => {
            change(&mut start);
            vec![Record::Start(start)]
        }
        _ => unreachable!("it is a start"),
    };
    let good = || vec![start(7, "p")];
    let refused = |parts: Vec<Vec<Record>>, message: &str| {
        assert_eq!(error(parts).to_string(), message);
    };
    refused(vec![good(), vec![]], "recording 2 has no first record");
    refused(
        vec![other(|start| start.wall_ns = 0), good()],
        "recording 1 doesn't say at what time of day it began: it can't be aligned",
    );
    refused(
        vec![good(), other(|start| start.page_bytes = 65536)],
        "recording 2 has pages of another length than the first",
    );
    refused(
        vec![good(), other(|start| start.source = RecordingMethod::Strace)],
        "recording 2 was made by Strace, the first by Tracepoints: what the one saw the other could \
         not; merge recordings that were made in one way",
    );
}
