//! Threads started by this crate.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

/// Starts a thread that never runs a signal handler of the program.
///
/// A signal for the process goes to any thread that does not block it. A handler may wait for
/// something that only this thread provides, such as a page of a mapping.
///
/// # Errors
/// The system provides no thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    let (mut all_signals, mut previous_mask) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets are written before they are read. A thread inherits the mask of its
    // creator, so it never runs with another one.
    unsafe {
        libc::sigfillset(all_signals.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all_signals.as_ptr(), previous_mask.as_mut_ptr());
    }
    // All signals are blocked in this thread for the moment.
    let thread = Builder::new().name(name.to_owned()).spawn(body);
    // SAFETY: the set was written above.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, previous_mask.as_ptr(), std::ptr::null_mut())
    };
    thread
}

/// Runs foreign code (wakers, subscribers) and stops its panics. The panic hook has reported the
/// panic, and the thread continues.
pub(crate) fn run_contained(act: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(act)) {
        // Dropping the payload might panic as well.
        std::mem::forget(payload);
    }
}
