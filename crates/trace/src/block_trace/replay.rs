//! A trace as a workload: one process that issues the trace's requests, at the trace's times or as
//! soon as possible.
//!
//! In an open loop a request is issued at its time, for any number of requests in flight. If the
//! storage is too slow, requests accumulate as on the traced machine. In a closed loop the number
//! in flight is fixed, and the next request is issued when one ends.

use readpath_core::unit::{PAGE_BYTES, SECTOR_BYTES, Time};

use super::TraceRequest;
use super::fields::TIME_NS_LIMIT;
use crate::TraceError;
use readpath_sim::job::{Job, JobFile};
use readpath_sim::report::ResultRow;
use readpath_sim::run::RunObserver;
use readpath_sim::simulate::{SimulateError, SimulationSetup, simulate_workload};
use readpath_sim::workload::{ScriptStep, Workload};

/// Maximum number of requests in flight in an open loop on a simulated device. It bounds the memory
/// when the device is slower than the trace. Chosen, not measured.
pub const OPEN_DEPTH: u32 = 65_536;

/// Summary of a trace, from a first pass over it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceSummary {
    /// Number of requests.
    pub requests: u64,
    /// Bytes of all requests.
    pub bytes: u64,
    /// Number of writes.
    pub writes: u64,
    /// Size of the largest request in bytes.
    pub largest_bytes: u64,
    /// Highest used byte of each device, exclusive.
    pub ends: Vec<u64>,
    /// Time of the last request.
    pub last: Time,
}

impl TraceSummary {
    /// Reads all requests and returns their summary.
    ///
    /// # Errors
    /// Fails on the first malformed request and on an empty trace.
    pub fn of(
        requests: impl Iterator<Item = Result<TraceRequest, TraceError>>,
    ) -> Result<TraceSummary, TraceError> {
        let mut summary = TraceSummary::default();
        for request in requests {
            let TraceRequest { at, device, op, offset, bytes } = request?;
            let device = device as usize;
            if summary.ends.len() <= device {
                summary.ends.resize(device + 1, 0);
            }
            summary.ends[device] = summary.ends[device].max(offset + bytes);
            summary.requests += 1;
            summary.bytes = summary.bytes.saturating_add(bytes);
            summary.writes += u64::from(op == readpath_core::request::Op::Write);
            summary.largest_bytes = summary.largest_bytes.max(bytes);
            summary.last = at;
        }
        if summary.requests == 0 {
            return Err(TraceError::no_request());
        }
        Ok(summary)
    }
}

/// Positions of a trace's devices on one storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracePlacement {
    /// First byte of each device on the storage, by device number. All 0 if they overlap.
    device_starts: Vec<u64>,
    /// Number of bytes of the storage that are used, from its start. Offsets wrap around there.
    pub bytes: u64,
    /// Size in bytes of the blocks in which offsets wrap.
    block_bytes: u64,
    /// Caveat about the placement, for the results.
    pub note: Option<String>,
}

impl TracePlacement {
    /// Places the devices one after another if the storage has room for all. Otherwise, or if they
    /// are redirected to one (`is_redirected`), all start at the beginning of the storage. Offsets
    /// beyond the end of the storage wrap around.
    pub fn new(summary: &TraceSummary, storage_bytes: u64, is_redirected: bool) -> TracePlacement {
        let block_bytes = SECTOR_BYTES;
        let mut end: u64 = 0;
        let mut device_starts = Vec::new();
        for device in &summary.ends {
            device_starts.push(end);
            end = end.saturating_add(device.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES));
        }
        if end <= storage_bytes && !is_redirected {
            return TracePlacement { device_starts, bytes: end, block_bytes, note: None };
        }
        let count = device_starts.len();
        let largest = summary.ends.iter().copied().max().unwrap_or(0);
        let device_starts = vec![0; count];
        let mut note = match count {
            1 => None,
            count => Some(format!("the trace's {count} devices lie on the same bytes")),
        };
        if largest <= storage_bytes {
            return TracePlacement { device_starts, bytes: largest, block_bytes, note };
        }
        let beyond = "offsets beyond the end of the storage wrap to its start";
        note = Some(note.map_or(beyond.to_owned(), |note| format!("{note}; {beyond}")));
        let bytes = storage_bytes / PAGE_BYTES * PAGE_BYTES;
        TracePlacement { device_starts, bytes, block_bytes, note }
    }

    /// Makes offsets wrap in whole blocks of `block_bytes` bytes, at least a sector: the transfers
    /// of the storage. They wrap in whole sectors by default.
    pub fn in_blocks_of(self, block_bytes: u64) -> TracePlacement {
        TracePlacement { block_bytes: block_bytes.max(SECTOR_BYTES), ..self }
    }

    /// Returns the position of a request on the storage, or `None` if it is larger than the used
    /// part. A request that would end beyond the used part wraps around, in whole blocks.
    fn storage_offset(&self, request: &TraceRequest) -> Option<u64> {
        let offset = self.device_starts[request.device as usize] + request.offset;
        let last_offset = self.bytes.checked_sub(request.bytes)?;
        if offset <= last_offset {
            return Some(offset);
        }
        // Number of blocks at which the request can begin: 0 up to the one of `last_offset`.
        let block_count = last_offset / self.block_bytes + 1;
        Some(offset / self.block_bytes % block_count * self.block_bytes)
    }
}

/// Creates the workload of a trace with the options of `job`. The job's depth limits the requests
/// in flight, and due requests beyond it wait. With `speed_milli`, requests are issued at the
/// trace's times, accelerated by this factor in thousandths. With `None`, each is issued as soon as
/// possible. A request that is larger than the used part of the storage is left out.
pub fn trace_workload(
    job: &Job,
    summary: &TraceSummary,
    placement: TracePlacement,
    speed_milli: Option<u64>,
    requests: impl Iterator<Item = TraceRequest> + Send + 'static,
) -> Workload {
    // The times are divided by the speed, so it is at least a thousandth.
    let speed_milli = speed_milli.map(|speed| speed.max(1));
    let bytes = placement.bytes;
    let steps = requests.filter_map(move |request| {
        let at = speed_milli.map(|milli| accelerated_time(request.at, milli));
        let offset = placement.storage_offset(&request)?;
        Some(ScriptStep { at, op: request.op, offset, bytes: request.bytes })
    });
    Workload::from_steps(job, bytes, summary.largest_bytes, summary.bytes, Box::new(steps))
}

/// Returns the time of a request at a speed of `speed_milli` thousandths. Later times become the
/// largest time of a trace.
fn accelerated_time(at: Time, speed_milli: u64) -> Time {
    let ns = match at.ns().checked_mul(1000) {
        Some(product) => product / speed_milli,
        // The product has more than 64 bits.
        None => {
            let ns = u128::from(at.ns()) * 1000 / u128::from(speed_milli);
            u64::try_from(ns).unwrap_or(u64::MAX)
        }
    };
    Time(ns.min(TIME_NS_LIMIT - 1))
}

/// Replays a trace on a simulated device. `workload` has the trace's requests, and `job_file` the
/// job that stands for them in the row, under the name `name`. `watch` sees progress and decisions.
///
/// # Errors
/// Fails in the same cases as [`simulate`](readpath_sim::simulate::simulate).
pub fn simulate_trace(
    name: &str,
    job_file: &JobFile,
    workload: Workload,
    setup: &SimulationSetup,
    watch: RunObserver<'_>,
) -> Result<ResultRow, SimulateError> {
    simulate_workload(Some((name, job_file)), workload, setup, watch)
}

#[cfg(test)]
mod tests {
    use readpath_core::request::Op;

    use super::*;

    fn request(device: u32, offset: u64) -> TraceRequest {
        TraceRequest { at: Time::ZERO, device, op: Op::Read, offset, bytes: 4096 }
    }

    /// Summary of devices with these ends.
    fn summary_with_ends(ends: &[u64]) -> TraceSummary {
        TraceSummary { ends: ends.to_vec(), requests: 1, ..TraceSummary::default() }
    }

    /// At a thousandth of the speed, 200 days become 548 years, and a year more than 2^64 ns. A
    /// trace ends below 2^62 ns, which are 146 years.
    #[test]
    fn slowed_times_stay_below_the_limit_of_a_trace() {
        let day = 86_400;
        assert_eq!(accelerated_time(Time::from_s(3), 1500), Time::from_s(2));
        assert_eq!(
            accelerated_time(Time::from_s(365 * day), 10_000),
            Time::from_ms(36_500 * 86_400)
        );
        for days in [200, 365] {
            assert_eq!(accelerated_time(Time::from_s(days * day), 1), Time((1 << 62) - 1));
        }
    }

    /// By hand: devices of 10,000 and 20,000 bytes take 12,288 and 20,480 bytes in whole pages. In
    /// a smaller storage both begin at 0, and in one of 16,384 bytes offsets wrap around.
    #[test]
    fn devices_are_placed_one_after_another_while_space_lasts() {
        let is_redirected = false;
        let ends = summary_with_ends(&[10_000, 20_000]);
        let separate = TracePlacement::new(&ends, 1 << 20, is_redirected);
        assert_eq!((separate.bytes, &separate.note), (12_288 + 20_480, &None));
        assert_eq!(separate.storage_offset(&request(1, 4096)), Some(12_288 + 4096));
        let overlapping = TracePlacement::new(&ends, 24_576, is_redirected);
        assert_eq!(overlapping.bytes, 20_000);
        assert_eq!(overlapping.storage_offset(&request(1, 4096)), Some(4096));
        assert!(overlapping.note.unwrap().contains("2 devices"));
        let redirected = TracePlacement::new(&ends, 1 << 20, !is_redirected);
        assert_eq!(redirected.storage_offset(&request(1, 4096)), Some(4096));
        let wrapped = TracePlacement::new(&ends, 16_384, is_redirected);
        assert!(wrapped.note.as_ref().unwrap().contains("wrap to its start"));
        for offset in (0..20_000).step_by(512) {
            let placed = wrapped.storage_offset(&request(0, offset)).unwrap();
            assert!(placed + 4096 <= 16_384 && placed.is_multiple_of(512), "{offset}: {placed}");
        }
        assert_eq!(
            TracePlacement::new(&ends, 4096, is_redirected)
                .storage_offset(&TraceRequest { bytes: 8192, ..request(0, 0) }),
            None
        );
    }

    /// A device of 1 GiB has 2^18 blocks of 4,096 bytes. The block behind the last one becomes the
    /// first one, and the block after it the second one.
    #[test]
    fn requests_of_whole_blocks_wrap_to_whole_blocks() {
        let (gib, is_redirected) = (1 << 30, false);
        let placement = TracePlacement::new(&summary_with_ends(&[2 * gib]), gib, is_redirected)
            .in_blocks_of(4096);
        for (offset, expected) in [(gib - 4096, gib - 4096), (gib, 0), (gib + 4096, 4096)] {
            assert_eq!(placement.storage_offset(&request(0, offset)), Some(expected));
        }
    }
}
