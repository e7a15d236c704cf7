//! Layout of a job's files on one existing file.

use std::path::Path;

use readpath::{Direct, Mode, RawFile};
use readpath_sim::workload::{FileSource, Workload, WorkloadError};

use crate::exit::Failure;
use crate::plan::job::JobRun;
use crate::real_file::mode_and_length;

/// Workload on one existing file.
pub struct Layout {
    /// Processes and files, with offsets from the start of the existing file.
    pub workload: Workload,
    /// Length of the existing file in bytes.
    pub file_bytes: u64,
    /// Caveat about a trace: its own, its placement on the file, and widened requests.
    pub note: Option<String>,
}

/// Opens the storage and lays the job out on it. Returns the mode in which the file is read (direct
/// or through the kernel page cache), and the layout.
pub fn open_and_lay_out(
    run: &JobRun,
    path: &Path,
    direct: Direct,
) -> Result<(Mode, Layout), Failure> {
    let builder = RawFile::builder().write(run.writes()).direct(direct);
    let (mode, bytes) = mode_and_length(path, builder)?;
    // Direct reads must be whole blocks. A caller that opens without direct I/O here may read the
    // same file with it: the kernel's rows do. The library itself widens single reads, and no batch
    // of reads. Only a trace is widened: other jobs do not open the file for it.
    let block_bytes = match &run.trace {
        Some(_) => direct_block_bytes(path)?,
        None => 1,
    };
    Ok((mode, lay_out(run, &path.display().to_string(), bytes, block_bytes)?))
}

/// Size in bytes of the blocks of direct I/O on a file; 1 without direct I/O.
fn direct_block_bytes(path: &Path) -> Result<u64, Failure> {
    let file = RawFile::builder().direct(Direct::Preferred).open(path).map_err(Failure::usage)?;
    Ok(file.alignment_bytes().into())
}

/// Lays the job's files out one after the other on one existing file of `have_bytes` bytes. A job
/// without sizes uses the whole file. The requests of a trace are widened to whole blocks of
/// `block_bytes` bytes. `name` names the existing file in the layout and in errors.
pub fn lay_out(
    run: &JobRun,
    name: &str,
    have_bytes: u64,
    block_bytes: u64,
) -> Result<Layout, Failure> {
    if let Some(trace) = &run.trace {
        let is_real = true;
        let (workload, note) = trace.workload(have_bytes, block_bytes, is_real)?;
        return Ok(Layout { workload, file_bytes: have_bytes, note });
    }
    let workload = lay_out_job(run, name, have_bytes)?;
    Ok(Layout { workload, file_bytes: have_bytes, note: None })
}

/// Lays out the files of a job file's jobs, like [`lay_out`]. Fails if the file is too small for
/// them.
fn lay_out_job(run: &JobRun, name: &str, have_bytes: u64) -> Result<Workload, Failure> {
    let job_failure = |error| Failure::usage(run.job_file_error(error));
    let seed = run.seed;
    // Each file gets the size that its jobs need, as on a modelled device.
    let workload = match Workload::new(&run.jobs, FileSource::Modelled, seed) {
        Err(WorkloadError::UnknownSize { .. }) => {
            // A job without a size has the existing file as its only one.
            let source = FileSource::One { name, bytes: have_bytes };
            return Workload::new(&run.jobs, source, seed).map_err(job_failure);
        }
        workload => workload.map_err(job_failure)?,
    };
    let (starts, _end) = workload.contiguous_starts();
    let ends =
        workload.files.iter().zip(starts).map(|(file, start)| file.bytes.saturating_add(start));
    match ends.max().unwrap_or(0) {
        need_bytes if need_bytes > have_bytes => Err(Failure::Usage(format!(
            "{}: the job's files need {need_bytes} bytes and {name} has {have_bytes}; make `size` \
             or `numjobs` smaller, or the file larger",
            run.path.display()
        ))),
        _ => Ok(workload),
    }
}
