//! The read path for remote files: page cache, readahead, single flight and parallel ranges.
//!
//! [`planner`] decides which byte ranges of which files to fetch, and when. It does no I/O and has
//! no clock: the caller fetches the ranges by any means, and reports the bytes as they arrive.

#![forbid(unsafe_code)]

pub mod planner;

#[cfg(feature = "object_store")]
pub mod store;
