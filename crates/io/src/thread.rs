//! The threads that this crate starts for itself.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

/// Starts a thread on which no signal handler of the program ever runs.
///
/// A signal for the process is delivered to any thread that doesn't block it. A handler may wait
/// for what only this thread can give, such as a page of a mapping; and what it
/// interrupts here is not the program's.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets are written before they are read. A thread begins with the mask
    // of the one that starts it, so it never runs with another.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let thread = Builder::new().name(name.to_owned()).spawn(body);
    // SAFETY: the set was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    thread
}

/// Runs code of others on a thread that has nothing to do with it. Should it panic, the panic hook
/// has reported that, and the thread goes on.
pub(crate) fn contain(act: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(act)) {
        // Its drop might panic as well.
        std::mem::forget(payload);
    }
}
