//! How many requests a second the device models carry out on one core.
//!
//! `cargo run --release -p readpath-sim --example device_speed [REQUESTS] [DEVICE…]`
//!
//! Keeps so many random 4 KiB reads in the device and counts the time that the
//! model takes, with nothing above it. The last column is the modelled rate,
//! which depends on the seed alone. A small REQUESTS is a smoke test.

#![allow(clippy::disallowed_methods)] // It measures on the wall clock and reads its arguments.

use std::time::Instant;

use readpath_core::law::Spec;
use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::Time;
use readpath_sim::device::registry;

const DEVICES: [&str; 4] = ["ssd", "nvme", "raid0:12xssd", "raid0:4xnvme"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let count: u32 = match arguments.next() {
        Some(text) => text.parse()?,
        None => 2_000_000,
    };
    let named: Vec<String> = arguments.collect();
    let names: Vec<&str> = match named.is_empty() {
        true => DEVICES.to_vec(),
        false => named.iter().map(String::as_str).collect(),
    };
    println!("{:24} {:>5} {:>14} {:>14}", "device", "depth", "model req/s", "modelled IOPS");
    for name in names {
        for depth in [1, 32, 256] {
            measure(name, depth, count)?;
        }
    }
    Ok(())
}

fn measure(name: &str, depth: u32, count: u32) -> Result<(), Box<dyn std::error::Error>> {
    let mut device = registry::build(&Spec::parse(name)?, 1)?;
    let caps = device.caps();
    let depth = depth.min(caps.depth_max);
    let (mut state, mut begun, mut done, mut now) = (1u64, 0, 0, Time::ZERO);
    let clock = Instant::now();
    while done < count {
        while begun < count && begun - done < depth {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            let place = (u128::from(state) * u128::from(caps.sectors / 8)) >> 64;
            let id = RequestId(begun);
            let start = place as u64 * 8;
            device.submit(now, DeviceRequest { id, op: Op::Read, start, sectors: 8 });
            begun += 1;
        }
        now = device.next_event().ok_or("the device forgot a request")?;
        while device.poll(now).is_some() {
            done += 1;
        }
    }
    let per_second = f64::from(count) / clock.elapsed().as_secs_f64();
    let modelled = f64::from(count) / now.seconds();
    println!("{name:24} {depth:>5} {per_second:>14.0} {modelled:>14.0}");
    Ok(())
}
