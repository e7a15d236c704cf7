//! Cost of an operation in the workload generator: one call of `next` and one of `completed` of a
//! process.
//!
//! A read path with one million requests per second has 1000 ns per request. The generator should
//! take less than 50 ns, or 20 million items per second.

use std::fmt::{self, Display};

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use readpath_core::unit::Time;
use readpath_sim::job::JobFile;
use readpath_sim::workload::{FileSource, NextAction, Workload};

/// Operations per sample.
const OPERATIONS: u64 = 10_000;

/// A job with its name in the output.
struct BenchmarkJob {
    name: &'static str,
    options: &'static str,
}

impl Display for BenchmarkJob {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name)
    }
}

const JOBS: &[BenchmarkJob] = &[
    BenchmarkJob { name: "sequential", options: "rw=read" },
    BenchmarkJob { name: "random", options: "rw=randread" },
    BenchmarkJob { name: "random, repeats allowed", options: "rw=randread\nnorandommap" },
    BenchmarkJob { name: "random, Zipf", options: "rw=randread\nrandom_distribution=zipf:1.2" },
    BenchmarkJob { name: "mix", options: "rw=randrw\nrwmixread=70" },
    BenchmarkJob {
        name: "random, depth 64, batches of 8",
        options: "rw=randread\nioengine=io_uring\niodepth=64\niodepth_batch=8\niodepth_batch_complete=8",
    },
];

#[divan::bench(args = JOBS)]
fn operations(bencher: Bencher, job: &BenchmarkJob) {
    let text = format!("[j]\n{}\nbs=4k\nsize=4g\ntime_based\nruntime=1d\n", job.options);
    let jobs = JobFile::parse(&text).expect("the job is right");
    let mut process = Workload::new(&jobs, FileSource::Modelled, 1)
        .expect("a modelled file fits")
        .processes
        .remove(0);
    let (mut done, mut in_flight) = (0_u64, 0);
    bencher.counter(ItemsCount::new(OPERATIONS)).bench_local(|| {
        let end = done + OPERATIONS;
        while done < end {
            match process.next(Time(done)) {
                NextAction::Operation(operation) => {
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
    });
}
