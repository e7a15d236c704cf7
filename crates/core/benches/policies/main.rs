//! What laws cost the processor, on one core: a read through a readahead law, a request through a scheduler.
//!
//! `cargo bench -p readpath-core --bench policies [-- PART OF A NAME]`; without `--bench`, as the tests run
//! it, each is run once. Times are not looked at there.

mod readahead;
mod scheduler;

fn main() {
    divan::main();
}

/// The next number of a linear congruential generator (Knuth's MMIX).
fn drawn(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state
}
