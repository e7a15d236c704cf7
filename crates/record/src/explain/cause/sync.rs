//! Cause: writes and `fsync` wait. The program waits for a device, but not for its reads.
//!
//! A call that writes waits for the latency of each request (`O_DIRECT`, `O_SYNC`), or because more
//! is written than the device takes. The recording does not show which, so the remedies are for
//! both. Fewer calls of `fsync` are a remedy only if these are the larger part.

use readpath_trace::recording::Activity;

use super::super::gather::RecordingData;
use super::CauseText;
use super::words::duration_text;

/// Returns the time in nanoseconds of calls that write and of calls that wait for written data.
pub(super) fn cost_ns(gathered: &RecordingData) -> f64 {
    gathered.spent_ns(Activity::Write) + gathered.spent_ns(Activity::Sync)
}

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let write_ns = gathered.spent_ns(Activity::Write);
    let sync_ns = gathered.spent_ns(Activity::Sync);
    let sync_text = match sync_ns > 0.0 {
        true => format!(", and {} in fsync and the like", duration_text(sync_ns)),
        false => String::new(),
    };
    let (title, remedy) = match sync_ns > write_ns {
        true => (
            "fsync",
            "let one fsync follow several writes (also in place of O_SYNC), use fdatasync for files \
             that keep their length, or write on a thread of its own",
        ),
        false => (
            "writes",
            "write less or compress the data; keep several direct or O_SYNC writes in \
             flight, or make one larger write of them; write to another device, or on a thread of \
             its own",
        ),
    };
    CauseText {
        title: format!("{title}: the program waits for its written data"),
        evidence: format!(
            "{} in calls that write{sync_text}, in which nothing else went on",
            duration_text(write_ns),
        ),
        remedy: remedy.to_owned(),
    }
}
