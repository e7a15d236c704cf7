//! Read-ahead: after a read the head continues and fills the read's cache segment.
//!
//! The progress is computed on demand. [`ReadAheadRun::advance`] moves it to a given time, track by
//! track, and updates the end of the cached data.

use readpath_core::request::Op;

use super::geometry::Geometry;
use super::mechanics::{HeadPosition, Mechanics};

/// Read-ahead in progress, from the end of a read up to a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAheadRun {
    /// Segment that receives the data.
    pub segment: usize,
    /// First sector that is not yet read.
    pub next: u64,
    /// End of the read-ahead, exclusive.
    pub limit: u64,
    /// Time in ns from which the head is free to go to `next`.
    free_since_ns: u64,
    /// Track of the head at that time.
    arm_track: HeadPosition,
}

/// State of the read-ahead at a given time. All times are in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadAheadState {
    /// Earliest time at which the arm can leave, at the end of a sector.
    pub free_ns: u64,
    /// Earliest time at which the arm can leave if it may stop in the middle of a sector.
    pub stopped_ns: u64,
    /// End of the present operation: a seek, a wait for a sector, or a sector.
    pub step_end_ns: u64,
    /// Track of the arm at that time.
    pub arm_track: HeadPosition,
}

impl ReadAheadRun {
    /// Creates a read-ahead into cache segment `segment`, from sector `next` up to sector `limit`.
    /// The head is free for it from `free_since_ns` on, with the arm at `arm_track`.
    pub(super) fn new(
        segment: usize,
        next: u64,
        limit: u64,
        free_since_ns: u64,
        arm_track: HeadPosition,
    ) -> Self {
        ReadAheadRun { segment, next, limit, free_since_ns, arm_track }
    }

    /// Returns true if the limit is reached.
    pub(super) fn is_done(&self) -> bool {
        self.next >= self.limit
    }

    /// Time in ns from which the head is free to go to the next sector.
    pub(super) fn free_since_ns(&self) -> u64 {
        self.free_since_ns
    }

    /// Track of the head at the time from which it is free.
    pub(super) fn arm_track(&self) -> HeadPosition {
        self.arm_track
    }

    /// Advances to the time `now`, in ns. Afterwards `next` is the first sector that is not
    /// completely read. Returns the times at which the arm can leave.
    pub(super) fn advance(
        &mut self,
        now: u64,
        geometry: &Geometry,
        mechanics: &Mechanics,
    ) -> ReadAheadState {
        while self.next < self.limit && self.free_since_ns < now {
            let position = geometry.locate(self.next);
            let sectors_left = self.limit - self.next;
            let sectors = sectors_left.min(u64::from(position.run_sectors)) as u32;
            let move_ns = mechanics.move_ns(self.arm_track, &position, Op::Read);
            let settled_ns = self.free_since_ns + move_ns;
            let earliest_ns = 0;
            let times = (self.free_since_ns, settled_ns, earliest_ns);
            let pass = mechanics.transfer_on_track(times, &position, sectors, Op::Read);
            let on_track = HeadPosition { cylinder: position.cylinder, head: position.head };
            if pass.end_ns <= now {
                (self.next, self.free_since_ns, self.arm_track) =
                    (self.next + u64::from(sectors), pass.end_ns, on_track);
                continue;
            }
            if pass.begin_ns >= now {
                // A seek in progress is completed. A track that has been reached can be left at any
                // time.
                let free_ns = now.max(pass.settled_ns);
                let step_end_ns = if now < pass.settled_ns { free_ns } else { pass.begin_ns };
                return ReadAheadState {
                    free_ns,
                    stopped_ns: free_ns,
                    step_end_ns,
                    arm_track: on_track,
                };
            }
            // A sector is under the head: it can be completed or given up.
            let sectors_read = mechanics.sectors_in(now - pass.begin_ns, position.sector_width);
            let sector_end_ns = pass.begin_ns
                + mechanics.rotation_ns((sectors_read + 1).wrapping_mul(position.sector_width));
            (self.next, self.arm_track) = (self.next + sectors_read, on_track);
            self.free_since_ns = pass.begin_ns
                + mechanics.rotation_ns(sectors_read.wrapping_mul(position.sector_width));
            return ReadAheadState {
                free_ns: sector_end_ns,
                stopped_ns: now,
                step_end_ns: sector_end_ns,
                arm_track: on_track,
            };
        }
        let free_ns = now.max(self.free_since_ns);
        ReadAheadState {
            free_ns,
            stopped_ns: free_ns,
            step_end_ns: free_ns,
            arm_track: self.arm_track,
        }
    }
}
