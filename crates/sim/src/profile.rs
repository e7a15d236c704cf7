//! What is measured of some storage, and what it says: requests in, a description out.
//!
//! A profile is a list of cells: requests of one size, so many under way, at random places, or
//! each where the last one ended, or so far from there, or of several streams in turn. Each cell
//! is a closed loop: as one request ends the next begins. What counts is how long a request takes
//! in the mean, by Little's law the number under way times the time measured over the requests
//! that ended in it; the first few, while the loop fills, are left out.
//!
//! [`measure`] drives whatever carries requests and has a clock ([`RequestExecutor`]): a modelled device,
//! or real storage. [`describe`] makes of what was measured what `--on measured` takes.

use readpath_core::unit::Time;

use crate::device::random::SeededRng;

mod fit;
mod trust;

pub use fit::{StorageShape, describe};
pub use trust::{Contradiction, FALL_MAX, ROUNDS_APART, Trust};

/// The size of the requests that say what a place costs.
pub const PROBE_BYTES: u64 = 4096;

/// No cell has more bytes under way: gentle, and beyond what any storage gains from.
const IN_FLIGHT_BYTES_MAX: u64 = 16 << 20;

const SIZES: [u64; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const DEPTHS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const STREAMS: u32 = 8;
const STREAM_BYTES: u64 = 128 << 10;
/// The nearest distance; each is so many times as far as the one before.
const NEAREST_BYTES: u64 = 64 << 10;
const DISTANCE_RATIO: u64 = 4;

/// Where the requests of a cell go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileAccess {
    /// Anywhere.
    Random,
    /// Each where the last one ended.
    Following,
    /// Each from once to twice so many bytes after the end of the last one; negative: before it.
    Near(i64),
    /// Each where the last one of its stream ended, so many streams in turn.
    Streams(u32),
}

/// One thing that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasurementCell {
    /// Where the requests go.
    pub access: ProfileAccess,
    /// The size of each.
    pub bytes: u64,
    /// How many are under way.
    pub depth: u32,
}

/// What was measured in a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileSample {
    /// The cell.
    pub cell: MeasurementCell,
    /// How many requests count.
    pub requests: u64,
    /// The mean time of a request, in ns.
    pub mean_ns: f64,
    /// The means of the rounds in which it was measured, in ns, rising.
    pub rounds_ns: Vec<f64>,
    /// The time of each from its start to its end, in ns, rising.
    pub latencies_ns: Vec<u64>,
}

impl ProfileSample {
    /// The latency that a share of the requests doesn't exceed, in ns.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let last = self.latencies_ns.len() - 1;
        self.latencies_ns[(last as f64 * share).round() as usize]
    }

    /// Several measurements of one cell as one: the mean is the middle one's, so that what else
    /// the storage did during one of them counts for nothing. `None` of none.
    pub fn middle(mut rounds: Vec<ProfileSample>) -> Option<ProfileSample> {
        rounds.sort_unstable_by(|a, b| a.mean_ns.total_cmp(&b.mean_ns));
        let middle = rounds.get((rounds.len().max(1) - 1) / 2)?;
        let (cell, mean_ns) = (middle.cell, middle.mean_ns);
        let mut latencies_ns: Vec<u64> =
            rounds.iter().flat_map(|round| &round.latencies_ns).copied().collect();
        latencies_ns.sort_unstable();
        let requests = rounds.iter().map(|round| round.requests).sum();
        let rounds_ns = rounds.iter().map(|round| round.mean_ns).collect();
        Some(ProfileSample { cell, requests, mean_ns, rounds_ns, latencies_ns })
    }

    /// Ratio of the slowest round's mean to the fastest one's; none of one round.
    pub fn spread(&self) -> Option<f64> {
        let (fastest, slowest) = (self.rounds_ns.first()?, self.rounds_ns.last()?);
        (self.rounds_ns.len() > 1).then(|| slowest / fastest)
    }

    /// Requests a second.
    pub fn per_second(&self) -> f64 {
        f64::from(self.cell.depth) * 1e9 / self.mean_ns
    }
}

/// What one cell may cost.
#[derive(Clone, Copy, Debug)]
pub struct CellLimits {
    /// Begin no request after so long, once a round of them has ended.
    pub span_ns: u64,
    /// Begin no request after so many bytes, once a round of them has ended.
    pub bytes: u64,
}

/// What carries requests, each under a ticket, and knows the time.
pub trait RequestExecutor {
    /// Why a request failed, or the run is to end.
    type Error;

    /// The time, in ns.
    fn now_ns(&self) -> u64;

    /// Begins a read.
    ///
    /// # Errors
    /// It can't be begun.
    fn start(&mut self, offset: u64, bytes: u64, ticket: usize) -> Result<(), Self::Error>;

    /// Waits for any read to end; gives its ticket.
    ///
    /// # Errors
    /// It has failed.
    fn wait(&mut self) -> Result<usize, Self::Error>;
}

/// The cells of a profile of storage of so many bytes, in the order in which they are measured.
pub fn cells(storage_bytes: u64) -> Vec<MeasurementCell> {
    let mut cells = Vec::new();
    for access in [ProfileAccess::Random, ProfileAccess::Following] {
        for bytes in SIZES {
            for depth in DEPTHS {
                if depth == 1 || u64::from(depth) * bytes <= IN_FLIGHT_BYTES_MAX {
                    cells.push(MeasurementCell { access, bytes, depth });
                }
            }
        }
    }
    let mut distance = NEAREST_BYTES;
    while distance * 8 <= storage_bytes {
        for distance in [distance as i64, -(distance as i64)] {
            cells.push(MeasurementCell {
                access: ProfileAccess::Near(distance),
                bytes: PROBE_BYTES,
                depth: 1,
            });
        }
        distance *= DISTANCE_RATIO;
    }
    cells.push(MeasurementCell {
        access: ProfileAccess::Streams(STREAMS),
        bytes: STREAM_BYTES,
        depth: 1,
    });
    cells
}

/// The least storage on which every cell has a place.
pub const STORAGE_BYTES_MIN: u64 = 64 << 20;

/// The places of a cell's requests, one after the other; never past the end.
#[derive(Clone, Debug)]
pub struct PositionGenerator {
    cell: MeasurementCell,
    storage_bytes: u64,
    draw: SeededRng,
    /// Where the last request of each stream ended.
    ends: Vec<u64>,
    turn: usize,
}

impl PositionGenerator {
    /// The places on storage of so many bytes; where they begin follows from `seed`.
    pub fn new(cell: MeasurementCell, storage_bytes: u64, seed: u64) -> PositionGenerator {
        let mut draw = SeededRng::new(seed);
        let streams = match cell.access {
            ProfileAccess::Streams(count) => u64::from(count),
            _ => 1,
        };
        // Streams don't run into each other: each begins in a part of its own. One alone begins
        // about the middle: a disk's rate falls from its first byte to its last.
        let (first, part) = match streams {
            1 => (storage_bytes / 8 * 3, storage_bytes / 2),
            _ => (0, storage_bytes / streams),
        };
        let begin = |stream| aligned(first + stream * part + draw.below(part / 2), cell.bytes);
        let ends = (0..streams).map(begin).collect();
        PositionGenerator { cell, storage_bytes, draw, ends, turn: 0 }
    }

    /// The next place.
    pub fn step(&mut self) -> u64 {
        let places = self.storage_bytes / self.cell.bytes;
        self.turn = (self.turn + 1) % self.ends.len();
        let end = self.ends[self.turn];
        let last = self.storage_bytes - self.cell.bytes;
        let offset = match self.cell.access {
            ProfileAccess::Random => self.draw.below(places) * self.cell.bytes,
            ProfileAccess::Following | ProfileAccess::Streams(_) => end,
            ProfileAccess::Near(distance) => {
                let span = distance.unsigned_abs();
                let far = aligned(span + self.draw.below(span), PROBE_BYTES);
                if distance > 0 { end + far } else { end.wrapping_sub(far) }
            }
        };
        // Past either end it goes on somewhere else.
        let offset = match offset <= last {
            true => offset,
            false => self.draw.below(places) * self.cell.bytes,
        };
        self.ends[self.turn] = offset + self.cell.bytes;
        offset
    }
}

fn aligned(offset: u64, unit: u64) -> u64 {
    offset / unit * unit
}

/// Once so many requests have ended and the mean is known to a hundredth, a cell is done.
const MIN_REQUESTS: u64 = 200;
/// Requests that go on where others ended must also reach beyond what was read ahead for them.
const MIN_FOLLOWING_BYTES: u64 = 8 << 20;

/// Measures a cell.
///
/// # Errors
/// The probe's.
pub fn measure<P: RequestExecutor>(
    cell: MeasurementCell,
    mut walk: PositionGenerator,
    limits: CellLimits,
    probe: &mut P,
) -> Result<ProfileSample, P::Error> {
    let round = u64::from(cell.depth);
    let enough = match cell.access {
        ProfileAccess::Following => MIN_REQUESTS.max(MIN_FOLLOWING_BYTES / cell.bytes),
        _ => MIN_REQUESTS,
    };
    let mut started_ns = vec![0; cell.depth as usize];
    for (ticket, started) in started_ns.iter_mut().enumerate() {
        *started = probe.now_ns();
        probe.start(walk.step(), cell.bytes, ticket)?;
    }
    let begun_ns = probe.now_ns();
    let (mut ended, mut counted_from_ns, mut last_ns) = (0u64, begun_ns, begun_ns);
    let mut latencies_ns = Vec::new();
    let mut spread = RunningStatistics::default();
    let mut under_way = round;
    let mut is_finished = false;
    while under_way > 0 {
        let ticket = probe.wait()?;
        let now_ns = probe.now_ns();
        under_way -= 1;
        if is_finished {
            continue;
        }
        ended += 1;
        last_ns = now_ns;
        if ended == round {
            counted_from_ns = now_ns;
        } else if ended > round {
            let latency_ns = now_ns - started_ns[ticket];
            latencies_ns.push(latency_ns);
            spread.add(latency_ns as f64);
        }
        let is_spent = now_ns - begun_ns >= limits.span_ns || ended * cell.bytes >= limits.bytes;
        let is_known = ended >= enough.max(16 * round) && spread.is_known();
        is_finished = ended >= 3 * round && (is_spent || is_known);
        if !is_finished {
            started_ns[ticket] = probe.now_ns();
            probe.start(walk.step(), cell.bytes, ticket)?;
            under_way += 1;
        }
    }
    latencies_ns.sort_unstable();
    let requests = ended - round;
    let span = Time(last_ns).since(Time(counted_from_ns));
    let mean_ns = (span.ns().max(1) * round) as f64 / requests as f64;
    Ok(ProfileSample { cell, requests, mean_ns, rounds_ns: vec![mean_ns], latencies_ns })
}

/// Mean and variance as they come (Welford, 1962).
#[derive(Clone, Copy, Debug, Default)]
struct RunningStatistics {
    count: f64,
    mean: f64,
    squares: f64,
}

impl RunningStatistics {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        let from_mean = value - self.mean;
        self.mean += from_mean / self.count;
        self.squares += from_mean * (value - self.mean);
    }

    /// Whether the standard error of the mean is below a hundredth of it.
    fn is_known(self) -> bool {
        let variance = self.squares / (self.count - 1.0).max(1.0);
        variance / self.count < (self.mean / 100.0).powi(2)
    }
}
