//! Options of `run` that no row of a job or a trace would use.

use super::storage::Storage;
use super::trace::TraceSource;
use crate::args::RunArgs;
use crate::exit::{CommandResult, Failure};

/// Refuses an option that no row would use. It would be ignored in silence. `trace` is the trace
/// that is replayed in place of a job.
pub fn refuse_unused_options(
    args: &RunArgs,
    storages: &[Storage],
    trace: Option<&TraceSource>,
) -> CommandResult {
    let through_library = |storage: &Storage| {
        matches!(storage, Storage::File(_)) || matches!(storage, Storage::Nfs(_))
    };
    let has_library = storages.iter().any(through_library);
    let has_own_path = storages.iter().any(|storage| !matches!(storage, Storage::Kernel(_)));
    let has_path = storages.iter().any(|storage| storage.path().is_some());
    let needs_library = "is for storage file:PATH or nfs://, and --on names none";
    let needs_own_path = "has no effect on kernel:, which has its own, and --on names no other";
    let needs_path = "is for storage file:PATH or kernel:PATH, and --on names none";
    let options = [
        ("--backend", args.backend.is_some() && !has_library, needs_library),
        ("--page-cache", args.page_cache.is_some() && !has_library, needs_library),
        ("--readahead", args.readahead.is_some() && !has_own_path, needs_own_path),
        ("--scheduler", args.scheduler.is_some() && !has_own_path, needs_own_path),
        ("--eviction", args.eviction.is_some() && !has_own_path, needs_own_path),
        ("--memory", args.memory.is_some() && !has_own_path, needs_own_path),
        ("--create", args.create && !has_path, needs_path),
    ];
    // A trace with direct I/O uses neither a page cache nor readahead.
    let is_past_cache = trace.is_some_and(TraceSource::is_direct);
    let needs_cache = "has no effect on the replay of a trace past the page cache";
    let options_of_cache = [
        ("--readahead", args.readahead.is_some() && is_past_cache, needs_cache),
        ("--eviction", args.eviction.is_some() && is_past_cache, needs_cache),
        ("--memory", args.memory.is_some() && is_past_cache, needs_cache),
        ("--page-cache", args.page_cache.is_some() && is_past_cache, needs_cache),
    ];
    match options_of_cache.iter().chain(&options).find(|(_, is_unused, _)| *is_unused) {
        Some((option, _, reason)) => {
            Err(Failure::Usage(format!("{option} {reason}; leave it out")))
        }
        None => Ok(()),
    }
}
