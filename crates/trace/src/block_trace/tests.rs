//! Tests each format with published lines, and the errors for malformed ones.

use super::*;

/// Returns all requests of a trace, without errors.
fn read_all(format: TraceFormat, text: &str) -> Vec<TraceRequest> {
    TraceReader::new(text.as_bytes(), format).map(Result::unwrap).collect()
}

/// Request `us` microseconds after the first one.
fn request(us: u64, device: u32, op: Op, offset: u64, bytes: u64) -> TraceRequest {
    TraceRequest { at: Time::from_us(us), device, op, offset, bytes }
}

/// Lines as the projects that made the formats publish them; numbers worked out by hand.
#[test]
fn every_trace_format_is_parsed() {
    let cases = [
        (
            TraceFormat::Msr,
            "128166372003061629,hm,1,Read,383496192,32768,413\n\
             128166372003061639,hm,1,Write,4096,512,13\n",
            [request(0, 0, Op::Read, 383_496_192, 32_768), request(1, 0, Op::Write, 4096, 512)],
        ),
        (
            TraceFormat::Mqsim,
            "938513000 4 264719034 16 0\n938828000 3 8 16 1\n",
            [
                request(0, 0, Op::Write, 264_719_034 * 512, 8192),
                request(315, 1, Op::Read, 4096, 8192),
            ],
        ),
        (
            TraceFormat::Disksim,
            "0.500000 0 100 8 1\n0.750000 1 16 8 0\n",
            [request(0, 0, Op::Read, 51_200, 4096), request(250, 1, Op::Write, 8192, 4096)],
        ),
        (
            TraceFormat::Spc,
            "0,20941264,8192,W,0.551706\n1,8,1024,r,0.551806,1\n",
            [
                request(0, 0, Op::Write, 20_941_264 * 512, 8192),
                request(100, 1, Op::Read, 4096, 1024),
            ],
        ),
        (
            TraceFormat::Alibaba,
            "419,W,8192,4096,1577808000000046\n725,R,0,512,1577808000000100\n",
            [request(0, 0, Op::Write, 8192, 4096), request(54, 1, Op::Read, 0, 512)],
        ),
        (
            TraceFormat::Tencent,
            "1538323200,12910952,128,0,1063\n1538323201,8,8,1,1071\n",
            [
                request(0, 0, Op::Read, 12_910_952 * 512, 65_536),
                request(1_000_000, 1, Op::Write, 4096, 4096),
            ],
        ),
        (
            TraceFormat::Blkparse,
            "  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]\n\
             8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]\n\
             8,16   1        3     0.000015000   697  Q  RA 8 + 16 [dd]\n\
             CPU0 (sda):\n Reads Queued: 0, 0KiB\n",
            [request(0, 0, Op::Write, 223_490 * 512, 4096), request(15, 1, Op::Read, 4096, 8192)],
        ),
        (
            TraceFormat::Iolog,
            "fio version 2 iolog\na add\na open\na read 4096 512\na wait 30\nb write 0 1024\na close\n",
            [request(0, 0, Op::Read, 4096, 512), request(30_000, 1, Op::Write, 0, 1024)],
        ),
        (
            TraceFormat::Iolog,
            "fio version 3 iolog\n0 a add\n0 a open\n2000 a read 4096 512\n5000 b write 0 1024\n5000 a sync 0 0\n",
            [request(0, 0, Op::Read, 4096, 512), request(3_000, 1, Op::Write, 0, 1024)],
        ),
    ];
    for (format, text, requests) in cases {
        assert_eq!(read_all(format, text), requests, "{format:?}");
        assert_eq!(TraceFormat::detect(text.as_bytes()), Some(format), "{text}");
    }
    assert_eq!(TraceFormat::detect(b"[job]\nrw=read\n"), None);
    assert_eq!(TraceFormat::detect(b"; a comment\n[job]\n"), None);
}

/// A record as `linux/blktrace_api.h` lays it out, in both orders of bytes.
#[test]
fn blktrace_records_are_read_in_both_byte_orders() {
    for is_little_endian in [true, false] {
        let mut bytes: Vec<u8> = Vec::new();
        let mut push_number = |number: u64, width: usize| match is_little_endian {
            true => bytes.extend(&number.to_le_bytes()[..width]),
            false => bytes.extend(&number.to_be_bytes()[8 - width..]),
        };
        // (time, sector, bytes, action: queued reads and writes; a completion)
        for (time_ns, sector, length, action) in [
            (1_000, 8, 4096, 0x0011_0001),
            (5_000, 16, 512, 0x0012_0001),
            (6_000, 16, 512, 0x0082_0008),
        ] {
            // Magic number with version 7, and sequence number.
            push_number(0x6561_7407, 4);
            push_number(1, 4);
            push_number(time_ns, 8);
            push_number(sector, 8);
            push_number(length, 4);
            push_number(action, 4);
            // Process, device and processor. No error, and three bytes of data, all 0.
            (0..3).for_each(|_| push_number(7, 4));
            push_number(0, 2);
            push_number(3, 2);
            push_number(0, 3);
        }
        assert_eq!(TraceFormat::detect(&bytes), Some(TraceFormat::Blktrace));
        let mut reader = TraceReader::new(&bytes[..], TraceFormat::Blktrace);
        let requests: Vec<TraceRequest> = reader.by_ref().map(Result::unwrap).collect();
        let expected = [request(0, 0, Op::Read, 4096, 4096), request(4, 0, Op::Write, 8192, 512)];
        assert_eq!(requests, expected);
        assert_eq!(reader.skipped(), 1);
        let cut = TraceReader::new(&bytes[..60], TraceFormat::Blktrace).last().unwrap();
        assert!(cut.is_err(), "the last record is cut off");
    }
}

/// Actions of `linux/blktrace_api.h`. The first is a queued read of a task in a cgroup:
/// `__BLK_TA_CGROUP` is 1 << 8, and the number of the cgroup follows the record. The second is a
/// read by passthrough (`BLK_TC_PC` is 1 << 9), which names no place of the device.
#[test]
fn blktrace_requests_of_a_cgroup_are_read_and_passthrough_is_not() {
    let mut bytes: Vec<u8> = Vec::new();
    // `BLK_TC_QUEUE` and `BLK_TC_READ` above the event `__BLK_TA_QUEUE`.
    let reads_queued = 0x0011_0001_u32;
    for (sector, action, data_bytes) in
        [(8_u64, reads_queued | (1 << 8), 8_u16), (16, reads_queued | (1 << (9 + 16)), 0)]
    {
        bytes.extend([0x6561_7407_u32, 1].map(u32::to_le_bytes).concat());
        bytes.extend([1_000, sector].map(u64::to_le_bytes).concat());
        bytes.extend([4096, action, 7, 7, 7].map(u32::to_le_bytes).concat());
        bytes.extend([0, data_bytes].map(u16::to_le_bytes).concat());
        bytes.extend(std::iter::repeat_n(0, data_bytes.into()));
    }
    let mut reader = TraceReader::new(&bytes[..], TraceFormat::Blktrace);
    let requests: Vec<TraceRequest> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(requests, [request(0, 0, Op::Read, 4096, 4096)]);
    assert_eq!(reader.skipped(), 1);
}

/// Output of blkparse 1.2.0 for two processors, without most lines of its summary. It names its
/// input files first on a terminal, and last in a file.
#[test]
fn lines_of_blkparse_about_its_input_files_are_no_requests() {
    let files = "Input file sda.blktrace.0 added\nInput file sda.blktrace.1 added\n";
    let events = "  8,0    0        1     0.000000000   697  Q   R 0 + 8 [(null)]\n  \
        8,0    1        1     0.000500000   697  Q   R 8 + 16 [(null)]\n";
    let summary = "CPU0 (sda):\n Reads Queued:           1,        4KiB\n\n\
        Throughput (R/W): 0KiB/s / 0KiB/s\nEvents (sda): 2 entries\n\
        Skips: 0 forward (0 -   0.0%)\n";
    let expected = [request(0, 0, Op::Read, 0, 4096), request(500, 0, Op::Read, 4096, 8192)];
    for text in [format!("{files}{events}{summary}"), format!("{events}{summary}{files}")] {
        assert_eq!(TraceFormat::detect(text.as_bytes()), Some(TraceFormat::Blkparse), "{text}");
        assert_eq!(read_all(TraceFormat::Blkparse, &text), expected, "{text}");
    }
}

/// DiskSim's times are milliseconds and MQSim's whole nanoseconds. A first time of 0 is both.
#[test]
fn times_with_decimals_are_of_disksim() {
    let text = "0 0 0 8 1\n10.500 0 7976 8 1\n";
    assert_eq!(TraceFormat::detect(text.as_bytes()), Some(TraceFormat::Disksim));
    assert_eq!(read_all(TraceFormat::Disksim, text)[1].at, Time::from_us(10_500));
    let mut as_mqsim = TraceReader::new(text.as_bytes(), TraceFormat::Mqsim);
    let error = as_mqsim.find_map(Result::err).unwrap().to_string();
    assert!(error.starts_with("line 2") && error.contains("--trace disksim"), "{error}");
}

/// fio 3.33 with each text, one read before and one after each wait, took 901, 1,392, 1,891 and
/// 299 ms, with 100 ms before for its start.
#[test]
fn waits_of_iolog_version_2_are_milliseconds_since_the_start() {
    for (waits, fio_ms) in
        [(&[1000][..], 901), (&[1000, 1500], 1392), (&[2000, 500], 1891), (&[400, 400], 299)]
    {
        let mut text = "fio version 2 iolog\nf add\nf open\nf read 0 512\n".to_owned();
        for wait in waits {
            text += &format!("f wait {wait} 0\nf read 4096 512\n");
        }
        let last = read_all(TraceFormat::Iolog, &text).last().unwrap().at.ns() / 1_000_000;
        assert!(last.abs_diff(fio_ms + 100) < 20, "{waits:?}: {last} ms");
    }
}

/// fio 3.33 with waits of 1000 and 1500 ms, each before a read, took 1,399 ms, with 100 ms before
/// for its start. The times of version 3 count from the first request.
#[test]
fn wait_before_the_first_request_of_iolog_version_2_is_kept() {
    let text = "fio version 2 iolog\nf add\nf open\nf wait 1000 0\nf read 0 512\n\
        f wait 1500 0\nf read 4096 512\n";
    let times: Vec<u64> =
        read_all(TraceFormat::Iolog, text).iter().map(|read| read.at.ns() / 1_000_000).collect();
    assert_eq!(times, [1000, 1500]);
}

/// Two processors' requests at 0, 10, 20 and 5, 15, 25 µs. One after the other, two of the second
/// file are earlier than the last one of the first.
#[test]
fn requests_with_earlier_times_are_noted() {
    let line = |us: u64| format!("0,W,4096,512,{us}\n");
    let note_of = |times: &[u64]| {
        let text: String = times.iter().map(|&us| line(us)).collect();
        let mut reader = TraceReader::new(text.as_bytes(), TraceFormat::Alibaba);
        assert!(reader.by_ref().all(|request| request.is_ok()));
        reader.time_order_note()
    };
    assert_eq!(note_of(&[0, 5, 10, 10, 15, 20, 25]), None);
    let note = note_of(&[0, 10, 20, 5, 15, 25]).unwrap();
    assert!(note.starts_with("2 requests have earlier times"), "{note}");
    assert!(note.contains("blkparse -d"), "{note}");
}

/// Without queued requests (Q), the issued ones (D) count, or else the completed ones (C). A later
/// queued request discards the others. More events than the reader holds back give the same result.
#[test]
fn a_trace_without_queued_requests_is_read_by_other_events() {
    let event = |second: u64, action: &str, sector: u64| {
        format!("8,0 1 1 {second}.0 9 {action} R {sector} + 8 [x]\n")
    };
    let issued = event(1, "D", 8) + &event(2, "C", 8) + &event(3, "D", 16);
    let offsets = |text: &str| {
        let mut reader = TraceReader::new(text.as_bytes(), TraceFormat::Blkparse);
        let found: Vec<u64> = reader.by_ref().map(|request| request.unwrap().offset).collect();
        (found, reader.note())
    };
    let (found, note) = offsets(&issued);
    assert_eq!(found, [4096, 8192]);
    assert!(note.unwrap().contains("issued ones (D)"));
    assert_eq!(offsets(&(issued.clone() + &event(4, "Q", 24))), (vec![12_288], None));
    let (found, _) = offsets(&event(5, "C", 8));
    assert_eq!(found, [4096]);
    let requests = read_all(TraceFormat::Blkparse, &issued);
    assert_eq!(requests[1].at, Time::from_s(2), "the events in between do not count");
    assert_eq!(read_all(TraceFormat::Blkparse, &issued.repeat(40_000)).len(), 80_000);
}

/// MSR with and without column names, with `read` and with `R`, and Alibaba with column names.
#[test]
fn column_headers_and_lower_case_are_accepted() {
    let rows = "128166372003061629,hm,1,read,383496192,32768,413\n";
    for header in ["", "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n"] {
        let text = format!("{header}{rows}");
        assert_eq!(TraceFormat::detect(text.as_bytes()), Some(TraceFormat::Msr), "{text}");
        assert_eq!(read_all(TraceFormat::Msr, &text).len(), 1);
    }
    let alibaba = "device_id,opcode,offset,length,timestamp\n419,W,8192,4096,1577808000000046\n";
    assert_eq!(TraceFormat::detect(alibaba.as_bytes()), Some(TraceFormat::Alibaba));
    assert_eq!(read_all(TraceFormat::Alibaba, alibaba).len(), 1);
    assert_eq!(TraceFormat::detect(b"1,hm,1,R,383496192,32768,413\n"), Some(TraceFormat::Msr));
}

/// Reads of a recording, at the times when they began.
#[test]
fn a_recording_is_a_trace_of_its_reads() {
    use crate::recording::{
        ReadOutcome, ReadRecord, Record, RecordingStart, RecordingWriter, ThreadName,
    };
    let mut writer = RecordingWriter::new(Vec::new()).unwrap();
    let file = |file| Record::File(recording::FileRecord { file, ..Default::default() });
    let read = |file, offset, begin_ns| {
        let (end_ns, outcome) = (begin_ns + 5, ReadOutcome::Bytes(512));
        let asked_bytes = 4096;
        Record::Read(ReadRecord {
            file,
            offset,
            begin_ns,
            end_ns,
            asked_bytes,
            outcome,
            ..ReadRecord::default()
        })
    };
    let records = [
        Record::Start(RecordingStart { page_bytes: 4096, ..RecordingStart::default() }),
        Record::Thread(ThreadName::default()),
        file(3),
        file(4),
        read(3, 100, 1_000),
        read(4, 0, 3_000),
        Record::End(recording::RecordingEnd::default()),
    ];
    records.into_iter().for_each(|record| writer.put(record).unwrap());
    let bytes = writer.finish().unwrap();
    assert_eq!(TraceFormat::detect(&bytes), Some(TraceFormat::Recording));
    let requests: Vec<TraceRequest> =
        TraceReader::new(&bytes[..], TraceFormat::Recording).map(Result::unwrap).collect();
    assert_eq!(requests, [request(0, 0, Op::Read, 100, 512), request(2, 1, Op::Read, 0, 512)]);
}

#[test]
fn bad_requests_are_reported_with_their_line() {
    let error_of = |format, text: &str| {
        TraceReader::new(text.as_bytes(), format).find_map(Result::err).unwrap().to_string()
    };
    let error = error_of(TraceFormat::Mqsim, "1 0 8 8 1\n2 0 x 8 1\n");
    assert!(error.starts_with("line 2: `2 0 x 8 1`: expected"), "{error}");
    let huge = format!("1 0 {} 8 1\n", u64::MAX);
    assert!(error_of(TraceFormat::Mqsim, &huge).starts_with("line 1"), "an offset past 2^64");
    assert!(error_of(TraceFormat::Spc, "0,1,512,X,0.1\n").contains("R or W"));
    assert!(error_of(TraceFormat::Iolog, "fio version 9 iolog\n").contains("2 or 3"));
    let long = error_of(TraceFormat::Msr, &"9".repeat(1 << 20));
    assert!(long.len() < 400, "{}", long.len());
}

/// A trace without queued requests, whose issued ones count at its end. The completion has no
/// request, and each request has its own line.
#[test]
fn held_events_have_their_lines_and_are_not_skipped() {
    let text = "8,0 1 1 0.000000000 9 D R 8 + 8 [p]\n\
                8,0 1 2 0.000001000 0 C R 8 + 8 [0]\n\
                8,0 1 3 0.000002000 9 D R 16 + 8 [p]\n";
    let mut reader = TraceReader::new(text.as_bytes(), TraceFormat::Blkparse);
    let mut offsets_and_lines = Vec::new();
    while let Some(request) = reader.next() {
        offsets_and_lines.push((request.unwrap().offset, reader.line()));
    }
    assert_eq!(offsets_and_lines, [(4096, 1), (8192, 3)]);
    assert_eq!(reader.skipped(), 1);
}
