//! The path from outside: each file below is a part of one program, which is linked once. What must be alone in its
//! process (it forks, sets limits, counts memory or descriptors) is a program of its own, beside this folder.

mod block_device;
mod contract;
mod decisions;
mod file;
mod foreign;
mod public;
mod raw_batch;
mod raw_beside;
mod raw_file;
mod reader;
mod same_requests;
mod scans;
#[path = "../support/mod.rs"]
mod support;
