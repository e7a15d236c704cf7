//! The drive's own queue: which command the arm serves next.
//!
//! Among the oldest `window` commands the one that can be reached soonest, by the
//! arm's move and the platter's angle together (shortest positioning time first); a
//! command older than the age limit goes before all others, so that none starves.

use std::collections::VecDeque;

use readpath_core::request::{DeviceRequest, Op};

use super::drive::QueueSpec;
use super::geometry::Place;
use super::mechanics::{Arm, Mechanics};

/// A command that waits for the arm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    /// What was asked.
    pub request: DeviceRequest,
    /// When the drive's processor is through with it.
    pub ready_at: u64,
    /// Since when it is among those that the drive chooses from.
    pub in_window_since: u64,
    /// Where its first sector lies.
    pub place: Place,
    /// A write that is to be reported early and waits for room in the cache.
    pub waits_for_room: bool,
}

/// The commands that wait, oldest first.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    commands: VecDeque<Command>,
    spec: QueueSpec,
}

impl Queue {
    pub(super) fn new(spec: QueueSpec) -> Queue {
        Queue { commands: VecDeque::with_capacity(spec.depth as usize), spec }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    pub(super) fn push(&mut self, command: Command) {
        self.commands.push_back(command);
    }

    /// When the first of the commands in the window is ready.
    pub(super) fn ready_at(&self) -> Option<u64> {
        self.window().map(|command| command.ready_at).min()
    }

    /// Takes the oldest write that waits for room.
    pub(super) fn take_waiting(&mut self, now: u64) -> Option<Command> {
        let index = self.commands.iter().position(|command| command.waits_for_room)?;
        self.remove(index, now)
    }

    /// Takes the command to be served at `now`, the arm being where it is; `None` when
    /// none in the window is ready.
    ///
    /// `at_hand` says of a command that it needs no move at all (the cache has its start,
    /// or the head is reading there).
    pub(super) fn take_next(
        &mut self,
        now: u64,
        arm: Arm,
        mechanics: &Mechanics,
        at_hand: impl Fn(&Command) -> bool,
    ) -> Option<Command> {
        let oldest = self.commands.front()?;
        if is_ready(oldest, now) {
            let waited_ns = now.saturating_sub(oldest.in_window_since);
            let is_alone = self.commands.len() == 1 || self.spec.window == 1;
            if is_alone || waited_ns > self.spec.age_limit_ns {
                return self.remove(0, now);
            }
        }
        let mut best = None;
        let mut least_ns = u64::MAX;
        for (index, command) in self.window().enumerate() {
            if !is_ready(command, now) || self.continues_waiting(index) {
                continue;
            }
            let cost_ns = match at_hand(command) {
                true => 0,
                false => mechanics.positioning_ns(now, arm, &command.place, command.request.op),
            };
            if cost_ns < least_ns {
                (best, least_ns) = (Some(index), cost_ns);
            }
        }
        self.remove(best?, now)
    }

    /// Whether the command at `index` goes on from the one queued before it: served first
    /// it would cost that one a revolution.
    fn continues_waiting(&self, index: usize) -> bool {
        index.checked_sub(1).is_some_and(|before| {
            let (before, this) = (&self.commands[before].request, &self.commands[index].request);
            before.op == this.op && before.end() == this.start
        })
    }

    /// Takes a command out; the one that thereby comes into the window starts to age.
    fn remove(&mut self, index: usize, now: u64) -> Option<Command> {
        let command = self.commands.remove(index);
        if let Some(entering) = self.commands.get_mut(self.spec.window as usize - 1) {
            entering.in_window_since = entering.in_window_since.max(now);
        }
        command
    }

    fn window(&self) -> impl Iterator<Item = &Command> {
        self.commands.iter().take(self.spec.window as usize)
    }
}

fn is_ready(command: &Command, now: u64) -> bool {
    command.ready_at <= now && !command.waits_for_room
}

/// Written data that is reported done and not yet on the medium.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dirty {
    /// The first sector.
    pub start: u64,
    /// After the last.
    pub end: u64,
    /// When it is in the cache.
    pub ready_at: u64,
}

/// The written data that waits for the medium, oldest first; at most `room`.
#[derive(Clone, Debug)]
pub(super) struct DirtyList {
    spans: VecDeque<Dirty>,
    room: usize,
}

impl DirtyList {
    pub(super) fn new(room: u32) -> DirtyList {
        DirtyList { spans: VecDeque::with_capacity(room as usize), room: room as usize }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Whether a write of `start` could be taken now.
    pub(super) fn has_room_for(&self, start: u64) -> bool {
        self.room > 0
            && (self.spans.len() < self.room
                || self.spans.back().is_some_and(|span| span.end == start))
    }

    /// Whether it holds as much as it can.
    pub(super) fn is_full(&self) -> bool {
        self.spans.len() >= self.room
    }

    /// Whether any of it overlaps the sectors from `start` to `end`.
    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.spans.iter().any(|span| span.start < end && start < span.end)
    }

    /// Takes a span in, joined to the newest one when it goes on from it.
    pub(super) fn push(&mut self, span: Dirty) {
        match self.spans.back_mut() {
            Some(last) if last.end == span.start => last.end = span.end,
            _ => self.spans.push_back(span),
        }
    }

    /// When the first of it could go to the medium.
    pub(super) fn ready_at(&self) -> Option<u64> {
        self.spans.front().map(|span| span.ready_at)
    }

    /// Takes the span that can be reached soonest.
    pub(super) fn take_nearest(&mut self, cost: impl Fn(&Dirty) -> u64) -> Option<Dirty> {
        let index = (0..self.spans.len()).min_by_key(|index| cost(&self.spans[*index]))?;
        self.spans.remove(index)
    }

    /// Takes the oldest span.
    pub(super) fn take_oldest(&mut self) -> Option<Dirty> {
        self.spans.pop_front()
    }
}

/// Whether `op` moves data from the medium.
pub(super) fn is_read(op: Op) -> bool {
    op == Op::Read
}
