//! Options of `run` that no row of a job or a trace would use.

use readpath_sim::job::{Job, JobEngine, JobFile};

use super::storage::Storage;
use crate::args::RunArgs;
use crate::exit::{CommandResult, Failure};

/// Refuses an option that no row would use. It would be ignored in silence. `is_trace` is true
/// if a trace is replayed in place of a job.
pub fn refuse_unused_options(
    args: &RunArgs,
    storages: &[Storage],
    jobs: &JobFile,
    is_trace: bool,
) -> CommandResult {
    let through_library = |storage: &Storage| matches!(storage, Storage::File(_) | Storage::Nfs(_));
    let has_library = storages.iter().any(through_library);
    let uses_readpath = storages.iter().any(|storage| !matches!(storage, Storage::Kernel(_)));
    let has_path = storages.iter().any(|storage| storage.path().is_some());
    let needs_library = "is for storage file:PATH or nfs://, and --on names none";
    let needs_readpath = "has no effect on kernel:, which has its own, and --on names no other";
    let needs_path = "is for storage file:PATH or kernel:PATH, and --on names none";
    let options = [
        ("--backend", args.backend.is_some() && !has_library, needs_library),
        ("--page-cache", args.page_cache.is_some() && !has_library, needs_library),
        ("--readahead", args.readahead.is_some() && !uses_readpath, needs_readpath),
        ("--scheduler", args.scheduler.is_some() && !uses_readpath, needs_readpath),
        ("--eviction", args.eviction.is_some() && !uses_readpath, needs_readpath),
        ("--memory", args.memory.is_some() && !uses_readpath, needs_readpath),
        ("--create", args.create && !has_path, needs_path),
    ];
    // Direct I/O uses neither a page cache nor readahead. A mapping has both, and is never direct.
    // The memory of a job is accepted: it is a limit, and one value for all rows.
    let is_past_cache = jobs.jobs.iter().all(|job| job.is_direct);
    let needs_cache = "has no effect on direct I/O, which is past the page cache";
    let is_file = |storage: &Storage| matches!(storage, Storage::File(_) | Storage::Kernel(_));
    let has_scheduler = !storages.iter().all(is_file) || !jobs.jobs.iter().all(bypasses_cache);
    let needs_scheduler =
        "has no effect on direct I/O or mappings of a file, and --on names no modelled device";
    let options_of_cache = [
        ("--readahead", args.readahead.is_some() && is_past_cache, needs_cache),
        ("--eviction", args.eviction.is_some() && is_past_cache, needs_cache),
        ("--memory", args.memory.is_some() && is_past_cache && is_trace, needs_cache),
        ("--page-cache", args.page_cache.is_some() && is_past_cache, needs_cache),
        ("--scheduler", args.scheduler.is_some() && !has_scheduler, needs_scheduler),
    ];
    // The reasons of the job come first. All but the one of `--scheduler` hold on any storage.
    match options_of_cache.iter().chain(&options).find(|(_, is_unused, _)| *is_unused) {
        Some((option, _, reason)) => {
            Err(Failure::Usage(format!("{option} {reason}; leave it out")))
        }
        None => Ok(()),
    }
}

/// True if the job's reads do not go through the cache of the read path. A mapping has a cache of
/// its own, or the kernel's.
pub fn bypasses_cache(job: &Job) -> bool {
    job.is_direct || job.engine == JobEngine::Mmap
}
