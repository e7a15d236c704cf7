//! Raw jobs from the command: modelled, real, and compared with the kernel.

mod support;

use serde_json::Value;
use support::Scratch;

const RAW: &str =
    "[global]\nioengine=raw\nbs=1m\nsize=3m\n[r]\nrw=read\n[w]\nrw=write\nstonewall\n";

/// 3 MiB read and written: 96 chunks of 64 KiB or 12 of 512 KiB, modelled and real.
#[test]
fn a_raw_job_makes_the_same_requests_modelled_and_real() {
    let scratch = Scratch::new("raw-worlds");
    scratch.file("j.fio", RAW);
    scratch.data("data", 6 << 20);
    let ran = scratch.run(
        "run j.fio --on ssd --on file:data --on kernel:data --overwrite --json \
         --chunking kiobuf,chunk=64KiB,ring --scheduler noop,deadline",
    );
    ran.has_ended(0, "a raw job in both worlds");
    let rows = ran.results();
    let figures = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
        (text("storage"), text("raw"), row["device_requests"].as_u64())
    };
    let expected: Vec<_> = [
        // Two schedulers and two policies. A file has no scheduler, and the kernel has no policy.
        ("ssd", "kiobuf,chunk=64KiB", Some(96)),
        ("ssd", "ring", Some(12)),
        ("ssd", "kiobuf,chunk=64KiB", Some(96)),
        ("ssd", "ring", Some(12)),
        ("file:data", "kiobuf,chunk=64KiB", Some(96)),
        ("file:data", "ring", Some(12)),
        ("kernel:data", "-", None),
    ]
    .map(|(storage, raw, requests)| (storage.to_owned(), raw.to_owned(), requests))
    .into();
    assert_eq!(rows.iter().map(figures).collect::<Vec<_>>(), expected);
    for row in &rows {
        assert_eq!(
            (&row["bytes"], &row["errors"]),
            (&(6u64 << 20).into(), &0u64.into()),
            "{row:#}"
        );
    }
    assert_eq!(rows[6]["engine"], "psync direct", "the kernel's own way of a raw transfer");
    assert_eq!(rows[4]["readahead"], Value::Null, "a raw file has none");
    let text = scratch.run("run j.fio --on ssd").stdout;
    assert!(text.lines().nth(2).unwrap().contains(" raw "), "{text}");
}

#[test]
fn invalid_raw_jobs_are_refused_with_a_remedy() {
    let scratch = Scratch::new("raw-refused");
    scratch.file("j.fio", RAW);
    scratch.file("mixed.fio", format!("{RAW}[c]\nioengine=psync\nrw=read\n"));
    scratch.file("none.fio", "[c]\nrw=read\nsize=1m\n");
    scratch.data("data", 8 << 20);
    scratch.refused(
        "run none.fio --chunking ring",
        &["--chunking is for jobs with ioengine=raw", "leave it"],
    );
    scratch.refused(
        "run j.fio --chunking rung",
        &["there is no raw I/O policy `rung`", "kiobuf, ring"],
    );
    scratch.refused("run j.fio --on nfs://127.0.0.1/e/f", &["raw jobs need a device or a file"]);
    scratch.refused("run j.fio --chunking ring,depth=0", &["a whole number from 1 to 256"]);
    scratch.refused(
        "run j.fio --on file:data --overwrite --chunking ring,chunk=3",
        &["a size from 4096"],
    );
    scratch.refused(
        "run mixed.fio --on file:data --overwrite",
        &["raw jobs can't run together with other jobs", "another job file"],
    );
    scratch.run("run mixed.fio --on ssd").has_ended(0, "modelled, both kinds run together");
}

#[test]
fn table_e_prints_elapsed_and_system_time() {
    let scratch = Scratch::new("table-e");
    let text = scratch.run("reproduce E").stdout;
    assert!(text.contains("elapsed, in s") && text.contains("system time, in s"), "{text}");
    assert!(text.contains("10.30") && text.contains("5.20") && text.contains("1.17"), "{text}");
}
