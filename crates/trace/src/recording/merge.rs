//! Merges concurrent recordings into one.
//!
//! Each recording has its own time base and the time of day of its start. The merged recording
//! starts with the earliest of them, and all times are aligned accordingly. Threads of different
//! recordings stay distinct even with equal names. Devices are identical if all their properties
//! are equal. Files are identical if device, inode number and path are equal.
//!
//! Recordings of one machine all contain the requests of its devices, from any process. A request
//! that another recording also contains, within a millisecond, is therefore kept once, with the
//! thread known to either recording. Totals are left out: the activities of several programs at
//! one moment are unknown, and another recording may contain the requests of others.

use std::collections::{BTreeMap, VecDeque};

use super::{DeviceRecord, FileRecord, Record, RecordingEnd, RecordingStart, RequestRecord};
use crate::TraceError;

/// Maximum difference in ns between two records of one request: the accuracy of the alignment.
const ALIGNMENT_NS: u64 = 1_000_000;

/// Iterator over the merged records in order. It buffers two milliseconds of records, and the
/// names.
#[derive(Debug)]
pub struct MergedRecords<I> {
    /// The recordings to merge.
    parts: Vec<MergeInput<I>>,
    /// Files, threads and devices of the merged recording.
    names: MergedNames,
    /// Start record, until it is returned as the first one. `None` also without a recording.
    start: Option<RecordingStart>,
    /// Records that could still be duplicates, each with its time and the index of its recording.
    recent_records: VecDeque<(u64, usize, Record)>,
    /// End record, known once all recordings are read. `None` if one of them is truncated.
    end: Option<RecordingEnd>,
    /// True once all recordings are read.
    is_over: bool,
}

/// One of the recordings that are merged.
#[derive(Debug)]
struct MergeInput<I> {
    /// The records that follow.
    records: I,
    /// Offset of its times in the merged recording.
    time_offset_ns: u64,
    /// Next record, with its time in the merged order. `None` at the end of the recording.
    next: Option<(u64, Record)>,
    /// File numbers of the merged recording, by the numbers of this one.
    files: BTreeMap<u32, u32>,
    /// Thread numbers of the merged recording, by the numbers of this one.
    threads: BTreeMap<u32, u32>,
    /// Device numbers of the merged recording, by the numbers of this one.
    devices: BTreeMap<u64, u64>,
    /// Its end record, once it is read.
    end: Option<RecordingEnd>,
}

/// Names in the merged recording.
#[derive(Debug, Default)]
struct MergedNames {
    /// Devices by number.
    devices: BTreeMap<u64, DeviceRecord>,
    /// File numbers by device, inode number and path.
    files: BTreeMap<(u64, u64, String), u32>,
    /// Number of files so far, which is the number of the next one.
    files_count: u32,
    /// Number of threads so far, which is the number of the next one.
    threads_count: u32,
}

impl<I: Iterator<Item = Record>> MergedRecords<I> {
    /// Merges recordings, each given by its records.
    ///
    /// # Errors
    /// Fails if a recording has no start record or no time of day, or was made by another method
    /// or with another page size than the first: [`TraceError::Unmergeable`].
    pub fn new(recordings: Vec<I>) -> Result<MergedRecords<I>, TraceError> {
        // The first record of each, compared with the first of all.
        let mut starts: Vec<RecordingStart> = Vec::new();
        let mut parts = Vec::new();
        for (index, mut records) in recordings.into_iter().enumerate() {
            let unmergeable = |reason: &str| {
                Err(TraceError::Unmergeable { recording: index, reason: reason.to_owned() })
            };
            let Some(Record::Start(start)) = records.next() else {
                return unmergeable("has no first record");
            };
            if start.wall_ns == 0 {
                return unmergeable(
                    "doesn't say at what time of day it began: it can't be aligned",
                );
            }
            let first = starts.first().unwrap_or(&start);
            if first.source != start.source {
                return unmergeable(&format!(
                    "was made by {:?}, the first by {:?}: what the one saw the other could not; \
                     merge recordings that were made in one way",
                    start.source, first.source
                ));
            }
            if first.page_bytes != start.page_bytes {
                return unmergeable("has pages of another length than the first");
            }
            starts.push(start);
            parts.push(MergeInput {
                records,
                time_offset_ns: 0,
                next: None,
                files: BTreeMap::new(),
                threads: BTreeMap::new(),
                devices: BTreeMap::new(),
                end: None,
            });
        }
        // Times count from the earliest start.
        let earliest_start = starts.iter().min_by_key(|start| start.wall_ns).cloned();
        if let Some(earliest) = &earliest_start {
            for (part, start) in parts.iter_mut().zip(&starts) {
                part.time_offset_ns = start.wall_ns - earliest.wall_ns;
                part.read_next(part.time_offset_ns);
            }
        }
        // A name that the recordings do not share is left empty.
        let start = earliest_start.map(|earliest| {
            let is_common = |value: fn(&RecordingStart) -> &str| {
                starts.iter().all(|start| value(start) == value(&earliest))
            };
            let program = if is_common(|start| &start.program) { &earliest.program } else { "" };
            let system = if is_common(|start| &start.system) { &earliest.system } else { "" };
            let memory_bytes = starts.iter().map(|start| start.memory_bytes).max().unwrap_or(0);
            let (program, system) = (program.to_owned(), system.to_owned());
            RecordingStart { memory_bytes, program, system, ..earliest }
        });
        let (names, recent_records) = (MergedNames::default(), VecDeque::new());
        Ok(MergedRecords { parts, names, start, recent_records, end: None, is_over: false })
    }

    /// Returns the record that is next by time, with its time in the merged order and the index of
    /// its recording. Its numbers belong to the merged recording. Returns `None` at the end, and
    /// prepares the end record then.
    fn next_renumbered(&mut self) -> Option<(u64, usize, Record)> {
        loop {
            let times = self.parts.iter().enumerate();
            let next = times.filter_map(|(index, part)| Some((part.next.as_ref()?.0, index))).min();
            let Some((at_ns, index)) = next else {
                if !std::mem::replace(&mut self.is_over, true) {
                    self.end = self.merged_end();
                }
                return None;
            };
            let part = &mut self.parts[index];
            let (_, record) = part.next.take()?;
            part.read_next(at_ns);
            if let Some(record) = part.renumber(record, &mut self.names) {
                return Some((at_ns, index, record));
            }
        }
    }

    /// Adds a record to the recent ones. A request that is among the recent records of another
    /// recording is merged into that record instead: it keeps its times, and gets the thread if it
    /// has none. `index`: index of the record's recording.
    fn buffer_or_merge(&mut self, at_ns: u64, index: usize, record: Record) {
        if let Record::Request(request) = &record {
            for (_, _, other) in
                self.recent_records.iter_mut().filter(|(_, other, _)| *other != index)
            {
                if let Record::Request(other) = other
                    && is_same_request(other, request)
                {
                    other.thread = other.thread.or(request.thread);
                    return;
                }
            }
        }
        self.recent_records.push_back((at_ns, index, record));
    }

    /// Returns the end record: the latest end and the sum of processor times, which is unknown if
    /// one of them is. Returns `None` if any recording is truncated.
    fn merged_end(&mut self) -> Option<RecordingEnd> {
        let ends: Option<Vec<&RecordingEnd>> =
            self.parts.iter().map(|part| part.end.as_ref()).collect();
        let ends = ends?;
        Some(RecordingEnd {
            at_ns: ends.iter().map(|end| end.at_ns).max()?,
            processor_ns: ends.iter().map(|end| end.processor_ns).sum(),
            has_exited: ends.iter().all(|end| end.has_exited),
        })
    }
}

impl<I: Iterator<Item = Record>> Iterator for MergedRecords<I> {
    type Item = Record;

    /// Returns the start record, then the other records in the order of time, and then the end
    /// record. A record is returned once no duplicate of it can follow.
    fn next(&mut self) -> Option<Record> {
        if let Some(start) = self.start.take() {
            return Some(Record::Start(start));
        }
        loop {
            let next = self.next_renumbered();
            let is_over = next.is_none();
            let now_ns = next.as_ref().map_or(u64::MAX, |(at_ns, ..)| *at_ns);
            if let Some((at_ns, index, record)) = next {
                self.buffer_or_merge(at_ns, index, record);
            }
            // Twice the accuracy: a duplicate that follows still finds the record.
            let is_due = |(at_ns, ..): &(u64, usize, Record)| at_ns + 2 * ALIGNMENT_NS < now_ns;
            if self.recent_records.front().is_some_and(|recent| is_over || is_due(recent)) {
                return self.recent_records.pop_front().map(|(_, _, record)| record);
            }
            if is_over {
                return self.end.take().map(Record::End);
            }
        }
    }
}

impl<I: Iterator<Item = Record>> MergeInput<I> {
    /// Reads the next record of this recording and shifts its times. Its time in the merged order
    /// is at least `previous_ns`, the one of its predecessor.
    fn read_next(&mut self, previous_ns: u64) {
        let time_offset_ns = self.time_offset_ns;
        self.next = self.records.next().map(|mut record| {
            // A record without a time follows its predecessor.
            let time_ns = shift_times(&mut record, time_offset_ns).unwrap_or(0);
            (time_ns.max(previous_ns), record)
        });
    }

    /// Converts the numbers in a record to the merged recording. Returns `None` for a record that
    /// is not copied: a known name, the start, the end, and totals.
    fn renumber(&mut self, mut record: Record, names: &mut MergedNames) -> Option<Record> {
        match &mut record {
            // A recording never contains a second start.
            Record::Start(_) => return None,
            Record::End(end) => {
                self.end = Some(end.clone());
                return None;
            }
            Record::Device(device) => {
                let own_number = device.device;
                let (number, is_new) = names.add_device(device);
                self.devices.insert(own_number, number);
                device.device = number;
                return is_new.then_some(record);
            }
            Record::File(file) => {
                file.device = self.merged_device(file.device);
                let (number, is_new) = names.add_file(file);
                self.files.insert(file.file, number);
                file.file = number;
                return is_new.then_some(record);
            }
            Record::Thread(thread) => {
                let number = self.threads.entry(thread.thread).or_insert_with(|| {
                    names.threads_count += 1;
                    names.threads_count - 1
                });
                thread.thread = *number;
            }
            Record::Open(open) => {
                self.renumber_file_and_thread(&mut open.file, Some(&mut open.thread))
            }
            Record::Map(map) => self.renumber_file_and_thread(&mut map.file, Some(&mut map.thread)),
            Record::Advice(advice) => {
                self.renumber_file_and_thread(&mut advice.file, Some(&mut advice.thread))
            }
            Record::Read(read) => {
                self.renumber_file_and_thread(&mut read.file, Some(&mut read.thread))
            }
            Record::Insert(insert) => {
                self.renumber_file_and_thread(&mut insert.file, Some(&mut insert.thread))
            }
            Record::Evict(evict) => {
                let no_thread = None;
                self.renumber_file_and_thread(&mut evict.file, no_thread);
            }
            Record::Request(request) => {
                request.device = self.merged_device(request.device);
                let own_number = request.thread.and_then(|thread| u32::try_from(thread).ok());
                request.thread = own_number
                    .and_then(|own_number| self.threads.get(&own_number))
                    .map(|thread| u64::from(*thread));
            }
            Record::Mapped(mapped) => {
                self.renumber_file_and_thread(&mut mapped.file, Some(&mut mapped.thread))
            }
            Record::Executable(mapped) => self.renumber_file_and_thread(&mut mapped.file, None),
            Record::Unseen(unseen) => {
                unseen.thread = self.threads.get(&unseen.thread).copied().unwrap_or(unseen.thread);
            }
            Record::Lost(_) => {}
            // The activities of several programs at one moment are not known.
            Record::TimeSpent(_) => return None,
            // They may be requests of a program in another recording.
            Record::OthersRequests(_) | Record::OthersSampled(_) => return None,
        }
        Some(record)
    }

    /// Returns the number of a device in the merged recording. The number of a device without a
    /// name (0 for an unknown one) stays.
    fn merged_device(&self, own_number: u64) -> u64 {
        self.devices.get(&own_number).copied().unwrap_or(own_number)
    }

    /// Converts the numbers of a file and of the record's thread, `None` for a record without one.
    /// All numbers are known, because the reader checks this.
    fn renumber_file_and_thread(&self, file: &mut u32, thread: Option<&mut u32>) {
        *file = self.files.get(file).copied().unwrap_or(*file);
        if let Some(thread) = thread {
            *thread = self.threads.get(thread).copied().unwrap_or(*thread);
        }
    }
}

impl MergedNames {
    /// Returns the number of a device in the merged recording, and true if it is new. A different
    /// device with the same number gets another one.
    fn add_device(&mut self, device: &DeviceRecord) -> (u64, bool) {
        let is_same_device = |other: &DeviceRecord| {
            let DeviceRecord { device: _, name, is_rotational, readahead_bytes, file_system } =
                device;
            (&other.name, &other.file_system) == (name, file_system)
                && (other.is_rotational, other.readahead_bytes)
                    == (*is_rotational, *readahead_bytes)
        };
        let mut number = device.device;
        while let Some(other) = self.devices.get(&number) {
            if is_same_device(other) {
                return (number, false);
            }
            // The device is of another machine. Kernel numbers have at most 32 bits, so a number
            // beyond them is free or was given by this loop.
            number = number.wrapping_add(1 << 32);
        }
        self.devices.insert(number, device.clone());
        (number, true)
    }

    /// Returns the number of a file in the merged recording, and true if it is new. A file without
    /// a known inode or device is always new.
    fn add_file(&mut self, file: &FileRecord) -> (u32, bool) {
        let next_number = self.files_count;
        let is_known = file.inode != 0 && file.device != 0;
        let identity = (file.device, file.inode, file.path.clone());
        let number = match is_known {
            true => *self.files.entry(identity).or_insert(next_number),
            false => next_number,
        };
        self.files_count += u32::from(number == next_number);
        (number, number == next_number)
    }
}

/// Adds `time_offset_ns` to the times of a record. Returns its end time, by which records are
/// ordered, or `None` for a record without a time.
fn shift_times(record: &mut Record, time_offset_ns: u64) -> Option<u64> {
    let (end_ns, begin_ns) = record.times_mut()?;
    *end_ns += time_offset_ns;
    if let Some(begin_ns) = begin_ns {
        *begin_ns += time_offset_ns;
    }
    Some(*end_ns)
}

/// Returns true if two records describe the same request: equal properties, and times that differ
/// by at most [`ALIGNMENT_NS`].
fn is_same_request(first: &RequestRecord, second: &RequestRecord) -> bool {
    let properties =
        |request: &RequestRecord| (request.device, request.work, request.place, request.bytes);
    properties(first) == properties(second)
        && first.end_ns.abs_diff(second.end_ns) <= ALIGNMENT_NS
        && first.begin_ns.abs_diff(second.begin_ns) <= ALIGNMENT_NS
}
