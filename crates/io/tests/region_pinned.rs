//! Pages of a region that cannot leave at once: direct transfers that pin more pages than its
//! memory holds, and pages that the program has dropped.

mod support;

use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use readpath::{RawFile, Region};
use support::{TempFile, can_serve, content, takes_direct};

const PAGE: usize = 4096;
/// Memory of the region, in pages: the least that there is.
const MEMORY_PAGES: usize = 64;
/// Pages of the file.
const PAGES: usize = 1024;
/// Pages of the region: more than the memory and the 1,024 frames that may exceed it, so that some
/// have to leave.
const REGION_PAGES: usize = 4096;

/// A direct file of `PAGES` pages, or `None` after a message.
fn direct_file() -> Option<TempFile> {
    let temp = TempFile::new(PAGES * PAGE);
    (can_serve() && takes_direct(&temp.path)).then_some(temp)
}

/// Fills the first `PAGES` pages of a region by `read`, and compares them with the file. A wait of
/// a minute is a failure. Then touches all pages, and returns the region.
fn fill_by(read: impl FnOnce(&mut [u8]) + Send + 'static) -> Region {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let options = Region::builder().memory((MEMORY_PAGES * PAGE) as u64);
    let mut region = options.in_folder((REGION_PAGES * PAGE) as u64, folder).unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        read(&mut region.as_mut_slice()[..PAGES * PAGE]);
        sender.send(region).unwrap();
    });
    let mut region = receiver.recv_timeout(Duration::from_secs(60)).expect("the transfer ends");
    assert!(region.as_slice()[..PAGES * PAGE] == content(PAGES * PAGE));
    // Other pages take the place of the ones that were pinned.
    for round in 0..4 {
        region.as_mut_slice().chunks_mut(PAGE).for_each(|page| page[0] = round);
    }
    region.check().unwrap();
    region
}

/// The transfer of 66 pages, and one of 1,024, as single calls of pread(2).
#[test]
fn direct_pread_of_more_pages_than_the_memory_holds_ends() {
    let Some(temp) = direct_file() else { return };
    let mut options = std::fs::File::options();
    let file = options.read(true).custom_flags(libc::O_DIRECT).open(&temp.path).unwrap();
    let region = fill_by(move |memory| {
        let (small, rest) = memory.split_at_mut(66 * PAGE);
        file.read_exact_at(small, 0).unwrap();
        file.read_exact_at(rest, 66 * PAGE as u64).unwrap();
    });
    let statistics = region.stats();
    assert_eq!(statistics.poisoned_pages, 0);
    // The memory has its size again: the budget, and pages that are present twice.
    assert!(statistics.memory_pages <= 2 * MEMORY_PAGES as u64, "{statistics:?}");
}

/// A `RawFile` has up to four transfers of 128 pages in flight.
#[test]
fn raw_file_transfers_larger_than_the_memory_end() {
    let Some(temp) = direct_file() else { return };
    let file = RawFile::open(&temp.path).unwrap();
    let region = fill_by(move |memory| {
        assert_eq!(file.read_at(memory, 0).unwrap(), PAGES * PAGE);
    });
    assert_eq!(region.stats().poisoned_pages, 0);
}

/// Before each write of 300, the program drops all pages (madvise(2)). Each page that has to leave
/// is therefore absent, and can leave when it is chosen again.
#[test]
fn pages_dropped_by_the_program_do_not_enlarge_the_memory() {
    if !can_serve() {
        return;
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let options = Region::builder().memory((MEMORY_PAGES * PAGE) as u64);
    let mut region = options.in_folder((PAGES * PAGE) as u64, folder).unwrap();
    for page in 0..300 {
        let memory = region.as_mut_slice();
        // SAFETY: the program's own memory, to which no reference is in use.
        let dropped =
            unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_DONTNEED) };
        assert_eq!(dropped, 0);
        memory[page * PAGE] = 1;
    }
    region.check().unwrap();
    // The memory, and the pages that are present twice.
    let statistics = region.stats();
    assert!(statistics.memory_pages_max <= 2 * MEMORY_PAGES as u64, "{statistics:?}");
}
