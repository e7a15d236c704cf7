//! Cause: more data is fetched than is used, and it costs more than it saves.
//!
//! The *rule* holds for a file with at least [`FETCHED_PAGES_MIN`] fetched pages under two
//! conditions. At least half of these pages were neither requested nor mapped by faults. And
//! separate requests for the used parts would have taken less time than the waits. Large requests
//! also save requests: without readahead, each used part is a separate request. The time of such
//! requests follows from the service times of the recording. The difference is lost. It is
//! subtracted from the *judged* waits: those without another cause, and those charged to depth.

use std::collections::BTreeMap;

use super::super::depth_sweep::Depth;
use super::super::gather::{FileData, RecordingData};
use super::super::wait_sum::WaitSum;
use super::super::{SampledWaits, WaitCause};
use super::words::{bytes_text, duration_text};
use super::{CauseText, Finding, path_or_dash};
use crate::median::median;
use readpath_trace::page_set::PAGE_BYTES;
use readpath_trace::recording::AdviceType;

/// Number of fetched pages (1 MiB) before a file is judged, chosen. Fewer may be the end of a
/// window, or the head of a small file.
const FETCHED_PAGES_MIN: u64 = 256;

/// Condition of the remedy where the cost of requests is assumed: the assumption may be wrong by
/// orders of magnitude on devices with a delay for each request.
pub(in super::super) const TRIAL_CONDITION: &str =
    "only if a trial shows a gain, as the cost of requests is assumed: ";

/// Used parts of files, for a measurement of separate requests.
#[derive(Clone, Debug, PartialEq)]
pub struct AssumedParts {
    /// Mean size of a part in bytes.
    pub request_bytes: u64,
    /// Number of parts for each wait.
    pub parts_per_wait: f64,
    /// Evidence of the finding up to the time of separate requests.
    pub fetch_text: String,
    /// Passed time in seconds of the judged waits for these files.
    pub judged_seconds: f64,
    /// Part of it in seconds that is charged to unused bytes by the assumption.
    pub lost_seconds: f64,
    /// Part of it in seconds that lacks queue depth, if no byte is lost.
    pub depth_seconds: f64,
    /// Part of `depth_seconds` that the assumption takes away.
    pub depth_lost_seconds: f64,
    /// Finding about the queue depth that is below the reported share by the assumption, if any.
    pub depth: Option<Finding>,
}

/// Causes of judged waits.
const JUDGED_CAUSES: [Option<WaitCause>; 2] = [None, Some(WaitCause::Depth)];

/// Returns true for the causes of judged waits.
pub(in super::super) fn is_judged_cause(cause: Option<WaitCause>) -> bool {
    JUDGED_CAUSES.contains(&cause)
}

/// Returns the waits for a file that readahead may have prolonged: without a cause, or for depth.
fn judged_waits(file: &FileData) -> WaitSum {
    let mut judged = file.charge(None);
    judged.add_all(&file.charge(Some(WaitCause::Depth)));
    judged
}

/// Returns the time in nanoseconds to read the used parts without readahead: one request for each,
/// of their mean size. A part is a contiguous range that was fetched and requested. `None` if the
/// service times of the device are unknown. A file with the advice SEQUENTIAL also needs a measured
/// ratio of the cost of a request to the cost of its bytes. An assumed one is no evidence against
/// the advice.
fn separate_requests_ns(gathered: &RecordingData, file: &FileData) -> Option<f64> {
    let cost = gathered.devices.get(&file.device)?.request_cost()?;
    if cost.is_assumed && is_of_advice(file) {
        return None;
    }
    let parts = file.parts.max(1);
    Some(parts as f64 * cost.request_ns(file.part_bytes as f64 / parts as f64))
}

/// Returns true if unneeded bytes of the file are charged to its advice SEQUENTIAL.
fn is_of_advice(file: &FileData) -> bool {
    charged_cause(file) == WaitCause::Advice
}

/// Returns the cause to which unneeded bytes of the file are charged.
pub(super) fn charged_cause(file: &FileData) -> WaitCause {
    match file.direct_reads_fill_cache() {
        true => WaitCause::Direct,
        false if file.has_hint(AdviceType::Sequential) => WaitCause::Advice,
        false => WaitCause::OverRead,
    }
}

/// Returns true if at least half of the fetched pages are unused: neither requested nor mapped by
/// faults. Also true without fetched pages.
fn is_mostly_unused(fetched_pages: u64, unused_pages: u64) -> bool {
    unused_pages * 2 >= fetched_pages
}

/// Returns true if unused pages of the file may be charged to this cause, and most are unused.
pub(in super::super) fn may_be_charged(file: &FileData) -> bool {
    if charged_cause(file) != WaitCause::OverRead {
        return false;
    }
    let fetched_pages = file.fetched.count();
    fetched_pages > 0 && is_mostly_unused(fetched_pages, file.unused_pages())
}

/// Returns the fraction of a file's judged waits that is lost. 0 if the rule does not hold, or if
/// the time without readahead is unknown ([`separate_requests_ns`]).
pub(super) fn lost_share(gathered: &RecordingData, file: &FileData) -> f64 {
    let fetched_pages = file.fetched.count();
    if fetched_pages < FETCHED_PAGES_MIN {
        return 0.0;
    }
    let unused_pages = file.unused_pages();
    if !is_mostly_unused(fetched_pages, unused_pages) {
        return 0.0;
    }
    let Some(separate_ns) = separate_requests_ns(gathered, file) else { return 0.0 };
    let waited_ns = judged_waits(file).ns as f64;
    // The lost fraction is at most the unused fraction of the bytes: a byte not moved saves only
    // its own time.
    (1.0 - separate_ns / waited_ns.max(1.0)).clamp(0.0, unused_pages as f64 / fetched_pages as f64)
}

/// Returns the judged waits for the files whose unneeded bytes are charged to the advice
/// SEQUENTIAL, and the file with the longest of them.
pub(super) fn advised_waits(gathered: &RecordingData) -> (WaitSum, Option<&FileData>) {
    let files = gathered.files.values();
    let advised = files.filter(|file| is_of_advice(file) && lost_share(gathered, file) > 0.0);
    let mut sum = WaitSum::default();
    advised.clone().for_each(|file| sum.add_all(&judged_waits(file)));
    (sum, advised.max_by_key(|file| judged_waits(file).ns))
}

/// Returns the files for which the rule at the top of this file holds. Files whose direct reads
/// fill the page cache are left out: their unneeded bytes are charged to the cause `Direct`. Files
/// with the advice SEQUENTIAL are left out for the cause `Advice`.
fn over_read_files(gathered: &RecordingData) -> impl Iterator<Item = &FileData> {
    let files = gathered.files.values();
    let files = files.filter(|file| charged_cause(file) == WaitCause::OverRead);
    files.filter(|file| lost_share(gathered, file) > 0.0)
}

/// Returns the number of judged waits for the files for which the rule holds.
pub(super) fn judged_wait_count(gathered: &RecordingData) -> u64 {
    over_read_files(gathered).map(|file| judged_waits(file).waits).sum()
}

/// Returns the files, with their numbers, for which the rule holds by an assumed cost of requests.
pub(in super::super) fn assumed_files(
    gathered: &RecordingData,
) -> impl Iterator<Item = (u32, &FileData)> {
    let is_assumed = |file: &FileData| {
        let device = gathered.devices.get(&file.device);
        device.and_then(|device| device.request_cost()).is_some_and(|cost| cost.is_assumed)
    };
    let files = gathered.files.iter().map(|(number, file)| (*number, file));
    files.filter(move |(_, file)| {
        let is_over_read = charged_cause(file) == WaitCause::OverRead;
        is_over_read && is_assumed(file) && lost_share(gathered, file) > 0.0
    })
}

/// Sets the sums of a sample of judged waits to the sums of the files with an assumed cost. The
/// recorded sums have all files.
pub(in super::super) fn count_assumed_waits(gathered: &RecordingData, sample: &mut SampledWaits) {
    let (mut waits, mut depth) = (WaitSum::default(), Depth::default());
    for (_, file) in assumed_files(gathered) {
        waits.add_all(&judged_waits(file));
        for cause in JUDGED_CAUSES {
            depth.add(file.depth_charge(cause).unwrap_or_default().all_depth);
        }
    }
    (sample.waits, sample.waited_seconds) = (waits.waits, waits.ns as f64 / 1e9);
    sample.depth = depth.mean();
}

/// Returns the used parts of the files for which the rule holds by an assumed cost of requests,
/// without a finding about the queue depth. `None` without such a file: the recording itself has
/// the costs. `remaining_shares`: the part of each file's waits that other causes leave.
pub(super) fn assumed_parts(
    gathered: &RecordingData,
    remaining_shares: &BTreeMap<u32, f64>,
) -> Option<AssumedParts> {
    let files: Vec<(u32, &FileData)> = assumed_files(gathered).collect();
    let (parts, bytes) = files
        .iter()
        .fold((0, 0), |sum, (_, file)| (sum.0 + file.parts.max(1), sum.1 + file.part_bytes));
    if parts == 0 {
        return None;
    }
    let waits = files.iter().map(|(_, file)| judged_waits(file).waits).sum::<u64>();
    let mut assumed = AssumedParts {
        request_bytes: (bytes / parts).max(PAGE_BYTES),
        parts_per_wait: parts as f64 / waits.max(1) as f64,
        fetch_text: fetch_text(&over_read_files(gathered).collect::<Vec<_>>()),
        judged_seconds: 0.0,
        lost_seconds: 0.0,
        depth_seconds: 0.0,
        depth_lost_seconds: 0.0,
        depth: None,
    };
    let lacking_part = gathered.lacking_depth_part(WaitCause::Depth);
    for (number, file) in files {
        let lost_share = lost_share(gathered, file);
        let remaining_share = remaining_shares.get(&number).copied().unwrap_or(1.0);
        for cause in JUDGED_CAUSES {
            let depths = file.depth_charge(cause).unwrap_or_else(|| file.all_depth_charges());
            let ns = file.charge(cause).ns as f64 * depths.passed_share() * remaining_share;
            assumed.judged_seconds += ns / 1e9;
            assumed.lost_seconds += ns / 1e9 * lost_share;
            if cause == Some(WaitCause::Depth) {
                let low_seconds = ns / 1e9 * depths.low_share() * lacking_part;
                assumed.depth_seconds += low_seconds;
                assumed.depth_lost_seconds += low_seconds * lost_share;
            }
        }
    }
    Some(assumed)
}

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let files: Vec<&FileData> = over_read_files(gathered).collect();
    let separate_ns: f64 =
        files.iter().filter_map(|file| separate_requests_ns(gathered, file)).sum();
    let waited_ns: f64 = files.iter().map(|file| judged_waits(file).ns as f64).sum();
    let (assumption, condition) = match assumed_files(gathered).next() {
        Some(_) => {
            (", by an assumed cost of requests: too few of another size were seen", TRIAL_CONDITION)
        }
        None => ("", ""),
    };
    CauseText {
        title: "more data is read than is used".to_owned(),
        evidence: format!(
            "{} would take about {} instead of {}{assumption}",
            fetch_text(&files),
            duration_text(separate_ns),
            duration_text(waited_ns),
        ),
        remedy: format!(
            "{condition}advise POSIX_FADV_RANDOM (MADV_RANDOM) for the reads at random positions, \
             and request whole ranges at once (`pread`, MADV_WILLNEED); or reduce the device's \
             read_ahead_kb"
        ),
    }
}

/// Returns the evidence about over-read files, up to the time of separate requests.
fn fetch_text(files: &[&FileData]) -> String {
    let fetched_pages: u64 = files.iter().map(|file| file.fetched.count()).sum();
    let unused_pages: u64 = files.iter().map(|file| file.unused_pages()).sum();
    let file_with_most = files.iter().copied().max_by_key(|file| file.unused_pages());
    let parts: u64 = files.iter().map(|file| file.parts).sum();
    // The number of used pages is an upper bound if a fault mapped more than it touched.
    let is_upper_bound = files.iter().any(|file| file.mapped.count_without(&file.requested) > 0);
    let [at_most, at_least] = if is_upper_bound { ["at most ", "at least "] } else { ["", ""] };
    let used_pages = fetched_pages - unused_pages;
    format!(
        "{} were fetched and {at_most}{} of them used ({at_least}{:.0} times as much as needed), \
         most of {}; separate requests for the {parts} used parts",
        bytes_text((fetched_pages * PAGE_BYTES) as f64),
        bytes_text((used_pages * PAGE_BYTES) as f64),
        fetched_pages as f64 / used_pages.max(1) as f64,
        path_or_dash(file_with_most),
    )
}

/// Returns the time in seconds that separate requests saved per read in each round, next to the
/// recorded wait of a read with `depth` waits at a time. The median is 0 or less. `None` if the
/// median round was faster.
///
/// The kernel keeps several windows in flight, which one direct read after the other does not
/// repeat. Separate requests that take longer than the recorded windows are no remedy all the same.
pub(in super::super) fn losses(
    recorded_seconds: f64,
    depth: usize,
    separate_seconds: &mut [f64],
) -> Option<Vec<f64>> {
    let passed_seconds = recorded_seconds / depth as f64;
    let is_slower = median(separate_seconds) >= passed_seconds;
    is_slower.then(|| separate_seconds.iter().map(|seconds| passed_seconds - seconds).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 59 waits of 2.66 ms for 503 used parts. Separate requests of 1.3 ms take 11.08 ms
    /// for the parts of a wait, 8.42 ms longer. Two waits at a time have 1.33 ms each. Requests of
    /// 0.1 ms would save 1.8 ms.
    #[test]
    fn separate_requests_slower_than_the_recorded_waits_save_nothing() {
        let rounds = |request_seconds: f64| {
            [0.9, 1.0, 1.1].map(|factor| factor * request_seconds * 503.0 / 59.0)
        };
        for (depth, lost_seconds) in [(1, 8.42e-3), (2, 9.75e-3)] {
            let mut saved = losses(2.66e-3, depth, &mut rounds(1.3e-3)).expect("they are slower");
            assert!((median(&mut saved) + lost_seconds).abs() < 1e-5, "{saved:?}");
        }
        assert_eq!(losses(2.66e-3, 1, &mut rounds(0.1e-3)), None);
    }
}
