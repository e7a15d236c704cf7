//! Main threads that end before their process.
//!
//! A thread that executes a program replaces the main thread: the kernel ends that one, and gives
//! its number to the other thread. The event of the exec names both numbers. A main thread that
//! only ends leaves a zombie until the last thread has ended.
//!
//! Linux before 5.19 removes the number of the main thread from the list of recorded tasks at its
//! end, which may be before the exec. The process is then attached again, and its reads until then
//! are missing.

use std::{fs, io};

use readpath_os::proc_text;

use super::event::{EventData, TraceEvent};
use super::{Recorder, now_ns};

/// Processes whose main thread has ended before another thread.
#[derive(Debug, Default)]
pub(super) struct MainThreads {
    /// Processes without a main thread, as far as the events show.
    ended: Vec<EndedMainThread>,
    /// Processes that execute another program and that the kernel reports no longer.
    lost: Vec<u32>,
    /// Number of programs so far whose first reads are missing.
    pub incomplete_programs: u32,
}

/// Process whose main thread has ended before another thread.
#[derive(Clone, Copy, Debug)]
struct EndedMainThread {
    /// Number of the process.
    process: u32,
    /// True if a thread had replaced the main thread by the last check, or the process had ended.
    is_gone: bool,
}

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

/// Returns the state of a process's main thread. `threads`: its other recorded threads. A main
/// thread that ends seems to run for a moment. It counts as ended while one of `threads` exists:
/// the thread that replaces it ends all others and gives up its own number.
fn main_thread(process: u32, threads: &[u32]) -> MainThread {
    let folder = format!("/proc/{process}/task");
    let stat = fs::read_to_string(format!("{folder}/{process}/stat")).unwrap_or_default();
    let state = proc_text::stat_fields(&stat).and_then(|mut fields| fields.next());
    let has_threads =
        threads.iter().any(|thread| fs::exists(format!("{folder}/{thread}")).unwrap_or(false));
    match state {
        None => MainThread::NoProcess,
        // Z is a zombie, X is dead.
        Some("Z" | "X") => MainThread::Ended,
        Some(_) if has_threads => MainThread::Ended,
        Some(_) => MainThread::Replaced,
    }
}

impl Recorder {
    /// Notes an event of an end or an exec of a thread, before the tracker processes it. The
    /// program ends with its last thread.
    pub(super) fn note_thread_event(&mut self, event: &TraceEvent) {
        match event.data {
            EventData::TaskEnds => self.note_end(event.at_ns, event.task),
            EventData::Exec { former } if self.tracker.is_recorded(former) => {
                // The process has a main thread again. The tracker renames the thread.
                self.main_threads.ended.retain(|ended| ended.process != event.task);
                // Linux before 5.19 may have removed the number from its list. Without the list,
                // the number is attached again, which reports a failure.
                let is_listed = || self.kernel_list().is_ok_and(|it| it.contains(&event.task));
                if former != event.task && !is_listed() {
                    self.main_threads.lost.push(event.task);
                }
            }
            _ => {}
        }
    }

    /// Notes the end of a thread. The end of the last one is the end of its process. A main thread
    /// that ends before others is watched, since one of them may replace it.
    fn note_end(&mut self, at_ns: u64, task: u32) {
        let Some(process) = self.tracker.process_of(task) else { return };
        let is_last = self.tracker.threads_of(process).len() == 1;
        if is_last && self.program == Some(process) {
            self.ended_ns = Some(at_ns);
            self.end_times_at(at_ns);
        }
        if !is_last && process == task {
            let is_gone = false;
            self.main_threads.ended.push(EndedMainThread { process, is_gone });
        }
    }

    /// Attaches the processes whose main thread was replaced and that the kernel does not report.
    /// Fails if a process cannot be recorded.
    pub(super) fn attach_replaced(&mut self) -> io::Result<()> {
        for ended in std::mem::take(&mut self.main_threads.ended) {
            let former_threads = self.tracker.threads_of(ended.process);
            if former_threads.is_empty() {
                continue;
            }
            match main_thread(ended.process, &former_threads) {
                MainThread::Ended => self.main_threads.ended.push(ended),
                // The event of the exec or of the last end may be among the next ones, so the
                // process is checked once more.
                _ if !ended.is_gone => {
                    self.main_threads.ended.push(EndedMainThread { is_gone: true, ..ended });
                }
                MainThread::Replaced => {
                    // First, because their last activity would count during the attachment.
                    self.end_threads(&former_threads);
                    self.main_threads.lost.push(ended.process);
                }
                // The last thread has ended under a number that the kernel no longer reported.
                MainThread::NoProcess => {
                    self.main_threads.incomplete_programs += 1;
                    self.note_last_end(ended.process);
                    self.end_threads(&former_threads);
                }
            }
        }
        for process in std::mem::take(&mut self.main_threads.lost) {
            self.main_threads.incomplete_programs += 1;
            // At once, as the attachment takes longer. It lists the number again, which has no
            // effect, and reports a failure. The process may have children that were not reported.
            let _ = self.record_events_of(&[process]);
            self.attach_with_descendants(process)?;
        }
        Ok(())
    }

    /// Notes the end of a process whose last thread has no event of its end.
    fn note_last_end(&mut self, process: u32) {
        if self.program == Some(process) {
            let ended_ns = now_ns();
            self.ended_ns = Some(ended_ns);
            self.end_times_at(ended_ns);
        }
    }

    /// Ends the times by activity, if they are recorded.
    pub(super) fn end_times_at(&mut self, end_ns: u64) {
        if let Some(times) = &mut self.time_split {
            times.end_at(end_ns);
        }
    }

    /// Processes the ends of threads for which the kernel has no event.
    fn end_threads(&mut self, threads: &[u32]) {
        for &task in threads {
            let event = TraceEvent { at_ns: now_ns(), task, data: EventData::TaskEnds };
            if let Some(times) = &mut self.time_split {
                times.process(&event);
            }
            self.tracker.process(event);
        }
    }
}
