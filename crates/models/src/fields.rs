//! Fields of a parameter file in any syntax, read with bounds and units.
//!
//! A parsed file is a tree of blocks with named values and their line numbers. A [`FieldBlock`] is
//! read field by field. Errors contain file, line, field, unit and the violated bound. A field that
//! is never read is an error too: a misspelt name must not silently leave the default.

pub mod toml_text;

use std::cell::{Cell, RefCell};
use std::fmt;

/// Value of a field.
#[derive(Clone, Debug)]
pub enum FieldValue {
    /// A number.
    Number(f64),
    /// A word, a name or a text.
    Text(String),
    /// A list, with the line of each item.
    List(Vec<(usize, FieldValue)>),
    /// A block, with the word before its brace, if any.
    Block(FieldBlock),
}

/// A named value.
#[derive(Clone, Debug)]
pub struct NamedValue {
    /// Name of the field.
    pub key: String,
    /// Line number, from 1.
    pub line: usize,
    /// Value of the field.
    pub value: FieldValue,
    /// Source that the author of the file states for the value.
    pub source: Option<String>,
    /// True once the field has been read.
    is_read: Cell<bool>,
    /// Unit in which its number, or the numbers of its list, were read. Empty before that, and for
    /// any other field.
    unit: Cell<&'static str>,
}

impl NamedValue {
    /// Creates a field of line number `line` that no code has read yet. `source` is the
    /// source that the file states for the value, if any.
    pub fn new(key: String, line: usize, value: FieldValue, source: Option<String>) -> NamedValue {
        NamedValue { key, line, value, source, is_read: Cell::new(false), unit: Cell::new("") }
    }
}

impl NamedValue {
    /// Returns the unit in which its number, or the numbers of its list, were read. Empty before
    /// that, and for any other field, such as a switch.
    pub fn unit(&self) -> &'static str {
        self.unit.get()
    }
}

/// Named values between braces or under a heading.
#[derive(Clone, Debug)]
pub struct FieldBlock {
    /// Name of the file.
    pub file: String,
    /// First line of the block.
    pub line: usize,
    /// Type of the block: the word before its brace.
    pub kind: String,
    /// Name of the block, if any: the word after the type.
    pub name: String,
    /// Fields of the block.
    pub fields: Vec<NamedValue>,
    /// Numbers, switches and choices that were read but are absent, with their defaults. An absent
    /// text or list is not recorded, because it has no default.
    pub defaults: RefCell<Vec<DefaultUsed>>,
}

/// An absent field, with its default.
#[derive(Clone, Debug)]
pub struct DefaultUsed {
    /// Name of the field.
    pub key: String,
    /// Default value.
    pub value: String,
    /// Unit of the value.
    pub unit: &'static str,
}

/// Error in a parameter file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// Name of the file.
    pub file: String,
    /// Line number, from 1. 0 for the file as a whole.
    pub line: usize,
    /// Name of the field. Empty if the error is not about a field.
    pub field: String,
    /// Problem and expected form, with unit and bound.
    pub problem: String,
}

impl fmt::Display for FileError {
    /// Writes file, line, field and problem. Line and field are left out if they are not known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.field.is_empty() {
            write!(f, ": `{}`", self.field)?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for FileError {}

/// Valid range of a number, with its unit.
#[derive(Clone, Copy, Debug)]
pub struct NumberBounds {
    /// Minimum.
    pub least: f64,
    /// Maximum.
    pub most: f64,
    /// Unit for error messages.
    pub unit: &'static str,
}

/// Returns the bounds from `least` to `most`, both inclusive.
pub const fn bounds(least: f64, most: f64, unit: &'static str) -> NumberBounds {
    NumberBounds { least, most, unit }
}

impl FieldBlock {
    /// Returns the error for a problem with the field `key`, with its line, or the line of the
    /// block if it is absent.
    pub fn error(&self, key: &str, problem: String) -> FileError {
        let field = self.fields.iter().find(|field| field.key == key);
        let line = field.map_or(self.line, |field| field.line);
        FileError { file: self.file.clone(), line, field: key.to_owned(), problem }
    }

    /// Returns the field `key`, if present, and marks it as read.
    pub fn find(&self, key: &str) -> Option<&NamedValue> {
        let field = self.fields.iter().find(|field| field.key == key)?;
        field.is_read.set(true);
        Some(field)
    }

    /// Returns the field `key`, or an error if it is absent.
    fn required_field(&self, key: &str) -> Result<&NamedValue, FileError> {
        self.find(key).ok_or_else(|| self.error(key, "is missing".to_owned()))
    }

    /// Returns the number of the field `key`.
    ///
    /// # Errors
    /// Fails if the field is missing, is not a number, or is out of bounds.
    pub fn number(&self, key: &str, bounds: NumberBounds) -> Result<f64, FileError> {
        let field = self.required_field(key)?;
        self.number_in_bounds(field, &field.value, bounds)
    }

    /// Returns the number of the field `key`, or `default` if it is absent. The default is recorded
    /// in `defaults`, and is not checked against `bounds`.
    ///
    /// # Errors
    /// Fails if the field is not a number or is out of bounds.
    pub fn number_or(
        &self,
        key: &str,
        default: f64,
        bounds: NumberBounds,
    ) -> Result<f64, FileError> {
        if self.find(key).is_some() {
            return self.number(key, bounds);
        }
        self.record_default(key, default.to_string(), unit_word(bounds.unit));
        Ok(default)
    }

    /// Records for the list of parameters that the absent field `key` has the default `value`.
    fn record_default(&self, key: &str, value: String, unit: &'static str) {
        let mut defaults = self.defaults.borrow_mut();
        if defaults.iter().all(|recorded| recorded.key != key) {
            defaults.push(DefaultUsed { key: key.to_owned(), value, unit });
        }
    }

    /// Returns the whole number of the field `key`. `bounds` must not allow negative numbers.
    ///
    /// # Errors
    /// Fails if the field is missing, is not a whole number, or is out of bounds.
    pub fn integer(&self, key: &str, bounds: NumberBounds) -> Result<u64, FileError> {
        let value = self.number(key, bounds)?;
        if value.fract() != 0.0 {
            let problem = format!("{value} is not a whole number of {}", bounds.unit);
            return Err(self.error(key, problem));
        }
        Ok(value as u64)
    }

    /// Returns the whole number of the field `key`, or `default`, unchecked, if it is absent.
    /// `bounds` must not allow negative numbers.
    ///
    /// # Errors
    /// Fails if the field is not a whole number or is out of bounds.
    pub fn integer_or(
        &self,
        key: &str,
        default: u64,
        bounds: NumberBounds,
    ) -> Result<u64, FileError> {
        if self.find(key).is_some() {
            return self.integer(key, bounds);
        }
        self.record_default(key, default.to_string(), unit_word(bounds.unit));
        Ok(default)
    }

    /// Returns the switch in the field `key` (0, 1, `true` or `false`), or `default` if it is
    /// absent.
    ///
    /// # Errors
    /// Fails on any other value.
    pub fn switch_or(&self, key: &str, default: bool) -> Result<bool, FileError> {
        match self.find(key).map(|field| &field.value) {
            None => {
                self.record_default(key, u8::from(default).to_string(), "");
                Ok(default)
            }
            Some(FieldValue::Number(0.0)) => Ok(false),
            Some(FieldValue::Number(1.0)) => Ok(true),
            Some(FieldValue::Text(word)) if word == "false" => Ok(false),
            Some(FieldValue::Text(word)) if word == "true" => Ok(true),
            Some(_) => Err(self.error(key, "expected false (0) or true (1)".to_owned())),
        }
    }

    /// Returns the text of the field `key`, if present.
    ///
    /// # Errors
    /// Fails if the field is not a text.
    pub fn text(&self, key: &str) -> Result<Option<&str>, FileError> {
        match self.find(key).map(|field| &field.value) {
            None => Ok(None),
            Some(FieldValue::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.error(key, "expected a word or a text".to_owned())),
        }
    }

    /// Returns the text of the field `key`.
    ///
    /// # Errors
    /// Fails if the field is missing or is not a text.
    pub fn required_text(&self, key: &str) -> Result<&str, FileError> {
        self.text(key)?.ok_or_else(|| self.error(key, "is missing".to_owned()))
    }

    /// Returns the choice named by the field `key`, or `default` if it is absent.
    ///
    /// # Errors
    /// Fails if the field is not a text, or its word is not in `choices`.
    pub fn choice<T: Copy + PartialEq>(
        &self,
        key: &str,
        default: T,
        choices: &[(&str, T)],
    ) -> Result<T, FileError> {
        let Some(word) = self.text(key)? else {
            // A default outside `choices` has no word, and is recorded as an empty one.
            let name = choices.iter().find(|(_, choice)| *choice == default);
            self.record_default(key, name.map_or("", |(name, _)| name).to_owned(), "");
            return Ok(default);
        };
        choices.iter().find(|(name, _)| *name == word).map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            self.error(key, format!("`{word}` is none of: {}", names.join(", ")))
        })
    }

    /// Returns the block in the field `key`.
    ///
    /// # Errors
    /// Fails if the field is missing or is not a block.
    pub fn block(&self, key: &str) -> Result<&FieldBlock, FileError> {
        match &self.required_field(key)?.value {
            FieldValue::Block(block) => Ok(block),
            _ => Err(self.error(key, "expected a block of fields".to_owned())),
        }
    }

    /// Returns the blocks of the list in the field `key`.
    ///
    /// # Errors
    /// Fails if the field is missing or is not a list of blocks.
    pub fn blocks(&self, key: &str) -> Result<Vec<&FieldBlock>, FileError> {
        let FieldValue::List(items) = &self.required_field(key)?.value else {
            return Err(self.error(key, "expected a list of blocks".to_owned()));
        };
        items
            .iter()
            .map(|(line, item)| match item {
                FieldValue::Block(block) => Ok(block),
                _ => Err(FileError {
                    line: *line,
                    ..self.error(key, "expected a block of fields".to_owned())
                }),
            })
            .collect()
    }

    /// Returns the numbers of the list in the field `key`. An absent field returns an empty list,
    /// because a list without items means no such items.
    ///
    /// # Errors
    /// Fails if the field is not a list of numbers, or if one is out of bounds.
    pub fn numbers(&self, key: &str, bounds: NumberBounds) -> Result<Vec<f64>, FileError> {
        let Some(field) = self.find(key) else { return Ok(Vec::new()) };
        let FieldValue::List(items) = &field.value else {
            return Err(self.error(key, format!("expected a list of {}", bounds.unit)));
        };
        items
            .iter()
            .map(|(line, item)| {
                self.number_in_bounds(field, item, bounds)
                    .map_err(|error| FileError { line: *line, ..error })
            })
            .collect()
    }

    /// Returns `value`, the value of `field` or an item of its list, as a number within `bounds`.
    /// Otherwise returns an error at the line of `field`, which the caller replaces for an item.
    /// Records the unit in which `field` was read.
    fn number_in_bounds(
        &self,
        field: &NamedValue,
        value: &FieldValue,
        bounds: NumberBounds,
    ) -> Result<f64, FileError> {
        let NumberBounds { least, most, unit } = bounds;
        field.unit.set(unit_word(unit));
        let error = |problem| FileError {
            file: self.file.clone(),
            line: field.line,
            field: field.key.clone(),
            problem,
        };
        match value {
            FieldValue::Number(number) if (least..=most).contains(number) => Ok(*number),
            FieldValue::Number(number) if *number < least => {
                Err(error(format!("{number} {unit} is less than {least} {unit}")))
            }
            FieldValue::Number(number) if *number > most => {
                Err(error(format!("{number} {unit} is more than {most} {unit}")))
            }
            // Other values, and NaN.
            _ => Err(error(format!("expected a number of {unit}, from {least} to {most}"))),
        }
    }

    /// Rejects every field of this block that has not been read.
    ///
    /// # Errors
    /// Returns the first such field.
    pub fn reject_unread(&self) -> Result<(), FileError> {
        match self.fields.iter().find(|field| !field.is_read.get()) {
            None => Ok(()),
            Some(field) => Err(self.error(&field.key, "is no field of this block".to_owned())),
        }
    }
}

/// Returns the unit without the explanation in brackets.
fn unit_word(unit: &'static str) -> &'static str {
    unit.split('(').next().unwrap_or_default().trim()
}
