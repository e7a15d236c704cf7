//! Random places that are not spread evenly: Zipf's law, self-similarity, a bell, zones.
//!
//! The first two are J. Gray and others, "Quickly generating billion-record synthetic databases",
//! SIGMOD 1994: a uniform number is turned into a rank by a formula whose constants are worked out
//! once. Ranks are scattered over the blocks by a multiplication, and turned by an offset, so
//! that the frequent blocks don't lie side by side. The law is fio's, but not the sequence: its
//! seeds follow from names of files in a way that is not published.

use super::random::Taus88;
use crate::job::{Distribution, Zone};

/// The most terms of the sum that Zipf's law is normed with, as in fio.
const TERMS_MAX: u64 = 10_000_000;

/// 2^64 divided by the golden ratio, as its two's complement: the multiplier that scatters.
const SCATTER: u64 = 0x61c8_8646_80b5_83eb;

/// Places by a distribution.
#[derive(Clone, Debug)]
pub struct Skew {
    kind: Kind,
    random: Taus88,
    /// Added to each rank.
    turn: u64,
    is_scattered: bool,
    blocks: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    Zipf { theta: f64, norm: f64, first_two: f64 },
    Pareto { exponent: f64 },
    Normal { deviation: f64 },
}

impl Skew {
    /// The places of `distribution` in `blocks` blocks, at least 1; `None` for a distribution that
    /// is uniform or has zones.
    pub fn new(distribution: &Distribution, blocks: u64, seed: u64) -> Option<Skew> {
        let mut random = Taus88::new(seed);
        let drawn = u64::from(random.next());
        let count = blocks as f64;
        let turned = |center: &Option<f64>| match center {
            Some(center) => (count * center) as u64,
            None => drawn,
        };
        let (kind, turn, is_scattered) = match distribution {
            Distribution::Uniform | Distribution::Zoned { .. } => return None,
            Distribution::Zipf { theta, center } => {
                let terms = blocks.min(TERMS_MAX);
                let norm = (1..=terms).map(|rank| (1.0 / rank as f64).powf(*theta)).sum();
                let first_two = 1.0 + 0.5_f64.powf(*theta);
                let kind = Kind::Zipf { theta: *theta, norm, first_two };
                (kind, turned(center), center.is_none())
            }
            Distribution::Pareto { power, center } => {
                let exponent = power.ln() / (1.0 - power).ln();
                (Kind::Pareto { exponent }, turned(center), center.is_none())
            }
            Distribution::Normal { deviation_percent, center } => {
                // In whole blocks, as fio.
                let deviation = (count * deviation_percent / 100.0).ceil();
                let turn = center.map_or(0, |center| (count * center) as u64);
                (Kind::Normal { deviation }, turn, center.is_none())
            }
        };
        Some(Skew { kind, random, turn, is_scattered, blocks })
    }

    /// The next place: a block.
    pub fn next(&mut self) -> u64 {
        let count = self.blocks as f64;
        let rank = match self.kind {
            Kind::Zipf { theta, norm, first_two } => {
                let uniform = self.random.unit();
                let scaled = uniform * norm;
                if scaled < 1.0 {
                    0
                } else if scaled < first_two {
                    1
                } else {
                    let eta = (1.0 - (2.0 / count).powf(1.0 - theta)) / (1.0 - first_two / norm);
                    let alpha = 1.0 / (1.0 - theta);
                    (count * (eta * uniform - eta + 1.0).powf(alpha)) as u64
                }
            }
            Kind::Pareto { exponent } => ((count - 1.0) * self.random.unit().powf(exponent)) as u64,
            Kind::Normal { deviation } => return self.next_of_bell(deviation),
        };
        let rank = if self.is_scattered { rank.wrapping_mul(SCATTER) } else { rank };
        rank.wrapping_add(self.turn) % self.blocks
    }

    /// A bell around the middle: the sum of twelve uniform numbers (the central limit theorem),
    /// scaled to the deviation and turned by the offset.
    fn next_of_bell(&mut self, deviation: f64) -> u64 {
        let sum: f64 = (0..12).map(|_| self.random.unit()).sum();
        let place = self.blocks as f64 / 2.0 + (sum - 6.0) * deviation;
        let place = (place.rem_euclid(self.blocks as f64) as u64).min(self.blocks - 1);
        place.wrapping_add(self.turn) % self.blocks
    }
}

/// Which part of the area, in blocks, a draw from 0 to 99 falls into; `None` for an empty part.
pub fn zone_of(
    zones: &[Zone],
    is_absolute: bool,
    block_bytes: u64,
    blocks: u64,
    draw: u64,
) -> Option<(u64, u64)> {
    let (mut share_end, mut start) = (0, 0_u64);
    let blocks_of = |length: u64| match is_absolute {
        true => length / block_bytes,
        false => (u128::from(blocks) * u128::from(length) / 100) as u64,
    };
    for zone in zones {
        share_end += u64::from(zone.share);
        if draw < share_end {
            let begin = blocks_of(start);
            let end = begin.saturating_add(blocks_of(zone.length)).min(blocks);
            return (begin < end).then_some((begin, end));
        }
        start = start.saturating_add(zone.length);
    }
    None
}
