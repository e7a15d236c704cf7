//! Reads DiskSim's parameter files (`.parv`, `.diskspecs`, `.model`, `.seek`) as a
//! [`DriveDescription`].
//!
//! A `.parv` describes a system. Its drive is read from the `.diskspecs` that it names. Buses and
//! controllers between host and drive limit the transfer rate: as in DiskSim, the slowest
//! determines the time per sector.
//!
//! Each function that reads a block fails with a `FileError` if a field is missing, malformed or
//! out of bounds.
//!
//! Names and meaning of the fields follow DiskSim 4.0's reference manual (`disksim_disk`,
//! `dm_disk`, `dm_layout_g1`, `dm_mech_g1`). Fields about DiskSim's output, or about components
//! that are not modelled here, are accepted without effect. [`WITHOUT_EFFECT`] lists them.

use std::path::Path;

use super::disksim_model::{MS, SECTORS, ms_to_ns, no_effect_message, read_layout, read_mechanics};
use super::disksim_syntax::{ReadText, Statements, SystemPart, read_statements};
use super::drive::{
    AppendPolicy, ArmFreePoint, CacheSpec, CommandTimes, ControllerSpec,
    DEFAULT_REQUEST_SECTORS_MAX, DriveDescription, EarlyDisconnect, QueuePolicy, QueueSpec,
    ReadAhead, ReleasePolicy, WaterMark, WriteCacheSpec,
};
use crate::fields::{FieldBlock, FileError, NumberBounds, bounds};

/// Fields of `disksim_disk` without effect here. They control DiskSim's statistics, its bookkeeping
/// and an external scheduler's view. Three matter only for requests larger than a cache segment:
/// `Hold bus entire write xfer`, `Low (write) water mark` and `Read directly to buffer`.
const WITHOUT_EFFECT: [&str; 6] = [
    "Print stats",
    "Calc sector by sector",
    "Avg sectors per cylinder",
    "Hold bus entire write xfer",
    "Low (write) water mark",
    "Read directly to buffer",
];

/// Switches whose effect is not modelled, each with the only setting that is. Another setting is
/// reported and has no effect.
const UNMODELLED: [(&str, u64); 4] = [
    ("Allow sneaky partial read hits", 0),
    ("Allow sneaky intermediate read hits", 0),
    ("Disconnect write if seek", 0),
    ("Write hit stop prefetch", 1),
];

/// Valid levels of a switch. A level above the last that has a meaning counts as the last.
pub(super) const SWITCH_LEVELS: NumberBounds = bounds(0.0, 4.0, "(a level)");

/// Queue depth, chosen, for 0 in the file, which means "no limit".
const DEPTH_WITHOUT_LIMIT: u64 = 256;

/// Reads the drive that the DiskSim file at `path` describes. `read` returns the text of a file.
/// Returns the drive and the block of its fields, for a list of its parameters.
pub(super) fn load(
    path: &Path,
    read: ReadText<'_>,
) -> Result<(DriveDescription, FieldBlock), FileError> {
    let statements = read_statements(path, read)?;
    let (disk, host_path) = find_disk(path, &statements)?;
    let mut unmodelled = host_path.unmodelled.clone();
    // A field that is found counts as read, and is not rejected as unknown.
    for name in WITHOUT_EFFECT {
        disk.find(name);
    }
    for (key, modelled) in UNMODELLED {
        let differs = disk.find(key).is_some() && disk.integer(key, SWITCH_LEVELS)? != modelled;
        if differs {
            unmodelled.push(no_effect_message(disk, key, &format!("as if it were {modelled}")));
        }
    }
    let model = disk.block("Model")?;
    let layout = read_layout(model, &mut unmodelled)?;
    // True for reads, and for writes, that can start in the middle of their sectors.
    let zero_latency = (
        disk.integer("Immediate buffer read", SWITCH_LEVELS)? > 0,
        disk.integer("Immediate buffer write", SWITCH_LEVELS)? > 0,
    );
    let mechanics =
        read_mechanics(model.block("Mechanical Model")?, zero_latency, read, &mut unmodelled)?;
    let mut drive = DriveDescription {
        name: disk.name.clone(),
        layout,
        mechanics,
        cache: read_cache(disk)?,
        controller: read_controller(disk)?,
        queue: read_queue(disk, &mut unmodelled)?,
        unmodelled,
    };
    host_path.apply_limits(&mut drive.controller);
    model.reject_unread()?;
    disk.reject_unread()?;
    Ok((drive, disk.clone()))
}

/// Finds the block of the drive, and the buses and controllers before it. Other components on the
/// path, such as a driver, take no time. Without a topology, the file is a `.diskspecs`: its first
/// `disksim_disk` is the drive, with no path before it. `path` is for messages.
fn find_disk<'a>(
    path: &Path,
    statements: &'a Statements,
) -> Result<(&'a FieldBlock, HostPath), FileError> {
    let blocks = &statements.blocks;
    let file_error = |problem: String| FileError {
        file: path.display().to_string(),
        line: 0,
        field: String::new(),
        problem,
    };
    // Components from the root of the topology to the drive, which is the last one.
    let components = match &statements.topology {
        Some(root) => path_to_disk(root).ok_or_else(|| {
            file_error(
                "its topology has no `disksim_disk`; other devices are not modelled".to_owned(),
            )
        })?,
        None => Vec::new(),
    };
    // The block that describes a component: the block that its instance names, or the one with the
    // component's own name.
    let block_of = |component: &str| {
        let instance = statements.instances.iter().find(|(name, _)| name == component);
        let block_name = instance.map_or(component, |(_, block_name)| block_name.as_str());
        blocks.iter().find(|block| block.name == block_name).ok_or_else(|| {
            file_error(format!("`{component}` is in its topology, and no block describes it"))
        })
    };
    let disk = match components.last() {
        Some(part) => block_of(&part.name)?,
        None => blocks.iter().find(|block| block.kind == "disksim_disk").ok_or_else(|| {
            file_error(
                "holds no `disksim_disk NAME { … }` block; name the .diskspecs or .parv file, not \
                 the .model"
                    .to_owned(),
            )
        })?,
    };
    let mut host_path = HostPath::default();
    let is_bus_or_controller =
        |part: &&&SystemPart| matches!(part.kind.as_str(), "disksim_bus" | "disksim_ctlr");
    for part in components.iter().filter(is_bus_or_controller) {
        host_path.add_part(block_of(&part.name)?)?;
    }
    Ok((disk, host_path))
}

/// Returns the path from the root of a topology to its first drive; `None` if it has no drive.
fn path_to_disk(part: &SystemPart) -> Option<Vec<&SystemPart>> {
    if part.kind == "disksim_disk" {
        return Some(vec![part]);
    }
    let rest = part.parts.iter().find_map(path_to_disk)?;
    Some([part].into_iter().chain(rest).collect())
}

/// Buses and controllers between the host and a drive.
#[derive(Debug, Default)]
struct HostPath {
    /// Time per sector of the slowest component for reads.
    read_sector_ns: u64,
    /// Time per sector of the slowest component for writes.
    write_sector_ns: u64,
    /// Sum of the arbitration times of all buses.
    arbitration_ns: u64,
    /// Messages about fields without effect.
    unmodelled: Vec<String>,
}

impl HostPath {
    /// Adds the arbitration time of one bus or controller, and raises the times per sector to its
    /// own. An absent time counts as 0, which limits nothing.
    fn add_part(&mut self, part: &FieldBlock) -> Result<(), FileError> {
        let (read_key, write_key) = match part.kind.as_str() {
            "disksim_bus" => {
                // Type 2 is a shared bus: its transfers are interleaved and need no arbitration.
                let is_shared = part.number_or("type", 1.0, bounds(1.0, 2.0, "(a type)"))? == 2.0;
                if !is_shared {
                    self.arbitration_ns += ms_to_ns(part.number_or("Arbitration time", 0.0, MS)?);
                }
                ("Read block transfer time", "Write block transfer time")
            }
            // A controller.
            _ => {
                let scale =
                    part.number_or("Scale for delays", 0.0, bounds(0.0, 1000.0, "times"))?;
                if scale > 0.0 {
                    let effect = "the controller takes no time of its own";
                    self.unmodelled.push(no_effect_message(part, "Scale for delays", effect));
                }
                if part.find("Cache").is_some() {
                    let effect = "the controller keeps nothing";
                    self.unmodelled.push(no_effect_message(part, "Cache", effect));
                }
                ("Bulk sector transfer time", "Bulk sector transfer time")
            }
        };
        let time_ns = |key: &str| Ok::<_, FileError>(ms_to_ns(part.number_or(key, 0.0, MS)?));
        self.read_sector_ns = self.read_sector_ns.max(time_ns(read_key)?);
        self.write_sector_ns = self.write_sector_ns.max(time_ns(write_key)?);
        Ok(())
    }

    /// Applies the limits of the path to the drive. The slowest component determines the time per
    /// sector. Arbitration is added for the command and for each return to the bus.
    fn apply_limits(&self, controller: &mut ControllerSpec) {
        let raise = |drive_ns: &mut u64, path_ns: u64| *drive_ns = (*drive_ns).max(path_ns);
        raise(&mut controller.bus_read_sector_ns, self.read_sector_ns);
        raise(&mut controller.bus_write_sector_ns, self.write_sector_ns);
        let commands = [
            &mut controller.read_hit,
            &mut controller.read_miss,
            &mut controller.write_hit,
            &mut controller.write_miss,
        ];
        for times in commands {
            times.after_read_ns += self.arbitration_ns;
            times.after_write_ns += self.arbitration_ns;
        }
        if let Some(early) = &mut controller.early_disconnect {
            early.command_ns += self.arbitration_ns;
        }
        controller.reselect_ns += self.arbitration_ns;
        controller.reselect_again_ns += self.arbitration_ns;
    }
}

/// Reads the drive's queue: converts the number of DiskSim's scheduling policy. Adds a message to
/// `unmodelled` if the policy has no exact counterpart.
fn read_queue(disk: &FieldBlock, unmodelled: &mut Vec<String>) -> Result<QueueSpec, FileError> {
    let depth = match disk.integer("Max queue length", bounds(0.0, 4096.0, "commands"))? {
        0 => DEPTH_WITHOUT_LIMIT,
        depth => depth,
    };
    // Numbers of the policies "first come, first served" and "shortest positioning time".
    let (first_come, shortest_positioning) = (1, 8);
    let policy = match disk.find("Scheduler") {
        Some(_) => {
            let scheduler = disk.block("Scheduler")?;
            let policy = scheduler.integer_or(
                "Scheduling policy",
                first_come,
                bounds(1.0, 64.0, "(a policy)"),
            )?;
            // Besides the two named ones, 3 and 6 are one-way elevators by address and by cylinder.
            // A queue of one command needs no policy.
            if depth > 1 && !matches!(policy, 1 | 3 | 6 | 8) {
                let instead = "the nearest of its kind is: an elevator one way below 8, the shortest \
                               positioning time from there on";
                unmodelled.push(no_effect_message(scheduler, "Scheduling policy", instead));
            }
            policy
        }
        None => first_come,
    };
    Ok(QueueSpec {
        order: match policy < shortest_positioning {
            true => QueuePolicy::Elevator,
            false => QueuePolicy::Positioning,
        },
        depth: depth as u32,
        // First come, first served leaves no choice among the commands.
        window: if policy == first_come { 1 } else { depth as u32 },
        // DiskSim's policies have no age limit.
        age_limit_ns: u64::MAX,
        // A field of TOML descriptions only.
        combines_writes: false,
        request_sectors_max: DEFAULT_REQUEST_SECTORS_MAX,
    })
}

/// Reads the cache's fields from the block of the drive. DiskSim's levels (−1 to 4) become the
/// policies of this model.
fn read_cache(disk: &FieldBlock) -> Result<CacheSpec, FileError> {
    let segments = disk.integer("Number of buffer segments", bounds(0.0, 65_536.0, "segments"))?;
    let segment_sectors = disk.integer("Segment size (in blks)", bounds(1.0, 1e9, "sectors"))?;
    let ahead_bounds = bounds(0.0, segment_sectors as f64, "sectors (the segment's size)");
    let write_bounds = bounds(1.0, segments.max(1) as f64, "segments (their number)");
    // Only checked: at most one segment has written data at a time, see `AppendPolicy`.
    disk.integer("Maximum number of write segments", write_bounds)?;
    let fast_write_level = disk.integer("Fast write level", bounds(0.0, 2.0, "(a level)"))?;
    let combines_writes = disk.switch_or("Combine seq writes", true)?;
    // −1: read sectors are released. 0: read-ahead does not overwrite them. 1: it does.
    let keep_level = disk.number("Read-ahead over requested", bounds(-1.0, 1.0, "(a level)"))?;
    let read_ahead = match disk.integer("Buffer continuous read", SWITCH_LEVELS)? {
        0 => ReadAhead::None,
        1 => ReadAhead::Track,
        2 => ReadAhead::Cylinder,
        3 => ReadAhead::Segment,
        _ => ReadAhead::NextTrack,
    };
    // Rules of DiskSim's source: a minimum above the maximum replaces it. A maximum of 0 means only
    // the segment's limit. A stated maximum applies even if it overwrites requested data. The level
    // that reads to the end of the next track has no maximum.
    let ahead_min = disk.integer("Minimum read-ahead (blks)", ahead_bounds)?;
    let ahead_max = disk.integer("Maximum read-ahead (blks)", ahead_bounds)?.max(ahead_min);
    let (ahead_max, ahead_over_requested) = match (read_ahead, ahead_max) {
        (ReadAhead::NextTrack, _) => (u64::from(u32::MAX), true),
        (_, 0) => (segment_sectors, keep_level != 0.0),
        (_, ahead_max) => (ahead_max, true),
    };
    Ok(CacheSpec {
        is_enabled: disk.integer("Enable caching in buffer", SWITCH_LEVELS)? > 0 && segments > 0,
        segments: segments as u32,
        segment_sectors: segment_sectors as u32,
        has_write_segment: disk.switch_or("Use separate write segment", false)?,
        read_ahead,
        read_ahead_sectors_max: ahead_max as u32,
        read_ahead_sectors_min: if read_ahead == ReadAhead::None { 0 } else { ahead_min as u32 },
        ahead_over_requested,
        releases: if keep_level < 0.0 { ReleasePolicy::Requested } else { ReleasePolicy::Nothing },
        ahead_on_hit: disk.switch_or("Read-ahead on idle hit", false)?,
        caches_passing_sectors: disk.switch_or("Read any free blocks", false)?,
        joins_read_ahead: disk.switch_or("Allow almost read hits", false)?,
        reads_written: disk.switch_or("Allow read hits on write data", false)?,
        hits_overtake: disk.switch_or("Allow sneaky full read hits", false)?,
        // With this switch, cached data is sent at once from one sector on.
        early_send_mark: Some(match disk.switch_or("Immed transfer partial hit", true)? {
            true => WaterMark::default(),
            false => read_water_mark(disk)?,
        }),
        stops_in_sector: disk.switch_or("Stop prefetch in sector", false)?,
        // DiskSim always stops the read-ahead when a command arrives.
        stops_on_arrival: true,
        writes: WriteCacheSpec { spans: u32::from(fast_write_level > 0), sectors: segment_sectors },
        // Without effect, since `flushes_first` is true.
        write_back_tracks: 1,
        // DiskSim always writes cached data to the medium before it serves another request.
        flushes_first: true,
        appends: match (combines_writes, fast_write_level) {
            (false, _) => AppendPolicy::Never,
            (true, 1) => AppendPolicy::Alone,
            (true, _) => AppendPolicy::Always,
        },
    })
}

/// Reads the water mark of reads: a part of the request, in 1/1024, or a part of a segment, in
/// sectors.
fn read_water_mark(disk: &FieldBlock) -> Result<WaterMark, FileError> {
    let fraction = disk.number("High (read) water mark", bounds(0.0, 1.0, "(a part)"))?;
    let segment_sectors = disk.number("Segment size (in blks)", SECTORS)?;
    Ok(match disk.switch_or("Set watermark by reqsize", true)? {
        true => WaterMark::Part((fraction * 1024.0) as u32),
        false => WaterMark::Sectors((fraction * segment_sectors).ceil() as u32),
    })
}

/// Reads the overheads of commands and the times of the bus from the block of the drive. All
/// overheads are multiplied by the file's time scale. The bus time per sector and the minimum seek
/// delay are not.
fn read_controller(disk: &FieldBlock) -> Result<ControllerSpec, FileError> {
    let scale = disk.number("Time scale for overheads", bounds(0.0, 1000.0, "times"))?;
    let per_request_ms = disk.number("Per-request overhead time", MS)?;
    let scaled_ns = |key: &str| Ok::<_, FileError>(ms_to_ns(disk.number(key, MS)? * scale));
    let scaled_or_0_ns =
        |key: &str| Ok::<_, FileError>(ms_to_ns(disk.number_or(key, 0.0, MS)? * scale));
    let per_request_ns = ms_to_ns(per_request_ms * scale);
    let times = |after_read: &str, after_write: &str| {
        Ok::<_, FileError>(CommandTimes {
            after_read_ns: per_request_ns + scaled_ns(after_read)?,
            after_write_ns: per_request_ns + scaled_ns(after_write)?,
        })
    };
    let never_disconnects = disk.switch_or("Never disconnect", false)?;
    let holds_reads = disk.switch_or("Hold bus entire read xfer", false)?;
    let has_extra_disconnect = disk.switch_or("Extra write disconnect", false)?;
    let bus_sector_ns = ms_to_ns(disk.number("Bulk sector transfer time", MS)?);
    // Read in any case, so that its fields are not rejected as unknown.
    let early = EarlyDisconnect {
        command_ns: per_request_ns + scaled_ns("Extradisc command overhead")?,
        until_reconnect_ns: scaled_ns("Extradisc disconnect overhead")?
            + scaled_ns("Extradisc inter-disconnect delay")?,
        until_seek_ns: scaled_ns("Extradisc seek delta")?,
        disconnect_ns: scaled_or_0_ns("Extradisc 2nd disconnect overhead")?,
    };
    Ok(ControllerSpec {
        read_hit: times("Read hit over. after read", "Read hit over. after write")?,
        read_miss: times("Read miss over. after read", "Read miss over. after write")?,
        write_hit: times("Write hit over. after read", "Write hit over. after write")?,
        write_miss: times("Write miss over. after read", "Write miss over. after write")?,
        data_preparation_ns: scaled_ns("Data preparation overhead")?,
        reselect_ns: scaled_ns("First reselect overhead")?,
        reselect_again_ns: scaled_or_0_ns("Other reselect overhead")?,
        read_disconnect: CommandTimes {
            after_read_ns: scaled_or_0_ns("Read disconnect afterread")?,
            after_write_ns: scaled_or_0_ns("Read disconnect afterwrite")?,
        },
        write_disconnect_ns: scaled_or_0_ns("Write disconnect overhead")?,
        read_completion_ns: scaled_ns("Read completion overhead")?,
        write_completion_ns: scaled_ns("Write completion overhead")?,
        bus_read_sector_ns: bus_sector_ns,
        bus_write_sector_ns: bus_sector_ns,
        bus_after: read_water_mark(disk)?,
        leaves_bus: !never_disconnects && !holds_reads,
        never_disconnects,
        buffers_waiting_writes: disk.switch_or("Allow write prebuffering", false)?,
        early_disconnect: (has_extra_disconnect && !never_disconnects).then_some(early),
        // Not scaled, as in DiskSim.
        write_move_min_ns: ms_to_ns(disk.number("Minimum seek delay", MS)?),
        arm_free: match disk.integer_or("Preseeking level", 0, SWITCH_LEVELS)? {
            0 => ArmFreePoint::CompletionReceived,
            1 => ArmFreePoint::CompletionSent,
            _ => ArmFreePoint::MediumDone,
        },
    })
}
