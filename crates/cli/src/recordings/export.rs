//! Export of recordings to the formats of other tools.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use readpath_sim::operation_log::TRACE_HEADER;
use readpath_trace::recording::{MappedUse, ReadRecord, Record, RequestRecord, ThreadName};
use serde_json::json;

use super::file_names::FileNames;
use super::{ExportFormat, Output, export_objects, for_each_record};
use crate::exit::CommandResult;

/// Process id under which the requests of devices appear. No process has it.
const DEVICES_PROCESS_ID: u32 = 0;

/// Writes a recording in a format.
pub(super) fn write(path: &Path, format: ExportFormat, out: &mut Output) -> CommandResult {
    match format {
        ExportFormat::Iolog => write_iolog(path, out),
        ExportFormat::Chrome => write_chrome(path, out),
        ExportFormat::Jsonl => export_objects::write_jsonl(path, out),
        ExportFormat::OracleGeneral => export_objects::write_oracle_general(path, out),
    }
}

/// Writes fio's iolog, version 3: lines for the first use of a file, a line for each read that
/// returned bytes, and at the end a line that closes each file.
fn write_iolog(path: &Path, out: &mut Output) -> CommandResult {
    let mut names = FileNames::default();
    // Files whose `open` line is written.
    let mut open_files: BTreeSet<u32> = BTreeSet::new();
    let (mut last_us, mut mapped) = (0, MappedUse::default());
    let mut write_line = |text: String| out.write_text(format_args!("{text}\n"));
    write_line(TRACE_HEADER.to_owned())?;
    for_each_record(path, |record| {
        match record {
            // Spaces separate the fields of a line, and thus cannot occur in names.
            Record::File(file) => {
                names.add_without_spaces(file.file, file.path);
            }
            Record::Read(read) if read.bytes_read() > 0 => {
                let name = names.name(read.file);
                // Records are in the order of their ends; fio needs start times that never
                // decrease.
                let us = (read.begin_ns / 1000).max(last_us);
                last_us = us;
                if open_files.insert(read.file) {
                    write_line(format!("{us} {name} add"))?;
                    write_line(format!("{us} {name} open"))?;
                }
                // A fault of a mapping stands for reads of the pages that were used. Any other read
                // stands for itself.
                for read in mapped.reads(&read) {
                    write_line(format!("{us} {name} read {} {}", read.offset, read.bytes_read()))?;
                }
            }
            // The record precedes the fault that mapped the pages.
            Record::Mapped(range) => mapped.map(&range),
            _ => {}
        }
        Ok(())
    })?;
    for file in open_files {
        write_line(format!("{last_us} {} close", names.name(file)))?;
    }
    Ok(())
}

/// Writes the trace event format: a list of events, with times in microseconds. Events with `ph` M
/// name processes and threads, those with X have a begin and a duration. Names precede the reads
/// that refer to them.
fn write_chrome(path: &Path, out: &mut Output) -> CommandResult {
    let mut files: BTreeMap<u32, String> = BTreeMap::new();
    let mut threads: BTreeMap<u32, ThreadName> = BTreeMap::new();
    let mut is_first = true;
    let mut write_event = |event: serde_json::Value| {
        let separator = if std::mem::take(&mut is_first) { "[\n" } else { ",\n" };
        out.write_text(format_args!("{separator}{event}"))
    };
    write_event(json!({
        "ph": "M", "name": "process_name", "pid": DEVICES_PROCESS_ID, "args": {"name": "devices"},
    }))?;
    for_each_record(path, |record| {
        match record {
            Record::File(file) => {
                files.insert(file.file, file.path);
            }
            Record::Device(device) => {
                write_event(json!({
                    "ph": "M", "name": "thread_name",
                    "pid": DEVICES_PROCESS_ID, "tid": device.device,
                    "args": {"name": device.name},
                }))?;
            }
            Record::Thread(thread) => {
                write_event(json!({
                    "ph": "M", "name": "thread_name", "pid": thread.process, "tid": thread.task,
                    "args": {"name": thread.name},
                }))?;
                threads.insert(thread.thread, thread);
            }
            Record::Read(read) => write_event(read_event(&read, &files, &threads[&read.thread]))?,
            Record::Request(request) => write_event(request_event(&request))?,
            _ => {}
        }
        Ok(())
    })?;
    out.write_text("\n]\n")
}

/// Event of a read, on the row of its thread.
fn read_event(
    read: &ReadRecord,
    files: &BTreeMap<u32, String>,
    thread: &ThreadName,
) -> serde_json::Value {
    json!({
        "ph": "X", "cat": "read", "name": read.way, "pid": thread.process, "tid": thread.task,
        "ts": micros(read.begin_ns), "dur": micros(read.duration_ns()),
        "args": {
            "file": files.get(&read.file), "offset": read.offset, "asked": read.asked_bytes,
            "got": read.bytes_read(), "waited_us": micros(read.waited_ns),
        },
    })
}

/// Event of a device request, on the row of its device. Its `place` is a byte offset.
fn request_event(request: &RequestRecord) -> serde_json::Value {
    json!({
        "ph": "X", "cat": "request", "name": request.work,
        "pid": DEVICES_PROCESS_ID, "tid": request.device,
        "ts": micros(request.begin_ns), "dur": micros(request.end_ns - request.begin_ns),
        "args": {"place": request.place, "bytes": request.bytes, "ahead": request.is_ahead},
    })
}

/// Converts nanoseconds to microseconds.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}
