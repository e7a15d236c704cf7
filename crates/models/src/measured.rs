//! Real storage as `readpath devices measure` measured it: a server whose speed depends on its
//! queue.
//!
//! The model assumes nothing about the internals of the storage. The measurement is the response
//! time of a request at each queue depth, for random and for sequential access. The model is the
//! *flow-equivalent server* of queueing theory (Chandy, Herzog and Woo, 1975). While `n` requests
//! are in flight, a request whose response time at depth `n` is `R` progresses at the rate `1 ÷ R`.
//! A closed loop of `n` equal requests therefore takes exactly the measured time, and a mixture
//! takes the sum of its parts.
//!
//! - Response times for other sizes and depths are interpolated linearly. Beyond the greatest depth
//!   the throughput stays constant. Beyond the largest size the line is extrapolated.
//! - A request near the end of the last one costs the time measured at that distance. Times between
//!   measured distances are linear in the square root of the distance, as for a moving arm.
//! - A request that continues one of the last few requests belongs to a stream. A switch between
//!   streams costs the time measured for interleaved streams.
//! - Response times of random requests have the measured distribution.
//!
//! Writes were not measured, because `readpath devices measure` only reads real storage. A write
//! takes as long as a read, and a flush takes no time.

use std::collections::VecDeque;

use readpath_core::policy::{Spec, SpecError};
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Outcome, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};

use self::description::StorageDescription;
use self::responses::{ResponseTimes, SizeInterval};
use super::Device;
use super::random::{Quantiles, SeededRng};
use crate::fields::FileError;

pub mod description;
mod load;
mod responses;

pub use load::{description_with_overrides, parameters};

/// Work of one whole request. The error of a duration of one second is below one millionth.
const WORK_PER_REQUEST: u64 = 1 << 50;

/// Cumulative probabilities of the measured quantiles, in millionths.
const QUANTILE_SHARES: [u64; 6] = [0, 100_000, 500_000, 900_000, 990_000, 1_000_000];

/// Measured storage in virtual time.
#[derive(Clone, Debug)]
pub struct MeasuredDevice {
    /// Limits that the description states.
    caps: DeviceCaps,
    /// Response times at random positions.
    random: ResponseTimes,
    /// Response times of requests that continue the last one.
    following: ResponseTimes,
    /// Extra times at the measured distances, by increasing distance.
    near: Vec<NearPoint>,
    /// Extra time in ns beyond the greatest measured distance.
    far_extra_ns: f64,
    /// End sectors of the last requests, the most recent first.
    ends: VecDeque<u64>,
    /// Number of streams that are tracked: the measured number. A request that continues an older
    /// end counts as random.
    streams_max: usize,
    /// Extra time in ns for a switch between streams.
    stream_switch_ns: f64,
    /// Distribution of the response time of a random request.
    spread: Quantiles,
    /// Mean of `spread`, in ns.
    spread_mean_ns: f64,
    /// Draws of the response times of random requests.
    rng: SeededRng,
    /// Time up to which the progress of all requests has been accounted.
    progress_time: Time,
    /// Requests in flight.
    in_flight: Vec<MeasuredRequest>,
    /// Time of the next completion at the present speeds.
    next_completion: Option<Time>,
    /// Completions that `poll` has not yet returned.
    done: VecDeque<Completion>,
}

/// Extra time of a request at one distance from the end of the last one.
#[derive(Clone, Copy, Debug)]
struct NearPoint {
    /// Square root of the distance in bytes, with the sign of the distance.
    signed_root: f64,
    /// Time in ns in addition to the time of a random request.
    extra_ns: f64,
}

/// Class of a request by its position.
#[derive(Clone, Copy, Debug)]
struct RequestClass {
    /// True if the request continues an earlier one.
    is_following: bool,
    /// Extra time in ns, relative to a single request of the same class.
    extra_ns: f64,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct MeasuredRequest {
    /// Identifier of the host.
    id: RequestId,
    /// True if the request continues an earlier one.
    is_following: bool,
    /// Its size, as a position between two measured sizes.
    size_interval: SizeInterval,
    /// Remaining work. A whole request has [`WORK_PER_REQUEST`].
    work_left: u64,
    /// Work per nanosecond at the present queue depth. Changes with each arrival and completion.
    work_per_ns: u64,
}

impl MeasuredDevice {
    /// Builds the storage that the file named by `spec` describes (`toml=FILE`), or the built-in
    /// one. Random draws derive from `seed`.
    ///
    /// # Errors
    /// Fails when the spec or the file is invalid.
    pub fn from_spec(spec: &Spec, seed: u64) -> Result<MeasuredDevice, MeasuredError> {
        Ok(MeasuredDevice::new(&description_with_overrides(spec)?, seed))
    }

    /// Builds the storage from its description, whose times in µs become ns. Times at distances and
    /// of stream switches become differences from a random or a continuing request at depth 1.
    /// Random response times derive from `seed`.
    pub fn new(description: &StorageDescription, seed: u64) -> MeasuredDevice {
        let random = ResponseTimes::new(&description.random, &description.depths);
        let following = ResponseTimes::new(&description.following, &description.depths);
        let alone_ns = random.single_request_ns(description.probe_bytes);
        let mut near: Vec<NearPoint> = description
            .near
            .iter()
            .map(|near| NearPoint {
                signed_root: signed_root(near.distance),
                extra_ns: near.us * 1e3 - alone_ns,
            })
            .collect();
        // A request at distance 0 continues the last one. Descriptions do not state that distance.
        let following_ns = following.single_request_ns(description.probe_bytes);
        let at_distance_0 = NearPoint { signed_root: 0.0, extra_ns: following_ns - alone_ns };
        near.insert(near.partition_point(|point| point.signed_root < 0.0), at_distance_0);
        let far_extra_ns = far_extra_ns(&near, description.bytes);
        let streams = &description.streams;
        let stream_switch_ns = match streams.count {
            0 | 1 => 0.0,
            _ => (streams.us * 1e3 - following.single_request_ns(streams.bytes)).max(0.0),
        };
        let points: Vec<(u64, Time)> = QUANTILE_SHARES
            .into_iter()
            .zip(&description.spread_us)
            .map(|(share, us)| (share, Time((us * 1e3) as u64)))
            .collect();
        // Parts of the mean in ns: the middle of each interval between two quantiles, weighted by
        // the interval's probability.
        let mean_parts = points.windows(2).map(|pair| {
            let middle = (pair[0].1.ns() + pair[1].1.ns()) as f64 / 2.0;
            (pair[1].0 - pair[0].0) as f64 / 1e6 * middle
        });
        MeasuredDevice {
            caps: DeviceCaps {
                sectors: description.bytes / SECTOR_BYTES,
                request_sectors_max: (description.request_bytes_max / SECTOR_BYTES) as u32,
                depth_max: description.depth_max,
                is_rotational: description.is_rotational,
                alignment_sectors: (description.alignment_bytes / SECTOR_BYTES) as u32,
            },
            random,
            following,
            near,
            far_extra_ns,
            ends: VecDeque::new(),
            streams_max: streams.count.max(1) as usize,
            stream_switch_ns,
            // At least 1 ns, since it is a divisor.
            spread_mean_ns: mean_parts.sum::<f64>().max(1.0),
            spread: Quantiles::new(points).expect("a description's quantiles rise"),
            rng: SeededRng::new(seed),
            progress_time: Time::ZERO,
            in_flight: Vec::new(),
            next_completion: None,
            done: VecDeque::new(),
        }
    }

    /// Returns the class of a request for the sectors `start..end`, and records its end.
    fn classify_request(&mut self, start: u64, end: u64) -> RequestClass {
        let stream_index = self.ends.iter().position(|&other| other == start);
        let class = match stream_index {
            Some(0) => RequestClass { is_following: true, extra_ns: 0.0 },
            Some(_) => RequestClass { is_following: true, extra_ns: self.stream_switch_ns },
            None => {
                let last_end = self.ends.front();
                let extra_ns = last_end.map_or(0.0, |&last| self.near_extra_ns(start, last));
                RequestClass { is_following: false, extra_ns }
            }
        };
        match stream_index {
            Some(index) => drop(self.ends.remove(index)),
            None if self.ends.len() == self.streams_max => drop(self.ends.pop_back()),
            None => {}
        }
        self.ends.push_front(end);
        class
    }

    /// Returns the extra time in ns, relative to a random request, of a request that starts at
    /// sector `start` when the last one ended at `last_end`.
    fn near_extra_ns(&self, start: u64, last_end: u64) -> f64 {
        let distance = (start as i64 - last_end as i64) * SECTOR_BYTES as i64;
        interpolated_extra_ns(&self.near, distance).unwrap_or(self.far_extra_ns)
    }

    /// Accounts the progress of all requests up to `now` at the present speeds.
    fn advance(&mut self, now: Time) {
        let elapsed_ns = now.since(self.progress_time).ns();
        for request in &mut self.in_flight {
            let work_done = elapsed_ns.saturating_mul(request.work_per_ns);
            request.work_left = request.work_left.saturating_sub(work_done);
        }
        self.progress_time = now;
    }

    /// Recomputes each request's speed at the present queue depth, and the next completion. The
    /// caller has accounted the progress so far (`advance`).
    fn update_speeds(&mut self) {
        let depth = self.in_flight.len() as u32;
        self.next_completion = None;
        for request in &mut self.in_flight {
            let responses = if request.is_following { &self.following } else { &self.random };
            let response_ns = responses.response_ns(request.size_interval, depth);
            // At least 1, so that even an extremely slow request ends.
            request.work_per_ns = (WORK_PER_REQUEST / response_ns).max(1);
            let left_ns = request.work_left.div_ceil(request.work_per_ns);
            let end_time = self.progress_time + Time(left_ns);
            let earliest = self.next_completion.map_or(end_time, |next| next.min(end_time));
            self.next_completion = Some(earliest);
        }
    }
}

impl Device for MeasuredDevice {
    /// Limits that the description states.
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// Accepts a request at time `now`. Draws its work, and updates the speeds of all requests.
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        self.advance(now);
        let RequestClass { is_following, extra_ns } =
            self.classify_request(request.start, request.end());
        let responses = if is_following { &self.following } else { &self.random };
        let size_interval = responses.size_interval(u64::from(request.sectors) * SECTOR_BYTES);
        let depth_alone = 1;
        let alone_ns = responses.response_ns(size_interval, depth_alone) as f64;
        // Work relative to a whole request. Extra times were measured at depth 1, so they are a
        // share of the time alone. The bounds are chosen and only exclude extreme results.
        let mut relative_work = ((alone_ns + extra_ns) / alone_ns).max(0.01);
        if !is_following {
            relative_work *= self.spread.draw(&mut self.rng).ns() as f64 / self.spread_mean_ns;
        }
        let work = (WORK_PER_REQUEST as f64 * relative_work.clamp(0.001, 1_000.0)) as u64;
        self.in_flight.push(MeasuredRequest {
            id: request.id,
            is_following,
            size_interval,
            work_left: work,
            // A placeholder: `update_speeds` sets it below.
            work_per_ns: 1,
        });
        self.update_speeds();
    }

    /// Completes at once. The model treats written data as durable, see the module documentation.
    fn flush(&mut self, now: Time, id: RequestId) {
        self.done.push_back(Completion::at(now, id, Outcome::Done));
    }

    /// Returns the time of the next completion; `None` if no request or flush is in flight.
    fn next_event(&self) -> Option<Time> {
        self.done.front().map(|completion| completion.at).or(self.next_completion)
    }

    /// Computes the completions up to `now`. Returns the next one, or `None` if there is none yet.
    fn poll(&mut self, now: Time) -> Option<Completion> {
        while self.done.is_empty()
            && let Some(time) = self.next_completion
            && time <= now
        {
            self.advance(time);
            let done = &mut self.done;
            self.in_flight.retain(|request| {
                if request.work_left == 0 {
                    done.push_back(Completion::at(time, request.id, Outcome::Done));
                }
                request.work_left > 0
            });
            self.update_speeds();
        }
        self.done.pop_front()
    }
}

/// Returns the extra time in ns of a request at this distance, in bytes, relative to a random
/// request. `near` is sorted by distance. Returns `None` before the first point, and from the last
/// one on.
fn interpolated_extra_ns(near: &[NearPoint], distance: i64) -> Option<f64> {
    let root = signed_root(distance);
    let next_index = near.partition_point(|point| point.signed_root <= root);
    let (low, high) = (near.get(next_index.checked_sub(1)?)?, near.get(next_index)?);
    let difference_ns = high.extra_ns - low.extra_ns;
    let root_interval = high.signed_root - low.signed_root;
    Some(low.extra_ns + difference_ns * (root - low.signed_root) / root_interval)
}

/// Returns the extra time in ns of a request from far away relative to a random request. Some
/// random requests are near the last one. The value is chosen so that the mean extra time of random
/// requests, on storage of `bytes`, is 0. The result is 0 if no distance is far.
fn far_extra_ns(near: &[NearPoint], bytes: u64) -> f64 {
    /// Number of intervals, chosen, of the numerical integration over the distance.
    const STEPS: u32 = 4096;
    let (mut near_sum, mut far_share) = (0.0, 0.0);
    for step in 0..STEPS {
        let distance_share = (f64::from(step) + 0.5) / f64::from(STEPS);
        // Probability of the distance, in one direction, between two uniformly distributed
        // positions.
        let probability = (1.0 - distance_share) / f64::from(STEPS);
        for distance in [distance_share * bytes as f64, -distance_share * bytes as f64] {
            match interpolated_extra_ns(near, distance as i64) {
                Some(ns) => near_sum += probability * ns,
                None => far_share += probability,
            }
        }
    }
    if far_share > 0.0 { -near_sum / far_share } else { 0.0 }
}

/// Error when measured storage is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeasuredError {
    /// The device text is invalid.
    Spec(SpecError),
    /// The description file is invalid.
    File(FileError),
}

impl From<SpecError> for MeasuredError {
    fn from(error: SpecError) -> MeasuredError {
        MeasuredError::Spec(error)
    }
}

impl From<FileError> for MeasuredError {
    fn from(error: FileError) -> MeasuredError {
        MeasuredError::File(error)
    }
}

/// Returns the square root of a distance in bytes with the sign of the distance.
fn signed_root(distance: i64) -> f64 {
    let root = (distance.unsigned_abs() as f64).sqrt();
    if distance < 0 { -root } else { root }
}

#[cfg(test)]
mod tests {
    use super::description::{NearResponse, SizeCosts, StreamCosts};
    use super::*;

    /// A random request takes 100 µs, two at once 120 µs each, a continuing one 20 µs.
    fn description() -> StorageDescription {
        let costs = |bytes, us: &[f64]| SizeCosts { bytes, us: us.to_vec() };
        StorageDescription {
            name: "made up".to_owned(),
            bytes: 1 << 30,
            request_bytes_max: 1 << 20,
            alignment_bytes: 512,
            is_rotational: false,
            depths: vec![1, 2],
            depth_max: 4,
            probe_bytes: 4096,
            random: vec![costs(4096, &[100.0, 120.0]), costs(12_288, &[300.0, 400.0])],
            following: vec![costs(4096, &[20.0, 40.0])],
            near: vec![NearResponse { distance: 40_000, us: 60.0 }],
            streams: StreamCosts { count: 2, bytes: 4096, us: 50.0 },
            spread_us: vec![100.0; 6],
        }
    }

    /// Returns the completion times in µs of requests, each given by its submission time in µs, its
    /// first sector and its number of sectors.
    fn completion_times_us(requests: &[(u64, u64, u32)]) -> Vec<u64> {
        let mut device = MeasuredDevice::new(&description(), 1);
        let mut done = vec![0; requests.len()];
        let mut record_until = |device: &mut MeasuredDevice, until: Time| {
            while let Some(at) = device.next_event().filter(|at| *at <= until) {
                while let Some(completion) = device.poll(at) {
                    done[completion.id.0 as usize] = (completion.at.ns() + 500) / 1000;
                }
            }
        };
        for (id, &(at_us, start, sectors)) in requests.iter().enumerate() {
            let at = Time::from_us(at_us);
            record_until(&mut device, at);
            let op = readpath_core::request::Op::Read;
            device.submit(at, DeviceRequest { id: RequestId(id as u32), op, start, sectors });
        }
        record_until(&mut device, Time(u64::MAX));
        done
    }

    #[test]
    fn single_request_takes_the_time_measured_for_its_size_and_distance() {
        assert_eq!(completion_times_us(&[(0, 9_000, 8)]), [100]);
        assert_eq!(completion_times_us(&[(0, 9_000, 24)]), [300]);
        assert_eq!(completion_times_us(&[(0, 9_000, 16)]), [200], "half-way between two sizes");
        // A request that continues the first takes 20 µs. At 10,000 bytes after an end, the square
        // root of the distance is half-way between the points of 20 µs and 60 µs.
        assert_eq!(completion_times_us(&[(0, 9_000, 8), (200, 9_008, 8)]), [100, 220]);
        let near_start = 9_008 + 10_000 / 512;
        let done_us = completion_times_us(&[(0, 9_000, 8), (200, near_start, 8)])[1];
        assert!((239..=240).contains(&done_us), "{done_us}");
        // A return to the first of two streams takes 50 µs.
        let streams = completion_times_us(&[(0, 9_000, 8), (200, 900_000, 8), (400, 9_008, 8)]);
        assert_eq!(streams, [100, 300, 450]);
    }

    #[test]
    fn concurrent_requests_progress_at_the_rate_of_their_depth() {
        assert_eq!(completion_times_us(&[(0, 9_000, 8), (0, 90_000, 8)]), [120, 120]);
        // Beyond the greatest depth the throughput is constant: four take twice as long as two.
        let four = [(0, 9_000, 8), (0, 90_000, 8), (0, 50_000, 8), (0, 70_000, 8)];
        assert_eq!(completion_times_us(&four), [240; 4]);
        // After 50 µs, half of the first is complete. Its other half takes 60 µs among two. By then
        // half of the second is complete, which needs 50 µs more alone.
        assert_eq!(completion_times_us(&[(0, 9_000, 8), (50, 90_000, 8)]), [110, 160]);
    }
}
