//! Errors of a userfaultfd.

use std::fmt;

use rustix::io::Errno;

use super::DEVICE;

/// Reason for a missing userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UffdError {
    /// The kernel was built without it.
    None,
    /// It exists, but this process may not use it.
    Forbidden {
        /// Error number of the kernel, as in `errno(3)`.
        errno: i32,
    },
    /// It lacks a feature that the pager needs.
    Old {
        /// The missing feature.
        feature: &'static str,
        /// First kernel version with the feature.
        since: &'static str,
    },
}

impl UffdError {
    /// True if the process or the system has no free descriptor now.
    pub(in crate::pager) fn is_descriptor_limit(&self) -> bool {
        matches!(self, UffdError::Forbidden { errno: libc::EMFILE | libc::ENFILE })
    }
}

impl fmt::Display for UffdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UffdError::None => f.write_str(
                "this kernel has no userfaultfd, by which faults are served in user space; it \
                 needs one built with CONFIG_USERFAULTFD",
            ),
            UffdError::Forbidden { errno: errno @ (libc::EMFILE | libc::ENFILE) } => write!(
                f,
                "userfaultfd, by which faults are served in user space, can't be opened ({}); \
                 close files, or raise the limit (`ulimit -n`)",
                std::io::Error::from_raw_os_error(*errno)
            ),
            UffdError::Forbidden { errno } => write!(
                f,
                "userfaultfd, by which faults are served in user space, is refused here ({}); \
                 have one of: the system call let through by the container's seccomp profile, \
                 read and write access to {DEVICE}, or `sysctl vm.unprivileged_userfaultfd=1`",
                std::io::Error::from_raw_os_error(*errno)
            ),
            UffdError::Old { feature, since } => write!(
                f,
                "this kernel's userfaultfd lacks {feature}; it needs Linux {since} or later"
            ),
        }
    }
}

impl std::error::Error for UffdError {}

/// Error of a call on a userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallError {
    /// Name of the call.
    pub call: &'static str,
    /// Error number of the kernel.
    pub(crate) errno: Errno,
    /// Number of bytes done before the error.
    pub bytes_done: usize,
}

impl CallError {
    /// Returns a function that converts the kernel's error of the call `call`, which has done
    /// nothing.
    pub(super) fn from_errno(call: &'static str) -> impl Fn(Errno) -> CallError {
        move |errno| CallError { call, errno, bytes_done: 0 }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "userfaultfd's call `{}` failed: {}", self.call, self.errno)
    }
}

impl std::error::Error for CallError {}
