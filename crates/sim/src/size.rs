//! Sizes as people write them: `64KiB`, `256M`, `1g`, all binary, as fio's.

/// Reads a size in bytes with an optional unit; `None` when it is no whole
/// number, has an unknown unit, or doesn't fit 64 bits.
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

/// What to write, for messages about a size that can't be read.
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
