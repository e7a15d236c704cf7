//! A queue of values in arrival order, from which any value can be removed.
//!
//! A removed value is not searched for: with tens of thousands of values, each access to memory is
//! a cache miss. A bit marks it as removed. Removed values are skipped when they reach the front,
//! or dropped when they are more than half of the queue.

use alloc::collections::VecDeque;

/// Number of removed values that may always stay in the queue, however short it is. A short queue
/// is thus not rebuilt at every few removals.
const REMOVED_MIN: usize = 32;

/// Values by arrival number. Each arrival has the next number while the queue is not empty.
///
/// Invariants:
///
/// 1. The first value is not removed.
/// 2. `removed_bits` has a bit for each number from `64 * first_word` up to the last arrival's.
#[derive(Debug)]
pub(super) struct ArrivalQueue<T> {
    /// Values with their numbers, including removed ones.
    values: VecDeque<(u64, T)>,
    /// Bits of the removed numbers.
    removed_bits: VecDeque<u64>,
    /// Number of the first word of `removed_bits`: an arrival number divided by 64.
    first_word: u64,
    /// Number of values that are not removed.
    count: usize,
}

impl<T> Default for ArrivalQueue<T> {
    /// An empty queue.
    fn default() -> ArrivalQueue<T> {
        ArrivalQueue {
            values: VecDeque::new(),
            removed_bits: VecDeque::new(),
            first_word: 0,
            count: 0,
        }
    }
}

impl<T> ArrivalQueue<T> {
    /// Number of values that are not removed.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds a value at the end. `arrival` is its number, the one after the last; an empty queue
    /// takes any larger number. Words have 64 bits, one for each arrival number.
    pub(super) fn push(&mut self, arrival: u64, value: T) {
        if self.values.is_empty() {
            self.removed_bits.clear();
            self.first_word = arrival / 64;
        }
        if self.first_word + self.removed_bits.len() as u64 <= arrival / 64 {
            self.removed_bits.push_back(0);
        }
        self.values.push_back((arrival, value));
        self.count += 1;
    }

    /// Removes the value with number `arrival`, which must be present. Values removed earlier are
    /// dropped from the front, and everywhere once they are more than half.
    pub(super) fn remove(&mut self, arrival: u64) {
        self.removed_bits[(arrival / 64 - self.first_word) as usize] |= 1 << (arrival % 64);
        self.count -= 1;
        while let Some((first, _)) = self.values.front()
            && self.is_removed(*first)
        {
            self.values.pop_front();
        }
        // More than half of the values are removed ones, by more than `REMOVED_MIN`.
        if self.values.len() > 2 * self.count + REMOVED_MIN {
            let mut values = core::mem::take(&mut self.values);
            values.retain(|(arrival, _)| !self.is_removed(*arrival));
            self.values = values;
        }
        // The words before the first value are not needed any more. The words of an empty queue
        // stay until the next arrival clears them.
        let needed_word = self.values.front().map_or(0, |(first, _)| first / 64);
        while self.first_word < needed_word {
            self.removed_bits.pop_front();
            self.first_word += 1;
        }
    }

    /// The oldest value, and its number; `None` if the queue is empty.
    pub(super) fn first(&self) -> Option<&(u64, T)> {
        self.values.front()
    }

    /// Returns true if the value with number `arrival` was removed.
    fn is_removed(&self, arrival: u64) -> bool {
        self.removed_bits[(arrival / 64 - self.first_word) as usize] >> (arrival % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The letters a to e arrive as 61 to 65, across the border of two words of bits. Three are
    /// removed, f arrives, and the others leave in order. The next arrival starts with one word.
    #[test]
    fn removals_preserve_the_order_of_the_remaining_values() {
        let mut arrivals = ArrivalQueue::default();
        (61..).zip("abcde".chars()).for_each(|(number, letter)| arrivals.push(number, letter));
        [63, 61, 65].into_iter().for_each(|number| arrivals.remove(number));
        arrivals.push(66, 'f');
        for (number, letter) in [(62, 'b'), (64, 'd'), (66, 'f')] {
            assert_eq!(arrivals.first(), Some(&(number, letter)));
            arrivals.remove(number);
        }
        assert_eq!((arrivals.count(), arrivals.first()), (0, None));
        arrivals.push(1_000_000, 'g');
        assert_eq!((arrivals.count(), arrivals.first()), (1, Some(&(1_000_000, 'g'))));
        assert_eq!(arrivals.removed_bits.len(), 1);
    }

    /// The first of ten thousand stays, and of the others every tenth.
    #[test]
    fn removed_values_behind_a_long_lived_one_take_bounded_memory() {
        let mut arrivals = ArrivalQueue::default();
        for number in 1..=10_000 {
            arrivals.push(number, number);
            if number % 10 != 1 {
                arrivals.remove(number);
            }
        }
        assert_eq!(arrivals.count(), 1_000);
        assert!(arrivals.values.len() <= 2 * 1_000 + REMOVED_MIN, "{}", arrivals.values.len());
        for number in (1..=10_000).step_by(10) {
            assert_eq!(arrivals.first(), Some(&(number, number)));
            arrivals.remove(number);
        }
        assert_eq!((arrivals.count(), arrivals.values.len()), (0, 0));
    }
}
