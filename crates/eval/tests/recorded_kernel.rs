//! The policy `ondemand`, compared with recordings of the running kernel.
//!
//! Each file in `recorded/` is a list of reads, generated or written by hand, with the pages that
//! Linux 6.18 added to its page cache for each. `cargo run -p readpath-eval --example
//! record_kernel` wrote them. The seeds are the ones that detected most of 35 small changes to the
//! policy. The crate `readpath-eval` makes the same comparison live, with root and tracefs.

use readpath_core::policy::Spec;
use readpath_eval::check_kernel::{compare, kernel_policy, parse_recording, run_policy};

const RECORDINGS: [(&str, &str); 14] = [
    ("read_ahead_kb 128, seed 11", include_str!("recorded/read_ahead_kb-128-seed-11.txt")),
    ("read_ahead_kb 128, seed 12", include_str!("recorded/read_ahead_kb-128-seed-12.txt")),
    ("read_ahead_kb 128, seed 16", include_str!("recorded/read_ahead_kb-128-seed-16.txt")),
    ("read_ahead_kb 8192, seed 12", include_str!("recorded/read_ahead_kb-8192-seed-12.txt")),
    ("read_ahead_kb 100, no power of two", include_str!("recorded/read_ahead_kb-100.txt")),
    ("read_ahead_kb 4, one page", include_str!("recorded/read_ahead_kb-4.txt")),
    ("read_ahead_kb 0", include_str!("recorded/read_ahead_kb-0.txt")),
    ("a file system without large folios", include_str!("recorded/no-large-folios.txt")),
    ("touches of the mapped file", include_str!("recorded/touches.txt")),
    ("touches under each advice", include_str!("recorded/touches-advice.txt")),
    ("a mark under random advice", include_str!("recorded/touches-random-advice.txt")),
    ("corners", include_str!("recorded/corners.txt")),
    ("corners, read_ahead_kb 100", include_str!("recorded/corners-read_ahead_kb-100.txt")),
    ("corners at the end of the file", include_str!("recorded/corners-at-the-end.txt")),
];

#[test]
fn every_read_adds_the_folios_recorded_on_linux() {
    for (name, text) in RECORDINGS {
        let (steps, kernel) =
            parse_recording(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let policy = run_policy(&kernel_policy(&kernel), &steps, &kernel).unwrap();
        let report = compare(&steps, &kernel, &policy);
        if let Some(first) = report.differences.first() {
            panic!("{name}: {} of {} equal; first: {first}", report.equal, report.reads);
        }
    }
}

#[test]
fn other_policies_and_windows_differ_from_the_recording() {
    let (steps, kernel) = parse_recording(RECORDINGS[0].1).unwrap();
    for text in ["none", "ondemand,read_ahead_kb=64", "ondemand,folio_order=0"] {
        let policy = run_policy(&Spec::parse(text).unwrap(), &steps, &kernel).unwrap();
        let report = compare(&steps, &kernel, &policy);
        assert!(!report.differences.is_empty(), "{text} passed for the kernel");
    }
}
