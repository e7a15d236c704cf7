//! Cause: reads of other programs delay the reads.
//!
//! The condition is true for a device if reads wait at least twice as long next to other programs'
//! reads as without them, for equal sizes. The extra duration is lost. If other programs read all
//! the time, the wait without them is not known, and nothing is claimed.

use super::super::gather::RecordingData;
use super::super::interference::Baseline;
use super::CauseText;
use super::words::{bytes_text, device_text, duration_text};
use readpath_trace::recording::DeviceOperation;

/// Returns the fraction of a device's waits that is lost to other programs' reads.
pub(super) fn lost_share(gathered: &RecordingData, device: u64) -> f64 {
    let lost = gathered.other_reads.lost_waits(device, Baseline::Alone);
    lost.map_or(0.0, |lost| lost.share)
}

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let read_bytes = |device: &u64| gathered.other_reads.bytes.get(device).copied().unwrap_or(0);
    // `Alone`: the baseline is the wait without other programs' reads.
    let devices = gathered.devices.iter().filter_map(|(device_number, device)| {
        let lost = gathered.other_reads.lost_waits(*device_number, Baseline::Alone)?;
        Some((read_bytes(device_number), *device_number, &device.name, lost))
    });
    let (read_bytes, device_number, name, lost) =
        devices.max_by_key(|(read_bytes, ..)| *read_bytes).expect("a device was charged");
    let largest_other = gathered.largest_other_program(device_number, DeviceOperation::Read);
    let largest_text = largest_other.map(|other| {
        let other_bytes = bytes_text(other.bytes as f64);
        format!("; {other_bytes} of them were read by {} (task {})", other.name, other.task)
    });
    CauseText {
        title: format!("other programs read from {} at the same time", device_text(name)),
        evidence: format!(
            "while they read ({} in all) a read waits {}, otherwise {}{}",
            bytes_text(read_bytes as f64),
            duration_text(lost.delayed_ns),
            duration_text(lost.baseline_ns),
            largest_text.unwrap_or_default(),
        ),
        remedy: "limit the other readers (io.max, ionice), read at other times, or from another \
                 device; `iotop` and `pidstat -d` show who reads"
            .to_owned(),
    }
}
