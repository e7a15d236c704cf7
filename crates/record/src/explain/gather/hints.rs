//! Access hints of a file (`posix_fadvise`, `madvise`), by range.

use readpath_trace::recording::{AdviceGiven, AdviceType};

/// Number of ranges that are kept. The number is chosen: a program with more ranges advises single
/// records. All hints are then dropped, because a stale hint is worse than no hint.
const RANGES_MAX: usize = 1 << 10;

/// Hints of one file, for one method of access, oldest first. The newest range that contains an
/// offset counts.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Hints {
    /// Ranges of the hints, oldest first. None lies within the range of a newer one.
    ranges: Vec<HintRange>,
}

/// Hint for a range of bytes.
#[derive(Clone, Debug)]
struct HintRange {
    /// Offset of the first byte.
    begin: u64,
    /// End in bytes, exclusive.
    end: u64,
    /// The hint: normal, random or sequential.
    hint: AdviceType,
}

impl Hints {
    /// Adds a hint about the order of accesses. It replaces older hints within its range. Other
    /// advice is ignored.
    pub fn add(&mut self, advice: &AdviceGiven) {
        if !matches!(advice.hint, AdviceType::Normal | AdviceType::Random | AdviceType::Sequential)
        {
            return;
        }
        let end = advice.end();
        let is_covered = |range: &HintRange| advice.offset <= range.begin && range.end <= end;
        self.ranges.retain(|range| !is_covered(range));
        if self.ranges.len() >= RANGES_MAX {
            self.ranges.clear();
        }
        self.ranges.push(HintRange { begin: advice.offset, end, hint: advice.hint });
    }

    /// Returns the newest hint whose range contains an offset, or `None`.
    pub fn hint_at(&self, offset: u64) -> Option<AdviceType> {
        let contains_offset = |range: &&HintRange| (range.begin..range.end).contains(&offset);
        self.ranges.iter().rev().find(contains_offset).map(|range| range.hint)
    }

    /// Returns true if any range has this hint.
    pub fn has_hint(&self, hint: AdviceType) -> bool {
        self.ranges.iter().any(|range| range.hint == hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A random hint for the whole file, then a sequential one for bytes 4096 to 12,287. `WillNeed`
    /// is no hint about the order.
    #[test]
    fn newest_hint_at_an_offset_applies() {
        let mut hints = Hints::default();
        let advice =
            |offset, bytes, hint| AdviceGiven { offset, bytes, hint, ..AdviceGiven::default() };
        hints.add(&advice(0, 0, AdviceType::Random));
        hints.add(&advice(4096, 8192, AdviceType::Sequential));
        hints.add(&advice(4096, 4096, AdviceType::WillNeed));
        let found = [0, 4096, 12_287, 12_288].map(|offset| hints.hint_at(offset));
        let (random, sequential) = (Some(AdviceType::Random), Some(AdviceType::Sequential));
        assert_eq!(found, [random, sequential, sequential, random]);
        hints.add(&advice(0, 0, AdviceType::Normal));
        assert_eq!(hints.hint_at(5000), Some(AdviceType::Normal));
        let has_random = hints.has_hint(AdviceType::Random);
        assert!(!has_random, "a hint on the whole file replaces all others");
    }
}
