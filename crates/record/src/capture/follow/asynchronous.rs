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
//!
//! A `task` is the kernel's number of a thread. Times are nanoseconds since the start of the
//! recording. A *queued* record is written once no earlier record can follow.

use std::collections::{BTreeMap, BTreeSet};

use readpath_core::unit::SECTOR_BYTES;
use readpath_trace::recording::{OFFSET_MAX, ReadMethod, ReadOutcome, ReadRecord, Record, Unseen};

use super::super::event::{AT_POSITION, Inode, SubmittedRead, SystemCall};
use super::super::names::FileNames;
use super::super::tables::DescriptorTarget;
use super::descriptors::DIRECT;
use super::idle::IdleTime;
use super::{ActiveCall, PAGE_BYTES, TaskTracker};

mod submit_call;
mod uring;

pub(super) use submit_call::SubmitCall;
use uring::ReportSources;

/// Maximum number of reads in flight, chosen. Further reads are only counted.
const ASYNC_READS_MAX: usize = 1 << 16;

/// Disk, first sector and end sector.
type Sectors = (u64, u64, u64);

/// Sleep of a task, and of its whole process, in calls that wait for asynchronous reads.
#[derive(Clone, Copy, Debug, Default)]
struct IdleSums {
    /// Sleep of the task.
    task_ns: u64,
    /// Sleep of all tasks of its process. Overlapping sleeps count once, from the first begin to
    /// the first end.
    process_ns: u64,
}

/// A time within a call, and the call's wait before it, both in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct CallMoment {
    /// The time.
    at_ns: u64,
    /// Sleep of the task between the start of the call and this time.
    waited_ns: u64,
}

/// A read in flight.
#[derive(Clone, Debug)]
pub(super) struct AsyncRead {
    /// AIO or io_uring.
    method: ReadMethod,
    /// Task that submitted it, or that stands for its process.
    task: u32,
    /// Time of its submission.
    begin_ns: u64,
    /// Number of requests before it in its `io_submit` call. 0 for io_uring.
    index_in_call: u64,
    /// Sleep of its task and of its process before its start.
    idle: IdleSums,
    /// Sources that have reported its submission to io_uring.
    reported: ReportSources,
    /// Its descriptor. `None` if unknown, and for a file registered with io_uring.
    descriptor: Option<u64>,
    /// Number of the file in the recording. `None` if unknown.
    file: Option<u32>,
    /// True if it is of a pipe, a socket or another object without storage.
    has_no_file: bool,
    /// First byte in the file. `None` if unknown.
    offset: Option<u64>,
    /// Requested bytes. `None` for vectors, whose lengths are in the program's memory.
    bytes: Option<u64>,
    /// True for a read past the page cache (`O_DIRECT`).
    is_direct: bool,
    /// File and first page requested from the page cache.
    cache: Option<(Inode, u64)>,
    /// Start and last event of an AIO read through the page cache.
    cached_span: Option<(CallMoment, CallMoment)>,
    /// Sectors requested from devices and not completed.
    pending_sectors: Vec<Sectors>,
    /// Bytes requested from devices so far.
    device_bytes: u64,
    /// Time at which a device last completed a part.
    last_completion_ns: Option<u64>,
}

impl AsyncRead {
    /// Returns true when devices have completed all its requests.
    fn is_completed(&self) -> bool {
        self.pending_sectors.is_empty() && self.last_completion_ns.is_some()
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

/// Returns true for calls in which a task sleeps until earlier submissions complete.
fn is_waiting_call(call: SystemCall) -> bool {
    matches!(call, SystemCall::IoGetevents | SystemCall::UringEnter | SystemCall::IoSubmit)
}

impl<N: FileNames> TaskTracker<N> {
    /// Records that a task goes to sleep (`begins_sleep`), or is woken or runs again. Only sleeps
    /// in calls that wait for asynchronous reads count.
    pub(super) fn on_sleep_change(&mut self, at_ns: u64, task: u32, begins_sleep: bool) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        if state.call.is_none_or(|call| !is_waiting_call(call.system_call)) {
            return;
        }
        for idle in [&mut state.idle, self.pending.idle.entry(state.process).or_default()] {
            if begins_sleep { idle.begin_sleep(at_ns) } else { idle.end_sleep(at_ns) }
        }
    }

    /// Returns the sleep of a task and of its process in calls that wait for asynchronous reads, up
    /// to `at_ns` and in nanoseconds.
    fn idle_sums(&self, at_ns: u64, task: u32) -> IdleSums {
        let Some(state) = self.tasks.get(&task) else { return IdleSums::default() };
        let process_ns =
            self.pending.idle.get(&state.process).map_or(0, |idle| idle.total_until_ns(at_ns));
        IdleSums { task_ns: state.idle.total_until_ns(at_ns), process_ns }
    }

    /// Returns the state of a read that `task` submits at `begin_ns`, with unknown file and range.
    fn new_read(&mut self, begin_ns: u64, task: u32, method: ReadMethod) -> AsyncRead {
        AsyncRead {
            method,
            task,
            begin_ns,
            index_in_call: 0,
            idle: self.idle_sums(begin_ns, task),
            reported: ReportSources::default(),
            descriptor: None,
            file: None,
            has_no_file: false,
            offset: None,
            bytes: None,
            is_direct: false,
            cache: None,
            cached_span: None,
            pending_sectors: Vec::new(),
            device_bytes: 0,
            last_completion_ns: None,
        }
    }

    /// Sets the file and the range of a read from its submission at `at_ns`. The file stays `None`
    /// for an unknown descriptor and for a file registered with io_uring.
    fn set_range(&mut self, at_ns: u64, read: &mut AsyncRead, submitted: SubmittedRead) {
        read.bytes = submitted.bytes;
        // `AT_POSITION` is larger, and is replaced below.
        read.offset = Some(submitted.offset).filter(|offset| *offset <= OFFSET_MAX);
        read.descriptor = submitted.descriptor;
        let Some(state) = self.tasks.get(&read.task) else { return };
        let Some(descriptor) = submitted.descriptor else { return };
        let file_state = self.tables.file_state(state.table, descriptor);
        // No event of the page cache names the file yet (`None`).
        read.file = self.file_number_of(at_ns, read.task, descriptor, &file_state, None);
        let process = self.tasks.get(&read.task).map(|state| state.process);
        // The target may also be a file without storage, or one that is gone.
        read.has_no_file = file_state.borrow().target == DescriptorTarget::NoRecordedFile
            && process.is_some_and(|process| self.names.is_no_file(process, descriptor));
        read.is_direct = file_state.borrow().flags & DIRECT != 0;
        if submitted.offset == AT_POSITION {
            read.offset = file_state.borrow().position;
        }
    }

    /// Assigns a page cache request of a task to its asynchronous read. `page` is the file and the
    /// first page. Within `io_submit` the request either begins the next submitted read, whose
    /// first page it has, or belongs to the read in progress. A read of unknown offset takes any
    /// page. Returns false outside of `io_submit` and of a submission to io_uring.
    pub(super) fn on_cache_read(&mut self, at_ns: u64, task: u32, page: (Inode, u64)) -> bool {
        let Some(state) = self.tasks.get_mut(&task) else { return false };
        // The kernel requests pages within a submission to io_uring. As its end is not reported,
        // pages count for the read that was submitted last as long as that is in flight. Another
        // call requests its own pages.
        let is_submitting =
            state.call.is_none_or(|call| call.system_call == SystemCall::UringEnter);
        let request = state.submitted_request.filter(|_| is_submitting);
        let read = request.and_then(|request| self.pending.uring.get_mut(&request));
        // Another task may have submitted a later read at the same address.
        if let Some(read) = read.filter(|read| read.task == task) {
            read.cache.get_or_insert(page);
            return true;
        }
        let Some(call) = state.call.filter(|call| call.system_call == SystemCall::IoSubmit) else {
            return false;
        };
        let now = CallMoment { at_ns, waited_ns: call.waited_ns };
        let (_, first_page) = page;
        let matches_page = |read: &AsyncRead| {
            read.cached_span.is_none()
                && read.offset.is_none_or(|offset| offset / PAGE_BYTES == first_page)
        };
        // No submitted read begins with this page: it belongs to the read in progress, if any.
        if !state.submit_call.reads.iter().any(matches_page) {
            if let Some((_, last)) =
                state.submit_call.reads.iter_mut().find_map(|read| read.cached_span.as_mut())
            {
                *last = now;
            }
            return true;
        }
        // The first event of the next read. It began where the previous one ended, or with the
        // call.
        let start = CallMoment { at_ns: call.begin_ns, waited_ns: 0 };
        let begin = self.end_cached_read(task, None).unwrap_or(start);
        let mut reads =
            self.tasks.get_mut(&task).into_iter().flat_map(|state| &mut state.submit_call.reads);
        if let Some(read) = reads.find(|read| matches_page(read)) {
            read.cached_span = Some((begin, now));
            read.cache = Some(page);
        }
        true
    }

    /// Queues the record of the task's AIO read through the page cache, which ended at `end` or at
    /// its last event. Returns its end, or `None` if the task has no such read.
    fn end_cached_read(&mut self, task: u32, end: Option<CallMoment>) -> Option<CallMoment> {
        let state = self.tasks.get_mut(&task)?;
        let index = state.submit_call.reads.iter().position(|read| read.cached_span.is_some())?;
        let read = state.submit_call.reads.remove(index);
        let (begin, last) = read.cached_span?;
        let end_or_last = end.unwrap_or(last);
        let read = AsyncRead { begin_ns: begin.at_ns, ..read };
        let waited_ns = end_or_last.waited_ns.saturating_sub(begin.waited_ns);
        let unknown_result = None;
        self.put_asynchronous(end_or_last.at_ns, read, unknown_result, Some(waited_ns));
        Some(end_or_last)
    }

    /// Assigns a block request of `sectors` sectors from `sector` on to the task's first direct
    /// read with missing bytes, if there is one. A read of unknown length never has them all.
    /// `disk` is the number of the block device.
    pub(super) fn on_aio_request(&mut self, task: u32, disk: u64, sector: u64, sectors: u64) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        let lacks_bytes = |read: &&mut AsyncRead| {
            read.is_direct && read.bytes.is_none_or(|bytes| read.device_bytes < bytes)
        };
        if let Some(read) = state.submit_call.reads.iter_mut().find(lacks_bytes) {
            read.pending_sectors.push((disk, sector, sector + sectors));
            read.device_bytes += sectors * SECTOR_BYTES;
        }
    }

    /// Removes the sectors that a disk completed at `at_ns`, from `sector` to `end_sector`
    /// (exclusive), from the reads that wait for them. Queues the records of reads without further
    /// sectors, unless a call in progress ends them.
    pub(super) fn on_aio_completion(
        &mut self,
        at_ns: u64,
        disk: u64,
        sector: u64,
        end_sector: u64,
    ) {
        let submitting =
            self.tasks.values_mut().filter(|state| !state.submit_call.reads.is_empty());
        let reads = submitting
            .flat_map(|state| state.submit_call.reads.iter_mut())
            .chain(&mut self.pending.aio);
        for read in reads {
            let is_requested = |&(other, first, end): &Sectors| {
                other == disk && first < end_sector && end > sector
            };
            if read.pending_sectors.iter().any(is_requested) {
                read.last_completion_ns = Some(at_ns);
                // The parts before and after the completed sectors stay, unless they are empty.
                read.pending_sectors = { read.pending_sectors.iter() }
                    .flat_map(|&(other, first, end)| match other == disk {
                        true => {
                            [(disk, first, end.min(sector)), (disk, first.max(end_sector), end)]
                        }
                        // Sectors of another disk stay, with an empty part as the second.
                        false => [(other, first, end), (other, 0, 0)],
                    })
                    .filter(|&(_, first, end)| first < end)
                    .collect();
            }
        }
        self.end_completed_reads();
    }

    /// Queues the records of AIO reads completed by devices. If their process is in `io_getevents`,
    /// they end when that call returns, as a `pread` does. Reads of an `io_submit` call in progress
    /// stay until its end.
    fn end_completed_reads(&mut self) {
        let processes = { self.tasks.values() }
            .filter(|state| {
                state.call.is_some_and(|call| call.system_call == SystemCall::IoGetevents)
            })
            .map(|state| state.process);
        let waiting_processes: BTreeSet<u32> = processes.collect();
        let tasks = &self.tasks;
        let is_over = |read: &AsyncRead| {
            let process = tasks.get(&read.task).map(|state| state.process);
            read.is_completed()
                && process.is_none_or(|process| !waiting_processes.contains(&process))
        };
        for read in take_matching(&mut self.pending.aio, is_over) {
            let end_ns = read.last_completion_ns.unwrap_or(read.begin_ns);
            let (unknown_result, unknown_wait_ns) = (None, None);
            self.put_asynchronous(end_ns, read, unknown_result, unknown_wait_ns);
        }
    }

    /// Handles the end of `io_submit` at `at_ns`. `result` is the number of accepted requests or a
    /// negative error number. Reads through the page cache end here, direct reads stay in flight.
    /// Reads beyond [`ASYNC_READS_MAX`] end here too. Without reported ranges, all accepted
    /// requests are only counted. They count as reads: their operations are not known either.
    pub(super) fn on_io_submit_end(
        &mut self,
        at_ns: u64,
        task: u32,
        call: &ActiveCall,
        result: i64,
    ) {
        // A buffered read cannot continue without the device, even if no sleep was reported.
        let waited_ns = call.waited_ns.max(call.device_ns);
        self.end_cached_read(task, Some(CallMoment { at_ns, waited_ns }));
        let Some(state) = self.tasks.get_mut(&task) else { return };
        let submitted = std::mem::take(&mut state.submit_call);
        let accepted = u64::try_from(result).unwrap_or(0);
        // Refused reads have no record.
        if self.has_submissions {
            for read in submitted.accepted_reads(accepted) {
                if read.is_direct && self.pending.aio.len() < ASYNC_READS_MAX {
                    self.pending.aio.push(read);
                } else {
                    // A direct read beyond the maximum, or a read without a page cache request.
                    let (unknown_result, unknown_wait_ns) = (None, None);
                    self.put_asynchronous(at_ns, read, unknown_result, unknown_wait_ns);
                }
            }
            self.end_completed_reads();
        } else if accepted > 0 {
            let slept_ns = call.waited_ns;
            self.count_missing(task, ReadMethod::Aio, accepted, slept_ns);
        }
    }

    /// Handles the end of `io_getevents` at `at_ns`. Queues the records of the process's reads
    /// without pending sectors, which are complete by now. This includes reads for which no request
    /// of a device was seen. A `result` that is not positive has no effect.
    pub(super) fn on_io_getevents_end(
        &mut self,
        at_ns: u64,
        task: u32,
        call: &ActiveCall,
        result: i64,
    ) {
        if result <= 0 {
            return;
        }
        // Adds only the wait: the reads were counted at their submission.
        if !self.has_submissions {
            self.count_missing(task, ReadMethod::Aio, 0, call.waited_ns);
        }
        let Some(process) = self.tasks.get(&task).map(|state| state.process) else { return };
        let tasks = &self.tasks;
        let is_over = |read: &AsyncRead| {
            let read_process = tasks.get(&read.task).map(|state| state.process);
            read.pending_sectors.is_empty() && read_process == Some(process)
        };
        let (unknown_result, unknown_wait_ns) = (None, None);
        for read in take_matching(&mut self.pending.aio, is_over) {
            self.put_asynchronous(at_ns, read, unknown_result, unknown_wait_ns);
        }
    }

    /// Queues the record of a read that ended at `end_ns`, or counts it if its file or offset is
    /// unknown. A read of an object without storage has no record, nor has one that the kernel asks
    /// to repeat (EAGAIN). AIO results are in the program's memory (`result` is `None`), so a
    /// completed read counts as full up to the end of the file. A vector counts with the bytes
    /// requested from devices. `waited_ns`: the sleep during the read, or `None` to compute it.
    fn put_asynchronous(
        &mut self,
        end_ns: u64,
        mut read: AsyncRead,
        result: Option<i32>,
        waited_ns: Option<u64>,
    ) {
        // Worker threads of io_uring may have added the pages. Their records come before the read.
        self.take_over_inserted(&read);
        self.put_inserted(end_ns, read.task);
        let waited_ns = waited_ns.unwrap_or_else(|| self.sleep_during_ns(end_ns, &read));
        // The page cache's event names the file and the first page, where the submission does not.
        if let Some((inode, page)) = read.cache {
            let no_name = None;
            read.file.get_or_insert_with(|| self.file_number(inode, no_name));
            read.offset.get_or_insert(page * PAGE_BYTES);
        }
        if read.has_no_file {
            return;
        }
        let (Some(file), Some(offset)) = (read.file, read.offset) else {
            // A failed or empty read only adds its wait.
            let is_read = result.is_none_or(|result| result > 0);
            self.count_missing(read.task, read.method, u64::from(is_read), waited_ns);
            return;
        };
        let bytes_to_end =
            self.lengths.get(&file).map_or(u64::MAX, |bytes| bytes.saturating_sub(offset));
        let read_bytes = match result {
            Some(result) => u64::try_from(result).map_err(|_| result.unsigned_abs()),
            None => Ok(read.bytes.unwrap_or(read.device_bytes).min(bytes_to_end)),
        };
        let known_bytes = read_bytes.unwrap_or(0);
        // The result stands for the unknown length of a vector, and for a length below it.
        let asked_bytes =
            read.bytes.unwrap_or(known_bytes).max(known_bytes).min(OFFSET_MAX - offset);
        let outcome = match read_bytes {
            Ok(bytes) => ReadOutcome::Bytes(bytes.min(asked_bytes)),
            Err(error) => ReadOutcome::Error(error),
        };
        let Some(thread) = self.thread_number(read.task) else { return };
        let AsyncRead { begin_ns, method, descriptor, .. } = read;
        // The kernel or the program repeats such a read, which then has a record of its own.
        let must_retry = matches!(read_bytes, Err(error) if error == libc::EAGAIN as u32);
        if must_retry {
            return;
        }
        self.out.put(
            end_ns,
            Record::Read(ReadRecord {
                end_ns: end_ns.max(begin_ns),
                begin_ns,
                waited_ns: waited_ns.min(end_ns.saturating_sub(begin_ns)),
                thread,
                way: method,
                descriptor,
                file,
                offset,
                asked_bytes,
                outcome,
            }),
        );
    }

    /// Returns the sleep in nanoseconds between the start of a read and `end_ns`: of its own task,
    /// or else of its process.
    fn sleep_during_ns(&self, end_ns: u64, read: &AsyncRead) -> u64 {
        let idle = self.idle_sums(end_ns, read.task);
        match idle.task_ns.saturating_sub(read.idle.task_ns) {
            0 => idle.process_ns.saturating_sub(read.idle.process_ns),
            task_ns => task_ns,
        }
    }

    /// Counts `count` reads of a task that are missing from the recording, with their wait.
    fn count_missing(&mut self, task: u32, method: ReadMethod, count: u64, waited_ns: u64) {
        let Some(thread) = self.thread_number(task) else { return };
        let missing = self.pending.missing_reads.entry((thread, method)).or_default();
        let (missing_count, missing_wait_ns) = missing;
        *missing_count += count;
        *missing_wait_ns += waited_ns;
        self.pending.unseen_count += count;
    }

    /// Queues the counts of missing reads as records of the time `at_ns`, and resets them.
    pub(super) fn put_missing(&mut self, at_ns: u64) {
        for ((thread, way), (count, waited_ns)) in std::mem::take(&mut self.pending.missing_reads) {
            let unseen = Unseen { at_ns, thread, way, count, waited_ns };
            self.out.put(at_ns, Record::Unseen(unseen));
        }
    }

    /// Ends the reads in flight of a task, or of all tasks for `None`, whose end will not be
    /// reported. The reads of an `io_submit` call in progress are among them. A read completed by a
    /// device becomes a record. The others are counted as missing, except reads of no file.
    pub(super) fn abandon_reads(&mut self, at_ns: u64, task: Option<u32>) {
        let is_of_task = |read: &AsyncRead| task.is_none_or(|task| read.task == task);
        let mut uring_reads = Vec::new();
        self.pending.uring.retain(|_, read| {
            let is_of_task = is_of_task(read);
            if is_of_task {
                uring_reads.push(read.clone());
            }
            !is_of_task
        });
        let mut reads = take_matching(&mut self.pending.aio, is_of_task);
        for state in self.tasks.values_mut() {
            reads.extend(take_matching(&mut state.submit_call.reads, is_of_task));
        }
        self.put_abandoned(at_ns, reads.into_iter().chain(uring_reads));
    }
}

/// Removes and returns the reads for which `is_taken` returns true, in their order.
fn take_matching(
    reads: &mut Vec<AsyncRead>,
    is_taken: impl Fn(&AsyncRead) -> bool,
) -> Vec<AsyncRead> {
    reads.extract_if(.., |read| is_taken(read)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::event::{EventData, TraceEvent};
    use super::super::tests::{DISK, KnownFile, enter};
    use super::*;

    /// Three direct reads within an `io_submit` call that does not end. The device has completed
    /// the first one only. The thread ends, or the recording does.
    #[test]
    fn reads_of_an_unfinished_submit_call_are_recorded_or_counted() {
        let read = |request, offset| {
            EventData::AioRead(SubmittedRead {
                request,
                descriptor: Some(5),
                offset,
                bytes: Some(4096),
            })
        };
        for last in [EventData::TaskEnds, EventData::Wake { task: 70 }] {
            let mut tracker = TaskTracker::new(KnownFile, 0);
            tracker.expect_submissions();
            tracker.add_task(70, 70, "fio");
            // A read of a socket in flight does not count.
            let socket_read = tracker.new_read(5, 70, ReadMethod::Uring);
            tracker.pending.uring.insert(9, AsyncRead { has_no_file: true, ..socket_read });
            let request = |sector| {
                let name = String::new();
                let queue = EventData::Queue { device: DISK, sector, sectors: 8, name };
                let (device, bytes, flags) = (DISK, 4096, "R".to_owned());
                [queue, EventData::Issue { device, sector, bytes, flags }]
            };
            let [queue, issue] = request(80);
            let [second_queue, second_issue] = request(800);
            let events = [
                enter(SystemCall::IoSubmit, [1, 3, 0, 0]),
                read(1, 8192),
                read(2, 65536),
                read(3, 131_072),
                queue,
                issue,
                second_queue,
                second_issue,
                EventData::Complete { device: DISK, sector: 80, sectors: 8 },
                last,
            ];
            for (at_ns, data) in (10..).zip(events) {
                tracker.process(TraceEvent { at_ns, task: 70, data });
            }
            let records: Vec<Record> = tracker.finish(30).collect();
            let recorded = records.iter().filter_map(|record| match record {
                Record::Read(read) => Some((read.offset, read.begin_ns, read.end_ns)),
                _ => None,
            });
            assert_eq!(recorded.collect::<Vec<_>>(), [(8192, 11, 18)]);
            assert_eq!(tracker.unlocated_reads(), 2);
            let count = records.iter().map(|record| match record {
                Record::Unseen(unseen) => unseen.count,
                _ => 0,
            });
            assert_eq!(count.sum::<u64>(), 2);
        }
    }
}
