//! Rows as a table or as a JSON document.

mod document;
mod fio;
mod run_summary;
pub mod verdict;

use std::io::Write;

use readpath_sim::load::LoadRow;
use readpath_sim::report::ResultRow;
use serde::Serialize;

pub use document::print_document;
use run_summary::RunSummary;

use crate::exit::{CommandResult, Failure};
use crate::table::{self, Column, Table, columns_max, count, duration, mib, number, text_or_dash};

/// JSON document of a run.
#[derive(Serialize)]
struct RunDocument<'a, T> {
    /// Version of this command.
    readpath: &'static str,
    /// `None` if the run draws no random numbers.
    seed: Option<u64>,
    /// One result for each row or cell.
    results: &'a [T],
}

/// Columns of a job's row that name the storage and the policies. A table with raw jobs has one
/// more.
const ROW_COLUMNS: [Column<ResultRow>; 4] = [
    ("storage", |row| row.storage.clone()),
    ("readahead", |row| text_or_dash(row.readahead.as_ref())),
    ("scheduler", |row| text_or_dash(row.scheduler.as_ref())),
    ("engine", |row| text_or_dash(row.engine.as_ref())),
];

/// Numeric columns of a job's row.
const FIGURE_COLUMNS: [Column<ResultRow>; 14] = [
    ("MiB/s", |row| number(row.mib_per_s, 1)),
    ("IOPS", |row| number(row.iops, 0)),
    ("p50", |row| duration(row.latency_us.p50)),
    ("p99", |row| duration(row.latency_us.p99)),
    ("max", |row| duration(row.latency_us.max)),
    ("dev reqs", |row| count(row.device_requests)),
    ("KiB/req", |row| number(row.device_request_kib_mean, 1)),
    ("depth", |row| number(row.device_depth_mean, 1)),
    ("read amp", |row| number(row.amplification, 2)),
    ("coverage", |row| number(row.coverage, 2)),
    ("waste MiB", |row| mib(row.waste_bytes)),
    ("cpu s", |row| number(row.cpu_seconds, 2)),
    ("errors", |row| row.errors.to_string()),
    ("jain", |row| number(row.jain_index, 3)),
];

/// Columns of a load's row. The columns from `seconds` on are numeric.
const LOAD_COLUMNS: [Column<LoadRow>; 19] = [
    ("load", |row| row.job.clone()),
    ("storage", |row| row.storage.clone()),
    ("swap-in", |row| text_or_dash(row.swapin.as_ref())),
    ("scheduler", |row| text_or_dash(row.scheduler.as_ref())),
    ("engine", |row| text_or_dash(row.engine.as_ref())),
    ("seconds", |row| number(row.seconds, 2)),
    ("touches/s", |row| number(row.iops, 0)),
    ("p50", |row| duration(row.latency_us.p50)),
    ("p99", |row| duration(row.latency_us.p99)),
    ("max", |row| duration(row.latency_us.max)),
    ("major faults", |row| count(row.major_faults)),
    ("minor faults", |row| count(row.minor_faults)),
    ("pages in", |row| count(row.pages_in)),
    ("pages out", |row| count(row.pages_out)),
    ("dev reqs", |row| count(row.device_requests)),
    ("KiB/req", |row| number(row.device_request_kib_mean, 1)),
    ("coverage", |row| number(row.coverage, 3)),
    ("waste MiB", |row| mib(row.waste_bytes)),
    ("cpu s", |row| number(row.cpu_seconds, 2)),
];

/// Output format of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// A table for people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// fio's own JSON document.
    Fio,
}

/// Prints the rows of a job in the format of `--output-format`: the verdict, the table and the
/// caveats, or a JSON document with the `seed`, or fio's document.
pub fn print_rows(rows: &[ResultRow], seed: u64, format: OutputFormat) -> CommandResult {
    match format {
        OutputFormat::Table => {}
        OutputFormat::Json => return print_json(rows, seed),
        OutputFormat::Fio => return fio::print_rows(rows),
    }
    print(&format!("{}\n{}", verdict::job_verdict(rows), job_table(rows)))?;
    for ResultRow { storage, note, .. } in rows {
        if let Some(note) = note {
            print(&format!("{storage}: {note}\n"))?;
        }
    }
    Ok(())
}

/// Table of a job's rows. Several job sections follow their row as parts.
pub fn job_table(rows: &[ResultRow]) -> Table {
    let mut columns = ROW_COLUMNS.to_vec();
    if rows.iter().any(|row| row.raw.is_some()) {
        // Before the engine, the last label column.
        columns.insert(3, ("raw", |row| text_or_dash(row.raw.as_ref())));
    }
    let label_columns = columns.len();
    columns.extend(FIGURE_COLUMNS);
    let is_repeated = rows.iter().any(|row| row.runs_mib_per_s.is_some());
    if is_repeated {
        // The range of the runs stands behind the throughput, the first figure.
        let range: Column<ResultRow> = ("range", |row| format_range(row.runs_mib_per_s.as_deref()));
        columns.insert(label_columns + 1, range);
    }
    let mut table = Table::of(&[], &columns, label_columns);
    for row in rows {
        table.add_row(columns.iter().map(|(_, cell)| cell(row)).collect());
        if row.sections.len() > 1 {
            add_section_rows(row, label_columns, is_repeated, &mut table);
        }
    }
    table
}

/// Formats the smallest and the largest throughput of several runs, in MiB/s; `-` without repeated
/// runs.
fn format_range(runs: Option<&[f64]>) -> String {
    match runs.and_then(RunSummary::of) {
        Some(RunSummary { least, most, .. }) => format!("{least:.1}–{most:.1}"),
        None => "-".to_owned(),
    }
}

/// Table of the rows of loads.
pub fn load_table(rows: &[LoadRow]) -> Table {
    // The column `seconds`.
    let numbers_from = 5;
    Table::of(rows, &LOAD_COLUMNS, numbers_from)
}

/// Adds an indented row below the job's row for each section, with its throughput and latency.
/// `label_columns` is the number of columns before the figures. `is_repeated` adds the range of
/// several runs. The other figures are known only of the whole row, and stay empty.
fn add_section_rows(row: &ResultRow, label_columns: usize, is_repeated: bool, table: &mut Table) {
    for section in &row.sections {
        // The cells follow the order of the labels and of `FIGURE_COLUMNS`.
        let mut cells = vec![String::new(); label_columns];
        cells[0] = format!("  {} ×{}", section.name, section.processes);
        cells.push(number(section.mib_per_s, 1));
        if is_repeated {
            cells.push(format_range(section.runs_mib_per_s.as_deref()));
        }
        cells.push(number(section.iops, 0));
        let latency = &section.latency_us;
        cells.extend([latency.p50, latency.p99, latency.max].map(duration));
        let columns = label_columns + FIGURE_COLUMNS.len() + usize::from(is_repeated);
        cells.resize(columns, String::new());
        table.add_row(cells);
    }
}

/// Prints the rows of loads: the verdicts, the table and the caveats, or with `is_json` a JSON
/// document with the `seed`.
pub fn print_load_rows(rows: &[LoadRow], seed: u64, is_json: bool) -> CommandResult {
    if is_json {
        return print_json(rows, seed);
    }
    print(&format!("{}\n{}", verdict::load_verdicts(rows), load_table(rows)))?;
    for LoadRow { job, storage, note, .. } in rows {
        if let Some(note) = note {
            print(&format!("{job} on {storage}: {note}\n"))?;
        }
    }
    Ok(())
}

/// Prints the JSON document of the results. `seed` is `None` for results without random numbers.
pub fn print_json<T: Serialize>(results: &[T], seed: impl Into<Option<u64>>) -> CommandResult {
    let document = RunDocument { readpath: env!("CARGO_PKG_VERSION"), seed: seed.into(), results };
    print_document(&document)
}

/// Writes text for people to standard output. In a terminal, lines that are too long are broken
/// between words.
pub fn print(text: &str) -> CommandResult {
    match columns_max() {
        Some(columns_max) => print_plain(&table::wrap_lines(text, columns_max)),
        None => print_plain(text),
    }
}

/// Writes text for programs to standard output. A closed pipe (`| head`) is no error: the command
/// may still write files.
pub fn print_plain(text: &str) -> CommandResult {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(write_failure) {
        Err(Failure::OutputClosed) => Ok(()),
        written => written,
    }
}

/// Failure of a write to standard output.
pub fn write_failure(error: std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Run(format!("standard output: {error}; write it elsewhere")),
    }
}
