//! First lines of tables: the result in words.

use readpath_sim::job::printable;
use readpath_sim::load::LoadRow;
use readpath_sim::report::ResultRow;

use super::run_summary::RunSummary;
use crate::table::{duration, number};

/// Ratio up to which two rows of one run each count as level. They have no spread of their own.
/// Chosen, not measured.
const LEVEL_RATIO: f64 = 1.05;

/// Number of decimal places of a throughput in MiB/s.
const RATE_DECIMALS: usize = 1;

/// A row with a figure.
struct Measured {
    /// Name that distinguishes the row from the others.
    name: String,
    /// Throughput of the row, in the unit of its sentence. More is better.
    figure: f64,
    /// Figures of several runs; `None` if the row ran once.
    runs: Option<RunSummary>,
}

impl Measured {
    /// True if the row is level with a slower one: the ranges of their runs overlap. Rows of one
    /// run each are level up to [`LEVEL_RATIO`]. If only one of the two ran once, its range is its
    /// figure.
    fn is_level_with(&self, slower: &Measured) -> bool {
        match (self.runs, slower.runs) {
            (None, None) => self.figure <= slower.figure * LEVEL_RATIO,
            (own_runs, slower_runs) => {
                own_runs.map_or(self.figure, |runs| runs.least)
                    <= slower_runs.map_or(slower.figure, |runs| runs.most)
            }
        }
    }
}

/// Verdict on the rows of a job: the failed operations, and the fastest row by throughput. A single
/// row has its figures instead. Verdicts on the sections follow.
pub fn job_verdict(rows: &[ResultRow]) -> String {
    let failed: Vec<String> = rows
        .iter()
        .filter(|row| row.errors > 0)
        .map(|row| format!("{} operations failed on {}.", row.errors, row.storage))
        .collect();
    let measured = rows_with_figure(rows, job_name_parts, |row| {
        Some((row.mib_per_s?, run_summary(&row.runs_mib_per_s)))
    });
    let verdict = match (rows, &measured[..]) {
        ([row], [one]) => format!(
            "{}: {:.1} MiB/s, {} operations a second, 99 % of them within {}.",
            one.name,
            one.figure,
            number(row.iops, 0),
            duration(row.latency_us.p99)
        ),
        (_, []) => "No operation has ended.".to_owned(),
        (_, measured) => ranking_sentence(measured, "MiB/s", RATE_DECIMALS),
    };
    let sections = section_verdicts(rows);
    format!("{}\n{sections}", [failed, vec![verdict]].concat().join(" "))
}

/// Verdicts on each section of a job with repeated runs, a line each. The ranking of the rows may
/// differ by section. Empty for a single row, a single section, or without repeated runs.
fn section_verdicts(rows: &[ResultRow]) -> String {
    let is_repeated = rows.iter().any(|row| row.runs_mib_per_s.is_some());
    // A single row has no other to be compared with.
    let [first, _, ..] = rows else { return String::new() };
    if !is_repeated || first.sections.len() < 2 {
        return String::new();
    }
    let verdict = |section_index: usize| {
        let measured = rows_with_figure(rows, job_name_parts, |row| {
            let section = row.sections.get(section_index)?;
            let runs = run_summary(&section.runs_mib_per_s);
            Some((runs.map(|runs| runs.median).or(section.mib_per_s)?, runs))
        });
        let name = printable(&first.sections[section_index].name);
        match measured.is_empty() {
            true => format!("  {name}: no operation has ended.\n"),
            false => format!("  {name}: {}\n", ranking_sentence(&measured, "MiB/s", RATE_DECIMALS)),
        }
    };
    (0..first.sections.len()).map(verdict).collect()
}

/// Parts of the name of a job's row.
fn job_name_parts(row: &ResultRow) -> Vec<String> {
    name_parts(&row.storage, [&row.readahead, &row.scheduler, &row.raw])
}

/// Summary of the runs of a row or a section, if it was run repeatedly.
fn run_summary(runs: &Option<Vec<f64>>) -> Option<RunSummary> {
    RunSummary::of(runs.as_deref()?)
}

/// Verdict on the rows of loads: for each load the fastest row, by touches a second. A line each.
/// The rows of a load follow one another.
pub fn load_verdicts(rows: &[LoadRow]) -> String {
    let mut text = String::new();
    for rows in rows.chunk_by(|left, right| left.job == right.job) {
        let parts = |row: &LoadRow| name_parts(&row.storage, [&row.swapin, &row.scheduler]);
        let measured = rows_with_figure(rows, parts, |row| Some((row.iops?, None)));
        let verdict = match &measured[..] {
            [] => "no touch has ended.".to_owned(),
            measured => {
                let no_decimals = 0;
                ranking_sentence(measured, "touches a second", no_decimals)
            }
        };
        text += &format!("{}: {verdict}\n", printable(&rows[0].job));
    }
    text
}

/// Returns the rows with a figure, with their names. Rows without a figure are left out. `parts`
/// returns the parts of a row's name: its storage and policies. `figure` returns its figure and the
/// summary of its runs.
fn rows_with_figure<R>(
    rows: &[R],
    parts: impl Fn(&R) -> Vec<String>,
    figure: impl Fn(&R) -> Option<(f64, Option<RunSummary>)>,
) -> Vec<Measured> {
    let names = distinct_names(rows, parts);
    let named = rows.iter().zip(names);
    named
        .filter_map(|(row, name)| {
            let (figure, runs) = figure(row)?;
            Some(Measured { name, figure, runs })
        })
        .collect()
}

/// Parts of the name of a row: its storage and its policies. A policy that the row lacks is empty.
fn name_parts<const N: usize>(storage: &str, policies: [&Option<String>; N]) -> Vec<String> {
    let policies = policies.map(|policy| policy.clone().unwrap_or_default());
    [vec![storage.to_owned()], policies.into()].concat()
}

/// Sentence on the fastest of several rows, the next one and the slowest one. Rows that are level
/// with the fastest are named together, and are neither the next nor the slowest one. A single row
/// has its figure alone. `measured` has at least one row, `unit` is the unit of the figures, and
/// `decimals` the number of their decimal places.
fn ranking_sentence(measured: &[Measured], unit: &str, decimals: usize) -> String {
    let mut order: Vec<&Measured> = measured.iter().collect();
    order.sort_by(|left, right| right.figure.total_cmp(&left.figure));
    let (first, last) = (order[0], order[order.len() - 1]);
    let figure_text = |row: &Measured| match row.runs {
        Some(RunSummary { least, most, .. }) => {
            format!("{:.decimals$} ({least:.decimals$} to {most:.decimals$})", row.figure)
        }
        None => format!("{:.decimals$}", row.figure),
    };
    if let [one] = measured {
        return format!("{}: {} {unit}.", one.name, figure_text(one));
    }
    if order.iter().all(|row| first.is_level_with(row)) {
        let (lowest, highest) = (figure_text(last), figure_text(first));
        return format!("All rows are level: {lowest} to {highest} {unit}.");
    }
    // A row with a wide range may be level with the first one, and a faster row not.
    let (level, slower): (Vec<&Measured>, Vec<&Measured>) =
        order.into_iter().partition(|row| first.is_level_with(row));
    let level: Vec<&str> = level.iter().map(|row| &*row.name).collect();
    let (names, verb) = match &level[..] {
        [one] => ((*one).to_owned(), "is"),
        many => (many.join(", "), "are level and"),
    };
    let mut text = format!("{names} {verb} fastest: {} {unit}", figure_text(first));
    // Not all rows are level, so at least one follows the level ones.
    let (next, last) = (slower[0], slower[slower.len() - 1]);
    if !std::ptr::eq(next, last) {
        text += &format!(", {} times {}", ratio_text(first, next), next.name);
    }
    text + &format!(", {} times {}.", ratio_text(first, last), last.name)
}

/// Formats the ratio of the larger to the smaller figure as text.
fn ratio_text(larger: &Measured, smaller: &Measured) -> String {
    match larger.figure / smaller.figure {
        ratio if ratio >= 100.0 => format!("{ratio:.0}"),
        ratio if ratio >= 10.0 => format!("{ratio:.1}"),
        ratio => format!("{ratio:.2}"),
    }
}

/// Returns the names of rows. `parts` returns the parts of a row's name: first the storage, then
/// the policies, of which an unknown one is empty. All rows have equally many parts. A name is the
/// storage with those policies in which the rows of that storage differ. It lacks the storage if
/// all rows have the same one, unless no policy is left for the name.
fn distinct_names<R>(rows: &[R], parts: impl Fn(&R) -> Vec<String>) -> Vec<String> {
    let parts_by_row: Vec<Vec<String>> = rows.iter().map(parts).collect();
    let has_one_storage = parts_by_row.iter().all(|row| row[0] == parts_by_row[0][0]);
    let name = |row: &Vec<String>| {
        let rows_of_storage: Vec<&Vec<String>> =
            parts_by_row.iter().filter(|other| other[0] == row[0]).collect();
        // Part 0 is the storage, and the policies begin at 1.
        let differs = |part: &usize| rows_of_storage.iter().any(|other| other[*part] != row[*part]);
        let policies = (1..row.len()).filter(differs).map(|part| &*row[part]);
        let policies: Vec<&str> = policies.filter(|policy| !policy.is_empty()).collect();
        match (policies.is_empty(), has_one_storage) {
            (true, _) => row[0].clone(),
            (false, true) => policies.join(" "),
            (false, false) => format!("{} {}", row[0], policies.join(" ")),
        }
    };
    parts_by_row.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows with these names and figures, of one run each.
    fn measured_rows(all: &[(&str, f64)]) -> Vec<Measured> {
        all.iter()
            .map(|(name, figure)| Measured {
                name: (*name).to_owned(),
                figure: *figure,
                runs: None,
            })
            .collect()
    }

    /// Rows with runs are level if their ranges overlap, however far their medians are apart.
    #[test]
    fn repeated_rows_are_level_where_their_ranges_overlap() {
        let row = |name: &str, runs: &[f64]| {
            let runs = RunSummary::of(runs).unwrap();
            Measured { name: name.to_owned(), figure: runs.median, runs: Some(runs) }
        };
        let (wide, high) = (row("wide", &[90.0, 100.0, 160.0]), row("high", &[150.0, 180.0]));
        assert_eq!(
            ranking_sentence(&[wide, high], "MiB/s", 0),
            "All rows are level: 100 (90 to 160) to 150 (150 to 180) MiB/s."
        );
        let (low, high) = (row("low", &[90.0, 100.0, 149.0]), row("high", &[150.0, 200.0, 210.0]));
        assert_eq!(
            ranking_sentence(&[low, high], "MiB/s", 0),
            "high is fastest: 200 (150 to 210) MiB/s, 2.00 times low."
        );
        // The slowest row's range reaches the fastest one's, and the middle row's does not.
        let rows = [
            row("a", &[150.0, 200.0, 210.0]),
            row("b", &[139.0, 140.0, 141.0]),
            row("c", &[90.0, 100.0, 160.0]),
        ];
        assert_eq!(
            ranking_sentence(&rows, "MiB/s", 0),
            "a, c are level and fastest: 200 (150 to 210) MiB/s, 1.43 times b."
        );
    }

    /// Ratios of the figures: 999 ÷ 333, and 999 ÷ 33.3.
    #[test]
    fn fastest_row_is_named_with_the_next_and_the_slowest() {
        let sentence = |all: &[(&str, f64)]| ranking_sentence(&measured_rows(all), "MiB/s", 1);
        assert_eq!(
            sentence(&[("hdd", 33.3), ("nvme", 999.0), ("ssd", 333.0)]),
            "nvme is fastest: 999.0 MiB/s, 3.00 times ssd, 30.0 times hdd."
        );
        assert_eq!(
            sentence(&[("hdd", 10.0), ("ssd", 25.0)]),
            "ssd is fastest: 25.0 MiB/s, 2.50 times hdd."
        );
    }

    /// Rows without a figure are left out before. A repeated row has the range of its runs.
    #[test]
    fn only_row_with_a_figure_is_compared_with_no_other() {
        let one = measured_rows(&[("hdd", 33.3)]);
        assert_eq!(ranking_sentence(&one, "MiB/s", 1), "hdd: 33.3 MiB/s.");
        let runs = RunSummary::of(&[2.0, 1.0, 3.0]);
        let repeated = Measured { name: "ssd".to_owned(), figure: 2.0, runs };
        assert_eq!(ranking_sentence(&[repeated], "MiB/s", 0), "ssd: 2 (1 to 3) MiB/s.");
    }

    /// 105 is within 5 % of 100, and 106 is not.
    #[test]
    fn rows_within_a_twentieth_are_level() {
        let sentence = |all: &[(&str, f64)]| ranking_sentence(&measured_rows(all), "MiB/s", 1);
        assert_eq!(
            sentence(&[("a", 100.0), ("b", 105.0)]),
            "All rows are level: 100.0 to 105.0 MiB/s."
        );
        assert_eq!(
            sentence(&[("a", 100.0), ("b", 106.0)]),
            "b is fastest: 106.0 MiB/s, 1.06 times a."
        );
        assert_eq!(
            sentence(&[("a", 104.0), ("b", 105.0), ("c", 50.0)]),
            "b, a are level and fastest: 105.0 MiB/s, 2.10 times c."
        );
    }

    /// Each row is a storage, a readahead policy and a scheduler.
    #[test]
    fn names_are_the_storage_and_the_policies_that_differ() {
        let named = |rows: &[[&str; 3]]| {
            distinct_names(rows, |row: &[&str; 3]| row.map(str::to_owned).to_vec())
        };
        assert_eq!(
            named(&[["hdd", "none", "cfq"], ["hdd", "ondemand", "cfq"]]),
            ["none", "ondemand"]
        );
        assert_eq!(named(&[["hdd", "none", "cfq"]]), ["hdd"]);
        assert_eq!(
            named(&[["hdd", "none", "cfq"], ["kernel:a", "kernel", "bfq"]]),
            ["hdd", "kernel:a"]
        );
        assert_eq!(
            named(&[["hdd", "none", "cfq"], ["hdd", "none", "noop"], ["ssd", "none", "cfq"]]),
            ["hdd cfq", "hdd noop", "ssd"]
        );
    }
}
