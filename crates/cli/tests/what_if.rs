//! `readpath replay` of a recording, end to end.

mod support;

use readpath_sim::recording::{
    End, File, Insert, Outcome, Read, Record, Start, Thread, Way, Writer,
};
use support::Scratch;

/// One thread that reads a page of its own each 3 ms, fifty times, waiting a millisecond for each.
fn recording() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    let program = "reader".to_owned();
    let memory_bytes = 1 << 30;
    writer
        .put(Record::Start(Start { page_bytes: 4096, program, memory_bytes, ..Start::default() }))
        .unwrap();
    let path = "/data/<b>".to_owned();
    writer
        .put(Record::File(File { file: 0, path, bytes: Some(1 << 28), ..File::default() }))
        .unwrap();
    writer.put(Record::Thread(Thread::default())).unwrap();
    for nth in 0..50 {
        let (begin_ns, offset) = ((3 * nth + 2) * 1_000_000, nth * 1_000_000 / 4096 * 4096);
        let insert = Insert { at_ns: begin_ns, thread: 0, file: 0, offset, bytes: 4096 };
        writer.put(Record::Insert(insert)).unwrap();
        let read = Read {
            begin_ns,
            end_ns: begin_ns + 1_000_000,
            waited_ns: 1_000_000,
            way: Way::Pread,
            descriptor: Some(3),
            offset,
            asked_bytes: 4096,
            outcome: Outcome::Bytes(4096),
            ..Read::default()
        };
        writer.put(Record::Read(read)).unwrap();
    }
    writer.put(Record::End(End { at_ns: 160_000_000, ..End::default() })).unwrap();
    writer.finish().unwrap();
    bytes
}

/// 50 × (2 ms of thought and 6 ms of the device) and 10 ms at the end are 410 ms; the file has no
/// page twice.
#[test]
fn a_program_is_made_again_on_another_device() {
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
    assert!(table.stdout.starts_with("The time of reader:"), "{}", table.stdout);
    assert!(table.stdout.contains("as recorded"), "{}", table.stdout);
}

#[test]
fn a_recording_that_cannot_be_made_again_is_refused_by_name() {
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
}
