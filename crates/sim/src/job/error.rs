//! What can be wrong with a job file, each with its line and what to do.

use std::fmt;

/// What is wrong with a job file. Lines are counted from 1, in the file that holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobError {
    /// An option stands before the first section.
    OutsideSection {
        /// Its line.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// A line that starts with `[` is not `[name]`.
    BadSection {
        /// The line.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// fio has no such option.
    UnknownOption {
        /// The line.
        line: usize,
        /// The option.
        option: String,
        /// The option of fio whose name is nearest, if one is near.
        nearest: Option<&'static str>,
    },
    /// The option would change what is measured, and can't be honoured.
    Refused {
        /// The line.
        line: usize,
        /// The option, with its value.
        option: String,
        /// Why.
        because: &'static str,
    },
    /// `include`, `${VARIABLE}`, `$keyword`: what they stand for can't be had.
    NotFound {
        /// The line.
        line: usize,
        /// What stands there.
        text: String,
        /// Why not, and what to do.
        advice: String,
    },
    /// An error in a file that is included.
    Included {
        /// The line of the `include`.
        line: usize,
        /// The name of the file.
        file: String,
        /// What is wrong there.
        error: Box<JobError>,
    },
    /// The value of an option can't be used.
    BadValue {
        /// The line.
        line: usize,
        /// The option.
        option: String,
        /// The value; empty when there is none.
        value: String,
        /// What is expected: form, unit, bounds.
        expected: String,
    },
    /// A job does not say whether it reads or writes.
    NoDirection {
        /// The line of its section.
        line: usize,
        /// Its name.
        job: String,
    },
    /// Two options of one job don't go together.
    Conflict {
        /// The line of the section.
        line: usize,
        /// The name of the job.
        job: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// There is no job in the file.
    NoJobs,
}

/// The most letters of a file's text that a message repeats.
const SHOWN_MAX: usize = 120;

/// Text out of a file as a message may repeat it: what a terminal would obey is written as an
/// escape, and a long text is cut.
pub fn shown(text: &str) -> String {
    let mut shown = String::new();
    for (at, letter) in text.chars().enumerate() {
        if at == SHOWN_MAX {
            shown.push('…');
            break;
        }
        match letter.is_control() || is_hidden(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// Letters that show nothing and turn the direction of what follows.
fn is_hidden(letter: char) -> bool {
    matches!(letter, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobError::OutsideSection { line, text } => write!(
                f,
                "line {line}: `{}` stands before the first section; write `[global]` or `[JOBNAME]` above it",
                shown(text)
            ),
            JobError::BadSection { line, text } => {
                write!(f, "line {line}: `{}` is no section; write `[JOBNAME]`", shown(text))
            }
            JobError::UnknownOption { line, option, nearest } => {
                write!(f, "line {line}: fio has no option `{}`", shown(option))?;
                match nearest {
                    Some(nearest) => write!(f, "; is `{nearest}` meant?"),
                    None => {
                        f.write_str("; `readpath run --fio-options` lists those that there are")
                    }
                }
            }
            JobError::Refused { line, option, because } => {
                write!(f, "line {line}: `{}` is refused: {because}", shown(option))
            }
            JobError::NotFound { line, text, advice } => {
                write!(f, "line {line}: `{}`: {advice}", shown(text))
            }
            JobError::Included { line, file, error } => {
                write!(f, "line {line}: in `{}`: {error}", shown(file))
            }
            JobError::BadValue { line, option, value, expected } if value.is_empty() => {
                write!(f, "line {line}: `{option}` has no value; expected {expected}")
            }
            JobError::BadValue { line, option, value, expected } => {
                write!(f, "line {line}: `{option}={}`: expected {expected}", shown(value))
            }
            JobError::NoDirection { line, job } => write!(
                f,
                "line {line}: the job `{}` does not say what it does; add `rw=read`, `rw=randread`, or another",
                shown(job)
            ),
            JobError::Conflict { line, job, what } => {
                write!(f, "line {line}: the job `{}`: {what}", shown(job))
            }
            JobError::NoJobs => {
                f.write_str("there is no job in the file; write `[JOBNAME]` and `rw=read` under it")
            }
        }
    }
}

impl std::error::Error for JobError {}
