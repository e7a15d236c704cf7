//! Requests of an `io_submit` call in progress.
//!
//! The kernel accepts requests in their order, up to the first that it refuses.

use super::super::super::event::SubmittedRead;
use super::super::super::names::FileNames;
use super::super::TaskTracker;
use super::{AsyncRead, ReadMethod};

/// Requests of a task's `io_submit` call in progress.
#[derive(Debug, Default)]
pub(in crate::capture::follow) struct SubmitCall {
    /// Number of requests so far, of any kind.
    request_count: u64,
    /// Reads among them that have not ended.
    pub(super) reads: Vec<AsyncRead>,
}

impl SubmitCall {
    /// Returns the accepted reads, of a call that accepted `accepted` requests.
    pub(super) fn accepted_reads(self, accepted: u64) -> impl Iterator<Item = AsyncRead> {
        self.reads.into_iter().filter(move |read| read.index_in_call < accepted)
    }
}

impl<N: FileNames> TaskTracker<N> {
    /// Records that `task` submits a request to AIO within its `io_submit` call. `read` is `None`
    /// for a request that is not a read.
    pub(in crate::capture::follow) fn on_aio_submit(
        &mut self,
        at_ns: u64,
        task: u32,
        read: Option<SubmittedRead>,
    ) {
        let read = read.map(|submitted| {
            let mut read = self.new_read(at_ns, task, ReadMethod::Aio);
            self.set_range(at_ns, &mut read, submitted);
            read
        });
        let Some(state) = self.tasks.get_mut(&task) else { return };
        let index_in_call = state.submit_call.request_count;
        state.submit_call.request_count += 1;
        state.submit_call.reads.extend(read.map(|read| AsyncRead { index_in_call, ..read }));
    }

    /// Ends the requests of an `io_submit` call of `task` whose start or end was not reported, so
    /// that the next call counts its own from 0. No effect without such requests.
    pub(in crate::capture::follow) fn abandon_submit_call(&mut self, at_ns: u64, task: u32) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        let submitted = std::mem::take(&mut state.submit_call);
        self.put_abandoned(at_ns, submitted.reads.into_iter());
    }

    /// Queues the records of reads that a device has completed, and whose end will not be reported.
    /// Counts the others as missing, except reads of no file.
    pub(super) fn put_abandoned(&mut self, at_ns: u64, reads: impl Iterator<Item = AsyncRead>) {
        let (unknown_result, unknown_wait_ns) = (None, None);
        for read in reads.filter(|read| !read.has_no_file) {
            match read.last_completion_ns.filter(|_| read.is_completed()) {
                Some(end_ns) => {
                    self.put_asynchronous(end_ns, read, unknown_result, unknown_wait_ns)
                }
                None => {
                    let waited_ns = self.sleep_during_ns(at_ns, &read);
                    self.count_missing(read.task, read.method, 1, waited_ns);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use readpath_trace::recording::{Activity, Record};

    use super::super::super::super::event::{EventData, SystemCall};
    use super::super::super::tests::{INODE, asynchronous_records, enter, reads, submitted_read};
    use super::*;

    /// Four requests: a write, a direct read, a read through the page cache that ends within the
    /// call, and a direct read. The kernel accepts three. Descriptor 6 is of unknown file.
    #[test]
    fn refused_read_behind_other_accepted_requests_has_no_record() {
        let cached = |read| EventData::AioRead(SubmittedRead { descriptor: Some(6), ..read });
        let records = asynchronous_records(vec![
            (10, enter(SystemCall::IoSubmit, [1, 4, 0, 0])),
            (11, EventData::AioOther { activity: Activity::Write }),
            (12, EventData::AioRead(submitted_read(2, 8192))),
            (13, cached(submitted_read(3, 65536))),
            (14, EventData::AioRead(submitted_read(4, 131_072))),
            (15, EventData::CacheRead { inode: INODE, first: 16, end: 17 }),
            (20, EventData::Exit(SystemCall::IoSubmit, 3)),
            (30, enter(SystemCall::IoGetevents, [1, 1, 3, 0])),
            (40, EventData::Exit(SystemCall::IoGetevents, 3)),
        ]);
        let offsets: Vec<u64> = reads(&records).iter().map(|read| read.offset).collect();
        assert_eq!(offsets, [65536, 8192]);
    }

    /// The end of the first call is lost, or its start came before the recording. Its read
    /// counts as missing. The next call has two accepted reads.
    #[test]
    fn lost_end_of_a_submit_call_does_not_shift_the_next_one() {
        let other = || EventData::AioOther { activity: Activity::Write };
        let read = |request, offset| EventData::AioRead(submitted_read(request, offset));
        let first_calls = [
            // Without an end, and then another call.
            vec![
                (10, enter(SystemCall::IoSubmit, [1, 2, 0, 0])),
                (11, other()),
                (12, read(1, 4096)),
                (20, enter(SystemCall::IoGetevents, [1, 1, 2, 0])),
                (21, EventData::Exit(SystemCall::IoGetevents, 2)),
            ],
            // Without a start.
            vec![
                (11, other()),
                (12, read(1, 4096)),
                (20, EventData::Exit(SystemCall::IoSubmit, 2)),
            ],
        ];
        for first_call in first_calls {
            let next_call = vec![
                (30, enter(SystemCall::IoSubmit, [1, 2, 0, 0])),
                (31, read(2, 8192)),
                (32, read(3, 65536)),
                (40, EventData::Exit(SystemCall::IoSubmit, 2)),
                (50, enter(SystemCall::IoGetevents, [1, 1, 2, 0])),
                (60, EventData::Exit(SystemCall::IoGetevents, 2)),
            ];
            let records = asynchronous_records([first_call, next_call].concat());
            let offsets: Vec<u64> = reads(&records).iter().map(|read| read.offset).collect();
            assert_eq!(offsets, [8192, 65536]);
            let missing = records.iter().filter_map(|record| match record {
                Record::Unseen(unseen) => Some(unseen.count),
                _ => None,
            });
            assert_eq!(missing.sum::<u64>(), 1);
        }
    }
}
