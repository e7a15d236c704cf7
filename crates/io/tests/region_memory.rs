//! Memory for the page tables of a region, and limits on it. Each test measures a child process
//! with one thread.

mod support;

use std::path::PathBuf;

use readpath::Region;
use support::{can_serve, in_child, limit_further_data, status_bytes};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Returns by how many bytes the `field` of `/proc/self/status` grows with a region of
/// `region_bytes` that nothing touches.
fn growth_of_region(field: &str, region_bytes: u64) -> u64 {
    let before = status_bytes(field);
    let _region = Region::builder().memory(256 << 10).in_folder(region_bytes, folder()).unwrap();
    status_bytes(field).saturating_sub(before)
}

/// 2 GiB are 524,288 pages. Tables of 17 bytes each would be 8.5 MiB.
#[test]
fn tables_of_an_untouched_region_take_no_memory() {
    if !can_serve() {
        return;
    }
    assert!(in_child(|| {
        let growth = growth_of_region("VmRSS:", 2 << 30);
        assert!(growth < 3 << 20, "{growth} bytes");
        true
    }));
}

/// The tables of 524,288 pages need 8.5 MiB, and the process may have 4 MiB more.
#[test]
fn region_whose_tables_find_no_memory_is_an_error() {
    assert!(in_child(|| {
        limit_further_data(4 << 20);
        let error = Region::builder().memory(256 << 10).in_folder(2 << 30, folder()).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("the tables of a region of 2147483648 bytes need "), "{text}");
        assert!(text.contains("make the region shorter") && !text.contains("overcommit"), "{text}");
        true
    }));
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

/// A region of 1 MiB has addresses for 2 MiB of frames and for its own length, and a thread. A
/// table of evicted pages would be 4 MiB more, which nothing reads.
#[test]
fn small_region_takes_no_table_of_evicted_pages() {
    if !can_serve() {
        return;
    }
    assert!(in_child(|| {
        let growth = growth_of_region("VmData:", 1 << 20);
        assert!(growth < 5 << 20, "{growth} bytes");
        true
    }));
}
