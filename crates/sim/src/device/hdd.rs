//! A hard disk: one arm, turning platters, a cache with read-ahead, a queue.
//!
//! A command first costs the drive's processor its overhead; that of a queued
//! command is hidden behind the one that the arm is serving. Then the arm goes to
//! the track, waits for the sector by the angle that the platter has by then, and
//! the sectors pass under the head while the bus already moves what has come. After
//! a read the head reads on into the cache until somebody needs the arm, so that
//! reads that follow on from each other lose no revolution. Writes can be reported
//! when they are in the cache. Among waiting commands the drive chooses for itself.
//!
//! The drive is worked out lazily: what it does is decided at the times at which it
//! would decide, but computed when somebody looks. Memory does not grow with time.

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
mod given;
pub mod layout;
mod load;
mod mechanics;
mod queue;
mod reading;
pub mod seek;
mod service;
mod write_cache;
mod writing;

/// The largest request, in sectors: 1280 KiB, Linux's default `max_sectors_kb`.
const REQUEST_SECTORS_MAX: u32 = 2560;

/// A hard disk in virtual time.
#[derive(Clone, Debug)]
pub struct Hdd {
    drive: DriveDescription,
    geometry: Geometry,
    mechanics: Mechanics,
    segments: SegmentCache,
    queue: CommandQueue,
    written: WriteCache,
    /// Of writes that are reported and on their way to the medium: until when, how many sectors.
    landing: VecDeque<(u64, u32)>,
    /// When each flush was understood, and its name.
    flushes: VecDeque<(u64, RequestId)>,
    arm_track: HeadPosition,
    /// When the arm is free for the next command; reading ahead does not count.
    free_at: u64,
    ahead: Option<ReadAheadRun>,
    bus_free_at: u64,
    last_op: Op,
    /// After the last sector written, while nothing else has moved the arm.
    written_end: u64,
    /// The last request that used the medium.
    last_medium_request: Option<RequestId>,
    finished: BinaryHeap<Reverse<(u64, u64, u32)>>,
    finished_count: u64,
}

impl Hdd {
    /// Builds the drive, its platter at a phase drawn from `seed`.
    pub fn new(drive: &DriveDescription, seed: u64) -> Hdd {
        let cache = &drive.cache;
        let geometry = Geometry::new(&drive.layout);
        Hdd {
            mechanics: Mechanics::new(
                &drive.mechanics,
                drive.layout.cylinders_in_all(),
                scrambled(seed),
            ),
            segments: SegmentCache::new(
                cache.segments.max(1),
                cache.segment_sectors,
                cache.has_write_segment,
            ),
            queue: CommandQueue::new(drive.queue),
            written: WriteCache::new(cache.writes),
            landing: VecDeque::new(),
            flushes: VecDeque::new(),
            arm_track: HeadPosition::default(),
            free_at: 0,
            ahead: None,
            bus_free_at: 0,
            last_op: Op::Read,
            written_end: u64::MAX,
            last_medium_request: None,
            finished: BinaryHeap::with_capacity(drive.queue.depth as usize),
            finished_count: 0,
            drive: drive.clone(),
            geometry,
        }
    }

    /// The description that it was built from.
    pub fn drive(&self) -> &DriveDescription {
        &self.drive
    }

    /// Tells the drive that its platter was seen `late` ns behind where it should be
    /// (ahead, when negative).
    pub(crate) fn shift_phase(&mut self, late_ns: i64) {
        self.mechanics.shift_phase(late_ns);
    }

    /// Whether the last request that was served used the medium.
    pub(crate) fn used_medium(&self, id: RequestId) -> bool {
        self.last_medium_request == Some(id)
    }

    /// Where the platter is when the last of `sectors` sectors from `start` has passed
    /// under the head, in revolutions from the index mark.
    pub(crate) fn end_turns(&self, start: u64, sectors: u32) -> f64 {
        let place = self.geometry.locate(start + u64::from(sectors) - 1);
        place.angle.wrapping_add(place.sector_width) as f64 / 2f64.powi(64)
    }

    /// The cylinder on which `sector` lies.
    pub(crate) fn cylinder_of(&self, sector: u64) -> u32 {
        self.geometry.locate(sector).cylinder
    }

    /// Its size in sectors.
    pub fn sectors(&self) -> u64 {
        self.geometry.sectors()
    }

    /// Length of a revolution.
    pub fn revolution(&self) -> Time {
        Time(self.mechanics.period_ns())
    }

    /// Lets the drive decide all that it decides up to `now`.
    fn catch_up(&mut self, now: u64) {
        while let Some(at) = self.next_decision().filter(|at| *at <= now) {
            self.decide(at);
        }
    }

    /// When the arm is next given something to do.
    fn next_decision(&self) -> Option<u64> {
        let flush = self.flushes.front().map(|(understood_at, _)| *understood_at);
        let ready_at = match flush {
            // Nothing else is done meanwhile.
            Some(at) => self.written.ready_at().unwrap_or(at),
            None => [self.queue.ready_at(), self.written.ready_at()].into_iter().flatten().min()?,
        };
        Some(ready_at.max(self.free_at))
    }

    fn finish(&mut self, id: RequestId, at: u64) {
        self.finished.push(Reverse((at, self.finished_count, id.0)));
        self.finished_count += 1;
    }

    fn overhead_ns(&self, times: CommandTimes) -> u64 {
        if queue::is_read(self.last_op) { times.after_read_ns } else { times.after_write_ns }
    }
}

impl Device for Hdd {
    fn caps(&self) -> DeviceCaps {
        DeviceCaps {
            sectors: self.geometry.sectors(),
            request_sectors_max: REQUEST_SECTORS_MAX,
            depth_max: self.drive.queue.depth,
            is_rotational: true,
            alignment_sectors: 1,
        }
    }

    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let now = now.0;
        self.catch_up(now);
        match request.op {
            Op::Read => self.accept_read(now, request),
            Op::Write => self.accept_write(now, request),
        }
        self.last_op = request.op;
    }

    fn flush(&mut self, now: Time, id: RequestId) {
        self.catch_up(now.0);
        let understood_at = now.0 + self.overhead_ns(self.drive.controller.write_hit);
        self.flushes.push_back((understood_at, id));
    }

    fn next_event(&self) -> Option<Time> {
        let finish = self.finished.peek().map(|Reverse((at, ..))| *at);
        // What an idle drive writes back nobody waits for.
        let is_demand = !self.queue.is_empty() || !self.flushes.is_empty();
        let decision = if is_demand { self.next_decision() } else { None };
        match (finish, decision) {
            (Some(finish), Some(decision)) => Some(Time(finish.min(decision))),
            (finish, decision) => finish.or(decision).map(Time),
        }
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        self.catch_up(now.0);
        let Reverse((at, ..)) = *self.finished.peek()?;
        if at > now.0 {
            return None;
        }
        let Reverse((at, _, id)) = self.finished.pop()?;
        Some(Completion::at(Time(at), RequestId(id), Outcome::Done))
    }
}

/// A well spread 64-bit number from a seed.
fn scrambled(mut seed: u64) -> u64 {
    splitmix::next(&mut seed)
}
