//! Memory whose page faults are served in user space.
//!
//! - [`Mapping`]: a file as memory, with reads decided by a readahead policy;
//! - [`Region`]: memory larger than its budget, with the rest in a file or on a device;
//! - [`FaultScope`]: the accesses that can be served here; [`UffdError`], [`CallError`]: causes of
//!   failure.
//!
//! # Which thread serves a fault
//! A thread of readpath that stays on the core of the faulting thread (`core_follower.rs`).
//!
//! The alternative is a handler of `SIGBUS` in the faulting thread itself, which saves two thread
//! switches. It was rejected for three reasons. A system call that receives an absent page fails,
//! whereas a separate thread can bring the page in. The handler occupies the only handler of that
//! signal in the process. It would also run the whole read path in the middle of the program's
//! code, on its stack, and the program may hold any lock at that time.

mod anonymous_area;
mod core_follower;
mod error;
mod fork_replacement;
mod kernel_mapping;
mod mapping;
mod mapping_server;
mod page_map;
mod page_ranges;
mod pager_link;
mod region;
mod region_server;
mod stats;
mod take_back_thread;
pub(crate) mod uffd;
mod wait;

pub use error::PagerError;
pub use mapping::{KernelMappingReason, LoadError, Mapping};
pub use mapping::{MappingBuilder, MappingMode};
pub use region::{Region, RegionBuilder};
pub use stats::{MappingStats, RegionStats};
pub use uffd::{CallError, FaultScope, UffdError};
