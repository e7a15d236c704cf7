//! `readpath replay` of a recording, end to end.

mod support;

use readpath_trace::recording::{
    AdviceGiven, AdviceType, FileRecord, OpenRecord, PagesInserted, ReadMethod, ReadOutcome,
    ReadRecord, Record, RecordingStart, ThreadName,
};
use support::{Scratch, begin_recording, begin_recording_of, end_recording, is_root};

/// Recording of one thread that reads another page every 3 ms, fifty times, waiting a millisecond
/// for each.
fn recording() -> Vec<u8> {
    let (program, memory_bytes) = ("reader".to_owned(), 1 << 30);
    let start = RecordingStart { program, memory_bytes, ..RecordingStart::default() };
    let mut writer = begin_recording_of(start);
    let path = "/data/<b>".to_owned();
    writer
        .put(Record::File(FileRecord {
            file: 0,
            path,
            bytes: Some(1 << 28),
            ..FileRecord::default()
        }))
        .unwrap();
    writer.put(Record::Thread(ThreadName::default())).unwrap();
    for nth in 0..50 {
        let (begin_ns, offset) = ((3 * nth + 2) * 1_000_000, nth * 1_000_000 / 4096 * 4096);
        let insert = PagesInserted { at_ns: begin_ns, thread: 0, file: 0, offset, bytes: 4096 };
        writer.put(Record::Insert(insert)).unwrap();
        let read = ReadRecord {
            begin_ns,
            end_ns: begin_ns + 1_000_000,
            waited_ns: 1_000_000,
            way: ReadMethod::Pread,
            descriptor: Some(3),
            offset,
            asked_bytes: 4096,
            outcome: ReadOutcome::Bytes(4096),
            ..ReadRecord::default()
        };
        writer.put(Record::Read(read)).unwrap();
    }
    end_recording(writer, 160_000_000)
}

/// 50 × (2 ms of think time and 6 ms of the device) and 10 ms at the end are 410 ms. No page of the
/// file is read twice.
#[test]
fn recorded_program_is_replayed_on_a_modelled_device() {
    let scratch = Scratch::new("what-if");
    scratch.file("r.rec", recording());
    let times = ["min", "p50", "p90", "p99", "max"].map(|at| format!("first_byte_{at}=6ms"));
    let device =
        format!("object,connection=60000m,bandwidth=60000m,get_rate=1000000,{}", times.join(","));
    let arguments =
        format!("replay r.rec --on {device} --readahead none --memory 64MiB,1GiB --json");
    let ran = scratch.run(&arguments);
    ran.has_ended(0, &arguments);
    let rows = ran.results();
    assert_eq!(rows.len(), 3);
    let seconds = |row: usize| rows[row]["seconds"].as_f64().unwrap();
    assert!((seconds(0) - 0.160).abs() < 1e-9, "{rows:?}");
    for row in [1, 2] {
        assert!((seconds(row) - 0.410).abs() < 0.001, "{rows:?}");
        assert_eq!(rows[row]["device_requests"], 50);
    }
    let table = scratch.run("replay r.rec --on nvme --html page.html");
    let page = std::fs::read_to_string(scratch.path("page.html")).unwrap();
    assert!(page.contains("as recorded · 1024 MiB") && page.contains("<svg"), "{page}");
    table.has_ended(0, "a table");
    assert!(
        table
            .stdout
            .starts_with("The time of reader: as recorded 0.16 s; on nvme with `ondemand` ")
    );
    assert!(table.stdout.contains("as recorded"), "{}", table.stdout);
}

#[test]
fn invalid_recordings_and_replay_options_are_refused_by_name() {
    let scratch = Scratch::new("what-if-refused");
    let whole = recording();
    scratch.file("r.rec", &whole);
    scratch.file(
        "broken.rec",
        whole[..whole.len() - 4].iter().chain(b"xxxx").copied().collect::<Vec<u8>>(),
    );
    scratch.refused("replay broken.rec", &["broken.rec"]);
    scratch.refused("replay r.rec --on floppy", &["no device `floppy`"]);
    scratch.refused("replay r.rec --readahead oracle", &["oracle"]);
    scratch.refused("replay r.rec --memory much", &["--memory much"]);
    scratch.refused("replay r.rec --scheduler cfq,noop", &["name one scheduler"]);
    // The reads of a trace of requests have no durations, of which a prediction is made.
    scratch.file("t.trace", "0 0 0 8 1\n1000000 0 8192 8 1\n");
    scratch.run("recording import t.trace -o t.rec").has_ended(0, "import");
    scratch.refused("replay t.rec --on ssd", &["t.rec", "readpath run TRACE --on STORAGE"]);
    scratch.refused("eval policies --jobs t.rec", &["t.rec", "readpath run TRACE --on STORAGE"]);
}

const MIB: u64 = 1 << 20;

/// Recording of a program that reads a file of `file_bytes` bytes. Each read has a thread, a
/// method, an offset and a length. It waits for a millisecond, and starts one think time after the
/// previous read of its thread.
fn reads_of(file_bytes: u64, think_ns: u64, reads: &[(u32, ReadMethod, u64, u64)]) -> Vec<u8> {
    advised_reads_of(&[], file_bytes, think_ns, reads)
}

/// As [`reads_of`], after this advice.
fn advised_reads_of(
    advice: &[AdviceGiven],
    file_bytes: u64,
    think_ns: u64,
    reads: &[(u32, ReadMethod, u64, u64)],
) -> Vec<u8> {
    let mut writer = begin_recording();
    let path = "/data/b".to_owned();
    writer
        .put(Record::File(FileRecord {
            file: 0,
            path,
            bytes: Some(file_bytes),
            ..FileRecord::default()
        }))
        .unwrap();
    let mut now = [0u64; 3];
    for thread in 0..now.len() as u32 {
        writer
            .put(Record::Thread(ThreadName { thread, task: thread, ..ThreadName::default() }))
            .unwrap();
    }
    let is_direct = true;
    let direct = OpenRecord {
        thread: 2,
        descriptor: 9,
        is_direct,
        is_readable: true,
        ..OpenRecord::default()
    };
    writer.put(Record::Open(direct)).unwrap();
    for advice in advice {
        writer.put(Record::Advice(advice.clone())).unwrap();
    }
    for &(thread, way, offset, bytes) in reads {
        let begin_ns = now[thread as usize] + think_ns;
        now[thread as usize] = begin_ns + 1_000_000;
        let insert = PagesInserted { at_ns: begin_ns, thread, file: 0, offset, bytes };
        writer.put(Record::Insert(insert)).unwrap();
        let read = ReadRecord {
            begin_ns,
            end_ns: begin_ns + 1_000_000,
            waited_ns: 1_000_000,
            thread,
            way,
            descriptor: (way != ReadMethod::Fault).then_some(if thread == 2 { 9 } else { 3 }),
            offset,
            asked_bytes: bytes,
            outcome: ReadOutcome::Bytes(bytes),
            ..ReadRecord::default()
        };
        writer.put(Record::Read(read)).unwrap();
    }
    let at_ns = now.iter().max().unwrap() + 10_000_000;
    end_recording(writer, at_ns)
}

/// Three threads read by calls, by a mapping, and by direct I/O. The last of 50 reads ends after 50
/// think times of 2 ms at the earliest, and 10 ms follow. The scratch files are removed afterwards.
#[test]
fn recorded_program_is_replayed_on_real_storage() {
    let scratch = Scratch::new("what-if-real");
    let ways = [ReadMethod::Pread, ReadMethod::Fault, ReadMethod::Uring];
    let read = |nth: u64| {
        let thread = nth % 3;
        (thread as u32, ways[thread as usize], nth * 37 % 128 * 65_536, 4096)
    };
    let reads: Vec<_> = (0..150).map(read).collect();
    scratch.file("r.rec", reads_of(8 * MIB, 2_000_000, &reads));
    let arguments = "replay r.rec --on file:. --on kernel:. --readahead none,adaptive --json";
    let ran = scratch.run(arguments);
    ran.has_ended(0, arguments);
    let rows = ran.results();
    let names: Vec<_> = rows.iter().map(|row| row["storage"].as_str().unwrap()).collect();
    assert_eq!(names, ["as recorded", "file:.", "file:.", "kernel:."]);
    for row in &rows[1..] {
        let seconds = row["seconds"].as_f64().unwrap();
        assert!(seconds >= 50.0 * 0.002 + 0.010, "{row}");
        assert_eq!(row["reads"], 150);
    }
    assert_eq!(scratch.names(), ["r.rec"]);
    let table = scratch.run("replay r.rec --on kernel:.");
    assert!(table.stdout.starts_with("The time of the programs: as recorded 0.16 s; on kernel:. "));
}

/// A thread that reads nothing announces 16 ranges of 64 KiB, which no thread reads. On real
/// storage the device then reads that MiB too, through the library and through the kernel. An
/// advice of another kind is not repeated.
#[test]
fn advice_is_repeated_on_real_storage() {
    let scratch = Scratch::new("what-if-advice");
    let reads = [0, 7 * MIB].map(|offset| (0, ReadMethod::Pread, offset, 4096));
    let announced = (0..16).map(|nth| AdviceGiven {
        thread: 1,
        offset: 2 * MIB + nth * 65_536,
        bytes: 65_536,
        hint: AdviceType::WillNeed,
        ..AdviceGiven::default()
    });
    let other = AdviceGiven { hint: AdviceType::Other, ..AdviceGiven::default() };
    let advice: Vec<AdviceGiven> = announced.chain([other]).collect();
    scratch.file("plain.rec", reads_of(8 * MIB, 100_000_000, &reads));
    scratch.file("advised.rec", advised_reads_of(&advice, 8 * MIB, 100_000_000, &reads));
    let device_bytes = |name: &str| -> Vec<u64> {
        let arguments = format!("replay {name} --on file:. --on kernel:. --readahead none --json");
        let ran = scratch.run(&arguments);
        ran.has_ended(0, &arguments);
        ran.results()[1..].iter().map(|row| row["device_bytes"].as_u64().unwrap_or(0)).collect()
    };
    let (plain, advised) = (device_bytes("plain.rec"), device_bytes("advised.rec"));
    assert_eq!(plain.len(), 2);
    for (plain, advised) in std::iter::zip(plain, advised) {
        // A file system without a block device counts no bytes.
        assert!(advised == 0 || advised >= plain + MIB * 9 / 10, "{plain} {advised}");
    }
    let table = scratch.run("replay advised.rec --on nvme");
    assert!(table.stdout.contains("1 advices of the program to the kernel are not repeated"));
}

/// Recording of a program that opens, reads, advises and closes each of `files` files of 4 KiB.
fn dropped_files(files: u32) -> Vec<u8> {
    let mut writer = begin_recording();
    for file in 0..files {
        let path = format!("/data/{file}");
        let record = FileRecord { file, path, bytes: Some(4096), ..FileRecord::default() };
        writer.put(Record::File(record)).unwrap();
    }
    writer.put(Record::Thread(ThreadName::default())).unwrap();
    for file in 0..files {
        let begin_ns = u64::from(file) * 100_000;
        let end_ns = begin_ns + 50_000;
        let inserted = PagesInserted { at_ns: begin_ns, file, bytes: 4096, ..Default::default() };
        writer.put(Record::Insert(inserted)).unwrap();
        let read = ReadRecord {
            begin_ns,
            end_ns,
            waited_ns: 50_000,
            way: ReadMethod::Pread,
            descriptor: Some(3),
            file,
            asked_bytes: 4096,
            outcome: ReadOutcome::Bytes(4096),
            ..ReadRecord::default()
        };
        writer.put(Record::Read(read)).unwrap();
        let (at_ns, hint) = (end_ns, AdviceType::DontNeed);
        let dropped = AdviceGiven { at_ns, file, hint, ..AdviceGiven::default() };
        writer.put(Record::Advice(dropped)).unwrap();
    }
    end_recording(writer, 1 << 30)
}

/// 300 files are read one after the other, each with DONTNEED behind its read. A process that may
/// have 100 open files replays them.
#[test]
fn file_is_closed_after_the_advice_behind_its_last_read() {
    let scratch = Scratch::new("what-if-dropped");
    scratch.file("r.rec", dropped_files(300));
    let command = "ulimit -n 100; exec \"$0\" replay r.rec --on kernel:. --json";
    let output = std::process::Command::new("bash")
        .args(["-c", command, env!("CARGO_BIN_EXE_readpath")])
        .current_dir(scratch.path("."))
        .output();
    let ran = support::Ran::of(output.unwrap());
    ran.has_ended(0, command);
    assert_eq!(ran.results()[1]["reads"], 300);
}

/// The library drops whole files only, and has no advice for direct reads. Two advices on parts of
/// a file by the thread that reads through the page cache, and one by the direct thread, have no
/// effect. The row says so; in a row of the kernel they have their effect.
#[test]
fn advice_without_effect_in_the_library_is_counted() {
    let scratch = Scratch::new("what-if-partial");
    let ways = [(0, ReadMethod::Pread), (2, ReadMethod::Uring)];
    let reads: Vec<_> =
        (0..4).flat_map(|nth| ways.map(|(thread, way)| (thread, way, nth * MIB, 4096))).collect();
    let dropped = |thread, offset, bytes| AdviceGiven {
        thread,
        offset,
        bytes,
        hint: AdviceType::DontNeed,
        ..AdviceGiven::default()
    };
    let advice = [
        dropped(0, 0, MIB),
        dropped(0, MIB, MIB),
        dropped(0, 0, 0),
        AdviceGiven { hint: AdviceType::WillNeed, ..dropped(2, 0, MIB) },
    ];
    scratch.file("r.rec", advised_reads_of(&advice, 8 * MIB, 1_000_000, &reads));
    let ran = scratch.run("replay r.rec --on file:. --on kernel:. --readahead none --json");
    ran.has_ended(0, "replay");
    let rows = ran.results();
    let note = rows[1]["note"].as_str().unwrap_or_default();
    assert!(note.contains("3 advices of the program have no effect in the library"), "{rows:?}");
    assert!(!rows[2].to_string().contains("have no effect"), "{rows:?}");
}

/// Recording of a program with two files. Thread 0 touches the mapped file 0. It asks the kernel
/// for file 1, which only thread 1 reads, by calls.
fn announced_by_mapping_thread() -> Vec<u8> {
    let mut writer = begin_recording();
    for number in 0..2 {
        let path = format!("/data/{number}");
        let file = FileRecord { file: number, path, bytes: Some(MIB), ..FileRecord::default() };
        writer.put(Record::File(file)).unwrap();
        let thread = ThreadName { thread: number, task: number, ..ThreadName::default() };
        writer.put(Record::Thread(thread)).unwrap();
    }
    for hint in [AdviceType::WillNeed, AdviceType::DontNeed] {
        let advice = AdviceGiven { file: 1, bytes: MIB, hint, ..AdviceGiven::default() };
        writer.put(Record::Advice(advice)).unwrap();
    }
    for (nth, (thread, way)) in
        [(0, ReadMethod::Fault), (1, ReadMethod::Pread)].into_iter().cycle().take(8).enumerate()
    {
        let (begin_ns, offset) = ((nth as u64 + 1) * 1_000_000, nth as u64 * 65_536);
        let insert = PagesInserted { at_ns: begin_ns, thread, file: thread, offset, bytes: 4096 };
        writer.put(Record::Insert(insert)).unwrap();
        let read = ReadRecord {
            begin_ns,
            end_ns: begin_ns + 500_000,
            waited_ns: 500_000,
            thread,
            way,
            descriptor: (way != ReadMethod::Fault).then_some(3),
            file: thread,
            offset,
            asked_bytes: 4096,
            outcome: ReadOutcome::Bytes(4096),
        };
        writer.put(Record::Read(read)).unwrap();
    }
    end_recording(writer, 1 << 30)
}

/// All eight reads are replayed, by the library as by the kernel.
#[test]
fn thread_of_mappings_advises_a_file_that_no_thread_maps() {
    let scratch = Scratch::new("what-if-unmapped");
    scratch.file("r.rec", announced_by_mapping_thread());
    let arguments = "replay r.rec --on file:. --on kernel:. --readahead none --json";
    let ran = scratch.run(arguments);
    ran.has_ended(0, arguments);
    let reads: Vec<_> = ran.results().iter().map(|row| row["reads"].clone()).collect();
    assert_eq!(reads[1..], [8, 8]);
}

/// 8 MiB are read twice, in order. With memory for an eighth of them, all bytes come from the
/// device twice, and otherwise once. The difference is the same with readpath and with the kernel.
#[test]
fn replay_with_too_little_memory_reads_the_device_again() {
    if !is_root() {
        return eprintln!("skipped: a control group needs root");
    }
    let scratch = Scratch::new("what-if-memory");
    let reads: Vec<_> =
        (0..256).map(|nth| (0, ReadMethod::Pread, nth % 128 * 65_536, 65_536)).collect();
    scratch.file("r.rec", reads_of(8 * MIB, 0, &reads));
    for storage in ["file:.", "kernel:."] {
        let arguments =
            format!("replay r.rec --on {storage} --readahead none --memory 1MiB,256MiB --json");
        let ran = scratch.run(&arguments);
        ran.has_ended(0, &arguments);
        let rows = ran.results();
        let device_bytes = |row: usize| rows[row]["device_bytes"].as_u64().unwrap();
        assert!(device_bytes(1) >= 14 * MIB, "{rows:?}");
        assert!((8 * MIB..10 * MIB).contains(&device_bytes(2)), "{rows:?}");
    }
}

/// An option that has no effect on the kind of file would be ignored in silence.
#[test]
fn replay_options_of_the_other_kind_of_file_are_refused() {
    let scratch = Scratch::new("what-if-options");
    scratch.file("r.rec", recording());
    let list = "at_ms=0 event=arrive request=1 process=1 op=read start=0 sectors=8\n\
                at_ms=1 event=dispatch request=1\nat_ms=9 event=complete request=1\n";
    scratch.file("list.txt", list);
    for option in ["--depth 32", "--solid-state"] {
        let name = option.split(' ').next().unwrap();
        scratch.refused(&format!("replay r.rec {option}"), &[name, "lists of scheduler events"]);
        scratch.run(&format!("replay list.txt {option}")).has_ended(0, option);
    }
    let options = [
        "--on hdd,nvme",
        "--memory 1MiB",
        "--readahead none",
        "--eviction lru",
        "--seed 1",
        "--html p.html",
    ];
    for option in options {
        let name = option.split(' ').next().unwrap();
        scratch.refused(&format!("replay list.txt {option}"), &[name, "is for recordings"]);
        scratch.run(&format!("replay r.rec {option}")).has_ended(0, option);
    }
}

/// A buffered read needs a cache of its size, and its 8 MiB come from the device. A row with failed
/// reads has the time of another program.
#[test]
fn failed_reads_of_a_modelled_row_are_a_failure() {
    let scratch = Scratch::new("what-if-failed");
    let reads = [(0, ReadMethod::Pread, 0, 8 * MIB), (0, ReadMethod::Pread, 0, 4096)];
    scratch.file("r.rec", reads_of(8 * MIB, 0, &reads));
    for (arguments, words) in [
        ("--on nvme --memory 4MiB", ["1 of 2 reads failed", "nvme", "8388608", "4194304"]),
        ("--on faulty:nvme,fail_every=1", ["2 of 2 reads failed", "faulty", "first", "EIO"]),
    ] {
        let ran = scratch.run(&format!("replay r.rec {arguments}"));
        ran.has_ended(1, arguments);
        assert_eq!(ran.stdout, "", "{arguments}: a row without its reads is no prediction");
        ran.says(&words, arguments);
    }
    // Each failure names its row.
    let ran = scratch.run("replay r.rec --on nvme --memory 4MiB --readahead none,ondemand");
    ran.says(&["readahead none, eviction two-lists", "readahead ondemand, eviction"], "two rows");
    // The rows before and after a failed one are printed.
    let partly = "replay r.rec --on nvme --readahead none --memory 16MiB,4MiB,32MiB --html p.html";
    let ran = scratch.run(&format!("{partly} --json"));
    ran.has_ended(1, partly);
    ran.says(&["1 of 2 reads failed", "4194304"], partly);
    let memory_bytes: Vec<_> =
        ran.results()[1..].iter().map(|row| row["memory_bytes"].as_u64()).collect();
    assert_eq!(memory_bytes, [Some(16 * MIB), Some(32 * MIB)]);
    assert!(scratch.names().contains(&"p.html".to_owned()));
    let enough = "replay r.rec --on nvme --readahead none --memory 16MiB --json";
    let ran = scratch.run(enough);
    ran.has_ended(0, enough);
    assert_eq!(ran.results()[1]["device_bytes"], 8 * MIB);
}

#[test]
fn unsuitable_real_storage_for_replay_is_refused_by_name() {
    let scratch = Scratch::new("what-if-no-room");
    scratch.file("large.rec", reads_of(1 << 50, 0, &[(0, ReadMethod::Pread, 0, 4096)]));
    scratch.file("small.rec", reads_of(MIB, 0, &[(0, ReadMethod::Pread, 0, 4096)]));
    scratch.refused("replay large.rec --on kernel:.", &["1073741824 MiB", "are free"]);
    scratch.refused("replay small.rec --on file:small.rec", &["is not a folder"]);
    scratch.refused("replay small.rec --on nfs://host/e/f", &["kernel:FOLDER"]);
    scratch.refused("replay small.rec --on kernel:. --memory +1GiB", &["leave the + out"]);
    scratch.refused("replay small.rec --on kernel:. --memory 900TiB", &["this machine has"]);
    scratch.refused("replay small.rec --on file:. --readahead oracle", &["oracle"]);
    assert_eq!(scratch.names(), ["large.rec", "small.rec"]);
}
