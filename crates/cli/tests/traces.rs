//! Traces through `run` and `cachesim`: packed in parts, of one name, from pipes, and with the
//! options of a job.

mod support;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use support::{Ran, Scratch};

/// Runs a command of the shell in the scratch folder. `$READPATH` is the command under test.
fn shell(scratch: &Scratch, script: &str) -> Ran {
    let mut command = Command::new("bash");
    command.args(["-c", script]).env("READPATH", support::READPATH).current_dir(&scratch.0);
    Ran::of(command.stdin(Stdio::null()).output().unwrap())
}

/// Syncs and trims of an iolog are no requests of the replay, which says so.
#[test]
fn left_out_syncs_and_trims_are_noted() {
    let scratch = Scratch::new("left-out");
    let head = "fio version 3 iolog\n0 f add\n0 f open\n0 f write 0 4096\n";
    scratch.file("plain.log", format!("{head}40 f close\n"));
    scratch.file(
        "synced.log",
        format!("{head}10 f sync 0 0\n20 f datasync 0 0\n30 f trim 0 4096\n40 f close\n"),
    );
    let note = |name: &str| {
        scratch.run(&format!("run {name} --on ssd --json")).results()[0]["note"].clone()
    };
    assert!(!note("plain.log").to_string().contains("left out"));
    let synced = note("synced.log").to_string();
    assert!(synced.contains("left out of the trace: syncs (2) and trims (1)"), "{synced}");
}

/// The file is sparse, and nothing of it is read: requests of the kernel have sizes of 32 bits.
#[test]
fn trace_with_a_request_of_4_gib_is_refused_on_the_kernel() {
    let scratch = Scratch::new("large-request");
    let data = std::fs::File::create(scratch.path("data")).unwrap();
    data.set_len(5 << 30).unwrap();
    let head = "fio version 2 iolog\nf add\nf open\n";
    scratch.file("t.log", format!("{head}f read 0 4294967296\nf close\n"));
    let words = ["4294967296 bytes", "less than 4 GiB"];
    scratch.refused("run t.log --on kernel:data", &words);
}

/// Two files, packed one after the other. Programs that pack in parallel write them, and so does
/// `cat` of two packed files. zstd has frames without data too (RFC 8878, 3.1.2), here of 3 bytes.
/// xz pads its streams with zeros.
#[test]
fn packed_traces_of_several_parts_are_read_whole() {
    let scratch = Scratch::new("packed-parts");
    scratch.file("one", "0 0 0 8 1\n1 0 8 8 1\n");
    scratch.file("two", "2 0 16 8 1\n");
    scratch.file("none", "");
    let skipped = r"printf '\x50\x2a\x4d\x18\x03\0\0\0abc'";
    let cases = [
        ("t.trace.gz", "gzip", "gzip -c one; gzip -c none; gzip -c two".to_owned()),
        ("t.trace.zst", "zstd", "zstd -qc one; zstd -qc none; zstd -qc two".to_owned()),
        ("s.trace.zst", "zstd", format!("{skipped}; zstd -qc one; {skipped}; zstd -qc two")),
        ("t.trace.xz", "xz", "xz -c one; xz -c none; printf '\\0\\0\\0\\0'; xz -c two".to_owned()),
    ];
    for (name, program, script) in cases {
        if !support::has(program) {
            println!("skipped: {program} is not installed");
            continue;
        }
        shell(&scratch, &format!("({script}) > {name}")).has_ended(0, name);
        // `run` reads a stream, and `cachesim` the whole file.
        let ran = scratch.run(&format!("run {name} --on ssd --json"));
        ran.has_ended(0, name);
        assert_eq!(ran.results()[0]["bytes"], 3 * 4096, "{name}");
        let cached = scratch.run(&format!("cachesim {name} --sizes 100% --eviction lru --json"));
        cached.has_ended(0, name);
        assert_eq!(cached.results()[0]["references"], 3, "{name}");
        // The last part is cut off.
        let whole = std::fs::read(scratch.path(name)).unwrap();
        scratch.file(name, &whole[..whole.len() - 6]);
        scratch.refused(&format!("cachesim {name}"), &[name, "is cut off"]);
    }
}

/// A packed file of 0 bytes, or of the padding of xz alone, has no trace. `xz -d`, `gzip -d` and
/// `zstd -d` refuse it too.
#[test]
fn packed_trace_without_any_part_is_refused() {
    let scratch = Scratch::new("packed-empty");
    for (name, bytes) in [
        ("e.trace.xz", vec![]),
        ("z.trace.xz", vec![0; 8]),
        ("e.trace.gz", vec![]),
        ("e.trace.zst", vec![]),
    ] {
        scratch.file(name, bytes);
        for command in ["cachesim", "run --on ssd"] {
            scratch.refused(&format!("{command} {name}"), &[name, "is no .", "is cut off"]);
        }
    }
}

/// By hand: ten blocks in a loop miss always under lru with one or two pages. Each size is a row,
/// also a size that was given before, and traces of one name have the names of their paths.
#[test]
fn repeated_sizes_and_names_of_traces_are_rows_of_their_own() {
    let scratch = Scratch::new("repeated-rows");
    let loop_of = |blocks: u32| -> String {
        (0..blocks).cycle().take(100).map(|block| format!("{block}\n")).collect()
    };
    for (folder, blocks) in [("a", 10), ("b", 20)] {
        std::fs::create_dir(scratch.path(folder)).unwrap();
        scratch.file(&format!("{folder}/usr.trace"), loop_of(blocks));
    }
    let options = "--eviction lru --picture p.html --html page.html";
    let ran = scratch.run(&format!("cachesim a/usr.trace --sizes 10%,10%,20% {options}"));
    ran.has_ended(0, "sizes");
    ran.says(&[], "sizes");
    assert!(ran.stdout.contains("best in 3 of 3 rows"), "{}", ran.stdout);

    let ran = scratch.run(&format!("cachesim a/usr.trace b/usr.trace --sizes 10% {options}"));
    ran.has_ended(0, "names");
    assert!(ran.stdout.contains("best in 2 of 2 rows"), "{}", ran.stdout);
    let names: BTreeSet<&str> =
        ran.stdout.lines().skip(3).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, BTreeSet::from(["a/usr.trace", "b/usr.trace"]));
    for page in ["p.html", "page.html"] {
        let text = std::fs::read_to_string(scratch.path(page)).unwrap();
        for caption in ["a/usr.trace: 100 references, 10", "b/usr.trace: 100 references, 20"] {
            assert!(text.contains(caption), "{page}: {caption}");
        }
    }
}

/// Four reads at 0, 0.5, 1 and 1.5 s. fio 3.33 makes three of them with `runtime=1`, ends then,
/// and needs 1.5 s for all. The first time is above 0, because fio skips a wait after a time of 0.
#[test]
fn replay_of_a_trace_honours_or_refuses_the_options_of_its_job() {
    let scratch = Scratch::new("trace-options");
    let times = [100_000, 600_000, 1_100_000, 1_600_000];
    let reads: String = times.map(|us| format!("{us} d read {} 4096\n", us / 100 * 512)).concat();
    scratch.file("t.log", format!("fio version 3 iolog\n100000 d add\n100000 d open\n{reads}"));
    let replayed = |options: &str, arguments: &str| {
        scratch.file("r.fio", format!("[r]\nread_iolog=t.log\nioengine=psync\n{options}"));
        let row = scratch.run(&format!("run {arguments} --on ssd --json")).results()[0].clone();
        let seconds = row["seconds"].as_f64().unwrap();
        (row["bytes"].as_u64().unwrap() / 4096, (seconds * 10.0).round() / 10.0)
    };
    assert_eq!(replayed("", "r.fio"), (4, 1.5));
    assert_eq!(replayed("runtime=1200ms\n", "r.fio").0, 3);
    assert_eq!(replayed("", "r.fio --runtime 1200ms").0, 3);
    assert_eq!(replayed("", "t.log --runtime 1200ms").0, 3);
    assert_eq!(replayed("bs=8k\nsize=8k\nrw=read\nnumjobs=1\nloops=1\n", "r.fio"), (4, 1.5));
    for (option, value) in [
        ("numjobs", "2"),
        ("loops", "2"),
        ("number_ios", "2"),
        ("ramp_time", "1"),
        ("thinktime", "300000"),
        ("rate", "4k"),
        ("rate_iops", "1"),
        ("rate_min", "4k"),
        ("max_latency", "1"),
        ("fsync", "1"),
        ("fdatasync", "1"),
        ("sync", "1"),
        ("sync", "dsync"),
        ("end_fsync", "1"),
        ("fsync_on_close", "1"),
        ("prio", "3"),
        ("prioclass", "1"),
        ("invalidate", "0"),
        ("fadvise_hint", "random"),
    ] {
        scratch.file("x.fio", format!("[x]\nread_iolog=t.log\n{option}={value}\n"));
        scratch.refused("run x.fio --on ssd", &["x.fio", &format!("`{option}`"), "leave it out"]);
    }
    scratch.refused("run t.log --on ssd --runtime soon", &["--runtime soon"]);
}

/// The start of a replay is delayed, as fio's is.
#[test]
fn replay_of_a_trace_starts_after_its_delay() {
    let scratch = Scratch::new("trace-delay");
    scratch.file("t.trace", "0 0 0 8 1\n1000 0 64 8 1\n");
    scratch.data("data", 1 << 20);
    scratch.file("r.fio", "[r]\nread_iolog=t.trace\nioengine=psync\nstartdelay=1\n");
    let begun = std::time::Instant::now();
    scratch.run("run r.fio --on file:data").has_ended(0, "delayed");
    assert!(begun.elapsed().as_secs_f64() >= 1.0);
}

/// `run` reads a trace twice and refuses a pipe. `cachesim`, `recording import` and a list of
/// `replay` are read once.
#[test]
fn traces_from_pipes_are_read_or_refused() {
    let scratch = Scratch::new("trace-pipes");
    scratch.file("t.trace", "0 0 0 8 1\n1000 0 64 8 1\n");
    scratch.file("p.fio", "[p]\nread_iolog=pipe\n");
    let list = "at_ms=0 event=arrive request=1 process=1 op=read start=0 sectors=8\n\
                at_ms=1 event=dispatch request=1\nat_ms=9 event=complete request=1\n";
    scratch.file("list.txt", list);
    shell(&scratch, "mkfifo pipe").has_ended(0, "mkfifo");
    let twice = "a trace is read twice; name a file";
    for script in [
        "$READPATH run <(cat t.trace) --trace mqsim --on ssd",
        "$READPATH run <(cat t.trace) --on ssd",
        "cat t.trace | $READPATH run /dev/stdin --trace mqsim --on ssd",
        "$READPATH run p.fio --on ssd",
    ] {
        let ran = shell(&scratch, script);
        ran.has_ended(2, script);
        ran.says(&[twice], script);
    }
    for script in [
        "$READPATH run /dev/stdin --trace mqsim --on ssd < t.trace",
        "cat t.trace | $READPATH cachesim /dev/stdin --format mqsim --eviction lru",
        "$READPATH recording import <(cat t.trace) -o t.rec",
    ] {
        shell(&scratch, script).has_ended(0, script);
    }
    // A list of events is equal from a file and from a pipe.
    let from_file = shell(&scratch, "$READPATH replay list.txt");
    from_file.has_ended(0, "a list");
    let from_pipe = shell(&scratch, "cat list.txt | $READPATH replay /dev/stdin");
    assert_eq!(from_pipe.stdout, from_file.stdout);
    assert_eq!(from_pipe.stderr.replace("/dev/stdin", "list.txt"), from_file.stderr);
    let recording = shell(&scratch, "cat t.rec | $READPATH replay /dev/stdin --on ssd");
    recording.has_ended(2, "a recording");
    recording.says(&["a recording is read twice"], "a recording");
}

/// A trace of reads has none left without its reads. A trace without requests has another remedy.
#[test]
fn skipping_all_requests_of_a_trace_names_the_option() {
    let scratch = Scratch::new("skips-all");
    let start = "fio version 3 iolog\n0 a add\n0 a open\n";
    scratch.file("r.log", format!("{start}0 a read 0 4096\n20 a close\n"));
    scratch.file("empty.log", start);
    let job = |log| format!("[j]\nread_iolog={log}\nreplay_skip=read\n");
    scratch.file("r.fio", job("r.log"));
    scratch.file("empty.fio", job("empty.log"));
    scratch.refused("run r.fio --on nvme", &["replay_skip leaves no request of r.log"]);
    scratch.refused("run empty.fio --on nvme", &["there is no request in the trace"]);
}

/// A write on real storage is not widened, as it would overwrite the bytes next to it. Through the
/// cache, 300 bytes can be written at byte 100.
#[test]
fn direct_writes_of_parts_of_blocks_are_refused_on_real_storage() {
    let scratch = Scratch::new("part-writes");
    let lines = "0 a add\n0 a open\n0 a write 100 300\n10 a read 5000 700\n20 a close\n";
    scratch.file("un.log", format!("fio version 3 iolog\n{lines}"));
    let job = "[j]\nread_iolog=un.log\n";
    scratch.file("cached.fio", format!("{job}ioengine=psync\n"));
    scratch.data("data", 1 << 20);
    let words = ["un.log: its writes are no whole blocks of", "ioengine=psync"];
    for storage in ["file:data", "kernel:data"] {
        for depth in ["", "--closed 1"] {
            let command = format!("run un.log --overwrite --on {storage} {depth}");
            scratch.refused(&command, &words);
        }
        let ran = scratch.run(&format!("run cached.fio --overwrite --on {storage}"));
        ran.has_ended(0, storage);
    }
    scratch.run("run un.log --on nvme").has_ended(0, "a model");
}

/// The recording has 581 reads of at least one byte, in 20 of which the offset or the size is no
/// multiple of 512 bytes, the block of the modelled device.
#[test]
fn recording_of_cached_reads_is_replayed_in_whole_blocks() {
    let scratch = Scratch::new("widened");
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    std::fs::copy(format!("{examples}/one-at-a-time.rec"), scratch.path("r.rec")).unwrap();
    scratch.data("data", 8 << 20);
    let shown = scratch.run("recording show r.rec").stdout;
    let reads: Vec<[u64; 2]> = shown
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter_map(|line| {
            let read = line.get("read")?;
            Some([read["offset"].as_u64()?, read["outcome"]["bytes"].as_u64()?])
        })
        .filter(|[_, bytes]| *bytes > 0)
        .collect();
    let widened = reads.iter().filter(|parts| parts.iter().any(|part| part % 512 != 0)).count();
    assert_eq!((reads.len(), widened), (581, 20));
    let sectors = |[offset, bytes]: &[u64; 2]| (offset + bytes).div_ceil(512) - offset / 512;
    let whole_sectors: u64 = reads.iter().map(sectors).sum();
    scratch.run("recording export r.rec --as iolog -o e.log").has_ended(0, "export");
    let mut widening_notes = Vec::new();
    for (trace, storage, depth) in [
        ("r.rec", "nvme", "--closed 1"),
        ("e.log", "nvme", "--closed 1"),
        ("r.rec", "file:data", "--closed 1"),
        ("r.rec", "file:data", "--closed 4"),
        ("e.log", "file:data", ""),
        ("r.rec", "kernel:data", "--closed 1"),
    ] {
        let what = format!("run {trace} --on {storage} {depth} --json");
        let ran = scratch.run(&what);
        ran.has_ended(0, &what);
        let row = &ran.results()[0];
        assert_eq!(row["errors"], 0, "{what}");
        if storage == "nvme" {
            // The exported trace has the requested bytes, also beyond the end of a file.
            assert!(trace == "e.log" || row["bytes"] == whole_sectors * 512, "{what}: {row}");
            let note = row["note"].as_str().unwrap();
            assert!(note.contains("20 of 581 requests widened"), "{what}: {note}");
        } else {
            let notes = row["note"].as_str().unwrap_or_default().split("; ");
            let widening = notes.filter(|note| note.contains("widened")).map(str::to_owned);
            widening_notes.push((row["bytes"].clone(), widening.collect::<Vec<_>>()));
        }
    }
    // The library reads the same bytes as the kernel, one or more at a time.
    let [one, four, exported, kernel] = &widening_notes[..] else { panic!("four real rows") };
    assert_eq!([one, four], [kernel; 2]);
    assert_eq!(exported.1, kernel.1);
}

/// A recording of a file of 1,000,001 bytes, read in pieces of 128 KiB: the last piece has 82,497
/// bytes. Its whole blocks end behind the file, and the kernel's short answer is the whole read.
#[test]
fn last_read_of_an_odd_length_stays_at_its_offset() {
    let scratch = Scratch::new("odd-length");
    let bytes: u64 = 1_000_001;
    scratch.data("data", bytes as usize);
    let mut pieces = "fio version 2 iolog\nd add\nd open\n".to_owned();
    for offset in (0..bytes).step_by(128 << 10) {
        pieces += &format!("d read {offset} {}\n", (bytes - offset).min(128 << 10));
    }
    assert!(pieces.ends_with("d read 917504 82497\n"));
    scratch.file("pieces.log", pieces + "d close\n");
    let whole = format!("fio version 2 iolog\nd add\nd open\nd read 0 {bytes}\nd close\n");
    scratch.file("whole.log", whole);
    for (trace, storage, depth) in [
        ("pieces.log", "kernel", 1),
        ("whole.log", "kernel", 1),
        ("pieces.log", "file", 1),
        ("pieces.log", "file", 4),
    ] {
        let on = format!("--on {storage}:data --closed {depth}");
        let ran = scratch.run(&format!("run {trace} {on} --json"));
        ran.has_ended(0, trace);
        let row = &ran.results()[0];
        assert_eq!((&row["errors"], &row["bytes"]), (&0.into(), &bytes.into()), "{trace}: {row}");
        let note = row["note"].as_str().unwrap_or_default();
        assert!(!note.contains("wrap to its start"), "{trace}: {note}");
    }
}

/// Two processors' requests, one every 20 µs, as one trace by time and one file after the other.
/// One of the second file is later than all before it, the others start with the last one.
#[test]
fn requests_with_earlier_times_are_noted() {
    let scratch = Scratch::new("time-order");
    let of_processor = |processor: u64| {
        (0..10).map(move |nth| {
            let us = 20 * (2 * nth + processor);
            (us, format!("0,R,{},4096,{us}\n", us * 4096))
        })
    };
    let mut requests: Vec<(u64, String)> = of_processor(0).chain(of_processor(1)).collect();
    let lines = |requests: &[(u64, String)]| -> String {
        requests.iter().map(|(_, line)| line.as_str()).collect()
    };
    scratch.file("joined.csv", lines(&requests));
    requests.sort();
    scratch.file("sorted.csv", lines(&requests));
    for command in
        ["run X --on ssd --json", "recording import X -o X.rec", "cachesim X --eviction lru --json"]
    {
        let [joined, sorted] = ["joined.csv", "sorted.csv"].map(|trace| {
            let ran = scratch.run(&command.replace('X', trace));
            ran.has_ended(0, command);
            ran.stdout + &ran.stderr
        });
        assert!(joined.contains("9 requests have earlier times"), "{joined}");
        assert!(!sorted.contains("earlier times"), "{sorted}");
    }
}
