//! Exit codes of the command.

use std::fmt::Display;
use std::process::ExitCode;

use readpath_record::notice;

/// Unsuccessful ends of the command, each with its exit code.
#[derive(Debug)]
pub enum Failure {
    /// Exit code 1: some operations of the run failed, or two things that should be equal differ.
    /// The measured figures have been printed. Also if a file with them can't be written then.
    Run(String),
    /// Exit code 2: bad option or input file, or an output file that cannot be written at the
    /// start. Most are found before the run starts.
    Usage(String),
    /// Exit code 3: the system lacks a requirement of the command.
    Unavailable(String),
    /// Exit code 130: interrupted by ctrl-C or a signal, before any figure was printed.
    Interrupted,
    /// Exit code 130: interrupted likewise. The figures of a part of the work have been printed.
    InterruptedAfterFigures,
    /// Exit code 0: the reader of standard output has closed it (`| head`). A command without other
    /// output stops early.
    OutputClosed,
}

/// Result of a subcommand.
pub type CommandResult = Result<(), Failure>;

impl Failure {
    /// Usage failure with the message of this error.
    pub fn usage(error: impl Display) -> Failure {
        Failure::Usage(error.to_string())
    }

    /// Usage failure with the name of its subject in front of the error's message.
    pub fn usage_of(thing: impl Display, error: impl Display) -> Failure {
        Failure::Usage(format!("{thing}: {error}"))
    }

    /// Turns an interrupt into one after figures, if any of this number were printed. Other
    /// failures stay.
    pub fn after_figures(self, printed: usize) -> Failure {
        match self {
            Failure::Interrupted if printed > 0 => Failure::InterruptedAfterFigures,
            failure => failure,
        }
    }

    /// Prints the message on standard error and returns the exit code.
    pub fn print_message(&self) -> ExitCode {
        let (code, text) = match self {
            Failure::Run(text) => (1, text.as_str()),
            Failure::Usage(text) => (2, text.as_str()),
            Failure::Unavailable(text) => (3, text.as_str()),
            Failure::Interrupted => (130, "interrupted"),
            Failure::InterruptedAfterFigures => {
                (130, "interrupted; the figures cover the work until then")
            }
            Failure::OutputClosed => return ExitCode::SUCCESS,
        };
        notice::print(text);
        ExitCode::from(code)
    }
}
