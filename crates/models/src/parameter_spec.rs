//! Device parameters that are set by text, each with default, quantity, bounds and source.
//!
//! A device declares its parameters once, in a table of [`ParameterSpec`].
//! [`ParameterValues::read`] checks a [`Spec`] against that table and returns every current value.
//! Later code needs no further check. `readpath devices NAME` prints the same table.
//!
//! Values have the form that fio uses. `4k`, `16m`, `1g` are binary sizes, and `75us`, `3.8ms`,
//! `2s` are times. `3000m` for a bandwidth key means decimal megabytes per second, as in data
//! sheets. A number without suffix is in the unit that the table prints.

use readpath_core::policy::{Spec, SpecError};

use super::parameter::{DeviceParameter, ParameterOrigin};

/// Physical quantity of a parameter. Values are stored in its smallest unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterQuantity {
    /// A size in bytes. The suffixes `k`, `m`, `g`, `t` are powers of 1024.
    Bytes,
    /// Bytes per second. The suffixes `k`, `m`, `g` are powers of 1000. Printed in MB/s.
    BytesPerSecond,
    /// A duration, stored in nanoseconds. Suffixes: `ns`, `us`, `ms`, `s`. Printed in µs.
    Time,
    /// A plain count.
    Count,
    /// A percentage.
    Percent,
    /// 0 for no, 1 for yes.
    Switch,
}

/// Declaration of one device parameter.
#[derive(Clone, Copy, Debug)]
pub struct ParameterSpec {
    /// Key in the device text.
    pub key: &'static str,
    /// Short description of the parameter.
    pub description: &'static str,
    /// Quantity of the value.
    pub quantity: ParameterQuantity,
    /// Default value in the quantity's smallest unit.
    pub default: u64,
    /// Smallest valid value.
    pub least: u64,
    /// Largest valid value.
    pub most: u64,
    /// Source of the default value.
    pub source: &'static str,
}

/// Current values of all parameters of one device.
#[derive(Clone, Debug)]
pub struct ParameterValues {
    /// Name of the device, for errors.
    device: String,
    /// The parameters, in the order of the device's table.
    values: Vec<ParameterValue>,
}

/// A parameter with its current value.
#[derive(Clone, Debug)]
struct ParameterValue {
    /// Its declaration.
    parameter_spec: ParameterSpec,
    /// Value in the quantity's smallest unit.
    value: u64,
    /// True if the device text sets the value.
    is_given: bool,
}

impl ParameterValues {
    /// Reads the values from `spec`. Parameters that `spec` does not set get their defaults.
    ///
    /// # Errors
    /// Fails on a key that is not among `parameter_specs`, and on a malformed or out-of-range
    /// value.
    pub fn read(
        spec: &Spec,
        parameter_specs: &[ParameterSpec],
    ) -> Result<ParameterValues, SpecError> {
        let keys: Vec<&'static str> =
            parameter_specs.iter().map(|parameter_spec| parameter_spec.key).collect();
        spec.only(&keys)?;
        let values = parameter_specs
            .iter()
            .map(|parameter_spec| match spec.parameters.get(parameter_spec.key) {
                None => Ok(ParameterValue {
                    parameter_spec: *parameter_spec,
                    value: parameter_spec.default,
                    is_given: false,
                }),
                Some(text) => match parameter_spec.quantity.parse(text) {
                    Some(value)
                        if (parameter_spec.least..=parameter_spec.most).contains(&value) =>
                    {
                        let parameter_spec = *parameter_spec;
                        Ok(ParameterValue { parameter_spec, value, is_given: true })
                    }
                    _ => Err(bad_value(spec, parameter_spec, text)),
                },
            })
            .collect::<Result<_, _>>()?;
        Ok(ParameterValues { device: spec.name.clone(), values })
    }

    /// Returns the value of `key` in its quantity's smallest unit.
    ///
    /// # Panics
    /// Panics when the device has no parameter `key`. This is a bug in the device.
    pub fn of(&self, key: &str) -> u64 {
        self.find_value(key).expect("a device reads its own knobs").value
    }

    /// Returns the current value of `key` with its declaration; `None` for an unknown key.
    fn find_value(&self, key: &str) -> Option<&ParameterValue> {
        self.values.iter().find(|value| value.parameter_spec.key == key)
    }

    /// Returns the value like [`of`](ParameterValues::of) for bounds that fit 32 bits.
    pub fn get_u32(&self, key: &str) -> u32 {
        u32::try_from(self.of(key)).expect("the parameter's bounds fit 32 bits")
    }

    /// Returns true if the text set `key`, even to its default.
    pub fn is_given(&self, key: &str) -> bool {
        self.find_value(key).is_some_and(|value| value.is_given)
    }

    /// Returns the error for a value of `key` that contradicts another parameter. `expected` is
    /// the valid form. An unknown key has an empty value in the error.
    pub fn contradiction(&self, key: &str, expected: String) -> SpecError {
        let text = self
            .find_value(key)
            .map(|found| found.parameter_spec.quantity.format_value(found.value))
            .unwrap_or_default();
        SpecError::BadValue {
            name: self.device.clone(),
            key: key.to_owned(),
            value: text,
            expected,
        }
    }

    /// Returns all parameters in printable form: value with unit, origin and source.
    pub fn parameters(&self) -> Vec<DeviceParameter> {
        self.values
            .iter()
            .map(|ParameterValue { parameter_spec, value, is_given }| DeviceParameter {
                name: parameter_spec.key.to_owned(),
                value: parameter_spec.quantity.format_value(*value),
                unit: parameter_spec.quantity.unit(),
                origin: if *is_given {
                    ParameterOrigin::Given
                } else {
                    ParameterOrigin::of(parameter_spec.source)
                },
                source: match is_given {
                    false => format!("{}; {}", parameter_spec.description, parameter_spec.source),
                    true => format!("{}; given", parameter_spec.description),
                },
            })
            .collect()
    }
}

/// Returns the error for a malformed or out-of-range value, with form, bounds and unit.
fn bad_value(spec: &Spec, parameter_spec: &ParameterSpec, text: &str) -> SpecError {
    let quantity = parameter_spec.quantity;
    SpecError::BadValue {
        name: spec.name.clone(),
        key: parameter_spec.key.to_owned(),
        value: text.to_owned(),
        expected: format!(
            "{} from {} to {} {}",
            quantity.expected_form(),
            quantity.format_value(parameter_spec.least),
            quantity.format_value(parameter_spec.most),
            quantity.unit()
        )
        .trim_end()
        .to_owned(),
    }
}

impl ParameterQuantity {
    /// Returns the unit of a number without suffix.
    pub const fn unit(self) -> &'static str {
        match self {
            ParameterQuantity::Bytes => "bytes",
            ParameterQuantity::BytesPerSecond => "MB/s",
            ParameterQuantity::Time => "µs",
            ParameterQuantity::Percent => "%",
            ParameterQuantity::Count | ParameterQuantity::Switch => "",
        }
    }

    /// Describes the expected form of a value, for error messages. The bounds follow it there.
    const fn expected_form(self) -> &'static str {
        match self {
            ParameterQuantity::Bytes => "a size such as 64k or 1g,",
            ParameterQuantity::BytesPerSecond => "bytes a second such as 386m,",
            ParameterQuantity::Time => "a time such as 75us or 3.8ms,",
            ParameterQuantity::Percent => "a percentage",
            ParameterQuantity::Count => "a whole number",
            ParameterQuantity::Switch => "0 (no) or 1 (yes),",
        }
    }

    /// Returns the valid suffixes with their factors in smallest units. The first one is empty.
    const fn suffixes(self) -> &'static [(&'static str, u64)] {
        match self {
            ParameterQuantity::Bytes => {
                &[("", 1), ("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30), ("t", 1 << 40)]
            }
            ParameterQuantity::BytesPerSecond => {
                &[("", 1_000_000), ("k", 1_000), ("m", 1_000_000), ("g", 1_000_000_000)]
            }
            ParameterQuantity::Time => {
                &[("", 1_000), ("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)]
            }
            ParameterQuantity::Percent => &[("", 1), ("%", 1)],
            ParameterQuantity::Count | ParameterQuantity::Switch => &[("", 1)],
        }
    }

    /// Parses a number with at most nine decimals, as in a second in ns, and a suffix. Returns the
    /// exact value in the base unit, computed without floating point. Returns `None` if the text is
    /// malformed, and if the value is no whole number or exceeds 64 bits.
    fn parse(self, text: &str) -> Option<u64> {
        let text = text.to_ascii_lowercase();
        let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(number_end);
        let (_, scale) = *self.suffixes().iter().find(|(name, _)| *name == suffix)?;
        let (integer, decimals) = number.split_once('.').unwrap_or((number, ""));
        if decimals.len() > 9 || (integer.is_empty() && decimals.is_empty()) {
            return None;
        }
        let integer: u128 = if integer.is_empty() { 0 } else { integer.parse().ok()? };
        let fraction: u128 = if decimals.is_empty() { 0 } else { decimals.parse().ok()? };
        let denominator = 10u128.pow(u32::try_from(decimals.len()).ok()?);
        let scaled = integer
            .checked_mul(denominator)?
            .checked_add(fraction)?
            .checked_mul(u128::from(scale))?;
        if scaled % denominator != 0 {
            return None;
        }
        u64::try_from(scaled / denominator).ok()
    }

    /// Formats the value for output. [`parse`](ParameterQuantity::parse) reads it back. Bytes get
    /// the largest suffix without decimals. Other quantities have no suffix and as many decimals as
    /// needed.
    fn format_value(self, value: u64) -> String {
        match self {
            ParameterQuantity::Bytes => {
                let divides =
                    |(_, scale): &&(&str, u64)| value >= *scale && value.is_multiple_of(*scale);
                let (suffix, scale) =
                    self.suffixes().iter().rev().find(divides).copied().unwrap_or(("", 1));
                format!("{}{suffix}", value / scale)
            }
            _ => {
                // The scale of a number without a suffix, a power of ten.
                let (_, scale) = self.suffixes()[0];
                let (whole, rest) = (value / scale, value % scale);
                if rest == 0 {
                    return whole.to_string();
                }
                let digits = scale.ilog10() as usize;
                let decimals = format!("{rest:0digits$}");
                format!("{whole}.{}", decimals.trim_end_matches('0'))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A size, a duration and a bandwidth.
    const PARAMETERS: [ParameterSpec; 3] = [
        ParameterSpec {
            key: "page",
            description: "flash page",
            quantity: ParameterQuantity::Bytes,
            default: 8192,
            least: 4096,
            most: 1 << 16,
            source: "a data sheet",
        },
        ParameterSpec {
            key: "read",
            description: "array read",
            quantity: ParameterQuantity::Time,
            default: 75_000,
            least: 0,
            most: 1_000_000_000,
            source: "a data sheet",
        },
        ParameterSpec {
            key: "link",
            description: "link",
            quantity: ParameterQuantity::BytesPerSecond,
            default: 600_000_000,
            least: 1_000_000,
            most: 1_000_000_000_000,
            source: "a standard",
        },
    ];

    /// Reads the values of a device text.
    fn settings(text: &str) -> Result<ParameterValues, SpecError> {
        ParameterValues::read(&Spec::parse(text).unwrap(), &PARAMETERS)
    }

    #[test]
    fn values_are_read_in_the_units_that_fio_and_data_sheets_use() {
        let with_suffix = settings("ssd,page=16k,read=3.8ms,link=3.2g").unwrap();
        assert_eq!(with_suffix.of("page"), 16_384);
        assert_eq!(with_suffix.of("read"), 3_800_000);
        assert_eq!(with_suffix.of("link"), 3_200_000_000);
        let without_suffix = settings("ssd,page=4096,read=60,link=300").unwrap();
        assert_eq!(without_suffix.of("page"), 4_096);
        assert_eq!(without_suffix.of("read"), 60_000);
        assert_eq!(without_suffix.of("link"), 300_000_000);
        assert_eq!(settings("ssd").unwrap().of("page"), 8_192);
    }

    /// Times are printed in µs, with as many decimals as needed. Sizes get the largest suffix that
    /// divides them.
    #[test]
    fn printed_quantities_parse_back() {
        for (value, text) in [(75_000, "75"), (250, "0.25"), (3_800_001, "3800.001")] {
            assert_eq!(ParameterQuantity::Time.format_value(value), text);
            assert_eq!(ParameterQuantity::Time.parse(text), Some(value));
        }
        assert_eq!(ParameterQuantity::Bytes.format_value(1_310_720), "1280k");
        assert_eq!(ParameterQuantity::Bytes.format_value(0), "0");
    }

    #[test]
    fn a_bad_value_says_form_bounds_and_unit() {
        let error = |text: &str| settings(text).unwrap_err().to_string();
        assert_eq!(
            error("ssd,page=1k"),
            "`ssd,page=1k`: expected a size such as 64k or 1g, from 4k to 64k bytes"
        );
        assert_eq!(
            error("ssd,read=fast"),
            "`ssd,read=fast`: expected a time such as 75us or 3.8ms, from 0 to 1000000 µs"
        );
        assert_eq!(
            error("ssd,pages=4k"),
            "`ssd` has no parameter `pages`; it takes: page, read, link"
        );
        for text in ["ssd,page=", "ssd,page=.", "ssd,page=4kk", "ssd,page=-1", "ssd,read=0.0001ns"]
        {
            assert!(settings(text).is_err(), "{text}");
        }
    }
}
