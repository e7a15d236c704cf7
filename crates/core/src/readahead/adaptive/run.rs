//! A run of one reader, or its newest part: how long it is, and what the curves learn of it.

use super::super::{DeviceEvidence, RunBegin};

/// Pages that were used in order, counted in requests of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct SequentialRun {
    /// What was known when it began, which says by which curve it is judged.
    pub(super) begin: RunBegin,
    /// How many pages its first request asked for, at least 1.
    pub(super) each: u64,
    /// Pages that its reader has behind it.
    pub(super) behind: u64,
    /// With which length it is taken to have ended, if it is.
    ended_with: Option<u64>,
}

impl SequentialRun {
    /// One of so many pages, the first request of which asked for `each`.
    pub(super) fn begun(begin: RunBegin, each: u64, behind: u64) -> SequentialRun {
        SequentialRun { begin, each: each.max(1), behind, ended_with: None }
    }

    /// How long it is: in requests of the size of its first.
    pub(super) fn length(&self) -> u64 {
        self.length_with(self.behind)
    }

    fn length_with(&self, behind: u64) -> u64 {
        (behind / self.each).max(1)
    }

    /// Whether a request of so many pages is more than twice as large as those of this run, or less
    /// than half. (Requests of one size touch a page more where they don't begin with one.)
    pub(super) fn is_of_other_size(&self, pages: u64) -> bool {
        pages > 2 * self.each || 2 * pages < self.each
    }

    /// So many pages more were used.
    pub(super) fn grew(&mut self, pages: u64, device: &mut DeviceEvidence) {
        let before = self.length();
        self.behind += pages;
        let length_distribution = device.lengths.of_mut(self.begin);
        if let Some(length) = self.ended_with.take() {
            length_distribution.undo_end(length);
        }
        length_distribution.grew(before, self.length());
    }

    /// It has ended, with so many pages more than were seen, as far as is known.
    pub(super) fn ended(&mut self, unseen_pages: u64, device: &mut DeviceEvidence) {
        if self.ended_with.is_some() {
            return;
        }
        let length = self.length_with(self.behind + unseen_pages);
        self.ended_with = Some(length);
        let length_distribution = device.lengths.of_mut(self.begin);
        length_distribution.grew(self.length(), length);
        length_distribution.ended(length);
    }
}
