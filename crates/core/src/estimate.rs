//! What a request of a device costs, against what a byte costs: learned from
//! completions, with no traffic of its own.
//!
//! The law in words. *A byte* costs what it costs at the best rate that the
//! device was seen to sustain, over sixteen completions while it was busy. That
//! rate is forgotten by a sixty-fourth each time it isn't reached by large
//! requests, so that a device that became slower is believed in the end; small
//! ones say nothing of how slow bytes are. *A request* costs what one
//! takes that finds the device empty, less its bytes. Of such requests some are
//! cheap by luck (the head was there, the server had it in memory); the
//! estimate rises by a quarter of the difference and falls by a sixty-fourth,
//! so that it stays near what a request costs that has no luck.
//!
//! Both together say how many pages cost as much as a request: so large a gap is
//! worth reading through, and windows must be many times as large for the
//! device to be busy with bytes and not with requests.
//!
//! Where requests overlap, one more costs less than it takes: what it *occupies*
//! is the busy time per completion of small requests, less the bytes'.

use alloc::vec::Vec;

use crate::request::RequestId;
use crate::unit::{PAGE_BYTES, Time};

/// Completions over which a rate is taken: enough that one slow one doesn't rule it.
const RATE_COMPLETIONS: u32 = 16;

/// Requests of so many pages on average tell how slow bytes are: the kernel's largest
/// readahead of old, which was made to keep a disk busy with bytes.
const LARGE_PAGES: u64 = 32;

/// The share of an estimate that is forgotten at a time.
const FORGOTTEN: u64 = 64;

/// The cost of a page, in picoseconds, before large requests were measured: 500 MB/s, a SATA link's.
const PAGE_PS_AT_FIRST: u64 = PAGE_BYTES * 2_000;

/// What a request occupies, in nanoseconds, before anything was measured: a SATA drive's 20 µs.
const OCCUPIED_NS_AT_FIRST: u64 = 20_000;

/// The cost of a request, in nanoseconds, before anything was measured: 1 ms,
/// between a solid-state drive's and a disk's.
const REQUEST_NS_AT_FIRST: u64 = 1_000_000;

/// The costs of one device.
#[derive(Clone, Debug)]
pub struct DeviceEstimate {
    page_ps: u64,
    request_ns: u64,
    occupied_ns: u64,
    is_rate_measured: bool,
    is_request_measured: bool,
    /// Of each request in the device, when it came there and whether it was alone.
    under_way: Vec<(Time, bool)>,
    in_device: u32,
    /// Since when the device has something to do.
    busy_since: Time,
    /// The block of completions that is being counted.
    block_bytes: u64,
    block_busy_ns: u64,
    block_completions: u32,
}

impl Default for DeviceEstimate {
    fn default() -> DeviceEstimate {
        DeviceEstimate {
            page_ps: PAGE_PS_AT_FIRST,
            request_ns: REQUEST_NS_AT_FIRST,
            occupied_ns: OCCUPIED_NS_AT_FIRST,
            is_rate_measured: false,
            is_request_measured: false,
            under_way: Vec::new(),
            in_device: 0,
            busy_since: Time::ZERO,
            block_bytes: 0,
            block_busy_ns: 0,
            block_completions: 0,
        }
    }
}

impl DeviceEstimate {
    /// How many pages take as long as a request without its bytes; at least 1.
    pub fn request_cost_pages(&self) -> u64 {
        (self.request_ns * 1_000 / self.page_ps.max(1)).max(1)
    }

    /// How many pages keep the device busy as long as a request without its bytes does.
    pub fn request_occupies_pages(&self) -> u64 {
        self.occupied_ns * 1_000 / self.page_ps
    }

    /// What a request costs beside its bytes, in nanoseconds.
    pub fn request_ns(&self) -> u64 {
        self.request_ns
    }

    /// What a page costs at the device's best rate, in picoseconds.
    pub fn page_ps(&self) -> u64 {
        self.page_ps
    }

    /// A request goes to the device.
    pub fn dispatched(&mut self, now: Time, id: RequestId) {
        let at = id.0 as usize;
        if at >= self.under_way.len() {
            self.under_way.resize(at + 1, (Time::ZERO, false));
        }
        self.under_way[at] = (now, self.in_device == 0);
        if self.in_device == 0 {
            self.busy_since = now;
        }
        self.in_device += 1;
    }

    /// A request comes back with so many bytes.
    pub fn completed(&mut self, now: Time, id: RequestId, bytes: u64) {
        self.in_device -= 1;
        self.block_busy_ns += now.since(self.busy_since).ns();
        self.busy_since = now;
        self.block_bytes += bytes;
        self.block_completions += 1;
        if self.block_completions == RATE_COMPLETIONS {
            self.learn_rate();
        }
        let (dispatched, was_alone) = self.under_way[id.0 as usize];
        if was_alone {
            self.learn_request(now.since(dispatched).ns(), bytes);
        }
    }

    fn learn_rate(&mut self) {
        let block_pages = self.block_bytes / PAGE_BYTES;
        let page_ps = (self.block_busy_ns * 1_000 / block_pages.max(1)).max(1);
        let is_large = block_pages >= LARGE_PAGES * u64::from(RATE_COMPLETIONS);
        let forgotten = match self.is_rate_measured {
            _ if !is_large => self.page_ps,
            false => page_ps,
            true => self.page_ps + self.page_ps / FORGOTTEN,
        };
        self.page_ps = page_ps.min(forgotten);
        self.is_rate_measured |= is_large;
        let bytes_ns = block_pages * self.page_ps / 1_000;
        let occupied_ns = self.block_busy_ns.saturating_sub(bytes_ns) / u64::from(RATE_COMPLETIONS);
        if !is_large {
            self.occupied_ns = (3 * self.occupied_ns + occupied_ns) / 4;
        }
        (self.block_bytes, self.block_busy_ns, self.block_completions) = (0, 0, 0);
    }

    fn learn_request(&mut self, latency_ns: u64, bytes: u64) {
        let bytes_ns = bytes / PAGE_BYTES * self.page_ps / 1_000;
        // While the rate isn't known, half of it is the request's at least.
        let least_ns = if self.is_rate_measured { 0 } else { latency_ns / 2 };
        let request_ns = latency_ns.saturating_sub(bytes_ns).max(least_ns);
        self.request_ns = match self.request_ns {
            _ if !self.is_request_measured => request_ns,
            before if request_ns > before => before + (request_ns - before) / 4,
            before => before - (before - request_ns) / FORGOTTEN,
        };
        self.is_request_measured = true;
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
                estimate.completed(now, RequestId(0), pages * PAGE_BYTES);
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
                estimate.completed(now, RequestId(0), 256 * PAGE_BYTES);
            }
        }
        assert_eq!(estimate.page_ps(), 10_000_000);
    }
}
