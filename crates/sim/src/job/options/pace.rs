//! Options about rate, pauses and duration of a job.

use readpath_core::unit::Time;

use super::{FioOption, supported, without_effect};
use crate::job::SteadyStateRule;
use crate::job::value::{ExpectedForm, OptionValue, SPAN_MAX};

/// Units of times without a unit: fio has another one for each option.
const SECOND: Time = Time::from_s(1);
const MILLISECOND: Time = Time::from_ms(1);
const MICROSECOND: Time = Time::from_us(1);

pub const TABLE: &[FioOption] = &[
    supported(
        "runtime",
        &["timeout"],
        "the longest that a process runs, in seconds or with a unit",
        |draft, value| {
            value.span(SECOND).map(|time| draft.job.runtime = Some(time).filter(|t| t.ns() > 0))
        },
    ),
    supported("time_based", &[], "start over until the runtime is up", |draft, value| {
        value.switch().map(|on| draft.job.is_time_based = on)
    }),
    supported(
        "ramp_time",
        &[],
        "run this long before anything is measured, in seconds or with a unit (0)",
        |draft, value| value.span(SECOND).map(|time| draft.job.ramp = time),
    ),
    supported(
        "thinktime",
        &[],
        "pause between operations, in microseconds or with a unit (0)",
        |draft, value| value.span(MICROSECOND).map(|time| draft.job.pauses.time = time),
    ),
    without_effect("thinktime_spin", &[], "a pause is as long, whether spun or slept"),
    supported("thinktime_blocks", &[], "operations between two pauses (1)", |draft, value| {
        value.integer(1..=u32::MAX).map(|n| draft.job.pauses.blocks = Some(n))
    }),
    supported(
        "thinktime_blocks_type",
        &[],
        "complete, issue: which operations count (complete)",
        |draft, value| {
            value
                .one_of(&[("complete", false), ("issue", true)])
                .map(|issued| draft.job.pauses.counts_issued = issued)
        },
    ),
    supported(
        "thinktime_iotime",
        &[],
        "time between two pauses, next to `thinktime_blocks` if that is set, in seconds or with a unit",
        |draft, value| {
            let time = value.span(SECOND)?;
            draft.job.pauses.work_time = Some(time).filter(|time| time.ns() > 0);
            Ok(())
        },
    ),
    supported("rate", &[], "bytes a second at most, or READS,WRITES (0: any)", |draft, value| {
        value
            .for_each_direction(&mut draft.job.rate.bytes_per_s, |part| part.bytes_in(0..=u64::MAX))
    }),
    supported(
        "rate_iops",
        &[],
        "operations a second at most, or READS,WRITES (0: any)",
        |draft, value| {
            value.for_each_direction(&mut draft.job.rate.operations_per_s, |part| {
                part.integer(0..=u32::MAX)
            })
        },
    ),
    supported(
        "rate_min",
        &["ratemin"],
        "bytes a second at least, or READS,WRITES: a job that is slower ends with an error",
        |draft, value| {
            value.for_each_direction(&mut draft.job.rate.least_bytes_per_s, |part| {
                part.bytes_in(0..=u64::MAX)
            })
        },
    ),
    supported(
        "rate_iops_min",
        &[],
        "operations a second at least, or READS,WRITES: a job that is slower ends with an error",
        |draft, value| {
            value.for_each_direction(&mut draft.job.rate.least_operations_per_s, |part| {
                part.integer(0..=u32::MAX)
            })
        },
    ),
    supported(
        "rate_cycle",
        &["ratecycle"],
        "over which time the least rates must be reached, in milliseconds (1000)",
        |draft, value| value.span(MILLISECOND).map(|time| draft.job.rate.check_period = time),
    ),
    supported(
        "rate_process",
        &[],
        "linear, poisson: equal or exponential times between operations (linear)",
        |draft, value| {
            value
                .one_of(&[("linear", false), ("poisson", true)])
                .map(|is_poisson| draft.job.rate.is_poisson = is_poisson)
        },
    ),
    supported(
        "rate_ignore_thinktime",
        &[],
        "1: what a pause has cost of the rate is not caught up (0)",
        |draft, value| value.switch().map(|on| draft.job.rate.ignores_pauses = on),
    ),
    supported(
        "max_latency",
        &[],
        "an operation that takes longer ends the job, in microseconds or with a unit (0: none)",
        |draft, value| {
            let time = value.parse_first_direction(|part| part.span(MICROSECOND))?;
            draft.job.latency_max = Some(time).filter(|time| time.ns() > 0);
            Ok(())
        },
    ),
    supported(
        "latency_target",
        &[],
        "the most operations in flight with which this latency is kept, in microseconds or with a unit",
        |draft, value| value.span(MICROSECOND).map(|time| draft.latency_target = time),
    ),
    supported(
        "latency_window",
        &[],
        "for how long it must be kept, in microseconds or with a unit (runtime)",
        |draft, value| value.span(MICROSECOND).map(|time| draft.latency_window = Some(time)),
    ),
    supported(
        "latency_percentile",
        &[],
        "by how many percent of the operations (100)",
        |draft, value| value.fraction(0.0..=100.0).map(|share| draft.latency_percentile = share),
    ),
    supported("latency_run", &[], "1: go on for the whole runtime (0)", |draft, value| {
        value.switch().map(|on| draft.latency_continues = on)
    }),
    supported(
        "flow",
        &[],
        "weight: of all operations of the jobs of one flow, this job does its weight's share",
        |draft, value| {
            // A minus sign is ignored.
            let weight = value.text.trim_start_matches('-');
            value.part(weight).integer(0..=1000).map(|weight: u32| draft.flow_weight = weight)
        },
    ),
    supported("flow_id", &[], "which flow (0)", |draft, value| {
        value.integer(0..=u32::MAX).map(|id| draft.flow_id = id)
    }),
    supported(
        "flow_sleep",
        &[],
        "how long a job waits that is ahead of its share, in microseconds (0)",
        |draft, value| value.span(MICROSECOND).map(|time| draft.flow_sleep = time),
    ),
    without_effect("flow_watermark", &[], "a flow's shares are exact"),
    supported(
        "steadystate",
        &["ss"],
        "iops:LIMIT, bw:LIMIT, iops_slope:LIMIT, bw_slope:LIMIT, the limit with % of the mean: the \
         job ends when its rate stays within it",
        |draft, value| parse_steady_state(value).map(|steady| draft.job.steady = Some(steady)),
    ),
    supported(
        "steadystate_duration",
        &["ss_dur"],
        "for how long it must stay within the limit, in seconds or with a unit",
        |draft, value| {
            let seconds = value.span(SECOND)?.ns() / 1_000_000_000;
            draft.steady_seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
            Ok(())
        },
    ),
    supported(
        "steadystate_ramp_time",
        &["ss_ramp"],
        "what is left out at the start, in seconds or with a unit (0)",
        |draft, value| value.span(SECOND).map(|time| draft.steady_ramp = time),
    ),
    without_effect(
        "steadystate_check_interval",
        &["ss_interval"],
        "the rate is looked at every second",
    ),
];

impl<'a> OptionValue<'a> {
    /// Parses the first of the values per direction with `parse`, and ignores the others.
    fn parse_first_direction<T>(
        self,
        parse: impl Fn(OptionValue<'a>) -> Result<T, ExpectedForm>,
    ) -> Result<T, ExpectedForm> {
        parse(self.part(self.text.split(',').next().unwrap_or_default()))
    }
}

/// Parses the condition of a steady state, such as `iops:0.3%`. The limit is in operations or bytes
/// per second, or, with `%`, a fraction of the mean rate. Other options add its duration: with the
/// 0 seconds here the condition has no effect.
fn parse_steady_state(value: OptionValue<'_>) -> Result<SteadyStateRule, ExpectedForm> {
    let expected = "iops:LIMIT, bw:LIMIT, iops_slope:LIMIT or bw_slope:LIMIT";
    let (kind, limit) = value.text.split_once(':').ok_or(expected)?;
    let (is_operations, is_slope) = match kind {
        "iops" => (true, false),
        "iops_slope" => (true, true),
        "bw" => (false, false),
        "bw_slope" => (false, true),
        _ => return Err(expected.to_owned()),
    };
    let (limit, is_share) = match limit.strip_suffix('%') {
        Some(percent) => (value.part(percent).fraction(0.0..=100.0)? / 100.0, true),
        // The bound is chosen: more than any device does.
        None if is_operations => (value.part(limit).fraction(0.0..=1e15)?, false),
        None => (value.part(limit).bytes().ok_or(expected)? as f64, false),
    };
    Ok(SteadyStateRule { is_operations, is_slope, limit, is_share, seconds: 0, ramp: Time::ZERO })
}

const _: () = assert!(SPAN_MAX.ns() < u64::MAX / 16, "sums of times fit");
