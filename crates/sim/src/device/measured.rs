//! Real storage as `readpath profile` measured it: a station whose speed depends on what is in it.
//!
//! Nothing of how the storage works is assumed. What was measured is how long a request takes
//! from its start to its end while so many of its kind are under way: at random places, and
//! where each goes on where the last one ended. The model is the *flow-equivalent server* of
//! queueing theory (Chandy, Herzog and Woo, 1975): while `n` requests are in it, one of a kind
//! and size whose time among `n` is `R` moves on at `1 ÷ R` of itself. So a closed loop of `n`
//! alike takes just what was measured, and a mixture what each of its parts takes.
//!
//! - Sizes between those measured lie on a straight line between them; so do depths. Beyond the
//!   deepest the rate stays as it is there, beyond the largest size the line goes on.
//! - A request that begins near the end of the last one costs what was measured at that
//!   distance, straight in the root of the distance in between: the law of a moving arm.
//! - One that goes on where one of the last few ended is of a stream; to change between streams
//!   costs what was measured of streams in turn.
//! - Times at random places are spread as they were measured.
//!
//! Writes were not measured, since real storage is only read: they take what reads take, and a
//! flush takes nothing.

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

pub use load::{described, parameters};

/// Of a whole request: fine enough that a second's worth is held to a millionth.
const WORK_PER_REQUEST: u64 = 1 << 50;

/// Shares of the quantiles of the spread, in millionths.
const QUANTILE_SHARES: [u64; 6] = [0, 100_000, 500_000, 900_000, 990_000, 1_000_000];

/// Storage that was measured, in virtual time.
#[derive(Clone, Debug)]
pub struct MeasuredDevice {
    caps: DeviceCaps,
    random: ResponseTimes,
    following: ResponseTimes,
    /// Signed root of a distance, and what is to be added to a request at random, ns.
    near: Vec<(f64, f64)>,
    /// The same beyond the farthest of them.
    far_extra_ns: f64,
    /// Where the last requests ended, the last one first.
    ends: VecDeque<u64>,
    streams: usize,
    first_request_ns: f64,
    spread: Quantiles,
    /// The mean of the spread, in its own unit.
    spread_mean: f64,
    draw: SeededRng,
    /// Until when what is left was worked off.
    now: Time,
    under_way: Vec<MeasuredRequest>,
    next: Option<Time>,
    done: VecDeque<Completion>,
}

#[derive(Clone, Copy, Debug)]
struct MeasuredRequest {
    id: RequestId,
    is_following: bool,
    place: SizeInterval,
    left: u64,
    /// Work a nanosecond, among as many as there are now.
    speed: u64,
}

impl MeasuredDevice {
    /// The storage that the file named by `spec` describes (`toml=FILE`), or the built-in one;
    /// what is drawn follows from `seed`.
    ///
    /// # Errors
    /// The spec or the file is wrong.
    pub fn from_spec(spec: &Spec, seed: u64) -> Result<MeasuredDevice, MeasuredError> {
        Ok(MeasuredDevice::new(&described(spec)?, seed))
    }

    /// The storage that a description is of.
    pub fn new(description: &StorageDescription, seed: u64) -> MeasuredDevice {
        let random = ResponseTimes::new(&description.random, &description.depths);
        let following = ResponseTimes::new(&description.following, &description.depths);
        let alone = random.alone_ns(description.probe_bytes);
        let mut near: Vec<(f64, f64)> = description
            .near
            .iter()
            .map(|near| (signed_root(near.distance), near.us * 1e3 - alone))
            .collect();
        let at_end = (0.0, following.alone_ns(description.probe_bytes) - alone);
        near.insert(near.partition_point(|point| point.0 < 0.0), at_end);
        let far_extra_ns = far_extra_ns(&near, description.bytes);
        let streams = &description.streams;
        let first_request_ns = match streams.count {
            0 | 1 => 0.0,
            _ => (streams.us * 1e3 - following.alone_ns(streams.bytes)).max(0.0),
        };
        let points: Vec<(u64, Time)> = QUANTILE_SHARES
            .into_iter()
            .zip(&description.spread_us)
            .map(|(share, us)| (share, Time((us * 1e3) as u64)))
            .collect();
        let mean = points.windows(2).map(|pair| {
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
            streams: streams.count.max(1) as usize,
            first_request_ns,
            spread_mean: mean.sum::<f64>().max(1.0),
            spread: Quantiles::new(points).expect("a description's quantiles rise"),
            draw: SeededRng::new(seed),
            now: Time::ZERO,
            under_way: Vec::new(),
            next: None,
            done: VecDeque::new(),
        }
    }

    /// What a request that begins at `start` costs beyond one of its kind alone, in ns, and
    /// whether it goes on where another ended.
    fn classify_request(&mut self, start: u64, end: u64) -> (bool, f64) {
        let known = self.ends.iter().position(|&other| other == start);
        let classify_request = match known {
            Some(0) => (true, 0.0),
            Some(_) => (true, self.first_request_ns),
            None => (false, self.ends.front().map_or(0.0, |&last| self.near_extra_ns(start, last))),
        };
        match known {
            Some(index) => drop(self.ends.remove(index)),
            None if self.ends.len() == self.streams => drop(self.ends.pop_back()),
            None => {}
        }
        self.ends.push_front(end);
        classify_request
    }

    fn near_extra_ns(&self, start: u64, last_end: u64) -> f64 {
        let distance = (start as i64 - last_end as i64) * SECTOR_BYTES as i64;
        near_ns(&self.near, distance).unwrap_or(self.far_extra_ns)
    }

    /// Works off what is done by `now`, at the speeds in force.
    fn advance(&mut self, now: Time) {
        let elapsed_ns = now.since(self.now).ns();
        for request in &mut self.under_way {
            request.left = request.left.saturating_sub(elapsed_ns.saturating_mul(request.speed));
        }
        self.now = now;
    }

    /// The number of requests has changed: each has another speed.
    fn update_speeds(&mut self) {
        let count = self.under_way.len() as u32;
        self.next = None;
        for request in &mut self.under_way {
            let responses = if request.is_following { &self.following } else { &self.random };
            request.speed = (WORK_PER_REQUEST / responses.ns(request.place, count)).max(1);
            let at = self.now + Time(request.left.div_ceil(request.speed));
            self.next = Some(self.next.map_or(at, |next| next.min(at)));
        }
    }
}

impl Device for MeasuredDevice {
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    fn submit(&mut self, now: Time, request: DeviceRequest) {
        self.advance(now);
        let (is_following, extra_ns) = self.classify_request(request.start, request.end());
        let responses = if is_following { &self.following } else { &self.random };
        let place = responses.place(u64::from(request.sectors) * SECTOR_BYTES);
        let alone_ns = responses.ns(place, 1) as f64;
        let mut share = ((alone_ns + extra_ns) / alone_ns).max(0.01);
        if !is_following {
            share *= self.spread.draw(&mut self.draw).ns() as f64 / self.spread_mean;
        }
        let left = (WORK_PER_REQUEST as f64 * share.clamp(0.001, 1_000.0)) as u64;
        self.under_way.push(MeasuredRequest {
            id: request.id,
            is_following,
            place,
            left,
            speed: 1,
        });
        self.update_speeds();
    }

    /// What was written is taken to be safe at once: see above.
    fn flush(&mut self, now: Time, id: RequestId) {
        self.done.push_back(Completion::at(now, id, Outcome::Done));
    }

    fn next_event(&self) -> Option<Time> {
        self.done.front().map(|completion| completion.at).or(self.next)
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        while self.done.is_empty()
            && let Some(at) = self.next
            && at <= now
        {
            self.advance(at);
            let done = &mut self.done;
            self.under_way.retain(|request| {
                if request.left == 0 {
                    done.push_back(Completion::at(at, request.id, Outcome::Done));
                }
                request.left > 0
            });
            self.update_speeds();
        }
        self.done.pop_front()
    }
}

/// What a request at this distance costs beyond one at random; `None` where that is farther than
/// was measured.
fn near_ns(near: &[(f64, f64)], distance: i64) -> Option<f64> {
    let root = signed_root(distance);
    let above = near.partition_point(|point| point.0 <= root);
    let (low, high) = (near.get(above.checked_sub(1)?)?, near.get(above)?);
    Some(low.1 + (high.1 - low.1) * (root - low.0) / (high.0 - low.0))
}

/// What a request from far away costs beyond one at random. Some of those at random are near: so
/// much that all of them, drawn from storage of so many bytes, cost nothing beyond in the mean.
fn far_extra_ns(near: &[(f64, f64)], bytes: u64) -> f64 {
    const STEPS: u32 = 4096;
    let (mut near_sum, mut far_share) = (0.0, 0.0);
    for step in 0..STEPS {
        let part = (f64::from(step) + 0.5) / f64::from(STEPS);
        // Two places drawn evenly are a part `part` of the whole apart with this density.
        let share = (1.0 - part) / f64::from(STEPS);
        for distance in [part * bytes as f64, -part * bytes as f64] {
            match near_ns(near, distance as i64) {
                Some(ns) => near_sum += share * ns,
                None => far_share += share,
            }
        }
    }
    if far_share > 0.0 { -near_sum / far_share } else { 0.0 }
}

/// Why measured storage can't be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeasuredError {
    /// The text that names it is wrong.
    Spec(SpecError),
    /// The file that describes it is wrong.
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

/// The root of a distance, with its sign; exact on every machine.
fn signed_root(distance: i64) -> f64 {
    let root = (distance.unsigned_abs() as f64).sqrt();
    if distance < 0 { -root } else { root }
}

#[cfg(test)]
mod tests {
    use super::description::{NearResponse, SizeCosts, StreamCosts};
    use super::*;

    /// Alone 100 µs at random, 20 µs following; two at once 120 µs each.
    fn description() -> StorageDescription {
        let line = |bytes, us: &[f64]| SizeCosts { bytes, us: us.to_vec() };
        StorageDescription {
            name: "made up".to_owned(),
            bytes: 1 << 30,
            request_bytes_max: 1 << 20,
            alignment_bytes: 512,
            is_rotational: false,
            depths: vec![1, 2],
            depth_max: 4,
            probe_bytes: 4096,
            random: vec![line(4096, &[100.0, 120.0]), line(12_288, &[300.0, 400.0])],
            following: vec![line(4096, &[20.0, 40.0])],
            near: vec![NearResponse { distance: 40_000, us: 60.0 }],
            streams: StreamCosts { count: 2, bytes: 4096, us: 50.0 },
            spread_us: vec![100.0; 6],
        }
    }

    /// When each of the requests, given by time in µs, first sector and sectors, is done, in µs.
    fn times(requests: &[(u64, u64, u32)]) -> Vec<u64> {
        let mut device = MeasuredDevice::new(&description(), 1);
        let mut done = vec![0; requests.len()];
        let mut take = |device: &mut MeasuredDevice, until: Time| {
            while let Some(at) = device.next_event().filter(|at| *at <= until) {
                while let Some(completion) = device.poll(at) {
                    done[completion.id.0 as usize] = (completion.at.ns() + 500) / 1000;
                }
            }
        };
        for (id, &(at_us, start, sectors)) in requests.iter().enumerate() {
            let at = Time::from_us(at_us);
            take(&mut device, at);
            let op = readpath_core::request::Op::Read;
            device.submit(at, DeviceRequest { id: RequestId(id as u32), op, start, sectors });
        }
        take(&mut device, Time(u64::MAX));
        done
    }

    #[test]
    fn alone_a_request_takes_what_its_size_and_place_took() {
        assert_eq!(times(&[(0, 9_000, 8)]), [100]);
        assert_eq!(times(&[(0, 9_000, 24)]), [300]);
        assert_eq!(times(&[(0, 9_000, 16)]), [200], "half-way between two sizes");
        // Following the first, 20 µs; 10,000 bytes after an end, half-way in the root between
        // 20 µs and 60 µs.
        assert_eq!(times(&[(0, 9_000, 8), (200, 9_008, 8)]), [100, 220]);
        let near = 9_008 + 10_000 / 512;
        let [_, at] = times(&[(0, 9_000, 8), (200, near, 8)])[..] else { panic!() };
        assert!((239..=240).contains(&at), "{at}");
        // Back to the first of two streams: 50 µs.
        let streams = times(&[(0, 9_000, 8), (200, 900_000, 8), (400, 9_008, 8)]);
        assert_eq!(streams, [100, 300, 450]);
    }

    #[test]
    fn among_several_each_moves_on_at_the_speed_of_so_many() {
        assert_eq!(times(&[(0, 9_000, 8), (0, 90_000, 8)]), [120, 120]);
        // Beyond the deepest the rate stays: four take twice as long as two.
        let four = [(0, 9_000, 8), (0, 90_000, 8), (0, 50_000, 8), (0, 70_000, 8)];
        assert_eq!(times(&four), [240; 4]);
        // Half of the first is done after 50 µs; the other half takes 60 among two, by when half
        // of the second is done too, which needs 50 more alone.
        assert_eq!(times(&[(0, 9_000, 8), (50, 90_000, 8)]), [110, 160]);
    }
}
