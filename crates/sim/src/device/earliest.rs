//! The earliest of a fixed number of clocks, as a tournament.
//!
//! Each part of a device (a die, a member of an array) has at most one next
//! event. The leaves of a binary tree hold those times, each node the earlier
//! of its children, so the root is the earliest of all. A change replays one
//! path: log₂ n comparisons, no allocation, no search. Equal times go to the
//! part with the lower number, so that a run is the same each time.

use readpath_core::unit::Time;

const NEVER: u64 = u64::MAX;

/// The next event of each of `n` parts, and the earliest of them.
#[derive(Clone, Debug)]
pub struct Earliest {
    /// `nodes[1]` is the root, node i has children 2i and 2i + 1; time, then part.
    nodes: Vec<(u64, u32)>,
    leaves: usize,
}

impl Earliest {
    /// `parts` parts, none of which expects anything.
    pub fn new(parts: u32) -> Earliest {
        let leaves = (parts as usize).next_power_of_two();
        let mut nodes = vec![(NEVER, 0); 2 * leaves];
        for part in 0..leaves {
            nodes[leaves + part].1 = part as u32;
        }
        for node in (1..leaves).rev() {
            nodes[node] = nodes[2 * node];
        }
        Earliest { nodes, leaves }
    }

    /// The part's next event is at `at`, or there is none.
    #[inline]
    pub fn set(&mut self, part: u32, at: Option<Time>) {
        let mut node = self.leaves + part as usize;
        let mut winner = (at.map_or(NEVER, Time::ns), part);
        self.nodes[node] = winner;
        while node > 1 {
            let rival = self.nodes[node ^ 1];
            if rival < winner {
                winner = rival;
            }
            node >>= 1;
            self.nodes[node] = winner;
        }
    }

    /// When and in which part something happens first.
    #[inline]
    pub fn first(&self) -> Option<(Time, u32)> {
        let (at, part) = self.nodes[1];
        (at != NEVER).then_some((Time(at), part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_many_changing_clocks_is_what_a_plain_search_finds() {
        for parts in [1u32, 2, 3, 12, 64] {
            let mut earliest = Earliest::new(parts);
            let mut plain = vec![None; parts as usize];
            let mut state = 7u64;
            for _ in 0..2_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let part = (state >> 33) as u32 % parts;
                let at = (state >> 20) % 5;
                let at = (at != 0).then_some(Time(at * 100));
                plain[part as usize] = at;
                earliest.set(part, at);
                let found =
                    (0..parts).filter_map(|part| plain[part as usize].map(|at| (at, part))).min();
                assert_eq!(earliest.first(), found);
            }
        }
    }
}
