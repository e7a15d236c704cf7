//! `readpath cache-regret`: what to keep, judged cell by cell.

use std::sync::Arc;

use readpath_core::reclaim;
use readpath_sim::caching::{Cell, Fixed, Judged, Size, Summary, cells};
use serde::Serialize;

use crate::args::CacheRegretArgs;
use crate::at_once;
use crate::cache::{self, read_traces};
use crate::exit::{Ended, Failure};
use crate::input;
use crate::output::print;
use crate::progress::Interrupt;
use crate::table::{Column, Table, number};

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    readpath: &'static str,
    seed: u64,
    smoke: bool,
    summary: &'a Summary,
    results: &'a [Judged],
}

/// Runs the matrix, or a part of it.
pub fn run(args: &CacheRegretArgs) -> Ended {
    let [law] = &input::specs(&args.reclaim)?[..] else {
        return Err(Failure::Usage(format!("--reclaim {}: name one law", args.reclaim)));
    };
    reclaim::build(law, 1).map_err(Failure::usage)?;
    let chosen = chosen(args)?;
    let interrupt = Interrupt::listen();
    let judge = |cell: &Cell| cell.judge(law).map_err(Failure::usage);
    let judged = at_once::each(&chosen, &judge, args.threads, &interrupt)?;
    if interrupt.has_come() {
        return Err(Failure::Interrupted);
    }
    let summary = Summary::of(&judged);
    if args.json {
        let readpath = env!("CARGO_PKG_VERSION");
        let (seed, smoke) = (args.seed, args.smoke);
        let document = Document { readpath, seed, smoke, summary: &summary, results: &judged };
        let text = serde_json::to_string_pretty(&document).expect("cells are plain data");
        return print(&format!("{text}\n"));
    }
    print(&text(&judged, &summary, args.all))
}

/// The cells that were asked for: those made here, and those of traces.
fn chosen(args: &CacheRegretArgs) -> Result<Vec<Cell>, Failure> {
    let parts: Vec<&str> = args.cells.iter().map(String::as_str).collect();
    let size = Size { seed: args.seed, part: if args.smoke { 64 } else { 1 } };
    let mut chosen = cells(&parts, size);
    let sizes = cache::Size::parse_all(&args.sizes)?;
    for cache::Named { name, trace } in read_traces(&args.traces, &args.read)? {
        let trace = Arc::new(trace);
        let of = |size: &cache::Size| {
            Cell::of_trace(&name, &size.text, trace.clone(), size.pages(&trace))
        };
        chosen.extend(sizes.iter().map(of).filter(|cell| cell.is_called(&parts)));
    }
    if chosen.is_empty() {
        let parts = args.cells.join(",");
        return Err(Failure::Usage(format!(
            "no cell is called `{parts}`; a name is references/LOAD/SIZE, reads/LOAD or touches/LOAD, \
             as in references/zipf/20%, reads/scan-1k, touches/zipf-200%"
        )));
    }
    Ok(chosen)
}

fn text(judged: &[Judged], summary: &Summary, is_all: bool) -> String {
    let mut shown: Vec<&Judged> = judged.iter().collect();
    if !is_all {
        shown.sort_by(|one, two| two.ratio.total_cmp(&one.ratio));
        shown.truncate(summary.worst.len());
    }
    let columns: [Column<&Judged>; 7] = [
        ("cell", |cell| cell.cell.clone()),
        ("best rival", |cell| cell.rivals[0].reclaim.clone()),
        ("cost", |cell| number(Some(cell.rivals[0].cost_ratio), 4)),
        ("judged", |cell| number(Some(cell.judged.cost_ratio), 4)),
        ("ratio", |cell| number(Some(cell.ratio), 3)),
        ("optimum", |cell| number(cell.optimum.as_ref().map(|run| run.cost_ratio), 4)),
        ("two-lists", |cell| number(cell.under("two-lists").map(|run| run.cost_ratio), 4)),
    ];
    let cells = Table::of(&shown, &columns, 2);
    let columns: [Column<Fixed>; 5] = [
        ("everywhere", |law| law.reclaim.clone()),
        ("maximum", |law| number(Some(law.maximum), 3)),
        ("geometric mean", |law| number(Some(law.geometric_mean), 3)),
        ("above 1.02", |law| law.above_102_percent.to_string()),
        ("to the optimum", |law| number(law.distance_to_optimum, 4)),
    ];
    let fixed = Table::of(&summary.fixed, &columns, 1);
    format!(
        "{cells}\n{fixed}\n{} cells: maximum {}, geometric mean {}, {} above 1.02; to two-lists \
         {} at the most\n",
        summary.cells,
        number(summary.maximum, 3),
        number(summary.geometric_mean, 3),
        summary.above_102_percent,
        number(summary.two_lists_maximum, 3),
    )
}
