//! Reads input files of the user completely, with a size limit.
//!
//! The stated length of a file is unreliable: `/dev/zero` is endless, and a sparse file can have
//! exabytes. Therefore every caller states a maximum.

use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Maximum size, chosen, of a text written by hand: a job file, loads, the description of a drive.
pub const TEXT_BYTES_MAX: u64 = 16 << 20;

/// Maximum size, chosen, of a list written by a program.
pub const LIST_BYTES_MAX: u64 = 512 << 20;

/// Returns the bytes of a file with at most `bytes_max` bytes.
///
/// # Errors
/// Fails if the file cannot be read or is larger. The error does not contain the file name.
#[allow(clippy::disallowed_methods, reason = "inputs of the modelled world are files")]
pub fn bytes(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_at_most(std::fs::File::open(path)?, bytes_max)
}

/// Returns the text of a file with at most `bytes_max` bytes.
///
/// # Errors
/// Fails in the same cases as [`bytes`], and if the file is not UTF-8.
pub fn text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let text = String::from_utf8(bytes(path, bytes_max)?);
    text.map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not text"))
}

/// Returns all bytes of a source with at most `bytes_max` bytes.
///
/// # Errors
/// Fails if the source cannot be read or has more bytes.
pub fn read_at_most(source: impl Read, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than allowed shows that the source is too large.
    source.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let message = format!(
            "it has more than {bytes_max} bytes, the most that is read here; name a shorter one"
        );
        return Err(io::Error::new(ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_larger_than_the_limit_is_refused() {
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
