//! Recordings from the text of `strace -f -ttt -T` (with `-y` or `-yy`, or without).
//!
//! A line is `PID SECONDS call(arguments) = result <duration>`. An interrupted call takes two
//! lines, `… <unfinished ...>` and `<... call resumed> …`. The text also contains the bytes that
//! were read, unless strace ran with `-s 0`. The import discards them.
//!
//! Without `-y`, descriptors have no paths in the text. The import then follows them from their
//! opening, and the current folder of each process (`chdir`, `fchdir`) for relative names. Names in
//! folders that the text does not show are counted. It also follows the file position of a `read`
//! from the opening and through the results of `lseek`. A descriptor that was open before the
//! recording is assumed to be at offset 0.
//!
//! A *task* is a thread of the traced programs, known by its number. A call such as `clone`
//! *begins* a task, and returns its number. A task is *early* if a line of it precedes the second
//! line of that call.
//!
//! Imported are reads (`read`, `pread64`, `readv`, `preadv`, `preadv2`), reads by copying
//! (`sendfile`, `copy_file_range`, `splice`), asynchronous reads (`io_submit` with the
//! `io_getevents` that ends them), mappings (`mmap`) and advice (`fadvise64`, `madvise`,
//! `readahead`). An opening with direct I/O is imported with the first read of the descriptor, as
//! in a recording without root. Other calls that move data are counted by kind
//! ([`Imported::left_out`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, BufRead, Read as _};

use self::held::{HeldLines, Line, NewTask};
use self::syntax::{Call, parse_head, split_resumed, unfinished_text};
use self::tables::{Pending, RelativeRenames, Table, UnfinishedCall};
use super::sums::RecordingSums;
use super::{FileRecord, Record, RecordingEnd, RecordingMethod, RecordingStart, ThreadName};
use crate::TraceError;

mod aio;
mod calls;
mod folders;
mod held;
mod syntax;
mod tables;

/// Maximum length of a line in bytes. It bounds the memory. Chosen, not measured.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Number of calls that are not imported, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut(pub BTreeMap<String, u64>);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (kind, count)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{count} {kind}")?;
        }
        Ok(())
    }
}

/// Result of an import.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The records, in order.
    pub records: Vec<Record>,
    /// Calls that move data and are not in the records.
    pub left_out: LeftOut,
    /// Number of openings by relative names in folders that the text does not show. Equal names of
    /// them count as one file.
    pub names_in_unknown_folders: u64,
    /// Number of files with a name relative to the folder in which the text begins, whose path may
    /// be the one of another file of the recording. An absolute name opened that file, or a name
    /// after a change to an absolute folder.
    pub files_of_two_names: u64,
}

/// Returns true if a file begins as the output of strace does: an optional process ID, a time, and
/// a call. The rest of a resumed call (`<`), a signal (`-`) and an exit (`+`) count as well.
pub fn is_start(start: &[u8]) -> bool {
    let text = String::from_utf8_lossy(start);
    text.lines().next().is_some_and(|line| {
        parse_head(line)
            .is_some_and(|(_, _, rest)| rest.contains('(') || rest.starts_with(['+', '-', '<']))
    })
}

/// Error of a line that has another form than `strace -f -ttt -T` gives it.
fn unexpected_line(line: u64, expected: &str) -> TraceError {
    let reason = format!("expected {expected}; make it with `strace -f -ttt -T -y -s 0 -o FILE`");
    TraceError::line(line, reason)
}

/// Converts a text to records, and counts the calls that are left out.
///
/// # Errors
/// Fails at the first malformed line, if the text contains no read, or if no call has a duration.
pub fn records(mut source: impl BufRead) -> Result<Imported, TraceError> {
    let mut parser = StraceParser::default();
    let mut held = HeldLines::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let failure = match next_line(&mut source, &mut line) {
            Ok(0) => break,
            Ok(LINE_BYTES_MAX..) => unexpected_line(number, "a line of less than 1 MiB"),
            Ok(_) => {
                // Some editors put a byte order mark before a text.
                let text = String::from_utf8_lossy(&line);
                held.add(number, text.trim_start_matches('\u{feff}'));
                parser.parse_lines(&mut held)?;
                continue;
            }
            Err(error) => TraceError::unread(error),
        };
        // A held line before it may be malformed.
        held.end();
        return parser.parse_lines(&mut held).and(Err(failure));
    }
    held.end();
    parser.parse_lines(&mut held)?;
    parser.finish()
}

/// Reads a line, or its beginning if it is too long. Returns the number of bytes, 0 at the end, or
/// the error of the source.
fn next_line(source: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    source.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', line)
}

/// State of an import.
#[derive(Debug, Default)]
struct StraceParser {
    /// Time of the first line, since 1970.
    start_ns: Option<u64>,
    /// Latest time, since the first line.
    end_ns: u64,
    /// Number of each file in the recording, by its path.
    files: BTreeMap<String, u32>,
    /// Number of each thread in the recording, by its task.
    threads: BTreeMap<u32, u32>,
    /// Descriptors and mappings of each process, by the task that began it.
    tables: BTreeMap<u32, Table>,
    /// Key in `tables` of the table that a task uses: its own number, or another task's for threads
    /// that share descriptors.
    table_by_task: BTreeMap<u32, u32>,
    /// Last renames by names in unknown folders.
    relative_renames: RelativeRenames,
    /// Tasks that a line has shown and that have not ended.
    seen_tasks: BTreeSet<u32>,
    /// Unfinished call of each task.
    unfinished: BTreeMap<u32, UnfinishedCall>,
    /// Asynchronous reads that have not completed yet.
    pending: Pending,
    /// Files and descriptors whose last recorded opening has direct I/O.
    direct_opens: BTreeSet<(u32, u64)>,
    /// Records with the time at which each ended.
    records: Vec<(u64, Record)>,
    /// Number of imported reads.
    reads: u64,
    /// True if any call has a duration.
    has_durations: bool,
    /// Sums over the records, which have maxima.
    sums: RecordingSums,
    /// Number of calls that are not imported, by kind.
    left_out: BTreeMap<String, u64>,
    /// Number of openings by relative names in unknown folders.
    names_in_unknown_folders: u64,
}

/// Names of the kinds of calls that are left out, if the name of the call is not enough.
mod kind {
    /// Unfinished at the end of the text or of the task, or strace was detached.
    pub const READ_IN_PROGRESS: &str = "calls under way at the end of the text or of their task";
    /// The second line of a call whose first line is missing.
    pub const BEGUN_BEFORE: &str = "reads that began before the text";
    /// The path is known and is no file with offsets.
    pub const NO_FILE: &str = "reads of pipes, sockets, terminals and the kernel's files";
    /// The call failed, and a record cannot hold its range.
    pub const FAILED_BEYOND: &str = "failed reads beyond the largest offset of a file";
    /// No path is known.
    pub const UNKNOWN_FILE: &str = "reads of descriptors whose file the text does not show";
    /// The result is `?`: the kernel restarts the call, which then has a line of its own.
    pub const RESTARTED: &str = "reads that a signal interrupted and that began again";
    /// strace shows at most `-s` requests of a list.
    pub const HIDDEN: &str = "io_submit with requests that the text does not show \
        (make it with `-s 32` in place of `-s 0`)";
    /// Submitted, without an event for the completion.
    pub const UNENDED: &str = "io_submit of reads whose end the text does not show";
    /// Entry to a ring: the requests in the shared memory of the ring are no system calls.
    pub const URING: &str = "io_uring_enter (strace does not show its reads)";
    /// `madvise` at an address that no imported mapping covers.
    pub const UNPLACED: &str = "advice on memory whose mapping the text does not show";
    /// The mapping itself is imported; the reads through it are missing.
    pub const MAPPED: &str = "mappings of files without the touches of their pages \
        (strace does not show them)";
}

impl StraceParser {
    /// Imports the lines that need not wait.
    ///
    /// # Errors
    /// Fails at the first malformed line.
    fn parse_lines(&mut self, held: &mut HeldLines) -> Result<(), TraceError> {
        while let Some(Line { number, text: line, new_task }) = held.take() {
            if line.trim().is_empty() {
                continue;
            }
            // With `-r`, the first line has the time 0.
            if self.start_ns.is_none() && parse_head(&line).is_some_and(|(_, ns, _)| ns == 0) {
                let expected = "times since 1970, and not since the last call (`-r`)";
                return Err(unexpected_line(number, expected));
            }
            self.parse_line(&line, new_task)
                .ok_or_else(|| unexpected_line(number, "`PID SECONDS call(…) = …`"))?;
        }
        Ok(())
    }

    /// Imports a line. Returns `None` if it is malformed. `new_task` is the task that an unfinished
    /// call in it begins. If the line is the first one of an early task, that task is imported
    /// before the line. The first line of an unfinished call is kept for its second line. A second
    /// line without a first is counted as left out if it ends a read. A call is counted too if its
    /// task ended (`+++`) or strace was detached during it. Lines of signals (`---`) have no
    /// effect.
    fn parse_line(&mut self, line: &str, new_task: NewTask) -> Option<()> {
        let (task, wall_ns, rest) = parse_head(line)?;
        // A line with an earlier time than the first one counts as at its time.
        let at_ns = wall_ns.saturating_sub(*self.start_ns.get_or_insert(wall_ns));
        self.end_ns = self.end_ns.max(at_ns);
        self.import_early_task(task);
        if rest.starts_with("+++") {
            // A new task may get the number of an ended one.
            self.seen_tasks.remove(&task);
            self.forget_table(task);
            let was_under_way = self.unfinished.remove(&task).is_some();
            self.count_many_left_out(kind::READ_IN_PROGRESS, was_under_way.into());
            return Some(());
        }
        if rest.starts_with("---") {
            return Some(());
        }
        if let Some(call_start) = unfinished_text(rest) {
            let (text, has_begun_task) = (call_start.to_owned(), false);
            let call = UnfinishedCall { begin_ns: at_ns, text, new_task, has_begun_task };
            self.unfinished.insert(task, call);
            return Some(());
        }
        if rest.ends_with("<detached ...>") {
            self.count_left_out(kind::READ_IN_PROGRESS);
            return Some(());
        }
        if rest.starts_with("<... ") {
            let (name, tail) = split_resumed(rest)?;
            let Some(call_start) = self.unfinished.remove(&task) else {
                if calls::is_read(name) {
                    self.count_left_out(kind::BEGUN_BEFORE);
                }
                return Some(());
            };
            let UnfinishedCall { begin_ns, text, has_begun_task, .. } = call_start;
            let text = format!("{text}{tail}");
            let call = Call::parse(&text)?;
            // The task that this call began was early, and was imported at its own first line.
            if has_begun_task {
                return Some(());
            }
            return self.import_call(task, begin_ns, &call);
        }
        self.import_call(task, at_ns, &Call::parse(rest)?)
    }

    /// Counts one call of a kind that is not imported.
    fn count_left_out(&mut self, kind: &str) {
        self.count_many_left_out(kind, 1);
    }

    /// Counts `count` calls of a kind that are not imported.
    fn count_many_left_out(&mut self, kind: &str, count: u64) {
        if count > 0 {
            *self.left_out.entry(kind.to_owned()).or_default() += count;
        }
    }

    /// Returns the import at the end of the text.
    ///
    /// # Errors
    /// The text contains no read, or no call has a duration.
    fn finish(mut self) -> Result<Imported, TraceError> {
        self.count_many_left_out(kind::READ_IN_PROGRESS, self.unfinished.len() as u64);
        self.count_many_left_out(kind::UNENDED, self.pending.count());
        let files_of_two_names = self.count_files_of_two_names();
        let left_out = LeftOut(self.left_out);
        if self.reads == 0 {
            let mut reason = "there is no read of a file in it".to_owned();
            if !left_out.0.is_empty() {
                reason += &format!("; not imported: {left_out}");
            }
            reason += "; record a program that reads files";
            return Err(TraceError::Empty { reason });
        }
        // Without durations every read would end when it begins.
        if !self.has_durations {
            let reason = "no call has a duration; make it with `strace -f -ttt -T -y -s 0 -o FILE`";
            return Err(TraceError::Empty { reason: reason.to_owned() });
        }
        let wall_ns = self.start_ns.unwrap_or(0);
        let start = RecordingStart {
            source: RecordingMethod::Strace,
            wall_ns,
            // The text does not show the page size; this one is the usual one.
            page_bytes: 4096,
            ..RecordingStart::default()
        };
        // Names precede all records that use them.
        let mut records = vec![Record::Start(start)];
        for (path, file) in self.files {
            records.push(Record::File(FileRecord { file, path, ..FileRecord::default() }));
        }
        for (task, thread) in self.threads {
            records.push(Record::Thread(ThreadName {
                thread,
                task,
                // The text does not show the process of a task: each counts as its own.
                process: task,
                ..ThreadName::default()
            }));
        }
        self.records.sort_by_key(|(end_ns, _)| *end_ns);
        records.extend(self.records.into_iter().map(|(_, record)| record));
        // The end of the text counts as the end of the program.
        let end = RecordingEnd { at_ns: self.end_ns, processor_ns: None, has_exited: true };
        records.push(Record::End(end));
        let names_in_unknown_folders = self.names_in_unknown_folders;
        Ok(Imported { records, left_out, names_in_unknown_folders, files_of_two_names })
    }
}

#[cfg(test)]
mod odd_call_tests;
#[cfg(test)]
mod tests;
