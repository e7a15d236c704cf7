//! A first-in, first-out queue of events with nondecreasing times.
//!
//! A part of a device that serves its requests in order produces such events. The time of the first
//! event is stored outside the deque, because a device with many such queues compares all of them
//! at each event.

use std::collections::VecDeque;

use readpath_core::unit::Time;

/// Time of the next event of an empty queue.
pub const NEVER: Time = Time(u64::MAX);

/// A queue of events with nondecreasing times.
#[derive(Clone, Debug)]
pub struct FifoEvents<T> {
    /// Time of the first event, or [`NEVER`].
    next: Time,
    /// The events with their times, the earliest first.
    events: VecDeque<(Time, T)>,
}

impl<T> FifoEvents<T> {
    /// Creates an empty queue.
    pub const fn new() -> FifoEvents<T> {
        FifoEvents { next: NEVER, events: VecDeque::new() }
    }

    /// Returns the time of the first event, or [`NEVER`] if the queue is empty.
    #[inline]
    pub fn next(&self) -> Time {
        self.next
    }

    /// Appends an event at `time`, which must not be earlier than the time of the last event.
    #[inline]
    pub fn push(&mut self, time: Time, event: T) {
        debug_assert!(
            self.events.back().is_none_or(|(last, _)| *last <= time),
            "events are added in the order of time"
        );
        if self.events.is_empty() {
            self.next = time;
        }
        self.events.push_back((time, event));
    }

    /// Removes and returns the first event with its time; `None` if there is none.
    #[inline]
    pub fn pop(&mut self) -> Option<(Time, T)> {
        let first = self.events.pop_front()?;
        self.next = self.events.front().map_or(NEVER, |(time, _)| *time);
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

    /// Two events at 5 ns and one at 7 ns leave in the order of insertion.
    #[test]
    fn next_time_is_that_of_the_first_queued_event() {
        let mut queue = FifoEvents::new();
        assert_eq!((queue.next(), queue.pop()), (NEVER, None));
        queue.push(Time(5), 'a');
        queue.push(Time(5), 'b');
        queue.push(Time(7), 'c');
        let mut popped = Vec::new();
        while queue.next() != NEVER {
            popped.push((queue.next(), queue.pop()));
        }
        let expected = [(5, 'a'), (5, 'b'), (7, 'c')];
        assert_eq!(popped, expected.map(|(ns, event)| (Time(ns), Some((Time(ns), event)))));
    }
}
