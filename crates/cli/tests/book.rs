//! Checks of the book: its links resolve, its commands run, and their output and pictures equal the
//! book's. A newcomer's program, copied from the book, builds and runs. (The book's Rust code runs
//! as doctests of `readpath-eval`, its Python code in `python/tests/test_book.py`.)
//!
//! A block `sh` contains readpath commands. They run in a folder of the test, which contains the
//! repository's `examples`. It also contains the files of the chapter's blocks `ini`, whose first
//! line names the file. A block `text` directly below a block of one command is its output.
//! `sh,slow` is the same for commands that take minutes; an ignored test runs them. `bash` is a
//! script of the newcomer.
//!
//! With `READPATH_BOOK=remake` the output and the pictures are written into the book instead of
//! compared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[path = "support/within.rs"]
mod within;

use within::{LIMIT, output_within};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn is_remade() -> bool {
    std::env::var("READPATH_BOOK").is_ok_and(|what| what == "remake")
}

/// Chapters by their paths below the book's source folder.
fn chapters() -> BTreeMap<String, String> {
    let source = root().join("book/src");
    let mut found = BTreeMap::new();
    let mut folders = vec![source.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                let name = path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
                found.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    assert!(found.len() > 10, "the chapters are found");
    found
}

/// Fenced block of a chapter.
struct Block<'a> {
    /// Text after the fence: `sh`, `text`, …
    info: &'a str,
    body: &'a str,
    /// Byte offset of the body in the chapter.
    at: usize,
}

fn blocks(chapter: &str) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    let (mut at, mut open): (usize, Option<(&str, usize)>) = (0, None);
    for line in chapter.split_inclusive('\n') {
        let next = at + line.len();
        if let Some(info) = line.strip_prefix("```") {
            open = match open {
                None => Some((info.trim_end(), next)),
                Some((info, start)) => {
                    found.push(Block { info, body: &chapter[start..at], at: start });
                    None
                }
            };
        }
        at = next;
    }
    assert!(open.is_none(), "a block is closed");
    found
}

/// Folder below the build directory with the repository's examples, removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder::below(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    fn below(base: &Path, name: &str) -> Folder {
        let path = base.join(format!("readpath-book-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::os::unix::fs::symlink(root().join("examples"), path.join("examples")).unwrap();
        Folder(path)
    }

    /// Runs a readpath command in the folder.
    fn run(&self, command: &str) -> Output {
        let words = command
            .strip_prefix("cargo run --profile quick -- ")
            .or_else(|| command.strip_prefix("readpath "))
            .unwrap_or_else(|| panic!("a command without a test: {command}"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_readpath"));
        command.args(words.split_whitespace()).current_dir(&self.0);
        output_within(&mut command, LIMIT)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes trailing blanks of each line.
fn trimmed(text: &str) -> String {
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Runs the blocks of this kind. Compares their output and pictures with the following blocks of
/// the book.
fn try_blocks(info: &str, test: &str) {
    let mut faults = Vec::new();
    let mut ran = 0;
    for (name, chapter) in chapters() {
        let folder = Folder::new(&format!("{test}-{}", name.replace('/', "-")));
        let blocks = blocks(&chapter);
        for file in blocks.iter().filter(|block| block.info == "ini") {
            let first = file.body.lines().next().unwrap_or_default();
            let name = first.strip_prefix("; ").expect("a block `ini` begins with its name");
            std::fs::write(folder.0.join(name), file.body).unwrap();
        }
        let mut remade = chapter.clone();
        // Go backward: a replacement then moves no offset that is still needed.
        for (nth, block) in blocks.iter().enumerate().rev().filter(|(_, block)| block.info == info)
        {
            let below = blocks.get(nth + 1).filter(|next| next.info == "text");
            let commands: Vec<&str> = block.body.lines().collect();
            for &command in &commands {
                let output = folder.run(command);
                let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
                if output.status.code() == Some(3) {
                    println!("skipped: {command}: {stderr}");
                    continue;
                }
                if !output.status.success() {
                    faults.push(format!("{name}: {command}: {stderr}"));
                }
                ran += 1;
                let Some(below) = below.filter(|_| commands.len() == 1) else { continue };
                let printed = trimmed(&String::from_utf8(output.stdout).unwrap());
                if is_remade() {
                    remade.replace_range(below.at..below.at + below.body.len(), &printed);
                } else if printed != below.body {
                    faults.push(format!(
                        "{name}: {command} prints\n{printed}and the book says\n{}",
                        below.body
                    ));
                }
            }
        }
        if is_remade() {
            std::fs::write(root().join("book/src").join(&name), &remade).unwrap();
        }
        faults.extend(pictures_that_differ(&folder.0));
    }
    assert!(ran > 0, "commands were found");
    assert!(
        faults.is_empty(),
        "{}\n(crates/cli/tests/book.rs says how to remake the book)",
        faults.join("\n")
    );
}

/// Names of the drawn pictures that differ from the book's.
fn pictures_that_differ(folder: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let drawn = entry.unwrap().path();
        if drawn.extension().is_none_or(|ending| ending != "svg") {
            continue;
        }
        let name = drawn.file_name().unwrap();
        let shown = root().join("book/src/pictures").join(name);
        if is_remade() {
            std::fs::copy(&drawn, &shown).unwrap();
        } else if std::fs::read(&drawn).unwrap() != std::fs::read(&shown).unwrap_or_default() {
            faults.push(format!("pictures/{}: drawn otherwise now", name.display()));
        }
    }
    faults
}

#[test]
fn book_commands_print_the_documented_output() {
    try_blocks("sh", "fast");
}

#[test]
#[ignore = "takes minutes: .ci/slow"]
fn slow_book_commands_print_the_documented_output() {
    try_blocks("sh,slow", "slow");
}

/// Every policy has its picture.
#[test]
fn every_policy_has_a_picture_in_the_book() {
    let folder = Folder::new("policies");
    let listed = String::from_utf8(folder.run("readpath policies").stdout).unwrap();
    let mut kind = "";
    let chapters = chapters();
    let mut seen = 0;
    for line in listed.lines() {
        if let Some(head) = line.strip_suffix(':') {
            kind = head;
        } else if let Some(policy) = line.strip_prefix("  ") {
            let policy = policy.split_whitespace().next().unwrap();
            let chapter = &chapters[&format!("policies/{kind}.md")];
            let command =
                format!("readpath policies {kind}/{policy} --picture {kind}-{policy}.svg\n");
            assert!(chapter.contains(&command), "{kind}/{policy} has no picture in the book");
            assert!(chapter.contains(&format!("](../pictures/{kind}-{policy}.svg)")));
            seen += 1;
        }
    }
    assert!(seen >= 24, "the policies are listed");
}

/// Anchor of a heading, as mdBook and rustdoc derive it: letters and digits in lower case, hyphens
/// for blanks.
fn anchor(heading: &str) -> String {
    let heading = heading.to_lowercase().replace(' ', "-");
    heading.chars().filter(|&letter| letter.is_alphanumeric() || "-_".contains(letter)).collect()
}

#[test]
fn book_links_resolve_and_every_chapter_is_listed() {
    let chapters = chapters();
    let mut faults = Vec::new();
    for (name, text) in &chapters {
        let folder = Path::new(name).parent().unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = root().join("book/src").join(folder).join(file);
            if !path.exists() {
                faults.push(format!("{name}: {link} leads nowhere"));
            } else if !heading.is_empty() {
                let text = std::fs::read_to_string(&path).unwrap();
                let is_there = text.lines().any(|line| {
                    line.starts_with('#') && anchor(line.trim_start_matches(['#', ' '])) == heading
                });
                if !is_there {
                    faults.push(format!("{name}: {link}: no such heading"));
                }
            }
        }
        if name != "SUMMARY.md" && !chapters["SUMMARY.md"].contains(&format!("({name})")) {
            faults.push(format!("{name}: not in SUMMARY.md"));
        }
    }
    for picture in std::fs::read_dir(root().join("book/src/pictures")).unwrap() {
        let picture = picture.unwrap().file_name().into_string().unwrap();
        if !chapters.values().any(|text| text.contains(&format!("pictures/{picture}"))) {
            faults.push(format!("pictures/{picture}: in no chapter"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Builds the book with mdBook, if installed.
#[test]
fn book_builds_with_mdbook() {
    let Ok(version) = Command::new("mdbook").arg("--version").output() else {
        println!("skipped: mdbook is not installed");
        return;
    };
    println!("{}", String::from_utf8_lossy(&version.stdout));
    let built = Folder::new("built");
    let output = Command::new("mdbook")
        .args(["build", "book", "--dest-dir"])
        .arg(built.0.join("pages"))
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(built.0.join("pages/policies/readahead.html").exists());
}

/// Concatenates the scripts of a chapter for a shell that stops at the first failure.
fn scripts(chapter: &str) -> String {
    let all = blocks(chapter).into_iter().filter(|block| block.info == "bash");
    all.fold("set -e\n".to_owned(), |script, block| script + block.body)
}

/// Runs a script in this folder, with this build's `readpath` first in `PATH`.
fn run_script(folder: &Path, script: &str) -> Output {
    let ours = Path::new(env!("CARGO_BIN_EXE_readpath")).parent().unwrap();
    let others = std::env::var("PATH").unwrap();
    Command::new("bash")
        .args(["-c", script])
        .current_dir(folder)
        .env("PATH", format!("{}:{others}", ours.display()))
        .output()
        .unwrap()
}

/// Records the chapter's slow program as its text says. The first finding must be the one in the
/// text.
#[test]
#[ignore = "others that read from the same device disturb it: .ci/slow"]
fn slow_program_chapter_names_the_recorded_first_cause() {
    let chapter = &chapters()["slow.md"];
    let folder = Folder::new("why");
    let begun = std::time::Instant::now();
    let output = run_script(&folder.0, &scripts(chapter));
    println!("why the program is slow after {} s", begun.elapsed().as_secs());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(3) {
        println!("skipped: {stderr}");
        return;
    }
    assert!(output.status.success(), "{stderr}");
    let (_, rest) = chapter.split_once("The first cause of this program is **").unwrap();
    let (wrong, _) = rest.split_once("**").unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains(&format!("\n1. {wrong}")), "not {wrong} but\n{printed}");
}

#[test]
fn device_chapter_script_measures_and_models_a_local_device() {
    let folder = Folder::new("device");
    let output = run_script(&folder.0, &scripts(&chapters()["commands/devices.md"]));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(2) && stderr.contains("direct") {
        println!("skipped: no direct I/O here: {stderr}");
        return;
    }
    assert!(output.status.success(), "{stderr}");
    let printed = String::from_utf8(output.stdout).unwrap();
    // The verdict names the device with one space behind it, and the columns of a row are apart.
    assert_eq!(printed.matches("\nmeasured,toml=mine.toml  ").count(), 2, "two rows: {printed}");
}

/// Runs the first command of the first chapter in a clean clone without build outputs.
#[test]
#[ignore = "builds the command once more: .ci/slow"]
fn first_book_command_prints_its_table_in_a_clean_clone() {
    let chapter = &chapters()["start.md"];
    let first = blocks(chapter).into_iter().find(|block| block.info == "sh").unwrap();
    // Outside of the repository: inside it, cargo would also read the repository's settings.
    let folder = Folder::below(&std::env::temp_dir(), "clone");
    let begun = std::time::Instant::now();
    let script = format!("set -e\ngit clone --quiet {} clone\ncd clone\n", root().display());
    let output = Command::new("bash")
        .args(["-c", &(script + first.body)])
        .current_dir(&folder.0)
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    println!("the first table after {} s", begun.elapsed().as_secs());
    let printed = String::from_utf8(output.stdout).unwrap();
    for storage in ["hdd", "ssd", "file:quickstart.data", "kernel:quickstart.data"] {
        let is_there = printed.lines().any(|line| line.split_whitespace().next() == Some(storage));
        assert!(is_there, "{storage} in\n{printed}");
    }
    assert!(!folder.0.join("clone/quickstart.data").exists(), "the file that was made is gone");
}

/// Follows the first chapter from its text to a newcomer's own program. The scripts run in their
/// order, in a folder next to a clone called `readpath`.
#[test]
#[ignore = "builds the library once more: .ci/slow"]
fn a_newcomers_program_builds_and_runs() {
    let chapter = &chapters()["start.md"];
    // Outside of the repository: inside it, cargo would treat the program as a part of the
    // workspace.
    let folder = Folder::below(&std::env::temp_dir(), "newcomer");
    std::os::unix::fs::symlink(root(), folder.0.join("readpath")).unwrap();
    let mut script = String::from("set -e\n");
    let mut lines = 0;
    for block in blocks(chapter) {
        match block.info {
            "bash" => script += block.body,
            info if info.starts_with("rust") => {
                let shown: Vec<&str> =
                    block.body.lines().filter(|line| !line.starts_with("# ")).collect();
                lines = shown.iter().filter(|line| !["", "}"].contains(&line.trim())).count();
                script += &format!("cat > src/main.rs <<'END'\n{}\nEND\n", shown.join("\n"));
            }
            _ => {}
        }
    }
    assert!((5..=10).contains(&lines), "ten lines at most, closing braces apart");
    let begun = std::time::Instant::now();
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(&folder.0)
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("newcomer"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    println!("a program of his own after {} s", begun.elapsed().as_secs());
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        printed.starts_with("Stats {") && printed.contains("kernel_advised_bytes"),
        "{printed}"
    );
    // The cache of a tmpfs is the file itself, so that no page is left to be read.
    let is_in_memory = rustix::fs::statfs(&folder.0).unwrap().f_type == libc::TMPFS_MAGIC;
    let is_advised = !printed.contains("kernel_advised_bytes: 0,");
    assert!(is_advised || is_in_memory, "nothing was advised: {printed}");
}

/// Figures of one line of a grid, after the word `kind`. `-` is no figure.
fn figures(line: &str, kind: &str) -> Vec<Option<f64>> {
    let (_, rest) = line.split_once(&format!(" {kind} ")).expect("the line is of this kind");
    rest.split_whitespace().map(|word| word.parse().ok()).collect()
}

/// The first sentences of the chapter's output follow from the rows below them. The command takes
/// minutes, so other tests compare its output rarely.
#[test]
fn distance_to_the_published_figures_follows_from_the_rows() {
    let chapter = &chapters()["sources/d.md"];
    let output = blocks(chapter).into_iter().find(|block| block.info == "text").unwrap().body;
    let (mut near, mut all, mut farthest) = (0, 0, (0.0, String::new()));
    let mut columns: Vec<&str> = Vec::new();
    let mut published = None;
    for line in output.lines().skip(1) {
        if let Some((_, counts)) = line.split_once(" processes ") {
            columns = counts.split_whitespace().collect();
        } else if line.contains(" published ") {
            let name = line.split("  ").next().unwrap();
            published = Some((name, figures(line, "published")));
        } else if let (true, Some((name, row))) = (line.contains(" modelled "), published.take()) {
            let modelled = figures(line, "modelled");
            for ((column, published), modelled) in columns.iter().zip(row).zip(modelled) {
                let (Some(published), Some(modelled)) = (published, modelled) else { continue };
                let factor = (published / modelled).max(modelled / published);
                near += u32::from(factor <= 1.25);
                all += 1;
                if factor > farthest.0 {
                    let figures = format!("{published} published, {modelled} modelled");
                    farthest = (factor, format!("{name}, processes {column}: {figures}"));
                }
            }
        }
    }
    let sentences = format!(
        "The model is within a factor of 1.25 of {near} of {all} published figures. Farthest: \
         table D, {}.",
        farthest.1
    );
    assert_eq!(output.lines().next(), Some(sentences.as_str()));
    let limits = chapters()["limits.md"].split_whitespace().collect::<Vec<_>>().join(" ");
    let farthest = format!("processes in table D differ by up to {:.1}.", farthest.0);
    assert!(limits.contains(&farthest), "limits.md doesn't say `{farthest}`");
}
