//! Read path in user space for Linux: page cache, readahead, I/O scheduling and direct I/O over
//! real files, and an NFS client.
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
//! A [`ReadPath`] has the memory and the policies. Every type is created by a builder:
//! `T::builder()`, then options, then `build` or `open`.
//!
//! | need | type | who keeps the pages |
//! |---|---|---|
//! | read a file at any offset, from any number of threads | [`File`] | the kernel, this crate or no one: [`PageCache`] |
//! | read a file in order, as [`std::io::Read`] and `BufRead` | [`Reader`] | as its [`File`] |
//! | many small reads at once | [`Batch`] | as its [`File`]s |
//! | reads in async code, with any executor | [`ReadFuture`] | as its [`File`] |
//! | a page of the own cache without a copy | [`PageGuard`] | this crate |
//! | large transfers that bypass every cache, reads and writes | [`RawFile`], [`raw`] | no one |
//! | a file as memory, with faults served by this crate | [`Mapping`], [`pager`] | this crate, or the kernel: [`pager::MappingMode`] |
//! | memory larger than its budget of frames | [`Region`] | this crate |
//! | a file on an NFS server, without a mount | [`NfsUrl`], [`nfs`] | this crate |
//! | a file of another storage, such as an object store | [`source`] | this crate |
//!
//! Reads take the buffer first and the offset second, as [`std::os::unix::fs::FileExt`] does. A
//! read of the whole buffer has `exact` in its name. `stats()` returns the counters of every type.
//! Errors of opening, building and reading convert to [`std::io::Error`], whose `get_ref` has the
//! original error.
//!
//! Policies are named as `readpath policies` lists them, with parameters:
//! `ondemand,read_ahead_kb=1024`. The book has [one page for each kind of policy][book], with
//! figures and limits.
//!
//! The feature `tracing` sends spans and events to the crate of that name. The feature `usdt` adds
//! probes for `bpftrace`. [`Stats::prometheus`] formats the counters as Prometheus text.
//!
//! `readpath-core` makes the decisions and does no I/O. This crate executes them with memory,
//! files, Linux AIO, io_uring and the wall clock.
//!
//! [book]: https://github.com/readpath/readpath/blob/main/book/src/policies.md

mod backend;
mod batch;
mod file;
mod future;
mod io_error;
pub mod nfs;
mod os;
mod page_cache;
mod page_guard;
pub mod pager;
mod path;
mod probes;
mod prometheus;
pub mod raw;
mod read_error;
mod readahead_state;
pub mod source;
// The unpublished crate `readpath-dst` alone has these: access to the layers below, and a simulated
// system.
#[cfg(inside)]
#[path = "../../dst/src/inside.rs"]
pub mod inside;
#[cfg(simulation)]
#[path = "../../dst/src/simulation.rs"]
pub mod simulation;
mod storage;
mod target;
mod transfers;

pub use backend::{BackendError, BackendInUse, BackendKind, UnknownBackend};
pub use batch::{Batch, BatchRead, PutRead};
pub use file::open_file::{OpenFileError, OpenUrl, OpenUrlError, register_urls, shown_url};
pub use file::reader::Reader;
pub use file::{File, FileStats};
pub use future::ReadFuture;
pub use nfs::{NfsError, NfsUrl};
pub use os::frames::FrameMemoryError;
pub use page_cache::{OptionError, PageCache};
pub use page_guard::PageGuard;
pub use pager::{Mapping, PagerError, Region};
pub use path::builder::{BuildError, Builder};
pub use path::{ReadPath, Stats};
pub use prometheus::LabelError;
pub use raw::RawFile;
pub use read_error::{Forked, ReadError};
pub use readahead_state::{ReadaheadState, ReadaheadWindow};
pub use target::{BufferedBecause, Coherence, Direct, Mode, OpenError};

// Types of the core that a program meets: hints, errors and the decision log.
pub use readpath_core::decision::{Decision, LoggedDecision};
pub use readpath_core::machine::ReadError as MemoryError;
pub use readpath_core::machine::{BeyondDevice, ConfigError, SwapError};
pub use readpath_core::policy::SpecError;
pub use readpath_core::readahead::Advice;
pub use readpath_core::request::{Class, DeviceError, Op, ProcessId, RequestId};
pub use readpath_core::unit::Time;
