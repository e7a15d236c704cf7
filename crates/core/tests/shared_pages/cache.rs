//! The cache with a sharer: pages that are shared, used, pinned, recalled and returned.

use std::sync::{Arc, Mutex};

use readpath_core::cache::{Cache, FileId, FrameState, Mark};
use readpath_core::eviction::TwoLists;
use readpath_core::readahead::Folio;
use readpath_core::unit::PageRange;

use super::sharer::{FrameSharer, SharerRecord};

/// A cache of four pages of one file, all filled, prefetched and shared by a sharer.
fn shared() -> (Cache, FileId, Arc<Mutex<SharerRecord>>) {
    let books = Arc::new(Mutex::default());
    let mut cache = Cache::new(4, Box::new(TwoLists));
    cache.share_through(Box::new(FrameSharer(Arc::clone(&books))));
    let file = cache.add_file();
    (0..4).for_each(|page| add(&mut cache, file, page, Mark::Clear));
    (cache, file, books)
}

fn add(cache: &mut Cache, file: FileId, page: u64, mark: Mark) {
    let frame = cache.add(file, page, Folio::holding(page, 0), mark, true).unwrap();
    cache.fill(frame);
}

fn cached(cache: &Cache, file: FileId) -> Vec<u64> {
    (0..100).filter(|&page| cache.find(file, page).is_some()).collect()
}

#[test]
fn a_page_used_twice_by_sharing_outlives_others() {
    let (mut cache, file, books) = shared();
    let first = cache.find(file, 0).unwrap();
    books.lock().unwrap().used.insert(first.0, 2);
    (10..13).for_each(|page| add(&mut cache, file, page, Mark::Clear));
    assert_eq!(cached(&cache, file), [0, 10, 11, 12]);
    // It was prefetched and used; three others were not.
    assert_eq!((cache.counters().used_pages, cache.counters().waste_pages), (1, 3));
    assert_eq!(books.lock().unwrap().shared.len(), 4);
}

#[test]
fn a_shared_use_is_visible_at_once_and_counted_soon() {
    let (mut cache, file, books) = shared();
    let first = cache.find(file, 0).unwrap();
    assert!(cache.is_unused(first));
    books.lock().unwrap().used.insert(first.0, 1);
    assert!(!cache.is_unused(first));
    assert_eq!(cache.counters().used_pages, 0);
    // The next added page checks more frames than exist.
    add(&mut cache, file, 10, Mark::Clear);
    assert_eq!(cache.counters().used_pages, 1);
}

#[test]
fn pinned_pages_stay_and_are_evictable_after_unpin() {
    let (mut cache, file, books) = shared();
    let held: Vec<u32> = (0..3).map(|page| cache.find(file, page).unwrap().0).collect();
    books.lock().unwrap().held.extend(&held);
    add(&mut cache, file, 10, Mark::Clear);
    add(&mut cache, file, 11, Mark::Clear);
    assert_eq!(cached(&cache, file), [0, 1, 2, 11]);
    books.lock().unwrap().held.clear();
    (20..24).for_each(|page| add(&mut cache, file, page, Mark::Clear));
    assert_eq!(cached(&cache, file), [20, 21, 22, 23]);
}

/// The inactive list holds only pages that readers have pinned, and is as long as the active one.
#[test]
fn pinned_pages_do_not_protect_reused_ones() {
    let (mut cache, file, books) = shared();
    for frame in [2, 3].map(|page| cache.find(file, page).unwrap()) {
        (0..2).for_each(|_| cache.touch(frame));
    }
    books.lock().unwrap().held = [0, 1].map(|page| cache.find(file, page).unwrap().0).into();
    add(&mut cache, file, 10, Mark::Clear);
    assert_eq!(cached(&cache, file), [0, 1, 3, 10]);
    // An unused page leaves before one that was used twice.
    add(&mut cache, file, 11, Mark::Clear);
    assert_eq!(cached(&cache, file), [0, 1, 3, 11]);
}

#[test]
fn eviction_succeeds_with_every_page_in_use() {
    let (mut cache, file, books) = shared();
    for page in 10..30 {
        books.lock().unwrap().used = (0..4).map(|frame| (frame, 2)).collect();
        add(&mut cache, file, page, Mark::Clear);
    }
    assert_eq!(cached(&cache, file).len(), 4);
}

#[test]
fn invalidated_shared_page_is_free_after_its_last_unpin() {
    let (mut cache, file, books) = shared();
    let held = cache.find(file, 2).unwrap();
    books.lock().unwrap().held.insert(held.0);
    cache.invalidate(file, PageRange::new(0, 4));
    assert!(cache.is_empty(file) && books.lock().unwrap().shared.is_empty());
    assert_eq!((cache.state(held), cache.free_pages()), (FrameState::Orphan, 3));
    books.lock().unwrap().let_go(held.0);
    cache.take_returned();
    assert_eq!(cache.free_pages(), 4);
}

#[test]
fn the_mark_is_reported_and_cleared() {
    let (mut cache, file, books) = shared();
    add(&mut cache, file, 10, Mark::Set);
    let frame = cache.find(file, 10).unwrap().0;
    assert_eq!(books.lock().unwrap().shared[&frame], (10, Mark::Set));
    cache.clear_mark(file, Folio::holding(10, 0));
    assert_eq!(books.lock().unwrap().shared[&frame], (10, Mark::Clear));
}
