//! Classes and levels: each test fails if the class, or the level, is ignored.

use readpath_core::request::Class;
use readpath_core::unit::Time;

use super::rig::*;

fn reader(index: u64, class: Class, level: u8) -> RigProcess {
    RigProcess::reading(sequential(index << 24)).of_class(class, level)
}

/// Requests of each program within ten seconds on one spindle.
fn requests(programs: Vec<RigProcess>) -> Vec<u64> {
    let report = run("cfq", SPINDLE, programs, Time::from_s(10));
    report.programs.iter().map(|outcome| outcome.requests).collect()
}

#[test]
fn the_idle_class_starves_next_to_a_busy_reader() {
    let got = requests(vec![reader(0, Class::BestEffort, 4), reader(1, Class::Idle, 4)]);
    assert!(got[1] * 100 < got[0], "{got:?}");
    let equal = requests(vec![reader(0, Class::BestEffort, 4), reader(1, Class::BestEffort, 4)]);
    assert!(equal[1] * 10 > equal[0] * 8, "{equal:?}: shared when both are best-effort");
}

/// A best-effort reader that needs the disk for 8 of each 48 ms. The idle class gets the rest, one
/// request at a time, and the reader hardly loses.
#[test]
fn idle_class_gets_the_remaining_device_time() {
    let slow = || RigProcess { think: Time::from_ms(40), ..reader(0, Class::BestEffort, 4) };
    let alone = requests(vec![slow()])[0];
    let got = requests(vec![slow(), reader(1, Class::Idle, 4)]);
    assert!(got[0] * 100 >= alone * 75, "{got:?}, {alone} alone");
    // At 1 ms per request in 10 s, 8 + 8 of each 50 ms are lost to seeks in both directions.
    assert!(got[1] >= 5_000, "{got:?}");
}

/// The idle class never has more than one request in the device.
#[test]
fn idle_class_has_one_request_in_flight() {
    let many = |class| {
        let random = RigProcess::reading(random_records(0, 1)).of_class(class, 4);
        RigProcess { depth: 8, ..random }
    };
    let deepest = |class| {
        let report = run("cfq", SPINDLE, vec![many(class)], Time::from_s(1));
        report.largest("dispatch", "in_device")
    };
    assert_eq!(deepest(Class::Idle), 1);
    assert!(deepest(Class::BestEffort) > 1);
}

#[test]
fn real_time_class_is_served_first() {
    let got = requests(vec![
        reader(0, Class::BestEffort, 0),
        reader(1, Class::RealTime, 7),
        reader(2, Class::BestEffort, 0),
    ]);
    assert!(got[1] > 9_000, "one request a millisecond: {got:?}");
    assert!(got[0] + got[2] < 200, "{got:?}");
}

/// A real-time request preempts: it waits for the requests in the device (at most `quantum`
/// requests of 8 ms), and for no slice.
#[test]
fn a_real_time_request_waits_for_no_slice() {
    let wait_max = |class| {
        let urgent = RigProcess { think: Time::from_ms(100), ..reader(9, class, 4) };
        let others = (0..4).map(|index| reader(index, Class::BestEffort, 4));
        let programs = std::iter::once(urgent).chain(others).collect();
        run("cfq", SPINDLE, programs, Time::from_s(10)).programs[0].wait_max
    };
    assert!(wait_max(Class::RealTime) <= Time::from_ms(8 * 8), "{}", wait_max(Class::RealTime));
    assert!(wait_max(Class::BestEffort) > Time::from_ms(100), "{}", wait_max(Class::BestEffort));
}

/// Slices of 180 and 40 ms, without `low_latency` and with it.
#[test]
fn levels_share_the_time_by_their_slices() {
    for spec in ["cfq", "cfq,low_latency=0"] {
        let programs = vec![reader(0, Class::BestEffort, 0), reader(1, Class::BestEffort, 7)];
        let report = run(spec, SPINDLE, programs, Time::from_s(20));
        let [high, low] = [0, 1].map(|index| report.programs[index].requests);
        // The first request of a slice, 8 ms, is added to it, and the seek is lost: (180 + 1) : (40
        // + 1) = 4.4.
        assert!((400..=490).contains(&(100 * high / low)), "{spec}: {high} to {low}");
    }
}
