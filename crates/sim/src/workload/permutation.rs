//! A random order of `0..count` in constant memory.
//!
//! fio records the used blocks of a random pass over an area in a bitmap. Here the pass follows a
//! *permutation*: its number `i` is the block `number_at(i)`, each exactly once, for any number of
//! blocks. The order differs from fio's.
//!
//! It is a generalised Feistel network (Black and Rogaway, "Ciphers with arbitrary finite domains",
//! 2002). The number is written as (left, right) in a `rows × columns` rectangle that is just large
//! enough. Keyed mixes of one half are added to the other half, alternately. Each step is
//! invertible, so the whole is a permutation of the rectangle. A result outside `0..count` is
//! mapped again until it falls inside, which preserves the permutation. The rectangle exceeds
//! `count` by less than `rows ≈ √count`, so repetitions are rare.

use readpath_core::splitmix;

/// A permutation of `0..count`, determined by its key.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    /// Number of elements, at least 1.
    count: u64,
    /// Number of rows of the rectangle that contains `count` positions: the left half of a
    /// number.
    rows: u64,
    /// Number of columns: the right half of a number.
    columns: u64,
    /// Selects the permutation.
    key: u64,
}

/// Number of half-rounds. Six leave no pattern that the tests below can detect. With four,
/// neighbours in small domains stay together too often.
const ROUNDS: u64 = 6;

impl Permutation {
    /// Creates a permutation of `0..count`, where `count` is at least 1.
    pub fn new(count: u64, key: u64) -> Permutation {
        assert!(count > 0, "a permutation of nothing has no elements to give");
        let rows = count.isqrt().max(1);
        Permutation { count, rows, columns: count.div_ceil(rows), key }
    }

    /// Returns the number at `index`. Both are in `0..count`.
    pub fn number_at(&self, index: u64) -> u64 {
        debug_assert!(index < self.count, "the index is below the count");
        let mut position = index;
        loop {
            position = self.apply_rounds(position);
            if position < self.count {
                return position;
            }
        }
    }

    /// Applies the network of rounds once to a position. Returns a position in the same rectangle
    /// of `rows` and `columns`.
    fn apply_rounds(&self, position: u64) -> u64 {
        let (mut left, mut right) = (position / self.columns, position % self.columns);
        for round in 0..ROUNDS {
            let key = self.key.wrapping_add(round.wrapping_mul(splitmix::STEP));
            if round % 2 == 0 {
                left = wrap_around(left + mixed(right ^ key, self.rows), self.rows);
            } else {
                right = wrap_around(right + mixed(left ^ key, self.columns), self.columns);
            }
        }
        left * self.columns + right
    }
}

/// Returns `sum` modulo `bound`, for a sum below twice the bound.
fn wrap_around(sum: u64, bound: u64) -> u64 {
    if sum >= bound { sum - bound } else { sum }
}

/// Returns a number below `bound` that depends on every bit of `input`: the high half of a product
/// instead of a remainder. `bound` is below 2^33, about the square root of the maximum count.
fn mixed(input: u64, bound: u64) -> u64 {
    ((u128::from(splitmix::mixed(input)) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each number occurs exactly once, for all small sizes and some odd large ones.
    #[test]
    fn each_number_comes_exactly_once() {
        for count in (1..200).chain([1_000, 4_095, 4_097, 65_537, 262_144]) {
            let order = Permutation::new(count, 0x5eed ^ count);
            let mut is_seen = vec![false; count as usize];
            for index in 0..count {
                let number = order.number_at(index) as usize;
                assert!(
                    !std::mem::replace(&mut is_seen[number], true),
                    "{number} twice of {count}"
                );
            }
        }
    }

    /// 10,000 numbers fall into the lower half 5,000 times, with a standard deviation of 50.
    #[test]
    fn permutation_of_the_largest_size_is_spread_evenly() {
        let order = Permutation::new(u64::MAX, 7);
        assert_ne!(order.number_at(0), order.number_at(1));
        let half = 1 << 63;
        let below = (0..10_000).filter(|index| order.number_at(*index) < half).count();
        assert!((4_700..5_300).contains(&below), "{below} of 10000 in the lower half");
    }

    /// In a random order of n numbers, one pair of neighbours (i, i + 1) is expected (n - 1
    /// positions with probability 1/n). Over 64 keys 64 pairs are expected, with a standard
    /// deviation of 8.
    #[test]
    fn neighbours_are_adjacent_no_more_often_than_by_chance() {
        let count = 4096;
        let neighbour_pairs: usize = (0..64)
            .map(|key| {
                let order = Permutation::new(count, key);
                let is_after_neighbour =
                    |index: &u64| order.number_at(index - 1) + 1 == order.number_at(*index);
                (1..count).filter(is_after_neighbour).count()
            })
            .sum();
        assert!((32..=96).contains(&neighbour_pairs), "{neighbour_pairs} neighbours");
    }

    /// Two random orders agree at one place on average.
    #[test]
    fn the_key_decides_the_order() {
        let (one, other) = (Permutation::new(1_000, 1), Permutation::new(1_000, 2));
        let is_equal = |index: &u64| one.number_at(*index) == other.number_at(*index);
        let equal = (0..1_000).filter(is_equal).count();
        assert!(equal < 10, "{equal} of 1000 at the same place");
    }
}
