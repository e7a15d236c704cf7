//! Recordings of real programs with the times of a modelled drive.
//!
//! The pages that the kernel fetches for a program do not depend on the speed of the disk, and the
//! waits do. Here a drive serves one request after the other, and a read waits until the requests
//! for its pages are done. So the findings are equal on every machine with the same readahead
//! window.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use readpath_record::explain::{Explainer, Explanation};
use readpath_trace::recording::{
    PagesInserted, ReadMethod, ReadRecord, Record, RecordingReader, RequestRecord,
};

/// Time of a request and of a byte, in nanoseconds: 60 µs and 1 GB/s.
const REQUEST_NS: u64 = 60_000;
const BYTE_NS: u64 = 1;

/// Time of a request to the slow file.
const SLOW_REQUEST_NS: u64 = 100_000_000;

/// Time of a read without a wait, and time between two reads.
const CALL_NS: u64 = 1000;

const PAGE_BYTES: u64 = 4096;

/// Explains the recording at `path` with the times of the drive. The file at `slow` is on a slow
/// one.
pub fn explained(path: &Path, slow: &Path) -> Explanation {
    let file = BufReader::new(File::open(path).unwrap());
    let mut times = Times::new(slow);
    let mut explainer = Explainer::default();
    for record in RecordingReader::new(file).unwrap() {
        times.replace(record.unwrap()).iter().for_each(|record| explainer.take(record));
    }
    explainer.finish()
}

/// A request to the drive that may still be in progress.
struct Request {
    file: u32,
    offset: u64,
    record: RequestRecord,
}

impl Request {
    fn is_of(&self, file: u32, first: u64, end: u64) -> bool {
        self.file == file && self.offset < end && self.offset + self.record.bytes > first
    }
}

/// Replaces the times of records. One read follows the other.
struct Times<'a> {
    slow: &'a Path,
    slow_file: Option<u32>,
    /// Device of each file.
    devices: HashMap<u32, u64>,
    now_ns: u64,
    /// End of the last request to the drive.
    done_ns: u64,
    requests: Vec<Request>,
    /// Pages inserted by each thread since its last read.
    inserted: HashMap<u32, Vec<PagesInserted>>,
    /// Files and descriptors opened with direct I/O.
    direct: HashSet<(u32, u64)>,
}

impl Times<'_> {
    fn new(slow: &Path) -> Times<'_> {
        Times {
            slow,
            slow_file: None,
            devices: HashMap::new(),
            now_ns: 0,
            done_ns: 0,
            requests: Vec::new(),
            inserted: HashMap::new(),
            direct: HashSet::new(),
        }
    }

    /// Returns the records that replace a record.
    fn replace(&mut self, mut record: Record) -> Vec<Record> {
        match &mut record {
            Record::File(file) => {
                self.devices.insert(file.file, file.device);
                if Path::new(&file.path) == self.slow {
                    self.slow_file = Some(file.file);
                }
            }
            Record::Open(open) => {
                open.at_ns = self.now_ns;
                let opened = (open.file, open.descriptor);
                match open.is_direct {
                    true => self.direct.insert(opened),
                    false => self.direct.remove(&opened),
                };
            }
            Record::Advice(advice) => advice.at_ns = self.now_ns,
            Record::Map(map) => map.at_ns = self.now_ns,
            Record::Mapped(mapped) => mapped.at_ns = self.now_ns,
            Record::End(end) => end.at_ns = self.now_ns,
            Record::Insert(insert) => {
                self.inserted.entry(insert.thread).or_default().push(insert.clone());
                return Vec::new();
            }
            Record::Read(read) => return self.read(read.clone()),
            Record::Request(_) | Record::Evict(_) => return Vec::new(),
            _ => {}
        }
        vec![record]
    }

    fn read(&mut self, read: ReadRecord) -> Vec<Record> {
        let begin_ns = self.now_ns + CALL_NS;
        let inserted = self.inserted.remove(&read.thread).unwrap_or_default();
        self.request(&read, begin_ns, &inserted);
        let waited_ns = self.wait_ns(&read, begin_ns);
        let end_ns = begin_ns + CALL_NS + waited_ns;
        self.now_ns = end_ns;
        let done = self.requests.extract_if(.., |request| request.record.end_ns <= end_ns);
        let mut records: Vec<Record> = done.map(|done| Record::Request(done.record)).collect();
        for insert in inserted {
            let is_during = insert.at_ns >= read.begin_ns;
            let at_ns = if is_during { begin_ns } else { begin_ns - 1 };
            records.push(Record::Insert(PagesInserted { at_ns, ..insert }));
        }
        records.push(Record::Read(ReadRecord { begin_ns, end_ns, waited_ns, ..read }));
        records
    }

    /// Sends the requests of a read: its inserted pages, or the bytes of a direct read.
    fn request(&mut self, read: &ReadRecord, begin_ns: u64, inserted: &[PagesInserted]) {
        let mut ranges: Vec<(u32, u64, u64)> =
            inserted.iter().map(|it| (it.file, it.offset, it.bytes)).collect();
        if self.direct.contains(&(read.file, read.descriptor.unwrap_or(u64::MAX))) {
            ranges.push((read.file, read.offset, read.bytes_read()));
        }
        for (file, offset, bytes) in ranges {
            let is_slow = self.slow_file == Some(file);
            let request_ns = if is_slow { SLOW_REQUEST_NS } else { REQUEST_NS };
            self.done_ns = self.done_ns.max(begin_ns) + request_ns + bytes * BYTE_NS;
            let record = RequestRecord {
                begin_ns,
                end_ns: self.done_ns,
                thread: Some(u64::from(read.thread)),
                device: self.devices[&file],
                bytes,
                ..RequestRecord::default()
            };
            self.requests.push(Request { file, offset, record });
        }
    }

    /// Time until all requests for the read's pages are done.
    fn wait_ns(&self, read: &ReadRecord, begin_ns: u64) -> u64 {
        let first = read.offset / PAGE_BYTES * PAGE_BYTES;
        let end = match read.way {
            ReadMethod::Fault => first + PAGE_BYTES,
            _ => read.offset + read.asked_bytes,
        };
        let ours = self.requests.iter().filter(|request| request.is_of(read.file, first, end));
        let done_ns = ours.map(|request| request.record.end_ns).max();
        done_ns.map_or(0, |done_ns| done_ns.saturating_sub(begin_ns))
    }
}
