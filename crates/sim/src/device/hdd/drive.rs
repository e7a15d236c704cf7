//! The description of a drive: everything that the model needs to know of it.
//!
//! A description comes from a TOML file, from DiskSim's parameter files, or is
//! built in (itself a TOML file). It is checked once, where it is read; past
//! that no check is needed. Times are in ns, addresses in sectors.

use super::layout::DriveLayout;
use super::seek::SeekCurve;

/// How the time to reach a sector is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AccessTime {
    /// The arm's move, and the wait for the sector by the tracked angle of the platter.
    #[default]
    Tracked,
    /// The arm's move and half a revolution.
    HalfTurn,
    /// Always the same.
    Constant {
        /// The time, ns.
        ns: u64,
    },
}

/// Arm and spindle.
#[derive(Clone, Debug, PartialEq)]
pub struct MechanicsSpec {
    /// Revolutions a minute.
    pub rpm: f64,
    /// The arm's moves, for reading.
    pub seek: SeekCurve,
    /// Time to switch to another head, ns.
    pub head_switch_ns: u64,
    /// The arm's moves for writing, where they are known of themselves.
    pub write_seek: Option<SeekCurve>,
    /// What a write waits longer after a head switch than a read, and, without a
    /// `write_seek`, after any move, ns; less when negative (some extracted
    /// descriptions have it so).
    pub write_settle_ns: i64,
    /// Whether a head that comes back to its own track must find it anew, which takes it as
    /// long as the shortest seek.
    pub settles_on_return: bool,
    /// How the time to reach a sector is found.
    pub access: AccessTime,
    /// Whether a read begins in the middle of its sectors when the head comes down there.
    pub zero_latency_read: bool,
    /// The same for writes.
    pub zero_latency_write: bool,
}

impl MechanicsSpec {
    /// How long the arm takes, on a drive of so many cylinders, from one track to the next
    /// in the order of the numbers, in ms, when it writes: to another head or over one
    /// cylinder, whichever is longer.
    pub fn track_switch_ms(&self, cylinders: u32) -> f64 {
        let settle_ms = self.write_settle_ns as f64 / 1e6;
        let seek_ms = match &self.write_seek {
            Some(curve) => curve.ms(1, cylinders),
            None => self.seek.ms(1, cylinders) + settle_ms,
        };
        seek_ms.max(self.head_switch_ns as f64 / 1e6 + settle_ms).max(0.0)
    }
}

/// Up to where the drive reads ahead into its cache after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReadAhead {
    /// Not at all.
    None,
    /// To the end of the track.
    Track,
    /// To the end of the cylinder.
    Cylinder,
    /// Until the segment is full.
    #[default]
    Segment,
    /// To the end of the track; of the next one, when the segment has come from the track
    /// before (DiskSim's level 4, after drives of DEC).
    NextTrack,
}

/// The drive's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Whether reads are kept at all.
    pub is_enabled: bool,
    /// Segments; each holds one span of sectors.
    pub segments: u32,
    /// Sectors in a segment.
    pub segment_sectors: u32,
    /// Whether writes have a segment of their own, so that they push no read data out.
    pub has_write_segment: bool,
    /// Up to where it reads ahead.
    pub read_ahead: ReadAhead,
    /// Sectors that it reads ahead at most.
    pub read_ahead_sectors_max: u32,
    /// Sectors that it reads ahead before it turns to another request.
    pub read_ahead_sectors_min: u32,
    /// Whether data read ahead may push out data of the last request.
    pub ahead_over_requested: bool,
    /// What is given up once a read is with the host.
    pub gives_up: ReleasePolicy,
    /// Whether a read found in the cache sets it reading ahead again.
    pub ahead_on_hit: bool,
    /// Whether sectors that come by before the first one wanted are kept.
    pub keeps_passing: bool,
    /// Whether a read that begins where the head is reading ahead, or will come to on its
    /// track, goes on with it.
    pub joins_read_ahead: bool,
    /// Whether written data can be read from the cache.
    pub reads_written: bool,
    /// Whether a read found in the cache is answered while another one uses the arm.
    pub hits_pass: bool,
    /// How much of a read must be cached that this part goes to the host before the arm turns
    /// to the rest; `None`: it goes with the rest.
    pub early_send_mark: Option<WaterMark>,
    /// Whether reading ahead is left in the middle of a sector.
    pub stops_in_sector: bool,
    /// Whether a command that needs the arm stops reading ahead when it arrives, and not only when
    /// the drive's processor is through with it (DiskSim's law).
    pub stops_on_arrival: bool,
    /// What of it may hold writes that are reported done and not yet on the medium.
    pub writes: WriteCacheSpec,
    /// Whether such writes go to the medium at once and before any other request is served.
    pub flushes_first: bool,
    /// With `flushes_first`: which writes are reported while the one before is on its way
    /// to the medium.
    pub appends: AppendPolicy,
}

/// What a segment gives up once a read of it is with the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReleasePolicy {
    /// Nothing, until its room is needed (DiskSim's law).
    Nothing,
    /// What lies before the read, when data read ahead may take its room: a reader that has
    /// come so far does not go back.
    #[default]
    Before,
    /// The read's own sectors as well.
    Requested,
}

/// Which writes join the one that is on its way to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AppendPolicy {
    /// None.
    Never,
    /// One that goes on from it, when nothing else waits (DiskSim's fast write level 1).
    Alone,
    /// One that goes on from it (level 2).
    #[default]
    Always,
}

/// Writes that are reported done before they are on the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCacheSpec {
    /// Spans of sectors that follow each other, at most; 0: the write cache is off.
    pub spans: u32,
    /// Sectors, at most.
    pub sectors: u64,
}

/// The time that the drive's processor takes for a command, by what it finds. ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandTimes {
    /// After a read.
    pub after_read_ns: u64,
    /// After a write.
    pub after_write_ns: u64,
}

/// The extra disconnection of some early SCSI drives before the data of a write that
/// follows another write and does not go on from it. ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EarlyDisconnect {
    /// Command processing, in place of the other write overheads.
    pub command_ns: u64,
    /// From the end of the command until the bus is asked for again.
    pub until_reconnect_ns: u64,
    /// From the end of the command to the start of the arm's move.
    pub until_seek_ns: u64,
    /// To leave the bus after the data.
    pub disconnect_ns: u64,
}

/// How much of a read must be in the cache before the bus is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaterMark {
    /// A part of the request, in 1/1024; a sector at least.
    Part(u32),
    /// So many sectors, or all of the request.
    Sectors(u32),
}

impl WaterMark {
    /// The mark of a read of `sectors`.
    pub fn sectors_of(self, sectors: u32) -> u32 {
        let mark = match self {
            WaterMark::Part(part) => (u64::from(sectors) * u64::from(part) / 1024) as u32,
            WaterMark::Sectors(mark) => mark,
        };
        mark.clamp(1, sectors)
    }
}

impl Default for WaterMark {
    fn default() -> WaterMark {
        WaterMark::Part(0)
    }
}

/// When the arm may turn to the next command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ArmFreePoint {
    /// When the host knows that the command is done (DiskSim's preseeking level 0).
    WhenConfirmed,
    /// When that is about to be said (level 1).
    WhenSaid,
    /// When the medium is done with it (level 2).
    #[default]
    AfterMedium,
}

/// The drive's electronics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerSpec {
    /// A read found in the cache.
    pub read_hit: CommandTimes,
    /// A read that needs the medium.
    pub read_miss: CommandTimes,
    /// A write reported before it is on the medium.
    pub write_hit: CommandTimes,
    /// A write that is not.
    pub write_miss: CommandTimes,
    /// Before data go over the bus, ns.
    pub data_preparation_ns: u64,
    /// To get the bus back after the medium was waited for, ns: the first time in a command.
    pub reselect_ns: u64,
    /// The same from the second time on.
    pub reselect_again_ns: u64,
    /// To leave the bus in a read.
    pub read_disconnect: CommandTimes,
    /// To leave the bus in a write, ns.
    pub write_disconnect_ns: u64,
    /// After a read's data, ns.
    pub read_completion_ns: u64,
    /// After a write's data, ns.
    pub write_completion_ns: u64,
    /// To move a sector that is read over the bus, ns.
    pub bus_read_sector_ns: u64,
    /// To move a sector that is written over the bus, ns.
    pub bus_write_sector_ns: u64,
    /// How much of a read must be in the cache before the bus is asked for.
    pub bus_after: WaterMark,
    /// Whether the bus is left while a read that has outrun the medium waits for it.
    pub leaves_bus: bool,
    /// Whether the bus is kept from the command to the end, whatever is waited for.
    pub never_disconnects: bool,
    /// Whether a write that waits for the arm has its data in the cache already.
    pub buffers_waiting_writes: bool,
    /// The extra disconnection before a write's data, if the drive does that.
    pub early_disconnect: Option<EarlyDisconnect>,
    /// The least time that the arm takes to the place of a write, unless the head is just
    /// writing what is before it, ns.
    pub write_move_min_ns: u64,
    /// When the arm may turn to the next command.
    pub arm_free: ArmFreePoint,
}

/// By what the drive chooses what its arm does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueuePolicy {
    /// The one that can be reached soonest, by the arm's move and the platter's angle together.
    #[default]
    Positioning,
    /// The next one towards higher cylinders, whatever the platter's angle; behind the last
    /// one the arm goes back to the first (C-LOOK; Worthington, Ganger and Patt, SIGMETRICS
    /// 1994, find it the best of those that know no angle).
    Elevator,
}

/// Command queueing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// By what it chooses, of commands and of written data alike.
    pub order: QueuePolicy,
    /// Commands that the drive accepts at once.
    pub depth: u32,
    /// The oldest of them among which it chooses the nearest.
    pub window: u32,
    /// A command older than this goes first, ns.
    pub age_limit_ns: u64,
    /// Whether queued writes that go on from each other are written a track at a time, as though
    /// they were one.
    pub combines_writes: bool,
}

/// A drive.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveDescription {
    /// Maker and model.
    pub name: String,
    /// Its surfaces.
    pub layout: DriveLayout,
    /// Arm and spindle.
    pub mechanics: MechanicsSpec,
    /// Its cache.
    pub cache: CacheSpec,
    /// Its electronics.
    pub controller: ControllerSpec,
    /// Its queue.
    pub queue: QueueSpec,
    /// What its description says and the model does not do; whoever uses it is told.
    pub unmodelled: Vec<String>,
}
