//! I/O priority of the calling thread, for the schedulers of the kernel (`ioprio_set(2)`).

use std::io;

/// Class that is served before all others (`IOPRIO_CLASS_RT`). It needs root.
pub const REAL_TIME: i32 = 1;

/// Class of programs without a priority of their own (`IOPRIO_CLASS_BE`).
pub const BEST_EFFORT: i32 = 2;

/// Class that is served when no other has a request (`IOPRIO_CLASS_IDLE`).
pub const IDLE: i32 = 3;

/// Last level of a class; level 0 is served first.
pub const LEVEL_LAST: u8 = 7;

/// Bits of a kernel priority below its class (`IOPRIO_CLASS_SHIFT`).
const CLASS_SHIFT: u32 = 13;

/// Returns the kernel's number of a priority: the class above the level.
fn kernel_number(class: i32, level: u8) -> i32 {
    class << CLASS_SHIFT | i32::from(level)
}

/// Gives the calling thread a class, such as [`BEST_EFFORT`], and a level from 0 to [`LEVEL_LAST`].
/// Its later reads and writes have them.
///
/// # Errors
/// The kernel refuses: the class [`REAL_TIME`] needs root.
pub fn set_of_thread(class: i32, level: u8) -> io::Result<()> {
    const WHO_PROCESS: libc::c_int = 1; // IOPRIO_WHO_PROCESS, ioprio_set(2)
    const THIS_THREAD: libc::c_int = 0;
    let number = kernel_number(class, level);
    // SAFETY: the call accesses no memory.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, THIS_THREAD, number) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Priority of the calling thread, as the kernel returns it.
    fn of_thread() -> libc::c_long {
        // SAFETY: the call accesses no memory.
        unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) }
    }

    /// `ioprio_set(2)`: best effort is class 2, idle class 3, and the class is above 13 bits.
    #[test]
    fn thread_has_the_priority_that_was_set() {
        for (class, level, number) in [(BEST_EFFORT, LEVEL_LAST, 0x4007), (IDLE, 0, 0x6000)] {
            set_of_thread(class, level).unwrap();
            assert_eq!(of_thread(), number);
        }
        // The class real time needs root, which a test may not have.
        assert_eq!(kernel_number(REAL_TIME, 3), 0x2003);
    }
}
