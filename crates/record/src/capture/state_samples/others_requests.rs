//! Requests of other programs to the disks of the recorded files, sampled without root.
//!
//! `/sys/dev/block/MAJOR:MINOR/stat` counts all bytes read from a disk, and `/proc/PID/io` the
//! bytes that disks read for a process. Between two samples, the difference was read by others. The
//! kernel counts a process's bytes when a request is sent, and the disk's when it has ended. Reads
//! of the program that are in flight are therefore taken off the following samples. A process is
//! found up to a search later than it starts, so its first bytes are taken off the samples before
//! as well. Small reads of others next to many of the program may be missed. Reads of the program
//! never count as reads of others.
//!
//! Writes have no owner here: the page cache writes for programs, later. They include the program's
//! own. A disk counts as busy with writes if at least one was in flight on average.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender};

use readpath_core::unit::SECTOR_BYTES;
use readpath_trace::recording::{DeviceOperation, OthersSampled};

use super::super::device_number;
use super::super::now_ns;
use super::super::preload::KernelCounts;

/// Pause between two samples, chosen.
const PERIOD_NS: u64 = 10_000_000;

/// Maximum time, chosen, between two samples that are compared. The sampling thread sleeps for up
/// to 50 ms.
const INTERVAL_NS_MAX: u64 = 120_000_000;

/// Number of intervals that are kept, because a process of the program may be found late: the reads
/// of others in them may turn out to be its reads.
const OPEN_INTERVALS: usize = 3;

/// Maximum length of a request in bytes, assumed.
const REQUEST_BYTES_MAX: u64 = 2 << 20;

/// Inverse of the minimum part of a disk's bytes read in an interval that others have read. Chosen.
const OTHERS_SHARE_DIVISOR: u64 = 4;

/// Maximum number of processes whose counters are read for a sample, chosen.
const PROCESSES_MAX: usize = 256;

/// State of the samples.
#[derive(Debug)]
pub(super) struct OthersSamples {
    /// Numbers of new disks.
    new_disks: Receiver<u64>,
    /// Samples of each known disk, by its number.
    disks: BTreeMap<u64, DiskSamples>,
    /// Time of the last sample; `None` before the first.
    last: Option<SampleTime>,
    /// Receives the requests of others.
    requests: Sender<OthersSampled>,
}

/// Time of a sample, and the bytes of the program until then.
#[derive(Clone, Copy, Debug)]
struct SampleTime {
    /// Time by the monotonic clock.
    at_ns: u64,
    /// Bytes that disks have read for the program's processes so far.
    own_bytes: u64,
}

/// Counters of a disk, from its file `stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DiskCounters {
    /// Bytes of completed reads.
    read_bytes: u64,
    /// Bytes of completed writes.
    written_bytes: u64,
    /// Sum of the durations of all writes.
    write_ms: u64,
    /// Number of requests in flight now.
    in_flight: u64,
}

/// Samples of a disk.
#[derive(Debug, Default)]
struct DiskSamples {
    /// Counters at the last sample.
    counters: DiskCounters,
    /// Bytes of the program that have been sent and not read.
    own_in_flight: u64,
    /// Latest intervals, the oldest first, at most [`OPEN_INTERVALS`].
    open: VecDeque<ReadInterval>,
}

/// Reads of a disk between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadInterval {
    /// Time of the sample at its start.
    begin_ns: u64,
    /// Time of the sample at its end.
    end_ns: u64,
    /// Bytes that the disk has read for all programs.
    bytes: u64,
    /// Bytes of these that were not read for the recorded program, as far as is known.
    others_bytes: u64,
}

impl OthersSamples {
    /// Prepares samples of the disks that `new_disks` names. Requests of others are sent to
    /// `requests`, with clock times.
    pub fn new(new_disks: Receiver<u64>, requests: Sender<OthersSampled>) -> OthersSamples {
        OthersSamples { new_disks, disks: BTreeMap::new(), last: None, requests }
    }

    /// Takes a sample if it is due: the counters of each known disk, and the bytes of the program's
    /// `processes`. Sends the requests that are certain by now: writes since the last sample, also
    /// the program's own, and reads of others some samples ago. The counts start again if no disk
    /// is known, if there are too many processes, or if their bytes are unknown.
    pub fn sample_if_due(&mut self, processes: impl ExactSizeIterator<Item = u32>) {
        let at_ns = now_ns();
        if self.last.is_some_and(|last| at_ns < last.at_ns + PERIOD_NS) {
            return;
        }
        for disk in self.new_disks.try_iter() {
            if let Some(counters) = DiskCounters::of_disk(disk) {
                self.disks.insert(disk, DiskSamples { counters, ..DiskSamples::default() });
            }
        }
        if self.disks.is_empty() || processes.len() > PROCESSES_MAX {
            self.last = None;
            return;
        }
        let read_disks = |disks: &BTreeMap<u64, DiskSamples>| -> Vec<_> {
            disks.keys().map(|disk| DiskCounters::of_disk(*disk)).collect()
        };
        // The disks' counters come first: the program's bytes then include all of its reads in
        // them. The later counters show if some of its reads may still be in flight.
        let counters = read_disks(&self.disks);
        let Some(own_bytes) = device_bytes_of(processes) else {
            self.last = None;
            return;
        };
        let later_counters = read_disks(&self.disks);
        let last = self.last.replace(SampleTime { at_ns, own_bytes });
        let last = last.filter(|last| at_ns - last.at_ns <= INTERVAL_NS_MAX);
        let counters = counters.into_iter().zip(later_counters);
        for ((&device, disk), counters) in self.disks.iter_mut().zip(counters) {
            // A disk that is gone has no counters.
            let (Some(counters), Some(later)) = counters else { continue };
            let Some(last) = last else {
                disk.restart(later);
                continue;
            };
            // The sum may fall when a process ends.
            let own_bytes_sent = own_bytes.saturating_sub(last.own_bytes);
            for (work, begin_ns, end_ns, bytes) in
                disk.compare(counters, later, own_bytes_sent, (last.at_ns, at_ns))
            {
                // The recording may have ended.
                let sampled = OthersSampled { end_ns, begin_ns, device, work, bytes };
                let _ = self.requests.send(sampled);
            }
        }
    }
}

/// Returns the bytes that disks have read for the processes. An ended process counts as 0. `None`
/// without a process, or if the kernel does not report the bytes of one that still runs.
fn device_bytes_of(processes: impl ExactSizeIterator<Item = u32>) -> Option<u64> {
    let mut own_bytes = (processes.len() > 0).then_some(0)?;
    for process in processes {
        match KernelCounts::of(process) {
            Ok(counts) => own_bytes += counts.device_bytes,
            Err(_) if Path::new(&format!("/proc/{process}")).exists() => return None,
            Err(_) => {}
        }
    }
    Some(own_bytes)
}

/// Type of requests, begin and end of their interval, and their bytes.
type Requests = (DeviceOperation, u64, u64, u64);

impl DiskSamples {
    /// Begins again after a pause. All reads in flight may be the program's.
    fn restart(&mut self, counters: DiskCounters) {
        let own_in_flight = counters.in_flight * REQUEST_BYTES_MAX;
        *self = DiskSamples { counters, own_in_flight, ..DiskSamples::default() };
    }

    /// Compares the counters with the last sample. `own_bytes_sent`: bytes of the program's reads
    /// that were sent to any disk in the interval between the two samples. `later`: the counters
    /// after these were read. Returns the requests of others that are now certain: writes of this
    /// interval, and reads of the interval that is [`OPEN_INTERVALS`] before it.
    fn compare(
        &mut self,
        counters: DiskCounters,
        later: DiskCounters,
        own_bytes_sent: u64,
        (begin_ns, end_ns): (u64, u64),
    ) -> Vec<Requests> {
        let last = std::mem::replace(&mut self.counters, counters);
        let mut certain = Vec::new();
        let write_ms = counters.write_ms.saturating_sub(last.write_ms);
        // At least one write was in flight on average.
        if write_ms * 1_000_000 >= end_ns - begin_ns {
            let bytes = counters.written_bytes.saturating_sub(last.written_bytes);
            certain.push((DeviceOperation::Write, begin_ns, end_ns, bytes));
        }
        let bytes = counters.read_bytes.saturating_sub(last.read_bytes);
        // Upper bound of the program's bytes among the read ones. The disk has not read the excess.
        let own_bytes_max = own_bytes_sent.saturating_add(self.own_in_flight);
        let mut excess_bytes = own_bytes_max.saturating_sub(bytes);
        // Bytes sent to another disk are no longer expected once nothing is in flight here. Then
        // only the reads that ended between the two readings may be the program's.
        let ended_bytes = later.read_bytes.saturating_sub(counters.read_bytes);
        let in_flight_max = if later.in_flight > 0 { u64::MAX } else { ended_bytes };
        self.own_in_flight = excess_bytes.min(in_flight_max);
        // A process that was found late has read in the earlier intervals. Reads in flight reduce
        // these as well, so that no read of the program is left.
        for interval in &mut self.open {
            let moved_bytes = excess_bytes.min(interval.others_bytes);
            interval.others_bytes -= moved_bytes;
            excess_bytes -= moved_bytes;
        }
        let others_bytes = bytes.saturating_sub(own_bytes_max);
        self.open.push_back(ReadInterval { begin_ns, end_ns, bytes, others_bytes });
        if self.open.len() > OPEN_INTERVALS {
            let closed = self.open.pop_front().filter(ReadInterval::is_of_others);
            certain.extend(closed.map(|closed| {
                let ReadInterval { begin_ns, end_ns, others_bytes, .. } = closed;
                (DeviceOperation::Read, begin_ns, end_ns, others_bytes)
            }));
        }
        certain
    }
}

impl ReadInterval {
    /// True if others have read enough to count as the reason of a wait.
    fn is_of_others(&self) -> bool {
        self.others_bytes > 0 && self.others_bytes * OTHERS_SHARE_DIVISOR >= self.bytes
    }
}

impl DiskCounters {
    /// Reads the counters of a disk. `None` if it has none, as a server, or does not exist.
    fn of_disk(device: u64) -> Option<DiskCounters> {
        let (major, minor) = device_number::parts(device);
        let path = format!("/sys/dev/block/{major}:{minor}/stat");
        DiskCounters::from_stat(&fs::read_to_string(path).ok()?)
    }

    /// Takes the counters from the text of `stat`: reads, merged reads, sectors read, milliseconds
    /// of reads, the same four of writes, requests in flight, and more. `None` for another format.
    fn from_stat(text: &str) -> Option<DiskCounters> {
        let numbers: Option<Vec<u64>> =
            text.split_whitespace().take(9).map(|word| word.parse().ok()).collect();
        let [_, _, read_sectors, _, _, _, written_sectors, write_ms, in_flight] = numbers?[..]
        else {
            return None;
        };
        Some(DiskCounters {
            read_bytes: read_sectors * SECTOR_BYTES,
            written_bytes: written_sectors * SECTOR_BYTES,
            write_ms,
            in_flight,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Compares samples 10 ms apart, from cumulated counters: MiB read from the disk, MiB that the
    /// program has sent, requests in flight. Returns the reads of others: begin in ms, and MiB.
    fn others_reads(samples: &[(u64, u64, u64)]) -> Vec<(u64, u64)> {
        let (mut disk, mut sent_mib) = (DiskSamples::default(), 0);
        let mut found = Vec::new();
        for (nth, &(read, sent, in_flight)) in (0_u64..).zip(samples) {
            let (read_bytes, own_bytes) = (read * MIB, (sent - sent_mib) * MIB);
            let counters = DiskCounters { read_bytes, in_flight, ..DiskCounters::default() };
            let span = (nth * PERIOD_NS, (nth + 1) * PERIOD_NS);
            found.extend(disk.compare(counters, counters, own_bytes, span));
            sent_mib = sent;
        }
        found
            .into_iter()
            .map(|(_, begin_ns, _, bytes)| (begin_ns / 1_000_000, bytes / MIB))
            .collect()
    }

    /// By hand: the program reads 1 MiB in each interval, others read 3 MiB in the second one.
    #[test]
    fn reads_beyond_the_programs_own_are_of_others() {
        let samples = [(1, 1, 0), (5, 2, 0), (6, 3, 0), (7, 4, 0), (8, 5, 0)];
        assert_eq!(others_reads(&samples), [(10, 3)]);
        // A sixth of the bytes is too little.
        let samples = [(5, 5, 0), (11, 10, 0), (16, 15, 0), (21, 20, 0), (26, 25, 0)];
        assert_eq!(others_reads(&samples), []);
    }

    /// By hand: 2 MiB are sent in the first interval and read in the second. A request of a child
    /// is read in the first interval, and the child is found in the second.
    #[test]
    fn reads_in_flight_and_of_new_children_are_the_programs_own() {
        let in_flight = [(0, 2, 1), (2, 2, 0), (2, 2, 0), (2, 2, 0), (2, 2, 0), (2, 2, 0)];
        assert_eq!(others_reads(&in_flight), []);
        let found_late = [(2, 0, 0), (2, 2, 0), (2, 2, 0), (2, 2, 0), (2, 2, 0), (2, 2, 0)];
        assert_eq!(others_reads(&found_late), []);
    }

    /// By hand: bytes sent to another disk are not in flight here, so they hide nothing later.
    #[test]
    fn reads_of_another_disk_hide_nothing_later() {
        let samples = [(0, 50, 0), (4, 50, 0), (4, 50, 0), (4, 50, 0), (4, 50, 0)];
        assert_eq!(others_reads(&samples), [(10, 4)]);
    }

    /// The example of the kernel's documentation of block device statistics has eleven numbers.
    #[test]
    fn counters_are_read_from_the_text_of_the_kernel() {
        let text =
            "     446   27  4464      250      9      3    96       20      2   260    270\n";
        let expected = DiskCounters {
            read_bytes: 4464 * 512,
            written_bytes: 96 * 512,
            write_ms: 20,
            in_flight: 2,
        };
        assert_eq!(DiskCounters::from_stat(text), Some(expected));
        assert_eq!(DiskCounters::from_stat("446 27 4464"), None);
        assert_eq!(DiskCounters::from_stat("a b c d e f g h i"), None);
    }

    /// By hand: writes of 10 ms together in 10 ms count, of 9 ms do not.
    #[test]
    fn writes_count_with_one_in_flight_on_average() {
        let mut disk = DiskSamples::default();
        let counters = DiskCounters { write_ms: 10, written_bytes: MIB, ..DiskCounters::default() };
        let expected = (DeviceOperation::Write, 0, PERIOD_NS, MIB);
        assert_eq!(disk.compare(counters, counters, 0, (0, PERIOD_NS)), [expected]);
        let counters = DiskCounters { write_ms: 19, ..counters };
        assert_eq!(disk.compare(counters, counters, 0, (PERIOD_NS, 2 * PERIOD_NS)), []);
    }

    /// By hand: one request of 8 MiB is in flight, and is read in the next interval. Another read
    /// of 1 MiB is sent and ends while the counters of the program are read.
    #[test]
    fn large_reads_and_reads_during_a_sample_are_the_programs_own() {
        let large = [(0, 8, 1), (8, 8, 0), (8, 8, 0), (8, 8, 0), (8, 8, 0), (8, 8, 0)];
        assert_eq!(others_reads(&large), []);
        let mut disk = DiskSamples::default();
        let (before, after) =
            (DiskCounters::default(), DiskCounters { read_bytes: MIB, ..DiskCounters::default() });
        assert_eq!(disk.compare(before, after, MIB, (0, PERIOD_NS)), []);
        for nth in 1..6 {
            let span = (nth * PERIOD_NS, (nth + 1) * PERIOD_NS);
            assert_eq!(disk.compare(after, after, 0, span), []);
        }
    }

    /// This process has counters, and no process has the number 0.
    #[test]
    fn bytes_are_unknown_without_a_process() {
        assert!(device_bytes_of([std::process::id()].into_iter()).is_some());
        assert_eq!(device_bytes_of([].into_iter()), None);
    }
}
