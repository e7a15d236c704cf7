//! Service of commands: the choice of the next task, and transfers between medium and cache.

use readpath_core::request::Op;

use super::ahead::ReadAheadRun;
use super::bus::HostFeed;
use super::drive::{CacheSpec, QueuePolicy};
use super::geometry::{Angle, Geometry, SectorPosition};
use super::mechanics::{HeadPosition, Mechanics, TransferTimes};
use super::queue::{ArmTask, DiskCommand, is_read};
use super::{Hdd, WaitingFlush};

/// Start conditions of an access to the medium.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MediumAccess {
    /// Time in ns from which the arm is free.
    pub arm_free_ns: u64,
    /// True if the access continues the previous one. On the same track it then needs no seek.
    pub continues: bool,
    /// Minimum time of the first seek, in ns; 0 for none. Later tracks of the access have none.
    pub move_min_ns: u64,
    /// Arrival of a write's data, or `None` for data that is in the cache.
    pub feed: Option<HostFeed>,
}

/// State of the drive from which the scheduling policy computes costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct CostState {
    /// Scheduling policy, which determines the unit of the cost.
    order: QueuePolicy,
    /// Time in ns at which the arm starts.
    start_ns: u64,
    /// The platter's angle at that time.
    start_angle: Angle,
    /// Track from which the arm starts.
    arm_track: HeadPosition,
}

impl CostState {
    /// Returns the cost of an access at `target`: ns for positioning, or the rank in the sweep.
    pub(super) fn cost(&self, mechanics: &Mechanics, target: &SectorPosition, op: Op) -> u64 {
        match self.order {
            QueuePolicy::Positioning => {
                mechanics.positioning_ns(self.start_ns, self.arm_track, target, op)
            }
            QueuePolicy::Elevator => self.elevator_cost(target),
        }
    }

    /// Returns [`cost`](CostState::cost) if it is less than `cost_limit`, otherwise `None`.
    #[inline]
    fn cost_below(
        &self,
        mechanics: &Mechanics,
        (target, op): (&SectorPosition, Op),
        cost_limit: u64,
    ) -> Option<u64> {
        let access = (target, op);
        match self.order {
            QueuePolicy::Positioning => {
                let start = (self.start_ns, self.start_angle);
                mechanics.positioning_ns_below(start, self.arm_track, access, cost_limit)
            }
            QueuePolicy::Elevator => {
                Some(self.elevator_cost(target)).filter(|cost| *cost < cost_limit)
            }
        }
    }

    /// Returns the rank of `target` in an upward sweep of the arm. Cylinders that the arm has
    /// passed come last, in the next sweep.
    fn elevator_cost(&self, target: &SectorPosition) -> u64 {
        // Cylinder numbers have 32 bits, so any number of the next sweep is greater.
        let next_sweep = u64::from(target.cylinder < self.arm_track.cylinder) << 32;
        next_sweep + u64::from(target.cylinder)
    }
}

/// Sectors transferred between medium and cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct MediumTransfer {
    /// Time in ns at which the first sector reached the head.
    pub begin_ns: u64,
    /// End of the last sector, in ns.
    pub end_ns: u64,
}

impl Hdd {
    /// Gives the arm, free at `time_ns`, its next task: a command, a flush or a write-back. A flush
    /// precedes everything, because the host waits for all writes before it. Then a write for which
    /// there is room enters the cache, without the arm. A write-back under way goes on for its
    /// number of tracks, and only then does the queue choose.
    pub(super) fn start_next_task(&mut self, time_ns: u64) {
        if !self.flushes.is_empty() {
            return self.continue_flush(time_ns);
        }
        // A write that waits for room in the cache completes once there is room.
        if let Some(waiting_write) = self.queue.oldest_write_without_room()
            && self.can_cache_write(time_ns, &waiting_write.request)
            && let Some(command) = self.queue.take_write_without_room(time_ns)
        {
            return self.store_and_complete(command.ready_ns.max(time_ns), command.request);
        }
        if self.take_write_back_track(time_ns) {
            return self.write_back(time_ns);
        }
        self.advance_read_ahead(time_ns);
        self.queue.mark_possibly_cached(&self.segments.take_added_spans());
        let cost_state = self.cost_state(time_ns);
        let (segments, write_cache) = (&self.segments, &self.write_cache);
        let (cache, geometry) = (&self.drive.cache, &self.geometry);
        let read_ahead = self.read_ahead.as_ref();
        let (ahead_start, ahead_sectors) = read_ahead_reach(read_ahead, cache);
        // A read whose start is cached, or is about to be read ahead, needs no seek. It costs
        // nothing, or the rotation until the read-ahead is there; an elevator ranks both first. A
        // command is of interest only below `cost_limit`, the least cost so far.
        let cost = |command: &DiskCommand, cost_limit: u64| {
            let (start, position) = (command.request.start, &command.position);
            // A `start` before the read-ahead wraps to a large number.
            let sectors_to_wait = || match start.wrapping_sub(ahead_start) < ahead_sectors {
                true => sectors_until_read_ahead(read_ahead, cache, geometry, start),
                false => None,
            };
            let op = command.request.op;
            if is_read(op) {
                let is_cached = || segments.holds_sector(start);
                debug_assert!(command.may_be_cached || !is_cached(), "{command:?}");
                if command.may_be_cached && is_cached() {
                    return Some(0);
                }
                match sectors_to_wait() {
                    Some(_) if cost_state.order == QueuePolicy::Elevator => return Some(0),
                    Some(sectors) => {
                        let angle = sectors.wrapping_mul(position.sector_width);
                        return Some(self.mechanics.rotation_ns(angle));
                    }
                    None => {}
                }
            }
            cost_state.cost_below(&self.mechanics, (position, op), cost_limit)
        };
        let write_back_cost = || {
            let cost_of =
                |position: &SectorPosition| cost_state.cost(&self.mechanics, position, Op::Write);
            // `u64::MAX` is never chosen: no written data has arrived yet.
            write_cache.least_cost(time_ns, cost_of).unwrap_or(u64::MAX)
        };
        match self.queue.take_next(time_ns, cost, write_back_cost) {
            Some(ArmTask::Serve(command)) if is_read(command.request.op) => {
                self.serve_read(time_ns, &command)
            }
            Some(ArmTask::Serve(command)) => self.serve_write(time_ns, command),
            // Without a ready command the arm writes cached data back. If all ready commands are
            // writes without room, and no written data has arrived, it waits for that data.
            Some(ArmTask::MakeRoom) | None => {
                // The call below writes the first of the tracks.
                self.write_back_tracks_left = self.drive.cache.write_back_tracks - 1;
                self.write_back(time_ns)
            }
        }
    }

    /// Returns the state for the cost computation at `time_ns`.
    pub(super) fn cost_state(&self, time_ns: u64) -> CostState {
        CostState {
            order: self.drive.queue.order,
            start_ns: time_ns,
            start_angle: self.mechanics.angle_at(time_ns),
            arm_track: self.arm_track,
        }
    }

    /// Performs the next step of a flush at `time_ns`. All written data goes to the medium before
    /// any other work. Then all waiting flushes complete together, each no sooner than its own
    /// overhead.
    fn continue_flush(&mut self, time_ns: u64) {
        if !self.write_cache.is_empty() {
            return self.write_back(time_ns);
        }
        while let Some(WaitingFlush { overhead_end_ns, id }) = self.flushes.pop_front() {
            self.schedule_completion(id, time_ns.max(overhead_end_ns));
        }
    }

    /// Transfers `sectors` sectors from `start` between medium and cache, track by track, and moves
    /// the arm. Returns the begin and the end in ns.
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
        let MediumAccess { arm_free_ns, mut continues, mut move_min_ns, feed } = access;
        let mut time_ns = arm_free_ns;
        let (mut next_sector, end) = (start, start + sectors);
        let mut begin_ns = None;
        while next_sector < end {
            let position = self.geometry.locate(next_sector);
            let count = (end - next_sector).min(u64::from(position.run_sectors));
            let move_ns = match continues {
                true => self.mechanics.move_ns(self.arm_track, &position, op),
                false => self.mechanics.access_seek_ns(self.arm_track, &position, op),
            };
            let settled_ns = time_ns + move_ns.max(move_min_ns);
            // All sectors arrive in time if the first and the last one do, as host and medium each
            // have a constant rate.
            let earliest_ns = feed.map_or(0, |feed| {
                // Numbers of sectors of the transfer up to the first and the last of this track.
                let (first_count, last_count) =
                    (next_sector - start + 1, next_sector - start + count);
                let transfer_before_last_ns =
                    self.mechanics.rotation_ns((count - 1) * position.sector_width);
                let last_arrival_ns = feed.arrival_ns(last_count);
                let last_bound_ns = last_arrival_ns.saturating_sub(transfer_before_last_ns);
                let sectors_to_start = first_count.max(u64::from(feed.sectors_to_start));
                feed.arrival_ns(sectors_to_start).max(last_bound_ns)
            });
            let times = TransferTimes { arm_free_ns: time_ns, settled_ns, earliest_ns };
            let pass = self.mechanics.transfer_on_track(times, &position, count as u32, op);
            self.arm_track = HeadPosition { cylinder: position.cylinder, head: position.head };
            begin_ns.get_or_insert(pass.begin_ns);
            (continues, move_min_ns) = (true, 0);
            time_ns = pass.end_ns;
            next_sector += count;
        }
        MediumTransfer { begin_ns: begin_ns.unwrap_or(time_ns), end_ns: time_ns }
    }
}

/// Returns the first sector and the number of sectors outside of which [`sectors_until_read_ahead`]
/// is `None`. The number is 0 if it is `None` for all sectors. This cheap test precedes the search
/// for the track, once for each waiting command.
fn read_ahead_reach(read_ahead: Option<&ReadAheadRun>, cache: &CacheSpec) -> (u64, u64) {
    let Some(run) = read_ahead.filter(|_| cache.joins_read_ahead) else { return (0, 0) };
    let awaited_sectors = run.end_sector.saturating_sub(run.next_sector);
    let sectors = if cache.stops_on_arrival { 1 } else { awaited_sectors.max(1) };
    (run.next_sector, sectors)
}

/// Returns the number of sectors until read-ahead in progress reaches the sector `start`. Returns
/// `None` if it does not reach that sector on its present track or if the drive does not wait for
/// it.
///
/// On drives with `stops_on_arrival`, only the next sector counts: a waiting command stops the
/// read-ahead, and the arm leaves at once. Later sectors on the track need no seek anyway (as in
/// DiskSim, where a seek over no distance takes no time).
pub(super) fn sectors_until_read_ahead(
    read_ahead: Option<&ReadAheadRun>,
    cache: &CacheSpec,
    geometry: &Geometry,
    start: u64,
) -> Option<u64> {
    let run = read_ahead.filter(|_| cache.joins_read_ahead)?;
    let sectors = start.checked_sub(run.next_sector)?;
    let is_on_track = || start < geometry.track(run.next_sector).end;
    let is_awaited = !cache.stops_on_arrival && start < run.end_sector && is_on_track();
    (sectors == 0 || is_awaited).then_some(sectors)
}
