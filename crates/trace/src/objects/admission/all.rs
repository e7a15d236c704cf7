//! Every missed object that fits into the memory enters.
//!
//! Use: the baseline of the other admission policies. An object that is used once takes the place
//! of objects that would be used again.

use super::{AdmissionPolicy, ObjectReference};

/// No filter.
#[derive(Debug)]
pub(super) struct All;

impl AdmissionPolicy for All {
    /// Returns true for every object.
    fn admits(&mut self, _: ObjectReference, _: &mut dyn Iterator<Item = u32>) -> bool {
        true
    }
}
