//! The fields of a line, and the numbers in them.
//!
//! A line is taken as bytes: what counts in it is ASCII, and a trace has many.

use readpath_core::request::Op;
use readpath_core::unit::{SECTOR_BYTES, Time};

/// The first `N` fields of a line that are parted by commas, without the spaces around them, and how many there are.
pub fn between_commas<const N: usize>(text: &[u8]) -> ([&[u8]; N], usize) {
    first(text.split(|byte| *byte == b',').map(<[u8]>::trim_ascii))
}

/// The first `N` words of a line, and how many there are.
pub fn words<const N: usize>(text: &[u8]) -> ([&[u8]; N], usize) {
    // Most bytes are neither a space nor anything below it.
    let is_between = |byte: &u8| *byte <= b' ' && byte.is_ascii_whitespace();
    first(text.split(is_between).filter(|word| !word.is_empty()))
}

fn first<'a, const N: usize>(mut fields: impl Iterator<Item = &'a [u8]>) -> ([&'a [u8]; N], usize) {
    let mut places: [&[u8]; N] = [&[]; N];
    let mut count = 0;
    while count < N
        && let Some(field) = fields.next()
    {
        places[count] = field;
        count += 1;
    }
    (places, count)
}

/// Where a line ends that begins here; `None`: not in these bytes.
pub fn line_end(bytes: &[u8]) -> Option<usize> {
    // Of sixteen bytes together the processor looks at all at once.
    let has_end =
        |bytes: &[u8]| bytes.iter().fold(false, |has_end, byte| has_end | (*byte == b'\n'));
    let before = bytes.chunks_exact(16).take_while(|sixteen| !has_end(sixteen)).count() * 16;
    let end = bytes[before..].iter().position(|byte| *byte == b'\n');
    end.map(|end| before + end)
}

/// A whole number.
pub fn whole(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"+").unwrap_or(text);
    if digits.is_empty() {
        return None;
    }
    // So many digits are less than 2^64, whatever they are.
    let (short, rest) = digits.split_at(digits.len().min(19));
    let (mut number, mut are_digits) = (0_u64, true);
    for byte in short {
        let digit = byte.wrapping_sub(b'0');
        are_digits &= digit < 10;
        number = number.wrapping_mul(10).wrapping_add(digit.into());
    }
    for byte in rest {
        number = number.checked_mul(10)?.checked_add(digit(*byte)?)?;
    }
    are_digits.then_some(number)
}

fn digit(byte: u8) -> Option<u64> {
    Some(u64::from(byte.wrapping_sub(b'0'))).filter(|digit| *digit < 10)
}

/// A time in units of so many nanoseconds, with digits behind a point, as far as they count.
pub fn time(text: &[u8], unit_ns: u64) -> Option<Time> {
    let ns = match whole(text) {
        Some(units) => units.checked_mul(unit_ns)?,
        None => {
            let point = text.iter().position(|byte| *byte == b'.')?;
            let mut ns = whole(&text[..point])?.checked_mul(unit_ns)?;
            let mut digit_ns = unit_ns;
            for byte in &text[point + 1..] {
                digit_ns /= 10;
                ns = ns.checked_add(digit(*byte)? * digit_ns)?;
            }
            ns
        }
    };
    // As far as sums of times go without overflow: about 146 years.
    Some(Time(ns)).filter(|time| time.ns() < 1 << 62)
}

/// Bytes of so many sectors.
pub fn sectors(text: &[u8]) -> Option<u64> {
    whole(text)?.checked_mul(SECTOR_BYTES)
}

/// A direction by its first letter.
pub fn letter(text: &[u8]) -> Option<Op> {
    match text.first()? {
        b'r' | b'R' => Some(Op::Read),
        b'w' | b'W' => Some(Op::Write),
        _ => None,
    }
}

/// Where a request lies, if its end can be counted.
pub fn range(offset: u64, bytes: u64) -> Option<(u64, u64)> {
    offset.checked_add(bytes).filter(|end| *end < 1 << 62).map(|_| (offset, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the standard library reads them.
    #[test]
    fn numbers_are_those_that_the_standard_library_reads() {
        let most = u64::MAX.to_string();
        let beyond = "18446744073709551616";
        for text in
            ["0", "7", "+7", "007", "", "+", "++1", "-1", "1x", " 1", "1_000", &most, beyond]
                .into_iter()
                .chain([
                    "9999999999999999999",
                    "99999999999999999999",
                    "000000000000000000000000012",
                ])
        {
            assert_eq!(whole(text.as_bytes()), text.parse().ok(), "{text}");
        }
    }

    #[test]
    fn a_line_ends_wherever_it_does() {
        for end in 0..70 {
            let mut bytes = [b'x'; 70];
            assert_eq!(line_end(&bytes[..end]), None);
            bytes[end] = b'\n';
            bytes[69] = b'\n';
            assert_eq!(line_end(&bytes), Some(end));
        }
    }

    #[test]
    fn digits_behind_a_point_count_as_far_as_nanoseconds_go() {
        let ns = |text: &str| time(text.as_bytes(), 1_000_000_000).map(Time::ns);
        assert_eq!(ns("1.5"), Some(1_500_000_000));
        assert_eq!(ns("0.0000000019"), Some(1));
        assert_eq!([ns("1."), ns("2")], [Some(1_000_000_000), Some(2_000_000_000)]);
        assert_eq!([ns(".5"), ns("1.x"), ns("1.2.3"), ns("9223372036")], [None; 4]);
    }
}
