//! `readpath devices validate`: a modelled disk against service times that were measured on the
//! real one.

use readpath_core::policy::Spec;
use readpath_models::hdd::drive_of;
use readpath_models::validate::{self, AblationRow, ModelAccuracy, ValidationReport};
use serde::Serialize;

use crate::args::ValidateArgs;
use crate::devices::print_unmodelled;
use crate::exit::{CommandResult, Failure};
use crate::output::{print, print_json};
use crate::table::{Column, Table, number};

/// Replays the trace and prints the accuracy of the model; with `--ablate` also of simpler models.
pub fn run(args: &ValidateArgs) -> CommandResult {
    let spec = Spec::parse(&args.disk).map_err(Failure::usage)?;
    if spec.name != "hdd" {
        return Err(Failure::Usage(format!("{spec}: only hard disks (`hdd,…`) can be validated")));
    }
    let drive = drive_of(&spec).map_err(Failure::usage)?;
    print_unmodelled(&spec);
    let report = validate::validate(&args.trace, &drive, args.seed).map_err(Failure::usage)?;
    let ablations = match args.ablate {
        true => validate::ablate_trace(&args.trace, &drive, args.seed).map_err(Failure::usage)?,
        false => Vec::new(),
    };
    let rows = replay_rows(&report, &ablations);
    if args.json { print_json(&rows, args.seed) } else { print(&report_text(&rows)) }
}

/// Row of the table. Times in ms.
#[derive(Serialize)]
struct ValidationRow {
    /// Name of the replay: complete model, observed phase, or an ablation.
    replay: String,
    /// Number of requests of the trace.
    requests: usize,
    /// Mean service time measured on the real disk.
    measured_mean_ms: f64,
    /// Mean service time of the model, for the same requests.
    modelled_mean_ms: f64,
    /// Root mean square horizontal distance between the distributions.
    rms_distance_ms: f64,
    /// Distance ÷ the measured mean service time.
    rms_distance_relative: f64,
    /// Mean of the model's error, request by request.
    error_mean_ms: f64,
    /// Standard deviation of the model's error, request by request.
    error_deviation_ms: f64,
    /// Share of requests whose modelled time is within 0.5 ms of the measured one.
    met_within_half_ms: f64,
    /// Throughput of the model at queue depth 16. Null where it is not simulated.
    requests_per_s_at_depth_16: Option<f64>,
}

/// Rows of the table: the full model, the observed phase, and the ablations.
fn replay_rows(report: &ValidationReport, ablations: &[AblationRow]) -> Vec<ValidationRow> {
    // The throughput at a queue depth is simulated for the ablations alone.
    let not_simulated = None;
    let mut rows = vec![
        replay_row("as described", &report.free, not_simulated),
        replay_row("phase observed", &report.observed, not_simulated),
    ];
    // Each ablation has the features of the previous one and one more.
    rows.extend(ablations.iter().enumerate().map(|(index, ablation)| {
        let sign = if index == 0 { "" } else { "+ " };
        let name = format!("{sign}{}", ablation.feature);
        replay_row(&name, &ablation.validation, Some(ablation.requests_per_s_at_16))
    }));
    rows
}

/// Row of one variant of the model. `replay` names the variant. `requests_per_s_at_16` is its
/// throughput at queue depth 16; `None` if it was not simulated.
fn replay_row(
    replay: &str,
    validation: &ModelAccuracy,
    requests_per_s_at_16: Option<f64>,
) -> ValidationRow {
    ValidationRow {
        replay: replay.to_owned(),
        requests: validation.requests,
        measured_mean_ms: validation.measured_mean_ms,
        modelled_mean_ms: validation.modelled_mean_ms,
        rms_distance_ms: validation.distance_ms,
        rms_distance_relative: validation.distance_relative,
        error_mean_ms: validation.error_mean_ms,
        error_deviation_ms: validation.error_deviation_ms,
        met_within_half_ms: validation.within_half_ms,
        requests_per_s_at_depth_16: requests_per_s_at_16,
    }
}

/// Formats the table with an explanation of its columns.
fn report_text(rows: &[ValidationRow]) -> String {
    let columns: [Column<ValidationRow>; 10] = [
        ("", |row| row.replay.clone()),
        ("requests", |row| row.requests.to_string()),
        ("measured mean", |row| number(Some(row.measured_mean_ms), 3)),
        ("modelled mean", |row| number(Some(row.modelled_mean_ms), 3)),
        ("rms distance", |row| number(Some(row.rms_distance_ms), 3)),
        ("relative", |row| number(Some(row.rms_distance_relative), 4)),
        ("error mean", |row| number(Some(row.error_mean_ms), 3)),
        ("error deviation", |row| number(Some(row.error_deviation_ms), 3)),
        ("within 0.5 ms", |row| number(Some(row.met_within_half_ms), 2)),
        ("req/s at 16", |row| number(row.requests_per_s_at_depth_16, 0)),
    ];
    let numbers_from = 1;
    let table = Table::of(rows, &columns, numbers_from);
    format!(
        "{table}\nTimes in ms. rms distance: root mean square horizontal distance between the two \
         distributions\nof service times. as described: the description alone, the phase \
         unknown at the start; phase\nobserved: the platter's phase corrected after each request from \
         its measured completion.\n"
    )
}
