//! Watching what any program reads, by the kernel's tracepoints, without a change to it.
//!
//! Two tracefs instances of our own take the events. One has those of the watched tasks and of what
//! they start: system calls, the page cache, faults, waits. The other has what happens in nobody's
//! context: a device's requests, and pages that leave the page cache. Their buffers are read as they
//! are, processor by processor, merged by time, and turned into the records of a recording.
//!
//! What the kernel had to drop because nobody read its buffers in time is counted, and is in the
//! recording. Both instances go when the watch is dropped; those of a killed process go with the
//! next run.
//!
//! While a program is watched it can be helped ([`Recorder::advise`]): what it will read is brought into the
//! page cache before it asks.
//!
//! Needs root, and tracefs with the events of system calls (CONFIG_FTRACE_SYSCALLS).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use readpath_sim::recording::{
    EventsLost, Record, RecordingEnd, RecordingMethod, RecordingStart, RecordingWriter,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::tracefs::{Instance, TracefsError};

mod advise;
mod event;
mod folios;
mod follow;
mod group;
mod layout;
mod maps;
mod names;
pub mod preload;
mod ring;
pub mod sampled;
mod submitted;
mod tables;

pub use advise::{Help, Vain, Waits};

use advise::Advisor;
use event::{Decoder, TraceEvent, What};
use follow::Follow;
use names::System;

/// Memory of all buffers of an instance together at most, and of one processor's at least and at
/// most. 50,000 reads a second make about 10 MB of events a second.
const BUFFERS_KIB_MAX: usize = 256 << 10;
const BUFFER_KIB_MIN: usize = 1 << 10;
const BUFFER_KIB_MAX: usize = 16 << 10;

/// A part of a buffer that is read at once, where the kernel lets it be chosen.
const PART_KIB: usize = 64;

/// Events of the last moment may not all be readable yet.
const MARGIN_NS: u64 = 1_000_000;

/// Events are counted as lost every so many rounds: that reads a file for each processor.
const ROUNDS_A_COUNT: u32 = 16;

/// A helped program's events are looked for no more often than this: each look costs some microseconds.
const LOOK: Duration = Duration::from_micros(150);

/// A running watch.
#[derive(Debug)]
pub struct Recorder {
    tasks: Side,
    all: Side,
    /// Reads that are given to AIO and io_uring; none where BPF is refused.
    submissions: Option<submitted::Submissions>,
    follow: Follow<System>,
    /// Events that are not taken yet, because earlier ones may come.
    events: Vec<TraceEvent>,
    buffer: Vec<u8>,
    start_ns: u64,
    wall_ns: u64,
    rounds: u32,
    lost: u64,
    advisor: Option<Advisor>,
    /// Whether somebody was watched who ran already.
    is_attached: bool,
    /// The program that was started here, and when it ended.
    program: Option<u32>,
    ended_ns: Option<u64>,
}

/// One of the two instances.
#[derive(Debug)]
struct Side {
    /// Dropped before the instance: it is busy while they are open.
    pipes: Vec<File>,
    decoder: Decoder,
    instance: Instance,
}

impl Recorder {
    /// Prepares to watch; nobody is watched yet.
    ///
    /// # Errors
    /// [`TracefsError::Unavailable`] without root, without tracefs, or without the events.
    pub fn start() -> Result<Recorder, TracefsError> {
        let system = System::new();
        let tasks = Side::start(Decoder::of_tasks, true)?;
        let all = Side::start(Decoder::of_all, false)?;
        // Without, such reads are counted.
        let submissions = submitted::Submissions::start(&tasks.instance).ok();
        let wall_ns = wall_ns();
        let start_ns = now_ns();
        let mut follow = Follow::new(system, start_ns);
        if submissions.is_some() {
            follow.expect_submissions();
        }
        Ok(Recorder {
            submissions,
            tasks,
            all,
            follow,
            events: Vec::new(),
            buffer: vec![0; PART_KIB << 10],
            start_ns,
            wall_ns,
            rounds: 0,
            lost: 0,
            advisor: None,
            is_attached: false,
            program: None,
            ended_ns: None,
        })
    }

    /// The events that this kernel lacks, by name.
    pub fn lacking(&self) -> impl Iterator<Item = &str> {
        self.tasks.decoder.lacking.iter().chain(&self.all.decoder.lacking).map(String::as_str)
    }

    /// The first record; `program` is the name of its file.
    pub fn first_record(&self, program: &str) -> Record {
        first_record(RecordingMethod::Tracepoints, self.wall_ns, program)
    }

    /// Starts a program and watches it, and all that it starts.
    ///
    /// # Errors
    /// The program can't be started, or not be watched.
    pub fn spawn(&mut self, mut command: Command) -> io::Result<Child> {
        let path = self.tasks.instance.path().join("set_event_pid");
        // Who is started by a watched task is watched from its first step on. So the task that
        // starts the program is watched, and ends with it.
        let starter = std::thread::spawn(move || {
            fs::write(path, rustix::thread::gettid().as_raw_nonzero().to_string())?;
            command.spawn()
        });
        let child =
            starter.join().map_err(|_| io::Error::other("the starting thread failed"))??;
        self.follow.watch(child.id(), child.id(), "");
        self.program = Some(child.id());
        Ok(child)
    }

    /// Watches a process that runs, and all that it starts from now on.
    ///
    /// # Errors
    /// There is none of this number, or it can't be watched.
    pub fn attach(&mut self, process: u32) -> io::Result<()> {
        let mut tasks = Vec::new();
        for entry in fs::read_dir(format!("/proc/{process}/task"))? {
            let path = entry?.path();
            let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
            let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            tasks.extend(number.map(|number: u32| (number, name.trim_end().to_owned())));
        }
        tasks.retain(|(number, _)| !self.follow.has_length_marks(*number));
        if tasks.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = tasks.iter().map(|(number, _)| number.to_string()).collect();
        // The first ones stand in place of the task that nobody is interested in.
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).append(self.is_attached).truncate(!self.is_attached);
        let mut file = options.open(self.tasks.instance.path().join("set_event_pid"))?;
        file.write_all(list.join(" ").as_bytes())?;
        self.is_attached = true;
        for (number, name) in tasks {
            self.follow.watch(number, process, &name);
        }
        let descriptors = fs::read_dir(format!("/proc/{process}/fd"))?;
        let numbers =
            descriptors.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        self.follow.adopt(process, &numbers.collect::<Vec<u64>>());
        Ok(())
    }

    /// Watches all processes that are in a control group now, or in one below it, and all that these start from now
    /// on; gives how many there are. Call it again from time to time: who is moved there by
    /// others is watched from then on.
    ///
    /// # Errors
    /// It is no folder of a control group, or a process in it can't be watched.
    pub fn attach_group(&mut self, group: &Path) -> io::Result<usize> {
        let processes = group::processes(group)?;
        for &process in &processes {
            match self.attach(process) {
                // It has ended meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                attached => attached?,
            }
        }
        Ok(processes.len())
    }

    /// Whether none of the watched lives any more, as far as events were taken.
    pub fn is_alone(&self) -> bool {
        self.follow.is_alone()
    }

    /// From now on what the watched programs will read is brought into the page cache; never more than so
    /// many bytes that are not used yet.
    pub fn advise(&mut self, budget_bytes: u64) {
        // Else nothing is heard of until half of a buffer is full; older kernels always say at once.
        let _ = self.tasks.instance.write("buffer_percent", "0");
        self.advisor = Some(Advisor::new(budget_bytes));
    }

    /// Sleeps for so long; meanwhile, helps those that are to be helped as soon as something happens.
    ///
    /// # Errors
    /// The buffers can't be read.
    pub fn wait(&mut self, span: Duration) -> io::Result<()> {
        let end_ns = now_ns() + span.as_nanos() as u64;
        loop {
            let now = now_ns();
            let left = Duration::from_nanos(end_ns.saturating_sub(now));
            if !self.advisor.as_ref().is_some_and(|advisor| advisor.is_awake(now)) {
                std::thread::sleep(left);
                return self.react();
            }
            if left.is_zero() {
                return Ok(());
            }
            self.tasks.sleep(left)?;
            self.react()?;
            std::thread::sleep(LOOK.min(left));
        }
    }

    /// Takes in what the watched tasks have done, and helps them.
    fn react(&mut self) -> io::Result<()> {
        let seen = self.events.len();
        self.tasks.read(&mut self.buffer, &mut self.events)?;
        let new = &mut self.events[seen..];
        if let Some(advisor) = self.advisor.as_mut().filter(|_| !new.is_empty()) {
            let (names, places) = self.follow.names_and_places();
            names.drain();
            new.sort_by_key(|event| event.at_ns);
            advisor.see(new, names, places, now_ns());
        }
        if let Some(advisor) = &mut self.advisor {
            advisor.go_on(now_ns());
        }
        Ok(())
    }

    /// Writes what has happened since the last call to a recording. Call it every hundredth of a
    /// second or so: what does not fit into the kernel's buffers meanwhile is lost.
    ///
    /// # Errors
    /// The recording can't be written, or the buffers not be read.
    pub fn record<W: Write>(&mut self, writer: &mut RecordingWriter<W>) -> io::Result<()> {
        let now = now_ns();
        self.react()?;
        self.read_all()?;
        self.follow.names().drain();
        let limit = now - MARGIN_NS;
        self.take_until(limit);
        let records: Vec<Record> = self.follow.settle(limit).collect();
        self.put(records, writer)?;
        if let Some(advisor) = &mut self.advisor {
            advisor.check(now);
            // Help may just have begun: then the next event is heard of at once.
            advisor.go_on(now);
        }
        self.rounds += 1;
        if self.rounds.is_multiple_of(ROUNDS_A_COUNT) {
            self.count_lost(writer)?;
        }
        Ok(())
    }

    /// Ends the watch, and the recording. `processor_ns` is the processor time of the program.
    ///
    /// # Errors
    /// As for [`record`](Recorder::record).
    pub fn finish<W: Write>(
        mut self,
        mut writer: RecordingWriter<W>,
        processor_ns: Option<u64>,
        has_exited: bool,
    ) -> io::Result<RecordingSummary> {
        let end_ns = now_ns();
        for side in [&mut self.tasks, &mut self.all] {
            side.instance.write("tracing_on", "0").map_err(io::Error::other)?;
            side.read(&mut self.buffer, &mut self.events)?;
        }
        if let Some(submissions) = &mut self.submissions {
            submissions.read(&mut self.events);
        }
        self.follow.names().drain();
        self.take_until(u64::MAX);
        let records: Vec<Record> = self.follow.finish(end_ns).collect();
        self.put(records, &mut writer)?;
        self.count_lost(&mut writer)?;
        // Whoever waits for a program's end hears of it later, and then waits for the last events.
        let at_ns = self.ended_ns.unwrap_or(end_ns).saturating_sub(self.start_ns);
        writer.put(Record::End(RecordingEnd { at_ns, processor_ns, has_exited }))?;
        writer.finish()?.flush()?;
        let unplaced = self.follow.unplaced();
        let help = self.advisor.map(Advisor::finish);
        Ok(RecordingSummary { seconds: at_ns as f64 / 1e9, lost: self.lost, unplaced, help })
    }

    /// Takes in what happens in nobody's context.
    fn read_all(&mut self) -> io::Result<()> {
        let seen = self.events.len();
        self.all.read(&mut self.buffer, &mut self.events)?;
        if let Some(submissions) = &mut self.submissions {
            submissions.read(&mut self.events);
        }
        if let Some(advisor) = &mut self.advisor {
            self.events[seen..].sort_by_key(|event| event.at_ns);
            self.events[seen..].iter().for_each(|event| advisor.hear(event));
        }
        Ok(())
    }

    fn put<W: Write>(
        &mut self,
        records: Vec<Record>,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        for record in records {
            if let Some(advisor) = &mut self.advisor {
                advisor.note(&record);
            }
            writer.put(record)?;
        }
        Ok(())
    }

    /// Has the events up to `limit_ns` followed, in the order of their times.
    fn take_until(&mut self, limit_ns: u64) {
        self.events.sort_by_key(|event| event.at_ns);
        let count = self.events.partition_point(|event| event.at_ns <= limit_ns);
        for event in self.events.drain(..count) {
            if matches!(event.what, What::TaskEnds) && self.program == Some(event.task) {
                self.ended_ns = Some(event.at_ns);
            }
            self.follow.take(event);
        }
    }

    fn count_lost<W: Write>(&mut self, writer: &mut RecordingWriter<W>) -> io::Result<()> {
        let lost = self.tasks.instance.lost() + self.all.instance.lost();
        if lost > self.lost {
            let at_ns = now_ns() - self.start_ns;
            writer.put(Record::Lost(EventsLost { at_ns, count: lost - self.lost }))?;
            self.lost = lost;
        }
        Ok(())
    }
}

/// How a watch went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordingSummary {
    /// How long it was.
    pub seconds: f64,
    /// How many events the kernel dropped.
    pub lost: u64,
    /// Number of reads by AIO and io_uring of which the file or the range is not known. They are not
    /// in the recording.
    pub unplaced: u64,
    /// What was done for the program, where it was to be helped.
    pub help: Option<Help>,
}

impl Side {
    fn start(
        decoder: fn(&Instance) -> Result<Decoder, TracefsError>,
        is_of_tasks: bool,
    ) -> Result<Side, TracefsError> {
        let instance = Instance::create()?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let kib = (BUFFERS_KIB_MAX / processors).clamp(BUFFER_KIB_MIN, BUFFER_KIB_MAX);
        // Older kernels have parts of a page.
        let _ = instance.write("buffer_subbuf_size_kb", &PART_KIB.to_string());
        instance.write("buffer_size_kb", &kib.to_string())?;
        instance.write("trace_clock", "mono")?;
        if is_of_tasks {
            instance.write("options/event-fork", "1")?;
            // Until somebody is watched: nobody.
            instance
                .write("set_event_pid", &rustix::process::getpid().as_raw_nonzero().to_string())?;
        }
        let decoder = decoder(&instance)?;
        let folder = instance.path().join("per_cpu");
        let folders = fs::read_dir(&folder).map_err(|source| TracefsError::Unavailable {
            action: "list",
            path: folder,
            source,
        })?;
        let names = folders.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let pipes = names.map(|name| instance.open(&format!("per_cpu/{name}/trace_pipe_raw")));
        let pipes = pipes.collect::<Result<Vec<File>, TracefsError>>()?;
        Ok(Side { pipes, decoder, instance })
    }

    /// Sleeps until something is in a buffer, or for so long.
    fn sleep(&self, most: Duration) -> io::Result<()> {
        let wait = |pipe| PollFd::new(pipe, PollFlags::IN);
        let mut waits: Vec<PollFd<'_>> = self.pipes.iter().map(wait).collect();
        let span = Timespec { tv_sec: 0, tv_nsec: most.as_nanos().min(999_999_999) as i64 };
        match poll(&mut waits, Some(&span)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what is in the buffers of all processors.
    fn read(&mut self, buffer: &mut [u8], events: &mut Vec<TraceEvent>) -> io::Result<()> {
        for pipe in &mut self.pipes {
            loop {
                let length = match pipe.read(buffer) {
                    Ok(0) => break,
                    Ok(length) => length,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                let decoder = &self.decoder;
                let read = ring::events(&buffer[..length], |at_ns, bytes| {
                    events.extend(decoder.decode(at_ns, bytes));
                });
                if read.is_none() {
                    let why = "the kernel's trace buffer is laid out in a way that is not known";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
            }
        }
        Ok(())
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds since 1970.
fn wall_ns() -> u64 {
    let wall = clock_gettime(ClockId::Realtime);
    wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64
}

/// How a recording begins that is made on this machine; `program` is the name of the program's file.
fn first_record(source: RecordingMethod, wall_ns: u64, program: &str) -> Record {
    let uname = rustix::system::uname();
    let part = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let memory = rustix::system::sysinfo();
    Record::Start(RecordingStart {
        source,
        wall_ns,
        page_bytes: rustix::param::page_size() as u64,
        memory_bytes: memory.totalram as u64 * u64::from(memory.mem_unit),
        program: program.to_owned(),
        system: format!("{} {}", part(uname.sysname()), part(uname.release())),
    })
}
