//! Latencies of a domain (the reads, or the writes) in buckets, and their percentiles.

use crate::unit::Time;

/// Number of buckets up to the target: each is a quarter of it.
pub(super) const GOOD_BUCKETS: u32 = 4;

/// Number of buckets. The last one also has all latencies above twice the target.
const BUCKETS: usize = 2 * GOOD_BUCKETS as usize;

/// Number of samples from which a percentile is computed at once, as in Linux.
const SAMPLES_MIN: u64 = 500;

/// Time after which a percentile of fewer samples is computed, as in Linux.
const SAMPLE_TIME: Time = Time::from_s(1);

/// Histogram of one kind of latency.
///
/// Bucket 0 has latencies up to a quarter of the target, bucket 3 those from three quarters to the
/// target, and bucket 7 those above seven quarters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LatencyHistogram {
    /// Number of samples in each bucket.
    buckets: [u64; BUCKETS],
    /// Time at which fewer than [`SAMPLES_MIN`] samples are enough. `None` until the first period
    /// with samples has ended.
    enough_at: Option<Time>,
}

impl LatencyHistogram {
    /// Adds a latency to its bucket: the quarters of `target`, each with its upper end.
    pub(super) fn add(&mut self, latency: Time, target: Time) {
        // A target below 4 ns still has a quarter to divide by.
        let quarter_ns = (target.ns() / u64::from(GOOD_BUCKETS)).max(1);
        let bucket = latency.ns().saturating_sub(1) / quarter_ns;
        self.buckets[(bucket as usize).min(BUCKETS - 1)] += 1;
    }

    /// Returns the bucket (0 to 7) with the percentile `percent` (0 to 100), and then drops all
    /// samples and the time `enough_at`. `at` is the end of a period. `None` while there are too
    /// few samples: they stay, and count in the next period as well. `enough_at` is set by the
    /// first period with a sample.
    pub(super) fn take_percentile(&mut self, at: Time, percent: u64) -> Option<u32> {
        let samples: u64 = self.buckets.iter().sum();
        if samples == 0 {
            return None;
        }
        let enough_at = *self.enough_at.get_or_insert(at + SAMPLE_TIME);
        if samples < SAMPLES_MIN && at < enough_at {
            return None;
        }
        // Number of samples up to the percentile, less the samples of the buckets before.
        let mut rest = (samples * percent).div_ceil(100);
        let bucket = self.buckets.iter().position(|&count| {
            let is_reached = count >= rest;
            rest = rest.saturating_sub(count);
            is_reached
        });
        *self = LatencyHistogram::default();
        bucket.map(|bucket| bucket as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a target of 2 ms a bucket has 0.5 ms, its upper end included.
    #[test]
    fn percentiles_name_the_quarter_of_the_target() {
        let percentile_of = |latencies_us: &[u64], percent| {
            let mut histogram = LatencyHistogram::default();
            for &us in latencies_us {
                histogram.add(Time::from_us(us), Time::from_ms(2));
            }
            let _ = histogram.take_percentile(Time::ZERO, percent);
            histogram.take_percentile(SAMPLE_TIME, percent)
        };
        assert_eq!(percentile_of(&[500], 99), Some(0));
        assert_eq!(percentile_of(&[501], 99), Some(1));
        assert_eq!(percentile_of(&[2_000], 99), Some(3));
        assert_eq!(percentile_of(&[100_000], 99), Some(7));
        // Nine of ten are good: the 90th percentile is, and the 99th is the tenth sample.
        let nine_good = [100, 100, 100, 100, 100, 100, 100, 100, 100, 3_000];
        assert_eq!(
            (percentile_of(&nine_good, 90), percentile_of(&nine_good, 99)),
            (Some(0), Some(5))
        );
    }

    #[test]
    fn percentile_needs_500_samples_or_a_second() {
        let mut histogram = LatencyHistogram::default();
        assert_eq!(histogram.take_percentile(Time::ZERO, 90), None, "no sample");
        histogram.add(Time::from_ms(1), Time::from_ms(2));
        assert_eq!(histogram.take_percentile(Time::from_ms(100), 90), None);
        assert_eq!(histogram.take_percentile(Time::from_ms(1_000), 90), None);
        assert_eq!(histogram.take_percentile(Time::from_ms(1_100), 90), Some(1));
        (0..500).for_each(|_| histogram.add(Time::from_ms(1), Time::from_ms(2)));
        assert_eq!(histogram.take_percentile(Time::from_ms(1_200), 90), Some(1));
        assert_eq!(histogram.take_percentile(Time::from_ms(1_300), 90), None, "dropped");
    }
}
