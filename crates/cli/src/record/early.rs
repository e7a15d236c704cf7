//! Advice for a program that starts before the tracing is prepared.
//!
//! The preparation takes a tenth of a second, longer on a busy machine. The program runs meanwhile;
//! its reads of that time are not seen.

use std::process::Child;
use std::time::{Duration, Instant};

use readpath_record::capture::{Recorder, TracingPermit};
use readpath_record::notice;

use crate::exit::{CommandResult, Failure};
use crate::signals;

use super::{READ_INTERVAL, RecordPlan, program_command, program_failure, record_traced};

/// Interval between two attempts to take the lock for the preparation.
const LOCK_INTERVAL: Duration = Duration::from_millis(2);

/// Starts the program, prepares the tracing, and advises until the program ends, `time_max` is
/// over, or a signal comes. At most `bytes_max` bytes are prefetched and not yet used. Without
/// tracing the program runs on without advice, and a notice says so.
pub(super) fn run(
    args: &RecordPlan,
    mut permit: TracingPermit,
    time_max: Option<Duration>,
    bytes_max: u64,
) -> CommandResult {
    let (name, mut command) = program_command(args);
    let start = Instant::now();
    let mut child =
        command.spawn().map_err(|error| Failure::usage_of(args.command[0].display(), error))?;
    let ended_early = |status| {
        notice::print(format_args!(
            "no page was prefetched: {name} ended before the tracing was prepared"
        ));
        program_failure(&name, Some(status), false)
    };
    // An earlier recorder may still remove its objects in the kernel.
    while !permit.try_lock() && !signals::is_interrupted() {
        if let Some(status) = child.try_wait().map_err(Failure::usage)? {
            return ended_early(status);
        }
        std::thread::sleep(LOCK_INTERVAL);
    }
    let recorder = match Recorder::start_advised(bytes_max, Some(permit)) {
        Ok(recorder) => recorder,
        Err(error) => {
            notice::print(format_args!("{name} runs without advice: {error}"));
            return wait_for(child, &name, start, time_max);
        }
    };
    if let Some(status) = child.try_wait().map_err(Failure::usage)? {
        recorder.cancel().remove_in_background();
        return ended_early(status);
    }
    record_traced(args, recorder, time_max, |recorder| {
        recorder.attach_program(child.id()).map_err(Failure::usage)?;
        Ok((name, Some(child)))
    })
}

/// Waits until the program ends, `time_max` after `start` is over, or a signal comes.
fn wait_for(
    mut child: Child,
    name: &str,
    start: Instant,
    time_max: Option<Duration>,
) -> CommandResult {
    while !signals::is_interrupted() && time_max.is_none_or(|time_max| start.elapsed() < time_max) {
        if let Some(status) = child.try_wait().map_err(Failure::usage)? {
            return program_failure(name, Some(status), false);
        }
        std::thread::sleep(READ_INTERVAL);
    }
    notice::print("the program runs on");
    Ok(())
}
