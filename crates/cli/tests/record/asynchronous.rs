//! Reads of AIO and io_uring, made by fio: all of them are recorded like `pread`.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::preload::as_nobody;
use crate::support::{Ran, Scratch, has, is_root};
use crate::{PROGRAM, can_watch, of_kind, records_of};

/// Length of the file, and number of random reads of 4 KiB.
const FILE_BYTES: usize = 64 << 20;
const READS: u64 = 1024;

/// Number of runs until one has no lost event.
const RUNS_MAX: usize = 8;

/// Options of fio, and the recorded read method.
const WAYS: [(&str, &str); 10] = [
    ("--ioengine=psync --direct=1", "pread"),
    ("--ioengine=libaio --direct=1 --iodepth=1", "aio"),
    ("--ioengine=libaio --direct=0 --iodepth=1", "aio"),
    ("--ioengine=libaio --direct=1 --iodepth=16 --iodepth_batch_submit=4", "aio"),
    ("--ioengine=io_uring --direct=1 --iodepth=1", "uring"),
    ("--ioengine=io_uring --direct=0 --iodepth=1", "uring"),
    ("--ioengine=io_uring --direct=1 --iodepth=16 --fixedbufs", "uring"),
    ("--ioengine=io_uring --direct=0 --iodepth=16 --registerfiles", "uring"),
    ("--ioengine=io_uring --direct=0 --iodepth=16 --force_async=1", "uring"),
    ("--ioengine=io_uring --direct=0 --iodepth=16 --nonvectored=0", "uring"),
];

/// Command that records fio with these options.
fn recorder(scratch: &Scratch, options: &str) -> Command {
    let mut watch = scratch.command(["record", "-o", "reads.rec", "--", "fio", "--name=a"]);
    watch.args(["--filename=data", "--rw=randread", "--bs=4k", "--output=fio.txt"]);
    watch.arg(format!("--size={FILE_BYTES}")).arg(format!("--number_ios={READS}"));
    watch.args(options.split(' '));
    watch
}

/// Records fio with these options. Returns `None` if fio cannot run them, or if events were lost in
/// each run.
fn recorded(scratch: &Scratch, options: &str) -> Option<Value> {
    recorded_by(scratch, options, || Ran::of(recorder(scratch, options).output().unwrap()))
}

/// The same with runs by `run`.
fn recorded_by(scratch: &Scratch, options: &str, run: impl Fn() -> Ran) -> Option<Value> {
    for _ in 0..RUNS_MAX {
        let ran = run();
        if ran.code != Some(0) {
            println!("skipped: fio {options}: {}", ran.stderr.trim());
            return None;
        }
        assert!(!ran.stderr.contains("page cache"), "{options}: {}", ran.stderr);
        let explained = scratch.run("explain reads.rec --json");
        explained.has_ended(0, options);
        let explained: Value = serde_json::from_str(&explained.stdout).unwrap();
        if explained["lost"] == 0 {
            return Some(explained);
        }
    }
    println!("skipped: fio {options}: the kernel dropped events in each run");
    None
}

fn scratch(name: &str) -> Option<Scratch> {
    let scratch = Scratch::new(name);
    if !has("fio") {
        println!("skipped: no fio(1)");
        return None;
    }
    if !can_watch(&scratch) {
        return None;
    }
    scratch.data("data", FILE_BYTES);
    File::open(scratch.path("data")).unwrap().sync_all().unwrap();
    Some(scratch)
}

/// Each read is recorded with its bytes, and none is counted as unseen.
#[test]
fn reads_of_aio_and_io_uring_are_recorded_as_those_of_pread() {
    let Some(scratch) = scratch("watch-asynchronous") else { return };
    for (options, way) in WAYS {
        let Some(explained) = recorded(&scratch, options) else { continue };
        let reads = all_reads(&scratch, options, way, &explained);
        // Random offsets: few are read twice.
        let places: std::collections::BTreeSet<u64> =
            reads.iter().filter_map(|read| read["offset"].as_u64()).collect();
        assert!(places.len() as u64 > READS * 9 / 10, "{options}: {} places", places.len());
        assert!(places.iter().all(|place| place % 4096 == 0 && *place < FILE_BYTES as u64));
        if options.contains("iodepth=1 ") || options.ends_with("iodepth=1") {
            let waited: u64 = reads.iter().filter_map(|read| read["waited_ns"].as_u64()).sum();
            assert!(waited > 0, "{options}: one read at a time is waited for");
        }
    }
}

/// A kernel thread submits the reads, and fio polls for them. All read offsets differ. At 1,000
/// reads a second most of them follow the first list of the kernel thread.
#[test]
fn data_that_a_kernel_thread_of_io_uring_reads_is_fetched() {
    let Some(scratch) = scratch("watch-sqpoll") else { return };
    for (is_direct, options) in [
        (true, "--ioengine=io_uring --direct=1 --sqthread_poll=1"),
        (false, "--ioengine=io_uring --direct=0 --sqthread_poll=1 --rate_iops=1000"),
    ] {
        let Some(explained) = recorded(&scratch, options) else { continue };
        all_reads(&scratch, options, "uring", &explained);
        let fetched = explained["shape"]["fetched_bytes"].as_u64().unwrap();
        let expected = if is_direct { READS * 4096 } else { READS * 4096 / 2 };
        assert!(fetched >= expected, "{options}: {fetched} bytes, {explained}");
    }
}

/// Returns the reads of `data` in the recording, after a check that all of fio's are there.
fn all_reads(scratch: &Scratch, options: &str, way: &str, explained: &Value) -> Vec<Value> {
    let path = scratch.path("data");
    let shown = scratch.run("recording show reads.rec").stdout;
    let records = || shown.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let is_data = |record: &Value| record["file"]["path"] == path.to_str().unwrap();
    let file = records().find(is_data).expect("the file is named")["file"]["file"].clone();
    let reads: Vec<Value> = records()
        .filter_map(|record| record.get("read").cloned())
        .filter(|read| read["file"] == file && read["way"] == way)
        .collect();
    println!("{options}: {} reads, {}", reads.len(), explained["waited_seconds"]);
    let bytes: u64 = reads.iter().filter_map(|read| read["outcome"]["bytes"].as_u64()).sum();
    assert_eq!((reads.len() as u64, bytes), (READS, READS * 4096), "{options}: {explained}");
    assert_eq!(explained["unseen"].as_array().unwrap().len(), 0, "{options}: {explained}");
    reads
}

/// Options of fio next to other recorders. Its reads take at least four seconds.
const SLOW_WAYS: [(&str, &str); 3] = [
    ("--ioengine=io_uring --direct=1 --iodepth=1 --rate_iops=256", "uring"),
    ("--ioengine=io_uring --direct=0 --iodepth=16 --rate_iops=256", "uring"),
    ("--ioengine=libaio --direct=1 --iodepth=4 --rate_iops=256", "aio"),
];

/// Recorder of a program that ends with its standard input.
struct Other(Child);

impl Other {
    /// Starts the recorder, and waits until its program runs.
    fn start(scratch: &Scratch, name: &str) -> Other {
        let mut watch = scratch.command(["record", "-o", name, "--", "cat"]);
        watch.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = watch.spawn().unwrap();
        writeln!(child.stdin.as_mut().unwrap(), "runs").unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "runs\n");
        Other(child)
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

/// An older recorder ends while fio reads, and a younger one starts and ends. Both attach to the
/// same events of the kernel.
#[test]
fn recorders_next_to_each_other_record_all_of_their_reads() {
    let Some(scratch) = scratch("watch-asynchronous-others") else { return };
    for (options, way) in SLOW_WAYS {
        let run = || {
            let _ = fs::remove_file(scratch.path("a.prerun.txt"));
            let older = Other::start(&scratch, "older.rec");
            let mut watch = recorder(&scratch, &format!("{options} --exec_prerun=true"));
            let mut fio = watch.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            // fio creates this file right before its first read.
            while !scratch.path("a.prerun.txt").exists() && fio.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(10));
            }
            std::thread::sleep(Duration::from_millis(500));
            older.end();
            Other::start(&scratch, "younger.rec").end();
            if fio.try_wait().unwrap().is_some() {
                println!("{options}: fio has ended before the younger recorder");
            }
            Ran::of(fio.wait_with_output().unwrap())
        };
        let Some(explained) = recorded_by(&scratch, options, run) else { continue };
        all_reads(&scratch, options, way, &explained);
    }
}

/// fio maps the file with random advice and touches a page at a time. A few touches lie next to
/// each other by chance and count as a stream of 64 KiB.
#[test]
fn touches_of_a_mapping_with_random_advice_count_a_page_each() {
    let Some(scratch) = scratch("watch-asynchronous-mapped") else { return };
    let Some(explained) = recorded(&scratch, "--ioengine=mmap") else { return };
    let files = explained["shape"]["files"].as_array().unwrap();
    let path = scratch.path("data");
    let data = files.iter().find(|file| file["path"] == path.to_str().unwrap()).unwrap();
    let touched = data["got_bytes"].as_u64().unwrap() / 4096;
    assert!((READS * 9 / 10..READS * 5 / 4).contains(&touched), "{data}");
}

/// AIO that only writes has no read that was not seen.
#[test]
fn aio_writes_are_not_recorded_as_reads() {
    let Some(scratch) = scratch("watch-asynchronous-writes") else { return };
    let fio = "--name=a --filename=written --ioengine=libaio --direct=1 --rw=write --bs=64k \
               --size=1m --output=fio.txt";
    let mut watch = Command::new(crate::support::READPATH);
    watch.args(["record", "-o", "writes.rec", "--", "fio"]).args(fio.split_whitespace());
    let ran = Ran::of(watch.current_dir(&scratch.0).output().unwrap());
    if ran.code != Some(0) {
        return println!("skipped: {}", ran.stderr.trim());
    }
    let shown = scratch.run("recording show writes.rec").stdout;
    assert!(!shown.contains("\"aio\""), "{shown}");
}

/// Reads by io_uring of a program without root, 512 in two seconds. Reads before the ring is found
/// are missing: a tenth of a second of them, and more on a busy machine.
#[test]
fn reads_of_io_uring_are_sampled_without_root() {
    const READS: u64 = 512;
    let scratch = Scratch::under(&std::env::temp_dir(), "uring-nobody");
    if !has("fio") {
        return println!("skipped: no fio(1)");
    }
    scratch.data("data", FILE_BYTES);
    let options = "record -o reads.rec -- fio --name=a --filename=data --rw=randread --bs=4k --readonly \
                   --output=fio.txt --ioengine=io_uring --iodepth=16 --rate_iops=256 --thread";
    let mut arguments: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
    arguments.extend([format!("--size={FILE_BYTES}"), format!("--number_ios={READS}")]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some(mut command) = as_nobody(&scratch, &arguments) else {
        return println!("skipped: no setpriv(1)");
    };
    let ran = Ran::of(command.output().unwrap());
    if ran.code != Some(0) {
        return println!("skipped: {}", ran.stderr.trim());
    }
    let records = records_of(&scratch, "reads.rec");
    let reads: Vec<&Value> =
        of_kind(&records, "read").into_iter().filter(|read| read["way"] == "uring").collect();
    let count = reads.len() as u64;
    assert!((READS / 2..=READS).contains(&count), "{count} reads: {}", ran.stderr);
    let path = scratch.path("data");
    let is_data = |file: &&&Value| Path::new(file["path"].as_str().unwrap()) == path;
    let file = &of_kind(&records, "file").iter().find(is_data).expect("the file is named")["file"];
    for read in reads {
        assert_eq!(read["file"], *file);
        assert_eq!((&read["asked_bytes"], &read["outcome"]["bytes"]), (&json!(4096), &json!(4096)));
        let offset = read["offset"].as_u64().unwrap();
        assert!(offset % 4096 == 0 && offset < FILE_BYTES as u64, "{read}");
    }
    // The activities share the whole time of the recording.
    let times = of_kind(&records, "time_spent");
    let sum: u64 = times.iter().filter_map(|time| time["wall_ns"].as_u64()).sum();
    assert_eq!(Some(sum), of_kind(&records, "end")[0]["at_ns"].as_u64(), "{times:?}");
}

/// Explains a program as a user without rights and as root, where each is possible, and passes the
/// explanation and the records to `check`.
fn explain_as_both(scratch: &Scratch, program: &[&str], check: impl Fn(&Value, &[Value])) {
    /// Files of the program, which the next user may not replace.
    const WRITTEN: [&str; 3] = ["asynchronous.rec", "fio.txt", "written"];
    let arguments = [&["explain", "--json", "-o", WRITTEN[0], "--"], program].concat();
    let own = is_root().then(|| scratch.command(&arguments));
    for mut command in [as_nobody(scratch, &arguments), own].into_iter().flatten() {
        let output = command.env(PROGRAM, "asynchronous").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        if output.status.success() {
            let explanation = serde_json::from_str(&text[text.find("{\n").unwrap()..]).unwrap();
            check(&explanation, &records_of(scratch, WRITTEN[0]));
        } else {
            println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        WRITTEN.iter().for_each(|name| _ = fs::remove_file(scratch.path(name)));
    }
}

/// Explains a job of fio. No effect without fio.
fn explain_job(scratch: &Scratch, options: &str, check: impl Fn(&Value, &[Value])) {
    if !has("fio") {
        return println!("skipped: no fio(1)");
    }
    let options = format!("fio --name=a --output=fio.txt {options}");
    let program: Vec<&str> = options.split_whitespace().collect();
    explain_as_both(scratch, &program, check);
}

/// Seconds of an activity.
fn spent(explanation: &Value, activity: &str) -> f64 {
    let times = explanation["time"].as_array().unwrap();
    let time = times.iter().find(|time| time["activity"] == activity);
    time.map_or(0.0, |time| time["seconds"].as_f64().unwrap())
}

/// Announced ranges do not help reads past the page cache.
#[test]
fn direct_reads_of_io_uring_are_known_as_such_without_root() {
    let scratch = Scratch::under(&std::env::temp_dir(), "uring-direct");
    scratch.data("data", 64 << 20);
    let options = "--filename=data --size=64m --rw=randread --bs=4k --readonly --direct=1 \
                   --ioengine=io_uring --iodepth=1 --runtime=2 --time_based";
    explain_job(&scratch, options, |explanation, records| {
        let findings = explanation["findings"].as_array().unwrap();
        let is_useless =
            |finding: &&Value| finding["remedy"].as_str().unwrap().contains("WILLNEED");
        assert_eq!(findings.iter().find(is_useless), None);
        assert!(of_kind(records, "open").iter().any(|open| open["is_direct"] == true));
    });
}

/// A write that the device flushes takes its time there. The reads were said to be missing. Next to
/// other programs, most of the time is spent elsewhere: one of three runs counts.
#[test]
fn writes_of_aio_and_io_uring_are_no_waits_for_reads() {
    let scratch = Scratch::under(&std::env::temp_dir(), "asynchronous-writes");
    for engine in ["io_uring", "libaio"] {
        let options = format!(
            "--filename=written --size=32m --rw=write --bs=64k --direct=1 --sync=dsync \
             --ioengine={engine} --iodepth=1 --runtime=2 --time_based --fallocate=none"
        );
        let is_right = || {
            let is_right = Cell::new(true);
            explain_job(&scratch, &options, |explanation, _| {
                let of = |activity: &str| spent(explanation, activity);
                eprintln!("{engine}: {}", explanation["time"]);
                assert_ne!(explanation["limit"], "unseen");
                if of("write") <= 0.02 || of("async_io") > 0.2 * of("write") {
                    is_right.set(false);
                }
            });
            is_right.get()
        };
        assert!(std::iter::repeat_with(is_right).take(3).any(|is_right| is_right));
    }
}

/// Program that waits by io_uring for a read of a counter of events, which a thread ends after
/// 1.5 s.
#[test]
#[ignore = "it is a program for the other tests"]
fn event_loop() {
    const READ: u8 = 22;
    const MAP_REQUESTS: i64 = 0x1000_0000;
    const GETEVENTS: libc::c_long = 1;
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    let mut parameters = [0_u32; 30];
    let mut count = 0_u64;
    // SAFETY: the parameters have the size that the kernel accesses, and the maps the sizes that
    // it reports. The entry of a request has 64 bytes.
    unsafe {
        let ring = libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) as i32;
        assert!(ring >= 0, "a ring");
        let events = libc::eventfd(0, 0);
        let map = |bytes: usize, offset: i64| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let map =
                libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, ring, offset);
            assert_ne!(map, libc::MAP_FAILED);
            map.cast::<u8>()
        };
        // Offsets of the tail and of the table of indices among the parameters.
        let (tail, table) = (parameters[11] as usize, parameters[16] as usize);
        let (rings, request) = (map(table + 16, 0), map(4 * 64, MAP_REQUESTS));
        *request = READ;
        request.add(4).cast::<i32>().write(events);
        request.add(16).cast::<u64>().write(&raw mut count as u64);
        request.add(24).cast::<u32>().write(8);
        rings.add(table).cast::<u32>().write(0);
        rings.add(tail).cast::<u32>().write(1);
        let signal = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(1500));
            assert_eq!(libc::write(events, (&raw const EVENT).cast(), 8), 8);
        });
        let submitted = libc::syscall(libc::SYS_io_uring_enter, ring, 1, 1, GETEVENTS, 0, 0);
        assert_eq!(submitted, 1);
        signal.join().unwrap();
    }
    assert_eq!(count, EVENT);
}

/// Number that the thread of the program adds to the counter.
static EVENT: u64 = 7;

/// The wait was one for reads of files that were not recorded.
#[test]
fn read_of_a_counter_of_events_is_a_wait_for_others() {
    let scratch = Scratch::under(&std::env::temp_dir(), "event-ring");
    let own = std::env::current_exe().unwrap();
    let program = [own.to_str().unwrap(), "--exact", "asynchronous::event_loop", "--ignored"];
    explain_as_both(&scratch, &program, |explanation, _| {
        let of = |activity: &str| spent(explanation, activity);
        assert!(of("others") >= 1.0 && of("async_io") <= 0.2, "{}", explanation["time"]);
        assert_ne!(explanation["limit"], "unseen", "{}", explanation["time"]);
    });
}

/// Program that waits in `io_uring_enter(2)` for a result that never comes, as a server does for
/// its next client. The call ends after 0.8 s.
#[test]
#[ignore = "it is a program for the other tests"]
fn idle_ring() {
    /// Flags of the call: wait for results, and the last argument has a time.
    const GETEVENTS: libc::c_long = 1;
    const EXT_ARG: libc::c_long = 8;
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    let mut parameters = [0_u32; 30];
    let time: [u64; 2] = [0, 800_000_000];
    // Mask of signals and its size, and address of the time.
    let argument: [u64; 3] = [0, 0, time.as_ptr() as u64];
    // SAFETY: the parameters and the argument have the sizes that the kernel accesses.
    let ended = unsafe {
        let ring = libc::syscall(libc::SYS_io_uring_setup, 8, parameters.as_mut_ptr());
        assert!(ring >= 0, "a ring");
        let (waited, size) = (1_i64, size_of_val(&argument));
        let flags = GETEVENTS | EXT_ARG;
        libc::syscall(libc::SYS_io_uring_enter, ring, 0_i64, waited, flags, &argument, size)
    };
    assert_eq!(ended, -1);
}

/// The wait was one for io_uring, and without root the reads were said to be missing.
#[test]
fn a_ring_without_requests_waits_for_an_event() {
    let scratch = Scratch::under(&std::env::temp_dir(), "idle-ring");
    if !can_watch(&scratch) {
        return;
    }
    let own = std::env::current_exe().unwrap();
    let program = [own.to_str().unwrap(), "--exact", "asynchronous::idle_ring", "--ignored"];
    let arguments = [&["explain", "--json", "--"], &program[..]].concat();
    let commands = [Some(scratch.command(&arguments)), as_nobody(&scratch, &arguments)];
    for mut command in commands.into_iter().flatten() {
        let output = command.env(PROGRAM, "idle ring").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let explanation: Value = serde_json::from_str(&text[text.find("{\n").unwrap()..]).unwrap();
        let times = explanation["time"].as_array().unwrap();
        let of = |activity: &str| {
            let time = times.iter().find(|time| time["activity"] == activity);
            time.map_or(0.0, |time| time["seconds"].as_f64().unwrap())
        };
        assert!(of("others") >= 0.5 && of("async_io") <= 0.2, "{}", explanation["time"]);
        assert_ne!(explanation["limit"], "unseen", "{}", explanation["time"]);
    }
}
