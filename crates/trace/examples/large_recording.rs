//! Writes a recording with EVENTS events to standard output, as input of `bench/streaming.py`:
//!
//! ```text
//! cargo run -p readpath-trace --example large_recording -- EVENTS FILES SEED > large.rec
//! ```
//!
//! Eight threads open files and read each in order or at random positions. They wait for data that
//! is not cached. Some reads coincide with a write to the device. One file in a thousand has a
//! gigabyte, the others 64 KiB. FILES is at least 1. All shares, counts and durations are chosen.

use std::io::{self, BufWriter, Write};

use readpath_core::splitmix;
use readpath_trace::recording::{
    DeviceOperation, DeviceRecord, FileRecord, OpenRecord, PagesEvicted, PagesInserted, ReadMethod,
    ReadOutcome, ReadRecord, Record, RecordingEnd, RecordingStart, RecordingWriter, RequestRecord,
    ThreadName,
};

/// Number of threads that read.
const THREADS: u64 = 8;
/// Device number of the disk.
const DEVICE: u64 = 8 << 20;
const SMALL_BYTES: u64 = 64 << 10;
const LARGE_BYTES: u64 = 1 << 30;
const PAGE: u64 = 4096;

fn main() -> io::Result<()> {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let &[events, files, seed] = numbers.as_slice() else {
        return Err(io::Error::other("give the numbers of events and of files, and a seed"));
    };
    let mut recording = RecordingWriterState {
        writer: RecordingWriter::new(BufWriter::new(io::stdout().lock()))?,
        events: 0,
        now_ns: 0,
    };
    recording.begin(seed)?;
    let mut state = seed;
    let mut draw = |below: u64| {
        state = state.wrapping_add(splitmix::STEP);
        splitmix::mixed(state) % below
    };
    let mut named = 0;
    while recording.events < events {
        let thread = draw(THREADS) as u32;
        // New files appear throughout the recording.
        let file = match named * events <= recording.events * files && named < files {
            true => {
                recording.name(named as u32, thread)?;
                named += 1;
                named - 1
            }
            false => draw(named),
        };
        let pages = length(file) / PAGE;
        let (first, is_in_order) = (draw(pages), draw(2) == 0);
        // Eight reads of the file: one in four waits, and one in 64 coincides with a write.
        for nth in 0..8 {
            let page = if is_in_order { (first + nth) % pages } else { draw(pages) };
            recording.read(thread, file as u32, page * PAGE, draw(4) == 0, draw(64) == 0)?;
        }
    }
    recording.end()
}

/// Returns the size of a file in bytes.
fn length(file: u64) -> u64 {
    if file.is_multiple_of(1000) { LARGE_BYTES } else { SMALL_BYTES }
}

/// The recording in progress, with its virtual time.
struct RecordingWriterState<W> {
    writer: RecordingWriter<W>,
    events: u64,
    now_ns: u64,
}

impl<W: Write> RecordingWriterState<W> {
    fn put(&mut self, record: Record) -> io::Result<()> {
        self.events += 1;
        self.writer.put(record)
    }

    /// Writes the start, the device and the threads.
    fn begin(&mut self, seed: u64) -> io::Result<()> {
        self.put(Record::Start(RecordingStart {
            wall_ns: 1_700_000_000_000_000_000 + seed,
            page_bytes: PAGE,
            memory_bytes: 8 << 30,
            program: "large".to_owned(),
            ..RecordingStart::default()
        }))?;
        let name = "sda".to_owned();
        self.put(Record::Device(DeviceRecord { device: DEVICE, name, ..DeviceRecord::default() }))?;
        for thread in 0..THREADS as u32 {
            let name = format!("thread {thread}");
            let task = 1000 + thread;
            self.put(Record::Thread(ThreadName { thread, task, process: 1000, name }))?;
        }
        Ok(())
    }

    /// Writes a new file, opened by `thread`.
    fn name(&mut self, file: u32, thread: u32) -> io::Result<()> {
        let path = format!("/data/folder-{}/file-{file}", file / 1000);
        let (inode, bytes) = (u64::from(file) + 2, Some(length(u64::from(file))));
        self.put(Record::File(FileRecord { file, device: DEVICE, inode, bytes, path }))?;
        let (at_ns, descriptor, is_readable) = (self.now_ns, u64::from(thread) + 3, true);
        let open =
            OpenRecord { at_ns, thread, file, descriptor, is_readable, ..OpenRecord::default() };
        self.put(Record::Open(open))
    }

    /// Writes one read of a page. If it waits, the page has a device request and an insertion into
    /// the page cache, and is evicted at the end of the read.
    fn read(
        &mut self,
        thread: u32,
        file: u32,
        offset: u64,
        waits: bool,
        has_write: bool,
    ) -> io::Result<()> {
        let begin_ns = self.now_ns;
        let waited_ns = if waits { 100_000 } else { 0 };
        self.now_ns += 2_000 + waited_ns;
        let (end_ns, bytes) = (self.now_ns, PAGE);
        if has_write {
            let work = DeviceOperation::Write;
            let write =
                RequestRecord { end_ns, begin_ns, work, place: offset, bytes, ..self.request() };
            self.put(Record::Request(write))?;
        }
        if waits {
            self.put(Record::Insert(PagesInserted {
                at_ns: begin_ns,
                thread,
                file,
                offset,
                bytes,
            }))?;
            let thread = Some(u64::from(thread));
            let read =
                RequestRecord { end_ns, begin_ns, thread, place: offset, bytes, ..self.request() };
            self.put(Record::Request(read))?;
            self.put(Record::Evict(PagesEvicted { at_ns: end_ns, file, offset, bytes }))?;
        }
        let (way, descriptor) = (ReadMethod::Pread, Some(u64::from(thread) + 3));
        let (asked_bytes, outcome) = (bytes, ReadOutcome::Bytes(bytes));
        self.put(Record::Read(ReadRecord {
            end_ns,
            begin_ns,
            waited_ns,
            thread,
            way,
            descriptor,
            file,
            offset,
            asked_bytes,
            outcome,
        }))
    }

    fn request(&self) -> RequestRecord {
        RequestRecord { device: DEVICE, ..RequestRecord::default() }
    }

    fn end(mut self) -> io::Result<()> {
        let at_ns = self.now_ns;
        self.put(Record::End(RecordingEnd { at_ns, processor_ns: None, has_exited: true }))?;
        self.writer.finish()?.flush()
    }
}
