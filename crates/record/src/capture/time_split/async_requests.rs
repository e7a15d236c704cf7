//! Requests of AIO and io_uring in flight, and the activity of a thread that waits for them.

use std::collections::HashMap;

use readpath_trace::recording::Activity;

use super::super::event::{EventData, SubmittedRead, SystemCall};
use super::super::state_samples::is_file;
use super::super::uring_operations::{OperationKind, first_activity};

/// Time in nanoseconds, chosen, for which the object at a descriptor is taken to be the same.
const DESCRIPTOR_NS: u64 = 100_000_000;

/// Requests in flight since the recording began.
#[derive(Debug, Default)]
pub(super) struct AsyncRequests {
    /// Requests of io_uring, by their addresses in the kernel.
    uring: HashMap<u64, Activity>,
    /// Numbers of requests of AIO that were submitted and not yet returned by a call. A program
    /// that takes results from memory has higher numbers, and is then taken to wait for storage.
    aio: AioCounts,
    /// Requests that each thread names in its current call of `io_submit`.
    named: HashMap<u32, AioCounts>,
    /// Time of the last look at a descriptor of a process, and true if it was a file.
    files: HashMap<(u32, u64), (u64, bool)>,
}

/// Numbers of requests of AIO.
#[derive(Clone, Copy, Debug, Default)]
struct AioCounts {
    /// Reads, and requests of unknown kind.
    reads: u64,
    /// Writes, and requests that write data back.
    writes: u64,
    /// Requests that wait for an event.
    events: u64,
}

impl AioCounts {
    /// Adds `count` requests of a call that named `named`. Requests beyond the named ones are of
    /// the same kind if all of these are of one kind, and may be reads otherwise.
    fn add_submitted(&mut self, count: u64, named: AioCounts) {
        let AioCounts { reads, writes, events } = named;
        let named_count = reads + writes + events;
        let rest = count.saturating_sub(named_count);
        match (reads, writes, events) {
            (0, 1.., 0) => self.writes += count,
            (0, 0, 1..) => self.events += count,
            // The kernel refuses the last requests of a list.
            _ if named_count > count => self.reads += count,
            _ => {
                self.reads += reads + rest;
                self.writes += writes;
                self.events += events;
            }
        }
    }

    /// Removes `count` requests whose results were taken. Their kinds are not known: events and
    /// writes are removed first, so that the reads are an upper bound.
    fn remove(&mut self, count: u64) {
        let mut rest = count;
        for number in [&mut self.events, &mut self.writes, &mut self.reads] {
            let removed = rest.min(*number);
            *number -= removed;
            rest -= removed;
        }
    }

    /// Activities of the requests, one for each kind.
    fn activities(self) -> impl Iterator<Item = Activity> {
        let kinds = [
            (self.reads, Activity::AsyncIo),
            (self.writes, Activity::Write),
            (self.events, Activity::Others),
        ];
        kinds.into_iter().filter(|&(count, _)| count > 0).map(|(_, activity)| activity)
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
                // A report of the same read with its descriptor may have come first. The
                // descriptors of other requests are not known.
                let activity = OperationKind::of_name(operation).activity(true);
                self.uring.entry(*request).or_insert(activity);
            }
            EventData::UringRead { read, process } => {
                let activity = OperationKind::Read.activity(self.reads_file(at_ns, *process, read));
                self.uring.insert(read.request, activity);
            }
            EventData::UringComplete { request, .. } => _ = self.uring.remove(request),
            EventData::AioRead(_) => self.named.entry(task).or_default().reads += 1,
            EventData::AioOther { is_write: true } => {
                self.named.entry(task).or_default().writes += 1;
            }
            EventData::AioOther { is_write: false } => {
                self.named.entry(task).or_default().events += 1;
            }
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
        first_activity(self.uring.values().copied().chain(self.aio.activities()))
    }

    /// True if a read is of a regular file or a block device, and if its descriptor is unknown or
    /// closed by now.
    fn reads_file(&mut self, at_ns: u64, process: u32, read: &SubmittedRead) -> bool {
        let Some(descriptor) = read.descriptor else { return true };
        let known = self.files.get(&(process, descriptor));
        if let Some((looked_ns, reads_file)) = known
            && at_ns.saturating_sub(*looked_ns) < DESCRIPTOR_NS
        {
            return *reads_file;
        }
        let is_open = std::fs::metadata(format!("/proc/{process}/fd/{descriptor}")).is_ok();
        let reads_file = !is_open || is_file(process, u32::try_from(descriptor).ok());
        self.files.insert((process, descriptor), (at_ns, reads_file));
        reads_file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: two writes and three reads are submitted. After results of two requests, at most
    /// the three reads are left.
    #[test]
    fn reads_of_aio_in_flight_are_an_upper_bound() {
        let mut counts = AioCounts::default();
        counts.add_submitted(5, AioCounts { reads: 3, writes: 2, events: 0 });
        counts.remove(2);
        assert_eq!(counts.activities().collect::<Vec<_>>(), [Activity::AsyncIo]);
        counts.remove(3);
        assert_eq!(counts.activities().count(), 0);
        // Of 300 writes, 256 were named.
        counts.add_submitted(300, AioCounts { writes: 256, ..AioCounts::default() });
        counts.remove(299);
        assert_eq!(counts.activities().collect::<Vec<_>>(), [Activity::Write]);
    }

    /// Task 7 submits a write and an `fsync` to AIO, then a read. A read of io_uring is of a pipe
    /// of this process.
    #[test]
    fn requests_without_reads_of_files_are_no_waits_for_reads() {
        use std::os::fd::AsRawFd;
        let mut requests = AsyncRequests::default();
        requests.process(1, 7, &EventData::AioOther { is_write: true });
        requests.process(1, 7, &EventData::Exit(SystemCall::IoSubmit, 1));
        assert_eq!(requests.waited_activity(), Activity::Write);
        requests.process(2, 7, &EventData::Exit(SystemCall::IoGetevents, 1));
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
