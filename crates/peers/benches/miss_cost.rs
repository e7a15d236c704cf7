//! Reads that are not cached, as a program makes them, to be counted.
//!
//! `cargo bench -p readpath-peers --bench miss_cost -- FILE one|threads|batch|stream READS`
//!
//! Default settings. FILE has at least 256 MiB, of which nothing may be in the kernel's cache. `one` reads
//! 4 KiB at random places, one after the other; `threads` the same on eight threads; `batch` with 32 under
//! way; `stream` 64 KiB after 64 KiB. Under `valgrind --tool=callgrind` two runs that differ in READS give
//! the instructions of one read: `bench/miss.py` does that.

use std::error::Error;

use readpath::{File, ReadPath};

const PAGE: u64 = 4096;
const FILE_BYTES: u64 = 256 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [name, way, reads] = &words[..] else {
        return Err("give FILE, one|threads|batch|stream, READS".into());
    };
    let reads: u64 = reads.parse()?;
    let path = ReadPath::builder().build()?;
    let file = path.open(name)?;
    if file.len() < FILE_BYTES {
        return Err(format!("{name} has fewer than {FILE_BYTES} bytes").into());
    }
    match way.as_str() {
        "one" => one_by_one(&file, places(reads, 0))?,
        "threads" => std::thread::scope(|scope| {
            for thread in 0..8 {
                let (file, places) = (&file, places(reads / 8, thread));
                scope.spawn(move || one_by_one(file, places).expect("the file can be read"));
            }
        }),
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
        _ => return Err(format!("there is no way `{way}`").into()),
    }
    println!("{:?}", file.stats());
    Ok(())
}

/// Pages at random, each once: thread `seed` of eight has its eighth of a shuffle of all pages.
fn places(reads: u64, seed: u64) -> impl Iterator<Item = u64> {
    let pages = FILE_BYTES / PAGE;
    let shuffled = move |number: u64| {
        // Each step maps the 2^16 numbers of pages to themselves, one to one.
        let mut at = number % pages;
        for odd in [0x9e3b, 0x6d2b, 0xb5c9] {
            at ^= at >> 7;
            at = at * odd % pages;
        }
        at ^ at >> 9
    };
    (0..reads).map(move |read| shuffled(seed * pages / 8 + read) * PAGE)
}

fn one_by_one(file: &File, places: impl Iterator<Item = u64>) -> std::io::Result<()> {
    let mut buffer = [0; PAGE as usize];
    for place in places {
        file.read_exact_at(&mut buffer, place)?;
    }
    Ok(())
}
