//! Writes: into the cache, through it, and from it to the medium.

use readpath_core::request::{DeviceRequest, Op};

use super::Hdd;
use super::bus::BusState;
use super::drive::{AppendPolicy, ArmFreePoint};
use super::geometry::SectorPosition;
use super::queue::DiskCommand;
use super::service::MediumAccess;
use super::write_cache::TrackPiece;

impl Hdd {
    /// Accepts a write that arrives at `now` (ns). Stores it in the cache and reports it complete,
    /// lets it continue the write in progress, or queues it for the arm.
    pub(super) fn accept_write(&mut self, now: u64, request: DeviceRequest) {
        let is_early = self.written.takes(request.sectors);
        let is_idle = self.queue.is_empty() && self.free_at <= now;
        let goes_on = self.written_end == request.start;
        let is_joining =
            is_early && goes_on && !is_idle && self.joins_write_to_medium(now, &request);
        let stop_ns = self.stop_on_arrival(now, &request);
        let (cache, controller) = (&self.drive.cache, &self.drive.controller);
        let times = if is_early { controller.write_hit } else { controller.write_miss };
        let ready_at = now + self.overhead_ns(times);
        let mut command = DiskCommand {
            request,
            in_window_since: now,
            ready_at,
            place: self.geometry.locate(request.start),
            may_be_cached: false,
            waits_for_room: is_early && !cache.flushes_first,
            bus: match is_idle || controller.never_disconnects {
                true => BusState::Held { from: ready_at },
                false => BusState::Left { from: ready_at + controller.write_disconnect_ns },
            },
            leave_ns: controller.write_disconnect_ns,
            early_disconnect: None,
        };
        if command.waits_for_room {
            if self.has_room_for(now, &request) && self.queue.waiting().is_none() {
                return self.store_and_complete(ready_at, request);
            }
        } else if is_joining {
            command.bus = BusState::Held { from: ready_at };
            return self.write(ready_at, &command);
        } else if let Some(early) = controller.early_disconnect
            && is_idle
            && self.last_op == Op::Write
            && !goes_on
        {
            command.ready_at = now + early.command_ns;
            command.bus = BusState::Left { from: command.ready_at + early.until_reconnect_ns };
            command.leave_ns = early.disconnect_ns;
            command.early_disconnect = Some(early);
        }
        command.ready_at += stop_ns;
        self.queue.push(command);
    }

    /// Returns true if a write can enter the cache at time `now` (ns), behind the write that is
    /// being written to the medium.
    fn joins_write_to_medium(&mut self, now: u64, request: &DeviceRequest) -> bool {
        while self.landing.front().is_some_and(|(end_ns, _)| *end_ns <= now) {
            self.landing.pop_front();
        }
        let landing_sectors: u64 =
            self.landing.iter().map(|(_, sectors)| u64::from(*sectors)).sum();
        let may_append = match self.drive.cache.appends {
            AppendPolicy::Never => false,
            AppendPolicy::Alone => self.queue.is_empty(),
            AppendPolicy::Always => true,
        };
        let fits = landing_sectors + u64::from(request.sectors) <= self.drive.cache.writes.sectors;
        may_append && fits && !self.landing.is_empty()
    }

    /// Serves a queued write at `start_ns`. If the drive has `combines_writes`, the queued writes
    /// that continue it are served together up to the end of a track. The rest of the last one
    /// returns to the queue.
    pub(super) fn write_queued(&mut self, start_ns: u64, command: DiskCommand) {
        if !self.drive.queue.combines_writes || !self.queue.has_following(start_ns, &command) {
            return self.write(start_ns, &command);
        }
        let (mut joined, mut last_command) = (command, command);
        let mut joined_ids = Vec::new();
        let mut ready_at = command.ready_at;
        let track_end = loop {
            if let Some(track_end) =
                self.last_track_end(last_command.request.start, last_command.request.end())
            {
                break track_end;
            }
            joined_ids.push(last_command.request.id);
            match self.queue.take_following(start_ns, &last_command) {
                Some(next) => last_command = next,
                None => break last_command.request.end(),
            }
            ready_at = ready_at.max(last_command.ready_at);
        };
        // The data of joined writes crosses the bus in sequence, after the overhead of all of them.
        joined.bus = BusState::Left { from: ready_at };
        joined.request.sectors = (track_end - joined.request.start) as u32;
        let done_at = self.write_through(start_ns, &joined);
        for id in joined_ids {
            self.finish(id, done_at);
        }
        if track_end < last_command.request.end() {
            last_command.request.sectors = (last_command.request.end() - track_end) as u32;
            last_command.request.start = track_end;
            last_command.place = self.geometry.locate(track_end);
            self.queue.put_back(last_command);
        }
    }

    /// Returns the last end of a track between `start` and `end`, both exclusive.
    fn last_track_end(&self, start: u64, end: u64) -> Option<u64> {
        let mut last = None;
        let mut next = self.geometry.track(start).end;
        while next < end {
            last = Some(next);
            next = self.geometry.track(next).end;
        }
        last
    }

    /// Serves a write at `start_ns`, and schedules its completion.
    pub(super) fn write(&mut self, start_ns: u64, command: &DiskCommand) {
        let end_ns = self.write_through(start_ns, command);
        self.finish(command.request.id, end_ns);
    }

    /// Writes to the medium from `start_ns` on, with the data on the bus while the arm seeks.
    /// Returns the completion time in ns: with `flushes_first` and room in the write cache when the
    /// data has arrived, otherwise after the medium.
    fn write_through(&mut self, start_ns: u64, command: &DiskCommand) -> u64 {
        let request = command.request;
        let sectors = u64::from(request.sectors);
        let feed = self.receive(start_ns, command.bus, request.sectors);
        let data_end = feed.has(sectors);
        // The arm is still on that track, so a continuing write never needs a seek.
        let continues = self.written_end == request.start;
        let is_writing = continues && self.free_at >= start_ns;
        self.stop_ahead(start_ns);
        self.last_medium_request = Some(request.id);
        let early_disconnect = command.early_disconnect;
        let controller = &self.drive.controller;
        let access = MediumAccess {
            from: (start_ns
                + early_disconnect.map_or(0, |early_disconnect| early_disconnect.until_seek_ns))
            .max(self.free_at),
            continues,
            move_min_ns: if is_writing { 0 } else { controller.write_move_min_ns },
            feed: Some(feed),
        };
        let completion_ns = controller.write_completion_ns;
        let transfer = self.transfer(access, request.start, sectors, Op::Write);
        self.written_end = request.end();
        self.free_at = transfer.end;
        self.record_written(start_ns, request.start, request.end(), is_writing);
        if self.drive.cache.flushes_first && self.written.takes(request.sectors) {
            self.landing.push_back((transfer.end, request.sectors));
            return data_end + completion_ns;
        }
        let controller = &self.drive.controller;
        let medium_end_ns = transfer.end.max(data_end);
        let done_at = match (controller.never_disconnects, early_disconnect) {
            (true, _) => medium_end_ns,
            (false, None) => {
                medium_end_ns.max(data_end + command.leave_ns) + controller.reselect_ns
            }
            (false, Some(_)) => {
                medium_end_ns.max(data_end + command.leave_ns) + controller.reselect_again_ns
            }
        } + completion_ns;
        self.keep_arm(done_at, completion_ns);
        done_at
    }

    /// Keeps the arm from the next command after one that completes at `done_at` (ns), by the
    /// drive's `arm_free`. The completion message takes `said_ns`.
    pub(super) fn keep_arm(&mut self, done_at: u64, said_ns: u64) {
        let held_until = match self.drive.controller.arm_free {
            ArmFreePoint::CompletionReceived => done_at,
            ArmFreePoint::CompletionSent => done_at - said_ns,
            ArmFreePoint::MediumDone => return,
        };
        self.free_at = self.free_at.max(held_until);
    }

    /// Stores a write in the cache from `ready_at` (ns) on, and schedules its completion.
    pub(super) fn store_and_complete(&mut self, ready_at: u64, request: DeviceRequest) {
        let feed = self.receive(ready_at, BusState::Held { from: ready_at }, request.sectors);
        let end = feed.has(u64::from(request.sectors));
        self.finish(request.id, end + self.drive.controller.write_completion_ns);
        let place = self.geometry.locate(request.start);
        self.written.put((request.start, request.end()), place, end);
        self.record_written(ready_at, request.start, request.end(), true);
    }

    /// Returns true if a write fits into the cache at `time_ns`. During a flush no write is
    /// accepted.
    pub(super) fn has_room_for(&self, time_ns: u64, request: &DeviceRequest) -> bool {
        self.flushes.is_empty() && self.written.has_room_for(time_ns, request.start, request.end())
    }

    /// Records written sectors in the cache and drops old data of them. `is_writing` is true if the
    /// sectors that they continue are being written to the medium.
    ///
    /// A drive with `flushes_first` uses a new segment for each write without `is_writing`.
    /// DiskSim's cache does the same (`disk_buffer_select_write_segment` appends only to a segment
    /// that is dirty or being written).
    fn record_written(&mut self, time_ns: u64, start: u64, end: u64, is_writing: bool) {
        if let Some(run) = &self.ahead {
            let segment = self.segments.segment(run.segment);
            if segment.start < end && start < run.limit {
                self.stop_ahead(time_ns);
            }
        }
        self.segments.drop_overlap(start, end);
        if self.drive.cache.is_enabled {
            let may_go_on = is_writing || !self.drive.cache.flushes_first;
            let index = self.segments.store_written(start, end, may_go_on);
            if !self.drive.cache.reads_written {
                self.segments.empty(index);
            }
        }
    }

    /// Writes the nearest piece of the cached data to the medium, from `time_ns` on. If no data has
    /// arrived yet, the arm waits for it.
    pub(super) fn write_back(&mut self, time_ns: u64) {
        self.stop_ahead(time_ns);
        let time_ns = time_ns.max(self.free_at);
        let (cost_state, geometry) = (self.cost_state(time_ns), &self.geometry);
        let cost = |place: &SectorPosition| cost_state.cost(&self.mechanics, place, Op::Write);
        match self.written.take_nearest(time_ns, cost, |sector| geometry.locate(sector)) {
            Some(piece) => self.write_piece(time_ns, piece),
            // All data is still on its way over the bus.
            None => self.free_at = time_ns.max(self.written.ready_at().unwrap_or(time_ns)),
        }
    }

    /// Writes a piece of cached data to the medium, once the arm is free after `time_ns`.
    pub(super) fn write_piece(&mut self, time_ns: u64, piece: TrackPiece) {
        self.stop_ahead(time_ns);
        let time_ns = time_ns.max(self.free_at);
        let continues = self.written_end == piece.start;
        let access = MediumAccess { from: time_ns, continues, ..MediumAccess::default() };
        let transfer = self.transfer(access, piece.start, piece.sectors, Op::Write);
        self.written_end = piece.start + piece.sectors;
        self.written.record_landing(piece, transfer.end);
        self.free_at = transfer.end;
    }
}
