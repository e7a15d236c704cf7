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
//! The decisions are made by the pure core, `readpath-core`. This crate carries
//! them out: memory, files, AIO and io_uring, the wall clock. Its modules, from the
//! machine downwards, and then the peers that it is measured against:
//!
//! - [`carrier`]: the machine's requests, carried out on a real device;
//! - [`device`]: requests over page frames in, completions out: what stands
//!   under the machine;
//! - [`storage`]: what carries requests: files, block devices, or a server;
//! - [`frames`]: the page frames;
//! - [`nfs`]: a file on an NFS server, under the machine in the same way;
//! - [`raw`]: large transfers past every cache, in chunks;
//! - [`target`]: the file or block device, opened, with all that is known of it;
//! - [`backend`]: AIO, io_uring or a pool of threads, by name or the first that there is;
//! - [`sysfs`]: what the kernel says of a device;
//! - [`clock`]: the wall clock as the core's time;
//! - [`cold`]: a cold start, checked;
//! - [`usage`]: processor time;
//! - [`pager`]: memory whose pages are brought in by us;
//! - [`kernel`]: the peer: the same reads through the kernel's own path;
//! - [`kernel_swap`]: the peer of memory loads: a swap area, a memory limit, memory to touch;
//! - [`kernel_trace`], [`oracle`]: what the kernel reads ahead, read by read.

mod aio;
pub mod backend;
mod batch;
pub mod carrier;
pub mod clock;
pub mod cold;
pub mod device;
mod engine;
mod file;
pub mod frames;
mod future;
mod guard;
mod identity;
pub mod kernel;
mod kernel_pages;
pub mod kernel_swap;
pub mod kernel_trace;
pub mod leftover;
mod mapping;
pub mod nfs;
mod opening;
pub mod oracle;
mod outcome;
pub mod pager;
mod path;
mod process;
pub mod raw;
mod read_error;
mod reader;
mod ring;
pub mod storage;
pub mod sysfs;
pub mod target;
mod thread;
mod threads;
mod transfers;
pub mod usage;

pub use batch::{Batch, BatchRead};
pub use file::{File, FileStats};
pub use future::ReadFuture;
pub use guard::PageGuard;
pub use opening::OpenFileError;
pub use pager::PagerError;
pub use pager::mapping::Mapping;
pub use pager::region::Region;
pub use path::{BuildError, Builder, Coherence, ReadPath, Stats};
pub use raw::RawFile;
pub use read_error::{Forked, ReadError};
pub use reader::Reader;
pub use readpath_core::decision::{Decided, Decision};
pub use readpath_core::readahead::Advice;
