//! Remedy for waits of a program's start: for its executable, its libraries, and the modules of its
//! interpreter.
//!
//! The user of a program changes neither its loader nor the order of its code. Pages that an
//! earlier run has used can be brought in ahead. A file counts as a program or a library if it was
//! mapped for execution. A compiled module of Python counts if the recorded program has mapped
//! Python for execution: other programs copy or search such files.

use std::path::Path;

use super::super::WaitCause;
use super::super::gather::{FileData, RecordingData};
use super::{many_files, over_read};

/// Remedy for programs, libraries and modules.
const REMEDY: &str = "`readpath advise --from RECORDING -- COMMAND` brings these pages in ahead \
                      (needs no root; `readpath record -o RECORDING -- COMMAND` as root makes the \
                      recording)";

/// Returns the waits in nanoseconds for a file that a cause may be charged with. `None` for a cause
/// whose remedy does not change the reads.
fn charged_ns(cause: WaitCause, gathered: &RecordingData, file: &FileData) -> Option<u64> {
    match cause {
        WaitCause::Depth | WaitCause::PageFaults => Some(file.charge(Some(cause)).ns),
        WaitCause::OverRead => Some(over_read::charged_ns(gathered, file)),
        WaitCause::ManyFiles => Some(many_files::charged_ns(file)),
        _ => None,
    }
}

/// Returns true if more than half of the waits of a cause are for files that satisfy `is_meant`.
fn is_mostly(
    cause: WaitCause,
    gathered: &RecordingData,
    is_meant: impl Fn(&FileData) -> bool,
) -> bool {
    let (mut all_ns, mut meant_ns) = (0, 0);
    for file in gathered.files.values() {
        let Some(file_ns) = charged_ns(cause, gathered, file) else { return false };
        all_ns += file_ns;
        meant_ns += if is_meant(file) { file_ns } else { 0 };
    }
    meant_ns * 2 > all_ns
}

/// Returns true if a cause is mostly one of programs and libraries.
pub(in super::super) fn is_of_programs(cause: WaitCause, gathered: &RecordingData) -> bool {
    is_mostly(cause, gathered, |file| file.is_executable)
}

/// Changes the remedy of a cause for files that the user does not read by code: programs and
/// libraries get another one, and modules of an interpreter a further one.
pub(super) fn adapt_remedy(cause: WaitCause, gathered: &RecordingData, remedy: String) -> String {
    let has_python = gathered.files.values().any(|file| file.is_executable && is_python(file));
    let is_module = |file: &FileData| file.is_executable || is_python_module(file);
    if is_of_programs(cause, gathered) {
        format!("start-up: {REMEDY}")
    } else if has_python && cause == WaitCause::ManyFiles && is_mostly(cause, gathered, is_module) {
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
