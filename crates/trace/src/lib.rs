//! Recordings of reads, block traces and reference traces, and their replay in the simulation.
//!
//! - [`recording`]: the reads of a program, with their waits: made by `readpath record` or
//!   imported;
//! - [`block_trace`]: traces of block requests in published formats;
//! - [`read_list`]: lists of reads of `readpath check-kernel`;
//! - [`objects`]: traces of references to objects with sizes, and the misses of a cache in bytes;
//! - [`references`]: traces of page references, and the misses of eviction policies on them;
//! - [`replay`]: the reads of a recording under another policy, device or memory size;
//! - [`scheduler_replay`]: lists of arrivals and completions, and a scheduler's decisions on them.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

pub mod block_trace;
mod error;
pub mod objects;
pub mod page_set;
pub mod read_list;
pub mod recording;
pub mod references;
pub mod replay;
pub mod scheduler_replay;

pub use error::TraceError;
