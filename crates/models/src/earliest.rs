//! Earliest event among a fixed number of parts of a device, found by a tournament tree.
//!
//! Each part (a die, a member of an array) has at most one next event. The leaves of a binary tree
//! hold these times, and each inner node holds the earlier of its children. The root is therefore
//! the earliest event. A change updates one path: log₂ n comparisons, no allocation, no search. The
//! part with the lower number wins a tie, so every simulation is repeatable.

use readpath_core::unit::Time;

/// Time of a part without a next event, in ns.
const NEVER: u64 = u64::MAX;

/// Next event of each of `n` parts, and the earliest of them.
#[derive(Clone, Debug)]
pub struct EarliestEvent {
    /// Nodes of the tree: `nodes[1]` is the root, node i has the children 2i and 2i + 1. A node
    /// packs time and part number into one integer. The minimum of two nodes then needs no branch,
    /// which would often be mispredicted.
    nodes: Vec<u128>,
    /// Number of leaves: the number of parts, rounded up to a power of two.
    leaves: usize,
}

impl EarliestEvent {
    /// Creates a tree of `parts` parts without events.
    pub fn new(parts: u32) -> EarliestEvent {
        let leaves = (parts as usize).next_power_of_two();
        let mut nodes = vec![node(NEVER, 0); 2 * leaves];
        for part in 0..leaves {
            nodes[leaves + part] = node(NEVER, part as u32);
        }
        // Without events every inner node is equal to its first child, which has the lower part
        // number.
        for index in (1..leaves).rev() {
            nodes[index] = nodes[2 * index];
        }
        EarliestEvent { nodes, leaves }
    }

    /// Sets the time of the next event of part number `part`; `None` means no event.
    #[inline]
    pub fn set(&mut self, part: u32, time: Option<Time>) {
        let mut index = self.leaves + part as usize;
        let mut earliest = node(time.map_or(NEVER, Time::ns), part);
        self.nodes[index] = earliest;
        while index > 1 {
            // The sibling of a node differs in the lowest bit of its index.
            earliest = earliest.min(self.nodes[index ^ 1]);
            index >>= 1;
            self.nodes[index] = earliest;
        }
    }

    /// Returns the time of the earliest event and the number of its part; `None` without events.
    #[inline]
    pub fn first(&self) -> Option<(Time, u32)> {
        let (time_ns, part) = ((self.nodes[1] >> 32) as u64, self.nodes[1] as u32);
        (time_ns != NEVER).then_some((Time(time_ns), part))
    }
}

/// Packs time and part number into one integer that sorts by time, then by part.
const fn node(time_ns: u64, part: u32) -> u128 {
    (time_ns as u128) << 32 | part as u128
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets random parts to one of four times or to no event, so ties are frequent.
    #[test]
    fn earliest_event_matches_a_linear_search() {
        for parts in [1u32, 2, 3, 12, 64] {
            let mut earliest = EarliestEvent::new(parts);
            let mut part_times = vec![None; parts as usize];
            let mut state = 7u64;
            for _ in 0..2_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let part = (state >> 33) as u32 % parts;
                let time = (state >> 20) % 5;
                let time = (time != 0).then_some(Time(time * 100));
                part_times[part as usize] = time;
                earliest.set(part, time);
                let timed_parts =
                    (0..parts).filter_map(|part| Some((part_times[part as usize]?, part)));
                assert_eq!(earliest.first(), timed_parts.min());
            }
        }
    }
}
