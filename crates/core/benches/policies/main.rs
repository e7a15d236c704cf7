//! Processor time of the policies on one core: a read through a readahead policy, a request through
//! a scheduler.
//!
//! `cargo bench -p readpath-core --bench policies [-- PART OF A NAME]`. Without `--bench`, as in
//! the tests, each is run once, and times are not checked.

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
