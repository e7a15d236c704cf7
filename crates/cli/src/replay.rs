//! `readpath replay` of a list of arrivals and completions: prints the decisions of a scheduler on
//! it. The list may be the log of another scheduler, to compare both. Recordings of programs are
//! handled by `crate::replay_recording`.

use readpath_core::request::DeviceCaps;
use readpath_core::scheduler;
use readpath_core::unit::SECTOR_BYTES;
use readpath_models::input_file;
use readpath_trace::scheduler_replay::{Replayed, replay};
use serde::Serialize;

use crate::args::ReplayArgs;
use crate::exit::{CommandResult, Failure};
use crate::input;
use crate::output::{print, print_json, print_plain};
use crate::replay_recording;

/// Maximum size of a request, including merged ones. Equals the kernel's usual `max_sectors_kb` of
/// 512.
const REQUEST_BYTES_MAX: u64 = 512 << 10;

/// Queue depth without `--depth`. Chosen, not measured.
const DEPTH: u32 = 32;

/// Replays a recording, or compares the decisions of a scheduler with a list of events, `cfq` by
/// default. Fails if a request of the list differs.
pub fn run(args: &ReplayArgs) -> CommandResult {
    if replay_recording::is_recording(&args.events) {
        let options_of_lists =
            [("--depth", args.depth.is_some()), ("--solid-state", args.solid_state)];
        refuse_options(args, &options_of_lists, "lists of scheduler events")?;
        return replay_recording::run(args);
    }
    let options_of_recordings = [
        ("--on", !args.storages.is_empty()),
        ("--readahead", args.readahead.is_some()),
        ("--eviction", args.eviction.is_some()),
        ("--memory", !args.memory.is_empty()),
        ("--seed", args.seed.is_some()),
        ("--html", args.html.is_some()),
    ];
    let depth = args.depth.unwrap_or(DEPTH);
    let policy_text = args.scheduler.as_deref().unwrap_or("cfq");
    let policy = &input::parse_scheduler(policy_text)?;
    // The list does not describe its device: any request fits, and single sectors are allowed.
    let caps = DeviceCaps {
        sectors: u64::MAX,
        request_sectors_max: (REQUEST_BYTES_MAX / SECTOR_BYTES) as u32,
        depth_max: depth,
        is_rotational: !args.solid_state,
        alignment_sectors: 1,
    };
    let mut scheduler = scheduler::build(policy, &caps).map_err(Failure::usage)?;
    let events = input_file::text(&args.events, input_file::LIST_BYTES_MAX).map_err(|error| {
        let what_to_do = match args.events.is_file() {
            true => "name a list of events, or a recording",
            false => "name a file: a recording is read twice, and a pipe holds a list of events",
        };
        Failure::Usage(format!("{}: {error}; {what_to_do}", args.events.display()))
    })?;
    // Not before: the text of a pipe may be a recording.
    refuse_options(args, &options_of_recordings, "recordings")?;
    let replayed = replay(scheduler.as_mut(), depth, &events)
        .map_err(|error| Failure::usage_of(args.events.display(), error))?;
    let (equal, judged) = (replayed.equal(), replayed.judged);
    if args.json {
        let no_seed = None;
        print_json(&[DecisionComparison::new(policy_text, &replayed)], no_seed)?;
    } else {
        replayed.lines.iter().try_for_each(|line| print_plain(&format!("{line}\n")))?;
        print(&format!("# {equal} of {judged} requests equal\n"))?;
    }
    match judged - equal {
        0 => Ok(()),
        count => Err(Failure::Run(format!("{count} of {judged} requests differ"))),
    }
}

/// Refuses the first of the options that was given: it would have no effect on the file. The
/// options are for files of the kind `files`.
fn refuse_options(args: &ReplayArgs, options: &[(&str, bool)], files: &str) -> CommandResult {
    match options.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => {
            let problem = format!("{option} is for {files}; leave it out");
            Err(Failure::usage_of(args.events.display(), problem))
        }
        None => Ok(()),
    }
}

/// Comparison in the JSON document.
#[derive(Serialize)]
struct DecisionComparison<'a> {
    /// Policy as given on the command line.
    scheduler: &'a str,
    /// Number of requests that were compared.
    judged: usize,
    /// Number of compared requests on which both agree.
    equal: usize,
    /// The requests on which they disagree.
    divergences: Vec<LineDifference>,
    /// Every decision of the scheduler, one per line.
    decisions: &'a [String],
}

/// One difference; lines count from 1.
#[derive(Serialize)]
struct LineDifference {
    /// Line of the list.
    line: usize,
    /// Time of the line.
    at_ms: f64,
    /// Number of the request in the list.
    request: u32,
    /// Action of the scheduler on it, as one word.
    policy: &'static str,
    /// Request that was dispatched instead, or into which this one was merged.
    other: Option<u32>,
}

impl<'a> DecisionComparison<'a> {
    /// Converts the replay of a list; `scheduler` is the policy as given on the command line.
    fn new(scheduler: &'a str, replayed: &'a Replayed) -> DecisionComparison<'a> {
        let divergences = replayed.divergences.iter().map(|divergence| {
            let (policy, other) = divergence.policy.words();
            LineDifference {
                line: divergence.line,
                at_ms: divergence.at.ns() as f64 / 1e6,
                request: divergence.request.0,
                policy,
                other: other.map(|other| other.0),
            }
        });
        DecisionComparison {
            scheduler,
            judged: replayed.judged,
            equal: replayed.equal(),
            divergences: divergences.collect(),
            decisions: &replayed.lines,
        }
    }
}
