//! Options about the machine: processors, users, groups.

use super::{FioOption, refused, without_effect};

/// Reason why processor placement has no effect.
const PROCESSORS: &str = "the system places the threads";
/// Reason why `uid` and `gid` have no effect.
const USER: &str = "files are used by the user who runs the command";

pub const TABLE: &[FioOption] = &[
    without_effect("nice", &[], PROCESSORS),
    without_effect("cpumask", &[], PROCESSORS),
    without_effect("cpus_allowed", &[], PROCESSORS),
    without_effect("cpus_allowed_policy", &[], PROCESSORS),
    without_effect("numa_cpu_nodes", &[], PROCESSORS),
    without_effect("numa_mem_policy", &[], PROCESSORS),
    without_effect("uid", &[], USER),
    without_effect("gid", &[], USER),
    refused(
        "cgroup",
        &[],
        &[],
        "its limits would change what is measured; run the command in that group",
    ),
    without_effect("cgroup_nodelete", &[], "no group is made"),
    refused("cgroup_weight", &[], &[], "its weight would change what is measured; use prio"),
    refused("ioscheduler", &[], &[], "--scheduler names the schedulers of a run"),
];
