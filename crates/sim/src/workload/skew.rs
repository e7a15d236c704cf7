//! Random places that are not spread evenly: Zipf's law, self-similarity, a bell, zones.
//!
//! The first two are J. Gray and others, "Quickly generating billion-record synthetic databases",
//! SIGMOD 1994: a uniform number is turned into a rank by a formula whose constants are worked out
//! once. Ranks are scattered over the blocks by a multiplication, and turned by an offset, so
//! that the frequent blocks don't lie side by side. The bell is the mean of twelve blocks (the
//! central limit theorem), to which a uniform number as wide as the deviation is added.
//!
//! The sequences are fio's. How they are seeded, scattered and turned was found by asking fio 3.33
//! for its traces, and tests ask it again: the seed is a hash of the file's name, times the number of the
//! process; where `randseed` is given, that of other places.

use super::random::Taus88;
use crate::job::{Distribution, DistributionZone};

/// The most terms of the sum that Zipf's law is normed with, as in fio.
const TERMS_MAX: u64 = 10_000_000;

/// 2^64 divided by the golden ratio, as its two's complement: the multiplier that scatters.
const SCATTER_MULTIPLIER: u64 = 0x61c8_8646_80b5_83eb;

/// The same of 2^32: what the hash of a name begins with.
const HASH_START: u32 = 0x61c8_8647;

/// How many blocks the mean of a bell is of.
const NORMAL_DRAWS: u64 = 12;

/// Places by a distribution.
#[derive(Clone, Debug)]
pub struct SkewedPositions {
    kind: SkewKind,
    random: Taus88,
    /// Added to each rank.
    turn: u64,
    blocks: u64,
}

#[derive(Clone, Debug)]
enum SkewKind {
    Zipf { theta: f64, norm: f64, first_two: f64 },
    Pareto { exponent: f64 },
    Normal { deviation: u64 },
}

impl SkewedPositions {
    /// The places of `distribution` in `blocks` blocks, at least 1, of which 32 bits of the seed
    /// count; `None` for a distribution that is uniform or has zones.
    pub fn new(distribution: &Distribution, blocks: u64, seed: u64) -> Option<SkewedPositions> {
        let mut random = Taus88::new(seed);
        let count = blocks as f64;
        let mut turned = |center: &Option<f64>| {
            // Drawn also where it is not used.
            let drawn = u64::from(random.next());
            center.map_or(drawn, |center| (count * center) as u64)
        };
        let (kind, turn) = match distribution {
            Distribution::Uniform | Distribution::Zoned { .. } => return None,
            Distribution::Zipf { theta, center } => {
                let terms = blocks.min(TERMS_MAX);
                let norm = (1..=terms).map(|rank| (1.0 / rank as f64).powf(*theta)).sum();
                let first_two = 1.0 + 0.5_f64.powf(*theta);
                (SkewKind::Zipf { theta: *theta, norm, first_two }, turned(center))
            }
            Distribution::Pareto { power, center } => {
                let exponent = power.ln() / (1.0 - power).ln();
                (SkewKind::Pareto { exponent }, turned(center))
            }
            Distribution::Normal { deviation_percent, center } => {
                let deviation = (count * deviation_percent / 100.0).ceil() as u64;
                let kind = SkewKind::Normal { deviation: deviation.min(blocks / 2) };
                // What lies before the middle is counted in 32 bits without a sign.
                let turn = center.map_or(0, |center| (count * (center - 0.5)) as i64 as u32);
                (kind, turn.into())
            }
        };
        Some(SkewedPositions { kind, random, turn, blocks })
    }

    /// The next place: a block, of which the last may be cut by the end of the area.
    pub fn next(&mut self) -> u64 {
        let count = self.blocks as f64;
        let rank = match self.kind {
            SkewKind::Zipf { theta, norm, first_two } => {
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
            SkewKind::Pareto { exponent } => {
                ((count - 1.0) * self.random.unit().powf(exponent)) as u64
            }
            SkewKind::Normal { deviation } => self.normal_rank(deviation),
        };
        rank.wrapping_mul(SCATTER_MULTIPLIER).wrapping_add(self.turn) % self.blocks
    }

    fn normal_rank(&mut self, deviation: u64) -> u64 {
        let sum: u64 =
            (0..NORMAL_DRAWS).map(|_| u64::from(self.random.next()) % (self.blocks + 1)).sum();
        let middle = sum.div_ceil(NORMAL_DRAWS);
        if deviation == 0 {
            return middle;
        }
        let mut moved = self.random.below(deviation) as i64 - (deviation / 2) as i64;
        // A place outside of the area is moved half as far, until it is inside.
        while moved != 0 && middle.checked_add_signed(moved).is_none_or(|at| at >= self.blocks) {
            moved /= 2;
        }
        middle.wrapping_add_signed(moved)
    }
}

/// A hash of a file's name: Bob Jenkins' `lookup3` (2006), of whose blocks, but for the last, fio
/// takes every fourth byte alone.
pub fn hash_of_name(name: &str) -> u32 {
    let mut left = name.as_bytes();
    let start = HASH_START.wrapping_add(left.len() as u32);
    let [mut a, mut b, mut c] = [start; 3];
    while left.len() > 12 {
        a = a.wrapping_add(left[0].into());
        b = b.wrapping_add(left[4].into());
        c = c.wrapping_add(left[8].into());
        for turns in [[4, 6, 8], [16, 19, 4]] {
            a = a.wrapping_sub(c) ^ c.rotate_left(turns[0]);
            c = c.wrapping_add(b);
            b = b.wrapping_sub(a) ^ a.rotate_left(turns[1]);
            a = a.wrapping_add(c);
            c = c.wrapping_sub(b) ^ b.rotate_left(turns[2]);
            b = b.wrapping_add(a);
        }
        left = &left[12..];
    }
    if left.is_empty() {
        return c;
    }
    let mut last = [0; 12];
    last[..left.len()].copy_from_slice(left);
    let word = |at: usize| u32::from_le_bytes([last[at], last[at + 1], last[at + 2], last[at + 3]]);
    (a, b, c) = (a.wrapping_add(word(0)), b.wrapping_add(word(4)), c.wrapping_add(word(8)));
    for turns in [[14, 11, 25], [16, 4, 14]] {
        c = (c ^ b).wrapping_sub(b.rotate_left(turns[0]));
        a = (a ^ c).wrapping_sub(c.rotate_left(turns[1]));
        b = (b ^ a).wrapping_sub(a.rotate_left(turns[2]));
    }
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

/// Which part of the area, in blocks, a draw from 0 to 99 falls into.
pub fn zone_of(
    zones: &[DistributionZone],
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
            return Some((begin.min(end), end));
        }
        start = start.saturating_add(zone.length);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds that were found from fio's traces: of all 2^32, the one that gives the sequence of a file.
    #[test]
    fn a_name_has_the_seed_that_fio_has() {
        for (name, seed) in [("a", 0x6bbe_9f77), ("other", 0xfc95_74d0), ("a.0.0", 0xa027_5764)] {
            assert_eq!(hash_of_name(name), seed, "{name}");
        }
    }
}
