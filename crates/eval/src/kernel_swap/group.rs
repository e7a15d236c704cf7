//! Memory cgroup for one run, which limits the memory of its processes.
//!
//! In version 1 the memory controller has its own hierarchy, and the group is created below this
//! process's group. In version 2 a group with processes cannot delegate a controller ("no internal
//! processes" rule). The group is then created below the nearest ancestor that delegates the memory
//! controller.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{CleanupEntry, SwapError, fresh_name, own_entries, try_lock_file};
use readpath_os::mounts::{Mount, parse_mounts};
use readpath_os::proc_text;
use readpath_record::cleanup::{CleanupKind, Record};
use readpath_record::notice;

/// Ending of the groups' names: none, they consist of prefix and numbers.
const ENDING: &str = "";

/// Advice for a refused system call.
const NEEDS_ROOT: &str = "memory cgroups need root, or a group that was delegated to this user";

/// A memory cgroup, removed on drop.
#[derive(Debug)]
pub struct MemoryGroup {
    /// Folder of the group.
    path: PathBuf,
    /// Version of the interface, which decides the names of the files in the folder.
    version: Version,
    /// Open folder that holds the lock.
    _directory: File,
    /// Entry in the cleanup journal, removed with the group.
    record: Option<Record>,
}

/// Versions of the kernel's cgroup interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy per controller.
    One,
    /// One hierarchy for all controllers.
    Two,
}

/// Counters of a group since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Number of processes killed by the kernel because the group ran out of memory.
    pub oom_kills: u64,
    /// Peak memory of the group in bytes. `None` where the kernel does not report it.
    pub bytes_max: Option<u64>,
}

impl MemoryGroup {
    /// Creates a group with a memory limit of `limit_bytes` and unlimited swap. Removes the empty
    /// groups of killed runs first, and returns one entry for each.
    ///
    /// # Errors
    /// No hierarchy has a memory controller, or the group cannot be created, recorded or limited.
    pub fn new(limit_bytes: u64) -> Result<(MemoryGroup, Vec<CleanupEntry>), SwapError> {
        let parent = Parent::find().ok_or(SwapError::NoMemoryGroups)?;
        let cleaned = remove_abandoned(&parent.path);
        let path = parent.path.join(fresh_name(ENDING));
        let refused =
            |action, error: io::Error| SwapError::refused(action, &path, error, NEEDS_ROOT);
        fs::create_dir(&path).map_err(|error| refused("make", error))?;
        let directory = File::open(&path).inspect_err(|_| {
            let _ = fs::remove_dir(&path);
        });
        let directory = directory.map_err(|error| refused("open", error))?;
        // Always succeeds: no other run knows the new group.
        try_lock_file(&directory);
        let record = Record::write_record(CleanupKind::KernelFolder, &path).inspect_err(|_| {
            let _ = fs::remove_dir(&path);
        });
        let record = Some(record.map_err(|error| refused("keep a record of", error))?);
        let version = parent.version;
        // From here on, dropping `group` removes it.
        let group = MemoryGroup { path: path.clone(), version, _directory: directory, record };
        let limit_file = match group.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        fs::write(group.path.join(limit_file), limit_bytes.to_string())
            .map_err(|error| refused("limit the memory of", error))?;
        Ok((group, cleaned))
    }

    /// Moves a process into the group. Memory that it touches later is charged to the group.
    ///
    /// # Errors
    /// The process has ended or may not be moved.
    pub fn add(&self, process: u32) -> Result<(), SwapError> {
        fs::write(self.path.join("cgroup.procs"), process.to_string()).map_err(|error| {
            SwapError::refused("put a process into", &self.path, error, NEEDS_ROOT)
        })
    }

    /// Folder of the group.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version of the group's interface.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Reads the group's counters. A missing counter of killed processes is 0.
    pub fn counts(&self) -> GroupCounts {
        let text = |name| fs::read_to_string(self.path.join(name)).unwrap_or_default();
        let value = |name| text(name).trim().parse().ok();
        match self.version {
            Version::One => GroupCounts {
                oom_kills: proc_text::number(&text("memory.oom_control"), "oom_kill").unwrap_or(0),
                bytes_max: value("memory.max_usage_in_bytes"),
            },
            Version::Two => GroupCounts {
                oom_kills: proc_text::number(&text("memory.events"), "oom_kill").unwrap_or(0),
                bytes_max: value("memory.peak"),
            },
        }
    }

    /// Leaves the group and its record, and prints the reason.
    fn leave(&mut self, reason: fmt::Arguments<'_>) {
        self.record.take().into_iter().for_each(Record::leave);
        notice::print(format_args!("{}: {reason}", self.path.display()));
    }
}

impl Drop for MemoryGroup {
    /// Removes the group. Waits up to two seconds for its last processes to leave it; a group that
    /// stays is reported, and keeps its record.
    fn drop(&mut self) {
        /// Attempts at intervals of 10 ms: two seconds. Chosen, not measured.
        const ATTEMPTS: u32 = 200;
        // A process that was waited for may still be leaving the group.
        for _ in 0..ATTEMPTS {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return self.leave(format_args!("can't be removed: {error}")),
                Ok(()) => return,
            }
        }
        self.leave(format_args!("still has processes; `rmdir` it later"));
    }
}

/// Removes the empty groups of killed runs below `parent`: live runs keep their groups locked. A
/// group with processes stays; its processes end with the process that started them. Returns the
/// paths with the outcome.
fn remove_abandoned(parent: &Path) -> Vec<CleanupEntry> {
    // The lock is only a test, and ends with the closure.
    let is_abandoned =
        |path: &PathBuf| File::open(path).is_ok_and(|directory| try_lock_file(&directory));
    let abandoned = own_entries(parent, ENDING).into_iter().filter(is_abandoned);
    abandoned
        .map(|path| {
            let outcome = match fs::remove_dir(&path) {
                Ok(()) => "the group has been removed".to_owned(),
                Err(error) => format!("the group can't be removed: {error}"),
            };
            CleanupEntry { path, outcome }
        })
        .collect()
}

/// Parent folder of a new group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parent {
    /// Path of the folder.
    path: PathBuf,
    /// Version of its cgroup hierarchy.
    version: Version,
}

impl Parent {
    /// Finds the group below which groups for the runs are created; `None` without a memory
    /// controller. A machine can have both versions mounted, but the controller is in one of them.
    fn find() -> Option<Parent> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        Parent::find_version_1(&groups, &mounts)
            .or_else(|| Parent::find_version_2(&groups, &mounts))
    }

    /// Returns the group of this process in the hierarchy of the memory controller (version 1).
    /// `None` without that hierarchy.
    fn find_version_1(groups: &str, mounts: &str) -> Option<Parent> {
        // A line is `HIERARCHY:CONTROLLERS:PATH`, with commas between the controllers.
        let own_group = groups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|name| name == "memory").then_some(path)
        })?;
        let mount = parse_mounts(mounts).find(|mount| {
            mount.file_system == "cgroup"
                && mount.options.split(',').any(|option| option == "memory")
        })?;
        Some(Parent { path: group_path(&mount, own_group), version: Version::One })
    }

    /// Returns the nearest ancestor of this process's group that delegates the memory controller
    /// (version 2). `None` without one.
    fn find_version_2(groups: &str, mounts: &str) -> Option<Parent> {
        // Version 2 has the hierarchy 0, and no controllers in its line.
        let own_group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
        let mount = parse_mounts(mounts).find(|mount| mount.file_system == "cgroup2")?;
        let own_directory = group_path(&mount, own_group);
        let is_below_mount = |path: &&Path| path.starts_with(mount.mount_point);
        let upwards = own_directory.ancestors().take_while(is_below_mount);
        let mut delegating = upwards.filter(|path| {
            let controllers = fs::read_to_string(path.join("cgroup.subtree_control"));
            controllers.is_ok_and(|names| names.split_whitespace().any(|name| name == "memory"))
        });
        let path = delegating.next()?.to_path_buf();
        Some(Parent { path, version: Version::Two })
    }
}

/// Path of a group's folder below a mount. In a container, the mount shows only the groups below
/// its root. A group outside of that root has the mount point as its path.
fn group_path(mount: &Mount<'_>, group: &str) -> PathBuf {
    let below = group.strip_prefix(mount.root.trim_end_matches('/')).unwrap_or("");
    Path::new(mount.mount_point).join(below.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a machine with both versions, and of a container, as in proc(5) and cgroups(7).
    #[test]
    fn cgroup_v1_memory_hierarchy_is_found() {
        let groups = "5:devices:/\n4:memory:/jobs/one\n0::/\n";
        let mounts = "\
            23 22 0:20 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
            24 22 0:21 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
        let found = Parent::find_version_1(groups, mounts).unwrap();
        assert_eq!(found.path, Path::new("/sys/fs/cgroup/memory/jobs/one"));
        // A container has its own part of the hierarchy mounted as the root.
        let groups = "4:cpu,memory:/docker/abc/inner\n";
        let mounts = "24 22 0:21 /docker/abc /cg rw shared:1 - cgroup cgroup rw,cpu,memory\n";
        let found = Parent::find_version_1(groups, mounts).unwrap();
        assert_eq!(found.path, Path::new("/cg/inner"));
    }

    /// A folder with a file, which rmdir(2) does not remove.
    #[test]
    fn group_that_is_not_removed_stays_in_the_cleanup_journal() {
        let path = std::env::temp_dir().join(fresh_name(".test"));
        fs::create_dir(&path).unwrap();
        File::create_new(path.join("file")).unwrap();
        let record = Record::write_record(CleanupKind::KernelFolder, &path).unwrap();
        let descriptor = format!("/proc/self/fd/{}", record.descriptor());
        let record_path = fs::read_link(descriptor).unwrap();
        drop(MemoryGroup {
            path: path.clone(),
            version: Version::Two,
            _directory: File::open(&path).unwrap(),
            record: Some(record),
        });
        assert!(path.exists() && record_path.exists());
        // It is of a live run: this one.
        assert!(!try_lock_file(&File::open(&record_path).unwrap()));
        fs::remove_dir_all(&path).unwrap();
        fs::remove_file(&record_path).unwrap();
        // Other records may be in the folder.
        let _ = fs::remove_dir(record_path.parent().unwrap());
    }

    /// A hierarchy in a temporary folder. First the slice delegates the memory controller, then
    /// only the root, then no group.
    #[test]
    fn cgroup_v2_parent_is_the_nearest_delegating_ancestor() {
        let root = std::env::temp_dir().join(format!("groups-{}", std::process::id()));
        let session = root.join("user.slice/session.scope");
        fs::create_dir_all(&session).unwrap();
        fs::write(root.join("cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        fs::write(root.join("user.slice/cgroup.subtree_control"), "memory\n").unwrap();
        fs::write(session.join("cgroup.subtree_control"), "\n").unwrap();
        let mounts = format!("25 22 0:22 / {} rw - cgroup2 cgroup2 rw\n", root.display());
        let groups = "0::/user.slice/session.scope\n";
        let found = Parent::find_version_2(groups, &mounts).unwrap();
        assert_eq!(found, Parent { path: root.join("user.slice"), version: Version::Two });
        fs::write(root.join("user.slice/cgroup.subtree_control"), "pids\n").unwrap();
        assert_eq!(Parent::find_version_2(groups, &mounts).unwrap().path, root);
        fs::write(root.join("cgroup.subtree_control"), "").unwrap();
        assert_eq!(Parent::find_version_2(groups, &mounts), None);
        fs::remove_dir_all(&root).unwrap();
    }
}
