//! Memory whose pages are brought in by us: faults served in user space.
//!
//! - [`uffd`]: the kernel's interface for it, userfaultfd, call by call.

pub mod uffd;
