//! Reader of the rings that the preloaded library writes.
//!
//! A *cell* of a ring has space for one report. A *ticket* is the number of a write, which a writer
//! draws. The *turn* of a cell is the ticket that may write it, or that ticket + 1 once it is
//! written.

use std::sync::atomic::Ordering;

use super::super::now_ns;
use super::layout::{Cells, RecordRing};

/// Time in nanoseconds, chosen, after which a reserved and unwritten cell counts as lost: its
/// writer must have been killed.
const STUCK_TIMEOUT_NS: u64 = 1_000_000_000;

/// Reader of a ring's cells, in the order of their tickets.
#[derive(Debug)]
pub(super) struct RingReader {
    /// The ring.
    cells: Cells,
    /// Number of the next write to read.
    ticket: u64,
    /// Time since which the next cell is reserved and unwritten.
    stuck_since_ns: Option<u64>,
}

impl RingReader {
    /// Reads a ring from its first ticket on.
    pub fn new(cells: Cells) -> RingReader {
        RingReader { cells, ticket: 0, stuck_since_ns: None }
    }

    /// Returns the ticket of the next cell if it is written, or `None`. A killed writer's cell
    /// counts as lost and is skipped. The ticket stays the next one until its cell is released.
    pub fn next_ticket(&mut self, ring: RecordRing) -> Option<u64> {
        loop {
            let ticket = self.ticket;
            if ring.turn(self.cells, ticket).load(Ordering::Acquire) == ticket + 1 {
                return Some(ticket);
            }
            if !self.is_stuck(ring) {
                return None;
            }
            ring.head().lost.fetch_add(1, Ordering::Relaxed);
            self.release_cell(ring, ticket);
        }
    }

    /// Returns a cell to the writers, for the ticket one round of the ring later. The cell behind
    /// it is then the next one.
    pub fn release_cell(&mut self, ring: RecordRing, ticket: u64) {
        ring.turn(self.cells, ticket).store(ticket + self.cells.count(), Ordering::Release);
        (self.ticket, self.stuck_since_ns) = (ticket + 1, None);
    }

    /// Returns true if the writer of the next ticket was killed: the ticket was drawn more than
    /// `STUCK_TIMEOUT_NS` ago, and the cell is not written yet. The time counts from the first call
    /// that finds it so.
    fn is_stuck(&mut self, ring: RecordRing) -> bool {
        let next_drawn = ring.head().tickets[self.cells as usize].load(Ordering::Relaxed);
        if next_drawn <= self.ticket {
            self.stuck_since_ns = None;
            return false;
        }
        let now_ns = now_ns();
        now_ns - *self.stuck_since_ns.get_or_insert(now_ns) > STUCK_TIMEOUT_NS
    }
}
