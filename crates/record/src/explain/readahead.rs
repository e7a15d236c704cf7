//! Cause: the kernel's readahead window is too small for the device.
//!
//! Reads in order wait for windows that the kernel fetches ahead. A device may be faster with
//! larger windows, which the recording does not show. The finding is therefore made by a
//! measurement, on the file with the longest of these waits.
//!
//! Reads in order may also wait for one request of their own at a time. Examples are direct reads,
//! and touches of a mapping at distances of 64 KiB, before which the kernel fetches nothing ahead.
//! No size is small for every device, so the measurement decides on these waits too.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use readpath_os::queue::ReadaheadSetting;
use readpath_trace::recording::{AdviceType, ReadMethod};

use super::cause::ReadWait;
use super::cause::words::bytes_text;
use super::gain::{Gain, check_unchanged, open_direct};
use super::gather::{FileData, RecordingData};
use super::{
    Finding, ORDERED_BYTES, REPORTED_SHARE_MIN, SECONDS_MIN, SampledFile, WAITS_MIN, WaitCause,
};
use crate::readahead_window::{ComparedSizes, TriedWindow, WindowTrial, compare_sizes};

/// Time after which a round of the measurement begins no request, chosen: 3 s for three rounds.
const ROUND_TIME_MAX: Duration = Duration::from_secs(1);

/// Waits of reads in order for the kernel's readahead, or for one request of their own at a time.
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
    /// Mean size in bytes of the requests, if most of these reads waited for one of their own at a
    /// time. `None` for waits for the kernel's windows.
    pub request_bytes: Option<u64>,
    /// True if the reads bypass the page cache.
    pub is_direct: bool,
}

/// Returns true for a read in order that waited for a request of its own, without
/// data read ahead.
pub(super) fn is_single_request(wait: &ReadWait) -> bool {
    let is_in_order = wait.is_sequential && wait.run_bytes >= ORDERED_BYTES;
    let is_alone = wait.fetched_bytes > 0 && wait.prefetched_bytes == 0;
    is_in_order && wait.is_request_seen && is_alone
}

/// Returns true for a read in order that waited for readahead: its own, or one in flight. Also true
/// for a request of its own, as readahead or a larger request may be faster.
pub(super) fn is_readahead_wait(wait: &ReadWait) -> bool {
    // The program's own announcements replace the kernel's readahead.
    let has_own_ahead = wait.is_announced || wait.hint == Some(AdviceType::Random);
    let is_in_order = wait.is_sequential && wait.run_bytes >= ORDERED_BYTES;
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

/// Returns true if most waits in order for a file were for one request of their own each.
fn has_single_requests(file: &FileData) -> bool {
    file.single_waits.ns * 2 > file.readahead_waits.ns
}

/// Returns the waits for readahead, or `None` if they are too short or too few for a finding.
/// `is_direct`: waits for files whose reads bypass readahead and have one request at a time.
/// Otherwise files with direct reads are left out. Only the longer kind of waits counts: for
/// windows, or for single requests, at one device. `remaining_shares`: the part of each file's
/// waits that other causes leave.
pub(super) fn reportable_waits(
    gathered: &RecordingData,
    remaining_shares: &BTreeMap<u32, f64>,
    is_direct: bool,
) -> Option<ReadaheadWaits> {
    let is_judged = |file: &FileData| match is_direct {
        true => file.bypasses_cache() && has_single_requests(file),
        false => file.direct_reads == 0,
    };
    let all_judged = gathered.files.iter().filter(|(_, file)| is_judged(file));
    // One file is measured. It stands for the same kind of waits at the same device.
    let kind_of = |file: &FileData| (file.device, has_single_requests(file));
    // Waits of several threads at the same time share the time that passed.
    let passed_ns = |number: &u32, file: &FileData| {
        // A wait for readahead is charged to no cause.
        let depths = file.depth_charge(None).unwrap_or_default();
        let remaining_share = remaining_shares.get(number).copied().unwrap_or(1.0);
        // Larger requests are compared with one request at a time, so only such waits count.
        let low_share = if has_single_requests(file) { depths.low_share() } else { 1.0 };
        let passed_ns = file.readahead_waits.ns as f64 * depths.passed_share();
        passed_ns * remaining_share * low_share
    };
    let mut kinds: BTreeMap<(u64, bool), f64> = BTreeMap::new();
    for (number, file) in all_judged.clone() {
        *kinds.entry(kind_of(file)).or_default() += passed_ns(number, file);
    }
    let (kind, kind_ns) = kinds.into_iter().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let judged_files = all_judged.filter(|(_, file)| kind_of(file) == kind);
    let seconds = kind_ns / 1e9;
    let files = judged_files.map(|(_, file)| file);
    let longest = files.clone().max_by_key(|file| file.readahead_waits.ns)?;
    let share = seconds * 1e9 / gathered.length_ns.max(1) as f64;
    let waits = files.clone().map(|file| file.readahead_waits.waits).sum();
    let windows: u64 = files.map(|file| file.readahead_windows).sum();
    let offset = longest.readahead_offset?;
    let is_reported = share >= REPORTED_SHARE_MIN && seconds >= SECONDS_MIN && windows >= WAITS_MIN;
    let single = longest.single_waits;
    let request_bytes = has_single_requests(longest).then(|| single.bytes / single.waits.max(1));
    let (waited_ns, bytes) = match request_bytes {
        Some(_) => (single.ns, single.bytes),
        None => (longest.waits.ns, longest.got_bytes),
    };
    is_reported.then(|| ReadaheadWaits {
        seconds,
        share,
        waits,
        file: SampledFile::from_data(longest),
        offset,
        seconds_per_byte: waited_ns as f64 / 1e9 / bytes.max(1) as f64,
        request_bytes,
        is_direct,
    })
}

/// Result of a comparison of readahead windows.
#[derive(Debug)]
pub(super) enum Comparison {
    /// A larger window or request is faster.
    Faster(Finding),
    /// No larger one saves more than [`REPORTED_SHARE_MIN`] of the waits.
    NoneFaster,
}

/// Compares readahead windows on the file. Returns `None` if the file was replaced, is too short or
/// has no direct reads. Also `None` if the window is unknown, the storage has changed or is too
/// slow, the rounds differ too much, or `should_continue` returned false.
pub(super) fn measure(
    waits: &ReadaheadWaits,
    should_continue: &mut dyn FnMut() -> bool,
) -> Option<Comparison> {
    let file = open_direct(&waits.file).ok()?;
    // Direct reads do not depend on the window.
    let setting = match waits.is_direct {
        true => None,
        false => Some(ReadaheadSetting::from_metadata(&file.metadata().ok()?)?),
    };
    let window_bytes = setting.as_ref().map_or(0, |setting| setting.bytes);
    let (offset, present_bytes) = (waits.offset, waits.request_bytes.unwrap_or(window_bytes));
    let windows = ComparedSizes {
        round_time_max: Some(ROUND_TIME_MAX),
        ..ComparedSizes::windows(present_bytes)
    };
    let sizes = match waits.request_bytes {
        None => windows,
        // The kernel has two windows in flight, and larger requests of the program are single.
        Some(_) => ComparedSizes {
            present_in_flight: 1,
            larger_than_bytes: present_bytes.max(window_bytes),
            in_flight: if waits.is_direct { 1 } else { 2 },
            ..windows
        },
    };
    let trial = compare_sizes(&file, offset, &sizes, should_continue).ok()??;
    // The first tried window is the present one.
    check_rate(&trial.tried[0], recorded_seconds_per_byte(waits, &trial.tried[0])).ok()?;
    let largest_present_bytes = present_bytes.max(window_bytes);
    let is_larger = trial.tried[trial.chosen].bytes > largest_present_bytes;
    let has_tried_larger = trial.tried.iter().any(|tried| tried.bytes > largest_present_bytes);
    let finding = match &setting {
        Some(setting) => build_finding(waits, setting, &trial),
        None => direct_finding(waits, &trial),
    };
    let gain = finding.gain.as_ref()?;
    // The gain is none below the reported share, and uncertain within the spread of the rounds.
    match is_larger && !gain.is_none(waits.seconds) {
        true if gain.is_uncertain() => None,
        true => Some(Comparison::Faster(finding)),
        // A size that was left out may be faster, and so may a larger one than the largest.
        false if !trial.is_complete || !has_tried_larger => None,
        false => Some(Comparison::NoneFaster),
    }
}

/// Returns the recorded seconds per byte for a comparison with the present ones. The waits for the
/// kernel's windows are no whole requests: the program computes during a part of each. They are
/// only a lower limit.
fn recorded_seconds_per_byte(waits: &ReadaheadWaits, present: &TriedWindow) -> f64 {
    match waits.request_bytes {
        Some(_) => waits.seconds_per_byte,
        None => waits.seconds_per_byte.max(present.median()),
    }
}

/// Compares the time of a request of the present size with the recorded time of as many bytes.
///
/// # Errors
/// As of [`check_unchanged`].
fn check_rate(present: &TriedWindow, recorded_seconds_per_byte: f64) -> Result<(), String> {
    let bytes = present.bytes as f64;
    check_unchanged(present.median() * bytes, recorded_seconds_per_byte * bytes)
}

/// Returns the finding that the chosen window of a trial is faster than the present one.
fn build_finding(
    waits: &ReadaheadWaits,
    setting: &ReadaheadSetting,
    trial: &WindowTrial,
) -> Finding {
    let kib = trial.tried[trial.chosen].bytes >> 10;
    let name = disk_name(&setting.path);
    let waited_for = match waits.request_bytes {
        None => "readahead".to_owned(),
        Some(bytes) => format!("a request of {} each, one at a time", bytes_text(bytes as f64)),
    };
    let announced = match waits.request_bytes {
        None => format!("have {kib} KiB of reads in flight, ahead of the program"),
        Some(_) => format!(
            "announce {kib} KiB ahead of the program with POSIX_FADV_WILLNEED (MADV_WILLNEED)"
        ),
    };
    Finding {
        cause: WaitCause::Readahead,
        seconds: waits.seconds,
        share: waits.share,
        title: "the kernel's readahead window is small for the device".to_owned(),
        evidence: format!(
            "{} in order waited for {waited_for}, mostly of {}; the window is {} KiB. {}",
            reads_text(waits.waits),
            waits.file.path,
            setting.bytes >> 10,
            rates_text(waits, trial),
        ),
        remedy: format!(
            "set the window of {name} to {kib} KiB (`echo {kib} > {}` as root; it holds for all files \
             there, and programs with short runs then read more than they use), or {announced}",
            setting.path.display()
        ),
        gain: Some(measured_gain(waits, trial, format!("a readahead window of {kib} KiB"))),
    }
}

/// Returns the finding that larger direct requests are faster than the present ones.
fn direct_finding(waits: &ReadaheadWaits, trial: &WindowTrial) -> Finding {
    let kib = trial.tried[trial.chosen].bytes >> 10;
    // Direct waits are for single requests, so their size is known.
    let request_bytes = waits.request_bytes.unwrap_or_default() as f64;
    Finding {
        cause: WaitCause::Small,
        seconds: waits.seconds,
        share: waits.share,
        title: "direct reads in sequence, one at a time, are small for the device".to_owned(),
        evidence: format!(
            "{} in order waited for a request of {} each, mostly of {}. {}",
            reads_text(waits.waits),
            bytes_text(request_bytes),
            waits.file.path,
            rates_text(waits, trial),
        ),
        remedy: format!(
            "read {kib} KiB at once, or have as many bytes in flight (io_uring or threads)"
        ),
        gain: Some(measured_gain(waits, trial, format!("reads of {kib} KiB"))),
    }
}

/// Returns the rates of the present requests and of the chosen ones as text.
fn rates_text(waits: &ReadaheadWaits, trial: &WindowTrial) -> String {
    // The first tried window is the present one.
    let (present, chosen) = (&trial.tried[0], &trial.tried[trial.chosen]);
    let mib_per_s = |seconds_per_byte: f64| 1.0 / seconds_per_byte / f64::from(1 << 20);
    let present_kib = present.bytes >> 10;
    let (present_size, chosen_in_flight) = match (waits.request_bytes, waits.is_direct) {
        (None, _) => ("this size, two in flight,".to_owned(), ""),
        (Some(_), true) => (format!("{present_kib} KiB, one in flight,"), ""),
        (Some(_), false) => (format!("{present_kib} KiB, one in flight,"), ", two in flight,"),
    };
    format!(
        "Direct reads of {present_size} have {:.0} MiB a second; of {} KiB{chosen_in_flight} {:.0}",
        mib_per_s(present.median()),
        chosen.bytes >> 10,
        mib_per_s(chosen.median()),
    )
}

/// Returns the gain of the chosen requests of a trial.
fn measured_gain(waits: &ReadaheadWaits, trial: &WindowTrial, with: String) -> Gain {
    let (present, chosen) = (&trial.tried[0], &trial.tried[trial.chosen]);
    let saved_seconds =
        |seconds_per_byte: f64| waits.seconds * (1.0 - seconds_per_byte / present.median());
    Gain::Measured {
        with,
        saved_seconds: saved_seconds(chosen.median()),
        // The times are in ascending order, so the last one saves least.
        low: saved_seconds(chosen.seconds_per_byte[chosen.seconds_per_byte.len() - 1]),
        high: saved_seconds(chosen.seconds_per_byte[0]),
        requests: trial.tried.iter().map(|window| window.requests).sum(),
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

    /// By hand: at 10 ns a byte, 128 KiB take 1.31 ms. At 25 ns they take 2.5 times as long, beyond
    /// a factor of 2 and 20 µs of a processor. 4 KiB take 41 µs at 10 ns. The 98 µs at 24 ns are
    /// within 2.49 times.
    #[test]
    fn rate_of_slower_storage_is_a_change() {
        let present = |bytes, ns_per_byte: f64| TriedWindow {
            bytes,
            requests: 48,
            seconds_per_byte: vec![ns_per_byte * 1e-9],
        };
        assert!(check_rate(&present(128 << 10, 25.0), 1e-8).is_err());
        assert!(check_rate(&present(128 << 10, 19.0), 1e-8).is_ok());
        assert!(check_rate(&present(4 << 10, 24.0), 1e-8).is_ok());
    }

    /// By hand: with windows of 128 KiB a byte takes 10 ns (95 MiB/s), with 2 MiB 2 ns (477 MiB/s).
    /// Thus 2 s become 0.4 s, and 1.6 s are saved. Rounds of 1.8 and 2.2 ns save 1.64 and 1.56 s.
    #[test]
    fn finding_names_the_window_and_its_setting() {
        let waits = ReadaheadWaits {
            seconds: 2.0,
            share: 0.8,
            waits: 100,
            file: SampledFile { path: "/data".to_owned(), device: 0, inode: 0, bytes: None },
            offset: 0,
            seconds_per_byte: 1e-8,
            request_bytes: None,
            is_direct: false,
        };
        let path = Path::new("/sys/block/sda/queue/read_ahead_kb").to_owned();
        let setting = ReadaheadSetting { bytes: 128 << 10, path };
        let window = |kib: u64, ns_per_byte: f64| TriedWindow {
            bytes: kib << 10,
            requests: 48,
            seconds_per_byte: [0.9e-9, 1e-9, 1.1e-9].map(|factor| factor * ns_per_byte).to_vec(),
        };
        let trial = WindowTrial {
            tried: vec![window(128, 10.0), window(2048, 2.0)],
            chosen: 1,
            is_complete: true,
        };
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
