//! `readpath recording merge`: merges recordings that were made at the same time.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use readpath_trace::recording::{MergedRecords, Record, RecordingWriter};

use super::{MergeArgs, records};
use crate::exit::{CommandResult, Failure};
use crate::output_file::{OutputFile, check_not_needed};

/// Failure in any of the interleaved recordings: the last one, if several have failed.
type SharedFailure = Rc<RefCell<Option<Failure>>>;

/// Merges the recordings. The memory use is one block of each, the names, and the records of a few
/// milliseconds.
pub fn run(args: &MergeArgs) -> CommandResult {
    let MergeArgs { recordings, output } = args;
    check_not_needed(Some(output), recordings)?;
    let last_failure = SharedFailure::default();
    let parts = recordings.iter().map(|recording| intact_records(recording, &last_failure));
    let parts = parts.collect::<Result<Vec<_>, Failure>>()?;
    let merged = MergedRecords::new(parts).map_err(|error| match last_failure.take() {
        Some(failure) => failure,
        None => Failure::Usage(error.to_string()),
    })?;
    let failure = |error: std::io::Error| Failure::usage_of(output.display(), error);
    let mut writer = RecordingWriter::new(OutputFile::create(output)?).map_err(failure)?;
    for record in merged {
        writer.put(record).map_err(failure)?;
    }
    // Without `finish`, the output does not replace a file of its name.
    if let Some(failure) = last_failure.take() {
        return Err(failure);
    }
    writer.finish().and_then(OutputFile::finish).map_err(failure)
}

/// Iterator over the records up to the first damaged one, whose error goes to `last_failure`.
fn intact_records(
    path: &Path,
    last_failure: &SharedFailure,
) -> Result<impl Iterator<Item = Record> + use<>, Failure> {
    let last_failure = Rc::clone(last_failure);
    let keep = move |failure| _ = last_failure.replace(Some(failure));
    Ok(records(path)?.map_while(move |record| record.map_err(&keep).ok()))
}
