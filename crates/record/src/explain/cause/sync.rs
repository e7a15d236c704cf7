//! Cause: writes and `fsync` wait. The program waits for a device, but not for its reads.

use readpath_trace::recording::Activity;

use super::super::gather::RecordingData;
use super::CauseText;
use super::words::duration_text;

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    CauseText {
        title: "writes and fsync".to_owned(),
        evidence: format!(
            "calls that write or wait for written data took {} in which nothing else went on",
            duration_text(gathered.spent_ns(Activity::Write)),
        ),
        remedy: "let one fsync follow several writes, use fdatasync for files that keep their \
                 length, or write on a thread of its own"
            .to_owned(),
    }
}
