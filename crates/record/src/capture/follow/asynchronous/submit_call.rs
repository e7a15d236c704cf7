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
}

#[cfg(test)]
mod tests {
    use readpath_trace::recording::Activity;

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
}
