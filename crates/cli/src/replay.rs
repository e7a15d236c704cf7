//! `readpath replay`: what a scheduler decides on a list of arrivals and
//! completions that was written down elsewhere, so that a log from another
//! scheduler can be held against it.

use std::path::PathBuf;

use clap::Args;
use readpath_core::request::DeviceCaps;
use readpath_core::scheduler::{self, replay::replay};
use readpath_core::unit::SECTOR_BYTES;

use crate::args;
use crate::exit::{Ended, Failure};
use crate::output::print;

/// The largest request, merged ones included: the kernel's usual `max_sectors_kb`, 512.
const REQUEST_BYTES_MAX: u64 = 512 << 10;

/// `readpath replay`.
#[derive(Debug, Args)]
#[command(after_help = "FILE has one event a line, in the order of time:\n  \
    at_ms=0    event=arrive request=1 process=1 op=read start=0 sectors=8\n  \
    at_ms=1.25 event=complete request=1\n  \
    at_ms=9    event=wait                time passes\n  \
    at_ms=9    event=end process=1       the process is gone\n  \
    # …                                  a comment\n\
    An arrival may say class=rt|be|idle (be), level=0..7 (4) and sync=yes|no (yes for a read).\n\
    Printed are the decisions, one a line, as `readpath run --log` writes them.")]
pub struct ReplayArgs {
    /// The list of events
    #[arg(value_name = "FILE")]
    pub events: PathBuf,
    /// The scheduler
    #[arg(long, value_name = "LAW", default_value = "cfq")]
    pub scheduler: String,
    /// How many requests the device takes at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: u32,
    /// The device has no head that moves
    #[arg(long)]
    pub solid_state: bool,
}

/// Prints the law's decisions.
pub fn run(args: &ReplayArgs) -> Ended {
    let laws = args::specs(&args.scheduler)?;
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
    let lines = replay(scheduler.as_mut(), args.depth, &events)
        .map_err(|error| Failure::about(args.events.display(), error))?;
    lines.iter().try_for_each(|line| print(&format!("{line}\n")))
}
