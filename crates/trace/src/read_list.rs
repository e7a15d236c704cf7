//! Text format of step lists and recordings for `readpath check-kernel`, which compares the pages
//! that Linux adds to its cache with a model. These recordings are unrelated to
//! [`crate::recording`]. A folio is an aligned block of 2^order pages, added as a unit.
//!
//! A list has one step per line: `OFFSET LENGTH` in bytes (a read), `touch OFFSET` (an access to
//! the mapped file), `advice NAME`, or `reopen`. `#` starts a comment. A recording is a list with a
//! header of `key value` lines. After each step it has `->` and the added folios as runs of pages
//! `FIRST..END`, with exclusive `END`. `xCOUNT` follows a run of folios with `COUNT` pages each:
//! `4..20 20..80x4`.

use std::fmt;

use readpath_core::readahead::{Advice, Folio, HandleStep, ReadaheadLimits, Recording};
use readpath_core::unit::PAGE_BYTES;

use crate::TraceError;

/// Names of the advice in a list.
const ADVICE: [(&str, Advice); 4] = [
    ("normal", Advice::Normal),
    ("sequential", Advice::Sequential),
    ("random", Advice::Random),
    ("dontneed", Advice::DontNeed),
];

/// Maximum size of a read in one system call (`MAX_RW_COUNT`).
const READ_BYTES_MAX: u64 = 0x7fff_f000;

/// Maximum number of folios in a recording: 32 GiB in single pages. It bounds the memory. Chosen.
const FOLIOS_MAX: usize = 1 << 23;

/// Maximum file offset. A read of the maximum size from there ends below 2⁶³, the largest file.
const OFFSET_MAX: u64 = i64::MAX as u64 - READ_BYTES_MAX;

/// Parses a list of steps.
///
/// # Errors
/// Returns the first line that is not a step.
pub fn parse_steps(text: &str) -> Result<Vec<HandleStep>, TraceError> {
    let steps =
        numbered_lines(text).map(|(line, content)| parse_step(content).map_err(line_error(line)));
    steps.collect()
}

/// Returns the non-empty lines with their numbers from 1, without comments.
fn numbered_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .enumerate()
        .map(|(index, content)| (index + 1, content))
        .filter(|(_, content)| !content.is_empty())
}

/// Returns a function that adds a line number to the text of an error.
fn line_error(line: usize) -> impl Fn(String) -> TraceError {
    move |reason| TraceError::line(line as u64, reason)
}

/// Parses one step, or returns the text of an error.
fn parse_step(text: &str) -> Result<HandleStep, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["reopen"] => Ok(HandleStep::Reopen),
        ["touch", offset] => Ok(HandleStep::Touch {
            offset: parse_number("an offset in bytes", offset, OFFSET_MAX)?,
        }),
        ["advice", name] => {
            let advice = ADVICE.iter().find(|(advice, _)| *advice == name);
            advice.map(|(_, advice)| HandleStep::Advise(*advice)).ok_or_else(|| {
                let names = ADVICE.map(|(name, _)| name).join(", ");
                format!("there is no advice `{name}` here; there are: {names}")
            })
        }
        [offset, length] => Ok(HandleStep::Read {
            offset: parse_number("an offset in bytes", offset, OFFSET_MAX)?,
            bytes: parse_number("a length in bytes", length, READ_BYTES_MAX)?,
        }),
        _ => Err(format!(
            "`{text}` is no step; a step is `OFFSET LENGTH` in bytes, `touch OFFSET`, \
             `advice NAME`, or `reopen`"
        )),
    }
}

/// Parses a whole number of at most `maximum`. `expected` names it in the error, with
/// its unit.
fn parse_number(expected: &str, text: &str, maximum: u64) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if number <= maximum => Ok(number),
        _ => Err(format!("`{text}` is not {expected}, a whole number up to {maximum}")),
    }
}

/// Formats one step so that [`parse_steps`] can read it. The exception is `advice willneed`: it has
/// no entry in the table of names.
pub fn format_step(step: &HandleStep) -> String {
    match step {
        HandleStep::Read { offset, bytes } => format!("{offset} {bytes}"),
        HandleStep::Touch { offset } => format!("touch {offset}"),
        HandleStep::Reopen => "reopen".to_owned(),
        HandleStep::Advise(advice) => {
            let name = ADVICE.iter().find(|(_, known)| known == advice);
            format!("advice {}", name.map_or("willneed", |(name, _)| name))
        }
    }
}

/// Folios in order of addition, formatted as runs of pages.
#[derive(Clone, Copy, Debug)]
pub struct FolioRuns<'a>(pub &'a [Folio]);

impl fmt::Display for FolioRuns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        let follows = |a: &Folio, b: &Folio| a.order == b.order && a.range().end == b.first;
        for (index, run) in self.0.chunk_by(follows).enumerate() {
            let separator = if index > 0 { " " } else { "" };
            let end = run[run.len() - 1].range().end;
            write!(f, "{separator}{}..{end}", run[0].first)?;
            if run[0].order > 0 {
                write!(f, "x{}", 1u64 << run[0].order)?;
            }
        }
        Ok(())
    }
}

/// Parses the folios of a line such as `4..20 20..80x4`. `nothing` stands for none. More than
/// `folios_max` folios, the number left for this recording, are an error. It is found before they
/// take memory.
fn parse_runs(text: &str, folios_max: usize) -> Result<Vec<Folio>, String> {
    let mut folios = Vec::new();
    for run in text.split_whitespace().filter(|&run| run != "nothing") {
        let bounds = (|| {
            let (first, rest) = run.split_once("..")?;
            let (end, size) = rest.split_once('x').unwrap_or((rest, "1"));
            let (first, end, size): (u64, u64, u64) =
                (first.parse().ok()?, end.parse().ok()?, size.parse().ok()?);
            let is_sound = size.is_power_of_two()
                && first < end
                && first.is_multiple_of(size)
                && end.is_multiple_of(size);
            is_sound.then_some((first, end, size))
        })();
        let (first, end, size) = bounds.ok_or_else(|| {
            format!("`{run}` is no run of pages `FIRST..END` or `FIRST..ENDxFOLIO`")
        })?;
        // Binary logarithm of the pages of a folio.
        let order = size.trailing_zeros() as u8;
        if (end - first) / size > (folios_max - folios.len()) as u64 {
            return Err(format!(
                "`{run}`: with it these are more than {FOLIOS_MAX} folios, the most that are read; \
                 record fewer steps at a time"
            ));
        }
        folios.extend((first..end).step_by(size as usize).map(|first| Folio { first, order }));
    }
    Ok(folios)
}

/// Formats a recording of `steps` so that [`parse_recording`] can read it.
pub fn format_recording(steps: &[HandleStep], recording: &Recording) -> String {
    let kib = |pages: u64| pages * PAGE_BYTES / 1024;
    let mut text = format!("system {}\n", recording.system);
    text += &format!("read_ahead_kb {}\n", kib(recording.limits.window_pages_max));
    text += &format!("max_sectors_kb {}\n", kib(recording.limits.request_pages_max));
    text += &format!("file_bytes {}\n", recording.file_bytes);
    text += &format!("folio_order_max {}\n", recording.folio_order_max);
    for (step, added) in std::iter::zip(steps, &recording.added) {
        text += &format!("{} -> {}\n", format_step(step), FolioRuns(added));
    }
    text
}

/// Parses a recording and its steps.
///
/// # Errors
/// Returns the first line that is neither a header line nor a step with its result.
pub fn parse_recording(text: &str) -> Result<(Vec<HandleStep>, Recording), TraceError> {
    let mut recording = Recording::default();
    let ReadaheadLimits { window_pages_max, request_pages_max } = &mut recording.limits;
    let (mut steps, mut folios) = (Vec::new(), 0);
    for (line, content) in numbered_lines(text) {
        let to_error = line_error(line);
        if let Some((step, added)) = content.split_once("->") {
            steps.push(parse_step(step.trim()).map_err(&to_error)?);
            let added = parse_runs(added, FOLIOS_MAX - folios).map_err(&to_error)?;
            folios += added.len();
            recording.added.push(added);
            continue;
        }
        let (key, value) = content.split_once(' ').unwrap_or((content, ""));
        let parse_value = |unit: &str, maximum| {
            parse_number(&format!("`{key}`{unit}"), value, maximum).map_err(&to_error)
        };
        match key {
            "system" => recording.system = value.to_owned(),
            // In KiB, up to 1 TiB. A folio has at most 2^9 pages, which are 2 MiB.
            "read_ahead_kb" => {
                *window_pages_max = parse_value(" in KiB", 1 << 30)? * 1024 / PAGE_BYTES
            }
            "max_sectors_kb" => {
                *request_pages_max = parse_value(" in KiB", 1 << 30)? * 1024 / PAGE_BYTES
            }
            "file_bytes" => recording.file_bytes = parse_value(" in bytes", OFFSET_MAX)?,
            "folio_order_max" => recording.folio_order_max = parse_value("", 9)? as u8,
            _ => {
                return Err(to_error(format!(
                    "`{content}` is neither a head line nor `STEP -> RUNS`"
                )));
            }
        }
    }
    Ok((steps, recording))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_list_is_parsed_with_comments() {
        let steps =
            parse_steps("# cold\n0 4096\n\nadvice random # now\n 4095   2\ntouch 7\nreopen\n");
        let expected = [
            HandleStep::Read { offset: 0, bytes: 4096 },
            HandleStep::Advise(Advice::Random),
            HandleStep::Read { offset: 4095, bytes: 2 },
            HandleStep::Touch { offset: 7 },
            HandleStep::Reopen,
        ];
        assert_eq!(steps.unwrap(), expected);
    }

    #[test]
    fn bad_line_is_reported_with_its_number() {
        let message = |text| parse_steps(text).unwrap_err().to_string();
        assert_eq!(
            message("0 4096\n0 4k\n"),
            "line 2: `4k` is not a length in bytes, a whole number up to 2147479552"
        );
        assert_eq!(
            message("\nadvice fast"),
            "line 2: there is no advice `fast` here; \
             there are: normal, sequential, random, dontneed"
        );
        assert!(message("17").starts_with("line 1: `17` is no step; a step is `OFFSET LENGTH`"));
        assert!(message("99999999999999999999 1").contains("is not an offset"));
    }

    /// Units of the queue's attributes in `/sys/block`, and of the kernel's `MAX_PAGECACHE_ORDER`.
    #[test]
    fn bad_header_value_is_reported_with_its_own_unit() {
        let message = |text| parse_recording(text).unwrap_err().to_string();
        for (text, expected) in [
            ("read_ahead_kb x", "`x` is not `read_ahead_kb` in KiB, a whole number up to "),
            ("max_sectors_kb", "`` is not `max_sectors_kb` in KiB, a whole number up to "),
            ("file_bytes -1", "`-1` is not `file_bytes` in bytes, a whole number up to "),
            ("folio_order_max 10", "`10` is not `folio_order_max`, a whole number up to 9"),
        ] {
            let message = message(text);
            assert!(message.starts_with(&format!("line 1: {expected}")), "{message}");
        }
    }

    /// Folios of one page and of four. Then runs that are malformed or describe too many folios.
    #[test]
    fn a_recording_reads_back_as_it_was_written() {
        let text = "system Linux 6.18.44 ext4\nread_ahead_kb 128\nmax_sectors_kb 1280\n\
                    file_bytes 1000000\nfolio_order_max 9\n0 4096 -> 0..4\n\
                    advice random -> nothing\n8192 9 -> 4..8 8..24x4 24..25\n";
        let (steps, recording) = parse_recording(text).unwrap();
        assert_eq!(recording.limits.window_pages_max, 32);
        assert_eq!(recording.added[2].len(), 4 + 4 + 1);
        assert_eq!(recording.added[2][4], Folio { first: 8, order: 2 });
        assert_eq!(format_recording(&steps, &recording), text);
        let error = parse_recording("0 1 -> 3..9x4").unwrap_err().to_string();
        assert!(error.starts_with("line 1: `3..9x4` is no run of pages"), "{error}");
        // A few characters can describe more folios than a machine has memory for.
        let error = parse_recording("0 1 -> 0..4 567..4444444444444447").unwrap_err().to_string();
        assert!(error.starts_with("line 1: `567..4444444444444447`: with it"), "{error}");
        let half = format!("0 1 -> 0..{}\n", FOLIOS_MAX / 2);
        assert!(parse_recording(&half.repeat(2)).is_ok());
        let error = parse_recording(&(half.repeat(2) + "0 1 -> 5..6")).unwrap_err().to_string();
        assert!(error.starts_with("line 3: `5..6`: with it"), "{error}");
    }
}
