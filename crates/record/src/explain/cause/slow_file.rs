//! Cause: one file is slower than the others.
//!
//! The condition is true for a file whose waits and bytes each take at least four times as long as
//! for the median of the other awaited files. At least two such other files are required. The extra
//! duration of its waits is lost.

use super::super::SLOW_FACTOR;
use super::super::gather::{FileData, RecordingData};
use super::CauseText;
use super::words::duration_text;
use crate::median::median;

/// Minimum number of waits for a file, chosen, before it is compared with others.
const MIN_WAITS: u64 = 8;

/// Minimum number of other files. A median of fewer files is no measure of the storage.
const OTHER_FILES_MIN: usize = 2;

/// The slow file.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct SlowFile {
    /// Number of the file in the recording.
    file_number: u32,
    /// Ratio of its waits to the waits for other files: the smaller one, by wait and by byte.
    factor: f64,
    /// Mean wait for the file in nanoseconds.
    wait_ns: f64,
    /// Median of the mean waits for the other files in nanoseconds.
    others_ns: f64,
}

impl SlowFile {
    /// Returns the fraction of a file's waits that is lost because the file is slow. 0 for other
    /// files.
    pub fn lost_share(&self, file_number: u32) -> f64 {
        if file_number == self.file_number { 1.0 - 1.0 / self.factor } else { 0.0 }
    }
}

/// Returns the slow file, or `None` if no file is slow. The only candidate is the file with the
/// longest waits in all.
pub(super) fn find_slow_file(gathered: &RecordingData) -> Option<SlowFile> {
    let has_enough_waits = |file: &&FileData| file.waits.waits >= MIN_WAITS && file.waits.bytes > 0;
    let (file_number, file) = gathered
        .files
        .iter()
        .filter(|(_, file)| has_enough_waits(file))
        .max_by_key(|(_, file)| file.waits.ns)?;
    let others: Vec<&FileData> = gathered
        .files
        .iter()
        .filter(|(other, file)| *other != file_number && has_enough_waits(file))
        .map(|(_, file)| file)
        .collect();
    if others.len() < OTHER_FILES_MIN {
        return None;
    }
    let ns_per_wait = |file: &FileData| file.waits.ns as f64 / file.waits.waits as f64;
    let ns_per_byte = |file: &FileData| file.waits.ns as f64 / file.waits.bytes as f64;
    let median_of_others = |value: &dyn Fn(&FileData) -> f64| {
        median(&mut others.iter().map(|file| value(file)).collect::<Vec<f64>>())
    };
    // Larger requests take longer each, and smaller ones longer per byte. A slow file is slow by
    // both measures, so the smaller ratio counts.
    let (wait_ns, others_ns) = (ns_per_wait(file), median_of_others(&ns_per_wait));
    let factor = (wait_ns / others_ns).min(ns_per_byte(file) / median_of_others(&ns_per_byte));
    let slow = SlowFile { file_number: *file_number, factor, wait_ns, others_ns };
    (factor >= SLOW_FACTOR).then_some(slow)
}

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData, slow: Option<&SlowFile>) -> CauseText {
    let slow = slow.expect("a charge to this cause has a slow file").clone();
    let SlowFile { file_number, factor, wait_ns, others_ns } = slow;
    let file_data = &gathered.files[&file_number];
    let device = gathered.devices.get(&file_data.device).map_or("", |device| device.name.as_str());
    CauseText {
        title: format!("one file is {factor:.0} times as slow as the others: {}", file_data.path),
        evidence: format!(
            "{} waits of {} each, where other files take {}; it is on {}",
            file_data.waits.waits,
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
