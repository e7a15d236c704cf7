//! The benchmarks run at a small size.

mod support;

#[path = "../benches/file_speed.rs"]
mod file_speed;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::*;

#[test]
fn file_benchmark_measures_every_row() {
    let file = TempFile::new(2 << 20);
    let size = file_speed::Size {
        cached_bytes: 1 << 20,
        cached_reads: 200,
        cold_reads: 64,
        stream_bytes: 2 << 20,
    };
    let mut rows = file_speed::cached(&file.path, size, 65_536, 1);
    if takes_direct(&file.path) {
        rows.extend(file_speed::random(&file.path, size, 16_384, 1));
        rows.extend(file_speed::stream(&file.path, size, 1));
    }
    for (row, cost) in rows {
        match cost {
            Some(cost) => assert!(cost.ns > 0.0 && cost.cpu_ns >= 0.0, "{row}: {cost:?}"),
            None => assert!(row.starts_with("fio"), "{row} is not measured"),
        }
    }
}

/// One round over 16 MiB with fio. The results file stays unchanged.
#[test]
fn raw_transfer_benchmark_runs_and_keeps_the_results_file() {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let Some(raw_speed) = built("raw_speed") else {
        return eprintln!("skipped: the benchmark raw_speed is not built");
    };
    if !has("fio") || !has("python3") {
        return eprintln!("skipped: fio or python3 is not installed");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let results = || std::fs::read(root.join("bench/results/raw.json")).ok();
    let before = results();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("raw-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let output = Command::new("python3")
        .arg(root.join("bench/raw.py"))
        .args([folder.to_str().unwrap(), "1", "16"])
        .env("RAW_SPEED", raw_speed)
        .output()
        .unwrap();
    let is_empty = std::fs::read_dir(&folder).unwrap().next().is_none();
    std::fs::remove_dir_all(&folder).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    // A heading, and five shapes read and written.
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 11);
    assert!(is_empty, "its file is gone");
    assert_eq!(results(), before, "a small run leaves the results alone");
}

/// Path of a benchmark program, which cargo puts next to this one when it builds all tests: the
/// newest file of that name.
fn built(name: &str) -> Option<PathBuf> {
    let tests = std::env::current_exe().expect("this program has a file");
    let entries = std::fs::read_dir(tests.parent()?).ok()?.flatten();
    let programs = entries.map(|entry| entry.path()).filter(|path| {
        let stem = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        path.extension().is_none() && stem.starts_with(&format!("{name}-"))
    });
    programs.max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok())
}
