//! Parses the value of an option: numbers with units, times, lists, as in fio.
//!
//! The units deliberately differ from the standards, because fio keeps old job files valid. With
//! fio's default `kb_base=1024`, `k` and `kb` are 1024, while `kib` is **1000**, and likewise for
//! m, g, t and p. With `kb_base=1000` they have their standard meaning. `ki` is 1000 in fio's
//! manual but 1024 in fio, and here. Case is ignored. `0x` starts a hexadecimal number. A time
//! without unit is in the option's own unit. A value in brackets is an arithmetic expression:
//! `(4*1024)`, `(2m+30s)`.

use std::fmt::Display;
use std::ops::RangeInclusive;

use readpath_core::unit::Time;

use super::BytesOrPercent;
use super::arithmetic;

/// Expected form of a value, for error messages.
pub type ExpectedForm = String;

/// Expected form of a number of bytes.
pub const BYTES_FORM: &str = "a number of bytes, with k, m, g, t, p for powers of 1024 (`64k`), \
    or kib, mib, gib, tib, pib for powers of 1000, as in fio";

/// Expected form of a time.
pub const TIME_FORM: &str = "a time with us, ms, s, m, h or d (`10s`), of ten years at most";

/// Maximum time of an option. Sums of a few of them fit 64 bits of nanoseconds.
pub const SPAN_MAX: Time = Time::from_s(3650 * 86_400);

/// The value of an option.
#[derive(Clone, Copy, Debug)]
pub struct OptionValue<'a> {
    /// Text of the value. Empty if there is none.
    pub text: &'a str,
    /// True if the option has a value.
    pub is_given: bool,
    /// Meaning of `k` (`kb_base`).
    pub kilo: ByteUnits,
}

/// Meaning of the byte units (`kb_base`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByteUnits {
    /// `k` is 1024 and `kib` is 1000.
    #[default]
    Binary,
    /// `k` is 1000 and `kib` is 1024.
    Decimal,
}

impl<'a> OptionValue<'a> {
    /// Returns the same option with `text`, a part of its value.
    pub fn part(self, text: &'a str) -> OptionValue<'a> {
        OptionValue { text: text.trim(), is_given: true, ..self }
    }

    /// Parses a whole number within bounds, with the units of bytes: fio accepts `1k` for any
    /// number.
    pub fn integer<N>(self, bounds: RangeInclusive<N>) -> Result<N, ExpectedForm>
    where
        N: TryFrom<u64> + PartialOrd + Copy + Display,
    {
        self.bytes().and_then(|n| N::try_from(n).ok()).filter(|n| bounds.contains(n)).ok_or_else(
            || match (bounds.start(), bounds.end()) {
                (low, high) if low == high => format!("{low}"),
                (low, high) => format!("a whole number from {low} to {high}"),
            },
        )
    }

    /// Parses a plain whole number or an expression in brackets. Returns `None` for another form.
    pub fn count(self) -> Option<u64> {
        // A text in brackets has a result, or `None` if the expression is invalid.
        if let Some(result) = arithmetic::evaluate_in_brackets(self.text, &|number| count(number)) {
            return result;
        }
        count(self.text)
    }

    /// Parses a number of bytes within bounds.
    pub fn bytes_in(self, bounds: RangeInclusive<u64>) -> Result<u64, ExpectedForm> {
        self.bytes().filter(|n| bounds.contains(n)).ok_or_else(|| match *bounds.start() {
            0 => BYTES_FORM.to_owned(),
            low => format!("from {low}, {BYTES_FORM}"),
        })
    }

    /// Parses a number of bytes: `4096`, `4k`, `0x1000`, `1mib`. Returns `None` for another form
    /// and beyond 64 bits.
    pub fn bytes(self) -> Option<u64> {
        let parse_one = |number: &str| bytes(number, self.kilo);
        arithmetic::evaluate_in_brackets(self.text, &parse_one)
            .unwrap_or_else(|| parse_one(self.text))
    }

    /// Parses a number of bytes with an optional sign. Returns `None` for another form and beyond
    /// 63 bits.
    pub fn signed_bytes(self) -> Option<i64> {
        let (sign, rest) = match self.text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, self.text.strip_prefix('+').unwrap_or(self.text)),
        };
        let bytes = self.part(rest).bytes()?;
        i64::try_from(bytes).ok().map(|bytes| sign * bytes)
    }

    /// Parses a number of bytes of at least `min`, or a percentage from `min` to 100, without
    /// fraction.
    pub fn extent(self, min: u64) -> Result<BytesOrPercent, ExpectedForm> {
        let parsed = match self.text.strip_suffix('%') {
            Some(number) => self
                .part(number)
                .count()
                .and_then(|n| u8::try_from(n).ok())
                .filter(|n| *n <= 100)
                .map(|n| (u64::from(n), BytesOrPercent::Percent(n))),
            None => self.bytes().map(|n| (n, BytesOrPercent::Bytes(n))),
        };
        match parsed {
            Some((number, extent)) if number >= min => Ok(extent),
            _ => Err(format!("a percentage from {min}% to 100%, or, from {min}, {BYTES_FORM}")),
        }
    }

    /// Parses a time of at most [`SPAN_MAX`]. A number without unit counts in `unit`, which the
    /// option defines: seconds, milliseconds or microseconds.
    pub fn span(self, unit: Time) -> Result<Time, ExpectedForm> {
        let parse_one = |number: &str| span_ns(number, unit);
        let ns = arithmetic::evaluate_in_brackets(self.text, &parse_one)
            .unwrap_or_else(|| parse_one(self.text));
        ns.map(Time).filter(|time| *time <= SPAN_MAX).ok_or_else(|| {
            let unit = match unit.ns() {
                1_000_000_000 => "seconds",
                1_000_000 => "milliseconds",
                _ => "microseconds",
            };
            format!("{TIME_FORM}; without one it counts {unit}")
        })
    }

    /// Parses a decimal number, with or without fraction, within bounds.
    pub fn fraction(self, bounds: RangeInclusive<f64>) -> Result<f64, ExpectedForm> {
        let number = self.text.trim().parse::<f64>().ok();
        number
            .filter(|number| bounds.contains(number))
            .ok_or_else(|| format!("a number from {} to {}", bounds.start(), bounds.end()))
    }

    /// Parses a switch: 1 is true and 0 is false. The option alone means true.
    pub fn switch(self) -> Result<bool, ExpectedForm> {
        match self.text {
            "" if !self.is_given => Ok(true),
            "1" => Ok(true),
            "0" => Ok(false),
            _ => Err("1, 0, or the option alone".to_owned()),
        }
    }

    /// Parses a switch with a mandatory value, in contrast to [`OptionValue::switch`]: 1 is
    /// true and 0 is false.
    pub fn flag(self) -> Result<bool, ExpectedForm> {
        self.integer(0..=1).map(|number: u8| number == 1)
    }

    /// Parses a non-empty text.
    pub fn non_empty_text(self) -> Result<String, ExpectedForm> {
        match self.text.is_empty() {
            true => Err("some text".to_owned()),
            false => Ok(self.text.to_owned()),
        }
    }

    /// Parses one of these words, each given with its meaning. Returns the meaning. The error
    /// lists the words.
    pub fn one_of<T: Copy>(self, words: &[(&str, T)]) -> Result<T, ExpectedForm> {
        let found = words.iter().find(|(word, _)| *word == self.text);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            match words.split_last() {
                Some((last, [])) => (*last).to_owned(),
                Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
                None => String::new(),
            }
        })
    }

    /// Parses values for reads, writes and, if `targets` has three elements, trims. The forms are
    /// `A` for all, `A,B` (the second also for trims), and `A,B,C`. Without a target for trims, `C`
    /// is not parsed. An empty part keeps the present value of its target.
    pub fn for_each_direction<T: Clone, const N: usize>(
        self,
        targets: &mut [T; N],
        parse: impl Fn(OptionValue<'a>) -> Result<T, ExpectedForm>,
    ) -> Result<(), ExpectedForm> {
        let parts: Vec<&str> = self.text.split(',').map(str::trim).collect();
        if parts.len() > 3 {
            return Err("one value, or READS,WRITES or READS,WRITES,TRIMS".to_owned());
        }
        let has_one_part = parts.len() == 1;
        for (index, target) in targets.iter_mut().enumerate() {
            let part = parts.get(index).or(parts.last()).expect("a split has one part at least");
            // A single empty value is parsed as well, which reports it as an error.
            if has_one_part || !part.is_empty() {
                *target = parse(self.part(part))?;
            }
        }
        Ok(())
    }
}

/// Parses a number of bytes without arithmetic. `kilo` selects the base of `k`; as in fio, `kib`
/// has the other one of 1000 and 1024. Returns `None` for another form and beyond 64 bits.
fn bytes(text: &str, kilo: ByteUnits) -> Option<u64> {
    let (count, suffix) = number_and_suffix(text)?;
    if suffix.is_empty() || suffix == "b" {
        return Some(count);
    }
    let (short_base, ib_base) = match kilo {
        ByteUnits::Binary => (1024_u64, 1000),
        ByteUnits::Decimal => (1000, 1024),
    };
    let (prefix, base) = match suffix.strip_suffix("ib") {
        Some(prefix) => (prefix, ib_base),
        // `k`, `kb` and `ki` are the same.
        None => (suffix.strip_suffix(['b', 'i']).unwrap_or(&suffix), short_base),
    };
    let power = 1 + ["k", "m", "g", "t", "p"].iter().position(|unit| *unit == prefix)?;
    count.checked_mul(base.checked_pow(u32::try_from(power).ok()?)?)
}

/// Parses a time without arithmetic. Returns it in ns, or `None` for another form and for more than
/// 64 bits of ns. A number without suffix counts in `unit`.
fn span_ns(text: &str, unit: Time) -> Option<u64> {
    let (count, suffix) = number_and_suffix(text)?;
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
    count.checked_mul(unit.ns())
}

/// Parses a whole number without unit. Returns `None` for another form.
fn count(text: &str) -> Option<u64> {
    let (number, suffix) = number_and_suffix(text)?;
    suffix.is_empty().then_some(number)
}

/// Splits `4k` into the number 4 and the lower-case suffix `k`. Returns `None` without a number,
/// and for one beyond 64 bits. In a hexadecimal number, the letters a to f are digits.
fn number_and_suffix(text: &str) -> Option<(u64, String)> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, radix) = match lower.strip_prefix("0x") {
        Some(rest) => (rest, 16),
        None => (lower.as_str(), 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let value = u64::from_str_radix(&digits[..end], radix).ok()?;
    Some((value, digits[end..].to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Value `text` of an option in a job with the default `kb_base=1024`.
    fn value(text: &str) -> OptionValue<'_> {
        OptionValue { text, is_given: true, kilo: ByteUnits::Binary }
    }

    /// The table is fio's manual, "Parameter types", for `kb_base=1024`. `ki` is an exception: fio
    /// 3.33 does not follow its manual (an integration test asks fio itself).
    #[test]
    fn byte_values_parse_as_in_fio() {
        let bytes = |text| value(text).bytes();
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
        assert_eq!(bytes("(4*1k)"), Some(4096));
        let decimal = |text| OptionValue { kilo: ByteUnits::Decimal, ..value(text) }.bytes();
        assert_eq!((decimal("4k"), decimal("4kib")), (Some(4000), Some(4096)));
    }

    #[test]
    fn byte_values_that_fio_silently_truncates_are_refused() {
        for text in ["", "k", "4x", "4kk", "4bb", "-1", "4.5k", "4 k", "1k2", "99999999p", "50%"] {
            assert_eq!(value(text).bytes(), None, "{text}");
        }
    }

    /// A number without suffix counts in the unit of the option. Fractions are no valid times.
    #[test]
    fn time_values_parse_as_in_fio() {
        let s = Time::from_s(1);
        let span = |text, unit| value(text).span(unit).ok();
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

    /// 2^64 ns are 584 years. A pause of nearly that length would wrap around when added to any
    /// time.
    #[test]
    fn times_beyond_the_maximum_span_are_refused() {
        let us = Time::from_us(1);
        assert!(value("18446744073709550").span(us).is_err());
        assert!(value("3651d").span(us).is_err());
        assert_eq!(value("3650d").span(us), Ok(SPAN_MAX));
    }
}
