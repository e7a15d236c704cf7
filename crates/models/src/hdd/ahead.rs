//! Read-ahead: after a read the head continues and fills the read's cache segment.
//!
//! The progress is computed on demand. [`ReadAheadRun::advance`] moves it to a given time, track by
//! track, and updates the end of the cached data.

use readpath_core::request::Op;

use super::geometry::Geometry;
use super::mechanics::{HeadPosition, Mechanics, TransferTimes};

/// Read-ahead in progress, from the end of a read up to `end_sector`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAheadRun {
    /// Cache segment that receives the data.
    pub segment_index: usize,
    /// First sector that is not yet read.
    pub next_sector: u64,
    /// End of the read-ahead, exclusive.
    pub end_sector: u64,
    /// Time in ns from which the head is free to go to `next_sector`.
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
    /// End of the operation in progress: a seek, a wait for a sector, or a sector.
    pub step_end_ns: u64,
    /// Track of the arm when it leaves, for each of the times above.
    pub arm_track: HeadPosition,
}

impl ReadAheadRun {
    /// Creates a read-ahead into a cache segment, from `next_sector` up to `end_sector`, exclusive.
    /// The head is free for it from `free_since_ns` on, with the arm at `arm_track`.
    pub(super) fn new(
        segment_index: usize,
        next_sector: u64,
        end_sector: u64,
        free_since_ns: u64,
        arm_track: HeadPosition,
    ) -> Self {
        ReadAheadRun { segment_index, next_sector, end_sector, free_since_ns, arm_track }
    }

    /// Returns true if all sectors have been read.
    pub(super) fn is_done(&self) -> bool {
        self.next_sector >= self.end_sector
    }

    /// Time in ns from which the head is free to go to the next sector.
    pub(super) fn free_since_ns(&self) -> u64 {
        self.free_since_ns
    }

    /// Track of the head at the time from which it is free.
    pub(super) fn arm_track(&self) -> HeadPosition {
        self.arm_track
    }

    /// Advances to the time `now_ns`. Afterwards `next_sector` is the first sector that is not
    /// completely read. Returns the times at which the arm can leave. Once all is read it can leave
    /// at once, but never before `free_since_ns`.
    pub(super) fn advance(
        &mut self,
        now_ns: u64,
        geometry: &Geometry,
        mechanics: &Mechanics,
    ) -> ReadAheadState {
        while self.next_sector < self.end_sector && self.free_since_ns < now_ns {
            let position = geometry.locate(self.next_sector);
            let sectors_left = self.end_sector - self.next_sector;
            let sectors = sectors_left.min(u64::from(position.run_sectors)) as u32;
            let move_ns = mechanics.move_ns(self.arm_track, &position, Op::Read);
            let times = TransferTimes {
                arm_free_ns: self.free_since_ns,
                settled_ns: self.free_since_ns + move_ns,
                // Only a write waits for its data.
                earliest_ns: 0,
            };
            // The pass of the head over the next sectors of one track, after the move to it.
            let pass = mechanics.transfer_on_track(times, &position, sectors, Op::Read);
            let read_track = HeadPosition { cylinder: position.cylinder, head: position.head };
            // All of these sectors are read.
            if pass.end_ns <= now_ns {
                (self.next_sector, self.free_since_ns, self.arm_track) =
                    (self.next_sector + u64::from(sectors), pass.end_ns, read_track);
                continue;
            }
            if pass.begin_ns >= now_ns {
                // A seek in progress is completed. A track that is reached can be left at any time.
                // No sector has been read, so the run keeps its state.
                let free_ns = now_ns.max(pass.settled_ns);
                let step_end_ns = if now_ns < pass.settled_ns { free_ns } else { pass.begin_ns };
                return ReadAheadState {
                    free_ns,
                    stopped_ns: free_ns,
                    step_end_ns,
                    arm_track: read_track,
                };
            }
            // A sector is under the head: it can be completed or given up. The run continues later
            // from the end of the last complete sector. Angles wrap at one revolution, and these
            // sectors lie on one track.
            let passed_ns = now_ns - pass.begin_ns;
            let sectors_read = mechanics.whole_sectors_in(passed_ns, position.sector_width);
            let sector_end_ns = pass.begin_ns
                + mechanics.rotation_ns((sectors_read + 1).wrapping_mul(position.sector_width));
            (self.next_sector, self.arm_track) = (self.next_sector + sectors_read, read_track);
            self.free_since_ns = pass.begin_ns
                + mechanics.rotation_ns(sectors_read.wrapping_mul(position.sector_width));
            return ReadAheadState {
                free_ns: sector_end_ns,
                stopped_ns: now_ns,
                step_end_ns: sector_end_ns,
                arm_track: read_track,
            };
        }
        // All sectors are read, or the head is not free for the read-ahead yet.
        let free_ns = now_ns.max(self.free_since_ns);
        ReadAheadState {
            free_ns,
            stopped_ns: free_ns,
            step_end_ns: free_ns,
            arm_track: self.arm_track,
        }
    }
}
