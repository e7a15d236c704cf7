//! Text of a server in printable form.
//!
//! Names, links and exports are arbitrary bytes of an untrusted server. On a terminal, control
//! characters in them move the cursor, rename the window or hide later text. They are therefore
//! escaped.

/// Converts bytes to text without control characters, so that a terminal displays it safely.
pub(crate) fn printable(bytes: &[u8]) -> String {
    // Bytes that are not UTF-8 become replacement characters.
    let text = String::from_utf8_lossy(bytes);
    let mut printable_text = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() || is_invisible(character) {
            true => printable_text.extend(character.escape_unicode()),
            false => printable_text.push(character),
        }
    }
    printable_text
}

/// True for a character that shows nothing, or that changes the direction of the text around it
/// (Unicode category Cf, and the separators of lines and paragraphs).
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_as_escapes() {
        assert_eq!(printable(b"/export/a b"), "/export/a b");
        assert_eq!(printable("/größe/日本".as_bytes()), "/größe/日本");
        assert_eq!(printable(b"\x1b]0;x\x07\n\r"), "\\u{1b}]0;x\\u{7}\\u{a}\\u{d}");
        // C1, as two bytes of UTF-8; and one that turns the direction of the text.
        assert_eq!(printable("\u{9b}31m\u{202e}".as_bytes()), "\\u{9b}31m\\u{202e}");
        assert_eq!(printable(b"\x9b31m"), "\u{fffd}31m");
    }
}
