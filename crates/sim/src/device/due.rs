//! Things in the order of the times at which they are due.
//!
//! A part of a device that serves in turn gives each thing a time that is no earlier than the last one's. So the
//! first is due first, and its time stands beside the queue: a device with many such queues asks all of them at each event.

use std::collections::VecDeque;

use readpath_core::unit::Time;

/// Of a queue that is empty: nothing is ever due.
pub const NEVER: Time = Time(u64::MAX);

/// Things that are due one after the other.
#[derive(Clone, Debug)]
pub struct FifoEvents<T> {
    /// When the first is due.
    next: Time,
    events: VecDeque<(Time, T)>,
}

impl<T> FifoEvents<T> {
    /// Nothing is due.
    pub const fn new() -> FifoEvents<T> {
        FifoEvents { next: NEVER, events: VecDeque::new() }
    }

    /// When the first is due; [`NEVER`] if there is none.
    #[inline]
    pub fn next(&self) -> Time {
        self.next
    }

    /// Adds what is due at `at`, no earlier than all before.
    #[inline]
    pub fn push(&mut self, at: Time, thing: T) {
        debug_assert!(
            self.events.back().is_none_or(|(last, _)| *last <= at),
            "in the order of time"
        );
        if self.events.is_empty() {
            self.next = at;
        }
        self.events.push_back((at, thing));
    }

    /// Takes the first out.
    #[inline]
    pub fn pop(&mut self) -> Option<(Time, T)> {
        let first = self.events.pop_front()?;
        self.next = self.events.front().map_or(NEVER, |(at, _)| *at);
        Some(first)
    }
}

impl<T> Default for FifoEvents<T> {
    fn default() -> FifoEvents<T> {
        FifoEvents::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_beside_the_queue_is_that_of_its_first() {
        let mut due = FifoEvents::new();
        assert_eq!((due.next(), due.pop()), (NEVER, None));
        due.push(Time(5), 'a');
        due.push(Time(5), 'b');
        due.push(Time(7), 'c');
        let mut seen = Vec::new();
        while due.next() != NEVER {
            seen.push((due.next(), due.pop()));
        }
        let expected = [(5, 'a'), (5, 'b'), (7, 'c')];
        assert_eq!(seen, expected.map(|(at, name)| (Time(at), Some((Time(at), name)))));
    }
}
