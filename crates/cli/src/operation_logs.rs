//! Log files of a job (`write_lat_log`, `write_iolog` and others), written to the current folder as
//! fio does.
//!
//! A file is open only while lines are appended: a job may have thousands of processes, each with
//! up to six logs.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use readpath_core::unit::Time;
use readpath_sim::job::{Job, JobFile, printable};
use readpath_sim::operation_log::{LogKind, LogSink, ProcessLog, TRACE_HEADER, files_of};
use readpath_sim::workload::Workload;

use crate::exit::{CommandResult, Failure};
use crate::output_file::is_same_file;

/// Size of the line buffer of a file, in bytes. Chosen, not measured.
const BUFFER_BYTES: usize = 64 << 10;

/// Logs of one row.
pub struct OperationLogs {
    /// Suffix of the file names in the job, which distinguishes the rows.
    row_suffix: String,
    /// Open logs by path.
    files: BTreeMap<PathBuf, SharedLogFile>,
}

impl OperationLogs {
    /// Creates or truncates the logs of the row `row_number` of `row_count`, counted from 1. The
    /// names have the number of the row if there are several.
    ///
    /// # Errors
    /// A file cannot be created, or is one of the run's input files.
    pub fn create(
        jobs: &JobFile,
        input_paths: &[PathBuf],
        row_number: usize,
        row_count: usize,
    ) -> Result<OperationLogs, Failure> {
        let row_suffix = if row_count > 1 { format!("-{row_number}") } else { String::new() };
        let mut logs = OperationLogs { row_suffix, files: BTreeMap::new() };
        // Processes are numbered from 1, over all jobs.
        let mut process = 0;
        for job in &jobs.jobs {
            for _ in 0..job.processes {
                process += 1;
                for (kind, name) in files_of(job, &logs.row_suffix, process) {
                    logs.add(kind, PathBuf::from(name), input_paths)?;
                }
            }
        }
        Ok(logs)
    }

    /// Creates a log file, unless an earlier process of the row has the same one. Refuses one that
    /// would overwrite an input of the run.
    fn add(&mut self, kind: LogKind, path: PathBuf, input_paths: &[PathBuf]) -> CommandResult {
        if self.files.contains_key(&path) {
            return Ok(());
        }
        let name = printable(&path.display().to_string());
        if let Some(input_path) = input_paths.iter().find(|input| is_same_file(input, &path)) {
            return Err(Failure::Usage(format!(
                "the log {name} would overwrite {}, which the run needs; give another name",
                printable(&input_path.display().to_string())
            )));
        }
        let file = LogFile::create(path.clone(), kind).map_err(|error| {
            Failure::Usage(format!("the log {name}: {error}; give a name that can be written"))
        })?;
        self.files.insert(path, SharedLogFile(Arc::new(Mutex::new(file))));
        Ok(())
    }

    /// Attaches to each process of the workload the logs of its job.
    pub fn attach(&self, jobs: &JobFile, workload: &mut Workload) {
        let Workload { files, processes } = workload;
        for process in processes {
            let job: &Job = &jobs.jobs[process.job()];
            // Process ids count from 0, and the numbers in file names from 1.
            let named = files_of(job, &self.row_suffix, process.id().0 + 1).into_iter();
            let sinks = named.filter_map(|(kind, name)| {
                // `create` has made each of these files.
                let sink = self.files.get(Path::new(&name))?.clone();
                Some((kind, Box::new(sink) as Box<dyn LogSink>))
            });
            // `None` for a job without logs.
            if let Some(log) = ProcessLog::new(job, &process.files(), files, sinks.collect()) {
                process.keep_log(log);
            }
        }
    }

    /// Flushes all files. The failure names each file with a write error, one per line.
    pub fn finish(self) -> CommandResult {
        let mut problems = Vec::new();
        for (path, file) in self.files {
            let mut file = file.0.lock().unwrap_or_else(PoisonError::into_inner);
            file.flush();
            if let Some(error) = file.write_error.take() {
                let name = printable(&path.display().to_string());
                problems.push(format!("the log {name}: {error}; it is not complete"));
            }
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Failure::Run(problems.join("\n"))),
        }
    }
}

/// Log file that several processes may write to.
#[derive(Clone, Debug)]
struct SharedLogFile(Arc<Mutex<LogFile>>);

impl LogSink for SharedLogFile {
    /// Appends a line, and flushes a full buffer.
    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).append_line(line);
    }

    /// Returns the time of the first entry in the file, which is `now` at the first call.
    fn time_base(&mut self, now: Time) -> Time {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *file.first_entry_time.get_or_insert(now)
    }
}

/// Log file with its buffered lines.
#[derive(Debug)]
struct LogFile {
    /// Path of the file, which is opened again for each write.
    path: PathBuf,
    /// Lines that are not yet written.
    lines: String,
    /// Time of the first entry, from which the log counts its times.
    first_entry_time: Option<Time>,
    /// First write error. Later lines are discarded.
    write_error: Option<io::Error>,
}

impl LogFile {
    /// Creates the file, or empties it, with the header line of a trace. It is open only while
    /// buffered lines are appended.
    fn create(path: PathBuf, kind: LogKind) -> io::Result<LogFile> {
        File::create(&path)?;
        let mut file =
            LogFile { path, lines: String::new(), first_entry_time: None, write_error: None };
        if kind == LogKind::Trace {
            file.append_line(format_args!("{TRACE_HEADER}"));
        }
        Ok(file)
    }

    /// Appends a line. Writes the lines to the file when the buffer is full.
    fn append_line(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.lines, "{line}").expect("a string takes all lines");
        if self.lines.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Appends the buffered lines to the file, unless an earlier write failed. Empties the buffer
    /// in any case.
    fn flush(&mut self) {
        if self.write_error.is_none() && !self.lines.is_empty() {
            let opened = OpenOptions::new().append(true).open(&self.path);
            self.write_error =
                opened.and_then(|mut file| file.write_all(self.lines.as_bytes())).err();
        }
        self.lines.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folders of the first and the last log vanish during the run, so they cannot be written.
    #[test]
    fn each_log_is_written_and_each_write_error_is_reported() {
        let name = format!("readpath-operation-logs-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let mut logs = OperationLogs { row_suffix: String::new(), files: BTreeMap::new() };
        for name in ["a", "b", "c"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
            logs.add(LogKind::Trace, folder.join(name).join("log"), &[]).unwrap();
        }
        for name in ["a", "c"] {
            std::fs::remove_dir_all(folder.join(name)).unwrap();
        }
        let Err(Failure::Run(text)) = logs.finish() else { panic!("two logs are not complete") };
        // The header of a trace in fio's format, version 3.
        let written = std::fs::read_to_string(folder.join("b/log"));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(written.unwrap(), "fio version 3 iolog\n");
        for path in ["a/log", "c/log"] {
            assert!(text.contains(path), "{path} is not in: {text}");
        }
    }
}
