//! Parsers of foreign input, each as a function of bytes.
//!
//! A parser returns a value or an error for any bytes. It does not panic, overflow or loop, and
//! allocates memory in proportion to the input. The fuzzers call these functions; an ordinary test
//! calls them with the stored seeds (`crates/eval/tests/decoders.rs`).

// Each fuzzer uses one of these functions.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

use readpath_core::policy::Spec;
use readpath_core::size;

use readpath_models::hdd::{drive_from_disksim, drive_of};
use readpath_record::explain::Explainer;
use readpath_sim::job::JobFile;
use readpath_sim::load;
use readpath_trace::block_trace::{FORMATS, TraceFormat, TraceReader};
use readpath_trace::read_list::{parse_recording, parse_steps};
use readpath_trace::recording::{self, MAGIC, MergedRecords, Record, VERSION, strace};
use readpath_trace::references::{self, BlockTrace};
use readpath_trace::replay::RecordingInput;

/// Maximum length of an input. Longer inputs are slower and find no other faults.
const BYTES_MAX: usize = 1 << 16;

/// Returns the bytes as text, or `None` if they are not UTF-8.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(&bytes[..bytes.len().min(BYTES_MAX)]).ok()
}

/// Parses a job file in fio's format.
pub fn job_file(bytes: &[u8]) {
    if let Some(text) = text(bytes) {
        let _ = JobFile::parse(text).map_err(|error| error.to_string());
    }
}

/// Parses a load on memory.
pub fn load_file(bytes: &[u8]) {
    if let Some(text) = text(bytes) {
        let parsed = load::file::parse(text, Path::new("load.toml"));
        let _ = parsed.map_err(|error| error.to_string());
    }
}

/// Writes a file for parsers that take a path.
fn file(kind: &str, bytes: &[u8]) -> PathBuf {
    let folder = match Path::new("/dev/shm").is_dir() {
        true => PathBuf::from("/dev/shm"),
        false => std::env::temp_dir(),
    };
    let path = folder.join(format!("readpath-fuzz-{}.{kind}", std::process::id()));
    std::fs::write(&path, bytes).expect("a small file can be written");
    path
}

/// Parses the description of a drive in TOML.
pub fn drive_toml(bytes: &[u8]) {
    if let Some(text) = text(bytes) {
        let path = file("toml", text.as_bytes());
        let spec = Spec::parse(&format!("hdd,toml={}", path.display())).expect("a spec");
        let _ = drive_of(&spec).map_err(|error| error.to_string());
        let _ = std::fs::remove_file(path);
    }
}

/// Parses the description of a drive in DiskSim's format.
pub fn drive_disksim(bytes: &[u8]) {
    if let Some(text) = text(bytes) {
        let path = file("diskspecs", text.as_bytes());
        let _ = drive_from_disksim(&path).map_err(|error| error.to_string());
        let _ = std::fs::remove_file(path);
    }
}

/// Parses a block trace, in the format that the first byte selects.
pub fn blocks(bytes: &[u8]) {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let formats: Vec<_> = references::BlockTraceFormat::all().collect();
    let format = formats[usize::from(first) % formats.len()].1;
    let _ = BlockTrace::parse(&bytes[..bytes.len().min(BYTES_MAX)], format, 1 << 20)
        .map_err(|error| error.to_string());
}

/// Parses a trace of requests, in the format that the first byte selects.
pub fn trace(bytes: &[u8]) {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let format = FORMATS[usize::from(first) % FORMATS.len()].1;
    let _ = TraceFormat::detect(bytes);
    for request in TraceReader::new(&bytes[..bytes.len().min(BYTES_MAX)], format) {
        if request.map_err(|error| error.to_string()).is_err() {
            return;
        }
    }
}

/// Parses a list of reads, and the pages that a kernel read for them.
pub fn recording(bytes: &[u8]) {
    if let Some(text) = text(bytes) {
        let _ = parse_steps(text).map_err(|error| error.to_string());
        let _ = parse_recording(text).map_err(|error| error.to_string());
    }
}

/// Parses a recording of a program, with the bytes as its only block.
pub fn watched(bytes: &[u8]) {
    let (one, other) = bytes.split_at(bytes.len() / 2);
    let recorded = |block: &[u8]| -> Vec<Record> {
        let sum = crc32fast::hash(block).to_le_bytes();
        let head = [&MAGIC[..], &VERSION.to_le_bytes(), &(block.len() as u32).to_le_bytes(), &sum];
        let whole = [&head.concat(), block].concat();
        let reader = recording::RecordingReader::new(&whole[..]).expect("its head is right");
        reader.map_while(|record| record.map_err(|error| error.to_string()).ok()).collect()
    };
    play(&recorded(bytes));
    let parts = [recorded(one), recorded(other), recorded(bytes)].map(Vec::into_iter);
    if let Ok(merged) = MergedRecords::new(parts.into()) {
        play(&merged.collect::<Vec<Record>>());
    }
}

/// Passes a recording to its consumers.
fn play(records: &[Record]) {
    let (mut explainer, mut gathered) = (Explainer::default(), RecordingInput::default());
    for record in records {
        explainer.take(record);
        gathered.take(record);
    }
    let _ = explainer.finish();
    let _ = gathered.finish().map(|recorded| recorded.file_bytes());
}

/// Parses the text of strace.
pub fn strace_text(bytes: &[u8]) {
    let _ = strace::is_start(bytes);
    if let Ok(imported) = strace::records(bytes).map_err(|error| error.to_string()) {
        play(&imported.records);
    }
}

/// Parses the name of a policy, or of a device, with its parameters.
pub fn policy(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let _ = Spec::parse_all(text).map_err(|error| error.to_string());
    let Ok(spec) = Spec::parse(text) else { return };
    let limits = readpath_core::readahead::ReadaheadLimits::default();
    let _ = readpath_core::readahead::build(&spec, &limits).map_err(|error| error.to_string());
    let _ = readpath_core::eviction::build(&spec, 1_000).map_err(|error| error.to_string());
}

/// Parses a size.
pub fn size(bytes: &[u8]) {
    if let Some(text) = text(bytes) {
        let _ = size::parse(text);
    }
}

/// Function that parses an input.
type Decode = fn(&[u8]);

/// All parsers, by the folders of their seeds.
pub const ALL: [(&str, Decode); 11] = [
    ("job_file", job_file),
    ("load_file", load_file),
    ("drive_toml", drive_toml),
    ("drive_disksim", drive_disksim),
    ("blocks", blocks),
    ("trace", trace),
    ("recording", recording),
    ("watched", watched),
    ("strace", strace_text),
    ("policy", policy),
    ("size", size),
];
