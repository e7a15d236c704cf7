//! Wait of a read of which only the call was seen.

use readpath_trace::recording::{ReadOutcome, ReadRecord};

/// Assumed duration of a read without waiting, in ns, when the recording has no wait times. It is
/// chosen, and one ns per byte for the copy is added, as on a slow machine.
const READ_WITHOUT_WAIT_NS: u64 = 20_000;

/// Assumed duration of a direct read without its wait, in ns. It copies nothing and always waits,
/// so only the call itself is subtracted. It is chosen.
const DIRECT_CALL_NS: u64 = 5_000;

/// Wait in ns that stands for none. The value 0 stands for an unknown one.
pub(crate) const NO_WAIT_NS: u64 = 1;

/// Error number of a device failure, EIO.
const EIO: u32 = 5;

/// Returns the time in nanoseconds that a read of `bytes` bytes has waited for a device. It is the
/// part of its duration beyond the usual time without a wait. A read that `is_direct` passes the
/// page cache. If samples of the thread's sleep have bounded the wait, the bound holds. A read with
/// another error than EIO has waited 0 ns: a signal or an empty queue ended it, not a device.
pub(crate) fn wait_of_call(read: &ReadRecord, bytes: u64, is_direct: bool) -> u64 {
    let usual_ns = if is_direct { DIRECT_CALL_NS } else { READ_WITHOUT_WAIT_NS + bytes };
    let wait_ns = match read.outcome {
        ReadOutcome::Bytes(_) | ReadOutcome::Error(EIO) => {
            read.duration_ns().saturating_sub(usual_ns)
        }
        _ => 0,
    };
    match read.waited_ns {
        0 => wait_ns,
        NO_WAIT_NS => 0,
        bound_ns => wait_ns.min(bound_ns),
    }
}
