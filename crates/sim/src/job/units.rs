//! Numbers with units, as fio 3.33 reads them with its default `kb_base=1024`.
//!
//! The units are turned round against the standards on purpose (fio keeps old
//! job files alive): `k` and `kb` are 1024, while `kib` is **1000**; so with m,
//! g, t and p. `ki` is 1000 in fio's manual but 1024 in fio, and here. Case does
//! not matter. `0x` starts a hexadecimal number. A time without a unit counts
//! in the option's own unit.

use readpath_core::unit::Time;

/// What to write where [`bytes`] is asked for.
pub const BYTES_FORM: &str = "a number of bytes, with k, m, g, t, p for powers of 1024 (`64k`), \
    or kib, mib, gib, tib, pib for powers of 1000, as in fio";

/// What to write where [`span`] is asked for.
pub const SPAN_FORM: &str = "a time with us, ms, s, m, h or d (`10s`)";

/// A whole number of bytes: `4096`, `4k`, `0x1000`, `1mib`.
pub fn bytes(text: &str) -> Option<u64> {
    let (number, suffix) = number_and_suffix(text)?;
    if suffix.is_empty() || suffix == "b" {
        return Some(number);
    }
    let (prefix, base) = match suffix.strip_suffix("ib") {
        Some(prefix) => (prefix, 1000_u64),
        None => (suffix.strip_suffix(['b', 'i']).unwrap_or(&suffix), 1024),
    };
    let power = 1 + ["k", "m", "g", "t", "p"].iter().position(|unit| *unit == prefix)?;
    number.checked_mul(base.checked_pow(u32::try_from(power).ok()?)?)
}

/// A span of time, where a bare number counts in `unit`.
pub fn span(text: &str, unit: Time) -> Option<Time> {
    let (number, suffix) = number_and_suffix(text)?;
    let unit = match suffix.as_str() {
        "" => unit,
        "us" | "usec" => Time::from_us(1),
        "ms" | "msec" => Time::from_ms(1),
        "s" | "sec" => Time::from_s(1),
        "m" | "min" => Time::from_s(60),
        "h" => Time::from_s(3600),
        "d" => Time::from_s(86_400),
        _ => return None,
    };
    number.checked_mul(unit.ns()).map(Time)
}

/// A plain whole number.
pub fn count(text: &str) -> Option<u64> {
    let (number, suffix) = number_and_suffix(text)?;
    suffix.is_empty().then_some(number)
}

/// Splits `4k` into 4 and a suffix in lower case.
fn number_and_suffix(text: &str) -> Option<(u64, String)> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, radix) = match lower.strip_prefix("0x") {
        Some(rest) => (rest, 16),
        None => (lower.as_str(), 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let number = u64::from_str_radix(&digits[..end], radix).ok()?;
    Some((number, digits[end..].to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table is fio's manual, "Parameter types", for `kb_base=1024`, but for `ki`, which
    /// fio 3.33 does not take as the manual says (an integration test asks fio itself).
    #[test]
    fn bytes_are_fios() {
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("4096b"), Some(4096));
        for text in ["4k", "4K", "4kb", "4KB", "4ki"] {
            assert_eq!(bytes(text), Some(4096), "{text}");
        }
        for text in ["4KiB", "4kib"] {
            assert_eq!(bytes(text), Some(4000), "{text}");
        }
        assert_eq!(bytes("1m"), Some(1 << 20));
        assert_eq!(bytes("1Gb"), Some(1 << 30));
        assert_eq!(bytes("2t"), Some(2 << 40));
        assert_eq!(bytes("1p"), Some(1 << 50));
        assert_eq!(bytes("1MiB"), Some(1_000_000));
        assert_eq!(bytes("0x1000"), Some(4096));
        assert_eq!(bytes("0x10k"), Some(16 << 10));
    }

    #[test]
    fn what_fio_would_drop_in_silence_is_refused() {
        for text in ["", "k", "4x", "4kk", "4bb", "-1", "4.5k", "4 k", "1k2", "99999999p", "50%"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_fios() {
        let s = Time::from_s(1);
        assert_eq!(span("10", s), Some(Time::from_s(10)));
        assert_eq!(span("10", Time::from_us(1)), Some(Time::from_us(10)));
        assert_eq!(span("5ms", s), Some(Time::from_ms(5)));
        assert_eq!(span("5usec", s), Some(Time::from_us(5)));
        assert_eq!(span("2m", s), Some(Time::from_s(120)));
        assert_eq!(span("1H", s), Some(Time::from_s(3600)));
        assert_eq!(span("1d", s), Some(Time::from_s(86_400)));
        assert_eq!(span("1.5s", s), None);
        assert_eq!(span("1x", s), None);
    }
}
