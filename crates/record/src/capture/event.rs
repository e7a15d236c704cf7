//! Decoder of the kernel's events about a program's reads.

use std::collections::HashMap;

use readpath_trace::recording::Activity;

use super::layout::{EventField, EventLayout};
use crate::tracefs::{Instance, TracefsError};

/// Identity of a file in the kernel's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Inode {
    /// Device number: major × 2²⁰ + minor.
    pub device: u64,
    /// Inode number.
    pub number: u64,
}

/// A recorded system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SystemCall {
    Read,
    Pread,
    Readv,
    Preadv,
    Open,
    OpenAt,
    OpenAt2,
    Close,
    Dup,
    Dup2,
    Fcntl,
    Lseek,
    Mmap,
    Munmap,
    Mremap,
    Mlock,
    Madvise,
    Fadvise,
    Readahead,
    Sendfile,
    CopyFileRange,
    Splice,
    IoSubmit,
    IoGetevents,
    UringEnter,
}

/// Calls by the names of their events. `dup3` is `dup2` with flags, `preadv2` is `preadv` with
/// flags.
const CALLS: [(&str, SystemCall); 29] = [
    ("read", SystemCall::Read),
    ("pread64", SystemCall::Pread),
    ("readv", SystemCall::Readv),
    ("preadv", SystemCall::Preadv),
    ("preadv2", SystemCall::Preadv),
    ("open", SystemCall::Open),
    ("openat", SystemCall::OpenAt),
    ("openat2", SystemCall::OpenAt2),
    ("close", SystemCall::Close),
    ("dup", SystemCall::Dup),
    ("dup2", SystemCall::Dup2),
    ("dup3", SystemCall::Dup2),
    ("fcntl", SystemCall::Fcntl),
    ("lseek", SystemCall::Lseek),
    ("mmap", SystemCall::Mmap),
    ("munmap", SystemCall::Munmap),
    ("mremap", SystemCall::Mremap),
    ("mlock", SystemCall::Mlock),
    ("mlock2", SystemCall::Mlock),
    ("madvise", SystemCall::Madvise),
    ("fadvise64", SystemCall::Fadvise),
    ("readahead", SystemCall::Readahead),
    ("sendfile64", SystemCall::Sendfile),
    ("copy_file_range", SystemCall::CopyFileRange),
    ("splice", SystemCall::Splice),
    ("io_submit", SystemCall::IoSubmit),
    ("io_getevents", SystemCall::IoGetevents),
    ("io_pgetevents", SystemCall::IoGetevents),
    ("io_uring_enter", SystemCall::UringEnter),
];

/// Offset of a read at the position of its file.
pub(super) const AT_POSITION: u64 = u64::MAX;

/// A read submitted to AIO or io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SubmittedRead {
    /// Address of the request.
    pub request: u64,
    /// `None` for a file registered with io_uring.
    pub descriptor: Option<u64>,
    /// Offset in bytes, or [`AT_POSITION`].
    pub offset: u64,
    /// `None` for vectors, whose lengths are in the program's memory.
    pub bytes: Option<u64>,
}

/// Kinds of events with their data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventData {
    /// A system call begins with these arguments.
    Enter(SystemCall, [u64; 6]),
    /// A system call ends with this result.
    Exit(SystemCall, i64),
    /// A read requests the pages from `first` to `end` (exclusive) from the page cache.
    CacheRead { inode: Inode, first: u64, end: u64 },
    /// Pages are added to the kernel page cache.
    Insert { inode: Inode, first: u64, count: u64 },
    /// A read access to an address without an entry in the page table.
    PageFault { address: u64 },
    /// Pages are evicted from the kernel page cache.
    Evict { inode: Inode, first: u64, count: u64 },
    /// A touch of a mapping needs an absent page.
    Fault { inode: Inode, page: u64 },
    /// A touch of a mapping finds resident pages, which are mapped.
    MapPages { inode: Inode, first: u64, end: u64 },
    /// A processor switches from one task to another.
    Switch { from: u32, from_name: String, sleep: Option<Sleep>, to: u32, to_name: String },
    /// A sleeping task may run again.
    Wake { task: u32 },
    /// Kernel stack of a task that has just left its processor to sleep, innermost first.
    Stack { addresses: Vec<u64> },
    /// A task is created. The kernel creates the threads of io_uring (`is_kernel_io`).
    NewTask { task: u32, name: String, is_thread: bool, is_kernel_io: bool, shares_files: bool },
    /// A task executes another program. `former` is its number before that, or 0 if it is unknown:
    /// a thread gets the number of the main thread, which it replaces.
    Exec { former: u32 },
    /// A task ends.
    TaskEnds,
    /// A task queues a block range, which becomes one or more requests.
    Queue { device: u64, sector: u64, sectors: u64, name: String },
    /// A request is sent to a device.
    Issue { device: u64, sector: u64, bytes: u64, flags: String },
    /// A device completes a request or a part of it.
    Complete { device: u64, sector: u64, sectors: u64 },
    /// A read is submitted to AIO.
    AioRead(SubmittedRead),
    /// A request that is no read is submitted to AIO. `activity`: of a thread that waits for it.
    AioOther { activity: Activity },
    /// A process submits a read to io_uring. The task of the event may be a kernel thread.
    UringRead { read: SubmittedRead, process: u32 },
    /// A request of io_uring completes, with its regular file and the flags of the open file.
    UringEnds { request: u64, inode: Option<Inode>, flags: u64, result: i32 },
    /// A regular file was opened.
    Opened { descriptor: u64, inode: Inode, flags: u64 },
    /// An operation is submitted to io_uring.
    UringSubmit { request: u64, operation: String },
    /// An operation of io_uring completes.
    UringComplete { request: u64, result: i32 },
}

/// An event with time and task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TraceEvent {
    /// Time of the kernel's monotonic clock.
    pub at_ns: u64,
    /// Task in whose context it happened.
    pub task: u32,
    /// Kind of the event, with its data.
    pub data: EventData,
}

/// Events of recorded tasks that are required for a recording.
const REQUIRED_TASK_EVENTS: [&str; 3] =
    ["filemap/mm_filemap_add_to_page_cache", "sched/sched_switch", "task/task_newtask"];

/// Events of recorded tasks that older kernels lack.
const OPTIONAL_TASK_EVENTS: [&str; 11] = [
    PAGE_FAULT,
    "exceptions/page_fault_kernel",
    "filemap/mm_filemap_get_pages",
    "filemap/mm_filemap_fault",
    "filemap/mm_filemap_map_pages",
    "sched/sched_process_exec",
    "sched/sched_process_exit",
    "sched/sched_waking",
    "io_uring/io_uring_submit_req",
    "io_uring/io_uring_submit_sqe",
    "io_uring/io_uring_complete",
];

/// Event of faults by the program's own instructions.
pub(super) const PAGE_FAULT: &str = "exceptions/page_fault_user";

/// Event of the kernel's stack.
const STACK: &str = "ftrace/kernel_stack";

/// Trigger that adds the stack to each switch away from a task that sleeps, by the states that
/// [`Sleep::of_state`] reports.
const SLEEP_STACK_TRIGGER: &str = "stacktrace if prev_state & 255";

/// Flags of a new thread that the kernel itself adds to a process: for io_uring.
const KERNEL_THREAD_FLAGS: u64 = (libc::CLONE_THREAD | libc::CLONE_UNTRACED) as u64;

/// Filter that excludes write faults (bit 1 of the code). Nearly all of them concern memory without
/// a file, and they are far more frequent. A write to a file mapping has events of `filemap`.
const READ_FAULT_FILTER: &str = "!(error_code & 2)";

/// Events of all tasks that are required for a recording.
const REQUIRED_GLOBAL_EVENTS: [&str; 2] = ["block/block_rq_issue", "block/block_rq_complete"];

/// Events of all tasks that older kernels lack.
const OPTIONAL_GLOBAL_EVENTS: [&str; 2] =
    ["block/block_bio_queue", "filemap/mm_filemap_delete_from_page_cache"];

/// Decoder of an instance's events.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// Kinds of the enabled events, by their numbers.
    kinds: HashMap<u16, EventKind>,
    /// Names of the optional events that this kernel lacks, or has in an unknown form.
    missing: Vec<String>,
}

/// Files of the kernel's events.
pub(super) trait EventFiles {
    /// Reads a file.
    ///
    /// # Errors
    /// The kernel lacks it.
    fn read(&self, file: &str) -> Result<String, TracefsError>;

    /// Writes to a file.
    ///
    /// # Errors
    /// The kernel lacks it or refuses the text.
    fn write(&self, file: &str, text: &str) -> Result<(), TracefsError>;
}

impl EventFiles for Instance {
    fn read(&self, file: &str) -> Result<String, TracefsError> {
        Instance::read(self, file)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), TracefsError> {
        Instance::write(self, file, text)
    }
}

/// Optional events, and the gap in a recording if none of them exists.
const CONSEQUENCES: [(&[&str], &str); 11] = [
    (&["block/block_bio_queue"], "requests of devices are not assigned to threads"),
    (&["filemap/mm_filemap_get_pages"], "files of reads are known by their descriptors only"),
    (&["filemap/mm_filemap_fault"], "waits for touches of mappings are not seen"),
    (&["filemap/mm_filemap_map_pages"], "touches of mapped pages in memory are not seen"),
    (&[PAGE_FAULT], "the addresses of touches are not known"),
    (&["sched/sched_process_exit"], "the ends of threads are not seen"),
    (&["sched/sched_waking"], "waits for a processor count as the waits before them"),
    (&[STACK], "what a thread waits for is not known"),
    (&["io_uring/io_uring_complete"], "reads by io_uring are not seen"),
    (
        &["io_uring/io_uring_submit_req", "io_uring/io_uring_submit_sqe"],
        "reads by io_uring are not seen",
    ),
    (&["filemap/mm_filemap_delete_from_page_cache"], "evicted pages are not seen"),
];

/// Calls whose absence is no gap: some architectures and older kernels lack them, and programs use
/// another call there.
const REPLACED_CALLS: [&str; 5] = ["open", "dup2", "preadv2", "mlock2", "io_pgetevents"];

/// Kind of an event, with the fields that contain its data. `event_kind` lists the fields in their
/// order.
#[derive(Debug)]
enum EventKind {
    Enter(SystemCall, Vec<EventField>),
    Exit(SystemCall, EventField),
    Pages(PageEvent, [EventField; 4]),
    Switch([EventField; 5]),
    Wake(EventField),
    Stack([EventField; 2]),
    NewTask([EventField; 3]),
    PageFault(EventField),
    Exec(EventField),
    TaskEnds,
    Queue([EventField; 4]),
    Issue([EventField; 4]),
    Complete([EventField; 3]),
    UringSubmit([EventField; 2]),
    UringComplete([EventField; 2]),
}

/// Events about pages of a file, which have the same fields. [`EventData`] describes each of them.
#[derive(Clone, Copy, Debug)]
enum PageEvent {
    CacheRead,
    Insert,
    Evict,
    Fault,
    MapPages,
}

impl PageEvent {
    /// Decodes the bytes of the event. `fields` are the device, the inode, and two about pages.
    fn decode(self, fields: &[EventField; 4], bytes: &[u8]) -> EventData {
        let [device, number, first, last_or_order] =
            fields.each_ref().map(|field| field.value(bytes));
        let inode = Inode { device, number };
        // The fourth field is the last page of the range. An insertion and an eviction have the
        // order of the folio there: the binary logarithm of its pages. A shift by more than 63 bits
        // would overflow. The field is 0 where the kernel lacks it: the event has one page then.
        let folio_pages = 1 << last_or_order.min(63);
        let end = last_or_order.max(first).saturating_add(1);
        match self {
            PageEvent::CacheRead => EventData::CacheRead { inode, first, end },
            PageEvent::Insert => EventData::Insert { inode, first, count: folio_pages },
            PageEvent::Evict => EventData::Evict { inode, first, count: folio_pages },
            PageEvent::Fault => EventData::Fault { inode, page: first },
            PageEvent::MapPages => EventData::MapPages { inode, first, end },
        }
    }
}

impl Decoder {
    /// Enables the events of recorded tasks in an instance, with the kernel's stack at each sleep.
    /// Returns their decoder. Fails as
    /// [`of_tasks_without_stacks`](Decoder::of_tasks_without_stacks) does: a kernel without stacks
    /// only adds a gap.
    pub fn of_tasks(instance: &impl EventFiles) -> Result<Decoder, TracefsError> {
        let mut decoder = Decoder::of_tasks_without_stacks(instance)?;
        if decoder.add_stacks(instance).is_err() {
            decoder.missing.push(STACK.to_owned());
        }
        Ok(decoder)
    }

    /// Enables the events of recorded tasks in an instance and returns their decoder. Fails only if
    /// the kernel has no event of system calls, or if it lacks a required event or its fields.
    pub fn of_tasks_without_stacks(instance: &impl EventFiles) -> Result<Decoder, TracefsError> {
        let mut decoder = Decoder::default();
        for (name, call) in CALLS {
            let [enter, exit] = ["enter", "exit"].map(|side| format!("syscalls/sys_{side}_{name}"));
            let (Ok(enter_layout), Ok(exit_layout)) =
                (enable_event(instance, &enter), enable_event(instance, &exit))
            else {
                decoder.missing.push(name.to_owned());
                continue;
            };
            decoder.kinds.insert(enter_layout.id, EventKind::Enter(call, enter_layout.arguments()));
            decoder.kinds.insert(exit_layout.id, EventKind::Exit(call, exit_layout.field("ret")));
        }
        if decoder.kinds.is_empty() {
            // The error of the first event explains the failure.
            enable_event(instance, "syscalls/sys_enter_read")?;
        }
        decoder.add_events(instance, &REQUIRED_TASK_EVENTS, &OPTIONAL_TASK_EVENTS)?;
        Ok(decoder)
    }

    /// Enables the events without a task (device requests, evicted pages) in an instance. Returns
    /// their decoder. Fails if the kernel lacks a required event.
    pub fn of_system(instance: &impl EventFiles) -> Result<Decoder, TracefsError> {
        let mut decoder = Decoder::default();
        decoder.add_events(instance, &REQUIRED_GLOBAL_EVENTS, &OPTIONAL_GLOBAL_EVENTS)?;
        Ok(decoder)
    }

    /// Enables events. A `required` event that the kernel lacks, or has in an unknown form, is an
    /// error. An `optional` one is noted as missing.
    fn add_events(
        &mut self,
        instance: &impl EventFiles,
        required: &[&str],
        optional: &[&str],
    ) -> Result<(), TracefsError> {
        for name in required.iter().chain(optional) {
            let layout = match enable_event(instance, name) {
                Ok(layout) => layout,
                Err(error) if required.contains(name) => return Err(error),
                Err(_) => {
                    self.missing.push((*name).to_owned());
                    continue;
                }
            };
            let (kind, names) = event_kind(name, &layout);
            if !layout.has_fields(names) {
                if !required.contains(name) {
                    self.missing.push((*name).to_owned());
                    continue;
                }
                let line = format!("{name} without {}", names.join(", "));
                return Err(TracefsError::UnknownEvent { line });
            }
            self.kinds.insert(layout.id, kind);
        }
        Ok(())
    }

    /// Makes the kernel add its stack to each sleep of a recorded task. Call it after the events of
    /// the tasks are enabled. Fails if the kernel has no such event, or in an unknown form.
    fn add_stacks(&mut self, instance: &impl EventFiles) -> Result<(), TracefsError> {
        let text = instance.read(&format!("events/{STACK}/format"))?;
        let has_fields = |layout: &EventLayout| layout.has_fields(&["size", "caller"]);
        let layout = EventLayout::parse(&text).filter(has_fields);
        let layout = layout.ok_or_else(|| TracefsError::UnknownEvent { line: STACK.to_owned() })?;
        instance.write("events/sched/sched_switch/trigger", SLEEP_STACK_TRIGGER)?;
        self.kinds
            .insert(layout.id, EventKind::Stack(["size", "caller"].map(|name| layout.field(name))));
        Ok(())
    }

    /// Gaps in the recording, each with the events that this kernel lacks. A missing call is a gap,
    /// unless it is in `REPLACED_CALLS`. For the other events `CONSEQUENCES` decides.
    pub fn gaps(&self) -> Vec<String> {
        let is_missing = |event: &&str| self.missing.iter().any(|missing| missing == *event);
        let known = CONSEQUENCES.iter().filter(|(events, _)| events.iter().all(is_missing));
        let mut gaps: Vec<String> = known
            .map(|(events, consequence)| format!("{}: {consequence}", events.join(", ")))
            .collect();
        let calls = CALLS.iter().map(|(name, _)| *name);
        let lacking = calls.filter(|name| is_missing(name) && !REPLACED_CALLS.contains(name));
        gaps.extend(
            lacking.map(|name| format!("syscalls/sys_enter_{name}: calls of {name} are not seen")),
        );
        gaps
    }

    /// Decodes the bytes of an event of the time `at_ns`. Returns `None` for an event that was not
    /// enabled or has fewer than 8 bytes.
    pub fn decode(&self, at_ns: u64, bytes: &[u8]) -> Option<TraceEvent> {
        // Each event begins with its number (2 bytes), two bytes of flags, and its task (4 bytes).
        let id = u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?);
        let task = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?);
        let data = match self.kinds.get(&id)? {
            EventKind::Enter(call, fields) => {
                let mut arguments = [0; 6];
                for (argument, field) in arguments.iter_mut().zip(fields) {
                    *argument = field.value(bytes);
                }
                EventData::Enter(*call, arguments)
            }
            EventKind::Exit(call, result) => EventData::Exit(*call, result.value(bytes) as i64),
            EventKind::Pages(event, fields) => event.decode(fields, bytes),
            EventKind::Switch([from, from_name, state, to, to_name]) => EventData::Switch {
                from: from.value(bytes) as u32,
                from_name: from_name.text(bytes),
                sleep: Sleep::of_state(state.value(bytes)),
                to: to.value(bytes) as u32,
                to_name: to_name.text(bytes),
            },
            EventKind::Wake(task) => EventData::Wake { task: task.value(bytes) as u32 },
            EventKind::Stack([size, callers]) => {
                EventData::Stack { addresses: callers.numbers(bytes, size.value(bytes)) }
            }
            EventKind::NewTask([task, name, flags]) => {
                let flags = flags.value(bytes);
                EventData::NewTask {
                    task: task.value(bytes) as u32,
                    name: name.text(bytes),
                    is_thread: flags & libc::CLONE_THREAD as u64 != 0,
                    is_kernel_io: flags & KERNEL_THREAD_FLAGS == KERNEL_THREAD_FLAGS,
                    shares_files: flags & libc::CLONE_FILES as u64 != 0,
                }
            }
            EventKind::PageFault(address) => EventData::PageFault { address: address.value(bytes) },
            EventKind::Exec(former) => EventData::Exec { former: former.value(bytes) as u32 },
            EventKind::TaskEnds => EventData::TaskEnds,
            EventKind::Queue([device, sector, sectors, name]) => EventData::Queue {
                device: device.value(bytes),
                sector: sector.value(bytes),
                sectors: sectors.value(bytes),
                name: name.text(bytes),
            },
            EventKind::Issue([device, sector, length, flags]) => EventData::Issue {
                device: device.value(bytes),
                sector: sector.value(bytes),
                bytes: length.value(bytes),
                flags: flags.text(bytes),
            },
            EventKind::Complete([device, sector, sectors]) => EventData::Complete {
                device: device.value(bytes),
                sector: sector.value(bytes),
                sectors: sectors.value(bytes),
            },
            EventKind::UringSubmit([request, operation]) => EventData::UringSubmit {
                request: request.value(bytes),
                operation: operation.located_text(bytes),
            },
            EventKind::UringComplete([request, result]) => EventData::UringComplete {
                request: request.value(bytes),
                result: result.value(bytes) as i32,
            },
        };
        Some(TraceEvent { at_ns, task, data })
    }
}

/// Sleep of a task that leaves its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleep {
    /// A signal ends it: FUSE, NFS, a timer, a futex.
    Interruptible,
    /// Wait for a page, a request or a lock of the kernel.
    Uninterruptible,
}

impl Sleep {
    /// Returns the sleep in `prev_state` of `sched_switch`. `None` for a task that can run. Any
    /// other state that is not uninterruptible, such as stopped, counts as interruptible.
    fn of_state(state: u64) -> Option<Sleep> {
        /// `TASK_UNINTERRUPTIBLE` in the kernel's `sched.h`.
        const UNINTERRUPTIBLE: u64 = 2;
        /// Bits of the states that are reported. The bits above say that the task was preempted.
        const MASK: u64 = 0xff;
        match state & MASK {
            0 => None,
            bits if bits & UNINTERRUPTIBLE != 0 => Some(Sleep::Uninterruptible),
            _ => Some(Sleep::Interruptible),
        }
    }
}

/// Returns the kind of an event with its fields, and the names of the fields that it requires. Any
/// other field that the kernel lacks has the value 0. `name` is one of the enabled events.
fn event_kind(name: &str, layout: &EventLayout) -> (EventKind, &'static [&'static str]) {
    let field = |name| layout.field(name);
    let pages = |event, last_field| {
        EventKind::Pages(event, [field("s_dev"), field("i_ino"), field("index"), field(last_field)])
    };
    const PAGES: &[&str] = &["s_dev", "i_ino", "index"];
    match name.split_once('/').map_or(name, |(_, name)| name) {
        "mm_filemap_add_to_page_cache" => (pages(PageEvent::Insert, "order"), PAGES),
        "mm_filemap_delete_from_page_cache" => (pages(PageEvent::Evict, "order"), PAGES),
        "mm_filemap_get_pages" => (pages(PageEvent::CacheRead, "last_index"), PAGES),
        // A fault has no last page. A field without a name has the value 0.
        "mm_filemap_fault" => (pages(PageEvent::Fault, ""), PAGES),
        "mm_filemap_map_pages" => (pages(PageEvent::MapPages, "last_index"), PAGES),
        "sched_switch" => {
            let names = ["prev_pid", "prev_comm", "prev_state", "next_pid", "next_comm"];
            (EventKind::Switch(names.map(field)), &["prev_pid", "prev_state", "next_pid"])
        }
        "task_newtask" => {
            (EventKind::NewTask(["pid", "comm", "clone_flags"].map(field)), &["pid", "clone_flags"])
        }
        // The filter of these events needs `error_code`.
        "page_fault_user" | "page_fault_kernel" => {
            (EventKind::PageFault(field("address")), &["address", "error_code"])
        }
        "sched_waking" => (EventKind::Wake(field("pid")), &["pid"]),
        "sched_process_exec" => (EventKind::Exec(field("old_pid")), &[]),
        "sched_process_exit" => (EventKind::TaskEnds, &[]),
        "block_bio_queue" => {
            let names = ["dev", "sector", "nr_sector", "comm"];
            (EventKind::Queue(names.map(field)), &["dev", "sector"])
        }
        "block_rq_issue" => {
            let names = ["dev", "sector", "bytes", "rwbs"];
            (EventKind::Issue(names.map(field)), &["dev", "sector", "bytes", "rwbs"])
        }
        "block_rq_complete" => {
            (EventKind::Complete(["dev", "sector", "nr_sector"].map(field)), &["dev", "sector"])
        }
        "io_uring_complete" => {
            (EventKind::UringComplete(["req", "res"].map(field)), &["req", "res"])
        }
        // The two names of the submission to io_uring.
        _ => (EventKind::UringSubmit(["req", "op_str"].map(field)), &["req", "op_str"]),
    }
}

/// Enables an event in an instance and returns its layout. `name` is its group and its name.
/// Exceptions by writes stay disabled. Fails if the kernel lacks the event or describes it in an
/// unknown form.
fn enable_event(instance: &impl EventFiles, name: &str) -> Result<EventLayout, TracefsError> {
    let text = instance.read(&format!("events/{name}/format"))?;
    let layout = EventLayout::parse(&text)
        .ok_or_else(|| TracefsError::UnknownEvent { line: name.to_owned() })?;
    if name.starts_with("exceptions/") {
        instance.write(&format!("events/{name}/filter"), READ_FAULT_FILTER)?;
    }
    instance.write(&format!("events/{name}/enable"), "1")?;
    Ok(layout)
}

#[cfg(test)]
mod gap_tests;
