//! Maps pages to frames for readers that take no lock.
//!
//! A *frame* is memory for one page. A page is *shared* if readers may find it here. A *marked*
//! page has the readahead mark: its reader must go to the machine, the state machine of the cache.
//! A *recall* ends the sharing of an unused page. A *group* is 16 consecutive pages (64 KiB).
//!
//! Every frame has one entry. Entries form chains from a table of heads with twice as many heads as
//! frames. The memory is therefore fixed at the start, and nothing is freed while a reader uses it.
//! Initially it is zero pages, which the system provides only when they are written to. The heads
//! of 1,024 consecutive pages lie in one memory page, so a small file touches little of a large
//! index. Readers may come at any time, on any thread. One thread at a time changes the entries,
//! under the machine's lock.
//!
//! A reader *signs in* before a lookup, for the duration of a copy (see
//! [readers](super::reader_slots)), or *pins* the page that it finds, for any time. Invariants:
//!
//! 1. A lookup finds a page only while it is shared and has no mark.
//! 2. A found frame keeps its page while its reader is signed in or pins it. A recall succeeds only
//!    if no reader does either. The recalling thread never waits for readers.
//! 3. A reader that misses an entry while the entry moves has a miss and asks the machine. It never
//!    gets wrong bytes.
//!
//! The index is generic over the atomics, so that `loom` can run it through every order of events.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use readpath_core::cache::{FileId, FrameId, UseCount};
use readpath_core::splitmix::spread;
use readpath_core::unit::PAGE_BYTES;

use super::atomics::{Atomics, GROUP_LOG2, Std, Word};
use super::reader_slots::{ActiveReaders, ReaderGuard, ReaderSlots};
use crate::target::FILE_BYTES_MAX;

/// Number of bits of a page number in a key: 4 PiB of file. The other 24 bits are the file's
/// number.
const KEY_PAGE_BITS: u32 = 40;
const _: () = assert!(FILE_BYTES_MAX <= PAGE_BYTES << KEY_PAGE_BITS, "every page has a key");
const GROUP_MASK: u64 = (1 << GROUP_LOG2) - 1;
/// Binary logarithm of the number of groups whose heads lie in one memory page: 64 groups, or 1,024
/// pages.
const EXTENT_GROUPS_LOG2: u32 = 6;
/// Number of entries after which a lookup gives up, because the chain changes during the lookup.
/// The reader then has a miss.
const CHAIN_STEPS_MAX: u32 = 64;

// Layout of an entry's state, from the lowest bit: number of pins (26 bits), number of uses up to 2
// (2 bits; eviction policies distinguish no more), and three flags.
const PIN_UNIT: u32 = 1;
const PIN_MASK: u32 = (1 << 26) - 1;
const USE_UNIT: u32 = 1 << 26;
const USE_MASK: u32 = 3 << 26;
/// Flag: the page has the readahead mark, and its reader must go to the machine.
const MARKED: u32 = 1 << 28;
/// Flag: a lookup may find the page.
const SHARED: u32 = 1 << 29;
/// Flag: the page was invalidated while it was pinned. The last unpin must report it.
const INVALIDATED: u32 = 1 << 30;

/// Entry of one frame.
#[repr(C)]
struct IndexEntry<A: Atomics> {
    /// File and page, as packed by `page_key`.
    key: A::Key,
    /// Pins, uses and flags, in the layout above.
    state: A::Word,
    /// Number of the next frame in the chain plus one; 0 at the end, as in a head.
    next: A::Word,
}

/// Heads of the chains of one group's pages.
type Group<A> = [<A as Atomics>::Word; 1 << GROUP_LOG2];

const _: () = assert!(size_of::<IndexEntry<Std>>() == size_of::<[u64; 2]>());
const _: () = assert!(align_of::<IndexEntry<Std>>() == align_of::<[u64; 2]>());

/// Result of an attempt to pin a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinOutcome {
    /// The page is pinned in this frame.
    Pinned(u32),
    /// The page is not shared, or its pin count is at the maximum.
    Absent,
    /// The page is not shared, and the caller must return this frame to the machine.
    AbsentReturnFrame(u32),
}

/// The index of a cache with a fixed number of frames.
pub(crate) struct PageIndex<A: Atomics> {
    /// The length is a power of two.
    heads: Box<[Group<A>]>,
    /// By frame number.
    entries: Box<[IndexEntry<A>]>,
    /// Groups from which readers copy now.
    reader_slots: ReaderSlots<A>,
}

impl PageIndex<Std> {
    /// Creates an empty index over `frames` frames, with at most 32 bytes per frame (from four
    /// frames on). `readers` is the maximum number of simultaneous copies, a power of two.
    pub(crate) fn new(frames: u32, readers: usize) -> PageIndex<Std> {
        // The allocator provides zeroed memory for plain integers without writing to it.
        let heads =
            Box::into_raw(vec![[0u32; 1 << GROUP_LOG2]; group_count(frames)].into_boxed_slice());
        let entries = Box::into_raw(vec![[0u64; 2]; frames as usize].into_boxed_slice());
        // SAFETY: this function owns both allocations. The atomic integers have the same sizes and
        // alignments, and zero bytes are valid values of them.
        let (heads, entries) = unsafe {
            (
                Box::from_raw(heads as *mut [Group<Std>]),
                Box::from_raw(entries as *mut [IndexEntry<Std>]),
            )
        };
        PageIndex { heads, entries, reader_slots: ReaderSlots::new(readers) }
    }
}

impl<A: Atomics> PageIndex<A> {
    /// Creates an empty index like [`new`](PageIndex::new), but writes each word, because other
    /// atomics may not be zero bytes.
    #[cfg(test)]
    fn with_initialised_words(frames: u32, readers: usize) -> PageIndex<A> {
        let head = |_| std::array::from_fn(|_| A::Word::new(0));
        let entry =
            |_| IndexEntry { key: A::Key::new(0), state: A::Word::new(0), next: A::Word::new(0) };
        PageIndex {
            heads: (0..group_count(frames)).map(head).collect(),
            entries: (0..frames).map(entry).collect(),
            reader_slots: ReaderSlots::new(readers),
        }
    }

    /// Maximum number of readers that are signed in at the same time.
    pub(crate) fn reader_slot_count(&self) -> usize {
        self.reader_slots.slot_count()
    }

    /// Signs in for copies from the group of a page, in slot `preferred_slot` (modulo the number of
    /// slots) if it is free, or in another slot. Returns `None` if no slot is free.
    #[inline]
    pub(crate) fn sign_in(
        &self,
        file: FileId,
        page: u64,
        preferred_slot: usize,
    ) -> Option<ReaderGuard<'_, A>> {
        self.reader_slots.sign_in(page_key(file, page), preferred_slot)
    }

    /// Returns the frame of a shared page of the group that `reader` is signed in for. The frame
    /// keeps the page while `reader` stays signed in. `None` if the page is not shared, or has the
    /// readahead mark. Counts a use if `counts_use` is set.
    #[inline]
    pub(crate) fn look_up(
        &self,
        reader: &ReaderGuard<'_, A>,
        file: FileId,
        page: u64,
        counts_use: bool,
    ) -> Option<u32> {
        let key = page_key(file, page);
        debug_assert!(reader.covers(key));
        let (frame, entry) = self.find(key)?;
        // In one total order with the sign-in (see [readers](super::reader_slots)).
        let mut state = entry.state.load(SeqCst);
        // The reader is signed in: a page found shared now stays in its frame. The frame may have
        // got another page between `find` and the load of the state, so the key is checked again.
        if state & (SHARED | MARKED) != SHARED || entry.key.load(Acquire) != key {
            return None;
        }
        // Two uses are the maximum of the count. Another thread may change the state meanwhile.
        while counts_use && state & USE_MASK != 2 * USE_UNIT {
            match entry.state.compare_exchange_weak(state, state + USE_UNIT, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(changed) => state = changed,
            }
        }
        Some(frame)
    }

    /// True if the page of the group that `reader` is signed in for is shared in `frame`, marked
    /// or not. The frame then keeps the page while `reader` stays signed in.
    pub(crate) fn is_shared_in_frame(
        &self,
        reader: &ReaderGuard<'_, A>,
        file: FileId,
        page: u64,
        frame: u32,
    ) -> bool {
        let (key, entry) = (page_key(file, page), &self.entries[frame as usize]);
        debug_assert!(reader.covers(key));
        entry.state.load(SeqCst) & SHARED != 0 && entry.key.load(Acquire) == key
    }

    /// Pins the page if it is shared, counts a use, and returns its frame. A page with the
    /// readahead mark counts as absent unless `ignores_mark` is set. The caller sets it after the
    /// machine has processed the mark.
    #[inline]
    pub(crate) fn pin(&self, file: FileId, page: u64, ignores_mark: bool) -> PinOutcome {
        let key = page_key(file, page);
        let Some((frame, entry)) = self.find(key) else { return PinOutcome::Absent };
        if !self.try_add_pin(entry, if ignores_mark { 0 } else { MARKED }) {
            return PinOutcome::Absent;
        }
        // From the pin on, the frame keeps its page: the key cannot change any more.
        if entry.key.load(Relaxed) == key {
            return PinOutcome::Pinned(frame);
        }
        // The frame received another page meanwhile, and that page was pinned for a moment. The use
        // counted for it stays.
        match self.unpin(frame) {
            true => PinOutcome::AbsentReturnFrame(frame),
            false => PinOutcome::Absent,
        }
    }

    /// Adds a pin and a use to an entry. Returns false, without effect, if the entry is not shared,
    /// has one of `excluded_flags`, or has the maximum number of pins. The use is not counted
    /// beyond two.
    #[inline]
    fn try_add_pin(&self, entry: &IndexEntry<A>, excluded_flags: u32) -> bool {
        let mut state = entry.state.load(Relaxed);
        loop {
            if state & (SHARED | excluded_flags) != SHARED || state & PIN_MASK == PIN_MASK {
                return false;
            }
            let is_use_count_full = state & USE_MASK == 2 * USE_UNIT;
            let pinned_state = state + PIN_UNIT + if is_use_count_full { 0 } else { USE_UNIT };
            match entry.state.compare_exchange_weak(state, pinned_state, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(changed) => state = changed,
            }
        }
    }

    /// Removes a pin. Returns true if the page was invalidated and this was its last pin. The
    /// caller must then return the frame to the machine.
    pub(crate) fn unpin(&self, frame: u32) -> bool {
        let old_state = self.entries[frame as usize].state.fetch_sub(PIN_UNIT, AcqRel);
        old_state & INVALIDATED != 0 && old_state & PIN_MASK == PIN_UNIT
    }

    /// True if the page is shared without a mark. Other threads may change this at any time.
    pub(crate) fn is_shared(&self, file: FileId, page: u64) -> bool {
        self.find(page_key(file, page))
            .is_some_and(|(_, entry)| entry.state.load(Relaxed) & (SHARED | MARKED) == SHARED)
    }

    /// True if the page is shared, with or without a mark. Other threads may change this at any
    /// time.
    pub(crate) fn is_shared_or_marked(&self, file: FileId, page: u64) -> bool {
        self.find(page_key(file, page))
            .is_some_and(|(_, entry)| entry.state.load(Relaxed) & SHARED != 0)
    }

    /// Shares up to 64 consecutive pages from `first_page` on. Each of `frames` has the next page,
    /// and is neither shared nor pinned. Pages with a bit in `marked_pages`, the lowest one for
    /// `first_page`, get the mark. Uses and the flag `INVALIDATED` are reset. Called by one thread
    /// at a time.
    pub(crate) fn share(
        &self,
        file: FileId,
        first_page: u64,
        frames: &[FrameId],
        marked_pages: u64,
    ) {
        let mut heads = self.group_heads(page_key(file, first_page));
        for (position, (page, &FrameId(frame))) in (first_page..).zip(frames).enumerate() {
            let key = page_key(file, page);
            // The pages may span several groups.
            if key & GROUP_MASK == 0 {
                heads = self.group_heads(key);
            }
            let head = &heads[(key & GROUP_MASK) as usize];
            let entry = &self.entries[frame as usize];
            debug_assert_eq!(entry.state.load(Relaxed) & (SHARED | PIN_MASK), 0);
            entry.key.store(key, Release);
            entry.next.store(head.load(Relaxed), Relaxed);
            let mark = if marked_pages >> position & 1 == 0 { 0 } else { MARKED };
            entry.state.store(SHARED | mark, Release);
            // Stored last: a reader that follows the head sees the whole entry. Numbers are one
            // higher than the frame's, because 0 ends a chain.
            head.store(frame + 1, Release);
        }
    }

    /// Marks the page in `frame`: later lookups do not find it. Called by one thread at a time.
    pub(crate) fn mark(&self, frame: u32) {
        self.entries[frame as usize].state.fetch_or(MARKED, Relaxed);
    }

    /// Removes the mark of the page in `frame`. Called by one thread at a time.
    pub(crate) fn unmark(&self, frame: u32) {
        self.entries[frame as usize].state.fetch_and(!MARKED, Relaxed);
    }

    /// Returns and resets the uses of the page in `frame`.
    pub(crate) fn take_uses(&self, frame: u32) -> UseCount {
        let state = &self.entries[frame as usize].state;
        // Checked with a load first, so that an unused entry is not written.
        if state.load(Relaxed) & USE_MASK == 0 {
            return UseCount::None;
        }
        match (state.fetch_and(!USE_MASK, Relaxed) & USE_MASK) / USE_UNIT {
            0 => UseCount::None,
            1 => UseCount::Once,
            _ => UseCount::Again,
        }
    }

    /// Like [`take_uses`](PageIndex::take_uses), for the frames from `first_frame` on whose bits
    /// are set in `selected_frames`, the lowest bit for `first_frame`. Returns two bit sets: the
    /// used frames, and the frames used more than once.
    pub(crate) fn take_uses_of(&self, first_frame: u32, selected_frames: u64) -> [u64; 2] {
        let (mut used_frames, mut repeatedly_used_frames) = (0, 0);
        for position in set_bit_positions(selected_frames) {
            let state = &self.entries[first_frame as usize + position].state;
            if state.load(Relaxed) & USE_MASK != 0 {
                let uses = state.fetch_and(!USE_MASK, Relaxed) & USE_MASK;
                used_frames |= 1 << position;
                repeatedly_used_frames |= u64::from(uses != USE_UNIT) << position;
            }
        }
        [used_frames, repeatedly_used_frames]
    }

    /// True if the page in `frame` was used since its uses were taken.
    pub(crate) fn is_used(&self, frame: u32) -> bool {
        self.entries[frame as usize].state.load(Relaxed) & USE_MASK != 0
    }

    /// Ends the sharing of the page in `frame`, as [`recall_all`](PageIndex::recall_all). Returns
    /// false, and lets the page stay shared, if it is in use. True also if it was never shared.
    pub(crate) fn recall(&self, frame: u32) -> bool {
        self.recall_all(&[FrameId(frame)]) == 0
    }

    /// Ends the sharing of the pages in up to 64 `frames`. Returns one bit for each page that is
    /// pinned or that a reader is signed in for, the lowest bit for the first frame. These pages
    /// are shared again at the end; lookups meanwhile miss them. A page that was not shared gets no
    /// bit. Called by one thread at a time.
    pub(crate) fn recall_all(&self, frames: &[FrameId]) -> u64 {
        let (mut in_use, mut recalled) = (0, 0);
        for (position, frame) in frames.iter().enumerate() {
            let state = &self.entries[frame.0 as usize].state;
            // A page that was filled and dropped may never have been shared.
            if state.load(Relaxed) & SHARED != 0 {
                recalled |= 1u64 << position;
                // The flag is set, so the subtraction clears it and nothing else.
                in_use |= u64::from(state.fetch_sub(SHARED, SeqCst) & PIN_MASK != 0) << position;
            }
        }
        // From here on no lookup finds any of the pages. A reader that has found one before is
        // signed in for its group. The readers of a group are checked once. The last checked group:
        // its number, the heads of its pages, and true if a reader is signed in for it.
        let mut checked_group: Option<(u64, &[A::Word; 1 << GROUP_LOG2], bool)> = None;
        for position in set_bit_positions(recalled & !in_use) {
            let frame = frames[position].0;
            let key = self.entries[frame as usize].key.load(Relaxed);
            let group = key >> GROUP_LOG2;
            let (_, heads, is_read) =
                checked_group.filter(|&(checked, ..)| checked == group).unwrap_or_else(|| {
                    (group, self.group_heads(key), self.reader_slots.has_reader_in(key))
                });
            checked_group = Some((group, heads, is_read));
            match is_read {
                // The reader may copy another page of the group: the page counts as in use all the
                // same.
                true => in_use |= 1 << position,
                false => self.unchain(frame, &heads[(key & GROUP_MASK) as usize]),
            }
        }
        // Pages in use are shared again, and stay in their chains.
        for position in set_bit_positions(in_use) {
            self.entries[frames[position].0 as usize].state.fetch_or(SHARED, Release);
        }
        in_use
    }

    /// Ends the sharing of the shared page in `frame`, even if it is in use. Returns the copies in
    /// progress. Once they are [over](PageIndex::have_all_readers_left), the caller must call
    /// [`mark_invalidated`](PageIndex::mark_invalidated). Called by one thread at a time.
    pub(crate) fn invalidate(&self, frame: u32) -> ActiveReaders {
        let entry = &self.entries[frame as usize];
        entry.state.fetch_and(!SHARED, SeqCst);
        let key = entry.key.load(Relaxed);
        self.unchain(frame, self.head(key));
        self.reader_slots.active_readers(key)
    }

    /// Removes from `active_readers` each one that has signed out or moved to another group.
    /// Returns true if none is left.
    pub(crate) fn have_all_readers_left(&self, active_readers: &mut ActiveReaders) -> bool {
        self.reader_slots.have_all_left(active_readers)
    }

    /// Marks the invalidated page in `frame` after the last copy from it. Returns true if it is not
    /// pinned either, so that no unpin will report it. Called by one thread at a time.
    pub(crate) fn mark_invalidated(&self, frame: u32) -> bool {
        // From here on the thread that removes the last pin sees the flag. If there is no pin, no
        // thread will see it.
        self.entries[frame as usize].state.fetch_or(INVALIDATED, AcqRel) & PIN_MASK == 0
    }

    /// Removes the entry of `frame` from the chain of `head`, which must contain it. Its own link
    /// stays, for readers that are at this entry.
    #[inline]
    fn unchain(&self, frame: u32, head: &A::Word) {
        let mut link = head;
        while link.load(Relaxed) != frame + 1 {
            link = &self.entries[link.load(Relaxed) as usize - 1].next;
        }
        link.store(self.entries[frame as usize].next.load(Relaxed), Release);
    }

    /// Returns the frame and the entry with this key, shared or not. Returns `None` if there is
    /// none, or if the chain changes too often.
    #[inline]
    fn find(&self, key: u64) -> Option<(u32, &IndexEntry<A>)> {
        let mut link = self.head(key).load(Acquire);
        for _ in 0..CHAIN_STEPS_MAX {
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

    /// Returns the head of the chain for a key.
    #[inline]
    fn head(&self, key: u64) -> &A::Word {
        &self.group_heads(key)[(key & GROUP_MASK) as usize]
    }

    /// Returns the heads of a key's group, indexed by the page's position in the group.
    #[inline]
    fn group_heads(&self, key: u64) -> &[A::Word; 1 << GROUP_LOG2] {
        // An *extent* is 64 consecutive groups, whose heads lie in one memory page. The hash of the
        // extent's number selects that memory page. The hash also permutes the groups in it: two
        // extents with the same memory page place their first groups differently.
        let hash = spread(key >> (GROUP_LOG2 + EXTENT_GROUPS_LOG2));
        let groups_log2 = self.heads.len().trailing_zeros();
        let extents_log2 = groups_log2.saturating_sub(EXTENT_GROUPS_LOG2);
        // In an index of one memory page the shift would be 64 bits, and all groups are there.
        let first_group = hash.checked_shr(64 - extents_log2).unwrap_or(0) << EXTENT_GROUPS_LOG2;
        let position_mask = (1 << EXTENT_GROUPS_LOG2.min(groups_log2)) - 1;
        let group_in_extent = (key >> GROUP_LOG2 ^ hash) & position_mask;
        &self.heads[(first_group | group_in_extent) as usize]
    }
}

/// Number of groups of heads for `frames` frames: a power of two, with at least two heads for each
/// frame.
fn group_count(frames: u32) -> usize {
    (2 * frames as usize).next_power_of_two().max(1 << GROUP_LOG2) >> GROUP_LOG2
}

/// Positions of the set bits, from the lowest.
fn set_bit_positions(mut remaining_bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (remaining_bits != 0).then(|| remaining_bits.trailing_zeros() as usize)?;
        remaining_bits &= remaining_bits - 1;
        Some(lowest)
    })
}

/// Packs a file and a page number into one word.
pub(crate) fn page_key(file: FileId, page: u64) -> u64 {
    u64::from(file.0) << KEY_PAGE_BITS | page
}

#[cfg(test)]
mod loom_tests;

#[cfg(test)]
mod tests;
