//! `readpath bench`, small: that every row runs in every state, and that nothing stays.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{InMemory, Ran, Scratch, is_root};

/// Number of rows, counted by hand: 14 streams, 9 random, 4 with gaps, 2 of files, 3 formats, 8
/// mapped, 2 batches, 3 of futures.
const ROWS: usize = 45;

fn document(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| panic!("{error} in\n{}\n{}", ran.stdout, ran.stderr))
}

fn has_note(document: &Value, words: &str) -> bool {
    document["notes"].as_array().unwrap().iter().any(|note| note.as_str().unwrap().contains(words))
}

/// Streams, small files and batches have a form with a queue; formats and mappings have none. A
/// queue reads past the page cache, so each byte comes from the device.
#[test]
fn bench_queue_compares_cold_rows_that_have_a_form_with_a_queue() {
    let scratch = Scratch::new("everyday-queue");
    let rows = "stream,reader,copy,files,format,batch,random,futures";
    let arguments = format!("bench . --small --rows {rows} --queue 4,16 --json");
    let ran = scratch.run(&format!("{arguments} --states cold,cached"));
    ran.has_ended(0, &arguments);
    let document = document(&ran);
    if has_note(&document, "not measured: cold") {
        return;
    }
    let mut queued_rows = 0;
    for cell in document["results"].as_array().unwrap() {
        let queues = cell["queues"].as_array().unwrap();
        let row = cell["row"].as_str().unwrap();
        if cell["state"] == "cached" || row.starts_with("format/") || row.starts_with("map") {
            assert!(queues.is_empty() && cell["queue_ratio"].is_null(), "{cell:#}");
            continue;
        }
        queued_rows += 1;
        let depths: Vec<u64> = queues.iter().map(|it| it["depth"].as_u64().unwrap()).collect();
        assert_eq!(depths, [4, 16], "{cell:#}");
        let is_ended = |queue: &&Value| queue["is_bound"] == false;
        let seconds = queues.iter().filter(is_ended).filter_map(|it| it["seconds"].as_f64());
        let best = seconds.fold(f64::INFINITY, f64::min);
        let ours = cell["ours"]["seconds"].as_f64().unwrap();
        if best.is_finite() {
            assert_eq!(cell["queue_ratio"].as_f64().unwrap(), best / ours, "{cell:#}");
        }
        for queue in queues.iter().filter(is_ended) {
            let read = queue["device_bytes"].as_u64();
            assert!(read.is_none_or(|read| read >= cell["bytes"].as_u64().unwrap()), "{cell:#}");
        }
    }
    let queue = &document["summary"][0]["queue"];
    assert_eq!(queue["cells"].as_u64(), Some(queued_rows));
}

/// The command itself checks that all checksums are equal, and would exit with code 1.
#[test]
fn bench_rows_measure_all_contenders_and_leave_no_files() {
    let scratch = Scratch::new("everyday-rows");
    let arguments = "bench . --small --states cold,cached --json";
    let ran = scratch.run(arguments);
    ran.has_ended(0, arguments);
    assert_eq!(scratch.names(), Vec::<String>::new());
    let document = document(&ran);
    let cells = document["results"].as_array().unwrap();
    let is_cold_possible = !has_note(&document, "not measured: cold");
    assert_eq!(cells.len(), if is_cold_possible { 2 * ROWS } else { ROWS });
    for cell in cells {
        let seconds = |way: &str| cell[way]["seconds"].as_f64();
        let ours = seconds("ours").unwrap_or_else(|| panic!("{cell:#}"));
        assert!(seconds("pread").is_some() && seconds("mmap").is_some(), "{cell:#}");
        let is_ended = |way: &&str| cell[*way]["is_bound"] == false;
        let peers = ["pread", "mmap", "o_direct"].into_iter().filter(is_ended);
        let best = peers.filter_map(seconds).fold(f64::INFINITY, f64::min);
        assert_eq!(cell["ratio"].as_f64().unwrap(), best / ours, "{cell:#}");
        assert!(cell["ours"]["cpu_seconds"].as_f64().unwrap() >= 0.0);
        assert!(cell["ours"]["peak_bytes"].as_u64().unwrap() > 1 << 20);
    }
    // A cold `pread` fetches at least the requested bytes from the device. A cached one fetches
    // none of them, but perhaps a page of the program file.
    for cell in cells.iter().filter(|cell| cell["row"].as_str().unwrap().starts_with("stream/")) {
        let (read, bytes) =
            (cell["pread"]["device_bytes"].as_u64(), cell["bytes"].as_u64().unwrap());
        let is_cold = cell["state"] == "cold";
        assert!(
            read.is_none_or(|read| if is_cold { read >= bytes } else { read < bytes / 2 }),
            "{cell:#}"
        );
    }
}

#[test]
fn bench_prints_a_table_per_state_and_draws_a_dot_per_cell() {
    let scratch = Scratch::new("everyday-states");
    let rows = "copy/1MiB,files/31/8,map/touches";
    let arguments = format!("bench . --small --rows {rows} --picture p.svg --runs 2");
    let ran = scratch.run(&arguments);
    ran.has_ended(0, &arguments);
    assert_eq!(scratch.names(), ["p.svg"]);
    let picture = fs::read_to_string(scratch.path("p.svg")).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    let mut cells = 0;
    for state in ["cold", "cached", "second", "short"] {
        let is_left_out = ran
            .stdout
            .lines()
            .any(|line| line.starts_with("not measured: ") && line.contains(state));
        if is_left_out {
            println!("skipped: {}", ran.stdout);
            continue;
        }
        let lines = ran.stdout.lines().skip_while(|line| !line.starts_with(&format!("{state}: ")));
        for row in ["copy/1MiB ", "files/31/8-threads ", "map/touches "] {
            let line = lines.clone().find(|line| line.starts_with(row));
            let line = line.unwrap_or_else(|| panic!("{state}: no {row} in\n{}", ran.stdout));
            assert!(line.split_whitespace().count() >= 11, "{line}");
            cells += 1;
        }
        assert!(picture.contains(&format!(">{state}</text>")), "{state}");
    }
    let dots = picture.matches("<title>").count();
    assert_eq!(dots, cells, "{picture}");
}

/// With the system calls of a container denied, every row still has figures and the right bytes,
/// and a note about its method.
#[test]
fn bench_rows_complete_and_note_denied_system_calls() {
    let scratch = Scratch::new("everyday-container");
    let arguments = "bench . --small --states cached --refuse io_uring,userfaultfd --json";
    let ran = scratch.run(arguments);
    ran.has_ended(0, arguments);
    let document = document(&ran);
    assert!(has_note(&document, "refused to all: userfaultfd"));
    let cells = document["results"].as_array().unwrap();
    assert_eq!(cells.len(), ROWS);
    for cell in cells {
        assert!(cell["ours"]["seconds"].is_number(), "{cell:#}");
        let (row, note) = (cell["row"].as_str().unwrap(), cell["note"].as_str().unwrap_or(""));
        match row.split('/').next().unwrap() {
            "map" | "map-in-quarter" => {
                assert!(note.contains("the kernel's own mapping"), "{cell:#}")
            }
            "batch" => assert!(note.contains("pread: the kernel gives no io_uring"), "{cell:#}"),
            _ => assert!(cell["pread"]["seconds"].is_number(), "{cell:#}"),
        }
    }
    let without = "bench . --small --rows stream/1MiB/4KiB --refuse io_uring,aio --json";
    let row = &scratch.run(without).results()[0];
    // Reads through the kernel page cache need no asynchronous backend, and miss none.
    assert!(row["ours"]["seconds"].is_number(), "{row:#}");
    assert_eq!(row["note"], "buffered (the kernel keeps the pages)");
}

#[test]
fn invalid_bench_arguments_are_refused_before_files_are_created() {
    let scratch = Scratch::new("everyday-refused");
    scratch.file("file", "");
    let refused = |arguments: &str, words: &[&str]| {
        scratch.refused(&format!("bench {arguments} --small"), words);
    };
    refused("missing", &["missing", "No such file", "name a folder"]);
    refused("file", &["file: is not a folder"]);
    refused(". --rows floppy", &["--rows floppy", "stream/1MiB/4KiB", "map/touches"]);
    refused(". --states lukewarm", &["lukewarm", "cold, cached, second, short"]);
    refused(". --runs 0", &["--runs", "0"]);
    refused(". --refuse disks", &["disks", "io_uring, aio, userfaultfd"]);
    refused(". --full", &["--full", "cannot be used with"]);
    refused(". --picture missing/p.svg", &["missing/p.svg", "name another file"]);
    assert_eq!(scratch.names(), ["file"]);
}

#[test]
fn bench_on_tmpfs_skips_cold_states_and_refuses_too_little_space() {
    let scratch = Scratch::new("everyday-memory");
    let memory = is_root().then(|| InMemory::mount(&scratch.path("memory"), "80m")).flatten();
    let Some(_memory) = memory else { return println!("skipped: mounting tmpfs needs root") };
    let rows = "bench memory --small --rows stream/1MiB/1MiB";
    let ran = scratch.run(&format!("{rows} --json"));
    ran.has_ended(0, rows);
    let document = document(&ran);
    assert!(
        has_note(&document, "not measured: cold, second, short: 256 of 256 pages"),
        "{document:#}"
    );
    assert_eq!(document["results"].as_array().unwrap().len(), 1);
    let cold = scratch.run(&format!("{rows} --states cold"));
    cold.has_ended(3, "cold in memory");
    cold.says(&["tmpfs", "name a folder on a disk"], "cold in memory");
    scratch.refused("bench memory --rows stream/256MiB", &["memory", "MiB free", "320 MiB"]);
    assert_eq!(fs::read_dir(scratch.path("memory")).unwrap().count(), 0);
}

/// Returns every cgroup created by the process with this number.
fn groups_of(process: u32) -> Vec<PathBuf> {
    let name = format!("readpath-{process}-");
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in
            entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        {
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with(&name) {
                found.push(path);
            } else {
                folders.push(path);
            }
        }
    }
    found
}

fn has_files(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|entries| entries.count() > 0)
}

#[test]
fn interrupted_bench_prints_its_measurements_and_leaves_no_files() {
    // The time of the first figures depends on the machine: an interrupt that comes too early is
    // retried.
    let interrupted =
        [1, 4, 16, 64].into_iter().map(interrupted_after).find(|ran| !ran.stdout.is_empty());
    let document = document(&interrupted.expect("no figure in 64 s"));
    assert!(!document["results"].as_array().unwrap().is_empty());
    assert!(has_note(&document, "interrupted: ") && !has_note(&document, "time limit"));
}

/// Interrupts the command this many seconds after its first measurement. Returns its output; no
/// file of it may be left.
fn interrupted_after(seconds: u64) -> Ran {
    let scratch = Scratch::new("everyday-interrupted");
    let arguments = "bench . --small --rows stream,map --runs 100000 --json";
    let mut command = scratch.command(arguments.split(' '));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let process = child.id();
    let folder = scratch.path(&format!("readpath-everyday-{process}"));
    let start = Instant::now();
    while !has_files(&folder) && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(seconds));
    let killed = Command::new("kill").args(["-INT", &process.to_string()]).status().unwrap();
    assert!(killed.success());
    let ran = Ran::of(child.wait_with_output().unwrap());
    ran.has_ended(130, arguments);
    ran.says(&["interrupted"], arguments);
    assert_eq!(scratch.names(), Vec::<String>::new());
    assert_eq!(groups_of(process), Vec::<PathBuf>::new());
    ran
}

/// A killed run cannot clean up: the next run of any command does it.
#[test]
fn killed_bench_folder_is_removed_by_the_next_command() {
    let scratch = Scratch::new("everyday-killed");
    let arguments = "bench . --small --rows files --runs 100000";
    let mut child = scratch.command(arguments.split(' ')).stdout(Stdio::null()).spawn().unwrap();
    let folder = scratch.path(&format!("readpath-everyday-{}/files", child.id()));
    let start = Instant::now();
    while !has_files(&folder) && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(scratch.names().len(), 1);
    scratch.run("policies").has_ended(0, "policies");
    assert_eq!(scratch.names(), Vec::<String>::new());
}
