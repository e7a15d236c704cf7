//! End of a swap area of this project.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use readpath_trace::recording::{path_bytes, path_text};

use crate::escaped_path::unescaped;

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
    has_preferred_area(&std::fs::read("/proc/swaps").unwrap_or_default(), path)
}

/// Returns true when the text of `/proc/swaps` has `path` with the highest priority.
fn has_preferred_area(swaps: &[u8], path: &Path) -> bool {
    let priority = (PREFERRED & 0x7fff).to_string();
    path_text(swaps).lines().skip(1).any(|line| {
        // The first column is the path, and the last one the priority. No whitespace of a path is
        // ASCII here: the kernel has escaped it.
        let mut columns = line.split_ascii_whitespace();
        let area_path = path_bytes(&unescaped(columns.next().unwrap_or_default()));
        area_path == path.as_os_str().as_bytes() && columns.last() == Some(&priority)
    })
}

/// Path of an opened file, for the C library.
///
/// # Panics
/// The path has a byte 0, so it cannot have been opened.
pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("a path that was opened holds no 0")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    /// The kernel writes space, tab, newline and backslash of a path as `\\` and three octal
    /// digits (swap_show in mm/swapfile.c). A no-break space and the byte E9, no UTF-8, stay as
    /// they are.
    #[test]
    fn area_is_found_by_each_path_that_the_kernel_escapes() {
        let escaped: [(&[u8], &[u8]); 7] = [
            (br"/a\040b", b"/a b"),
            (br"/a\011b", b"/a\tb"),
            (br"/a\012b", b"/a\nb"),
            (br"/a\134b", br"/a\b"),
            (br"/a\134040", br"/a\040"),
            (b"/a\xc2\xa0b", b"/a\xc2\xa0b"),
            (b"/a\xe9b", b"/a\xe9b"),
        ];
        for (text, path) in escaped {
            let mut swaps = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                /other                                  file\t\t1024\t\t0\t\t-2\n"
                .to_vec();
            swaps.extend_from_slice(text);
            swaps.extend_from_slice(b"                            file\t\t1024\t\t0\t\t32767\n");
            let path = Path::new(OsStr::from_bytes(path));
            assert!(has_preferred_area(&swaps, path), "{path:?}");
            assert!(!has_preferred_area(&swaps, Path::new("/other")));
        }
    }
}
