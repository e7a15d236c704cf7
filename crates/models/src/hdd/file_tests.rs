//! Reading of parameter files: the built drives, and the messages for invalid files.
//!
//! The tiny drive has 10 cylinders of 2 tracks of 16 sectors, and turns in 10 ms.

use std::path::Path;

use super::describe_toml;
use super::disksim;
use super::drive::DriveDescription;
use crate::fields::{FileError, toml_text};

/// The tiny drive's electronics and cache.
const SPECS: &str = include_str!("tiny.diskspecs");

/// The tiny drive's surfaces and mechanics.
const MODEL: &str = include_str!("tiny.model");

/// The tiny drive's seek curve: distances in cylinders and times in ms.
const SEEK: &str = include_str!("tiny.seek");

/// Loads the tiny drive with `from` replaced by `to` in the file `name`.
fn load_tiny(name: &str, from: &str, to: &str) -> Result<DriveDescription, FileError> {
    load_with(&[(name, from, to)])
}

/// Loads the tiny drive with several replacements.
pub(super) fn load_with(changes: &[(&str, &str, &str)]) -> Result<DriveDescription, FileError> {
    let read = |path: &Path| {
        let file = path.display().to_string();
        let text = match file.as_str() {
            "tiny.diskspecs" => SPECS,
            "tiny.model" => MODEL,
            "tiny.seek" => SEEK,
            _ => return Err("can't be read: no such file".to_owned()),
        };
        let mut text = text.to_owned();
        for (_, from, to) in changes.iter().filter(|(name, ..)| *name == file) {
            assert!(text.contains(from), "`{from}` is in {file}");
            text = text.replace(from, to);
        }
        Ok(text)
    };
    disksim::load(Path::new("tiny.diskspecs"), &read).map(|(drive, _)| drive)
}

/// Returns the message with which the tiny drive is rejected after one replacement.
fn load_error(name: &str, from: &str, to: &str) -> String {
    load_tiny(name, from, to).expect_err("a bad file").to_string()
}

#[test]
fn the_tiny_drive_loads_as_written() {
    let drive = load_tiny("", "", "").expect("a good file");
    assert_eq!(drive.name, "TINY");
    assert_eq!(drive.mechanics.head_switch_ns, 500_000);
    assert_eq!(drive.controller.write_miss.after_write_ns, 800_000);
    assert_eq!(drive.controller.bus_read_sector_ns, 100_000);
    assert_eq!(drive.queue.depth, 4);
    // Half-way between the measured distances of 1 and 9 cylinders, 1 and 2 ms.
    assert!((drive.mechanics.seek.ms(5, 10) - 1.5).abs() < 1e-9);
}

/// The system of DiskSim's manual that contains a drive: driver, bus, controller, bus, drive.
const PARV: &str = r#"
disksim_global Global { Init Seed = 42, Stat definition file = statdefs }
disksim_bus HOST { type = 1, Arbitration type = 1, Arbitration time = 0.01,
   Read block transfer time = 0.0, Write block transfer time = 0.0, Print stats = 0 }
disksim_bus SCSI { type = 1, Arbitration type = 1, Arbitration time = 0.02,
   Read block transfer time = 0.17, Write block transfer time = 0.18, Print stats = 1 }
disksim_ctlr CTLR0 { type = 1, Bulk sector transfer time = 0.175 }
source tiny.diskspecs
instantiate [ bus0 ] as HOST
instantiate [ bus1, bus2 ] as SCSI
instantiate [ disk0 .. disk2 ] as TINY
instantiate [ ctlr0 ] as CTLR0
topology disksim_iodriver driver0 [
   disksim_bus bus0 [ disksim_ctlr ctlr0 [ disksim_bus bus2 [ disksim_disk disk1 [], disksim_disk disk2 [] ] ] ]
] # end of topology
disksim_logorg org0 { devices = [ disk0, disk1 ], Stripe unit = 100 }
"#;

/// Loads the drive of the system `PARV` after one replacement. Its own bus takes no time.
fn load_system(from: &str, to: &str) -> Result<DriveDescription, FileError> {
    assert!(PARV.contains(from), "`{from}` is in the file");
    let read = |path: &Path| match path.display().to_string().as_str() {
        "tiny.parv" => Ok(PARV.replace(from, to)),
        "tiny.diskspecs" => Ok(SPECS.replace("transfer time = 0.1", "transfer time = 0.0")),
        "tiny.model" => Ok(MODEL.to_owned()),
        "tiny.seek" => Ok(SEEK.to_owned()),
        _ => Err("can't be read: no such file".to_owned()),
    };
    disksim::load(Path::new("tiny.parv"), &read).map(|(drive, _)| drive)
}

#[test]
fn system_file_limits_its_drive_to_the_slowest_component() {
    let drive = load_system("", "").expect("a good file");
    assert_eq!(drive.name, "TINY");
    // The controller takes 0.175 ms, the bus 0.17 ms for reads and 0.18 ms for writes.
    assert_eq!(drive.controller.bus_read_sector_ns, 175_000);
    assert_eq!(drive.controller.bus_write_sector_ns, 180_000);
    // Arbitration of both buses, 0.03 ms, is added to the 0.1 ms of a command.
    assert_eq!(drive.controller.read_hit.after_read_ns, 130_000);
    assert_eq!(drive.controller.reselect_ns, 30_000);
    let other = load_system("disksim_bus bus2 [", "disksim_bus bus9 [");
    let other = other.expect_err("bad").to_string();
    assert_eq!(other, "tiny.parv: `bus9` is in its topology, and no block describes it");
    let none = load_system("disksim_disk disk1 [], disksim_disk disk2 []", "").expect_err("bad");
    assert!(none.to_string().contains("no `disksim_disk`"), "{none}");
    assert!(load_system(" as TINY", " TINY").is_err());
    assert!(load_system("] # end of topology", "").is_err());
}

#[test]
fn zones_determine_the_drive_size() {
    // The zones have 320 sectors. A stated size that differs by more than 1 % is reported.
    for (stated, is_reported) in [("320", false), ("323", false), ("300", true), ("400", true)] {
        let block_count = format!("Block count = {stated}");
        let drive = load_tiny("tiny.model", "Block count = 320", &block_count);
        let drive = drive.expect(stated);
        assert_eq!(super::Hdd::new(&drive, 1).sectors(), 320, "{stated} stated");
        assert_eq!(!drive.unmodelled.is_empty(), is_reported, "{:?}", drive.unmodelled);
    }
}

#[test]
fn slips_beyond_a_zone_are_ignored_and_reported() {
    let drive = load_tiny("tiny.model", "slips = [ ]", "slips = [ 3, 320 ]").expect("a drive");
    assert_eq!(drive.layout.zones[0].slips, [3]);
    assert_eq!(
        drive.unmodelled,
        ["tiny.model:20: `slips`: is not modelled; what lies beyond the zone is left out"]
    );
}

/// A switch at an unmodelled level, a policy without counterpart (reported only if commands can
/// queue), and a controller with delays of its own.
#[test]
fn fields_without_a_model_are_reported() {
    let sneaky = "Max queue length = 4, Allow sneaky partial read hits = 1,\n\
                  Scheduler = disksim_ioqueue { Scheduling policy = 4 },";
    let drive = load_tiny("tiny.diskspecs", "Max queue length = 4,", sneaky).expect("a drive");
    assert_eq!(
        drive.unmodelled[0],
        "tiny.diskspecs:7: `Allow sneaky partial read hits`: is not modelled; as if it were 0"
    );
    assert!(drive.unmodelled[1].contains("`Scheduling policy`"), "{:?}", drive.unmodelled);
    let alone = "Max queue length = 1, Scheduler = disksim_ioqueue { Scheduling policy = 4 },";
    let drive = load_tiny("tiny.diskspecs", "Max queue length = 4,", alone).expect("a drive");
    assert!(drive.unmodelled.is_empty(), "a queue of one command has no order to choose");
    let slow = load_system("type = 1, Bulk", "type = 1, Scale for delays = 1.0, Bulk");
    let slow = slow.expect("good");
    assert!(slow.unmodelled[0].contains("`Scale for delays`"), "{:?}", slow.unmodelled);
}

/// DiskSim 4.0 numbers its policies from 1 on (`MINSCHED` in disksim_ioqueue.h).
#[test]
fn scheduling_policy_0_is_rejected() {
    let policy_0 = "Max queue length = 4, Scheduler = disksim_ioqueue { Scheduling policy = 0 },";
    assert_eq!(
        load_error("tiny.diskspecs", "Max queue length = 4,", policy_0),
        "tiny.diskspecs:7: `Scheduling policy`: 0 (a policy) is less than 1 (a policy)"
    );
}

#[test]
fn drive_that_never_disconnects_never_reselects_the_bus() {
    let reselect = "First reselect overhead = 0.0";
    let reselecting = load_tiny("tiny.diskspecs", reselect, "First reselect overhead = 0.5");
    assert_eq!(reselecting.expect("good").controller.reselect_ns, 500_000);
    let held = "First reselect overhead = 0.5, Never disconnect = 1, Extra write disconnect = 1";
    let held = load_tiny("tiny.diskspecs", reselect, held).expect("good").controller;
    assert!(held.never_disconnects && held.early_disconnect.is_none() && !held.leaves_bus);
}

/// As in the extracted file dec_rz26, every field is read, whatever the others say. A field that is
/// not read would be rejected as unknown.
#[test]
fn disconnect_fields_are_accepted_from_a_drive_that_never_disconnects() {
    let reselect = "First reselect overhead = 0.0";
    for (never_disconnects, holds_reads) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let fields = format!(
            "First reselect overhead = 0.0, Never disconnect = {never_disconnects}, \
             Hold bus entire read xfer = {holds_reads}, Extra write disconnect = 1"
        );
        let drive = load_tiny("tiny.diskspecs", reselect, &fields).expect("a drive").controller;
        assert_eq!(drive.leaves_bus, never_disconnects + holds_reads == 0, "{fields}");
        assert_eq!(drive.early_disconnect.is_some(), never_disconnects == 0, "{fields}");
    }
}

#[test]
fn a_layout_that_is_not_known_is_refused_by_name() {
    let message = load_error("tiny.model", "dm_layout_g1 {", "dm_layout_g4 {");
    assert!(
        message.contains("`dm_layout_g4` is not a layout that is known; dm_layout_g1 is"),
        "{message}"
    );
}

#[test]
fn out_of_range_value_is_reported_with_its_unit_and_bound() {
    assert_eq!(
        load_error("tiny.model", "(in rpms) = 6000", "(in rpms) = 6"),
        "tiny.model:31: `Rotation speed (in rpms)`: 6 rpm is less than 60 rpm"
    );
    assert_eq!(
        load_error(
            "tiny.diskspecs",
            "Maximum read-ahead (blks) = 64",
            "Maximum read-ahead (blks) = 65"
        ),
        "tiny.diskspecs:13: `Maximum read-ahead (blks)`: 65 sectors (the segment's size) is more \
         than 64 sectors (the segment's size)"
    );
    assert_eq!(
        load_error("tiny.model", "Number of data surfaces = 2", "Number of data surfaces = 2.5"),
        "tiny.model:3: `Number of data surfaces`: 2.5 is not a whole number of surfaces"
    );
    assert_eq!(
        load_error("tiny.model", "Head switch time = 0.5", "Head switch time = fast"),
        "tiny.model:30: `Head switch time`: expected a number of ms, from 0 to 10000"
    );
}

#[test]
fn contradictory_geometry_is_refused() {
    assert_eq!(
        load_error("tiny.model", "Last cylinder number = 9", "Last cylinder number = 11"),
        "tiny.model:13: `Last cylinder number`: 11 is beyond the drive's 10 cylinders"
    );
    assert_eq!(
        load_error("tiny.model", "defects = [ ]", "defects = [ 3 ]"),
        "tiny.model:21: `defects`: has an odd count of numbers; expected pairs: bad place, spare"
    );
    let zone = MODEL.find("dm_layout_g1_zone").expect("a zone");
    let end = MODEL[zone..].find('}').expect("its end") + zone + 1;
    let twice = format!("{}, {}", &MODEL[zone..end], &MODEL[zone..end]);
    let error = load_error("tiny.model", &MODEL[zone..end], &twice);
    assert!(
        error.ends_with("`First cylinder number`: 0 lies in the zone before, up to 9"),
        "{error}"
    );
}

#[test]
fn missing_unknown_and_duplicate_fields_are_reported() {
    assert_eq!(
        load_error("tiny.model", "Head switch time = 0.5,", ""),
        "tiny.model:25: `Head switch time`: is missing"
    );
    assert_eq!(
        load_error(
            "tiny.diskspecs",
            "Max queue length = 4,",
            "Max queue length = 4, Max speed = 1,"
        ),
        "tiny.diskspecs:7: `Max speed`: is no field of this block"
    );
    assert_eq!(
        load_error("tiny.model", "Block count = 320,", "Block count = 320, Block count = 321,"),
        "tiny.model:5: `Block count`: stands here a second time, first on line 5"
    );
    assert_eq!(
        load_error("tiny.model", "Seek type = extracted", "Seek type = magic"),
        "tiny.model:27: `Seek type`: `magic` is none of: constant, linear, curve, hpl, hplplus10, \
         extracted"
    );
}

#[test]
fn syntax_and_file_errors_are_reported_with_their_line() {
    assert_eq!(
        load_error("tiny.model", "Block count = 320", "Block count 320"),
        "tiny.model:5: expected `=` after `Block count 320`, found `,`"
    );
    assert_eq!(
        load_error("tiny.diskspecs", "tiny.model", "other.model"),
        "tiny.diskspecs:3: `source`: other.model: can't be read: no such file"
    );
    assert_eq!(
        load_error("tiny.seek", "9,\t2.0", "9 far"),
        "tiny.seek:3: `9 far` is not a distance in cylinders and a time in ms"
    );
    assert_eq!(
        load_error("tiny.seek", "9,\t2.0", "1,\t2.0"),
        "tiny.seek:3: 1 cylinders follow 1; distances must rise"
    );
    assert!(load_error("tiny.model", "tiny.seek", "no.seek").starts_with("tiny.model:28: "));
}

#[test]
fn seek_curve_in_a_list_needs_a_time_for_each_distance() {
    let drive = load_tiny("tiny.model", "tiny.seek", "[ 1, 1.0, 9, 2.0 ]").expect("good");
    assert!((drive.mechanics.seek.ms(9, 10) - 2.0).abs() < 1e-9);
    assert_eq!(
        load_error("tiny.model", "tiny.seek", "[ 1, 1.0, 9, 2.0, 12 ]"),
        "tiny.model:28: `Full seek curve`: ends with the distance 12 without its time in ms"
    );
}

#[test]
fn quirks_of_published_drive_files_are_accepted() {
    // DiskSim's hp_c2490a has both: the last cylinder's number as the count of cylinders, and a
    // write that settles sooner than the curve predicts.
    let drive = load_tiny("tiny.model", "Number of cylinders = 10", "Number of cylinders = 9");
    let drive = drive.expect("one cylinder more than stated");
    assert_eq!((drive.layout.cylinders_in_all(), drive.layout.zones[0].last_cylinder), (10, 9));
    let drive = load_tiny("tiny.model", "settling delay = 0.5", "settling delay = -0.642");
    assert_eq!(drive.expect("a negative delay").mechanics.write_settle_ns, -642_000);
    // 600.6 ns are 601 whole ns.
    let drive = load_tiny("tiny.model", "settling delay = 0.5", "settling delay = 0.0006006");
    assert_eq!(drive.expect("a short delay").mechanics.write_settle_ns, 601);
}

#[test]
fn skew_may_be_in_revolutions_and_formulas_may_be_named() {
    let with_units = "Skew units = revolutions,\nOffset of first";
    let drive = load_tiny("tiny.model", "Offset of first", with_units);
    // 2.0 revolutions of 16 sectors.
    assert_eq!(drive.expect("good").layout.zones[0].track_skew_sectors, 32.0);
    let hpl = "Seek type = hpl, HPL seek equation values = [ 5, 3, 0.5, 4, 0.1, -1 ]";
    let drive = load_tiny("tiny.model", "Seek type = extracted", hpl).expect("good");
    // Below 5 cylinders 3 + 0.5 √d, from there 4 + 0.1 d.
    assert!((drive.mechanics.seek.ms(4, 10) - 4.0).abs() < 1e-9);
    assert!((drive.mechanics.seek.ms(5, 10) - 4.5).abs() < 1e-9);
    // The longest of 10 cylinders' seeks, 9 cylinders, takes the full-stroke time.
    let three_times = "Seek type = linear, Single cylinder seek time = 1, Average seek time = 2, \
                       Full strobe seek time = 4";
    let drive = load_tiny("tiny.model", "Seek type = extracted", three_times).expect("good");
    assert!((drive.mechanics.seek.ms(9, 10) - 4.0).abs() < 1e-9);
    for (from, to) in [("time = 1", "time = 3"), ("time = 4", "time = 1")] {
        let times = three_times.replace(from, to);
        let error = load_error("tiny.model", "Seek type = extracted", &times);
        assert!(error.contains("must rise in this order"), "{error}");
    }
}

/// Loads the built-in drive `scsi2002` with `from` replaced by `to` in its description.
fn load_toml(from: &str, to: &str) -> Result<DriveDescription, FileError> {
    let text = include_str!("drives/scsi2002.toml");
    assert!(text.contains(from), "`{from}` is in the description");
    let root = toml_text::parse(&text.replace(from, to), Path::new("d.toml"))?;
    let drive = describe_toml::read_drive(&root)?;
    root.reject_unread()?;
    Ok(drive)
}

#[test]
fn toml_description_errors_name_their_line() {
    let error = load_toml("rpm = { value = 10_000", "rpm = { value = 10").expect_err("bad");
    assert_eq!(error.to_string(), "d.toml:20: `rpm`: 10 rpm is less than 60 rpm");
    let error = load_toml("rpm = { value = 10_000", "rpm = { value = nan").expect_err("bad");
    let expected = "d.toml:20: `rpm`: expected a number of rpm, from 60 to 100000";
    assert_eq!(error.to_string(), expected);
    let error = load_toml("[queue]\n", "[queue]\ndeep = 4\n").expect_err("bad");
    assert!(error.to_string().ends_with("`deep`: is no field of this block"), "{error}");
    let error = load_toml("rpm = { value", "rpm = { unit = 'Hz', value").expect_err("bad");
    assert_eq!(error.to_string(), "d.toml:20: `rpm.unit`: is no field of this block");
    let error = load_toml("[queue]\n", "[queue\n").expect_err("bad");
    assert!(error.line > 40, "{error}");
    for write in ["", "write_"] {
        let (from, to) = (format!("\n{write}average_ms = {{ value = "), "4");
        let error = load_toml(&from, &format!("{from}{to}")).expect_err("bad");
        assert!(error.to_string().contains("must rise in this order"), "{error}");
    }
    let error = load_toml("curve = { value = \"lee\"", "curve = { value = \"square root\"");
    let error = error.expect_err("bad").to_string();
    assert!(error.contains("`write_single_ms`: needs a curve through three figures"), "{error}");
    // Without skews in its description, the drive's format matches its switch times.
    let derived = load_toml("track_skew_ms", "# track_skew_ms").expect("a drive");
    let given = load_toml("track_skew_ms = { value = 0.6", "track_skew_ms = { value = 0.55");
    assert_eq!(derived.layout.zones[0].track_skew_sectors, 84.0, "0.55 ms of 914 in 6 ms");
    assert_eq!(derived, given.expect("a drive"));
}

/// Each change of one field gives another drive. A field without effect would give the same.
#[test]
fn every_field_of_a_description_has_an_effect() {
    let base = load_toml("", "").expect("the built-in drive");
    for (from, to) in [
        ("heads = { value = 2", "heads = { value = 3"),
        ("cylinders = { value = 50_600", "cylinders = { value = 60_600"),
        ("sectors = { value = 71_687_370", "sectors = { value = 71_000_000"),
        ("zones = { value = 16", "zones = { value = 15"),
        ("outer_track_sectors = { value = 914", "outer_track_sectors = { value = 915"),
        ("inner_track_sectors = { value = 504", "inner_track_sectors = { value = 505"),
        ("track_skew_ms = { value = 0.6", "track_skew_ms = { value = 0.7"),
        ("cylinder_skew_ms = { value = 0.75", "cylinder_skew_ms = { value = 0.85"),
        ("[mechanics]", "[mechanics]\nzero_latency_read = true"),
        ("[mechanics]", "[mechanics]\nzero_latency_write = true"),
        ("[mechanics]", "[mechanics]\naccess = \"half turn\""),
        ("rpm = { value = 10_000", "rpm = { value = 15_000"),
        ("head_switch_ms = { value = 0.35", "head_switch_ms = { value = 0.6"),
        ("\nwrite_single_ms = { value = 0.55", "\nwrite_single_ms = { value = 0.6"),
        ("write_average_ms = { value = 5.2", "write_average_ms = { value = 5.3"),
        ("write_full_ms = { value = 10.2", "write_full_ms = { value = 10.3"),
        ("curve = { value = \"lee\"", "curve = { value = \"linear\""),
        ("\nsingle_ms = { value = 0.35", "\nsingle_ms = { value = 0.45"),
        ("\naverage_ms = { value = 4.7", "\naverage_ms = { value = 4.8"),
        ("\nfull_ms = { value = 9.7", "\nfull_ms = { value = 9.8"),
        ("[cache]", "[cache]\nenabled = false"),
        ("[cache]", "[cache]\nwrite_sectors = 100"),
        ("[cache]", "[cache]\nwrite_segment = true"),
        ("[cache]", "[cache]\nread_ahead_sectors_max = 100"),
        ("[cache]", "[cache]\nread_ahead_sectors_min = 100"),
        ("[cache]", "[cache]\nahead_over_requested = false"),
        ("[cache]", "[cache]\nahead_on_hit = false"),
        ("[cache]", "[cache]\nkeeps_passing = true"),
        ("[cache]", "[cache]\njoins_read_ahead = false"),
        ("[cache]", "[cache]\nreads_written = false"),
        ("[cache]", "[cache]\nhits_pass = false"),
        ("[cache]", "[cache]\nflushes_first = true"),
        ("[cache]", "[cache]\nwrite_back_tracks = 3"),
        ("segments = { value = 16", "segments = { value = 8"),
        ("read_ahead = { value = \"segment\"", "read_ahead = { value = \"track\""),
        ("early_writes = { value = 0", "early_writes = { value = 3"),
        ("read_hit_ms = { value = 0.066", "read_hit_ms = { value = 0.1"),
        ("read_miss_ms = { value = 0.284", "read_miss_ms = { value = 0.3"),
        ("write_hit_ms = { value = 0.5", "write_hit_ms = { value = 0.6"),
        ("write_miss_ms = { value = 0.896", "write_miss_ms = { value = 0.9"),
        ("[overhead]", "[overhead]\nread_completion_ms = 0.1"),
        ("[overhead]", "[overhead]\nwrite_completion_ms = 0.1"),
        ("[overhead]", "[overhead]\nreselect_ms = 0.1"),
        ("[overhead]", "[overhead]\ndata_preparation_ms = 0.1"),
        ("[bus]", "[bus]\nstarts_after_part = 0.5"),
        ("mb_per_s = { value = 320", "mb_per_s = { value = 160"),
        ("[queue]", "[queue]\norder = \"elevator\""),
        ("depth = { value = 64", "depth = { value = 32"),
        ("window = { value = 16", "window = { value = 2"),
        ("age_limit_ms = { value = 500", "age_limit_ms = { value = 50"),
        ("[queue]", "[queue]\njoins_writes = true"),
        ("[queue]", "[queue]\nrequest_kib = 512"),
    ] {
        assert_ne!(load_toml(from, to).expect(to), base, "{to}");
    }
}
