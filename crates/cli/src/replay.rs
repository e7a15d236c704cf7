//! `readpath replay`: what a scheduler decides on a list of arrivals and
//! completions that was written down elsewhere, so that a log from another
//! scheduler can be held against it.

use readpath_core::request::DeviceCaps;
use readpath_core::scheduler::{self, replay};
use readpath_core::unit::SECTOR_BYTES;
use serde::Serialize;

use crate::args::ReplayArgs;
use crate::exit::{Ended, Failure};
use crate::input;
use crate::output::{print, print_json};

/// The largest request, merged ones included: the kernel's usual `max_sectors_kb`, 512.
const REQUEST_BYTES_MAX: u64 = 512 << 10;

/// Prints the law's decisions.
pub fn run(args: &ReplayArgs) -> Ended {
    let laws = input::specs(&args.scheduler)?;
    let [law] = laws.as_slice() else {
        return Err(Failure::Usage(format!(
            "--scheduler {}: name one scheduler; run the command once for each",
            args.scheduler
        )));
    };
    let caps = DeviceCaps {
        sectors: u64::MAX,
        request_sectors_max: (REQUEST_BYTES_MAX / SECTOR_BYTES) as u32,
        depth_max: args.depth,
        is_rotational: !args.solid_state,
        alignment_sectors: 1,
    };
    let mut scheduler = scheduler::build(law, &caps).map_err(Failure::usage)?;
    let events = std::fs::read_to_string(&args.events).map_err(|error| {
        Failure::Usage(format!("{}: {error}; name a list of events", args.events.display()))
    })?;
    let replayed = replay::replay(scheduler.as_mut(), args.depth, &events)
        .map_err(|error| Failure::about(args.events.display(), error))?;
    let (equal, judged) = (replayed.equal(), replayed.judged);
    if args.json {
        print_json(&[Comparison::new(&args.scheduler, &replayed)], None)?;
    } else {
        replayed.lines.iter().try_for_each(|line| print(&format!("{line}\n")))?;
        print(&format!("# {equal} of {judged} requests equal\n"))?;
    }
    match judged - equal {
        0 => Ok(()),
        count => Err(Failure::Run(format!("{count} of {judged} requests differ"))),
    }
}

/// The comparison in the JSON document.
#[derive(Serialize)]
struct Comparison<'a> {
    scheduler: &'a str,
    judged: usize,
    equal: usize,
    divergences: Vec<Parted>,
    decisions: &'a [String],
}

/// One difference; the line counts from 1.
#[derive(Serialize)]
struct Parted {
    line: usize,
    at_ms: f64,
    request: u32,
    law: &'static str,
    /// The request that went out instead, or that this one was merged into.
    other: Option<u32>,
}

impl<'a> Comparison<'a> {
    fn new(scheduler: &'a str, replayed: &'a replay::Replayed) -> Comparison<'a> {
        let divergences = replayed.divergences.iter().map(|divergence| {
            let (law, other) = divergence.law.words();
            Parted {
                line: divergence.line,
                at_ms: divergence.at.ns() as f64 / 1e6,
                request: divergence.request.0,
                law,
                other: other.map(|other| other.0),
            }
        });
        Comparison {
            scheduler,
            judged: replayed.judged,
            equal: replayed.equal(),
            divergences: divergences.collect(),
            decisions: &replayed.lines,
        }
    }
}
