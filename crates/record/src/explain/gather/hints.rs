//! Access hints of a file (`posix_fadvise`, `madvise`), by range.

use readpath_trace::recording::{AdviceGiven, AdviceType};

/// Number of ranges that are kept. A program with more ranges advises single records. All hints are
/// then dropped, because a stale hint is worse than no hint.
const RANGES_MAX: usize = 1 << 10;

/// Hints of one file, for one method of access: first byte, end (exclusive) and hint, oldest first.
/// The newest range that contains an offset counts.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Hints(Vec<(u64, u64, AdviceType)>);

impl Hints {
    /// Adds a hint about the order of accesses. It replaces older hints within its range. Other
    /// advice is ignored.
    pub fn add(&mut self, advice: &AdviceGiven) {
        if !matches!(advice.hint, AdviceType::Normal | AdviceType::Random | AdviceType::Sequential)
        {
            return;
        }
        let end = match advice.bytes {
            0 => u64::MAX,
            bytes => advice.offset.saturating_add(bytes),
        };
        let is_covered =
            |&(first, last, _): &(u64, u64, AdviceType)| advice.offset <= first && last <= end;
        self.0.retain(|range| !is_covered(range));
        if self.0.len() >= RANGES_MAX {
            self.0.clear();
        }
        self.0.push((advice.offset, end, advice.hint));
    }

    /// Returns the newest hint whose range contains an offset, or `None`.
    pub fn at(&self, offset: u64) -> Option<AdviceType> {
        let holds = |(first, end, _): &&(u64, u64, AdviceType)| (*first..*end).contains(&offset);
        self.0.iter().rev().find(holds).map(|(_, _, hint)| *hint)
    }

    /// Returns true if any range has this hint.
    pub fn has(&self, hint: AdviceType) -> bool {
        self.0.iter().any(|(_, _, other)| *other == hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_hint_at_an_offset_applies() {
        let mut hints = Hints::default();
        let advice =
            |offset, bytes, hint| AdviceGiven { offset, bytes, hint, ..AdviceGiven::default() };
        hints.add(&advice(0, 0, AdviceType::Random));
        hints.add(&advice(4096, 8192, AdviceType::Sequential));
        hints.add(&advice(4096, 4096, AdviceType::WillNeed));
        let at = [0, 4096, 12_287, 12_288].map(|offset| hints.at(offset));
        let (random, sequential) = (Some(AdviceType::Random), Some(AdviceType::Sequential));
        assert_eq!(at, [random, sequential, sequential, random]);
        hints.add(&advice(0, 0, AdviceType::Normal));
        assert_eq!(hints.at(5000), Some(AdviceType::Normal));
        assert!(!hints.has(AdviceType::Random), "a hint on the whole file replaces all others");
    }
}
