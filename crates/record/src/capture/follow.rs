//! Converts the kernel's events to the records of a recording.
//!
//! For each recorded task the state contains its system call, its fault, and the pages that it
//! added to the cache. For each process it contains the files and positions of its descriptors,
//! which follow from open, close, dup and seek calls. The page cache's events name the file of a
//! read by its inode. Without such an event (direct I/O, end of a file) the descriptor identifies
//! the file.
//!
//! Faults are handled in [`faults`].
//!
//! A `task` is the kernel's number of a thread. Times are nanoseconds since the start of the
//! recording. A *queued* record is written once no earlier record can follow.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use readpath_core::unit::PageRange;

use readpath_trace::recording::{FileRecord, PagesEvicted, PagesInserted, Record, ThreadName};

use super::device_number;
use super::event::{EventData, Inode, SystemCall, TraceEvent};
use super::folios::Folios;
use super::maps::{MappedPage, Maps, UNKNOWN};
use super::names::{FileNames, NamedFile};
use super::tables::{DescriptorTableId, DescriptorTarget, Tables};
use requests::{Issued, OtherTasks};

mod advice;
mod asynchronous;
mod descriptors;
mod faults;
mod file_numbers;
mod idle;
mod ordered;
mod processes;
mod requests;

use asynchronous::{Asynchronous, SubmitCall};
use faults::OpenFault;
use file_numbers::FileNumbers;
use idle::IdleTime;
use ordered::OrderedRecords;

/// Page size in bytes used by the events.
const PAGE_BYTES: u64 = 4096;

/// Time in nanoseconds, chosen, after the last event of a fault, after which the fault is complete.
/// A sleep within the fault delays it.
const FAULT_TIMEOUT_NS: u64 = 2_000_000;

/// State of all recorded tasks.
#[derive(Debug)]
pub(super) struct TaskTracker<N> {
    /// Source of the names of files and disks.
    names: N,
    /// Start time of the recording by the kernel's clock.
    start_ns: u64,
    /// Recorded tasks that live, by number.
    tasks: HashMap<u32, RecordedTask>,
    /// Tables of file descriptors.
    tables: Tables,
    /// Mappings of the recorded processes.
    maps: Maps,
    /// Large folios that entered the cache during the recording.
    folios: Folios,
    /// Number in the recording of each file.
    files: FileNumbers,
    /// Number of tasks with records, which is the number of the next one in the recording.
    thread_count: u32,
    /// Disk of each device, by the kernel's numbers. A partition has the number of its disk.
    disks: HashMap<u64, u64>,
    /// Disks with a name record.
    named_disks: BTreeSet<u64>,
    /// Block ranges requested by tasks. By disk and first sector: the end sector and the
    /// task.
    block_ranges: BTreeMap<(u64, u64), (u64, u32)>,
    /// Requests in progress, by disk and first sector.
    issued: HashMap<(u64, u64), Issued>,
    /// Tasks that are not recorded, with their requests.
    others: OtherTasks,
    /// Asynchronous reads in flight.
    pending: Asynchronous,
    /// True when reads of AIO and io_uring are reported with their ranges.
    has_submissions: bool,
    /// Length in bytes of each file when it was first found, by its number in the recording.
    lengths: HashMap<u32, u64>,
    /// Last record of evicted pages, which the next event may extend.
    evicted: Option<PagesEvicted>,
    /// Queued records.
    out: OrderedRecords,
}

/// Mappings of the recorded tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskMappings<'a> {
    /// Recorded tasks, for their processes.
    tasks: &'a HashMap<u32, RecordedTask>,
    /// Mappings of the processes.
    maps: &'a Maps,
}

impl TaskMappings<'_> {
    /// Returns the page of a file at an address of a task. `None` for a task that is not recorded,
    /// for other memory, and for a mapping whose file is still unknown.
    pub fn mapped_page_at(&self, task: u32, address: u64) -> Option<MappedPage> {
        let page = self.maps.mapped_page_at(self.tasks.get(&task)?.process, address)?;
        (page.inode != UNKNOWN).then_some(page)
    }
}

/// State of a recorded task.
#[derive(Debug, Default)]
struct RecordedTask {
    /// Number of its process.
    process: u32,
    /// Its descriptor table, which other tasks may share.
    table: DescriptorTableId,
    /// Name of the task.
    name: String,
    /// Number in the recording, assigned with its first record.
    thread: Option<u32>,
    /// System call in progress.
    call: Option<ActiveCall>,
    /// Regular file that the call in progress has opened: descriptor, object and flags.
    opened: Option<(u64, DescriptorTarget, u64)>,
    /// Fault in progress.
    fault: Option<OpenFault>,
    /// Last exception in a mapping of unknown file, and its time.
    last_exception: Option<(MappedPage, u64)>,
    /// Pages mapped by its last fault.
    mapped: Option<(Inode, PageRange)>,
    /// Start of the sleep in progress, in nanoseconds.
    sleep_since_ns: Option<u64>,
    /// End of this sleep, if the task was woken and waits for a processor.
    woken_ns: Option<u64>,
    /// Page of its last fault that was ended by a timeout, while nothing else has happened.
    expired_fault: Option<(Inode, u64)>,
    /// Time at which a device last completed one of its requests.
    last_completion_ns: u64,
    /// Ranges that it added to the kernel page cache, not yet recorded.
    inserted: Vec<InsertedRange>,
    /// Address of its last request submitted to io_uring, if that is a read.
    submitted_request: Option<u64>,
    /// Requests of the `io_submit` call in progress.
    submit_call: SubmitCall,
    /// Sleep in calls that wait for asynchronous reads.
    idle: IdleTime,
}

/// Pages from `first` to `end` (exclusive) that a task added to the kernel page cache at `at_ns`.
#[derive(Clone, Copy, Debug)]
struct InsertedRange {
    /// File of the pages.
    inode: Inode,
    /// First page.
    first: u64,
    /// Page after the last.
    end: u64,
    /// Time at which the first page was added.
    at_ns: u64,
}

/// System call in progress of a task. Times are nanoseconds since the start of the recording.
#[derive(Clone, Copy, Debug)]
struct ActiveCall {
    /// The call.
    system_call: SystemCall,
    /// Its arguments; 0 beyond the call's own ones.
    arguments: [u64; 6],
    /// Its start.
    begin_ns: u64,
    /// Sum of the task's sleeps within the call.
    waited_ns: u64,
    /// File and first page requested from the page cache.
    cache: Option<(Inode, u64)>,
    /// Longest time that a device worked on a request of this call.
    device_ns: u64,
}

impl<N: FileNames> TaskTracker<N> {
    /// Creates the state without tasks. `start_ns` is the kernel's time that all records count
    /// from.
    pub fn new(names: N, start_ns: u64) -> TaskTracker<N> {
        TaskTracker {
            names,
            start_ns,
            tasks: HashMap::new(),
            tables: Tables::default(),
            maps: Maps::default(),
            folios: Folios::default(),
            files: FileNumbers::default(),
            thread_count: 0,
            disks: HashMap::new(),
            named_disks: BTreeSet::new(),
            block_ranges: BTreeMap::new(),
            issued: HashMap::new(),
            others: OtherTasks::default(),
            pending: Asynchronous::default(),
            has_submissions: false,
            lengths: HashMap::new(),
            evicted: None,
            out: OrderedRecords::default(),
        }
    }

    /// Sets the kernel's time that all records count from. Call it before the first record is
    /// written.
    pub fn begin_at(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
    }

    /// Returns the source of names.
    pub fn names(&mut self) -> &mut N {
        &mut self.names
    }

    /// Returns the source of file names, and the mappings of the recorded tasks.
    pub fn names_and_mappings(&mut self) -> (&mut N, TaskMappings<'_>) {
        (&mut self.names, TaskMappings { tasks: &self.tasks, maps: &self.maps })
    }

    /// Declares that each read by AIO and io_uring will be reported with its range. Without this
    /// call such reads are only counted.
    pub fn expect_submissions(&mut self) {
        self.has_submissions = true;
    }

    /// Starts to follow the task `task` of `process`, whose name may be empty if it is not yet
    /// known. It shares the descriptors of its process, if another task of that process is
    /// followed already.
    pub fn add_task(&mut self, task: u32, process: u32, name: &str) {
        let table = match self.tasks.values().find(|other| other.process == process) {
            Some(other) => other.table,
            None => self.tables.add(),
        };
        let name = name.to_owned();
        self.tasks.insert(task, RecordedTask { process, table, name, ..RecordedTask::default() });
    }

    /// Returns true while the task is followed: from its start or its `add_task` until its end.
    pub fn is_recorded(&self, task: u32) -> bool {
        self.tasks.contains_key(&task)
    }

    /// Number of reads missing from the recording because their file or range is unknown.
    pub fn unlocated_reads(&self) -> u64 {
        self.pending.unseen_count
    }

    /// Returns true when no recorded task lives. The events processed so far decide.
    pub fn has_no_tasks(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Updates the state by an event, and queues the records that follow from it. Events of all
    /// processors must come in the order of their times. One before the start has the time 0.
    pub fn process(&mut self, event: TraceEvent) {
        let at_ns = event.at_ns.saturating_sub(self.start_ns);
        match event.data {
            EventData::Issue { device, sector, bytes, flags } => {
                self.on_issue(at_ns, (device, sector), bytes, &flags);
            }
            // Only requests of other programs need the task's name. The device may be a partition.
            EventData::Queue { device, sector, sectors, name } if !self.is_recorded(event.task) => {
                self.set_other_name(event.task, name);
                let disk = self.disk_number(device);
                self.on_queue(event.task, (disk, sector), sectors);
            }
            EventData::Complete { device, sector, sectors } => {
                self.on_complete(at_ns, device, sector, sectors);
            }
            EventData::Evict { inode, first, count } => self.on_evicted(at_ns, inode, first, count),
            EventData::Switch { from, from_name, sleep, to, to_name } => {
                self.rename_task(from, from_name);
                self.rename_task(to, to_name);
                if let (Some(task), Some(sleep)) = (self.tasks.get_mut(&from), sleep) {
                    (task.sleep_since_ns, task.woken_ns) = (Some(at_ns), None);
                    if let Some(fault) = &mut task.fault {
                        fault.begin_sleep(sleep);
                    }
                    let begins_sleep = true;
                    self.on_sleep_change(at_ns, from, begins_sleep);
                }
                self.on_wakeup(at_ns, to);
            }
            // The kernel adds the stack to the event of a sleep: the task sleeps on.
            EventData::Stack { .. } => {}
            EventData::Exec { former } => self.on_exec(at_ns, event.task, former),
            // The event is of the task that wakes the other one.
            EventData::Wake { task } => self.on_waking(at_ns, task),
            // With the tracer of submissions, `UringEnds` reports the same completion.
            EventData::UringComplete { request, result } => {
                if !self.has_submissions {
                    // This event has neither a file nor open flags.
                    self.on_uring_completion(at_ns, request, None, 0, result);
                }
            }
            EventData::UringEnds { request, inode, flags, result } => {
                self.on_uring_completion(at_ns, request, inode, flags, result);
            }
            EventData::UringRead { read, process } => {
                self.on_uring_read(at_ns, event.task, process, read)
            }
            data => {
                // The event of its wake-up may be missing: a task that causes an event is running.
                let sleep_start_ns =
                    self.tasks.get(&event.task).and_then(|task| task.sleep_since_ns);
                if let Some(since_ns) = sleep_start_ns {
                    // The last completion of its requests has ended the sleep, if it lies within.
                    let completion_ns = self.tasks[&event.task].last_completion_ns;
                    let woken_ns = if completion_ns > since_ns { completion_ns } else { at_ns };
                    self.on_wakeup(woken_ns, event.task);
                }
                self.process_in_task(at_ns, event.task, data);
            }
        }
    }

    /// Processes an event that happened at `at_ns` in the context of `task`. An event of a task
    /// that is not recorded has no effect.
    fn process_in_task(&mut self, at_ns: u64, task: u32, data: EventData) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        match data {
            EventData::Enter(system_call, arguments) => {
                self.on_call_begin(at_ns, task, system_call, arguments);
            }
            EventData::Exit(system_call, result) => {
                self.on_call_exit(at_ns, task, system_call, result);
            }
            EventData::CacheRead { inode, first, .. } => {
                let is_asynchronous = self.on_cache_read(at_ns, task, (inode, first));
                // Otherwise the call in progress reads the file, from its first such event on.
                let state = self.tasks.get_mut(&task).filter(|_| !is_asynchronous);
                if let Some(call) = state.and_then(|state| state.call.as_mut()) {
                    call.cache.get_or_insert((inode, first));
                }
            }
            EventData::Insert { inode, first, count } => {
                state.insert(at_ns, inode, first, count);
                self.folios.insert(inode, PageRange::new(first, count));
            }
            EventData::PageFault { address } => self.on_exception(at_ns, task, address),
            EventData::Fault { inode, page } => self.on_filemap_fault(at_ns, task, inode, page),
            EventData::MapPages { inode, first, end } => {
                self.on_map_pages(at_ns, task, inode, PageRange { first, end });
            }
            EventData::NewTask { task: new_task, name, is_thread, shares_files, .. } => {
                // A thread shares the mappings of its process, a child process has a copy.
                let (process, table) = (state.process, state.table);
                let table = if shares_files { table } else { self.tables.copy(table) };
                let process = match is_thread {
                    true => process,
                    false => {
                        self.maps.copy_process(process, new_task);
                        new_task
                    }
                };
                let new_state = RecordedTask { process, table, name, ..RecordedTask::default() };
                self.tasks.insert(new_task, new_state);
            }
            EventData::TaskEnds => self.end_task(at_ns, task),
            EventData::Queue { device, sector, sectors, .. } => {
                let disk = self.disk_number(device);
                self.on_queue(task, (disk, sector), sectors);
                self.on_aio_request(task, disk, sector, sectors);
            }
            EventData::UringSubmit { request, operation } => {
                self.on_uring_submit(at_ns, task, request, &operation);
            }
            EventData::Opened { descriptor, inode, flags } => {
                self.on_open(task, descriptor, inode, flags);
            }
            EventData::AioRead(read) => self.on_aio_submit(at_ns, task, Some(read)),
            // `None`: the request is no read.
            EventData::AioOther { .. } => self.on_aio_submit(at_ns, task, None),
            // `process` has handled the others, or they have no record.
            _ => {}
        }
    }

    /// Records that `task` began a system call at `at_ns`. It ends the open fault of the task, here
    /// without a next one (`None`).
    fn on_call_begin(&mut self, at_ns: u64, task: u32, call: SystemCall, arguments: [u64; 6]) {
        self.end_fault(task, None);
        // The start of `io_submit` may be reported after its first requests.
        if call != SystemCall::IoSubmit {
            self.abandon_submit_call(at_ns, task);
        }
        let Some(state) = self.tasks.get_mut(&task) else { return };
        state.expired_fault = None;
        state.call = Some(ActiveCall {
            system_call: call,
            arguments,
            begin_ns: at_ns,
            waited_ns: 0,
            cache: None,
            device_ns: 0,
        });
        state.opened = None;
    }

    /// Records that `task` ended a system call at `at_ns`, with the pages that it inserted and that
    /// no read has queued. `result` is the returned value, or a negative error number.
    fn on_call_exit(&mut self, at_ns: u64, task: u32, system_call: SystemCall, result: i64) {
        self.end_fault(task, None);
        let call = self.tasks.get_mut(&task).and_then(|state| state.call.take());
        // A call with a lost start gives no record.
        match call.filter(|call| call.system_call == system_call) {
            Some(call) => self.on_call_end(at_ns, task, call, result),
            None => self.abandon_submit_call(at_ns, task),
        }
        self.put_inserted(at_ns, task);
    }

    /// Ends the fault and the reads of a task, queues its records of added pages, and removes it.
    fn end_task(&mut self, at_ns: u64, task: u32) {
        self.end_fault(task, None);
        self.put_inserted(at_ns, task);
        self.abandon_reads(at_ns, Some(task));
        self.remove_task(task);
    }

    /// Removes an ended task, with its maps and its descriptor table if no other task uses them.
    fn remove_task(&mut self, task: u32) {
        let Some(state) = self.tasks.remove(&task) else { return };
        if !self.tasks.values().any(|other| other.process == state.process) {
            self.maps.remove_process(state.process);
        }
        if !self.tasks.values().any(|other| other.table == state.table) {
            self.tables.remove(state.table);
        }
    }

    /// Sets the name of a recorded task. A changed name of a task with records becomes a name
    /// record. An empty name, and a task that is not recorded, have no effect.
    fn rename_task(&mut self, task: u32, name: String) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        if state.name != name && !name.is_empty() {
            state.name = name;
            if let Some(thread) = state.thread {
                let record =
                    ThreadName { thread, task, process: state.process, name: state.name.clone() };
                self.out.put_name(Record::Thread(record));
            }
        }
    }

    /// Queues the records of pages that the task added to the page cache up to `end_ns`. Later
    /// pages stay in its state.
    fn put_inserted(&mut self, end_ns: u64, task: u32) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        if state.inserted.is_empty() {
            return;
        }
        // Later pages belong to the task's next call.
        let (inserted, later) = { std::mem::take(&mut state.inserted).into_iter() }
            .partition::<Vec<_>, _>(|inserted| inserted.at_ns <= end_ns);
        state.inserted = later;
        let Some(thread) = self.thread_number(task) else { return };
        for InsertedRange { inode, first, end, at_ns } in inserted {
            let file = self.file_number(inode, None);
            let (offset, bytes) = (first * PAGE_BYTES, (end - first) * PAGE_BYTES);
            self.out
                .put(end_ns, Record::Insert(PagesInserted { at_ns, thread, file, offset, bytes }));
        }
    }

    /// Queues a record of evicted pages. A range that continues the previous one extends its
    /// record. Files without a record are ignored.
    fn on_evicted(&mut self, at_ns: u64, inode: Inode, first_page: u64, page_count: u64) {
        let Some(file) = self.files.number(inode) else { return };
        let (offset, bytes) = (first_page * PAGE_BYTES, page_count * PAGE_BYTES);
        match &mut self.evicted {
            Some(last) if last.file == file && last.offset + last.bytes == offset => {
                last.bytes += bytes;
            }
            _ => {
                self.put_evicted(at_ns);
                self.evicted = Some(PagesEvicted { at_ns, file, offset, bytes });
            }
        }
    }

    /// Queues the pending record of evicted pages, if any. `at_ns` is its time in the order of the
    /// records, which may be later than the eviction.
    fn put_evicted(&mut self, at_ns: u64) {
        if let Some(evicted) = self.evicted.take() {
            self.out.put(at_ns, Record::Evict(evicted));
        }
    }

    /// Returns the records that are final after all events up to `now_ns` of the kernel's clock. No
    /// earlier record can follow them. Faults end here at their timeout, unless their tasks sleep.
    pub fn take_final_records(&mut self, now_ns: u64) -> impl Iterator<Item = Record> + '_ {
        let elapsed_ns = now_ns.saturating_sub(self.start_ns);
        for task in self.timed_out_faults(elapsed_ns) {
            self.expire_fault(task);
        }
        self.put_evicted(elapsed_ns);
        self.put_missing(elapsed_ns);
        self.out.drain(elapsed_ns)
    }

    /// Ends the faults and asynchronous reads of all tasks at `now_ns` of the kernel's clock. Calls
    /// in progress have no record. Returns all remaining records.
    pub fn finish(&mut self, now_ns: u64) -> impl Iterator<Item = Record> + '_ {
        let elapsed_ns = now_ns.saturating_sub(self.start_ns);
        for task in self.tasks.keys().copied().collect::<Vec<u32>>() {
            self.end_fault(task, None);
            self.put_inserted(elapsed_ns, task);
        }
        self.abandon_reads(elapsed_ns, None);
        self.put_missing(elapsed_ns);
        self.put_evicted(elapsed_ns);
        self.out.drain(u64::MAX)
    }

    /// Returns the thread number of a task in the recording, or `None` for a task that is not
    /// recorded. The first call for a task queues its name record.
    fn thread_number(&mut self, task: u32) -> Option<u32> {
        let state = self.tasks.get_mut(&task)?;
        if state.thread.is_none() {
            let thread = self.thread_count;
            self.thread_count += 1;
            state.thread = Some(thread);
            let (process, name) = (state.process, state.name.clone());
            self.out.put_name(Record::Thread(ThreadName { thread, task, process, name }));
        }
        state.thread
    }

    /// Returns the file number of an inode in the recording. The first call for an inode queues its
    /// name record: with `named`, with the system's name, or with a placeholder.
    fn file_number(&mut self, inode: Inode, named: Option<NamedFile>) -> u32 {
        if let Some(file) = self.files.number(inode) {
            return file;
        }
        let file = self.files.add(inode);
        let named = named
            .or_else(|| self.names.file(inode))
            .unwrap_or_else(|| NamedFile { path: self.placeholder_name(inode), bytes: None });
        let device = self.disk_number(inode.device);
        let NamedFile { path, bytes } = named;
        self.lengths.extend(bytes.map(|bytes| (file, bytes)));
        let inode = inode.number;
        self.out.put_name(Record::File(FileRecord { file, device, inode, bytes, path }));
        file
    }

    /// Returns the name in the recording of a file whose path is unknown.
    fn placeholder_name(&mut self, inode: Inode) -> String {
        let (major, minor) = device_number::parts(inode.device);
        // A block device's own pages have an inode of no device (major number 0), whose number is
        // the number of the block device.
        let disk = (major == 0).then(|| self.names.disk(inode.number).name);
        match disk.filter(|name| !name.is_empty()) {
            Some(name) => format!("(blocks of {name} that are of no file)"),
            _ => format!("(inode {} of {major}:{minor})", inode.number),
        }
    }

    /// Returns the number of the disk of a device, which may be a partition. The first call for a
    /// disk queues its name record.
    fn disk_number(&mut self, device: u64) -> u64 {
        if let Some(&disk) = self.disks.get(&device) {
            return disk;
        }
        let record = self.names.disk(device);
        let disk = record.device;
        self.disks.insert(device, disk);
        if self.named_disks.insert(disk) {
            self.out.put_name(Record::Device(record));
        }
        disk
    }
}

impl RecordedTask {
    /// Records pages that the task added to the page cache at `at_ns`. Contiguous ones become one
    /// range with the time of its first page.
    fn insert(&mut self, at_ns: u64, inode: Inode, first_page: u64, page_count: u64) {
        let end_page = first_page.saturating_add(page_count);
        match self.inserted.last_mut() {
            Some(last) if last.inode == inode && last.end == first_page => last.end = end_page,
            _ => {
                let range = InsertedRange { inode, first: first_page, end: end_page, at_ns };
                self.inserted.push(range);
            }
        }
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod tests;
