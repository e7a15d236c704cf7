//! Fields of a line, and their numbers.
//!
//! A line is processed as bytes: its relevant part is ASCII, and a trace has many lines.

use readpath_core::request::Op;
use readpath_core::unit::{SECTOR_BYTES, Time};

/// Exclusive upper bound of times in ns, about 146 years. The sum of two such times does not
/// overflow.
pub const TIME_NS_LIMIT: u64 = 1 << 62;

/// Exclusive upper bound of the end of a request in bytes. The sum of two such ends does not
/// overflow.
pub const END_BYTES_LIMIT: u64 = 1 << 62;

/// Returns a text without the byte order mark of UTF-8, which some editors put before it.
pub fn without_byte_order_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// Returns the first `N` comma-separated fields without surrounding spaces, and the number found,
/// at most `N`. Missing fields are empty.
pub fn first_comma_fields<const N: usize>(text: &[u8]) -> ([&[u8]; N], usize) {
    collect_first(text.split(|byte| *byte == b',').map(<[u8]>::trim_ascii))
}

/// Returns the first `N` words of a line, and the number found, at most `N`. Missing words are
/// empty.
pub fn first_words<const N: usize>(text: &[u8]) -> ([&[u8]; N], usize) {
    // Most bytes are greater than a space, so this comparison comes first.
    let is_between = |byte: &u8| *byte <= b' ' && byte.is_ascii_whitespace();
    collect_first(text.split(is_between).filter(|word| !word.is_empty()))
}

/// Returns the first `N` fields, and the number found, at most `N`. Missing fields are empty.
fn collect_first<'a, const N: usize>(
    mut fields: impl Iterator<Item = &'a [u8]>,
) -> ([&'a [u8]; N], usize) {
    let mut found: [&[u8]; N] = [&[]; N];
    let mut count = 0;
    while count < N
        && let Some(field) = fields.next()
    {
        found[count] = field;
        count += 1;
    }
    (found, count)
}

/// Returns the position of the line end, or `None` if it is not in these bytes.
pub fn line_end(bytes: &[u8]) -> Option<usize> {
    // The compiler turns blocks of sixteen bytes into vector instructions.
    let has_end =
        |bytes: &[u8]| bytes.iter().fold(false, |has_end, byte| has_end | (*byte == b'\n'));
    let bytes_before = bytes.chunks_exact(16).take_while(|sixteen| !has_end(sixteen)).count() * 16;
    let end = bytes[bytes_before..].iter().position(|byte| *byte == b'\n');
    end.map(|end| bytes_before + end)
}

/// Parses a whole number, with an optional `+`. Returns `None` for other text and beyond 64 bits.
pub fn whole_number(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"+").unwrap_or(text);
    if digits.is_empty() {
        return None;
    }
    // A number of 19 digits is always below 2^64, so only the digits after them need checks.
    let (short, rest) = digits.split_at(digits.len().min(19));
    let (mut number, mut are_digits) = (0_u64, true);
    for byte in short {
        let digit = byte.wrapping_sub(b'0');
        are_digits &= digit < 10;
        number = number.wrapping_mul(10).wrapping_add(digit.into());
    }
    for byte in rest {
        number = number.checked_mul(10)?.checked_add(digit_value(*byte)?)?;
    }
    are_digits.then_some(number)
}

/// Returns the value of a decimal digit, or `None` for another byte.
fn digit_value(byte: u8) -> Option<u64> {
    Some(u64::from(byte.wrapping_sub(b'0'))).filter(|digit| *digit < 10)
}

/// Parses a time in units of `unit_ns` nanoseconds, with decimals. Digits below 1 ns are cut off.
/// Returns `None` for other text and beyond 146 years.
pub fn parse_time(text: &[u8], unit_ns: u64) -> Option<Time> {
    let ns = match whole_number(text) {
        Some(units) => units.checked_mul(unit_ns)?,
        None => {
            let point = text.iter().position(|byte| *byte == b'.')?;
            let mut ns = whole_number(&text[..point])?.checked_mul(unit_ns)?;
            let mut digit_ns = unit_ns;
            for byte in &text[point + 1..] {
                digit_ns /= 10;
                ns = ns.checked_add(digit_value(*byte)? * digit_ns)?;
            }
            ns
        }
    };
    checked_time(ns)
}

/// Parses a number of sectors and returns its bytes. `None` for other text and beyond 64 bits.
pub fn sector_bytes(text: &[u8]) -> Option<u64> {
    whole_number(text)?.checked_mul(SECTOR_BYTES)
}

/// Parses a direction by its first letter: `r` or `w`, in either case. Returns `None` for another
/// letter.
pub fn parse_direction(text: &[u8]) -> Option<Op> {
    match text.first()? {
        b'r' | b'R' => Some(Op::Read),
        b'w' | b'W' => Some(Op::Write),
        _ => None,
    }
}

/// Returns offset and length in bytes if the end is below [`END_BYTES_LIMIT`]. Otherwise returns
/// `None`.
pub fn checked_range(offset: u64, bytes: u64) -> Option<(u64, u64)> {
    offset.checked_add(bytes).filter(|end| *end < END_BYTES_LIMIT).map(|_| (offset, bytes))
}

/// Returns the time if it is below [`TIME_NS_LIMIT`]. Otherwise returns `None`.
pub fn checked_time(ns: u64) -> Option<Time> {
    Some(Time(ns)).filter(|time| time.ns() < TIME_NS_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the standard library.
    #[test]
    fn whole_numbers_parse_as_in_the_standard_library() {
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
            assert_eq!(whole_number(text.as_bytes()), text.parse().ok(), "{text}");
        }
    }

    /// 70 bytes: four blocks of sixteen and a rest.
    #[test]
    fn line_end_is_found_at_every_position() {
        for end in 0..70 {
            let mut bytes = [b'x'; 70];
            assert_eq!(line_end(&bytes[..end]), None);
            bytes[end] = b'\n';
            bytes[69] = b'\n';
            assert_eq!(line_end(&bytes), Some(end));
        }
    }

    /// Digits beyond 1 ns are cut off. A number needs a digit before the point, and 9,223,372,036 s
    /// are beyond 146 years.
    #[test]
    fn fractional_digits_count_down_to_nanoseconds() {
        let ns = |text: &str| parse_time(text.as_bytes(), 1_000_000_000).map(Time::ns);
        assert_eq!(ns("1.5"), Some(1_500_000_000));
        assert_eq!(ns("0.0000000019"), Some(1));
        assert_eq!([ns("1."), ns("2")], [Some(1_000_000_000), Some(2_000_000_000)]);
        assert_eq!([ns(".5"), ns("1.x"), ns("1.2.3"), ns("9223372036")], [None; 4]);
    }
}
