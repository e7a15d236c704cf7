//! Requirements of a release: equal versions, packable crates, dependencies for the oldest
//! supported Rust, completions, manual pages, and an installable command.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const PUBLISHED: [&str; 10] = [
    "readpath-core",
    "readpath-remote",
    "readpath-os",
    "readpath-models",
    "readpath-sim",
    "readpath-trace",
    "readpath",
    "readpath-record",
    "readpath-eval",
    "readpath-cli",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn cargo(arguments: &[&str]) -> Output {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(arguments)
        .current_dir(root())
        // Separate target folder: the one in use may be locked.
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("release"))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {}: {printed}", arguments.join(" "));
    output
}

/// The three numbers of a version, for comparison.
fn number(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap()).chain([0, 0]).take(3).collect()
}

fn metadata(arguments: &[&str]) -> Value {
    let output = cargo(&[&["metadata", "--format-version", "1"], arguments].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn readpath(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_readpath")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Folder below the build directory, removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("release-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The command's version equals the version of every crate and of the Python package. It equals the
/// changelog's newest release, or is later if there are unreleased changes.
#[test]
fn versions_of_crates_python_and_changelog_agree() {
    let version = env!("CARGO_PKG_VERSION");
    let all = metadata(&["--no-deps"]);
    for package in all["packages"].as_array().unwrap() {
        assert_eq!(package["version"], version, "{}", package["name"]);
    }
    let python = std::fs::read_to_string(root().join("python/Cargo.toml")).unwrap();
    assert!(python.contains(&format!("\nversion = \"{version}\"\n")), "python/Cargo.toml");
    let changes = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let heads: Vec<&str> = changes.lines().filter_map(|line| line.strip_prefix("## [")).collect();
    assert_eq!(heads[0], "Unreleased]");
    let newest = heads[1].split(']').next().unwrap();
    let unreleased = changes.split("\n## [").nth(1).unwrap();
    let has_changed = unreleased.lines().any(|line| line.starts_with("- "));
    let is_later = number(version) > number(newest);
    assert!(version == newest || has_changed && is_later, "the newest release is {newest}");
}

/// Each workspace's lock file names all dependencies of its packages. (The smaller ones
/// are easily forgotten when a crate gets a new dependency.)
#[test]
fn lock_files_name_all_dependencies() {
    for manifest in ["Cargo.toml", "python/Cargo.toml", "fuzz/Cargo.toml", "formats/Cargo.toml"] {
        metadata(&["--locked", "--manifest-path", manifest]);
    }
}

/// Metadata required by a registry: a description, at most five keywords of twenty letters, a
/// README, and no dependency named only by its path.
#[test]
fn published_crates_have_the_metadata_a_registry_requires() {
    let all = metadata(&["--no-deps"]);
    for package in all["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        // `publish = false` appears as a list without a registry.
        let is_published = package["publish"].is_null();
        assert_eq!(is_published, PUBLISHED.contains(&name), "{name}");
        if !is_published {
            continue;
        }
        assert!(package["description"].as_str().is_some_and(|text| text.len() > 20), "{name}");
        let keywords = package["keywords"].as_array().unwrap();
        assert!((1..=5).contains(&keywords.len()), "{name}: {keywords:?}");
        assert!(keywords.iter().all(|word| word.as_str().unwrap().len() <= 20), "{name}");
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        for file in [package["readme"].as_str().unwrap(), "LICENSE-APACHE", "LICENSE-MIT"] {
            assert!(folder.join(file).exists(), "{name}: {file}");
        }
        for needed in package["dependencies"].as_array().unwrap() {
            let is_for_tests = needed["kind"] == "dev";
            assert!(is_for_tests || needed["req"] != "*", "{name} needs a version of {needed}");
        }
    }
}

/// No dependency of a user's build needs a newer Rust than the declared one. (Dependencies of tests
/// may: `loom` does.)
#[test]
fn dependencies_support_the_minimum_rust_version() {
    let oldest = number(env!("CARGO_PKG_RUST_VERSION"));
    let all = metadata(&["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]);
    let nodes = all["resolve"]["nodes"].as_array().unwrap();
    let built = |node: &&Value| {
        node["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"] != "dev")
    };
    let mut found = BTreeSet::new();
    let members = all["workspace_members"].as_array().unwrap();
    let mut left: Vec<&str> = members.iter().map(|id| id.as_str().unwrap()).collect();
    while let Some(id) = left.pop() {
        if found.insert(id) {
            let node = nodes.iter().find(|node| node["id"] == id).unwrap();
            let needed = node["deps"].as_array().unwrap().iter().filter(built);
            left.extend(needed.map(|needed| needed["pkg"].as_str().unwrap()));
        }
    }
    assert!(found.len() > 50, "the dependencies are listed");
    let packages = all["packages"].as_array().unwrap().iter();
    for package in packages.filter(|package| found.contains(package["id"].as_str().unwrap())) {
        if let Some(needs) = package["rust_version"].as_str() {
            assert!(number(needs) <= oldest, "{} needs Rust {needs}", package["name"]);
        }
    }
}

/// Every published crate can be packed, with its licences.
#[test]
fn published_crates_can_be_packed() {
    for name in PUBLISHED {
        let listed = cargo(&["package", "--list", "--allow-dirty", "-p", name]).stdout;
        let listed = String::from_utf8(listed).unwrap();
        let source = if name == "readpath-cli" { "src/main.rs" } else { "src/lib.rs" };
        for file in ["Cargo.toml", "README.md", "LICENSE-APACHE", "LICENSE-MIT", source] {
            assert!(listed.lines().any(|line| line == file), "{name} has no {file}");
        }
    }
}

/// The packed crates build, each with the others as packed.
#[test]
#[ignore = "builds the published crates once more: .ci/slow"]
fn published_crates_can_be_published() {
    let mut arguments = vec!["publish", "--dry-run", "--allow-dirty"];
    arguments.extend(PUBLISHED.iter().flat_map(|name| ["-p", name]));
    cargo(&arguments);
}

#[test]
#[ignore = "builds the command once more: .ci/slow"]
fn the_command_installs_from_a_clone() {
    let folder = Folder::new("installed");
    cargo(&["install", "--path", "crates/cli", "--locked", "--debug", "--root", folder.text()]);
    let output = Command::new(folder.0.join("bin/readpath")).arg("--version").output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed, format!("readpath {}\n", env!("CARGO_PKG_VERSION")));
}

/// The oldest Rust (`rustup toolchain install 1.88`) builds everything, if installed.
#[test]
#[ignore = "builds everything once more: .ci/slow"]
fn workspace_builds_with_the_minimum_rust_version() {
    let toolchain = format!("+{}", env!("CARGO_PKG_RUST_VERSION"));
    let ran = Command::new("cargo").args([&toolchain, "--version"]).output();
    if !ran.is_ok_and(|output| output.status.success()) {
        println!("skipped: no toolchain {toolchain}");
        return;
    }
    for manifest in ["Cargo.toml", "python/Cargo.toml"] {
        let output = Command::new("cargo")
            .args([&toolchain, "check", "--workspace", "--all-features", "--locked"])
            .args(["--manifest-path", manifest])
            .current_dir(root())
            .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("oldest"))
            // Variables set by the toolchain that runs this test.
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("RUSTC")
            .env_remove("CARGO")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The lowest versions in the manifests suffice. (Indirect dependencies keep their usual versions.)
#[test]
#[ignore = "builds everything once more: .ci/slow"]
fn workspace_builds_with_minimal_dependency_versions() {
    // A copy of the sources, since the lock file changes. It is outside of the repository, where
    // cargo would treat it as a part of the workspace.
    let copy = Folder(std::env::temp_dir().join(format!("readpath-lowest-{}", std::process::id())));
    std::fs::create_dir_all(&copy.0).unwrap();
    // The choice of versions needs an unstable option; the build uses the stable compiler's
    // features.
    let script = "tar -C \"$0\" --exclude=./target --exclude=./.git -c . | tar -C \"$1\" -x && \
                  cd \"$1\" && RUSTC_BOOTSTRAP=1 cargo update --quiet -Z direct-minimal-versions && \
                  cargo check --workspace --lib --bins --all-features --locked";
    let output = Command::new("bash")
        .args(["-c", script, root().to_str().unwrap(), copy.text()])
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("lowest"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `cargo deny`, if installed, finds no fault in licences, bans and sources of the crates and the
/// Python package. Its `--all-features` includes the crates that only a feature brings in.
#[test]
fn dependencies_pass_cargo_deny() {
    let is_there = Command::new("cargo-deny").arg("--version").output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        println!("skipped: cargo-deny is not installed");
        return;
    }
    for manifest in ["Cargo.toml", "python/Cargo.toml"] {
        let workspace = ["deny", "--manifest-path", manifest, "--all-features"];
        let checks = ["--config", "deny.toml", "check", "bans", "licenses", "sources"];
        cargo(&[&workspace[..], &checks[..]].concat());
    }
}

/// Subcommands listed in the help.
fn subcommands() -> Vec<String> {
    let help = readpath(&["help"]);
    let listed = help.split("Options:\n").next().unwrap();
    // A command stands behind two blanks; an example begins with the name of the program.
    let lines = listed.lines().filter_map(|line| line.strip_prefix("  "));
    let names: Vec<String> = lines
        .filter(|line| !line.starts_with(' ') && !line.starts_with("readpath"))
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect();
    assert!(names.len() > 10, "the commands are found in\n{help}");
    names
}

#[test]
fn shells_complete_every_subcommand() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = readpath(&["completions", shell]);
        for name in subcommands() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
    }
    let folder = Folder::new("completions");
    let script = folder.0.join("readpath.bash");
    std::fs::write(&script, readpath(&["completions", "bash"])).unwrap();
    // Ask like the shell: complete `readpath cac`.
    let ask = "source readpath.bash; COMP_WORDS=(readpath cac); COMP_CWORD=1; \
               _readpath readpath cac readpath; echo \"${COMPREPLY[*]}\"";
    let asked = Command::new("bash").args(["-c", ask]).current_dir(&folder.0).output().unwrap();
    assert_eq!(String::from_utf8(asked.stdout).unwrap(), "cachesim\n");
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let folder = Folder::new("manual");
    readpath(&["man", folder.text()]);
    let page = |name: &str| std::fs::read_to_string(folder.0.join(name)).unwrap();
    assert!(page("readpath.1").contains(".SH SUBCOMMANDS"));
    for name in subcommands().iter().filter(|name| *name != "help") {
        let text = page(&format!("readpath-{name}.1"));
        assert!(text.contains(&format!(".TH readpath-{name} 1")), "{name}");
    }
    let names = std::fs::read_dir(&folder.0).unwrap();
    let names: BTreeSet<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    // A page refers to each page of a subcommand, `readpath-NAME(1)`. Hidden commands have no page.
    let mut referred = BTreeSet::from(["readpath.1".to_owned()]);
    for name in &names {
        let text = page(name).replace("\\-", "-");
        let ends = text.match_indices("(1)").map(|(end, _)| &text[..end]);
        let words = ends.filter_map(|text| text.split_whitespace().next_back());
        let pages = words.filter(|word| word.starts_with("readpath-"));
        referred.extend(pages.map(|page| format!("{page}.1")));
    }
    assert_eq!(names, referred);
}

/// Names of the direct dependencies on other projects in a workspace's manifests.
fn direct_dependencies(manifest: &str) -> BTreeSet<String> {
    let all = metadata(&["--no-deps", "--manifest-path", manifest]);
    let packages = all["packages"].as_array().unwrap();
    let dependencies = packages.iter().flat_map(|it| it["dependencies"].as_array().unwrap());
    let outside = dependencies.filter(|it| it["path"].is_null());
    outside.map(|it| it["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_direct_dependency_is_in_the_table_of_dependencies() {
    let text = std::fs::read_to_string(root().join("DEPENDENCIES.md")).unwrap();
    let named: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect();
    let mut used = direct_dependencies("Cargo.toml");
    used.extend(direct_dependencies("python/Cargo.toml"));
    assert_eq!(named, used);
}

/// The library without features needs at most eight crates of other projects.
#[test]
fn library_has_at_most_eight_direct_dependencies() {
    let all = metadata(&["--no-deps"]);
    let mut needed = BTreeSet::new();
    for package in all["packages"].as_array().unwrap() {
        if !["readpath", "readpath-core"].contains(&package["name"].as_str().unwrap()) {
            continue;
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let is_normal = dependency["kind"].is_null() && dependency["optional"] == false;
            if is_normal && dependency["path"].is_null() {
                needed.insert(dependency["name"].as_str().unwrap().to_owned());
            }
        }
    }
    assert!(needed.contains("io-uring") && needed.len() <= 8, "{needed:?}");
}
