//! Records in the order in which they ended.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use readpath_sim::recording::Record;

/// Holds records back while one that ended before them may still come.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    /// By the end, then by the order in which they came.
    waiting: BinaryHeap<Reverse<(u64, u64)>>,
    records: BTreeMap<u64, Record>,
    count: u64,
    /// When each fault began that may have ended at once.
    held: BTreeMap<u64, u32>,
    /// Names go before all that is held back: they name it.
    names: Vec<Record>,
}

impl Ordered {
    /// A record that names something.
    pub fn name(&mut self, record: Record) {
        self.names.push(record);
    }

    /// A record of something that ended at `end_ns`.
    pub fn put(&mut self, end_ns: u64, record: Record) {
        self.waiting.push(Reverse((end_ns, self.count)));
        self.records.insert(self.count, record);
        self.count += 1;
    }

    /// Something began that may turn out to have ended at once.
    pub fn hold(&mut self, begin_ns: u64) {
        *self.held.entry(begin_ns).or_insert(0) += 1;
    }

    /// And now that is known.
    pub fn release(&mut self, begin_ns: u64) {
        if let Some(count) = self.held.get_mut(&begin_ns) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&begin_ns);
            }
        }
    }

    /// Takes out what ended up to `now_ns`, before anything that is held.
    pub fn drain(&mut self, now_ns: u64) -> impl Iterator<Item = Record> + '_ {
        let limit = self.held.keys().next().map_or(now_ns, |held| now_ns.min(*held));
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
