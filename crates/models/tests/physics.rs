//! Physical limits, as properties of devices with any parameters.
//!
//! Bytes come no faster than they pass under the head or cross the link. Requests come no faster
//! than the service of a single one allows. The number in flight is the rate times the time of each
//! (Little 1961). More requests in flight, and larger ones, are never slower.

use std::ops::Range;

use readpath_core::policy::Spec;
use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};
use readpath_models::hdd::drive_of;
use readpath_models::{BoxedDevice, registry};

/// Draws from a linear congruential generator (Knuth's MMIX constants).
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(end)) >> 64) as u64
    }

    fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len() as u64) as usize]
    }

    fn from(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }
}

/// A disk with random parameters in the range of built drives.
fn drawn_disk(draw: &mut Draw) -> String {
    let drive = draw.of(&["scsi2001", "scsi2002", "sata2010", "sata"]);
    let (rpm, segments) = (draw.of(&["4200", "5400", "7200", "15000"]), draw.from(1, 64));
    let (single, window) = (draw.from(2, 20), draw.from(1, 32));
    let order = draw.of(&["positioning", "elevator"]);
    let ahead = draw.of(&["none", "track", "cylinder", "segment", "next track"]);
    let (early, sectors) = (draw.of(&["0", "1", "16", "200"]), draw.from(64, 100_000));
    let bus = draw.from(20, 600);
    let average = draw.from(30, 150);
    format!(
        "hdd,drive={drive},rpm={rpm},segments={segments},seek.single_ms={},seek.average_ms={},\
         seek.full_ms={},seek.write_single_ms={},seek.write_average_ms={},seek.write_full_ms={},\
         window={window},queue.order={order},read_ahead={ahead},early_writes={early},\
         cache.write_sectors={sectors},mb_per_s={bus}",
        single as f64 / 10.0,
        average as f64 / 10.0,
        average as f64 / 5.0,
        single as f64 / 10.0 + 0.2,
        average as f64 / 10.0 + 0.7,
        average as f64 / 5.0 + 0.7,
    )
}

fn drawn_ssd(draw: &mut Draw) -> String {
    let name = draw.of(&["ssd", "nvme"]);
    let (channels, dies, planes) = (draw.from(1, 16), draw.from(1, 8), draw.of(&["1", "2", "4"]));
    let (page, bits) = (draw.of(&["4k", "8k", "16k"]), draw.from(1, 3));
    let (interval, spare, used) = (draw.from(1, 20), draw.from(4, 40), draw.from(0, 1));
    format!(
        "{name},channels={channels},dies_per_channel={dies},planes={planes},page={page},\
         bits_per_cell={bits},command_interval={interval}us,spare={spare},used={used}"
    )
}

fn drawn(draw: &mut Draw) -> String {
    match draw.below(8) {
        0..=2 => drawn_disk(draw),
        3 | 4 => drawn_ssd(draw),
        5 => format!(
            "raid0:{}x{},stripe={}",
            draw.from(1, 8),
            draw.of(&["hdd", "ssd"]),
            draw.of(&["64k", "512k"])
        ),
        6 => format!(
            "array:{}x{},miss={}us",
            draw.from(1, 8),
            draw.of(&["hdd", "ssd"]),
            draw.below(1_000)
        ),
        _ => format!("nfs:ssd,rtt={}us,slots={}", draw.from(50, 5_000), draw.from(1, 64)),
    }
}

/// Result of a closed loop of requests.
struct Run {
    seconds: f64,
    requests: f64,
    latency_seconds: f64,
    /// Time integral of the number in flight.
    in_flight_seconds: f64,
}

impl Run {
    fn per_s(&self) -> f64 {
        self.requests / self.seconds
    }
}

fn run(text: &str, op: Op, sectors: u32, depth: usize, starts: &[u64]) -> Run {
    let spec = Spec::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let mut device: BoxedDevice = registry::build(&spec, 7).unwrap_or_else(|e| panic!("{e}"));
    let depth = depth.min(device.caps().depth_max as usize);
    let mut since = vec![Time::ZERO; starts.len()];
    let (mut now, mut next, mut done) = (Time::ZERO, 0, 0);
    let (mut latency, mut in_flight_seconds) = (0.0, 0.0);
    while done < starts.len() {
        while next < starts.len() && next - done < depth {
            let (id, start) = (RequestId(next as u32), starts[next]);
            device.submit(now, DeviceRequest { id, op, start, sectors });
            since[next] = now;
            next += 1;
        }
        let at = device.next_event().expect("something is in flight");
        in_flight_seconds += (next - done) as f64 * (at - now).seconds();
        now = at;
        while let Some(completion) = device.poll(now) {
            latency += (completion.at - since[completion.id.0 as usize]).seconds();
            done += 1;
        }
    }
    let (seconds, requests) = (now.seconds(), starts.len() as f64);
    Run { seconds, requests, latency_seconds: latency, in_flight_seconds }
}

fn sectors_of(text: &str) -> u64 {
    registry::build(&Spec::parse(text).unwrap(), 7)
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .caps()
        .sectors
}

fn at_random(count: u64, text: &str, sectors: u32, draw: &mut Draw) -> Vec<u64> {
    let places = sectors_of(text) / u64::from(sectors);
    (0..count).map(|_| draw.below(places) * u64::from(sectors)).collect()
}

fn in_sequence(count: u64, sectors: u32) -> Vec<u64> {
    (0..count).map(|index| index * u64::from(sectors)).collect()
}

const CASES: u64 = 26;

#[test]
fn disk_rate_is_limited_by_the_medium_and_the_bus() {
    for seed in 0..CASES {
        let text = drawn_disk(&mut Draw(seed));
        let drive = drive_of(&Spec::parse(&text).unwrap()).unwrap();
        let track = drive.layout.zones.iter().map(|zone| zone.track_sectors).max().unwrap();
        let media = f64::from(track) * SECTOR_BYTES as f64 * drive.mechanics.rpm / 60.0;
        let bus = SECTOR_BYTES as f64 * 1e9 / drive.controller.bus_read_sector_ns as f64;
        let starts = in_sequence(400, 1_024);
        for op in [Op::Read, Op::Write] {
            let run = run(&text, op, 1_024, 8, &starts);
            let bytes = 400.0 * 1_024.0 * SECTOR_BYTES as f64;
            // Data in the cache may not be on the medium yet.
            let cached = (drive.cache.writes.sectors * SECTOR_BYTES) as f64;
            let moved = if op == Op::Read { bytes } else { bytes - cached.min(bytes) };
            assert!(moved / run.seconds <= media * 1.001, "seed {seed}: {text}, {op:?}");
            assert!(bytes / run.seconds <= bus * 1.001, "seed {seed}: {text}, {op:?}");
        }
    }
}

#[test]
fn request_rate_is_limited_by_the_shortest_seek() {
    for seed in 0..CASES {
        let text = drawn_disk(&mut Draw(seed));
        let drive = drive_of(&Spec::parse(&text).unwrap()).unwrap();
        let starts = at_random(600, &text, 8, &mut Draw(seed + 1_000));
        // No request takes less than the shortest seek and its own sectors.
        let cylinders = drive.layout.cylinders_in_all();
        let track = drive.layout.zones.iter().map(|zone| zone.track_sectors).max().unwrap();
        let sectors_ms = 8.0 / f64::from(track) * 60e3 / drive.mechanics.rpm;
        let least_ms = drive.mechanics.seek.ms(1, cylinders) + sectors_ms;
        for depth in [1, 8, 32] {
            let per_s = run(&text, Op::Read, 8, depth, &starts).per_s();
            assert!(per_s <= 1e3 / least_ms, "seed {seed}: {text}: {per_s}/s at depth {depth}");
        }
    }
}

#[test]
fn requests_in_flight_follow_littles_law() {
    for seed in 0..CASES {
        let mut draw = Draw(seed);
        let text = drawn(&mut draw);
        for (op, depth) in [(Op::Read, 1), (Op::Read, 16), (Op::Write, 4)] {
            let starts = at_random(300, &text, 8, &mut draw);
            let run = run(&text, op, 8, depth, &starts);
            let off = run.in_flight_seconds / run.latency_seconds - 1.0;
            assert!(off.abs() < 1e-3, "seed {seed}: {text}, {op:?} at {depth}: off by {off}");
        }
    }
}

#[test]
fn greater_depth_is_never_slower() {
    is_never_slower_with_more_in_flight(0..8);
}

#[test]
#[ignore = "moves 96,000 requests for each: the second tier, .ci/slow"]
fn greater_depth_is_never_slower_on_more_devices() {
    is_never_slower_with_more_in_flight(8..CASES);
}

fn is_never_slower_with_more_in_flight(seeds: Range<u64>) {
    for seed in seeds {
        let mut draw = Draw(seed);
        let text = drawn(&mut draw);
        // The order of writes from a cache varies. This number of requests averages it out.
        let starts = at_random(8_000, &text, 8, &mut draw);
        for op in [Op::Read, Op::Write] {
            let mut before = 0.0;
            for depth in [1, 2, 4, 8, 16, 32] {
                let per_s = run(&text, op, 8, depth, &starts).per_s();
                assert!(
                    per_s >= 0.98 * before,
                    "seed {seed}: {text}, {op:?}: {per_s}/s at depth {depth}, {before}/s at half"
                );
                before = per_s;
            }
        }
    }
}

#[test]
fn larger_requests_are_never_slower() {
    for seed in 0..CASES {
        let mut draw = Draw(seed);
        let text = drawn(&mut draw);
        for op in [Op::Read, Op::Write] {
            for depth in [1, 8] {
                let mut before = 0.0;
                for sectors in [8, 32, 128, 512] {
                    // Equal total bytes, so that the write buffer takes an equal part of them.
                    let count = 524_288 / u64::from(sectors);
                    let starts = at_random(count, &text, 512, &mut Draw(seed));
                    let rate = run(&text, op, sectors, depth, &starts).per_s() * f64::from(sectors);
                    assert!(
                        rate >= 0.98 * before,
                        "seed {seed}: {text}, {op:?} at {depth}: {rate} sectors/s by {sectors}, \
                         {before} by a quarter"
                    );
                    before = rate;
                }
            }
        }
    }
}
