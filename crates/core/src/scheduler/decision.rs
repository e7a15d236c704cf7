//! The decision log: every decision of a scheduling law with the numbers that
//! decided it.
//!
//! A law that keeps a [`DecisionLog`] hands it out by
//! [`Scheduler::decisions`](super::Scheduler::decisions). The caller turns it
//! on, and takes out what gathers in it after each call. Off, saying a
//! decision costs one branch: the decision is not even formed.
//!
//! One line each, `at_ms=12.345678 event=dispatch request=7 …`: words for a
//! person, `key=value` for a program. Times are in milliseconds, places and
//! sizes in sectors of 512 bytes.

use alloc::collections::VecDeque;
use core::fmt;

use crate::request::{Class, ProcessId, RequestId};
use crate::unit::Time;

/// One decision, and when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// When.
    pub at: Time,
    /// What.
    pub decision: Decision,
}

/// A decision, with what decided it. Queues are named by a number that is
/// reused when a queue is gone; `process` is the queue's owner, `None` for a
/// queue that many processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields bear the names that the log prints, explained there")]
pub enum Decision {
    /// A request goes to the device. `in_device` counts it; `limit` is how many
    /// of its queue could be there at once, `None`: any number.
    Dispatch {
        request: RequestId,
        queue: Option<u32>,
        process: ProcessId,
        start: u64,
        sectors: u32,
        why: &'static str,
        distance: u64,
        in_device: u32,
        limit: Option<u32>,
    },
    /// The queue whose turn it is has requests and may not send one.
    Hold { queue: u32, why: &'static str, in_device: u32, limit: u32 },
    /// Another tree is served; `queues` of `busy` (on average `average`) are in it.
    Tree {
        class: Class,
        kind: &'static str,
        why: &'static str,
        queues: u32,
        busy: u32,
        average: u32,
        until_ms: i64,
    },
    /// A queue becomes the active one.
    SliceBegin {
        queue: u32,
        process: Option<ProcessId>,
        class: Class,
        level: u8,
        kind: &'static str,
        why: &'static str,
        key_ms: i64,
        queued: u32,
    },
    /// Its first request has completed, and its slice is measured out.
    SliceSet { queue: u32, slice_ms: i64, end_ms: i64, average: u32 },
    /// It is the active one no more. `left_ms` of its slice were left, `None`: it was not set yet.
    SliceEnd { queue: u32, why: &'static str, left_ms: Option<i64>, dispatched: u32 },
    /// The device is kept idle for the queue's next request.
    IdleStart { queue: u32, until_ms: i64, why: &'static str, think_ms: u64 },
    /// That time is over.
    IdleStop { queue: u32, why: &'static str },
    /// The queue ran empty, and the device is not kept idle for it.
    NoIdle { queue: u32, why: &'static str, think_ms: u64 },
    /// Whether the queue is worth idling for changed. `seek` is the mean
    /// distance in sectors, or how many of the last 32 requests were far.
    Window { queue: u32, is_open: bool, why: &'static str, seek: u64, think_ms: u64, queued: u32 },
    /// A request of `queue` ends the turn of `active`.
    Preempt { queue: u32, active: u32, why: &'static str, distance: u64 },
    /// Two queues work close to each other: `queue` sends its processes to `into`.
    Join { queue: u32, into: u32, distance: u64 },
    /// A process leaves a joined queue that has become seeky.
    Split { queue: u32, process: ProcessId, seek: u64 },
    /// What the device turned out to be: one that queues requests itself, or not.
    Queueing { is_queueing: bool, peak: u32 },
    /// So many decisions were not taken out in time and are lost.
    Lost { count: u64 },
}

/// Decisions that wait to be taken out.
///
/// At most [`DecisionLog::LIMIT`] wait; beyond it the oldest are lost, and
/// [`Decision::Lost`] says how many.
#[derive(Debug, Default)]
pub struct DecisionLog {
    is_on: bool,
    waiting: VecDeque<Decided>,
    lost: u64,
}

impl DecisionLog {
    /// How many decisions may wait to be taken out. One call of a scheduler takes a handful.
    pub const LIMIT: usize = 4096;

    /// Has the decisions kept from now on, or not; off at first.
    pub fn turn(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// Whether decisions are kept.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Takes the oldest decision out.
    pub fn poll(&mut self) -> Option<Decided> {
        let first = self.waiting.front()?;
        if self.lost > 0 {
            let lost = Decided { at: first.at, decision: Decision::Lost { count: self.lost } };
            self.lost = 0;
            return Some(lost);
        }
        self.waiting.pop_front()
    }

    /// For a law: notes what was decided. `decision` is called only while the log is on.
    #[inline]
    pub fn say(&mut self, at: Time, decision: impl FnOnce() -> Decision) {
        if self.is_on {
            self.keep(Decided { at, decision: decision() });
        }
    }

    #[cold]
    fn keep(&mut self, decided: Decided) {
        if self.waiting.len() == DecisionLog::LIMIT {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(decided);
    }
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.at.ns();
        write!(f, "at_ms={}.{:06} {}", ns / 1_000_000, ns % 1_000_000, self.decision)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Decision::Dispatch {
                request,
                queue,
                process,
                start,
                sectors,
                why,
                distance,
                in_device,
                limit,
            } => {
                write!(f, "event=dispatch request={}", request.0)?;
                optional(f, "queue", queue)?;
                write!(f, " process={} start={start} sectors={sectors}", process.0)?;
                write!(f, " why={why} distance={distance} in_device={in_device}")?;
                optional(f, "limit", limit)
            }
            Decision::Hold { queue, why, in_device, limit } => {
                write!(f, "event=hold queue={queue} why={why} in_device={in_device} limit={limit}")
            }
            Decision::Tree { class, kind, why, queues, busy, average, until_ms } => {
                write!(f, "event=tree class={} kind={kind} why={why}", class_name(class))?;
                write!(f, " queues={queues} busy={busy} average={average} until_ms={until_ms}")
            }
            Decision::SliceBegin { queue, process, class, level, kind, why, key_ms, queued } => {
                write!(f, "event=slice_begin queue={queue}")?;
                optional(f, "process", process.map(|process| process.0))?;
                write!(f, " class={} level={level} kind={kind}", class_name(class))?;
                write!(f, " why={why} key_ms={key_ms} queued={queued}")
            }
            Decision::SliceSet { queue, slice_ms, end_ms, average } => {
                write!(f, "event=slice_set queue={queue} slice_ms={slice_ms} end_ms={end_ms}")?;
                write!(f, " average={average}")
            }
            Decision::SliceEnd { queue, why, left_ms, dispatched } => {
                write!(f, "event=slice_end queue={queue} why={why}")?;
                optional(f, "left_ms", left_ms)?;
                write!(f, " dispatched={dispatched}")
            }
            Decision::IdleStart { queue, until_ms, why, think_ms } => {
                write!(f, "event=idle_start queue={queue} until_ms={until_ms} why={why}")?;
                write!(f, " think_ms={think_ms}")
            }
            Decision::IdleStop { queue, why } => {
                write!(f, "event=idle_stop queue={queue} why={why}")
            }
            Decision::NoIdle { queue, why, think_ms } => {
                write!(f, "event=no_idle queue={queue} why={why} think_ms={think_ms}")
            }
            Decision::Window { queue, is_open, why, seek, think_ms, queued } => {
                let state = if is_open { "open" } else { "shut" };
                write!(f, "event=window queue={queue} state={state} why={why} seek={seek}")?;
                write!(f, " think_ms={think_ms} queued={queued}")
            }
            Decision::Preempt { queue, active, why, distance } => {
                write!(f, "event=preempt queue={queue} active={active} why={why}")?;
                write!(f, " distance={distance}")
            }
            Decision::Join { queue, into, distance } => {
                write!(f, "event=join queue={queue} into={into} distance={distance}")
            }
            Decision::Split { queue, process, seek } => {
                write!(f, "event=split queue={queue} process={} seek={seek}", process.0)
            }
            Decision::Queueing { is_queueing, peak } => {
                let answer = if is_queueing { "yes" } else { "no" };
                write!(f, "event=queueing_device answer={answer} peak={peak}")
            }
            Decision::Lost { count } => write!(f, "event=lost count={count}"),
        }
    }
}

/// Writes ` key=value`, `-` for a value that there is not.
fn optional(
    f: &mut fmt::Formatter<'_>,
    key: &str,
    value: Option<impl fmt::Display>,
) -> fmt::Result {
    match value {
        Some(value) => write!(f, " {key}={value}"),
        None => write!(f, " {key}=-"),
    }
}

fn class_name(class: Class) -> &'static str {
    match class {
        Class::RealTime => "rt",
        Class::BestEffort => "be",
        Class::Idle => "idle",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_line_is_words_and_numbers() {
        let decided = Decided {
            at: Time(1_500_000),
            decision: Decision::SliceEnd {
                queue: 3,
                why: "used",
                left_ms: Some(-2),
                dispatched: 5,
            },
        };
        let line = "at_ms=1.500000 event=slice_end queue=3 why=used left_ms=-2 dispatched=5";
        assert_eq!(decided.to_string(), line);
    }

    #[test]
    fn off_nothing_is_formed_and_on_nothing_grows_without_limit() {
        let mut log = DecisionLog::default();
        log.say(Time::ZERO, || panic!("formed while off"));
        log.turn(true);
        for request in 0..DecisionLog::LIMIT as u32 + 3 {
            log.say(Time::ZERO, || Decision::IdleStop { queue: request, why: "arrival" });
        }
        assert_eq!(log.poll().unwrap().decision, Decision::Lost { count: 3 });
        assert_eq!(log.poll().unwrap().decision, Decision::IdleStop { queue: 3, why: "arrival" });
    }
}
