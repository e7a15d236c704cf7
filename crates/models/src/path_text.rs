//! Lossless conversion of paths to text: a Unix path is a byte string, and a specification is text.
//!
//! A byte outside of UTF-8 becomes a character of the private use plane 16: U+10FF00 + byte, from
//! U+10FF80 to U+10FFFF. Characters of this range in a path are written byte by byte in the same
//! way. Each path therefore has one text, and each such text one path. Python does the same with
//! other characters (PEP 383, `surrogateescape`).

use std::ffi::OsStr;
use std::path::PathBuf;

/// Code point of an escaped byte, less the byte. Only bytes from 0x80 on are outside of UTF-8.
const FIRST_CODE_POINT: u32 = 0x10_ff00;

/// Returns the text of a path. A path in UTF-8 without escapes stays as it is.
pub fn path_text(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match escaped_byte(letter) {
                None => text.push(letter),
                Some(_) => {
                    text.extend(letter.encode_utf8(&mut [0; 4]).bytes().filter_map(escape));
                }
            }
        }
        text.extend(chunk.invalid().iter().copied().filter_map(escape));
    }
    text
}

/// Returns the bytes of the path with this text.
pub fn path_bytes(text: &str) -> Vec<u8> {
    let mut path = Vec::with_capacity(text.len());
    for letter in text.chars() {
        match escaped_byte(letter) {
            None => path.extend(letter.encode_utf8(&mut [0; 4]).as_bytes()),
            Some(byte) => path.push(byte),
        }
    }
    path
}

/// Returns the character of a byte of at least 128; for such a byte the result is never `None`.
fn escape(byte: u8) -> Option<char> {
    char::from_u32(FIRST_CODE_POINT + u32::from(byte))
}

/// Returns the byte of an escape, which is at least 0x80, and `None` for another character.
pub fn escaped_byte(letter: char) -> Option<u8> {
    let byte = u32::from(letter).checked_sub(FIRST_CODE_POINT)?;
    u8::try_from(byte).ok().filter(|byte| !byte.is_ascii())
}

/// Returns the text of a path, or of an argument with a path in it.
#[cfg(unix)]
pub fn encode(path: &OsStr) -> String {
    use std::os::unix::ffi::OsStrExt;
    path_text(path.as_bytes())
}

/// Returns the path of a text.
#[cfg(unix)]
pub fn decode(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    PathBuf::from(std::ffi::OsString::from_vec(path_bytes(text)))
}

/// Returns the text of a path, or of an argument with a path in it.
#[cfg(not(unix))]
pub fn encode(path: &OsStr) -> String {
    path.to_string_lossy().into_owned()
}

/// Returns the path of a text.
#[cfg(not(unix))]
pub fn decode(text: &str) -> PathBuf {
    PathBuf::from(text)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn every_path_round_trips_through_its_text() {
        let paths: [&[u8]; 7] = [
            b"plain",
            "Größe 2".as_bytes(),
            b"a\xff\xfeb/\x80",
            b"cut \xe2\x82",
            // A path may contain the characters of escapes itself.
            "\u{10ff80}\u{10ffff}".as_bytes(),
            // These are none.
            "\u{10ff00}\u{10fe80}".as_bytes(),
            b"",
        ];
        let mut texts = std::collections::BTreeSet::new();
        for path in paths {
            let path = OsStr::from_bytes(path);
            assert_eq!(decode(&encode(path)).as_os_str(), path);
            texts.insert(encode(path));
        }
        assert_eq!(texts.len(), paths.len());
        assert_eq!(encode(OsStr::from_bytes(b"a,\xff=")), "a,\u{10ffff}=");
    }

    /// By hand: `é` in Latin-1 is the byte E9. A path in UTF-8 keeps its text.
    #[test]
    fn bytes_outside_of_utf8_have_an_escape() {
        assert_eq!(path_text(b"/caf\xe9.bin"), "/caf\u{10ffe9}.bin");
        assert_eq!(path_text("/café".as_bytes()), "/café");
        assert_eq!(path_bytes("/caf\u{10ffe9}.bin"), b"/caf\xe9.bin");
    }
}
