//! Attachments to running processes.
//!
//! The kernel's *list* (`set_event_pid`) contains the tasks whose events the kernel reports. The
//! kernel adds their children itself. During a *rest* of an advised recorder the kernel reports no
//! events, but keeps the list.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::{Recorder, group, now_ns, wall_ns};

impl Recorder {
    /// Records a running process, and children that it starts later. Recorded tasks are skipped.
    /// The first attachment begins the recording.
    ///
    /// # Errors
    /// The process does not exist, cannot be recorded, or is this one.
    pub fn attach(&mut self, process: u32) -> io::Result<()> {
        if process == std::process::id() {
            return Err(io::Error::other("readpath cannot follow its own process"));
        }
        // Fails if the process has ended, which is no error below.
        group::threads(process)?;
        self.attach_processes(&[process])?;
        Ok(())
    }

    /// Records the living threads of a process, which are in the kernel's list by now, and its open
    /// and mapped files. Recorded threads are skipped. Fails if the process has ended.
    fn attach_listed(&mut self, process: u32) -> io::Result<()> {
        let mut living = group::threads(process)?;
        living.retain(|task| !self.tracker.is_recorded(*task));
        for task in living {
            let name = fs::read_to_string(format!("/proc/{process}/task/{task}/comm"));
            self.tracker.add_task(task, process, name.unwrap_or_default().trim_end());
            if let Some(times) = &mut self.time_split {
                times.add_running(now_ns(), process, task);
            }
        }
        // The open files are needed for reads by their descriptors.
        let descriptors = fs::read_dir(format!("/proc/{process}/fd"))?;
        let numbers =
            descriptors.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        self.tracker.add_existing_files(process, &numbers.collect::<Vec<u64>>());
        Ok(())
    }

    /// Adds `new`, threads of `processes` that are not recorded yet, to the kernel's list. Repeats
    /// this until these processes have no thread outside of the list.
    /// The kernel takes some 30 ms for each write of the list, in which short threads begin and
    /// end. All processes therefore share a write. The later ends and starts of threads have
    /// events. Fails if the kernel refuses, or if its list cannot be read: the threads outside of
    /// it are then not known, and the repeats would not end.
    fn list_threads_of(&self, processes: &[u32], mut new: Vec<u32>) -> io::Result<()> {
        if self.rest.is_some() {
            // The kernel has kept the list during a rest, and added the children.
            let listed = self.kernel_list()?;
            new.retain(|task| !listed.contains(task));
        }
        while !new.is_empty() {
            // The thread that starts programs stays in the list, though it ends with the
            // attachment: the kernel takes 90 ms to empty the list.
            self.record_events_of(&new)?;
            let listed = self.kernel_list()?;
            // A process that has ended has no threads.
            new = processes.iter().flat_map(|&it| group::threads(it).unwrap_or_default()).collect();
            new.retain(|task| !listed.contains(task));
        }
        Ok(())
    }

    /// Records a running program, with all children that it has by now and later. It need not be a
    /// child of this process. A program that has ended is no error. Once its parent has waited for
    /// it, its number may be another process's, which is then recorded. A child whose parent has
    /// ended belongs to another tree, and is not recorded.
    ///
    /// # Errors
    /// A process cannot be recorded.
    pub fn attach_program(&mut self, program: u32) -> io::Result<()> {
        self.program = Some(program);
        self.attach_with_descendants(program)
    }

    /// Records a running process with all children that it has by now and later. Fails if one of
    /// them cannot be recorded.
    pub(super) fn attach_with_descendants(&mut self, process: u32) -> io::Result<()> {
        let mut new_processes = vec![process];
        // The count leaves out this process, which may be a descendant.
        while self.attach_processes(&new_processes)? > 0 {
            // A process that is recorded by now reports its later children itself.
            new_processes = group::descendants(process)?;
            new_processes.retain(|process| !self.tracker.is_recorded(*process));
        }
        Ok(())
    }

    /// Records all processes of a control group and of the groups below it but this one, with their
    /// later children. Returns the number of processes. Repeated calls add processes that other
    /// programs move into the group.
    ///
    /// # Errors
    /// The folder is not a control group, or one of its processes cannot be recorded.
    pub fn attach_group(&mut self, group: &Path) -> io::Result<usize> {
        self.attach_processes(&group::processes(group)?)
    }

    /// Records all processes but this one and the kernel's threads, with their later children.
    /// Returns the number of processes found, which includes processes recorded before.
    ///
    /// # Errors
    /// A process cannot be recorded.
    pub fn attach_all(&mut self) -> io::Result<usize> {
        self.attach_processes(&group::all_processes()?)
    }

    /// Records processes with their later children, up to the first error. A process that has ended
    /// is no error. Recorded tasks are skipped, and so is this process: each of its reads of the
    /// kernel's buffers would add events to them. Returns the number of the other processes.
    pub(super) fn attach_processes(&mut self, processes: &[u32]) -> io::Result<usize> {
        let (mut new_processes, mut new_threads) = (Vec::new(), Vec::new());
        let others = processes.iter().filter(|process| **process != std::process::id());
        let count = others.clone().count();
        for &process in others {
            let mut threads = group::threads(process).unwrap_or_default();
            threads.retain(|task| !self.tracker.is_recorded(*task));
            if !threads.is_empty() {
                self.tracker.names().add_process(process);
                new_processes.push(process);
                new_threads.extend(threads);
            }
        }
        if new_processes.is_empty() {
            return Ok(count);
        }
        self.list_threads_of(&new_processes, new_threads)?;
        // The thread that kept the kernel's list from being empty is needed no longer.
        if self.starter.take().is_some() {
            self.begin_at((now_ns(), wall_ns()));
        }
        for process in new_processes {
            match self.attach_listed(process) {
                // The process has ended in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                attached => attached?,
            }
        }
        Ok(count)
    }

    /// Adds tasks to the kernel's list of the tasks whose events it reports, from this call on.
    /// Fails if the kernel refuses.
    pub(super) fn record_events_of(&self, tasks: &[u32]) -> io::Result<()> {
        let list: Vec<String> = tasks.iter().map(u32::to_string).collect();
        let path = self.tracing.tasks.instance.path().join("set_event_pid");
        let mut file = fs::OpenOptions::new().append(true).open(path)?;
        file.write_all(list.join(" ").as_bytes())
    }

    /// Numbers of the tasks whose events the kernel reports. Fails if the list cannot be read, as
    /// without a free descriptor.
    pub(super) fn kernel_list(&self) -> io::Result<HashSet<u32>> {
        let list = self.tracing.tasks.instance.read("set_event_pid").map_err(io::Error::other)?;
        Ok(list.lines().filter_map(|line| line.parse().ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};

    use super::*;

    /// Result of an attachment to a process, while the kernel's list is a file that can be written
    /// and not read as text. `None` where the kernel denies the recording or the mount.
    fn attached_without_a_list(file: &Path) -> Option<io::Result<()>> {
        let mut recorder = Recorder::start().ok()?;
        // SAFETY: the mounts of this thread alone change, and it ends after the test.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return None;
        }
        let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", flags).ok()?;
        let list = recorder.tracing.tasks.instance.path().join("set_event_pid");
        mount_bind(file, &list).ok()?;
        let mut process = Command::new("sleep").arg("60").spawn().unwrap();
        let attached = recorder.attach(process.id());
        process.kill().unwrap();
        process.wait().unwrap();
        unmount(&list, UnmountFlags::DETACH).unwrap();
        Some(attached)
    }

    /// Without the list, the threads that are not in it are not known.
    #[test]
    fn attachment_without_the_list_of_the_kernel_fails() {
        let name = format!("readpath-list-{}", std::process::id());
        let file: PathBuf = std::env::temp_dir().join(name);
        fs::write(&file, b"\xff").unwrap();
        let path = file.clone();
        let attached = std::thread::spawn(move || attached_without_a_list(&path)).join();
        fs::remove_file(&file).unwrap();
        match attached.unwrap() {
            None => println!("skipped: no recording or no mount"),
            Some(attached) => assert!(attached.is_err()),
        }
    }
}
