//! Throughput of the `adaptive` policies divided by the best baseline's, in every cell of the
//! tuning set.
//!
//! `cargo run --release -p readpath-eval --example developed_ratios -- REGRET.json` takes the
//! baselines' results from a document of `readpath eval policies --json`. The output is one JSON
//! object, with the names of the cells as keys.
#![allow(clippy::disallowed_methods, reason = "a document is read")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use readpath_eval::policy_matrix::{CellSet, CellSize, Policies, cells};
use serde_json::Value;

fn main() {
    let path =
        std::env::args().nth(1).expect("give the document of `readpath eval policies --json`");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"));
    let number = |key: &str| document[key].as_u64().unwrap_or_else(|| panic!("{path}: no {key}"));
    let size = CellSize { seed: number("seed"), seeds: number("seeds"), part: 1 };
    let rows = document["results"].as_array().unwrap_or_else(|| panic!("{path}: no results"));
    let best: BTreeMap<String, f64> = rows
        .iter()
        .map(|row| {
            let words = ["device", "workload"].map(|key| row[key].as_str().unwrap_or_default());
            let name = format!("{}/{}/{}", words[0], words[1], row["processes"]);
            (name, row["baselines"][0]["mib_per_s"].as_f64().unwrap_or(f64::NAN))
        })
        .collect();
    let cells: Vec<_> =
        cells(&[]).into_iter().filter(|cell| CellSet::Tuning.has_cell(cell)).collect();
    let (next, ratios) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let worker = || {
        while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = cell.name();
            let baseline = *best.get(&name).unwrap_or_else(|| panic!("{path} lacks {name}"));
            let run = cell.run(&Policies::default(), size).expect("the policies are known");
            ratios.lock().expect("no panic").insert(name, run.mib_per_s / baseline);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(worker))));
    let ratios = ratios.into_inner().expect("no panic");
    println!("{}", serde_json::to_string(&ratios).expect("plain data"));
}
