//! `readpath explain`: finds the causes of a program's waits for storage.
use std::ffi::OsString;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use readpath_record::explain::gain::REMEDY_DEPTH;
use readpath_record::explain::readahead::ReadaheadWaits;
use readpath_record::explain::{self, Explainer, Explanation, OtherReads, ProgramLimit, ReadShape};
use readpath_sim::job::printable;
use readpath_trace::recording::ReadMethod;

use crate::exit::{CommandResult, Failure};
use crate::html::check_output_folder;
use crate::output::{print, print_document};
use crate::output_file::{check_not_needed, unused_path};
use crate::record::{self, ProgramArgs};
use crate::recordings::for_each_record;
use crate::replay_recording::is_recording;
use crate::scratch_files::ScratchFiles;
use crate::signals;
use crate::table::{self, Column, Table};

mod gains;
mod page;
mod pictures;
mod time;

use pictures::Pictures;

/// `readpath explain`.
#[derive(Debug, Args)]
#[command(
    after_help = "With a COMMAND, --pid or --cgroup the program is recorded first, as by `readpath \
    record`. The\nrecording is removed afterwards unless -o names it. Ctrl-C ends the recording and explains \
    the\nreads so far. --pid and --cgroup need root.\n\n\
    The explanation covers the time in which the program waited for reads of files, and the processor\n\
    time of small reads. Each wait is charged to one cause. A cause is reported from 5 % of the time and\n\
    16 waits on, with its evidence and the remedy.\n\n\
    What a remedy would gain is measured: some of the reads that waited are repeated as recorded and\n\
    as the remedy would request them. They are read directly, without the page cache, for at most\n\
    about 3 s per finding. A remedy that gains nothing is not given.\n\n\
    Examples:\n  \
    readpath explain -- sha256sum /usr/bin/env\n  \
    readpath explain examples/one-at-a-time.rec"
)]
pub struct ExplainArgs {
    /// Recording
    #[arg(
        value_name = "RECORDING",
        required_unless_present_any = ["command", "pid", "cgroup"],
        conflicts_with_all = ["command", "pid", "cgroup", "span", "output"]
    )]
    pub recording: Option<PathBuf>,
    /// Program to start, record with its children until it ends, and explain
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<OsString>,
    /// Process to record until it ends, with the children that it starts meanwhile
    #[arg(long, value_name = "N", conflicts_with = "command")]
    pub pid: Option<u32>,
    /// Control group to record: all processes of it and of the groups below it
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["command", "pid"])]
    pub cgroup: Option<PathBuf>,
    /// Longest time to record, in seconds or with a unit; a started program continues
    #[arg(long = "for", value_name = "TIME")]
    pub span: Option<String>,
    /// File in which to keep the recording
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// When to measure the gains of remedies by reads of the recorded files. `auto`: after a
    /// program was recorded, and not for the file of a recording
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub gains: MeasureGains,
    /// Print one JSON document in place of the text
    #[arg(long)]
    pub json: bool,
    /// Also write the explanation with pictures to this file, as one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Choice of whether the gains of remedies are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum MeasureGains {
    // After a program was recorded, but not for a recording that is only read.
    Auto,
    // Also for a recording that is only read.
    Always,
    // No file is read.
    Never,
}

/// Explains a recording. Without one, records the program first, into a temporary file unless the
/// user named an output.
pub fn run(mut args: ExplainArgs) -> CommandResult {
    check_output_folder(args.html.as_deref())?;
    check_not_needed(args.html.as_deref(), args.recording.iter().chain(&args.output))?;
    if let Some(recording) = args.recording.take() {
        if args.gains == MeasureGains::Auto {
            args.gains = MeasureGains::Never;
        }
        return print_explanation(&recording, &args);
    }
    let program = ProgramArgs {
        command: std::mem::take(&mut args.command),
        pid: args.pid,
        cgroup: args.cgroup.take(),
        span: args.span.take(),
    };
    let output_path = args.output.take();
    let is_kept = output_path.is_some();
    // The file that only the explanation reads is removed at the end of the scratch files. The
    // recorder does not print its path.
    let mut scratch = ScratchFiles::default();
    let path = match output_path {
        Some(path) => path,
        None => create_temporary_recording(&mut scratch)?,
    };
    let recorded = record::record_into(program, path.clone(), is_kept);
    // Failure::Run reports a program that failed, or a recording that ended early. The reads until
    // then were recorded all the same. A recording that could not begin has nothing to explain.
    match recorded {
        Ok(()) | Err(Failure::Run(_)) if is_recording(&path) => {
            // A failure of the explanation precedes the one of the recording.
            print_explanation(&path, &args).and(recorded)
        }
        other => other,
    }
}

/// Creates an empty file in the folder for temporary files, and returns its path. If this process
/// is killed, the next run removes the file. A name that is in use is left alone.
fn create_temporary_recording(scratch: &mut ScratchFiles) -> Result<PathBuf, Failure> {
    let (folder, process) = (std::env::temp_dir(), std::process::id());
    let path = unused_path(|n| folder.join(format!("readpath-explain-{process}-{n}.rec")));
    scratch.create_empty(&path)?;
    Ok(path)
}

/// Analyzes a recording, measures the gains if requested, prints the explanation, and writes the
/// page if requested.
fn print_explanation(recording: &Path, args: &ExplainArgs) -> CommandResult {
    let mut explainer = Explainer::default();
    let mut pictures = args.html.as_ref().map(|_| Pictures::default());
    for_each_record(recording, |record| {
        explainer.take(&record);
        if let Some(pictures) = &mut pictures {
            pictures.add_record(&record);
        }
        Ok(())
    })?;
    let mut explanation = explainer.finish();
    if args.gains != MeasureGains::Never {
        // A signal that ended the recording does not end the measurement; a further one does.
        let signals_before = signals::signal_count();
        explain::measure(&mut explanation, &mut || signals::signal_count() == signals_before);
    }
    let printed = match args.json {
        true => print_document(&explanation),
        false => {
            let mut text = String::new();
            write_text(&mut text, &explanation).expect("a string takes all");
            print(&text)
        }
    };
    if let (Some(path), Some(pictures)) = (&args.html, &pictures) {
        page::explanation_page(&explanation, pictures).write(path)?;
    }
    printed
}

/// First line: the program, its duration, and the share of the time it waited for reads of
/// files, without metadata and writes. The share is a lower bound if there are hidden waits: long
/// waits for files that no recorded read explains. A trace of requests has no waits, and gets its
/// duration alone.
fn headline(explanation: &Explanation) -> String {
    let Explanation { program, seconds, .. } = explanation;
    let program = if program.is_empty() { "The program".to_owned() } else { printable(program) };
    let processor_text = match explanation.processor_seconds {
        Some(seconds) => format!("; processor time {seconds:.2} s"),
        None => String::new(),
    };
    let Some(waited_seconds) = explanation.waited_seconds else {
        return format!("{program}: requests of {seconds:.2} s; waits for them are not recorded");
    };
    // A recording of no duration has a share of 0.
    let share = 100.0 * waited_seconds / seconds.max(1e-9);
    let at_least = if explanation.hidden_waits.is_some() { "at least " } else { "" };
    format!(
        "{program}: {seconds:.2} s, of which {at_least}{waited_seconds:.2} s ({share:.0} %) waited \
         for reads of files{processor_text}"
    )
}

/// Sentence for a program without findings: the limit of its speed. `Program`: it rarely waited, or
/// other work took longer. `Device`: it waited for a device most of its time. `Unseen`: too many
/// reads were not recorded. `Nothing`: it read no files. `Unknown`: much of its time is not
/// accounted for. `Untimed`: the recording has no waits.
fn no_findings_text(explanation: &Explanation) -> String {
    let in_order = [&explanation.readahead, &explanation.direct_in_order].into_iter().flatten();
    // Waits for the kernel's readahead have no `request_bytes`.
    let single = in_order.clone().filter(|waits| waits.request_bytes.is_some());
    let single_seconds: f64 = single.map(|waits| waits.seconds).sum();
    // Half of the waited time or more. False if the waited time is unknown.
    let are_most = |seconds: f64| seconds * 2.0 >= explanation.waited_seconds.unwrap_or(f64::MAX);
    // A device with fewer requests may be faster with more, unless larger ones gained nothing.
    let is_depth_untried = explanation.shape.depth.round() < REMEDY_DEPTH as f64
        && !are_most(explanation.none_faster_seconds);
    let diagnosis = match explanation.limit {
        // Most of its waits are for single requests in order. Larger ones may be faster, which no
        // measurement has shown.
        ProgramLimit::Device if are_most(single_seconds) => "No diagnosis",
        ProgramLimit::Device if is_depth_untried => {
            "No fault was found in its reads; it waits for the device"
        }
        ProgramLimit::Device => "Its reads have no fault; the device is the limit",
        ProgramLimit::Program if time::has_idle_waits(explanation) => {
            "No fault was found in its reads, and other work takes longer"
        }
        ProgramLimit::Program => "Its reads have no fault; they do not limit the program",
        ProgramLimit::Nothing | ProgramLimit::Unknown | ProgramLimit::Untimed => "No diagnosis",
        ProgramLimit::Unseen if explanation.shape.reads > 0 => {
            "Waits of the program are in no recorded read"
        }
        ProgramLimit::Unseen => "Its reads were not recorded",
    };
    let mut text = format!("{diagnosis}: {}", explanation.limit_text);
    if explanation.limit == ProgramLimit::Program {
        let notes =
            [time::longest_without_reads(explanation), time::long_unknown_time(explanation)];
        notes.into_iter().flatten().for_each(|note| text += &format!("; {note}"));
    }
    if explanation.limit == ProgramLimit::Device {
        if is_depth_untried && in_order.clone().next().is_none() {
            text += "; whether more of them in flight are faster is not known";
        }
        in_order.for_each(|waits| text += &unmeasured_text(waits));
    }
    text + "."
}

/// Text about waits of reads in order for which no measurement has shown a faster size.
fn unmeasured_text(waits: &ReadaheadWaits) -> String {
    let waited_for = match waits.request_bytes {
        Some(_) => "a request of their own, one at a time",
        None => "the kernel's readahead",
    };
    let (remedy, hint) = match waits.is_direct {
        true => ("larger requests are faster", ""),
        false => ("a larger window is faster", " (`readpath advise --mount` compares windows)"),
    };
    let reads = if waits.waits == 1 { "read" } else { "reads" };
    format!(
        "; {} {reads} in order waited {:.2} s for {waited_for}, and whether {remedy} is not \
         known{hint}",
        waits.waits, waits.seconds
    )
}

/// Sentence about the reads of other programs on a device. Their amount is the mean number in
/// flight if it is known, else the bytes per second.
fn other_reads_text(others: &OtherReads) -> String {
    let most_reads = others
        .most
        .as_ref()
        .map_or_else(String::new, |(name, task)| format!(", most of them by {name} (task {task})"));
    let device = &others.device;
    let amount = match (others.in_flight, others.bytes_per_second) {
        (Some(in_flight), _) => {
            format!("had {in_flight:.1} reads in flight at {device} on average")
        }
        (None, Some(bytes)) => {
            format!("read {:.1} MiB a second from {device}", bytes / f64::from(1 << 20))
        }
        (None, None) => format!("read from {device}"),
    };
    format!(
        "Other programs {amount}{most_reads}. They may have delayed the reads; by how much is not known."
    )
}

/// Writes the explanation as text: first line, wall time, caveats, findings, and the shape of the
/// reads. Without findings, a sentence on the limit takes their place, and hidden waits have no
/// line of their own.
fn write_text(out: &mut String, explanation: &Explanation) -> fmt::Result {
    // The program, its time, and reads that are missing from the figures.
    writeln!(out, "{}", headline(explanation))?;
    time::write_wall_time(out, explanation)?;
    if explanation.lost > 0 {
        writeln!(out, "{} events were lost: figures are too low", explanation.lost)?;
    }
    for (method, count, seconds) in &explanation.unseen {
        let method = method_name(*method);
        let waits_text = match *seconds > 0.0 {
            true => format!("threads waited {seconds:.3} s for them"),
            false => "the waits for them are not known".to_owned(),
        };
        writeln!(out, "{count} reads by {method} were not recorded; {waits_text}")?;
    }
    for other_reads in &explanation.other_reads {
        writeln!(out, "{}", other_reads_text(other_reads))?;
    }
    writeln!(out)?;
    if explanation.findings.is_empty() {
        writeln!(out, "{}", no_findings_text(explanation))?;
    } else {
        writeln!(out, "Findings, the most costly first:")?;
        for (rank, finding) in (1..).zip(&explanation.findings) {
            let percent = finding.share * 100.0;
            writeln!(
                out,
                "\n{rank}. {}: {:.2} s ({percent:.0} %)",
                finding.title, finding.seconds
            )?;
            writeln!(out, "   Evidence: {}.", finding.evidence)?;
            writeln!(out, "   Remedy: {}.", finding.remedy)?;
            if let Some(gain) = &finding.gain {
                writeln!(out, "   Gain: {}.", gains::gain_text(gain, explanation.seconds))?;
            }
        }
        if let Some(hidden) = &explanation.hidden_waits {
            writeln!(out, "\nNot in the findings: {hidden}.")?;
        }
    }
    if explanation.shape.reads > 0 {
        write_shape(out, &explanation.shape)?;
    }
    Ok(())
}

/// Name of the fetched bytes. The name says so if the kernel's readahead is not among them, or if
/// less than half of them were requested from a device, as with holes of files.
fn name_of_fetch(shape: &ReadShape) -> String {
    if shape.misses_readahead {
        return "fetched by reads that waited (readahead is not recorded)".to_owned();
    }
    match shape.few_device_bytes() {
        Some(bytes) => {
            let bytes = table::mib(Some(bytes));
            format!("brought into the page cache ({bytes} MiB by requests to devices)")
        }
        None => "fetched".to_owned(),
    }
}

/// Writes the section about the reads: methods, order, bytes, errors, distributions, files and
/// threads.
fn write_shape(out: &mut String, shape: &ReadShape) -> fmt::Result {
    writeln!(out, "\nThe reads")?;
    let methods =
        shape.ways.iter().map(|(method, count)| format!("{count} by {}", method_name(*method)));
    writeln!(out, "  {}", methods.collect::<Vec<String>>().join(", "))?;
    // Order, bytes and errors.
    write!(
        out,
        "  {:.0} % begin up to 16 KiB behind the end of an earlier read",
        shape.sequential_part * 100.0
    )?;
    // Without requests and waits the depth is 0, and nothing is known of it.
    match shape.depth > 0.0 {
        true => writeln!(out, "; {:.1} requests in flight at the device", shape.depth)?,
        false => writeln!(out)?,
    }
    writeln!(
        out,
        "  {} MiB returned; {} MiB {}, of which {} MiB again and {} MiB not requested",
        table::mib(Some(shape.got_bytes)),
        table::mib(Some(shape.fetched_bytes)),
        name_of_fetch(shape),
        table::mib(Some(shape.again_bytes)),
        table::mib(Some(shape.unused_bytes)),
    )?;
    if shape.mapped_bytes > 0 {
        writeln!(
            out,
            "  {} MiB more were mapped by page faults; their use is not known",
            table::mib(Some(shape.mapped_bytes)),
        )?;
    }
    if shape.errors > 0 {
        writeln!(out, "  {} failed", shape.errors)?;
    }
    write_distributions(out, shape)?;
    let [files, threads] = file_and_thread_tables(shape);
    write!(out, "\n{files}\n{threads}")
}

/// Writes the distributions of the reads: sizes, waits, strides, and misses by cache size. Reads
/// that waited for nothing have no waits.
fn write_distributions(out: &mut String, shape: &ReadShape) -> fmt::Result {
    let sizes: Vec<String> = shape
        .sizes
        .iter()
        .map(|size| format!("{}: {}", format_bytes(size.from), size.count))
        .collect();
    writeln!(out, "  sizes, by lower bound: {}", sizes.join(", "))?;
    let waits: Vec<String> = shape
        .waits
        .iter()
        .map(|wait| format!("{}: {}", table::duration(Some(wait.from as f64 / 1e3)), wait.count))
        .collect();
    if !waits.is_empty() {
        writeln!(out, "  waits, by lower bound: {}", waits.join(", "))?;
    }
    let strides: Vec<String> =
        shape.strides.iter().map(|stride| format!("{}: {}", stride.bytes, stride.count)).collect();
    if !strides.is_empty() {
        writeln!(
            out,
            "  distances in bytes from the end of a read to the next: {}",
            strides.join(", ")
        )?;
    }
    let reuse: Vec<String> = shape
        .reuse
        .iter()
        .map(|point| format!("{}: {:.0} %", format_bytes(point.bytes), point.miss_ratio * 100.0))
        .collect();
    writeln!(out, "  misses in a cache of: {}", reuse.join(", "))
}

/// Name of a read method, as in the JSON document.
fn method_name(method: ReadMethod) -> String {
    let name = serde_json::to_value(method).expect("a way has a name");
    name.as_str().unwrap_or_default().to_owned()
}

/// Tables of the files and of the threads that waited longest, one row each.
fn file_and_thread_tables(shape: &ReadShape) -> [Table; 2] {
    let files: [Column<explain::FileStatistics>; 5] = [
        ("file", |file| printable(&file.path)),
        ("reads", |file| file.reads.to_string()),
        ("MiB returned", |file| table::mib(Some(file.got_bytes))),
        ("MiB fetched", |file| table::mib(Some(file.fetched_bytes))),
        ("waited s", |file| table::number(file.waited_seconds, 3)),
    ];
    let threads: [Column<explain::ThreadStatistics>; 4] = [
        ("thread", |thread| format!("{} {}", printable(&thread.name), thread.task)),
        ("reads", |thread| thread.reads.to_string()),
        ("MiB returned", |thread| table::mib(Some(thread.got_bytes))),
        ("waited s", |thread| table::number(thread.waited_seconds, 3)),
    ];
    let numbers_from = 1;
    [
        Table::of(&shape.files, &files, numbers_from),
        Table::of(&shape.threads, &threads, numbers_from),
    ]
}

/// Formats bytes in the largest unit up to the number. KiB and MiB are rounded down, GiB to one
/// decimal.
fn format_bytes(bytes: u64) -> String {
    match bytes {
        ..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use readpath_record::explain::{ActivityTime, SampledFile};
    use readpath_trace::recording::Activity;

    use super::*;

    /// Text about a program without findings that waited 2 s for reads in order, with `depth`
    /// requests in flight. Their gains are not measured. `request_bytes`: size of a request of
    /// their own, or `None` for the kernel's windows.
    fn text_of_ordered_reader(depth: f64, request_bytes: Option<u64>) -> String {
        let mut explanation = Explainer::default().finish();
        explanation.limit = ProgramLimit::Device;
        explanation.waited_seconds = Some(2.0);
        explanation.shape.depth = depth;
        explanation.readahead = Some(ReadaheadWaits {
            seconds: 2.0,
            share: 0.9,
            waits: 100,
            file: SampledFile { path: "/data".to_owned(), device: 0, inode: 0, bytes: None },
            offset: 0,
            seconds_per_byte: 1e-8,
            request_bytes,
            is_direct: false,
        });
        no_findings_text(&explanation)
    }

    /// The kernel keeps two of its windows in flight for a plain reader. With fewer requests in
    /// flight than a remedy proposes, a device may be faster with more. Requests of 64 KiB of the
    /// program's own, one at a time, may be too small: there is no verdict on them. Each text has
    /// the note.
    #[test]
    fn plain_reader_in_order_has_no_fault() {
        let cases = [
            (16.0, None, "Its reads have no fault; the device is the limit: "),
            (2.0, None, "No fault was found in its reads; it waits for the device: "),
            (1.0, Some(64 << 10), "No diagnosis: "),
            // Other reads had a high depth. The single requests in order did not.
            (8.0, Some(64 << 10), "No diagnosis: "),
        ];
        for (depth, request_bytes, diagnosis) in cases {
            let text = text_of_ordered_reader(depth, request_bytes);
            assert!(text.starts_with(diagnosis), "{text}");
            assert!(text.contains("100 reads in order waited 2.00 s for "), "{text}");
        }
    }

    /// A program that lists folders waits for their metadata, which are no reads of files. The
    /// first line said that it had not waited for a device.
    #[test]
    fn first_line_is_about_reads_of_files() {
        let mut explanation = Explainer::default().finish();
        (explanation.seconds, explanation.waited_seconds) = (2.13, Some(0.0));
        assert_eq!(
            headline(&explanation),
            "The program: 2.13 s, of which 0.00 s (0 %) waited for reads of files"
        );
    }

    /// The fetched bytes of a recording without the kernel's readahead have a name that says so.
    #[test]
    fn fetched_bytes_without_readahead_are_named() {
        let mut shape = Explainer::default().finish().shape;
        assert_eq!(name_of_fetch(&shape), "fetched");
        shape.misses_readahead = true;
        assert_eq!(
            name_of_fetch(&shape),
            "fetched by reads that waited (readahead is not recorded)"
        );
    }

    /// 16 threads read twice as fast as four on an emulated device of 1 ms a request. The device
    /// was said to be the limit of four. A stream is limited by it if larger windows are not
    /// faster, measured for most of the waits of 2 s.
    #[test]
    fn device_is_the_limit_only_with_evidence_that_more_requests_do_not_help() {
        let limit = "Its reads have no fault; the device is the limit: ";
        let untried = "No fault was found in its reads; it waits for the device: ";
        for (depth, none_faster_seconds, diagnosis) in
            [(3.8, 0.0, untried), (15.6, 0.0, limit), (2.0, 1.5, limit), (2.0, 0.5, untried)]
        {
            let mut explanation = Explainer::default().finish();
            explanation.limit = ProgramLimit::Device;
            (explanation.waited_seconds, explanation.shape.depth) = (Some(2.0), depth);
            explanation.none_faster_seconds = none_faster_seconds;
            let text = no_findings_text(&explanation);
            assert!(text.starts_with(diagnosis), "{text}");
            let is_unknown =
                text.contains("whether more of them in flight are faster is not known");
            assert_eq!(is_unknown, diagnosis == untried, "{text}");
        }
    }

    /// A program of 1 s without findings that computes most of its time. Faster reads save at most
    /// 0.2 s, or 0.02 s next to other work.
    #[test]
    fn program_that_computes_is_limited_by_its_processor() {
        for (read_seconds, diagnosis) in [
            (0.2, "No fault was found in its reads, and other work takes longer: "),
            (0.02, "Its reads have no fault; they do not limit the program: "),
        ] {
            let mut explanation = Explainer::default().finish();
            (explanation.seconds, explanation.limit) = (1.0, ProgramLimit::Program);
            explanation.waited_seconds = Some(0.2);
            let times = [(Activity::Processor, 1.0 - read_seconds), (Activity::Read, read_seconds)];
            explanation.time =
                times.map(|(activity, seconds)| ActivityTime { activity, seconds }).to_vec();
            let text = no_findings_text(&explanation);
            assert!(text.starts_with(diagnosis), "{text}");
            assert!(text.contains("most of its time: running on a processor, "), "{text}");
        }
    }
}
