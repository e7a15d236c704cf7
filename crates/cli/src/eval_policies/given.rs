//! Workloads of the user for the policy matrix: the job files and recordings of a folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use readpath_eval::policy_matrix::{GivenReads, GivenWorkload};
use readpath_sim::job::printable;

use crate::exit::Failure;
use crate::input;
use crate::plan::environment;
use crate::replay_recording::{is_recording, read_recorded_program};

/// Reads the job files and recordings of a folder, in the order of their names, or a single one.
/// Hidden files and folders in it are left out. A folder without other files is refused, and so are
/// two files of one name in the table.
pub(super) fn read_workloads(path: &Path) -> Result<Vec<Arc<GivenWorkload>>, Failure> {
    let failure = |error: std::io::Error| Failure::usage_of(path.display(), error);
    let is_folder = std::fs::metadata(path).map_err(failure)?.is_dir();
    let mut paths: Vec<PathBuf> = vec![path.to_owned()];
    if is_folder {
        let entries: Result<Vec<_>, _> = std::fs::read_dir(path).map_err(failure)?.collect();
        paths = entries.map_err(failure)?.into_iter().map(|entry| entry.path()).collect();
        paths.retain(|path| path.is_file() && !is_hidden(path));
        paths.sort();
    }
    if paths.is_empty() {
        let problem = "has no file; put job files and recordings there";
        return Err(Failure::usage_of(path.display(), problem));
    }
    let mut workloads: Vec<Arc<GivenWorkload>> = Vec::new();
    for path in &paths {
        let workload = read_workload(path)?;
        if workloads.iter().any(|other| other.name == workload.name) {
            let problem =
                format!("another file is called {} in the table; rename one", workload.name);
            return Err(Failure::usage_of(path.display(), problem));
        }
        workloads.push(Arc::new(workload));
    }
    Ok(workloads)
}

/// Returns true for a file whose name begins with a dot.
fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Reads a job file or a recording. Variables of the environment are substituted in a job file.
fn read_workload(path: &Path) -> Result<GivenWorkload, Failure> {
    let reads = if is_recording(path) {
        GivenReads::Recording(Box::new(read_recorded_program(path)?))
    } else {
        let text = input::read_text(path, "a workload is a job file or a recording")?;
        let job = environment::parse(&text, path);
        let named = |error| Failure::usage_of(printable(&path.display().to_string()), error);
        GivenReads::Job(job.map_err(named)?)
    };
    Ok(GivenWorkload::new(path, reads))
}
