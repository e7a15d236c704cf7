//! Writes stand before the reads.
//!
//! It holds for a device for which reads wait at least twice as long when a write is at the device
//! as when none is, if as much is fetched; where there is hardly one without a write, the fastest
//! tenth stands for those. What they wait longer is lost.

use super::super::gather::{FileData, RecordingData};
use super::CauseText;
use super::words::{bytes, time};

/// The part of a file's waits that is lost to writes.
pub(super) fn part(gathered: &RecordingData, file: &FileData) -> f64 {
    gathered.writes.lost_part(file.device).map_or(0.0, |(part, _, _)| part)
}

pub(super) fn words(gathered: &RecordingData) -> CauseText {
    let written = |device: &u64| gathered.writes.bytes.get(device).copied().unwrap_or(0);
    let devices = gathered.devices.iter().filter_map(|(number, device)| {
        let (_, met, clear) = gathered.writes.lost_part(*number)?;
        Some((written(number), &device.name, met, clear))
    });
    let (written, name, met, clear) =
        devices.max_by_key(|(written, ..)| *written).expect("a device was charged");
    CauseText {
        title: format!("writes to {name} stand before the reads"),
        evidence: format!(
            "while writes are under way ({} in all) a read waits {}, and {} otherwise",
            bytes(written as f64),
            time(met),
            time(clear),
        ),
        remedy: "find who writes (`iotop`, `pidstat -d`) and limit it (io.max, ionice, fewer at a \
                 time), write at other times, or to another device"
            .to_owned(),
    }
}
