//! Effects of the parameters in DiskSim's files, as its manual and source define them. The tests
//! compare service times of a tiny drive with values worked out by hand.
//!
//! A revolution takes 10 ms, a sector 0.625 ms, and its transfer over the bus 0.1 ms.

use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::Time;

use super::Hdd;
use super::file_tests::load_with;
use crate::Device;

const READ: Op = Op::Read;
const WRITE: Op = Op::Write;

/// Operation, start sector, number of sectors, and delay in ms after the last completion.
type TestRequest = (Op, u64, u32, u64);

/// Returns the service times in ms of `requests` on the tiny drive with `changes` in its
/// `.diskspecs`. A change is a text and its replacement.
fn service_times(changes: &[(&str, &str)], requests: &[TestRequest]) -> Vec<f64> {
    let changes: Vec<_> = changes.iter().map(|(from, to)| ("tiny.diskspecs", *from, *to)).collect();
    service_times_of(&changes, requests)
}

/// Returns the service times like `service_times`, with changes in any of the drive's files. A
/// change is a file, a text in it, and its replacement.
fn service_times_of(changes: &[(&str, &str, &str)], requests: &[TestRequest]) -> Vec<f64> {
    let mut hdd = Hdd::new(&load_with(changes).expect("a good file"), 1);
    let mut now = Time(0);
    let mut times_ms = Vec::new();
    for (id, (op, start, sectors, gap_ms)) in requests.iter().copied().enumerate() {
        now += Time::from_ms(gap_ms);
        hdd.submit(now, DeviceRequest { id: RequestId(id as u32), op, start, sectors });
        let done = loop {
            let event_time = hdd.next_event().expect("a request is in flight");
            if let Some(completion) = hdd.poll(event_time) {
                break completion.at;
            }
        };
        times_ms.push((done - now).ns() as f64 / 1e6);
        now = done;
    }
    times_ms
}

/// Returns the service time in ms of the last request.
fn last_ms(changes: &[(&str, &str)], requests: &[TestRequest]) -> f64 {
    *service_times(changes, requests).last().expect("a request")
}

/// Asserts that two times in ms are equal, except for rounding.
fn assert_ms(value: f64, expected: f64) {
    assert!((value - expected).abs() < 2e-5, "{value} ms is not {expected} ms");
}

/// One read that misses the cache.
const MISS: [TestRequest; 1] = [(READ, 100, 8, 5)];

#[test]
fn read_water_mark_sets_when_the_bus_is_requested() {
    // Service time in ms with a water mark of this part of the request.
    let by_part =
        |part: &str| last_ms(&[("water mark = 0.0", &format!("water mark = {part}"))], &MISS);
    // Without a water mark, all sectors but the last have been sent when the last arrives. With a
    // mark of 4, the last four remain.
    assert_ms(by_part("0.5") - by_part("0.0"), 0.3);
    // The bus is requested when all 8 sectors have arrived.
    assert_ms(by_part("1.0") - by_part("0.0"), 0.7);
    // Service time in ms with a water mark of this part of a segment, which has 64 sectors.
    let by_segment = |part: &str| {
        let part = format!("by reqsize = 0, High (read) water mark = {part}");
        last_ms(&[("by reqsize = 1, High (read) water mark = 0.0", &part)], &MISS)
    };
    // Marks of 4 and of 64 sectors: the second is reached only at the end of the request.
    assert_ms(by_segment("0.0625") - by_part("0.0"), 0.3);
    assert_ms(by_segment("1.0") - by_part("0.0"), 0.7);
}

#[test]
fn read_faster_than_the_medium_holds_the_bus_or_reselects_it() {
    let reselect = "First reselect overhead = 0.2, Other reselect overhead = 0.3";
    // Service time in ms of a read of two sectors, with `more` fields in the drive's file.
    let with = |more: &str| {
        let changes = [
            ("First reselect overhead = 0.0", reselect),
            ("Max queue", &format!("{more}Max queue")),
        ];
        last_ms(&changes, &[(READ, 100, 2, 5)])
    };
    let held_ms = with("Hold bus entire read xfer = 1, ");
    // The first sector is sent after 0.2 ms, and the bus is released 0.2 ms later. The second
    // sector arrives 0.225 ms after that, and the bus is regained another 0.3 ms later. A held bus
    // saves these 0.3 ms.
    assert_ms(with("Hold bus entire read xfer = 0, ") - held_ms, 0.3);
    // The host has the first sector 0.325 ms before the second arrives. The release of the bus
    // takes 0.075 ms longer than that.
    let slow_release = "Hold bus entire read xfer = 0, Read disconnect afterread = 0.4, \
                        Read disconnect afterwrite = 0.4, ";
    assert_ms(with(slow_release) - held_ms, 0.075 + 0.3);
    let never_released_ms = with("Never disconnect = 1, ");
    assert_ms(never_released_ms - held_ms, 0.0);
}

#[test]
fn write_through_reselects_the_bus_to_report_completion() {
    let through = ("Fast write level = 2", "Fast write level = 0");
    let write = [(WRITE, 100, 1, 5)];
    let plain_ms = last_ms(&[through], &write);
    let reselect = ("First reselect overhead = 0.0", "First reselect overhead = 0.2");
    assert_ms(last_ms(&[through, reselect], &write) - plain_ms, 0.2);
    // 0.7 ms overhead after a read, one sector over the bus, and 20 ms to release the bus. This
    // exceeds any seek with a revolution.
    let slow_release = ("Max queue", "Write disconnect overhead = 20.0, Max queue");
    assert_ms(last_ms(&[through, slow_release], &write), 0.7 + 0.1 + 20.0);
    // With a seek of at least 30 ms, the sector is written a whole number of revolutions later.
    let delay = ("Minimum seek delay = 0.0", "Minimum seek delay = 30.0");
    let delayed_ms = last_ms(&[through, delay], &write);
    let revolutions = (delayed_ms - plain_ms) / 10.0;
    let is_whole = (revolutions - revolutions.round()).abs() < 1e-4;
    assert!(delayed_ms > 0.7 + 30.0 + 0.625 && is_whole, "{delayed_ms} {plain_ms}");
}

#[test]
fn a_bus_slower_than_the_medium_makes_a_write_wait_for_its_data() {
    let through = ("Fast write level = 2", "Fast write level = 0");
    let slow = ("transfer time = 0.1", "transfer time = 5.0");
    // The transfer of 8 sectors takes 40 ms. The last sector is written after its arrival.
    let ms = last_ms(&[through, slow], &[(WRITE, 0, 8, 5)]);
    assert!((0.7 + 40.0 + 0.625..0.7 + 40.0 + 0.625 + 10.01).contains(&ms), "{ms}");
}

#[test]
fn cached_writes_reach_the_medium_before_all_but_their_continuations() {
    let default_level = "Fast write level = 2";
    for level in ["Fast write level = 1", default_level] {
        let level = (default_level, level);
        // After a read 0.5 ms and one sector over the bus, after a write 0.6 ms.
        let writes = [(WRITE, 100, 1, 5), (WRITE, 101, 1, 0), (WRITE, 20, 1, 0)];
        let ms = service_times(&[level], &writes);
        assert_ms(ms[0], 0.6);
        assert_ms(ms[1], 0.7);
        // Sectors 100 and 101 go to the medium before the write of sector 20 is served.
        assert!(ms[2] > 1.0, "{ms:?}");
        let no_joining = ("Max queue", "Combine seq writes = 0, Max queue");
        let ms = service_times(&[level, no_joining], &[(WRITE, 100, 1, 5), (WRITE, 101, 1, 0)]);
        assert!(ms[1] > 0.8, "{ms:?}");
    }
    // Level 0 completes a write only when it is on the medium.
    let through = (default_level, "Fast write level = 0");
    assert!(last_ms(&[through], &[(WRITE, 100, 1, 5)]) > 0.8 + 0.625);
}

#[test]
fn read_ahead_follows_the_bounds_of_the_drive_file() {
    // True if a read of `sector` hits the cache, 100 ms after a read of the sectors 0 to 7.
    let hit_after = |changes: &[(&str, &str)], sector: u64| {
        let ms = last_ms(changes, &[(READ, 0, 8, 5), (READ, sector, 1, 100)]);
        // A hit after a read takes 0.1 ms and one sector over the bus.
        (ms - 0.2).abs() < 2e-5
    };
    let maximum = "Maximum read-ahead (blks) = 64";
    let max_0 = (maximum, "Maximum read-ahead (blks) = 0");
    let max_8 = (maximum, "Maximum read-ahead (blks) = 8");
    assert!(hit_after(&[max_0], 60), "a maximum of 0 means the size of the segment");
    assert!(hit_after(&[max_8], 15) && !hit_after(&[max_8], 16));
    let min_20 = [max_8, ("Minimum read-ahead (blks) = 0", "Minimum read-ahead (blks) = 20")];
    assert!(
        hit_after(&min_20, 27) && !hit_after(&min_20, 28),
        "a minimum above the maximum replaces it"
    );
    // The requested sectors stay in the segment, which ends after 64 sectors.
    let kept = [max_0, ("over requested = 1", "over requested = 0")];
    assert!(
        hit_after(&kept, 63) && !hit_after(&kept, 64),
        "read-ahead does not overwrite requested sectors"
    );
    // The requested sectors 0 to 7 are released after the read.
    let dropped = [max_8, ("over requested = 1", "over requested = -1")];
    assert!(hit_after(&[max_8], 7) && !hit_after(&dropped, 7) && hit_after(&dropped, 8));
    // Levels of read-ahead: none, to the end of the track (16 sectors) or the cylinder (32).
    let none = [("continuous read = 3", "continuous read = 0")];
    assert!(hit_after(&none, 7) && !hit_after(&none, 8));
    let track = [("continuous read = 3", "continuous read = 1")];
    assert!(hit_after(&track, 15) && !hit_after(&track, 16));
    let cylinder = [("continuous read = 3", "continuous read = 2")];
    assert!(hit_after(&cylinder, 31) && !hit_after(&cylinder, 32));
    let off = [("caching in buffer = 1", "caching in buffer = 0")];
    assert!(!hit_after(&off, 7));
}

#[test]
fn read_ahead_to_the_track_end_skips_bad_sectors() {
    // True if a read of `sector` hits the cache after a read of `first_sectors` sectors.
    let hit_after = |level: &str, slip: &str, (first_start, first_sectors), sector: u64| {
        let changes = [
            ("tiny.diskspecs", "continuous read = 3", level),
            ("tiny.model", "scheme used = 0", "scheme used = 9"),
            ("tiny.model", "spares = 0", "spares = 1"),
            ("tiny.model", "slips = [ ]", slip),
        ];
        let requests = [(READ, first_start, first_sectors, 5), (READ, sector, 1, 100)];
        let ms = service_times_of(&changes, &requests)[1];
        (ms - 0.2).abs() < 2e-5
    };
    // The fifth sector of the first track is defective, so the track has the numbers 0 to 14.
    let to_end = |sector| hit_after("continuous read = 1", "slips = [ 4 ]", (0, 2), sector);
    assert!(to_end(14) && !to_end(15));
    // A read that comes from the previous track continues over the next one by a whole track's 16
    // sectors. The track of 32 to 46 has a defective sector, so the next track's first is read.
    let stream = |sector| hit_after("continuous read = 4", "slips = [ 36 ]", (12, 6), sector);
    assert!(stream(47) && !stream(48));
}

#[test]
fn arriving_command_stops_read_ahead_after_the_current_sector() {
    let busy = ("Read miss over. after read = 0.3", "Read miss over. after read = 20.0");
    // True if the third read, which reads `sector` 100 ms after the second, hits the cache.
    let is_hit = |changes: &[(&str, &str)], sector: u64| {
        let reads = [(READ, 0, 8, 5), (READ, 200, 1, 1), (READ, sector, 1, 100)];
        let ms = service_times(changes, &reads);
        (ms[2] - 0.2).abs() < 2e-5
    };
    // One more complete sector arrives in the 1 ms after the first read and the 0.1 ms before it.
    // The 20 ms overhead of the second read adds none.
    assert!(is_hit(&[busy], 8) && !is_hit(&[busy], 9));
    // The second read arrives 0.1 ms after sector 7 has passed, at 8 of 16 sectors of the track.
    // The rest of sector 8 takes 0.525 ms, the overhead 0.3 ms, and the seek over six cylinders
    // 1.625 ms. The head then arrives at 12.08 sectors, and the requested sector 206 at 12 has just
    // passed. A head that leaves in the middle of a sector arrives at 11.24.
    let reads = [(READ, 0, 8, 5), (READ, 206, 1, 0)];
    let second_ms = |changes: &[(&str, &str)]| last_ms(changes, &reads);
    let moved_ms = 0.3 + 1.625;
    assert_ms(second_ms(&[]), moved_ms + 0.525 + 15.92 * 0.625 + 0.625 + 0.1);
    let leaves = ("Max queue", "Stop prefetch in sector = 1, Max queue");
    assert_ms(second_ms(&[leaves]), moved_ms + 0.76 * 0.625 + 0.625 + 0.1);
}

#[test]
fn writes_share_a_segment_while_the_previous_one_is_being_written() {
    let written_is_read = ("Max queue", "Allow read hits on write data = 1, Max queue");
    // Service time in ms of a read of sector 110, which was read ahead before three writes.
    let read_after = |gap_ms| {
        let writes = [(WRITE, 0, 8, 100), (WRITE, 8, 8, gap_ms), (WRITE, 16, 8, gap_ms)];
        let [first, second, third] = writes;
        let requests = [(READ, 100, 1, 5), first, second, third, (READ, 110, 1, 100)];
        last_ms(&[written_is_read], &requests)
    };
    // Three writes in close succession use one of three segments, and the read's segment remains.
    // Three writes that each arrive when the previous one is on the medium use all segments.
    assert_ms(read_after(0), 0.2 + 0.1);
    assert!(read_after(100) > 1.0);
}

#[test]
fn cached_start_of_a_read_is_sent_at_once_or_at_the_water_mark() {
    let slow = ("transfer time = 0.1", "transfer time = 20.0");
    let bounded = ("Maximum read-ahead (blks) = 64", "Maximum read-ahead (blks) = 2");
    let reads = [(READ, 0, 8, 5), (READ, 8, 4, 100)];
    // Two of four sectors are cached: 0.1 ms as for a hit, then the bus is the bottleneck.
    assert_ms(last_ms(&[slow, bounded], &reads), 0.1 + 4.0 * 20.0);
    // The mark of three sectors delays the transfer: 0.3 ms, the overhead of a miss, and more.
    let marked = ("water mark = 0.0", "water mark = 0.75, Immed transfer partial hit = 0");
    let at_mark_ms = last_ms(&[slow, bounded, marked], &reads);
    assert!(at_mark_ms > 0.3 + 4.0 * 20.0, "{at_mark_ms}");
}

#[test]
fn write_after_a_write_disconnects_before_its_data() {
    let extra = [
        ("Fast write level = 2", "Fast write level = 0, Extra write disconnect = 1"),
        ("inter-disconnect delay = 0.0", "inter-disconnect delay = 25.0"),
    ];
    // Only the second write follows a write that it does not continue.
    let ms = service_times(&extra, &[(WRITE, 100, 1, 5), (WRITE, 20, 1, 5), (WRITE, 21, 1, 5)]);
    assert!(ms[0] < 25.0 && ms[1] > 25.1 && ms[2] < 25.0, "{ms:?}");
}

#[test]
fn overheads_are_added_up_and_scaled() {
    let scaled = [
        ("overhead time = 0.0", "overhead time = 1.0"),
        ("for overheads = 1.0", "for overheads = 2.0"),
        ("Data preparation overhead = 0.0", "Data preparation overhead = 0.25"),
        ("Read completion overhead = 0.0", "Read completion overhead = 0.05"),
    ];
    // The second read hits the cache: 0.1 ms and its two sectors over the bus.
    let ms = last_ms(&scaled, &[(READ, 0, 8, 5), (READ, 10, 2, 100)]);
    assert_ms(ms, 2.0 * (1.0 + 0.1 + 0.25 + 0.05) + 0.2);
}

#[test]
fn preseeking_level_decides_whether_the_arm_waits_for_the_host() {
    // Time in ms between the completions of two reads at once. A sector takes 50 ms on the bus.
    let gap_ms = |level: &str| {
        let level = format!("Preseeking level = {level}, Max queue");
        let slow = ("transfer time = 0.1", "transfer time = 50.0");
        let changes = [("tiny.diskspecs", slow.0, slow.1), ("tiny.diskspecs", "Max queue", &level)];
        let mut hdd = Hdd::new(&load_with(&changes).expect("a good file"), 1);
        for (id, start) in [(0, 0), (1, 200)] {
            let (id, op) = (RequestId(id), READ);
            hdd.submit(Time(0), DeviceRequest { id, op, start, sectors: 1 });
        }
        let mut done = Vec::new();
        while let Some(event_time) = hdd.next_event() {
            done.extend(hdd.poll(event_time).map(|completion| completion.at.ns() as f64 / 1e6));
        }
        done[1] - done[0]
    };
    // The second read's sector is cached long before the bus is free, or its seek starts only then.
    assert_ms(gap_ms("2"), 50.0);
    assert!(gap_ms("0") > 50.0 + 1.0 + 0.625 && gap_ms("1") > 50.0 + 1.0 + 0.625);
}

/// Returns the completion time in ms of the last of four consecutive writes of 8 sectors each, two
/// tracks in total, and the number of writes that complete at that time.
fn four_consecutive_writes(combines_writes: bool) -> (f64, usize) {
    // The skew is one sector, 0.625 ms. This suffices for a read's head switch of 0.5 ms, not for a
    // write's 2 ms.
    let mut drive = load_with(&[
        ("tiny.diskspecs", "Fast write level = 2", "Fast write level = 0"),
        ("tiny.model", "track switch = 2.0", "track switch = 1.0"),
        ("tiny.model", "settling delay = 0.5", "settling delay = 1.5"),
    ])
    .expect("a good file");
    drive.mechanics.zero_latency_write = true;
    drive.queue.combines_writes = combines_writes;
    let mut hdd = Hdd::new(&drive, 1);
    for id in 0..4 {
        let (start, sectors) = (u64::from(id) * 8, 8);
        hdd.submit(Time(0), DeviceRequest { id: RequestId(id), op: WRITE, start, sectors });
    }
    let mut done = Vec::new();
    while let Some(event_time) = hdd.next_event() {
        done.extend(std::iter::from_fn(|| hdd.poll(event_time)).map(|completion| completion.at));
    }
    let last = *done.last().expect("four requests are done");
    (last.ns() as f64 / 1e6, done.iter().filter(|time| **time == last).count())
}

#[test]
fn joined_writes_of_a_track_start_where_the_head_settles() {
    let combines_writes = true;
    let (alone_ms, alone) = four_consecutive_writes(!combines_writes);
    let (joined_ms, joined) = four_consecutive_writes(combines_writes);
    // The head settles 1.375 ms into the second track. Joined, the whole track takes one revolution
    // from there. Alone, the third write takes that revolution, and the fourth ends at the track's
    // end, 8.625 ms later. The first is served before the others are ready.
    assert_ms(alone_ms - joined_ms, 8.625);
    assert_eq!((alone, joined), (1, 3));
}
