//! A random order of `0..count` in constant memory.
//!
//! fio marks in a bitmap which blocks a random pass has taken. Here the pass
//! walks a *permutation* instead: number `i` of the pass is block `at(i)`, each
//! exactly once, however many there are. The order is not fio's own.
//!
//! The law is a generalised Feistel network (Black and Rogaway, "Ciphers with
//! arbitrary finite domains", 2002): write the number as (left, right) in a
//! `rows × columns` rectangle that is only just large enough, and add a keyed
//! mix of one half to the other, by turns. Each such step can be undone, so the
//! whole is a permutation of the rectangle. A result outside `0..count` goes
//! through again, until it falls inside; that keeps it a permutation of
//! `0..count`. The rectangle is less than `rows ≈ √count` too large, so this
//! second walk is rare.

/// A permutation of `0..count`, fixed by its key.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    count: u64,
    rows: u64,
    columns: u64,
    key: u64,
}

/// Six half-rounds leave no pattern that the tests below can see; four leave
/// neighbours of small domains too often together.
const ROUNDS: u64 = 6;

impl Permutation {
    /// A permutation of `0..count`; `count` is at least 1.
    pub fn new(count: u64, key: u64) -> Permutation {
        assert!(count > 0, "a permutation of nothing has no elements to give");
        let rows = count.isqrt().max(1);
        Permutation { count, rows, columns: count.div_ceil(rows), key }
    }

    /// How many numbers it orders.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The number at `index`; both lie in `0..count`.
    pub fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.count, "the index is below the count");
        let mut number = index;
        loop {
            number = self.once(number);
            if number < self.count {
                return number;
            }
        }
    }

    fn once(&self, number: u64) -> u64 {
        let (mut left, mut right) = (number / self.columns, number % self.columns);
        for round in 0..ROUNDS {
            let key = self.key.wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            if round % 2 == 0 {
                left = wrapped(left + mixed(right ^ key, self.rows), self.rows);
            } else {
                right = wrapped(right + mixed(left ^ key, self.columns), self.columns);
            }
        }
        left * self.columns + right
    }
}

/// `sum` modulo `bound`, for a sum below twice the bound.
fn wrapped(sum: u64, bound: u64) -> u64 {
    if sum >= bound { sum - bound } else { sum }
}

/// A number below `bound` that depends on every bit of `input`: the finishing
/// steps of splitmix64 (Steele, Lea, Flood, 2014), then a multiplication in
/// place of a division. `bound` is below 2^33, the root of the largest count.
fn mixed(input: u64, bound: u64) -> u64 {
    let input = (input ^ (input >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let input = (input ^ (input >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((u128::from(input ^ (input >> 31)) * u128::from(bound)) >> 64) as u64
}
