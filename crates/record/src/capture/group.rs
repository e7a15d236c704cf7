//! Processes of a control group, or of the machine.

use std::fs;
use std::io;
use std::path::Path;

/// Numbers of all processes in the control group at `folder` and in the groups below it.
///
/// # Errors
/// The folder has no list of processes: it is not a control group, or it is a threaded one.
pub(super) fn processes(folder: &Path) -> io::Result<Vec<u32>> {
    let list = fs::read_to_string(folder.join("cgroup.procs"))?;
    let mut numbers: Vec<u32> = list.lines().filter_map(|line| line.parse().ok()).collect();
    // The kernel lists processes of other namespaces as 0.
    numbers.retain(|process| *process != 0);
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // A group removed in the meantime has no processes.
            numbers.extend(processes(&entry.path()).unwrap_or_default());
        }
    }
    Ok(numbers)
}

/// Numbers of all processes but this one and the kernel's threads.
///
/// # Errors
/// `/proc` cannot be listed.
pub(super) fn all_processes() -> io::Result<Vec<u32>> {
    let names =
        fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let numbers = names.filter_map(|name| name.parse().ok());
    let is_program = |process: &u32| {
        // A kernel thread has no command line, and neither has a process that has ended.
        *process != std::process::id()
            && fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|words| !words.is_empty())
    };
    Ok(numbers.filter(is_program).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_group_includes_processes_of_nested_groups() {
        let folder = std::env::temp_dir().join(format!("readpath-group-{}", std::process::id()));
        fs::create_dir_all(folder.join("below/deeper")).unwrap();
        fs::write(folder.join("cgroup.procs"), "12\n0\n").unwrap();
        fs::write(folder.join("below/cgroup.procs"), "").unwrap();
        fs::write(folder.join("below/deeper/cgroup.procs"), "7\n9\n").unwrap();
        let found = processes(&folder);
        let none = processes(&folder.join("nowhere"));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.unwrap(), [12, 7, 9]);
        assert!(none.is_err());
    }
}
