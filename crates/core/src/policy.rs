//! Text form of a policy: `NAME` or `NAME,key=value,…`, as in `deadline,fifo_batch=1`.
//!
//! Devices have the same form. Text is parsed and validated once. Each module then takes the keys
//! that it knows and reports all others as errors.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::size;

mod registry;

pub use registry::RegisterError;
pub(crate) use registry::Registry;

/// A policy or a device, with its parameters, as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The name before the first comma.
    pub name: String,
    /// The `key=value` pairs after it.
    pub parameters: BTreeMap<String, String>,
}

/// An available policy: its name, a one-line description, and its manual page.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The name by which it is chosen.
    pub name: &'static str,
    /// Description in one line.
    pub line: &'static str,
    /// The text of its source file.
    pub(crate) source: &'static str,
}

impl Policy {
    /// A policy of another crate, to be registered. `source` is the text of its source file
    /// (`include_str!`), whose module documentation becomes the manual page; it may be empty.
    pub const fn new(name: &'static str, line: &'static str, source: &'static str) -> Policy {
        Policy { name, line, source }
    }

    /// The manual page: the module documentation at the top of its source, line by line. Empty for
    /// a source without such documentation.
    pub fn page(&self) -> impl Iterator<Item = &'static str> {
        let prose = self.source.lines().map_while(|line| line.strip_prefix("//!"));
        prose.map(|line| line.strip_prefix(' ').unwrap_or(line))
    }
}

/// Creates the error for a name that is not in `policies`. `kind` is the kind of policy, for the
/// message.
pub(crate) fn unknown(
    kind: &'static str,
    name: &str,
    policies: impl Iterator<Item = &'static Policy>,
) -> SpecError {
    let names = policies.map(|policy| policy.name).collect();
    SpecError::UnknownName { kind, name: name.to_owned(), known: names }
}

/// Error in a [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// No policy or device has that name.
    UnknownName {
        /// Category of the name: `readahead policy`, `device`, ….
        kind: &'static str,
        /// The name.
        name: String,
        /// The known names.
        known: Vec<&'static str>,
    },
    /// The policy or device is known, but not its parameter.
    UnknownParameter {
        /// The policy or device.
        name: String,
        /// The key.
        key: String,
        /// The known keys.
        known: Vec<&'static str>,
    },
    /// The value is invalid.
    BadValue {
        /// The policy or device.
        name: String,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The expected form, unit and bounds.
        expected: String,
    },
    /// The text is not `NAME,key=value,…`.
    Malformed {
        /// The text.
        text: String,
    },
}

impl Spec {
    /// Parses `NAME,key=value,…`.
    ///
    /// # Errors
    /// [`SpecError::Malformed`] if the name is empty, a part has no `=`, or a key occurs twice.
    pub fn parse(text: &str) -> Result<Spec, SpecError> {
        let malformed = || SpecError::Malformed { text: text.to_owned() };
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default().trim();
        if name.is_empty() {
            return Err(malformed());
        }
        let mut parameters = BTreeMap::new();
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(malformed)?;
            if parameters.insert(key.trim().to_owned(), value.trim().to_owned()).is_some() {
                return Err(malformed());
            }
        }
        Ok(Spec { name: name.to_owned(), parameters })
    }

    /// Parses a list of policies or devices. A part with a `=` belongs to the name before it, so
    /// that `deadline,fifo_batch=1,noop` names two.
    ///
    /// # Errors
    /// As [`parse`](Spec::parse), for the first malformed one.
    pub fn parse_all(text: &str) -> Result<Vec<Spec>, SpecError> {
        let mut specs: Vec<String> = Vec::new();
        for part in text.split(',') {
            match specs.last_mut() {
                Some(last) if part.contains('=') => {
                    last.push(',');
                    last.push_str(part);
                }
                // A part without `=`, or the first one: a name.
                _ => specs.push(part.to_owned()),
            }
        }
        specs.iter().map(|spec| Spec::parse(spec)).collect()
    }

    /// A policy or device without parameters.
    pub fn plain(name: &str) -> Spec {
        Spec { name: name.to_owned(), parameters: BTreeMap::new() }
    }

    /// Checks that every parameter's key is in `known`.
    ///
    /// # Errors
    /// [`SpecError::UnknownParameter`] for the first unknown key.
    pub fn only(&self, known: &[&'static str]) -> Result<(), SpecError> {
        match self.parameters.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => Err(SpecError::UnknownParameter {
                name: self.name.clone(),
                key: key.clone(),
                known: known.to_vec(),
            }),
        }
    }

    /// The whole number under `key`, or `default` if it is missing.
    ///
    /// # Errors
    /// [`SpecError::BadValue`] if it is not a number, or outside `bounds` (both ends included).
    pub fn integer(
        &self,
        key: &str,
        default: u64,
        bounds: core::ops::RangeInclusive<u64>,
    ) -> Result<u64, SpecError> {
        let Some(text) = self.parameters.get(key) else { return Ok(default) };
        match text.parse() {
            // Digits alone, without a unit.
            Ok(number) if bounds.contains(&number) => Ok(number),
            _ => {
                let (least, most) = (bounds.start(), bounds.end());
                Err(self.bad_value(key, &alloc::format!("a whole number from {least} to {most}")))
            }
        }
    }

    /// The [size] under `key` in bytes, or `default` if it is missing.
    ///
    /// # Errors
    /// [`SpecError::BadValue`] if it is not a size, or outside `bounds` (both ends included).
    pub fn bytes(
        &self,
        key: &str,
        default: u64,
        bounds: core::ops::RangeInclusive<u64>,
    ) -> Result<u64, SpecError> {
        let Some(text) = self.parameters.get(key) else { return Ok(default) };
        size::parse(text).filter(|bytes| bounds.contains(bytes)).ok_or_else(|| {
            let (least, most) = (bounds.start(), bounds.end());
            self.bad_value(
                key,
                &alloc::format!("a size from {least} to {most} bytes, as in 64KiB or 1m"),
            )
        })
    }

    /// The error for the value under `key`; `expected` describes valid values. The value in the
    /// error is empty if the key is missing.
    pub fn bad_value(&self, key: &str, expected: &str) -> SpecError {
        SpecError::BadValue {
            name: self.name.clone(),
            key: key.to_owned(),
            value: self.parameters.get(key).cloned().unwrap_or_default(),
            expected: expected.to_owned(),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.parameters.iter().try_for_each(|(key, value)| write!(f, ",{key}={value}"))
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::UnknownName { kind, name, known } => {
                write!(f, "there is no {kind} `{name}`; there are: {}", known.join(", "))
            }
            SpecError::UnknownParameter { name, key, known } if known.is_empty() => {
                write!(f, "`{name}` has no parameter `{key}`; it takes none")
            }
            SpecError::UnknownParameter { name, key, known } => {
                write!(f, "`{name}` has no parameter `{key}`; it takes: {}", known.join(", "))
            }
            SpecError::BadValue { name, key, value, expected } => {
                write!(f, "`{name},{key}={value}`: expected {expected}")
            }
            SpecError::Malformed { text } => {
                write!(f, "`{text}` is not of the form NAME or NAME,key=value,…")
            }
        }
    }
}

impl core::error::Error for SpecError {}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_spec_reads_back_as_it_was_written() {
        let spec = Spec::parse("deadline,fifo_batch=1,read_expire=500").unwrap();
        assert_eq!(spec.name, "deadline");
        assert_eq!(spec.integer("fifo_batch", 16, 1..=1000), Ok(1));
        assert_eq!(spec.to_string(), "deadline,fifo_batch=1,read_expire=500");
    }

    #[test]
    fn parameter_in_a_spec_list_belongs_to_the_name_before_it() {
        let specs =
            Spec::parse_all("cfq,seeky=mean,slice_idle=0,cfq,deadline,fifo_batch=1").unwrap();
        let names: Vec<String> = specs.iter().map(Spec::to_string).collect();
        assert_eq!(names, ["cfq,seeky=mean,slice_idle=0", "cfq", "deadline,fifo_batch=1"]);
        assert!(Spec::parse_all("cfq,,deadline").is_err());
    }

    #[test]
    fn bad_specs_report_the_fault() {
        assert!(Spec::parse("").is_err());
        assert!(Spec::parse("cfq,quantum").is_err());
        assert!(Spec::parse("cfq,a=1,a=2").is_err());
        let spec = Spec::parse("cfq,qantum=8").unwrap();
        let error = spec.only(&["quantum", "slice_idle"]).unwrap_err().to_string();
        assert_eq!(error, "`cfq` has no parameter `qantum`; it takes: quantum, slice_idle");
        let spec = Spec::parse("cfq,quantum=many").unwrap();
        let error = spec.integer("quantum", 8, 1..=100).unwrap_err().to_string();
        assert_eq!(error, "`cfq,quantum=many`: expected a whole number from 1 to 100");
    }

    #[test]
    fn sizes_take_units_of_1024() {
        const DEFAULT_BYTES: u64 = 7;
        let size = |text: &str| {
            let spec = Spec::parse(&std::format!("x,chunk={text}")).unwrap();
            spec.bytes("chunk", DEFAULT_BYTES, 1..=u64::MAX)
        };
        for (text, bytes) in [("512", 512), ("64KiB", 65_536), ("64kb", 65_536), ("1M", 1 << 20)] {
            assert_eq!(size(text), Ok(bytes));
        }
        assert_eq!(Spec::plain("x").bytes("chunk", DEFAULT_BYTES, 1..=9), Ok(DEFAULT_BYTES));
        for text in ["", "k", "1x", "-1", "1.5m", "99999999999g"] {
            let error = size(text).unwrap_err().to_string();
            assert!(error.contains("expected a size from 1"), "{error}");
        }
    }
}
