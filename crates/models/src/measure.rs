//! Measurement of a storage device: a set of load cells in, a description out.
//!
//! A profile is a list of cells. The requests of a cell have one size and one queue depth. They are
//! random, or continue the last one, or start at a distance from its end, or belong to several
//! streams in rotation. Each cell is a closed loop: the next request starts when one ends. The
//! result is the mean response time. By Little's theorem, it is the queue depth times the measured
//! period, divided by the requests completed in it. The first requests, which fill the loop, are
//! excluded.
//!
//! [`measure`] uses any executor of requests with a clock ([`RequestExecutor`]): a simulated device
//! or real storage. [`describe`] converts the samples into a description for `--on measured`.

use readpath_core::unit::Time;

use crate::random::SeededRng;

mod fit;
mod trust;

pub use fit::{StorageShape, describe};
pub use trust::{Contradiction, DECREASE_MAX, ProfileReliability, ROUND_RATIO_MAX};

/// Request size in bytes for the cost of a position.
pub const PROBE_BYTES: u64 = 4096;

/// Maximum bytes in flight in a cell: a gentle load, and enough for the full throughput.
const IN_FLIGHT_BYTES_MAX: u64 = 16 << 20;

/// Measured request sizes in bytes. These and the other numbers of the profile are chosen.
const SIZES: [u64; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Measured queue depths.
const DEPTHS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Number of streams in rotation.
const STREAMS: u32 = 8;
/// Request size of the streams in bytes.
const STREAM_BYTES: u64 = 128 << 10;
/// Shortest measured distance from the end of the last request.
const NEAREST_BYTES: u64 = 64 << 10;
/// Ratio of successive measured distances.
const DISTANCE_RATIO: u64 = 4;
/// Minimum size of the storage, as a multiple of a measured distance. Most positions then have a
/// neighbour at that distance.
const STORAGE_DISTANCES_MIN: u64 = 8;

/// Positions of the requests of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileAccess {
    /// Random positions.
    Random,
    /// Each request starts at the end of the last one.
    Following,
    /// Each request starts between once and twice this distance after the end of the last one.
    /// Negative distances are before it.
    Near(i64),
    /// A number of streams in rotation. A request starts at the end of its stream's last one.
    Streams(u32),
}

/// One load of the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasurementCell {
    /// Positions of the requests.
    pub access: ProfileAccess,
    /// Size of each request.
    pub bytes: u64,
    /// Queue depth.
    pub depth: u32,
}

/// Result of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileSample {
    /// The cell.
    pub cell: MeasurementCell,
    /// Number of counted requests.
    pub requests: u64,
    /// Mean response time in ns.
    pub mean_ns: f64,
    /// The means of the rounds in which the cell was measured, in ns, rising.
    pub rounds_ns: Vec<f64>,
    /// Response time of each request in ns, in increasing order.
    pub latencies_ns: Vec<u64>,
}

impl ProfileSample {
    /// Returns the response time in ns that the given share of the requests does not exceed, from 0
    /// to 1. The sample must have at least one request.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let last = self.latencies_ns.len() - 1;
        self.latencies_ns[(last as f64 * share).round() as usize]
    }

    /// Combines several measurements of one cell. The mean is the median of their means, so
    /// disturbances in one of them have no effect. Returns `None` for an empty list.
    pub fn middle(mut rounds: Vec<ProfileSample>) -> Option<ProfileSample> {
        rounds.sort_unstable_by(|left, right| left.mean_ns.total_cmp(&right.mean_ns));
        // The lower of the two in the middle if the number is even. An empty list has no index 0.
        let middle = rounds.get((rounds.len().max(1) - 1) / 2)?;
        let (cell, mean_ns) = (middle.cell, middle.mean_ns);
        let mut latencies_ns: Vec<u64> =
            rounds.iter().flat_map(|round| &round.latencies_ns).copied().collect();
        latencies_ns.sort_unstable();
        let requests = rounds.iter().map(|round| round.requests).sum();
        let rounds_ns = rounds.iter().map(|round| round.mean_ns).collect();
        Some(ProfileSample { cell, requests, mean_ns, rounds_ns, latencies_ns })
    }

    /// Ratio of the slowest round's mean to the fastest one's; `None` for a single round.
    pub fn spread(&self) -> Option<f64> {
        let (fastest, slowest) = (self.rounds_ns.first()?, self.rounds_ns.last()?);
        (self.rounds_ns.len() > 1).then(|| slowest / fastest)
    }

    /// Requests per second.
    pub fn per_second(&self) -> f64 {
        f64::from(self.cell.depth) * 1e9 / self.mean_ns
    }
}

/// Limits of a cell's load.
#[derive(Clone, Copy, Debug)]
pub struct CellLimits {
    /// Time in ns after which no request starts, once each place in the queue has ended
    /// `REQUESTS_PER_DEPTH_MIN` on average.
    pub span_ns: u64,
    /// Number of bytes after which no request starts, under the same condition.
    pub bytes: u64,
}

/// Executor of requests with a clock. Each request has a ticket.
pub trait RequestExecutor {
    /// Failure of a request, or a demand to stop the measurement.
    type Error;

    /// Returns the present time of its clock, in ns.
    fn now_ns(&self) -> u64;

    /// Starts a read of `bytes` bytes at byte `offset`. [`wait`](RequestExecutor::wait) returns its
    /// `ticket`.
    ///
    /// # Errors
    /// Fails if the read cannot be started.
    fn start(&mut self, offset: u64, bytes: u64, ticket: usize) -> Result<(), Self::Error>;

    /// Waits until any read ends and returns its ticket.
    ///
    /// # Errors
    /// Fails if the read has failed.
    fn wait(&mut self) -> Result<usize, Self::Error>;
}

/// Returns the cells of a profile of a storage of `storage_bytes`, in order of measurement.
pub fn cells(storage_bytes: u64) -> Vec<MeasurementCell> {
    let mut cells = Vec::new();
    // A single request is measured at every size, deeper queues within `IN_FLIGHT_BYTES_MAX`.
    for access in [ProfileAccess::Random, ProfileAccess::Following] {
        for bytes in SIZES {
            for depth in DEPTHS {
                if depth == 1 || u64::from(depth) * bytes <= IN_FLIGHT_BYTES_MAX {
                    cells.push(MeasurementCell { access, bytes, depth });
                }
            }
        }
    }
    let mut distance_bytes = NEAREST_BYTES;
    while distance_bytes * STORAGE_DISTANCES_MIN <= storage_bytes {
        for signed_distance in [distance_bytes as i64, -(distance_bytes as i64)] {
            cells.push(MeasurementCell {
                access: ProfileAccess::Near(signed_distance),
                bytes: PROBE_BYTES,
                depth: 1,
            });
        }
        distance_bytes *= DISTANCE_RATIO;
    }
    cells.push(MeasurementCell {
        access: ProfileAccess::Streams(STREAMS),
        bytes: STREAM_BYTES,
        depth: 1,
    });
    cells
}

/// Minimum storage size for all cells, chosen: 64 requests of the largest size.
pub const STORAGE_BYTES_MIN: u64 = 64 << 20;

/// Generator of the positions of a cell's requests, all within the storage.
#[derive(Clone, Debug)]
pub struct PositionGenerator {
    /// The cell.
    cell: MeasurementCell,
    /// Size of the storage.
    storage_bytes: u64,
    /// Generator of the random positions and distances.
    rng: SeededRng,
    /// End of the last request of each stream, in bytes.
    ends: Vec<u64>,
    /// Index of the stream whose request was last.
    stream_index: usize,
}

impl PositionGenerator {
    /// Creates the generator. The start positions derive from `seed`. The storage has at least
    /// [`STORAGE_BYTES_MIN`], so that each part has room for a request.
    pub fn new(cell: MeasurementCell, storage_bytes: u64, seed: u64) -> PositionGenerator {
        let mut rng = SeededRng::new(seed);
        let streams = match cell.access {
            ProfileAccess::Streams(count) => u64::from(count),
            _ => 1,
        };
        // Each stream starts in a part of its own, so streams do not meet. A single stream starts
        // near the middle, because a disk's rate decreases from its first byte to its last.
        let (first_offset, part_bytes) = match streams {
            1 => (storage_bytes / 8 * 3, storage_bytes / 2),
            _ => (0, storage_bytes / streams),
        };
        // The start is in the first half of the part. The second half is left for the stream.
        let start_offset = |stream| {
            let part_start = first_offset + stream * part_bytes;
            align_down(part_start + rng.below(part_bytes / 2), cell.bytes)
        };
        let ends = (0..streams).map(start_offset).collect();
        PositionGenerator { cell, storage_bytes, rng, ends, stream_index: 0 }
    }

    /// Returns the offset of the next request in bytes, and advances the pattern. A position beyond
    /// the storage is replaced by a random one.
    pub fn step(&mut self) -> u64 {
        let aligned_positions = self.storage_bytes / self.cell.bytes;
        // The rotation begins with the second stream. The order of the streams has no effect.
        self.stream_index = (self.stream_index + 1) % self.ends.len();
        let end = self.ends[self.stream_index];
        let offset_max = self.storage_bytes - self.cell.bytes;
        let offset = match self.cell.access {
            ProfileAccess::Random => self.rng.below(aligned_positions) * self.cell.bytes,
            ProfileAccess::Following | ProfileAccess::Streams(_) => end,
            ProfileAccess::Near(distance) => {
                let span_bytes = distance.unsigned_abs();
                let random_bytes = span_bytes + self.rng.below(span_bytes);
                let distance_bytes = align_down(random_bytes, PROBE_BYTES);
                // Below 0 the result wraps, and is beyond the storage.
                if distance > 0 { end + distance_bytes } else { end.wrapping_sub(distance_bytes) }
            }
        };
        // Beyond either end of the storage, the next position is random.
        let offset = match offset <= offset_max {
            true => offset,
            false => self.rng.below(aligned_positions) * self.cell.bytes,
        };
        self.ends[self.stream_index] = offset + self.cell.bytes;
        offset
    }
}

/// Rounds a number of bytes down to a multiple of `unit_bytes`.
fn align_down(bytes: u64, unit_bytes: u64) -> u64 {
    bytes / unit_bytes * unit_bytes
}

/// Number of requests after which a cell ends, if the mean has a standard error below 1 %.
const MIN_REQUESTS: u64 = 200;
/// Minimum bytes of a cell of continuing requests: more than the storage reads ahead.
const MIN_FOLLOWING_BYTES: u64 = 8 << 20;

/// Completed requests, divided by the queue depth, after which a cell can end at a limit: one fills
/// the queue and is not counted, two are the sample. Chosen.
const REQUESTS_PER_DEPTH_MIN: u64 = 3;
/// Completed requests, divided by the queue depth, after which the mean can be precise. Chosen.
const PRECISE_REQUESTS_PER_DEPTH_MIN: u64 = 16;

/// Measures a cell: keeps `cell.depth` requests in progress, at the given positions. Starts no more
/// requests once the mean has a standard error below 1 %, or at one of the `limits`. Both count
/// only after `REQUESTS_PER_DEPTH_MIN` requests for each place in the queue. Then waits for the
/// requests in progress, which are not counted.
///
/// # Errors
/// Returns the first error of `executor`; other requests may then still be in progress.
pub fn measure<P: RequestExecutor>(
    cell: MeasurementCell,
    mut positions: PositionGenerator,
    limits: CellLimits,
    executor: &mut P,
) -> Result<ProfileSample, P::Error> {
    let depth = u64::from(cell.depth);
    let requests_min = match cell.access {
        ProfileAccess::Following => MIN_REQUESTS.max(MIN_FOLLOWING_BYTES / cell.bytes),
        _ => MIN_REQUESTS,
    };
    // Fill the queue: one request for each place in it. The ticket is the number of the place.
    let mut started_ns = vec![0; cell.depth as usize];
    for (ticket, start_ns) in started_ns.iter_mut().enumerate() {
        *start_ns = executor.now_ns();
        executor.start(positions.step(), cell.bytes, ticket)?;
    }
    let loop_start_ns = executor.now_ns();
    let mut ended_requests = 0u64;
    let (mut counted_from_ns, mut last_end_ns) = (loop_start_ns, loop_start_ns);
    let mut latencies_ns = Vec::new();
    let mut statistics = RunningStatistics::default();
    let mut in_flight = depth;
    let mut is_finished = false;
    while in_flight > 0 {
        let ticket = executor.wait()?;
        let now_ns = executor.now_ns();
        in_flight -= 1;
        if is_finished {
            continue;
        }
        ended_requests += 1;
        last_end_ns = now_ns;
        // The first requests, which fill the queue, are not counted.
        if ended_requests == depth {
            counted_from_ns = now_ns;
        } else if ended_requests > depth {
            let latency_ns = now_ns - started_ns[ticket];
            latencies_ns.push(latency_ns);
            statistics.add(latency_ns as f64);
        }
        // Decide about the end. Otherwise the next request takes the place of the one that ended.
        let is_at_limit = now_ns - loop_start_ns >= limits.span_ns
            || (ended_requests + in_flight) * cell.bytes >= limits.bytes;
        let precise_requests_min = requests_min.max(PRECISE_REQUESTS_PER_DEPTH_MIN * depth);
        let is_precise = ended_requests >= precise_requests_min && statistics.is_mean_precise();
        let may_end = ended_requests >= REQUESTS_PER_DEPTH_MIN * depth;
        is_finished = may_end && (is_at_limit || is_precise);
        if !is_finished {
            started_ns[ticket] = executor.now_ns();
            executor.start(positions.step(), cell.bytes, ticket)?;
            in_flight += 1;
        }
    }
    latencies_ns.sort_unstable();
    let requests = ended_requests - depth;
    let span = Time(last_end_ns).since(Time(counted_from_ns));
    // Little's theorem: the mean response time is the queue depth divided by the throughput. A
    // span of 0 counts as 1 ns.
    let mean_ns = (span.ns().max(1) * depth) as f64 / requests as f64;
    Ok(ProfileSample { cell, requests, mean_ns, rounds_ns: vec![mean_ns], latencies_ns })
}

/// Running mean and variance (Welford, 1962).
#[derive(Clone, Copy, Debug, Default)]
struct RunningStatistics {
    /// Number of values, as a floating-point number for the divisions.
    count: f64,
    /// Mean of the values.
    mean: f64,
    /// Sum of the squared differences from the mean.
    squared_deviations: f64,
}

impl RunningStatistics {
    /// Adds a value to mean and variance.
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        let deviation = value - self.mean;
        self.mean += deviation / self.count;
        self.squared_deviations += deviation * (value - self.mean);
    }

    /// Returns true if the standard error of the mean is below 1 % of it.
    fn is_mean_precise(self) -> bool {
        let variance = self.squared_deviations / (self.count - 1.0).max(1.0);
        variance / self.count < (self.mean / 100.0).powi(2)
    }
}
