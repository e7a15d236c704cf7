//! Requests that are smaller than what the device is paid for.
//!
//! It holds for a read that goes on where the last one ended, is small, and for which nothing was
//! fetched beyond what it asked for: each such read pays a whole request.

use super::super::gather::RecordingData;
use super::super::{SMALL_BYTES, WaitCause};
use super::words::{bytes, time};
use super::{CauseText, ReadWait, name};

pub(super) fn holds(wait: &ReadWait) -> bool {
    let is_small = wait.fetched_bytes.max(wait.asked_bytes) < SMALL_BYTES;
    wait.goes_on && wait.fetched_bytes > 0 && wait.ahead_bytes == 0 && is_small
}

pub(super) fn words(gathered: &RecordingData) -> CauseText {
    let (charge, file) = gathered.charged(WaitCause::Small);
    let waits = charge.waits.max(1) as f64;
    CauseText {
        title: "reads in a row, each a small request of its own".to_owned(),
        evidence: format!(
            "{} reads of {} on average, one behind the other, waited {} each: {} a second, most of \
             them of {}",
            charge.waits,
            bytes(charge.bytes as f64 / waits),
            time(charge.ns as f64 / waits),
            bytes(charge.bytes as f64 / (charge.ns.max(1) as f64 / 1e9)),
            name(file),
        ),
        remedy: "read 256 KiB or more at once, or without O_DIRECT, so that the kernel reads ahead"
            .to_owned(),
    }
}
