//! Each number below a bound once, in a pseudo-random order, without a map.
//!
//! A linear feedback shift register of `n` bits passes through all of its `2^n` states except one.
//! The smallest register that holds all numbers is used, and larger states are skipped. The
//! feedback is inverted (XNOR), so zero is a normal state and all ones is the omitted one. Each
//! step shifts right by one. The bit that falls out enters at the top. If it is zero, the bits at
//! the other taps are inverted (Galois form).
//!
//! The taps are from the usual table of registers of full length (P. Alfke, "Efficient Shift
//! Registers, LFSR Counters, and Long Pseudo-Random Sequence Generators", Xilinx XAPP 052, 1996).

/// Taps of registers of 3 bits and more, one row per number of bits, without the top one. The
/// lowest bit is tap 1.
const TAPS: [&[u32]; 46] = [
    &[2],
    &[3],
    &[3],
    &[5],
    &[6],
    &[6, 5, 4],
    &[5],
    &[7],
    &[9],
    &[6, 4, 1],
    &[4, 3, 1],
    &[5, 3, 1],
    &[14],
    &[15, 13, 4],
    &[14],
    &[11],
    &[6, 2, 1],
    &[17],
    &[19],
    &[21],
    &[18],
    &[23, 22, 17],
    &[22],
    &[6, 2, 1],
    &[5, 2, 1],
    &[25],
    &[27],
    &[6, 4, 1],
    &[28],
    &[31, 29, 1],
    &[20],
    &[27, 2, 1],
    &[33],
    &[25],
    &[5, 4, 3, 2, 1],
    &[6, 5, 1],
    &[35],
    &[38, 21, 19],
    &[38],
    &[41, 20, 19],
    &[42, 38, 37],
    &[43, 18, 17],
    &[44, 42, 41],
    &[45, 26, 25],
    &[42],
    &[47, 21, 20],
];

/// Minimum number of bits of a register: the first row of the taps.
const BITS_MIN: u32 = 3;

/// Maximum bound: a register of 48 bits, the last row of the taps, without its state of all ones.
pub const BOUND_MAX: u64 = (1 << 48) - 2;

/// Iterator over the numbers below a bound, in the order of a register's states.
#[derive(Clone, Copy, Debug)]
pub struct Lfsr {
    /// Present state. It is a number of the order if it is below `bound`.
    state: u64,
    /// All numbers are below it.
    bound: u64,
    /// Number of numbers returned since the last start.
    returned_count: u64,
    /// Mask of the highest bit.
    top_mask: u64,
    /// Mask of the other taps.
    tap_mask: u64,
}

impl Lfsr {
    /// Creates the order of the numbers below `bound`, starting two steps after the state `seed`.
    /// Returns `None` above [`BOUND_MAX`].
    pub fn new(bound: u64, seed: u64) -> Option<Lfsr> {
        if bound > BOUND_MAX {
            return None;
        }
        // The state of all ones is no number. A bound of `2^n - 1` gets one bit more than it needs.
        let bits = (BITS_MIN..).find(|bits| 1 << bits > bound + 1)?;
        let taps = TAPS[(bits - BITS_MIN) as usize];
        let tap_mask = taps.iter().fold(0, |mask, tap| mask | 1 << (tap - 1));
        let mut lfsr =
            Lfsr { state: 0, bound, returned_count: 0, top_mask: 1 << (bits - 1), tap_mask };
        lfsr.restart(seed);
        lfsr.step();
        Some(lfsr)
    }

    /// Restarts one step after the state `seed`: one step earlier than initially, as in fio. Only
    /// the low bits of `seed` that fit the register count.
    pub fn restart(&mut self, seed: u64) {
        let all_ones = (self.top_mask << 1) - 1;
        self.state = seed & all_ones;
        if self.state == all_ones {
            self.state = 0; // the state of all ones never changes
        }
        self.returned_count = 0;
    }

    /// Advances the register by one state.
    fn step(&mut self) {
        let is_zero = self.state & 1 == 0;
        self.state = self.state >> 1 ^ if is_zero { self.tap_mask } else { self.top_mask };
    }

    /// Returns the next number, or `None` after all numbers. Skips the states from `bound` on.
    pub fn next(&mut self) -> Option<u64> {
        if self.returned_count == self.bound {
            return None;
        }
        self.returned_count += 1;
        loop {
            self.step();
            if self.state < self.bound {
                return Some(self.state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// fio 3.33 with `ioengine=null rw=randread bs=4k random_generator=lfsr` on 4, 8 and 133
    /// blocks.
    #[test]
    fn lfsr_order_matches_fio() {
        let position_seed = 0xb189_9bed;
        let order = |count, length_max| {
            let mut lfsr = Lfsr::new(count, position_seed).unwrap();
            std::iter::from_fn(move || lfsr.next()).take(length_max).collect::<Vec<u64>>()
        };
        assert_eq!(order(4, 9), [1, 0, 2, 3]);
        assert_eq!(order(8, 9), [3, 2, 5, 1, 0, 4, 6, 7]);
        assert_eq!(order(133, 12), [67, 80, 16, 48, 32, 40, 44, 46, 47, 65, 104, 12]);
    }

    /// Each number occurs once. A register has full length only with the right taps, so this also
    /// checks the taps of up to 20 bits.
    #[test]
    fn each_number_comes_once() {
        for count in (1..70).chain((6..20).map(|bits| (1 << bits) + 1)) {
            let mut lfsr = Lfsr::new(count, 77).unwrap();
            let mut is_seen = vec![false; count as usize];
            while let Some(number) = lfsr.next() {
                assert!(!std::mem::replace(&mut is_seen[number as usize], true), "{number} twice");
            }
            assert!(is_seen.iter().all(|is_seen| *is_seen), "all of {count}");
        }
        assert!(Lfsr::new(BOUND_MAX + 1, 0).is_none());
    }
}
