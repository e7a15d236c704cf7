//! One parameter of a modelled device, as `readpath devices NAME` prints it.

/// A parameter with its value in force, its unit and where the figure comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The key under which it is set, as in `NAME,key=value`.
    pub name: String,
    /// The value in force.
    pub value: String,
    /// The unit of the value; empty for a plain number or a name.
    pub unit: &'static str,
    /// What it is, and the published source of the figure.
    pub source: String,
}
