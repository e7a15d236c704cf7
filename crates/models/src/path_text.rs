//! Lossless conversion of paths to text: a Unix path is a byte string, and a specification is text.
//!
//! A byte outside of UTF-8 becomes a character of the private use plane 16: U+10FF00 + byte, from
//! U+10FF80 to U+10FFFF. Characters of this range in a path are written byte by byte in the same
//! way. Each path therefore has one text, and each such text one path. Python does the same with
//! other characters (PEP 383, `surrogateescape`).

use std::ffi::OsStr;
use std::path::PathBuf;

/// Code point that byte 0 would have. Only bytes from 0x80 on are outside of UTF-8.
const FIRST_CODE_POINT: u32 = 0x10_ff00;

/// The characters of the bytes from 0x80 to 0xff.
const BYTE_CHARACTERS: std::ops::RangeInclusive<char> = '\u{10ff80}'..='\u{10ffff}';

/// Returns the text of a path, or of an argument with a path in it.
#[cfg(unix)]
pub fn encode(path: &OsStr) -> String {
    use std::os::unix::ffi::OsStrExt;
    let character_of = |byte: u8| {
        char::from_u32(FIRST_CODE_POINT + u32::from(byte))
            .expect("the code point is below U+10FFFF")
    };
    let mut text = String::new();
    for chunk in path.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            // A reserved character of the path itself must not be taken for a byte.
            match BYTE_CHARACTERS.contains(&character) {
                true => text.extend(character.encode_utf8(&mut [0; 4]).bytes().map(character_of)),
                false => text.push(character),
            }
        }
        text.extend(chunk.invalid().iter().copied().map(character_of));
    }
    text
}

/// Returns the path of a text.
#[cfg(unix)]
pub fn decode(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match BYTE_CHARACTERS.contains(&character) {
            true => bytes.push((u32::from(character) - FIRST_CODE_POINT) as u8),
            false => bytes.extend(character.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
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
        let paths: [&[u8]; 6] = [
            b"plain",
            "Größe 2".as_bytes(),
            b"a\xff\xfeb/\x80",
            b"cut \xe2\x82",
            "\u{10ff80}\u{10ffff}".as_bytes(),
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
}
