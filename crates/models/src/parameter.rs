//! One parameter of a simulated device, as `readpath devices NAME` prints it.

/// Origin of a value: the class of its source, which is a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterOrigin {
    /// Measured on such a device, and published.
    Measured,
    /// Stated by the manufacturer.
    DataSheet,
    /// Fixed by a standard.
    Standard,
    /// Published by the people who built or configured such a system.
    Published,
    /// Calculated from published values.
    Derived,
    /// Fitted so that the model meets a published result. A comparison with that same result is
    /// therefore no validation.
    Fitted,
    /// Chosen by judgement, without a published source.
    Chosen,
    /// Set by the user, in a description file or on the command line.
    Given,
}

impl ParameterOrigin {
    const ALL: [ParameterOrigin; 8] = [
        ParameterOrigin::Measured,
        ParameterOrigin::DataSheet,
        ParameterOrigin::Standard,
        ParameterOrigin::Published,
        ParameterOrigin::Derived,
        ParameterOrigin::Fitted,
        ParameterOrigin::Chosen,
        ParameterOrigin::Given,
    ];

    /// Returns the word with which a source of this origin begins.
    pub const fn word(self) -> &'static str {
        match self {
            ParameterOrigin::Measured => "measured",
            ParameterOrigin::DataSheet => "data sheet",
            ParameterOrigin::Standard => "standard",
            ParameterOrigin::Published => "published",
            ParameterOrigin::Derived => "derived",
            ParameterOrigin::Fitted => "fitted",
            ParameterOrigin::Chosen => "chosen",
            ParameterOrigin::Given => "given",
        }
    }

    /// Returns the origin whose word begins `source`. Other texts come from a user's file.
    pub fn of(source: &str) -> ParameterOrigin {
        let is_first = |origin: &ParameterOrigin| source.starts_with(origin.word());
        ParameterOrigin::ALL.into_iter().find(is_first).unwrap_or(ParameterOrigin::Given)
    }
}

/// A parameter with its current value, its unit and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceParameter {
    /// Key of the parameter, as in `NAME,key=value`.
    pub name: String,
    /// Current value.
    pub value: String,
    /// Unit of the value. Empty for a plain number or a name.
    pub unit: &'static str,
    /// Class of `source`.
    pub origin: ParameterOrigin,
    /// Description of the parameter and the published source of the value.
    pub source: String,
}
