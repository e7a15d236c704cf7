//! `readpath advise --from`: pages of recordings, brought in next to a program.
//!
//! The program waits until the threads that bring its pages in have ended, so nothing depends on
//! the speed of the device.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use readpath_core::unit::PageRange;
use readpath_record::cold;
use readpath_trace::recording::{FileRecord, Mapped, ReadOutcome, ReadRecord, Record, ThreadName};
use support::{Ran, Scratch, begin_recording, end_recording};

const PAGE: u64 = 4096;
const FILE_PAGES: u64 = 2048;
/// Longest wait for pages to arrive.
const LIMIT: Duration = Duration::from_secs(30);

/// Recording of reads and touches of a file: first page and number of pages, the last one a touch.
fn recording(file: &Path, bytes: u64, ranges: &[(u64, u64)]) -> Vec<u8> {
    let mut writer = begin_recording();
    let inode = fs::metadata(file).map_or(7, |file| file.ino());
    let path = file.to_str().unwrap().to_owned();
    let named = FileRecord { file: 0, inode, bytes: Some(bytes), path, ..FileRecord::default() };
    let names = [Record::File(named), Record::Thread(ThreadName::default())];
    names.into_iter().for_each(|record| writer.put(record).unwrap());
    for (nth, &(first, count)) in ranges.iter().enumerate() {
        let (offset, bytes) = (first * PAGE, count * PAGE);
        writer
            .put(match nth + 1 == ranges.len() {
                true => Record::Mapped(Mapped { offset, bytes, ..Mapped::default() }),
                false => Record::Read(ReadRecord {
                    offset,
                    asked_bytes: bytes,
                    outcome: ReadOutcome::Bytes(bytes),
                    ..ReadRecord::default()
                }),
            })
            .unwrap();
    }
    end_recording(writer, 0)
}

/// Pages of a file that are in the page cache.
fn cached(file: &Path) -> Vec<u64> {
    let flags = cold::residency_flags(File::open(file).unwrap(), PageRange::new(0, FILE_PAGES));
    (0..).zip(flags.unwrap()).filter(|(_, is_cached)| *is_cached).map(|(page, _)| page).collect()
}

/// A file whose pages are not in the page cache; `None` where they cannot be dropped.
fn cold_file(scratch: &Scratch, name: &str) -> Option<std::path::PathBuf> {
    let file = scratch.data(name, (FILE_PAGES * PAGE) as usize);
    let left = cold::drop_pages(&file).unwrap();
    let is_cold = left.resident == 0;
    if !is_cold {
        println!("skipped: {} pages of a file stay in memory", left.resident);
    }
    is_cold.then_some(file)
}

/// Number of threads of a process, without the one that waits for signals.
fn thread_count(process: u32) -> usize {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return 0 };
    let names = threads.flatten().flat_map(|thread| fs::read_to_string(thread.path().join("comm")));
    names.filter(|name| name != "ctrl-c\n").count()
}

/// Runs `advise` on a program that ends after all threads but the first of `advise`. Then the file
/// must have these pages in the page cache. `first` is a page that shows that the threads have
/// begun. A range that is checked after the end of the program counts as late.
fn advise(scratch: &Scratch, options: &str, file: &Path, first: Option<u64>, pages: &[u64]) -> Ran {
    let mut command = scratch.command(["advise"]);
    command.args(options.split(' ')).args(["--", "sh", "-c"]);
    command.arg("while [ ! -e done ]; do sleep 0.01; done");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    let has_begun = || first.is_none_or(|first| cached(file).contains(&first));
    let is_done = || has_begun() && thread_count(child.id()) <= 1;
    while !is_done() && began.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::write(scratch.path("done"), "").unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap());
    fs::remove_file(scratch.path("done")).unwrap();
    assert_eq!(cached(file), pages, "{}", ran.stderr);
    ran.has_ended(0, "advise");
    ran
}

/// Runs a check up to three times. The kernel may evict a page during a run: it evicts pages of
/// files also while memory is free, on one machine of the tests once in five seconds.
fn with_repeats(check: impl Fn()) {
    for _ in 0..2 {
        if std::panic::catch_unwind(AssertUnwindSafe(&check)).is_ok() {
            return;
        }
    }
    check();
}

#[test]
fn recorded_pages_and_no_others_are_brought_in() {
    let scratch = Scratch::new("advise-from");
    let Some(file) = cold_file(&scratch, "data") else { return };
    let bytes = FILE_PAGES * PAGE;
    // The second recording has ten pages of the first, and ten others.
    scratch.file("one.rec", recording(&file, bytes, &[(900, 300), (10, 20), (5, 1), (1500, 4)]));
    scratch.file("two.rec", recording(&file, bytes, &[(20, 20), (2040, 8)]));
    scratch.file("three.rec", recording(&file, bytes, &[(600, 1)]));
    let ranges = [5..6, 10..40, 900..1200, 1500..1504, 2040..2048];
    let pages: Vec<u64> = ranges.into_iter().flatten().collect();
    let mut pages_and_one = pages.clone();
    pages_and_one.insert(pages.iter().filter(|&&page| page < 600).count(), 600);
    with_repeats(|| {
        cold::drop_pages(&file).unwrap();
        let first = advise(&scratch, "--from one.rec --from two.rec", &file, Some(5), &pages);
        // 343 pages are 1.34 MiB.
        first.says(&["brought in 1.3 MiB of 1 file", "0.0 MiB were in memory"], "first run");

        // They are in memory now. The page of the third recording shows that threads have begun.
        let recordings = "--from one.rec --from two.rec --from three.rec";
        let second = advise(&scratch, recordings, &file, Some(600), &pages_and_one);
        second.says(&["brought in 0.0 MiB of 1 file", "1.3 MiB were in memory"], "second run");
    });
}

#[test]
fn brought_in_pages_stay_within_the_limit() {
    let scratch = Scratch::new("advise-from-limit");
    let Some(file) = cold_file(&scratch, "data") else { return };
    // The last range is a touch, so that these are two ranges in any case.
    let ranges = [(0, 1000), (1000, 1000)];
    scratch.file("all.rec", recording(&file, FILE_PAGES * PAGE, &ranges));
    let mut command =
        scratch.command("advise --from all.rec --memory 1MiB -- sleep 0.5".split(' '));
    let ran = Ran::of(command.output().unwrap());
    ran.has_ended(0, "advise");
    let count = cached(&file).len();
    assert!((1..=256).contains(&count), "{count} pages, {}", ran.stderr);
    ran.says(&["--memory allows no more"], "limit");
}

#[test]
fn changed_and_missing_files_are_left_out_and_named() {
    let scratch = Scratch::new("advise-from-changed");
    let Some(file) = cold_file(&scratch, "data") else { return };
    let missing = scratch.path("missing");
    scratch.file("longer.rec", recording(&file, FILE_PAGES * PAGE + 1, &[(0, 8), (9, 1)]));
    scratch.file("missing.rec", recording(&missing, 1 << 20, &[(0, 8), (9, 1)]));
    let ran = advise(&scratch, "--from longer.rec --from missing.rec", &file, None, &[]);
    ran.says(
        &[
            "brought in 0.0 MiB of 0 files",
            "1 file left out, with another inode or length than in the recording",
            "1 file left out, which cannot be opened",
            "missing: No such file",
        ],
        "left out",
    );
}

#[test]
fn unusable_recordings_are_refused_before_the_program_starts() {
    let scratch = Scratch::new("advise-from-refused");
    scratch.file("empty.rec", recording(&scratch.path("data"), 0, &[]));
    scratch.file("text", "no recording");
    fs::create_dir(scratch.path("folder")).unwrap();
    for (from, words) in [
        ("empty.rec", "has no read of a file"),
        ("text", "text"),
        ("folder", "folder"),
        ("none.rec", "none.rec"),
    ] {
        let command = format!("advise --from {from} -- touch started");
        scratch.refused(&command, &[words]);
        assert!(!scratch.path("started").exists(), "{from}");
    }
    scratch.refused("advise --from empty.rec --pid 1", &["--from"]);
}
