//! Errors in traces, recordings and lists.

use std::{fmt, io};

use readpath_sim::job::printable;

use crate::recording::{VERSION, VERSION_OLDEST};

/// Error in a trace, a recording, or a list of reads or scheduler events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceError {
    /// A line or record is malformed, or impossible after the ones before it.
    Line {
        /// Number of the line or record, from 1.
        line: u64,
        /// Problem and expected form.
        reason: String,
    },
    /// The file cannot be read.
    Unread {
        /// First byte that cannot be read, if known.
        byte: Option<u64>,
        /// Error of the system.
        because: String,
    },
    /// There is nothing of the wanted kind in it.
    Empty {
        /// Sentence that names the missing kind.
        reason: String,
    },
    /// A trace of fixed records ends within one.
    PartialRecord {
        /// Length of the trace in bytes.
        bytes: usize,
        /// Length of a record in bytes.
        record_bytes: usize,
    },
    /// The trace has more blocks than 32-bit numbers.
    TooManyBlocks,
    /// The file is not a recording.
    NoRecording,
    /// The recording has another version.
    Version {
        /// Version number.
        version: u32,
    },
    /// The recording is truncated. All records before the cut were read.
    Cut {
        /// First byte that was not read: the start of the truncated block, or the length of a file
        /// without last record.
        byte: u64,
    },
    /// The recording is damaged.
    Damaged {
        /// First byte of the block.
        byte: u64,
        /// Description of the damage.
        why: String,
    },
    /// A recording cannot be merged with the others.
    Unmergeable {
        /// Index of the recording, from 0.
        recording: usize,
        /// Reason, as a predicate of the recording.
        reason: String,
    },
}

impl TraceError {
    /// Error in a line. `line` counts from 1.
    pub(crate) fn line(line: u64, reason: impl Into<String>) -> TraceError {
        TraceError::Line { line, reason: reason.into() }
    }

    /// Error of a trace of requests without any.
    pub fn no_request() -> TraceError {
        let reason = "there is no request in the trace: it is cut off, or in another format; \
                      record it again, or give its format (`readpath run TRACE --trace FORMAT`)";
        TraceError::Empty { reason: reason.to_owned() }
    }

    /// Error of the system while a text is read.
    pub(crate) fn unread(error: io::Error) -> TraceError {
        TraceError::Unread { byte: None, because: error.to_string() }
    }

    /// Error in a line that has the text `text` in place of the expected form.
    pub(crate) fn unexpected(line: u64, text: &str, expected: &str) -> TraceError {
        TraceError::line(line, format!("`{}`: expected {expected}", printable(text)))
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::Line { line, reason } => write!(f, "line {line}: {reason}"),
            TraceError::Unread { byte: None, because } => f.write_str(because),
            TraceError::Unread { byte: Some(byte), because } => {
                write!(f, "the recording can't be read from byte {byte} on: {because}")
            }
            TraceError::Empty { reason } => f.write_str(reason),
            TraceError::PartialRecord { bytes, record_bytes } => write!(
                f,
                "{bytes} bytes are no whole number of records of {record_bytes} bytes: \
                 the trace is cut off, or in another format"
            ),
            TraceError::TooManyBlocks => f.write_str("it has more than 4,294,967,294 blocks"),
            TraceError::NoRecording => {
                f.write_str(
                    "this is no recording; `readpath record -o FILE -- COMMAND` makes one, ",
                )?;
                f.write_str("and `readpath recording import` makes one of a trace")
            }
            TraceError::Version { version } => write!(
                f,
                "a recording of version {version}; versions {VERSION_OLDEST} to {VERSION} are read here"
            ),
            TraceError::Cut { byte } => write!(
                f,
                "the recording is cut off at byte {byte}: what was recorded after is missing"
            ),
            TraceError::Damaged { byte, why } => {
                write!(f, "the recording is damaged in the block at byte {byte}: {why}")
            }
            TraceError::Unmergeable { recording, reason } => {
                write!(f, "recording {} {reason}", recording + 1)
            }
        }
    }
}

impl std::error::Error for TraceError {}
