//! Length of one reader's sequential run, or of its latest part, and its record in the run-length
//! distributions.

use super::super::{DeviceEvidence, RunBegin};

/// Pages used in order. The length is counted in requests of the first request's size.
#[derive(Clone, Copy, Debug)]
pub(super) struct SequentialRun {
    /// Kind of the run's begin, which selects the run-length distribution that records the run.
    pub(super) begin: RunBegin,
    /// Size of the first request in pages, at least 1.
    pub(super) each: u64,
    /// Number of pages that the reader has used.
    pub(super) behind: u64,
    /// Length with which the run was recorded as ended, if it was.
    ended_with: Option<u64>,
}

impl SequentialRun {
    /// Creates a run of `used_pages` used pages, whose first request had `request_pages` pages.
    pub(super) fn begun(begin: RunBegin, request_pages: u64, used_pages: u64) -> SequentialRun {
        SequentialRun { begin, each: request_pages.max(1), behind: used_pages, ended_with: None }
    }

    /// Length of the run in requests of the first request's size.
    pub(super) fn length(&self) -> u64 {
        self.length_with(self.behind)
    }

    /// Length of a run with `used_pages` used pages, in requests of the first request's size; at
    /// least 1.
    fn length_with(&self, used_pages: u64) -> u64 {
        (used_pages / self.each).max(1)
    }

    /// True if a request of `pages` pages is more than twice as large as the first one, or less
    /// than half as large. The factor tolerates unaligned requests, which touch one page more.
    pub(super) fn is_of_other_size(&self, pages: u64) -> bool {
        pages > 2 * self.each || 2 * pages < self.each
    }

    /// Records that the reader used `pages` more pages, in the run and in the distribution of run
    /// lengths. Undoes an end that was recorded too early.
    pub(super) fn grew(&mut self, pages: u64, device: &mut DeviceEvidence) {
        let length_before = self.length();
        self.behind += pages;
        let length_distribution = device.lengths.of_mut(self.begin);
        if let Some(length) = self.ended_with.take() {
            length_distribution.undo_end(length);
        }
        length_distribution.record_growth(length_before, self.length());
    }

    /// Records the run's end. `unseen_pages` is the estimated number of pages used without a call
    /// to the policy.
    pub(super) fn ended(&mut self, unseen_pages: u64, device: &mut DeviceEvidence) {
        if self.ended_with.is_some() {
            return;
        }
        let length = self.length_with(self.behind + unseen_pages);
        self.ended_with = Some(length);
        let length_distribution = device.lengths.of_mut(self.begin);
        length_distribution.record_growth(self.length(), length);
        length_distribution.record_end(length);
    }
}
