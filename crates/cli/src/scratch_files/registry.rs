//! Paths of the scratch files of this process, for their removal when it ends without drops.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// All files that this process has created and not removed yet.
pub(super) static CREATED_PATHS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes every file that this process has created, before an end without drops. Errors are
/// ignored.
pub fn remove_all() {
    let mut created_paths = CREATED_PATHS.lock().unwrap_or_else(PoisonError::into_inner);
    for path in created_paths.drain(..) {
        let _ = std::fs::remove_file(path);
    }
}
