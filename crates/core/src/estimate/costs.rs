//! The three costs of a device, estimated together from each completed request.
//!
//! How it works: a device holds a request for its *latency*, which passes for many requests at the
//! same time. The device is *occupied* by each request that doesn't begin at the end of the one
//! before it, and by each *page*: by one after another. The duration of a request has three models:
//!
//! - at least its duration *alone*: the latency, its own occupation, and its pages;
//! - at least the *work* of the device until its completion: the occupation and the pages of all
//!   requests that completed meanwhile, itself included;
//! - and, if it took longer than both, the latency plus the work.
//!
//! Each of these is a linear combination of the three costs. The difference between the measured
//! duration and the sum corrects the costs. The largest corrections go to the costs with the
//! largest uncertainty and the largest coefficient (a Kalman filter). The initial standard
//! deviation of each cost is the duration of the first request; for a page it is four times its
//! initial cost. The measurement noise of a request is its expected duration, because a disk varies
//! by that much. Knowledge ages: each request restores a 4,096th of the initial variance, so that
//! the estimate follows a device that changes.
//!
//! Requests of different sizes thus separate the cost of pages from the cost of requests. Requests
//! with others in the device separate the occupation from the latency. While all have one size and
//! one queue depth, these can't be separated, and the initial assumption decides.

use crate::observed::{DECAY_WINDOW, MIN_SAMPLES};
use crate::unit::PAGE_BYTES;

/// Initial latency: 1 ms, between a solid-state drive and a disk.
const INITIAL_LATENCY_NS: u64 = 1_000_000;

/// Initial cost of a page, in picoseconds: 500 MB/s, a SATA link.
const INITIAL_PAGE_PS: u64 = PAGE_BYTES * 2_000;

/// Least initial cost of a request in pages: 64, or 256 KiB. The initial cost of a page is lowered
/// for it, at most to [`PAGE_PS_MIN`]: a device with short requests also has a high transfer rate.
const INITIAL_REQUEST_PAGES_MIN: u64 = 64;

/// Lowest cost of a page: 8 GB/s, four lanes of PCI Express 4.
const PAGE_PS_MIN: u64 = INITIAL_PAGE_PS / 16;

/// Largest duration, an hour: longer ones are clipped, to avoid overflow.
const DURATION_NS_MAX: u64 = 3_600_000_000_000;
/// Largest count of pages or requests: larger ones are clipped, to avoid overflow.
const COUNT_MAX: u64 = 1 << 30;

/// Indices of the three costs in all arrays of this module. The first is the latency, which passes
/// for many requests at the same time.
const LATENCY: usize = 0;
/// Time for which one discontiguous request occupies the device alone.
const SERVICE_TIME: usize = 1;
/// Time for which one page occupies the device alone.
const PAGE: usize = 2;

/// Fixed-point unit of covariances.
const COVARIANCE_UNIT: i128 = 1 << 40;
/// Fixed-point unit of the weights of one observation.
const WEIGHT_UNIT: i128 = 1 << 20;

/// Duration of a request, and the work of the device meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTiming {
    /// Time from its dispatch to its completion.
    pub duration_ns: u64,
    /// True if the request didn't begin at the end of the one before it.
    pub is_discontiguous: bool,
    /// Number of pages of the request itself.
    pub pages: u64,
    /// Number of requests completed until its completion, itself included, that didn't continue the
    /// one before.
    pub completed_jumps: u64,
    /// Number of pages of all requests completed until its completion, itself included.
    pub completed_pages: u64,
}

/// Estimates of latency, occupation per request, and occupation per page, in picoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceCosts {
    /// The current estimates.
    estimates: [i128; 3],
    /// Initial standard deviation of each cost, in picoseconds; 0 before the first request.
    initial_deviation: [i128; 3],
    /// Covariances, relative to the initial standard deviations, in units of 1/[`COVARIANCE_UNIT`].
    covariance: [[i128; 3]; 3],
}

impl Default for DeviceCosts {
    /// Initial costs in picoseconds, with independent uncertainties: the covariance is the unit
    /// matrix. No service time is assumed.
    fn default() -> DeviceCosts {
        let initial = [i128::from(INITIAL_LATENCY_NS) * 1_000, 0, i128::from(INITIAL_PAGE_PS)];
        let row_of_unit_matrix = |row: usize| {
            core::array::from_fn(|column| if row == column { COVARIANCE_UNIT } else { 0 })
        };
        DeviceCosts {
            estimates: initial,
            initial_deviation: [0; 3],
            covariance: core::array::from_fn(row_of_unit_matrix),
        }
    }
}

impl DeviceCosts {
    /// Duration of a single request without its pages, in picoseconds.
    pub(super) fn request_ps(&self) -> u64 {
        (self.estimates[LATENCY] + self.estimates[SERVICE_TIME]) as u64
    }

    /// Part of the duration of a request for which it occupies the device, in picoseconds.
    pub(super) fn service_ps(&self) -> u64 {
        self.estimates[SERVICE_TIME] as u64
    }

    /// Cost of a page at the device's best rate, in picoseconds; never 0.
    pub(super) fn page_ps(&self) -> u64 {
        self.estimates[PAGE] as u64
    }

    /// Updates the estimates by a completed request; the first one sets them. If its duration is
    /// below the sum of a model, only the larger model determines the coefficients; otherwise
    /// latency and work are added. The module describes the models.
    pub(super) fn observe(&mut self, timing: RequestTiming) {
        let duration_ps = i128::from(timing.duration_ns.clamp(1, DURATION_NS_MAX)) * 1_000;
        let [pages, completed_pages, completed_jumps] =
            [timing.pages, timing.completed_pages, timing.completed_jumps]
                .map(|count| i128::from(count.min(COUNT_MAX)));
        // The first request.
        if self.initial_deviation[PAGE] == 0 {
            return self.set_initial_costs(duration_ps, completed_pages);
        }
        // Coefficients of the latency, of the discontiguous requests, and of the pages.
        let alone_coefficients = [1, i128::from(timing.is_discontiguous), pages];
        let work_coefficients = [0, completed_jumps, completed_pages];
        let [alone_ps, work_ps] = [alone_coefficients, work_coefficients]
            .map(|coefficients| dot(coefficients, self.estimates));
        let coefficients = match duration_ps < alone_ps.max(work_ps) {
            true if alone_ps >= work_ps => alone_coefficients,
            true => work_coefficients,
            false => [1, completed_jumps, completed_pages],
        };
        self.apply_measurement(coefficients, duration_ps);
    }

    /// Sets the costs and their initial uncertainty from the duration of the first request, in
    /// picoseconds. `completed_pages` pages were completed meanwhile, its own included. The cost of
    /// a page is such that the rest of the duration is worth `INITIAL_REQUEST_PAGES_MIN` pages,
    /// within its bounds. The uncertainty of a page's cost is four times that cost (`MIN_SAMPLES`).
    fn set_initial_costs(&mut self, duration_ps: i128, completed_pages: i128) {
        let page_ps = duration_ps / (i128::from(INITIAL_REQUEST_PAGES_MIN) + completed_pages);
        let page_ps = page_ps.clamp(i128::from(PAGE_PS_MIN), i128::from(INITIAL_PAGE_PS));
        self.estimates = [(duration_ps - completed_pages * page_ps).max(0), 0, page_ps];
        self.initial_deviation = [duration_ps, duration_ps, i128::from(MIN_SAMPLES) * page_ps];
    }

    /// Updates the costs by one measurement (Kalman filter). The sum of the costs times
    /// `coefficients` was measured as `measured_ps` picoseconds.
    fn apply_measurement(&mut self, coefficients: [i128; 3], measured_ps: i128) {
        for cost in 0..3 {
            // The knowledge ages: a part of the initial variance is restored.
            let variance = &mut self.covariance[cost][cost];
            // It must stay positive, whatever the rounding.
            *variance = (*variance).max(1);
            // A 4,096th at each request, up to the initial variance.
            if *variance < COVARIANCE_UNIT {
                *variance += COVARIANCE_UNIT / i128::from(DECAY_WINDOW * DECAY_WINDOW);
            }
        }
        let expected_ps = dot(coefficients, self.estimates);
        // A disk varies by its expected duration. The sixteenth bounds the quotients below if the
        // expected duration is nearly zero.
        let noise_ps = expected_ps.max(measured_ps / 16);
        // Coefficients, scaled by the initial standard deviations relative to the noise.
        let weights: [i128; 3] = core::array::from_fn(|cost| {
            ((coefficients[cost] * self.initial_deviation[cost]) * WEIGHT_UNIT / noise_ps)
                // Bounds the products below, which must fit into 128 bits.
                .min(WEIGHT_UNIT << 30)
        });
        // Covariance of each cost with the measured sum, and variance of that sum with its noise.
        let shares = self.covariance.map(|row| dot(row, weights) / WEIGHT_UNIT);
        let total_variance = dot(weights, shares) / WEIGHT_UNIT + COVARIANCE_UNIT;
        let gains = shares.map(|share| share * COVARIANCE_UNIT / total_variance);
        // Each correction is its gain times the deviation of the measurement, in units of the
        // noise, times the initial standard deviation of the cost.
        for (cost, gain) in gains.into_iter().enumerate() {
            self.estimates[cost] += gain * (measured_ps - expected_ps) / noise_ps
                * self.initial_deviation[cost]
                / COVARIANCE_UNIT;
            for (other, share) in shares.into_iter().enumerate() {
                self.covariance[cost][other] -= gain * share / COVARIANCE_UNIT;
            }
        }
        self.keep_in_bounds();
    }

    /// Raises each estimate below its minimum to the minimum, and moves the others by their
    /// covariance with it.
    fn keep_in_bounds(&mut self) {
        // Only the cost of a page must stay positive, because callers divide by it.
        let minima = [0, 0, i128::from(PAGE_PS_MIN)];
        // The order is chosen. A divisor is never 0: the first request has set all deviations.
        for cost in [SERVICE_TIME, LATENCY, PAGE] {
            let shortfall = minima[cost] - self.estimates[cost];
            if shortfall <= 0 {
                continue;
            }
            for other in 0..3 {
                // The shortfall, multiplied by the share of the other cost in the uncertainty of
                // this one.
                let part =
                    shortfall * self.covariance[other][cost] / self.covariance[cost][cost].max(1);
                self.estimates[other] += part.saturating_mul(self.initial_deviation[other])
                    / self.initial_deviation[cost];
            }
        }
        // A later step may have lowered a cost that an earlier one had raised.
        self.estimates = core::array::from_fn(|cost| self.estimates[cost].max(minima[cost]));
    }
}

/// Scalar product of two vectors.
fn dot(left: [i128; 3], right: [i128; 3]) -> i128 {
    left[0] * right[0] + left[1] * right[1] + left[2] * right[2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix;

    /// Any input is accepted without overflow, and the costs stay in their range.
    #[test]
    fn any_request_keeps_the_costs_in_range() {
        for seed in 0..50 {
            let (mut costs, mut state) = (DeviceCosts::default(), seed);
            // A random number of 1 to `bits` random bits.
            let mut random_bits = |bits: u64| {
                let bits_less_1 = splitmix::next(&mut state) % bits;
                splitmix::next(&mut state) >> (63 - bits_less_1)
            };
            for _ in 0..2_000 {
                let (pages, completed_jumps) = (random_bits(24), random_bits(40));
                let completed_pages = pages + random_bits(40);
                let is_discontiguous = completed_jumps % 2 == 1;
                let duration_ns = random_bits(64);
                costs.observe(RequestTiming {
                    duration_ns,
                    is_discontiguous,
                    pages,
                    completed_jumps,
                    completed_pages,
                });
                assert!(costs.page_ps() >= PAGE_PS_MIN, "{costs:?}");
                assert!(costs.request_ps() >= costs.service_ps(), "{costs:?}");
                assert!(costs.request_ps() < 100 * DURATION_NS_MAX * 1_000, "{costs:?}");
            }
        }
    }

    /// The second request, alone as the first, took 3 ms for 17 pages. Expected: 991,808 ns of
    /// latency, 17 times 8,192 and no occupation, 1,131,072 ns in all; 1,868,928 less than
    /// measured. Standard deviations: latency and occupation 1 ms each, a page 32,768 ns,
    /// 557,056 in all; the noise is the expected duration. The latency gets the share `10^12 /
    /// (2 x 10^12 + 557,056^2 + 1,131,072^2)` = 0.2786 of the difference, 520.6 us. The
    /// occupation gets as much, and a page 9,504 ns.
    #[test]
    fn prediction_error_is_divided_in_proportion_to_the_variances() {
        let mut costs = DeviceCosts::default();
        let timing_alone = |duration_ns, pages| RequestTiming {
            duration_ns,
            is_discontiguous: true,
            pages,
            completed_jumps: 1,
            completed_pages: pages,
        };
        costs.observe(timing_alone(1_000_000, 1));
        assert_eq!([costs.request_ps(), costs.page_ps()], [991_808_000, 8_192_000]);
        costs.observe(timing_alone(3_000_000, 17));
        let assert_within_1_percent = |value: u64, expected: u64| {
            assert!(value.abs_diff(expected) <= expected / 100, "{value} for {expected}");
        };
        assert_within_1_percent(costs.service_ps(), 520_600_000);
        assert_within_1_percent(costs.request_ps() - costs.service_ps(), 991_808_000 + 520_600_000);
        assert_within_1_percent(costs.page_ps(), 8_192_000 + 9_504_000);
    }
}
