//! The simulation: devices in virtual time, workloads, experiments.
//!
//! The simulation is deterministic. Equal inputs and an equal seed give bit-identical decisions.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

pub mod blocks;
pub mod caching;
pub mod conform;
pub mod device;
pub mod experiment;
pub mod explain;
pub mod fields;
pub mod input_file;
pub mod job;
pub mod load;
pub mod observe;
pub mod operation_log;
mod page_set;
pub mod path_text;
pub mod profile;
pub mod recording;
pub mod regret;
pub mod report;
pub mod run;
pub mod simulate;
pub mod stuck;
pub mod trace;
pub mod validate;
pub mod what_if;
pub mod workload;
pub mod world;

pub use readpath_core::size;
