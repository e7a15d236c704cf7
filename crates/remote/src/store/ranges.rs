//! Ranges of gets: the first request for an object, and the pieces of a stream.

use std::ops::Range;

use object_store::GetRange;
use readpath_core::unit::PAGE_BYTES;

use super::options::StoreOptions;

/// Size of the pieces of a stream. A get of one piece is complete before it returns, so that a
/// change of the object repeats it. In parallel fetches of 100 MB/s each, a piece takes about as
/// long as a request.
const PIECE_BYTES: u64 = 32 << 20;

/// Number of pieces of a stream whose reads have started: one that its consumer waits for, and the
/// next one. An ended read holds its bytes outside of the cache until the consumer takes them.
const STARTED_MAX: usize = 2;

/// The pieces whose reads start with the get.
pub(super) fn first_pieces(pieces: &[Range<u64>]) -> &[Range<u64>] {
    &pieces[..pieces.len().min(STARTED_MAX)]
}

impl StoreOptions {
    /// Largest get through the cache in bytes: half of the memory, less a page.
    pub(super) fn cached_bytes_max(&self) -> u64 {
        // Half of the whole pages. A read of this size may begin and end within a page, and then
        // takes one page more.
        self.planner.memory_bytes / PAGE_BYTES * PAGE_BYTES / 2 - PAGE_BYTES
    }

    /// The pieces of a get, in order; one for an empty range.
    pub(super) fn pieces(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let piece_bytes = PIECE_BYTES.min(self.cached_bytes_max());
        let count = (range.end - range.start).div_ceil(piece_bytes).max(1);
        let piece = |index: u64| {
            let start = range.start + index * piece_bytes;
            start..(start + piece_bytes).min(range.end)
        };
        (0..count).map(piece).collect()
    }
}

/// The range of the first request for an object whose length is unknown: the first part of `range`,
/// in whole pages. `None` if the beginning of the range depends on the length, and may be far from
/// the end.
pub(super) fn first_part(range: &GetRange, part_bytes: u64) -> Option<GetRange> {
    let from = |start: u64| start / PAGE_BYTES * PAGE_BYTES;
    match range {
        GetRange::Bounded(range) => {
            let start = from(range.start);
            let end = range.end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
            Some(GetRange::Bounded(start..end.min(start.saturating_add(part_bytes))))
        }
        GetRange::Offset(start) => {
            let start = from(*start);
            Some(GetRange::Bounded(start..start.saturating_add(part_bytes)))
        }
        // The suffix may begin anywhere in a page. With 4,095 more bytes before it, the request
        // reaches back to the beginning of that page in any case.
        GetRange::Suffix(bytes) => {
            let bytes = bytes.checked_add(PAGE_BYTES - 1).filter(|&bytes| bytes <= part_bytes)?;
            Some(GetRange::Suffix(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_request_has_whole_pages_and_at_most_a_part() {
        let part = |range: GetRange| first_part(&range, 65_536);
        let bounded = |start, end| Some(GetRange::Bounded(start..end));
        assert_eq!(part(GetRange::Bounded(5000..5001)), bounded(4096, 8192));
        assert_eq!(part(GetRange::Bounded(5000..1 << 40)), bounded(4096, 69_632));
        assert_eq!(part(GetRange::Bounded(0..u64::MAX)), bounded(0, 65_536));
        assert_eq!(part(GetRange::Offset(4095)), bounded(0, 65_536));
        assert_eq!(part(GetRange::Suffix(8)), Some(GetRange::Suffix(4103)));
        assert_eq!(part(GetRange::Suffix(61_442)), None);
        assert_eq!(part(GetRange::Suffix(u64::MAX)), None);
    }

    #[test]
    fn pieces_cover_a_range_in_order() {
        let mib = 1 << 20;
        let mut options = StoreOptions::default();
        options.planner.memory_bytes = 1024 * mib;
        assert_eq!(options.pieces(&(7..7)), vec![7..7]);
        assert_eq!(
            options.pieces(&(5..80 * mib)),
            [5..32 * mib + 5, 32 * mib + 5..64 * mib + 5, 64 * mib + 5..80 * mib]
        );
    }
}
