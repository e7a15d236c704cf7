//! `readpath trace`: recordings shown, cut, anonymised, made of others' formats and handed on.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use readpath_sim::recording::{Reader, Record, RecordingError};

use crate::exit::{Ended, Failure};

/// `readpath trace`.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Print the records, one a line, as JSON
    Show(ShowArgs),
}

/// `readpath trace show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The recording
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
}

/// Does what is asked.
pub fn run(command: &TraceCommand) -> Ended {
    match command {
        TraceCommand::Show(args) => show(&args.recording),
    }
}

fn show(path: &Path) -> Ended {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let ended = each_record(path, |record| {
        let line = serde_json::to_string(&record).expect("a record can be written as JSON");
        writeln!(out, "{line}").map_err(Failure::usage)
    });
    out.flush().map_err(Failure::usage)?;
    ended
}

/// Hands each record of a recording to `each`. One that is cut off gives what it has, and a notice
/// on standard error.
pub fn each_record(
    path: &Path,
    mut each: impl FnMut(Record) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let about = |error: &dyn std::fmt::Display| Failure::about(path.display(), error);
    let file = File::open(path).map_err(|error| about(&error))?;
    let reader =
        Reader::new(BufReader::with_capacity(1 << 20, file)).map_err(|error| about(&error))?;
    for record in reader {
        match record {
            Ok(record) => each(record)?,
            Err(error @ RecordingError::Cut { .. }) => {
                eprintln!("readpath: {}: {error}", path.display());
            }
            Err(error) => return Err(about(&error)),
        }
    }
    Ok(())
}
