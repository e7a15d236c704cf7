//! Processes with neighbouring requests: joined, and split again.

use readpath_core::unit::Time;

use super::rig::*;

/// Two threads read one file in turn, each every other piece of 16 KiB.
fn halves(end: u64) -> Vec<RigProcess> {
    let half = |offset| {
        move |number: u64| {
            let (piece, page) = (number / 4, number % 4);
            Some(piece * 64 + offset + page * 8)
        }
    };
    [0, 32]
        .map(|offset| {
            let place = half(offset);
            RigProcess::reading(move |number| if number < end { place(number) } else { None })
        })
        .into()
}

#[test]
fn close_readers_are_joined_into_one_queue() {
    let report = run("cfq", SPINDLE, halves(u64::MAX), Time::from_s(2));
    assert_eq!(report.values("join", "queue").len(), 1, "once");
    let queues = report.values("dispatch", "queue");
    let later = &queues[queues.len() / 2..];
    assert!(later.iter().all(|queue| *queue == later[0]), "one queue for both");
    // Every request is near, and no idling is useless.
    assert!(report.requests() > 1_900, "{}", report.requests());
}

/// 64 sectors per step for each of two processes, and 8 MiB between them: not close.
#[test]
fn readers_further_apart_are_not_joined() {
    let programs = [0, 16_384].map(|first| RigProcess::reading(sequential(first))).into();
    let report = run("cfq", SPINDLE, programs, Time::from_s(2));
    assert!(report.values("join", "queue").is_empty());
}

/// After two seconds together each goes to random offsets of its own.
#[test]
fn joined_readers_that_turn_seeky_are_split() {
    for spec in ["cfq,seeky=history", "cfq,seeky=mean"] {
        let programs = halves(u64::MAX).into_iter().enumerate().map(|(index, mut program)| {
            let mut random = random_records((index as u64 + 1) << 30, 1);
            let places =
                Box::new(
                    move |number| {
                        if number < 500 { (program.places)(number) } else { random(number) }
                    },
                );
            RigProcess { places, ..RigProcess::reading(|_| None) }
        });
        let report = run(spec, SPINDLE, programs.collect(), Time::from_s(20));
        assert_eq!(report.values("join", "queue").len(), 1, "{spec}");
        assert!(!report.values("split", "process").is_empty(), "{spec}");
        let queues = report.values("dispatch", "queue");
        let last: std::collections::BTreeSet<_> = queues[queues.len() - 20..].iter().collect();
        assert_eq!(last.len(), 2, "{spec}: a queue for each again");
    }
}

/// Both threads end while they are joined: the device does not idle for them.
#[test]
fn joined_readers_that_end_leave_the_device_to_others() {
    let mut programs = halves(300);
    programs.push(RigProcess::reading(sequential(1 << 33)));
    let report = run("cfq", SPINDLE, programs, Time::from_s(4));
    assert_eq!((report.programs[0].requests, report.programs[1].requests), (300, 300));
    let last_second = report.lines.iter().rev().take(2_000);
    assert!(
        last_second
            .filter(|line| line.contains("event=dispatch"))
            .all(|l| l.contains(" process=2 "))
    );
}

/// The device takes two at once. Process 2's last request is served after the process has ended,
/// and last of the queue that it shares: there is no reason to idle.
#[test]
fn ended_process_of_a_joined_queue_is_not_idled_for() {
    let events = "
at_ms=0 event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=0 event=arrive request=2 process=2 op=read start=8 sectors=8
at_ms=5 event=complete request=1
at_ms=6 event=arrive request=3 process=1 op=read start=16 sectors=8
at_ms=6 event=arrive request=4 process=2 op=read start=40 sectors=8
at_ms=6 event=end process=2
at_ms=7 event=complete request=2
at_ms=8 event=complete request=3
at_ms=9 event=complete request=4";
    let decided = decided("cfq", 2, events);
    assert_eq!(values(&decided, "dispatch", "queue"), ["0", "1", "1", "1"]);
    assert_eq!(values(&decided, "no_idle", "why"), ["requests_in_device", "process_ended"]);
    assert!(values(&decided, "idle_start", "why").is_empty(), "at 5 the other one is close");
}
