//! `readpath recording`: shows, cuts, merges, anonymizes, imports and exports recordings.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Stdout, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use readpath_record::notice;
use readpath_sim::job;
use readpath_trace::TraceError;
use readpath_trace::recording::{Record, RecordingReader, RecordingWriter, is_kernel_thread};

use crate::exit::{CommandResult, Failure};
use crate::output::write_failure;
use crate::output_file::{OutputFile, check_not_needed};
use crate::progress::Interrupt;

mod export;
mod export_objects;
mod file_names;
mod import;
mod merge;

/// `readpath recording`.
#[derive(Debug, Subcommand)]
pub enum RecordingCommand {
    /// Print the records as JSON, one per line
    Show(ShowArgs),
    /// Keep the records that ended within a span of time
    Cut(CutArgs),
    /// Merge recordings made at the same time, aligned by their start times
    Merge(MergeArgs),
    /// Remove the names of files, threads and programs
    Anonymize(AnonymizeArgs),
    /// Convert the output of `strace -f -ttt -T -y -s 0`, or of a trace of requests
    Import(ImportArgs),
    /// Write a recording in a format that other tools read
    Export(ExportArgs),
}

/// `readpath recording show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Recording to read
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
}

/// `readpath recording cut`.
#[derive(Debug, Args)]
pub struct CutArgs {
    /// Recording to read
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// Begin of the span in the recording, in seconds or with a unit
    #[arg(long, value_name = "TIME", default_value = "0")]
    pub from: String,
    /// End of the span [default: end of the recording]
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// Recording to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// `readpath recording merge`.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// Recordings to merge
    #[arg(value_name = "RECORDING", num_args = 2.., required = true)]
    pub recordings: Vec<PathBuf>,
    /// Recording to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// `readpath recording anonymize`.
#[derive(Debug, Args)]
pub struct AnonymizeArgs {
    /// Recording to read
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// Recording to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// `readpath recording import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Output of strace, or trace of requests (iolog, blkparse, blktrace, msr, mqsim, disksim, spc,
    /// alibaba, tencent), recognized by its content
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Recording to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// `readpath recording export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Recording to read
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// Format of the output
    #[arg(long = "as", value_name = "FORMAT")]
    pub format: ExportFormat,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Formats of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// fio's iolog, version 3: reads, with their times
    Iolog,
    /// The JSON that Perfetto and Chrome's tracing show: reads, waits and requests in time
    Chrome,
    /// A trace of objects for `cachesim --objects`: a JSON line with path and size for each page
    Jsonl,
    /// The same for libCacheSim, in its format `oracleGeneral`: records of 24 bytes
    OracleGeneral,
}

/// Executes a subcommand of `readpath recording`.
pub fn run(command: &RecordingCommand) -> CommandResult {
    // A signal may end the process at once: an incomplete output is a scratch file.
    Interrupt::ending_at_once();
    match command {
        RecordingCommand::Show(args) => show(&args.recording),
        RecordingCommand::Cut(args) => cut(args),
        RecordingCommand::Merge(args) => merge::run(args),
        RecordingCommand::Anonymize(args) => {
            copy_with_changes(&args.recording, &args.output, |record| {
                Some(anonymize_record(record))
            })
        }
        RecordingCommand::Import(args) => import::run(args),
        RecordingCommand::Export(args) => {
            check_not_needed(args.output.as_deref(), [&args.recording])?;
            let mut out = Output::open(args.output.clone())?;
            export::write(&args.recording, args.format, &mut out)?;
            out.finish()
        }
    }
}

/// Buffered output to a file or to standard output.
enum Output {
    /// Standard output.
    Standard(BufWriter<Stdout>),
    /// A file, which replaces the one of its name when it is complete.
    File {
        /// The output so far.
        file: OutputFile,
        /// Path of the file, for failures.
        path: PathBuf,
    },
}

impl Output {
    /// Begins the output to the file. Without a path, writes to standard output.
    fn open(path: Option<PathBuf>) -> Result<Output, Failure> {
        Ok(match path {
            None => Output::Standard(BufWriter::new(io::stdout())),
            Some(path) => Output::File { file: OutputFile::create(&path)?, path },
        })
    }

    /// Writes formatted text. A failure names the output.
    fn write_text(&mut self, text: impl Display) -> CommandResult {
        match self {
            Output::Standard(writer) => write!(writer, "{text}").map_err(write_failure),
            Output::File { file, path } => {
                write!(file, "{text}").map_err(|error| Failure::usage_of(path.display(), error))
            }
        }
    }

    /// Writes bytes. A failure names the output.
    fn write_bytes(&mut self, bytes: &[u8]) -> CommandResult {
        match self {
            Output::Standard(writer) => writer.write_all(bytes).map_err(write_failure),
            Output::File { file, path } => {
                file.write_all(bytes).map_err(|error| Failure::usage_of(path.display(), error))
            }
        }
    }

    /// Writes the buffered rest. A file replaces the one of its name.
    fn finish(self) -> CommandResult {
        match self {
            Output::Standard(mut writer) => writer.flush().map_err(write_failure),
            Output::File { file, path } => {
                file.finish().map_err(|error| Failure::usage_of(path.display(), error))
            }
        }
    }
}

/// Prints the records of a recording as JSON lines.
fn show(path: &Path) -> CommandResult {
    let standard_output = None;
    let mut out = Output::open(standard_output)?;
    for_each_record(path, |record| {
        let line = serde_json::to_string(&record).expect("a record can be written as JSON");
        out.write_text(format_args!("{line}\n"))
    })?;
    out.finish()
}

/// Copies the records that end in a span, its end excluded, which becomes the duration. Names,
/// devices, openings, mappings of files and advice stay. Totals of the whole recording are dropped.
/// Reads, requests and samples count by their end; the other records have one time. A span without
/// content is written too, and reported.
fn cut(args: &CutArgs) -> CommandResult {
    let time_ns = |option: &str, text: &str| {
        let span = job::span(text);
        let failure = |expected| Failure::Usage(format!("{option} {text}: expected {expected}"));
        span.map(|span| span.ns()).map_err(failure)
    };
    let from_ns = time_ns("--from", &args.from)?;
    let to_ns = args.to.as_deref().map(|text| time_ns("--to", text)).transpose()?;
    let to_ns = to_ns.unwrap_or(u64::MAX);
    if from_ns >= to_ns {
        return Err(Failure::Usage(format!("--from {} is not before --to", args.from)));
    }
    let mut is_empty = true;
    copy_with_changes(&args.recording, &args.output, |mut record| {
        // The second time, which only some records have, is their begin.
        let is_inside =
            record.times_mut().is_some_and(|(end_ns, _)| (from_ns..to_ns).contains(&*end_ns));
        let is_kept = match &record {
            // These totals belong to the whole recording.
            Record::TimeSpent(_) | Record::OthersRequests(_) => return None,
            // Later records depend on these, which are no content of the span.
            Record::Start(_)
            | Record::Device(_)
            | Record::File(_)
            | Record::Thread(_)
            | Record::Open(_)
            | Record::Executable(_)
            | Record::End(_) => return Some(count_from(record, from_ns, to_ns)),
            // Later records depend on these too.
            Record::Map(_) | Record::Advice(_) => true,
            _ => is_inside,
        };
        is_empty &= !is_inside;
        is_kept.then(|| count_from(record, from_ns, to_ns))
    })?;
    if is_empty {
        let problem = "nothing of the recording lies in this span";
        notice::print(format_args!("{}: {problem}", args.output.display()));
    }
    Ok(())
}

/// Limits the times of a record to the span from `from_ns` to `to_ns`, and counts them from the
/// begin of the span.
fn count_from(mut record: Record, from_ns: u64, to_ns: u64) -> Record {
    if let Record::End(end) = &mut record {
        // The processor time of the span is not known.
        end.processor_ns = None;
        // An end after the span is outside of it: the program still ran.
        end.has_exited &= end.at_ns <= to_ns;
    }
    if let Some((end_ns, begin_ns)) = record.times_mut() {
        for time_ns in [Some(end_ns), begin_ns].into_iter().flatten() {
            *time_ns = (*time_ns).clamp(from_ns, to_ns) - from_ns;
        }
    }
    match &mut record {
        // 0 is an unknown time.
        Record::Start(start) if start.wall_ns > 0 => start.wall_ns += from_ns,
        Record::Read(read) => {
            // No more than the part of the read that lies in the span.
            read.waited_ns = read.waited_ns.min(read.end_ns.saturating_sub(read.begin_ns));
        }
        _ => {}
    }
    record
}

/// Replaces the names of files, threads and other programs in a record by numbers and the
/// program's by a fixed word, and clears inodes. Names of devices and kernel threads stay.
fn anonymize_record(mut record: Record) -> Record {
    match &mut record {
        Record::Start(start) => start.program = "program".to_owned(),
        Record::File(file) => {
            file.path = format!("/file-{}", file.file);
            file.inode = 0;
        }
        Record::Thread(thread) => {
            thread.name = format!("thread-{}", thread.thread);
        }
        Record::OthersRequests(others) if !is_kernel_thread(&others.name) => {
            others.name = format!("program-{}", others.task);
        }
        _ => {}
    }
    record
}

/// Copies a recording with each record replaced by the result of `change`; `None` drops it. Refuses
/// the recording itself as the target. After a failure an existing target keeps its content.
fn copy_with_changes(
    source: &Path,
    target: &Path,
    mut change: impl FnMut(Record) -> Option<Record>,
) -> CommandResult {
    let failure = |error: io::Error| Failure::usage_of(target.display(), error);
    check_not_needed(Some(target), [source])?;
    let mut writer = RecordingWriter::new(OutputFile::create(target)?).map_err(failure)?;
    for_each_record(source, |record| match change(record) {
        Some(record) => writer.put(record).map_err(failure),
        None => Ok(()),
    })?;
    writer.finish().and_then(OutputFile::finish).map_err(failure)
}

/// Calls `visit` with every record. A truncated recording yields its intact records, and a notice
/// on standard error.
pub fn for_each_record(
    path: &Path,
    mut visit: impl FnMut(Record) -> Result<(), Failure>,
) -> Result<(), Failure> {
    records(path)?.try_for_each(|record| visit(record?))
}

/// Iterator over the records, with the same handling of truncation as [`for_each_record`].
fn records(path: &Path) -> Result<impl Iterator<Item = Result<Record, Failure>> + use<>, Failure> {
    let reader = RecordingReader::new(open_buffered(path)?);
    let reader = reader.map_err(|error| Failure::usage_of(path.display(), error))?;
    let path = path.to_owned();
    Ok(reader.filter_map(move |record| match record {
        Ok(record) => Some(Ok(record)),
        Err(error @ TraceError::Cut { .. }) => {
            notice::print(format_args!("{}: {error}", path.display()));
            None
        }
        Err(error) => Some(Err(Failure::usage_of(path.display(), error))),
    }))
}

/// Opens a file with a buffer of 1 MiB. The size is chosen, not measured.
pub fn open_buffered(path: &Path) -> Result<impl BufRead + use<>, Failure> {
    let file = File::open(path).map_err(|error| Failure::usage_of(path.display(), error))?;
    Ok(BufReader::with_capacity(1 << 20, file))
}
