//! Checks of the sources: format, lints, documentation, and tidiness.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "support/sources.rs"]
mod sources;

#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/functions.rs"]
mod functions;
#[path = "tidy/layers.rs"]
mod layers;

/// Maximum number of lines of a source file.
const LINES_MAX: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns every file of the project with one of these endings.
fn files(endings: &[&str]) -> Vec<PathBuf> {
    let found = sources::files(&root(), endings, &["target"]);
    assert!(found.len() > 3, "the project's files are found");
    found
}

/// Runs a subcommand of cargo; `None` if it is not installed.
fn cargo(arguments: &[&str], rustdoc_flags: &str) -> Option<(bool, String)> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let is_there = Command::new(&cargo).args([arguments[0], "--help"]).output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        println!("skipped: cargo {} is not installed", arguments[0]);
        return None;
    }
    let output = Command::new(cargo)
        .args(arguments)
        .current_dir(root())
        // The target folder of this test, to reuse its build scripts and macros. Cargo's lock on it
        // is free while tests run.
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap())
        .env("RUSTDOCFLAGS", rustdoc_flags)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    Some((output.status.success(), text))
}

#[test]
fn the_sources_are_formatted() {
    if let Some((is_clean, text)) = cargo(&["fmt", "--all", "--check"], "") {
        assert!(is_clean, "run `cargo fmt --all`:\n{text}");
    }
}

/// `.ci/tests` leaves this test out: the lints run there during the build.
#[test]
fn the_lints_find_nothing() {
    let lints = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    if let Some((is_clean, text)) = cargo(&lints, "") {
        assert!(is_clean, "{text}");
    }
}

#[test]
fn documentation_builds_without_warnings() {
    let docs = ["doc", "--no-deps", "--quiet", "--workspace"];
    let Some((is_clean, text)) = cargo(&docs, "-D warnings") else { return };
    assert!(is_clean, "{text}");
    for package in ["readpath", "readpath_core"] {
        public_items_equal_the_list(package);
    }
}

/// The documentation of a library has the public items of its list. An item that goes, or appears,
/// is thus a decision. With `READPATH_PUBLIC=remake` the list is written.
fn public_items_equal_the_list(package: &str) {
    let docs = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("doc").join(package);
    let read = |page: &str| std::fs::read_to_string(docs.join(page)).unwrap();
    let mut items = Vec::new();
    for link in read("all.html").split("<li><a href=\"").skip(1) {
        let page = link.split('"').next().unwrap();
        if page.starts_with('#') {
            continue;
        }
        let (folder, file) =
            page.rsplit_once('/').map_or(("", page), |(folder, file)| (folder, file));
        let [kind, name, "html"] = file.split('.').collect::<Vec<_>>()[..] else {
            panic!("{page}: not an item")
        };
        let name = match folder {
            "" => name.to_owned(),
            folder => format!("{}::{name}", folder.replace('/', "::")),
        };
        items.push(format!("{kind} {name}"));
        // Methods of traits that the type implements have another class.
        let text = read(page);
        for member in ["method", "tymethod", "variant", "structfield", "associatedconstant"] {
            for section in text.split(&format!("id=\"{member}.")).skip(1) {
                let (member_name, rest) = section.split_once('"').unwrap();
                let class = rest.split('>').next().unwrap();
                let is_inherent = !class.contains("trait-impl") && !member_name.contains('.');
                if is_inherent && !class.is_empty() {
                    items.push(format!("{member} {name}::{member_name}"));
                }
            }
        }
    }
    items.sort();
    items.dedup();
    let text: String = items.iter().map(|item| format!("{item}\n")).collect();
    let list = root().join(format!("crates/cli/tests/tidy/{package}.txt"));
    if std::env::var("READPATH_PUBLIC").is_ok_and(|what| what == "remake") {
        std::fs::write(&list, &text).unwrap();
    }
    let listed = std::fs::read_to_string(&list).unwrap_or_default();
    let differs = |from: &str, other: &str| -> Vec<String> {
        let others: Vec<&str> = other.lines().collect();
        let only = from.lines().filter(|line| !others.contains(line));
        only.map(str::to_owned).collect()
    };
    let (new, gone) = (differs(&text, &listed), differs(&listed, &text));
    assert!(
        new.is_empty() && gone.is_empty(),
        "{package}: new {new:#?}, gone {gone:#?}; if that is meant, run this test with \
         READPATH_PUBLIC=remake and name it in CHANGELOG.md"
    );
}

#[test]
fn sources_are_small_and_hold_no_leftovers() {
    // Split, to keep this file from finding itself.
    let cleanup_journal =
        [["FIX", "ME"], ["TO", "DO"], ["XX", "X:"], ["dbg", "!("]].map(|parts| parts.concat());
    let mut faults = Vec::new();
    for path in files(&[".rs"]) {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().count();
        if lines > LINES_MAX {
            faults.push(format!("{}: {lines} lines, {LINES_MAX} at most", path.display()));
        }
        for cleanup_entry in &cleanup_journal {
            if text.contains(cleanup_entry.as_str()) {
                faults.push(format!("{}: holds `{cleanup_entry}`", path.display()));
            }
        }
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        if ["_v2", "_old", "_new", "_copy"].iter().any(|ending| stem.ends_with(ending)) {
            faults.push(format!("{}: a versioned copy", path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// If one program holds all tests of a crate, it names each of its files.
#[test]
fn test_files_are_all_declared_in_their_program() {
    for (package, program) in
        [("core/tests", "all"), ("sim/tests", "all"), ("io/tests/all", "main")]
    {
        let folder = root().join("crates").join(package);
        let all = std::fs::read_to_string(folder.join(program).with_extension("rs")).unwrap();
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let holds_tests = path.extension().is_some_and(|ending| ending == "rs")
                || path.join("main.rs").exists();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let is_named = all.contains(&format!("mod {name};\n"));
            assert!(!holds_tests || is_named || name == program, "{package}: `{name}` is left out");
        }
    }
}

/// Every path that the documents name exists.
#[test]
fn paths_named_in_documents_exist() {
    let mut faults = Vec::new();
    for path in files(&[".md"]) {
        let text = std::fs::read_to_string(&path).unwrap();
        let quoted = text.split('`').skip(1).step_by(2);
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for name in quoted.chain(links) {
            let is_path = ["crates/", "examples/", "bench/", ".ci/"]
                .iter()
                .any(|start| name.starts_with(start))
                || (name.ends_with(".md") && !name.contains(' '));
            let name = name.split(&[' ', ':', '#'][..]).next().unwrap_or_default();
            // Relative to the root, or for a link to its document.
            let is_there = root().join(name).exists() || path.with_file_name(name).exists();
            if is_path && !name.contains(['*', '{', 'N']) && !is_there {
                faults.push(format!("{}: names `{name}`, which is not there", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Every test program that a document or a script names exists in the named package. Several files
/// form one program in some packages.
#[test]
fn test_programs_named_in_documents_exist() {
    let is_program = |package: &str, name: &str| {
        let folder = match package.strip_prefix("readpath-") {
            Some(folder) => root().join("crates").join(folder),
            None => root().join("crates/io"),
        };
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let is_found = !manifest.contains("autotests = false")
            && (folder.join(format!("tests/{name}.rs")).exists()
                || folder.join(format!("tests/{name}/main.rs")).exists());
        is_found || manifest.contains(&format!("[[test]]\nname = \"{name}\""))
    };
    assert!(is_program("readpath-sim", "all") && is_program("readpath", "all"));
    assert!(!is_program("readpath-sim", "profile"));
    let mut faults = Vec::new();
    for path in files(&[".md", ".py"]).into_iter().chain([root().join(".ci/slow")]) {
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines() {
            let words: Vec<&str> =
                line.split(|it: char| it.is_whitespace() || "`\"',;()".contains(it)).collect();
            let mut package = None;
            for pair in words.windows(2) {
                match pair {
                    ["-p", name] => package = Some(*name),
                    ["--test", name] if package.is_some_and(|of| !is_program(of, name)) => {
                        faults.push(format!("{}: no {package:?} has {name}", path.display()));
                    }
                    _ => {}
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The core is built without the standard library: it cannot use clocks, threads or files.
#[test]
fn core_crate_is_no_std_without_unsafe_or_floats() {
    let text = std::fs::read_to_string(root().join("crates/core/src/lib.rs")).unwrap();
    assert!(text.contains("#![no_std]") && text.contains("#![forbid(unsafe_code)]"));
    for name in ["remote", "models", "sim", "trace"] {
        let path = root().join(format!("crates/{name}/src/lib.rs"));
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{name}");
    }
    for path in
        files(&[".rs"]).iter().filter(|path| path.to_string_lossy().contains("crates/core/src"))
    {
        let text = std::fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for word in ["f32", "f64"] {
            let is_there = code
                .lines()
                .any(|line| !line.trim_start().starts_with("//") && line.contains(word));
            let may = path.ends_with("unit.rs");
            assert!(
                !is_there || may,
                "{}: holds {word}, and policies are integers",
                path.display()
            );
        }
    }
}
