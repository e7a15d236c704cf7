//! Reads records at random offsets of a file, 32 at a time, and adds up their bytes.
//!
//! ```text
//! cargo run --release -p readpath --example random_reads -- FILE [READS]
//! ```

use std::error::Error;

use readpath::ReadPath;

const RECORD_BYTES: u64 = 4096;
const UNDER_WAY_MAX: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let name = words.next().ok_or("usage: random_reads FILE [READS]")?;
    let reads: u64 = words.next().map_or(Ok(10_000), |word| word.parse())?;

    let path = ReadPath::builder().memory(64 << 20).build()?;
    let file = path.open(&name)?;
    let records = file.len() / RECORD_BYTES;
    if records == 0 {
        return Err(format!("{name} has no record of {RECORD_BYTES} bytes").into());
    }
    let mut places = places(records).take(reads as usize);
    let mut batch = path.batch();
    let (mut sum, mut done) = (0u64, 0);
    loop {
        // A read starts whenever one completes, so the device is never idle.
        while batch.len() < UNDER_WAY_MAX
            && let Some(place) = places.next()
        {
            batch.read(&file, place * RECORD_BYTES, RECORD_BYTES, place)?;
        }
        let Some(read) = batch.wait()? else { break };
        for slice in read.slices()? {
            sum = slice.iter().fold(sum, |sum, &byte| sum.wrapping_add(byte.into()));
        }
        done += 1;
    }
    let stats = path.stats();
    println!("{done} records, sum {sum}, {} reads of the device", stats.device_reads);
    Ok(())
}

/// Numbers below `end`, from a linear congruential generator (Knuth's MMIX).
fn places(end: u64) -> impl Iterator<Item = u64> {
    let step = |state: &u64| {
        Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    };
    std::iter::successors(Some(1), step).map(move |state: u64| (state >> 33) % end)
}
