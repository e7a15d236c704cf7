//! What a run reads through: a path over files of this machine, or one over a server's file.

use readpath_core::unit::PAGE_BYTES;

use super::model::VisibleVersions;
use super::scenario::Scenario;
use super::world::world;
use crate::backend::BackendKind;
use crate::file::File;
use crate::opening::OpenFileError;
use crate::path::{Builder, ReadPath};

/// A server's file is looked for so often before a run gives up.
const ATTEMPTS: usize = 20;

/// The path, and the file if it is one of a server; `None` if that can't be opened, for reasons that the run knows of.
pub(super) fn build(scenario: &Scenario) -> Option<(ReadPath, Option<File>)> {
    let Some(server) = &scenario.server else {
        let path = builder(scenario).build().unwrap_or_else(|error| panic!("{error}"));
        return Some((path, None));
    };
    let world = world().expect("a run is in its world");
    world.network.borrow_mut().server = server.clone();
    for _ in 0..ATTEMPTS {
        match builder(scenario).open(server.url()) {
            Ok(file) => return Some((file.read_path(), Some(file))),
            Err(error) => {
                if let Err(what) = check(scenario, &error) {
                    world.wrong(what);
                }
            }
        }
    }
    None
}

fn builder(scenario: &Scenario) -> Builder {
    let settings = &scenario.settings;
    let backend = if settings.lets_carry { BackendKind::Auto } else { BackendKind::Aio };
    ReadPath::builder()
        .memory(settings.memory_pages * PAGE_BYTES)
        .held_memory(settings.held_pages * PAGE_BYTES)
        .readahead(settings.readahead)
        .scheduler(settings.scheduler)
        .eviction(settings.eviction)
        .depth(settings.depth)
        .coherence(settings.coherence)
        .backend(backend)
        .kernel_cache(false)
}

/// A server's file as it was when it was found at first, which may have been at any time before.
pub(super) fn as_found(now: VisibleVersions) -> VisibleVersions {
    VisibleVersions { since: 0, ..now }
}

/// A file can't be opened, or looked for again.
///
/// # Errors
/// There is no reason for that; says so.
pub(super) fn check(scenario: &Scenario, error: &OpenFileError) -> Result<(), String> {
    let (faults, settings) = (&scenario.faults, &scenario.settings);
    let may_be = match (error, &scenario.server) {
        (OpenFileError::Nfs(_), Some(server)) => {
            let parts = [faults.fails, faults.again, faults.late];
            // Who is stopped for seconds is late for his answers.
            let stopped = [settings.freeze_part, settings.refuse_thread_part];
            server.may_be_late() || parts.iter().chain(&stopped).any(|&part| part > 0)
        }
        // There is nothing to sleep on.
        (OpenFileError::Backend(_), Some(_)) => settings.refuse_thread_part > 0,
        _ => false,
    };
    if may_be { Ok(()) } else { Err(format!("the file can't be opened: {error}")) }
}
