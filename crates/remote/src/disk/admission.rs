//! Admission: the pages that are worth a write. An *entry* is the file of one block of an object's
//! version in the folder.
//!
//! How it works: fetched pages are written if
//!
//! ```text
//! p × (A − R) > W
//! ```
//!
//! - A is the cost of reading them again from the store. It has the service time of a request, its
//!   wait among the requests in flight, and the transfer of the pages.
//! - R is the cost of reading them from the folder, and W of writing them there. Each is a request
//!   for each block, and the transfer of the pages.
//! - p is the probability of another read. It is 1 for pages that were fetched before and left
//!   memory since. For new pages it is (K + 1) ÷ (N + 16). N is the number of recent fetches of new
//!   pages of a block. K is the number of repeated reads of such pages, at most N.
//!
//! All costs are measured, as the planner measures its storage ([`DeviceEstimate`]). The first few
//! fetches are written in any case, since nothing else measures W. A stream that
//! is read once makes p small, and is not written. Small reads at random places are written while
//! p is small, since each costs a latency.

use std::collections::{BTreeMap, VecDeque};

use readpath_core::estimate::DeviceEstimate;
use readpath_core::request::RequestId;
use readpath_core::unit::{PAGE_BYTES, Time};

use super::entry::EntryName;

/// Number of fetches that the first estimate of p stands for, chosen: one read again in 16.
const PRIOR_FETCHES: u64 = 16;

/// Number of fetches, chosen, after which both counts are halved, so that p follows the program.
const FETCHES_MAX: u64 = 4096;

/// Number of fetched blocks that are remembered without their bytes, chosen: 16 GiB in full blocks.
const SEEN_MAX: usize = 65_536;

/// Number of measured writes before the rule applies. Chosen.
const MEASURED_WRITES_MIN: u64 = 8;

/// One of this number of refused writes of pages that were fetched before is made all the same.
/// Its time is the only new evidence about W. Chosen.
const SAMPLE_DISTANCE: u64 = 256;

/// Costs of both storages, and evidence about repeated reads.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// Costs of the store.
    store: DeviceEstimate,
    /// True for each identifier of a request in flight.
    in_flight: Vec<bool>,
    /// Costs of reading and of writing entries.
    disk_reads: DeviceEstimate,
    disk_writes: DeviceEstimate,
    /// Number of entries that were read, and written.
    reads: u64,
    writes: u64,
    /// Recent fetches of new pages of a block, and the number of these that were read again.
    new_fetches: u64,
    read_again: u64,
    /// Blocks that were fetched, the oldest first.
    seen_order: VecDeque<EntryName>,
    /// The pages of these blocks that were fetched: bit n for page n.
    seen: BTreeMap<EntryName, u64>,
    /// Refused writes of pages that were fetched before.
    refused: u64,
}

impl Admission {
    /// A request to the store begins. Returns its identifier, which is in use until `on_answer`.
    pub(super) fn on_request(&mut self, now: Time) -> RequestId {
        let index = match self.in_flight.iter().position(|is_used| !is_used) {
            Some(index) => index,
            None => {
                self.in_flight.push(false);
                self.in_flight.len() - 1
            }
        };
        self.in_flight[index] = true;
        let id = RequestId(index as u32);
        // `None`: the request has no sectors, which would show if it continues the one before.
        self.store.on_dispatch(now, id, None);
        id
    }

    /// A request to the store has ended, with this number of bytes; `None` for a failed one, whose
    /// time does not count.
    pub(super) fn on_answer(&mut self, now: Time, id: RequestId, bytes: Option<u64>) {
        self.in_flight[id.0 as usize] = false;
        if let Some(bytes) = bytes {
            // Both times are `now`: the answer is reported at its arrival, so its time is exact.
            self.store.on_completion(now, now, id, bytes);
        }
    }

    /// Bytes of an entry were read in `ns` nanoseconds.
    pub(super) fn on_disk_read(&mut self, ns: u64, bytes: u64) {
        self.reads += 1;
        observe(&mut self.disk_reads, ns, bytes);
    }

    /// Bytes of an entry were written in `ns` nanoseconds.
    pub(super) fn on_disk_write(&mut self, ns: u64, bytes: u64) {
        self.writes += 1;
        observe(&mut self.disk_writes, ns, bytes);
    }

    /// Counts new pages that were read again: by the first hit of their entry, or by another fetch
    /// after they left memory. There are at most as many as fetches of new pages.
    pub(super) fn on_read_again(&mut self) {
        self.read_again = (self.read_again + 1).min(self.new_fetches);
    }

    /// Remembers fetched pages of a block: bit n is set for page n. Returns true if most of them
    /// were fetched before, as far as remembered, and counts a repeated read then. Otherwise it
    /// counts a fetch of new pages, and halves both counts above [`FETCHES_MAX`]. The block that
    /// was fetched first is forgotten when there are more than [`SEEN_MAX`].
    pub(super) fn on_fetched(&mut self, name: EntryName, pages: u64) -> bool {
        let seen = self.seen.entry(name).or_insert_with(|| {
            self.seen_order.push_back(name);
            0
        });
        let was_seen = 2 * (*seen & pages).count_ones() > pages.count_ones();
        *seen |= pages;
        if self.seen_order.len() > SEEN_MAX
            && let Some(oldest) = self.seen_order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        if was_seen {
            self.on_read_again();
            return true;
        }
        self.new_fetches += 1;
        if self.new_fetches > FETCHES_MAX {
            (self.new_fetches, self.read_again) = (self.new_fetches / 2, self.read_again / 2);
        }
        false
    }

    /// Decides whether a fetch of `pages` pages in `blocks` blocks is written. `was_seen` is true
    /// for pages that were fetched before. Some writes that are not worth it are made to measure
    /// their cost: the first ones, and one of [`SAMPLE_DISTANCE`] of seen pages.
    pub(super) fn is_worth(&mut self, was_seen: bool, pages: u64, blocks: u64) -> bool {
        if self.writes < MEASURED_WRITES_MIN {
            return true;
        }
        let write_ps = disk_ps(&self.disk_writes, pages, blocks);
        // Before the first read from the folder, it is expected to cost as much as a write.
        let read_ps = match self.reads {
            0 => write_ps,
            _ => disk_ps(&self.disk_reads, pages, blocks),
        };
        let saved_ps = self.store_ps(pages).saturating_sub(read_ps);
        if was_seen {
            let is_worth = saved_ps > write_ps;
            self.refused += u64::from(!is_worth);
            return is_worth || self.refused.is_multiple_of(SAMPLE_DISTANCE);
        }
        // p × saved > write, without a division. No write is made only as a sample here: the ones
        // of seen pages measure W for both.
        let (again, new) = (self.read_again + 1, self.new_fetches + PRIOR_FETCHES);
        u128::from(saved_ps) * u128::from(again) > u128::from(write_ps) * u128::from(new)
    }

    /// Cost A of one more request to the store, in picoseconds. The estimate has its costs in
    /// pages: in multiples of the time in which a page is transferred.
    fn store_ps(&self, pages: u64) -> u64 {
        let others = self.in_flight.iter().filter(|is_used| **is_used).count() as u64;
        let service_pages = self.store.request_service_pages();
        let wait_pages = self.store.request_waits_pages(pages, others);
        (service_pages + wait_pages + pages).saturating_mul(self.store.page_ps())
    }
}

/// Cost of a transfer of `pages` pages to or from the folder in picoseconds. Each of the `blocks`
/// blocks is a request of its own.
fn disk_ps(estimate: &DeviceEstimate, pages: u64, blocks: u64) -> u64 {
    let requests_ps = estimate.request_ns().saturating_mul(1_000).saturating_mul(blocks);
    requests_ps.saturating_add(pages.saturating_mul(estimate.page_ps()))
}

/// Adds a transfer of this duration to an estimate, in whole pages. As in `on_request`, it has no
/// sectors (`None`).
fn observe(estimate: &mut DeviceEstimate, ns: u64, bytes: u64) {
    let (id, end) = (RequestId(0), Time(ns));
    estimate.on_dispatch(Time::ZERO, id, None);
    estimate.on_completion(end, end, id, bytes.next_multiple_of(PAGE_BYTES));
}

#[cfg(test)]
mod tests {
    use super::super::entry::VersionKey;
    use super::*;

    /// Pages of a fetch in its block.
    const PAGES: u64 = 0b1110;

    /// A store of 20 ms and 100 MB/s next to a disk of 100 us and 1 GB/s, by 200 requests each.
    fn measured(request_pages: u64) -> Admission {
        let mut admission = Admission::default();
        let mut now = Time::ZERO;
        for round in 0..200 {
            let pages = if round % 2 == 0 { request_pages } else { 1 };
            let id = admission.on_request(now);
            now = Time(now.0 + 20_000_000 + pages * 40_960);
            admission.on_answer(now, id, Some(pages * PAGE_BYTES));
            admission.on_disk_read(100_000 + pages * 4_096, pages * PAGE_BYTES);
            admission.on_disk_write(100_000 + pages * 4_096, pages * PAGE_BYTES);
        }
        admission
    }

    fn name(block: u64) -> EntryName {
        VersionKey::new("store", "path", "tag", 1 << 40).unwrap().entry(block)
    }

    /// One page costs 20 ms again, and a write 0.1 ms: p must exceed 1/200. With no block read
    /// again, p is 1 ÷ (N + 16): written up to about 184 new blocks.
    #[test]
    fn random_reads_are_written_until_they_have_not_returned_for_long() {
        let mut admission = measured(64);
        let mut written = 0;
        for block in 0..4000 {
            assert!(!admission.on_fetched(name(block), PAGES));
            written += u64::from(admission.is_worth(false, 1, 1));
        }
        assert!((150..=220).contains(&written), "{written}");
        // One of four returns: p is about 1/4, and the next ones are written.
        for block in 0..1000 {
            assert!(admission.on_fetched(name(block), PAGES));
            assert!(admission.is_worth(true, 1, 1));
        }
        assert!(admission.is_worth(false, 1, 1));
    }

    /// A stream in small fetches: the pages are new, though their block is not.
    #[test]
    fn other_pages_of_a_fetched_block_are_new() {
        let mut admission = Admission::default();
        assert!(!admission.on_fetched(name(7), 0xff));
        assert!(!admission.on_fetched(name(7), 0xff00));
        assert!(!admission.on_fetched(name(7), 0xf_8000));
        assert!(admission.on_fetched(name(7), 0x80ff));
        assert!(!admission.on_fetched(name(8), 0xff));
    }

    /// With 63 other requests in flight, 2 MiB cost their transfer of 21 ms again, and a write of
    /// eight blocks 2.9 ms: p must exceed 2.9 ÷ (21 - 2.9), or 1/6.2. The first p is 1/16.
    #[test]
    fn stream_is_written_when_it_is_read_again() {
        let mut admission = measured(512);
        let requests: Vec<_> = (0..63).map(|_| admission.on_request(Time(1 << 40))).collect();
        for block in 0..100 {
            assert!(!admission.on_fetched(name(block), PAGES));
            assert!(!admission.is_worth(false, 512, 8));
        }
        assert!(admission.on_fetched(name(0), PAGES));
        assert!(admission.is_worth(true, 512, 8));
        for id in requests {
            admission.on_answer(Time(1 << 40), id, None);
        }
        assert!(admission.in_flight.iter().all(|is_used| !is_used));
    }

    /// A store without latency is faster than the disk. One refusal in 256 is overruled.
    #[test]
    fn nothing_is_written_for_a_store_that_is_faster_than_the_disk() {
        let mut admission = measured(64);
        admission.store = DeviceEstimate::default();
        for _ in 0..200 {
            let id = admission.on_request(Time::ZERO);
            admission.on_answer(Time(1_000), id, Some(PAGE_BYTES));
        }
        assert!(!admission.is_worth(false, 1, 1));
        let written = (0..512).filter(|_| admission.is_worth(true, 1, 1)).count();
        assert_eq!(written, 2);
    }
}
