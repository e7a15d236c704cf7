//! Reads the surfaces and the mechanics of DiskSim's `dm_disk`: `dm_layout_g1` and `dm_mech_g1`.
//! Each function that reads a block fails with a `FileError` if a field is missing, malformed or
//! out of bounds.

use std::path::Path;

use super::describe_toml::{ms_to_signed_ns, read_data_sheet_seeks};
use super::disksim_syntax::ReadText;
use super::drive::{AccessTime, MechanicsSpec};
use super::geometry::{Geometry, check_layout};
use super::layout::{DiskZone, DriveLayout, LayoutFault, SparingScheme, TrackOrder};
use super::seek::{HplCurve, SeekCurve};
use crate::fields::{FieldBlock, FieldValue, FileError, NumberBounds, bounds};

/// Valid durations.
pub(super) const MS: NumberBounds = bounds(0.0, 10_000.0, "ms");
/// Valid sector counts.
pub(super) const SECTORS: NumberBounds = bounds(0.0, 1e15, "sectors");
/// Valid extra settle times. The delay is negative in some extracted files (dec_rz26).
const SETTLE: NumberBounds = bounds(-10_000.0, 10_000.0, "ms");

/// Reads and checks the layout. Adds a message to `unmodelled` for a field without effect.
pub(super) fn read_layout(
    model: &FieldBlock,
    unmodelled: &mut Vec<String>,
) -> Result<DriveLayout, FileError> {
    let heads = model.integer("Number of data surfaces", bounds(1.0, 1024.0, "surfaces"))?;
    let cylinders = model.integer("Number of cylinders", bounds(1.0, 1e8, "cylinders"))?;
    let sectors = model.integer("Block count", bounds(1.0, 1e15, "sectors"))?;
    let block = model.block("Layout Model")?;
    if block.kind != "dm_layout_g1" {
        let problem = format!("`{}` is not a layout that is known; dm_layout_g1 is", block.kind);
        return Err(model.error("Layout Model", problem));
    }
    let range_cylinders = block.integer("Rangesize for sparing", bounds(1.0, 1e8, "cylinders"))?;
    let sparing = match block.integer("Sparing scheme used", bounds(0.0, 10.0, "(a scheme)"))? {
        0 => SparingScheme::None,
        1 => SparingScheme::TracksPerZone,
        2 => SparingScheme::PerCylinder,
        3 => SparingScheme::PerTrack,
        4 => SparingScheme::PerCylinderSlipToEnd,
        5 => SparingScheme::CylinderFront,
        6 => SparingScheme::CylinderFrontSlipToEnd,
        7 => SparingScheme::EndOfDisk,
        8 => SparingScheme::PerRange { cylinders: range_cylinders as u32 },
        9 => SparingScheme::PerZone,
        _ => SparingScheme::PerZoneSlipToEnd,
    };
    let mapping =
        match block.integer("LBN-to-PBN mapping scheme", bounds(0.0, 2.0, "(a scheme)"))? {
            0 => TrackOrder::Cylinders,
            1 => TrackOrder::SerpentineInZone,
            _ => TrackOrder::SerpentineOnDisk,
        };
    let in_revolutions_by_default = false;
    let skews_in_revolutions = skew_in_revolutions(block, in_revolutions_by_default)?;
    let zone_blocks = block.blocks("Zones")?;
    let zones = zone_blocks.iter().map(|zone_block| {
        let mut zone = read_zone(zone_block, skews_in_revolutions)?;
        // The message names the slips, even if only remaps were removed.
        if remove_beyond_zone(&mut zone, sparing, heads as u32) {
            unmodelled.push(no_effect_message(
                zone_block,
                "slips",
                "what lies beyond the zone is left out",
            ));
        }
        Ok(zone)
    });
    let zones = zones.collect::<Result<_, FileError>>()?;
    block.reject_unread()?;
    let layout = DriveLayout {
        heads: heads as u32,
        cylinders: cylinders as u32,
        // The stated block count is only compared below.
        sectors: None,
        mapping,
        sparing,
        zones,
    };
    check_layout(&layout).map_err(|LayoutFault { zone_index, key, problem }| match zone_index {
        Some(index) => zone_blocks[index].error(disksim_key(key), problem),
        None => block.error(disksim_key(key), problem),
    })?;
    // As in DiskSim, the sum of the zones counts. A difference above 1 % is reported.
    let zone_sectors = Geometry::new(&layout).numbered_sectors();
    if sectors.abs_diff(zone_sectors) > zone_sectors / 100 {
        let instead = format!("its zones hold {zone_sectors} sectors, and that counts");
        unmodelled.push(no_effect_message(model, "Block count", &instead));
    }
    Ok(layout)
}

/// Removes slips and remaps beyond the end of their zone, which some published files have. Returns
/// true if there were any, for a message. `heads` is the number of surfaces.
fn remove_beyond_zone(zone: &mut DiskZone, sparing: SparingScheme, heads: u32) -> bool {
    // The scheme with spare tracks counts slips and remaps in tracks, the others in sectors.
    let unit_sectors =
        if sparing == SparingScheme::TracksPerZone { u64::from(zone.track_sectors) } else { 1 };
    // A zone whose last cylinder precedes the first has no size. `check_layout` rejects it later.
    if zone.last_cylinder < zone.first_cylinder {
        return false;
    }
    let end = zone.physical_sectors(heads) / unit_sectors;
    let count_before = zone.slips.len() + zone.remaps.len();
    zone.slips.retain(|slip| *slip < end);
    zone.remaps.retain(|(bad, spare)| *bad.max(spare) < end);
    zone.slips.len() + zone.remaps.len() < count_before
}

/// Returns DiskSim's name for the field `key` of a layout that `check_layout` rejects. A field
/// without another name there keeps its own.
fn disksim_key(key: &'static str) -> &'static str {
    match key {
        "first_cylinder" => "First cylinder number",
        "last_cylinder" => "Last cylinder number",
        "front_sectors" => "Empty space at zone front",
        "spares" => "Number of spares",
        "remaps" => "defects",
        "zones" => "Zones",
        "heads" => "Number of data surfaces",
        other => other,
    }
}

/// Returns true if skews are in revolutions, not in sectors; `default` if it is not stated.
fn skew_in_revolutions(block: &FieldBlock, default: bool) -> Result<bool, FileError> {
    block.choice("Skew units", default, &[("sectors", false), ("revolutions", true)])
}

/// Reads one zone. A zone that states no unit of its skews has the unit of the layout: revolutions
/// if `layout_in_revolutions`, otherwise sectors.
fn read_zone(block: &FieldBlock, layout_in_revolutions: bool) -> Result<DiskZone, FileError> {
    let cylinder_bounds = bounds(0.0, 1e8, "(a cylinder)");
    let track_sectors = block.integer("Blocks per track", bounds(1.0, 1e6, "sectors"))?;
    let in_revolutions = skew_in_revolutions(block, layout_in_revolutions)?;
    let unit_sectors = if in_revolutions { track_sectors as f64 } else { 1.0 };
    let skew_bounds = match in_revolutions {
        true => bounds(-1e3, 1e3, "revolutions"),
        false => bounds(-1e6, 1e6, "sectors"),
    };
    let skew_sectors =
        |key: &str| Ok::<_, FileError>(block.number_or(key, 0.0, skew_bounds)? * unit_sectors);
    let defects = block.numbers("defects", SECTORS)?;
    if defects.len() % 2 == 1 {
        let problem = "has an odd count of numbers; expected pairs: bad place, spare".to_owned();
        return Err(block.error("defects", problem));
    }
    let zone = DiskZone {
        first_cylinder: block.integer("First cylinder number", cylinder_bounds)? as u32,
        last_cylinder: block.integer("Last cylinder number", cylinder_bounds)? as u32,
        track_sectors: track_sectors as u32,
        offset_sectors: block.number("Offset of first block", skew_bounds)? * unit_sectors,
        front_sectors: block.integer("Empty space at zone front", SECTORS)?,
        track_skew_sectors: skew_sectors("Skew for track switch")?,
        cylinder_skew_sectors: skew_sectors("Skew for cylinder switch")?,
        spares: block.integer("Number of spares", SECTORS)?,
        slips: block.numbers("slips", SECTORS)?.into_iter().map(|slip| slip as u64).collect(),
        remaps: defects.chunks(2).map(|pair| (pair[0] as u64, pair[1] as u64)).collect(),
    };
    block.reject_unread()?;
    Ok(zone)
}

/// Reads the mechanical model. The pair of switches is for reads and writes that start in the
/// middle of their sectors; it stands in the block of the drive. Adds a message to `unmodelled` for
/// each field without effect. `read` returns the text of a file.
pub(super) fn read_mechanics(
    block: &FieldBlock,
    (zero_latency_read, zero_latency_write): (bool, bool),
    read: ReadText<'_>,
    unmodelled: &mut Vec<String>,
) -> Result<MechanicsSpec, FileError> {
    if block.kind != "dm_mech_g1" {
        let problem =
            format!("`{}` is not a mechanical model that is known; dm_mech_g1 is", block.kind);
        // `error` states the file and the line of the block.
        return Err(FileError {
            field: block.kind.clone(),
            problem,
            ..block.error("", String::new())
        });
    }
    let access = match block.required_text("Access time type")? {
        "trackSwitchPlusRotation" => AccessTime::Tracked,
        "averageRotation" => AccessTime::HalfTurn,
        "constant" => {
            AccessTime::Constant { ns: ms_to_ns(block.number("Constant access time", MS)?) }
        }
        other => {
            let known = "trackSwitchPlusRotation, averageRotation, constant";
            return Err(block.error("Access time type", format!("`{other}` is none of: {known}")));
        }
    };
    let seek = read_seek_curve(block, read)?;
    let spec = MechanicsSpec {
        rpm: block.number("Rotation speed (in rpms)", bounds(60.0, 100_000.0, "rpm"))?,
        // Drives whose seek curve was measured settle again on the track on which they are.
        settles_on_return: matches!(seek, SeekCurve::Table(_)),
        seek,
        head_switch_ns: ms_to_ns(block.number("Head switch time", MS)?),
        write_seek: None,
        write_settle_ns: ms_to_signed_ns(block.number("Add. write settling delay", SETTLE)?),
        access,
        zero_latency_read,
        zero_latency_write,
    };
    if block.number("Percent error in rpms", bounds(0.0, 100.0, "%"))? > 0.0 {
        unmodelled.push(no_effect_message(
            block,
            "Percent error in rpms",
            "every drive turns at its speed",
        ));
    }
    // Fields of other access times and seek types are accepted without effect. `find` marks them as
    // read.
    for unused_key in [
        "Constant access time",
        "Constant seek time",
        "Single cylinder seek time",
        "Average seek time",
        "Full strobe seek time",
        "Full seek curve",
        "First ten seek times",
        "HPL seek equation values",
    ] {
        block.find(unused_key);
    }
    block.reject_unread()?;
    Ok(spec)
}

/// Reads the seek curve. `read` returns the text of a file.
fn read_seek_curve(block: &FieldBlock, read: ReadText<'_>) -> Result<SeekCurve, FileError> {
    let keys = ["Single cylinder seek time", "Average seek time", "Full strobe seek time"];
    let data_sheet_seeks = || read_data_sheet_seeks(block, keys);
    match block.required_text("Seek type")? {
        "constant" => Ok(SeekCurve::Constant { ms: block.number("Constant seek time", MS)? }),
        "linear" => data_sheet_seeks().map(SeekCurve::Linear),
        "curve" => data_sheet_seeks().map(SeekCurve::Lee),
        "hpl" => read_hpl_curve(block).map(SeekCurve::Hpl),
        "hplplus10" => {
            let first_ten = block.numbers("First ten seek times", MS)?;
            let count = first_ten.len();
            let first_ten = first_ten.try_into().map_err(|_| {
                block.error("First ten seek times", format!("has {count} times; expected 10 (ms)"))
            })?;
            Ok(SeekCurve::HplPlusTen(read_hpl_curve(block)?, first_ten))
        }
        "extracted" => read_seek_table(block, read),
        other => {
            let known = "constant, linear, curve, hpl, hplplus10, extracted";
            Err(block.error("Seek type", format!("`{other}` is none of: {known}")))
        }
    }
}

/// Reads the parameters of the HPL equation.
fn read_hpl_curve(block: &FieldBlock) -> Result<HplCurve, FileError> {
    let key = "HPL seek equation values";
    let values = block.numbers(key, bounds(-1.0, 1e9, "ms or cylinders"))?;
    let [division, root_base, root_factor, line_base, line_slope, single] = values[..] else {
        return Err(block.error(key, format!("has {} numbers; expected 6", values.len())));
    };
    Ok(HplCurve {
        division_cylinders: division,
        root_base_ms: root_base,
        root_factor_ms: root_factor,
        line_base_ms: line_base,
        line_slope_ms: line_slope,
        // −1 means that no separate time is stated.
        single_ms: (single != -1.0).then_some(single),
    })
}

/// Reads a measured curve: a file with lines of `cylinders, ms`, or the same numbers in a list.
/// `read` returns the text of a file.
fn read_seek_table(block: &FieldBlock, read: ReadText<'_>) -> Result<SeekCurve, FileError> {
    let key = "Full seek curve";
    let name = match block.find(key).map(|field| &field.value) {
        Some(FieldValue::Text(name)) => name,
        Some(FieldValue::List(_)) => {
            let numbers = block.numbers(key, bounds(0.0, 1e9, "cylinders or ms"))?;
            if let (1, Some(last)) = (numbers.len() % 2, numbers.last()) {
                let problem = format!("ends with the distance {last} without its time in ms");
                return Err(block.error(key, problem));
            }
            let points = numbers.chunks_exact(2).map(|pair| (pair[0] as u32, pair[1])).collect();
            // One field has all points, so the index of the wrong one gives no other line.
            return checked_table(points).map_err(|(_index, problem)| block.error(key, problem));
        }
        // Absent, or neither a name nor a list.
        _ => return Err(block.error(key, "is missing; expected the name of a file".to_owned())),
    };
    // The name is relative to the folder of the file with the block.
    let path = Path::new(&block.file).parent().unwrap_or(Path::new("")).join(name);
    let file = path.display().to_string();
    let text = read(&path).map_err(|problem| block.error(key, format!("{file}: {problem}")))?;
    let mut points = Vec::new();
    // Line number of each point, for errors.
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_error = |problem: String| FileError {
            file: file.clone(),
            line: index + 1,
            field: String::new(),
            problem,
        };
        let words: Vec<&str> =
            line.split([',', ' ', '\t']).filter(|word| !word.is_empty()).collect();
        // A first line with a colon is the heading, as in "Seek distances measured: 2".
        if words.is_empty() || words[0].starts_with('#') || (index == 0 && line.contains(':')) {
            continue;
        }
        let [distance, time] = words[..] else {
            return Err(line_error(format!(
                "`{line}` is not a distance in cylinders and a time in ms"
            )));
        };
        match (distance.parse::<u32>(), time.parse::<f64>()) {
            (Ok(distance), Ok(ms)) if (0.0..=10_000.0).contains(&ms) => points.push((distance, ms)),
            _ => {
                return Err(line_error(format!(
                    "`{line}` is not a distance in cylinders and a time in ms"
                )));
            }
        }
        lines.push(index + 1);
    }
    checked_table(points).map_err(|(index, problem)| FileError {
        file,
        // An empty table has no line: 0 means the file as a whole.
        line: lines.get(index).copied().unwrap_or(0),
        field: String::new(),
        problem,
    })
}

/// Checks a measured curve. The error contains the index of the wrong point and the problem.
fn checked_table(points: Vec<(u32, f64)>) -> Result<SeekCurve, (usize, String)> {
    super::seek::check_table(&points)?;
    Ok(SeekCurve::Table(points))
}

/// Formats the message that the field `key` has no effect. `instead` is the model's behaviour.
pub(super) fn no_effect_message(block: &FieldBlock, key: &str, instead: &str) -> String {
    block.error(key, format!("is not modelled; {instead}")).to_string()
}

/// Converts ms to whole ns.
pub(super) fn ms_to_ns(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}
