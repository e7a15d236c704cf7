//! `readpath cache-regret`: what to keep, judged cell by cell.

use std::sync::Arc;

use readpath_core::reclaim;
use readpath_sim::caching::{Cell, Fixed, Judged, Size, Summary, cells};
use serde::Serialize;

use crate::args::CacheRegretArgs;
use crate::at_once;
use crate::cache::{self, read_traces};
use crate::exit::{Ended, Failure};
use crate::html::heat::{self, Map, Place};
use crate::html::{Page, check_writable};
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
    check_writable(args.html.as_deref())?;
    let chosen = chosen(args)?;
    // A cell takes as long as its trace is long, and leaves nothing.
    let interrupt = Interrupt::that_ends_at_once();
    let judge = |cell: &Cell| cell.judge(law).map_err(Failure::usage);
    let judged = at_once::each(&chosen, &judge, args.threads, &interrupt)?;
    let summary = Summary::of(&judged);
    if let Some(path) = &args.html {
        page(&judged, &summary).write(path)?;
    }
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
    format!("{}\n{}\n{}\n", cells_table(&shown), laws_table(summary), sentence(summary))
}

fn cells_table(shown: &[&Judged]) -> Table {
    let columns: [Column<&Judged>; 7] = [
        ("cell", |cell| cell.cell.clone()),
        ("best rival", |cell| cell.rivals[0].reclaim.clone()),
        ("cost", |cell| number(Some(cell.rivals[0].cost_ratio), 4)),
        ("judged", |cell| number(Some(cell.judged.cost_ratio), 4)),
        ("ratio", |cell| number(Some(cell.ratio), 3)),
        ("optimum", |cell| number(cell.optimum.as_ref().map(|run| run.cost_ratio), 4)),
        ("two-lists", |cell| number(cell.under("two-lists").map(|run| run.cost_ratio), 4)),
    ];
    Table::of(shown, &columns, 2)
}

fn laws_table(summary: &Summary) -> Table {
    let columns: [Column<Fixed>; 5] = [
        ("everywhere", |law| law.reclaim.clone()),
        ("maximum", |law| number(Some(law.maximum), 3)),
        ("geometric mean", |law| number(Some(law.geometric_mean), 3)),
        ("above 1.02", |law| law.above_102_percent.to_string()),
        ("to the optimum", |law| number(law.distance_to_optimum, 4)),
    ];
    Table::of(&summary.fixed, &columns, 1)
}

fn sentence(summary: &Summary) -> String {
    format!(
        "{} cells: maximum {}, geometric mean {}, {} above 1.02; to two-lists \
         {} at the most",
        summary.cells,
        number(summary.maximum, 3),
        number(summary.geometric_mean, 3),
        summary.above_102_percent,
        number(summary.two_lists_maximum, 3),
    )
}

/// Every cell as a page.
fn page(judged: &[Judged], summary: &Summary) -> Page {
    let title = "What to keep, cell by cell";
    let mut page = Page::new(title, &sentence(summary));
    page.heading("Every law in every cell");
    let caption = "The least cost of any law ÷ this law's: 1 is the best of the cell, ½ costs twice as \
                   much. Point at a square for its figures.";
    page.picture(caption, &heat::draw(title, &map(judged)));
    page.heading("Cells");
    let all: Vec<&Judged> = judged.iter().collect();
    page.table(
        "Cost to what it would be without memory; ratio: judged ÷ best rival",
        &cells_table(&all),
    );
    page.heading("One law everywhere");
    page.table("Each law's cost ÷ that of the best of each cell", &laws_table(summary));
    page
}

fn map(judged: &[Judged]) -> Map {
    let mut map = Map::default();
    for (row, cell) in judged.iter().enumerate() {
        map.rows.push(cell.cell.clone());
        let runs = || std::iter::once(&cell.judged).chain(&cell.rivals);
        let least = runs().map(|run| run.cost).min().unwrap_or(0).max(1);
        for run in runs() {
            let known = map.columns.iter().position(|law| *law == run.reclaim);
            let column = known.unwrap_or_else(|| {
                map.columns.push(run.reclaim.clone());
                map.columns.len() - 1
            });
            let ratio = least as f64 / run.cost.max(1) as f64;
            let told =
                format!("{} {}: costs {:.4}, {ratio:.3}", cell.cell, run.reclaim, run.cost_ratio);
            map.places.push(Place { row, column, ratio, told });
        }
    }
    map
}
