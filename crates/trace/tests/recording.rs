//! Recordings: written records are read back, and damage is detected.

use proptest::prelude::*;
use readpath_trace::TraceError;
use readpath_trace::recording::{
    Activity, AdviceGiven, AdviceType, CALL_BYTES_MAX, DeviceOperation, DeviceRecord, EventsLost,
    ExecutableMapped, FileMapped, FileRecord, MAGIC, Mapped, OpenRecord, OthersRequests,
    OthersSampled, PagesEvicted, PagesInserted, ReadMethod, ReadOutcome, ReadRecord, Record,
    RecordingEnd, RecordingMethod, RecordingReader, RecordingStart, RecordingWriter, RequestRecord,
    SUM_MAX, ThreadName, TimeSpent, Unseen,
};

fn written(records: &[Record]) -> Vec<u8> {
    let mut writer = RecordingWriter::new(Vec::new()).unwrap();
    for record in records {
        writer.put(record.clone()).unwrap();
    }
    writer.finish().unwrap()
}

fn read(bytes: &[u8]) -> (Vec<Record>, Option<TraceError>) {
    let mut records = Vec::new();
    let reader = match RecordingReader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (records, Some(error)),
    };
    for record in reader {
        match record {
            Ok(record) => records.push(record),
            Err(error) => return (records, Some(error)),
        }
    }
    (records, None)
}

fn names() -> Vec<Record> {
    let start =
        RecordingStart { page_bytes: 4096, program: "cat".to_owned(), ..RecordingStart::default() };
    let device =
        DeviceRecord { device: 1 << 20 | 2, name: "vdä".to_owned(), ..DeviceRecord::default() };
    let file = |file| FileRecord {
        file,
        device: 1 << 20 | 2,
        path: "/a b".to_owned(),
        ..FileRecord::default()
    };
    let thread = ThreadName { thread: 3, task: 70, process: 70, name: "cat".to_owned() };
    vec![
        Record::Start(start),
        Record::Device(device),
        Record::File(file(0)),
        Record::File(file(900)),
        Record::Thread(thread),
    ]
}

fn any_range() -> impl Strategy<Value = (u64, u64)> {
    let far = (0..1_u64 << 62, 0..1_u64 << 62);
    prop_oneof![far, (0..10_u64, 0..9_u64).prop_map(|(page, pages)| (page << 12, pages << 12))]
}

fn any_span() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![(0..1000_u64, 0..1000_u64), (0..1_u64 << 50, 0..1_u64 << 50)]
        .prop_map(|(a, b)| (a.min(b), a.max(b)))
}

fn any_read() -> impl Strategy<Value = Record> {
    let ways = [
        ReadMethod::Read,
        ReadMethod::Pread,
        ReadMethod::Preadv,
        ReadMethod::Fault,
        ReadMethod::Uring,
        ReadMethod::Copied,
        ReadMethod::Aio,
    ];
    let way = prop::sample::select(ways.to_vec());
    let file = prop::sample::select(vec![0_u32, 900]);
    let descriptor = prop::option::of(0..u64::MAX);
    let outcome = prop_oneof![any::<u64>().prop_map(Ok), any::<u32>().prop_map(Err)];
    (any_span(), any_range(), way, file, descriptor, outcome, 0..1_u64 << 50).prop_map(
        |((begin_ns, end_ns), (offset, asked_bytes), way, file, descriptor, outcome, waited_ns)| {
            let outcome = match outcome {
                Ok(bytes) => ReadOutcome::Bytes(bytes.min(asked_bytes).min(CALL_BYTES_MAX)),
                Err(error) => ReadOutcome::Error(error),
            };
            Record::Read(ReadRecord {
                end_ns,
                begin_ns,
                waited_ns,
                thread: 3,
                way,
                descriptor,
                file,
                offset,
                asked_bytes,
                outcome,
            })
        },
    )
}

fn any_event() -> impl Strategy<Value = Record> {
    let hints = vec![
        AdviceType::Normal,
        AdviceType::Random,
        AdviceType::WillNeed,
        AdviceType::DontNeed,
        AdviceType::Other,
    ];
    let works = vec![DeviceOperation::Read, DeviceOperation::Write, DeviceOperation::Other];
    let at = 0..=SUM_MAX;
    let (thread, file) = (3, 900);
    prop_oneof![
        6 => any_read(),
        1 => (at.clone(), any::<[bool; 3]>()).prop_map(move |(at_ns, [is_direct, is_readable, is_writable])| {
            let descriptor = at_ns / 2;
            Record::Open(OpenRecord { at_ns, thread, file, descriptor, is_direct, is_readable, is_writable })
        }),
        1 => (at.clone(), any_range()).prop_map(move |(at_ns, (offset, bytes))| {
            Record::Map(FileMapped { at_ns, thread, file, offset, bytes })
        }),
        1 => (at.clone(), any_range(), prop::sample::select(hints), any::<bool>()).prop_map(
            move |(at_ns, (offset, bytes), hint, is_of_mapping)| {
                Record::Advice(AdviceGiven { at_ns, thread, file, offset, bytes, hint, is_of_mapping })
            }
        ),
        2 => (at.clone(), any_range()).prop_map(move |(at_ns, (offset, bytes))| {
            let bytes = bytes.min(CALL_BYTES_MAX);
            Record::Insert(PagesInserted { at_ns, thread, file, offset, bytes })
        }),
        1 => (at.clone(), any_range()).prop_map(move |(at_ns, (offset, bytes))| {
            Record::Evict(PagesEvicted { at_ns, file, offset, bytes })
        }),
        2 => (any_span(), any_range(), prop::sample::select(works), any::<bool>()).prop_map(
            |((begin_ns, end_ns), (place, bytes), work, is_ahead)| {
                let bytes = bytes.min(1 << 50);
                let thread = is_ahead.then_some(3);
                let device = 1 << 20 | 2;
                Record::Request(RequestRecord { end_ns, begin_ns, thread, device, work, is_ahead, place, bytes })
            }
        ),
        1 => (at.clone(), any_range()).prop_map(move |(at_ns, (offset, bytes))| {
            let bytes = bytes.min(CALL_BYTES_MAX);
            Record::Mapped(Mapped { at_ns, thread, file, offset, bytes })
        }),
        1 => (at.clone(), 0..1_u64 << 50, 0..1_u64 << 50).prop_map(move |(at_ns, count, waited_ns)| {
            Record::Unseen(Unseen { at_ns, thread, way: ReadMethod::Aio, count, waited_ns })
        }),
        1 => (at.clone(), any::<bool>(), 0..1_u64 << 50).prop_map(|(at_ns, reads, wall_ns)| {
            let activity = if reads { Activity::Read } else { Activity::Unknown };
            Record::TimeSpent(TimeSpent { at_ns, activity, wall_ns })
        }),
        1 => (at.clone(), ".{0,20}", 0..1_u64 << 50).prop_map(|(at_ns, name, bytes)| {
            let (device, work) = (1 << 20 | 2, DeviceOperation::Write);
            Record::OthersRequests(OthersRequests { at_ns, device, work, task: 7, name, count: 3, bytes })
        }),
        1 => (any_span(), 0..1_u64 << 50).prop_map(|((begin_ns, duration_ns), bytes)| {
            let (end_ns, work) = (begin_ns + duration_ns, DeviceOperation::Read);
            Record::OthersSampled(OthersSampled { end_ns, begin_ns, device: 1 << 20 | 2, work, bytes })
        }),
        1 => at.clone().prop_map(move |at_ns| Record::Executable(ExecutableMapped { at_ns, file })),
        1 => (at, 0..1_u64 << 50).prop_map(|(at_ns, count)| Record::Lost(EventsLost { at_ns, count })),
    ]
}

fn end() -> Record {
    Record::End(RecordingEnd { at_ns: 9, processor_ns: Some(7), has_exited: true })
}

proptest! {
    #[test]
    fn written_records_are_read_back(events in prop::collection::vec(any_event(), 0..60)) {
        let records = [names(), events, vec![end()]].concat();
        prop_assert_eq!(read(&written(&records)), (records, None));
    }

    #[test]
    fn junk_is_an_error_and_no_panic(
        junk in prop::collection::vec(any::<u8>(), 0..200),
        is_block in any::<bool>(),
    ) {
        let mut bytes = written(&names());
        if is_block {
            bytes.extend((junk.len() as u32).to_le_bytes());
            bytes.extend(crc32fast::hash(&junk).to_le_bytes());
        }
        bytes.extend(&junk);
        let (records, error) = read(&bytes);
        prop_assert!(records.starts_with(&names()));
        // Only an end record by chance makes this a complete recording.
        prop_assert!(error.is_some() || records.last().is_some_and(|last| last.tag() == 13));
    }
}

/// Impossible values: each would cause years of counting, or a count beyond 64 bits.
#[test]
fn impossible_values_are_reported_as_damage() {
    let read = ReadRecord { thread: 3, file: 900, ..ReadRecord::default() };
    let given = |bytes| {
        Record::Read(ReadRecord {
            asked_bytes: bytes,
            outcome: ReadOutcome::Bytes(bytes),
            ..read.clone()
        })
    };
    let inserted_pages = |bytes| {
        Record::Insert(PagesInserted { thread: 3, file: 900, bytes, ..PagesInserted::default() })
    };
    let waited = |waited_ns| Record::Read(ReadRecord { waited_ns, ..read.clone() });
    let lost = |count| Record::Lost(EventsLost { at_ns: 0, count });
    let device = 1 << 20 | 2;
    let request =
        |bytes| Record::Request(RequestRecord { device, bytes, ..RequestRecord::default() });
    for (records, words) in [
        (vec![given(1 << 62)], "a read that was given more than 4 GiB"),
        (vec![inserted_pages(1 << 62)], "a call that had more than 4 GiB come in"),
        (vec![waited(1 << 59), waited(1 << 59), waited(1)], "waits of more than 36 years together"),
        (vec![lost(u64::MAX)], "more than 2⁶⁰ lost events"),
        (vec![request(1 << 59), request(u64::MAX)], "requests for more than 2⁶⁰ bytes together"),
    ] {
        let (records, error) = self::read(&written(&[names(), records].concat()));
        let error = error.expect("it is damaged").to_string();
        assert!(error.ends_with(words), "{error}: {words}");
        assert!(error.contains("in the block at byte 12"), "{error}");
        assert!(records.len() >= names().len());
    }
    // Possible values.
    let all = [names(), vec![given(CALL_BYTES_MAX), waited(SUM_MAX), end()]].concat();
    assert_eq!(self::read(&written(&all)), (all, None));
}

/// One read in one file, byte by byte, worked by hand from the description of the format.
#[test]
fn encoded_bytes_match_the_format_description() {
    let start = RecordingStart {
        source: RecordingMethod::Strace,
        wall_ns: 300,
        page_bytes: 4096,
        ..RecordingStart::default()
    };
    let records = [
        Record::Start(RecordingStart { program: "a".to_owned(), ..start }),
        Record::File(FileRecord {
            file: 0,
            bytes: Some(200),
            path: "/f".to_owned(),
            ..FileRecord::default()
        }),
        Record::Thread(ThreadName { thread: 0, task: 5, process: 5, name: String::new() }),
        Record::Read(ReadRecord {
            end_ns: 1000,
            begin_ns: 900,
            waited_ns: 60,
            way: ReadMethod::Pread,
            descriptor: Some(3),
            offset: 64,
            asked_bytes: 256,
            outcome: ReadOutcome::Bytes(136),
            ..ReadRecord::default()
        }),
        Record::TimeSpent(TimeSpent { at_ns: 990, activity: Activity::Lock, wall_ns: 7 }),
        Record::TimeSpent(TimeSpent { at_ns: 990, activity: Activity::Sync, wall_ns: 8 }),
        Record::OthersRequests(OthersRequests {
            at_ns: 990,
            device: 0,
            work: DeviceOperation::Write,
            task: 9,
            name: "dd".to_owned(),
            count: 2,
            bytes: 200,
        }),
        Record::OthersSampled(OthersSampled {
            end_ns: 990,
            begin_ns: 900,
            device: 0,
            work: DeviceOperation::Write,
            bytes: 200,
        }),
        Record::Executable(ExecutableMapped { at_ns: 990, file: 0 }),
        Record::End(RecordingEnd { at_ns: 990, processor_ns: None, has_exited: true }),
    ];
    let body = [
        // Start: strace, 300, 4096, memory unknown, "a", "".
        &[1, 2, 0xac, 2, 0x80, 0x20, 0, 1, b'a', 0][..],
        // File 0, no device, no inode, 200 bytes, "/f".
        &[3, 0, 0, 0, 0xc9, 1, 2, b'/', b'f'],
        &[4, 0, 5, 5, 0],
        // 1000 × 2; 100 before; 60; thread 0; pread; descriptor 3; file 0; offset 64 × 2; 256; 120
        // × 2.
        &[8, 0xd0, 0x0f, 100, 60, 0, 1, 4, 0, 0x80, 1, 0x80, 2, 0xf0, 1],
        // 10 back: 10 × 2 - 1; waiting for a lock, the 11th activity after the first; 7.
        &[16, 19, 11, 7],
        // At the same time; waiting for written data, the newest activity; 8.
        &[16, 0, 14, 8],
        // At the same time; device 0; a write, the second operation; task 9; "dd"; 2 requests; 200
        // bytes.
        &[17, 0, 0, 1, 9, 2, b'd', b'd', 2, 0xc8, 1],
        // At the same time; 90 before; device 0; a write; 200 bytes.
        &[18, 0, 90, 0, 1, 0xc8, 1],
        // At the same time; file 0.
        &[19, 0, 0],
        &[13, 0, 0, 1],
    ]
    .concat();
    let mut expected = MAGIC.to_vec();
    expected.extend([6, 0, 0, 0]);
    expected.extend([body.len() as u8, 0, 0, 0]);
    expected.extend(crc32fast::hash(&body).to_le_bytes());
    expected.extend(body);
    assert_eq!(written(&records), expected);
}

#[test]
fn truncated_recording_returns_earlier_records_and_names_the_byte() {
    // Two blocks: 12 bytes, 8 and the names, 8 and the rest.
    let mut writer = RecordingWriter::new(Vec::new()).unwrap();
    names().into_iter().for_each(|record| writer.put(record).unwrap());
    writer.flush().unwrap();
    writer.put(Record::Read(ReadRecord { thread: 3, ..ReadRecord::default() })).unwrap();
    writer.put(end()).unwrap();
    let bytes = writer.finish().unwrap();
    let second = written(&names()).len();
    assert!(second < bytes.len() - 10);
    for length in 0..bytes.len() {
        let (records, error) = read(&bytes[..length]);
        let expected = match length {
            0 => TraceError::NoRecording,
            1..12 => TraceError::Cut { byte: length as u64 },
            _ if length < second => TraceError::Cut { byte: 12 },
            _ => TraceError::Cut { byte: second as u64 },
        };
        assert_eq!(error, Some(expected), "{length}");
        assert_eq!(records, if length < second { Vec::new() } else { names() }, "{length}");
    }
    assert_eq!(read(&bytes).1, None);
}

#[test]
fn each_changed_byte_is_noticed() {
    let bytes = written(&[names(), vec![end()]].concat());
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        let (_, error) = read(&changed);
        assert!(error.is_some(), "byte {at}");
    }
}

#[test]
fn invalid_records_are_refused_by_the_writer_and_by_the_reader() {
    let wrong_read =
        ReadRecord { asked_bytes: 5, outcome: ReadOutcome::Bytes(6), ..ReadRecord::default() };
    let mut writer = RecordingWriter::new(Vec::new()).unwrap();
    names().into_iter().for_each(|record| writer.put(record).unwrap());
    writer.put(Record::Lost(EventsLost { at_ns: 5, count: 1 })).unwrap();
    let refused = writer.put(Record::Read(ReadRecord { thread: 3, ..wrong_read })).unwrap_err();
    assert_eq!(refused.to_string(), "a record with a read that was given more than it asked for");
    // The kernel refuses a call for 2^63 bytes (read(2)).
    let outcome = ReadOutcome::Bytes(0);
    let large_read =
        ReadRecord { thread: 3, asked_bytes: 1 << 63, outcome, ..ReadRecord::default() };
    let refused = writer.put(Record::Read(large_read)).unwrap_err().to_string();
    assert!(refused.starts_with("a record with a read that lacks 2⁶³ bytes"), "{refused}");
    writer.put(end()).unwrap();
    let (records, error) = read(&writer.finish().unwrap());
    assert_eq!((records.len(), records.last(), error), (7, Some(&end()), None));

    let error_of = |records: &[Record]| read(&written(records)).1.unwrap().to_string();
    let nameless = Record::Read(ReadRecord { thread: 3, file: 7, ..ReadRecord::default() });
    let error = error_of(&[names(), vec![nameless]].concat());
    assert_eq!(error, "the recording is damaged in the block at byte 12: a file that has no name");
    assert!(error_of(&names()[1..]).contains("the first record is not a start"));
    assert!(error_of(&[names(), vec![end(), end()]].concat()).contains("after the last"));
    let mut later = written(&names());
    // Versions 1 to 6 are accepted, a later version is not.
    for version in 1..=6 {
        later[8] = version;
        assert_eq!(read(&later).0, names());
    }
    later[8] = 7;
    assert_eq!(read(&later).1, Some(TraceError::Version { version: 7 }));
    assert_eq!(read(b"fio version 3 iolog\n").1, Some(TraceError::NoRecording));
}
