//! The read path in user space: page cache, readahead and scheduling over real storage.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let name = std::env::temp_dir().join(format!("readpath-doc-crate-{}", std::process::id()));
//! # std::fs::write(&name, [7; 100_000])?;
//! let path = readpath::ReadPath::builder().memory(64 << 20).build()?;
//! let file = path.open(&name)?;
//! let mut buffer = [0; 1000];
//! file.read_exact_at(&mut buffer, 50_000)?;
//! println!("{:?}", path.stats());
//! # assert_eq!(buffer, [7; 1000]);
//! # std::fs::remove_file(&name)?;
//! # Ok(())
//! # }
//! ```
//!
//! For programs: [`ReadPath`] has the memory and the laws, [`File`] is read at any
//! place by any number of threads; [`Reader`], [`Batch`], [`ReadFuture`] and
//! [`PageGuard`] are other ways to the same bytes.
//!
//! [`RawFile`] moves large transfers past every cache. [`Mapping`] is a file as memory,
//! [`Region`] memory larger than its budget. Each comes from a builder: `T::builder()`, what is
//! to be said, and the last word, `build` or `open`; laws are named as `readpath policies` lists
//! them, `ondemand,read_ahead_kb=1024`. Every type that is met on the way is in this crate:
//!
//! - here: what is used, what a builder takes, and errors;
//! - [`raw`]: large transfers in chunks;
//! - [`pager`]: memory whose pages are brought in by us;
//! - [`nfs`]: a file on an NFS server.
//!
//! With the feature `tracing` a path tells spans and events to the crate of that name, with `usdt` it has
//! points for `bpftrace`; [`Stats::prometheus`] is what was counted in Prometheus' text format.
//!
//! Which of them a program wants, each law in words and in a picture, figures and limits are in
//! [the book](https://github.com/readpath/readpath/blob/main/book/src/introduction.md).
//!
//! The decisions are made by the pure core, `readpath-core`. This crate carries them out:
//! memory, files, AIO and io_uring, the wall clock.

mod aio;
mod backend;
mod batch;
mod bell;
mod clock;
mod copied;
mod engine;
mod file;
mod frames;
mod future;
mod guard;
mod identity;
mod kernel_pages;
pub mod nfs;
mod opening;
mod outcome;
pub mod pager;
mod path;
mod points;
mod process;
mod prometheus;
pub mod raw;
mod read_error;
mod readahead_state;
mod reader;
mod ring;
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
pub mod simulation;
mod spare_memory;
mod storage;
mod sync;
mod sysfs;
mod target;
mod thread;
mod threads;
mod transfers;

pub use backend::{BackendError, BackendInUse, BackendKind, UnknownBackend};
pub use batch::{Batch, BatchRead, PutRead};
pub use file::{File, FileStats};
pub use frames::FrameMemoryError;
pub use future::ReadFuture;
pub use guard::PageGuard;
pub use nfs::{NfsError, NfsUrl};
pub use opening::OpenFileError;
pub use pager::{Mapping, PagerError, Region};
pub use path::{BuildError, Builder, Coherence, ReadPath, Stats};
pub use prometheus::LabelError;
pub use raw::RawFile;
pub use read_error::{Forked, ReadError};
pub use readahead_state::{ReadaheadState, ReadaheadWindow};
pub use reader::Reader;
pub use target::{BufferedBecause, Direct, Mode, OpenError};

// The core's, as far as a program meets them: what it says, errors, and the log of decisions.
pub use readpath_core::decision::{Decision, LoggedDecision};
pub use readpath_core::machine::ReadError as MemoryError;
pub use readpath_core::machine::{BeyondDevice, ConfigError, SwapError};
pub use readpath_core::policy::SpecError;
pub use readpath_core::readahead::Advice;
pub use readpath_core::request::{Class, DeviceError, Op, ProcessId, RequestId};
pub use readpath_core::unit::Time;

/// What stands under the library, for this repository's own tests and benchmarks: a machine is held
/// on it against the modelled one, and a fault served without a pager. It is no part of the interface.
#[doc(hidden)]
pub mod inside {
    pub use crate::clock::Clock;
    pub use crate::nfs::storage::NfsStorage;
    pub use crate::nfs::target::NfsTarget;
    pub use crate::pager::uffd::{RangeRegistration, Uffd};
    #[cfg(feature = "simulation")]
    pub use crate::simulation;

    /// Has every decoder of what an NFS server sends read these bytes.
    #[cfg(feature = "simulation")]
    pub fn nfs_replies(bytes: &[u8]) {
        crate::nfs::garbage::receive(bytes);
    }
    pub use crate::storage::{FileStorage, Sleep, Sleeper, Storage};
    pub use crate::target::{OpenOptions, Target};
}
