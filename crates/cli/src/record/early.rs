//! Advice for a program that starts before the tracing is prepared.
//!
//! The preparation takes a tenth of a second, longer on a busy machine. The program runs meanwhile;
//! its reads of that time are not seen. The preparation cannot be interrupted, so another process,
//! the *worker*, prepares and advises. This process only waits for the program. A program that ends
//! before the preparation thus has its result at once, and the worker cleans up by itself. It also
//! does so when this process is killed.
//!
//! Two pipes connect them. The worker stops at the end of the first one, which this process keeps
//! open. The second one is the worker's standard error: its lines are printed here. A zero byte in
//! it says that the program is being advised.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use readpath_record::capture::{Recorder, Tracing, TracingPermit, is_initial_pid_namespace};
use readpath_record::notice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::exit::{CommandResult, Failure};
use crate::signals;

use super::{READ_INTERVAL, RecordPlan, program_command, program_failure, record_traced};

/// Time after the start of the program at which the preparation begins. It is chosen: a program
/// that ends within it has no costs.
const PREPARED_AFTER: Duration = Duration::from_millis(50);

/// Interval between two attempts to take the lock for the preparation. Chosen, not measured.
const LOCK_INTERVAL: Duration = Duration::from_millis(2);

/// Starts the program and the worker. Waits until the program ends, `time_max` is over, or a signal
/// comes. At most `bytes_max` bytes are prefetched and not yet used. `permit` is a first instance
/// of tracefs, which the worker uses. Without tracing the program runs on without advice, and a
/// notice says so.
pub(super) fn run(
    args: &RecordPlan,
    permit: TracingPermit,
    time_max: Option<Duration>,
    bytes_max: u64,
) -> CommandResult {
    let (name, mut command) = program_command(args);
    let start = Instant::now();
    let mut child =
        command.spawn().map_err(|error| Failure::usage_of(args.command[0].display(), error))?;
    let mut worker = Worker::start(permit, &name, child.id(), bytes_max);
    if worker.is_none() {
        notice::print(format_args!("{name} runs without advice: no process can be started"));
    }
    let status = wait_for(&mut child, worker.as_mut(), || {
        signals::is_interrupted() || time_max.is_some_and(|time_max| start.elapsed() >= time_max)
    });
    let status = status.map_err(Failure::usage)?;
    if worker.is_some_and(|worker| !worker.finish()) {
        let event = match status {
            Some(_) => format!("{name} ended"),
            None if signals::is_interrupted() => "a signal came".to_owned(),
            None => "the time of --for was over".to_owned(),
        };
        notice::print(format_args!(
            "no page was prefetched: {event} before the tracing was prepared"
        ));
    }
    if status.is_none() {
        notice::print("the program runs on");
    }
    let is_recorded = false;
    program_failure(&name, status, is_recorded)
}

/// Waits for the program, and prints the lines of the worker meanwhile. Returns `None` if
/// `is_stopped` returns true before the end. Fails if the wait fails.
fn wait_for(
    child: &mut Child,
    mut worker: Option<&mut Worker>,
    is_stopped: impl Fn() -> bool,
) -> std::io::Result<Option<ExitStatus>> {
    // Without a descriptor of the process, its end is found at the next check.
    let process = Pid::from_raw(child.id() as i32);
    let process = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
    loop {
        let status = child.try_wait()?;
        if status.is_some() || is_stopped() {
            return Ok(status);
        }
        let report = worker.as_ref().and_then(|worker| worker.report.as_ref()).map(AsFd::as_fd);
        // Readable at the end of the program, and at a line of the worker.
        let descriptors = process.as_ref().map(AsFd::as_fd).into_iter().chain(report);
        let mut polled: Vec<PollFd<'_>> = descriptors
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: READ_INTERVAL.as_nanos() as i64 };
        // An error is a signal, which is checked above.
        let _ = poll(&mut polled, Some(&timeout));
        if let Some(worker) = &mut worker {
            worker.print_lines();
        }
    }
}

/// Process that prepares the tracing and advises the program.
struct Worker {
    /// Write end of the pipe at whose end the worker stops.
    stop: Option<OwnedFd>,
    /// Read end of its standard error, which does not wait. `None` after its end.
    report: Option<File>,
    /// True once the program is advised, or a line says why not.
    has_answered: bool,
}

impl Worker {
    /// Starts the worker for the program `process`, named `name`. Returns `None` if the kernel
    /// refuses.
    fn start(permit: TracingPermit, name: &str, process: u32, bytes_max: u64) -> Option<Worker> {
        let (stopped, stop) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
        let (report, lines) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
        // A read of the report returns at once, also without a line.
        rustix::io::ioctl_fionbio(&report, true).ok()?;
        // SAFETY: the child runs only `advise`. The allocator may be used after a fork.
        match unsafe { libc::fork() } {
            -1 => None,
            0 => {
                drop((stop, report));
                advise(permit, (name, process), bytes_max, (stopped, lines))
            }
            _ => {
                // The worker has a copy of the permit, and removes its objects in the kernel.
                std::mem::forget(permit);
                let (stop, report) = (Some(stop), Some(File::from(report)));
                Some(Worker { stop, report, has_answered: false })
            }
        }
    }

    /// Prints the lines that the worker has written by now; all to its end if reads of `report`
    /// wait. Zero bytes are left out.
    fn print_lines(&mut self) {
        let mut buffer = [0; 4096];
        while let Some(report) = &mut self.report {
            match report.read(&mut buffer) {
                Ok(0) => self.report = None,
                Ok(length) => {
                    self.has_answered = true;
                    let text: Vec<u8> =
                        buffer[..length].iter().copied().filter(|byte| *byte != 0).collect();
                    let _ = std::io::stderr().write_all(&text);
                }
                // No line waits now, or the pipe failed. The next call tries again.
                Err(_) => return,
            }
        }
    }

    /// Lets the worker stop. Waits for its last lines and prints them if it has answered before, or
    /// in a PID namespace, which may end with this process. Returns true if the program was advised
    /// or a line says why not.
    fn finish(mut self) -> bool {
        self.print_lines();
        drop(self.stop.take());
        let must_wait = self.has_answered || !is_initial_pid_namespace();
        if let Some(report) = self.report.as_ref().filter(|_| must_wait) {
            // Now a read waits for the next line, or for the end of the worker.
            let _ = rustix::io::ioctl_fionbio(report, false);
            self.print_lines();
        }
        self.has_answered
    }
}

/// Runs the worker: prepares the tracing, and advises the running program until it ends or the pipe
/// `stopped` does. `lines` replaces standard error. Ends the process.
fn advise(
    mut permit: TracingPermit,
    (name, process): (&str, u32),
    bytes_max: u64,
    (stopped, lines): (OwnedFd, OwnedFd),
) -> ! {
    // The signals of the terminal are for the program, and its files are not for this process.
    let _ = rustix::process::setsid();
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
    let _ = rustix::stdio::dup2_stderr(&lines);
    drop(lines);
    std::thread::spawn(move || {
        // The other end is never written to: a read returns at its end.
        let _ = File::from(stopped).read(&mut [0]);
        // `is_interrupted` is true from here on, which ends the advice.
        signals::count_as_signal();
    });
    std::thread::sleep(PREPARED_AFTER);
    // An earlier recorder may still remove its objects in the kernel.
    while !signals::is_interrupted() && !permit.try_lock() {
        std::thread::sleep(LOCK_INTERVAL);
    }
    if signals::is_interrupted() {
        // Removes the instance of tracefs.
        drop(permit);
    } else {
        match Recorder::start_advised(bytes_max, Some(permit)) {
            Ok(recorder) if signals::is_interrupted() => recorder.cancel().remove_in_background(),
            Ok(recorder) => advise_until_end(recorder, name, process),
            Err(error) => notice::print(format_args!("{name} runs without advice: {error}")),
        }
    }
    // SAFETY: the call ends the process. Handlers of the parent must not run.
    unsafe { libc::_exit(0) }
}

/// Advises the program with this name and process number until it ends or a signal comes, and
/// prints the result.
fn advise_until_end(recorder: Recorder, name: &str, process: u32) {
    let plan = RecordPlan { pid: Some(process), is_advised: true, ..RecordPlan::default() };
    // The parent process keeps the time, and closes the pipe at its end.
    let time_max = None;
    let result = record_traced(&plan, recorder, time_max, |recorder| {
        // A program that has ended is no error.
        recorder.attach_program(process).map_err(Failure::usage)?;
        // While the program uses short files only, which get no advice, the recorder rests.
        recorder.rest_at_short_files();
        // The zero byte: the program is being advised.
        let _ = std::io::stderr().write_all(&[0]);
        // The program is no child of this process, which can't wait for its exit status.
        let no_child = None;
        Ok((name.to_owned(), no_child))
    });
    let (tracing, result) = match result {
        Ok((tracing, result)) => (Some(tracing), result),
        Err(failure) => (None, Err(failure)),
    };
    if let Err(failure) = result {
        let _ = failure.print_message();
    }
    // The command waits for the end of these lines, and not for the removal in the kernel. In a PID
    // namespace, which may end with the command, it waits for both.
    let null = File::options().write(true).open("/dev/null");
    if let Some(null) = null.ok().filter(|_| is_initial_pid_namespace()) {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    tracing.into_iter().for_each(Tracing::remove_in_background);
}
