//! I/O priority of the calling thread, by the classes of jobs.

use readpath_core::request::{Class, Priority};
use readpath_os::io_priority;

use super::KernelError;

/// Sets the I/O priority of the calling thread. Its later reads and writes have it.
///
/// # Errors
/// The kernel refuses: the class real time needs root.
pub fn set_thread_priority(priority: Priority) -> Result<(), KernelError> {
    let class = match priority.class {
        Class::RealTime => io_priority::REAL_TIME,
        Class::BestEffort => io_priority::BEST_EFFORT,
        Class::Idle => io_priority::IDLE,
    };
    io_priority::set_of_thread(class, priority.level)
        .map_err(|error| KernelError::Priority { errno: error.raw_os_error().unwrap_or(0) })
}
