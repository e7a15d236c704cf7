//! A missed object of size s enters with the probability exp(-s / c): `size-probability:C`, in
//! bytes, or `size-probability:C:SEED`.
//!
//! An object of c bytes enters with a probability of 37 %, one of 3 c bytes with 5 %. A large
//! object with many references still enters, unlike under `size`.
//!
//! Source: libCacheSim's admission `sizeProbabilistic`, whose `exponent` is 1 / c. The rule is the
//! one of AdaptSize with a constant c (Berger, Sitaraman and Harchol-Balter, NSDI 2017).

use super::{AdmissionPolicy, Draws, ObjectReference};

/// Probability that falls with the size.
#[derive(Debug)]
pub(super) struct SizeProbability {
    /// The parameter c.
    pub(super) scale_bytes: f64,
    /// Random numbers of the decisions.
    pub(super) draws: Draws,
}

impl AdmissionPolicy for SizeProbability {
    /// Draws the decision by the size of the object.
    fn admits(
        &mut self,
        reference: ObjectReference,
        _leaving: &mut dyn Iterator<Item = u32>,
    ) -> bool {
        self.draws.is_below((-(reference.bytes as f64) / self.scale_bytes).exp())
    }
}
