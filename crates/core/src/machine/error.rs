//! What can go wrong: building a path, opening a file on it, reading.

use core::fmt;

use crate::policy::SpecError;
use crate::request::DeviceError;
use crate::unit::{PAGE_SECTORS, SECTOR_BYTES};

/// Why a read path could not be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A law's name or parameter is wrong.
    Policy(SpecError),
    /// Beside what may be lent there is no memory for a page.
    NoMemory {
        /// What was given, in bytes.
        memory_bytes: u64,
        /// The least that does, in bytes.
        needed_bytes: u64,
    },
    /// There is more memory than the cache can name frames for.
    TooMuchMemory {
        /// What was given, in bytes.
        memory_bytes: u64,
    },
    /// The depth is 0.
    NoDepth,
    /// The device takes no request of a page.
    RequestTooSmall {
        /// Its largest request in sectors.
        request_sectors_max: u32,
    },
}

/// Why a file could not be opened on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeyondDevice {
    /// The sector after the file's last, were it there: exclusive.
    pub end_sector: u64,
    /// How many sectors the device has.
    pub device_sectors: u64,
}

/// Why a read or a write failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReadError {
    /// The read alone is larger than the memory of the cache.
    NotEnoughMemory {
        /// Memory for the pages that the read touches, in bytes.
        needed_bytes: u64,
        /// The memory that there is, in bytes.
        memory_bytes: u64,
    },
    /// Too many reads are open.
    TooManyReads {
        /// The limit that was set.
        open_reads_max: u32,
    },
    /// A direct transfer is not aligned as the device asks.
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
    /// The device failed on bytes that were needed.
    Device {
        /// The first byte of the file that could not be transferred.
        offset: u64,
        /// What the device said.
        error: DeviceError,
    },
    /// The file has become shorter than it was when it was opened.
    Shrunk {
        /// The first byte that is no longer there.
        offset: u64,
    },
    /// Memory is full of pages that differ from what is on the device, and no
    /// slot of the swap area is left to write one to.
    SwapFull {
        /// How many slots the area has.
        slots: u64,
        /// Those of them that the device could not write.
        bad_slots: u64,
    },
    /// Memory is full of pages that differ from what is on the device, and the
    /// device fails to write them.
    SwapWrite {
        /// What the device said.
        error: DeviceError,
    },
    /// The memory is served in the process that made it, and this is another: a child made
    /// by `fork`.
    OtherProcess,
}

/// Why there can be no such memory or swap area.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SwapError {
    /// The swap-in law's name or parameter is wrong.
    Policy(SpecError),
    /// The area reaches past the device.
    Beyond(BeyondDevice),
    /// There is a swap area already.
    Second,
    /// A mapping of so many pages can't be numbered.
    TooManyPages {
        /// What was asked for.
        pages: u64,
    },
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapError::Policy(error) => error.fmt(f),
            SwapError::Beyond(error) => {
                write!(f, "the swap area does not fit: {error}; give a smaller area")
            }
            SwapError::Second => f.write_str("there is a swap area already; one is all there is"),
            SwapError::TooManyPages { pages } => write!(
                f,
                "a mapping of {pages} pages is too large to be numbered; give less than 16 TiB"
            ),
        }
    }
}

impl core::error::Error for SwapError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Policy(error) => error.fmt(f),
            ConfigError::NoMemory { memory_bytes, needed_bytes } => write!(
                f,
                "a memory of {memory_bytes} bytes holds no page for reads; give at least \
                 {needed_bytes} bytes"
            ),
            ConfigError::TooMuchMemory { memory_bytes } => write!(
                f,
                "a memory of {memory_bytes} bytes has more pages than the cache can number; \
                 give less than 16 TiB"
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
        write!(
            f,
            "the file would end at byte {}, the device ends at byte {}",
            self.end_sector * SECTOR_BYTES,
            self.device_sectors * SECTOR_BYTES
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
                "the memory is served in the process that made it, and this is a child made by \
                 `fork`; make it anew in the child",
            ),
        }
    }
}

impl ReadError {
    /// The first byte of the file that it is about, if it is about one.
    pub(super) fn offset(&self) -> Option<u64> {
        match self {
            ReadError::Device { offset, .. } | ReadError::Shrunk { offset } => Some(*offset),
            _ => None,
        }
    }
}

impl core::error::Error for ReadError {}
