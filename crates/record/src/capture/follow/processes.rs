//! Recorded threads by process.

use super::super::names::FileNames;
use super::TaskTracker;

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
}
