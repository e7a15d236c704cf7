//! Processes that end with reads outstanding.

use alloc::vec;

use super::super::testing::{caps, read};
use super::*;
use crate::request::{Need, Request};

/// Two processes have one read each, and one has a place. This process ends while its read is
/// in progress. The other process must get the place at the completion, not after the idle
/// timeout.
#[test]
fn ended_process_frees_its_slot_at_its_last_completion() {
    let mut policy = AdaptiveScheduler::new(&caps());
    policy.active_tuner = ThroughputTuner::with_setting(Parameter::Processes, 1);
    let mut table = RequestTable::default();
    let ids: Vec<RequestId> = [0, 1]
        .map(|process| Request { process: ProcessId(process), ..read(100, 8) })
        .into_iter()
        .map(|request| {
            let id = table.open(request);
            assert!(matches!(policy.insert(Time::ZERO, id, &mut table), Inserted::Queued));
            id
        })
        .collect();
    assert_eq!(policy.dispatch(Time::ZERO, &table), Dispatch::Request(ids[0]));
    assert_eq!(policy.dispatch(Time::ZERO, &table), Dispatch::Nothing, "the place is taken");
    policy.process_ended(Time::ZERO, ProcessId(0));
    let now = Time::from_ms(1);
    policy.complete(now, ids[0], &table);
    assert_eq!(policy.dispatch(now, &table), Dispatch::Request(ids[1]));
    policy.complete(now, ids[1], &table);
    policy.process_ended(now, ProcessId(1));
    assert!(policy.processes.is_empty() && policy.active_processes == 0, "{policy:?}");
}

/// Process B has sectors 0 to 7 queued. Process A queues a prefetch of 16 to 23 and ends. Then B
/// inserts 8 to 15, which joins all three into the oldest. No completion of A follows, because its
/// last read was merged. Its state must not stay.
#[test]
fn ended_process_leaves_when_its_last_read_is_merged() {
    let mut policy = AdaptiveScheduler::new(&caps());
    let mut table = RequestTable::default();
    let [ended, other] = [ProcessId(0), ProcessId(1)];
    let prefetch = Request { need: Need::Prefetch, ..read(16, 8) };
    let queued =
        [Request { process: other, ..read(0, 8) }, prefetch].map(|request| table.open(request));
    for id in queued {
        assert!(matches!(policy.insert(Time::ZERO, id, &mut table), Inserted::Queued));
    }
    policy.process_ended(Time::ZERO, ended);
    assert!(policy.processes.contains_key(&ended), "its prefetch is outstanding");
    let joining = table.open(Request { process: other, ..read(8, 8) });
    let inserted = policy.insert(Time::ZERO, joining, &mut table);
    assert_eq!(inserted, Inserted::Merged { into: queued[0], with: Some(queued[1]) });
    let left: Vec<ProcessId> = policy.processes.keys().copied().collect();
    assert_eq!((left, policy.busy_processes), (vec![other], 1));
}
