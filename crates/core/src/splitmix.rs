//! SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): numbers that look random, from a seed, and the
//! same on every machine. Models of devices, generators of loads and tests draw from it; no
//! decision of the core does.

/// How far the state moves on with each number: 2^64 divided by the golden ratio, odd.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The next number of the sequence whose state is `state`, at first the seed.
pub const fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    mixed(*state)
}

/// The finishing steps: a number that depends on every bit of `state`.
pub const fn mixed(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
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
}
