//! Import of recordings from the output of other tools.

use std::collections::BTreeSet;
use std::io::BufRead;

use readpath_core::request::Op;
use readpath_record::notice;
use readpath_trace::TraceError;
use readpath_trace::block_trace::{self, TraceFormat};
use readpath_trace::recording::{
    self, ReadMethod, ReadOutcome, ReadRecord, Record, RecordingEnd, RecordingMethod,
    RecordingStart, RecordingWriter, ThreadName, strace,
};

use super::ImportArgs;
use crate::exit::{CommandResult, Failure};
use crate::note;
use crate::output_file::{OutputFile, check_not_needed};
use crate::packed;

/// Creates a recording from a trace of strace or of block requests. Prints the number of imported
/// reads, and caveats: calls and writes that are left out, uncertain names, and the parser's notes.
/// Refuses the trace itself as the output, a recording, and an unknown format.
pub(super) fn run(args: &ImportArgs) -> CommandResult {
    let trace_failure =
        |error: &dyn std::fmt::Display| Failure::usage_of(args.trace.display(), error);
    check_not_needed(Some(&args.output), [&args.trace])?;
    let mut source = packed::open(&args.trace)?;
    let first_bytes = source.fill_buf().map_err(|error| trace_failure(&error))?.to_owned();
    // The content selects the parser. A recording needs no import, and is refused like an unknown
    // format.
    let format = TraceFormat::detect(&first_bytes);
    let format = format.filter(|format| *format != TraceFormat::Recording);
    let (records, note) = if strace::is_start(&first_bytes) {
        let imported = strace::records(source).map_err(|error| trace_failure(&error))?;
        let left_out = imported.left_out;
        let note = (!left_out.0.is_empty()).then(|| format!("not imported: {left_out}"));
        let names = imported.names_in_unknown_folders;
        let names_note = (names > 0).then(|| {
            format!(
                "{names} files were opened by names in folders that the text does not show, and \
                 equal names count as one file: make it with `-y`"
            )
        });
        let files = imported.files_of_two_names;
        let files_note = (files > 0).then(|| {
            format!(
                "{files} files with relative names can be files with absolute names too, as the \
                 text does not show the first folder: make it with `-y`"
            )
        });
        (imported.records, note::join(note::join(note, names_note), files_note))
    } else if let Some(format) = format {
        let mut reader = block_trace::TraceReader::new(source, format);
        let (records, writes) =
            reads_of_requests(&mut reader).map_err(|error| trace_failure(&error))?;
        let left_out = (writes > 0).then(|| format!("not imported: {writes} writes"));
        let left_out = note::join(left_out, reader.left_out_note());
        let left_out = note::join(left_out, reader.time_order_note());
        (records, note::join(left_out, reader.note().map(str::to_owned)))
    } else {
        let names = block_trace::FORMATS.iter().map(|(name, _)| *name);
        let names: Vec<&str> = names.filter(|name| *name != "recording").collect();
        let text = format!(
            "neither the text of `strace -f -ttt -T` nor a trace in one of {}",
            names.join(", ")
        );
        return Err(trace_failure(&text));
    };
    let output_failure = |error| Failure::usage_of(args.output.display(), error);
    let file = OutputFile::create(&args.output)?;
    let mut writer = RecordingWriter::new(file).map_err(output_failure)?;
    let reads = records.iter().filter(|record| matches!(record, Record::Read(_))).count();
    for record in records {
        writer.put(record).map_err(output_failure)?;
    }
    writer.finish().and_then(OutputFile::finish).map_err(output_failure)?;
    notice::print(format_args!("{reads} reads in {}", args.output.display()));
    if let Some(note) = note {
        notice::print(format_args!("{}: {note}", args.trace.display()));
    }
    Ok(())
}

/// Converts a trace of requests to reads, and returns them with the number of writes, which are
/// left out. The trace has no durations: each read ends when it begins. An empty trace is an error.
fn reads_of_requests<R: BufRead>(
    reader: &mut block_trace::TraceReader<R>,
) -> Result<(Vec<Record>, u64), TraceError> {
    // One thread reads, and each device is a file, named at its first request.
    let start = RecordingStart {
        source: RecordingMethod::Requests,
        // The trace does not show the page size; this one is the usual one.
        page_bytes: 4096,
        ..RecordingStart::default()
    };
    let mut records = vec![Record::Start(start), Record::Thread(ThreadName::default())];
    let mut devices = BTreeSet::new();
    let (mut last_ns, mut writes) = (0, 0);
    let mut requests = reader.peekable();
    if requests.peek().is_none() {
        return Err(TraceError::no_request());
    }
    for request in requests {
        let request = request?;
        last_ns = request.at.ns();
        if request.op != Op::Read {
            writes += 1;
            continue;
        }
        let file = request.device;
        if devices.insert(file) {
            let path = format!("device-{file}");
            records.push(Record::File(recording::FileRecord { file, path, ..Default::default() }));
        }
        records.push(Record::Read(ReadRecord {
            end_ns: last_ns,
            begin_ns: last_ns,
            // Like a request, this call has an offset of its own.
            way: ReadMethod::Pread,
            file,
            offset: request.offset,
            asked_bytes: request.bytes,
            outcome: ReadOutcome::Bytes(request.bytes),
            ..ReadRecord::default()
        }));
    }
    let end = RecordingEnd { at_ns: last_ns, processor_ns: None, has_exited: true };
    records.push(Record::End(end));
    Ok((records, writes))
}
