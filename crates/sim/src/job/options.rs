//! Every option of fio: its names, what becomes of it here, and how its value is put into a job.
//!
//! An option is described in one place, a row of one of the tables below this file, each about
//! one matter. `fio --cmdhelp=all` is the list that they are held against.

use super::JobError;
use super::draft::JobDraft;
use super::error::shown;
use super::value::{ExpectedForm, OptionValue};

mod buffers;
mod depth;
mod direction;
mod files;
mod integrity;
mod machine;
mod of_engines;
mod order;
mod pace;
mod places;
mod replay;
mod reports;
mod sizes;

/// One of fio's options.
#[derive(Clone, Copy)]
pub struct FioOption {
    /// Its name, as fio lists it.
    pub name: &'static str,
    /// Its other names.
    pub aliases: &'static [&'static str],
    /// What becomes of it here.
    pub class: OptionClass,
    set: OptionEffect,
}

/// What becomes of an option of fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionClass {
    /// It does what it does in fio.
    Honoured {
        /// What it takes, and its default.
        takes: &'static str,
    },
    /// It changes nothing here: it is taken, and named once beside the figures.
    WithoutEffect {
        /// Why it changes nothing.
        because: &'static str,
    },
    /// It is refused.
    Refused {
        /// Why.
        because: &'static str,
    },
}

/// Puts a value into a job.
type OptionSetter = fn(&mut JobDraft, OptionValue<'_>) -> Result<(), ExpectedForm>;

#[derive(Clone, Copy)]
enum OptionEffect {
    By(OptionSetter),
    Nothing,
    /// Nothing, as long as the value is one of these, with which the option is off.
    OffOnly(&'static [&'static str]),
}

/// A row of an option that is honoured.
const fn supported(
    name: &'static str,
    aliases: &'static [&'static str],
    takes: &'static str,
    set: OptionSetter,
) -> FioOption {
    FioOption { name, aliases, class: OptionClass::Honoured { takes }, set: OptionEffect::By(set) }
}

/// A row of an option that changes nothing here.
const fn without_effect(
    name: &'static str,
    aliases: &'static [&'static str],
    because: &'static str,
) -> FioOption {
    FioOption {
        name,
        aliases,
        class: OptionClass::WithoutEffect { because },
        set: OptionEffect::Nothing,
    }
}

/// A row of an option that is refused unless it is off.
const fn refused(
    name: &'static str,
    aliases: &'static [&'static str],
    off: &'static [&'static str],
    because: &'static str,
) -> FioOption {
    FioOption {
        name,
        aliases,
        class: OptionClass::Refused { because },
        set: OptionEffect::OffOnly(off),
    }
}

/// The tables, in the order of fio's manual.
const TABLES: [&[FioOption]; 13] = [
    order::TABLE,
    files::TABLE,
    direction::TABLE,
    sizes::TABLE,
    places::TABLE,
    depth::TABLE,
    pace::TABLE,
    integrity::TABLE,
    replay::TABLE,
    reports::TABLE,
    buffers::TABLE,
    machine::TABLE,
    of_engines::TABLE,
];

/// All of fio's options.
pub fn options() -> impl Iterator<Item = &'static FioOption> {
    TABLES.into_iter().flatten()
}

impl FioOption {
    /// The option of this name.
    pub fn find(name: &str) -> Option<&'static FioOption> {
        options().find(|option| option.name == name || option.aliases.contains(&name))
    }

    /// Puts the option, called `name` at `line`, into `draft`.
    pub(super) fn put(
        &self,
        draft: &mut JobDraft,
        line: usize,
        name: &str,
        value: OptionValue<'_>,
    ) -> Result<(), JobError> {
        match (self.set, self.class) {
            (OptionEffect::By(set), _) => {
                set(draft, value).map_err(|expected| JobError::BadValue {
                    line,
                    option: name.to_owned(),
                    value: shown(value.text),
                    expected,
                })?;
                match draft.refused.take() {
                    Some(because) => {
                        let option = format!("{name}={}", shown(value.text));
                        Err(JobError::Refused { line, option, because })
                    }
                    None => Ok(()),
                }
            }
            (OptionEffect::OffOnly(off), OptionClass::Refused { because }) => {
                if off.contains(&value.text) {
                    return Ok(());
                }
                let option = match value.is_given {
                    true => format!("{name}={}", shown(value.text)),
                    false => name.to_owned(),
                };
                Err(JobError::Refused { line, option, because })
            }
            _ => {
                draft.note_without_effect(self.name);
                Ok(())
            }
        }
    }

    /// The option whose name is nearest to one that there is not: two letters differ at most.
    pub fn nearest(name: &str) -> Option<&'static str> {
        if name.len() > 64 {
            return None;
        }
        let distances = options().map(|option| (distance(name, option.name), option.name));
        distances.min().filter(|(distance, _)| *distance <= 2).map(|(_, name)| name)
    }
}

/// How many letters must be put in, taken out or changed to make one word of another
/// (Levenshtein's distance).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (place, theirs) in other.bytes().enumerate() {
            let changed = diagonal + usize::from(letter != theirs);
            diagonal = row[place + 1];
            row[place + 1] = changed.min(diagonal + 1).min(row[place] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_in_the_tables_once() {
        let mut names: Vec<&str> = options()
            .flat_map(|option| [option.name].into_iter().chain(option.aliases.iter().copied()))
            .collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    /// The distance of `kitten` and `sitting` is 3 in every textbook.
    #[test]
    fn what_is_nearly_an_option_is_told() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(FioOption::nearest("iodepht"), Some("iodepth"));
        assert_eq!(FioOption::nearest("zonk_of_a_kind"), None);
    }
}
