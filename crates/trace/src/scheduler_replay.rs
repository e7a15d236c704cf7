//! Replays a list of arrivals, dispatches and completions through a scheduling policy, and returns
//! the decisions of the policy. The recorded log of another scheduler can thus be compared with it,
//! line by line.
//!
//! One event per line, in order of time; `#` begins a comment:
//!
//! ```text
//! at_ms=0     event=arrive request=1 process=1 op=read start=0 sectors=8 class=be level=4 sync=yes
//! at_ms=0     event=dispatch request=1
//! at_ms=1.25  event=complete request=1
//! at_ms=9     event=wait
//! at_ms=9     event=end process=1
//! ```
//!
//! `class` (`rt`, `be`, `idle`), `level` (0 to 7) and `sync` are optional. The defaults are
//! best-effort, 4, and yes for a read, no for a write. `wait` advances the time. The dispatches of
//! a policy without its own log are logged for it.
//!
//! # Divergences
//! Each dispatch of the list is compared with the policy. The policy must have dispatched this
//! request by then, before all others that the list has not reached. A list without dispatches is
//! judged at its completions: the policy must have dispatched the request by then. A difference is
//! a [`Divergence`], and the replay continues from there by the list. A request that the policy
//! dispatched too early is no longer expected, one that it dispatches too late completes at once,
//! and one that it merged completes with the others. Each difference thus counts once, and the rest
//! is judged independently.

use std::collections::BTreeMap;
use std::fmt;

use readpath_core::decision::{Decision, LoggedDecision};
use readpath_core::request::{Request, RequestId, RequestTable};
use readpath_core::scheduler::{Dispatch, Inserted, Scheduler};
use readpath_core::unit::Time;

mod list;

use list::{ListEvent, parse};

use crate::TraceError;

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The policy's decisions, one per line.
    pub lines: Vec<String>,
    /// Number of the list's requests that were compared with the policy.
    pub judged: usize,
    /// The divergences, in the order of the list; at most one for each judged request.
    pub divergences: Vec<Divergence>,
}

impl Replayed {
    /// Number of requests for which the policy agreed with the list.
    pub fn equal(&self) -> usize {
        self.judged - self.divergences.len()
    }
}

/// A dispatch or completion of the list with which the policy disagreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Line number in the list, from 1.
    pub line: usize,
    /// Time of the event.
    pub at: Time,
    /// The request.
    pub request: RequestId,
    /// The policy's action.
    pub policy: DecisionDifference,
}

/// The policy's action on a request that is in the device by the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionDifference {
    /// It has not dispatched the request by then.
    NotDispatched,
    /// It dispatched another request first, which the list has not reached yet.
    DispatchedOther {
        /// The other request.
        first: RequestId,
    },
    /// It merged the request into another.
    Merged {
        /// The request that is dispatched for both.
        into: RequestId,
    },
}

impl DecisionDifference {
    /// Returns the action as one word, and the other request involved. `None` for a request that is
    /// not dispatched.
    pub fn words(self) -> (&'static str, Option<RequestId>) {
        match self {
            DecisionDifference::NotDispatched => ("holds_it", None),
            DecisionDifference::DispatchedOther { first } => ("gave_another_first", Some(first)),
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

/// Replays `events` through `scheduler` for a device that takes at most `depth_max` requests at
/// once. Returns its decisions and their divergences from the list. Enables the policy's own log,
/// if it has one.
///
/// # Errors
/// There is no event. A line is not an event, or is earlier than the line before. An event is
/// impossible: a request arrives twice, or is dispatched or completes without an arrival.
pub fn replay(
    scheduler: &mut dyn Scheduler,
    depth_max: u32,
    events: &str,
) -> Result<Replayed, TraceError> {
    if let Some(log) = scheduler.decisions() {
        log.set_enabled(true);
    }
    let mut state = ReplayState { depth_max, ..ReplayState::default() };
    let mut has_events = false;
    for (index, text) in events.lines().enumerate() {
        let line = index + 1;
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        let (at, event) = parse(text).map_err(|problem| TraceError::line(line as u64, problem))?;
        if at < state.now {
            let reason = "earlier than the line before; sort the events by time";
            return Err(TraceError::line(line as u64, reason));
        }
        state.advance_to(scheduler, at);
        state.process_event(scheduler, line, event)?;
        state.dispatch_all(scheduler);
        has_events = true;
    }
    if !has_events {
        let reason = "there is no event in the list; a line is `at_ms=0 event=arrive request=1 …`";
        return Err(TraceError::Empty { reason: reason.to_owned() });
    }
    Ok(state.replayed)
}

/// Returns the error of an event of a request that has not arrived or has completed.
fn unknown_request(line: usize, RequestId(id): RequestId) -> TraceError {
    let reason = format!("request {id} has not arrived, or has completed; name one that waits");
    TraceError::line(line as u64, reason)
}

/// State of an uncompleted request of the list in the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestStage {
    /// It is queued.
    Queued,
    /// It is queued as a part of that request, or is in the device with it.
    MergedInto(RequestId),
    /// It was a part of that request, which has completed.
    CompletedWith(RequestId),
    /// The policy has dispatched it.
    InDevice,
}

/// A request that has not completed in both the list and the policy.
#[derive(Clone, Copy, Debug)]
struct ReplayedRequest {
    /// Its identifier in the table, while it is there.
    id: RequestId,
    /// Its state in the policy.
    stage: RequestStage,
    /// True if the list has dispatched or completed it, and this was compared with the policy.
    is_judged: bool,
    /// True if it has completed in the list. The policy receives the completion when it dispatches
    /// the request.
    has_completed: bool,
}

/// Environment of the policy: the device, the clock and the log.
///
/// Requests are named as in the list unless stated otherwise.
#[derive(Default)]
struct ReplayState {
    /// Time of the present event.
    now: Time,
    /// Maximum number of requests that the device takes at once.
    depth_max: u32,
    /// Time at which the policy asked to be called again.
    wake_at: Option<Time>,
    /// Requests that have not completed in both the list and the policy, by their names.
    open_requests: BTreeMap<RequestId, ReplayedRequest>,
    /// Requests under the policy's own identifiers.
    requests: RequestTable,
    /// Names in the list of the requests in the table, by their identifiers there.
    names: Vec<RequestId>,
    /// Number of requests in the device.
    in_device: u32,
    /// Requests that the policy dispatched and the list has not reached, in that order.
    dispatched_ahead: Vec<RequestId>,
    /// Sector after the last dispatched request.
    head: u64,
    /// Decisions and divergences so far.
    replayed: Replayed,
}

impl ReplayState {
    /// Advances the time to `at`. Before, the policy dispatches requests at each time at which it
    /// asked to be called again.
    fn advance_to(&mut self, scheduler: &mut dyn Scheduler, at: Time) {
        while let Some(wake) = self.wake_at.filter(|&wake| wake <= at) {
            self.now = wake;
            self.dispatch_all(scheduler);
        }
        self.now = at;
    }

    /// Processes one event of the list. An arrival enters the policy. A dispatch is compared with
    /// the policy, and so is a completion without a dispatch. An event that is impossible for its
    /// request is an error of `line`, the line number from 1.
    fn process_event(
        &mut self,
        scheduler: &mut dyn Scheduler,
        line: usize,
        event: ListEvent,
    ) -> Result<(), TraceError> {
        match event {
            ListEvent::Arrive(name, request) => {
                let stage = self.open_requests.get(&name).map(|open_request| open_request.stage);
                // A name is free again once the policy has completed its request.
                if !matches!(stage, None | Some(RequestStage::CompletedWith(_))) {
                    let RequestId(id) = name;
                    let reason = format!("request {id} is there already; name this one otherwise");
                    return Err(TraceError::line(line as u64, reason));
                }
                self.insert_request(scheduler, name, request);
            }
            ListEvent::Dispatch(name) => {
                let open_request =
                    self.open_requests.get(&name).filter(|open_request| !open_request.is_judged);
                open_request.ok_or_else(|| unknown_request(line, name))?;
                let is_ordered = true;
                self.compare_with_list(line, name, is_ordered);
            }
            ListEvent::Complete(name) => {
                let open_request = self
                    .open_requests
                    .get(&name)
                    .filter(|open_request| !open_request.has_completed);
                let open_request = *open_request.ok_or_else(|| unknown_request(line, name))?;
                if !open_request.is_judged {
                    let is_ordered = false;
                    self.compare_with_list(line, name, is_ordered);
                }
                match open_request.stage {
                    RequestStage::InDevice => self.complete_request(scheduler, name),
                    RequestStage::CompletedWith(_) => drop(self.open_requests.remove(&name)),
                    // The policy completes it later.
                    RequestStage::Queued | RequestStage::MergedInto(_) => {
                        self.open_request_mut(name).has_completed = true
                    }
                }
            }
            ListEvent::End(process) => scheduler.process_ended(self.now, process),
            ListEvent::Wait => {}
        }
        Ok(())
    }

    /// Inserts a new request into the policy. `name` is its identifier in the list. A merge by the
    /// policy is kept as the request's stage.
    fn insert_request(&mut self, scheduler: &mut dyn Scheduler, name: RequestId, request: Request) {
        let id = self.requests.open(request);
        let index = id.0 as usize;
        // The table gives the number of a closed request to a new one.
        if index == self.names.len() {
            self.names.push(name);
        }
        self.names[index] = name;
        let state = ReplayedRequest {
            id,
            stage: RequestStage::Queued,
            is_judged: false,
            has_completed: false,
        };
        self.open_requests.insert(name, state);
        let inserted = scheduler.insert(self.now, id, &mut self.requests);
        let Inserted::Merged { into, with } = inserted else { return };
        // `with`: another request that the new one connects to `into`. It is merged as well, and so
        // are the requests that were merged into it.
        let into = self.name_of(into);
        self.open_request_mut(name).stage = RequestStage::MergedInto(into);
        if let Some(merged_away) = with.map(|merged_away| self.name_of(merged_away)) {
            let was_part = |open_request: &&mut ReplayedRequest| {
                open_request.stage == RequestStage::MergedInto(merged_away)
            };
            self.open_requests
                .values_mut()
                .filter(was_part)
                .for_each(|open_request| open_request.stage = RequestStage::MergedInto(into));
            self.open_request_mut(merged_away).stage = RequestStage::MergedInto(into);
        }
    }

    /// Returns the name in the list of a request of the table.
    fn name_of(&self, id: RequestId) -> RequestId {
        self.names[id.0 as usize]
    }

    /// Returns the state of a request that has not completed in both the list and the policy.
    fn open_request_mut(&mut self, name: RequestId) -> &mut ReplayedRequest {
        self.open_requests
            .get_mut(&name)
            .expect("the request has arrived, and is open in the list or in the policy")
    }

    /// Compares the policy with the list, which has sent the request `name` to the device by this
    /// line. A difference becomes a divergence. At a dispatch of the list (`is_ordered`), the order
    /// of dispatches is compared too. At a completion without a dispatch, the order is unknown.
    fn compare_with_list(&mut self, line: usize, name: RequestId, is_ordered: bool) {
        let open_request = self.open_request_mut(name);
        open_request.is_judged = true;
        let difference = match open_request.stage {
            RequestStage::Queued => Some(DecisionDifference::NotDispatched),
            RequestStage::MergedInto(into) | RequestStage::CompletedWith(into) => {
                Some(DecisionDifference::Merged { into })
            }
            RequestStage::InDevice => {
                // A request in the device that was not compared before is one of these.
                let first = self.dispatched_ahead[0];
                (is_ordered && first != name)
                    .then_some(DecisionDifference::DispatchedOther { first })
            }
        };
        self.dispatched_ahead.retain(|&ahead| ahead != name);
        self.replayed.judged += 1;
        if let Some(difference) = difference {
            let divergence = Divergence { line, at: self.now, request: name, policy: difference };
            self.replayed.lines.push(divergence.to_string());
            self.replayed.divergences.push(divergence);
        }
    }

    /// Completes a request of the device in the policy, with all requests merged into it. A part
    /// that the list has not completed keeps a stage of its own.
    fn complete_request(&mut self, scheduler: &mut dyn Scheduler, name: RequestId) {
        let completed = self
            .open_requests
            .remove(&name)
            .expect("the request is open until the policy completes it");
        // Parts that have completed in the list too are finished.
        self.open_requests.retain(|_, open_request| {
            open_request.stage != RequestStage::MergedInto(name) || !open_request.has_completed
        });
        let parts = self
            .open_requests
            .values_mut()
            .filter(|open_request| open_request.stage == RequestStage::MergedInto(name));
        parts.for_each(|open_request| open_request.stage = RequestStage::CompletedWith(name));
        self.in_device -= 1;
        scheduler.complete(self.now, completed.id, &self.requests);
        self.requests.close_all(completed.id);
    }

    /// Lets the policy dispatch requests while the device accepts them, and logs the policy's
    /// decisions. Sets `wake_at` to the later time at which the policy wants to be called again, or
    /// to `None` without one. A request that the list has completed already completes at once.
    fn dispatch_all(&mut self, scheduler: &mut dyn Scheduler) {
        self.wake_at = None;
        while self.in_device < self.depth_max {
            match scheduler.dispatch(self.now, &self.requests) {
                Dispatch::Request(id) => {
                    self.in_device += 1;
                    if scheduler.decisions().is_none() {
                        self.log_dispatch(id);
                    }
                    self.head = self.requests[id].end();
                    let name = self.name_of(id);
                    let open_request = self.open_request_mut(name);
                    open_request.stage = RequestStage::InDevice;
                    let ReplayedRequest { is_judged, has_completed, .. } = *open_request;
                    // The list has not reached the dispatch of this request yet.
                    if !is_judged {
                        self.dispatched_ahead.push(name);
                    }
                    if has_completed {
                        self.complete_request(scheduler, name);
                    }
                }
                Dispatch::Withdraw(_) => {
                    unreachable!("a list has no speculative requests to withdraw")
                }
                Dispatch::WaitUntil(wake) => {
                    // A time that has passed would repeat this call for ever.
                    self.wake_at = Some(wake).filter(|&wake| wake > self.now);
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

    /// Logs a dispatch of a request of the table, for a policy without its own log.
    fn log_dispatch(&mut self, id: RequestId) {
        let request = &self.requests[id];
        let decision = Decision::Dispatch {
            request: self.name_of(id),
            // A policy without a log has no queues that could be named, and no reasons.
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
    use readpath_core::request::DeviceCaps;
    use readpath_core::scheduler::Noop;

    use super::*;

    /// Replays a list through the policy noop, on a device of at most `depth_max` requests.
    fn replay_noop(depth_max: u32, events: &str) -> Result<Replayed, TraceError> {
        let caps = DeviceCaps {
            sectors: 1 << 30,
            request_sectors_max: 256,
            depth_max: 32,
            is_rotational: true,
            alignment_sectors: 1,
        };
        replay(&mut Noop::new(&caps), depth_max, events)
    }

    /// By hand: request 3 follows request 2 and is merged into it. Distances count from the end of
    /// the last dispatched request: 100 - 0, and 500 - 108.
    #[test]
    fn dispatches_of_a_policy_without_a_log_are_reported() {
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
        assert_eq!(replay_noop(1, events).unwrap().lines, expected);
    }

    #[test]
    fn a_bad_list_reports_line_and_fault() {
        let first = "at_ms=5 event=arrive request=1 process=1 op=read start=0 sectors=8\n";
        let problem = |rest: &str| {
            let events = [first, rest].concat();
            replay_noop(1, &events).unwrap_err().to_string()
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
        // A table with that number of entries would take 34 GiB.
        let large = "at_ms=5 event=arrive request=4294967295 process=1 op=read start=0 sectors=8\n";
        assert_eq!(
            problem(large),
            "line 2: `request=4294967295`: expected a number below 16777216; count from 1"
        );
    }

    /// Line, request and difference of each divergence.
    fn differences(replayed: &Replayed) -> Vec<(usize, u32, DecisionDifference)> {
        let divergences = replayed.divergences.iter();
        divergences.map(|found| (found.line, found.request.0, found.policy)).collect()
    }

    /// First come, first served, compared with a list that has the third of four before the second.
    #[test]
    fn a_request_out_of_order_is_one_difference_and_the_rest_is_judged() {
        let mut events = String::new();
        for request in 1..=4 {
            events += &format!(
                "at_ms=0 event=arrive request={request} process=1 op=read start={request}000 sectors=8\n"
            );
        }
        for (request, ms) in [(1, 1), (3, 2), (2, 3), (4, 4)] {
            events += &format!("at_ms={ms} event=dispatch request={request}\n");
        }
        let replayed = replay_noop(4, &events).unwrap();
        assert_eq!((replayed.judged, replayed.equal()), (4, 3));
        assert_eq!(
            differences(&replayed),
            [(6, 3, DecisionDifference::DispatchedOther { first: RequestId(2) })]
        );
        let line =
            "at_ms=2.000000 event=divergence line=6 request=3 policy=gave_another_first other=2";
        assert!(replayed.lines.iter().any(|logged| logged == line), "{:?}", replayed.lines);
    }

    /// The device takes one request. Request 3 completes before the policy, first come, first
    /// served, has dispatched it. The policy dispatches it at 4, and it completes at once, so that
    /// request 4 goes out then.
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
        let replayed = replay_noop(1, events).unwrap();
        assert_eq!((replayed.judged, replayed.equal()), (4, 3));
        assert_eq!(differences(&replayed), [(7, 3, DecisionDifference::NotDispatched)]);
        let at_4 = |line: &&String| line.starts_with("at_ms=4.000000 event=dispatch");
        assert_eq!(replayed.lines.iter().filter(at_4).count(), 2, "{:?}", replayed.lines);
    }

    /// The list has three adjacent requests, the policy makes one of them: two differences for
    /// every order of completion.
    #[test]
    fn requests_merged_only_by_the_policy_complete_together() {
        for (order, lines) in [([2, 3, 4], [7, 8]), ([4, 3, 2], [6, 7])] {
            let mut events = String::from(
                "at_ms=0 event=arrive request=1 process=1 op=read start=0 sectors=8
                 at_ms=0 event=arrive request=2 process=1 op=read start=100 sectors=8
                 at_ms=0 event=arrive request=4 process=1 op=read start=116 sectors=8
                 at_ms=0 event=arrive request=3 process=1 op=read start=108 sectors=8
                 at_ms=1 event=complete request=1\n",
            );
            for (request, ms) in order.into_iter().zip(2..) {
                events += &format!("at_ms={ms} event=complete request={request}\n");
            }
            events += "at_ms=9 event=arrive request=3 process=1 op=read start=0 sectors=8\n";
            events += "at_ms=9 event=complete request=3";
            let replayed = replay_noop(1, &events).unwrap();
            assert_eq!((replayed.judged, replayed.equal()), (5, 3), "{order:?}");
            let found: Vec<usize> =
                replayed.divergences.iter().map(|divergence| divergence.line).collect();
            assert_eq!(found, lines, "{order:?}");
        }
    }
}
