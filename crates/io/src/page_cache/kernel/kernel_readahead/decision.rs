//! Decision about one read: the policy's windows, and which of them the kernel reads by itself.
//!
//! A *window* is a page range to be read ahead. A *run* is a sequence of reads, each of which
//! begins where the last one ended. A *stream* is a pattern of reads that the policy has detected.
//! The *policy* is the readahead policy of this process. It *sees* the reads that may miss. A
//! *submitted* read waits in a queue, so no call of the reader starts its I/O. The record `advised`
//! of a file has the pages that were read or advised, and the advised ones that no read has
//! reached. The *evidence* of a device is its measured costs.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use readpath_core::readahead::{KernelPageView, ReadRequest, ReadaheadLimits, ReadaheadPolicy};
use readpath_core::unit::{PageRange, Time};

use super::{FileKernelReadahead, HandlePolicy, KernelWindow, POISON, PolicyAccess, PolicyAnswer};

/// Answer of the policy, and the page ranges to advise.
pub(super) struct PolicyDecision {
    /// Effects on the read itself.
    pub(super) answer: PolicyAnswer,
    /// Without the ranges that the kernel reads ahead by itself.
    pub(super) advised_ranges: Vec<PageRange>,
}

/// Windows of the policy after a read.
struct PolicyWindows {
    /// Page ranges that the policy wants to be read.
    advised_ranges: Vec<PageRange>,
    /// Target window of the policy's latest stream in pages. The outer `None`: the policy did not
    /// see the read. The inner `None`: it has no stream, or that stream's begin made a continuation
    /// likely (the start of the file, a stride, advice).
    target_pages: Option<Option<u64>>,
    /// True if a part of the read was advised and not read since.
    has_advised_part: bool,
}

impl FileKernelReadahead {
    /// Shows a read at time `now` of a file of `file_bytes` bytes to the handle's policy, without
    /// advising. `window` returns the kernel's window of the device and is called only if needed.
    pub(super) fn decide(
        &self,
        policy: &Mutex<HandlePolicy>,
        now: Time,
        file_bytes: u64,
        window: impl Fn() -> KernelWindow,
        access: PolicyAccess,
    ) -> PolicyDecision {
        let PolicyAccess { is_continuation, is_submitted, .. } = access;
        let request = PageRange::covering(access.offset, access.bytes);
        let PolicyWindows { mut advised_ranges, target_pages, has_advised_part } =
            self.ask_policy(policy, now, file_bytes, access);
        // The kernel's readahead of a run is off while the policy wants less than the kernel would
        // read. A read that continues no run begins one, and then it is off for any target. The
        // kernel reads nothing ahead of this read, but would ahead of the next one.
        let is_kernel_readahead_off = match target_pages {
            // Without a stream, or with a likely continuation, the kernel's readahead stays on.
            Some(target_pages) => target_pages.is_some_and(|pages| {
                !is_continuation || pages < window().kernel_readahead_pages(request)
            }),
            // The policy did not see the read: its run goes on as before.
            None => access.was_without_readahead,
        };
        // The read runs without the kernel's readahead, so all windows of the policy are advised.
        if is_kernel_readahead_off && !is_submitted {
            // A check, which has found the first absent byte, has already started the kernel's I/O.
            // Without a check the read becomes part of the window behind it.
            if access.first_absent.is_none() {
                merge_into_next(request, &mut advised_ranges);
            }
            return PolicyDecision {
                answer: PolicyAnswer { is_kernel_readahead_off, has_advised_part },
                advised_ranges,
            };
        }
        // A submitted read does not go through `read(2)` now, so the kernel reads nothing ahead of
        // it. Its answer is always that the kernel's readahead stays on. The kernel reads nothing
        // ahead of a read that continues no run either.
        if is_continuation && !is_submitted {
            remove_kernel_ranges(&mut advised_ranges, window, request);
        }
        // No other call starts the I/O of a submitted read, so it is advised too.
        if is_submitted && !merge_into_next(request, &mut advised_ranges) {
            advised_ranges.insert(0, request);
        }
        PolicyDecision {
            answer: PolicyAnswer { is_kernel_readahead_off: false, has_advised_part },
            advised_ranges,
        }
    }

    /// Records a read at time `now` of a file of `file_bytes` bytes. The policy gets the read with
    /// the present evidence about the device, and returns the page ranges to advise. A read within
    /// pages that are known as read or advised is *quiet*: the policy does not get it, and
    /// `target_pages` is `None`. In any case its pages count as known afterwards.
    fn ask_policy(
        &self,
        policy: &Mutex<HandlePolicy>,
        now: Time,
        file_bytes: u64,
        access: PolicyAccess,
    ) -> PolicyWindows {
        let PolicyAccess { offset, bytes, is_of_task, first_absent, .. } = access;
        let request = PageRange::covering(offset, bytes);
        // True would stop readahead, as for a full device queue. Its length is not known here.
        let is_congested = false;
        let read_request = ReadRequest { offset, bytes, file_bytes, is_congested };
        let file_pages = read_request.file_pages();
        let (mut advised_ranges, mut target_pages) = (Vec::new(), None);
        let mut policy = policy.lock().expect(POISON);
        let mut advised = self.advised.lock().expect(POISON);
        let mut device = self.path_readahead.evidence();
        let has_advised_part = advised.has_unused(request);
        // Pages from there on count as absent, except advised ones: the device may be reading them.
        if let Some(first) = first_absent {
            advised.on_miss(PageRange::covering(first, offset + bytes - first));
        }
        if !advised.is_quiet(request) {
            device.now = now;
            device.memory_pages = self.path_readahead.memory_pages();
            // Measured only for files that may be read whole: the first measurement takes longer
            // than all reads of a short program. A read of a task may have others next to it, and
            // only a lone reader gets a file whole.
            device.spare_pages = match !is_of_task && advised.may_be_read_whole(file_pages) {
                true => self.path_readahead.spare.spare_pages(now),
                false => 0,
            };
            // At least this read: a read of a task is not counted as in progress.
            device.open_reads =
                self.path_readahead.reads_in_progress.load(Ordering::Relaxed).max(1);
            policy.read(
                &read_request,
                &mut KernelPageView {
                    advised: &mut advised,
                    device: &mut device,
                    file_pages,
                    advised_ranges: &mut advised_ranges,
                },
            );
            // `wanted_anywhere` returns the target of the latest stream: see `PolicyWindows`.
            target_pages = Some(policy.wanted_anywhere());
        }
        // The pages count as known, and advised ones as used.
        advised.read(request, &mut device);
        self.has_unread_advice.store(advised.awaits_reader(), Ordering::Relaxed);
        PolicyWindows { advised_ranges, target_pages, has_advised_part }
    }
}

/// Extends the range that follows `request` to include it, so that the device gets one request.
/// Returns true if there is such a range.
fn merge_into_next(request: PageRange, advised_ranges: &mut [PageRange]) -> bool {
    let next_range = advised_ranges.iter_mut().find(|range| range.first == request.end);
    next_range.map(|range| range.first = request.first).is_some()
}

/// Removes the ranges that the kernel reads ahead by itself after `request` of an ascending stream.
/// A range that reaches beyond the kernel's window stays as a whole. `window` returns the kernel's
/// window and is called only if needed.
fn remove_kernel_ranges(
    advised_ranges: &mut Vec<PageRange>,
    window: impl Fn() -> KernelWindow,
    request: PageRange,
) {
    let default_window = ReadaheadLimits::default().window_pages_max;
    let is_in_kernel_window = |range: &PageRange, window_pages| {
        range.first >= request.end && range.end <= request.end + window_pages
    };
    // The default is the smallest window. Often it suffices, and the device is not looked up.
    advised_ranges.retain(|range| !is_in_kernel_window(range, default_window));
    if !advised_ranges.is_empty() {
        let window_pages_max = window().window_pages;
        advised_ranges.retain(|range| !is_in_kernel_window(range, window_pages_max));
    }
}
