//! Whether a process reads on from where it read before, request by request.
//!
//! A request is near that begins within 400 KiB of where the last one of its
//! process ended, and is no larger than any before. One that is larger belongs to a
//! stream that is read ahead with a growing window: each visit to it already
//! brings more than the one before, and it need not be waited for. A process is
//! near when no more than an eighth of its newest requests are not: a near
//! request takes about 1 ms and a far one 8, so below that the far ones do not
//! rule (source D's reasoning, and its threshold).

use crate::observed::{EWMA_WINDOW, MIN_SAMPLES};
use crate::request::Request;

/// A request that begins within so many sectors of where the last one ended is near:
/// 400 KiB, as in CFQ's detector of 2010 (source D).
const NEAR_SECTORS: u64 = 800;

/// All requests are near.
const ALL: u64 = 256;

/// What is known of where a process reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Locality {
    /// The last request's end, and the longest so far; `None` before the first.
    last: Option<(u64, u32)>,
    /// The share of near requests, of [`ALL`], and of how many.
    near: u64,
    requests: u64,
}

impl Locality {
    /// The process asks for this.
    pub(super) fn observe(&mut self, request: &Request) {
        let mut longest = request.sectors;
        if let Some((last_end, longest_before)) = self.last {
            longest = longest.max(longest_before);
            let is_close = request.start.abs_diff(last_end) <= NEAR_SECTORS;
            let near = if is_close && request.sectors <= longest_before { ALL } else { 0 };
            self.requests = (self.requests + 1).min(EWMA_WINDOW);
            self.near = (self.near * (self.requests - 1) + near) / self.requests;
        }
        self.last = Some((request.end(), longest));
    }

    /// Its requests are known to be near.
    pub(super) fn is_near(&self) -> bool {
        self.requests >= MIN_SAMPLES && 8 * self.near >= 7 * ALL
    }

    /// They are, or there were too few to tell.
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
    fn fifteen_near_and_one_far_is_near_and_fourteen_and_two_is_not() {
        // Records of 64 KiB at random places, read page by page: source D's load.
        let records =
            (0..4).flat_map(|nth| (0..16).map(move |page| (nth * 1_000_000 + page * 8, 8)));
        assert!(after(records).is_near());
        let halves = (0..8).flat_map(|nth| (0..7).map(move |page| (nth * 1_000_000 + page * 8, 8)));
        assert!(!after(halves).is_near());
    }

    #[test]
    fn four_requests_decide_and_a_growing_window_is_not_near() {
        let stream = |requests: u64| after((0..=requests).map(|nth| (nth * 128, 128)));
        assert!(!stream(3).is_near() && stream(3).may_be_near());
        assert!(stream(4).is_near());
        let growing = after((5..10).map(|power| (1 << power, 1 << power)));
        assert!(!growing.is_near() && !growing.may_be_near());
    }
}
