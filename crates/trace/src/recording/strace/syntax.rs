//! Syntax of strace's output: line heads, calls, arguments and strings.

use crate::recording::path_text;

/// Splits a line into the process ID (0 without one), the time in nanoseconds, and the rest. Lines
/// begin with `SECONDS.FRACTION`, after `PID` in a file or `[pid PID]` on a terminal. Returns
/// `None` for a line that does not begin in this way.
pub fn parse_head(line: &str) -> Option<(u32, u64, &str)> {
    let line = line.trim_end();
    let line = line.strip_prefix("[pid").unwrap_or(line).trim_start();
    let (first, rest) = line.split_once(' ')?;
    let first = first.trim_end_matches(']');
    // Without `-f` there is no process ID.
    if first.contains('.') {
        return Some((0, parse_nanoseconds(first)?, rest.trim_start()));
    }
    let rest = rest.trim_start().trim_start_matches(']').trim_start();
    let (time, rest) = rest.split_once(' ')?;
    Some((first.parse().ok()?, parse_nanoseconds(time)?, rest.trim_start()))
}

/// Parses seconds with a fraction of one to nine digits. Returns nanoseconds, or `None` for another
/// form.
fn parse_nanoseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let scale = 10_u64.pow(9 - fraction.len() as u32);
    let fraction: u64 = fraction.parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction * scale)
}

/// Returns the text of a call up to the mark of an unfinished one. `None` for another line.
pub fn unfinished_text(rest: &str) -> Option<&str> {
    rest.strip_suffix("<unfinished ...>").map(str::trim_end)
}

/// Splits the second line of a call, `<... call resumed> …`, into the name and the rest of the
/// call. `None` for another line.
pub fn split_resumed(rest: &str) -> Option<(&str, &str)> {
    rest.strip_prefix("<... ")?.split_once(" resumed>")
}

/// Returns true if a call of this name begins a task.
pub fn begins_task(name: &str) -> bool {
    ["clone", "clone3", "fork", "vfork"].contains(&name)
}

/// A call with its arguments and result as text.
#[derive(Debug)]
pub struct Call<'a> {
    /// Name of the system call.
    pub name: &'a str,
    /// Texts of the arguments, without the commas and spaces between them.
    pub arguments: Vec<String>,
    /// Text of the result, as in `-1 EINTR (Interrupted system call)` or `3</a/file>`.
    pub result: &'a str,
    /// Duration in nanoseconds, if it is known.
    pub duration_ns: Option<u64>,
}

impl<'a> Call<'a> {
    /// Splits `call(arguments) = result <duration>`. Returns `None` if the text is not a call.
    pub fn parse(text: &'a str) -> Option<Call<'a>> {
        let (name, rest) = text.split_once('(')?;
        let (arguments, rest) = split_arguments(rest)?;
        let rest = rest.trim_start().strip_prefix('=')?.trim_start();
        // The duration is in the last `<…>`. A space precedes it, unlike the `<` of a path.
        let (result, duration_ns) = match rest.rsplit_once(" <") {
            Some((result, "unavailable>")) => (result, None),
            Some((result, took)) => (result, Some(parse_nanoseconds(took.strip_suffix('>')?)?)),
            None => (rest, None),
        };
        Some(Call { name, arguments, result, duration_ns })
    }

    /// Returns the argument with this index, or an empty text if it is missing.
    pub fn argument(&self, index: usize) -> &str {
        self.arguments.get(index).map(String::as_str).unwrap_or_default()
    }

    /// Returns the result as a number. `None` for other text, such as the `?` of a call that was
    /// interrupted and restarted.
    pub fn value(&self) -> Option<i64> {
        let first = self.result.split([' ', '<']).next()?;
        match first.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => first.parse().ok(),
        }
    }

    /// Returns the result, or `None` if the call failed.
    pub fn success_value(&self) -> Option<u64> {
        self.value().and_then(|value| u64::try_from(value).ok())
    }

    /// Parses the argument with this index as a decimal or hexadecimal number. Returns `None` for
    /// other text.
    pub fn number(&self, index: usize) -> Option<u64> {
        parse_number(self.argument(index))
    }

    /// Parses an argument that points to an offset, `[4096]` or `[4096] => [8192]`. Returns the
    /// offset before the call, which is the first number, or `None` for `NULL`.
    pub fn pointed_offset(&self, index: usize) -> Option<u64> {
        let inside = self.argument(index).strip_prefix('[')?;
        parse_number(inside.split([']', ' ']).next()?)
    }
}

/// Parses a decimal or hexadecimal number. Returns `None` for other text.
pub fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the value of a field of `{name=value, …}`, whose parts are `structure`. `None` without
/// the field.
pub fn field_value<'a>(structure: &'a [String], name: &str) -> Option<&'a str> {
    let value = |part: &'a String| part.strip_prefix(name)?.strip_prefix('=');
    structure.iter().find_map(value)
}

/// Splits `[{…}, {…}, ...]` into elements and their fields. Elements of another form are skipped,
/// such as the `...` in place of the elements that strace left out. Returns `None` for text without
/// the outer brackets.
pub fn split_structures(text: &str) -> Option<Vec<Vec<String>>> {
    let inside = text.strip_prefix('[')?.strip_suffix(']')?;
    let to_end = None;
    let (elements, _) = split_at_commas(inside, to_end)?;
    let structure = |element: &String| {
        let inside = element.strip_prefix('{')?.strip_suffix('}')?;
        split_at_commas(inside, to_end).map(|(parts, _)| parts)
    };
    Some(elements.iter().filter_map(structure).collect())
}

/// Returns the arguments up to the closing bracket, and the rest of the text. `None` without a
/// closing bracket.
fn split_arguments(text: &str) -> Option<(Vec<String>, &str)> {
    split_at_commas(text, Some(')'))
}

/// Splits the text at commas, up to `end` outside of all brackets, quotes and paths. Returns the
/// parts and the text after `end`. Without `end`, the whole text is split. Returns `None` if `end`
/// is missing.
fn split_at_commas(text: &str, end: Option<char>) -> Option<(Vec<String>, &str)> {
    let mut split_parts = vec![String::new()];
    let (mut depth, mut is_quoted, mut is_escaped) = (0_u32, false, false);
    // Brackets `<` that are open, from the one that begins a path.
    let mut path_depth = 0_u32;
    // Letter before the present one; at first any that precedes no path.
    let mut last_letter = ' ';
    for (position, letter) in text.char_indices() {
        let last = split_parts.last_mut()?;
        let previous = std::mem::replace(&mut last_letter, letter);
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' if path_depth == 0 => is_quoted = !is_quoted,
            _ if is_quoted => {}
            // The path after a descriptor may contain unbalanced brackets. strace writes `<` and
            // `>` of a name as octal numbers. `->` separates two addresses.
            '<' if path_depth > 0 || begins_path(previous, &text[position + 1..]) => {
                path_depth += 1
            }
            '>' if path_depth > 0 && !(previous == '-' && is_arrow(&text[position + 1..])) => {
                path_depth -= 1;
            }
            _ if path_depth > 0 => {}
            letter if depth == 0 && Some(letter) == end => {
                split_parts.iter_mut().for_each(|part| *part = part.trim().to_owned());
                return Some((split_parts, &text[position + letter.len_utf8()..]));
            }
            // Outside of paths, `<<` is a shift, and `=>` precedes a result.
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                split_parts.push(String::new());
                continue;
            }
            _ => {}
        }
        last.push(letter);
    }
    if end.is_some() {
        return None;
    }
    split_parts.iter_mut().for_each(|part| *part = part.trim().to_owned());
    Some((split_parts, ""))
}

/// Returns true if `->` before this text separates two addresses of a socket. Else it ends a path
/// whose name ends in `-`, such as `/etc/passwd-`.
fn is_arrow(rest: &str) -> bool {
    !rest.is_empty() && !rest.starts_with([',', ')', ' ', ']', '}', '>', '('])
}

/// Returns true if a `<` begins the path of a descriptor, judged by the text around it. It follows
/// a digit or the D of `AT_FDCWD`, and is no part of a shift or a comparison.
fn begins_path(before: char, rest: &str) -> bool {
    (before.is_ascii_digit() || before == 'D') && !rest.starts_with(['<', ' ', '='])
}

/// Parses a descriptor with its path: `3`, `3</path>` or `3</path>(deleted)`. Returns `None` for
/// another form. The path is `None` if the text has none.
pub fn parse_descriptor(text: &str) -> Option<(u64, Option<Path>)> {
    let (number, path) = match text.split_once('<') {
        Some((number, path)) => (number, Some(Path::parse(path)?)),
        None => (text, None),
    };
    Some((number.parse().ok()?, path))
}

/// The path of an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The path, without a mark of deletion.
    pub name: String,
    /// True if the file was deleted.
    pub is_deleted: bool,
}

impl Path {
    /// Parses the text after the `<` of a descriptor, such as `/path>`. `None` without the `>`.
    ///
    /// A deleted file has a mark behind the bracket, `/path>(deleted)`, or within it,
    /// `/path (deleted)>`: versions of strace that do not know the mark print the kernel's name of
    /// the file. A file whose own name ends in ` (deleted)` counts as deleted too.
    pub fn parse(text: &str) -> Option<Path> {
        let (text, is_deleted) = match text.strip_suffix("(deleted)") {
            Some(text) => (text.trim_end(), true),
            None => (text, false),
        };
        let name = text.strip_suffix('>')?;
        // `-yy` adds device numbers: `3</dev/null<char 1:3>>`.
        let name = name.split_once('<').map_or(name, |(name, _)| name);
        let (name, is_deleted) = match name.strip_suffix(" (deleted)") {
            Some(name) => (name, true),
            None => (name, is_deleted),
        };
        Some(Path { name: decode_escapes(name), is_deleted })
    }
}

/// Returns the text of a quoted string, without quotes and with decoded escapes. The dots behind a
/// string that strace has cut are removed too.
pub fn unquoted(text: &str) -> String {
    decode_escapes(text.trim_end_matches("...").trim_matches('"'))
}

/// Decodes escapes: `\303\244` are two bytes, `\x41` is one, `\n` is a line end.
fn decode_escapes(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    let mut bytes = Vec::new();
    let mut rest_of_text = text.as_bytes();
    while let [first, rest @ ..] = rest_of_text {
        rest_of_text = rest;
        let (true, [kind, after_kind @ ..]) = (*first == b'\\', rest) else {
            bytes.push(*first);
            continue;
        };
        rest_of_text = after_kind;
        bytes.push(match kind {
            // An octal number begins with the byte behind the backslash itself.
            b'0'..=b'7' => decode_digits(rest, 8, 3, &mut rest_of_text),
            b'x' => decode_digits(after_kind, 16, 2, &mut rest_of_text),
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'v' => 0x0b,
            b'f' => 0x0c,
            other => *other,
        });
    }
    path_text(&bytes)
}

/// Decodes up to `count_max` digits of a number with base `radix` as a byte. Sets `rest` to the
/// text after the digits. A larger number, as three octal digits may be, is cut to a byte.
fn decode_digits<'a>(text: &'a [u8], radix: u32, count_max: usize, rest: &mut &'a [u8]) -> u8 {
    let digit = |byte: &u8| char::from(*byte).to_digit(radix);
    let values: Vec<u32> = text.iter().take(count_max).map_while(digit).collect();
    *rest = &text[values.len()..];
    values.iter().fold(0_u32, |number, digit| number * radix + digit) as u8
}

/// Returns the number of a named error, as in `-1 EIO (Input/output error)`. Returns 0 for an error
/// that reads do not have.
pub fn error_number(result: &str) -> u32 {
    // The name follows the value -1. These are the error numbers of Linux on all architectures
    // except Alpha, MIPS, PA-RISC and SPARC.
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

/// Returns true if a path names a file with offsets: no pipe, no terminal, no kernel object. A
/// relative path counts: without `-y`, the text of an `open` may show no other.
pub fn is_file(path: &str) -> bool {
    let is_other = match path.strip_prefix("/dev/") {
        Some(name) => !is_block_device_or_file(name),
        None => path.starts_with("/proc/") || path.starts_with("/sys/"),
    };
    !path.is_empty() && !is_other && {
        // Kernel objects have names such as `pipe:[12]`.
        let is_relative = !path.starts_with('/') && !path.contains(":[");
        path.starts_with('/') || is_relative
    }
}

/// Returns true if a name in `/dev` is a block device, or a file of a file system there such as
/// /dev/shm. A volume group of LVM is a folder with any name, so folders count unless they are
/// known to have other devices. Names by admin-guide/devices.txt of Linux.
fn is_block_device_or_file(name: &str) -> bool {
    const OTHER_FOLDERS: [&str; 13] = [
        "pts",
        "input",
        "net",
        "char",
        "bus",
        "snd",
        "dri",
        "vfio",
        "usb",
        "cpu",
        "dma_heap",
        "infiniband",
        "v4l",
    ];
    const BLOCK_NAMES: [&str; 31] = [
        "sd", "hd", "vd", "xvd", "nvme", "loop", "dm-", "md", "sr", "fd", "mmcblk", "mtdblock",
        "zram", "ram", "nbd", "rbd", "drbd", "bcache", "pmem", "dasd", "nullb", "ublkb", "zd",
        "scd", "cdrom", "dvd", "root", "ubd", "fio", "emcpower", "rssd",
    ];
    match name.split_once('/') {
        Some((folder, _)) => !OTHER_FOLDERS.contains(&folder),
        None => BLOCK_NAMES.iter().any(|block| name.starts_with(block)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of strace 6.1 for setpriv, Python's `mmap` with a page size, and a copy. A shift is no
    /// path: it begins and ends no bracket.
    #[test]
    fn shifts_and_arrows_outside_of_paths_are_no_brackets() {
        let cases = [
            (
                "capget({version=_LINUX_CAPABILITY_VERSION_3, pid=0}, {effective=1<<CAP_CHOWN\
                 |1<<CAP_FOWNER, permitted=0, inheritable=0}) = 0 <0.000008>",
                vec![
                    "{version=_LINUX_CAPABILITY_VERSION_3, pid=0}",
                    "{effective=1<<CAP_CHOWN|1<<CAP_FOWNER, permitted=0, inheritable=0}",
                ],
            ),
            (
                "mmap(NULL, 2097152, PROT_READ, MAP_PRIVATE|21<<MAP_HUGE_SHIFT, -1, 0) \
                 = -1 ENOMEM (Cannot allocate memory) <0.000078>",
                vec!["NULL", "2097152", "PROT_READ", "MAP_PRIVATE|21<<MAP_HUGE_SHIFT", "-1", "0"],
            ),
            (
                "copy_file_range(4</a, (b>, [0] => [7], 5</c>, NULL, 7, 0) = 7 <0.000007>",
                vec!["4</a, (b>", "[0] => [7]", "5</c>", "NULL", "7", "0"],
            ),
            ("f({at=[0] => [7], on=1<<2}, 3) = 0 <0.1>", vec!["{at=[0] => [7], on=1<<2}", "3"]),
        ];
        for (text, arguments) in cases {
            let found = Call::parse(text).map(|call| call.arguments).unwrap_or_default();
            assert_eq!(found, arguments, "{text}");
        }
    }
}
