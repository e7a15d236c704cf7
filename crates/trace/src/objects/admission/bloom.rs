//! A missed object enters if it has missed before.
//!
//! Objects with one reference never enter. They are most objects of many traces of content
//! delivery networks, so that a server writes far less to its disks.
//!
//! Source: Maggs and Sitaraman, "Algorithmic Nuggets in Content Delivery", SIGCOMM CCR 45(3), 2015
//! ("cache on second hit"). A server has a Bloom filter of recent names. Here, as in libCacheSim's
//! admission `bloomfilter`, the set is exact and nothing is forgotten.

use super::{AdmissionPolicy, ObjectReference};

/// Objects that have missed.
#[derive(Debug)]
pub(super) struct Bloom {
    /// True for each object that has missed.
    has_missed: Vec<bool>,
}

impl Bloom {
    /// Creates the empty set for this number of distinct objects.
    pub(super) fn new(objects: u32) -> Bloom {
        Bloom { has_missed: vec![false; objects as usize] }
    }
}

impl AdmissionPolicy for Bloom {
    /// Returns true if the object has missed before, and records this miss.
    fn admits(
        &mut self,
        reference: ObjectReference,
        _leaving: &mut dyn Iterator<Item = u32>,
    ) -> bool {
        std::mem::replace(&mut self.has_missed[reference.object as usize], true)
    }
}
