//! `--log FILE`: what the laws decided in each row, and by which numbers.
//!
//! A line of `#` begins each row; below it stands one line for each decision, as
//! the law's log prints it.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use readpath_core::decision::Decided;
use readpath_core::law::Spec;
use readpath_core::readahead::{self, ReadaheadLimits};
use readpath_core::request::DeviceCaps;
use readpath_core::scheduler;
use readpath_core::swapin;

use crate::exit::{Ended, Failure};
use crate::storage::Storage;

/// The file, open for writing.
pub struct DecisionFile {
    path: PathBuf,
    out: RefCell<BufWriter<File>>,
    /// The first write that failed: nothing is written after it.
    failed: RefCell<Option<io::Error>>,
}

impl DecisionFile {
    /// Begins the file anew. What is there is lost, unless the run itself needs it.
    pub fn create(path: &Path, needed: &[&Path]) -> Result<DecisionFile, Failure> {
        let same = |one: &Path| Some(one.canonicalize().ok()? == path.canonicalize().ok()?);
        if let Some(needed) = needed.iter().find(|needed| same(needed) == Some(true)) {
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
    pub fn decided(&self, decided: &Decided) {
        self.write(format_args!("{decided}"));
    }

    fn write(&self, line: std::fmt::Arguments<'_>) {
        let mut failed = self.failed.borrow_mut();
        if failed.is_none() {
            *failed = writeln!(self.out.borrow_mut(), "{line}").err();
        }
    }

    /// Writes out what is left, and tells what could not be written.
    pub fn finish(&self) -> Ended {
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

/// Finds out whether a job would have decisions to log.
pub fn check(storage: &Storage, readahead: &Spec, law: &Spec) -> Ended {
    refuse_kernel(storage)?;
    // Whether a law keeps a log does not depend on the device.
    let limits = ReadaheadLimits::default();
    let keeps_log = readahead::build(readahead, &limits).map_err(Failure::usage)?.keeps_log();
    one_keeps_log(keeps_log, ("readahead", readahead), law)
}

/// Finds out whether a load would have decisions to log.
pub fn check_load(storage: &Storage, swapin: &Spec, law: &Spec) -> Ended {
    refuse_kernel(storage)?;
    if let Storage::Region(_) = storage {
        return Err(Failure::Usage(format!(
            "--log: {storage} keeps no log; name a modelled device, on which the same laws decide"
        )));
    }
    let keeps_log = swapin::build(swapin, false).map_err(Failure::usage)?.keeps_log();
    one_keeps_log(keeps_log, ("swap-in", swapin), law)
}

fn refuse_kernel(storage: &Storage) -> Ended {
    match storage {
        Storage::Kernel(_) => Err(Failure::Usage(format!(
            "--log: on {storage} the kernel decides, and tells nobody why; leave out one of the two"
        ))),
        _ => Ok(()),
    }
}

/// The law beside the scheduler, of this kind, keeps a log, or the scheduler does.
fn one_keeps_log(keeps_log: bool, (kind, beside): (&str, &Spec), law: &Spec) -> Ended {
    if keeps_log || scheduler_keeps_log(law)? {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "--log: neither the scheduler `{}` nor the {kind} law `{}` keeps a log of its \
         decisions; the schedulers `cfq` and `adaptive` do, and the {kind} law `adaptive`",
        law.name, beside.name
    )))
}

fn scheduler_keeps_log(law: &Spec) -> Result<bool, Failure> {
    let caps = DeviceCaps {
        sectors: 1 << 20,
        request_sectors_max: 256,
        depth_max: 1,
        is_rotational: true,
        alignment_sectors: 1,
    };
    let mut scheduler = scheduler::build(law, &caps).map_err(Failure::usage)?;
    Ok(scheduler.decisions().is_some())
}
