//! What an operation costs before the read path sees it: nanoseconds per operation of a
//! process, one call of `next` and one of `completed`, on one core.
//!
//! `cargo bench -p readpath-sim --bench process`; without `--bench`, as the tests run it, only a
//! smoke size. A read path that is to take a million requests a second has 1000 ns for each;
//! this part should stay below 50.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use readpath_core::unit::Time;
use readpath_sim::job::JobFile;
use readpath_sim::workload::{Next, Placement, Workload};

const JOBS: &[(&str, &str)] = &[
    ("sequential", "rw=read"),
    ("random", "rw=randread"),
    ("random, repeats allowed", "rw=randread\nnorandommap"),
    ("random, Zipf", "rw=randread\nrandom_distribution=zipf:1.2"),
    ("mix", "rw=randrw\nrwmixread=70"),
    (
        "random, depth 64, batches of 8",
        "rw=randread\nioengine=io_uring\niodepth=64\niodepth_batch=8\niodepth_batch_complete=8",
    ),
];

fn main() {
    let is_smoke = !std::env::args().any(|argument| argument == "--bench");
    let operations = if is_smoke { 1_000 } else { 10_000_000 };
    for (name, options) in JOBS {
        let text = format!("[j]\n{options}\nbs=4k\nsize=4g\ntime_based\nruntime=1d\n");
        let jobs = JobFile::parse(&text).expect("the job is right");
        let mut process = Workload::new(&jobs, Placement::Modelled, 1)
            .expect("a modelled file fits")
            .processes
            .remove(0);
        let begun = Instant::now();
        let (mut done, mut in_flight) = (0_u64, 0);
        while done < operations {
            match process.next(Time(done)) {
                Next::Operation(operation) => {
                    black_box(operation);
                    done += 1;
                    in_flight += 1;
                }
                _ => {
                    for _ in 0..std::mem::take(&mut in_flight) {
                        process.completed(Time(done));
                    }
                }
            }
        }
        let ns = begun.elapsed().as_nanos() as f64 / operations as f64;
        println!("{name:32} {ns:7.1} ns per operation");
    }
}
