//! `readpath recording`, end to end: recordings made of strace's text, shown, cut, handed on.

mod support;

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;

use readpath_trace::recording::{
    DeviceRecord, FileRecord, OthersRequests, ReadOutcome, ReadRecord, Record, ThreadName,
};
use support::{Scratch, begin_recording, end_recording};

/// Two files; random reads of 4 KiB of one of them, each of which takes 300 µs.
fn strace() -> String {
    let mut text = "9 100.000000 openat(AT_FDCWD, \"/d/a b\", O_RDONLY) = 3 <0.000010>\n\
                    9 100.000100 read(4</d/other>, \"secret\"..., 4096) = 6 <0.000005>\n"
        .to_owned();
    for at in 0..100 {
        let (us, offset) = (1000 + at * 400, (100 - at) << 20);
        text +=
            &format!("9 100.{us:06} pread64(3, \"secret\"..., 4096, {offset}) = 4096 <0.000300>\n");
    }
    text
}

#[test]
fn strace_text_is_imported_explained_and_exported() {
    let scratch = Scratch::new("recordings");
    scratch.file("strace.txt", strace());
    scratch.run("recording import strace.txt -o reads.rec").has_ended(0, "import");
    let bytes = std::fs::read(scratch.path("reads.rec")).unwrap();
    let has_secret = bytes.windows(6).any(|window| window == b"secret");
    assert!(!has_secret, "nothing of what was read is in it");

    let explained = scratch.run("explain reads.rec");
    explained.has_ended(0, "explain");
    for words in ["one request at a time", "100 reads of 4 KiB", "/d/a b", "Remedy"] {
        assert!(explained.stdout.contains(words), "{words} in\n{}", explained.stdout);
    }

    let iolog = scratch.run("recording export reads.rec --as iolog -o reads.log");
    iolog.has_ended(0, "export");
    let text = std::fs::read_to_string(scratch.path("reads.log")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..4],
        ["fio version 3 iolog", "100 /d/other add", "100 /d/other open", "100 /d/other read 0 6"]
    );
    assert_eq!(lines[6], "1000 /d/a_b#1 read 104857600 4096");
    scratch.run("recording import reads.log -o again.rec").has_ended(0, "import of the iolog");
    let again = scratch.run("explain again.rec --json");
    let again: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(again["shape"]["reads"], 101);

    let chrome = scratch.run("recording export reads.rec --as chrome");
    let events: serde_json::Value = serde_json::from_str(&chrome.stdout).unwrap();
    let reads = events.as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    let reads: Vec<_> = reads.collect();
    assert_eq!(
        (reads.len(), &reads[1]["ts"], &reads[1]["dur"]),
        (101, &1000.0.into(), &300.0.into())
    );
}

/// The page of a recording has no latencies if its only read failed.
#[test]
fn recording_whose_only_read_failed_has_a_page() {
    let scratch = Scratch::new("recordings-failed");
    let failed = "9 100.000000 openat(AT_FDCWD, \"/d/a\", O_RDONLY) = 3 <0.000010>\n\
                  9 100.000100 pread64(3, 0x1, 4096, 0) = -1 EIO (Input/output error) <0.000300>\n";
    scratch.file("strace.txt", failed);
    scratch.run("recording import strace.txt -o r.rec").has_ended(0, "import");
    scratch.run("explain r.rec --html p.html").has_ended(0, "explain");
    let page = std::fs::read_to_string(scratch.path("p.html")).unwrap();
    assert!(page.contains("</html>") && !page.contains("Latency over time"), "{page}");
}

/// By hand: the text has 101 reads of a page each, of which the first is of another file. All pages
/// are different, so each reference misses.
#[test]
fn recording_is_exported_as_a_trace_of_objects() {
    let scratch = Scratch::new("recordings-objects");
    scratch.file("strace.txt", strace());
    scratch.run("recording import strace.txt -o reads.rec").has_ended(0, "import");
    let export = |options: &str| {
        scratch.run(&format!("recording export reads.rec --as {options}")).has_ended(0, options);
    };
    export("jsonl -o pages.jsonl");
    let text = std::fs::read_to_string(scratch.path("pages.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 101);
    assert_eq!(lines[0], r#"{"key":"/d/other:0","size":4096,"time_us":100}"#);
    assert_eq!(lines[1], r#"{"key":"/d/a b:25600","size":4096,"time_us":1000}"#);

    export("oracle-general -o pages.oracleGeneral.bin");
    let records = std::fs::read(scratch.path("pages.oracleGeneral.bin")).unwrap();
    assert_eq!(records.len(), 101 * 24);
    // Second 0, object 2, 4,096 bytes, no next use.
    let second: Vec<u8> =
        [&0_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &4096_u32.to_le_bytes(), &[255; 8]]
            .concat();
    assert_eq!(records[24..48], second);
    for trace in ["pages.jsonl", "pages.oracleGeneral.bin"] {
        let options = "--objects --eviction lru --sizes 50% --json";
        let ran = scratch.run(&format!("cachesim {trace} {options}"));
        ran.has_ended(0, trace);
        let cells: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(cells["results"][0]["miss_ratio"], 1.0, "{cells}");
    }
}

/// Files 0 and 1 have one path, one after the other. In an iolog spaces separate the fields, and
/// only file 2 has its exact path. By hand: page 0 of each file is read twice. With memory for
/// all pages, the first read of each file misses.
#[test]
fn exported_files_of_one_path_keep_apart() {
    let scratch = Scratch::new("recordings-one-path");
    let mut writer = begin_recording();
    for (file, path) in [(0, "/d/a b"), (1, "/d/a b"), (2, "/d/a_b")] {
        let path = path.to_owned();
        writer.put(Record::File(FileRecord { file, path, ..FileRecord::default() })).unwrap();
    }
    writer.put(Record::Thread(ThreadName::default())).unwrap();
    for nth in 0..6 {
        let outcome = ReadOutcome::Bytes(4096);
        let (begin_ns, end_ns) = (nth * 1000, nth * 1000 + 500);
        let file = nth as u32 % 3;
        let read = ReadRecord { begin_ns, end_ns, file, outcome, ..ReadRecord::default() };
        writer.put(Record::Read(ReadRecord { asked_bytes: 4096, ..read })).unwrap();
    }
    scratch.file("r.rec", end_recording(writer, 9000));
    for (format, trace) in [("jsonl", "p.jsonl"), ("oracle-general", "p.oracleGeneral.bin")] {
        scratch
            .run(&format!("recording export r.rec --as {format} -o {trace}"))
            .has_ended(0, trace);
        let options = "--objects --eviction lru --sizes 100% --json";
        let ran = scratch.run(&format!("cachesim {trace} {options}"));
        assert_eq!(ran.results()[0]["misses"], 3, "{trace}");
    }
    scratch.run("recording export r.rec --as iolog -o p.log").has_ended(0, "iolog");
    let log = std::fs::read_to_string(scratch.path("p.log")).unwrap();
    let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    let reads: Vec<Vec<String>> =
        log.lines().map(words).filter(|words| words.get(2).is_some_and(|w| w == "read")).collect();
    let names: Vec<&str> = reads.iter().map(|words| words[1].as_str()).collect();
    assert_eq!(names[..3], ["/d/a_b#0", "/d/a_b#1", "/d/a_b"]);
    assert_eq!(names[..3], names[3..]);
}

#[test]
fn recordings_can_be_cut_and_anonymised() {
    let scratch = Scratch::new("recordings-cut");
    scratch.file("strace.txt", strace());
    scratch.run("recording import strace.txt -o reads.rec").has_ended(0, "import");
    // Reads end at 1.3 ms, 1.7 ms and so on: five of them from 2 ms up to 4.
    scratch.run("recording cut reads.rec --from 2ms --to 4ms -o cut.rec").has_ended(0, "cut");
    let shown = scratch.run("recording show cut.rec").stdout;
    assert_eq!(shown.lines().filter(|line| line.starts_with("{\"read\"")).count(), 5, "{shown}");
    // The span is the duration, and the first of these reads began before it.
    let first = shown.lines().find(|line| line.starts_with("{\"read\"")).unwrap();
    let first: serde_json::Value = serde_json::from_str(first).unwrap();
    assert_eq!(
        (&first["read"]["begin_ns"], &first["read"]["end_ns"]),
        (&0.into(), &100_000.into())
    );
    let explained: serde_json::Value =
        serde_json::from_str(&scratch.run("explain cut.rec --json").stdout).unwrap();
    assert_eq!(explained["seconds"], 0.002);
    // Both parts merge to the whole at its place. Decimals are a time.
    scratch.run("recording cut reads.rec --to 0.0205s -o begin.rec").has_ended(0, "cut");
    scratch.run("recording cut reads.rec --from 20.5ms -o rest.rec").has_ended(0, "cut");
    scratch.run("recording merge begin.rec rest.rec -o whole.rec").has_ended(0, "merge");
    let reads = |name: &str| {
        let shown = scratch.run(&format!("recording show {name}")).stdout;
        let reads = shown.lines().filter(|line| line.starts_with("{\"read\""));
        let record = reads.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        record.map(|record| record["read"]["end_ns"].as_u64()).collect::<Vec<_>>()
    };
    assert_eq!(reads("whole.rec"), reads("reads.rec"));
    scratch.run("recording anonymize reads.rec -o nameless.rec").has_ended(0, "anonymise");
    let shown = scratch.run("recording show nameless.rec").stdout;
    assert!(shown.contains("/file-0") && !shown.contains("/d/"), "{shown}");
    scratch.refused("recording cut reads.rec --from 5ms --to 5ms -o x.rec", &["--from 5ms"]);
    // The recording ends before 99 s.
    let past_end = scratch.run("recording cut reads.rec --from 99s -o empty.rec");
    past_end.has_ended(0, "cut");
    past_end.says(&["empty.rec", "nothing of the recording lies in this span"], "cut");
    // A mapping lies at 1 ms and advice at 2 ms, behind the read.
    let text = "9 100.000000 openat(AT_FDCWD, \"/d/a\", O_RDONLY) = 3 <0.000010>\n\
        9 100.000100 read(3, \"\", 5) = 5 <0.000010>\n\
        9 100.001000 mmap(NULL, 4096, PROT_READ, MAP_SHARED, 3, 0) = 0x7000000 <0.000010>\n\
        9 100.002000 fadvise64(3, 0, 4096, POSIX_FADV_WILLNEED) = 0 <0.000010>\n";
    scratch.file("mapped.txt", text);
    scratch.run("recording import mapped.txt -o mapped.rec").has_ended(0, "import");
    for (span, is_empty) in [
        ("--from 0.9ms --to 1.1ms", false),
        ("--from 1.9ms --to 2.1ms", false),
        ("--from 1.2ms --to 1.8ms", true),
    ] {
        let cut = scratch.run(&format!("recording cut mapped.rec {span} -o part.rec"));
        cut.has_ended(0, span);
        assert_eq!(cut.stderr.contains("nothing of the recording"), is_empty, "{span}");
    }
}

/// Two recordings that began half a millisecond apart: two threads with a hundred reads each, of
/// two files.
#[test]
fn recordings_are_merged_by_the_time_of_day() {
    let scratch = Scratch::new("recordings-merge");
    scratch.file("one.txt", strace());
    scratch.file("two.txt", strace().replace("9 100.000000", "9 100.000500"));
    for name in ["one", "two"] {
        scratch.run(&format!("recording import {name}.txt -o {name}.rec")).has_ended(0, "import");
    }
    scratch.run("recording merge one.rec two.rec -o both.rec").has_ended(0, "merge");
    let shown = scratch.run("recording show both.rec").stdout;
    let count = |kind: &str| shown.lines().filter(|line| line.starts_with(kind)).count();
    assert_eq!((count("{\"start\""), count("{\"thread\""), count("{\"read\"")), (1, 2, 202));
    scratch.run("explain both.rec").has_ended(0, "explain");
    scratch.refused("recording merge one.rec one.txt -o x.rec", &["one.txt: this is no recording"]);
}

#[test]
fn non_recordings_are_refused_and_truncated_recordings_explained() {
    let scratch = Scratch::new("recordings-bad");
    scratch.file("strace.txt", strace());
    scratch.run("recording import strace.txt -o reads.rec").has_ended(0, "import");
    let mut bytes = std::fs::read(scratch.path("reads.rec")).unwrap();
    scratch.file("cut.rec", &bytes[..bytes.len() - 1]);
    let cut = scratch.run("explain cut.rec");
    cut.has_ended(0, "a recording that is cut off");
    cut.says(&["cut.rec: the recording is cut off at byte 12"], "a recording that is cut off");
    *bytes.last_mut().unwrap() ^= 1;
    scratch.file("damaged.rec", &bytes);
    scratch.refused("explain strace.txt", &["strace.txt: this is no recording", "readpath record"]);
    scratch.refused("recording import reads.rec -o x.rec", &["neither the text of `strace"]);
    let damaged = scratch.run("explain damaged.rec");
    damaged.has_ended(2, "a damaged recording");
    damaged.says(&["damaged in the block at byte 12"], "a damaged recording");
}

/// The recording is damaged in a later block than the first, so that a part of the output is
/// written before the error. `damaged.rec` and a valid recording are merged as well.
#[test]
fn output_after_an_error_is_the_old_file_or_none() {
    let scratch = Scratch::new("recordings-old");
    let long: String =
        (1..=100).map(|nth| strace().replace("9 100.", &format!("9 {nth}."))).collect();
    scratch.file("strace.txt", long);
    scratch.run("recording import strace.txt -o reads.rec").has_ended(0, "import");
    let mut bytes = std::fs::read(scratch.path("reads.rec")).unwrap();
    assert!(bytes.len() > 2 * (64 << 10), "{} bytes are more than two blocks", bytes.len());
    *bytes.last_mut().unwrap() ^= 1;
    scratch.file("damaged.rec", &bytes);
    for arguments in [
        "cut damaged.rec",
        "anonymize damaged.rec",
        "merge reads.rec damaged.rec",
        "export damaged.rec --as iolog",
        "export damaged.rec --as chrome",
    ] {
        let names = scratch.names();
        let what = format!("recording {arguments} -o out");
        scratch.refused(&what, &["damaged.rec", "damaged in the block"]);
        assert_eq!(scratch.names(), names, "{what}");
        scratch.file("out", "old");
        scratch.refused(&what, &["damaged in the block"]);
        assert_eq!(std::fs::read_to_string(scratch.path("out")).unwrap(), "old", "{what}");
        std::fs::remove_file(scratch.path("out")).unwrap();
    }
    scratch.refused("recording cut reads.rec -o no/out", &["no/out: No such file or directory"]);
}

/// The output is the input itself, or a symbolic or hard link to it. Two outputs are one file,
/// which exists or not.
#[test]
fn an_output_that_would_overwrite_an_input_is_refused() {
    let scratch = Scratch::new("recordings-input");
    let trace = scratch.file("strace.txt", strace());
    scratch.run("recording import strace.txt -o reads.rec").has_ended(0, "import");
    scratch.run("recording import strace.txt -o other.rec").has_ended(0, "import");
    let recording = scratch.path("reads.rec");
    let references = scratch.file("r.txt", "0 4096\n4096 4096\n0 4096\n");
    let job = scratch.file("j.fio", "[j]\nrw=read\nsize=1m\n");
    let data = scratch.data("data", 1 << 20);
    let inputs = [&trace, &recording, &references, &job, &data];
    let before = inputs.map(|path| std::fs::read(path).unwrap());
    let mut cases = Vec::new();
    for (command, input) in [
        ("recording cut reads.rec -o", "reads.rec"),
        ("recording anonymize reads.rec -o", "reads.rec"),
        ("recording merge other.rec reads.rec -o", "reads.rec"),
        ("recording export reads.rec --as iolog -o", "reads.rec"),
        ("recording export reads.rec --as chrome -o", "reads.rec"),
        ("recording import strace.txt -o", "strace.txt"),
        ("explain reads.rec --html", "reads.rec"),
        ("replay reads.rec --on nvme --html", "reads.rec"),
        ("cachesim r.txt --format reads --html", "r.txt"),
        ("run j.fio --on nvme --html", "j.fio"),
        ("run j.fio --on nvme --readahead adaptive --log", "j.fio"),
        ("run j.fio --on file:data --html", "data"),
        ("devices measure data --toml", "data"),
    ] {
        let name = |kind: &str| format!("{kind}-{input}");
        if !scratch.path(&name("hard")).exists() {
            std::os::unix::fs::symlink(input, scratch.path(&name("soft"))).unwrap();
            std::fs::hard_link(scratch.path(input), scratch.path(&name("hard"))).unwrap();
        }
        cases.extend([input.to_owned(), name("soft"), name("hard")].map(|output| {
            (format!("{command} {output}"), format!("{output}: it would overwrite"))
        }));
    }
    for command in [
        "explain --html new -o new -- true",
        "explain --html new -o ./new -- true",
        "cachesim r.txt --format reads --picture new.svg --html new.svg",
        "run j.fio --on nvme --readahead adaptive --log new --html new",
        "bench . --small --picture new.svg --html new.svg",
    ] {
        cases.push((command.to_owned(), "new".to_owned()));
    }
    let names = scratch.names();
    for (command, output) in cases {
        scratch.refused(&command, &[&output, "name another file"]);
    }
    assert_eq!(inputs.map(|path| std::fs::read(path).unwrap()), before);
    assert_eq!(scratch.names(), names, "no output was begun");
    let ran = scratch.run("recording export reads.rec --as iolog -o /dev/null");
    ran.has_ended(0, "an output that keeps no data");
}

/// A link stays a link, permissions stay, and standard output is written itself.
#[test]
fn output_replaces_the_content_of_a_file_only() {
    let scratch = Scratch::new("recordings-replaced");
    scratch.file("strace.txt", strace());
    let old = scratch.file("old.rec", "old");
    std::fs::set_permissions(&old, Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("old.rec", scratch.path("link.rec")).unwrap();
    scratch.run("recording import strace.txt -o link.rec").has_ended(0, "import to a link");
    assert!(scratch.path("link.rec").is_symlink());
    assert_eq!(old.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    let bytes = std::fs::read(&old).unwrap();
    let mut command = scratch.command("recording import strace.txt -o /dev/stdout".split(' '));
    let stdout = File::create(scratch.path("stdout.rec")).unwrap();
    assert!(command.stdout(stdout.try_clone().unwrap()).status().unwrap().success());
    assert_eq!(std::fs::read(scratch.path("stdout.rec")).unwrap(), bytes);
    let written_bytes = stdout.metadata().unwrap().len();
    assert_eq!(written_bytes, bytes.len() as u64, "the file was not replaced by another one");
    assert_eq!(scratch.names(), ["link.rec", "old.rec", "stdout.rec", "strace.txt"]);
}

/// A failed read waits for no device, however long it took; calls that are not imported are named.
#[test]
fn strace_calls_are_imported_or_counted_as_not_imported() {
    let scratch = Scratch::new("recordings-strace");
    scratch.file(
        "s.txt",
        "1 5.000000 openat(AT_FDCWD, \"/d/\\303\\244\", O_RDONLY) = 3 <0.000005>\n\
         1 5.100000 read(3, 0x7f, 4096) = -1 EINTR (Interrupted system call) <2.000000>\n\
         1 8.000000 copy_file_range(3, [0], 4</o>, NULL, 4096, 0) = 4096 <0.000300>\n\
         1 8.100000 read(3</d/\\303\\244>(deleted), \"\"..., 10) = 10 <0.000005>\n\
         1 8.200000 write(4</o>, \"\"..., 10) = 10 <0.000005>\n\
         1 8.300000 io_uring_enter(5, 1, 1, 0, NULL, 8) = 1 <0.000005>\n",
    );
    let imported = scratch.run("recording import s.txt -o s.rec");
    imported.has_ended(0, "import");
    imported.says(&["3 reads", "not imported", "1 write", "1 io_uring_enter"], "import");
    let explained = scratch.run("explain s.rec --json");
    let document: serde_json::Value = serde_json::from_str(&explained.stdout).unwrap();
    assert!(explained.stdout.contains("/d/\u{e4}"), "{}", explained.stdout);
    assert_eq!(document["shape"]["reads"], 3);
    let waited = document["shape"]["threads"][0]["waited_seconds"].as_f64().unwrap();
    assert!(waited < 0.001, "the interrupted read is no wait: {waited}");
    scratch.file("w.txt", "1 5.0 write(4</o>, \"\"..., 10) = 10 <0.000005>\n");
    scratch.refused("recording import w.txt -o w.rec", &["no read of a file", "1 write"]);
}

/// `examples/msr.csv` has 113 lines with `Write` and 287 with `Read`. Traces of requests have no
/// waits.
#[test]
fn imported_requests_name_the_writes_left_out_and_the_missing_waits() {
    let scratch = Scratch::new("requests");
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/msr.csv");
    let lines = std::fs::read_to_string(trace).unwrap();
    let of_kind = |kind: &str| -> String {
        lines.split_inclusive('\n').filter(|line| line.contains(kind)).collect()
    };
    let writes = of_kind(",Write,");
    assert_eq!((writes.lines().count(), of_kind(",Read,").lines().count()), (113, 287));
    scratch.file("both.csv", &lines);
    scratch.file("writes.csv", writes);
    for (name, reads) in [("both", 287), ("writes", 0)] {
        let ran = scratch.run(&format!("recording import {name}.csv -o {name}.rec"));
        ran.has_ended(0, name);
        ran.says(&[&format!("{reads} reads"), "not imported: 113 writes"], name);
        let explained = scratch.run(&format!("explain {name}.rec"));
        explained.has_ended(0, name);
        for wrong in ["as root", "no fault", "arrived in time"] {
            assert!(!explained.stdout.contains(wrong), "{name}: {}", explained.stdout);
        }
    }
    assert!(scratch.run("explain both.rec").stdout.contains("it has no durations"));
    assert!(scratch.run("explain writes.rec").stdout.contains("the trace has no reads"));
}

/// Empty inputs of each format: each command names the file, the missing part, and the remedy.
#[test]
fn input_without_requests_is_refused_with_a_remedy() {
    let scratch = Scratch::new("without-requests");
    scratch.file("empty", "");
    scratch.file("iolog", "fio version 2 iolog\n");
    scratch.file("blkparse", "  8,0    1        1     0.000000000  1234  P   N [dd]\n");
    let missing = "there is no request in the trace";
    for name in ["iolog", "blkparse"] {
        let words = [name, missing, "record it again"];
        scratch.refused(&format!("run {name}"), &words);
        scratch.refused(&format!("recording import {name} -o out.rec"), &words);
    }
    let formats =
        ["iolog", "blkparse", "blktrace", "msr", "mqsim", "disksim", "spc", "alibaba", "tencent"];
    for format in formats {
        scratch.refused(&format!("run empty --trace {format}"), &["empty", missing, "--trace"]);
    }
    assert!(!scratch.path("out.rec").exists());
    scratch.refused("run empty", &["empty", "no job", "write `[JOBNAME]`"]);
    scratch.refused("recording import empty -o out.rec", &["empty", "strace", "alibaba"]);
    scratch.refused("replay empty", &["empty", "no event", "arrive"]);
    scratch.refused("explain empty", &["empty", "no recording", "readpath recording import"]);
    // The text of strace is an input of `recording import` alone.
    scratch.file("strace.txt", strace());
    for command in ["run strace.txt", "explain strace.txt"] {
        scratch.refused(command, &["strace.txt", "`readpath recording import`"]);
    }
    scratch.file("true.txt", "9 100.000000 close(3) = 0 <0.000010>\n");
    let import = "recording import true.txt -o out.rec";
    scratch.refused(import, &["true.txt", "no read of a file", "record a program that reads"]);
}

/// An anonymized recording names no program that read or wrote next to the recorded one. Names of
/// kernel threads stay: a finding about writers needs them.
#[test]
fn anonymized_recording_names_no_other_program() {
    let scratch = Scratch::new("recordings-anonymous");
    let mut writer = begin_recording();
    let name = "sda".to_owned();
    writer.put(Record::Device(DeviceRecord { name, ..DeviceRecord::default() })).unwrap();
    for (task, name) in [(71, "payroll"), (72, "kworker/u8:1"), (73, "loopback")] {
        let others = OthersRequests {
            at_ns: 8000,
            task,
            name: name.to_owned(),
            ..OthersRequests::default()
        };
        writer.put(Record::OthersRequests(others)).unwrap();
    }
    scratch.file("r.rec", end_recording(writer, 9000));
    scratch.run("recording anonymize r.rec -o nameless.rec").has_ended(0, "anonymize");
    let shown = scratch.run("recording show nameless.rec").stdout;
    assert!(shown.contains("program-71") && shown.contains("kworker/u8:1"), "{shown}");
    assert!(!shown.contains("payroll") && !shown.contains("loopback"), "{shown}");
}
