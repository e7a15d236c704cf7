//! Main threads that end before their process.
//!
//! A thread that executes a program replaces the main thread: the kernel ends that one, and gives
//! its number to the other thread. With the end it has removed the number from the list of recorded
//! tasks, and there is no event for the old number of the thread. The process is therefore attached
//! again. A main thread that only ends leaves a zombie until the last thread has ended.

use std::{fs, io};

use readpath_os::proc_text;

use super::event::{EventData, TraceEvent};
use super::{Recorder, now_ns};

/// Main thread of a process after the end of the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MainThread {
    /// The other threads run on, or one of them has not yet replaced the main thread.
    Ended,
    /// A thread with another number before has executed a program.
    Replaced,
    /// The process has ended.
    NoProcess,
}

/// Returns the state of a process's main thread. `threads`: its other recorded threads. A thread
/// that ends keeps its state for a moment, but then the other threads still have their numbers.
fn main_thread(process: u32, threads: &[u32]) -> MainThread {
    let folder = format!("/proc/{process}/task");
    let stat = fs::read_to_string(format!("{folder}/{process}/stat")).unwrap_or_default();
    let state = proc_text::stat_fields(&stat).and_then(|mut fields| fields.next());
    let has_threads =
        threads.iter().any(|thread| fs::exists(format!("{folder}/{thread}")).unwrap_or(false));
    match state {
        None => MainThread::NoProcess,
        Some("Z" | "X") => MainThread::Ended,
        Some(_) if has_threads => MainThread::Ended,
        Some(_) => MainThread::Replaced,
    }
}

impl Recorder {
    /// Notes the end of a thread, before the tracker processes it. The program ends with its last
    /// thread.
    pub(super) fn note_end(&mut self, at_ns: u64, task: u32) {
        let Some(process) = self.tracker.process_of(task) else { return };
        let is_last = self.tracker.threads_of(process).len() == 1;
        if is_last && self.program == Some(process) {
            self.ended_ns = Some(at_ns);
        }
        if !is_last && process == task {
            self.ended_main_threads.push(process);
        }
    }

    /// Attaches the processes whose main thread was replaced, and ends the former numbers of the
    /// threads that replaced it. Fails if a process cannot be recorded.
    pub(super) fn attach_replaced(&mut self) -> io::Result<()> {
        for process in std::mem::take(&mut self.ended_main_threads) {
            let former_threads = self.tracker.threads_of(process);
            if former_threads.is_empty() {
                continue;
            }
            match main_thread(process, &former_threads) {
                MainThread::Ended => {
                    self.ended_main_threads.push(process);
                    continue;
                }
                MainThread::Replaced => {
                    // The kernel misses some switches of the new task: its times are not known.
                    self.time_split = None;
                    self.attach_with_descendants(process)?;
                }
                MainThread::NoProcess => {}
            };
            self.end_threads(&former_threads);
        }
        Ok(())
    }

    /// Processes the ends of threads for which the kernel has no event.
    fn end_threads(&mut self, threads: &[u32]) {
        for &task in threads {
            let at_ns = now_ns();
            if !self.tracker.is_recorded(task) {
                continue;
            }
            self.note_end(at_ns, task);
            let event = TraceEvent { at_ns, task, data: EventData::TaskEnds };
            if let Some(times) = &mut self.time_split {
                times.process(&event);
            }
            self.tracker.process(event);
        }
    }
}
