//! What a request of a device costs, against what a byte costs: learned from
//! completions, with no traffic of its own.
//!
//! The law in words. *A byte* costs what more of them add to a request's time: the
//! slope of a line through requests of different sizes, those that found the device
//! empty and, apart from them, blocks of sixteen completions. Where sizes don't differ they say
//! nothing; then a byte costs no more than at the best rate that was seen (which is
//! forgotten by a sixty-fourth each time large requests don't reach it, so that a
//! device that became slower is believed in the end), and no less than leaves a
//! request the time of 512 KiB. *A request* costs what one
//! takes that finds the device empty, less its bytes. Of such requests some are
//! cheap by luck (the head was there, the server had it in memory); the
//! estimate rises by a quarter of the difference and falls by a sixty-fourth
//! (while fewer were seen, by one of so many),
//! so that it stays near what a request costs that has no luck. Where `n` others came
//! while it was there, it may have waited for them: alone it would have taken
//! an `n + 1`-th at least, and at most what is left without the bytes that came back until it did; the
//! estimate moves no further than to the nearer end. When it is learned later what a byte costs, what was learned of
//! requests is put right by what their bytes cost more.
//!
//! Both together say how many pages cost as much as a request: so large a gap is
//! worth reading through, and windows must be many times as large for the
//! device to be busy with bytes and not with requests.
//!
//! Where requests overlap, one more costs less than it takes: what it *occupies*
//! is the busy time per completion, less the bytes'. That is so where requests have
//! waited for each other, and took twice what they take alone; where they haven't, the
//! device could have done more, and a request occupies no more than that.
//!
//! *What was seen late says nothing.* Where nobody sleeps for completions they lie there until
//! somebody looks, and the device may have been idle since. Only what is known to an eighth
//! counts; and after a look that came late, nothing of what was under way then.

use alloc::vec::Vec;

use crate::observed::{NEWEST, REMEMBERED};
use crate::request::RequestId;
use crate::unit::{PAGE_BYTES, Time};

/// Requests of so many pages, 512 KiB, say how slow bytes are, where nothing else does: a
/// disk's 100 MB/s take 5 ms for them, as long as a seek.
/// A request is then taken to cost no more than so many pages do.
const LARGE_PAGES: u64 = 128;

/// A span counts when no more than one of so many parts of it is unsure.
const SURE: u64 = 8;

/// The cost of a page, in picoseconds, before large requests were measured: 500 MB/s, a SATA link's.
const PAGE_PS_AT_FIRST: u64 = PAGE_BYTES * 2_000;

/// But no more than makes a request cost as much as so many pages, 256 KiB: a device whose requests are quick has
/// quick bytes as well.
const REQUEST_COST_PAGES_AT_FIRST: u64 = 64;

/// The cost of a request, in nanoseconds, before anything was measured: 1 ms,
/// between a solid-state drive's and a disk's.
const REQUEST_NS_AT_FIRST: u64 = 1_000_000;

/// The costs of one device.
#[derive(Clone, Debug)]
pub struct DeviceEstimate {
    /// What a page costs; `None` before sizes have differed.
    page_ps: Option<u64>,
    /// No page costs more: the best rate seen, as if requests were free.
    bound_ps: u64,
    /// Of blocks of completions, and of requests that found the device empty.
    busy_sizes: Sizes,
    alone_sizes: Sizes,
    request_ns: u64,
    /// How many pages, in 64ths, the requests had that it was learned from.
    learned_from: u64,
    occupied_ns: u64,
    is_request_measured: bool,
    /// How many requests had the device to themselves, from their way there until they were done.
    alone: u64,
    /// Of each request in the device, by name.
    under_way: Vec<UnderWay>,
    in_device: u32,
    dispatches: u64,
    /// How many bytes have come back.
    bytes: u64,
    /// The last completion; or, after that, the end of a rest.
    busy_since: Time,
    /// Whether the span up to that completion counts.
    counts: bool,
    /// The requests before this number were there at a look that came late, and how many still are.
    unsure_before: u64,
    unsure: u32,
    /// The block of completions that is being counted.
    block_bytes: u64,
    block_busy_ns: u64,
    /// What its requests took together, and would have taken alone.
    block_latency_ns: u64,
    block_alone_ns: u64,
    block_completions: u32,
}

/// A request in the device.
#[derive(Clone, Copy, Debug, Default)]
struct UnderWay {
    dispatched: Time,
    found_empty: bool,
    /// How many bytes had come back before.
    bytes_before: u64,
    /// How many had come there before it.
    number: u64,
}

impl Default for DeviceEstimate {
    fn default() -> DeviceEstimate {
        DeviceEstimate {
            page_ps: None,
            bound_ps: u64::MAX,
            busy_sizes: Sizes::default(),
            alone_sizes: Sizes::default(),
            request_ns: REQUEST_NS_AT_FIRST,
            learned_from: 0,
            occupied_ns: 0,
            is_request_measured: false,
            alone: 0,
            under_way: Vec::new(),
            in_device: 0,
            dispatches: 0,
            bytes: 0,
            busy_since: Time::ZERO,
            counts: true,
            unsure_before: 0,
            unsure: 0,
            block_bytes: 0,
            block_busy_ns: 0,
            block_latency_ns: 0,
            block_alone_ns: 0,
            block_completions: 0,
        }
    }
}

impl DeviceEstimate {
    /// How many pages take as long as a request without its bytes; at least 1.
    pub fn request_cost_pages(&self) -> u64 {
        (self.request_ns * 1_000 / self.page_ps()).max(1)
    }

    /// How many pages keep the device busy as long as a request without its bytes does.
    pub fn request_occupies_pages(&self) -> u64 {
        self.occupied_ns * 1_000 / self.page_ps()
    }

    /// What a request costs beside its bytes, in nanoseconds.
    pub fn request_ns(&self) -> u64 {
        self.request_ns
    }

    /// What a page costs at the device's best rate, in picoseconds.
    pub fn page_ps(&self) -> u64 {
        let at_first = PAGE_PS_AT_FIRST.min(self.request_ns * 1_000 / REQUEST_COST_PAGES_AT_FIRST);
        self.page_ps.unwrap_or(at_first).min(self.bound_ps).max(1)
    }

    fn pages_ns(&self, pages: u64) -> u64 {
        pages * self.page_ps() / 1_000
    }

    /// A request goes to the device.
    pub fn dispatched(&mut self, now: Time, id: RequestId) {
        let at = id.0 as usize;
        if at >= self.under_way.len() {
            self.under_way.resize(at + 1, UnderWay::default());
        }
        let found_empty = self.in_device == 0;
        self.under_way[at] = UnderWay {
            dispatched: now,
            found_empty,
            bytes_before: self.bytes,
            number: self.dispatches,
        };
        self.dispatches += 1;
        if found_empty {
            self.busy_since = now;
        }
        self.in_device += 1;
    }

    /// A request comes back with so many bytes. It was still in the device at `not_before`; nobody
    /// looked between then and now.
    pub fn completed(&mut self, now: Time, not_before: Time, id: RequestId, bytes: u64) {
        self.in_device -= 1;
        let own = self.under_way[id.0 as usize];
        let is_known =
            |since: Time| SURE * now.since(not_before.max(since)).ns() <= now.since(since).ns();
        let was_sure = self.unsure == 0;
        self.unsure -= u32::from(own.number < self.unsure_before);
        if now > self.busy_since {
            self.came_to(now, was_sure, is_known(self.busy_since));
        }
        let took_ns = now.since(own.dispatched).ns();
        self.bytes += bytes;
        if self.counts {
            self.block_bytes += bytes;
            self.block_completions += 1;
            self.block_latency_ns += took_ns;
            self.block_alone_ns += self.request_ns + self.pages_ns(bytes / PAGE_BYTES);
        }
        if own.found_empty && is_known(own.dispatched) {
            let brought = self.bytes - own.bytes_before;
            self.learn_request(took_ns, bytes, brought, self.dispatches - own.number - 1);
        }
    }

    /// Time has come to the next completions: what was seen before them is one block, if it is
    /// enough, and the span since then counts, if all of it was watched.
    fn came_to(&mut self, now: Time, was_sure: bool, is_known: bool) {
        if u64::from(self.block_completions) >= NEWEST {
            self.learn_rate();
        }
        self.counts = was_sure && is_known;
        if self.counts {
            self.block_busy_ns += now.since(self.busy_since).ns();
        }
        self.busy_since = now;
        if !is_known {
            (self.unsure_before, self.unsure) = (self.dispatches, self.in_device);
        }
    }

    fn learn_rate(&mut self) {
        let completions = u64::from(self.block_completions);
        let pages = (self.block_bytes / PAGE_BYTES / completions).max(1);
        let took_ns = self.block_busy_ns / completions;
        let rate_ps = (took_ns * 1_000 / pages).max(1);
        let is_large = pages >= LARGE_PAGES;
        let forgotten = if is_large { self.bound_ps / REMEMBERED } else { 0 };
        self.bound_ps = rate_ps.min(self.bound_ps.saturating_add(forgotten));
        let slope = self.busy_sizes.learn(pages, took_ns, self.page_ps());
        let least_ps = is_large.then(|| rate_ps * pages / (pages + LARGE_PAGES));
        if let Some(page_ps) = slope.or(least_ps.map(|least| self.page_ps().max(least))) {
            self.page_costs(page_ps);
        }
        let occupied_ns = took_ns.saturating_sub(self.pages_ns(pages));
        let waited = self.block_latency_ns >= 2 * self.block_alone_ns;
        self.occupied_ns = match waited {
            true => (3 * self.occupied_ns + occupied_ns) / 4,
            // The device could have done more: what each occupies is no more than this.
            false => self.occupied_ns.min(occupied_ns),
        };
        (self.block_bytes, self.block_busy_ns, self.block_completions) = (0, 0, 0);
        (self.block_latency_ns, self.block_alone_ns) = (0, 0);
    }

    /// A page costs so much. What requests were found to take beside their bytes is less by what these cost more than was thought.
    fn page_costs(&mut self, page_ps: u64) {
        let bytes_ns = |page_ps: u64| self.learned_from * page_ps / (REMEMBERED * 1_000);
        let took_ns = self.request_ns + bytes_ns(self.page_ps());
        self.page_ps = Some(page_ps);
        if self.is_request_measured {
            let request_ns = took_ns.saturating_sub(bytes_ns(self.page_ps()));
            self.request_ns = request_ns.max(took_ns / NEWEST);
        }
    }

    /// A request found the device empty. So many bytes came back until it did, its own among them, and so many requests came.
    fn learn_request(&mut self, took_ns: u64, bytes: u64, brought: u64, beside: u64) {
        let pages = brought / PAGE_BYTES;
        if beside == 0 {
            self.alone += 1;
            if let Some(page_ps) = self.alone_sizes.learn(pages.max(1), took_ns, self.page_ps()) {
                self.page_costs(page_ps);
            }
        }
        // While the rate isn't known it follows from this one, that takes as long as so many pages.
        let least_ns =
            took_ns * REQUEST_COST_PAGES_AT_FIRST / (pages + REQUEST_COST_PAGES_AT_FIRST);
        let least_ns = if self.page_ps.is_some() { 0 } else { least_ns };
        let most_ns = took_ns.saturating_sub(self.pages_ns(pages)).max(least_ns);
        if !self.is_request_measured {
            (self.request_ns, self.is_request_measured) = (most_ns, true);
            self.learned_from = pages * REMEMBERED;
            return;
        }
        let own_ns = self.pages_ns(bytes / PAGE_BYTES);
        let least_ns = (took_ns / (beside + 1)).saturating_sub(own_ns).max(least_ns / (beside + 1));
        let seen = if beside == 0 { self.alone.min(REMEMBERED) } else { REMEMBERED };
        let before = self.request_ns;
        let request_ns = before.clamp(least_ns.min(most_ns), most_ns);
        let by = if request_ns > before { 4 } else { seen };
        self.request_ns = before + request_ns.saturating_sub(before) / by;
        self.request_ns -= before.saturating_sub(request_ns) / by;
        self.learned_from = self.learned_from - self.learned_from / by + pages * REMEMBERED / by;
    }
}

/// How the time of a request goes with its size: a line through the blocks of
/// completions, of which the newest sixteen or so count.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    blocks: u32,
    pages: i64,
    took_ns: i64,
    /// The variance of the pages, and their covariance with the time.
    variance: i64,
    covariance: i64,
}

impl Sizes {
    /// One more block; gives what a page costs by the line and by what was known `before`:
    /// the more the sizes differ, the less that counts. `None` while they don't.
    fn learn(&mut self, pages: u64, took_ns: u64, before_ps: u64) -> Option<u64> {
        let newest = NEWEST as i64;
        let (pages, took_ns) = (pages as i64 * newest, took_ns as i64);
        if self.blocks == 0 {
            (self.pages, self.took_ns) = (pages, took_ns);
        }
        self.blocks += 1;
        let (off_pages, off_ns) = (pages - self.pages, took_ns - self.took_ns);
        self.pages += off_pages / newest;
        self.took_ns += off_ns / newest;
        self.variance += off_pages * off_pages / newest - self.variance / newest;
        self.covariance += off_pages * off_ns / newest - self.covariance / newest;
        let indifferent = self.pages * self.pages / newest;
        if self.covariance <= 0 || self.variance < indifferent / 4 {
            return None;
        }
        let slope_ps = (self.covariance * newest / self.variance.max(1)) as u64 * 1_000;
        let (known, seen) = (indifferent as u128, self.variance as u128);
        let both = (u128::from(before_ps) * known + u128::from(slope_ps) * seen) / (known + seen);
        // No page costs less than at 8 GB/s, four lanes of PCI Express 4.
        Some((both as u64).max(PAGE_PS_AT_FIRST / 16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that takes 5 ms for a request and 40 µs for each of its pages
    /// (102.4 MB/s): a request costs as much as 125 pages.
    #[test]
    fn the_costs_of_a_constant_device_are_found() {
        let mut estimate = DeviceEstimate::default();
        let mut now = Time::ZERO;
        for _ in 0..200 {
            for pages in [1, 4096] {
                estimate.dispatched(now, RequestId(0));
                now += Time(5_000_000 + pages * 40_000);
                estimate.completed(now, now, RequestId(0), pages * PAGE_BYTES);
            }
        }
        let pages = estimate.request_cost_pages();
        assert!((110..=140).contains(&pages), "{pages}");
    }

    #[test]
    fn a_device_that_became_slower_is_believed_in_the_end() {
        let mut estimate = DeviceEstimate::default();
        let mut now = Time::ZERO;
        for (page_ns, requests) in [(1_000, 100), (10_000, 16 * 64 * 4)] {
            for _ in 0..requests {
                estimate.dispatched(now, RequestId(0));
                now += Time(256 * page_ns);
                estimate.completed(now, now, RequestId(0), 256 * PAGE_BYTES);
            }
        }
        // All of one size: of 256 pages' time a request may have the part of 128.
        assert_eq!(estimate.page_ps(), 6_666_666);
    }

    /// Four requests of 16 pages on a way that they share, each 1 ms and all 64 pages at 40 µs: the one that found the device empty is
    /// the last that is back, after 3.56 ms. As long as a page is taken to cost 8.192 µs it is thought to have cost 3.036 ms
    /// beside the bytes; once a page is known to cost 40 µs, 1 ms.
    #[test]
    fn bytes_that_came_back_meanwhile_are_no_cost_of_a_request() {
        let mut estimate = DeviceEstimate::default();
        (0..4).for_each(|id| estimate.dispatched(Time::ZERO, RequestId(id)));
        let now = Time(3_560_000);
        for id in [1, 2, 3, 0] {
            estimate.completed(now, now, RequestId(id), 16 * PAGE_BYTES);
        }
        assert_eq!(estimate.request_ns(), 3_560_000 - 64 * 8_192);
        estimate.page_costs(40_000_000);
        assert_eq!(estimate.request_ns(), 1_000_000);
        // Of what was seen a sixteenth is left to the request, whatever a page is said to cost.
        estimate.page_costs(400_000_000);
        assert_eq!(estimate.request_ns(), (1_000_000 + 64 * 40_000) / 16);
    }

    /// Sends so many requests at once and has all of them back after so long, the first
    /// of them known to be there no earlier than `not_before` after it was sent.
    fn round(estimate: &mut DeviceEstimate, now: &mut Time, round: Round) {
        (0..round.requests).for_each(|id| estimate.dispatched(*now, RequestId(id)));
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

    /// Requests without bytes, so that all their time is the request's: one alone took 100 µs.
    /// Eight together are back after 800 µs: the first took something between 100 and 800.
    /// Three together after 600: alone it would have taken 200 at least, a quarter of the way is
    /// 25 µs. The next one alone takes 75: it is the second alone, and half of the way is 25 µs.
    #[test]
    fn what_came_while_a_request_was_there_may_have_made_it_wait() {
        let mut estimate = DeviceEstimate::default();
        let mut now = Time::ZERO;
        let rounds = [(1, 100, 100_000), (8, 800, 100_000), (3, 600, 125_000), (1, 75, 100_000)];
        for (requests, took_us, request_ns) in rounds {
            let seen = Round { requests, pages: 0, took_us, not_before_us: took_us };
            round(&mut estimate, &mut now, seen);
            assert_eq!(estimate.request_ns(), request_ns, "{requests} in {took_us} us");
        }
    }

    /// Twenty-four requests of 256 pages that are all back after 24 ms: 1 ms each, and no page
    /// costs more than 3,906.25 ns. The time of a look belongs to all that it found.
    #[test]
    fn what_comes_back_together_shares_the_time() {
        let mut estimate = DeviceEstimate::default();
        let mut now = Time::ZERO;
        let seen = Round { requests: 24, pages: 256, took_us: 24_000, not_before_us: 24_000 };
        (0..20).for_each(|_| round(&mut estimate, &mut now, seen));
        assert_eq!(estimate.page_ps(), 3_906_250);
    }

    /// A request that was done at once and is seen after 10 ms, while its reader was elsewhere:
    /// nothing is known of it, nor of the one that was under way at that look.
    #[test]
    fn what_was_seen_late_says_nothing() {
        let mut estimate = DeviceEstimate::default();
        let mut now = Time::ZERO;
        let seen = Round { requests: 1, pages: 256, took_us: 1_000, not_before_us: 1_000 };
        (0..20).for_each(|_| round(&mut estimate, &mut now, seen));
        let learned = |estimate: &DeviceEstimate| {
            (estimate.page_ps(), estimate.request_ns(), estimate.request_occupies_pages())
        };
        let before = learned(&estimate);
        for _ in 0..20 {
            round(&mut estimate, &mut now, Round { took_us: 10_000, not_before_us: 10, ..seen });
            // The next is under way at such a look, and is back 1 µs after it.
            estimate.dispatched(now, RequestId(1));
            estimate.dispatched(now, RequestId(2));
            let looked = now;
            now += Time::from_ms(10);
            estimate.completed(now, looked, RequestId(1), 256 * PAGE_BYTES);
            now += Time::from_us(1);
            estimate.completed(now, now, RequestId(2), 256 * PAGE_BYTES);
        }
        assert_eq!(learned(&estimate), before);
    }
}
