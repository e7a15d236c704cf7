//! I/O priority of the calling thread, for the schedulers of the kernel (`ioprio_set(2)`).

use std::io;

use readpath_core::request::{Class, Priority};

use super::KernelError;

/// Bits of a kernel priority below its class (`IOPRIO_CLASS_SHIFT`).
const CLASS_SHIFT: u32 = 13;

/// Returns the kernel's number of a priority: the class above the level.
fn kernel_priority(priority: Priority) -> libc::c_int {
    let class = match priority.class {
        Class::RealTime => 1,
        Class::BestEffort => 2,
        Class::Idle => 3,
    };
    class << CLASS_SHIFT | libc::c_int::from(priority.level)
}

/// Sets the I/O priority of the calling thread. Its later reads and writes have it.
///
/// # Errors
/// The kernel refuses: the class real time needs root.
pub fn set_thread_priority(priority: Priority) -> Result<(), KernelError> {
    const WHO_PROCESS: libc::c_int = 1; // IOPRIO_WHO_PROCESS, ioprio_set(2)
    const THIS_THREAD: libc::c_int = 0;
    let number = kernel_priority(priority);
    // SAFETY: the call accesses no memory.
    let status = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, THIS_THREAD, number) };
    match status {
        0 => Ok(()),
        _ => {
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
            Err(KernelError::Priority { errno })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Priority of the calling thread, as the kernel returns it.
    fn thread_priority() -> libc::c_long {
        // SAFETY: the call accesses no memory.
        unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) }
    }

    /// `ioprio_set(2)`: best effort is class 2, idle class 3, and the class is above 13 bits.
    #[test]
    fn thread_has_the_priority_that_was_set() {
        for (class, level, number) in [(Class::BestEffort, 7, 0x4007), (Class::Idle, 0, 0x6000)] {
            set_thread_priority(Priority { class, level }).unwrap();
            assert_eq!(thread_priority(), number);
        }
        // The class real time needs root, which a test may not have.
        assert_eq!(kernel_priority(Priority { class: Class::RealTime, level: 3 }), 0x2003);
    }
}
