//! Threads started by this crate.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

thread_local! {
    /// Cores that the calling thread could use before it was pinned. `None` if it was not.
    static CORES_BEFORE_PIN: Cell<Option<CpuSet>> = const { Cell::new(None) };
}

/// Moves the calling thread to one core. Threads that it [starts](spawn) are not pinned. Returns
/// false if the system refuses.
///
/// # Panics
/// `core` is larger than a [`CpuSet`] can have.
pub(crate) fn pin_to_core(core: usize) -> bool {
    if CORES_BEFORE_PIN.get().is_none() {
        CORES_BEFORE_PIN.set(sched_getaffinity(None::<Pid>).ok());
    }
    let mut core_set = CpuSet::new();
    core_set.set(core);
    // Without the earlier cores, the threads that this one starts would stay on its core.
    CORES_BEFORE_PIN.get().is_some() && sched_setaffinity(None::<Pid>, &core_set).is_ok()
}

/// Returns the error of a future for which no thread can be started. The kernel's EAGAIN alone
/// would have the kind `WouldBlock`, which asks for another poll.
pub(crate) fn future_thread_error(error: &std::io::Error) -> std::io::Error {
    std::io::Error::other(format!(
        "the path's thread for futures can't be started ({error}); end other threads, or raise \
         their limit (`ulimit -u`)"
    ))
}

/// Starts a thread that never runs a signal handler of the program.
///
/// A signal for the process goes to any thread that does not block it. A handler may wait for
/// something that only this thread provides, such as a page of a mapping.
///
/// If the caller was [pinned](pin_to_core), the thread may use the caller's cores from before.
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
    let cores = CORES_BEFORE_PIN.get();
    // All signals are blocked in this thread for the moment.
    let thread = Builder::new().name(name.to_owned()).spawn(move || {
        if let Some(cores) = cores {
            // The kernel accepts a set that it has returned, unless the cores have gone since.
            let _ = sched_setaffinity(None::<Pid>, &cores);
        }
        body()
    });
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
