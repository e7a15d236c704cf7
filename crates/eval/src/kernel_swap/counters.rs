//! Kernel counters of swapping: pages, faults, and requests of the device.

use std::fs;

use readpath_core::unit::SECTOR_BYTES;
use readpath_os::proc_text;
use readpath_os::queue::device_folder;

/// Pages swapped by the machine since its boot (`/proc/vmstat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwappedPages {
    /// Pages read from swap areas, used or not.
    pub pages_in: u64,
    /// Pages written to swap areas.
    pub pages_out: u64,
}

impl SwappedPages {
    /// Reads the current counters. Returns `None` where the kernel does not report them.
    pub fn now() -> Option<SwappedPages> {
        let text = fs::read_to_string("/proc/vmstat").ok()?;
        Some(SwappedPages {
            pages_in: proc_text::number(&text, "pswpin")?,
            pages_out: proc_text::number(&text, "pswpout")?,
        })
    }

    /// Returns the pages swapped since an earlier reading, at least 0.
    pub fn since(self, earlier: SwappedPages) -> SwappedPages {
        SwappedPages {
            pages_in: self.pages_in.saturating_sub(earlier.pages_in),
            pages_out: self.pages_out.saturating_sub(earlier.pages_out),
        }
    }
}

/// Returns the number of swap areas in use (`/proc/swaps` has one line each, below a header).
/// `None` where the kernel does not report it.
pub fn swap_areas() -> Option<usize> {
    fs::read_to_string("/proc/swaps").ok().map(|text| text.lines().skip(1).count())
}

/// Returns true when the kernel compresses swapped pages in memory (zswap). These pages count as
/// swapped but never reach the device.
pub fn has_zswap() -> bool {
    fs::read_to_string("/sys/module/zswap/parameters/enabled").is_ok_and(|text| text.trim() == "Y")
}

/// Returns the swapped private memory in bytes of all processes except `own_processes` (`VmSwap`),
/// the process IDs of the run. 0 if `/proc` cannot be listed. The usage of the area is no
/// substitute: the kernel keeps the slot of a page that is back in memory while slots are free.
pub fn swapped_bytes_of_others(own_processes: &[u32]) -> u64 {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let processes = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let other_processes = processes.filter(|process: &u32| !own_processes.contains(process));
    other_processes
        // An ended process has no swapped memory, and neither has a kernel thread.
        .filter_map(|process| fs::read_to_string(format!("/proc/{process}/status")).ok())
        .filter_map(|status| proc_text::field_bytes(&status, "VmSwap:"))
        .sum()
}

/// Counters of a block device (`/sys/dev/block/…/stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Number of completed reads and writes.
    pub requests: u64,
    /// Bytes moved by them.
    pub bytes: u64,
}

impl DeviceCounts {
    /// Reads the counters of the device with this number. Returns `None` if sysfs does not list it.
    pub fn of(device: u64) -> Option<DeviceCounts> {
        let text = fs::read_to_string(device_folder(device).join("stat"));
        text.ok().as_deref().and_then(DeviceCounts::parse)
    }

    /// Parses the columns of Documentation/block/stat: reads, merged, sectors, ms; then the same
    /// for writes. Returns `None` if columns are missing.
    fn parse(text: &str) -> Option<DeviceCounts> {
        let columns: Vec<u64> =
            text.split_whitespace().map_while(|column| column.parse().ok()).collect();
        let (reads, writes) = (columns.get(0..4)?, columns.get(4..8)?);
        Some(DeviceCounts {
            requests: reads[0] + writes[0],
            bytes: (reads[2] + writes[2]) * SECTOR_BYTES,
        })
    }

    /// Returns the requests and bytes since an earlier reading, at least 0.
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

    /// Texts as printed by the kernel. The device has 1,017 + 2,002 requests for 36,264 + 40,000
    /// sectors.
    #[test]
    fn device_counters_are_parsed_from_kernel_text() {
        let stat =
            "    1017    20   36264  190  2002   17   40000  1311  0 1500 1501 0 0 0 0 0 0\n";
        let counts = DeviceCounts::parse(stat).unwrap();
        assert_eq!(counts, DeviceCounts { requests: 3_019, bytes: 76_264 * 512 });
        assert_eq!(DeviceCounts::parse("1 2 3"), None);
    }
}
