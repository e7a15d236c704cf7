//! Replay of a recorded program's reads on other storage, under other policies, or with other
//! memory.
//!
//! The loop is closed, as in the program. A thread that waited for a read waits for it again, for
//! as long as the simulated read takes. Then it pauses for its recorded think time. Threads run
//! concurrently as recorded: the first read of each starts at its recorded distance from the start.
//! The result is therefore the program's run time, not only the time of its reads.
//!
//! - Memory contents before the recording are unknown. A read whose pages were all cached, and were
//!   never inserted during the recording, counts as think time. It stays cached in the replay,
//!   whatever the memory size.
//! - The duration of a read that did not wait gives the cost of calls and copies on the recorded
//!   machine, including the cost of recording. The modelled host is charged the same.
//! - A wait for another thread, instead of a read, counts as think time.
//! - Advice to the kernel is given again at its position between the reads of its thread. A call
//!   that waited before it returned counts as think time.
//! - A mapped file is touched where the kernel had to serve a fault. A stream of faults reads all
//!   pages that these faults mapped; any other fault reads one page ([`MappedUse`]).
//!
//! The recorded time after the last read is added to the result.

use std::collections::{BTreeMap, BTreeSet};

use readpath_core::unit::{PAGE_BYTES, Time};

use crate::page_set::PageSet;
use crate::recording::{
    self, AdviceGiven, MappedUse, ReadMethod, ReadRecord, Record, RecordingMethod,
};
use readpath_sim::job::JobEngine;
use readpath_sim::report::ResultRow;
use readpath_sim::run::RunObserver;
use readpath_sim::simulate::{SimulateError, SimulationSetup, simulate_workload};
use readpath_sim::workload::{FileId, GivenAdvice, GivenRead, ReadList, Workload, WorkloadFile};
use readpath_sim::world::HostCosts;

mod advice;
mod costs;

use advice::{ThreadEvents, thread_advice};
use costs::RecordedCosts;

/// Contents of a recording.
#[derive(Clone, Debug, Default)]
pub struct RecordingInput {
    /// Name of the program; empty for several programs.
    program: String,
    /// Method of the recording. Only tracepoints record the insertion of pages in the page cache.
    source: RecordingMethod,
    /// Memory of the recorded machine; 0 if unknown.
    memory_bytes: u64,
    /// The kernel's readahead window of each device.
    readahead_bytes: BTreeMap<u64, u64>,
    /// Files by their number in the recording.
    files: BTreeMap<u32, recording::FileRecord>,
    /// Reads for the replay by the number of their thread, in the order of their ends.
    reads_by_thread: BTreeMap<u32, Vec<ReadRecord>>,
    /// Advice to the kernel, in the order of the recording.
    advice: Vec<AdviceGiven>,
    /// Files opened with direct I/O, as file and descriptor.
    direct_opens: BTreeSet<(u32, u64)>,
    /// Number of reads for the replay that had direct I/O, by thread.
    direct_reads: BTreeMap<u32, usize>,
    /// Time of the last insertion into the page cache by each thread.
    last_insert_ns: BTreeMap<u32, u64>,
    /// Pages of each file that have been inserted into the page cache.
    inserted_pages: BTreeMap<u32, PageSet>,
    /// Samples of the cost of calls, copies and faults.
    costs: RecordedCosts,
    /// Estimate of the used pages of mappings.
    mapped: MappedUse,
    /// Processor time of the recorded programs. `None` if it is unknown for one of them.
    processor_ns: Option<u64>,
    /// Number of ended recordings: several if they are merged.
    ended: u64,
    /// Latest time so far, since the start of the recording.
    end_ns: u64,
    /// Number of lost events.
    lost: u64,
    /// Number of reads that are left out because they found pages cached before the recording.
    cached_before: u64,
}

impl RecordingInput {
    /// Adds the next record. Records must come in the order of the recording.
    pub fn take(&mut self, record: &Record) {
        match record {
            Record::Start(start) => {
                self.program.clone_from(&start.program);
                self.source = start.source;
                self.memory_bytes = start.memory_bytes;
            }
            Record::Device(device) => {
                self.readahead_bytes.insert(device.device, device.readahead_bytes);
            }
            Record::File(file) => {
                self.files.insert(file.file, file.clone());
            }
            Record::Open(open) if open.is_direct => {
                self.direct_opens.insert((open.file, open.descriptor));
            }
            Record::Open(open) => {
                self.direct_opens.remove(&(open.file, open.descriptor));
            }
            Record::Insert(insert) => {
                self.last_insert_ns.insert(insert.thread, insert.at_ns);
                let (first, end) = page_bounds(insert.offset, insert.bytes);
                self.inserted_pages.entry(insert.file).or_default().add(first, end);
                self.end_ns = self.end_ns.max(insert.at_ns);
            }
            Record::Mapped(mapped) => self.mapped.map(mapped),
            Record::Read(read) => {
                for read in self.mapped.reads(read) {
                    self.add_read(&read);
                }
            }
            Record::Advice(advice) => self.advice.push(advice.clone()),
            Record::Lost(lost) => self.lost += lost.count,
            Record::End(end) => {
                self.end_ns = self.end_ns.max(end.at_ns);
                let earlier_ns = if self.ended == 0 { Some(0) } else { self.processor_ns };
                self.processor_ns = earlier_ns.zip(end.processor_ns).map(|(sum, ns)| sum + ns);
                self.ended += 1;
            }
            Record::Thread(_)
            | Record::Map(_)
            | Record::Executable(_)
            | Record::Evict(_)
            | Record::Request(_)
            | Record::Unseen(_)
            | Record::TimeSpent(_)
            | Record::OthersRequests(_)
            | Record::OthersSampled(_) => {}
        }
    }

    /// Adds a read for the replay. A read without data, or of data cached before the recording, is
    /// left out. Only tracepoints show which data was cached before: the read has not waited, its
    /// thread has inserted no page since its start, and no page of it was inserted earlier. The
    /// duration of a read with the first two properties is a sample of the cost of a read, also if
    /// the read is kept. Direct reads bypass the page cache: they are kept, without a sample.
    fn add_read(&mut self, read: &ReadRecord) {
        self.end_ns = self.end_ns.max(read.end_ns);
        if read.bytes_read() == 0 {
            return;
        }
        if self.source == RecordingMethod::Tracepoints && !self.is_direct(read) {
            let last_insert_ns = self.last_insert_ns.get(&read.thread);
            let has_fetched = last_insert_ns.is_some_and(|&at_ns| at_ns >= read.begin_ns);
            if read.waited_ns == 0 && !has_fetched {
                self.costs.add(read);
                let (first, end) = page_bounds(read.offset, read.bytes_read());
                let inserted_pages = self.inserted_pages.get(&read.file);
                if inserted_pages.is_none_or(|inserted_pages| !inserted_pages.has_any(first, end)) {
                    self.cached_before += 1;
                    return;
                }
            }
        }
        *self.direct_reads.entry(read.thread).or_default() += usize::from(self.is_direct(read));
        self.reads_by_thread.entry(read.thread).or_default().push(read.clone());
    }

    /// Returns true for a read with direct I/O.
    fn is_direct(&self, read: &ReadRecord) -> bool {
        let is_open = |descriptor| self.direct_opens.contains(&(read.file, descriptor));
        read.descriptor.is_some_and(is_open)
    }

    /// Returns the reads for the replay, one list for each thread in the order of the numbers, and
    /// the files in the order in which these lists first name them. `None` if there is no suitable
    /// read.
    pub fn finish(self) -> Option<RecordedProgram> {
        // Files in the order in which the threads' reads first name them, thread by thread, and
        // their positions in it.
        let (mut file_numbers, mut file_indexes): (Vec<u32>, BTreeMap<u32, usize>) =
            Default::default();
        for read in self.reads_by_thread.values().flatten() {
            file_indexes.entry(read.file).or_insert_with(|| {
                file_numbers.push(read.file);
                file_numbers.len() - 1
            });
        }
        let file = |&number: &u32| {
            let recording::FileRecord { path, bytes, .. } =
                self.files.get(&number).cloned().unwrap_or_default();
            WorkloadFile { name: path, bytes: bytes.unwrap_or(0).next_multiple_of(PAGE_BYTES) }
        };
        let mut files: Vec<WorkloadFile> = file_numbers.iter().map(file).collect();
        let readahead_bytes = self.busiest_readahead_bytes();
        let mut last_ns = 0;
        let mut lists = Vec::new();
        for reads in self.reads_by_thread.values() {
            last_ns = reads.iter().map(|read| read.end_ns).fold(last_ns, u64::max);
            lists.push(self.read_list(reads, &file_indexes, &mut files));
        }
        let threads: Vec<_> = std::iter::zip(&self.reads_by_thread, &lists)
            .map(|((&thread, reads), list)| (thread, ThreadEvents::new(reads, list)))
            .collect();
        let advice = thread_advice(&self.advice, &threads, &file_indexes, &files);
        let advisers = vec![ReadList::default(); advice.by_thread.len() - lists.len()];
        let recorded = RecordedProgram {
            program: self.program,
            total: Time(self.end_ns),
            time_after_last_read: Time(self.end_ns - last_ns),
            memory_bytes: self.memory_bytes,
            readahead_bytes,
            host: self.costs.host(),
            lost: self.lost,
            cached_before: self.cached_before,
            other_waits: self.processor_ns.map(|ns| Time(other_waits_ns(&lists, ns))),
            reads: lists.iter().map(|list| list.reads.len() as u64).sum(),
            files,
            lists,
            advisers,
            advice: advice.by_thread,
            advice_left_out: advice.left_out,
        };
        (recorded.reads > 0).then_some(recorded)
    }

    /// Returns the kernel's readahead window of the device with the most bytes read, in bytes. 0 if
    /// unknown. Files without a name or device count as one device, whose window is unknown.
    fn busiest_readahead_bytes(&self) -> u64 {
        let mut read_bytes: BTreeMap<u64, u64> = BTreeMap::new();
        for read in self.reads_by_thread.values().flatten() {
            let device = self.files.get(&read.file).map_or(0, |file| file.device);
            *read_bytes.entry(device).or_default() += read.bytes_read();
        }
        let busiest = read_bytes.into_iter().max_by_key(|&(_, bytes)| bytes);
        busiest.and_then(|(device, _)| self.readahead_bytes.get(&device).copied()).unwrap_or(0)
    }

    /// Converts the reads of one thread, with the think time before each. `file_indexes`: index in
    /// `files` by file number. A file is extended to the end of its last read.
    fn read_list(
        &self,
        reads: &[ReadRecord],
        file_indexes: &BTreeMap<u32, usize>,
        files: &mut [WorkloadFile],
    ) -> ReadList {
        let mut reads: Vec<&ReadRecord> = reads.iter().collect();
        reads.sort_by_key(|read| (read.begin_ns, read.end_ns));
        let mut ends: Vec<u64> = reads.iter().map(|read| read.end_ns).collect();
        ends.sort_unstable();
        let (mut ended_count, mut last_begin_ns) = (0, 0);
        let (mut given_reads, mut think_times, mut depth_max) = (Vec::new(), Vec::new(), 1);
        // A thread has a list with its first read.
        let direct_count = self.direct_reads[&reads[0].thread];
        let mut faults = 0;
        for (index, read) in reads.iter().enumerate() {
            // Reads that ended before this one began. The other earlier ones are still in flight.
            // The bound by `index` leaves this read out, which may have no duration.
            while ends[ended_count] <= read.begin_ns && ended_count < index {
                ended_count += 1;
            }
            let last_end_ns = if ended_count > 0 { ends[ended_count - 1] } else { 0 };
            // The thread thinks after the last end or the last begin, whichever is later.
            think_times
                .push(Time(read.begin_ns - last_end_ns.max(last_begin_ns).min(read.begin_ns)));
            last_begin_ns = read.begin_ns;
            let is_fault = read.way == ReadMethod::Fault;
            // A fault may show two ranges to be used, which are two reads of the same time.
            let is_rest_of_fault = is_fault
                && index.checked_sub(1).is_some_and(|previous| {
                    let previous = reads[previous];
                    previous.way == ReadMethod::Fault
                        && (previous.begin_ns, previous.end_ns) == (read.begin_ns, read.end_ns)
                });
            if !is_rest_of_fault {
                depth_max = depth_max.max(index - ended_count + 1);
            }
            faults += usize::from(is_fault);
            let (offset, bytes) = (read.offset, read.bytes_read());
            let file_index = file_indexes[&read.file];
            let end = (offset + bytes).next_multiple_of(PAGE_BYTES);
            files[file_index].bytes = files[file_index].bytes.max(end);
            given_reads.push(GivenRead { file: FileId(file_index as u32), offset, bytes });
        }
        // The thread replays all of its reads by one mechanism: a mapping if most are faults, else
        // io_uring if two reads overlapped, since blocking calls of one thread cannot.
        let engine = if faults * 2 > reads.len() {
            JobEngine::Mmap
        } else if depth_max > 1 {
            JobEngine::IoUring
        } else {
            JobEngine::Psync
        };
        ReadList {
            engine,
            // A list has one mode, which most of its reads had.
            is_direct: direct_count * 2 > reads.len(),
            depth: depth_max.min(JOB_DEPTH_MAX) as u32,
            reads: given_reads,
            think_times,
        }
    }
}

/// Largest depth of a replayed thread: the upper bound of iodepth in a job.
const JOB_DEPTH_MAX: usize = 65_536;

/// Returns the sum of the think times less the processor time of the program, in nanoseconds. The
/// time before the first read of a thread is left out: the thread may have started in it.
fn other_waits_ns(lists: &[ReadList], processor_ns: u64) -> u64 {
    let think_times = lists.iter().flat_map(|list| list.think_times.iter().skip(1));
    let think_ns: u64 = think_times.map(|time| time.0).sum();
    think_ns.saturating_sub(processor_ns)
}

/// Returns the first page and the end page of a byte range.
fn page_bounds(offset: u64, bytes: u64) -> (u64, u64) {
    (offset / PAGE_BYTES, (offset + bytes).div_ceil(PAGE_BYTES))
}

/// Memory in addition to all files, for a cache that never evicts, in bytes. Chosen, not measured.
const SPARE_BYTES: u64 = 64 << 20;

/// The reads of a program, ready for the replay.
#[derive(Clone, Debug)]
pub struct RecordedProgram {
    /// Name of the program.
    pub program: String,
    /// Recorded run time.
    pub total: Time,
    /// Recorded time after the last read.
    pub time_after_last_read: Time,
    /// Memory of the recorded machine. 0 if unknown.
    pub memory_bytes: u64,
    /// The kernel's readahead window on the device with the most bytes read. 0 if unknown.
    pub readahead_bytes: u64,
    /// Cost of calls and copies on the recorded machine.
    pub host: HostCosts,
    /// Number of lost events.
    pub lost: u64,
    /// Number of reads that found data cached before the recording.
    pub cached_before: u64,
    /// Sum of the times between the reads of each thread in which it can have had no processor, a
    /// lower bound. It then waited for a lock, a pipe, a timer, a write, another call, or a
    /// processor. `None` if unknown.
    pub other_waits: Option<Time>,
    /// Number of replayed reads.
    pub reads: u64,
    /// Files in the order in which `lists` first name them.
    files: Vec<WorkloadFile>,
    /// Reads of each thread, with the think time before each.
    lists: Vec<ReadList>,
    /// Empty lists, one for each thread that only gave advice.
    advisers: Vec<ReadList>,
    /// Advice of each thread with reads, then of each thread without.
    advice: Vec<Vec<GivenAdvice>>,
    /// Number of advices that are not repeated, without those that would change nothing and those
    /// from the start of the last read on.
    pub advice_left_out: u64,
}

impl RecordedProgram {
    /// Returns the total size of the files that are read. More page cache than that has no effect.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| file.bytes.saturating_add(sum))
    }

    /// Returns the files that are read. Each has its recorded size, or reaches to the end of its
    /// last read if that is further, rounded up to whole pages.
    pub fn files(&self) -> &[WorkloadFile] {
        &self.files
    }

    /// Returns the reads of each thread, with the think time before each.
    pub fn threads(&self) -> &[ReadList] {
        &self.lists
    }

    /// Returns the reads of each thread, followed by an empty list for each thread that only gave
    /// advice, all with the advice of the thread.
    pub fn threads_with_advice(&self) -> impl Iterator<Item = (&ReadList, &[GivenAdvice])> {
        let lists = self.lists.iter().chain(&self.advisers);
        lists.zip(self.advice.iter().map(Vec::as_slice))
    }

    /// Returns the memory of the recorded machine in bytes. If unknown, more than all files.
    pub fn default_memory_bytes(&self) -> u64 {
        match self.memory_bytes {
            0 => self.file_bytes() + SPARE_BYTES,
            bytes => bytes,
        }
    }

    /// Returns `setup` with the recorded readahead window, if known, and a cache of `memory_bytes`
    /// bytes. A larger cache than all files would change nothing.
    pub fn with_memory(&self, setup: SimulationSetup, memory_bytes: u64) -> SimulationSetup {
        let window_bytes = match self.readahead_bytes {
            0 => setup.window_bytes,
            bytes => bytes.next_multiple_of(PAGE_BYTES),
        };
        let memory_bytes = memory_bytes.min(self.file_bytes() + SPARE_BYTES);
        SimulationSetup { memory_bytes, window_bytes, ..setup }
    }

    /// Simulates the replay with `setup`, but with the host of the recording. `watch` sees progress
    /// and decisions. Returns the row of the reads and the program's run time.
    ///
    /// # Errors
    /// Fails in the same cases as [`simulate`](readpath_sim::simulate::simulate).
    pub fn simulate(
        &self,
        setup: &SimulationSetup,
        watch: RunObserver<'_>,
    ) -> Result<(ResultRow, Time), SimulateError> {
        let (lists, advice) = self
            .threads_with_advice()
            .map(|(list, advice)| (list.clone(), advice.to_vec()))
            .unzip();
        // An invalid parameter is an error of the simulation.
        let window_kib =
            setup.readahead.integer("read_ahead_kb", setup.window_bytes >> 10, 0..=1 << 20);
        let window_bytes = window_kib.map_or(setup.window_bytes, |kib| kib << 10);
        let workload = Workload::from_lists(self.files.clone(), lists)
            .with_advice(advice, window_bytes)
            .with_cached_pages_kept();
        let setup = SimulationSetup { host: self.host, ..setup.clone() };
        // The reads come from no job file, whose sections would be in the row.
        let no_job = None;
        let row = simulate_workload(no_job, workload, &setup, watch)?;
        let reads = Time((row.seconds * 1e9) as u64);
        Ok((row, reads + self.time_after_last_read))
    }
}

#[cfg(test)]
mod tests;
