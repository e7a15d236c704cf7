//! DiskSim's parameter files (`.parv`, `.diskspecs`, `.model`, `.seek`) as a [`Drive`].
//!
//! A `.parv` describes a system: its drive is read from the `.diskspecs` that it names, and
//! the buses and controllers between host and drive bound what a sector takes, as in DiskSim,
//! where the slowest counts.
//!
//! The fields are those of DiskSim 4.0's reference manual (`disksim_disk`, `dm_disk`,
//! `dm_layout_g1`, `dm_mech_g1`), taken as they come. Those that say how DiskSim
//! prints, or how it talks to parts that are not modelled here, are accepted and
//! without effect; they are listed in [`WITHOUT_EFFECT`].

use std::path::Path;

use super::disksim_syntax::{Part, ReadText, read_statements};
use super::drive::{
    AccessTime, CacheSpec, CommandTimes, ControllerSpec, Drive, EarlyDisconnect, MechanicsSpec,
    QueueOrder, QueueSpec, ReadAhead, WriteCacheSpec,
};
use super::layout::{Layout, Mapping, Sparing, Zone};
use super::seek::{Hpl, SeekCurve, ThreePoints};
use crate::fields::{Block, Bounds, FileError, Value, bounds};

/// Fields of `disksim_disk` that change nothing here.
///
/// Statistics and switches of DiskSim's own bookkeeping; an external scheduler's view
/// (`Scheduler`, `Avg sectors per cylinder`); and bus behaviour that can't be told
/// apart with one drive on one bus (holding the bus, disconnecting, prebuffering).
const WITHOUT_EFFECT: [&str; 22] = [
    "Print stats",
    "Calc sector by sector",
    "Avg sectors per cylinder",
    "Scheduler",
    "Hold bus entire read xfer",
    "Hold bus entire write xfer",
    "Allow sneaky partial read hits",
    "Allow sneaky intermediate read hits",
    "Allow write prebuffering",
    "Preseeking level",
    "Low (write) water mark",
    "Stop prefetch in sector",
    "Disconnect write if seek",
    "Write hit stop prefetch",
    "Read directly to buffer",
    "Immed transfer partial hit",
    "Other reselect overhead",
    "Write disconnect overhead",
    "Combine seq writes",
    "Read disconnect afterread",
    "Read disconnect afterwrite",
    "Extradisc 2nd disconnect overhead",
];

const MS: Bounds = bounds(0.0, 10_000.0, "ms");
/// The delay is negative in some extracted files (dec_rz26).
const SETTLE: Bounds = bounds(-10_000.0, 10_000.0, "ms");
const SECTORS: Bounds = bounds(0.0, 1e15, "sectors");
const LEVELS: Bounds = bounds(0.0, 4.0, "(a level)");

/// A drive accepts so many commands when the file says 0, which means "no limit".
const DEPTH_WITHOUT_LIMIT: u64 = 256;

/// Reads the drive that the file at `path` describes.
pub(super) fn load(path: &Path, read: ReadText<'_>) -> Result<(Drive, Block), FileError> {
    let statements = read_statements(path, read)?;
    let blocks = &statements.blocks;
    let whole = |problem: String| FileError {
        file: path.display().to_string(),
        line: 0,
        field: String::new(),
        problem,
    };
    let path_to_disk = match &statements.topology {
        Some(root) => path_to_disk(root).ok_or_else(|| {
            whole("its topology has no `disksim_disk`; other devices are not modelled".to_owned())
        })?,
        None => Vec::new(),
    };
    let described = |name: &str| {
        let instance = statements.instances.iter().find(|(instance, _)| instance == name);
        let kind = instance.map_or(name, |(_, kind)| kind.as_str());
        blocks
            .iter()
            .find(|block| block.name == kind)
            .ok_or_else(|| whole(format!("`{name}` is in its topology, and no block describes it")))
    };
    let disk = match path_to_disk.last() {
        Some(part) => described(&part.name)?,
        None => blocks.iter().find(|block| block.kind == "disksim_disk").ok_or_else(|| {
            whole(
                "holds no `disksim_disk NAME { … }` block; name the .diskspecs or .parv file, not \
                 the .model"
                    .to_owned(),
            )
        })?,
    };
    let mut way = Way::default();
    let carries = |part: &&&Part| matches!(part.kind.as_str(), "disksim_bus" | "disksim_ctlr");
    for part in path_to_disk.iter().filter(carries) {
        way.pass(described(&part.name)?)?;
    }
    for name in WITHOUT_EFFECT {
        disk.find(name);
    }
    let model = disk.block("Model")?;
    let layout = layout(model)?;
    let zero_latency = (
        disk.integer("Immediate buffer read", LEVELS)? > 0,
        disk.integer("Immediate buffer write", LEVELS)? > 0,
    );
    let mechanics = mechanics(model.block("Mechanical Model")?, zero_latency, read)?;
    let mut drive = Drive {
        name: disk.name.clone(),
        layout,
        mechanics,
        cache: cache(disk)?,
        controller: controller(disk)?,
        queue: queue(disk)?,
    };
    way.bound(&mut drive.controller);
    model.all_read()?;
    disk.all_read()?;
    Ok((drive, disk.clone()))
}

/// From the root of a topology to its first drive.
fn path_to_disk(part: &Part) -> Option<Vec<&Part>> {
    if part.kind == "disksim_disk" {
        return Some(vec![part]);
    }
    let rest = part.parts.iter().find_map(path_to_disk)?;
    Some([part].into_iter().chain(rest).collect())
}

/// What lies between the host and a drive.
#[derive(Debug, Default)]
struct Way {
    read_sector_ns: u64,
    write_sector_ns: u64,
    arbitration_ns: u64,
}

impl Way {
    /// Adds what a part of the way takes.
    fn pass(&mut self, part: &Block) -> Result<(), FileError> {
        let (read, write) = match part.kind.as_str() {
            "disksim_bus" => {
                self.arbitration_ns += ns(part.number_or("Arbitration time", 0.0, MS)?);
                ("Read block transfer time", "Write block transfer time")
            }
            _ => ("Bulk sector transfer time", "Bulk sector transfer time"),
        };
        self.read_sector_ns = self.read_sector_ns.max(ns(part.number_or(read, 0.0, MS)?));
        self.write_sector_ns = self.write_sector_ns.max(ns(part.number_or(write, 0.0, MS)?));
        Ok(())
    }

    /// The slowest part counts for a sector; the bus is won for the command, and anew when
    /// the medium was waited for.
    fn bound(&self, controller: &mut ControllerSpec) {
        let slower = |own: &mut u64, way: u64| *own = (*own).max(way);
        slower(&mut controller.bus_read_sector_ns, self.read_sector_ns);
        slower(&mut controller.bus_write_sector_ns, self.write_sector_ns);
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
        controller.reselect_ns += self.arbitration_ns;
    }
}

fn ns(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

fn queue(disk: &Block) -> Result<QueueSpec, FileError> {
    let depth = match disk.integer("Max queue length", bounds(0.0, 4096.0, "commands"))? {
        0 => DEPTH_WITHOUT_LIMIT,
        depth => depth,
    };
    Ok(QueueSpec {
        order: QueueOrder::Positioning,
        depth: depth as u32,
        window: depth as u32,
        age_limit_ns: u64::MAX,
    })
}

fn cache(disk: &Block) -> Result<CacheSpec, FileError> {
    let segments = disk.integer("Number of buffer segments", bounds(0.0, 65_536.0, "segments"))?;
    let segment_sectors = disk.integer("Segment size (in blks)", bounds(1.0, 1e9, "sectors"))?;
    let ahead = bounds(0.0, segment_sectors as f64, "sectors (the segment's size)");
    let writes = bounds(1.0, segments.max(1) as f64, "segments (their number)");
    let write_segments = disk.integer("Maximum number of write segments", writes)?;
    let spans = match disk.integer("Fast write level", bounds(0.0, 2.0, "(a level)"))? {
        0 => 0,
        1 => 1,
        _ => write_segments as u32,
    };
    let keeps_request = disk.number("Read-ahead over requested", bounds(-1.0, 1.0, "(a level)"))?;
    Ok(CacheSpec {
        is_enabled: disk.integer("Enable caching in buffer", LEVELS)? > 0 && segments > 0,
        segments: segments as u32,
        segment_sectors: segment_sectors as u32,
        has_write_segment: disk.switch_or("Use separate write segment", false)?,
        read_ahead: match disk.integer("Buffer continuous read", LEVELS)? {
            0 => ReadAhead::None,
            1 => ReadAhead::Track,
            2 => ReadAhead::Cylinder,
            3 => ReadAhead::Segment,
            _ => ReadAhead::NextTrack,
        },
        read_ahead_sectors_max: disk.integer("Maximum read-ahead (blks)", ahead)? as u32,
        read_ahead_sectors_min: disk.integer("Minimum read-ahead (blks)", ahead)? as u32,
        ahead_over_requested: keeps_request != 0.0,
        ahead_on_hit: disk.switch_or("Read-ahead on idle hit", false)?,
        keeps_passing: disk.switch_or("Read any free blocks", false)?,
        joins_read_ahead: disk.switch_or("Allow almost read hits", false)?,
        reads_written: disk.switch_or("Allow read hits on write data", false)?,
        hits_pass: disk.switch_or("Allow sneaky full read hits", false)?,
        writes: WriteCacheSpec { spans, sectors: u64::from(spans) * segment_sectors },
        flushes_first: true,
    })
}

fn controller(disk: &Block) -> Result<ControllerSpec, FileError> {
    let scale = disk.number("Time scale for overheads", bounds(0.0, 1000.0, "times"))?;
    let every = disk.number("Per-request overhead time", MS)?;
    let scaled = |key: &str| Ok::<_, FileError>(ns(disk.number(key, MS)? * scale));
    let times = |after_read: &str, after_write: &str| {
        Ok::<_, FileError>(CommandTimes {
            after_read_ns: ns((disk.number(after_read, MS)? + every) * scale),
            after_write_ns: ns((disk.number(after_write, MS)? + every) * scale),
        })
    };
    let by_request = disk.switch_or("Set watermark by reqsize", true)?;
    let water_mark = disk.number("High (read) water mark", bounds(0.0, 1.0, "(a part)"))?;
    // A drive that never disconnects has nothing to get back, and no bus to give up early.
    let is_held = disk.switch_or("Never disconnect", false)?;
    let reselect = match scaled("First reselect overhead")? {
        _ if is_held => 0,
        reselect => reselect,
    };
    let bus_sector_ns = ns(disk.number("Bulk sector transfer time", MS)?);
    let early = EarlyDisconnect {
        command_ns: scaled("Extradisc command overhead")?,
        until_reconnect_ns: scaled("Extradisc disconnect overhead")?
            + scaled("Extradisc inter-disconnect delay")?
            + reselect,
        until_seek_ns: scaled("Extradisc seek delta")?,
        medium_min_ns: scaled("Minimum seek delay")?,
    };
    Ok(ControllerSpec {
        read_hit: times("Read hit over. after read", "Read hit over. after write")?,
        read_miss: times("Read miss over. after read", "Read miss over. after write")?,
        write_hit: times("Write hit over. after read", "Write hit over. after write")?,
        write_miss: times("Write miss over. after read", "Write miss over. after write")?,
        data_preparation_ns: scaled("Data preparation overhead")?,
        reselect_ns: reselect,
        read_completion_ns: scaled("Read completion overhead")?,
        write_completion_ns: scaled("Write completion overhead")?,
        bus_read_sector_ns: bus_sector_ns,
        bus_write_sector_ns: bus_sector_ns,
        // A mark by segment size is reached by no request smaller than that part of it.
        bus_after_1024th: if by_request { (water_mark * 1024.0) as u32 } else { 0 },
        early_disconnect: (disk.switch_or("Extra write disconnect", false)? && !is_held)
            .then_some(early),
    })
}

fn layout(model: &Block) -> Result<Layout, FileError> {
    let heads = model.integer("Number of data surfaces", bounds(1.0, 1024.0, "surfaces"))?;
    let cylinders = model.integer("Number of cylinders", bounds(1.0, 1e8, "cylinders"))?;
    let sectors = model.integer("Block count", bounds(1.0, 1e15, "sectors"))?;
    let block = model.block("Layout Model")?;
    if block.kind != "dm_layout_g1" {
        let problem = format!("`{}` is not a layout that is known; dm_layout_g1 is", block.kind);
        return Err(model.error("Layout Model", problem));
    }
    let range = block.integer("Rangesize for sparing", bounds(1.0, 1e8, "cylinders"))?;
    let sparing = match block.integer("Sparing scheme used", bounds(0.0, 10.0, "(a scheme)"))? {
        0 => Sparing::None,
        1 => Sparing::TracksPerZone,
        2 => Sparing::PerCylinder,
        3 => Sparing::PerTrack,
        4 => Sparing::PerCylinderSlipToEnd,
        5 => Sparing::CylinderFront,
        6 => Sparing::CylinderFrontSlipToEnd,
        7 => Sparing::EndOfDisk,
        8 => Sparing::PerRange { cylinders: range as u32 },
        9 => Sparing::PerZone,
        _ => Sparing::PerZoneSlipToEnd,
    };
    let mapping =
        match block.integer("LBN-to-PBN mapping scheme", bounds(0.0, 2.0, "(a scheme)"))? {
            0 => Mapping::Cylinders,
            1 => Mapping::SerpentineInZone,
            _ => Mapping::SerpentineOnDisk,
        };
    let in_turns = skew_in_turns(block, false)?;
    let zones = block.blocks("Zones")?;
    let zones =
        zones.into_iter().map(|zone| self::zone(zone, in_turns)).collect::<Result<_, _>>()?;
    block.all_read()?;
    let layout = Layout {
        heads: heads as u32,
        cylinders: cylinders as u32,
        sectors: Some(sectors),
        mapping,
        sparing,
        zones,
    };
    layout.check().map_err(|(index, key, problem)| {
        let zones = block.blocks("Zones").expect("read above");
        match index {
            Some(index) => zones[index].error(disksim_key(key), problem),
            None => model.error(disksim_key(key), problem),
        }
    })?;
    // As in DiskSim, what the zones hold counts where it is not quite what was stated.
    Ok(Layout { sectors: None, ..layout })
}

/// The name that DiskSim gives to a part of a layout that [`Layout::check`] complains of.
fn disksim_key(key: &'static str) -> &'static str {
    match key {
        "first_cylinder" => "First cylinder number",
        "last_cylinder" => "Last cylinder number",
        "front_sectors" => "Empty space at zone front",
        "spares" => "Number of spares",
        "remaps" => "defects",
        "sectors" => "Block count",
        "zones" => "Zones",
        other => other,
    }
}

fn skew_in_turns(block: &Block, default: bool) -> Result<bool, FileError> {
    block.choice("Skew units", default, &[("sectors", false), ("revolutions", true)])
}

fn zone(block: &Block, layout_in_turns: bool) -> Result<Zone, FileError> {
    let cylinder = bounds(0.0, 1e8, "(a cylinder)");
    let track = block.integer("Blocks per track", bounds(1.0, 1e6, "sectors"))?;
    let in_turns = skew_in_turns(block, layout_in_turns)?;
    let unit = if in_turns { track as f64 } else { 1.0 };
    let limit = if in_turns { 1e3 } else { 1e6 };
    let skew = bounds(-limit, limit, if in_turns { "revolutions" } else { "sectors" });
    let defects = block.numbers("defects", SECTORS)?;
    if defects.len() % 2 == 1 {
        let problem = "has an odd count of numbers; expected pairs: bad place, spare".to_owned();
        return Err(block.error("defects", problem));
    }
    let zone = Zone {
        first_cylinder: block.integer("First cylinder number", cylinder)? as u32,
        last_cylinder: block.integer("Last cylinder number", cylinder)? as u32,
        track_sectors: track as u32,
        offset_sectors: block.number("Offset of first block", skew)? * unit,
        front_sectors: block.integer("Empty space at zone front", SECTORS)?,
        track_skew_sectors: block.number_or("Skew for track switch", 0.0, skew)? * unit,
        cylinder_skew_sectors: block.number_or("Skew for cylinder switch", 0.0, skew)? * unit,
        spares: block.integer("Number of spares", SECTORS)?,
        slips: block.numbers("slips", SECTORS)?.into_iter().map(|slip| slip as u64).collect(),
        remaps: defects.chunks(2).map(|pair| (pair[0] as u64, pair[1] as u64)).collect(),
    };
    block.all_read()?;
    Ok(zone)
}

fn mechanics(
    block: &Block,
    (zero_latency_read, zero_latency_write): (bool, bool),
    read: ReadText<'_>,
) -> Result<MechanicsSpec, FileError> {
    if block.kind != "dm_mech_g1" {
        let problem =
            format!("`{}` is not a mechanical model that is known; dm_mech_g1 is", block.kind);
        return Err(FileError {
            field: block.kind.clone(),
            problem,
            ..block.error("", String::new())
        });
    }
    let access = match block.needed_text("Access time type")? {
        "trackSwitchPlusRotation" => AccessTime::Tracked,
        "averageRotation" => AccessTime::HalfTurn,
        "constant" => AccessTime::Constant { ns: ns(block.number("Constant access time", MS)?) },
        other => {
            let known = "trackSwitchPlusRotation, averageRotation, constant";
            return Err(block.error("Access time type", format!("`{other}` is none of: {known}")));
        }
    };
    let spec = MechanicsSpec {
        rpm: block.number("Rotation speed (in rpms)", bounds(60.0, 100_000.0, "rpm"))?,
        seek: seek_curve(block, read)?,
        head_switch_ns: ns(block.number("Head switch time", MS)?),
        write_seek: None,
        write_settle_ns: (block.number("Add. write settling delay", SETTLE)? * 1e6) as i64,
        access,
        zero_latency_read,
        zero_latency_write,
    };
    block.number("Percent error in rpms", bounds(0.0, 100.0, "%"))?;
    for unused in [
        "Constant access time",
        "Constant seek time",
        "Single cylinder seek time",
        "Average seek time",
        "Full strobe seek time",
        "Full seek curve",
        "First ten seek times",
        "HPL seek equation values",
    ] {
        block.find(unused);
    }
    block.all_read()?;
    Ok(spec)
}

fn seek_curve(block: &Block, read: ReadText<'_>) -> Result<SeekCurve, FileError> {
    let three = || {
        Ok::<_, FileError>(ThreePoints {
            single_ms: block.number("Single cylinder seek time", MS)?,
            average_ms: block.number("Average seek time", MS)?,
            full_ms: block.number("Full strobe seek time", MS)?,
        })
    };
    match block.needed_text("Seek type")? {
        "constant" => Ok(SeekCurve::Constant { ms: block.number("Constant seek time", MS)? }),
        "linear" => three().map(SeekCurve::Linear),
        "curve" => three().map(SeekCurve::Lee),
        "hpl" => hpl(block).map(SeekCurve::Hpl),
        "hplplus10" => {
            let ten = block.numbers("First ten seek times", MS)?;
            let count = ten.len();
            let ten = ten.try_into().map_err(|_| {
                block.error("First ten seek times", format!("has {count} times; expected 10 (ms)"))
            })?;
            Ok(SeekCurve::HplPlusTen(hpl(block)?, ten))
        }
        "extracted" => table(block, read),
        other => {
            let known = "constant, linear, curve, hpl, hplplus10, extracted";
            Err(block.error("Seek type", format!("`{other}` is none of: {known}")))
        }
    }
}

fn hpl(block: &Block) -> Result<Hpl, FileError> {
    let key = "HPL seek equation values";
    let values = block.numbers(key, bounds(-1.0, 1e9, "ms or cylinders"))?;
    let [division, root_base, root_factor, line_base, line_slope, single] = values[..] else {
        return Err(block.error(key, format!("has {} numbers; expected 6", values.len())));
    };
    Ok(Hpl {
        division_cylinders: division,
        root_base_ms: root_base,
        root_factor_ms: root_factor,
        line_base_ms: line_base,
        line_slope_ms: line_slope,
        single_ms: (single != -1.0).then_some(single),
    })
}

/// A measured curve: a file of `cylinders, ms` lines, or the same numbers in a list.
fn table(block: &Block, read: ReadText<'_>) -> Result<SeekCurve, FileError> {
    let key = "Full seek curve";
    let name = match block.find(key).map(|field| &field.value) {
        Some(Value::Text(name)) => name,
        Some(Value::List(_)) => {
            let numbers = block.numbers(key, bounds(0.0, 1e9, "cylinders or ms"))?;
            let points = numbers.chunks_exact(2).map(|pair| (pair[0] as u32, pair[1])).collect();
            return checked_table(points).map_err(|(_, problem)| block.error(key, problem));
        }
        _ => return Err(block.error(key, "is missing; expected the name of a file".to_owned())),
    };
    let path = Path::new(&block.file).parent().unwrap_or(Path::new("")).join(name);
    let file = path.display().to_string();
    let text = read(&path).map_err(|problem| block.error(key, format!("{file}: {problem}")))?;
    let mut points = Vec::new();
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let at = |problem: String| FileError {
            file: file.clone(),
            line: index + 1,
            field: String::new(),
            problem,
        };
        let words: Vec<&str> =
            line.split([',', ' ', '\t']).filter(|word| !word.is_empty()).collect();
        if words.is_empty() || words[0].starts_with('#') || (index == 0 && line.contains(':')) {
            continue;
        }
        let [distance, time] = words[..] else {
            return Err(at(format!("`{line}` is not a distance in cylinders and a time in ms")));
        };
        match (distance.parse::<u32>(), time.parse::<f64>()) {
            (Ok(distance), Ok(ms)) if (0.0..=10_000.0).contains(&ms) => points.push((distance, ms)),
            _ => {
                return Err(at(format!(
                    "`{line}` is not a distance in cylinders and a time in ms"
                )));
            }
        }
        lines.push(index + 1);
    }
    checked_table(points).map_err(|(index, problem)| FileError {
        file,
        line: lines.get(index).copied().unwrap_or(0),
        field: String::new(),
        problem,
    })
}

fn checked_table(points: Vec<(u32, f64)>) -> Result<SeekCurve, (usize, String)> {
    super::seek::check_table(&points)?;
    Ok(SeekCurve::Table(points))
}
