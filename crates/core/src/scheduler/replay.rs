//! Replays a list of arrivals and completions, written down elsewhere, through
//! a scheduling law, and gives the law's decisions: so that a log from another
//! scheduler can be held against it, line by line.
//!
//! One event a line, in the order of time; `#` begins a comment:
//!
//! ```text
//! at_ms=0      event=arrive request=1 process=1 op=read start=0 sectors=8 class=be level=4 sync=yes
//! at_ms=1.25   event=complete request=1
//! at_ms=9      event=wait
//! at_ms=9      event=end process=1
//! ```
//!
//! `class` (`rt`, `be`, `idle`), `level` (0 to 7) and `sync` may be left out:
//! best-effort, 4, and yes for a read, no for a write. `wait` lets time pass.
//! A law that keeps no log of its own has its dispatches noted for it.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::decision::{Decided, Decision};
use super::{Dispatch, Inserted, Scheduler};
use crate::request::{Class, Op, Priority, ProcessId, Request, RequestId};
use crate::unit::Time;

/// Why a list of events can't be replayed; lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// The line is no event.
    BadLine {
        /// Which line.
        line: usize,
        /// What is wrong there, and what is expected.
        problem: String,
    },
    /// The line is earlier than the one before it.
    Backwards {
        /// Which line.
        line: usize,
    },
    /// A request arrives while another of that name has not completed.
    Twice {
        /// Which line.
        line: usize,
        /// The request.
        request: RequestId,
    },
    /// A request completes that the law has not given to the device: here the
    /// law and the scheduler that wrote the list part.
    NotInDevice {
        /// Which line.
        line: usize,
        /// The request.
        request: RequestId,
        /// The request that it was merged into.
        merged_into: Option<RequestId>,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::BadLine { line, problem } => write!(f, "line {line}: {problem}"),
            ReplayError::Backwards { line } => {
                write!(f, "line {line}: earlier than the line before; sort the events by time")
            }
            ReplayError::Twice { line, request: RequestId(id) } => {
                write!(f, "line {line}: request {id} is there already; name this one otherwise")
            }
            ReplayError::NotInDevice { line, request: RequestId(id), merged_into } => {
                write!(f, "line {line}: request {id} completes, but ")?;
                match merged_into {
                    Some(RequestId(into)) => write!(
                        f,
                        "the law has merged it into request {into}, which completes for both"
                    ),
                    None => f.write_str("the law has not given it to the device by then"),
                }
            }
        }
    }
}

impl core::error::Error for ReplayError {}

/// The lines of what `scheduler` decides on `events`, when the device takes at
/// most `depth_max` requests at once.
///
/// # Errors
/// A line is no event, or what it says can't be: see [`ReplayError`].
pub fn replay(
    scheduler: &mut dyn Scheduler,
    depth_max: u32,
    events: &str,
) -> Result<Vec<String>, ReplayError> {
    if let Some(log) = scheduler.decisions() {
        log.turn(true);
    }
    let mut world = World { depth_max, ..World::default() };
    for (index, text) in events.lines().enumerate() {
        let line = index + 1;
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        let (at, event) = parse(text).map_err(|problem| ReplayError::BadLine { line, problem })?;
        if at < world.now {
            return Err(ReplayError::Backwards { line });
        }
        world.pass(scheduler, at);
        world.take(scheduler, line, event)?;
        world.pump(scheduler);
    }
    Ok(world.lines)
}

enum Event {
    Arrive(Request),
    Complete(RequestId),
    End(ProcessId),
    Wait,
}

/// What is around the law: the device, the clock, the page that is written.
#[derive(Default)]
struct World {
    now: Time,
    depth_max: u32,
    /// When the law wants to be asked again.
    wake: Option<Time>,
    in_device: BTreeMap<RequestId, Request>,
    /// Requests that wait: `Some`: merged into that one.
    waiting: BTreeMap<RequestId, Option<RequestId>>,
    head: u64,
    lines: Vec<String>,
}

impl World {
    /// Lets time come to `at`, waking the law when it asked for it.
    fn pass(&mut self, scheduler: &mut dyn Scheduler, at: Time) {
        while let Some(wake) = self.wake.filter(|&wake| wake <= at) {
            self.now = wake;
            self.pump(scheduler);
        }
        self.now = at;
    }

    fn take(
        &mut self,
        scheduler: &mut dyn Scheduler,
        line: usize,
        event: Event,
    ) -> Result<(), ReplayError> {
        match event {
            Event::Arrive(request) => {
                if self.waiting.contains_key(&request.id)
                    || self.in_device.contains_key(&request.id)
                {
                    return Err(ReplayError::Twice { line, request: request.id });
                }
                let merged = match scheduler.insert(self.now, request) {
                    Inserted::Queued => None,
                    Inserted::Merged { into, with } => {
                        if let Some(with) = with {
                            self.waiting.insert(with.id, Some(into));
                        }
                        Some(into)
                    }
                };
                self.waiting.insert(request.id, merged);
            }
            Event::Complete(id) => {
                let Some(request) = self.in_device.remove(&id) else {
                    let merged_into = self.waiting.get(&id).copied().flatten();
                    return Err(ReplayError::NotInDevice { line, request: id, merged_into });
                };
                self.waiting.retain(|_, merged| *merged != Some(id));
                scheduler.complete(self.now, &request);
            }
            Event::End(process) => scheduler.process_ended(self.now, process),
            Event::Wait => {}
        }
        Ok(())
    }

    /// Gives the device what the law gives out, and notes the law's decisions.
    fn pump(&mut self, scheduler: &mut dyn Scheduler) {
        self.wake = None;
        while self.in_device.len() < self.depth_max as usize {
            match scheduler.dispatch(self.now) {
                Dispatch::Request(request) => {
                    self.waiting.remove(&request.id);
                    self.in_device.insert(request.id, request);
                    if scheduler.decisions().is_none() {
                        self.note_dispatch(&request);
                    }
                    self.head = request.end();
                }
                Dispatch::WaitUntil(wake) => {
                    self.wake = Some(wake).filter(|&wake| wake > self.now);
                    break;
                }
                Dispatch::Nothing => break,
            }
        }
        while let Some(decided) = scheduler.decisions().and_then(|log| log.poll()) {
            self.lines.push(decided.to_string());
        }
    }

    fn note_dispatch(&mut self, request: &Request) {
        let decision = Decision::Dispatch {
            request: request.id,
            queue: None,
            process: request.process,
            start: request.start,
            sectors: request.sectors,
            why: "given_out",
            distance: request.start.abs_diff(self.head),
            in_device: self.in_device.len() as u32,
            limit: Some(self.depth_max),
        };
        self.lines.push(Decided { at: self.now, decision }.to_string());
    }
}

/// The words of one line: `key=value`, each used up once.
struct Words<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Words<'a> {
    fn split(text: &'a str) -> Result<Words<'a>, String> {
        let mut words = BTreeMap::new();
        for word in text.split_whitespace() {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| alloc::format!("`{word}`: expected key=value"))?;
            if words.insert(key, value).is_some() {
                return Err(alloc::format!("`{key}` comes twice"));
            }
        }
        Ok(Words(words))
    }

    fn take(&mut self, key: &str) -> Result<&'a str, String> {
        self.0.remove(key).ok_or_else(|| alloc::format!("`{key}=` is missing"))
    }

    fn number<N: core::str::FromStr>(&mut self, key: &str) -> Result<N, String> {
        let text = self.take(key)?;
        text.parse().map_err(|_| alloc::format!("`{key}={text}`: expected a whole number"))
    }

    /// The choice named under `key`, `default` when it is left out.
    fn choice<T: Copy>(
        &mut self,
        key: &str,
        default: T,
        choices: &[(&str, T)],
    ) -> Result<T, String> {
        let Some(text) = self.0.remove(key) else { return Ok(default) };
        choices.iter().find(|(name, _)| *name == text).map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            alloc::format!("`{key}={text}`: expected one of {}", names.join(", "))
        })
    }

    fn done(self) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(key) => Err(alloc::format!("`{key}=` has no meaning for this event")),
        }
    }
}

fn parse(text: &str) -> Result<(Time, Event), String> {
    let mut words = Words::split(text)?;
    let at = milliseconds(words.take("at_ms")?)?;
    let event = match words.take("event")? {
        "arrive" => Event::Arrive(parse_request(&mut words)?),
        "complete" => Event::Complete(RequestId(words.number("request")?)),
        "end" => Event::End(ProcessId(words.number("process")?)),
        "wait" => Event::Wait,
        other => {
            return Err(alloc::format!(
                "`event={other}`: expected one of arrive, complete, end, wait"
            ));
        }
    };
    words.done()?;
    Ok((at, event))
}

fn parse_request(words: &mut Words<'_>) -> Result<Request, String> {
    let op = match words.take("op")? {
        "read" => Op::Read,
        "write" => Op::Write,
        other => return Err(alloc::format!("`op={other}`: expected read or write")),
    };
    let classes = [("rt", Class::RealTime), ("be", Class::BestEffort), ("idle", Class::Idle)];
    let class = words.choice("class", Class::BestEffort, &classes)?;
    let levels = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let levels: Vec<(&str, u8)> = levels.into_iter().zip(0..).collect();
    let request = Request {
        id: RequestId(words.number("request")?),
        op,
        start: words.number("start")?,
        sectors: words.number("sectors")?,
        process: ProcessId(words.number("process")?),
        priority: Priority { class, level: words.choice("level", 4, &levels)? },
        is_sync: words.choice("sync", op == Op::Read, &[("yes", true), ("no", false)])?,
    };
    if request.sectors == 0 {
        return Err("`sectors=0`: expected at least 1".to_string());
    }
    if request.start.checked_add(request.sectors.into()).is_none() {
        return Err("`start=`: the request ends beyond the last sector there can be".to_string());
    }
    Ok(request)
}

/// Milliseconds with at most six digits after the point.
fn milliseconds(text: &str) -> Result<Time, String> {
    let expected = || alloc::format!("`at_ms={text}`: expected milliseconds, as 12 or 12.345678");
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 6 {
        return Err(expected());
    }
    let whole: u64 = whole.parse().map_err(|_| expected())?;
    let part: u64 = alloc::format!("{part:0<6}").parse().map_err(|_| expected())?;
    whole
        .checked_mul(1_000_000)
        .and_then(|ns| ns.checked_add(part))
        .filter(|&ns| ns <= i64::MAX as u64)
        .map(Time)
        .ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::super::Noop;
    use super::super::testing::caps;
    use super::*;

    fn noop(depth_max: u32, events: &str) -> Result<Vec<String>, ReplayError> {
        replay(&mut Noop::new(&caps()), depth_max, events)
    }

    #[test]
    fn a_law_without_a_log_has_its_dispatches_noted() {
        let events = "
            at_ms=0 event=arrive request=1 process=7 op=read start=100 sectors=8 # the head
            at_ms=0 event=arrive request=2 process=7 op=read start=500 sectors=8
            at_ms=1 event=arrive request=3 process=8 op=read start=508 sectors=8

            at_ms=2.000001 event=complete request=1";
        let expected = [
            "at_ms=0.000000 event=dispatch request=1 queue=- process=7 start=100 sectors=8 \
             why=given_out distance=100 in_device=1 limit=1",
            "at_ms=2.000001 event=dispatch request=2 queue=- process=7 start=500 sectors=16 \
             why=given_out distance=392 in_device=1 limit=1",
        ];
        assert_eq!(noop(1, events).unwrap(), expected);
    }

    #[test]
    fn a_bad_list_says_where_and_what() {
        let first = "at_ms=5 event=arrive request=1 process=1 op=read start=0 sectors=8\n";
        let problem = |rest: &str| {
            let events = [first, rest].concat();
            noop(1, &events).unwrap_err().to_string()
        };
        assert_eq!(
            problem("at_ms=4 event=wait"),
            "line 2: earlier than the line before; sort the events by time"
        );
        assert_eq!(
            problem("at_ms=6 event=complete request=9"),
            "line 2: request 9 completes, but the law has not given it to the device by then"
        );
        let merged = "at_ms=5 event=arrive request=2 process=1 op=read start=90 sectors=8\n\
                      at_ms=5 event=arrive request=3 process=1 op=read start=98 sectors=8\n\
                      at_ms=6 event=complete request=3";
        assert_eq!(
            problem(merged),
            "line 4: request 3 completes, but the law has merged it into request 2, \
             which completes for both"
        );
        assert!(problem(first).starts_with("line 2: request 1 is there already"));
        assert_eq!(
            problem("at_ms=6 event=arrived"),
            "line 2: `event=arrived`: expected one of arrive, complete, end, wait"
        );
        assert_eq!(problem("at_ms=6 event=wait now"), "line 2: `now`: expected key=value");
        assert_eq!(
            problem("at_ms=6 event=wait level=4"),
            "line 2: `level=` has no meaning for this event"
        );
        assert_eq!(
            problem("at_ms=1.0000001 event=wait"),
            "line 2: `at_ms=1.0000001`: expected milliseconds, as 12 or 12.345678"
        );
        let arrive = "at_ms=6 event=arrive request=2 process=1 op=read start=0";
        assert_eq!(problem(arrive), "line 2: `sectors=` is missing");
        assert_eq!(
            problem(&[arrive, " sectors=8 level=8"].concat()),
            "line 2: `level=8`: expected one of 0, 1, 2, 3, 4, 5, 6, 7"
        );
        assert_eq!(
            problem(&[arrive, " sectors=0"].concat()),
            "line 2: `sectors=0`: expected at least 1"
        );
    }
}
