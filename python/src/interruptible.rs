//! Long work on a separate thread, so that Python can handle signals meanwhile.

use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pyo3::prelude::*;

/// Maximum delay before signals are handled.
pub const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Runs `work` on a separate thread and returns its result. Waits for it without Python's lock. If
/// a signal handler raises, the work continues, and its result is dropped.
///
/// Raises the signal handler's exception, or OSError if the system refuses a thread. A panic of
/// `work` is a panic here too.
pub fn run_interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::Builder::new().name("readpath-beside".to_owned()).spawn(move || {
        // The receiver is gone if a signal handler has raised.
        let _ = sender.send(work());
    })?;
    // `detach` borrows only values that threads can share, and a receiver alone is not one.
    let receiver = Mutex::new(receiver);
    loop {
        let received = py.detach(|| {
            let receiver = receiver.lock().expect("only this thread locks it");
            receiver.recv_timeout(SIGNAL_CHECK_INTERVAL)
        });
        match received {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends, or panics"),
        }
    }
}
