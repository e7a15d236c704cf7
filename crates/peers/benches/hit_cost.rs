//! What a cached read costs, and what it costs more when it looks whether the file has changed.
//!
//! `cargo bench -p readpath-peers --bench hit_cost -- ROUNDS [opened|miss|read]`
//!
//! Prints nanoseconds a read of 4 KiB, all cached. Under `valgrind --tool=callgrind` two runs of
//! different `ROUNDS` give the instructions of one.

use std::hint::black_box;
use std::time::{Duration, Instant};

use readpath::{Coherence, ReadPath};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let rounds: u64 = words.next().map_or(Ok(1_000_000), |word| word.parse())?;
    let wanted = words.next();
    let name = std::env::temp_dir().join(format!("readpath-hit-cost-{}", std::process::id()));
    std::fs::write(&name, vec![7; 64 << 10])?;
    // What was changed lately is not served from the cache where each read looks.
    if wanted.as_deref() == Some("read") || wanted.is_none() {
        std::thread::sleep(Duration::from_millis(2_500));
    }
    for (text, coherence) in [
        ("opened", Coherence::WhenOpened),
        ("miss", Coherence::EachMiss),
        ("read", Coherence::EachRead),
    ] {
        if wanted.as_deref().is_some_and(|wanted| wanted != text) {
            continue;
        }
        let path = ReadPath::builder().memory(4 << 20).coherence(coherence).build()?;
        let file = path.open(&name)?;
        let mut buffer = [0; 4096];
        for page in 0..16 {
            file.read_exact_at(&mut buffer, page * 4096)?;
        }
        let begun = Instant::now();
        for round in 0..rounds {
            file.read_exact_at(black_box(&mut buffer), black_box(round % 16 * 4096))?;
        }
        let ns = begun.elapsed().as_nanos() as f64 / rounds as f64;
        println!("{text:8}{ns:8.1} ns a cached read of 4 KiB");
    }
    std::fs::remove_file(&name)?;
    Ok(())
}
