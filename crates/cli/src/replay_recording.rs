//! `readpath replay RECORDING`: predicts the time of a recorded program on other devices, with
//! other policies and other memory. A *row* is the program with one storage, policies and memory
//! size. Rows run on device models, or on real storage through the library or the kernel.

use std::io::Read;
use std::path::Path;

use readpath_core::policy::Spec;
use readpath_sim::report::ResultRow;
use readpath_sim::run::RunObserver;
use readpath_sim::simulate::SimulationSetup;
use readpath_sim::workload::ReadList;
use readpath_trace::recording::{MAGIC, Record, RecordingMethod, RecordingStart};
use readpath_trace::replay::{RecordedProgram, RecordingInput};
use serde::Serialize;

use crate::args::ReplayArgs;
use crate::exit::{CommandResult, Failure};
use crate::html::bars::{self, ChartBar};
use crate::html::{Page, check_output_folder, colours};
use crate::input;
use crate::input::parse_scheduler;
use crate::output::{print, print_json};
use crate::output_file::check_not_needed;
use crate::plan::storage::Storage;
use crate::progress::{Interrupt, RunProgress};
use crate::recordings::for_each_record;
use crate::table::{Column, Table, count, mib, number};
use read_methods::Policies;

mod player;
mod read_methods;
mod real;

pub use player::run as run_one;
use real::{RealRow, RealStorage, kernel_policies};

/// Maximum number of rows named in the summary sentence. Chosen, not measured.
const SUMMARY_ROWS_MAX: usize = 8;

/// Share of the recorded time from which on other waits than those for reads are named. Chosen.
const OTHER_WAITS_SHARE_MIN: f64 = 0.1;

/// True if the file begins with the mark of a recording. False for an unreadable file, and for a
/// pipe: its first bytes can be read only once.
pub fn is_recording(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    let mut start = [0; MAGIC.len()];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == MAGIC
}

/// Row: the program as recorded, or its prediction.
#[derive(Debug, Serialize)]
struct Predicted {
    /// Storage as named by `--on`, or `as recorded`.
    storage: String,
    /// Readahead policy. `None` for the recorded run.
    readahead: Option<String>,
    /// Scheduler. `None` where it is unknown, or for the recorded run.
    scheduler: Option<String>,
    /// Eviction policy. `None` for the kernel, or for the recorded run.
    eviction: Option<String>,
    /// Memory of the page cache; `None` if unknown, or without a limit.
    memory_bytes: Option<u64>,
    /// Duration of the program.
    seconds: f64,
    /// Recorded duration ÷ this duration.
    times_as_fast: f64,
    /// Number of reads. Only the recorded run has the reads of pages that were cached before it.
    reads: u64,
    /// Requests to the device. `None` where they are not counted.
    device_requests: Option<u64>,
    /// Bytes of these requests. `None` where they are not counted.
    device_bytes: Option<u64>,
    /// Bytes read from the device ÷ bytes requested.
    amplification: Option<f64>,
    /// Share of the requested bytes that was in the cache.
    coverage: Option<f64>,
    /// Caveat about the figures.
    note: Option<String>,
}

/// Gathers the reads of a recording that waited for storage, for a replay. A recording without such
/// a read is refused, and so is one of a trace of requests: a prediction needs the durations of the
/// reads, which it lacks.
pub fn read_recorded_program(path: &Path) -> Result<RecordedProgram, Failure> {
    let mut gathered = RecordingInput::default();
    for_each_record(path, |record| {
        if let Record::Start(RecordingStart { source: RecordingMethod::Requests, .. }) = record {
            let problem = "was imported from a trace of requests, whose durations are unknown; \
                replay the trace itself with `readpath run TRACE --on STORAGE`";
            return Err(Failure::usage_of(path.display(), problem));
        }
        gathered.take(&record);
        Ok(())
    })?;
    gathered.finish().ok_or_else(|| {
        let problem = "has no read that waited for storage: other storage would not change its \
            time";
        Failure::usage_of(path.display(), problem)
    })
}

/// Replays the recorded reads once for each combination of storage, policies and memory size.
/// Prints the rows as text or JSON, and writes the page of `--html`. The first row is the program
/// as recorded.
pub fn run(args: &ReplayArgs) -> CommandResult {
    check_output_folder(args.html.as_deref())?;
    let storages = match args.storages.is_empty() {
        true => parse_storages(&["hdd,nvme".to_owned()])?,
        false => parse_storages(&args.storages)?,
    };
    let (readahead, eviction) = (args.readahead.as_deref(), args.eviction.as_deref());
    let seed = args.seed.unwrap_or(1);
    let storage_paths = storages.iter().filter_map(Storage::path);
    check_not_needed(args.html.as_deref(), storage_paths.chain([&args.events]))?;
    let policies = PolicyChoices {
        readaheads: input::parse_specs(readahead.unwrap_or("ondemand,adaptive"))?,
        evictions: input::parse_specs(eviction.unwrap_or("two-lists"))?,
        scheduler: parse_scheduler(args.scheduler.as_deref().unwrap_or("adaptive"))?,
    };
    let recorded = read_recorded_program(&args.events)?;
    let memory_sizes = parse_memory_sizes(&args.memory, recorded.memory_bytes)?;
    let interrupt = Interrupt::listen();
    let mut real_storage = RealStorage::new(&args.events, &recorded, seed, &interrupt);
    let plans = policies.row_plans(&storages, &memory_sizes);
    // Every row is checked before the first one runs.
    plans.iter().try_for_each(|plan| plan.check(&real_storage))?;
    let mut rows = vec![recorded_row(&recorded)];
    // Failed rows have no figures. The others are printed before the failures.
    let mut problems = Vec::new();
    for plan in &plans {
        let row = match plan.storage {
            Storage::Modelled(device) => simulate_row(plan, device, &recorded, seed, &interrupt),
            _ => replay_real(plan, &recorded, &mut real_storage),
        };
        if interrupt.is_signalled() {
            return Err(Failure::Interrupted);
        }
        match row {
            Ok(row) => rows.push(row),
            Err(Failure::Run(problem)) => problems.push(problem),
            Err(failure) => return Err(failure),
        }
    }
    // Removes the scratch files before the results are printed.
    drop(real_storage);
    let outcome = match problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::Run(problems.join("; "))),
    };
    // Without a predicted row, the recorded one has nothing to be compared with.
    if rows.len() == 1 {
        return outcome;
    }
    let printed = match args.json {
        true => print_json(&rows, seed),
        false => print(&results_text(&recorded, &rows)),
    };
    if let Some(path) = &args.html {
        replay_page(&recorded, &rows).write(path)?;
    }
    printed.and(outcome)
}

/// Parses the storages of `--on`. Refuses a server and a memory region: a replay creates copies of
/// the recorded files in a folder.
fn parse_storages(texts: &[String]) -> Result<Vec<Storage>, Failure> {
    let storages = Storage::parse_all(texts)?;
    let refused = |storage: &&Storage| matches!(storage, Storage::Nfs(_) | Storage::Region(_));
    match storages.iter().find(refused) {
        None => Ok(storages),
        Some(storage) => Err(Failure::Usage(format!(
            "--on {storage}: a replay creates the recorded files in a folder; name file:FOLDER \
                or kernel:FOLDER (on a mount, for a server), or a modelled device"
        ))),
    }
}

/// Parses the values of `--memory`, in bytes. `+SIZE` adds to `recorded_bytes`, the memory of the
/// recorded machine (0 if unknown). Without values, returns one `None`: the default of the storage.
fn parse_memory_sizes(texts: &[String], recorded_bytes: u64) -> Result<Vec<Option<u64>>, Failure> {
    if texts.is_empty() {
        return Ok(vec![None]);
    }
    let bytes = |text: &String| match text.strip_prefix('+') {
        None => input::size("--memory", text).map(Some),
        Some(_) if recorded_bytes == 0 => Err(Failure::Usage(format!(
            "--memory {text}: the recording doesn't say how much memory its machine has; leave the + out"
        ))),
        Some(added) => Ok(Some(recorded_bytes + input::size("--memory", added)?)),
    };
    texts.iter().map(bytes).collect()
}

/// Policies that are combined with the storages and memory sizes.
struct PolicyChoices {
    /// Readahead policies, at least one.
    readaheads: Vec<Spec>,
    /// Eviction policies, at least one.
    evictions: Vec<Spec>,
    /// One for all rows.
    scheduler: Spec,
}

/// Combination that becomes a row.
struct RowPlan<'a> {
    /// Modelled device, or a folder for the library or the kernel.
    storage: &'a Storage,
    /// Readahead policy; unused by the kernel.
    readahead: &'a Spec,
    /// Eviction policy; unused by the kernel.
    eviction: &'a Spec,
    /// Scheduler; unused by the kernel.
    scheduler: &'a Spec,
    /// Memory for the page cache; `None`: the default of the storage.
    memory_bytes: Option<u64>,
}

impl PolicyChoices {
    /// Returns every combination once. The kernel has its own policies: one row per memory size.
    fn row_plans<'a>(
        &'a self,
        storages: &'a [Storage],
        memory_sizes: &[Option<u64>],
    ) -> Vec<RowPlan<'a>> {
        let mut plans = Vec::new();
        for storage in storages {
            let policies_max = if matches!(storage, Storage::Kernel(_)) { 1 } else { usize::MAX };
            for readahead in self.readaheads.iter().take(policies_max) {
                for eviction in self.evictions.iter().take(policies_max) {
                    for &memory_bytes in memory_sizes {
                        let scheduler = &self.scheduler;
                        plans.push(RowPlan {
                            storage,
                            readahead,
                            eviction,
                            scheduler,
                            memory_bytes,
                        });
                    }
                }
            }
        }
        plans
    }
}

impl RowPlan<'_> {
    /// Returns the row on real storage; `None` for a modelled device. Fails for a policy that the
    /// library refuses.
    fn real_row(&self) -> Result<Option<RealRow<'_>>, Failure> {
        let memory_bytes = self.memory_bytes;
        let policies = || Policies::new(self.readahead, self.eviction, self.scheduler);
        Ok(match self.storage {
            Storage::File(folder) => {
                Some(RealRow { folder, policies: Some(policies()?), memory_bytes })
            }
            Storage::Kernel(folder) => Some(RealRow { folder, policies: None, memory_bytes }),
            _ => None,
        })
    }

    /// Checks the policies, the memory and the free space of a row on real storage. A modelled row
    /// passes.
    fn check(&self, real_storage: &RealStorage<'_>) -> CommandResult {
        let Some(row) = self.real_row()? else { return Ok(()) };
        let memory = rustix::system::sysinfo();
        let machine_bytes = memory.totalram as u64 * u64::from(memory.mem_unit);
        match row.memory_bytes {
            Some(bytes) if bytes > machine_bytes => Err(Failure::Usage(format!(
                "--memory: {} MiB on {}: this machine has {} MiB; more of it is for modelled devices",
                bytes >> 20,
                self.storage,
                machine_bytes >> 20
            ))),
            _ => real_storage.check_free_space(row.folder),
        }
    }
}

/// Runs a row on real storage. Returns its figures, with the recorded time after the last read
/// added to its seconds.
fn replay_real(
    plan: &RowPlan<'_>,
    recorded: &RecordedProgram,
    real_storage: &mut RealStorage<'_>,
) -> Result<Predicted, Failure> {
    let row = plan.real_row()?.expect("a storage that is not modelled has a real row");
    let (played, note) = real_storage.replay(&row)?;
    let seconds = played.seconds + recorded.time_after_last_read.seconds();
    let (readahead, scheduler, eviction) = match &row.policies {
        Some(policies) => (
            policies.readahead.clone(),
            Some(policies.scheduler.clone()),
            Some(policies.eviction.clone()),
        ),
        None => {
            let (readahead, scheduler) = kernel_policies(row.folder);
            (readahead, scheduler, None)
        }
    };
    let read_bytes: u64 = recorded.threads().iter().map(ReadList::bytes).sum();
    Ok(Predicted {
        storage: plan.storage.to_string(),
        readahead: Some(readahead),
        scheduler,
        eviction,
        memory_bytes: row.memory_bytes,
        seconds,
        // A replay of no duration counts as 1 ns.
        times_as_fast: recorded.total.seconds() / seconds.max(1e-9),
        reads: recorded.reads,
        device_requests: played.device_requests,
        device_bytes: played.device_bytes,
        amplification: played.device_bytes.map(|bytes| bytes as f64 / read_bytes.max(1) as f64),
        // Not measured on real storage.
        coverage: None,
        note,
    })
}

/// Simulates a row on a modelled device in virtual time. Returns the time of the program and the
/// device's figures. Without a memory size in the plan, the recording's default applies. A row with
/// failed reads is a [`Failure::Run`].
fn simulate_row(
    plan: &RowPlan<'_>,
    device: &Spec,
    recorded: &RecordedProgram,
    seed: u64,
    interrupt: &Interrupt,
) -> Result<Predicted, Failure> {
    let policies = [plan.readahead, plan.eviction, plan.scheduler].map(Clone::clone);
    let memory_bytes = plan.memory_bytes.unwrap_or_else(|| recorded.default_memory_bytes());
    let setup = simulation_setup(recorded, device, policies, memory_bytes, seed);
    let bar = RunProgress::new(format!("{} {}", setup.device, setup.readahead), interrupt.clone());
    // While the guard lives, the process ends 0.8 s after a signal at the latest.
    let _modelled = interrupt.begin_modelled_run();
    let mut on_progress = |progress| bar.update(progress);
    let (result, duration) = recorded
        .simulate(&setup, RunObserver::progress(&mut on_progress))
        .map_err(|error| Failure::usage_of(&setup.device, error))?;
    // A failed read has no time of a read: the row would be faster than the program can be.
    if let Some(error) = &result.first_error {
        return Err(Failure::Run(format!(
            "{}, readahead {}, eviction {}, {} bytes of memory: {} of {} reads failed; the first: \
             {error}",
            setup.device,
            setup.readahead,
            setup.eviction,
            setup.memory_bytes,
            result.errors,
            recorded.reads
        )));
    }
    Ok(predicted_row(recorded, &setup, memory_bytes, &result, duration.seconds()))
}

/// Returns the setup of a modelled row on `device`, with a cache of `memory_bytes`, or of fewer
/// bytes if all files need fewer.
fn simulation_setup(
    recorded: &RecordedProgram,
    device: &Spec,
    [readahead, eviction, scheduler]: [Spec; 3],
    memory_bytes: u64,
    seed: u64,
) -> SimulationSetup {
    let setup = SimulationSetup::new(device.clone());
    let setup = SimulationSetup { readahead, eviction, scheduler, seed, ..setup };
    // Also sets the readahead window of the recorded machine, if it is known.
    recorded.with_memory(setup, memory_bytes)
}

/// Row of the program as recorded: its time, its memory, and its reads, including reads of pages
/// that were in memory before. The recording has no figures of the device in this form, so these
/// are `None`.
fn recorded_row(recorded: &RecordedProgram) -> Predicted {
    Predicted {
        storage: "as recorded".to_owned(),
        readahead: None,
        scheduler: None,
        eviction: None,
        memory_bytes: (recorded.memory_bytes > 0).then_some(recorded.memory_bytes),
        seconds: recorded.total.seconds(),
        times_as_fast: 1.0,
        reads: recorded.reads + recorded.cached_before,
        device_requests: None,
        device_bytes: None,
        amplification: None,
        coverage: None,
        note: None,
    }
}

/// Row of a simulated prediction. `memory_bytes` is the requested memory, of which the setup has at
/// most as much as all files need. A run of no duration counts as 1 ns.
fn predicted_row(
    recorded: &RecordedProgram,
    setup: &SimulationSetup,
    memory_bytes: u64,
    result: &ResultRow,
    seconds: f64,
) -> Predicted {
    Predicted {
        storage: setup.device.to_string(),
        readahead: Some(setup.readahead.to_string()),
        scheduler: Some(setup.scheduler.to_string()),
        eviction: Some(setup.eviction.to_string()),
        memory_bytes: Some(memory_bytes),
        seconds,
        times_as_fast: recorded.total.seconds() / seconds.max(1e-9),
        reads: recorded.reads,
        device_requests: result.device_requests,
        device_bytes: result.device_bytes,
        amplification: result.amplification,
        coverage: result.coverage,
        note: result.note.clone(),
    }
}

/// Table with one row per storage, policies and memory size. The first four columns are names.
fn rows_table(rows: &[Predicted]) -> Table {
    let columns: [Column<Predicted>; 11] = [
        ("", |row| row.storage.clone()),
        ("readahead", |row| crate::table::text_or_dash(row.readahead.as_ref())),
        ("eviction", |row| crate::table::text_or_dash(row.eviction.as_ref())),
        ("scheduler", |row| crate::table::text_or_dash(row.scheduler.as_ref())),
        ("memory MiB", |row| count(row.memory_bytes.map(|bytes| bytes >> 20))),
        ("seconds", |row| number(Some(row.seconds), 2)),
        ("times as fast", |row| number(Some(row.times_as_fast), 2)),
        ("dev reqs", |row| count(row.device_requests)),
        ("dev MiB", |row| mib(row.device_bytes)),
        ("read amp", |row| number(row.amplification, 2)),
        ("coverage", |row| number(row.coverage, 2)),
    ];
    let numbers_from = 4;
    Table::of(rows, &columns, numbers_from)
}

/// Formats the sentence, the table and the caveats.
fn results_text(recorded: &RecordedProgram, rows: &[Predicted]) -> String {
    let notes: String = notes(recorded, rows).map(|note| format!("{note}\n")).collect();
    let start = summary_start(recorded);
    format!("{start} {}.\n\n{}{notes}", summary(recorded, rows), rows_table(rows))
}

/// Summarizes the rows in a sentence; of many rows, only the fastest. The first row is the program
/// as recorded.
fn summary(recorded: &RecordedProgram, rows: &[Predicted]) -> String {
    let (first, others) = rows.split_first().expect("the first row is the program as recorded");
    let row_text = |row: &Predicted| {
        format!("{} {:.2} s", describe_differences(recorded, row, others), row.seconds)
    };
    let best = others.iter().min_by(|left, right| left.seconds.total_cmp(&right.seconds));
    let parts: Vec<String> = match best {
        Some(best) if others.len() > SUMMARY_ROWS_MAX => {
            vec![format!("at best {}", row_text(best))]
        }
        _ => others.iter().map(row_text).collect(),
    };
    format!("as recorded {:.2} s; {}", first.seconds, parts.join("; "))
}

/// Describes a row by its storage, by the policies in which rows of this storage differ, and by its
/// memory if that is not the default. `others` has all predicted rows, this one too. The scheduler
/// is the same in all rows of a storage.
fn describe_differences(
    recorded: &RecordedProgram,
    row: &Predicted,
    others: &[Predicted],
) -> String {
    let differs_between_rows = |value_of: fn(&Predicted) -> &Option<String>| {
        let mut rows_of_storage = others.iter().filter(|other| other.storage == row.storage);
        rows_of_storage.any(|other| value_of(other) != value_of(row))
    };
    let mut parts = Vec::new();
    let policies: [fn(&Predicted) -> &Option<String>; 2] =
        [|row| &row.readahead, |row| &row.eviction];
    for value_of in policies {
        parts.extend(
            value_of(row)
                .as_ref()
                .filter(|_| differs_between_rows(value_of))
                .map(|policy| format!("`{policy}`")),
        );
    }
    if let Some(bytes) = row.memory_bytes.filter(|&bytes| bytes != recorded.default_memory_bytes())
    {
        parts.push(match recorded.memory_bytes {
            machine_bytes if machine_bytes > 0 && bytes > machine_bytes => {
                format!("{} MiB more memory", (bytes - machine_bytes) >> 20)
            }
            _ => format!("{} MiB of memory", bytes >> 20),
        });
    }
    match parts.is_empty() {
        true => format!("on {}", row.storage),
        false => format!("on {} with {}", row.storage, parts.join(" and ")),
    }
}

/// Caveats about the rows: reads that hit memory before the recording, lost events, left-out
/// advice, long waits for other things than reads, and the notes of single rows.
fn notes(recorded: &RecordedProgram, rows: &[Predicted]) -> impl Iterator<Item = String> {
    let RecordedProgram { cached_before: cached_reads, lost: lost_events, .. } = *recorded;
    let cached_note = (cached_reads > 0).then(|| {
        format!(
            "{cached_reads} reads hit pages that were in memory before; they hit again in every \
                row"
        )
    });
    let lost_note = (lost_events > 0)
        .then(|| format!("{lost_events} events were lost: the rows lack their reads"));
    let left_out = recorded.advice_left_out;
    let advice_note = (left_out > 0)
        .then(|| format!("{left_out} advices of the program to the kernel are not repeated"));
    let waits = recorded
        .other_waits
        .filter(|waits| waits.seconds() >= OTHER_WAITS_SHARE_MIN * recorded.total.seconds());
    let waits_note = waits.map(|waits| {
        format!(
            "between its reads, threads waited {:.2} s in all for other things than reads: locks, \
                pipes, timers, writes, other calls, or a processor; every row repeats these waits \
                as long as recorded",
            waits.seconds()
        )
    });
    let row_notes =
        rows.iter().filter_map(|row| Some(format!("{}: {}", row.storage, row.note.as_ref()?)));
    [cached_note, lost_note, advice_note, waits_note].into_iter().flatten().chain(row_notes)
}

/// HTML page of the rows: a bar chart of the program's time in each, the table, and the caveats.
fn replay_page(recorded: &RecordedProgram, rows: &[Predicted]) -> Page {
    let lead = "Replay of a recorded program's reads, on modelled devices in virtual time and on \
        real storage in real time. Each thread waits for its reads and keeps its recorded think \
        times.";
    let mut page = Page::new(summary_start(recorded).trim_end_matches(':'), lead);
    let bar = |row: &Predicted| {
        let policies = [&row.readahead, &row.eviction].into_iter().flatten().cloned();
        let memory = row.memory_bytes.map(|bytes| format!("{} MiB", bytes >> 20));
        let parts = std::iter::once(row.storage.clone()).chain(policies).chain(memory);
        // Only the row as recorded has no readahead policy.
        let colour = if row.readahead.is_none() { colours::ORANGE } else { colours::BLUE };
        ChartBar::new(&parts.collect::<Vec<_>>().join(" · "), row.seconds, colour)
    };
    let bars: Vec<ChartBar> = rows.iter().map(bar).collect();
    let caption =
        "Seconds of the program, less is better: orange as recorded, blue as it would be.";
    page.picture(caption, &bars::draw("Time of the program in each row", "s", &bars));
    page.table("A row for each device, policies and memory", &rows_table(rows));
    page.notes(notes(recorded, rows));
    page
}

/// Start of the summary sentence, with the name of the program. The name is empty if the recording
/// has none, or is merged from recordings of several programs.
fn summary_start(recorded: &RecordedProgram) -> String {
    match recorded.program.as_str() {
        "" => "The time of the programs:".to_owned(),
        program => format!("The time of {program}:"),
    }
}
