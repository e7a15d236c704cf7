//! The object that a run reads through: a path over files of this machine, or over a server's file.
//! A *path* is a `ReadPath` of the public API. Its *coherence* is the time at which it checks files
//! for changes.

use readpath_core::unit::PAGE_BYTES;

use super::model::VisibleState;
use super::scenario::Scenario;
use super::world::world;
use crate::backend::BackendKind;
use crate::file::File;
use crate::file::open_file::OpenFileError;
use crate::path::ReadPath;
use crate::path::builder::Builder;

/// Number of attempts to open a server's file, some of which fail with a faulty server. Chosen.
const OPEN_ATTEMPTS: usize = 20;

/// Creates the path, and opens the file if it is on a server. Returns `None` if each of
/// `OPEN_ATTEMPTS` attempts fails for an expected reason. An unexpected failure ends the run, and
/// so does any failure to create a path over files of this machine.
pub(super) fn build(scenario: &Scenario) -> Option<(ReadPath, Option<File>)> {
    let Some(server) = &scenario.server else {
        let path = builder(scenario).build().unwrap_or_else(|error| panic!("{error}"));
        return Some((path, None));
    };
    let world = world().expect("a run is in its world");
    world.network.borrow_mut().server = server.clone();
    for _ in 0..OPEN_ATTEMPTS {
        match builder(scenario).open(server.url()) {
            Ok(file) => return Some((file.read_path(), Some(file))),
            Err(error) => {
                if let Err(problem) = check_open_error(scenario, &error) {
                    world.fail_run(problem);
                }
            }
        }
    }
    None
}

/// Returns the builder of the scenario's path, with the policies, memory, depth and coherence of
/// its settings. `held_pages` is the number of pages that guards may keep in memory.
fn builder(scenario: &Scenario) -> Builder {
    let settings = &scenario.settings;
    // Only a backend that is chosen automatically lets threads execute their own requests.
    let backend = if settings.can_execute_inline { BackendKind::Auto } else { BackendKind::Aio };
    ReadPath::builder()
        .memory(settings.memory_pages * PAGE_BYTES)
        .held_memory(settings.held_pages * PAGE_BYTES)
        .readahead(settings.readahead)
        .scheduler(settings.scheduler)
        .eviction(settings.eviction)
        .depth(settings.depth)
        .coherence(settings.coherence)
        .backend(backend)
        // All bytes come from the simulated disk, and none from the system's page cache.
        .kernel_cache(false)
}

/// Returns the visible state of a server's file that was looked up at an unknown earlier time: the
/// `current` state, or any before it. `opened_at_change` is the number of the last change of that
/// state; change 0 wrote the initial file.
pub(super) fn any_earlier_state(current: VisibleState) -> VisibleState {
    VisibleState { opened_at_change: 0, ..current }
}

/// Checks a failure to open a file, or to look it up again. It is expected only of a server's file,
/// whose faults or whose slow threads can cause it.
///
/// # Errors
/// The failure has no expected reason.
pub(super) fn check_open_error(scenario: &Scenario, error: &OpenFileError) -> Result<(), String> {
    let (faults, settings) = (&scenario.faults, &scenario.settings);
    let is_permitted = match (error, &scenario.server) {
        (OpenFileError::Nfs(_), Some(server)) => {
            let fault_rates = [faults.error_one_in, faults.retry_one_in, faults.delay_one_in];
            // A thread that is frozen for seconds receives its answers late. A call needs an
            // eventfd.
            let system_rates = [settings.freeze_one_in, settings.refuse_thread_one_in];
            server.can_time_out() || fault_rates.iter().chain(&system_rates).any(|&rate| rate > 0)
        }
        // The simulation refuses eventfds as often as thread starts, here as above.
        (OpenFileError::Backend(_), Some(_)) => settings.refuse_thread_one_in > 0,
        _ => false,
    };
    if is_permitted { Ok(()) } else { Err(format!("the file can't be opened: {error}")) }
}
