//! Cause: one file is slower than the others.
//!
//! The condition is true for a file whose waits and bytes each take at least four times as long as
//! for the median of the other awaited files. At least two such other files are required. Waits of
//! ordered reads are compared with each other, and so are waits of random reads: a stream waits for
//! readahead, and a random read for its own request. The extra duration of the compared waits is
//! lost.

use super::super::SLOW_FACTOR;
use super::super::gather::{FileData, RecordingData};
use super::super::wait_sum::WaitSum;
use super::CauseText;
use super::words::duration_text;
use crate::median::median;

/// Minimum number of waits of one order for a file, chosen, before it is compared with others.
const MIN_WAITS: u64 = 8;

/// Minimum number of other files. A median of fewer files is no measure of the storage.
const OTHER_FILES_MIN: usize = 2;

/// The slow file.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct SlowFile {
    /// Number of the file in the recording.
    file_number: u32,
    /// Compared waits for the file.
    waits: WaitSum,
    /// True if these are waits of ordered reads.
    are_ordered: bool,
    /// Time of the compared waits as a fraction of the time of all waits for the file.
    compared_share: f64,
    /// Ratio of its waits to the waits for other files: the smaller one, by wait and by byte.
    factor: f64,
    /// Mean wait for the file in nanoseconds.
    wait_ns: f64,
    /// Median of the mean waits for the other files in nanoseconds.
    others_ns: f64,
}

impl SlowFile {
    /// Returns the fraction of the time of a file's waits that is lost because the file is slow. 0
    /// for other files.
    pub fn lost_share(&self, file_number: u32) -> f64 {
        let lost_share = (1.0 - 1.0 / self.factor) * self.compared_share;
        if file_number == self.file_number { lost_share } else { 0.0 }
    }
}

/// Returns the waits for a file of ordered or of random reads.
fn waits_of_order(file: &FileData, are_ordered: bool) -> WaitSum {
    match are_ordered {
        true => file.ordered_waits,
        false => {
            let mut random = file.waits;
            random.subtract(&file.ordered_waits);
            random
        }
    }
}

/// Returns the slow file, or `None` if no file is slow. If one is slow in ordered reads and one in
/// random reads, it is the one that loses more time.
pub(super) fn find_slow_file(gathered: &RecordingData) -> Option<SlowFile> {
    let lost_ns = |slow: &SlowFile| slow.waits.ns as f64 * (1.0 - 1.0 / slow.factor);
    [true, false]
        .into_iter()
        .filter_map(|are_ordered| find_slow_file_of_order(gathered, are_ordered))
        .max_by(|one, other| lost_ns(one).total_cmp(&lost_ns(other)))
}

/// Returns the file that is slow in ordered or in random reads. The only candidate is the file with
/// the longest such waits in all.
fn find_slow_file_of_order(gathered: &RecordingData, are_ordered: bool) -> Option<SlowFile> {
    let awaited: Vec<(u32, WaitSum)> = gathered
        .files
        .iter()
        .map(|(number, file)| (*number, waits_of_order(file, are_ordered)))
        .filter(|(_, waits)| waits.waits >= MIN_WAITS && waits.bytes > 0)
        .collect();
    let &(file_number, waits) = awaited.iter().max_by_key(|(_, waits)| waits.ns)?;
    let others: Vec<&WaitSum> =
        awaited.iter().filter(|(other, _)| *other != file_number).map(|(_, waits)| waits).collect();
    if others.len() < OTHER_FILES_MIN {
        return None;
    }
    let ns_per_wait = |waits: &WaitSum| waits.ns as f64 / waits.waits as f64;
    let ns_per_byte = |waits: &WaitSum| waits.ns as f64 / waits.bytes as f64;
    let median_of_others = |value: &dyn Fn(&WaitSum) -> f64| {
        median(&mut others.iter().map(|waits| value(waits)).collect::<Vec<f64>>())
    };
    // Larger requests take longer each, and smaller ones longer per byte. A slow file is slow by
    // both measures, so the smaller ratio counts.
    let (wait_ns, others_ns) = (ns_per_wait(&waits), median_of_others(&ns_per_wait));
    let factor = (wait_ns / others_ns).min(ns_per_byte(&waits) / median_of_others(&ns_per_byte));
    let compared_share = waits.ns as f64 / gathered.files[&file_number].waits.ns.max(1) as f64;
    let slow =
        SlowFile { file_number, waits, are_ordered, compared_share, factor, wait_ns, others_ns };
    (factor >= SLOW_FACTOR).then_some(slow)
}

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData, slow: Option<&SlowFile>) -> CauseText {
    let slow = slow.expect("a charge to this cause has a slow file").clone();
    let SlowFile { file_number, waits, are_ordered, factor, wait_ns, others_ns, .. } = slow;
    let file_data = &gathered.files[&file_number];
    let device = gathered.devices.get(&file_data.device).map_or("", |device| device.name.as_str());
    CauseText {
        title: format!("one file is {factor:.0} times as slow as the others: {}", file_data.path),
        evidence: format!(
            "{} waits of {} reads took {} each, where other files take {}; it is on {}",
            waits.waits,
            if are_ordered { "ordered" } else { "random" },
            duration_text(wait_ns),
            duration_text(others_ns),
            if device.is_empty() { "another file system" } else { device },
        ),
        remedy:
            "check the device of this file, or move it to the device of the others; or read it \
                 first, while the others are processed"
                .to_owned(),
    }
}
