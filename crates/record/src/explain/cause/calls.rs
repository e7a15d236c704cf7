//! Cause: small reads by system calls of bytes in memory. Each pays the cost of a call for a few
//! bytes.

use super::super::gather::{BUFFER_BYTES, Calls, RecordingData};
use super::super::{SampledFile, SmallCalls};
use super::CauseText;
use super::words::{bytes_text, duration_text};

/// Number of calls before they are reported, chosen.
pub(super) const CALLS_MIN: u64 = 1000;

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let calls = &gathered.calls;
    let file = gathered.files.values().max_by_key(|file| file.small_calls.count);
    let mean_bytes = calls.bytes as f64 / calls.count.max(1) as f64;
    CauseText {
        title: "small reads by system calls take processor time".to_owned(),
        evidence: format!(
            "{} reads of {} on average did not wait for a device and took {} each in the kernel, \
             {} in all, with the cost of the recorder; {:.0} % began in the page where a recent one ended or in the next page; \
             most of them read {}",
            calls.count,
            bytes_text(mean_bytes),
            duration_text(calls.mean_ns()),
            duration_text(calls.total_ns()),
            calls.sequential_calls as f64 / calls.count.max(1) as f64 * 100.0,
            super::path_or_dash(file),
        ),
        remedy: format!(
            "{}; up to {} are saved",
            remedy_text(gathered),
            duration_text(calls.saved_ns())
        ),
    }
}

/// Returns true if a buffer helps: at least half of the calls begin next to the end of a recent
/// read.
fn has_order(calls: &Calls) -> bool {
    calls.sequential_calls * 2 >= calls.count
}

/// Returns the remedy without the saved time.
fn remedy_text(gathered: &RecordingData) -> String {
    let calls = &gathered.calls;
    match has_order(calls) {
        true => format!(
            "read through a buffer (stdio, BufReader, io.BufferedReader): with {} at a time {} \
             calls remain",
            bytes_text(BUFFER_BYTES as f64),
            calls.calls_with_buffer(),
        ),
        false => "map the file (mmap) or keep larger blocks of it in memory".to_owned(),
    }
}

/// Returns the small reads for a measurement, by the file with most of them. `None` without one.
pub(super) fn small_calls(gathered: &RecordingData) -> Option<SmallCalls> {
    let calls = &gathered.calls;
    let file = gathered.files.values().max_by_key(|file| file.small_calls.count)?;
    let offsets = file.small_calls;
    (offsets.count > 0).then(|| SmallCalls {
        file: SampledFile::from_data(file),
        offset: offsets.last,
        unordered: (!has_order(calls)).then_some((offsets.smallest, offsets.largest)),
        count: calls.count,
        read_bytes: (calls.bytes / calls.count.max(1)).max(1),
        remedy: remedy_text(gathered),
        remedy_name: if has_order(calls) { "a buffer" } else { "a mapping" },
    })
}
