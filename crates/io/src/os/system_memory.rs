//! Memory that this process could still take, by the limits of the machine and of its control
//! groups.
//!
//! Sources: `MemAvailable` of proc(5), the memory available without swapping; `memory.max`,
//! `memory.high`, `memory.current`, `memory.stat` and `memory.pressure` of the kernel's
//! `admin-guide/cgroup-v2`; `memory.limit_in_bytes` and others of `cgroup-v1/memory`. Inactive file
//! pages count as free in a group, as they do for the machine. In a simulation (`cfg(simulation)`)
//! the figures are simulated.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use readpath_os::proc_text;

/// Memory figures in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SystemMemory {
    /// Total memory that this process may ever have.
    pub(crate) total_bytes: u64,
    /// Memory that it could take now, in addition to the memory it has.
    pub(crate) available_bytes: u64,
    /// Total time in microseconds that tasks have stalled on memory; 0 if not reported.
    pub(crate) stall_us: u64,
}

/// Total memory that this process may ever have, in bytes; `None` if the system does not report it.
/// Cheaper than [`SystemMemory::measure`].
pub(crate) fn total_memory() -> Option<u64> {
    let system = rustix::system::sysinfo();
    let machine_bytes = system.totalram as u64 * u64::from(system.mem_unit);
    let limits = cgroups(Path::new("/")).filter_map(|(group, names)| names.smallest_limit(&group));
    (machine_bytes > 0).then(|| limits.fold(machine_bytes, u64::min))
}

impl SystemMemory {
    /// Present figures; `None` if the system does not report them.
    pub(crate) fn measure() -> Option<SystemMemory> {
        #[cfg(simulation)]
        if let Some(simulated) = crate::simulation::memory::system_memory() {
            return Some(simulated);
        }
        SystemMemory::measure_below(Path::new("/"))
    }

    /// Reads the present figures from `proc` and the control groups below the folder `root`. `None`
    /// if the machine's memory is not reported. Each figure is the strictest of the machine and its
    /// control groups: the smallest amounts and the longest stall time.
    fn measure_below(root: &Path) -> Option<SystemMemory> {
        let info = read_to_string(root.join("proc/meminfo")).ok()?;
        let machine = SystemMemory {
            total_bytes: proc_text::field_bytes(&info, "MemTotal:")?,
            available_bytes: proc_text::field_bytes(&info, "MemAvailable:")?,
            stall_us: total_stall_us(&root.join("proc/pressure/memory")),
        };
        let limits = cgroups(root)
            .filter_map(|(group, names)| names.read_memory(&group, machine.total_bytes));
        Some(limits.fold(machine, |strictest, group| SystemMemory {
            total_bytes: strictest.total_bytes.min(group.total_bytes),
            available_bytes: strictest.available_bytes.min(group.available_bytes),
            stall_us: strictest.stall_us.max(group.stall_us),
        }))
    }
}

/// File names of a control group version.
struct CgroupFileNames {
    /// Files with a limit of the group, in bytes.
    limits: &'static [&'static str],
    /// File with the memory of the group, in bytes.
    usage: &'static str,
    /// Field of `memory.stat` with the inactive file pages, in bytes.
    inactive_files_field: &'static str,
}

/// Version 2: the hard limit and the limit above which the kernel reclaims.
const CGROUP_V2: CgroupFileNames = CgroupFileNames {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    inactive_files_field: "inactive_file",
};
/// Version 1. The field includes the groups below, as the usage does.
const CGROUP_V1: CgroupFileNames = CgroupFileNames {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    inactive_files_field: "total_inactive_file",
};

impl CgroupFileNames {
    /// Smallest limit of a group in bytes; `None` without a limit.
    fn smallest_limit(&self, group: &Path) -> Option<u64> {
        self.limits.iter().filter_map(|name| read_number(&group.join(name))).min()
    }

    /// Reads the figures of a group on a machine with `machine_bytes` bytes of memory. Returns
    /// `None` for a group without a limit below that, or without a usage file.
    fn read_memory(&self, group: &Path, machine_bytes: u64) -> Option<SystemMemory> {
        let total_bytes = self.smallest_limit(group).filter(|&limit| limit < machine_bytes)?;
        let usage_bytes = read_number(&group.join(self.usage))?;
        // Without this file no pages count as inactive.
        let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
        let inactive_bytes = proc_text::number(&stat, self.inactive_files_field).unwrap_or(0);
        let available_bytes =
            total_bytes.saturating_sub(usage_bytes.saturating_sub(inactive_bytes));
        let stall_us = total_stall_us(&group.join("memory.pressure"));
        Some(SystemMemory { total_bytes, available_bytes, stall_us })
    }
}

/// Returns the control groups of this process that limit memory, each with the file names of its
/// version. The files are read below `root`.
fn cgroups(root: &Path) -> impl Iterator<Item = (PathBuf, &'static CgroupFileNames)> {
    let groups_text = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let groups: Vec<_> =
        groups_text.lines().flat_map(|line| limiting_cgroups(root, line)).collect();
    groups.into_iter()
}

/// Number in a file that contains only a number; `None` for any other file, such as `max`.
fn read_number(path: &Path) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the control groups of a line of `/proc/self/cgroup` that limit memory, innermost first,
/// each with the file names of its version. The line has the form `NUMBER:CONTROLLERS:PATH`, in
/// version 2 without controllers. There are none if it has another form or other controllers.
fn limiting_cgroups(root: &Path, line: &str) -> Vec<(PathBuf, &'static CgroupFileNames)> {
    let mut parts = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
    else {
        return Vec::new();
    };
    let (mount, names) = match controllers {
        "" => (root.join("sys/fs/cgroup"), &CGROUP_V2),
        _ if controllers.split(',').any(|name| name == "memory") => {
            (root.join("sys/fs/cgroup/memory"), &CGROUP_V1)
        }
        _ => return Vec::new(),
    };
    // In a container the path may be the host's, and the mount the group itself. The limits of all
    // groups above apply too.
    let group_directory = mount.join(path.trim_start_matches('/'));
    let innermost = if group_directory.is_dir() { group_directory } else { mount.clone() };
    let groups = innermost.ancestors().take_while(|group| group.starts_with(&mount));
    groups.map(|group| (group.to_path_buf(), names)).collect()
}

/// Returns the `total` in µs of the first line (`some`) of a pressure stall information file; 0 if
/// the file cannot be read.
fn total_stall_us(path: &Path) -> u64 {
    let text = read_to_string(path).unwrap_or_default();
    let total = text.lines().next().and_then(|line| line.split_once("total="));
    total.and_then(|(_, total_us)| total_us.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with the given files, deleted on drop.
    struct ScratchRoot(PathBuf);

    impl ScratchRoot {
        /// Creates the directory with files of these paths and texts.
        fn with(files: &[(&str, &str)]) -> ScratchRoot {
            let name = format!("readpath-spare-{:?}", std::thread::current().id());
            let root = ScratchRoot(std::env::temp_dir().join(name));
            for (path, text) in files {
                let path = root.0.join(path);
                std::fs::create_dir_all(path.parent().expect("a file has a folder")).unwrap();
                std::fs::write(path, text).unwrap();
            }
            root
        }
    }

    impl Drop for ScratchRoot {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const MEMINFO: &str = "MemTotal:       1000 kB\nMemFree: 5 kB\nMemAvailable:    600 kB\n";
    const PRESSURE: &str =
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=77\nfull avg10=0.00 total=5\n";

    /// `MEMINFO` has 1,000 KiB in total (1,024,000 bytes) and 600 KiB available (614,400 bytes).
    #[test]
    fn available_memory_without_groups_is_the_machines() {
        let files = [("proc/meminfo", MEMINFO), ("proc/pressure/memory", PRESSURE)];
        let root = ScratchRoot::with(&files);
        let expected =
            SystemMemory { total_bytes: 1_024_000, available_bytes: 614_400, stall_us: 77 };
        assert_eq!(SystemMemory::measure_below(&root.0), Some(expected));
        assert_eq!(SystemMemory::measure_below(Path::new("/nowhere")), None);
    }

    /// The smallest limit of nested groups counts: 300,000 bytes. The group uses 250,000 bytes, and
    /// 50,000 of them are inactive file pages, which count as free: 100,000 bytes are available.
    #[test]
    fn available_memory_follows_the_smallest_group_limit() {
        let root = ScratchRoot::with(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "400000\n"),
            ("sys/fs/cgroup/a/memory.high", "300000\n"),
            ("sys/fs/cgroup/a/memory.current", "250000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 100\ninactive_file 50000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.high", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "250000\n"),
        ]);
        let expected = SystemMemory { total_bytes: 300_000, available_bytes: 100_000, stall_us: 0 };
        assert_eq!(SystemMemory::measure_below(&root.0), Some(expected));
    }

    /// The group's path is the host's, so the files at the mount apply. The group uses 600,000
    /// bytes, and 200,000 of them are inactive: 100,000 of 500,000 are available.
    #[test]
    fn available_memory_follows_cgroup_v1_limits_at_the_mount_root() {
        let root = ScratchRoot::with(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "4:memory:/of/the/host\n1:cpu:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "500000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "600000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 200000\n"),
        ]);
        let expected = SystemMemory { total_bytes: 500_000, available_bytes: 100_000, stall_us: 0 };
        assert_eq!(SystemMemory::measure_below(&root.0), Some(expected));
    }
}
