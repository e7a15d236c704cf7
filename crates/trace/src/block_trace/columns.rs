//! Parsers of traces with one request per line, in columns.

use readpath_core::request::Op;
use readpath_core::unit::Time;

use super::fields::{
    checked_range, checked_time, first_comma_fields, first_words, parse_direction, parse_time,
    sector_bytes, whole_number,
};
use super::{Event, RawRequest, TraceFormat, TraceLine};

/// Nanoseconds per Windows tick.
const NS_PER_TICK: u64 = 100;
/// Nanoseconds per µs.
const NS_PER_US: u64 = 1_000;
/// Nanoseconds per ms.
const NS_PER_MS: u64 = 1_000_000;
/// Nanoseconds per second.
const NS_PER_S: u64 = 1_000_000_000;

/// Returns the expected form of a line, for errors.
pub fn expected_form(format: TraceFormat) -> &'static str {
    match format {
        TraceFormat::Iolog => {
            "`fio version V iolog` first, V 2 or 3, and lines `[us] FILE read|write OFFSET BYTES`"
        }
        TraceFormat::Blkparse => {
            "blkparse's `MAJOR,MINOR CPU SEQUENCE SECONDS PID ACTION RWBS SECTOR + SECTORS`"
        }
        TraceFormat::Blktrace => super::blktrace::EXPECTED,
        TraceFormat::Recording => "a recording of reads that end below 2^62 bytes",
        TraceFormat::Msr => "TICKS,HOST,DISK,Read|Write,OFFSET,BYTES,RESPONSE",
        TraceFormat::Mqsim => {
            "NS DEVICE SECTOR SECTORS 0|1, NS whole; times in ms are read with --trace disksim"
        }
        TraceFormat::Disksim => "MS DEVICE BLOCK BLOCKS FLAGS",
        TraceFormat::Spc => "UNIT,BLOCK,BYTES,R or W,SECONDS",
        TraceFormat::Alibaba => "DEVICE,R|W,OFFSET,BYTES,MICROSECONDS",
        TraceFormat::Tencent => "SECONDS,SECTOR,SECTORS,0|1,VOLUME",
    }
}

/// Parses a time in Windows ticks since 1601 and converts it to 1970, so that it fits 64 bits of
/// nanoseconds. A value below the ticks of 1970 counts from another start, such as the start of the
/// trace, and only its unit is converted. Returns `None` for other text and for a time that is too
/// late.
fn windows_time(text: &[u8]) -> Option<Time> {
    /// Ticks of 100 ns from 1601 to 1970.
    const TICKS_TO_1970: u64 = 116_444_736_000_000_000;
    let ticks = whole_number(text)?;
    let ns = ticks.checked_sub(TICKS_TO_1970).unwrap_or(ticks).checked_mul(NS_PER_TICK)?;
    checked_time(ns)
}

/// Returns true for a line of column names, with which some files of comma-separated values begin.
pub fn is_header(line: &[u8]) -> bool {
    // At most five fields are counted, so a line of five or more passes.
    let (fields, count) = first_comma_fields::<5>(line);
    let is_name = |field: &&[u8]| {
        field.first().is_some_and(u8::is_ascii_alphabetic)
            && field.iter().all(|byte| byte.is_ascii_alphabetic() || b" _-()".contains(byte))
    };
    count == 5 && fields.iter().all(is_name)
}

/// Returns the format that the first line indicates, by the columns of [`expected_form`]. Returns
/// `None` if the line has no such form.
pub fn detect_format(line: &[u8]) -> Option<TraceFormat> {
    // Counts up to 6 are exact, and 7 means seven or more.
    let (fields, count) = first_comma_fields::<7>(line);
    let is_whole_number = |index: usize| whole_number(fields[index]).is_some();
    let is_direction = |index: usize| {
        [&b"R"[..], b"W", b"Read", b"Write"]
            .iter()
            .any(|word| word.eq_ignore_ascii_case(fields[index]))
    };
    match count {
        6.. if is_whole_number(0) && is_direction(3) && is_whole_number(4) && is_whole_number(5)
            // SPC has a direction of one letter, and a number in the second field.
            && (fields[3].len() > 1 || !is_whole_number(1)) =>
        {
            return Some(TraceFormat::Msr);
        }
        5.. if is_whole_number(0)
            && is_whole_number(1)
            && is_whole_number(2)
            && is_direction(3) =>
        {
            return Some(TraceFormat::Spc);
        }
        5 if is_direction(1) && is_whole_number(2) && is_whole_number(3) => {
            return Some(TraceFormat::Alibaba);
        }
        5 if (0..5).all(is_whole_number) => return Some(TraceFormat::Tencent),
        _ => {}
    }
    // No commas between the columns: words.
    let (words, count) = first_words::<6>(line);
    match &words[..count] {
        [device, _, _, seconds, ..]
            if is_device(device) && parse_time(seconds, NS_PER_S).is_some() =>
        {
            Some(TraceFormat::Blkparse)
        }
        [start, rest @ ..] if rest.len() == 4 && parse_time(start, NS_PER_MS).is_some() => {
            let are_whole = rest[..3].iter().all(|word| whole_number(word).is_some());
            // Times in ms have decimals, times in ns have none.
            match start.contains(&b'.') {
                true => are_whole.then_some(TraceFormat::Disksim),
                false => (are_whole && [&b"0"[..], b"1"].contains(&rest[3]))
                    .then_some(TraceFormat::Mqsim),
            }
        }
        _ => None,
    }
}

/// Parses a line. Returns `None` if it does not have this format.
pub fn parse_line(format: TraceFormat, text: &[u8]) -> Option<TraceLine<'_>> {
    let (fields, count) = match format {
        TraceFormat::Blkparse => return parse_blkparse(text),
        TraceFormat::Mqsim | TraceFormat::Disksim => first_words::<6>(text),
        _ => first_comma_fields::<6>(text),
    };
    // Every format has at least five columns. A missing sixth one is empty, which is no number.
    if count < 5 {
        return None;
    }
    // The order of the columns is in `expected_form`.
    let [first, second, third, fourth, fifth, sixth] = fields;
    let (at, device, op, offset, bytes) = match format {
        TraceFormat::Msr => {
            // Host and disk together name the device. The text between the first comma and the
            // third one contains both.
            let mut commas = (0..text.len()).filter(|index| text[*index] == b',');
            let device = text[commas.next()? + 1..commas.nth(1)?].trim_ascii();
            let (offset, bytes) = (whole_number(fifth)?, whole_number(sixth)?);
            (windows_time(first)?, device, parse_direction(fourth)?, offset, bytes)
        }
        TraceFormat::Mqsim => {
            let op = match fifth {
                b"0" => Op::Write,
                b"1" => Op::Read,
                _ => return None,
            };
            // A time with decimals is in another unit, such as the milliseconds of DiskSim.
            let at = whole_number(first).and_then(checked_time)?;
            (at, second, op, sector_bytes(third)?, sector_bytes(fourth)?)
        }
        TraceFormat::Disksim => {
            // The flags are hexadecimal, with or without `0x`.
            let flags = std::str::from_utf8(fifth).ok()?.trim_start_matches("0x");
            let flags = u64::from_str_radix(flags, 16).ok()?;
            let op = if flags & 1 == 1 { Op::Read } else { Op::Write };
            (parse_time(first, NS_PER_MS)?, second, op, sector_bytes(third)?, sector_bytes(fourth)?)
        }
        TraceFormat::Spc => {
            let (offset, bytes) = (sector_bytes(second)?, whole_number(third)?);
            (parse_time(fifth, NS_PER_S)?, first, parse_direction(fourth)?, offset, bytes)
        }
        TraceFormat::Alibaba => {
            let (offset, bytes) = (whole_number(third)?, whole_number(fourth)?);
            (parse_time(fifth, NS_PER_US)?, first, parse_direction(second)?, offset, bytes)
        }
        TraceFormat::Tencent => {
            let op = match fourth {
                b"0" => Op::Read,
                b"1" => Op::Write,
                _ => return None,
            };
            (parse_time(first, NS_PER_S)?, fifth, op, sector_bytes(second)?, sector_bytes(third)?)
        }
        TraceFormat::Iolog
        | TraceFormat::Blkparse
        | TraceFormat::Blktrace
        | TraceFormat::Recording => return None,
    };
    let (offset, bytes) = checked_range(offset, bytes)?;
    Some(match bytes {
        0 => TraceLine::Nothing,
        bytes => {
            TraceLine::Request(RawRequest { at, device, op, offset, bytes, event: Event::Queued })
        }
    })
}

/// Parses a line of blkparse such as `8,0 3 1 0.000000000 697 Q W 223490 + 8 [name]`, an event of a
/// request. Events of other kinds and the summary at the end are no requests. Returns `None` for
/// any other line.
fn parse_blkparse(text: &[u8]) -> Option<TraceLine<'_>> {
    let (words, count) = first_words::<10>(text);
    let event = match words.get(5) {
        Some(&b"Q") => Some(Event::Queued),
        Some(&b"D") => Some(Event::Issued),
        Some(&b"I") => Some(Event::Inserted),
        Some(&b"C") => Some(Event::Completed),
        _ => None,
    };
    let (Some(event), [device, _, _, seconds, _, _, kind, sector, b"+", sectors]) =
        (event, &words[..count])
    else {
        // An event of another kind (a plug, a merge) begins like any event, with its device.
        let is_event = is_device(words[0]);
        let is_summary = SUMMARY_PREFIXES.iter().any(|start| text.starts_with(start.as_bytes()));
        return (is_event || is_summary).then_some(TraceLine::Nothing);
    };
    // The first letter of these decides. D is a discard, which moves no data.
    let op = match kind.iter().find(|letter| b"RWD".contains(letter)) {
        Some(b'R') => Op::Read,
        Some(b'W') => Op::Write,
        _ => return Some(TraceLine::Nothing),
    };
    let (offset, bytes) = checked_range(sector_bytes(sector)?, sector_bytes(sectors)?)?;
    let at = parse_time(seconds, NS_PER_S)?;
    Some(match bytes {
        0 => TraceLine::Nothing,
        bytes => TraceLine::Request(RawRequest { at, device, op, offset, bytes, event }),
    })
}

/// Start of the line about each input file, which `blkparse` prints before the events on a terminal
/// and after them in a file.
const INPUT_FILE_PREFIX: &str = "Input file";

/// Returns true for a line of `blkparse` about an input file.
pub fn is_input_file(line: &[u8]) -> bool {
    line.starts_with(INPUT_FILE_PREFIX.as_bytes())
}

/// Starts of the summary lines that `blkparse` prints after the events.
const SUMMARY_PREFIXES: [&str; 11] = [
    "CPU",
    "Reads",
    "Read",
    "Writes",
    "IO",
    "PC",
    "Total",
    "Throughput",
    "Events",
    "Skips",
    INPUT_FILE_PREFIX,
];

/// Returns true if a word is a device's `MAJOR,MINOR`.
fn is_device(word: &[u8]) -> bool {
    let mut numbers = word.splitn(2, |byte| *byte == b',').map(whole_number);
    [numbers.next(), numbers.next()].iter().all(|number| matches!(number, Some(Some(_))))
}
