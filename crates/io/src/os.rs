//! System layer: calls, memory, time, threads and locks. It depends on no other layer.
//!
//! In a simulation, locks, threads and time are simulated ([`sync`]), as are the counters of memory
//! and the event descriptors.

pub(crate) mod aligned_bytes;
pub(crate) mod clock;
pub(crate) mod event_fd;
pub(crate) mod frames;
pub(crate) mod process;
pub(crate) mod raw_memory;
pub(crate) mod sync;
pub(crate) mod system_memory;
pub(crate) mod thread;

/// Largest number of bytes that one call moves (read(2)).
pub(crate) const CALL_BYTES_MAX: usize = 0x7fff_f000;

/// Error of a system call, as in `errno(3)`. An error of the kernel always has one.
pub(crate) fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}
