//! The commands in the README and in the command's own help do what they say.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The commands in the fenced shell blocks of a document.
fn commands(document: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.flat_map(|block| block.lines().map(str::to_owned)).collect()
}

/// The chapters in which the sources are told.
fn book() -> String {
    let chapters = ["a", "c"].map(|name| format!("book/src/sources/{name}.md"));
    chapters.map(|name| std::fs::read_to_string(root().join(name)).unwrap()).concat()
}

/// Runs one command of a document; None when it is not one of the command's own.
fn run(command: &str) -> Option<Output> {
    let arguments = command
        .strip_prefix("cargo run --release -- ")
        .or_else(|| command.strip_prefix("readpath "))?;
    let output = Command::new(env!("CARGO_BIN_EXE_readpath"))
        .args(arguments.split_whitespace())
        .current_dir(root())
        .output()
        .unwrap();
    Some(output)
}

#[test]
fn the_readmes_commands_work() {
    let mut ran = 0;
    for command in commands("README.md") {
        // What the book has as well is run by its test, which also looks at what is printed.
        if book().contains(&format!("```sh\n{command}\n```")) {
            continue;
        }
        let Some(output) = run(&command) else {
            let is_test = ["cargo test --workspace", ".ci/python"].contains(&command.as_str());
            assert!(is_test, "a command that nobody tries: {command}");
            continue;
        };
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(3) {
            println!("skipped: {command}: {told}");
            continue;
        }
        assert!(output.status.success(), "{command}: {told}");
        assert!(!output.stdout.is_empty(), "{command} prints nothing");
        ran += 1;
    }
    assert!(ran >= 5, "the README's commands were found");
    assert!(!root().join("quickstart.data").exists(), "the file that was made is gone");
}

/// The first command of the README is the main job: a row for each storage.
#[test]
fn the_main_job_gives_four_rows() {
    let main = &commands("README.md")[0];
    assert!(main.contains("--on hdd,ssd --on file:") && main.contains("--on kernel:"));
    let output = run(&main.replace("quickstart.data", "quickstart-rows.data")).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for storage in ["hdd", "ssd", "file:quickstart-rows.data", "kernel:quickstart-rows.data"] {
        let rows = text.lines().filter(|line| line.split_whitespace().next() == Some(storage));
        assert_eq!(rows.count(), 1, "{storage} in\n{text}");
    }
}

/// `bench/retake.py` knows every row of the README's table of figures, and its words for each figure are
/// the README's.
#[test]
fn every_figure_of_the_readme_has_its_command() {
    let listed =
        Command::new("python3").args(["bench/retake.py", "--json"]).current_dir(root()).output();
    let Ok(listed) = listed else {
        println!("skipped: there is no python3");
        return;
    };
    let all: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let words = |list: &str, place: usize| -> Vec<String> {
        let list = all[list].as_array().unwrap().iter();
        list.map(|one| one[place].as_str().unwrap().to_owned()).collect()
    };
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let flowing = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    let known = [words("figures", 1), words("need_more", 0)].concat();
    for figure in &known {
        assert!(flowing.contains(figure.as_str()), "the README has no figure `{figure}` any more");
    }
    let table = readme.split("| job | ours ÷ kernel |\n|---|---|\n").nth(1).unwrap();
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        assert!(
            known.iter().any(|figure| row.starts_with(figure.as_str())),
            "no command for {row}"
        );
    }
    for command in words("figures", 2) {
        let script = command.split_whitespace().find(|word| word.starts_with("bench/"));
        assert!(script.is_none_or(|script| root().join(script).exists()), "{command}");
        if let Some(arguments) = command.strip_prefix("cargo run --release --quiet -- ") {
            let subcommand = arguments.split_whitespace().next().unwrap();
            let help = run(&format!("readpath {subcommand} --help")).unwrap();
            assert!(help.status.success(), "{command}");
        }
    }
}
