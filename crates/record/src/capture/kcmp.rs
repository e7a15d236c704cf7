//! Comparison of the open files of descriptors, by `kcmp(2)`.

use std::cmp::Ordering;

/// Returns the order of the open files of two descriptors, each given by its process and number.
/// Equal ones have one position. `None` if the kernel does not compare them for this user, or if
/// one is closed.
pub(super) fn compare_open_files(left: (u32, u64), right: (u32, u64)) -> Option<Ordering> {
    /// `KCMP_FILE` of `linux/kcmp.h`.
    const KCMP_FILE: libc::c_int = 0;
    let [one, other] = [left.0, right.0].map(|process| process as libc::pid_t);
    // SAFETY: the call only compares; it has no pointers.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILE, left.1, right.1) };
    match result {
        0 => Some(Ordering::Equal),
        1 => Some(Ordering::Less),
        2 => Some(Ordering::Greater),
        // Objects of different types, for which 3 stands, are none here.
        _ => None,
    }
}
