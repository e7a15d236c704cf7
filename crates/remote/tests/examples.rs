//! The examples print the documented results, on a small file.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The line that an example prints for a file of a megabyte of sevens. `None` if it is not built:
/// Cargo builds the examples with the tests, except when a single test program is named.
fn printed(example: &str) -> Option<String> {
    let tests = std::env::current_exe().expect("this program has a file");
    let program = tests.parent().unwrap().with_file_name("examples").join(example);
    if !program.exists() {
        eprintln!("skipped: the example is not built");
        return None;
    }
    let name = format!("{example}-{}", std::process::id());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    #[expect(clippy::disallowed_methods, reason = "the examples read a file")]
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    // A new file has no version that OpenDAL could be sure of.
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::options().write(true).open(&file).unwrap().set_modified(long_ago).unwrap();
    let output = Command::new(program).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Number of fetches in the printed line. The bytes and their sum are 2^20 and seven times that.
fn fetches(printed: &str) -> u64 {
    let fetches = printed.strip_prefix("1048576 bytes, sum 7340032, ").unwrap();
    fetches.strip_suffix(" fetches\n").unwrap().parse().unwrap()
}

/// A megabyte of sevens arrives whole, in fewer fetches than its 16 reads.
#[test]
fn planned_reads_prints_bytes_sum_and_fetches() {
    if let Some(printed) = printed("planned_reads") {
        assert!((1..16).contains(&fetches(&printed)), "{printed}");
    }
}

/// The same reads by OpenDAL.
#[test]
fn opendal_layer_prints_bytes_sum_and_fetches() {
    if let Some(printed) = printed("opendal_layer") {
        assert!((1..16).contains(&fetches(&printed)), "{printed}");
    }
}
