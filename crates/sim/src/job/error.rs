//! Errors in a job file, each with its line and a remedy.

use std::fmt;

/// Error in a job file. Lines count from 1, in the file that contains them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobError {
    /// An option precedes the first section.
    OutsideSection {
        /// Line number.
        line: usize,
        /// Text of the line.
        text: String,
    },
    /// A line that starts with `[` is not `[name]`.
    BadSection {
        /// Line number.
        line: usize,
        /// Text of the line.
        text: String,
    },
    /// fio has no such option.
    UnknownOption {
        /// Line number.
        line: usize,
        /// Name of the option.
        option: String,
        /// Most similar option of fio, if any.
        nearest: Option<&'static str>,
    },
    /// The option would change the measurement and is not supported.
    Refused {
        /// Line number.
        line: usize,
        /// Option with its value.
        option: String,
        /// Reason.
        because: &'static str,
    },
    /// The value of `include`, `${VARIABLE}` or `$keyword` is not available.
    NotFound {
        /// Line number.
        line: usize,
        /// Text of the item.
        text: String,
        /// Reason and remedy.
        advice: String,
    },
    /// An error in an included file.
    Included {
        /// Line of the `include`.
        line: usize,
        /// Name of the included file.
        file: String,
        /// The error in it.
        error: Box<JobError>,
    },
    /// The value of an option is invalid.
    BadValue {
        /// Line number.
        line: usize,
        /// Name of an option of fio, which needs no escapes.
        option: String,
        /// The value, already [`printable`]. Empty if there is none.
        value: String,
        /// Expected form, unit and bounds.
        expected: String,
    },
    /// Two options of one job contradict each other.
    Conflict {
        /// Line of the section.
        line: usize,
        /// Name of the job.
        job: String,
        /// Problem and remedy.
        what: String,
    },
    /// The file contains no job.
    NoJobs,
}

/// Maximum number of characters of a file's text in a message.
const PRINTABLE_CHARS_MAX: usize = 120;

/// Returns a text from a file in a safe form for messages: [`escaped`], and a long one truncated.
pub fn printable(text: &str) -> String {
    match text.char_indices().nth(PRINTABLE_CHARS_MAX) {
        Some((end, _)) => escaped(&text[..end]) + "…",
        None => escaped(text),
    }
}

/// Escapes the control characters (`\n`) and the hidden characters (`\u{200b}`) of a text. A
/// character from U+10FF80 to U+10FFFF stands for a byte of a path that is not UTF-8 (`path_text`).
/// It becomes `\x` and two digits.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        if let Some(byte) = readpath_models::path_text::escaped_byte(letter) {
            escaped += &format!("\\x{byte:02x}");
            continue;
        }
        match letter.is_control() || is_hidden(letter) {
            true => escaped.extend(letter.escape_default()),
            false => escaped.push(letter),
        }
    }
    escaped
}

/// Returns true for invisible characters and those that change the text direction.
fn is_hidden(letter: char) -> bool {
    matches!(letter, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobError::OutsideSection { line, text } => write!(
                f,
                "line {line}: `{}` stands before the first section; write `[global]` or `[JOBNAME]` above it",
                printable(text)
            ),
            JobError::BadSection { line, text } => {
                write!(f, "line {line}: `{}` is no section; write `[JOBNAME]`", printable(text))
            }
            JobError::UnknownOption { line, option, nearest } => {
                write!(f, "line {line}: fio has no option `{}`", printable(option))?;
                match nearest {
                    Some(nearest) => write!(f, "; is `{nearest}` meant?"),
                    None => {
                        f.write_str("; `readpath run --fio-options` lists those that there are")
                    }
                }
            }
            JobError::Refused { line, option, because } => {
                write!(f, "line {line}: `{}` is refused: {because}", printable(option))
            }
            JobError::NotFound { line, text, advice } => {
                write!(f, "line {line}: `{}`: {advice}", printable(text))
            }
            JobError::Included { line, file, error } => {
                write!(f, "line {line}: in `{}`: {error}", printable(file))
            }
            JobError::BadValue { line, option, value, expected } if value.is_empty() => {
                write!(f, "line {line}: `{option}` has no value; expected {expected}")
            }
            JobError::BadValue { line, option, value, expected } => {
                write!(f, "line {line}: `{option}={}`: expected {expected}", printable(value))
            }
            JobError::Conflict { line, job, what } => {
                write!(f, "line {line}: the job `{}`: {what}", printable(job))
            }
            JobError::NoJobs => {
                f.write_str("there is no job in the file; write `[JOBNAME]` and `rw=read` under it")
            }
        }
    }
}

impl std::error::Error for JobError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of the byte E9 in a path of a recording, a line end, and a mark of direction.
    #[test]
    fn unprintable_characters_are_escaped() {
        assert_eq!(escaped("caf\u{10ffe9}\n\u{200f}é"), "caf\\xe9\\n\\u{200f}é");
    }
}
