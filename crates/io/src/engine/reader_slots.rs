//! Registry of the copies in progress, for the thread that reclaims frames.
//!
//! A reader without a lock *signs in* before a lookup: it writes into a slot the file and the 64
//! KiB group that it will copy from. A thread that wants a frame first makes its page unfindable
//! and then checks the slots for its group. A copy therefore costs one atomic change of a cache
//! line that no other thread writes to, for any number of pages. Two readers of the same pages
//! share no cache line.
//!
//! The reclaiming thread never waits for a reader: the destination of the copy may be swapped out,
//! or be filled by a slow thread. It takes another frame or tries again later.
//!
//! Both sides write one word and then read the other's. At least one of them sees the other,
//! because all four accesses are sequentially consistent (Dekker's pattern, as in hazard pointers,
//! Michael 2004).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::page_index::{Atomics, GROUP_LOG2, Word};

/// Bit of a slot's word: a reader is signed in.
const ACTIVE: u64 = 1;
/// Step of the sign-in counter in a slot's word. The counter distinguishes successive readers.
const TURN: u64 = 2;
/// Mask of ACTIVE and the counter. In a key, these bits are the page's position in its group.
const LOW: u64 = (1 << GROUP_LOG2) - 1;

/// All slots of a cache.
pub(crate) struct Readers<A: Atomics> {
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
    word: &'a A::Key,
    value: u64,
    slot: usize,
}

impl<A: Atomics> Readers<A> {
    /// Creates slots for `slots` simultaneous copies, a power of two.
    pub(crate) fn new(slots: usize) -> Readers<A> {
        debug_assert!(slots.is_power_of_two());
        Readers { slots: (0..slots).map(|_| ReaderSlot { word: A::Key::new(0) }).collect() }
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Signs in for the group of `key`, in slot `wish` if it is free. Returns `None` if no slot is
    /// free.
    #[inline]
    pub(crate) fn sign_in(&self, key: u64, wish: usize) -> Option<ReaderGuard<'_, A>> {
        (wish..wish + self.slots.len()).find_map(|at| {
            let slot = at & (self.slots.len() - 1);
            let word = &self.slots[slot].word;
            let before = word.load(Relaxed);
            if before & ACTIVE != 0 {
                return None;
            }
            let value = signed_in(key, before);
            word.compare_exchange_weak(before, value, SeqCst, Relaxed).ok()?;
            A::fence();
            Some(ReaderGuard { word, value, slot })
        })
    }

    /// True if a reader is signed in for the group of `key`.
    pub(crate) fn are_in(&self, key: u64) -> bool {
        A::fence();
        self.slots.iter().any(|ReaderSlot { word }| is_in(word.load(SeqCst), key))
    }

    /// Returns the readers that are signed in for the group of `key`.
    pub(crate) fn who_is_in(&self, key: u64) -> Copies {
        A::fence();
        let words = self.slots.iter().map(|ReaderSlot { word }| word.load(SeqCst)).enumerate();
        Copies(words.filter(|&(_, word)| is_in(word, key)).collect())
    }

    /// True if all these readers have signed out or moved on.
    pub(crate) fn are_over(&self, copies: &mut Copies) -> bool {
        copies.0.retain(|&(slot, word)| self.slots[slot].word.load(Acquire) == word);
        copies.0.is_empty()
    }
}

/// Readers of a group at some moment: slots and their words.
#[derive(Debug)]
pub(crate) struct Copies(Vec<(usize, u64)>);

impl<A: Atomics> ReaderGuard<'_, A> {
    /// Slot of the reader. No other thread uses it while this guard lives.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// True if the group that the reader is signed in for contains the page of `key`.
    pub(crate) fn covers(&self, key: u64) -> bool {
        self.value & !LOW == key & !LOW
    }

    /// Moves the sign-in to the group of another key.
    pub(crate) fn move_on(&mut self, key: u64) {
        self.value = signed_in(key, self.value);
        self.word.store(self.value, SeqCst);
        A::fence();
    }
}

impl<A: Atomics> Drop for ReaderGuard<'_, A> {
    #[inline]
    fn drop(&mut self) {
        self.word.store(self.value & !ACTIVE, Release);
    }
}

/// True if the word of a slot is signed in for the group of `key`.
fn is_in(word: u64, key: u64) -> bool {
    word & ACTIVE != 0 && word & !LOW == key & !LOW
}

/// Word of a slot with a reader for `key`, after the word `before`.
fn signed_in(key: u64, before: u64) -> u64 {
    key & !LOW | before.wrapping_add(TURN) & LOW | ACTIVE
}

#[cfg(test)]
mod tests {
    use super::super::page_index::Std;
    use super::*;

    #[test]
    fn slots_are_taken_once_and_given_back() {
        let readers = Readers::<Std>::new(2);
        let first = readers.sign_in(0x70, 1).expect("free");
        let second = readers.sign_in(0x70, 1).expect("the other one");
        assert_eq!((first.slot(), second.slot()), (1, 0));
        assert!(readers.sign_in(0x90, 0).is_none());
        drop(first);
        assert_eq!(readers.sign_in(0x90, 0).expect("free again").slot(), 1);
    }

    #[test]
    fn who_signs_in_again_is_told_apart() {
        let readers = Readers::<Std>::new(1);
        let first = readers.sign_in(0x70, 0).expect("free");
        let mut copies = readers.who_is_in(0x7f);
        assert!(!readers.are_over(&mut copies));
        drop(first);
        let _second = readers.sign_in(0x70, 0).expect("free");
        assert!(readers.are_over(&mut copies) && readers.are_in(0x70));
    }

    #[test]
    fn what_is_covered_is_sixteen_pages_aligned() {
        let readers = Readers::<Std>::new(1);
        let mut reading = readers.sign_in(0x75, 0).expect("free");
        assert!(reading.covers(0x70) && reading.covers(0x7f) && !reading.covers(0x80));
        reading.move_on(0x80);
        assert!(reading.covers(0x80) && !reading.covers(0x7f));
    }

    #[test]
    fn readers_of_something_else_are_in_nobodys_way() {
        let readers = Readers::<Std>::new(2);
        let mut elsewhere = readers.sign_in(0x70, 0).expect("free");
        drop(readers.sign_in(0x80, 0));
        assert!(readers.are_in(0x71) && !readers.are_in(0x80));
        let mut copies = readers.who_is_in(0x70);
        elsewhere.move_on(0x80);
        assert!(readers.are_over(&mut copies) && readers.are_in(0x80));
    }
}
