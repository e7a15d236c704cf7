//! Reads: cache hits, transfers from the medium, and read-ahead.
//!
//! A command holds the bus to the host (`Held`), or has released it for the time of the arm's work
//! (`Left`). The cache consists of segments, each with one range of consecutive sectors. Read-ahead
//! fills the segment of the last read. The fields of `drive.cache` follow DiskSim's parameters.

use readpath_core::request::{DeviceRequest, Op};

use super::Hdd;
use super::ahead::ReadAheadRun;
use super::bus::{BusState, MediumFlow};
use super::drive::{ReadAhead, ReleasePolicy};
use super::mechanics::HeadPosition;
use super::queue::DiskCommand;
use super::service::{MediumAccess, sectors_until_read_ahead};

impl Hdd {
    /// Accepts a read that arrives at `now_ns`: serves it from the cache or queues it for the arm.
    /// A hit that may not overtake the commands before it is queued too, with the overhead of a
    /// miss. The overheads depend on the direction of the previous command.
    pub(super) fn accept_read(&mut self, now_ns: u64, request: DeviceRequest) {
        let cached_end = self.cached_end(now_ns, request.start);
        let is_hit = cached_end.is_some_and(|end| end >= request.end());
        let is_arm_idle = self.queue.is_empty() && self.arm_free_at_ns <= now_ns;
        let (cache, controller) = (&self.drive.cache, &self.drive.controller);
        let bus_release_ns = self.overhead_ns(controller.read_disconnect);
        // Ends of the processing overhead, if the read hits or misses the cache.
        let hit_ready_ns = now_ns + self.overhead_ns(controller.read_hit);
        let miss_ready_ns = now_ns + self.overhead_ns(controller.read_miss);
        if is_hit && (is_arm_idle || cache.hits_overtake) {
            self.answer_from_cache(BusState::Held { from_ns: hit_ready_ns }, request, is_arm_idle);
            return;
        }
        // With `early_send_mark`, a part of the read that starts in the cache is sent before the
        // rest. It must have the mark's size: a fraction or a number of sectors.
        let can_send_start = cached_end.zip(cache.early_send_mark).is_some_and(|(end, mark)| {
            end - request.start >= u64::from(mark.sectors_of(request.sectors))
        });
        // The bus is held if cached data can be sent at once, or if the drive never releases it. In
        // the first case the overhead of a hit applies. With other commands first, no data is sent
        // at once.
        let bus = if can_send_start && is_arm_idle {
            BusState::Held { from_ns: hit_ready_ns }
        } else if controller.never_disconnects {
            BusState::Held { from_ns: miss_ready_ns }
        } else {
            BusState::Left { from_ns: miss_ready_ns + bus_release_ns }
        };
        let stop_delay_ns = self.stop_read_ahead_on_arrival(now_ns, &request);
        self.queue.push(DiskCommand {
            request,
            in_window_since_ns: now_ns,
            ready_ns: miss_ready_ns + stop_delay_ns,
            position: self.geometry.locate(request.start),
            // Set later too, if data with this start enters the cache.
            may_be_cached: cached_end.is_some(),
            // Only writes wait for room in the cache, or disconnect early.
            waits_for_room: false,
            bus,
            bus_release_ns,
            early_disconnect: None,
        });
    }

    /// Transfers a read from the cache over the bus and schedules its completion. Releases data of
    /// its cache segment by the drive's `releases` policy; `Before` needs a read-ahead that may use
    /// the room (`ahead_over_requested`). Extends a read-ahead in progress into the segment. If
    /// none is in progress, starts one with `ahead_on_hit`, provided that `is_arm_idle`.
    fn answer_from_cache(&mut self, bus: BusState, request: DeviceRequest, is_arm_idle: bool) {
        // All data is cached, so the read never releases the bus.
        let bus_release_ns = 0;
        let flow = MediumFlow::cached(request.sectors);
        let sent_ns = self.send_to_host(bus, bus_release_ns, flow);
        let done_ns = sent_ns + self.drive.controller.read_completion_ns;
        self.schedule_completion(request.id, done_ns);
        // Every hit has a segment; the return is only a guard.
        let Some(index) = self.segments.segment_with(request.start) else { return };
        self.segments.mark_used(index);
        let cache = &self.drive.cache;
        match cache.releases {
            ReleasePolicy::Before if cache.ahead_over_requested => {
                self.segments.release_before(index, request.start);
            }
            ReleasePolicy::Requested => self.segments.release_before(index, request.end()),
            // The data stays until the segment is reused.
            _ => {}
        }
        let ahead_end = self.read_ahead_end(index, request.start, request.end());
        match &mut self.read_ahead {
            // The read-ahead in progress fills this segment: it continues to the later end.
            Some(run) if run.segment_index == index && !run.is_done() => {
                run.end_sector = run.end_sector.max(ahead_end);
            }
            _ if self.drive.cache.ahead_on_hit && is_arm_idle => {
                let next_sector = self.segments.segment(index).end;
                if next_sector < ahead_end && self.read_ahead.is_none_or(|run| run.is_done()) {
                    // It begins when the drive has processed the command and the arm is free.
                    let (BusState::Held { from_ns } | BusState::Left { from_ns }) = bus;
                    let free_ns = self.arm_free_at_ns.max(from_ns);
                    let track = self.arm_position();
                    let run = ReadAheadRun::new(index, next_sector, ahead_end, free_ns, track);
                    self.read_ahead = Some(run);
                }
            }
            _ => {}
        }
    }

    /// Serves a read at `start_ns`. Sectors that are not cached come from the medium, to which
    /// cached writes of the requested sectors go first. Schedules the completion, and starts
    /// read-ahead.
    pub(super) fn serve_read(&mut self, start_ns: u64, command: &DiskCommand) {
        let request = command.request;
        let end = request.end();
        // The read-ahead was advanced to this time before the command was chosen. Without this mark
        // the start is certainly not cached, which saves the search.
        let cached_end = match command.may_be_cached {
            true => self.cached_end(start_ns, request.start),
            false => None,
        };
        // A read whose start is cached requests the bus no sooner than the drive serves it.
        let bus = match command.bus {
            BusState::Left { from_ns } if cached_end.is_some() => {
                BusState::Left { from_ns: from_ns.max(start_ns) }
            }
            bus => bus,
        };
        if cached_end.is_some_and(|cached| cached >= end) {
            // Without other commands the arm stays idle, and may read ahead.
            self.answer_from_cache(bus, request, self.queue.is_empty());
            return;
        }
        self.write_overlapping(start_ns, request.start, end);
        let start_ns = start_ns.max(self.arm_free_at_ns);
        let joins_ahead = self.joins_read_ahead(request.start);
        // The cache segment that the read continues, and the first sector from the medium. A read
        // that joins the read-ahead also takes the sectors between the head and its start.
        let (segment, medium_start) = match (cached_end, joins_ahead, self.read_ahead) {
            (_, true, Some(run)) => (Some(run.segment_index), run.next_sector),
            (Some(cached), ..) => (self.segments.segment_with(request.start), cached),
            _ => (None, request.start),
        };
        // The read takes over the head from a read-ahead that it joins. Any other one is stopped.
        if !joins_ahead {
            self.stop_read_ahead(start_ns);
        }
        let arm_free_ns = match self.read_ahead.take() {
            Some(run) => {
                self.arm_track = run.arm_track();
                // A finished read-ahead does not occupy the head. A running one has moved it
                // towards the next sector since `free_since_ns`: the pass starts at that time.
                if run.is_done() { start_ns } else { run.free_since_ns().min(start_ns) }
            }
            None => start_ns.max(self.arm_free_at_ns),
        };
        let passing_sectors = self.sectors_passing_before(arm_free_ns, medium_start);
        // An access that continues the read-ahead needs no seek on the same track.
        let access =
            MediumAccess { arm_free_ns, continues: joins_ahead, ..MediumAccess::default() };
        let transfer = self.transfer(access, medium_start, end - medium_start, Op::Read);
        self.last_medium_request = Some(request.id);
        // The arm has left the last written sector, so no write continues there without a seek.
        self.written_end = u64::MAX;
        // Send the data as it arrives. The first sectors, if they are cached, are sent at once.
        let cached_sectors = medium_start.saturating_sub(request.start) as u32;
        let flow = MediumFlow {
            cached_sectors,
            arriving_sectors: request.sectors - cached_sectors,
            begin_ns: transfer.begin_ns,
            end_ns: transfer.end_ns,
        };
        let sent_ns = self.send_to_host(bus, command.bus_release_ns, flow);
        let done_ns = sent_ns + self.drive.controller.read_completion_ns;
        self.schedule_completion(request.id, done_ns);
        self.arm_free_at_ns = transfer.end_ns;
        if self.drive.cache.is_enabled {
            self.keep_in_segment(segment, request.start, end, passing_sectors);
        }
        // A drive may keep the arm until it has sent the completion, or the host has received it.
        self.keep_arm_until_reported(done_ns, self.drive.controller.read_completion_ns);
    }

    /// Writes the cached writes of sectors `start..end`, from `now_ns` on, and once the arm is
    /// free. The medium has old data of these sectors until then, so a read from it must wait.
    fn write_overlapping(&mut self, now_ns: u64, start: u64, end: u64) {
        while !self.write_cache.is_empty() && self.write_cache.overlaps(start, end) {
            let locate = |sector| self.geometry.locate(sector);
            let piece = self.write_cache.take_overlapping(start, end, locate);
            self.write_piece(
                self.arm_free_at_ns.max(now_ns),
                piece.expect("the cache has an overlapping piece"),
            );
        }
    }

    /// Keeps a read of sectors `start..end` in the cache, and starts read-ahead after it. `segment`
    /// is the cache segment that the read continues; `None` if all sectors came from the medium. A
    /// new segment then also has the `passing_sectors` that passed under the head before `start`.
    fn keep_in_segment(
        &mut self,
        segment: Option<usize>,
        start: u64,
        end: u64,
        passing_sectors: u64,
    ) {
        let segment_index = match segment {
            Some(index) => {
                self.segments.extend(index, end);
                index
            }
            None => self.segments.allocate_for_read(start - passing_sectors, end),
        };
        self.segments.mark_used(segment_index);
        self.start_read_ahead(segment_index, start, end);
        // The policy `Before` releases data only when a read hits the cache.
        if self.drive.cache.releases == ReleasePolicy::Requested {
            self.segments.release_before(segment_index, end);
        }
    }

    /// Advances the read-ahead to `now_ns`. Returns the end of the cached range that contains
    /// sector `start`; `None` if it is not cached or the drive caches no reads.
    fn cached_end(&mut self, now_ns: u64, start: u64) -> Option<u64> {
        if !self.drive.cache.is_enabled {
            return None;
        }
        self.advance_read_ahead(now_ns);
        self.segments.segment_with(start).map(|index| self.segments.segment(index).end)
    }

    /// Advances the read-ahead, if any, to `now_ns`, and extends its cache segment.
    pub(super) fn advance_read_ahead(&mut self, now_ns: u64) {
        if let Some(run) = &mut self.read_ahead {
            run.advance(now_ns, &self.geometry, &self.mechanics);
            self.segments.extend(run.segment_index, run.next_sector);
        }
    }

    /// Returns the track of the arm, including movement by read-ahead.
    fn arm_position(&self) -> HeadPosition {
        self.read_ahead.map_or(self.arm_track, |run| run.arm_track())
    }

    /// Returns true if a read from sector `start` continues the read-ahead in progress: the sector
    /// was read ahead, or the head reaches it next or waits for it (`sectors_until_read_ahead`).
    fn joins_read_ahead(&self, start: u64) -> bool {
        let Some(run) = &self.read_ahead else { return false };
        let segment = self.segments.segment(run.segment_index);
        let is_inside = segment.start <= start && start < run.next_sector;
        let cache = &self.drive.cache;
        is_inside || sectors_until_read_ahead(Some(run), cache, &self.geometry, start).is_some()
    }

    /// Starts the read-ahead into the cache segment `segment_index`, after a read of the sectors
    /// `start..end` that left the arm free at `arm_free_at_ns`, on `arm_track`. The minimum
    /// read-ahead (`read_ahead_sectors_min`, at most the whole read-ahead) is read at once and
    /// cannot be interrupted. The rest runs until a command takes the arm.
    fn start_read_ahead(&mut self, segment_index: usize, start: u64, end: u64) {
        let ahead_end = self.read_ahead_end(segment_index, start, end);
        let sectors_min = u64::from(self.drive.cache.read_ahead_sectors_min).min(ahead_end - end);
        if sectors_min > 0 {
            let access = MediumAccess {
                arm_free_ns: self.arm_free_at_ns,
                continues: true,
                ..MediumAccess::default()
            };
            self.arm_free_at_ns = self.transfer(access, end, sectors_min, Op::Read).end_ns;
            self.segments.extend(segment_index, end + sectors_min);
        }
        let next_sector = end + sectors_min;
        if ahead_end > next_sector {
            let (free_ns, track) = (self.arm_free_at_ns, self.arm_track);
            let run = ReadAheadRun::new(segment_index, next_sector, ahead_end, free_ns, track);
            self.read_ahead = Some(run);
        }
    }

    /// Returns the end sector of the read-ahead into the cache segment `segment_index`, after a
    /// read of the sectors `start..end`. The result is `end` if nothing is read ahead.
    fn read_ahead_end(&self, segment_index: usize, start: u64, end: u64) -> u64 {
        let cache = &self.drive.cache;
        let last = end - 1;
        let track_end = |sector: u64| self.geometry.track(sector).end;
        let segment_sectors = u64::from(cache.segment_sectors);
        let wanted_end = match cache.read_ahead {
            ReadAhead::None => end,
            ReadAhead::Track => track_end(last),
            ReadAhead::Cylinder => {
                let cylinder = self.geometry.locate(last).cylinder;
                let mut cylinder_end = track_end(last);
                while cylinder_end < self.sectors()
                    && self.geometry.locate(cylinder_end).cylinder == cylinder
                {
                    cylinder_end = track_end(cylinder_end);
                }
                cylinder_end
            }
            // With `ahead_over_requested`, the read-ahead may fill the whole segment and overwrite
            // the requested sectors in it.
            ReadAhead::Segment if cache.ahead_over_requested => end + segment_sectors,
            ReadAhead::Segment => start + segment_sectors,
            ReadAhead::NextTrack if end < self.sectors() => {
                let track = self.geometry.track(end);
                let segment = self.segments.segment(segment_index);
                // The segment started on the previous track, so this is a stream. DiskSim then adds
                // the sector count of a whole track, even if the next track has fewer sectors.
                let wanted_end = match segment.allocated_start < track.start {
                    true => track.end + u64::from(self.geometry.track_sectors(start)),
                    false => track.end,
                };
                let segment_end = segment.start + segment_sectors;
                if cache.ahead_over_requested { wanted_end } else { wanted_end.min(segment_end) }
            }
            // The read ends with the drive's last sector.
            ReadAhead::NextTrack => end,
        };
        let end_max = end + u64::from(cache.read_ahead_sectors_max);
        wanted_end.min(end_max).min(self.sectors()).max(end)
    }

    /// Returns the number of sectors on the track of `sector` that pass the head before it, for a
    /// seek that starts at `start_ns`; 0 without `caches_passing_sectors`. Sectors before the first
    /// number of the track do not count.
    fn sectors_passing_before(&self, start_ns: u64, sector: u64) -> u64 {
        if !self.drive.cache.caches_passing_sectors {
            return 0;
        }
        let position = self.geometry.locate(sector);
        let settled_ns =
            start_ns + self.mechanics.access_seek_ns(self.arm_track, &position, Op::Read);
        let wait_angle = position.angle.wrapping_sub(self.mechanics.angle_at(settled_ns));
        (wait_angle / position.sector_width).min(sector - self.geometry.track(sector).start)
    }

    /// Stops the read-ahead when `request` arrives at `now_ns`, on a drive with
    /// `stops_on_arrival`. Returns the time in ns after `now_ns` for which the arm is still busy,
    /// which adds to the command's overhead. As in DiskSim, a seek is completed, and so is a sector
    /// that is being read or waited for. With `stops_in_sector` only a seek is completed, and the
    /// result is otherwise 0.
    ///
    /// The read-ahead goes on, and the result is 0, in three cases: `stops_on_arrival` is false,
    /// other work precedes the request, or a read continues the read-ahead. The result is also 0 if
    /// no read-ahead is in progress.
    pub(super) fn stop_read_ahead_on_arrival(
        &mut self,
        now_ns: u64,
        request: &DeviceRequest,
    ) -> u64 {
        let is_served_next = self.queue.is_empty() && self.arm_free_at_ns <= now_ns;
        if !self.drive.cache.stops_on_arrival || !is_served_next {
            return 0;
        }
        self.advance_read_ahead(now_ns);
        let Some(mut run) = self.read_ahead.filter(|run| !run.is_done()) else { return 0 };
        if request.op == Op::Read && self.joins_read_ahead(request.start) {
            return 0;
        }
        let state = run.advance(now_ns, &self.geometry, &self.mechanics);
        self.read_ahead = None;
        self.arm_track = state.arm_track;
        let is_moving = state.stopped_ns > now_ns;
        match self.drive.cache.stops_in_sector && !is_moving {
            true => 0,
            false => state.step_end_ns - now_ns,
        }
    }

    /// Stops the read-ahead at `time_ns`. Sets `arm_free_at_ns` and `arm_track` to the time and the
    /// track at which the arm is free. No effect without read-ahead.
    pub(super) fn stop_read_ahead(&mut self, time_ns: u64) {
        if let Some(mut run) = self.read_ahead.take() {
            let state = run.advance(time_ns, &self.geometry, &self.mechanics);
            self.segments.extend(run.segment_index, run.next_sector);
            self.arm_track = state.arm_track;
            let arm_free_ns =
                if self.drive.cache.stops_in_sector { state.stopped_ns } else { state.free_ns };
            self.arm_free_at_ns = self.arm_free_at_ns.max(arm_free_ns);
        }
    }
}
