//! Reads a drive's description in TOML. This header documents all fields.
//!
//! ```toml
//! name = "…"
//! [geometry]                      # with separate zones …
//! heads = 2
//! cylinders = 50_000
//! sectors = 71_687_370            # stated size; if absent, the sum of the zones
//! mapping = "cylinders"           # or "serpentine in zone", "serpentine on disk"
//! sparing = "none"                # or another scheme, see `SPARINGS` below
//! range_cylinders = 1             # for sparing = "per range"
//! [[geometry.zones]]
//! first_cylinder = 0
//! last_cylinder = 999
//! track_sectors = 700
//! offset_sectors = 0.0            # angle of the zone's first sector from the index
//! track_skew_sectors = 60.0
//! cylinder_skew_sectors = 90.0
//! front_sectors = 0               # sectors without a number
//! spares = 0                      # per region of the sparing scheme
//! slips = []                      # defective sectors without a number, from the zone's start
//! remaps = []                     # pairs: defective sector, spare, from the zone's start
//! [geometry.even_zones]           # … or with equal zones, as in data sheets
//! zones = 16
//! outer_track_sectors = 910
//! inner_track_sectors = 500
//! track_skew_ms = 0.8             # default: the longer of head switch and shortest seek of a
//! cylinder_skew_ms = 1.0          # write, as drives are formatted to lose no revolution
//! [mechanics]
//! rpm = 10_000
//! head_switch_ms = 0.5
//! write_settle_ms = 0.5           # extra time of a write after any seek
//! access = "tracked"              # or "half turn", "constant" with access_ms
//! zero_latency_read = false
//! zero_latency_write = false
//! [seek]
//! curve = "lee"                   # or "constant", "linear", "square root", "table"
//! single_ms = 0.3
//! average_ms = 4.7
//! full_ms = 9.7
//! write_single_ms = 0.5           # seek times of writes, in place of write_settle_ms. The extra
//! write_average_ms = 5.2          # time of a write after a head switch is then write_single_ms
//! write_full_ms = 10.2            # minus single_ms
//! points = []                     # for "table": cylinders, ms, cylinders, ms, …
//! [cache]
//! segments = 16
//! segment_sectors = 1024
//! ```
//! The names of the fields in `[cache]`, `[overhead]`, `[bus]` and `[queue]` contain their units;
//! see the functions below. Each function that reads a block fails with a `FileError` if a field is
//! missing, malformed or out of bounds. Any value can be written as `{ value = …, source = "…" }`.

use super::drive::{
    AccessTime, AppendPolicy, CacheSpec, CommandTimes, ControllerSpec, DEFAULT_REQUEST_SECTORS_MAX,
    DriveDescription, MechanicsSpec, QueuePolicy, QueueSpec, ReadAhead, ReleasePolicy, WaterMark,
    WriteCacheSpec,
};
use super::geometry::check_layout;
use super::layout::{DiskZone, DriveLayout, LayoutFault, SparingScheme, TrackOrder};
use super::seek::{DataSheetSeeks, SeekCurve, check_table};
use crate::fields::{FieldBlock, FileError, NumberBounds, bounds};

/// Valid durations.
const MS: NumberBounds = bounds(0.0, 10_000.0, "ms");
/// Valid extra settle times of writes. A write can settle sooner than the seek curve, which is for
/// reads, predicts.
const SETTLE: NumberBounds = bounds(-10_000.0, 10_000.0, "ms");
/// Valid sector counts.
const SECTORS: NumberBounds = bounds(0.0, 1e15, "sectors");
/// Valid cylinder numbers.
const CYLINDER_NUMBERS: NumberBounds = bounds(0.0, 1e8, "cylinders");
/// Maximum number of even zones. Their tables take 16 MB of memory. Chosen, not measured: data
/// sheets have up to a few dozen zones.
const ZONES_MAX: u32 = 65_536;
/// Valid sectors per track.
const TRACK: NumberBounds = bounds(1.0, 1e6, "sectors");

/// Values of `geometry.sparing`. The range of one cylinder stands for any; `range_cylinders`
/// replaces it.
const SPARINGS: [(&str, SparingScheme); 11] = [
    ("none", SparingScheme::None),
    ("tracks per zone", SparingScheme::TracksPerZone),
    ("per cylinder", SparingScheme::PerCylinder),
    ("per track", SparingScheme::PerTrack),
    ("per cylinder, slips to end", SparingScheme::PerCylinderSlipToEnd),
    ("front of cylinder", SparingScheme::CylinderFront),
    ("front of cylinder, slips to end", SparingScheme::CylinderFrontSlipToEnd),
    ("end of disk", SparingScheme::EndOfDisk),
    ("per range", SparingScheme::PerRange { cylinders: 1 }),
    ("per zone", SparingScheme::PerZone),
    ("per zone, slips to end", SparingScheme::PerZoneSlipToEnd),
];

/// Values of `cache.read_ahead`.
const READ_AHEADS: [(&str, ReadAhead); 5] = [
    ("none", ReadAhead::None),
    ("track", ReadAhead::Track),
    ("cylinder", ReadAhead::Cylinder),
    ("segment", ReadAhead::Segment),
    ("next track", ReadAhead::NextTrack),
];

/// Converts ms to whole ns.
fn ms_to_ns(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

/// Converts ms to whole ns, also below 0.
pub(super) fn ms_to_signed_ns(ms: f64) -> i64 {
    (ms * 1e6).round() as i64
}

/// Builds the drive from the fields of its description. The caller rejects fields and tables of
/// `root` that are not read here.
pub(super) fn read_drive(root: &FieldBlock) -> Result<DriveDescription, FileError> {
    let mechanics = read_mechanics(root.block("mechanics")?, root.block("seek")?)?;
    let layout = read_layout(root.block("geometry")?, &mechanics)?;
    // In every curve a seek over 0 cylinders takes no time. A time for it would have no effect. The
    // distances of a checked table rise, so only its first point can have the distance 0.
    if let SeekCurve::Table(points) = &mechanics.seek
        && points[0].0 == 0
    {
        let problem = "a distance of 0 cylinders takes no time".to_owned();
        return Err(root.block("seek")?.error("points", problem));
    }
    Ok(DriveDescription {
        name: root.required_text("name")?.to_owned(),
        layout,
        mechanics,
        cache: read_cache(root.block("cache")?)?,
        controller: read_controller(root.block("overhead")?, root.block("bus")?)?,
        queue: read_queue(root.block("queue")?)?,
        unmodelled: Vec::new(),
    })
}

/// Reads the tables `mechanics` and `seek`. Times in milliseconds become nanoseconds.
fn read_mechanics(block: &FieldBlock, seek: &FieldBlock) -> Result<MechanicsSpec, FileError> {
    let access_names = ["tracked", "half turn", "constant"].map(|name| (name, name));
    let access = block.choice("access", "tracked", &access_names)?;
    let read_curve = read_seek_curve(seek)?;
    let (write_seek, write_settle_ns) = match read_write_seek(seek, &read_curve)? {
        // A separate curve states the settle time too: the difference of the shortest seeks.
        Some((curve, settle_ns)) => (Some(curve), settle_ns),
        None => (None, ms_to_signed_ns(block.number_or("write_settle_ms", 0.0, SETTLE)?)),
    };
    let spec = MechanicsSpec {
        rpm: block.number("rpm", bounds(60.0, 100_000.0, "rpm"))?,
        seek: read_curve,
        write_seek,
        head_switch_ns: ms_to_ns(block.number("head_switch_ms", MS)?),
        write_settle_ns,
        // No key states this. It is the same for all descriptions in TOML.
        settles_on_return: true,
        access: match access {
            "tracked" => AccessTime::Tracked,
            "half turn" => AccessTime::HalfTurn,
            _ => AccessTime::Constant { ns: ms_to_ns(block.number("access_ms", MS)?) },
        },
        zero_latency_read: block.switch_or("zero_latency_read", false)?,
        zero_latency_write: block.switch_or("zero_latency_write", false)?,
    };
    block.reject_unread()?;
    seek.reject_unread()?;
    Ok(spec)
}

/// Reads the seek curve for reads from the table `seek`: the name of a formula with its times, or a
/// table of distances and times.
fn read_seek_curve(block: &FieldBlock) -> Result<SeekCurve, FileError> {
    let single = || block.number("single_ms", MS);
    let full = || block.number("full_ms", MS);
    let data_sheet_seeks = || read_data_sheet_seeks(block, ["single_ms", "average_ms", "full_ms"]);
    let curve_names =
        ["constant", "linear", "lee", "square root", "table"].map(|name| (name, name));
    match block.choice("curve", "lee", &curve_names)? {
        "constant" => Ok(SeekCurve::Constant { ms: single()? }),
        "linear" => data_sheet_seeks().map(SeekCurve::Linear),
        "lee" => data_sheet_seeks().map(SeekCurve::Lee),
        "square root" => Ok(SeekCurve::SquareRoot { single_ms: single()?, full_ms: full()? }),
        _ => {
            let numbers = block.numbers("points", bounds(0.0, 1e8, "cylinders or ms"))?;
            if numbers.len() % 2 == 1 {
                let problem = "has an odd count; expected cylinders, ms, …".to_owned();
                return Err(block.error("points", problem));
            }
            let points: Vec<_> = numbers.chunks(2).map(|pair| (pair[0] as u32, pair[1])).collect();
            // One field has all points, so the index of the wrong one gives no other line. An empty
            // table is refused too.
            check_table(&points).map_err(|(_index, problem)| block.error("points", problem))?;
            Ok(SeekCurve::Table(points))
        }
    }
}

/// Reads the three seek times of a data sheet, which must not decrease. `keys` are the fields of
/// the shortest, the average and the longest seek.
pub(super) fn read_data_sheet_seeks(
    block: &FieldBlock,
    keys: [&str; 3],
) -> Result<DataSheetSeeks, FileError> {
    let [single, average, full] = keys;
    let points = DataSheetSeeks {
        single_ms: block.number(single, MS)?,
        average_ms: block.number(average, MS)?,
        full_ms: block.number(full, MS)?,
    };
    if points.single_ms > points.average_ms || points.average_ms > points.full_ms {
        let problem = format!("{single}, {average} and {full} must rise in this order");
        return Err(block.error(average, problem));
    }
    Ok(points)
}

/// Reads the seek curve for writes and the extra settle time in ns; `None` if the description has
/// no such curve. The curve has the same formula as `read_curve`.
fn read_write_seek(
    block: &FieldBlock,
    read_curve: &SeekCurve,
) -> Result<Option<(SeekCurve, i64)>, FileError> {
    let keys = ["write_single_ms", "write_average_ms", "write_full_ms"];
    let Some(given_key) = keys.into_iter().find(|key| block.find(key).is_some()) else {
        return Ok(None);
    };
    let points = read_data_sheet_seeks(block, keys)?;
    let (write_curve, read_points) = match read_curve {
        SeekCurve::Lee(read_points) => (SeekCurve::Lee(points), read_points),
        SeekCurve::Linear(read_points) => (SeekCurve::Linear(points), read_points),
        _ => {
            let problem = "needs a curve through three figures: lee or linear".to_owned();
            return Err(block.error(given_key, problem));
        }
    };
    let settle_ms = points.single_ms - read_points.single_ms;
    Ok(Some((write_curve, ms_to_signed_ns(settle_ms))))
}

/// Reads the table `geometry` and checks it. Its zones are listed, or calculated from `even_zones`
/// and the `mechanics`.
fn read_layout(block: &FieldBlock, mechanics: &MechanicsSpec) -> Result<DriveLayout, FileError> {
    let heads = block.integer("heads", bounds(1.0, 1024.0, "heads"))? as u32;
    let cylinders = block.integer("cylinders", bounds(1.0, 1e8, "cylinders"))? as u32;
    let sectors = match block.find("sectors") {
        Some(_) => Some(block.integer("sectors", bounds(1.0, 1e15, "sectors"))?),
        None => None,
    };
    let range_bounds = bounds(1.0, 1e8, "cylinders");
    let range_cylinders = block.integer_or("range_cylinders", 1, range_bounds)? as u32;
    let sparing = match block.choice("sparing", SparingScheme::None, &SPARINGS)? {
        SparingScheme::PerRange { .. } => SparingScheme::PerRange { cylinders: range_cylinders },
        sparing => sparing,
    };
    let track_orders = [
        ("cylinders", TrackOrder::Cylinders),
        ("serpentine in zone", TrackOrder::SerpentineInZone),
        ("serpentine on disk", TrackOrder::SerpentineOnDisk),
    ];
    let mapping = block.choice("mapping", TrackOrder::Cylinders, &track_orders)?;
    let zones = match block.find("even_zones") {
        Some(_) => create_even_zones(block.block("even_zones")?, cylinders, mechanics)?,
        None => block.blocks("zones")?.into_iter().map(read_zone).collect::<Result<_, _>>()?,
    };
    let layout = DriveLayout { heads, cylinders, sectors, mapping, sparing, zones };
    // A zone without a block of its own comes from `even_zones`.
    check_layout(&layout).map_err(|LayoutFault { zone_index, key, problem }| match zone_index {
        Some(index) if block.find("zones").is_some() => {
            block.blocks("zones").expect("the zones were read above")[index].error(key, problem)
        }
        _ => block.error(key, problem),
    })?;
    block.reject_unread()?;
    Ok(layout)
}

/// Reads one zone of the table `geometry`. Spares, slips and remaps are optional.
fn read_zone(block: &FieldBlock) -> Result<DiskZone, FileError> {
    let skew_bounds = bounds(-1e6, 1e6, "sectors");
    let remaps = block.numbers("remaps", SECTORS)?;
    if remaps.len() % 2 == 1 {
        let problem = "has an odd count; expected pairs: bad sector, spare".to_owned();
        return Err(block.error("remaps", problem));
    }
    let zone = DiskZone {
        first_cylinder: block.integer("first_cylinder", CYLINDER_NUMBERS)? as u32,
        last_cylinder: block.integer("last_cylinder", CYLINDER_NUMBERS)? as u32,
        track_sectors: block.integer("track_sectors", TRACK)? as u32,
        offset_sectors: block.number_or("offset_sectors", 0.0, skew_bounds)?,
        front_sectors: block.integer_or("front_sectors", 0, SECTORS)?,
        track_skew_sectors: block.number_or("track_skew_sectors", 0.0, skew_bounds)?,
        cylinder_skew_sectors: block.number_or("cylinder_skew_sectors", 0.0, skew_bounds)?,
        spares: block.integer_or("spares", 0, SECTORS)?,
        slips: block.numbers("slips", SECTORS)?.into_iter().map(|slip| slip as u64).collect(),
        remaps: remaps.chunks(2).map(|pair| (pair[0] as u64, pair[1] as u64)).collect(),
    };
    block.reject_unread()?;
    Ok(zone)
}

/// Creates zones of equal width. The sectors per track decrease evenly from the outer to the inner
/// zone. Skews are rounded up to whole sectors, so that the head has settled when the next track
/// begins.
fn create_even_zones(
    block: &FieldBlock,
    cylinders: u32,
    mechanics: &MechanicsSpec,
) -> Result<Vec<DiskZone>, FileError> {
    let revolution_ms = 60e3 / mechanics.rpm;
    let zone_bounds = match cylinders {
        0..=ZONES_MAX => bounds(1.0, f64::from(cylinders), "zones (the cylinders)"),
        _ => bounds(1.0, f64::from(ZONES_MAX), "zones"),
    };
    let zones = block.integer("zones", zone_bounds)? as u32;
    let outer_sectors = block.number("outer_track_sectors", TRACK)?;
    let inner_bounds = bounds(1.0, outer_sectors, "sectors (the outer)");
    let inner_sectors = block.number("inner_track_sectors", inner_bounds)?;
    let skew_bounds = bounds(0.0, revolution_ms, "ms (a revolution)");
    // Default skew. A skew of a whole revolution is equivalent to no skew.
    let needed_ms = mechanics.track_switch_ms(cylinders) % revolution_ms;
    let track_skew_ms = block.number_or("track_skew_ms", needed_ms, skew_bounds)?;
    let cylinder_skew_ms = block.number_or("cylinder_skew_ms", needed_ms, skew_bounds)?;
    block.reject_unread()?;
    let first_cylinder =
        |index: u32| (u64::from(cylinders) * u64::from(index) / u64::from(zones)) as u32;
    let zone = |index: u32| {
        // 0 for the outer zone, also if it is the only one; 1 for the inner zone.
        let inward_fraction = f64::from(index) / f64::from((zones - 1).max(1));
        let track_sectors =
            (outer_sectors + (inner_sectors - outer_sectors) * inward_fraction).round();
        let skew_sectors = |ms: f64| (ms / revolution_ms * track_sectors).ceil();
        DiskZone {
            first_cylinder: first_cylinder(index),
            last_cylinder: first_cylinder(index + 1) - 1,
            track_sectors: track_sectors as u32,
            track_skew_sectors: skew_sectors(track_skew_ms),
            cylinder_skew_sectors: skew_sectors(cylinder_skew_ms),
            ..DiskZone::default()
        }
    };
    Ok((0..zones).map(zone).collect())
}

/// Reads the table `cache` of the drive's buffer. Sizes are in sectors of 512 bytes.
/// `early_writes = 0`, the default, disables the write cache.
fn read_cache(block: &FieldBlock) -> Result<CacheSpec, FileError> {
    let segment_sectors = block.integer("segment_sectors", bounds(1.0, 1e9, "sectors"))?;
    let ahead_bounds = bounds(0.0, segment_sectors as f64, "sectors (the segment's size)");
    let read_ahead = block.choice("read_ahead", ReadAhead::Segment, &READ_AHEADS)?;
    let read_ahead_max =
        block.integer_or("read_ahead_sectors_max", segment_sectors, ahead_bounds)?;
    let segments = block.integer("segments", bounds(1.0, 65_536.0, "segments"))?;
    // Properties without a key are the same for all descriptions in TOML.
    let spec = CacheSpec {
        is_enabled: block.switch_or("enabled", true)?,
        segments: segments as u32,
        segment_sectors: segment_sectors as u32,
        has_write_segment: block.switch_or("write_segment", false)?,
        read_ahead,
        read_ahead_sectors_max: read_ahead_max as u32,
        read_ahead_sectors_min: block.integer_or("read_ahead_sectors_min", 0, ahead_bounds)? as u32,
        ahead_over_requested: block.switch_or("ahead_over_requested", true)?,
        ahead_on_hit: block.switch_or("ahead_on_hit", true)?,
        caches_passing_sectors: block.switch_or("keeps_passing", false)?,
        joins_read_ahead: block.switch_or("joins_read_ahead", true)?,
        reads_written: block.switch_or("reads_written", true)?,
        releases: ReleasePolicy::Before,
        hits_overtake: block.switch_or("hits_pass", true)?,
        early_send_mark: None,
        stops_in_sector: false,
        stops_on_arrival: false,
        writes: WriteCacheSpec {
            spans: block.integer_or("early_writes", 0, bounds(0.0, 65_536.0, "writes"))? as u32,
            sectors: block.integer_or("write_sectors", segments * segment_sectors, SECTORS)?,
        },
        write_back_tracks: block.integer_or("write_back_tracks", 1, bounds(1.0, 1e6, "tracks"))?
            as u32,
        flushes_first: block.switch_or("flushes_first", false)?,
        appends: AppendPolicy::Always,
    };
    block.reject_unread()?;
    Ok(spec)
}

/// Reads the tables `overhead` and `bus`. Times in milliseconds become nanoseconds, and the speed
/// of the bus becomes the time of a sector.
fn read_controller(overhead: &FieldBlock, bus: &FieldBlock) -> Result<ControllerSpec, FileError> {
    // A description in TOML has one time, whatever the previous command was.
    let times = |key: &str| {
        let ns = ms_to_ns(overhead.number(key, MS)?);
        Ok::<_, FileError>(CommandTimes { after_read_ns: ns, after_write_ns: ns })
    };
    let optional_ns = |key: &str| Ok::<_, FileError>(ms_to_ns(overhead.number_or(key, 0.0, MS)?));
    // Time of a 512-byte sector: 512 / (MB/s) in µs.
    let mb_per_s = bus.number("mb_per_s", bounds(0.001, 1e6, "MB/s"))?;
    let bus_sector_ns = (512.0 * 1000.0 / mb_per_s).round() as u64;
    let fraction =
        bus.number_or("starts_after_part", 0.0, bounds(0.0, 1.0, "(a part of the read)"))?;
    let spec = ControllerSpec {
        read_hit: times("read_hit_ms")?,
        read_miss: times("read_miss_ms")?,
        write_hit: times("write_hit_ms")?,
        write_miss: times("write_miss_ms")?,
        data_preparation_ns: optional_ns("data_preparation_ms")?,
        reselect_ns: optional_ns("reselect_ms")?,
        // A description in TOML has one time for the first and for all later returns to the
        // bus.
        reselect_again_ns: optional_ns("reselect_ms")?,
        read_completion_ns: optional_ns("read_completion_ms")?,
        write_completion_ns: optional_ns("write_completion_ms")?,
        bus_read_sector_ns: bus_sector_ns,
        bus_write_sector_ns: bus_sector_ns,
        // In 1/1024 of the read.
        bus_after: WaterMark::Part((fraction * 1024.0) as u32),
        // No key states this. It is the same for all descriptions in TOML.
        buffers_waiting_writes: true,
        ..ControllerSpec::default()
    };
    overhead.reject_unread()?;
    bus.reject_unread()?;
    Ok(spec)
}

/// Reads the table `queue` of commands in the drive: their order, the depth and the largest
/// request. The order chooses among a window of the oldest commands. A command beyond the age limit
/// goes first.
fn read_queue(block: &FieldBlock) -> Result<QueueSpec, FileError> {
    let depth = block.integer("depth", bounds(1.0, 4096.0, "commands"))?;
    let window_bounds = bounds(1.0, depth as f64, "commands (the depth)");
    let orders = [("positioning", QueuePolicy::Positioning), ("elevator", QueuePolicy::Elevator)];
    let spec = QueueSpec {
        order: block.choice("order", QueuePolicy::Positioning, &orders)?,
        depth: depth as u32,
        window: block.integer_or("window", depth, window_bounds)? as u32,
        age_limit_ns: ms_to_ns(block.number_or(
            "age_limit_ms",
            10_000.0,
            bounds(0.0, 1e6, "ms"),
        )?),
        combines_writes: block.switch_or("joins_writes", false)?,
        // A KiB has two sectors.
        request_sectors_max: 2 * block.integer_or(
            "request_kib",
            u64::from(DEFAULT_REQUEST_SECTORS_MAX / 2),
            bounds(4.0, 65_536.0, "KiB"),
        )? as u32,
    };
    block.reject_unread()?;
    Ok(spec)
}
