//! Logs of the operations of a process, in fio's own formats (`write_lat_log`, `write_bw_log`,
//! `write_iops_log`, `write_iolog`).
//!
//! A line of a value log is `ms, value, 0|1, bytes[, offset], priority[, issue-ns]` (fio's manual,
//! "Log File Formats"). The time starts with the process. 0 means read and 1 means write. The value
//! depends on the log, as in fio 3.33:
//!
//! - latency: nanoseconds;
//! - operations per second: 1;
//! - bandwidth: bytes ÷ latency, in thousands of bytes per second.
//!
//! With windows (`log_avg_msec`) the value is the mean latency, operations per second, or KiB per
//! second. A window ends with the first operation that completes in a later window and still
//! includes it. Its line has 0 as size and offset, and no issue time.
//!
//! A trace is fio's iolog, version 3, with times in microseconds.
//!
//! The log of submission latencies is created and stays empty. For an engine that returns after
//! completion, fio counts the whole latency as completion latency.

use std::fmt;

use readpath_core::request::{Class, Op, Priority};
use readpath_core::unit::Time;

use crate::job::{Job, LogOptions};
use crate::workload::{FileId, ProcessOperation, WorkloadFile};

/// Destination of the lines of a log. It stores errors until they are requested.
pub trait LogSink: fmt::Debug + Send {
    /// Writes a line. The argument has no line end.
    fn line(&mut self, line: fmt::Arguments<'_>);

    /// Returns the time base of a trace: the time of the first call, also for later calls. All
    /// processes that write to one trace thus have the same base.
    fn time_base(&mut self, now: Time) -> Time;
}

/// First line of a trace.
pub const TRACE_HEADER: &str = "fio version 3 iolog";

/// Type of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// Total latencies.
    Latency,
    /// Latencies from submission to completion.
    Completion,
    /// Latencies until submission.
    Submission,
    /// Bandwidth.
    Bandwidth,
    /// Operations per second.
    Operations,
    /// The operations themselves.
    Trace,
}

/// Returns the file name of a log. `prefix` is the name that the job gives. `process_number` counts
/// the processes over all jobs, from 1. `row` is appended to the prefix. It is empty unless a run
/// has several rows of results, such as one per policy. As in fio, the name of a trace is the
/// prefix itself, without type and process.
fn file_name(
    kind: LogKind,
    prefix: &str,
    row: &str,
    logs: &LogOptions,
    process_number: u32,
) -> String {
    let kind = match kind {
        LogKind::Latency => "lat",
        LogKind::Completion => "clat",
        LogKind::Submission => "slat",
        LogKind::Bandwidth => "bw",
        LogKind::Operations => "iops",
        LogKind::Trace => return format!("{prefix}{row}"),
    };
    match logs.is_one_file_for_all {
        true => format!("{prefix}{row}_{kind}.log"),
        false => format!("{prefix}{row}_{kind}.{process_number}.log"),
    }
}

/// Returns the logs that a process of `job` writes, with their file names. `row` is a part of each
/// name, empty for a run with one row of results. `process_number` counts the processes of all
/// jobs, from 1.
pub fn files_of(job: &Job, row: &str, process_number: u32) -> Vec<(LogKind, String)> {
    let logs = &job.logs;
    // As in fio, one option with a prefix enables three logs of latencies.
    let kinds = [
        (LogKind::Latency, &logs.latency),
        (LogKind::Completion, &logs.latency),
        (LogKind::Submission, &logs.latency),
        (LogKind::Bandwidth, &logs.bandwidth),
        (LogKind::Operations, &logs.operations),
        (LogKind::Trace, &logs.trace),
    ];
    let with_prefix = kinds.into_iter().filter_map(|(kind, prefix)| Some((kind, prefix.as_ref()?)));
    with_prefix
        .map(|(kind, prefix)| (kind, file_name(kind, prefix, row, logs, process_number)))
        .collect()
}

/// Logs of one process.
#[derive(Debug)]
pub struct ProcessLog {
    /// Start of the process. `None` before [`ProcessLog::begin`], which precedes all operations.
    started_at: Option<Time>,
    /// Logs of latencies, bandwidth and operations per second.
    values: Vec<ValueLog>,
    /// Trace of the operations, if the job has one.
    trace: Option<TraceLog>,
    /// Columns of the lines of all value logs.
    columns: LogColumns,
    /// Length of a window, or 0 for a line per operation.
    window_ms: u64,
    /// True if windows contain the maximum latency, false for the mean.
    logs_maximum: bool,
}

/// Columns of a line after the value.
#[derive(Clone, Copy, Debug)]
struct LogColumns {
    /// True if a line contains the offset.
    has_offset: bool,
    /// True if a line contains the issue time in nanoseconds.
    has_issue_time: bool,
    /// Form of the priority, with its value.
    priority: PriorityForm,
}

/// Form of the priority in a log.
#[derive(Clone, Copy, Debug)]
enum PriorityForm {
    /// True for the highest priority class.
    IsHigh(bool),
    /// Class and level in the kernel's encoding.
    Number(u32),
}

/// A value log.
#[derive(Debug)]
struct ValueLog {
    /// Type of the values.
    kind: LogKind,
    /// Destination of the lines.
    sink: Box<dyn LogSink>,
    /// Operations since the last line, reads and writes.
    window_sums: [WindowSums; 2],
    /// Start of the present window, in milliseconds since the start of the process.
    window_start_ms: u64,
}

/// Operations of one direction in a window.
#[derive(Clone, Copy, Debug, Default)]
struct WindowSums {
    /// Number of operations.
    count: u64,
    /// Sum of their latencies.
    sum_ns: u128,
    /// Maximum latency.
    max_ns: u64,
    /// Sum of their sizes.
    bytes: u64,
}

/// A trace log, with the files of the process.
#[derive(Debug)]
struct TraceLog {
    /// Destination of the lines.
    sink: Box<dyn LogSink>,
    /// Files of the process, with their names.
    files: Vec<(FileId, String)>,
    /// Files of which the trace has an `open` line.
    opened: Vec<FileId>,
    /// Time from which the times of the trace count.
    time_base: Time,
}

impl ProcessLog {
    /// Creates the logs of a process of `job`. `files` are its files, which index `all_files`,
    /// the files of the workload. `sinks` contains the destination of each of [`files_of`].
    /// Returns `None` without logs.
    pub fn new(
        job: &Job,
        files: &[FileId],
        all_files: &[WorkloadFile],
        sinks: Vec<(LogKind, Box<dyn LogSink>)>,
    ) -> Option<ProcessLog> {
        if sinks.is_empty() {
            return None;
        }
        let logs = &job.logs;
        let mut values = Vec::new();
        let mut trace = None;
        for (kind, sink) in sinks {
            if kind == LogKind::Trace {
                let name = |file: &FileId| all_files[file.0 as usize].name.clone();
                let files = files.iter().map(|file| (*file, name(file))).collect();
                trace = Some(TraceLog { sink, files, opened: Vec::new(), time_base: Time::ZERO });
            } else {
                values.push(ValueLog {
                    kind,
                    sink,
                    window_sums: Default::default(),
                    window_start_ms: 0,
                });
            }
        }
        let columns = LogColumns {
            has_offset: logs.has_offset,
            has_issue_time: logs.has_issue_time,
            priority: PriorityForm::from_priority(job.priority, logs.has_priority),
        };
        let window_ms = logs.window.ns() / 1_000_000;
        Some(ProcessLog {
            started_at: None,
            values,
            trace,
            columns,
            window_ms,
            logs_maximum: logs.logs_maximum,
        })
    }

    /// Records the start of the process, from which the times in the logs count. Writes an `add`
    /// line for each file of the process to the trace.
    pub fn begin(&mut self, now: Time) {
        self.started_at = Some(now);
        if let Some(trace) = &mut self.trace {
            trace.time_base = trace.sink.time_base(now);
            for file in 0..trace.files.len() {
                let name = &trace.files[file].1;
                trace.sink.line(format_args!("0 {name} add"));
            }
        }
    }

    /// Writes the issue of an operation to the trace log, if the job has one. An operation on a
    /// file that was not one of the process's at its start is left out. Writes `open` before the
    /// first operation of a file.
    pub fn on_issued(&mut self, now: Time, operation: &ProcessOperation) {
        let Some(trace) = &mut self.trace else { return };
        let ProcessOperation { file, offset, bytes, op, .. } = *operation;
        let action = match op {
            Op::Read => "read",
            Op::Write => "write",
        };
        trace.line(now, file, format_args!("{action} {offset} {bytes}"));
    }

    /// Writes a sync of written data to the trace, if there is one, with `datasync` if
    /// `is_data_enough`, otherwise with `sync`. The line names `file`, with `open` before it if the
    /// file is not open yet. With `None` there is a line for each opened file.
    pub fn on_synced(&mut self, now: Time, is_data_enough: bool, file: Option<FileId>) {
        let action = if is_data_enough { "datasync" } else { "sync" };
        match (file, &mut self.trace) {
            (Some(file), Some(trace)) => trace.line(now, file, format_args!("{action} 0 0")),
            (Some(_), None) => {}
            (None, _) => self.for_each_opened(now, |us, name, sink| {
                sink.line(format_args!("{us} {name} {action} 0 0"));
            }),
        }
    }

    /// Records a successful operation that lasted from `issued` to `ended`: as a line in each value
    /// log, or in the current window. The window is written if the operation ends it.
    pub fn on_completed(&mut self, issued: Time, ended: Time, operation: &ProcessOperation) {
        let start_time = self.started_at.unwrap_or(Time::ZERO);
        let ms = ended.since(start_time).ns() / 1_000_000;
        let ns = ended.since(issued).ns();
        for values in &mut self.values {
            if self.window_ms > 0 {
                values.window_sums[operation.op as usize].add(ns, operation.bytes);
                if ms.saturating_sub(values.window_start_ms) >= self.window_ms {
                    values.write_window(ms, self.logs_maximum, self.columns);
                    // The next window starts at a multiple of the length.
                    values.window_start_ms = ms - ms % self.window_ms;
                }
                continue;
            }
            let value = match values.kind {
                LogKind::Bandwidth => {
                    // One byte per ns is a million thousands of bytes per second. A latency of 0 ns
                    // counts as 1 ns.
                    let kilobytes_per_s =
                        u128::from(operation.bytes) * 1_000_000 / u128::from(ns.max(1));
                    u64::try_from(kilobytes_per_s).unwrap_or(u64::MAX)
                }
                LogKind::Operations => 1,
                // This log stays empty, as the module's text explains.
                LogKind::Submission => continue,
                _ => ns,
            };
            let issue_time = issued.since(start_time);
            let bytes_and_offset = Some((operation.bytes, operation.offset));
            let (op, columns) = (operation.op, self.columns);
            let line =
                LogValue { ms, value, op, bytes_and_offset, issued: Some(issue_time), columns };
            values.sink.line(format_args!("{line}"));
        }
    }

    /// Writes the last lines at the end of the process: the unfinished window of each value log,
    /// and a `close` line for each opened file in the trace.
    pub fn on_process_end(&mut self, now: Time) {
        let start_time = self.started_at.unwrap_or(Time::ZERO);
        let ms = now.since(start_time).ns() / 1_000_000;
        for values in self.values.iter_mut().filter(|_| self.window_ms > 0) {
            values.write_window(ms, self.logs_maximum, self.columns);
        }
        self.for_each_opened(now, |us, name, sink| {
            sink.line(format_args!("{us} {name} close"));
        });
    }

    /// Calls `write_to` for each opened file of the trace with the time in µs, its name and the
    /// destination. Without effect if there is no trace.
    fn for_each_opened(
        &mut self,
        now: Time,
        mut write_to: impl FnMut(u64, &str, &mut dyn LogSink),
    ) {
        let Some(trace) = &mut self.trace else { return };
        let us = trace.us_since_base(now);
        for (file, name) in &trace.files {
            if trace.opened.contains(file) {
                write_to(us, name, trace.sink.as_mut());
            }
        }
    }
}

impl TraceLog {
    /// Returns the time `now` in µs since the time base of the trace.
    fn us_since_base(&self, now: Time) -> u64 {
        now.since(self.time_base).ns() / 1_000
    }

    /// Writes a line for a file of the process, with `open` before its first one. Another file is
    /// left out.
    fn line(&mut self, now: Time, file: FileId, action: fmt::Arguments<'_>) {
        let us = self.us_since_base(now);
        let named_file = self.files.iter().find(|(known_file, _)| *known_file == file);
        let Some((_, name)) = named_file else { return };
        if !self.opened.contains(&file) {
            self.opened.push(file);
            self.sink.line(format_args!("{us} {name} open"));
        }
        self.sink.line(format_args!("{us} {name} {action}"));
    }
}

impl PriorityForm {
    /// Returns the form of a priority: the kernel's number if `is_number`, with the class in
    /// bits 13 and above, and 0 for a job without priority. Otherwise the mark of the highest
    /// class, which only real time has.
    fn from_priority(priority: Option<Priority>, is_number: bool) -> PriorityForm {
        let is_high = priority.is_some_and(|priority| priority.class == Class::RealTime);
        match (is_number, priority) {
            (false, _) => PriorityForm::IsHigh(is_high),
            (true, None) => PriorityForm::Number(0),
            (true, Some(Priority { class, level })) => {
                let class = match class {
                    Class::RealTime => 1,
                    Class::BestEffort => 2,
                    Class::Idle => 3,
                };
                PriorityForm::Number(class << 13 | u32::from(level))
            }
        }
    }
}

impl WindowSums {
    /// Adds an operation with a latency of `ns` nanoseconds and a size of `bytes` bytes to the
    /// window.
    fn add(&mut self, ns: u64, bytes: u64) {
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
        self.bytes += bytes;
    }
}

impl ValueLog {
    /// Writes a line for each direction with operations since the last line, and clears their sums.
    /// `ms` is the time since the start of the process, at which the window ends. `logs_maximum`
    /// selects the maximum latency of the window, otherwise the mean. The values of bandwidth and
    /// operations refer to the time since the start of the window. The caller sets the start of the
    /// next window. The log of submission latencies stays empty, as the module's text explains.
    fn write_window(&mut self, ms: u64, logs_maximum: bool, columns: LogColumns) {
        // The last window of a process may be shorter than 1 ms.
        let window_ms = ms.saturating_sub(self.window_start_ms).max(1);
        for op in [Op::Read, Op::Write] {
            let WindowSums { count, sum_ns, max_ns, bytes } =
                std::mem::take(&mut self.window_sums[op as usize]);
            if count == 0 || self.kind == LogKind::Submission {
                continue;
            }
            let value = match self.kind {
                LogKind::Bandwidth => bytes * 1000 / 1024 / window_ms,
                LogKind::Operations => count * 1000 / window_ms,
                _ if logs_maximum => max_ns,
                _ => (sum_ns / u128::from(count)) as u64,
            };
            let line = LogValue { ms, value, op, bytes_and_offset: None, issued: None, columns };
            self.sink.line(format_args!("{line}"));
        }
    }
}

/// A line of a value log.
struct LogValue {
    /// Time since the start of the process, in milliseconds.
    ms: u64,
    /// Value in the unit of the log.
    value: u64,
    /// Direction, written as 0 for a read and 1 for a write.
    op: Op,
    /// Size and offset in bytes. `None` for a window.
    bytes_and_offset: Option<(u64, u64)>,
    /// Issue time since the start of the process. `None` for a window.
    issued: Option<Time>,
    /// Optional columns of the log.
    columns: LogColumns,
}

impl fmt::Display for LogValue {
    /// Writes the line in fio's form, with the columns that the job has. The size, and the
    /// offset if it has a column, are 0 for a window.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, offset) = self.bytes_and_offset.unwrap_or_default();
        write!(f, "{}, {}, {}, {bytes}", self.ms, self.value, self.op as usize)?;
        if self.columns.has_offset {
            write!(f, ", {offset}")?;
        }
        match self.columns.priority {
            PriorityForm::IsHigh(is_high) => write!(f, ", {}", u8::from(is_high))?,
            PriorityForm::Number(number) => write!(f, ", 0x{number:04x}")?,
        }
        match self.issued.filter(|_| self.columns.has_issue_time) {
            Some(issued) => write!(f, ", {}", issued.ns()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::job::JobFile;

    /// Lines of a log, kept in memory.
    #[derive(Clone, Debug, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    impl LogSink for Lines {
        fn line(&mut self, line: fmt::Arguments<'_>) {
            self.0.lock().unwrap().push(line.to_string());
        }

        fn time_base(&mut self, now: Time) -> Time {
            now
        }
    }

    /// Returns the name and the lines of each log of process number 7, which starts at 1 s. Five
    /// alternate reads and writes of 4 KiB start every 10 ms, 8 KiB apart, and take 5 ms. Then the
    /// process syncs and ends at 50 ms.
    fn logs_of_five_operations(options: &str) -> Vec<(String, Vec<String>)> {
        let text = format!("[j]\nsize=1m\n{options}\n");
        let job = &JobFile::parse(&text).unwrap().jobs[0];
        let files = [WorkloadFile { name: "data".to_owned(), bytes: 1 << 20 }];
        let (row, process_number) = ("", 7);
        let named = files_of(job, row, process_number);
        let lines: Vec<Lines> = named.iter().map(|_| Lines::default()).collect();
        let sinks = named.iter().zip(&lines);
        let sinks =
            sinks.map(|((kind, _), lines)| (*kind, Box::new(lines.clone()) as Box<dyn LogSink>));
        let mut log = ProcessLog::new(job, &[FileId(0)], &files, sinks.collect()).unwrap();
        let begun = Time::from_s(1);
        log.begin(begun);
        for nth in 0..5 {
            let issued = begun + Time::from_ms(10 * nth);
            let op = if nth % 2 == 0 { Op::Read } else { Op::Write };
            let offset = nth * 8192;
            let operation = ProcessOperation {
                file: FileId(0),
                offset,
                bytes: 4096,
                op,
                is_batch_end: true,
                closes: false,
            };
            log.on_issued(issued, &operation);
            log.on_completed(issued, issued + Time::from_ms(5), &operation);
        }
        let (end, is_data_enough) = (begun + Time::from_ms(50), false);
        log.on_synced(end, is_data_enough, Some(FileId(0)));
        log.on_process_end(end);
        let names = named.into_iter().map(|(_, name)| name);
        names.zip(lines.into_iter().map(|lines| lines.0.lock().unwrap().clone())).collect()
    }

    /// Worked by hand: 4096 bytes in 5 ms are 819.2 thousand bytes per second. In the kernel's
    /// encoding, priority 3 of the class best effort (2) is 2 · 2^13 + 3 = 0x4003.
    #[test]
    fn every_operation_has_a_line() {
        let options = "write_lat_log=p\nwrite_bw_log\nwrite_iops_log=q\nlog_offset=1";
        let logs = logs_of_five_operations(options);
        let names: Vec<&str> = logs.iter().map(|log| log.0.as_str()).collect();
        let expected =
            ["p_lat.7.log", "p_clat.7.log", "p_slat.7.log", "j_bw.7.log", "q_iops.7.log"];
        assert_eq!(names, expected);
        let [latency, completion, submission, bandwidth, operations] =
            [0, 1, 2, 3, 4].map(|index: usize| &logs[index].1);
        assert_eq!(latency[..2], ["5, 5000000, 0, 4096, 0, 0", "15, 5000000, 1, 4096, 8192, 0"]);
        assert_eq!((completion, submission.len()), (latency, 0));
        assert_eq!(bandwidth[0], "5, 819, 0, 4096, 0, 0");
        assert_eq!(operations[4], "45, 1, 0, 4096, 32768, 0");
        let options = "write_iops_log=q\nprio=3\nlog_prio=1\nlog_issue_time=1\nper_job_logs=0";
        let logs = logs_of_five_operations(options);
        assert_eq!(
            (logs[0].0.as_str(), logs[0].1[1].as_str()),
            ("q_iops.log", "15, 1, 1, 4096, 0x4003, 10000000")
        );
    }

    /// The windows end with the operations that complete at 25 ms and 45 ms. The first has two
    /// reads and a write in 25 ms: 8 KiB and 4 KiB, 320 and 160 KiB per second, 80 and 40
    /// operations per second. The second, 25 ms from 20 ms on, has one of each.
    #[test]
    fn averaging_windows_aggregate_operations() {
        let options = "log_avg_msec=20\nwrite_lat_log=p\nwrite_bw_log=p\nwrite_iops_log=p";
        let logs = logs_of_five_operations(options);
        assert_eq!(
            logs[0].1,
            [
                "25, 5000000, 0, 0, 0",
                "25, 5000000, 1, 0, 0",
                "45, 5000000, 0, 0, 0",
                "45, 5000000, 1, 0, 0"
            ]
        );
        let bandwidth =
            ["25, 320, 0, 0, 0", "25, 160, 1, 0, 0", "45, 160, 0, 0, 0", "45, 160, 1, 0, 0"];
        assert_eq!(logs[3].1, bandwidth);
        let operations =
            ["25, 80, 0, 0, 0", "25, 40, 1, 0, 0", "45, 40, 0, 0, 0", "45, 40, 1, 0, 0"];
        assert_eq!(logs[4].1, operations);
    }

    /// The trace counts in µs from the start of the process.
    #[test]
    fn iolog_trace_records_operations_with_their_times() {
        let logs = logs_of_five_operations("write_iolog=trace");
        let (name, lines) = &logs[0];
        assert_eq!(name, "trace");
        assert_eq!(
            lines[..4],
            ["0 data add", "0 data open", "0 data read 0 4096", "10000 data write 8192 4096"]
        );
        assert_eq!(lines[7..], ["50000 data sync 0 0", "50000 data close"]);
    }
}
