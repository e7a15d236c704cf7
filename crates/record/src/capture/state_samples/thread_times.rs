//! Processor times of threads, from the kernel's counters of each (`schedstat`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;

use readpath_trace::recording::Activity;

use super::super::now_ns;
use crate::schedstat::running_and_queued_ns;

/// Time on processors and time in their queues, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessorTime {
    /// Time on a processor.
    pub running_ns: u64,
    /// Time in the queue of a processor.
    pub queued_ns: u64,
}

impl ProcessorTime {
    /// Reads the times of a thread. `None` if it has ended or the kernel does not count them.
    pub fn of_thread(process: u32, thread: u32) -> Option<ProcessorTime> {
        let folder = format!("/proc/{process}/task/{thread}");
        let [running_ns, queued_ns] = running_and_queued_ns(&folder)?;
        Some(ProcessorTime { running_ns, queued_ns })
    }

    /// Part of `passed_ns` in the processors' queues, in nanoseconds: by the share of the queued
    /// time in both times. 0 if both are 0.
    pub fn queued_part(self, passed_ns: u64) -> u64 {
        let total_ns = self.running_ns + self.queued_ns;
        let part = u128::from(passed_ns) * u128::from(self.queued_ns);
        part.checked_div(u128::from(total_ns)).unwrap_or(0) as u64
    }
}

/// Time that a thread was busy between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledThread {
    /// Number of the thread.
    pub thread: u32,
    /// Time of the last sample. For the first one, a time before the start of the thread.
    pub begin_ns: u64,
    /// Time of this sample.
    pub end_ns: u64,
    /// Increase of the time on a processor and in its queue, and time of other waits.
    pub busy_ns: u64,
    /// Activity at the time of this sample.
    pub activity: Activity,
}

/// Last sample of each thread.
#[derive(Debug)]
pub(super) struct ThreadTimes {
    /// Busy time until the last sample and time of that sample, both in nanoseconds, by thread.
    last: BTreeMap<u32, (u64, u64)>,
    /// Times of the last two searches for threads, the earlier one first. A thread without a sample
    /// was not found by the earlier search, so it is younger.
    searched_ns: [u64; 2],
    /// Destination of the samples.
    sender: Sender<SampledThread>,
}

impl ThreadTimes {
    /// Starts without samples.
    pub fn new(sender: Sender<SampledThread>) -> ThreadTimes {
        ThreadTimes { last: BTreeMap::new(), searched_ns: [now_ns(); 2], sender }
    }

    /// Samples a thread of a process with its present activity. A thread without counters is left
    /// out. With `counts_as_busy`, all of the time since the last sample is busy: the thread
    /// waited, but not for a device.
    pub fn sample(&mut self, process: u32, thread: u32, activity: Activity, counts_as_busy: bool) {
        let Some(total) = ProcessorTime::of_thread(process, thread) else { return };
        let (end_ns, total_ns) = (now_ns(), total.running_ns + total.queued_ns);
        let last = self.last.insert(thread, (total_ns, end_ns));
        let (last_ns, begin_ns) = last.unwrap_or((0, self.searched_ns[0]));
        let counted_ns = total_ns.saturating_sub(last_ns);
        let busy_ns = if counts_as_busy { counted_ns.max(end_ns - begin_ns) } else { counted_ns };
        // Without a recorder nothing is left to do.
        let _ = self.sender.send(SampledThread { thread, begin_ns, end_ns, busy_ns, activity });
    }

    /// Forgets the threads that a search did not find.
    pub fn on_search(&mut self, found: &BTreeSet<u32>) {
        self.last.retain(|thread, _| found.contains(thread));
        self.searched_ns = [self.searched_ns[1], now_ns()];
    }
}
