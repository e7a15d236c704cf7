//! Bad input: each kind is refused with exit code 2 before a run starts. The message names the
//! place, the fault, and the remedy.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use support::{RANDOM, READPATH, Ran, Scratch, has, is_root};

#[test]
fn unknown_names_are_refused_with_the_valid_names() {
    let scratch = Scratch::new("names");
    scratch.file("j.fio", RANDOM);
    scratch.data("data", 4 << 20);
    scratch.refused("run j.fio --bogus", &["--bogus", "--help"]);
    scratch.refused("bogus", &["bogus", "--help"]);
    scratch.refused("run j.fio --on tape", &["tape", "hdd, smr, ssd, ssd520, nvme", "raid0"]);
    for url in ["https://host/object", "s3://bucket/object"] {
        let words = [url, "no client", "--on object", "readpath-remote"];
        scratch.refused(&format!("run j.fio --on {url}"), &words);
        scratch.refused(&format!("bench {url}"), &words);
    }
    scratch.refused("run j.fio --readahead magic", &["magic", "none", "window", "ondemand"]);
    scratch.refused("run j.fio --scheduler magic", &["magic", "noop", "deadline", "cfq"]);
    scratch
        .refused("run j.fio --eviction magic", &["eviction policy `magic`", "two-lists", "lirs"]);
    // The kernel uses none of readpath's policies.
    let words = ["--readahead has no effect on kernel:"];
    scratch.refused("run j.fio --on kernel:data --readahead magic", &words);
    let both = "run j.fio --on hdd --on kernel:data --readahead magic";
    scratch.refused(both, &["magic", "ondemand"]);
    scratch.refused("run j.fio --on file:data --scheduler magic", &["magic", "deadline"]);
    // The kernel page cache has no queue of our own.
    for (option, name) in [("--scheduler cfq", "scheduler"), ("--backend threads", "backend")] {
        let words = [&format!("option `{name}` has no effect"), "page cache `own`"];
        scratch.refused(&format!("run j.fio --on file:data {option}"), &words);
    }
    let words = ["option `readahead` has no effect with the page cache `none`"];
    scratch.refused("run j.fio --on file:data --page-cache none --readahead ondemand", &words);
    scratch.refused("run j.fio --on file:data --page-cache kernel --memory 1m", &["`memory`"]);
    scratch.refused("policies magic", &["magic", "ondemand", "deadline", "two-lists"]);
    scratch.refused("devices tape", &["tape", "hdd, smr, ssd"]);
    scratch.refused("reproduce Q", &["`Q`", "there are: A"]);
    scratch.refused("emulate tape --at x", &["tape", "hdd, smr, ssd"]);
    scratch.refused("worker bench", &["worker bench", "`readpath bench`"]);
    scratch.refused("worker idle", &["idle", "touch, bench, replay"]);
}

/// An option that no row would use. With a second storage, which uses it, the run is accepted.
#[test]
fn options_without_a_meaning_are_refused() {
    let scratch = Scratch::new("unused");
    scratch.file("j.fio", RANDOM);
    scratch.file("t.trace", "0 0 0 8 1\n");
    scratch.data("data", 4 << 20);
    for (storage, option) in [
        ("hdd", "--backend threads"),
        ("hdd", "--page-cache none"),
        ("hdd", "--create"),
        ("kernel:data", "--backend threads"),
        ("kernel:data", "--page-cache own"),
        ("kernel:data", "--readahead none"),
        ("kernel:data", "--scheduler noop"),
        ("kernel:data", "--eviction lirs"),
        ("kernel:data", "--memory 1m"),
    ] {
        let name = option.split(' ').next().unwrap();
        scratch.refused(&format!("run j.fio --on {storage} {option}"), &[name, "leave it out"]);
    }
    for (option, value) in [
        ("--readahead", "none,adaptive"),
        ("--memory", "1m"),
        ("--eviction", "lirs"),
        ("--page-cache", "own"),
    ] {
        for storage in ["hdd", "file:data"] {
            let arguments = format!("run t.trace --on {storage} {option} {value}");
            scratch.refused(&arguments, &[option, "direct", "leave it out"]);
        }
    }
    scratch.file("direct.fio", format!("{RANDOM}direct=1\n"));
    scratch.file("mapped.fio", format!("{RANDOM}ioengine=mmap\n"));
    for (arguments, option) in [
        ("t.trace --on file:data --scheduler noop,deadline", "--scheduler"),
        ("direct.fio --on file:data --on kernel:data --scheduler noop,deadline", "--scheduler"),
        ("mapped.fio --on file:data --scheduler noop,deadline", "--scheduler"),
        ("direct.fio --on hdd --on file:data --readahead none,adaptive", "--readahead"),
        ("direct.fio --on file:data --page-cache own", "--page-cache"),
        ("direct.fio --on hdd --eviction lirs", "--eviction"),
    ] {
        scratch.refused(&format!("run {arguments}"), &[option, "direct", "leave it out"]);
    }
    let accepted = scratch.run("run mapped.fio --on file:data --readahead none");
    accepted.has_ended(0, "a mapping has readahead");
    let accepted = scratch.run("run j.fio --on hdd --on kernel:data --readahead none --memory 1m");
    accepted.has_ended(0, "the modelled device has readahead");
    scratch.run("run t.trace --on hdd --scheduler noop").has_ended(0, "a trace has a scheduler");
}

#[test]
fn invalid_parameters_are_refused_with_the_accepted_ones() {
    let scratch = Scratch::new("parameters");
    scratch.file("j.fio", RANDOM);
    scratch.refused("run j.fio --scheduler deadline,fifo=1", &["`fifo`", "fifo_batch"]);
    scratch.refused("run j.fio --scheduler deadline,fifo_batch=x", &["fifo_batch=x", "1 to"]);
    scratch.refused("run j.fio --readahead none,window=4", &["`none`", "window"]);
    scratch.refused("run j.fio --on ssd,spin=3", &["`spin`", "it takes: "]);
    scratch.refused("run j.fio --on hdd,drive=floppy", &["floppy", "scsi2002"]);
    scratch.refused("run j.fio --on raid0:0xhdd", &["raid0:0xhdd"]);
    scratch.refused("run j.fio --on raid0:4xtape", &["tape"]);
    scratch.refused("run j.fio --on ,", &["NAME,key=value"]);
    scratch.refused("run j.fio --on file:", &["names no file", "file:PATH"]);
    let words = &["`--on file:j.fio,hdd`", "a comma is part of the path", "--on of its own"];
    scratch.refused("run j.fio --on file:j.fio,hdd", words);
    scratch.refused("run j.fio --memory 10x", &["--memory 10x", "256MiB"]);
    scratch.refused("run j.fio --seed x", &["--seed", "x"]);
    scratch.refused("reproduce A --seed -1", &["-1"]);
}

#[test]
fn impossible_memory_sizes_are_refused() {
    let scratch = Scratch::new("memory");
    scratch.file("j.fio", RANDOM);
    scratch.refused("run j.fio --memory 32KiB", &["32KiB", "`j`", "j.fio", "65536", "bs"]);
    scratch.refused("run j.fio --memory 0", &["--memory 0", "at least 4096"]);
    // No machine has the 240 GiB that the bookkeeping of 15 TiB takes.
    scratch.refused("run j.fio --memory 15TiB", &["--memory 15TiB", "at most"]);
    // A block needs no memory of the cache if it bypasses the cache or is read page by page.
    for way in ["direct=1", "ioengine=mmap"] {
        scratch.file("way.fio", format!("{RANDOM}{way}\n"));
        scratch.run("run way.fio --on ssd --memory 4KiB").has_ended(0, way);
    }
}

#[test]
fn invalid_job_files_are_refused_with_the_line_number() {
    let scratch = Scratch::new("jobs");
    std::fs::create_dir(scratch.path("folder")).unwrap();
    scratch.file("empty.fio", "");
    scratch.file("junk.fio", [0xff, 0xfe, 0, b'[', 0x80]);
    scratch.file("nul.fio", "[j]\nrw=read\0\nsize=1m\n");
    scratch.file("option.fio", "[j]\nrw=read\nsize=4m\nverifi=md5\n");
    scratch.file("refused.fio", "[j]\nrw=randtrim\nsize=4m\n");
    scratch.file("engine.fio", "[j]\nioengine=rdma\n");
    scratch.file("variable.fio", "[j]\nsize=${READPATH_TEST_NOT_SET}\n");
    scratch.file("long.fio", format!("[j]\nsize={}\n", "7".repeat(4 << 20)));
    scratch.file("escape.fio", "[j]\nname=\x1b[31mred\nsize=1k\nbs=64k\n");
    scratch.file("array.fio", RANDOM);
    scratch.file("value.fio", "[j]\nrw=read\nsize=4q\n");
    scratch.file("no-size.fio", "[j]\nrw=read\n");
    scratch.file("large-block.fio", "[j]\nrw=read\nsize=4k\nbs=64k\n");
    scratch.file("many.fio", "[j]\nrw=read\nsize=4k\nnumjobs=1000000\n");
    scratch.refused("run", &["JOB.fio"]);
    scratch.refused("run missing.fio", &["missing.fio", "No such file", "check the path"]);
    scratch.refused("run folder", &["folder", "directory", "name a job file"]);
    scratch.refused("run empty.fio", &["empty.fio", "no job", "rw=read"]);
    scratch.refused("run junk.fio", &["junk.fio", "is not text", "fio's format"]);
    scratch.refused("run nul.fio", &["nul.fio", "line 2"]);
    scratch.refused("run option.fio", &["option.fio", "line 4", "`verifi`", "`verify` meant"]);
    scratch.refused("run refused.fio", &["refused.fio", "line 2", "discards"]);
    scratch.refused("run engine.fio", &["engine.fio", "line 2", "ioengine=rdma", "network"]);
    scratch.refused("run variable.fio", &["variable.fio", "READPATH_TEST_NOT_SET", "set "]);
    let long = scratch.run("run long.fio");
    long.has_ended(2, "a line of 4 MiB");
    assert!(long.stderr.len() < 1000, "{} letters", long.stderr.len());
    let escaped = scratch.run("run escape.fio");
    escaped.has_ended(2, "a name that commands a terminal");
    assert!(!escaped.stderr.contains('\x1b'), "{}", escaped.stderr);
    scratch.refused("run array.fio --on array:65536xhdd", &["array", "1024 at most"]);
    scratch.refused("run value.fio", &["value.fio", "line 3", "4q"]);
    scratch.refused("run no-size.fio --on file:none --create", &["no-size.fio", "`j`", "size="]);
    scratch.refused("run large-block.fio", &["large-block.fio", "65536", "4096", "bs"]);
    scratch.refused("run many.fio", &["many.fio", "1000000", "numjobs"]);
}

/// Files of unknown length, or with a length that is not backed by data.
#[test]
fn endless_and_oversized_input_files_are_refused() {
    let scratch = Scratch::new("endless");
    scratch.file("j.fio", RANDOM);
    scratch.file("around.fio", "include /dev/zero\n");
    std::os::unix::fs::symlink("/dev/zero", scratch.path("zero.diskspecs")).unwrap();
    let sparse = std::fs::File::create(scratch.path("sparse.fio")).unwrap();
    // Every file system that supports holes takes a sparse file of this size.
    sparse.set_len(1 << 40).unwrap();
    const MOST: &[&str] = &["has more than 16777216 bytes", "name a shorter one"];
    scratch.refused("run /dev/zero", MOST);
    scratch.refused("run sparse.fio", MOST);
    scratch.refused("run around.fio", &["around.fio", "line 1", "more than 16777216 bytes"]);
    scratch.refused("run j.fio --on hdd,toml=/dev/zero", MOST);
    scratch.refused("run j.fio --on hdd,disksim=zero.diskspecs", MOST);
    scratch.refused("explain /dev/zero", &["this is no recording"]);
    scratch.refused("recording import /dev/zero -o out", &["/dev/zero"]);
    assert!(!scratch.path("out").exists());
}

#[test]
fn unsuitable_storage_for_a_job_is_refused() {
    let scratch = Scratch::new("storage");
    scratch.file("j.fio", RANDOM);
    scratch.file("huge.fio", "[j]\nrw=randread\nbs=64k\nsize=100t\nio_size=1m\n");
    scratch.data("small", 4_190_000);
    scratch.file("empty", "");
    std::fs::create_dir(scratch.path("folder")).unwrap();
    for way in ["file", "kernel"] {
        let refused =
            |path, words: &[&str]| scratch.refused(&format!("run j.fio --on {way}:{path}"), words);
        refused("small", &["j.fio", "4194304", "4190000", "`size`"]);
        refused("empty", &["empty: is empty"]);
        refused("folder", &["folder: is a directory", "name a file"]);
        refused("missing", &["missing: there is no such file", "check the path"]);
        refused("missing/below", &["missing/below"]);
        refused("/dev/null", &["/dev/null", "neither a regular file nor a block device"]);
    }
    scratch.refused("run huge.fio --on hdd", &["larger than the device", "smaller size"]);
    scratch
        .refused("run j.fio --on file:folder/new/x --create", &["folder/new/x", "make its folder"]);
}

#[test]
fn invalid_later_row_stops_the_command_before_any_run() {
    let scratch = Scratch::new("later");
    scratch.file("j.fio", RANDOM);
    scratch.refused("run j.fio --on ssd --on file:missing", &["missing"]);
    scratch.refused("run j.fio --on ssd,hdd,tape", &["tape"]);
    scratch.refused("run j.fio --scheduler noop,magic", &["magic"]);
    // A comma belongs to the name of a new file, also if the part before it exists.
    scratch.data("run1", 1);
    let created = scratch.run("run j.fio --on file:run1,v2.bin --create");
    created.has_ended(0, "a name with a comma");
    scratch.refused("run j.fio --on file:run1,ssd --create", &["an --on of its own"]);
    std::fs::remove_file(scratch.path("run1")).unwrap();
    // No file is created for the earlier row either.
    scratch.refused("run j.fio --on file:new,tape --on tape --create", &["tape"]);
    assert_eq!(scratch.names(), ["j.fio"]);
}

#[test]
fn invalid_load_files_are_refused_with_line_and_key() {
    const LOAD: &str = "[[load]]\nname = 'l'\nmapping = '24m'\nmemory = '16m'\n\
                        pattern = 'random'\nsweeps = 2\n";
    let scratch = Scratch::new("loads");
    scratch.file("l.toml", LOAD);
    scratch.file("j.fio", RANDOM);
    scratch.file("empty.toml", "");
    scratch.file("junk.toml", [0xff, 0xfe, 0]);
    scratch.file("job.toml", RANDOM);
    scratch.file("key.toml", format!("{LOAD}stride = 4\n"));
    scratch.file("value.toml", LOAD.replace("random", "psychic"));
    scratch.file("room.toml", format!("{LOAD}swap = '4m'\n"));
    scratch.refused("run missing.toml", &["missing.toml", "No such file"]);
    scratch.refused("run empty.toml", &["empty.toml", "no load", "[[load]]"]);
    scratch.refused("run junk.toml", &["junk.toml", "is not text", "TOML"]);
    scratch.refused("run job.toml", &["job.toml:2"]);
    scratch.refused("run key.toml", &["key.toml:7: `stride`", "name, mapping, memory, swap"]);
    scratch.refused("run value.toml", &["value.toml:5: `pattern`", "sequential, random"]);
    scratch.refused("run room.toml", &["room.toml:7: `swap`", "4194304 bytes more swap"]);
    scratch.refused("run l.toml --memory 5000", &["--memory 5000", "`l`", "whole pages"]);
    scratch.refused("run l.toml --memory 5x", &["--memory 5x", "256MiB"]);
    let classic = "run l.toml --swapin hits --scheduler noop --log x";
    scratch.refused(classic, &["`noop`", "`hits`", "keeps a log"]);
    scratch.refused("run l.toml --on kernel:. --log x", &["--log", "kernel:.", "leave out"]);
    scratch.refused("run l.toml --on region:. --log x", &["--log", "region:.", "modelled"]);
    scratch.refused("run l.toml --log l.toml", &["l.toml", "name another file"]);
    scratch.refused("run l.toml --on kernel:. --create", &["--create", "leave it out"]);
    scratch.refused("run l.toml --readahead none", &["--readahead", "l.toml", "leave it out"]);
    for option in [
        "--runs 3",
        "--runtime 1",
        "--backend aio",
        "--page-cache own",
        "--trace iolog",
        "--speed 2",
        "--closed 4",
        "--output-format fio",
    ] {
        let name = option.split(' ').next().unwrap();
        scratch.refused(&format!("run l.toml {option}"), &[name, "l.toml", "leave it out"]);
    }
    let [json, as_json] = ["--json", "--output-format json"]
        .map(|option| scratch.run(&format!("run l.toml --on ssd {option}")).results());
    assert_eq!((as_json.len(), &as_json[0]["job"]), (1, &json[0]["job"]));
    scratch.refused("run j.fio --swapin hits", &["--swapin", "j.fio", "leave it out"]);
    // The kernel's rows and readpath's rows have different policies.
    let on_kernel = |policy| format!("run l.toml --on kernel:. --swapin {policy}");
    scratch.refused(&on_kernel("hits"), &["hits", "a modelled device", "--on names none"]);
    scratch.refused(&on_kernel("kernel,size=3"), &["`size`", "page_cluster"]);
    scratch.refused(&on_kernel("kernel,page_cluster=99"), &["page_cluster=99", "0 to 31"]);
    scratch.refused("run l.toml --on hdd --swapin kernel", &["kernel:PATH", "--on names none"]);
    scratch.refused("run l.toml --on ssd --swapin magic", &["magic", "none, cluster, hits, vma"]);
    scratch.refused("run l.toml --on ssd --swapin hits,size=3", &["`size`", "page_cluster"]);
    scratch.refused("run l.toml --on ssd --scheduler magic", &["magic", "noop", "deadline"]);
    scratch.refused("run l.toml --on tape", &["tape", "hdd, smr, ssd"]);
    // An existing file is overwritten only with `--overwrite`, and must be large enough.
    scratch.data("small", 1 << 20);
    scratch.refused("run l.toml --on kernel:small", &["small", "--overwrite", "a folder"]);
    scratch.refused("run l.toml --on kernel:small --overwrite", &["1048576", "25169920"]);
    scratch.refused("run l.toml --on kernel:missing --overwrite", &["missing", "check the path"]);
    scratch.refused("run l.toml --on kernel:/dev/null --overwrite", &["/dev/null", "no folder"]);
}

/// Each value is near the end of its integer, or its product with another one is.
#[test]
fn huge_values_are_refused_without_overflow() {
    let scratch = Scratch::new("huge");
    std::fs::create_dir(scratch.path("folder")).unwrap();
    scratch.data("data", 1 << 20);
    scratch.refused("bench folder --small --minutes 200000000000000000", &["--minutes"]);
    scratch.refused("bench folder --small --minutes 18446744073709551615", &["--minutes"]);
    let size = "devices measure folder --size 18446744073709551615 --seconds 1";
    scratch.refused(size, &["MiB free", "--size"]);
    assert_eq!(std::fs::read_dir(scratch.path("folder")).unwrap().count(), 0);
    let sparse = std::fs::File::create(scratch.path("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    let seed = "devices measure sparse --seconds 1 --json --seed 18446744073709551615";
    scratch.run(seed).has_ended(0, seed);
    let cells = "eval policies --smoke --cells /hdd-1/,direct-seq-64k --seeds 2 --seed 18446744073709551615";
    scratch.run(cells).has_ended(0, cells);
    let offset = |offset: u64| format!("[{offset}]\nrw=read\nsize=1m\noffset={offset}\n");
    scratch.file("last.fio", offset(u64::MAX));
    scratch.refused("run last.fio --on hdd", &["the device ends at byte"]);
    scratch.refused("run last.fio --on file:data", &["last.fio", "data has 1048576"]);
    scratch.file("two.fio", format!("{}{}", offset(0), offset(18_446_744_073_709_543_424)));
    for storage in ["hdd", "file:data", "kernel:data"] {
        let needed = if storage == "hdd" { "the device ends at byte" } else { "two.fio" };
        scratch.refused(&format!("run two.fio --on {storage}"), &[needed]);
    }
    let drive = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/src/hdd/drives/scsi2002.toml");
    let drive = std::fs::read_to_string(drive).unwrap();
    let with = |name: &str, changes: &[[&str; 2]]| {
        let changed = changes.iter().fold(drive.clone(), |text, [from, to]| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        });
        scratch.file(name, changed);
    };
    let cylinders = ["cylinders = { value = 50_600", "cylinders = { value = 100_000_000"];
    let tracks = [
        ["heads = { value = 2,", "heads = { value = 1024,"],
        ["value = 914", "value = 1_000_000"],
        ["value = 504", "value = 1_000_000"],
        ["sectors = { value = 71_687_370", "# "],
        cylinders,
    ];
    with("sectors.toml", &tracks);
    scratch.refused("devices show hdd,toml=sectors.toml", &["sectors.toml", "`heads`", "2^55"]);
    with("zones.toml", &[["zones = { value = 16,", "zones = { value = 10_000_000,"], cylinders]);
    scratch.refused("devices show hdd,toml=zones.toml", &["zones.toml", "`zones`", "65536"]);
}

/// Runs as a user without rights, since permission bits do not restrict root.
#[test]
fn files_without_permission_are_refused() {
    if !is_root() || !has("setpriv") {
        return println!("skipped: files_without_permission_are_refused needs root and setpriv");
    }
    // Every user can reach the temporary folder.
    let scratch = Scratch::under(&std::env::temp_dir(), "rights");
    std::fs::copy(READPATH, scratch.path("readpath")).unwrap();
    let readable = |path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    readable(scratch.0.clone(), 0o755);
    readable(scratch.path("readpath"), 0o755);
    readable(scratch.file("j.fio", RANDOM), 0o644);
    readable(scratch.file("secret.fio", RANDOM), 0o600);
    readable(scratch.file("w.fio", RANDOM.replace("randread", "write")), 0o644);
    readable(scratch.data("secret", 4 << 20), 0o600);
    readable(scratch.data("shown", 4 << 20), 0o644);
    let as_nobody = |arguments: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "./readpath"]);
        command.args(arguments.split_whitespace()).current_dir(&scratch.0);
        Ran::of(command.output().unwrap())
    };
    for (arguments, word) in [
        ("run secret.fio", "secret.fio"),
        ("run j.fio --on file:secret", "secret: permission refused"),
        ("run j.fio --on kernel:secret", "secret: permission refused"),
        ("run w.fio --on file:shown --overwrite", "shown: permission refused"),
        ("run j.fio --on file:new --create", "new: can't be created: Permission denied"),
    ] {
        let ran = as_nobody(arguments);
        ran.has_ended(2, arguments);
        assert_eq!(ran.stdout, "");
        ran.says(&[word], arguments);
    }
    // `--overwrite` requires no further right for a job that only reads.
    as_nobody("run j.fio --on file:shown --overwrite").has_ended(0, "a readable file");
    let conform = as_nobody("check-kernel --generate 5");
    conform.has_ended(3, "check-kernel without rights");
    conform.says(&["root"], "check-kernel without rights");
    assert_eq!(conform.stdout, "");
}

#[test]
fn invalid_read_list_is_refused_with_the_line_number() {
    let scratch = Scratch::new("lists");
    scratch.file("list", "0 4096\n# far\ntouch\n");
    scratch.file("advice", "advice quickly\n");
    scratch.refused("check-kernel --reads list", &["list: line 3", "touch OFFSET"]);
    scratch.refused("check-kernel --reads advice", &["line 1", "quickly", "sequential"]);
    scratch.refused("check-kernel --reads missing", &["missing", "No such file"]);
    scratch.refused("check-kernel --reads list --generate 5", &["--generate"]);
    scratch.refused("check-kernel --file missing --generate 5", &["missing"]);
}

/// A temporary file system without space ends the recording of `explain`. An empty recording is no
/// second error.
#[test]
fn explain_without_space_for_its_recording_has_one_error() {
    if !is_root() {
        return println!("skipped: mounts a file system, which needs root");
    }
    let scratch = Scratch::new("explain-full");
    std::fs::create_dir(scratch.path("full")).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=16k none full || exit 77; head -c 99k /dev/zero > full/all; \
         TMPDIR=$PWD/full exec {} explain -- true",
        READPATH
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).current_dir(&scratch.0);
    match command.output() {
        Ok(output) if output.status.code() != Some(77) => {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(text.contains("No space left on device"), "{text}");
            assert!(!text.contains("no recording"), "{text}");
        }
        refused => println!("skipped: no file system can be mounted: {refused:?}"),
    }
}
