//! Runs each seed of the fuzzers once: the initial seeds, and the ones that found a fault.

#![allow(clippy::disallowed_methods, reason = "seeds are read, and some decoders want a file")]

#[path = "../../../fuzz/decoders.rs"]
mod fuzzed;

use std::path::Path;

#[test]
fn decoders_accept_every_corpus_seed_without_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, decode) in fuzzed::ALL {
        let folder = std::fs::read_dir(corpus.join(name));
        let mut count = 0;
        for seed in folder.unwrap_or_else(|error| panic!("{name}: {error}")) {
            decode(&std::fs::read(seed.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 0, "{name} has seeds");
    }
}
