//! Who copies from the cache now, for the one who takes frames away.
//!
//! A reader that takes no lock says, before it looks anything up, from which 64 KiB
//! of which file it is about to copy: it *signs in*, in one of a few slots. Who
//! wants a frame first makes its page unfindable, and then looks whether anybody is
//! signed in for the 64 KiB around it. So a copy costs one atomic change of a
//! cache line that nobody else writes to, however many pages it is of, and two
//! readers of the same pages write to no line together.
//!
//! Nobody waits for a reader: the memory that it copies to may be swapped out, or be filled by
//! somebody who is late. Who wants the frame takes another, or comes again.
//!
//! Both sides write one word and then read the other's: at least one of them sees
//! the other, since all four accesses are sequentially consistent (the pattern is
//! Dekker's; as in hazard pointers, Michael 2004).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::index::{Atomics, GROUP_LOG2, Word};

/// Of a slot's word: somebody is signed in.
const ACTIVE: u64 = 1;
/// Counts who signs in: so one that was seen is told from the next.
const TURN: u64 = 2;
/// The bits of ACTIVE and the count, which lie where a key has the page in its group.
const LOW: u64 = (1 << GROUP_LOG2) - 1;

/// The slots.
pub(crate) struct Readers<A: Atomics> {
    slots: Box<[ReaderSlot<A>]>,
}

/// A cache line of its own.
#[repr(align(64))]
struct ReaderSlot<A: Atomics> {
    word: A::Key,
}

/// Somebody is signed in, until this is dropped.
pub(crate) struct ReaderGuard<'a, A: Atomics> {
    word: &'a A::Key,
    value: u64,
    slot: usize,
}

impl<A: Atomics> Readers<A> {
    /// So many slots, a power of two: so many copies at a time.
    pub(crate) fn new(slots: usize) -> Readers<A> {
        debug_assert!(slots.is_power_of_two());
        Readers { slots: (0..slots).map(|_| ReaderSlot { word: A::Key::new(0) }).collect() }
    }

    /// How many slots there are.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Signs in for the group of `key`, in slot `wish` if that is free; `None`
    /// if none is.
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

    /// Whether somebody is signed in for the group of `key`.
    pub(crate) fn are_in(&self, key: u64) -> bool {
        A::fence();
        self.slots.iter().any(|ReaderSlot { word }| is_in(word.load(SeqCst), key))
    }

    /// Who is signed in for the group of `key`.
    pub(crate) fn who_is_in(&self, key: u64) -> Copies {
        A::fence();
        let words = self.slots.iter().map(|ReaderSlot { word }| word.load(SeqCst)).enumerate();
        Copies(words.filter(|&(_, word)| is_in(word, key)).collect())
    }

    /// Whether all of them have signed out, or moved on.
    pub(crate) fn are_over(&self, copies: &mut Copies) -> bool {
        copies.0.retain(|&(slot, word)| self.slots[slot].word.load(Acquire) == word);
        copies.0.is_empty()
    }
}

/// Who was signed in for a group at some moment: the slots, and what they held.
#[derive(Debug)]
pub(crate) struct Copies(Vec<(usize, u64)>);

impl<A: Atomics> ReaderGuard<'_, A> {
    /// Which slot it is signed in: nobody else is as long as this lives.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Whether what it is signed in for has the page of `key`.
    pub(crate) fn covers(&self, key: u64) -> bool {
        self.value & !LOW == key & !LOW
    }

    /// Signs in for the group of another key.
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

fn is_in(word: u64, key: u64) -> bool {
    word & ACTIVE != 0 && word & !LOW == key & !LOW
}

/// The word of a slot with somebody signed in, after `before`.
fn signed_in(key: u64, before: u64) -> u64 {
    key & !LOW | before.wrapping_add(TURN) & LOW | ACTIVE
}

#[cfg(test)]
mod tests {
    use super::super::index::Std;
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
