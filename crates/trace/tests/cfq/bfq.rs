//! The policy `bfq`: golden trajectories, worked by hand from its description, and the effect of
//! its tunables.

use readpath_core::request::Op;
use readpath_core::unit::Time;

use super::rig::*;

/// The dispatched requests with their times in ms, for a device of this depth.
fn dispatches(spec: &str, depth_max: u32, events: &str) -> Vec<(String, String)> {
    let lines = decided(spec, depth_max, events);
    let times = lines.iter().map(|line| line.split(' ').next().unwrap_or_default());
    let times = times.map(|word| word.trim_start_matches("at_ms=").to_owned());
    let requests = values(&lines, "dispatch", "request").into_iter().map(str::to_owned);
    times.zip(requests).collect()
}

/// Two sequential processes, and time to think. A disk; level 4, weight 40; largest budget 96,
/// first budget 64 sectors, smallest 3. Virtual times in sectors by weight:
///
/// - 0 ms: queue A starts at 0 and finishes at 64/40 = 1.6. It sends request 1; the virtual time is
///   8/40 = 0.2. Queue B starts there. It waits, since idling for A pays.
/// - 2: A is empty. The device is idle until 10.
/// - 2.2: request 3, of 16 sectors so far; the virtual time is 0.2 + 8/80 = 0.3. A was without a
///   request for 0.2 of 2.2 ms, less than a fifth. Idle from 3.2.
/// - 11.2: no request. A has used 16 of 64: it finishes at 16/40 = 0.4. Its budget becomes
///   64 − 4 × 3 = 52. B, which started at 0.2, sends request 2: 0.3 + 8/80 = 0.4.
/// - 12: A has a request, 8.8 ms after its last completion, which is less than 3 × 8. It continues
///   with the rest of its budget, and takes the place of B, which has no request queued.
/// - 19: B, which has lost its place with budget left, does the same after 0.5 ms.
/// - 32: B's request has completed, and its next one is probably near: idle until 40. A's request
///   of 38 waits, because it is not in time: the last one has completed at 13.
#[test]
fn golden_dispatches_of_two_thinking_processes() {
    let events = "
at_ms=0    event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=0    event=arrive request=2 process=2 op=read start=1000000 sectors=8
at_ms=2    event=complete request=1
at_ms=2.2  event=arrive request=3 process=1 op=read start=8 sectors=8
at_ms=3.2  event=complete request=3
at_ms=12   event=arrive request=4 process=1 op=read start=16 sectors=8
at_ms=13   event=complete request=4
at_ms=18.5 event=complete request=2
at_ms=19   event=arrive request=5 process=2 op=read start=1000008 sectors=8
at_ms=32   event=complete request=5
at_ms=38   event=arrive request=6 process=1 op=read start=24 sectors=8
at_ms=48   event=complete request=6
";
    let expected = [
        ("0.000000", "1"),
        ("2.200000", "3"),
        ("11.200000", "2"),
        ("12.000000", "4"),
        ("19.000000", "5"),
        ("40.000000", "6"),
    ];
    let dispatched = dispatches("bfq,low_latency=0,max_budget=96", 32, events);
    let dispatched: Vec<_> = dispatched.iter().map(|(at, id)| (&at[..], &id[..])).collect();
    assert_eq!(dispatched, expected);
}

/// Two processes with 24 requests each at once, A1 to A24 and B1 to B24, of 8 sectors; the device
/// takes one at a time, for 1 ms.
///
/// - A sends 8 requests, its budget of 64. Its next start is 64/40 = 1.6, with four times the
///   budget, but at most 96: finish 1.6 + 2.4 = 4. The virtual time is 0.2 + 7 × 8/80 = 0.9.
/// - B (0.2 to 1.8) sends 8: time 1.7. It goes on from 1.8 to 4.2.
/// - A has started (1.6 ≤ 1.7), and B has not: A sends 12, time 2.9. Next: 4 to 6.4.
/// - B sends 12: time 4.1. Next: 4.2 to 6.6, ahead of the time.
/// - A sends its last 4, the last one at 43 ms. It is done at 44, and the device is idle until 52.
/// - B sends its last 4.
#[test]
fn golden_budgets_of_two_processes_with_many_requests() {
    let mut events = String::new();
    for (process, first) in [(1, 100), (2, 200)] {
        for nth in 1..=24 {
            let start = first * 10_000 + nth * 16;
            events += &format!(
                "at_ms=0 event=arrive request={} process={process} op=read start={start} sectors=8\n",
                first + nth
            );
        }
    }
    let order: Vec<u32> = [101..109, 201..209, 109..121, 209..221, 121..125, 221..225]
        .into_iter()
        .flatten()
        .collect();
    let sent_ms = |nth: usize| if nth < 44 { nth } else { nth + 8 };
    for (nth, request) in order.iter().enumerate() {
        events += &format!("at_ms={} event=complete request={request}\n", sent_ms(nth) + 1);
    }
    let expected: Vec<_> = order
        .iter()
        .enumerate()
        .map(|(nth, request)| (format!("{}.000000", sent_ms(nth)), request.to_string()))
        .collect();
    assert_eq!(dispatches("bfq,low_latency=0,max_budget=96", 1, &events), expected);
}

/// Sequential readers, of which the second one has priority level `level`.
fn shares(spec: &str, level: u8) -> [u64; 2] {
    let readers = vec![
        RigProcess::reading(sequential(0)),
        RigProcess::reading(sequential(1 << 30)).of_level(level),
    ];
    let report = run(&format!("bfq,low_latency=0{spec}"), SPINDLE, readers, Time::from_s(20));
    [0, 1].map(|index| report.programs[index].requests)
}

/// Level 4 has weight 40, level 0 has 80, level 7 has 10.
#[test]
fn service_is_in_proportion_to_the_weights() {
    for (level, ratio) in [(4, 1.0), (0, 2.0), (7, 0.25)] {
        let [one, other] = shares(",max_budget=256", level);
        let measured = other as f64 / one as f64;
        assert!((0.9..1.1).contains(&(measured / ratio)), "level {level}: {one} and {other}");
    }
}

/// Requests of one process alone on a spindle with one far seek for each 32 near requests.
#[test]
fn throughput_follows_slice_idle_and_max_budget() {
    let requests = |spec: &str| shares(spec, 4).into_iter().sum::<u64>();
    let (idling, not_idling) = (requests(""), requests(",slice_idle=0"));
    assert!(idling > 3 * not_idling, "{idling} with idling, {not_idling} without");
    // A budget of 64 sectors is 8 requests of 1 ms for a seek of 8 ms.
    let small = requests(",max_budget=64");
    assert!(small * 10 < idling * 7, "{small} with a budget of 64 sectors, {idling} by default");
    // In 10 ms a process sends few requests between two seeks.
    let short = requests(",timeout_sync=10");
    assert!(short * 10 < idling * 8, "{short} with 10 ms, {idling} by default");
}

/// A process that keeps eight random reads in flight, on a device of eight spindles.
#[test]
fn strict_guarantees_keep_one_request_in_the_device() {
    let requests = |spec: &str| {
        let device = SpindleDevice { spindles: 8, ..SPINDLE };
        let reader = RigProcess { depth: 8, ..RigProcess::reading(random_records(0, 1)) };
        run(spec, device, vec![reader], Time::from_s(10)).requests()
    };
    let (free, strict) = (requests("bfq"), requests("bfq,strict_guarantees=1"));
    assert!(free > 3 * strict, "{free} with eight at a time, {strict} with one");
}

/// A process with one far request among near ones; asynchronous writes for the other tunable.
#[test]
fn late_requests_are_served_after_fifo_expire() {
    let wait_max = |spec: &str, is_sync: bool| {
        let far = |number| if number == 4 { 1 << 30 } else { number * 16 };
        let op = if is_sync { Op::Read } else { Op::Write };
        let places = move |number| Some(far(number));
        let program = RigProcess { depth: 8, op, is_sync, ..RigProcess::reading(places) };
        let other = RigProcess::reading(sequential(1 << 33));
        let spec = format!("bfq,low_latency=0,max_budget=64{spec}");
        let device = SpindleDevice { depth_max: 2, ..SPINDLE };
        run(&spec, device, vec![program, other], Time::from_s(10)).programs[0].wait_max
    };
    for (is_sync, spec) in [(true, ",fifo_expire_sync=5000"), (false, ",fifo_expire_async=5000")] {
        assert!(wait_max("", is_sync) < Time::from_s(1), "{}", wait_max("", is_sync));
        assert!(wait_max(spec, is_sync) >= Time::from_s(5), "{}", wait_max(spec, is_sync));
    }
}

/// The head is at 100,000 after the first request. 1,000 sectors behind count 2,000 by default.
#[test]
fn backward_seeks_follow_back_seek_penalty_and_back_seek_max() {
    let second = |spec: &str, starts: [u64; 2]| {
        let arrive = |request: usize, start: u64| {
            format!(
                "at_ms=0 event=arrive request={request} process=1 op=read start={start} sectors=8\n"
            )
        };
        let events = arrive(0, 100_000 - 8)
            + &arrive(1, starts[0])
            + &arrive(2, starts[1])
            + "at_ms=5 event=complete request=0\n";
        dispatches(spec, 1, &events)[1].1.clone()
    };
    assert_eq!(second("bfq", [99_000, 101_500]), "2");
    assert_eq!(second("bfq,back_seek_penalty=1", [99_000, 101_500]), "1");
    assert_eq!(second("bfq", [99_000, 1_000_000]), "1");
    assert_eq!(second("bfq,back_seek_max=499", [99_000, 1_000_000]), "2");
}

/// Eight sequential readers begin together, in a large burst; a ninth reads at random from 3 s on.
/// Returns its requests in 2 s.
fn requests_of_a_starting_program(spec: &str, burst: u64) -> u64 {
    let mut programs: Vec<RigProcess> =
        (0..8).map(|index| RigProcess::reading(sequential(index << 33))).collect();
    for number in 0..burst {
        let begins = Time::from_ms(3_000 + 20 * number);
        let places = random_records((20 + number) << 33, 1);
        programs.push(RigProcess { begins, ..RigProcess::reading(places) });
    }
    run(spec, SPINDLE, programs, Time::from_s(5)).programs[8].requests
}

/// A starting program has nearly the whole disk, 2 s by 8 ms, and some time of the others. Without
/// `low_latency`, or as one of eight that start together, it has its share.
#[test]
fn starting_program_is_raised_unless_many_start_together() {
    let alone = requests_of_a_starting_program("bfq", 1);
    assert!((170..=250).contains(&alone), "{alone}");
    let plain = requests_of_a_starting_program("bfq,low_latency=0", 1);
    assert!(plain * 5 < alone, "{plain}");
    let in_burst = requests_of_a_starting_program("bfq", 8);
    assert!(in_burst * 5 < alone, "{in_burst}");
}

/// A player reads 64 KiB at a time and pauses for 50 ms, below 1.3 MB/s. Eleven sequential readers,
/// a large burst, are next to it. It begins after them, and so is interactive at first, for some 10
/// s. Then it is soft real-time, since it reads less than 3.5 MB/s. With pauses of 10 ms it is not:
/// the next request must come more than 8 + 4 ms after a completion.
#[test]
fn soft_real_time_process_waits_little() {
    let wait_max = |think_ms| {
        let mut programs: Vec<RigProcess> =
            (0..11).map(|index| RigProcess::reading(sequential(index << 33))).collect();
        let player = RigProcess::reading(|number| Some((1 << 40) - (1 << 33) + number * 128));
        let (think, begins) = (Time::from_ms(think_ms), Time::from_s(1));
        programs.push(RigProcess { sectors: 128, think, begins, ..player });
        run("bfq", SPINDLE, programs, Time::from_s(30)).programs[11].wait_max
    };
    assert!(wait_max(50) < Time::from_ms(30), "{}", wait_max(50));
    assert!(wait_max(10) > Time::from_ms(100), "{}", wait_max(10));
}
