//! Copies a file without any cache, in large chunks. Data that is used once should not fill a
//! cache.
//!
//! ```text
//! cargo run --release -p readpath --example copy_file -- FROM TO
//! ```

use std::error::Error;

use readpath::RawFile;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = &words[..] else { return Err("usage: copy_file FROM TO".into()) };

    let mut source = RawFile::builder().chunk_bytes(1 << 20).depth(8).open(from)?;
    // Truncates the target: a raw file only overwrites and extends.
    std::fs::File::create(to)?;
    let target = RawFile::builder().write(true).open(to)?;
    println!("from {} ({}), to {} ({})", from, source.mode(), to, target.mode());

    let bytes = source.bytes()?;
    // The ring's own buffers in order, while the next ones are in flight.
    let mut reader = source.reader(0, bytes)?;
    let mut offset = 0;
    while let Some(chunk) = reader.next_chunk()? {
        target.write_all_at(&chunk, offset)?;
        offset += chunk.len() as u64;
    }
    target.sync_data()?;
    println!("{offset} bytes, {:?}", target.stats());
    Ok(())
}
