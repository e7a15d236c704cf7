//! Paths of the scratch files of this process, for their removal when it ends without drops.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// All scratch files outside of scratch folders that this process has not removed yet.
pub(super) static CREATED_PATHS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes every file on this list, before an end without drops. A scratch folder stays until the
/// next run. Errors are ignored.
pub fn remove_all() {
    let mut created_paths = CREATED_PATHS.lock().unwrap_or_else(PoisonError::into_inner);
    for path in created_paths.drain(..) {
        let _ = std::fs::remove_file(path);
    }
}
