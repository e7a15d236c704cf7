//! Read speed of a `File`, compared with the baselines in the same run.
//!
//! `cargo bench -p readpath-eval --bench file_speed -- FILE [ROUNDS [GROUP]] [--json]`
//!
//! FILE has at least 1 GiB. Cached reads are compared with `pread` from the kernel page cache and
//! with `memcpy`. Cold reads are compared with fio and with the kernel's buffered read. Each round
//! runs all contenders of a group, and starts with another one. The output is the median over
//! rounds: the time per read (for cold reads also the processor time).

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use readpath::{Advice, PageCache, ReadPath};
use readpath_eval::usage::CpuTime;

/// Number of bytes and reads in a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Bytes that are cached and read at random offsets.
    pub cached_bytes: usize,
    /// Cached reads of a measurement.
    pub cached_reads: u32,
    /// Number of random cold reads of 64 KiB. Reads of 4 KiB are three times as many.
    pub cold_reads: u32,
    /// Bytes read sequentially.
    pub stream_bytes: u64,
}

/// The size of a measurement.
pub const FULL: Size = Size {
    cached_bytes: 64 << 20,
    cached_reads: 100_000,
    cold_reads: 30_000,
    stream_bytes: 1 << 30,
};

/// Cost of one read in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Elapsed time per read.
    pub ns: f64,
    /// Processor time per read.
    pub cpu_ns: f64,
}

/// Runs `reads` reads. `read` gets a random number each time.
fn timed(reads: u32, mut read: impl FnMut(u64)) -> Cost {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let (cpu, start) = (CpuTime::of_process(), Instant::now());
    for _ in 0..reads {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        read(state >> 32);
    }
    cost(reads, start, cpu)
}

fn cost(reads: u32, start: Instant, cpu: CpuTime) -> Cost {
    Cost {
        ns: start.elapsed().as_nanos() as f64 / f64::from(reads),
        cpu_ns: CpuTime::of_process().since(cpu).seconds() * 1e9 / f64::from(reads),
    }
}

/// A contender: its name and a function that makes one measurement.
pub type Contender<'a> = (&'static str, Box<dyn FnMut() -> Option<Cost> + 'a>);

/// Medians of `rounds` measurements of each contender. With `is_warmed`, each measurement is the
/// second of two in a row. The host of a virtual machine takes back memory that was free for two
/// seconds. The first touch then costs up to 2 ns per byte, thirty times the cost of clearing it.
/// Without a first run, chance decides which contender pays.
pub fn race(contenders: &mut [Contender<'_>], rounds: usize, is_warmed: bool) -> Vec<Option<Cost>> {
    let mut costs: Vec<Vec<Cost>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            if is_warmed {
                (contenders[at].1)();
            }
            costs[at].extend((contenders[at].1)());
        }
    }
    let median = |costs: &[Cost], of: fn(&Cost) -> f64| {
        let mut values: Vec<f64> = costs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let medians = costs.iter().map(|costs| {
        (!costs.is_empty()).then(|| Cost {
            ns: median(costs, |cost| cost.ns),
            cpu_ns: median(costs, |cost| cost.cpu_ns),
        })
    });
    medians.collect()
}

/// Time per read with `count` threads, each at its own random offsets.
fn threads(
    count: usize,
    reads: u32,
    bytes: usize,
    places: u64,
    read: &(dyn Fn(&mut [u8], usize) + Sync),
) -> Cost {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..count {
            scope.spawn(move || {
                let mut buffer = vec![0; bytes];
                timed(reads, |random| {
                    let place = random.wrapping_add(thread as u64 * 77) % places;
                    read(&mut buffer, place as usize * bytes);
                })
            });
        }
    });
    let ns = start.elapsed().as_nanos() as f64 / f64::from(reads) / count as f64;
    Cost { ns, cpu_ns: ns }
}

/// Cached reads of `bytes` bytes at random offsets.
pub fn cached(
    name: &Path,
    size: Size,
    bytes: usize,
    rounds: usize,
) -> Vec<(&'static str, Option<Cost>)> {
    let places = (size.cached_bytes / bytes) as u64;
    let open = |policy: &str| {
        let path =
            ReadPath::builder().memory(size.cached_bytes as u64 * 2).readahead(policy).build();
        let file = path.expect("there is a ring").open(name).expect("the file is there");
        let mut all = vec![0; size.cached_bytes];
        file.read_exact_at(&mut all, 0).expect("the file is as long");
        // Once more, past the pages marked by the policy.
        file.read_exact_at(&mut all, 0).expect("the file is as long");
        (file, all)
    };
    let (file, memory) = open("ondemand");
    let (without_policy, _) = open("none");
    let (by_evidence, _) = open("adaptive");
    let plain = std::fs::File::open(name).expect("the file is there");
    plain.read_exact_at(&mut vec![0; size.cached_bytes], 0).expect("the file is as long");
    let reads = (size.cached_reads / (bytes / 4096) as u32).max(100);
    let mut buffers: [Vec<u8>; 5] = std::array::from_fn(|_| vec![0; bytes]);
    let [ours, bare, evident, theirs, copy] = &mut buffers;
    let by_file = |buffer: &mut [u8], offset: usize| {
        file.read_exact_at(buffer, offset as u64).expect("cached");
    };
    let by_copy = |buffer: &mut [u8], offset: usize| {
        buffer.copy_from_slice(std::hint::black_box(&memory[offset..offset + bytes]));
        std::hint::black_box(buffer);
    };
    let mut contenders: Vec<Contender<'_>> = vec![
        (
            "read_at",
            Box::new(|| {
                Some(timed(reads, |random| {
                    file.read_exact_at(ours, random % places * bytes as u64).expect("cached");
                }))
            }),
        ),
        (
            "read_at, policy none",
            Box::new(|| {
                Some(timed(reads, |random| {
                    without_policy
                        .read_exact_at(bare, random % places * bytes as u64)
                        .expect("cached");
                }))
            }),
        ),
        (
            "read_at, policy adaptive",
            Box::new(|| {
                Some(timed(reads, |random| {
                    by_evidence
                        .read_exact_at(evident, random % places * bytes as u64)
                        .expect("cached");
                }))
            }),
        ),
        (
            "page guard",
            Box::new(|| {
                let places = (size.cached_bytes / 4096) as u64;
                Some(timed(reads, |random| {
                    let guard = file.page(random % places * 4096).expect("cached");
                    std::hint::black_box(guard[0]);
                }))
            }),
        ),
        (
            "page guard, not looked at",
            Box::new(|| {
                let places = (size.cached_bytes / 4096) as u64;
                Some(timed(reads, |random| {
                    std::hint::black_box(file.page(random % places * 4096).expect("cached"));
                }))
            }),
        ),
        (
            "pread",
            Box::new(|| {
                Some(timed(reads, |random| {
                    plain.read_exact_at(theirs, random % places * bytes as u64).expect("cached");
                }))
            }),
        ),
        (
            "memcpy",
            Box::new(|| {
                Some(timed(reads, |random| by_copy(copy, (random % places) as usize * bytes)))
            }),
        ),
        ("one thread", Box::new(|| Some(threads(1, 2 * reads, bytes, places, &by_file)))),
        ("two threads", Box::new(|| Some(threads(2, 2 * reads, bytes, places, &by_file)))),
        ("memcpy, one thread", Box::new(|| Some(threads(1, 2 * reads, bytes, places, &by_copy)))),
        ("memcpy, two threads", Box::new(|| Some(threads(2, 2 * reads, bytes, places, &by_copy)))),
    ];
    let costs = race(&mut contenders, rounds, false);
    contenders.iter().map(|(name, _)| *name).zip(costs).collect()
}

/// Cold reads of `bytes` bytes at random offsets, 32 in flight.
pub fn random(
    name: &Path,
    size: Size,
    bytes: u64,
    rounds: usize,
) -> Vec<(&'static str, Option<Cost>)> {
    let reads = if bytes < 65_536 { 3 * size.cold_reads } else { size.cold_reads };
    let ours = |is_copied: bool, scheduler: &'static str| {
        move || {
            let memory = (bytes * 32 * 4).max(16 << 20);
            let path = ReadPath::builder().memory(memory).readahead("none").scheduler(scheduler);
            let path = path.build().expect("a ring");
            forget(name);
            let file = path.open(name).expect("the file is there");
            let places = file.len() / bytes;
            let mut batch = path.batch();
            let mut buffer = vec![0; bytes as usize];
            let mut started = 0;
            let cost = timed(reads, |random| {
                batch.read(&file, random % places * bytes, bytes, 0).expect("there is room");
                started += 1;
                if started < 32 {
                    return;
                }
                let read = batch.wait().expect("the ring goes on").expect("reads are under way");
                match is_copied {
                    true => assert_eq!(read.copy_to(&mut buffer).expect("read"), buffer.len()),
                    false => assert_eq!(read.bytes().expect("read"), bytes),
                }
            });
            Some(cost)
        }
    };
    let mut contenders: Vec<Contender<'_>> = vec![
        ("batch", Box::new(ours(false, "adaptive"))),
        ("batch, scheduler noop", Box::new(ours(false, "noop"))),
        ("batch, copied", Box::new(ours(true, "adaptive"))),
        (
            "fio io_uring",
            Box::new(|| {
                let io_size = bytes * u64::from(reads);
                fio(
                    name,
                    &["--rw=randread", "--direct=1", "--iodepth=32", "--norandommap=1"],
                    bytes,
                    io_size,
                )
            }),
        ),
    ];
    let costs = race(&mut contenders, rounds, true);
    contenders.iter().map(|(name, _)| *name).zip(costs).collect()
}

/// One cold stream in reads of 1 MiB.
pub fn stream(name: &Path, size: Size, rounds: usize) -> Vec<(&'static str, Option<Cost>)> {
    const BYTES: u64 = 1 << 20;
    let reads = (size.stream_bytes / BYTES) as u32;
    let ours = |policy: Option<&'static str>| {
        move || {
            let path = match policy {
                Some(policy) => ReadPath::builder()
                    .page_cache(PageCache::Own { bytes: None })
                    .readahead(policy)
                    .build(),
                None => ReadPath::builder().build(),
            };
            forget(name);
            let file = path.expect("a ring").open(name).expect("the file is there");
            if policy.is_some() {
                file.advise(Advice::Sequential);
            }
            let mut buffer = vec![0; BYTES as usize];
            let mut place = 0;
            Some(timed(reads, |_| {
                file.read_exact_at(&mut buffer, place).expect("the file is as long");
                place += BYTES;
            }))
        }
    };
    let mut contenders: Vec<Contender<'_>> = vec![
        ("read_at, nothing set", Box::new(ours(None))),
        ("read_at 2 MiB", Box::new(ours(Some("ondemand,read_ahead_kb=2048")))),
        ("read_at 8 MiB", Box::new(ours(Some("ondemand,read_ahead_kb=8192")))),
        (
            "fio direct, depth 8",
            Box::new(|| {
                fio(name, &["--rw=read", "--direct=1", "--iodepth=8"], BYTES, size.stream_bytes)
            }),
        ),
        (
            "kernel's buffered read",
            Box::new(|| {
                forget(name);
                let file = std::fs::File::open(name).expect("the file is there");
                let mut buffer = vec![0; BYTES as usize];
                let mut place = 0;
                Some(timed(reads, |_| {
                    file.read_exact_at(&mut buffer, place).expect("the file is as long");
                    place += BYTES;
                }))
            }),
        ),
    ];
    let costs = race(&mut contenders, rounds, true);
    contenders.iter().map(|(name, _)| *name).zip(costs).collect()
}

/// Drops the file from the kernel page cache.
fn forget(name: &Path) {
    let file = std::fs::File::open(name).expect("the file is there");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("a file");
}

/// Runs the same reads with fio. Returns `None` if fio is not installed.
fn fio(name: &Path, options: &[&str], bytes: u64, io_bytes: u64) -> Option<Cost> {
    let output = Command::new("fio")
        .args(["--name=peer", "--ioengine=io_uring", "--randrepeat=0", "--readonly", "--thread"])
        .args(["--output-format=terse", "--terse-version=3", "--invalidate=1"])
        .args(options)
        .arg(format!("--filename={}", name.display()))
        .arg(format!("--size={}", std::fs::metadata(name).ok()?.len()))
        .arg(format!("--io_size={io_bytes}"))
        .arg(format!("--bs={bytes}"))
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    // Terse version 3 (fio(1)): field 9 is the time of the reads in milliseconds, fields 88 and 89
    // are user and system time in percent.
    let fields: Vec<&str> = text.trim().split(';').collect();
    let number = |index: usize| fields.get(index)?.trim_end_matches('%').parse::<f64>().ok();
    let ns = number(8)? * 1e6 / (io_bytes / bytes) as f64;
    Some(Cost { ns, cpu_ns: ns * (number(87)? + number(88)?) / 100.0 })
}

#[allow(dead_code, reason = "the smoke test uses the functions above without this one")]
fn main() -> ExitCode {
    let mut arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let is_json = arguments.iter().position(|argument| argument == "--json");
    is_json.map(|at| arguments.remove(at));
    let Some((name, rest)) = arguments.split_first() else {
        eprintln!("usage: file_speed FILE [ROUNDS [GROUP]] [--json]");
        return ExitCode::from(2);
    };
    let rounds = rest.first().map_or(5, |text| text.parse().expect("a whole number of rounds"));
    let name = Path::new(name);
    type Group<'a> = (&'a str, Box<dyn Fn() -> Vec<(&'static str, Option<Cost>)> + 'a>);
    let groups: [Group<'_>; 5] = [
        ("cached 4 KiB", Box::new(|| cached(name, FULL, 4096, rounds))),
        ("cached 64 KiB", Box::new(|| cached(name, FULL, 65_536, rounds))),
        ("cold random 4 KiB, depth 32", Box::new(|| random(name, FULL, 4096, rounds))),
        ("cold random 64 KiB, depth 32", Box::new(|| random(name, FULL, 65_536, rounds))),
        ("cold sequential 1 MiB", Box::new(|| stream(name, FULL, rounds))),
    ];
    let wanted = rest.get(1).map_or("", String::as_str);
    for (group, rows) in groups.iter().filter(|(group, _)| group.contains(wanted)) {
        let rows = &rows();
        if is_json.is_none() {
            println!("{group:<34}{:>12}{:>12}", "ns/read", "CPU ns");
        }
        for (row, cost) in rows {
            match (cost, is_json) {
                (Some(cost), None) => println!("  {row:<32}{:>12.0}{:>12.0}", cost.ns, cost.cpu_ns),
                (None, None) => println!("  {row:<32}   not there"),
                (Some(cost), Some(_)) => println!(
                    "{{\"group\": \"{group}\", \"row\": \"{row}\", \"ns\": {:.0}, \"cpu_ns\": {:.0}}}",
                    cost.ns, cost.cpu_ns
                ),
                (None, Some(_)) => {
                    println!("{{\"group\": \"{group}\", \"row\": \"{row}\", \"ns\": null}}")
                }
            }
        }
    }
    ExitCode::SUCCESS
}
