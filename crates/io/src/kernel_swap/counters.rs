//! What the kernel counts of swapping: pages, faults, and the device's requests.

use std::fs;
use std::path::Path;

use readpath_core::unit::SECTOR_BYTES;
use rustix::fs::{major, minor};

use super::group::field;

/// Pages that the machine has swapped since it was started (`/proc/vmstat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwappedPages {
    /// Read from swap areas, whether anybody then used them or not.
    pub pages_in: u64,
    /// Written to swap areas.
    pub pages_out: u64,
}

impl SwappedPages {
    /// Until now; None where the kernel doesn't tell.
    pub fn now() -> Option<SwappedPages> {
        let text = fs::read_to_string("/proc/vmstat").ok()?;
        Some(SwappedPages {
            pages_in: field(&text, "pswpin")?,
            pages_out: field(&text, "pswpout")?,
        })
    }

    /// What was swapped since `earlier`.
    pub fn since(self, earlier: SwappedPages) -> SwappedPages {
        SwappedPages {
            pages_in: self.pages_in.saturating_sub(earlier.pages_in),
            pages_out: self.pages_out.saturating_sub(earlier.pages_out),
        }
    }
}

/// The swap areas in use (`/proc/swaps`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapUse {
    /// How many there are.
    pub areas: u32,
    /// Bytes in them, of everybody's memory.
    pub used_bytes: u64,
}

impl SwapUse {
    /// At this moment; None where the kernel doesn't tell.
    pub fn now() -> Option<SwapUse> {
        fs::read_to_string("/proc/swaps").ok().as_deref().map(SwapUse::parse)
    }

    fn parse(text: &str) -> SwapUse {
        let mut swap_use = SwapUse::default();
        // A line: name, type, size and use in KiB, priority. A name may hold spaces (written \040).
        for line in text.lines().skip(1) {
            let used_kib = line.split_whitespace().nth(3).and_then(|kib| kib.parse::<u64>().ok());
            swap_use.areas += 1;
            swap_use.used_bytes += used_kib.unwrap_or(0) * 1024;
        }
        swap_use
    }
}

/// What a block device has done since it was there (`/sys/dev/block/…/stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Requests that it has completed, reads and writes.
    pub requests: u64,
    /// Bytes that they moved.
    pub bytes: u64,
}

impl DeviceCounts {
    /// Of the device with this number, until now; None where sysfs doesn't show it.
    pub fn of(device: u64) -> Option<DeviceCounts> {
        let path = format!("/sys/dev/block/{}:{}/stat", major(device), minor(device));
        fs::read_to_string(Path::new(&path)).ok().as_deref().and_then(DeviceCounts::parse)
    }

    /// The columns are those of Documentation/block/stat: reads, merged, sectors, ms; the same
    /// of writes.
    fn parse(text: &str) -> Option<DeviceCounts> {
        let columns: Vec<u64> =
            text.split_whitespace().map_while(|column| column.parse().ok()).collect();
        let (reads, writes) = (columns.get(0..4)?, columns.get(4..8)?);
        Some(DeviceCounts {
            requests: reads[0] + writes[0],
            bytes: (reads[2] + writes[2]) * SECTOR_BYTES,
        })
    }

    /// What it did since `earlier`.
    pub fn since(self, earlier: DeviceCounts) -> DeviceCounts {
        DeviceCounts {
            requests: self.requests.saturating_sub(earlier.requests),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are as the kernel wrote them on a machine with two areas.
    #[test]
    fn the_kernels_texts_are_taken_apart() {
        let swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /data/a\\040b.swap                       file\t\t1048576\t\t812\t\t32767\n\
            /dev/loop3                              partition\t65532\t\t4\t\t-2\n";
        assert_eq!(SwapUse::parse(swaps), SwapUse { areas: 2, used_bytes: 816 * 1024 });
        let stat =
            "    1017    20   36264  190  2002   17   40000  1311  0 1500 1501 0 0 0 0 0 0\n";
        let counts = DeviceCounts::parse(stat).unwrap();
        assert_eq!(counts, DeviceCounts { requests: 3_019, bytes: 76_264 * 512 });
        assert_eq!(DeviceCounts::parse("1 2 3"), None);
    }
}
