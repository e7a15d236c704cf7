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

/// Starts the program, prepares the tracing, and advises until the program ends, `time_max` is
/// over, or a signal comes. At most `bytes_max` bytes are prefetched and not yet used. Without
/// tracing the program runs on without advice, which is said.
pub(super) fn run(
    args: &RecordPlan,
    permit: TracingPermit,
    time_max: Option<Duration>,
    bytes_max: u64,
) -> CommandResult {
    let (name, mut command) = program_command(args);
    let start = Instant::now();
    let child =
        command.spawn().map_err(|error| Failure::usage_of(args.command[0].display(), error))?;
    match Recorder::start_advised(bytes_max, Some(permit)) {
        Ok(recorder) => record_traced(args, recorder, time_max, |recorder| {
            recorder.attach_program(child.id()).map_err(Failure::usage)?;
            Ok((name, Some(child)))
        }),
        Err(error) => {
            notice::print(format_args!("{name} runs without advice: {error}"));
            wait_for(child, &name, start, time_max)
        }
    }
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
