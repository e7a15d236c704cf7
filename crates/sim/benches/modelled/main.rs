//! Speed of the simulation on one core: operations of a process, requests on a device, complete
//! jobs and memory loads. Also the memory for the cache's bookkeeping.
//!
//! Run it with `cargo bench -p readpath-sim --bench modelled [-- PART OF A NAME]`. Without
//! `--bench`, as in the test suite, each benchmark runs once at reduced size. The output contains
//! the peak memory of an iteration, relative to its start.

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

/// Returns the size of an iteration: `whole` for a measurement, a thousandth of it for a test.
#[allow(clippy::disallowed_methods, reason = "cargo says by an argument that it measures")]
fn sized(whole: u64) -> u64 {
    match std::env::args().any(|word| word == "--bench") {
        true => whole,
        false => whole / 1000,
    }
}
