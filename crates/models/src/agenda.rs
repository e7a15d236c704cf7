//! Event queue of a device, ordered by time.
//!
//! Events at the same time leave in the order of insertion, so every simulation is repeatable.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use readpath_core::unit::Time;

/// Future events, each with its time.
#[derive(Clone, Debug)]
pub struct EventQueue<T> {
    /// The events, the earliest at the top.
    heap: BinaryHeap<Reverse<QueuedEvent<T>>>,
    /// Number of insertions so far: the tie-breaker for events at the same time.
    added_count: u64,
}

/// One queued event.
#[derive(Clone, Debug)]
struct QueuedEvent<T> {
    /// Time at which the event is due.
    time: Time,
    /// Number of the insertion, from 1.
    serial: u64,
    /// The event itself, which does not affect the order.
    event: T,
}

impl<T> EventQueue<T> {
    /// Creates an empty queue.
    pub fn new() -> EventQueue<T> {
        EventQueue { heap: BinaryHeap::new(), added_count: 0 }
    }

    /// Schedules `event` at `time`. Events of the same time keep their order of insertion.
    pub fn add(&mut self, time: Time, event: T) {
        self.added_count += 1;
        self.heap.push(Reverse(QueuedEvent { time, serial: self.added_count, event }));
    }

    /// Returns the time of the next event; `None` if the queue is empty.
    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(entry)| entry.time)
    }

    /// Removes and returns the next event if it is due by `now`.
    pub fn take_due(&mut self, now: Time) -> Option<(Time, T)> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| (entry.time, entry.event))
    }
}

impl<T> Default for EventQueue<T> {
    fn default() -> EventQueue<T> {
        EventQueue::new()
    }
}

impl<T> PartialEq for QueuedEvent<T> {
    /// Compares time and serial number. No two events of a queue are equal.
    fn eq(&self, other: &QueuedEvent<T>) -> bool {
        (self.time, self.serial) == (other.time, other.serial)
    }
}

impl<T> Eq for QueuedEvent<T> {}

impl<T> PartialOrd for QueuedEvent<T> {
    fn partial_cmp(&self, other: &QueuedEvent<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for QueuedEvent<T> {
    /// Orders events by time, and events at the same time by their insertion.
    fn cmp(&self, other: &QueuedEvent<T>) -> std::cmp::Ordering {
        (self.time, self.serial).cmp(&(other.time, other.serial))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_and_then_of_insertion() {
        let mut queue = EventQueue::new();
        for (ns, event) in [(30, 'd'), (10, 'a'), (20, 'b'), (20, 'c')] {
            queue.add(Time(ns), event);
        }
        assert_eq!(queue.take_due(Time(9)), None);
        let order: Vec<char> =
            std::iter::from_fn(|| queue.take_due(Time(25)).map(|(_, event)| event)).collect();
        assert_eq!(order, ['a', 'b', 'c']);
        assert_eq!(queue.next_at(), Some(Time(30)));
    }
}
