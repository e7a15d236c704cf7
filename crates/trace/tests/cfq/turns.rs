//! The end of slices, and its effects; each number worked by hand.

use readpath_core::request::Class;
use readpath_core::unit::Time;

use super::golden::assert_decides;
use super::rig::*;

fn lines(spec: &str, events: &str) -> Vec<String> {
    decided(spec, 32, events)
}

/// With one jiffy left of its slice the only queue is waited for: its slice is extended by the idle
/// time, and its next request begins a new one.
#[test]
fn only_queue_is_idled_for_at_the_end_of_its_slice() {
    assert_decides(
        "cfq,slice_sync=10",
        "
at_ms=0  event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=5  event=complete request=1
at_ms=6  event=arrive request=2 process=1 op=read start=8 sectors=16
at_ms=14 event=complete request=2
at_ms=16 event=arrive request=3 process=1 op=read start=24 sectors=16
",
        "
at_ms=0.000000 event=tree class=be kind=sync why=tree_empty queues=1 busy=1 average=0 until_ms=300
at_ms=0.000000 event=slice_begin queue=0 process=1 class=be level=4 kind=sync why=first_of_tree key_ms=-8 queued=1
at_ms=0.000000 event=dispatch request=1 queue=0 process=1 start=0 sectors=8 why=next_by_sector distance=0 in_device=1 limit=4
at_ms=5.000000 event=slice_set queue=0 slice_ms=10 end_ms=15 average=1
at_ms=5.000000 event=idle_start queue=0 until_ms=13 why=idle_window think_ms=0
at_ms=6.000000 event=idle_stop queue=0 why=arrival
at_ms=6.000000 event=dispatch request=2 queue=0 process=1 start=8 sectors=16 why=next_by_sector distance=0 in_device=1 limit=4
at_ms=14.000000 event=idle_start queue=0 until_ms=22 why=idle_window think_ms=0
at_ms=16.000000 event=idle_stop queue=0 why=arrival
at_ms=16.000000 event=slice_end queue=0 why=waited_busy left_ms=6 dispatched=2
at_ms=16.000000 event=slice_begin queue=0 process=1 class=be level=4 kind=sync why=first_of_tree key_ms=16 queued=1
at_ms=16.000000 event=dispatch request=3 queue=0 process=1 start=24 sectors=16 why=next_by_sector distance=0 in_device=1 limit=4
",
    );
}

/// The rest of a preempted slice lets the queue enter earlier. Its slice would have lasted to 105,
/// so at 6 there are 99 left, and its key is 7 + (1 − 1) × 80 − 99.
#[test]
fn rest_of_a_preempted_slice_is_credited_to_its_queue() {
    let decided = lines(
        "cfq",
        "
at_ms=0  event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=5  event=complete request=1
at_ms=6  event=arrive request=2 process=2 op=read start=90000 sectors=8 class=rt
at_ms=7  event=arrive request=3 process=1 op=read start=8 sectors=8
at_ms=15 event=complete request=2
at_ms=23 event=wait",
    );
    assert_eq!(values(&decided, "slice_end", "left_ms"), ["99", "92"]);
    assert_eq!(values(&decided, "slice_begin", "key_ms"), ["-80", "-994", "-92"]);
}

/// Each queue of the idle class sends one request and its slice is over, so that one of each is in
/// the device.
#[test]
fn idle_class_slices_are_one_request_long() {
    let decided = lines(
        "cfq",
        "
at_ms=0  event=arrive request=0 process=9 op=read start=0 sectors=8
at_ms=5  event=complete request=0
at_ms=6  event=arrive request=1 process=1 op=read start=100000 sectors=8 class=idle
at_ms=6  event=arrive request=2 process=1 op=read start=110000 sectors=8 class=idle
at_ms=6  event=arrive request=3 process=2 op=read start=120000 sectors=8 class=idle
at_ms=6  event=arrive request=4 process=2 op=read start=130000 sectors=8 class=idle
at_ms=13 event=wait",
    );
    assert_eq!(values(&decided, "dispatch", "request"), ["0", "1", "3"]);
    // The first key is 6 + 200, and each of the others 200 behind the last one.
    assert_eq!(values(&decided, "slice_begin", "key_ms"), ["-80", "206", "406", "606"]);
}

/// Twelve far requests that wait at once make a queue seeky, and deep: it keeps its idle window.
/// After useless idling it is not deep any more.
#[test]
fn deep_queue_keeps_its_idle_window_until_idling_is_useless() {
    // They wait while another process is idled for, until 13.
    let mut events = String::from(
        "at_ms=0 event=arrive request=99 process=9 op=read start=0 sectors=8
         at_ms=5 event=complete request=99\n",
    );
    for request in 0..12 {
        let start = (request + 1) * 1_000_000;
        events += &format!(
            "at_ms=6 event=arrive request={request} process=1 op=read start={start} sectors=8\n"
        );
    }
    for request in 0..12 {
        events += &format!("at_ms={} event=complete request={request}\n", 13 + 8 * (request + 1));
    }
    let windows = |ms| -> Vec<String> {
        let next =
            format!("at_ms={ms} event=arrive request=20 process=1 op=read start=0 sectors=8");
        let decided = lines("cfq", &[&*events, &*next].concat());
        values(&decided, "window", "why").into_iter().map(str::to_owned).collect()
    };
    // Idled for from 109 until 117.
    assert!(windows(116).is_empty());
    assert_eq!(windows(118), ["seeky"]);
}

/// The device idles for a process with 6 ms of think time, but not in the last 6 ms of its slice.
#[test]
fn idling_stops_when_the_slice_ends_before_the_next_request() {
    let thinker = RigProcess { think: Time::from_ms(6), ..RigProcess::reading(sequential(0)) };
    let other = RigProcess::reading(sequential(1 << 30));
    let report = run("cfq", SPINDLE, vec![thinker, other], Time::from_s(4));
    let why = report.values("no_idle", "why");
    assert!(why.contains(&"slice_ends_before_it_thinks"));
    let think: Vec<_> = report.values("no_idle", "think_ms");
    assert!(think.iter().all(|think| *think == "6"), "{think:?}");
}

/// The device does not idle for a process that ends: the next one starts at once.
#[test]
fn ended_process_gives_up_its_slice_at_once() {
    let events = "
at_ms=0 event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=5 event=complete request=1
at_ms=6 event=arrive request=2 process=2 op=read start=90000 sectors=8";
    assert_eq!(values(&lines("cfq", events), "dispatch", "request"), ["1"]);
    let ended = [events, "\nat_ms=7 event=end process=1"].concat();
    assert_eq!(values(&lines("cfq", &ended), "dispatch", "request"), ["1", "2"]);
    // During a request: the device does not idle afterwards either.
    let in_device = "
at_ms=0 event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=1 event=end process=1
at_ms=1 event=arrive request=2 process=2 op=read start=90000 sectors=8";
    assert_eq!(values(&lines("cfq", in_device), "dispatch", "request"), ["1", "2"]);
}

/// A process that becomes real-time moves to the front with its next request. One that becomes idle
/// moves to the end, with all requests in its queue.
#[test]
fn a_queue_follows_the_priority_of_its_process() {
    let order = |class| {
        let events = format!(
            "
at_ms=0  event=arrive request=0 process=9 op=read start=0 sectors=8
at_ms=5  event=complete request=0
at_ms=6  event=arrive request=1 process=1 op=read start=100000 sectors=8
at_ms=6  event=arrive request=2 process=2 op=read start=200000 sectors=8
at_ms=6  event=arrive request=3 process=2 op=read start=300000 sectors=8 class={class}
at_ms=13 event=wait"
        );
        let decided = lines("cfq", &events);
        values(&decided, "dispatch", "request")[1].to_owned()
    };
    assert_eq!(order("be"), "1");
    assert_eq!(order("rt"), "2");
}

/// Once per slice the oldest request goes first, if it has waited too long. Then the order of
/// sectors applies again, from there: both others are too far behind, so the lower one is next.
#[test]
fn expired_oldest_request_is_served_once_per_slice() {
    let events = "
at_ms=0  event=arrive request=0 process=9 op=read start=0 sectors=8
at_ms=5  event=complete request=0
at_ms=6  event=arrive request=1 process=1 op=read start=900000 sectors=8
at_ms=6  event=arrive request=2 process=1 op=read start=500000 sectors=8
at_ms=6  event=arrive request=3 process=1 op=read start=100000 sectors=8
at_ms=13 event=wait";
    let order = |spec| {
        let decided = lines(spec, events);
        values(&decided, "dispatch", "request").join(" ")
    };
    assert_eq!(order("cfq,fifo_expire_sync=7"), "0 1 3 2");
    assert_eq!(order("cfq,fifo_expire_sync=8"), "0 3 2 1");
}

/// Alone on the device, the idle class still ends its slice after each request.
#[test]
fn the_idle_class_ends_its_slice_after_each_request() {
    let reader = RigProcess::reading(sequential(0)).of_class(Class::Idle, 4);
    let report = run("cfq", SPINDLE, vec![reader], Time::from_s(1));
    assert!(report.requests() > 900);
    assert!(report.values("slice_end", "dispatched").iter().all(|count| *count == "1"));
}

/// Slice until 15, idled for from 12 until 20: a page that arrives at 17 still belongs to this
/// slice, more than a page begins a new one.
#[test]
fn page_awaited_by_idling_may_arrive_after_the_slice_end() {
    let turns_ended = |sectors| {
        let events = format!(
            "
at_ms=0  event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=5  event=complete request=1
at_ms=6  event=arrive request=2 process=1 op=read start=8 sectors=8
at_ms=12 event=complete request=2
at_ms=17 event=arrive request=3 process=1 op=read start=16 sectors={sectors}"
        );
        let decided = lines("cfq,slice_sync=10", &events);
        assert_eq!(values(&decided, "dispatch", "request"), ["1", "2", "3"]);
        values(&decided, "slice_end", "why").len()
    };
    assert_eq!(turns_ended(8), 0);
    assert_eq!(turns_ended(9), 1);
}

/// The share of the tree ends when no request waits: the next request begins a new one.
#[test]
fn a_pause_ends_the_share_of_the_tree() {
    let events = "
at_ms=0  event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=5  event=complete request=1
at_ms=20 event=arrive request=2 process=1 op=read start=8 sectors=8";
    assert_eq!(values(&lines("cfq", events), "tree", "until_ms"), ["300", "320"]);
}

/// Share of the time for random readers concurrent with sequential ones, in percent, and the
/// longest wait of a sequential one.
fn random_percent_of_time(sequentials: usize, randoms: usize) -> (u64, Time) {
    let sequential = (0..sequentials as u64).map(|it| RigProcess::reading(sequential(it << 32)));
    let random =
        (0..randoms as u64).map(|it| RigProcess::reading(random_records((100 + it) << 32, 1)));
    let report = run("cfq", SPINDLE, sequential.chain(random).collect(), Time::from_s(20));
    let (sequential, random) = report.programs.split_at(sequentials);
    let requests: u64 = random.iter().map(|outcome| outcome.requests).sum();
    let wait_max = sequential.iter().map(|outcome| outcome.wait_max).max();
    // 8 ms each, of 20 s.
    (requests * 8 * 100 / 20_000, wait_max.unwrap())
}

/// Sequential readers in one tree, a random one in another: the trees share the time in proportion
/// to their queues.
#[test]
fn trees_share_the_time_by_their_queues() {
    for (sequentials, expected) in [(1, 50), (2, 33), (3, 25)] {
        let (percent, _) = random_percent_of_time(sequentials, 1);
        assert!(percent.abs_diff(expected) <= 2, "{sequentials} sequential: {percent} %");
    }
}

/// Several random readers preempt each other's idling at the end of their tree
/// (`noidle_tree_has_work`), each put in front by a second. Their tree repeatedly has the lowest
/// key, and keeps the device about a second longer than its share. This is a property of the
/// original policy.
#[test]
fn several_random_readers_get_more_than_their_share() {
    for (sequentials, randoms, fair) in [(2, 2, 50), (4, 4, 50), (12, 4, 25)] {
        let (percent, wait_max) = random_percent_of_time(sequentials, randoms);
        assert!(percent > fair + 20, "{sequentials} sequential: {percent} %");
        // The second, the shares of both trees, and at most two slices of each reader.
        let bound = Time::from_ms(1_000 + 600 + 200 * sequentials as u64);
        assert!(wait_max <= bound, "{sequentials} sequential: {wait_max}");
    }
}

/// A queue that enters the trees does not count itself, so that the first is put *before* its time:
/// −1 × 8, with levels 0 and 4 8 ms apart. One that stays there counts. At 16 the slice that ended
/// at 15 has overrun by 1, so its key is 16 + (2 − 1) × 8 + 1.
#[test]
fn a_queue_counts_itself_only_while_it_is_in_the_trees() {
    let events = "
at_ms=0  event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=0  event=arrive request=2 process=1 op=read start=100000 sectors=8
at_ms=1  event=arrive request=3 process=2 op=read start=900000 sectors=8
at_ms=5  event=complete request=1
at_ms=6  event=arrive request=4 process=1 op=read start=200000 sectors=8
at_ms=16 event=complete request=2
at_ms=20 event=complete request=3
at_ms=28 event=wait";
    let decided = decided("cfq,slice_sync=10", 1, events);
    assert_eq!(values(&decided, "dispatch", "request"), ["1", "2", "3", "4"]);
    assert_eq!(values(&decided, "slice_begin", "key_ms"), ["-8", "1", "25"]);
}

/// The only busy queue is idled for from 5 until 13, and its next request arrives at 6.
const DEMAND: &str = "
at_ms=0  event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=5  event=complete request=1
at_ms=6  event=arrive request=2 process=1 op=read start=8 sectors=";

/// A page does not stop the timer. It fires while the page is in the device, finds the queue empty,
/// and ends the slice, with 105 − 13 left. More than a page cancels it.
#[test]
fn a_page_for_the_only_busy_queue_cancels_no_idle_timer() {
    let decided =
        |sectors| lines("cfq", &format!("{DEMAND}{sectors}\nat_ms=20 event=complete request=2"));
    let page = decided(8);
    assert_eq!(values(&page, "dispatch", "at_ms"), ["0.000000", "6.000000"]);
    assert_eq!(values(&page, "idle_stop", "at_ms"), ["13.000000"]);
    assert_eq!(values(&page, "slice_end", "why"), ["idled_in_vain"]);
    assert_eq!(values(&page, "slice_end", "left_ms"), ["92"]);
    let larger = decided(9);
    assert_eq!(values(&larger, "idle_stop", "at_ms"), ["6.000000"]);
    assert_eq!(values(&larger, "idle_start", "until_ms"), ["13", "28"]);
    assert!(values(&larger, "slice_end", "why").is_empty());
}

/// If the page is served before the timer fires, the timer is set again.
#[test]
fn a_running_idle_timer_is_reset_by_the_next_idling() {
    let decided =
        lines("cfq", &format!("{DEMAND}8\nat_ms=10 event=complete request=2\nat_ms=20 event=wait"));
    assert_eq!(values(&decided, "idle_start", "until_ms"), ["13", "18"]);
    assert_eq!(values(&decided, "idle_stop", "at_ms"), ["18.000000"]);
}

/// While the timer runs, the device counts as idling for the queue: a near request preempts it.
#[test]
fn a_near_request_preempts_while_the_timer_runs_with_a_page() {
    let near = |sectors| {
        let events = format!(
            "{DEMAND}{sectors}
at_ms=7  event=arrive request=3 process=2 op=read start=100 sectors=8"
        );
        values(&lines("cfq", &events), "preempt", "why").join(" ")
    };
    assert_eq!(near(8), "close_to_head");
    assert_eq!(near(9), "");
}

/// Asynchronous writes also count as samples of the think time: 25, 26 and 27 ms, each cut at 16,
/// weigh 0 + 512, 960 and 1,352 over 105; (1,352 + 128) / 105 = 14 > 8. The reads alone would be
/// two samples, too few for a decision.
#[test]
fn asynchronous_requests_count_for_the_think_time_of_their_process() {
    let events = "
at_ms=0  event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=5  event=complete request=1
at_ms=30 event=arrive request=2 process=1 op=write start=1000 sectors=8
at_ms=31 event=arrive request=3 process=1 op=write start=2000 sectors=8
at_ms=32 event=arrive request=4 process=1 op=read start=8 sectors=8";
    let decided = lines("cfq", events);
    assert_eq!(values(&decided, "window", "why"), ["thinks_too_long"]);
    assert_eq!(values(&decided, "window", "think_ms"), ["14"]);
}

/// The only busy queue whose slice is used up is waited for although it has requests, which ends
/// its slice at once. The overrun of 1 ms is ignored, so its key is 16 + (1 − 1) × 8.
#[test]
fn only_queue_is_idled_for_even_with_waiting_requests() {
    let events = "
at_ms=0  event=arrive request=1 process=1 op=read start=0 sectors=8
at_ms=0  event=arrive request=2 process=1 op=read start=100000 sectors=8
at_ms=0  event=arrive request=3 process=1 op=read start=200000 sectors=8
at_ms=5  event=complete request=1
at_ms=16 event=complete request=2";
    let decided = decided("cfq,slice_sync=10", 1, events);
    assert_eq!(values(&decided, "slice_end", "why"), ["waited_busy"]);
    assert_eq!(values(&decided, "slice_end", "left_ms"), ["8"]);
    assert_eq!(values(&decided, "slice_begin", "key_ms"), ["-8", "16"]);
}
