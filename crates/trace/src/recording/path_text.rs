//! Paths as texts of a recording.
//!
//! The format's texts are UTF-8, and a path may have any bytes. A byte `b` that is not part of
//! UTF-8 is at least 128. It becomes the private character U+10FF00 + `b`. Such a character in a
//! path is replaced byte by byte as well, so that each path has one text, and each text of a path
//! one path.

/// Code point of an escaped byte, less the byte.
const ESCAPE_BASE: u32 = 0x10_ff00;

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

/// Returns the character of a byte of at least 128.
fn escape(byte: u8) -> Option<char> {
    char::from_u32(ESCAPE_BASE + u32::from(byte))
}

/// Returns the byte of an escape, and `None` for another character.
fn escaped_byte(letter: char) -> Option<u8> {
    let byte = u32::from(letter).checked_sub(ESCAPE_BASE)?;
    u8::try_from(byte).ok().filter(|byte| !byte.is_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: `é` in Latin-1 is the byte E9. A path in UTF-8 keeps its text.
    #[test]
    fn bytes_outside_of_utf8_have_an_escape() {
        assert_eq!(path_text(b"/caf\xe9.bin"), "/caf\u{10ffe9}.bin");
        assert_eq!(path_text("/café".as_bytes()), "/café");
        assert_eq!(path_bytes("/caf\u{10ffe9}.bin"), b"/caf\xe9.bin");
    }

    /// A path may contain the character of an escape itself: F4 8F BF A9 for U+10FFE9.
    #[test]
    fn each_path_is_restored() {
        let paths: [&[u8]; 4] =
            [b"/a\xff\xfe", b"\xc3", b"/\xf4\x8f\xbf\xa9", "/\u{10ff00}\u{10fe80}".as_bytes()];
        for path in paths {
            assert_eq!(path_bytes(&path_text(path)), path);
        }
    }
}
