//! Values in the order in which they came, of which any may have gone.
//!
//! Who leaves is not looked for among the others: where tens of thousands wait, each place of memory is one that
//! the processor has to wait for. A bit says that he has gone, and what has gone is passed over when it comes to the front,
//! or when it is more than half of what is here.

use alloc::collections::VecDeque;

/// So many more values are kept than have not gone, however few those are.
const GONE_MIN: usize = 32;

/// Values by the number of their arrival; each arrival has the next number, as long as any value is here.
///
/// 1. The first value has not gone.
/// 2. `gone` has a bit for each number from `64 * first_word` up to the last arrival's.
#[derive(Debug)]
pub(super) struct ArrivalQueue<T> {
    values: VecDeque<(u64, T)>,
    gone: VecDeque<u64>,
    first_word: u64,
    count: usize,
}

impl<T> Default for ArrivalQueue<T> {
    fn default() -> ArrivalQueue<T> {
        ArrivalQueue { values: VecDeque::new(), gone: VecDeque::new(), first_word: 0, count: 0 }
    }
}

impl<T> ArrivalQueue<T> {
    /// How many values it holds.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds a value.
    pub(super) fn push(&mut self, number: u64, value: T) {
        if self.values.is_empty() {
            self.gone.clear();
            self.first_word = number / 64;
        }
        if self.first_word + self.gone.len() as u64 <= number / 64 {
            self.gone.push_back(0);
        }
        self.values.push_back((number, value));
        self.count += 1;
    }

    /// The value of that number, which is here, has gone.
    pub(super) fn remove(&mut self, number: u64) {
        self.gone[(number / 64 - self.first_word) as usize] |= 1 << (number % 64);
        self.count -= 1;
        while let Some((first, _)) = self.values.front()
            && self.is_removed(*first)
        {
            self.values.pop_front();
        }
        if self.values.len() > 2 * self.count + GONE_MIN {
            let mut values = core::mem::take(&mut self.values);
            values.retain(|(number, _)| !self.is_removed(*number));
            self.values = values;
        }
        let first_word = self.values.front().map_or(0, |(first, _)| first / 64);
        while self.first_word < first_word {
            self.gone.pop_front();
            self.first_word += 1;
        }
    }

    /// The value that came first, and its number.
    pub(super) fn first(&self) -> Option<&(u64, T)> {
        self.values.front()
    }

    fn is_removed(&self, number: u64) -> bool {
        self.gone[(number / 64 - self.first_word) as usize] >> (number % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_values_leave_the_order_of_the_others() {
        let mut arrivals = ArrivalQueue::default();
        (61..).zip("abcde".chars()).for_each(|(number, letter)| arrivals.push(number, letter));
        [63, 61, 65].into_iter().for_each(|number| arrivals.remove(number));
        arrivals.push(66, 'f');
        for left in [(62, 'b'), (64, 'd'), (66, 'f')] {
            assert_eq!(arrivals.first(), Some(&left));
            arrivals.remove(left.0);
        }
        assert_eq!((arrivals.count(), arrivals.first()), (0, None));
        arrivals.push(1_000_000, 'g');
        assert_eq!((arrivals.count(), arrivals.first()), (1, Some(&(1_000_000, 'g'))));
        assert_eq!(arrivals.gone.len(), 1);
    }

    /// The first of ten thousand stays, and of the others every tenth.
    #[test]
    fn a_long_lived_value_keeps_few_removed_ones() {
        let mut arrivals = ArrivalQueue::default();
        for number in 1..=10_000 {
            arrivals.push(number, number);
            if number % 10 != 1 {
                arrivals.remove(number);
            }
        }
        assert_eq!(arrivals.count(), 1_000);
        assert!(arrivals.values.len() <= 2 * 1_000 + GONE_MIN, "{}", arrivals.values.len());
        for number in (1..=10_000).step_by(10) {
            assert_eq!(arrivals.first(), Some(&(number, number)));
            arrivals.remove(number);
        }
        assert_eq!((arrivals.count(), arrivals.values.len()), (0, 0));
    }
}
