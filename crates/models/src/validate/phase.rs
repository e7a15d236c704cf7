//! Phase of the platter in a trace, and the meaning of the trace's gap column.
//!
//! Between the ends of two reads from the medium, the platter rotates by the angle between their
//! last sectors, plus whole revolutions. If the idle time is interpreted correctly, time modulo a
//! revolution and angle agree in all pairs. Otherwise their difference is random. The *coherence*
//! is the length of the mean of these differences as unit vectors: 1 for agreement, about 1/√n for
//! n random pairs.
//!
//! By this measure, DiskSim's traces from DIXtrac (atlas10k, barracuda, cheetah9LP, ibm18es) state
//! the idle time *before* a request. Only hp_c2247a states the idle time after it.

use readpath_core::request::Op;

use super::trace::TracedRequest;
use crate::hdd::Hdd;

/// Meaning of the gap column of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum GapMeaning {
    /// Time from this request's completion to the next arrival.
    #[default]
    After,
    /// Time from the previous completion to this request's arrival.
    Before,
}

/// Agreement of time and angle under each interpretation of the gap column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coherence {
    /// Number of consecutive pairs of reads that both used the medium.
    pub pairs: usize,
    /// Coherence from 0 to 1 if the gap follows the request.
    pub after: f64,
    /// Coherence from 0 to 1 if the gap precedes the request.
    pub before: f64,
}

impl Coherence {
    /// Returns the expected coherence, from 0 to 1, of this number of random pairs.
    pub fn noise(&self) -> f64 {
        1.0 / (self.pairs.max(1) as f64).sqrt()
    }

    /// Returns the interpretation that the trace supports, by default the one of the format.
    pub fn gap(&self) -> GapMeaning {
        // Evidence is three times the random coherence, a factor that is chosen, and more than
        // for the other meaning.
        let is_evident = self.before > 3.0 * self.noise() && self.before > self.after;
        if is_evident { GapMeaning::Before } else { GapMeaning::After }
    }
}

/// Computes the coherence of `requests` on the geometry of `hdd`.
pub fn coherence(requests: &[TracedRequest], hdd: &Hdd) -> Coherence {
    let (mut after, mut before) = (UnitVectorSum::default(), UnitVectorSum::default());
    for [first, second] in pairs_from_medium(requests, hdd) {
        after.add(phase_revolutions(hdd, first, second, first.gap_ns));
        before.add(phase_revolutions(hdd, first, second, second.gap_ns));
    }
    Coherence { pairs: after.count, after: after.mean_length(), before: before.mean_length() }
}

/// Coherence of the pairs in one class of distances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoherenceAt {
    /// Exclusive upper bound of the distance in cylinders. The lower bound is the previous class.
    pub cylinders_end: u32,
    /// Number of pairs.
    pub pairs: usize,
    /// Coherence from 0 to 1.
    pub length: f64,
}

/// Returns the accuracy of the description's angles: the coherence of pairs within 3 cylinders of
/// each other, within 30, within 300, and beyond.
///
/// A coherence that is high at short and low at long distance has a known cause. The description's
/// skews are correct from track to track and accumulate to a wrong angle over many. The phase
/// observed in one request is then useless for a distant one.
pub fn coherence_by_distance(
    requests: &[TracedRequest],
    hdd: &Hdd,
    gap: GapMeaning,
) -> [CoherenceAt; 4] {
    // Class limits in cylinders, chosen: a factor of ten each, and no limit.
    let ends = [3, 30, 300, u32::MAX];
    let mut sums: [UnitVectorSum; 4] = std::array::from_fn(|_| UnitVectorSum::default());
    for [first, second] in pairs_from_medium(requests, hdd) {
        let distance = hdd.cylinder_of(first.start).abs_diff(hdd.cylinder_of(second.start));
        let class = ends.iter().position(|end| distance < *end).unwrap_or(ends.len() - 1);
        let gap_ns = if gap == GapMeaning::After { first.gap_ns } else { second.gap_ns };
        sums[class].add(phase_revolutions(hdd, first, second, gap_ns));
    }
    std::array::from_fn(|class| CoherenceAt {
        cylinders_end: ends[class],
        pairs: sums[class].count,
        length: sums[class].mean_length(),
    })
}

/// Returns consecutive pairs of reads from the medium: both took over half a revolution. Reads from
/// the cache are faster. Faster reads from the medium are left out with them.
fn pairs_from_medium<'a>(
    requests: &'a [TracedRequest],
    hdd: &Hdd,
) -> impl Iterator<Item = [&'a TracedRequest; 2]> {
    let limit_ns = hdd.revolution().ns() / 2;
    let is_from_medium =
        move |request: &TracedRequest| request.op == Op::Read && request.service_ns > limit_ns;
    let pairs = requests.windows(2).map(|pair| [&pair[0], &pair[1]]);
    pairs.filter(move |[first, second]| is_from_medium(first) && is_from_medium(second))
}

/// Returns the time between the ends of two requests minus the angle between them, in revolutions.
/// `gap_ns` is the idle time between the requests. The result is an integer if times and angles are
/// correct.
fn phase_revolutions(hdd: &Hdd, first: &TracedRequest, second: &TracedRequest, gap_ns: u64) -> f64 {
    let turned_revolutions = hdd.end_revolutions(second.start, second.sectors)
        - hdd.end_revolutions(first.start, first.sectors);
    (gap_ns + second.service_ns) as f64 / hdd.revolution().ns() as f64 - turned_revolutions
}

/// The sum and the number of unit vectors.
#[derive(Default)]
struct UnitVectorSum {
    /// Sum of the cosines.
    x: f64,
    /// Sum of the sines.
    y: f64,
    /// Number of vectors.
    count: usize,
}

impl UnitVectorSum {
    /// Adds the unit vector of an angle in revolutions.
    fn add(&mut self, revolutions: f64) {
        let (y, x) = (revolutions.fract() * std::f64::consts::TAU).sin_cos();
        self.x += x;
        self.y += y;
        self.count += 1;
    }

    /// Returns the length of the mean vector, from 0 to 1; 0 without vectors.
    fn mean_length(&self) -> f64 {
        self.x.hypot(self.y) / self.count.max(1) as f64
    }
}
