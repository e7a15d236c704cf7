//! Asynchronous reads over AIO and io_uring.
//!
//! `super::super::submitted` reports each submission with its range. io_uring has an event at the
//! end of each read, AIO has none. An AIO read with `O_DIRECT` ends when devices have completed all
//! its requests, matched in the order of the call's `iocb`s, or when `io_getevents` returns later.
//! An AIO read through the page cache ends within `io_submit`, before the next one begins. The
//! event of the page cache (`mm_filemap_get_pages`) comes when the pages are resident. A read
//! through the cache therefore begins at the last event of the previous one.
//!
//! A read waits while its thread sleeps in `io_getevents`, `io_uring_enter` or `io_submit`. If that
//! thread never sleeps there (`IORING_SETUP_SQPOLL`, a thread that only submits), the sleep of
//! other threads in its process counts.
//!
//! A read of unknown file or range is counted with its wait.

use std::collections::{BTreeMap, BTreeSet};

use readpath_trace::recording::{OFFSET_MAX, ReadMethod, ReadOutcome, ReadRecord, Record, Unseen};

use super::super::event::{Inode, SubmittedRead, SystemCall};
use super::super::names::FileNames;
use super::descriptors::DIRECT;
use super::{InCall, PAGE_BYTES, RecordedTask, TaskTracker};

/// Maximum number of reads in flight. Further reads are only counted.
const ASYNC_READS_MAX: usize = 1 << 16;

/// Disk, first sector and end sector.
type Sectors = (u64, u64, u64);

/// Offset that stands for the position of the file.
const AT_POSITION: u64 = u64::MAX;

/// Sleep within calls that wait for asynchronous reads, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleTime {
    /// Sum of finished sleeps.
    past_ns: u64,
    /// Start of the current sleep.
    since_ns: Option<u64>,
}

impl IdleTime {
    fn sleep(&mut self, at: u64) {
        self.since_ns.get_or_insert(at);
    }

    fn wake(&mut self, at: u64) {
        if let Some(since) = self.since_ns.take() {
            self.past_ns += at.saturating_sub(since);
        }
    }

    fn until(&self, at: u64) -> u64 {
        self.past_ns + self.since_ns.map_or(0, |since| at.saturating_sub(since))
    }
}

/// A time within a call, and the call's wait before it.
#[derive(Clone, Copy, Debug)]
struct CallMoment {
    at_ns: u64,
    waited_ns: u64,
}

/// Sources that report a submission to io_uring: the event, and the program that copies the range.
/// They run in the order in which they were attached, for all recorders together. So either one may
/// come first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ReportSources {
    by_event: bool,
    by_program: bool,
}

/// A read in flight.
#[derive(Clone, Debug)]
pub(super) struct AsyncRead {
    way: ReadMethod,
    task: u32,
    begin_ns: u64,
    /// Sleep of its task and of its process at its start.
    idle_ns: (u64, u64),
    /// Sources that have reported its submission to io_uring.
    reported: ReportSources,
    descriptor: Option<u64>,
    /// Number of the file in the recording.
    file: Option<u32>,
    offset: Option<u64>,
    bytes: Option<u64>,
    is_direct: bool,
    /// File and first page requested from the page cache.
    cache: Option<(Inode, u64)>,
    /// Start and last event of an AIO read through the page cache.
    cached_span: Option<(CallMoment, CallMoment)>,
    /// Sectors requested from devices and not completed.
    pending_sectors: Vec<Sectors>,
    asked_bytes: u64,
    /// Time at which a device last completed a part.
    done_ns: Option<u64>,
}

impl AsyncRead {
    /// Returns true when devices have completed all its requests.
    fn is_answered(&self) -> bool {
        self.pending_sectors.is_empty() && self.done_ns.is_some()
    }
}

/// All asynchronous reads in flight.
#[derive(Debug, Default)]
pub(super) struct Asynchronous {
    /// io_uring reads by the address of the request.
    uring: BTreeMap<u64, AsyncRead>,
    /// AIO reads with `O_DIRECT`, in the order of submission.
    aio: Vec<AsyncRead>,
    /// Sleep of each process.
    idle: BTreeMap<u32, IdleTime>,
    /// Number and total wait of the reads missing from the recording, by thread and method.
    missing_reads: BTreeMap<(u32, ReadMethod), (u64, u64)>,
    /// Total number of these reads.
    pub unseen_count: u64,
}

/// Returns true for calls whose sleep is a wait for earlier submissions.
fn is_waiting_call(call: SystemCall) -> bool {
    matches!(call, SystemCall::IoGetevents | SystemCall::UringEnter | SystemCall::IoSubmit)
}

impl<N: FileNames> TaskTracker<N> {
    /// Records that a task goes to sleep or runs again.
    pub(super) fn on_sleep_change(&mut self, at: u64, number: u32, sleeps: bool) {
        let Some(task) = self.tasks.get_mut(&number) else { return };
        if task.call.is_none_or(|entered| !is_waiting_call(entered.call)) {
            return;
        }
        for idle in [&mut task.idle, self.pending.idle.entry(task.process).or_default()] {
            if sleeps { idle.sleep(at) } else { idle.wake(at) }
        }
    }

    /// Returns the idle time of a task and of its process, up to `at`.
    fn idle_ns(&self, at: u64, number: u32) -> (u64, u64) {
        let Some(task) = self.tasks.get(&number) else { return (0, 0) };
        let process = self.pending.idle.get(&task.process).map_or(0, |idle| idle.until(at));
        (task.idle.until(at), process)
    }

    fn under_way(&mut self, at: u64, number: u32, way: ReadMethod) -> AsyncRead {
        AsyncRead {
            way,
            task: number,
            begin_ns: at,
            idle_ns: self.idle_ns(at, number),
            reported: ReportSources::default(),
            descriptor: None,
            file: None,
            offset: None,
            bytes: None,
            is_direct: false,
            cache: None,
            cached_span: None,
            pending_sectors: Vec::new(),
            asked_bytes: 0,
            done_ns: None,
        }
    }

    /// Sets file and range of a read at its submission.
    fn set_range(&mut self, at: u64, read: &mut AsyncRead, given: SubmittedRead) {
        read.bytes = given.bytes;
        read.offset = Some(given.offset).filter(|offset| *offset <= OFFSET_MAX);
        read.descriptor = given.descriptor;
        let Some(task) = self.tasks.get(&read.task) else { return };
        let Some(descriptor) = given.descriptor else { return };
        let held = self.tables.file_state(task.table, descriptor);
        read.file = self.file_of(at, read.task, descriptor, &held, None);
        read.is_direct = held.borrow().flags & DIRECT != 0;
        if given.offset == AT_POSITION {
            read.offset = held.borrow().position;
        }
    }

    /// Records the submission of an operation to io_uring.
    pub(super) fn on_uring_submit(&mut self, at: u64, number: u32, request: u64, operation: &str) {
        let is_read = operation.starts_with("READ");
        if let Some(task) = self.tasks.get_mut(&number) {
            task.submitted = Some(request).filter(|_| is_read);
        }
        if !is_read || self.pending.uring.len() >= ASYNC_READS_MAX {
            return;
        }
        let by_program = ReportSources { by_event: false, by_program: true };
        match self.pending.uring.get_mut(&request) {
            Some(read) if read.reported == by_program && read.task == number => {
                read.reported.by_event = true;
            }
            _ => {
                let mut read = self.under_way(at, number, ReadMethod::Uring);
                read.reported.by_event = true;
                self.pending.uring.insert(request, read);
            }
        }
    }

    /// Records the submission of a read to io_uring. A kernel thread that submits is not a recorded
    /// task, so the read is assigned to a task of its process.
    pub(super) fn on_uring_read(
        &mut self,
        at: u64,
        number: u32,
        process: u32,
        given: SubmittedRead,
    ) {
        let read = self.pending.uring.remove(&given.request);
        let is_of =
            |(number, task): (&u32, &RecordedTask)| (task.process == process).then_some(*number);
        let reader = match self.tasks.contains_key(&number) {
            true => Some(number),
            false if self.tasks.contains_key(&process) => Some(process),
            false => self.tasks.iter().find_map(is_of),
        };
        let Some(reader) = reader.filter(|_| self.pending.uring.len() < ASYNC_READS_MAX) else {
            return;
        };
        let read = read.filter(|read| read.task == reader && !read.reported.by_program);
        let mut read = read.unwrap_or_else(|| self.under_way(at, reader, ReadMethod::Uring));
        read.reported.by_program = true;
        self.set_range(at, &mut read, given);
        self.pending.uring.insert(given.request, read);
    }

    /// Assigns a page cache request to an asynchronous read. Returns false if the task submits
    /// none.
    pub(super) fn on_cache_read(&mut self, at: u64, number: u32, place: (Inode, u64)) -> bool {
        let Some(task) = self.tasks.get_mut(&number) else { return false };
        let request = task.submitted.and_then(|request| self.pending.uring.get_mut(&request));
        if let Some(read) = request {
            read.cache.get_or_insert(place);
            return true;
        }
        let Some(entered) = task.call.filter(|entered| entered.call == SystemCall::IoSubmit) else {
            return false;
        };
        let now = CallMoment { at_ns: at, waited_ns: entered.waited_ns };
        let is_it = |read: &AsyncRead| {
            read.cached_span.is_none()
                && read.offset.is_none_or(|offset| offset / PAGE_BYTES == place.1)
        };
        if !task.submitted_reads.iter().any(is_it) {
            // The current read continues.
            if let Some((_, last)) =
                task.submitted_reads.iter_mut().find_map(|read| read.cached_span.as_mut())
            {
                *last = now;
            }
            return true;
        }
        let start = CallMoment { at_ns: entered.begin_ns, waited_ns: 0 };
        let begins = self.end_cached(number, None).unwrap_or(start);
        let given = self.tasks.get_mut(&number).map(|task| task.submitted_reads.iter_mut());
        if let Some(read) = given.and_then(|mut given| given.find(|read| is_it(read))) {
            read.cached_span = Some((begins, now));
            read.cache = Some(place);
        }
        true
    }

    /// Ends the task's read through the page cache, at `now` or at its last event.
    fn end_cached(&mut self, number: u32, now: Option<CallMoment>) -> Option<CallMoment> {
        let task = self.tasks.get_mut(&number)?;
        let place = task.submitted_reads.iter().position(|read| read.cached_span.is_some())?;
        let read = task.submitted_reads.remove(place);
        let (begins, last) = read.cached_span?;
        let ends = now.unwrap_or(last);
        let read = AsyncRead { begin_ns: begins.at_ns, ..read };
        let waited_ns = ends.waited_ns.saturating_sub(begins.waited_ns);
        self.put_asynchronous(ends.at_ns, read, None, Some(waited_ns));
        Some(ends)
    }

    /// Records the submission of a read to AIO.
    pub(super) fn on_aio_read(&mut self, at: u64, number: u32, given: SubmittedRead) {
        let mut read = self.under_way(at, number, ReadMethod::Aio);
        self.set_range(at, &mut read, given);
        if let Some(task) = self.tasks.get_mut(&number) {
            task.submitted_reads.push(read);
        }
    }

    /// Assigns a block request to the task's first direct read with missing bytes.
    pub(super) fn on_aio_request(&mut self, number: u32, disk: u64, sector: u64, sectors: u64) {
        let Some(task) = self.tasks.get_mut(&number) else { return };
        let lacks = |read: &&mut AsyncRead| {
            read.is_direct && read.bytes.is_none_or(|bytes| read.asked_bytes < bytes)
        };
        if let Some(read) = task.submitted_reads.iter_mut().find(lacks) {
            read.pending_sectors.push((disk, sector, sector + sectors));
            read.asked_bytes += sectors * 512;
        }
    }

    /// Records the completion of sectors by a device.
    pub(super) fn on_aio_completion(&mut self, at: u64, disk: u64, sector: u64, end: u64) {
        let given = self.tasks.values_mut().filter(|task| !task.submitted_reads.is_empty());
        let all =
            given.flat_map(|task| task.submitted_reads.iter_mut()).chain(&mut self.pending.aio);
        for read in all {
            let is_in = |place: &Sectors| place.0 == disk && place.1 < end && place.2 > sector;
            if read.pending_sectors.iter().any(is_in) {
                read.done_ns = Some(at);
                read.pending_sectors = { read.pending_sectors.iter() }
                    .flat_map(|&(other, first, last)| match other == disk {
                        true => [(disk, first, last.min(sector)), (disk, first.max(end), last)],
                        false => [(other, first, last), (other, 0, 0)],
                    })
                    .filter(|place| place.1 < place.2)
                    .collect();
            }
        }
        self.end_answered();
    }

    /// Ends the reads completed by devices. If their process is in `io_getevents`, they end when
    /// that call returns, as a `pread` does.
    fn end_answered(&mut self) {
        let processes = { self.tasks.values() }
            .filter(|task| task.call.is_some_and(|entered| entered.call == SystemCall::IoGetevents))
            .map(|task| task.process);
        let waiting: BTreeSet<u32> = processes.collect();
        let tasks = &self.tasks;
        let is_over = |read: &AsyncRead| {
            let process = tasks.get(&read.task).map(|task| task.process);
            read.is_answered() && process.is_none_or(|process| !waiting.contains(&process))
        };
        for read in take_matching(&mut self.pending.aio, is_over) {
            let at = read.done_ns.unwrap_or(read.begin_ns);
            self.put_asynchronous(at, read, None, None);
        }
    }

    /// Handles the end of `io_submit`, whose result is the number of accepted requests.
    pub(super) fn on_io_submit_end(&mut self, at: u64, number: u32, entered: &InCall, result: i64) {
        let waited_ns = entered.waited_ns.max(entered.device_ns);
        self.end_cached(number, Some(CallMoment { at_ns: at, waited_ns }));
        let Some(task) = self.tasks.get_mut(&number) else { return };
        let given = std::mem::take(&mut task.submitted_reads);
        let taken = u64::try_from(result).unwrap_or(0);
        if self.has_submissions {
            for read in given.into_iter().take(taken as usize) {
                match read.is_direct {
                    true if self.pending.aio.len() < ASYNC_READS_MAX => self.pending.aio.push(read),
                    // Without a page cache request all pages were resident, or the range is empty.
                    _ => self.put_asynchronous(at, read, None, None),
                }
            }
            self.end_answered();
        } else if taken > 0 {
            let slept = entered.waited_ns;
            self.count_missing(number, ReadMethod::Aio, taken, slept);
        }
    }

    /// Handles the end of `io_getevents`. Reads without a device request are complete by now.
    pub(super) fn on_io_getevents_end(
        &mut self,
        at: u64,
        number: u32,
        entered: &InCall,
        result: i64,
    ) {
        if result <= 0 {
            return;
        }
        if !self.has_submissions {
            self.count_missing(number, ReadMethod::Aio, 0, entered.waited_ns);
        }
        let Some(process) = self.tasks.get(&number).map(|task| task.process) else { return };
        let tasks = &self.tasks;
        let is_over = |read: &AsyncRead| {
            let of = tasks.get(&read.task).map(|task| task.process);
            read.pending_sectors.is_empty() && of == Some(process)
        };
        for read in take_matching(&mut self.pending.aio, is_over) {
            self.put_asynchronous(at, read, None, None);
        }
    }

    /// Handles the completion of an io_uring read.
    pub(super) fn on_uring_completion(
        &mut self,
        at: u64,
        request: u64,
        inode: Option<Inode>,
        result: i32,
    ) {
        let Some(mut read) = self.pending.uring.remove(&request) else { return };
        if let Some(inode) = inode {
            read.file = Some(self.file(inode, None));
        }
        self.put_asynchronous(at, read, Some(result), None);
    }

    /// Writes the record of a read, or counts it. AIO results are in the program's memory, so a
    /// completed read counts as full up to the end of the file.
    fn put_asynchronous(
        &mut self,
        at: u64,
        mut read: AsyncRead,
        result: Option<i32>,
        waited_ns: Option<u64>,
    ) {
        // Worker threads of io_uring may have added the pages.
        self.take_over_inserted(&read);
        self.put_inserted(at, read.task);
        let waited_ns = waited_ns.unwrap_or_else(|| self.sleep_during(at, &read));
        if let Some((inode, page)) = read.cache {
            read.file.get_or_insert_with(|| self.file(inode, None));
            read.offset.get_or_insert(page * PAGE_BYTES);
        }
        let (Some(file), Some(offset)) = (read.file, read.offset) else {
            let is_read = result.is_none_or(|result| result > 0);
            self.count_missing(read.task, read.way, u64::from(is_read), waited_ns);
            return;
        };
        let rest = self.lengths.get(&file).map_or(u64::MAX, |bytes| bytes.saturating_sub(offset));
        let got = match result {
            Some(result) => u64::try_from(result).map_err(|_| result.unsigned_abs()),
            None => Ok(read.bytes.unwrap_or(read.asked_bytes).min(rest)),
        };
        let given = got.unwrap_or(0);
        let asked_bytes = read.bytes.unwrap_or(given).max(given).min(OFFSET_MAX - offset);
        let outcome = match got {
            Ok(bytes) => ReadOutcome::Bytes(bytes.min(asked_bytes)),
            Err(error) => ReadOutcome::Error(error),
        };
        let Some(thread) = self.thread(read.task) else { return };
        let AsyncRead { begin_ns, way, descriptor, .. } = read;
        let is_again = matches!(got, Err(error) if error == libc::EAGAIN as u32);
        if is_again {
            return;
        }
        self.out.put(
            at,
            Record::Read(ReadRecord {
                end_ns: at.max(begin_ns),
                begin_ns,
                waited_ns: waited_ns.min(at.saturating_sub(begin_ns)),
                thread,
                way,
                descriptor,
                file,
                offset,
                asked_bytes,
                outcome,
            }),
        );
    }

    /// Sleep of threads during a read: of its own task, or else of its process.
    fn sleep_during(&self, at: u64, read: &AsyncRead) -> u64 {
        let (own, process) = self.idle_ns(at, read.task);
        match own.saturating_sub(read.idle_ns.0) {
            0 => process.saturating_sub(read.idle_ns.1),
            own => own,
        }
    }

    /// Moves the pages added by io_uring's worker threads to the task of the read.
    fn take_over_inserted(&mut self, read: &AsyncRead) {
        if read.way != ReadMethod::Uring {
            return;
        }
        let Some(process) = self.tasks.get(&read.task).map(|task| task.process) else { return };
        let is_worker =
            |task: &RecordedTask| task.process == process && task.name.starts_with("iou-");
        let mut taken = Vec::new();
        for (number, task) in &mut self.tasks {
            if *number != read.task && is_worker(task) {
                taken.append(&mut task.inserted);
            }
        }
        if let Some(task) = self.tasks.get_mut(&read.task) {
            task.inserted.extend(taken);
        }
    }

    fn count_missing(&mut self, number: u32, way: ReadMethod, count: u64, waited_ns: u64) {
        let Some(thread) = self.thread(number) else { return };
        let unseen = self.pending.missing_reads.entry((thread, way)).or_default();
        *unseen = (unseen.0 + count, unseen.1 + waited_ns);
        self.pending.unseen_count += count;
    }

    /// Writes the counts of missing reads.
    pub(super) fn put_missing(&mut self, at_ns: u64) {
        for ((thread, way), (count, waited_ns)) in std::mem::take(&mut self.pending.missing_reads) {
            let unseen = Unseen { at_ns, thread, way, count, waited_ns };
            self.out.put(at_ns, Record::Unseen(unseen));
        }
    }

    /// Counts the reads in flight of a task, or of all tasks for `None`, whose end will not be
    /// reported.
    pub(super) fn abandon(&mut self, at: u64, number: Option<u32>) {
        let is_its = |read: &AsyncRead| number.is_none_or(|number| read.task == number);
        let mut of_uring = Vec::new();
        self.pending.uring.retain(|_, read| {
            let is_its = is_its(read);
            if is_its {
                of_uring.push(read.clone());
            }
            !is_its
        });
        for read in take_matching(&mut self.pending.aio, is_its).into_iter().chain(of_uring) {
            match read.done_ns.filter(|_| read.is_answered()) {
                Some(done_ns) => self.put_asynchronous(done_ns, read, None, None),
                None => {
                    let waited_ns = self.sleep_during(at, &read);
                    self.count_missing(read.task, read.way, 1, waited_ns);
                }
            }
        }
    }
}

/// Removes the reads that satisfy `is_over`, in their order.
fn take_matching(
    reads: &mut Vec<AsyncRead>,
    is_over: impl Fn(&AsyncRead) -> bool,
) -> Vec<AsyncRead> {
    reads.extract_if(.., |read| is_over(read)).collect()
}
