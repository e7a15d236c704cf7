//! Built-in hard disks, compared with closed forms, data sheets and published figures.

use std::collections::BTreeMap;

use readpath_core::policy::Spec;
use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::Time;
use readpath_models::Device;
use readpath_models::hdd::drive::{DriveDescription, ReadAhead, WriteCacheSpec};
use readpath_models::hdd::{Hdd, build_hdd, drive_of, parameters};

/// Result of a run with one kind of request.
struct Run {
    seconds: f64,
    latencies_ms: Vec<f64>,
}

impl Run {
    fn mean_ms(&self) -> f64 {
        self.latencies_ms.iter().sum::<f64>() / self.latencies_ms.len() as f64
    }

    fn quantile_ms(&self, part: f64) -> f64 {
        let mut sorted = self.latencies_ms.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * part) as usize]
    }

    fn per_s(&self) -> f64 {
        self.latencies_ms.len() as f64 / self.seconds
    }
}

fn disk(text: &str, seed: u64) -> Hdd {
    build_hdd(&Spec::parse(text).expect("a spec"), seed).expect("a drive")
}

/// Serves `count` requests with `depth` in flight. `starts` holds the first sector of each.
fn run(hdd: &mut Hdd, op: Op, sectors: u32, depth: usize, starts: &[u64]) -> Run {
    let mut in_flight = BTreeMap::new();
    let mut latencies_ms = Vec::new();
    let mut next = starts.iter().enumerate();
    let mut now = Time(0);
    while latencies_ms.len() < starts.len() {
        while in_flight.len() < depth
            && let Some((index, start)) = next.next()
        {
            let id = RequestId(index as u32);
            hdd.submit(now, DeviceRequest { id, op, start: *start, sectors });
            in_flight.insert(id, now);
        }
        let event = hdd.next_event().expect("something is in flight");
        assert!(event >= now, "time goes on");
        now = event;
        while let Some(completion) = hdd.poll(now) {
            let since = in_flight.remove(&completion.id).expect("each request ends once");
            latencies_ms.push((completion.at - since).ns() as f64 / 1e6);
        }
    }
    Run { seconds: now.seconds(), latencies_ms }
}

fn random_starts(count: usize, span_sectors: u64, sectors: u32) -> Vec<u64> {
    let mut state = 1u64;
    let mut draw = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 20) % (span_sectors / u64::from(sectors)) * u64::from(sectors)
    };
    (0..count).map(|_| draw()).collect()
}

fn sequential_starts(count: u64, sectors: u64) -> Vec<u64> {
    (0..count).map(|index| index * sectors).collect()
}

fn assert_near(value: f64, expected: f64, part: f64) {
    assert!((value - expected).abs() <= part * expected, "{value} is not {expected} ± {part}");
}

#[test]
fn random_read_costs_overhead_seek_half_a_revolution_and_its_sectors() {
    let mut hdd = disk("hdd", 1);
    let starts = random_starts(20_000, hdd.sectors(), 8);
    let run = run(&mut hdd, Op::Read, 8, 1, &starts);
    // 0.284 overhead, 4.7 average seek, 3.0 half a revolution, 8 of 708 sectors of 6 ms.
    assert_near(run.mean_ms(), 0.284 + 4.7 + 3.0 + 0.068, 0.02);
}

#[test]
fn sequential_stream_loses_only_the_skews() {
    let mut hdd = disk("hdd", 1);
    let run = run(&mut hdd, Op::Read, 128, 1, &sequential_starts(8_000, 128));
    // Two outer tracks of 914 sectors: two revolutions, one head switch (0.6 ms) and one cylinder
    // switch (0.75 ms), each rounded up to whole sectors.
    let expected = 2.0 * 914.0 * 512.0 / (2.0 * 6.0 + 0.6 + 0.75) / 1e3;
    assert_near(run.per_s() * 128.0 * 512.0 / 1e6, expected, 0.01);
    // A missed revolution would add 6 ms and more. Only the first read may wait.
    assert!(run.latencies_ms[1..].iter().all(|ms| *ms < 3.0));
}

#[test]
fn small_sequential_reads_come_from_the_cache() {
    let mut hdd = disk("hdd", 1);
    let run = run(&mut hdd, Op::Read, 8, 1, &sequential_starts(2_000, 8));
    // 0.066 ms overhead and 8 sectors at 320 MB/s.
    assert_near(run.quantile_ms(0.5), 0.066 + 8.0 * 0.0016, 0.01);
}

/// Two reads together, the second after a hole behind the first. DiskSim: a seek over no distance
/// takes no time, so the second costs the rotation over hole and sectors. A read behind the head
/// costs nearly a full revolution more.
#[test]
fn read_queued_just_ahead_of_the_head_costs_no_revolution() {
    let both = |drive: &str, second: u64| {
        let mut hdd = disk(drive, 1);
        let first = 300_000_000 % (hdd.sectors() / 2);
        let run = run(&mut hdd, Op::Read, 8, 2, &[first, first + second]);
        run.quantile_ms(1.0) - run.quantile_ms(0.0)
    };
    // 8 + 8 of 1,240 to 2,300 sectors, at 8.33 ms per revolution.
    let hole = both("hdd,drive=sata2010", 16);
    assert!((16.0 / 2300.0 * 8.33..16.0 / 1240.0 * 8.34).contains(&hole), "{hole}");
    // The drive of 2002: 40 + 8 of 504 to 914 sectors, at 6 ms.
    let hole = both("hdd", 48);
    assert!((48.0 / 914.0 * 6.0..48.0 / 504.0 * 6.01).contains(&hole), "{hole}");
    assert!(both("hdd,cache.joins_read_ahead=false", 48) > 5.0);
}

/// DiskSim's level 4: readahead to the end of the track, and to the end of the next one only if the
/// segment came from the previous track.
#[test]
fn the_next_track_is_read_ahead_for_streams_only() {
    let text = "hdd,cache.read_ahead=next track,cache.segment_sectors=4096";
    // The outer tracks have 914 sectors. After 50 ms both have been read, if at all.
    let is_hit = |reads: &[(u64, u32)], then: u64| {
        let mut hdd = disk(text, 1);
        let mut now = Time(0);
        let mut last = Time(0);
        for (id, (start, sectors)) in reads.iter().copied().chain([(then, 8)]).enumerate() {
            let (id, op) = (RequestId(id as u32), Op::Read);
            hdd.submit(now, DeviceRequest { id, op, start, sectors });
            while let Some(at) = hdd.next_event() {
                last = hdd.poll(at).map_or(last, |completion| completion.at - now);
            }
            now = now + last + Time::from_ms(50);
        }
        last < Time::from_us(200)
    };
    assert!(is_hit(&[(100, 8)], 900), "the rest of the track");
    assert!(!is_hit(&[(100, 8)], 920), "not the next one");
    assert!(is_hit(&[(900, 28)], 1_800), "a read over the track's end is a stream");
    assert!(is_hit(&[(100, 8), (108, 806), (914, 8)], 1_800), "and so is one after the other");
}

#[test]
fn queueing_raises_throughput_and_the_age_limit_bounds_waits() {
    let starts = random_starts(5_000, 71_000_000, 8);
    let alone = run(&mut disk("hdd", 1), Op::Read, 8, 1, &starts).per_s();
    let queued = run(&mut disk("hdd", 1), Op::Read, 8, 32, &starts).per_s();
    assert!(queued > 1.4 * alone, "{queued} against {alone}");
    let wide = run(&mut disk("hdd,drive=sata2010", 1), Op::Read, 8, 32, &starts);
    assert!(wide.quantile_ms(1.0) < 1500.0, "the age limit bounds the longest wait");
}

#[test]
fn early_writes_are_reported_from_the_cache_and_bounded_by_the_medium() {
    let starts = random_starts(3_000, 1_000_000_000, 8);
    let few = run(&mut disk("hdd,drive=sata", 1), Op::Write, 8, 1, &starts[..40]);
    assert!(few.quantile_ms(1.0) < 1.0, "all fit into the cache");
    let many = run(&mut disk("hdd,drive=sata", 1), Op::Write, 8, 1, &starts);
    assert!(many.per_s() < 400.0, "the medium sets the pace in the end: {}", many.per_s());
    let through = run(&mut disk("hdd", 1), Op::Write, 8, 1, &random_starts(2_000, 71_000_000, 8));
    // Overhead, write seek, half a revolution, the sectors.
    assert_near(through.mean_ms(), 0.896 + 5.2 + 3.0 + 0.068, 0.03);
}

#[test]
fn written_data_is_read_back_from_the_cache() {
    let mut hdd = disk("hdd,drive=sata", 1);
    run(&mut hdd, Op::Write, 8, 1, &[500_000_000]);
    let mut idle = disk("hdd,drive=sata", 1);
    let hit = run(&mut hdd, Op::Read, 8, 1, &[500_000_000]).mean_ms();
    let miss = run(&mut idle, Op::Read, 8, 1, &[500_000_000]).mean_ms();
    assert!(hit < 0.2 && miss > 2.0, "{hit} and {miss}");
}

#[test]
fn a_large_sata_drive_of_today_meets_its_published_measurements() {
    // Seagate ST2000DM006: 4 KiB random reads, depth 1: median 17.4 ms, 99th percentile
    // 28.7 ms; 94 a second at depth 32; each within 10 %.
    let starts = random_starts(20_000, disk("hdd,drive=sata", 1).sectors(), 8);
    let alone = run(&mut disk("hdd,drive=sata", 1), Op::Read, 8, 1, &starts);
    assert_near(alone.quantile_ms(0.5), 17.4, 0.1);
    assert_near(alone.quantile_ms(0.99), 28.7, 0.1);
    let queued = run(&mut disk("hdd,drive=sata", 1), Op::Read, 8, 32, &starts);
    assert_near(queued.per_s(), 94.0, 0.1);
}

#[test]
fn the_same_seed_gives_the_same_times_and_another_one_others() {
    let starts = random_starts(500, 71_000_000, 8);
    let times = |seed| run(&mut disk("hdd", seed), Op::Read, 8, 8, &starts).latencies_ms;
    assert_eq!(times(1), times(1));
    assert_ne!(times(1), times(2));
}

#[test]
fn specs_that_name_no_drive_are_refused() {
    let refused = |text: &str| {
        let spec = Spec::parse(text).expect("a spec");
        build_hdd(&spec, 1).expect_err("refused").to_string()
    };
    assert_eq!(
        refused("hdd,drive=ibm"),
        "there is no drive `ibm`; there are: scsi2002, scsi2001, sata2010, sata2012, sata, archive"
    );
    assert!(refused("hdd,rmp=7200").contains("no parameter `rmp`"));
    assert!(refused("hdd,toml=/no/such.toml").starts_with("/no/such.toml: can't be read"));
    assert!(refused("hdd,drive=sata,toml=x").contains("alone"));
    assert!(refused("hdd,bus_read_ns=0").contains("from 1 to"));
}

/// Draws from a linear congruential generator (Knuth's MMIX constants).
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn drawn_drive(draw: &mut Draw) -> DriveDescription {
    let name = ["scsi2001", "scsi2002", "sata2010", "sata"][draw.below(4) as usize];
    let spec = Spec::parse(&format!("hdd,drive={name}")).expect("a spec");
    let mut drive = drive_of(&spec).expect("a drive");
    let read_aheads = [
        ReadAhead::None,
        ReadAhead::Track,
        ReadAhead::Cylinder,
        ReadAhead::Segment,
        ReadAhead::NextTrack,
    ];
    let cache = &mut drive.cache;
    cache.is_enabled = draw.below(8) > 0;
    cache.segments = 1 + draw.below(4) as u32;
    cache.segment_sectors = 16 + draw.below(2000) as u32;
    cache.has_write_segment = draw.below(2) > 0;
    cache.read_ahead = read_aheads[draw.below(5) as usize];
    cache.read_ahead_sectors_min = draw.below(16) as u32;
    cache.ahead_over_requested = draw.below(2) > 0;
    cache.ahead_on_hit = draw.below(2) > 0;
    cache.caches_passing_sectors = draw.below(2) > 0;
    cache.joins_read_ahead = draw.below(2) > 0;
    cache.reads_written = draw.below(2) > 0;
    cache.hits_overtake = draw.below(2) > 0;
    cache.writes = WriteCacheSpec { spans: draw.below(4) as u32, sectors: draw.below(4_000) };
    cache.flushes_first = draw.below(2) > 0;
    drive.mechanics.zero_latency_read = draw.below(2) > 0;
    drive.queue.window = 1 + draw.below(u64::from(drive.queue.depth)) as u32;
    drive
}

#[test]
fn every_request_ends_once_in_time_under_any_cache_settings() {
    for seed in 0..200 {
        let mut draw = Draw(seed);
        let drive = drawn_drive(&mut draw);
        let mut hdd = Hdd::new(&drive, seed);
        let depth = 1 + draw.below(16) as usize;
        let (mut in_flight, mut now, mut done) = (BTreeMap::new(), Time(0), 0);
        let mut next_start = 0;
        for id in 0.. {
            if id < 300 {
                // A third continues the last one, a third is near, a third is far.
                let start = match draw.below(3) {
                    0 => next_start,
                    1 => 5_000 + draw.below(3_000),
                    _ => draw.below(hdd.sectors() - 2560),
                };
                let most = if draw.below(10) == 0 { 2560 } else { 64 };
                let sectors = 1 + draw.below(most) as u32;
                let op = if draw.below(3) == 0 { Op::Write } else { Op::Read };
                let start = start.min(hdd.sectors() - u64::from(sectors));
                hdd.submit(now, DeviceRequest { id: RequestId(id), op, start, sectors });
                in_flight.insert(RequestId(id), now);
                next_start = start + u64::from(sectors);
                now += Time(draw.below(4) * draw.below(5_000_000));
                if hdd.next_event().is_some_and(|event| event < now) {
                    now = hdd.next_event().expect("just seen");
                }
            }
            while in_flight.len() >= depth || (id >= 300 && !in_flight.is_empty()) {
                let event = hdd.next_event().expect("something is in flight");
                now = now.max(event);
                while let Some(completion) = hdd.poll(now) {
                    let since = in_flight.remove(&completion.id).expect("each request ends once");
                    assert!(since < completion.at && completion.at <= now, "seed {seed}");
                    assert!((completion.at - since).seconds() < 30.0, "seed {seed} starves");
                    done += 1;
                }
            }
            if id >= 300 {
                break;
            }
        }
        assert_eq!(done, 300, "seed {seed}");
        assert_eq!(hdd.next_event(), None, "seed {seed}");
    }
}

#[test]
fn every_parameter_is_listed_with_unit_and_source() {
    for name in ["scsi2001", "scsi2002", "sata2010", "sata2012", "sata"] {
        let spec = Spec::parse(&format!("hdd,drive={name}")).expect("a spec");
        let listed = parameters(&spec).expect("a drive");
        assert!(listed.len() > 30);
        let unsourced = |source: &str| source.is_empty() || source.contains(".toml:");
        for parameter in listed.iter().filter(|parameter| parameter.name != "name") {
            assert!(!unsourced(&parameter.source), "{name}: {}", parameter.name);
        }
        let rpm = listed.iter().find(|parameter| parameter.name == "mechanics.rpm");
        assert_eq!(rpm.map(|rpm| rpm.unit), Some("rpm"));
    }
}
