//! Sizes on the command line.

use readpath_sim::size;

use crate::exit::Failure;

/// Reads the size that an option was given.
///
/// # Errors
/// It is no size; the message names the option.
pub fn parse(option: &str, text: &str) -> Result<u64, Failure> {
    size::parse(text)
        .ok_or_else(|| Failure::Usage(format!("{option} {text}: expected {}", size::EXPECTED)))
}
