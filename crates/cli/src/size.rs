//! Sizes on the command line.

use readpath_sim::fields::size;

use crate::exit::Failure;

/// Reads a size in bytes with an optional unit: `64KiB`, `256M`, `1g`, all binary, as fio's.
///
/// # Errors
/// It is no number, has an unknown unit, or doesn't fit 64 bits.
pub fn parse(option: &str, text: &str) -> Result<u64, Failure> {
    size::bytes(text).ok_or_else(|| {
        Failure::Usage(format!("{option} {text}: expected a size such as 64KiB, 256MiB or 1GiB"))
    })
}
