//! The three costs of a device, learned together from each request that comes back.
//!
//! The law in words. A device keeps a request for its *latency*, which passes for many requests at a time. It is *occupied* for a
//! while by each request that doesn't begin where the one before it ended, and by each *page*: by one after the other. So a request takes
//!
//! - no less than it would take *alone*: the latency, what it occupies, and its pages;
//! - no less than what the device *did* until it was back: what all that came back meanwhile occupied, itself among them, and their pages;
//! - and, where it took more than both, the latency and what the device did.
//!
//! Each of these is a sum of the three costs, each so many times. What a request took tells how far off the sum is, and the costs
//! are moved to where it fits: those most that are known least, and that count most often in the sum (a Kalman filter). At first each
//! may be off by as much as the first request took, a page by four times what it is taken to cost; a request is
//! taken to be off by as much as was expected of it, for a disk's vary so. What is known gets old: with each request a
//! 4,096th of what was not known at first is not known again, so that a device that changed is believed in the end.
//!
//! So requests of different sizes tell pages from requests, and those that find others there tell what occupies the device from
//! what passes meanwhile. As long as all are of one size, and as many at a time, that isn't to be known, and what was assumed decides.

use crate::observed::{DECAY_WINDOW, MIN_SAMPLES};
use crate::unit::PAGE_BYTES;

/// The latency before anything was measured: 1 ms, between a solid-state drive's and a disk's.
const INITIAL_LATENCY_NS: u64 = 1_000_000;

/// What a page costs, in picoseconds, before anything was measured: 500 MB/s, a SATA link's.
const INITIAL_PAGE_PS: u64 = PAGE_BYTES * 2_000;

/// But no more than makes a request cost as much as so many pages, 256 KiB: a device whose requests are quick has
/// quick bytes as well.
const INITIAL_REQUEST_PAGES_MAX: u64 = 64;

/// What a page costs at the least: 8 GB/s, four lanes of PCI Express 4.
const PAGE_PS_MIN: u64 = INITIAL_PAGE_PS / 16;

/// What took longer, an hour, is taken to have taken so long, and what is more, to be so many: larger numbers wouldn't fit.
const TOOK_NS_MAX: u64 = 3_600_000_000_000;
const BOUND_MAX: u64 = 1 << 30;

/// The three costs, in the order in which they stand everywhere here.
const LATENCY: usize = 0;
const SERVICE_TIME: usize = 1;
const PAGE: usize = 2;

/// Of such parts covariances are counted, and of these the weights of one observation.
const PARTS: i128 = 1 << 40;
const WEIGHT_UNIT: i128 = 1 << 20;

/// What a request was seen to take, and what the device did meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTiming {
    pub took_ns: u64,
    /// Whether it began elsewhere than where the one before it ended.
    pub is_discontiguous: bool,
    pub pages: u64,
    /// Of all that came back until it did, itself among them: how many jumped, and how many pages they had.
    pub completed_jumps: u64,
    pub completed_pages: u64,
}

/// Latency, what a request occupies, and what a page does, in picoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceCosts {
    are: [i128; 3],
    /// How far off each might be at first, in picoseconds; nothing before the first request.
    initial_deviation: [i128; 3],
    /// How far off each may be now, and with which others: covariances, as parts of what they might be at first, of [`PARTS`].
    covariance: [[i128; 3]; 3],
}

impl Default for DeviceCosts {
    fn default() -> DeviceCosts {
        let are = [i128::from(INITIAL_LATENCY_NS) * 1_000, 0, i128::from(INITIAL_PAGE_PS)];
        let alone = |at: usize| core::array::from_fn(|with| if at == with { PARTS } else { 0 });
        DeviceCosts { are, initial_deviation: [0; 3], covariance: core::array::from_fn(alone) }
    }
}

impl DeviceCosts {
    /// What a request takes that is alone, beside its pages, in picoseconds.
    pub(super) fn request_ps(&self) -> u64 {
        (self.are[LATENCY] + self.are[SERVICE_TIME]) as u64
    }

    /// Of that, for how long it occupies the device.
    pub(super) fn service_ps(&self) -> u64 {
        self.are[SERVICE_TIME] as u64
    }

    /// What a page takes at the device's best rate, in picoseconds; never 0.
    pub(super) fn page_ps(&self) -> u64 {
        self.are[PAGE] as u64
    }

    /// A request is back.
    pub(super) fn saw(&mut self, stay: RequestTiming) {
        let took = i128::from(stay.took_ns.clamp(1, TOOK_NS_MAX)) * 1_000;
        let [pages, completed_pages, completed_jumps] =
            [stay.pages, stay.completed_pages, stay.completed_jumps]
                .map(|count| i128::from(count.min(BOUND_MAX)));
        if self.initial_deviation[PAGE] == 0 {
            return self.begin(took, completed_pages);
        }
        let alone = [1, i128::from(stay.is_discontiguous), pages];
        let did = [0, completed_jumps, completed_pages];
        let [alone_ps, did_ps] = [alone, did].map(|times| dot(times, self.are));
        let times = match took < alone_ps.max(did_ps) {
            true if alone_ps >= did_ps => alone,
            true => did,
            false => [1, completed_jumps, completed_pages],
        };
        self.fit(times, took);
    }

    /// The first request says what the latency is, and how far off all may be.
    fn begin(&mut self, took: i128, completed_pages: i128) {
        let page = took / (i128::from(INITIAL_REQUEST_PAGES_MAX) + completed_pages);
        let page = page.clamp(i128::from(PAGE_PS_MIN), i128::from(INITIAL_PAGE_PS));
        self.are = [(took - completed_pages * page).max(0), 0, page];
        self.initial_deviation = [took, took, i128::from(MIN_SAMPLES) * page];
    }

    /// So many times the costs have taken so long together.
    fn fit(&mut self, times: [i128; 3], took: i128) {
        for at in 0..3 {
            let own = &mut self.covariance[at][at];
            *own = (*own).max(1);
            if *own < PARTS {
                *own += PARTS / i128::from(DECAY_WINDOW * DECAY_WINDOW);
            }
        }
        let expected = dot(times, self.are);
        let noise = expected.max(took / 16);
        // How much of the noise it is if a cost is as far off as it might be at first.
        let weights: [i128; 3] = core::array::from_fn(|at| {
            ((times[at] * self.initial_deviation[at]) * WEIGHT_UNIT / noise).min(WEIGHT_UNIT << 30)
        });
        let shares = self.covariance.map(|row| dot(row, weights) / WEIGHT_UNIT);
        let all = dot(weights, shares) / WEIGHT_UNIT + PARTS;
        let gains = shares.map(|share| share * PARTS / all);
        for (at, gain) in gains.into_iter().enumerate() {
            self.are[at] += gain * (took - expected) / noise * self.initial_deviation[at] / PARTS;
            for (with, share) in shares.into_iter().enumerate() {
                self.covariance[at][with] -= gain * share / PARTS;
            }
        }
        self.keep_in_bounds();
    }

    /// What has come out below the least that it can be is set to that, and the others move with it as far as they hang together.
    fn keep_in_bounds(&mut self) {
        let least = [0, 0, i128::from(PAGE_PS_MIN)];
        for at in [SERVICE_TIME, LATENCY, PAGE] {
            let off = least[at] - self.are[at];
            if off <= 0 {
                continue;
            }
            for with in 0..3 {
                let part = off * self.covariance[with][at] / self.covariance[at][at].max(1);
                self.are[with] +=
                    part.saturating_mul(self.initial_deviation[with]) / self.initial_deviation[at];
            }
        }
        self.are = core::array::from_fn(|at| self.are[at].max(least[at]));
    }
}

fn dot(one: [i128; 3], other: [i128; 3]) -> i128 {
    one[0] * other[0] + one[1] * other[1] + one[2] * other[2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix;

    /// Whatever comes, numbers fit, and costs stay what costs can be.
    #[test]
    fn any_request_keeps_the_costs_in_range() {
        for seed in 0..50 {
            let (mut costs, mut state) = (DeviceCosts::default(), seed);
            let mut below_power = |powers: u64| {
                let power = splitmix::next(&mut state) % powers;
                splitmix::next(&mut state) >> (63 - power)
            };
            for _ in 0..2_000 {
                let (pages, completed_jumps) = (below_power(24), below_power(40));
                let completed_pages = pages + below_power(40);
                let is_discontiguous = completed_jumps % 2 == 1;
                let took_ns = below_power(64);
                costs.saw(RequestTiming {
                    took_ns,
                    is_discontiguous,
                    pages,
                    completed_jumps,
                    completed_pages,
                });
                assert!(costs.page_ps() >= PAGE_PS_MIN, "{costs:?}");
                assert!(costs.request_ps() >= costs.service_ps(), "{costs:?}");
                assert!(costs.request_ps() < 100 * TOOK_NS_MAX * 1_000, "{costs:?}");
            }
        }
    }

    /// The second request, alone as the first, took 3 ms for 17 pages. What was expected: 991,808 ns of latency, 17 times
    /// 8,192 and no occupation, 1,131,072 ns in all; 1,868,928 less than it took. Each may be off: latency and
    /// occupation by 1 ms each, a page by 32,768 ns, 557,056 in all; the noise is what was expected. So of what is missing
    /// 10^12 / (2 x 10^12 + 557,056^2 + 1,131,072^2) falls to the latency, 0.2786 of it, 520.6 us; as much to what it occupies, and 9,504 ns to a page.
    #[test]
    fn the_error_is_divided_by_the_variances() {
        let mut costs = DeviceCosts::default();
        let stay = |took_ns, pages| RequestTiming {
            took_ns,
            is_discontiguous: true,
            pages,
            completed_jumps: 1,
            completed_pages: pages,
        };
        costs.saw(stay(1_000_000, 1));
        assert_eq!([costs.request_ps(), costs.page_ps()], [991_808_000, 8_192_000]);
        costs.saw(stay(3_000_000, 17));
        let near = |is: u64, of: u64| assert!(is.abs_diff(of) <= of / 100, "{is} for {of}");
        near(costs.service_ps(), 520_600_000);
        near(costs.request_ps() - costs.service_ps(), 991_808_000 + 520_600_000);
        near(costs.page_ps(), 8_192_000 + 9_504_000);
    }
}
