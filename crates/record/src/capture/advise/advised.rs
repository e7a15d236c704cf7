//! State of advised files and devices.

use std::collections::BTreeMap;

use readpath_core::readahead::{
    AdaptiveReadahead, DeviceEvidence, KernelCachedPages, ReadaheadPolicy,
};
use readpath_core::request::RequestId;
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};

use super::Inode;
use super::hand::AdviceTarget;
use super::used_up::FileUse;

/// A file with absent pages whose next reads are predicted.
#[derive(Debug)]
pub(super) struct AdvisedFile {
    /// Number of the file in the ledger.
    pub(super) number: u32,
    /// Number of the file's device.
    pub(super) disk: u64,
    /// `None` for a file that is too small or cannot be opened.
    pub(super) advice_target: Option<AdviceTarget>,
    /// Readahead policy of the file, for all its readers.
    pub(super) policy: AdaptiveReadahead,
    /// Pages that the policy knows as cached.
    pub(super) advised: KernelCachedPages,
    /// Pages that the program used, and the state of a whole-file prefetch.
    pub(super) file_use: FileUse,
    /// Time of the last read or fault of the file.
    pub(super) last_read_ns: u64,
    /// True once pages of the file were prefetched.
    pub(super) is_helped: bool,
}

/// Range of pages that a task has requested by a read or a fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedRange {
    /// File of the request.
    pub(super) inode: Inode,
    /// Its pages, or the rest of them that the kernel reported last.
    pub(super) range: PageRange,
    /// True once a prefetch of this large request was attempted.
    pub(super) is_prefetched: bool,
}

/// Costs of a device, learned from its requests or from the waits of reads.
#[derive(Debug, Default)]
pub(super) struct AdvisedDevice {
    /// Estimates of the device, which the policies of its files share.
    pub(super) evidence: DeviceEvidence,
    /// Requests in progress by their first sectors.
    pub(super) requests_in_progress: BTreeMap<u64, RequestId>,
    /// Numbers of completed requests, for reuse.
    pub(super) free_ids: Vec<RequestId>,
    /// Latest end of a read so far, on a device without request events. Reads that are left out
    /// of the estimate count too, because a later read may have waited for them.
    pub(super) learned_until_ns: u64,
}

impl AdvisedFile {
    /// Resets the state of the file's readahead: no page is known as cached, and the policy starts
    /// again. `devices` are all devices by their numbers.
    pub(super) fn forget_all(&mut self, devices: &mut BTreeMap<u64, AdvisedDevice>) {
        let device = devices.entry(self.disk).or_default();
        // The old policy takes its open runs out of the estimates of the device. With a size of 0 a
        // forward run counts as cut off by the end of the file, not as ended: it may go on.
        // The last page read is not known here (`None`).
        self.policy.on_close(None, 0, &mut device.evidence);
        self.policy = AdaptiveReadahead::default();
        // Ends at the last page with an offset in 64 bits.
        let all = PageRange { first: 0, end: u64::MAX / PAGE_BYTES };
        self.advised.on_evicted(all, &mut device.evidence);
        self.advised = KernelCachedPages::new(self.number);
    }
}

impl RequestedRange {
    /// Returns true if `range` is the rest of this request. The kernel reports the rest at each
    /// continuation.
    pub(super) fn continues_request(&self, inode: Inode, range: PageRange) -> bool {
        self.inode == inode && self.range.end == range.end && self.range.first < range.first
    }
}

impl AdvisedDevice {
    /// Records that the device began a request at `sector`. A second start of the same sector is
    /// ignored.
    pub(super) fn record_issued(&mut self, at: Time, sector: u64) {
        if self.requests_in_progress.contains_key(&sector) {
            return;
        }
        // Without a free number, the requests in progress have all numbers below this one.
        let next = RequestId(self.requests_in_progress.len() as u32);
        let id = self.free_ids.pop().unwrap_or(next);
        self.requests_in_progress.insert(sector, id);
        // Without its sectors (`None`), the request does not show if it continues the last one.
        self.evidence.estimate.on_dispatch(at, id, None);
    }

    /// Records that the device completed `bytes` bytes of the request at `sector`, which then
    /// counts as complete. A request whose start was not recorded is ignored.
    pub(super) fn record_completed(&mut self, at: Time, sector: u64, bytes: u64) {
        if let Some(id) = self.requests_in_progress.remove(&sector) {
            self.free_ids.push(id);
            // The time of the completion is exact: it is both its latest and its
            // earliest time.
            self.evidence.estimate.on_completion(at, at, id, bytes);
        }
    }

    /// Adds a read of `bytes` bytes to the cost estimate, as if it were one request. A read
    /// that began before the latest end of an earlier read is left out: its time may include a
    /// wait for that one. Its own end counts for the reads that follow.
    pub(super) fn learn_from_read(&mut self, begin_ns: u64, end_ns: u64, bytes: u64) {
        if begin_ns >= self.learned_until_ns {
            // One read at a time is in the estimate, so all have the same number. The time
            // of the completion is exact: it is both its latest and its earliest time.
            self.evidence.estimate.on_dispatch(Time(begin_ns), RequestId(0), None);
            self.evidence.estimate.on_completion(Time(end_ns), Time(end_ns), RequestId(0), bytes);
        }
        self.learned_until_ns = self.learned_until_ns.max(end_ns);
    }
}
