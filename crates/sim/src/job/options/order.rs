//! Options about jobs: names, numbers of processes, order of start and end.

use readpath_core::request::Class;
use readpath_core::unit::Time;

use super::{FioOption, refused, supported, without_effect};
use crate::job::ExitScope;
use crate::job::value::ByteUnits;

/// Reason why group reporting has no effect.
const GROUPS: &str = "jobs are always reported one by one, and together";

pub const TABLE: &[FioOption] = &[
    supported("description", &[], "free text", |draft, value| {
        value.non_empty_text().map(|text| draft.job.description = Some(text))
    }),
    supported("name", &[], "the job's name, in place of its section's", |draft, value| {
        value.non_empty_text().map(|text| draft.name = Some(text))
    }),
    supported("kb_base", &[], "1024 or 1000: what `k` is (1024)", |draft, value| {
        value
            .one_of(&[("1024", ByteUnits::Binary), ("1000", ByteUnits::Decimal)])
            .map(|kilo| draft.kilo = kilo)
    }),
    supported("numjobs", &[], "processes that do the same (1)", |draft, value| {
        value.integer(1..=65_536).map(|n| draft.job.processes = n)
    }),
    supported("loops", &[], "how many times the work is done (1)", |draft, value| {
        value.integer(1..=u32::MAX).map(|n| draft.job.loops = n)
    }),
    supported(
        "startdelay",
        &["start_delay"],
        "wait this long after the start, in seconds or with a unit; of A-B the mean (0)",
        |draft, value| {
            let unit = Time::from_s(1);
            let delay = match value.text.split_once('-') {
                Some((least, most)) => {
                    let (least, most) =
                        (value.part(least).span(unit)?, value.part(most).span(unit)?);
                    Time((least.ns() + most.ns()) / 2)
                }
                None => value.span(unit)?,
            };
            draft.job.start_delay = delay;
            Ok(())
        },
    ),
    supported(
        "stonewall",
        &["wait_for_previous"],
        "wait for the jobs above to end",
        |draft, value| value.switch().map(|on| draft.job.has_stonewall = on),
    ),
    supported("wait_for", &[], "a job above, whose processes must have ended", |draft, value| {
        value.non_empty_text().map(|name| draft.job.wait_for = Some(name))
    }),
    supported("new_group", &[], "a group for exit_what=group begins here", |draft, value| {
        value.switch().map(|on| draft.job.is_new_group = on)
    }),
    supported(
        "exitall",
        &[],
        "given in any job: the end of each job ends those of its exit_what",
        |draft, value| value.switch().map(|on| draft.exits_all = on),
    ),
    supported("exit_what", &[], "all, stonewall, group (group)", |draft, value| {
        let words =
            [("all", ExitScope::All), ("stonewall", ExitScope::Phase), ("group", ExitScope::Group)];
        value.one_of(&words).map(|what| draft.exit_what = what)
    }),
    without_effect(
        "exitall_on_error",
        &[],
        "operations that fail are counted, and the run goes on",
    ),
    supported("create_only", &[], "1: files are made, and nothing is moved (0)", |draft, value| {
        value.flag().map(|on| draft.job.is_creation_only = on)
    }),
    supported("prio", &[], "I/O priority from 0 (most) to 7", |draft, value| {
        value.integer(0..=7).map(|n| draft.priority_level = Some(n))
    }),
    supported(
        "prioclass",
        &[],
        "I/O class: 0 none, 1 real time, 2 best effort, 3 idle",
        |draft, value| {
            let words = [
                ("0", None),
                ("1", Some(Class::RealTime)),
                ("2", Some(Class::BestEffort)),
                ("3", Some(Class::Idle)),
            ];
            value.one_of(&words).map(|class| draft.priority_class = class)
        },
    ),
    without_effect("priohint", &[], "no scheduler here knows duration limits"),
    supported(
        "group_reporting",
        &[],
        "all processes of the job as one, which a row always does; each is in `streams`",
        |draft, value| value.switch().map(|on| draft.job.is_group_reported = on),
    ),
    without_effect("thread", &["threads"], "processes are threads here"),
    without_effect("stats", &[], GROUPS),
    without_effect("create_serialize", &[], "files are made before the run"),
    without_effect("ignore_error", &[], "operations that fail are counted, and the run goes on"),
    without_effect(
        "continue_on_error",
        &[],
        "operations that fail are counted, and the run goes on",
    ),
    without_effect("error_dump", &[], "the first error of a run is always reported"),
    without_effect("exec_prerun", &[], "no programs are run out of a job file"),
    without_effect("exec_postrun", &[], "no programs are run out of a job file"),
    refused(
        "profile",
        &[],
        &[],
        "it is a program of fio's own, not a description of I/O; write its jobs out",
    ),
];
