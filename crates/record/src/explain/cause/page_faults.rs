//! Cause: a mapping is fetched page by page. Each fault waits for a request of one page.
//!
//! The rule holds for a fault that fetched one page of a larger file. The kernel reads around a
//! fault unless it was advised to expect random access.

use super::super::WaitCause;
use super::super::gather::RecordingData;
use super::words::duration_text;
use super::{CauseText, ReadWait, path_or_dash};
use readpath_trace::page_set::PAGE_BYTES;
use readpath_trace::recording::{AdviceType, ReadMethod};

/// Returns true for a page fault with a single fetched page.
pub(super) fn is_cause_of(wait: &ReadWait) -> bool {
    let is_one_page = wait.fetched_bytes > 0 && wait.fetched_bytes <= PAGE_BYTES;
    // A file of one page has nothing to fetch besides.
    let has_more_pages = wait.file_bytes.is_none_or(|bytes| bytes > PAGE_BYTES);
    wait.method == ReadMethod::Fault && is_one_page && has_more_pages
}

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let (charge, most_awaited_file) = gathered.charged_waits(WaitCause::PageFaults);
    let is_random = most_awaited_file.is_some_and(|file| file.has_mapped_hint(AdviceType::Random));
    let hint = if is_random { "; the program advised MADV_RANDOM" } else { "" };
    CauseText {
        title: "a mapping is fetched one page at a time".to_owned(),
        evidence: format!(
            "{} touches fetched a page of 4 KiB each and waited {} for it, most of them of {}{hint}",
            charge.waits,
            duration_text(charge.ns as f64 / charge.waits.max(1) as f64),
            path_or_dash(most_awaited_file),
        ),
        remedy: "announce each range before it is touched with MADV_WILLNEED or \
                 MADV_POPULATE_READ, or `pread` it as a whole"
            .to_owned(),
    }
}
