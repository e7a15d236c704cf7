//! Traces of block requests, as they are in the world: who asked for which bytes, and when.
//!
//! | format | a line (or record) |
//! |---|---|
//! | `iolog` | fio's own, versions 2 and 3: `[us] file read\|write offset bytes`; `wait us` |
//! | `blkparse` | blkparse's text: `8,0 3 1 0.000000001 697 Q W 223490 + 8 [name]` |
//! | `blktrace` | the records that blktrace writes and `blkparse -d` joins |
//! | `msr` | MSR Cambridge: `100-ns-ticks,host,disk,TraceRead\|Write,offset,bytes,response` |
//! | `mqsim` | MQSim: `ns device sector sectors 0\|1` (1 is a read) |
//! | `disksim` | DiskSim's ASCII: `ms device block blocks flags` (bit 0 of the flags: a read) |
//! | `spc` | Storage Performance Council: `unit,block,bytes,R\|W,s` |
//! | `alibaba` | Alibaba's block traces: `device,R\|W,offset,bytes,us` |
//! | `tencent` | Tencent's block traces: `s,sector,sectors,0\|1,volume` (1 is a write) |
//!
//! Times are counted from the first request; one that goes backwards counts as the time before it.
//! A trace is read line by line, as bytes, so that its length costs no memory. What moves no data (flushes,
//! discards, opening of files) is passed over and counted.

use std::collections::BTreeMap;
use std::fmt;
use std::io::BufRead;

use readpath_core::request::Op;
use readpath_core::unit::Time;

use crate::job::shown;

mod blktrace;
mod columns;
mod fields;
mod iolog;
mod replay;

pub use replay::{OPEN_DEPTH, TracePlacement, TraceSummary, simulate_trace};

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// When it was made, counted from the first.
    pub at: Time,
    /// Of which device, disk or file: their number in the order in which they first appear.
    pub device: u32,
    /// Read or write.
    pub op: Op,
    /// Its first byte on the device.
    pub offset: u64,
    /// How many bytes; at least 1.
    pub bytes: u64,
}

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// fio's iolog, version 2 or 3.
    Iolog,
    /// blkparse's text.
    Blkparse,
    /// blktrace's records.
    Blktrace,
    /// MSR Cambridge.
    Msr,
    /// MQSim.
    Mqsim,
    /// DiskSim's ASCII.
    Disksim,
    /// Storage Performance Council.
    Spc,
    /// Alibaba's block traces.
    Alibaba,
    /// Tencent's block traces.
    Tencent,
}

/// The formats by name.
pub const FORMATS: [(&str, TraceFormat); 9] = [
    ("iolog", TraceFormat::Iolog),
    ("blkparse", TraceFormat::Blkparse),
    ("blktrace", TraceFormat::Blktrace),
    ("msr", TraceFormat::Msr),
    ("mqsim", TraceFormat::Mqsim),
    ("disksim", TraceFormat::Disksim),
    ("spc", TraceFormat::Spc),
    ("alibaba", TraceFormat::Alibaba),
    ("tencent", TraceFormat::Tencent),
];

impl TraceFormat {
    /// The format that the first bytes of a file speak for; `None`: they speak for none, and
    /// perhaps for a job file.
    pub fn detect(start: &[u8]) -> Option<TraceFormat> {
        if blktrace::is_start(start) {
            return Some(TraceFormat::Blktrace);
        }
        let is_said = |line: &&[u8]| !line.trim_ascii().is_empty() && !line.starts_with(b"#");
        let line = start.split(|byte| *byte == b'\n').find(is_said)?;
        if line.starts_with(b"fio version") {
            return Some(TraceFormat::Iolog);
        }
        columns::detect(line)
    }
}

/// What is wrong with a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceError {
    /// A line, or a record, is none of the format.
    Bad {
        /// Its number, from 1.
        line: u64,
        /// What stands there.
        text: String,
        /// What is expected.
        expected: &'static str,
    },
    /// It can't be read.
    Unread {
        /// Why not.
        because: String,
    },
    /// There is no request in it.
    Empty,
    /// More devices than are told apart.
    TooManyDevices {
        /// The line.
        line: u64,
    },
}

/// The most devices, disks or files of one trace.
const DEVICES_MAX: usize = 65_536;

/// The longest line.
const LINE_BYTES_MAX: u64 = 64 << 10;

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::Bad { line, text, expected } => {
                write!(f, "line {line}: `{}`: expected {expected}", shown(text))
            }
            TraceError::Unread { because } => f.write_str(because),
            TraceError::Empty => f.write_str("there is no request in the trace"),
            TraceError::TooManyDevices { line } => {
                write!(f, "line {line}: more than {DEVICES_MAX} devices; cut the trace into parts")
            }
        }
    }
}

impl std::error::Error for TraceError {}

/// Reads the requests of a trace, one after the other.
pub struct TraceReader<R> {
    source: R,
    format: TraceFormat,
    /// A line that does not stand in the source's buffer whole, or what stands behind a record.
    line: Vec<u8>,
    /// Bytes of the source's buffer that were read and are still in it.
    read_bytes: usize,
    number: u64,
    iolog: iolog::IologState,
    counted: TraceOrigin,
    skipped: u64,
    has_failed: bool,
}

/// What is counted from the start of a trace on: devices in the order in which they appear, and the time.
#[derive(Default)]
struct TraceOrigin {
    devices: BTreeMap<Vec<u8>, u32>,
    /// The device of the last request, which is the next one's as a rule.
    newest: Option<(Vec<u8>, u32)>,
    /// The time of the first request, and the latest so far, in the trace's own count.
    first: Option<Time>,
    latest: Time,
}

/// A request with the time and the device as they stand in the trace.
struct RawRequest<'a> {
    at: Time,
    device: &'a [u8],
    op: Op,
    offset: u64,
    bytes: u64,
}

/// What a line is.
enum TraceLine<'a> {
    Request(RawRequest<'a>),
    /// It moves no data.
    Nothing,
}

impl<R: BufRead> TraceReader<R> {
    /// Reads `source` in this format.
    pub fn new(source: R, format: TraceFormat) -> TraceReader<R> {
        TraceReader {
            source,
            format,
            line: Vec::new(),
            read_bytes: 0,
            number: 0,
            iolog: iolog::IologState::default(),
            counted: TraceOrigin::default(),
            skipped: 0,
            has_failed: false,
        }
    }

    /// How many lines moved no data so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The number of the line, or record, that was read last, from 1.
    pub fn line(&self) -> u64 {
        self.number
    }

    fn read(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        loop {
            let request = match self.format {
                TraceFormat::Blktrace => self.read_record()?,
                _ => self.read_line()?,
            };
            match request {
                TraceRead::Request(request) => return Ok(Some(request)),
                TraceRead::Nothing => self.skipped += 1,
                TraceRead::Blank => {}
                TraceRead::End => return Ok(None),
            }
        }
    }

    fn read_record(&mut self) -> Result<TraceRead, TraceError> {
        let record = blktrace::next(&mut self.source, &mut self.line).map_err(unread)?;
        self.number += 1;
        Ok(match record {
            blktrace::BlktraceRecord::End => TraceRead::End,
            blktrace::BlktraceRecord::Bad => {
                let (text, expected) = ("a record".to_owned(), blktrace::EXPECTED);
                return Err(TraceError::Bad { line: self.number, text, expected });
            }
            blktrace::BlktraceRecord::Nothing => TraceRead::Nothing,
            blktrace::BlktraceRecord::Request { at, device, op, offset, bytes } => {
                let raw = RawRequest { at, device: &device.to_le_bytes(), op, offset, bytes };
                TraceRead::Request(self.counted.request(raw, self.number)?)
            }
        })
    }

    /// Reads a line where it stands in the source's buffer; one that does not end there is put together.
    fn read_line(&mut self) -> Result<TraceRead, TraceError> {
        self.source.consume(std::mem::take(&mut self.read_bytes));
        let buffer = self.source.fill_buf().map_err(unread)?;
        let line = match fields::line_end(buffer) {
            Some(end) => {
                self.read_bytes = end + 1;
                &buffer[..end]
            }
            None => {
                self.line.clear();
                let mut limited = std::io::Read::take(&mut self.source, LINE_BYTES_MAX);
                if limited.read_until(b'\n', &mut self.line).map_err(unread)? == 0 {
                    return Ok(TraceRead::End);
                }
                &self.line[..]
            }
        };
        self.number += 1;
        let text = line.trim_ascii();
        if text.is_empty() || text.starts_with(b"#") {
            return Ok(TraceRead::Blank);
        }
        let line = match self.format {
            TraceFormat::Iolog => self.iolog.line(text),
            format => columns::line(format, text),
        };
        match line {
            Some(TraceLine::Request(raw)) => {
                self.counted.request(raw, self.number).map(TraceRead::Request)
            }
            Some(TraceLine::Nothing) => Ok(TraceRead::Nothing),
            None => {
                let (line, expected) = (self.number, columns::expected(self.format));
                let text = shown(&String::from_utf8_lossy(text));
                Err(TraceError::Bad { line, text, expected })
            }
        }
    }
}

/// What was read.
enum TraceRead {
    Request(TraceRequest),
    /// It moves no data.
    Nothing,
    /// An empty line, or a remark.
    Blank,
    /// There is no more.
    End,
}

fn unread(error: std::io::Error) -> TraceError {
    TraceError::Unread { because: error.to_string() }
}

impl TraceOrigin {
    /// The request with the time since the first, and the number of its device; it stands in this line.
    fn request(&mut self, raw: RawRequest<'_>, line: u64) -> Result<TraceRequest, TraceError> {
        let device = match &self.newest {
            Some((name, number)) if name == raw.device => *number,
            _ => self.device(raw.device, line)?,
        };
        let first = *self.first.get_or_insert(raw.at);
        self.latest = self.latest.max(raw.at);
        let at = self.latest.since(first);
        Ok(TraceRequest { at, device, op: raw.op, offset: raw.offset, bytes: raw.bytes })
    }

    fn device(&mut self, name: &[u8], line: u64) -> Result<u32, TraceError> {
        let count = self.devices.len();
        let number = match self.devices.get(name) {
            Some(number) => *number,
            None if count == DEVICES_MAX => return Err(TraceError::TooManyDevices { line }),
            None => *self.devices.entry(name.to_owned()).or_insert(count as u32),
        };
        let (newest, its_number) = self.newest.get_or_insert_default();
        newest.clear();
        newest.extend_from_slice(name);
        *its_number = number;
        Ok(number)
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let read = self.read().transpose();
        self.has_failed = matches!(read, Some(Err(_)));
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(format: TraceFormat, text: &str) -> Vec<TraceRequest> {
        TraceReader::new(text.as_bytes(), format).map(Result::unwrap).collect()
    }

    fn one(us: u64, device: u32, op: Op, offset: u64, bytes: u64) -> TraceRequest {
        TraceRequest { at: Time::from_us(us), device, op, offset, bytes }
    }

    /// Lines as the projects that made the formats publish them; numbers worked out by hand.
    #[test]
    fn each_format_is_read() {
        let cases = [
            (
                TraceFormat::Msr,
                "128166372003061629,hm,1,Read,383496192,32768,413\n\
                 128166372003061639,hm,1,Write,4096,512,13\n",
                [one(0, 0, Op::Read, 383_496_192, 32_768), one(1, 0, Op::Write, 4096, 512)],
            ),
            (
                TraceFormat::Mqsim,
                "938513000 4 264719034 16 0\n938828000 3 8 16 1\n",
                [one(0, 0, Op::Write, 264_719_034 * 512, 8192), one(315, 1, Op::Read, 4096, 8192)],
            ),
            (
                TraceFormat::Disksim,
                "0.500000 0 100 8 1\n0.750000 1 16 8 0\n",
                [one(0, 0, Op::Read, 51_200, 4096), one(250, 1, Op::Write, 8192, 4096)],
            ),
            (
                TraceFormat::Spc,
                "0,20941264,8192,W,0.551706\n1,8,1024,r,0.551806,1\n",
                [one(0, 0, Op::Write, 20_941_264 * 512, 8192), one(100, 1, Op::Read, 4096, 1024)],
            ),
            (
                TraceFormat::Alibaba,
                "419,W,8192,4096,1577808000000046\n725,R,0,512,1577808000000100\n",
                [one(0, 0, Op::Write, 8192, 4096), one(54, 1, Op::Read, 0, 512)],
            ),
            (
                TraceFormat::Tencent,
                "1538323200,12910952,128,0,1063\n1538323201,8,8,1,1071\n",
                [
                    one(0, 0, Op::Read, 12_910_952 * 512, 65_536),
                    one(1_000_000, 1, Op::Write, 4096, 4096),
                ],
            ),
            (
                TraceFormat::Blkparse,
                "  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]\n\
                 8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]\n\
                 8,16   1        3     0.000015000   697  Q  RA 8 + 16 [dd]\n\
                 CPU0 (sda):\n Reads Queued: 0, 0KiB\n",
                [one(0, 0, Op::Write, 223_490 * 512, 4096), one(15, 1, Op::Read, 4096, 8192)],
            ),
            (
                TraceFormat::Iolog,
                "fio version 2 iolog\na add\na open\na read 4096 512\na wait 30\nb write 0 1024\na close\n",
                [one(0, 0, Op::Read, 4096, 512), one(30, 1, Op::Write, 0, 1024)],
            ),
            (
                TraceFormat::Iolog,
                "fio version 3 iolog\n0 a add\n0 a open\n2000 a read 4096 512\n5000 b write 0 1024\n5000 a sync 0 0\n",
                [one(0, 0, Op::Read, 4096, 512), one(3_000, 1, Op::Write, 0, 1024)],
            ),
        ];
        for (format, text, requests) in cases {
            assert_eq!(all(format, text), requests, "{format:?}");
            assert_eq!(TraceFormat::detect(text.as_bytes()), Some(format), "{text}");
        }
        assert_eq!(TraceFormat::detect(b"[job]\nrw=read\n"), None);
        assert_eq!(TraceFormat::detect(b"; a comment\n[job]\n"), None);
    }

    /// A record as `linux/blktrace_api.h` lays it out, in both orders of bytes.
    #[test]
    fn records_are_read_in_both_orders_of_bytes() {
        for is_little in [true, false] {
            let mut bytes: Vec<u8> = Vec::new();
            let mut put = |number: u64, width: usize| match is_little {
                true => bytes.extend(&number.to_le_bytes()[..width]),
                false => bytes.extend(&number.to_be_bytes()[8 - width..]),
            };
            // (time, sector, bytes, action: queued reads and writes; a completion)
            for (time, sector, length, action) in [
                (1_000, 8, 4096, 0x0011_0001),
                (5_000, 16, 512, 0x0012_0001),
                (6_000, 16, 512, 0x0082_0008),
            ] {
                put(0x6561_7407, 4);
                put(1, 4);
                put(time, 8);
                put(sector, 8);
                put(length, 4);
                put(action, 4);
                (0..3).for_each(|_| put(7, 4));
                put(0, 2);
                put(3, 2);
                put(0, 3);
            }
            assert_eq!(TraceFormat::detect(&bytes), Some(TraceFormat::Blktrace));
            let mut reader = TraceReader::new(&bytes[..], TraceFormat::Blktrace);
            let requests: Vec<TraceRequest> = reader.by_ref().map(Result::unwrap).collect();
            assert_eq!(
                requests,
                [one(0, 0, Op::Read, 4096, 4096), one(4, 0, Op::Write, 8192, 512)]
            );
            assert_eq!(reader.skipped(), 1);
            let cut = TraceReader::new(&bytes[..60], TraceFormat::Blktrace).last().unwrap();
            assert!(cut.is_err(), "a record is cut off");
        }
    }

    #[test]
    fn what_is_no_request_is_told_with_its_line() {
        let told = |format, text: &str| {
            TraceReader::new(text.as_bytes(), format).find_map(Result::err).unwrap().to_string()
        };
        let error = told(TraceFormat::Mqsim, "1 0 8 8 1\n2 0 x 8 1\n");
        assert!(error.starts_with("line 2: `2 0 x 8 1`: expected"), "{error}");
        let huge = format!("1 0 {} 8 1\n", u64::MAX);
        assert!(told(TraceFormat::Mqsim, &huge).starts_with("line 1"), "an offset past 2^64");
        assert!(told(TraceFormat::Spc, "0,1,512,X,0.1\n").contains("R or W"));
        assert!(told(TraceFormat::Iolog, "fio version 9 iolog\n").contains("2 or 3"));
        let long = told(TraceFormat::Msr, &"9".repeat(1 << 20));
        assert!(long.len() < 400, "{}", long.len());
    }
}
