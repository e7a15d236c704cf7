//! The moving parts: an arm that seeks, and rotating platters.
//!
//! The platter's angle is a function of time alone: `phase + time ÷ period`. It is *tracked from
//! one request to the next*: the rotational delay of a request depends on the end of the previous
//! one. Times are in ns, angles in units of 2⁻⁶⁴ revolution. Only the seek curve uses floating
//! point.

use readpath_core::request::Op;

use super::drive::{AccessTime, MechanicsSpec};
use super::geometry::{Angle, SectorPosition};
use super::seek::SeekTimes;

/// Tolerance in ns, chosen, for a sector mark that has just passed the head.
///
/// Ends of transfers are rounded to whole ns. Without the tolerance, the next sector of a stream
/// could seem to have passed, which would cost a revolution.
const MARK_TOLERANCE_NS: u64 = 500;

/// Track under the heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeadPosition {
    /// Cylinder number.
    pub cylinder: u32,
    /// Head in use.
    pub head: u32,
}

/// Earliest times of the steps of a transfer, in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferTimes {
    /// Time from which the arm is free.
    pub arm_free_ns: u64,
    /// Time at which the arm has settled over the track.
    pub settled_ns: u64,
    /// Time from which the medium may be accessed. 0 without a limit: only the data of a write
    /// that is still arriving from the host sets one.
    pub earliest_ns: u64,
}

/// Transfer of sectors of one track under the head. Times are in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SectorPass {
    /// Time at which the arm has settled over the track.
    pub settled_ns: u64,
    /// Start of the first sector.
    pub begin_ns: u64,
    /// End of the last sector.
    pub end_ns: u64,
}

/// Timing of arm and spindle. Only `shift_phase` changes it.
#[derive(Clone, Debug)]
pub(super) struct Mechanics {
    /// Seek times of reads, and of writes without a curve of their own.
    seek: SeekTimes,
    /// Seek times of writes, if the drive describes them separately.
    write_seek: Option<SeekTimes>,
    /// Number of cylinders.
    cylinders: u32,
    /// Head switch time in ns.
    head_switch_ns: u64,
    /// Extra settle time of a write in ns, perhaps negative. With `write_seek`, only after a
    /// head switch.
    write_settle_ns: i64,
    /// True if a head that returns to its own track settles again.
    settles_on_return: bool,
    /// Model of the time to reach a sector.
    access: AccessTime,
    /// True if a read can start in the middle of its sectors.
    zero_latency_read: bool,
    /// True if a write can start in the middle of its sectors.
    zero_latency_write: bool,
    /// The platter's angle at time 0.
    phase: Angle,
    /// Rotation per ns, as an angle.
    rotation_per_ns: u64,
    /// Duration of a revolution in 2⁻¹⁶ ns.
    period_q16: u64,
    /// The tolerance [`MARK_TOLERANCE_NS`] as an angle.
    mark_tolerance: Angle,
}

impl Mechanics {
    /// Creates the timing of a drive with `cylinders` cylinders. Its platter is at the angle
    /// `phase` at time 0.
    pub(super) fn new(spec: &MechanicsSpec, cylinders: u32, phase: Angle) -> Mechanics {
        let mut mechanics = Mechanics {
            seek: SeekTimes::new(spec.seek.clone(), cylinders),
            write_seek: spec.write_seek.clone().map(|curve| SeekTimes::new(curve, cylinders)),
            cylinders,
            head_switch_ns: spec.head_switch_ns,
            write_settle_ns: spec.write_settle_ns,
            settles_on_return: spec.settles_on_return,
            access: spec.access,
            zero_latency_read: spec.zero_latency_read,
            zero_latency_write: spec.zero_latency_write,
            phase,
            rotation_per_ns: 0,
            period_q16: 0,
            mark_tolerance: 0,
        };
        let period_ns = 60e9 / spec.rpm;
        mechanics.rotation_per_ns = (2f64.powi(64) / period_ns) as u64;
        mechanics.period_q16 = (period_ns * 65_536.0) as u64;
        mechanics.mark_tolerance = mechanics.rotation_per_ns * MARK_TOLERANCE_NS;
        mechanics
    }

    /// Rotates the platter back, so every sector arrives later by `late_ns` (sooner if negative). A
    /// negative number wraps, which is a rotation the other way.
    pub(super) fn shift_phase(&mut self, late_ns: i64) {
        let angle = self.rotation_per_ns.wrapping_mul(late_ns as u64);
        self.phase = self.phase.wrapping_sub(angle);
    }

    /// Duration of a revolution in ns.
    pub(super) fn period_ns(&self) -> u64 {
        self.period_q16 >> 16
    }

    /// Returns the platter's angle at `time_ns`.
    #[inline]
    pub(super) fn angle_at(&self, time_ns: u64) -> Angle {
        self.phase.wrapping_add(self.rotation_per_ns.wrapping_mul(time_ns))
    }

    /// Returns the time in ns for a rotation by `angle`, rounded down.
    #[inline]
    pub(super) fn rotation_ns(&self, angle: Angle) -> u64 {
        // 64 bits for the fraction of a revolution, and 16 for the fraction of a ns.
        ((u128::from(angle) * u128::from(self.period_q16)) >> 80) as u64
    }

    /// Returns the time in ns of a seek over `distance` cylinders until `op` can begin. Unless
    /// `is_same_head`, the heads switch meanwhile, and the longer of seek and switch counts. Writes
    /// include their settle time.
    fn seek_and_settle_ns(&self, distance: u32, is_same_head: bool, op: Op) -> u64 {
        let head_switch_ns = if is_same_head { 0 } else { self.head_switch_ns };
        let seek = match (op, &self.write_seek) {
            (Op::Write, Some(curve)) => curve,
            _ => &self.seek,
        };
        let seek_ns = seek.seek_ns(distance);
        match (op, &self.write_seek) {
            (Op::Read, _) => seek_ns.max(head_switch_ns),
            (Op::Write, None) => {
                seek_ns.max(head_switch_ns).saturating_add_signed(self.write_settle_ns)
            }
            // The write curve includes the settle time of a seek, so only a switch adds it.
            (Op::Write, Some(_)) if is_same_head => seek_ns,
            (Op::Write, Some(_)) => {
                seek_ns.max(head_switch_ns.saturating_add_signed(self.write_settle_ns))
            }
        }
    }

    /// Returns the number of whole sectors of `width` that pass in `ns`. The product saturates at
    /// one revolution, the longest pass over a track.
    pub(super) fn whole_sectors_in(&self, ns: u64, width: Angle) -> u64 {
        self.rotation_per_ns.saturating_mul(ns) / width
    }

    /// Returns the time in ns of the rotation from the angle `from` to the angle `to`. It is 0 if
    /// `to` has just passed, within `MARK_TOLERANCE_NS`.
    #[inline]
    fn rotation_wait_ns(&self, from: Angle, to: Angle) -> u64 {
        let angle = to.wrapping_sub(from);
        // An angle just below a whole revolution means that `to` has just passed.
        if angle.wrapping_add(self.mark_tolerance) < self.mark_tolerance {
            0
        } else {
            self.rotation_ns(angle)
        }
    }

    /// Returns the seek time in ns of a new access at `target`.
    ///
    /// With `settles_on_return`, every access that does not continue the previous one is a seek, at
    /// least as long as one to the next cylinder. Even on the same track the head must settle
    /// again. Evidence: DiskSim's four SCSI drives of 1997 to 2000, whose seek curves were measured
    /// distance by distance. Re-reading a near-by sector takes longer than a revolution and the
    /// overheads by a one-cylinder seek. Without `settles_on_return`, as on DiskSim's drive of
    /// 1992, a seek over no distance takes no time. A drive with a single cylinder has only head
    /// switches.
    pub(super) fn access_seek_ns(
        &self,
        arm_track: HeadPosition,
        target: &SectorPosition,
        op: Op,
    ) -> u64 {
        let distance = arm_track.cylinder.abs_diff(target.cylinder);
        if !self.settles_on_return {
            return self.move_ns(arm_track, target, op);
        }
        let seek_cylinders = distance.max(1).min(self.cylinders - 1);
        self.seek_and_settle_ns(seek_cylinders, arm_track.head == target.head, op)
    }

    /// Returns the seek time in ns within an access, from `arm_track` to the track of `target`. On
    /// the same track it is 0: within an access the head stays settled.
    pub(super) fn move_ns(&self, arm_track: HeadPosition, target: &SectorPosition, op: Op) -> u64 {
        if arm_track.cylinder == target.cylinder && arm_track.head == target.head {
            return 0;
        }
        self.seek_and_settle_ns(
            arm_track.cylinder.abs_diff(target.cylinder),
            arm_track.head == target.head,
            op,
        )
    }

    /// Returns the time in ns from `start_ns` until the start of `target` is under the head. A
    /// constant access time includes the seek.
    pub(super) fn positioning_ns(
        &self,
        start_ns: u64,
        arm_track: HeadPosition,
        target: &SectorPosition,
        op: Op,
    ) -> u64 {
        let move_ns = self.access_seek_ns(arm_track, target, op);
        match self.access {
            AccessTime::Tracked => {
                move_ns + self.rotation_wait_ns(self.angle_at(start_ns + move_ns), target.angle)
            }
            AccessTime::HalfTurn => move_ns + self.period_ns() / 2,
            AccessTime::Constant { ns } => ns,
        }
    }

    /// Returns [`positioning_ns`](Mechanics::positioning_ns) if it is less than `limit_ns`, else
    /// `None`. `start_angle` is the platter's angle at `start_ns`.
    ///
    /// The platter rotates while the arm moves. However short the seek, the first sector arrives no
    /// sooner than for a head that is already over its track. This bound rules out most commands of
    /// a deep queue without computing their seek. Without a tracked angle there is no such bound,
    /// and the full time is computed.
    #[inline]
    pub(super) fn positioning_ns_below(
        &self,
        (start_ns, start_angle): (u64, Angle),
        arm_track: HeadPosition,
        (target, op): (&SectorPosition, Op),
        limit_ns: u64,
    ) -> Option<u64> {
        let is_tracked = matches!(self.access, AccessTime::Tracked);
        if is_tracked && self.rotation_wait_ns(start_angle, target.angle) >= limit_ns {
            return None;
        }
        Some(self.positioning_ns(start_ns, arm_track, target, op)).filter(|cost| *cost < limit_ns)
    }

    /// Returns the times of a transfer of `sectors` consecutive sectors of one track. A constant
    /// access time counts from `arm_free_ns`: it replaces the seek and ignores `earliest_ns`.
    pub(super) fn transfer_on_track(
        &self,
        times: TransferTimes,
        first_sector: &SectorPosition,
        sectors: u32,
        op: Op,
    ) -> SectorPass {
        let TransferTimes { arm_free_ns, settled_ns, earliest_ns } = times;
        let width = u64::from(sectors).wrapping_mul(first_sector.sector_width);
        let ready_ns = settled_ns.max(earliest_ns);
        let begin_ns = match self.access {
            AccessTime::HalfTurn => ready_ns + self.period_ns() / 2,
            AccessTime::Constant { ns } => arm_free_ns + ns,
            AccessTime::Tracked => {
                let angle = self.angle_at(ready_ns);
                let past_first = angle.wrapping_sub(first_sector.angle);
                let settles_inside = past_first > first_sector.sector_width && past_first < width;
                if settles_inside && self.is_zero_latency(op) {
                    // The head settled inside the requested sectors, after the first one. One full
                    // revolution transfers all of them, the first one near its end. A head that
                    // settles inside the first sector waits for its return.
                    let begin_ns = ready_ns + self.rotation_wait_ns(angle, first_sector.angle);
                    let revolution = Angle::MAX;
                    let end_ns = ready_ns + self.rotation_ns(revolution);
                    return SectorPass { settled_ns, begin_ns, end_ns };
                }
                ready_ns + self.rotation_wait_ns(angle, first_sector.angle)
            }
        };
        SectorPass { settled_ns, begin_ns, end_ns: begin_ns + self.rotation_ns(width) }
    }

    /// Returns true if `op` can start in the middle of its sectors.
    fn is_zero_latency(&self, op: Op) -> bool {
        match op {
            Op::Read => self.zero_latency_read,
            Op::Write => self.zero_latency_write,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::seek::SeekCurve;
    use super::*;

    const TRACK_SECTORS: u64 = 100;

    /// 6,000 rpm: a revolution takes 10 ms, a sector 0.1 ms.
    fn mechanics() -> Mechanics {
        let spec = MechanicsSpec {
            rpm: 6000.0,
            seek: SeekCurve::Table(vec![(1, 1.0), (101, 5.0)]),
            head_switch_ns: 500_000,
            write_seek: None,
            write_settle_ns: 300_000,
            settles_on_return: true,
            access: AccessTime::Tracked,
            zero_latency_read: true,
            zero_latency_write: false,
        };
        Mechanics::new(&spec, 200, 0)
    }

    /// Returns the position of the sector with index `index_on_track` on its track.
    fn position(cylinder: u32, head: u32, index_on_track: u64) -> SectorPosition {
        let sector_width = u64::MAX / TRACK_SECTORS;
        SectorPosition {
            cylinder,
            head,
            angle: index_on_track * sector_width,
            sector_width,
            ..SectorPosition::default()
        }
    }

    /// Returns true if two times differ by less than 100 ns, the rounding of the angles.
    fn is_near(left: u64, right: u64) -> bool {
        left.abs_diff(right) < 100
    }

    /// The table gives 1 ms for one cylinder and 4 ms more per 100 cylinders: 2 ms for 26. A head
    /// switch takes 0.5 ms, and 0.3 ms more for a write.
    #[test]
    fn moves_cost_the_curve_the_switch_and_the_settling() {
        let (mechanics, arm_track) = (mechanics(), HeadPosition::default());
        assert_eq!(mechanics.move_ns(arm_track, &position(0, 0, 0), Op::Write), 0);
        assert_eq!(mechanics.move_ns(arm_track, &position(0, 1, 0), Op::Read), 500_000);
        assert_eq!(mechanics.move_ns(arm_track, &position(0, 1, 0), Op::Write), 800_000);
        assert_eq!(mechanics.move_ns(arm_track, &position(26, 1, 0), Op::Read), 2_000_000);
        // A new access on the same track costs the shortest seek.
        assert_eq!(mechanics.access_seek_ns(arm_track, &position(0, 0, 0), Op::Read), 1_000_000);
    }

    #[test]
    fn rotational_wait_follows_the_tracked_angle() {
        let (mechanics, arm_track) = (mechanics(), HeadPosition::default());
        // The head settles after 1 ms, when sector 10 starts. Sector 30 follows 2 ms later.
        assert!(is_near(
            mechanics.positioning_ns(0, arm_track, &position(0, 0, 30), Op::Read),
            3_000_000
        ));
        // Sector 5 has passed. It returns after 10.5 ms.
        assert!(is_near(
            mechanics.positioning_ns(0, arm_track, &position(0, 0, 5), Op::Read),
            10_500_000
        ));
        // The result is the same 100 revolutions later.
        let start_ns = 1_000_000_000;
        assert!(is_near(
            mechanics.positioning_ns(start_ns, arm_track, &position(0, 0, 30), Op::Read),
            3_000_000
        ));
    }

    /// The head settles at 2 ms over sector 20, and sectors 10 to 39 are requested. A read takes a
    /// revolution of 10 ms. A write waits until sector 10 returns at 11 ms, and takes 3 ms.
    #[test]
    fn zero_latency_read_from_inside_its_range_takes_one_revolution() {
        let mechanics = mechanics();
        let times = TransferTimes { arm_free_ns: 0, settled_ns: 2_000_000, earliest_ns: 0 };
        let pass = mechanics.transfer_on_track(times, &position(0, 0, 10), 30, Op::Read);
        assert!(is_near(pass.end_ns, 12_000_000));
        let write = mechanics.transfer_on_track(times, &position(0, 0, 10), 30, Op::Write);
        assert!(is_near(write.begin_ns, 11_000_000) && is_near(write.end_ns, 14_000_000));
    }

    /// Reads of random sectors on the arm's own track at random times. Each access is a seek of 1
    /// ms, and a wait of less than one revolution, 10 ms.
    #[test]
    fn the_wait_of_independent_requests_is_uniform() {
        let (mechanics, arm_track) = (mechanics(), HeadPosition::default());
        // Number of waits in each tenth of a revolution.
        let mut tenths = [0u32; 10];
        let mut state = 7u64;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (start_ns, sector) = (state >> 24, (state >> 33) % TRACK_SECTORS);
            let position = position(0, 0, sector);
            let seek_ns = 1_000_000;
            let access_ns = mechanics.positioning_ns(start_ns, arm_track, &position, Op::Read);
            let wait_ns = access_ns - seek_ns;
            tenths[(wait_ns / 1_000_000).min(9) as usize] += 1;
        }
        // 10,000 are expected in each, with a standard deviation of 95.
        assert!(tenths.iter().all(|count| count.abs_diff(10_000) < 400), "{tenths:?}");
    }
}
