//! What threads read past the machine: how many bytes, and where the last read
//! ended, which the law is told. Copies write to the line of their slot, which is
//! theirs alone: two threads that read the same file write to no line together. Most files
//! are read by one thread, and many by none, so a line is made when somebody first writes to it.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use readpath_core::unit::PAGE_BYTES;

use crate::kernel_pages::residency_sampling::ResidencySampling;
use crate::process::ForkLocal;

/// What one handle has read.
pub(crate) struct ReadCounters {
    /// One for each copy that may be under way; a power of two.
    lines: Box<[ForkLocal<PaddedCounters>]>,
    /// What went through the machine, under its lock: bytes, and those that were there.
    through_bytes: [AtomicU64; 2],
}

/// Its last bytes, as many as a line of the processor's cache has, keep it apart from the one that the allocator may put behind it.
/// (To have it aligned to such a line is slow: of what glibc keeps at hand for a thread nothing is.)
#[repr(C)]
struct PaddedCounters {
    /// Bytes copied, by those who have the slot, one after the other.
    copied_bytes: AtomicU64,
    /// Bytes held, by anybody.
    held_bytes: AtomicU64,
    /// Bytes read through the kernel's cache, by anybody, and those of them that were waited for.
    kernel_bytes: AtomicU64,
    kernel_demand_bytes: AtomicU64,
    /// Where the last read ended; [`NOT_PASSED`] once it was told.
    passed_end: AtomicU64,
    /// Where the run began that the last read through the kernel's cache belongs to.
    run_from: AtomicU64,
    /// The page in which the last read ended, through the machine or not; [`UNUSED_TAG`] before the first.
    last_page: AtomicU64,
    /// Where the last read through the kernel's cache ended that its law was shown; [`NOT_PASSED`] before the first.
    shown_end: AtomicU64,
    /// The same, while the run that it belongs to is read without the kernel's readahead; else [`NOT_PASSED`].
    alone_from: AtomicU64,
    /// Which of the next reads through the kernel's cache are looked at.
    residency_sampling: ResidencySampling,
    /// Which reads that are only begun are asked about.
    begun: ResidencySampling,
    _apart: [u8; 64],
}

const NOT_PASSED: u64 = u64::MAX;
const UNUSED_TAG: u64 = u64::MAX;

impl Default for PaddedCounters {
    fn default() -> PaddedCounters {
        PaddedCounters {
            copied_bytes: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            kernel_bytes: AtomicU64::new(0),
            kernel_demand_bytes: AtomicU64::new(0),
            passed_end: AtomicU64::new(NOT_PASSED),
            run_from: AtomicU64::new(0),
            last_page: AtomicU64::new(UNUSED_TAG),
            shown_end: AtomicU64::new(NOT_PASSED),
            alone_from: AtomicU64::new(NOT_PASSED),
            residency_sampling: ResidencySampling::default(),
            begun: ResidencySampling::default(),
            _apart: [0; 64],
        }
    }
}

impl ReadCounters {
    /// For so many copies at a time, a power of two.
    pub(crate) fn new(slots: usize) -> ReadCounters {
        debug_assert!(slots.is_power_of_two());
        ReadCounters {
            lines: (0..slots).map(|_| ForkLocal::new()).collect(),
            through_bytes: Default::default(),
        }
    }

    /// Counts a copy past the machine, of bytes up to byte `end`; by who has the slot.
    #[inline]
    pub(crate) fn copied(&self, slot: usize, bytes: u64, end: u64) {
        let line = self.line(slot);
        // Nobody else writes to it: no need for an addition that others can't divide.
        let before = line.copied_bytes.load(Ordering::Relaxed);
        line.copied_bytes.store(before + bytes, Ordering::Relaxed);
        line.passed_end.store(end, Ordering::Relaxed);
        line.last_page.store(page_before(end), Ordering::Relaxed);
    }

    /// The page in which the last read ended that a thread made whose slot is `slot`, as far as
    /// nobody took its slot meanwhile: a read that begins there uses that page on, and not once more.
    #[inline]
    pub(crate) fn last_page(&self, slot: usize) -> u64 {
        let line = self.lines[self.place(slot)].get();
        line.map_or(UNUSED_TAG, |line| line.last_page.load(Ordering::Relaxed))
    }

    /// Counts a page that was lent past the machine, of bytes up to byte `end`.
    #[inline]
    pub(crate) fn held(&self, bytes: u64, end: u64) {
        let line = self.own();
        line.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        line.passed_end.store(end, Ordering::Relaxed);
    }

    /// What the calling thread reads through the kernel's cache.
    #[inline]
    pub(crate) fn kernel_reads(&self) -> KernelReads<'_> {
        KernelReads { line: self.own() }
    }

    /// Tells where the last reads past the machine ended, one of each line, each
    /// once: that of the calling thread last, since only its own reads have an
    /// order with what it does next.
    pub(crate) fn take_passed(&self, mut passed: impl FnMut(u64)) {
        let (up_to_own, others) = self.lines.split_at(self.place(thread_number()) + 1);
        for lines in [others, up_to_own] {
            // Looked at first: a line that says nothing is not taken from its thread.
            let is_new =
                |line: &&PaddedCounters| line.passed_end.load(Ordering::Relaxed) != NOT_PASSED;
            for line in lines.iter().filter_map(ForkLocal::get).filter(is_new) {
                let end = line.passed_end.swap(NOT_PASSED, Ordering::Relaxed);
                (end != NOT_PASSED).then(|| passed(end));
            }
        }
    }

    /// Counts one read through the machine, of bytes up to byte `end`: how many there are, and those
    /// that were there.
    pub(crate) fn through(&self, bytes: u64, cached_bytes: u64, end: u64) {
        self.own().last_page.store(page_before(end), Ordering::Relaxed);
        for (counter, value) in self.through_bytes.iter().zip([bytes, cached_bytes]) {
            counter.fetch_add(value, Ordering::Relaxed);
        }
    }

    /// The bytes of all reads, those of them that were there, those that were read through the kernel's cache, and those of these
    /// that it had.
    pub(crate) fn sums(&self) -> [u64; 4] {
        let own = |line: &PaddedCounters| {
            line.copied_bytes.load(Ordering::Relaxed) + line.held_bytes.load(Ordering::Relaxed)
        };
        let lines = || self.lines.iter().filter_map(ForkLocal::get);
        let own_bytes: u64 = lines().map(own).sum();
        let of_lines = |counter: fn(&PaddedCounters) -> &AtomicU64| {
            lines().map(|line| counter(line).load(Ordering::Relaxed)).sum::<u64>()
        };
        let kernel_bytes = of_lines(|line| &line.kernel_bytes);
        let kernel_held_bytes =
            kernel_bytes.saturating_sub(of_lines(|line| &line.kernel_demand_bytes));
        let [through, there] = self.through_bytes.each_ref().map(|sum| sum.load(Ordering::Relaxed));
        [
            own_bytes + kernel_bytes + through,
            own_bytes + kernel_held_bytes + there,
            kernel_bytes,
            kernel_held_bytes,
        ]
    }

    /// Whether the last read of some thread ended at `offset`: who goes on from there may be a task that another thread runs now.
    pub(crate) fn has_end_at(&self, offset: u64) -> bool {
        let lines = self.lines.iter().filter_map(ForkLocal::get);
        lines.into_iter().any(|line| line.passed_end.load(Ordering::Relaxed) == offset)
    }

    /// The line of the calling thread, unless others have its slot.
    #[inline]
    fn own(&self) -> &PaddedCounters {
        self.line(thread_number())
    }

    /// The line of a slot, made now if it is not there.
    #[inline]
    fn line(&self, slot: usize) -> &PaddedCounters {
        let Ok(line) = self.lines[self.place(slot)]
            .get_or_make(|| Ok::<_, Infallible>(PaddedCounters::default()));
        line
    }

    /// Where the line of a slot is.
    #[inline]
    fn place(&self, slot: usize) -> usize {
        slot & (self.lines.len() - 1)
    }
}

/// What one thread reads of one file through the kernel's cache.
#[derive(Clone, Copy)]
pub(crate) struct KernelReads<'a> {
    line: &'a PaddedCounters,
}

impl KernelReads<'_> {
    /// Which of its next reads are looked at.
    #[inline]
    pub(crate) fn residency_sampling(&self) -> &ResidencySampling {
        &self.line.residency_sampling
    }

    /// Which of its next reads that are only begun, to be made later, are asked about: that those that were begun are
    /// held when they are made says nothing of others.
    pub(crate) fn begun(&self) -> &ResidencySampling {
        &self.line.begun
    }

    /// Counts a read of bytes up to byte `end`, `demand` of which the kernel did not have.
    #[inline]
    pub(crate) fn counted(&self, bytes: u64, demand: u64, end: u64) {
        self.line.kernel_bytes.fetch_add(bytes, Ordering::Relaxed);
        if demand > 0 {
            self.line.kernel_demand_bytes.fetch_add(demand, Ordering::Relaxed);
        }
        // It has gone elsewhere.
        if self.line.passed_end.load(Ordering::Relaxed) != end - bytes {
            self.line.run_from.store(end - bytes, Ordering::Relaxed);
            let alone_from = self.line.alone_from.load(Ordering::Relaxed);
            if alone_from != NOT_PASSED && alone_from != end {
                self.line.alone_from.store(NOT_PASSED, Ordering::Relaxed);
            }
        }
        self.line.passed_end.store(end, Ordering::Relaxed);
    }

    /// The law is shown a read up to byte `end`.
    pub(crate) fn shown(&self, end: u64) {
        self.line.shown_end.store(end, Ordering::Relaxed);
    }

    /// Whether what goes on from the read that the law was shown last is to be read without the kernel's readahead.
    pub(crate) fn goes_on_alone(&self, goes_on_alone: bool) {
        let end = self.line.shown_end.load(Ordering::Relaxed);
        let from = if goes_on_alone { end } else { NOT_PASSED };
        self.line.alone_from.store(from, Ordering::Relaxed);
    }

    /// Up to which byte the law was shown the run that a read from `offset` on continues, where it is read without the
    /// kernel's readahead.
    pub(crate) fn alone_from(&self, offset: u64) -> Option<u64> {
        let from = self.line.alone_from.load(Ordering::Relaxed);
        (from <= offset && self.last_end() == Some(offset)).then_some(from)
    }

    /// Where the run began that a read of so many bytes from `offset` on continues, if the law has not seen its last read and the run
    /// is shorter than this one: then it is what follows a header, and not a stream.
    pub(crate) fn header_from(&self, offset: u64, bytes: u64) -> Option<u64> {
        let from = self.line.run_from.load(Ordering::Relaxed);
        // What was read of memory of our own meanwhile may have ended before it.
        let is_shorter = offset.checked_sub(from).is_some_and(|run| run < bytes);
        (self.goes_on_unseen(offset) && is_shorter).then_some(from)
    }

    /// Whether a read from `offset` on continues its last one, and the law has not seen that.
    pub(crate) fn goes_on_unseen(&self, offset: u64) -> bool {
        self.last_end() == Some(offset) && self.line.shown_end.load(Ordering::Relaxed) != offset
    }

    /// Where its last read past the machine ended; `None` where it made none, or that was told.
    pub(crate) fn last_end(&self) -> Option<u64> {
        let end = self.line.passed_end.load(Ordering::Relaxed);
        (end != NOT_PASSED).then_some(end)
    }
}

/// The page that holds the byte before `end`.
#[inline]
fn page_before(end: u64) -> u64 {
    end.saturating_sub(1) / PAGE_BYTES
}

/// The number of the calling thread, from 0 in the order in which they came.
#[inline]
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    if let Some(number) = crate::sync::thread_number() {
        return number;
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_reads_ended_is_told_once_that_of_the_calling_thread_last() {
        let read_counters = ReadCounters::new(4);
        let own = read_counters.place(thread_number());
        for slot in 0..4 {
            read_counters.copied(slot, 10, 100 + slot as u64);
        }
        let mut told = Vec::new();
        read_counters.take_passed(|end| told.push(end));
        assert_eq!(told.last(), Some(&(100 + own as u64)));
        told.sort_unstable();
        assert_eq!(told, [100, 101, 102, 103]);
        read_counters.take_passed(|end| panic!("{end} was told before"));
        read_counters.held(5, 700);
        read_counters.take_passed(|end| assert_eq!(end, 700));
        read_counters.kernel_reads().counted(7, 3, 800);
        read_counters.take_passed(|end| assert_eq!(end, 800));
        assert_eq!(read_counters.sums(), [52, 49, 7, 4]);
    }

    #[test]
    fn where_the_last_read_ended_is_known_whoever_carried_it_and_however_often_it_was_told() {
        let read_counters = ReadCounters::new(4);
        assert_eq!(read_counters.last_page(thread_number()), UNUSED_TAG);
        read_counters.copied(2, 10, 2 * PAGE_BYTES);
        read_counters.take_passed(|_| {});
        assert_eq!(read_counters.last_page(2), 1);
        read_counters.through(10, 0, 2 * PAGE_BYTES + 1);
        assert_eq!(read_counters.last_page(thread_number()), 2);
    }

    #[test]
    fn what_goes_on_from_memory_of_our_own_before_the_run_has_no_header_there() {
        let read_counters = ReadCounters::new(4);
        let reads = read_counters.kernel_reads();
        reads.counted(100, 0, 5_100);
        assert_eq!(reads.header_from(5_100, 200), Some(5_000));
        read_counters.copied(thread_number(), 100, 1_100);
        assert_eq!(reads.header_from(1_100, 200), None);
    }

    #[test]
    fn a_run_goes_on_alone_from_where_the_policy_saw_it_until_a_read_goes_elsewhere() {
        let read_counters = ReadCounters::new(4);
        let reads = read_counters.kernel_reads();
        let read = |offset: u64, bytes: u64| reads.counted(bytes, 0, offset + bytes);
        reads.shown(130);
        reads.goes_on_alone(true);
        read(100, 30);
        assert_eq!([130, 131].map(|offset| reads.alone_from(offset)), [Some(130), None]);
        // Two that the law didn't see.
        read(130, 20);
        read(150, 50);
        assert_eq!(reads.alone_from(200), Some(130));
        read(500, 10);
        read(200, 10);
        assert_eq!(reads.alone_from(210), None);
        reads.shown(230);
        reads.goes_on_alone(false);
        read(210, 20);
        assert_eq!(reads.alone_from(230), None);
    }

    #[test]
    fn what_goes_on_from_less_than_it_is_long_is_behind_a_header_that_the_policy_has_not_seen() {
        let read_counters = ReadCounters::new(4);
        let reads = read_counters.kernel_reads();
        let read = |offset: u64, bytes: u64| reads.counted(bytes, 0, offset + bytes);
        read(100, 30);
        read(130, 20);
        assert_eq!(reads.header_from(150, 51), Some(100));
        assert_eq!([reads.header_from(150, 50), reads.header_from(151, 99)], [None; 2]);
        reads.shown(150);
        assert_eq!(reads.header_from(150, 51), None, "the policy has seen it");
        read(10, 5);
        assert_eq!(reads.header_from(15, 6), Some(10));
    }
}
