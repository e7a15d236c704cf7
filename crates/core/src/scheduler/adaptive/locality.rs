//! Locality: a process reads on close to its last request.
//!
//! A request is near if it begins within 400 KiB of the end of the last request of its process, and
//! is no larger than the largest before. A larger one belongs to a stream with a growing window:
//! each visit brings more than the one before, and waiting for it is unnecessary. A process is near
//! if at most an eighth of its newest requests are not. A near request takes about 1 ms and a far
//! one 8 ms, so that below that share the far ones do not dominate. The threshold and its reason
//! are from the change of CFQ's seek detector in 2010 (Linux 2.6.34), *source D*.

use crate::observed::{EWMA_WINDOW, MIN_SAMPLES};
use crate::request::Request;

/// Largest distance, in sectors, of a near request from the end of the last one: 400 KiB, as in
/// CFQ's detector of 2010 (source D).
const NEAR_SECTORS: u64 = 800;

/// Value of [`Locality::near_share`] if all requests are near.
const ALL_NEAR: u64 = 256;

/// The last request of a process.
#[derive(Clone, Copy, Debug)]
struct LastRequest {
    /// Sector after the request.
    end: u64,
    /// Size of the largest request so far, in sectors.
    sectors_max: u32,
}

/// Locality of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Locality {
    /// The last request; `None` before the first.
    last: Option<LastRequest>,
    /// Share of near requests, of [`ALL_NEAR`].
    near_share: u64,
    /// Number of requests in that share, at most 16 ([`EWMA_WINDOW`]).
    requests: u64,
}

impl Locality {
    /// Updates the share of near requests by a new request, and remembers it as the last one. The
    /// first request has no predecessor and does not count.
    pub(super) fn record_request(&mut self, request: &Request) {
        let mut sectors_max = request.sectors;
        if let Some(last) = self.last {
            sectors_max = sectors_max.max(last.sectors_max);
            let is_close = request.start.abs_diff(last.end) <= NEAR_SECTORS;
            let is_near = is_close && request.sectors <= last.sectors_max;
            let sample = if is_near { ALL_NEAR } else { 0 };
            self.requests = (self.requests + 1).min(EWMA_WINDOW);
            // The mean of the first 16 samples; each later one weighs a sixteenth.
            self.near_share = (self.near_share * (self.requests - 1) + sample) / self.requests;
        }
        self.last = Some(LastRequest { end: request.end(), sectors_max });
    }

    /// Returns true if at least 4 requests ([`MIN_SAMPLES`]) were observed, and seven eighths of
    /// the newest ones are near.
    pub(super) fn is_near(&self) -> bool {
        self.requests >= MIN_SAMPLES && 8 * self.near_share >= 7 * ALL_NEAR
    }

    /// Returns true if the requests are near, or if fewer than [`MIN_SAMPLES`] were observed.
    pub(super) fn may_be_near(&self) -> bool {
        self.requests < MIN_SAMPLES || self.is_near()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::read;
    use super::*;

    /// Locality after reads, each with its first sector and its number of sectors.
    fn locality_after(starts_and_sectors: impl IntoIterator<Item = (u64, u32)>) -> Locality {
        let mut locality = Locality::default();
        for (start, sectors) in starts_and_sectors {
            locality.record_request(&read(start, sectors));
        }
        locality
    }

    /// Records lie 1,000,000 sectors apart, so the first page of each is far. Records of 16 pages
    /// have 15 near pages in 16, and records of 7 pages 6 in 7: below seven eighths.
    #[test]
    fn reads_are_near_with_one_far_in_16_and_not_with_two() {
        // Records of 64 KiB at random offsets, read page by page: the load of source D.
        let records =
            (0..4).flat_map(|nth| (0..16).map(move |page| (nth * 1_000_000 + page * 8, 8)));
        assert!(locality_after(records).is_near());
        let short_records =
            (0..8).flat_map(|nth| (0..7).map(move |page| (nth * 1_000_000 + page * 8, 8)));
        assert!(!locality_after(short_records).is_near());
    }

    /// Four requests have a predecessor when five were sent. In the growing stream each request has
    /// twice the sectors of the one before.
    #[test]
    fn locality_is_decided_after_four_requests_and_not_by_growing_windows() {
        let stream = |requests: u64| locality_after((0..=requests).map(|nth| (nth * 128, 128)));
        assert!(!stream(3).is_near() && stream(3).may_be_near());
        assert!(stream(4).is_near());
        let growing = locality_after((5..10).map(|power| (1 << power, 1 << power)));
        assert!(!growing.is_near() && !growing.may_be_near());
    }
}
