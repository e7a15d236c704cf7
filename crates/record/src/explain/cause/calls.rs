//! Cause: small reads by system calls of bytes in memory. Each pays the cost of a call for a few
//! bytes.

use super::super::gather::{BUFFER_BYTES, RecordingData};
use super::CauseText;
use super::words::{bytes_text, duration_text};

/// Number of calls before they are reported, chosen.
pub(super) const CALLS_MIN: u64 = 1000;

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let calls = &gathered.calls;
    let file = gathered.files.values().max_by_key(|file| file.small_calls);
    // A buffer helps if at least half of the calls begin next to the end of a recent read.
    let are_in_order = calls.sequential_calls * 2 >= calls.count;
    let mean_bytes = calls.bytes as f64 / calls.count.max(1) as f64;
    CauseText {
        title: "small reads by system calls take processor time".to_owned(),
        evidence: format!(
            "{} reads of {} on average did not wait for a device and took {} each in the kernel, \
             {} in all; {:.0} % began in the page where a recent one ended or in the next page; \
             most of them read {}",
            calls.count,
            bytes_text(mean_bytes),
            duration_text(calls.mean_ns()),
            duration_text(calls.total_ns()),
            calls.sequential_calls as f64 / calls.count.max(1) as f64 * 100.0,
            super::path_or_dash(file),
        ),
        remedy: match are_in_order {
            true => format!(
                "read through a buffer (stdio, BufReader, io.BufferedReader): with {} at a time \
                 {} calls remain, and {} are saved",
                bytes_text(BUFFER_BYTES as f64),
                calls.calls_with_buffer(),
                duration_text(calls.saved_ns()),
            ),
            false => format!(
                "map the file (mmap) or keep larger blocks of it in memory: up to {} of calls are \
                 saved",
                duration_text(calls.saved_ns()),
            ),
        },
    }
}
