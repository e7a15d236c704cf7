//! Charges of waits to causes, and the texts of each finding. The rules are in [`super`].
//!
//! A *charge* is the part of the waits that a cause explains. Waits of several threads at the same
//! time share the time that *passed*, so charges are in passed time. The queue depth of a wait is
//! *low* if few requests were in flight at the device meanwhile. Only then can more requests at a
//! time shorten it.

use std::collections::BTreeMap;

use super::gather::{FileData, RecordingData};
use super::{
    Finding, ProgramLimit, REPORTED_SHARE_MIN, STORAGE_ACTIVITIES, SmallCalls, UNKNOWN_SHARE_MAX,
    WAITS_MIN, WaitCause,
};
use readpath_trace::recording::{Activity, AdviceType, ReadMethod};

mod advice;
mod again;
mod calls;
mod depth;
mod direct;
mod hidden;
mod many_files;
mod metadata;
pub(super) mod over_read;
mod page_faults;
mod readers;
mod slow_file;
mod small;
mod stalls;
mod startup;
mod sync;
pub(super) mod words;
mod writers;

pub use over_read::AssumedParts;

pub(super) use hidden::{HiddenWaits, hidden_waits, polled_waits};
pub(super) use startup::is_of_programs;
use words::{bytes_text, duration_text};

/// A read that waited.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadWait {
    /// System call or mechanism of the read.
    pub method: ReadMethod,
    /// True if it begins at the end of the last read.
    pub is_sequential: bool,
    /// Bytes from the beginning of its sequential run to its own end.
    pub run_bytes: u64,
    /// Newest access hint of the program for its offset, if any.
    pub hint: Option<AdviceType>,
    /// Bytes that the program asked for.
    pub asked_bytes: u64,
    /// Bytes fetched during the read. 0 if it waited for data already in flight.
    pub fetched_bytes: u64,
    /// Number of those bytes that had been fetched before. Greater than `fetched_bytes` if the data
    /// in flight had been fetched before.
    pub refetched_bytes: u64,
    /// Number of fetched bytes beyond the requested pages.
    pub prefetched_bytes: u64,
    /// True if the read brought pages into the page cache while it was made.
    pub has_filled_cache: bool,
    /// True if a device request for the read is certain: the page cache was observed, or bypassed.
    pub is_request_seen: bool,
    /// True if the program announced its first page with WILLNEED.
    pub is_announced: bool,
    /// Length of its file, if known.
    pub file_bytes: Option<u64>,
}

/// Rule of a cause: true for a wait that the cause explains.
type CauseCondition = fn(&ReadWait) -> bool;

/// Returns the cause of a single wait: the first rule that holds. `None` without a cause.
pub(super) fn cause_of_wait(wait: &ReadWait) -> Option<WaitCause> {
    const RULES: [(WaitCause, CauseCondition); 6] = [
        (WaitCause::Again, again::is_cause_of),
        (WaitCause::Advice, advice::is_cause_of),
        (WaitCause::PageFaults, page_faults::is_cause_of),
        (WaitCause::Direct, direct::is_cause_of),
        (WaitCause::Small, small::is_cause_of),
        (WaitCause::Depth, depth::is_cause_of),
    ];
    RULES.into_iter().find(|(_, is_cause_of)| is_cause_of(wait)).map(|(cause, _)| cause)
}

/// Final charges of each cause, in nanoseconds of passed time.
#[derive(Debug, Default)]
pub(super) struct ChargedWaits {
    /// Nanoseconds charged to each cause. Waits at the same time share them. Causes without a
    /// charge are absent.
    pub by_cause: Vec<(WaitCause, f64)>,
    /// By file: part of its waits that writers, other readers, stalls and a slow file leave.
    pub remaining_shares: BTreeMap<u32, f64>,
    /// File that is slower than the others, if any.
    pub slow: Option<slow_file::SlowFile>,
    /// Parts of the charges for files of a program's start.
    startup: startup::StartupCharges,
}

/// Charges all waits to causes. Writers, other readers, stalls and a slow file first take their
/// shares of a file's waits. The rest goes to the causes of the single waits. A part of them that
/// no rule below charges stays without a cause.
pub(super) fn charge_waits(gathered: &RecordingData) -> ChargedWaits {
    let slow = slow_file::find_slow_file(gathered);
    let mut charged_ns: BTreeMap<WaitCause, f64> = BTreeMap::new();
    let mut remaining_shares = BTreeMap::new();
    let mut startup = startup::StartupCharges::default();
    let are_files_many = many_files::has_many_small_files(gathered);
    // Shares of devices, and the lacking parts of waits with a low depth: once for all files.
    let mut device_shares: BTreeMap<u64, [(WaitCause, f64); 3]> = BTreeMap::new();
    let [depth_lacking, many_files_lacking] =
        [WaitCause::Depth, WaitCause::ManyFiles].map(|cause| gathered.lacking_depth_part(cause));
    for (file_number, file) in &gathered.files {
        // Adds to the charge of a cause, and to its part for files of a program's start.
        let mut add_charge = |cause, ns: f64| {
            *charged_ns.entry(cause).or_default() += ns;
            startup.add(cause, ns, file);
        };
        let mut remaining_share = 1.0;
        // Waits at the same time share the time that passed.
        let all_waits = file.all_depth_charges();
        let waited_ns = file.waits.ns as f64 * all_waits.passed_share();
        // Charges a share of the waits that are left, and takes it from them.
        let mut charge_share = |cause, share: f64| {
            add_charge(cause, waited_ns * remaining_share * share);
            remaining_share *= 1.0 - share;
        };
        let lost_shares = device_shares
            .entry(file.device)
            .or_insert_with(|| lost_device_shares(gathered, file.device));
        lost_shares.iter().for_each(|(cause, share)| charge_share(*cause, *share));
        charge_share(
            WaitCause::SlowFile,
            slow.as_ref().map_or(0.0, |slow| slow.lost_share(*file_number)),
        );
        remaining_shares.insert(*file_number, remaining_share);
        // Unobserved reads may have used the pages that seem unused.
        let is_complete = gathered.unseen.is_empty();
        let lost_share = if is_complete { over_read::lost_share(gathered, file) } else { 0.0 };
        let over_read_cause = over_read::charged_cause(file);
        let is_one_of_many = are_files_many && many_files::is_small(file);
        for (cause, charge) in &file.charges {
            // Depths are kept under the first cause of a wait, also if it moved to `Advice` later.
            let waits = file.depth_charge(*cause).unwrap_or(all_waits);
            let ns = charge.ns as f64 * waits.passed_share() * remaining_share;
            // The part with few requests in flight. More requests at a time shorten this part only.
            let low_depth_ns = ns * waits.low_share();
            match cause {
                cause if is_one_of_many && many_files::absorbs_cause(*cause) => {
                    add_charge(WaitCause::ManyFiles, low_depth_ns * many_files_lacking);
                }
                // Without a cause, only the part that is lost to unused pages is charged. Its cause
                // is `OverRead`, or the SEQUENTIAL advice or the direct reads that fetched them.
                None => add_charge(over_read_cause, ns * lost_share),
                Some(WaitCause::Depth) => {
                    add_charge(over_read_cause, ns * lost_share);
                    add_charge(WaitCause::Depth, low_depth_ns * depth_lacking * (1.0 - lost_share));
                }
                // Without measured waits the requests are not known, and all waits are charged.
                Some(WaitCause::Direct) if gathered.has_measured_waits() => {
                    add_charge(WaitCause::Direct, low_depth_ns);
                }
                // Most reads of the file were by AIO or io_uring: several may be in flight.
                Some(WaitCause::Small) if file.submitted_reads * 2 > file.reads => {
                    add_charge(WaitCause::Small, low_depth_ns);
                }
                Some(cause) => add_charge(*cause, ns),
            }
        }
    }
    ChargedWaits { by_cause: charged_ns.into_iter().collect(), remaining_shares, slow, startup }
}

/// Returns the causes that concern a device as a whole, each with the fraction of the waits for the
/// device that is lost to it.
fn lost_device_shares(gathered: &RecordingData, device: u64) -> [(WaitCause, f64); 3] {
    [
        (WaitCause::Writers, writers::lost_share(gathered, device)),
        (WaitCause::Readers, readers::lost_share(gathered, device)),
        (WaitCause::Stalls, stalls::lost_share(gathered, device)),
    ]
}

/// Returns the cause `ManyFiles` for a wait that would be charged to it if the small files are
/// many. `None` for a larger file or another cause.
pub(super) fn many_files_cause(file: &FileData, cause: Option<WaitCause>) -> Option<WaitCause> {
    let is_absorbed = many_files::is_small(file) && many_files::absorbs_cause(cause);
    is_absorbed.then_some(WaitCause::ManyFiles)
}

/// Returns the time in nanoseconds that a buffer or a mapping would save small reads by system
/// calls.
pub(super) fn calls_ns(gathered: &RecordingData) -> f64 {
    gathered.calls.saved_ns()
}

/// Returns the time in nanoseconds that the program waited for its written data.
pub(super) fn sync_ns(gathered: &RecordingData) -> f64 {
    sync::cost_ns(gathered)
}

/// Returns true if a cause was observed often enough to be reported.
pub(super) fn has_evidence(cause: WaitCause, gathered: &RecordingData) -> bool {
    match cause {
        // The rules of these causes require a minimum number of waits themselves.
        WaitCause::SlowFile | WaitCause::Writers | WaitCause::Readers | WaitCause::Stalls => true,
        // The kernel's stacks give the times of these causes, not single waits.
        WaitCause::Metadata | WaitCause::Sync => true,
        WaitCause::Calls => gathered.calls.count >= calls::CALLS_MIN,
        WaitCause::ManyFiles => many_files::has_many_small_files(gathered),
        WaitCause::OverRead => over_read::judged_wait_count(gathered) >= WAITS_MIN,
        WaitCause::Advice => advice::charged_wait_count(gathered) >= WAITS_MIN,
        WaitCause::Direct => direct::charged_wait_count(gathered) >= WAITS_MIN,
        // Both look-ups also return the file with the longest waits, which is not needed here.
        WaitCause::Depth => {
            let (depth_charge, _file) = gathered.low_depth_waits(cause);
            let lacking_part = gathered.lacking_depth_part(cause);
            depth_charge.low.waits as f64 * lacking_part >= WAITS_MIN as f64
        }
        _ => {
            let (charge, _file) = gathered.charged_waits(cause);
            charge.waits >= WAITS_MIN
        }
    }
}

/// Returns the small reads by system calls for a measurement. `None` without such reads.
pub(super) fn small_calls(gathered: &RecordingData) -> Option<SmallCalls> {
    calls::small_calls(gathered)
}

/// Returns the used parts of over-read files if the time of requests for them is assumed.
/// `findings`: the reported ones. If `Depth` has evidence and is not among them, its finding is in
/// the result: a measurement may give it the waits that the assumption takes.
pub(super) fn assumed_parts(
    gathered: &RecordingData,
    charged: &ChargedWaits,
    findings: &[Finding],
) -> Option<AssumedParts> {
    let mut parts = over_read::assumed_parts(gathered, &charged.remaining_shares)?;
    let is_depth_found = findings.iter().any(|finding| finding.cause == WaitCause::Depth);
    if !is_depth_found && has_evidence(WaitCause::Depth, gathered) {
        let charge = charged.by_cause.iter().find(|(cause, _)| *cause == WaitCause::Depth);
        let ns = charge.map_or(0.0, |(_, ns)| *ns);
        let share = ns / gathered.length_ns.max(1) as f64;
        parts.depth = Some(build_finding(WaitCause::Depth, ns, share, gathered, charged));
    }
    Some(parts)
}

/// Builds the finding of a cause with its texts. `ns` is its cost in nanoseconds, `share` the cost
/// as a fraction of the recording's duration.
pub(super) fn build_finding(
    cause: WaitCause,
    ns: f64,
    share: f64,
    gathered: &RecordingData,
    charged: &ChargedWaits,
) -> Finding {
    let CauseText { title, evidence, remedy } = match cause {
        WaitCause::Depth => depth::cause_text(gathered),
        WaitCause::Small => small::cause_text(gathered),
        WaitCause::OverRead => over_read::cause_text(gathered),
        WaitCause::Direct => direct::cause_text(gathered),
        WaitCause::PageFaults => page_faults::cause_text(gathered),
        WaitCause::Advice => advice::cause_text(gathered),
        WaitCause::Again => again::cause_text(gathered),
        WaitCause::SlowFile => slow_file::cause_text(gathered, charged.slow.as_ref()),
        WaitCause::Writers => writers::cause_text(gathered),
        WaitCause::Readers => readers::cause_text(gathered),
        WaitCause::Stalls => stalls::cause_text(gathered),
        WaitCause::ManyFiles => many_files::cause_text(gathered),
        WaitCause::Calls => calls::cause_text(gathered),
        WaitCause::Metadata => metadata::cause_text(gathered),
        WaitCause::Sync => sync::cause_text(gathered),
        WaitCause::Readahead => unreachable!("only a measurement finds this cause"),
    };
    let remedy = startup::adapt_remedy(cause, gathered, charged, remedy);
    let gain = None;
    Finding { cause, seconds: ns / 1e9, share, title, evidence, remedy, gain }
}

/// Texts of a finding: summary in one line, evidence in the recording, proposed remedy.
struct CauseText {
    /// Summary in one line, with the numbers that identify the cause.
    title: String,
    /// Counts and times from the recording.
    evidence: String,
    /// Change that the user can make.
    remedy: String,
}

/// Returns the limit of a program without a reported cause, and its text. A trace of requests has
/// no waits to judge. `hidden`: waits that no recorded read contains.
pub(super) fn program_limit(
    gathered: &RecordingData,
    hidden: Option<&HiddenWaits>,
) -> (ProgramLimit, String) {
    match (gathered.is_request_trace(), gathered.reads) {
        (true, 0) => (ProgramLimit::Nothing, "the trace has no reads".to_owned()),
        (true, _) => (ProgramLimit::Untimed, untimed_text(gathered)),
        (false, _) => {
            let (limit, mut text) = limit_by_waits(gathered, hidden);
            if matches!(limit, ProgramLimit::Program | ProgramLimit::Device) {
                text += &many_failures_note(gathered);
            }
            (limit, text)
        }
    }
}

/// Returns a text about a trace of requests: its sizes, their order, and the missing times.
fn untimed_text(gathered: &RecordingData) -> String {
    let mean_bytes = gathered.got_bytes as f64 / gathered.reads as f64;
    let sequential_percent = 100.0 * gathered.pattern.sequential as f64 / gathered.reads as f64;
    format!(
        "the trace has {} requests, {} on average, {sequential_percent:.0} % of them after an \
         earlier one; it has no durations, so neither the waits of a program nor the requests in \
         flight are known; `readpath record` records both, and `readpath run` replays the trace \
         on a storage",
        gathered.reads,
        bytes_text(mean_bytes),
    )
}

/// Returns the limit of a program and its text, by its waits. `hidden`: waits that no recorded read
/// contains.
///
/// Reads that give no verdict precede: unrecorded ones, ones without a sleep, none, and failed
/// ones. Time of unknown use follows, and then the waits: few ones, ones next to other work, and
/// ones shorter than other work. Waits for the device are last.
fn limit_by_waits(
    gathered: &RecordingData,
    hidden: Option<&HiddenWaits>,
) -> (ProgramLimit, String) {
    let waited_ns = gathered.waits.union_ns();
    let share = waited_ns as f64 / gathered.length_ns.max(1) as f64;
    // Reads that were not recorded: no verdict on the others is possible.
    let hidden_text =
        || hidden.filter(|hidden| !hidden.has_reads).map(|hidden| hidden.text.clone());
    if let Some(text) = unseen_reads_text(gathered).or_else(hidden_text) {
        return (ProgramLimit::Unseen, text);
    }
    // The reads are recorded, but no thread slept for them: the program may have polled.
    if let Some(polled) = hidden {
        return (ProgramLimit::Unknown, polled.text.clone());
    }
    if gathered.reads == 0 {
        return (ProgramLimit::Nothing, no_reads_text(gathered).to_owned());
    }
    if let Some(text) = failure_limit_text(gathered) {
        return (ProgramLimit::Unknown, text);
    }
    let unknown_ns = gathered.unknown_ns();
    if unknown_ns > UNKNOWN_SHARE_MAX * gathered.length_ns as f64 {
        let mut text = format!(
            "{} of {} went neither to reads that were seen nor, as far as is known, to a processor",
            duration_text(unknown_ns),
            duration_text(gathered.length_ns as f64),
        );
        if share >= REPORTED_SHARE_MIN {
            text += &format!("; it waited {} for reads", duration_text(waited_ns as f64));
        }
        if !gathered.has_measured_waits() {
            text += "; a recording as root also has touches of mappings";
        }
        return (ProgramLimit::Unknown, text);
    }
    if share < REPORTED_SHARE_MIN {
        let text = format!(
            "it waited for a device for {} of {}; its data was in memory or arrived in time{}",
            duration_text(waited_ns as f64),
            duration_text(gathered.length_ns as f64),
            unrecorded_polls_text(gathered),
        );
        return (ProgramLimit::Program, text);
    }
    if let Some(text) = overlapped_waits_text(gathered) {
        return (ProgramLimit::Program, text);
    }
    if !is_storage_longest(gathered) {
        let text = format!(
            "it waited {} of {} for reads{}",
            duration_text(waited_ns as f64),
            duration_text(gathered.length_ns as f64),
            late_announcements_text(gathered),
        );
        return (ProgramLimit::Program, text);
    }
    (ProgramLimit::Device, device_limit_text(gathered))
}

/// Returns true if no other activity of the program took longer than its waits for storage. Without
/// times by activity, the waits must take half of the time.
fn is_storage_longest(gathered: &RecordingData) -> bool {
    if gathered.spent_ns.is_empty() {
        return gathered.waits.union_ns() * 2 >= gathered.length_ns;
    }
    let is_other = |activity: &Activity| !STORAGE_ACTIVITIES.contains(activity);
    let others = gathered.spent_ns.iter().filter(|(activity, _)| is_other(activity));
    let longest_ns = others.map(|(_, ns)| *ns).max().unwrap_or(0);
    idle_ns(gathered) >= longest_ns as f64
}

/// Returns the time in nanoseconds in which the program had no other work than to wait for storage.
fn idle_ns(gathered: &RecordingData) -> f64 {
    STORAGE_ACTIVITIES.map(|activity| gathered.spent_ns(activity)).iter().sum()
}

/// Returns a text about a program that waited most of its time for devices: their rate and the
/// number of requests in flight show how well they were used.
fn device_limit_text(gathered: &RecordingData) -> String {
    let waited_ns = gathered.waits.union_ns();
    let busy_ns: u64 = gathered.devices.values().map(|device| device.reads.union_ns()).sum();
    let read_bytes: u64 = gathered.devices.values().map(|device| device.read_bytes).sum();
    if read_bytes == 0 {
        let mut text = format!("it waited {} for reads", duration_text(waited_ns as f64));
        if gathered.has_measured_waits() {
            text += ", and no request of its own was seen at a device";
        }
        return text;
    }
    let bytes_per_second = read_bytes as f64 / (busy_ns.max(1) as f64 / 1e9);
    let mut text = format!(
        "it waited {} for the device, which transferred {} a second with {:.1} requests in flight",
        duration_text(waited_ns as f64),
        bytes_text(bytes_per_second),
        gathered.mean_depth(),
    );
    text += &late_announcements_text(gathered);
    text
}

/// Returns a text about a recording without reads of files.
fn no_reads_text(gathered: &RecordingData) -> &'static str {
    match gathered.has_measured_waits() {
        true => "no file was read",
        // Other functions than the known ones of the C library may have read files.
        false => "no read of a file was recorded; a recording as root has all of them",
    }
}

/// Minimum part of failed reads from which the limit's text names them. Chosen.
const FAILED_PART_MIN: f64 = 0.2;

/// Returns the number of reads that failed with an error.
fn failed_count(gathered: &RecordingData, error: i32) -> u64 {
    gathered.errors.get(&(error as u32)).copied().unwrap_or(0)
}

/// Returns a text about failed reads if they hide the limit of the program: a device has failed, or
/// the program polls. `None` otherwise.
///
/// A program that polls has many reads that must not wait and fail, and hardly a wait for each. One
/// that falls back to a plain read waits in that one.
fn failure_limit_text(gathered: &RecordingData) -> Option<String> {
    let failed = failed_count(gathered, libc::EAGAIN);
    let is_often = failed as f64 > FAILED_PART_MIN * gathered.reads as f64;
    if is_often && gathered.waits.count() * 2 < failed {
        let text = failed_reads_text(gathered)?;
        return Some(text + "; the time until the data is there is no wait of a read");
    }
    if failed_count(gathered, libc::EIO) > 0 { failed_reads_text(gathered) } else { None }
}

/// Returns the number of failed reads with their most frequent error as text. `None` without one.
fn failed_reads_text(gathered: &RecordingData) -> Option<String> {
    let failed: u64 = gathered.errors.values().sum();
    let (&error, _) = gathered.errors.iter().max_by_key(|(_, count)| **count)?;
    let most_error = std::io::Error::from_raw_os_error(error as i32);
    let meaning = match error as i32 {
        libc::EAGAIN => ", as the data was not in memory and the read must not wait",
        _ => "",
    };
    Some(format!(
        "{failed} of {} reads failed, most of them with \"{most_error}\"{meaning}",
        gathered.reads
    ))
}

/// Returns a note about failed reads for the text of another limit, if they are many.
fn many_failures_note(gathered: &RecordingData) -> String {
    let failed: u64 = gathered.errors.values().sum();
    let is_many = failed as f64 > FAILED_PART_MIN * gathered.reads as f64;
    let text = failed_reads_text(gathered).filter(|_| is_many);
    text.map_or_else(String::new, |text| format!("; {text}"))
}

/// Returns a text about reads that a recording as root lacks, if the program has probably made
/// some: `preadv2` with `RWF_NOWAIT` that found no data. Most of its reads are by that call, whose
/// flags are not recorded, and data came into memory. Empty otherwise.
fn unrecorded_polls_text(gathered: &RecordingData) -> &'static str {
    let preadv_count = gathered.by_method.get(&ReadMethod::Preadv).copied().unwrap_or(0);
    let has_filled = |file: &FileData| file.fetched.count() > 0 || file.written_bytes > 0;
    let is_likely = preadv_count * 2 > gathered.reads && gathered.files.values().any(has_filled);
    match gathered.has_measured_waits() && is_likely {
        true => {
            ", or it polled for it: reads by preadv2 that must not wait (RWF_NOWAIT) and find no \
             data are not recorded"
        }
        false => "",
    }
}

/// Returns a text about waits next to work, if nearly all of the program's time passed in other
/// activities than waits for storage. Also if another activity took longer, and most waits passed
/// next to work. Only a program with several reading threads is known to have other threads. `None`
/// otherwise, and without times by activity.
fn overlapped_waits_text(gathered: &RecordingData) -> Option<String> {
    let idle_ns = idle_ns(gathered);
    let is_small = idle_ns < REPORTED_SHARE_MIN * gathered.length_ns as f64;
    let are_most_overlapped = idle_ns * 2.0 < gathered.waits.union_ns() as f64;
    let is_overlapped = !gathered.spent_ns.is_empty()
        && (is_small || (are_most_overlapped && !is_storage_longest(gathered)));
    let reader_count = gathered.threads.values().filter(|thread| thread.reads > 0).count();
    let (readers, meanwhile) = match reader_count > 1 {
        true => ("threads", "other threads of it ran or waited for a processor"),
        false => ("calls", "the program ran or waited for something else"),
    };
    is_overlapped.then(|| {
        format!(
            "its {readers} waited {} for reads, and in all but {} of it {meanwhile}",
            duration_text(gathered.waits.union_ns() as f64),
            duration_text(idle_ns),
        )
    })
}

/// Returns a text about the waits for announced pages during which few requests were in flight: the
/// device had time for earlier announcements. The text is empty unless these waits take more than
/// half of the time of all waits.
fn late_announcements_text(gathered: &RecordingData) -> String {
    let announced = gathered.announced_waits.low;
    if announced.ns * 2 <= gathered.waited_ns {
        return String::new();
    }
    format!(
        "; {} waits, {} in all, were for pages that it had announced with WILLNEED or \
         readahead(2): an earlier announcement makes them shorter",
        announced.waits,
        duration_text(announced.ns as f64),
    )
}

/// Returns a text about unobserved reads if they are too many to judge the others. Otherwise
/// returns `None`.
fn unseen_reads_text(gathered: &RecordingData) -> Option<String> {
    let count: u64 = gathered.unseen.values().map(|unseen| unseen.count).sum();
    let waited_ns: u64 = gathered.unseen.values().map(|unseen| unseen.waited_ns).sum();
    let read_share = count as f64 / (count + gathered.reads).max(1) as f64;
    let time_share = waited_ns as f64 / gathered.length_ns.max(1) as f64;
    (read_share >= REPORTED_SHARE_MIN || time_share >= REPORTED_SHARE_MIN).then(|| {
        let waits_text = match waited_ns {
            0 => "the waits for them are not known".to_owned(),
            _ => format!("its threads waited {} for them", duration_text(waited_ns as f64)),
        };
        format!("{count} of {} reads were not seen; {waits_text}", count + gathered.reads)
    })
}

/// Returns the path of a file, or `-`.
fn path_or_dash(file: Option<&FileData>) -> &str {
    file.map_or("-", |file| file.path.as_str())
}
