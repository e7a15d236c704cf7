//! A request: one transfer between memory and the device, and its outcome.

use crate::unit::{SECTOR_BYTES, Time};

mod table;

pub use table::RequestTable;
pub(crate) use table::slots_to_add;

/// Identifies a request from its creation in the machine until its completion; reused afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

/// Identifies the process (or the stream) on whose behalf a request is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// From the device to memory.
    #[default]
    Read,
    /// From memory to the device.
    Write,
}

/// The I/O scheduling class of a process, as `ioprio_set(2)` names them, highest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Served before every other class.
    RealTime,
    /// The normal class.
    #[default]
    BestEffort,
    /// Served only if no other class has requests.
    Idle,
}

/// The I/O priority of a process: its class, and a level inside the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority {
    /// The class, which is compared first.
    pub class: Class,
    /// 0 (highest) to 7 (lowest); 4 is the default.
    pub level: u8,
}

impl Default for Priority {
    /// The middle level of the normal class, as in the kernel.
    fn default() -> Priority {
        Priority { class: Class::BestEffort, level: 4 }
    }
}

/// A request: sectors, direction, process and priority. It is in a [`RequestTable`] from creation
/// to completion; all other structures hold its identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The direction.
    pub op: Op,
    /// The first sector (512 bytes each) on the device.
    pub start: u64,
    /// Number of sectors; at least 1.
    pub sectors: u32,
    /// The requesting process.
    pub process: ProcessId,
    /// Priority of that process.
    pub priority: Priority,
    /// True for synchronous requests: every read, prefetch included, and a write that its caller
    /// waits for (the kernel's `REQ_SYNC`).
    pub is_sync: bool,
    /// Degree of need for the request at present.
    pub need: Need,
}

/// Degree of need for a request; becomes `Demand` as soon as a reader waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// Speculative prefetch: no reader waits, and most of the file's earlier prefetched pages were
    /// not used.
    Speculative,
    /// Prefetch of pages that are usually used, or whose outcome is not known yet; or a write that
    /// no caller waits for, as one that frees memory.
    Prefetch,
    /// Demand: a reader or caller waits for it.
    Demand,
}

impl Need {
    /// `Demand` for a request that is awaited from the start, and `Prefetch` for any other.
    pub const fn of(is_demand: bool) -> Need {
        if is_demand { Need::Demand } else { Need::Prefetch }
    }
}

impl Request {
    /// The sector after the last: exclusive.
    pub const fn end(&self) -> u64 {
        self.start + self.sectors as u64
    }

    /// Number of bytes.
    pub const fn bytes(&self) -> u64 {
        self.sectors as u64 * SECTOR_BYTES
    }

    /// Returns true if one of the two ends where the other starts.
    pub const fn touches(&self, other: &Request) -> bool {
        self.end() == other.start || other.end() == self.start
    }
}

/// Outcome of a request on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All bytes were moved.
    Done,
    /// Only the first `bytes` bytes were moved: the end of the file, or of the device, came first.
    Short {
        /// Moved bytes, from the start of the request.
        bytes: u64,
    },
    /// The device reported an error; no byte of the request may be used.
    Failed(DeviceError),
}

/// Error of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceError {
    /// The medium could not be read or written there (`EIO`).
    Medium,
    /// The device is gone (`ENODEV`, `ENXIO`).
    Gone,
    /// The device, or the file system on it, has no space left (`ENOSPC`).
    Full,
    /// The request was cancelled (`ECANCELED`).
    Cancelled,
    /// Permission was denied (`EACCES`).
    Refused,
    /// The file no longer exists on its server (`ESTALE`).
    Stale,
    /// The server did not answer within the timeout (`ETIMEDOUT`).
    TimedOut,
    /// The server's answer can't be decoded (`EBADMSG`).
    Garbled,
    /// Any other error, by its number in `errno(3)`.
    Other(i32),
}

impl core::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            DeviceError::Medium => {
                f.write_str("the storage could not read or write this range (EIO)")
            }
            DeviceError::Gone => f.write_str("the device is gone (ENODEV)"),
            DeviceError::Full => f.write_str("no space left on the device (ENOSPC)"),
            DeviceError::Cancelled => f.write_str("the request was cancelled (ECANCELED)"),
            DeviceError::Refused => f.write_str("permission refused by the device (EACCES)"),
            DeviceError::Stale => {
                f.write_str("the file is not there any more on the server (ESTALE); open it again")
            }
            DeviceError::TimedOut => f.write_str(
                "the server did not answer in time (ETIMEDOUT); check that it runs, or give it longer",
            ),
            DeviceError::Garbled => {
                f.write_str("the server's answers can't be understood (EBADMSG)")
            }
            DeviceError::Other(errno) => write!(f, "the device answered with errno {errno}"),
        }
    }
}

impl core::error::Error for DeviceError {}

/// Properties of a device, given once when the machine over it is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCaps {
    /// Its size in sectors.
    pub sectors: u64,
    /// Its largest request, in sectors.
    pub request_sectors_max: u32,
    /// Number of requests that it accepts at once; at least 1.
    pub depth_max: u32,
    /// True if it has a moving head (`queue/rotational`).
    pub is_rotational: bool,
    /// Required alignment of addresses and sizes, in sectors: 1 or 8.
    pub alignment_sectors: u32,
}

/// The part of a request that the device needs to execute it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// Identifier under which the completion returns.
    pub id: RequestId,
    /// The direction.
    pub op: Op,
    /// The first sector.
    pub start: u64,
    /// Number of sectors.
    pub sectors: u32,
}

impl DeviceRequest {
    /// The sector after the last: exclusive.
    pub const fn end(&self) -> u64 {
        self.start + self.sectors as u64
    }
}

/// Completion of a request by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Identifier of the request.
    pub id: RequestId,
    /// Latest time at which the device finished it: the time of the poll that found it, or the
    /// exact time.
    pub at: Time,
    /// Earliest such time: at this poll it was not finished. Equal to `at` if a thread waits for
    /// completions, or their times are known.
    pub not_before: Time,
    /// The outcome.
    pub outcome: Outcome,
}

impl Completion {
    /// Creates a completion at an exactly known time.
    pub const fn at(time: Time, id: RequestId, outcome: Outcome) -> Completion {
        Completion { id, at: time, not_before: time, outcome }
    }
}
