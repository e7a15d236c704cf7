//! Fields of a parameter file, whatever its syntax, read with bounds and units.
//!
//! A parsed file is a tree of blocks, each with named values, each with the line
//! it stands on. A [`FieldBlock`] is read field by field; whatever is wrong is told with
//! file, line, field, unit and the bound that it breaks. A field that nobody asked
//! for is an error too: a misspelt name must not silently leave a default in force.

pub mod toml_text;

use std::cell::{Cell, RefCell};
use std::fmt;

/// What a field holds.
#[derive(Clone, Debug)]
pub enum FieldValue {
    /// A number.
    Number(f64),
    /// A word, a name or a text.
    Text(String),
    /// A list.
    List(Vec<(usize, FieldValue)>),
    /// A block, with the word before its brace, if any.
    Block(FieldBlock),
}

/// One named value.
#[derive(Clone, Debug)]
pub struct NamedValue {
    /// Its name.
    pub key: String,
    /// The line it stands on, from 1.
    pub line: usize,
    /// What it holds.
    pub value: FieldValue,
    /// Where its author has it from.
    pub source: Option<String>,
    is_read: Cell<bool>,
    unit: Cell<&'static str>,
}

impl NamedValue {
    /// A field as the parser found it.
    pub fn new(key: String, line: usize, value: FieldValue, source: Option<String>) -> NamedValue {
        NamedValue { key, line, value, source, is_read: Cell::new(false), unit: Cell::new("") }
    }
}

impl NamedValue {
    /// The unit in which it was read; empty before, and for what is no number.
    pub fn unit(&self) -> &'static str {
        self.unit.get()
    }
}

/// Named values between braces, or under a heading.
#[derive(Clone, Debug)]
pub struct FieldBlock {
    /// The file it stands in.
    pub file: String,
    /// The line it starts on.
    pub line: usize,
    /// The word before its brace: the type of the block.
    pub kind: String,
    /// The word after that: its name, if it has one.
    pub name: String,
    /// Its fields.
    pub fields: Vec<NamedValue>,
    /// What was asked for and not there, with the default that is in force.
    pub defaults: RefCell<Vec<DefaultUsed>>,
}

/// A field that a block leaves out, and what holds in its place.
#[derive(Clone, Debug)]
pub struct DefaultUsed {
    /// Its name.
    pub key: String,
    /// The value in force.
    pub value: String,
    /// Its unit.
    pub unit: &'static str,
}

/// Something wrong in a parameter file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// The file.
    pub file: String,
    /// The line, from 1; 0 when it is the file as a whole.
    pub line: usize,
    /// The field; empty when it is none.
    pub field: String,
    /// What is wrong and what is expected, with unit and bound.
    pub problem: String,
}

impl fmt::Display for FileError {
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

/// The numbers that a field may hold, and their unit.
#[derive(Clone, Copy, Debug)]
pub struct NumberBounds {
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
    /// The unit, for the message.
    pub unit: &'static str,
}

/// Bounds from `least` to `most`, both included.
pub const fn bounds(least: f64, most: f64, unit: &'static str) -> NumberBounds {
    NumberBounds { least, most, unit }
}

impl FieldBlock {
    /// The error that `field`, on its line, has this problem.
    pub fn error(&self, key: &str, problem: String) -> FileError {
        let line = self.fields.iter().find(|field| field.key == key).map_or(self.line, |f| f.line);
        FileError { file: self.file.clone(), line, field: key.to_owned(), problem }
    }

    /// The field `key`, if it is there; it counts as read.
    pub fn find(&self, key: &str) -> Option<&NamedValue> {
        let field = self.fields.iter().find(|field| field.key == key)?;
        field.is_read.set(true);
        Some(field)
    }

    fn need(&self, key: &str) -> Result<&NamedValue, FileError> {
        self.find(key).ok_or_else(|| self.error(key, "is missing".to_owned()))
    }

    /// The number under `key`.
    ///
    /// # Errors
    /// It is missing, no number, or out of bounds.
    pub fn number(&self, key: &str, bounds: NumberBounds) -> Result<f64, FileError> {
        let field = self.need(key)?;
        self.checked(field, &field.value, bounds)
    }

    /// The number under `key`, or `default` where there is none.
    ///
    /// # Errors
    /// It is no number, or out of bounds.
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

    fn record_default(&self, key: &str, value: String, unit: &'static str) {
        let mut defaults = self.defaults.borrow_mut();
        if defaults.iter().all(|noted| noted.key != key) {
            defaults.push(DefaultUsed { key: key.to_owned(), value, unit });
        }
    }

    /// The whole number under `key`.
    ///
    /// # Errors
    /// It is missing, not whole, or out of bounds.
    pub fn integer(&self, key: &str, bounds: NumberBounds) -> Result<u64, FileError> {
        let number = self.number(key, bounds)?;
        if number.fract() != 0.0 {
            let problem = format!("{number} is not a whole number of {}", bounds.unit);
            return Err(self.error(key, problem));
        }
        Ok(number as u64)
    }

    /// The whole number under `key`, or `default` where there is none.
    ///
    /// # Errors
    /// It is not whole, or out of bounds.
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

    /// The switch under `key`: 0 or 1, `true` or `false`; `default` where there is none.
    ///
    /// # Errors
    /// It is anything else.
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

    /// The text under `key`, if there is one.
    ///
    /// # Errors
    /// It is no text.
    pub fn text(&self, key: &str) -> Result<Option<&str>, FileError> {
        match self.find(key).map(|field| &field.value) {
            None => Ok(None),
            Some(FieldValue::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.error(key, "expected a word or a text".to_owned())),
        }
    }

    /// The text under `key`.
    ///
    /// # Errors
    /// It is missing or no text.
    pub fn needed_text(&self, key: &str) -> Result<&str, FileError> {
        self.text(key)?.ok_or_else(|| self.error(key, "is missing".to_owned()))
    }

    /// The choice that the word under `key` names, or `default` where there is none.
    ///
    /// # Errors
    /// The word is none of `choices`.
    pub fn choice<T: Copy + PartialEq>(
        &self,
        key: &str,
        default: T,
        choices: &[(&str, T)],
    ) -> Result<T, FileError> {
        let Some(word) = self.text(key)? else {
            let name = choices.iter().find(|(_, choice)| *choice == default);
            self.record_default(key, name.map_or("", |(name, _)| name).to_owned(), "");
            return Ok(default);
        };
        choices.iter().find(|(name, _)| *name == word).map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            self.error(key, format!("`{word}` is none of: {}", names.join(", ")))
        })
    }

    /// The block under `key`.
    ///
    /// # Errors
    /// It is missing or no block.
    pub fn block(&self, key: &str) -> Result<&FieldBlock, FileError> {
        match &self.need(key)?.value {
            FieldValue::Block(block) => Ok(block),
            _ => Err(self.error(key, "expected a block of fields".to_owned())),
        }
    }

    /// The blocks in the list under `key`.
    ///
    /// # Errors
    /// It is missing, or not a list of blocks.
    pub fn blocks(&self, key: &str) -> Result<Vec<&FieldBlock>, FileError> {
        let FieldValue::List(items) = &self.need(key)?.value else {
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

    /// The numbers in the list under `key`; none where it is absent.
    ///
    /// # Errors
    /// It is not a list of numbers, or one is out of bounds.
    pub fn numbers(&self, key: &str, bounds: NumberBounds) -> Result<Vec<f64>, FileError> {
        let Some(field) = self.find(key) else { return Ok(Vec::new()) };
        let FieldValue::List(items) = &field.value else {
            return Err(self.error(key, format!("expected a list of {}", bounds.unit)));
        };
        items
            .iter()
            .map(|(line, item)| {
                self.checked(field, item, bounds)
                    .map_err(|error| FileError { line: *line, ..error })
            })
            .collect()
    }

    fn checked(
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
            FieldValue::Number(number) => {
                Err(error(format!("{number} {unit} is more than {most} {unit}")))
            }
            _ => Err(error(format!("expected a number of {unit}, from {least} to {most}"))),
        }
    }

    /// Refuses every field that nobody has read, in this block.
    ///
    /// # Errors
    /// The first such field.
    pub fn reject_unread(&self) -> Result<(), FileError> {
        match self.fields.iter().find(|field| !field.is_read.get()) {
            None => Ok(()),
            Some(field) => Err(self.error(&field.key, "is no field of this block".to_owned())),
        }
    }
}

/// The unit itself: what stands in brackets explains a bound.
fn unit_word(unit: &'static str) -> &'static str {
    unit.split('(').next().unwrap_or_default().trim()
}
