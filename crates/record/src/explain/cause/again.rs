//! Cause: the same bytes are fetched repeatedly, because memory is too small for the reused data or
//! is bypassed.
//!
//! The condition is true if most of the data fetched for a read had been fetched before. It is also
//! true if the read waited for data in flight that had been fetched before.

use super::super::WaitCause;
use super::super::gather::RecordingData;
use super::words::{bytes_text, duration_text};
use super::{CauseText, ReadWait, path_or_dash};

/// Returns true if the wait is caused by a repeated fetch.
pub(super) fn is_cause_of(wait: &ReadWait) -> bool {
    wait.refetched_bytes > 0 && wait.refetched_bytes > wait.fetched_bytes / 2
}

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let (charge, most_awaited_file) = gathered.charged_waits(WaitCause::Again);
    let fetched_bytes: u64 = gathered.files.values().map(|file| file.fetched_bytes).sum();
    let again_bytes: u64 = gathered.files.values().map(|file| file.refetched_bytes).sum();
    let distinct_bytes = fetched_bytes.saturating_sub(again_bytes);
    CauseText {
        title: "the same data is fetched from the device repeatedly".to_owned(),
        evidence: format!(
            "{} of {} fetched data had been fetched before; {} waits of {}, most of them for {}",
            bytes_text(again_bytes as f64),
            bytes_text(fetched_bytes as f64),
            charge.waits,
            duration_text(charge.ns as f64 / charge.waits.max(1) as f64),
            path_or_dash(most_awaited_file),
        ),
        remedy: format!(
            "keep the {} in use in memory: more memory, reads through the page cache (no O_DIRECT), \
             no FADV_DONTNEED, or work on one part at a time",
            bytes_text(distinct_bytes as f64)
        ),
    }
}
