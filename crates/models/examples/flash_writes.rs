//! Write throughput of simulated solid-state drives, and latency of reads during writes.
//!
//! `cargo run --release -p readpath-models --example flash_writes [REQUESTS] [DEVICE…]`
//!
//! The loads are:
//!
//! - random 4 KiB writes at depth 128;
//! - sequential 128 KiB writes at depth 32;
//! - random 4 KiB reads, one at a time, during random writes at a given rate;
//! - random 512-byte reads at random times, during sequential 128 KiB writes at a share of the
//!   drive's sequential write throughput.

use std::collections::BTreeMap;

use readpath_core::policy::Spec;
use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::Time;
use readpath_models::{BoxedDevice, registry};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let count: u32 = match arguments.next() {
        Some(text) => text.parse()?,
        None => 2_000_000,
    };
    let named: Vec<String> = arguments.collect();
    let names: Vec<&str> = match named.is_empty() {
        true => vec!["ssd", "nvme", "mqsim"],
        false => named.iter().map(String::as_str).collect(),
    };
    for name in names {
        let build = || registry::build(&Spec::parse(name).expect("a device"), 1).expect("a device");
        let per_s = |(seconds, count): (f64, u32)| f64::from(count) / seconds;
        let random = per_s(writes(build(), count, 8, 128, true));
        let sequential = per_s(writes(build(), count / 20, 256, 32, false)) * 131_072.0 / 1e6;
        println!("{name}: {random:.0} random writes/s, {sequential:.0} MB/s in sequence");
        for writes_per_s in [0, 10_000, 30_000] {
            let load = ReadWriteLoad { writes_per_s, ..SINGLE_PAGE_READS };
            let latencies = beside(build(), count / 20, load);
            println!("  reads beside {writes_per_s} writes/s: {}", percentiles(latencies));
        }
        for (reads_per_s, percent) in
            [(13_436, 0), (13_436, 5), (13_436, 20), (67_389, 35), (13_436, 40), (67_389, 70)]
        {
            let writes_per_s = sequential * 1e6 / 131_072.0 * f64::from(percent) / 100.0;
            let load = ReadWriteLoad {
                reads_per_s: Some(reads_per_s),
                read_sectors: 1,
                writes_per_s: writes_per_s as u64,
                write_sectors: 256,
                is_random: false,
            };
            let latencies = beside(build(), count / 5, load);
            println!(
                "  {reads_per_s} reads/s beside {percent} % of {sequential:.0} MB/s: {}",
                percentiles(latencies)
            );
        }
    }
    Ok(())
}

/// Returns a generator of random 4 KiB pages, as start sectors.
fn draws(sectors: u64) -> impl FnMut() -> u64 {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        ((u128::from(state) * u128::from(sectors / 8)) >> 64) as u64 * 8
    }
}

/// Returns the duration of the second half of `count` writes, and the number of writes in that
/// half.
fn writes(
    mut device: BoxedDevice,
    count: u32,
    sectors: u32,
    depth: u32,
    is_random: bool,
) -> (f64, u32) {
    let mut draw = draws(device.caps().sectors);
    let depth = depth.min(device.caps().depth_max);
    let (mut now, mut begun, mut done, mut half) = (Time::ZERO, 0, 0, Time::ZERO);
    while done < count {
        while begun < count && begun - done < depth {
            let start = if is_random { draw() } else { u64::from(begun) * u64::from(sectors) };
            device
                .submit(now, DeviceRequest { id: RequestId(begun), op: Op::Write, start, sectors });
            begun += 1;
        }
        now = device.next_event().expect("something is in flight");
        while device.poll(now).is_some() {
            done += 1;
            if done == count / 2 {
                half = now;
            }
        }
    }
    ((now - half).seconds(), count - count / 2)
}

/// Parameters of a load of reads and concurrent writes.
#[derive(Clone, Copy)]
struct ReadWriteLoad {
    /// Reads per second, at random times. With `None`, each read starts when the previous one ends.
    reads_per_s: Option<u32>,
    read_sectors: u32,
    writes_per_s: u64,
    write_sectors: u32,
    /// True for random writes, false for sequential ones.
    is_random: bool,
}

/// One 4 KiB read at a time, without writes.
const SINGLE_PAGE_READS: ReadWriteLoad = ReadWriteLoad {
    reads_per_s: None,
    read_sectors: 8,
    writes_per_s: 0,
    write_sectors: 8,
    is_random: true,
};

/// Returns the latencies of `count` random reads.
fn beside(mut device: BoxedDevice, count: u32, load: ReadWriteLoad) -> Vec<Time> {
    /// Time of an event that does not occur.
    const NEVER: Time = Time(u64::MAX);
    /// Bit that marks the identifier of a write.
    const WRITE: u32 = 1 << 31;
    let (sectors, depth) = (device.caps().sectors, device.caps().depth_max);
    let mut draw = draws(sectors);
    // Exponentially distributed intervals, as between independent arrivals.
    let mut interval_draw = draws(1 << 40);
    let mut interval = |reads_per_s: u32| {
        let share = (interval_draw() + 8) as f64 / (1u64 << 40) as f64;
        Time((-share.ln() * 1e9 / f64::from(reads_per_s)) as u64)
    };
    let mut latencies = Vec::new();
    let mut reads = BTreeMap::new();
    let (mut now, mut in_flight, mut read_count, mut write_count) = (Time::ZERO, 0, 0, 0);
    let mut next_read = Time::ZERO;
    let mut next_write = if load.writes_per_s == 0 { NEVER } else { Time::ZERO };
    while latencies.len() < count as usize {
        while next_read <= now && in_flight < depth {
            let id = RequestId(read_count);
            let start = draw();
            device
                .submit(now, DeviceRequest { id, op: Op::Read, start, sectors: load.read_sectors });
            reads.insert(id, next_read);
            (read_count, in_flight) = (read_count + 1, in_flight + 1);
            next_read = load.reads_per_s.map_or(NEVER, |rate| next_read + interval(rate));
        }
        while next_write <= now && in_flight < depth {
            let id = RequestId(WRITE | (write_count % WRITE));
            let places = sectors / u64::from(load.write_sectors);
            let in_order = u64::from(write_count) % places * u64::from(load.write_sectors);
            let start = if load.is_random { draw() } else { in_order };
            device.submit(
                now,
                DeviceRequest { id, op: Op::Write, start, sectors: load.write_sectors },
            );
            (write_count, in_flight) = (write_count + 1, in_flight + 1);
            next_write += Time(1_000_000_000 / load.writes_per_s);
        }
        let event = device.next_event().unwrap_or(NEVER);
        now = if in_flight < depth { event.min(next_read).min(next_write) } else { event };
        while let Some(completion) = device.poll(now) {
            in_flight -= 1;
            if let Some(came_at) = reads.remove(&completion.id) {
                latencies.push(completion.at - came_at);
                next_read = if load.reads_per_s.is_none() { now } else { next_read };
            }
        }
    }
    latencies
}

fn percentiles(mut latencies: Vec<Time>) -> String {
    latencies.sort();
    let at = |share: f64| latencies[(latencies.len() as f64 * share) as usize].ns() / 1_000;
    let [p50, p99, p99_9, p99_99] = [0.5, 0.99, 0.999, 0.9999].map(at);
    format!("p50 {p50} µs, p99 {p99}, p99.9 {p99_9}, p99.99 {p99_99}")
}
