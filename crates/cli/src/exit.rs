//! How the command ends.

use std::fmt::Display;
use std::process::ExitCode;

use readpath_peers::notice;

/// The ways to end other than well, each with its exit code.
#[derive(Debug)]
pub enum Failure {
    /// Exit code 1: the run ended, but some of its operations failed, or two
    /// things that should be equal differ. What was measured has been printed.
    Run(String),
    /// Exit code 2: what was asked can't be done as it was asked: a bad option,
    /// a bad file. Nothing has been run.
    Usage(String),
    /// Exit code 3: this system lacks what the command needs.
    Unavailable(String),
    /// Exit code 130: interrupted by ctrl-C or a signal. What was measured so
    /// far has been printed.
    Interrupted,
    /// Exit code 0: the reader of standard output has gone away (`| head`), so a command that
    /// writes nothing else stops early.
    ReaderGone,
}

/// What a subcommand gives.
pub type CommandResult = Result<(), Failure>;

impl Failure {
    /// A usage failure with this error's words.
    pub fn usage(error: impl Display) -> Failure {
        Failure::Usage(error.to_string())
    }

    /// A usage failure about a thing named in front of the error's words.
    pub fn about(thing: impl Display, error: impl Display) -> Failure {
        Failure::Usage(format!("{thing}: {error}"))
    }

    /// Tells it on standard error and gives the exit code.
    pub fn tell(&self) -> ExitCode {
        let (code, text) = match self {
            Failure::Run(text) => (1, text.as_str()),
            Failure::Usage(text) => (2, text.as_str()),
            Failure::Unavailable(text) => (3, text.as_str()),
            Failure::Interrupted => {
                (130, "interrupted; any figures are of what was done until then")
            }
            Failure::ReaderGone => return ExitCode::SUCCESS,
        };
        notice::print(text);
        ExitCode::from(code)
    }
}
