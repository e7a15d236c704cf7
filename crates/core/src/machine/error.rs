//! Errors of building a machine, of adding files, mappings or a swap area to it, and of its reads,
//! writes and faults.

use core::fmt;

use crate::policy::SpecError;
use crate::request::DeviceError;
use crate::unit::{PAGE_BYTES, PAGE_SECTORS, SECTOR_BYTES};

/// Error of building a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A policy's name or parameter is wrong.
    Policy(SpecError),
    /// After the memory for pinned pages no memory is left for a page.
    NoMemory {
        /// The given memory in bytes.
        memory_bytes: u64,
        /// The minimum in bytes.
        needed_bytes: u64,
    },
    /// The memory has more frames than the cache can number.
    TooMuchMemory {
        /// The given memory in bytes.
        memory_bytes: u64,
    },
    /// The depth is 0.
    NoDepth,
    /// The device's largest request is smaller than a page.
    RequestTooSmall {
        /// Its largest request in sectors.
        request_sectors_max: u32,
    },
}

/// Error of a file or a swap area that reaches past the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeyondDevice {
    /// The sector after the last one of the file or area: exclusive.
    pub end_sector: u64,
    /// Size of the device in sectors.
    pub device_sectors: u64,
}

/// Error of a read, a write or a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReadError {
    /// The read alone is larger than the memory of the cache.
    NotEnoughMemory {
        /// Memory for the pages of the read, in bytes.
        needed_bytes: u64,
        /// The memory of the cache in bytes, without the part that outside readers may pin.
        memory_bytes: u64,
    },
    /// Too many reads and writes, or too many faults, are open.
    TooManyReads {
        /// The configured limit.
        open_reads_max: u32,
    },
    /// A direct transfer does not have the device's alignment.
    Misaligned {
        /// The offset or the size that is not a multiple of the alignment, in bytes.
        value: u64,
        /// The alignment in bytes.
        alignment_bytes: u32,
    },
    /// A write would go past the end of the file.
    PastEnd {
        /// The length of the file in bytes.
        file_bytes: u64,
    },
    /// The device failed on requested data.
    Device {
        /// The first byte of the file that could not be transferred.
        offset: u64,
        /// The error of the device.
        error: DeviceError,
    },
    /// The file has become shorter than it was when it was opened.
    Shrunk {
        /// The first missing byte.
        offset: u64,
    },
    /// Memory is full of pages that differ from the device, and the swap area has no free slot.
    SwapFull {
        /// Number of slots of the area.
        slots: u64,
        /// Number of slots that the device could not write.
        bad_slots: u64,
    },
    /// Memory is full of pages that differ from the device, and the device fails to write them.
    SwapWrite {
        /// The error of the device.
        error: DeviceError,
    },
    /// The memory belongs to the process that created it, and the caller is a child made by `fork`.
    OtherProcess,
}

/// Error of adding a mapping or a swap area.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SwapError {
    /// The swap-in policy's name or parameter is wrong, or the eviction policy refuses the size of
    /// the memory.
    Policy(SpecError),
    /// The area reaches past the device.
    Beyond(BeyondDevice),
    /// There is already a swap area.
    Second,
    /// The pages of the mapping can't be numbered.
    TooManyPages {
        /// The requested number of pages.
        pages: u64,
    },
    /// The slots of the swap area can't be numbered.
    TooManySlots {
        /// The requested number of slots.
        slots: u64,
    },
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapError::Policy(error) => error.fmt(f),
            SwapError::Beyond(error) => {
                f.write_str("the swap area ")?;
                error.write_ends(f)?;
                f.write_str("; give a smaller area")
            }
            SwapError::Second => f.write_str("there is a swap area already; one is all there is"),
            SwapError::TooManyPages { pages } => write!(
                f,
                "a mapping of {pages} pages is too large to be numbered; give at most 4294967294"
            ),
            SwapError::TooManySlots { slots } => write!(
                f,
                "a swap area of {slots} pages is too large to be numbered; give at most 4294967294"
            ),
        }
    }
}

impl core::error::Error for SwapError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Policy(error) => error.fmt(f),
            // A memory of that size can't be given: `TooMuchMemory`.
            ConfigError::NoMemory { memory_bytes, needed_bytes }
                if *needed_bytes / PAGE_BYTES >= u64::from(u32::MAX) =>
            {
                write!(
                    f,
                    "a memory of {memory_bytes} bytes holds no page for reads beside the pinned \
                     pages; give less memory to pinned pages"
                )
            }
            ConfigError::NoMemory { memory_bytes, needed_bytes } => write!(
                f,
                "a memory of {memory_bytes} bytes holds no page for reads; give at least \
                 {needed_bytes} bytes"
            ),
            // 2^32 pages of 4 KiB are 16 TiB. Two numbers fewer are available.
            ConfigError::TooMuchMemory { memory_bytes } => write!(
                f,
                "a memory of {memory_bytes} bytes has more pages than the cache can number; \
                 give at most 16 TiB less 8 KiB"
            ),
            ConfigError::NoDepth => {
                f.write_str("a depth of 0 lets nothing through; give at least 1")
            }
            ConfigError::RequestTooSmall { request_sectors_max } => write!(
                f,
                "the device's largest request of {request_sectors_max} sectors is less than a page \
                 ({PAGE_SECTORS} sectors)"
            ),
        }
    }
}

impl core::error::Error for ConfigError {}

impl fmt::Display for BeyondDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the file ")?;
        self.write_ends(f)
    }
}

impl BeyondDevice {
    /// Writes both ends, as the predicate of a sentence about the file or the swap area.
    fn write_ends(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "would end at byte {}, the device ends at byte {}",
            u128::from(self.end_sector) * u128::from(SECTOR_BYTES),
            u128::from(self.device_sectors) * u128::from(SECTOR_BYTES)
        )
    }
}

impl core::error::Error for BeyondDevice {}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::NotEnoughMemory { needed_bytes, memory_bytes } => write!(
                f,
                "one read needs {needed_bytes} bytes of cache and there are {memory_bytes}; \
                 give more memory or read in smaller pieces"
            ),
            ReadError::TooManyReads { open_reads_max } => {
                write!(
                    f,
                    "{open_reads_max} reads are open already, the limit; wait for some to end"
                )
            }
            ReadError::Misaligned { value, alignment_bytes } => write!(
                f,
                "a direct transfer at or of {value} bytes; the device takes multiples of \
                 {alignment_bytes} bytes"
            ),
            ReadError::PastEnd { file_bytes } => {
                write!(f, "the write would go past the end of the file at byte {file_bytes}")
            }
            ReadError::Device { offset, error } => {
                write!(f, "at byte {offset} of the file: {error}")
            }
            ReadError::Shrunk { offset } => write!(
                f,
                "the file ends at or before byte {offset}: it has become shorter since it was opened"
            ),
            ReadError::SwapFull { slots, bad_slots } => write!(
                f,
                "memory is full, and the swap area of {slots} pages ({bad_slots} of them bad) has \
                 no slot left; give a larger area or more memory"
            ),
            ReadError::SwapWrite { error } => write!(
                f,
                "memory is full, and the swap area can't be written: {error}; give another device"
            ),
            ReadError::OtherProcess => f.write_str(
                "the memory is served in the process that created it, and this is a child of its \
                 `fork`; create it again in the child",
            ),
        }
    }
}

impl ReadError {
    /// The first byte of the file that a started read could not transfer. `None` for an error that
    /// concerns no position of a file, or that refuses a read before its start.
    pub(super) fn offset(&self) -> Option<u64> {
        match self {
            ReadError::Device { offset, .. } | ReadError::Shrunk { offset } => Some(*offset),
            _ => None,
        }
    }
}

impl core::error::Error for ReadError {}
