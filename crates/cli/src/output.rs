//! Rows as a table or as the JSON document.

use std::io::Write;

use readpath_sim::report::Row;
use serde::Serialize;

use crate::exit::{Ended, Failure};
use crate::table::{Table, duration, number};

/// The JSON document.
#[derive(Serialize)]
struct Document<'a, T> {
    readpath: &'static str,
    seed: u64,
    results: &'a [T],
}

/// Prints rows: a table for people, or the JSON document.
pub fn print_rows(rows: &[Row], seed: u64, is_json: bool) -> Ended {
    if is_json {
        return print_json(rows, seed);
    }
    let mut table = Table::new(
        [
            "storage",
            "readahead",
            "scheduler",
            "engine",
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
        ],
        4,
    );
    for row in rows {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        table.row(vec![
            row.storage.clone(),
            text(&row.readahead),
            text(&row.scheduler),
            text(&row.engine),
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
        if row.sections.len() > 1 {
            sections(row, &mut table);
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

fn sections(row: &Row, table: &mut Table) {
    for section in &row.sections {
        let mut cells = vec![String::new(); 18];
        cells[0] = format!("  {} ×{}", section.name, section.processes);
        cells[4] = number(section.mib_per_s, 1);
        cells[5] = number(section.iops, 0);
        cells[6] = duration(section.latency_us.p50);
        cells[7] = duration(section.latency_us.p99);
        cells[8] = duration(section.latency_us.max);
        table.row(cells);
    }
}

/// Prints the JSON document of these results.
pub fn print_json<T: Serialize>(results: &[T], seed: u64) -> Ended {
    let document = Document { readpath: env!("CARGO_PKG_VERSION"), seed, results };
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
