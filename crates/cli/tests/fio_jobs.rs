//! Published jobs and traces through the command.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::Scratch;

/// Folders of fio's own job files on this machine: its source or its documentation.
fn folders() -> Vec<PathBuf> {
    let named = std::env::var_os("FIO_SOURCE").map(PathBuf::from);
    let sources = named.iter().flat_map(|source| [source.join("examples"), source.join("t/jobs")]);
    let shipped = PathBuf::from("/usr/share/doc/fio/examples");
    sources.chain([shipped]).filter(|folder| folder.is_dir()).collect()
}

fn job_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|ending| ending == "fio")).collect();
    paths.sort();
    paths
}

/// Each job runs for a while in modelled time, or is refused with a reason: no panic and no failed
/// run. Refusals for the sake of the machine (an unset variable, a file larger than the device)
/// name it.
#[test]
fn fio_example_jobs_run_or_are_refused_with_a_reason() {
    let paths: Vec<PathBuf> = folders().iter().flat_map(|folder| job_files(folder)).collect();
    if paths.is_empty() {
        println!("skipped: fio's job files are not here; set FIO_SOURCE to a folder of its source");
        return;
    }
    let scratch = Scratch::new("fio-jobs");
    let (mut ran, mut refused) = (0, Vec::new());
    for path in &paths {
        let name = path.display();
        let mut command = Command::new(support::READPATH);
        command.args(["run".as_ref(), path.as_os_str()]).current_dir(&scratch.0);
        command.args(["--on", "ssd", "--runtime", "100ms"]);
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!stderr.contains("panicked"), "{name}: {stderr}");
        match output.status.code() {
            Some(0) => ran += 1,
            Some(2) => {
                let reasons = [
                    "is refused:",
                    "no variable of this name",
                    "larger than the device",
                    "No such file",
                ];
                if !reasons.iter().any(|reason| stderr.contains(reason)) {
                    refused.push(stderr);
                }
            }
            code => refused.push(format!("{name}: {code:?} {stderr}")),
        }
    }
    println!("{ran} of {} run", paths.len());
    // At most one file in twenty is malformed; fio refuses those too.
    assert!(refused.len() * 20 <= paths.len(), "{refused:#?}");
}

#[test]
fn fio_options_and_engines_are_listed_with_their_support() {
    let scratch = Scratch::new("fio-options");
    let listed = scratch.run("run --fio-options");
    listed.has_ended(0, "the lists");
    let line = |name: &str| {
        let of = |line: &&str| line.split_whitespace().next() == Some(name);
        listed.stdout.lines().find(of).unwrap_or_else(|| panic!("{name} is listed")).to_owned()
    };
    assert!(line("ramp_time").contains("honoured"));
    assert!(line("gtod_reduce").contains("without effect"));
    assert!(line("cmdprio_percentage").contains("refused"));
    assert!(line("posixaio").contains("run as libaio"));
    assert!(line("rados").contains("refused"));
}

/// Options without effect appear in the table's note and in the document.
#[test]
fn options_without_effect_are_noted_in_table_and_json() {
    let scratch = Scratch::new("without-effect");
    scratch.file("j.fio", "[j]\nsize=1m\nthread\nioengine=pvsync\n");
    let said = "ioengine=pvsync is run as psync; without effect here: thread";
    assert!(scratch.run("run j.fio --on ssd").stdout.contains(said));
    assert_eq!(scratch.run("run j.fio --on ssd --json").results()[0]["note"], said);
}

/// The structure given in fio's manual ("JSON output"), and sums that must agree.
#[test]
fn fio_output_format_has_fios_json_structure() {
    let scratch = Scratch::new("fio-json");
    scratch.file("j.fio", "[one]\nrw=randrw\nsize=4m\n[two]\nstonewall\nrw=write\nsize=1m\n");
    let ran = scratch.run("run j.fio --on ssd --output-format=fio");
    ran.has_ended(0, "fio's document");
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let jobs = document["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 2);
    let of = |job: usize, way: &str, key: &str| jobs[job][way][key].as_u64().unwrap();
    assert_eq!(jobs[0]["jobname"], "one");
    assert_eq!(of(0, "read", "io_bytes") + of(0, "write", "io_bytes"), 4 << 20);
    assert_eq!(of(0, "read", "io_bytes"), 4096 * of(0, "read", "total_ios"));
    assert_eq!((of(1, "read", "io_bytes"), of(1, "write", "io_bytes")), (0, 1 << 20));
    let latency = &jobs[0]["read"]["clat_ns"];
    assert!(latency["percentile"]["99.000000"].as_u64() <= latency["max"].as_u64());
    let share = |unit: &str| -> f64 {
        jobs[0][unit].as_object().unwrap().values().map(|value| value.as_f64().unwrap()).sum()
    };
    let all = share("latency_ns") + share("latency_us") + share("latency_ms");
    assert!((all - 100.0).abs() < 1e-6, "{all}");
}

/// Each write is read back once. On a file its bytes are compared, and a change by another process
/// would be reported.
#[test]
fn verify_reads_back_written_blocks_and_detects_changes() {
    let scratch = Scratch::new("verify");
    for verify in [
        "verify=crc32c",
        "verify=md5\nverify_backlog=16",
        "verify=md5\nioengine=libaio\niodepth=8\ndirect=1",
    ] {
        scratch.file("j.fio", format!("[j]\nrw=randwrite\nbs=4k\nsize=1m\n{verify}\n"));
        scratch.data("data", 1 << 20);
        for on in ["ssd", "file:data", "kernel:data"] {
            let rows = scratch.run(&format!("run j.fio --on {on} --overwrite --json")).results();
            assert_eq!(rows[0]["bytes"], 2 << 20, "{verify} on {on}: written, and read");
            assert_eq!(rows[0]["errors"], 0, "{verify} on {on}");
        }
    }
    // Data of an earlier run, then data that it did not write.
    scratch.file("again.fio", "[j]\nrw=read\nbs=4k\nsize=1m\nverify=md5\n");
    scratch.run("run again.fio --on file:data").has_ended(0, "the same bytes are there");
    let mut data = std::fs::read(scratch.path("data")).unwrap();
    data[5000] ^= 1;
    scratch.file("data", data);
    let differs = scratch.run("run again.fio --on file:data --on kernel:data");
    differs.has_ended(1, "a byte has changed");
    differs.says(&["2 operations failed", "verify", "at byte 5000"], "a byte has changed");
}

/// The warm-up is not measured, and the rate is kept.
#[test]
fn ramp_time_is_not_measured_and_rate_limits_hold() {
    let scratch = Scratch::new("pace");
    let job = "[j]\nrw=read\nbs=4k\nsize=64m\ntime_based\nruntime=2\nrate_iops=100\n";
    scratch.file("j.fio", job);
    let row = &scratch.run("run j.fio --on ssd --json").results()[0];
    let iops = row["iops"].as_f64().unwrap();
    assert!((95.0..=105.0).contains(&iops), "{iops}");
    scratch.file("j.fio", format!("{job}ramp_time=3\n"));
    let ramped = &scratch.run("run j.fio --on ssd --json").results()[0];
    let operations = ramped["bytes"].as_u64().unwrap() / 4096;
    assert!((195..=205).contains(&operations), "of 5 s, 3 are not measured: {operations}");
    let iops = ramped["iops"].as_f64().unwrap();
    assert!((95.0..=105.0).contains(&iops), "the excluded time does not lower the rate: {iops}");
    scratch.file("slow.fio", "[j]\nrw=randread\nsize=1g\nrate_iops_min=100000\n");
    let slow = scratch.run("run slow.fio --on hdd");
    slow.has_ended(1, "a disk is too slow");
    slow.says(&["rate_min or rate_iops_min"], "a disk is too slow");
}

/// Storage with 1 ms for each read serves 1,000 reads a second, at depth 4 4,000. The processor
/// time of a read is below 1 µs. The second section begins after the first one.
#[test]
fn excluded_time_does_not_count_in_the_rates() {
    let scratch = Scratch::new("excluded");
    let description = "name = \"1 ms\"\nbytes = 1073741824\nrequest_bytes_max = 1048576\n\
                       alignment_bytes = 512\nrotational = 0\ndepths = [1, 4]\ndepth_max = 4\n\
                       probe_bytes = 4096\n\
                       [[random]]\nbytes = 4096\nus = [1000.0, 1000.0]\n\
                       [[following]]\nbytes = 4096\nus = [1000.0, 1000.0]\n\
                       [near]\nbytes = [-4096, 4096]\nus = [1000.0, 1000.0]\n\
                       [streams]\ncount = 2\nbytes = 4096\nus = 1000.0\n\
                       [spread]\nus = [1000.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0]\n";
    scratch.file("fixed.toml", description);
    scratch.data("data", 1 << 20);
    let global = "[global]\nrw=randread\nbs=4k\ndirect=1\nsize=1m\ntime_based\nruntime=1\n";
    let target = "latency_target=4ms\nlatency_window=100ms\nlatency_percentile=100\n\
                  ioengine=libaio\niodepth=4\n";
    for (lines, iops) in [
        ("[a]\n", 1000.0),
        ("ramp_time=3\n[a]\n", 1000.0),
        ("ramp_time=3\n[a]\n[b]\nstonewall\n", 1000.0),
        (&format!("{target}[a]\n"), 4000.0),
    ] {
        scratch.file("j.fio", format!("{global}{lines}"));
        let ran = scratch.run("run j.fio --on measured,toml=fixed.toml --json");
        ran.has_ended(0, lines);
        let row = &ran.results()[0];
        let found = row["iops"].as_f64().unwrap();
        assert!((found / iops - 1.0).abs() < 0.01, "{lines}: {found}");
        let mib = row["bytes"].as_f64().unwrap() / 1_048_576.0;
        let ratio = row["mib_per_s"].as_f64().unwrap() * row["seconds"].as_f64().unwrap() / mib;
        assert!((ratio - 1.0).abs() < 1e-9, "bytes are the rate times the seconds: {ratio}");
    }
    scratch.file("j.fio", format!("{global}rate_iops=100\nramp_time=2\n[a]\n"));
    for storage in ["file:data", "kernel:data"] {
        let row = &scratch.run(&format!("run j.fio --on {storage} --json")).results()[0];
        let iops = row["iops"].as_f64().unwrap();
        assert!((60.0..=160.0).contains(&iops), "{storage}: {iops}");
    }
}

/// fio 3.33 reports all 64 operations of a job that ends within its ramp time.
#[test]
fn a_job_shorter_than_its_ramp_time_is_reported() {
    let scratch = Scratch::new("short");
    let job = "[j]\nrw=randread\nbs=4k\nsize=256k\nrate_iops=500\nramp_time=3\nioengine=psync\n";
    scratch.file("j.fio", job);
    scratch.data("data", 256 << 10);
    for storage in ["ssd", "file:data", "kernel:data"] {
        let row = &scratch.run(&format!("run j.fio --on {storage} --json")).results()[0];
        assert_eq!((&row["bytes"], &row["errors"]), (&(64 * 4096).into(), &0.into()), "{storage}");
        assert_eq!(row["streams"][0]["bytes"], 64 * 4096, "{storage}");
    }
}

/// `sync.total_ios` of fio 3.33 for 24 writes: syncs of `fsync`, without the other kinds.
#[test]
fn syncs_are_counted_as_by_fio() {
    let scratch = Scratch::new("syncs");
    scratch.data("data", 96 << 10);
    for (options, syncs) in
        [("fsync=4", 5), ("fsync=4\nend_fsync=1", 5), ("fdatasync=4", 0), ("end_fsync=1", 0)]
    {
        let job = format!("[j]\nrw=write\nbs=4k\nsize=96k\nioengine=psync\n{options}\n");
        scratch.file("j.fio", job);
        for storage in ["ssd", "file:data", "kernel:data"] {
            let arguments = format!("run j.fio --on {storage} --overwrite --output-format fio");
            let document: serde_json::Value =
                serde_json::from_str(&scratch.run(&arguments).stdout).unwrap();
            assert_eq!(document["jobs"][0]["sync"]["total_ios"], syncs, "{options} {storage}");
        }
    }
}

/// As in fio 3.33: target in nanoseconds, window in microseconds, and only the window after the
/// search is measured. At fixed depths, 90 % of the reads take 50 ms at 17 and 59.9 ms at 25.
#[test]
fn depth_of_a_latency_target_is_reported() {
    let scratch = Scratch::new("target");
    let job = "[j]\nrw=randread\nbs=4k\nsize=1g\nioengine=libaio\ndirect=1\niodepth=64\n\
               latency_target=60ms\nlatency_window=2s\nlatency_percentile=90\nruntime=60\n\
               time_based\n";
    scratch.file("j.fio", job);
    let section = &scratch.run("run j.fio --on hdd --json").results()[0]["sections"][0];
    let depth = section["latency_depth"].as_u64().unwrap();
    assert!((17..=26).contains(&depth), "{depth}");
    let seconds = section["seconds"].as_f64().unwrap();
    assert!((1.9..2.3).contains(&seconds), "one window: {seconds} s");
    let ran = scratch.run("run j.fio --on hdd --output-format fio");
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let job = &document["jobs"][0];
    assert_eq!(job["latency_depth"], depth);
    assert_eq!(
        (&job["latency_target"], &job["latency_window"]),
        (&60_000_000.into(), &2_000_000.into())
    );
    assert_eq!(job["latency_percentile"], 90.0);
    let unsearched = "[j]\nrw=read\nsize=1m\n";
    scratch.file("plain.fio", unsearched);
    let section = &scratch.run("run plain.fio --on hdd --json").results()[0]["sections"][0];
    assert!(section["latency_depth"].is_null());
}

/// As in fio, a run time of 0 sets no limit: the job and the trace end by themselves.
#[test]
fn runtime_of_0_sets_no_limit() {
    let scratch = Scratch::new("no-limit");
    scratch.file("j.fio", "[j]\nrw=read\nbs=4k\nsize=1m\n");
    scratch.file("t.trace", "0 0 0 8 1\n1 0 8 8 1\n");
    for (name, bytes) in [("j.fio", 1 << 20), ("t.trace", 2 * 4096)] {
        let ran = scratch.run(&format!("run {name} --on ssd --runtime 0 --json"));
        ran.has_ended(0, name);
        assert_eq!(ran.results()[0]["bytes"], bytes, "{name}");
    }
}

/// More simultaneous requests than real storage accepts at once: the queue fills and drains one by
/// one.
#[test]
fn trace_with_simultaneous_requests_completes() {
    let scratch = Scratch::new("at-once");
    let lines = (0..6000_u64).map(|at| format!("0 0 {} 8 1\n", at * 8));
    scratch.file("t.trace", lines.collect::<String>());
    scratch.data("data", 64 << 20);
    for storage in ["file:data", "kernel:data"] {
        let ran = scratch.run(&format!("run t.trace --json --on {storage} --speed 1"));
        let row = &ran.results()[0];
        assert_eq!((row["bytes"].as_u64(), row["errors"].as_u64()), (Some(4096 * 6000), Some(0)));
    }
}

/// The second request begins at 4 MiB, and the storage has 1 MiB.
#[test]
fn trace_beyond_the_end_of_any_storage_has_a_caveat() {
    let scratch = Scratch::new("trace-beyond");
    scratch.file("t.trace", "0 0 0 8 1\n1000 0 8192 8 1\n");
    scratch.data("data", 1 << 20);
    for storage in ["file:data", "kernel:data", "ssd,size=1m"] {
        let ran = scratch.run(&format!("run t.trace --json --on {storage}"));
        let note = ran.results()[0]["note"].to_string();
        assert!(note.contains("wrap to its start"), "{storage}: {note}");
    }
}

/// A trace replayed with its own times takes as long as its recording, and half as long at twice
/// the speed.
#[test]
fn trace_replay_keeps_recorded_times_and_speed() {
    let scratch = Scratch::new("traces");
    let lines = (0..1000_u64).map(|at| format!("{} 0 {} 8 {}\n", at * 1_000_000, at * 64, at % 2));
    scratch.file("t.trace", lines.collect::<String>());
    let row = |arguments: &str| {
        scratch.run(&format!("run t.trace --json {arguments}")).results()[0].clone()
    };
    let seconds = |arguments: &str| row(arguments)["seconds"].as_f64().unwrap();
    assert!((0.999..1.002).contains(&seconds("--on ssd")));
    assert!((0.499..0.502).contains(&seconds("--on ssd --speed 2")));
    assert_eq!(row("--on ssd")["bytes"], 4096 * 1000);
    assert!(seconds("--on ssd --closed 8") < 0.3, "nothing waits for its time");
    assert_eq!(row("--on ssd --trace mqsim")["bytes"], 4096 * 1000);
    // A disk too slow for the trace gets a note; a fast one gets none.
    assert_eq!(row("--on ssd")["note"], serde_json::Value::Null);
    scratch.file("r1.fio", "[r]\nread_iolog=t.trace\n");
    let slow = &scratch.run("run r1.fio --on hdd --json").results()[0]["note"];
    assert!(slow.as_str().unwrap().contains("after their time"), "{slow}");
    scratch.data("data", 64 << 20);
    let real = row("--on kernel:data --overwrite --speed 10");
    assert_eq!((real["bytes"].as_u64(), real["errors"].as_u64()), (Some(4096 * 1000), Some(0)));
    assert_eq!(row("--on file:data --overwrite --closed 4")["errors"], 0);
    let own_times = row("--on file:data --overwrite --speed 10");
    assert_eq!(
        (own_times["bytes"].as_u64(), own_times["errors"].as_u64()),
        (Some(4096 * 1000), Some(0))
    );
    let spent = own_times["seconds"].as_f64().unwrap();
    assert!(spent >= 0.0999, "a request goes out no earlier than its time: {spent}");
    scratch.refused("run t.trace --on kernel:data", &["--overwrite"]);
    scratch.refused("run t.trace --trace tape", &["tape", "iolog", "tencent"]);
    scratch.file("bad.trace", "1 0 8 8 1\n2 0 8 8 x\n");
    scratch.refused("run bad.trace", &["bad.trace", "line 2"]);
    scratch.file(
        "io.log",
        "fio version 2 iolog\nf add\nf read 0 4096\nf wait 100\nf read 8192 4096\n",
    );
    scratch.file("r.fio", "[r]\nread_iolog=io.log\n");
    assert_eq!(scratch.run("run r.fio --on ssd --json").results()[0]["bytes"], 8192);
}

/// True if fio 3.33 is installed.
fn has_fio() -> bool {
    let version = Command::new("fio").arg("--version").output();
    let is_there = version.is_ok_and(|output| output.stdout.starts_with(b"fio-3.33"));
    if !is_there {
        println!("skipped: fio 3.33 is not installed");
    }
    is_there
}

/// Jobs that end each other, wait for each other, or share a flow.
const TOGETHER: &[&str] = &[
    "[a]\nruntime=1\nexitall\n[b]\nruntime=3\n[c]\nstonewall\nruntime=1\n",
    "[a]\nruntime=1\nexitall\n[b]\nruntime=2\n[c]\nnew_group\nruntime=2\n",
    "[a]\nruntime=1\nexitall\nexit_what=all\n[b]\nruntime=3\n[c]\nstonewall\nruntime=1\n",
    "[a]\nruntime=1\nexitall\nexit_what=stonewall\n[b]\nnew_group\nruntime=3\n\
     [c]\nstonewall\nruntime=1\n",
    // Any job may set `exitall` for all, but not the scope of the others.
    "[a]\nruntime=1\n[b]\nruntime=3\nexitall\n",
    "[a]\nruntime=1\n[b]\nnew_group\nruntime=2\nexitall\nexit_what=all\n",
    // The waiting job has a second left when all jobs are ended.
    "[a]\nruntime=1\nnumjobs=2\n[b]\nnew_group\nruntime=3\nwait_for=a\n\
     [c]\nnew_group\nruntime=2\nexitall\nexit_what=all\n",
];

/// Each job does a thousand operations a second. Their number therefore shows the run time of a
/// job, in fio and here.
#[test]
fn job_ends_and_waits_match_fio() {
    if !has_fio() {
        return;
    }
    let scratch = Scratch::new("together");
    let global = "[global]\nsize=1g\nbs=4k\ntime_based\nrate_iops=1000\n";
    for jobs in TOGETHER {
        scratch.file("ours.fio", format!("{global}{jobs}"));
        scratch.file("theirs.fio", format!("{global}ioengine=null\n{jobs}"));
        let ours = operations_of_ours(&scratch, "ours.fio");
        // Within a quarter of a second. On a busy machine fio may end a job later, so it runs up to
        // three times.
        let are_equal = |theirs: &Vec<u64>| {
            let mut pairs = ours.iter().zip(theirs);
            ours.len() == theirs.len() && pairs.all(|(ours, theirs)| ours.abs_diff(*theirs) <= 250)
        };
        let mut runs = Vec::new();
        while !runs.iter().any(are_equal) {
            assert!(runs.len() < 3, "{jobs}: {ours:?} and {runs:?}");
            runs.push(operations_of_fio(&scratch, "theirs.fio"));
        }
    }
}

/// Each job of a flow does the share of operations given by its weight.
#[test]
fn a_flow_is_shared_as_in_fio() {
    if !has_fio() {
        return;
    }
    let scratch = Scratch::new("flow");
    let jobs =
        "size=1g\nbs=4k\ntime_based\nruntime=1\nflow_id=3\n[a]\nflow=3\n[b]\nflow=1\n[c]\nflow=2\n";
    scratch.file("ours.fio", format!("[global]\n{jobs}"));
    scratch.file("theirs.fio", format!("[global]\nioengine=null\n{jobs}"));
    let are_shared = |operations: &Vec<u64>| {
        let all: u64 = operations.iter().sum();
        operations
            .iter()
            .zip([3.0, 1.0, 2.0])
            .all(|(&done, weight)| (0.9..1.1).contains(&(done as f64 * 6.0 / all as f64 / weight)))
    };
    let ours = operations_of_ours(&scratch, "ours.fio");
    assert!(are_shared(&ours), "{ours:?}");
    // A fio process that starts late on a busy machine continues alone after the others have ended.
    let mut theirs = (0..5).map(|_| operations_of_fio(&scratch, "theirs.fio"));
    assert!(theirs.any(|operations| are_shared(&operations)), "fio has other shares");
}

/// Operations of each job, summed over its processes.
fn operations_of_fio(scratch: &Scratch, job: &str) -> Vec<u64> {
    let mut fio = Command::new("fio");
    fio.current_dir(&scratch.0).args(["--output-format=json", job]);
    let output = fio.output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut jobs: Vec<(String, u64)> = Vec::new();
    for job in document["jobs"].as_array().unwrap() {
        let name = job["jobname"].as_str().unwrap().to_owned();
        let done = job["read"]["total_ios"].as_u64().unwrap();
        match jobs.last_mut().filter(|last| last.0 == name) {
            Some(last) => last.1 += done,
            None => jobs.push((name, done)),
        }
    }
    jobs.into_iter().map(|(_, done)| done).collect()
}

fn operations_of_ours(scratch: &Scratch, job: &str) -> Vec<u64> {
    let rows = scratch.run(&format!("run {job} --on ssd --json")).results();
    let sections = rows[0]["sections"].as_array().unwrap();
    sections.iter().map(|section| section["bytes"].as_u64().unwrap() / 4096).collect()
}

/// Log files of a folder with their lines, without times and values, which differ between runs.
fn logs(folder: &Path) -> std::collections::BTreeMap<String, Vec<String>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let is_log = |path: &PathBuf| name(path).ends_with(".log") || name(path) == "trace";
    entries
        .filter(is_log)
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(|line| match line.split_once(", ") {
                Some((_, rest)) => rest.split_once(", ").unwrap().1.to_owned(),
                None => line.split_once(' ').unwrap().1.to_owned(),
            });
            (name(&path), lines.collect())
        })
        .collect()
}

/// A job writes the same logs here and in fio: equal names, and equal lines except for times and
/// values.
#[test]
fn job_logs_equal_those_of_fio() {
    if !has_fio() {
        return;
    }
    let job = "[global]\nfilename=data\nbs=4k\nsize=256k\nioengine=psync\n\
               [a]\nrw=randrw\nnumjobs=2\nwrite_lat_log=p\nwrite_bw_log\nwrite_iops_log=q\nlog_offset=1\n\
               [b]\nstonewall\nrw=read\nprioclass=1\nprio=3\nlog_prio=1\nper_job_logs=0\nwrite_lat_log=s\n\
               [c]\nstonewall\nrw=randwrite\nprio=3\nwrite_iolog=trace\nwrite_iops_log=r\n";
    let theirs = Scratch::new("logs-of-fio");
    theirs.file("j.fio", job);
    let ran = Command::new("fio").current_dir(&theirs.0).args(["--output=out", "j.fio"]).status();
    assert!(ran.unwrap().success());
    let theirs = logs(&theirs.0);
    assert_eq!(theirs.len(), 15, "{:?}", theirs.keys());
    for on in ["ssd", "kernel:data", "file:data"] {
        let ours = Scratch::new("logs");
        ours.file("j.fio", job);
        ours.data("data", 256 << 10);
        ours.run(&format!("run j.fio --on {on} --overwrite")).has_ended(0, on);
        assert_eq!(logs(&ours.0), theirs, "{on}");
    }
}

/// fio and readpath replay a written trace alike.
#[test]
fn written_iolog_can_be_replayed() {
    let scratch = Scratch::new("write-iolog");
    scratch
        .file("w.fio", "[w]\nfilename=data\nrw=randrw\nsize=256k\nrate_iops=1000\nwrite_iolog=t\n");
    let written = &scratch.run("run w.fio --on ssd --json").results()[0];
    let replayed = &scratch.run("run t --on ssd --json").results()[0];
    assert_eq!(replayed["bytes"], written["bytes"]);
    let seconds = |row: &serde_json::Value| row["seconds"].as_f64().unwrap();
    assert!((seconds(replayed) - seconds(written)).abs() < 0.005, "{replayed} {written}");
    // Each of several rows has its own files, and no input of the run is overwritten.
    scratch.run("run w.fio --on ssd --on hdd").has_ended(0, "two rows");
    assert!(scratch.path("t-1").exists() && scratch.path("t-2").exists());
    scratch.file("x.fio", "[w]\nsize=1m\nwrite_iolog=x.fio\n");
    scratch.refused("run x.fio --on ssd", &["x.fio", "another name"]);
    scratch.file("y.fio", "[w]\nsize=1m\nwrite_lat_log=no/where\n");
    scratch.refused("run y.fio --on ssd", &["no/where_lat.1.log"]);
}

/// The second of three rows fails: a folder has the name of its log.
#[test]
fn rows_before_a_failed_row_are_printed() {
    let scratch = Scratch::new("rows-before-failure");
    scratch.file("w.fio", "[w]\nsize=1m\nrw=read\nwrite_iolog=t\n");
    std::fs::create_dir(scratch.path("t-2")).unwrap();
    let command = "run w.fio --on ssd --on hdd --on nvme --html page.html --json";
    let ran = scratch.run(command);
    ran.has_ended(2, command);
    ran.says(&["t-2", "can be written"], command);
    let storages: Vec<_> = ran.results().iter().map(|row| row["storage"].clone()).collect();
    assert_eq!(storages, ["ssd"]);
    assert!(scratch.path("page.html").exists());
    assert!(scratch.path("t-1").exists() && !scratch.path("t-3").exists());
}

/// The process finds no memory for its block of 1 GiB, and its log no room on the device.
#[test]
fn failure_of_a_run_is_reported_before_the_one_of_its_log() {
    let scratch = Scratch::new("run-and-log");
    let data = std::fs::File::create(scratch.path("data")).unwrap();
    data.set_len(1 << 30).unwrap();
    std::os::unix::fs::symlink("/dev/full", scratch.path("t")).unwrap();
    scratch.file("w.fio", "[w]\nbs=1g\nsize=1g\nrw=read\nwrite_iolog=t\n");
    let command = "ulimit -v 900000; exec \"$0\" run w.fio --on kernel:data";
    let output = Command::new("bash")
        .args(["-c", command, env!("CARGO_BIN_EXE_readpath")])
        .current_dir(scratch.path("."))
        .output();
    let ran = support::Ran::of(output.unwrap());
    ran.says(&["no memory for", "of 1073741824 bytes"], command);
    assert!(ran.code != Some(0) && !ran.stderr.contains("the log t"), "{}", ran.stderr);
}
