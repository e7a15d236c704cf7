//! Read speed of the storage backends, compared with fio on the same file in the same run.
//!
//! ```text
//! cargo bench -p readpath-dst --no-default-features --bench ring_speed -- \
//!     FILE [BLOCK_KIB [DEPTH [READS [ROUNDS]]]]
//! ```
//!
//! Random direct reads, by default of 64 KiB at depth 32. Rounds alternate between the contenders,
//! so that noise affects all. Prints medians and their ratio. The baseline is fio 3.33's io_uring
//! engine.

use std::path::Path;
use std::process::{Command, ExitCode};

use readpath_core::readahead::Advice;
use readpath_core::request::{DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, SECTOR_BYTES};
use readpath_dst::BackendKind;
use readpath_dst::inside::{
    Clock as DeviceClock, FileStorage, OpenOptions, Sleep, Storage, Target,
};
use readpath_dst::raw::RawMemory;
use readpath_eval::clock::Clock;
use readpath_eval::kernel::{KernelEngine, KernelFile, KernelOptions};
use readpath_eval::usage::CpuTime;

/// Parameters of the reads.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes per read, whole pages.
    pub block_bytes: u64,
    /// Queue depth.
    pub depth: u32,
    /// Total number of reads.
    pub reads: u32,
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Throughput.
    pub mib_per_s: f64,
    /// Processor time per read in microseconds.
    pub cpu_us: f64,
}

/// Layout of a read's frames in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Consecutive frames: one memory segment per read.
    Contiguous,
    /// Scattered frames: one segment per page, as in a cache after some use.
    RandomAccess,
}

/// Reads `load` from `path` through a storage backend.
pub fn ours(path: &Path, load: Load, backend: BackendKind, layout: Layout) -> Speed {
    let target = Target::open(path, OpenOptions::default()).expect("the file can be opened");
    let blocks = target.bytes() / load.block_bytes;
    assert!(blocks > 0, "the file is smaller than one read");
    let (pages, depth) = ((load.block_bytes / PAGE_BYTES) as usize, load.depth as usize);
    let mut memory =
        RawMemory::new(depth * load.block_bytes as usize).expect("there is memory for the frames");
    let base = memory.as_mut_ptr();
    let piece = |frame: usize, iov_len| libc::iovec {
        iov_base: base.wrapping_add(frame * PAGE_BYTES as usize).cast(),
        iov_len,
    };
    let pieces: Vec<Vec<libc::iovec>> = (0..depth)
        .map(|id| match layout {
            Layout::Contiguous => vec![piece(id * pages, load.block_bytes as usize)],
            Layout::RandomAccess => {
                (0..pages).map(|page| piece(page * depth + id, PAGE_BYTES as usize)).collect()
            }
        })
        .collect();
    let clock = DeviceClock::start();
    // Declared after the memory, and so dropped before it.
    let mut storage =
        FileStorage::for_one_thread(target, backend, clock).expect("the backend is there");
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut submit = |storage: &mut FileStorage, id: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let block = (state >> 32) % blocks;
        let request = DeviceRequest {
            id: RequestId(id),
            op: Op::Read,
            start: block * (load.block_bytes / SECTOR_BYTES),
            sectors: (load.block_bytes / SECTOR_BYTES) as u32,
        };
        // SAFETY: memory used by this request alone until its completion, which outlives the
        // storage.
        unsafe { storage.submit(request, &pieces[id as usize]) };
    };
    let (cpu, start) = (CpuTime::of_process(), clock.now());
    let mut submitted = load.depth.min(load.reads);
    (0..submitted).for_each(|id| submit(&mut storage, id));
    let mut completed = 0;
    let mut completions = Vec::new();
    while completed < load.reads {
        storage.exchange(Sleep::UntilAnswered, &mut completions).expect("the ring goes on");
        for completion in completions.drain(..) {
            assert_eq!(completion.outcome, Outcome::Done);
            completed += 1;
            if submitted < load.reads {
                submit(&mut storage, completion.id.0);
                submitted += 1;
            }
        }
    }
    let seconds = clock.now().since(start).seconds();
    let cpu_seconds = CpuTime::of_process().since(cpu).seconds();
    speed(load, seconds, cpu_seconds)
}

/// Reads the same through the kernel baseline's io_uring with `O_DIRECT`, as fio does.
pub fn peer(path: &Path, load: Load) -> Speed {
    let options = KernelOptions {
        invalidates: true,
        engine: KernelEngine::IoUring,
        is_direct: true,
        depth: load.depth,
        bytes_max: load.block_bytes as u32,
        is_writable: false,
        advice: Advice::Random,
        mapping_advice: Advice::Random,
    };
    let mut file = KernelFile::open(path, options, Clock::start()).expect("the peer can open it");
    let blocks = file.bytes() / load.block_bytes;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut read = |file: &mut KernelFile| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let offset = (state >> 32) % blocks * load.block_bytes;
        file.read(RequestId(0), offset, load.block_bytes as u32);
    };
    let (cpu, start) = (CpuTime::of_process(), file.now());
    let mut submitted = load.depth.min(load.reads);
    (0..submitted).for_each(|_| read(&mut file));
    let mut completed = 0;
    while completed < load.reads {
        file.wait(None).expect("the ring goes on");
        while let Some((completion, _)) = file.poll() {
            assert_eq!(completion.outcome, Outcome::Done);
            completed += 1;
            if submitted < load.reads {
                read(&mut file);
                submitted += 1;
            }
        }
    }
    let seconds = file.now().since(start).seconds();
    speed(load, seconds, CpuTime::of_process().since(cpu).seconds())
}

/// Runs the same reads with fio. Returns `None` if fio is not installed.
pub fn fio(path: &Path, load: Load) -> Option<Speed> {
    let bytes = load.block_bytes * load.reads as u64;
    let output = Command::new("fio")
        .args(["--name=peer", "--rw=randread", "--direct=1", "--ioengine=io_uring"])
        .args(["--norandommap=1", "--randrepeat=0", "--readonly", "--thread"])
        .args(["--output-format=terse", "--terse-version=3"])
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--size={}", std::fs::metadata(path).ok()?.len()))
        .arg(format!("--io_size={bytes}"))
        .arg(format!("--bs={}", load.block_bytes))
        .arg(format!("--iodepth={}", load.depth))
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    // Terse version 3 (fio(1)): field 9 is the time of the reads in milliseconds, fields 88 and 89
    // are user and system time in percent.
    let fields: Vec<&str> = text.trim().split(';').collect();
    let number = |index: usize| fields.get(index)?.trim_end_matches('%').parse::<f64>().ok();
    let seconds = number(8)? / 1e3;
    Some(speed(load, seconds, seconds * (number(87)? + number(88)?) / 100.0))
}

fn speed(load: Load, seconds: f64, cpu_seconds: f64) -> Speed {
    let bytes = load.block_bytes as f64 * load.reads as f64;
    Speed {
        mib_per_s: bytes / seconds / (1 << 20) as f64,
        cpu_us: cpu_seconds * 1e6 / load.reads as f64,
    }
}

/// Median by throughput.
fn median(mut speeds: Vec<Speed>) -> Speed {
    speeds.sort_by(|a, b| a.mib_per_s.total_cmp(&b.mib_per_s));
    speeds[speeds.len() / 2]
}

#[allow(dead_code, reason = "the smoke test uses the functions above without this one")]
fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let Some((path, numbers)) = arguments.split_first() else {
        eprintln!("usage: ring_speed FILE [BLOCK_KIB [DEPTH [READS [ROUNDS]]]]");
        return ExitCode::from(2);
    };
    let number = |index: usize, default: u32| {
        numbers.get(index).map_or(default, |text| text.parse().expect("a whole number"))
    };
    let path = Path::new(path);
    let load = Load {
        block_bytes: u64::from(number(0, 64)) << 10,
        depth: number(1, 32),
        reads: number(2, 20_000),
    };
    type Contender<'a> = (&'a str, Box<dyn Fn() -> Option<Speed> + 'a>);
    let ring = |layout| move || Some(ours(path, load, BackendKind::Ring, layout));
    let threads = || Some(ours(path, load, BackendKind::Threads, Layout::Contiguous));
    let contenders: [Contender<'_>; 5] = [
        ("ring, contiguous frames", Box::new(ring(Layout::Contiguous))),
        ("ring, scattered frames", Box::new(ring(Layout::RandomAccess))),
        ("threads", Box::new(threads)),
        ("peer io_uring", Box::new(|| Some(peer(path, load)))),
        ("fio io_uring", Box::new(|| fio(path, load))),
    ];
    let mut speeds = contenders.each_ref().map(|_| Vec::new());
    for round in 0..number(3, 5) as usize {
        // Each round starts with another contender. A device that recovers during low use would
        // favour the one after the slowest.
        for turn in 0..contenders.len() {
            let index = (round + turn) % contenders.len();
            speeds[index].extend(contenders[index].1());
        }
    }
    let fio_speeds = speeds[4].clone();
    println!("{load:?}");
    println!("{:<26}{:>10}{:>14}{:>10}", "", "MiB/s", "CPU us/read", "ratio");
    for (speeds, (name, _)) in speeds.into_iter().zip(&contenders) {
        if speeds.is_empty() {
            println!("{name:<26} not there");
            continue;
        }
        let speed = median(speeds);
        let ratio = match fio_speeds.is_empty() {
            true => "-".to_string(),
            false => format!("{:.3}", speed.mib_per_s / median(fio_speeds.clone()).mib_per_s),
        };
        println!("{name:<26}{:>10.0}{:>14.1}{ratio:>10}", speed.mib_per_s, speed.cpu_us);
    }
    ExitCode::SUCCESS
}
