//! Counters that many threads add to: each thread has a cache line of its own,
//! as long as there are no more threads than lines.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const LINES: usize = 8;

/// Reads and bytes that found everything.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    lines: [Line; LINES],
    /// Those that went through the machine, under its lock: reads, bytes, and
    /// bytes that were there.
    through: [AtomicU64; 3],
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    reads: AtomicU64,
    bytes: AtomicU64,
}

thread_local! {
    static LINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl Tally {
    /// Counts one read of so many bytes.
    #[inline]
    pub(crate) fn hit(&self, bytes: u64) {
        let line = &self.lines[line()];
        line.reads.fetch_add(1, Ordering::Relaxed);
        line.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts one read through the machine: its bytes, and those that were there.
    pub(crate) fn through(&self, bytes: u64, cached_bytes: u64) {
        for (counter, value) in self.through.iter().zip([1, bytes, cached_bytes]) {
            counter.fetch_add(value, Ordering::Relaxed);
        }
    }

    /// Reads through the machine, their bytes, and those that were there.
    pub(crate) fn through_sums(&self) -> [u64; 3] {
        self.through.each_ref().map(|counter| counter.load(Ordering::Relaxed))
    }

    /// The reads and the bytes counted so far.
    pub(crate) fn sums(&self) -> (u64, u64) {
        let sum = |of: fn(&Line) -> &AtomicU64| {
            self.lines.iter().map(|line| of(line).load(Ordering::Relaxed)).sum()
        };
        (sum(|line| &line.reads), sum(|line| &line.bytes))
    }
}

/// The line of the calling thread: threads take turns.
#[inline]
fn line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    LINE.with(|line| {
        if line.get() == usize::MAX {
            line.set(NEXT.fetch_add(1, Ordering::Relaxed) % LINES);
        }
        line.get()
    })
}
