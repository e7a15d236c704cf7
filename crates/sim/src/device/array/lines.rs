//! A cache of lines: which pieces of a device are in a controller's memory, or
//! on their way there, and who waits for them.
//!
//! The line that was used longest ago makes room for a new one. A line on its
//! way can't be dropped; when all are, there is no room.

use std::collections::{BTreeMap, BTreeSet};

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
    /// By line: when it was last used; `None` while it is on its way.
    held: BTreeMap<u64, Option<u64>>,
    by_age: BTreeMap<u64, u64>,
    uses: u64,
    /// Line and who waits for it.
    waiting: BTreeSet<(u64, u32)>,
}

impl Lines {
    /// Room for `lines_max` lines.
    pub fn new(lines_max: usize) -> Lines {
        Lines {
            lines_max,
            held: BTreeMap::new(),
            by_age: BTreeMap::new(),
            uses: 0,
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
            let Some((_, oldest)) = self.by_age.pop_first() else { return false };
            self.held.remove(&oldest);
        }
        self.held.insert(line, None);
        true
    }

    /// The line has been used, or has just come: it is the youngest now.
    pub fn touch(&mut self, line: u64) {
        let Some(used) = self.held.get_mut(&line) else { return };
        self.uses += 1;
        if let Some(before) = used.replace(self.uses) {
            self.by_age.remove(&before);
        }
        self.by_age.insert(self.uses, line);
    }

    /// The line is not worth keeping, or no longer true.
    pub fn drop_line(&mut self, line: u64) {
        if let Some(Some(used)) = self.held.remove(&line) {
            self.by_age.remove(&used);
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
    fn the_oldest_line_makes_room_and_a_coming_one_never() {
        let mut lines = Lines::new(2);
        assert!(lines.expect(1) && lines.expect(2));
        assert!(!lines.expect(3));
        lines.touch(1);
        lines.touch(2);
        lines.touch(1);
        assert!(lines.expect(3));
        assert_eq!(
            [1, 2, 3].map(|line| lines.state(line)),
            [Line::Present, Line::Absent, Line::Coming]
        );
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
