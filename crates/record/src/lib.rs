//! Recordings of any program's reads, and the diagnosis of its waiting time.
//!
//! - [`capture`]: recordings from the kernel's tracepoints, from a preloaded library or by
//!   sampling;
//! - [`explain`]: causes of waiting time in a recording, their costs and remedies;
//! - [`live`]: the diagnosis of all recorded processes, interval by interval;
//! - [`cold`]: a cold start, checked;
//! - [`cleanup`]: the cleanup journal of objects that a killed run leaves;
//! - [`notice`]: messages on standard error;
//! - [`direct_reads`]: reads past the page cache, for measurements;
//! - [`thinned`]: a bounded sample of a long sequence;
//! - [`recorded_set`]: the pages of a recording, brought in ahead of a later run.

#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

mod called_wait;
pub mod capture;
pub mod cleanup;
pub mod cold;
pub mod direct_reads;
mod escaped_path;
pub mod explain;
pub mod file_limit;
pub mod live;
mod median;
pub mod notice;
mod readahead_file;
pub mod readahead_window;
pub mod recorded_set;
mod schedstat;
pub mod swap_off;
pub mod thinned;
pub mod tracefs;
