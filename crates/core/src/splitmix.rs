//! SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): pseudo-random numbers from a seed, identical on
//! every machine. Device models, load generators and tests use it; no decision of the core does.
//! Hash tables spread their keys with the same step.

/// Increment of the state for each number: 2^64 divided by the golden ratio, odd.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The next number of the sequence with the state `state`, initially the seed.
pub const fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    mixed(*state)
}

/// The finalizer of SplitMix64: a number that depends on every bit of `state`.
pub const fn mixed(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Hashes a value by two products (Fibonacci hashing, Knuth 6.4, twice), for tables that use the
/// high bits. After one product, strides that are powers of two leave only a few patterns in the
/// high bits.
#[inline]
pub const fn spread(value: u64) -> u64 {
    let product = value.wrapping_mul(STEP);
    (product ^ product >> 32).wrapping_mul(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first values for seed 1234567, as published with the reference code.
    #[test]
    fn draws_follow_the_published_first_values() {
        let mut state = 1_234_567;
        assert_eq!(next(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(next(&mut state), 3_203_168_211_198_807_973);
    }

    /// For 4,096 numbers a power of two apart, the high bits fill more than half of 4,096
    /// positions, as random numbers would (63 %).
    #[test]
    fn strides_that_are_powers_of_two_are_spread_as_if_at_random() {
        for stride_log2 in [0, 9, 18, 30, 40, 52] {
            let position = |number: u64| spread(number << stride_log2) >> (u64::BITS - 12);
            let filled: alloc::collections::BTreeSet<u64> = (0..4096).map(position).collect();
            assert!(filled.len() > 4096 / 2, "2^{stride_log2}: {}", filled.len());
        }
    }
}
