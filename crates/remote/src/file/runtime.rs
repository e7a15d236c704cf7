//! The thread on which the requests of all files run that name no other runtime.

use std::io::Result;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle};

/// The thread's runtime, and the process that has started it.
static BACKGROUND: Mutex<Option<(u32, Handle)>> = Mutex::new(None);

/// The runtime of the background thread, which is started if this process has none.
///
/// # Errors
/// The system provides no thread.
pub(super) fn background() -> Result<Handle> {
    let mut background = BACKGROUND.lock().unwrap_or_else(PoisonError::into_inner);
    // A child made by `fork` has no copy of the thread.
    let process = std::process::id();
    if let Some((starter, handle)) = &*background
        && *starter == process
    {
        return Ok(handle.clone());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("readpath-remote".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    *background = Some((process, handle.clone()));
    Ok(handle)
}
