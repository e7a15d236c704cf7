//! `readpath advise --from`: brings the pages of recordings in ahead of a program. Needs no root.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use readpath_record::notice;
use readpath_record::recorded_set::{BroughtIn, RecordedSet};
use readpath_sim::job::printable;

use super::{RecordPlan, program_command, program_failure};
use crate::exit::{CommandResult, Failure};
use crate::recordings::for_each_record;
use crate::signals;
use crate::table;

/// Interval of the checks for the end of the program. Chosen, not measured.
const WAIT_INTERVAL: Duration = Duration::from_millis(2);

/// Number of files that a message names; it counts the others. Chosen, not measured.
const NAMED_FILES_MAX: usize = 3;

/// Starts the program, and brings in at most `bytes_max` bytes of the recorded pages meanwhile.
/// Waits until the program ends, `time_max` is over, or a signal comes.
pub fn run(plan: &RecordPlan, time_max: Option<Duration>, bytes_max: u64) -> CommandResult {
    // Read the pages of the recordings, in the order of their first use.
    let mut recorded_set = RecordedSet::default();
    for path in &plan.from {
        // Each recording has numbers of files of its own.
        recorded_set.begin_recording();
        for_each_record(path, |record| {
            recorded_set.take(&record);
            Ok(())
        })?;
    }
    if recorded_set.is_empty() {
        let problem = "has no read of a file; record the program by `readpath record`";
        return Err(Failure::usage_of(plan.from[0].display(), problem));
    }
    // Bring the pages in on another thread while the program runs.
    let (name, mut command) = program_command(plan);
    let is_over = AtomicBool::new(false);
    let began = Instant::now();
    let (brought_in, duration, ended) = std::thread::scope(|scope| {
        let prefetch_thread = scope.spawn(|| {
            let brought_in = recorded_set.bring_in(bytes_max, &is_over);
            (brought_in, began.elapsed())
        });
        let is_stopped = || {
            signals::is_interrupted()
                || time_max.is_some_and(|time_max| began.elapsed() >= time_max)
        };
        let ended = run_program(&mut command, is_stopped);
        is_over.store(true, Ordering::Relaxed);
        let (brought_in, duration) =
            prefetch_thread.join().expect("the prefetching thread does not panic");
        (brought_in, duration, ended)
    });
    let status = ended.map_err(|error| Failure::usage_of(plan.command[0].display(), error))?;
    report_lines(&brought_in, duration, &printable(&name)).iter().for_each(notice::print);
    if status.is_none() {
        notice::print("the program runs on");
    }
    let is_recorded = false;
    program_failure(&name, status, is_recorded)
}

/// Starts the program and returns its exit status. Returns `None` if `is_stopped` returns true
/// before the end; the program then continues.
fn run_program(
    command: &mut Command,
    is_stopped: impl Fn() -> bool,
) -> std::io::Result<Option<ExitStatus>> {
    let mut child: Child = command.spawn()?;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || is_stopped() {
            return Ok(status);
        }
        std::thread::sleep(WAIT_INTERVAL);
    }
}

/// Formats the lines of the report. `duration` is the time in which the pages were brought in.
fn report_lines(result: &BroughtIn, duration: Duration, program: &str) -> Vec<String> {
    let mib = |bytes| format!("{} MiB", table::mib(Some(bytes)));
    let files =
        |count: usize| if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
    // Files of the recordings without the ones that are left out.
    let usable = result.files as usize - result.changed.len() - result.missing.len();
    let mut lines = vec![format!(
        "brought in {} of {} in {:.2} s, next to {program}; {} were in memory",
        mib(result.bytes),
        files(usable),
        duration.as_secs_f64(),
        mib(result.cached_bytes),
    )];
    if result.late_bytes > 0 {
        lines
            .push(format!("{} were not brought in: {program} ended first", mib(result.late_bytes)));
    }
    if result.beyond_limit_bytes > 0 {
        let beyond = mib(result.beyond_limit_bytes);
        lines.push(format!("{beyond} were not brought in: --memory allows no more"));
    }
    let list_names = |names: Vec<String>| {
        let more = names.len().saturating_sub(NAMED_FILES_MAX);
        let shown = names.into_iter().take(NAMED_FILES_MAX).collect::<Vec<String>>().join(", ");
        if more == 0 { shown } else { format!("{shown} and {more} more") }
    };
    if !result.changed.is_empty() {
        let names = result.changed.iter().map(|path| printable(&path.to_string_lossy())).collect();
        lines.push(format!(
            "{} left out, with another inode or length than in the recording: {}",
            files(result.changed.len()),
            list_names(names)
        ));
    }
    if !result.missing.is_empty() {
        let name = |(path, reason): &(PathBuf, String)| {
            format!("{}: {reason}", printable(&path.to_string_lossy()))
        };
        lines.push(format!(
            "{} left out, which cannot be opened: {}",
            files(result.missing.len()),
            list_names(result.missing.iter().map(name).collect())
        ));
    }
    lines
}
