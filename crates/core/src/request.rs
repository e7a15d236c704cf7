//! A request: one transfer between memory and the device, and what comes of it.

use crate::unit::{SECTOR_BYTES, Time};

mod table;

pub use table::RequestTable;
pub(crate) use table::more_requests;

/// Names a request from its creation in the machine until its completion; reused afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

/// Names the process (or the stream) on whose behalf something is read.
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

/// The I/O scheduling class of a process, as `ioprio_set(2)` names them, strongest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Served before every other class.
    RealTime,
    /// The normal class.
    #[default]
    BestEffort,
    /// Served only when nobody else wants the device.
    Idle,
}

/// The I/O priority of a process: its class, and a level inside the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority {
    /// The class, which decides first.
    pub class: Class,
    /// 0 (most) to 7 (least); 4 is the default.
    pub level: u8,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority { class: Class::BestEffort, level: 4 }
    }
}

/// A request: what is to be moved, for whom, and what for. It stands in a [`RequestTable`] from
/// its making to its end; everybody else holds its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The direction.
    pub op: Op,
    /// The first sector (512 bytes each) on the device.
    pub start: u64,
    /// How many sectors; at least 1.
    pub sectors: u32,
    /// Who asked.
    pub process: ProcessId,
    /// How urgent that process is.
    pub priority: Priority,
    /// Whether it is of the kind that a process waits for: every read, read ahead or not, and a
    /// write that its caller waits for (the kernel's `REQ_SYNC`).
    pub is_sync: bool,
    /// Whether somebody waits for it now, or is likely to come.
    pub need: Need,
}

/// Whether a request is needed. It is awaited as soon as somebody comes to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// Nobody waits for it, and of what was read ahead like it, most was not used, or nothing is known.
    Speculative,
    /// Nobody waits for it: it was read ahead like what was used as a rule, or is written to make room.
    Prefetch,
    /// Somebody waits for it.
    Demand,
}

impl Need {
    /// Of a request for which somebody waits from the start, or which is likely to be needed.
    pub const fn of(is_demand: bool) -> Need {
        if is_demand { Need::Demand } else { Need::Prefetch }
    }
}

impl Request {
    /// The sector after the last: exclusive.
    pub const fn end(&self) -> u64 {
        self.start + self.sectors as u64
    }

    /// How many bytes it moves.
    pub const fn bytes(&self) -> u64 {
        self.sectors as u64 * SECTOR_BYTES
    }

    /// Whether one of the two ends where the other starts.
    pub const fn touches(&self, other: &Request) -> bool {
        self.end() == other.start || other.end() == self.start
    }
}

/// How a request ended on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All bytes were moved.
    Done,
    /// Only the first `bytes` bytes were moved: the end of the file, or of the device, came first.
    Short {
        /// Bytes that were moved, from the start of the request.
        bytes: u64,
    },
    /// The device reported an error; no byte of the request may be used.
    Failed(DeviceError),
}

/// Why a device could not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceError {
    /// The medium could not be read or written there (`EIO`).
    Medium,
    /// The device is gone (`ENODEV`, `ENXIO`).
    Gone,
    /// The device, or the file system on it, has no room left (`ENOSPC`).
    Full,
    /// The request was withdrawn (`ECANCELED`).
    Cancelled,
    /// Permission was refused (`EACCES`, `EPERM`).
    Refused,
    /// The file is not there any more, where a server keeps it (`ESTALE`).
    Stale,
    /// The server did not answer in the time that it was given (`ETIMEDOUT`).
    TimedOut,
    /// What the server answered can't be understood (`EBADMSG`).
    Garbled,
    /// Any other error, by its number in `errno(3)`.
    Other(i32),
}

impl core::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            DeviceError::Medium => {
                f.write_str("the device could not read or write these sectors (EIO)")
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

/// What a device can do, given once when the path over it is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCaps {
    /// Its size in sectors.
    pub sectors: u64,
    /// The largest request that it takes, in sectors.
    pub request_sectors_max: u32,
    /// How many requests it takes at once; at least 1.
    pub depth_max: u32,
    /// Whether it has a head that must travel (`queue/rotational`).
    pub is_rotational: bool,
    /// The alignment that it asks of addresses and sizes, in sectors: 1 or 8.
    pub alignment_sectors: u32,
}

/// What the machine hands to the device: as much of a request as is needed to carry it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The name under which the completion comes back.
    pub id: RequestId,
    /// The direction.
    pub op: Op,
    /// The first sector.
    pub start: u64,
    /// How many sectors.
    pub sectors: u32,
}

impl DeviceRequest {
    /// The sector after the last: exclusive.
    pub const fn end(&self) -> u64 {
        self.start + self.sectors as u64
    }
}

/// What the device hands back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which request.
    pub id: RequestId,
    /// When the device was done with it, at the latest.
    pub at: Time,
    /// And at the earliest: somebody looked then, and it was not done. The same where
    /// somebody waits for completions, or knows when they came.
    pub not_before: Time,
    /// How it ended.
    pub outcome: Outcome,
}

impl Completion {
    /// The device was done with the request at that time.
    pub const fn at(at: Time, id: RequestId, outcome: Outcome) -> Completion {
        Completion { id, at, not_before: at, outcome }
    }
}
