//! Cause: reads of other programs delay the reads.
//!
//! The condition is true for a device if reads wait at least twice as long next to other programs'
//! reads as without them, for equal sizes. The extra duration is lost. If other programs read all
//! the time, the wait without them is not known, and nothing is claimed.

use super::super::gather::RecordingData;
use super::super::interference::Baseline;
use super::CauseText;
use super::words::{bytes, time};
use readpath_trace::recording::DeviceOperation;

/// Returns the fraction of a device's waits that is lost to other programs' reads.
pub(super) fn lost_share(gathered: &RecordingData, device: u64) -> f64 {
    let lost = gathered.other_reads.lost_share(device, Baseline::Alone);
    lost.map_or(0.0, |(part, _, _)| part)
}

/// Returns the texts of this cause.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let read = |device: &u64| gathered.other_reads.bytes.get(device).copied().unwrap_or(0);
    let devices = gathered.devices.iter().filter_map(|(number, device)| {
        let (_, met, alone) = gathered.other_reads.lost_share(*number, Baseline::Alone)?;
        Some((read(number), *number, &device.name, met, alone))
    });
    let (read, number, name, met, alone) =
        devices.max_by_key(|(read, ..)| *read).expect("a device was charged");
    let most = gathered.main_other(number, DeviceOperation::Read).map(|other| {
        let of_it = bytes(other.bytes as f64);
        format!("; {of_it} of them were read by {} (task {})", other.name, other.task)
    });
    CauseText {
        title: format!("other programs read from {name} at the same time"),
        evidence: format!(
            "while they read ({} in all) a read waits {}, otherwise {}{}",
            bytes(read as f64),
            time(met),
            time(alone),
            most.unwrap_or_default(),
        ),
        remedy: "limit the other readers (io.max, ionice), read at other times, or from another \
                 device; `iotop` and `pidstat -d` show who reads"
            .to_owned(),
    }
}
