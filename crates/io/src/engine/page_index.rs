//! Maps pages to frames for readers that take no lock.
//!
//! Every frame has one entry. Entries form chains from a table of heads with twice as many heads as
//! frames. The memory is therefore fixed at the start, and nothing is freed while a reader uses it.
//! Initially it is zero pages, which the system provides only when they are written to. The heads
//! of 1,024 consecutive pages lie in one memory page, so a small file touches little of a large
//! index. Readers may come at any time, on any thread. One thread at a time changes the entries,
//! under the machine's lock.
//!
//! A reader *signs in* before a lookup, for the duration of a copy (see [readers](super::reader_slots)),
//! or *pins* the page that it finds, for any time. Invariants:
//!
//! 1. A lookup finds a page only while it is shared and has no mark.
//! 2. A found frame keeps its page while its reader is signed in or pins it. A recall succeeds only
//!    if no reader does either. The recalling thread never waits for readers.
//! 3. A reader that misses an entry while the entry moves has a miss and asks the machine. It never
//!    gets wrong bytes.
//!
//! The index is generic over the atomics, so that `loom` can run it through every order of events.

use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

use readpath_core::cache::{FileId, FrameId, UseCount};
use readpath_core::splitmix::spread;
use readpath_core::unit::PAGE_BYTES;

use super::reader_slots::{Copies, ReaderGuard, Readers};
use crate::storage::FILE_BYTES_MAX;
use crate::sync::point;

/// Number of bits of a page number in a key: 4 PiB of file. The other 24 bits are the file's
/// number.
const PAGE_BITS: u32 = 40;
const _: () = assert!(FILE_BYTES_MAX <= PAGE_BYTES << PAGE_BITS, "every page has a key");
/// Binary logarithm of the number of pages in a group: 64 KiB. The heads of a group share one cache
/// line, and one sign-in covers a group.
pub(crate) const GROUP_LOG2: u32 = 4;
const GROUP_MASK: u64 = (1 << GROUP_LOG2) - 1;
/// Binary logarithm of the number of groups whose heads lie in one memory page: 1,024 pages.
const EXTENT_GROUPS_LOG2: u32 = 6;
/// Number of entries after which a lookup gives up, because the chain changes during the lookup.
const STEPS_MAX: u32 = 64;

// Layout of an entry's state, from the lowest bit: number of pins (26 bits), number of uses up to 2
// (2 bits), and three flags.
const HOLD: u32 = 1;
const HOLDS: u32 = (1 << 26) - 1;
const USE: u32 = 1 << 26;
const USES: u32 = 3 << 26;
/// Flag: the page has the readahead mark, and its reader must go to the machine.
const MARKED: u32 = 1 << 28;
/// Flag: a lookup may find the page.
const LENT: u32 = 1 << 29;
/// Flag: the page was invalidated while it was pinned. The last unpin must report it.
const FORGOTTEN: u32 = 1 << 30;

/// The atomic words of an index.
pub(crate) trait Atomics {
    type Word: Word<u32>;
    type Key: Word<u64>;
    /// Gives sequentially consistent accesses of different words one order for all threads, if the
    /// accesses alone do not.
    fn fence();
}

/// An atomic integer. Each method is as in `std::sync::atomic`.
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

#[repr(C)]
struct IndexEntry<A: Atomics> {
    key: A::Key,
    state: A::Word,
    /// Number of the next frame in the chain plus one; 0 at the end, as in a head.
    next: A::Word,
}

type Group<A> = [<A as Atomics>::Word; 1 << GROUP_LOG2];

const _: () = assert!(size_of::<IndexEntry<Std>>() == size_of::<[u64; 2]>());
const _: () = assert!(align_of::<IndexEntry<Std>>() == align_of::<[u64; 2]>());

/// Result of an attempt to pin a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The page is pinned in this frame.
    Held(u32),
    /// The page is not shared, or its pin count is at the maximum.
    Absent,
    /// The page is not shared, and the caller must return this frame to the machine.
    AbsentAndReturned(u32),
}

/// The index of a cache with a fixed number of frames.
pub(crate) struct PageIndex<A: Atomics> {
    /// The length is a power of two.
    heads: Box<[Group<A>]>,
    entries: Box<[IndexEntry<A>]>,
    readers: Readers<A>,
}

impl PageIndex<Std> {
    /// Creates an empty index over `frames` frames, with at most 32 bytes per frame. `readers` is
    /// the maximum number of simultaneous copies.
    pub(crate) fn new(frames: u32, readers: usize) -> PageIndex<Std> {
        // The allocator provides zeroed memory for plain integers without writing to it.
        let heads = Box::into_raw(vec![[0u32; 1 << GROUP_LOG2]; groups(frames)].into_boxed_slice());
        let entries = Box::into_raw(vec![[0u64; 2]; frames as usize].into_boxed_slice());
        // SAFETY: this function owns both allocations. The atomic integers have the same sizes and
        // alignments, and zero bytes are valid values of them.
        let (heads, entries) = unsafe {
            (
                Box::from_raw(heads as *mut [Group<Std>]),
                Box::from_raw(entries as *mut [IndexEntry<Std>]),
            )
        };
        PageIndex { heads, entries, readers: Readers::new(readers) }
    }
}

impl<A: Atomics> PageIndex<A> {
    /// Like [`new`](PageIndex::new), but initialises each word, for atomics of other types.
    #[cfg(test)]
    fn of_words(frames: u32, readers: usize) -> PageIndex<A> {
        let head = |_| std::array::from_fn(|_| A::Word::new(0));
        let entry =
            |_| IndexEntry { key: A::Key::new(0), state: A::Word::new(0), next: A::Word::new(0) };
        PageIndex {
            heads: (0..groups(frames)).map(head).collect(),
            entries: (0..frames).map(entry).collect(),
            readers: Readers::new(readers),
        }
    }

    pub(crate) fn readers(&self) -> usize {
        self.readers.slots()
    }

    /// Signs in for copies from the group of a page, in slot `wish` if it is free. Returns `None`
    /// if no slot is free.
    #[inline]
    pub(crate) fn sign_in(
        &self,
        file: FileId,
        page: u64,
        wish: usize,
    ) -> Option<ReaderGuard<'_, A>> {
        self.readers.sign_in(key(file, page), wish)
    }

    /// Returns the frame of a shared page of the group that `reading` is signed in for. The frame
    /// keeps the page while `reading` stays signed in. Counts a use if `counts` is set.
    #[inline]
    pub(crate) fn look_up(
        &self,
        reading: &ReaderGuard<'_, A>,
        file: FileId,
        page: u64,
        counts: bool,
    ) -> Option<u32> {
        let key = key(file, page);
        debug_assert!(reading.covers(key));
        let (frame, entry) = self.find(key)?;
        let mut state = entry.state.load(SeqCst);
        // A shared page that was found cannot change any more. It may have changed before, so the
        // key is checked again.
        if state & (LENT | MARKED) != LENT || entry.key.load(Acquire) != key {
            return None;
        }
        while counts && state & USES != 2 * USE {
            match entry.state.compare_exchange_weak(state, state + USE, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        Some(frame)
    }

    /// True if the page of the group that `reading` is signed in for is shared in `frame`, marked
    /// or not. The frame then keeps the page while `reading` stays signed in.
    pub(crate) fn keeps(
        &self,
        reading: &ReaderGuard<'_, A>,
        file: FileId,
        page: u64,
        frame: u32,
    ) -> bool {
        let (key, entry) = (key(file, page), &self.entries[frame as usize]);
        debug_assert!(reading.covers(key));
        entry.state.load(SeqCst) & LENT != 0 && entry.key.load(Acquire) == key
    }

    /// Pins the page if it is shared, returns its frame and counts a use. With `is_seen`, also pins
    /// a page whose mark the policy has processed.
    #[inline]
    pub(crate) fn hold(&self, file: FileId, page: u64, is_seen: bool) -> Hold {
        let key = key(file, page);
        let Some((frame, entry)) = self.find(key) else { return Hold::Absent };
        if !self.count_hold(entry, if is_seen { 0 } else { MARKED }) {
            return Hold::Absent;
        }
        if entry.key.load(Relaxed) == key {
            return Hold::Held(frame);
        }
        // The frame received another page meanwhile, and that page was pinned for a moment.
        match self.release(frame) {
            true => Hold::AbsentAndReturned(frame),
            false => Hold::Absent,
        }
    }

    /// Adds a pin and a use to a shared entry without any of the flags `unless`.
    #[inline]
    fn count_hold(&self, entry: &IndexEntry<A>, unless: u32) -> bool {
        let mut state = entry.state.load(Relaxed);
        loop {
            if state & (LENT | unless) != LENT || state & HOLDS == HOLDS {
                return false;
            }
            let is_counted = state & USES == 2 * USE;
            let counted = state + HOLD + if is_counted { 0 } else { USE };
            match entry.state.compare_exchange_weak(state, counted, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
    }

    /// Removes a pin. Returns true if the page was invalidated and this was its last pin. The
    /// caller must then return the frame to the machine.
    pub(crate) fn release(&self, frame: u32) -> bool {
        let before = self.entries[frame as usize].state.fetch_sub(HOLD, AcqRel);
        before & FORGOTTEN != 0 && before & HOLDS == HOLD
    }

    /// True if the page is shared without a mark. Other threads may change this at any time.
    pub(crate) fn is_lent(&self, file: FileId, page: u64) -> bool {
        self.find(key(file, page))
            .is_some_and(|(_, entry)| entry.state.load(Relaxed) & (LENT | MARKED) == LENT)
    }

    /// Like `is_lent`, also for a page with a mark.
    pub(crate) fn is_there(&self, file: FileId, page: u64) -> bool {
        self.find(key(file, page)).is_some_and(|(_, entry)| entry.state.load(Relaxed) & LENT != 0)
    }

    /// Shares up to 64 pages from `first` on in `frames`, which are not shared. Pages with a bit in
    /// `marked` get the mark. Called by one thread at a time.
    pub(crate) fn lend(&self, file: FileId, first: u64, frames: &[FrameId], marked: u64) {
        let mut group = self.group(key(file, first));
        for (nth, (page, &FrameId(frame))) in (first..).zip(frames).enumerate() {
            let key = key(file, page);
            if key & GROUP_MASK == 0 {
                group = self.group(key);
            }
            let head = &group[(key & GROUP_MASK) as usize];
            let entry = &self.entries[frame as usize];
            debug_assert_eq!(entry.state.load(Relaxed) & (LENT | HOLDS), 0);
            entry.key.store(key, Release);
            entry.next.store(head.load(Relaxed), Relaxed);
            let mark = if marked >> nth & 1 == 0 { 0 } else { MARKED };
            entry.state.store(LENT | mark, Release);
            head.store(frame + 1, Release);
        }
    }

    /// Removes the mark of the page in `frame`. Called by one thread at a time.
    pub(crate) fn unmark(&self, frame: u32) {
        self.entries[frame as usize].state.fetch_and(!MARKED, Relaxed);
    }

    /// Returns and resets the uses of the page in `frame`.
    pub(crate) fn uses(&self, frame: u32) -> UseCount {
        let state = &self.entries[frame as usize].state;
        if state.load(Relaxed) & USES == 0 {
            return UseCount::None;
        }
        match (state.fetch_and(!USES, Relaxed) & USES) / USE {
            0 => UseCount::None,
            1 => UseCount::Once,
            _ => UseCount::Again,
        }
    }

    /// Like `uses`, for the frames from `first` on whose bits are set in `wanted`. Returns one bit
    /// set of the used frames and one of the frames used more than once.
    pub(crate) fn uses_of(&self, first: u32, wanted: u64) -> [u64; 2] {
        let mut used = [0; 2];
        for nth in bits(wanted) {
            let state = &self.entries[first as usize + nth].state;
            if state.load(Relaxed) & USES != 0 {
                let uses = state.fetch_and(!USES, Relaxed) & USES;
                used[0] |= 1 << nth;
                used[1] |= u64::from(uses != USE) << nth;
            }
        }
        used
    }

    /// True if the page in `frame` was used since the last call of `uses`.
    pub(crate) fn is_used(&self, frame: u32) -> bool {
        self.entries[frame as usize].state.load(Relaxed) & USES != 0
    }

    /// Ends the sharing of the page in `frame`, as [`recall_all`](PageIndex::recall_all). Returns
    /// false if the page is in use.
    pub(crate) fn recall(&self, frame: u32) -> bool {
        self.recall_all(&[FrameId(frame)]) == 0
    }

    /// Ends the sharing of the pages in up to 64 `frames`. Returns one bit for each page that is
    /// pinned or that a reader is signed in for, the lowest bit for the first frame. These pages
    /// stay shared. Called by one thread at a time.
    pub(crate) fn recall_all(&self, frames: &[FrameId]) -> u64 {
        let (mut refused, mut unlent) = (0, 0);
        for (nth, frame) in frames.iter().enumerate() {
            let state = &self.entries[frame.0 as usize].state;
            // A page that was filled and dropped may never have been shared.
            if state.load(Relaxed) & LENT != 0 {
                unlent |= 1u64 << nth;
                refused |= u64::from(state.fetch_sub(LENT, SeqCst) & HOLDS != 0) << nth;
            }
        }
        // From here on no lookup finds any of them. The readers of a group are checked once.
        let mut asked: Option<(u64, &[A::Word; 1 << GROUP_LOG2], bool)> = None;
        for nth in bits(unlent & !refused) {
            let frame = frames[nth].0;
            let key = self.entries[frame as usize].key.load(Relaxed);
            let (_, heads, is_read) = asked
                .filter(|&(group, ..)| group == key >> GROUP_LOG2)
                .unwrap_or_else(|| (key >> GROUP_LOG2, self.group(key), self.readers.are_in(key)));
            asked = Some((key >> GROUP_LOG2, heads, is_read));
            match is_read {
                true => refused |= 1 << nth,
                false => self.unchain(frame, &heads[(key & GROUP_MASK) as usize]),
            }
        }
        for nth in bits(refused) {
            self.entries[frames[nth].0 as usize].state.fetch_or(LENT, Release);
        }
        refused
    }

    /// Ends the sharing of the page in `frame`, even if it is in use. Returns the copies in
    /// progress. Once they are [over](PageIndex::are_over), the caller must call `forgotten`.
    /// Called by one thread at a time.
    pub(crate) fn forget(&self, frame: u32) -> Copies {
        let entry = &self.entries[frame as usize];
        entry.state.fetch_and(!LENT, SeqCst);
        let key = entry.key.load(Relaxed);
        self.unchain(frame, self.head(key));
        self.readers.who_is_in(key)
    }

    pub(crate) fn are_over(&self, copies: &mut Copies) -> bool {
        self.readers.are_over(copies)
    }

    /// Marks the invalidated page in `frame` after the last copy from it. Returns true if it is not
    /// pinned either, so that no unpin will report it. Called by one thread at a time.
    pub(crate) fn forgotten(&self, frame: u32) -> bool {
        // From here on the thread that removes the last pin sees the flag. If there is no pin, no
        // thread will see it.
        self.entries[frame as usize].state.fetch_or(FORGOTTEN, AcqRel) & HOLDS == 0
    }

    /// Removes the entry from its chain. Its own link stays, for readers that are at this entry.
    #[inline]
    fn unchain(&self, frame: u32, head: &A::Word) {
        let mut link = head;
        while link.load(Relaxed) != frame + 1 {
            link = &self.entries[link.load(Relaxed) as usize - 1].next;
        }
        link.store(self.entries[frame as usize].next.load(Relaxed), Release);
    }

    #[inline]
    fn find(&self, key: u64) -> Option<(u32, &IndexEntry<A>)> {
        let mut link = self.head(key).load(Acquire);
        for _ in 0..STEPS_MAX {
            // At the end of a chain, `frame` is out of range.
            let frame = link.wrapping_sub(1);
            let entry = self.entries.get(frame as usize)?;
            if entry.key.load(Relaxed) == key {
                return Some((frame, entry));
            }
            link = entry.next.load(Acquire);
        }
        None
    }

    #[inline]
    fn head(&self, key: u64) -> &A::Word {
        &self.group(key)[(key & GROUP_MASK) as usize]
    }

    /// Returns the heads of a key's group, indexed by the page's position in the group.
    #[inline]
    fn group(&self, key: u64) -> &[A::Word; 1 << GROUP_LOG2] {
        // The extent's number is hashed. The position of a group in its extent is permuted by the
        // same hash.
        let hash = spread(key >> (GROUP_LOG2 + EXTENT_GROUPS_LOG2));
        let groups_log2 = self.heads.len().trailing_zeros();
        let extents_log2 = groups_log2.saturating_sub(EXTENT_GROUPS_LOG2);
        let extent = hash.checked_shr(64 - extents_log2).unwrap_or(0) << EXTENT_GROUPS_LOG2;
        let within = (key >> GROUP_LOG2 ^ hash) & ((1 << EXTENT_GROUPS_LOG2.min(groups_log2)) - 1);
        &self.heads[(extent | within) as usize]
    }
}

/// Number of groups of heads for `frames` frames: a power of two.
fn groups(frames: u32) -> usize {
    (2 * frames as usize).next_power_of_two().max(1 << GROUP_LOG2) >> GROUP_LOG2
}

/// Positions of the set bits, from the lowest.
fn bits(mut left: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(lowest)
    })
}

/// Packs a file and a page number into one word.
pub(crate) fn key(file: FileId, page: u64) -> u64 {
    u64::from(file.0) << PAGE_BITS | page
}

pub(crate) struct Std;

impl Atomics for Std {
    type Word = std::sync::atomic::AtomicU32;
    type Key = std::sync::atomic::AtomicU64;

    /// Does nothing: the accesses themselves are sequentially consistent.
    #[inline]
    fn fence() {}
}

/// Implements `Word` for an atomic type with the methods of the standard library.
macro_rules! word {
    ($atomic:ty, $integer:ty) => {
        impl Word<$integer> for $atomic {
            #[inline]
            fn new(value: $integer) -> Self {
                <$atomic>::new(value)
            }
            #[inline]
            fn load(&self, order: Ordering) -> $integer {
                point();
                self.load(order)
            }
            #[inline]
            fn store(&self, value: $integer, order: Ordering) {
                point();
                self.store(value, order);
            }
            #[inline]
            fn fetch_sub(&self, value: $integer, order: Ordering) -> $integer {
                point();
                self.fetch_sub(value, order)
            }
            #[inline]
            fn fetch_and(&self, value: $integer, order: Ordering) -> $integer {
                self.fetch_and(value, order)
            }
            #[inline]
            fn fetch_or(&self, value: $integer, order: Ordering) -> $integer {
                self.fetch_or(value, order)
            }
            #[inline]
            fn compare_exchange_weak(
                &self,
                current: $integer,
                changed: $integer,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$integer, $integer> {
                point();
                self.compare_exchange_weak(current, changed, success, failure)
            }
        }
    };
}

word!(std::sync::atomic::AtomicU32, u32);
word!(std::sync::atomic::AtomicU64, u64);

#[cfg(test)]
mod loom_tests;

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(3);

    fn found(index: &PageIndex<Std>, file: FileId, page: u64) -> Option<u32> {
        index.look_up(&index.sign_in(file, page, 0).expect("nobody else is"), file, page, true)
    }

    #[test]
    fn what_is_lent_is_found_until_it_is_recalled() {
        let index = PageIndex::<Std>::new(64, 1);
        let pages: Vec<u64> = (0..64).map(|frame| frame * 977 % 1_000_003).collect();
        for (frame, &page) in pages.iter().enumerate() {
            index.lend(FILE, page, &[FrameId(frame as u32)], 0);
        }
        for (frame, &page) in pages.iter().enumerate() {
            assert_eq!(found(&index, FILE, page), Some(frame as u32));
            assert_eq!(found(&index, FileId(4), page), None);
            assert!(index.recall(frame as u32));
            assert_eq!(found(&index, FILE, page), None);
        }
    }

    #[test]
    fn a_hold_refuses_the_recall_and_the_last_one_of_what_is_forgotten_says_so() {
        let index = PageIndex::<Std>::new(2, 1);
        index.lend(FILE, 7, &[FrameId(0)], 0);
        for _ in 0..2 {
            assert_eq!(index.hold(FILE, 7, false), Hold::Held(0));
            assert!(!index.recall(0));
        }
        assert!(index.are_over(&mut index.forget(0)) && !index.forgotten(0));
        assert_eq!(found(&index, FILE, 7), None);
        assert!(!index.release(0));
        assert!(index.release(0));
        index.lend(FILE, 8, &[FrameId(0)], 0);
        assert!(index.are_over(&mut index.forget(0)) && index.forgotten(0));
    }

    #[test]
    fn a_copy_refuses_the_recall_and_delays_what_is_forgotten() {
        let index = PageIndex::<Std>::new(4, 2);
        for (page, frame) in [(7, 0), (8, 1), (16, 2)] {
            index.lend(FILE, page, &[FrameId(frame)], 0);
        }
        let reading = index.sign_in(FILE, 8, 0).expect("nobody else is");
        assert_eq!(index.recall_all(&[0, 1, 2].map(FrameId)), 0b011);
        assert_eq!([7, 8, 16].map(|page| index.is_lent(FILE, page)), [true, true, false]);
        let mut copies = index.forget(1);
        assert!(!index.is_lent(FILE, 8) && !index.are_over(&mut copies));
        drop(reading);
        assert!(index.are_over(&mut copies) && index.forgotten(1) && index.recall(0));
    }

    #[test]
    fn a_marked_page_is_not_lent_until_the_mark_is_off() {
        let index = PageIndex::<Std>::new(2, 1);
        index.lend(FILE, 7, &[FrameId(1)], 1);
        assert!(!index.is_lent(FILE, 7) && found(&index, FILE, 7).is_none());
        assert_eq!(index.hold(FILE, 7, false), Hold::Absent);
        assert_eq!(index.hold(FILE, 7, true), Hold::Held(1));
        assert!(!index.release(1));
        index.unmark(1);
        assert!(index.is_lent(FILE, 7));
        assert_eq!((index.uses(1), index.uses(1)), (UseCount::Once, UseCount::None));
        for uses in [UseCount::Once, UseCount::Again, UseCount::Again] {
            let pins = match uses {
                UseCount::Once => 1,
                _ => 3,
            };
            for _ in 0..pins {
                assert_eq!(found(&index, FILE, 7), Some(1));
            }
            assert_eq!(index.uses(1), uses);
        }
    }

    #[test]
    fn many_are_recalled_together_but_for_those_that_are_held() {
        let index = PageIndex::<Std>::new(6, 1);
        for (frame, page) in [(0, 14), (1, 15), (2, 16), (4, 17), (5, 40)] {
            index.lend(FILE, page, &[FrameId(frame)], 0);
        }
        assert_eq!(index.hold(FILE, 15, false), Hold::Held(1));
        assert_eq!(index.hold(FILE, 17, false), Hold::Held(4));
        assert_eq!(index.recall_all(&[0, 1, 2, 3, 4].map(FrameId)), 0b10010);
        let pages = [14, 15, 16, 17, 40].map(|page| index.is_lent(FILE, page));
        assert_eq!(pages, [false, true, false, true, true]);
        assert_eq!(index.recall_all(&[]), 0);
    }
}
