//! Recorder of any program's reads, by the kernel's tracepoints, without a change to the program.
//!
//! Two private tracefs instances take the events. The first covers the recorded tasks and their
//! children: system calls, the page cache, faults, waits. The second covers events without a task:
//! requests of devices and evicted pages. The raw buffers of all processors are read, merged by
//! time, and turned into the records of a recording.
//!
//! Events dropped by the kernel for want of buffer space are counted, and the recording contains
//! the count. Both instances are removed when the recorder is dropped. Instances of a killed
//! process are removed by the next run.
//!
//! With [`Recorder::start_advised`] the recorder also prefetches into the kernel page cache for the
//! program.
//!
//! Recording needs root, and tracefs with the events of system calls (CONFIG_FTRACE_SYSCALLS).

use std::io::{self, Write};
use std::process::{Child, Command};
use std::time::Duration;

use readpath_trace::recording::{
    EventsLost, Record, RecordingEnd, RecordingMethod, RecordingStart, RecordingWriter,
};
use rustix::time::{ClockId, clock_gettime};

use crate::tracefs::{Instance, TracefsError};

mod advise;
mod aio_operations;
mod attach;
mod device_number;
mod event;
mod folios;
mod follow;
mod group;
mod kcmp;
mod layout;
mod main_threads;
mod maps;
mod mounts;
mod names;
pub mod preload;
mod rest;
mod ring;
pub mod sampled;
mod stacks;
mod state_samples;
mod submitted;
mod tables;
mod time_split;
mod tracing;
mod uring_operations;

pub use advise::{AdviceResult, StopReason, Waits};
pub use tracing::{Tracing, TracingPermit, is_initial_pid_namespace};

pub(crate) use device_number::is_without_block_device;
pub(crate) use names::path_of_text;

use advise::{Advisor, SHORT_BYTES_MAX};
use event::{Decoder, EventData, TraceEvent};
use follow::TaskTracker;
use main_threads::MainThreads;
use names::System;
use rest::Rest;
use time_split::TimeSplit;
use tracing::{ALL_EVENTS, Starter};

/// Size in KiB, chosen, of a sub-buffer, which is read at once, where the kernel allows the choice.
const SUB_BUFFER_KIB: usize = 64;

/// Age in nanoseconds at which events are processed. Earlier ones of other processors may still
/// follow younger events.
const MARGIN_NS: u64 = 1_000_000;

/// Number of [`Recorder::record`] calls between two counts of lost events. A count reads one file
/// per processor.
const CALLS_PER_LOST_COUNT: u32 = 16;

/// Minimum interval, chosen, between two reads of the buffers with advice. A read costs
/// microseconds.
const READ_INTERVAL_MIN: Duration = Duration::from_micros(150);

/// A running recorder.
#[derive(Debug)]
pub struct Recorder {
    /// The two tracefs instances, with their decoders and readers.
    tracing: Tracing,
    /// Thread that can start the program. `None` once it has, or after an attachment.
    starter: Option<Starter>,
    /// State of the recorded tasks, which turns events into records.
    tracker: TaskTracker<System>,
    /// Times by activity. `None` for an advised program, which must not wait for the recorder, and
    /// for a recording that is only looked at.
    time_split: Option<TimeSplit>,
    /// Events read but not yet processed, because earlier ones may follow.
    events: Vec<TraceEvent>,
    /// Buffer for one sub-buffer of the kernel.
    sub_buffer: Vec<u8>,
    /// Start of the recording by the monotonic clock.
    start_ns: u64,
    /// Start of the recording in nanoseconds since 1970.
    wall_ns: u64,
    /// Number of calls that have taken records, to count the lost events in every sixteenth.
    record_calls: u32,
    /// Number of lost events that the recording contains.
    lost: u64,
    /// Prefetcher for the recorded programs, if the recording is advised.
    advisor: Option<Advisor>,
    /// Process number of the recorded program, which was started here or attached as the program.
    /// `None` for other attached processes.
    program: Option<u32>,
    /// Time of the end of that program.
    ended_ns: Option<u64>,
    /// Processes whose main thread has ended before another thread.
    main_threads: MainThreads,
    /// Rests while no file can be advised. `None`: the recorder never rests.
    rest: Option<Rest>,
}

impl Recorder {
    /// Prepares a recording without any task.
    ///
    /// # Errors
    /// [`TracefsError::Unavailable`] without root, without tracefs, or without the events.
    pub fn start() -> Result<Recorder, TracefsError> {
        Recorder::start_with(None, Decoder::of_tasks, Some(TimeSplit::start()))
    }

    /// Prepares a recording that is only looked at: without times by activity, which need the stack
    /// of each sleep.
    ///
    /// # Errors
    /// As for [`start`](Recorder::start).
    pub fn start_live() -> Result<Recorder, TracefsError> {
        Recorder::start_with(None, Decoder::of_tasks_without_stacks, None)
    }

    /// Prepares to prefetch for recorded programs. At most `budget_bytes` bytes are prefetched and
    /// not yet used. The recording has no times by activity. With a `permit`, part of the
    /// preparation is done already.
    ///
    /// # Errors
    /// As for [`start`](Recorder::start).
    pub fn start_advised(
        budget_bytes: u64,
        permit: Option<TracingPermit>,
    ) -> Result<Recorder, TracefsError> {
        let mut recorder = Recorder::start_with(permit, Decoder::of_tasks_without_stacks, None)?;
        // By default a reader is woken only when a buffer is half full. Older kernels lack the file
        // and always wake at once.
        let _ = recorder.tracing.tasks.instance.write("buffer_percent", "0");
        recorder.advisor = Some(Advisor::new(budget_bytes));
        Ok(recorder)
    }

    /// Prepares a recording, from a `permit` if a part is done already. `enable_events` enables the
    /// events of the recorded tasks and returns their decoder. `time_split`: the state for times by
    /// activity, if they are wanted. Fails if the kernel refuses tracing or lacks a required event.
    fn start_with(
        permit: Option<TracingPermit>,
        enable_events: fn(&Instance) -> Result<Decoder, TracefsError>,
        time_split: Option<TimeSplit>,
    ) -> Result<Recorder, TracefsError> {
        let system = System::new();
        let (tracing, starter) = Tracing::start(permit, enable_events)?;
        // Until `begin_at` moves the start to the first task.
        let wall_ns = wall_ns();
        let start_ns = now_ns();
        let mut tracker = TaskTracker::new(system, start_ns);
        // Without the tracer of submissions, reads by AIO and io_uring are only counted.
        if tracing.submissions.is_some() {
            tracker.expect_submissions();
        }
        Ok(Recorder {
            tracing,
            starter: Some(starter),
            tracker,
            time_split,
            events: Vec::new(),
            sub_buffer: vec![0; SUB_BUFFER_KIB << 10],
            start_ns,
            wall_ns,
            record_calls: 0,
            lost: 0,
            advisor: None,
            program: None,
            ended_ns: None,
            main_threads: MainThreads::default(),
            rest: None,
        })
    }

    /// Events that this kernel lacks, each with the resulting gap in the recording.
    pub fn gaps(&self) -> Vec<String> {
        [self.tracing.tasks.decoder.gaps(), self.tracing.system.decoder.gaps()].concat()
    }

    /// Returns the first record of the recording. `program` is the name of the program's file.
    pub fn first_record(&self, program: &str) -> Record {
        first_record(RecordingMethod::Tracepoints, self.wall_ns, program)
    }

    /// Looks up no paths of files that cannot be advised, for a recording that is not kept.
    pub fn leave_short_files_unnamed(&mut self) {
        self.tracker.names().leave_unnamed(SHORT_BYTES_MAX);
    }

    /// Starts a program and records it with all its children. The recording begins with it.
    ///
    /// # Errors
    /// The program cannot be started, or the recorder has a program or an attached process already.
    pub fn spawn(&mut self, command: Command) -> io::Result<Child> {
        let started_before = || io::Error::other("this recorder has its program");
        let (child, begun) = self.starter.take().ok_or_else(started_before)?.spawn(command)?;
        self.begin_at(begun);
        // The name is empty until an event reports it.
        self.tracker.add_task(child.id(), child.id(), "");
        self.tracker.names().add_process(child.id());
        if let Some(times) = &mut self.time_split {
            times.add_started(child.id());
        }
        self.program = Some(child.id());
        Ok(child)
    }

    /// Moves the start of the recording to a later time of the monotonic clock and of the wall
    /// clock, when its first task begins. The preparation takes the kernel a tenth of a second,
    /// which is no part of the recording.
    fn begin_at(&mut self, (start_ns, wall_ns): (u64, u64)) {
        (self.start_ns, self.wall_ns) = (start_ns, wall_ns);
        self.tracker.begin_at(start_ns);
    }

    /// Returns true when no recorded task lives, by the events processed so far.
    pub fn has_no_tasks(&self) -> bool {
        self.tracker.has_no_tasks()
    }

    /// Sleeps for `span`. The advisor is *awake* for a while after a useful prefetch. It then gets
    /// the events as soon as they arrive, at most once per `READ_INTERVAL_MIN`. Otherwise, and
    /// without an advisor, the events are read once, at the end. A resting recorder (module `rest`)
    /// has no events. It samples the files in use instead, at the end.
    ///
    /// # Errors
    /// The buffers cannot be read.
    pub fn wait(&mut self, span: Duration) -> io::Result<()> {
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = now_ns().saturating_add(span_ns);
        loop {
            let now_ns = now_ns();
            let remaining = Duration::from_nanos(end_ns.saturating_sub(now_ns));
            if !self.advisor.as_ref().is_some_and(|advisor| advisor.is_awake(now_ns)) {
                std::thread::sleep(remaining);
                return match self.is_resting() {
                    true => self.sample_at_rest(),
                    false => self.advise_on_new_events(),
                };
            }
            if remaining.is_zero() {
                return Ok(());
            }
            // Returns as soon as a buffer has events.
            self.tracing.tasks.sleep(remaining)?;
            self.advise_on_new_events()?;
            std::thread::sleep(READ_INTERVAL_MIN.min(remaining));
        }
    }

    /// Reads the events of the recorded tasks, and the names of the files that they have opened.
    /// The advisor gets both, and then continues its whole-file prefetches. Without an advisor they
    /// are only kept. Fails if a buffer cannot be read.
    fn advise_on_new_events(&mut self) -> io::Result<()> {
        let old_count = self.events.len();
        self.read_task_events(now_ns())?;
        // With an advisor the calls are frequent. Names are then read only after new events.
        if self.advisor.is_none() || self.events.len() > old_count {
            self.read_names()?;
        }
        let new_events = &mut self.events[old_count..];
        if let Some(advisor) = self.advisor.as_mut().filter(|_| !new_events.is_empty()) {
            let (names, mappings) = self.tracker.names_and_mappings();
            new_events.sort_by_key(|event| event.at_ns);
            advisor.on_task_events(new_events, names, mappings, now_ns());
        }
        if let Some(advisor) = &mut self.advisor {
            advisor.continue_whole_files(now_ns());
        }
        Ok(())
    }

    /// Reads the events of the recorded tasks up to `end_ns`, and notes the processes that they
    /// start. Fails if a buffer cannot be read.
    fn read_task_events(&mut self, end_ns: u64) -> io::Result<()> {
        let old_count = self.events.len();
        self.tracing.tasks.read(end_ns, &mut self.sub_buffer, &mut self.events)?;
        for event in &self.events[old_count..] {
            let EventData::NewTask { task, is_kernel_io, .. } = event.data else { continue };
            // The number of a thread names no process, and has no effect.
            self.tracker.names().add_process(task);
            if is_kernel_io {
                // The kernel adds the children of a recorded task to the list, but not the threads
                // of io_uring. A thread that has ended is refused, and needs no events.
                let _ = self.record_events_of(&[task]);
            }
        }
        Ok(())
    }

    /// Keeps the names of the files that recorded processes have opened since the last call. Opens
    /// after the start of this call may stay for the next one. Fails if a buffer cannot be read.
    fn read_names(&mut self) -> io::Result<()> {
        // Renews the limit on page table reads, which holds until the next call.
        self.tracker.names().allow_lookups();
        let mut reports_left = self.tracker.names().queued_reports();
        while let Some(reports) = self.tracker.names().next_queued_reports(&mut reports_left) {
            // The start of a process comes before its opens, and is in the buffers by now.
            self.read_task_events(now_ns())?;
            self.tracker.names().keep(reports);
        }
        Ok(())
    }

    /// Writes the events since the last call to a recording. Call it about a hundred times a
    /// second, because events beyond the kernel's buffers are lost.
    ///
    /// # Errors
    /// The recording cannot be written, or the buffers cannot be read.
    pub fn record<W: Write>(&mut self, writer: &mut RecordingWriter<W>) -> io::Result<()> {
        self.take_records(&mut |record| writer.put(record))
    }

    /// Time in nanoseconds since the start of the recording, as in its records.
    pub fn elapsed_ns(&self) -> u64 {
        now_ns().saturating_sub(self.start_ns)
    }

    /// Passes the records of the events since the last call to `on_record`. Events of the last
    /// millisecond (`MARGIN_NS`) stay for the next call. The advisor, if there is one, judges its
    /// advice. A resting recorder passes no record. To be called as often as
    /// [`record`](Recorder::record).
    ///
    /// # Errors
    /// The buffers cannot be read, or `on_record` failed.
    pub fn take_records(
        &mut self,
        on_record: &mut dyn FnMut(Record) -> io::Result<()>,
    ) -> io::Result<()> {
        let now_ns = now_ns();
        if self.is_resting() {
            // The BPF programs of the submissions go on at a rest. This read empties their ring,
            // and discards the events of the pause.
            return self.read_global_events(now_ns);
        }
        self.advise_on_new_events()?;
        self.read_global_events(now_ns)?;
        let limit_ns = now_ns - MARGIN_NS;
        self.process_until(limit_ns);
        // Attaches processes again whose main thread was replaced and that the kernel has dropped.
        self.attach_replaced()?;
        let records: Vec<Record> = self.tracker.take_final_records(limit_ns).collect();
        self.pass_on_records(records, on_record)?;
        if let Some(advisor) = &mut self.advisor {
            advisor.judge_periodically(now_ns);
            // The waits in these records may have started the advice, or a pause of it may be over.
            // From then on each event is needed at once.
            advisor.continue_whole_files(now_ns);
        }
        self.record_calls += 1;
        if self.record_calls.is_multiple_of(CALLS_PER_LOST_COUNT) {
            self.put_lost(on_record)?;
        }
        // Only a recorder with `rest`, of a program that uses short files, begins a rest here.
        self.rest_if_short()
    }

    /// True if an advised program will get no more advice. Without a recording to write, the events
    /// are then of no use.
    pub fn has_given_up(&mut self) -> bool {
        self.advisor.as_mut().is_some_and(Advisor::has_given_up)
    }

    /// Ends without a recording. Returns the objects in the kernel, which a drop removes.
    pub fn cancel(mut self) -> Tracing {
        // The reports of opened files, whose close is slow, are removed with these objects.
        self.tracing.reports = self.tracker.names().take_reports();
        self.tracing
    }

    /// Ends the recording: stops the events, writes the remaining records, and last the end record.
    /// Also returns the objects in the kernel, which a drop removes. `processor_ns`: processor time
    /// of the program, if it is known. `has_exited` is true if the program has ended.
    ///
    /// # Errors
    /// As for [`record`](Recorder::record).
    pub fn finish<W: Write>(
        mut self,
        mut writer: RecordingWriter<W>,
        processor_ns: Option<u64>,
        has_exited: bool,
    ) -> io::Result<(RecordingSummary, Tracing)> {
        let end_ns = now_ns();
        // An earlier end of the program has ended the times by activity already.
        if self.ended_ns.is_none() {
            self.end_times_at(end_ns);
        }
        // The kernel adds no event while the remaining ones are read.
        for instance in [&self.tracing.tasks, &self.tracing.system] {
            instance.instance.write("tracing_on", "0").map_err(io::Error::other)?;
        }
        self.read_task_events(ALL_EVENTS)?;
        self.tracing.system.read(ALL_EVENTS, &mut self.sub_buffer, &mut self.events)?;
        if let Some(submissions) = &mut self.tracing.submissions {
            submissions.read(&mut self.events);
        }
        self.read_names()?;
        self.process_until(u64::MAX);
        let records: Vec<Record> = self.tracker.finish(end_ns).collect();
        let mut write = |record| writer.put(record);
        self.pass_on_records(records, &mut write)?;
        self.put_lost(&mut write)?;
        // The records at the end of the recording: times by activity, requests of other tasks, end.
        // `end_ns` is later than the program's end by the delay of `wait` and of the last events.
        let end_ns = self.ended_ns.unwrap_or(end_ns);
        let at_ns = end_ns.saturating_sub(self.start_ns);
        // Without all events of the scheduler, the activities are not known.
        if let Some(times) = self.time_split.take().filter(|_| self.lost == 0) {
            self.pass_on_records(times.finish(self.start_ns, end_ns), &mut write)?;
        }
        let others = self.tracker.take_others(at_ns);
        self.pass_on_records(others, &mut write)?;
        writer.put(Record::End(RecordingEnd { at_ns, processor_ns, has_exited }))?;
        writer.finish()?.flush()?;
        let summary = RecordingSummary {
            seconds: at_ns as f64 / 1e9,
            lost: self.lost,
            unlocated_reads: self.tracker.unlocated_reads(),
            incomplete_programs: self.main_threads.incomplete_programs,
            help: self.advisor.map(Advisor::finish),
        };
        self.tracing.reports = self.tracker.names().take_reports();
        Ok((summary, self.tracing))
    }

    /// Reads the events without a task up to `end_ns` and the submitted asynchronous reads, and
    /// passes them to the advisor. Fails if a buffer cannot be read.
    fn read_global_events(&mut self, end_ns: u64) -> io::Result<()> {
        let old_count = self.events.len();
        self.tracing.system.read(end_ns, &mut self.sub_buffer, &mut self.events)?;
        if let Some(submissions) = &mut self.tracing.submissions {
            submissions.read(&mut self.events);
        }
        if let Some(advisor) = &mut self.advisor {
            self.events[old_count..].sort_by_key(|event| event.at_ns);
            self.events[old_count..].iter().for_each(|event| advisor.on_device_event(event));
        }
        Ok(())
    }

    /// Passes each record to the advisor, if there is one, and then to `on_record`. Ends at the
    /// first error of `on_record`.
    fn pass_on_records(
        &mut self,
        records: Vec<Record>,
        on_record: &mut dyn FnMut(Record) -> io::Result<()>,
    ) -> io::Result<()> {
        for record in records {
            if let Some(advisor) = &mut self.advisor {
                if let Record::File(file) = &record
                    && let Some(inode) = self.tracker.inode_of_file(file.file)
                {
                    advisor.on_file(file.file, inode);
                }
                advisor.on_record(&record);
            }
            on_record(record)?;
        }
        Ok(())
    }

    /// Removes the events up to `limit_ns` and processes them in the order of their times. Events
    /// after the end of the program do not count in its times by activity.
    fn process_until(&mut self, limit_ns: u64) {
        self.events.sort_by_key(|event| event.at_ns);
        let count = self.events.partition_point(|event| event.at_ns <= limit_ns);
        let events: Vec<TraceEvent> = self.events.drain(..count).collect();
        for event in events {
            // Notes the program's end, which also ends the times by activity.
            self.note_thread_event(&event);
            // Children of the program may live on. Their later events have no effect here.
            if let Some(times) = &mut self.time_split {
                times.process(&event);
            }
            self.tracker.process(event);
        }
    }

    /// Passes on a record of the events lost since the last call, if any. Returns the error of
    /// `on_record`.
    fn put_lost(&mut self, on_record: &mut dyn FnMut(Record) -> io::Result<()>) -> io::Result<()> {
        let submissions = self.tracing.submissions.as_ref().map_or(0, submitted::Submissions::lost);
        let traced = self.tracing.tasks.instance.lost() + self.tracing.system.instance.lost();
        let lost = traced + submissions;
        if lost > self.lost {
            let at_ns = now_ns() - self.start_ns;
            on_record(Record::Lost(EventsLost { at_ns, count: lost - self.lost }))?;
            self.lost = lost;
        }
        Ok(())
    }
}

/// Summary of a recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordingSummary {
    /// Duration in seconds.
    pub seconds: f64,
    /// Number of events dropped by the kernel.
    pub lost: u64,
    /// Number of reads by AIO and io_uring with unknown file or range. They are missing from the
    /// recording.
    pub unlocated_reads: u64,
    /// Number of programs executed by a thread whose first reads are missing.
    pub incomplete_programs: u32,
    /// Result of the advice, if the program was advised.
    pub help: Option<AdviceResult>,
}

/// Time of the monotonic clock in nanoseconds.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Time of the wall clock in nanoseconds since 1970.
fn wall_ns() -> u64 {
    let wall = clock_gettime(ClockId::Realtime);
    wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64
}

/// Returns the first record of a recording made on this machine. `wall_ns` is its start since 1970,
/// `program` the name of the program's file.
fn first_record(source: RecordingMethod, wall_ns: u64, program: &str) -> Record {
    let memory = rustix::system::sysinfo();
    Record::Start(RecordingStart {
        source,
        wall_ns,
        page_bytes: rustix::param::page_size() as u64,
        memory_bytes: memory.totalram as u64 * u64::from(memory.mem_unit),
        program: program.to_owned(),
        system: readpath_os::system_name(),
    })
}
