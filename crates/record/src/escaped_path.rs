//! Paths in the texts of the kernel about mounts and swap areas.

/// Replaces the escapes in a path of the files of proc(5) about mounts and swap areas: `\\` and
/// three digits.
pub fn unescaped(path: &str) -> String {
    // The backslash comes last: it must not form an escape with the digits behind it.
    let path = path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    path.replace("\\134", "\\")
}
