//! Work that may take long, on a thread of its own, so that Python's signals are heard meanwhile.

use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pyo3::prelude::*;

/// Signals are heard of after so long at the latest, however long the work takes.
const HEAR_EVERY: Duration = Duration::from_millis(50);

/// Does `work` on a thread of its own, and waits for it without Python's lock. After a signal whose handler raises, the work
/// goes on by itself.
///
/// Raises what the handler of a signal raises; OSError where the system gives no thread.
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
            py.detach(|| hears.lock().expect("nobody else has it").recv_timeout(HEAR_EVERY));
        match heard {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread tells, or panics"),
        }
    }
}
