//! A missed object enters with a fixed probability: `probability:P`, or `probability:P:SEED`.
//!
//! An object with many references enters soon, and an object with one reference seldom. The
//! expected number of misses before an object enters is 1 / P.
//!
//! Use: on flash, which wears out by writes, since it needs no state.
//!
//! Source: libCacheSim's admission `prob`. Equal seeds have equal results; the default is 1.

use super::{AdmissionPolicy, Draws, ObjectReference};

/// Fixed probability.
#[derive(Debug)]
pub(super) struct Probability {
    /// Share of the missed objects that enter.
    pub(super) probability: f64,
    /// Random numbers of the decisions.
    pub(super) draws: Draws,
}

impl AdmissionPolicy for Probability {
    /// Draws the decision. Neither the object nor the ones that leave for it matter.
    fn admits(&mut self, _: ObjectReference, _: &mut dyn Iterator<Item = u32>) -> bool {
        self.draws.is_below(self.probability)
    }
}
