//! The decision log: every decision of a law with the numbers that decided it.
//!
//! A scheduler that keeps a [`DecisionLog`] hands it out by
//! [`Scheduler::decisions`](crate::scheduler::Scheduler::decisions). Readahead and swap-in laws are
//! lent one with what they know together
//! ([`DeviceEvidence::log`](crate::readahead::DeviceEvidence::log)). The caller turns it
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
pub struct LoggedDecision {
    /// When.
    pub at: Time,
    /// What.
    pub decision: Decision,
}

/// A decision, with what decided it; the log prints the fields under their names.
///
/// `queue` is a number that is reused when a queue is gone. Points of time and
/// spans that end in `_ms` are whole milliseconds. `why` is one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A request goes to the device.
    Dispatch {
        /// Its name.
        request: RequestId,
        /// Where it waited; `None` in a law without queues.
        queue: Option<u32>,
        /// Who asked for it.
        process: ProcessId,
        /// Its first sector.
        start: u64,
        /// How many sectors.
        sectors: u32,
        /// Why this one of its queue.
        why: &'static str,
        /// Sectors from where the last request ended.
        distance: u64,
        /// How many requests are in the device, this one included.
        in_device: u32,
        /// How many of its queue may be there at once; `None`: any number.
        limit: Option<u32>,
    },
    /// The queue whose turn it is has requests and may not send one.
    Hold {
        /// The queue.
        queue: u32,
        /// What it waits for.
        why: &'static str,
        /// How many requests, of the kind that it waits for, are in the device.
        in_device: u32,
        /// How many there may be when it sends one.
        limit: u32,
    },
    /// A tree is chosen: the one that was served is not served on.
    Tree {
        /// Its class.
        class: Class,
        /// `sync`, `sync_noidle` or `async`.
        kind: &'static str,
        /// Why the one before is not served on.
        why: &'static str,
        /// How many queues are in the tree.
        queues: u32,
        /// How many are in its class.
        busy: u32,
        /// How many that were on average.
        average: u32,
        /// When its share of the time ends.
        until_ms: i64,
    },
    /// A queue becomes the active one.
    SliceBegin {
        /// The queue.
        queue: u32,
        /// Whose it is; `None`: many processes share it.
        process: Option<ProcessId>,
        /// Its class.
        class: Class,
        /// Its level.
        level: u8,
        /// The kind of tree that it belongs in.
        kind: &'static str,
        /// Why this queue.
        why: &'static str,
        /// Its key: the lowest of the tree is first.
        key_ms: i64,
        /// How many requests wait in it.
        queued: u32,
    },
    /// Its first request has completed, and its slice is measured out.
    SliceSet {
        /// The queue.
        queue: u32,
        /// The length of the slice.
        slice_ms: i64,
        /// When it ends.
        end_ms: i64,
        /// How many queues of the class are busy on average.
        average: u32,
    },
    /// It is the active one no more.
    SliceEnd {
        /// The queue.
        queue: u32,
        /// Why.
        why: &'static str,
        /// What was left of its slice; negative: it overran it; `None`: it was not measured out.
        left_ms: Option<i64>,
        /// How many requests it sent.
        dispatched: u32,
    },
    /// The device is kept idle for the queue's next request.
    IdleStart {
        /// The queue.
        queue: u32,
        /// Until when at most.
        until_ms: i64,
        /// Why it is worth it.
        why: &'static str,
        /// How long its process thinks on average; 0 when that is not known.
        think_ms: u64,
    },
    /// That time is over.
    IdleStop {
        /// The queue.
        queue: u32,
        /// What ended it.
        why: &'static str,
    },
    /// The queue ran empty, and the device is not kept idle for it.
    NoIdle {
        /// The queue.
        queue: u32,
        /// Why not.
        why: &'static str,
        /// How long its process thinks on average; 0 when that is not known.
        think_ms: u64,
    },
    /// Whether the queue is worth idling for has changed.
    Window {
        /// The queue.
        queue: u32,
        /// Whether it is, now: `state=open` or `shut`.
        is_open: bool,
        /// Why.
        why: &'static str,
        /// Its mean distance in sectors, or how many of its last 32 requests were far.
        seek: u64,
        /// How long its process thinks on average; 0 when that is not known.
        think_ms: u64,
        /// How many requests wait in it.
        queued: u32,
    },
    /// A request of one queue ends the turn of another.
    Preempt {
        /// The queue that is next.
        queue: u32,
        /// The queue whose turn ends.
        active: u32,
        /// By which rule.
        why: &'static str,
        /// Sectors between the request and the end of the last one.
        distance: u64,
    },
    /// Two queues work close to each other, and one sends its processes to the other.
    Join {
        /// The queue that is left.
        queue: u32,
        /// The queue that serves both.
        into: u32,
        /// Sectors between the next request of the one and the end of the last.
        distance: u64,
    },
    /// A process leaves a joined queue that has become seeky.
    Split {
        /// The queue.
        queue: u32,
        /// The process.
        process: ProcessId,
        /// Its mean distance in sectors, or how many of its last 32 requests were far.
        seek: u64,
    },
    /// What the device turned out to be.
    Queueing {
        /// Whether it queues requests itself: `answer=yes` or `no`.
        is_queueing: bool,
        /// The most requests that it was given at once.
        peak: u32,
    },
    /// How many processes are served at a time was found.
    Limit {
        /// So many from now on; `None`: all.
        limit: Option<u32>,
        /// `enough`: it brings a quarter more than all; `less`: it doesn't any more; `far`: nobody is worth
        /// waiting for; `another`: the rate is another device's, or another load's.
        why: &'static str,
        /// The rate that decided it; 0 when none did.
        kib_per_s: u64,
        /// The rate that it was held against.
        before_kib_per_s: u64,
    },
    /// A readahead law has pages read that were not asked for.
    ReadAhead {
        /// Which file, in the order in which they were added.
        file: u32,
        /// The first page.
        first: u64,
        /// How many pages; of a stride, the gaps among them.
        pages: u64,
        /// What they are ahead of: `forward`, `backward`, `strided`; or a
        /// `sweep` of a file that is used up at random.
        shape: &'static str,
        /// What made the window as large as it is: what a reader `waits` for a request, what
        /// a request `service_time` of the device; `memory`, pages that were `evicted`; pages
        /// that were `asked` for at random.
        why: &'static str,
        /// Pages that the stream has behind it; of a sweep, what its requests have cost.
        behind: u64,
        /// Pages that may be ahead of the reader.
        size: u64,
        /// Reads that have begun and not ended.
        readers: u64,
        /// How many pages cost as much as a request.
        request_pages: u64,
        /// How many pages occupy the device as long as a request.
        service_pages: u64,
        /// Pages that were read ahead before and are not used yet.
        unused_pages: u64,
    },
    /// A swap-in law has pages read that no fault asked for, or would have if there were room.
    SwapIn {
        /// Which mapping the fault is on, and the page.
        memory: u32,
        /// The page, from the start of the mapping.
        page: u64,
        /// By what is read: `addresses` or `slots`.
        by: &'static str,
        /// The first of them.
        first: u64,
        /// How many of them; some may be there, or hold nothing.
        places: u64,
        /// How many pages it wanted to have read, and how many requests they are.
        target_pages: u64,
        /// The requests that they are.
        requests: u64,
        /// How many pages there was room for.
        room_pages: u64,
        /// What it saves, in pages of the device's time.
        value: i64,
        /// How many faults the run has, by slot and by address.
        run_by_slot: u64,
        /// The run by address.
        run_by_address: u64,
        /// The faults that wait, this one included.
        waiting: u64,
        /// How many pages cost as much as a fault.
        fault_pages: u64,
        /// How many pages occupy the device as long as a request.
        service_pages: u64,
        /// The most pages that may be ahead of a run.
        pages_max: u64,
        /// Pages that were read ahead before and are not used yet.
        unused_pages: u64,
    },
    /// How many requests under way are worth having was found.
    Depth {
        /// So many, beyond one of each process.
        depth: u32,
        /// What they bring.
        kib_per_s: u64,
        /// What the most brought that were under way.
        most_kib_per_s: u64,
    },
    /// Decisions that were not taken out in time and are lost.
    Lost {
        /// How many.
        count: u64,
    },
}

/// Decisions that wait to be taken out.
///
/// At most [`DecisionLog::LIMIT`] wait; beyond it the oldest are lost, and
/// [`Decision::Lost`] says how many.
#[derive(Clone, Debug, Default)]
pub struct DecisionLog {
    is_on: bool,
    waiting: VecDeque<LoggedDecision>,
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
    pub fn poll(&mut self) -> Option<LoggedDecision> {
        let first = self.waiting.front()?;
        if self.lost > 0 {
            let lost =
                LoggedDecision { at: first.at, decision: Decision::Lost { count: self.lost } };
            self.lost = 0;
            return Some(lost);
        }
        self.waiting.pop_front()
    }

    /// For a law: notes what was decided. `decision` is called only while the log is on.
    #[inline]
    pub fn say(&mut self, at: Time, decision: impl FnOnce() -> Decision) {
        if self.is_on {
            self.keep(LoggedDecision { at, decision: decision() });
        }
    }

    #[cold]
    fn keep(&mut self, decided: LoggedDecision) {
        if self.waiting.len() == DecisionLog::LIMIT {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(decided);
    }
}

impl fmt::Display for LoggedDecision {
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
            Decision::Limit { limit, why, kib_per_s, before_kib_per_s } => {
                write!(f, "event=limit")?;
                optional(f, "processes", limit)?;
                write!(f, " why={why} kib_per_s={kib_per_s} before={before_kib_per_s}")
            }
            Decision::ReadAhead {
                file,
                first,
                pages,
                shape,
                why,
                behind,
                size,
                readers,
                request_pages,
                service_pages,
                unused_pages,
            } => {
                write!(f, "event=read_ahead file={file} first={first} pages={pages}")?;
                write!(f, " shape={shape} why={why} behind={behind} size={size}")?;
                write!(f, " readers={readers} request_pages={request_pages}")?;
                write!(f, " occupies_pages={service_pages} unused_pages={unused_pages}")
            }
            Decision::SwapIn {
                memory,
                page,
                by,
                first,
                places,
                target_pages,
                requests,
                room_pages,
                value,
                run_by_slot,
                run_by_address,
                waiting,
                fault_pages,
                service_pages,
                pages_max,
                unused_pages,
            } => {
                write!(f, "event=swap_in memory={memory} page={page} by={by} first={first}")?;
                write!(f, " places={places} wanted_pages={target_pages} requests={requests}")?;
                write!(f, " room_pages={room_pages} value={value} run_by_slot={run_by_slot}")?;
                write!(f, " run_by_address={run_by_address} waiting={waiting}")?;
                write!(f, " fault_pages={fault_pages} occupies_pages={service_pages}")?;
                write!(f, " pages_max={pages_max} unused_pages={unused_pages}")
            }
            Decision::Depth { depth, kib_per_s, most_kib_per_s } => {
                write!(f, "event=depth requests={depth} kib_per_s={kib_per_s}")?;
                write!(f, " most_kib_per_s={most_kib_per_s}")
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
    fn a_decision_prints_as_words_and_numbers() {
        let decided = LoggedDecision {
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
    fn a_disabled_log_builds_no_decision_and_an_enabled_one_is_bounded() {
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
