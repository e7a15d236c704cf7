//! Bytes read, counted by many threads: each adds to a cache line of its own, as
//! long as there are no more threads than lines.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const LINES: usize = 8;

/// What one handle has read.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    hit_bytes: [Line; LINES],
    /// What went through the machine, under its lock: bytes, and those that were there.
    through_bytes: [AtomicU64; 2],
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

thread_local! {
    static LINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl Tally {
    /// Counts a read that found all its bytes, and went past the machine.
    #[inline]
    pub(crate) fn hit(&self, bytes: u64) {
        self.hit_bytes[line()].0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts one read through the machine: its bytes, and those that were there.
    pub(crate) fn through(&self, bytes: u64, cached_bytes: u64) {
        for (counter, value) in self.through_bytes.iter().zip([bytes, cached_bytes]) {
            counter.fetch_add(value, Ordering::Relaxed);
        }
    }

    /// The bytes of reads past the machine.
    pub(crate) fn hit_bytes(&self) -> u64 {
        self.hit_bytes.iter().map(|line| line.0.load(Ordering::Relaxed)).sum()
    }

    /// The bytes of reads through the machine, and those that were there.
    pub(crate) fn through_sums(&self) -> [u64; 2] {
        self.through_bytes.each_ref().map(|counter| counter.load(Ordering::Relaxed))
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
