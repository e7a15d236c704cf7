//! The example prints the documented results, on a small file.

use std::path::Path;
use std::process::Command;

/// A megabyte of sevens arrives whole, in fewer fetches than its 16 reads.
#[test]
fn planned_reads_prints_bytes_sum_and_fetches() {
    // Cargo builds the examples with the tests, except when a single test program is named.
    let tests = std::env::current_exe().expect("this program has a file");
    let program = tests.parent().unwrap().with_file_name("examples").join("planned_reads");
    if !program.exists() {
        eprintln!("skipped: the example is not built");
        return;
    }
    let name = format!("planned-reads-{}", std::process::id());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    #[expect(clippy::disallowed_methods, reason = "the example reads a file")]
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    let output = Command::new(program).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let fetches = printed.strip_prefix("1048576 bytes, sum 7340032, ").unwrap();
    let fetches: u64 = fetches.strip_suffix(" fetches\n").unwrap().parse().unwrap();
    assert!((1..16).contains(&fetches), "{printed}");
}
