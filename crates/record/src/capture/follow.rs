//! Converts the kernel's events to the records of a recording.
//!
//! For each recorded task the state contains its system call, its fault, and the pages that it
//! added to the cache. For each process it contains the files and positions of its descriptors,
//! which follow from open, close, dup and seek calls. The page cache's events name the file of a
//! read by its inode. Without such an event (direct I/O, end of a file) the descriptor identifies
//! the file.
//!
//! Faults are handled in [`faults`].

use std::collections::{BTreeMap, BTreeSet, HashMap};

use readpath_core::unit::PageRange;

use readpath_trace::recording::{
    DeviceOperation, FileRecord, PagesEvicted, PagesInserted, Record, ThreadName,
};

use super::event::{EventData, Inode, SystemCall, TraceEvent};
use super::folios::Folios;
use super::maps::{MappedPage, Maps, UNKNOWN};
use super::names::{FileNames, NamedFile};
use super::tables::{DescriptorTableId, DescriptorTarget, Tables};
use requests::OtherTasks;

mod advice;
mod asynchronous;
mod descriptors;
mod faults;
mod ordered;
mod requests;

use asynchronous::{AsyncRead, Asynchronous, IdleTime};
use faults::InFault;
use ordered::Ordered;

/// Page size in bytes used by the events.
const PAGE_BYTES: u64 = 4096;

/// Time in nanoseconds after the start of a fault, after which a fault without a wait is complete.
const FAULT_TIMEOUT_NS: u64 = 2_000_000;

/// State of all recorded tasks.
#[derive(Debug)]
pub(super) struct TaskTracker<N> {
    names: N,
    /// Start time of the recording.
    start_ns: u64,
    tasks: HashMap<u32, RecordedTask>,
    tables: Tables,
    maps: Maps,
    folios: Folios,
    files: HashMap<Inode, u32>,
    threads: u32,
    /// Disk of each device, by the kernel's numbers.
    disks: HashMap<u64, u64>,
    named_disks: BTreeSet<u64>,
    /// Block ranges requested by tasks. By disk and first sector: the end sector and the
    /// task.
    queued: BTreeMap<(u64, u64), (u64, u32)>,
    issued: HashMap<(u64, u64), Issued>,
    others: OtherTasks,
    pending: Asynchronous,
    /// True when reads of AIO and io_uring are reported with their ranges.
    has_submissions: bool,
    /// Length of each file when it was first found.
    lengths: HashMap<u32, u64>,
    evicted: Option<PagesEvicted>,
    out: Ordered,
}

/// Mappings of the recorded tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskMappings<'a> {
    tasks: &'a HashMap<u32, RecordedTask>,
    maps: &'a Maps,
}

impl TaskMappings<'_> {
    /// Returns the page of a file at an address of a task.
    pub fn at(&self, task: u32, address: u64) -> Option<MappedPage> {
        let place = self.maps.at(self.tasks.get(&task)?.process, address)?;
        (place.inode != UNKNOWN).then_some(place)
    }
}

/// State of a recorded task.
#[derive(Debug, Default)]
struct RecordedTask {
    process: u32,
    table: DescriptorTableId,
    name: String,
    /// Number in the recording, assigned with its first record.
    thread: Option<u32>,
    call: Option<InCall>,
    /// Regular file that the call in progress has opened: descriptor, object and flags.
    opened: Option<(u64, DescriptorTarget, u64)>,
    fault: Option<InFault>,
    /// Last exception in a mapping of unknown file, and its time.
    last_exception: Option<(MappedPage, u64)>,
    /// Pages mapped by its last fault.
    mapped: Option<(Inode, PageRange)>,
    waits_since: Option<u64>,
    /// Page of its last fault that was ended by a timeout, while nothing else has happened.
    expired_fault: Option<(Inode, u64)>,
    /// Time at which a device last completed one of its requests.
    answered_ns: u64,
    /// Ranges added to the kernel page cache: inode, first page, end page, time.
    inserted: Vec<(Inode, u64, u64, u64)>,
    /// Last read submitted to io_uring.
    submitted: Option<u64>,
    /// Reads of the `io_submit` call in progress.
    submitted_reads: Vec<AsyncRead>,
    idle: IdleTime,
}

#[derive(Clone, Copy, Debug)]
struct InCall {
    call: SystemCall,
    arguments: [u64; 6],
    begin_ns: u64,
    waited_ns: u64,
    /// File and first page requested from the page cache.
    cache: Option<(Inode, u64)>,
    /// Longest time that a device worked on a request of this call.
    device_ns: u64,
}

#[derive(Clone, Debug)]
struct Issued {
    begin_ns: u64,
    bytes: u64,
    work: DeviceOperation,
    is_ahead: bool,
    /// Task that requested it.
    task: Option<u32>,
}

impl<N: FileNames> TaskTracker<N> {
    /// Creates the state without tasks. Times count from `start_ns`.
    pub fn new(names: N, start_ns: u64) -> TaskTracker<N> {
        TaskTracker {
            names,
            start_ns,
            tasks: HashMap::new(),
            tables: Tables::default(),
            maps: Maps::default(),
            folios: Folios::default(),
            files: HashMap::new(),
            threads: 0,
            disks: HashMap::new(),
            named_disks: BTreeSet::new(),
            queued: BTreeMap::new(),
            issued: HashMap::new(),
            others: OtherTasks::default(),
            pending: Asynchronous::default(),
            has_submissions: false,
            lengths: HashMap::new(),
            evicted: None,
            out: Ordered::default(),
        }
    }

    /// Counts times from `start_ns`. No record was written yet.
    pub fn begin_at(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
    }

    /// Returns the source of names.
    pub fn names(&mut self) -> &mut N {
        &mut self.names
    }

    /// Returns the source of names and the mappings.
    pub fn names_and_places(&mut self) -> (&mut N, TaskMappings<'_>) {
        (&mut self.names, TaskMappings { tasks: &self.tasks, maps: &self.maps })
    }

    /// Declares that reads of AIO and io_uring will be reported with their ranges.
    pub fn expect_submissions(&mut self) {
        self.has_submissions = true;
    }

    /// Adds a task.
    pub fn add_task(&mut self, task: u32, process: u32, name: &str) {
        let table = match self.tasks.values().find(|other| other.process == process) {
            Some(other) => other.table,
            None => self.tables.add(),
        };
        let name = name.to_owned();
        self.tasks.insert(task, RecordedTask { process, table, name, ..RecordedTask::default() });
    }

    /// Returns true when the task is recorded.
    pub fn is_recorded(&self, task: u32) -> bool {
        self.tasks.contains_key(&task)
    }

    /// Number of reads missing from the recording because their file or range is unknown.
    pub fn unlocated_reads(&self) -> u64 {
        self.pending.unseen_count
    }

    /// Returns true when no recorded task lives.
    pub fn has_no_tasks(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Processes an event. Events of all processors must come in the order of their times.
    pub fn take(&mut self, event: TraceEvent) {
        let at = event.at_ns.saturating_sub(self.start_ns);
        match event.data {
            EventData::Issue { device, sector, bytes, flags } => {
                self.issue(at, (device, sector), bytes, &flags);
            }
            EventData::Queue { device, sector, sectors, name } if !self.is_recorded(event.task) => {
                self.name_other(event.task, name);
                let disk = self.disk(device);
                self.queue(event.task, (disk, sector), sectors);
            }
            EventData::Complete { device, sector, sectors } => {
                self.complete(at, device, sector, sectors);
            }
            EventData::Evict { inode, first, count } => self.evict(at, inode, first, count),
            EventData::Switch { from, from_name, sleep, to, to_name } => {
                self.rename(from, from_name);
                self.rename(to, to_name);
                if let (Some(task), Some(sleep)) = (self.tasks.get_mut(&from), sleep) {
                    task.waits_since = Some(at);
                    if let Some(fault) = &mut task.fault {
                        fault.sleep(sleep);
                    }
                    self.on_sleep_change(at, from, true);
                }
                self.on_wakeup(at, to);
            }
            // The kernel adds the stack to the event of a sleep: the task sleeps on. The task of a
            // wake-up may be any.
            EventData::Stack { .. } | EventData::Wake { .. } => {}
            EventData::UringComplete { request, result } => {
                if !self.has_submissions {
                    self.on_uring_completion(at, request, None, result);
                }
            }
            EventData::UringEnds { request, inode, result } => {
                self.on_uring_completion(at, request, inode, result);
            }
            EventData::UringRead(given, process) => {
                self.on_uring_read(at, event.task, process, given)
            }
            what => {
                // The scheduler's event of the wake-up may be missing. A task that causes an event
                // is running.
                let slept = self.tasks.get(&event.task).and_then(|task| task.waits_since);
                if let Some(since) = slept {
                    let answered_ns = self.tasks[&event.task].answered_ns;
                    let woken = if answered_ns > since { answered_ns } else { at };
                    self.on_wakeup(woken, event.task);
                }
                self.of_task(at, event.task, what);
            }
        }
    }

    /// Processes an event in the context of a task.
    fn of_task(&mut self, at: u64, number: u32, what: EventData) {
        let Some(task) = self.tasks.get_mut(&number) else { return };
        match what {
            EventData::Enter(call, arguments) => {
                self.end_fault(number, None);
                let task = self.tasks.get_mut(&number).expect("it is there");
                task.expired_fault = None;
                let (waited_ns, cache) = (0, None);
                let (begin_ns, device_ns) = (at, 0);
                task.call = Some(InCall { call, arguments, begin_ns, waited_ns, cache, device_ns });
                task.opened = None;
            }
            EventData::Exit(call, result) => {
                self.end_fault(number, None);
                let task = self.tasks.get_mut(&number).expect("it is there");
                // A call with a lost start gives no record.
                if let Some(entered) = task.call.take().filter(|entered| entered.call == call) {
                    self.on_call_end(at, number, entered, result);
                }
                self.put_inserted(at, number);
            }
            EventData::CacheRead { inode, first, .. } => {
                let is_asynchronous = self.on_cache_read(at, number, (inode, first));
                let task = self.tasks.get_mut(&number).filter(|_| !is_asynchronous);
                if let Some(entered) = task.and_then(|task| task.call.as_mut()) {
                    entered.cache.get_or_insert((inode, first));
                }
            }
            EventData::Insert { inode, first, count } => {
                task.insert(at, inode, first, count);
                self.folios.insert(inode, PageRange::new(first, count));
            }
            EventData::PageFault { address } => self.page_fault(at, number, address),
            EventData::Fault { inode, page } => self.filemap_fault(at, number, inode, page),
            EventData::MapPages { inode, first, end } => {
                self.map_pages(at, number, inode, PageRange { first, end: end.max(first + 1) });
            }
            EventData::NewTask { task: new, name, is_thread, shares_files } => {
                let (process, table) = (task.process, task.table);
                let child = if is_thread { process } else { new };
                let table = if shares_files { table } else { self.tables.copy(table) };
                if !is_thread {
                    self.maps.copy(process, new);
                }
                let process = child;
                self.tasks
                    .insert(new, RecordedTask { process, table, name, ..RecordedTask::default() });
            }
            EventData::Exec => {
                let process = task.process;
                self.end_fault(number, None);
                self.maps.forget(process);
            }
            EventData::TaskEnds => {
                self.end_fault(number, None);
                self.put_inserted(at, number);
                self.abandon(at, Some(number));
                self.remove_task(number);
            }
            EventData::Queue { device, sector, sectors, .. } => {
                let disk = self.disk(device);
                self.queue(number, (disk, sector), sectors);
                self.on_aio_request(number, disk, sector, sectors);
            }
            EventData::UringSubmit { request, operation } => {
                self.on_uring_submit(at, number, request, &operation);
            }
            EventData::Opened { descriptor, inode, flags } => {
                self.on_open(number, descriptor, inode, flags);
            }
            EventData::AioRead(given) => self.on_aio_read(at, number, given),
            _ => {}
        }
    }

    /// Removes an ended task, with its maps and its descriptor table if no other task uses them.
    fn remove_task(&mut self, number: u32) {
        let Some(task) = self.tasks.remove(&number) else { return };
        if !self.tasks.values().any(|other| other.process == task.process) {
            self.maps.forget(task.process);
        }
        if !self.tasks.values().any(|other| other.table == task.table) {
            self.tables.remove(task.table);
        }
    }

    /// Records a new name of a task.
    fn rename(&mut self, number: u32, name: String) {
        let Some(task) = self.tasks.get_mut(&number) else { return };
        if task.name != name && !name.is_empty() {
            task.name = name;
            if let Some(thread) = task.thread {
                let record = ThreadName {
                    thread,
                    task: number,
                    process: task.process,
                    name: task.name.clone(),
                };
                self.out.name(Record::Thread(record));
            }
        }
    }

    /// Writes the records of pages that a task added to the cache.
    fn put_inserted(&mut self, at: u64, number: u32) {
        let Some(task) = self.tasks.get_mut(&number) else { return };
        if task.inserted.is_empty() {
            return;
        }
        // Later pages belong to the task's next call.
        let (inserted, later) = { std::mem::take(&mut task.inserted).into_iter() }
            .partition::<Vec<_>, _>(|inserted| inserted.3 <= at);
        task.inserted = later;
        let Some(thread) = self.thread(number) else { return };
        for (inode, first, end, at_ns) in inserted {
            let file = self.file(inode, None);
            let (offset, bytes) = (first * PAGE_BYTES, (end - first) * PAGE_BYTES);
            self.out.put(at, Record::Insert(PagesInserted { at_ns, thread, file, offset, bytes }));
        }
    }

    /// Records evicted pages. Contiguous ones become one record.
    fn evict(&mut self, at_ns: u64, inode: Inode, first: u64, count: u64) {
        let Some(&file) = self.files.get(&inode) else { return };
        let (offset, bytes) = (first * PAGE_BYTES, count * PAGE_BYTES);
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

    /// Writes the pending record of evicted pages.
    fn put_evicted(&mut self, at: u64) {
        if let Some(evicted) = self.evicted.take() {
            self.out.put(at, Record::Evict(evicted));
        }
    }

    /// Returns the records that are final after all events up to `now_ns`, since no earlier record
    /// can follow.
    pub fn take_final_records(&mut self, now_ns: u64) -> impl Iterator<Item = Record> + '_ {
        let now = now_ns.saturating_sub(self.start_ns);
        for number in self.old_faults(now) {
            self.expire_fault(number);
        }
        self.put_evicted(now);
        self.put_missing(now);
        self.out.drain(now)
    }

    /// Returns all remaining records.
    pub fn finish(&mut self, now_ns: u64) -> impl Iterator<Item = Record> + '_ {
        for number in self.tasks.keys().copied().collect::<Vec<u32>>() {
            self.end_fault(number, None);
            self.put_inserted(now_ns.saturating_sub(self.start_ns), number);
        }
        let now = now_ns.saturating_sub(self.start_ns);
        self.abandon(now, None);
        self.put_missing(now);
        self.put_evicted(now);
        self.out.drain(u64::MAX)
    }

    /// Returns the number of a task in the recording. A new number gets a name record.
    fn thread(&mut self, number: u32) -> Option<u32> {
        let task = self.tasks.get_mut(&number)?;
        if task.thread.is_none() {
            let thread = self.threads;
            self.threads += 1;
            task.thread = Some(thread);
            let (process, name) = (task.process, task.name.clone());
            self.out.name(Record::Thread(ThreadName { thread, task: number, process, name }));
        }
        task.thread
    }

    /// Returns the number of a file in the recording. A new number gets a name record.
    fn file(&mut self, inode: Inode, held: Option<NamedFile>) -> u32 {
        if let Some(&file) = self.files.get(&inode) {
            return file;
        }
        let file = self.files.len() as u32;
        self.files.insert(inode, file);
        let named = held
            .or_else(|| self.names.file(inode))
            .unwrap_or_else(|| NamedFile { path: self.placeholder_name(inode), bytes: None });
        let device = self.disk(inode.device);
        let NamedFile { path, bytes } = named;
        self.lengths.extend(bytes.map(|bytes| (file, bytes)));
        self.out.name(Record::File(FileRecord { file, device, inode: inode.number, bytes, path }));
        file
    }

    /// Returns a name for a file of unknown path.
    fn placeholder_name(&mut self, inode: Inode) -> String {
        let number = |device: u64| format!("{}:{}", device >> 20, device & 0xf_ffff);
        // The inode number of a block device's own pages is the device number.
        let disk = (inode.device >> 20 == 0).then(|| self.names.disk(inode.number).name);
        match disk.filter(|name| !name.is_empty()) {
            Some(name) => format!("(blocks of {name} that are of no file)"),
            None => format!("(inode {} of {})", inode.number, number(inode.device)),
        }
    }

    /// Returns the disk of a device. A new disk gets a name record.
    fn disk(&mut self, device: u64) -> u64 {
        if let Some(&disk) = self.disks.get(&device) {
            return disk;
        }
        let disk = self.names.disk(device);
        let number = disk.device;
        self.disks.insert(device, number);
        if self.named_disks.insert(number) {
            self.out.name(Record::Device(disk));
        }
        number
    }
}

impl RecordedTask {
    /// Records inserted pages. Contiguous ones become one range.
    fn insert(&mut self, at: u64, inode: Inode, first: u64, count: u64) {
        let end = first.saturating_add(count);
        match self.inserted.last_mut() {
            Some((last, _, last_end, _)) if *last == inode && *last_end == first => *last_end = end,
            _ => self.inserted.push((inode, first, end, at)),
        }
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod tests;
