//! Sorts a table that is larger than its memory budget. The rest lies in a folder.
//!
//! ```text
//! cargo run --release -p readpath --example large_table -- [FOLDER [MIB [MEMORY_MIB]]]
//! ```

use std::error::Error;

use readpath::Region;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let folder = words.next().unwrap_or_else(|| "/var/tmp".to_owned());
    let mut mib = |default| words.next().map_or(Ok(default), |word| word.parse::<u64>());
    let (bytes, memory_bytes) = (mib(256)? << 20, mib(64)? << 20);

    // The space in the folder is reserved now, and freed when the program ends in any way.
    let mut region = Region::builder().memory(memory_bytes).in_folder(bytes, &folder)?;
    let memory = region.as_mut_slice();
    // A region begins at a page, so its numbers are aligned. SAFETY: any eight bytes are a number.
    let (_, table, _) = unsafe { memory.align_to_mut::<u64>() };
    for (index, number) in (1u64..).zip(&mut *table) {
        *number = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    table.sort_unstable();
    assert!(table.is_sorted());
    println!("{} numbers from {:x?} on", table.len(), table.first());

    // Reports the first error that a touch has met. Lost pages never read as other bytes.
    region.check()?;
    let counted = region.stats();
    println!("{} pages out, {} in", counted.swap_out_pages, counted.swap_in_pages);
    Ok(())
}
