//! Processes of a control group, or of the machine, and threads of a process.

use std::fs;
use std::io;
use std::path::Path;

use readpath_os::proc_text;
use rustix::fs::FsWord;

/// Types of the file systems of control groups, version 1 and version 2, from `linux/magic.h`.
const CONTROL_GROUP_TYPES: [FsWord; 2] = [0x0027_e0eb, 0x6367_7270];

/// Numbers of all processes in the control group at `folder` and in the groups below it.
///
/// # Errors
/// The folder is not a control group, or it is a threaded one, which has no list of processes.
pub(super) fn processes(folder: &Path) -> io::Result<Vec<u32>> {
    // Any folder may have a file of the same name as the list.
    if !CONTROL_GROUP_TYPES.contains(&rustix::fs::statfs(folder)?.f_type) {
        return Err(io::Error::other("not a control group: another file system has this folder"));
    }
    listed_processes(folder)
}

/// Numbers of the living threads of a process. Fails if the process has ended.
pub(super) fn threads(process: u32) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(format!("/proc/{process}/task"))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Number of the process of a living task. `None` if the task has ended.
pub(super) fn process_of(task: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    proc_text::field(&status, "Tgid:")?.parse().ok()
}

/// Numbers in the lists of processes of `folder` and of the folders below it. Fails if the folder
/// has no list.
fn listed_processes(folder: &Path) -> io::Result<Vec<u32>> {
    let list = fs::read_to_string(folder.join("cgroup.procs"))?;
    let mut numbers: Vec<u32> = list.lines().filter_map(|line| line.parse().ok()).collect();
    // The kernel lists processes of other namespaces as 0.
    numbers.retain(|process| *process != 0);
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // A group removed in the meantime has no processes.
            numbers.extend(listed_processes(&entry.path()).unwrap_or_default());
        }
    }
    Ok(numbers)
}

/// Numbers of all processes but the kernel's threads.
///
/// # Errors
/// `/proc` cannot be listed.
pub(super) fn all_processes() -> io::Result<Vec<u32>> {
    let is_program = |process: &u32| {
        // A kernel thread has no command line, and neither has a process that has ended.
        fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|words| !words.is_empty())
    };
    Ok(process_numbers()?.filter(is_program).collect())
}

/// Numbers of all processes, the kernel's threads included. Fails if `/proc` cannot be listed.
fn process_numbers() -> io::Result<impl Iterator<Item = u32>> {
    let names =
        fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter_map(|name| name.parse().ok()))
}

/// Numbers of the living descendants of `process`: its children, their children, and so on. A
/// process whose starter has ended belongs to another tree.
///
/// # Errors
/// `/proc` cannot be listed.
pub(super) fn descendants(process: u32) -> io::Result<Vec<u32>> {
    let pairs = process_numbers()?.filter_map(|child| Some((child, parent(child)?)));
    Ok(below(process, &pairs.collect::<Vec<(u32, u32)>>()))
}

/// Numbers of a process and of its descendants, from the lists of children of its threads. Without
/// these lists (a kernel option) all processes are searched, which takes milliseconds.
pub(super) fn with_descendants(process: u32) -> Vec<u32> {
    let mut found = vec![process];
    let mut index = 0;
    while let Some(&starter) = found.get(index) {
        for thread in threads(starter).unwrap_or_default() {
            let list = fs::read_to_string(format!("/proc/{starter}/task/{thread}/children"));
            match list {
                Ok(list) => found.extend(list.split_whitespace().flat_map(str::parse::<u32>)),
                // Either the kernel has no lists, or the thread has ended. In doubt all processes
                // are searched.
                Err(_) if starter == process && threads(process).is_ok() => {
                    found.truncate(1);
                    found.extend(descendants(process).unwrap_or_default());
                    return found;
                }
                // The thread has ended: by the threads of `process` the kernel has lists.
                Err(_) => {}
            }
        }
        index += 1;
    }
    found
}

/// Number of the parent of a living process. If the starter has ended, the kernel has given the
/// process another parent. `None` if the process has ended.
fn parent(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // After the command name come the state (0) and the parent (1).
    proc_text::stat_fields(&stat)?.nth(1)?.parse().ok()
}

/// Processes below `root`, nearest first. `pairs`: each process with its parent.
fn below(root: u32, pairs: &[(u32, u32)]) -> Vec<u32> {
    let mut found = vec![root];
    let mut index = 0;
    while let Some(&starter) = found.get(index) {
        let children = pairs.iter().filter(|(_, parent)| *parent == starter);
        found.extend(children.map(|(child, _)| child));
        index += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_children_and_their_children() {
        let pairs = [(7, 3), (5, 2), (3, 2), (9, 7), (4, 1), (2, 1)];
        assert_eq!(below(2, &pairs), [5, 3, 7, 9]);
        assert!(below(9, &pairs).is_empty());
    }

    #[test]
    fn control_group_includes_processes_of_nested_groups() {
        let folder = std::env::temp_dir().join(format!("readpath-group-{}", std::process::id()));
        fs::create_dir_all(folder.join("below/deeper")).unwrap();
        fs::write(folder.join("cgroup.procs"), "12\n0\n").unwrap();
        fs::write(folder.join("below/cgroup.procs"), "").unwrap();
        fs::write(folder.join("below/deeper/cgroup.procs"), "7\n9\n").unwrap();
        let found = listed_processes(&folder);
        let none = listed_processes(&folder.join("nowhere"));
        let plain = processes(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.unwrap(), [12, 7, 9]);
        assert!(none.is_err());
        // The folder has a list, but on a file system for data.
        assert!(plain.unwrap_err().to_string().contains("not a control group"));
    }
}
