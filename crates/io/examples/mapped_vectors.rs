//! Maps a file of vectors, `DIMENSIONS` floats of 4 bytes each, and finds the one that is nearest
//! to the first.
//!
//! ```text
//! cargo run --release -p readpath --example mapped_vectors -- FILE [DIMENSIONS]
//! ```

use std::error::Error;

use readpath::{Advice, Mapping};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let name = words.next().ok_or("usage: mapped_vectors FILE [DIMENSIONS]")?;
    let dimensions: usize = words.next().map_or(Ok(128), |word| word.parse())?;
    if dimensions == 0 {
        return Err("a vector has one dimension at least".into());
    }
    // SAFETY: the file must not change while it is mapped.
    let mapping = unsafe { Mapping::builder().memory(256 << 20).open(&name)? };
    println!("{name}: {}", mapping.mode());

    // A mapping begins at a page, so its floats are aligned. SAFETY: any four bytes are a float.
    let (_, floats, _) = unsafe { mapping.as_slice().align_to::<f32>() };
    let mut vectors = floats.chunks_exact(dimensions);
    let first = vectors.next().ok_or("the file has no vector")?;
    // All bytes will be read in order. For ranges known in advance there is `Advice::WillNeed`.
    mapping.advise(Advice::Sequential, 0, mapping.len() as u64);
    let distance = |vector: &[f32]| -> f32 {
        vector.iter().zip(first).map(|(one, other)| (one - other) * (one - other)).sum()
    };
    let distances = vectors.map(distance).enumerate();
    match distances.min_by(|one, other| one.1.total_cmp(&other.1)) {
        Some((index, squared)) => println!("vector {}, at {}", index + 1, squared.sqrt()),
        None => println!("there is only one vector"),
    }
    println!("{:?}", mapping.stats());
    Ok(())
}
