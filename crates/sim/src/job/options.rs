//! All options of fio: names, level of support, and the effect of the value on a job.
//!
//! Each option is described in exactly one place: a row in one of the tables of the submodules. The
//! reference is the list of `fio --cmdhelp=all`.

use super::JobError;
use super::draft::JobDraft;
use super::error::printable;
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
mod positions;
mod replay;
mod reports;
mod sizes;

/// An option of fio.
#[derive(Clone, Copy)]
pub struct FioOption {
    /// Name in fio's list.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// Level of support.
    pub class: OptionClass,
    /// Effect of the value.
    set: OptionEffect,
}

/// Level of support of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionClass {
    /// Supported as in fio.
    Honoured {
        /// Valid values and the default.
        takes: &'static str,
    },
    /// Accepted without effect, and mentioned once with the results.
    WithoutEffect {
        /// Reason for the missing effect.
        because: &'static str,
    },
    /// Rejected.
    Refused {
        /// Reason for the rejection.
        because: &'static str,
    },
}

/// Function that stores a value in a job.
type OptionSetter = fn(&mut JobDraft, OptionValue<'_>) -> Result<(), ExpectedForm>;

/// Effect of an option's value.
#[derive(Clone, Copy)]
enum OptionEffect {
    /// Stored by this function.
    SetBy(OptionSetter),
    /// Accepted without effect.
    Nothing,
    /// No effect for these values, which disable the option. Other values are rejected.
    OffOnly(&'static [&'static str]),
}

/// Declares a supported option.
const fn supported(
    name: &'static str,
    aliases: &'static [&'static str],
    takes: &'static str,
    set: OptionSetter,
) -> FioOption {
    FioOption {
        name,
        aliases,
        class: OptionClass::Honoured { takes },
        set: OptionEffect::SetBy(set),
    }
}

/// Declares an option without effect.
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

/// Declares an option that is rejected unless it is disabled, by one of the values `off`. An empty
/// value in `off` is an option without a value. The reason for the rejection is `because`.
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
    positions::TABLE,
    depth::TABLE,
    pace::TABLE,
    integrity::TABLE,
    replay::TABLE,
    reports::TABLE,
    buffers::TABLE,
    machine::TABLE,
    of_engines::TABLE,
];

/// Returns all options of fio.
pub fn options() -> impl Iterator<Item = &'static FioOption> {
    TABLES.into_iter().flatten()
}

impl FioOption {
    /// Returns the option with this name or alias. `None` if fio has no such option.
    pub fn find(name: &str) -> Option<&'static FioOption> {
        options().find(|option| option.name == name || option.aliases.contains(&name))
    }

    /// Sets the option `name` of a draft. `line` is its line in the job file, for errors.
    /// `value` is `None` for an option without `=`.
    ///
    /// # Errors
    /// Fails if the option does not exist or is rejected, or if the value is invalid.
    pub(super) fn set(
        draft: &mut JobDraft,
        line: usize,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), JobError> {
        let Some(option) = FioOption::find(name) else {
            let (option, nearest) = (name.to_owned(), FioOption::nearest(name));
            return Err(JobError::UnknownOption { line, option, nearest });
        };
        let text = value.unwrap_or_default();
        let value = OptionValue { text, is_given: value.is_some(), kilo: draft.kilo };
        option.apply(draft, line, name, value)
    }

    /// Stores the value of the option in `draft`, or notes an option without effect there. The
    /// job file has the option as `name`, which can be an alias, in line `line`.
    ///
    /// # Errors
    /// Fails if the option is rejected or the value is invalid.
    pub(super) fn apply(
        &self,
        draft: &mut JobDraft,
        line: usize,
        name: &str,
        value: OptionValue<'_>,
    ) -> Result<(), JobError> {
        match (self.set, self.class) {
            (OptionEffect::SetBy(set), _) => {
                set(draft, value).map_err(|expected| JobError::BadValue {
                    line,
                    option: name.to_owned(),
                    value: printable(value.text),
                    expected,
                })?;
                // The setter leaves a reason here for a value that only fio accepts.
                match draft.rejection.take() {
                    Some(because) => {
                        let option = format!("{name}={}", printable(value.text));
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
                    true => format!("{name}={}", printable(value.text)),
                    false => name.to_owned(),
                };
                Err(JobError::Refused { line, option, because })
            }
            // An option without effect, the only other case: its value is not even parsed.
            _ => {
                draft.note_without_effect(self.name);
                Ok(())
            }
        }
    }

    /// Returns the option with the most similar name, with a distance of at most two bytes: more
    /// would rarely be a typing error. Aliases are not compared. `None` if there is none.
    pub fn nearest(name: &str) -> Option<&'static str> {
        // No option has such a long name, and the comparison takes quadratic time.
        if name.len() > 64 {
            return None;
        }
        // The smallest distance; of equal ones the first name in the alphabet.
        let distances = options().map(|option| (distance(name, option.name), option.name));
        distances.min().filter(|(distance, _)| *distance <= 2).map(|(_, name)| name)
    }
}

/// Returns the Levenshtein distance of two names: the number of bytes to insert, delete or change.
/// After each step `row[n]` is the distance of the compared start of `left` to the first `n` bytes
/// of `right`. `diagonal` is the value of the previous row one column to the left.
fn distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (row_index, left_letter) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = row_index + 1;
        for (column, right_letter) in right.bytes().enumerate() {
            let changed = diagonal + usize::from(left_letter != right_letter);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_names_and_aliases_are_unique() {
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
    fn misspelled_options_are_matched_to_the_nearest_name() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(FioOption::nearest("iodepht"), Some("iodepth"));
        assert_eq!(FioOption::nearest("zonk_of_a_kind"), None);
    }
}
