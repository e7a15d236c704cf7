//! Length of one reader's sequential run, or of its latest part, and its record in the run-length
//! distributions.

use super::super::{DeviceEvidence, RunBegin};

/// Sequential run: pages used in order. Its length is counted in requests of the first request's
/// size.
#[derive(Clone, Copy, Debug)]
pub(super) struct SequentialRun {
    /// Kind of the run's begin, which selects the run-length distribution that records the run.
    pub(super) begin: RunBegin,
    /// Size of the first request in pages, at least 1.
    pub(super) request_pages: u64,
    /// Number of pages that the reader has used.
    pub(super) used_pages: u64,
    /// Length, in requests, with which the run was recorded as ended; `None` while it was not.
    recorded_end: Option<u64>,
}

impl SequentialRun {
    /// Creates a run of `used_pages` used pages, whose first request had `request_pages` pages.
    pub(super) fn new(begin: RunBegin, request_pages: u64, used_pages: u64) -> SequentialRun {
        let request_pages = request_pages.max(1);
        SequentialRun { begin, request_pages, used_pages, recorded_end: None }
    }

    /// Length of the run in requests of the first request's size.
    pub(super) fn length(&self) -> u64 {
        self.length_with(self.used_pages)
    }

    /// Length of a run with `used_pages` used pages, in requests of the first request's size; at
    /// least 1.
    fn length_with(&self, used_pages: u64) -> u64 {
        (used_pages / self.request_pages).max(1)
    }

    /// True if a request of `pages` pages is more than twice as large as the first one, or less
    /// than half as large. The factor tolerates unaligned requests, which touch one page more.
    pub(super) fn has_other_size(&self, pages: u64) -> bool {
        pages > 2 * self.request_pages || 2 * pages < self.request_pages
    }

    /// Records that the reader used `more_pages` more pages, in the run and in the distribution of
    /// run lengths. Undoes an end that was recorded too early. Each length that the run has now
    /// passed counts as continued.
    pub(super) fn record_growth(&mut self, more_pages: u64, device: &mut DeviceEvidence) {
        let length_before = self.length();
        self.used_pages += more_pages;
        let length_distribution = device.lengths.of_mut(self.begin);
        if let Some(length) = self.recorded_end.take() {
            length_distribution.undo_end(length);
        }
        length_distribution.record_growth(length_before, self.length());
    }

    /// Records the run's end, once. `unreported_pages` is the number of further pages that the
    /// reader used without a call to the policy. A later `record_growth` undoes it.
    pub(super) fn record_end(&mut self, unreported_pages: u64, device: &mut DeviceEvidence) {
        if self.recorded_end.is_some() {
            return;
        }
        let length = self.length_with(self.used_pages + unreported_pages);
        self.recorded_end = Some(length);
        let length_distribution = device.lengths.of_mut(self.begin);
        // The lengths that the run passed with the unreported pages count as continued.
        length_distribution.record_growth(self.length(), length);
        length_distribution.record_end(length);
    }
}
