//! Logs and figures.

use readpath_core::unit::Time;

use super::{FioOption, honoured, without_effect};
use crate::job::draft::Draft;
use crate::job::value::{Expected, Value};

const FIGURES: &str = "the figures that are printed are always the same";
const MEASURED: &str = "all latencies are measured";
const PLAIN: &str = "logs are written in plain text";

/// Puts the name of a log in: the job's own where none is given.
fn log(
    draft: &mut Draft,
    value: Value<'_>,
    which: impl FnOnce(&mut crate::job::Logs) -> &mut Option<String>,
) -> Result<(), Expected> {
    *which(&mut draft.job.logs) = Some(value.text.to_owned());
    Ok(())
}

pub const TABLE: &[FioOption] = &[
    honoured("write_bw_log", &[], "log of bytes a second, NAME_bw.N.log", |draft, value| {
        log(draft, value, |logs| &mut logs.rate)
    }),
    honoured(
        "write_lat_log",
        &[],
        "logs of latencies, NAME_lat.N.log, NAME_clat.N.log, NAME_slat.N.log",
        |draft, value| log(draft, value, |logs| &mut logs.latency),
    ),
    honoured(
        "write_iops_log",
        &[],
        "log of operations a second, NAME_iops.N.log",
        |draft, value| log(draft, value, |logs| &mut logs.operations),
    ),
    honoured("write_iolog", &[], "trace of the operations, of version 2", |draft, value| {
        value.words()?;
        log(draft, value, |logs| &mut logs.trace)
    }),
    without_effect("write_hist_log", &[], "latencies of each operation are in write_lat_log"),
    honoured(
        "log_avg_msec",
        &["log_window"],
        "over how many milliseconds a log's values are averaged (0: not)",
        |draft, value| value.span(Time::from_ms(1)).map(|time| draft.job.logs.average = time),
    ),
    honoured(
        "log_max_value",
        &["log_window_value"],
        "1: the largest value in place of the mean (0)",
        |draft, value| {
            draft.job.logs.is_largest = match value.text {
                "max" => true,
                "avg" => false,
                _ => value.switch()?,
            };
            Ok(())
        },
    ),
    honoured("log_offset", &[], "1: each line has the operation's offset (0)", |draft, value| {
        value.switch().map(|on| draft.job.logs.has_offset = on)
    }),
    honoured("per_job_logs", &[], "0: all processes of a job share a log (1)", |draft, value| {
        value.flag().map(|on| draft.job.logs.is_per_process = on)
    }),
    without_effect("log_prio", &[], "each line has the priority of its process"),
    without_effect("log_issue_time", &[], "each line has the time of completion"),
    without_effect("log_entries", &[], "logs grow as they are written"),
    without_effect("log_hist_msec", &[], "latencies of each operation are in write_lat_log"),
    without_effect("log_hist_coarseness", &[], "latencies of each operation are in write_lat_log"),
    without_effect("log_compression", &[], PLAIN),
    without_effect("log_compression_cpus", &[], PLAIN),
    without_effect("log_store_compressed", &[], PLAIN),
    without_effect("log_unix_epoch", &[], "times are counted from the start of the run"),
    without_effect("log_alternate_epoch", &[], "times are counted from the start of the run"),
    without_effect(
        "log_alternate_epoch_clock_id",
        &[],
        "times are counted from the start of the run",
    ),
    without_effect("bwavgtime", &[], "logs are averaged over log_avg_msec"),
    without_effect("iopsavgtime", &[], "logs are averaged over log_avg_msec"),
    without_effect("bw_avg_time", &[], "logs are averaged over log_avg_msec"),
    without_effect("iops_avg_time", &[], "logs are averaged over log_avg_msec"),
    without_effect("disk_util", &[], FIGURES),
    without_effect("percentile_list", &[], FIGURES),
    without_effect("clat_percentiles", &[], MEASURED),
    without_effect("lat_percentiles", &[], MEASURED),
    without_effect("slat_percentiles", &[], MEASURED),
    without_effect("significant_figures", &[], FIGURES),
    without_effect("unified_rw_reporting", &["mixed_direction_reporting"], FIGURES),
    without_effect("unit_base", &[], FIGURES),
    without_effect("block_error_percentiles", &["block_error_histogram"], FIGURES),
    without_effect("gtod_reduce", &[], MEASURED),
    without_effect("gtod_cpu", &[], MEASURED),
    without_effect("disable_lat", &[], MEASURED),
    without_effect("disable_clat", &[], MEASURED),
    without_effect("disable_slat", &[], MEASURED),
    without_effect("disable_bw_measurement", &["disable_bw"], MEASURED),
    without_effect("clocksource", &[], MEASURED),
    without_effect("job_start_clock_id", &[], "times are counted from the start of the run"),
];
