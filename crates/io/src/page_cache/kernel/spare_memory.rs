//! Memory that a file read whole may fill, beyond the memory that the readahead policy assumes.

use std::sync::Mutex;

use readpath_core::unit::{PAGE_BYTES, Time};

use crate::os::system_memory::SystemMemory;

/// Divisor of the available memory without the option
/// [`whole_file_memory`](crate::Builder::whole_file_memory): this part may be filled, a sixteenth.
/// Chosen, not measured.
const DEFAULT_DIVISOR: u64 = 16;

/// Divisor of the available memory with the option: half of it stays free even if the configured
/// limit is larger.
const CONFIGURED_DIVISOR: u64 = 2;

/// Maximum number of bytes that a file read whole may fill, because
/// [`KernelCachedPages`](readpath_core::readahead::KernelCachedPages) remembers 512 MiB of a file.
const WHOLE_FILE_BYTES_MAX: u64 = 512 << 20;

/// Time between two measurements of the available memory, at least.
const PERIOD_NS: u64 = 1_000_000_000;

/// Spare memory, measured at most once a second.
#[derive(Debug)]
pub(super) struct SpareMemory {
    /// Limit of the option [`whole_file_memory`](crate::Builder::whole_file_memory) in bytes, if it
    /// was given.
    configured_bytes_max: Option<u64>,
    /// Shared by all readers of the path.
    measurement: Mutex<SpareMeasurement>,
}

/// Last measurement of the spare memory.
#[derive(Debug, Default)]
struct SpareMeasurement {
    /// Number of pages that a file read as a whole may fill.
    pages: u64,
    /// Time of the measurement; `None` before the first.
    measured_at: Option<Time>,
}

impl SpareMemory {
    /// Creates the state without a measurement. `configured_bytes_max` is the limit of the option
    /// in bytes, if it was given. With 0, there is no spare memory.
    pub(super) fn new(configured_bytes_max: Option<u64>) -> SpareMemory {
        SpareMemory { configured_bytes_max, measurement: Mutex::default() }
    }

    /// Number of pages that a file read as a whole may fill, at time `now`. Measures the available
    /// memory if the last measurement is a second old. Returns 0 if the option is 0 or the system
    /// does not report its memory. A file may then fill only the memory that the policy assumes.
    pub(super) fn spare_pages(&self, now: Time) -> u64 {
        let (limit, divisor) = match self.configured_bytes_max {
            Some(0) => return 0,
            Some(configured) => (configured.min(WHOLE_FILE_BYTES_MAX), CONFIGURED_DIVISOR),
            None => (WHOLE_FILE_BYTES_MAX, DEFAULT_DIVISOR),
        };
        let mut measurement = self.measurement.lock().expect("a measurement doesn't panic");
        let SpareMeasurement { pages, measured_at } = &mut *measurement;
        if measured_at.is_none_or(|measured_at| now.since(measured_at).ns() >= PERIOD_NS) {
            *measured_at = Some(now);
            let available = SystemMemory::measure().map_or(0, |memory| memory.available_bytes);
            *pages = (available / divisor).min(limit) / PAGE_BYTES;
        }
        *pages
    }
}
