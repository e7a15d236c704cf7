//! How late answers were: a histogram with steps of 2 % and a fixed size.

use readpath_core::unit::Time;

/// Steps in each doubling.
const STEPS_BITS: u32 = 5;

/// Counts by lateness, from a nanosecond to centuries.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    counts: Vec<u64>,
    count: u64,
    max: Time,
}

impl Lateness {
    /// One answer was so late.
    pub fn add(&mut self, late: Time) {
        let step = step_of(late.ns());
        if self.counts.len() <= step {
            self.counts.resize(step + 1, 0);
        }
        self.counts[step] += 1;
        self.count += 1;
        self.max = self.max.max(late);
    }

    /// How many answers there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The latest of all.
    pub fn max(&self) -> Time {
        self.max
    }

    /// So late, or less, were `percent` of them; to about 2 %. `None` when there was none.
    pub fn percentile(&self, percent: u64) -> Option<Time> {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let step = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(Time(least_of(step + 1) - 1).min(self.max))
    }
}

/// The step of a value: its leading bits.
fn step_of(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(STEPS_BITS + 1);
    ((u64::from(shift) << STEPS_BITS) + (value >> shift)) as usize
}

/// The least value of a step.
fn least_of(step: usize) -> u64 {
    let step = step as u64;
    let shift = (step >> STEPS_BITS).saturating_sub(1);
    (step - (shift << STEPS_BITS)) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_step_of_the_sorted_values() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.percentile(50), None);
        for us in 1..=1_000 {
            lateness.add(Time::from_us(us));
        }
        for (percent, us) in [(50, 500.0), (99, 990.0), (100, 1_000.0)] {
            let told = lateness.percentile(percent).unwrap().ns() as f64 / 1e3;
            assert!((told / us - 1.0).abs() < 0.032, "{told} against {us}");
        }
        assert_eq!((lateness.count(), lateness.max()), (1_000, Time::from_ms(1)));
    }

    #[test]
    fn every_value_is_in_the_step_that_says_so() {
        for value in (0..5_000).chain([u64::MAX / 2, 1 << 40, (1 << 40) + 12_345]) {
            let step = step_of(value);
            assert!((least_of(step)..least_of(step + 1)).contains(&value), "{value} in {step}");
        }
    }
}
