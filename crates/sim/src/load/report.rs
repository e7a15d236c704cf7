//! Results of a memory load: one row of the table.
//!
//! Keys of job rows have the same meaning here. A touch counts as one page. A value that was not
//! measured, or cannot be, is `None` (`null`), never 0.

use readpath_core::unit::PAGE_BYTES;
use serde::Serialize;

use super::{MemoryLoad, MemorySharing};
use crate::report::{LatencySummary, mib, ratio};

/// Results of one load on one storage under one swap-in policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadRow {
    /// Name of the load.
    pub job: String,
    /// Storage, as the user named it.
    pub storage: String,
    /// Always null: memory has no file readahead.
    pub readahead: Option<String>,
    /// Swap-in policy, or the kernel's setting in its place.
    pub swapin: Option<String>,
    /// Scheduler. For real runs the kernel's scheduler.
    pub scheduler: Option<String>,
    /// Mechanism that serves the faults, such as `kernel swap`.
    pub engine: Option<String>,
    /// Mapped bytes per process.
    pub mapping_bytes: u64,
    /// Memory limit.
    pub memory_bytes: u64,
    /// Type of memory: `private` or `shared`.
    pub share: &'static str,
    /// Number of processes.
    pub processes: u32,
    /// Touches of all processes, after filling.
    pub touches: Option<u64>,
    /// Bytes of the touched pages.
    pub bytes: Option<u64>,
    /// Time from the first touch to the end of the last.
    pub seconds: Option<f64>,
    /// Duration of the filling.
    pub fill_seconds: Option<f64>,
    /// `bytes` per second, in MiB.
    pub mib_per_s: Option<f64>,
    /// Touches per second.
    pub iops: Option<f64>,
    /// Latency of a touch.
    pub latency_us: LatencySummary,
    /// Touches that waited for the device.
    pub major_faults: Option<u64>,
    /// Touches with a fault that found their page in memory.
    pub minor_faults: Option<u64>,
    /// Pages read from swap, used or not.
    pub pages_in: Option<u64>,
    /// Pages written to swap.
    pub pages_out: Option<u64>,
    /// Number of device requests.
    pub device_requests: Option<u64>,
    /// Bytes transferred by the device.
    pub device_bytes: Option<u64>,
    /// `device_bytes` per request, in KiB.
    pub device_request_kib_mean: Option<f64>,
    /// Mean queue depth of the device over the time in which it was busy.
    pub device_depth_mean: Option<f64>,
    /// Maximum queue depth of the device.
    pub device_depth_max: Option<u32>,
    /// Pages read from swap, divided by touches.
    pub amplification: Option<f64>,
    /// Touches that did not wait for the device, divided by touches.
    pub coverage: Option<f64>,
    /// Prefetched bytes that were never touched while in memory.
    pub waste_bytes: Option<u64>,
    /// User and system time of the processes during the touches. Real runs only.
    pub cpu_seconds: Option<f64>,
    /// Hash of all decisions. Simulations only.
    pub decisions: Option<String>,
    /// Caveat about the row, or the reason for missing values.
    pub note: Option<String>,
}

impl LoadRow {
    /// Creates the row of a load that has not been measured.
    pub fn new(load: &MemoryLoad, storage: &str) -> LoadRow {
        LoadRow {
            job: load.name.clone(),
            storage: storage.to_owned(),
            readahead: None,
            swapin: None,
            scheduler: None,
            engine: None,
            mapping_bytes: load.mapping_bytes,
            memory_bytes: load.memory_bytes,
            share: match load.share {
                MemorySharing::Private => "private",
                MemorySharing::Shared => "shared",
            },
            processes: load.processes,
            touches: None,
            bytes: None,
            seconds: None,
            fill_seconds: None,
            mib_per_s: None,
            iops: None,
            latency_us: LatencySummary::default(),
            major_faults: None,
            minor_faults: None,
            pages_in: None,
            pages_out: None,
            device_requests: None,
            device_bytes: None,
            device_request_kib_mean: None,
            device_depth_mean: None,
            device_depth_max: None,
            amplification: None,
            coverage: None,
            waste_bytes: None,
            cpu_seconds: None,
            decisions: None,
            note: None,
        }
    }

    /// Adds the touches of the whole load and their duration. The rates are `None` for a duration
    /// of 0.
    pub fn with_touches(mut self, touches: u64, seconds: f64) -> LoadRow {
        let bytes = touches * PAGE_BYTES;
        self.touches = Some(touches);
        self.bytes = Some(bytes);
        self.seconds = Some(seconds);
        self.mib_per_s = ratio(mib(bytes), seconds);
        self.iops = ratio(touches as f64, seconds);
        self
    }

    /// Adds the swapping during the touches: faults that waited, and pages read and written. `None`
    /// means not counted. The ratios need the number of touches from `with_touches`; without
    /// touches they are `None`.
    pub fn with_swapping(
        mut self,
        major_faults: Option<u64>,
        pages_in: Option<u64>,
        pages_out: Option<u64>,
    ) -> LoadRow {
        let touches = self.touches.unwrap_or(0) as f64;
        self.amplification = pages_in.and_then(|pages| ratio(pages as f64, touches));
        self.coverage = major_faults.and_then(|faults| ratio(touches - faults as f64, touches));
        (self.major_faults, self.pages_in, self.pages_out) = (major_faults, pages_in, pages_out);
        self
    }

    /// Adds the device's work during the touches: number and bytes of its requests. Without
    /// requests, their mean size is `None`.
    pub fn with_device(mut self, requests: u64, bytes: u64) -> LoadRow {
        self.device_requests = Some(requests);
        self.device_bytes = Some(bytes);
        self.device_request_kib_mean = ratio(bytes as f64 / 1024.0, requests as f64);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,000 touches in 2 s are 500 per second. 250 of them wait, and 400 pages are read from swap.
    /// The number of pages written is unknown, and a device without requests has no mean size.
    #[test]
    fn rates_follow_from_touches_and_unmeasured_values_are_null() {
        let load = MemoryLoad::new("l", 64 << 20, 32 << 20);
        let row = LoadRow::new(&load, "kernel:/data");
        assert_eq!((row.seconds, row.iops, row.coverage), (None, None, None));
        let row = row.with_touches(1_000, 2.0).with_swapping(Some(250), Some(400), None);
        assert_eq!((row.iops, row.bytes), (Some(500.0), Some(4_096_000)));
        assert_eq!((row.coverage, row.amplification, row.pages_out), (Some(0.75), Some(0.4), None));
        let row = row.with_device(0, 0);
        assert_eq!(row.device_request_kib_mean, None);
    }
}
