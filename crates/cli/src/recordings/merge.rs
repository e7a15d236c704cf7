//! `readpath recording merge`: merges recordings that were made at the same time.

use std::cell::RefCell;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::rc::Rc;

use readpath_trace::recording::{MergedRecords, Record, RecordingWriter};

use super::{MergeArgs, records, same_file};
use crate::exit::{CommandResult, Failure};

/// First failure in any of the interleaved recordings.
type Wrong = Rc<RefCell<Option<Failure>>>;

/// Merges the recordings. The memory use is one block of each.
pub fn run(args: &MergeArgs) -> CommandResult {
    let MergeArgs { recordings, output } = args;
    if recordings.iter().any(|recording| same_file(recording, output)) {
        let why = "it is one of the recordings; name another file";
        return Err(Failure::usage_of(output.display(), why));
    }
    let wrong = Wrong::default();
    let parts = recordings.iter().map(|recording| intact(recording, &wrong));
    let parts = parts.collect::<Result<Vec<_>, Failure>>()?;
    let merged = MergedRecords::new(parts).map_err(|error| match wrong.take() {
        Some(failure) => failure,
        None => Failure::Usage(error.to_string()),
    })?;
    let about = |error: std::io::Error| Failure::usage_of(output.display(), error);
    let file = File::create(output).map_err(about)?;
    let mut writer = RecordingWriter::new(BufWriter::new(file)).map_err(about)?;
    for record in merged {
        writer.put(record).map_err(about)?;
    }
    if let Some(failure) = wrong.take() {
        return Err(failure);
    }
    writer.finish().map_err(about)?;
    Ok(())
}

/// Iterator over the records up to the first damaged one, whose error goes to `wrong`.
fn intact(path: &Path, wrong: &Wrong) -> Result<impl Iterator<Item = Record> + use<>, Failure> {
    let wrong = Rc::clone(wrong);
    let keep = move |failure| _ = wrong.replace(Some(failure));
    Ok(records(path)?.map_while(move |record| record.map_err(&keep).ok()))
}
