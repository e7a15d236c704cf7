//! Reads that waited without a request of their own thread.
//!
//! The kernel counts the bytes that a thread requested from devices (`getrusage(2)`). A thread that
//! waited and has requested none waited for a request of another thread, or for a processor.

use std::collections::BTreeSet;

use super::super::device_number::is_without_block_device;
use super::KernelCounts;
use super::layout::{NO_REQUEST, SOME_REQUEST};

/// Devices with a count of requested bytes.
#[derive(Debug)]
pub(super) struct OwnRequests {
    /// True if the kernel counts requests.
    is_counting: bool,
    /// Devices with major number 0 of which requests were counted. They have no driver, and the
    /// kernel counts none for a file system on the network or in user space.
    counted_devices: BTreeSet<u64>,
}

impl Default for OwnRequests {
    fn default() -> OwnRequests {
        OwnRequests {
            is_counting: KernelCounts::of_own().is_some(),
            counted_devices: BTreeSet::new(),
        }
    }
}

impl OwnRequests {
    /// Returns true if a thread certainly sent no request for its read. For a device without a
    /// driver, a call with `SOME_REQUEST` must have come before. `device`: device of the file, as
    /// major number × 2²⁰ + minor number. `requests`: the count in the report, which is
    /// `NO_REQUEST`, `SOME_REQUEST`, or any other number for an unknown count.
    pub fn sent_none(&mut self, device: u64, requests: u64) -> bool {
        let has_driver = !is_without_block_device(device);
        if requests == SOME_REQUEST && !has_driver {
            self.counted_devices.insert(device);
        }
        let is_counted = has_driver || self.counted_devices.contains(&device);
        self.is_counting && requests == NO_REQUEST && is_counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Major number 8 is a driver of disks, and 0 stands for file systems without a disk of their
    /// own. On such a one, a count of none has a meaning once others were counted.
    #[test]
    fn no_request_is_evidence_only_where_the_kernel_counts() {
        let (disk, uncounted) = (8 << 20 | 1, 0);
        let mut requests = OwnRequests { is_counting: true, ..OwnRequests::default() };
        assert!(requests.sent_none(disk, NO_REQUEST));
        assert!(!requests.sent_none(disk, SOME_REQUEST) && !requests.sent_none(disk, uncounted));
        assert!(!requests.sent_none(5, NO_REQUEST));
        assert!(!requests.sent_none(5, SOME_REQUEST));
        assert!(requests.sent_none(5, NO_REQUEST) && !requests.sent_none(6, NO_REQUEST));
        let mut requests = OwnRequests { is_counting: false, ..OwnRequests::default() };
        assert!(!requests.sent_none(disk, NO_REQUEST));
    }
}
