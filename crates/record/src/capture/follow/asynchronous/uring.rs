//! Reads over io_uring.
//!
//! A `task` is the kernel's number of a thread. Times are nanoseconds since the start of the
//! recording. A *queued* record is written once no earlier record can follow.

use readpath_trace::recording::ReadMethod;

use super::super::super::event::{Inode, SubmittedRead};
use super::super::super::names::FileNames;
use super::super::super::uring_operations::OperationKind;
use super::super::descriptors::DIRECT;
use super::super::{RecordedTask, TaskTracker};
use super::{ASYNC_READS_MAX, AsyncRead};

/// Sources that report a submission to io_uring: the event, and the BPF program, which copies the
/// range. They run in the order in which they were attached, for all recorders together. Either one
/// may therefore come first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ReportSources {
    /// True once the event has reported it.
    by_event: bool,
    /// True once the BPF program has reported it, with its range.
    by_program: bool,
}

impl<N: FileNames> TaskTracker<N> {
    /// Records the event that `task` submits an operation to io_uring. `request` is its address.
    /// Operations other than reads are ignored. At most `ASYNC_READS_MAX` reads are in flight.
    pub(in crate::capture::follow) fn on_uring_submit(
        &mut self,
        at_ns: u64,
        task: u32,
        request: u64,
        operation: &str,
    ) {
        // READ_MULTISHOT is none: it reads sockets and pipes only.
        let is_read = OperationKind::of_name(operation) == OperationKind::Read;
        if let Some(state) = self.tasks.get_mut(&task) {
            state.submitted_request = Some(request).filter(|_| is_read);
        }
        if !is_read || self.pending.uring.len() >= ASYNC_READS_MAX {
            return;
        }
        // The program that copies the range may have reported the same submission first.
        let by_program = ReportSources { by_event: false, by_program: true };
        match self.pending.uring.get_mut(&request) {
            Some(read) if read.reported == by_program && read.task == task => {
                read.reported.by_event = true;
            }
            // An older read at this address is replaced: its end was not reported.
            _ => {
                let mut read = self.new_read(at_ns, task, ReadMethod::Uring);
                read.reported.by_event = true;
                self.pending.uring.insert(request, read);
            }
        }
    }

    /// Records the file and the range of a read that `process` submits to io_uring. A kernel thread
    /// that submits is not a recorded task, so the read is assigned to a task of its process. The
    /// read is dropped without such a task, or with `ASYNC_READS_MAX` reads in flight.
    pub(in crate::capture::follow) fn on_uring_read(
        &mut self,
        at_ns: u64,
        task: u32,
        process: u32,
        submitted: SubmittedRead,
    ) {
        let read = self.pending.uring.remove(&submitted.request);
        let task_of_process =
            |(task, state): (&u32, &RecordedTask)| (state.process == process).then_some(*task);
        // The task itself, the first thread of the process (which has its number), or any other.
        let reader = if self.tasks.contains_key(&task) {
            Some(task)
        } else if self.tasks.contains_key(&process) {
            Some(process)
        } else {
            self.tasks.iter().find_map(task_of_process)
        };
        let Some(reader) = reader.filter(|_| self.pending.uring.len() < ASYNC_READS_MAX) else {
            return;
        };
        // The event of the same submission may have come first. A read that the program has
        // reported already is an older one, whose address in the kernel is used again.
        let read = read.filter(|read| read.task == reader && !read.reported.by_program);
        let mut read = read.unwrap_or_else(|| self.new_read(at_ns, reader, ReadMethod::Uring));
        read.reported.by_program = true;
        self.set_range(at_ns, &mut read, submitted);
        self.pending.uring.insert(submitted.request, read);
    }

    /// Queues the record of the io_uring read `request` (its address in the kernel), which
    /// completed at `at_ns`. `result` is the number of bytes or a negative error number. `inode`
    /// and `flags` are its file and the open flags, where they are reported. No effect if the
    /// submission was not recorded.
    pub(in crate::capture::follow) fn on_uring_completion(
        &mut self,
        at_ns: u64,
        request: u64,
        inode: Option<Inode>,
        flags: u64,
        result: i32,
    ) {
        let Some(mut read) = self.pending.uring.remove(&request) else { return };
        if let Some(inode) = inode {
            let no_name = None;
            read.file = Some(self.file_number(inode, no_name));
            // The submission of a registered file has no descriptor. The lowest one of the file
            // with the same flag of direct I/O stands for it.
            let table = self.tasks.get(&read.task).map(|state| state.table);
            let is_direct = flags & DIRECT != 0;
            let open_descriptor =
                table.and_then(|table| self.tables.descriptor_of(table, inode, is_direct));
            read.descriptor = read.descriptor.or(open_descriptor);
        }
        let unknown_wait_ns = None;
        self.put_asynchronous(at_ns, read, Some(result), unknown_wait_ns);
    }

    /// Moves the pages that io_uring's threads of the process added to the cache to the task of the
    /// read. Pages of other reads in flight are included. The threads are named `iou-wrk-…` and
    /// `iou-sqp-…`. No effect for AIO.
    pub(super) fn take_over_inserted(&mut self, read: &AsyncRead) {
        if read.method != ReadMethod::Uring {
            return;
        }
        let Some(process) = self.tasks.get(&read.task).map(|task| task.process) else { return };
        let is_worker =
            |state: &RecordedTask| state.process == process && state.name.starts_with("iou-");
        let mut pages = Vec::new();
        for (task, state) in &mut self.tasks {
            if *task != read.task && is_worker(state) {
                pages.append(&mut state.inserted);
            }
        }
        if let Some(task) = self.tasks.get_mut(&read.task) {
            task.inserted.extend(pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use readpath_trace::recording::{ReadRecord, Record};

    use super::super::super::super::event::{EventData, SystemCall, TraceEvent};
    use super::super::super::tests::{INODE, KnownFile, enter, reads, records};
    use super::*;

    /// Thread 71 of io_uring submits reads of registered files: the events name no descriptor. The
    /// file is open for direct I/O at descriptor 6, and through the page cache at 7 and 8.
    #[test]
    fn read_of_a_registered_file_has_the_descriptor_with_its_flags() {
        let mut follow = TaskTracker::new(KnownFile, 0);
        follow.expect_submissions();
        follow.add_task(70, 70, "fio");
        let mut process = |at_ns, task, data| follow.process(TraceEvent { at_ns, task, data });
        let direct = libc::O_DIRECT as u64;
        for (at_ns, descriptor, flags) in [(1, 8, 0), (4, 6, direct), (7, 7, 0)] {
            process(at_ns, 70, enter(SystemCall::OpenAt, [0, 0, flags, 0]));
            process(at_ns + 1, 70, EventData::Exit(SystemCall::OpenAt, descriptor as i64));
            process(at_ns + 2, 70, EventData::Opened { descriptor, inode: INODE, flags });
        }
        let name = "iou-sqp-70".to_owned();
        let new_task = EventData::NewTask {
            task: 71,
            name,
            is_thread: true,
            is_kernel_io: true,
            shares_files: true,
        };
        process(10, 70, new_task);
        for (at_ns, flags) in [(20, direct), (40, 0)] {
            let (request, offset) = (9, at_ns * 4096);
            let read = SubmittedRead { request, descriptor: None, offset, bytes: Some(4096) };
            process(at_ns, 71, EventData::UringRead { read, process: 70 });
            let inode = Some(INODE);
            process(at_ns + 10, 71, EventData::UringEnds { request, inode, flags, result: 4096 });
        }
        let records: Vec<Record> = follow.finish(u64::MAX).collect();
        let actual: Vec<_> = reads(&records)
            .iter()
            .map(|read| (read.descriptor, read.begin_ns, read.end_ns))
            .collect();
        assert_eq!(actual, [(Some(6), 20, 30), (Some(7), 40, 50)]);
    }

    /// Names of the kernel's events. A read with many results is one of a socket or a pipe only.
    #[test]
    fn read_of_a_socket_with_many_results_is_not_counted() {
        let operations = ["READ", "READV", "READ_FIXED", "READV_FIXED", "READ_MULTISHOT", "RECV"];
        let counts = operations.map(|operation| {
            let operation = operation.to_owned();
            let records = records(vec![
                (10, EventData::UringSubmit { request: 9, operation }),
                (20, EventData::UringComplete { request: 9, result: 4096 }),
            ]);
            let unseen = records.iter().map(|record| match record {
                Record::Unseen(unseen) => unseen.count,
                _ => 0,
            });
            unseen.sum::<u64>()
        });
        assert_eq!(counts, [1, 1, 1, 1, 0, 0]);
    }

    /// A read of unknown file is in flight when its thread reads page 3 by `pread`, from a
    /// descriptor of unknown file. The page is of the `pread`. The other read stays unknown.
    #[test]
    fn page_of_a_later_call_is_not_of_the_read_in_flight() {
        let records = records(vec![
            (10, enter(SystemCall::UringEnter, [4, 1, 0, 0])),
            (11, EventData::UringSubmit { request: 9, operation: "READ".to_owned() }),
            (12, EventData::Exit(SystemCall::UringEnter, 1)),
            (20, enter(SystemCall::Pread, [6, 0, 4096, 3 * 4096])),
            (21, EventData::CacheRead { inode: INODE, first: 3, end: 4 }),
            (22, EventData::Exit(SystemCall::Pread, 4096)),
            (30, EventData::UringComplete { request: 9, result: 4096 }),
        ]);
        let spans: Vec<_> =
            reads(&records).iter().map(|read| (read.begin_ns, read.end_ns)).collect();
        assert_eq!(spans, [(20, 22)]);
        let unseen = records.iter().filter(|record| matches!(record, Record::Unseen(_)));
        assert_eq!(unseen.count(), 1);
    }

    /// The read of thread 70 has completed. Thread 71 submits one at the same address in the
    /// kernel. Pages that thread 70 requests outside of any call are not of that read.
    #[test]
    fn page_is_not_of_another_threads_read_at_the_same_address() {
        let mut follow = TaskTracker::new(KnownFile, 0);
        follow.add_task(70, 70, "fio");
        follow.add_task(71, 70, "fio");
        let submit = EventData::UringSubmit { request: 9, operation: "READ".to_owned() };
        let complete = EventData::UringComplete { request: 9, result: 4096 };
        for (at_ns, task, data) in [
            (10, 70, submit.clone()),
            (11, 70, complete.clone()),
            (20, 71, submit),
            (21, 70, EventData::CacheRead { inode: INODE, first: 3, end: 4 }),
            (30, 71, complete),
        ] {
            follow.process(TraceEvent { at_ns, task, data });
        }
        let records: Vec<Record> = follow.finish(u64::MAX).collect();
        assert_eq!(reads(&records), Vec::<&ReadRecord>::new());
    }
}
