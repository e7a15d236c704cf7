//! Options about logs and reports.

use readpath_core::unit::Time;

use super::{FioOption, refused, supported, without_effect};

/// Reason why options about the output have no effect.
const FIGURES: &str = "the figures that are printed are always the same";
/// Reason why switches of latency measurement have no effect.
const MEASURED: &str = "all latencies are measured";
/// Reason why options about the memory of logs have no effect.
const WRITTEN: &str = "logs are written as they come, and take no memory";
/// Reason why other averaging times have no effect.
const WINDOW: &str = "log_avg_msec alone says over which time";
const HISTOGRAM: &str =
    "no logs of histograms are written: write_lat_log has each latency, --json the percentiles";
const CALENDAR: &str =
    "modelled time has no calendar: times of logs count from their process's start";

/// Common description of the options for log file names.
const NAMED: &str = "how the names of this log's files begin, PREFIX_TYPE.NUMBER.log, or the option alone for the \
                     job's name; of a run with several rows PREFIX-ROW";

pub const TABLE: &[FioOption] = &[
    supported("write_bw_log", &[], NAMED, |draft, value| {
        draft.job.logs.bandwidth = Some(value.text.to_owned());
        Ok(())
    }),
    supported("write_lat_log", &[], NAMED, |draft, value| {
        draft.job.logs.latency = Some(value.text.to_owned());
        Ok(())
    }),
    supported("write_iops_log", &[], NAMED, |draft, value| {
        draft.job.logs.operations = Some(value.text.to_owned());
        Ok(())
    }),
    supported(
        "write_iolog",
        &[],
        "the file to which all operations are written, as a trace; of a run with several rows FILE-ROW",
        |draft, value| value.non_empty_text().map(|name| draft.job.logs.trace = Some(name)),
    ),
    supported(
        "log_avg_msec",
        &["log_window"],
        "over how many milliseconds the values of logs are put together (0: each has a line)",
        |draft, value| value.span(Time::from_ms(1)).map(|time| draft.job.logs.window = time),
    ),
    supported(
        "log_max_value",
        &["log_window_value"],
        "1: of such a time the largest latency is written, 0: the mean (0)",
        |draft, value| {
            value
                .one_of(&[("0", false), ("avg", false), ("1", true), ("max", true)])
                .map(|most| draft.job.logs.logs_maximum = most)
        },
    ),
    supported("log_offset", &[], "1: logs have offsets (0)", |draft, value| {
        value.flag().map(|on| draft.job.logs.has_offset = on)
    }),
    supported("log_prio", &[], "1: logs have priorities in full (0)", |draft, value| {
        value.flag().map(|on| draft.job.logs.has_priority = on)
    }),
    supported(
        "log_issue_time",
        &[],
        "1: logs have the time of the issue, in nanoseconds (0)",
        |draft, value| value.flag().map(|on| draft.job.logs.has_issue_time = on),
    ),
    supported(
        "per_job_logs",
        &[],
        "0: all processes write to one file, without a number in its name (1)",
        |draft, value| value.flag().map(|on| draft.job.logs.is_one_file_for_all = !on),
    ),
    refused("write_hist_log", &[], &[], HISTOGRAM),
    without_effect("log_hist_msec", &[], HISTOGRAM),
    without_effect("log_hist_coarseness", &[], HISTOGRAM),
    without_effect("log_entries", &[], WRITTEN),
    without_effect("log_compression", &[], WRITTEN),
    without_effect("log_compression_cpus", &[], WRITTEN),
    refused("log_store_compressed", &[], &["0"], "logs are text, as what reads them wants"),
    refused("log_unix_epoch", &[], &["0"], CALENDAR),
    refused("log_alternate_epoch", &[], &["0"], CALENDAR),
    without_effect("log_alternate_epoch_clock_id", &[], CALENDAR),
    without_effect("job_start_clock_id", &[], CALENDAR),
    without_effect("bwavgtime", &[], WINDOW),
    without_effect("iopsavgtime", &[], WINDOW),
    without_effect("bw_avg_time", &[], WINDOW),
    without_effect("iops_avg_time", &[], WINDOW),
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
];
