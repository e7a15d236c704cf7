//! Recordings from the text of `strace -f -ttt -T` (with `-y` or `-yy`, or without).
//!
//! A line is `PID SECONDS call(arguments) = result <duration>`; a call that others interrupt stands
//! in two lines, `… <unfinished ...>` and `<... call resumed> …`. What was read stands in it too,
//! unless strace was told `-s 0`: nothing of it is kept.
//!
//! Where descriptors don't have their paths with them (`-y`), they are followed from the opening on.
//! The position of a `read` is followed from the opening on as well, with what `lseek` answers; one
//! that was open before is taken to stand at its beginning.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, Read as _};

use super::sums::RecordingSums;
use super::{
    FileRecord, OFFSET_MAX, ReadMethod, ReadOutcome, ReadRecord, Record, RecordingEnd,
    RecordingMethod, RecordingStart, ThreadName,
};

/// The longest line.
const LINE_BYTES_MAX: usize = 1 << 20;

/// What is wrong with the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StraceError {
    /// A line is none of `strace -f -ttt -T`.
    Line {
        /// Which, counted from 1.
        line: u64,
        /// What is expected.
        expected: &'static str,
    },
    /// It can't be read.
    Unread {
        /// Why not.
        because: String,
    },
    /// There is no read of a file in it.
    Empty,
}

impl fmt::Display for StraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StraceError::Line { line, expected } => write!(
                f,
                "line {line}: expected {expected}; make it with `strace -f -ttt -T -y -s 0 -o FILE`"
            ),
            StraceError::Unread { because } => f.write_str(because),
            StraceError::Empty => f.write_str("there is no read of a file in it"),
        }
    }
}

impl std::error::Error for StraceError {}

/// Whether a file begins as the text of strace does: a time, and a call, after the number of a
/// process or without.
pub fn is_start(start: &[u8]) -> bool {
    let text = String::from_utf8_lossy(start);
    text.lines().next().is_some_and(|line| {
        head(line)
            .is_some_and(|(_, _, rest)| rest.contains('(') || rest.starts_with(['+', '-', '<']))
    })
}

/// The records of a text, in their order.
///
/// # Errors
/// The first line that is none, or there is no read in it.
pub fn records(mut source: impl BufRead) -> Result<Vec<Record>, StraceError> {
    let mut text = StraceParser::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        match next_line(&mut source, &mut line) {
            Ok(0) => break,
            Ok(LINE_BYTES_MAX..) => {
                return Err(StraceError::Line {
                    line: number,
                    expected: "a line of less than 1 MiB",
                });
            }
            Ok(_) => {}
            Err(error) => return Err(StraceError::Unread { because: error.to_string() }),
        }
        let line = String::from_utf8_lossy(&line);
        if !line.trim().is_empty() {
            text.line(&line)
                .ok_or(StraceError::Line {
                    line: number, expected: "`PID SECONDS call(…) = …`"
                })?;
        }
    }
    text.records()
}

/// Reads a line, at most so far that it is seen to be too long; says how many bytes that are, 0 at the end.
fn next_line(source: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    source.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', line)
}

#[derive(Debug, Default)]
struct StraceParser {
    start_ns: Option<u64>,
    end_ns: u64,
    files: BTreeMap<String, u32>,
    threads: BTreeMap<u32, u32>,
    tables: BTreeMap<u32, BTreeMap<u64, StraceDescriptor>>,
    /// Which table a process has.
    table_of: BTreeMap<u32, u32>,
    unfinished: BTreeMap<u32, (u64, String)>,
    reads: Vec<Record>,
    sums: RecordingSums,
}

/// What is known of a descriptor.
#[derive(Clone, Debug, Default)]
struct StraceDescriptor {
    path: String,
    position: u64,
}

impl StraceParser {
    /// Takes a line; `None` when it is none.
    fn line(&mut self, line: &str) -> Option<()> {
        let (task, at, rest) = head(line)?;
        let at_ns = at.saturating_sub(*self.start_ns.get_or_insert(at));
        self.end_ns = self.end_ns.max(at_ns);
        if rest.starts_with("+++") || rest.starts_with("---") {
            return Some(());
        }
        if let Some(begun) = rest.strip_suffix("<unfinished ...>") {
            self.unfinished.insert(task, (at_ns, begun.trim_end().to_owned()));
            return Some(());
        }
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let (_, tail) = resumed.split_once(" resumed>")?;
            // One that began before strace did has no beginning here.
            let Some((begin_ns, begun)) = self.unfinished.remove(&task) else { return Some(()) };
            return self.call(task, begin_ns, &format!("{begun}{tail}"));
        }
        self.call(task, at_ns, rest)
    }

    fn call(&mut self, task: u32, begin_ns: u64, text: &str) -> Option<()> {
        let (name, rest) = text.split_once('(')?;
        let (arguments, rest) = arguments(rest)?;
        let rest = rest.trim_start().strip_prefix('=')?.trim_start();
        let (result, took_ns) = match rest.rsplit_once(" <") {
            Some((result, took)) => (result, nanoseconds(took.strip_suffix('>')?)?),
            None => (rest, 0),
        };
        let end_ns = begin_ns.checked_add(took_ns)?;
        self.end_ns = self.end_ns.max(end_ns);
        let value: Option<i64> = result.split([' ', '<']).next()?.parse().ok();
        let table = *self.table_of.entry(task).or_insert(task);
        let table = self.tables.entry(table).or_default();
        let argument = |at: usize| arguments.get(at).map(String::as_str).unwrap_or_default();
        let given = value.and_then(|value| u64::try_from(value).ok());
        let way = match name {
            "read" => ReadMethod::Read,
            "pread64" | "pread" => ReadMethod::Pread,
            "readv" => ReadMethod::Readv,
            "preadv" | "preadv2" => ReadMethod::Preadv,
            "openat" | "open" | "creat" => {
                let path = argument(usize::from(name == "openat"));
                let path = path.trim_matches('"').to_owned();
                // With `-y` the result has the whole path.
                let path = result
                    .split_once('<')
                    .map_or(path, |(_, rest)| rest.trim_end_matches('>').to_owned());
                if let Some(descriptor) = given {
                    table.insert(descriptor, StraceDescriptor { path, position: 0 });
                }
                return Some(());
            }
            "close" => {
                if let Some((descriptor, _)) = descriptor(argument(0)) {
                    table.remove(&descriptor);
                }
                return Some(());
            }
            "lseek" => {
                if let (Some((descriptor, path)), Some(position)) = (descriptor(argument(0)), given)
                {
                    let held = table.entry(descriptor).or_default();
                    held.position = position;
                    path.into_iter().for_each(|path| path.clone_into(&mut held.path));
                }
                return Some(());
            }
            "dup" | "dup2" | "dup3" => {
                if let (Some((descriptor, _)), Some(copy)) = (descriptor(argument(0)), given) {
                    let held = table.get(&descriptor).cloned();
                    held.into_iter().for_each(|held| {
                        table.insert(copy, held);
                    });
                }
                return Some(());
            }
            "clone" | "clone3" | "fork" | "vfork" => {
                self.new_task(task, given, arguments.concat().contains("CLONE_FILES"));
                return Some(());
            }
            _ => return Some(()),
        };
        let Some((number, path)) = descriptor(argument(0)) else { return Some(()) };
        let held = table.entry(number).or_default();
        path.into_iter().for_each(|path| path.clone_into(&mut held.path));
        let Some(value) = value.filter(|_| is_file(&held.path)) else { return Some(()) };
        let got = given.unwrap_or(0);
        let placed = match way {
            ReadMethod::Pread => argument(3).parse().ok(),
            ReadMethod::Preadv => argument(3).parse().ok(),
            _ => None,
        };
        let offset = placed.unwrap_or(held.position);
        if placed.is_none() {
            held.position = held.position.checked_add(got)?;
        }
        let asked = match way {
            ReadMethod::Read | ReadMethod::Pread => argument(2).parse().unwrap_or(got),
            _ => got,
        };
        if offset.checked_add(asked).is_none_or(|end| end > OFFSET_MAX) {
            return None;
        }
        let path = held.path.clone();
        let files = self.files.len() as u32;
        let file = *self.files.entry(path).or_insert(files);
        let threads = self.threads.len() as u32;
        let thread = *self.threads.entry(task).or_insert(threads);
        let outcome = match value {
            ..0 => ReadOutcome::Error(error_number(result)),
            _ => ReadOutcome::Bytes(got),
        };
        let read = Record::Read(ReadRecord {
            end_ns,
            begin_ns,
            waited_ns: 0,
            thread,
            way,
            descriptor: Some(number),
            file,
            offset,
            asked_bytes: asked.max(got),
            outcome,
        });
        self.sums.add(&read).ok()?;
        self.reads.push(read);
        Some(())
    }

    fn new_task(&mut self, task: u32, new: Option<u64>, is_shared: bool) {
        let Some(new) = new.and_then(|new| u32::try_from(new).ok()) else { return };
        let table = *self.table_of.entry(task).or_insert(task);
        if is_shared {
            self.table_of.insert(new, table);
        } else if let Some(copy) = self.tables.get(&table).cloned() {
            self.tables.insert(new, copy);
        }
    }

    fn records(mut self) -> Result<Vec<Record>, StraceError> {
        if self.reads.is_empty() {
            return Err(StraceError::Empty);
        }
        let wall_ns = self.start_ns.unwrap_or(0);
        let start = RecordingStart {
            source: RecordingMethod::Strace,
            wall_ns,
            page_bytes: 4096,
            ..RecordingStart::default()
        };
        let mut records = vec![Record::Start(start)];
        for (path, file) in self.files {
            records.push(Record::File(FileRecord { file, path, ..FileRecord::default() }));
        }
        for (task, thread) in self.threads {
            records.push(Record::Thread(ThreadName {
                thread,
                task,
                process: task,
                ..ThreadName::default()
            }));
        }
        let end = |record: &Record| match record {
            Record::Read(read) => read.end_ns,
            _ => 0,
        };
        self.reads.sort_by_key(end);
        records.append(&mut self.reads);
        let end = RecordingEnd { at_ns: self.end_ns, processor_ns: None, has_exited: true };
        records.push(Record::End(end));
        Ok(records)
    }
}

/// The number of the process, the time in nanoseconds, and what follows.
fn head(line: &str) -> Option<(u32, u64, &str)> {
    let line = line.trim_end();
    let line = line.strip_prefix("[pid").unwrap_or(line).trim_start();
    let (first, rest) = line.split_once(' ')?;
    let first = first.trim_end_matches(']');
    // Without `-f` there is no number.
    if first.contains('.') {
        return Some((0, nanoseconds(first)?, rest.trim_start()));
    }
    let rest = rest.trim_start().trim_start_matches(']').trim_start();
    let (time, rest) = rest.split_once(' ')?;
    Some((first.parse().ok()?, nanoseconds(time)?, rest.trim_start()))
}

/// Seconds with a fraction, in nanoseconds.
fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let scale = 10_u64.pow(9 - fraction.len() as u32);
    let fraction: u64 = fraction.parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction * scale)
}

/// The arguments up to the closing bracket, and what follows it.
fn arguments(text: &str) -> Option<(Vec<String>, &str)> {
    let mut all = vec![String::new()];
    let (mut depth, mut is_quoted, mut is_escaped) = (0_u32, false, false);
    for (at, letter) in text.char_indices() {
        let last = all.last_mut()?;
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            ')' if depth == 0 => {
                all.iter_mut().for_each(|argument| *argument = argument.trim().to_owned());
                return Some((all, &text[at + 1..]));
            }
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                all.push(String::new());
                continue;
            }
            _ => {}
        }
        last.push(letter);
    }
    None
}

/// A descriptor, `3` or `3</path>`.
fn descriptor(text: &str) -> Option<(u64, Option<&str>)> {
    let (number, path) = match text.split_once('<') {
        Some((number, path)) => (number, Some(path.strip_suffix('>')?)),
        None => (text, None),
    };
    // `-yy` tells more of devices: `3</dev/null<char 1:3>>`.
    let path = path.map(|path| path.split_once('<').map_or(path, |(path, _)| path));
    Some((number.parse().ok()?, path))
}

/// The number of an error that stands as a name, as in `-1 EIO (Input/output error)`; 0 when it is
/// none that reads have.
fn error_number(result: &str) -> u32 {
    // Numbers of Linux on all machines but Alpha, MIPS, PA-RISC and SPARC.
    match result.split(' ').nth(1).unwrap_or_default() {
        "EINTR" => 4,
        "EIO" => 5,
        "EBADF" => 9,
        "EAGAIN" => 11,
        "EFAULT" => 14,
        "EISDIR" => 21,
        "EINVAL" => 22,
        "EOVERFLOW" => 75,
        _ => 0,
    }
}

/// Whether a path is of something that has places: no pipe, no terminal, nothing of the kernel's.
fn is_file(path: &str) -> bool {
    let others =
        ["/dev/pts", "/dev/tty", "/dev/null", "/dev/zero", "/dev/urandom", "/proc/", "/sys/"];
    !path.is_empty() && !others.iter().any(|other| path.starts_with(other)) && {
        let is_relative = !path.starts_with('/') && !path.contains(":[");
        path.starts_with('/') || is_relative
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(text: &str) -> Vec<(u32, u64, u64, u64, u64, u64)> {
        let records = records(text.as_bytes()).unwrap();
        let read = |record: &Record| match record {
            Record::Read(read) => Some((
                read.file,
                read.offset,
                read.asked_bytes,
                read.got_bytes(),
                read.begin_ns,
                read.end_ns,
            )),
            _ => None,
        };
        records.iter().filter_map(read).collect()
    }

    #[test]
    fn calls_are_followed_by_descriptor_and_position() {
        let text = r#"
70 1000.000000 openat(AT_FDCWD, "/a, b", O_RDONLY|O_CLOEXEC) = 3 <0.000010>
70 1000.000100 read(3, "\"x\\"..., 4096) = 100 <0.000050>
70 1000.000200 read(3, ""..., 4096) = 0 <0.000001>
70 1000.000300 lseek(3, 8192, SEEK_SET) = 8192 <0.000001>
70 1000.000400 read(3, ""..., 10) = 10 <0.000001>
70 1000.000500 pread64(3, ""..., 4096, 65536) = 4096 <0.000200>
70 1000.000600 read(5, 0x7f, 10) = -1 EBADF (Bad file descriptor) <0.000001>
70 1000.001000 +++ exited with 0 +++
"#;
        assert_eq!(
            reads(text),
            [
                (0, 0, 4096, 100, 100_000, 150_000),
                (0, 100, 4096, 0, 200_000, 201_000),
                (0, 8192, 10, 10, 400_000, 401_000),
                (0, 65536, 4096, 4096, 500_000, 700_000),
            ]
        );
    }

    #[test]
    fn calls_in_two_lines_and_paths_with_descriptors() {
        let text = "7 5.0 read(3</d/f>,  <unfinished ...>\n\
            8 5.1 read(4<pipe:[12]>, \"\", 5) = 5 <0.1>\n\
            8 5.2 preadv(9</d/g>, [{iov_base=\"\", iov_len=8}], 1, 512) = 8 <0.001000>\n\
            7 5.5 <... read resumed>\"\"..., 64) = 64 <0.500000>\n";
        let found = reads(text);
        // Files have numbers in the order in which reads of them ended.
        assert_eq!(found[0], (0, 512, 8, 8, 200_000_000, 201_000_000));
        assert_eq!(found[1], (1, 0, 64, 64, 0, 500_000_000));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn threads_share_descriptors_and_children_have_copies() {
        let text = "1 1.0 openat(AT_FDCWD, \"f\", O_RDONLY) = 3 <0.1>\n\
            1 1.1 clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD}, 88) = 2 <0.1>\n\
            1 1.2 fork() = 9 <0.1>\n\
            1 1.3 close(3) = 0 <0.1>\n\
            2 1.4 read(3, \"\", 5) = 5 <0.1>\n\
            9 1.5 read(3, \"\", 6) = 6 <0.1>\n";
        let found: Vec<u64> = reads(text).iter().map(|read| read.3).collect();
        assert_eq!(found, [6]);
    }

    #[test]
    fn what_is_no_line_is_told() {
        let wrong = |text: &str| records(text.as_bytes()).unwrap_err().to_string();
        assert!(wrong("1 1.0 read(3</f>, \"\", 5) = 5 <0.1>\nhello\n").starts_with("line 2: "));
        assert!(wrong("1 1.0 read(3, \"\n").contains("strace -f -ttt -T"));
        assert_eq!(
            wrong("1 1.0 write(1, \"\", 5) = 5 <0.1>\n"),
            "there is no read of a file in it"
        );
        assert!(is_start(b"70 1000.000000 openat(AT_FDCWD, \"/a\", O_RDONLY) = 3 <0.1>\n"));
        assert!(is_start(b"1000.5 execve(\"/bin/true\", ...) = 0 <0.1>\n"));
        assert!(!is_start(b"fio version 3 iolog\n") && !is_start(b"1 2 3 4 5\n"));
    }

    /// A source that gives the same letter for good; says when it is read further than it need be.
    struct Endless(usize);

    impl io::Read for Endless {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.0 += to.len();
            assert!(self.0 < 4 * LINE_BYTES_MAX, "it is read to its end, which never comes");
            to.fill(b'x');
            Ok(to.len())
        }
    }

    #[test]
    fn a_line_without_an_end_is_not_kept() {
        let error = records(io::BufReader::new(Endless(0))).unwrap_err().to_string();
        assert!(error.starts_with("line 1: expected a line of less than 1 MiB"), "{error}");
    }

    #[test]
    fn what_no_call_gives_is_a_wrong_line() {
        let at = "7 1000.000000";
        let opened = format!("{at} openat(AT_FDCWD, \"f\", O_RDONLY) = 3 <0.000001>\n");
        let twice = format!("{at} read(3, \"\", 9) = 3000000000 <9999999999.9>\n").repeat(2);
        for text in [
            format!("{opened}{at} read(3, \"\", 9) = 4611686018427387904 <0.1>\n"),
            format!("{opened}{at} read(3, \"\", 9) = 9 <18446744073.0>\n"),
            format!("{opened}{at} lseek(3, 0, SEEK_END) = 9223372036854775807 <0.1>\n{twice}"),
        ] {
            let error = records(text.as_bytes()).unwrap_err();
            assert!(matches!(error, StraceError::Line { line: 2.., .. }), "{error} of {text}");
        }
    }
}
