//! Sizes on the command line.

use crate::exit::Failure;

/// Reads a size in bytes with an optional unit: `64KiB`, `256M`, `1g`, all binary, as fio's.
///
/// # Errors
/// It is no number, has an unknown unit, or doesn't fit 64 bits.
pub fn parse(option: &str, text: &str) -> Result<u64, Failure> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kib" | "kb" => Some(10),
        "m" | "mib" | "mb" => Some(20),
        "g" | "gib" | "gb" => Some(30),
        "t" | "tib" | "tb" => Some(40),
        _ => None,
    };
    let bytes = text[..digits].parse::<u64>().ok().zip(shift);
    bytes.and_then(|(number, shift)| number.checked_mul(1 << shift)).ok_or_else(|| {
        Failure::Usage(format!("{option} {text}: expected a size such as 64KiB, 256MiB or 1GiB"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_bad_ones_are_refused() {
        assert_eq!(parse("--memory", "256MiB").unwrap(), 256 << 20);
        assert_eq!(parse("--memory", "64k").unwrap(), 65_536);
        assert_eq!(parse("--memory", "4096").unwrap(), 4_096);
        for bad in ["", "k", "1x", "-1", "99999999999G", "1.5G"] {
            assert!(parse("--memory", bad).is_err(), "{bad}");
        }
    }
}
