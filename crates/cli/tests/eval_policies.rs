//! `readpath eval policies` from the command line.

mod support;

use serde_json::Value;
use std::process::Command;
use support::{READPATH, Scratch};

#[test]
fn eval_document_is_equal_for_any_number_of_threads() {
    let document = |threads| {
        let arguments = [
            "eval",
            "policies",
            "--smoke",
            "--cells",
            "/ssd/,/seq-64k/",
            "--json",
            "--threads",
            threads,
        ];
        let output = Command::new(READPATH).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let one = document("1");
    assert_eq!(one, document("3"));
    assert_eq!(one["summary"]["cells"], 4);
    let rows = one["results"].as_array().unwrap();
    let processes: Vec<&Value> = rows.iter().map(|row| &row["processes"]).collect();
    assert_eq!(processes, [1, 4, 16, 64]);
    for row in rows {
        let best = row["baselines"][0]["mib_per_s"].as_f64().unwrap();
        let ratio = row["adaptive"]["mib_per_s"].as_f64().unwrap() / best;
        assert!((ratio - row["ratio"].as_f64().unwrap()).abs() < 1e-9);
    }
}

#[test]
fn unknown_cell_name_is_refused_with_the_name_format() {
    let output =
        Command::new(READPATH).args(["eval", "policies", "--cells", "floppy"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("DEVICE/WORKLOAD/PROCESSES"), "{stderr}");
}

/// The file is created in the folder and removed afterwards. The kernel is a baseline.
#[test]
fn real_storage_is_evaluated_against_the_kernel_baseline() {
    let scratch = Scratch::new("regret-real");
    let ran = scratch.run("eval policies --smoke --on . --cells /many-handles-8/,/4/ --json");
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    // First runs of the cell, before the counted ones.
    let [first] = &document["first_runs"]["results"].as_array().unwrap()[..] else { panic!() };
    assert_eq!(first["workload"], "many-handles-8");
    assert_eq!(document["first_runs"]["summary"]["minimum"], first["ratio"]);
    let rows = ran.results();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_ne!(first["adaptive"]["mib_per_s"], row["adaptive"]["mib_per_s"]);
    // With default options the kernel keeps the pages and issues the requests.
    assert_eq!(row["adaptive"]["device_requests"], Value::Null);
    assert_eq!([&row["device"], &row["workload"]], ["file", "many-handles-8"]);
    let baselines = row["baselines"].as_array().unwrap();
    let policies: Vec<&str> =
        baselines.iter().filter_map(|run| run["readahead"].as_str()).collect();
    for policy in ["kernel", "none", "window", "window-fixed", "ondemand"] {
        assert!(policies.contains(&policy), "{policy} in {policies:?}");
    }
    // Four processes of 512 KiB / 64 each, in eight streams of at least 128 KiB.
    let bytes = 4.0 * 8.0 * 131_072.0;
    for run in baselines.iter().chain([&row["adaptive"]]) {
        let [seconds, rate] = ["seconds", "mib_per_s"].map(|key| run[key].as_f64().unwrap());
        assert!((seconds * rate * 1_048_576.0 / bytes - 1.0).abs() < 1e-6, "{run}");
    }
    assert_eq!(row["ratio"].as_f64().unwrap(), {
        let rate = |run: &Value| run["mib_per_s"].as_f64().unwrap();
        rate(&row["adaptive"]) / baselines.iter().map(rate).fold(0.0, f64::max)
    });
    assert_eq!(scratch.names(), Vec::<String>::new(), "nothing stays");
}

#[test]
fn missing_or_too_small_real_storage_is_refused() {
    let scratch = Scratch::new("regret-refused");
    scratch.data("small", 1 << 20);
    scratch.refused("eval policies --on small --cells seq-4k", &["small", "name a larger file"]);
    scratch.refused("eval policies --on nowhere --cells seq-4k", &["nowhere"]);
    scratch.refused("eval policies --on . --seeds 2", &["--seeds", "cannot be used with"]);
    scratch.refused("eval policies --on . --cells floppy", &["WORKLOAD/PROCESSES"]);
}

#[test]
fn baselines_are_reused_only_from_documents_with_equal_seeds() {
    let scratch = Scratch::new("regret-beside");
    let cells = "eval policies --smoke --cells /ssd/,/mixed/ --json --seeds 2";
    let whole = scratch.run(cells);
    whole.has_ended(0, cells);
    scratch.file("all.json", &whole.stdout);
    let beside = scratch.run(&format!("{cells} --earlier-baselines all.json"));
    assert_eq!(beside.stdout, whole.stdout);
    let other = scratch.run(&format!("{cells} --earlier-baselines all.json --policies none,noop"));
    let other: Value = serde_json::from_str(&other.stdout).unwrap();
    assert_eq!(other["policies"], "none noop");
    let rows = other["results"].as_array().unwrap();
    for row in rows {
        let is_same =
            |baseline: &&Value| baseline["readahead"] == "none" && baseline["scheduler"] == "noop";
        let baseline = row["baselines"].as_array().unwrap().iter().find(is_same).unwrap();
        assert_eq!(row["adaptive"], *baseline, "a classic pair under test is its own baseline");
        assert_eq!(baseline["mib_per_s_by_seed"].as_array().unwrap().len(), 2);
        let is_regret = row["ratio"].as_f64().unwrap() < 0.95;
        assert_eq!(row["cause"].is_object(), is_regret, "{row}");
    }
    let fixed = other["summary"]["fixed"].as_array().unwrap();
    assert_eq!(fixed.len(), 12, "each classic pair as the default of all cells");
    assert!(fixed.iter().all(|pair| pair["minimum"].as_f64().unwrap() <= 1.0));
    let seeds = "eval policies --smoke --cells /ssd/,/mixed/ --earlier-baselines all.json";
    scratch.refused(seeds, &["all.json", "--seeds 2"]);
    let lacking =
        "eval policies --smoke --cells /nvme/,/mixed/,/4/ --seeds 2 --earlier-baselines all.json";
    scratch.refused(lacking, &["all.json", "nvme/mixed/4"]);
    scratch.refused(
        "eval policies --policies adaptive",
        &["--policies adaptive", "a readahead policy and a scheduler"],
    );
}

/// Each cell is in the tuning set or in the held-out set, and both have a summary. Drawn cells are
/// held out, and another seed draws others.
#[test]
fn cells_are_divided_into_tuning_and_held_out_sets() {
    let scratch = Scratch::new("regret-held-out");
    let document = |arguments: &str| -> Value {
        let all = format!("eval policies --smoke --cells /mixed/,/4/ --json {arguments}");
        let ended = scratch.run(&all);
        ended.has_ended(0, &all);
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let names = |document: &Value| -> Vec<String> {
        let rows = document["results"].as_array().unwrap().iter();
        rows.map(|row| row["device"].as_str().unwrap().to_owned()).collect()
    };
    let (whole, developed, held_out) =
        (document(""), document("--developed"), document("--held-out"));
    assert_eq!(whole["developed"], developed["summary"]);
    assert_eq!(whole["held_out"], held_out["summary"]);
    assert_eq!([&developed["held_out"], &held_out["developed"]], [&Value::Null, &Value::Null]);
    let mut both = [names(&developed), names(&held_out)].concat();
    let mut all = names(&whole);
    both.sort();
    all.sort();
    assert_eq!(both, all);
    assert!(names(&held_out).contains(&"drawn-1".to_owned()), "{held_out}");
    assert!(!names(&developed).iter().any(|name| name.starts_with("drawn")), "{developed}");
    let row = |document: &Value| {
        let rows = document["results"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["device"] == "drawn-1").unwrap()
    };
    assert_ne!(row(&held_out)["baselines"], row(&document("--held-out --seed 2"))["baselines"]);
    scratch.refused("eval policies --developed --held-out", &["cannot be used with"]);
}

/// The job and the recording of a folder are cells. Their results are the ones of `run` and
/// `replay` with the same policies on the same devices.
#[test]
fn job_files_and_recordings_of_a_folder_are_evaluated() {
    let scratch = Scratch::new("given-workloads");
    let folder = scratch.path("jobs");
    std::fs::create_dir_all(folder.join("a folder in it")).unwrap();
    std::fs::write(folder.join(".hidden"), "no job").unwrap();
    let job = "[logs]\nrw=read\nbs=64k\nsize=4m\nnumjobs=3\n[keys]\nrw=randread\nbs=4k\nsize=8m\nio_size=256k\n";
    std::fs::write(folder.join("logs.fio"), job).unwrap();
    let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/one-at-a-time.rec");
    std::fs::copy(recording, folder.join("program.rec")).unwrap();
    let rows = scratch.run("eval policies --jobs jobs --cells /nvme/ --json").results();
    let names: Vec<_> = rows.iter().map(|row| (&row["workload"], &row["processes"])).collect();
    let threads = rows[1]["processes"].as_u64().unwrap();
    assert_eq!(names, [(&"logs.fio".into(), &4.into()), (&"program.rec".into(), &threads.into())]);
    assert_eq!(rows[0]["baselines"].as_array().unwrap().len(), 12);

    let same = "--readahead adaptive --scheduler adaptive --on nvme --json";
    let [ran] = &scratch.run(&format!("run jobs/logs.fio {same}")).results()[..] else { panic!() };
    for key in ["mib_per_s", "seconds", "device_requests", "amplification"] {
        let [own, run] =
            [&rows[0]["adaptive"][key], &ran[key]].map(|value| value.as_f64().unwrap());
        assert!((own / run - 1.0).abs() < 1e-9, "{key}: {own} {run}");
    }
    assert_eq!(rows[0]["adaptive"]["latency_p99_us"], ran["latency_us"]["p99"]);
    let replayed = scratch.run(&format!("replay jobs/program.rec {same}")).results();
    let [own, replay] = [&rows[1]["adaptive"], &replayed[1]].map(|row| row["seconds"].as_f64());
    assert_eq!(own, replay);

    let one = scratch.run("eval policies --jobs jobs/logs.fio --cells /nvme/ --json").results();
    assert_eq!(one, rows[..1]);
    // A job whose reads are all direct has the schedulers alone as baselines.
    let direct = "[direct]\nrw=read\nbs=64k\nsize=1m\ndirect=1\n";
    std::fs::write(scratch.path("direct.fio"), direct).unwrap();
    let direct = scratch.run("eval policies --jobs direct.fio --cells /nvme/ --json").results();
    assert_eq!(direct[0]["baselines"].as_array().unwrap().len(), 3);
}

#[test]
fn unusable_folder_of_workloads_is_refused_with_the_file() {
    let scratch = Scratch::new("bad-workloads");
    std::fs::create_dir(scratch.path("empty")).unwrap();
    scratch.refused("eval policies --jobs empty", &["empty", "put job files"]);
    scratch.refused("eval policies --jobs missing", &["missing", "No such file"]);
    std::fs::create_dir(scratch.path("bad")).unwrap();
    std::fs::write(scratch.path("bad/a.fio"), "[a]\nrw=read\nsize=4k\nbs=16k\n").unwrap();
    scratch.refused("eval policies --jobs bad --cells /nvme/", &["nvme/a.fio/1", "does not fit"]);
    std::fs::create_dir(scratch.path("twice")).unwrap();
    for name in ["a,b.fio", "a_b.fio"] {
        std::fs::write(scratch.path("twice").join(name), "[a]\nrw=read\nsize=4k\n").unwrap();
    }
    scratch.refused("eval policies --jobs twice", &["a_b.fio", "rename one"]);
    std::fs::write(scratch.path("bad/a.fio"), [0xff, 0, 1]).unwrap();
    scratch.refused("eval policies --jobs bad", &["bad/a.fio", "not text"]);
    let conflict = scratch.run("eval policies --jobs bad --held-out");
    assert!(conflict.stderr.contains("cannot be used with"), "{}", conflict.stderr);
}
