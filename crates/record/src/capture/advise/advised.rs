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

#[derive(Debug)]
pub(super) struct AdvisedFile {
    pub(super) number: u32,
    pub(super) disk: u64,
    /// `None` for a file that is too small or cannot be opened.
    pub(super) advice_target: Option<AdviceTarget>,
    pub(super) policy: AdaptiveReadahead,
    pub(super) advised: KernelCachedPages,
    pub(super) file_use: FileUse,
    pub(super) last_read_ns: u64,
    pub(super) is_helped: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedRange {
    pub(super) inode: Inode,
    pub(super) range: PageRange,
    pub(super) is_prefetched: bool,
}

/// `None` for a file that is too small or cannot be opened.
#[derive(Debug, Default)]
pub(super) struct AdvisedDevice {
    pub(super) evidence: DeviceEvidence,
    pub(super) under_way: BTreeMap<u64, RequestId>,
    pub(super) free: Vec<RequestId>,
    /// End of the last read used for the estimate, on a device without request events.
    pub(super) learned_ns: u64,
}

impl AdvisedFile {
    pub(super) fn forget_all(&mut self, devices: &mut BTreeMap<u64, AdvisedDevice>) {
        let device = devices.entry(self.disk).or_default();
        self.policy.on_close(None, 0, &mut device.evidence);
        self.policy = AdaptiveReadahead::default();
        let all = PageRange { first: 0, end: u64::MAX / PAGE_BYTES };
        self.advised.on_evicted(all, &mut device.evidence);
        self.advised = KernelCachedPages::new(self.number);
    }
}

impl RequestedRange {
    /// Returns true for the rest of this request, which the kernel reports at each continuation.
    pub(super) fn continues_request(&self, inode: Inode, range: PageRange) -> bool {
        self.inode == inode && self.range.end == range.end && self.range.first < range.first
    }
}

impl AdvisedDevice {
    pub(super) fn issued(&mut self, at: Time, sector: u64) {
        if self.under_way.contains_key(&sector) {
            return;
        }
        let next = RequestId(self.under_way.len() as u32);
        let id = self.free.pop().unwrap_or(next);
        self.under_way.insert(sector, id);
        self.evidence.estimate.on_dispatch(at, id, None);
    }

    pub(super) fn completed(&mut self, at: Time, sector: u64, bytes: u64) {
        if let Some(id) = self.under_way.remove(&sector) {
            self.free.push(id);
            self.evidence.estimate.on_completion(at, at, id, bytes);
        }
    }

    /// Adds a read that waited to the cost estimate. It must not overlap the previous one.
    pub(super) fn learn(&mut self, begin_ns: u64, end_ns: u64, bytes: u64) {
        if begin_ns >= self.learned_ns {
            self.evidence.estimate.on_dispatch(Time(begin_ns), RequestId(0), None);
            self.evidence.estimate.on_completion(Time(end_ns), Time(end_ns), RequestId(0), bytes);
        }
        self.learned_ns = self.learned_ns.max(end_ns);
    }
}
