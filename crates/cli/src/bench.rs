//! `readpath bench`: compares the library with default settings with `pread`, `mmap` and
//! `O_DIRECT`.
//!
//! Each row is one access pattern of a program. A *cell* is one row in one state of the page cache.
//! A *contender* is one of the compared ways to read; a cell has several runs of each.

mod cells;
mod futures;
mod one;
mod ours;
mod page;
mod picture;
pub(crate) mod refused;
mod rounds;
mod rows;
pub(crate) mod states;
mod tell;

use std::num::NonZero;
use std::path::Path;
use std::time::{Duration, Instant};

use readpath_core::splitmix;
use serde::Serialize;

use crate::args::BenchArgs;
use crate::exit::{CommandResult, Failure};
use crate::html::check_output_folder;
use crate::output::{print, print_document};
use crate::output_file::{check_not_needed, write_results};
use crate::plan::storage::no_client;
use crate::progress::Interrupt;
use crate::real_file::make_cold;
use crate::scratch_files::ScratchFolder;
use cells::{BenchCell, StateSummary};
pub use one::run as run_one;
pub use refused::DeniedInterface;
use rounds::{Matrix, RowState};
use rows::{Data, Row, Scale};
pub use states::CacheState;

/// Prefix of the run's scratch folder; the run's number follows it.
const FOLDER_PREFIX: &str = "readpath-everyday";

/// Bytes that stay free on the file system next to the data files.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// JSON document of the command.
#[derive(Serialize)]
struct BenchDocument<'a> {
    /// Version of this command.
    readpath: &'static str,
    /// Name and release of the operating system.
    kernel: String,
    /// Processors and memory of the machine; null for an unknown memory.
    processors: usize,
    memory_bytes: Option<u64>,
    /// Size of the data and of the work; the figures of a small one are not meaningful.
    scale: Scale,
    /// Number of runs of each contender in each cell.
    runs: u32,
    /// Interfaces that were denied to all contenders.
    refused: &'a [DeniedInterface],
    notes: &'a [String],
    /// One summary for each measured state.
    summary: &'a [StateSummary],
    /// The cells, state by state.
    results: &'a [BenchCell],
}

/// Measures the matrix, or the chosen rows of it, and prints the result. A failed or interrupted
/// measurement is returned after the results up to it are printed. Before the measurement, `--html`
/// and `--picture` are refused if they are folders or in none, or if both are one file.
pub fn run(args: &BenchArgs) -> CommandResult {
    let start = Instant::now();
    let scale = chosen_scale(args);
    let rows = chosen_rows(&args.rows, scale)?;
    let minutes = args.minutes.map(NonZero::get).or(scale.minutes());
    let deadline = minutes.map(|minutes| deadline(start, minutes)).transpose()?;
    let interrupt = Interrupt::listen();
    check_output_folder(args.picture.as_deref())?;
    check_output_folder(args.html.as_deref())?;
    check_not_needed(args.html.as_deref(), &args.picture)?;
    let folder = make_data(&args.folder, &rows, &interrupt)?;
    let mut notes: Vec<String> =
        args.refuse.iter().map(|refused| format!("refused to all: {}", refused.name())).collect();
    let states = possible_states(args, &rows, folder.path(), &interrupt, &mut notes)?;
    let runs = args.runs.map_or(scale.runs(), NonZero::get);
    let matrix = Matrix {
        rows: &rows,
        scale,
        states: &states,
        runs,
        deadline,
        folder: folder.path(),
        queue_depths: &args.queue,
        denied: &args.refuse,
        interrupt: &interrupt,
    };
    let mut cells = matrix.cells();
    let outcome = matrix.measure(&mut cells);
    // The data files are removed before the results are printed, also after a failure.
    drop(folder);
    notes.extend(unfinished_note(&cells, runs, &outcome));
    let judged: Vec<BenchCell> =
        cells.iter().filter(|cell| has_results(cell)).map(cells::judge).collect();
    let summary: Vec<StateSummary> =
        states.iter().map(|&state| StateSummary::of(state, &judged)).collect();
    let document = BenchDocument {
        readpath: env!("CARGO_PKG_VERSION"),
        kernel: readpath_os::system_name(),
        processors: processor_count(),
        memory_bytes: memory_bytes(),
        scale,
        runs,
        refused: &args.refuse,
        notes: &notes,
        summary: &summary,
        results: &judged,
    };
    print_results(args, &document)?;
    // An interrupt with printed figures has a message of its own.
    outcome.map_err(|failure| failure.after_figures(judged.len()))
}

/// Prints the results and writes the requested picture and page.
fn print_results(args: &BenchArgs, document: &BenchDocument<'_>) -> CommandResult {
    let BenchDocument { notes, summary, results, .. } = document;
    let printed = match args.json {
        true => print_document(document),
        false => print(&tell::results_text(results, summary, notes)),
    };
    if let Some(path) = &args.html {
        page::matrix_page(document).write(path)?;
    }
    if let Some(path) = &args.picture {
        write_results(path, &picture::svg(results, summary, &document.title()))?;
    }
    printed
}

impl BenchDocument<'_> {
    /// Title of the results: versions, machine, and a warning about small runs.
    fn title(&self) -> String {
        let BenchDocument { readpath, kernel, processors, memory_bytes, .. } = self;
        let memory = memory_bytes.map(|bytes| format!(", {} GiB of memory", bytes >> 30));
        let memory = memory.unwrap_or_default();
        let warning =
            if self.scale == Scale::Small { "; small: the figures are not meaningful" } else { "" };
        format!(
            "Access patterns: readpath {readpath}, {kernel}, {processors} \
             processors{memory}{warning}"
        )
    }
}

/// Returns the end of a time limit in minutes. A limit beyond the clock's range is an error.
fn deadline(start: Instant, minutes: u64) -> Result<Instant, Failure> {
    let seconds = minutes.checked_mul(60);
    let end = seconds.and_then(|seconds| start.checked_add(Duration::from_secs(seconds)));
    end.ok_or_else(|| Failure::Usage(format!("--minutes {minutes}: too many; give fewer")))
}

/// Scale of the matrix that the options choose.
fn chosen_scale(args: &BenchArgs) -> Scale {
    match (args.small, args.full) {
        (true, _) => Scale::Small,
        (false, true) => Scale::Full,
        (false, false) => Scale::Usual,
    }
}

/// Returns the rows with one of `parts` in their names. An empty list chooses all rows. A part that
/// is in no name is an error.
fn chosen_rows(parts: &[String], scale: Scale) -> Result<Vec<Row>, Failure> {
    let all_rows = rows::rows(scale);
    if let Some(part) =
        parts.iter().find(|part| !all_rows.iter().any(|row| row.name.contains(*part)))
    {
        let names: Vec<&str> = all_rows.iter().map(|row| row.name.as_str()).collect();
        return Err(Failure::Usage(format!(
            "--rows {part}: no row has this part in its name; the rows are: {}",
            names.join(", ")
        )));
    }
    let is_chosen =
        |row: &Row| parts.is_empty() || parts.iter().any(|part| row.name.contains(part.as_str()));
    Ok(all_rows.into_iter().filter(is_chosen).collect())
}

/// Creates the data files of the rows in a scratch folder of the run below `parent`, and syncs them
/// to storage. Rows with equal data share their files. Refuses an unsuitable `parent`.
fn make_data(parent: &Path, rows: &[Row], interrupt: &Interrupt) -> Result<ScratchFolder, Failure> {
    let mut data_sets: Vec<Data> = Vec::new();
    for row in rows {
        if !data_sets.contains(&row.data) {
            data_sets.push(row.data);
        }
    }
    let needed_bytes = data_sets.iter().map(|data| data.bytes()).sum::<u64>() + FREE_BYTES_MIN;
    check_parent(parent, needed_bytes)?;
    let folder = ScratchFolder::new(parent, FOLDER_PREFIX)?;
    let files = data_sets.iter().flat_map(|data| data.files(folder.path()));
    for (file_number, (path, bytes)) in files.enumerate() {
        // Each file has other data, so that the checksum detects exchanged files.
        let seed = splitmix::mixed(file_number as u64 + 1);
        folder.add(&path, bytes, seed, interrupt)?;
    }
    folder.sync()?;
    Ok(folder)
}

/// Refuses a `parent` that is a URL, is no folder, or has less than `needed_bytes` free.
fn check_parent(parent: &Path, needed_bytes: u64) -> CommandResult {
    let folder_metadata = std::fs::metadata(parent).map_err(|error| {
        let text = parent.to_string_lossy();
        match text.split_once("://") {
            Some((scheme, _)) => Failure::Usage(no_client(&text, scheme)),
            None => {
                let advice = "name a folder on the storage to be measured";
                Failure::usage_of(parent.display(), format!("{error}; {advice}"))
            }
        }
    })?;
    if !folder_metadata.is_dir() {
        let problem = "is not a folder; name a folder on the storage to be measured";
        return Err(Failure::usage_of(parent.display(), problem));
    }
    let file_system =
        rustix::fs::statvfs(parent).map_err(|error| Failure::usage_of(parent.display(), error))?;
    let free_bytes = file_system.f_bavail * file_system.f_frsize;
    if free_bytes < needed_bytes {
        return Err(Failure::usage_of(
            parent.display(),
            format!(
                "has {} MiB free, and {} MiB are needed; choose fewer rows, or another folder",
                free_bytes >> 20,
                needed_bytes >> 20
            ),
        ));
    }
    Ok(())
}

/// Returns the chosen states that this system can produce. Adds to `notes` the reason for each
/// chosen state that it can't. If no state is left, the failure `Unavailable` has the text of all
/// notes, also of earlier ones. `rows` is not empty, and `folder` has their files. For the test,
/// the pages of one file are dropped.
fn possible_states(
    args: &BenchArgs,
    rows: &[Row],
    folder: &Path,
    interrupt: &Interrupt,
    notes: &mut Vec<String>,
) -> Result<Vec<CacheState>, Failure> {
    let mut states: Vec<CacheState> = CacheState::ALL.to_vec();
    states.retain(|state| args.states.is_empty() || args.states.contains(state));
    let mut exclude_states = |states: &mut Vec<CacheState>,
                              is_excluded: fn(&CacheState) -> bool,
                              reason: &str| {
        let names: Vec<&str> =
            states.iter().filter(|state| is_excluded(state)).map(|state| state.name()).collect();
        if !names.is_empty() {
            notes.push(format!("not measured: {}: {reason}", names.join(", ")));
            states.retain(|state| !is_excluded(state));
        }
    };
    // One data file shows whether the kernel drops the pages of this file system.
    let first_index = 0;
    let (path, _bytes) = rows[0].data.files(folder).swap_remove(first_index);
    let residency = make_cold(&path, &mut || !interrupt.is_signalled())?;
    if residency.resident > 0 {
        let reason = format!(
            "{} of {} pages of a file stay in memory after the kernel was asked to drop them: \
                the file system is in memory (tmpfs) or has its own cache; name a folder on a \
                disk",
            residency.resident, residency.pages
        );
        exclude_states(&mut states, |state| state.is_cold(), &reason);
    }
    if states.contains(&CacheState::Short)
        && let Some(reason) = rounds::memory_cgroup_problem()
    {
        exclude_states(&mut states, |state| *state == CacheState::Short, &reason);
    }
    match states.is_empty() {
        true => Err(Failure::Unavailable(notes.join("; "))),
        false => Ok(states),
    }
}

/// True if any contender of the cell has a measurement, or was aborted.
fn has_results(cell: &RowState<'_>) -> bool {
    cell.contenders.iter().any(|runs| !runs.measured.is_empty() || runs.abort_reason.is_some())
}

/// Returns a note with the number of cells in which a contender has fewer than `runs` runs. The
/// measurement's `outcome` is the cause; without a failure it is the time limit. An aborted
/// contender counts as complete. `None` if all cells are complete.
fn unfinished_note(cells: &[RowState<'_>], runs: u32, outcome: &CommandResult) -> Option<String> {
    let is_incomplete = |cell: &&RowState<'_>| {
        let has_all_runs = |contender: &rounds::ContenderRuns| {
            contender.abort_reason.is_some() || contender.measured.len() == runs as usize
        };
        !cell.contenders.iter().all(has_all_runs)
    };
    let incomplete = cells.iter().filter(is_incomplete).count();
    let without_runs = cells.iter().filter(|cell| !has_results(cell)).count();
    let (cause, remedy) = match outcome {
        Ok(()) => ("time limit reached", "; increase --minutes, or choose fewer --rows"),
        Err(Failure::Interrupted) => ("interrupted", ""),
        Err(_) => ("ended by a failure", ""),
    };
    (incomplete > 0).then(|| {
        format!(
            "{cause}: {incomplete} of {} cells have fewer than {runs} runs, {without_runs} of them \
             no run{remedy}",
            cells.len()
        )
    })
}

/// Number of processors that this process may use; 1 if it is unknown.
fn processor_count() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Memory of the machine in bytes; `None` if the kernel reports an impossible value.
fn memory_bytes() -> Option<u64> {
    let system = rustix::system::sysinfo();
    system.totalram.checked_mul(u64::from(system.mem_unit))
}
