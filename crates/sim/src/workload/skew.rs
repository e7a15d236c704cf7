//! Random positions with a skewed distribution: Zipf, self-similar, normal, zones.
//!
//! The first two follow J. Gray et al., "Quickly generating billion-record synthetic databases",
//! SIGMOD 1994. A formula with precomputed constants converts a uniform number to a *rank*: the
//! place of a block in the order of decreasing frequency, from 0. The ranks are scattered over the
//! blocks by a multiplication and rotated by an offset, so frequent blocks are not adjacent. The
//! normal distribution is the mean of twelve random blocks (central limit theorem), plus a uniform
//! number as wide as the deviation.
//!
//! The sequences are the same as in fio. Seeds, scattering and rotation were determined from traces
//! of fio 3.33, and tests compare them with fio again. The seed is a hash of the file's name,
//! multiplied by the number of the process. With `randseed` it is the seed of other positions.

use super::random::Taus88;
use crate::job::{Distribution, DistributionZone};

/// Maximum number of terms in the normalisation of Zipf's distribution, as in fio.
const TERMS_MAX: u64 = 10_000_000;

/// Multiplier that scatters the ranks: 2^64 divided by the golden ratio, as its two's complement.
const SCATTER_MULTIPLIER: u64 = 0x61c8_8646_80b5_83eb;

/// Initial value of a name's hash: 2^32 divided by the golden ratio, as its two's complement.
const HASH_START: u32 = 0x61c8_8647;

/// Number of random blocks in the mean of a normal distribution.
const NORMAL_DRAWS: u64 = 12;

/// Positions with a skewed distribution.
#[derive(Clone, Debug)]
pub struct SkewedPositions {
    /// Distribution of the ranks.
    kind: SkewKind,
    /// Generator of the ranks.
    random: Taus88,
    /// Offset added to each scattered rank, in blocks.
    rank_offset: u64,
    /// Number of blocks.
    blocks: u64,
}

/// Distribution, with precomputed constants.
#[derive(Clone, Debug)]
enum SkewKind {
    /// `norm` is the sum of the weights of all ranks, and `first_two` the sum of the first two.
    Zipf { theta: f64, norm: f64, first_two: f64 },
    /// `exponent` of a uniform number from 0 to 1, whose power is the rank as a share of all.
    Pareto { exponent: f64 },
    /// `deviation` is the width in blocks of the uniform number that is added.
    Normal { deviation: u64 },
}

impl SkewedPositions {
    /// Creates the positions of `distribution` in at least 1 block. The lower 32 bits of the seed
    /// are used. Returns `None` for a uniform distribution and for zones.
    pub fn new(distribution: &Distribution, blocks: u64, seed: u64) -> Option<SkewedPositions> {
        let mut random = Taus88::new(seed);
        let count = blocks as f64;
        let mut offset_or_drawn = |center: &Option<f64>| {
            // The number is drawn even if it is not used.
            let drawn = u64::from(random.next());
            center.map_or(drawn, |center| (count * center) as u64)
        };
        let (kind, rank_offset) = match distribution {
            Distribution::Uniform | Distribution::Zoned { .. } => return None,
            Distribution::Zipf { theta, center } => {
                let terms = blocks.min(TERMS_MAX);
                let norm = (1..=terms).map(|rank| (1.0 / rank as f64).powf(*theta)).sum();
                let first_two = 1.0 + 0.5_f64.powf(*theta);
                (SkewKind::Zipf { theta: *theta, norm, first_two }, offset_or_drawn(center))
            }
            Distribution::Pareto { power, center } => {
                let exponent = power.ln() / (1.0 - power).ln();
                (SkewKind::Pareto { exponent }, offset_or_drawn(center))
            }
            Distribution::Normal { deviation_percent, center } => {
                let deviation = (count * deviation_percent / 100.0).ceil() as u64;
                // As in fio, the width is at most half of the blocks.
                let kind = SkewKind::Normal { deviation: deviation.min(blocks / 2) };
                // An offset before the middle is an unsigned 32-bit number, as in fio.
                let rank_offset = center.map_or(0, |center| (count * (center - 0.5)) as i64 as u32);
                (kind, rank_offset.into())
            }
        };
        Some(SkewedPositions { kind, random, rank_offset, blocks })
    }

    /// Returns the next position: a block, of which the last can be cut off by the end of the area.
    pub fn draw(&mut self) -> u64 {
        let count = self.blocks as f64;
        let rank = match self.kind {
            SkewKind::Zipf { theta, norm, first_two } => {
                let uniform = self.random.draw_unit();
                let scaled = uniform * norm;
                // The first two ranks are exact. Gray's formula approximates the others.
                if scaled < 1.0 {
                    0
                } else if scaled < first_two {
                    1
                } else {
                    // `eta` and `alpha` are the constants of the formula, under its names.
                    let eta = (1.0 - (2.0 / count).powf(1.0 - theta)) / (1.0 - first_two / norm);
                    let alpha = 1.0 / (1.0 - theta);
                    (count * (eta * uniform - eta + 1.0).powf(alpha)) as u64
                }
            }
            SkewKind::Pareto { exponent } => {
                ((count - 1.0) * self.random.draw_unit().powf(exponent)) as u64
            }
            SkewKind::Normal { deviation } => self.normal_rank(deviation),
        };
        rank.wrapping_mul(SCATTER_MULTIPLIER).wrapping_add(self.rank_offset) % self.blocks
    }

    /// Draws a rank with a normal distribution around the middle, as fio does. It is the mean of
    /// `NORMAL_DRAWS` uniform draws, shifted by up to half of `deviation` blocks to either side.
    fn normal_rank(&mut self, deviation: u64) -> u64 {
        // As in fio, a number can be the one behind the last block. `draw` maps it to a block.
        let sum: u64 =
            (0..NORMAL_DRAWS).map(|_| u64::from(self.random.next()) % (self.blocks + 1)).sum();
        let mean = sum.div_ceil(NORMAL_DRAWS);
        if deviation == 0 {
            return mean;
        }
        let mut shift = self.random.below(deviation) as i64 - (deviation / 2) as i64;
        // A position outside of the area is shifted half as far, until it is inside.
        while shift != 0 && mean.checked_add_signed(shift).is_none_or(|rank| rank >= self.blocks) {
            shift /= 2;
        }
        mean.wrapping_add_signed(shift)
    }
}

/// Returns the hash of a file's name: Bob Jenkins' `lookup3` (2006). In all blocks except the last,
/// fio uses only every fourth byte.
pub fn hash_of_name(name: &str) -> u32 {
    let mut remaining = name.as_bytes();
    let start = HASH_START.wrapping_add(remaining.len() as u32);
    let [mut a, mut b, mut c] = [start; 3];
    // Blocks of 12 bytes, of which the last one is handled below.
    while remaining.len() > 12 {
        a = a.wrapping_add(remaining[0].into());
        b = b.wrapping_add(remaining[4].into());
        c = c.wrapping_add(remaining[8].into());
        // The rotations of lookup3, here and below.
        for rotations in [[4, 6, 8], [16, 19, 4]] {
            a = a.wrapping_sub(c) ^ c.rotate_left(rotations[0]);
            c = c.wrapping_add(b);
            b = b.wrapping_sub(a) ^ a.rotate_left(rotations[1]);
            a = a.wrapping_add(c);
            c = c.wrapping_sub(b) ^ b.rotate_left(rotations[2]);
            b = b.wrapping_add(a);
        }
        remaining = &remaining[12..];
    }
    if remaining.is_empty() {
        return c;
    }
    let mut last = [0; 12];
    last[..remaining.len()].copy_from_slice(remaining);
    let word_at = |byte: usize| {
        u32::from_le_bytes([last[byte], last[byte + 1], last[byte + 2], last[byte + 3]])
    };
    (a, b, c) =
        (a.wrapping_add(word_at(0)), b.wrapping_add(word_at(4)), c.wrapping_add(word_at(8)));
    for rotations in [[14, 11, 25], [16, 4, 14]] {
        c = (c ^ b).wrapping_sub(b.rotate_left(rotations[0]));
        a = (a ^ c).wrapping_sub(c.rotate_left(rotations[1]));
        b = (b ^ a).wrapping_sub(a.rotate_left(rotations[2]));
    }
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

/// Returns the end in bytes of the last zone that can be drawn, for zones with lengths in bytes.
pub fn zones_end(zones: &[DistributionZone]) -> u64 {
    let (mut start, mut last_end) = (0_u64, 0);
    for zone in zones {
        start = start.saturating_add(zone.length);
        if zone.share > 0 {
            last_end = start;
        }
    }
    last_end
}

/// Returns the zone for a draw from 0 to 99: first block and end (exclusive). The area has `blocks`
/// blocks of `block_bytes`. `is_absolute`: lengths of zones are in bytes, otherwise in percent of
/// the area. `None` if the shares of all zones together do not reach the draw.
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
            // As in fio, bytes are rounded at both ends of a zone, and percents as a length.
            let end = match is_absolute {
                true => blocks_of(start.saturating_add(zone.length)),
                false => begin.saturating_add(blocks_of(zone.length)),
            }
            .min(blocks);
            return Some((begin.min(end), end));
        }
        start = start.saturating_add(zone.length);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds determined from fio's traces: among all 2^32, the one with the sequence of a file.
    #[test]
    fn name_hash_matches_the_seed_of_fio() {
        for (name, seed) in [("a", 0x6bbe_9f77), ("other", 0xfc95_74d0), ("a.0.0", 0xa027_5764)] {
            assert_eq!(hash_of_name(name), seed, "{name}");
        }
    }
}
