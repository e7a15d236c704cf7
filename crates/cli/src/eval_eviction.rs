//! `readpath eval eviction`: judges an eviction policy, cell by cell. A *cell* is a load with less
//! memory than it needs.

use std::sync::Arc;

use readpath_core::eviction;
use readpath_eval::eviction_matrix::{
    EvictionCell, EvictionSummary, FixedPolicyResult, JudgedEviction, LoadSize, cells,
};
use serde::Serialize;

use crate::args::EvalEvictionArgs;
use crate::at_once;
use crate::cachesim::{self, read_traces};
use crate::exit::{CommandResult, Failure};
use crate::html::heat::{self, HeatCell, HeatMap};
use crate::html::{Page, check_output_folder};
use crate::input;
use crate::output::{print, print_document};
use crate::progress::Interrupt;
use crate::table::{Column, Table, number};

/// JSON document of the command.
#[derive(Serialize)]
struct EvictionDocument<'a> {
    /// Version of this command.
    readpath: &'static str,
    /// Seed of all random choices.
    seed: u64,
    /// True if only a part of the work was done, as a check: the figures are not meaningful.
    smoke: bool,
    /// Summary of all cells.
    summary: &'a EvictionSummary,
    /// One result for each cell.
    results: &'a [JudgedEviction],
}

/// Runs the matrix, or the cells chosen by `--cells`. Prints the results as text or JSON, and
/// writes the page of `--html`.
pub fn run(args: &EvalEvictionArgs) -> CommandResult {
    let [policy] = &input::parse_specs(&args.eviction)?[..] else {
        return Err(Failure::Usage(format!("--eviction {}: name one policy", args.eviction)));
    };
    // A cache of any size shows if the policy is valid.
    let cache_pages = 1;
    eviction::build(policy, cache_pages).map_err(Failure::usage)?;
    check_output_folder(args.html.as_deref())?;
    let chosen = select_cells(args)?;
    // An immediate end of the process is safe: a cell leaves no files behind.
    let interrupt = Interrupt::ending_at_once();
    let judge = |cell: &EvictionCell| cell.judge(policy).map_err(Failure::usage);
    let judged = at_once::process_all(&chosen, &judge, args.threads, &interrupt)?;
    let summary = EvictionSummary::of(&judged);
    let printed = if args.json {
        let readpath = env!("CARGO_PKG_VERSION");
        let (seed, smoke) = (args.seed, args.smoke);
        let document =
            EvictionDocument { readpath, seed, smoke, summary: &summary, results: &judged };
        print_document(&document)
    } else {
        print(&results_text(&judged, &summary, args.all))
    };
    if let Some(path) = &args.html {
        page(&judged, &summary).write(path)?;
    }
    printed
}

/// Returns the cells chosen by `--cells`: the generated loads, then the given traces, which are
/// read here. `--sizes` applies to the traces alone. Without any cell, the failure describes the
/// names.
fn select_cells(args: &EvalEvictionArgs) -> Result<Vec<EvictionCell>, Failure> {
    let parts: Vec<&str> = args.cells.iter().map(String::as_str).collect();
    // `part` is the divisor of each load's work.
    let size = LoadSize { seed: args.seed, part: if args.smoke { 64 } else { 1 } };
    let mut chosen = cells(&parts, size);
    let sizes = cachesim::CacheSize::parse_all(&args.sizes)?;
    for cachesim::NamedTrace { name, trace } in read_traces(&args.traces, &args.read)? {
        let trace = Arc::new(trace);
        let cell_of_size = |size: &cachesim::CacheSize| {
            EvictionCell::from_trace(&name, &size.text, trace.clone(), size.pages(&trace))
        };
        let cells_of_trace = sizes.iter().map(cell_of_size);
        chosen.extend(cells_of_trace.filter(|cell| cell.matches_name(&parts)));
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

/// Returns the output as text: the summary, the worst cells, and the fixed policies. There are as
/// many worst cells as in the summary. If `shows_all`, all cells are shown, in the order of the
/// matrix.
fn results_text(judged: &[JudgedEviction], summary: &EvictionSummary, shows_all: bool) -> String {
    let mut shown: Vec<&JudgedEviction> = judged.iter().collect();
    if !shows_all {
        // The highest ratio is the worst: it is a ratio of costs.
        shown.sort_by(|left, right| right.ratio.total_cmp(&left.ratio));
        shown.truncate(summary.worst.len());
    }
    format!("{}\n\n{}\n{}", summary_sentence(summary), cells_table(&shown), policies_table(summary))
}

/// Table with one row per cell: costs of the best baseline (the first of at least one), the judged
/// policy, the optimum, and `two-lists`. A cost is divided by the cost without memory. `ratio` is
/// the judged policy's cost ÷ the best baseline's.
fn cells_table(shown: &[&JudgedEviction]) -> Table {
    let columns: [Column<&JudgedEviction>; 7] = [
        ("cell", |cell| cell.cell.clone()),
        ("best baseline", |cell| cell.baselines[0].eviction.clone()),
        ("cost", |cell| number(Some(cell.baselines[0].cost_ratio), 4)),
        ("judged", |cell| number(Some(cell.judged.cost_ratio), 4)),
        ("ratio", |cell| number(Some(cell.ratio), 3)),
        ("optimum", |cell| number(cell.optimum.as_ref().map(|run| run.cost_ratio), 4)),
        ("two-lists", |cell| number(cell.result_of("two-lists").map(|run| run.cost_ratio), 4)),
    ];
    let numbers_from = 2;
    Table::of(shown, &columns, numbers_from)
}

/// Table of each policy's result if it were used in every cell. `maximum` and `geometric mean` are
/// of the ratios of its cost to the best baseline's cost in each cell. `to the optimum` is the mean
/// difference in miss ratio. Less is better.
fn policies_table(summary: &EvictionSummary) -> Table {
    let columns: [Column<FixedPolicyResult>; 5] = [
        ("everywhere", |policy| policy.eviction.clone()),
        ("maximum", |policy| number(Some(policy.maximum), 3)),
        ("geometric mean", |policy| number(Some(policy.geometric_mean), 3)),
        ("above 1.02", |policy| policy.above_102_percent.to_string()),
        ("to the optimum", |policy| number(policy.distance_to_optimum, 4)),
    ];
    let numbers_from = 1;
    Table::of(&summary.fixed, &columns, numbers_from)
}

/// Summary of all cells in one sentence. The numbers are ratios of the judged policy's cost to the
/// cost of the best baseline; less is better.
fn summary_sentence(summary: &EvictionSummary) -> String {
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

/// HTML page: the summary, a heat map of every policy in every cell, and the tables of the cells
/// and of the policies.
fn page(judged: &[JudgedEviction], summary: &EvictionSummary) -> Page {
    let title = "Eviction policies, cell by cell";
    let mut page = Page::new(title, &summary_sentence(summary));
    page.heading("Every policy in every cell");
    let caption = "The least cost of any policy ÷ this policy's: 1 is the best of the cell, ½ costs twice as \
                   much. Point at a square for its figures.";
    page.picture(caption, &heat::draw(title, &heat_map(judged)));
    page.heading("Cells");
    let cells: Vec<&JudgedEviction> = judged.iter().collect();
    page.table("Cost ÷ cost without memory; ratio: judged ÷ best baseline", &cells_table(&cells));
    page.heading("One policy everywhere");
    page.table("Each policy's cost ÷ that of the best of each cell", &policies_table(summary));
    page
}

/// Heat map with one row per cell and one column per policy: least cost ÷ cost.
fn heat_map(judged: &[JudgedEviction]) -> HeatMap {
    let mut map = HeatMap::default();
    for (row, cell) in judged.iter().enumerate() {
        map.rows.push(cell.cell.clone());
        let runs = || std::iter::once(&cell.judged).chain(&cell.baselines);
        // A cost of 0 counts as 1, so that every ratio is finite. There is always a judged run.
        let least_cost = runs().map(|run| run.cost).min().unwrap_or(0).max(1);
        for run in runs() {
            let column_index = map.columns.iter().position(|policy| *policy == run.eviction);
            let column = column_index.unwrap_or_else(|| {
                map.columns.push(run.eviction.clone());
                map.columns.len() - 1
            });
            let ratio = least_cost as f64 / run.cost.max(1) as f64;
            let tooltip =
                format!("{} {}: costs {:.4}, {ratio:.3}", cell.cell, run.eviction, run.cost_ratio);
            map.cells.push(HeatCell { row, column, ratio, tooltip });
        }
    }
    map
}
