//! Runs a few threads through every order of events with `loom`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::Mutex;

use std::sync::atomic::Ordering;

use super::super::atomics::impl_word;
use super::*;
use crate::os::sync::preemption_point;

/// The atomics of `loom`.
struct Loom;

impl Atomics for Loom {
    type Word = loom::sync::atomic::AtomicU32;
    type Key = loom::sync::atomic::AtomicU64;

    /// `loom` treats sequentially consistent accesses as acquire and release, and models the total
    /// order only for fences.
    fn fence() {
        loom::sync::atomic::fence(SeqCst);
    }
}

impl_word!(loom::sync::atomic::AtomicU32, u32);
impl_word!(loom::sync::atomic::AtomicU64, u64);

const FILE: FileId = FileId(0);
const COUNTS_USE: bool = true;
const RESPECTS_MARK: bool = false;
/// Mark bits of pages without a readahead mark.
const NO_MARKS: u64 = 0;

/// Runs `threads`, which starts and joins threads, in every order of events with at most three
/// preemptions. The known faults of this kind need two (Musuvathi and Qadeer, 2007).
fn check_all_orders(threads: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(threads);
}

/// One frame whose content is the number of its page. `loom` detects a read of the frame during a
/// write.
struct Cache {
    index: PageIndex<Loom>,
    frame: UnsafeCell<u64>,
    /// Number of times that a reader found the invalidated frame unused.
    returned_count: Mutex<u32>,
}

impl Cache {
    /// Creates a cache with two reader slots, in which page 1 is shared.
    fn new() -> Arc<Cache> {
        Cache::with_slots(2)
    }

    /// Creates a cache with `slots` reader slots, in which page 1 is shared.
    fn with_slots(slots: usize) -> Arc<Cache> {
        let index = PageIndex::with_initialised_words(1, slots);
        index.share(FILE, 1, &[FrameId(0)], NO_MARKS);
        Arc::new(Cache { index, frame: UnsafeCell::new(1), returned_count: Mutex::new(0) })
    }

    /// Content of the frame: the number of the page that was written last.
    fn content(&self) -> u64 {
        // SAFETY: `loom` checks the accesses.
        self.frame.with(|page| unsafe { *page })
    }

    /// Copies a page and asserts that a hit returns that page's content.
    fn copy(&self, page: u64) {
        let Some(reader) = self.index.sign_in(FILE, page, page as usize) else { return };
        if self.index.look_up(&reader, FILE, page, COUNTS_USE).is_some() {
            assert_eq!(self.content(), page);
        }
    }

    /// Pins a page, asserts twice that the frame has its content, and unpins it.
    fn pin_and_check(&self, page: u64) {
        match self.index.pin(FILE, page, RESPECTS_MARK) {
            PinOutcome::Pinned(frame) => {
                assert_eq!(self.content(), page);
                loom::thread::yield_now();
                assert_eq!(self.content(), page);
                if self.index.unpin(frame) {
                    *self.returned_count.lock().unwrap() += 1;
                }
            }
            PinOutcome::AbsentReturnFrame(_) => *self.returned_count.lock().unwrap() += 1,
            PinOutcome::Absent => {}
        }
    }

    /// Gives the frame to another page, if it is not in use. Returns false if it is.
    fn evict(&self, page: u64) -> bool {
        let is_recalled = self.index.recall(0);
        if is_recalled {
            self.fill(page);
        }
        is_recalled
    }

    /// Writes another page to the unused frame, and shares it.
    fn fill(&self, page: u64) {
        // SAFETY: `loom` checks the accesses.
        self.frame.with_mut(|frame| unsafe { *frame = page });
        self.index.share(FILE, page, &[FrameId(0)], NO_MARKS);
    }
}

/// With one slot, the second reader may find it occupied, or sign in directly after the first.
#[test]
fn copy_has_the_requested_page_while_frames_are_reused() {
    for slots in [1, 2] {
        check_all_orders(move || {
            let cache = Cache::with_slots(slots);
            let readers = [1, 2].map(|page| {
                let cache = Arc::clone(&cache);
                loom::thread::spawn(move || cache.copy(page))
            });
            cache.evict(2);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            // After an attempt that failed or not, the frame is free and was not lost.
            assert!(cache.evict(3), "no reader is left");
        });
    }
}

/// Pages 1 and 17 are recalled while a thread reads page 1. Page 17 lies in the next group, so only
/// the recall of page 1, bit 0, may be refused.
#[test]
fn refused_recall_takes_another_frame_without_waiting() {
    check_all_orders(|| {
        let index = Arc::new(PageIndex::<Loom>::with_initialised_words(2, 1));
        index.share(FILE, 1, &[FrameId(0)], NO_MARKS);
        index.share(FILE, 17, &[FrameId(1)], NO_MARKS);
        let reader_thread = {
            let index = Arc::clone(&index);
            loom::thread::spawn(move || {
                let reader = index.sign_in(FILE, 1, 0).expect("the group has no other reader");
                index.look_up(&reader, FILE, 1, COUNTS_USE)
            })
        };
        let refused = index.recall_all(&[0, 1].map(FrameId));
        assert!(refused == 0 || refused == 1, "no reader is in the group of the second");
        let found = reader_thread.join().unwrap();
        assert_eq!(index.is_shared(FILE, 1), refused == 1);
        assert!(found.is_none_or(|frame| frame == 0));
    });
}

/// Page 17 belongs to the next group. A reader that moves on to it is visible there.
#[test]
fn reader_that_moves_to_another_group_is_visible_there() {
    check_all_orders(|| {
        let cache = Cache::new();
        assert!(cache.evict(17), "no reader uses the frame");
        let reader_thread = {
            let cache = Arc::clone(&cache);
            loom::thread::spawn(move || {
                let mut reader =
                    cache.index.sign_in(FILE, 1, 0).expect("the group has no other reader");
                reader.move_to_group(page_key(FILE, 17));
                if cache.index.look_up(&reader, FILE, 17, COUNTS_USE).is_some() {
                    assert_eq!(cache.content(), 17);
                }
            })
        };
        cache.evict(2);
        reader_thread.join().unwrap();
    });
}

/// A page is invalidated while one thread copies it and another pins it. Its frame is filled when
/// both have finished.
#[test]
fn invalidated_frame_is_not_filled_during_a_copy() {
    check_all_orders(|| {
        let cache = Cache::new();
        let users = [Cache::copy, Cache::pin_and_check].map(|use_page| {
            let cache = Arc::clone(&cache);
            loom::thread::spawn(move || use_page(&cache, 1))
        });
        let mut copies = cache.index.invalidate(0);
        // One check now, and another when the copy is certainly over.
        let is_over = cache.index.have_all_readers_left(&mut copies);
        let is_free = is_over && cache.index.mark_invalidated(0);
        if is_free {
            cache.fill(2);
        }
        users.into_iter().for_each(|user| user.join().unwrap());
        assert!(cache.index.have_all_readers_left(&mut copies));
        let is_returned = !is_over && cache.index.mark_invalidated(0);
        let returned_by_reader = *cache.returned_count.lock().unwrap();
        let returned_count = returned_by_reader + u32::from(is_free || is_returned);
        assert_eq!(returned_count, 1, "the frame is returned once");
    });
}

/// One thread pins page 1, another copies it, and this one gives its frame to page 2 if it can.
#[test]
fn pinned_frame_is_not_evicted_and_unpinned_frame_can_be() {
    check_all_orders(|| {
        let cache = Cache::new();
        let holder = {
            let cache = Arc::clone(&cache);
            loom::thread::spawn(move || cache.pin_and_check(1))
        };
        let reader_thread = {
            let cache = Arc::clone(&cache);
            loom::thread::spawn(move || cache.copy(1))
        };
        cache.evict(2);
        holder.join().unwrap();
        reader_thread.join().unwrap();
        assert!(cache.index.recall(0), "no reader is left");
    });
}

/// Two threads pin page 1 while this one invalidates it: this thread, or the last of the two, finds
/// the frame unused.
#[test]
fn invalidated_page_is_returned_exactly_once() {
    check_all_orders(|| {
        let cache = Cache::new();
        let holders = [1, 1].map(|page| {
            let cache = Arc::clone(&cache);
            loom::thread::spawn(move || cache.pin_and_check(page))
        });
        assert!(
            cache.index.have_all_readers_left(&mut cache.index.invalidate(0)),
            "no reader copies"
        );
        if cache.index.mark_invalidated(0) {
            *cache.returned_count.lock().unwrap() += 1;
        }
        holders.into_iter().for_each(|holder| holder.join().unwrap());
        assert_eq!(*cache.returned_count.lock().unwrap(), 1);
        // The frame is free and is filled again.
        cache.fill(3);
        assert_eq!(cache.index.pin(FILE, 3, RESPECTS_MARK), PinOutcome::Pinned(0));
        assert!(!cache.index.unpin(0));
    });
}

/// Two frames in one chain: changes of the other entry never mislead a reader permanently.
#[test]
fn concurrent_chain_change_causes_at_most_a_miss() {
    check_all_orders(|| {
        let index = Arc::new(PageIndex::<Loom>::with_initialised_words(2, 1));
        // Both have the same position in a group, in a table of one group.
        index.share(FILE, 0, &[FrameId(0)], NO_MARKS);
        index.share(FILE, 16, &[FrameId(1)], NO_MARKS);
        let reader_thread = {
            let index = Arc::clone(&index);
            loom::thread::spawn(move || {
                let reader = index.sign_in(FILE, 0, 0).expect("the group has no other reader");
                assert!(index.look_up(&reader, FILE, 0, COUNTS_USE).is_none_or(|frame| frame == 0));
            })
        };
        assert!(index.recall(1));
        index.share(FILE, 32, &[FrameId(1)], NO_MARKS);
        reader_thread.join().unwrap();
        assert!(index.is_shared(FILE, 0) && index.is_shared(FILE, 32));
    });
}
