//! Errors of the command line, in words for its user.
//!
//! The parser of the command line reports a wrong value with the words of Rust's own parsers
//! (`number would be zero for non-zero type`). They are replaced by the expectation of the option.

use std::error::Error;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::commands::Cli;

/// Parses the command line. A wrong one, `--help` and `--version` end the process.
pub fn parse(arguments: Vec<OsString>) -> Cli {
    match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => with_plain_reason(error).exit(),
    }
}

/// Replaces the reason of a wrong value by the expectation of its option. Other errors stay.
fn with_plain_reason(error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::ValueValidation {
        return error;
    }
    let context_text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (Some(option), Some(value)) =
        (context_text(ContextKind::InvalidArg), context_text(ContextKind::InvalidValue))
    else {
        return error;
    };
    let Some(reason) = error.source().and_then(expectation) else { return error };
    // The name without the placeholder of its value, which may be a list of choices.
    let option = option.split(" <").next().unwrap_or(&option).to_owned();
    clap::Error::raw(
        ErrorKind::ValueValidation,
        format!("{option} {value}: {reason}\n\nFor more information, try '--help'.\n"),
    )
}

/// Returns the value that the option expects, for errors of Rust's own parsers and numbers out of
/// range. `None` for other errors.
fn expectation(source: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = source.downcast_ref::<ParseIntError>() {
        let expected = match error.kind() {
            IntErrorKind::Zero => "expected a whole number of at least 1",
            IntErrorKind::PosOverflow => "this number is too large",
            IntErrorKind::NegOverflow => "this number is too small",
            _ => "expected a whole number",
        };
        return Some(expected.to_owned());
    }
    if source.is::<ParseFloatError>() {
        return Some("expected a number".to_owned());
    }
    // A number out of range: `0 is not in 1..=4294967295`.
    let text = source.to_string();
    let (_, range) = text.split_once(" is not in ")?;
    let (min, max) = range.split_once("..")?;
    let max = max.trim_start_matches('=');
    // The maximum of an integer type is no limit of the option.
    let is_unlimited = [u64::MAX, u64::from(u32::MAX), u64::from(u16::MAX), i64::MAX as u64]
        .iter()
        .any(|limit| max == limit.to_string());
    Some(match is_unlimited || max.is_empty() {
        true => format!("expected a whole number of at least {min}"),
        false => format!("expected a whole number from {min} to {max}"),
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Words of Rust's own parsers.
    const RUST_WORDS: [&str; 9] = [
        "invalid digit",
        "invalid float",
        "non-zero",
        "target type",
        "empty string",
        "empty float",
        "is not in",
        "..",
        "ParseIntError",
    ];

    /// Values that are no numbers, or out of the bounds of most options.
    const HOSTILE: [&str; 8] =
        ["", "x", "0", "-1", "1.5", "99999999999999999999999", "0x10", "1e999"];

    /// Calls `visit` with every command that has options, and its name on the command line.
    fn for_each_command(
        command: &clap::Command,
        path: &[String],
        visit: &mut impl FnMut(&clap::Command, &[String]),
    ) {
        visit(command, path);
        for inner in command.get_subcommands() {
            let path = [path, &[inner.get_name().to_owned()]].concat();
            for_each_command(inner, &path, visit);
        }
    }

    /// Every option of every command, with values that are no numbers or out of bounds.
    #[test]
    fn wrong_values_are_refused_without_words_of_rust() {
        let (mut options, mut refused, mut faults) = (0, 0, Vec::new());
        for_each_command(&Cli::command(), &["readpath".to_owned()], &mut |command, path| {
            for option in command.get_opts() {
                let Some(name) = option.get_long() else { continue };
                options += 1;
                for value in HOSTILE {
                    let arguments = [path, &[format!("--{name}={value}")]].concat();
                    let Err(error) = Cli::try_parse_from(&arguments) else { continue };
                    if error.kind() != ErrorKind::ValueValidation {
                        continue;
                    }
                    refused += 1;
                    let text = with_plain_reason(error).to_string();
                    let is_named = text.contains(&format!("--{name} {value}"))
                        || text.contains(&format!("'{value}' for '--{name}"))
                        || value.is_empty();
                    let words = RUST_WORDS.iter().find(|words| text.contains(**words));
                    if words.is_some() || !is_named {
                        faults.push(format!("{}: {text}", arguments.join(" ")));
                    }
                }
            }
        });
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        assert!(options > 100 && refused > 100, "{options} options, {refused} wrong values");
    }

    #[test]
    fn wrong_number_names_what_is_expected() {
        let error_text = |arguments: &[&str]| {
            let error = Cli::try_parse_from([&["readpath"], arguments].concat()).unwrap_err();
            with_plain_reason(error).to_string()
        };
        let seed = error_text(&["run", "j.fio", "--seed", "x"]);
        assert!(seed.starts_with("error: --seed x: expected a whole number\n"), "{seed}");
        let closed = error_text(&["run", "t", "--closed", "0"]);
        assert!(closed.contains("--closed 0: expected a whole number of at least 1"), "{closed}");
        let depth = error_text(&["replay", "r.rec", "--depth", "0"]);
        assert!(depth.contains("--depth 0: expected a whole number of at least 1"), "{depth}");
        let speed = error_text(&["run", "t", "--speed", "fast"]);
        assert!(speed.contains("--speed fast: expected a number"), "{speed}");
    }
}
