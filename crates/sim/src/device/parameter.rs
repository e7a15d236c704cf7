//! One parameter of a modelled device, as `readpath devices NAME` prints it.

/// How a figure was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterOrigin {
    /// Measured on such a device, and published.
    Measured,
    /// Stated by the maker.
    DataSheet,
    /// Fixed by a standard.
    Standard,
    /// Stated by those who built or configured such a system.
    Published,
    /// Worked out from figures that are stated.
    Derived,
    /// Set so that the model meets a published result; where that result is compared
    /// with the model, it proves nothing.
    Fitted,
    /// By judgement; nothing is published.
    Chosen,
    /// By whoever describes the device, in a file or on the command line.
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

    /// The word that a source begins with.
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

    /// What `source` says of itself: its first word. Whatever begins otherwise comes from a
    /// description that somebody gave.
    pub fn of(source: &str) -> ParameterOrigin {
        let is_first = |origin: &ParameterOrigin| source.starts_with(origin.word());
        ParameterOrigin::ALL.into_iter().find(is_first).unwrap_or(ParameterOrigin::Given)
    }
}

/// A parameter with its value in force, its unit and where the figure comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceParameter {
    /// The key under which it is set, as in `NAME,key=value`.
    pub name: String,
    /// The value in force.
    pub value: String,
    /// The unit of the value; empty for a plain number or a name.
    pub unit: &'static str,
    /// How the value was come by.
    pub origin: ParameterOrigin,
    /// What it is, and the published source of the figure.
    pub source: String,
}
