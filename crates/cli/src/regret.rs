//! `readpath regret`: the law `adaptive` against the best classic law of each cell.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::Args;
use indicatif::ProgressBar;
use readpath_sim::regret::{Cell, Judged, Size, Summary, cells};
use readpath_sim::simulate::SimulateError;
use serde::Serialize;

use crate::exit::{Ended, Failure};
use crate::output::print;
use crate::progress::Interrupt;
use crate::table::{Table, number};

/// `readpath regret`.
#[derive(Debug, Args)]
#[command(
    after_help = "A cell is DEVICE/WORKLOAD/PROCESSES. Its rivals are the classic readahead \
    laws under\neach classic scheduler; the figure is the throughput of `adaptive` ÷ that of the \
    best of\nthem. What is below 0.95 is a regret.\n\n\
    Example:\n  \
    readpath regret --cells /hdd-1/,mmap"
)]
pub struct RegretArgs {
    /// Only the cells whose name contains each of these, as in `/hdd-1/,seq`
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    pub cells: Vec<String>,
    /// Do a sixty-fourth of the work: shows that the cells run, and judges nothing
    #[arg(long)]
    pub smoke: bool,
    /// Print every cell, not only the summary and the worst
    #[arg(long)]
    pub all: bool,
    /// How many cells run at a time [default: the processors that there are]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZero<usize>>,
    /// Seed of everything that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON document in place of the table
    #[arg(long)]
    pub json: bool,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    readpath: &'static str,
    seed: u64,
    summary: &'a Summary,
    results: &'a [Judged],
}

/// Runs the matrix, or a part of it.
pub fn run(args: &RegretArgs) -> Ended {
    let parts: Vec<&str> = args.cells.iter().map(String::as_str).collect();
    let cells = cells(&parts);
    if cells.is_empty() {
        return Err(Failure::Usage(format!(
            "no cell is called `{}`; a name is DEVICE/WORKLOAD/PROCESSES, as in hdd-1/seq-4k/16",
            args.cells.join(",")
        )));
    }
    let size = Size { seed: args.seed, part: if args.smoke { 64 } else { 1 } };
    let interrupt = Interrupt::listen();
    let judged = judge_all(&cells, size, threads(args), &interrupt).map_err(Failure::usage)?;
    if interrupt.has_come() {
        return Err(Failure::Interrupted);
    }
    let summary = Summary::of(&judged);
    if args.json {
        let readpath = env!("CARGO_PKG_VERSION");
        let document = Document { readpath, seed: args.seed, summary: &summary, results: &judged };
        let text = serde_json::to_string_pretty(&document).expect("cells are plain data");
        return print(&format!("{text}\n"));
    }
    print(&text(&judged, &summary, args.all))
}

fn threads(args: &RegretArgs) -> usize {
    let there = || thread::available_parallelism().map_or(1, NonZero::get);
    args.threads.map_or_else(there, NonZero::get)
}

/// Judges the cells, some at a time; in their order however many threads there are.
fn judge_all(
    cells: &[Cell],
    size: Size,
    threads: usize,
    interrupt: &Interrupt,
) -> Result<Vec<Judged>, SimulateError> {
    let next = AtomicUsize::new(0);
    let bar = ProgressBar::new(cells.len() as u64);
    let worker = || {
        let mut judged = Vec::new();
        while !interrupt.has_come() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(cell) = cells.get(at) else { break };
            judged.push((at, cell.judge(size)?));
            bar.inc(1);
        }
        Ok(judged)
    };
    let mut judged = Vec::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            judged.extend(worker.join().expect("judging a cell does not panic")?);
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    judged.sort_by_key(|&(at, _)| at);
    Ok(judged.into_iter().map(|(_, judged)| judged).collect())
}

fn text(judged: &[Judged], summary: &Summary, is_all: bool) -> String {
    let mut table = Table::new(
        ["cell", "best rival", "MiB/s", "adaptive", "ratio", "ampl", "cover", "KiB/req", "depth"],
        2,
    );
    let mut shown: Vec<&Judged> = judged.iter().collect();
    if !is_all {
        shown.sort_by(|one, two| one.ratio.total_cmp(&two.ratio));
        shown.truncate(summary.worst.len());
    }
    for cell in shown {
        table.row(vec![
            cell.name(),
            cell.rivals[0].laws(),
            number(Some(cell.rivals[0].mib_per_s), 2),
            number(Some(cell.adaptive.mib_per_s), 2),
            number(Some(cell.ratio), 3),
            number(cell.adaptive.amplification, 2),
            number(cell.adaptive.coverage, 2),
            number(cell.adaptive.device_request_kib_mean, 0),
            number(cell.adaptive.device_depth_mean, 1),
        ]);
    }
    format!(
        "{table}\n{} cells: minimum {}, geometric mean {}, {} below 0.95\n",
        summary.cells,
        number(summary.minimum, 3),
        number(summary.geometric_mean, 3),
        summary.below_95_percent
    )
}
