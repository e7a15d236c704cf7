//! Cause: calls about names, folders and attributes of files wait. Each lookup of a name that is
//! not in memory reads a folder and an inode, one after the other. The removal of a file frees its
//! blocks, and waits for the device where the file system discards them (mount option `discard`).
//! The last close of a deleted file does so too. On NFS and CIFS a close writes data back.

use readpath_trace::recording::Activity;

use super::super::gather::RecordingData;
use super::CauseText;
use super::words::duration_text;

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    CauseText {
        title: "metadata: files are looked up, opened, closed, listed or removed".to_owned(),
        evidence: format!(
            "calls such as open, close, stat, getdents and unlink waited {} in all",
            duration_text(gathered.spent_ns(Activity::Metadata)),
        ),
        remedy: "look up several files at once (threads, io_uring, `xargs -P`), keep files open, \
                 list a folder once, keep many small files in one (an archive, a database), or \
                 keep temporary files in memory (tmpfs)"
            .to_owned(),
    }
}
