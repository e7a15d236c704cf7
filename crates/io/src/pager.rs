//! Memory whose pages are brought in by us: faults served in user space.
//!
//! - [`Mapping`]: a file as memory, with reads decided by a readahead law;
//! - [`Region`]: memory larger than its budget, the rest in a file or on a device;
//! - [`FaultScope`]: whose touches can be served here; [`UffdError`], [`CallError`]: why none.
//!
//! # Which thread serves a fault
//! A thread of ours that keeps to the core of the faulting thread (`follow.rs`).
//! The other way, a handler of `SIGBUS` in the faulting thread itself, spares
//! two switches of threads. It was not chosen: a system call that is given an
//! absent page then fails, where a thread of ours can bring it in; it takes
//! the process's one handler of that signal; and it would run the whole read
//! path in the middle of the program's own code, on its stack, which may hold
//! any lock.

mod area;
mod error;
mod follow;
mod inherited;
mod left_to_kernel;
mod link;
mod mapping;
mod mapping_server;
mod page_map;
mod region;
mod region_server;
mod runs;
mod take_back;
pub(crate) mod uffd;
mod wait;

pub use error::PagerError;
pub use mapping::{KernelMapping, LoadError, Mapping};
pub use mapping::{MappingBuilder, MappingMode, MappingStatistics};
pub use region::{Region, RegionBuilder, RegionStatistics};
pub use uffd::{CallError, FaultScope, UffdError};
