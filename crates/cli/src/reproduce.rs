//! `readpath reproduce`: tables of the published sources next to the modelled figures.

mod page;
mod wire_count;

use readpath_eval::reproduce::{EXPERIMENTS, Experiment, Grid, ReproducedTable, TableRow};

use crate::args::ReproduceArgs;
use crate::exit::{CommandResult, Failure};
use crate::html::check_output_folder;
use crate::output::{print, print_json};
use crate::progress::{Interrupt, RunProgress};
use crate::table::{Column, Table, count, number};

/// Simulates the named tables, or all, and prints them as text or JSON. Writes the page of
/// `--html`. With `--server`, also counts the READs of a real server.
pub fn run(args: &ReproduceArgs) -> CommandResult {
    check_output_folder(args.html.as_deref())?;
    let experiments = select_tables(&args.tables)?;
    let is_c_chosen = experiments.iter().any(|experiment| experiment.name == "C");
    if args.server.is_some() && !is_c_chosen {
        return Err(Failure::Usage("--server counts table C's READs: name that table".to_owned()));
    }
    // Count first: an error then appears before the long simulations.
    let counted = args.server.as_deref().map(wire_count::count_reads).transpose()?;
    let interrupt = Interrupt::listen();
    // While the guard lives, the process ends 0.8 s after a signal at the latest.
    let _modelled = interrupt.begin_modelled_run();
    let mut tables = Vec::new();
    for experiment in experiments {
        let bar = RunProgress::new(format!("table {}", experiment.name), interrupt.clone());
        // The simulations have their full length; tests shorten them.
        let length_divisor = 1;
        let table = experiment.run(args.seed, length_divisor, &mut |progress| bar.update(progress));
        tables.extend(table.map_err(Failure::usage)?);
        if interrupt.is_signalled() {
            return Err(Failure::Interrupted);
        }
    }
    let printed = print_tables(args, &tables, counted.as_deref());
    if let Some(path) = &args.html {
        let counted_text = counted.as_deref().map(wire_count::rows_text);
        page::reproduction_page(&tables, counted_text).write(path)?;
    }
    printed
}

/// Prints the tables, and the counted READs of a real server, as text or JSON.
fn print_tables(
    args: &ReproduceArgs,
    tables: &[ReproducedTable],
    counted: Option<&[wire_count::WireRow]>,
) -> CommandResult {
    if args.json {
        let value = |table: &ReproducedTable| {
            serde_json::to_value(table).expect("the row has only types that JSON can represent")
        };
        let mut results: Vec<serde_json::Value> = tables.iter().map(value).collect();
        let counted = counted.into_iter().flatten();
        results.extend(counted.map(|row| {
            serde_json::to_value(row).expect("the row has only types that JSON can represent")
        }));
        return print_json(&results, args.seed);
    }
    print(&verdict(tables))?;
    tables.iter().try_for_each(|table| print(&table_text(table)))?;
    if let Some(counted) = counted {
        print(&wire_count::rows_text(counted))?;
    }
    Ok(())
}

/// Returns the named tables, or all. An unknown name is an error.
fn select_tables(names: &[String]) -> Result<Vec<&'static Experiment>, Failure> {
    if names.is_empty() {
        return Ok(EXPERIMENTS.iter().collect());
    }
    let find = |name: &String| {
        let is_named = |experiment: &&Experiment| experiment.name.eq_ignore_ascii_case(name);
        EXPERIMENTS.iter().find(is_named).ok_or_else(|| {
            let names: Vec<&str> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
            Failure::Usage(format!("no table is called `{name}`; there are: {}", names.join(", ")))
        })
    };
    names.iter().map(find).collect()
}

/// Factor within which the verdict counts a modelled figure as near the published one. Chosen, not
/// measured.
const NEAR_FACTOR: f64 = 1.25;

/// A published figure and its modelled one.
struct FigurePair {
    /// Table and row.
    name: String,
    /// Published ratio to the first row, or published figure of a grid. Above 0.
    published: f64,
    /// Modelled ratio or figure, in the same unit.
    modelled: f64,
    /// True if the published figure is an input of the model.
    is_input: bool,
}

impl FigurePair {
    /// Returns the quotient of the two figures, of which the larger is divided: at least 1.
    fn factor(&self) -> f64 {
        (self.published / self.modelled).max(self.modelled / self.published)
    }
}

/// Number of modelled figures that are near the published ones, and the farthest one, in words.
/// Rows are compared by their ratios to the first row, figures of a grid directly. Predictions are
/// counted apart in tables of which some figures are inputs of the models.
fn verdict(tables: &[ReproducedTable]) -> String {
    let pairs: Vec<FigurePair> = tables.iter().flat_map(figure_pairs).collect();
    let Some(all) = distance_text(&pairs.iter().collect::<Vec<_>>(), "published figures") else {
        return "The sources publish no figure to compare with.\n\n".to_owned();
    };
    let mut text = all;
    let mut letters: Vec<&str> = tables.iter().map(|table| table.table.as_str()).collect();
    // Tables with the same letter are adjacent.
    letters.dedup();
    for letter in letters {
        let own = tables.iter().filter(|table| table.table == letter).flat_map(figure_pairs);
        let (inputs, predictions): (Vec<FigurePair>, Vec<FigurePair>) =
            own.partition(|pair| pair.is_input);
        if inputs.is_empty() {
            continue;
        }
        let apart = distance_text(&predictions.iter().collect::<Vec<_>>(), "predictions");
        let apart = apart.unwrap_or_else(|| "None is a prediction.".to_owned());
        text += &format!(
            "\nTable {letter}: {} figures are inputs of the models, as parameters or fitted. {apart}",
            inputs.len()
        );
    }
    text + "\n\n"
}

/// Number of the figures that are near the published ones, and the farthest one, in words. `noun`
/// names the figures. `None` without figures.
fn distance_text(pairs: &[&FigurePair], noun: &str) -> Option<String> {
    let farthest = pairs.iter().max_by(|left, right| left.factor().total_cmp(&right.factor()))?;
    let near_count = pairs.iter().filter(|pair| pair.factor() <= NEAR_FACTOR).count();
    Some(format!(
        "The model is within a factor of {NEAR_FACTOR} of {near_count} of {} {noun}. Farthest: {}: {} \
         published, {} modelled.",
        pairs.len(),
        farthest.name,
        format_figure(farthest.published),
        format_figure(farthest.modelled)
    ))
}

/// Formats a figure of a table: without decimals from 100 on.
fn format_figure(value: f64) -> String {
    number(Some(value), if value < 100.0 { 2 } else { 0 })
}

/// Published and modelled figures of one table, in pairs: the ratio of each row to the first row,
/// and each figure of a grid. Rows and figures without a published one are left out.
fn figure_pairs(table: &ReproducedTable) -> Vec<FigurePair> {
    let mut pairs = Vec::new();
    let mut add = |row: &str, published: Option<f64>, modelled: f64, is_input: bool| {
        if let Some(published) = published.filter(|published| *published > 0.0) {
            let name = format!("table {}, {row}", table.table);
            pairs.push(FigurePair { name, published, modelled, is_input });
        }
    };
    // The ratio of the first row is 1 by definition. Only figures of a grid may be inputs.
    let is_input = false;
    for row in table.rows.iter().skip(1) {
        let name = format!("{}, ratio", row.label);
        add(&name, row.published_ratio, row.modelled_ratio, is_input);
    }
    if let Some(grid) = &table.grid {
        for row in &grid.rows {
            for ((column, published), modelled) in
                grid.columns.iter().zip(&row.published).zip(&row.modelled)
            {
                let name = format!("{}, {} {column}", row.label, grid.over);
                add(&name, *published, *modelled, row.is_input);
            }
        }
    }
    pairs
}

/// Table of the figures: a grid if the experiment has one, otherwise one row per policy.
fn figures_table(reproduced: &ReproducedTable) -> Table {
    match &reproduced.grid {
        Some(grid) => grid_table(grid),
        None => rows_table(reproduced),
    }
}

/// Formats a table with its title, its unit and the machine.
fn table_text(reproduced: &ReproducedTable) -> String {
    let table = figures_table(reproduced);
    format!(
        "Table {}: {}, in {}\nMachine: {}\n\n{table}\n",
        reproduced.table, reproduced.title, reproduced.unit, reproduced.machine
    )
}

/// Table of a grid. Each row has a line of published figures, if any, and below it a line of
/// modelled ones.
fn grid_table(grid: &Grid) -> Table {
    let columns = grid.columns.iter().map(u32::to_string);
    let header =
        ["".to_owned(), "policies".to_owned(), grid.over.clone()].into_iter().chain(columns);
    let numbers_from = 3;
    let mut table = Table::with_header(header.collect(), numbers_from);
    for row in &grid.rows {
        let is_published = row.published.iter().any(Option::is_some);
        // Only the first line of a row has the label and the policies.
        let names = [row.label.clone(), row.policies.clone()];
        let mut names = names.into_iter();
        let mut add_line = |kind: &str, figures: Vec<Option<f64>>| {
            let mut cells = vec![
                names.next().unwrap_or_default(),
                names.next().unwrap_or_default(),
                kind.to_owned(),
            ];
            cells.extend(figures.into_iter().map(|figure| number(figure, 0)));
            table.add_row(cells);
        };
        if is_published {
            add_line("published", row.published.clone());
        }
        add_line("modelled", row.modelled.iter().copied().map(Some).collect());
    }
    table
}

/// Table of published and modelled figures, one row each.
fn rows_table(reproduced: &ReproducedTable) -> Table {
    let mut columns: Vec<Column<TableRow>> = vec![
        ("", |row| row.label.clone()),
        ("policies", |row| row.policies.clone()),
        ("published", |row| number(row.published, 2)),
        ("ratio", |row| number(row.published_ratio, 2)),
        ("modelled", |row| number(Some(row.modelled), 2)),
        ("ratio", |row| number(Some(row.modelled_ratio), 2)),
        ("device requests", |row| count(row.device_requests)),
        ("KiB mean", |row| number(row.device_request_kib_mean, 1)),
    ];
    if reproduced.rows.iter().any(|row| row.pages_in.is_some()) {
        columns.push(("pages in", |row| count(row.pages_in)));
        columns.push(("pages out", |row| count(row.pages_out)));
    }
    let numbers_from = 2;
    Table::of(&reproduced.rows, &columns, numbers_from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use readpath_eval::reproduce::GridRow;

    /// Ratios of 2.4 to 2.0 (a factor of 1.2) and of 0.5 to 0.25 (a factor of 2) are compared.
    #[test]
    fn verdict_counts_near_figures_and_names_the_farthest() {
        let row = |label: &str, published_ratio, modelled_ratio| TableRow {
            label: label.to_owned(),
            policies: "none".to_owned(),
            published: Some(1.0),
            published_ratio,
            modelled: 1.0,
            modelled_ratio,
            device_requests: None,
            device_request_kib_mean: None,
            pages_in: None,
            pages_out: None,
        };
        let table = ReproducedTable {
            table: "A".to_owned(),
            title: String::new(),
            machine: String::new(),
            unit: String::new(),
            // The first row has the ratio 1 by definition and is not counted.
            rows: vec![
                row("first", Some(1.0), 1.0),
                row("near", Some(2.0), 2.4),
                row("far", Some(0.5), 0.25),
                row("unknown", None, 9.0),
            ],
            grid: None,
        };
        assert_eq!(
            verdict(&[table]),
            "The model is within a factor of 1.25 of 1 of 2 published figures. Farthest: table A, \
             far, ratio: 0.50 published, 0.25 modelled.\n\n"
        );
    }

    /// Two inputs, both met, and two predictions of 10, with 11 and 20 modelled.
    #[test]
    fn verdict_counts_predictions_apart_from_inputs() {
        let row = |label: &str, is_input, published, modelled| GridRow {
            label: label.to_owned(),
            is_input,
            policies: "none".to_owned(),
            published: vec![Some(published)],
            modelled: vec![modelled],
        };
        let rows = vec![
            row("parameter", true, 100.0, 100.0),
            row("fitted", true, 5.0, 5.0),
            row("near", false, 10.0, 11.0),
            row("far", false, 10.0, 20.0),
        ];
        let table = ReproducedTable {
            table: "F".to_owned(),
            title: String::new(),
            machine: String::new(),
            unit: String::new(),
            rows: Vec::new(),
            grid: Some(Grid { over: "depth".to_owned(), columns: vec![1], rows }),
        };
        let farthest = "Farthest: table F, far, depth 1: 10.00 published, 20.00 modelled.";
        assert_eq!(
            verdict(&[table]),
            format!(
                "The model is within a factor of 1.25 of 3 of 4 published figures. {farthest}\n\
                 Table F: 2 figures are inputs of the models, as parameters or fitted. The model is \
                 within a factor of 1.25 of 1 of 2 predictions. {farthest}\n\n"
            )
        );
    }
}
