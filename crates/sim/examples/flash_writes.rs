//! How fast modelled solid-state drives write, and how long reads beside take.
//!
//! `cargo run --release -p readpath-sim --example flash_writes [REQUESTS] [DEVICE…]`
//!
//! Random 4 KiB writes at depth 128; writes of 128 KiB in sequence at depth 32; and
//! random 4 KiB reads, one at a time, beside random writes at the rate given.

use readpath_core::law::Spec;
use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::Time;
use readpath_sim::device::{BoxedDevice, registry};

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
            let mut latencies = beside(build(), count / 20, writes_per_s);
            latencies.sort();
            let at = |share: f64| latencies[(latencies.len() as f64 * share) as usize].ns() / 1_000;
            println!(
                "  reads beside {writes_per_s} writes/s: p50 {} µs, p99 {}, p99.9 {}, p99.99 {}",
                at(0.5),
                at(0.99),
                at(0.999),
                at(0.9999)
            );
        }
    }
    Ok(())
}

/// Random pages of 4 KiB, as start sectors.
fn draws(sectors: u64) -> impl FnMut() -> u64 {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        ((u128::from(state) * u128::from(sectors / 8)) >> 64) as u64 * 8
    }
}

/// The time that the second half of `count` writes took, and how many these are.
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

/// Latencies of `count` reads, one at a time, beside so many writes a second.
fn beside(mut device: BoxedDevice, count: u32, writes_per_s: u64) -> Vec<Time> {
    let mut draw = draws(device.caps().sectors);
    let depth = device.caps().depth_max;
    let mut latencies = Vec::new();
    let (mut now, mut read_at, mut in_flight, mut ids) = (Time::ZERO, None, 0, 0);
    let mut next_write = if writes_per_s == 0 { Time(u64::MAX) } else { Time::ZERO };
    while latencies.len() < count as usize {
        if read_at.is_none() && in_flight < depth {
            let request =
                DeviceRequest { id: RequestId(0), op: Op::Read, start: draw(), sectors: 8 };
            device.submit(now, request);
            read_at = Some(now);
            in_flight += 1;
        }
        while next_write <= now && in_flight < depth {
            ids = ids % 1_000_000 + 1;
            let request =
                DeviceRequest { id: RequestId(ids), op: Op::Write, start: draw(), sectors: 8 };
            device.submit(now, request);
            in_flight += 1;
            next_write += Time(1_000_000_000 / writes_per_s);
        }
        let event = device.next_event().expect("a read is in flight");
        now = if in_flight < depth { event.min(next_write) } else { event };
        while let Some(completion) = device.poll(now) {
            in_flight -= 1;
            if completion.id.0 == 0 {
                latencies.push(completion.at - read_at.take().expect("it was under way"));
            }
        }
    }
    latencies
}
