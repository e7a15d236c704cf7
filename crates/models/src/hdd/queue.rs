//! The drive's own queue, which selects the next command for the arm.
//!
//! Among the oldest `window` commands, the cheapest is selected. The cost is the positioning time,
//! with seek and rotation (shortest positioning time first), or the rank in a sweep of the arm
//! towards higher cylinders (elevator). The oldest command precedes all others once it is older
//! than the age limit, so none starves.
//!
//! A *write without room* waits for room in the write cache. It represents the *write-back*, which
//! moves written data from the cache to the medium. The write-back competes with the commands.

use std::collections::VecDeque;

use readpath_core::request::{DeviceRequest, Op};

use super::bus::BusState;
use super::cache::AddedSpans;
use super::drive::{EarlyDisconnect, QueueSpec};
use super::geometry::SectorPosition;

#[cfg(test)]
mod choice_tests;

/// A command that waits for the arm.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskCommand {
    /// Request of the host.
    pub request: DeviceRequest,
    /// End of the processing overhead, in ns.
    pub ready_ns: u64,
    /// Time in ns at which the command entered the window, or of its arrival while it is behind the
    /// window. Its age counts from then.
    pub in_window_since_ns: u64,
    /// Position of its first sector.
    pub position: SectorPosition,
    /// True for a read whose first sector may be in the cache. For other reads it is certainly not,
    /// which saves the search.
    pub may_be_cached: bool,
    /// True for a write that will be reported early and waits for room in the cache.
    pub waits_for_room: bool,
    /// Relation to the bus.
    pub bus: BusState,
    /// Time to release the bus, in ns.
    pub bus_release_ns: u64,
    /// Extra disconnection of a write whose data has not arrived yet.
    pub early_disconnect: Option<EarlyDisconnect>,
}

impl DiskCommand {
    /// Returns true if the command continues `previous`, the command directly before it in the
    /// queue, which is ready at `now_ns`. Serving it first would cost the other command a
    /// revolution.
    fn continues_ready(&self, previous: &DiskCommand, now_ns: u64) -> bool {
        let (own, other) = (&self.request, &previous.request);
        other.end() == own.start && other.op == own.op && previous.ready_ns <= now_ns
    }
}

/// Next task of the arm.
#[derive(Clone, Copy, Debug)]
pub(super) enum ArmTask {
    /// Serve this command.
    Serve(DiskCommand),
    /// Write data back from the cache, because a write waits for room.
    MakeRoom,
}

/// The waiting commands, oldest first.
#[derive(Clone, Debug)]
pub(super) struct CommandQueue {
    /// The commands, oldest first. The first `window` of them are the window.
    commands: VecDeque<DiskCommand>,
    /// Number of writes that wait for room in the cache, anywhere in the queue.
    writes_without_room: u32,
    /// The earliest time at which a command in the window is ready: one of the `window` oldest.
    /// `None` without commands.
    earliest_ready_ns: Option<u64>,
    /// Depth, window, policy and age limit.
    spec: QueueSpec,
}

impl CommandQueue {
    /// Creates an empty queue with the depth and the policy of `spec`.
    pub(super) fn new(spec: QueueSpec) -> CommandQueue {
        let commands = VecDeque::with_capacity(spec.depth as usize);
        CommandQueue { commands, writes_without_room: 0, earliest_ready_ns: None, spec }
    }

    /// Returns true if no command waits.
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Appends a command, and updates the ready time of the window.
    pub(super) fn push(&mut self, command: DiskCommand) {
        self.writes_without_room += u32::from(command.waits_for_room);
        if self.commands.len() < self.spec.window as usize {
            self.lower_earliest_ready(command.ready_ns);
        }
        self.commands.push_back(command);
    }

    /// Returns the earliest time in ns at which a command in the window is ready, if any.
    pub(super) fn earliest_ready_ns(&self) -> Option<u64> {
        self.earliest_ready_ns
    }

    /// Lowers the earliest ready time to `ready_ns`, the time of a command entering the window.
    fn lower_earliest_ready(&mut self, ready_ns: u64) {
        let earliest_ns = self.earliest_ready_ns.map_or(ready_ns, |first| first.min(ready_ns));
        self.earliest_ready_ns = Some(earliest_ns);
    }

    /// Recomputes the earliest ready time of the commands in the window.
    fn update_earliest_ready(&mut self) {
        self.earliest_ready_ns = self.window().map(|command| command.ready_ns).min();
    }

    /// Sets `may_be_cached` of the commands whose first sector lies in the added spans.
    pub(super) fn mark_possibly_cached(&mut self, added: &AddedSpans) {
        for &(start, end) in added.spans() {
            for command in &mut self.commands {
                command.may_be_cached |= (start..end).contains(&command.request.start);
            }
        }
    }

    /// Returns the oldest write that waits for room in the cache; `None` without one.
    pub(super) fn oldest_write_without_room(&self) -> Option<&DiskCommand> {
        match self.writes_without_room {
            0 => None,
            _ => self.commands.iter().find(|command| command.waits_for_room),
        }
    }

    /// Removes and returns the oldest write that waits for room, at time `now_ns`; `None` without
    /// one.
    pub(super) fn take_write_without_room(&mut self, now_ns: u64) -> Option<DiskCommand> {
        let index = self.commands.iter().position(|command| command.waits_for_room)?;
        self.remove(index, now_ns)
    }

    /// Returns true if a write that continues `command` is ready at `now_ns`.
    pub(super) fn has_continuing_write(&self, now_ns: u64, command: &DiskCommand) -> bool {
        self.index_of_continuing_write(now_ns, command).is_some()
    }

    /// Removes and returns the write that continues `command` and is ready at `now_ns`; `None`
    /// without one.
    pub(super) fn take_continuing_write(
        &mut self,
        now_ns: u64,
        command: &DiskCommand,
    ) -> Option<DiskCommand> {
        let index = self.index_of_continuing_write(now_ns, command)?;
        self.remove(index, now_ns)
    }

    /// Returns the index of the write that continues `command` and is ready at `now_ns`; `None`
    /// without one. Writes that wait for room do not count, because they go into the cache.
    fn index_of_continuing_write(&self, now_ns: u64, command: &DiskCommand) -> Option<usize> {
        self.commands.iter().position(|next| {
            let continues =
                !is_read(next.request.op) && next.request.start == command.request.end();
            continues && next.ready_ns <= now_ns && !next.waits_for_room
        })
    }

    /// Returns the rest of a partly served command to the front of the queue. It does not wait for
    /// room, so `writes_without_room` stays.
    pub(super) fn return_rest(&mut self, command: DiskCommand) {
        self.commands.push_front(command);
        // The command that leaves the window for it may have been the earliest.
        self.update_earliest_ready();
    }

    /// Removes and returns the next task at time `now_ns`. Returns `None` if no command in the
    /// window is ready, or if the ready ones all wait for room and no written data has arrived. The
    /// oldest command, if it is ready, is served without a comparison in two cases: it is alone in
    /// the window, or has waited for more than `age_limit_ns`. If it is a write without room, the
    /// task is the write-back.
    ///
    /// `cost` returns the cost of a command if it is less than its second argument, the least
    /// cost so far. `write_back_cost` returns the cost of the written data that must leave the
    /// cache; `u64::MAX` excludes it. A cost is a time in ns or, for an elevator, a rank in the
    /// sweep.
    pub(super) fn take_next(
        &mut self,
        now_ns: u64,
        cost: impl Fn(&DiskCommand, u64) -> Option<u64>,
        write_back_cost: impl Fn() -> u64,
    ) -> Option<ArmTask> {
        let oldest = self.commands.front()?;
        if oldest.ready_ns <= now_ns {
            let waiting_ns = now_ns.saturating_sub(oldest.in_window_since_ns);
            let is_alone = self.commands.len() == 1 || self.spec.window == 1;
            if is_alone || waiting_ns > self.spec.age_limit_ns {
                let oldest_index = 0;
                return self.take_task(oldest_index, now_ns);
            }
        }
        let mut best_index = None;
        let mut least_cost = u64::MAX;
        // All writes without room stand for the same write-back, which competes once.
        let mut has_compared_write_back = false;
        let mut previous: Option<&DiskCommand> = None;
        for (index, command) in self.window().enumerate() {
            let previous = previous.replace(command);
            // Not ready, or it goes on where the ready command before it ends, and must follow it.
            if command.ready_ns > now_ns
                || previous.is_some_and(|previous| command.continues_ready(previous, now_ns))
            {
                continue;
            }
            let command_cost = if !command.waits_for_room {
                cost(command, least_cost)
            } else if std::mem::replace(&mut has_compared_write_back, true) {
                continue;
            } else {
                Some(write_back_cost())
            };
            let Some(lower_cost) = command_cost.filter(|cost| *cost < least_cost) else { continue };
            (best_index, least_cost) = (Some(index), lower_cost);
            // The oldest command of the same cost is served, so no other can be chosen.
            if lower_cost == 0 {
                break;
            }
        }
        self.take_task(best_index?, now_ns)
    }

    /// Returns the task for the command at `index`. Removes the command unless it needs room: it
    /// stays in the queue until a write-back has made room.
    fn take_task(&mut self, index: usize, now_ns: u64) -> Option<ArmTask> {
        match self.commands[index].waits_for_room {
            true => Some(ArmTask::MakeRoom),
            false => self.remove(index, now_ns).map(ArmTask::Serve),
        }
    }

    /// Removes and returns the command at `index`; `None` if the queue is shorter. A command of the
    /// window is replaced by another one, which starts to age at `now_ns`.
    fn remove(&mut self, index: usize, now_ns: u64) -> Option<DiskCommand> {
        let command = self.commands.remove(index);
        let is_without_room = command.is_some_and(|command| command.waits_for_room);
        self.writes_without_room -= u32::from(is_without_room);
        let window = self.spec.window as usize;
        // A removal behind the window moves no command into it.
        if index >= window {
            return command;
        }
        let mut entering_ready_ns = None;
        if let Some(entering) = self.commands.get_mut(window - 1) {
            entering.in_window_since_ns = entering.in_window_since_ns.max(now_ns);
            entering_ready_ns = Some(entering.ready_ns);
        }
        // Only the removal of the earliest command can make the window's earliest time later.
        let was_earliest = command.map(|command| command.ready_ns) == self.earliest_ready_ns;
        match entering_ready_ns {
            Some(ready_ns) if !was_earliest => self.lower_earliest_ready(ready_ns),
            None if !was_earliest => {}
            _ => self.update_earliest_ready(),
        }
        command
    }

    /// Returns the commands among which the policy chooses, the oldest first.
    fn window(&self) -> impl Iterator<Item = &DiskCommand> {
        self.commands.iter().take(self.spec.window as usize)
    }
}

/// Returns true if `op` is a read.
pub(super) fn is_read(op: Op) -> bool {
    op == Op::Read
}

#[cfg(test)]
mod tests {
    use super::super::drive::QueuePolicy;
    use super::*;
    use readpath_core::request::RequestId;

    /// Returns a queue of reads, one on each of `cylinders`, with an age limit of 1,000 ns.
    fn queue(window: u32, cylinders: &[u32]) -> CommandQueue {
        let order = QueuePolicy::Positioning;
        let mut queue = CommandQueue::new(QueueSpec {
            order,
            depth: 8,
            window,
            age_limit_ns: 1000,
            combines_writes: false,
            request_sectors_max: 2560,
        });
        for (id, cylinder) in cylinders.iter().enumerate() {
            let (id, start) = (RequestId(id as u32), u64::from(*cylinder) * 1000);
            queue.push(DiskCommand {
                request: DeviceRequest { id, op: Op::Read, start, sectors: 8 },
                ready_ns: 0,
                in_window_since_ns: 0,
                position: SectorPosition { cylinder: *cylinder, ..SectorPosition::default() },
                may_be_cached: false,
                waits_for_room: false,
                bus: BusState::Left { from_ns: 0 },
                bus_release_ns: 0,
                early_disconnect: None,
            });
        }
        queue
    }

    /// Takes the next command at `now_ns`, with its cylinder as the cost. Returns the index of its
    /// cylinder in the list given to `queue`.
    fn take_index(queue: &mut CommandQueue, now_ns: u64) -> u32 {
        let cost = |command: &DiskCommand, _| Some(u64::from(command.position.cylinder));
        let write_back_cost = || u64::MAX;
        let next = queue.take_next(now_ns, cost, write_back_cost);
        match next.expect("a command is ready") {
            ArmTask::Serve(command) => command.request.id.0,
            ArmTask::MakeRoom => panic!("no write waits for room"),
        }
    }

    /// The cost is the cylinder. A window of two holds cylinders 500 and 300, the oldest commands.
    #[test]
    fn nearest_command_in_the_window_is_served_first() {
        assert_eq!(take_index(&mut queue(8, &[500, 300, 100, 5]), 0), 3);
        assert_eq!(take_index(&mut queue(2, &[500, 300, 100, 5]), 0), 1);
        assert_eq!(take_index(&mut queue(1, &[500, 300, 100, 5]), 0), 0);
    }

    /// The age limit is 1,000 ns.
    #[test]
    fn aged_command_is_served_before_a_near_one() {
        assert_eq!(take_index(&mut queue(8, &[500, 5]), 1000), 1);
        assert_eq!(take_index(&mut queue(8, &[500, 5]), 1001), 0);
    }

    #[test]
    fn command_age_starts_at_its_entry_into_the_window() {
        let (mut queue, removal_ns) = (queue(1, &[500, 300]), 5000);
        assert_eq!(take_index(&mut queue, removal_ns), 0);
        assert_eq!(queue.commands[0].in_window_since_ns, removal_ns);
    }

    /// With a window of one, the first command is in it and the second one behind it.
    #[test]
    fn removal_behind_the_window_keeps_the_ages_in_it() {
        let (mut queue, removal_ns) = (queue(1, &[500, 300]), 5000);
        queue.commands[1].waits_for_room = true;
        queue.writes_without_room = 1;
        assert_eq!(queue.take_write_without_room(removal_ns).unwrap().request.id, RequestId(1));
        assert_eq!(queue.commands[0].in_window_since_ns, 0);
    }

    /// The command on cylinder 5 is cheaper, but continues the waiting command on cylinder 500.
    #[test]
    fn continuation_of_a_waiting_command_is_served_after_it() {
        let mut queue = queue(8, &[500, 5]);
        queue.commands[1].request.start = queue.commands[0].request.end();
        assert_eq!(take_index(&mut queue, 0), 0);
    }
}
