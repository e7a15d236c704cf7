//! Replays a list of arrivals, dispatches and completions, written down elsewhere, through a
//! scheduling law, and gives the law's decisions: so that a log from another scheduler can be held
//! against it, line by line.
//!
//! One event a line, in the order of time; `#` begins a comment:
//!
//! ```text
//! at_ms=0      event=arrive request=1 process=1 op=read start=0 sectors=8 class=be level=4 sync=yes
//! at_ms=0      event=dispatch request=1
//! at_ms=1.25   event=complete request=1
//! at_ms=9      event=wait
//! at_ms=9      event=end process=1
//! ```
//!
//! `class` (`rt`, `be`, `idle`), `level` (0 to 7) and `sync` may be left out:
//! best-effort, 4, and yes for a read, no for a write. `wait` lets time pass.
//! A law that keeps no log of its own has its dispatches noted for it.
//!
//! # Where the two part
//! Each dispatch of the list is held against the law: has it given this request to the device by
//! then, before all others that the list has not come to? A list without dispatches is judged at
//! its completions: has the law given the request out by then? What differs is a [`Divergence`], and
//! the replay goes on from there by the list: a request that the law gave out too early is
//! awaited no longer, one that it gives out too late completes at once, and one that it merged
//! completes with the others. So each difference counts once, and what follows is judged by itself.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::{Dispatch, Inserted, Scheduler};
use crate::decision::{Decision, LoggedDecision};
use crate::request::{Request, RequestId, RequestTable};
use crate::unit::Time;

mod list;

use list::{ListEvent, parse};

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
    /// A request is dispatched or completes that has not arrived, or has completed already.
    Unknown {
        /// Which line.
        line: usize,
        /// The request.
        request: RequestId,
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
            ReplayError::Unknown { line, request: RequestId(id) } => write!(
                f,
                "line {line}: request {id} has not arrived, or has completed; name one that waits"
            ),
        }
    }
}

impl core::error::Error for ReplayError {}

/// What became of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The law's decisions, one a line.
    pub lines: Vec<String>,
    /// How many of the list's requests were held against the law.
    pub judged: usize,
    /// Where the two parted, in the order of the list; at most one for each request judged.
    pub divergences: Vec<Divergence>,
}

impl Replayed {
    /// For how many requests the law did as the list has it.
    pub fn equal(&self) -> usize {
        self.judged - self.divergences.len()
    }
}

/// The list has a request dispatched, or completed, and the law did otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Which line of the list, from 1.
    pub line: usize,
    /// When.
    pub at: Time,
    /// The request.
    pub request: RequestId,
    /// What the law did.
    pub policy: DecisionDifference,
}

/// What the law did where the list has a request in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionDifference {
    /// It has not given the request out by then.
    Holds,
    /// It gave another one out first, to which the list has not come yet.
    Gave {
        /// That one.
        first: RequestId,
    },
    /// It merged the request into another.
    Merged {
        /// The one that goes out for both.
        into: RequestId,
    },
}

impl DecisionDifference {
    /// It as one word, and the other request that it is about.
    pub fn words(self) -> (&'static str, Option<RequestId>) {
        match self {
            DecisionDifference::Holds => ("holds_it", None),
            DecisionDifference::Gave { first } => ("gave_another_first", Some(first)),
            DecisionDifference::Merged { into } => ("merged_it", Some(into)),
        }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ns, (policy, other)) = (self.at.ns(), self.policy.words());
        write!(f, "at_ms={}.{:06} event=divergence", ns / 1_000_000, ns % 1_000_000)?;
        write!(f, " line={} request={} policy={policy}", self.line, self.request.0)?;
        other.map_or(Ok(()), |RequestId(id)| write!(f, " other={id}"))
    }
}

/// What `scheduler` decides on `events`, when the device takes at most `depth_max` requests at
/// once, and where that differs from the list.
///
/// # Errors
/// A line is no event, or what it says can't be: see [`ReplayError`].
pub fn replay(
    scheduler: &mut dyn Scheduler,
    depth_max: u32,
    events: &str,
) -> Result<Replayed, ReplayError> {
    if let Some(log) = scheduler.decisions() {
        log.turn(true);
    }
    let mut world = ReplayEnvironment { depth_max, ..ReplayEnvironment::default() };
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
    Ok(world.replayed)
}

/// A request of the list that has not completed, by what the law made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestStage {
    /// It waits.
    Waits,
    /// It waits as a part of that one, or is in the device with it.
    With(RequestId),
    /// It was a part of that one, which has completed.
    DoneWith(RequestId),
    InDevice,
}

/// What is known of a request that has not completed in both.
#[derive(Clone, Copy, Debug)]
struct ReplayedRequest {
    /// Its name in the table, as long as it is there.
    id: RequestId,
    place: RequestStage,
    /// The list was held against the law.
    is_judged: bool,
    /// It has completed, as the list has it: the law is told when it gives the request out.
    has_completed: bool,
}

/// What is around the law: the device, the clock, the page that is written.
///
/// Names are the list's, where nothing else is said.
#[derive(Default)]
struct ReplayEnvironment {
    now: Time,
    depth_max: u32,
    /// When the law wants to be asked again.
    wake: Option<Time>,
    known: BTreeMap<RequestId, ReplayedRequest>,
    requests: RequestTable,
    /// What the list calls the requests of the table, by their names there.
    names: Vec<RequestId>,
    in_device: u32,
    /// What the law gave out and the list has not come to, in that order.
    ahead: Vec<RequestId>,
    head: u64,
    replayed: Replayed,
}

impl ReplayEnvironment {
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
        event: ListEvent,
    ) -> Result<(), ReplayError> {
        match event {
            ListEvent::Arrive(name, request) => {
                let known = self.known.get(&name).map(|known| known.place);
                if !matches!(known, None | Some(RequestStage::DoneWith(_))) {
                    return Err(ReplayError::Twice { line, request: name });
                }
                self.arrive(scheduler, name, request);
            }
            ListEvent::Dispatch(id) => {
                let known = self.known.get(&id).filter(|known| !known.is_judged);
                known.ok_or(ReplayError::Unknown { line, request: id })?;
                self.judge(line, id, true);
            }
            ListEvent::Complete(id) => {
                let known = self.known.get(&id).filter(|known| !known.has_completed);
                let known = *known.ok_or(ReplayError::Unknown { line, request: id })?;
                if !known.is_judged {
                    self.judge(line, id, false);
                }
                match known.place {
                    RequestStage::InDevice => self.complete(scheduler, id),
                    RequestStage::DoneWith(_) => drop(self.known.remove(&id)),
                    RequestStage::Waits | RequestStage::With(_) => {
                        self.known_mut(id).has_completed = true
                    }
                }
            }
            ListEvent::End(process) => scheduler.process_ended(self.now, process),
            ListEvent::Wait => {}
        }
        Ok(())
    }

    fn arrive(&mut self, scheduler: &mut dyn Scheduler, name: RequestId, request: Request) {
        let id = self.requests.open(request);
        let at = id.0 as usize;
        if at == self.names.len() {
            self.names.push(name);
        }
        self.names[at] = name;
        let new = ReplayedRequest {
            id,
            place: RequestStage::Waits,
            is_judged: false,
            has_completed: false,
        };
        self.known.insert(name, new);
        let inserted = scheduler.insert(self.now, id, &mut self.requests);
        let Inserted::Merged { into, with } = inserted else { return };
        let into = self.name_of(into);
        self.known_mut(name).place = RequestStage::With(into);
        if let Some(gone) = with.map(|gone| self.name_of(gone)) {
            let parts = |it: &&mut ReplayedRequest| it.place == RequestStage::With(gone);
            self.known
                .values_mut()
                .filter(parts)
                .for_each(|it| it.place = RequestStage::With(into));
            self.known_mut(gone).place = RequestStage::With(into);
        }
    }

    fn name_of(&self, id: RequestId) -> RequestId {
        self.names[id.0 as usize]
    }

    fn known_mut(&mut self, id: RequestId) -> &mut ReplayedRequest {
        self.known.get_mut(&id).expect("it has arrived, and not completed in both")
    }

    /// Holds the list, where this request is in the device, against the law; the order in which
    /// the law gave requests out as well, where the list tells its own.
    fn judge(&mut self, line: usize, id: RequestId, is_ordered: bool) {
        let known = self.known_mut(id);
        known.is_judged = true;
        let policy = match known.place {
            RequestStage::Waits => Some(DecisionDifference::Holds),
            RequestStage::With(into) | RequestStage::DoneWith(into) => {
                Some(DecisionDifference::Merged { into })
            }
            RequestStage::InDevice => {
                let first = self.ahead[0];
                (is_ordered && first != id).then_some(DecisionDifference::Gave { first })
            }
        };
        self.ahead.retain(|&ahead| ahead != id);
        self.replayed.judged += 1;
        if let Some(policy) = policy {
            let divergence = Divergence { line, at: self.now, request: id, policy };
            self.replayed.lines.push(divergence.to_string());
            self.replayed.divergences.push(divergence);
        }
    }

    /// A request leaves the device, and all that was merged into it.
    fn complete(&mut self, scheduler: &mut dyn Scheduler, id: RequestId) {
        let known = self.known.remove(&id).expect("it is in the device");
        self.known.retain(|_, it| it.place != RequestStage::With(id) || !it.has_completed);
        let parts = self.known.values_mut().filter(|it| it.place == RequestStage::With(id));
        parts.for_each(|it| it.place = RequestStage::DoneWith(id));
        self.in_device -= 1;
        scheduler.complete(self.now, known.id, &self.requests);
        self.requests.close_all(known.id);
    }

    /// Gives the device what the law gives out, and notes the law's decisions.
    fn pump(&mut self, scheduler: &mut dyn Scheduler) {
        self.wake = None;
        while self.in_device < self.depth_max {
            match scheduler.dispatch(self.now, &self.requests) {
                Dispatch::Request(id) => {
                    self.in_device += 1;
                    if scheduler.decisions().is_none() {
                        self.note_dispatch(id);
                    }
                    self.head = self.requests[id].end();
                    let name = self.name_of(id);
                    let known = self.known_mut(name);
                    known.place = RequestStage::InDevice;
                    let ReplayedRequest { is_judged, has_completed, .. } = *known;
                    if !is_judged {
                        self.ahead.push(name);
                    }
                    if has_completed {
                        self.complete(scheduler, name);
                    }
                }
                Dispatch::Withdraw(_) => unreachable!("no request of a list is doubtful"),
                Dispatch::WaitUntil(wake) => {
                    self.wake = Some(wake).filter(|&wake| wake > self.now);
                    break;
                }
                Dispatch::Nothing => break,
            }
        }
        while let Some(mut decided) = scheduler.decisions().and_then(|log| log.poll()) {
            if let Decision::Dispatch { request, .. } = &mut decided.decision {
                *request = self.name_of(*request);
            }
            self.replayed.lines.push(decided.to_string());
        }
    }

    fn note_dispatch(&mut self, id: RequestId) {
        let request = &self.requests[id];
        let decision = Decision::Dispatch {
            request: self.name_of(id),
            queue: None,
            process: request.process,
            start: request.start,
            sectors: request.sectors,
            why: "given_out",
            distance: request.start.abs_diff(self.head),
            in_device: self.in_device,
            limit: Some(self.depth_max),
        };
        self.replayed.lines.push(LoggedDecision { at: self.now, decision }.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Noop;
    use super::super::testing::caps;
    use super::*;

    fn noop(depth_max: u32, events: &str) -> Result<Replayed, ReplayError> {
        replay(&mut Noop::new(&caps()), depth_max, events)
    }

    #[test]
    fn a_policy_without_a_log_has_its_dispatches_noted() {
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
        assert_eq!(noop(1, events).unwrap().lines, expected);
    }

    #[test]
    fn a_bad_list_reports_line_and_fault() {
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
            "line 2: request 9 has not arrived, or has completed; name one that waits"
        );
        assert!(problem(first).starts_with("line 2: request 1 is there already"));
        assert_eq!(
            problem("at_ms=6 event=arrived"),
            "line 2: `event=arrived`: expected one of arrive, dispatch, complete, end, wait"
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
        // A table of that many entries would take 34 GiB.
        let large = "at_ms=5 event=arrive request=4294967295 process=1 op=read start=0 sectors=8\n";
        assert_eq!(
            problem(large),
            "line 2: `request=4294967295`: expected a number below 16777216; count from 1"
        );
    }

    fn parted(replayed: &Replayed) -> Vec<(usize, u32, DecisionDifference)> {
        let divergences = replayed.divergences.iter();
        divergences.map(|it| (it.line, it.request.0, it.policy)).collect()
    }

    /// First come, first served, against a list that has the third of four before the second.
    #[test]
    fn a_request_out_of_order_is_one_difference_and_the_rest_is_judged() {
        let mut events = String::new();
        for request in 1..=4 {
            events += &alloc::format!(
                "at_ms=0 event=arrive request={request} process=1 op=read start={request}000 sectors=8\n"
            );
        }
        for (request, ms) in [(1, 1), (3, 2), (2, 3), (4, 4)] {
            events += &alloc::format!("at_ms={ms} event=dispatch request={request}\n");
        }
        let replayed = noop(4, &events).unwrap();
        assert_eq!((replayed.judged, replayed.equal()), (4, 3));
        assert_eq!(parted(&replayed), [(6, 3, DecisionDifference::Gave { first: RequestId(2) })]);
        let line =
            "at_ms=2.000000 event=divergence line=6 request=3 policy=gave_another_first other=2";
        assert!(replayed.lines.iter().any(|it| it == line), "{:?}", replayed.lines);
    }

    /// The device takes one. Request 3 completes before the law, first come, first served, has given
    /// it out; when it does, at 4, that is over at once, so that 4 goes out then and not never.
    #[test]
    fn a_completion_that_comes_too_early_waits_for_the_policy() {
        let events = "
            at_ms=0 event=arrive request=1 process=1 op=read start=1000 sectors=8
            at_ms=0 event=arrive request=2 process=1 op=read start=2000 sectors=8
            at_ms=0 event=arrive request=3 process=1 op=read start=3000 sectors=8
            at_ms=0 event=arrive request=4 process=1 op=read start=4000 sectors=8
            at_ms=1 event=complete request=1
            at_ms=2 event=complete request=3
            at_ms=4 event=complete request=2
            at_ms=5 event=complete request=4";
        let replayed = noop(1, events).unwrap();
        assert_eq!((replayed.judged, replayed.equal()), (4, 3));
        assert_eq!(parted(&replayed), [(7, 3, DecisionDifference::Holds)]);
        let at_4 = |line: &&String| line.starts_with("at_ms=4.000000 event=dispatch");
        assert_eq!(replayed.lines.iter().filter(at_4).count(), 2, "{:?}", replayed.lines);
    }

    /// The list has three requests in a row on their own, the law makes one of them: two
    /// differences, whichever completes first.
    #[test]
    fn requests_that_the_policy_alone_merged_complete_with_the_others() {
        for (order, lines) in [([2, 3, 4], [7, 8]), ([4, 3, 2], [6, 7])] {
            let mut events = String::from(
                "at_ms=0 event=arrive request=1 process=1 op=read start=0 sectors=8
                 at_ms=0 event=arrive request=2 process=1 op=read start=100 sectors=8
                 at_ms=0 event=arrive request=4 process=1 op=read start=116 sectors=8
                 at_ms=0 event=arrive request=3 process=1 op=read start=108 sectors=8
                 at_ms=1 event=complete request=1\n",
            );
            for (request, ms) in order.into_iter().zip(2..) {
                events += &alloc::format!("at_ms={ms} event=complete request={request}\n");
            }
            events += "at_ms=9 event=arrive request=3 process=1 op=read start=0 sectors=8\n";
            events += "at_ms=9 event=complete request=3";
            let replayed = noop(1, &events).unwrap();
            assert_eq!((replayed.judged, replayed.equal()), (5, 3), "{order:?}");
            let found: Vec<usize> = replayed.divergences.iter().map(|it| it.line).collect();
            assert_eq!(found, lines, "{order:?}");
        }
    }
}
