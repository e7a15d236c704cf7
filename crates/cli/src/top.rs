//! `readpath top`: which programs wait for which files, now.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use readpath_eval::kernel_trace::TracefsError;
use readpath_record::capture::Recorder;
use readpath_record::explain::FileStatistics;
use readpath_record::file_limit;
use readpath_record::live::{LiveProcess, LiveReads};
use readpath_record::notice;
use readpath_sim::job::{self, printable};
use rustix::termios::tcgetwinsize;
use serde_json::json;

use crate::exit::{CommandResult, Failure};
use crate::output::write_failure;
use crate::record;
use crate::signals;
use crate::table::{self, Table};

/// Interval of reading the kernel's buffers. Events are lost if a buffer fills up before. Chosen,
/// not measured.
const READ_INTERVAL: Duration = Duration::from_millis(10);

/// Interval between two tables, if the command line gives none. Chosen, not measured.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(2);
/// Least interval between two tables. Chosen, not measured.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Maximum number of files shown of a process. Chosen, not measured.
const FILES_SHOWN: usize = 3;

/// Number of lines of a terminal of unknown size.
const LINES_DEFAULT: usize = 24;
/// Number of columns of a terminal of unknown size.
const COLUMNS_DEFAULT: usize = 80;

/// Estimated width of the columns that are no long texts, with the spaces between all columns.
const NUMBERS_WIDTH: usize = 56;

/// Width of the names and causes together in a narrow terminal. There the last columns of numbers
/// are left out.
const TEXTS_WIDTH_MIN: usize = 48;

/// `readpath top`.
#[derive(Debug, Args)]
#[command(
    after_help = "Needs root and tracefs with system call events (exit code 3 without). All programs are followed,\n\
    with the children that they start.\n\n\
    waited: part of the time in which at least one thread waited for a read\n\
    cached: part of the returned bytes that no device fetched in this interval\n\
    in flight: read requests at the device, on average while there were any\n\
    cause: the most costly cause of the waits in this interval, as `explain` finds it. It needs 16 waits\n\
    and 5 % of the time. `readpath explain --pid N` looks at a longer time\n\n\
    In a terminal the table is renewed until ctrl-C. In a pipe each interval is written below the\n\
    last.\n\n\
    Examples:\n  \
    readpath top\n  \
    readpath top --count 5 --interval 10s > reads.txt\n  \
    readpath top --cgroup /sys/fs/cgroup/system.slice/postgresql.service"
)]
pub struct TopArgs {
    /// Time between two tables, in seconds or with a unit [default: 2s]
    #[arg(long, value_name = "TIME")]
    pub interval: Option<String>,
    /// Number of tables, after which the command ends [default: until ctrl-C]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Only this process, with the children that it starts meanwhile
    #[arg(long, value_name = "N", conflicts_with = "cgroup")]
    pub pid: Option<u32>,
    /// Folder of a control group: only its processes, and the groups below it
    #[arg(long, value_name = "FOLDER")]
    pub cgroup: Option<PathBuf>,
    /// Print a JSON object per interval, a line each
    #[arg(long)]
    pub json: bool,
}

/// Shows tables until the count is reached, a signal comes, or the process of `--pid` has ended. A
/// control group may become empty meanwhile.
pub fn run(args: &TopArgs) -> CommandResult {
    let interval = parse_interval(args.interval.as_deref())?;
    signals::start_counting()?;
    file_limit::report_as_error();
    let mut recorder = Recorder::start_live().map_err(tracing_failure)?;
    for gap in recorder.gaps() {
        notice::print(format_args!("this kernel lacks {gap}"));
    }
    attach(args, &mut recorder)?;
    let is_over = || args.pid.is_some_and(|process| !is_alive(process));
    // Reads of each process in the present interval.
    let mut reads = LiveReads::default();
    let mut shown = 0;
    // The recording began with the first process.
    let mut begin_ns = 0;
    let mut end = Instant::now() + interval;
    while args.count.is_none_or(|count| shown < count) && !signals::is_interrupted() && !is_over() {
        collect_until(&mut recorder, &mut reads, end, &is_over).map_err(Failure::usage)?;
        // The ends are multiples of the interval, so that late tables do not add up. An interval
        // whose end has passed already ends at once.
        end = (end + interval).max(Instant::now());
        // Later processes of the group are found here.
        if let Some(group) = &args.cgroup {
            record::attach_group(group, &mut recorder)?;
        }
        let end_ns = recorder.elapsed_ns();
        let seconds = (end_ns - begin_ns) as f64 / 1e9;
        // Files and hints of processes that are not alive are forgotten.
        let (processes, lost_events) = reads.end_interval(end_ns, is_alive);
        begin_ns = end_ns;
        print_interval(&processes, seconds, lost_events, args.json)?;
        shown += 1;
    }
    match (signals::is_interrupted(), shown) {
        (false, _) => Ok(()),
        (true, 0) => Err(Failure::Interrupted),
        (true, _) => Err(Failure::InterruptedAfterFigures),
    }
}

/// Returns the failure of the kernel's tracing, with the alternatives for users without root.
fn tracing_failure(error: TracefsError) -> Failure {
    let mut text = format!("the reads of all programs can't be followed: {error}");
    if !rustix::process::geteuid().is_root() {
        text += "; run it as root (`sudo readpath top`). Without root, `readpath explain -- COMMAND` \
            and `readpath record --pid N` see one program";
    }
    Failure::Unavailable(text)
}

/// Parses the time between two tables. Without a text it is the default. Less than the minimum is
/// an error.
fn parse_interval(text: Option<&str>) -> Result<Duration, Failure> {
    let Some(text) = text else { return Ok(INTERVAL_DEFAULT) };
    let failure =
        |expected: &str| Failure::Usage(format!("--interval {text}: expected {expected}"));
    let span = job::span(text).map_err(|expected| failure(&expected.to_string()))?;
    let interval = Duration::from_nanos(span.ns());
    if interval < INTERVAL_MIN {
        return Err(failure("100ms or more"));
    }
    Ok(interval)
}

/// Attaches the recorder to the process, the control group or all processes. An empty group is a
/// failure.
fn attach(args: &TopArgs, recorder: &mut Recorder) -> CommandResult {
    if let Some(process) = args.pid {
        return recorder
            .attach(process)
            .map_err(|error| Failure::usage_of(format!("process {process}"), error));
    }
    if let Some(group) = &args.cgroup {
        return match record::attach_group(group, recorder)? {
            0 => Err(Failure::usage_of(group.display(), "it has no process")),
            _ => Ok(()),
        };
    }
    recorder.attach_all().map(drop).map_err(Failure::usage)
}

/// Takes the records until the time `end`, a signal, or `is_over` returns true, and adds them to
/// `reads`.
fn collect_until(
    recorder: &mut Recorder,
    reads: &mut LiveReads,
    end: Instant,
    is_over: &impl Fn() -> bool,
) -> std::io::Result<()> {
    while Instant::now() < end && !signals::is_interrupted() && !is_over() {
        recorder.wait(READ_INTERVAL)?;
        recorder.take_records(&mut |record| {
            reads.take(record);
            Ok(())
        })?;
    }
    Ok(())
}

/// True if the process exists, by its folder in `/proc`.
fn is_alive(process: u32) -> bool {
    std::fs::exists(format!("/proc/{process}")).unwrap_or(false)
}

/// Writes the table, or the JSON object if `is_json`, of an interval of `seconds`, in which the
/// recorder lost `lost_events` events. In a terminal a table replaces the last one and is cut at
/// the size of the terminal.
fn print_interval(
    processes: &[LiveProcess],
    seconds: f64,
    lost_events: u64,
    is_json: bool,
) -> CommandResult {
    let mut output = std::io::stdout().lock();
    let screen = (output.is_terminal() && !is_json).then(|| Screen::of(&output));
    let text = match &screen {
        _ if is_json => format!("{}\n", interval_json(processes, seconds, lost_events)),
        None => {
            // Outside a terminal the table keeps all columns.
            let no_width = None;
            interval_text(processes, seconds, lost_events, no_width)
        }
        Some(screen) => {
            screen.page(&interval_text(processes, seconds, lost_events, screen.columns))
        }
    };
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(write_failure)
}

/// Present size of a terminal, which may change between two tables.
struct Screen {
    /// Number of lines, at least 1.
    lines: usize,
    /// Characters in a line; `None` if tables are not fitted to it (`--wide`).
    columns: Option<usize>,
}

impl Screen {
    /// Size of the terminal of this output.
    fn of(output: &impl AsFd) -> Screen {
        let size = tcgetwinsize(output).ok();
        let or_default = |cells: Option<u16>, default| match cells.unwrap_or(0) {
            0 => default,
            cells => usize::from(cells),
        };
        let columns = or_default(size.map(|size| size.ws_col), COLUMNS_DEFAULT);
        Screen {
            lines: or_default(size.map(|size| size.ws_row), LINES_DEFAULT),
            columns: table::columns_max().map(|_| columns),
        }
    }

    /// Text that clears the screen and shows the beginning of `text`. A line that is too long would
    /// take a further one, and move the first ones out of sight.
    fn page(&self, text: &str) -> String {
        // The last line of the terminal stays free for the cursor, unless it is the only one.
        let lines = text.lines().take(self.lines.saturating_sub(1).max(1));
        let keeps_end = false;
        let columns = self.columns.unwrap_or(usize::MAX);
        let lines = lines.map(|line| shortened(line, columns, keeps_end));
        // Cursor to the first line, and the screen cleared.
        format!("\x1b[H\x1b[2J{}\n", lines.collect::<Vec<String>>().join("\n"))
    }
}

/// Text of at most `width` characters. A longer one loses its beginning if `keeps_end`, as long
/// paths do, else its end. An ellipsis stands for the lost part.
fn shortened(text: &str, width: usize, keeps_end: bool) -> String {
    let count = text.chars().count();
    let kept = width.saturating_sub(1);
    match (count <= width, keeps_end) {
        (true, _) => text.to_owned(),
        (_, true) => format!("…{}", text.chars().skip(count - kept).collect::<String>()),
        (_, false) => format!("{}…", text.chars().take(kept).collect::<String>()),
    }
}

/// JSON object of an interval of `seconds`: each process with its reads and findings, and the
/// number of lost events. Waits that began before the interval count, up to `seconds` in all.
fn interval_json(processes: &[LiveProcess], seconds: f64, lost_events: u64) -> serde_json::Value {
    let process = |live: &LiveProcess| {
        let explanation = &live.explanation;
        json!({
            "process": live.process,
            "program": live.name,
            "waited_seconds": explanation.waited_seconds.map(|waited| waited.min(seconds)),
            "reads": explanation.shape.reads,
            "got_bytes": explanation.shape.got_bytes,
            "fetched_bytes": explanation.shape.fetched_bytes,
            "depth": explanation.shape.depth,
            "findings": explanation.findings,
            "unseen": explanation.unseen,
            "files": explanation.shape.files,
        })
    };
    let processes: Vec<_> = processes.iter().map(process).collect();
    json!({ "seconds": seconds, "lost": lost_events, "processes": processes })
}

/// Table of an interval of `seconds`, with a line above it that counts the programs. Lost events
/// add a line. `columns`: width of the terminal that the table has to fit.
fn interval_text(
    processes: &[LiveProcess],
    seconds: f64,
    lost_events: u64,
    columns: Option<usize>,
) -> String {
    let has_finding = |live: &&LiveProcess| !live.explanation.findings.is_empty();
    let mut text = format!(
        "{seconds:.1} s: {} programs read, {} of them lost time to a cause\n",
        processes.len(),
        processes.iter().filter(has_finding).count(),
    );
    if lost_events > 0 {
        text += &format!("{lost_events} events were lost: figures are too low\n");
    }
    let header = [
        "process",
        "program or file",
        "cause",
        "waited",
        "reads/s",
        "MiB/s",
        "cached",
        "in flight",
    ];
    let numbers_from = 3;
    let mut table = Table::with_header(header.map(str::to_owned).to_vec(), numbers_from);
    for live in processes {
        add_process_rows(live, seconds, &mut table);
    }
    let Some(columns) = columns else { return text + &table.to_string() + "\n" };
    let texts_width = columns.saturating_sub(NUMBERS_WIDTH).max(TEXTS_WIDTH_MIN);
    // Names get three fifths of the width, causes the rest: chosen by eye.
    let name_width = texts_width * 3 / 5;
    let (name_column, cause_column) = (1, 2);
    let keeps_end = true;
    table.shorten(name_column, |name| shortened(name, name_width, keeps_end));
    let cause_width = texts_width - name_width;
    table.shorten(cause_column, |cause| shortened(cause, cause_width, !keeps_end));
    text + &table.fitted_text(columns) + "\n"
}

/// Adds the row of a process and the rows of its notable files, at most [`FILES_SHOWN`], with rates
/// over an interval of `seconds`.
fn add_process_rows(live: &LiveProcess, seconds: f64, table: &mut Table) {
    let explanation = &live.explanation;
    let shape = &explanation.shape;
    let cells =
        |waited_seconds: Option<f64>, reads: u64, got_bytes: u64, fetched_bytes: u64, depth| {
            // Part of the returned bytes that no device fetched. More may be fetched than returned.
            let fetched_share = (fetched_bytes as f64 / got_bytes as f64).min(1.0);
            let cached_percent = (got_bytes > 0).then_some(100.0 * (1.0 - fetched_share));
            let per_second = |count: f64| Some(count / seconds);
            // Waits that began before the interval count too, which may be longer.
            let waited_percent = waited_seconds.map(|waited| (100.0 * waited / seconds).min(100.0));
            let percent_text = |percent: f64| format!("{percent:.0} %");
            [
                waited_percent.map_or_else(|| "-".to_owned(), percent_text),
                table::number(per_second(reads as f64), 0),
                table::number(per_second(got_bytes as f64 / f64::from(1 << 20)), 1),
                cached_percent.map_or_else(|| "-".to_owned(), percent_text),
                depth,
            ]
        };
    // A title has the name, a colon and the explanation.
    let title = explanation.findings.first().map(|finding| &finding.title);
    let cause = title.map_or("-", |title| title.split(':').next().unwrap_or(title));
    let unseen: u64 = explanation.unseen.iter().map(|(_method, count, _seconds)| count).sum();
    let cause = match unseen {
        0 => cause.to_owned(),
        _ => format!("{cause} ({unseen} reads not seen)"),
    };
    let depth = if shape.depth > 0.0 { format!("{:.1}", shape.depth) } else { "-".to_owned() };
    let mut row = vec![live.process.to_string(), printable(&live.name), cause];
    let waited = explanation.waited_seconds;
    row.extend(cells(waited, shape.reads, shape.got_bytes, shape.fetched_bytes, depth));
    table.add_row(row);
    // Files for which the process waited at least a hundredth of the interval, or with a tenth of
    // its bytes. Others, such as shared libraries, are read by every program.
    let is_notable = |file: &&FileStatistics| {
        // An unknown wait is less than any.
        file.waited_seconds >= Some(0.01 * seconds) || 10 * file.got_bytes >= shape.got_bytes
    };
    for file in shape.files.iter().filter(is_notable).take(FILES_SHOWN) {
        let mut row = vec!["  ".to_owned(), printable(&file.path), String::new()];
        let waited = file.waited_seconds;
        row.extend(cells(waited, file.reads, file.got_bytes, file.fetched_bytes, String::new()));
        table.add_row(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_lose_their_beginning_and_lines_their_end() {
        assert_eq!(shortened("/usr/lib/libc.so.6", 10, true), "…libc.so.6");
        assert_eq!(shortened("448 small files", 10, false), "448 small…");
        assert_eq!(shortened("libc.so.6", 9, true), "libc.so.6");
    }

    /// A terminal with more columns than the least width has all of them, with names and causes of
    /// any length.
    #[test]
    fn wide_terminal_has_all_columns() {
        let mut explanation = readpath_record::explain::Explainer::default().finish();
        explanation.findings.push(readpath_record::explain::Finding {
            cause: readpath_record::explain::WaitCause::Depth,
            seconds: 1.0,
            share: 1.0,
            title: "one request at a time ".repeat(9),
            evidence: String::new(),
            remedy: String::new(),
            gain: None,
        });
        // 2000.0 MiB/s.
        explanation.shape.got_bytes = 2000 << 20;
        let live = LiveProcess { process: 7, name: "program ".repeat(30), explanation };
        for columns in 104..140 {
            let text = interval_text(std::slice::from_ref(&live), 1.0, 0, Some(columns));
            assert!(text.contains("in flight"), "{columns}: {text}");
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}: {text}");
        }
    }

    /// Four lines: the last one stays free. No line is longer than ten columns.
    #[test]
    fn page_fits_into_the_terminal() {
        let screen = Screen { lines: 4, columns: Some(10) };
        let page = screen.page("one\n0123456789ab\nthree\nfour\nfive\n");
        assert_eq!(page, "\x1b[H\x1b[2Jone\n012345678…\nthree\n");
        let lowest = Screen { lines: 1, columns: None };
        assert_eq!(lowest.page("0123456789ab\ntwo\n"), "\x1b[H\x1b[2J0123456789ab\n");
    }
}
