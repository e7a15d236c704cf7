//! The description of a drive: all parameters of the model.
//!
//! A description comes from a TOML file, from DiskSim's parameter files, or is built in (itself a
//! TOML file). It is checked once, by its reader. Times are in ns, addresses in sectors.

use super::layout::DriveLayout;
use super::seek::SeekCurve;

/// Model of the time to reach a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AccessTime {
    /// The seek, and the wait for the sector by the tracked angle of the platter.
    #[default]
    Tracked,
    /// The seek and half a revolution.
    HalfTurn,
    /// A constant time.
    Constant {
        /// Time in ns.
        ns: u64,
    },
}

/// Arm and spindle.
#[derive(Clone, Debug, PartialEq)]
pub struct MechanicsSpec {
    /// Revolutions per minute.
    pub rpm: f64,
    /// Seek times of reads.
    pub seek: SeekCurve,
    /// Head switch time in ns.
    pub head_switch_ns: u64,
    /// Seek times of writes, if they are described separately.
    pub write_seek: Option<SeekCurve>,
    /// Extra settle time of a write compared with a read, in ns. It applies after a head switch
    /// and, without `write_seek`, after any seek. It can be negative, as in some extracted
    /// descriptions.
    pub write_settle_ns: i64,
    /// If true, a head that returns to its own track settles again, as long as the shortest seek.
    pub settles_on_return: bool,
    /// Model of the time to reach a sector.
    pub access: AccessTime,
    /// If true, a read can start in the middle of its sectors when the head settles there.
    pub zero_latency_read: bool,
    /// If true, a write can start in the middle of its sectors.
    pub zero_latency_write: bool,
}

impl MechanicsSpec {
    /// Returns the time in ms between consecutive tracks for a write, on a drive of `cylinders`. It
    /// is the longer of a head switch and a one-cylinder seek. At least 0: a negative settle time
    /// can exceed both.
    pub fn track_switch_ms(&self, cylinders: u32) -> f64 {
        let settle_ms = self.write_settle_ns as f64 / 1e6;
        let seek_ms = match &self.write_seek {
            Some(curve) => curve.ms(1, cylinders),
            None => self.seek.ms(1, cylinders) + settle_ms,
        };
        seek_ms.max(self.head_switch_ns as f64 / 1e6 + settle_ms).max(0.0)
    }
}

/// Range of the read-ahead after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReadAhead {
    /// No read-ahead.
    None,
    /// To the end of the track.
    Track,
    /// To the end of the cylinder.
    Cylinder,
    /// Until the segment is full.
    #[default]
    Segment,
    /// To the end of the track, or of the next track when the segment started on the previous track
    /// (DiskSim's level 4, after drives of DEC).
    NextTrack,
}

/// The drive's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// True if read data is cached.
    pub is_enabled: bool,
    /// Number of segments. Each contains one range of sectors.
    pub segments: u32,
    /// Sectors per segment.
    pub segment_sectors: u32,
    /// If true, writes have a segment of their own and do not evict read data.
    pub has_write_segment: bool,
    /// Range of the read-ahead.
    pub read_ahead: ReadAhead,
    /// Maximum read-ahead in sectors.
    pub read_ahead_sectors_max: u32,
    /// Minimum read-ahead in sectors before the drive serves another request.
    pub read_ahead_sectors_min: u32,
    /// If true, read-ahead can overwrite data of the last request.
    pub ahead_over_requested: bool,
    /// Data that is released when a read is complete.
    pub releases: ReleasePolicy,
    /// If true, a cache hit starts read-ahead again.
    pub ahead_on_hit: bool,
    /// If true, sectors that pass the head before the first requested one are cached.
    pub caches_passing_sectors: bool,
    /// If true, a read joins the read-ahead in progress. It must start at its next sector or later
    /// on its track.
    pub joins_read_ahead: bool,
    /// If true, written data can be read from the cache.
    pub reads_written: bool,
    /// If true, a cache hit is served while another request uses the arm.
    pub hits_overtake: bool,
    /// Minimum cached part of a read that is sent at once. `None` sends it with the rest.
    pub early_send_mark: Option<WaterMark>,
    /// If true, read-ahead can be stopped in the middle of a sector.
    pub stops_in_sector: bool,
    /// If true, a command that needs the arm stops the read-ahead on arrival, as in DiskSim.
    /// Otherwise the read-ahead stops when the command's overhead has passed.
    pub stops_on_arrival: bool,
    /// Capacity for writes that are reported complete and not yet on the medium.
    pub writes: WriteCacheSpec,
    /// Tracks of written data that go to the medium in a row, while commands wait. After them the
    /// drive serves a command. US 9,141,531 limits a write-back by a number of tracks.
    pub write_back_tracks: u32,
    /// If true, such writes go to the medium at once, before any other request is served.
    pub flushes_first: bool,
    /// With `flushes_first`: writes that are reported complete while the previous write is being
    /// written to the medium.
    pub appends: AppendPolicy,
}

/// Data that a segment releases when a read from it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReleasePolicy {
    /// No data, until the room is needed (DiskSim's policy).
    Nothing,
    /// Data before the read, if read-ahead can use its room. A sequential reader does not go back.
    #[default]
    Before,
    /// Also the read's own sectors.
    Requested,
}

/// Writes that join the one that is being written to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AppendPolicy {
    /// No writes.
    Never,
    /// A write that continues it, if no other request waits (DiskSim's fast write level 1).
    Alone,
    /// A write that continues it (level 2).
    #[default]
    Always,
}

/// Capacity for writes that are reported complete before they are on the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCacheSpec {
    /// Maximum number of contiguous ranges. 0 disables the write cache.
    pub spans: u32,
    /// Maximum number of sectors.
    pub sectors: u64,
}

/// Processing time of a command, by the direction of the previous command. In ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandTimes {
    /// Time after a read.
    pub after_read_ns: u64,
    /// Time after a write.
    pub after_write_ns: u64,
}

/// Extra disconnection of some early SCSI drives. It precedes the data of a write that follows
/// another write and does not continue it. In ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EarlyDisconnect {
    /// Command processing, which replaces the other write overheads.
    pub command_ns: u64,
    /// Time from the end of the command to the request for the bus.
    pub until_reconnect_ns: u64,
    /// Time from the end of the command to the start of the seek.
    pub until_seek_ns: u64,
    /// Time to release the bus after the data.
    pub disconnect_ns: u64,
}

/// Part of a read that must be in the cache before the drive requests the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaterMark {
    /// A fraction of the request in 1/1024, at least one sector.
    Part(u32),
    /// A number of sectors, at most the whole request.
    Sectors(u32),
}

impl WaterMark {
    /// Returns the water mark in sectors of a read of `sectors`.
    pub fn sectors_of(self, sectors: u32) -> u32 {
        let mark = match self {
            WaterMark::Part(part) => (u64::from(sectors) * u64::from(part) / 1024) as u32,
            WaterMark::Sectors(mark) => mark,
        };
        mark.clamp(1, sectors)
    }
}

impl Default for WaterMark {
    /// A fraction of 0, which is rounded up to one sector.
    fn default() -> WaterMark {
        WaterMark::Part(0)
    }
}

/// Time at which the arm is free for the next command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ArmFreePoint {
    /// The host has received the completion (DiskSim's preseeking level 0).
    CompletionReceived,
    /// The drive starts to send the completion (level 1).
    CompletionSent,
    /// The transfer to or from the medium has ended (level 2).
    #[default]
    MediumDone,
}

/// The drive's electronics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerSpec {
    /// Overhead of a read that hits the cache.
    pub read_hit: CommandTimes,
    /// Overhead of a read that needs the medium.
    pub read_miss: CommandTimes,
    /// Overhead of a write that is reported complete before it is on the medium.
    pub write_hit: CommandTimes,
    /// Overhead of any other write.
    pub write_miss: CommandTimes,
    /// Preparation time before data crosses the bus, in ns.
    pub data_preparation_ns: u64,
    /// Time to regain the bus after a wait for the medium, for the first time in a command, in ns.
    pub reselect_ns: u64,
    /// Time to regain the bus from the second time on, in ns.
    pub reselect_again_ns: u64,
    /// Time to release the bus in a read.
    pub read_disconnect: CommandTimes,
    /// Time to release the bus in a write, in ns.
    pub write_disconnect_ns: u64,
    /// Completion time after a read's data, in ns.
    pub read_completion_ns: u64,
    /// Completion time after a write's data, in ns.
    pub write_completion_ns: u64,
    /// Transfer time of a sector to the host, in ns.
    pub bus_read_sector_ns: u64,
    /// Transfer time of a sector from the host, in ns.
    pub bus_write_sector_ns: u64,
    /// Part of a read that must be in the cache before the drive requests the bus.
    pub bus_after: WaterMark,
    /// If true, a read that has outrun the medium releases the bus.
    pub leaves_bus: bool,
    /// If true, the bus is held for the whole command.
    pub never_disconnects: bool,
    /// If true, a write that waits for the arm transfers its data into the cache meanwhile.
    pub buffers_waiting_writes: bool,
    /// Extra disconnection before a write's data, if the drive has one.
    pub early_disconnect: Option<EarlyDisconnect>,
    /// Minimum time of the arm to the position of a write, in ns. It does not apply while the head
    /// is writing the preceding sector.
    pub write_move_min_ns: u64,
    /// Time at which the arm is free for the next command.
    pub arm_free: ArmFreePoint,
}

/// Scheduling policy of the drive's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueuePolicy {
    /// The command with the shortest positioning time: seek and rotation together.
    #[default]
    Positioning,
    /// The next command towards higher cylinders, independent of rotation. After the last one the
    /// arm returns to the first (C-LOOK). Worthington, Ganger and Patt (SIGMETRICS 1994) found it
    /// the best policy without knowledge of the angle.
    Elevator,
}

/// Command queueing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// Scheduling policy for commands and written data.
    pub order: QueuePolicy,
    /// Maximum number of commands in the drive.
    pub depth: u32,
    /// Number of oldest commands among which the policy chooses.
    pub window: u32,
    /// Age in ns above which a command is served first.
    pub age_limit_ns: u64,
    /// If true, queued writes that continue each other are written together, track by track.
    pub combines_writes: bool,
    /// Largest request that the host sends, in sectors.
    pub request_sectors_max: u32,
}

/// Default of the largest request: 1280 KiB in sectors, Linux's default `max_sectors_kb`.
pub const DEFAULT_REQUEST_SECTORS_MAX: u32 = 2560;

/// A drive.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveDescription {
    /// Manufacturer and model.
    pub name: String,
    /// Surfaces, zones and sectors.
    pub layout: DriveLayout,
    /// Arm and spindle.
    pub mechanics: MechanicsSpec,
    /// Cache.
    pub cache: CacheSpec,
    /// Electronics.
    pub controller: ControllerSpec,
    /// Queue.
    pub queue: QueueSpec,
    /// Properties that the description states and the model ignores, for a warning to the user.
    pub unmodelled: Vec<String>,
}
