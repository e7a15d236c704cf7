//! `--log FILE`: what the laws decided in each row, and by which numbers.
//!
//! A line of `#` begins each row; below it stands one line for each decision, as
//! the law's log prints it.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use readpath_core::decision::LoggedDecision;

use crate::exit::{CommandResult, Failure};

/// The file, open for writing.
pub struct DecisionFile {
    path: PathBuf,
    out: RefCell<BufWriter<File>>,
    /// The first write that failed: nothing is written after it.
    failed: RefCell<Option<io::Error>>,
}

impl DecisionFile {
    /// Begins the file anew. What is there is lost, unless the run itself needs it.
    pub fn create(path: &Path, needed: &[impl AsRef<Path>]) -> Result<DecisionFile, Failure> {
        let same = |one: &Path| Some(one.canonicalize().ok()? == path.canonicalize().ok()?);
        if let Some(needed) =
            needed.iter().map(AsRef::as_ref).find(|needed| same(needed) == Some(true))
        {
            return Err(Failure::Usage(format!(
                "--log {}: would overwrite {}, which the run reads; name another file",
                path.display(),
                needed.display()
            )));
        }
        let file = File::create(path).map_err(|error| {
            Failure::Usage(format!(
                "--log {}: {error}; name a file that can be written",
                path.display()
            ))
        })?;
        Ok(DecisionFile {
            path: path.to_owned(),
            out: RefCell::new(BufWriter::new(file)),
            failed: RefCell::new(None),
        })
    }

    /// A row begins.
    pub fn begin(&self, row: &str) {
        self.write(format_args!("# {row}"));
    }

    /// A law has decided something.
    pub fn decided(&self, decided: &LoggedDecision) {
        self.write(format_args!("{decided}"));
    }

    fn write(&self, line: std::fmt::Arguments<'_>) {
        let mut failed = self.failed.borrow_mut();
        if failed.is_none() {
            *failed = writeln!(self.out.borrow_mut(), "{line}").err();
        }
    }

    /// Writes out what is left, and tells what could not be written.
    pub fn finish(&self) -> CommandResult {
        let failed = self.failed.borrow_mut().take();
        match failed.or_else(|| self.out.borrow_mut().flush().err()) {
            None => Ok(()),
            Some(error) => Err(Failure::Run(format!(
                "--log {}: {error}; the log is not complete",
                self.path.display()
            ))),
        }
    }
}
