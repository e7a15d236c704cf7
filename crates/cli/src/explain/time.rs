//! Text about the wall time of a program, by activity.

use std::fmt::{self, Write};

use readpath_record::explain::{ActivityTime, Explanation, REPORTED_SHARE_MIN};
use readpath_trace::recording::{Activity, ReadMethod};

/// Share of the duration from which time of unknown use is reported. Below it, the known times
/// explain the program. Chosen, not measured.
const UNKNOWN_SHARE_MIN: f64 = 0.1;

/// Share of the duration below which activities are shown together. Chosen, not measured.
const SHOWN_SHARE_MIN: f64 = 0.01;

/// Writes the wall time by activity. A recording without it gets a sentence about the time that
/// waits and processor do not explain, if this is known and at least [`UNKNOWN_SHARE_MIN`].
/// Activities of less than [`SHOWN_SHARE_MIN`] share one line, if they take 5 ms together.
pub(super) fn write_wall_time(out: &mut String, explanation: &Explanation) -> fmt::Result {
    if explanation.time.is_empty() {
        return match explanation.other_seconds {
            Some(other) if other >= UNKNOWN_SHARE_MIN * explanation.seconds => {
                let percent = percent(other, explanation);
                let mut methods = explanation.shape.ways.iter();
                let uses = match methods.any(|(method, _)| *method == ReadMethod::Fault) {
                    true => "network or a busy processor",
                    // A recording without root has no faults.
                    false => "network, a busy processor or page faults of mappings",
                };
                writeln!(
                    out,
                    "At least {other:.2} s ({percent:.0} %) went to neither: writes, locks, sleeps, \
                     {uses}. The recording does not tell them apart."
                )
            }
            _ => Ok(()),
        };
    }
    writeln!(out, "\nIts time, each moment counted once")?;
    let mut write_line = |name: &str, spent_seconds: f64| {
        let percent = percent(spent_seconds, explanation);
        writeln!(out, "  {name:44} {spent_seconds:8.2} s {percent:4.0} %")
    };
    let shown_seconds_min = SHOWN_SHARE_MIN * explanation.seconds;
    let (shown, rest): (Vec<&ActivityTime>, Vec<&ActivityTime>) =
        explanation.time.iter().partition(|time| time.seconds >= shown_seconds_min);
    for time in shown {
        write_line(activity_name(time.activity), time.seconds)?;
    }
    let rest_seconds: f64 = rest.iter().map(|time| time.seconds).sum();
    // Shorter times would be printed as 0.00 s.
    if rest_seconds >= 0.005 {
        write_line("other", rest_seconds)?;
    }
    Ok(())
}

/// True if reads made the program wait for [`REPORTED_SHARE_MIN`] of its time or more, and it had
/// no other work than to wait for storage in as much. Without times by activity, all waits count.
pub(super) fn has_idle_waits(explanation: &Explanation) -> bool {
    let least_seconds = REPORTED_SHARE_MIN * explanation.seconds;
    let waited_seconds = explanation.waited_seconds.unwrap_or(0.0);
    let idle_seconds: f64 = match explanation.time.is_empty() {
        true => waited_seconds,
        false => explanation.idle_seconds(),
    };
    idle_seconds.min(waited_seconds) >= least_seconds
}

/// Longest activity with its time, if it is known and reads have no part in it. `None` also for a
/// recording without times by activity.
pub(super) fn longest_without_reads(explanation: &Explanation) -> Option<String> {
    // The activities are in descending order of their times.
    let longest = explanation.time.first()?;
    let is_of_reads =
        matches!(longest.activity, Activity::Read | Activity::Fault | Activity::Unknown);
    let share = percent(longest.seconds, explanation);
    (!is_of_reads).then(|| {
        format!(
            "most of its time: {}, {:.2} s ({share:.0} %)",
            activity_name(longest.activity),
            longest.seconds
        )
    })
}

/// Note about the unknown time, if it is at least [`UNKNOWN_SHARE_MIN`] of the duration.
pub(super) fn long_unknown_time(explanation: &Explanation) -> Option<String> {
    let unknown = explanation.time.iter().find(|time| time.activity == Activity::Unknown)?;
    let is_long = unknown.seconds >= UNKNOWN_SHARE_MIN * explanation.seconds;
    let percent = percent(unknown.seconds, explanation);
    is_long.then(|| format!("{percent:.0} % of its time is unknown"))
}

/// Part of the program's duration in percent. A recording of no duration counts as 1 ns.
fn percent(seconds: f64, explanation: &Explanation) -> f64 {
    100.0 * seconds / explanation.seconds.max(1e-9)
}

/// Name of an activity in the table of times.
fn activity_name(activity: Activity) -> &'static str {
    match activity {
        Activity::Processor => "running on a processor",
        Activity::ProcessorQueue => "waiting for a processor",
        Activity::Read => "waiting for reads of files",
        Activity::Fault => "waiting for page faults",
        Activity::SwapIn => "waiting for the swap area",
        Activity::Memory => "waiting for free memory",
        Activity::Metadata => "metadata: open, stat, folders, exec",
        Activity::Write => "waiting for calls that write",
        Activity::Sync => "waiting for fsync and the like",
        Activity::AsyncIo => "waiting for AIO or io_uring",
        Activity::Others => "pipes, sockets, terminals, events",
        Activity::Sleep => "sleeping for a chosen time",
        Activity::Lock => "locks and other threads",
        Activity::Children => "waiting for child processes",
        Activity::Unknown => "unknown",
    }
}
