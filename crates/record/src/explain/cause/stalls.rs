//! Cause: few reads take most of the time.
//!
//! The rule is in [`super::super::stalls`]. It does not hold for a device where writes or other
//! programs' reads delay the reads: they explain the long waits.

use super::super::gather::RecordingData;
use super::super::stalls::Stalls;
use super::words::{device_text, duration_text};
use super::{CauseText, readers, writers};

/// Returns the stalls of a device. `None` without stalls, or if writers or other readers explain
/// them.
fn unexplained_stalls(gathered: &RecordingData, device: u64) -> Option<Stalls> {
    let is_explained =
        writers::lost_share(gathered, device) > 0.0 || readers::lost_share(gathered, device) > 0.0;
    gathered.stalls.stalls_of(device).filter(|_| !is_explained)
}

/// Returns the fraction of a device's waits that is lost to stalls.
pub(super) fn lost_share(gathered: &RecordingData, device: u64) -> f64 {
    unexplained_stalls(gathered, device).map_or(0.0, |stalls| stalls.lost_share)
}

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let devices = gathered.devices.iter();
    let stalled = devices.filter_map(|(number, device)| {
        Some((&device.name, unexplained_stalls(gathered, *number)?))
    });
    let (name, stalls) = stalled
        .max_by(|(_, a), (_, b)| a.lost_share.total_cmp(&b.lost_share))
        .expect("a device was charged");
    CauseText {
        title: format!("few answers of {} take far longer than the others", device_text(name)),
        evidence: format!(
            "{} of {} waits took {} on average, the median {}; without them the waits would be {:.0} % \
             shorter",
            stalls.count,
            stalls.waits,
            duration_text(stalls.mean_ns),
            duration_text(stalls.median_ns),
            stalls.lost_share * 100.0,
        ),
        remedy: "find the reason at the device (a volume's limit of requests, garbage collection, \
                 retries); where no read needs the data of another, keep 16 to 32 reads in flight, so \
                 that one slow answer does not hold up the others"
            .to_owned(),
    }
}
