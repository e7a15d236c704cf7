//! Rows as fio's own JSON (`--output-format=fio`), readable by tools for fio's results.
//!
//! Each job section of a row is an element of `jobs`. Unmeasured fields (context switches,
//! submission latencies) are zero, as in fio. The `job options` of each section name the row's
//! storage and policies.

use std::time::{SystemTime, UNIX_EPOCH};

use readpath_sim::report::{DirectionResults, PERCENTILES, ResultRow, SectionRow, Statistics};
use readpath_sim::workload::SearchedDepth;
use serde_json::{Map, Value, json};

use super::print_plain;
use crate::exit::CommandResult;

/// Prints the rows as one JSON document in fio's format. Each job section of a row is a job. The
/// global options are empty, because each job states all of its own.
pub fn print_rows(rows: &[ResultRow]) -> CommandResult {
    // A clock before 1970 counts as 0.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let jobs: Vec<Value> = rows
        .iter()
        .enumerate()
        .flat_map(|(row_index, row)| {
            row.sections.iter().map(move |section| job_element(row_index, row, section))
        })
        .collect();
    let document = json!({
        "fio version": concat!("readpath-", env!("CARGO_PKG_VERSION")),
        "timestamp": since_epoch.as_secs(),
        "timestamp_ms": since_epoch.as_millis() as u64,
        "global options": {},
        "jobs": jobs,
        "disk_util": [],
    });
    let text = serde_json::to_string_pretty(&document).expect("rows are plain data");
    print_plain(&format!("{text}\n"))
}

/// Element of `jobs` for one job section of a row.
fn job_element(row_index: usize, row: &ResultRow, section: &SectionRow) -> Value {
    let [reads, writes] = &section.directions;
    let errors = reads.errors + writes.errors;
    let runtime_ms = (section.seconds * 1e3).round() as u64;
    // Keys of fio that are not measured are 0 or empty, so that tools find every key.
    let no_operations = 0;
    let mut job = json!({
        "jobname": section.name,
        "groupid": row_index,
        "error": if errors > 0 { EIO } else { 0 },
        "eta": 0,
        "elapsed": section.seconds.ceil() as u64,
        "job options": job_options(row, section),
        "read": direction_object(reads),
        "write": direction_object(writes),
        "trim": direction_object(&DirectionResults::default()),
        "sync": {
            "total_ios": section.fsyncs, "lat_ns": latency_object(&Statistics::default(), no_operations),
        },
        "job_runtime": runtime_ms,
        "usr_cpu": 0.0,
        "sys_cpu": 0.0,
        "ctx": 0,
        "majf": 0,
        "minf": 0,
    });
    for name in ["iodepth_level", "iodepth_submit", "iodepth_complete"] {
        job[name] = json!({});
    }
    // Latencies below a microsecond, below a millisecond, and above.
    let bins = Bins::of([reads, writes]);
    let one_ns = 1;
    job["latency_ns"] = bins.percentages(&BIN_BOUNDS_NS, one_ns, US_NS);
    job["latency_us"] = bins.percentages(&BIN_BOUNDS_US_MS, US_NS, MS_NS);
    let bounds_ms = [&BIN_BOUNDS_US_MS[..], &[2000]].concat();
    job["latency_ms"] = bins.percentages(&bounds_ms, MS_NS, u64::MAX);
    // The values that fio reports without a latency target, and with one.
    let (mut target_ns, mut window_us, mut percentile) = (0, 0, 100.0);
    if let Some(target) = &section.latency_target {
        (target_ns, window_us) = (target.target.ns(), target.window.ns() / US_NS);
        percentile = target.percentile;
    }
    // As in fio, the present depth, also if the search has found none.
    job["latency_depth"] = json!(section.searched_depth.map_or(0, SearchedDepth::present));
    job["latency_target"] = json!(target_ns);
    job["latency_percentile"] = json!(percentile);
    job["latency_window"] = json!(window_us);
    job
}

/// Options that a tool shows for a section: its name, and the storage and policies of its row.
/// Unknown ones are left out.
fn job_options(row: &ResultRow, section: &SectionRow) -> Map<String, Value> {
    let mut options = Map::new();
    let mut option = |name: &str, value: Option<&String>| {
        if let Some(value) = value {
            options.insert(name.to_owned(), json!(value));
        }
    };
    option("name", Some(&section.name));
    option("filename", Some(&row.storage));
    option("readahead", row.readahead.as_ref());
    option("scheduler", row.scheduler.as_ref());
    option("note", row.note.as_ref());
    options.insert("numjobs".to_owned(), json!(section.processes.to_string()));
    options
}

/// Error number that fio reports for a failed job. All errors here are storage errors.
const EIO: u32 = 5;

/// Object `read` or `write` of a section: bytes, rates a second, and latencies in nanoseconds.
fn direction_object(figures: &DirectionResults) -> Value {
    let span_ms = figures.span.ns() as f64 / 1e6;
    let per_s = |amount: f64| if span_ms > 0.0 { amount * 1e3 / span_ms } else { 0.0 };
    let bytes_per_s = per_s(figures.bytes as f64);
    let mut completion = latency_object(&figures.latency_ns, figures.operations);
    if figures.operations > 0 {
        let percentiles = PERCENTILES.iter().zip(&figures.latency_ns.percentiles);
        let named = percentiles.map(|(percent, ns)| (format!("{percent:.6}"), json!(ns)));
        completion["percentile"] = Value::Object(named.collect());
    }
    // Submission latencies are not measured: fio's object for none.
    let no_operations = 0;
    json!({
        "io_bytes": figures.bytes,
        "io_kbytes": figures.bytes >> 10,
        "bw_bytes": bytes_per_s as u64,
        "bw": (bytes_per_s / 1024.0) as u64,
        "iops": per_s(figures.operations as f64),
        "runtime": span_ms.round() as u64,
        "total_ios": figures.operations,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": latency_object(&Statistics::default(), no_operations),
        "clat_ns": completion,
        "lat_ns": latency_object(&figures.latency_ns, figures.operations),
        "bw_min": 0, "bw_max": 0, "bw_agg": 0.0, "bw_mean": bytes_per_s / 1024.0, "bw_dev": 0.0,
        "bw_samples": 0,
        "iops_min": 0, "iops_max": 0, "iops_mean": per_s(figures.operations as f64),
        "iops_stddev": 0.0, "iops_samples": 0,
    })
}

/// Latency object with minimum, maximum, mean and standard deviation of `count` operations, in
/// nanoseconds.
fn latency_object(statistics: &Statistics, count: u64) -> Value {
    let Statistics { min, max, mean, deviation, .. } = statistics;
    json!({ "min": min, "max": max, "mean": mean, "stddev": deviation, "N": count })
}

/// Nanoseconds in a microsecond.
const US_NS: u64 = 1_000;
/// Nanoseconds in a millisecond.
const MS_NS: u64 = 1_000_000;

/// Upper bounds of fio's latency bins below a microsecond, in nanoseconds.
const BIN_BOUNDS_NS: [u64; 9] = [2, 4, 10, 20, 50, 100, 250, 500, 1000];

/// Upper bounds of fio's bins below a millisecond in microseconds, and below two seconds in
/// milliseconds.
const BIN_BOUNDS_US_MS: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// Latencies in nanoseconds with their counts, in ascending order, and the total count.
struct Bins {
    /// Latency in nanoseconds, the upper bound of a histogram bucket, and number of operations.
    recorded: Vec<(u64, u64)>,
    /// Number of all operations.
    operation_count: u64,
}

impl Bins {
    /// Joins the latency counts of both directions, sorted by latency.
    fn of(directions: [&DirectionResults; 2]) -> Bins {
        let mut recorded: Vec<(u64, u64)> =
            directions.iter().flat_map(|direction| direction.recorded.iter().copied()).collect();
        recorded.sort_unstable();
        let operation_count = recorded.iter().map(|(_, count)| count).sum();
        Bins { recorded, operation_count }
    }

    /// Percentage of operations in each bin. A bin ends before one of `bounds`, in units of
    /// `unit_ns` nanoseconds, and starts at the previous one. Bins end at `end_ns`, exclusive; with
    /// `u64::MAX`, a last bin holds all longer latencies.
    fn percentages(&self, bounds: &[u64], unit_ns: u64, end_ns: u64) -> Value {
        // The bins of larger units begin where the bins of the smaller unit end.
        let mut low = if unit_ns == 1 { 0 } else { unit_ns };
        let mut shares = Map::new();
        let mut add = |name: String, low: u64, high: u64| {
            let inside = self.recorded.iter().filter(|(ns, _)| (low..high).contains(ns));
            let count: u64 = inside.map(|(_, count)| count).sum();
            let percent = match self.operation_count {
                0 => 0.0,
                all => 100.0 * count as f64 / all as f64,
            };
            shares.insert(name, json!(percent));
        };
        for bound in bounds {
            let high = (bound * unit_ns).min(end_ns);
            add(bound.to_string(), low, high);
            low = low.max(high);
        }
        if end_ns == u64::MAX {
            add(">=2000".to_owned(), low, end_ns);
        }
        Value::Object(shares)
    }
}
