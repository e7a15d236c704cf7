//! Locality: a process reads on close to its last request.
//!
//! A request is near if it begins within 400 KiB of the end of the last request of its process, and
//! is no larger than any before. A larger one belongs to a stream with a growing readahead window:
//! each visit brings more than the one before, and waiting for it is unnecessary. A process is near
//! if at most an eighth of its newest requests are not. A near request takes about 1 ms and a far
//! one 8 ms, so that below that share the far ones do not dominate (the reasoning of source D, and
//! its threshold).

use crate::observed::{EWMA_WINDOW, MIN_SAMPLES};
use crate::request::Request;

/// Largest distance, in sectors, of a near request from the end of the last one: 400 KiB, as in
/// CFQ's detector of 2010 (source D).
const NEAR_SECTORS: u64 = 800;

/// Value of [`Locality::near`] if all requests are near.
const ALL: u64 = 256;

/// Locality of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Locality {
    /// End of the last request, and the largest size so far in sectors; `None` before the first.
    last: Option<(u64, u32)>,
    /// Share of near requests, of [`ALL`].
    near: u64,
    /// Number of requests in that share, at most [`EWMA_WINDOW`].
    requests: u64,
}

impl Locality {
    /// Updates the mean nearness of the process's requests by a new request. A request is near if
    /// it begins close to the end of the previous one and is no longer than any before.
    pub(super) fn observe(&mut self, request: &Request) {
        let mut longest_sectors = request.sectors;
        if let Some((last_end, longest_before)) = self.last {
            longest_sectors = longest_sectors.max(longest_before);
            let is_close = request.start.abs_diff(last_end) <= NEAR_SECTORS;
            let sample = if is_close && request.sectors <= longest_before { ALL } else { 0 };
            self.requests = (self.requests + 1).min(EWMA_WINDOW);
            self.near = (self.near * (self.requests - 1) + sample) / self.requests;
        }
        self.last = Some((request.end(), longest_sectors));
    }

    /// Returns true if at least [`MIN_SAMPLES`] requests were observed, and seven eighths of the
    /// newest ones are near.
    pub(super) fn is_near(&self) -> bool {
        self.requests >= MIN_SAMPLES && 8 * self.near >= 7 * ALL
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

    fn after(starts_and_sectors: impl IntoIterator<Item = (u64, u32)>) -> Locality {
        let mut locality = Locality::default();
        for (start, sectors) in starts_and_sectors {
            locality.observe(&read(start, sectors));
        }
        locality
    }

    #[test]
    fn reads_are_near_with_one_far_in_16_and_not_with_two() {
        // Records of 64 KiB at random offsets, read page by page: the load of source D.
        let records =
            (0..4).flat_map(|nth| (0..16).map(move |page| (nth * 1_000_000 + page * 8, 8)));
        assert!(after(records).is_near());
        let halves = (0..8).flat_map(|nth| (0..7).map(move |page| (nth * 1_000_000 + page * 8, 8)));
        assert!(!after(halves).is_near());
    }

    #[test]
    fn locality_is_decided_after_four_requests_and_not_by_growing_windows() {
        let stream = |requests: u64| after((0..=requests).map(|nth| (nth * 128, 128)));
        assert!(!stream(3).is_near() && stream(3).may_be_near());
        assert!(stream(4).is_near());
        let growing = after((5..10).map(|power| (1 << power, 1 << power)));
        assert!(!growing.is_near() && !growing.may_be_near());
    }
}
