//! Recording without root of reads that are no calls of `read`: streams of the C library, and AIO.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::Scratch;
use crate::{of_kind, records_of, unharmed};

/// Method, offset and bytes of a read.
type Found = (String, u64, u64);

/// Reads of a file, in the order of the recording.
fn reads_of(scratch: &Scratch, name: &str) -> Vec<Found> {
    let records = records_of(scratch, "r.rec");
    let path = scratch.path(name);
    let is_it = |file: &&&Value| Path::new(file["path"].as_str().unwrap()) == path;
    let files = of_kind(&records, "file");
    let Some(file) = files.iter().find(is_it) else { panic!("{name} was not read: {files:?}") };
    let reads = of_kind(&records, "read").into_iter();
    let of_file = reads.filter(|read| read["file"] == file["file"]);
    of_file
        .map(|read| {
            let offset = read["offset"].as_u64().unwrap();
            assert!(read["begin_ns"].as_u64() <= read["end_ns"].as_u64(), "{read}");
            let bytes = read["outcome"]["bytes"].as_u64().unwrap();
            (read["way"].as_str().unwrap().to_owned(), offset, bytes)
        })
        .collect()
}

/// Records the program of this name. Its folder, or `None` where that is impossible.
fn recorded(name: &str) -> Option<Scratch> {
    let scratch = unharmed::scratch(&format!("streams-{name}"), &[])?;
    fs::write(scratch.path("lines"), format!("{:99}\n", "").repeat(100)).unwrap();
    let ran = unharmed::recorded(&scratch, &[name])?;
    ran.has_ended(0, name);
    assert_eq!(ran.stdout, "finished\n", "{}", ran.stderr);
    Some(scratch)
}

/// The C library fills its buffer of 4 KiB from the last multiple of 4 KiB. Larger requests are
/// read past the buffer.
#[test]
fn reads_of_streams_are_recorded_where_they_fill_the_buffer() {
    let Some(scratch) = recorded("streams") else { return };
    let read = |offset, bytes| ("read".to_owned(), offset, bytes);
    // The 10,000 bytes after the first 100: 3,996 of the buffer, 4,096 at once, 1,908 of the next
    // buffer.
    let data = [
        read(0, 4096),
        read(4096, 8192),
        read(49_152, 4096),
        read(53_248, 4096),
        read(258_048, 4096),
    ];
    assert_eq!(reads_of(&scratch, "data"), data);
    let lines = [read(0, 4096), read(4096, 4096), read(8192, 1808)];
    assert_eq!(reads_of(&scratch, "lines"), lines);
}

#[test]
fn reads_of_aio_are_recorded_when_their_results_are_fetched() {
    let Some(scratch) = recorded("asynchronous") else { return };
    let mut found = reads_of(&scratch, "data");
    found.sort();
    let expected: Vec<Found> = (0..40).map(|nth| ("aio".to_owned(), nth * 5000, 300)).collect();
    assert_eq!(found, expected);
}
