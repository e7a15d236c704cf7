//! Output contract of the command: JSON keys, rows of the table, lists, help, and counted errors.

mod support;

use std::io::Read;
use std::process::Stdio;

use serde_json::Value;
use support::{RANDOM, Ran, Scratch};

/// Documented keys of a result. A key is null if its value was not measured.
const KEYS: [&str; 19] = [
    "job",
    "storage",
    "page_cache",
    "readahead",
    "swapin",
    "scheduler",
    "bytes",
    "seconds",
    "mib_per_s",
    "iops",
    "latency_us",
    "device_requests",
    "device_bytes",
    "device_request_kib_mean",
    "device_depth_mean",
    "device_depth_max",
    "amplification",
    "coverage",
    "waste_bytes",
];

fn assert_number(row: &Value, key: &str) {
    assert!(row[key].is_number(), "{key} is {} in {row:#}", row[key]);
}

#[test]
fn results_have_all_keys_and_null_for_unmeasured_values() {
    let scratch = Scratch::new("keys");
    scratch.file("j.fio", RANDOM);
    scratch.data("data", 4 << 20);
    let ran = scratch.run("run j.fio --on ssd --on file:data --on kernel:data --seed 9 --json");
    ran.has_ended(0, "three storages");
    assert_eq!(ran.stderr, "", "no progress bar where there is no terminal");
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    let names: Vec<&String> = document.as_object().unwrap().keys().collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(document["readpath"], env!("CARGO_PKG_VERSION"));
    assert_eq!(document["seed"], 9);

    let rows = ran.results();
    for (row, storage) in rows.iter().zip(["ssd", "file:data", "kernel:data"]) {
        for key in KEYS.into_iter().chain(["cpu_seconds"]) {
            assert!(row.get(key).is_some(), "{storage}: no key {key}");
        }
        for key in ["bytes", "seconds", "mib_per_s", "iops"] {
            assert_number(row, key);
        }
        for key in ["p50", "p99", "max"] {
            assert_number(&row["latency_us"], key);
        }
        assert_eq!(row["job"], "j");
        assert_eq!(row["storage"], storage);
        assert_eq!(row["bytes"], 4 << 20, "{storage}: 64 blocks of 64 KiB");
        assert_eq!(row["swapin"], Value::Null, "{storage}: file reads swap nothing in");
        assert_eq!(row["errors"], 0);
    }
    let by_the_kernel = [
        "device_requests",
        "device_request_kib_mean",
        "device_depth_mean",
        "device_depth_max",
        "waste_bytes",
    ];
    let of_bytes = ["device_bytes", "amplification", "coverage"];
    let named = scratch.run("run j.fio --on file:data --memory 16m --json");
    let own = &named.results()[0];
    let without = scratch.run("run j.fio --on file:data --page-cache none --json");
    let page_caches = [&rows[0], &rows[1], &rows[2], own, &without.results()[0]];
    assert_eq!(
        page_caches.map(|row| row["page_cache"].as_str().unwrap().to_owned()),
        ["own", "kernel", "kernel", "own", "none"]
    );
    assert_eq!(without.results()[0]["readahead"], "none");
    for key in by_the_kernel.into_iter().chain(of_bytes) {
        assert_number(&rows[0], key);
        assert_number(own, key);
        assert_eq!(rows[2][key], Value::Null, "{key}: the kernel doesn't tell");
    }
    // By default `file:` also uses the kernel page cache, which reports only the bytes read.
    by_the_kernel.into_iter().for_each(|key| assert_eq!(rows[1][key], Value::Null, "{key}"));
    of_bytes.into_iter().for_each(|key| assert_number(&rows[1], key));
    assert_eq!(rows[0]["cpu_seconds"], Value::Null, "no processor worked for modelled time");
    assert_number(&rows[1], "cpu_seconds");
    assert_number(&rows[2], "cpu_seconds");
    // A job with writes only has no amplification of reads.
    scratch.file("w.fio", RANDOM.replace("randread", "write"));
    let row = &scratch.run("run w.fio --on ssd --json").results()[0];
    assert_eq!((&row["amplification"], &row["coverage"]), (&Value::Null, &Value::Null));
}

#[test]
fn modelled_documents_repeat_byte_by_byte_from_their_seed() {
    let scratch = Scratch::new("seeds");
    scratch.file("j.fio", RANDOM);
    let document =
        |seed| scratch.run(&format!("run j.fio --on hdd,ssd --seed {seed} --json")).stdout;
    assert_eq!(document(5), document(5));
    let decisions = |seed| {
        let ran = scratch.run(&format!("run j.fio --on hdd,ssd --seed {seed} --json"));
        ran.results().iter().map(|row| row["decisions"].clone()).collect::<Vec<_>>()
    };
    let (five, six) = (decisions(5), decisions(6));
    assert!(five.iter().all(Value::is_string));
    assert!(five.iter().zip(&six).all(|(five, six)| five != six), "{five:?} {six:?}");
}

#[test]
fn the_table_has_a_row_per_combination() {
    let scratch = Scratch::new("table");
    scratch.file("j.fio", RANDOM);
    scratch.data("data", 4 << 20);
    let policies = "--readahead none,ondemand --scheduler noop,deadline,fifo_batch=1";
    let ran = scratch.run(&format!("run j.fio --on hdd,ssd --on kernel:data {policies}"));
    ran.has_ended(0, "a table");
    assert_eq!(ran.stderr, "");
    // The verdict and an empty line, a header, two devices × two policies × two schedulers, and the
    // kernel's row.
    assert_eq!(ran.stdout.lines().count(), 2 + 1 + 2 * 2 * 2 + 1, "{}", ran.stdout);
    for part in ["storage ", "MiB/s", "deadline,fifo_batch=1", "kernel:data"] {
        assert!(ran.stdout.contains(part), "{part} in\n{}", ran.stdout);
    }
}

/// Every tenth request of 64 fails. Each read needs one request.
#[test]
fn device_error_fails_only_the_affected_reads() {
    let scratch = Scratch::new("errors");
    // Requests of one page each. A larger failed request would be retried page by page, which
    // brings its good pages in.
    scratch.file("j.fio", "[j]\nrw=randread\nbs=4k\nsize=256k\n");
    let ran = scratch.run("run j.fio --on faulty:ssd,fail_every=10 --readahead none --json");
    ran.has_ended(1, "a faulty device");
    ran.says(&["6 operations failed", "at byte ", "could not read"], "a faulty device");
    let row = &ran.results()[0];
    assert_eq!(row["errors"], 6);
    assert_eq!(row["bytes"], (64 - 6) * 4_096);
    assert!(row["first_error"].as_str().unwrap().contains("at byte"));

    // One bad sector. The reads cover the file twice, and only the block with that sector fails,
    // twice.
    scratch.file("twice.fio", "[j]\nrw=read\nbs=64k\nsize=4m\nloops=2\n");
    let bad = "faulty:ssd,bad_from=1048576,bad_bytes=512";
    let ran = scratch.run(&format!("run twice.fio --on {bad} --json"));
    ran.has_ended(1, bad);
    let row = &ran.results()[0];
    assert_eq!((&row["errors"], &row["bytes"]), (&Value::from(2), &Value::from(126 * 65_536)));
}

#[test]
fn closed_standard_output_is_not_an_error() {
    let scratch = Scratch::new("pipe");
    scratch.file("j.fio", RANDOM);
    for arguments in
        ["run j.fio --json", "policies", "policies ondemand", "devices hdd", "reproduce Z"]
    {
        let mut command = scratch.command(arguments.split_whitespace());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let code = child.wait().unwrap().code();
        assert!(!stderr.contains("panicked"), "{arguments}: {stderr}");
        assert_eq!(code, Some(if arguments == "reproduce Z" { 2 } else { 0 }), "{arguments}");
    }
}

#[test]
fn full_standard_output_is_an_error() {
    let scratch = Scratch::new("full-output");
    scratch.file("j.fio", RANDOM);
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else {
        return println!("skipped: full_standard_output_is_an_error needs /dev/full");
    };
    for arguments in ["run j.fio", "policies"] {
        let mut command = scratch.command(arguments.split_whitespace());
        let ran = Ran::of(command.stdout(full.try_clone().unwrap()).output().unwrap());
        ran.has_ended(1, arguments);
        ran.says(&["standard output: No space left", "write it elsewhere"], arguments);
    }
}

/// Names in a list: the first word of each line with this indent.
fn listed(text: &str, indent: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(indent));
    let names = lines.filter(|line| !line.starts_with([' ', '`']) && !line.is_empty());
    names.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn every_policy_and_device_is_listed_and_described() {
    let scratch = Scratch::new("lists");
    let policies = scratch.run("policies");
    policies.has_ended(0, "policies");
    let names = listed(&policies.stdout, "  ");
    for name in ["none", "window", "window-fixed", "ondemand", "noop", "deadline", "two-lists"] {
        assert!(names.iter().any(|listed| listed == name), "{name} in {names:?}");
    }
    for name in names {
        let shown = scratch.run(&format!("policies {name}"));
        shown.has_ended(0, &name);
        assert!(shown.stdout.starts_with(&name) && shown.stdout.lines().count() > 4, "{name}");
    }
    let devices = scratch.run("devices");
    devices.has_ended(0, "devices");
    let names = listed(&devices.stdout, "");
    for name in ["hdd", "ssd", "raid0", "faulty"] {
        assert!(names.iter().any(|listed| listed == name), "{name} in {names:?}");
    }
    scratch.file("j.fio", RANDOM);
    for name in names {
        let shown = scratch.run(&format!("devices {name}"));
        shown.has_ended(0, &name);
        for part in ["requests of up to", "parameter", "source"] {
            assert!(shown.stdout.contains(part), "{name}: {part} in\n{}", shown.stdout);
        }
        let members = if ["raid0", "faulty"].contains(&name.as_str()) { ":2xssd" } else { "" };
        let device = format!("{name}{members}").replace("faulty:2x", "faulty:");
        scratch.run(&format!("run j.fio --on {device}")).has_ended(0, &device);
    }
    // Every name that `policies` lists is valid in a run.
    for name in ["none", "window", "window-fixed", "ondemand"] {
        scratch.run(&format!("run j.fio --on ssd --readahead {name}")).has_ended(0, name);
    }
    for name in ["noop", "deadline", "mq-deadline", "kyber", "cfq", "bfq"] {
        scratch.run(&format!("run j.fio --on ssd --scheduler {name}")).has_ended(0, name);
    }
}

#[test]
fn help_texts_name_syntax_options_and_examples() {
    let scratch = Scratch::new("help");
    let teaches = |arguments: &str, words: &[&str]| {
        let ran = scratch.run(arguments);
        ran.has_ended(0, arguments);
        for word in words {
            assert!(ran.stdout.contains(word), "{arguments}: no `{word}` in\n{}", ran.stdout);
        }
    };
    teaches("--help", &["readpath run examples/quickstart.fio", "Exit codes", "130", "reproduce"]);
    teaches("--version", &[env!("CARGO_PKG_VERSION")]);
    teaches("run --help", &["file:PATH", "kernel:PATH", "raid0:12xhdd", "--create", "--overwrite"]);
    teaches("reproduce --help", &["TABLE", "--json", "--seed"]);
    teaches(
        "check-kernel --help",
        &["OFFSET LENGTH", "touch OFFSET", "advice NAME", "reopen", "root"],
    );
    teaches("policies --help", &["NAME"]);
    teaches("devices --help", &["NAME"]);
    teaches("emulate --help", &["--at"]);
    teaches("devices validate --help", &["--json"]);
    // The examples in the help of `run` name existing devices.
    scratch.file("j.fio", RANDOM);
    for device in ["raid0:12xhdd", "hdd,drive=sata2010", "nvme"] {
        scratch.run(&format!("run j.fio --on {device}")).has_ended(0, device);
    }
}

#[test]
fn reproduced_tables_are_available_as_json() {
    let scratch = Scratch::new("tables");
    let ran = scratch.run("reproduce A --json");
    ran.has_ended(0, "reproduce A");
    assert_eq!(ran.stderr, "");
    let table = &ran.results()[0];
    assert_eq!(table["table"], "A");
    let rows = table["rows"].as_array().unwrap();
    assert!(rows.len() >= 3, "{table:#}");
    assert!(rows.iter().all(|row| row["modelled"].is_number()));
}
