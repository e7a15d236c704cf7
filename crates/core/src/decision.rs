//! The decision log: every decision of a policy with the numbers behind it.
//!
//! A scheduler with a [`DecisionLog`] provides it by
//! [`Scheduler::decisions`](crate::scheduler::Scheduler::decisions). Readahead and swap-in policies
//! find one in their evidence ([`DeviceEvidence::log`](crate::readahead::DeviceEvidence::log)). The
//! caller enables it, and drains the collected decisions after each call. While it is off, logging
//! costs one branch: the decision is not even constructed.
//!
//! One line per decision, `at_ms=12.345678 event=dispatch request=7 …`: words for a person,
//! `key=value` for a program. Times are in milliseconds. Positions and sizes of requests are in
//! sectors of 512 bytes. Prefetch counts in pages.

use alloc::collections::VecDeque;
use core::fmt;

use crate::request::{Class, ProcessId, RequestId};
use crate::unit::Time;

/// A decision and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedDecision {
    /// Time of the decision.
    pub at: Time,
    /// The decision.
    pub decision: Decision,
}

/// A decision with the numbers behind it. The log prints a field under its name, except where the
/// field names another key. Programs read the keys: they do not change with the names of fields.
///
/// In the policy `cfq`, a *queue* has the requests of one or more processes. A *tree* has the
/// queues of one class and kind. A *slice* is the time for which one queue, the *active* one, has
/// the device. `queue` is a number that is reused when a queue is gone. Times and durations that
/// end in `_ms` are whole milliseconds. `why` is one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A request goes to the device.
    Dispatch {
        /// Its identifier.
        request: RequestId,
        /// Its queue; `None` in a policy without queues.
        queue: Option<u32>,
        /// Its process.
        process: ProcessId,
        /// Its first sector.
        start: u64,
        /// Number of sectors.
        sectors: u32,
        /// Reason for choosing it within its queue.
        why: &'static str,
        /// Sectors from the end of the last request.
        distance: u64,
        /// Requests in the device, including this one.
        in_device: u32,
        /// Limit of requests of its queue in the device; `None`: unlimited.
        limit: Option<u32>,
    },
    /// The active queue has requests and may not send one.
    Hold {
        /// The queue.
        queue: u32,
        /// The obstacle.
        why: &'static str,
        /// Requests in the device, of the kind that is the obstacle.
        in_device: u32,
        /// Most of them that are allowed: they must fall below it, or to it if it is 0.
        limit: u32,
    },
    /// A tree is chosen because the service of the present one has ended.
    Tree {
        /// Its class.
        class: Class,
        /// `sync`, `sync_noidle` or `async`.
        kind: &'static str,
        /// Reason for leaving the present tree.
        why: &'static str,
        /// Number of queues in the tree.
        queues: u32,
        /// Number of queues in its class.
        busy: u32,
        /// Average number of queues in its class.
        average: u32,
        /// End of its share of the time.
        until_ms: i64,
    },
    /// A queue becomes the active one.
    SliceBegin {
        /// The queue.
        queue: u32,
        /// Its process; `None` if several processes share it, or if it is asynchronous.
        process: Option<ProcessId>,
        /// Its class.
        class: Class,
        /// Its priority level: 0 (highest) to 7.
        level: u8,
        /// Its kind of tree.
        kind: &'static str,
        /// Reason for this queue.
        why: &'static str,
        /// Its key: the lowest of the tree is first.
        key_ms: i64,
        /// Number of its queued requests.
        queued: u32,
    },
    /// The first request of the slice has completed, and the slice gets its length.
    SliceSet {
        /// The queue.
        queue: u32,
        /// Length of the slice.
        slice_ms: i64,
        /// End of the slice.
        end_ms: i64,
        /// Average number of busy queues of the class.
        average: u32,
    },
    /// The slice of the active queue ends.
    SliceEnd {
        /// The queue.
        queue: u32,
        /// Reason.
        why: &'static str,
        /// Unused rest of its slice; negative if it overran; `None` if the slice had no length yet.
        left_ms: Option<i64>,
        /// Number of requests sent in the slice.
        dispatched: u32,
    },
    /// The device is kept idle for the queue's next request.
    IdleStart {
        /// The queue.
        queue: u32,
        /// Latest end of the idle time.
        until_ms: i64,
        /// Reason.
        why: &'static str,
        /// Mean think time of its process; 0 if unknown.
        think_ms: u64,
    },
    /// The idle time ends.
    IdleStop {
        /// The queue.
        queue: u32,
        /// The event that ended it.
        why: &'static str,
    },
    /// The queue ran empty, and the device is not kept idle for it.
    NoIdle {
        /// The queue.
        queue: u32,
        /// Reason.
        why: &'static str,
        /// Mean think time of its process; 0 if unknown.
        think_ms: u64,
    },
    /// The idle window of the queue opens or shuts: idling for it pays, or does not.
    Window {
        /// The queue.
        queue: u32,
        /// The new state: `state=open` or `shut`.
        is_open: bool,
        /// Reason.
        why: &'static str,
        /// By the configured seek detector: its mean distance in sectors, or the number of far
        /// requests among its last 32.
        seek: u64,
        /// Mean think time of its process; 0 if unknown.
        think_ms: u64,
        /// Number of its queued requests.
        queued: u32,
    },
    /// A request of one queue ends the slice of another.
    Preempt {
        /// The preempting queue.
        queue: u32,
        /// The queue whose slice ends.
        active: u32,
        /// The rule that applied.
        why: &'static str,
        /// Sectors between the request and the end of the last one.
        distance: u64,
    },
    /// Two queues have neighbouring requests, and the processes of one move to the other.
    Join {
        /// The queue that is left.
        queue: u32,
        /// The queue that serves both.
        into: u32,
        /// Sectors between the next request of the other queue and the end of the last request.
        distance: u64,
    },
    /// A process leaves a joined queue that has become seeky.
    Split {
        /// The queue.
        queue: u32,
        /// The process.
        process: ProcessId,
        /// Value of the queue's seek detector, as in `Window`.
        seek: u64,
    },
    /// Result of the detection of internal queueing.
    Queueing {
        /// True if the device queues requests internally: `answer=yes` or `no`.
        is_queueing: bool,
        /// Largest observed number of requests in the device.
        peak: u32,
    },
    /// The limit on active processes changes.
    Limit {
        /// The new limit (key `processes`); `None`: all.
        limit: Option<u32>,
        /// `enough`: its throughput is a quarter above the throughput of all processes. `less`: it
        /// isn't any more. `far`: idling pays for no process. `another`: the rate indicates another
        /// device or load.
        why: &'static str,
        /// The rate that decided it: of the new limit, or of the removed one. 0 without one.
        kib_per_s: u64,
        /// The rate of all processes for comparison (key `before`).
        before_kib_per_s: u64,
    },
    /// A readahead policy reads unrequested pages.
    ReadAhead {
        /// Identifier of the file in the cache, reused after its removal. A caller chooses the
        /// number if the kernel caches the pages.
        file: u32,
        /// The first page.
        first: u64,
        /// Number of pages; for a stride, the gaps are included.
        pages: u64,
        /// Access shape: `forward`, `backward`, `strided`, "gaps"; or a `sweep` of a file with
        /// random access.
        shape: &'static str,
        /// The bound that determined the size of the window. "waits": latency of a request for the
        /// reader. "occupies": service time of a request on the device. "memory": free memory.
        /// "evicted": prefetched pages were evicted. "asked", "region": cost of requests at random.
        /// "unproven": few requests so far. "passed": pages that the reader has passed.
        why: &'static str,
        /// Pages of the stream before this point; for a sweep, the cost of its requests in pages.
        behind: u64,
        /// Pages that may be ahead of the reader.
        size: u64,
        /// Open reads, writes and faults, waiting ones included (`DeviceEvidence::open_reads`).
        readers: u64,
        /// Cost of a request in pages.
        request_pages: u64,
        /// Service time of a request in pages (key `occupies_pages`).
        service_pages: u64,
        /// Earlier prefetched pages that are not used yet.
        unused_pages: u64,
    },
    /// A swap-in policy reads pages beyond the fault, or would if there were free frames.
    SwapIn {
        /// The mapping of the fault.
        memory: u32,
        /// The page, from the start of the mapping.
        page: u64,
        /// Order of the read: `addresses` or `slots`.
        by: &'static str,
        /// The first address or slot.
        first: u64,
        /// Number of addresses or slots; some may be in memory, or empty.
        places: u64,
        /// Number of pages that the policy wanted to read (key `wanted_pages`).
        target_pages: u64,
        /// Number of requests for these pages.
        requests: u64,
        /// Number of pages with a free frame.
        room_pages: u64,
        /// Expected saving, in pages of the device's time.
        value: i64,
        /// Number of faults of the run by slot.
        run_by_slot: u64,
        /// Number of faults of the run by address.
        run_by_address: u64,
        /// Waiting faults, including this one.
        waiting: u64,
        /// Cost of a fault in pages.
        fault_pages: u64,
        /// Service time of a request in pages (key `occupies_pages`).
        service_pages: u64,
        /// Most pages that may be ahead of a run.
        pages_max: u64,
        /// Earlier prefetched pages that are not used yet.
        unused_pages: u64,
    },
    /// The limit on requests in progress changes.
    Depth {
        /// The new limit, beyond one request for each process (key `requests`).
        depth: u32,
        /// Throughput that decided it: with this limit, or with the lower one that was raised.
        kib_per_s: u64,
        /// Throughput with the largest number in progress.
        most_kib_per_s: u64,
    },
    /// Decisions were not drained in time and are lost.
    Lost {
        /// Number of lost decisions.
        count: u64,
    },
}

/// Queue of decisions to be drained.
///
/// At most [`DecisionLog::LIMIT`] are kept. Beyond it the oldest are lost, and [`Decision::Lost`]
/// reports their number.
#[derive(Clone, Debug, Default)]
pub struct DecisionLog {
    /// True while decisions are logged.
    is_on: bool,
    /// The queued decisions, oldest first.
    undrained: VecDeque<LoggedDecision>,
    /// Lost decisions that are not reported yet.
    lost: u64,
}

impl DecisionLog {
    /// Most queued decisions. One call of a scheduler makes a few.
    pub const LIMIT: usize = 4096;

    /// Turns the log on or off; it is initially off.
    pub fn set_enabled(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// Returns true if the log is on.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Takes the oldest decision; `None` if there is none. If decisions were lost, first returns a
    /// [`Decision::Lost`] with their number, and the time of the oldest decision that is left.
    pub fn poll(&mut self) -> Option<LoggedDecision> {
        let first = self.undrained.front()?;
        if self.lost > 0 {
            let lost =
                LoggedDecision { at: first.at, decision: Decision::Lost { count: self.lost } };
            self.lost = 0;
            return Some(lost);
        }
        self.undrained.pop_front()
    }

    /// Logs a decision of a policy. `decision` is called only while the log is on.
    #[inline]
    pub fn log_with(&mut self, time: Time, decision: impl FnOnce() -> Decision) {
        if self.is_on {
            self.enqueue(LoggedDecision { at: time, decision: decision() });
        }
    }

    /// Queues a decision, and drops the oldest at the limit.
    #[cold]
    fn enqueue(&mut self, logged: LoggedDecision) {
        if self.undrained.len() == DecisionLog::LIMIT {
            self.undrained.pop_front();
            self.lost += 1;
        }
        self.undrained.push_back(logged);
    }
}

impl fmt::Display for LoggedDecision {
    /// Writes one line: the time in milliseconds, then the decision.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.at.ns();
        write!(f, "at_ms={}.{:06} {}", ns / 1_000_000, ns % 1_000_000, self.decision)
    }
}

/// Each function of a group writes only the decisions of its group, and nothing for all others.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Decision::Dispatch { .. }
            | Decision::Hold { .. }
            | Decision::Queueing { .. }
            | Decision::Limit { .. }
            | Decision::Depth { .. } => self.write_dispatching(f),
            Decision::Tree { .. }
            | Decision::SliceBegin { .. }
            | Decision::SliceSet { .. }
            | Decision::SliceEnd { .. }
            | Decision::Preempt { .. } => self.write_slice(f),
            Decision::IdleStart { .. }
            | Decision::IdleStop { .. }
            | Decision::NoIdle { .. }
            | Decision::Window { .. }
            | Decision::Join { .. }
            | Decision::Split { .. } => self.write_queue(f),
            Decision::ReadAhead { .. } | Decision::SwapIn { .. } => self.write_prefetch(f),
            Decision::Lost { count } => write!(f, "event=lost count={count}"),
        }
    }
}

impl Decision {
    /// Writes a decision about requests and their number in the device.
    fn write_dispatching(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
                write_optional(f, "queue", queue)?;
                write!(f, " process={} start={start} sectors={sectors}", process.0)?;
                write!(f, " why={why} distance={distance} in_device={in_device}")?;
                write_optional(f, "limit", limit)
            }
            Decision::Hold { queue, why, in_device, limit } => {
                write!(f, "event=hold queue={queue} why={why} in_device={in_device} limit={limit}")
            }
            Decision::Queueing { is_queueing, peak } => {
                let answer = if is_queueing { "yes" } else { "no" };
                write!(f, "event=queueing_device answer={answer} peak={peak}")
            }
            Decision::Limit { limit, why, kib_per_s, before_kib_per_s } => {
                write!(f, "event=limit")?;
                write_optional(f, "processes", limit)?;
                write!(f, " why={why} kib_per_s={kib_per_s} before={before_kib_per_s}")
            }
            Decision::Depth { depth, kib_per_s, most_kib_per_s } => {
                write!(f, "event=depth requests={depth} kib_per_s={kib_per_s}")?;
                write!(f, " most_kib_per_s={most_kib_per_s}")
            }
            _ => Ok(()),
        }
    }

    /// Writes a decision about the queue that has the device.
    fn write_slice(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Decision::Tree { class, kind, why, queues, busy, average, until_ms } => {
                write!(f, "event=tree class={} kind={kind} why={why}", class_name(class))?;
                write!(f, " queues={queues} busy={busy} average={average} until_ms={until_ms}")
            }
            Decision::SliceBegin { queue, process, class, level, kind, why, key_ms, queued } => {
                write!(f, "event=slice_begin queue={queue}")?;
                write_optional(f, "process", process.map(|process| process.0))?;
                write!(f, " class={} level={level} kind={kind}", class_name(class))?;
                write!(f, " why={why} key_ms={key_ms} queued={queued}")
            }
            Decision::SliceSet { queue, slice_ms, end_ms, average } => {
                write!(f, "event=slice_set queue={queue} slice_ms={slice_ms} end_ms={end_ms}")?;
                write!(f, " average={average}")
            }
            Decision::SliceEnd { queue, why, left_ms, dispatched } => {
                write!(f, "event=slice_end queue={queue} why={why}")?;
                write_optional(f, "left_ms", left_ms)?;
                write!(f, " dispatched={dispatched}")
            }
            Decision::Preempt { queue, active, why, distance } => {
                write!(f, "event=preempt queue={queue} active={active} why={why}")?;
                write!(f, " distance={distance}")
            }
            _ => Ok(()),
        }
    }

    /// Writes a decision about the requests of one queue, or about idling for them.
    fn write_queue(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
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
            Decision::Join { queue, into, distance } => {
                write!(f, "event=join queue={queue} into={into} distance={distance}")
            }
            Decision::Split { queue, process, seek } => {
                write!(f, "event=split queue={queue} process={} seek={seek}", process.0)
            }
            _ => Ok(()),
        }
    }

    /// Writes a decision about pages that are read ahead.
    fn write_prefetch(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
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
            _ => Ok(()),
        }
    }
}

/// Writes ` key=value`, with `-` for a missing value.
fn write_optional(
    f: &mut fmt::Formatter<'_>,
    key: &str,
    value: Option<impl fmt::Display>,
) -> fmt::Result {
    match value {
        Some(value) => write!(f, " {key}={value}"),
        None => write!(f, " {key}=-"),
    }
}

/// Name of a priority class in the log.
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
        let logged = LoggedDecision {
            at: Time(1_500_000),
            decision: Decision::SliceEnd {
                queue: 3,
                why: "used",
                left_ms: Some(-2),
                dispatched: 5,
            },
        };
        let line = "at_ms=1.500000 event=slice_end queue=3 why=used left_ms=-2 dispatched=5";
        assert_eq!(logged.to_string(), line);
    }

    /// Three decisions more than the limit are logged. The first call reports the three oldest as
    /// lost, and the next returns the fourth.
    #[test]
    fn a_disabled_log_builds_no_decision_and_an_enabled_one_is_bounded() {
        let mut log = DecisionLog::default();
        log.log_with(Time::ZERO, || panic!("formed while off"));
        log.set_enabled(true);
        for request in 0..DecisionLog::LIMIT as u32 + 3 {
            log.log_with(Time::ZERO, || Decision::IdleStop { queue: request, why: "arrival" });
        }
        assert_eq!(log.poll().unwrap().decision, Decision::Lost { count: 3 });
        assert_eq!(log.poll().unwrap().decision, Decision::IdleStop { queue: 3, why: "arrival" });
    }
}
