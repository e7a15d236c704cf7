//! Eviction policies for objects with sizes. The cache counts the bytes; `s3fifo` alone divides
//! them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An eviction policy: selects the object that leaves.
pub(super) trait ObjectPolicy {
    /// Announces that an absent object will enter, before others leave for it.
    fn announce(&mut self, _object: u32) {}

    /// Returns true if a new object enters before others leave for it, so that it can be the one
    /// that leaves.
    fn lets_compete(&self) -> bool {
        false
    }

    /// Records that an object has entered.
    fn enter(&mut self, object: u32, bytes: u64);

    /// Records a use of a present object.
    fn record_use(&mut self, object: u32);

    /// Removes and returns the object that leaves next; `None` without an object.
    fn take_victim(&mut self) -> Option<u32>;

    /// Returns the present objects in the order in which they would leave without further uses.
    /// Empty under a policy that cannot look it up.
    fn leaving_order(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        Box::new(std::iter::empty())
    }
}

/// First in, first out.
#[derive(Debug, Default)]
pub(super) struct Fifo {
    /// Present objects, the oldest first.
    queue: VecDeque<u32>,
}

impl ObjectPolicy for Fifo {
    /// Appends the object to the queue.
    fn enter(&mut self, object: u32, _bytes: u64) {
        self.queue.push_back(object);
    }

    /// Has no effect: the order of entry decides.
    fn record_use(&mut self, _object: u32) {}

    /// Removes and returns the oldest object.
    fn take_victim(&mut self) -> Option<u32> {
        self.queue.pop_front()
    }

    /// Returns the objects in the order of their entry.
    fn leaving_order(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        Box::new(self.queue.iter().copied())
    }
}

/// Least recently used.
#[derive(Debug, Default)]
pub(super) struct Lru {
    /// Number of the last use of each present object.
    last_uses: BTreeMap<u32, u64>,
    /// Present objects by the number of their last use.
    by_use: BTreeMap<u64, u32>,
    /// Number of uses so far, entries included.
    uses: u64,
}

impl ObjectPolicy for Lru {
    /// Counts the entry as a use.
    fn enter(&mut self, object: u32, _bytes: u64) {
        self.record_use(object);
    }

    /// Makes the object the most recently used one.
    fn record_use(&mut self, object: u32) {
        self.uses += 1;
        if let Some(before) = self.last_uses.insert(object, self.uses) {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.uses, object);
    }

    /// Removes and returns the least recently used object.
    fn take_victim(&mut self) -> Option<u32> {
        let (_, object) = self.by_use.pop_first()?;
        self.last_uses.remove(&object);
        Some(object)
    }

    /// Returns the objects in the order of their last use.
    fn leaving_order(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        Box::new(self.by_use.values().copied())
    }
}

/// SIEVE (Zhang and others, NSDI 2024): a hand passes the objects from the oldest to the newest,
/// clears marks, and evicts the first object without one.
#[derive(Debug, Default)]
pub(super) struct Sieve {
    /// Present objects by the order of their entry, with their marks: true after a use since the
    /// hand last passed.
    queue: BTreeMap<u64, (u32, bool)>,
    /// Entry numbers of the present objects.
    entries: BTreeMap<u32, u64>,
    /// Number of objects that have entered so far.
    entered: u64,
    /// Entry number from which the hand goes on.
    hand: u64,
}

impl ObjectPolicy for Sieve {
    /// Appends the object without a mark.
    fn enter(&mut self, object: u32, _bytes: u64) {
        self.entered += 1;
        let is_marked = false;
        self.queue.insert(self.entered, (object, is_marked));
        self.entries.insert(object, self.entered);
    }

    /// Marks the object.
    fn record_use(&mut self, object: u32) {
        let entry = self.entries[&object];
        self.queue.entry(entry).and_modify(|(_, is_marked)| *is_marked = true);
    }

    /// Moves the hand to the first object without a mark, and removes it. Clears the marks on the
    /// way.
    fn take_victim(&mut self) -> Option<u32> {
        loop {
            // After the newest object the hand is at the oldest again.
            let next = self.queue.range_mut(self.hand..).next();
            let Some((&entry, (object, is_marked))) = next else {
                self.queue.first_key_value()?;
                self.hand = 0;
                continue;
            };
            self.hand = entry + 1;
            if !std::mem::take(is_marked) {
                let object = *object;
                self.queue.remove(&entry);
                self.entries.remove(&object);
                // The hand goes on at the next newer object, or at the oldest one (0) if the victim
                // was the newest. Objects that enter later are then not next.
                self.hand = self.queue.range(entry..).next().map_or(0, |(&next, _)| next);
                return Some(object);
            }
        }
    }

    /// The hand first meets the objects without a mark, from its place on and then from the oldest.
    /// By then it has cleared all marks, and the others follow in the same order.
    fn leaving_order(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        let round = |is_marked: bool| {
            let from_hand = self.queue.range(self.hand..).chain(self.queue.range(..self.hand));
            from_hand.filter(move |(_, entry)| entry.1 == is_marked).map(|(_, entry)| entry.0)
        };
        let is_marked = true;
        Box::new(round(!is_marked).chain(round(is_marked)))
    }
}

/// Largest number of uses that `s3fifo` counts for an object.
const S3FIFO_USES_MAX: u8 = 3;

/// Uses by which an object moves from the small queue to the main one.
const S3FIFO_USES_TO_MOVE: u8 = 2;

/// S3-FIFO (Yang and others, SOSP 2023): objects that are not used again leave from a small queue,
/// with a tenth of the bytes. An object that returns from there soon enters the main queue. Before
/// the first eviction, an object that finds the small queue full enters the main one: the small
/// queue would otherwise fill the whole cache.
#[derive(Debug)]
pub(super) struct S3Fifo {
    /// The small queue, the oldest object first.
    small: VecDeque<u32>,
    /// The main queue, the next object to examine first.
    main: VecDeque<u32>,
    /// Objects that have left the small queue, by the order in which they left.
    ghosts: BTreeMap<u64, u32>,
    /// Size and uses of each present object.
    present: BTreeMap<u32, (u64, u8)>,
    /// Place in the order, and size, of each object among the ghosts.
    ghost_places: BTreeMap<u32, (u64, u64)>,
    /// Number of objects that have left the small queue.
    left: u64,
    /// Bytes of the objects in the small queue.
    small_bytes: u64,
    /// Bytes of the objects in the main queue.
    main_bytes: u64,
    /// Bytes that the objects among the ghosts had.
    all_ghost_bytes: u64,
    /// Bytes of a full small queue.
    small_bytes_max: u64,
    /// Bytes above which the main queue is evicted from first, and maximum bytes of the ghosts.
    main_bytes_max: u64,
    /// True after the first eviction.
    has_evicted: bool,
    /// True if the announced object was among the ghosts. The entry that follows reads it: in
    /// between, evictions can make the policy forget ghosts.
    was_ghost: bool,
}

impl S3Fifo {
    /// Creates the policy for a cache of `cache_bytes`.
    pub(super) fn new(cache_bytes: u64) -> S3Fifo {
        S3Fifo {
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: BTreeMap::new(),
            present: BTreeMap::new(),
            ghost_places: BTreeMap::new(),
            left: 0,
            small_bytes: 0,
            main_bytes: 0,
            all_ghost_bytes: 0,
            small_bytes_max: cache_bytes / 10,
            main_bytes_max: cache_bytes - cache_bytes / 10,
            has_evicted: false,
            was_ghost: false,
        }
    }

    /// Remembers an object that has left the small queue as a ghost. The oldest ghosts are
    /// forgotten until the others have at most `main_bytes_max` bytes.
    fn remember(&mut self, object: u32, bytes: u64) {
        self.left += 1;
        self.ghosts.insert(self.left, object);
        self.ghost_places.insert(object, (self.left, bytes));
        self.all_ghost_bytes += bytes;
        while self.all_ghost_bytes > self.main_bytes_max {
            let Some((_, &oldest)) = self.ghosts.first_key_value() else { return };
            self.forget(oldest);
        }
    }

    /// Removes an object from the ghosts. Returns false if it is not among them.
    fn forget(&mut self, object: u32) -> bool {
        let Some((place, bytes)) = self.ghost_places.remove(&object) else { return false };
        self.ghosts.remove(&place);
        self.all_ghost_bytes -= bytes;
        true
    }

    /// Takes the victim from the small queue; used objects move to the main one. `None` if all do.
    fn take_from_small(&mut self) -> Option<u32> {
        while let Some(object) = self.small.pop_front() {
            let (bytes, uses) = self.present[&object];
            self.small_bytes -= bytes;
            if uses < S3FIFO_USES_TO_MOVE {
                self.present.remove(&object);
                self.remember(object, bytes);
                return Some(object);
            }
            self.present.insert(object, (bytes, 0));
            self.main.push_back(object);
            self.main_bytes += bytes;
        }
        None
    }

    /// Takes the victim from the main queue; used objects return to its end with a use less. `None`
    /// if the queue is empty.
    fn take_from_main(&mut self) -> Option<u32> {
        while let Some(object) = self.main.pop_front() {
            let (bytes, uses) = self.present[&object];
            if uses == 0 {
                self.main_bytes -= bytes;
                self.present.remove(&object);
                return Some(object);
            }
            self.present.insert(object, (bytes, uses - 1));
            self.main.push_back(object);
        }
        None
    }
}

impl ObjectPolicy for S3Fifo {
    /// Removes the object from the ghosts, if it is among them, and records this for its entry.
    fn announce(&mut self, object: u32) {
        self.was_ghost = self.forget(object);
    }

    /// Appends the object to the main queue if it was among the ghosts, or if no object was evicted
    /// yet and the small queue is full. Otherwise appends it to the small queue.
    fn enter(&mut self, object: u32, bytes: u64) {
        self.present.insert(object, (bytes, 0));
        let is_filling = !self.has_evicted && self.small_bytes >= self.small_bytes_max;
        if self.was_ghost || is_filling {
            self.main.push_back(object);
            self.main_bytes += bytes;
        } else {
            self.small.push_back(object);
            self.small_bytes += bytes;
        }
    }

    /// Counts a use, up to the maximum.
    fn record_use(&mut self, object: u32) {
        self.present.entry(object).and_modify(|(_, uses)| *uses = (*uses + 1).min(S3FIFO_USES_MAX));
    }

    /// Evicts from the main queue if it is too large or the small one is empty. Otherwise evicts
    /// from the small queue, and from the main one if all objects moved there.
    fn take_victim(&mut self) -> Option<u32> {
        self.has_evicted = true;
        if self.main_bytes > self.main_bytes_max || self.small.is_empty() {
            return self.take_from_main();
        }
        self.take_from_small().or_else(|| self.take_from_main())
    }
}

/// Greedy-Dual-Size-Frequency (Cherkasova, HPL-98-69R1, 1998): the object with the lowest priority
/// leaves, and the new one can be that object. The priority is a clock plus uses / bytes. The clock
/// is the last victim's priority, so that objects without recent uses fall behind new ones.
#[derive(Debug, Default)]
pub(super) struct Gdsf {
    /// Present objects by priority; of equal ones the earlier comes first. An entry is the
    /// priority, the number of its last change, and the object.
    order: BTreeSet<(u128, u64, u32)>,
    /// Position in the order, bytes and uses of each present object.
    present: BTreeMap<u32, GdsfObject>,
    /// Priority of the last victim.
    clock: u128,
    /// Number of changes of priorities so far, which orders equal ones.
    updates: u64,
}

/// A present object of [`Gdsf`].
#[derive(Clone, Copy, Debug)]
struct GdsfObject {
    /// Priority, with `PRIORITY_FRACTION_BITS` binary digits after the point.
    priority: u128,
    /// Number of the last change of the priority.
    update: u64,
    /// Size of the object.
    bytes: u64,
    /// Uses since the entry, which counts as one.
    uses: u64,
}

/// Binary digits after the point of a priority. With 64 of them, the quotients of sizes of
/// gigabytes still differ.
const PRIORITY_FRACTION_BITS: u32 = 64;

impl Gdsf {
    /// Puts an absent object of at least 1 byte into the order, by its uses.
    fn insert(&mut self, object: u32, bytes: u64, uses: u64) {
        self.updates += 1;
        let priority =
            self.clock + (u128::from(uses) << PRIORITY_FRACTION_BITS) / u128::from(bytes);
        self.order.insert((priority, self.updates, object));
        self.present.insert(object, GdsfObject { priority, update: self.updates, bytes, uses });
    }
}

impl ObjectPolicy for Gdsf {
    /// Returns true: a new object can have the lowest priority.
    fn lets_compete(&self) -> bool {
        true
    }

    /// Puts the object into the order with one use.
    fn enter(&mut self, object: u32, bytes: u64) {
        let uses = 1;
        self.insert(object, bytes, uses);
    }

    /// Moves the object in the order, with one more use and the present clock.
    fn record_use(&mut self, object: u32) {
        let GdsfObject { priority, update, bytes, uses } = self.present[&object];
        self.order.remove(&(priority, update, object));
        self.insert(object, bytes, uses + 1);
    }

    /// Removes and returns the object with the lowest priority, and sets the clock to it.
    fn take_victim(&mut self) -> Option<u32> {
        let (priority, _, object) = self.order.pop_first()?;
        self.clock = priority;
        self.present.remove(&object);
        Some(object)
    }
}
