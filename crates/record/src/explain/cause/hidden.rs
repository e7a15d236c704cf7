//! Waits for files that are in the times by activity and not among the recorded reads.
//!
//! A recording without root samples the times of all waits, and misses some reads. Examples are
//! page faults in short programs, overwritten requests of io_uring, and calls that bypass the C
//! library.

use readpath_trace::recording::Activity;

use super::super::UNKNOWN_SHARE_MAX;
use super::super::gather::RecordingData;
use super::words::duration_text;

/// Part of the waits for files from which unrecorded ones are named. Sampled times and the times of
/// reads differ by a few percent.
const HIDDEN_PART_MIN: f64 = 0.25;

/// Waits without recorded reads.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct HiddenWaits {
    /// Time in nanoseconds.
    pub unrecorded_ns: f64,
    /// Text for the user: all waits for files and swap, most of them, and the recorded part.
    pub text: String,
}

/// Returns the waits without recorded reads. `None` if they are short, or if the recording has all
/// waits or no times by activity.
pub(in super::super) fn hidden_waits(gathered: &RecordingData) -> Option<HiddenWaits> {
    if gathered.has_measured_waits() || gathered.spent_ns.is_empty() {
        return None;
    }
    let kinds = [
        (Activity::Fault, "page faults"),
        (Activity::AsyncIo, "AIO or io_uring"),
        (Activity::SwapIn, "the swap area"),
        (Activity::Read, "read calls"),
    ];
    let spent = kinds.map(|(activity, name)| (name, gathered.spent_ns(activity)));
    let total_ns: f64 = spent.iter().map(|(_, spent_ns)| spent_ns).sum();
    let recorded_ns = gathered.waits.union_ns() as f64;
    let unrecorded_ns = total_ns - recorded_ns;
    let (name, most_ns) = spent.into_iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    let is_long = unrecorded_ns > UNKNOWN_SHARE_MAX * gathered.length_ns as f64
        && unrecorded_ns > HIDDEN_PART_MIN * total_ns;
    is_long.then(|| HiddenWaits {
        unrecorded_ns,
        text: format!(
            "the program waited {} for files and swap, {} of it for {name}; the recorded reads are {} of \
             it; a recording as root has all of them",
            duration_text(total_ns),
            duration_text(most_ns),
            duration_text(recorded_ns),
        ),
    })
}
