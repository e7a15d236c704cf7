//! Sizes in human-readable form: `64KiB`, `256M`, `1g`.
//!
//! The form is the same in policies and devices, on the command line, in loads and from Python. All
//! units are powers of 1024, in upper or lower case, including those that end in `B` alone. Only
//! job files follow fio, in which `kb` is 1024 and `kib` is 1000.

/// Parses a size in bytes with an optional unit, which a blank may precede. Returns `None` if it is
/// not a whole number, has an unknown unit, or doesn't fit 64 bits.
///
/// ```
/// use readpath_core::size::parse;
///
/// assert_eq!(parse("64KiB"), Some(65_536));
/// assert_eq!(["4096", "4k", "4KB", "4 kib"].map(parse), [Some(4096); 4]);
/// assert_eq!(parse("4 apples"), None);
/// ```
pub fn parse(text: &str) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" | "kb" => 10,
        "m" | "mib" | "mb" => 20,
        "g" | "gib" | "gb" => 30,
        "t" | "tib" | "tb" => 40,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The expected form, for error messages about an invalid size.
pub const EXPECTED: &str = "a size such as 64KiB, 256MiB or 1GiB";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_bad_ones_are_refused() {
        assert_eq!(parse("256MiB"), Some(256 << 20));
        assert_eq!(parse("64k"), Some(65_536));
        assert_eq!(parse("4096"), Some(4_096));
        assert_eq!(parse("2 GB"), Some(2 << 30));
        for bad in ["", "k", "1x", "-1", "99999999999G", "1.5G", "1 Mi B"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
