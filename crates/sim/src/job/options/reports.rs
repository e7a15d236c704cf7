//! Logs and figures.

use super::{FioOption, without_effect};

const FIGURES: &str = "the figures that are printed are always the same";
const MEASURED: &str = "all latencies are measured";
const LOGS: &str = "no logs of single operations are written; the figures are in --json";

pub const TABLE: &[FioOption] = &[
    without_effect("write_bw_log", &[], LOGS),
    without_effect("write_lat_log", &[], LOGS),
    without_effect("write_iops_log", &[], LOGS),
    without_effect("write_hist_log", &[], LOGS),
    without_effect("write_iolog", &[], LOGS),
    without_effect("log_avg_msec", &["log_window"], LOGS),
    without_effect("log_max_value", &["log_window_value"], LOGS),
    without_effect("log_offset", &[], LOGS),
    without_effect("per_job_logs", &[], LOGS),
    without_effect("log_prio", &[], LOGS),
    without_effect("log_issue_time", &[], LOGS),
    without_effect("log_entries", &[], LOGS),
    without_effect("log_hist_msec", &[], LOGS),
    without_effect("log_hist_coarseness", &[], LOGS),
    without_effect("log_compression", &[], LOGS),
    without_effect("log_compression_cpus", &[], LOGS),
    without_effect("log_store_compressed", &[], LOGS),
    without_effect("log_unix_epoch", &[], LOGS),
    without_effect("log_alternate_epoch", &[], LOGS),
    without_effect("log_alternate_epoch_clock_id", &[], LOGS),
    without_effect("bwavgtime", &[], LOGS),
    without_effect("iopsavgtime", &[], LOGS),
    without_effect("bw_avg_time", &[], LOGS),
    without_effect("iops_avg_time", &[], LOGS),
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
    without_effect("job_start_clock_id", &[], LOGS),
];
