//! Value of an eviction policy on real storage: a skewed working set next to a scan.
//!
//! `cargo bench -p readpath-eval --bench kept_reads -- WANTED SCANNED
//! kernel|trace|POLICY[/READAHEAD] MEMORY_MIB READS EVERY`
//!
//! WANTED and SCANNED are two files of 1 GiB, or the same file of 2 GiB twice. Pages of 4 KiB in
//! the first GiB of WANTED are read at random with a Zipf skew of 0.9. After EVERY of these reads,
//! the scan reads the next 64 KiB of the last GiB of SCANNED, and begins again at its end.
//!
//! The first READS reads warm up, and the next READS are measured. The output is the number of
//! bytes read from the device, the bytes requested by the scan, and the time in milliseconds.
//! `kernel` reads by `pread(2)`; POLICY reads through memory of the library. All variants read the
//! same offsets. A control group has to give both the same memory, as `bench/kept.py` does.
//!
//! `trace` reads nothing. It prints the pages of READS of these reads and of the scan among them,
//! for `readpath cachesim`.

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use readpath::ReadPath;
use readpath_core::splitmix;

const PAGE: u64 = 4096;
const SCANNED: u64 = 64 << 10;
const GIB: u64 = 1 << 30;
const SKEW: f64 = 0.9;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [wanted, scanned, policy, memory_mib, reads, every] = &words[..] else {
        return Err("give WANTED, SCANNED, kernel or a policy, MEMORY_MIB, READS, EVERY".into());
    };
    let (reads, every): (u64, u64) = (reads.parse()?, every.parse()?);
    let mut load = Load { skewed: Skewed::new(GIB / PAGE), every, asked: 0 };
    if policy == "trace" {
        let mut lines = io::stdout().lock();
        return Ok(load.ask(reads, |gib, place, bytes| {
            let first = (gib as u64 * GIB + place) / PAGE;
            (first..first + bytes / PAGE).try_for_each(|page| writeln!(lines, "{page}"))
        })?);
    }
    if policy == "kernel" {
        let files = [File::open(wanted)?, File::open(scanned)?];
        let scan_from = files[1].metadata()?.len() - GIB;
        return run(load, reads, scan_from, |file, buffer, place| {
            files[file].read_exact_at(buffer, place)
        });
    }
    let memory = memory_mib.parse::<u64>()? << 20;
    let (policy, readahead) = policy.split_once('/').unwrap_or((policy, "adaptive"));
    let path = ReadPath::builder().memory(memory).eviction(policy).readahead(readahead).build()?;
    let files = [path.open(wanted)?, path.open(scanned)?];
    let scan_from = files[1].len() - GIB;
    run(load, reads, scan_from, |file, buffer, place| files[file].read_exact_at(buffer, place))
}

fn run(
    mut load: Load,
    reads: u64,
    scan_from: u64,
    read: impl Fn(usize, &mut [u8], u64) -> io::Result<()>,
) -> Result<(), Box<dyn Error>> {
    let mut buffer = vec![0; SCANNED as usize];
    let mut read = |gib, place, bytes| {
        read(gib, &mut buffer[..bytes as usize], place + gib as u64 * scan_from)
    };
    load.ask(reads, &mut read)?;
    let (device, scanned, begin) = (bytes_from_device()?, load.scanned(), Instant::now());
    load.ask(reads, &mut read)?;
    let ms = begin.elapsed().as_millis();
    println!("{} {} {ms}", bytes_from_device()? - device, load.scanned() - scanned);
    Ok(())
}

/// Random reads interleaved with a scan.
struct Load {
    skewed: Skewed,
    every: u64,
    asked: u64,
}

impl Load {
    /// Calls `read` for the next `reads` random reads and for the scan between them, with the index
    /// of the file, the offset in it, and bytes.
    fn ask(
        &mut self,
        reads: u64,
        mut read: impl FnMut(usize, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        for _ in 0..reads {
            read(0, self.skewed.draw() * PAGE, PAGE)?;
            let scanned = self.scanned();
            self.asked += 1;
            if self.scanned() > scanned {
                read(1, scanned % GIB, SCANNED)?;
            }
        }
        Ok(())
    }

    /// Bytes requested by the scan.
    fn scanned(&self) -> u64 {
        self.asked / self.every * SCANNED
    }
}

/// Random pages. The page of rank n has the weight 1/n to the power of the skew.
struct Skewed {
    /// Cumulative sums of the weights.
    sums: Vec<f64>,
    state: u64,
}

impl Skewed {
    fn new(pages: u64) -> Skewed {
        let mut sum = 0.0;
        let weights = (1..=pages).map(|rank| (rank as f64).powf(-SKEW));
        Skewed {
            sums: weights
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect(),
            state: 1,
        }
    }

    fn draw(&mut self) -> u64 {
        let all = self.sums[self.sums.len() - 1];
        let at = (splitmix::next(&mut self.state) >> 11) as f64 / (1u64 << 53) as f64 * all;
        let rank = self.sums.partition_point(|sum| *sum < at) as u64;
        // Popular pages are spread over the file: an odd factor permutes the numbers below a power
        // of two.
        rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.sums.len() as u64
    }
}

/// Bytes that devices have read for this process so far.
fn bytes_from_device() -> Result<u64, Box<dyn Error>> {
    let io_counters = std::fs::read_to_string("/proc/self/io")?;
    let line = io_counters.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    Ok(line.ok_or("the kernel counts no bytes")?.parse()?)
}
