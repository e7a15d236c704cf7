//! Reads of all recorded processes, explained interval by interval.
//!
//! Each process has an explanation of its own, in which the requests of the other processes count
//! as requests of other programs. From earlier intervals only open files and hints remain, and the
//! names of devices, files and threads.

use std::collections::{BTreeMap, BTreeSet};

use readpath_trace::recording::{
    AdviceGiven, AdviceType, DeviceOperation, DeviceRecord, ExecutableMapped, FileRecord,
    OpenRecord, OthersRequests, ReadMethod, Record, RecordingStart, RequestRecord, ThreadName,
};

use crate::explain::{Explainer, Explanation};

/// Maximum number of hints that are kept of a file. Older ones are dropped first.
const HINTS_MAX: usize = 64;

/// Reads of one process in an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveProcess {
    /// Process ID. 0 for the threads whose process is not known.
    pub process: u32,
    /// Name of its first thread, or of any if that one is not known.
    pub name: String,
    /// Diagnosis of the interval.
    pub explanation: Explanation,
}

/// Collects the records of an interval. Its memory grows with the records of the interval, and with
/// the number of files that were ever read.
#[derive(Debug, Default)]
pub struct LiveReads {
    /// Start of the interval in nanoseconds since the start of the recorder.
    begin_ns: u64,
    /// Records of the interval that are not in the maps below, in the order of the recording.
    records: Vec<Record>,
    /// Devices by their kernel number.
    devices: BTreeMap<u64, DeviceRecord>,
    /// Files by their number. They stay known.
    files: BTreeMap<u32, FileRecord>,
    /// Files mapped for execution, by their number. They stay known.
    executables: BTreeMap<u32, ExecutableMapped>,
    /// Threads by their number, until their process has ended.
    threads: BTreeMap<u32, ThreadName>,
    /// Open files and hints by process, until the process has ended. 0: unknown.
    process_files: BTreeMap<u32, ProcessFiles>,
    /// Number of events lost in the interval.
    lost: u64,
}

/// Open files and hints of a process.
#[derive(Debug, Default)]
struct ProcessFiles {
    /// By file and descriptor.
    opens: BTreeMap<(u32, u64), OpenRecord>,
    /// By file, the oldest first.
    hints: BTreeMap<u32, Vec<AdviceGiven>>,
}

impl LiveReads {
    /// Adds a record of the interval. Records about the recording as a whole are dropped, and
    /// records that a live explanation does not use. Times by activity and the sums of other
    /// programs' requests come only at the end of a recording.
    pub fn take(&mut self, record: Record) {
        match record {
            Record::Device(device) => {
                self.devices.insert(device.device, device);
            }
            Record::File(file) => {
                self.files.insert(file.file, file);
            }
            Record::Thread(thread) => {
                self.threads.insert(thread.thread, thread);
            }
            Record::Open(open) => {
                let files = self.files_of(open.thread);
                files.opens.insert((open.file, open.descriptor), open);
            }
            Record::Executable(mapped) => {
                self.executables.insert(mapped.file, mapped);
            }
            Record::Lost(lost) => self.lost += lost.count,
            Record::Start(_) | Record::End(_) | Record::Map(_) | Record::TimeSpent(_) => {}
            Record::Evict(_) | Record::OthersRequests(_) | Record::OthersSampled(_) => {}
            // Advice, insertions, reads, requests, mapped ranges, and reads of unknown bytes.
            other => self.records.push(other),
        }
    }

    /// Ends the interval at `end_ns` since the start of the recorder. Returns the processes that
    /// read, the one with the longest waits first, and the number of lost events.
    ///
    /// Files and hints of processes for which `is_alive` is false are forgotten.
    pub fn end_interval(
        &mut self,
        end_ns: u64,
        is_alive: impl Fn(u32) -> bool,
    ) -> (Vec<LiveProcess>, u64) {
        let records = std::mem::take(&mut self.records);
        let read_threads = records.iter().filter_map(|record| match record {
            Record::Read(read) => Some(read.thread),
            Record::Unseen(unseen) => Some(unseen.thread),
            _ => None,
        });
        let processes: BTreeSet<u32> = read_threads.map(|thread| self.process_of(thread)).collect();
        let mut live: Vec<LiveProcess> = processes
            .into_iter()
            .map(|process| self.explain_process(process, &records, end_ns))
            .collect();
        // The longest wait comes first; among equals, the most bytes.
        live.sort_by(|left, right| {
            let waits = |process: &LiveProcess| process.explanation.waited_seconds.unwrap_or(0.0);
            let bytes = |process: &LiveProcess| process.explanation.shape.got_bytes;
            waits(right).total_cmp(&waits(left)).then(bytes(right).cmp(&bytes(left)))
        });
        // The hints of this interval hold for the next ones. WILLNEED is no hint: it names pages to
        // fetch now.
        for record in &records {
            let Record::Advice(advice) = record else { continue };
            if advice.hint != AdviceType::WillNeed {
                let hints = self.files_of(advice.thread).hints.entry(advice.file).or_default();
                hints.push(advice.clone());
                let excess = hints.len().saturating_sub(HINTS_MAX);
                hints.drain(..excess);
            }
        }
        self.threads.retain(|_, thread| is_alive(thread.process));
        self.process_files.retain(|process, _| is_alive(*process));
        self.begin_ns = end_ns;
        (live, std::mem::take(&mut self.lost))
    }

    /// Explains the reads of a process in an interval that ends at `end_ns`. `records`: the records
    /// of all processes.
    fn explain_process(&self, process: u32, records: &[Record], end_ns: u64) -> LiveProcess {
        let name = self.process_name(process);
        let mut explainer = Explainer::of_interval(self.begin_ns, end_ns);
        let start = RecordingStart { program: name.clone(), ..RecordingStart::default() };
        explainer.take(&Record::Start(start));
        for device in self.devices.values() {
            explainer.take(&Record::Device(device.clone()));
        }
        let own_records: Vec<Record> =
            records.iter().filter_map(|record| self.record_for(process, record)).collect();
        let files: BTreeSet<u32> = own_records.iter().filter_map(file_number).collect();
        for file in files.iter().filter_map(|file| self.files.get(file)) {
            explainer.take(&Record::File(file.clone()));
        }
        // A process that only calls `read` for a program's file does not start that program.
        let mapped_files: BTreeSet<u32> = own_records.iter().filter_map(mapped_file).collect();
        for mapped in mapped_files.iter().filter_map(|file| self.executables.get(file)) {
            explainer.take(&Record::Executable(mapped.clone()));
        }
        for thread in self.threads.values().filter(|thread| thread.process == process) {
            explainer.take(&Record::Thread(thread.clone()));
        }
        // Opens and hints of earlier intervals hold on.
        if let Some(known_files) = self.process_files.get(&process) {
            for ((file, _), open) in &known_files.opens {
                if files.contains(file) {
                    explainer.take(&Record::Open(open.clone()));
                }
            }
            for file in &files {
                for hint in known_files.hints.get(file).into_iter().flatten() {
                    explainer.take(&Record::Advice(hint.clone()));
                }
            }
        }
        own_records.iter().for_each(|record| explainer.take(record));
        for others in self.others_requests(process, records) {
            explainer.take(&Record::OthersRequests(others));
        }
        LiveProcess { process, name, explanation: explainer.finish() }
    }

    /// Returns the sums of the other recorded processes' requests in an interval, by device, type
    /// and process. Requests without a thread or with an unknown process are left out.
    fn others_requests(
        &self,
        process: u32,
        records: &[Record],
    ) -> impl Iterator<Item = OthersRequests> {
        let mut sums: BTreeMap<(u64, DeviceOperation, u32), OthersRequests> = BTreeMap::new();
        for record in records {
            let Record::Request(request) = record else { continue };
            let Some(thread) = request.thread else { continue };
            let other = self.process_of(thread as u32);
            if other == process || other == 0 {
                continue;
            }
            let &RequestRecord { end_ns: at_ns, device, work, bytes, .. } = request;
            let sum = sums.entry((device, work, other)).or_insert_with(|| {
                let name = self.process_name(other);
                OthersRequests { device, work, task: other, name, ..OthersRequests::default() }
            });
            sum.at_ns = at_ns;
            sum.count += 1;
            sum.bytes += bytes;
        }
        sums.into_values()
    }

    /// Returns the name of the first thread of a process, or of any if that one is not known. Empty
    /// without a known thread.
    fn process_name(&self, process: u32) -> String {
        let mut threads = self.threads.values().filter(|thread| thread.process == process);
        let main_thread = threads.clone().find(|thread| thread.task == process);
        main_thread.or(threads.next()).map(|thread| thread.name.clone()).unwrap_or_default()
    }

    /// Returns the record as the recording of one process would have it. The thread of another
    /// process's request is removed. `None` for any other record of another process.
    fn record_for(&self, process: u32, record: &Record) -> Option<Record> {
        let thread = match record {
            Record::Request(request) => {
                let is_own = |thread: &u64| self.process_of(*thread as u32) == process;
                let thread = request.thread.filter(is_own);
                return Some(Record::Request(RequestRecord { thread, ..request.clone() }));
            }
            Record::Read(read) => read.thread,
            Record::Insert(insert) => insert.thread,
            Record::Mapped(mapped) => mapped.thread,
            Record::Advice(advice) => advice.thread,
            Record::Unseen(unseen) => unseen.thread,
            _ => return None,
        };
        (self.process_of(thread) == process).then(|| record.clone())
    }

    /// Returns the process of a thread, 0 if it is not known.
    fn process_of(&self, thread: u32) -> u32 {
        self.threads.get(&thread).map_or(0, |thread| thread.process)
    }

    /// Returns the open files and hints of a thread's process.
    fn files_of(&mut self, thread: u32) -> &mut ProcessFiles {
        self.process_files.entry(self.process_of(thread)).or_default()
    }
}

/// Returns the number of the file that a record is about, or `None`.
fn file_number(record: &Record) -> Option<u32> {
    match record {
        Record::Read(read) => Some(read.file),
        Record::Insert(insert) => Some(insert.file),
        Record::Mapped(mapped) => Some(mapped.file),
        Record::Advice(advice) => Some(advice.file),
        _ => None,
    }
}

/// Number of the file that the process of a record maps: the record is a fault or a mapping's use.
fn mapped_file(record: &Record) -> Option<u32> {
    match record {
        Record::Read(read) if read.way == ReadMethod::Fault => Some(read.file),
        Record::Mapped(mapped) => Some(mapped.file),
        _ => None,
    }
}
