//! To what a wait is charged, and what is said of each cause. The law is in [`super`].

use std::collections::BTreeMap;

use super::gather::{FileFacts, Gathered};
use super::{Cause, Finding, Limit, SHARE_LEAST};
use crate::recording::{Hint, Way};

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
pub(super) struct Wait {
    pub way: Way,
    /// Whether it begins where the last one ended.
    pub goes_on: bool,
    pub hint: Option<Hint>,
    pub asked_bytes: u64,
    /// What was fetched during it; 0 when it waited for what was on its way.
    pub fetched_bytes: u64,
    /// What of that had been fetched before; more than that when what it waited for had.
    pub again_bytes: u64,
    /// What of that it did not ask for.
    pub ahead_bytes: u64,
}

/// To what a wait is charged at once; `None`: to nothing.
pub(super) fn of(wait: &Wait) -> Option<Cause> {
    let rules: [(Cause, fn(&Wait) -> bool); 5] = [
        (Cause::Again, again::holds),
        (Cause::PageFaults, page_faults::holds),
        (Cause::Advice, advice::holds),
        (Cause::Small, small::holds),
        (Cause::Depth, depth::holds),
    ];
    rules.into_iter().find(|(_, holds)| holds(wait)).map(|(cause, _)| cause)
}

/// What each cause is charged with in the end, in nanoseconds of waits.
#[derive(Debug, Default)]
pub(super) struct Charged {
    pub by_cause: Vec<(Cause, f64)>,
    pub slow: Option<slow_file::Slow>,
}

/// Charges all waits.
pub(super) fn charge(gathered: &Gathered) -> Charged {
    let slow = slow_file::find(gathered);
    let mut all: BTreeMap<Cause, f64> = BTreeMap::new();
    let mut add = |cause, ns: f64| *all.entry(cause).or_default() += ns;
    let is_depth_low = gathered.is_depth_low();
    for (number, file) in &gathered.files {
        let mut left = 1.0;
        let waited = file.waits.ns as f64;
        let mut take = |cause, part: f64| {
            add(cause, waited * left * part);
            left *= 1.0 - part;
        };
        take(Cause::Writers, writers::part(gathered, file));
        take(Cause::SlowFile, slow.as_ref().map_or(0.0, |slow| slow.part(*number)));
        let unused = over_read::part(file);
        for (cause, charge) in &file.charges {
            let ns = charge.ns as f64 * left;
            match cause {
                None => add(Cause::OverRead, ns * unused),
                Some(Cause::Depth) => {
                    add(Cause::OverRead, ns * unused);
                    if is_depth_low {
                        add(Cause::Depth, ns * (1.0 - unused));
                    }
                }
                Some(cause) => add(*cause, ns),
            }
        }
    }
    Charged { by_cause: all.into_iter().collect(), slow }
}

/// A finding, in words.
pub(super) fn told(
    cause: Cause,
    ns: f64,
    share: f64,
    gathered: &Gathered,
    charged: &Charged,
) -> Finding {
    let Words { title, evidence, remedy } = match cause {
        Cause::Depth => depth::words(gathered),
        Cause::Small => small::words(gathered),
        Cause::OverRead => over_read::words(gathered),
        Cause::PageFaults => page_faults::words(gathered),
        Cause::Advice => advice::words(gathered),
        Cause::Again => again::words(gathered),
        Cause::SlowFile => slow_file::words(gathered, charged.slow.as_ref()),
        Cause::Writers => writers::words(gathered),
    };
    Finding { cause, seconds: ns / 1e9, share, title, evidence, remedy }
}

/// What is said of a cause.
struct Words {
    title: String,
    evidence: String,
    remedy: String,
}

/// What limits a program with whose reads nothing is wrong.
pub(super) fn limit(gathered: &Gathered) -> (Limit, String) {
    let waited = gathered.waits.union_ns();
    let share = waited as f64 / gathered.length_ns.max(1) as f64;
    if gathered.reads == 0 {
        return (Limit::Nothing, "no file was read".to_owned());
    }
    if share < SHARE_LEAST {
        let text = format!(
            "it waited for a device for {} of {}: what it read was in memory, or came in time",
            time(waited as f64),
            time(gathered.length_ns as f64),
        );
        return (Limit::Program, text);
    }
    let busy: u64 = gathered.devices.values().map(|device| device.reads.union_ns()).sum();
    let moved: u64 = gathered.devices.values().map(|device| device.read_bytes).sum();
    let rate = moved as f64 / (busy.max(1) as f64 / 1e9);
    let text = format!(
        "it waited {} for the device, which gave {} a second at {:.1} requests at a time",
        time(waited as f64),
        bytes(rate),
        gathered.depth(),
    );
    (Limit::Device, text)
}

/// Which file, in words; `-` where there is none.
fn name(file: Option<&FileFacts>) -> &str {
    file.map_or("-", |file| file.path.as_str())
}
