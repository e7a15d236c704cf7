//! Devices behind a network or a controller, compared with numbers worked by hand.

use readpath_core::policy::Spec;
use readpath_core::request::{DeviceError, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::Time;
use readpath_models::{BoxedDevice, registry};

fn build(text: &str) -> BoxedDevice {
    registry::build(&Spec::parse(text).unwrap(), 7).unwrap_or_else(|error| panic!("{error}"))
}

/// Serves one request on an idle device. Returns its time and outcome.
fn one(
    device: &mut BoxedDevice,
    now: &mut Time,
    op: Op,
    start: u64,
    sectors: u32,
) -> (Time, Outcome) {
    let begun = *now;
    device.submit(begun, DeviceRequest { id: RequestId(0), op, start, sectors });
    loop {
        *now = device.next_event().unwrap();
        if let Some(completion) = device.poll(*now) {
            return (completion.at - begun, completion.outcome);
        }
    }
}

/// Keeps `depth` requests in flight. Returns latencies and total bytes per second.
fn many(
    device: &mut BoxedDevice,
    depth: u32,
    count: u32,
    sectors: u32,
    streams: u64,
) -> (Vec<Time>, f64) {
    let apart = device.caps().sectors / streams / 4_096 * 4_096;
    let (mut now, mut begun) = (Time::ZERO, 0);
    let mut started = vec![Time::ZERO; count as usize];
    let mut latencies = Vec::new();
    while latencies.len() < count as usize {
        while begun < count && begun - (latencies.len() as u32) < depth {
            let (stream, index) = (u64::from(begun) % streams, u64::from(begun) / streams);
            let start = stream * apart + index * u64::from(sectors);
            started[begun as usize] = now;
            device
                .submit(now, DeviceRequest { id: RequestId(begun), op: Op::Read, start, sectors });
            begun += 1;
        }
        now = device.next_event().unwrap();
        while let Some(completion) = device.poll(now) {
            latencies.push(completion.at - started[completion.id.0 as usize]);
        }
    }
    let bytes = f64::from(count) * f64::from(sectors) * 512.0;
    (latencies, bytes / now.seconds())
}

fn us(time: Time) -> f64 {
    time.ns() as f64 / 1e3
}

/// A read of 98,304 bytes with an rsize of 32 KiB is three calls, sent together. From the server's
/// memory: 200 µs round trip, 50 µs server, 3 × 278.40 µs wire. With one slot they wait for each
/// other: 3 × (200 + 50 + 278.40).
#[test]
fn large_nfs_read_is_split_into_parallel_calls() {
    for (slots, by_hand) in [(16, 200.0 + 50.0 + 3.0 * 278.40), (1, 3.0 * (200.0 + 50.0 + 278.40))]
    {
        let mut device = build(&format!("nfs:ssd,jitter=0,slots={slots}"));
        let mut now = Time::ZERO;
        // Two sequential reads: the server reads ahead of the second, and then has everything in
        // memory.
        one(&mut device, &mut now, Op::Read, 0, 64);
        one(&mut device, &mut now, Op::Read, 64, 192);
        let (took, outcome) = one(&mut device, &mut now, Op::Read, 64, 192);
        assert_eq!(outcome, Outcome::Done);
        assert!((us(took) - by_hand).abs() < 0.1, "{} against {by_hand}", us(took));
    }
}

/// Synchronous 4 KiB calls for the same bytes, as without readahead: 24 round trips.
#[test]
fn small_nfs_reads_in_a_row_cost_a_round_trip_each() {
    let mut device = build("nfs:nvme,jitter=0");
    let mut now = Time::ZERO;
    one(&mut device, &mut now, Op::Read, 0, 192);
    let begun = now;
    for page in 0..24 {
        one(&mut device, &mut now, Op::Read, page * 8, 8);
    }
    let took = us(now - begun);
    let by_hand = 24.0 * (200.0 + 50.0 + 34.80);
    assert!((took - by_hand).abs() < 1.0, "{took} against {by_hand}");
}

#[test]
fn nfs_streams_fill_the_network_and_no_more() {
    let (_, bytes_per_second) = many(&mut build("nfs:nvme"), 16, 4_000, 64, 1);
    assert!((100e6..117.7e6).contains(&bytes_per_second), "{bytes_per_second}");
}

#[test]
fn nfs_jitter_follows_the_seed_and_its_bound() {
    let mut latencies =
        many(&mut build("nfs:nvme,jitter=4ms,server_cache=0"), 1, 2_000, 8, 2_000).0;
    latencies.sort();
    let spread = us(latencies[1_999] - latencies[0]);
    // Each way up to 2 ms; the three sensing times differ by 77 µs.
    assert!((3_500.0..4_100.0).contains(&spread), "{spread}");
}

/// One connection: a range of 16 MiB takes the first byte's wait and 197.4 ms at 85 MB/s.
#[test]
fn an_object_arrives_at_the_speed_of_its_connection() {
    let mut device = build("object");
    let (took, _) = one(&mut device, &mut Time::default(), Op::Read, 0, 32_768);
    let body_ms = 16_777_216.0 / 85e6 * 1e3;
    assert!((body_ms + 10.0..body_ms + 2_000.0).contains(&(us(took) / 1e3)), "{took}");
    let (latencies, _) = many(&mut build("object"), 1, 4_001, 8, 1);
    let mut sorted = latencies;
    sorted.sort();
    let (p50, p99) = (us(sorted[2_000]) / 1e3, us(sorted[3_960]) / 1e3);
    assert!((p50 - 30.0).abs() < 1.5, "{p50}");
    assert!((170.0..400.0).contains(&p99), "{p99}");
}

#[test]
fn an_object_store_limits_rate_and_network() {
    // 1,000 in flight over 1,000 connections at about 45 ms each would be 20,000 a second.
    let mut device = build("object,connections=1000");
    let (_, bytes_per_second) = many(&mut device, 1_000, 100_000, 8, 1);
    let per_second = bytes_per_second / 4_096.0;
    // The last one may take up to 2 s of about 18 s.
    assert!((4_900.0..5_501.0).contains(&per_second), "{per_second}");
    let (_, bytes_per_second) = many(&mut build("object"), 256, 4_000, 32_768, 1);
    assert!((8e9..12.5e9).contains(&bytes_per_second), "{bytes_per_second}");
    let (_, bytes_per_second) = many(&mut build("object,bandwidth=1g"), 256, 1_000, 32_768, 1);
    assert!((0.9e9..1.0e9).contains(&bytes_per_second), "{bytes_per_second}");
}

#[test]
fn quantiles_that_fall_are_refused_by_name() {
    let spec = Spec::parse("object,first_byte_p90=20ms").unwrap();
    let error = registry::build(&spec, 0).err().unwrap().to_string();
    assert_eq!(error, "`object,first_byte_p90=20000`: expected no less than first_byte_p50");
}

/// An array never exceeds the rate of its link.
#[test]
fn array_rate_never_exceeds_its_link() {
    for depth in [8, 64] {
        let (_, bytes_per_second) = many(&mut build("array:12xnvme"), depth, 20_000, 128, 8);
        let mib_per_second = bytes_per_second / f64::from(1 << 20);
        assert!((380.0..386.1).contains(&mib_per_second), "{mib_per_second}");
    }
}

/// A write is answered from memory: the controller's 50 µs, and 10.12 µs for 4 KiB on the link.
/// Without a write cache it is as slow as its member.
#[test]
fn an_array_answers_writes_from_memory_until_it_is_full() {
    let mut now = Time::ZERO;
    let (took, _) = one(&mut build("array:4xssd"), &mut now, Op::Write, 0, 8);
    assert!((us(took) - 60.12).abs() < 0.05, "{took}");
    let (through, _) =
        one(&mut build("array:4xssd,write_cache=0"), &mut Time::default(), Op::Write, 0, 8);
    assert!(through > took + Time::from_us(70), "{through}");
    let sum = |text: &str| {
        let (mut device, mut now) = (build(text), Time::ZERO);
        for index in 0..400 {
            one(&mut device, &mut now, Op::Write, index * 1_024, 1_024);
        }
        now
    };
    // The controller's cost per disk does not limit the other devices.
    let rate = |text: &str| many(&mut build(text), 32, 20_000, 8, 20_000).1;
    let (one_drive, six) = (rate("ssd"), rate("array:6xssd"));
    assert!(six >= one_drive, "six drives move {six} bytes a second, one of them {one_drive}");
    let small = "array:1xssd,ssd.program_lsb=20ms,ssd.program_msb=20ms,ssd.buffer=8m";
    assert!(sum(&format!("{small},write_cache=1m")) > sum(small));
}

/// The array reads ahead of a stream: the next request is in memory before it arrives.
#[test]
fn an_array_reads_ahead_of_streams_and_of_nothing_else() {
    let last = |text: &str, step: u64| {
        let (mut device, mut now) = (build(text), Time::ZERO);
        let mut took = Time::ZERO;
        for index in 0..40 {
            took = one(&mut device, &mut now, Op::Read, index * step, 128).0;
            now += Time::from_ms(1);
        }
        took
    };
    // Controller 50 µs, 64 KiB over the link 161.92 µs.
    let ahead = last("array:4xssd", 128);
    assert!((us(ahead) - 211.92).abs() < 0.05, "{ahead}");
    for text in ["array:4xssd,cache=0", "array:4xssd,readahead=0", "array:4xssd,readahead_after=1g"]
    {
        assert!(last(text, 128) > ahead, "{text}");
    }
    assert!(last("array:4xssd", 4_096) > ahead);
}

/// Single reads of lines that are being read ahead leave the lines to the stream, which finds all
/// its later requests in memory: controller 50 µs, 64 KiB over the link 161.92 µs.
#[test]
fn single_reads_within_a_read_ahead_leave_the_stream_its_lines() {
    let (mut device, mut now) = (build("array:4xhdd"), Time::ZERO);
    let request = |id, line| DeviceRequest {
        id: RequestId(id),
        op: Op::Read,
        start: line * 128,
        sectors: 128,
    };
    for line in 0..4 {
        one(&mut device, &mut now, Op::Read, line * 128, 128);
    }
    // The fifth request of the stream begins its read-ahead, of which these read every fifth line.
    device.submit(now, request(0, 4));
    (1..5).for_each(|id| device.submit(now, request(id, u64::from(id) * 5 + 5)));
    for _ in 0..5 {
        while device.poll(now).is_none() {
            now = device.next_event().unwrap();
        }
    }
    // The read-ahead is complete by then. A line that is read again takes the disk some ms.
    now += Time::from_s(1);
    for line in 5..30 {
        let took = one(&mut device, &mut now, Op::Read, line * 128, 128).0;
        assert!((us(took) - 211.92).abs() < 0.05, "line {line}: {took}");
    }
}

/// A bad sector fails the reads that need it, not reads whose readahead touched it.
#[test]
fn member_error_reaches_only_the_reads_that_need_the_sector() {
    let text =
        "array:1xfaulty:ssd,readahead_after=0,faulty:ssd.bad_from=1m,faulty:ssd.bad_bytes=512";
    let (mut device, mut now) = (build(text), Time::ZERO);
    for index in 0..40u64 {
        let (_, outcome) = one(&mut device, &mut now, Op::Read, index * 64, 64);
        let is_bad = index == 2_048 / 64;
        let expected = match is_bad {
            true => Outcome::Failed(DeviceError::Medium),
            false => Outcome::Done,
        };
        assert_eq!(outcome, expected, "request {index}");
    }
}

/// End time of requests at a depth, in `streams` interleaved streams.
fn end(text: &str, op: Op, depth: u32, sectors: u32, streams: u64) -> Time {
    let mut device = build(text);
    let apart = device.caps().sectors / streams / 4_096 * 4_096;
    let (mut now, mut begun, mut done) = (Time::ZERO, 0, 0);
    while done < 1_000 {
        while begun < 1_000 && begun - done < depth {
            let (stream, index) = (u64::from(begun) % streams, u64::from(begun) / streams);
            let start = stream * apart + index * u64::from(sectors);
            device.submit(now, DeviceRequest { id: RequestId(begun), op, start, sectors });
            begun += 1;
        }
        now = device.next_event().unwrap();
        while device.poll(now).is_some() {
            done += 1;
        }
    }
    now
}

/// Each parameter changes a time in its direction. A row: the worse value, the device, and the load
/// (direction, depth, sectors, interleaved streams).
#[test]
fn every_cost_parameter_makes_its_device_slower() {
    let rows = [
        ("array:4xnvme", "link=100", Op::Read, 8, 128, 1),
        ("array:4xnvme", "link=100", Op::Write, 8, 128, 1),
        ("array:4xnvme", "overhead=1ms", Op::Read, 1, 8, 1),
        ("array:4xnvme", "miss=5ms", Op::Read, 8, 8, 1_000),
        ("array:4xnvme", "miss_solid=5ms", Op::Read, 8, 8, 1_000),
        ("array:4xssd,miss=940us", "cache=256k", Op::Read, 8, 128, 8),
        ("array:4xssd,miss=940us", "readahead=128k", Op::Read, 1, 128, 1),
        ("array:4xssd,miss=940us", "readahead_all=256k", Op::Read, 8, 128, 8),
        ("array:4xssd,cache=4m,readahead_all=4m", "silent=1", Op::Read, 8, 128, 8),
        ("array:4xssd,miss=940us", "readahead_after=1g", Op::Read, 1, 128, 1),
        ("array:4xssd,miss=940us", "streams=2", Op::Read, 8, 128, 8),
        ("array:4xssd", "write_cache=0", Op::Write, 1, 128, 1),
        ("array:4xhdd,cache=0,miss=0", "stripe=32m", Op::Read, 16, 128, 1),
        ("raid0:4xhdd", "stripe=64m", Op::Read, 16, 128, 1),
        ("nfs:nvme", "rtt=5ms", Op::Read, 1, 8, 1),
        ("nfs:nvme", "jitter=9ms", Op::Read, 1, 8, 1),
        ("nfs:nvme", "bandwidth=20", Op::Read, 8, 128, 1),
        ("nfs:nvme", "bandwidth=20", Op::Write, 8, 128, 1),
        ("nfs:nvme,slots=1", "rsize=4k", Op::Read, 1, 512, 1),
        ("nfs:nvme", "slots=1", Op::Read, 16, 8, 1),
        ("nfs:nvme,bandwidth=1g", "threads=1", Op::Read, 16, 8, 1_000),
        ("nfs:nvme", "server_overhead=3ms", Op::Read, 1, 8, 1),
        ("nfs:hdd", "server_cache=0", Op::Read, 1, 8, 1),
        ("nfs:ssd", "server_readahead=0", Op::Read, 1, 8, 1),
        ("object", "first_byte_min=20ms", Op::Read, 1, 8, 1),
        ("object", "first_byte_p50=60ms", Op::Read, 1, 8, 1),
        ("object", "first_byte_p90=190ms", Op::Read, 1, 8, 1),
        ("object", "first_byte_p99=1s", Op::Read, 1, 8, 1),
        ("object", "first_byte_max=60s", Op::Read, 1, 8, 1),
        ("object", "connection=2", Op::Read, 8, 2_048, 1),
        ("object", "bandwidth=10", Op::Read, 64, 2_048, 1),
        ("object", "bandwidth=10", Op::Write, 64, 2_048, 1),
        ("object", "connections=1", Op::Read, 8, 8, 1),
        ("object", "get_rate=10", Op::Read, 64, 8, 1),
        ("object", "put_rate=10", Op::Write, 64, 8, 1),
        ("faulty:nvme", "slow_every=10", Op::Read, 1, 8, 1),
        ("faulty:nvme,slow_every=10", "slow_by=200ms", Op::Read, 1, 8, 1),
    ];
    for (device, worse, op, depth, sectors, streams) in rows {
        let better = end(device, op, depth, sectors, streams);
        let other = end(&format!("{device},{worse}"), op, depth, sectors, streams);
        assert!(other > better, "{device}: {worse}: {other} against {better}");
    }
}

#[test]
fn capabilities_follow_the_given_sizes_and_depths() {
    let caps = |text: &str| build(text).caps();
    assert_eq!(caps("object,size=1g").sectors, 1 << 21);
    assert_eq!(caps("object,request_max=1m").request_sectors_max, 2_048);
    assert_eq!(caps("nfs:ssd,request_max=1m").request_sectors_max, 2_048);
    for text in ["object,depth=7", "nfs:ssd,depth=7", "array:2xssd,depth=7", "ssd,depth=7"] {
        assert_eq!(caps(text).depth_max, 7, "{text}");
    }
    assert_eq!(caps("ssd,size=1g,request_max=64k").request_sectors_max, 128);
    assert_eq!(caps("raid0:3xssd").depth_max, 3 * 32);
    assert!(caps("raid0:1xhdd+1xssd").is_rotational && !caps("nfs:hdd").is_rotational);
}
