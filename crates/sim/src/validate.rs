//! Is a modelled drive the real one? A replay of a measured trace, as DiskSim's validation.
//!
//! The trace is closed: a request comes a stated time after the one before it was
//! *measured* to be done. So the model meets each request when the drive met it, and
//! its error on one does not shift the next. What comes out: means, how far apart the
//! distributions of service times are, and the error of each single request.

use std::path::Path;

use readpath_core::request::{DeviceRequest, RequestId};
use readpath_core::unit::Time;

use crate::device::Device;
use crate::device::hdd::Hdd;
use crate::device::hdd::drive::Drive;

pub use self::trace::{TraceError, Traced, read_trace};

mod distribution;
mod trace;

/// Steps of probability at which distributions are compared.
const QUANTILES: usize = 10_000;

/// The largest request that a drive takes, in sectors.
const REQUEST_SECTORS_MAX: u32 = 2560;

/// Which idle time a line of the trace states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Gap {
    /// The time from this request's completion to the next one's arrival.
    #[default]
    After,
    /// The time from the completion of the request before to this one's arrival.
    Before,
}

/// How well a model meets a trace. Times are in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validation {
    /// Requests replayed.
    pub requests: usize,
    /// Mean service time on the drive.
    pub measured_mean_ms: f64,
    /// Mean service time of the model.
    pub modelled_mean_ms: f64,
    /// Root mean square horizontal distance between the two distributions.
    pub distance_ms: f64,
    /// The same, relative to the measured mean.
    pub distance_relative: f64,
    /// Mean over requests of modelled less measured.
    pub error_mean_ms: f64,
    /// Standard deviation of that.
    pub error_deviation_ms: f64,
}

/// Replays `requests` on the drive that `drive` describes.
pub fn replay(requests: &[Traced], drive: &Drive, gap: Gap, tracks: bool, seed: u64) -> Vec<f64> {
    let mut hdd = Hdd::new(drive, seed);
    let mut now = 1_000_000_000u64;
    let mut services = Vec::with_capacity(requests.len());
    for request in requests {
        if gap == Gap::Before {
            now += request.gap_ns;
        }
        let arrived = now;
        let asked = DeviceRequest {
            id: RequestId(0),
            op: request.op,
            start: request.start,
            sectors: request.sectors,
        };
        hdd.forget_medium();
        hdd.submit(Time(arrived), asked);
        let done = loop {
            let next = hdd.next_event().expect("a request in a drive is finished some time");
            if let Some(completion) = hdd.poll(next) {
                break completion.at.0;
            }
        };
        services.push((done - arrived) as f64 / 1e6);
        now += request.service_ns;
        if tracks && hdd.used_medium(RequestId(0)) {
            let late = request.service_ns as i64 - (done - arrived) as i64;
            let rev = hdd.revolution().ns() as i64;
            let wrapped = (late + rev / 2).rem_euclid(rev) - rev / 2;
            hdd.shift_phase(wrapped);
        }
        if gap == Gap::After {
            now += request.gap_ns;
        }
    }
    services
}

/// Compares the service times of the model with those that were measured.
pub fn compare(requests: &[Traced], modelled_ms: &[f64]) -> Validation {
    let measured: Vec<f64> = requests.iter().map(|r| r.service_ns as f64 / 1e6).collect();
    let errors: Vec<f64> = modelled_ms.iter().zip(&measured).map(|(a, b)| a - b).collect();
    let measured_mean_ms = distribution::mean(&measured);
    let distance_ms = distribution::horizontal_distance(&measured, modelled_ms);
    Validation {
        requests: requests.len(),
        measured_mean_ms,
        modelled_mean_ms: distribution::mean(modelled_ms),
        distance_ms,
        distance_relative: distance_ms / measured_mean_ms,
        error_mean_ms: distribution::mean(&errors),
        error_deviation_ms: distribution::deviation(&errors),
    }
}

/// Reads and replays the trace at `path` on `drive`.
///
/// # Errors
/// The trace can't be used.
pub fn validate(path: &Path, drive: &Drive, seed: u64) -> Result<Validation, TraceError> {
    let requests = read_trace(path, Hdd::new(drive, seed).sectors())?;
    let services = replay(&requests, drive, Gap::After, false, seed);
    Ok(compare(&requests, &services))
}
