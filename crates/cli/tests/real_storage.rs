//! Jobs on real files and devices: moved bytes, created, overwritten and removed files, and
//! failures of the storage during a run.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::disk::LoopDevice;
use support::{InMemory, RANDOM, Ran, Scratch, is_root};

#[test]
fn library_and_kernel_runs_transfer_the_requested_bytes() {
    let scratch = Scratch::new("moved");
    scratch.data("data", 4 << 20);
    let jobs = [
        ("psync", "rw=read\nbs=64k\nioengine=psync", 4 << 20),
        ("random", "rw=randread\nbs=4k\nio_size=1m\nioengine=psync\ndirect=1", 1 << 20),
        ("mapped", "rw=randread\nbs=64k\nioengine=mmap", 4 << 20),
        ("ring", "rw=randread\nbs=16k\nioengine=io_uring\niodepth=16", 4 << 20),
        ("direct", "rw=randread\nbs=16k\nioengine=io_uring\niodepth=16\ndirect=1", 4 << 20),
        ("libaio", "rw=read\nbs=128k\nioengine=libaio\niodepth=4\niodepth_batch=2", 4 << 20),
        // 100 blocks of 10,000 bytes at an offset that is not page-aligned.
        ("odd", "rw=read\nbs=10000\nio_size=1000000\noffset=12345\nsize=2m", 1_000_000),
        ("halves", "rw=read\nbs=64k\nnumjobs=2\nsize=2m\nfilename=x", 4 << 20),
    ];
    for (name, lines, bytes) in jobs {
        let size = if lines.contains("size=2m") { "" } else { "size=4m\n" };
        scratch.file("j.fio", format!("[{name}]\n{size}{lines}\n"));
        let ran = scratch.run("run j.fio --on file:data --on kernel:data --json");
        ran.has_ended(0, name);
        for row in ran.results() {
            assert_eq!(row["bytes"], bytes, "{name} on {}", row["storage"]);
            assert_eq!(row["errors"], 0, "{name} on {}", row["storage"]);
        }
    }
    // A job without a size reads the whole file, whatever its length.
    scratch.data("odd", 1_000_001);
    scratch.file("whole.fio", "[j]\nrw=read\nbs=1000001\n");
    for way in ["file", "kernel"] {
        let ran = scratch.run(&format!("run whole.fio --on {way}:odd --json"));
        ran.has_ended(0, way);
        assert_eq!(ran.results()[0]["bytes"], 1_000_001);
    }
}

/// A direct operation of one block is one request of its bytes, at each depth.
#[test]
fn direct_operations_are_counted_once_at_each_depth() {
    let scratch = Scratch::new("counted-once");
    scratch.data("data", 4 << 20);
    let jobs = [
        ("rw=randread\nioengine=psync", 100),
        ("rw=randread\nioengine=libaio\niodepth=4", 100),
        ("rw=randread\nioengine=io_uring\niodepth=2", 100),
        ("rw=randwrite\nioengine=libaio\niodepth=4", 100),
        ("rw=randread\nioengine=libaio\niodepth=4\nnumjobs=2\nfilename=x", 200),
    ];
    for (lines, requests) in jobs {
        let job = format!("[j]\nbs=4k\ndirect=1\nsize=4m\nnumber_ios=100\n{lines}\n");
        scratch.file("j.fio", job);
        let ran = scratch.run("run j.fio --on file:data --overwrite --json");
        ran.has_ended(0, lines);
        let row = &ran.results()[0];
        let counts = (&row["device_requests"], &row["device_bytes"]);
        assert_eq!(counts, (&requests.into(), &(requests * 4096).into()), "{lines}");
        let has_reads = lines.contains("randread");
        assert_eq!(row["amplification"].as_f64(), has_reads.then_some(1.0), "{lines}");
    }
}

/// Mappings of the library are for reading; the kernel's can be written.
#[test]
fn job_that_writes_a_mapping_runs_on_the_kernel_only() {
    let scratch = Scratch::new("mapped-writes");
    scratch.data("data", 1 << 20);
    scratch.file("w.fio", "[w]\nrw=write\nbs=64k\nsize=1m\nioengine=mmap\n");
    let ran = scratch.run("run w.fio --on kernel:data --overwrite --json");
    ran.has_ended(0, "kernel:data");
    let row = &ran.results()[0];
    assert_eq!((&row["bytes"], &row["errors"]), (&(1 << 20).into(), &0.into()));
    scratch.refused("run w.fio --on file:data --overwrite", &["run it on kernel:"]);
}

/// The file system accepts `O_DIRECT`, or the test ends. A mapping has a mode of its own.
#[test]
fn note_about_buffered_reads_is_only_for_jobs_that_read_through_the_cache() {
    let scratch = Scratch::new("modes");
    let path = scratch.data("data", 4 << 20);
    let mut options = File::options();
    if options.read(true).custom_flags(libc::O_DIRECT).open(path).is_err() {
        eprintln!("skipped: the file system has no direct I/O");
        return;
    }
    let note = |jobs: &str| {
        scratch.file("j.fio", format!("[global]\nfilename=x\nsize=4m\nrw=randread\n{jobs}"));
        let ran = scratch.run("run j.fio --on file:data --json");
        ran.has_ended(0, jobs);
        ran.results()[0]["note"].as_str().unwrap_or_default().to_owned()
    };
    for jobs in ["[d]\ndirect=1\n", "[d]\ndirect=1\nioengine=io_uring\niodepth=4\n"] {
        assert!(!note(jobs).contains("buffered"), "{jobs}: {}", note(jobs));
    }
    assert!(note("[c]\n").contains("buffered (the kernel keeps the pages)"));
    let mixed = note("[d]\ndirect=1\n[c]\n[e]\n");
    assert!(mixed.contains("c, e: buffered (the kernel keeps the pages)"), "{mixed}");
}

/// Two runs that differ in nothing would differ by noise, and one would be named fastest.
#[test]
fn file_has_one_row_if_its_jobs_bypass_the_scheduler() {
    let scratch = Scratch::new("bypass");
    scratch.data("data", 4 << 20);
    for (lines, readahead) in [("direct=1", None), ("ioengine=mmap", Some("adaptive"))] {
        scratch.file("j.fio", format!("{RANDOM}{lines}\n"));
        let command = "run j.fio --on hdd --on file:data --scheduler noop,deadline --json";
        let ran = scratch.run(command);
        ran.has_ended(0, lines);
        let rows = ran.results();
        let storages: Vec<_> = rows.iter().map(|row| row["storage"].as_str().unwrap()).collect();
        assert_eq!(storages, ["hdd", "hdd", "file:data"], "{lines}");
        assert!(rows[2]["scheduler"].is_null(), "{lines}");
        assert_eq!(rows[2]["readahead"].as_str(), readahead, "{lines}");
    }
}

/// Both names are of one file, which is created once.
#[test]
fn created_file_may_have_two_names() {
    let scratch = Scratch::new("names");
    scratch.file("w.fio", "[w]\nrw=write\nbs=64k\nsize=1m\n");
    let ran = scratch.run("run w.fio --on file:new --on kernel:./new --create --json");
    ran.has_ended(0, "file:new and kernel:./new");
    let bytes: Vec<_> = ran.results().iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [1 << 20, 1 << 20]);
    assert!(!scratch.path("new").exists());
}

/// Three runs have three throughputs, whose median is the row's. A modelled row has one run.
#[test]
fn repeated_rows_have_the_median_of_their_runs() {
    let scratch = Scratch::new("repeated");
    scratch.data("data", 4 << 20);
    scratch.file(
        "j.fio",
        "[global]\nfilename=x\nsize=4m\nrw=read\n[a]\nbs=64k\n[b]\nstonewall\nbs=4k\n",
    );
    let arguments = "run j.fio --on hdd --on file:data --on kernel:data --runs 3";
    let ran = scratch.run(&format!("{arguments} --json"));
    ran.has_ended(0, "three runs");
    let rows = ran.results();
    assert_eq!(rows.len(), 3);
    assert!(rows[0]["runs_mib_per_s"].is_null(), "{}", rows[0]);
    for row in &rows[1..] {
        let figures = |value: &serde_json::Value| -> Vec<f64> {
            let all = value["runs_mib_per_s"].as_array().unwrap();
            all.iter().map(|figure| figure.as_f64().unwrap()).collect()
        };
        let mut runs = figures(row);
        assert_eq!(runs.len(), 3, "{row}");
        runs.sort_by(f64::total_cmp);
        assert_eq!(row["mib_per_s"].as_f64(), Some(runs[1]));
        for section in row["sections"].as_array().unwrap() {
            assert_eq!(figures(section).len(), 3, "{section}");
        }
    }
    let table = scratch.run(arguments).stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].starts_with("  a: ") && lines[2].starts_with("  b: "), "{table}");
    assert!(lines[4].contains("range") && table.contains('–'), "{table}");

    scratch.refused(&format!("{arguments} --log decisions"), &["--runs", "--log"]);
    scratch.file("l.fio", "[j]\nsize=4m\nrw=read\nwrite_lat_log=x\n");
    scratch.refused("run l.fio --on file:data --runs 2", &["--runs 2", "write_*_log"]);
    scratch.refused("run j.fio --on file:data --runs 0", &["--runs", "at least 1"]);
}

#[test]
fn data_is_overwritten_only_with_the_overwrite_option() {
    let scratch = Scratch::new("overwrite");
    for (way, pattern) in [("file", "randwrite"), ("kernel", "write"), ("file", "randrw")] {
        scratch.file("w.fio", RANDOM.replace("randread", pattern));
        scratch.data("data", 4 << 20);
        let before = fs::read(scratch.path("data")).unwrap();
        let arguments = format!("run w.fio --on {way}:data --json");
        scratch.refused(&arguments, &["`j` writes", "--overwrite"]);
        assert_eq!(fs::read(scratch.path("data")).unwrap(), before, "{way} {pattern}");
        let ran = scratch.run(&format!("{arguments} --overwrite"));
        ran.has_ended(0, way);
        assert_eq!(ran.results()[0]["bytes"], 4 << 20);
        let after = fs::read(scratch.path("data")).unwrap();
        assert_eq!(after.len(), before.len());
        assert_ne!(after, before, "{way} {pattern}: something was written");
    }
    // A file created for the run holds no data of the user. An existing one does.
    scratch.refused("run w.fio --on file:data --create", &["--overwrite"]);
    scratch.refused("run w.fio --on file:new --on file:data --create", &["--overwrite"]);
    for flags in ["--create", "--create --overwrite"] {
        let ran = scratch.run(&format!("run w.fio --on file:new --on kernel:new {flags}"));
        ran.has_ended(0, "a made file");
    }
    assert_eq!(scratch.names(), ["data", "w.fio"]);
}

#[test]
fn created_files_are_removed_and_existing_files_stay() {
    let scratch = Scratch::new("made");
    scratch.file("j.fio", RANDOM);
    scratch.data("there", 4 << 20);
    let ran =
        scratch.run("run j.fio --on file:new --on kernel:new --on file:there --create --json");
    ran.has_ended(0, "--create");
    assert!(ran.results().iter().all(|row| row["bytes"] == 4 << 20));
    assert_eq!(scratch.names(), ["j.fio", "there"]);
    // A refused later file removes the created one too.
    scratch.data("small", 4096);
    scratch.refused("run j.fio --on file:new --on file:small --create", &["small"]);
    assert_eq!(scratch.names(), ["j.fio", "small", "there"]);
}

/// Ten pauses of 100 ms: a process that spins through them uses most of a second of processor time.
#[test]
fn pausing_job_uses_little_cpu_time() {
    let scratch = Scratch::new("pauses");
    scratch.data("data", 1 << 20);
    scratch.file("j.fio", "[j]\nrw=read\nbs=64k\nsize=640k\nthinktime=100ms\n");
    let ran = scratch.run("run j.fio --on file:data --on kernel:data --json");
    ran.has_ended(0, "pauses");
    for row in ran.results() {
        let cpu_seconds = row["cpu_seconds"].as_f64().unwrap();
        assert!(cpu_seconds < 0.2, "{} used {cpu_seconds} s", row["storage"]);
    }
}

/// Job of a minute, which must be ended long before.
const LONG: &str = "[j]\nrw=randread\nbs=4k\nsize=8m\nruntime=60\ntime_based\n";

/// Starts the command, waits until `is_running` exists and for `delay`, and sends the signal.
fn interrupted_after(
    scratch: &Scratch,
    arguments: &str,
    signal: &str,
    is_running: &str,
    delay: Duration,
) -> Ran {
    let mut command = scratch.command(arguments.split_whitespace());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = Killed(Some(child));
    let begun = Instant::now();
    while !is_running.is_empty() && !scratch.path(is_running).exists() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{arguments}: never began");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(delay);
    let pid = child.0.as_ref().unwrap().id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    let ran = Ran::of(child.0.take().unwrap().wait_with_output().unwrap());
    assert!(begun.elapsed() < Duration::from_secs(30), "{arguments}: ran on");
    ran
}

/// Interrupts the command 400 ms after its start.
fn interrupted(scratch: &Scratch, arguments: &str, signal: &str, is_running: &str) -> Ran {
    interrupted_after(scratch, arguments, signal, is_running, Duration::from_millis(400))
}

/// Process that does not outlive the test.
struct Killed(Option<Child>);

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn interrupt_signal_ends_the_run_and_removes_created_files() {
    let scratch = Scratch::new("signal");
    scratch.file("long.fio", LONG);
    let slow = LONG.replace("time_based", "time_based\nthinktime=30s");
    scratch.file("slow.fio", slow);
    scratch.file("held.fio", format!("{LONG}[k]\nstonewall\nrw=read\nsize=8m\n"));
    let after = "run long.fio --on file:new --create --json";
    for (arguments, signal) in [
        (after.to_owned(), "-INT"),
        (after.replace("file:", "kernel:"), "-TERM"),
        // One job that sleeps, and one that is held back by another.
        (after.replace("long", "slow"), "-TERM"),
        (after.replace("long", "held"), "-INT"),
        (after.replace("long", "held").replace("file:", "kernel:"), "-INT"),
    ] {
        let ends = |delay| {
            let delay = Duration::from_millis(delay);
            let ran = interrupted_after(&scratch, &arguments, signal, "new", delay);
            ran.has_ended(130, &arguments);
            ran.says(&["interrupted"], &arguments);
            assert!(!scratch.path("new").exists(), "{arguments}: the made file is left");
            let rows = ran.results();
            // Without a row there are no figures to name.
            assert_eq!(ran.stderr.contains("figures"), !rows.is_empty(), "{}", ran.stderr);
            rows
        };
        // On a busy machine a signal may come before the first read, and the run has no row.
        let rows = [400, 1600, 6400].into_iter().map(ends).find(|rows| !rows.is_empty());
        let rows = rows.unwrap_or_default();
        assert_eq!(rows.len(), 1, "{arguments}");
        assert!(rows[0]["bytes"].as_u64().unwrap() > 0, "{arguments}: the bytes read are reported");
        assert!(rows[0]["note"].as_str().unwrap().contains("interrupted"), "{arguments}");
    }
}

/// Pauses of 10 ms make the modelled run short and leave the real one long.
#[test]
fn completed_rows_are_printed_when_a_later_row_is_interrupted() {
    let scratch = Scratch::new("rows");
    scratch.file("paused.fio", format!("{LONG}thinktime=10ms\n"));
    let arguments = "run paused.fio --on ssd --on file:new --on hdd --create --json";
    let ran = interrupted(&scratch, arguments, "-INT", "new");
    ran.has_ended(130, arguments);
    let rows = ran.results();
    assert_eq!(rows.len(), 2, "the disk's row was not begun");
    assert_eq!(rows[0]["note"], serde_json::Value::Null, "the drive's row is whole");
    assert!(rows[0]["seconds"].as_f64().unwrap() > 59.0);
    assert!(rows[1]["note"].as_str().unwrap().contains("interrupted"));
}

/// A modelled run has no file to wait for; the second job is held back.
#[test]
fn modelled_run_can_be_interrupted() {
    let scratch = Scratch::new("modelled");
    scratch.file("held.fio", format!("{LONG}runtime=9999\n[k]\nstonewall\nrw=read\nsize=8m\n"));
    let ran = interrupted(&scratch, "run held.fio --on ssd --json", "-TERM", "");
    ran.has_ended(130, "a modelled run");
    let rows = ran.results();
    assert_eq!(rows.len(), 1);
    assert!(rows[0]["note"].as_str().unwrap().contains("interrupted"));
}

#[test]
fn shrunk_file_is_an_error_and_no_crash() {
    let scratch = Scratch::new("shrinks");
    for (way, engine) in [
        ("file", "psync"),
        ("file", "mmap"),
        ("file", "io_uring\niodepth=8\ndirect=1"),
        ("kernel", "psync"),
        ("kernel", "mmap"),
        ("kernel", "io_uring\niodepth=8\ndirect=1"),
    ] {
        let what = format!("{way} {engine}");
        let path = scratch.data("data", 4 << 20);
        // Random advice: each block is requested when it is read.
        let job = format!(
            "[j]\nrw=randread\nbs=64k\nsize=4m\nioengine={engine}\nthinktime=20ms\nruntime=20\n"
        );
        scratch.file("j.fio", job);
        // Without readahead, no block is read before it is requested.
        let policy = match (way, engine.contains("direct=1")) {
            ("file", false) => "--page-cache own --readahead none",
            _ => "",
        };
        let arguments = format!("run j.fio --on {way}:data --json {policy}");
        let mut command = scratch.command(arguments.split_whitespace());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let child = Killed(Some(child));
        until_open(&child, &path);
        // The length has been read by then, and a fifth of the file.
        std::thread::sleep(Duration::from_millis(250));
        File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let ran = ended(child);
        ran.has_ended(1, &what);
        ran.says(&["operations failed; the first, on "], &what);
        let row = &ran.results()[0];
        assert!(row["errors"].as_u64().unwrap() > 0, "{what}");
    }
}

/// Waits until the process has the file open.
fn until_open(child: &Killed, path: &Path) {
    let path = path.canonicalize().unwrap();
    let opened = format!("/proc/{}/fd", child.0.as_ref().unwrap().id());
    for _ in 0..10_000 {
        let numbers = fs::read_dir(&opened).into_iter().flatten().flatten();
        if numbers
            .map(|number| fs::read_link(number.path()))
            .any(|at| at.ok().as_ref() == Some(&path))
        {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{}: was not opened within ten seconds", path.display());
}

fn ended(mut child: Killed) -> Ran {
    Ran::of(child.0.take().unwrap().wait_with_output().unwrap())
}

#[test]
fn full_disk_is_reported_and_the_partial_file_removed() {
    let scratch = Scratch::new("full");
    let small = is_root().then(|| InMemory::mount(&scratch.path("small"), "1m")).flatten();
    let Some(small) = small else {
        return println!("skipped: a_full_disk_is_told needs root and a mount");
    };
    scratch.file("j.fio", RANDOM);
    let words = ["small/new: can't be created", "No space left", "`size`", "a place elsewhere"];
    scratch.refused("run j.fio --on ssd --on file:small/new --create --json", &words);
    assert_eq!(fs::read_dir(&small.0).unwrap().count(), 0, "nothing is left");
    // A file on tmpfs is readable, and the row names the method.
    scratch.file("s.fio", RANDOM.replace("4m", "512k"));
    let ran = scratch.run("run s.fio --on file:small/new --create --json");
    ran.has_ended(0, "tmpfs");
    assert!(ran.results()[0]["note"].as_str().unwrap().contains("lives in memory"));
}

#[test]
fn block_device_is_accepted_as_storage() {
    let scratch = Scratch::new("block");
    let data = scratch.data("data", 4 << 20);
    let Some(device) = is_root().then(|| LoopDevice::over(&data)).flatten() else {
        return println!("skipped: block_device_is_accepted_as_storage needs root and losetup");
    };
    scratch.file("j.fio", RANDOM);
    scratch.file("large.fio", RANDOM.replace("4m", "5m"));
    for way in ["file", "kernel"] {
        let ran = scratch.run(&format!("run j.fio --on {way}:{} --json", device.0));
        ran.has_ended(0, way);
        assert_eq!(ran.results()[0]["bytes"], 4 << 20);
        scratch.refused(&format!("run large.fio --on {way}:{}", device.0), &["5242880", "4194304"]);
    }
}

/// The seconds of a row are the time of its jobs, without preparation. Preparing 256 buffers took a
/// hundred times as long as 1,024 reads of 4 KiB. The machine may be busy, so one of five runs
/// is enough: the row takes less than 1.5 times the seconds of its jobs.
#[test]
fn row_seconds_exclude_preparation() {
    let scratch = Scratch::new("prepared");
    scratch.data("data", 4 << 20);
    let job =
        "[j]\nfilename=x\nrw=randread\nbs=4k\nsize=4m\nioengine=io_uring\niodepth=256\ndirect=1\n";
    scratch.file("one.fio", job);
    // The second phase has a preparation of its own.
    scratch.file("two.fio", format!("{job}[k]\nstonewall\n{}", &job[4..]));
    for (way, job) in [("file", "one"), ("kernel", "one"), ("file", "two")] {
        let mut ratios = Vec::new();
        let is_near = (0..5).any(|_| {
            let ran = scratch.run(&format!("run {job}.fio --on {way}:data --json"));
            ran.has_ended(0, way);
            let row = &ran.results()[0];
            let sections = row["sections"].as_array().unwrap();
            let of_jobs: f64 = sections.iter().map(|one| one["seconds"].as_f64().unwrap()).sum();
            let seconds = row["seconds"].as_f64().unwrap();
            ratios.push(seconds / of_jobs);
            seconds < of_jobs * 1.5
        });
        assert!(is_near, "{way} {job}: {ratios:?}");
    }
}

/// 1,024 buffers of 4 KiB are 4 MiB. In huge pages of their own they took 2 GiB, which a process
/// with 1.5 GB of addresses does not have.
#[test]
fn buffer_memory_grows_with_bytes_in_flight_and_not_with_depth() {
    let scratch = Scratch::new("depth");
    scratch.data("data", 8 << 20);
    for direct in [0, 1] {
        scratch.file(
            "deep.fio",
            format!(
                "[j]\nrw=randread\nbs=4k\nsize=8m\nioengine=io_uring\niodepth=1024\ndirect={direct}\n"
            ),
        );
        let command = "ulimit -v 1500000; exec \"$0\" run deep.fio --on file:data --json";
        let ran = Command::new("bash")
            .args(["-c", command, env!("CARGO_BIN_EXE_readpath")])
            .current_dir(scratch.path("."))
            .output()
            .unwrap();
        let ran = Ran::of(ran);
        ran.has_ended(0, "a depth of 1,024");
        assert_eq!(ran.results()[0]["bytes"], 8 << 20);
    }
}
