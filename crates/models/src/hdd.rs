//! A hard disk: one arm, rotating platters, a cache with read-ahead, a command queue.
//!
//! - The drive's processor first handles a command, which takes its overhead. The overhead of a
//!   queued command is hidden behind the command that the arm is serving.
//! - The arm then seeks to the track and waits for the sector, whose angle follows from the
//!   rotation of the platter. The sectors pass under the head while the bus already transfers the
//!   first ones.
//! - After a read the head reads ahead into the cache until another command needs the arm.
//!   Sequential reads therefore lose no revolution.
//! - Writes can complete when they are in the cache.
//! - The drive chooses the next command by itself.
//!
//! The simulation is lazy. The drive decides at the correct virtual times, but the decisions are
//! computed when the device is polled. Memory does not grow with time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::splitmix;
use readpath_core::unit::Time;

use self::ahead::ReadAheadRun;
use self::cache::SegmentCache;
use self::drive::{CommandTimes, DriveDescription};
use self::geometry::Geometry;
pub use self::load::{HddError, build_hdd, drive_from_disksim, drive_of, drives, parameters};
use self::mechanics::{HeadPosition, Mechanics};
use self::queue::CommandQueue;
use self::write_cache::WriteCache;
use super::Device;

mod ahead;
mod bus;
mod cache;
mod describe_toml;
mod disksim;
mod disksim_model;
mod disksim_syntax;
pub mod drive;
#[cfg(test)]
mod effect_tests;
#[cfg(test)]
mod file_tests;
mod geometry;
pub mod layout;
mod load;
mod mechanics;
mod queue;
mod reading;
pub mod seek;
mod service;
mod user_fields;
mod write_cache;
mod writing;

/// A hard disk in virtual time. All times are in ns.
#[derive(Clone, Debug)]
pub struct Hdd {
    /// All parameters of the model.
    drive: DriveDescription,
    /// Positions of the sectors on the medium.
    geometry: Geometry,
    /// Times of arm and platter.
    mechanics: Mechanics,
    /// Cache segments with read data and written data.
    segments: SegmentCache,
    /// Commands that wait for the arm.
    queue: CommandQueue,
    /// Written data that is reported complete and not yet on the medium.
    write_cache: WriteCache,
    /// Tracks of written data that go to the medium before the drive serves a command.
    write_back_tracks_left: u32,
    /// Writes that are reported complete and being written to the medium, in order of their ends.
    writes_to_medium: VecDeque<MediumWrite>,
    /// Waiting flushes, in order of arrival.
    flushes: VecDeque<WaitingFlush>,
    /// Cylinder and head at which the last command or read-ahead left the arm.
    arm_track: HeadPosition,
    /// Time from which the arm is free for the next command. Read-ahead does not count.
    arm_free_at_ns: u64,
    /// Read-ahead in progress or finished, until a command takes the arm.
    read_ahead: Option<ReadAheadRun>,
    /// Time from which the bus is free.
    bus_free_at_ns: u64,
    /// Direction of the last accepted request, on which the overheads of the next one depend.
    last_op: Op,
    /// Sector after the last one written, from which a write continues without a seek. `u64::MAX`,
    /// which no sector has as its number, once the arm has moved for another command.
    written_end: u64,
    /// Last request that was served from the medium, not from the cache. Only its time depends on
    /// the platter, so only such a request can correct the angle (`used_medium`).
    last_medium_request: Option<RequestId>,
    /// Completions in order of time: time in ns, serial number, request. The serial number keeps
    /// completions at the same time in the order of their scheduling.
    finished: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// Number of completions scheduled so far: the next serial number.
    finished_count: u64,
}

/// A write to the medium that is reported complete before its end, at `end_ns`.
#[derive(Clone, Copy, Debug)]
struct MediumWrite {
    end_ns: u64,
    /// Number of sectors. They occupy room in the cache until `end_ns`.
    sectors: u32,
}

/// A flush that waits until all cached writes are on the medium.
#[derive(Clone, Copy, Debug)]
struct WaitingFlush {
    /// Time in ns at which the controller's overhead has passed.
    overhead_end_ns: u64,
    /// Identifier that the completion reports.
    id: RequestId,
}

impl Hdd {
    /// Builds the drive, idle, with the arm at cylinder 0. The initial angle of the platter is
    /// derived from `seed`.
    pub fn new(drive: &DriveDescription, seed: u64) -> Hdd {
        let cache = &drive.cache;
        let geometry = Geometry::new(&drive.layout);
        Hdd {
            mechanics: Mechanics::new(
                &drive.mechanics,
                drive.layout.cylinders_in_all(),
                random_phase(seed),
            ),
            segments: SegmentCache::new(
                // DiskSim files may state 0 segments. One is kept, and reads do not use it.
                cache.segments.max(1),
                cache.segment_sectors,
                cache.has_write_segment,
            ),
            queue: CommandQueue::new(drive.queue),
            write_cache: WriteCache::new(cache.writes),
            write_back_tracks_left: 0,
            writes_to_medium: VecDeque::new(),
            flushes: VecDeque::new(),
            arm_track: HeadPosition::default(),
            arm_free_at_ns: 0,
            read_ahead: None,
            bus_free_at_ns: 0,
            // No command precedes the first one; it counts as following a read.
            last_op: Op::Read,
            written_end: u64::MAX,
            last_medium_request: None,
            finished: BinaryHeap::with_capacity(drive.queue.depth as usize),
            finished_count: 0,
            drive: drive.clone(),
            geometry,
        }
    }

    /// Returns the description of the drive.
    pub fn drive(&self) -> &DriveDescription {
        &self.drive
    }

    /// Corrects the platter's angle after a measured drive was observed `late_ns` behind the model
    /// (ahead if negative).
    pub(crate) fn shift_phase(&mut self, late_ns: i64) {
        self.mechanics.shift_phase(late_ns);
    }

    /// Returns true if request `id` was the last one served from the medium.
    pub(crate) fn used_medium(&self, id: RequestId) -> bool {
        self.last_medium_request == Some(id)
    }

    /// Returns the platter's angle when the last of `sectors` sectors from `start`, at least one,
    /// has passed the head. The unit is revolutions from the index mark.
    pub(crate) fn end_revolutions(&self, start: u64, sectors: u32) -> f64 {
        let position = self.geometry.locate(start + u64::from(sectors) - 1);
        position.angle.wrapping_add(position.sector_width) as f64 / 2f64.powi(64)
    }

    /// Returns the cylinder of `sector`.
    pub(crate) fn cylinder_of(&self, sector: u64) -> u32 {
        self.geometry.locate(sector).cylinder
    }

    /// Size of the drive in sectors.
    pub fn sectors(&self) -> u64 {
        self.geometry.sectors()
    }

    /// Duration of a revolution.
    pub fn revolution(&self) -> Time {
        Time(self.mechanics.period_ns())
    }

    /// Makes all decisions of the drive up to the time `now_ns`.
    fn decide_until(&mut self, now_ns: u64) {
        while let Some(time_ns) = self.next_decision_ns().filter(|time_ns| *time_ns <= now_ns) {
            self.start_next_task(time_ns);
        }
    }

    /// Returns the time, in ns, at which the arm gets its next task: a command, a write from the
    /// cache, or a flush. `None` if nothing waits.
    fn next_decision_ns(&self) -> Option<u64> {
        let ready_ns = match self.flushes.front() {
            // A waiting flush blocks all commands until the cached writes are on the medium. The
            // write-back does not wait for the flush's overhead; the completion does.
            Some(flush) => self.write_cache.earliest_ready_ns().unwrap_or(flush.overhead_end_ns),
            None => match (self.queue.earliest_ready_ns(), self.write_cache.earliest_ready_ns()) {
                (Some(command_ns), Some(write_back_ns)) => command_ns.min(write_back_ns),
                (command_ns, write_back_ns) => command_ns.or(write_back_ns)?,
            },
        };
        Some(ready_ns.max(self.arm_free_at_ns))
    }

    /// Schedules the completion of request `id` at `end_ns`.
    fn schedule_completion(&mut self, id: RequestId, end_ns: u64) {
        self.finished.push(Reverse((end_ns, self.finished_count, id.0)));
        self.finished_count += 1;
    }

    /// Overhead of a command in ns. It depends on the direction of the previous command.
    fn overhead_ns(&self, times: CommandTimes) -> u64 {
        if queue::is_read(self.last_op) { times.after_read_ns } else { times.after_write_ns }
    }
}

impl Device for Hdd {
    /// Limits of the drive: size, largest request and queue depth.
    fn caps(&self) -> DeviceCaps {
        DeviceCaps {
            sectors: self.geometry.sectors(),
            request_sectors_max: self.drive.queue.request_sectors_max,
            depth_max: self.drive.queue.depth,
            is_rotational: true,
            alignment_sectors: 1,
        }
    }

    /// Accepts a request at time `now`: puts it into the queue, or answers it from the cache. The
    /// overhead of a request depends on the direction of the one accepted before it.
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let now_ns = now.0;
        self.decide_until(now_ns);
        match request.op {
            Op::Read => self.accept_read(now_ns, request),
            Op::Write => self.accept_write(now_ns, request),
        }
        self.last_op = request.op;
    }

    /// Queues a flush, which waits for the overhead and then for the write-back of the cache.
    /// Descriptions have no overhead for a flush, so it takes the overhead of a cached write. A
    /// flush moves no data, so the next overhead depends on the command before it (`last_op`).
    fn flush(&mut self, now: Time, id: RequestId) {
        self.decide_until(now.0);
        let overhead_end_ns = now.0 + self.overhead_ns(self.drive.controller.write_hit);
        self.flushes.push_back(WaitingFlush { overhead_end_ns, id });
    }

    /// Returns the time of the next completion or decision, `None` without either. The write-back
    /// of an idle drive is no event, because no request waits for it. The next call computes it
    /// late, at its own virtual time.
    fn next_event(&self) -> Option<Time> {
        let completion_ns = self.finished.peek().map(|Reverse((time_ns, ..))| *time_ns);
        let has_waiting_request = !self.queue.is_empty() || !self.flushes.is_empty();
        let decision_ns = if has_waiting_request { self.next_decision_ns() } else { None };
        match (completion_ns, decision_ns) {
            (Some(completion_ns), Some(decision_ns)) => Some(Time(completion_ns.min(decision_ns))),
            (completion_ns, decision_ns) => completion_ns.or(decision_ns).map(Time),
        }
    }

    /// Makes the drive's decisions up to `now`. Returns the next completion, if any.
    fn poll(&mut self, now: Time) -> Option<Completion> {
        self.decide_until(now.0);
        let Reverse((end_ns, ..)) = *self.finished.peek()?;
        if end_ns > now.0 {
            return None;
        }
        let Reverse((end_ns, _, id)) = self.finished.pop()?;
        Some(Completion::at(Time(end_ns), RequestId(id), Outcome::Done))
    }
}

/// Returns a uniformly distributed angle of the platter, in 2⁻⁶⁴ revolution, derived from a seed.
fn random_phase(mut seed: u64) -> u64 {
    splitmix::next(&mut seed)
}
