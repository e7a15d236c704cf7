//! Cost of reading a server's file, compared with libnfs's `nfs-cat`: time and processor time.
//!
//! ```text
//! cargo bench -p readpath-eval --bench nfs_stream -- URL [ROUNDS [MEMORY_MIB [ROW]]]
//! ```
//!
//! The file at URL has at least 64 MiB. Each round reads it in sequence by 1 MiB, by 64 KiB, and by
//! 1 MiB without a copy (shared frames of a batch). `nfs-cat` reads it too, if installed. The last
//! rows read at random offsets. Each row opens the file again, with 64 MiB of memory or MEMORY_MIB.
//! ROW, such as `stream-1m`, selects one row, for example under strace(1). The output ends with
//! medians and, for the streams, the ratio to `nfs-cat`.

use std::process::{Command, Stdio};
use std::time::Instant;

use readpath::{File, ReadPath};
use readpath_eval::usage::CpuTime;

/// A row's function: URL, bytes per read, seed, memory in bytes.
type Run = fn(&str, usize, u64, u64) -> Cost;

const ROWS: [(&str, Run, usize); 5] = [
    ("stream-1m", stream, 1 << 20),
    ("stream-64k", stream, 64 << 10),
    ("stream-lent-1m", lent, 1 << 20),
    ("random-64k", random, 64 << 10),
    ("random-4k", random, 4 << 10),
];

/// Random reads per round.
const RANDOM_READS: u64 = 2_000;

/// Cost of one row in one round: seconds and processor seconds per GB.
#[derive(Clone, Copy, Debug)]
struct Cost {
    seconds: f64,
    processor_seconds: f64,
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|word| word != "--bench");
    let url = args.next().expect("URL");
    let rounds = args.next().map_or(5, |text| text.parse().expect("ROUNDS is a number"));
    let memory = args.next().map_or(64, |text| text.parse().expect("MEMORY_MIB is a number"));
    let only = args.next();
    let is_wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let mut costs: Vec<(&str, Vec<Cost>)> = Vec::new();
    for round in 0..rounds {
        for (name, run, bytes) in ROWS.into_iter().filter(|row| is_wanted(row.0)) {
            note(&mut costs, name, run(&url, bytes, round, memory << 20));
        }
        if let Some(cost) = is_wanted("nfs-cat").then(|| nfs_cat(&url)).flatten() {
            note(&mut costs, "nfs-cat", cost);
        }
    }
    let medians: Vec<(&str, Cost)> =
        costs.into_iter().map(|(name, costs)| (name, median(costs))).collect();
    let theirs = medians.iter().find(|(name, _)| *name == "nfs-cat").map(|(_, cost)| *cost);
    for (name, cost) in medians {
        print!(
            "{name:<14} {:7.0} MB/s  {:.3} s of processor time a GB",
            1e3 / cost.seconds,
            cost.processor_seconds
        );
        match theirs.filter(|_| name.starts_with("stream")) {
            Some(theirs) => println!(
                "  nfs-cat: rate ×{:.2}, processor time ×{:.2}",
                theirs.seconds / cost.seconds,
                cost.processor_seconds / theirs.processor_seconds
            ),
            None => println!(),
        }
    }
}

fn note(costs: &mut Vec<(&'static str, Vec<Cost>)>, name: &'static str, cost: Cost) {
    match costs.iter_mut().find(|(of, _)| *of == name) {
        Some((_, costs)) => costs.push(cost),
        None => costs.push((name, vec![cost])),
    }
}

fn median(mut costs: Vec<Cost>) -> Cost {
    let middle = costs.len() / 2;
    costs.sort_by(|one, two| one.seconds.total_cmp(&two.seconds));
    let seconds = costs[middle].seconds;
    costs.sort_by(|one, two| one.processor_seconds.total_cmp(&two.processor_seconds));
    Cost { seconds, processor_seconds: costs[middle].processor_seconds }
}

fn open(url: &str, memory_bytes: u64) -> File {
    let path = ReadPath::builder().memory(memory_bytes);
    path.open(url).unwrap_or_else(|error| panic!("{error}"))
}

fn stream(url: &str, bytes: usize, _: u64, memory_bytes: u64) -> Cost {
    let mut buffer = vec![1; bytes];
    timed(|| {
        let file = open(url, memory_bytes);
        let mut at = 0;
        while at < file.len() {
            at += file.read_at(&mut buffer, at).expect("the server has the file") as u64;
        }
        at
    })
}

/// In sequence with four reads in flight and without a copy.
fn lent(url: &str, bytes: usize, _: u64, memory_bytes: u64) -> Cost {
    timed(|| {
        let file = open(url, memory_bytes);
        let path = file.read_path();
        let mut batch = path.batch();
        let (mut at, mut sum) = (0, 0);
        let mut ask = |batch: &mut readpath::Batch| {
            if at < file.len() {
                batch.read(&file, at, bytes as u64, at).expect("there is memory for it");
                at += bytes as u64;
            }
        };
        (0..4).for_each(|_| ask(&mut batch));
        while let Some(read) = batch.wait().expect("the path carries") {
            let slices = read.slices().expect("the server has the file");
            sum += slices.map(|slice| slice.len() as u64).sum::<u64>();
            ask(&mut batch);
        }
        sum
    })
}

fn random(url: &str, bytes: usize, seed: u64, memory_bytes: u64) -> Cost {
    let mut buffer = vec![1; bytes];
    let mut state = seed;
    let file = open(url, memory_bytes);
    let places = file.len() / bytes as u64;
    timed(|| {
        for _ in 0..RANDOM_READS {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) % places * bytes as u64;
            file.read_exact_at(&mut buffer, at).expect("the server has the file");
        }
        RANDOM_READS * bytes as u64
    })
}

/// Cost of `run` per GB. `run` returns the number of bytes read.
fn timed(run: impl FnOnce() -> u64) -> Cost {
    let (cpu, begun) = (CpuTime::of_process(), Instant::now());
    let gigabytes = run() as f64 / 1e9;
    let processor_seconds = CpuTime::of_process().since(cpu).seconds() / gigabytes;
    Cost { seconds: begun.elapsed().as_secs_f64() / gigabytes, processor_seconds }
}

/// Reads the whole file with the command of libnfs, process start included.
fn nfs_cat(url: &str) -> Option<Cost> {
    let theirs = libnfs_url(url);
    let gigabytes = open(url, 1 << 20).len() as f64 / 1e9;
    let (cpu, begun) = (CpuTime::of_children(), Instant::now());
    let status = Command::new("nfs-cat").arg(&theirs).stdout(Stdio::null()).status().ok()?;
    let seconds = begun.elapsed().as_secs_f64() / gigabytes;
    assert!(status.success(), "nfs-cat {theirs}: {status}");
    let processor_seconds = CpuTime::of_children().since(cpu).seconds() / gigabytes;
    Some(Cost { seconds, processor_seconds })
}

/// The URL in libnfs's form, with the ports as options.
fn libnfs_url(url: &str) -> String {
    let url = readpath::nfs::NfsUrl::parse(url).expect("it was opened");
    let path = String::from_utf8_lossy(&url.path).into_owned();
    let ports = url.port.map(|port| {
        let mount = url.options.mount_port.unwrap_or(port);
        format!("&nfsport={port}&mountport={mount}")
    });
    format!("nfs://{}{path}?version=3{}", url.host, ports.unwrap_or_default())
}
