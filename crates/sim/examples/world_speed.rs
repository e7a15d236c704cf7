//! How fast the modelled world runs: requests a second of real time, on one core.
//!
//! `cargo run --release -p readpath-sim --example world_speed [OPERATIONS]`
//!
//! Random direct reads of 4 KiB with 32 in flight (the cache is not used),
//! through the whole path: workload, machine, scheduler, device. Memory is the
//! process's peak, so that a longer run shows that it stays flat.

#![allow(clippy::disallowed_methods, reason = "a benchmark has a clock, and looks at its process")]

use std::time::Instant;

use readpath_core::law::Spec;
use readpath_sim::job::JobFile;
use readpath_sim::run::Go;
use readpath_sim::simulate::{Setup, simulate};

fn main() {
    let operations: u64 = match std::env::args().nth(1).map(|text| text.parse()) {
        None => 2_000_000,
        Some(Ok(operations)) => operations,
        Some(Err(_)) => {
            eprintln!("usage: world_speed [OPERATIONS]");
            std::process::exit(2);
        }
    };
    println!("device     scheduler  requests   requests/s  virtual s  peak MiB");
    for (device, scheduler) in [
        ("ssd", "noop"),
        ("ssd", "deadline"),
        ("nvme", "noop"),
        ("hdd", "noop"),
        ("hdd", "deadline"),
    ] {
        let job = format!(
            "[r]\nrw=randread\nbs=4k\nsize=16g\nio_size={}\ndirect=1\nioengine=libaio\niodepth=32\n",
            operations * 4096
        );
        let job = JobFile::parse(&job).expect("the job is well formed");
        let setup = Setup {
            scheduler: Spec::plain(scheduler),
            memory_bytes: 4096,
            ..Setup::new(Spec::plain(device))
        };
        let start = Instant::now();
        let row = simulate("speed", &job, &setup, &mut |_| Go::On).expect("the run is well formed");
        let requests = row.device_requests.unwrap_or(0);
        println!(
            "{device:10} {scheduler:9} {requests:9} {:12.0} {:10.1} {}",
            requests as f64 / start.elapsed().as_secs_f64(),
            row.seconds,
            peak_mib().map_or_else(|| "        -".to_owned(), |mib| format!("{mib:9.1}")),
        );
    }
}

/// The most memory that the process has had so far (`VmHWM`), where the system tells.
fn peak_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}
