//! Sorts records by their end times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use readpath_trace::recording::Record;

/// Buffer for records until no earlier record can follow.
#[derive(Debug, Default)]
pub(super) struct OrderedRecords {
    /// End time and sequence number of each record.
    waiting: BinaryHeap<Reverse<(u64, u64)>>,
    /// By sequence number.
    records: BTreeMap<u64, Record>,
    /// Number of records added so far: the next sequence number.
    count: u64,
    /// Start times of open faults, with their number. A fault may have ended at its start.
    open_faults: BTreeMap<u64, u32>,
    /// Name records. They precede all records that use the names.
    names: Vec<Record>,
}

impl OrderedRecords {
    /// Adds a name record. It leaves the buffer before all other records.
    pub fn put_name(&mut self, record: Record) {
        self.names.push(record);
    }

    /// Adds a record that ended at `end_ns`.
    pub fn put(&mut self, end_ns: u64, record: Record) {
        self.waiting.push(Reverse((end_ns, self.count)));
        self.records.insert(self.count, record);
        self.count += 1;
    }

    /// Holds back the records that end after `begin_ns`: a fault that began then is open, and it
    /// may have ended at once. Each call needs one [`release`](OrderedRecords::release).
    pub fn hold(&mut self, begin_ns: u64) {
        *self.open_faults.entry(begin_ns).or_insert(0) += 1;
    }

    /// Undoes one [`hold`](OrderedRecords::hold) with the same `begin_ns`.
    pub fn release(&mut self, begin_ns: u64) {
        if let Some(count) = self.open_faults.get_mut(&begin_ns) {
            *count -= 1;
            if *count == 0 {
                self.open_faults.remove(&begin_ns);
            }
        }
    }

    /// Removes and returns the records that ended up to `now_ns` and not after the start of an open
    /// fault, in the order of their ends. All name records precede them.
    pub fn drain(&mut self, now_ns: u64) -> impl Iterator<Item = Record> + '_ {
        let limit_ns =
            self.open_faults.keys().next().map_or(now_ns, |begin_ns| now_ns.min(*begin_ns));
        let mut final_records = std::mem::take(&mut self.names);
        while let Some(&Reverse((end_ns, number))) = self.waiting.peek() {
            if end_ns > limit_ns {
                break;
            }
            self.waiting.pop();
            final_records.extend(self.records.remove(&number));
        }
        final_records.into_iter()
    }
}
