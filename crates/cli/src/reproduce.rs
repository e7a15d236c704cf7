//! `readpath reproduce`: the sources' tables, published beside modelled.

use readpath_sim::experiment::{EXPERIMENTS, Experiment, Grid, NOT_YET, Reproduced};

use crate::args::ReproduceArgs;
use crate::exit::{Ended, Failure};
use crate::output::{print, print_json};
use crate::progress::{Bar, Interrupt};
use crate::table::{Table, number};

/// Prints the tables that are named, or all that there are.
pub fn run(args: &ReproduceArgs) -> Ended {
    let experiments = chosen(&args.tables)?;
    let interrupt = Interrupt::listen();
    let mut tables = Vec::new();
    for experiment in experiments {
        let bar = Bar::new(format!("table {}", experiment.name), interrupt.clone());
        let table = experiment.run(args.seed, 1, &mut |progress| bar.tell(progress));
        tables.extend(table.map_err(Failure::usage)?);
        if interrupt.has_come() {
            return Err(Failure::Interrupted);
        }
    }
    if args.json {
        return print_json(&tables, args.seed);
    }
    tables.iter().try_for_each(|table| print(&text(table)))?;
    if args.tables.is_empty() {
        print(&not_yet())?;
    }
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Experiment>, Failure> {
    if names.is_empty() {
        return Ok(EXPERIMENTS.iter().collect());
    }
    let find = |name: &String| {
        let is_named = |experiment: &&Experiment| experiment.name.eq_ignore_ascii_case(name);
        EXPERIMENTS.iter().find(is_named).ok_or_else(|| {
            let there: Vec<&str> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
            Failure::Usage(format!(
                "there is no table `{name}`; there are: {}\n{}",
                there.join(", "),
                not_yet().trim_end()
            ))
        })
    };
    names.iter().map(find).collect()
}

fn not_yet() -> String {
    let lines: Vec<String> =
        NOT_YET.iter().map(|(name, what)| format!("  {name}  {what}\n")).collect();
    format!("Not there yet:\n{}", lines.concat())
}

fn text(reproduced: &Reproduced) -> String {
    let table = match &reproduced.grid {
        Some(grid) => grid_table(grid),
        None => rows_table(reproduced),
    };
    format!(
        "Table {}: {}, in {}\nMachine: {}\n\n{table}\n",
        reproduced.table, reproduced.title, reproduced.unit, reproduced.machine
    )
}

/// Each row of the grid: what is published, if anything is, and below it what is modelled.
fn grid_table(grid: &Grid) -> Table {
    let columns = grid.columns.iter().map(u32::to_string);
    let header = ["".to_owned(), "laws".to_owned(), grid.over.clone()].into_iter().chain(columns);
    let mut table = Table::with_header(header.collect(), 3);
    for row in &grid.rows {
        let is_published = row.published.iter().any(Option::is_some);
        let names = [row.label.clone(), row.laws.clone()];
        let mut names = names.into_iter();
        let mut line = |what: &str, figures: Vec<Option<f64>>| {
            let mut cells = vec![
                names.next().unwrap_or_default(),
                names.next().unwrap_or_default(),
                what.to_owned(),
            ];
            cells.extend(figures.into_iter().map(|figure| number(figure, 0)));
            table.row(cells);
        };
        if is_published {
            line("published", row.published.clone());
        }
        line("modelled", row.modelled.iter().copied().map(Some).collect());
    }
    table
}

fn rows_table(reproduced: &Reproduced) -> Table {
    let swaps = reproduced.rows.iter().any(|row| row.pages_in.is_some());
    let header =
        ["", "laws", "published", "ratio", "modelled", "ratio", "device requests", "KiB mean"];
    let swapped = ["pages in", "pages out"].into_iter().filter(|_| swaps);
    let header = header.into_iter().chain(swapped).map(str::to_owned);
    let mut table = Table::with_header(header.collect(), 2);
    let count = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |n| n.to_string());
    for row in &reproduced.rows {
        let mut cells = vec![
            row.label.clone(),
            row.laws.clone(),
            number(row.published, 2),
            number(row.published_ratio, 2),
            number(Some(row.modelled), 2),
            number(Some(row.modelled_ratio), 2),
            count(row.device_requests),
            number(row.device_request_kib_mean, 1),
        ];
        if swaps {
            cells.extend([count(row.pages_in), count(row.pages_out)]);
        }
        table.row(cells);
    }
    table
}
