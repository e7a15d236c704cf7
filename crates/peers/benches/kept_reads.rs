//! What a law of what to keep is worth on real storage: a skewed working set beside a scan.
//!
//! `cargo bench -p readpath-peers --bench kept_reads -- WANTED SCANNED kernel|LAW[/READAHEAD] MEMORY_MIB READS EVERY`
//!
//! Two files of 1 GiB, or twice the same, of 2: of the first GiB of WANTED pages of 4 KiB are read at random, skewed as Zipf has
//! it (0.9), and after EVERY of these reads the next 64 KiB of the last GiB of SCANNED, from its end on from its start.
//! READS are made to warm up and as many measured: printed are the bytes that came from the device meanwhile, and those
//! that the scan asked for. `kernel` reads by pread(2), LAW through memory of our own. The places are the same for all. That both have
//! the same memory is for a control group to see to: `bench/kept.py` does that.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use readpath::ReadPath;
use readpath_core::splitmix;

const PAGE: u64 = 4096;
const SCANNED: u64 = 64 << 10;
const GIB: u64 = 1 << 30;
const SKEW: f64 = 0.9;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [wanted, scanned, law, memory_mib, reads, every] = &words[..] else {
        return Err("give WANTED, SCANNED, kernel or a law, MEMORY_MIB, READS, EVERY".into());
    };
    let (reads, every): (u64, u64) = (reads.parse()?, every.parse()?);
    if law == "kernel" {
        let files = [File::open(wanted)?, File::open(scanned)?];
        let scan_from = files[1].metadata()?.len() - GIB;
        return run(reads, every, scan_from, |file, buffer, place| {
            files[file].read_exact_at(buffer, place)
        });
    }
    let memory = memory_mib.parse::<u64>()? << 20;
    let (law, readahead) = law.split_once('/').unwrap_or((law, "adaptive"));
    let path = ReadPath::builder().memory(memory).reclaim(law).readahead(readahead).build()?;
    let files = [path.open(wanted)?, path.open(scanned)?];
    let scan_from = files[1].len() - GIB;
    run(reads, every, scan_from, |file, buffer, place| files[file].read_exact_at(buffer, place))
}

fn run(
    reads: u64,
    every: u64,
    scan_from: u64,
    read: impl Fn(usize, &mut [u8], u64) -> io::Result<()>,
) -> Result<(), Box<dyn Error>> {
    let mut skewed = Skewed::new(GIB / PAGE);
    let mut buffer = vec![0; SCANNED as usize];
    let (mut scanned, mut before) = (0, (0, 0));
    for number in 0..2 * reads {
        if number == reads {
            before = (bytes_from_device()?, scanned);
        }
        read(0, &mut buffer[..PAGE as usize], skewed.draw() * PAGE)?;
        if number % every == every - 1 {
            read(1, &mut buffer, scan_from + scanned % GIB)?;
            scanned += SCANNED;
        }
    }
    println!("{} {}", bytes_from_device()? - before.0, scanned - before.1);
    Ok(())
}

/// Pages, the nth most wanted of them with a weight of 1/n to the power of the skew.
struct Skewed {
    /// Sums of the weights.
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
        // The wanted ones lie anywhere: an odd factor maps a power of two to itself.
        rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.sums.len() as u64
    }
}

/// What this process had the devices read so far.
fn bytes_from_device() -> Result<u64, Box<dyn Error>> {
    let told = std::fs::read_to_string("/proc/self/io")?;
    let line = told.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    Ok(line.ok_or("the kernel counts no bytes")?.parse()?)
}
