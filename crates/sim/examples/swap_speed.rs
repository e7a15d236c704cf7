//! How fast the modelled world touches memory, and table B's cells one by one:
//! `cargo run --release -p readpath-sim --example swap_speed -- DEVICE LAW random|sequential private|shared SCHEDULER`.

#![allow(clippy::disallowed_methods, reason = "a benchmark has a clock")]

use std::time::Instant;

use readpath_core::law::Spec;
use readpath_sim::load::{Load, LoadSetup, MemoryHost, Pattern, Share, simulate_load};
use readpath_sim::run::{Go, Watch};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [device, law, pattern, share, scheduler] = words.as_slice() else {
        panic!("give DEVICE LAW random|sequential private|shared SCHEDULER");
    };
    let is_random = pattern == "random";
    let load = Load {
        swap_bytes: 1 << 30,
        pattern: if is_random { Pattern::Random } else { Pattern::Sequential },
        touches: if is_random { 5_000_000 } else { 5 * 256_000 },
        writes_percent: 100,
        share: if share == "shared" { Share::Shared } else { Share::Private },
        ..Load::new("speed", 1000 << 20, 900 << 20)
    };
    let setup = LoadSetup {
        swapin: Spec::parse(law).expect("a law"),
        scheduler: Spec::parse(scheduler).expect("a scheduler"),
        write_pages_max: Some(32),
        host: MemoryHost::OF_2012,
        ..LoadSetup::new(Spec::parse(device).expect("a device"))
    };
    let start = Instant::now();
    let row =
        simulate_load(&load, &setup, Watch::progress(&mut |_| Go::On)).expect("it can be run");
    let took = start.elapsed().as_secs_f64();
    println!(
        "{device} {law} {pattern} {share} {scheduler}: {:.1} s modelled, {} in, {} out, {} major, {:.0} MiB wasted; \
         {took:.2} s, {:.1} million touches/s",
        row.seconds.unwrap_or(f64::NAN),
        row.pages_in.unwrap_or(0),
        row.pages_out.unwrap_or(0),
        row.major_faults.unwrap_or(0),
        row.waste_bytes.unwrap_or(0) as f64 / f64::from(1 << 20),
        row.touches.unwrap_or(0) as f64 / took / 1e6,
    );
}
