//! Waits for files that are in the times by activity and not among the recorded reads.
//!
//! A recording without root samples the times of all waits, and misses some reads. Examples are
//! page faults in short programs, overwritten requests of io_uring, and calls that bypass the C
//! library. A recording as root has all reads of files by the calls that it knows. Reads of
//! devices, and of files of the system that have no storage, are none of them.
//!
//! A thread that polls for completions (`IORING_SETUP_SQPOLL`, `IORING_SETUP_IOPOLL`) waits without
//! a sleep. Its reads are recorded, and the waits for them are not.

use readpath_trace::recording::Activity;

use super::super::UNKNOWN_SHARE_MAX;
use super::super::gather::RecordingData;
use super::words::duration_text;

/// Part of the waits for files, chosen, from which unrecorded ones are named. Sampled times and the
/// times of reads differ by a few percent.
const HIDDEN_PART_MIN: f64 = 0.25;

/// Waits that the waits of the recorded reads do not contain.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct HiddenWaits {
    /// True if the reads are recorded, and only their waits are not.
    pub has_reads: bool,
    /// Time in nanoseconds.
    pub unrecorded_ns: f64,
    /// Text for the user: all waits for files and swap, most of them, and the recorded part.
    pub text: String,
}

/// Returns the waits without recorded reads. `None` if they are short, or if the recording has no
/// times by activity.
pub(in super::super) fn hidden_waits(gathered: &RecordingData) -> Option<HiddenWaits> {
    if gathered.spent_ns.is_empty() {
        return None;
    }
    let kinds = [
        (Activity::Read, "read calls"),
        (Activity::Fault, "page faults"),
        (Activity::AsyncIo, "AIO or io_uring"),
        (Activity::SwapIn, "the swap area"),
    ];
    // As root only calls can be missing, so the first kind alone counts. Page faults also wait for
    // other things than files.
    let is_complete = gathered.has_measured_waits();
    let kinds = &kinds[..if is_complete { 1 } else { kinds.len() }];
    let spent = kinds.iter().map(|&(activity, name)| (name, gathered.spent_ns(activity)));
    let total_ns: f64 = spent.clone().map(|(_, spent_ns)| spent_ns).sum();
    let recorded_ns = match is_complete {
        true => gathered.recorded_call_waits_ns(),
        false => gathered.waits.union_ns() as f64,
    };
    let unrecorded_ns = total_ns - recorded_ns;
    let (name, most_ns) = spent.max_by(|one, other| one.1.total_cmp(&other.1))?;
    let is_long = unrecorded_ns > UNKNOWN_SHARE_MAX * gathered.length_ns as f64
        && unrecorded_ns > HIDDEN_PART_MIN * total_ns;
    let [total, most, recorded] = [total_ns, most_ns, recorded_ns].map(duration_text);
    let text = match is_complete {
        true => format!(
            "its calls that read waited {total}, and the recorded reads of files are {recorded} of \
             it; the others are of devices or of files without storage (/proc), or by a call that \
             is not recorded"
        ),
        false => format!(
            "the program waited {total} for files and swap, {most} of it for {name}; the recorded \
             reads are {recorded} of it; a recording as root has all of them"
        ),
    };
    is_long.then_some(HiddenWaits { has_reads: false, unrecorded_ns, text })
}

/// Returns the time of the reads in flight for which no thread slept. `None` if it is short, also
/// next to the recorded waits.
pub(in super::super) fn polled_waits(gathered: &RecordingData) -> Option<HiddenWaits> {
    let unslept_ns = gathered.unslept.union_ns() as f64;
    let all_ns = unslept_ns + gathered.waits.union_ns() as f64;
    let is_long = unslept_ns > UNKNOWN_SHARE_MAX * gathered.length_ns as f64
        && unslept_ns > HIDDEN_PART_MIN * all_ns;
    let text = format!(
        "{} reads by AIO or io_uring were in flight for {}, {:.1} at a time, and no thread slept \
         for them; a program that polls for its reads (SQPOLL, IOPOLL) waits on a processor, and \
         the recording does not separate that from work",
        gathered.unslept.count(),
        duration_text(unslept_ns),
        gathered.unslept.mean_depth(),
    );
    is_long.then_some(HiddenWaits { has_reads: true, unrecorded_ns: unslept_ns, text })
}
