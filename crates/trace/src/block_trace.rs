//! Traces of block requests in published formats: process or device, byte range and time.
//!
//! | format | a line (or record) |
//! |---|---|
//! | `iolog` | fio's own, versions 2 and 3: `[us] file read\|write offset bytes`; `file wait ms` |
//! | `blkparse` | blkparse's text: `8,0 3 1 0.000000001 697 Q W 223490 + 8 [name]` |
//! | `blktrace` | the records that blktrace writes and `blkparse -d` joins |
//! | `msr` | MSR Cambridge: `100-ns-ticks,host,disk,TraceRead\|Write,offset,bytes,response` |
//! | `mqsim` | MQSim: `ns device sector sectors 0\|1` (1 is a read) |
//! | `disksim` | DiskSim's ASCII: `ms device block blocks flags` (bit 0 of the flags: a read) |
//! | `spc` | Storage Performance Council: `unit,block,bytes,R\|W,s` |
//! | `alibaba` | Alibaba's block traces: `device,R\|W,offset,bytes,us` |
//! | `tencent` | Tencent's block traces: `s,sector,sectors,0\|1,volume` (1 is a write) |
//! | `recording` | a recording of this project ([`crate::recording`]): its reads |
//!
//! Files of comma-separated values may begin with a line of column names.
//!
//! Block traces list a request several times: when it is queued (Q), inserted (I), issued (D) and
//! complete (C). Queued requests count. In a trace without any, D counts, or I without any D, or C
//! alone (`Event`), and [`TraceReader::note`] reports it.
//!
//! Times are counted from the first request. A time that goes backwards is replaced by the time
//! before it, and [`TraceReader::time_order_note`] reports it. In a recording, whose reads are in
//! the order of their ends, it is no error. A trace is read line by line, as bytes, so memory use
//! does not depend on its length. Operations without data (flushes, discards, opening of files) are
//! skipped and counted.

use std::collections::BTreeMap;
use std::io::BufRead;

use readpath_core::request::Op;
use readpath_core::unit::Time;

use crate::TraceError;
use crate::recording;

mod blktrace;
mod chosen;
mod columns;
mod fields;
mod iolog;
mod replay;

use chosen::{Event, EventFilter};

pub(crate) use fields::without_byte_order_mark;
pub use replay::{OPEN_DEPTH, TracePlacement, TraceSummary, simulate_trace, trace_workload};

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// Time relative to the first request.
    pub at: Time,
    /// Device, disk or file, numbered in order of first occurrence.
    pub device: u32,
    /// Read or write.
    pub op: Op,
    /// First byte on the device.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub bytes: u64,
}

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// fio's iolog, version 2 or 3.
    Iolog,
    /// Text of blkparse.
    Blkparse,
    /// Records of blktrace.
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
    /// A recording.
    Recording,
}

/// All formats with their names.
pub const FORMATS: [(&str, TraceFormat); 10] = [
    ("iolog", TraceFormat::Iolog),
    ("blkparse", TraceFormat::Blkparse),
    ("blktrace", TraceFormat::Blktrace),
    ("msr", TraceFormat::Msr),
    ("mqsim", TraceFormat::Mqsim),
    ("disksim", TraceFormat::Disksim),
    ("spc", TraceFormat::Spc),
    ("alibaba", TraceFormat::Alibaba),
    ("tencent", TraceFormat::Tencent),
    ("recording", TraceFormat::Recording),
];

impl TraceFormat {
    /// Returns the format that the first bytes of a file indicate, or `None`. The file can then be
    /// a job file.
    pub fn detect(start: &[u8]) -> Option<TraceFormat> {
        if blktrace::is_start(start) {
            return Some(TraceFormat::Blktrace);
        }
        if start.starts_with(&recording::MAGIC) {
            return Some(TraceFormat::Recording);
        }
        let start = without_byte_order_mark(start);
        let has_data = |line: &&[u8]| {
            let is_blank = line.trim_ascii().is_empty() || line.starts_with(b"#");
            !is_blank && !columns::is_input_file(line)
        };
        let has_format = |line, format| columns::detect_format(line) == Some(format);
        let mut lines = start.split(|byte| *byte == b'\n').filter(has_data);
        let mut line = lines.next()?;
        if columns::is_header(line) {
            line = lines.next()?;
        }
        if line.starts_with(b"fio version") {
            return Some(TraceFormat::Iolog);
        }
        match columns::detect_format(line)? {
            // The first time of DiskSim may be `0`, without decimals.
            TraceFormat::Mqsim if lines.any(|line| has_format(line, TraceFormat::Disksim)) => {
                Some(TraceFormat::Disksim)
            }
            format => Some(format),
        }
    }
}

/// Maximum number of devices, disks or files in a trace. It bounds the table of names. Chosen, not
/// measured.
const DEVICES_MAX: usize = 65_536;

/// Maximum length of a line in bytes, if it is copied out of the source's buffer. It bounds the
/// memory. Chosen.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Iterator over the requests of a trace.
pub struct TraceReader<R> {
    /// Bytes of the trace, or a reader of a recording.
    source: Source<R>,
    /// Format of the trace.
    format: TraceFormat,
    /// A line that crosses the end of the source's buffer, or the data after a record.
    line: Vec<u8>,
    /// Bytes of the source's buffer that have been processed and not yet consumed.
    read_bytes: usize,
    /// Number of the last line or record.
    line_number: u64,
    /// Number of the line or record of the last request. 0 before the first one.
    request_line: u64,
    /// Version and time of an iolog; unused in other formats.
    iolog: iolog::IologState,
    /// Choice of the event that represents a request.
    event_filter: EventFilter,
    /// Device numbers, and the time that counts as 0.
    origin: TraceOrigin,
    /// Number of lines or records without data, or with an event that does not count, or not yet.
    skipped: u64,
    /// True once an error was returned, which ends the iteration.
    has_failed: bool,
}

/// Input of the requests.
enum Source<R> {
    /// Lines, or blktrace's records.
    Plain(R),
    /// A recording of this project, with its own reader.
    Recording(Box<recording::RecordingReader<R>>),
    /// The head of a recording failed with this error, which the first read returns.
    NotRecording(TraceError),
}

/// State since the start of a trace: device numbers and time.
#[derive(Default)]
struct TraceOrigin {
    /// Number of each device, by its name in the trace.
    devices: BTreeMap<Vec<u8>, u32>,
    /// Device of the last request, which is usually the next one's too.
    newest_device: Option<(Vec<u8>, u32)>,
    /// Time of the first request, in the trace's time base. In an iolog of version 2 the start.
    first_time: Option<Time>,
    /// Latest time so far, in the trace's time base.
    latest_time: Time,
    /// Number of requests that are earlier than the latest time before them.
    earlier_requests: u64,
}

/// A request with the time and device name of the trace.
struct RawRequest<'a> {
    /// Time in the trace's time base.
    at: Time,
    /// Name of the device in the trace.
    device: &'a [u8],
    /// Read or write.
    op: Op,
    /// First byte on the device.
    offset: u64,
    /// Length in bytes.
    bytes: u64,
    /// Event of the request. [`Event::Queued`] if the format has only one event for each.
    event: Event,
}

/// Content of a line.
enum TraceLine<'a> {
    /// One event of a request. [`EventFilter`] decides whether it counts.
    Request(RawRequest<'a>),
    /// The line transfers no data.
    Nothing,
}

impl<R: BufRead> TraceReader<R> {
    /// Creates a reader of `source`, a trace in this `format`. A malformed head of a recording is
    /// reported by the first read.
    pub fn new(source: R, format: TraceFormat) -> TraceReader<R> {
        let source = match format {
            TraceFormat::Recording => match recording::RecordingReader::new(source) {
                Ok(reader) => Source::Recording(Box::new(reader)),
                Err(error) => Source::NotRecording(error),
            },
            _ => Source::Plain(source),
        };
        TraceReader {
            source,
            format,
            line: Vec::new(),
            read_bytes: 0,
            line_number: 0,
            request_line: 0,
            iolog: iolog::IologState::default(),
            event_filter: EventFilter::default(),
            origin: TraceOrigin::default(),
            skipped: 0,
            has_failed: false,
        }
    }

    /// Returns a note for the results: the event that replaced queued requests. `None` if queued
    /// requests count, or before the choice.
    pub fn note(&self) -> Option<&'static str> {
        self.event_filter.note()
    }

    /// Returns a note with the number of syncs and trims so far, which are no requests. `None`
    /// without any.
    pub fn left_out_note(&self) -> Option<String> {
        self.iolog.left_out_note()
    }

    /// Returns a note with the number of requests so far that are earlier than one before them.
    /// `None` without any, and for a recording.
    pub fn time_order_note(&self) -> Option<String> {
        let count = self.origin.earlier_requests;
        (count > 0 && self.format != TraceFormat::Recording).then(|| {
            format!(
                "{count} requests have earlier times than one before them, and a replay starts \
                 them with it: sort the trace by time (files of blktrace: `blkparse -d`)"
            )
        })
    }

    /// Number of lines or records so far without data, or with an event that does not count. An
    /// event that is held back counts as skipped until it has become a request.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Number of the line or record of the last request, from 1. 0 before the first request.
    pub fn line(&self) -> u64 {
        self.request_line
    }

    /// Returns the next request, or `None` at the end. Lines, records or (in a recording) reads
    /// without data are counted as skipped, and so are events that do not count, or not yet. Fails
    /// at a line or record that cannot be read or has another form.
    fn read_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        loop {
            // Events held back until the choice come first: they are older than the next line.
            if let Some(held_event) = self.event_filter.next_held() {
                self.request_line = held_event.line;
                self.skipped -= 1;
                let raw = held_event.as_raw_request();
                return self.origin.convert_request(raw, held_event.line).map(Some);
            }
            // The end of the trace may turn held events into requests, which the loop then returns.
            let request = match self.format {
                TraceFormat::Blktrace => self.read_record()?,
                TraceFormat::Recording => self.read_recorded_read()?,
                _ => self.read_line()?,
            };
            match request {
                TraceRead::Request(request) => {
                    self.request_line = self.line_number;
                    return Ok(Some(request));
                }
                TraceRead::Nothing => self.skipped += 1,
                TraceRead::Blank => {}
                TraceRead::End if self.event_filter.choose_event() => {}
                TraceRead::End => return Ok(None),
            }
        }
    }

    /// Reads the next record of blktrace. An event that does not represent its request, or may yet
    /// be chosen to, counts as [`TraceRead::Nothing`].
    ///
    /// # Errors
    /// The record is malformed or cut off.
    fn read_record(&mut self) -> Result<TraceRead, TraceError> {
        let Source::Plain(source) = &mut self.source else {
            unreachable!("the format of a recording has a reader of its own");
        };
        let record = blktrace::read_next(source, &mut self.line).map_err(TraceError::unread)?;
        self.line_number += 1;
        Ok(match record {
            blktrace::BlktraceRecord::End => TraceRead::End,
            blktrace::BlktraceRecord::Bad => {
                let number = self.line_number;
                return Err(TraceError::unexpected(number, "a record", blktrace::EXPECTED));
            }
            blktrace::BlktraceRecord::Nothing => TraceRead::Nothing,
            blktrace::BlktraceRecord::Request { at, device, op, offset, bytes, event } => {
                let raw =
                    RawRequest { at, device: &device.to_le_bytes(), op, offset, bytes, event };
                match self.event_filter.accept_or_hold(&raw, self.line_number) {
                    true => TraceRead::Request(self.origin.convert_request(raw, self.line_number)?),
                    false => TraceRead::Nothing,
                }
            }
        })
    }

    /// Reads the next record of a recording. A read that returned bytes becomes a request at its
    /// start time. Any other read counts as skipped, and other records as blank.
    ///
    /// # Errors
    /// The record is damaged, or its time or offset is too large.
    fn read_recorded_read(&mut self) -> Result<TraceRead, TraceError> {
        let record = match &mut self.source {
            Source::Recording(reader) => reader.next(),
            Source::NotRecording(error) => Some(Err(error.clone())),
            Source::Plain(_) => unreachable!("the source of a recording is never plain"),
        };
        self.line_number += 1;
        let read = match record {
            None => return Ok(TraceRead::End),
            Some(Err(error)) => return Err(error),
            Some(Ok(recording::Record::Read(read))) if read.bytes_read() > 0 => read,
            Some(Ok(recording::Record::Read(_))) => return Ok(TraceRead::Nothing),
            Some(Ok(_)) => return Ok(TraceRead::Blank),
        };
        let range = fields::checked_range(read.offset, read.bytes_read());
        let (Some((offset, bytes)), Some(at)) = (range, fields::checked_time(read.begin_ns)) else {
            let expected = columns::expected_form(self.format);
            return Err(TraceError::unexpected(self.line_number, &format!("{read:?}"), expected));
        };
        // The number of the file stands for the device's name.
        let device = read.file.to_le_bytes();
        // A recording has one record for each read: no other event precedes it.
        let event = Event::Queued;
        let raw = RawRequest { at, device: &device, op: Op::Read, offset, bytes, event };
        self.origin.convert_request(raw, self.line_number).map(TraceRead::Request)
    }

    /// Reads the next line, in the source's buffer if it contains the whole line. A line that
    /// crosses the end of the buffer is copied, up to `LINE_BYTES_MAX` bytes: its rest counts as
    /// the next line. A line of another form is an error.
    fn read_line(&mut self) -> Result<TraceRead, TraceError> {
        let Source::Plain(source) = &mut self.source else {
            unreachable!("the format of a recording has a reader of its own");
        };
        // The last line stayed in the buffer while it was in use.
        source.consume(std::mem::take(&mut self.read_bytes));
        let buffer = source.fill_buf().map_err(TraceError::unread)?;
        let line = match fields::line_end(buffer) {
            Some(end) => {
                self.read_bytes = end + 1;
                &buffer[..end]
            }
            None => {
                self.line.clear();
                let mut limited = std::io::Read::take(source, LINE_BYTES_MAX);
                if limited.read_until(b'\n', &mut self.line).map_err(TraceError::unread)? == 0 {
                    return Ok(TraceRead::End);
                }
                // The copy has consumed the line, so `read_bytes` stays 0.
                &self.line[..]
            }
        };
        self.line_number += 1;
        let line = match self.line_number {
            1 => without_byte_order_mark(line),
            _ => line,
        };
        let text = line.trim_ascii();
        let is_blank = text.is_empty() || text.starts_with(b"#");
        if is_blank || (self.origin.is_empty() && columns::is_header(text)) {
            return Ok(TraceRead::Blank);
        }
        let line = match self.format {
            TraceFormat::Iolog => self.iolog.parse_line(text),
            format => columns::parse_line(format, text),
        };
        match line {
            Some(TraceLine::Request(raw)) => {
                if self.format == TraceFormat::Iolog && self.iolog.counts_from_start() {
                    self.origin.first_time.get_or_insert(Time::ZERO);
                }
                match self.event_filter.accept_or_hold(&raw, self.line_number) {
                    true => {
                        self.origin.convert_request(raw, self.line_number).map(TraceRead::Request)
                    }
                    false => Ok(TraceRead::Nothing),
                }
            }
            Some(TraceLine::Nothing) => Ok(TraceRead::Nothing),
            None => {
                let (line, expected) = (self.line_number, columns::expected_form(self.format));
                Err(TraceError::unexpected(line, &String::from_utf8_lossy(text), expected))
            }
        }
    }
}

/// Result of reading a line or a record of the trace.
enum TraceRead {
    /// A request to return.
    Request(TraceRequest),
    /// The line or record transfers no data, or its event does not count (yet): it is skipped.
    Nothing,
    /// An empty line, a comment, column names, or a record that is no read. It is not counted.
    Blank,
    /// The end of the trace.
    End,
}

impl TraceOrigin {
    /// Returns true before the first request.
    fn is_empty(&self) -> bool {
        self.first_time.is_none()
    }

    /// Converts a request to the time since the first request and to a device number. Times never
    /// decrease: a request with an earlier time than the one before gets the time of that one.
    /// `line` is for errors.
    fn convert_request(
        &mut self,
        raw: RawRequest<'_>,
        line: u64,
    ) -> Result<TraceRequest, TraceError> {
        let device = match &self.newest_device {
            Some((name, number)) if name == raw.device => *number,
            _ => self.device_number(raw.device, line)?,
        };
        let first_time = *self.first_time.get_or_insert(raw.at);
        self.earlier_requests += u64::from(raw.at < self.latest_time);
        self.latest_time = self.latest_time.max(raw.at);
        let at = self.latest_time.since(first_time);
        Ok(TraceRequest { at, device, op: raw.op, offset: raw.offset, bytes: raw.bytes })
    }

    /// Returns the number of a device. A new name gets the next number. `line` is for errors.
    fn device_number(&mut self, name: &[u8], line: u64) -> Result<u32, TraceError> {
        let count = self.devices.len();
        let number = match self.devices.get(name) {
            Some(number) => *number,
            None if count == DEVICES_MAX => {
                let reason = format!("more than {DEVICES_MAX} devices; cut the trace into parts");
                return Err(TraceError::line(line, reason));
            }
            None => *self.devices.entry(name.to_owned()).or_insert(count as u32),
        };
        let (newest_name, newest_number) = self.newest_device.get_or_insert_default();
        newest_name.clear();
        newest_name.extend_from_slice(name);
        *newest_number = number;
        Ok(number)
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<TraceRequest, TraceError>;

    /// Returns the next request, or `None` at the end and after an error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let read = self.read_request().transpose();
        self.has_failed = matches!(read, Some(Err(_)));
        read
    }
}

#[cfg(test)]
mod tests;
