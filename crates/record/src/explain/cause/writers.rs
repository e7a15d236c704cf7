//! Cause: writes delay the reads.
//!
//! The condition is true for a device if reads wait at least twice as long during a write as
//! otherwise, for equal sizes. If nearly all reads are concurrent with writes, they must wait twice
//! as long next to many written bytes as next to the fewest. The extra duration is lost.

use super::super::gather::RecordingData;
use super::super::interference::Baseline;
use super::CauseText;
use super::words::{bytes_text, device_text, duration_text};
use readpath_trace::recording::{DeviceOperation, is_kernel_thread};

/// Returns the fraction of a device's waits that is lost to writes.
pub(super) fn lost_share(gathered: &RecordingData, device: u64) -> f64 {
    let lost = gathered.writes.lost_waits(device, Baseline::AloneOrLoad);
    lost.map_or(0.0, |lost| lost.share)
}

/// Returns a text about the main writer to a device, by bytes: a thread of the program, the kernel
/// for the program, or another program. `written_bytes`: all bytes written to the device.
fn main_writer_text(gathered: &RecordingData, device: u64, written_bytes: u64) -> String {
    // A writer of at least half of the bytes is the main one: first the program's own threads. Only
    // recorded threads have a number.
    let by_thread = gathered.writes.bytes_by_thread(device);
    let own_bytes: u64 =
        by_thread.iter().filter(|(thread, _)| thread.is_some()).map(|(_, bytes)| bytes).sum();
    if own_bytes * 2 >= written_bytes {
        let largest = by_thread.iter().filter_map(|(thread, bytes)| Some(((*thread)?, *bytes)));
        let largest = largest.max_by_key(|(_, bytes)| *bytes);
        let thread = largest.and_then(|(thread, _)| gathered.threads.get(&(thread as u32)));
        let name = thread.map_or("-", |thread| thread.name.as_str());
        let task = thread.map_or(0, |thread| thread.task);
        return format!(
            "{} of them were written by the program itself, most by its thread {name} ({task})",
            bytes_text(own_bytes as f64)
        );
    }
    // Then the program by way of the page cache.
    let cached_bytes = gathered.written_bytes(device);
    if cached_bytes * 2 >= written_bytes {
        return format!(
            "the program itself has written {} into the page cache, which the kernel writes back",
            bytes_text(cached_bytes as f64)
        );
    }
    match gathered.largest_other_program(device, DeviceOperation::Write) {
        Some(other) if is_kernel_thread(&other.name) => format!(
            "{} of them were written back by the kernel ({}) for programs that are not recorded",
            bytes_text(other.bytes as f64),
            other.name
        ),
        Some(other) => format!(
            "{} of them were written by {} (task {})",
            bytes_text(other.bytes as f64),
            other.name,
            other.task
        ),
        None if !gathered.has_measured_waits() => {
            "the writers are not known without root; writes of the program itself are among them"
                .to_owned()
        }
        None => format!(
            "the writer of {} of them is not known: none of the recorded threads",
            bytes_text((written_bytes - own_bytes) as f64)
        ),
    }
}

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let written_bytes = |device: &u64| gathered.writes.bytes.get(device).copied().unwrap_or(0);
    // `AloneOrLoad`: the baseline is the wait without a write, or next to the fewest bytes.
    let devices = gathered.devices.iter().filter_map(|(device_number, device)| {
        let lost = gathered.writes.lost_waits(*device_number, Baseline::AloneOrLoad)?;
        Some((written_bytes(device_number), *device_number, &device.name, lost))
    });
    let (written_bytes, device_number, name, lost) =
        devices.max_by_key(|(written_bytes, ..)| *written_bytes).expect("a device was charged");
    CauseText {
        title: format!("writes to {} delay the reads", device_text(name)),
        evidence: format!(
            "while {} are in flight ({} in all) a read waits {}, otherwise {}; {}",
            if lost.are_loads_compared { "many writes" } else { "writes" },
            bytes_text(written_bytes as f64),
            duration_text(lost.delayed_ns),
            duration_text(lost.baseline_ns),
            main_writer_text(gathered, device_number, written_bytes),
        ),
        remedy:
            "limit the writer (io.max, ionice, fewer writes at a time), write at other times, or \
                 to another device; `iotop` and `pidstat -d` show who writes"
                .to_owned(),
    }
}
