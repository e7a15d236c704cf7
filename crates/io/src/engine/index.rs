//! Which frame holds which page, for readers who take no lock.
//!
//! Every frame has one entry; entries hang in chains from a table of heads that
//! is twice as long as there are frames. So the memory is fixed at the start, and
//! nothing is ever freed under a reader. Readers come at any time, on any thread;
//! the entries are changed by one thread at a time (the machine's lock).
//!
//! A reader that finds an entry *pins* it before it looks at the frame: for the
//! moment of a copy, or, as a *hold*, for as long as it likes. Invariants:
//!
//! 1. A page can be pinned only while it is lent and carries no mark.
//! 2. A frame that is pinned keeps its page: it is recalled only when nobody
//!    copies from it and nobody holds it.
//! 3. A reader that misses an entry while it is moved has a miss, and asks the
//!    machine: never wrong bytes.
//!
//! Generic over the atomics, so that `loom` can run it through every order of
//! events.

use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release};

use readpath_core::cache::{FileId, Uses};

/// No frame: the end of a chain.
const NONE: u32 = u32::MAX;
/// Bits of a page's number in a key: 4 PiB of file; the other 24 are the file's.
const PAGE_BITS: u32 = 40;
/// Consecutive pages whose heads lie side by side: one cache line of them.
const GROUP_LOG2: u32 = 4;
/// A reader gives up after so many entries: the chain is being changed under it.
const STEPS_MAX: u32 = 64;

// The state of an entry, from the lowest bit: copies under way (14 bits), holds
// (12 bits), uses (2 bits), and three flags.
const COPY: u32 = 1;
const COPIES: u32 = (1 << 14) - 1;
const HOLD: u32 = 1 << 14;
const HOLDS: u32 = ((1 << 12) - 1) << 14;
const USE: u32 = 1 << 26;
const USES: u32 = 3 << 26;
/// Carries the readahead mark: its reader has to go to the machine.
const MARKED: u32 = 1 << 28;
/// May be pinned.
const LENT: u32 = 1 << 29;
/// Out of date while it was held: the last holder has to say so.
const FORGOTTEN: u32 = 1 << 30;

/// The atomic words that an index is built of.
pub(crate) trait Atomics {
    /// 32 bits.
    type Word: Word<u32>;
    /// 64 bits.
    type Key: Word<u64>;
    /// Lets other threads run.
    fn yield_now();
}

/// An atomic integer; each method as in `std::sync::atomic`.
pub(crate) trait Word<T> {
    fn new(value: T) -> Self;
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn fetch_sub(&self, value: T, order: Ordering) -> T;
    fn fetch_and(&self, value: T, order: Ordering) -> T;
    fn fetch_or(&self, value: T, order: Ordering) -> T;
    fn compare_exchange_weak(
        &self,
        current: T,
        changed: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T>;
}

struct Entry<A: Atomics> {
    key: A::Key,
    state: A::Word,
    next: A::Word,
}

/// What came of the wish to hold a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It is held, in this frame.
    Held(u32),
    /// It is not lent, or held as often as can be counted.
    Absent,
    /// It is not lent; and the machine must be told that this frame is returned.
    AbsentAndReturned(u32),
}

/// The index of a cache of a fixed number of frames.
pub(crate) struct PageIndex<A: Atomics> {
    heads: Box<[A::Word]>,
    entries: Box<[Entry<A>]>,
}

impl<A: Atomics> PageIndex<A> {
    /// An index of no pages over `frames` frames: 32 bytes a frame at the most.
    pub(crate) fn new(frames: u32) -> PageIndex<A> {
        let heads = (2 * frames as usize).next_power_of_two().max(1 << GROUP_LOG2);
        let entry =
            || Entry { key: A::Key::new(0), state: A::Word::new(0), next: A::Word::new(NONE) };
        PageIndex {
            heads: (0..heads).map(|_| A::Word::new(NONE)).collect(),
            entries: (0..frames).map(|_| entry()).collect(),
        }
    }

    /// Pins the page for a copy, if it is lent, and gives its frame; counts a use of it.
    #[inline]
    pub(crate) fn pin(&self, file: FileId, page: u64) -> Option<u32> {
        let key = key(file, page);
        let (frame, entry) = self.find(key)?;
        if !self.count(entry, COPY, COPIES, MARKED) {
            return None;
        }
        // Pinned, it can't change any more; it may have before.
        if entry.key.load(Relaxed) != key {
            self.unpin(frame);
            return None;
        }
        Some(frame)
    }

    /// Ends a copy.
    #[inline]
    pub(crate) fn unpin(&self, frame: u32) {
        self.entries[frame as usize].state.fetch_sub(COPY, Release);
    }

    /// Holds the page, if it is lent, and gives its frame; counts a use of it.
    /// With `is_seen` also if it carries the mark, which its law has been shown.
    #[inline]
    pub(crate) fn hold(&self, file: FileId, page: u64, is_seen: bool) -> Hold {
        let key = key(file, page);
        let Some((frame, entry)) = self.find(key) else { return Hold::Absent };
        if !self.count(entry, HOLD, HOLDS, if is_seen { 0 } else { MARKED }) {
            return Hold::Absent;
        }
        if entry.key.load(Relaxed) == key {
            return Hold::Held(frame);
        }
        // Another page came into the frame before; it was held for a moment.
        match self.release(frame) {
            true => Hold::AbsentAndReturned(frame),
            false => Hold::Absent,
        }
    }

    /// Adds `one` to the counter `all` of an entry that is lent and has none of
    /// the flags `unless`, and counts a use.
    #[inline]
    fn count(&self, entry: &Entry<A>, one: u32, all: u32, unless: u32) -> bool {
        let mut state = entry.state.load(Relaxed);
        loop {
            if state & (LENT | unless) != LENT || state & all == all {
                return false;
            }
            let is_counted = state & USES == 2 * USE;
            let counted = state + one + if is_counted { 0 } else { USE };
            match entry.state.compare_exchange_weak(state, counted, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
    }

    /// Ends a hold. True if the page was forgotten and this was the last hold of
    /// it: then the machine must be told that the frame is returned.
    pub(crate) fn release(&self, frame: u32) -> bool {
        let before = self.entries[frame as usize].state.fetch_sub(HOLD, AcqRel);
        before & FORGOTTEN != 0 && before & HOLDS == HOLD
    }

    /// Whether the page is lent, and can be pinned as far as one can tell now.
    pub(crate) fn is_lent(&self, file: FileId, page: u64) -> bool {
        self.find(key(file, page))
            .is_some_and(|(_, entry)| entry.state.load(Relaxed) & (LENT | MARKED) == LENT)
    }

    /// Lends the page in `frame`, which is not lent. By one thread at a time.
    pub(crate) fn lend(&self, file: FileId, page: u64, frame: u32, is_marked: bool) {
        let key = key(file, page);
        let head = &self.heads[self.home(key)];
        let entry = &self.entries[frame as usize];
        debug_assert_eq!(entry.state.load(Relaxed) & (LENT | COPIES | HOLDS), 0);
        entry.key.store(key, Relaxed);
        entry.next.store(head.load(Relaxed), Relaxed);
        entry.state.store(LENT | if is_marked { MARKED } else { 0 }, Release);
        head.store(frame, Release);
    }

    /// Takes the mark off the page in `frame`. By one thread at a time.
    pub(crate) fn unmark(&self, frame: u32) {
        self.entries[frame as usize].state.fetch_and(!MARKED, Relaxed);
    }

    /// How the page in `frame` was used since this was last asked.
    pub(crate) fn uses(&self, frame: u32) -> Uses {
        let state = &self.entries[frame as usize].state;
        if state.load(Relaxed) & USES == 0 {
            return Uses::None;
        }
        match (state.fetch_and(!USES, Relaxed) & USES) / USE {
            0 => Uses::None,
            1 => Uses::Once,
            _ => Uses::Again,
        }
    }

    /// Whether the page in `frame` was used since `uses` was last asked.
    pub(crate) fn is_used(&self, frame: u32) -> bool {
        self.entries[frame as usize].state.load(Relaxed) & USES != 0
    }

    /// Lends the page in `frame` no more, and waits for those who copy from it:
    /// as long as a copy of one page takes, and for its thread to be on a
    /// processor. False, and it is lent as before, if somebody holds it. By one
    /// thread at a time.
    pub(crate) fn recall(&self, frame: u32) -> bool {
        let state = &self.entries[frame as usize].state;
        let before = state.fetch_and(!LENT, AcqRel);
        if before & LENT == 0 {
            // Filled, and dropped before it was ever lent.
            return true;
        }
        if before & HOLDS != 0 {
            state.fetch_or(LENT, Release);
            return false;
        }
        self.wait_for_copies(frame);
        self.unchain(frame);
        true
    }

    /// Lends the page in `frame` no more, though somebody may hold it. True if
    /// nobody does any more: nobody else will say so then. By one thread at a time.
    pub(crate) fn forget(&self, frame: u32) -> bool {
        let state = &self.entries[frame as usize].state;
        state.fetch_and(!LENT, AcqRel);
        self.wait_for_copies(frame);
        self.unchain(frame);
        // From here on whoever ends the last hold sees the flag; there is none
        // to see it if this was the last to look.
        state.fetch_or(FORGOTTEN, AcqRel) & HOLDS == 0
    }

    /// Waits until nobody copies from the frame, whose page is not lent.
    fn wait_for_copies(&self, frame: u32) {
        while self.entries[frame as usize].state.load(Acquire) & COPIES != 0 {
            A::yield_now();
        }
    }

    /// Takes the entry out of its chain. Its own link stays, for readers who are there.
    fn unchain(&self, frame: u32) {
        let entry = &self.entries[frame as usize];
        let mut link = &self.heads[self.home(entry.key.load(Relaxed))];
        while link.load(Relaxed) != frame {
            link = &self.entries[link.load(Relaxed) as usize].next;
        }
        link.store(entry.next.load(Relaxed), Release);
    }

    fn find(&self, key: u64) -> Option<(u32, &Entry<A>)> {
        let mut frame = self.heads[self.home(key)].load(Acquire);
        for _ in 0..STEPS_MAX {
            let entry = self.entries.get(frame as usize)?;
            if entry.key.load(Relaxed) == key {
                return Some((frame, entry));
            }
            frame = entry.next.load(Acquire);
        }
        None
    }

    /// The head of the chain that a key belongs to.
    fn home(&self, key: u64) -> usize {
        // Fibonacci hashing of the group (Knuth 6.4), then the page's place in it.
        let group = (key >> GROUP_LOG2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let groups_log2 = self.heads.len().trailing_zeros() - GROUP_LOG2;
        let group = group.checked_shr(64 - groups_log2).unwrap_or(0);
        (group << GROUP_LOG2 | key & ((1 << GROUP_LOG2) - 1)) as usize
    }
}

fn key(file: FileId, page: u64) -> u64 {
    u64::from(file.0) << PAGE_BITS | page
}

/// The atomics of the standard library.
pub(crate) struct Std;

impl Atomics for Std {
    type Word = std::sync::atomic::AtomicU32;
    type Key = std::sync::atomic::AtomicU64;

    fn yield_now() {
        std::thread::yield_now();
    }
}

/// Makes `Word` of an atomic type that has the methods of the standard library's.
macro_rules! word {
    ($atomic:ty, $integer:ty) => {
        impl Word<$integer> for $atomic {
            fn new(value: $integer) -> Self {
                <$atomic>::new(value)
            }
            fn load(&self, order: Ordering) -> $integer {
                self.load(order)
            }
            fn store(&self, value: $integer, order: Ordering) {
                self.store(value, order);
            }
            fn fetch_sub(&self, value: $integer, order: Ordering) -> $integer {
                self.fetch_sub(value, order)
            }
            fn fetch_and(&self, value: $integer, order: Ordering) -> $integer {
                self.fetch_and(value, order)
            }
            fn fetch_or(&self, value: $integer, order: Ordering) -> $integer {
                self.fetch_or(value, order)
            }
            fn compare_exchange_weak(
                &self,
                current: $integer,
                changed: $integer,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$integer, $integer> {
                self.compare_exchange_weak(current, changed, success, failure)
            }
        }
    };
}

word!(std::sync::atomic::AtomicU32, u32);
word!(std::sync::atomic::AtomicU64, u64);

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(3);

    #[test]
    fn what_is_lent_is_found_until_it_is_recalled() {
        let index = PageIndex::<Std>::new(64);
        // Pages far apart, so that chains grow.
        let pages: Vec<u64> = (0..64).map(|frame| frame * 977 % 1_000_003).collect();
        for (frame, &page) in pages.iter().enumerate() {
            index.lend(FILE, page, frame as u32, false);
        }
        for (frame, &page) in pages.iter().enumerate() {
            assert_eq!(index.pin(FILE, page), Some(frame as u32));
            assert_eq!(index.pin(FileId(4), page), None);
            index.unpin(frame as u32);
            assert!(index.recall(frame as u32));
            assert_eq!(index.pin(FILE, page), None);
        }
    }

    #[test]
    fn a_hold_refuses_the_recall_and_the_last_one_of_what_is_forgotten_says_so() {
        let index = PageIndex::<Std>::new(2);
        index.lend(FILE, 7, 0, false);
        for _ in 0..2 {
            assert_eq!(index.hold(FILE, 7, false), Hold::Held(0));
            assert!(!index.recall(0));
        }
        assert!(!index.forget(0));
        assert_eq!(index.pin(FILE, 7), None);
        assert!(!index.release(0));
        assert!(index.release(0));
        index.lend(FILE, 8, 0, false);
        assert!(index.forget(0));
    }

    #[test]
    fn a_marked_page_is_not_lent_until_the_mark_is_off() {
        let index = PageIndex::<Std>::new(2);
        index.lend(FILE, 7, 1, true);
        assert!(!index.is_lent(FILE, 7) && index.pin(FILE, 7).is_none());
        assert_eq!(index.hold(FILE, 7, false), Hold::Absent);
        assert_eq!(index.hold(FILE, 7, true), Hold::Held(1));
        assert!(!index.release(1));
        index.unmark(1);
        assert!(index.is_lent(FILE, 7));
        assert_eq!((index.uses(1), index.uses(1)), (Uses::Once, Uses::None));
        for uses in [Uses::Once, Uses::Again, Uses::Again] {
            let pins = match uses {
                Uses::Once => 1,
                _ => 3,
            };
            for _ in 0..pins {
                assert_eq!(index.pin(FILE, 7), Some(1));
                index.unpin(1);
            }
            assert_eq!(index.uses(1), uses);
        }
    }
}

/// Every order of events of a few threads, by `loom`.
#[cfg(test)]
mod orders {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::Mutex;

    use super::*;

    struct Loom;

    impl Atomics for Loom {
        type Word = loom::sync::atomic::AtomicU32;
        type Key = loom::sync::atomic::AtomicU64;

        fn yield_now() {
            loom::thread::yield_now();
        }
    }

    word!(loom::sync::atomic::AtomicU32, u32);
    word!(loom::sync::atomic::AtomicU64, u64);

    const FILE: FileId = FileId(0);

    /// Every order in which threads are interrupted three times at the most: the
    /// faults of this kind that are known need two (Musuvathi and Qadeer, 2007).
    fn in_every_order(events: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(events);
    }

    /// One frame, whose content is the number of its page. `loom` finds it if
    /// anybody looks at the frame while it is written to.
    struct Cache {
        index: PageIndex<Loom>,
        frame: UnsafeCell<u64>,
        returned: Mutex<u32>,
    }

    impl Cache {
        /// Page 1 is lent.
        fn new() -> Arc<Cache> {
            let index = PageIndex::new(1);
            index.lend(FILE, 1, 0, false);
            Arc::new(Cache { index, frame: UnsafeCell::new(1), returned: Mutex::new(0) })
        }

        fn content(&self) -> u64 {
            // SAFETY: `loom` checks it.
            self.frame.with(|page| unsafe { *page })
        }

        /// Copies a page; what it gives is that page or nothing.
        fn copy(&self, page: u64) {
            if let Some(frame) = self.index.pin(FILE, page) {
                assert_eq!(self.content(), page);
                self.index.unpin(frame);
            }
        }

        fn hold(&self, page: u64) {
            match self.index.hold(FILE, page, false) {
                Hold::Held(frame) => {
                    assert_eq!(self.content(), page);
                    loom::thread::yield_now();
                    assert_eq!(self.content(), page);
                    if self.index.release(frame) {
                        *self.returned.lock().unwrap() += 1;
                    }
                }
                Hold::AbsentAndReturned(_) => *self.returned.lock().unwrap() += 1,
                Hold::Absent => {}
            }
        }

        /// Gives the frame to another page, if it can be had.
        fn evict(&self, page: u64) -> bool {
            let is_had = self.index.recall(0);
            if is_had {
                self.fill(page);
            }
            is_had
        }

        fn fill(&self, page: u64) {
            // SAFETY: `loom` checks it.
            self.frame.with_mut(|frame| unsafe { *frame = page });
            self.index.lend(FILE, page, 0, false);
        }
    }

    #[test]
    fn a_copy_is_of_the_page_that_was_asked_while_frames_change_hands() {
        in_every_order(|| {
            let cache = Cache::new();
            let readers = [1, 2].map(|page| {
                let cache = Arc::clone(&cache);
                loom::thread::spawn(move || cache.copy(page))
            });
            assert!(cache.evict(2), "nobody holds it");
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }

    #[test]
    fn what_is_held_is_not_given_away_and_what_is_not_can_be() {
        in_every_order(|| {
            let cache = Cache::new();
            let holder = {
                let cache = Arc::clone(&cache);
                loom::thread::spawn(move || cache.hold(1))
            };
            let reader = {
                let cache = Arc::clone(&cache);
                loom::thread::spawn(move || cache.copy(1))
            };
            cache.evict(2);
            holder.join().unwrap();
            reader.join().unwrap();
            assert!(cache.index.recall(0), "nobody is there any more");
        });
    }

    #[test]
    fn a_forgotten_page_is_returned_exactly_once() {
        in_every_order(|| {
            let cache = Cache::new();
            let holders = [1, 1].map(|page| {
                let cache = Arc::clone(&cache);
                loom::thread::spawn(move || cache.hold(page))
            });
            if cache.index.forget(0) {
                *cache.returned.lock().unwrap() += 1;
            }
            holders.into_iter().for_each(|holder| holder.join().unwrap());
            assert_eq!(*cache.returned.lock().unwrap(), 1);
            // Now it is free, and is filled again.
            cache.fill(3);
            assert_eq!(cache.index.hold(FILE, 3, false), Hold::Held(0));
            assert!(!cache.index.release(0));
        });
    }

    /// Two frames in one chain: a reader of one is never led astray for good by
    /// the other's comings and goings.
    #[test]
    fn a_chain_that_changes_gives_a_miss_at_the_worst() {
        in_every_order(|| {
            let index = Arc::new(PageIndex::<Loom>::new(2));
            // The same place in a group, in a table of one group.
            index.lend(FILE, 0, 0, false);
            index.lend(FILE, 16, 1, false);
            let reader = {
                let index = Arc::clone(&index);
                loom::thread::spawn(move || {
                    if let Some(frame) = index.pin(FILE, 0) {
                        assert_eq!(frame, 0);
                        index.unpin(frame);
                    }
                })
            };
            assert!(index.recall(1));
            index.lend(FILE, 32, 1, false);
            reader.join().unwrap();
            assert!(index.is_lent(FILE, 0) && index.is_lent(FILE, 32));
        });
    }
}
