//! Caveats of a row: facts that a reader needs to interpret its figures.

use readpath::pager::MappingMode;
use readpath::{BackendInUse, BackendKind, Mode};
use readpath_record::cold::Residency;
use readpath_sim::job::{Job, JobEngine, JobFile, printable};

/// Returns a caveat about the start of a run on a file: no direct I/O, or pages that stayed in the
/// kernel page cache. `None` without either.
pub fn start_caveat(mode: Mode, residency: &Residency) -> Option<String> {
    join(mode_caveat(mode), residency_caveat(residency))
}

/// Returns the mode of a file without direct I/O. `None` with it.
fn mode_caveat(mode: Mode) -> Option<String> {
    (mode != Mode::Direct).then(|| mode.to_string())
}

/// Returns a caveat about pages that stayed in the kernel page cache. `None` without any.
pub fn residency_caveat(residency: &Residency) -> Option<String> {
    (residency.resident > 0).then(|| {
        format!("not cold: {} of {} pages stayed in memory", residency.resident, residency.pages)
    })
}

/// Returns the modes of a job file's jobs that have no direct I/O. `None` without any. `direct` is
/// the mode of the direct jobs, and `cached` of the jobs that read through the cache. Mappings have
/// a [caveat](mapping_caveat) of their own. The jobs of a mode are named unless it is the mode of
/// all jobs.
pub fn job_modes_caveat(jobs: &JobFile, direct: Mode, cached: Mode) -> Option<String> {
    let caveat = |is_direct: bool, mode: Mode| {
        let has_mode = |job: &&Job| job.is_direct == is_direct && job.engine != JobEngine::Mmap;
        let names: Vec<String> =
            jobs.jobs.iter().filter(has_mode).map(|job| printable(&job.name)).collect();
        let caveat = mode_caveat(mode).filter(|_| !names.is_empty())?;
        match names.len() == jobs.jobs.len() {
            true => Some(caveat),
            false => Some(format!("{}: {caveat}", names.join(", "))),
        }
    };
    let is_direct = true;
    join(caveat(is_direct, direct), caveat(!is_direct, cached))
}

/// Returns the name of the I/O backend if it is not the best one. `None` for the best. A backend is
/// not the best if a better one failed (`because` has its error), or if it is the thread pool.
pub fn backend_caveat(in_use: BackendInUse) -> Option<String> {
    let is_named = in_use.because.is_some() || in_use.kind == BackendKind::Threads;
    is_named.then(|| format!("carried by {in_use}"))
}

/// Returns the bytes that the kernel page cache already had as text. `None` for 0.
pub fn kernel_cache_caveat(bytes: u64) -> Option<String> {
    (bytes > 0).then(|| {
        format!("{:.1} MiB taken from the kernel page cache", bytes as f64 / f64::from(1 << 20))
    })
}

/// Returns the mode of a mapping whose pages the library does not bring in itself. `None` for the
/// mode `Served`.
pub fn mapping_caveat(mode: MappingMode) -> Option<String> {
    (mode != MappingMode::Served).then(|| format!("mapped by {mode}"))
}

/// Returns a caveat if jobs have I/O priorities, which the schedulers of the library do not know.
pub fn priority_caveat(jobs: &JobFile) -> Option<String> {
    let has_priority = jobs.jobs.iter().any(|job| job.priority.is_some());
    has_priority.then(|| "prio and prioclass have no effect through the library".to_owned())
}

/// Joins two caveats by a semicolon. `None` if both are absent.
pub fn join(first: Option<String>, second: Option<String>) -> Option<String> {
    [first, second].into_iter().flatten().reduce(|first, second| format!("{first}; {second}"))
}
