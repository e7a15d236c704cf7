//! Files that somebody gives as input, read whole.
//!
//! What a file says of its length is nothing to go by: one that has none, as `/dev/zero`, goes on for good, and one with
//! holes has exabytes. So none is read beyond what its reader says is the most.

use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// The longest that a text may be which somebody writes by hand: a job file, loads, the description of a drive.
pub const TEXT_BYTES_MAX: u64 = 16 << 20;

/// The longest that a list may be which a program has written.
pub const LIST_BYTES_MAX: u64 = 512 << 20;

/// The bytes of a file with at most `bytes_max` of them.
///
/// # Errors
/// It can't be read, or has more; the error doesn't name the file.
#[allow(clippy::disallowed_methods, reason = "inputs of the modelled world are files")]
pub fn bytes(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_at_most(std::fs::File::open(path)?, bytes_max)
}

/// The text of a file with at most `bytes_max` bytes.
///
/// # Errors
/// As [`bytes`], or it isn't text.
pub fn text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let text = String::from_utf8(bytes(path, bytes_max)?);
    text.map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not text"))
}

/// All bytes of a source that has at most `bytes_max` of them.
///
/// # Errors
/// It can't be read, or has more.
pub fn read_at_most(source: impl Read, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let what = format!(
            "it has more than {bytes_max} bytes, the most that is read here; name a shorter one"
        );
        return Err(io::Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_than_is_said() {
        assert_eq!(read_at_most(&b"abcd"[..], 4).unwrap(), b"abcd");
        let error = read_at_most(&b"abcd"[..], 3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("more than 3 bytes"), "{error}");
        assert_eq!(
            read_at_most(io::repeat(1), 1 << 20).unwrap_err().kind(),
            ErrorKind::FileTooLarge
        );
        let endless = text(Path::new("/dev/zero"), 1 << 20).unwrap_err();
        assert_eq!(endless.kind(), ErrorKind::FileTooLarge);
    }
}
