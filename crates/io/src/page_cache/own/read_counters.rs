//! Counters of reads that bypass the machine: the number of bytes, and the end of the last read,
//! which is reported to the machine's policy. (The *machine* is the state machine of the cache. Its
//! *policy* is the readahead policy for its reads. The *kernel policy* is the handle's readahead
//! policy for reads through the kernel page cache. It advises the kernel.) A *slot* is the number
//! of a simultaneous copy out of the cache. It is usually the number of its thread. A copy writes
//! to the counters of its own slot, so two threads that read the same file share no cache line.
//! Most files are read by one thread, and many by none. A slot's counters are therefore allocated
//! on the first write.
//!
//! Reads through the kernel page cache are also followed as *runs*: sequences of reads, each of
//! which begins where the last one of its thread ended.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use readpath_core::unit::PAGE_BYTES;

use crate::os::process::ForkLocal;
use crate::page_cache::kernel::residency_sampling::ResidencySampler;

/// Read counters of one handle.
pub(crate) struct ReadCounters {
    /// One for each possible simultaneous copy. The length is a power of two.
    slots: Box<[ForkLocal<PaddedCounters>]>,
    /// Bytes of reads through the machine, changed under its lock.
    machine_read_bytes: AtomicU64,
    /// Part of these bytes that was cached.
    machine_cached_bytes: AtomicU64,
}

/// Counters of one slot. The padding at the end, one cache line long, separates them from the next
/// allocation. (An aligned allocation would be slower: it is not served from glibc's thread cache.)
#[repr(C)]
struct PaddedCounters {
    /// Bytes copied by the successive users of the slot.
    copied_bytes: AtomicU64,
    /// Bytes pinned, by any thread.
    pinned_bytes: AtomicU64,
    /// Bytes read through the kernel page cache by any thread, and the part that had to be waited
    /// for.
    kernel_bytes: AtomicU64,
    kernel_awaited_bytes: AtomicU64,
    /// End of the last read that bypassed the machine, of any kind; [`NO_OFFSET`] once it was
    /// reported to the machine's policy.
    unreported_end: AtomicU64,
    /// Start of the sequential run of the last read through the kernel page cache.
    run_start: AtomicU64,
    /// Page in which the last copy from the cache, or the last read through the machine, ended.
    /// Pins and reads through the kernel page cache do not change it. [`NO_PAGE`] at first.
    last_page: AtomicU64,
    /// End of the last read through the kernel page cache that was shown to the kernel policy;
    /// [`NO_OFFSET`] before the first.
    policy_end: AtomicU64,
    /// Value of `policy_end` when the kernel policy decided to read the current run without kernel
    /// readahead; [`NO_OFFSET`] with kernel readahead.
    no_readahead_from: AtomicU64,
    /// Selects the reads through the kernel page cache whose residency is checked.
    sampler: ResidencySampler,
    /// Selects the asynchronous reads whose residency is checked at their start.
    async_sampler: ResidencySampler,
    _padding: [u8; 64],
}

/// Marks an offset as absent or already reported.
const NO_OFFSET: u64 = u64::MAX;
/// Marks the absence of a page.
const NO_PAGE: u64 = u64::MAX;

impl Default for PaddedCounters {
    fn default() -> PaddedCounters {
        PaddedCounters {
            copied_bytes: AtomicU64::new(0),
            pinned_bytes: AtomicU64::new(0),
            kernel_bytes: AtomicU64::new(0),
            kernel_awaited_bytes: AtomicU64::new(0),
            unreported_end: AtomicU64::new(NO_OFFSET),
            run_start: AtomicU64::new(0),
            last_page: AtomicU64::new(NO_PAGE),
            policy_end: AtomicU64::new(NO_OFFSET),
            no_readahead_from: AtomicU64::new(NO_OFFSET),
            sampler: ResidencySampler::default(),
            async_sampler: ResidencySampler::default(),
            _padding: [0; 64],
        }
    }
}

impl ReadCounters {
    /// Creates counters for `slots` simultaneous copies, a power of two.
    pub(crate) fn new(slots: usize) -> ReadCounters {
        debug_assert!(slots.is_power_of_two());
        ReadCounters {
            slots: (0..slots).map(|_| ForkLocal::new()).collect(),
            machine_read_bytes: AtomicU64::new(0),
            machine_cached_bytes: AtomicU64::new(0),
        }
    }

    /// Counts a copy of `bytes` bytes from the cache that ends at byte `end` of the file. Called by
    /// the thread that is signed in for the slot, so that no other one writes to its counter.
    #[inline]
    pub(crate) fn record_copy(&self, slot: usize, bytes: u64, end: u64) {
        let counters = self.slot_counters(slot);
        // Only the thread in the slot writes to this counter, so no atomic addition is needed.
        let bytes_before = counters.copied_bytes.load(Ordering::Relaxed);
        counters.copied_bytes.store(bytes_before + bytes, Ordering::Relaxed);
        counters.unreported_end.store(end, Ordering::Relaxed);
        counters.last_page.store(page_of_last_byte(end), Ordering::Relaxed);
    }

    /// Page in which the last read of the thread with this slot ended, unless another thread has
    /// used the slot meanwhile. Pins and reads through the kernel page cache are left out. A read
    /// that starts there continues the use of that page.
    #[inline]
    pub(crate) fn last_page(&self, slot: usize) -> u64 {
        let counters = self.slots[self.slot_index(slot)].get();
        counters.map_or(NO_PAGE, |counters| counters.last_page.load(Ordering::Relaxed))
    }

    /// Counts `bytes` bytes of a page that was pinned without the machine. The bytes end at byte
    /// `end` of the file. `last_page` stays: a later copy from the page counts as another use.
    #[inline]
    pub(crate) fn record_pin(&self, bytes: u64, end: u64) {
        let counters = self.thread_counters();
        counters.pinned_bytes.fetch_add(bytes, Ordering::Relaxed);
        counters.unreported_end.store(end, Ordering::Relaxed);
    }

    /// Returns the counters of the calling thread for reads through the kernel page cache.
    #[inline]
    pub(crate) fn kernel_reads(&self) -> KernelReadCounters<'_> {
        KernelReadCounters { counters: self.thread_counters() }
    }

    /// Calls `record_end` with the end of the last read in each slot that bypassed the machine,
    /// unless an earlier call has reported it. The end is cleared, so a read that continues there
    /// counts as the start of a run. The calling thread's end comes last, because only its own
    /// reads are ordered with its next action.
    pub(crate) fn take_unreported_ends(&self, mut record_end: impl FnMut(u64)) {
        let (slots_up_to_own, other_slots) =
            self.slots.split_at(self.slot_index(thread_number()) + 1);
        for slots in [other_slots, slots_up_to_own] {
            // Checked with a load first, so that a slot without a new end keeps its cache line.
            let has_new_end = |counters: &&PaddedCounters| {
                counters.unreported_end.load(Ordering::Relaxed) != NO_OFFSET
            };
            for counters in slots.iter().filter_map(ForkLocal::get).filter(has_new_end) {
                let end = counters.unreported_end.swap(NO_OFFSET, Ordering::Relaxed);
                // Another call may have taken the end since the load.
                if end != NO_OFFSET {
                    record_end(end);
                }
            }
        }
    }

    /// Counts a read through the machine of `bytes` bytes that ends at byte `end` of the file.
    /// `cached_bytes` bytes of them were in the cache.
    pub(crate) fn record_machine_read(&self, bytes: u64, cached_bytes: u64, end: u64) {
        self.thread_counters().last_page.store(page_of_last_byte(end), Ordering::Relaxed);
        self.machine_read_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.machine_cached_bytes.fetch_add(cached_bytes, Ordering::Relaxed);
    }

    /// Returns four sums of bytes: all reads, the cached part, reads through the kernel page cache,
    /// and their cached part. Threads that read meanwhile may be counted in some sums only.
    pub(crate) fn byte_sums(&self) -> [u64; 4] {
        let own_bytes_of_slot = |counters: &PaddedCounters| {
            counters.copied_bytes.load(Ordering::Relaxed)
                + counters.pinned_bytes.load(Ordering::Relaxed)
        };
        let all_counters = || self.slots.iter().filter_map(ForkLocal::get);
        let own_bytes: u64 = all_counters().map(own_bytes_of_slot).sum();
        let sum_of = |counter: fn(&PaddedCounters) -> &AtomicU64| {
            all_counters().map(|counters| counter(counters).load(Ordering::Relaxed)).sum::<u64>()
        };
        let kernel_bytes = sum_of(|counters| &counters.kernel_bytes);
        // Saturating, because a read that ends now may be in the second sum only.
        let kernel_cached_bytes =
            kernel_bytes.saturating_sub(sum_of(|counters| &counters.kernel_awaited_bytes));
        let machine_total = self.machine_read_bytes.load(Ordering::Relaxed);
        let machine_cached = self.machine_cached_bytes.load(Ordering::Relaxed);
        // Bytes copied or pinned without the machine were all cached.
        [
            own_bytes + kernel_bytes + machine_total,
            own_bytes + kernel_cached_bytes + machine_cached,
            kernel_bytes,
            kernel_cached_bytes,
        ]
    }

    /// True if the last read of any thread that bypassed the machine ended at `offset`, and was not
    /// reported to the machine's policy yet. A task that continues there may run on another thread
    /// now.
    pub(crate) fn has_any_read_end_at(&self, offset: u64) -> bool {
        let all_counters = self.slots.iter().filter_map(ForkLocal::get);
        all_counters
            .into_iter()
            .any(|counters| counters.unreported_end.load(Ordering::Relaxed) == offset)
    }

    /// Returns the counters of the calling thread's slot. Threads may share a slot.
    #[inline]
    fn thread_counters(&self) -> &PaddedCounters {
        self.slot_counters(thread_number())
    }

    /// Returns the counters of a slot, which are allocated on first use. A slot number beyond the
    /// number of slots wraps around.
    #[inline]
    fn slot_counters(&self, slot: usize) -> &PaddedCounters {
        let Ok(counters) = self.slots[self.slot_index(slot)]
            .get_or_init(|| Ok::<_, Infallible>(PaddedCounters::default()));
        counters
    }

    /// Index of the counters of a slot. A slot number beyond the number of slots wraps around.
    #[inline]
    fn slot_index(&self, slot: usize) -> usize {
        slot & (self.slots.len() - 1)
    }
}

/// Counters of one thread's reads of one file through the kernel page cache.
#[derive(Clone, Copy)]
pub(crate) struct KernelReadCounters<'a> {
    counters: &'a PaddedCounters,
}

impl KernelReadCounters<'_> {
    /// Selects the next reads whose residency is checked.
    #[inline]
    pub(crate) fn sampler(&self) -> &ResidencySampler {
        &self.counters.sampler
    }

    /// Selects the asynchronous reads whose residency is checked at their start. They are sampled
    /// separately: when such a read finishes, its pages are resident because it was started, which
    /// says nothing about other reads.
    pub(crate) fn async_sampler(&self) -> &ResidencySampler {
        &self.counters.async_sampler
    }

    /// Counts a read of `bytes` bytes that ends at byte `end` of the file. `awaited_bytes` bytes of
    /// them were not in the kernel page cache. A read that does not continue the run starts a new
    /// one.
    #[inline]
    pub(crate) fn record_read(&self, bytes: u64, awaited_bytes: u64, end: u64) {
        self.counters.kernel_bytes.fetch_add(bytes, Ordering::Relaxed);
        if awaited_bytes > 0 {
            self.counters.kernel_awaited_bytes.fetch_add(awaited_bytes, Ordering::Relaxed);
        }
        // The read does not begin where the last one ended, or that end was reported since: a new
        // run.
        if self.counters.unreported_end.load(Ordering::Relaxed) != end - bytes {
            self.counters.run_start.store(end - bytes, Ordering::Relaxed);
            let no_readahead_from = self.counters.no_readahead_from.load(Ordering::Relaxed);
            // If the kernel policy was just shown this read, and chose to read its run without
            // kernel readahead, the field is `end` already and stays.
            if no_readahead_from != NO_OFFSET && no_readahead_from != end {
                self.counters.no_readahead_from.store(NO_OFFSET, Ordering::Relaxed);
            }
        }
        self.counters.unreported_end.store(end, Ordering::Relaxed);
    }

    /// Records that the kernel policy was shown a read up to byte `end`.
    pub(crate) fn record_policy_end(&self, end: u64) {
        self.counters.policy_end.store(end, Ordering::Relaxed);
    }

    /// Records the method for the rest of the run of the last read shown to the kernel policy: that
    /// read was [recorded](KernelReadCounters::record_policy_end) before. `is_without_readahead` is
    /// true if the run is read without kernel readahead.
    pub(crate) fn set_no_readahead(&self, is_without_readahead: bool) {
        let end = self.counters.policy_end.load(Ordering::Relaxed);
        let start = if is_without_readahead { end } else { NO_OFFSET };
        self.counters.no_readahead_from.store(start, Ordering::Relaxed);
    }

    /// Returns the offset up to which the kernel policy knows the run that a read from `offset` on
    /// continues. Returns `None` if the read continues no run, or if the run is read with kernel
    /// readahead.
    pub(crate) fn no_readahead_start(&self, offset: u64) -> Option<u64> {
        let start = self.counters.no_readahead_from.load(Ordering::Relaxed);
        // `NO_OFFSET` is larger than any offset.
        (start <= offset && self.last_end() == Some(offset)).then_some(start)
    }

    /// Returns the start of the run that a read of `bytes` bytes from `offset` on continues, if the
    /// run is a header and the read its content. The run is then shorter than the read, and the
    /// kernel policy has not seen its last read. Returns `None` otherwise, also if no run is
    /// continued.
    pub(crate) fn header_start(&self, offset: u64, bytes: u64) -> Option<u64> {
        let start = self.counters.run_start.load(Ordering::Relaxed);
        // A read from the path's own cache meanwhile may have ended before the run.
        let is_shorter = offset.checked_sub(start).is_some_and(|run_bytes| run_bytes < bytes);
        (self.continues_read_unseen_by_policy(offset) && is_shorter).then_some(start)
    }

    /// Returns true if a read from `offset` on continues the last one and the kernel policy has not
    /// seen that one, such as a read of trusted or resident pages.
    pub(crate) fn continues_read_unseen_by_policy(&self, offset: u64) -> bool {
        self.last_end() == Some(offset)
            && self.counters.policy_end.load(Ordering::Relaxed) != offset
    }

    /// End of the last read that bypassed the machine, as an offset in the file. Returns `None` if
    /// there was none or if it was reported to the machine's policy.
    pub(crate) fn last_end(&self) -> Option<u64> {
        let end = self.counters.unreported_end.load(Ordering::Relaxed);
        (end != NO_OFFSET).then_some(end)
    }
}

/// Page of the byte before `end`.
#[inline]
fn page_of_last_byte(end: u64) -> u64 {
    end.saturating_sub(1) / PAGE_BYTES
}

/// Number of the calling thread, from 0 in the order of the first calls. It stays the same for the
/// thread's lifetime.
#[inline]
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    // Threads of a simulation have numbers of their own.
    if let Some(number) = crate::os::sync::thread_number() {
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

    /// Four copies of 10 bytes, one in each slot, a pin of 5 bytes and a kernel read of 7 bytes, of
    /// which 3 were awaited. In all 52 bytes: 49 cached, 7 from the kernel, 4 cached there.
    #[test]
    fn read_ends_are_reported_once_with_the_callers_last() {
        let read_counters = ReadCounters::new(4);
        let own_slot = read_counters.slot_index(thread_number());
        for slot in 0..4 {
            read_counters.record_copy(slot, 10, 100 + slot as u64);
        }
        let mut ends = Vec::new();
        read_counters.take_unreported_ends(|end| ends.push(end));
        assert_eq!(ends.last(), Some(&(100 + own_slot as u64)));
        ends.sort_unstable();
        assert_eq!(ends, [100, 101, 102, 103]);
        read_counters.take_unreported_ends(|end| panic!("{end} was reported before"));
        read_counters.record_pin(5, 700);
        read_counters.take_unreported_ends(|end| assert_eq!(end, 700));
        read_counters.kernel_reads().record_read(7, 3, 800);
        read_counters.take_unreported_ends(|end| assert_eq!(end, 800));
        assert_eq!(read_counters.byte_sums(), [52, 49, 7, 4]);
    }

    /// Byte 2 * 4,096 - 1 lies in page 1, and byte 2 * 4,096 in page 2.
    #[test]
    fn last_page_is_known_for_any_kind_of_read_and_after_reporting() {
        let read_counters = ReadCounters::new(4);
        assert_eq!(read_counters.last_page(thread_number()), NO_PAGE);
        read_counters.record_copy(2, 10, 2 * PAGE_BYTES);
        read_counters.take_unreported_ends(|_| {});
        assert_eq!(read_counters.last_page(2), 1);
        read_counters.record_machine_read(10, 0, 2 * PAGE_BYTES + 1);
        assert_eq!(read_counters.last_page(thread_number()), 2);
    }

    /// A kernel read of bytes 5,000 to 5,100 is the header of a longer read at 5,100. A copy from
    /// the own cache that ends at 1,100, before that run, is no header.
    #[test]
    fn continuation_of_an_own_memory_read_has_no_header() {
        let read_counters = ReadCounters::new(4);
        let reads = read_counters.kernel_reads();
        reads.record_read(100, 0, 5_100);
        assert_eq!(reads.header_start(5_100, 200), Some(5_000));
        read_counters.record_copy(thread_number(), 100, 1_100);
        assert_eq!(reads.header_start(1_100, 200), None);
    }

    /// The policy was shown the read of bytes 100 to 130. The reads up to 200 continue its run. The
    /// read at 500 is a jump, which ends the run without readahead. The last read follows an answer
    /// of the policy that enables readahead.
    #[test]
    fn run_without_readahead_starts_at_the_policy_end_and_ends_at_a_jump() {
        let read_counters = ReadCounters::new(4);
        let reads = read_counters.kernel_reads();
        let read = |offset: u64, bytes: u64| reads.record_read(bytes, 0, offset + bytes);
        reads.record_policy_end(130);
        let is_without_readahead = true;
        reads.set_no_readahead(is_without_readahead);
        read(100, 30);
        assert_eq!([130, 131].map(|offset| reads.no_readahead_start(offset)), [Some(130), None]);
        // Two reads that the policy did not see.
        read(130, 20);
        read(150, 50);
        assert_eq!(reads.no_readahead_start(200), Some(130));
        read(500, 10);
        read(200, 10);
        assert_eq!(reads.no_readahead_start(210), None);
        reads.record_policy_end(230);
        reads.set_no_readahead(!is_without_readahead);
        read(210, 20);
        assert_eq!(reads.no_readahead_start(230), None);
    }

    /// The header has 50 bytes, 100 to 150, in two reads. Only a longer read at its end follows it.
    #[test]
    fn larger_continuation_follows_a_header_unseen_by_the_policy() {
        let read_counters = ReadCounters::new(4);
        let reads = read_counters.kernel_reads();
        let read = |offset: u64, bytes: u64| reads.record_read(bytes, 0, offset + bytes);
        read(100, 30);
        read(130, 20);
        assert_eq!(reads.header_start(150, 51), Some(100));
        assert_eq!([reads.header_start(150, 50), reads.header_start(151, 99)], [None; 2]);
        reads.record_policy_end(150);
        assert_eq!(reads.header_start(150, 51), None, "the policy has seen the read");
        read(10, 5);
        assert_eq!(reads.header_start(15, 6), Some(10));
    }
}
