//! Memory for the page tables of a region, and limits on it. Each test measures a child process
//! with one thread.

mod support;

use std::path::PathBuf;

use readpath::{Mapping, Region};
use support::{TempFile, can_serve, in_child, limit, limit_further_data, status_bytes};

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

/// 64 MiB for the program, and frames: 1 MiB of memory, and 4 MiB for pinned pages. These 69 MiB
/// are 72,351,744 bytes, and the process may have 32 MiB more.
#[test]
fn region_without_room_for_its_addresses_names_all_of_them() {
    assert!(in_child(|| {
        limit(libc::RLIMIT_AS, status_bytes("VmSize:") + (32 << 20));
        let error = Region::builder().memory(1 << 20).in_folder(64 << 20, folder()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("no room for 72351744 bytes of addresses"), "{text}");
        assert!(text.contains("`ulimit -v`"), "{text}");
        true
    }));
}

/// The metadata of 1 GiB are tables of up to 128 bytes a page, 32 MiB. The process may have 8 MiB
/// more, and addresses without a limit.
#[test]
fn memory_whose_metadata_find_no_room_names_the_limit_of_data() {
    let file = TempFile::of(&[7; 4096], 1);
    let writer = std::fs::File::options().write(true).open(&file.path).unwrap();
    writer.set_len(1 << 30).unwrap();
    assert!(in_child(|| {
        limit_further_data(8 << 20);
        let region = Region::builder().memory(1 << 30).in_folder(1 << 30, folder()).unwrap_err();
        let mapping = Mapping::builder().kernel_cache(false).memory(1 << 30);
        // SAFETY: the file does not change.
        let mapping = unsafe { mapping.open(&file.path) }.unwrap_err();
        for text in [region.to_string(), mapping.to_string()] {
            assert!(text.contains("1073741824 bytes") && text.contains("`ulimit -d`"), "{text}");
            assert!(!text.contains("addresses") && !text.contains("ulimit -v"), "{text}");
        }
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
