//! `readpath devices measure` end to end: a folder, a device with known costs, and the
//! refused arguments.
//!
//! Tests of a served device need root and FUSE; they say so and skip where these are not.

mod support;

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::Scratch;

/// Modelled device behind a file, removed at the end of the test in any case.
struct Served {
    child: Child,
    folder: std::path::PathBuf,
}

impl Served {
    /// `None` if this system has no FUSE.
    fn start(scratch: &Scratch, device: &str) -> Option<Served> {
        let has_fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
        if !support::is_root() || !has_fuse {
            println!("skipped: serving a device needs root and /dev/fuse");
            return None;
        }
        let folder = scratch.path("served");
        std::fs::create_dir(&folder).unwrap();
        let words = ["emulate", device, "--size", "64MiB", "--at", "served"];
        let mut command = scratch.command(words);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready: "), "{line}");
        Some(Served { child, folder })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Times in a description under a heading, one list per block.
fn times(path: &Path, heading: &str) -> Vec<Vec<f64>> {
    let text = std::fs::read_to_string(path).unwrap();
    let blocks = text.split("\n[").filter(|block| block.starts_with(heading));
    let list = |block: &str| {
        let (_, rest) = block.split_once("us = [").unwrap();
        let (list, _) = rest.split_once(']').unwrap();
        list.split(", ").map(|us| us.parse().unwrap()).collect()
    };
    blocks.map(list).collect()
}

/// Each request waits 3 ms for its first byte, with four at once, and transfers at 50 MB/s. No
/// clock can show less.
#[test]
fn device_of_known_costs_is_measured_and_its_model_runs_jobs() {
    let scratch = Scratch::new("profile-served");
    let delays: Vec<String> =
        ["min", "p50", "p90", "p99", "max"].map(|at| format!("first_byte_{at}=3ms")).to_vec();
    let device = format!(
        "object,connections=4,connection=50m,bandwidth=1000m,get_rate=100000,{}",
        delays.join(",")
    );
    let Some(served) = Served::start(&scratch, &device) else { return };
    let ran = scratch.run("devices measure served/device --seconds 5 --toml mine.toml --noisy");
    ran.has_ended(0, "profile");
    // A loaded machine may answer late in some cells: that is a warning, and refused without
    // --noisy.
    ran.says(&[], "profile");
    assert!(ran.stdout.contains("a sequential one costs"), "{}", ran.stdout);
    drop(served);
    let random = times(&scratch.path("mine.toml"), "[random]]");
    // 4 KiB: 3 ms, and 82 µs for the bytes. 64 at once are 16 rounds of four. A request that
    // arrives late in a round waits for at least the 15 following rounds.
    assert!(random[0][0] >= 3_080.0, "{random:?}");
    assert!(random[0][6] >= 15.0 * 3_080.0, "{random:?}");
    // 1 MiB takes 21 ms more.
    assert!(random[4][0] >= 23_900.0, "{random:?}");
    scratch.file("j.fio", support::RANDOM);
    let job = scratch.run("run j.fio --on measured,toml=mine.toml --readahead none");
    job.has_ended(0, "run on what was measured");
    scratch.run("devices measured,toml=mine.toml").has_ended(0, "devices");
}

#[test]
fn measurement_file_in_a_folder_is_removed_even_after_interrupt() {
    let scratch = Scratch::new("profile-folder");
    std::fs::create_dir(scratch.path("on")).unwrap();
    let made = || std::fs::read_dir(scratch.path("on")).unwrap().count();
    let ran = scratch.run("devices measure on --seconds 1 --bytes 64MiB --size 64MiB --json");
    if ran.code == Some(2) && ran.stderr.contains("direct") {
        return println!("skipped: no direct I/O here: {}", ran.stderr);
    }
    ran.has_ended(0, "devices measure of a folder");
    assert!(ran.stdout.contains("\"access\": \"following\""), "{}", ran.stdout);
    assert_eq!(made(), 0);

    let mut command = scratch.command("devices measure on --seconds 600 --size 64MiB".split(' '));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while made() == 0 && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(made(), 1, "it has begun");
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupted.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(made(), 0);
}

#[test]
fn unmeasurable_targets_are_refused_by_name() {
    let scratch = Scratch::new("profile-refused");
    scratch.data("small", 1 << 20);
    scratch.refused("devices measure nothing", &["nothing", "No such file"]);
    scratch.refused("devices measure small", &["small", "64 MiB", "larger file"]);
    scratch.refused("devices measure . --bytes 0", &["--bytes 0", "nothing would be measured"]);
    scratch.refused("devices measure . --noisy", &["--toml"]);
    scratch.refused("devices measure . --size 900TiB", &["MiB free", "smaller --size"]);
    scratch.refused("devices measure . --size 32MiB", &["--size 32MiB", "at least 64 MiB"]);
    scratch.refused("devices measure small --toml no/such/folder.toml", &["can't be written"]);
    scratch.refused("devices measure /dev/null", &["no file, block device or folder"]);
    scratch.file("bad.toml", "name = \"x\"\nalignment_bytes = 777\n");
    scratch.file("j.fio", support::RANDOM);
    let words = &["bad.toml:2", "alignment_bytes", "512 or 4096"];
    scratch.refused("run j.fio --on measured,toml=bad.toml", words);
    scratch.refused("run j.fio --on measured,random.9k.depth1=5", &["no parameter", "toml"]);
}
