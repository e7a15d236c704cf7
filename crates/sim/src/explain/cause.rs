//! To what a wait is charged, and what is said of each cause. The law is in [`super`].

use std::collections::BTreeMap;

use super::gather::{FileData, RecordingData};
use super::{Finding, ProgramLimit, REPORTED_SHARE_MIN, WaitCause};
use crate::recording::{AdviceType, ReadMethod};

mod advice;
mod again;
mod depth;
mod over_read;
mod page_faults;
mod slow_file;
mod small;
mod words;
mod writers;

use words::{bytes, time};

/// A read that waited.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadWait {
    pub way: ReadMethod,
    /// Whether it begins where the last one ended.
    pub goes_on: bool,
    pub hint: Option<AdviceType>,
    pub asked_bytes: u64,
    /// What was fetched during it; 0 when it waited for what was on its way.
    pub fetched_bytes: u64,
    /// What of that had been fetched before; more than that when what it waited for had.
    pub again_bytes: u64,
    /// What of that it did not ask for.
    pub ahead_bytes: u64,
}

/// Whether a cause holds for a wait.
type CauseCondition = fn(&ReadWait) -> bool;

/// To what a wait is charged at once; `None`: to nothing.
pub(super) fn of(wait: &ReadWait) -> Option<WaitCause> {
    const RULES: [(WaitCause, CauseCondition); 5] = [
        (WaitCause::Again, again::holds),
        (WaitCause::PageFaults, page_faults::holds),
        (WaitCause::Advice, advice::holds),
        (WaitCause::Small, small::holds),
        (WaitCause::Depth, depth::holds),
    ];
    RULES.into_iter().find(|(_, holds)| holds(wait)).map(|(cause, _)| cause)
}

/// What each cause is charged with in the end, in nanoseconds of waits.
#[derive(Debug, Default)]
pub(super) struct ChargedWaits {
    pub by_cause: Vec<(WaitCause, f64)>,
    pub slow: Option<slow_file::SlowFile>,
}

/// Charges all waits.
pub(super) fn charge(gathered: &RecordingData) -> ChargedWaits {
    let slow = slow_file::find(gathered);
    let mut all: BTreeMap<WaitCause, f64> = BTreeMap::new();
    let mut add = |cause, ns: f64| *all.entry(cause).or_default() += ns;
    let is_depth_low = gathered.is_depth_low();
    for (number, file) in &gathered.files {
        let mut left = 1.0;
        let waited = file.waits.ns as f64;
        let mut take = |cause, part: f64| {
            add(cause, waited * left * part);
            left *= 1.0 - part;
        };
        take(WaitCause::Writers, writers::part(gathered, file));
        take(WaitCause::SlowFile, slow.as_ref().map_or(0.0, |slow| slow.part(*number)));
        // What was not seen may have used what seems to be unused.
        let unused = if gathered.unseen.is_empty() { over_read::part(file) } else { 0.0 };
        for (cause, charge) in &file.charges {
            let ns = charge.ns as f64 * left;
            match cause {
                None => add(WaitCause::OverRead, ns * unused),
                Some(WaitCause::Depth) => {
                    add(WaitCause::OverRead, ns * unused);
                    if is_depth_low {
                        add(WaitCause::Depth, ns * (1.0 - unused));
                    }
                }
                Some(cause) => add(*cause, ns),
            }
        }
    }
    ChargedWaits { by_cause: all.into_iter().collect(), slow }
}

/// A finding, in words.
pub(super) fn told(
    cause: WaitCause,
    ns: f64,
    share: f64,
    gathered: &RecordingData,
    charged: &ChargedWaits,
) -> Finding {
    let CauseText { title, evidence, remedy } = match cause {
        WaitCause::Depth => depth::words(gathered),
        WaitCause::Small => small::words(gathered),
        WaitCause::OverRead => over_read::words(gathered),
        WaitCause::PageFaults => page_faults::words(gathered),
        WaitCause::Advice => advice::words(gathered),
        WaitCause::Again => again::words(gathered),
        WaitCause::SlowFile => slow_file::words(gathered, charged.slow.as_ref()),
        WaitCause::Writers => writers::words(gathered),
    };
    Finding { cause, seconds: ns / 1e9, share, title, evidence, remedy }
}

/// What is said of a cause.
struct CauseText {
    title: String,
    evidence: String,
    remedy: String,
}

/// What limits a program with whose reads nothing is wrong.
pub(super) fn limit(gathered: &RecordingData) -> (ProgramLimit, String) {
    let waited = gathered.waits.union_ns();
    let share = waited as f64 / gathered.length_ns.max(1) as f64;
    if let Some(text) = unseen(gathered) {
        return (ProgramLimit::Unseen, text);
    }
    if gathered.reads == 0 {
        return (ProgramLimit::Nothing, "no file was read".to_owned());
    }
    if share < REPORTED_SHARE_MIN {
        let text = format!(
            "it waited for a device for {} of {}: what it read was in memory, or came in time",
            time(waited as f64),
            time(gathered.length_ns as f64),
        );
        return (ProgramLimit::Program, text);
    }
    let busy: u64 = gathered.devices.values().map(|device| device.reads.union_ns()).sum();
    let moved: u64 = gathered.devices.values().map(|device| device.read_bytes).sum();
    if moved == 0 {
        let text = format!(
            "it waited {} for reads, and no request of its own was seen at a device",
            time(waited as f64),
        );
        return (ProgramLimit::Device, text);
    }
    let rate = moved as f64 / (busy.max(1) as f64 / 1e9);
    let text = format!(
        "it waited {} for the device, which gave {} a second at {:.1} requests at a time",
        time(waited as f64),
        bytes(rate),
        gathered.depth(),
    );
    (ProgramLimit::Device, text)
}

/// Reads that were not seen, in words, where they are too many to judge the others.
fn unseen(gathered: &RecordingData) -> Option<String> {
    let (count, waited_ns) =
        gathered.unseen.values().fold((0, 0), |sum, unseen| (sum.0 + unseen.0, sum.1 + unseen.1));
    let of_reads = count as f64 / (count + gathered.reads).max(1) as f64;
    let of_time = waited_ns as f64 / gathered.length_ns.max(1) as f64;
    (of_reads >= REPORTED_SHARE_MIN || of_time >= REPORTED_SHARE_MIN).then(|| {
        format!(
            "{count} of {} reads were not seen; its threads waited {} for them",
            count + gathered.reads,
            time(waited_ns as f64),
        )
    })
}

/// Which file, in words; `-` where there is none.
fn name(file: Option<&FileData>) -> &str {
    file.map_or("-", |file| file.path.as_str())
}
