//! Environment of a job file: included files, variables, and properties of the machine.

use std::path::{Path, PathBuf};

use readpath_core::unit::PAGE_BYTES;
use readpath_models::input_file;
use readpath_sim::job::{Environment, JobError, JobFile};

/// Parses `text`, the job file at `path`. Variables and properties of this machine are substituted.
pub fn parse(text: &str, path: &Path) -> Result<JobFile, JobError> {
    let file = |name: &str| read_included_file(name, path);
    let variable = |name: &str| std::env::var(name).ok();
    let system = rustix::system::sysinfo();
    let memory_bytes = system.totalram as u64 * u64::from(system.mem_unit);
    let processors = std::thread::available_parallelism().ok();
    let environment = Environment {
        file: Some(&file),
        variable: Some(&variable),
        processors: processors.map(|count| count.get() as u64),
        memory_mib: Some(memory_bytes >> 20),
        page_bytes: Some(PAGE_BYTES),
    };
    JobFile::parse_in(text, &environment)
}

/// Reads a file that a job file includes. The name is relative to the current folder. If it does
/// not exist there, it is relative to the folder of the job file, as in fio.
fn read_included_file(name: &str, job_file: &Path) -> Result<String, String> {
    let next_to_job_file = job_file.parent().map(|folder| folder.join(name));
    let in_current_folder = PathBuf::from(name);
    let path = match next_to_job_file {
        Some(next_to_job_file) if !in_current_folder.exists() => next_to_job_file,
        _ => in_current_folder,
    };
    let text = input_file::text(&path, input_file::TEXT_BYTES_MAX);
    text.map_err(|error| error.to_string())
}
