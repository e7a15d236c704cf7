//! A missed object enters if it was used more often than the objects that leave for it, together.
//!
//! The uses of all objects are counted, absent ones included. All counts are halved after ten
//! references per object of the cache, so that old uses lose their weight. The count of a large
//! object has to exceed the sum over all the small objects that it replaces. An object for which
//! nothing leaves enters always.
//!
//! Use: popular objects stay during scans. A new working set enters slowly.
//!
//! It needs an eviction policy whose next objects can be looked up: `fifo`, `lru` or `sieve`. The
//! objects of a rejected comparison stay at their places.
//!
//! Source: Einziger, Friedman and Manes, "TinyLFU", ACM TOS 13(4), 2017. The sum over the objects
//! that leave is the variant AV of "Lightweight Robust Size Aware Cache Management" (Einziger,
//! Eytan, Friedman and Manes, ACM TOS 18(3), 2022). The counts here are exact, not a sketch, and
//! stop at 15 as the sketch's counters do.

use super::{AdmissionPolicy, ObjectReference};

/// Largest count.
const USES_MAX: u8 = 15;

/// References per object of the cache before the counts are halved.
const REFERENCES_PER_OBJECT: u64 = 10;

/// Minimum number of objects for that limit, chosen: an almost empty cache would forget at once.
const OBJECTS_MIN: u64 = 16;

/// Counts of the uses.
#[derive(Debug)]
pub(super) struct TinyLfu {
    /// Uses of each object.
    uses: Vec<u8>,
    /// References since the counts were halved.
    references: u64,
}

impl TinyLfu {
    /// Creates counts of 0 for this number of distinct objects.
    pub(super) fn new(objects: u32) -> TinyLfu {
        TinyLfu { uses: vec![0; objects as usize], references: 0 }
    }
}

impl AdmissionPolicy for TinyLfu {
    /// Counts a use. First halves all counts if enough references were made since the last time,
    /// for the number of `objects` in the cache.
    fn record(&mut self, reference: ObjectReference, objects: u64) {
        if self.references >= REFERENCES_PER_OBJECT * objects.max(OBJECTS_MIN) {
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
            self.references = 0;
        }
        self.references += 1;
        let uses = &mut self.uses[reference.object as usize];
        *uses = USES_MAX.min(*uses + 1);
    }

    /// Returns true if the object has more uses than all objects in `leaving` together, or if none
    /// leaves.
    fn admits(
        &mut self,
        reference: ObjectReference,
        leaving: &mut dyn Iterator<Item = u32>,
    ) -> bool {
        let uses = u32::from(self.uses[reference.object as usize]);
        let mut leaving = leaving.peekable();
        if leaving.peek().is_none() {
            return true;
        }
        let mut leaving_uses = 0;
        // The rest of a long list does not matter once the sum has reached the object's count.
        leaving.all(|object| {
            leaving_uses += u32::from(self.uses[object as usize]);
            leaving_uses < uses
        })
    }
}
