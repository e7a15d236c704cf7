//! Limit on the size of files (`RLIMIT_FSIZE`, `ulimit -f`).

use std::ptr;

/// Makes a write beyond the limit fail with `EFBIG`. By default `SIGXFSZ` ends the process.
///
/// Programs started by this process are not affected, because `execve(2)` resets a signal with a
/// handler to its default. A disposition chosen by the parent process stays.
pub fn report_as_error() {
    /// Handler without an effect. A handled signal lets the write return an error.
    extern "C" fn ignore(_: i32) {}
    // SAFETY: both structs are local, and the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGXFSZ, ptr::null(), &raw mut action) != 0
            || action.sa_sigaction != libc::SIG_DFL
        {
            return;
        }
        action.sa_sigaction = ignore as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGXFSZ, &raw const action, ptr::null_mut());
    }
}
