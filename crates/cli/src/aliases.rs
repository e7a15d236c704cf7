//! Old names of commands and options: accepted for one release, with a note on standard error.
//!
//! The command line is rewritten before it is parsed. Arguments behind `--` belong to the program
//! that is run, and stay as they are.

use std::ffi::OsString;

/// Old command, and the words in its place.
const COMMANDS: [(&str, &[&str]); 11] = [
    ("everyday", &["bench"]),
    ("watch", &["record"]),
    ("laws", &["policies"]),
    ("conform", &["check-kernel"]),
    ("serve", &["emulate"]),
    ("profile", &["devices", "measure"]),
    ("validate", &["devices", "validate"]),
    ("cache", &["cachesim"]),
    ("regret", &["eval", "policies"]),
    ("cache-regret", &["eval", "eviction"]),
    ("trace", &["recording"]),
];

/// Old option, and the option in its place.
const OPTIONS: [(&str, &str); 4] = [
    ("--reclaim", "--eviction"),
    ("--laws", "--policies"),
    ("--raw", "--chunking"),
    ("--beside", "--earlier-baselines"),
];

/// Returns the command line in present words, and a note for each old word. `arguments` begins with
/// the name of the program. Arguments from `--` on, and ones that are not UTF-8, stay as they are.
pub fn translate(arguments: Vec<OsString>) -> (Vec<OsString>, Vec<String>) {
    let mut notes = Vec::new();
    let mut translated = Vec::with_capacity(arguments.len() + 1);
    let mut arguments = arguments.into_iter();
    translated.extend(arguments.next());
    let mut is_behind_separator = false;
    // Both words of `watch --advise` are replaced by the command `advise`.
    let is_watch_advise = {
        let before_separator = arguments.as_slice().iter().take_while(|argument| *argument != "--");
        before_separator.clone().find(|argument| is_word(argument)).is_some_and(|it| it == "watch")
            && before_separator.into_iter().any(|argument| argument == "--advise")
    };
    // Number of words so far, and the present name of the first one, the command. A later word may
    // be a file with the name of an old command, and stays.
    let (mut word_count, mut command) = (0, OsString::new());
    for argument in arguments {
        is_behind_separator |= argument == "--";
        word_count += usize::from(is_word(&argument));
        let Some(text) = argument.to_str().filter(|_| !is_behind_separator) else {
            translated.push(argument);
            continue;
        };
        if word_count == 1 && is_word(&argument) {
            let Some((_, new)) = COMMANDS.iter().find(|(old, _)| *old == text) else {
                command.clone_from(&argument);
                translated.push(argument);
                continue;
            };
            let new = if is_watch_advise { &["advise"] } else { *new };
            let option = if is_watch_advise { " --advise" } else { "" };
            notes.push(format!("`{text}{option}` is now `{}`", new.join(" ")));
            translated.extend(new.iter().map(OsString::from));
            command = new[0].into();
            continue;
        }
        if is_watch_advise && text == "--advise" {
            continue;
        }
        // The subcommand of `recording`, also behind its old name.
        if text == "anonymise" && word_count == 2 && command == "recording" {
            notes.push("`anonymise` is now `anonymize`".to_owned());
            translated.push("anonymize".into());
            continue;
        }
        // An option with its value, `--reclaim=lru`, or without.
        let (name, value) =
            text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        match OPTIONS.iter().find(|(old, _)| *old == name) {
            Some((old, new)) => {
                notes.push(format!("`{old}` is now `{new}`"));
                translated
                    .push(value.map_or((*new).into(), |value| format!("{new}={value}").into()));
            }
            None => translated.push(argument),
        }
    }
    (translated, notes)
}

/// Returns true for an argument that is no option. The first word is the command: the global
/// options before it are flags, so it is not the value of one.
fn is_word(argument: &OsString) -> bool {
    !argument.as_encoded_bytes().starts_with(b"-")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::commands::Cli;

    /// Translated command line, and the number of notes.
    fn translated(line: &str) -> (String, usize) {
        let (words, notes) = translate(line.split(' ').map(OsString::from).collect());
        let words: Vec<String> =
            words.into_iter().map(|word| word.into_string().unwrap()).collect();
        (words.join(" "), notes.len())
    }

    #[test]
    fn old_command_words_are_replaced_with_one_note_each() {
        for (old, new, note_count) in [
            ("readpath everyday .", "readpath bench .", 1),
            ("readpath profile /mnt --bytes 1MiB", "readpath devices measure /mnt --bytes 1MiB", 1),
            ("readpath cache a --reclaim=lru", "readpath cachesim a --eviction=lru", 2),
            ("readpath watch --advise -- cat f", "readpath advise -- cat f", 1),
            ("readpath watch -o r -- cat --advise", "readpath record -o r -- cat --advise", 1),
            ("readpath trace anonymise a -o b", "readpath recording anonymize a -o b", 2),
            ("readpath --wide everyday .", "readpath --wide bench .", 1),
            ("readpath --wide watch --advise -- cat", "readpath --wide advise -- cat", 1),
            ("readpath --wide trace anonymise a", "readpath --wide recording anonymize a", 2),
            ("readpath trace --wide anonymise a", "readpath recording --wide anonymize a", 2),
            ("readpath recording show anonymise", "readpath recording show anonymise", 0),
            ("readpath --wide bench cache", "readpath --wide bench cache", 0),
            ("readpath -- cache", "readpath -- cache", 0),
            ("readpath run j --raw ring", "readpath run j --chunking ring", 1),
            ("readpath record -- watch --laws", "readpath record -- watch --laws", 0),
            ("readpath bench cache", "readpath bench cache", 0),
        ] {
            assert_eq!(translated(old), (new.to_owned(), note_count), "{old}");
        }
    }

    /// The first word is the command only if no option before it has a value.
    #[test]
    fn global_options_are_flags() {
        let command = Cli::command();
        for option in command.get_opts() {
            assert!(!option.get_action().takes_values(), "{option} has a value");
        }
    }
}
