//! Places of unsafe code, and its safety comments.

use std::path::{Path, PathBuf};

/// Crates without unsafe code; the compiler forbids it there.
const SAFE: [&str; 5] = ["core", "remote", "models", "sim", "trace"];
/// Maximum number of lines between the start of a safety comment and its code.
const LINES_MAX: usize = 12;

fn files_of(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_of(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Lines on which unsafe code begins, from 0, each with true if a safety comment precedes it.
fn pieces(text: &str) -> Vec<(usize, bool)> {
    let lines: Vec<&str> = text.lines().collect();
    let begins = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"]
            .iter()
            .any(|word| code.contains(word))
    };
    let has_reason = |at: usize| {
        let before = &lines[at.saturating_sub(LINES_MAX)..=at];
        before.iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety"))
    };
    (0..lines.len()).filter(|&at| begins(lines[at])).map(|at| (at, has_reason(at))).collect()
}

#[test]
fn unsafe_code_is_confined_and_has_safety_comments() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut count = 0;
    for room in
        ["core", "remote", "os", "models", "sim", "trace", "io", "dst", "record", "eval", "cli"]
    {
        let mut files = Vec::new();
        files_of(&crates.join(room).join("src"), &mut files);
        if room == "record" {
            files_of(&crates.join("record/preload"), &mut files);
        }
        for file in files {
            let text = std::fs::read_to_string(&file).expect("text");
            for (line, has_reason) in pieces(&text) {
                let place = format!("{}:{}", file.display(), line + 1);
                assert!(!SAFE.contains(&room), "{place}: unsafe code in a crate that has none");
                // An implementation of a trait's unsafe method follows the trait's contract.
                let is_method =
                    text.lines().nth(line).is_some_and(|line| line.contains("unsafe fn"));
                assert!(has_reason || is_method, "{place}: unsafe code without a reason");
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count} pieces were found: the search finds them");
}

#[test]
fn unsafe_code_without_safety_comment_is_detected() {
    let text =
        "let a = 1;\nlet b = unsafe { *p };\n\n// SAFETY: it lives.\nlet c = unsafe { *p };\n";
    assert_eq!(pieces(text), [(1, false), (4, true)]);
}
