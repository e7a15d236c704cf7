//! A hard disk from text: `hdd`, `hdd,drive=NAME`, `hdd,toml=FILE`, `hdd,disksim=FILE`.

use std::path::Path;

use super::drive::Drive;
use super::field::FileError;

/// Reads the drive that a DiskSim `.diskspecs` file describes, with the files that it names.
///
/// # Errors
/// What is wrong, with file, line, field, unit and bound.
pub fn drive_from_disksim(path: &Path) -> Result<Drive, FileError> {
    super::disksim::load(path, &read_text)
}

/// The only place where the model touches a file.
fn read_text(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("can't be read: {error}"))
}
