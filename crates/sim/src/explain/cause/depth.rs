//! One request at a time, at places that nobody could foresee.
//!
//! It holds for a read of something that is not large, somewhere else than the last one ended, for
//! which something was fetched that is not large either; and it is told where devices had less than two requests
//! to read at a time on average. A touch of a mapping asks for a page, and may have megabytes fetched around it: these are what
//! it waits for then, and others beside them would wait as well.

use super::super::gather::RecordingData;
use super::super::{LARGE_BYTES, WaitCause};
use super::words::{bytes, time};
use super::{CauseText, ReadWait, name};

pub(super) fn holds(wait: &ReadWait) -> bool {
    let moved_bytes = wait.asked_bytes.max(wait.fetched_bytes);
    !wait.goes_on && wait.fetched_bytes > 0 && moved_bytes < LARGE_BYTES
}

pub(super) fn words(gathered: &RecordingData) -> CauseText {
    let (charge, file) = gathered.charged(WaitCause::Depth);
    let waits = charge.waits.max(1) as f64;
    CauseText {
        title: "one request at a time: the device waits for the program".to_owned(),
        evidence: format!(
            "{} reads of {} at changing places waited {} each, with {:.1} requests at the device on \
             average, most of them of {}",
            charge.waits,
            bytes(charge.bytes as f64 / waits),
            time(charge.ns as f64 / waits),
            gathered.depth(),
            name(file),
        ),
        remedy: "ask for several at once: io_uring or threads with 16 to 32 reads under way, or \
                 POSIX_FADV_WILLNEED for what is known to come"
            .to_owned(),
    }
}
