//! What a load measured: one row of the table.
//!
//! The keys that rows of jobs have too (`crate::report::Row`) mean the same here; a touch counts
//! as its page. What was not measured, or could not be, is `None` (`null`), never 0.

use readpath_core::unit::PAGE_BYTES;
use serde::Serialize;

use super::{MemoryLoad, MemorySharing};
use crate::report::{LatencySummary, mib, ratio};

/// One run: one load on one storage under one swap-in law.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadRow {
    /// The load's name.
    pub job: String,
    /// The storage, as it was named.
    pub storage: String,
    /// Memory has no file readahead: always null.
    pub readahead: Option<String>,
    /// The swap-in law, or what the kernel did in its place.
    pub swapin: Option<String>,
    /// The scheduler, or the kernel's own by name.
    pub scheduler: Option<String>,
    /// How faults were served, e.g. `kernel swap`.
    pub engine: Option<String>,
    /// Bytes that every process maps.
    pub mapping_bytes: u64,
    /// The limit of memory.
    pub memory_bytes: u64,
    /// Whose memory it is: `private` or `shared`.
    pub share: &'static str,
    /// How many processes touched it.
    pub processes: u32,
    /// Touches of all processes, after filling.
    pub touches: Option<u64>,
    /// `touches` in bytes of their pages.
    pub bytes: Option<u64>,
    /// From the start of the touches to the end of the last.
    pub seconds: Option<f64>,
    /// What filling took before that.
    pub fill_seconds: Option<f64>,
    /// `bytes` per second, in MiB.
    pub mib_per_s: Option<f64>,
    /// Touches per second.
    pub iops: Option<f64>,
    /// Of a touch.
    pub latency_us: LatencySummary,
    /// Touches that had to wait for the device.
    pub major_faults: Option<u64>,
    /// Touches that faulted and found their page in memory.
    pub minor_faults: Option<u64>,
    /// Pages read back from swap, used or not.
    pub pages_in: Option<u64>,
    /// Pages written to swap.
    pub pages_out: Option<u64>,
    /// Requests that the device was given.
    pub device_requests: Option<u64>,
    /// Bytes that the device moved.
    pub device_bytes: Option<u64>,
    /// `device_bytes` per request, in KiB.
    pub device_request_kib_mean: Option<f64>,
    /// Requests in the device while it had any, mean over time.
    pub device_depth_mean: Option<f64>,
    /// The most requests in the device at once.
    pub device_depth_max: Option<u32>,
    /// Pages read back ÷ touches.
    pub amplification: Option<f64>,
    /// Touches that did not wait for the device ÷ touches.
    pub coverage: Option<f64>,
    /// Bytes read ahead that were never touched while they were in memory.
    pub waste_bytes: Option<u64>,
    /// User and system time of the processes while they touched; real runs only.
    pub cpu_seconds: Option<f64>,
    /// A hash of every decision of the run; modelled runs only.
    pub decisions: Option<String>,
    /// Anything that a reader of the row must know; why there are no figures, if there are none.
    pub note: Option<String>,
}

impl LoadRow {
    /// The row of a load that has not been measured.
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

    /// Adds what the touches of the whole load took.
    pub fn with_touches(mut self, touches: u64, seconds: f64) -> LoadRow {
        let bytes = touches * PAGE_BYTES;
        self.touches = Some(touches);
        self.bytes = Some(bytes);
        self.seconds = Some(seconds);
        self.mib_per_s = ratio(mib(bytes), seconds);
        self.iops = ratio(touches as f64, seconds);
        self
    }

    /// Adds what was swapped for those touches; None for what nobody counted.
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

    /// Adds what the device did for them.
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

    /// 1,000 touches in 2 s, of which 250 wait, 400 pages read in.
    #[test]
    fn rates_follow_from_touches_and_what_was_not_measured_is_null() {
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
