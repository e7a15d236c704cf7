//! Service of commands: the choice of the next task, and transfers between medium and cache.

use readpath_core::request::Op;

use super::Hdd;
use super::ahead::ReadAheadRun;
use super::bus::HostFeed;
use super::drive::{CacheSpec, QueuePolicy};
use super::geometry::{Geometry, SectorPosition};
use super::mechanics::{HeadPosition, Mechanics};
use super::queue::{ArmTask, DiskCommand, is_read};

/// Start conditions of an access to the medium.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MediumAccess {
    /// Time from which the arm is free.
    pub from: u64,
    /// True if the access continues at the present position of the head.
    pub continues: bool,
    /// Minimum time of the first seek.
    pub move_min_ns: u64,
    /// Arrival of a write's data, or `None` for data that is in the cache.
    pub feed: Option<HostFeed>,
}

/// State of the drive from which the scheduling policy computes costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct CostState {
    order: QueuePolicy,
    at: u64,
    arm_track: HeadPosition,
}

impl CostState {
    /// Returns the cost of an access at `place`, in the unit of the policy.
    pub(super) fn cost(&self, mechanics: &Mechanics, place: &SectorPosition, op: Op) -> u64 {
        match self.order {
            QueuePolicy::Positioning => {
                mechanics.positioning_ns(self.at, self.arm_track, place, op)
            }
            QueuePolicy::Elevator => self.elevator_cost(place),
        }
    }

    /// Returns [`cost`](CostState::cost) if it is less than `below`.
    fn cost_below(
        &self,
        mechanics: &Mechanics,
        (place, op): (&SectorPosition, Op),
        below: u64,
    ) -> Option<u64> {
        match self.order {
            QueuePolicy::Positioning => {
                mechanics.positioning_ns_below(self.at, self.arm_track, (place, op), below)
            }
            QueuePolicy::Elevator => Some(self.elevator_cost(place)).filter(|cost| *cost < below),
        }
    }

    /// Returns the rank of a position in an upward sweep of the arm. Cylinders that it has passed
    /// come last.
    fn elevator_cost(&self, place: &SectorPosition) -> u64 {
        // A place that the arm has passed comes after all that it still comes to.
        let behind = u64::from(place.cylinder < self.arm_track.cylinder) << 32;
        behind + u64::from(place.cylinder)
    }
}

/// Sectors transferred between medium and cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct MediumTransfer {
    /// Time at which the first sector reached the head.
    pub begin: u64,
    /// End of the last sector.
    pub end: u64,
}

impl Hdd {
    /// Gives the arm its next task. It is free at `at`, and a command is ready.
    pub(super) fn decide(&mut self, at: u64) {
        if !self.flushes.is_empty() {
            return self.continue_flush(at);
        }
        if let Some(waiting) = self.queue.waiting()
            && self.has_room_for(at, &waiting.request)
            && let Some(command) = self.queue.take_waiting(at)
        {
            return self.store_and_complete(command.ready_at.max(at), command.request);
        }
        self.read_ahead_to(at);
        self.queue.record_added(&self.segments.take_added());
        let reach = self.cost_state(at);
        let (segments, written) = (&self.segments, &self.written);
        let (cache, ahead, geometry) = (&self.drive.cache, self.ahead.as_ref(), &self.geometry);
        // A read whose start is cached, or is about to be read ahead, needs no seek.
        let cost = |command: &DiskCommand, below: u64| {
            let (start, place) = (command.request.start, &command.place);
            let reads_on = || sectors_until(ahead, cache, geometry, start);
            let op = command.request.op;
            if is_read(op) {
                debug_assert!(command.may_be_cached || !segments.holds(start), "{command:?}");
                if command.may_be_cached && segments.holds(start) {
                    return Some(0);
                }
                match reads_on() {
                    Some(_) if reach.order == QueuePolicy::Elevator => return Some(0),
                    Some(sectors) => {
                        let angle = sectors.wrapping_mul(place.sector_width);
                        return Some(self.mechanics.rotation_ns(angle));
                    }
                    None => {}
                }
            }
            reach.cost_below(&self.mechanics, (place, op), below)
        };
        let room_cost = || {
            let cost = |place: &SectorPosition| reach.cost(&self.mechanics, place, Op::Write);
            written.least_cost(at, cost).unwrap_or(u64::MAX)
        };
        match self.queue.take_next(at, cost, room_cost) {
            Some(ArmTask::Serve(command)) if is_read(command.request.op) => self.read(at, &command),
            Some(ArmTask::Serve(command)) => self.write_queued(at, command),
            Some(ArmTask::MakeRoom) | None => self.write_back(at),
        }
    }

    /// Returns the state for the cost computation at time `at`.
    pub(super) fn cost_state(&self, at: u64) -> CostState {
        CostState { order: self.drive.queue.order, at, arm_track: self.arm_track }
    }

    /// Performs the next step of a flush. All written data goes to the medium before any other
    /// work.
    fn continue_flush(&mut self, at: u64) {
        if !self.written.is_empty() {
            return self.write_back(at);
        }
        while let Some((asked_at, id)) = self.flushes.pop_front() {
            self.finish(id, at.max(asked_at));
        }
    }

    /// Transfers `sectors` sectors from `start` between medium and cache, track by track.
    ///
    /// Written sectors must be in the cache when the head reaches them. A bus slower than the
    /// medium therefore delays a write, up to a revolution.
    pub(super) fn transfer(
        &mut self,
        access: MediumAccess,
        start: u64,
        sectors: u64,
        op: Op,
    ) -> MediumTransfer {
        let MediumAccess { from: mut at, mut continues, mut move_min_ns, feed } = access;
        let (mut next, end) = (start, start + sectors);
        let mut begin = None;
        while next < end {
            let place = self.geometry.locate(next);
            let count = (end - next).min(u64::from(place.run_sectors));
            let move_ns = match continues {
                true => self.mechanics.move_ns(self.arm_track, &place, op),
                false => self.mechanics.access_seek_ns(self.arm_track, &place, op),
            };
            let settled_at = at + move_ns.max(move_min_ns);
            let earliest = feed.map_or(0, |feed| {
                let (first, last) = (next - start + 1, next - start + count);
                let others_ns = self.mechanics.rotation_ns((count - 1) * place.sector_width);
                let all = feed.has(last).saturating_sub(others_ns);
                feed.has(first.max(u64::from(feed.sectors_to_start))).max(all)
            });
            let times = (at, settled_at, earliest);
            let pass = self.mechanics.pass(times, &place, count as u32, op);
            self.arm_track = HeadPosition { cylinder: place.cylinder, head: place.head };
            begin.get_or_insert(pass.begin);
            (continues, move_min_ns) = (true, 0);
            at = pass.end;
            next += count;
        }
        MediumTransfer { begin: begin.unwrap_or(at), end: at }
    }
}

/// Returns the number of sectors until read-ahead in progress reaches `start`. Returns `None` if it
/// does not reach it or if the drive does not wait for it.
///
/// On drives with `stops_on_arrival`, a waiting command stops read-ahead and the arm leaves at
/// once. For sectors ahead of the head on its track no seek is needed (as in DiskSim, where a seek
/// over no distance takes no time).
pub(super) fn sectors_until(
    ahead: Option<&ReadAheadRun>,
    cache: &CacheSpec,
    geometry: &Geometry,
    start: u64,
) -> Option<u64> {
    let run = ahead.filter(|_| cache.joins_read_ahead)?;
    let sectors = start.checked_sub(run.next)?;
    let is_on_track = || start < geometry.track(run.next).end;
    let is_demand = !cache.stops_on_arrival && start < run.limit && is_on_track();
    (sectors == 0 || is_demand).then_some(sectors)
}
