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

use super::trace::Traced;
use crate::device::hdd::Hdd;

/// Which idle time a line of the trace states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Gap {
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
    pub fn gap(&self) -> Gap {
        // Three times what chance gives, and more than the other.
        let is_seen = self.before > 3.0 * self.noise();
        if is_seen && self.before > self.after { Gap::Before } else { Gap::After }
    }
}

/// Measures the coherence of `requests` on the surfaces of `hdd`.
pub fn coherence(requests: &[Traced], hdd: &Hdd) -> Coherence {
    let revolution_ns = hdd.revolution().ns();
    // A read that took this long did not come from the cache.
    let from_medium =
        |request: &&Traced| request.op == Op::Read && request.service_ns > revolution_ns / 2;
    let (mut after, mut before) = (Mean::default(), Mean::default());
    let mut pairs = 0;
    for pair in requests.windows(2) {
        let [first, second] = [&pair[0], &pair[1]];
        if !from_medium(&first) || !from_medium(&second) {
            continue;
        }
        let turned =
            hdd.end_turns(second.start, second.sectors) - hdd.end_turns(first.start, first.sectors);
        let turns = |gap_ns: u64| (gap_ns + second.service_ns) as f64 / revolution_ns as f64;
        after.add(turns(first.gap_ns) - turned);
        before.add(turns(second.gap_ns) - turned);
        pairs += 1;
    }
    Coherence { pairs, after: after.length(pairs), before: before.length(pairs) }
}

/// The mean of unit vectors.
#[derive(Default)]
struct Mean {
    x: f64,
    y: f64,
}

impl Mean {
    fn add(&mut self, turns: f64) {
        let (y, x) = (turns.fract() * std::f64::consts::TAU).sin_cos();
        self.x += x;
        self.y += y;
    }

    fn length(&self, count: usize) -> f64 {
        self.x.hypot(self.y) / count.max(1) as f64
    }
}
