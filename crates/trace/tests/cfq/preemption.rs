//! Preemption: one list of events for each rule, and one for each exception.

use super::rig::{decided, values};

/// Reasons of preemption in `cfq` with `parameters`.
fn reasons(parameters: &str, events: &str) -> Vec<String> {
    let lines = decided(&format!("cfq{parameters}"), 32, events);
    values(&lines, "preempt", "why").into_iter().map(str::to_owned).collect()
}

/// Process 1 has sent a request and is idled for from 5 ms on, with the head at sector 8.
const IDLING: &str = "
at_ms=0 event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=5 event=complete request=1\n";

fn while_idling(event: &str) -> Vec<String> {
    reasons("", &[IDLING, event].concat())
}

#[test]
fn a_request_close_to_the_head_ends_idling() {
    let near = "at_ms=6 event=arrive request=2 process=2 op=read start=8200 sectors=8";
    assert_eq!(while_idling(near), ["close_to_head"]);
    let far = "at_ms=6 event=arrive request=2 process=2 op=read start=8201 sectors=8";
    assert!(while_idling(far).is_empty());
    let of_idle_class =
        "at_ms=6 event=arrive request=2 process=2 op=read start=8 sectors=8 class=idle";
    assert!(while_idling(of_idle_class).is_empty());
    // During a request there is no idling to end.
    let busy = "
        at_ms=6 event=arrive request=3 process=1 op=read start=8 sectors=16
        at_ms=6 event=arrive request=2 process=2 op=read start=24 sectors=8";
    assert!(while_idling(busy).is_empty());
}

#[test]
fn real_time_preempts_and_is_not_preempted() {
    let real_time =
        "at_ms=6 event=arrive request=2 process=2 op=read start=90000 sectors=8 class=rt";
    assert_eq!(while_idling(real_time), ["real_time"]);
    let active = IDLING.replace("sectors=8", "sectors=8 class=rt");
    let near = "at_ms=6 event=arrive request=2 process=2 op=read start=8 sectors=8";
    assert!(reasons("", &[&active, near].concat()).is_empty());
    let equal = "at_ms=6 event=arrive request=2 process=2 op=read start=8 sectors=8 class=rt";
    assert_eq!(reasons("", &[&active, equal].concat()), ["close_to_head"]);
}

#[test]
fn every_class_preempts_the_idle_class() {
    let events = "
        at_ms=0 event=arrive request=1 process=1 op=read start=0 sectors=8 class=idle
        at_ms=1 event=arrive request=2 process=2 op=read start=90000 sectors=8";
    assert_eq!(reasons("", events), ["active_is_idle_class"]);
}

#[test]
fn a_used_slice_is_preempted() {
    // The slice of 10 ms gets its length at 5. It lasts at 14, but not at 15.
    let other_at = |ms| {
        let events = format!(
            "{IDLING}
            at_ms=6 event=arrive request=2 process=1 op=read start=8 sectors=16
            at_ms={ms} event=arrive request=3 process=2 op=read start=90000 sectors=8"
        );
        reasons(",slice_sync=10,low_latency=0", &events)
    };
    assert!(other_at(14).is_empty());
    assert_eq!(other_at(15), ["slice_used"]);
}

/// The last queue of the sync-noidle tree is idled for, until another of that tree has work. Six
/// far requests make each of the two seeky.
#[test]
fn work_in_the_noidle_tree_ends_its_idling() {
    let mut events = String::new();
    let mut request = 0;
    for number in 0..8u64 {
        for process in [1, 2u64] {
            let at = 40 * number + 20 * process;
            let start = process * 1_000_000_000 + number * 100_000;
            events += &format!(
                "at_ms={at} event=arrive request={request} process={process} op=read start={start} sectors=8\n"
            );
            // Its idle time, 8 ms, is over before the other one arrives.
            events += &format!("at_ms={} event=complete request={request}\n", at + 8);
            request += 1;
        }
    }
    let idle_until_340 = events
        + "at_ms=340 event=arrive request=90 process=1 op=read start=5000000 sectors=8
           at_ms=348 event=complete request=90\n";
    let other = "at_ms=350 event=arrive request=91 process=2 op=read start=900000 sectors=8";
    let lines = decided("cfq", 32, &idle_until_340);
    assert_eq!(values(&lines, "idle_start", "why").last(), Some(&"last_of_tree"));
    assert_eq!(reasons("", &[&idle_until_340, other].concat()), ["noidle_tree_has_work"]);
}

/// Two queues of writes have a share of the time; a read ends it for both.
#[test]
fn read_preempts_all_asynchronous_writes() {
    let events = "
        at_ms=0 event=arrive request=1 process=1 op=write start=0 sectors=8
        at_ms=0 event=arrive request=2 process=2 op=write start=5000 sectors=8 level=5
        at_ms=0 event=arrive request=3 process=1 op=write start=9000 sectors=8
        at_ms=1 event=arrive request=4 process=3 op=read start=90000 sectors=8
        at_ms=8 event=complete request=1";
    let lines = decided("cfq", 1, events);
    assert_eq!(values(&lines, "preempt", "why"), ["sync_before_async"]);
    assert_eq!(values(&lines, "dispatch", "request"), ["1", "4"]);
}
