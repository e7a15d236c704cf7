//! Long work on a separate thread, so that Python can handle signals meanwhile.

use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pyo3::prelude::*;

/// Maximum delay before signals are handled.
const HEAR_EVERY: Duration = Duration::from_millis(50);

/// Runs `work` on a separate thread and waits for it without Python's lock. If a signal handler
/// raises, the work continues without a waiter.
///
/// Raises the signal handler's exception, or OSError if the system refuses a thread.
pub fn beside<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (told, hears) = mpsc::sync_channel(1);
    std::thread::Builder::new().name("readpath-beside".to_owned()).spawn(move || {
        let _ = told.send(work());
    })?;
    let hears = Mutex::new(hears);
    loop {
        let heard =
            py.detach(|| hears.lock().expect("this thread alone has it").recv_timeout(HEAR_EVERY));
        match heard {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread tells, or panics"),
        }
    }
}
