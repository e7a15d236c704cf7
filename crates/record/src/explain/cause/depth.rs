//! Cause: one request at a time, at unpredictable positions.
//!
//! The condition is true for a read that does not continue the last one, if neither the read nor
//! the data fetched for it is large. It is charged if devices had less than two concurrent read
//! requests on average while it waited. A page fault requests one page but can have megabytes
//! fetched around it. It then waits for this data, and concurrent requests would wait as well.

use super::super::gather::{DepthCharge, FileData, RecordingData};
use super::super::{LARGE_BYTES, WaitCause};
use super::words::{bytes_text, duration_text};
use super::{CauseText, ReadWait, path_or_dash};

/// Returns true for a read at an unpredictable position that fetched bytes, if both its size and
/// the fetched bytes are below [`LARGE_BYTES`].
pub(super) fn is_cause_of(wait: &ReadWait) -> bool {
    // Without fetched bytes, the read waited for data in flight. A large transfer takes its time
    // at any depth. Concurrent requests would shorten neither wait.
    let moved_bytes = wait.asked_bytes.max(wait.fetched_bytes);
    !wait.is_sequential && wait.fetched_bytes > 0 && moved_bytes < LARGE_BYTES
}

/// Returns the distance in bytes from the end of a read to the next one, if most reads that
/// continue no other one have it. It shows a stride, or reads in backward order.
fn regular_distance(gathered: &RecordingData) -> Option<i64> {
    let distances = gathered.pattern.strides.iter().filter(|(distance, _)| **distance != 0);
    let (distance, count) = distances.max_by_key(|(_, count)| **count)?;
    (count * 2 > gathered.pattern.other).then_some(*distance)
}

/// Second remedy, for reads through the page cache.
const ANNOUNCEMENT: &str =
    ", or announce ranges that are known in advance with POSIX_FADV_WILLNEED";

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    // Only the waits with few requests in flight, and the file with the longest of them.
    let (DepthCharge { low: charge, depth, .. }, file) = gathered.low_depth_waits(WaitCause::Depth);
    let waits = charge.waits.max(1) as f64;
    let distance = regular_distance(gathered);
    let positions = match distance {
        None => "at random positions".to_owned(),
        Some(distance) => format!(
            "at equal distances, most of them {} {} the end of the one before,",
            bytes_text(distance.unsigned_abs() as f64),
            if distance < 0 { "before" } else { "after" },
        ),
    };
    // Among many reading threads, a low depth may be chance: only the rest counts.
    let lacking_part = gathered.lacking_depth_part(WaitCause::Depth);
    let by_chance = match lacking_part < 1.0 {
        true => format!(
            "; {:.0} % of their time counts: in the rest several threads had reads in flight most \
             of the time",
            lacking_part * 100.0
        ),
        false => String::new(),
    };
    CauseText {
        title: "one request at a time: the device waits for the program".to_owned(),
        evidence: format!(
            "{} reads of {} {positions} waited {} each, with {:.1} requests at the device on \
             average; most of them read {}{}{by_chance}",
            charge.waits,
            bytes_text(charge.bytes as f64 / waits),
            duration_text(charge.ns as f64 / waits),
            depth.mean(),
            path_or_dash(file),
            match file.is_some_and(FileData::direct_reads_fill_cache) {
                true => ", whose direct reads go through the page cache",
                false => "",
            },
        ),
        remedy: format!(
            "where no read needs the data of another, keep 16 to 32 reads in flight (io_uring or \
             threads){}",
            match (file.is_some_and(FileData::bypasses_cache), distance) {
                (true, _) => String::new(),
                (false, None) => ANNOUNCEMENT.to_owned(),
                (false, Some(_)) => format!(
                    "{ANNOUNCEMENT}; `readpath advise` predicts them for a program that cannot be \
                     changed"
                ),
            }
        ),
    }
}
