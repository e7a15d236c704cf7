//! Cause: writes delay the reads.
//!
//! The condition is true for a device if reads wait at least twice as long during a write as
//! otherwise, for equal sizes. If almost all reads are concurrent with writes, the fastest tenth is
//! the baseline. The extra duration is lost.

use super::super::gather::RecordingData;
use super::super::interference::Baseline;
use super::CauseText;
use super::words::{bytes, time};
use readpath_trace::recording::DeviceOperation;

/// Returns the fraction of a device's waits that is lost to writes.
pub(super) fn lost_share(gathered: &RecordingData, device: u64) -> f64 {
    gathered.writes.lost_share(device, Baseline::AloneOrFastest).map_or(0.0, |(part, _, _)| part)
}

/// Returns the name of the main writer by bytes: a thread of the program, the kernel for the
/// program, or an unknown one.
fn main_writer(gathered: &RecordingData, device: u64, written: u64) -> String {
    let by_thread = gathered.writes.by_thread(device);
    let own: u64 = by_thread.iter().filter(|(thread, _)| thread.is_some()).map(|(_, it)| it).sum();
    if own * 2 >= written {
        let most = by_thread.iter().filter_map(|(thread, bytes)| Some(((*thread)?, *bytes)));
        let most = most.max_by_key(|(_, bytes)| *bytes);
        let facts = most.and_then(|(thread, _)| gathered.threads.get(&(thread as u32)));
        let name = facts.map_or("-", |thread| thread.name.as_str());
        let task = facts.map_or(0, |thread| thread.task);
        return format!(
            "{} of them were written by the program itself, most by its thread {name} ({task})",
            bytes(own as f64)
        );
    }
    let cached = gathered.written_bytes(device);
    if cached * 2 >= written {
        return format!(
            "the program itself has written {} into the page cache, which the kernel writes back",
            bytes(cached as f64)
        );
    }
    match gathered.main_other(device, DeviceOperation::Write) {
        Some(other) if is_kernel(&other.name) => format!(
            "{} of them were written back by the kernel ({}) for programs that are not recorded",
            bytes(other.bytes as f64),
            other.name
        ),
        Some(other) => format!(
            "{} of them were written by {} (task {})",
            bytes(other.bytes as f64),
            other.name,
            other.task
        ),
        None => format!(
            "the writer of {} of them is not known: none of the recorded threads",
            bytes((written - own) as f64)
        ),
    }
}

/// Returns true for the name of a kernel thread that writes for programs: `kworker/u8:1`,
/// `jbd2/sda1-8`, `btrfs-transacti`.
fn is_kernel(name: &str) -> bool {
    ["kworker/", "jbd2/", "btrfs-", "xfsaild/", "loop"].iter().any(|it| name.starts_with(it))
}

/// Returns the texts of this cause.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let written = |device: &u64| gathered.writes.bytes.get(device).copied().unwrap_or(0);
    let devices = gathered.devices.iter().filter_map(|(number, device)| {
        let (_, met, clear) = gathered.writes.lost_share(*number, Baseline::AloneOrFastest)?;
        Some((written(number), *number, &device.name, met, clear))
    });
    let (written, number, name, met, clear) =
        devices.max_by_key(|(written, ..)| *written).expect("a device was charged");
    CauseText {
        title: format!("writes to {name} delay the reads"),
        evidence: format!(
            "while writes are in flight ({} in all) a read waits {}, otherwise {}; {}",
            bytes(written as f64),
            time(met),
            time(clear),
            main_writer(gathered, number, written),
        ),
        remedy:
            "limit the writer (io.max, ionice, fewer writes at a time), write at other times, or \
                 to another device; `iotop` and `pidstat -d` show who writes"
                .to_owned(),
    }
}
