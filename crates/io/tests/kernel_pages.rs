//! What the kernel's cache holds is taken from there, in large reads: no request reaches the device,
//! and nothing that nobody holds is brought into that cache.

mod support;

use std::os::unix::fs::FileExt;

use readpath::{File, ReadPath};
use readpath_core::unit::PageRange;
use support::*;

const FILE_BYTES: usize = 2 << 20;
const LARGE: usize = 256 << 10;

/// A file on a device, past whose cache we read; `None`, said, where that can't be had or asked for.
fn on_a_device() -> Option<(TempFile, ReadPath, File)> {
    let temp = TempFile::new(FILE_BYTES);
    let path = ReadPath::builder().memory(16 << 20).readahead("none").build().unwrap();
    let file = path.open(&temp.path).unwrap();
    std::fs::read(&temp.path).unwrap();
    if !file.is_cached(0, FILE_BYTES as u64) {
        eprintln!(
            "skipped: the kernel doesn't say what it holds ({}; cachestat, Linux 6.5)",
            file.mode()
        );
        return None;
    }
    Some((temp, path, file))
}

fn held_pages(temp: &TempFile) -> usize {
    let file = std::fs::File::open(&temp.path).unwrap();
    let pages = PageRange { first: 0, end: FILE_BYTES as u64 / 4096 };
    readpath_peers::cold::resident(&file, pages)
        .unwrap()
        .into_iter()
        .filter(|&is_held| is_held)
        .count()
}

#[test]
fn a_large_read_of_what_the_kernel_holds_asks_the_device_for_nothing() {
    let Some((temp, path, file)) = on_a_device() else { return };
    let content = std::fs::read(&temp.path).unwrap();
    let mut buffer = vec![0; LARGE];
    for offset in [0, 4096, 70_001, FILE_BYTES - LARGE] {
        file.read_exact_at(&mut buffer, offset as u64).unwrap();
        assert!(buffer == content[offset..offset + LARGE], "at {offset}");
    }
    assert_eq!(path.stats().device_reads, 0);
    assert_eq!(file.stats().bytes, 4 * LARGE as u64);
    assert_eq!(file.stats().cached_bytes, 4 * LARGE as u64);
    // A small one goes the usual way, into our own cache, and is the first request.
    file.read_exact_at(&mut buffer[..4096], 1 << 20).unwrap();
    assert_eq!(path.stats().device_reads, 1);
}

#[test]
fn a_read_of_what_the_kernel_does_not_hold_goes_past_it_and_leaves_nothing_there() {
    let Some((temp, path, file)) = on_a_device() else { return };
    let content = std::fs::read(&temp.path).unwrap();
    readpath_peers::cold::drop_pages(&temp.path).unwrap();
    if held_pages(&temp) > 0 {
        eprintln!("skipped: the kernel keeps the pages");
        return;
    }
    assert!(!file.is_cached(0, LARGE as u64));
    let mut buffer = vec![0; LARGE];
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == content[..LARGE]);
    assert_eq!(path.stats().device_bytes, LARGE as u64);
    assert_eq!(held_pages(&temp), 0);
    // From our own cache now.
    assert!(file.is_cached(0, LARGE as u64));
}

/// What was written and not yet carried to the device is read as any `read` gives it.
#[test]
fn dirty_pages_are_given_as_they_are_and_a_page_never_goes_back() {
    let Some((temp, path, file)) = on_a_device() else { return };
    let mut small = [0; 4096];
    file.read_exact_at(&mut small, 8192).unwrap();
    let old = small;
    let writer = std::fs::File::options().write(true).open(&temp.path).unwrap();
    let new: Vec<u8> = std::fs::read(&temp.path).unwrap().iter().map(|byte| !byte).collect();
    writer.write_all_at(&new, 0).unwrap();

    let mut buffer = vec![0; LARGE];
    file.read_exact_at(&mut buffer, 1 << 20).unwrap();
    assert!(buffer == new[1 << 20..(1 << 20) + LARGE]);
    assert_eq!(path.stats().device_reads, 1, "the small read alone");

    // Our cache has the third page: all reads of it give what is there, until it is invalidated.
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(buffer[8192..12_288], old);
    file.read_exact_at(&mut small, 8192).unwrap();
    assert_eq!(small, old);
    file.invalidate(0, FILE_BYTES as u64);
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == new[..LARGE]);
}

#[test]
fn a_file_that_has_become_shorter_is_told_there_too() {
    let Some((temp, _path, file)) = on_a_device() else { return };
    std::fs::File::options().write(true).open(&temp.path).unwrap().set_len(8192).unwrap();
    let mut buffer = vec![0; LARGE];
    let error = file.read_exact_at(&mut buffer, 0).unwrap_err();
    assert!(error.to_string().contains("shorter"), "{error}");
}
