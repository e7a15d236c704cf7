//! A cache of lines: which pieces of a device are in a controller's memory, or
//! on their way there, and who waits for them.
//!
//! A line drawn by chance makes room for a new one. That the oldest went would
//! be wrong in a way that no controller is: as soon as one stream too many is
//! read in turn, every line would go just before it is needed. A line on its
//! way can't be dropped; when all are, there is no room.

use std::collections::{BTreeMap, BTreeSet};

use crate::device::random::Draw;

/// How a line stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Not here.
    Absent,
    /// Asked for; not here yet.
    Coming,
    /// Here.
    Present,
}

/// Lines by number.
#[derive(Debug)]
pub struct Lines {
    lines_max: usize,
    /// By line: its place among `present`; `None` while it is on its way.
    held: BTreeMap<u64, Option<usize>>,
    present: Vec<u64>,
    draw: Draw,
    /// Line and who waits for it.
    waiting: BTreeSet<(u64, u32)>,
}

impl Lines {
    /// Room for `lines_max` lines.
    pub fn new(lines_max: usize) -> Lines {
        Lines {
            lines_max,
            held: BTreeMap::new(),
            present: Vec::new(),
            draw: Draw::new(0),
            waiting: BTreeSet::new(),
        }
    }

    /// How `line` stands.
    pub fn state(&self, line: u64) -> Line {
        match self.held.get(&line) {
            None => Line::Absent,
            Some(None) => Line::Coming,
            Some(Some(_)) => Line::Present,
        }
    }

    /// Makes room for `line`, which is absent and now on its way; false when there is none.
    pub fn expect(&mut self, line: u64) -> bool {
        if self.held.len() >= self.lines_max {
            if self.present.is_empty() {
                return false;
            }
            let place = self.draw.below(self.present.len() as u64) as usize;
            self.discard(self.present[place]);
        }
        self.held.insert(line, None);
        true
    }

    /// The line, which was on its way, is here.
    pub fn arrive(&mut self, line: u64) {
        if let Some(place @ None) = self.held.get_mut(&line) {
            *place = Some(self.present.len());
            self.present.push(line);
        }
    }

    /// The line is not worth keeping, or no longer true, or could not be read.
    pub fn discard(&mut self, line: u64) {
        if let Some(Some(place)) = self.held.remove(&line) {
            self.present.swap_remove(place);
            if let Some(moved) = self.present.get(place) {
                self.held.insert(*moved, Some(place));
            }
        }
    }

    /// `who` waits for `line`, which is on its way.
    pub fn wait(&mut self, line: u64, who: u32) {
        self.waiting.insert((line, who));
    }

    /// Takes out one of those who wait for `line`.
    pub fn next_waiter(&mut self, line: u64) -> Option<u32> {
        let first = *self.waiting.range((line, 0)..=(line, u32::MAX)).next()?;
        self.waiting.remove(&first);
        Some(first.1)
    }

    /// `who` waits for `line` no more.
    pub fn forget(&mut self, line: u64, who: u32) {
        self.waiting.remove(&(line, who));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_here_makes_room_and_a_coming_one_never() {
        let mut lines = Lines::new(2);
        assert!(lines.expect(1) && lines.expect(2));
        assert!(!lines.expect(3));
        lines.arrive(1);
        assert!(lines.expect(3));
        assert_eq!(
            [1, 2, 3].map(|line| lines.state(line)),
            [Line::Absent, Line::Coming, Line::Coming]
        );
        lines.arrive(2);
        lines.arrive(3);
        lines.discard(2);
        assert_eq!([2, 3].map(|line| lines.state(line)), [Line::Absent, Line::Present]);
    }

    /// Lines read in turn, one and a half times as many as there is room for: with the oldest
    /// going none would ever be met again; by chance h of them are, h = exp(−1.5 (1 − h)) = 0.42.
    #[test]
    fn one_stream_too_many_does_not_empty_the_cache() {
        let mut lines = Lines::new(1_000);
        let mut hits = 0;
        for round in 0..20 {
            for line in 0..1_500 {
                if lines.state(line) == Line::Present {
                    hits += u32::from(round >= 10);
                } else {
                    assert!(lines.expect(line));
                    lines.arrive(line);
                }
            }
        }
        let share = f64::from(hits) / 15_000.0;
        assert!((share - 0.42).abs() < 0.03, "{share}");
    }

    #[test]
    fn each_waiter_is_told_once() {
        let mut lines = Lines::new(4);
        assert!(lines.expect(7));
        lines.wait(7, 1);
        lines.wait(7, 2);
        lines.forget(7, 1);
        assert_eq!(lines.next_waiter(7), Some(2));
        assert_eq!(lines.next_waiter(7), None);
    }
}
