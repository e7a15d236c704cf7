//! Wait of a read of which only the call was seen.

use readpath_trace::recording::{ReadMethod, ReadOutcome, ReadRecord};

/// Assumed duration of a read without waiting, in ns, when the recording has no wait times. It is
/// chosen, and the time to copy the bytes is added.
const READ_WITHOUT_WAIT_NS: u64 = 20_000;

/// Assumed duration of a direct read without its wait, in ns. It copies nothing and always waits,
/// so only the call itself is subtracted. It is chosen.
const DIRECT_CALL_NS: u64 = 5_000;

/// Wait in ns that stands for none. The value 0 stands for an unknown one.
pub(crate) const NO_WAIT_NS: u64 = 1;

/// Error number of a device failure, EIO.
const EIO: u32 = 5;

/// Assumed speed of the copy of a read's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopySpeed {
    /// 1 ns a byte, as on a slow machine: nothing else shortens the wait.
    Slow,
    /// 0.1 ns a byte, as `COPY_NS` of the small calls: the sampled sleep of the thread shortens the
    /// wait where the copy takes longer.
    Fast,
}

impl CopySpeed {
    /// Returns the time to copy `bytes` bytes, in nanoseconds.
    fn copy_ns(self, bytes: u64) -> u64 {
        match self {
            CopySpeed::Slow => bytes,
            CopySpeed::Fast => bytes / 10,
        }
    }
}

/// Returns the time in nanoseconds that a read of `bytes` bytes has waited for a device. It is the
/// part of its duration beyond the usual time without a wait. A read that `is_direct` passes the
/// page cache. A read with another error than EIO has waited 0 ns: a signal or an empty queue ended
/// it, not a device.
///
/// The duration of a sampled page fault is the time of threads asleep in faults, so all of it is
/// the wait. The copy of a read by io_uring is no part of its time in flight.
pub(crate) fn wait_of_call(
    read: &ReadRecord,
    bytes: u64,
    is_direct: bool,
    speed: CopySpeed,
) -> u64 {
    if !matches!(read.outcome, ReadOutcome::Bytes(_) | ReadOutcome::Error(EIO)) {
        return 0;
    }
    let usual_ns = match read.way {
        ReadMethod::Fault => 0,
        _ if is_direct => DIRECT_CALL_NS,
        ReadMethod::Uring => READ_WITHOUT_WAIT_NS,
        _ => READ_WITHOUT_WAIT_NS + speed.copy_ns(bytes),
    };
    read.duration_ns().saturating_sub(usual_ns)
}

/// Returns the time in nanoseconds that a recorded read of `bytes` bytes has waited for a device.
/// It is the recorded wait, cut to the duration of the read. The recorder has computed it from the
/// call and from samples of the thread's sleep. A recorded wait of 0 is unknown: it then follows
/// from the call alone.
pub(crate) fn wait_of_recorded(read: &ReadRecord, bytes: u64, is_direct: bool) -> u64 {
    match read.waited_ns {
        0 => wait_of_call(read, bytes, is_direct, CopySpeed::Slow),
        NO_WAIT_NS => 0,
        waited_ns => waited_ns.min(read.duration_ns()),
    }
}
