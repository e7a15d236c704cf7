//! One parameter of a modelled device, as `readpath devices NAME` prints it.

/// How a figure was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
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

impl Origin {
    const ALL: [Origin; 8] = [
        Origin::Measured,
        Origin::DataSheet,
        Origin::Standard,
        Origin::Published,
        Origin::Derived,
        Origin::Fitted,
        Origin::Chosen,
        Origin::Given,
    ];

    /// The word that a source begins with.
    pub const fn word(self) -> &'static str {
        match self {
            Origin::Measured => "measured",
            Origin::DataSheet => "data sheet",
            Origin::Standard => "standard",
            Origin::Published => "published",
            Origin::Derived => "derived",
            Origin::Fitted => "fitted",
            Origin::Chosen => "chosen",
            Origin::Given => "given",
        }
    }

    /// What `source` says of itself: its first word. Whatever begins otherwise comes from a
    /// description that somebody gave.
    pub fn of(source: &str) -> Origin {
        let is_first = |origin: &Origin| source.starts_with(origin.word());
        Origin::ALL.into_iter().find(is_first).unwrap_or(Origin::Given)
    }
}

/// A parameter with its value in force, its unit and where the figure comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The key under which it is set, as in `NAME,key=value`.
    pub name: String,
    /// The value in force.
    pub value: String,
    /// The unit of the value; empty for a plain number or a name.
    pub unit: &'static str,
    /// How the value was come by.
    pub origin: Origin,
    /// What it is, and the published source of the figure.
    pub source: String,
}
