//! A trace as a workload: one process, which makes the trace's requests at the trace's times, or
//! each as soon as there is room for it.
//!
//! Open loop: a request goes out at its time, however many are under way; what the storage is too
//! slow for piles up there, as it did on the machine that was traced. Closed loop: so many are
//! under way, and the next goes out when one ends.

use readpath_core::unit::{PAGE_BYTES, SECTOR_BYTES, Time};

use super::{TraceError, TraceRequest};
use crate::job::{Job, JobFile};
use crate::report::ResultRow;
use crate::run::Watch;
use crate::simulate::{SimulateError, SimulationSetup, simulate_workload};
use crate::workload::{ScriptStep, Workload};

/// How many requests may be under way at the times of a trace on a modelled device.
pub const OPEN_DEPTH: u32 = 65_536;

/// What a trace holds, found by reading it once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceSummary {
    /// How many requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many are writes.
    pub writes: u64,
    /// The largest, in bytes.
    pub largest_bytes: u64,
    /// Where the last byte of each device lies, exclusive.
    pub ends: Vec<u64>,
    /// When the last request was made.
    pub last: Time,
}

impl TraceSummary {
    /// Reads all requests.
    ///
    /// # Errors
    /// The first that is wrong, or there is none.
    pub fn of(
        requests: impl Iterator<Item = Result<TraceRequest, TraceError>>,
    ) -> Result<TraceSummary, TraceError> {
        let mut survey = TraceSummary::default();
        for request in requests {
            let TraceRequest { at, device, op, offset, bytes } = request?;
            let device = device as usize;
            if survey.ends.len() <= device {
                survey.ends.resize(device + 1, 0);
            }
            survey.ends[device] = survey.ends[device].max(offset + bytes);
            survey.requests += 1;
            survey.bytes = survey.bytes.saturating_add(bytes);
            survey.writes += u64::from(op == readpath_core::request::Op::Write);
            survey.largest_bytes = survey.largest_bytes.max(bytes);
            survey.last = at;
        }
        if survey.requests == 0 {
            return Err(TraceError::Empty);
        }
        Ok(survey)
    }
}

/// Where the devices of a trace lie on one storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracePlacement {
    starts: Vec<u64>,
    /// How many bytes of the storage are used.
    pub bytes: u64,
    /// What a reader of the figures must know of it.
    pub note: Option<String>,
}

impl TracePlacement {
    /// Side by side, if the storage has room for that; else, and where they are `redirected` to one,
    /// all from its start on; and where one is larger than the storage, what lies beyond its end
    /// begins anew.
    pub fn new(survey: &TraceSummary, storage_bytes: u64, redirected: bool) -> TracePlacement {
        let mut end: u64 = 0;
        let mut starts = Vec::new();
        for device in &survey.ends {
            starts.push(end);
            end = end.saturating_add(device.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES));
        }
        if end <= storage_bytes && !redirected {
            return TracePlacement { starts, bytes: end, note: None };
        }
        let count = starts.len();
        let largest = survey.ends.iter().copied().max().unwrap_or(0);
        let starts = vec![0; count];
        let mut note = match count {
            1 => None,
            count => Some(format!("the trace's {count} devices lie on the same bytes")),
        };
        if largest <= storage_bytes {
            return TracePlacement { starts, bytes: largest, note };
        }
        let beyond = "offsets beyond the end of the storage begin anew at its start";
        note = Some(note.map_or(beyond.to_owned(), |note| format!("{note}; {beyond}")));
        TracePlacement { starts, bytes: storage_bytes / PAGE_BYTES * PAGE_BYTES, note }
    }

    /// The first byte of a request on the storage; `None` for one that is larger than all of it.
    fn offset(&self, request: &TraceRequest) -> Option<u64> {
        let offset = self.starts[request.device as usize] + request.offset;
        let room = self.bytes.checked_sub(request.bytes)?;
        if offset <= room {
            return Some(offset);
        }
        let sectors = room / SECTOR_BYTES + 1;
        Some(offset / SECTOR_BYTES % sectors * SECTOR_BYTES)
    }
}

impl Workload {
    /// The requests of a trace that was surveyed and placed, carried out as `job` says, with its
    /// depth under way at most: what is due beyond that waits. At the times of the trace, so
    /// many thousandths as fast as it was recorded; or, where `speed_milli` is `None`, each as soon
    /// as there is room.
    pub fn of_trace(
        job: &Job,
        survey: &TraceSummary,
        placed: TracePlacement,
        speed_milli: Option<u64>,
        requests: impl Iterator<Item = TraceRequest> + Send + 'static,
    ) -> Workload {
        let speed_milli = speed_milli.map(|speed| speed.max(1));
        let bytes = placed.bytes;
        let steps = requests.filter_map(move |request| {
            let at = match speed_milli {
                None => None,
                Some(milli) => {
                    let ns = match request.at.ns().checked_mul(1000) {
                        Some(product) => product / milli,
                        None => {
                            let ns = u128::from(request.at.ns()) * 1000 / u128::from(milli);
                            u64::try_from(ns).unwrap_or(u64::MAX / 4)
                        }
                    };
                    Some(Time(ns))
                }
            };
            let offset = placed.offset(&request)?;
            Some(ScriptStep { at, op: request.op, offset, bytes: request.bytes })
        });
        Workload::scripted(job, bytes, survey.largest_bytes, survey.bytes, Box::new(steps))
    }
}

/// Replays a trace, called `name` in the row, on a modelled device.
///
/// # Errors
/// As [`simulate`](crate::simulate::simulate).
pub fn simulate_trace(
    name: &str,
    job_file: &JobFile,
    workload: Workload,
    setup: &SimulationSetup,
    watch: Watch<'_>,
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

    fn survey(ends: &[u64]) -> TraceSummary {
        TraceSummary { ends: ends.to_vec(), requests: 1, ..TraceSummary::default() }
    }

    #[test]
    fn devices_lie_side_by_side_as_long_as_there_is_room() {
        let ends = survey(&[10_000, 20_000]);
        let side = TracePlacement::new(&ends, 1 << 20, false);
        assert_eq!((side.bytes, &side.note), (12_288 + 20_480, &None));
        assert_eq!(side.offset(&request(1, 4096)), Some(12_288 + 4096));
        let same = TracePlacement::new(&ends, 24_576, false);
        assert_eq!((same.bytes, same.offset(&request(1, 4096))), (20_000, Some(4096)));
        assert!(same.note.unwrap().contains("2 devices"));
        let redirected = TracePlacement::new(&ends, 1 << 20, true);
        assert_eq!(redirected.offset(&request(1, 4096)), Some(4096));
        let anew = TracePlacement::new(&ends, 16_384, false);
        assert!(anew.note.as_ref().unwrap().contains("begin anew"));
        for offset in (0..20_000).step_by(512) {
            let placed = anew.offset(&request(0, offset)).unwrap();
            assert!(placed + 4096 <= 16_384 && placed.is_multiple_of(512), "{offset}: {placed}");
        }
        assert_eq!(
            TracePlacement::new(&ends, 4096, false)
                .offset(&TraceRequest { bytes: 8192, ..request(0, 0) }),
            None
        );
    }
}
