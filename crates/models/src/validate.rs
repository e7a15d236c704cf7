//! Validation of a simulated disk: replays a measured trace as in DiskSim's validation.
//!
//! The trace is a closed loop: a request arrives at a given idle time after the completion of the
//! previous one. The results are means, the distance between the distributions of service times,
//! and the error of each request. There are two replays.
//!
//! - The *free* replay uses only the description. The phase of the platter at the start is unknown.
//!   The next request arrives at the idle time after the *simulated* completion. DiskSim reads such
//!   a trace in the same way (`disksim_iotrace.c`, format `validate`). With idle times after the
//!   *measured* completions, each error of the model would rotate the platter under the next
//!   request. The result would then depend on the unknown phase: for one drive it ranged from 0.30
//!   to 0.37 ms over twenty phases.
//! - The *observed* replay submits each request at its measured time. After each request that used
//!   the medium, it corrects the phase by the difference of the measured and the simulated
//!   completion. It uses only past measurements, never the predicted one.

use std::path::Path;

use readpath_core::request::{DeviceRequest, RequestId};
use readpath_core::unit::Time;

use crate::Device;
use crate::hdd::Hdd;
use crate::hdd::drive::DriveDescription;

pub use self::ablation::{AblationRow, ablate};
pub use self::phase::{Coherence, CoherenceAt, GapMeaning, coherence, coherence_by_distance};
pub use self::trace::{ServiceTraceError, TracedRequest, read_trace};

mod ablation;
mod distribution;
mod phase;
mod trace;

/// Number of equal steps of probability at which distributions are compared.
const QUANTILES: usize = 10_000;

/// Maximum request of a drive, in sectors: 1280 KiB, Linux's default. A longer one in a trace is an
/// error.
const REQUEST_SECTORS_MAX: u32 = 2560;

/// Accuracy of a model on a trace. Times are in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelAccuracy {
    /// Number of replayed requests.
    pub requests: usize,
    /// Mean service time of the drive.
    pub measured_mean_ms: f64,
    /// Mean service time of the model.
    pub modelled_mean_ms: f64,
    /// Root mean square horizontal distance between the two distributions.
    pub distance_ms: f64,
    /// The horizontal distance, relative to the measured mean.
    pub distance_relative: f64,
    /// Mean of the simulated minus the measured service times.
    pub error_mean_ms: f64,
    /// Standard deviation of that difference.
    pub error_deviation_ms: f64,
    /// Fraction of the requests with an error below 0.5 ms.
    pub within_half_ms: f64,
}

/// Results of both replays of a trace on a drive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValidationReport {
    /// Replay with the description alone.
    pub free: ModelAccuracy,
    /// Replay with the phase corrected by past completions.
    pub observed: ModelAccuracy,
    /// Evidence for each interpretation of the gap column: the agreement, from 0 to 1, of the
    /// times between reads with the angles between their sectors.
    pub coherence: Coherence,
    /// Accuracy of the description's angles by distance, under that interpretation.
    pub by_distance: [CoherenceAt; 4],
}

/// Reads the trace at `path` and replays it on `drive`.
///
/// The free replay interprets the gap column as in the format (idle time after a request), the
/// observed one as the trace supports it. `seed` decides the initial angle of the platter.
///
/// # Errors
/// Fails if the trace is invalid.
pub fn validate(
    path: &Path,
    drive: &DriveDescription,
    seed: u64,
) -> Result<ValidationReport, ServiceTraceError> {
    let hdd = Hdd::new(drive, seed);
    let requests = read_trace(path, hdd.sectors())?;
    let coherence = coherence(&requests, &hdd);
    let (free, observed) = (false, true);
    let replay_ms = |gap, is_observed| replay(&requests, drive, gap, is_observed, seed);
    Ok(ValidationReport {
        free: compare(&requests, &replay_ms(GapMeaning::After, free)),
        observed: compare(&requests, &replay_ms(coherence.gap(), observed)),
        coherence,
        by_distance: coherence_by_distance(&requests, &hdd, coherence.gap()),
    })
}

/// Reads the trace at `path` and replays it on `drive` with an increasing set of features. `seed`
/// decides the initial angle of the platter.
///
/// # Errors
/// Fails if the trace is invalid.
pub fn ablate_trace(
    path: &Path,
    drive: &DriveDescription,
    seed: u64,
) -> Result<Vec<AblationRow>, ServiceTraceError> {
    let requests = read_trace(path, Hdd::new(drive, seed).sectors())?;
    Ok(ablate(&requests, drive, seed))
}

/// Replays `requests` on `drive`, one at a time. Returns the simulated service times in ms. `gap`
/// is the meaning of the trace's idle times, and `seed` decides the initial angle of the platter.
///
/// With `is_observed`, each request arrives at its measured time, and the phase is corrected after
/// each request that used the medium. Otherwise the gaps start at the simulated completions.
pub fn replay(
    requests: &[TracedRequest],
    drive: &DriveDescription,
    gap: GapMeaning,
    is_observed: bool,
    seed: u64,
) -> Vec<f64> {
    let mut hdd = Hdd::new(drive, seed);
    let revolution_ns = hdd.revolution().ns() as i64;
    let mut now_ns = 0u64;
    let mut services_ms = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        if gap == GapMeaning::Before {
            now_ns += request.gap_ns;
        }
        let id = RequestId(index as u32);
        let (op, start, sectors) = (request.op, request.start, request.sectors);
        hdd.submit(Time(now_ns), DeviceRequest { id, op, start, sectors });
        let service_ns = run_until_complete(&mut hdd, id) - now_ns;
        services_ms.push(service_ns as f64 / 1e6);
        now_ns += if is_observed { request.service_ns } else { service_ns };
        if is_observed && hdd.used_medium(id) {
            let late_ns = request.service_ns as i64 - service_ns as i64;
            // A missed or caught sector is a whole revolution, which does not shift the phase. The
            // difference is therefore reduced to half a revolution in either direction.
            let half_turn_ns = revolution_ns / 2;
            hdd.shift_phase((late_ns + half_turn_ns).rem_euclid(revolution_ns) - half_turn_ns);
        }
        if gap == GapMeaning::After {
            now_ns += request.gap_ns;
        }
    }
    services_ms
}

/// Advances the drive until request `id` is complete. Returns the time of its completion in ns.
fn run_until_complete(hdd: &mut Hdd, id: RequestId) -> u64 {
    loop {
        let event_time = hdd.next_event().expect("a request in a drive is finished some time");
        while let Some(completion) = hdd.poll(event_time) {
            if completion.id == id {
                return completion.at.ns();
            }
        }
    }
}

/// Compares the simulated service times, in ms, with the measured ones of `requests`: one for each,
/// and at least one.
pub fn compare(requests: &[TracedRequest], modelled_ms: &[f64]) -> ModelAccuracy {
    let all_measured_ms: Vec<f64> = requests.iter().map(measured_ms).collect();
    let pairs = modelled_ms.iter().zip(&all_measured_ms);
    let errors_ms: Vec<f64> = pairs.map(|(modelled, measured)| modelled - measured).collect();
    let measured_mean_ms = distribution::mean(&all_measured_ms);
    let distance_ms = distribution::horizontal_distance(&all_measured_ms, modelled_ms);
    ModelAccuracy {
        requests: requests.len(),
        measured_mean_ms,
        modelled_mean_ms: distribution::mean(modelled_ms),
        distance_ms,
        distance_relative: distance_ms / measured_mean_ms,
        error_mean_ms: distribution::mean(&errors_ms),
        error_deviation_ms: distribution::deviation(&errors_ms),
        within_half_ms: fraction_within_half_ms(requests, modelled_ms),
    }
}

/// Returns the measured service time in ms.
fn measured_ms(request: &TracedRequest) -> f64 {
    request.service_ns as f64 / 1e6
}

/// Returns the fraction of the requests with an error below 0.5 ms.
fn fraction_within_half_ms(requests: &[TracedRequest], modelled_ms: &[f64]) -> f64 {
    let is_within = |(request, modelled): &(&TracedRequest, &f64)| {
        (measured_ms(request) - **modelled).abs() < 0.5
    };
    let count = requests.iter().zip(modelled_ms).filter(is_within).count();
    count as f64 / requests.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use readpath_core::policy::Spec;
    use readpath_core::request::Op;

    use super::*;
    use crate::hdd::drive_of;

    /// Two traces of 20 reads that differ only in their measured service times, 1 ms and 9.9 ms.
    #[test]
    fn free_replay_does_not_depend_on_the_measured_times() {
        let drive = drive_of(&Spec::parse("hdd").expect("a spec")).expect("a drive");
        let traced = |service_ns| {
            let request = |line: usize| TracedRequest {
                op: Op::Read,
                start: 1_000_003 * line as u64,
                sectors: 8,
                service_ns,
                gap_ns: 20_000_000,
                line,
            };
            (1..=20).map(request).collect::<Vec<_>>()
        };
        let (is_observed, seed) = (false, 1);
        let run =
            |service_ns| replay(&traced(service_ns), &drive, GapMeaning::After, is_observed, seed);
        assert_eq!(run(1_000_000), run(9_876_543));
    }
}
