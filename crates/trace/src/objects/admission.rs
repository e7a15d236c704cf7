//! Admission policies for objects with sizes: select the missed objects that enter the cache.
//!
//! A rejected object passes by: its reference misses, and nothing leaves for it.

use std::fmt;

use readpath_core::policy::Policy;
use readpath_core::size;
use readpath_core::splitmix;

use super::{OBJECT_POLICIES, ObjectReference};

mod adaptsize;
mod all;
mod bloom;
mod probability;
mod size_limit;
mod size_probability;
mod tinylfu;

use adaptsize::AdaptSize;
use all::All;
use bloom::Bloom;
use probability::Probability;
use size_limit::SizeLimit;
use size_probability::SizeProbability;
use tinylfu::TinyLfu;

/// The admission policies with their manual pages.
pub const ADMISSION_POLICIES: &[Policy] = &[
    Policy::new("all", "every object enters (the default)", include_str!("admission/all.rs")),
    Policy::new(
        "size",
        "objects smaller than a limit enter: size:LIMIT",
        include_str!("admission/size_limit.rs"),
    ),
    Policy::new(
        "probability",
        "objects enter at random: probability:P[:SEED]",
        include_str!("admission/probability.rs"),
    ),
    Policy::new(
        "size-probability",
        "small objects enter more often: size-probability:BYTES[:SEED]",
        include_str!("admission/size_probability.rs"),
    ),
    Policy::new(
        "bloom",
        "objects enter at their second reference",
        include_str!("admission/bloom.rs"),
    ),
    Policy::new(
        "adaptsize",
        "size-probability with a tuned size: adaptsize[:INTERVAL[:SEED]]",
        include_str!("admission/adaptsize.rs"),
    ),
    Policy::new(
        "tinylfu",
        "objects used more often than those that leave for them enter",
        include_str!("admission/tinylfu.rs"),
    ),
];

/// Seed of the random choices without one in the text.
const DEFAULT_SEED: u64 = 1;

/// Decides for each missed object that fits into the cache whether it enters.
pub(super) trait AdmissionPolicy {
    /// Records a reference, hit or miss, before the decision about it. `objects` is the number of
    /// objects in the cache.
    fn record(&mut self, _reference: ObjectReference, _objects: u64) {}

    /// Returns true if the object enters. `leaving` are the objects that leave for it, the first
    /// one first. It is empty if nothing has to leave, and under an eviction policy that cannot
    /// look up its order.
    fn admits(
        &mut self,
        reference: ObjectReference,
        leaving: &mut dyn Iterator<Item = u32>,
    ) -> bool;
}

/// An admission policy with its parameters, as `NAME[:VALUE…]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Admission {
    /// Name and parameters of the policy.
    rule: Rule,
}

/// Rule of an [`Admission`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// Every object enters.
    All,
    /// Size from which objects are rejected, in bytes.
    Size(u64),
    /// Each object enters with the same probability.
    Probability {
        /// Above 0, up to 1.
        probability: f64,
        /// Seed of the draws.
        seed: u64,
    },
    /// An object of size s enters with the probability exp(-s / `bytes`).
    SizeProbability {
        /// Size that enters with 37 %, at least 1.
        bytes: u64,
        /// Seed of the draws.
        seed: u64,
    },
    /// An object enters at its second miss.
    Bloom,
    /// As `SizeProbability`, with a size that follows the trace.
    AdaptSize {
        /// References between two changes of the size, at least 1.
        interval: u64,
        /// Seed of the draws.
        seed: u64,
    },
    /// An object enters if it has more uses than the objects that leave for it.
    TinyLfu,
}

impl Admission {
    /// Every object enters.
    pub const ALL: Admission = Admission { rule: Rule::All };

    /// Parses `NAME` with its values, as in `size:64KiB`.
    ///
    /// # Errors
    /// The name is unknown, or a value is missing, superfluous, malformed or out of range.
    pub fn parse(text: &str) -> Result<Admission, AdmissionError> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let values: Vec<&str> = parts.collect();
        let rule = match name {
            "all" => values.is_empty().then_some(Rule::All),
            // libCacheSim names it `bloomfilter`.
            "bloom" | "bloomfilter" => values.is_empty().then_some(Rule::Bloom),
            "tinylfu" => values.is_empty().then_some(Rule::TinyLfu),
            "size" => size_rule(&values),
            "probability" => probability_rule(&values),
            "size-probability" => size_probability_rule(&values),
            "adaptsize" => adaptsize_rule(&values),
            _ => return Err(AdmissionError::UnknownName),
        };
        let expected = expected_form(name);
        rule.map(|rule| Admission { rule }).ok_or(AdmissionError::BadValues { expected })
    }

    /// Returns true if this admission policy works with this eviction policy of
    /// [`OBJECT_POLICIES`].
    pub fn works_with(&self, eviction: &str) -> bool {
        self.rule != Rule::TinyLfu || TINYLFU_EVICTION.contains(&eviction)
    }

    /// Builds the policy for a trace of `objects` distinct objects and a cache of `cache_bytes`.
    pub(super) fn build(&self, objects: u32, cache_bytes: u64) -> Box<dyn AdmissionPolicy> {
        match self.rule {
            Rule::All => Box::new(All),
            Rule::Size(bytes_end) => Box::new(SizeLimit { bytes_end }),
            Rule::Probability { probability, seed } => {
                Box::new(Probability { probability, draws: Draws(seed) })
            }
            Rule::SizeProbability { bytes, seed } => {
                Box::new(SizeProbability { scale_bytes: bytes as f64, draws: Draws(seed) })
            }
            Rule::Bloom => Box::new(Bloom::new(objects)),
            Rule::AdaptSize { interval, seed } => {
                Box::new(AdaptSize::new(objects, cache_bytes, interval, Draws(seed)))
            }
            Rule::TinyLfu => Box::new(TinyLfu::new(objects)),
        }
    }
}

/// Eviction policies whose next objects can be looked up, as `tinylfu` needs them: FIFO, LRU and
/// SIEVE.
pub const TINYLFU_EVICTION: [&str; 3] =
    [OBJECT_POLICIES[0], OBJECT_POLICIES[1], OBJECT_POLICIES[2]];

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values that equal the default are left out.
        let with_seed = |f: &mut fmt::Formatter<'_>, seed: u64| match seed {
            DEFAULT_SEED => Ok(()),
            seed => write!(f, ":{seed}"),
        };
        match self.rule {
            Rule::All => f.write_str("all"),
            Rule::Size(bytes) => write!(f, "size:{bytes}"),
            Rule::Probability { probability, seed } => {
                write!(f, "probability:{probability}")?;
                with_seed(f, seed)
            }
            Rule::SizeProbability { bytes, seed } => {
                write!(f, "size-probability:{bytes}")?;
                with_seed(f, seed)
            }
            Rule::Bloom => f.write_str("bloom"),
            Rule::AdaptSize { interval, seed } => {
                f.write_str("adaptsize")?;
                match (interval, seed) {
                    (adaptsize::INTERVAL, DEFAULT_SEED) => Ok(()),
                    (interval, seed) => {
                        write!(f, ":{interval}")?;
                        with_seed(f, seed)
                    }
                }
            }
            Rule::TinyLfu => f.write_str("tinylfu"),
        }
    }
}

/// Error in the text of an [`Admission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionError {
    /// No admission policy has the name.
    UnknownName,
    /// The values after the name do not have the expected form.
    BadValues {
        /// The expected form.
        expected: &'static str,
    },
}

impl std::error::Error for AdmissionError {}

impl fmt::Display for AdmissionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdmissionError::UnknownName => {
                let names: Vec<&str> =
                    ADMISSION_POLICIES.iter().map(|policy| policy.name).collect();
                write!(f, "there is no such admission policy; there are: {}", names.join(", "))
            }
            AdmissionError::BadValues { expected } => write!(f, "expected {expected}"),
        }
    }
}

/// Expected form of a policy's text, for messages.
fn expected_form(name: &str) -> &'static str {
    match name {
        "size" => "size:LIMIT, with a limit of 1 byte or more, as in size:64KiB",
        "probability" => {
            "probability:P or probability:P:SEED, with P above 0 and up to 1, as in probability:0.1"
        }
        "size-probability" => {
            "size-probability:BYTES or size-probability:BYTES:SEED, with 1 byte or more, as in \
             size-probability:64KiB"
        }
        "adaptsize" => {
            "adaptsize, adaptsize:INTERVAL or adaptsize:INTERVAL:SEED, with an interval of 1 \
             reference or more, as in adaptsize:100000"
        }
        _ => "the name alone, without values",
    }
}

/// Parses a positive number of bytes. Returns `None` for 0 and for another form.
fn parse_bytes(text: &str) -> Option<u64> {
    size::parse(text).filter(|&bytes| bytes > 0)
}

/// Parses the optional seed after the other values. Returns [`DEFAULT_SEED`] without one. Returns
/// `None` if it is malformed or more values follow.
fn parse_seed(values: &[&str]) -> Option<u64> {
    match values {
        [] => Some(DEFAULT_SEED),
        [seed] => seed.parse().ok(),
        _ => None,
    }
}

/// Parses the values of `size`: the limit. Returns `None` if they do not have this form.
fn size_rule(values: &[&str]) -> Option<Rule> {
    let [limit] = values else { return None };
    parse_bytes(limit).map(Rule::Size)
}

/// Parses the values of `probability`: a number above 0 and up to 1, and an optional seed. Returns
/// `None` if they do not have this form.
fn probability_rule(values: &[&str]) -> Option<Rule> {
    let (probability, seed) = values.split_first()?;
    let probability: f64 = probability.parse().ok()?;
    let seed = parse_seed(seed)?;
    (probability > 0.0 && probability <= 1.0).then_some(Rule::Probability { probability, seed })
}

/// Parses the values of `size-probability`: a number of bytes, and an optional seed. Returns `None`
/// if they do not have this form.
fn size_probability_rule(values: &[&str]) -> Option<Rule> {
    let (bytes, seed) = values.split_first()?;
    Some(Rule::SizeProbability { bytes: parse_bytes(bytes)?, seed: parse_seed(seed)? })
}

/// Parses the values of `adaptsize`: an optional interval in references, and then an optional seed.
/// Returns `None` if they do not have this form.
fn adaptsize_rule(values: &[&str]) -> Option<Rule> {
    let Some((interval, seed)) = values.split_first() else {
        return Some(Rule::AdaptSize { interval: adaptsize::INTERVAL, seed: DEFAULT_SEED });
    };
    let interval: u64 = interval.parse().ok()?;
    let seed = parse_seed(seed)?;
    (interval > 0).then_some(Rule::AdaptSize { interval, seed })
}

/// Pseudorandom draws: the state of SplitMix64.
#[derive(Clone, Copy, Debug)]
struct Draws(u64);

impl Draws {
    /// Returns true with this probability.
    fn is_below(&mut self, probability: f64) -> bool {
        // The upper 53 bits, the precision of the fraction.
        let fraction = (splitmix::next(&mut self.0) >> 11) as f64 / (1_u64 << 53) as f64;
        fraction < probability
    }
}

#[cfg(test)]
mod tests;
