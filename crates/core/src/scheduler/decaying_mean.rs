//! A decaying average in fixed point, as `cfq` and `bfq` have it for think times.

/// Fixed-point weight of one sample in a decaying average of 7/8: 32, 60, 84, … after one, two,
/// three samples.
const SAMPLE: u64 = 256;

/// Weight above which an average is valid: from the third sample on.
const SAMPLES_VALID: u64 = 80;

/// A decaying average: each sample weighs 1/8, all earlier ones 7/8.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DecayingMean {
    /// Decayed weight of the samples, at most [`SAMPLE`].
    samples: u64,
    /// Decayed sum of the values, times [`SAMPLE`].
    total: u64,
}

impl DecayingMean {
    /// Adds a sample to the decaying mean: a distance in sectors, or a think time.
    pub(super) fn add(&mut self, value: u64) {
        self.samples = (7 * self.samples + SAMPLE) / 8;
        self.total = (7 * self.total + SAMPLE * value) / 8;
    }

    /// Decayed weight of the samples: 32, 60, 84, … after one, two, three samples; at most 256.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the average, 0 before the first sample. `rounding` is added to the total before the
    /// division: half of the weight rounds to the nearest number.
    pub(super) fn mean_with_rounding(&self, rounding: u64) -> u64 {
        (self.total + rounding).checked_div(self.samples).unwrap_or(0)
    }

    /// The average, rounded as the kernel does it for think times: always by half a full weight, so
    /// that averages of few samples are too large.
    pub(super) fn mean(&self) -> u64 {
        self.mean_with_rounding(SAMPLE / 2)
    }

    /// Returns true if there were at least three samples.
    pub(super) fn is_valid(&self) -> bool {
        self.samples > SAMPLES_VALID
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Three samples of 8.
    #[test]
    fn decaying_mean_is_valid_from_the_third_sample() {
        let mut mean = DecayingMean::default();
        let samples: Vec<_> = (0..3)
            .map(|_| {
                mean.add(8);
                (mean.samples, mean.mean(), mean.is_valid())
            })
            .collect();
        // 256/8 = 32; (7*32+256)/8 = 60; (7*60+256)/8 = 84. Total: 256, 480, 676. (256+128)/32 =
        // 12; (480+128)/60 = 10; (676+128)/84 = 9.
        assert_eq!(samples, [(32, 12, false), (60, 10, false), (84, 9, true)]);
    }
}
