//! The simulation: jobs, workloads and memory loads on modelled devices, in virtual time.
//!
//! The simulation is deterministic. Equal inputs and an equal seed give bit-identical decisions.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

pub mod job;
pub mod load;
pub mod observe;
pub mod operation_log;
pub mod report;
pub mod run;
pub mod simulate;
pub mod stuck;
pub mod workload;
pub mod world;

pub use readpath_core::size;
