//! The commands in the README and in the command's own help work as described.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[path = "documents/figures.rs"]
mod figures;
#[path = "support/sources.rs"]
mod sources;
#[path = "support/within.rs"]
mod within;

use within::{LIMIT, output_within};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Commands in the fenced shell blocks of a document.
fn commands(document: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.flat_map(|block| block.lines().map(str::to_owned)).collect()
}

/// Chapters of the book about the sources.
fn book() -> String {
    let chapters = ["a", "c"].map(|name| format!("book/src/sources/{name}.md"));
    chapters.map(|name| fs::read_to_string(root().join(name)).unwrap()).concat()
}

/// Runs one command of a document; `None` if it is not a readpath command.
fn run(command: &str) -> Option<Output> {
    let arguments = command
        .strip_prefix("cargo run --profile quick -- ")
        .or_else(|| command.strip_prefix("readpath "))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_readpath"));
    command.args(arguments.split_whitespace()).current_dir(root());
    Some(output_within(&mut command, LIMIT))
}

#[test]
fn readme_commands_succeed() {
    let mut ran = 0;
    for command in commands("README.md") {
        // The test of the book runs the commands that the book also has, and checks their output.
        if book().contains(&format!("```sh\n{command}\n```")) {
            continue;
        }
        let Some(output) = run(&command) else {
            let is_test = command == ".ci/check";
            assert!(is_test, "a command without a test: {command}");
            continue;
        };
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(3) {
            println!("skipped: {command}: {stderr}");
            continue;
        }
        assert!(output.status.success(), "{command}: {stderr}");
        assert!(!output.stdout.is_empty(), "{command} prints nothing");
        ran += 1;
    }
    assert!(ran >= 5, "the README's commands were found");
    assert!(!root().join("quickstart.data").exists(), "the file that was made is gone");
}

/// The loads of the example under every swap-in policy on both drives: a run under `adaptive` and
/// `cfq` on the disk did not end.
#[test]
fn swap_example_completes_under_every_scheduler() {
    for scheduler in ["noop", "deadline", "mq-deadline", "kyber", "cfq", "bfq", "adaptive"] {
        let command = format!(
            "readpath run examples/swap.toml --on hdd,ssd --swapin none,adaptive --scheduler \
             {scheduler}"
        );
        let output = run(&command).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The book's commands from a recording to its findings and to other storage run as they stand,
/// by a shell, in a folder of the test's own. The recorded program reads something. Its files are
/// dropped from memory before, because a replay needs reads that waited for storage.
#[test]
fn a_recording_of_the_book_can_be_explained_and_replayed() {
    let pages = ["record", "explain", "replay", "recording"];
    let text: String =
        pages.iter().map(|page| document(&format!("book/src/commands/{page}.md"))).collect();
    let line = |begin: &str| {
        let found = text.lines().find(|line| line.starts_with(begin));
        found.unwrap_or_else(|| panic!("no command `{begin}`"))
    };
    let commands = [
        line("readpath record -o reads.rec -- "),
        line("readpath explain reads.rec"),
        line("readpath replay reads.rec --on "),
        line("readpath recording export reads.rec "),
    ];
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("readpath-recording-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let ours = Path::new(env!("CARGO_BIN_EXE_readpath")).parent().unwrap();
    let path = format!("{}:{}", ours.display(), std::env::var("PATH").unwrap());
    for package in fs::read_dir("/usr/share/doc").into_iter().flatten().flatten() {
        // Not every package has the file.
        let _ = readpath_record::cold::drop_pages(&package.path().join("copyright"));
    }
    let mut fault = None;
    for command in commands {
        let mut shell = Command::new("bash");
        shell.args(["-c", command]).current_dir(&folder).env("PATH", &path);
        let output = output_within(&mut shell, LIMIT);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(3) {
            println!("skipped: {command}: {said}");
            break;
        }
        if !output.status.success() {
            fault = Some(format!("{command}: {said}"));
            break;
        }
    }
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(fault, None);
}

/// The first command of the README is the main job, with one row per storage.
#[test]
fn first_readme_command_prints_four_rows() {
    let main = &commands("README.md")[0];
    assert!(main.contains("--on hdd,ssd --on file:") && main.contains("--on kernel:"));
    let output = run(&main.replace("quickstart.data", "quickstart-rows.data")).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for storage in ["hdd", "ssd", "file:quickstart-rows.data", "kernel:quickstart-rows.data"] {
        // Behind the verdict.
        let rows =
            text.lines().skip(1).filter(|line| line.split_whitespace().next() == Some(storage));
        assert_eq!(rows.count(), 1, "{storage} in\n{text}");
    }
}

/// Figure of a document, as listed by `bench/retake.py`: the document's words for it, and the
/// command.
#[derive(serde::Deserialize)]
struct Figure {
    name: String,
    document: String,
    words: String,
    command: String,
    quick: Option<String>,
}

#[derive(serde::Deserialize)]
struct Figures {
    figures: Vec<Figure>,
    /// Document, words, and further requirements of the figure.
    need_more: Vec<(String, String, String)>,
}

impl Figures {
    /// Runs `bench/retake.py --json`; `None` without Python.
    fn listed() -> Option<Figures> {
        let listed = Command::new("python3")
            .args(["bench/retake.py", "--json"])
            .current_dir(root())
            .output();
        let Ok(listed) = listed else {
            println!("skipped: there is no python3");
            return None;
        };
        Some(serde_json::from_slice(&listed.stdout).unwrap())
    }

    /// Words for the figures of a document.
    fn words_in<'a>(&'a self, document: &'a str) -> impl Iterator<Item = &'a str> {
        let figures = self.figures.iter().map(|figure| (&figure.document, &figure.words));
        let more = self.need_more.iter().map(|(document, words, _)| (document, words));
        figures.chain(more).filter(move |(of, _)| *of == document).map(|(_, words)| words.as_str())
    }
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

fn flowing(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// True if the text contains the words. A row of a table starts with them, a heading equals them,
/// and other words may be anywhere.
fn has_words(text: &str, words: &str) -> bool {
    match words.starts_with(['#', '|']) {
        true => text.lines().any(|line| match words.starts_with('#') {
            true => line == words,
            false => line.starts_with(words),
        }),
        false => flowing(text).contains(words),
    }
}

/// `bench/retake.py` covers every row of the README's table of figures and every paragraph about
/// them. Its words for each figure equal the documents'.
#[test]
fn readme_figures_each_have_a_command() {
    let Some(all) = Figures::listed() else { return };
    for name in ["README.md", "bench/README.md"] {
        let text = document(name);
        for words in all.words_in(name) {
            assert!(has_words(&text, words), "{name} has no figure `{words}` any more");
        }
    }
    let readme = document("README.md");
    let numbers = readme.split("\n## Numbers\n").nth(1).unwrap().split("\n## ").next().unwrap();
    for part in numbers.split("\n\n").skip(1) {
        let rows = part.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
        let mut parts: Vec<&str> = rows.collect();
        if parts.is_empty() {
            parts = vec![part];
        }
        for part in parts.iter().filter(|part| !part.trim().is_empty()) {
            let is_known = all.words_in("README.md").any(|words| has_words(part, words));
            assert!(is_known, "bench/retake.py has no command for: {part}");
        }
    }
}

/// Every section of `bench/README.md` with figures is covered by `bench/retake.py`, and names one
/// of its commands.
#[test]
fn benchmark_tables_each_have_a_command() {
    let Some(all) = Figures::listed() else { return };
    let text = document("bench/README.md");
    let (mut heading, mut sections) = ("", Vec::new());
    for line in text.lines() {
        if line.starts_with("##") {
            heading = line;
            sections.push((heading, String::new()));
        } else if !heading.is_empty() {
            sections.last_mut().unwrap().1 += &format!("{line}\n");
        }
    }
    for (heading, section) in &sections {
        if !section.contains("|---") && !section.contains("```") {
            continue;
        }
        let mut ways: Vec<&str> = all
            .figures
            .iter()
            .filter(|figure| figure.document == "bench/README.md" && figure.words == *heading)
            .map(|figure| figure.command.as_str())
            .collect();
        let more = all.need_more.iter().filter(|(_, words, _)| words == heading);
        ways.extend(more.filter_map(|(.., needs)| needs.split('`').nth(1)));
        assert!(!ways.is_empty(), "bench/retake.py doesn't know `{heading}`");
        for way in ways {
            let named = tool(way);
            assert!(section.contains(&named), "`{heading}` doesn't say that `{named}` gives it");
        }
    }
}

/// The policies `adaptive` have at most twenty constants. A table lists the source of each, and its
/// effect at half and at twice its declared value.
#[test]
fn policy_constants_are_few_and_have_documented_sensitivity() {
    let listed = Command::new("python3")
        .args(["bench/sensitivity.py", "--list"])
        .current_dir(root())
        .output();
    let Ok(listed) = listed else { return println!("skipped: there is no python3") };
    let listed = String::from_utf8(listed.stdout).unwrap();
    let text = document("bench/notes/constants.md");
    let measured: serde_json::Value =
        serde_json::from_str(&document("bench/results/sensitivity.json")).unwrap();
    let measured = measured["constants"].as_object().unwrap();
    for line in listed.lines() {
        let (key, declared) = line.split_once('\t').unwrap();
        let row = format!("| `{key}` |");
        assert!(text.lines().any(|line| line.starts_with(&row)), "no row `{row}`");
        assert_eq!(measured[key]["declared"], declared, "measured with another value");
    }
    assert_eq!(listed.lines().count(), measured.len(), "measured, and not there any more");
    assert!((3..=20).contains(&measured.len()), "{} constants", measured.len());
}

/// Part of a command that a document must name: the script, the benchmark, or the subcommand.
fn tool(command: &str) -> String {
    let words: Vec<&str> = command.split([' ', '\'']).collect();
    let after = |word: &str| words.iter().position(|one| *one == word).map(|at| words[at + 1]);
    let is_script = |word: &&&str| word.starts_with("bench/") || word.starts_with(".ci/");
    if let Some(script) = words.iter().find(is_script) {
        return (*script).to_owned();
    }
    for kind in ["--bench", "--example", "--test"] {
        if let Some(name) = after(kind) {
            return format!("{kind} {name}");
        }
    }
    let subcommand = after("--").or_else(|| after("readpath")).expect("a command of ours");
    format!("readpath {subcommand}")
}

/// Everything that `bench/retake.py` runs exists: scripts, benchmarks, examples, subcommands and
/// their options.
#[test]
fn figure_commands_name_existing_scripts_and_options() {
    let Some(all) = Figures::listed() else { return };
    let mut names = std::collections::BTreeSet::new();
    for figure in &all.figures {
        assert!(names.insert(&figure.name), "{} twice", figure.name);
        for command in [Some(&figure.command), figure.quick.as_ref()].into_iter().flatten() {
            let script = command.split_whitespace().find(|word| word.starts_with("bench/"));
            assert!(script.is_none_or(|script| root().join(script).exists()), "{command}");
            let words: Vec<&str> = command.split_whitespace().collect();
            if let Some(at) = words.iter().position(|word| ["--bench", "--example"].contains(word))
            {
                let package = words[words.iter().position(|word| *word == "-p").unwrap() + 1];
                let folder = root().join("crates").join(package.trim_start_matches("readpath-"));
                let folder = folder.join(format!(
                    "{}s",
                    words[at].trim_start_matches('-').replace("bench", "benche")
                ));
                let is_there =
                    [format!("{}.rs", words[at + 1]), format!("{}/main.rs", words[at + 1])]
                        .iter()
                        .any(|name| folder.join(name).exists());
                assert!(is_there, "{command}");
            }
            if let Some(arguments) = command.strip_prefix("cargo run --release --quiet -- ") {
                // `eval` has subcommands of its own.
                let depth = if arguments.starts_with("eval ") { 2 } else { 1 };
                let subcommand =
                    arguments.split_whitespace().take(depth).collect::<Vec<_>>().join(" ");
                let help = run(&format!("readpath {subcommand} --help")).unwrap();
                assert!(help.status.success(), "{command}");
                let help = String::from_utf8(help.stdout).unwrap();
                for option in arguments.split_whitespace().filter(|word| word.starts_with("--")) {
                    assert!(help.contains(option), "{command}: {option}");
                }
            }
        }
    }
}

/// The documents call a script by its path: `bench/NAME.py`.
#[test]
fn scripts_of_measurements_are_executable() {
    use std::os::unix::fs::PermissionsExt;
    let mut scripts = 0;
    for path in sources::files(&root().join("bench"), &[".py"], &[]) {
        let text = fs::read_to_string(&path).unwrap();
        // The module of the others.
        if path.ends_with("built.py") {
            continue;
        }
        scripts += 1;
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert!(text.starts_with("#!/usr/bin/env python3\n"), "{}: no `#!`", path.display());
        assert_eq!(mode & 0o111, 0o111, "{}: chmod +x", path.display());
    }
    assert!(scripts > 30, "{scripts} scripts");
}

/// Each command with a small variant runs to its end.
#[test]
#[ignore = "builds for release and takes minutes: .ci/slow"]
fn figure_commands_complete_in_their_quick_form() {
    let folder =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("retaken-{}", std::process::id()));
    fs::create_dir_all(folder.join("data")).unwrap();
    let output = Command::new("python3")
        .args(["bench/retake.py", "--quick", "--out"])
        .args([folder.join("figures"), folder.join("data")])
        .current_dir(root())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let all = Figures::listed().unwrap();
    let quick: Vec<&Figure> = all.figures.iter().filter(|figure| figure.quick.is_some()).collect();
    assert!(quick.len() > 10);
    for figure in quick {
        let file = folder.join("figures").join(format!("{}.txt", figure.name));
        let taken = fs::read_to_string(file).unwrap();
        // The command, the place and time of its run, and its output.
        assert!(taken.starts_with("$ ") && taken.lines().count() > 2, "{}: {taken}", figure.name);
    }
    fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{stderr}");
}

/// ARCHITECTURE lists the functions that a read passes, each with its file. A name in the text is a
/// type, or a function of one.
#[test]
fn architecture_names_existing_functions_and_types() {
    let text = document("ARCHITECTURE.md");
    let defines = |file: &str, name: &str| {
        let source = fs::read_to_string(root().join(file)).unwrap_or_default();
        let defined = format!("fn {name}");
        source
            .match_indices(&defined)
            .any(|(at, _)| source[at + defined.len()..].starts_with(['(', '<']))
    };
    let mut listed = 0;
    let mut wrong = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [number, function, file, ..] = words[..] else { continue };
        if number.parse::<u32>().is_err() || !file.ends_with(".rs") {
            continue;
        }
        listed += 1;
        if !defines(file, function.rsplit("::").next().unwrap()) {
            wrong.push(line.to_owned());
        }
    }
    assert!(listed > 40, "{listed} functions");
    let sources = all_sources();
    for name in text.split('`').skip(1).step_by(2) {
        let mut parts = name.split("::");
        let (Some(first), second, None) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let is_type = |word: &str| {
            word.starts_with(|first: char| first.is_ascii_uppercase())
                && word.chars().all(|one| one.is_ascii_alphanumeric())
                && word.chars().any(|one| one.is_ascii_lowercase())
        };
        let kinds = ["struct", "enum", "trait", "type", "const", "mod"];
        let has_type = |name: &str| {
            let defined = |kind: &&str| sources.contains(&format!("{kind} {name}"));
            kinds.iter().any(defined) || sources.contains(&format!("    {name}("))
        };
        if is_type(first) && !has_type(first) {
            wrong.push(name.to_owned());
        }
        if let Some(second) = second.filter(|_| is_type(first))
            && !sources.contains(&format!("fn {second}"))
            && !sources.contains(&format!("    {second}"))
        {
            wrong.push(name.to_owned());
        }
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md: not in the sources: {wrong:#?}");
}

/// All Rust sources of the workspace and of the Python package, as one text.
fn all_sources() -> String {
    let folders = ["crates", "python/src"].map(|folder| root().join(folder));
    let files = folders.iter().flat_map(|folder| sources::files(folder, &[".rs"], &["target"]));
    files.map(|path| fs::read_to_string(path).unwrap()).collect()
}
