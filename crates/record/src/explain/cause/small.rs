//! Cause: small sequential requests. Each pays the cost of a whole request for few bytes.
//!
//! The rule holds for a small read that continues the last one, if only its own pages were fetched.
//! Without root, only the duration of a buffered read is known, and it may have waited for
//! readahead. In that case the rule holds for direct reads only.

use super::super::gather::RecordingData;
use super::super::{SMALL_BYTES, WaitCause};
use super::words::{bytes_text, duration_text};
use super::{CauseText, ReadWait, path_or_dash};

/// Returns true for a small sequential read without read-ahead. Both the read and the bytes fetched
/// for it are below [`SMALL_BYTES`] (64 KiB), and the device request is certain to be its own.
pub(super) fn is_cause_of(wait: &ReadWait) -> bool {
    let is_small = wait.fetched_bytes.max(wait.asked_bytes) < SMALL_BYTES;
    let is_own_request = wait.is_request_seen && wait.fetched_bytes > 0;
    wait.is_sequential && is_own_request && wait.prefetched_bytes == 0 && is_small
}

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let (charge, most_awaited_file) = gathered.charged_waits(WaitCause::Small);
    let waits = charge.waits.max(1) as f64;
    CauseText {
        title: "small reads in sequence, each a device request of its own".to_owned(),
        evidence: format!(
            "{} reads of {} on average, one after the other, waited {} each: {} a second, most of \
             them of {}",
            charge.waits,
            bytes_text(charge.bytes as f64 / waits),
            duration_text(charge.ns as f64 / waits),
            bytes_text(charge.bytes as f64 / (charge.ns.max(1) as f64 / 1e9)),
            path_or_dash(most_awaited_file),
        ),
        remedy: match most_awaited_file.is_some_and(|file| file.direct_reads > 0) {
            true => {
                "read 256 KiB or more at once, or without O_DIRECT, so that the kernel reads ahead"
            }
            false => "read 256 KiB or more at once, or remove the advice that turns readahead off",
        }
        .to_owned(),
    }
}
