//! What a request of a device costs, against what a byte costs: learned from
//! completions, with no traffic of its own.
//!
//! Of each request it is known when it went to the device and when it came back, whether it began where the one before
//! it ended, and what came back meanwhile. How the costs follow from that stands in `estimate/costs.rs`.
//!
//! They say how many pages cost as much as a request: so large a gap is
//! worth reading through, and windows must be many times as large for the
//! device to be busy with bytes and not with requests. Where requests overlap, one more costs less than it takes: what it *occupies*, and
//! of its latency its reader's part, or as much as the device has nothing else to do meanwhile, if that is less.
//!
//! *What was seen late says nothing.* Where nobody sleeps for completions they lie there until
//! somebody looks. Only what is known to an eighth
//! counts; and after a look that came late, nothing of what was under way then.

use alloc::vec::Vec;
use core::ops::Range;

use crate::observed::EWMA_WINDOW;
use crate::request::RequestId;
use crate::unit::{PAGE_BYTES, Time};

mod costs;

use costs::{DeviceCosts, RequestTiming};

/// A span counts when no more than one of so many parts of it is unsure.
const UNCERTAINTY_DIVISOR_MAX: u64 = 8;

/// The costs of one device.
#[derive(Clone, Debug, Default)]
pub struct DeviceEstimate {
    costs: DeviceCosts,
    /// How many pages a request has, mean of the newest, in parts of [`EWMA_WINDOW`]; 0 before the first.
    mean_pages: u64,
    /// Of each request in the device, by name.
    under_way: Vec<InDeviceRequest>,
    dispatches: u64,
    /// The sector at which the newest request ended.
    next_sector: Option<u64>,
    back: CompletedTotals,
    /// The requests before this number were there at a look that came late.
    ignored_before: u64,
}

/// What has come back in all.
#[derive(Clone, Copy, Debug, Default)]
struct CompletedTotals {
    jumps: u64,
    pages: u64,
}

/// A request in the device.
#[derive(Clone, Copy, Debug, Default)]
struct InDeviceRequest {
    dispatched: Time,
    /// How many had come there before it.
    number: u64,
    /// Whether it begins elsewhere than where the one before it ended.
    is_discontiguous: bool,
    /// What had come back before.
    completed_before: CompletedTotals,
}

impl DeviceEstimate {
    /// How many pages take as long as a request without its bytes; at least 1.
    pub fn request_cost_pages(&self) -> u64 {
        (self.costs.request_ps() / self.costs.page_ps()).max(1)
    }

    /// How many pages keep the device busy as long as a request without its bytes does.
    pub fn request_service_pages(&self) -> u64 {
        self.costs.service_ps() / self.costs.page_ps()
    }

    /// What a request costs beside its bytes, in nanoseconds.
    pub fn request_ns(&self) -> u64 {
        self.costs.request_ps() / 1_000
    }

    /// What a page costs at the device's best rate, in picoseconds.
    pub fn page_ps(&self) -> u64 {
        self.costs.page_ps()
    }

    /// What one more request of so many pages makes its reader wait beside what it occupies, while `others` wait too: in pages.
    ///
    /// Its latency costs as much as the device has nothing to do for the others meanwhile: all of it where one
    /// reads alone, and nothing where the others keep it busy without a pause. And no more than its part among all that wait: pages that
    /// spare one reader a request are read at once, and all others wait for them.
    pub fn request_waits_pages(&self, pages: u64, others: u64) -> u64 {
        let service_time = self.request_service_pages();
        let latency = self.request_cost_pages().saturating_sub(service_time);
        let mean_pages = if self.mean_pages == 0 { pages } else { self.mean_pages / EWMA_WINDOW };
        let idle =
            IDLE * latency / inverse_idle_probability(others, mean_pages + service_time, latency);
        idle.min(latency / (others + 1))
    }

    /// A request goes to the device, for these sectors, where they are known.
    pub fn dispatched(&mut self, now: Time, id: RequestId, sectors: Option<Range<u64>>) {
        let at = id.0 as usize;
        if at >= self.under_way.len() {
            self.under_way.resize(at + 1, InDeviceRequest::default());
        }
        let is_discontiguous =
            self.next_sector.is_none() || self.next_sector != sectors.as_ref().map(|it| it.start);
        self.next_sector = sectors.map(|sectors| sectors.end);
        self.under_way[at] = InDeviceRequest {
            dispatched: now,
            number: self.dispatches,
            is_discontiguous,
            completed_before: self.back,
        };
        self.dispatches += 1;
    }

    /// A request comes back with so many bytes. It was still in the device at `not_before`; nobody
    /// looked between then and now.
    pub fn completed(&mut self, now: Time, not_before: Time, id: RequestId, bytes: u64) {
        let own = self.under_way[id.0 as usize];
        let pages = bytes / PAGE_BYTES;
        self.back.jumps += u64::from(own.is_discontiguous);
        self.back.pages += pages;
        self.mean_pages = match self.mean_pages {
            0 => pages * EWMA_WINDOW,
            mean => mean - mean / EWMA_WINDOW + pages,
        };
        let took_ns = now.since(own.dispatched).ns();
        let is_known =
            UNCERTAINTY_DIVISOR_MAX * now.since(not_before.max(own.dispatched)).ns() <= took_ns;
        if !is_known {
            self.ignored_before = self.dispatches;
        } else if own.number >= self.ignored_before {
            self.costs.saw(RequestTiming {
                took_ns,
                is_discontiguous: own.is_discontiguous,
                pages,
                completed_jumps: self.back.jumps - own.completed_before.jumps,
                completed_pages: self.back.pages - own.completed_before.pages,
            });
        }
    }
}

/// Of such parts the inverse of a likelihood is counted.
const IDLE: u64 = 1 << 16;

/// How many times less likely than certain it is that a device has nothing to do for `others`, each of whom waits for its
/// `latency` and keeps it busy for `busy` by turns, of [`IDLE`].
///
/// The machine repairman's model: `I(n) = 1 + n × busy ÷ latency × I(n - 1)`, and 1 for nobody.
fn inverse_idle_probability(others: u64, busy: u64, latency: u64) -> u64 {
    let mut inverse = IDLE;
    for others in 1..=others {
        inverse = IDLE + (others * busy).saturating_mul(inverse) / latency.max(1);
        if inverse > latency.saturating_mul(IDLE) {
            break;
        }
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix;

    /// A device that keeps each request for `latency_ns`, and serves what has waited so long one after the other at each of its
    /// heads, to which requests go at random.
    struct Device {
        latency_ns: u64,
        service_time_ns: u64,
        page_ns: u64,
        heads: usize,
    }

    impl Device {
        /// So many read from it without a pause, of all these sizes; gives what is believed in the end.
        fn read_by(&self, readers: u32, sizes: &[u64], requests: u32) -> DeviceEstimate {
            let mut estimate = DeviceEstimate::default();
            let (mut seed, mut free) = (7, alloc::vec![0; self.heads]);
            let mut draw = |below: usize| splitmix::next(&mut seed) as usize % below;
            let mut send = |estimate: &mut DeviceEstimate, now: u64, reader: u32| {
                let (pages, head) = (sizes[draw(sizes.len())], draw(free.len()));
                estimate.dispatched(Time(now), RequestId(reader), None);
                let begins = free[head].max(now + self.latency_ns);
                free[head] = begins + self.service_time_ns + pages * self.page_ns;
                (free[head], reader, pages)
            };
            let mut under_way: Vec<_> =
                (0..readers).map(|reader| send(&mut estimate, 0, reader)).collect();
            for _ in 0..requests {
                under_way.sort_unstable();
                let (back, reader, pages) = under_way.remove(0);
                let now = Time(back);
                estimate.completed(now, now, RequestId(reader), pages * PAGE_BYTES);
                under_way.push(send(&mut estimate, back, reader));
            }
            estimate
        }
    }

    fn assert_near(is: u64, by_percent: u64, of: u64) {
        assert!(100 * is.abs_diff(of) <= by_percent * of, "{is} for {of}");
    }

    /// 5 ms for a request and 40 us for each of its pages (102.4 MB/s): a request costs as much as 125 pages.
    #[test]
    fn the_costs_of_a_constant_device_are_found() {
        let device =
            Device { latency_ns: 5_000_000, service_time_ns: 0, page_ns: 40_000, heads: 1 };
        let estimate = device.read_by(1, &[1, 4096], 400);
        assert_near(estimate.request_cost_pages(), 12, 125);
        assert_near(estimate.page_ps(), 5, 40_000_000);
    }

    /// A server of 1 ms behind 110 MB/s, full: what its requests wait for is the bytes of the others, and no cost of theirs.
    #[test]
    fn a_saturated_link_is_distinguished_from_slow_requests() {
        let link = Device { latency_ns: 1_000_000, service_time_ns: 0, page_ns: 37_000, heads: 1 };
        for readers in [4, 16, 64] {
            let estimate = link.read_by(readers, &[1, 16, 64], 600);
            assert_near(estimate.page_ps(), 10, 37_000_000);
            assert!(estimate.request_service_pages() <= 4, "{estimate:?}");
            let marginal_cost = estimate.request_waits_pages(16, u64::from(readers - 1));
            assert!(marginal_cost <= 8, "{marginal_cost} pages of {readers}: {estimate:?}");
        }
    }

    /// One head that needs 5 ms to go anywhere: nothing passes meanwhile, so that all of it is what a request occupies.
    #[test]
    fn the_seek_of_one_head_is_service_time() {
        let head = Device { latency_ns: 0, service_time_ns: 5_000_000, page_ns: 36_000, heads: 1 };
        let estimate = head.read_by(4, &[1, 16, 256], 600);
        assert_near(estimate.request_service_pages(), 25, 5_000 / 36);
        assert_near(estimate.page_ps(), 15, 36_000_000);
    }

    /// Of sixteen heads by four readers one more request keeps hardly anybody waiting, and takes its reader as long as on one.
    #[test]
    fn a_request_to_many_heads_has_latency_and_little_service_time() {
        let heads =
            Device { latency_ns: 0, service_time_ns: 5_000_000, page_ns: 36_000, heads: 16 };
        let estimate = heads.read_by(4, &[1, 16], 600);
        assert_near(estimate.request_ns(), 30, 5_000_000);
        assert!(estimate.costs.service_ps() <= 2_000_000_000, "{estimate:?}");
    }

    /// All of one size, so that pages can't be told from requests: what both take together is known.
    #[test]
    fn the_estimate_follows_a_device_that_becomes_slower() {
        let mut estimate = DeviceEstimate::default();
        let mut now = Time::ZERO;
        for (page_ns, requests) in [(1_000, 100), (10_000, 1_000)] {
            for _ in 0..requests {
                estimate.dispatched(now, RequestId(0), None);
                now += Time(256 * page_ns);
                estimate.completed(now, now, RequestId(0), 256 * PAGE_BYTES);
            }
            let all_ns = estimate.request_ns() + 256 * estimate.page_ps() / 1_000;
            assert_near(all_ns, 10, 256 * page_ns);
        }
    }

    /// What begins where the one before ended needs no head to move: 36 us a page, and 5 ms more for each of the others.
    #[test]
    fn contiguous_requests_do_not_lower_the_request_cost() {
        let mut estimate = DeviceEstimate::default();
        let (mut now, mut sector) = (Time::ZERO, 0);
        for nth in 0..400 {
            let (jumps, pages) = (nth % 4 == 0, if nth % 3 == 0 { 64 } else { 16 });
            sector += if jumps { 1 << 20 } else { 0 };
            estimate.dispatched(now, RequestId(0), Some(sector..sector + 8 * pages));
            sector += 8 * pages;
            now += Time(pages * 36_000 + if jumps { 5_000_000 } else { 0 });
            estimate.completed(now, now, RequestId(0), pages * PAGE_BYTES);
        }
        assert_near(estimate.request_ns(), 15, 5_000_000);
        assert_near(estimate.page_ps(), 25, 36_000_000);
    }

    /// The first request took 1.6 ms with 16 pages of 8.192 us. It alone says nothing of what passes meanwhile.
    #[test]
    fn the_first_request_sets_the_request_cost() {
        let mut estimate = DeviceEstimate::default();
        assert_eq!((estimate.request_ns(), estimate.request_cost_pages()), (1_000_000, 122));
        estimate.dispatched(Time::ZERO, RequestId(0), None);
        let now = Time(1_600_000);
        estimate.completed(now, now, RequestId(0), 16 * PAGE_BYTES);
        assert_eq!(estimate.request_ns(), 1_600_000 - 16 * 8_192);
        assert_eq!(estimate.request_service_pages(), 0);
    }

    /// The likelihood that nobody is there, by the sum over how many are: `1 / sum of m! / (m - k)! (busy / latency)^k`.
    #[test]
    fn the_idle_probability_matches_the_machine_repairman_model() {
        for (busy, latency) in [(1, 28), (16, 28), (4, 123), (200, 3)] {
            for others in 0..12 {
                let (mut sum, mut term) = (1.0, 1.0);
                for k in 0..others {
                    term *= (others - k) as f64 * busy as f64 / latency as f64;
                    sum += term;
                }
                let is = inverse_idle_probability(others, busy, latency) as f64 / IDLE as f64;
                let far = sum > latency as f64 && is > latency as f64;
                assert!(far || (is / sum - 1.0).abs() < 1e-3, "{others}, {busy}: {is} for {sum}");
            }
        }
        assert!(
            inverse_idle_probability(1 << 40, 1, 28) >= 28 * IDLE,
            "it is looked at no further"
        );
    }

    /// Sends so many requests at once and has all of them back after so long, the first
    /// of them known to be there no earlier than `not_before` after it was sent.
    fn round(estimate: &mut DeviceEstimate, now: &mut Time, round: Round) {
        (0..round.requests).for_each(|id| estimate.dispatched(*now, RequestId(id), None));
        let not_before = *now + Time::from_us(round.not_before_us);
        *now += Time::from_us(round.took_us);
        for id in 0..round.requests {
            estimate.completed(*now, not_before, RequestId(id), round.pages * PAGE_BYTES);
        }
    }

    #[derive(Clone, Copy)]
    struct Round {
        requests: u32,
        pages: u64,
        took_us: u64,
        not_before_us: u64,
    }

    /// Twenty-four requests of 256 pages that are all back after 24 ms: no request took longer, and no page more than 3,906.25 ns.
    #[test]
    fn requests_that_complete_together_share_the_time() {
        let mut estimate = DeviceEstimate::default();
        let mut now = Time::ZERO;
        let seen = Round { requests: 24, pages: 256, took_us: 24_000, not_before_us: 24_000 };
        (0..20).for_each(|_| round(&mut estimate, &mut now, seen));
        assert!(estimate.page_ps() <= 3_906_250, "{estimate:?}");
        assert!((12_000_000..=24_000_000).contains(&estimate.request_ns()), "{estimate:?}");
    }

    /// A request that was done at once and is seen after 10 ms, while its reader was elsewhere:
    /// nothing is known of it, nor of the one that was under way at that look.
    #[test]
    fn late_observations_are_ignored() {
        let mut estimate = DeviceEstimate::default();
        let mut now = Time::ZERO;
        let seen = Round { requests: 1, pages: 256, took_us: 1_000, not_before_us: 1_000 };
        (0..20).for_each(|_| round(&mut estimate, &mut now, seen));
        let learned = |estimate: &DeviceEstimate| {
            (estimate.page_ps(), estimate.request_ns(), estimate.request_service_pages())
        };
        let before = learned(&estimate);
        for _ in 0..20 {
            round(&mut estimate, &mut now, Round { took_us: 10_000, not_before_us: 10, ..seen });
            // The next is under way at such a look, and is back 1 us after it.
            estimate.dispatched(now, RequestId(1), None);
            estimate.dispatched(now, RequestId(2), None);
            let looked = now;
            now += Time::from_ms(10);
            estimate.completed(now, looked, RequestId(1), 256 * PAGE_BYTES);
            now += Time::from_us(1);
            estimate.completed(now, now, RequestId(2), 256 * PAGE_BYTES);
        }
        assert_eq!(learned(&estimate), before);
    }
}
