//! `readpath regret` from the command line.

mod support;

use serde_json::Value;
use std::process::Command;
use support::READPATH;

#[test]
fn the_document_has_a_summary_and_a_row_per_cell_whatever_the_threads() {
    let document = |threads| {
        let arguments =
            ["regret", "--smoke", "--cells", "/ssd/,/seq-64k/", "--json", "--threads", threads];
        let output = Command::new(READPATH).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let one = document("1");
    assert_eq!(one, document("3"));
    assert_eq!(one["summary"]["cells"], 4);
    let rows = one["results"].as_array().unwrap();
    let processes: Vec<&Value> = rows.iter().map(|row| &row["processes"]).collect();
    assert_eq!(processes, [1, 4, 16, 64]);
    for row in rows {
        let best = row["rivals"][0]["mib_per_s"].as_f64().unwrap();
        let ratio = row["adaptive"]["mib_per_s"].as_f64().unwrap() / best;
        assert!((ratio - row["ratio"].as_f64().unwrap()).abs() < 1e-9);
    }
}

#[test]
fn a_name_that_no_cell_has_is_told_with_the_form_of_a_name() {
    let output = Command::new(READPATH).args(["regret", "--cells", "floppy"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("DEVICE/WORKLOAD/PROCESSES"), "{told}");
}
