//! Decisions of the simulation, run by run, compared with a record.
//!
//! Each line of `recorded/decisions.txt` is one run: device, policies, job or load, and the hash of
//! all its requests and completions. A change without effect on decisions leaves all lines equal. A
//! change with an effect records them again, and its commit names the changed runs and the reason:
//!
//! ```sh
//! cargo test -p readpath-sim --test all -- --ignored decisions::record
//! ```

use std::fmt::Write;

use readpath_core::policy::Spec;
use readpath_sim::job::JobFile;
use readpath_sim::load::{LoadSetup, MemoryLoad, MemorySharing, TouchPattern, simulate_load};
use readpath_sim::run::{ProgressAnswer, RunObserver};
use readpath_sim::simulate::{SimulationSetup, simulate};

const RECORDED: &str = include_str!("recorded/decisions.txt");

/// Disks, flash, arrays, servers, and devices that fail or change during the run.
const DEVICES: [&str; 10] = [
    "hdd",
    "hdd,drive=sata",
    "ssd",
    "nvme",
    "raid0:4xhdd",
    "array:6xssd",
    "nfs",
    "object",
    "faulty:ssd,fail_every=50",
    "changing:nvme+ssd,at=20ms",
];
const READAHEAD: [&str; 6] = ["none", "window", "window-fixed", "ondemand", "runs", "adaptive"];
const SCHEDULERS: [&str; 5] = ["noop", "deadline", "cfq", "cfq,seeky=mean", "adaptive"];
const SWAPIN: [&str; 5] = ["none", "cluster", "hits", "vma", "adaptive"];

/// Jobs by name. Each moves some megabytes.
const JOBS: [(&str, &str); 15] = [
    ("stream", "rw=read\nbs=64k\nsize=8m\n"),
    ("small", "rw=read\nbs=4k\nsize=2m\n"),
    (
        "random",
        "rw=randread\nrandom_generator=permutation\nbs=16k\nsize=256m\nio_size=4m\nioengine=libaio\niodepth=16\n",
    ),
    ("unaligned", "rw=randread\nrandom_generator=permutation\nbs=10k\nsize=64m\nio_size=2m\n"),
    (
        "mapped",
        "rw=randread\nrandom_generator=permutation\nbs=64k\nsize=64m\nio_size=4m\nioengine=mmap\n",
    ),
    ("mapped-stream", "rw=read\nbs=64k\nsize=4m\nioengine=mmap\n"),
    (
        "direct",
        "rw=randread\nrandom_generator=permutation\nbs=4k\ndirect=1\nsize=64m\nio_size=2m\nioengine=libaio\niodepth=8\n",
    ),
    ("direct-stream", "rw=read\nbs=1m\ndirect=1\nsize=16m\n"),
    ("streams", "rw=read\nbs=64k\nsize=2m\nnumjobs=8\n"),
    (
        "readers",
        "rw=randread\nrandom_generator=permutation\nbs=64k\nsize=16m\nio_size=512k\nnumjobs=8\nioengine=mmap\n",
    ),
    (
        "mixed",
        "rw=randrw\nrandom_generator=permutation\nbs=16k\ndirect=1\nsize=32m\nio_size=2m\nioengine=libaio\niodepth=4\n",
    ),
    ("raw", "rw=read\nbs=2m\nioengine=raw\nsize=16m\n"),
    (
        "zipf",
        "rw=randread\nrandom_generator=permutation\nbs=8k\nsize=64m\nio_size=2m\nrandom_distribution=zipf\nnorandommap\n",
    ),
    (
        "urgent",
        "rw=read\nbs=64k\nsize=2m\n[k]\nrw=randread\nrandom_generator=permutation\nbs=4k\nsize=8m\nio_size=1m\nprio=0\n",
    ),
    ("asleep", "rw=read\nbs=32k\nsize=2m\nthinktime=200\nnumjobs=2\n"),
];

/// Every run in the format of the record.
fn runs() -> String {
    let mut text = String::new();
    let mut at = 0;
    for device in DEVICES {
        for readahead in READAHEAD {
            for scheduler in SCHEDULERS {
                // Two of the fifteen jobs per combination. Seven is coprime to fifteen, so every
                // job meets every device and every policy.
                for step in 0..2 {
                    let (name, job) = JOBS[(at * 7 + step * 4) % JOBS.len()];
                    let decisions = job_decisions(device, readahead, scheduler, job);
                    let policies = format!("{readahead} {scheduler}");
                    writeln!(text, "{device} {policies} {name}: {decisions}").expect("memory");
                }
                at += 1;
            }
        }
    }
    for device in ["hdd", "ssd", "array:6xssd"] {
        for swapin in SWAPIN {
            for (name, load) in loads() {
                let decisions = load_decisions(device, swapin, &load);
                writeln!(text, "{device} {swapin} {name}: {decisions}").expect("memory");
            }
        }
    }
    text
}

fn job_decisions(device: &str, readahead: &str, scheduler: &str, job: &str) -> String {
    let job = JobFile::parse(&format!("[j]\n{job}")).expect("a job of this file");
    let spec = |text| Spec::parse(text).expect("a name of this file");
    let setup = SimulationSetup {
        readahead: spec(readahead),
        scheduler: spec(scheduler),
        memory_bytes: 6 << 20,
        ..SimulationSetup::new(spec(device))
    };
    simulate("decisions", &job, &setup, &mut |_| ProgressAnswer::Continue)
        .map_or_else(|error| error.to_string(), |row| row.decisions.expect("a modelled run"))
}

fn load_decisions(device: &str, swapin: &str, load: &MemoryLoad) -> String {
    let spec = |text| Spec::parse(text).expect("a name of this file");
    let setup = LoadSetup { swapin: spec(swapin), ..LoadSetup::new(spec(device)) };
    simulate_load(load, &setup, RunObserver::progress(&mut |_| ProgressAnswer::Continue))
        .map_or_else(|error| error.to_string(), |row| row.decisions.expect("a modelled run"))
}

fn loads() -> [(&'static str, MemoryLoad); 4] {
    const MIB: u64 = 1 << 20;
    let sweep = MemoryLoad { touches: 6_000, ..MemoryLoad::new("sweep", 8 * MIB, 6 * MIB) };
    let random = MemoryLoad { pattern: TouchPattern::Random, touches: 3_000, ..sweep.clone() };
    let shared = MemoryLoad {
        share: MemorySharing::Shared,
        writes_percent: 30,
        processes: 2,
        ..random.clone()
    };
    let many = MemoryLoad {
        processes: 4,
        mapping_bytes: 3 * MIB,
        swap_bytes: 12 * MIB,
        touches: 1_500,
        writes_percent: 50,
        ..sweep.clone()
    };
    [("sweep", sweep), ("random", random), ("shared", shared), ("many", many)]
}

#[test]
fn every_recorded_run_repeats_its_decisions() {
    let now = runs();
    let changed: Vec<(&str, &str)> =
        RECORDED.lines().zip(now.lines()).filter(|(before, after)| before != after).collect();
    assert!(
        changed.is_empty() && RECORDED.lines().count() == now.lines().count(),
        "{} of {} runs decide differently; the first: {:?}",
        changed.len(),
        now.lines().count(),
        changed.first()
    );
}

/// Runs without a hash would check nothing.
#[test]
fn every_recorded_run_has_ended_with_a_hash() {
    assert!(RECORDED.lines().count() >= 300);
    for line in RECORDED.lines() {
        let hash = line.rsplit(' ').next().expect("a line has words");
        assert!(hash.len() == 16 && u64::from_str_radix(hash, 16).is_ok(), "{line}");
    }
}

#[test]
#[ignore = "remakes the record"]
#[allow(clippy::disallowed_methods, reason = "the record is a file of this folder")]
fn record() {
    let name = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recorded/decisions.txt");
    std::fs::write(name, runs()).expect("the record lies in this folder");
}
