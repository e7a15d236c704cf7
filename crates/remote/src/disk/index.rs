//! The known entries of a folder, in the order of the eviction policy `sieve`.
//!
//! An *entry* is the file of one block of an object's version. The *ledger* of the folder has the
//! number of bytes of all entries.

use std::collections::BTreeMap;

use readpath_core::eviction::{AccessBits, EvictionPolicy, FrameLists, PageKey, PageOrigin, Sieve};
use readpath_core::page::FrameId;

use super::entry::EntryName;

/// Largest number of entries in a folder. Each takes about 150 bytes of memory.
pub(super) const ENTRIES_MAX: usize = 1 << 20;

/// The known entries. Other processes add and remove some that are not known here: a lookup opens
/// the file in any case.
///
/// Invariant: `by_name` has the frames that are on a list of the policy, and no others.
#[derive(Debug)]
pub(super) struct Index {
    policy: Sieve,
    /// Lists of the policy, as of a page cache. A frame stands for one entry here.
    lists: FrameLists,
    /// The entry of each frame; any older one for a free frame.
    frames: Vec<Known>,
    /// Frames without an entry.
    free: Vec<FrameId>,
    by_name: BTreeMap<EntryName, FrameId>,
    /// Number of entries of each object.
    objects: BTreeMap<u64, u64>,
}

/// A known entry.
#[derive(Clone, Copy, Debug)]
struct Known {
    name: EntryName,
    /// Bytes of the entry in the ledger, as far as this process knows.
    bytes: u64,
    /// True until the first hit of an entry that was written when its pages were new.
    is_new: bool,
}

impl Index {
    /// An index without entries.
    pub(super) fn new() -> Index {
        Index {
            policy: Sieve::new(),
            // The lists grow with the entries.
            lists: FrameLists::new(0),
            frames: Vec::new(),
            free: Vec::new(),
            by_name: BTreeMap::new(),
            objects: BTreeMap::new(),
        }
    }

    /// Number of known entries.
    pub(super) fn count(&self) -> usize {
        self.by_name.len()
    }

    /// Returns true if an entry of this object is known.
    pub(super) fn has_object(&self, object: u64) -> bool {
        self.objects.contains_key(&object)
    }

    /// Adds an entry of `bytes` bytes as the newest one. `is_new` is true if its pages were not
    /// fetched before. A known entry gets this size. It keeps its place in the order of eviction,
    /// and the `is_new` that it has.
    pub(super) fn enter(&mut self, name: EntryName, bytes: u64, is_new: bool) {
        if let Some(frame) = self.by_name.get(&name) {
            self.frames[frame.0 as usize].bytes = bytes;
            return;
        }
        let known = Known { name, bytes, is_new };
        let frame = match self.free.pop() {
            Some(frame) => {
                self.frames[frame.0 as usize] = known;
                frame
            }
            None => {
                self.frames.push(known);
                FrameId(self.frames.len() as u32 - 1)
            }
        };
        self.by_name.insert(name, frame);
        *self.objects.entry(name.object).or_default() += 1;
        self.policy.enter(&mut self.lists, frame, page_key(frame), PageOrigin::Demand);
    }

    /// Records a hit of an entry of `bytes` bytes, which becomes known with this size. Returns true
    /// for the first hit of a new one.
    pub(super) fn on_hit(&mut self, name: EntryName, bytes: u64) -> bool {
        let is_new = false;
        self.enter(name, bytes, is_new);
        let frame = self.by_name[&name];
        self.policy.used(&mut self.lists, frame, page_key(frame));
        std::mem::take(&mut self.frames[frame.0 as usize].is_new)
    }

    /// Removes an entry. Returns its bytes; 0 if it is not known.
    pub(super) fn remove(&mut self, name: EntryName) -> u64 {
        let Some(&frame) = self.by_name.get(&name) else { return 0 };
        self.lists.unlink(frame);
        self.forget(frame);
        self.frames[frame.0 as usize].bytes
    }

    /// Removes the victim of the policy from the index, and returns it with its bytes. The caller
    /// removes its file. `None` without a known entry.
    pub(super) fn take_victim(&mut self) -> Option<(EntryName, u64)> {
        // The policy takes the frame off its list.
        let frame = self.policy.victim(&mut self.lists, &mut NoBits)?;
        let Known { name, bytes, .. } = self.frames[frame.0 as usize];
        self.forget(frame);
        Some((name, bytes))
    }

    /// Frees a frame that is on no list. Its content stays until the frame is used again.
    fn forget(&mut self, frame: FrameId) {
        let name = self.frames[frame.0 as usize].name;
        self.by_name.remove(&name);
        self.free.push(frame);
        if let Some(count) = self.objects.get_mut(&name.object) {
            *count -= 1;
            if *count == 0 {
                self.objects.remove(&name.object);
            }
        }
    }
}

/// Key of the entry in a frame, for the policy.
fn page_key(frame: FrameId) -> PageKey {
    PageKey::from_number(u64::from(frame.0))
}

/// Access bits of entries: every use is reported at once.
struct NoBits;

impl AccessBits for NoBits {
    fn uses(&mut self, _frame: FrameId) -> u8 {
        0
    }

    fn page(&self, frame: FrameId) -> PageKey {
        page_key(frame)
    }

    fn taken(&self) -> u32 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::VersionKey;
    use super::*;

    fn name(object: &str, block: u64) -> EntryName {
        VersionKey::new("store", object, "tag", 1 << 40).unwrap().entry(block)
    }

    /// The rule of SIEVE by hand: 0 is marked and survives; 1 leaves; then 2, at the hand.
    #[test]
    fn hit_entry_outlives_older_and_newer_ones() {
        let mut index = Index::new();
        (0..4).for_each(|block| index.enter(name("a", block), 10 + block, block == 0));
        assert!(index.on_hit(name("a", 0), 99));
        assert!(!index.on_hit(name("a", 0), 99));
        assert_eq!(index.take_victim(), Some((name("a", 1), 11)));
        assert_eq!(index.take_victim(), Some((name("a", 2), 12)));
        assert_eq!(index.count(), 2);
        // Another process may have rewritten the entry, so the last hit sets the size.
        assert_eq!(index.remove(name("a", 0)), 99);
    }

    #[test]
    fn objects_are_known_while_they_have_entries() {
        let mut index = Index::new();
        index.enter(name("a", 0), 1, false);
        index.enter(name("a", 0), 2, false);
        index.enter(name("b", 0), 3, false);
        let [a, b] = ["a", "b"].map(|object| name(object, 0).object);
        assert_eq!(index.remove(name("a", 0)), 2);
        assert_eq!(index.remove(name("a", 0)), 0);
        assert!(!index.has_object(a) && index.has_object(b));
        assert_eq!(index.take_victim(), Some((name("b", 0), 3)));
        assert_eq!(index.take_victim(), None);
        assert!(!index.has_object(b));
    }
}
