//! Options of a job that change its run, and that the replay of a trace does not honour.

use std::path::Path;

use readpath_sim::job::{AdviceHint, Job, JobFile};

use crate::exit::{CommandResult, Failure};

/// Refuses an option that the replay of the job's trace would ignore. Block sizes, file sizes and
/// the pattern are accepted: the trace has its own requests, in fio too.
pub fn refuse_ignored_options(job: &Job, job_file: &Path) -> CommandResult {
    match ignored_options(job).into_iter().find(|(_, is_set)| *is_set) {
        Some((options, _)) => Err(Failure::usage_of(
            job_file.display(),
            format!("{options} has no effect on the replay of a trace; leave it out"),
        )),
        None => Ok(()),
    }
}

/// Returns the options, each with a flag: true if the job's value differs from the default. Some
/// defaults depend on the job's engine, depth and direct I/O. Options that set one value are named
/// together.
fn ignored_options(job: &Job) -> Vec<(&'static str, bool)> {
    let (engine, depth, is_direct) = (job.engine.name(), job.depth, u8::from(job.is_direct));
    let text = format!("[plain]\nioengine={engine}\niodepth={depth}\ndirect={is_direct}\n");
    let plain = JobFile::parse(&text).expect("the text is well formed").jobs.remove(0);
    let (rate, plain_rate) = (&job.rate, &plain.rate);
    // The replay gives no hint. The default and an explicit 0 are no contradiction.
    let is_hint_other = ![plain.hint, AdviceHint::None].contains(&job.hint);
    vec![
        ("`numjobs`", job.processes != plain.processes),
        ("`loops`", job.loops != plain.loops),
        ("`number_ios`", job.operations != plain.operations),
        ("`time_based`", job.is_time_based),
        ("`ramp_time`", job.ramp != plain.ramp),
        ("`thinktime`", job.pauses.time != plain.pauses.time),
        ("`rate`", rate.bytes_per_s != plain_rate.bytes_per_s),
        ("`rate_iops`", rate.operations_per_s != plain_rate.operations_per_s),
        ("`rate_min`", rate.least_bytes_per_s != plain_rate.least_bytes_per_s),
        ("`rate_iops_min`", rate.least_operations_per_s != plain_rate.least_operations_per_s),
        ("`max_latency`", job.latency_max != plain.latency_max),
        ("`latency_target`", job.latency_target != plain.latency_target),
        ("`flow`", job.flow != plain.flow),
        ("`steadystate`", job.steady != plain.steady),
        ("`iodepth_batch`", job.batch != plain.batch),
        ("`iodepth_batch_complete_min`", job.batch_complete != plain.batch_complete),
        ("`iodepth_low`", job.low != plain.low),
        ("`fsync` or `sync`", job.sync.writes != plain.sync.writes),
        ("`fdatasync` or `sync`", job.sync.data_writes != plain.sync.data_writes),
        ("`end_fsync` or `fsync_on_close`", job.sync.at_end != plain.sync.at_end),
        ("`verify`", job.verify.is_some()),
        ("`prio` or `prioclass`", job.priority != plain.priority),
        ("`fadvise_hint`", is_hint_other),
        ("`invalidate`", job.invalidates != plain.invalidates),
        ("`create_only`", job.is_creation_only),
    ]
}
