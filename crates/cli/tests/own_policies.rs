//! A program that adds policies and a device to the command: the example `own_policies`.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Ran, Scratch};

/// The example's program. Cargo builds examples before tests, except where one test is named.
fn program() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_readpath")).parent().unwrap();
    let program = folder.join("examples/own_policies");
    if !program.exists() {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let mut build = Command::new(cargo);
        build.args(["build", "-p", "readpath-cli", "--example", "own_policies"]);
        assert!(build.status().unwrap().success(), "the example builds");
    }
    program
}

fn run(scratch: &Scratch, arguments: &str) -> Ran {
    let mut command = Command::new(program());
    command.current_dir(&scratch.0).args(arguments.split_whitespace());
    let ran = Ran::of(command.output().unwrap());
    ran.has_ended(0, arguments);
    ran
}

#[test]
fn foreign_policies_and_devices_are_listed_with_their_pages() {
    let scratch = Scratch::new("own-list");
    let policies = run(&scratch, "policies").stdout;
    for name in ["two-blocks", "fifo", "nearest"] {
        assert!(policies.contains(&format!("\n  {name} ")), "{policies}");
    }
    let page = run(&scratch, "policies eviction/fifo").stdout;
    assert!(page.contains("Uses do not move pages."), "{page}");
    let tape = run(&scratch, "devices show tape,winding=5ms").stdout;
    assert!(tape.contains("winding    5000"), "{tape}");
}

/// 16 requests of 64 KiB at 10 MB/s take 16 · 6,553.6 µs; the processor adds a few microseconds.
#[test]
fn foreign_device_takes_the_time_worked_by_hand() {
    let scratch = Scratch::new("own-device");
    scratch.file("job.fio", "[j]\nrw=read\nbs=64k\nsize=1m\ndirect=1\n");
    let rows = run(&scratch, "run job.fio --on tape,raid0:2xtape --json").results();
    let seconds = rows[0]["seconds"].as_f64().unwrap();
    assert!((0.104_857_6..0.104_90).contains(&seconds), "{seconds}");
    assert_eq!(rows[1]["storage"], "raid0:2xtape", "a foreign device is a member of another");
}

/// FIFO misses 1, 2, 3, 4 and then 1, which 4 evicted. LRU keeps 1, which was used again.
#[test]
fn foreign_eviction_policy_misses_as_worked_by_hand() {
    let scratch = Scratch::new("own-eviction");
    scratch.file("trace.txt", "1\n2\n3\n1\n4\n1\n");
    let rows = run(&scratch, "cachesim trace.txt --eviction fifo,lru --sizes 12KiB --json");
    let misses: Vec<u64> =
        rows.results().iter().map(|row| row["misses"].as_u64().unwrap()).collect();
    assert_eq!(misses, [5, 4, 4], "fifo, lru, optimum");
}

/// The first read brings in two blocks; each later block boundary brings in the next block. The
/// file of 1 MiB has 16 blocks.
#[test]
fn foreign_readahead_policy_makes_the_requests_worked_by_hand() {
    let scratch = Scratch::new("own-readahead");
    scratch.file("job.fio", "[j]\nrw=read\nbs=4k\nsize=1m\n");
    let rows = run(&scratch, "run job.fio --on ssd --readahead two-blocks,none --json").results();
    let requests = |row: usize| rows[row]["device_requests"].as_u64().unwrap();
    assert_eq!((requests(0), requests(1)), (15, 256));
}

/// Names are valid on real files too, and the bytes are the file's.
#[test]
fn foreign_policies_serve_real_files() {
    let scratch = Scratch::new("own-file");
    scratch.file("job.fio", "[j]\nrw=randread\nbs=4k\nsize=1m\n");
    scratch.file("data", vec![7; 1 << 20]);
    let policies = "--readahead two-blocks --scheduler nearest --eviction fifo";
    let rows =
        run(&scratch, &format!("run job.fio --on file:data --page-cache own {policies} --json"))
            .results();
    assert_eq!(rows[0]["readahead"], "two-blocks");
    assert_eq!(rows[0]["scheduler"], "nearest");
    assert_eq!((&rows[0]["bytes"], &rows[0]["errors"]), (&(1 << 20).into(), &0.into()));
}

/// The folder of the example, as a crate of its own outside this repository.
#[test]
#[ignore = "builds the command once more: .ci/slow"]
fn example_builds_outside_the_repository() {
    let scratch = Scratch::new("own-crate");
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let dependency = |name: &str, folder: &str| {
        format!("{name} = {{ path = \"{}\" }}\n", crates.join(folder).display())
    };
    let manifest = "[package]\nname = \"own\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
                    [workspace]\n\n[dependencies]\n";
    let dependencies =
        [("readpath-cli", "cli"), ("readpath-core", "core"), ("readpath-models", "models")];
    let dependencies = dependencies.map(|(name, folder)| dependency(name, folder)).concat();
    scratch.file("Cargo.toml", format!("{manifest}{dependencies}"));
    std::fs::create_dir(scratch.path("src")).unwrap();
    for entry in std::fs::read_dir(crates.join("cli/examples/own_policies")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, scratch.path("src").join(path.file_name().unwrap())).unwrap();
    }
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let target = scratch.path("target");
    let mut build = Command::new(&cargo);
    build.arg("build").current_dir(&scratch.0).env("CARGO_TARGET_DIR", &target);
    let built = build.status().unwrap();
    assert!(built.success());
    let mut listed = Command::new(target.join("debug/own"));
    let listed = Ran::of(listed.args(["policies", "two-blocks"]).output().unwrap());
    listed.has_ended(0, "policies two-blocks");
}
