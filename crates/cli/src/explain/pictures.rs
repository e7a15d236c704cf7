//! Data of the pictures of a recording, collected in one pass and bounded memory.

use std::collections::BTreeMap;

use readpath_record::thinned::ThinnedList;
use readpath_trace::recording::{DeviceOperation, ReadOutcome, Record};

/// Maximum number of kept reads. Longer recordings are thinned to every second, fourth, … read.
/// This number and the ones below are chosen, not measured.
const READS_MAX: usize = 8_192;

/// Maximum number of time spans. Their length doubles when the recording is longer than all spans.
const SPANS_MAX: usize = 512;

/// Initial length of a span, in nanoseconds.
const SPAN_NS: u64 = 1_000_000;

/// Read in a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawnRead {
    /// Number of the file in the recording.
    pub file: u32,
    /// Begin, since the begin of the recording.
    pub begin_ns: u64,
    /// End, since the begin of the recording.
    pub end_ns: u64,
    /// Time for which the read waited for a device.
    pub waited_ns: u64,
    /// First byte in the file.
    pub offset: u64,
    /// Number of bytes that were read.
    pub bytes: u64,
}

/// Collector of the pictures' data.
#[derive(Debug)]
pub struct Pictures {
    /// Path of each file, by its number.
    pub paths: BTreeMap<u32, String>,
    /// Kept reads, in order of their ends.
    pub reads: ThinnedList<DrawnRead>,
    /// Sum over all read requests of their time at the devices, per span.
    busy_ns: Vec<u64>,
    /// Length of a span.
    span_ns: u64,
    /// End of the recording so far: the latest end of a read, a read request, or the recording.
    pub end_ns: u64,
}

impl Default for Pictures {
    /// Collector without reads and requests.
    fn default() -> Pictures {
        Pictures {
            paths: BTreeMap::new(),
            reads: ThinnedList::new(READS_MAX),
            busy_ns: Vec::new(),
            span_ns: SPAN_NS,
            end_ns: 0,
        }
    }
}

impl Pictures {
    /// Adds the next record: a file name, a successful read, or a read request of a device. A
    /// failed read and the end record only extend the time. All other records are ignored.
    pub fn add_record(&mut self, record: &Record) {
        match record {
            Record::File(file) => {
                self.paths.insert(file.file, file.path.clone());
            }
            Record::Read(read) => {
                self.end_ns = self.end_ns.max(read.end_ns);
                if let ReadOutcome::Bytes(bytes) = read.outcome {
                    self.reads.push(DrawnRead {
                        file: read.file,
                        begin_ns: read.begin_ns,
                        end_ns: read.end_ns,
                        waited_ns: read.waited_ns,
                        offset: read.offset,
                        bytes,
                    });
                }
            }
            Record::Request(request) if request.work == DeviceOperation::Read => {
                self.end_ns = self.end_ns.max(request.end_ns);
                self.add_busy_time(request.begin_ns, request.end_ns);
            }
            Record::End(end) => self.end_ns = self.end_ns.max(end.at_ns),
            _ => {}
        }
    }

    /// Mean number of read requests at the devices, per span: its start in seconds, and the number.
    pub fn depths(&self) -> Vec<(f64, f64)> {
        let spans = (0..).zip(&self.busy_ns);
        let depth = |(span_index, busy_ns): (u64, &u64)| {
            ((span_index * self.span_ns) as f64 / 1e9, *busy_ns as f64 / self.span_ns as f64)
        };
        spans.map(depth).collect()
    }

    /// Adds the time of a request, which begins no later than it ends, to the spans it covers.
    /// Doubles the spans' length when the request ends after the last possible one: each pair of
    /// spans becomes one with their sum.
    fn add_busy_time(&mut self, begin_ns: u64, end_ns: u64) {
        while end_ns / self.span_ns >= SPANS_MAX as u64 {
            let pairs = self.busy_ns.chunks(2).map(|pair| pair.iter().sum());
            self.busy_ns = pairs.collect();
            self.span_ns *= 2;
        }
        let last = (end_ns / self.span_ns) as usize;
        if self.busy_ns.len() <= last {
            self.busy_ns.resize(last + 1, 0);
        }
        for span_index in begin_ns / self.span_ns..=end_ns / self.span_ns {
            let (from, to) = (span_index * self.span_ns, (span_index + 1) * self.span_ns);
            self.busy_ns[span_index as usize] += to.min(end_ns) - from.max(begin_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use readpath_trace::recording::{ReadRecord, RequestRecord};

    use super::*;

    /// Record of a read request.
    fn request(begin_ns: u64, end_ns: u64) -> Record {
        Record::Request(RequestRecord { begin_ns, end_ns, ..RequestRecord::default() })
    }

    /// Spans of 1 ms: two requests of 2 ms that start at 0 and at 1 ms. A third at 600 ms exceeds
    /// 512 spans: spans of 2 ms then hold the means of two earlier ones. The third takes 1 ms, half
    /// of span 300.
    #[test]
    fn queue_depths_are_averaged_per_time_span() {
        const MS: u64 = 1_000_000;
        let mut pictures = Pictures::default();
        pictures.add_record(&request(0, 2 * MS));
        pictures.add_record(&request(MS, 3 * MS));
        assert_eq!(pictures.depths(), [(0.0, 1.0), (0.001, 2.0), (0.002, 1.0), (0.003, 0.0)]);
        pictures.add_record(&request(600 * MS, 601 * MS));
        let depths = pictures.depths();
        assert_eq!(depths[..3], [(0.0, 1.5), (0.002, 0.5), (0.004, 0.0)]);
        assert_eq!((depths.len(), depths[300]), (301, (0.6, 0.5)));
    }

    /// 100,000 reads that end at 0, 1, 2 … ns: the end of a kept read shows its index.
    #[test]
    fn read_samples_stay_bounded_and_evenly_spaced() {
        let mut pictures = Pictures::default();
        for end_ns in 0..100_000 {
            pictures.add_record(&Record::Read(ReadRecord { end_ns, ..ReadRecord::default() }));
        }
        assert!((READS_MAX / 2..=READS_MAX).contains(&pictures.reads.items().len()));
        let mut numbered = (0..).zip(pictures.reads.items());
        let is_spaced =
            |(index, read): (u64, &DrawnRead)| read.end_ns == index * pictures.reads.keep_every();
        assert!(numbered.all(is_spaced));
    }
}
