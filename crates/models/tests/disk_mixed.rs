//! Reads of a disk next to a stream of writes, compared with a published matrix.

use std::collections::{BTreeMap, VecDeque};

use readpath_core::policy::Spec;
use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};
use readpath_models::Device;
use readpath_models::hdd::{Hdd, build_hdd};

fn disk(text: &str) -> Hdd {
    build_hdd(&Spec::parse(text).expect("a spec"), 1).expect("a drive")
}

/// Sectors of a write, and writes in flight at most, as in the published measurement.
const WRITE_SECTORS: u32 = 256;
const WRITES_IN_FLIGHT_MAX: usize = 32;

/// A load of random reads of one sector at random times, next to sequential writes at a rate.
struct MixedLoad {
    reads_per_s: f64,
    write_bytes_per_s: f64,
    /// Virtual duration. Reads of the first five seconds do not count, as in the measurement.
    seconds: f64,
}

/// Draws of a linear congruential generator, as numbers in (0, 1].
fn draws(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

/// Returns the latencies of the reads in ms, sorted. Requests beyond the drive's depth wait outside
/// of it, reads first.
fn read_latencies_ms(hdd: &mut Hdd, load: &MixedLoad) -> Vec<f64> {
    let (sectors, depth) = (hdd.caps().sectors, hdd.caps().depth_max as usize);
    let (mut draw_place, mut draw_interval) = (draws(1), draws(7));
    let mut interval = || Time((-draw_interval().ln() * 1e9 / load.reads_per_s) as u64);
    let write_bytes = f64::from(WRITE_SECTORS) * SECTOR_BYTES as f64;
    let write_due = |count: u64| match load.write_bytes_per_s {
        0.0 => Time(u64::MAX),
        rate => Time((count as f64 * write_bytes / rate * 1e9) as u64),
    };
    let (mut now, mut next_read, mut write_count, mut id) = (Time::ZERO, interval(), 0, 0);
    let mut waiting_reads = VecDeque::new();
    // Arrival time of each request in the drive: `Some` for a read.
    let mut in_flight: BTreeMap<RequestId, Option<Time>> = BTreeMap::new();
    let mut writes_in_flight = 0;
    let mut latencies_ms = Vec::new();
    while now.seconds() < load.seconds {
        while next_read <= now {
            waiting_reads.push_back(next_read);
            next_read += interval();
        }
        while in_flight.len() < depth {
            id += 1;
            let id = RequestId(id);
            if let Some(arrived_at) = waiting_reads.pop_front() {
                let start = (draw_place() * (sectors - 1) as f64) as u64;
                hdd.submit(now, DeviceRequest { id, op: Op::Read, start, sectors: 1 });
                in_flight.insert(id, Some(arrived_at));
            } else if writes_in_flight < WRITES_IN_FLIGHT_MAX && write_due(write_count) <= now {
                let start = write_count * u64::from(WRITE_SECTORS);
                hdd.submit(now, DeviceRequest { id, op: Op::Write, start, sectors: WRITE_SECTORS });
                in_flight.insert(id, None);
                (write_count, writes_in_flight) = (write_count + 1, writes_in_flight + 1);
            } else {
                break;
            }
        }
        let mut next = hdd.next_event().map_or(next_read, |event| event.min(next_read));
        if writes_in_flight < WRITES_IN_FLIGHT_MAX && in_flight.len() < depth {
            next = next.min(write_due(write_count).max(now));
        }
        now = next;
        while let Some(completion) = hdd.poll(now) {
            match in_flight.remove(&completion.id).expect("each request ends once") {
                None => writes_in_flight -= 1,
                Some(arrived_at) if arrived_at.seconds() > 5.0 => {
                    latencies_ms.push((completion.at - arrived_at).ns() as f64 / 1e6);
                }
                Some(_) => {}
            }
        }
    }
    latencies_ms.sort_by(f64::total_cmp);
    latencies_ms
}

/// Returns the median latency of reads in ms, in 400 seconds.
fn median_ms(text: &str, reads_per_s: f64, write_mb_per_s: f64) -> f64 {
    let write_bytes_per_s = write_mb_per_s * 1e6;
    let load = MixedLoad { reads_per_s, write_bytes_per_s, seconds: 400.0 };
    let latencies_ms = read_latencies_ms(&mut disk(text), &load);
    latencies_ms[latencies_ms.len() / 2]
}

/// Published median latencies of reads of a Toshiba DT01ACA200, from the colors of ScyllaDB's
/// `hdd-toshiba-DT01ACA200.svg`: reads a second, MB/s of writes, ms.
///
/// One of them chose `write_back_tracks`, 43.0 ms. The median without writes chose the seek time.
const PUBLISHED_MEDIANS: [(f64, f64, f64); 12] = [
    (13.0, 0.0, 15.6),
    (13.0, 9.1, 21.6),
    (13.0, 18.2, 22.6),
    (13.0, 36.4, 25.9),
    (13.0, 54.7, 32.2),
    (13.0, 82.0, 43.0),
    (26.0, 0.0, 17.1),
    (26.0, 9.1, 22.9),
    (26.0, 18.2, 24.4),
    (26.0, 36.4, 29.8),
    (52.0, 9.1, 36.9),
    (52.0, 18.2, 39.3),
];

#[test]
fn reads_next_to_writes_have_the_published_medians() {
    for (reads_per_s, write_mb_per_s, published_ms) in PUBLISHED_MEDIANS {
        let ms = median_ms("hdd,drive=sata2012", reads_per_s, write_mb_per_s);
        let ratio = ms / published_ms;
        let load = format!("{reads_per_s} reads/s, {write_mb_per_s} MB/s");
        assert!((ratio - 1.0).abs() <= 0.15, "{load}: {ms}, published {published_ms}");
    }
}

/// One track in a row gives half of the published median. Without writes both are equal.
#[test]
fn longer_write_back_delays_reads_only_next_to_writes() {
    let at = |tracks: u32, write_mb_per_s| {
        let text = format!("hdd,drive=sata2012,write_back_tracks={tracks}");
        median_ms(&text, 13.0, write_mb_per_s)
    };
    assert_eq!(at(1, 0.0), at(8, 0.0));
    let (short_ms, long_ms) = (at(1, 82.0), at(8, 82.0));
    assert!(short_ms < 0.6 * 43.0 && short_ms < 0.6 * long_ms, "{short_ms} and {long_ms}");
}

/// Returns the latency in ms of a read next to writes of `tracks` outer tracks into the cache. The
/// read arrives at 2.5 ms, once the first track is in the cache (0.5 ms and 914 sectors of 1.6 us).
fn latency_after_writes_ms(write_back_tracks: u32, tracks: u64) -> f64 {
    let text = format!(
        "hdd,early_writes=8,cache.write_sectors=100000,cache.write_back_tracks={write_back_tracks}"
    );
    let mut hdd = disk(&text);
    for index in 0..tracks {
        let id = RequestId(index as u32);
        let (start, sectors) = (index * 914, 914);
        hdd.submit(Time::ZERO, DeviceRequest { id, op: Op::Write, start, sectors });
    }
    let arrived_at = Time(2_500_000);
    let id = RequestId(99);
    hdd.submit(arrived_at, DeviceRequest { id, op: Op::Read, start: 40_000_000, sectors: 8 });
    loop {
        let event = hdd.next_event().expect("the read is in flight");
        while let Some(completion) = hdd.poll(event) {
            if completion.id == id {
                return (completion.at - arrived_at).ns() as f64 / 1e6;
            }
        }
    }
}

/// Each further track takes a turn and a head switch (0.6 ms) or a cylinder switch (0.75 ms). The
/// rotational latency of the read differs by less than a turn. The write-back ends with the data.
#[test]
fn read_waits_for_the_tracks_of_a_write_back() {
    let (turn_ms, switch_ms) = (6.0, 0.6);
    let first_ms = latency_after_writes_ms(1, 12);
    for tracks in [3, 6, 9] {
        let further_ms = latency_after_writes_ms(tracks, 12) - first_ms;
        let expected_ms = f64::from(tracks - 1) * (turn_ms + switch_ms);
        let difference_ms = (further_ms - expected_ms).abs();
        assert!(difference_ms < turn_ms, "{tracks} tracks: {further_ms}, {expected_ms}");
    }
    assert_eq!(latency_after_writes_ms(1, 1), latency_after_writes_ms(9, 1));
}
