//! Reads that the preloaded library reports to advice.

use std::fs;
use std::process::{Command, Stdio};

use readpath_record::capture::preload::{LIBRARY, Preload};
use readpath_trace::recording::RecordingWriter;

/// Number of reads reported for `cat` of a file of `bytes` bytes. Without a recording that is kept,
/// only the advice needs the reports.
fn reported_reads(bytes: usize, is_recorded: bool) -> u64 {
    let path = std::env::temp_dir().join(format!("readpath-advised-{}", std::process::id()));
    fs::write(&path, vec![1; bytes]).unwrap();
    let mut preload = Preload::start(LIBRARY).unwrap();
    preload.advise(1 << 20, is_recorded);
    let mut command = Command::new("cat");
    command.arg(&path).stdout(Stdio::null());
    let mut child = preload.spawn(command).unwrap();
    let mut writer = RecordingWriter::new(Vec::new()).unwrap();
    writer.put(preload.first_record("cat")).unwrap();
    assert!(child.wait().unwrap().success());
    fs::remove_file(&path).unwrap();
    preload.finish(writer, None, true).unwrap().reads
}

/// Advice begins with files of more than 128 KiB. `cat` reads each file in one call or more.
#[test]
fn reads_of_short_files_are_reported_to_recordings_only() {
    if LIBRARY.is_empty() {
        return println!("skipped: no library to preload");
    }
    for (bytes, is_recorded, is_reported) in [
        (128 << 10, true, true),
        (128 << 10, false, false),
        ((128 << 10) + 1, true, true),
        ((128 << 10) + 1, false, true),
    ] {
        let reads = reported_reads(bytes, is_recorded);
        assert_eq!(reads > 0, is_reported, "{bytes} bytes, recorded: {is_recorded}: {reads} reads");
    }
}
