//! What becomes of a command: found in the cache, read, written, or kept for later.

use readpath_core::request::{DeviceRequest, Op};

use super::Hdd;
use super::ahead::ReadAheadRun;
use super::drive::{CacheSpec, EarlyDisconnect, QueueOrder, ReadAhead};
use super::geometry::{Geometry, Place};
use super::mechanics::{Arm, Mechanics};
use super::queue::{Command, Turn, is_read};
use super::write_cache::Piece;

/// How an access to the medium begins.
#[derive(Clone, Copy, Debug)]
struct Access {
    /// When the arm is free for it.
    from: u64,
    /// Before this the medium is not touched.
    earliest: u64,
    /// Whether it goes on where the head just was.
    continues: bool,
}

/// What choosing depends on.
#[derive(Clone, Copy, Debug)]
struct Reach {
    order: QueueOrder,
    at: u64,
    arm: Arm,
}

impl Reach {
    /// What it costs to go to `place`, in the measure of the order.
    fn cost(&self, mechanics: &Mechanics, place: &Place, op: Op) -> u64 {
        match self.order {
            QueueOrder::Positioning => mechanics.positioning_ns(self.at, self.arm, place, op),
            QueueOrder::Elevator => {
                // What the arm has passed comes after all that is still before it.
                let behind = u64::from(place.cylinder < self.arm.cylinder) << 32;
                behind + u64::from(place.cylinder)
            }
        }
    }
}

/// Sectors moved between medium and cache.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    /// When the first of them came under the head.
    begin: u64,
    /// When the last was done.
    end: u64,
}

impl Hdd {
    /// A read comes in: answered from the cache, or queued for the arm.
    pub(super) fn accept_read(&mut self, now: u64, request: DeviceRequest) {
        let cached_end = self.cached_end(now, request.start);
        let controller = &self.drive.controller;
        let is_hit = cached_end.is_some_and(|end| end >= request.end());
        let is_arm_idle = self.queue.is_empty() && self.free_at <= now;
        if is_hit && (is_arm_idle || self.drive.cache.hits_pass) {
            let ready_at = now + self.overhead_ns(controller.read_hit);
            self.answer_from_cache(ready_at, request, is_arm_idle);
            return;
        }
        let times = if is_hit { controller.read_hit } else { controller.read_miss };
        self.queue.push(Command {
            request,
            in_window_since: now,
            ready_at: now + self.overhead_ns(times),
            place: self.geometry.locate(request.start),
            waits_for_room: false,
        });
    }

    /// A write comes in: into the cache and reported, or queued for the arm.
    pub(super) fn accept_write(&mut self, now: u64, request: DeviceRequest) {
        let controller = &self.drive.controller;
        let is_early = self.written.takes(request.sectors);
        let times = if is_early { controller.write_hit } else { controller.write_miss };
        let ready_at = match controller.early_disconnect {
            Some(EarlyDisconnect { command_ns, .. }) if !is_early => now + command_ns,
            _ => now + self.overhead_ns(times),
        };
        if is_early && self.has_room_for(now, &request) && self.queue.waiting().is_none() {
            self.keep_written(ready_at, request);
            return;
        }
        self.queue.push(Command {
            request,
            in_window_since: now,
            ready_at,
            place: self.geometry.locate(request.start),
            waits_for_room: is_early,
        });
    }

    /// Whether a write can be taken into the cache at `at`: while it is flushed, none can.
    fn has_room_for(&self, at: u64, request: &DeviceRequest) -> bool {
        self.flushes.is_empty() && self.written.has_room_for(at, request.start, request.end())
    }

    /// The arm is free at `at` and something is ready: gives it the next thing to do.
    pub(super) fn decide(&mut self, at: u64) {
        if !self.flushes.is_empty() {
            return self.flush_on(at);
        }
        let is_written_ready = self.written.ready_at().is_some_and(|ready_at| ready_at <= at);
        if is_written_ready && self.drive.cache.flushes_first {
            return self.write_back(at);
        }
        if let Some(waiting) = self.queue.waiting()
            && self.has_room_for(at, &waiting.request)
            && let Some(command) = self.queue.take_waiting(at)
        {
            return self.keep_written(command.ready_at.max(at), command.request);
        }
        self.read_ahead_to(at);
        let reach = self.reach(at);
        let (segments, written) = (&self.segments, &self.written);
        let (cache, ahead, geometry) = (&self.drive.cache, self.ahead.as_ref(), &self.geometry);
        // What the cache has the start of, or the head is coming to, needs no move at all.
        let cost = |command: &Command| {
            let (start, place) = (command.request.start, &command.place);
            let reads_on = || reads_on_to(ahead, cache, geometry, start);
            match command.request.op {
                Op::Write => reach.cost(&self.mechanics, place, Op::Write),
                Op::Read if segments.with(start).is_some() => 0,
                Op::Read => match reads_on() {
                    Some(_) if reach.order == QueueOrder::Elevator => 0,
                    Some(sectors) => {
                        self.mechanics.turn_ns(sectors.wrapping_mul(place.sector_width))
                    }
                    None => reach.cost(&self.mechanics, place, Op::Read),
                },
            }
        };
        let room_cost = || {
            let cost = |place: &Place| reach.cost(&self.mechanics, place, Op::Write);
            written.least_cost(at, cost).unwrap_or(u64::MAX)
        };
        match self.queue.take_next(at, cost, room_cost) {
            Some(Turn::Serve(command)) if is_read(command.request.op) => self.read(at, &command),
            Some(Turn::Serve(command)) => self.write_through(at, &command),
            Some(Turn::MakeRoom) | None => self.write_back(at),
        }
    }

    /// From where, and by what, the drive chooses at `at`.
    fn reach(&self, at: u64) -> Reach {
        Reach { order: self.drive.queue.order, at, arm: self.arm }
    }

    /// The next step of a flush: nothing else is done until all that was written is on
    /// the medium.
    fn flush_on(&mut self, at: u64) {
        if !self.written.is_empty() {
            return self.write_back(at);
        }
        while let Some((asked_at, id)) = self.flushes.pop_front() {
            self.finish(id, at.max(asked_at));
        }
    }

    /// The end of the cached span that `start` lies in, the head having read on until `now`.
    fn cached_end(&mut self, now: u64, start: u64) -> Option<u64> {
        if !self.drive.cache.is_enabled {
            return None;
        }
        self.read_ahead_to(now);
        self.segments.with(start).map(|index| self.segments.segment(index).end)
    }

    /// Lets the head read ahead until `now`.
    fn read_ahead_to(&mut self, now: u64) {
        if let Some(run) = &mut self.ahead {
            run.advance(now, &self.geometry, &self.mechanics);
            self.segments.extend(run.segment, run.next);
        }
    }

    /// Moves a read's sectors from the cache over the bus, and may set the head reading on.
    fn answer_from_cache(&mut self, ready_at: u64, request: DeviceRequest, is_arm_idle: bool) {
        let sector_ns = self.drive.controller.bus_read_sector_ns;
        let end = self.move_over_bus(ready_at, sector_ns, request.sectors);
        let done_at = end + self.drive.controller.read_completion_ns;
        self.finish(request.id, done_at);
        let Some(index) = self.segments.with(request.start) else { return };
        self.segments.touch(index);
        if self.drive.cache.ahead_over_requested {
            self.segments.give_up_before(index, request.start);
        }
        let limit = self.ahead_limit(index, request.start, request.end());
        match &mut self.ahead {
            Some(run) if run.segment == index && !run.is_done() => run.limit = run.limit.max(limit),
            _ if self.drive.cache.ahead_on_hit && is_arm_idle => {
                let from = self.segments.segment(index).end;
                if from < limit && self.ahead.is_none_or(|run| run.is_done()) {
                    let since = self.free_at.max(ready_at);
                    self.ahead = Some(ReadAheadRun::new(index, from, limit, since, self.arm_now()));
                }
            }
            _ => {}
        }
    }

    /// Where the arm is when nothing but reading ahead has moved it.
    fn arm_now(&self) -> Arm {
        self.ahead.map_or(self.arm, |run| run.arm())
    }

    /// Serves a read at `at`: what the cache lacks comes from the medium.
    fn read(&mut self, at: u64, command: &Command) {
        let request = command.request;
        let end = request.end();
        let cached_end = self.cached_end(at, request.start);
        if cached_end.is_some_and(|cached| cached >= end) {
            self.answer_from_cache(at, request, self.queue.is_empty());
            return;
        }
        // The medium has old data there until the writes before it are done.
        while !self.written.is_empty() && self.written.overlaps(request.start, end) {
            let locate = |sector| self.geometry.locate(sector);
            let piece = self.written.take_overlapping(request.start, end, locate);
            self.write_piece(self.free_at.max(at), piece.expect("it overlaps"));
        }
        let at = at.max(self.free_at);
        let joins = self.joins_ahead(request.start);
        let (segment, from) = match (cached_end, joins, self.ahead) {
            (_, true, Some(run)) => (Some(run.segment), run.next),
            (Some(cached), ..) => (self.segments.with(request.start), cached),
            _ => (None, request.start),
        };
        if !joins {
            self.stop_ahead(at);
        }
        let start_at = match self.ahead.take() {
            Some(run) => {
                self.arm = run.arm();
                run.since().min(at)
            }
            None => at.max(self.free_at),
        };
        let before = self.passing_sectors(start_at, from);
        let access = Access { from: start_at, earliest: 0, continues: joins };
        let transfer = self.transfer(access, from, end - from, Op::Read);
        self.medium_used = Some(request.id);
        self.written_end = u64::MAX;
        let has_prefix = from > request.start;
        let controller = &self.drive.controller;
        let asks_at = if has_prefix {
            at
        } else {
            let part = u64::from(controller.bus_after_1024th);
            transfer.begin + (transfer.end - transfer.begin) * part / 1024 + controller.reselect_ns
        };
        let sector_ns = controller.bus_read_sector_ns;
        let bus_ns = sector_ns * u64::from(request.sectors);
        let last_at = (transfer.end + sector_ns).saturating_sub(bus_ns);
        let bus_end = self.move_over_bus(asks_at.max(last_at), sector_ns, request.sectors);
        self.finish(request.id, bus_end + self.drive.controller.read_completion_ns);
        self.free_at = transfer.end;
        if self.drive.cache.is_enabled {
            let segment = match segment {
                Some(index) => {
                    self.segments.extend(index, end);
                    index
                }
                None => self.segments.take_for_read(request.start - before, end),
            };
            self.segments.touch(segment);
            self.read_on(segment, request.start, end);
        }
    }

    /// Whether a read of `start` goes on with what the head is reading ahead.
    fn joins_ahead(&self, start: u64) -> bool {
        let Some(run) = &self.ahead else { return false };
        let segment = self.segments.segment(run.segment);
        let is_inside = segment.start <= start && start < run.next;
        is_inside || reads_on_to(Some(run), &self.drive.cache, &self.geometry, start).is_some()
    }

    /// After a read up to `end` into `segment`: reads on, first the least that must be.
    fn read_on(&mut self, segment: usize, start: u64, end: u64) {
        let limit = self.ahead_limit(segment, start, end);
        let least = u64::from(self.drive.cache.read_ahead_sectors_min).min(limit.max(end) - end);
        if least > 0 {
            let access = Access { from: self.free_at, earliest: 0, continues: true };
            self.free_at = self.transfer(access, end, least, Op::Read).end;
            self.segments.extend(segment, end + least);
        }
        if limit > end + least {
            let run = ReadAheadRun::new(segment, end + least, limit, self.free_at, self.arm);
            self.ahead = Some(run);
        }
    }

    /// Up to which sector the drive reads ahead into `segment` after a read from `start` to `end`.
    fn ahead_limit(&self, segment: usize, start: u64, end: u64) -> u64 {
        let cache = &self.drive.cache;
        let last = end - 1;
        let track_end = |sector: u64| sector + u64::from(self.geometry.locate(sector).run_sectors);
        let segment_sectors = u64::from(cache.segment_sectors);
        let wanted = match cache.read_ahead {
            ReadAhead::None => end,
            ReadAhead::Track => track_end(last),
            ReadAhead::Cylinder => {
                let cylinder = self.geometry.locate(last).cylinder;
                let mut stop = track_end(last);
                while stop < self.sectors() && self.geometry.locate(stop).cylinder == cylinder {
                    stop = track_end(stop);
                }
                stop
            }
            ReadAhead::Segment if cache.ahead_over_requested => end + segment_sectors,
            ReadAhead::Segment => start + segment_sectors,
            ReadAhead::NextTrack if end < self.sectors() => {
                let place = self.geometry.locate(end);
                let track_start = end - u64::from(place.before_sectors);
                let this = track_end(end);
                let segment = self.segments.segment(segment);
                // The segment has come from the track before: a stream.
                let is_stream = segment.from < track_start && this < self.sectors();
                let wanted = if is_stream { track_end(this) } else { this };
                let full = segment.start + segment_sectors;
                if cache.ahead_over_requested { wanted } else { wanted.min(full) }
            }
            ReadAhead::NextTrack => end,
        };
        let most = end + u64::from(cache.read_ahead_sectors_max);
        wanted.min(most).min(self.sectors()).max(end)
    }

    /// How many sectors before `from` come by, on its track, before it does.
    fn passing_sectors(&self, at: u64, from: u64) -> u64 {
        if !self.drive.cache.keeps_passing {
            return 0;
        }
        let place = self.geometry.locate(from);
        let settled_at = at + self.mechanics.approach_ns(self.arm, &place, Op::Read);
        let wait = place.angle.wrapping_sub(self.mechanics.angle_at(settled_at));
        (wait / place.sector_width).min(u64::from(place.before_sectors))
    }

    /// Serves a write that is reported only when it is on the medium.
    fn write_through(&mut self, at: u64, command: &Command) {
        let request = command.request;
        let controller = &self.drive.controller;
        let follows = command.place.cylinder == self.arm.cylinder;
        let (data_from, arm_from, medium_from) = match controller.early_disconnect {
            Some(early) => (
                command.ready_at + early.until_reconnect_ns,
                at + early.until_seek_ns,
                if follows { 0 } else { command.ready_at + early.medium_min_ns },
            ),
            None => (command.ready_at, at, 0),
        };
        let bus_ns = self.drive.controller.bus_write_sector_ns;
        let data_end = self.move_over_bus(data_from, bus_ns, request.sectors);
        let first_data = data_end - bus_ns * u64::from(request.sectors - 1);
        self.stop_ahead(at);
        self.medium_used = Some(request.id);
        let arm_from = arm_from.max(self.free_at);
        let earliest = first_data.max(medium_from);
        let sectors = u64::from(request.sectors);
        // The arm is still on that track: what follows on needs no seek, at any time.
        let continues = self.written_end == request.start;
        let access = Access { from: arm_from, earliest, continues };
        let transfer = self.transfer(access, request.start, sectors, Op::Write);
        self.written_end = request.end();
        self.free_at = transfer.end;
        self.note_written(at, request.start, request.end());
        let done_at = transfer.end.max(data_end) + self.drive.controller.write_completion_ns;
        self.finish(request.id, done_at);
    }

    /// Takes a write into the cache and reports it.
    fn keep_written(&mut self, ready_at: u64, request: DeviceRequest) {
        let sector_ns = self.drive.controller.bus_write_sector_ns;
        let end = self.move_over_bus(ready_at, sector_ns, request.sectors);
        self.finish(request.id, end + self.drive.controller.write_completion_ns);
        let place = self.geometry.locate(request.start);
        self.written.put((request.start, request.end()), place, end);
        self.note_written(ready_at, request.start, request.end());
    }

    /// The cache learns that sectors are written: old data of them is given up.
    fn note_written(&mut self, at: u64, start: u64, end: u64) {
        if let Some(run) = &self.ahead {
            let segment = self.segments.segment(run.segment);
            if segment.start < end && start < run.limit {
                self.stop_ahead(at);
            }
        }
        self.segments.drop_overlap(start, end);
        if self.drive.cache.is_enabled && self.drive.cache.reads_written {
            self.segments.put_written(start, end);
        }
    }

    /// Puts the nearest piece of the written data on the medium.
    fn write_back(&mut self, at: u64) {
        self.stop_ahead(at);
        let at = at.max(self.free_at);
        let (reach, geometry) = (self.reach(at), &self.geometry);
        let cost = |place: &Place| reach.cost(&self.mechanics, place, Op::Write);
        match self.written.take_nearest(at, cost, |sector| geometry.locate(sector)) {
            Some(piece) => self.write_piece(at, piece),
            // All of it is still on its way over the bus.
            None => self.free_at = at.max(self.written.ready_at().unwrap_or(at)),
        }
    }

    fn write_piece(&mut self, at: u64, piece: Piece) {
        self.stop_ahead(at);
        let at = at.max(self.free_at);
        let continues = self.written_end == piece.start;
        let access = Access { from: at, earliest: 0, continues };
        let transfer = self.transfer(access, piece.start, piece.sectors, Op::Write);
        self.written_end = piece.start + piece.sectors;
        self.written.lands(piece, transfer.end);
        self.free_at = transfer.end;
    }

    /// Takes the arm away from reading ahead at `at`.
    fn stop_ahead(&mut self, at: u64) {
        if let Some(mut run) = self.ahead.take() {
            let standing = run.advance(at, &self.geometry, &self.mechanics);
            self.segments.extend(run.segment, run.next);
            self.arm = standing.arm;
            self.free_at = self.free_at.max(standing.free_at);
        }
    }

    /// Moves `sectors` sectors from `start` on between medium and cache, track by track.
    fn transfer(&mut self, access: Access, start: u64, sectors: u64, op: Op) -> Transfer {
        let Access { from: mut at, earliest, mut continues } = access;
        let (mut next, end) = (start, start + sectors);
        let mut begin = None;
        while next < end {
            let place = self.geometry.locate(next);
            let count = (end - next).min(u64::from(place.run_sectors)) as u32;
            let move_ns = match continues {
                true => self.mechanics.move_ns(self.arm, &place, op),
                false => self.mechanics.approach_ns(self.arm, &place, op),
            };
            let pass = self.mechanics.pass((at, at + move_ns, earliest), &place, count, op);
            self.arm = Arm { cylinder: place.cylinder, head: place.head };
            begin.get_or_insert(pass.begin);
            continues = true;
            at = pass.end;
            next += u64::from(count);
        }
        Transfer { begin: begin.unwrap_or(at), end: at }
    }

    /// Moves `sectors` over the bus, each in `sector_ns`, from `ready_at` at the earliest; when it is done.
    fn move_over_bus(&mut self, ready_at: u64, sector_ns: u64, sectors: u32) -> u64 {
        let controller = &self.drive.controller;
        let start = self.bus_free_at.max(ready_at + controller.data_preparation_ns);
        let end = start + sector_ns * u64::from(sectors);
        self.bus_free_at = end;
        end
    }
}

/// After how many sectors the head comes to `start` by reading ahead as it does; `None` when
/// it doesn't, or is not to be waited for.
///
/// A command that waits stops reading ahead, and the arm leaves at once; but to what lies before
/// the head on its track no arm moves (DiskSim's law as well: a seek over no distance takes no time).
fn reads_on_to(
    ahead: Option<&ReadAheadRun>,
    cache: &CacheSpec,
    geometry: &Geometry,
    start: u64,
) -> Option<u64> {
    let run = ahead.filter(|_| cache.joins_read_ahead)?;
    let sectors = start.checked_sub(run.next)?;
    let on_track = u64::from(geometry.locate(run.next).run_sectors);
    (sectors == 0 || (start < run.limit && sectors < on_track)).then_some(sectors)
}
