//! How fast the hard-disk model runs, and what the built-in drives do.
//!
//! `cargo run --release -p readpath-sim --example hdd_speed [-- REQUESTS]`

#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::time::Instant;

use readpath_core::law::Spec;
use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::Time;
use readpath_sim::device::Device;
use readpath_sim::device::hdd::{Hdd, build_hdd, drives};

/// One way of asking: sectors a request, requests in flight, and the span they fall in.
struct Load {
    name: &'static str,
    sectors: u32,
    depth: u32,
    span_sectors: u64,
    is_random: bool,
}

fn main() {
    let requests = std::env::args().nth(1).map_or(20_000, |text| text.parse().expect("a count"));
    let whole = u64::MAX;
    let loads = [
        Load { name: "random 4 KiB", sectors: 8, depth: 1, span_sectors: whole, is_random: true },
        Load { name: "random 4 KiB", sectors: 8, depth: 32, span_sectors: whole, is_random: true },
        Load {
            name: "random 64 KiB in 1 GiB",
            sectors: 128,
            depth: 1,
            span_sectors: 1 << 21,
            is_random: true,
        },
        Load {
            name: "random 64 KiB in 1 GiB",
            sectors: 128,
            depth: 64,
            span_sectors: 1 << 21,
            is_random: true,
        },
        Load {
            name: "sequential 4 KiB",
            sectors: 8,
            depth: 1,
            span_sectors: whole,
            is_random: false,
        },
        Load {
            name: "sequential 64 KiB",
            sectors: 128,
            depth: 1,
            span_sectors: whole,
            is_random: false,
        },
        Load {
            name: "sequential 512 KiB",
            sectors: 1024,
            depth: 4,
            span_sectors: whole,
            is_random: false,
        },
    ];
    for (name, _) in drives() {
        println!("{name}");
        for load in &loads {
            let spec = Spec::parse(&format!("hdd,drive={name}")).expect("a spec");
            let mut hdd = build_hdd(&spec, 1).expect("a built-in drive");
            measure(&mut hdd, load, requests);
        }
    }
}

fn measure(hdd: &mut Hdd, load: &Load, requests: u32) {
    let depth = load.depth.min(hdd.caps().depth_max);
    let span = load.span_sectors.min(hdd.sectors()) / u64::from(load.sectors);
    let mut state = 1u64;
    let mut arrived = BTreeMap::new();
    let mut latencies = Vec::with_capacity(requests as usize);
    let mut submitted = 0u32;
    let started = Instant::now();
    let mut now = Time(0);
    while latencies.len() < requests as usize {
        while submitted < requests && arrived.len() < depth as usize {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let nth =
                if load.is_random { (state >> 20) % span } else { u64::from(submitted) % span };
            let (id, start) = (RequestId(submitted), nth * u64::from(load.sectors));
            hdd.submit(now, DeviceRequest { id, op: Op::Read, start, sectors: load.sectors });
            arrived.insert(id, now);
            submitted += 1;
        }
        now = hdd.next_event().expect("something is in flight");
        while let Some(completion) = hdd.poll(now) {
            let since = arrived.remove(&completion.id).expect("it was submitted");
            latencies.push((completion.at - since).ns());
        }
    }
    let wall = started.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize] as f64 / 1e6;
    println!(
        "  {:24} depth {:3}: {:8.1}/s {:7.2} MB/s  mean {:7.3} median {:7.3} p99 {:7.3} ms; {:9.0} requests/s of wall time",
        load.name,
        depth,
        f64::from(requests) / now.seconds(),
        f64::from(requests) * f64::from(load.sectors) * 512.0 / now.seconds() / 1e6,
        latencies.iter().sum::<u64>() as f64 / latencies.len() as f64 / 1e6,
        at(0.5),
        at(0.99),
        f64::from(requests) / wall
    );
}
