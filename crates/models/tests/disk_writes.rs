//! Limits of disk writes: no faster than the tracks pass under the head, with or without a cache,
//! and durable after a flush.

use std::collections::BTreeMap;

use readpath_core::policy::Spec;
use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};
use readpath_models::Device;
use readpath_models::hdd::{Hdd, build_hdd};

const DRIVES: [&str; 5] = ["scsi2001", "scsi2002", "sata2010", "sata2012", "sata"];

fn disk(text: &str) -> Hdd {
    let spec = Spec::parse(text).unwrap_or_else(|error| panic!("{error}"));
    build_hdd(&spec, 1).unwrap_or_else(|error| panic!("{error}"))
}

/// Bytes per second of the outer track under the head.
fn outer_track_rate(hdd: &Hdd) -> f64 {
    let track = hdd.drive().layout.zones.iter().map(|zone| zone.track_sectors).max();
    f64::from(track.expect("a zone")) * SECTOR_BYTES as f64 * hdd.drive().mechanics.rpm / 60.0
}

/// Keeps `depth` requests in the drive until all of `starts` are done. Returns the time of the end.
fn run(hdd: &mut Hdd, op: Op, sectors: u32, depth: usize, starts: &[u64]) -> Time {
    let (mut now, mut next, mut in_flight) = (Time::ZERO, 0, BTreeMap::new());
    while next < starts.len() || !in_flight.is_empty() {
        while next < starts.len() && in_flight.len() < depth {
            let id = RequestId(next as u32);
            hdd.submit(now, DeviceRequest { id, op, start: starts[next], sectors });
            in_flight.insert(id, now);
            next += 1;
        }
        now = hdd.next_event().expect("something is in flight");
        while let Some(completion) = hdd.poll(now) {
            in_flight.remove(&completion.id).expect("each ends once");
        }
    }
    now
}

fn flushed(hdd: &mut Hdd, now: Time) -> Time {
    let id = RequestId(1 << 31);
    hdd.flush(now, id);
    loop {
        let at = hdd.next_event().expect("a flush is under way");
        while let Some(completion) = hdd.poll(at) {
            if completion.id == id {
                return completion.at;
            }
        }
    }
}

fn in_sequence(count: u64, sectors: u32) -> Vec<u64> {
    (0..count).map(|index| index * u64::from(sectors)).collect()
}

fn at_random(count: u32, hdd: &Hdd) -> Vec<u64> {
    let mut state = 1u64;
    let mut draw = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 20) % (hdd.sectors() / 8) * 8
    };
    (0..count).map(|_| draw()).collect()
}

#[test]
fn sequential_writes_reach_the_rate_of_the_medium_and_no_more() {
    for name in DRIVES {
        for early in [0, 1, 64] {
            // A gigabyte in 512 KiB, eight times the largest cache.
            let starts = in_sequence(2_000, 1_024);
            let text = format!("hdd,drive={name},early_writes={early}");
            let bytes = starts.len() as f64 * 1_024.0 * SECTOR_BYTES as f64;
            let rate = |op| bytes / run(&mut disk(&text), op, 1_024, 16, &starts).seconds();
            let most = outer_track_rate(&disk(&text));
            let (reads, writes) = (rate(Op::Read), rate(Op::Write));
            // Data in the cache at the end has not been written.
            let cached = 1.0 + 64.0 * 1_048_576.0 * f64::from(early.min(1)) / bytes;
            assert!(writes <= most * cached, "{text}: {writes:e} of at most {most:e}");
            // A lost revolution per track would halve the rate.
            assert!(writes > 0.95 * reads, "{text}: writes {writes:e}, reads {reads:e}");
            assert!(reads <= most && reads > 0.8 * most, "{text}: reads {reads:e}");
        }
    }
}

#[test]
fn write_cache_is_bounded_in_bytes() {
    // 64 MB of buffer are full after a tenth of a second at 600 MB/s.
    let mut hdd = disk("hdd,drive=sata,write_sectors=4096");
    let one = run(&mut hdd, Op::Write, 2_048, 1, &in_sequence(1, 2_048));
    assert!(one.seconds() < 0.003, "a MiB crosses the bus in 1.7 ms: {one}");
    let starts = in_sequence(100, 2_048);
    let all = run(&mut disk("hdd,drive=sata,write_sectors=4096"), Op::Write, 2_048, 1, &starts);
    // Two of a hundred MiB may still be in the cache; 241 MB/s at the outer edge.
    assert!(all.seconds() > 98.0 * 1.048_576 / 241.5, "{all}");
}

#[test]
fn a_write_larger_than_the_cache_is_written_through() {
    let mut hdd = disk("hdd,drive=sata,write_sectors=1000");
    let end = run(&mut hdd, Op::Write, 2_048, 4, &in_sequence(20, 2_048));
    assert!(end.seconds() > 20.0 * 1.048_576 / 241.5, "{end}");
}

fn assert_near(value: f64, published: f64, what: &str) {
    assert!((value / published - 1.0).abs() <= 0.15, "{what}: {value}, published {published}");
}

/// Published figures of a Seagate ST2000DM006 that were not used for its parameters are met within
/// 15 %.
///
/// They are 124 random writes of 4 KiB per second, and 127 and 630 ms for a flush after 8 and 64 of
/// them. Sequential reads reach 143 MB/s, and sequential writes to the medium 132 MB/s.
#[test]
fn modern_disk_meets_its_published_write_figures() {
    let text = "hdd,drive=sata";
    let starts = at_random(4_000, &disk(text));
    let (half, all) = (&starts[..2_000], &starts[..]);
    let steady =
        run(&mut disk(text), Op::Write, 8, 1, all) - run(&mut disk(text), Op::Write, 8, 1, half);
    assert_near(2_000.0 / steady.seconds(), 124.0, "random writes a second");
    for (count, published_ms) in [(8, 127.0), (64, 630.0)] {
        let rounds = 40;
        let flush = |round: usize| {
            let mut hdd = disk(text);
            let now = run(&mut hdd, Op::Write, 8, 1, &starts[round * count..][..count]);
            (flushed(&mut hdd, now) - now).seconds()
        };
        let mean = (0..rounds).map(flush).sum::<f64>() / rounds as f64;
        assert_near(1e3 * mean, published_ms, "ms to flush");
    }
    // At twenty positions from the outer edge to the inner.
    let sectors = disk(text).sectors();
    let rate = |op: Op| {
        let seconds = |place: u64| {
            let start = sectors / 40 * (2 * place + 1);
            let starts: Vec<u64> = (0..200).map(|index| start + index * 2_048).collect();
            let mut hdd = disk(text);
            let end = run(&mut hdd, op, 2_048, 4, &starts);
            if op == Op::Write { flushed(&mut hdd, end).seconds() } else { end.seconds() }
        };
        20.0 * 200.0 * 1.048_576 / (0..20).map(seconds).sum::<f64>()
    };
    assert_near(rate(Op::Read), 143.0, "MB/s read in sequence");
    assert_near(rate(Op::Write), 132.0, "MB/s written in sequence");
}

#[test]
fn flush_waits_for_written_data_and_nothing_else() {
    for name in ["sata", "sata2010"] {
        let text = format!("hdd,drive={name}");
        let mut hdd = disk(&text);
        let idle = flushed(&mut hdd, Time::ZERO);
        assert!(idle < Time::from_ms(1), "{name}: nothing to be written: {idle}");
        let turn = hdd.revolution();
        let mut last = Time::ZERO;
        for count in [1, 8, 64] {
            let mut hdd = disk(&text);
            let starts = at_random(count, &hdd);
            let now = run(&mut hdd, Op::Write, 8, 1, &starts);
            let took = flushed(&mut hdd, now) - now;
            // A write takes no less than its sectors, and no more than a full stroke and a
            // revolution.
            let most = (Time::from_ms(25) + turn).ns() * u64::from(count);
            assert!(took > last && took.ns() < most, "{name}: {count} writes: {took}");
            last = took;
            let again = flushed(&mut hdd, now + took);
            assert!(again - (now + took) < Time::from_ms(1), "{name}: all is written");
        }
        let mut through = disk(&format!("{text},early_writes=0"));
        let starts = at_random(8, &through);
        let now = run(&mut through, Op::Write, 8, 1, &starts);
        assert!(flushed(&mut through, now) - now < Time::from_ms(1), "{name}: nothing is cached");
    }
}
