//! Registry of the copies in progress, for the thread that reclaims frames.
//!
//! A reader without a lock *signs in* before a lookup: it writes into a slot the file and the 64
//! KiB group that it will copy from. A thread that wants a frame, the memory of a page, first makes
//! its page unfindable and then checks the slots for its group. A copy therefore costs one atomic
//! change of a cache line that no other thread writes to, for any number of pages. Two readers of
//! the same pages share no cache line.
//!
//! The reclaiming thread never waits for a reader: the destination of the copy may be swapped out,
//! or be filled by a slow thread. It takes another frame or tries again later.
//!
//! Both sides write one word and then read the other's. At least one of them sees the other,
//! because all four accesses are sequentially consistent (Dekker's pattern, as in hazard pointers,
//! Michael 2004). The fences between them have an effect only in the model checker loom.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::atomics::{Atomics, GROUP_LOG2, Word};

/// Bit of a slot's word: a reader is signed in.
const ACTIVE: u64 = 1;
/// Step of the sign-in counter in a slot's word. The counter distinguishes successive readers. It
/// has three bits: a word may repeat after eight sign-ins, which only delays the return of a frame.
const SEQUENCE_UNIT: u64 = 2;
/// Mask of ACTIVE and the counter. In a key, these bits are the page's position in its group.
const LOW_BITS: u64 = (1 << GROUP_LOG2) - 1;

/// All slots of a cache.
pub(crate) struct ReaderSlots<A: Atomics> {
    /// The length is a power of two.
    slots: Box<[ReaderSlot<A>]>,
}

/// One slot, in a cache line of its own.
#[repr(align(64))]
struct ReaderSlot<A: Atomics> {
    /// Key of the signed-in group, with [`ACTIVE`] and the sign-in counter in the low bits.
    word: A::Key,
}

/// Guard of a signed-in reader. Dropping it signs out.
pub(crate) struct ReaderGuard<'a, A: Atomics> {
    /// Word of the slot.
    word: &'a A::Key,
    /// Value of `word`, which only this guard changes.
    current_word: u64,
    /// Index of the slot.
    slot: usize,
}

impl<A: Atomics> ReaderSlots<A> {
    /// Creates slots for `slots` simultaneous copies, a power of two.
    pub(crate) fn new(slots: usize) -> ReaderSlots<A> {
        debug_assert!(slots.is_power_of_two());
        ReaderSlots { slots: (0..slots).map(|_| ReaderSlot { word: A::Key::new(0) }).collect() }
    }

    /// Number of slots, which is the maximum number of signed-in readers.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Signs in for the group of `key`, in slot `preferred_slot` if it is free. The number wraps
    /// around at the number of slots. Returns `None` if no slot is free.
    #[inline]
    pub(crate) fn sign_in(&self, key: u64, preferred_slot: usize) -> Option<ReaderGuard<'_, A>> {
        (preferred_slot..preferred_slot + self.slots.len()).find_map(|attempt| {
            let slot = attempt & (self.slots.len() - 1);
            let word = &self.slots[slot].word;
            let old_word = word.load(Relaxed);
            // The slot is occupied.
            if old_word & ACTIVE != 0 {
                return None;
            }
            let new_word = signed_in_word(key, old_word);
            // If another reader was faster, the next slot is tried. The weak exchange may also fail
            // without a cause. A miss of all slots only makes the reader ask the machine.
            word.compare_exchange_weak(old_word, new_word, SeqCst, Relaxed).ok()?;
            A::fence();
            Some(ReaderGuard { word, current_word: new_word, slot })
        })
    }

    /// True if a reader is signed in for the group of `key`.
    pub(crate) fn has_reader_in(&self, key: u64) -> bool {
        A::fence();
        self.slots.iter().any(|ReaderSlot { word }| is_signed_in(word.load(SeqCst), key))
    }

    /// Returns the readers that are signed in for the group of `key`.
    pub(crate) fn active_readers(&self, key: u64) -> ActiveReaders {
        A::fence();
        let words = self.slots.iter().map(|ReaderSlot { word }| word.load(SeqCst)).enumerate();
        ActiveReaders(words.filter(|&(_, word)| is_signed_in(word, key)).collect())
    }

    /// Removes from `active_readers` each one that has signed out or moved to another group.
    /// Returns true if none is left.
    pub(crate) fn have_all_left(&self, active_readers: &mut ActiveReaders) -> bool {
        let ActiveReaders(slots_with_words) = active_readers;
        slots_with_words.retain(|&(slot, word)| self.slots[slot].word.load(Acquire) == word);
        slots_with_words.is_empty()
    }
}

/// Readers of a group at some moment: slots and their words.
#[derive(Debug)]
pub(crate) struct ActiveReaders(Vec<(usize, u64)>);

impl<A: Atomics> ReaderGuard<'_, A> {
    /// Slot of the reader. No other thread uses it while this guard lives.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// True if the group that the reader is signed in for contains the page of `key`.
    pub(crate) fn covers(&self, key: u64) -> bool {
        self.current_word & !LOW_BITS == key & !LOW_BITS
    }

    /// Moves the sign-in to the group of another key. Pages of the group before are not protected
    /// any more.
    pub(crate) fn move_to_group(&mut self, key: u64) {
        self.current_word = signed_in_word(key, self.current_word);
        self.word.store(self.current_word, SeqCst);
        A::fence();
    }
}

impl<A: Atomics> Drop for ReaderGuard<'_, A> {
    /// Signs out: the slot is free.
    #[inline]
    fn drop(&mut self) {
        self.word.store(self.current_word & !ACTIVE, Release);
    }
}

/// True if the word of a slot is signed in for the group of `key`.
fn is_signed_in(word: u64, key: u64) -> bool {
    word & ACTIVE != 0 && word & !LOW_BITS == key & !LOW_BITS
}

/// Word of a slot with a reader for `key`. The sign-in counter is one higher than in `old_word`.
fn signed_in_word(key: u64, old_word: u64) -> u64 {
    key & !LOW_BITS | old_word.wrapping_add(SEQUENCE_UNIT) & LOW_BITS | ACTIVE
}

#[cfg(test)]
mod tests {
    use super::super::atomics::Std;
    use super::*;

    // The keys 0x70 to 0x7f are in one group of 16 pages.

    /// Two slots: the second reader gets the other one, and a third gets none.
    #[test]
    fn reader_slots_are_exclusive_and_reusable() {
        let readers = ReaderSlots::<Std>::new(2);
        let first = readers.sign_in(0x70, 1).expect("a slot is free");
        let second = readers.sign_in(0x70, 1).expect("the other slot is free");
        assert_eq!((first.slot(), second.slot()), (1, 0));
        assert!(readers.sign_in(0x90, 0).is_none());
        drop(first);
        assert_eq!(readers.sign_in(0x90, 0).expect("the slot is free again").slot(), 1);
    }

    /// The only slot is used again by a second reader of the same group. The list of copies
    /// contains the first reader only.
    #[test]
    fn reader_that_signs_in_again_counts_as_a_new_copy() {
        let readers = ReaderSlots::<Std>::new(1);
        let first = readers.sign_in(0x70, 0).expect("a slot is free");
        let mut copies = readers.active_readers(0x7f);
        assert!(!readers.have_all_left(&mut copies));
        drop(first);
        let _second = readers.sign_in(0x70, 0).expect("a slot is free");
        assert!(readers.have_all_left(&mut copies) && readers.has_reader_in(0x70));
    }

    /// A reader of the page with key 0x75 covers the keys 0x70 to 0x7f.
    #[test]
    fn sign_in_covers_an_aligned_group_of_sixteen_pages() {
        let readers = ReaderSlots::<Std>::new(1);
        let mut reader = readers.sign_in(0x75, 0).expect("a slot is free");
        assert!(reader.covers(0x70) && reader.covers(0x7f) && !reader.covers(0x80));
        reader.move_to_group(0x80);
        assert!(reader.covers(0x80) && !reader.covers(0x7f));
    }

    /// A reader of the group 0x70 moves on to the group 0x80.
    #[test]
    fn readers_of_other_groups_do_not_count_as_users() {
        let readers = ReaderSlots::<Std>::new(2);
        let mut moving_reader = readers.sign_in(0x70, 0).expect("a slot is free");
        drop(readers.sign_in(0x80, 0));
        assert!(readers.has_reader_in(0x71) && !readers.has_reader_in(0x80));
        let mut copies = readers.active_readers(0x70);
        moving_reader.move_to_group(0x80);
        assert!(readers.have_all_left(&mut copies) && readers.has_reader_in(0x80));
    }
}
