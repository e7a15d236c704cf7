//! A device that can't read some of its pages. Each read gets the first unreadable page that it
//! needs as its error, for any size of requests and any other readers.

use std::collections::BTreeSet;

use crate::common::{FileEnvironment, REQUEST_PAGES_MAX, config};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use readpath_core::machine::{ReadAccess, ReadError};
use readpath_core::readahead::Advice;
use readpath_core::request::{DeviceError, ProcessId};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange};

const FILE_PAGES: u64 = 100;

/// The expected result of a read of these bytes.
fn due(bad_pages: &BTreeSet<u64>, offset: u64, bytes: u64) -> Result<u64, ReadError> {
    let bytes = bytes.min(FILE_PAGES * PAGE_BYTES - offset);
    let pages = offset / PAGE_BYTES..(offset + bytes).div_ceil(PAGE_BYTES);
    match bad_pages.range(pages).next().filter(|_| bytes > 0) {
        None => Ok(bytes),
        Some(page) => Err(ReadError::Device {
            offset: (page * PAGE_BYTES).max(offset),
            error: DeviceError::Medium,
        }),
    }
}

#[test]
fn bad_page_of_a_large_request_is_found_within_six_requests() {
    for bad in 0..REQUEST_PAGES_MAX {
        let mut world = FileEnvironment::new(config("none", "noop", 64));
        world.bad_pages.insert(bad);
        let handle = world.open(FILE_PAGES * PAGE_BYTES, 0);
        let bytes = REQUEST_PAGES_MAX * PAGE_BYTES;
        world.read(ReadAccess::Buffered, handle, 0, 100, bytes - 100, 0).unwrap();
        let done = world.run();
        assert_eq!(done[0].result, due(&world.bad_pages, 100, bytes - 100));
        // With 16 pages: the first half of the suspects, four times, and perhaps the last page.
        assert!(world.issued.len() <= 1 + 4 + 1, "page {bad}: {:?}", world.issued);
    }
}

/// The device fails once, and then succeeds: so does the read.
#[test]
fn a_retry_that_succeeds_is_not_an_error() {
    let mut world = FileEnvironment::new(config("none", "noop", 64));
    let handle = world.open(FILE_PAGES * PAGE_BYTES, 0);
    let bytes = REQUEST_PAGES_MAX * PAGE_BYTES;
    world.read(ReadAccess::Buffered, handle, 0, 0, bytes, 0).unwrap();
    world.bad_pages.insert(9);
    world.issue();
    world.finish(0);
    world.bad_pages.clear();
    assert_eq!(world.run()[0].result, Ok(bytes));
}

/// As for remote storage: no search, and joined reads fail at their own first byte, by one request.
#[test]
fn whole_request_fails_for_all_its_reads() {
    let mut world = FileEnvironment::new(config("none", "noop", 64));
    world.path.fail_requests_whole();
    world.bad_pages.insert(9);
    let handle = world.open(FILE_PAGES * PAGE_BYTES, 0);
    for page in 0..4 {
        let offset = 4 * page * PAGE_BYTES;
        world.read(ReadAccess::Buffered, handle, 0, offset, 4 * PAGE_BYTES, page).unwrap();
    }
    let done = world.run();
    assert_eq!(done.len(), 4);
    for done in done {
        let (offset, error) = (4 * done.tag * PAGE_BYTES, DeviceError::Medium);
        assert_eq!(done.result, Err(ReadError::Device { offset, error }));
    }
    assert_eq!(world.issued.len(), 1, "{:?}", world.issued);
}

/// Prefetched pages 0 to 7 and 12 to 15 are dropped. The two readers need 8 and 11; one request
/// more is for the pages from 8 to 11, of which 9 stays bad.
#[test]
fn whole_request_is_tried_once_without_its_readahead() {
    for bad in [3, 9] {
        let mut world = FileEnvironment::new(config("none", "noop", 64));
        world.path.fail_requests_whole();
        world.bad_pages.insert(bad);
        let handle = world.open(FILE_PAGES * PAGE_BYTES, 0);
        let range = PageRange::new(0, REQUEST_PAGES_MAX);
        world.path.advise(world.now, handle, ProcessId(0), Advice::WillNeed, range);
        for page in [8, 11] {
            let offset = page * PAGE_BYTES;
            world.read(ReadAccess::Buffered, handle, 0, offset, PAGE_BYTES, page).unwrap();
        }
        for done in world.run() {
            let (offset, error) = (done.tag * PAGE_BYTES, DeviceError::Medium);
            let failed = Err(ReadError::Device { offset, error });
            assert_eq!(done.result, if bad == 9 { failed } else { Ok(PAGE_BYTES) });
        }
        let pages = world.issued.iter().map(|request| [request.start, request.end()]);
        let pages: Vec<_> = pages.map(|ends| ends.map(|sector| sector / PAGE_SECTORS)).collect();
        assert_eq!(pages, [[0, REQUEST_PAGES_MAX], [8, 12]], "bad page {bad}");
    }
}

/// Prefetched pages that can't be read count as waste, not as cancelled.
#[test]
fn bad_prefetched_pages_count_as_waste_not_as_cancelled() {
    let mut world = FileEnvironment::new(config("none", "noop", 64));
    world.bad_pages.insert(9);
    let handle = world.open(FILE_PAGES * PAGE_BYTES, 0);
    let range = PageRange::new(0, REQUEST_PAGES_MAX);
    world.path.advise(world.now, handle, ProcessId(0), Advice::WillNeed, range);
    world.run();
    assert!(!world.path.is_cached(handle, 9));
    let counters = world.path.cache_counters();
    assert_eq!((counters.withdrawn_pages, counters.waste_pages > 0), (0, true));
}

proptest! {
    #[test]
    fn every_read_fails_at_its_first_bad_page(
        policy in prop::sample::select(&["none", "ondemand", "window", "adaptive"][..]),
        scheduler in prop::sample::select(&["noop", "deadline", "adaptive"][..]),
        bad_pages in btree_set(0..FILE_PAGES, 0..6),
        reads in vec((0..FILE_PAGES * PAGE_BYTES, 1..40 * PAGE_BYTES, any::<bool>()), 1..20),
    ) {
        let mut world = FileEnvironment::new(config(policy, scheduler, 256));
        world.bad_pages = bad_pages;
        let handle = world.open(FILE_PAGES * PAGE_BYTES, 0);
        let mut done = Vec::new();
        for (tag, &(offset, bytes, waits)) in reads.iter().enumerate() {
            world.read(ReadAccess::Buffered, handle, 0, offset, bytes, tag as u64).unwrap();
            // Some arrive while other reads, or their searches, are in progress.
            if waits {
                done.extend(world.run());
            } else {
                world.issue();
                if !world.in_device.is_empty() {
                    world.finish(0);
                }
            }
        }
        done.extend(world.run());
        prop_assert_eq!(done.len(), reads.len());
        for done in done {
            let (offset, bytes, _) = reads[done.tag as usize];
            prop_assert_eq!(done.result, due(&world.bad_pages, offset, bytes));
        }
    }
}
