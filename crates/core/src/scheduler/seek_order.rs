//! The order of service inside a queue of `cfq` or `bfq`.

use super::requests::{MergeResult, QueuedRequests, SectorKey};

/// Rules for a request behind the head, under the kernel's names. The *head* is at the end of the
/// last request sent, or at the request that a search starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackSeek {
    /// Largest distance behind the head at which a request may be served next, in sectors
    /// (back_seek_max).
    pub max_sectors: u64,
    /// Factor of a backward distance in comparisons with a forward one (back_seek_penalty).
    pub penalty: u64,
}

/// Returns the request to serve after the request at `key`; `None` if there is no other. The
/// candidates are the next one (or the first of all after the last) and the previous one. The head
/// is assumed at the start of the request at `key`.
pub(super) fn request_after(
    requests: &QueuedRequests,
    key: SectorKey,
    back_seek: BackSeek,
) -> Option<SectorKey> {
    let first = || requests.first_from(0).filter(|&first| first != key);
    let next = requests.next(key).or_else(first);
    nearest_to_head(next, requests.previous(key), key.start, back_seek)
}

/// Returns the request to serve next after a merge that changed a key. `next` is the one that was
/// to be served next before it; `None` if there was none.
pub(super) fn next_after_merge(
    next: Option<SectorKey>,
    merged: &MergeResult,
    head: u64,
    back_seek: BackSeek,
) -> Option<SectorKey> {
    let is_merged = |key| merged.former_keys.contains(&Some(key));
    let next = next.map(|next| if is_merged(next) { merged.new_key } else { next });
    nearest_to_head(next, Some(merged.new_key), head, back_seek)
}

/// Chooses the request to serve first when the head is at sector `head`. It is the nearer one
/// ahead. A request at most `back_seek.max_sectors` behind counts with its distance times
/// `back_seek.penalty`. Requests further behind come last, the lowest sector first, because the
/// head reaches it first after a sweep back. A missing request leaves the other one; `None` if both
/// are missing.
pub(super) fn nearest_to_head(
    one: Option<SectorKey>,
    other: Option<SectorKey>,
    head: u64,
    back_seek: BackSeek,
) -> Option<SectorKey> {
    let (Some(one), Some(other)) = (one, other) else { return one.or(other) };
    // `None` for a request too far behind.
    let distance = |key: SectorKey| match head.checked_sub(key.start) {
        None | Some(0) => Some(key.start - head),
        Some(behind) if behind <= back_seek.max_sectors => {
            Some(behind.saturating_mul(back_seek.penalty))
        }
        Some(_) => None,
    };
    let is_one_nearer = match (distance(one), distance(other)) {
        (Some(one_distance), Some(other_distance)) if one_distance != other_distance => {
            one_distance < other_distance
        }
        // At equal distances, the request ahead of the head.
        (Some(_), Some(_)) => one.start >= other.start,
        (Some(_), None) => true,
        (None, Some(_)) => false,
        (None, None) => one.start <= other.start,
    };
    Some(if is_one_nearer { one } else { other })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestTable;
    use crate::scheduler::requests::WaitingRequest;
    use crate::scheduler::testing::read;
    use crate::unit::Time;

    /// The defaults of the kernel: 16 MiB, which are 32,768 sectors, and 2.
    const BACK_SEEK: BackSeek = BackSeek { max_sectors: 32_768, penalty: 2 };

    /// Queued requests of 8 sectors with these start sectors, and their keys.
    fn queued<const N: usize>(starts: [u64; N]) -> (QueuedRequests, [SectorKey; N]) {
        let mut table = RequestTable::default();
        let mut requests = QueuedRequests::default();
        let keys = starts.map(|start| {
            let id = table.open(read(start, 8));
            requests.insert(WaitingRequest { id, arrived: Time::ZERO }, &table)
        });
        (requests, keys)
    }

    /// Start of the request chosen among two, for a head at the given sector. With the defaults a
    /// distance behind the head counts twice, and is at most 16 MiB.
    #[test]
    fn nearer_request_is_chosen_ahead_or_within_the_back_seek_limit() {
        let chosen_start = |one, other, head| {
            let (_, [one, other]) = queued([one, other]);
            nearest_to_head(Some(one), Some(other), head, BACK_SEEK).unwrap().start
        };
        assert_eq!(chosen_start(1_100, 1_300, 1_000), 1_100, "both ahead");
        assert_eq!(chosen_start(1_100, 960, 1_000), 960, "40 behind count 80");
        assert_eq!(chosen_start(1_100, 940, 1_000), 1_100, "60 behind count 120");
        assert_eq!(chosen_start(1_000_000, 100_000 - 32_769, 100_000), 1_000_000, "too far behind");
        assert_eq!(chosen_start(1_000_000, 100_000 - 32_768, 100_000), 67_232);
        assert_eq!(chosen_start(500, 400, 100_000), 400, "both too far behind: the lower");
    }

    /// The head is at the request that was served last: at sector 10, then at 1,000,000.
    #[test]
    fn request_after_the_last_one_is_the_lowest() {
        let (requests, keys) = queued([10, 500_000, 1_000_000]);
        assert_eq!(request_after(&requests, keys[0], BACK_SEEK), Some(keys[1]));
        // Back 500,000 sectors and back 999,990 are both too far: the lower one.
        assert_eq!(request_after(&requests, keys[2], BACK_SEEK), Some(keys[0]));
    }
}
