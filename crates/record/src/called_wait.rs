//! Wait of a read of which only the call was seen.

use readpath_trace::recording::{ReadOutcome, ReadRecord};

/// Assumed duration of a read without waiting, in ns, when the recording has no wait times. It is
/// chosen, and one ns per byte for the copy is added, as on a slow machine.
const READ_WITHOUT_WAIT_NS: u64 = 20_000;

/// Error number of a device failure, EIO.
const EIO: u32 = 5;

/// Returns the time in nanoseconds that a read of `bytes` bytes has waited for a device. It is the
/// part of its duration beyond the usual time without a wait. A read with another error than EIO
/// has waited 0 ns: a signal or an empty queue ended it, not a device.
pub(crate) fn wait_of_call(read: &ReadRecord, bytes: u64) -> u64 {
    match read.outcome {
        ReadOutcome::Bytes(_) | ReadOutcome::Error(EIO) => {
            read.duration_ns().saturating_sub(READ_WITHOUT_WAIT_NS + bytes)
        }
        _ => 0,
    }
}
