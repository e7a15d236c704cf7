//! Loads on memory: the rows of the command. Under the kernel's own swap also the minimum that the
//! kernel must have read, and the absence of leftovers after any kind of end.
//!
//! The latter needs root, a memory cgroup and a file system that supports swap files. Elsewhere the
//! command names the missing part, and the test prints it.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use readpath::Region;
use support::disk::LoopDevice;
use support::{READPATH, Ran, Scratch, has, is_root};

/// 6,144 pages with a memory of 4,096.
const SMALL: &str = r#"
mapping = "24MiB"
memory = "16MiB"
sweeps = 2
[[load]]
name = "sweeps"
pattern = "sequential"
[[load]]
name = "shared"
pattern = "random"
share = "shared"
writes = 0.5
processes = 2
"#;

/// Longer than any test could wait.
const LONG: &str = r#"
[[load]]
name = "long"
mapping = "24MiB"
memory = "16MiB"
pattern = "random"
touches = 1_000_000_000_000
"#;

/// Lock of the machine's swap areas and page_cluster, which one test at a time may check. In
/// addition, the next command undoes the leftovers of a killed one.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn page_cluster() -> String {
    fs::read_to_string("/proc/sys/vm/page-cluster").unwrap_or_default()
}

/// True if there is a swap area below this folder.
fn swaps_to(folder: &Path) -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps.contains(folder.to_str().unwrap())
}

/// Returns the memory cgroups (version 1) that the process created below this process's own.
fn groups_of(process: u32) -> Vec<String> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let memory = own.lines().find_map(|line| line.split_once(":memory:"));
    let folder = format!("/sys/fs/cgroup/memory{}", memory.map_or("", |(_, path)| path));
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&format!("readpath-{process}-"))).collect()
}

/// True if the command could run here. Otherwise prints the reason.
fn can_run(ran: &Ran, test: &str) -> bool {
    if ran.code == Some(3) {
        println!("skipped: {test}: {}", ran.stderr.trim());
    }
    ran.code != Some(3)
}

#[test]
fn kernel_swaps_in_at_least_the_pages_beyond_memory() {
    let _alone = alone();
    let scratch = Scratch::new("swap");
    scratch.file("small.toml", SMALL);
    let before = page_cluster();
    let ran = scratch.run("run small.toml --on kernel:. --swapin kernel,page_cluster=2 --json");
    if !can_run(&ran, "kernel_swaps_in_at_least_the_pages_beyond_memory") {
        return;
    }
    ran.has_ended(0, "two loads");
    assert_eq!(page_cluster(), before);
    assert_eq!(scratch.names(), ["small.toml"]);
    let rows = ran.results();
    let [sweeps, shared] = rows.as_slice() else { panic!("two loads, two rows: {rows:?}") };
    assert_eq!(sweeps["job"], "sweeps");
    assert_eq!(sweeps["swapin"], "kernel,page_cluster=2");
    assert_eq!(sweeps["touches"], 2 * 6_144);
    // A sweep finds at most 4,096 of the 6,144 pages in memory; the others come from swap.
    let pages_in = sweeps["pages_in"].as_u64().unwrap();
    assert!(pages_in >= 2 * 2_048, "{pages_in}");
    // A fault reads at most 1 << 2 pages, and no page is read twice in a sweep.
    let major_faults = sweeps["major_faults"].as_u64().unwrap();
    assert!((pages_in.div_ceil(4)..=2 * 6_144).contains(&major_faults), "{major_faults}");
    assert!(sweeps["note"].as_str().unwrap().contains("for the whole machine"));
    assert_eq!(shared["touches"], 2 * 2 * 6_144);
    assert!(shared["pages_in"].as_u64().unwrap() > 0);
    for row in &rows {
        assert!(row["seconds"].as_f64().unwrap() > 0.0);
        assert!(row["cpu_seconds"].as_f64().unwrap() > 0.0);
        // The disk's counters do not separate the requests of a file in a folder.
        assert!(row["device_requests"].is_null() && row["readahead"].is_null());
    }
}

/// Every named storage, policy and scheduler is a row, in the order of their naming. Equal seeds
/// give equal runs.
#[test]
fn modelled_rows_are_every_combination_and_repeat() {
    let _alone = alone();
    let scratch = Scratch::new("swap-modelled");
    scratch.file("small.toml", SMALL);
    let command =
        "run small.toml --on ssd,hdd --swapin cluster,none --scheduler noop,deadline --json";
    let ran = scratch.run(command);
    ran.has_ended(0, command);
    let rows = ran.results();
    let named = |row: &serde_json::Value| {
        ["job", "storage", "swapin", "scheduler"].map(|key| row[key].as_str().unwrap().to_owned())
    };
    let mut expected = Vec::new();
    for job in ["sweeps", "shared"] {
        for storage in ["ssd", "hdd"] {
            for swapin in ["cluster", "none"] {
                for scheduler in ["noop", "deadline"] {
                    expected.push([job, storage, swapin, scheduler].map(str::to_owned));
                }
            }
        }
    }
    assert_eq!(rows.iter().map(named).collect::<Vec<_>>(), expected);
    for row in &rows {
        let (job, pages_in) = (row["job"].as_str().unwrap(), row["pages_in"].as_u64().unwrap());
        // As under the kernel, a sweep finds at most 4,096 of 6,144 pages in memory.
        assert!(job != "sweeps" || pages_in >= 2 * 2_048, "{row}");
        assert!(row["cpu_seconds"].is_null() && row["readahead"].is_null());
    }
    assert_eq!(scratch.run(command).stdout, ran.stdout);
    let other = scratch.run(&format!("{command} --seed 2")).results();
    assert_ne!(other[8]["decisions"], rows[8]["decisions"], "random touches of another seed");
    // With more memory than is mapped, no page is read back.
    let roomy = scratch.run("run small.toml --on ssd --memory 64MiB --json").results();
    assert_eq!((&roomy[0]["memory_bytes"], &roomy[0]["pages_in"]), (&(64 << 20).into(), &0.into()));
    assert_eq!(roomy[0]["swapin"], "adaptive");
}

/// A block device is measured alone: all its requests belong to the swap area.
#[test]
fn block_device_with_overwrite_serves_as_swap_area() {
    let _alone = alone();
    let test = "block_device_with_overwrite_serves_as_swap_area";
    if !is_root() || !has("losetup") {
        return println!("skipped: {test} needs root and losetup");
    }
    let scratch = Scratch::new("swap-device");
    scratch.file("small.toml", SMALL);
    let data = scratch.data("data", 64 << 20);
    let Some(device) = LoopDevice::over(&data) else {
        return println!("skipped: {test}: there is no free loop device");
    };
    let storage = format!("--on kernel:{}", device.0);
    scratch.refused(&format!("run small.toml {storage}"), &[&device.0, "--overwrite"]);
    let ran = scratch.run(&format!("run small.toml {storage} --overwrite --json"));
    if !can_run(&ran, test) {
        return;
    }
    ran.has_ended(0, "a loop device");
    assert!(!fs::read_to_string("/proc/swaps").unwrap().contains(&device.0));
    let row = &ran.results()[0];
    // Every page that came in is a part of some request.
    let pages_in = row["pages_in"].as_u64().unwrap();
    assert!(row["device_bytes"].as_u64().unwrap() >= pages_in * 4_096, "{row}");
    assert!(row["device_requests"].as_u64().unwrap() > 0);
}

/// Starts an endless run and waits until it swaps; `None` where it cannot run.
fn long_run(scratch: &Scratch, test: &str) -> Option<Child> {
    scratch.file("long.toml", LONG);
    let mut command = scratch.command(["run", "long.toml", "--on", "kernel:."]);
    command.args(["--swapin", "kernel,page_cluster=1"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it is built");
    // At most a minute: the machine may be busy.
    for _ in 0..600 {
        if swaps_to(&scratch.0) && !groups_of(child.id()).is_empty() {
            // Between filling and touching.
            std::thread::sleep(Duration::from_millis(500));
            return Some(child);
        }
        if child.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = child.kill();
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert!(!can_run(&ran, test), "{}", ran.stderr);
    None
}

fn signal(process: u32, name: &str) {
    let sent = std::process::Command::new("kill").args([name, &process.to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn interrupted_swap_run_leaves_no_swap_area_group_or_file() {
    let _alone = alone();
    let scratch = Scratch::new("swap-interrupt");
    let before = page_cluster();
    let Some(child) = long_run(&scratch, "interrupted_swap_run_leaves_no_swap_area_group_or_file")
    else {
        return;
    };
    let process = child.id();
    assert_eq!(page_cluster().trim(), "1");
    signal(process, "-INT");
    let ran = Ran::of(child.wait_with_output().unwrap());
    ran.has_ended(130, "ctrl-C");
    assert!(!swaps_to(&scratch.0));
    assert_eq!((page_cluster(), groups_of(process)), (before, Vec::new()));
    assert_eq!(scratch.names(), ["long.toml"]);
}

#[test]
fn leftovers_of_a_killed_swap_run_are_reported_and_removed() {
    let _alone = alone();
    let test = "leftovers_of_a_killed_swap_run_are_reported_and_removed";
    let scratch = Scratch::new("swap-killed");
    let before = page_cluster();
    let mut process = 0;
    // The OOM killer may have ended the load just before; then no swap area exists.
    for _ in 0..5 {
        let Some(child) = long_run(&scratch, test) else { return };
        process = child.id();
        signal(process, "-KILL");
        child.wait_with_output().unwrap();
        if swaps_to(&scratch.0) {
            break;
        }
    }
    assert!(swaps_to(&scratch.0), "no process was left to turn the swap area off");
    let left = scratch.names();
    // The load's process ends with its parent.
    std::thread::sleep(Duration::from_millis(300));
    scratch.file("sweeps.toml", SWEEPS);
    let next = scratch.run("run sweeps.toml --on kernel:. --swapin kernel,page_cluster=2");
    next.has_ended(0, "the next run");
    let swap_file = left.iter().find(|name| name.ends_with(".swap")).unwrap();
    let words = [swap_file, "left behind by an earlier run", "swapped off"];
    next.says(&words, "the swap file");
    next.says(&["it has been removed", "page_cluster is"], "the group and the knob");
    assert!(!swaps_to(&scratch.0));
    assert_eq!((page_cluster(), groups_of(process)), (before, Vec::new()));
    assert_eq!(scratch.names(), ["long.toml", "sweeps.toml"]);
}

#[test]
fn swap_rows_without_root_are_null_with_a_reason() {
    let _alone = alone();
    if !is_root() || !has("setpriv") {
        return println!("skipped: without_rights_… needs root and setpriv, to give root up");
    }
    let scratch = Scratch::under(&std::env::temp_dir(), "swap-rights");
    fs::copy(READPATH, scratch.path("readpath")).unwrap();
    scratch.file("small.toml", SMALL);
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&scratch.0, PermissionsExt::from_mode(0o777)).unwrap();
    fs::set_permissions(scratch.path("readpath"), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(scratch.path("small.toml"), PermissionsExt::from_mode(0o644)).unwrap();
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "./readpath", "run"]);
    // The record of scratch files of this user lies in its folder of temporary files.
    command.env("TMPDIR", &scratch.0);
    command.args(["small.toml", "--on", "kernel:.", "--json"]).current_dir(&scratch.0);
    let ran = Ran::of(command.output().unwrap());
    ran.has_ended(3, "without rights");
    ran.says(&["sweeps on kernel:.", "swap areas need root"], "without rights");
    for row in ran.results() {
        for key in ["seconds", "bytes", "touches", "pages_in", "cpu_seconds", "swapin"] {
            assert!(row[key].is_null(), "{key}: {row}");
        }
        assert!(row["note"].as_str().unwrap().contains("need root"), "{row}");
    }
    assert_eq!(scratch.names(), ["readpath", "small.toml"]);
}

/// 6,144 pages with a memory of 4,096, swept twice.
const SWEEPS: &str = r#"
[[load]]
name = "sweeps"
mapping = "24MiB"
memory = "16MiB"
pattern = "sequential"
sweeps = 2
writes = true
"#;

/// A region's row next to a modelled one: both sweep 6,144 pages with a memory of 4,096.
#[test]
fn region_load_gives_a_row_like_a_modelled_device() {
    let _alone = alone();
    let test = "region_load_gives_a_row_like_a_modelled_device";
    if !serves_faults(test) {
        return;
    }
    let scratch = Scratch::new("region");
    scratch.file("sweeps.toml", SWEEPS);
    let ran = scratch.run("run sweeps.toml --on ssd --on region:. --swapin none,cluster --json");
    ran.has_ended(0, test);
    assert_eq!(scratch.names(), ["sweeps.toml"]);
    let rows = ran.results();
    let storages: Vec<_> = rows.iter().map(|row| row["storage"].as_str().unwrap()).collect();
    assert_eq!(storages, ["ssd", "ssd", "region:.", "region:."]);
    for (row, pages_per_fault) in rows.iter().zip([1, 8, 1, 8]) {
        let count = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row}"));
        assert_eq!(count("touches"), 2 * 6_144);
        // At least the pages that memory cannot hold in each sweep, at most every page in each.
        let (pages_in, faults) = (count("pages_in"), count("major_faults"));
        assert!((2 * 2_048..=2 * 6_144).contains(&pages_in), "{row}");
        // A fault reads at most the aligned block of 1 << page_cluster slots.
        assert!(faults >= pages_in / pages_per_fault, "{row}");
        assert!(count("device_bytes") >= pages_in * 4_096, "{row}");
        assert!(row["seconds"].as_f64().unwrap() > 0.0);
    }
    // Read one by one, each page is a fault; read in groups of eight, there are fewer.
    for pair in rows.chunks(2) {
        let faults = |row: &serde_json::Value| row["major_faults"].as_u64().unwrap();
        assert_eq!(faults(&pair[0]), pair[0]["pages_in"].as_u64().unwrap());
        assert!(faults(&pair[1]) < faults(&pair[0]) / 2, "{pair:?}");
    }
    assert!(rows[0]["cpu_seconds"].is_null());
    assert!(rows[2]["cpu_seconds"].as_f64().unwrap() > 0.0);
}

/// A path that cannot be swapped to is refused and left unchanged.
#[test]
fn region_on_an_unsuitable_path_is_refused() {
    let _alone = alone();
    let test = "region_on_an_unsuitable_path_is_refused";
    let scratch = Scratch::new("region-refused");
    scratch.file("sweeps.toml", SWEEPS);
    scratch.file("shared.toml", SMALL);
    let precious = scratch.data("precious", 1 << 20);
    for flags in ["", " --overwrite"] {
        let onto_it = format!("run sweeps.toml --on region:precious{flags}");
        scratch.refused(&onto_it, &["precious", "neither a folder nor a block device"]);
    }
    assert_eq!(fs::read(precious).unwrap(), fs::read(scratch.data("same", 1 << 20)).unwrap());
    for flags in ["", " --overwrite"] {
        let nowhere = format!("run sweeps.toml --on region:nowhere{flags}");
        scratch.refused(&nowhere, &["nowhere: does not exist", "name a folder or block device"]);
    }
    scratch.refused("run shared.toml --on region:.", &["shared", "2 processes"]);
    scratch.refused("run sweeps.toml --on region:. --swapin guess", &["guess"]);
    if !serves_faults(test) {
        return;
    }
    let fails = |arguments: &str, words: &[&str]| {
        let ran = scratch.run(arguments);
        assert!(!matches!(ran.code, Some(0 | 2)), "{arguments}: {:?} {}", ran.code, ran.stderr);
        ran.says(words, arguments);
    };
    if !is_root() {
        return println!("skipped: the rest of {test} needs root");
    }
    if let Some(small) = Mount::new(&scratch, "small", &["-t", "tmpfs", "-o", "size=8m", "tmpfs"]) {
        fails("run sweeps.toml --on region:small", &["small", "free some"]);
        drop(small);
    }
    if let Some(device) = LoopDevice::over(&scratch.data("tiny", 1 << 20)) {
        let onto_it = format!("run sweeps.toml --on region:{}", device.0);
        scratch.refused(&onto_it, &[&device.0, "--overwrite"]);
        fails(&format!("{onto_it} --overwrite"), &[&device.0, "a larger device"]);
    }
    let Some(device) = LoopDevice::over(&scratch.data("disk", 64 << 20)) else {
        return println!("skipped: the rest of {test}: there is no free loop device");
    };
    let made = std::process::Command::new("mkfs.ext4").args(["-q", &device.0]).status();
    if !made.is_ok_and(|status| status.success()) {
        return println!("skipped: the rest of {test}: there is no mkfs.ext4");
    }
    if let Some(mounted) = Mount::new(&scratch, "mounted", &[&device.0]) {
        let arguments = format!("run sweeps.toml --on region:{} --overwrite", device.0);
        fails(&arguments, &[&device.0, "in use"]);
        drop(mounted);
    }
}

/// True if faults can be served in user space here. Otherwise prints the reason.
fn serves_faults(test: &str) -> bool {
    match Region::builder().memory(1 << 20).in_folder(1 << 20, env!("CARGO_TARGET_TMPDIR")) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: {test}: {error}");
            false
        }
    }
}

/// Mounted file system, unmounted when the test ends.
struct Mount(std::path::PathBuf);

impl Mount {
    fn new(scratch: &Scratch, name: &str, arguments: &[&str]) -> Option<Mount> {
        let path = scratch.path(name);
        fs::create_dir(&path).unwrap();
        let mount = std::process::Command::new("mount").args(arguments).arg(&path).status();
        let is_mounted = mount.is_ok_and(|status| status.success());
        if !is_mounted {
            println!("skipped: mount {arguments:?} is refused");
        }
        is_mounted.then_some(Mount(path))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
