//! Rows as a table or as the JSON document.

use std::io::Write;

use readpath_sim::load::LoadRow;
use readpath_sim::report::Row;
use serde::Serialize;

use crate::exit::{Ended, Failure};
use crate::table::{Table, duration, number};

/// The JSON document.
#[derive(Serialize)]
struct Document<'a, T> {
    readpath: &'static str,
    /// None where nothing is drawn.
    seed: Option<u64>,
    results: &'a [T],
}

/// The columns of numbers.
const FIGURES: [&str; 14] = [
    "MiB/s",
    "IOPS",
    "p50",
    "p99",
    "max",
    "dev reqs",
    "KiB/req",
    "depth",
    "ampl",
    "cover",
    "waste MiB",
    "cpu s",
    "errors",
    "jain",
];

/// Prints rows: a table for people, or the JSON document.
pub fn print_rows(rows: &[Row], seed: u64, is_json: bool) -> Ended {
    if is_json {
        return print_json(rows, seed);
    }
    // A column that most tables would have no use for.
    let has_raw = rows.iter().any(|row| row.raw.is_some());
    let laws = ["storage", "readahead", "scheduler"].into_iter();
    let laws: Vec<&str> = laws.chain(has_raw.then_some("raw")).chain(["engine"]).collect();
    let header = laws.iter().chain(&FIGURES).map(|name| (*name).to_owned()).collect();
    let mut table = Table::with_header(header, laws.len());
    for row in rows {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let mut cells = vec![row.storage.clone(), text(&row.readahead), text(&row.scheduler)];
        cells.extend(has_raw.then(|| text(&row.raw)));
        cells.push(text(&row.engine));
        cells.extend([
            number(row.mib_per_s, 1),
            number(row.iops, 0),
            duration(row.latency_us.p50),
            duration(row.latency_us.p99),
            duration(row.latency_us.max),
            row.device_requests.map_or_else(|| "-".to_owned(), |requests| requests.to_string()),
            number(row.device_request_kib_mean, 1),
            number(row.device_depth_mean, 1),
            number(row.amplification, 2),
            number(row.coverage, 2),
            number(row.waste_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)), 1),
            number(row.cpu_seconds, 2),
            row.errors.to_string(),
            number(row.jain_index, 3),
        ]);
        table.row(cells);
        if row.sections.len() > 1 {
            sections(row, laws.len(), &mut table);
        }
    }
    print(&table.to_string())?;
    for row in rows {
        if let Some(note) = &row.note {
            print(&format!("{}: {note}\n", row.storage))?;
        }
    }
    Ok(())
}

fn sections(row: &Row, laws: usize, table: &mut Table) {
    for section in &row.sections {
        let mut cells = vec![String::new(); laws + FIGURES.len()];
        cells[0] = format!("  {} ×{}", section.name, section.processes);
        cells[laws] = number(section.mib_per_s, 1);
        cells[laws + 1] = number(section.iops, 0);
        cells[laws + 2] = duration(section.latency_us.p50);
        cells[laws + 3] = duration(section.latency_us.p99);
        cells[laws + 4] = duration(section.latency_us.max);
        table.row(cells);
    }
}

/// Prints the rows of loads: a table for people, or the JSON document.
pub fn print_load_rows(rows: &[LoadRow], seed: u64, is_json: bool) -> Ended {
    if is_json {
        return print_json(rows, seed);
    }
    let header = [
        "load",
        "storage",
        "swap-in",
        "scheduler",
        "engine",
        "seconds",
        "touches/s",
        "p50",
        "p99",
        "max",
        "major faults",
        "minor faults",
        "pages in",
        "pages out",
        "dev reqs",
        "KiB/req",
        "cover",
        "waste MiB",
        "cpu s",
    ];
    let mut table = Table::new(header, 5);
    for row in rows {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let count = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |n| n.to_string());
        table.row(vec![
            row.job.clone(),
            row.storage.clone(),
            text(&row.swapin),
            text(&row.scheduler),
            text(&row.engine),
            number(row.seconds, 2),
            number(row.iops, 0),
            duration(row.latency_us.p50),
            duration(row.latency_us.p99),
            duration(row.latency_us.max),
            count(row.major_faults),
            count(row.minor_faults),
            count(row.pages_in),
            count(row.pages_out),
            count(row.device_requests),
            number(row.device_request_kib_mean, 1),
            number(row.coverage, 3),
            number(row.waste_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)), 1),
            number(row.cpu_seconds, 2),
        ]);
    }
    print(&table.to_string())?;
    for row in rows {
        if let Some(note) = &row.note {
            print(&format!("{} on {}: {note}\n", row.job, row.storage))?;
        }
    }
    Ok(())
}

/// Prints the JSON document of these results.
pub fn print_json<T: Serialize>(results: &[T], seed: impl Into<Option<u64>>) -> Ended {
    let document = Document { readpath: env!("CARGO_PKG_VERSION"), seed: seed.into(), results };
    let text = serde_json::to_string_pretty(&document).expect("rows are plain data");
    print(&format!("{text}\n"))
}

/// Writes to standard output; a reader that has gone away is no error.
pub fn print(text: &str) -> Ended {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::Run(format!("standard output: {error}; write it elsewhere"))),
        Ok(()) => Ok(()),
    }
}
