//! Estimate of the device's rate for sequential requests.
//!
//! Dispatched sectors are counted over intervals of a second. The rate of an interval counts if
//! most of its requests were sequential, or if it is above the estimate. The more sequential, and
//! the longer the interval, the more it weighs.

use crate::unit::Time;

/// Binary digits after the point of a rate in sectors per microsecond.
pub(super) const RATE_BITS: u32 = 16;

/// Reference rates in sectors per microsecond, with [`RATE_BITS`] digits after the point: of a disk
/// (109 MB/s) and of solid-state storage (258 MB/s). The initial estimate is two thirds of it.
pub(super) const REFERENCE_RATE: [u64; 2] = [14_000, 33_000];

/// Length of an observation interval.
const INTERVAL: Time = Time::from_s(1);

/// Shortest interval that counts. A pause may end an interval early.
const INTERVAL_MIN: Time = Time::from_ms(300);

/// Least number of requests of an interval that counts.
const REQUESTS_MIN: u64 = 32;

/// Pause of the device that ends an interval.
const PAUSE: Time = Time::from_ms(100);

/// Time after the last completion in which an empty device counts as busy.
const BUSY_GAP: Time = Time::from_ms(2);

/// Highest credible rate: 20 sectors per microsecond, 10 GB/s.
const RATE_MAX: u64 = 20 << RATE_BITS;

/// The estimate, and the counts of the present interval.
#[derive(Debug)]
pub(super) struct PeakRate {
    /// The estimate in sectors per microsecond, with [`RATE_BITS`] digits after the point.
    rate: u64,
    /// Time of the first dispatch in this interval.
    first_dispatch: Time,
    last_dispatch: Time,
    last_completion: Time,
    /// Number of requests dispatched in this interval; 0 only before the first request of all.
    requests: u64,
    /// Number of requests near the one before, dispatched while the device was busy.
    sequential: u64,
    /// Number of sectors of all requests of this interval, sequential or not.
    sectors: u64,
}

impl PeakRate {
    pub(super) fn new(is_rotational: bool) -> PeakRate {
        PeakRate {
            rate: REFERENCE_RATE[usize::from(!is_rotational)] * 2 / 3,
            first_dispatch: Time::ZERO,
            last_dispatch: Time::ZERO,
            last_completion: Time::ZERO,
            requests: 0,
            sequential: 0,
            sectors: 0,
        }
    }

    /// The estimate in sectors per microsecond, with [`RATE_BITS`] digits after the point.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    /// Number of sectors that the device moves in `time` at this rate.
    pub(super) fn sectors_in(&self, time: Time) -> u64 {
        (self.rate * (time.ns() / 1_000)) >> RATE_BITS
    }

    /// Records a dispatched request of `sectors` sectors. `is_far` is true if it is far from the
    /// request before it. `in_device` is the number of requests in the device before.
    ///
    /// The interval ends with the first request after [`INTERVAL`], which still counts in it. It
    /// also ends before a request to an empty device, more than [`PAUSE`] after the last dispatch.
    /// The estimate is then updated, and the next interval begins with this request, which is not
    /// sequential in it. The very first request only begins an interval.
    pub(super) fn on_dispatch(&mut self, now: Time, sectors: u64, is_far: bool, in_device: u32) {
        let was_idle = in_device == 0 && now.since(self.last_dispatch) > PAUSE;
        if self.requests > 0 && !was_idle {
            self.requests += 1;
            self.sectors += sectors;
            let is_busy = in_device > 0 || now.since(self.last_completion) < BUSY_GAP;
            self.sequential += u64::from(is_busy && !is_far);
            self.last_dispatch = now;
            if now.since(self.first_dispatch) < INTERVAL {
                return;
            }
        }
        self.end_interval();
        (self.first_dispatch, self.last_dispatch) = (now, now);
        (self.requests, self.sequential, self.sectors) = (1, 0, sectors);
    }

    /// Records the completion of a request at `now`. It may extend the time of the interval.
    pub(super) fn on_completion(&mut self, now: Time) {
        self.last_completion = now;
    }

    /// Updates the estimate by the rate of the interval, of at most `RATE_MAX`: a higher one is not
    /// credible. At least three quarters sequential requests count as most. No effect if the
    /// interval is too short, has too few requests, or is no evidence of the peak rate.
    fn end_interval(&mut self) {
        let dispatching = self.last_dispatch.since(self.first_dispatch);
        if self.requests < REQUESTS_MIN || dispatching < INTERVAL_MIN {
            return;
        }
        let time = dispatching.max(self.last_completion.since(self.first_dispatch));
        let rate = (self.sectors << RATE_BITS) / (time.ns() / 1_000);
        let is_sequential = self.sequential * 4 >= self.requests * 3;
        // A device reaches its peak rate only with sequential requests. A rate above the estimate
        // is evidence in any order.
        if rate > RATE_MAX || !is_sequential && rate <= self.rate {
            return;
        }
        let weight = 9 * self.sequential / self.requests * time.ns() / INTERVAL.ns();
        // The weight of the new rate is 1/2 if at least 8 of 9 requests were sequential over a
        // second, and at least 1/10.
        let divisor = 10 - weight.min(8);
        self.rate = (self.rate * (divisor - 1) / divisor + rate / divisor).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that takes 2 ms for each of these requests. Returns the estimate after `seconds`.
    fn rate_after(sectors: u64, is_far: bool, seconds: u64) -> u64 {
        let mut peak = PeakRate::new(true);
        for ms in (0..=seconds * 1_000).step_by(2) {
            peak.on_completion(Time::from_ms(ms));
            peak.on_dispatch(Time::from_ms(ms), sectors, is_far, 1);
        }
        peak.rate()
    }

    /// The initial estimate is 14,000 × 2/3 = 9,333. 500 sectors in 2 ms are 0.25 in a microsecond:
    /// 16,384; counting the first of 501 requests, 16,416. All but the first are near: weight 9 ×
    /// 500 / 501 = 8. After a second (9,333 + 16,416) / 2, rounded down each.
    #[test]
    fn sequential_requests_move_the_estimate_by_half() {
        assert_eq!(rate_after(500, false, 0), 9_333);
        assert_eq!(rate_after(500, false, 1), 4_666 + 8_208);
    }

    /// Far requests at a low rate are no evidence. At a high rate they are, with weight 0: a tenth.
    #[test]
    fn far_requests_count_only_above_the_estimate() {
        assert_eq!(rate_after(100, true, 3), 9_333);
        assert_eq!(rate_after(500, true, 1), 9_333 * 9 / 10 + 1_641);
    }

    /// 26 requests a second are too few.
    #[test]
    fn few_requests_are_no_evidence() {
        let mut peak = PeakRate::new(true);
        for ms in (0..3_000).step_by(40) {
            peak.on_dispatch(Time::from_ms(ms), 10_000, false, 1);
        }
        assert_eq!(peak.rate(), 9_333);
    }
}
