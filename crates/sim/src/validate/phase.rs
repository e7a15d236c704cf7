//! What a trace says of the platter's phase: which idle time its gap column states.
//!
//! Between the ends of two reads from the medium the platter has turned by the angle
//! between their last sectors, plus whole revolutions. If the idle time on the line is
//! the right one, time modulo a revolution and angle agree from pair to pair; if it is
//! not, their difference is anywhere. The length of the mean of the differences, taken
//! as unit vectors, is the *coherence*: 1 for agreement, about 1/√n for n pairs of noise.
//!
//! This is how one finds that DiskSim's traces made by DIXtrac (atlas10k, barracuda,
//! cheetah9LP, ibm18es) state the idle time *before* a request, and only hp_c2247a the
//! one after it.

use readpath_core::request::Op;

use super::trace::TracedRequest;
use crate::device::hdd::Hdd;

/// Which idle time a line of the trace states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum GapMeaning {
    /// The time from this request's completion to the next one's arrival.
    #[default]
    After,
    /// The time from the completion of the request before to this one's arrival.
    Before,
}

/// How well time and angle agree under each reading of the gap column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coherence {
    /// Pairs of reads that follow each other and both came from the medium.
    pub pairs: usize,
    /// From 0 to 1, when the gap is the one after the request.
    pub after: f64,
    /// From 0 to 1, when it is the one before.
    pub before: f64,
}

impl Coherence {
    /// What chance alone gives with so many pairs.
    pub fn noise(&self) -> f64 {
        1.0 / (self.pairs.max(1) as f64).sqrt()
    }

    /// The reading that the trace supports; that of the format where it supports none.
    pub fn gap(&self) -> GapMeaning {
        // Three times what chance gives, and more than the other.
        let is_seen = self.before > 3.0 * self.noise();
        if is_seen && self.before > self.after { GapMeaning::Before } else { GapMeaning::After }
    }
}

/// Measures the coherence of `requests` on the surfaces of `hdd`.
pub fn coherence(requests: &[TracedRequest], hdd: &Hdd) -> Coherence {
    let (mut after, mut before) = (MeanVector::default(), MeanVector::default());
    for [first, second] in pairs_from_medium(requests, hdd) {
        after.add(phase_turns(hdd, first, second, first.gap_ns));
        before.add(phase_turns(hdd, first, second, second.gap_ns));
    }
    Coherence { pairs: after.count, after: after.length(), before: before.length() }
}

/// The coherence of pairs by the distance between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoherenceAt {
    /// Pairs less than this many cylinders apart, and no less than the class before.
    pub cylinders_end: u32,
    /// How many there are.
    pub pairs: usize,
    /// From 0 to 1.
    pub length: f64,
}

/// How far the angles that the description gives can be trusted: the coherence of pairs
/// within 3 cylinders of each other, within 30, 300, and beyond.
///
/// Where it is high near by and lost far away, the description's skews are right from
/// track to track and add up to a wrong angle over many: then the phase that one request
/// shows can't be carried over to another one far from it, whoever tracks it.
pub fn coherence_by_distance(
    requests: &[TracedRequest],
    hdd: &Hdd,
    gap: GapMeaning,
) -> [CoherenceAt; 4] {
    let ends = [3, 30, 300, u32::MAX];
    let mut means: [MeanVector; 4] = std::array::from_fn(|_| MeanVector::default());
    for [first, second] in pairs_from_medium(requests, hdd) {
        let distance = hdd.cylinder_of(first.start).abs_diff(hdd.cylinder_of(second.start));
        let class = ends.iter().position(|end| distance < *end).unwrap_or(ends.len() - 1);
        let gap_ns = if gap == GapMeaning::After { first.gap_ns } else { second.gap_ns };
        means[class].add(phase_turns(hdd, first, second, gap_ns));
    }
    std::array::from_fn(|class| CoherenceAt {
        cylinders_end: ends[class],
        pairs: means[class].count,
        length: means[class].length(),
    })
}

/// Reads that follow each other and both came from the medium: they took longer than half
/// a revolution.
fn pairs_from_medium<'a>(
    requests: &'a [TracedRequest],
    hdd: &Hdd,
) -> impl Iterator<Item = [&'a TracedRequest; 2]> {
    let limit_ns = hdd.revolution().ns() / 2;
    let from_medium = move |r: &TracedRequest| r.op == Op::Read && r.service_ns > limit_ns;
    let pairs = requests.windows(2).map(|pair| [&pair[0], &pair[1]]);
    pairs.filter(move |[first, second]| from_medium(first) && from_medium(second))
}

/// What is left of the time between two ends, in revolutions, when the angle between them
/// is taken off: a whole number, if time and angles are right.
fn phase_turns(hdd: &Hdd, first: &TracedRequest, second: &TracedRequest, gap_ns: u64) -> f64 {
    let turned =
        hdd.end_turns(second.start, second.sectors) - hdd.end_turns(first.start, first.sectors);
    (gap_ns + second.service_ns) as f64 / hdd.revolution().ns() as f64 - turned
}

/// The mean of unit vectors.
#[derive(Default)]
struct MeanVector {
    x: f64,
    y: f64,
    count: usize,
}

impl MeanVector {
    fn add(&mut self, turns: f64) {
        let (y, x) = (turns.fract() * std::f64::consts::TAU).sin_cos();
        self.x += x;
        self.y += y;
        self.count += 1;
    }

    fn length(&self) -> f64 {
        self.x.hypot(self.y) / self.count.max(1) as f64
    }
}
