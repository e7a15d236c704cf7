//! The examples print the documented results, on small files.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder in the build directory, deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("examples-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    /// Creates a file in the folder and returns its path.
    fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path.into_os_string().into_string().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Output of an example; `None` if it is not built, or the system lacks a feature.
fn output_of(example: &str, words: &[&str]) -> Option<String> {
    // Cargo builds the examples with the tests, except when a single test program is named.
    let tests = std::env::current_exe().expect("this program has a file");
    let program = tests.parent().unwrap().with_file_name("examples").join(example);
    if !program.exists() {
        eprintln!("skipped: the example {example} is not built");
        return None;
    }
    let output = Command::new(program).args(words).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if error.contains("userfaultfd") || error.contains("O_TMPFILE") {
        eprintln!("skipped: {error}");
        return None;
    }
    assert!(output.status.success(), "{example}: {error}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn random_reads_example_sums_the_requested_records() {
    let folder = Folder::new("random");
    let file = folder.file("records", &[3; 100 * 4096 + 17]);
    let Some(output_of) = output_of("random_reads", &[&file, "500"]) else { return };
    // 500 records of 4,096 bytes of value 3.
    assert!(output_of.starts_with("500 records, sum 6144000, "), "{output_of}");
}

#[test]
fn stream_example_counts_every_line() {
    let folder = Folder::new("stream");
    let file = folder.file("lines", "one line\n".repeat(12_345).as_bytes());
    let Some(output_of) = output_of("stream", &[&file]) else { return };
    assert!(output_of.starts_with("12345 lines, 111105 bytes\n"), "{output_of}");
}

#[test]
fn mapped_vectors_example_finds_the_nearest_vector() {
    let folder = Folder::new("vectors");
    // Vectors of dimension two: (0, 0), then (n, 100) for n = 50, 49, …. The nearest is (3, 4), in
    // the middle.
    let mut vectors = vec![[0.0f32, 0.0]];
    vectors.extend((1..=50).rev().map(|n| [n as f32, 100.0]));
    vectors[20] = [3.0, 4.0];
    let bytes: Vec<u8> = vectors.iter().flatten().flat_map(|float| float.to_le_bytes()).collect();
    let file = folder.file("vectors", &bytes);
    let Some(output_of) = output_of("mapped_vectors", &[&file, "2"]) else { return };
    assert!(output_of.contains("\nvector 20, at 5\n"), "{output_of}");
}

#[test]
fn large_table_example_sorts_more_than_its_memory() {
    let folder = Folder::new("table");
    let Some(output_of) = output_of("large_table", &[folder.0.to_str().unwrap(), "4", "1"]) else {
        return;
    };
    assert!(output_of.starts_with("524288 numbers from "), "{output_of}");
    assert!(!output_of.contains("\n0 pages out"), "{output_of}");
}

#[test]
fn copy_file_example_copies_exactly_the_bytes() {
    let folder = Folder::new("copy");
    let content: Vec<u8> = (0..3_000_001u32).map(|at| ((at * 31) >> 7) as u8).collect();
    let from = folder.file("from", &content);
    let to = folder.file("to", &[9; 4_000_000]);
    let Some(output_of) = output_of("copy_file", &[&from, &to]) else { return };
    assert!(output_of.contains("\n3000001 bytes, "), "{output_of}");
    assert!(std::fs::read(&to).unwrap() == content);
}
