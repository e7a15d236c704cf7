//! Figures that several documents quote equal the results in `bench/results`, or else the one
//! document that states them.

use readpath_eval::policy_matrix::geometric_mean;
use serde_json::Value;

use super::{document, flowing};

const README: &str = "README.md";
const MEASUREMENTS: &str = "bench/README.md";
const NUMBERS: &str = "book/src/numbers.md";

/// Asserts that each document has its words, apart from line breaks. Names all faults at once: a
/// new take changes several figures.
fn assert_quoted(quotes: &[(&str, String)]) {
    let missing = |(name, words): &&(&str, String)| !flowing(&document(name)).contains(words);
    let faults: Vec<_> = quotes.iter().filter(missing).collect();
    assert!(faults.is_empty(), "documents without the figures of the results: {faults:#?}");
}

fn results(name: &str) -> Value {
    serde_json::from_str(&document(&format!("bench/results/{name}.json"))).unwrap()
}

/// Cells of the only row of a document's tables that begins with these words.
fn row(name: &str, begin: &str) -> Vec<String> {
    let text = document(name);
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with(begin)).collect();
    assert_eq!(rows.len(), 1, "{name}: rows that begin with `{begin}`");
    rows[0].split('|').skip(1).map(|cell| cell.trim().to_owned()).collect()
}

fn minimum(ratios: &[f64]) -> f64 {
    ratios.iter().copied().fold(f64::INFINITY, f64::min)
}

fn median(values: &Value) -> f64 {
    let mut values: Vec<f64> =
        values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Text of a value above zero with this number of significant digits.
fn significant(value: f64, digits: i32) -> String {
    let decimals = (digits - 1 - value.log10().floor() as i32).max(0) as usize;
    format!("{value:.decimals$}")
}

#[test]
fn policy_matrix_figures_equal_the_results() {
    let cells = results("regret");
    let ratios: Vec<f64> =
        cells.as_array().unwrap().iter().map(|cell| cell["ratio"].as_f64().unwrap()).collect();
    let number = ratios.len();
    let all = row(MEASUREMENTS, &format!("| all | {number} |"));
    assert_eq!(all[2], format!("{:.3}", geometric_mean(&ratios)));
    assert_eq!(all[4], format!("{:.3}", minimum(&ratios)));
    for (stated, limit) in [(&all[5], 0.95), (&all[6], 0.80)] {
        // The file has four digits of a ratio: one at the limit can have been below it.
        let below = ratios.iter().filter(|ratio| **ratio < limit).count();
        let at_most = ratios.iter().filter(|ratio| **ratio <= limit).count();
        let stated: usize = stated.parse().unwrap();
        assert!((below..=at_most).contains(&stated), "{stated} cells below {limit}: {below}");
    }
    let sets = [
        ("| tuning set |", "| tuning set (`--developed`) |"),
        ("| held-out set |", "| held-out set (`--held-out`) |"),
        ("| all | ", "| all | "),
        (
            "| all, with `ondemand` and `deadline` instead |",
            "| `ondemand` with `deadline` (best fixed classic pair) |",
        ),
    ];
    for (begin, begin_of_measured) in sets {
        let measured = row(MEASUREMENTS, begin_of_measured);
        let expected = [&measured[1], &measured[2], &measured[4], &measured[5]];
        let quoted = row(NUMBERS, begin);
        assert_eq!(quoted[1..5].iter().collect::<Vec<_>>(), expected, "{NUMBERS}: {begin}");
    }
    let (mean, least, below) = (&all[2], &all[4], &all[5]);
    let thousands = format!("{},{:03}", number / 1000, number % 1000);
    assert_quoted(&[
        (README, format!("best classic policy of each of {thousands} modelled cells")),
        (README, format!("| {mean} | below 0.95 in {below} cells, minimum {least} |")),
        (
            "bench/notes/policy-matrix.md",
            format!("| all | {number} | {mean} | {least} | {below} |"),
        ),
    ]);
}

/// Row of a program in the results of `bench/advise.py`.
fn advised(results: &Value, name: &str) -> Value {
    let rows = results["rows"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap().clone()
}

#[test]
fn advice_figures_equal_the_results() {
    let all = results("advise");
    let seconds = |name: &str, kind: &str| median(&advised(&all, name)[kind]);
    let ratio =
        |name: &str, kind: &str| significant(seconds(name, "alone") / seconds(name, kind), 2);
    let [mapped, pieces] = ["mapped", "pieces"].map(|name| {
        let [alone, helped] = ["alone", "helped"].map(|kind| significant(seconds(name, kind), 3));
        (alone, helped, ratio(name, "helped"), ratio(name, "recorded"))
    });
    let random = ratio("readrandom", "helped");
    let without_root = results("advise-user");
    let [user_mapped, user_pieces] = ["mapped", "pieces"].map(|name| {
        let row = advised(&without_root, name);
        significant(median(&row["alone"]) / median(&row["helped"]), 2)
    });
    let mut quotes = Vec::new();
    for (alone, helped, gain, recorded) in [&mapped, &pieces] {
        let cells = format!("| {alone} s | {helped} s | {gain} | {recorded} |");
        quotes.extend([(MEASUREMENTS, cells.clone()), (NUMBERS, cells)]);
    }
    let page = "book/src/commands/advise.md";
    let (gains, recorded) = ((&mapped.2, &pieces.2), (&mapped.3, &pieces.3));
    quotes.extend([
        (
            page,
            format!(
                "By a mapping it finishes in {} s instead of {} s, by calls of 64 KiB in {} s \
                 instead of {} s. With `--from` they are {} and {} times as fast.",
                mapped.1, mapped.0, pieces.1, pieces.0, recorded.0, recorded.1
            ),
        ),
        (page, format!("served {user_pieces} times as fast, and by a mapping {user_mapped} times")),
        (page, format!("`db_bench readrandom` has {random} of its rate")),
        (MEASUREMENTS, format!("| {random}; 1.00 |")),
        (
            README,
            format!(
                "| {} times as fast by mappings, {} by calls of 64 KiB; from a recording {} and {} \
                 | database: random reads {random} |",
                gains.0, gains.1, recorded.0, recorded.1
            ),
        ),
    ]);
    assert_quoted(&quotes);
}

/// Ratios of the rows of `bench/latency.py` to the fastest of three and to `pread`, by row.
struct LatencyRatios(Vec<(String, f64, f64)>);

impl LatencyRatios {
    fn read(name: &str) -> LatencyRatios {
        let all = results(name);
        let seconds = |row: &Value, path: &str| row[path]["seconds"].as_f64().unwrap();
        let ratios = |row: &Value| {
            let name = row["row"].as_str().unwrap().to_owned();
            let ratio = row["ratio"].as_f64().unwrap();
            (name, ratio, seconds(row, "pread") / seconds(row, "ours"))
        };
        LatencyRatios(all["results"].as_array().unwrap().iter().map(ratios).collect())
    }

    fn of_fastest(&self) -> Vec<f64> {
        self.0.iter().map(|(_, ratio, _)| *ratio).collect()
    }

    fn of_pread(&self) -> Vec<f64> {
        self.0.iter().map(|(_, _, ratio)| *ratio).collect()
    }

    /// Means to the fastest of three and to `pread`, rows below 0.9, and the minimum.
    fn summary(&self) -> (String, String, usize, String) {
        let of_fastest = self.of_fastest();
        let below = of_fastest.iter().filter(|ratio| **ratio < 0.9).count();
        let [mean, mean_of_pread] =
            [&of_fastest, &self.of_pread()].map(|ratios| format!("{:.2}", geometric_mean(ratios)));
        (mean, mean_of_pread, below, format!("{:.2}", minimum(&of_fastest)))
    }

    /// Both ratios of rows, as two cells of a table.
    fn cells(&self, rows: &[&str]) -> String {
        let found = |name: &&str| self.0.iter().find(|(row, ..)| row == name).unwrap();
        let list = |ratio: fn(&(String, f64, f64)) -> f64| {
            let texts: Vec<_> =
                rows.iter().map(|row| format!("{:.2}", ratio(found(row)))).collect();
            texts.join("; ")
        };
        format!("| {} | {} |", list(|row| row.1), list(|row| row.2))
    }
}

#[test]
fn latency_figures_equal_the_results() {
    let network = LatencyRatios::read("latency-network");
    let (fastest, pread, below, least) = network.summary();
    let number = network.0.len();
    let nvme = LatencyRatios::read("latency-nvme");
    let (nvme_fastest, nvme_pread, nvme_below, nvme_least) = nvme.summary();
    let notes = "bench/notes/latency.md";
    assert_quoted(&[
        (
            MEASUREMENTS,
            format!(
                "| {fastest} of the fastest of three, {pread} of `pread`; solid-state drive, 0.1 \
                 ms: {nvme_fastest}, {nvme_pread} | {below} of {number} below 0.9, minimum {least}; \
                 {nvme_below}, {nvme_least} |"
            ),
        ),
        (README, format!("| {pread}; streams")),
        (
            README,
            format!(
                "{fastest} | next to the fastest {below} of {number} below 0.9, minimum {least}"
            ),
        ),
        (NUMBERS, format!("| all {number}, geometric mean | {fastest} | {pread} |")),
        (NUMBERS, format!("{below} of the {number} rows are below 0.9")),
        (
            NUMBERS,
            format!(
                "means are {nvme_fastest} and {nvme_pread}, and {nvme_below} rows are below 0.9"
            ),
        ),
        (NUMBERS, network.cells(&["map/touches"])),
        (NUMBERS, network.cells(&["map/slices/64KiB", "map-in-quarter/slices/64KiB"])),
        (NUMBERS, network.cells(&["futures/4KiB/32-tasks"])),
        (NUMBERS, network.cells(&["map/stream/1MiB", "map/stream/whole"])),
        (notes, format!("0.9 for each row; {below} rows are below 0.9. `nvme`")),
        (notes, format!("1.3 and 1.5; {nvme_below} rows are below 0.9.")),
    ]);
}

/// Mean and minimum of the rows of `readpath bench`, next to the fastest of three, as its last line
/// has them; and the mean next to `pread`, computed from the rates.
fn bench_state(name: &str) -> [String; 3] {
    let text = document(&format!("bench/results/everyday-{name}.txt"));
    let last = text.lines().rfind(|line| line.contains("geometric mean")).unwrap();
    let after = |words: &str| {
        let (_, rest) = last.split_once(words).unwrap();
        rest.split([',', ' ']).next().unwrap().to_owned()
    };
    let rates = |line: &str| {
        let mut cells = line.split_whitespace();
        let is_row = cells.next().is_some_and(|row| row.contains('/'));
        let mut rate = || cells.next()?.trim_start_matches('<').parse::<f64>().ok();
        is_row.then_some(())?;
        Some(rate()? / rate()?)
    };
    let of_pread: Vec<f64> = text.lines().filter_map(rates).collect();
    [after("geometric mean "), after("least "), format!("{:.2}", geometric_mean(&of_pread))]
}

#[test]
fn access_pattern_figures_equal_the_results() {
    let [cold, cached, second] = ["cold", "cached", "second"].map(bench_state);
    for (state, [mean, least, of_pread]) in
        [("cold", &cold), ("cached", &cached), ("second pass, same process", &second)]
    {
        let measured = row(MEASUREMENTS, &format!("| {state} | {mean}"));
        assert_eq!(measured[2].split(':').next(), Some(least.as_str()), "minimum, {state}");
        assert_eq!(&measured[4], of_pread, "of `pread`, {state}");
        let state = if state == "cached" { "in the kernel's page cache" } else { state };
        let quoted = row(NUMBERS, &format!("| {state} | {mean}"));
        assert_eq!(quoted[2].split(':').next(), Some(least.as_str()), "minimum, {state}");
        assert_eq!(&quoted[3], of_pread, "of `pread`, {state}");
    }
    let list = |at: usize| {
        let [first, second_one, third] = [&cold, &cached, &second].map(|state| &state[at]);
        format!("cold {first}, cached {second_one}, second pass {third}")
    };
    let means = format!("{}, {}, {}", cold[0], cached[0], second[0]);
    assert_quoted(&[
        (README, format!("| {}; / the fastest of `pread`, `mmap`, `O_DIRECT` {means} |", list(2))),
        (README, format!("minimum {} (", list(1))),
    ]);
}

/// The figures of the eviction policies on published traces have no file of results: the traces
/// are no part of the repository. All documents have the same ones.
#[test]
fn eviction_figures_of_published_traces_are_equal_in_all_documents() {
    let text = flowing(&document(MEASUREMENTS));
    let (_, rest) = text.split_once("Eleven published traces: ").unwrap();
    let (mean, rest) = rest.split_once(" (").unwrap();
    let (cells, rest) = rest.split_once(", worst ").unwrap();
    let (worst, _) = rest.split_once(')').unwrap();
    let page = "book/src/commands/cachesim.md";
    assert_quoted(&[
        (README, format!("| {mean} | above 1.02 in {cells} cells, worst {worst} |")),
        (page, format!("it misses {mean} times the references of the best policy")),
        (page, format!("In {cells} cells the ratio exceeds 1.02; the worst is {worst}")),
        ("bench/notes/eviction.md", format!("traces are {mean}, {cells}, {worst}")),
    ]);
}

/// The instructions of a miss are in a table of the notes, from printed output.
#[test]
fn miss_instructions_are_equal_in_all_documents() {
    let notes = "bench/notes/small-reads.md";
    let begins =
        ["4 KiB at random, one thread", "the same in a batch of 32", "the same on eight threads"];
    let mut counts = begins.map(|begin| row(notes, &format!("| {begin} |"))[1].clone());
    // All have four digits and a comma, so that the order of the texts is the order of the counts.
    counts.sort();
    let range = format!("{} to {} instructions", counts[0], counts[2]);
    assert_quoted(&[
        (MEASUREMENTS, format!("takes {range} in user space")),
        (NUMBERS, format!("| random read of 4 KiB that misses | {range} |")),
    ]);
}
