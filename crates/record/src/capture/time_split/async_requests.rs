//! Requests of AIO and io_uring in flight, and the activity of a thread that waits for them.

use std::collections::{HashMap, VecDeque};

use readpath_trace::recording::Activity;

use super::super::event::{EventData, SubmittedRead, SystemCall};
use super::super::names::is_without_offsets;
use super::super::uring_operations::{OperationKind, first_activity};

/// Time in nanoseconds, chosen, for which the object at a descriptor is taken to be the same.
const DESCRIPTOR_NS: u64 = 100_000_000;

/// Maximum number of requests of AIO in flight, on a system with the default of `fs.aio-max-nr`
/// (in the kernel's `fs/aio.c`). Older ones have ended, and the program took their
/// results from memory.
const AIO_IN_FLIGHT_MAX: u64 = 0x1_0000;

/// Requests in flight since the recording began.
#[derive(Debug, Default)]
pub(super) struct AsyncRequests {
    /// Requests of io_uring, by their addresses in the kernel.
    uring: HashMap<u64, Activity>,
    /// Numbers of these requests.
    uring_counts: ActivityCounts,
    /// Requests of AIO that were submitted and not yet returned by a call.
    aio: AioRequests,
    /// Requests that each thread names in its current call of `io_submit`.
    named: HashMap<u32, AioRequests>,
    /// Time of the last look at a descriptor of a process, and true if it was a file.
    files: HashMap<(u32, u64), (u64, bool)>,
}

/// Number of requests of each activity.
#[derive(Debug, Default)]
struct ActivityCounts([u64; Activity::ALL.len()]);

impl ActivityCounts {
    /// Adds requests.
    fn add(&mut self, activity: Activity, count: u64) {
        self.0[activity as usize] += count;
    }

    /// Removes requests that were added.
    fn remove(&mut self, activity: Activity, count: u64) {
        self.0[activity as usize] -= count;
    }

    /// Activities with requests.
    fn activities(&self) -> impl Iterator<Item = Activity> {
        let counts = Activity::ALL.into_iter().zip(self.0);
        counts.filter(|&(_, count)| count > 0).map(|(activity, _)| activity)
    }
}

/// Requests of AIO in the order of their submission.
#[derive(Debug, Default)]
struct AioRequests {
    /// Runs of requests of one activity, with their lengths, the oldest first.
    runs: VecDeque<(Activity, u64)>,
    /// Number of all requests.
    count: u64,
    /// Numbers of the requests by activity.
    counts: ActivityCounts,
}

impl AioRequests {
    /// Adds requests of one activity, and forgets the oldest beyond `AIO_IN_FLIGHT_MAX`.
    fn add(&mut self, activity: Activity, count: u64) {
        if count == 0 {
            return;
        }
        match self.runs.back_mut() {
            Some((last, length)) if *last == activity => *length += count,
            _ => self.runs.push_back((activity, count)),
        }
        self.count += count;
        self.counts.add(activity, count);
        self.remove(self.count.saturating_sub(AIO_IN_FLIGHT_MAX));
    }

    /// Adds the first `count` requests of a call that named `named`: the kernel refuses the last
    /// ones of a list. The tracer names only the first requests of a long list. The others have the
    /// activity of the named ones if all of these have the same, and may be reads otherwise.
    fn add_submitted(&mut self, count: u64, named: AioRequests) {
        let rest_activity = match named.runs.front() {
            Some(&(activity, _)) if named.runs.len() == 1 => activity,
            _ => Activity::AsyncIo,
        };
        let mut rest = count;
        for (activity, length) in named.runs {
            let accepted = length.min(rest);
            self.add(activity, accepted);
            rest -= accepted;
        }
        self.add(rest_activity, rest);
    }

    /// Removes `count` requests whose results were taken: the oldest ones, as results do not name
    /// their requests here.
    fn remove(&mut self, count: u64) {
        let mut rest = count;
        while rest > 0
            && let Some((activity, length)) = self.runs.front_mut()
        {
            let removed = rest.min(*length);
            self.counts.remove(*activity, removed);
            self.count -= removed;
            *length -= removed;
            rest -= removed;
            if *length == 0 {
                self.runs.pop_front();
            }
        }
    }
}

impl AsyncRequests {
    /// True for an event that changes the requests in flight.
    pub fn has_effect(data: &EventData) -> bool {
        matches!(
            data,
            EventData::UringSubmit { .. }
                | EventData::UringRead { .. }
                | EventData::UringComplete { .. }
                | EventData::AioRead(_)
                | EventData::AioOther { .. }
                | EventData::Exit(SystemCall::IoSubmit | SystemCall::IoGetevents, _)
        )
    }

    /// Adds or removes the requests of an event of `task`.
    pub fn process(&mut self, at_ns: u64, task: u32, data: &EventData) {
        match data {
            EventData::UringSubmit { request, operation } => {
                // The `UringRead` of the same read, with its descriptor, may have come first. Any
                // other known request at this address has ended: the kernel has used the address
                // again. The descriptor is not known here, and counts as a file.
                let is_file = true;
                let kind = OperationKind::of_name(operation);
                if kind != OperationKind::Read || !self.uring.contains_key(request) {
                    self.add_uring(*request, kind.activity(is_file));
                }
            }
            EventData::UringRead { read, process } => {
                let activity = OperationKind::Read.activity(self.reads_file(at_ns, *process, read));
                self.add_uring(read.request, activity);
            }
            EventData::UringComplete { request, .. } => {
                if let Some(activity) = self.uring.remove(request) {
                    self.uring_counts.remove(activity, 1);
                }
            }
            EventData::AioRead(_) => self.name(task, Activity::AsyncIo),
            EventData::AioOther { activity } => self.name(task, *activity),
            EventData::Exit(SystemCall::IoSubmit, count) => {
                let named = self.named.remove(&task).unwrap_or_default();
                self.aio.add_submitted(u64::try_from(*count).unwrap_or(0), named);
            }
            EventData::Exit(SystemCall::IoGetevents, count) => {
                self.aio.remove(u64::try_from(*count).unwrap_or(0));
            }
            _ => {}
        }
    }

    /// Activity of a thread that waits for the requests in flight.
    pub fn waited_activity(&self) -> Activity {
        first_activity(self.uring_counts.activities().chain(self.aio.counts.activities()))
    }

    /// Adds a request of io_uring, or changes its activity.
    fn add_uring(&mut self, request: u64, activity: Activity) {
        if let Some(before) = self.uring.insert(request, activity) {
            self.uring_counts.remove(before, 1);
        }
        self.uring_counts.add(activity, 1);
    }

    /// Adds a request of AIO that a thread names in its current call.
    fn name(&mut self, task: u32, activity: Activity) {
        self.named.entry(task).or_default().add(activity, 1);
    }

    /// True if a read is of a regular file or a block device. Also true if its descriptor is
    /// unknown or closed by now. The answer of a look-up is repeated for `DESCRIPTOR_NS`.
    fn reads_file(&mut self, at_ns: u64, process: u32, read: &SubmittedRead) -> bool {
        let Some(descriptor) = read.descriptor else { return true };
        let known = self.files.get(&(process, descriptor));
        if let Some((looked_ns, reads_file)) = known
            && at_ns.saturating_sub(*looked_ns) < DESCRIPTOR_NS
        {
            return *reads_file;
        }
        let reads_file = !is_without_offsets(process, descriptor);
        self.files.insert((process, descriptor), (at_ns, reads_file));
        reads_file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: three reads and two writes are submitted, then 300 writes, of which 256 are named.
    #[test]
    fn requests_of_aio_end_in_the_order_of_their_submission() {
        let named = |runs: &[(Activity, u64)]| {
            let mut requests = AioRequests::default();
            runs.iter().for_each(|&(activity, count)| requests.add(activity, count));
            requests
        };
        let mut requests = AioRequests::default();
        let list = named(&[(Activity::AsyncIo, 3), (Activity::Write, 3)]);
        requests.add_submitted(5, list);
        requests.remove(2);
        let left = |requests: &AioRequests| requests.counts.activities().collect::<Vec<_>>();
        assert_eq!(left(&requests).len(), 2);
        requests.remove(1);
        assert_eq!(left(&requests), [Activity::Write]);
        requests.remove(2);
        assert_eq!((left(&requests), requests.count), (vec![], 0));
        requests.add_submitted(300, named(&[(Activity::Write, 256)]));
        requests.remove(299);
        assert_eq!(left(&requests), [Activity::Write]);
        // The results are taken from memory. 2^16 requests may be in flight.
        requests.add(Activity::AsyncIo, 1);
        requests.add(Activity::Write, 65_535);
        assert_eq!(requests.count, 65_536);
        requests.add(Activity::Write, 1);
        assert_eq!((left(&requests), requests.count), (vec![Activity::Write], 65_536));
    }

    /// Eight reads are submitted, then one write after each result. After eight results only
    /// writes are in flight.
    #[test]
    fn writes_that_follow_reads_of_aio_are_waits_for_writes() {
        let mut requests = AsyncRequests::default();
        let read = SubmittedRead { request: 1, descriptor: Some(3), offset: 0, bytes: Some(8) };
        (0..8).for_each(|_| requests.process(1, 7, &EventData::AioRead(read)));
        requests.process(1, 7, &EventData::Exit(SystemCall::IoSubmit, 8));
        for at_ns in 2..10 {
            assert_eq!(requests.waited_activity(), Activity::AsyncIo);
            requests.process(at_ns, 7, &EventData::Exit(SystemCall::IoGetevents, 1));
            requests.process(at_ns, 7, &EventData::AioOther { activity: Activity::Write });
            requests.process(at_ns, 7, &EventData::Exit(SystemCall::IoSubmit, 1));
        }
        assert_eq!(requests.waited_activity(), Activity::Write);
    }

    /// The completion of a poll is lost, and the kernel uses its address for a write.
    #[test]
    fn request_at_the_address_of_another_one_takes_its_place() {
        let mut requests = AsyncRequests::default();
        let submit = |operation: &str| EventData::UringSubmit {
            request: 5,
            operation: operation.to_owned(),
        };
        requests.process(1, 7, &submit("POLL_ADD"));
        requests.process(2, 7, &submit("WRITE"));
        assert_eq!(requests.waited_activity(), Activity::Write);
        requests.process(3, 7, &EventData::UringComplete { request: 5, result: 8 });
        assert_eq!(requests.waited_activity(), Activity::Others);
    }

    /// Task 7 submits a write and an `fsync` to AIO, then a read. A read of io_uring is of a pipe
    /// of this process.
    #[test]
    fn requests_without_reads_of_files_are_no_waits_for_reads() {
        use std::os::fd::AsRawFd;
        let mut requests = AsyncRequests::default();
        for activity in [Activity::Write, Activity::Sync] {
            requests.process(1, 7, &EventData::AioOther { activity });
            requests.process(1, 7, &EventData::Exit(SystemCall::IoSubmit, 1));
        }
        assert_eq!(requests.waited_activity(), Activity::Sync);
        requests.process(2, 7, &EventData::Exit(SystemCall::IoGetevents, 2));
        assert_eq!(requests.waited_activity(), Activity::Others);
        let (pipe, _writer) = std::io::pipe().unwrap();
        let read = SubmittedRead {
            request: 9,
            descriptor: Some(pipe.as_raw_fd() as u64),
            offset: 0,
            bytes: Some(8),
        };
        let process = std::process::id();
        let submit = EventData::UringSubmit { request: 9, operation: "READ".to_owned() };
        let read = EventData::UringRead { read, process };
        // Either source may come first.
        for events in [[&submit, &read], [&read, &submit]] {
            events.into_iter().for_each(|event| requests.process(3, 7, event));
            assert_eq!(requests.waited_activity(), Activity::Others);
            requests.process(4, 7, &EventData::UringComplete { request: 9, result: 8 });
        }
        requests.process(5, 7, &submit);
        assert_eq!(requests.waited_activity(), Activity::AsyncIo);
    }
}
