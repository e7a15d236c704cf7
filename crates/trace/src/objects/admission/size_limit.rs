//! Objects smaller than a limit enter: `size:LIMIT`.
//!
//! Use: many small objects have the place of one large object, which lowers the miss ratio. The
//! byte miss ratio rises, as each large object misses at every reference.
//!
//! Source: libCacheSim's admission `size`, whose limit is exclusive as well.

use super::{AdmissionPolicy, ObjectReference};

/// Limit on the size.
#[derive(Debug)]
pub(super) struct SizeLimit {
    /// Size from which objects are rejected, in bytes.
    pub(super) bytes_end: u64,
}

impl AdmissionPolicy for SizeLimit {
    /// Returns true for an object below the limit.
    fn admits(
        &mut self,
        reference: ObjectReference,
        _leaving: &mut dyn Iterator<Item = u32>,
    ) -> bool {
        reference.bytes < self.bytes_end
    }
}
