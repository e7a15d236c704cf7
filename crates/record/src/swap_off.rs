//! End of a swap area of this project.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `SWAP_FLAG_PREFER` with the highest priority, 32767 (swapon(2)).
pub const PREFERRED: libc::c_int = 0x8000 | 0x7fff;

/// Ends the swap area at `path`.
///
/// # Errors
/// The caller is not root, or the path is no swap area.
pub fn swap_off(path: &Path) -> io::Result<()> {
    let name = c_path(path);
    // SAFETY: `name` is a 0-terminated string that outlives the call.
    match unsafe { libc::swapoff(name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns true when `path` is a swap area with the priority used here, the highest.
pub fn is_ours(path: &Path) -> bool {
    let priority = (PREFERRED & 0x7fff).to_string();
    let areas = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    areas.lines().skip(1).any(|line| {
        // The first column is the path, and the last one the priority.
        let area_path = line.split_whitespace().next().unwrap_or_default().replace("\\040", " ");
        Path::new(&area_path) == path && line.split_whitespace().last() == Some(&priority)
    })
}

/// Path of an opened file, for the C library.
///
/// # Panics
/// The path has a byte 0, so it cannot have been opened.
pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("a path that was opened holds no 0")
}
