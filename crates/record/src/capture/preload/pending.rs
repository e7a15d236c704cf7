//! Records that wait for the samples of their time, which bound the waits of reads.

use std::collections::VecDeque;
use std::io::{self, Write};

use readpath_trace::recording::{OpenRecord, ReadMethod, ReadRecord, Record, RecordingWriter};

use super::super::now_ns;
use super::Preload;
use super::last_opens::LastOpens;
use super::sleep_times::{CallWait, DELAY_NS, SleepTimes};
use crate::called_wait::{CopySpeed, NO_WAIT_NS, wait_of_call};

/// Maximum number of records that are delayed, chosen. Beyond it the oldest is written early.
const RECORDS_MAX: usize = 1 << 16;

/// A delayed record, with the wait of a read.
#[derive(Debug)]
struct Pending {
    /// The record, with an unknown wait if it is a read.
    record: Record,
    /// Wait by the duration of the call. `None` for other records, and for a read without a wait.
    wait: Option<CallWait>,
    /// Open of a read's descriptor, if it is known.
    open: Option<OpenRecord>,
}

/// Records in the order of their times, not yet written.
#[derive(Debug, Default)]
pub(super) struct PendingRecords {
    /// The delayed records, the oldest first.
    records: VecDeque<Pending>,
    /// Number of records at the front that are claimed: their waits are counted in `sleep_times`.
    /// The waits of an interval share its sleep, so all are counted before one is bounded.
    claimed: usize,
    /// Sleep of the threads.
    sleep_times: SleepTimes,
    /// End of the last sample.
    sampled_ns: u64,
    /// Reported opens, also the ones that are not yet written.
    reported_opens: LastOpens,
}

impl PendingRecords {
    /// Keeps a reported open.
    pub fn on_open(&mut self, open: &OpenRecord) {
        self.reported_opens.add(open);
    }

    /// Returns the reported open of a record, if it is a read with a known one.
    pub fn open_of(&self, record: &Record) -> Option<OpenRecord> {
        let Record::Read(read) = record else { return None };
        self.reported_opens.of_read(read).cloned()
    }

    /// Returns the wait of a read by its duration: the part beyond a call without a wait, with a
    /// copy of its bytes at this speed. The fast copy leaves the longest wait.
    fn wait_of(&self, read: &ReadRecord, speed: CopySpeed) -> u64 {
        let is_direct = self.reported_opens.of_read(read).is_some_and(|open| open.is_direct);
        wait_of_call(read, read.bytes_read(), is_direct, speed)
    }

    /// Adds a record. `task`: thread of the kernel that made the call; `start_ns`: start of the
    /// recording. The wait of a read of AIO is none of its thread.
    pub fn add(&mut self, record: Record, task: u32, start_ns: u64) {
        let open = self.open_of(&record);
        let wait = match &record {
            Record::Read(read) if read.way != ReadMethod::Aio => Some(CallWait {
                thread: task,
                begin_ns: read.begin_ns + start_ns,
                end_ns: read.end_ns + start_ns,
                wait_ns: self.wait_of(read, CopySpeed::Fast),
                unsampled_wait_ns: self.wait_of(read, CopySpeed::Slow),
            }),
            _ => None,
        };
        let wait = wait.filter(|wait| wait.wait_ns > 0);
        self.records.push_back(Pending { record, wait, open });
    }

    /// Claims records from the oldest unclaimed one on: adds their waits to `sleep_times`. It ends
    /// at the first wait that ended after the last sample, since its sleep is not known yet.
    /// Records without a wait are claimed with their predecessors.
    fn claim(&mut self) {
        for pending in self.records.range(self.claimed..) {
            if let Some(wait) = &pending.wait {
                if wait.end_ns > self.sampled_ns {
                    break;
                }
                self.sleep_times.claim(wait);
            }
            self.claimed += 1;
        }
    }

    /// Takes the next record, with the wait of a read bounded, and with its open. `None` if no
    /// record is left, or if the oldest is too young or unclaimed. With `must_end`, or beyond
    /// `RECORDS_MAX` records, it is taken in any case. A record without a wait only waits for its
    /// predecessors.
    fn take_next(&mut self, must_end: bool) -> Option<(Record, Option<OpenRecord>)> {
        let first = self.records.front()?;
        let is_full = self.records.len() > RECORDS_MAX;
        let is_due =
            first.wait.is_none_or(|wait| wait.end_ns.saturating_add(DELAY_NS) <= self.sampled_ns);
        if !(must_end || is_full || is_due && self.claimed > 0) {
            return None;
        }
        self.claimed = self.claimed.saturating_sub(1);
        let Pending { mut record, wait, open } = self.records.pop_front()?;
        if let (Record::Read(read), Some(wait)) = (&mut record, wait) {
            // The value 0 stands for an unknown bound, so a wait of 0 becomes `NO_WAIT_NS`.
            read.waited_ns = self.sleep_times.bounded(&wait).max(NO_WAIT_NS);
        }
        Some((record, open))
    }
}

impl Preload {
    /// True if the sleep of the threads is sampled. An advisor needs no waits in the recording.
    fn samples_sleep(&self) -> bool {
        self.states.is_some() && self.advisor.is_none()
    }

    /// Returns the longest wait of a read by its duration. Sampled sleep may shorten it later.
    /// Without these samples nothing does, so a slow copy is assumed.
    pub(super) fn longest_wait(&self, read: &ReadRecord) -> u64 {
        let speed = if self.samples_sleep() { CopySpeed::Fast } else { CopySpeed::Slow };
        self.pending.wait_of(read, speed)
    }

    /// Writes a record of the library, later if samples will bound the waits. Without a sampler
    /// (`states`), and with an advisor, it is written at once. Fails if the recording cannot be
    /// written.
    pub(super) fn put_called<W: Write>(
        &mut self,
        record: Record,
        task: u64,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        if !self.samples_sleep() {
            let open = self.pending.open_of(&record);
            return self.put_with_open(record, open, writer);
        }
        self.pending.add(record, task as u32, self.start_ns);
        Ok(())
    }

    /// Writes a record of the library. The `open` of a read is written before it if the last open
    /// in the recording has other flags. Sampled reads are not delayed, and may be at a descriptor
    /// with the number of this one. Fails if the recording cannot be written.
    fn put_with_open<W: Write>(
        &mut self,
        record: Record,
        open: Option<OpenRecord>,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        if let Record::Open(open) = &record {
            self.written_opens.add(open);
        }
        if let (Record::Read(read), Some(open)) = (&record, open)
            && self.written_opens.add(&open)
        {
            let (at_ns, thread) = (read.begin_ns, read.thread);
            self.put_checked(Record::Open(OpenRecord { at_ns, thread, ..open }), writer)?;
        }
        self.put_checked(record, writer)
    }

    /// Writes the delayed records that are due; all of them if `must_end`, since no more samples
    /// follow then. Fails if the recording cannot be written.
    pub(super) fn record_pending<W: Write>(
        &mut self,
        must_end: bool,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        let samples = self.states.as_ref().map(|states| states.take_threads()).unwrap_or_default();
        for sample in samples {
            self.pending.sampled_ns = self.pending.sampled_ns.max(sample.end_ns);
            self.pending.sleep_times.add(&sample);
        }
        if must_end {
            self.pending.sampled_ns = u64::MAX;
        }
        self.pending.claim();
        while let Some((record, open)) = self.pending.take_next(must_end) {
            self.put_with_open(record, open, writer)?;
        }
        self.pending.sleep_times.forget_ended_threads(now_ns());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use readpath_trace::recording::{Activity, ReadOutcome};

    use super::super::super::state_samples::SampledThread;
    use super::*;

    /// Number of the kernel for the thread of the tests.
    const TASK: u32 = 7;

    const US: u64 = 1000;

    /// A read of 128 KiB that takes 100 µs.
    fn read(begin_ns: u64) -> Record {
        Record::Read(ReadRecord {
            begin_ns,
            end_ns: begin_ns + 100 * US,
            asked_bytes: 128 << 10,
            outcome: ReadOutcome::Bytes(128 << 10),
            ..ReadRecord::default()
        })
    }

    /// Adds a sample, with the thread asleep in a read.
    fn add_sample(pending: &mut PendingRecords, begin_ns: u64, end_ns: u64, busy_ns: u64) {
        let activity = Activity::Read;
        let sample = SampledThread { thread: TASK, begin_ns, end_ns, busy_ns, activity };
        pending.sampled_ns = end_ns;
        pending.sleep_times.add(&sample);
        pending.claim();
    }

    /// Wait of the next record, if it is due.
    fn next_wait(pending: &mut PendingRecords) -> Option<u64> {
        match pending.take_next(false)?.0 {
            Record::Read(read) => Some(read.waited_ns),
            other => panic!("{other:?}"),
        }
    }

    /// By hand: 100 µs without 20 µs of the call and 13,107 ns of a copy at 0.1 ns a byte. The
    /// sleep of 80 µs allows it. With a copy at 1 ns a byte the read had no wait.
    #[test]
    fn read_of_a_fast_drive_keeps_the_wait_that_the_sleep_allows() {
        let mut pending = PendingRecords::default();
        pending.add(read(0), TASK, 0);
        add_sample(&mut pending, 0, 100 * US, 20 * US);
        assert_eq!(next_wait(&mut pending), None);
        add_sample(&mut pending, 100 * US, DELAY_NS + 100 * US, DELAY_NS);
        assert_eq!(next_wait(&mut pending), Some(66_893));
    }

    /// A read as above, with samples every 2 ms until it is due: 100 intervals.
    #[test]
    fn intervals_of_a_read_are_kept_until_it_is_due() {
        let mut pending = PendingRecords::default();
        pending.add(read(0), TASK, 0);
        let waits = (0..=100).map(|at| {
            let begin_ns = at * 2000 * US;
            // The thread sleeps in the first interval only, for 80 µs.
            let busy_ns = if at == 0 { 1920 * US } else { 2000 * US };
            add_sample(&mut pending, begin_ns, begin_ns + 2000 * US, busy_ns);
            next_wait(&mut pending)
        });
        assert_eq!(waits.flatten().collect::<Vec<u64>>(), [66_893]);
    }
}
