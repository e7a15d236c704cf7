//! Recordings made of what other tools have written.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufWriter};

use readpath_core::request::Op;
use readpath_sim::recording::{
    self, End, Outcome, Read, Record, Source, Start, Thread, Way, Writer, strace,
};
use readpath_sim::trace;

use super::{ImportArgs, opened};
use crate::exit::{Ended, Failure};

/// Makes a recording.
pub(super) fn run(args: &ImportArgs) -> Ended {
    let about = |error: &dyn std::fmt::Display| Failure::about(args.trace.display(), error);
    let mut source = opened(&args.trace)?;
    let start = source.fill_buf().map_err(|error| about(&error))?.to_owned();
    let records = if strace::is_start(&start) {
        strace::records(source).map_err(|error| about(&error))?
    } else if let Some(format) = trace::Format::detect(&start) {
        requests(trace::Reader::new(source, format)).map_err(|error| about(&error))?
    } else {
        let names: Vec<&str> = trace::FORMATS.iter().map(|(name, _)| *name).collect();
        let text = format!(
            "neither the text of `strace -f -ttt -T` nor a trace in one of {}",
            names.join(", ")
        );
        return Err(about(&text));
    };
    let about = |error| Failure::about(args.output.display(), error);
    let file = File::create(&args.output).map_err(about)?;
    let mut writer = Writer::new(BufWriter::new(file)).map_err(about)?;
    let reads = records.iter().filter(|record| matches!(record, Record::Read(_))).count();
    for record in records {
        writer.put(record).map_err(about)?;
    }
    writer.finish().map_err(about)?;
    eprintln!("readpath: {reads} reads in {}", args.output.display());
    Ok(())
}

/// The reads of a trace of requests; how long they took it doesn't say.
fn requests<R: BufRead>(reader: trace::Reader<R>) -> Result<Vec<Record>, trace::TraceError> {
    let start = Start { source: Source::Requests, page_bytes: 4096, ..Start::default() };
    let mut records = vec![Record::Start(start), Record::Thread(Thread::default())];
    let mut devices = BTreeSet::new();
    let mut at_ns = 0;
    for request in reader {
        let request = request?;
        at_ns = request.at.ns();
        if request.op != Op::Read {
            continue;
        }
        let file = request.device;
        if devices.insert(file) {
            let path = format!("device-{file}");
            records.push(Record::File(recording::File { file, path, ..Default::default() }));
        }
        records.push(Record::Read(Read {
            end_ns: at_ns,
            begin_ns: at_ns,
            way: Way::Pread,
            file,
            offset: request.offset,
            asked_bytes: request.bytes,
            outcome: Outcome::Bytes(request.bytes),
            ..Read::default()
        }));
    }
    records.push(Record::End(End { at_ns, processor_ns: None, has_exited: true }));
    Ok(records)
}
