//! Remedy for waits of a program's start: for its executable, its libraries, and the modules of its
//! interpreter.
//!
//! The user of a program changes neither its loader nor the order of its code. Pages that an
//! earlier run has used can be brought in ahead. A file counts as a program or a library if it was
//! mapped for execution. The charges of compiled modules of Python are always added up. They change
//! a remedy only if the recorded program has mapped Python for execution: other programs copy or
//! search such files.
//!
//! A *charge* is the part of a wait that a cause explains. Charges are *final* once writers, other
//! readers, stalls and a slow file have taken their shares of it.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::WaitCause;
use super::super::gather::{FileData, RecordingData};
use super::ChargedWaits;

/// Remedy for programs, libraries and modules.
const REMEDY: &str = "`readpath advise --from RECORDING -- COMMAND` brings these pages in ahead \
                      (needs no root; `readpath record -o RECORDING -- COMMAND` as root makes the \
                      recording)";

/// Final charges for files of a program's start, in nanoseconds of waiting by cause.
#[derive(Debug, Default)]
pub(super) struct StartupCharges {
    /// For programs and libraries.
    programs_ns: BTreeMap<WaitCause, f64>,
    /// For other files: compiled modules of Python.
    modules_ns: BTreeMap<WaitCause, f64>,
}

impl StartupCharges {
    /// Adds nanoseconds that `cause` is finally charged with for a file. A file that is neither
    /// executable nor a compiled module has no effect.
    pub fn add(&mut self, cause: WaitCause, ns: f64, file: &FileData) {
        if file.is_executable {
            *self.programs_ns.entry(cause).or_default() += ns;
        } else if is_python_module(file) {
            *self.modules_ns.entry(cause).or_default() += ns;
        }
    }
}

/// Returns the final charge of a cause in nanoseconds for all files, and its parts for programs and
/// libraries and for modules. All are 0 for any other cause: its remedy stays as it is.
fn charges_of(cause: WaitCause, charged: &ChargedWaits) -> [f64; 3] {
    match cause {
        WaitCause::Depth | WaitCause::PageFaults | WaitCause::OverRead | WaitCause::ManyFiles => {
            let all_ns = charged.by_cause.iter().find(|(other, _)| *other == cause);
            let ChargedWaits { startup: StartupCharges { programs_ns, modules_ns }, .. } = charged;
            let part = |parts: &BTreeMap<WaitCause, f64>| parts.get(&cause).copied().unwrap_or(0.0);
            [all_ns.map_or(0.0, |(_, ns)| *ns), part(programs_ns), part(modules_ns)]
        }
        _ => [0.0; 3],
    }
}

/// Returns true if more than half of the charge of a cause is for programs and libraries.
pub(in super::super) fn is_of_programs(cause: WaitCause, charged: &ChargedWaits) -> bool {
    let [all_ns, programs_ns, _] = charges_of(cause, charged);
    programs_ns * 2.0 > all_ns
}

/// Changes the remedy of a cause for files that the user does not read by code. It is replaced if
/// programs and libraries have more than half of the charge. The cause `ManyFiles` gets a further
/// remedy if they and the modules have more than half, and Python is mapped for execution.
pub(super) fn adapt_remedy(
    cause: WaitCause,
    gathered: &RecordingData,
    charged: &ChargedWaits,
    remedy: String,
) -> String {
    let has_python = gathered.files.values().any(|file| file.is_executable && is_python(file));
    let [all_ns, programs_ns, modules_ns] = charges_of(cause, charged);
    if is_of_programs(cause, charged) {
        format!("start-up: {REMEDY}")
    } else if has_python
        && cause == WaitCause::ManyFiles
        && (programs_ns + modules_ns) * 2.0 > all_ns
    {
        format!("{remedy}; for the start-up, {REMEDY}")
    } else {
        remedy
    }
}

/// Returns true for the interpreter of Python, or the library with it.
fn is_python(file: &FileData) -> bool {
    let name = Path::new(&file.path).file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("python") || name.starts_with("libpython"))
}

/// Returns true for a compiled module of Python that the program has not written.
fn is_python_module(file: &FileData) -> bool {
    let path = Path::new(&file.path);
    let is_compiled = path.extension().is_some_and(|extension| extension == "pyc");
    let folder = path.parent().and_then(Path::file_name);
    is_compiled && folder.is_some_and(|name| name == "__pycache__") && file.written_bytes == 0
}
