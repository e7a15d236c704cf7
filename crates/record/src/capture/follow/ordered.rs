//! Sorts records by their end times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use readpath_trace::recording::Record;

/// Buffer for records until no earlier record can follow.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    /// End time and sequence number of each record.
    waiting: BinaryHeap<Reverse<(u64, u64)>>,
    records: BTreeMap<u64, Record>,
    count: u64,
    /// Start times of open faults, with their number. A fault may have ended at its start.
    open_faults: BTreeMap<u64, u32>,
    /// Name records. They precede all records that use the names.
    names: Vec<Record>,
}

impl Ordered {
    /// Adds a name record.
    pub fn name(&mut self, record: Record) {
        self.names.push(record);
    }

    /// Adds a record that ended at `end_ns`.
    pub fn put(&mut self, end_ns: u64, record: Record) {
        self.waiting.push(Reverse((end_ns, self.count)));
        self.records.insert(self.count, record);
        self.count += 1;
    }

    /// Holds back later records, because an event from `begin_ns` may have ended at once.
    pub fn hold(&mut self, begin_ns: u64) {
        *self.open_faults.entry(begin_ns).or_insert(0) += 1;
    }

    /// Ends one hold from `begin_ns`.
    pub fn release(&mut self, begin_ns: u64) {
        if let Some(count) = self.open_faults.get_mut(&begin_ns) {
            *count -= 1;
            if *count == 0 {
                self.open_faults.remove(&begin_ns);
            }
        }
    }

    /// Removes the records that ended up to `now_ns` and before any hold.
    pub fn drain(&mut self, now_ns: u64) -> impl Iterator<Item = Record> + '_ {
        let limit = self.open_faults.keys().next().map_or(now_ns, |held| now_ns.min(*held));
        let mut out = std::mem::take(&mut self.names);
        while let Some(&Reverse((end_ns, number))) = self.waiting.peek() {
            if end_ns > limit {
                break;
            }
            self.waiting.pop();
            out.extend(self.records.remove(&number));
        }
        out.into_iter()
    }
}
