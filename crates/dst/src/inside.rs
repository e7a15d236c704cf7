//! Layers of the library below its interface, for tests and benchmarks of these layers.

pub use crate::nfs::storage::NfsStorage;
pub use crate::nfs::target::NfsTarget;
pub use crate::os::clock::Clock;
pub use crate::pager::uffd::{RangeRegistration, Uffd};
pub use crate::storage::{FileStorage, Sleep, Sleeper, Storage};
pub use crate::target::{OpenOptions, Target};
