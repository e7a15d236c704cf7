//! Seeded random numbers, with the same results on every machine.
//!
//! All arithmetic uses integers. A distribution is given by its quantiles with linear interpolation
//! between them, so no library's logarithm affects a result.

use readpath_core::splitmix;
use readpath_core::unit::Time;

/// A pseudo-random number generator based on [`splitmix`].
#[derive(Clone, Debug)]
pub struct SeededRng(u64);

impl SeededRng {
    /// Creates the generator for `seed`.
    pub const fn new(seed: u64) -> SeededRng {
        SeededRng(seed)
    }

    /// Returns 64 uniformly distributed bits.
    pub fn bits(&mut self) -> u64 {
        splitmix::next(&mut self.0)
    }

    /// Returns a number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns a random number from `min` to `max`, both inclusive. `max` is not below `min`, and
    /// the range is not the whole of 64 bits.
    pub fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.below(max - min + 1)
    }

    /// Returns true with probability 1 / `chances`.
    pub fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// A distribution of times, given by its quantiles.
#[derive(Clone, Debug)]
pub struct Quantiles {
    /// Cumulative probabilities in millionths, from 0 to 1,000,000, and times, nondecreasing.
    points: Vec<(u64, Time)>,
}

impl Quantiles {
    /// Creates the distribution through `points`: cumulative probabilities in millionths, strictly
    /// increasing from 0 to 1,000,000, and times.
    ///
    /// # Errors
    /// Returns the index of the first time that is smaller than its predecessor.
    ///
    /// # Panics
    /// Panics if the first probability is not 0 or the last one is not 1,000,000.
    pub fn new(points: Vec<(u64, Time)>) -> Result<Quantiles, usize> {
        assert!(points.first().is_some_and(|point| point.0 == 0), "the first quantile has share 0");
        assert!(
            points.last().is_some_and(|point| point.0 == 1_000_000),
            "the last quantile has share 1"
        );
        match points.windows(2).position(|pair| pair[1].1 < pair[0].1) {
            Some(index) => Err(index + 1),
            None => Ok(Quantiles { points }),
        }
    }

    /// Draws a random time from the distribution, which is linear between two quantiles.
    pub fn draw(&self, rng: &mut SeededRng) -> Time {
        // A cumulative probability in units of 10⁻¹², fine enough for the rarest interval.
        let drawn = rng.below(1_000_000_000_000);
        let next_index =
            self.points.partition_point(|(millionths, _)| millionths * 1_000_000 <= drawn);
        // The first point is at 0 and the last above every draw, so both neighbours exist.
        let (low_millionths, low_time) = self.points[next_index - 1];
        let (high_millionths, high_time) = self.points[next_index];
        let (low, high) = (low_millionths * 1_000_000, high_millionths * 1_000_000);
        let interval_ns = u128::from((high_time - low_time).ns());
        let offset_ns = interval_ns * u128::from(drawn - low) / u128::from(high - low);
        low_time + Time(offset_ns as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_times_match_the_given_quantiles() {
        let ms = Time::from_ms;
        let points = vec![(0, ms(10)), (500_000, ms(30)), (990_000, ms(100)), (1_000_000, ms(400))];
        let quantiles = Quantiles::new(points).unwrap();
        let mut rng = SeededRng::new(1);
        let times: Vec<Time> = (0..100_000).map(|_| quantiles.draw(&mut rng)).collect();
        // The tolerance of 0.5 % exceeds three standard deviations of the measured frequency.
        // 20 ms and 250 ms lie in the middle between two given points.
        for (limit, share) in [(ms(20), 0.25), (ms(30), 0.5), (ms(100), 0.99), (ms(250), 0.995)] {
            let measured = times.iter().filter(|&&time| time < limit).count() as f64 / 1e5;
            assert!((measured - share).abs() < 0.005, "{measured} against {share} below {limit}");
        }
        assert!(times.iter().all(|time| (ms(10)..=ms(400)).contains(time)));
    }

    /// The time at index 1, 4 ns, is less than the 5 ns before it.
    #[test]
    fn falling_quantiles_are_refused() {
        let points = vec![(0, Time(5)), (500_000, Time(4)), (1_000_000, Time(9))];
        assert_eq!(Quantiles::new(points).unwrap_err(), 1);
    }
}
