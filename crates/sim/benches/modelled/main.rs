//! How fast the modelled world is, on one core: a process's operations, requests on a device, jobs and loads on
//! memory through all of it; and what the cache keeps beside the pages.
//!
//! `cargo bench -p readpath-sim --bench modelled [-- PART OF A NAME]`; without `--bench`, as the tests run
//! it, each is run once and in small. The most memory that an iteration holds beyond what it began with is
//! told beside its time.

mod bookkeeping;
mod devices;
mod memory;
mod process;
mod world;

use divan::AllocProfiler;

#[global_allocator]
static COUNTED: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// How many are done at a time: a thousandth of it where it is only tried whether they run.
#[allow(clippy::disallowed_methods, reason = "cargo says by an argument that it measures")]
fn sized(whole: u64) -> u64 {
    match std::env::args().any(|word| word == "--bench") {
        true => whole,
        false => whole / 1000,
    }
}
