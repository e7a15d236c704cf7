//! Recording without root: a preloaded library replaces functions of the C library.
//!
//! The library is loaded into the program and its children. It reports their reads through memory
//! that it shares with this process (`Preload`). A program that does not load it is only sampled:
//! its open files and their cached pages are inspected from outside (`Sampled`).

use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use readpath_eval::usage::CpuTime;
use readpath_record::capture::preload::{KernelCounts, LIBRARY, Preload, Preloaded};
use readpath_record::capture::sampled::{Sampled, Samples};
use readpath_record::notice;
use readpath_trace::recording::RecordingWriter;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::output::Output;
use super::{
    OUTPUT_DEFAULT, OutputError, READ_INTERVAL, RecordPlan, print_summary, program_command,
    program_failure, sampled,
};
use crate::exit::{CommandResult, Failure};
use crate::signals;

/// Pause between two readings of the shared memory while it fills quickly, or while the advisor is
/// awake. Chosen, not measured.
const READ_INTERVAL_BUSY: Duration = Duration::from_millis(1);

/// Records without root, by a preloaded library, until the program ends, `time_max` is over, or a
/// signal comes. Without `time_max` there is no limit. With `budget_bytes` it also advises the
/// program: at most this number of bytes is prefetched and not yet used. Without advice the
/// recording goes to the default file if no other is named. Advice keeps a recording only in a
/// named file. The processor time is recorded only if the program has ended.
pub fn run(
    args: &RecordPlan,
    time_max: Option<Duration>,
    budget_bytes: Option<u64>,
) -> CommandResult {
    check_library()?;
    print_limits(budget_bytes.is_some());
    let default_output = budget_bytes.is_none().then(|| PathBuf::from(OUTPUT_DEFAULT));
    let output = args.output.clone().or(default_output);
    let failure = |error: std::io::Error| match &output {
        Some(path) => Failure::usage_of(path.display(), error),
        None => Failure::usage(error),
    };
    let mut preload = Preload::start(LIBRARY)
        .map_err(|error| Failure::usage_of("folders for temporary files", error))?;
    if let Some(bytes) = budget_bytes {
        preload.advise(bytes, output.is_some());
    }
    let sink = match &output {
        Some(path) => Output::open(path).map_err(failure)?,
        None => Output::discarding(),
    };
    let cpu_before = CpuTime::of_children();
    let (name, command) = program_command(args);
    let mut child = preload
        .spawn(command)
        .map_err(|error| Failure::usage_of(args.command[0].display(), error))?;
    sink.begin().map_err(failure)?;
    let mut writer = RecordingWriter::new(sink.clone()).map_err(failure)?;
    writer.put(preload.first_record(&name)).map_err(failure)?;
    let (start, mut status, mut counts) = (Instant::now(), None, None);
    // Samples are needed until a program has loaded the library, and used only if none ever does.
    let mut sampling = Sampled::start(child.id()).ok();
    let (mut samples, mut output_error, mut is_busy) = (None, OutputError::default(), false);
    while !signals::is_interrupted() && status.is_none() {
        // While the advisor is awake, a short pause lets each read have its advice soon.
        std::thread::sleep(match is_busy || preload.is_awake() {
            true => READ_INTERVAL_BUSY,
            false => READ_INTERVAL,
        });
        is_busy = preload.record(&mut writer).map_err(failure)?;
        output_error.report_once(&sink, output.as_deref(), start);
        sampling = sampling.filter(|_| preload.programs() == 0);
        sampling.iter_mut().for_each(Sampled::sample_if_due);
        if has_ended(&child).map_err(Failure::usage)? {
            // The last sample reads the counters of the zombie. The wait below removes them.
            samples = sampling.take().map(Sampled::finish);
            let waited = preload.wait_counted(&mut child).map_err(Failure::usage)?;
            (status, counts) = (Some(waited.0), waited.1);
        }
        if time_max.is_some_and(|time_max| start.elapsed() >= time_max) {
            break;
        }
    }
    let processor_time = CpuTime::of_children().since(cpu_before);
    let processor_ns = status.map(|_| (processor_time.seconds() * 1e9) as u64);
    let recorded = preload.finish(writer, processor_ns, status.is_some()).map_err(failure)?;
    output_error.report_once(&sink, output.as_deref(), start);
    // The failure of the output precedes all other results, which are then not printed.
    output_error.result()?;
    if recorded.programs == 0 {
        let samples = samples.or_else(|| sampling.map(Sampled::finish));
        return print_unrecorded_program(&name, samples, counts, start.elapsed());
    }
    let shown_output = output.as_deref().filter(|_| args.is_output_kept);
    print_summary(shown_output, &recorded.summary, status.is_none());
    // Advice without a recording does not see all reads of files.
    print_unrecorded(&recorded, counts, output.is_some());
    program_failure(&name, status, output.is_some())
}

/// Fails if this command contains no library to preload.
fn check_library() -> CommandResult {
    if LIBRARY.is_empty() {
        return Err(Failure::Unavailable(
            "a recording without root needs a library for Linux with the GNU C library, and this command was \
             built without it; run it as root (`sudo readpath record …`)"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Prints which reads are not recorded. `is_advised` is true if pages are brought in ahead.
fn print_limits(is_advised: bool) {
    notice::print(match is_advised {
        true => {
            "not root: pages are brought in for the read calls of the C library, and for touches of \
             mappings, which are sampled; io_uring, formatted input (fscanf) and setuid programs are not seen"
        }
        false => {
            "not root: functions put before the C library's record what calls, stdio and io_submit \
             read; io_uring, page faults and times are sampled; not seen: formatted input (fscanf), \
             POSIX AIO, static and setuid programs, and what the page cache had"
        }
    });
}

/// Prints the samples of the program `name`, of which no read was recorded, or else the kernel's
/// counts of it, or nothing if both are unknown. Returns the failure for the missing recording in
/// each case.
fn print_unrecorded_program(
    name: &str,
    samples: Option<Samples>,
    counts: Option<KernelCounts>,
    elapsed: Duration,
) -> CommandResult {
    let reported = match (samples, counts) {
        (Some(samples), _) => {
            sampled::print_samples(&samples)?;
            "; only samples of it are reported"
        }
        // The process ended before its first sample, or this user may not inspect it.
        (None, Some(counts)) => {
            sampled::print_counters(counts, elapsed.as_secs_f64())?;
            "; only the kernel's counts of it are reported"
        }
        // No counts either: the program runs on, or the kernel has none.
        (None, None) => "",
    };
    Err(Failure::Unavailable(format!(
        "no read of {name} was recorded{reported}. It is linked statically, or has other rights \
         than its caller (setuid). Run it as root (`sudo readpath record …`), or record its system \
         calls by `strace -f -ttt -T -yy -o FILE COMMAND` and `readpath recording import FILE`"
    )))
}

/// True if the program has ended. It stays a zombie until `wait_counted`, which reads the kernel's
/// counts around its wait.
fn has_ended(child: &Child) -> std::io::Result<bool> {
    let process = Pid::from_child(child);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(process), options)?.is_some())
}

/// Prints the numbers of calls that are missing from the recording: in a sandbox, on a small signal
/// stack, or counted only by the kernel. The kernel does not count asynchronous reads.
/// `has_all_reads` is false if reads are left out on purpose; their number is then not printed.
fn print_unrecorded(recorded: &Preloaded, counts: Option<KernelCounts>, has_all_reads: bool) {
    let Preloaded { reads, asynchronous_reads, sandboxed, unrecorded, .. } = recorded;
    if *sandboxed > 0 {
        notice::print(format_args!(
            "{sandboxed} of the programs entered a sandbox (seccomp): recording there would end them, so \
             their later reads are not in it"
        ));
    }
    if *unrecorded > 0 {
        notice::print(format_args!(
            "{unrecorded} calls are not in it: they came from a sandbox (seccomp), or from a signal stack \
             with less than 1 KiB left"
        ));
    }
    if !has_all_reads {
        return;
    }
    match counts {
        Some(counts) => notice::print(format_args!(
            "{reads} reads of files were seen; the kernel counts {} calls that read, {} more: of pipes, \
             terminals and sockets, of loaders, and those that can't be seen so",
            counts.reads,
            counts.reads.saturating_sub(reads - asynchronous_reads),
        )),
        None => notice::print(format_args!("{reads} reads of files were seen")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither samples nor counts of the program are known: nothing is printed.
    #[test]
    fn failure_without_samples_names_none() {
        let (samples, counts) = (None, None);
        let printed = print_unrecorded_program("tool", samples, counts, Duration::from_secs(1));
        let Err(Failure::Unavailable(text)) = printed else { panic!("{printed:?}") };
        assert!(text.starts_with("no read of tool was recorded. It is linked"), "{text}");
    }
}
