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
            if !is_ready(command, now) || self.continues_waiting(index, now) {
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

    /// Whether the command at `index` goes on from the one queued before it, which is ready
    /// too: served first it would cost that one a revolution.
    fn continues_waiting(&self, index: usize, now: u64) -> bool {
        index.checked_sub(1).is_some_and(|before| {
            let (before, this) = (&self.commands[before], &self.commands[index].request);
            let goes_on = before.request.op == this.op && before.request.end() == this.start;
            goes_on && is_ready(before, now)
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

#[cfg(test)]
mod tests {
    use super::super::drive::{AccessTime, MechanicsSpec};
    use super::super::seek::SeekCurve;
    use super::*;
    use readpath_core::request::RequestId;

    fn mechanics() -> Mechanics {
        let spec = MechanicsSpec {
            rpm: 6000.0,
            seek: SeekCurve::Table(vec![(1, 1.0), (101, 5.0)]),
            head_switch_ns: 0,
            write_settle_ns: 0,
            access: AccessTime::HalfTurn,
            zero_latency_read: false,
            zero_latency_write: false,
        };
        Mechanics::new(&spec, 1000, 0)
    }

    fn queue(window: u32, cylinders: &[u32]) -> Queue {
        let mut queue = Queue::new(QueueSpec { depth: 8, window, age_limit_ns: 1000 });
        for (id, cylinder) in cylinders.iter().enumerate() {
            let (id, start) = (RequestId(id as u32), u64::from(*cylinder) * 1000);
            queue.push(Command {
                request: DeviceRequest { id, op: Op::Read, start, sectors: 8 },
                ready_at: 0,
                in_window_since: 0,
                place: Place { cylinder: *cylinder, ..Place::default() },
                waits_for_room: false,
            });
        }
        queue
    }

    fn taken(queue: &mut Queue, now: u64) -> u32 {
        let next = queue.take_next(now, Arm::default(), &mechanics(), |_| false);
        next.expect("a command is ready").request.id.0
    }

    #[test]
    fn the_nearest_in_the_window_is_first() {
        assert_eq!(taken(&mut queue(8, &[500, 300, 100, 5]), 0), 3);
        assert_eq!(taken(&mut queue(2, &[500, 300, 100, 5]), 0), 1);
        assert_eq!(taken(&mut queue(1, &[500, 300, 100, 5]), 0), 0);
    }

    #[test]
    fn an_aged_command_goes_before_a_near_one() {
        assert_eq!(taken(&mut queue(8, &[500, 5]), 1000), 1);
        assert_eq!(taken(&mut queue(8, &[500, 5]), 1001), 0);
    }

    #[test]
    fn a_command_ages_from_when_it_comes_into_the_window() {
        let mut queue = queue(1, &[500, 300]);
        assert_eq!(taken(&mut queue, 5000), 0);
        assert_eq!(queue.commands[0].in_window_since, 5000);
    }

    #[test]
    fn what_goes_on_from_a_waiting_command_waits_for_it() {
        let mut queue = queue(8, &[500, 5]);
        queue.commands[1].request.start = queue.commands[0].request.end();
        assert_eq!(taken(&mut queue, 0), 0);
    }

    #[test]
    fn written_spans_join_and_are_bounded() {
        let mut dirty = DirtyList::new(2);
        dirty.push(Dirty { start: 0, end: 8, ready_at: 1 });
        dirty.push(Dirty { start: 8, end: 16, ready_at: 2 });
        assert!(!dirty.is_full());
        dirty.push(Dirty { start: 100, end: 108, ready_at: 3 });
        assert!(dirty.is_full() && !dirty.has_room_for(500) && dirty.has_room_for(108));
        assert!(dirty.overlaps(15, 17) && !dirty.overlaps(16, 100));
        assert_eq!(dirty.take_oldest().map(|span| span.end), Some(16));
    }
}
