//! Cause: the kernel's readahead window is too small for the device.
//!
//! Reads in order wait for windows that the kernel fetches ahead. A device may be faster with
//! larger windows, which the recording does not show. The finding is therefore made by a
//! measurement, on the file with the longest of these waits.

use std::collections::BTreeMap;
use std::path::Path;

use readpath_os::queue::ReadaheadSetting;
use readpath_trace::recording::{AdviceType, ReadMethod};

use super::cause::ReadWait;
use super::gain::{Gain, check_unchanged, open_direct};
use super::gather::RecordingData;
use super::{
    Finding, ORDERED_BYTES, REPORTED_SHARE_MIN, SECONDS_MIN, SampledFile, WAITS_MIN, WaitCause,
};
use crate::readahead_window::{WindowTrial, compare};

/// Waits of reads in order for the kernel's readahead.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadaheadWaits {
    /// Time in seconds.
    pub seconds: f64,
    /// The time as a fraction of the recording's duration.
    pub share: f64,
    /// Number of waits.
    pub waits: u64,
    /// File with the longest waits.
    pub file: SampledFile,
    /// Offset in bytes of the first of these waits in the file.
    pub offset: u64,
    /// Seconds of all waits for this file, for each byte that was read of it.
    pub seconds_per_byte: f64,
}

/// Returns true for a read in order that waited for readahead: its own, or one in flight.
pub(super) fn is_readahead_wait(wait: &ReadWait) -> bool {
    // A read without fetched bytes waited for pages in flight. Without root the requests for a read
    // are not known, and the measurement decides.
    let is_ahead = wait.prefetched_bytes > 0 || wait.fetched_bytes == 0 || !wait.is_request_seen;
    // The program's own announcements replace the kernel's readahead.
    let has_own_ahead = wait.is_announced || wait.hint == Some(AdviceType::Random);
    let is_in_order = wait.is_sequential && wait.run_bytes >= ORDERED_BYTES && is_ahead;
    (is_in_order || is_long_copy(wait)) && !has_own_ahead
}

/// Returns true for a copy of several windows (`sendfile` and similar calls). The kernel reads the
/// file in order for it, window by window, and the call waits for each.
fn is_long_copy(wait: &ReadWait) -> bool {
    wait.method == ReadMethod::Copied && wait.fetched_bytes > ORDERED_BYTES
}

/// Returns the number of windows for which a read has waited, at least one. A window has
/// `ORDERED_BYTES`.
pub(super) fn windows_of_wait(wait: &ReadWait) -> u64 {
    if is_long_copy(wait) { wait.fetched_bytes / ORDERED_BYTES } else { 1 }
}

/// Returns the waits for readahead, or `None` if they are too short or too few for a finding. Files
/// with direct reads are left out, as these bypass readahead. `remaining_shares`: the part of
/// each file's waits that other causes leave.
pub(super) fn reportable_waits(
    gathered: &RecordingData,
    remaining_shares: &BTreeMap<u32, f64>,
) -> Option<ReadaheadWaits> {
    let cached_files = gathered.files.iter().filter(|(_, file)| file.direct_reads == 0);
    // Waits of several threads at the same time share the time that passed.
    let passed_ns = cached_files.clone().map(|(number, file)| {
        let passed_share = file.depth_charge(None).map_or(0.0, |waits| waits.passed_share());
        let remaining_share = remaining_shares.get(number).copied().unwrap_or(1.0);
        file.readahead_waits.ns as f64 * passed_share * remaining_share
    });
    let seconds = passed_ns.sum::<f64>() / 1e9;
    let files = cached_files.map(|(_, file)| file);
    let longest = files.clone().max_by_key(|file| file.readahead_waits.ns)?;
    let share = seconds * 1e9 / gathered.length_ns.max(1) as f64;
    let waits = files.clone().map(|file| file.readahead_waits.waits).sum();
    let windows: u64 = files.map(|file| file.readahead_windows).sum();
    let offset = longest.readahead_offset?;
    let is_reported = share >= REPORTED_SHARE_MIN && seconds >= SECONDS_MIN && windows >= WAITS_MIN;
    is_reported.then(|| ReadaheadWaits {
        seconds,
        share,
        waits,
        file: SampledFile {
            path: longest.path.clone(),
            inode: longest.inode,
            bytes: longest.bytes,
        },
        offset,
        seconds_per_byte: longest.waits.ns as f64 / 1e9 / longest.got_bytes.max(1) as f64,
    })
}

/// Result of a comparison of readahead windows.
#[derive(Debug)]
pub(super) enum Comparison {
    /// A larger window is faster.
    Faster(Finding),
    /// No larger window saves more than [`REPORTED_SHARE_MIN`] of the waits.
    NoneFaster,
}

/// Compares readahead windows on the file. Returns `None` if the file was replaced, is too short or
/// has no direct reads. Also `None` if the window is unknown, the storage has changed, the rounds
/// differ too much, or `should_continue` returned false.
pub(super) fn measure(
    waits: &ReadaheadWaits,
    should_continue: &mut dyn FnMut() -> bool,
) -> Option<Comparison> {
    let file = open_direct(&waits.file).ok()?;
    let setting = ReadaheadSetting::from_metadata(&file.metadata().ok()?)?;
    let trial = compare(&file, waits.offset, setting.bytes, should_continue).ok()??;
    // The first tried window is the present one.
    let present_seconds_per_byte = trial.tried[0].median();
    check_unchanged(present_seconds_per_byte, waits.seconds_per_byte).ok()?;
    let finding = build_finding(waits, &setting, &trial);
    let gain = finding.gain.as_ref()?;
    // The gain is none below the reported share, and uncertain within the spread of the rounds.
    let is_larger = trial.tried[trial.chosen].bytes > setting.bytes;
    match is_larger && !gain.is_none(waits.seconds) {
        true if gain.is_uncertain() => None,
        true => Some(Comparison::Faster(finding)),
        false => Some(Comparison::NoneFaster),
    }
}

/// Returns the finding that the chosen window of a trial is faster than the present one.
fn build_finding(
    waits: &ReadaheadWaits,
    setting: &ReadaheadSetting,
    trial: &WindowTrial,
) -> Finding {
    // The first tried window is the present one.
    let (present, chosen) = (&trial.tried[0], &trial.tried[trial.chosen]);
    let saved_seconds =
        |seconds_per_byte: f64| waits.seconds * (1.0 - seconds_per_byte / present.median());
    let kib = chosen.bytes >> 10;
    let mib_per_s = |seconds_per_byte: f64| 1.0 / seconds_per_byte / f64::from(1 << 20);
    let name = disk_name(&setting.path);
    Finding {
        cause: WaitCause::Readahead,
        seconds: waits.seconds,
        share: waits.share,
        title: "the kernel's readahead window is small for the device".to_owned(),
        evidence: format!(
            "{} in order waited for readahead, mostly of {}; the window is {} KiB. Direct \
             reads of this size, two in flight, have {:.0} MiB a second; of {kib} KiB {:.0}",
            reads_text(waits.waits),
            waits.file.path,
            setting.bytes >> 10,
            mib_per_s(present.median()),
            mib_per_s(chosen.median()),
        ),
        remedy: format!(
            "set the window of {name} to {kib} KiB (`echo {kib} > {}` as root; it holds for all files \
             there, and programs with short runs then read more than they use), or have {kib} KiB of \
             reads in flight, ahead of the program",
            setting.path.display()
        ),
        gain: Some(Gain::Measured {
            with: format!("a readahead window of {kib} KiB"),
            saved_seconds: saved_seconds(chosen.median()),
            // The times are in ascending order, so the last one saves least.
            low: saved_seconds(chosen.seconds_per_byte[chosen.seconds_per_byte.len() - 1]),
            high: saved_seconds(chosen.seconds_per_byte[0]),
            requests: trial.tried.iter().map(|window| window.requests).sum(),
        }),
    }
}

/// Returns a number of reads as text.
fn reads_text(count: u64) -> String {
    if count == 1 { "1 read".to_owned() } else { format!("{count} reads") }
}

/// Returns the name of the disk or file system whose setting has this path in sysfs.
fn disk_name(setting: &Path) -> String {
    // `NAME/queue/read_ahead_kb` of a disk, or `NAME/read_ahead_kb` of another file system.
    let is_queue = setting.parent().is_some_and(|folder| folder.ends_with("queue"));
    let name = setting.ancestors().nth(if is_queue { 2 } else { 1 }).and_then(Path::file_name);
    name.map_or_else(|| "the device".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readahead_window::TriedWindow;

    /// By hand: with windows of 128 KiB a byte takes 10 ns (95 MiB/s), with 2 MiB 2 ns (477 MiB/s).
    /// Thus 2 s become 0.4 s, and 1.6 s are saved. Rounds of 1.8 and 2.2 ns save 1.64 and 1.56 s.
    #[test]
    fn finding_names_the_window_and_its_setting() {
        let waits = ReadaheadWaits {
            seconds: 2.0,
            share: 0.8,
            waits: 100,
            file: SampledFile { path: "/data".to_owned(), inode: 0, bytes: None },
            offset: 0,
            seconds_per_byte: 1e-8,
        };
        let path = Path::new("/sys/block/sda/queue/read_ahead_kb").to_owned();
        let setting = ReadaheadSetting { bytes: 128 << 10, path };
        let window = |kib: u64, ns_per_byte: f64| TriedWindow {
            bytes: kib << 10,
            requests: 48,
            seconds_per_byte: [0.9e-9, 1e-9, 1.1e-9].map(|factor| factor * ns_per_byte).to_vec(),
        };
        let trial = WindowTrial { tried: vec![window(128, 10.0), window(2048, 2.0)], chosen: 1 };
        let found = build_finding(&waits, &setting, &trial);
        let command = "set the window of sda to 2048 KiB (`echo 2048 > \
                       /sys/block/sda/queue/read_ahead_kb` as root;";
        assert!(found.remedy.starts_with(command), "{}", found.remedy);
        assert!(
            found.evidence.contains("have 95 MiB a second; of 2048 KiB 477"),
            "{}",
            found.evidence
        );
        let Some(Gain::Measured { saved_seconds, low, high, .. }) = found.gain else {
            panic!("no gain")
        };
        let is_near = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
        assert!(is_near(saved_seconds, 1.6) && is_near(low, 1.56) && is_near(high, 1.64));
        assert_eq!(disk_name(Path::new("/sys/class/bdi/0:50/read_ahead_kb")), "0:50");
    }
}
