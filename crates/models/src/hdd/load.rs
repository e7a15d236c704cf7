//! Builds a hard disk from text: `hdd`, `hdd,drive=NAME`, `hdd,toml=FILE`, `hdd,disksim=FILE`. The
//! first three accept further keys that set fields of the description, as in `hdd,rpm=15000`.
//!
//! DiskSim's drive files can leave the bus to the file of the whole system by a transfer time of 0.
//! `disksim=FILE` accepts both: a `.diskspecs` file, or the `.parv` file that names it. All forms
//! accept `bus_read_ns=N` and `bus_write_ns=N`, the transfer time of a sector on the host's bus.

use std::fmt;
use std::path::Path;

use readpath_core::policy::{Spec, SpecError};

use super::Hdd;
use super::drive::DriveDescription;
use crate::fields::{FieldBlock, FieldValue, FileError, toml_text};
use crate::input_file;
use crate::parameter::{DeviceParameter, ParameterOrigin};
use crate::path_text;

/// Built-in drives: name, one-line summary, description in TOML. The first is the default.
const DRIVES: [(&str, &str, &str); 6] = [
    ("scsi2002", "a 10,000 rpm SCSI drive of 2002", include_str!("drives/scsi2002.toml")),
    ("scsi2001", "a 10,000 rpm SCSI drive of 2000 and 2001", include_str!("drives/scsi2001.toml")),
    ("sata2010", "a 7,200 rpm SATA drive of about 2010", include_str!("drives/sata2010.toml")),
    ("sata2012", "a 7,200 rpm SATA drive of 2012", include_str!("drives/sata2012.toml")),
    ("sata", "a large 7,200 rpm SATA drive of today", include_str!("drives/sata.toml")),
    (
        "archive",
        "the mechanics of a shingled 5,900 rpm SATA drive of 2015",
        include_str!("drives/archive.toml"),
    ),
];

/// Error when a hard disk is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HddError {
    /// The device text is invalid.
    Spec(SpecError),
    /// The description file is invalid.
    File(FileError),
}

impl fmt::Display for HddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HddError::Spec(error) => error.fmt(f),
            HddError::File(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HddError {}

impl From<SpecError> for HddError {
    fn from(error: SpecError) -> HddError {
        HddError::Spec(error)
    }
}

impl From<FileError> for HddError {
    fn from(error: FileError) -> HddError {
        HddError::File(error)
    }
}

/// Returns the names of the built-in drives with a one-line summary.
pub fn drives() -> impl Iterator<Item = (&'static str, &'static str)> {
    DRIVES.iter().map(|(name, summary, _)| (*name, *summary))
}

/// Builds the hard disk that `spec` names. The initial angle of the platter is derived from `seed`.
///
/// # Errors
/// Fails when the spec or its file is invalid.
pub fn build_hdd(spec: &Spec, seed: u64) -> Result<Hdd, HddError> {
    Ok(Hdd::new(&drive_of(spec)?, seed))
}

/// Returns the drive that `spec` names: built in (`drive=NAME`), from `toml=FILE`, or from
/// `disksim=FILE`.
///
/// # Errors
/// Fails when the spec or its file is invalid.
pub fn drive_of(spec: &Spec) -> Result<DriveDescription, HddError> {
    read_drive_and_fields(spec).map(|(drive, _)| drive)
}

/// Returns every field of the drive that `spec` names, with value, unit and source.
///
/// # Errors
/// Fails in the same cases as [`drive_of`].
pub fn parameters(spec: &Spec) -> Result<Vec<DeviceParameter>, HddError> {
    let (_, block) = read_drive_and_fields(spec)?;
    let mut parameters = Vec::new();
    list_fields(&block, "", &mut parameters);
    Ok(parameters)
}

/// Reads the drive from a DiskSim `.diskspecs` or `.parv` file and the files that it names.
///
/// # Errors
/// Describes the problem with file, line, field, unit and bound.
pub fn drive_from_disksim(path: &Path) -> Result<DriveDescription, FileError> {
    super::disksim::load(path, &read_text).map(|(drive, _)| drive)
}

/// Keys of the device text that are not fields of a description.
const SPEC_KEYS: [&str; 5] = ["drive", "toml", "disksim", "bus_read_ns", "bus_write_ns"];

/// Reads the description that `spec` names, as a drive and as its fields. The bus times in `spec`
/// raise the drive's transfer times, not its fields.
fn read_drive_and_fields(spec: &Spec) -> Result<(DriveDescription, FieldBlock), HddError> {
    let sources = ["drive", "toml", "disksim"].map(|key| spec.parameters.get_key_value(key));
    if sources.iter().flatten().count() > 1 {
        // The error names the last of the contradicting keys.
        let (key, value) =
            sources.into_iter().flatten().next_back().expect("more than one key is given");
        return Err(HddError::Spec(SpecError::BadValue {
            name: spec.name.clone(),
            key: key.clone(),
            value: value.clone(),
            expected: "one of drive=, toml= and disksim= alone".to_owned(),
        }));
    }
    let (mut drive, block) = read_description(spec)?;
    // The slower of drive and bus determines the rate, as in DiskSim. An absent key counts as 0.
    let controller = &mut drive.controller;
    for (key, sector_ns) in [
        ("bus_read_ns", &mut controller.bus_read_sector_ns),
        ("bus_write_ns", &mut controller.bus_write_sector_ns),
    ] {
        *sector_ns = (*sector_ns).max(spec.integer(key, 0, 1..=1_000_000_000)?);
    }
    if controller.bus_read_sector_ns.min(controller.bus_write_sector_ns) == 0 {
        drive.unmodelled.push(format!(
            "{}: describes no bus, and data cross it in no time; name the .parv file of its system, \
             or give bus_read_ns and bus_write_ns, the time for a sector",
            block.file
        ));
    }
    Ok((drive, block))
}

/// Reads the description from the file that `spec` names, or from the built-in text. Returns the
/// drive and the block of its fields.
fn read_description(spec: &Spec) -> Result<(DriveDescription, FieldBlock), HddError> {
    if let Some(path) = spec.parameters.get("disksim") {
        // The fields of a DiskSim file cannot be set on the command line.
        spec.only(&SPEC_KEYS)?;
        return Ok(super::disksim::load(&path_text::decode(path), &read_text)?);
    }
    if let Some(path) = spec.parameters.get("toml") {
        let path = path_text::decode(path);
        let text = read_text(&path).map_err(|problem| FileError {
            file: path.display().to_string(),
            // The whole file is at fault, no single line.
            line: 0,
            field: String::new(),
            problem,
        })?;
        return read_toml(&text, &path, spec);
    }
    let (default_name, ..) = DRIVES[0];
    let name = spec.parameters.get("drive").map_or(default_name, String::as_str);
    let Some((_, _, text)) = DRIVES.iter().find(|(known, ..)| *known == name) else {
        return Err(HddError::Spec(SpecError::UnknownName {
            kind: "drive",
            name: name.to_owned(),
            known: DRIVES.iter().map(|(name, ..)| *name).collect(),
        }));
    };
    read_toml(text, Path::new(name), spec)
}

/// Builds the drive from a TOML text, with the fields that `spec` replaces. `file` is the name for
/// errors. Returns the drive and the block of its fields.
fn read_toml(
    text: &str,
    file: &Path,
    spec: &Spec,
) -> Result<(DriveDescription, FieldBlock), HddError> {
    let mut root = toml_text::parse(text, file)?;
    super::user_fields::set_fields(&mut root, spec, &SPEC_KEYS)?;
    let drive = super::describe_toml::read_drive(&root)?;
    root.reject_unread()?;
    Ok((drive, root))
}

/// Returns the text of a file of at most `TEXT_BYTES_MAX` bytes, or a message as error.
fn read_text(path: &Path) -> Result<String, String> {
    let text = input_file::text(path, input_file::TEXT_BYTES_MAX);
    text.map_err(|error| format!("can't be read: {error}"))
}

/// Appends a block's fields to `parameters` in printable form. `prefix` is the path of the block
/// with a final dot, and empty for the root. Blocks and lists of blocks are listed field by field.
/// The drive has been read already, so any other list has numbers, or is empty: only its length is
/// printed.
fn list_fields(block: &FieldBlock, prefix: &str, parameters: &mut Vec<DeviceParameter>) {
    for field in &block.fields {
        let name = format!("{prefix}{}", field.key);
        let value = match &field.value {
            FieldValue::Block(inner) => {
                list_fields(inner, &format!("{name}."), parameters);
                continue;
            }
            FieldValue::Number(number) => number.to_string(),
            FieldValue::Text(text) => text.clone(),
            FieldValue::List(items) => match items.first() {
                Some((_, FieldValue::Block(_))) => {
                    for (index, (_, item)) in items.iter().enumerate() {
                        if let FieldValue::Block(inner) = item {
                            list_fields(inner, &format!("{name}[{index}]."), parameters);
                        }
                    }
                    continue;
                }
                _ => format!("{} numbers", items.len()),
            },
        };
        // The first words of a source decide the origin. A field without a stated source is the
        // user's, and its place in the file is the source.
        let origin = field.source.as_deref().map_or(ParameterOrigin::Given, ParameterOrigin::of);
        let source = field.source.clone();
        let source = source.unwrap_or_else(|| format!("{}:{}", block.file, field.line));
        parameters.push(DeviceParameter { name, value, unit: field.unit(), origin, source });
    }
    // Fields that the description omits, with the value that the reader used instead.
    for default in block.defaults.borrow().iter() {
        parameters.push(DeviceParameter {
            name: format!("{prefix}{}", default.key),
            value: default.value.clone(),
            unit: default.unit,
            origin: ParameterOrigin::Chosen,
            source: "chosen: the default of descriptions that do not state it".to_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The heads of this copy have no source. Its other fields keep theirs.
    #[test]
    fn name_of_a_file_is_not_taken_for_a_source() {
        let (heads, stated) = ("heads = { value = 12, source = \"", "published: six discs");
        let text = include_str!("drives/archive.toml");
        let line = text.lines().find(|line| line.starts_with(&format!("{heads}{stated}"))).unwrap();
        let text = text.replace(line, "heads = 12");
        let spec = Spec::parse("hdd").unwrap();
        let (_, block) = read_toml(&text, Path::new("measured_disk.toml"), &spec).unwrap();
        let mut parameters = Vec::new();
        list_fields(&block, "", &mut parameters);
        let heads = parameters.iter().find(|parameter| parameter.name.ends_with(".heads")).unwrap();
        assert!(heads.source.starts_with("measured_disk.toml:"), "{heads:?}");
        assert_eq!(heads.origin, ParameterOrigin::Given);
    }
}
