//! Kernel interfaces that the library, the recorder and the evaluation share.
//!
//! - [`queue`]: limits of a block device's request queue, from sysfs.
//! - [`page_cache`]: residency of a file in the kernel page cache, and `readahead(2)`.
//! - [`io_priority`]: I/O priority of the calling thread.
//! - [`mounts`]: mounted file systems.
//! - [`page_buffer`]: page-aligned memory for direct I/O.
//! - [`proc_text`]: fields in the text files of `/proc`.
//! - [`system_name`]: name and release of the running kernel.
//!
//! Linux only. No function keeps state. Only a real-time priority needs privileges.

pub mod io_priority;
pub mod mounts;
pub mod page_buffer;
pub mod page_cache;
pub mod proc_text;
pub mod queue;
mod system_name;

pub use system_name::system_name;
