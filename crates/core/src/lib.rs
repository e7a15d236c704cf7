//! The read path as a pure machine.
//!
//! Events and the time go in, requests come out. There is no clock, thread,
//! file, system call or randomness in here, so that the same decisions drive
//! modelled devices in virtual time and real devices on the wall clock.
//!
//! The rooms, in the order in which a read walks through them:
//!
//! - [`machine`] joins everything: a read comes in, requests go out,
//!   completions come back, the read is done;
//! - [`cache`] holds pages under a memory budget;
//! - [`raw`] holds the laws that decide how a large transfer past the cache is cut;
//! - [`readahead`] holds the laws that decide what is read beyond the request;
//! - [`swapin`] holds those that do so for memory that was swapped out, and how
//!   a world drives memory larger than memory;
//! - [`scheduler`] holds the laws that decide the order of the requests.
//!
//! Beside them, [`decision`] is the log in which laws of every kind say what they decided, and by
//! which numbers.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod cache;
pub mod decision;
pub mod estimate;
pub mod eviction;
pub mod length_distribution;
pub mod machine;
mod observed;
pub mod policy;
pub mod raw;
pub mod readahead;
pub mod request;
pub mod scheduler;
pub mod size;
pub mod splitmix;
pub mod swapin;
pub mod unit;
