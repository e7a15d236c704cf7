//! Limits on the memory of a region. Each test limits a child process with one thread.

mod support;

use std::path::PathBuf;

use readpath::{PagerError, Region};
use support::{can_serve, in_child, limit_further_data};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// The tables of 256 MiB need 1 MiB. The region itself counts with its whole length.
#[test]
fn region_beyond_the_limit_of_writable_memory_is_an_error_that_names_it() {
    if !can_serve() {
        return;
    }
    assert!(in_child(|| {
        limit_further_data(128 << 20);
        let error = Region::builder().memory(1 << 20).in_folder(256 << 20, folder()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("`ulimit -d`") && text.contains("vm.overcommit_memory"), "{text}");
        assert!(!text.contains("ulimit -v"), "{text}");
        true
    }));
}
