//! `readpath eval policies`: compares the policy `adaptive` with the best baseline of each cell. A
//! *cell* is one workload with a number of processes, on one device.

mod given;
mod page;
mod real;

use std::collections::HashMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use clap::Args;
use readpath_core::policy::Spec;
use readpath_eval::policy_matrix::work::work as storage_workloads;
use readpath_eval::policy_matrix::{
    CellSet, CellSize, FixedPairResult, JudgedCell, MatrixCell, MatrixResult, MatrixSummary,
    Policies, WorkloadSummary, cells, cells_drawn, cells_of_given,
};
use readpath_models::input_file;
use readpath_sim::job::printable;
use serde::{Deserialize, Serialize};

use crate::at_once;
use crate::decision_log::DecisionFile;
use crate::exit::{CommandResult, Failure};
use crate::html::check_output_folder;
use crate::input;
use crate::output::{print, print_document};
use crate::output_file::check_not_needed;
use crate::progress::Interrupt;
use crate::table::{Column, Table, number};

/// `readpath eval policies`.
#[derive(Debug, Args)]
#[command(
    after_help = "A cell is DEVICE/WORKLOAD/PROCESSES. Its baselines are the classic readahead policies\n\
    (for a load on memory, `swap-…`, the classic swap-in policies) under each classic scheduler. The\n\
    figure is the throughput of `adaptive` ÷ the throughput of the best baseline. Cells below 0.95\n\
    count as a regret.\n\n\
    Example:\n  \
    readpath eval policies --cells /hdd-1/,mmap\n  \
    readpath eval policies --jobs bench/jobs --cells /nvme/"
)]
pub struct EvalPoliciesArgs {
    /// Only the cells whose name contains each of these parts, as in `/hdd-1/,seq`
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    pub cells: Vec<String>,
    /// Instead of the matrix's workloads, the job files and recordings of this folder, or one of
    /// them, on all devices. PROCESSES is the number of a job's processes or of a program's threads
    #[arg(long, value_name = "FOLDER",
          conflicts_with_all = ["on", "developed", "held_out", "smoke", "earlier_baselines"])]
    pub jobs: Option<PathBuf>,
    /// Run the workloads on this storage instead of the device models, each contender twice in a
    /// row. PATH is a file, a block device, or a folder for scratch files of up to 3 GiB
    #[arg(long, value_name = "PATH", conflicts_with_all = ["seeds", "threads", "earlier_baselines"])]
    pub on: Option<PathBuf>,
    /// Only the tuning set, on which policies are developed: without a third of the devices,
    /// workloads and process counts, chosen by a hash of the name
    #[arg(long, conflicts_with_all = ["on", "held_out"])]
    pub developed: bool,
    /// Only the held-out set, by which policies are judged; it includes four devices whose
    /// parameters are drawn from the seed
    #[arg(long, conflicts_with = "on")]
    pub held_out: bool,
    /// Do a sixty-fourth of the work, to check that the cells run; the figures are not meaningful
    #[arg(long)]
    pub smoke: bool,
    /// Print every cell, not only the summary and the worst
    #[arg(long)]
    pub all: bool,
    /// Judge these two policies instead of `adaptive` in both roles; on real storage, instead of
    /// the library's defaults
    #[arg(long, value_name = "READAHEAD,SCHEDULER")]
    pub policies: Option<String>,
    /// Take the baselines' results from this document instead of running them again: the output of
    /// `--json` with the same seeds, for changes of the tested policy alone
    #[arg(long, value_name = "FILE")]
    pub earlier_baselines: Option<PathBuf>,
    /// Number of cells that run at a time [default: number of processors]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZero<usize>>,
    /// First seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of seeds over which each run is averaged
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Write every decision of the tested policies to this file, with the numbers behind it, one
    /// per line: of the chosen cells that read, with the first seed
    #[arg(long, value_name = "FILE", conflicts_with = "on")]
    pub log: Option<PathBuf>,
    /// Also write the result to this file, as one self-contained HTML page with sortable tables and
    /// pictures
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document instead of the table
    #[arg(long)]
    pub json: bool,
}

/// JSON document of the command.
#[derive(Serialize)]
struct MatrixDocument<'a> {
    /// Version of this command.
    readpath: &'static str,
    /// First seed.
    seed: u64,
    /// Number of seeds per run.
    seeds: u64,
    /// True if a sixty-fourth of the work was done.
    smoke: bool,
    /// Names of the tested policies.
    policies: &'a str,
    /// Summary of the cells in the tuning set; null if the run has none.
    developed: Option<MatrixSummary>,
    /// Summary of the cells in the held-out set; null if the run has none.
    held_out: Option<MatrixSummary>,
    /// Summary of all cells.
    summary: &'a MatrixSummary,
    /// One result for each cell.
    results: &'a [JudgedCell],
    /// Results of the first runs. On real storage each contender runs twice in a row, and `results`
    /// holds the second runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_runs: Option<FirstRuns>,
}

/// Results of the runs before memory and caches were warm.
#[derive(Serialize)]
struct FirstRuns {
    /// Summary of the first runs.
    summary: MatrixSummary,
    /// One result for each cell.
    results: Vec<JudgedCell>,
}

impl FirstRuns {
    /// Summarizes the results of the first runs.
    fn of(results: Vec<JudgedCell>) -> FirstRuns {
        FirstRuns { summary: MatrixSummary::of(&results), results }
    }
}

/// Runs the matrix or the cells chosen by `--cells`, on modelled devices or on the storage of
/// `--on`. Prints the results as text or JSON, and writes the page of `--html`. An interrupted run
/// prints none.
pub fn run(args: &EvalPoliciesArgs) -> CommandResult {
    // `part` is the divisor of each workload's work.
    let size =
        CellSize { seed: args.seed, seeds: args.seeds, part: if args.smoke { 64 } else { 1 } };
    check_output_folder(args.html.as_deref())?;
    let inputs = || args.earlier_baselines.iter().chain(&args.jobs).chain(&args.on);
    check_not_needed(args.log.as_deref(), inputs())?;
    check_not_needed(args.html.as_deref(), inputs().chain(&args.log))?;
    let named_policies = parse_policies(args.policies.as_deref())?;
    let policies = named_policies.clone().unwrap_or_default();
    let interrupt = Interrupt::listen();
    let (judged, first_runs) = match &args.on {
        Some(path) => {
            let name_form = "WORKLOAD/PROCESSES, as in seq-4k/16";
            let workloads = filter_cells(args, storage_workloads, name_form)?;
            let policies = named_policies.as_ref();
            let judged = real::judge_all(path, &workloads, policies, size, &interrupt)?;
            (judged.second, Some(judged.first))
        }
        None => (judge_modelled(args, &policies, size, &interrupt)?, None),
    };
    if interrupt.is_signalled() {
        return Err(Failure::Interrupted);
    }
    print_results(args, &policies, &judged, first_runs)
}

/// Returns the cells of the chosen set, filtered by the parts of their names.
fn cells_in_set(args: &EvalPoliciesArgs, parts: &[&str]) -> Vec<MatrixCell> {
    let set = match (args.developed, args.held_out) {
        (true, _) => CellSet::Tuning,
        (_, true) => CellSet::HeldOut,
        _ => CellSet::Whole,
    };
    // The named devices, and the devices with parameters drawn from the seed.
    let candidates = cells(parts).into_iter().chain(cells_drawn(args.seed, parts));
    candidates.filter(|cell| set.has_cell(cell)).collect()
}

/// Returns the cells whose names contain the parts in `--cells`; an empty result is an error.
/// `find_cells` returns the cells for a list of parts. `name_form` describes the form of a name.
fn filter_cells<T>(
    args: &EvalPoliciesArgs,
    find_cells: impl FnOnce(&[&str]) -> Vec<T>,
    name_form: &str,
) -> Result<Vec<T>, Failure> {
    let parts: Vec<&str> = args.cells.iter().map(String::as_str).collect();
    let chosen = find_cells(&parts);
    if chosen.is_empty() {
        let parts = args.cells.join(",");
        return Err(Failure::Usage(format!("no cell is called `{parts}`; a name is {name_form}")));
    }
    Ok(chosen)
}

/// Runs the cells on the modelled devices, in parallel, and compares each with its baselines.
/// Writes the decision log first, if one is requested. After an interrupt the results are
/// incomplete, which the caller has to detect.
fn judge_modelled(
    args: &EvalPoliciesArgs,
    policies: &Policies,
    size: CellSize,
    interrupt: &Interrupt,
) -> Result<Vec<JudgedCell>, Failure> {
    let given = args.jobs.as_deref().map(given::read_workloads).transpose()?;
    let find_cells = |parts: &[&str]| match &given {
        Some(workloads) => cells_of_given(workloads, args.seed, parts),
        None => cells_in_set(args, parts),
    };
    let cells = filter_cells(args, find_cells, "DEVICE/WORKLOAD/PROCESSES, as in hdd-1/seq-4k/16")?;
    let earlier_baselines = args
        .earlier_baselines
        .as_deref()
        .map(|path| EarlierBaselines::read(path, size))
        .transpose()?;
    if let Some(path) = &args.log {
        log_decisions(path, &cells, policies, size)?;
    }
    let judge = |cell: &MatrixCell| {
        let failure = |error| Failure::usage_of(printable(&cell.name()), error);
        let baselines = match &earlier_baselines {
            Some(earlier_baselines) => earlier_baselines.baselines(cell)?,
            None => cell.baselines(size).map_err(failure)?,
        };
        cell.judge(policies, baselines, size).map_err(failure)
    };
    // A simulated cell does not check for an interrupt. While this guard lives, the process ends
    // shortly after the signal even if a cell is not finished.
    let _modelled_run = interrupt.begin_modelled_run();
    at_once::process_all(&cells, &judge, args.threads, interrupt)
}

/// Simulates the cells once, with the first seed, and writes the decisions of the tested policies
/// to `path`. The judged runs keep no log. A failure if no policy keeps one.
fn log_decisions(
    path: &Path,
    cells: &[MatrixCell],
    policies: &Policies,
    size: CellSize,
) -> CommandResult {
    let log = DecisionFile::create(path)?;
    let mut keeps_log = false;
    for cell in cells {
        log.begin_row(&cell.name());
        keeps_log |= cell
            .explain(policies, size, &mut |decision| log.write_decision(decision))
            .map_err(Failure::usage)?;
    }
    if !keeps_log {
        return Err(Failure::Usage(
            "--log: the swap-in policies keep no log; choose a cell that reads".to_owned(),
        ));
    }
    log.finish()
}

/// Prints the results as text or JSON, and writes the page of `--html`. `judged` are the results of
/// all cells. `first_runs` are the results of the first of two runs on real storage; `None` for
/// modelled devices, which run once.
fn print_results(
    args: &EvalPoliciesArgs,
    policies: &Policies,
    judged: &[JudgedCell],
    first_runs: Option<Vec<JudgedCell>>,
) -> CommandResult {
    let summary = MatrixSummary::of(judged);
    let summary_of = |is_held_out: bool| {
        // Workloads on real storage and workloads of the user belong to neither set.
        let has_sets = args.on.is_none() && args.jobs.is_none();
        let is_in_set = |cell: &&JudgedCell| has_sets && cell.is_held_out() == is_held_out;
        let part: Vec<JudgedCell> = judged.iter().filter(is_in_set).cloned().collect();
        (!part.is_empty()).then(|| MatrixSummary::of(&part))
    };
    // One sentence for all cells, for the first runs on real storage, and for each set.
    let is_held_out = true;
    let (developed, held_out) = (summary_of(!is_held_out), summary_of(is_held_out));
    let sets = [("developed", &developed), ("held out", &held_out)];
    let set_summaries = sets.iter().filter_map(|(name, set)| Some((*name, set.as_ref()?)));
    let first_runs = first_runs.map(FirstRuns::of);
    let first_summary = first_runs.as_ref().map(|first| ("first runs", &first.summary));
    let summary_name = if first_runs.is_some() { "second runs" } else { "all" };
    let named_summaries =
        [(summary_name, &summary)].into_iter().chain(first_summary).chain(set_summaries);
    let sentences: Vec<String> =
        named_summaries.map(|(name, part)| summary_sentence(name, part)).collect();
    // On real storage without named policies, the library runs with its defaults.
    let policies = match (&args.on, &args.policies) {
        (Some(_), None) => "nothing set".to_owned(),
        _ => format!("{} {}", policies.readahead, policies.scheduler),
    };
    let printed = if args.json {
        let readpath = env!("CARGO_PKG_VERSION");
        let document = MatrixDocument {
            readpath,
            seed: args.seed,
            seeds: args.seeds,
            smoke: args.smoke,
            policies: &policies,
            developed,
            held_out,
            summary: &summary,
            results: judged,
            first_runs,
        };
        print_document(&document)
    } else {
        print(&format!("{}\n\n{}", sentences.join("\n"), results_text(judged, &summary, args.all)))
    };
    if let Some(path) = &args.html {
        page::matrix_page(judged, &summary, &sentences, &policies).write(path)?;
    }
    printed
}

/// Summary of a set of cells in one sentence, after the `name` of the set. The numbers are ratios
/// of the tested policies' throughput to the best baseline; more is better.
fn summary_sentence(name: &str, part: &MatrixSummary) -> String {
    let latency = match part.p99_cells {
        0 => String::new(),
        cells => format!(
            "; p99 of the best baseline below 0.80 of the tested one: {} of {cells}",
            part.p99_below_80_percent
        ),
    };
    format!(
        "{name}: {} cells: minimum {}, geometric mean {} ({} without gains that no classic \
            policy can reach), {} below 0.95, {} below 0.80{latency}",
        part.cells,
        number(part.minimum, 3),
        number(part.geometric_mean, 3),
        number(part.geometric_mean_common, 3),
        part.below_95_percent,
        part.below_80_percent,
    )
}

/// Parses the pair of policies in `--policies`; `None` without the option. The swap-in policy, for
/// loads on memory, stays `adaptive`.
fn parse_policies(pair: Option<&str>) -> Result<Option<Policies>, Failure> {
    let Some(pair) = pair else { return Ok(None) };
    let specs = input::parse_specs(pair)?;
    let Ok([readahead, scheduler]) = <[Spec; 2]>::try_from(specs) else {
        return Err(Failure::Usage(format!(
            "--policies {pair}: name a readahead policy and a scheduler, as in adaptive,cfq"
        )));
    };
    Ok(Some(Policies { readahead, scheduler, ..Policies::default() }))
}

/// Baselines of an earlier run, by the name of the cell.
struct EarlierBaselines {
    /// Option and path, for error messages.
    source: String,
    /// Results of all baselines of each cell.
    baselines: HashMap<String, Vec<MatrixResult>>,
}

/// Fields that are read from an earlier document.
#[derive(Deserialize)]
struct EarlierDocument {
    /// First seed of that run.
    seed: u64,
    /// Number of its seeds.
    seeds: u64,
    /// True if a sixty-fourth of the work was done.
    smoke: bool,
    /// Its cells, of which only the baselines are used.
    results: Vec<JudgedCell>,
}

impl EarlierBaselines {
    /// Reads the document, of at most 512 MiB. Refuses other seeds, and a document of `--smoke` for
    /// a run of all the work, or the reverse.
    fn read(path: &Path, size: CellSize) -> Result<EarlierBaselines, Failure> {
        let source = format!("--earlier-baselines {}", path.display());
        let text = input_file::text(path, input_file::LIST_BYTES_MAX)
            .map_err(|error| Failure::usage_of(&source, error))?;
        let earlier: EarlierDocument =
            serde_json::from_str(&text).map_err(|error| Failure::usage_of(&source, error))?;
        if (earlier.seed, earlier.seeds, earlier.smoke) != (size.seed, size.seeds, size.part > 1) {
            let EarlierDocument { seed, seeds, smoke, .. } = earlier;
            return Err(Failure::usage_of(
                &source,
                format!(
                    "was run with --seed {seed} --seeds {seeds}, smoke: {smoke}; give the same"
                ),
            ));
        }
        let baselines =
            earlier.results.into_iter().map(|cell| (cell.name(), cell.baselines)).collect();
        Ok(EarlierBaselines { source, baselines })
    }

    /// Returns the baselines of a cell. A missing cell, or one without baselines, is an error.
    fn baselines(&self, cell: &MatrixCell) -> Result<Vec<MatrixResult>, Failure> {
        let missing_cell =
            || Failure::usage_of(&self.source, format!("lacks the cell {}", cell.name()));
        self.baselines
            .get(&cell.name())
            .filter(|baselines| !baselines.is_empty())
            .cloned()
            .ok_or_else(missing_cell)
    }
}

/// Returns the output as text: the worst cells, the causes of their losses, fixed pairs, and
/// workloads. There are as many worst cells as in the summary. If `shows_all`, all cells are shown,
/// in the order of the matrix.
fn results_text(judged: &[JudgedCell], summary: &MatrixSummary, shows_all: bool) -> String {
    let mut shown: Vec<&JudgedCell> = judged.iter().collect();
    if !shows_all {
        // The lowest ratio is the worst: it is a ratio of throughputs.
        shown.sort_by(|left, right| left.ratio.total_cmp(&right.ratio));
        shown.truncate(summary.worst.len());
    }
    let cause =
        |cell: &&JudgedCell| Some(format!("{}: {}\n", cell.name(), cell.cause.as_ref()?.line));
    let causes: String = shown.iter().filter_map(cause).collect();
    let (cells, fixed) = (cells_table(&shown), policies_table(summary));
    let workloads = workloads_table(summary, shows_all);
    format!("{cells}\n{causes}\n{fixed}\n{workloads}")
}

/// Table with one row per cell: best baseline, tested policy, and its ratio. Baselines are sorted,
/// the best first, and never empty. Above 1 the tested policy is better, in both ratios: `ratio` is
/// its throughput ÷ the baseline's, `p99 ratio` the baseline's latency ÷ its own. `read amp` is
/// bytes read from the device ÷ bytes requested. `coverage` is the part of the requested bytes
/// that was cached in time.
fn cells_table(shown: &[&JudgedCell]) -> Table {
    let columns: [Column<&JudgedCell>; 10] = [
        ("cell", |cell| cell.name()),
        ("best baseline", |cell| cell.baselines[0].policies()),
        ("MiB/s", |cell| number(Some(cell.baselines[0].mib_per_s), 2)),
        ("adaptive", |cell| number(Some(cell.adaptive.mib_per_s), 2)),
        ("ratio", |cell| number(Some(cell.ratio), 3)),
        ("p99 ratio", |cell| number(cell.p99_ratio, 2)),
        ("read amp", |cell| number(cell.adaptive.amplification, 2)),
        ("coverage", |cell| number(cell.adaptive.coverage, 2)),
        ("KiB/req", |cell| number(cell.adaptive.device_request_kib_mean, 0)),
        ("depth", |cell| number(cell.adaptive.device_depth_mean, 1)),
    ];
    let numbers_from = 2;
    Table::of(shown, &columns, numbers_from)
}

/// Table with one row per pair of classic policies, as if it were used in every cell. The figures
/// are of the ratios of its throughput to each cell's best baseline.
fn policies_table(summary: &MatrixSummary) -> Table {
    let columns: [Column<FixedPairResult>; 4] = [
        ("default everywhere", |pair| pair.policies.clone()),
        ("minimum", |pair| number(Some(pair.minimum), 3)),
        ("geometric mean", |pair| number(Some(pair.geometric_mean), 3)),
        ("below 0.95", |pair| pair.below_95_percent.to_string()),
    ];
    let numbers_from = 1;
    Table::of(&summary.fixed, &columns, numbers_from)
}

/// Returns the table of the workloads, in the order of the summary (ascending means). The mean of a
/// workload is the geometric mean of the ratios of its cells to the best baseline. Without
/// `shows_all`, only workloads with a mean below 1 are in the table.
fn workloads_table(summary: &MatrixSummary, shows_all: bool) -> Table {
    let columns: [Column<WorkloadSummary>; 4] = [
        ("workload", |workload| workload.workload.clone()),
        ("geometric mean", |workload| number(Some(workload.geometric_mean), 3)),
        ("minimum", |workload| number(Some(workload.minimum), 3)),
        ("below 0.95", |workload| workload.below_95_percent.to_string()),
    ];
    let is_shown = |workload: &&WorkloadSummary| shows_all || workload.geometric_mean < 1.0;
    let workloads: Vec<_> = summary.workloads.iter().filter(is_shown).cloned().collect();
    let numbers_from = 1;
    Table::of(&workloads, &columns, numbers_from)
}
