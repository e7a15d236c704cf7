//! What threads read past the machine: how many bytes, and where the last read
//! ended, which the law is told. Each thread writes to a cache line of its own, as
//! long as there are no more threads than lines: two that read the same file write
//! to no line together, unless they read the same page.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const LINES: usize = 8;

/// What one handle has read.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    lines: [Line; LINES],
    /// What went through the machine, under its lock: bytes, and those that were there.
    through_bytes: [AtomicU64; 2],
}

#[derive(Debug)]
#[repr(align(64))]
struct Line {
    hit_bytes: AtomicU64,
    /// Where the last read ended; [`NOT_PASSED`] once it was told.
    passed_end: AtomicU64,
}

const NOT_PASSED: u64 = u64::MAX;

impl Default for Line {
    fn default() -> Line {
        Line { hit_bytes: AtomicU64::new(0), passed_end: AtomicU64::new(NOT_PASSED) }
    }
}

thread_local! {
    static LINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl Tally {
    /// Counts a read that found all its bytes, up to byte `end`, and went past the machine.
    #[inline]
    pub(crate) fn hit(&self, bytes: u64, end: u64) {
        let line = &self.lines[line()];
        line.hit_bytes.fetch_add(bytes, Ordering::Relaxed);
        line.passed_end.store(end, Ordering::Relaxed);
    }

    /// Tells where the last reads past the machine ended, one of each line, each
    /// once: that of the calling thread last, since only its own reads have an
    /// order with what it does next.
    pub(crate) fn take_passed(&self, mut passed: impl FnMut(u64)) {
        let own = line();
        for at in (own + 1..own + LINES).chain([own]) {
            let end = &self.lines[at % LINES].passed_end;
            // Looked at first: a line that says nothing is not taken from its thread.
            if end.load(Ordering::Relaxed) != NOT_PASSED {
                let end = end.swap(NOT_PASSED, Ordering::Relaxed);
                (end != NOT_PASSED).then(|| passed(end));
            }
        }
    }

    /// Counts one read through the machine: its bytes, and those that were there.
    pub(crate) fn through(&self, bytes: u64, cached_bytes: u64) {
        for (counter, value) in self.through_bytes.iter().zip([bytes, cached_bytes]) {
            counter.fetch_add(value, Ordering::Relaxed);
        }
    }

    /// The bytes of reads past the machine.
    pub(crate) fn hit_bytes(&self) -> u64 {
        self.lines.iter().map(|line| line.hit_bytes.load(Ordering::Relaxed)).sum()
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
