//! Uncached reads, for instruction counts and for comparison with the kernel's reads.
//!
//! `cargo bench -p readpath-eval --bench miss_cost -- FILE one|threads|batch|stream READS
//! [pread|direct]`
//!
//! Default settings. FILE has at least 1 GiB and must not be in the kernel page cache. `one` reads
//! 4 KiB at random offsets, one after the other. `threads` does the same on eight threads, `batch`
//! with 32 in flight, and `stream` reads 64 KiB blocks in order. Under `valgrind --tool=callgrind`
//! two runs with different READS show the instructions per read, see `bench/miss.py`. With a last
//! word, `one` and `threads` use pread(2) instead, with or without the kernel page cache, see
//! `bench/threads.py`. Prints elapsed seconds and processor seconds.

use std::error::Error;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Instant;

use readpath::ReadPath;
use readpath_eval::usage::CpuTime;

const PAGE: u64 = 4096;
const FILE_BYTES: u64 = 1 << 30;
const THREADS: u64 = 8;

/// A page-aligned buffer for direct reads.
#[repr(align(4096))]
struct Aligned([u8; PAGE as usize]);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (name, way, reads, with) = match words[..] {
        [name, way, reads] => (name, way, reads.parse()?, "readpath"),
        [name, way @ ("one" | "threads"), reads, with] => (name, way, reads.parse()?, with),
        _ => return Err("give FILE, one|threads|batch|stream, READS, perhaps pread|direct".into()),
    };
    let (cpu, begun) = (CpuTime::of_process(), Instant::now());
    match with {
        "readpath" => with_readpath(name, way, reads)?,
        "pread" => with_kernel(name, way, reads, 0)?,
        "direct" => with_kernel(name, way, reads, libc::O_DIRECT)?,
        _ => return Err(format!("reads are made with pread or direct, not with `{with}`").into()),
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{seconds} {}", CpuTime::of_process().since(cpu).seconds());
    Ok(())
}

fn with_kernel(name: &str, way: &str, reads: u64, flags: i32) -> Result<(), Box<dyn Error>> {
    let file = OpenOptions::new().read(true).custom_flags(flags).open(name)?;
    at_random(way, reads, |buffer, place| file.read_exact_at(buffer, place))
}

fn with_readpath(name: &str, way: &str, reads: u64) -> Result<(), Box<dyn Error>> {
    let path = ReadPath::builder().build()?;
    let file = path.open(name)?;
    if file.len() < FILE_BYTES {
        return Err(format!("{name} has fewer than {FILE_BYTES} bytes").into());
    }
    match way {
        "batch" => {
            let mut batch = path.batch();
            for place in places(reads, 0) {
                batch.read(&file, place, PAGE, 0)?;
                if batch.len() >= 32 {
                    batch.wait()?.expect("32 are under way").bytes()?;
                }
            }
            while let Some(read) = batch.wait()? {
                read.bytes()?;
            }
        }
        "stream" => {
            let mut buffer = vec![0; 64 << 10];
            for read in 0..reads {
                file.read_exact_at(&mut buffer, read * (64 << 10) % FILE_BYTES)?;
            }
        }
        _ => at_random(way, reads, |buffer, place| file.read_exact_at(buffer, place))?,
    }
    Ok(())
}

/// Reads random pages on one thread or on several.
fn at_random(
    way: &str,
    reads: u64,
    read: impl Fn(&mut [u8], u64) -> io::Result<()> + Sync,
) -> Result<(), Box<dyn Error>> {
    let threads = match way {
        "one" => 1,
        "threads" => THREADS,
        _ => return Err(format!("there is no way `{way}`").into()),
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let read = &read;
            scope.spawn(move || {
                let mut buffer = Aligned([0; PAGE as usize]);
                for place in places(reads / threads, thread) {
                    read(&mut buffer.0, place).expect("the file can be read");
                }
            });
        }
    });
    Ok(())
}

/// Random pages, each once. Thread `seed` of eight gets its eighth of a shuffle of all pages.
fn places(reads: u64, seed: u64) -> impl Iterator<Item = u64> {
    let pages = FILE_BYTES / PAGE;
    let shuffled = move |number: u64| {
        // Each step permutes the page numbers, whose count is a power of two.
        let mut at = number % pages;
        for odd in [0x9e3b, 0x6d2b, 0xb5c9] {
            at ^= at >> 9;
            at = at * odd % pages;
        }
        at ^ at >> 9
    };
    (0..reads).map(move |read| shuffled(seed * pages / THREADS + read) * PAGE)
}
