//! `readpath record`: records the reads of an unmodified program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use clap::Args;
use readpath_eval::kernel_trace::TracefsError;
use readpath_eval::usage::CpuTime;
use readpath_record::capture::{Recorder, RecordingSummary, Tracing, TracingPermit};
use readpath_record::file_limit;
use readpath_record::notice;
use readpath_sim::job;
use readpath_trace::recording::RecordingWriter;

use crate::exit::{CommandResult, Failure};
use crate::input;
use crate::signals;

mod advised;
mod early;
mod from_set;
mod mount;
mod output;
mod preloaded;
mod sampled;

use output::Output;

/// Program that is recorded or advised, and for how long.
#[derive(Debug, Args)]
pub struct ProgramArgs {
    /// Program to start and follow, with its children, until it ends
    #[arg(value_name = "COMMAND", last = true, required_unless_present_any = ["pid", "cgroup"])]
    pub command: Vec<OsString>,
    /// Process to follow until it ends, with the children that it starts meanwhile
    #[arg(long, value_name = "N", conflicts_with = "command")]
    pub pid: Option<u32>,
    /// Folder of a control group, such as /sys/fs/cgroup/system.slice/cron.service: follow all
    /// processes of it and of the groups below it until none is left
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["command", "pid"])]
    pub cgroup: Option<PathBuf>,
    /// Longest time to follow, in seconds or with a unit; a started program continues
    #[arg(long = "for", value_name = "TIME")]
    pub span: Option<String>,
}

/// `readpath record`.
#[derive(Debug, Args)]
#[command(
    after_help = "As root, the kernel's tracepoints record the reads (needs tracefs with system call \
    events; exit\ncode 3 without). Without root, a preloaded library records a COMMAND's read calls of \
    the C library.\nReads by io_uring, page faults of mapped files and the times of threads are sampled. Formatted\n\
    input (fscanf), static and setuid programs, and what the page cache had are missing. A running\n\
    process of the same user (--pid) is sampled ten times a second: its positions in files, and their\n\
    pages in the page cache. That makes no recording. --cgroup needs root.\n\n\
    A recording contains the names of files and threads, and the position and time of each read. It\n\
    contains no file contents and no command arguments.\n\n\
    Examples:\n  \
    readpath record -o reads.rec -- sha256sum /usr/bin/env\n  \
    readpath record --pid 4242 --for 30s\n  \
    readpath explain reads.rec"
)]
pub struct RecordArgs {
    /// Program.
    #[command(flatten)]
    pub program: ProgramArgs,
    /// Recording; an existing file is replaced [default: readpath.rec]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `readpath advise`.
#[derive(Debug, Args)]
#[command(
    after_help = "The readahead policy `adaptive` follows the program's reads. readahead(2) prefetches \
    the pages\nthat it predicts into the page cache, as long as prefetched pages are used. The program \
    reads from\nthe kernel as before. As root, the kernel's events show all reads (needs tracefs). Without root,\n\
    the read calls of a COMMAND are seen by a preloaded library, and touches of mappings are sampled.\n\
    --pid and --cgroup need root.\n\n\
    With --from the pages of a recording are brought in, in the order of their first use, while the\n\
    program runs. That needs no root. Files with another inode or length are left out. The use of\n\
    the pages is not observed.\n\n\
    With --mount direct reads of a file of 64 MiB or more compare windows, for some seconds. Nothing\n\
    is changed, and the page cache is not used.\n\n\
    Examples:\n  \
    readpath advise --memory 512MiB -- python3 load_model.py\n  \
    readpath advise --pid 4242 --for 30s\n  \
    readpath advise --from start.rec -- python3 server.py\n  \
    readpath advise --mount /srv/data"
)]
pub struct AdviseArgs {
    /// Program.
    #[command(flatten)]
    pub program: ProgramArgs,
    /// Recording of the reads [default: none]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Recording of an earlier run: bring its pages in ahead of the program. Several recordings are
    /// taken together
    #[arg(long, value_name = "RECORDING", conflicts_with_all = ["output", "pid", "cgroup"])]
    pub from: Vec<PathBuf>,
    /// Limit of prefetched bytes in the page cache that the program has not used yet
    /// [default: 256MiB, or an eighth of the machine's memory if that is less]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Folder, file or block device: advise no program, but measure the kernel's readahead window
    /// for this storage, and print the command that sets it
    #[arg(long, value_name = "PLACE", exclusive = true)]
    pub mount: Option<PathBuf>,
}

/// Program to record, and how.
#[derive(Debug, Default)]
struct RecordPlan {
    /// Program to start, with its arguments. Empty if `pid` or `cgroup` names running ones.
    command: Vec<OsString>,
    /// Running process to follow.
    pid: Option<u32>,
    /// Folder of the control group to follow.
    cgroup: Option<PathBuf>,
    /// Longest time to follow, as text of the option.
    span: Option<String>,
    /// Path of the recording. `None`: the default path, or with advice no recording.
    output: Option<PathBuf>,
    /// True if the recording stays after the command.
    is_output_kept: bool,
    /// True if pages are brought in ahead of the program's reads.
    is_advised: bool,
    /// Limit of prefetched bytes that are not used yet, as text of the option.
    memory: Option<String>,
    /// Recordings whose pages are brought in. If there are any, nothing is recorded.
    from: Vec<PathBuf>,
}

impl RecordPlan {
    /// Creates the plan of a recording without advice. `output` is the path of the recording.
    fn new(program: ProgramArgs, output: Option<PathBuf>) -> RecordPlan {
        let ProgramArgs { command, pid, cgroup, span } = program;
        RecordPlan {
            command,
            pid,
            cgroup,
            span,
            output,
            is_output_kept: true,
            is_advised: false,
            memory: None,
            from: Vec::new(),
        }
    }
}

/// Records a program.
pub fn record(args: RecordArgs) -> CommandResult {
    run(RecordPlan::new(args.program, args.output))
}

/// Records a program into `output`, for another command. If `is_kept` is false, the caller removes
/// the recording later, and its path is not printed.
pub fn record_into(program: ProgramArgs, output: PathBuf, is_kept: bool) -> CommandResult {
    run(RecordPlan { is_output_kept: is_kept, ..RecordPlan::new(program, Some(output)) })
}

/// Brings pages in ahead of a program's reads.
pub fn advise(args: AdviseArgs) -> CommandResult {
    if let Some(place) = &args.mount {
        return mount::run(place);
    }
    let plan = RecordPlan::new(args.program, args.output);
    run(RecordPlan { is_advised: true, memory: args.memory, from: args.from, ..plan })
}

/// Default path of the recording.
const OUTPUT_DEFAULT: &str = "readpath.rec";

/// Default limit of prefetched, unused pages: the smaller of `BUDGET_BYTES_DEFAULT_MAX` and the
/// `BUDGET_MEMORY_DIVISOR`th part of the machine's memory. Chosen, not measured.
const BUDGET_BYTES_DEFAULT_MAX: u64 = 256 << 20;
/// Divisor of the machine's memory for the default limit. Chosen, not measured.
const BUDGET_MEMORY_DIVISOR: u64 = 8;

/// Minimum of `--memory`: one readahead window. The default has no minimum.
const BUDGET_BYTES_MIN: u64 = 1 << 20;

/// Interval of reading the kernel's buffers. Chosen, not measured.
const READ_INTERVAL: Duration = Duration::from_millis(10);

/// Interval of listing the processes of a control group. Chosen, not measured.
const GROUP_LIST_INTERVAL: Duration = Duration::from_millis(200);

/// Time before the last reading of the kernel's buffers where no recording is kept. The end of a
/// program then arrives within a millisecond.
const END_INTERVAL: Duration = Duration::from_millis(3);

/// Number of further readings of the kernel's buffers after the end of the process, for its last
/// events.
const FINAL_READINGS: u32 = 3;

/// Records or advises in the best way that the rights of the caller allow: by the kernel's
/// tracepoints, else by a preloaded library, else by samples. Advice from recordings needs no
/// tracepoints. Advice for a started program without a recording starts it before the tracing, if
/// this process may trace.
fn run(args: RecordPlan) -> CommandResult {
    let time_max = args.span.as_deref().map(|text| {
        let time_max = job::span(text)
            .map_err(|expected| Failure::Usage(format!("--for {text}: expected {expected}")))?;
        Ok(Duration::from_nanos(time_max.ns()))
    });
    let time_max = time_max.transpose()?;
    let budget_bytes =
        args.is_advised.then(|| prefetch_budget_bytes(args.memory.as_deref())).transpose()?;
    signals::start_counting()?;
    if let Some(bytes_max) = budget_bytes.filter(|_| !args.from.is_empty()) {
        return from_set::run(&args, time_max, bytes_max);
    }
    // A write beyond the file size limit becomes an error instead of a fatal signal.
    file_limit::report_as_error();
    // Without a recording to complete, the program does not wait for the preparation. The permit, a
    // first instance of tracefs, shows that this process may trace.
    if let Some(bytes_max) = budget_bytes.filter(|_| args.output.is_none())
        && !args.command.is_empty()
        && let Ok(permit) = TracingPermit::new()
    {
        return early::run(&args, permit, time_max, bytes_max);
    }
    let started = match budget_bytes {
        Some(budget_bytes) => {
            let no_permit = None;
            Recorder::start_advised(budget_bytes, no_permit)
        }
        None => Recorder::start(),
    };
    let recorder = match started {
        Ok(recorder) => recorder,
        Err(_) if may_preload(&args) => {
            return preloaded::run(&args, time_max, budget_bytes);
        }
        Err(error) => {
            // Without root, a running process can be sampled. In all other cases, and if this user
            // may not inspect the process, `sampled` is `None`.
            let is_root = rustix::process::geteuid().is_root();
            let process = args.pid.filter(|_| !is_root && !args.is_advised);
            let sampled = process.and_then(|process| sampled::run(process, &args, time_max));
            return sampled.unwrap_or_else(|| Err(tracing_failure(error)));
        }
    };
    let start_program = |recorder: &mut Recorder| start_or_attach(&args, recorder);
    let (tracing, result) = record_traced(&args, recorder, time_max, start_program)?;
    tracing.remove_in_background();
    result
}

/// Records by the kernel's tracepoints until the program ends, `time_max` is over, or a signal
/// comes. It also ends when advice was given up and no recording is written: no work is left then.
/// `start_program` starts the program or attaches to it. It returns the name, and the child process
/// if there is one.
///
/// Prints a notice for each event that the kernel lacks, and for processes of an ended program that
/// run on. A control group has ended as a whole, so it has none. Returns the objects in the kernel,
/// which the caller removes, and the result of the command: a failure of the output or of the
/// program is in this result. Any other failure returns no objects.
fn record_traced(
    args: &RecordPlan,
    mut recorder: Recorder,
    time_max: Option<Duration>,
    start_program: impl FnOnce(&mut Recorder) -> Result<(String, Option<Child>), Failure>,
) -> Result<(Tracing, CommandResult), Failure> {
    for gap in recorder.gaps() {
        notice::print(format_args!("this kernel lacks {gap}"));
    }
    // Advice keeps a recording only in a named file. Without one, short files need no path.
    let output = args.output.clone().or((!args.is_advised).then(|| PathBuf::from(OUTPUT_DEFAULT)));
    let failure = |error| match &output {
        Some(path) => Failure::usage_of(path.display(), error),
        None => Failure::usage(error),
    };
    let sink = match &output {
        Some(path) => Output::open(path).map_err(failure)?,
        None => {
            recorder.leave_short_files_unnamed();
            Output::discarding()
        }
    };
    let cpu_before = CpuTime::of_children();
    let (name, mut child) = start_program(&mut recorder)?;
    // An earlier recording of this name is dropped only now: the program could be started.
    sink.begin().map_err(failure)?;
    let mut writer = RecordingWriter::new(sink.clone()).map_err(failure)?;
    writer.put(recorder.first_record(&name)).map_err(failure)?;
    let start = Instant::now();
    let (mut status, mut has_exited) = (None, false);
    let mut group_listed_at = start;
    let mut output_error = OutputError::default();
    while !signals::is_interrupted() && !has_exited {
        recorder.wait(READ_INTERVAL).map_err(failure)?;
        recorder.record(&mut writer).map_err(failure)?;
        output_error.report_once(&sink, output.as_deref(), start);
        has_exited = match &mut child {
            Some(child) => {
                status = child.try_wait().map_err(Failure::usage)?;
                status.is_some()
            }
            None => has_ended(args, &mut recorder, &mut group_listed_at)?,
        };
        let is_useless = output.is_none() && recorder.has_given_up();
        if is_useless || time_max.is_some_and(|time_max| start.elapsed() >= time_max) {
            break;
        }
    }
    read_last_events(&mut recorder, &mut writer, output.is_some()).map_err(failure)?;
    // An attached program may have ended in the loop's last turn or during these readings.
    let has_exited = has_exited || has_ended(args, &mut recorder, &mut group_listed_at)?;
    let has_children = has_exited && args.cgroup.is_none() && !recorder.has_no_tasks();
    // The processor time is known only of a child that has ended and was waited for.
    let processor_time = CpuTime::of_children().since(cpu_before);
    let processor_ns = status.map(|_| (processor_time.seconds() * 1e9) as u64);
    let (summary, tracing) = recorder.finish(writer, processor_ns, has_exited).map_err(failure)?;
    output_error.report_once(&sink, output.as_deref(), start);
    let shown_output =
        output.as_deref().filter(|_| args.is_output_kept && !output_error.has_occurred());
    print_summary(shown_output, &summary, child.is_some() && !has_exited);
    if has_children {
        notice::print(format_args!(
            "processes that {name} started run on without readpath; --pid N or --cgroup FOLDER \
             follows them"
        ));
    }
    let result =
        output_error.result().and_then(|()| program_failure(&name, status, output.is_some()));
    Ok((tracing, result))
}

/// Reads the last events of the program, which arrive soon. Its child processes may live on
/// unrecorded. If `is_recorded` is false, few events are of use: one reading is enough. Fails if
/// the recording cannot be written.
fn read_last_events(
    recorder: &mut Recorder,
    writer: &mut RecordingWriter<Output>,
    is_recorded: bool,
) -> std::io::Result<()> {
    let (readings, interval) = match is_recorded {
        true => (FINAL_READINGS, READ_INTERVAL),
        false => (1, END_INTERVAL),
    };
    for _ in 0..readings {
        std::thread::sleep(interval);
        recorder.record(writer)?;
    }
    Ok(())
}

/// Message about an error of the recording's file, which ends the recording and not the program.
/// `None` without an error.
#[derive(Debug, Default)]
struct OutputError(Option<String>);

impl OutputError {
    /// Reports the error that ended the output, once, as soon as there is one. Without a `path`
    /// there is no output that could fail. `start` is the start of the recording.
    fn report_once(&mut self, sink: &Output, path: Option<&Path>, start: Instant) {
        let (Some(error), Some(path)) = (sink.take_error(), path) else { return };
        let seconds = start.elapsed().as_secs_f64();
        let text = format!("{}: {error}: the recording ended after {seconds:.2} s", path.display());
        notice::print(format_args!("{text}; the program runs on"));
        self.0 = Some(text);
    }

    /// True if an error ended the output and was reported.
    fn has_occurred(&self) -> bool {
        self.0.is_some()
    }

    /// Returns a failure if the output ended early.
    fn result(self) -> CommandResult {
        self.0.map_or(Ok(()), |text| Err(Failure::Run(text)))
    }
}

/// Starts the program, or attaches to the process or the control group. Returns its name, and the
/// child process if it was started. The name is empty if the process has just ended.
fn start_or_attach(
    args: &RecordPlan,
    recorder: &mut Recorder,
) -> Result<(String, Option<Child>), Failure> {
    if let Some(process) = args.pid {
        recorder
            .attach(process)
            .map_err(|error| Failure::usage_of(format!("process {process}"), error))?;
        let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        return Ok((name.trim_end().to_owned(), None));
    }
    if let Some(group) = &args.cgroup {
        if attach_group(group, recorder)? == 0 {
            return Err(Failure::usage_of(group.display(), "it has no process"));
        }
        let name = group.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Ok((name, None));
    }
    let (name, command) = program_command(args);
    let child = recorder
        .spawn(command)
        .map_err(|error| Failure::usage_of(args.command[0].display(), error))?;
    Ok((name, Some(child)))
}

/// Returns the file name of the program, and the command that starts it.
fn program_command(args: &RecordPlan) -> (String, Command) {
    let program = &args.command[0];
    let mut command = Command::new(program);
    command.args(&args.command[1..]);
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    (name, command)
}

/// Turns an unsuccessful exit status of the program into a failure. If `is_recorded`, the message
/// adds that its reads are recorded. No status is no failure: it runs on, or is no child.
fn program_failure(name: &str, status: Option<ExitStatus>, is_recorded: bool) -> CommandResult {
    match status {
        Some(status) if !status.success() => {
            let note = if is_recorded { "; its reads are recorded" } else { "" };
            Err(Failure::Run(format!("{name} ended with {status}{note}")))
        }
        _ => Ok(()),
    }
}

/// Attaches to new processes of a control group. Returns the number of all its processes.
pub(crate) fn attach_group(group: &Path, recorder: &mut Recorder) -> Result<usize, Failure> {
    recorder.attach_group(group).map_err(|error| {
        let remedy =
            "give the folder of a control group, with a list of its processes in cgroup.procs";
        Failure::usage_of(group.display(), format!("{error}; {remedy}"))
    })
}

/// True if the attached process has ended, or all processes of the control group, which are listed
/// every `GROUP_LIST_INTERVAL`. Between two listings the result is false. Always false for a
/// started program, whose end its parent sees by a wait.
fn has_ended(
    args: &RecordPlan,
    recorder: &mut Recorder,
    listed_at: &mut Instant,
) -> Result<bool, Failure> {
    if let Some(process) = args.pid {
        return Ok(!Path::new(&format!("/proc/{process}")).exists());
    }
    match &args.cgroup {
        Some(group) if listed_at.elapsed() >= GROUP_LIST_INTERVAL => {
            *listed_at = Instant::now();
            // New processes of the group are attached on the way. A control group can be removed
            // only when it has no process.
            Ok(!group.exists() || attach_group(group, recorder)? == 0)
        }
        _ => Ok(false),
    }
}

/// True if the command can be recorded with `LD_PRELOAD`: without root, and for a started program
/// only.
fn may_preload(args: &RecordPlan) -> bool {
    !rustix::process::geteuid().is_root() && !args.command.is_empty()
}

/// Failure of the kernel's tracing, with the alternatives for users without root.
fn tracing_failure(error: TracefsError) -> Failure {
    let mut text = format!("the reads of a program can't be recorded: {error}");
    if !rustix::process::geteuid().is_root() {
        text += "; run it as root (`sudo readpath record …`). Without root, `readpath record -- COMMAND` \
            and `readpath advise -- COMMAND` see reads by calls, and `readpath record --pid N` samples a \
            process";
    }
    Failure::Unavailable(text)
}

/// Returns the limit of prefetched, unused bytes: `memory_option`, or the default. Refuses less
/// than `BUDGET_BYTES_MIN`.
fn prefetch_budget_bytes(memory_option: Option<&str>) -> Result<u64, Failure> {
    let Some(text) = memory_option else {
        let memory = rustix::system::sysinfo();
        let machine_bytes = memory.totalram as u64 * u64::from(memory.mem_unit);
        return Ok(BUDGET_BYTES_DEFAULT_MAX.min(machine_bytes / BUDGET_MEMORY_DIVISOR));
    };
    let bytes = input::size("--memory", text)?;
    if bytes < BUDGET_BYTES_MIN {
        return Err(Failure::Usage(format!("--memory {text}: give 1MiB or more")));
    }
    Ok(bytes)
}

/// Prints on standard error the result of the advice, the path of the recording, and the events and
/// reads that it lacks. Without a `path` only the advice and lost events are printed. `is_running`
/// adds that the program runs on.
fn print_summary(path: Option<&Path>, summary: &RecordingSummary, is_running: bool) {
    let RecordingSummary { seconds, lost, unlocated_reads, incomplete_programs, help } = summary;
    if let Some(help) = help {
        advised::report_lines(help).iter().for_each(notice::print);
    }
    if let Some(path) = path.map(Path::display) {
        notice::print(format_args!(
            "recorded {seconds:.2} s in {path}; `readpath explain {path}` explains its waits"
        ));
    }
    if *lost > 0 {
        let holes = if path.is_some() { ": the recording has holes" } else { "" };
        notice::print(format_args!("{lost} events were lost{holes}"));
    }
    if *unlocated_reads > 0 && path.is_some() {
        notice::print(format_args!(
            "{unlocated_reads} reads by AIO or io_uring are counted in it, without file and range: \
             these were not seen"
        ));
    }
    if *incomplete_programs > 0 && path.is_some() {
        notice::print(format_args!(
            "programs executed by a thread, whose reads of the first 10 ms or more were not seen: \
             {incomplete_programs}"
        ));
    }
    if is_running {
        notice::print("the program runs on");
    }
}
