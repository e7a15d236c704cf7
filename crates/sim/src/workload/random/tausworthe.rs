//! L'Ecuyer's combined Tausworthe generators.
//!
//! `taus88` has three registers of 32 bits: P. L'Ecuyer, "Maximally equidistributed combined
//! Tausworthe generators", Mathematics of Computation 65 (1996), 203–213. `taus258` has five
//! registers of 64 bits: P. L'Ecuyer, "Tables of maximally equidistributed combined LFSR
//! generators", Mathematics of Computation 68 (1999), 261–269. Register `s` becomes `((s & mask) <<
//! left) ^ (((s << shift) ^ s) >> right)`, and the output is the exclusive or of all registers.
//!
//! The registers are initialised as in fio, by a congruential generator with the multiplier 69,069
//! or 6,906,969,069. Each is at least as large as the papers demand. The first six outputs are
//! discarded.

/// One register: shift, right, mask, left, and minimum initial value.
type Register<T> = (u32, u32, T, u32, T);

/// Registers of `taus88`.
const TAUS88: [Register<u32>; 3] = [(13, 19, !1, 12, 1), (2, 25, !7, 4, 7), (3, 11, !15, 17, 15)];

/// Registers of `taus258`.
const TAUS258: [Register<u64>; 5] = [
    (1, 53, !1, 10, 1),
    (24, 50, !0x1ff, 5, 7),
    (3, 23, !0xfff, 29, 15),
    (5, 24, !0x1_ffff, 23, 33),
    (3, 33, !0x7f_ffff, 8, 49),
];

/// Initial value of the congruential generator.
const SEED_START: u64 = 53;

/// Number of outputs discarded at the start.
const DISCARDED_OUTPUTS: u32 = 6;

/// The 32-bit generator.
#[derive(Clone, Copy, Debug)]
pub struct Taus88([u32; 3]);

/// The 64-bit generator.
#[derive(Clone, Copy, Debug)]
pub struct Taus258([u64; 5]);

impl Taus88 {
    /// Creates a generator from the lower 32 bits of the seed.
    pub fn new(seed: u64) -> Taus88 {
        let seed = seed as u32;
        let mut last = SEED_START as u32;
        let registers = TAUS88.map(|(.., value_min)| {
            let value = last.wrapping_mul(69_069) ^ seed;
            last = if value < value_min { value + value_min } else { value };
            last
        });
        let mut generator = Taus88(registers);
        (0..DISCARDED_OUTPUTS).for_each(|_| {
            generator.next();
        });
        generator
    }

    /// Returns the next 32 bits.
    pub fn next(&mut self) -> u32 {
        let mut output = 0;
        for (register, (shift, right, mask, left, _)) in self.0.iter_mut().zip(TAUS88) {
            let s = *register;
            *register = ((s & mask) << left) ^ (((s << shift) ^ s) >> right);
            output ^= *register;
        }
        output
    }

    /// Draws a number below `bound` by a product in double precision: fio's rounding is a part of
    /// the sequence.
    pub fn below(&mut self, bound: u64) -> u64 {
        (bound as f64 * (f64::from(self.next()) / (f64::from(u32::MAX) + 1.0))) as u64
    }

    /// Returns true with a probability of `percent`.
    pub fn draw_percent(&mut self, percent: u8) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// Draws a number from 0 to 1.
    pub fn draw_unit(&mut self) -> f64 {
        f64::from(self.next()) / f64::from(u32::MAX)
    }
}

impl Taus258 {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Taus258 {
        let mut last = SEED_START;
        let registers = TAUS258.map(|(.., value_min)| {
            let value = last.wrapping_mul(6_906_969_069) ^ seed;
            last = if value < value_min { value + value_min } else { value };
            last
        });
        let mut generator = Taus258(registers);
        (0..DISCARDED_OUTPUTS).for_each(|_| {
            generator.next();
        });
        generator
    }

    /// Returns the next 64 bits.
    pub fn next(&mut self) -> u64 {
        let mut output = 0;
        for (register, (shift, right, mask, left, _)) in self.0.iter_mut().zip(TAUS258) {
            let s = *register;
            *register = ((s & mask) << left) ^ (((s << shift) ^ s) >> right);
            output ^= *register;
        }
        output
    }

    /// Draws a number below `bound`, as [`Taus88::below`] does. A double does not hold 64 bits: a
    /// draw near the maximum is rounded up to a share of 1, and its result must be limited.
    pub fn below(&mut self, bound: u64) -> u64 {
        let two_to_64 = 18_446_744_073_709_551_616.0;
        let share = self.next() as f64 / two_to_64;
        ((bound as f64 * share) as u64).min(bound.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first blocks below 4096 that fio 3.33 reads with `rw=randread bs=4k size=16m
    /// norandommap`, from its own trace. The seed is fio's for positions in repeatable runs.
    #[test]
    fn taus88_draws_the_blocks_of_fio() {
        let position_seed = 0xb189_9bed;
        let mut generator = Taus88::new(position_seed);
        let blocks: Vec<u64> = (0..8).map(|_| generator.below(4096)).collect();
        assert_eq!(blocks, [247, 3032, 3453, 1925, 1646, 3441, 1558, 1448]);
    }

    /// The mean of 10,000 draws from 0 to 1 is 0.5, with a standard deviation of 0.29 / √10000 =
    /// 0.003. The tolerance is four of them.
    #[test]
    fn draws_are_spread_evenly() {
        let (mut small, mut large) = (Taus88::new(1), Taus258::new(1));
        let bound = 1 << 20;
        let means = [
            (0..10_000).map(|_| small.below(bound) as f64).sum::<f64>() / 1e4,
            (0..10_000).map(|_| large.below(bound) as f64).sum::<f64>() / 1e4,
        ];
        for mean in means {
            assert!((mean / bound as f64 - 0.5).abs() < 0.012, "{mean}");
        }
    }
}
