//! Which frame holds which page, for readers who take no lock.
//!
//! Every frame has one entry; entries hang in chains from a table of heads that
//! is twice as long as there are frames. So the memory is fixed at the start, and
//! nothing is ever freed under a reader. It is zeros then, which the system has not to bring before they are
//! written to; and the heads of 1,024 neighbours lie in one page of the machine. So a small file
//! touches little of a large index. Readers come at any time, on any thread;
//! the entries are changed by one thread at a time (the machine's lock).
//!
//! A reader *signs in* before it looks, for the moment of a copy (see
//! [readers](super::readers)); or it *holds* what it finds, for as long as it
//! likes. Invariants:
//!
//! 1. A page is found only while it is lent and carries no mark.
//! 2. A frame that was found keeps its page as long as its reader is signed in, or
//!    holds it: it is recalled only when nobody is or does. Nobody waits for that.
//! 3. A reader that misses an entry while it is moved has a miss, and asks the
//!    machine: never wrong bytes.
//!
//! Generic over the atomics, so that `loom` can run it through every order of
//! events.

use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

use readpath_core::cache::{FileId, FrameId, UseCount};
use readpath_core::splitmix::spread;
use readpath_core::unit::PAGE_BYTES;

use super::readers::{Copies, ReaderGuard, Readers};
use crate::storage::FILE_BYTES_MAX;
use crate::sync::point;

/// Bits of a page's number in a key: 4 PiB of file; the other 24 are the file's.
const PAGE_BITS: u32 = 40;
const _: () = assert!(FILE_BYTES_MAX <= PAGE_BYTES << PAGE_BITS, "every page has a key");
/// Consecutive pages whose heads lie side by side, one cache line of them, and
/// which are copied by one reader at a time: 64 KiB.
pub(crate) const GROUP_LOG2: u32 = 4;
const GROUP_MASK: u64 = (1 << GROUP_LOG2) - 1;
/// Groups whose heads lie in one page of memory: those of 1,024 pages.
const EXTENT_GROUPS_LOG2: u32 = 6;
/// A reader gives up after so many entries: the chain is being changed under it.
const STEPS_MAX: u32 = 64;

// The state of an entry, from the lowest bit: holds (26 bits), uses (2 bits), and
// three flags.
const HOLD: u32 = 1;
const HOLDS: u32 = (1 << 26) - 1;
const USE: u32 = 1 << 26;
const USES: u32 = 3 << 26;
/// Carries the readahead mark: its reader has to go to the machine.
const MARKED: u32 = 1 << 28;
/// May be found.
const LENT: u32 = 1 << 29;
/// Out of date while it was held: the last holder has to say so.
const FORGOTTEN: u32 = 1 << 30;

/// The atomic words that an index is built of.
pub(crate) trait Atomics {
    /// 32 bits.
    type Word: Word<u32>;
    /// 64 bits.
    type Key: Word<u64>;
    /// What makes sequentially consistent accesses of different words be seen in
    /// one order by all, where their own order doesn't.
    fn fence();
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

#[repr(C)]
struct IndexEntry<A: Atomics> {
    key: A::Key,
    state: A::Word,
    /// One more than the number of the next frame in the chain; 0 at the end, as in a head.
    next: A::Word,
}

/// The heads of neighbours.
type Group<A> = [<A as Atomics>::Word; 1 << GROUP_LOG2];

const _: () = assert!(size_of::<IndexEntry<Std>>() == size_of::<[u64; 2]>());
const _: () = assert!(align_of::<IndexEntry<Std>>() == align_of::<[u64; 2]>());

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
    /// A power of two of groups.
    heads: Box<[Group<A>]>,
    entries: Box<[IndexEntry<A>]>,
    readers: Readers<A>,
}

impl PageIndex<Std> {
    /// An index of no pages over `frames` frames, 32 bytes a frame at the most,
    /// for so many copies at a time.
    pub(crate) fn new(frames: u32, readers: usize) -> PageIndex<Std> {
        // Plain integers can be had as memory that is zero already.
        let heads = Box::into_raw(vec![[0u32; 1 << GROUP_LOG2]; groups(frames)].into_boxed_slice());
        let entries = Box::into_raw(vec![[0u64; 2]; frames as usize].into_boxed_slice());
        // SAFETY: both are ours alone, and as large, and as aligned, as the atomic integers that they become, for which
        // zeros are zero.
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
    /// As [`new`](PageIndex::new), of words that are made one by one.
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

    /// How many copies there may be at a time.
    pub(crate) fn readers(&self) -> usize {
        self.readers.slots()
    }

    /// Signs in for copies from the group of a page, in slot `wish` if it is free;
    /// `None` if none is.
    #[inline]
    pub(crate) fn sign_in(
        &self,
        file: FileId,
        page: u64,
        wish: usize,
    ) -> Option<ReaderGuard<'_, A>> {
        self.readers.sign_in(key(file, page), wish)
    }

    /// The frame of a page of the group that `reading` is signed in for, if it is
    /// lent: the frame keeps it as long as that is so. Counts a use of it, if that `counts`.
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
        // Lent, and found, it can't change any more; it may have before.
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

    /// Whether the page of the group that `reading` is signed in for is lent in `frame`, marked or not: the
    /// frame keeps it as long as that is so.
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

    /// Holds the page, if it is lent, and gives its frame; counts a use of it.
    /// With `is_seen` also if it carries the mark, which its law has been shown.
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
        // Another page came into the frame before; it was held for a moment.
        match self.release(frame) {
            true => Hold::AbsentAndReturned(frame),
            false => Hold::Absent,
        }
    }

    /// Counts a hold, and a use, of an entry that is lent and has none of the flags `unless`.
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

    /// As `is_lent`, also of a page that carries a mark.
    pub(crate) fn is_there(&self, file: FileId, page: u64) -> bool {
        self.find(key(file, page)).is_some_and(|(_, entry)| entry.state.load(Relaxed) & LENT != 0)
    }

    /// Lends pages from `first` on, 64 at the most, in `frames`, which are not lent; those with a
    /// bit in `marked` carry the mark. By one thread at a time.
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

    /// Takes the mark off the page in `frame`. By one thread at a time.
    pub(crate) fn unmark(&self, frame: u32) {
        self.entries[frame as usize].state.fetch_and(!MARKED, Relaxed);
    }

    /// How the page in `frame` was used since this was last asked.
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

    /// As `uses`, of the frames from `first` on whose bits are set in `wanted`: a bit for each that was
    /// used, and one for each that was more than once.
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

    /// Whether the page in `frame` was used since `uses` was last asked.
    pub(crate) fn is_used(&self, frame: u32) -> bool {
        self.entries[frame as usize].state.load(Relaxed) & USES != 0
    }

    /// Lends the page in `frame` no more, as [`recall_all`](PageIndex::recall_all); false if
    /// it is in use.
    pub(crate) fn recall(&self, frame: u32) -> bool {
        self.recall_all(&[FrameId(frame)]) == 0
    }

    /// Lends the pages in `frames`, 64 at the most, no more. Gives a bit, the lowest for the
    /// first, for each page that somebody holds, or that somebody is signed in for: that one
    /// is lent as before. By one thread at a time.
    pub(crate) fn recall_all(&self, frames: &[FrameId]) -> u64 {
        let (mut refused, mut unlent) = (0, 0);
        for (nth, frame) in frames.iter().enumerate() {
            let state = &self.entries[frame.0 as usize].state;
            // Or it was filled, and dropped before it was ever lent.
            if state.load(Relaxed) & LENT != 0 {
                unlent |= 1u64 << nth;
                refused |= u64::from(state.fetch_sub(LENT, SeqCst) & HOLDS != 0) << nth;
            }
        }
        // Nobody can find any of them now: neighbours are asked for together.
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

    /// Lends the page in `frame` no more, though it may be in use. Gives who copies from it
    /// still: once they are [over](PageIndex::are_over), `forgotten` is to be called. By one
    /// thread at a time.
    pub(crate) fn forget(&self, frame: u32) -> Copies {
        let entry = &self.entries[frame as usize];
        entry.state.fetch_and(!LENT, SeqCst);
        let key = entry.key.load(Relaxed);
        self.unchain(frame, self.head(key));
        self.readers.who_is_in(key)
    }

    /// Whether copies have come to their end.
    pub(crate) fn are_over(&self, copies: &mut Copies) -> bool {
        self.readers.are_over(copies)
    }

    /// Nobody copies from the page in `frame`, which was to be forgotten, any more. True if
    /// nobody holds it either: nobody else will say so then. By one thread at a time.
    pub(crate) fn forgotten(&self, frame: u32) -> bool {
        // From here on whoever ends the last hold sees the flag; there is none
        // to see it if this was the last to look.
        self.entries[frame as usize].state.fetch_or(FORGOTTEN, AcqRel) & HOLDS == 0
    }

    /// Takes the entry out of its chain. Its own link stays, for readers who are there.
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
            // Past the end there is no such entry.
            let frame = link.wrapping_sub(1);
            let entry = self.entries.get(frame as usize)?;
            if entry.key.load(Relaxed) == key {
                return Some((frame, entry));
            }
            link = entry.next.load(Acquire);
        }
        None
    }

    /// The head of the chain that a key belongs to.
    #[inline]
    fn head(&self, key: u64) -> &A::Word {
        &self.group(key)[(key & GROUP_MASK) as usize]
    }

    /// The heads of a key's group, each at its page's place in it.
    #[inline]
    fn group(&self, key: u64) -> &[A::Word; 1 << GROUP_LOG2] {
        // The extent is spread, then the group's place in its extent, another one in each.
        let hash = spread(key >> (GROUP_LOG2 + EXTENT_GROUPS_LOG2));
        let groups_log2 = self.heads.len().trailing_zeros();
        let extents_log2 = groups_log2.saturating_sub(EXTENT_GROUPS_LOG2);
        let extent = hash.checked_shr(64 - extents_log2).unwrap_or(0) << EXTENT_GROUPS_LOG2;
        let within = (key >> GROUP_LOG2 ^ hash) & ((1 << EXTENT_GROUPS_LOG2.min(groups_log2)) - 1);
        &self.heads[(extent | within) as usize]
    }
}

/// How many groups of heads there are for so many frames: a power of two.
fn groups(frames: u32) -> usize {
    (2 * frames as usize).next_power_of_two().max(1 << GROUP_LOG2) >> GROUP_LOG2
}

/// Which bits are set, from the lowest.
fn bits(mut left: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(lowest)
    })
}

/// What names a page of a file in one word.
pub(crate) fn key(file: FileId, page: u64) -> u64 {
    u64::from(file.0) << PAGE_BITS | page
}

/// The atomics of the standard library.
pub(crate) struct Std;

impl Atomics for Std {
    type Word = std::sync::atomic::AtomicU32;
    type Key = std::sync::atomic::AtomicU64;

    /// Nothing: the accesses themselves are sequentially consistent.
    #[inline]
    fn fence() {}
}

/// Makes `Word` of an atomic type that has the methods of the standard library's.
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
mod orders;

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(3);

    /// The frame in which a reader finds the page.
    fn found(index: &PageIndex<Std>, file: FileId, page: u64) -> Option<u32> {
        index.look_up(&index.sign_in(file, page, 0).expect("nobody else is"), file, page, true)
    }

    #[test]
    fn what_is_lent_is_found_until_it_is_recalled() {
        let index = PageIndex::<Std>::new(64, 1);
        // Pages far apart, so that chains grow.
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
        // The pages of its group stay, and are lent as before.
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
        // Two groups of sixteen pages; the fourth frame holds nothing.
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
