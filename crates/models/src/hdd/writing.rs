//! Writes: into the cache, through it, and from it to the medium.

use readpath_core::request::{DeviceRequest, Op};

use super::bus::BusState;
use super::drive::{AppendPolicy, ArmFreePoint};
use super::geometry::SectorPosition;
use super::queue::DiskCommand;
use super::service::{MediumAccess, MediumTransfer};
use super::write_cache::TrackPiece;
use super::{Hdd, MediumWrite};

impl Hdd {
    /// Accepts a write that arrives at `now_ns`. Stores it in the cache and reports it complete,
    /// lets it continue the write in progress, or queues it for the arm. With `flushes_first` a
    /// write goes to the medium at once and does not wait for room. Only a queued write waits until
    /// the read-ahead has stopped (`stop_delay_ns`). Data for the cache does not need the arm, and
    /// the write in progress has stopped the read-ahead before.
    pub(super) fn accept_write(&mut self, now_ns: u64, request: DeviceRequest) {
        // The write is reported complete before it is on the medium, because the cache is large
        // enough for it.
        let is_early = self.write_cache.can_hold(request.sectors);
        let is_idle = self.queue.is_empty() && self.arm_free_at_ns <= now_ns;
        let continues = self.written_end == request.start;
        let is_joining =
            is_early && continues && !is_idle && self.joins_write_to_medium(now_ns, &request);
        let stop_delay_ns = self.stop_read_ahead_on_arrival(now_ns, &request);
        let (cache, controller) = (&self.drive.cache, &self.drive.controller);
        let overheads = if is_early { controller.write_hit } else { controller.write_miss };
        let ready_ns = now_ns + self.overhead_ns(overheads);
        let mut command = DiskCommand {
            request,
            in_window_since_ns: now_ns,
            ready_ns,
            position: self.geometry.locate(request.start),
            may_be_cached: false,
            waits_for_room: is_early && !cache.flushes_first,
            // An idle drive takes the data at once.
            bus: match is_idle || controller.never_disconnects {
                true => BusState::Held { from_ns: ready_ns },
                false => BusState::Left { from_ns: ready_ns + controller.write_disconnect_ns },
            },
            bus_release_ns: controller.write_disconnect_ns,
            early_disconnect: None,
        };
        if command.waits_for_room {
            // Waiting writes enter the cache in order of arrival.
            let is_next = self.queue.oldest_write_without_room().is_none();
            if is_next && self.can_cache_write(now_ns, &request) {
                return self.store_and_complete(ready_ns, request);
            }
        } else if is_joining {
            command.bus = BusState::Held { from_ns: ready_ns };
            return self.write_and_complete(ready_ns, &command);
        } else if let Some(early) = controller.early_disconnect
            && is_idle
            && self.last_op == Op::Write
            && !continues
        {
            // The drive disconnects before the data of a write that follows another write and does
            // not continue it. A write to a busy drive has released the bus anyway.
            command.ready_ns = now_ns + early.command_ns;
            command.bus = BusState::Left { from_ns: command.ready_ns + early.until_reconnect_ns };
            command.bus_release_ns = early.disconnect_ns;
            command.early_disconnect = Some(early);
        }
        command.ready_ns += stop_delay_ns;
        self.queue.push(command);
    }

    /// Returns true if a write can enter the cache at time `now_ns`, behind the writes that are
    /// being written to the medium. There are such writes, the `appends` policy allows it, and the
    /// unfinished sectors leave room. Removes the finished ones from `writes_to_medium`. The caller
    /// has checked that the write continues the last of them.
    fn joins_write_to_medium(&mut self, now_ns: u64, request: &DeviceRequest) -> bool {
        while self.writes_to_medium.front().is_some_and(|write| write.end_ns <= now_ns) {
            self.writes_to_medium.pop_front();
        }
        let unfinished_sectors: u64 =
            self.writes_to_medium.iter().map(|write| u64::from(write.sectors)).sum();
        let may_append = match self.drive.cache.appends {
            AppendPolicy::Never => false,
            // No other request waits.
            AppendPolicy::Alone => self.queue.is_empty(),
            AppendPolicy::Always => true,
        };
        let sectors_max = self.drive.cache.writes.sectors;
        let fits = unfinished_sectors + u64::from(request.sectors) <= sectors_max;
        may_append && fits && !self.writes_to_medium.is_empty()
    }

    /// Serves a queued write at `start_ns`. If the drive has `combines_writes`, the queued writes
    /// that continue it and are ready are served together up to the end of a track. The rest of the
    /// last one returns to the queue.
    pub(super) fn serve_write(&mut self, start_ns: u64, command: DiskCommand) {
        let combines_writes = self.drive.queue.combines_writes;
        if !combines_writes || !self.queue.has_continuing_write(start_ns, &command) {
            return self.write_and_complete(start_ns, &command);
        }
        // The joined write, and the last command that is a part of it.
        let (mut joined, mut last_command) = (command, command);
        let mut joined_ids = Vec::new();
        let mut ready_ns = command.ready_ns;
        // The joined write ends at a track end inside a command, or with the last command.
        let joined_end = loop {
            if let Some(track_end) =
                self.last_track_end(last_command.request.start, last_command.request.end())
            {
                break track_end;
            }
            joined_ids.push(last_command.request.id);
            match self.queue.take_continuing_write(start_ns, &last_command) {
                Some(next) => last_command = next,
                None => break last_command.request.end(),
            }
            ready_ns = ready_ns.max(last_command.ready_ns);
        };
        // The data of joined writes crosses the bus in sequence, after the overhead of all of them.
        joined.bus = BusState::Left { from_ns: ready_ns };
        joined.request.sectors = (joined_end - joined.request.start) as u32;
        let done_ns = self.write_through(start_ns, &joined);
        for id in joined_ids {
            self.schedule_completion(id, done_ns);
        }
        if joined_end < last_command.request.end() {
            last_command.request.sectors = (last_command.request.end() - joined_end) as u32;
            last_command.request.start = joined_end;
            last_command.position = self.geometry.locate(joined_end);
            self.queue.return_rest(last_command);
        }
    }

    /// Returns the last end of a track between the sectors `start` and `end`, both exclusive.
    /// `None` if no track ends between them.
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
    pub(super) fn write_and_complete(&mut self, start_ns: u64, command: &DiskCommand) {
        let end_ns = self.write_through(start_ns, command);
        self.schedule_completion(command.request.id, end_ns);
    }

    /// Writes to the medium from `start_ns` on, with the data on the bus while the arm seeks.
    /// Returns the completion time in ns. A drive with `flushes_first` and a large enough write
    /// cache completes the write when its data has arrived, otherwise when it is on the medium.
    fn write_through(&mut self, start_ns: u64, command: &DiskCommand) -> u64 {
        let request = command.request;
        let sectors = u64::from(request.sectors);
        let feed = self.receive_from_host(start_ns, command.bus, request.sectors);
        let data_end_ns = feed.arrival_ns(sectors);
        // The arm is still there, so a write that continues the last written sector needs no seek.
        let continues = self.written_end == request.start;
        let continues_active_write = continues && self.arm_free_at_ns >= start_ns;
        // A read-ahead that stops later than `start_ns` sets `arm_free_at_ns`.
        self.stop_read_ahead(start_ns);
        self.last_medium_request = Some(request.id);
        let early_disconnect = command.early_disconnect;
        let controller = &self.drive.controller;
        let until_seek_ns = early_disconnect.map_or(0, |early| early.until_seek_ns);
        let access = MediumAccess {
            arm_free_ns: (start_ns + until_seek_ns).max(self.arm_free_at_ns),
            continues,
            move_min_ns: if continues_active_write { 0 } else { controller.write_move_min_ns },
            feed: Some(feed),
        };
        let completion_ns = controller.write_completion_ns;
        let transfer = self.transfer(access, request.start, sectors, Op::Write);
        self.written_end = request.end();
        self.arm_free_at_ns = transfer.end_ns;
        self.record_written(start_ns, request.start, request.end(), continues_active_write);
        if self.drive.cache.flushes_first && self.write_cache.can_hold(request.sectors) {
            let MediumTransfer { end_ns, .. } = transfer;
            self.writes_to_medium.push_back(MediumWrite { end_ns, sectors: request.sectors });
            // The report does not wait for the medium, and does not keep the arm.
            return data_end_ns + completion_ns;
        }
        let controller = &self.drive.controller;
        let medium_end_ns = transfer.end_ns.max(data_end_ns);
        // A drive that has released the bus needs it again to report the completion.
        let released_ns = medium_end_ns.max(data_end_ns + command.bus_release_ns);
        let reported_ns = match (controller.never_disconnects, early_disconnect) {
            (true, _) => medium_end_ns,
            (false, None) => released_ns + controller.reselect_ns,
            (false, Some(_)) => released_ns + controller.reselect_again_ns,
        };
        let done_ns = reported_ns + completion_ns;
        self.keep_arm_until_reported(done_ns, completion_ns);
        done_ns
    }

    /// Keeps the arm from the next command after one that completes at `done_ns`, by the drive's
    /// `arm_free`. No effect on a drive that starts the next seek at once (`MediumDone`). The
    /// completion message takes `completion_message_ns`.
    pub(super) fn keep_arm_until_reported(&mut self, done_ns: u64, completion_message_ns: u64) {
        let arm_held_until_ns = match self.drive.controller.arm_free {
            ArmFreePoint::CompletionReceived => done_ns,
            ArmFreePoint::CompletionSent => done_ns - completion_message_ns,
            ArmFreePoint::MediumDone => return,
        };
        self.arm_free_at_ns = self.arm_free_at_ns.max(arm_held_until_ns);
    }

    /// Stores a write in the cache from `ready_ns` on, and schedules its completion.
    pub(super) fn store_and_complete(&mut self, ready_ns: u64, request: DeviceRequest) {
        let bus = BusState::Held { from_ns: ready_ns };
        let feed = self.receive_from_host(ready_ns, bus, request.sectors);
        let data_end_ns = feed.arrival_ns(u64::from(request.sectors));
        let completion_ns = self.drive.controller.write_completion_ns;
        self.schedule_completion(request.id, data_end_ns + completion_ns);
        let position = self.geometry.locate(request.start);
        self.write_cache.add((request.start, request.end()), position, data_end_ns);
        // Only drives without `flushes_first` come here, and the value matters only for the others.
        let continues_active_write = true;
        self.record_written(ready_ns, request.start, request.end(), continues_active_write);
    }

    /// Returns true if a write fits into the cache at `time_ns` and no flush is in progress. New
    /// data would keep a flush from its end.
    pub(super) fn can_cache_write(&self, time_ns: u64, request: &DeviceRequest) -> bool {
        let (start, end) = (request.start, request.end());
        self.flushes.is_empty() && self.write_cache.has_room_for(time_ns, start, end)
    }

    /// Stops a read-ahead over written sectors, drops their old data from the cache, and records
    /// them. A drive without a read cache records nothing. Without `reads_written`, the written
    /// data takes a segment that reads find empty. `continues_active_write` is true if the sectors
    /// before them are being written to the medium.
    ///
    /// A drive with `flushes_first` uses a new segment for each write without
    /// `continues_active_write`. DiskSim's cache does the same (`disk_buffer_select_write_segment`
    /// appends only to a segment that is dirty or being written).
    fn record_written(&mut self, time_ns: u64, start: u64, end: u64, continues_active_write: bool) {
        if let Some(run) = &self.read_ahead {
            let segment = self.segments.segment(run.segment_index);
            if segment.start < end && start < run.end_sector {
                self.stop_read_ahead(time_ns);
            }
        }
        self.segments.drop_overlapping(start, end);
        if self.drive.cache.is_enabled {
            let may_continue_segment = continues_active_write || !self.drive.cache.flushes_first;
            let index = self.segments.store_written(start, end, may_continue_segment);
            if !self.drive.cache.reads_written {
                self.segments.clear(index);
            }
        }
    }

    /// Returns true if the write-back in progress goes on at `time_ns`, before any command. It ends
    /// after the drive's number of tracks, and when no data has arrived in the cache. A call that
    /// returns true counts one track.
    pub(super) fn take_write_back_track(&mut self, time_ns: u64) -> bool {
        let is_ready = |ready_ns| ready_ns <= time_ns;
        if self.write_back_tracks_left > 0
            && self.write_cache.earliest_ready_ns().is_some_and(is_ready)
        {
            self.write_back_tracks_left -= 1;
            return true;
        }
        self.write_back_tracks_left = 0;
        false
    }

    /// Stops the read-ahead, and writes the nearest piece of the cached data to the medium, once
    /// the arm is free after `time_ns`. If no data has arrived yet, the arm waits for it.
    pub(super) fn write_back(&mut self, time_ns: u64) {
        self.stop_read_ahead(time_ns);
        let time_ns = time_ns.max(self.arm_free_at_ns);
        let (cost_state, geometry) = (self.cost_state(time_ns), &self.geometry);
        let cost =
            |position: &SectorPosition| cost_state.cost(&self.mechanics, position, Op::Write);
        match self.write_cache.take_nearest(time_ns, cost, |sector| geometry.locate(sector)) {
            Some(piece) => self.write_piece(time_ns, piece),
            // All data is still crossing the bus. The cache has some: the default is only a guard.
            None => {
                let ready_ns = self.write_cache.earliest_ready_ns().unwrap_or(time_ns);
                self.arm_free_at_ns = time_ns.max(ready_ns);
            }
        }
    }

    /// Writes a piece of cached data to the medium, once the arm is free after `time_ns`. Unlike
    /// `write_through` it waits for no data from the host, and the minimum time of a host's write
    /// for its first seek does not apply.
    pub(super) fn write_piece(&mut self, time_ns: u64, piece: TrackPiece) {
        self.stop_read_ahead(time_ns);
        let time_ns = time_ns.max(self.arm_free_at_ns);
        let continues = self.written_end == piece.start;
        let access = MediumAccess { arm_free_ns: time_ns, continues, ..MediumAccess::default() };
        let transfer = self.transfer(access, piece.start, piece.sectors, Op::Write);
        self.written_end = piece.start + piece.sectors;
        self.write_cache.record_transfer(piece, transfer.end_ns);
        self.arm_free_at_ns = transfer.end_ns;
    }
}
