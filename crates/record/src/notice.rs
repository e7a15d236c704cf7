//! Messages on standard error, which may be closed, full, or a pipe without a reader.
//!
//! `eprintln!` panics when standard error refuses the text. A lost message must not end the work
//! that it describes, in particular not a `Drop` that cleans up.

use std::fmt::Display;
use std::io::Write;

/// Prints the line `readpath: TEXT` on standard error. Text that cannot be written is dropped.
pub fn print(text: impl Display) {
    // One call, so that lines of several processes do not mix.
    let line = format!("readpath: {text}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
