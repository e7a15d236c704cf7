//! Numbers in the fields of a trace.

use readpath_core::request::Op;
use readpath_core::unit::{SECTOR_BYTES, Time};

/// A whole number.
pub fn whole(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// A time in units of so many nanoseconds, with digits behind a point, as far as they count.
pub fn time(text: &str, unit_ns: u64) -> Option<Time> {
    let (units, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let mut ns = whole(units)?.checked_mul(unit_ns)?;
    let mut digit_ns = unit_ns;
    for digit in fraction.bytes() {
        digit_ns /= 10;
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        ns = ns.checked_add(u64::from(digit) * digit_ns)?;
    }
    // As far as sums of times go without overflow: about 146 years.
    Some(Time(ns)).filter(|time| time.ns() < 1 << 62)
}

/// Bytes of so many sectors.
pub fn sectors(text: &str) -> Option<u64> {
    whole(text)?.checked_mul(SECTOR_BYTES)
}

/// A direction by its first letter.
pub fn letter(text: &str) -> Option<Op> {
    match text.trim().bytes().next()? {
        b'r' | b'R' => Some(Op::Read),
        b'w' | b'W' => Some(Op::Write),
        _ => None,
    }
}

/// Where a request lies, if its end can be counted.
pub fn range(offset: u64, bytes: u64) -> Option<(u64, u64)> {
    offset.checked_add(bytes).filter(|end| *end < 1 << 62).map(|_| (offset, bytes))
}
