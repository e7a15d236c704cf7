//! Recorded threads by process, and the programs that they execute.

use readpath_trace::recording::{ExecutableMapped, Record};

use super::super::names::{FileNames, NamedFile};
use super::{RecordedTask, TaskTracker};

impl<N: FileNames> TaskTracker<N> {
    /// Returns the process of a recorded thread.
    pub fn process_of(&self, task: u32) -> Option<u32> {
        self.tasks.get(&task).map(|state| state.process)
    }

    /// Returns the recorded threads of a process.
    pub fn threads_of(&self, process: u32) -> Vec<u32> {
        let threads = self.tasks.iter().filter(|(_, state)| state.process == process);
        threads.map(|(&task, _)| task).collect()
    }

    /// Forgets all recorded tasks, with their open files and mappings.
    pub fn forget_tasks(&mut self) {
        for task in self.tasks.keys().copied().collect::<Vec<u32>>() {
            self.remove_task(task);
        }
    }

    /// Records that `task`, whose number was `former` (0 if unknown), executes a program. The two
    /// differ if the call came from another thread than the main one: that thread gets the number
    /// of the main thread, and keeps its name. The new program has none of the mappings, and keeps
    /// the descriptors.
    pub(super) fn on_exec(&mut self, at_ns: u64, task: u32, former: u32) {
        if former != task
            && let Some(state) = self.tasks.get(&former)
        {
            let (process, table, name) = (state.process, state.table, state.name.clone());
            // The main thread has ended, but its event may be lost.
            self.end_task(at_ns, task);
            let new_state = RecordedTask { process, table, name, ..RecordedTask::default() };
            self.tasks.insert(task, new_state);
            self.end_task(at_ns, former);
        }
        if let Some(process) = self.process_of(task) {
            // No next fault is known (`None`).
            self.end_fault(task, None);
            self.maps.remove_process(process);
            self.record_executables(at_ns, process);
        }
    }

    /// Records the files that `process` has mapped for execution, as `/proc` reports them: its
    /// program and the loader have no event of their own.
    pub(super) fn record_executables(&mut self, at_ns: u64, process: u32) {
        for (inode, named) in self.names.executables(process) {
            // A reported open has the path of an overlay, but not always a path or a length.
            let opened = self.names.file(inode).filter(|opened| !opened.path.is_empty());
            let named = match opened {
                Some(opened) => NamedFile { bytes: opened.bytes.or(named.bytes), ..opened },
                None => named,
            };
            let file = self.file_number(inode, Some(named));
            self.record_executable(at_ns, file);
        }
    }

    /// Records once that a file was mapped for execution.
    pub(super) fn record_executable(&mut self, at_ns: u64, file: u32) {
        if self.maps.add_executable(file) {
            self.out.put(at_ns, Record::Executable(ExecutableMapped { at_ns, file }));
        }
    }
}
