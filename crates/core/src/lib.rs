//! The read path as a pure state machine.
//!
//! Inputs are events and the time; outputs are requests. This crate has no clock, thread, file,
//! system call or randomness. Its decisions therefore drive modelled devices in virtual time and
//! real devices in real time.
//!
//! The modules, in the order in which a read passes them:
//!
//! - [`machine`] connects all others: a read comes in, requests go out, completions return, the
//!   read is done;
//! - [`cache`] holds pages under a memory budget;
//! - [`chunking`] has the chunking policies, which split a large transfer that bypasses the cache;
//! - [`readahead`] has the policies that select pages beyond the request;
//! - [`swapin`] has the corresponding policies for swapped-out memory, and documents the interface
//!   for an environment (the code around the machine) with more memory than frames;
//! - [`eviction`] has the policies that select the page to leave a full cache;
//! - [`scheduler`] has the policies for the order of requests.
//!
//! In addition, [`policy`] is the text form of a policy, with its parameters. [`estimate`]
//! estimates the costs of a device from completions, and [`request`] is a transfer with its
//! outcome. [`decision`] is the log of the decisions of all policies, with the numbers behind them.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod cache;
pub mod chunking;
pub mod decision;
pub mod estimate;
pub mod eviction;
pub mod length_distribution;
pub mod machine;
pub mod near_ranges;
mod observed;
pub mod page;
pub mod policy;
pub mod readahead;
pub mod request;
pub mod scheduler;
pub mod size;
pub mod splitmix;
pub mod swapin;
pub mod unit;
