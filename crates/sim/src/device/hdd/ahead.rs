//! Reading ahead: the head goes on after a read and fills the read's segment.
//!
//! It is worked out only when somebody looks: [`ReadAheadRun::advance`] lets it
//! come to a time, track by track, and says up to where the segment is filled.

use readpath_core::request::Op;

use super::geometry::Geometry;
use super::mechanics::{HeadPosition, Mechanics};

/// The head reading on, sector after sector, from the end of a read up to a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAheadRun {
    /// The segment that it fills.
    pub segment: usize,
    /// The next sector that it will have read.
    pub next: u64,
    /// Where it stops, exclusive.
    pub limit: u64,
    /// Since when the head is free to go for `next`.
    since: u64,
    /// The track on which the head then was.
    arm_track: HeadPosition,
}

/// How a run stands at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadAheadState {
    /// When the arm could be taken from it at the earliest, at the end of a sector.
    pub free_at: u64,
    /// The same, when it may be in the middle of one.
    pub stopped_at: u64,
    /// When what the head is about ends: a move, a wait for a sector, or a sector.
    pub step_ends_at: u64,
    /// Where the arm then is.
    pub arm_track: HeadPosition,
}

impl ReadAheadRun {
    pub(super) fn new(
        segment: usize,
        next: u64,
        limit: u64,
        since: u64,
        arm_track: HeadPosition,
    ) -> Self {
        ReadAheadRun { segment, next, limit, since, arm_track }
    }

    /// Whether there is nothing left to read.
    pub(super) fn is_done(&self) -> bool {
        self.next >= self.limit
    }

    /// Since when the head is free to go for the next sector.
    pub(super) fn since(&self) -> u64 {
        self.since
    }

    /// The track on which the head then was.
    pub(super) fn arm_track(&self) -> HeadPosition {
        self.arm_track
    }

    /// Comes to `now`; afterwards `next` is the first sector not wholly read by then.
    pub(super) fn advance(
        &mut self,
        now: u64,
        geometry: &Geometry,
        mechanics: &Mechanics,
    ) -> ReadAheadState {
        while self.next < self.limit && self.since < now {
            let place = geometry.locate(self.next);
            let left = self.limit - self.next;
            let sectors = left.min(u64::from(place.run_sectors)) as u32;
            let settled_at = self.since + mechanics.move_ns(self.arm_track, &place, Op::Read);
            let times = (self.since, settled_at, 0);
            let pass = mechanics.pass(times, &place, sectors, Op::Read);
            let on_track = HeadPosition { cylinder: place.cylinder, head: place.head };
            if pass.end <= now {
                (self.next, self.since, self.arm_track) =
                    (self.next + u64::from(sectors), pass.end, on_track);
                continue;
            }
            if pass.begin >= now {
                // A move once begun is finished; a track once reached can be left at any time.
                let free_at = now.max(pass.settled_at);
                let step_ends_at = if now < pass.settled_at { free_at } else { pass.begin };
                return ReadAheadState {
                    free_at,
                    stopped_at: free_at,
                    step_ends_at,
                    arm_track: on_track,
                };
            }
            let read = mechanics.sectors_in(now - pass.begin, place.sector_width);
            let end_of_sector =
                pass.begin + mechanics.rotation_ns((read + 1).wrapping_mul(place.sector_width));
            (self.next, self.arm_track) = (self.next + read, on_track);
            self.since = pass.begin + mechanics.rotation_ns(read.wrapping_mul(place.sector_width));
            return ReadAheadState {
                free_at: end_of_sector,
                stopped_at: now,
                step_ends_at: end_of_sector,
                arm_track: on_track,
            };
        }
        let free_at = now.max(self.since);
        ReadAheadState {
            free_at,
            stopped_at: free_at,
            step_ends_at: free_at,
            arm_track: self.arm_track,
        }
    }
}
