//! The law `ondemand` against recordings of the running kernel.
//!
//! Each file in `recorded/` is a made list of reads and what Linux 6.18 brought
//! into the page cache for each, as `readpath conform` records it. With root
//! and tracefs the same comparison runs live, in the crate `readpath`.

use readpath_core::law::Spec;
use readpath_sim::conform::{compare, kernel_law, parse_recording, play};

const RECORDINGS: [(&str, &str); 7] = [
    ("read_ahead_kb 128", include_str!("recorded/read_ahead_kb-128.txt")),
    ("read_ahead_kb 8192", include_str!("recorded/read_ahead_kb-8192.txt")),
    ("read_ahead_kb 100, no power of two", include_str!("recorded/read_ahead_kb-100.txt")),
    ("read_ahead_kb 4, one page", include_str!("recorded/read_ahead_kb-4.txt")),
    ("read_ahead_kb 0", include_str!("recorded/read_ahead_kb-0.txt")),
    ("a file that ends inside a page", include_str!("recorded/odd-length.txt")),
    ("a file system without large folios", include_str!("recorded/no-large-folios.txt")),
];

#[test]
fn every_read_brings_in_the_folios_that_it_brought_in_on_linux() {
    for (name, text) in RECORDINGS {
        let (steps, kernel) =
            parse_recording(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let law = play(&kernel_law(&kernel), &steps, &kernel).unwrap();
        let report = compare(&steps, &kernel, &law);
        assert!(report.reads >= 300, "{name}: only {} reads", report.reads);
        if let Some(first) = report.differences.first() {
            panic!("{name}: {} of {} equal; first: {first}", report.equal, report.reads);
        }
    }
}

#[test]
fn another_law_or_window_is_found_out() {
    let (steps, kernel) = parse_recording(RECORDINGS[0].1).unwrap();
    for text in ["none", "ondemand,read_ahead_kb=64", "ondemand,folio_order=0"] {
        let law = play(&Spec::parse(text).unwrap(), &steps, &kernel).unwrap();
        let report = compare(&steps, &kernel, &law);
        assert!(!report.differences.is_empty(), "{text} passed for the kernel");
    }
}
