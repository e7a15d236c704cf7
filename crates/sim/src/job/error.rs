//! What can be wrong with a job file, each with its line and what to do.

use std::fmt;

use super::options::OPTIONS;

/// What is wrong with a job file. Lines are counted from 1.
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
    /// The option is not one of [`OPTIONS`].
    UnknownOption {
        /// The line.
        line: usize,
        /// The option.
        option: String,
    },
    /// `include`, `${VARIABLE}`, `$keyword`: ways of fio to build a file from others.
    NotSupported {
        /// The line.
        line: usize,
        /// What stands there.
        text: String,
        /// What to write in its place.
        advice: &'static str,
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

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobError::OutsideSection { line, text } => write!(
                f,
                "line {line}: `{text}` stands before the first section; write `[global]` or `[JOBNAME]` above it"
            ),
            JobError::BadSection { line, text } => {
                write!(f, "line {line}: `{text}` is no section; write `[JOBNAME]`")
            }
            JobError::UnknownOption { line, option } => {
                let known: Vec<&str> = OPTIONS.iter().map(|(name, _)| *name).collect();
                write!(
                    f,
                    "line {line}: the option `{option}` is not supported; supported are: {}",
                    known.join(", ")
                )
            }
            JobError::NotSupported { line, text, advice } => {
                write!(f, "line {line}: `{text}` is not supported; {advice}")
            }
            JobError::BadValue { line, option, value, expected } if value.is_empty() => {
                write!(f, "line {line}: `{option}` has no value; expected {expected}")
            }
            JobError::BadValue { line, option, value, expected } => {
                write!(f, "line {line}: `{option}={value}`: expected {expected}")
            }
            JobError::NoDirection { line, job } => write!(
                f,
                "line {line}: the job `{job}` does not say what it does; add `rw=read`, `rw=randread`, or another"
            ),
            JobError::Conflict { line, job, what } => {
                write!(f, "line {line}: the job `{job}`: {what}")
            }
            JobError::NoJobs => {
                f.write_str("there is no job in the file; write `[JOBNAME]` and `rw=read` under it")
            }
        }
    }
}

impl std::error::Error for JobError {}
