//! Estimated costs of a request and of a byte on a device, learned from completions, without extra
//! traffic.
//!
//! The inputs for each request are its dispatch time, its completion time, a flag (it began at the
//! end of the request before it), and the completions meanwhile. `estimate/costs.rs` derives the
//! costs from these.
//!
//! A result is the number of pages that cost as much as a request. A gap of that size is worth
//! reading through. Windows must be many times as large, so that the device is busy with bytes and
//! not with requests. If requests overlap, one more costs less than its latency. Its cost is its
//! *service time*, plus the smaller of two values: the reader's share of its latency, or the time
//! that the device would otherwise be idle.
//!
//! *A late observation gives no information.* If no thread sleeps for completions, these stay
//! unnoticed until the next poll. Only durations known to an eighth count. After a late poll, all
//! requests that were in progress at that time are ignored.

use alloc::vec::Vec;
use core::ops::Range;

use crate::near_ranges::RequestCosts;
use crate::observed::EWMA_WINDOW;
use crate::request::RequestId;
use crate::unit::{PAGE_BYTES, Time};

mod costs;

use costs::{DeviceCosts, RequestTiming};

/// Largest relative uncertainty of a duration that counts: one part in this number. It matters only
/// where completions are polled late.
const UNCERTAINTY_DIVISOR_MAX: u64 = 8;

/// The costs of one device.
#[derive(Clone, Debug, Default)]
pub struct DeviceEstimate {
    /// Estimated latency, service time and cost of a page.
    costs: DeviceCosts,
    /// Mean size of the newest requests, in units of 1/16 page ([`EWMA_WINDOW`]); 0 before the
    /// first.
    mean_pages: u64,
    /// The requests in the device, by identifier. The entry of a completed request stays until its
    /// identifier is reused, and is not read.
    in_device: Vec<InDeviceRequest>,
    /// Total number of dispatched requests.
    dispatches: u64,
    /// End sector of the newest request; `None` if unknown.
    next_sector: Option<u64>,
    /// Completions in total.
    completed_totals: CompletedTotals,
    /// Requests with a smaller dispatch number were in the device at a late poll, and are ignored.
    ignored_before: u64,
}

/// Totals of completed requests.
#[derive(Clone, Copy, Debug, Default)]
struct CompletedTotals {
    /// Completed requests that did not begin at the end sector of the request dispatched before.
    jumps: u64,
    /// Pages of completed requests.
    pages: u64,
}

/// A request in the device.
#[derive(Clone, Copy, Debug, Default)]
struct InDeviceRequest {
    /// Time at which the device received it.
    dispatched: Time,
    /// Its dispatch number, counted from 0.
    number: u64,
    /// True if it doesn't begin at the end of the request before it.
    is_discontiguous: bool,
    /// Totals at its dispatch. Their growth until its completion is the work that the device did
    /// meanwhile.
    completed_before: CompletedTotals,
}

impl DeviceEstimate {
    /// Cost of a single request (latency plus service time), as the number of pages that the device
    /// transfers in that time; at least 1.
    pub fn request_cost_pages(&self) -> u64 {
        (self.costs.request_ps() / self.costs.page_ps()).max(1)
    }

    /// Service time of a request, as the number of pages that the device transfers in that time.
    /// The device serves no other request meanwhile.
    pub fn request_service_pages(&self) -> u64 {
        self.costs.service_ps() / self.costs.page_ps()
    }

    /// Duration of a single request without the transfer of its pages, in nanoseconds: latency plus
    /// service time.
    pub fn request_ns(&self) -> u64 {
        self.costs.request_ps() / 1_000
    }

    /// Time to transfer a page at the device's best rate, in picoseconds.
    pub fn page_ps(&self) -> u64 {
        self.costs.page_ps()
    }

    /// The costs of a single request and of a page.
    pub fn request_costs(&self) -> RequestCosts {
        RequestCosts { request_ns: self.request_ns(), page_ps: self.page_ps() }
    }

    /// Cost of one more request for its reader, beyond its service time, while `others` other
    /// readers wait too. The unit is the transfer time of a page. `pages`, the size of the request,
    /// is used only before the first completion.
    ///
    /// The latency counts as far as the device would otherwise be idle. It counts in full if the
    /// reader is alone, and not at all if others keep the device busy. It is at most the reader's
    /// share among all waiting readers: the pages that save one reader a request are read at once,
    /// and all others wait for them.
    pub fn request_waits_pages(&self, pages: u64, others: u64) -> u64 {
        let service_pages = self.request_service_pages();
        let latency_pages = self.request_cost_pages().saturating_sub(service_pages);
        // Before the first completion, this request stands for the mean.
        let mean_pages = if self.mean_pages == 0 { pages } else { self.mean_pages / EWMA_WINDOW };
        // The latency, multiplied by the probability that the device is idle. The other readers
        // keep it busy with requests of the mean size.
        let idle_pages = PROBABILITY_UNIT * latency_pages
            / inverse_idle_probability(others, mean_pages + service_pages, latency_pages);
        idle_pages.min(latency_pages / (others + 1))
    }

    /// Records the dispatch of a request at time `now`. `sectors` is its sector range, or `None` if
    /// unknown; it shows if the request begins at the end of the one before. An unknown range
    /// counts as discontiguous: the request may have needed a seek.
    pub fn on_dispatch(&mut self, now: Time, id: RequestId, sectors: Option<Range<u64>>) {
        let index = id.0 as usize;
        if index >= self.in_device.len() {
            self.in_device.resize(index + 1, InDeviceRequest::default());
        }
        let is_discontiguous = self.next_sector.is_none()
            || self.next_sector != sectors.as_ref().map(|sectors| sectors.start);
        self.next_sector = sectors.map(|sectors| sectors.end);
        // Identifiers are reused: the entry of an earlier request is replaced.
        self.in_device[index] = InDeviceRequest {
            dispatched: now,
            number: self.dispatches,
            is_discontiguous,
            completed_before: self.completed_totals,
        };
        self.dispatches += 1;
    }

    /// Updates the estimate by the completion of a request of `bytes` bytes, found by the poll at
    /// time `now`. `not_before` is the time of the poll before, when the request was still in the
    /// device. If its duration is too uncertain, it does not change the costs, nor do the other
    /// requests dispatched until now. The mean size and the totals count every request.
    pub fn on_completion(&mut self, now: Time, not_before: Time, id: RequestId, bytes: u64) {
        let request = self.in_device[id.0 as usize];
        let pages = bytes / PAGE_BYTES;
        self.completed_totals.jumps += u64::from(request.is_discontiguous);
        self.completed_totals.pages += pages;
        self.mean_pages = match self.mean_pages {
            // The first request sets the mean; each later one replaces one part in `EWMA_WINDOW` of
            // it.
            0 => pages * EWMA_WINDOW,
            mean => mean - mean / EWMA_WINDOW + pages,
        };
        let duration_ns = now.since(request.dispatched).ns();
        // The request completed between `not_before` and `now`.
        let uncertainty_ns = now.since(not_before.max(request.dispatched)).ns();
        let is_certain = UNCERTAINTY_DIVISOR_MAX * uncertainty_ns <= duration_ns;
        if !is_certain {
            // The work of the device until the completion of all others is uncertain too: they are
            // ignored when they complete.
            self.ignored_before = self.dispatches;
        } else if request.number >= self.ignored_before {
            self.costs.observe(RequestTiming {
                duration_ns,
                is_discontiguous: request.is_discontiguous,
                pages,
                completed_jumps: self.completed_totals.jumps - request.completed_before.jumps,
                completed_pages: self.completed_totals.pages - request.completed_before.pages,
            });
        }
    }
}

/// Fixed-point unit of the inverse of a probability.
const PROBABILITY_UNIT: u64 = 1 << 16;

/// Inverse of the probability that a device is idle, in units of 1/[`PROBABILITY_UNIT`]. Each of
/// `others` readers alternately waits for `latency` and occupies the device for `busy`, both in one
/// unit.
///
/// The machine repairman model: `I(n) = 1 + n × busy ÷ latency × I(n - 1)`, and `I(0) = 1`. The
/// formula yields the inverse, by which the caller divides.
fn inverse_idle_probability(others: u64, busy: u64, latency: u64) -> u64 {
    let mut inverse = PROBABILITY_UNIT;
    for readers in 1..=others {
        inverse = PROBABILITY_UNIT + (readers * busy).saturating_mul(inverse) / latency.max(1);
        // The caller divides `latency` by the result: a larger one gives 0 as well.
        if inverse > latency.saturating_mul(PROBABILITY_UNIT) {
            break;
        }
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix;

    /// A device with a latency of `latency_ns` per request. Requests that have waited that long are
    /// served by one of its heads, chosen at random, one after another. A head needs
    /// `service_time_ns` for a request and `page_ns` for each of its pages.
    struct Device {
        latency_ns: u64,
        service_time_ns: u64,
        page_ns: u64,
        heads: usize,
    }

    impl Device {
        /// Runs `readers` readers without a pause. Each request has one of the sizes in
        /// `sizes_pages`, at random. Returns the estimate after `requests` completions.
        fn estimate_of(&self, readers: u32, sizes_pages: &[u64], requests: u32) -> DeviceEstimate {
            let mut estimate = DeviceEstimate::default();
            // Time at which each head has served all its requests.
            let (mut seed, mut head_free_ns) = (7, alloc::vec![0; self.heads]);
            let mut random_below = |end: usize| splitmix::next(&mut seed) as usize % end;
            let mut send = |estimate: &mut DeviceEstimate, now_ns: u64, reader: u32| {
                let pages = sizes_pages[random_below(sizes_pages.len())];
                let head = random_below(head_free_ns.len());
                estimate.on_dispatch(Time(now_ns), RequestId(reader), None);
                let start_ns = head_free_ns[head].max(now_ns + self.latency_ns);
                head_free_ns[head] = start_ns + self.service_time_ns + pages * self.page_ns;
                (head_free_ns[head], reader, pages)
            };
            let mut in_device: Vec<_> =
                (0..readers).map(|reader| send(&mut estimate, 0, reader)).collect();
            for _ in 0..requests {
                in_device.sort_unstable();
                let (completed_ns, reader, pages) = in_device.remove(0);
                let now = Time(completed_ns);
                estimate.on_completion(now, now, RequestId(reader), pages * PAGE_BYTES);
                in_device.push(send(&mut estimate, completed_ns, reader));
            }
            estimate
        }
    }

    /// Asserts that `value` differs from `expected` by at most `percent` of it.
    fn assert_near(value: u64, percent: u64, expected: u64) {
        assert!(100 * value.abs_diff(expected) <= percent * expected, "{value} for {expected}");
    }

    /// 5 ms for a request and 40 us for each of its pages (102.4 MB/s): a request costs as much as
    /// 5,000 / 40 = 125 pages.
    #[test]
    fn the_costs_of_a_constant_device_are_found() {
        let device =
            Device { latency_ns: 5_000_000, service_time_ns: 0, page_ns: 40_000, heads: 1 };
        let estimate = device.estimate_of(1, &[1, 4096], 400);
        assert_near(estimate.request_cost_pages(), 12, 125);
        assert_near(estimate.page_ps(), 5, 40_000_000);
    }

    /// A server with a latency of 1 ms behind a saturated link of 110 MB/s (37 us a page). Most of
    /// the duration of a request is the transfer of other requests, which is no cost of its own.
    #[test]
    fn a_saturated_link_is_distinguished_from_slow_requests() {
        let link = Device { latency_ns: 1_000_000, service_time_ns: 0, page_ns: 37_000, heads: 1 };
        for readers in [4, 16, 64] {
            let estimate = link.estimate_of(readers, &[1, 16, 64], 600);
            assert_near(estimate.page_ps(), 10, 37_000_000);
            assert!(estimate.request_service_pages() <= 4, "{estimate:?}");
            let marginal_cost = estimate.request_waits_pages(16, u64::from(readers - 1));
            assert!(marginal_cost <= 8, "{marginal_cost} pages of {readers}: {estimate:?}");
        }
    }

    /// One head with a seek time of 5 ms: no other request is served meanwhile, so all of it is
    /// service time.
    #[test]
    fn the_seek_of_one_head_is_service_time() {
        let head = Device { latency_ns: 0, service_time_ns: 5_000_000, page_ns: 36_000, heads: 1 };
        let estimate = head.estimate_of(4, &[1, 16, 256], 600);
        assert_near(estimate.request_service_pages(), 25, 5_000 / 36);
        assert_near(estimate.page_ps(), 15, 36_000_000);
    }

    /// Sixteen heads and four readers: one more request delays hardly any other, so that most of
    /// its 5 ms counts as latency, and little as service time.
    #[test]
    fn a_request_to_many_heads_has_latency_and_little_service_time() {
        let heads =
            Device { latency_ns: 0, service_time_ns: 5_000_000, page_ns: 36_000, heads: 16 };
        let estimate = heads.estimate_of(4, &[1, 16], 600);
        assert_near(estimate.request_ns(), 30, 5_000_000);
        assert!(estimate.costs.service_ps() <= 2_000_000_000, "{estimate:?}");
    }

    /// A page takes 1 us in the first 100 requests, and 10 us in the next 1,000. With requests of
    /// one size, pages and requests can't be separated: only their sum is known.
    #[test]
    fn the_estimate_follows_a_device_that_becomes_slower() {
        let mut estimate = DeviceEstimate::default();
        let mut now = Time::ZERO;
        for (page_ns, requests) in [(1_000, 100), (10_000, 1_000)] {
            for _ in 0..requests {
                estimate.on_dispatch(now, RequestId(0), None);
                now += Time(256 * page_ns);
                estimate.on_completion(now, now, RequestId(0), 256 * PAGE_BYTES);
            }
            let sum_ns = estimate.request_ns() + 256 * estimate.page_ps() / 1_000;
            assert_near(sum_ns, 10, 256 * page_ns);
        }
    }

    /// A request that begins at the end of the one before needs no seek, and takes 36 us a page.
    /// Every fourth request begins elsewhere, and takes 5 ms more.
    #[test]
    fn contiguous_requests_do_not_lower_the_request_cost() {
        let mut estimate = DeviceEstimate::default();
        let (mut now, mut sector) = (Time::ZERO, 0);
        for nth in 0..400 {
            let (is_jump, pages) = (nth % 4 == 0, if nth % 3 == 0 { 64 } else { 16 });
            sector += if is_jump { 1 << 20 } else { 0 };
            estimate.on_dispatch(now, RequestId(0), Some(sector..sector + 8 * pages));
            sector += 8 * pages;
            now += Time(pages * 36_000 + if is_jump { 5_000_000 } else { 0 });
            estimate.on_completion(now, now, RequestId(0), pages * PAGE_BYTES);
        }
        assert_near(estimate.request_ns(), 15, 5_000_000);
        assert_near(estimate.page_ps(), 25, 36_000_000);
    }

    /// The first request took 1.6 ms with 16 pages of 8.192 us. One request gives no information
    /// about concurrent service.
    #[test]
    fn the_first_request_sets_the_request_cost() {
        let mut estimate = DeviceEstimate::default();
        assert_eq!((estimate.request_ns(), estimate.request_cost_pages()), (1_000_000, 122));
        estimate.on_dispatch(Time::ZERO, RequestId(0), None);
        let now = Time(1_600_000);
        estimate.on_completion(now, now, RequestId(0), 16 * PAGE_BYTES);
        assert_eq!(estimate.request_ns(), 1_600_000 - 16 * 8_192);
        assert_eq!(estimate.request_service_pages(), 0);
    }

    /// The probability that no other of m readers waits, by the sum over the number k of waiting
    /// ones: `1 / sum of m! / (m - k)! (busy / latency)^k`. Above `latency` only the bound counts.
    #[test]
    fn the_idle_probability_matches_the_machine_repairman_model() {
        for (busy, latency) in [(1, 28), (16, 28), (4, 123), (200, 3)] {
            for others in 0..12 {
                let (mut sum, mut term) = (1.0, 1.0);
                for k in 0..others {
                    term *= (others - k) as f64 * busy as f64 / latency as f64;
                    sum += term;
                }
                let inverse = inverse_idle_probability(others, busy, latency) as f64
                    / PROBABILITY_UNIT as f64;
                let is_above_bound = sum > latency as f64 && inverse > latency as f64;
                assert!(
                    is_above_bound || (inverse / sum - 1.0).abs() < 1e-3,
                    "{others}, {busy}: {inverse} for {sum}"
                );
            }
        }
        assert!(
            inverse_idle_probability(1 << 40, 1, 28) >= 28 * PROBABILITY_UNIT,
            "it is looked at no further"
        );
    }

    /// Dispatches the requests of a round together at `now`, completes them together, and advances
    /// `now` to that time.
    fn run_round(estimate: &mut DeviceEstimate, now: &mut Time, round: Round) {
        (0..round.requests).for_each(|id| estimate.on_dispatch(*now, RequestId(id), None));
        let not_before = *now + Time::from_us(round.not_before_us);
        *now += Time::from_us(round.took_us);
        for id in 0..round.requests {
            estimate.on_completion(*now, not_before, RequestId(id), round.pages * PAGE_BYTES);
        }
    }

    #[derive(Clone, Copy)]
    struct Round {
        requests: u32,
        /// Size of each request.
        pages: u64,
        /// Duration of each request.
        took_us: u64,
        /// Time from the dispatch to the last poll that found no completion.
        not_before_us: u64,
    }

    /// 24 requests of 256 pages complete together after 24 ms: no request took longer, and no page
    /// more than 24 ms / (24 x 256) = 3,906.25 ns.
    #[test]
    fn requests_that_complete_together_share_the_time() {
        let mut estimate = DeviceEstimate::default();
        let mut now = Time::ZERO;
        let together = Round { requests: 24, pages: 256, took_us: 24_000, not_before_us: 24_000 };
        (0..20).for_each(|_| run_round(&mut estimate, &mut now, together));
        assert!(estimate.page_ps() <= 3_906_250, "{estimate:?}");
        assert!((12_000_000..=24_000_000).contains(&estimate.request_ns()), "{estimate:?}");
    }

    /// A request that completed at once and is noticed after 10 ms: it gives no information, and
    /// neither does the request that was in progress at that poll.
    #[test]
    fn late_observations_are_ignored() {
        let mut estimate = DeviceEstimate::default();
        let mut now = Time::ZERO;
        let certain = Round { requests: 1, pages: 256, took_us: 1_000, not_before_us: 1_000 };
        (0..20).for_each(|_| run_round(&mut estimate, &mut now, certain));
        let learned = |estimate: &DeviceEstimate| {
            (estimate.page_ps(), estimate.request_ns(), estimate.request_service_pages())
        };
        let before = learned(&estimate);
        for _ in 0..20 {
            let late = Round { took_us: 10_000, not_before_us: 10, ..certain };
            run_round(&mut estimate, &mut now, late);
            // The second of two requests is in the device at a late poll, and completes 1 us later.
            estimate.on_dispatch(now, RequestId(1), None);
            estimate.on_dispatch(now, RequestId(2), None);
            let not_before = now;
            now += Time::from_ms(10);
            estimate.on_completion(now, not_before, RequestId(1), 256 * PAGE_BYTES);
            now += Time::from_us(1);
            estimate.on_completion(now, now, RequestId(2), 256 * PAGE_BYTES);
        }
        assert_eq!(learned(&estimate), before);
    }
}
