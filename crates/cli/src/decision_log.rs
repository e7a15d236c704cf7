//! `--log FILE`: the decisions of the policies in each row, with the numbers behind them.
//!
//! A line that begins with `#` starts each row. One line for each decision follows, as the policy's
//! log formats it.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use readpath_core::decision::LoggedDecision;

use crate::exit::{CommandResult, Failure};

/// Log file, open for writing.
pub struct DecisionFile {
    /// Path of the file, for error messages.
    path: PathBuf,
    /// The open file, which is written through shared references.
    out: RefCell<BufWriter<File>>,
    /// First write error. Later lines are discarded.
    write_error: RefCell<Option<io::Error>>,
}

impl DecisionFile {
    /// Creates or truncates the file, which must not be an input of the run.
    pub fn create(path: &Path) -> Result<DecisionFile, Failure> {
        let file = File::create(path).map_err(|error| {
            Failure::Usage(format!(
                "--log {}: {error}; name a file that can be written",
                path.display()
            ))
        })?;
        Ok(DecisionFile {
            path: path.to_owned(),
            out: RefCell::new(BufWriter::new(file)),
            write_error: RefCell::new(None),
        })
    }

    /// Writes the header line of a row.
    pub fn begin_row(&self, row: &str) {
        self.write(format_args!("# {row}"));
    }

    /// Writes one decision of a policy.
    pub fn write_decision(&self, decided: &LoggedDecision) {
        self.write(format_args!("{decided}"));
    }

    /// Writes a line, unless an earlier write failed.
    fn write(&self, line: std::fmt::Arguments<'_>) {
        let mut write_error = self.write_error.borrow_mut();
        if write_error.is_none() {
            *write_error = writeln!(self.out.borrow_mut(), "{line}").err();
        }
    }

    /// Flushes the file and returns the first write error.
    pub fn finish(&self) -> CommandResult {
        let write_error = self.write_error.borrow_mut().take();
        match write_error.or_else(|| self.out.borrow_mut().flush().err()) {
            None => Ok(()),
            Some(error) => Err(Failure::Run(format!(
                "--log {}: {error}; the log is not complete",
                self.path.display()
            ))),
        }
    }
}
